"""Pictures of numbers, as in ``to_char(cents, 'FM999,990.00')``."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache

from millwheel.sql.functions.registry import ValueRefused

_KEYWORDS = (
    ",", ".", "0", "9", "B", "C", "D", "EEEE", "FM", "G", "L", "MI", "PL", "PR", "RN", "SG", "SP",
    "S", "TH", "V",
)  # fmt: skip
_PATTERNS = {key: key for key in _KEYWORDS} | {
    key.lower(): key if key not in ("RN", "TH") else key.lower()
    for key in _KEYWORDS
    if key.isalpha()
}
_LONGEST = 4

BEFORE, AFTER = "before", "after"


@dataclass
class Picture:
    """The parts of a picture, and the meaning of its patterns together."""

    nodes: list[tuple[str, str]] = field(default_factory=list)
    """A pattern and nothing, or nothing and a text that stands for itself."""
    pre: int = 0
    """Digits before the point."""
    post: int = 0
    """Digits after the point."""
    sign: str = ""
    """Of ``S``: where the sign is."""
    digits_at_sign: int = 0
    """Digits before ``S``."""
    zero_start: int = 0
    """Counted from 1, the first digit that is written as 0; 0: there is none."""
    zero_end: int = 0
    has: set[str] = field(default_factory=set)
    """The patterns in it; ``SG`` counts as ``MI`` and ``PL``, and ``D`` as a point."""


@lru_cache(512)
def picture(text: str) -> Picture:
    """Read a picture.

    Raises:
        ValueRefused: its patterns do not go together.
    """
    found, at = Picture(), 0
    while at < len(text):
        word = next(
            (text[at : at + n] for n in range(_LONGEST, 0, -1) if text[at : at + n] in _PATTERNS),
            None,
        )
        if word is not None:
            pattern = _PATTERNS[word]
            _add(found, pattern)
            found.nodes.append((pattern, ""))
            at += len(word)
        elif text[at] == '"':
            at = _quoted(found, text, at + 1)
        else:
            if text.startswith('\\"', at):
                at += 1
            found.nodes.append(("", text[at]))
            at += 1
    return found


def _quoted(found: Picture, text: str, at: int) -> int:
    """Add the text between quotes; gives its end."""
    while at < len(text) and text[at] != '"':
        if text[at] == "\\" and at + 1 < len(text):
            at += 1
        found.nodes.append(("", text[at]))
        at += 1
    return at + 1


def _add(found: Picture, pattern: str) -> None:
    has = found.has
    if "EEEE" in has and pattern != "EEEE":
        raise ValueRefused('"EEEE" must be the last pattern used')
    if pattern in ("L", "V"):
        raise ValueRefused(f'the pattern "{pattern}" of numbers is not available')
    if pattern in "90":
        _add_digit(found, pattern)
    elif pattern in ("D", "."):
        if "." in has:
            raise ValueRefused("multiple decimal points")
        has.add(".")
    elif pattern == "FM" or (pattern == "B" and not found.pre + found.post):
        has.add(pattern)
    elif pattern in ("S", "MI", "PL", "SG", "PR"):
        _add_sign(found, pattern)
    elif pattern.upper() == "RN":
        if "RN" in has:
            raise ValueRefused('cannot use "RN" twice')
        has.add("RN")
    elif pattern == "EEEE":
        if "EEEE" in has:
            raise ValueRefused('cannot use "EEEE" twice')
        if has & {"B", "FM", "S", "PR", "MI", "PL", "RN"}:
            raise ValueRefused('"EEEE" is incompatible with other formats')
        has.add("EEEE")
    if "RN" in has and has - {"RN", "FM"}:
        raise ValueRefused('"RN" is incompatible with other formats')


def _add_digit(found: Picture, pattern: str) -> None:
    if "PR" in found.has:
        raise ValueRefused(f'"{pattern}" must be ahead of "PR"')
    if "." in found.has:
        found.post += 1
    else:
        found.pre += 1
        if pattern == "0" and not found.zero_start:
            found.zero_start = found.pre
            found.has.add("0")
    if pattern == "0":
        found.zero_end = found.pre + found.post


def _add_sign(found: Picture, pattern: str) -> None:
    has = found.has
    if pattern == "S":
        if "S" in has:
            raise ValueRefused('cannot use "S" twice')
        if has & {"PL", "MI", "PR"}:
            raise ValueRefused('cannot use "S" and "PL"/"MI"/"SG"/"PR" together')
        found.sign = AFTER if "." in has else BEFORE
        found.digits_at_sign = found.pre
        has.add("S")
    elif pattern == "PR":
        if has & {"S", "PL", "MI"}:
            raise ValueRefused('cannot use "PR" and "S"/"PL"/"MI"/"SG" together')
        has.add("PR")
    elif "S" in has:
        raise ValueRefused(f'cannot use "S" and "{pattern}" together')
    else:
        has |= {"PL", "MI"} if pattern == "SG" else {pattern}
