"""Keys and JSON as people type them: in arguments of commands, and in fields of pages."""

from __future__ import annotations

import msgspec

from millwheel.core.codec import is_key, shown
from millwheel.core.model import Key
from millwheel.errors import UsageError


def key_of(text: str) -> Key:
    """The key that a word stands for: JSON, otherwise the text itself."""
    try:
        found = msgspec.json.decode(text)
    except msgspec.DecodeError:
        return text
    key = tuple(found) if isinstance(found, list) else found
    if not is_key(key):
        raise UsageError(
            f"{text} cannot be a key: a key is a text, a whole number, or a list of these. A text "
            f"that looks like other JSON is written in quotes: '\"{text}\"'"
        )
    return key


def typed_json(text: str, place: str) -> object:
    """The value of a JSON text. `UsageError`, with the name of the place, if it is none."""
    try:
        value: object = msgspec.json.decode(text)
    except msgspec.DecodeError as error:
        raise UsageError(f"{place} takes JSON, and {shown(text)} is none: {error}") from error
    return value
