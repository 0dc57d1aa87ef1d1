"""``to_timestamp`` and ``to_date``: texts read by a picture."""

from __future__ import annotations

from datetime import date, datetime, timedelta

from millwheel.sql.functions.registry import ValueRefused, implements
from millwheel.sql.functions.times.fields import JULIAN
from millwheel.sql.functions.times.instants import out_of_range, with_digits
from millwheel.sql.functions.times.intervals import MINUTE, SECOND
from millwheel.sql.functions.times.picture_reader import PictureReader
from millwheel.sql.functions.times.pictures import nodes
from millwheel.sql.functions.times.zones import MOST_HOURS, OUT_OF_RANGE, utc


def _hour(reader: PictureReader, hour: int) -> int:
    if not reader.has_half_day:
        return hour
    if not 1 <= hour <= 12:
        raise ValueRefused(f'hour "{hour}" is invalid for the 12-hour clock')
    return hour % 12 + (12 if reader.fields.get("half") else 0)


def _micros(reader: PictureReader, text: str) -> int:
    """Microseconds since midnight."""
    get = reader.fields.get
    minutes, second = divmod(get("day_second", 0), 60)
    hour, minute = divmod(minutes, 60)
    second, minute = get("second") or second, get("minute") or minute
    hour = _hour(reader, get("hour") or hour)
    micros = get("millis", 0) * 1000 + get("micros", 0)
    is_time = 0 <= hour < 24 and 0 <= minute < 60 and 0 <= second < 60 and 0 <= micros < SECOND
    if not is_time or get("day_second", 0) < 0:
        raise out_of_range(text)
    return (hour * 60 + minute) * MINUTE + second * SECOND + micros


def _year_of(reader: PictureReader) -> int:
    get = reader.fields.get
    year, century = get("year", 0), get("century", 0)
    if get("era"):
        raise ValueRefused("years before Christ are not available here")
    if century < 0 or year < 0:
        raise ValueRefused("negative years are not available here")
    if not year:
        return (century - 1) * 100 + 1 if century else 0
    if century and reader.year_digits <= 2:
        return (century - 1) * 100 + (year % 100) if year % 100 else century * 100
    return year


def _day(reader: PictureReader, text: str) -> date:
    """Raises:
    ValueRefused: there is no such day, or its year is outside of 1 to 9999.
    """
    get = reader.fields.get
    year, month, day = _year_of(reader), 1, 1
    if get("julian"):
        found = _from_ordinal(get("julian", 0) - JULIAN)
        year, month, day = found.year, found.month, found.day
    day_of_year = get("day_of_year", 0)
    week = get("week", 0)
    if week and reader.convention == "iso":
        found = _from_ordinal(_iso_start(year, text) + (week - 1) * 7 + _iso_weekday(reader))
        year, month, day = found.year, found.month, found.day
    elif week:
        day_of_year = (week - 1) * 7 + 1
    day = (get("month_week", 0) - 1) * 7 + 1 if get("month_week") else get("day") or day
    month = get("month") or month
    if day_of_year and (month <= 1 or day <= 1):
        return _by_day_of_year(reader, (year, month, day), day_of_year, text)
    return _checked(year, month, day, text)


def _iso_weekday(reader: PictureReader) -> int:
    """Days since Monday."""
    weekday = reader.fields.get("weekday", 0)
    return (weekday - 2 if weekday > 1 else 6) if weekday else 0


def _iso_start(year: int, text: str) -> int:
    """The ordinal of the first day of a year of ISO weeks."""
    fourth = _checked(year, 1, 4, text)
    return fourth.toordinal() - fourth.weekday()


def _by_day_of_year(
    reader: PictureReader, parts: tuple[int, int, int], number: int, text: str
) -> date:
    year, month, day = parts
    if not year:
        raise ValueRefused("cannot calculate day of year without year information")
    if reader.convention == "iso":
        return _from_ordinal(_iso_start(year, text) + number - 1)
    start = _checked(year, 1, 1, text).toordinal()
    days = 366 if _is_leap(year) else 365
    if not 1 <= number <= days:
        raise out_of_range(text)
    found = date.fromordinal(start + number - 1)
    return _checked(
        year, found.month if month <= 1 else month, found.day if day <= 1 else day, text
    )


def _is_leap(year: int) -> bool:
    return year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)


def _from_ordinal(number: int) -> date:
    try:
        return date.fromordinal(number)
    except (ValueError, OverflowError):
        raise ValueRefused(OUT_OF_RANGE) from None


def _checked(year: int, month: int, day: int, text: str) -> date:
    if not 1 <= year <= 9999 and 1 <= month <= 12 and 1 <= day <= 31:
        raise ValueRefused("years outside of 1 to 9999 are not available here")
    try:
        return date(year, month, day)
    except (ValueError, OverflowError):
        raise out_of_range(text) from None


def _read(text: str, picture: str) -> tuple[datetime, timedelta, int]:
    """The time in a text, its offset, and the number of digits of a second that are wanted."""
    reader = PictureReader(text, nodes(picture))
    reader.read()
    day, micros = _day(reader, text), _micros(reader, text)
    moment = datetime(day.year, day.month, day.day) + timedelta(microseconds=micros)
    return moment, _offset(reader, text), reader.fraction_digits


def _offset(reader: PictureReader, text: str) -> timedelta:
    if not reader.zone_sign:
        return reader.abbreviated
    hours, minutes = (reader.fields.get(f"zone_{name}", 0) for name in ("hours", "minutes"))
    if not (0 <= hours <= MOST_HOURS and 0 <= minutes < 60):
        raise out_of_range(text)
    return reader.zone_sign * timedelta(hours=hours, minutes=minutes)


@implements("to_timestamp(text,text)")
def read_instant(text: str, picture: str) -> datetime:
    """Read an instant by a picture, in UTC if it has no offset.

    Raises:
        ValueRefused: the text does not go with the picture, or is no time.
    """
    moment, offset, digits = _read(text, picture)
    try:
        found = utc(moment) - offset
    except OverflowError:
        raise ValueRefused(OUT_OF_RANGE) from None
    return with_digits(found, digits) if digits else found


@implements("to_date(text,text)")
def read_date_by(text: str, picture: str) -> date:
    """Read a date by a picture; a time in it does not matter."""
    return _read(text, picture)[0].date()
