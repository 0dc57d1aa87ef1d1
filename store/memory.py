"""A store in memory, for tests and simulation only: nothing in it outlives the process.

It keeps the contract of the Postgres store, and the same suite holds both to it: the fence
by sequencer and by n - 1, append-only buckets, folds, the rules for dropping buckets, rows
of table sinks. One object serves any number of engines at once, as one database would.

Every call lets the event loop run before it does its work in one go, so interleavings are
as real as on a network; what Postgres does in two transactions (a claim) gives way in
between. Time comes from the clock alone. `MemoryStore.faults` breaks it at chosen points.
"""

from __future__ import annotations

import asyncio
import json
from bisect import bisect_right
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date, datetime
from decimal import Decimal
from operator import attrgetter
from typing import Any, NamedTuple, TypeVar
from uuid import UUID
from weakref import WeakKeyDictionary

import msgspec

from millwheel.clock import Clock, SystemClock
from millwheel.errors import (
    CommitUnknown,
    DeployRefused,
    Fenced,
    InvariantBroken,
    PlacementRefused,
    StatementError,
    StoreError,
    StoreUnavailable,
)
from millwheel.model import MIN_TIME, SLOTS
from millwheel.sinks import Column, Table
from millwheel.store.deployment import admission_of
from millwheel.store.generations import Admission, Code, Generation, plain, without
from millwheel.store.lineage import Line, merged, upper_part
from millwheel.store.placement import KEEP_EVENTS, refuse
from millwheel.store.port import (
    EARLY_CLOSE_MICROS,
    TIMER_KINDS,
    TIMERS_A_PAGE,
    Bucket,
    BucketView,
    Claim,
    Commit,
    DeadLetter,
    Deployment,
    Heartbeat,
    IntervalCommit,
    IntervalRow,
    Lapse,
    LogRow,
    MergeWish,
    NodeDeploy,
    NodeKind,
    OtherWorker,
    PlacedInterval,
    PlacedWorker,
    Placement,
    PlacementChange,
    SplitWish,
    StateChange,
    StoredProduction,
    StreamDeploy,
    TimerChange,
    TimerPlace,
    Unpin,
    Wish,
)

PAGE_ROWS = 2000
"""Productions read back between two looks at the event loop."""

FORGET_WORKERS_SECONDS = 86_400.0
"""A worker whose lease ended so long ago is forgotten when another registers."""


@dataclass(slots=True)
class Faults:
    """Where a test may break the store; each hook is optional, and may be changed at any time.

    A hook that raises fails the call with that error, one that never returns leaves it on
    the wire until its task is cancelled. A `CommitUnknown` also costs the lane its
    connection, as it does in Postgres.
    """

    before_call: Callable[[str], Awaitable[None]] | None = None
    """Awaited with the name of each method of the store, before it does anything."""

    before_commit: Callable[[Commit], Awaitable[None]] | None = None
    """Awaited with each commit before it is looked at: what it raises leaves no trace."""

    after_commit: Callable[[Commit], Awaitable[None]] | None = None
    """Awaited when the commit is durable and the lane has not heard of it yet."""

    refuse: Callable[[str, Sequence[Any]], str | None] | None = None
    """Asked for each statement (its text and parameters) and each row of a table sink (the
    table's name and the values); an answer refuses it with a `StatementError`."""


class ShownState(NamedTuple):
    """A row of the view `states`."""

    computation: str
    slot: int
    key: Any
    entry: str
    value: Any
    version: int


class ShownTimer(NamedTuple):
    """A row of the view `timers`, its times in microseconds."""

    computation: str
    slot: int
    key: Any
    kind: str
    tag: str
    due: int
    hold: int


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


@dataclass(slots=True)
class _Worker:
    number: int
    lease_until: float
    load: dict[str, Any]
    address: str = ""
    generation: int = 1
    stopped: bool = False


@dataclass(slots=True)
class _Log:
    interval_id: int
    source: str | None
    retired: bool = False


@dataclass(slots=True)
class _CommitRow:
    link: IntervalCommit
    stamp: int


@dataclass(slots=True)
class _Tables:
    """The tables of one bucket; one of seen ids only has nothing in the others."""

    row: Bucket
    commits: dict[int, list[_CommitRow]] = field(default_factory=dict)
    """Per interval, in order."""
    states: dict[int, list[StateChange]] = field(default_factory=dict)
    timers: dict[int, list[TimerChange]] = field(default_factory=dict)
    productions: dict[int, dict[int, StoredProduction]] = field(default_factory=dict)
    """Per log and seq."""
    seen: set[tuple[int, int, bytes]] = field(default_factory=set)


@dataclass(slots=True)
class _Node:
    """A computation as deployed."""

    id: int
    kind: NodeKind
    removed: bool = False


_StateKey = tuple[int, int, bytes]
_TimerKey = tuple[int, int, bytes, str, str]


