"""Timestamps, with and without a time zone: their texts and conversions."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, timedelta, tzinfo

from millwheel.sql.functions.registry import (
    ValueRefused,
    casts,
    implements,
    inline,
    inline_cast,
    modifies,
)
from millwheel.sql.functions.times.intervals import DAY, HOUR, MINUTE, SECOND, rounded_micros
from millwheel.sql.functions.times.zones import (
    OUT_OF_RANGE,
    instant,
    naive,
    offset_zone,
    utc,
    zone_named,
)

START = datetime(2000, 1, 1)
"""Postgres counts from here."""
MICRO = timedelta(microseconds=1)
MOST_DIGITS = 6
DAYS_UNTIL_START = START.toordinal()

DATE = r"(?P<year>\d{4})(?P<mark>[-/])(?P<month>\d{1,2})(?P=mark)(?P<day>\d{1,2})"
COMPACT = r"(?P<compact>\d{8})"
CLOCK = (
    r"(?P<hour>\d{1,2}):(?P<minute>\d{1,2})(?::(?P<second>\d{1,2})(?P<fraction>\.\d*)?)?"
    r"(?:[ ]*(?P<half>am|pm))?"
)
ZONE = r"(?:[ ]*(?P<offset>[+-][\d:]+)|(?P<zulu>z)|[ ]+(?P<zone>[a-z_]+(?:/[a-z0-9_+/-]+)?))?"
_SPACE = " \t\n\r\v\f"
_MOMENT = re.compile(
    rf"(?:{DATE}|{COMPACT})(?:(?:[ ]+|[ ]*t){CLOCK})?{ZONE}\Z", re.IGNORECASE | re.ASCII
)
_READ_BY_PYTHON = re.compile(
    r"\d{4}-\d\d-\d\d(?:[ T](?:[01]\d|2[0-3]):\d\d(?::\d\d(?:\.\d{1,6})?)?"
    r"(?P<zone>Z|[+-](?:0\d|1[0-5])(?::[0-5]\d)?)?)?\Z",
    re.ASCII,
)
_MOVING = re.compile(r"\b(now|today|tomorrow|yesterday)\b", re.IGNORECASE)
_OTHER = {"infinity", "-infinity", "+infinity"}


def refused(text: str, kind: str) -> ValueRefused:
    """The error of a text that is no value of a type."""
    found = _MOVING.search(text)
    if found is not None:
        return ValueRefused(
            f'"{found[1]}" depends on when the query runs: use a time that the record has'
        )
    if text.strip(_SPACE).lower() in _OTHER:
        return ValueRefused("infinite times are not available here")
    return ValueRefused(
        f'invalid input syntax for type {kind}: "{text}" (only forms such as '
        "2024-01-31 10:00:00+02 are available here)"
    )


def out_of_range(text: str) -> ValueRefused:
    return ValueRefused(f'date/time field value out of range: "{text}"')


def day_of(match: re.Match[str], text: str) -> date:
    """The date in a text."""
    compact = match["compact"]
    parts = (
        (match["year"], match["month"], match["day"])
        if compact is None
        else (compact[:4], compact[4:6], compact[6:])
    )
    try:
        return date(*map(int, parts))
    except ValueError:
        raise out_of_range(text) from None


def micros_of(match: re.Match[str], text: str) -> int:
    """The time of the day in a text, in microseconds; 24:00 is possible."""
    hour, minute, second = (int(match[name] or 0) for name in ("hour", "minute", "second"))
    half = (match["half"] or "").lower()
    if half and hour > 12:
        raise out_of_range(text)
    if half:
        hour = hour % 12 + (12 if half == "pm" else 0)
    fraction = match["fraction"]
    micros = round(float(fraction) * 1e6) if fraction and fraction != "." else 0
    found = hour * HOUR + minute * MINUTE + second * SECOND + micros
    if hour > 24 or minute > 59 or second > 60 or found > DAY:
        raise out_of_range(text)
    return found


def zone_of(match: re.Match[str]) -> tzinfo | None:
    """The zone in a text; None: it has none."""
    if match["zulu"]:
        return UTC
    if match["zone"]:
        return zone_named(match["zone"])
    if match["offset"]:
        found = offset_zone(match["offset"])
        if found is None:
            raise ValueRefused(f'time zone "{match["offset"]}" not recognized')
        return found
    return None


def _read(text: str, kind: str) -> tuple[datetime, tzinfo | None]:
    stripped = text.strip(_SPACE)
    if stripped.lower() == "epoch":
        return datetime(1970, 1, 1), UTC
    match = _MOMENT.match(stripped)
    if match is None:
        raise refused(text, kind)
    day, zone = day_of(match, text), zone_of(match)
    micros = micros_of(match, text) if match["hour"] else 0
    moment = datetime(day.year, day.month, day.day)
    try:
        return moment + timedelta(microseconds=micros), zone
    except OverflowError:
        raise ValueRefused(f'timestamp out of range: "{text}"') from None


@casts(("text", "timestamp"))
def read_timestamp(text: str) -> datetime:
    """Read a timestamp; a time zone in it does not matter.

    Raises:
        ValueRefused: it is none.
    """
    if _READ_BY_PYTHON.match(text) is not None:
        try:
            return datetime.fromisoformat(text).replace(tzinfo=None)
        except ValueError:
            pass
    return _read(text, "timestamp")[0]


@casts(("text", "timestamptz"))
def read_timestamptz(text: str) -> datetime:
    """Read a timestamp with a time zone; UTC if it has none.

    Raises:
        ValueRefused: it is none.
    """
    match = _READ_BY_PYTHON.match(text)
    if match is not None:
        try:
            found = datetime.fromisoformat(text)
            return found.replace(tzinfo=UTC) if match["zone"] is None else found.astimezone(UTC)
        except (ValueError, OverflowError):
            pass
    moment, zone = _read(text, "timestamp with time zone")
    return utc(moment) if zone is None or zone is UTC else instant(moment, zone)


@casts(("timestamp", "text"))
def shown_timestamp(value: datetime) -> str:
    text = value.isoformat(" ")
    return text.rstrip("0") if value.microsecond else text


@casts(("timestamptz", "text"))
def shown_timestamptz(value: datetime) -> str:
    return shown_timestamp(value.replace(tzinfo=None)) + "+00"


# -- conversions --------------------------------------------------------------------------------


def start_of(day: date) -> datetime:
    """A date as the timestamp of its midnight."""
    return datetime(day.year, day.month, day.day)


def instant_of(day: date) -> datetime:
    """A date as the instant of its midnight in UTC."""
    return datetime(day.year, day.month, day.day, tzinfo=UTC)


casts(("timestamp", "timestamptz"))(utc)
casts(("timestamptz", "timestamp"))(naive)
casts(("date", "timestamp"))(start_of)
casts(("date", "timestamptz"))(instant_of)
implements("timestamptz(timestamp)")(utc)
implements("timestamp(timestamptz)")(naive)
implements("timestamp(date)")(start_of)
implements("timestamptz(date)")(instant_of)
for _kind in ("timestamp", "timestamptz"):
    inline_cast("{0}.date()", (_kind, "date"))
    inline("{0}.date()", f"date({_kind})")
    inline("({0} is not None)", f"isfinite({_kind})")
inline("({0} is not None)", "isfinite(date)")


def micros_since_start(value: datetime) -> int:
    """Microseconds since 2000, of a timestamp or an instant."""
    found = value.replace(tzinfo=None) - START
    return (found.days * 86400 + found.seconds) * SECOND + found.microseconds


def moment_after(micros: int) -> datetime:
    """The timestamp that many microseconds after the start of 2000."""
    try:
        return START + timedelta(microseconds=micros)
    except OverflowError:
        raise ValueRefused(OUT_OF_RANGE) from None


@implements("timestamp(timestamp,int4)", "timestamptz(timestamptz,int4)")
def rounded(value: datetime, digits: int) -> datetime:
    """Round to this number of decimal digits of a second.

    Raises:
        ValueRefused: there are no such digits.
    """
    if not 0 <= digits <= MOST_DIGITS:
        raise ValueRefused(f"timestamp({digits}) precision must be between 0 and {MOST_DIGITS}")
    return with_digits(value, digits)


@modifies("timestamp")
@modifies("timestamptz")
def with_digits(value: datetime, digits: int) -> datetime:
    """As `rounded`; more digits than there are change nothing."""
    micros = rounded_micros(micros_since_start(value), digits)
    return moment_after(micros).replace(tzinfo=value.tzinfo)


@implements("to_timestamp(float8)")
def from_epoch(seconds: float) -> datetime:
    """The instant that many seconds after 1970.

    Raises:
        ValueRefused: it is out of range.
    """
    if not -1e12 < seconds < 1e12:
        raise ValueRefused(f'timestamp out of range: "{seconds:g}"')
    return utc(moment_after(round((seconds - 946684800.0) * 1e6)))


def made_timestamp(
    year: int, month: int, day: int, hour: int, minute: int, second: float
) -> datetime:
    """A timestamp of its parts.

    Raises:
        ValueRefused: a part is out of range.
    """
    try:
        start = datetime(year, month, day)
    except ValueError:
        reason = "years before 1 are not available here; " if year < 0 else ""
        raise ValueRefused(
            f"{reason}date field value out of range: {year}-{month:02}-{day:02}"
        ) from None
    try:
        return start + timedelta(microseconds=made_micros(hour, minute, second))
    except OverflowError:
        raise ValueRefused(OUT_OF_RANGE) from None


def made_micros(hour: int, minute: int, second: float) -> int:
    """The microseconds of a time of the day; 24:00 is possible.

    Raises:
        ValueRefused: a part is out of range.
    """
    if 0 <= hour <= 24 and 0 <= minute <= 59 and -1 < second < 61:
        micros = round(second * 1e6)
        found = hour * HOUR + minute * MINUTE + micros
        if 0 <= micros <= MINUTE and found <= DAY:
            return found
    raise ValueRefused(f"time field value out of range: {hour}:{minute:02}:{second:02g}")


implements("make_timestamp(int4,int4,int4,int4,int4,float8)")(made_timestamp)


@implements("make_timestamptz(int4,int4,int4,int4,int4,float8)")
def made_instant(*parts: int) -> datetime:
    return utc(made_timestamp(*parts))


@implements("make_timestamptz(int4,int4,int4,int4,int4,float8,text)")
def made_instant_in(
    year: int, month: int, day: int, hour: int, minute: int, second: float, name: str
) -> datetime:
    """The instant of a local time.

    Raises:
        ValueRefused: a part is out of range, or there is no such zone.
    """
    moment = made_timestamp(year, month, day, hour, minute, second)
    if name[:1].isdigit():
        raise ValueRefused(f'invalid input syntax for type numeric time zone: "{name}"')
    return instant(moment, offset_zone(name) or zone_named(name))
