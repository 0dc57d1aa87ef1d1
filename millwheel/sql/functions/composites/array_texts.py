"""Arrays as texts: ``{1,NULL,"a b"}``."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from millwheel.sql.functions.registry import (
    DERIVED,
    OUTPUT,
    Implementation,
    ValueRefused,
    applied,
    cast_of,
)

_WHITE = " \t\n\r\v\f"
_UNQUOTED = r'(?:[^ \t\n\r\v\f",{}\\]|\\.)'
_ITEM = re.compile(
    rf'[{_WHITE}]*(?:"((?:[^"\\]|\\.)*)"|({_UNQUOTED}(?:[{_WHITE}]*{_UNQUOTED})*))[{_WHITE}]*([,}}])',
    re.DOTALL,
)
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)
_NEEDS_QUOTES = re.compile(rf'[{_WHITE}",{{}}\\]')
_QUOTED = re.compile(r'(["\\])')


def read(text: str, item: Callable[[str], Any]) -> list[Any]:
    """Read an array, its elements by `item`."""
    inner = text.strip(_WHITE)
    if inner.startswith("["):
        raise ValueRefused("arrays that do not begin at 1 are not available here")
    if not inner.startswith("{"):
        raise _malformed(text)
    if inner.endswith("}") and not inner[1:-1].strip(_WHITE):
        return []
    found: list[Any] = []
    at = 1
    while True:
        match = _ITEM.match(inner, at)
        if match is None:
            raise _malformed(text)
        quoted, plain, after = match.groups()
        if plain is not None and plain.upper() == "NULL":
            found.append(None)
        else:
            found.append(item(_ESCAPED.sub(r"\1", plain if quoted is None else quoted)))
        at = match.end()
        if after == "}":
            break
    if at != len(inner):
        raise _malformed(text)
    return found


def _malformed(text: str) -> ValueRefused:
    if re.match(r"\s*\{\s*\{", text):
        return ValueRefused("arrays of arrays are not available here")
    return ValueRefused(f'malformed array literal: "{text}"')


def shown(array: Sequence[Any], item: Callable[[Any], str]) -> str:
    """An array, its elements by `item`."""
    return "{" + ",".join(["NULL" if each is None else _quoted(item(each)) for each in array]) + "}"


def _quoted(text: str) -> str:
    if text and _NEEDS_QUOTES.search(text) is None and text.upper() != "NULL":
        return text
    return '"' + _QUOTED.sub(r"\\\1", text) + '"'


def _derived(source: str, target: str) -> Implementation | None:
    if source == "text" and target.startswith("_"):
        found = cast_of("text", target[1:])
        return found and _reader(applied(found))
    if source.startswith("_") and target == "text":
        found = cast_of(source[1:], OUTPUT)
        return found and _writer(applied(found))
    return None


def _reader(item: Callable[[str], Any]) -> Implementation:
    return Implementation(lambda text: read(text, item), "", may_be_null=False)


def _writer(item: Callable[[Any], str]) -> Implementation:
    return Implementation(lambda array: shown(array, item), "", may_be_null=False)


DERIVED.append(_derived)
