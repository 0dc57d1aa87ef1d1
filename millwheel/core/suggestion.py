"""Suggests the name that was probably meant by one that is unknown."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

CLOSE = 0.6
"""Least similarity of two names, 0 to 1, of which one may be a slip for the other."""


def closest(name: str, known: Iterable[str], *, least: float = CLOSE) -> str | None:
    """The known name that is most like `name`, if any is; upper and lower case are the same."""
    by_text = {one.casefold(): one for one in known}
    found = get_close_matches(name.casefold(), by_text, 1, least)
    return by_text[found[0]] if found else None


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """A sentence for an error message, or an empty text: ``Did you mean cats?``."""
    found = closest(name, known)
    return "" if found is None else f"Did you mean {found}?"


def with_suggestion(message: str, name: str, known: Iterable[str]) -> str:
    """A message, with the suggestion behind it if there is one."""
    return f"{message}. {advice}" if (advice := did_you_mean(name, known)) else message
