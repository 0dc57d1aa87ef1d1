"""The patterns of ``to_char``, ``to_timestamp`` and ``to_date``."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

MONTHS = (
    "January", "February", "March", "April", "May", "June", "July", "August", "September",
    "October", "November", "December",
)  # fmt: skip
DAYS = ("Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday")
ROMAN = ("XII", "XI", "X", "IX", "VIII", "VII", "VI", "V", "IV", "III", "II", "I")

_KEYS = """
A.D. A.M. AD AM B.C. BC CC DAY DDD DD DY D FF1 FF2 FF3 FF4 FF5 FF6 FX HH24 HH12 HH IDDD ID IW IYYY
IYY IY I J MI MM MONTH MON MS OF P.M. PM Q RM SSSSS SSSS SS TZH TZM TZ US WW W Y,YYY YYYY YYY YY Y
"""
_UPPER = _KEYS.split()
_MIXED = ["Day", "Dy", "Month", "Mon"]
_KEYWORD = re.compile(
    "|".join(
        map(re.escape, sorted({*_UPPER, *_MIXED, *map(str.lower, _UPPER)}, key=len, reverse=True))
    )
)
_PREFIX = re.compile("FM|fm|TM|tm")
_SUFFIX = re.compile("TH|th|SP")


class PictureNode(NamedTuple):
    """A part of a picture."""

    key: str
    """A pattern such as ``YYYY``; empty: text."""
    text: str = ""
    fills: bool = False
    """Whether ``FM`` is before it: no blanks and zeros are added."""
    translated: bool = False
    """Whether ``TM`` is before it."""
    ordinal: str = ""
    """``TH`` or ``th`` after it."""


@lru_cache(maxsize=1024)
def nodes(picture: str) -> tuple[PictureNode, ...]:
    """The parts of a picture, each text a single character."""
    found: list[PictureNode] = []
    place = 0
    while place < len(picture):
        prefix = _PREFIX.match(picture, place)
        if prefix is not None:
            place = prefix.end()
        key = _KEYWORD.match(picture, place)
        if key is not None:
            place = key.end()
            suffix = _SUFFIX.match(picture, place)
            if suffix is not None:
                place = suffix.end()
            before = "" if prefix is None else prefix[0].upper()
            after = "" if suffix is None or suffix[0] == "SP" else suffix[0]
            found.append(PictureNode(key[0], "", before == "FM", before == "TM", after))
        elif place < len(picture):
            place = _literal(picture, place, found)
    return tuple(found)


def _literal(picture: str, place: int, found: list[PictureNode]) -> int:
    """Add a quoted text, or a character; gives the place after it."""
    if picture[place] != '"':
        if picture.startswith('\\"', place):
            place += 1
        found.append(PictureNode("", picture[place]))
        return place + 1
    place += 1
    while place < len(picture):
        if picture[place] == '"':
            return place + 1
        if picture[place] == "\\" and place + 1 < len(picture):
            place += 1
        found.append(PictureNode("quoted", picture[place]))
        place += 1
    return place