class MemoryStore:
    """One pipeline's store in memory: for tests and simulation only.

    Args:
        name: the pipeline's name, for messages.
        clock: what leases run by.
    """

    def __init__(self, name: str = "memory", *, clock: Clock | None = None) -> None:
        self.faults = Faults()
        self.dead_letters: list[DeadLetter] = []
        self.statements: list[tuple[str, Sequence[Any]]] = []
        """What `ctx.execute` asked for, in the order of the commits; nothing is run."""
        self.dead_workers: set[str] = set()
        """Workers whose process a test declares dead."""
        self.snapshot_seconds = 0.0
        """The age of the oldest snapshot that somebody is to hold."""
        self._name = name
        self._clock = clock or SystemClock()
        self._paused: set[str] = set()
        self._history: list[Generation] = []
        self._computations: dict[str, _Node] = {}
        """By name, also those that were removed."""
        self._streams: dict[str, int] = {}
        self._written: WeakKeyDictionary[MemoryStore, dict[str, int]] = WeakKeyDictionary()
        """The versions of streams that each object's code writes."""
        self._intervals: dict[int, IntervalRow] = {}
        self._last_interval = 0
        self._owners: dict[int, str] = {}
        self._wanted: dict[int, str] = {}
        self._generations: dict[int, int] = {}
        self._pinned: set[int] = set()
        self._split_at: dict[int, int] = {}
        self._merge_with: dict[int, int] = {}
        self._events: deque[ShownEvent] = deque(maxlen=KEEP_EVENTS)
        self._leader: tuple[MemoryStore, float] | None = None
        """Which object leads, and until when it may be silent."""
        self._logs: dict[int, _Log] = {}
        self._workers: dict[str, _Worker] = {}
        self._buckets: dict[int, _Tables] = {}
        self._folded: dict[int, int] = {}
        self._state: dict[_StateKey, dict[str, tuple[bytes, int]]] = {}
        self._timers: dict[_TimerKey, tuple[int, int]] = {}
        self._sinks: dict[str, Table[Any]] = {}
        self._appended: dict[str, list[tuple[Any, ...]]] = {}
        self._upserted: dict[str, dict[tuple[Any, ...], tuple[Any, ...]]] = {}
        self._gc_watermark = 0
        self._sequence = 0
        self._last_bucket = 0

    def another(self) -> MemoryStore:
        """The same store, as another process sees it: its leadership and code are its own."""
        twin = object.__new__(MemoryStore)
        twin.__dict__ = self.__dict__
        return twin

    async def close(self) -> None:
        """Let the leadership go, and nothing else: other engines may still be using the store."""
        if self._leader is not None and self._leader[0] is self:
            self._leader = None

    async def _called(self, name: str) -> None:
        """Let others run, as a round trip would, and fail if a test wants it."""
        await asyncio.sleep(0)
        if self.faults.before_call is not None:
            await self.faults.before_call(name)

    def _next(self) -> int:
        self._sequence += 1
        return self._sequence

    # -- deploy -------------------------------------------------------------------

    async def deploy(
        self,
        graph: dict[str, Any],
        nodes: list[NodeDeploy],
        streams: list[StreamDeploy],
        tables: list[Table[Any]],
        *,
        stamp: int,
        bucket_high: int,
        shared: bool = False,
    ) -> Deployment:
        await self._called("deploy")
        admission, code = admission_of(
            self._name,
            self._history,
            graph,
            nodes,
            streams,
            {name for name, node in self._computations.items() if node.removed},
            min(self._generations.values(), default=1) if shared else None,
        )
        if not admission.is_older:
            self._check_tables(tables)
        if not self._history:
            self._create_bucket("time", 0, 0, bucket_high)
        if admission.begins:
            self._begin(admission, code, nodes, streams, stamp)
        for table in tables:
            self._sinks.setdefault(table.name, table)
        self._written[self] = {stream.name: stream.version for stream in streams}
        return Deployment(
            {name: node.id for name, node in self._computations.items() if not node.removed},
            dict(self._streams),
            [replace(row) for row in self._in_order()],
            admission.generation,
        )

    def _begin(
        self,
        admission: Admission,
        code: Code,
        nodes: list[NodeDeploy],
        streams: list[StreamDeploy],
        stamp: int,
    ) -> None:
        """Store what the first code of a generation says."""
        number = admission.generation
        self._history.append(Generation(number, plain(code)))
        outgrown = {self._computations[name].id for name in admission.outgrown}
        for row in self._intervals.values():
            if row.computation in outgrown:
                self._generations[row.id] = number
        for stream in streams:
            self._streams.setdefault(stream.name, len(self._streams) + 1)
        for node in nodes:
            if node.name not in self._computations:
                self._add(node, number, stamp)

    def _add(self, node: NodeDeploy, generation: int, stamp: int) -> None:
        id_ = len(self._computations) + 1
        self._computations[node.name] = _Node(id_, node.kind)
        newest = self._newest_bucket()
        for number, (low, high) in enumerate(node.slots):
            row = self._make_interval(id_, low, high, generation)
            if node.sources:
                self._logs[self._next()] = _Log(row.id, node.sources[number])
            link = IntervalCommit(
                row.id, row.sequencer, 0, 0, MIN_TIME, MIN_TIME, stamp, b"{}", None, b"{}"
            )
            newest.commits[row.id] = [_CommitRow(link, stamp)]

    def remove(self, names: list[str]) -> None:
        """Take nodes away, as `millwheel.store.administration.remove_computations` does.

        Raises:
            UsageError: there is no such node, or one that stays needs it.
        """
        newest = self._history[-1]
        code = without(self._name, newest.code, names)
        self._history.append(Generation(newest.number + 1, code))
        for name in names:
            self._computations[name].removed = True
        gone = {self._computations[name].id for name in names}
        for row in [row for row in self._intervals.values() if row.computation in gone]:
            self._logs = {id_: g for id_, g in self._logs.items() if g.interval_id != row.id}
            self._forget(row.id)
        self._state = {key: found for key, found in self._state.items() if key[1] not in gone}
        self._timers = {key: found for key, found in self._timers.items() if key[1] not in gone}

    def _make_interval(self, computation: int, low: int, high: int, generation: int) -> IntervalRow:
        self._last_interval += 1
        row = IntervalRow(self._last_interval, computation, low, high, self._next())
        self._intervals[row.id] = row
        self._folded[row.id] = 0
        self._generations[row.id] = generation
        return row

    def _newest_bucket(self) -> _Tables:
        """The time bucket that goes last."""
        return max(
            (tables for tables in self._buckets.values() if tables.row.family == "time"),
            key=lambda tables: tables.row.low,
        )

    def _check_tables(self, tables: list[Table[Any]]) -> None:
        for table in tables:
            existing = self._sinks.get(table.name)
            if existing is None:
                continue
            found = {column.name: column.type for column in existing.columns}
            wrong = [
                f"{c.name}: the table has {found.get(c.name, 'no such column')}, the row type "
                f"gives {c.type}"
                for c in table.columns
                if found.get(c.name) != c.type
            ]
            if wrong or sorted(existing.key) != sorted(table.key):
                raise DeployRefused(
                    f"table {self._name}.{table.name} does not fit its row type "
                    f"{table.row_type.__name__}:\n  " + "\n  ".join(wrong)
                )

    def _names(self) -> dict[int, str]:
        """Computations by id."""
        return {node.id: name for name, node in self._computations.items()}

    def _in_order(self) -> list[IntervalRow]:
        return sorted(self._intervals.values(), key=lambda row: (row.computation, row.slot_from))

    # -- workers ------------------------------------------------------------------

    async def register_worker(
        self,
        worker: str,
        lease_seconds: float,
        *,
        address: str = "",
        generation: int = 1,
    ) -> None:
        await self._called("register_worker")
        now = self._clock.monotonic()
        self._workers = {
            id_: other
            for id_, other in self._workers.items()
            if other.lease_until >= now - FORGET_WORKERS_SECONDS
        }
        self._workers[worker] = _Worker(self._next(), now + lease_seconds, {}, address, generation)

    async def heartbeat(self, worker: str, lease_seconds: float, load: dict[str, Any]) -> Heartbeat:
        await self._called("heartbeat")
        found = self._workers.get(worker)
        if found is None or found.stopped:
            raise Fenced(
                "somebody ended this worker, or it was silent for so long that it was forgotten; "
                "it must let go of everything"
            )
        found.lease_until = self._clock.monotonic() + lease_seconds
        found.load = _plain(load)
        return Heartbeat(self._clock.now())

    async def stop_worker(self, worker: str) -> None:
        await self._called("stop_worker")
        found = self._workers.get(worker)
        if found is not None:
            found.stopped = True
            found.lease_until = self._clock.monotonic()

    async def other_workers(self, worker: str) -> list[OtherWorker]:
        await self._called("other_workers")
        now = self._clock.monotonic()
        return [
            OtherWorker(id_, "memory", other.number, "", [], max(0.0, other.lease_until - now))
            for id_, other in self._workers.items()
            if id_ != worker and not other.stopped
        ]

    def is_dead(self, other: OtherWorker) -> bool:
        return other.id in self.dead_workers

    async def end_worker(self, other: OtherWorker) -> None:
        await self.stop_worker(other.id)

    # -- claims -------------------------------------------------------------------

    async def claim(
        self,
        worker: str,
        interval_ids: list[int],
        *,
        again: bool = False,
        timers: int = TIMERS_A_PAGE,
        sequencers: Mapping[int, int] | None = None,
    ) -> list[Claim]:
        assert not (again and sequencers is not None), "one's own need no comparison"
        await self._called("claim")
        mine = self._workers[worker].generation if worker in self._workers else 1
        if sequencers is not None:
            interval_ids = [
                id_
                for id_ in interval_ids
                if self._is(id_, sequencers[id_])
                and self._generations[id_] <= mine
                and (self._owners.get(id_) in (None, worker) or self._is_lease_over(id_))
            ]
            for id_ in interval_ids:
                before = self._owners.get(id_)
                reason = "the lease of its owner is over"
                if before is None or before == worker:
                    reason = "it had no owner" if before is None else "it is its own"
                self._note(id_, "claim", before, worker, reason)
        elif any(
            self._owners.get(id_) != worker
            if again
            else self._generations.get(id_, mine + 1) > mine
            for id_ in interval_ids
        ):
            raise Fenced(
                "another owner has claimed intervals of this worker meanwhile, maybe one of newer "
                "code; it must let go of them"
            )
        sourced = self._sourced()
        new_logs: dict[int, int] = {}
        raised: dict[int, int] = {}
        for id_ in interval_ids:
            raised[id_] = self._intervals[id_].sequencer = self._next()
            self._owners[id_] = worker
            if not again:
                self._generations[id_] = mine
            self._forget_cuts(id_)
        for id_ in interval_ids:
            if id_ not in sourced:
                new_logs[id_] = self._next()
                self._logs[new_logs[id_]] = _Log(id_, None)
        await asyncio.sleep(0)  # the sequencers are raised; only now is anything read (I4)
        return [
            self._read_claim(id_, raised[id_], new_logs.get(id_, 0), timers) for id_ in interval_ids
        ]

    def _is(self, interval_id: int, sequencer: int) -> bool:
        """Whether the interval is there, with this sequencer."""
        row = self._intervals.get(interval_id)
        return row is not None and row.sequencer == sequencer

    def _is_lease_over(self, interval_id: int) -> bool:
        """Whether it has an owner who stopped, is unknown or let the lease run out."""
        owner = self._owners.get(interval_id)
        return owner is not None and not self._is_alive(owner)

    def _is_alive(self, worker: str | None) -> bool:
        """Whether a worker has not stopped, and its lease lasts."""
        found = None if worker is None else self._workers.get(worker)
        return (
            found is not None and not found.stopped and found.lease_until > self._clock.monotonic()
        )

    def _note(
        self, interval_id: int, what: str, before: str | None, after: str | None, reason: str
    ) -> None:
        row = self._intervals[interval_id]
        self._events.append(
            ShownEvent(
                self._names()[row.computation], row.id, row.slot_from, row.slot_to, what, before, after,
                reason,
            )
        )  # fmt: skip

    async def release(self, worker: str, sequencers: Mapping[int, int]) -> list[int]:
        await self._called("release")
        released = [
            id_
            for id_, sequencer in sorted(sequencers.items())
            if self._is(id_, sequencer) and self._owners.get(id_) == worker
        ]
        for id_ in released:
            del self._owners[id_]
            self._note(id_, "release", worker, self._wanted.get(id_), "drained and folded")
        return released

    async def read_placement(self) -> Placement:
        await self._called("read_placement")
        now = self._clock.monotonic()
        nodes = {node.id: (name, node.kind) for name, node in self._computations.items()}
        return Placement(
            self._clock.now(),
            [
                PlacedInterval(
                    row.id, row.computation, row.slot_from, row.slot_to, row.sequencer,
                    self._owners.get(row.id), self._wanted.get(row.id), self._is_lease_over(row.id),
                    self._generations[row.id], *nodes[row.computation],
                    self._grain(row.computation), row.id in self._pinned, self._split_at.get(row.id),
                    self._merge_with.get(row.id),
                )
                for row in self._in_order()
            ],
            [
                PlacedWorker(
                    id_, w.address, "memory", w.number, "", [],
                    max(0.0, w.lease_until - now), _plain(w.load), w.generation,
                )
                for id_, w in self._workers.items()
                if not w.stopped
            ],
            frozenset(node.id for node in self._computations.values() if node.removed),
            frozenset(self._computations[name].id for name in self._paused),
        )  # fmt: skip

    def pause(self, *injectors: str) -> None:
        """Let these rest, and no others, as an operator does."""
        self._paused = set(injectors)

    async def wish(self, changes: Sequence[PlacementChange]) -> list[int]:
        await self._called("wish")
        last = {change.interval_id: change for change in changes}
        return [
            id_
            for id_, change in sorted(last.items())
            if self._is(id_, change.sequencer) and self._wish(change)
        ]

    def _wish(self, change: PlacementChange) -> bool:
        """Whether what is said of an interval changes anything; then it is so now."""
        id_, reason = change.interval_id, change.reason
        match change:
            case Wish(worker=worker, pinned=pinned):
                held = id_ in self._pinned and not pinned and self._is_alive(self._wanted.get(id_))
                if held or (self._wanted.get(id_), id_ in self._pinned) == (worker, pinned):
                    return False
                self._want(id_, worker, pinned=pinned)
                what = "pin" if pinned else "wish"
            case Unpin():
                if id_ not in self._pinned:
                    return False
                self._pinned.remove(id_)
                what = "unpin"
            case SplitWish(at=at):
                row = self._intervals[id_]
                if self._split_at.get(id_) == at or not row.slot_from < at < row.slot_to:
                    return False
                self._forget_cuts(id_)
                self._split_at[id_] = at
                what, reason = "wish_split", f"at slot {at}" + (f": {reason}" if reason else "")
            case MergeWish(upper_id=upper_id):
                if self._merge_with.get(id_) == upper_id or not self._meet(id_, upper_id):
                    return False
                self._forget_cuts(id_)
                self._merge_with[id_] = upper_id
                what = "wish_merge"
                reason = f"with interval {upper_id}" + (f": {reason}" if reason else "")
            case Lapse():
                if id_ not in self._split_at and id_ not in self._merge_with:
                    return False
                self._forget_cuts(id_)
                what = "lapse"
        self._note(id_, what, self._owners.get(id_), self._wanted.get(id_), reason)
        return True

    def _meet(self, lower_id: int, upper_id: int) -> bool:
        """Whether two intervals are the lower and the upper neighbour, and no partitions."""
        lower, upper = self._intervals[lower_id], self._intervals.get(upper_id)
        return (
            upper is not None
            and (lower.computation, lower.slot_to) == (upper.computation, upper.slot_from)
            and lower_id not in self._sourced()
        )

    def _sourced(self) -> set[int]:
        """The intervals that are partitions of injectors."""
        return {log.interval_id for log in self._logs.values() if log.source is not None}

    def _want(self, interval_id: int, worker: str | None, *, pinned: bool) -> None:
        self._wanted.pop(interval_id, None)
        if worker is not None:
            self._wanted[interval_id] = worker
        self._pinned.discard(interval_id)
        if pinned:
            self._pinned.add(interval_id)

    def _forget_cuts(self, interval_id: int) -> None:
        """Wishes to cut it were decided from how it was."""
        self._split_at.pop(interval_id, None)
        self._merge_with.pop(interval_id, None)

    async def try_lead(self, seconds: float) -> bool:
        await self._called("try_lead")
        now = self._clock.monotonic()
        if self._leader is not None and self._leader[1] <= now:
            lost, self._leader = self._leader[0], None
            if lost is self:  # the session was ended: that is told once
                return False
        if self._leader is not None and self._leader[0] is not self:
            return False
        self._leader = self, now + seconds
        return True

    async def split(self, interval_id: int, sequencer: int, at: int, *, reason: str = "") -> int:
        await self._called("split")
        (parent,) = self._lines({interval_id: sequencer})
        upper = upper_part(parent, at)
        row = self._intervals[interval_id]
        row.sequencer = self._next()
        row.slot_to = at
        self._forget_cuts(interval_id)
        made = self._begin_chain(upper, interval_id, self._generations[interval_id])
        why = f"cut off interval {interval_id}" + (f": {reason}" if reason else "")
        self._note(made, "split", None, None, why)
        return made

    async def merge(
        self, lower_id: int, upper_id: int, sequencers: Mapping[int, int], *, reason: str = ""
    ) -> int:
        if lower_id == upper_id:
            raise PlacementRefused(f"interval {lower_id} cannot be merged with itself")
        await self._called("merge")
        parts = lower_id, upper_id
        made = self._begin_chain(
            merged(*self._lines({id_: sequencers[id_] for id_ in parts})),
            lower_id,
            max(self._generations[id_] for id_ in parts),
        )
        for log in self._logs.values():
            if log.interval_id in parts:
                log.interval_id = made
        for id_ in parts:
            self._forget(id_)
        why = f"was intervals {lower_id} and {upper_id}" + (f": {reason}" if reason else "")
        self._note(made, "merge", None, None, why)
        return made

    def _lines(self, sequencers: dict[int, int]) -> list[Line]:
        """Free intervals that are to be split or merged, with their last commits."""
        found = {
            id_: (self._intervals[id_].sequencer, self._owners.get(id_))
            for id_ in sequencers
            if id_ in self._intervals
        }
        refuse(sequencers, found)
        sourced = self._sourced()
        lines = []
        for id_ in sequencers:
            row, (last, _) = self._intervals[id_], self._last_commit(id_)
            link = last.link
            lines.append(
                Line(
                    id=id_,
                    computation=row.computation,
                    slot_from=row.slot_from,
                    slot_to=row.slot_to,
                    is_source=id_ in sourced,
                    n=link.n,
                    folded=self._folded[id_],
                    stamp=last.stamp,
                    input_watermark=link.input_watermark,
                    low_watermark=link.low_watermark,
                    floor=link.floor,
                    percentiles=link.percentiles,
                    acked=msgspec.json.decode(link.acked),
                    counters=msgspec.json.decode(link.counters),
                    grain=self._grain(row.computation),
                )
            )
        return lines

    def _forget(self, interval_id: int) -> None:
        del self._intervals[interval_id], self._folded[interval_id], self._generations[interval_id]
        self._want(interval_id, None, pinned=False)
        self._forget_cuts(interval_id)
        self._owners.pop(interval_id, None)

    def _grain(self, computation: int) -> int:
        """Slots that must stay together in one interval of a computation."""
        (name,) = (name for name, known in self._computations.items() if known.id == computation)
        node = self._history[-1].code.graph["nodes"].get(name, {})
        return SLOTS // int(node.get("broadcast_cells", SLOTS))

    def _begin_chain(self, line: Line, parent: int, generation: int) -> int:
        """Make an interval and the commit that its chain begins with; gives its id.

        Who should own it is as for `parent`.
        """
        row = self._make_interval(line.computation, line.slot_from, line.slot_to, generation)
        self._want(row.id, self._wanted.get(parent), pinned=parent in self._pinned)
        link = IntervalCommit(
            row.id, row.sequencer, 0, 0, line.input_watermark, line.low_watermark, line.floor,
            msgspec.json.encode(line.acked), None, msgspec.json.encode(line.counters),
            dict(line.percentiles),
        )  # fmt: skip
        self._newest_bucket().commits[row.id] = [_CommitRow(link, line.stamp)]
        return row.id

    def _read_claim(self, interval_id: int, sequencer: int, new_log: int, limit: int) -> Claim:
        # What this claim raised it to: by now another one may have raised it again, and
        # whoever reported that one's sequencer as his own would pass its fence.
        if interval_id not in self._intervals:
            raise Fenced("intervals were claimed and merged by others as soon as they were claimed")
        interval = replace(self._intervals[interval_id], sequencer=sequencer)
        last, bucket = self._last_commit(interval_id)
        states, _ = self._tail(interval_id, self._folded[interval_id])
        pages = {kind: self._page(interval_id, kind, None, limit) for kind in TIMER_KINDS}
        link = last.link
        return Claim(
            interval=interval,
            n=link.n,
            bucket=bucket,
            stamp=last.stamp,
            input_watermark=link.input_watermark,
            low_watermark=link.low_watermark,
            percentiles=dict(link.percentiles),
            acked={
                int(log): (first, [(a, b) for a, b in runs])
                for log, (first, runs) in msgspec.json.decode(link.acked).items()
            },
            position=None if link.position is None else msgspec.json.decode(link.position),
            counters=msgspec.json.decode(link.counters),
            folded=self._folded[interval_id],
            logs=[
                LogRow(id_, log.source)
                for id_, log in sorted(self._logs.items())
                if log.interval_id == interval_id and not log.retired and id_ != new_log
            ],
            new_log=new_log,
            states=[
                change._replace(value=None if change.value is None else jsonb_text(change.value))
                for change in states.values()
            ],
            timers=[timer for page in pages.values() for timer in page],
            more_timers=frozenset(kind for kind, page in pages.items() if len(page) == limit),
        )

    async def read_timers(
        self, interval_id: int, kind: str, after: TimerPlace | None, limit: int
    ) -> list[TimerChange]:
        await self._called("read_timers")
        if interval_id not in self._intervals:
            return []
        return self._page(interval_id, kind, after, limit)

    def _page(
        self, interval_id: int, kind: str, after: TimerPlace | None, limit: int
    ) -> list[TimerChange]:
        interval = self._intervals[interval_id]
        last, _ = self._last_commit(interval_id)
        _, changes = self._tail(interval_id, self._folded[interval_id])
        pending = {
            key: TimerChange(interval_id, last.link.n, key[1], key[0], *key[2:], *timer)
            for key, timer in self._timers.items()
            if key[1] == interval.computation and interval.slot_from <= key[0] < interval.slot_to
        }
        for name, change in changes.items():
            pending.pop(name, None)
            if change.due is not None:
                pending[name] = change._replace(n=last.link.n)
        placed = sorted(
            ((t.due or 0, t.slot, t.key, t.tag), t) for t in pending.values() if t.kind == kind
        )
        return [t for place, t in placed if after is None or place > after][:limit]

    def _last_commit(self, interval_id: int) -> tuple[_CommitRow, int]:
        """An interval's last commit, and the bucket it stands in."""
        return max(
            (
                (tables.commits[interval_id][-1], id_)
                for id_, tables in self._buckets.items()
                if interval_id in tables.commits
            ),
            key=lambda found: found[0].link.n,
        )

    def _tail(
        self, interval_id: int, after: int, through: int | None = None
    ) -> tuple[dict[tuple[_StateKey, str], StateChange], dict[_TimerKey, TimerChange]]:
        """The last change of each entry and timer in commits after `after`."""
        states: dict[tuple[_StateKey, str], StateChange] = {}
        timers: dict[_TimerKey, TimerChange] = {}

        for tables in self._buckets.values():
            for state in _since(tables.states.get(interval_id, []), after, through):
                states[(state.slot, state.computation, state.key), state.entry] = state
            for timer in _since(tables.timers.get(interval_id, []), after, through):
                timers[timer.slot, timer.computation, timer.key, timer.kind, timer.tag] = timer
        return states, timers

    # -- commits ------------------------------------------------------------------

    async def open_lane(self) -> MemoryLane:
        await self._called("open_lane")
        return MemoryLane(self)

    def apply(self, commit: Commit) -> None:
        """What the server does with a commit: all of it in one go, or an error and nothing.

        Lanes call it; a test may, to let a commit take effect that its lane gave up on.
        """
        self._check_fence(commit)
        tables = self._tables(commit.bucket)
        self._check_appends(commit, tables)
        self._check_users(commit)
        for link in commit.intervals:
            row = _CommitRow(replace(link), commit.stamp)
            tables.commits.setdefault(link.interval_id, []).append(row)
        for bucket, seen in commit.seen.items():
            self._buckets[bucket].seen.update(seen)
        for state in map(StateChange._make, commit.states):
            tables.states.setdefault(state.interval_id, []).append(state)
        for timer in commit.timers:
            tables.timers.setdefault(timer.interval_id, []).append(timer)
        for d in commit.productions:
            tables.productions.setdefault(d.log, {})[d.seq] = StoredProduction(
                d.seq, d.stream, d.receiver, d.slot, d.key_text, d.encoded,
                self._written[self][d.stream], d.micros, d.hold, d.stamp,
            )  # fmt: skip
        for letter in commit.dead_letters:
            if letter.key is not None or all(
                letter.record_id != kept.record_id for kept in self.dead_letters if kept.key is None
            ):
                self.dead_letters.append(letter)
        for table, values in commit.rows:
            if table.key:
                key = tuple(values[position] for position in table.key_positions)
                self._upserted.setdefault(table.name, {})[key] = values
            else:
                self._appended.setdefault(table.name, []).append(values)
        self.statements += commit.statements

    def _check_fence(self, commit: Commit) -> None:
        for link in commit.intervals:
            previous = self._tables(link.previous_bucket).commits.get(link.interval_id)
            here = self._tables(commit.bucket).commits.get(link.interval_id)
            if (
                not self._is(link.interval_id, link.sequencer)
                or previous is None
                or previous[-1].link.n != link.n - 1
                or (here is not None and here[-1].link.n >= link.n)
            ):
                raise Fenced(
                    "the commit was refused: another owner has claimed the interval, or the "
                    "commit before this one is missing"
                )

    def _check_appends(self, commit: Commit, tables: _Tables) -> None:
        for bucket, seen in commit.seen.items():
            known = self._tables(bucket).seen
            if len({*seen}) < len(seen) or not known.isdisjoint(seen):
                raise InvariantBroken("a record that was committed before came through again")
        written: set[tuple[int, int]] = set()
        for production in commit.productions:
            name = production.log, production.seq
            if name in written or production.seq in tables.productions.get(production.log, ()):
                raise InvariantBroken(f"a production was written before: log and number {name}")
            written.add(name)

    def _check_users(self, commit: Commit) -> None:
        """Rows and statements of the user's, which are refused at his expense."""
        refuse = self.faults.refuse or (lambda what, values: None)
        for table, values in commit.rows:
            if table.name not in self._sinks:
                raise StatementError(f"there is no table {table.name!r}")
            wrong = [_refusal(c, v) for c, v in zip(table.columns, values, strict=True)]
            if answer := refuse(table.name, values) or next(filter(None, wrong), None):
                raise StatementError(f"rows for table {table.name!r} were refused: {answer}")
        for statement, params in commit.statements:
            if answer := refuse(statement, params):
                raise StatementError(f"the statement {statement!r:.200} was refused: {answer}")

    def _tables(self, bucket: int) -> _Tables:
        tables = self._buckets.get(bucket)
        if tables is None:
            raise InvariantBroken(f"a bucket that is still needed is gone: {bucket}")
        return tables

    # -- productions and seen ids ---------------------------------------------------

    async def read_productions(self, log: int, first: int) -> AsyncIterator[StoredProduction]:
        while True:
            await self._called("read_productions")
            found = sorted(
                (row for row in self._productions(log) if row.seq >= first),
                key=lambda row: row.seq,
            )[:PAGE_ROWS]
            for row in found:
                yield replace(row)
            if len(found) < PAGE_ROWS:
                return
            first = found[-1].seq + 1

    def _productions(self, log: int) -> Iterator[StoredProduction]:
        for tables in self._buckets.values():
            yield from tables.productions.get(log, {}).values()

    async def retire_logs(self, logs: list[int]) -> None:
        await self._called("retire_logs")
        for log in logs:
            if log in self._logs:
                self._logs[log].retired = True

    async def look_up_seen(
        self, bucket: int, computation: int, ids: list[tuple[int, bytes]]
    ) -> set[bytes]:
        await self._called("look_up_seen")
        known = self._read_seen(bucket)
        return {id_ for slot, id_ in ids if (slot, computation, id_) in known}

    async def scan_seen(
        self, bucket: int, computation: int, after: tuple[int, bytes], slot_to: int, limit: int
    ) -> list[tuple[int, bytes]]:
        await self._called("scan_seen")
        return sorted(
            (slot, id_)
            for slot, of, id_ in self._read_seen(bucket)
            if of == computation and (slot, id_) > after and slot < slot_to
        )[:limit]

    def _read_seen(self, bucket: int) -> set[tuple[int, int, bytes]]:
        if bucket not in self._buckets:
            raise StoreError(f"there is no bucket {bucket}")
        return self._buckets[bucket].seen

    # -- state ----------------------------------------------------------------------

    async def load_keys(
        self, computation: int, keys: list[tuple[int, bytes]], limit: int
    ) -> list[list[tuple[str, bytes, int]]]:
        await self._called("load_keys")
        return [
            self._entries((slot, computation, key), "", "", limit, also_first=True)
            for slot, key in keys
        ]

    async def load_entry(
        self, computation: int, slot: int, key: bytes, entry: str
    ) -> tuple[bytes, int] | None:
        await self._called("load_entry")
        found = self._state.get((slot, computation, key), {}).get(entry)
        return None if found is None else (jsonb_text(found[0]), found[1])

    async def scan_entries(
        self, computation: int, slot: int, key: bytes, after: str, before: str, limit: int
    ) -> list[tuple[str, bytes, int]]:
        await self._called("scan_entries")
        return self._entries((slot, computation, key), after, before, limit)

    def _entries(
        self, key: _StateKey, after: str, before: str, limit: int, *, also_first: bool = False
    ) -> list[tuple[str, bytes, int]]:
        """Folded entries of a key within (after, before), in order; `also_first`: all of them."""
        found = self._state.get(key, {})
        names = sorted(name for name in found if also_first or after < name < before)
        return [(name, jsonb_text(found[name][0]), found[name][1]) for name in names[:limit]]

    # -- folds ------------------------------------------------------------------------

    async def fold(self, interval_id: int, sequencer: int, after: int, through: int) -> bool:
        await self._called("fold")
        if (
            not self._is(interval_id, sequencer)
            or not after <= self._folded[interval_id] <= through
        ):
            return False
        states, timers = self._tail(interval_id, after, through)
        for (key, entry), change in states.items():
            if change.value is not None:
                self._state.setdefault(key, {})[entry] = (change.value, change.version)
            elif (entries := self._state.get(key)) is not None:
                entries.pop(entry, None)
                if not entries:
                    del self._state[key]
        for name, timer in timers.items():
            if timer.due is None:
                self._timers.pop(name, None)
            else:
                assert timer.hold is not None
                self._timers[name] = (timer.due, timer.hold)
        self._folded[interval_id] = through
        return True

    async def now(self) -> int:
        await self._called("now")
        return self._clock.now()

    async def oldest_snapshot_seconds(self) -> float:
        await self._called("oldest_snapshot_seconds")
        return self.snapshot_seconds

    # -- buckets ----------------------------------------------------------------------

    async def live_buckets(self) -> list[Bucket]:
        await self._called("live_buckets")
        return self._live_buckets()

    def _live_buckets(self) -> list[Bucket]:
        rows = [tables.row for tables in self._buckets.values()]
        return sorted(rows, key=lambda row: (row.family, row.log, row.low))

    async def view_buckets(self) -> BucketView:
        await self._called("view_buckets")
        return BucketView(self._clock.now(), self._live_buckets())

    def _create_bucket(self, family: str, log: int, low: int, high: int) -> Bucket:
        self._last_bucket += 1
        bucket = Bucket(self._last_bucket, family, log, low, high)
        self._buckets[bucket.id] = _Tables(bucket)
        return bucket

    async def open_bucket(self, family: str, log: int, low: int, high: int) -> Bucket:
        await self._called("open_bucket")
        found = [b for b in self._live_buckets() if (b.family, b.log) == (family, log)]
        for bucket in found:
            if bucket.high > low and (family != "source" or bucket.low <= low):
                return bucket
        begin = found[-1].high if found and family != "source" else low
        return self._create_bucket(family, log, begin, high)

    async def close_bucket(self, bucket: int, high: int) -> Bucket | None:
        await self._called("close_bucket")
        tables = self._buckets.get(bucket)
        if tables is None:
            return None
        row = tables.row
        high = max(high, self._clock.now() + EARLY_CLOSE_MICROS)
        newest = max(
            b.low for b in self._live_buckets() if (b.family, b.log) == (row.family, row.log)
        )
        if row.low < high < row.high and row.low == newest:
            tables.row = replace(row, high=high)
        return tables.row

    async def advance_gc_watermark(self) -> int:
        await self._called("advance_gc_watermark")
        if self._intervals:
            floor = min(self._last_commit(id_)[0].link.floor for id_ in self._intervals)
            self._gc_watermark = max(self._gc_watermark, floor)
        return self._gc_watermark

    async def drop_bucket(self, bucket: Bucket) -> bool:
        await self._called("drop_bucket")
        if bucket.id not in self._buckets:
            return True
        if not self._is_droppable(bucket):
            return False
        del self._buckets[bucket.id]
        return True

    def _is_droppable(self, bucket: Bucket) -> bool:
        if bucket.family == "named":
            return True
        if bucket.family == "source":
            if bucket.log not in self._logs:
                return True
            last, _ = self._last_commit(self._logs[bucket.log].interval_id)
            acked = msgspec.json.decode(last.link.acked).get(str(bucket.log))
            return acked is not None and acked[0] >= bucket.high
        if self._gc_watermark < bucket.high:
            return False
        return all(
            commits[-1].link.n <= self._folded[id_]
            and self._last_commit(id_)[0].link.n > commits[-1].link.n
            for id_, commits in self._buckets[bucket.id].commits.items()
            if id_ in self._intervals
        )

    # -- what is committed, as the views of the same names show it ----------------------

    def states(self) -> list[ShownState]:
        """Every entry of state: current tables and unfolded tail together, decoded."""
        merged = {
            (key, entry): found
            for key, entries in self._state.items()
            for entry, found in entries.items()
        }
        for id_, folded in self._folded.items():
            for name, change in self._tail(id_, folded)[0].items():
                merged.pop(name, None)
                if change.value is not None:
                    merged[name] = (change.value, change.version)
        names = self._names()
        return [
            ShownState(names[computation], slot, json.loads(key), entry, json.loads(value), version)
            for ((slot, computation, key), entry), (value, version) in sorted(merged.items())
        ]

    def timers(self) -> list[ShownTimer]:
        """Every pending timer."""
        merged = dict(self._timers)
        for id_, folded in self._folded.items():
            for name, change in self._tail(id_, folded)[1].items():
                merged.pop(name, None)
                if change.due is not None and change.hold is not None:
                    merged[name] = (change.due, change.hold)
        names = self._names()
        return [
            ShownTimer(names[computation], slot, json.loads(key), kind, tag, due, hold)
            for (slot, computation, key, kind, tag), (due, hold) in sorted(merged.items())
        ]

    def pending_productions(self) -> list[tuple[int, int]]:
        """(log, seq) of every record sent and not acknowledged."""
        pending = []
        for id_, log in sorted(self._logs.items()):
            if log.retired or log.source is not None:
                continue
            last, _ = self._last_commit(log.interval_id)
            first, runs = msgspec.json.decode(last.link.acked).get(str(id_), (0, []))
            pending += [
                (id_, row.seq)
                for row in sorted(self._productions(id_), key=lambda row: row.seq)
                if row.seq >= first and not any(a <= row.seq <= b for a, b in runs)
            ]
        return pending

    def placement_events(self) -> list[ShownEvent]:
        """What was decided and done about who owns what, the oldest first."""
        return list(self._events)

    def state(self, computation: str, key: bytes) -> dict[str, Any]:
        """The entries of one key, given in its canonical bytes: entry -> decoded value."""
        wanted = json.loads(key)
        return {
            row.entry: row.value
            for row in self.states()
            if row.computation == computation and row.key == wanted
        }

    def rows(self, table: str) -> list[tuple[Any, ...]]:
        """The rows of a table sink: by key, or in the order in which they were written.

        Raises:
            KeyError: no pipeline was deployed with such a table.
        """
        sink = self._sinks[table]
        if sink.key:
            upserted = self._upserted.get(table, {})
            found = [upserted[key] for key in sorted(upserted)]
        else:
            found = self._appended.get(table, [])
        return [
            tuple(
                json.loads(value) if column.is_json and value is not None else value
                for column, value in zip(sink.columns, values, strict=True)
            )
            for values in found
        ]


