"""`LIKE` and `ILIKE`."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache

from millwheel.sql.functions.registry import ValueRefused, implements
from millwheel.sql.functions.texts.texts import lower

_UNFINISHED = "LIKE pattern must not end with escape character"
_PART = re.compile(r"\\(.)|(%+)|(_)|([^\\%_]+)", re.DOTALL)


@implements("textlike(text,text)", "like(text,text)", "bpcharlike(bpchar,text)")
def like(text: str, pattern: str) -> bool:
    return matcher(pattern)(text)


@implements("textnlike(text,text)", "notlike(text,text)", "bpcharnlike(bpchar,text)")
def not_like(text: str, pattern: str) -> bool:
    return not matcher(pattern)(text)


@implements("texticlike(text,text)", "bpchariclike(bpchar,text)")
def ilike(text: str, pattern: str) -> bool:
    return matcher(lower(pattern))(lower(text))


@implements("texticnlike(text,text)", "bpcharicnlike(bpchar,text)")
def not_ilike(text: str, pattern: str) -> bool:
    return not ilike(text, pattern)


@implements("bytealike(bytea,bytea)", "like(bytea,bytea)")
def like_bytes(value: bytes, pattern: bytes) -> bool:
    return like(value.decode("latin-1"), pattern.decode("latin-1"))


@implements("byteanlike(bytea,bytea)", "notlike(bytea,bytea)")
def not_like_bytes(value: bytes, pattern: bytes) -> bool:
    return not like_bytes(value, pattern)


@implements("like_escape(text,text)")
def with_escape(pattern: str, escape: str) -> str:
    """A pattern with another escape character, with a backslash instead."""
    if escape == "\\":
        return pattern
    if len(escape) > 1:
        raise ValueRefused("invalid escape string")
    parts, escaped = [], False
    for character in pattern:
        if character == escape and not escaped:
            parts.append("\\")
            escaped = True
            continue
        parts.append("\\\\" if character == "\\" and not escaped else character)
        escaped = False
    return "".join(parts)


@lru_cache(maxsize=1024)
def matcher(pattern: str) -> Callable[[str], bool]:
    """The test of texts that a pattern stands for."""
    if _ends_in_escape(pattern):
        return lambda text: _walk(text, pattern)
    segments = _segments(pattern)
    plain = ["".join(each) for each in segments if None not in each]  # type: ignore[arg-type]
    if len(plain) == len(segments):
        if len(segments) == 1:
            return plain[0].__eq__
        if len(segments) == 2:
            return _between(*plain)
        if len(segments) == 3 and not plain[0] and not plain[2]:
            part = plain[1]
            return lambda text: part in text
    compiled = re.compile(_expression(segments), re.DOTALL).fullmatch
    return lambda text: compiled(text) is not None


def _between(first: str, last: str) -> Callable[[str], bool]:
    if not last:
        return lambda text: text.startswith(first)
    if not first:
        return lambda text: text.endswith(last)
    least = len(first) + len(last)
    return lambda text: text.startswith(first) and text.endswith(last) and len(text) >= least


def _ends_in_escape(pattern: str) -> bool:
    return (len(pattern) - len(pattern.rstrip("\\"))) % 2 == 1


def _segments(pattern: str) -> list[list[str | None]]:
    """The parts between the ``%``; None: any character."""
    segments: list[list[str | None]] = [[]]
    for escaped, anything, one, plain in _PART.findall(pattern):
        if anything:
            segments.append([])
        else:
            segments[-1].append(None if one else escaped or plain)
    return segments


def _expression(segments: list[list[str | None]]) -> str:
    # The first place where a segment fits is as good as any later one: no other need be tried.
    first, *others = [
        "".join("." if each is None else re.escape(each) for each in segment)
        for segment in segments
    ]
    if not others:
        return first
    *middle, last = others
    return first + "".join(f"(?>.*?{each})" for each in middle) + f".*{last}"


def _walk(text: str, pattern: str) -> bool:
    """The test by a pattern that ends in an escape, an error only if the text leads there."""
    found = _matched(text, pattern, 0, 0)
    return found is True


def _matched(text: str, pattern: str, t: int, p: int) -> bool | None:
    """None: no later place in the text can match either."""
    while t < len(text) and p < len(pattern):
        here = pattern[p]
        if here == "%":
            return _after_any(text, pattern, t, p)
        if here == "\\":
            p += 1
            if p == len(pattern):
                raise ValueRefused(_UNFINISHED)
            here = pattern[p]
        elif here == "_":
            here = text[t]
        if here != text[t]:
            return False
        t, p = t + 1, p + 1
    if t < len(text):
        return False
    return True if not pattern[p:].strip("%") else None


def _after_any(text: str, pattern: str, t: int, p: int) -> bool | None:
    while p < len(pattern) and pattern[p] in "%_":
        if pattern[p] == "_":
            if t == len(text):
                return None
            t += 1
        p += 1
    if p == len(pattern):
        return True
    if pattern[p] == "\\" and p + 1 == len(pattern):
        raise ValueRefused(_UNFINISHED)
    first = pattern[p + 1] if pattern[p] == "\\" else pattern[p]
    for start in range(t, len(text)):
        if text[start] == first and (found := _matched(text, pattern, start, p)) is not False:
            return found
    return None
