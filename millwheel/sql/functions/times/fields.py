"""Fields of times: ``extract`` gives numerics, ``date_part`` floats."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import date, datetime
from decimal import ROUND_HALF_UP, Context, Decimal
from typing import Any

from millwheel.sql.functions.registry import ValueRefused, implements
from millwheel.sql.functions.times.dates import micros_of_time
from millwheel.sql.functions.times.instants import micros_since_start, start_of
from millwheel.sql.functions.times.intervals import (
    DAY,
    DAYS_PER_MONTH,
    HOUR,
    MINUTE,
    SECOND,
    IntervalValue,
    towards_zero,
)
from millwheel.sql.functions.times.units import UNITS, field

JULIAN = 1_721_425
"""The Julian day of the day before 0001-01-01, which Python counts as 0."""
_UNTIL_2000 = 946_684_800 * SECOND
_SHOWN = {
    "date": "date", "time": "time without time zone", "timestamp": "timestamp without time zone",
    "timestamptz": "timestamp with time zone", "interval": "interval",
}  # fmt: skip
_KNOWN = frozenset(UNITS.values()) | {
    "dow", "doy", "isodow", "isoyear", "epoch", "julian",
}  # fmt: skip
_EXACT = Context(prec=60)

Fields = Mapping[str, Callable[[Any], Any]]


def scaled(value: int, digits: int) -> Decimal:
    """A whole number divided by a power of ten, with that many decimal digits."""
    return Decimal(value).scaleb(-digits, _EXACT)


def _in_minute(value: Any) -> int:
    """Microseconds since the minute began."""
    micros: int = value.second * SECOND + value.microsecond
    return micros


def _epoch(value: datetime) -> int:
    return micros_since_start(value) + _UNTIL_2000


def _julian(value: datetime) -> Decimal:
    return _EXACT.add(Decimal(julian_day(value)), _quotient(micros_of_time(value)))


def julian_day(value: date) -> int:
    return value.toordinal() + JULIAN


def _quotient(micros: int) -> Decimal:
    """The part of a day, with as many digits as Postgres' division of numerics gives."""
    weight, first = 0, micros
    while first >= 10_000:
        weight, first = weight + 1, first // 10_000
    # The divisor, the microseconds of a day, is 864_0000_0000.
    weight -= 2 + (first <= 864)
    digits = min(max(16 - weight * 4, 0), 1000)
    return _EXACT.divide(Decimal(micros), Decimal(DAY)).quantize(
        Decimal(1).scaleb(-digits), ROUND_HALF_UP, _EXACT
    )


_DATE: dict[str, Callable[[Any], int]] = {
    "day": lambda value: value.day,
    "month": lambda value: value.month,
    "quarter": lambda value: (value.month + 2) // 3,
    "year": lambda value: value.year,
    "decade": lambda value: value.year // 10,
    "century": lambda value: (value.year + 99) // 100,
    "millennium": lambda value: (value.year + 999) // 1000,
    "week": lambda value: value.isocalendar()[1],
    "isoyear": lambda value: value.isocalendar()[0],
    "dow": lambda value: value.isoweekday() % 7,
    "isodow": lambda value: value.isoweekday(),
    "doy": lambda value: value.timetuple().tm_yday,
}
_CLOCK: dict[str, Callable[[Any], Any]] = {
    "minute": lambda value: value.minute,
    "hour": lambda value: value.hour,
    "microsecond": _in_minute,
    "millisecond": lambda value: scaled(_in_minute(value), 3),
    "second": lambda value: scaled(_in_minute(value), 6),
}
_TIMESTAMP: Fields = {
    **_DATE, **_CLOCK, "julian": _julian, "epoch": lambda value: scaled(_epoch(value), 6),
}  # fmt: skip
_IN_UTC: dict[str, Callable[[Any], int]] = {
    name: lambda value: 0 for name in ("timezone", "timezone_hour", "timezone_minute")
}


def _months(span: IntervalValue) -> int:
    return towards_zero(span.months, 12)[1]


def _years(span: IntervalValue, count: int = 1) -> int:
    return towards_zero(span.months, 12 * count)[0]


def _interval_in_minute(span: IntervalValue) -> int:
    return towards_zero(span.micros, MINUTE)[1]


def _quarter(span: IntervalValue) -> int:
    months = _months(span)
    return months // 3 + 1 if span.months >= 0 else -(-months // 3 + 1)


