"""The methods of the store (`millwheel.store.postgres`): each is a call, and then what it does.

State, folds, productions and seen ids are looked after here; everything else has its own module.
"""

from __future__ import annotations

import asyncio
import copy
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from millwheel.clock import Clock, SystemClock
from millwheel.errors import PlacementRefused, StoreError, StoreWentBack
from millwheel.model import is_derived, log_and_number, name_of
from millwheel.sinks import Table
from millwheel.store.memory import administration, deployment, lane, views
from millwheel.store.memory.buckets import Buckets
from millwheel.store.memory.claims import read_claim, read_timers
from millwheel.store.memory.faults import Faults
from millwheel.store.memory.jsonb import jsonb_text
from millwheel.store.memory.lane import MemoryLane
from millwheel.store.memory.leadership import Leadership
from millwheel.store.memory.placement import MemoryPlacement
from millwheel.store.memory.sinks import TableSinks
from millwheel.store.memory.tables import ShownEvent, StateKey, Tables
from millwheel.store.memory.views import ShownState, ShownTimer
from millwheel.store.memory.workers import Workers
from millwheel.store.port import (
    TIMERS_A_PAGE,
    Bucket,
    BucketView,
    Claim,
    Commit,
    DeadLetter,
    Deployment,
    FoundPartition,
    HeartbeatReply,
    NodeDeploy,
    OldState,
    OtherWorker,
    Placement,
    PlacementChange,
    StoredProduction,
    StreamDeploy,
    TimerChange,
    TimerPlace,
)

Taken = tuple[dict[int, int], dict[int, int]]
"""Of a claim: per interval what its sequencer was raised to, and its new log."""

Saved = tuple[dict[str, Any], dict[str, Any]]
"""The tables of the engine, and those of sinks."""

PAGE_ROWS = 2000
"""Productions read back between two looks at the event loop."""


