"""Comparisons, sums and differences of timestamps, dates and intervals."""

from __future__ import annotations

import operator
from calendar import monthrange
from collections.abc import Callable
from datetime import date, datetime, time, timedelta, tzinfo
from typing import Any

from millwheel.sql.functions.registry import BY_CONSTANT, ValueRefused, implements, inline
from millwheel.sql.functions.times.dates import time_plus
from millwheel.sql.functions.times.instants import instant_of, start_of
from millwheel.sql.functions.times.intervals import (
    DAY,
    SECOND,
    IntervalValue,
    interval,
    towards_zero,
)
from millwheel.sql.functions.times.zones import (
    OUT_OF_RANGE,
    instant,
    local,
    utc,
    zone_named,
)

# -- comparisons -------------------------------------------------------------------------------

_SYMBOLS = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}


def _converted(
    compare: Callable[[Any, Any], bool], left: Callable[[Any], Any], right: Callable[[Any], Any]
) -> Callable[[Any, Any], bool]:
    return lambda a, b: compare(left(a), right(b))


def _same(value: Any) -> Any:
    return value


_MIXED: dict[tuple[str, str], tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    ("date", "timestamp"): (start_of, _same),
    ("timestamp", "date"): (_same, start_of),
    ("date", "timestamptz"): (instant_of, _same),
    ("timestamptz", "date"): (_same, instant_of),
    ("timestamp", "timestamptz"): (utc, _same),
    ("timestamptz", "timestamp"): (_same, utc),
}
for _end, _symbol in _SYMBOLS.items():
    for _kind in ("date", "time", "timestamp", "timestamptz"):
        inline(f"({{0}} {_symbol} {{1}})", f"{_kind}_{_end}({_kind},{_kind})")
    for (_a, _b), (_left, _right) in _MIXED.items():
        implements(f"{_a}_{_end}_{_b}({_a},{_b})")(
            _converted(getattr(operator, _end), _left, _right)
        )


# -- sums --------------------------------------------------------------------------------------


def plus(moment: datetime, span: IntervalValue) -> datetime:
    """A timestamp some time later; a day that the month does not have becomes its last.

    Raises:
        ValueRefused: the result is out of range.
    """
    try:
        if span.months:
            moment = _months_later(moment, span.months)
        return moment + timedelta(span.days, 0, span.micros)
    except OverflowError:
        raise ValueRefused(OUT_OF_RANGE) from None


def _months_later(moment: datetime, months: int) -> datetime:
    years, month = divmod(moment.month - 1 + months, 12)
    year, month = moment.year + years, month + 1
    if not 1 <= year <= 9999:
        raise ValueRefused(OUT_OF_RANGE)
    day = moment.day
    if day > 28:
        day = min(day, monthrange(year, month)[1])
    return moment.replace(year, month, day)


def minus(moment: datetime, span: IntervalValue) -> datetime:
    return plus(moment, -span)


def _plus_constant(span: IntervalValue) -> Callable[[datetime], datetime] | None:
    """As `plus`, for one interval without months."""
    if span.months:
        return None
    try:
        length = timedelta(span.days, 0, span.micros)
    except OverflowError:
        return None

    def later(moment: datetime) -> datetime:
        try:
            return moment + length
        except OverflowError:
            raise ValueRefused(OUT_OF_RANGE) from None

    return later


def _minus_constant(span: IntervalValue) -> Callable[[datetime], datetime] | None:
    try:
        return _plus_constant(-span)
    except ValueRefused:
        return None


BY_CONSTANT[plus] = _plus_constant
BY_CONSTANT[minus] = _minus_constant


@implements("interval_pl_timestamp(interval,timestamp)")
@implements("interval_pl_timestamptz(interval,timestamptz)")
def plus_moment(span: IntervalValue, moment: datetime) -> datetime:
    return plus(moment, span)


@implements("date_pl_interval(date,interval)")
def date_plus(day: date, span: IntervalValue) -> datetime:
    return plus(start_of(day), span)


@implements("interval_pl_date(interval,date)")
def plus_date(span: IntervalValue, day: date) -> datetime:
    return plus(start_of(day), span)


@implements("date_mi_interval(date,interval)")
def date_minus(day: date, span: IntervalValue) -> datetime:
    return plus(start_of(day), -span)


