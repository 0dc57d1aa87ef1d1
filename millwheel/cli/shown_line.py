"""One line of progress on standard error: drawn over on a terminal, printed now and then
elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

from millwheel.cli.drawn_lines import drawing
from millwheel.cli.printing import shortened, tell
from millwheel.cli.terminal import USUAL, moves_cursor, width_of

LINE_SECONDS = 5.0
"""Without a terminal, a line each so often."""

DRAW_SECONDS = 0.2
"""On a terminal, at the most so often: nobody reads faster."""


@contextmanager
def shown_line(*, keep: bool = False) -> Iterator[Callable[[str], None]]:
    """Gives a function that shows the present text.

    Args:
        keep: the last text stays at the end.
    """
    if moves_cursor(sys.stderr):
        with drawing(sys.stderr, keep=keep) as drawn:
            columns = width_of(sys.stderr) or USUAL.columns
            line = _PacedLine(lambda text: drawn.draw([shortened(text, columns - 1)]), DRAW_SECONDS)
            yield line.show
            if keep:
                line.end()
        return
    line = _PacedLine(partial(tell, err=True), LINE_SECONDS, waits=True)
    yield line.show
    if keep:
        line.end()


class _PacedLine:
    """Passes texts on, with a pause between two.

    Args:
        waits: before the first as well.
    """

    def __init__(self, put: Callable[[str], None], seconds: float, *, waits: bool = False) -> None:
        self._put, self._seconds = put, seconds
        self._at = time.monotonic() if waits else float("-inf")
        self._last = ""
        """Not shown yet."""

    def show(self, text: str) -> None:
        self._last = text
        if time.monotonic() - self._at >= self._seconds:
            self._at = time.monotonic()
            self.end()

    def end(self) -> None:
        """Show the last text, if it is not shown yet."""
        if self._last:
            self._put(self._last)
            self._last = ""