class MemoryStore:
    """One pipeline's store in memory: for tests and simulation only.

    Args:
        name: the pipeline's name, for messages.
        clock: what leases run by.
    """

    def __init__(self, name: str = "memory", *, clock: Clock | None = None) -> None:
        self.tables = Tables(name)
        """What is stored, for a test to look into; only the table sinks keep theirs themselves."""
        self.faults = Faults()
        self.dead_workers: set[str] = set()
        """Workers whose process a test declares dead."""
        self.snapshot_seconds = 0.0
        """The age of the oldest snapshot that somebody is to hold."""
        self._clock = clock or SystemClock()
        self._sinks = TableSinks(name)
        self._workers = Workers(self.tables, self._clock)
        self._placement = MemoryPlacement(self.tables, self._workers, self._clock)
        self._buckets = Buckets(self.tables, self._clock)
        self._leadership = Leadership(self.tables, self._clock)
        self._versions: dict[str, int] = {}
        """Of the streams, as the code of this object writes them."""
        self._incarnation: int | None = None
        """The first incarnation of the server that this object has met."""

    def another(self) -> MemoryStore:
        """The same store, as another process sees it: its leadership and code are its own."""
        twin = copy.copy(self)
        twin._leadership = Leadership(self.tables, self._clock)
        twin._versions = {}
        twin._incarnation = None
        return twin

    @property
    def dead_letters(self) -> list[DeadLetter]:
        """What was given up on."""
        return self.tables.dead_letters

    @property
    def statements(self) -> list[tuple[str, Sequence[Any]]]:
        """What `ctx.execute` asked for, in the order of the commits; nothing is run."""
        return self.tables.statements

    def saved(self) -> Saved:
        """All that is stored now; see `come_back_as`."""
        leader, self.tables.leader = self.tables.leader, None  # advisory locks are not stored
        try:
            return copy.deepcopy((vars(self.tables), vars(self._sinks)))
        finally:
            self.tables.leader = leader

    def come_back_as(self, saved: Saved) -> None:
        """Let the server crash, lose every commit after `saved`, and come back."""
        incarnation = self.tables.incarnation
        tables, sinks = copy.deepcopy(saved)
        vars(self.tables).update(tables)
        vars(self._sinks).update(sinks)
        self.tables.incarnation = incarnation + 1

    async def incarnation(self) -> str:
        await self._called("incarnation")
        return str(self._incarnation)

    def begin_again(self) -> None:
        self._incarnation = None

    async def close(self) -> None:
        """Let the leadership go, and nothing else: other engines may still be using the store."""
        self._leadership.close()

    async def _called(self, name: str) -> None:
        """Let others run, as a round trip would, and fail if a test wants it."""
        await asyncio.sleep(0)
        if self.faults.before_call is not None:
            await self.faults.before_call(name)
        if self._incarnation is None:
            self._incarnation = self.tables.incarnation
        elif self._incarnation != self.tables.incarnation:
            raise StoreWentBack("the server has lost commits")

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
        result = deployment.deploy(
            self.tables,
            self._sinks,
            graph,
            nodes,
            streams,
            tables,
            stamp=stamp,
            bucket_high=bucket_high,
            shared=shared,
            alive=sum(other.lease_left > 0 for other in self._workers.others("")),
        )
        self._versions = {stream.name: stream.version for stream in streams}
        return result

    def remove(self, names: list[str]) -> None:
        """Take nodes away, as an operator does.

        Raises:
            UsageError: there is no such node, or one that stays needs it.
        """
        administration.remove(self.tables, names)

    def pause(self, *injectors: str) -> None:
        """Let these rest, and no others, as an operator does."""
        administration.pause(self.tables, injectors)

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
        self._workers.register(worker, lease_seconds, address, generation)

    async def heartbeat(
        self, worker: str, lease_seconds: float, load: dict[str, Any], stamp: int = 0
    ) -> HeartbeatReply:
        await self._called("heartbeat")
        self._workers.heartbeat(worker, lease_seconds, load, stamp)
        return HeartbeatReply(self._clock.now())

    async def stop_worker(self, worker: str) -> None:
        await self._called("stop_worker")
        self._workers.stop(worker)

    async def other_workers(self, worker: str) -> list[OtherWorker]:
        await self._called("other_workers")
        return self._workers.others(worker)

    def is_dead(self, other: OtherWorker) -> bool:
        return other.id in self.dead_workers

    async def end_worker(self, other: OtherWorker) -> None:
        await self.stop_worker(other.id)

    # -- claims and placement -----------------------------------------------------

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
        taken = self.raise_sequencers(worker, interval_ids, again=again, sequencers=sequencers)
        await asyncio.sleep(0)  # the sequencers are raised; only now is anything read (I4)
        return self.read_claims(taken, timers)

    def raise_sequencers(
        self,
        worker: str,
        interval_ids: list[int],
        *,
        again: bool,
        sequencers: Mapping[int, int] | None,
    ) -> Taken:
        """The first transaction of a claim: whoever had the intervals is fenced."""
        if sequencers is None:
            return self._placement.take_over(worker, interval_ids, again=again)
        return self._placement.take_free(worker, interval_ids, sequencers)

    def read_claims(self, taken: Taken, timers: int) -> list[Claim]:
        """The second one: what the new owner starts from."""
        raised, new_logs = taken
        return [
            read_claim(self.tables, id_, sequencer, new_logs.get(id_, 0), timers)
            for id_, sequencer in raised.items()
        ]

    async def release(self, worker: str, sequencers: Mapping[int, int]) -> list[int]:
        await self._called("release")
        return self._placement.release(worker, sequencers)

    async def add_partitions(
        self, discovery: int, sequencer: int, found: Mapping[str, dict[str, Any] | None]
    ) -> list[FoundPartition]:
        await self._called("add_partitions")
        return self._placement.add_partitions(discovery, sequencer, found)

    async def read_placement(self) -> Placement:
        await self._called("read_placement")
        return self._placement.read()

    async def wish(self, changes: Sequence[PlacementChange]) -> list[int]:
        await self._called("wish")
        return self._placement.wish(changes)

    async def peer_secret(self) -> bytes:
        await self._called("peer_secret")
        return self.tables.peer_secret

    async def try_lead(self, seconds: float) -> bool:
        await self._called("try_lead")
        return self._leadership.try_lead(seconds)

    async def split(self, interval_id: int, sequencer: int, at: int, *, reason: str = "") -> int:
        await self._called("split")
        return self._placement.split(interval_id, sequencer, at, reason)

    async def merge(
        self, lower_id: int, upper_id: int, sequencers: Mapping[int, int], *, reason: str = ""
    ) -> int:
        if lower_id == upper_id:
            raise PlacementRefused(f"interval {lower_id} cannot be merged with itself")
        await self._called("merge")
        return self._placement.merge(lower_id, upper_id, sequencers, reason)

    async def read_timers(
        self, interval_id: int, kind: str, after: TimerPlace | None, limit: int
    ) -> list[TimerChange]:
        await self._called("read_timers")
        return read_timers(self.tables, interval_id, kind, after, limit)

    # -- commits ------------------------------------------------------------------

    async def open_lane(self) -> MemoryLane:
        await self._called("open_lane")
        incarnation = self.tables.incarnation
        return MemoryLane(self.faults, self.apply, lambda: self.tables.incarnation == incarnation)

    def apply(self, commit: Commit) -> None:
        """What the server does with a commit: all of it in one go, or an error and nothing.

        Lanes call it; a test may, to let a commit take effect that its lane gave up on.
        """
        lane.apply(commit, self.tables, self._sinks, self._versions, self.faults.refuse)

    # -- productions and seen ids ---------------------------------------------------

    async def read_productions(self, log: int, first: int) -> AsyncIterator[StoredProduction]:
        while True:
            await self._called("read_productions")
            found = sorted(
                (row for row in self.tables.productions(log) if row.seq >= first),
                key=lambda row: row.seq,
            )[:PAGE_ROWS]
            for row in found:
                yield replace(row)
            if len(found) < PAGE_ROWS:
                return
            first = found[-1].seq + 1

    async def retire_logs(self, logs: list[int]) -> None:
        await self._called("retire_logs")
        for log in logs:
            if log in self.tables.logs:
                self.tables.logs[log].retired = True

    async def look_up_seen(
        self, buckets: Sequence[int], computation: int, ids: Sequence[bytes]
    ) -> set[bytes]:
        await self._called("look_up_seen")
        known = set().union(*map(self._seen, buckets))
        names = {name_of(id_) for id_ in ids}
        return {id_ for _, of, id_ in known if of == computation and name_of(id_) in names}

    async def newest_seen(self, bucket: int, computation: int) -> dict[int, int]:
        await self._called("newest_seen")
        found = [id_ for _, of, id_ in self._seen(bucket) if of == computation]
        return dict(log_and_number(id_) for id_ in sorted(found) if not is_derived(id_))

    async def count_seen(self, bucket: int, computation: int, slots: tuple[int, int]) -> int:
        await self._called("count_seen")
        return sum(
            of == computation and slots[0] <= slot < slots[1] for slot, of, _ in self._seen(bucket)
        )

    async def scan_seen(
        self,
        bucket: int,
        computation: int,
        slots: tuple[int, int],
        after: tuple[bytes, int],
        limit: int,
    ) -> list[tuple[bytes, int]]:
        await self._called("scan_seen")
        return sorted(
            (id_, slot)
            for slot, of, id_ in self._seen(bucket)
            if of == computation and (id_, slot) > after and slots[0] <= slot < slots[1]
        )[:limit]

    def _seen(self, bucket: int) -> set[tuple[int, int, bytes]]:
        if bucket not in self.tables.buckets:
            raise StoreError(f"there is no bucket {bucket}")
        return self.tables.buckets[bucket].seen

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
        found = self.tables.state.get((slot, computation, key), {}).get(entry)
        return None if found is None else (jsonb_text(found[0]), found[1])

    async def scan_entries(
        self, computation: int, slot: int, key: bytes, after: str, before: str, limit: int
    ) -> list[tuple[str, bytes, int]]:
        await self._called("scan_entries")
        return self._entries((slot, computation, key), after, before, limit)

    def _entries(
        self, key: StateKey, after: str, before: str, limit: int, *, also_first: bool = False
    ) -> list[tuple[str, bytes, int]]:
        """Folded entries of a key within (after, before), in order; `also_first`: all of them."""
        found = self.tables.state.get(key, {})
        names = sorted(name for name in found if also_first or after < name < before)
        return [(name, jsonb_text(found[name][0]), found[name][1]) for name in names[:limit]]

    async def sample_states(self, versions: Mapping[str, int], most: int) -> list[OldState]:
        await self._called("sample_states")
        return views.old_states(self.tables, versions, most)

    # -- folds ------------------------------------------------------------------------

    async def fold(self, interval_id: int, sequencer: int, after: int, through: int) -> bool:
        await self._called("fold")
        tables = self.tables
        if not tables.is_current(interval_id, sequencer):
            return False
        interval = tables.intervals[interval_id]
        if not after <= interval.folded <= through:
            return False
        states, timers = tables.tail(interval_id, after, through)
        for (key, entry), change in states.items():
            if change.value is not None:
                tables.state.setdefault(key, {})[entry] = (change.value, change.version)
            elif (entries := tables.state.get(key)) is not None:
                entries.pop(entry, None)
                if not entries:
                    del tables.state[key]
        for name, timer in timers.items():
            if timer.due is None:
                tables.timers.pop(name, None)
            else:
                assert timer.hold is not None
                tables.timers[name] = (timer.due, timer.hold)
        interval.folded = through
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
        return self._buckets.live()

    async def view_buckets(self) -> BucketView:
        await self._called("view_buckets")
        return BucketView(self._buckets.told_time(), self._buckets.live())

    async def open_bucket(self, family: str, log: int, low: int, high: int) -> Bucket:
        await self._called("open_bucket")
        return self._buckets.open(family, log, low, high)

    async def close_bucket(self, bucket: int, high: int) -> Bucket | None:
        await self._called("close_bucket")
        return self._buckets.close(bucket, high)

    async def advance_gc_watermark(self) -> int:
        await self._called("advance_gc_watermark")
        return self._buckets.advance_gc_watermark()

    async def drop_bucket(self, bucket: Bucket) -> bool:
        await self._called("drop_bucket")
        return self._buckets.drop(bucket)

    # -- what is committed, as the views of the same names show it ----------------------

    def states(self) -> list[ShownState]:
        """Every entry of state: current tables and unfolded tail together, decoded."""
        return views.states(self.tables)

    def timers(self) -> list[ShownTimer]:
        """Every pending timer."""
        return views.timers(self.tables)

    def pending_productions(self) -> list[tuple[int, int]]:
        """(log, seq) of every record sent and not acknowledged."""
        return views.pending_productions(self.tables)

    def placement_events(self) -> list[ShownEvent]:
        """What was decided and done about who owns what, the oldest first."""
        return list(self.tables.events)

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
        return self._sinks.rows(table)
