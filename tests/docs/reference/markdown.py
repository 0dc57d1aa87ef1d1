"""Markdown of facts."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from textwrap import fill

WIDTH = 100


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table; empty if there is no row."""
    lines = [f"| {' | '.join(_cell(each) for each in row)} |" for row in rows]
    if not lines:
        return ""
    return "\n".join([f"| {' | '.join(head)} |", f"|{'---|' * len(head)}", *lines])


def prose(text: str) -> str:
    """Paragraphs and lists of a docstring, with lines of the pages' width."""
    found = [_paragraph(each) for each in re.split(r"\n\s*\n", text.strip())]
    return "\n\n".join(found)


def code(text: object) -> str:
    return f"`{text}`"


def page(title: str, *parts: str) -> str:
    return "\n\n".join([f"# {title}", *(part for part in parts if part)]) + "\n"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _paragraph(text: str) -> str:
    first = text.lstrip()
    if first.startswith(("* ", "- ", "|")):
        return text
    return fill(" ".join(text.split()), WIDTH, break_long_words=False, break_on_hyphens=False)
