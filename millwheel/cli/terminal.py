"""Properties of a terminal: its width, and whether it shows colours and moves its cursor."""

from __future__ import annotations

import os
import sys
from typing import IO, Any, NamedTuple

import typer


class Size(NamedTuple):
    columns: int
    rows: int


STYLES: dict[str, dict[str, Any]] = {
    "heading": {"bold": True},
    "name": {"fg": "cyan"},
    "note": {"dim": True},
    "good": {"fg": "green"},
    "warning": {"fg": "yellow"},
    "error": {"fg": "red", "bold": True},
}
"""A style only repeats the meaning of its text: a reader without colours misses nothing."""

USUAL = Size(80, 24)
"""The size of a terminal that does not report one."""

WITHOUT_CURSOR = ("", "dumb", "unknown")
"""Values of TERM that promise neither colours nor a cursor that moves."""


def size_of(stream: IO[str]) -> Size | None:
    """The size of the terminal that a stream writes to, or None. COLUMNS and LINES have
    precedence."""
    if not stream.isatty():
        return None
    try:
        found = Size(*os.get_terminal_size(stream.fileno()))
    except (OSError, ValueError):
        found = USUAL
    columns, rows = (_number(os.environ.get(name)) for name in ("COLUMNS", "LINES"))
    return Size(columns or found.columns or USUAL.columns, rows or found.rows or USUAL.rows)


def _number(text: str | None) -> int:
    return int(text) if text is not None and text.isdecimal() else 0


def width_of(stream: IO[str]) -> int | None:
    """Columns of the terminal that a stream writes to, or None."""
    size = size_of(stream)
    return None if size is None else size.columns


def moves_cursor(stream: IO[str]) -> bool:
    """Whether lines of a stream can be drawn over."""
    return stream.isatty() and os.environ.get("TERM", "") not in WITHOUT_CURSOR


def in_foreground(stream: IO[str]) -> bool:
    """Whether the terminal of a stream is this process's: a shell has it otherwise."""
    try:
        return os.tcgetpgrp(stream.fileno()) == os.getpgrp()
    except (OSError, ValueError):  # it is not the terminal of this session
        return True


def has_colours(stream: IO[str]) -> bool:
    """Whether a stream shows colours. A NO_COLOR that is not empty forbids them."""
    return moves_cursor(stream) and not os.environ.get("NO_COLOR")


def styled(text: str, style: str | None, *, err: bool = False) -> str:
    """`text` in a style of `STYLES`, if standard output (or error) shows colours."""
    if not (style and text and has_colours(sys.stderr if err else sys.stdout)):
        return text
    return typer.style(text, **STYLES[style])


ASCII = str.maketrans({"━": "#", "─": "-", "·": "|", "…": "~"})


def in_charset(text: str, stream: IO[str]) -> str:
    """`text` with the signs of drawings in ASCII, if a stream has no others."""
    try:
        text.encode(getattr(stream, "encoding", None) or "utf-8")
    except (UnicodeEncodeError, LookupError):
        return text.translate(ASCII)
    return text
