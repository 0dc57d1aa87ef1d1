"""Texts as intervals: ``1 day 02:03``, ``1-2``, ``P1Y2M``, ``@ 1 minute ago``."""

from __future__ import annotations

import re

from millwheel.sql.functions.registry import ValueRefused, casts
from millwheel.sql.functions.times.intervals import (
    DAY,
    DAYS_PER_MONTH,
    HOUR,
    MINUTE,
    SECOND,
    IntervalValue,
    interval,
)
from millwheel.sql.functions.times.units import field, unit

_INT4, _INT8 = 2**31, 2**63
_LONGEST = 1000

_TOKEN = re.compile(
    r"[ \t\n\r\v\f]+"
    r"|(?P<time>\d+:[\d:.]*)"
    r"|(?P<date>\d+(?:-\d+(?:-[\d-]*)?|/\d+(?:/[\d/]*)?|\.\d+\.[\d.]*|-[a-z0-9-]*|/[a-z0-9/]*))"
    r"|(?P<number>\d+\.\d+|\d+\.(?![a-z0-9])|\d+(?!\.)|\.\d*)"
    r"|(?P<signed>[+-][ \t\n\r\v\f]*\d[\d:.-]*)"
    r"|(?P<word>[a-z]+)"
    r"|(?P<ignored>[!-*,/:-@\[-`{-~])"
)
_BEFORE_DIGIT = re.compile(
    r"(?:ad|allballs|am|apr|april|at|aug|august|bc|d|dec|december|dow|doy|dst|epoch|feb|february"
    r"|fri|friday|h|infinity|isodow|isoyear|j|jan|january|jd|jul|julian|july|jun|june|m|mar|march"
    r"|may|mm|mon|monday|nov|november|now|oct|october|on|pm|s|sat|saturday|sep|sept|september|sun"
    r"|sunday|t|thu|thur|thurs|thursday|today|tomorrow|tue|tues|tuesday|wed|wednesday|weds|y"
    r"|yesterday)\Z"
)
"""The words that a digit may follow at once: ``1h30m``."""
_TIME = re.compile(r"(\d+):(\d*)(?:(\.\d*)|:(\d*)(\.\d*)?)?\Z")
_YEARS_MONTHS = re.compile(r"([+-]?)(\d+)-(\d*)\Z")
_NUMBER = re.compile(r"([+-]?)(\d*)(\.\d*)?\Z")
_ISO = re.compile(r"P(?=.)((?:-?[\d.]+[YMWD])*)(T(?:-?[\d.]+[HMS])*)?\Z", re.DOTALL)
_ISO_PART = re.compile(r"(-?(?:\d+\.?\d*|\.\d+))([YMWDHS])", re.ASCII)

_SECONDS = frozenset(["microsecond", "millisecond", "second"])
_CLOCK = _SECONDS | {"minute", "hour"}
_MICROS = {"microsecond": 1, "millisecond": 1000, "second": SECOND, "minute": MINUTE, "hour": HOUR}
_YEARS = {"year": 1, "decade": 10, "century": 100, "millennium": 1000}
_ISO_DATE = {"Y": "year", "M": "month", "W": "week", "D": "day"}
_ISO_TIME = {"H": "hour", "M": "minute", "S": "second"}


class _Malformed(Exception):
    """The text is no interval of this form."""


class _TooLarge(Exception):
    pass


class _Parts:
    """The sum of the parts that were read."""

    def __init__(self) -> None:
        self.years = self.months = self.days = self.micros = 0

    def add(self, kind: str, whole: int, fraction: float) -> None:
        """Add an amount of a unit; fractions become smaller units."""
        if kind in _MICROS:
            self.add_micros(whole * _MICROS[kind])
            self._add_fraction(fraction, _MICROS[kind])
        elif kind == "day":
            self._add_days(_small(whole))
            self._add_fraction(fraction, DAY)
        elif kind == "week":
            self._add_days(_small(whole) * 7)
            self._add_day_fraction(fraction, 7)
        elif kind == "month":
            self.months = _small(self.months + _small(whole))
            self._add_day_fraction(fraction, DAYS_PER_MONTH)
        elif kind in _YEARS:
            self.years = _small(self.years + _small(_small(whole) * _YEARS[kind]))
            self.months = _small(self.months + round(fraction * _YEARS[kind] * 12))
        else:
            raise _Malformed

    def _add_days(self, days: int) -> None:
        self.days = _small(self.days + _small(days))

    def add_micros(self, micros: int) -> None:
        self.micros += micros
        if not -_INT8 <= self.micros < _INT8:
            raise _TooLarge

    def _add_fraction(self, fraction: float, scale: int) -> None:
        scaled = fraction * scale
        micros = int(scaled)
        rest = scaled - micros
        self.add_micros(micros + (rest > 0.5) - (rest < -0.5))

    def _add_day_fraction(self, fraction: float, scale: int) -> None:
        scaled = fraction * scale
        self._add_days(int(scaled))
        self._add_fraction(scaled - int(scaled), DAY)

    def interval(self, negated: bool = False) -> IntervalValue:
        sign = -1 if negated else 1
        months = self.years * 12 + self.months
        return interval(sign * months, sign * self.days, sign * self.micros)