implements(
    "timestamp_pl_interval(timestamp,interval)",
    "timestamptz_pl_interval(timestamptz,interval)",
    "date_add(timestamptz,interval)",
)(plus)
implements(
    "timestamp_mi_interval(timestamp,interval)",
    "timestamptz_mi_interval(timestamptz,interval)",
    "date_subtract(timestamptz,interval)",
)(minus)


@implements("date_add(timestamptz,interval,text)")
def plus_in(value: datetime, span: IntervalValue, name: str) -> datetime:
    """An instant some time later; months and days are those of a zone's clocks."""
    return _plus_in(value, span, zone_named(name))


@implements("date_subtract(timestamptz,interval,text)")
def minus_in(value: datetime, span: IntervalValue, name: str) -> datetime:
    return _plus_in(value, -span, zone_named(name))


def _plus_in(value: datetime, span: IntervalValue, zone: tzinfo) -> datetime:
    if span.months:
        value = instant(_months_later(local(value, zone), span.months), zone)
    try:
        if span.days:
            value = instant(local(value, zone) + timedelta(span.days), zone)
        return value + timedelta(0, 0, span.micros)
    except OverflowError:
        raise ValueRefused(OUT_OF_RANGE) from None


# -- differences -------------------------------------------------------------------------------


@implements("timestamp_mi(timestamp,timestamp)", "timestamptz_mi(timestamptz,timestamptz)")
def between(a: datetime, b: datetime) -> IntervalValue:
    """The time between two timestamps, as days and microseconds."""
    found = a - b
    if found.days < 0:
        whole = (found.days * 86400 + found.seconds) * SECOND + found.microseconds
        days, micros = towards_zero(whole, DAY)
        return IntervalValue(0, days, micros)
    return IntervalValue(0, found.days, found.seconds * SECOND + found.microseconds)


@implements("age(timestamp,timestamp)", "age(timestamptz,timestamptz)")
def age(a: datetime, b: datetime) -> IntervalValue:
    """The time between two timestamps, as years, months, days and so on."""
    if a < b:
        found = _age(b, a)
        return interval(-found.months, -found.days, -found.micros)
    return _age(a, b)


def _age(later: datetime, earlier: datetime) -> IntervalValue:
    months = (later.year - earlier.year) * 12 + later.month - earlier.month
    days = later.day - earlier.day
    micros = _micros(later) - _micros(earlier)
    if micros < 0:
        micros, days = micros + DAY, days - 1
    while days < 0:
        days, months = days + monthrange(earlier.year, earlier.month)[1], months - 1
    return IntervalValue(months, days, micros)


def _micros(value: datetime) -> int:
    seconds = (value.hour * 60 + value.minute) * 60 + value.second
    return seconds * SECOND + value.microsecond


# -- OVERLAPS ----------------------------------------------------------------------------------


def _overlap(start: Any, end: Any, other_start: Any, other_end: Any) -> bool | None:
    """Whether two spans of time have something in common, as SQL says of NULLs."""
    first, second = _ordered(start, end), _ordered(other_start, other_end)
    if first is None or second is None:
        return None
    (start, end), (other_start, other_end) = first, second
    if start == other_start:
        return None if end is None or other_end is None else True
    if start < other_start:
        start, end, other_start, other_end = other_start, other_end, start, end
    if other_end is None:
        return None
    if start < other_end:
        return True
    return None if end is None else False


def _ordered(start: Any, end: Any) -> tuple[Any, Any] | None:
    """The ends in their order, NULL last; None: both are NULL."""
    if start is None:
        return None if end is None else (end, None)
    if end is not None and start > end:
        return end, start
    return start, end


def _later(start: Any, span: IntervalValue | None) -> Any:
    if start is None or span is None:
        return None
    return time_plus(start, span) if isinstance(start, time) else plus(start, span)


def _overlaps(first: bool, second: bool) -> Callable[[Any, Any, Any, Any], bool | None]:
    """Args:
    first, second: whether the end of each span is an interval.
    """

    def found(start: Any, end: Any, other_start: Any, other_end: Any) -> bool | None:
        return _overlap(
            start,
            _later(start, end) if first else end,
            other_start,
            _later(other_start, other_end) if second else other_end,
        )

    return found


for _kind in ("time", "timestamp", "timestamptz"):
    for _first in (False, True):
        for _second in (False, True):
            _ends = ("interval" if each else _kind for each in (_first, _second))
            _key = "overlaps({0},{1},{0},{2})".format(_kind, *_ends)
            implements(_key, may_be_null=True)(_overlaps(_first, _second))
