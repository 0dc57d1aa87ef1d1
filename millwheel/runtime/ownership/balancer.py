"""The balancer: runs the planner on the placement in the store (decisions 22 and 25)."""

from __future__ import annotations

from typing import Literal, NamedTuple

from millwheel.runtime.environment import Environment
from millwheel.runtime.ownership.canary import plan_beside
from millwheel.runtime.ownership.planner import (
    Assign,
    Decision,
    IntervalLoad,
    Merge,
    Move,
    ReportedLoad,
    Split,
    WorkerLoad,
)
from millwheel.store.port.placement import (
    MergeWish,
    PlacedInterval,
    PlacedWorker,
    Placement,
    PlacementChange,
    SplitWish,
    Wish,
)


class _Range(NamedTuple):
    computation: int
    low: int
    high: int

    def is_part_of(self, other: _Range) -> bool:
        return (
            self.computation == other.computation
            and other.low <= self.low
            and self.high <= other.high
        )


class Balancer:
    """Remembers recent decisions, so that a measured load settles before the next one."""

    def __init__(self, env: Environment) -> None:
        self._env = env
        self._recent: dict[int, float] = {}
        """Cut recently, or with a decision: monotonic time of that."""
        self._cut: set[int] = set()
        self._ranges: dict[int, _Range] = {}
        self._logged_generation = 0

    def __call__(self, placement: Placement) -> list[PlacementChange]:
        now = self._env.clock.monotonic()
        self._note_cuts(placement, now)
        alive = [worker for worker in placement.workers if worker.lease_left > 0]
        loads = {worker.id: ReportedLoad.read(worker.load) for worker in alive}
        decisions = plan_beside(
            living(placement),
            [self._interval(row, loads) for row in placement.intervals],
            self._env.settings,
            self._recent.keys(),
            self._cut,
        )
        self._log_orphans(placement)
        sequencers = {row.id: row.sequencer for row in placement.intervals}
        return [self._wish(decision, sequencers, now) for decision in decisions]

    def _note_cuts(self, placement: Placement, now: float) -> None:
        """Remember the intervals that any worker has cut since the previous call.

        Their load is not measured yet. The upper neighbour of a wished merge gets the same
        cooldown, until the merge is done or the wish has lapsed.
        """
        cooldown = self._env.settings.placement_cooldown_seconds
        self._recent = {id_: at for id_, at in self._recent.items() if now - at < cooldown}
        self._cut &= self._recent.keys()
        ranges = {
            row.id: _Range(row.computation, row.slot_from, row.slot_to)
            for row in placement.intervals
        }
        before, self._ranges = self._ranges, ranges
        for id_, found in ranges.items():
            if before and found != before.get(id_):
                self._recent[id_] = now
                if any(found.is_part_of(other) for other in before.values()):
                    self._cut.add(id_)
        uppers = {row.merge_with for row in placement.intervals}
        self._start_cooldown(now, *(ranges.keys() & uppers))

    def _log_orphans(self, placement: Placement) -> None:
        alive = [w.generation for w in placement.workers if w.lease_left > 0]
        if not alive:
            return  # all leases are over: that says nothing about their code
        newest = max(alive)
        waiting = [row for row in placement.intervals if row.is_free and row.generation > newest]
        needed = max((row.generation for row in waiting), default=0)
        if needed > self._logged_generation:
            self._env.log.warning(
                "no_worker_of_generation",
                generation=needed,
                newest_alive=newest,
                intervals=len(waiting),
                what_to_do="start workers with the code of the newest deploy",
            )
        self._logged_generation = needed

    def _interval(self, row: PlacedInterval, loads: dict[str, ReportedLoad]) -> IntervalLoad:
        owner = None if row.lease_over else row.owner
        load = loads.get(owner or "", ReportedLoad()).of(row.id)
        return IntervalLoad(
            row.id,
            computation=row.name,
            kind=row.kind,
            slot_from=row.slot_from,
            slot_to=row.slot_to,
            grain=row.grain,
            sequencer=row.sequencer,
            owner=owner,
            wanted_by=row.wanted_by,
            pinned=row.pinned,
            generation=row.generation,
            to_be=_to_be(row),
            cpu=load.cpu,
            records=load.records,
            queue=load.queue,
            state_bytes=load.state_bytes,
            histogram=load.histogram,
        )

    def _wish(self, decision: Decision, sequencers: dict[int, int], now: float) -> PlacementChange:
        match decision:
            case Assign(id_, worker, reason):
                return Wish(id_, sequencers[id_], worker, reason)
            case Move(id_, worker, reason):
                self._start_cooldown(now, id_)
                return Wish(id_, sequencers[id_], worker, reason)
            case Split(id_, at, reason):
                self._start_cooldown(now, id_)
                return SplitWish(id_, sequencers[id_], at, reason)
            case Merge(lower, upper, reason):
                self._start_cooldown(now, lower, upper)
                return MergeWish(lower, sequencers[lower], upper, reason)

    def _start_cooldown(self, now: float, *ids: int) -> None:
        self._recent |= dict.fromkeys(ids, now)
        self._cut.difference_update(ids)


def living(placement: Placement) -> list[WorkerLoad]:
    """Workers with running leases, in order of registration."""
    alive = [worker for worker in placement.workers if worker.lease_left > 0]
    return [_worker(worker, place) for place, worker in enumerate(alive)]


def _worker(worker: PlacedWorker, place: int) -> WorkerLoad:
    load = ReportedLoad.read(worker.load)
    return WorkerLoad(
        worker.id,
        cpu=load.cpu,
        started=place,
        generation=worker.generation,
        unreached=load.unreached,
        expired=load.expired,
        only_keys=load.only_keys,
    )


def _to_be(row: PlacedInterval) -> Literal["split", "merged"] | None:
    if row.split_at is not None:
        return "split"
    return None if row.merge_with is None else "merged"
