"""Names of units and fields of times."""

from __future__ import annotations

_LONGEST = 10
"""Postgres compares no more characters than these."""

_NAMES = {
    "microsecond": "microsecon us usec usecond useconds usecs",
    "millisecond": "millisecon ms msec msecond mseconds msecs",
    "second": "s sec second seconds secs",
    "minute": "m min mins minute minutes",
    "hour": "h hour hours hr hrs",
    "day": "d day days",
    "week": "w week weeks",
    "month": "mon mons month months",
    "quarter": "qtr quarter",
    "year": "y year years yr yrs",
    "decade": "dec decade decades decs",
    "century": "c cent centuries century",
    "millennium": "mil millennia millennium mils",
    "timezone": "timezone",
    "timezone_hour": "timezone_h",
    "timezone_minute": "timezone_m",
}
UNITS = {name: unit for unit, names in _NAMES.items() for name in names.split()}
FIELDS = {
    **UNITS, "dow": "dow", "doy": "doy", "isodow": "isodow", "isoyear": "isoyear",
    "epoch": "epoch", "j": "julian", "jd": "julian", "julian": "julian", "mm": "minute",
}  # fmt: skip


def unit(name: str) -> str | None:
    """The unit of this name; None: there is none."""
    return UNITS.get(name[:_LONGEST].lower()) if name.isascii() else None


def field(name: str) -> str | None:
    """The field of a time by this name; None: there is none."""
    return FIELDS.get(name[:_LONGEST].lower()) if name.isascii() else None
