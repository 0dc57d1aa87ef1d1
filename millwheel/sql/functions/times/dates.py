"""Dates and times of the day."""

from __future__ import annotations

import re
from datetime import date, datetime, time, timedelta

from millwheel.sql.functions.registry import (
    ValueRefused,
    casts,
    implements,
    inline,
    inline_cast,
    modifies,
)
from millwheel.sql.functions.times.instants import (
    CLOCK,
    COMPACT,
    DATE,
    ZONE,
    day_of,
    made_micros,
    micros_of,
    refused,
    zone_of,
)
from millwheel.sql.functions.times.intervals import (
    DAY,
    SECOND,
    IntervalValue,
    rounded_micros,
)
from millwheel.sql.functions.times.zones import utc

_DAY = re.compile(
    rf"(?:{DATE}|{COMPACT})(?:(?:[ ]+|[ ]*t){CLOCK})?{ZONE}\Z", re.IGNORECASE | re.ASCII
)
_TIME = re.compile(
    rf"(?:(?:{DATE})[ ]+|t?){CLOCK}(?:[ ]*(?P<offset>[+-][\d:]+)|(?P<zulu>z))?"
    r"(?P<zone>\Z)",
    re.IGNORECASE | re.ASCII,
)
_DAY_OF_PYTHON = re.compile(r"\d{4}-\d\d-\d\d\Z", re.ASCII)
_TIME_OF_PYTHON = re.compile(r"(?:[01]\d|2[0-3]):[0-5]\d(?::[0-5]\d(?:\.\d{1,6})?)?\Z", re.ASCII)
_SPACE = " \t\n\r\v\f"
_INT8 = 2**63
DATE_OUT_OF_RANGE = "date out of range; years 1 to 9999 are available here"


# -- texts --------------------------------------------------------------------------------------


@casts(("text", "date"))
def read_date(text: str) -> date:
    """Read a date; a time in it does not matter.

    Raises:
        ValueRefused: it is none.
    """
    if _DAY_OF_PYTHON.match(text) is not None:
        try:
            return date.fromisoformat(text)
        except ValueError:
            pass
    stripped = text.strip(_SPACE)
    if stripped.lower() == "epoch":
        return date(1970, 1, 1)
    match = _DAY.match(stripped)
    if match is None:
        raise refused(text, "date")
    found = day_of(match, text)
    zone_of(match)
    if match["hour"]:
        micros_of(match, text)
    return found


@casts(("text", "time"))
def read_time(text: str) -> time:
    """Read a time of the day; a date and an offset in it do not matter.

    Raises:
        ValueRefused: it is none.
    """
    if _TIME_OF_PYTHON.match(text) is not None:
        return time.fromisoformat(text)
    match = _TIME.match(text.strip(_SPACE))
    if match is None:
        raise refused(text, "time")
    if match["year"]:
        _checked_day(match, text)
    zone_of(match)
    return time_of(micros_of(match, text))


def _checked_day(match: re.Match[str], text: str) -> None:
    try:
        date(int(match["year"]), int(match["month"]), int(match["day"]))
    except ValueError:
        raise ValueRefused(f'date/time field value out of range: "{text}"') from None


inline_cast("{0}.isoformat()", ("date", "text"))


@casts(("time", "text"))
def shown_time(value: time) -> str:
    text = value.isoformat()
    return text.rstrip("0") if value.microsecond else text


# -- times of the day ---------------------------------------------------------------------------


def micros_of_time(value: time | datetime) -> int:
    """Microseconds since midnight."""
    seconds = (value.hour * 60 + value.minute) * 60 + value.second
    return seconds * SECOND + value.microsecond


def time_of(micros: int) -> time:
    """The time that many microseconds after midnight.

    Raises:
        ValueRefused: it is 24:00, which Python's times do not have.
    """
    if micros >= DAY:
        raise ValueRefused("the time 24:00:00 is not available here")
    seconds, micros = divmod(micros, SECOND)
    minutes, second = divmod(seconds, 60)
    hour, minute = divmod(minutes, 60)
    return time(hour, minute, second, micros)


@casts(("time", "interval"))
@implements("interval(time)")
def interval_of_time(value: time) -> IntervalValue:
    return IntervalValue(0, 0, micros_of_time(value))


@casts(("interval", "time"))
@implements("time(interval)")
def time_of_interval(span: IntervalValue) -> time:
    return time_of(span.micros % DAY)


def _around_midnight(micros: int) -> time:
    """The time of the day; Postgres lets the sum of microseconds overflow."""
    return time_of(((micros + _INT8) % (2 * _INT8) - _INT8) % DAY)


@implements("time_pl_interval(time,interval)")
def time_plus(value: time, span: IntervalValue) -> time:
    """A time of the day some time later; after midnight it begins again."""
    return _around_midnight(micros_of_time(value) + span.micros)


@implements("interval_pl_time(interval,time)")
def plus_time(span: IntervalValue, value: time) -> time:
    return time_plus(value, span)


@implements("time_mi_interval(time,interval)")
def time_minus(value: time, span: IntervalValue) -> time:
    return _around_midnight(micros_of_time(value) - span.micros)


@implements("time_mi_time(time,time)")
def between_times(a: time, b: time) -> IntervalValue:
    return IntervalValue(0, 0, micros_of_time(a) - micros_of_time(b))


@modifies("time")
@implements("time(time,int4)")
def with_digits(value: time, digits: int) -> time:
    """Round to this number of decimal digits of a second."""
    return time_of(rounded_micros(micros_of_time(value), digits))


@implements("make_time(int4,int4,float8)")
def made_time(hour: int, minute: int, second: float) -> time:
    return time_of(made_micros(hour, minute, second))


for _kind in ("timestamp", "timestamptz"):
    inline_cast("{0}.time()", (_kind, "time"))
    inline("{0}.time()", f"time({_kind})")


# -- dates --------------------------------------------------------------------------------------


@implements("make_date(int4,int4,int4)")
def made_date(year: int, month: int, day: int) -> date:
    try:
        return date(year, month, day)
    except ValueError:
        reason = "years before 1 are not available here; " if year < 0 else ""
        raise ValueRefused(
            f"{reason}date field value out of range: {year}-{month:02}-{day:02}"
        ) from None


@implements("date_pli(date,int4)")
def days_after(day: date, days: int) -> date:
    try:
        return day + timedelta(days)
    except OverflowError:
        raise ValueRefused(DATE_OUT_OF_RANGE) from None


@implements("integer_pl_date(int4,date)")
def days_plus_date(days: int, day: date) -> date:
    return days_after(day, days)


@implements("date_mii(date,int4)")
def days_before(day: date, days: int) -> date:
    return days_after(day, -days)


inline("({0} - {1}).days", "date_mi(date,date)")


@implements("datetime_pl(date,time)", "timestamp(date,time)")
def at_time(day: date, value: time) -> datetime:
    return datetime.combine(day, value)


@implements("timedate_pl(time,date)")
def time_at(value: time, day: date) -> datetime:
    return datetime.combine(day, value)


@implements("timestamptz(date,time)")
def instant_at_time(day: date, value: time) -> datetime:
    return utc(datetime.combine(day, value))
