"""JSON values as texts, and as the values of other programs.

A value of `jsonb` is a dict, a list, a str, a bool, an int, a Decimal, or `NULL`, which is JSON's
null: None is that of SQL.
"""

from __future__ import annotations

import json
import re
from decimal import Decimal
from enum import Enum
from json.encoder import encode_basestring as quoted
from typing import Any

from millwheel.sql.functions.registry import ValueRefused, casts


class JsonNull(Enum):
    """The null of JSON."""

    NULL = "null"


NULL = JsonNull.NULL

_MOST_DIGITS = 131072
"""Of a numeric before its point."""
_MOST_SCALE = 16383
_MOST_DIGITS_OF_INT = 4000
"""Python reads longer ones only as decimals."""

_LONE = re.compile(r"[\ud800-\udfff]")


def from_json(value: Any) -> Any:
    """A decoded JSON text, in which null is None, as a value of `jsonb`.

    A float becomes the number that Python shows for it.
    """
    if value is None:
        return NULL
    if isinstance(value, float):
        return number(repr(value))
    if isinstance(value, list):
        return [from_json(each) for each in value]
    if isinstance(value, dict):
        return {key: from_json(each) for key, each in value.items()}
    return value


def to_json(value: Any) -> Any:
    """A value of `jsonb` with None for null; its decimals stay decimals."""
    if value is NULL:
        return None
    if isinstance(value, list):
        return [to_json(each) for each in value]
    if isinstance(value, dict):
        return {key: to_json(each) for key, each in value.items()}
    return value


def number(text: str) -> int | Decimal:
    """A number of JSON; as in Postgres it keeps its digits after the point."""
    found = Decimal(text)
    if not found.is_finite():
        raise ValueRefused(f"a JSON number cannot be {text}")
    exponent = found.as_tuple().exponent
    assert isinstance(exponent, int)
    if found.adjusted() >= _MOST_DIGITS or -exponent > _MOST_SCALE:
        raise ValueRefused("value overflows numeric format")
    if exponent >= 0:
        return int(found) if found.adjusted() < _MOST_DIGITS_OF_INT else Decimal(f"{found:f}")
    return found if found else found.copy_abs()


def _whole(text: str) -> int | Decimal:
    return int(text) if len(text) < _MOST_DIGITS_OF_INT else number(text)


def _constant(text: str) -> Any:
    raise ValueError(text)


def _pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    return {key: NULL if value is None else value for key, value in pairs}


_decoder = json.JSONDecoder(
    object_pairs_hook=_pairs, parse_float=number, parse_int=_whole, parse_constant=_constant
)


@casts(("text", "jsonb"))
def read(text: str) -> Any:
    """Read JSON."""
    try:
        found = _decoder.decode(text)
    except RecursionError:
        raise ValueRefused("stack depth limit exceeded") from None
    except ValueRefused:
        raise
    except ValueError:
        raise ValueRefused("invalid input syntax for type json") from None
    if "null" in text:
        found = _nulled(found)
    if "\\u" in text:
        _check_characters(found)
    return found


def _nulled(value: Any) -> Any:
    """With `NULL` in place of None, which is left only in lists and alone."""
    if value is None:
        return NULL
    if type(value) is list:
        return [_nulled(each) for each in value]
    if type(value) is dict:
        return {key: _nulled(each) for key, each in value.items()}
    return value


def _check_characters(value: Any) -> None:
    if type(value) is str:
        if "\0" in value:
            raise ValueRefused("unsupported Unicode escape sequence")
        if _LONE.search(value):
            raise ValueRefused("invalid input syntax for type json")
    elif type(value) is list:
        for each in value:
            _check_characters(each)
    elif type(value) is dict:
        for key, each in value.items():
            _check_characters(key)
            _check_characters(each)


def _order(pair: tuple[str, Any]) -> tuple[int, bytes]:
    key = pair[0].encode()
    return len(key), key


@casts(("jsonb", "text"))
def shown(value: Any) -> str:
    """JSON as Postgres shows it, short keys first."""
    parts: list[str] = []
    _show(value, parts.append)
    return "".join(parts)


def _show(value: Any, write: Any) -> None:
    if type(value) is str:
        write(quoted(value))
    elif type(value) is dict:
        before = "{"
        for key, each in sorted(value.items(), key=_order):
            write(f"{before}{quoted(key)}: ")
            _show(each, write)
            before = ", "
        write("}" if value else "{}")
    elif type(value) is list:
        before = "["
        for each in value:
            write(before)
            _show(each, write)
            before = ", "
        write("]" if value else "[]")
    else:
        write(scalar(value))


def scalar(value: Any) -> str:
    """A number, a boolean or null."""
    if value is NULL:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    return f"{value:f}" if isinstance(value, Decimal) else str(value)


def text_of(value: Any) -> str | None:
    """A part of JSON as a text: without quotes; None: null."""
    if type(value) is str:
        return value
    return None if value is NULL else shown(value)
