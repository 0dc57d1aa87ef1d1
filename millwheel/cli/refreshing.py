"""Lines that are shown again and again: drawn over on a terminal, printed one after the other
elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated

import typer
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from millwheel.cli.options import OptionGroup
from millwheel.errors import UsageError

Show = Callable[[Sequence[str]], None]


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


@contextmanager
def showing(text_of: Callable[[str], Text]) -> Iterator[Show]:
    """Yield a function that prints lines, or redraws them on a terminal.

    Args:
        text_of: a line as it is drawn on a terminal.
    """
    console = Console()
    if not console.is_terminal:
        yield _print_block
        return
    with Live(console=console, auto_refresh=False, vertical_overflow="ellipsis") as live:

        def show(shown: Sequence[str]) -> None:
            live.update(Group(*map(text_of, shown)), refresh=True)

        yield show


def _print_block(shown: Sequence[str]) -> None:
    for line in shown:
        typer.echo(line)
    typer.echo()
    sys.stdout.flush()
