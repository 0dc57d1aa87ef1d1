"""Intervals: months, days and microseconds, each with a sign of its own."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from millwheel.sql.functions.registry import ValueRefused, casts, implements, inline, modifies

SECOND = 1_000_000
MINUTE = 60 * SECOND
HOUR = 60 * MINUTE
DAY = 24 * HOUR
DAYS_PER_MONTH = 30
OUT_OF_RANGE = "interval out of range"
MOST_DIGITS = 6
_INT4, _INT8 = 2**31, 2**63


class IntervalValue(msgspec.Struct, frozen=True, eq=False):
    """A span of time. For comparisons, a month has 30 days and a day has 24 hours.

    Args:
        micros: microseconds.
    """

    months: int
    days: int
    micros: int

    @property
    def span(self) -> int:
        """In microseconds."""
        return (self.months * DAYS_PER_MONTH + self.days) * DAY + self.micros

    def __eq__(self, other: object) -> bool:
        return isinstance(other, IntervalValue) and self.span == other.span

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __lt__(self, other: IntervalValue) -> bool:
        return self.span < other.span

    def __le__(self, other: IntervalValue) -> bool:
        return self.span <= other.span

    def __gt__(self, other: IntervalValue) -> bool:
        return self.span > other.span

    def __ge__(self, other: IntervalValue) -> bool:
        return self.span >= other.span

    def __hash__(self) -> int:
        return hash(self.span)

    def __neg__(self) -> IntervalValue:
        return interval(-self.months, -self.days, -self.micros)


def interval(months: int, days: int, micros: int) -> IntervalValue:
    """An interval with checked parts.

    Raises:
        ValueRefused: a part is too large.
    """
    if (
        -_INT4 <= months < _INT4
        and -_INT4 <= days < _INT4
        and -_INT8 <= micros < _INT8
        and not _is_infinite(months, days, micros)
    ):
        return IntervalValue(months, days, micros)
    raise ValueRefused(OUT_OF_RANGE)


def _is_infinite(months: int, days: int, micros: int) -> bool:
    """Whether Postgres stores its infinite intervals so."""
    return (months, days, micros) in (
        (_INT4 - 1, _INT4 - 1, _INT8 - 1),
        (-_INT4, -_INT4, -_INT8),
    )


def towards_zero(value: int, divisor: int) -> tuple[int, int]:
    """Quotient and remainder, as in C: the remainder has the sign of `value`."""
    found, rest = divmod(abs(value), divisor)
    return (found, rest) if value >= 0 else (-found, -rest)


# -- operators --------------------------------------------------------------------------------

_SYMBOLS = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
for _end, _symbol in _SYMBOLS.items():
    inline(f"({{0}} {_symbol} {{1}})", f"interval_{_end}(interval,interval)")
inline("(-{0})", "interval_um(interval)")
inline("({0} is not None)", "isfinite(interval)")


@implements("interval_pl(interval,interval)")
def plus(a: IntervalValue, b: IntervalValue) -> IntervalValue:
    return interval(a.months + b.months, a.days + b.days, a.micros + b.micros)


@implements("interval_mi(interval,interval)")
def minus(a: IntervalValue, b: IntervalValue) -> IntervalValue:
    return interval(a.months - b.months, a.days - b.days, a.micros - b.micros)


def _scaled(span: IntervalValue, scale: Callable[[int], float]) -> IntervalValue:
    """Scale each part; fractions of months become days, those of days become microseconds.

    Args:
        scale: multiplies or divides a part.
    """
    months, days = scale(span.months), scale(span.days)
    if not (-_INT4 <= months < _INT4 and -_INT4 <= days < _INT4):
        raise ValueRefused(OUT_OF_RANGE)
    more_days = _rounded((months - int(months)) * DAYS_PER_MONTH)
    seconds = _rounded((days - int(days) + more_days - int(more_days)) * 86400)
    whole = int(days) + int(more_days)
    if abs(seconds) >= 86400:
        extra = int(seconds / 86400)
        whole += extra
        seconds -= extra * 86400
    micros = scale(span.micros) + seconds * SECOND
    if not -_INT8 <= micros < _INT8:
        raise ValueRefused(OUT_OF_RANGE)
    return interval(int(months), whole, round(micros))


def _rounded(value: float) -> float:
    """To microseconds."""
    return round(value * 1e6) / 1e6


@implements("interval_mul(interval,float8)")
def times(span: IntervalValue, factor: float) -> IntervalValue:
    return _scaled(span, lambda part: part * factor)


@implements("mul_d_interval(float8,interval)")
def times_interval(factor: float, span: IntervalValue) -> IntervalValue:
    return times(span, factor)


@implements("interval_div(interval,float8)")
def divided(span: IntervalValue, divisor: float) -> IntervalValue:
    if not divisor:
        raise ValueRefused("division by zero")
    return _scaled(span, lambda part: part / divisor)


# -- functions --------------------------------------------------------------------------------


@implements("justify_hours(interval)")
def justify_hours(span: IntervalValue) -> IntervalValue:
    """Whole days of 24 hours become days."""
    days, micros = towards_zero(span.micros, DAY)
    days += span.days
    days, micros = _same_sign(days, micros, DAY)
    return interval(span.months, days, micros)


@implements("justify_days(interval)")
def justify_days(span: IntervalValue) -> IntervalValue:
    """Each 30 days become a month."""
    months, days = towards_zero(span.days, DAYS_PER_MONTH)
    months += span.months
    months, days = _same_sign(months, days, DAYS_PER_MONTH)
    return interval(months, days, span.micros)


@implements("justify_interval(interval)")
def justify_interval(span: IntervalValue) -> IntervalValue:
    """Hours become days, days become months, and all have the same sign."""
    more_days, micros = towards_zero(span.micros, DAY)
    more_months, days = towards_zero(span.days + more_days, DAYS_PER_MONTH)
    months = span.months + more_months
    if months > 0 and (days, micros) < (0, 0):
        months, days = months - 1, days + DAYS_PER_MONTH
    elif months < 0 and (days, micros) > (0, 0):
        months, days = months + 1, days - DAYS_PER_MONTH
    days, micros = _same_sign(days, micros, DAY)
    return interval(months, days, micros)


def _same_sign(large: int, small: int, size: int) -> tuple[int, int]:
    """Borrow one of the larger unit if the signs differ."""
    if large > 0 > small:
        return large - 1, small + size
    if large < 0 < small:
        return large + 1, small - size
    return large, small


@implements("make_interval(int4,int4,int4,int4,int4,int4,float8)")
def make_interval(
    years: int = 0,
    months: int = 0,
    weeks: int = 0,
    days: int = 0,
    hours: int = 0,
    minutes: int = 0,
    seconds: float = 0.0,
) -> IntervalValue:
    fraction = seconds * 1e6
    if not -_INT8 <= fraction < _INT8:
        raise ValueRefused(OUT_OF_RANGE)
    micros = hours * HOUR + minutes * MINUTE + round(fraction)
    return interval(years * 12 + months, weeks * 7 + days, micros)


def rounded_micros(micros: int, digits: int) -> int:
    """Round microseconds to this number of decimal digits of a second, halves away from zero.

    Raises:
        ValueRefused: the number is negative.
    """
    if digits < 0:
        raise ValueRefused("precision must not be negative")
    if digits >= MOST_DIGITS:
        return micros
    scale: int = 10 ** (MOST_DIGITS - digits)
    found = (abs(micros) + scale // 2) // scale * scale
    return found if micros >= 0 else -found


@modifies("interval")
@implements("interval(interval,int4)")
def with_digits(span: IntervalValue, digits: int) -> IntervalValue:
    """Round to this number of decimal digits of a second.

    Raises:
        ValueRefused: the number is negative, or the interval is so long that Postgres cannot add
            half of the last digit.
    """
    micros = rounded_micros(span.micros, digits)
    half = 10 ** (MOST_DIGITS - digits) // 2 if digits < MOST_DIGITS else 0
    if not -_INT8 <= span.micros + (half if span.micros >= 0 else -half) < _INT8:
        raise ValueRefused(OUT_OF_RANGE)
    return interval(span.months, span.days, micros)


# -- output -----------------------------------------------------------------------------------


@casts(("interval", "text"))
def shown(span: IntervalValue) -> str:
    """As with IntervalStyle postgres: ``1 year 2 mons -3 days +04:05:06.7``."""
    years, months = towards_zero(span.months, 12)
    parts: list[str] = []
    after_negative = False
    for value, unit in ((years, "year"), (months, "mon"), (span.days, "day")):
        if value:
            plus_sign = "+" if after_negative and value > 0 else ""
            parts.append(f"{plus_sign}{value} {unit}{'' if value == 1 else 's'}")
            after_negative = value < 0
    if span.micros or not parts:
        sign = "-" if span.micros < 0 else "+" if after_negative else ""
        parts.append(sign + clock(abs(span.micros)))
    return " ".join(parts)


def clock(micros: int) -> str:
    """Microseconds as ``04:05:06.7``."""
    seconds, fraction = divmod(micros, SECOND)
    minutes, seconds = divmod(seconds, 60)
    text = f"{minutes // 60:02}:{minutes % 60:02}:{seconds:02}"
    return f"{text}.{fraction:06}".rstrip("0") if fraction else text
