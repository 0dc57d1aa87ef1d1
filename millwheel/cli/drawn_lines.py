"""Lines at the end of a terminal's output that are drawn over, with other output above them.

The cursor rests at the start of the first drawn line. So a redraw needs no height, which is unknown
once a narrower terminal has folded the lines: it clears the screen from there on. Nothing of the
drawing is left after `erased`, and all of it after `kept`.

::

    draw("a 10%")  ─>  \\r a 10% <clear below> \\r
    print("x")     ─>  \\r <clear below> x \\n, and the drawing again
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import IO, Any

CLEAR_LINE = "\x1b[K"
CLEAR_BELOW = "\x1b[J"


class DrawnLines:
    """Draws on one stream, a terminal. Each method may be called from any thread."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream
        self._lines: tuple[str, ...] = ()
        self._lock = threading.RLock()

    def draw(self, lines: Sequence[str]) -> None:
        """Replace the drawing. A line must fit the width, and the lines the height, of the
        terminal."""
        with self._lock:
            self._lines = tuple(lines)
            self._write(self._drawing())

    def print_above(self, stream: IO[str], text: str) -> None:
        """Write whole lines to a stream of the same terminal, above the drawing."""
        with self._lock:
            self._write(f"\r{CLEAR_BELOW}")
            stream.write(text)
            stream.flush()
            self._write(self._drawing())

    def end(self, *, keep: bool) -> None:
        """Take the drawing away, or keep it as the last lines of the output."""
        with self._lock:
            lines, self._lines = self._lines, ()
            self._write(f"\r{CLEAR_BELOW}" + "".join(f"{line}\n" for line in lines if keep))

    def _drawing(self) -> str:
        if not self._lines:
            return ""
        text = f"{CLEAR_LINE}\n".join(self._lines)
        up = f"\x1b[{len(self._lines) - 1}A" if len(self._lines) > 1 else ""
        return f"\r{text}{CLEAR_BELOW}{up}\r"

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()


class _Above:
    """Stands for a stream of the terminal: writes each whole line above the drawing."""

    def __init__(self, drawn: DrawnLines, stream: IO[str]) -> None:
        self._drawn = drawn
        self._stream = stream
        self._rest = ""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        whole, newline, rest = (self._rest + text).rpartition("\n")
        self._rest = rest
        if newline:
            self._drawn.print_above(self._stream, whole + newline)
        return len(text)

    def flush(self) -> None:
        """Nothing: a line is written as soon as it is whole."""

    def writelines(self, lines: Sequence[str]) -> None:
        self.write("".join(lines))

    def end(self) -> None:
        if self._rest:
            self._stream.write(self._rest)
        self._stream.flush()


@contextmanager
def drawing(stream: IO[str], *, keep: bool = False) -> Iterator[DrawnLines]:
    """Draw on a terminal. Standard output and error appear above the drawing, if they are
    terminals.

    Args:
        keep: whether the last drawing stays at the end.
    """
    drawn = DrawnLines(stream)
    before = sys.stdout, sys.stderr
    above = [_Above(drawn, each) if each.isatty() else each for each in before]
    sys.stdout, sys.stderr = above
    try:
        yield drawn
    finally:
        sys.stdout, sys.stderr = before
        drawn.end(keep=keep)
        for each in above:
            if isinstance(each, _Above):
                each.end()
