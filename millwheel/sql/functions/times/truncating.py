"""``date_trunc`` and ``date_bin``."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta

from millwheel.sql.functions.registry import ValueRefused, implements
from millwheel.sql.functions.times.fields import unavailable
from millwheel.sql.functions.times.instants import MICRO
from millwheel.sql.functions.times.intervals import (
    DAY,
    HOUR,
    MINUTE,
    OUT_OF_RANGE,
    SECOND,
    IntervalValue,
    towards_zero,
)
from millwheel.sql.functions.times.units import UNITS, unit
from millwheel.sql.functions.times.zones import OUT_OF_RANGE as TIMESTAMP_OUT_OF_RANGE
from millwheel.sql.functions.times.zones import instant, local, naive, utc, zone_named

Truncate = Callable[[datetime], datetime]


def _midnight(value: datetime) -> datetime:
    return value.replace(hour=0, minute=0, second=0, microsecond=0)


def _year(value: datetime, year: int) -> datetime:
    if year < 1:
        raise ValueRefused(TIMESTAMP_OUT_OF_RANGE)
    return value.replace(year, 1, 1, 0, 0, 0, 0)


_CLOCK: dict[str, Truncate] = {
    "microsecond": lambda value: value,
    "millisecond": lambda value: value.replace(microsecond=value.microsecond // 1000 * 1000),
    "second": lambda value: value.replace(microsecond=0),
    "minute": lambda value: value.replace(second=0, microsecond=0),
    "hour": lambda value: value.replace(minute=0, second=0, microsecond=0),
}
_TRUNCATE: dict[str, Truncate] = {
    **_CLOCK,
    "day": _midnight,
    "week": lambda value: _midnight(value) - timedelta(value.weekday()),
    "month": lambda value: value.replace(day=1, hour=0, minute=0, second=0, microsecond=0),
    "quarter": lambda value: value.replace(
        value.year, (value.month - 1) // 3 * 3 + 1, 1, 0, 0, 0, 0
    ),
    "year": lambda value: _year(value, value.year),
    "decade": lambda value: _year(value, value.year // 10 * 10),
    "century": lambda value: _year(value, (value.year - 1) // 100 * 100 + 1),
    "millennium": lambda value: _year(value, (value.year - 1) // 1000 * 1000 + 1),
}


def _truncate_of(name: str, kind: str) -> Truncate:
    found = _TRUNCATE.get(name)
    if found is None:
        known = unit(name)
        found = None if known is None else _TRUNCATE.get(known)
        if found is None:
            raise unavailable(name, kind, known is not None)
    return found


@implements("date_trunc(text,timestamp)")
def truncated(name: str, value: datetime) -> datetime:
    """The start of the hour, day, week and so on."""
    return _truncate_of(name, "timestamp")(value)


@implements("date_trunc(text,timestamptz)")
def truncated_instant(name: str, value: datetime) -> datetime:
    return _truncate_of(name, "timestamptz")(value)


@implements("date_trunc(text,timestamptz,text)")
def truncated_in(name: str, value: datetime, zone_name: str) -> datetime:
    """The start of the hour, day, week and so on, by the clocks of a zone."""
    truncate, zone = _truncate_of(name, "timestamptz"), zone_named(zone_name)
    moment = local(value, zone)
    if unit(name) in _CLOCK:
        return utc(truncate(moment) - (moment - naive(value)))
    return instant(truncate(moment), zone)


_MICROS = {"minute": MINUTE, "second": SECOND, "millisecond": 1000, "microsecond": 1, "hour": HOUR}
_MONTHS = {
    "month": 1, "quarter": 3, "year": 12, "decade": 120, "century": 1200, "millennium": 12_000,
}  # fmt: skip


@implements("date_trunc(text,interval)")
def truncated_interval(name: str, span: IntervalValue) -> IntervalValue:
    """Without parts that are smaller than a unit."""
    known = unit(name)
    if known in _MICROS:
        rest = towards_zero(span.micros, _MICROS[known])[1]
        return IntervalValue(span.months, span.days, span.micros - rest)
    if known == "day":
        return IntervalValue(span.months, span.days, 0)
    if known in _MONTHS:
        return IntervalValue(span.months - towards_zero(span.months, _MONTHS[known])[1], 0, 0)
    raise unavailable(name, "interval", known in UNITS.values())


@implements("date_bin(interval,timestamp,timestamp)", "date_bin(interval,timestamptz,timestamptz)")
def binned(stride: IntervalValue, value: datetime, origin: datetime) -> datetime:
    """The start of the bin that a timestamp is in; one of them starts at `origin`.

    Raises:
        ValueRefused: a bin has months, or is not longer than nothing.
    """
    if stride.months:
        raise ValueRefused("timestamps cannot be binned into intervals containing months or years")
    size = stride.days * DAY + stride.micros
    if size <= 0:
        raise ValueRefused("stride must be greater than zero")
    if size >= 2**63:
        raise ValueRefused(OUT_OF_RANGE)
    since = (value - origin) // MICRO
    try:
        return origin + timedelta(microseconds=since // size * size)
    except OverflowError:
        raise ValueRefused(TIMESTAMP_OUT_OF_RANGE) from None
