from __future__ import annotations

import re

from millwheel.errors import GraphError

_NAME = re.compile(r"[a-z][a-z0-9_]{0,47}\Z")


def check_name(name: str, what: str) -> str:
    """`GraphError` if the name is not valid."""
    if not isinstance(name, str) or not _NAME.match(name):
        raise GraphError(
            f"{name!r} cannot name a {what}: use lower-case letters, digits and underscores, "
            "starting with a letter, 48 characters at the most"
        )
    return name
