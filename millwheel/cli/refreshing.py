"""Lines that are shown again and again: drawn over on a terminal, printed one after the other
elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated

import typer

from millwheel.cli.drawn_lines import DrawnLines, drawing
from millwheel.cli.options import OptionGroup
from millwheel.cli.terminal import USUAL, Size, moves_cursor, size_of
from millwheel.errors import UsageError

Render = Callable[[int | None], Iterable[str]]

SIZE_SECONDS = 0.2
"""Time in which a watch follows a change of the terminal's size."""


@dataclass(frozen=True)
class WatchOptions(OptionGroup):
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Refresh until Ctrl-C.")] = False
    interval: Annotated[
        float | None,
        typer.Option(
            min=0.1, max=3600, metavar="SECONDS", help="Refresh interval of --watch. Default: 1."
        ),
    ] = None

    @property
    def seconds(self) -> float | None:
        """Seconds between two refreshes; None: nothing is watched.

        Raises:
            UsageError: there is an interval without --watch.
        """
        if self.interval is not None and not self.watch:
            raise UsageError("--interval needs --watch")
        return (self.interval or 1.0) if self.watch else None


class Watch:
    """Shows lines again and again.

    Args:
        drawn: where to draw; None: blocks of lines are printed.
    """

    def __init__(self, drawn: DrawnLines | None) -> None:
        self._drawn = drawn
        self._render: Render = lambda width: ()
        self._size: Size | None = None

    def show(self, render: Render) -> None:
        """Show the lines that `render` gives for the width of the terminal; None: a pipe."""
        self._render = render
        if self._drawn is None:
            for line in render(None):
                typer.echo(line)
            typer.echo()
            sys.stdout.flush()
            return
        self._size = size = size_of(sys.stdout) or USUAL
        lines = list(render(size.columns))
        if len(lines) >= size.rows:
            lines = [*lines[: size.rows - 2], "…"]
        self._drawn.draw(lines)

    def wait(self, seconds: float) -> None:
        """Wait, and draw again if the terminal's size changes."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            time.sleep(min(left, SIZE_SECONDS))
            if self._drawn is not None and size_of(sys.stdout) != self._size:
                self.show(self._render)


@contextmanager
def refreshed() -> Iterator[Watch]:
    """Draw over the lines on a terminal, where the last ones stay at the end; print blocks
    elsewhere."""
    if not moves_cursor(sys.stdout):
        yield Watch(None)
        return
    with drawing(sys.stdout, keep=True) as drawn:
        yield Watch(drawn)