def _small(value: int) -> int:
    if -_INT4 <= value < _INT4:
        return value
    raise _TooLarge


@casts(("text", "interval"))
def read_interval(text: str) -> IntervalValue:
    """Read an interval.

    Raises:
        ValueRefused: it is none.
    """
    try:
        try:
            return _words(text.lower())
        except _Malformed:
            return _iso(text)
    except _TooLarge:
        raise ValueRefused(f'interval field value out of range: "{text}"') from None
    except _Malformed:
        if "infinity" in text.lower():
            raise ValueRefused("infinite intervals are not available here") from None
        raise ValueRefused(f'invalid input syntax for type interval: "{text}"') from None


def _tokens(text: str) -> list[tuple[str, str]]:
    if not text.isascii() or len(text) > _LONGEST:
        raise _Malformed
    found: list[tuple[str, str]] = []
    place = 0
    while place < len(text):
        match = _TOKEN.match(text, place)
        if match is None:
            raise _Malformed
        place = match.end()
        kind = match.lastgroup
        if kind is None or kind == "ignored":
            continue
        token = match.group()
        if kind == "word":
            after = text[place : place + 1]
            if after in ("-", "/", ".") and after:
                raise _Malformed
            if (after == "+" or after.isdigit()) and not _BEFORE_DIGIT.match(token):
                raise _Malformed
        if kind == "signed":
            token = token[0] + token[1:].lstrip()
        found.append((kind, token))
    return found


def _words(text: str) -> IntervalValue:
    """Numbers with their units, read from the right: a unit comes before its number."""
    tokens = _tokens(text)
    parts, seen = _Parts(), set[str]()
    kind, is_open, is_ago = "second", False, False
    for place in range(len(tokens) - 1, -1, -1):
        what, part = tokens[place]
        if what == "word":
            if is_open:
                raise _Malformed
            if part == "ago":
                if place != len(tokens) - 1:
                    raise _Malformed
                is_ago, kind = True, ""
                continue
            kind, is_open = unit(part) or field(part) or "", True
            if not kind:
                raise _Malformed
            continue
        if what == "time" or (what == "signed" and ":" in part):
            kinds: frozenset[str] = _read_time(part, parts)
            kind = "day"
        else:
            kind, kinds = _read_number(part, kind, parts)
        if seen & kinds:
            raise _Malformed
        seen |= kinds
        kind = "day" if kind == "hour" else kind
        is_open = False
    if not seen or is_open:
        raise _Malformed
    return parts.interval(is_ago)


def _read_time(token: str, parts: _Parts) -> frozenset[str]:
    """Read ``02:03:04.5``, in place of all that was read of a day before."""
    match = _TIME.match(token.lstrip("+-"))
    if match is None:
        raise _Malformed
    hour, minute, fraction, second, later = match.groups()
    hours, minutes, seconds = int(hour), int(minute or 0), int(second or 0)
    if fraction is not None:
        hours, minutes, seconds = 0, hours, minutes
    if minutes > 59 or seconds > 60:
        raise _TooLarge
    micros = round(_fraction(fraction or later) * 1e6)
    parts.micros = 0
    parts.add_micros(hours * HOUR + minutes * MINUTE + seconds * SECOND + micros)
    if token[0] == "-":
        parts.micros = -parts.micros
    return _CLOCK


def _read_number(token: str, kind: str, parts: _Parts) -> tuple[str, frozenset[str]]:
    """Read ``-1.5`` of a unit, or ``1-2``; gives the unit, and those that may not come again."""
    match = _YEARS_MONTHS.match(token)
    if match is not None:
        sign, years, months = match.groups()
        if int(months or 0) > 11:
            raise _TooLarge
        whole = int(years) * 12 + int(months or 0)
        parts.add("month", -whole if sign == "-" else whole, 0.0)
        return "month", frozenset(["month"])
    match = _NUMBER.match(token)
    if match is None:
        raise _Malformed
    sign, digits, after = match.groups()
    whole, fraction = int(digits or 0), _fraction(after)
    if not -_INT8 <= whole < _INT8:
        raise _TooLarge
    if sign == "-":
        whole, fraction = -whole, -fraction
    parts.add(kind, whole, fraction)
    return kind, _SECONDS if kind == "second" and fraction else frozenset([kind])


def _fraction(text: str | None) -> float:
    return float(text) if text and text != "." else 0.0


def _iso(text: str) -> IntervalValue:
    """``P1Y2M3DT4H5M6.7S``."""
    match = _ISO.match(text) if len(text) <= _LONGEST else None
    if match is None:
        raise _Malformed
    parts = _Parts()
    for section, units in ((match[1], _ISO_DATE), (match[2] or "", _ISO_TIME)):
        section = section.removeprefix("T")
        if _ISO_PART.sub("", section):
            raise _Malformed
        for number, letter in _ISO_PART.findall(section):
            value = float(number)
            if abs(value) > 1e15:
                raise _TooLarge
            parts.add(units[letter], int(value), value - int(value))
    return parts.interval()
