"""Properties of a terminal: its width, and whether it shows colours and moves its cursor."""

from __future__ import annotations

import os
import shutil
import sys
from typing import IO, Any

import typer

STYLES: dict[str, dict[str, Any]] = {
    "heading": {"bold": True},
    "name": {"fg": "cyan"},
    "note": {"dim": True},
    "good": {"fg": "green"},
    "warning": {"fg": "yellow"},
    "error": {"fg": "red", "bold": True},
}
"""A style only repeats the meaning of its text: a reader without colours misses nothing."""

WITHOUT_CURSOR = ("", "dumb", "unknown")
"""Values of TERM that promise neither colours nor a cursor that moves."""


def width_of(stream: IO[str]) -> int | None:
    """Columns of the terminal that a stream writes to, or None. COLUMNS has precedence."""
    return shutil.get_terminal_size().columns if stream.isatty() else None


def moves_cursor(stream: IO[str]) -> bool:
    """Whether lines of a stream can be drawn over."""
    return stream.isatty() and os.environ.get("TERM", "") not in WITHOUT_CURSOR


def has_colours(stream: IO[str]) -> bool:
    """Whether a stream shows colours. A NO_COLOR that is not empty forbids them."""
    return moves_cursor(stream) and not os.environ.get("NO_COLOR")


def styled(text: str, style: str | None, *, err: bool = False) -> str:
    """`text` in a style of `STYLES`, if standard output (or error) shows colours."""
    if not (style and text and has_colours(sys.stderr if err else sys.stdout)):
        return text
    return typer.style(text, **STYLES[style])
