"""The tables of one pipeline; the rules for changes are in the modules that make them. Nothing here
awaits, so all changes between two awaits are one transaction."""

from __future__ import annotations

import secrets
from bisect import bisect_right
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import repeat
from operator import attrgetter
from typing import Any, NamedTuple, TypeVar

from millwheel.core.model import SLOTS
from millwheel.errors import InvariantBroken
from millwheel.store.port.buckets import Bucket
from millwheel.store.port.commit import IntervalCommit
from millwheel.store.port.deploy import CopyState
from millwheel.store.port.placement import KEEP_EVENTS, IntervalRow, NodeKind
from millwheel.store.port.queries import StoredQueries
from millwheel.store.port.records import StoredProduction
from millwheel.store.port.requests import BlockingItem, DeadLetter
from millwheel.store.port.states import StateChange, StateRun, TimerChange
from millwheel.store.port.workers import WorkerEnd
from millwheel.store.rules.code import Generation

StateKey = tuple[int, int, bytes]
"""(slot, computation, key)"""

TimerKey = tuple[int, int, bytes, str, str]
"""(slot, computation, key, kind, tag)"""


@dataclass(slots=True)
class ComputationRow:
    id: int
    kind: NodeKind
    removed: bool = False


@dataclass(slots=True)
class LivenessLocks:
    """Liveness locks of the sessions of heartbeats; no part of a backup."""

    starts: int = 1
    held: set[str] = field(default_factory=set)

    def server_started(self) -> None:
        self.held.clear()
        self.starts += 1


@dataclass(slots=True)
class WorkerRow:
    """`number` gives the order of registration."""

    number: int
    lease_until: float
    load: dict[str, Any]
    lease_seconds: float
    heartbeat_at: int
    """Microseconds of the store's clock; never goes back."""
    address: str = ""
    generation: int = 1
    stopped: bool = False
    locked_on: int | None = None
    """Start of the server on which its heartbeats hold its liveness lock, as its number."""


@dataclass(slots=True)
class Leader:
    """The leadership: its holder, the number of changes of it, and the end of its lease."""

    worker: str | None = None
    term: int = 0
    lease_until: float = 0.0


@dataclass(slots=True)
class KeyInterval:
    id: int
    computation: int
    slot_from: int
    slot_to: int
    sequencer: int
    generation: int
    folded: int = 0
    owner: str | None = None
    wanted_by: str | None = None
    pinned: bool = False
    split_at: int | None = None
    merge_with: int | None = None

    def row(self) -> IntervalRow:
        return IntervalRow(self.id, self.computation, self.slot_from, self.slot_to, self.sequencer)

    def forget_cuts(self) -> None:
        """End wishes to split or merge, which were decided for the interval as it was before."""
        self.split_at = self.merge_with = None


@dataclass(slots=True)
class Log:
    """`source` names the partition of a replayable source."""

    interval_id: int
    source: str | None
    retired: bool = False


@dataclass(slots=True)
class CommitRow:
    link: IntervalCommit
    stamp: int


@dataclass(slots=True)
class BucketTables:
    """A bucket of seen ids has rows in `seen` and `numbers` only."""

    row: Bucket
    commits: dict[int, list[CommitRow]] = field(default_factory=dict)
    """Commits by interval, in order."""
    states: dict[int, list[StateChange]] = field(default_factory=dict)
    timers: dict[int, list[TimerChange]] = field(default_factory=dict)
    productions: dict[int, dict[int, StoredProduction]] = field(default_factory=dict)
    """Productions by log and number."""
    seen: set[tuple[int, int, bytes]] = field(default_factory=set)
    """Ids in no order, with slot and computation."""
    numbers: dict[tuple[int, int], set[int]] = field(default_factory=dict)
    """Seen numbers by computation and log."""


@dataclass(slots=True)
class InboxTables:
    interval_id: int
    requires_id: bool
    remember: timedelta
    waiting: dict[int, tuple[bytes, int]] = field(default_factory=dict)
    """Value and time of records without a number, by their place in the order of sending."""
    sent: int = 0
    """The last place in that order which was given to any record."""
    transactions: int = 0
    open: set[int] = field(default_factory=set)
    """Transactions that have sent, and are not committed."""
    taken: dict[tuple[int, int], tuple[bytes, int]] = field(default_factory=dict)
    """Value and time of records that an interval has taken, by interval and number."""
    ids: dict[str, tuple[bytes, int]] = field(default_factory=dict)


class ShownEvent(NamedTuple):
    """A row of the view `placement_events`, without its number and time."""

    computation: str
    interval_id: int
    slot_from: int
    slot_to: int
    what: str
    from_worker: str | None
    to_worker: str | None
    reason: str


