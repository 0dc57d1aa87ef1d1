"""Reads texts by the pictures of ``to_timestamp`` and ``to_date``."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import timedelta

from millwheel.sql.functions.registry import ValueRefused
from millwheel.sql.functions.times.pictures import DAYS, MONTHS, ROMAN, PictureNode
from millwheel.sql.functions.times.zones import abbreviated

_SPACE = " \t\n\r\v\f"
_INTEGER = re.compile(r"[ \t\n\r\v\f]*[+-]?\d+", re.ASCII)
_COMMA_YEAR = re.compile(r"[ \t\n\r\v\f]*([+-]?\d{1,1000}),[ \t\n\r\v\f]*([+-]?\d{1,3})", re.ASCII)
_LETTERS = re.compile("[A-Za-z]{1,10}")
_INT4 = 2**31
_LONGEST = 1000

_GREGORIAN = frozenset(
    ["DDD", "DD", "D", "MM", "MONTH", "MON", "RM", "WW", "W", "Y,YYY", "YYYY", "YYY", "YY", "Y"]
)
_ISO = frozenset(["IDDD", "ID", "IW", "IYYY", "IYY", "IY", "I"])
_NOT_DIGITS = frozenset(
    ["A.D.", "A.M.", "AD", "AM", "B.C.", "BC", "DAY", "DY", "FX", "MONTH", "MON", "OF", "P.M.",
     "PM", "RM", "TZH", "TZ"]
)  # fmt: skip
_WHOLE = {
    "MI": ("minute", 0), "SS": ("second", 0), "SSSS": ("day_second", 0),
    "SSSSS": ("day_second", 0), "MM": ("month", 0), "DDD": ("day_of_year", 0), "DD": ("day", 0),
    "D": ("weekday", 0), "WW": ("week", 0), "IW": ("week", 0), "CC": ("century", 0),
    "W": ("month_week", 0), "J": ("julian", 0), "HH": ("hour", 2), "HH12": ("hour", 2),
    "HH24": ("hour", 2), "IDDD": ("day_of_year", 3),
}  # fmt: skip
"""By pattern: the field, and the number of its digits unless it is the length of the pattern."""
_YEARS = {
    "YYYY": 4, "IYYY": 4, "YYY": 3, "IYY": 3, "YY": 2, "IY": 2, "Y": 1, "I": 1,
}  # fmt: skip
_HALVES = {"AM": ("am", "pm"), "A.M.": ("a.m.", "p.m.")}
_ERAS = {"AD": ("ad", "bc"), "A.D.": ("a.d.", "b.c.")}


def _is_separator(char: str) -> bool:
    return "!" <= char <= "~" and not char.isalnum()


class PictureReader:
    """Reads a text by the nodes of a picture.

    Args:
        text: the source.
    """

    def __init__(self, text: str, picture: Sequence[PictureNode]) -> None:
        self._text = text
        self._nodes = picture
        self._place = 0
        self._skipped = 0
        """Characters that were skipped without a pattern for them."""
        self.fields: dict[str, int] = {}
        self.convention = ""
        self.has_half_day = False
        self.year_digits = 0
        self.fraction_digits = 0
        self.zone_sign = 0
        self.abbreviated = timedelta()

    def read(self) -> None:
        """Raises:
        ValueRefused: the text does not go with the picture.
        """
        is_exact = False
        for index, node in enumerate(self._nodes):
            if self._place >= len(self._text):
                return
            is_action = node.key not in ("", "quoted")
            if not is_exact and (is_action or index == 0):
                self._skip_spaces()
            if not is_action:
                self._literal(node, is_exact)
                continue
            if self._place >= len(self._text) and node.key.upper() == "FX":
                return
            is_exact = is_exact or node.key.upper() == "FX"
            self._action(node, index)
            if not is_exact:
                self._skipped = 0
                self._skip_spaces()

    def _skip_spaces(self) -> None:
        text, place = self._text, self._place
        while place < len(text) and text[place] in _SPACE:
            place += 1
        self._skipped += place - self._place
        self._place = place

    def _literal(self, node: PictureNode, is_exact: bool) -> None:
        if is_exact:
            self._place += 1
        elif node.key == "" and (node.text in _SPACE or _is_separator(node.text)):
            here = self._text[self._place]
            self._skipped -= 1
            if here in _SPACE or _is_separator(here):
                self._place += 1
                self._skipped += 1
        elif self._skipped > 0:
            self._skipped -= 1
        else:
            self._place += 1

    # -- patterns ---------------------------------------------------------------------------------

    def _action(self, node: PictureNode, index: int) -> None:
        key = node.key.upper()
        self._set_convention(key)
        if key in _WHOLE:
            name, digits = _WHOLE[key]
            self._set(name, self._number(node, index, digits or len(node.key))[0], node)
            self.has_half_day = self.has_half_day or key in ("HH", "HH12")
        elif key in _YEARS:
            self._year(node, index, _YEARS[key])
        elif key in ("MS", "US") or key.startswith("FF"):
            self._fraction(node, index, key)
        elif key == "ID":
            number = self._number(node, index, 1)[0]
            self._set("weekday", number, node)
            self.fields["weekday"] = number + 1 if number < 7 else 1
        elif key == "Q":
            self._number(node, index, 1)
        elif key == "Y,YYY":
            self._comma_year(node)
        elif key in ("TZH", "TZM", "OF", "TZ"):
            self._zone(node, index, key)
            return
        elif key != "FX":
            self._word(node, key)
            return
        if node.ordinal and key != "Q":
            self._place = min(self._place + 2, len(self._text))

    def _set_convention(self, key: str) -> None:
        wanted = "gregorian" if key in _GREGORIAN else "iso" if key in _ISO else ""
        if wanted and self.convention and wanted != self.convention:
            raise ValueRefused("invalid combination of date conventions")
        self.convention = self.convention or wanted

    def _set(self, name: str, value: int, node: PictureNode) -> None:
        if self.fields.get(name, 0) not in (0, value):
            raise ValueRefused(f'conflicting values for "{node.key}" field in formatting string')
        self.fields[name] = value

    def _number(self, node: PictureNode, index: int, digits: int) -> tuple[int, int]:
        """A number, and the length of its text."""
        while self._place < len(self._text) and self._text[self._place] in _SPACE:
            self._place += 1
        start, source = self._place, self._text[self._place : self._place + digits]
        if node.fills or self._is_separated(node, index):
            match = _INTEGER.match(self._text, start)
        else:
            if len(source) < digits:
                raise ValueRefused(f'source string too short for "{node.key}" formatting field')
            match = _INTEGER.match(source)
            if match is not None and match.end() < digits:
                raise _bad(source, node)
        if match is None:
            raise _bad(source, node)
        length = len(match[0])
        value = int(match[0]) if length <= _LONGEST else _INT4
        if not -_INT4 <= value < _INT4:
            raise ValueRefused(f'value for "{node.key}" in source string is out of range')
        self._place = start + length
        return value, length

    def _is_separated(self, node: PictureNode, index: int) -> bool:
        """Whether no digit follows in the picture."""
        if node.ordinal or index + 1 == len(self._nodes):
            return True
        following = self._nodes[index + 1]
        if following.key not in ("", "quoted"):
            return following.key.upper() in _NOT_DIGITS
        return not ("0" <= following.text <= "9")

    def _year(self, node: PictureNode, index: int, digits: int) -> None:
        year, length = self._number(node, index, len(node.key))
        if digits < 4 and length < 4:
            year = _near_2020(year)
        self._set("year", year, node)
        self.year_digits = digits

    def _comma_year(self, node: PictureNode) -> None:
        match = _COMMA_YEAR.match(self._text, self._place)
        if match is None:
            raise ValueRefused(f'invalid value "{self._text[self._place :]}" for "Y,YYY"')
        self._set("year", int(match[1]) * 1000 + int(match[2]), node)
        self.year_digits = 4
        self._place = match.end()

    def _fraction(self, node: PictureNode, index: int, key: str) -> None:
        digits = 3 if key == "MS" else 6 if key == "US" else int(key[2])
        if key.startswith("FF"):
            self.fraction_digits = digits
        number, length = self._number(node, index, digits)
        name, most = ("millis", 3) if key == "MS" else ("micros", 6)
        # The check for a conflict comes before the scaling, as in Postgres.
        self._set(name, number, node)
        self.fields[name] = number * 10 ** max(most - length, 0) if 0 < length <= most else number

    def _zone(self, node: PictureNode, index: int, key: str) -> None:
        if key == "TZ" and self._abbreviation(node):
            return
        if key == "TZM":
            self.zone_sign = self.zone_sign or 1
            self._set("zone_minutes", self._number(node, index, 2)[0], node)
            return
        here = self._text[self._place : self._place + 1]
        if here and here in "+- ":
            self.zone_sign = -1 if here == "-" else 1
            self._place += 1
        else:
            before = self._text[self._place - 1 : self._place]
            self.zone_sign = -1 if self._skipped > 0 and before == "-" else 1
        self._set("zone_hours", self._number(node, index, 2)[0], node)
        if key in ("OF", "TZ") and self._text.startswith(":", self._place):
            self._place += 1
            self._set("zone_minutes", self._number(node, index, 2)[0], node)

    def _abbreviation(self, node: PictureNode) -> bool:
        """Read the longest abbreviation of a zone; whether there is a text that could be one."""
        match = _LETTERS.match(self._text, self._place)
        if match is None:
            return False
        for end in range(match.end(), self._place, -1):
            east = abbreviated(self._text[self._place : end])
            if east is not None:
                self.zone_sign, self.abbreviated = 0, east
                self._place = end
                return True
        raise _bad(self._text[self._place :], node)

    def _word(self, node: PictureNode, key: str) -> None:
        if key in ("AM", "PM", "A.M.", "P.M."):
            words: Sequence[str] = _HALVES["A.M." if "." in key else "AM"]
            self._set("half", self._choice(node, words), node)
            self.has_half_day = True
        elif key in ("AD", "BC", "A.D.", "B.C."):
            self._set("era", self._choice(node, _ERAS["A.D." if "." in key else "AD"]), node)
        elif key in ("MONTH", "MON"):
            names: Sequence[str] = MONTHS if key == "MONTH" else [name[:3] for name in MONTHS]
            self._set("month", self._choice(node, names) + 1, node)
        elif key in ("DAY", "DY"):
            days: Sequence[str] = DAYS if key == "DAY" else [name[:3] for name in DAYS]
            self._set("weekday", self._choice(node, days), node)
            self.fields["weekday"] += 1
        else:
            self._set("month", 12 - self._choice(node, ROMAN), node)

    def _choice(self, node: PictureNode, words: Sequence[str]) -> int:
        """The first of some words that comes next in the text."""
        for number, word in enumerate(words):
            end = self._place + len(word)
            if self._text[self._place : end].lower() == word.lower():
                self._place = end
                return number
        raise _bad(self._text[self._place :].split(" ")[0], node)


def _near_2020(year: int) -> int:
    """The year that is meant by its last digits."""
    if year < 70:
        return year + 2000
    if year < 100:
        return year + 1900
    if year < 520:
        return year + 2000
    return year + 1000 if year < 1000 else year


def _bad(value: str, node: PictureNode) -> ValueRefused:
    return ValueRefused(f'invalid value "{value}" for "{node.key}"')
