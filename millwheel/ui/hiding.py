"""Hides keys and values in figures, with ``--redact``: for pages that others may see.

It works on the figures of all pages, by the names of their fields, so no page can forget it. A key
becomes ``key#1a2b3c4d``, a hash that is the same wherever it appears, in the logs of workers too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from millwheel.core.codec import decode_key
from millwheel.core.redaction import HIDDEN_VALUE, hidden, without_key

HIDDEN_VALUES = frozenset(
    {
        "blocked_by",
        "entries",
        "entry",
        "error",
        "item",
        "next_entry",
        "next_key",
        "next_timer",
        "position",
        "payload",
        "rows",
        "state",
        "tag",
        "traceback",
        "value",
        "waits",
        "detail",
    }
)
"""Fields that are left out: errors quote values, and so do details; what blocks a worker has a key,
and what it waits for a statement."""

HIDDEN_KEYS = frozenset({"key", "oldest_key"})

HIDDEN_TEXTS = frozenset({"what", "root"})
"""Texts of which a part is a key and a tag, or a statement of another session."""

STATEMENT_FOLLOWS = "waits for the open transaction of "


def shown_figures(figures: Any, *, redact: bool) -> Any:
    """Structs as plain values for a page and for JSON; without keys and values if they are
    redacted."""
    found = msgspec.to_builtins(figures, enc_hook=_plain)
    return without_secrets(found) if redact else found


def _plain(value: Any) -> Any:
    """A value that msgspec does not know: JSON of the store."""
    if isinstance(value, msgspec.Raw):
        return msgspec.json.decode(value)
    raise NotImplementedError


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
    return HIDDEN_VALUE


def _key(value: Any) -> str:
    return hidden(repr(decode_key(msgspec.json.encode(value))))


def _text(value: Any) -> Any:
    if not isinstance(value, str):
        return without_secrets(value)
    if value.startswith("key "):
        key, _, _ = without_key(value).partition(":")  # its end has the timer's tag, or a value
        return f"{key}: {HIDDEN_VALUE}"
    before, follows, statement = value.partition(STATEMENT_FOLLOWS)
    return f"{before}{follows}{HIDDEN_VALUE}" if statement else value


_HIDES: dict[str, Callable[[Any], Any]] = {
    **dict.fromkeys(HIDDEN_VALUES, _value),
    **dict.fromkeys(HIDDEN_KEYS, _key),
    **dict.fromkeys(HIDDEN_TEXTS, _text),
}
