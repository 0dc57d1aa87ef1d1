"""A transaction of the Postgres store is one call here, so no change waits for another."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from millwheel.errors import Fenced, PlacementRefused
from millwheel.store.memory.tables import KeyInterval, Log, ShownEvent
from millwheel.store.memory.workers import MemoryWorkers
from millwheel.store.port.commit import IntervalCommit
from millwheel.store.port.placement import (
    FoundPartition,
    Lapse,
    MergeWish,
    PlacedInterval,
    Placement,
    PlacementChange,
    SplitWish,
    Unpin,
    Wish,
)
from millwheel.store.rules.interval_history import (
    IntervalHistory,
    merged,
    partition,
    refuse,
    upper_part,
)


class MemoryPlacement(MemoryWorkers):
    async def read_placement(self) -> Placement:
        await self._called("read_placement")
        return self.placement()

    def placement(self) -> Placement:
        tables = self.tables
        nodes = {node.id: (name, node.kind) for name, node in tables.computations.items()}
        logs: dict[int, list[int]] = {}
        for id_, log in tables.logs.items():
            if not log.retired:
                logs.setdefault(log.interval_id, []).append(id_)
        return Placement(
            self._clock.now(),
            [
                PlacedInterval(
                    row.id, row.computation, row.slot_from, row.slot_to, row.sequencer, row.owner,
                    row.wanted_by, self._is_lease_over(row), row.generation,
                    *nodes[row.computation], tables.grain(row.computation), row.pinned,
                    row.split_at, row.merge_with, tuple(sorted(logs.get(row.id, ()))),
                )
                for row in tables.in_order()
            ],
            self._placed_workers(),
            frozenset(node.id for node in tables.computations.values() if node.removed),
            frozenset(tables.computations[name].id for name in tables.paused),
        )  # fmt: skip

    def _is_lease_over(self, row: KeyInterval) -> bool:
        return row.owner is not None and not self._is_alive(row.owner)

    def _note(
        self, row: KeyInterval, what: str, before: str | None, after: str | None, reason: str
    ) -> None:
        name = self.tables.names()[row.computation]
        self.tables.events.append(
            ShownEvent(name, row.id, row.slot_from, row.slot_to, what, before, after, reason)
        )

    # -- claims -------------------------------------------------------------------

    def take_over(
        self, worker: str, interval_ids: list[int], *, again: bool
    ) -> tuple[dict[int, int], dict[int, int]]:
        """See `PostgresPlacement`."""
        mine = self._generation(worker)
        rows = [row for id_ in interval_ids if (row := self.tables.intervals.get(id_)) is not None]
        if len(rows) != len(interval_ids) or any(
            row.owner != worker if again else row.generation > mine for row in rows
        ):
            raise Fenced(
                "another worker has claimed intervals of this one, maybe one with newer code; "
                "this worker must release them"
            )
        return self._take(worker, rows, None if again else mine)

    def take_free(
        self, worker: str, interval_ids: list[int], sequencers: Mapping[int, int]
    ) -> tuple[dict[int, int], dict[int, int]]:
        """See `PostgresPlacement`."""
        mine = self._generation(worker)
        rows = [
            row
            for row in self._as_read({id_: sequencers[id_] for id_ in interval_ids})
            if row.generation <= mine and (row.owner in (None, worker) or self._is_lease_over(row))
        ]
        for row in rows:
            reason = "the lease of its owner is over"
            if row.owner is None or row.owner == worker:
                reason = "it had no owner" if row.owner is None else "it is its own"
            self._note(row, "claim", row.owner, worker, reason)
        return self._take(worker, rows, mine)

    def _take(
        self, worker: str, rows: list[KeyInterval], generation: int | None
    ) -> tuple[dict[int, int], dict[int, int]]:
        tables = self.tables
        raised: dict[int, int] = {}
        for row in rows:
            raised[row.id] = row.sequencer = tables.next_number()
            row.owner = worker
            if generation is not None:
                row.generation = generation
            row.forget_cuts()
        sourced = tables.sourced()
        new_logs: dict[int, int] = {}
        for row in rows:
            if row.id not in sourced:
                new_logs[row.id] = tables.next_number()
                tables.logs[new_logs[row.id]] = Log(row.id, None)
        return raised, new_logs

    def _as_read(self, sequencers: Mapping[int, int]) -> Iterable[KeyInterval]:
        for id_, sequencer in sequencers.items():
            if self.tables.is_current(id_, sequencer):
                yield self.tables.intervals[id_]

    # -- releases and wishes --------------------------------------------------------

    async def release(self, worker: str, sequencers: Mapping[int, int]) -> list[int]:
        await self._called("release")
        released = [
            row for row in self._as_read(dict(sorted(sequencers.items()))) if row.owner == worker
        ]
        for row in released:
            row.owner = None
            self._note(row, "release", worker, row.wanted_by, "drained and folded")
        return [row.id for row in released]

    async def wish(self, changes: Sequence[PlacementChange], term: int | None = None) -> list[int]:
        await self._called("wish")
        if term is not None and term != self.tables.leader.term:
            return []
        last = {change.interval_id: change for change in changes}
        return [
            id_
            for id_, change in sorted(last.items())
            if self.tables.is_current(id_, change.sequencer) and self._wish(change)
        ]

    def _wish(self, change: PlacementChange) -> bool:
        """Apply a wish; returns whether it has changed anything."""
        row, reason = self.tables.intervals[change.interval_id], change.reason
        match change:
            case Wish(worker=worker, pinned=pinned):
                held = row.pinned and not pinned and self._is_alive(row.wanted_by)
                if held or (row.wanted_by, row.pinned) == (worker, pinned):
                    return False
                row.wanted_by, row.pinned = worker, pinned
                verb = "pin" if pinned else "wish"
            case Unpin():
                if not row.pinned:
                    return False
                row.pinned = False
                verb = "unpin"
            case SplitWish(at=at):
                if row.split_at == at or not row.slot_from < at < row.slot_to:
                    return False
                row.split_at, row.merge_with = at, None
                verb, reason = "wish_split", f"at slot {at}" + (f": {reason}" if reason else "")
            case MergeWish(upper_id=upper_id):
                if row.merge_with == upper_id or not self._meet(row, upper_id):
                    return False
                row.split_at, row.merge_with = None, upper_id
                verb = "wish_merge"
                reason = f"with interval {upper_id}" + (f": {reason}" if reason else "")
            case Lapse():
                if row.split_at is None and row.merge_with is None:
                    return False
                row.forget_cuts()
                verb = "lapse"
        self._note(row, verb, row.owner, row.wanted_by, reason)
        return True

    def _meet(self, lower: KeyInterval, upper_id: int) -> bool:
        """Whether two intervals are lower and upper neighbour, and not partitions."""
        upper = self.tables.intervals.get(upper_id)
        return (
            upper is not None
            and (lower.computation, lower.slot_to) == (upper.computation, upper.slot_from)
            and lower.id not in self.tables.sourced()
        )

    # -- splits and merges ----------------------------------------------------------

    async def split(self, interval_id: int, sequencer: int, at: int, *, reason: str = "") -> int:
        await self._called("split")
        (parent,) = self._take_apart({interval_id: sequencer})
        upper = upper_part(parent, at)
        row = self.tables.intervals[interval_id]
        row.sequencer = self.tables.next_number()
        row.slot_to = at
        row.forget_cuts()
        made = self._begin(upper, row, row.generation)
        why = f"cut off interval {interval_id}" + (f": {reason}" if reason else "")
        self._note(made, "split", None, None, why)
        return made.id

    async def merge(
        self, lower_id: int, upper_id: int, sequencers: Mapping[int, int], *, reason: str = ""
    ) -> int:
        if lower_id == upper_id:
            raise PlacementRefused(f"interval {lower_id} cannot be merged with itself")
        await self._called("merge")
        tables = self.tables
        parts = lower_id, upper_id
        whole = merged(*self._take_apart({id_: sequencers[id_] for id_ in parts}))
        generation = max(tables.intervals[id_].generation for id_ in parts)
        made = self._begin(whole, tables.intervals[lower_id], generation)
        for log in tables.logs.values():
            if log.interval_id in parts:
                log.interval_id = made.id
        for id_ in parts:
            del tables.intervals[id_]
        why = f"was intervals {lower_id} and {upper_id}" + (f": {reason}" if reason else "")
        self._note(made, "merge", None, None, why)
        return made.id

    async def add_partitions(
        self, discovery: int, sequencer: int, found: Mapping[str, dict[str, Any] | None]
    ) -> list[FoundPartition]:
        await self._called("add_partitions")
        tables = self.tables
        row = tables.intervals[discovery]
        known = {each.identity for each in self._partitions(discovery)}
        for identity, position in found.items():
            if identity in known:
                continue
            if not tables.is_current(discovery, sequencer):
                raise Fenced("another worker has claimed the interval; nothing was made")
            siblings = [i for i in tables.intervals.values() if i.computation == row.computation]
            taken = {sibling.slot_from for sibling in siblings}
            slot = min(s.slot_to for s in siblings if s.slot_to not in taken)
            history = partition(self._history(discovery), slot, position)
            made = self._begin(history, None, row.generation)
            tables.logs[tables.next_number()] = Log(made.id, identity)
            self._note(made, "partition", None, None, f"found: {identity}")
        return self._partitions(discovery)

    async def retire_partitions(
        self, discovery: int, sequencer: int, interval_ids: Sequence[int]
    ) -> list[FoundPartition]:
        await self._called("retire_partitions")
        tables = self.tables
        if tables.is_current(discovery, sequencer):
            for id_ in interval_ids:
                if (row := tables.intervals.pop(id_, None)) is not None:
                    (log,) = [i for i, log in tables.logs.items() if log.interval_id == id_]
                    self._note(row, "partition", None, None, f"ended: {tables.logs[log].source}")
                    del tables.logs[log]
        return self._partitions(discovery)

    def _partitions(self, discovery: int) -> list[FoundPartition]:
        tables = self.tables
        computation = tables.intervals[discovery].computation
        sources = {log.interval_id: log.source for log in tables.logs.values() if log.source}
        found = []
        for row in tables.in_order():
            if row.computation == computation and row.id != discovery:
                link = tables.last_commit(row.id)[0].link
                found.append(
                    FoundPartition(
                        row.id, row.slot_from, row.sequencer, sources[row.id],
                        link.low_watermark,
                        None if link.position is None else msgspec.json.decode(link.position),
                    )
                )  # fmt: skip
        return found

    def _take_apart(self, sequencers: dict[int, int]) -> list[IntervalHistory]:
        """`Fenced` if a sequencer has changed, `PlacementRefused` if one has an owner."""
        tables = self.tables
        found = {
            id_: (row.sequencer, row.owner)
            for id_ in sequencers
            if (row := tables.intervals.get(id_)) is not None
        }
        refuse(sequencers, found)
        return [self._history(id_) for id_ in sequencers]

    def _history(self, interval_id: int) -> IntervalHistory:
        tables = self.tables
        row, (last, _) = tables.intervals[interval_id], tables.last_commit(interval_id)
        link = last.link
        return IntervalHistory(
            id=interval_id,
            computation=row.computation,
            slot_from=row.slot_from,
            slot_to=row.slot_to,
            is_source=interval_id in tables.sourced(),
            n=link.n,
            folded=row.folded,
            stamp=last.stamp,
            input_watermark=link.input_watermark,
            low_watermark=link.low_watermark,
            floor=link.floor,
            acked=msgspec.json.decode(link.acked),
            position=None if link.position is None else msgspec.json.decode(link.position),
            counters=msgspec.json.decode(link.counters),
            grain=tables.grain(row.computation),
        )

    def _begin(
        self, history: IntervalHistory, parent: KeyInterval | None, generation: int
    ) -> KeyInterval:
        """The wanted owner is that of `parent`; without a parent the balancer finds one."""
        row = self.tables.make_interval(
            history.computation, history.slot_from, history.slot_to, generation
        )
        if parent is not None:
            row.wanted_by, row.pinned = parent.wanted_by, parent.pinned
        link = IntervalCommit(
            row.id, row.sequencer, 0, 0, history.input_watermark, history.low_watermark,
            history.floor,
            msgspec.json.encode(history.acked),
            None if history.position is None else msgspec.json.encode(history.position),
            msgspec.json.encode(history.counters),
        )  # fmt: skip
        self.tables.begin_chain(link, history.stamp)
        return row