class MemoryLane:
    """One ordered chain of commits to a `MemoryStore`. Not for concurrent use."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store
        self._connected = True
        self._busy = False

    async def commit(self, commit: Commit) -> None:
        if not self._connected:
            raise StoreUnavailable("the lane has no connection")
        assert not self._busy, "a lane takes one commit after the other"
        self._busy = True
        faults = self._store.faults
        try:
            await self._store._called("commit")
            if faults.before_commit is not None:
                await faults.before_commit(commit)
            self._store.apply(commit)
            if faults.after_commit is not None:
                await faults.after_commit(commit)
            await asyncio.sleep(0)
        except CommitUnknown:
            self._connected = False
            raise
        finally:
            self._busy = False

    async def close(self) -> None:
        await asyncio.sleep(0)
        self._connected = False


def jsonb_text(value: bytes) -> bytes:
    """JSON as a ``jsonb`` column gives it back: other spaces, order of names and numbers.

    State returns from Postgres in this form, so it does from here.
    """
    return _jsonb(json.loads(value, parse_float=Decimal)).encode()


def _jsonb(value: Any) -> str:
    if isinstance(value, dict):
        names = sorted(value, key=lambda name: (len(name.encode()), name.encode()))
        parts = (f"{_jsonb(name)}: {_jsonb(value[name])}" for name in names)
        return "{" + ", ".join(parts) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_jsonb, value)) + "]"
    if isinstance(value, Decimal):
        return format(value if value else abs(value), "f")
    return json.dumps(value, ensure_ascii=False)


_PYTHON_TYPES: dict[str, type | tuple[type, ...]] = {
    "text": str,
    "bigint": int,
    "double precision": (float, int),
    "boolean": bool,
    "timestamp with time zone": datetime,
    "date": date,
    "bytea": bytes,
    "numeric": (Decimal, int),
    "uuid": UUID,
    "jsonb": str,
}


def _refusal(column: Column, value: Any) -> str | None:
    """Why Postgres would not take a value into a column, if it would not."""
    if value is None:
        return None if column.nullable else f"null in column {column.name!r}"
    if not isinstance(value, _PYTHON_TYPES[column.type]):
        return f"column {column.name!r} is of type {column.type}, not {type(value).__name__}"
    if isinstance(value, str) and "\0" in value:
        return f"a NUL character in column {column.name!r}"
    if isinstance(value, int) and column.type == "bigint" and not -(1 << 63) <= value < 1 << 63:
        return f"{value} is out of range for column {column.name!r}"
    return None


_Change = TypeVar("_Change", StateChange, TimerChange)


def _since(changes: list[_Change], after: int, through: int | None) -> list[_Change]:
    """Those of commits in (after, through]; an interval's changes stand in order of commits."""
    number = attrgetter("n")
    first = bisect_right(changes, after, key=number)
    return changes[first : None if through is None else bisect_right(changes, through, key=number)]


def _plain(value: Any) -> Any:
    """A JSON value as it comes back from the store."""
    return msgspec.json.decode(msgspec.json.encode(value))
