"""Hides keys and values in figures, with ``--redact``: for pages that others may see.

It works on the figures of all pages, by the names of their fields, so no page can forget it. A key
becomes ``key#1a2b3c4d``, a hash that is the same wherever it appears, in the logs of workers too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from millwheel.core.codec import decode_key
from millwheel.core.redaction import hidden, without_key

VALUE = "(hidden)"

HIDDEN_VALUES = frozenset(
    {
        "entries",
        "error",
        "position",
        "payload",
        "rows",
        "state",
        "tag",
        "traceback",
        "value",
        "detail",
    }
)
"""Fields whose values are left out: errors quote values, and so do details."""

HIDDEN_KEYS = frozenset({"key", "oldest_key"})

HIDDEN_TEXTS = frozenset({"what", "root"})
"""Texts of which a part is a key."""


def without_secrets(figures: Any) -> Any:
    """The figures, as `msgspec.to_builtins` gives them, without keys and values."""
    if isinstance(figures, dict):
        return {name: _field(name, value) for name, value in figures.items()}
    if isinstance(figures, list):
        return [without_secrets(each) for each in figures]
    return figures


def _field(name: str, value: Any) -> Any:
    if value is None:
        return None
    hide = _HIDES.get(name)
    return without_secrets(value) if hide is None else hide(value)


def _value(value: Any) -> str:
    return VALUE


def _key(value: Any) -> str:
    return hidden(repr(decode_key(msgspec.json.encode(value))))


def _text(value: Any) -> Any:
    return without_key(value) if isinstance(value, str) else without_secrets(value)


_HIDES: dict[str, Callable[[Any], Any]] = {
    **dict.fromkeys(HIDDEN_VALUES, _value),
    **dict.fromkeys(HIDDEN_KEYS, _key),
    **dict.fromkeys(HIDDEN_TEXTS, _text),
}
