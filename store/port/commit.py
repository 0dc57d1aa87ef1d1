"""One commit of a lane."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from millwheel.core.chunk import Chunks, Columns
from millwheel.core.model import Delivery
from millwheel.sinks import Table
from millwheel.store.port.requests import DeadLetter, SettledRequest
from millwheel.store.port.seen import SeenIds
from millwheel.store.port.states import StateRun, TimerChange

ANOTHER_CHAIN = (
    "the interval's chain of commits is not as this worker left it, although no other worker has "
    "claimed the interval: the store has lost commits"
)
"""Message of a commit that is refused although its sequencer is current."""


@dataclass(slots=True)
class IntervalCommit:
    """One interval's part: its link in the chain, its watermarks, floor and acknowledgements."""

    interval_id: int
    sequencer: int
    n: int
    previous_bucket: int
    input_watermark: int
    low_watermark: int
    floor: int
    acked: bytes
    position: bytes | None
    counters: bytes
    table_rows: dict[str, int] = field(default_factory=dict)
    """Rows that the interval has written up to this commit, by numbered table."""


@dataclass(slots=True)
class Commit:
    """All that one transaction of a lane writes."""

    stamp: int
    bucket: int
    intervals: list[IntervalCommit] = field(default_factory=list)
    seen: dict[int, SeenIds] = field(default_factory=dict)
    """Ids of records that have their effects now, by bucket."""
    states: list[StateRun] = field(default_factory=list)
    timers: list[TimerChange] | Columns[TimerChange] = field(default_factory=list)
    productions: list[Delivery[Any]] | Chunks = field(default_factory=list)
    stragglers: list[Delivery[Any]] = field(default_factory=list)
    """Weak productions that were sent and are not acknowledged yet (paper 6.1.3)."""
    dead_letters: list[DeadLetter] = field(default_factory=list)
    settled: list[SettledRequest] = field(default_factory=list)
    rows: list[tuple[Table[Any], tuple[Any, ...]]] = field(default_factory=list)
    statements: list[tuple[str, Sequence[Any]]] = field(default_factory=list)


class StoreLane(Protocol):
    """One ordered chain of commits."""

    def prepare(self, commit: Commit) -> None:
        """Encode a commit that will be made after the one on the wire, if that saves time."""
        ...

    async def commit(self, commit: Commit) -> None:
        """Make a commit durable, or raise; nothing was written then, except perhaps after
        `CommitUnknown`.

        Raises:
            Fenced: another worker has claimed one of the intervals.
            StatementError: a user's statement or row was refused.
            StoreUnavailable: the store is away or asks for another attempt.
            BucketGone: the commit notes ids in a dropped bucket.
            CommitUnknown: the connection broke while the commit was on the wire.
            StoreWentBack: the worker still owns the interval, but the commit is not the next of its
                chain.
        """
        ...

    async def close(self) -> None:
        """Close the connection and end its server process, so that no commit is on the wire.

        After `StoreUnavailable` the server process may live: close the lane again.
        """
        ...
