"""Arguments and options that are keys or JSON."""

from __future__ import annotations

import sys

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


def json_of(text: str, option: str) -> object:
    """The JSON of an option, of standard input (``-``) or of a file (``@FILE``)."""
    if text == "-":
        text = sys.stdin.read()
    elif text.startswith("@"):
        try:
            with open(text[1:], encoding="utf-8") as file:
                text = file.read()
        except OSError as error:
            raise UsageError(f"{option}: {error}") from error
    try:
        value: object = msgspec.json.decode(text)
    except msgspec.DecodeError as error:
        raise UsageError(f"{option} takes JSON, and {shown(text)} is none: {error}") from error
    return value
