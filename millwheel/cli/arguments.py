"""Options that are JSON."""

from __future__ import annotations

import sys

from millwheel.core.typed_values import typed_json
from millwheel.errors import UsageError


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
    return typed_json(text, option)
