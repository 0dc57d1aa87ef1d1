"""Ports: the lane and the source task of an interval, as this package sees them.

The packages that own these hand them in. Both take the interval as an argument or know it, so it
needs no type here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, NamedTuple, Protocol

from millwheel.core.model import Key
from millwheel.core.source_progress import SourceProgress
from millwheel.runtime.interval.work import IntervalWork
from millwheel.sources import Lag


class AtWork(NamedTuple):
    """The keys of an interval with user code that waits."""

    keys: int
    oldest: Key | None
    """The key that has waited longest; None: there is none, or its code runs for no one key."""
    seconds: float
    """How long it has been at work; 0: none is."""


class LanePort(Protocol):
    wake: asyncio.Event
    """Set when there may be something to run."""

    @property
    def is_recovering(self) -> bool:
        """During recovery, data read for its intervals may be void."""
        ...

    def touch(self, interval: Any, *, urgent: bool) -> None:
        """Store something of the interval with the next commit, or with a separate one after a
        pause."""

    def open_work(self, interval: Any, *, alone: bool = False) -> IntervalWork:
        """The interval's part of the open commit, which is then committed soon.

        Args:
            alone: give a part of a separate commit, not shared with other work.
        """
        ...

    def run_apart(self, interval: Any, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run user code in a separate task, and count its time for the interval."""

    def at_work(self, interval: Any) -> AtWork: ...

    async def settled(self) -> None:
        """Wait until a commit, or other work of the lane, has ended."""

    async def drain(self, interval: Any) -> None:
        """Wait until no work of the interval runs or waits for a commit."""

    def resume(self, interval: Any) -> None:
        """Take work of the interval again: its hand-over was cancelled."""

    def remove(self, interval: Any) -> None:
        """Forget a drained interval."""


class SourcePort(Protocol):
    """Reads a partition into an injector's interval, or looks for partitions."""

    rows: int
    """Read since this worker took the interval."""
    ended: bool
    """No row will ever follow."""

    async def start(self, *, reading: bool = True) -> None:
        """Open the source at the stored position; work unless `reading` is false."""

    async def stop(self) -> None:
        """Stop work; the source stays open, so that a final commit can store the position."""

    def close(self) -> None:
        """Close the source."""

    def resume(self) -> None:
        """Continue after a pause."""

    def acknowledged(self) -> list[float]:
        """Rows were acknowledged by their readers; gives the seconds since each reading of them."""

    def tend(self) -> None:
        """Check whether it may read further."""

    def read_up_to(self, offset: int) -> None:
        """Read up to a row, whatever the cap is."""

    def advance_idle(self, watermark: int) -> None:
        """While idle, promise the low watermark that all other partitions have stored."""

    def follow(self) -> None:
        """Update the promise: a partition of the source has stored a low watermark."""

    @property
    def paused(self) -> bool:
        """Whether an operator has paused it."""
        ...

    @property
    def idle(self) -> bool:
        """Whether the stream's watermark does not wait for it."""
        ...

    @property
    def has_nothing(self) -> bool:
        """Whether it has nothing to do, for now or for ever."""
        ...

    def position(self) -> SourceProgress:
        """The position that each commit of its interval stores."""
        ...

    def progress(self) -> float | None:
        """The share of the input that was read, 0 to 1; None: the input has no end."""
        ...

    def lag(self) -> Lag:
        """The amount of unread input."""
        ...

    def flow(self) -> Any:
        """Amount and age of un-ACKed rows, as a named tuple; None: it sends nothing."""
        ...
