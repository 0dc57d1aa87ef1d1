"""``to_char`` of times and intervals."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from functools import lru_cache
from typing import Any, NamedTuple

from millwheel.sql.functions.registry import ValueRefused, implements
from millwheel.sql.functions.times.fields import julian_day
from millwheel.sql.functions.times.intervals import (
    HOUR,
    MINUTE,
    SECOND,
    IntervalValue,
    towards_zero,
)
from millwheel.sql.functions.times.pictures import DAYS, MONTHS, ROMAN, PictureNode, nodes

Write = Callable[[Any], str]
"""Writes a part of a value."""


class TimeParts(NamedTuple):
    """An interval, with the names that the fields of a timestamp have."""

    year: int
    month: int
    day: int
    hour: int
    minute: int
    second: int
    microsecond: int


def _ordinal(text: str, suffix: str) -> str:
    """A number with ``st``, ``nd``, ``rd`` or ``th``."""
    is_teen = len(text) > 1 and text[-2] == "1"
    ending = "th" if is_teen else {"1": "st", "2": "nd", "3": "rd"}.get(text[-1], "th")
    return text + (ending.upper() if suffix == "TH" else ending)


def _number(
    read: Callable[[Any], int], width: int, *, sign_counts: bool = False
) -> Callable[[PictureNode], Write]:
    """Args:
    width: to which zeros are added.
    sign_counts: whether a sign is one of the characters; otherwise it comes on top.
    """

    def made(node: PictureNode) -> Write:
        size = 0 if node.fills else width

        def write(value: Any) -> str:
            number = read(value)
            text = f"{number:0{size + (number < 0 < size and not sign_counts)}}"
            return _ordinal(text, node.ordinal) if node.ordinal else text

        return write

    return made


def _plain(read: Callable[[Any], str]) -> Callable[[PictureNode], Write]:
    return lambda node: read


def _padded(read: Callable[[Any], str], width: int) -> Callable[[PictureNode], Write]:
    def made(node: PictureNode) -> Write:
        if node.fills or (node.translated and width > 4):
            return read
        return lambda value: read(value).ljust(width)

    return made


def _cased(key: str, text: str) -> str:
    """A name in the letters of its pattern: ``MONTH``, ``Month`` or ``month``."""
    return text.upper() if key.isupper() else text.lower() if key.islower() else text


def _names(key: str, read: Callable[[Any], str]) -> Callable[[Any], str]:
    return lambda value: _cased(key, read(value))


def _hour12(value: Any) -> int:
    hour = towards_zero(value.hour, 12)[1]
    return hour or 12


def _half(value: Any) -> str:
    return "PM" if towards_zero(value.hour, 24)[1] >= 12 else "AM"


def _day_number(value: datetime) -> int:
    return value.timetuple().tm_yday


def _iso_day(value: datetime) -> int:
    return (value.isocalendar()[1] - 1) * 7 + value.isoweekday()


def _in_day(value: Any) -> int:
    seconds: int = (value.hour * 60 + value.minute) * 60 + value.second
    return seconds


def _fraction(digits: int) -> Callable[[Any], int]:
    scale = 10 ** (6 - digits)
    return lambda value: towards_zero(value.microsecond, scale)[0]


def _last_digits(read: Callable[[Any], int], digits: int) -> Callable[[Any], int]:
    size = 10**digits
    return lambda value: towards_zero(read(value), size)[1]


def _year(value: Any) -> int:
    year: int = value.year
    return year


def _iso_year(value: datetime) -> int:
    return value.isocalendar()[0]


def _comma_year(node: PictureNode) -> Write:
    def write(value: Any) -> str:
        thousands, rest = towards_zero(value.year, 1000)
        text = f"{thousands},{rest:0{3 + (rest < 0)}}" if rest >= 0 else f"{thousands},{rest:03}"
        return _ordinal(text, node.ordinal) if node.ordinal else text

    return write


def _offset(node: PictureNode) -> Write:
    return lambda value: "+0" if node.fills else "+00"


_CLOCK: dict[str, Callable[[PictureNode], Write]] = {
    "HH": _number(_hour12, 2), "HH12": _number(_hour12, 2),
    "HH24": _number(lambda value: value.hour, 2), "MI": _number(lambda value: value.minute, 2),
    "SS": _number(lambda value: value.second, 2),
    "SSSS": _number(_in_day, 0), "SSSSS": _number(_in_day, 0),
    "MS": _number(_fraction(3), 3, sign_counts=True),
    "US": _number(_fraction(6), 6, sign_counts=True),
    **{f"FF{n}": _number(_fraction(n), n, sign_counts=True) for n in range(1, 7)},
    "FX": _plain(lambda value: ""),
    **{key: _plain(_names(key, _half)) for key in ("AM", "PM", "am", "pm")},
    **{
        key: _plain(_names(key, lambda value: f"{_half(value)[0]}.M."))
        for key in ("A.M.", "P.M.", "a.m.", "p.m.")
    },
}  # fmt: skip

_YEARS: dict[str, Callable[[PictureNode], Write]] = {
    "YYYY": _number(_year, 4),
    **{"Y" * n: _number(_last_digits(_year, n), n) for n in (1, 2, 3)},
    "Y,YYY": _comma_year,
}


def _fraction_node(key: str) -> Callable[[PictureNode], Write]:
    """Fractions have all their digits, whether ``FM`` is there or not."""
    made = _CLOCK[key]
    return lambda node: made(node._replace(fills=False))


for _key in ("MS", "US", *(f"FF{n}" for n in range(1, 7))):
    _CLOCK[_key] = _fraction_node(_key)

_TIMESTAMP: dict[str, Callable[[PictureNode], Write]] = {
    **_CLOCK,
    **_YEARS,
    "IYYY": _number(_iso_year, 4),
    **{"I" + "Y" * n: _number(_last_digits(_iso_year, n + 1), n + 1) for n in (0, 1, 2)},
    "CC": _number(lambda value: (value.year - 1) // 100 + 1, 2),
    "MM": _number(lambda value: value.month, 2), "DD": _number(lambda value: value.day, 2),
    "DDD": _number(_day_number, 3), "IDDD": _number(_iso_day, 3),
    "D": _number(lambda value: value.isoweekday() % 7 + 1, 0),
    "ID": _number(lambda value: value.isoweekday(), 0),
    "WW": _number(lambda value: (_day_number(value) - 1) // 7 + 1, 2),
    "IW": _number(lambda value: value.isocalendar()[1], 2),
    "W": _number(lambda value: (value.day - 1) // 7 + 1, 0),
    "Q": _number(lambda value: (value.month - 1) // 3 + 1, 0),
    "J": _number(julian_day, 0),
    **{
        key: _padded(_names(key, lambda value: MONTHS[value.month - 1]), 9)
        for key in ("MONTH", "Month", "month")
    },
    **{
        key: _plain(_names(key, lambda value: MONTHS[value.month - 1][:3]))
        for key in ("MON", "Mon", "mon")
    },
    **{
        key: _padded(_names(key, lambda value: DAYS[value.isoweekday() % 7]), 9)
        for key in ("DAY", "Day", "day")
    },
    **{
        key: _plain(_names(key, lambda value: DAYS[value.isoweekday() % 7][:3]))
        for key in ("DY", "Dy", "dy")
    },
    **{
        key: _padded(_names(key, lambda value: ROMAN[12 - value.month]), 4) for key in ("RM", "rm")
    },
    **{key: _plain(_names(key, lambda value: "AD")) for key in ("AD", "BC", "ad", "bc")},
    **{key: _plain(_names(key, lambda value: "A.D.")) for key in ("A.D.", "B.C.", "a.d.", "b.c.")},
    "TZ": _plain(lambda value: ""), "tz": _plain(lambda value: ""),
    "TZH": _plain(lambda value: "+00"), "TZM": _plain(lambda value: "00"), "OF": _offset,
}  # fmt: skip
_TIMESTAMPTZ = {
    **_TIMESTAMP,
    "TZ": _plain(lambda value: "UTC"),
    "tz": _plain(lambda value: "utc"),
}


def _interval_roman(value: TimeParts) -> str:
    if not value.month and not value.year:
        return ""
    if not value.month:
        return ROMAN[0 if value.year >= 0 else 11]
    return ROMAN[-(value.month + 1)] if value.month < 0 else ROMAN[12 - value.month]


def _roman_node(key: str) -> Callable[[PictureNode], Write]:
    def made(node: PictureNode) -> Write:
        width = 0 if node.fills else 4

        def write(value: TimeParts) -> str:
            text = _cased(key, _interval_roman(value))
            return text.ljust(width) if text else ""

        return write

    return made


def _total_days(value: TimeParts) -> int:
    return (value.year * 12 + value.month) * 30 + value.day


def _total_weeks(value: TimeParts) -> int:
    return towards_zero(_total_days(value) - 1, 7)[0] + 1


def _interval_quarter(node: PictureNode) -> Write:
    write = _number(lambda value: towards_zero(value.month - 1, 3)[0] + 1, 0)(node)
    return lambda value: write(value) if value.month else ""


_INTERVAL: dict[str, Callable[[PictureNode], Write]] = {
    **_CLOCK, **_YEARS,
    "CC": _number(lambda value: towards_zero(value.year, 100)[0], 2),
    "MM": _number(lambda value: value.month, 2),
    "DD": _number(lambda value: value.day, 2, sign_counts=True),
    "DDD": _number(_total_days, 3, sign_counts=True),
    "RM": _roman_node("RM"), "rm": _roman_node("rm"), "Q": _interval_quarter,
    "W": _number(lambda value: towards_zero(value.day - 1, 7)[0] + 1, 0),
    "WW": _number(_total_weeks, 2, sign_counts=True),
}  # fmt: skip
_NOT_OF_INTERVALS = frozenset(
    ["A.D.", "B.C.", "AD", "BC", "MONTH", "MON", "DAY", "DY", "D", "ID", "TZ", "TZH", "TZM", "OF"]
)

Table = Mapping[str, Callable[[PictureNode], Write]]


def _compiled(picture: str, table: Table) -> tuple[Write | str, ...]:
    """The parts of a picture, texts as they are.

    Raises:
        ValueRefused: a pattern does not go with the type.
    """
    found: list[Write | str] = []
    for node in nodes(picture):
        if node.text:
            found.append(node.text)
            continue
        made = table.get(node.key) or table.get(node.key.upper())
        if made is None:
            if node.key.upper() in _NOT_OF_INTERVALS:
                raise ValueRefused("invalid format specification for an interval value")
            raise ValueRefused(f'the pattern "{node.key}" is not available here for intervals')
        found.append(made(node))
    return tuple(found)


@lru_cache(maxsize=1024)
def _for_timestamp(picture: str) -> tuple[Write | str, ...]:
    return _compiled(picture, _TIMESTAMP)


@lru_cache(maxsize=1024)
def _for_timestamptz(picture: str) -> tuple[Write | str, ...]:
    return _compiled(picture, _TIMESTAMPTZ)


@lru_cache(maxsize=1024)
def _for_interval(picture: str) -> tuple[Write | str, ...]:
    return _compiled(picture, _INTERVAL)


def _written(value: Any, parts: tuple[Write | str, ...]) -> str:
    return "".join([part if isinstance(part, str) else part(value) for part in parts])


@implements("to_char(timestamp,text)", may_be_null="empty")
def timestamp_text(value: datetime, picture: str) -> str | None:
    """A timestamp by a picture; None: the picture is empty."""
    return _written(value, _for_timestamp(picture)) if picture else None


@implements("to_char(timestamptz,text)", may_be_null="empty")
def instant_text(value: datetime, picture: str) -> str | None:
    return _written(value, _for_timestamptz(picture)) if picture else None


@implements("to_char(interval,text)", may_be_null="empty")
def interval_text(span: IntervalValue, picture: str) -> str | None:
    """An interval by a picture; None: the picture is empty.

    Raises:
        ValueRefused: a pattern needs a date.
    """
    if not picture:
        return None
    years, months = towards_zero(span.months, 12)
    hours, rest = towards_zero(span.micros, HOUR)
    minutes, rest = towards_zero(rest, MINUTE)
    seconds, micros = towards_zero(rest, SECOND)
    parts = TimeParts(years, months, span.days, hours, minutes, seconds, micros)
    return _written(parts, _for_interval(picture))