def _interval_epoch(span: IntervalValue) -> int:
    """Microseconds, with years of 365.25 days."""
    years, months = towards_zero(span.months, 12)
    quarter_days = 1461 * years + 4 * (DAYS_PER_MONTH * months + span.days)
    return quarter_days * (DAY // 4) + span.micros


_INTERVAL: Fields = {
    "microsecond": _interval_in_minute,
    "millisecond": lambda span: scaled(_interval_in_minute(span), 3),
    "second": lambda span: scaled(_interval_in_minute(span), 6),
    "minute": lambda span: towards_zero(towards_zero(span.micros, HOUR)[1], MINUTE)[0],
    "hour": lambda span: towards_zero(span.micros, HOUR)[0],
    "day": lambda span: span.days,
    "week": lambda span: towards_zero(span.days, 7)[0],
    "month": _months,
    "quarter": _quarter,
    "year": _years,
    "decade": lambda span: _years(span, 10),
    "century": lambda span: _years(span, 100),
    "millennium": lambda span: _years(span, 1000),
    "epoch": lambda span: scaled(_interval_epoch(span), 6),
}

NUMERIC: dict[str, Fields] = {
    "date": {
        **_DATE,
        "julian": julian_day,
        "epoch": lambda value: (value.toordinal() - 719_163) * 86_400,
    },
    "time": {**_CLOCK, "epoch": lambda value: scaled(micros_of_time(value), 6)},
    "timestamp": _TIMESTAMP,
    "timestamptz": {**_TIMESTAMP, **_IN_UTC},
    "interval": _INTERVAL,
}


# -- floats -------------------------------------------------------------------------------------


def _float_julian(value: datetime) -> float:
    seconds = (value.hour * 60 + value.minute) * 60 + value.second
    return julian_day(value) + (seconds + value.microsecond / 1e6) / 86_400.0


def _float_interval_epoch(span: IntervalValue) -> float:
    years, months = towards_zero(span.months, 12)
    found = span.micros / 1e6
    found += 31_557_600.0 * years
    found += 2_592_000.0 * months
    return found + 86_400.0 * span.days


def _float_second(micros: int) -> float:
    seconds, micros = towards_zero(micros, SECOND)
    return seconds + micros / 1e6


def _float_millisecond(micros: int) -> float:
    seconds, micros = towards_zero(micros, SECOND)
    return seconds * 1000.0 + micros / 1000.0


_FLOAT_CLOCK: Fields = {
    "second": lambda value: _float_second(_in_minute(value)),
    "millisecond": lambda value: _float_millisecond(_in_minute(value)),
}
_FLOAT_TIMESTAMP: Fields = {
    **_FLOAT_CLOCK, "epoch": lambda value: _epoch(value) / 1e6, "julian": _float_julian,
}  # fmt: skip
FLOAT: dict[str, Fields] = {
    "time": {
        **NUMERIC["time"], **_FLOAT_CLOCK, "epoch": lambda value: micros_of_time(value) / 1e6,
    },
    "timestamp": {**_TIMESTAMP, **_FLOAT_TIMESTAMP},
    "timestamptz": {**_TIMESTAMP, **_IN_UTC, **_FLOAT_TIMESTAMP},
    "interval": {
        **_INTERVAL,
        "second": lambda span: _float_second(_interval_in_minute(span)),
        "millisecond": lambda span: _float_millisecond(_interval_in_minute(span)),
        "epoch": _float_interval_epoch,
    },
}  # fmt: skip


def unavailable(name: str, kind: str, is_known: bool) -> ValueRefused:
    """The error of a unit that a type does not have."""
    state = "not supported" if is_known else "not recognized"
    return ValueRefused(f'unit "{name.lower()}" {state} for type {_SHOWN[kind]}')


def _field_of(fields: Fields, name: str, kind: str) -> Callable[[Any], Any]:
    read = fields.get(name)
    if read is None:
        found = field(name)
        read = None if found is None else fields.get(found)
        if read is None:
            raise unavailable(name, kind, found in _KNOWN)
    return read


def _register_extract(kind: str, fields: Fields) -> None:
    @implements(f"extract(text,{kind})")
    def extract(name: str, value: Any) -> Decimal:
        found = _field_of(fields, name, kind)(value)
        return found if type(found) is Decimal else Decimal(found)


def _register_part(kind: str, fields: Fields) -> None:
    @implements(f"date_part(text,{kind})")
    def date_part(name: str, value: Any) -> float:
        return float(_field_of(fields, name, kind)(value))


for _kind, _fields in NUMERIC.items():
    _register_extract(_kind, _fields)
for _kind, _fields in FLOAT.items():
    _register_part(_kind, _fields)


@implements("date_part(text,date)")
def date_part_of_date(name: str, day: date) -> float:
    return float(_field_of(FLOAT["timestamp"], name, "timestamp")(start_of(day)))