class Tables:
    def __init__(self, pipeline: str) -> None:
        self.pipeline = pipeline
        self.incarnation = 1
        """See `MemoryStore.come_back_as`."""
        self.deployed_in: int | None = None
        """The incarnation of the server in which the pipeline was deployed first."""
        self.generations: list[Generation] = []
        self.computations: dict[str, ComputationRow] = {}
        """Includes removed ones."""
        self.streams: dict[str, int] = {}
        self.queries = StoredQueries(0, ())
        self.copied = CopyState()
        self.paused: set[str] = set()
        self.workers: dict[str, WorkerRow] = {}
        self.liveness = LivenessLocks()
        self.leader = Leader()
        self.intervals: dict[int, KeyInterval] = {}
        self.logs: dict[int, Log] = {}
        self.events: deque[ShownEvent] = deque(maxlen=KEEP_EVENTS)
        self.buckets: dict[int, BucketTables] = {}
        self.gc_watermark = 0
        self.peer_secret = secrets.token_bytes(32)
        self.state: dict[StateKey, dict[str, tuple[bytes, int]]] = {}
        """Folded state: value and version by key and entry."""
        self.timers: dict[TimerKey, tuple[int, int]] = {}
        """Folded timers: due and hold."""
        self.inboxes: dict[int, InboxTables] = {}
        """Inboxes by stream id."""
        self.dead_letters: list[DeadLetter] = []
        self.blocking: list[tuple[int, int, BlockingItem]] = []
        """Rows of `blocking_item`: computation, slot, and the item for the key's next owner."""
        self.worker_ends: list[WorkerEnd] = []
        self.requests: dict[int, Any] = {}
        self.statements: list[tuple[str, Sequence[Any]]] = []
        self._sequence = 0
        self._last_interval = 0
        self._last_bucket = 0

    def next_number(self) -> int:
        self._sequence += 1
        return self._sequence

    # -- computations and their intervals -------------------------------------------

    def names(self) -> dict[int, str]:
        return {node.id: name for name, node in self.computations.items()}

    def grain(self, computation: int) -> int:
        node = self.generations[-1].code.graph["nodes"].get(self.names()[computation], {})
        return SLOTS // int(node.get("broadcast_cells", SLOTS))

    def in_order(self) -> list[KeyInterval]:
        return sorted(self.intervals.values(), key=lambda row: (row.computation, row.slot_from))

    def is_current(self, interval_id: int, sequencer: int) -> bool:
        row = self.intervals.get(interval_id)
        return row is not None and row.sequencer == sequencer

    def take_blocking(self, interval: IntervalRow) -> list[BlockingItem]:
        """Take the records and timers that have blocked former owners of an interval."""
        found, others = [], []
        for row in self.blocking:
            computation, slot, item = row
            if (
                computation == interval.computation
                and interval.slot_from <= slot < interval.slot_to
            ):
                found.append(item)
            else:
                others.append(row)
        self.blocking = others
        return found

    def sourced(self) -> set[int]:
        return {log.interval_id for log in self.logs.values() if log.source is not None}

    def make_interval(
        self, computation: int, slot_from: int, slot_to: int, generation: int
    ) -> KeyInterval:
        """Make an interval; the caller writes the first commit of its chain."""
        self._last_interval += 1
        row = KeyInterval(
            self._last_interval, computation, slot_from, slot_to, self.next_number(), generation
        )
        self.intervals[row.id] = row
        return row

    def begin_chain(self, link: IntervalCommit, stamp: int) -> None:
        self._newest_bucket().commits[link.interval_id] = [CommitRow(link, stamp)]

    # -- buckets ------------------------------------------------------------------------

    def create_bucket(self, family: str, log: int, low: int, high: int) -> Bucket:
        self._last_bucket += 1
        bucket = Bucket(self._last_bucket, family, log, low, high)
        self.buckets[bucket.id] = BucketTables(bucket)
        return bucket

    def bucket(self, id_: int) -> BucketTables:
        found = self.buckets.get(id_)
        if found is None:
            raise InvariantBroken(f"a bucket that is still needed is gone: {id_}")
        return found

    def _newest_bucket(self) -> BucketTables:
        return max(
            (found for found in self.buckets.values() if found.row.family == "time"),
            key=lambda found: found.row.low,
        )

    def last_commit(self, interval_id: int) -> tuple[CommitRow, int]:
        return max(
            (
                (found.commits[interval_id][-1], id_)
                for id_, found in self.buckets.items()
                if interval_id in found.commits
            ),
            key=lambda found: found[0].link.n,
        )

    def tail(
        self, interval_id: int, after: int, through: int | None = None
    ) -> tuple[dict[tuple[StateKey, str], StateChange], dict[TimerKey, TimerChange]]:
        """The last change of each entry and timer in commits after `after`."""
        states: dict[tuple[StateKey, str], StateChange] = {}
        timers: dict[TimerKey, TimerChange] = {}
        for found in self.buckets.values():
            for state in _since(found.states.get(interval_id, []), after, through):
                states[(state.slot, state.computation, state.key), state.entry] = state
            for timer in _since(found.timers.get(interval_id, []), after, through):
                timers[timer.slot, timer.computation, timer.key, timer.kind, timer.tag] = timer
        return states, timers

    def productions(self, log: int) -> Iterator[StoredProduction]:
        for found in self.buckets.values():
            yield from found.productions.get(log, {}).values()


def changes_of(run: StateRun) -> Iterator[StateChange]:
    entries = repeat("") if run.entries is None else run.entries
    for slot, key, entry, value in zip(run.slots, run.keys, entries, run.values, strict=False):
        yield StateChange(
            run.interval_id, run.n, run.computation, slot, key, entry, value, run.version
        )


_Change = TypeVar("_Change", StateChange, TimerChange)


def _since(changes: list[_Change], after: int, through: int | None) -> list[_Change]:
    """Changes of commits in (after, through]; an interval's changes are sorted by commit."""
    number = attrgetter("n")
    first = bisect_right(changes, after, key=number)
    return changes[first : None if through is None else bisect_right(changes, through, key=number)]
