from __future__ import annotations

import re

from millwheel.errors import GraphError

MOST_LETTERS = 48

_NAME = re.compile(rf"[a-z][a-z0-9_]{{0,{MOST_LETTERS - 1}}}\Z")


def is_name(text: str) -> bool:
    return _NAME.match(text) is not None


def check_name(name: str, what: str) -> str:
    """`GraphError` if the name is not valid."""
    if not isinstance(name, str) or not _NAME.match(name):
        raise GraphError(
            f"{name!r} cannot name a {what}: use lower-case letters, digits and underscores, "
            f"starting with a letter, {MOST_LETTERS} characters at the most"
        )
    return name
