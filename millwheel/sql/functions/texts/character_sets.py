"""Sets of characters, as ranges of code points, and the classes that regular expressions name."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable
from functools import lru_cache

from millwheel.sql.functions.texts.letters import capital, is_alphanumeric, is_space, small

Ranges = tuple[tuple[int, int], ...]
"""In order, none touching another."""

LAST = 0x10FFFF
EVERY: Ranges = ((0, LAST),)
NONE: Ranges = ()

_NO_BREAK = "\xa0\u2007\u202f"
_MARK_CATEGORIES = frozenset(
    ("So", "Co", "Mn", "Sm", "No", "Po", "Mc", "Cf", "Sk", "Ps", "Pe", "Sc", "Pd", "Me", "Pi", "Pc",
     "Pf")
)  # fmt: skip


def united(ranges: Iterable[tuple[int, int]]) -> Ranges:
    """All of these ranges, joined where they touch."""
    found: list[tuple[int, int]] = []
    for first, last in sorted(ranges):
        if found and first <= found[-1][1] + 1:
            found[-1] = found[-1][0], max(found[-1][1], last)
        else:
            found.append((first, last))
    return tuple(found)


def complement(ranges: Ranges) -> Ranges:
    found, at = [], 0
    for first, last in ranges:
        if first > at:
            found.append((at, first - 1))
        at = last + 1
    return (*found, (at, LAST)) if at <= LAST else tuple(found)


def common(a: Ranges, b: Ranges) -> Ranges:
    """The characters in both."""
    return complement(united((*complement(a), *complement(b))))


def overlap(a: Ranges, b: Ranges) -> bool:
    i = j = 0
    while i < len(a) and j < len(b):
        if a[i][1] < b[j][0]:
            i += 1
        elif b[j][1] < a[i][0]:
            j += 1
        else:
            return True
    return False


def of(characters: str) -> Ranges:
    return united((ord(each), ord(each)) for each in characters)


def any_case(ranges: Ranges) -> Ranges:
    """With the capital and the small letter of each character."""
    if ranges == EVERY:
        return ranges
    more = [
        (ord(other), ord(other))
        for first, last in ranges
        for code in range(first, last + 1)
        for other in (small(chr(code)), capital(chr(code)))
        if not first <= ord(other) <= last
    ]
    return united((*ranges, *more))


def written(ranges: Ranges) -> str:
    """One character of the set, as an expression of `re` with DOTALL."""
    if ranges == EVERY:
        return "."
    if not ranges:
        return "(?!)"
    if len(ranges) == 1 and ranges[0][0] == ranges[0][1]:
        return re.escape(chr(ranges[0][0]))
    other = complement(ranges)
    if ranges[-1][1] == LAST and len(other) <= len(ranges):
        return f"[^{_inside(other)}]"
    return f"[{_inside(ranges)}]"


def _inside(ranges: Ranges) -> str:
    return "".join(
        _escaped(first) if first == last else f"{_escaped(first)}-{_escaped(last)}"
        for first, last in ranges
    )


def _escaped(code: int) -> str:
    return f"\\U{code:08x}" if code > 0x7F or not chr(code).isalnum() else chr(code)


# -- classes --------------------------------------------------------------------------------------


def _is_punctuation(character: str) -> bool:
    if character in _NO_BREAK:
        return True
    return unicodedata.category(character) in _MARK_CATEGORIES and not is_alphanumeric(character)


def _is_graphic(character: str) -> bool:
    return is_alphanumeric(character) or _is_punctuation(character)


def _is_printed(character: str) -> bool:
    return _is_graphic(character) or unicodedata.category(character) == "Zs"


_TESTS: dict[str, Callable[[str], bool]] = {
    "alpha": lambda each: is_alphanumeric(each) and each not in "0123456789",
    "alnum": is_alphanumeric,
    "word": lambda each: is_alphanumeric(each) or each == "_",
    "digit": lambda each: each in "0123456789",
    "upper": lambda each: each.isupper() or each.istitle(),
    "lower": lambda each: each.islower() or each in "ǅǈǋǲ",
    "space": is_space,
    "blank": lambda each: each in " \t",
    "cntrl": lambda each: unicodedata.category(each) == "Cc",
    "xdigit": lambda each: each in "0123456789abcdefABCDEF",
    "punct": _is_punctuation,
    "graph": _is_graphic,
    "print": _is_printed,
}

CLASSES = frozenset(_TESTS)

_ASCII_PUNCTUATION = "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~"


@lru_cache(maxsize=64)
def named(name: str) -> Ranges:
    """The characters of a class."""
    test = _TESTS[name]
    found = [
        (code, code)
        for code in range(LAST + 1)
        if (code < 0xD800 or code > 0xDFFF) and test(chr(code))
    ]
    if name in ("punct", "graph", "print"):
        found += [(ord(each), ord(each)) for each in _ASCII_PUNCTUATION]
    return united(found)
