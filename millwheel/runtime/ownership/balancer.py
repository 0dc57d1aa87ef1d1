"""The balancer: what the planner decides from what the store says (decisions 22 and 25)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

from millwheel.placement import (
    Assign,
    Decision,
    IntervalLoad,
    Merge,
    Move,
    ReportedLoad,
    Split,
    WorkerLoad,
    plan,
)
from millwheel.store.port import (
    MergeWish,
    PlacedInterval,
    PlacedWorker,
    Placement,
    PlacementChange,
    SplitWish,
    Wish,
)

if TYPE_CHECKING:
    from millwheel.runtime.engine import Engine


class _Range(NamedTuple):
    """The slots of an interval."""

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
    """Who should own what, and what is to be cut, as long as this worker is the one to say so."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._recent: dict[int, float] = {}
        """Intervals that something was decided about, or that were cut, and when, by the
        monotonic clock."""
        self._cut: set[int] = set()
        """Parts of what was split among them, about which nothing was decided since."""
        self._ranges: dict[int, _Range] = {}
        """All intervals as they were at the last look."""
        self._told = 0
        """The newest generation that intervals were found to wait for."""

    def __call__(self, placement: Placement) -> list[PlacementChange]:
        """The wishes that follow from a look at the store."""
        now = self._engine.clock.monotonic()
        self._notice_cuts(placement, now)
        alive = [worker for worker in placement.workers if worker.lease_left > 0]
        loads = {worker.id: ReportedLoad.read(worker.load) for worker in alive}
        decisions = plan(
            living(placement),
            [self._interval(row, loads) for row in placement.intervals],
            self._engine.settings,
            self._recent.keys(),
            self._cut,
        )
        self._tell_of_orphans(placement)
        sequencers = {row.id: row.sequencer for row in placement.intervals}
        return [self._wish(decision, sequencers, now) for decision in decisions]

    def _notice_cuts(self, placement: Placement, now: float) -> None:
        """Remember what was cut since the last look, by whomever: its load is not measured yet.

        What is about to be cut is left alone as well, until it is or the wish has lapsed.
        """
        cooldown = self._engine.settings.placement_cooldown_seconds
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
        self._leave_alone(now, *(ranges.keys() & uppers))

    def _tell_of_orphans(self, placement: Placement) -> None:
        """Say once that intervals are nobody's since all who are alive run older code."""
        alive = [w.generation for w in placement.workers if w.lease_left > 0]
        newest = max(alive, default=0)
        waiting = [row for row in placement.intervals if row.is_free and row.generation > newest]
        needed = max((row.generation for row in waiting), default=0)
        if needed > self._told:
            self._engine.log.warning(
                "no_worker_of_generation",
                generation=needed,
                newest_alive=newest,
                intervals=len(waiting),
                what_to_do="start workers with the code that was deployed last",
            )
        self._told = needed

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
                self._leave_alone(now, id_)
                return Wish(id_, sequencers[id_], worker, reason)
            case Split(id_, at, reason):
                self._leave_alone(now, id_)
                return SplitWish(id_, sequencers[id_], at, reason)
            case Merge(lower, upper, reason):
                self._leave_alone(now, lower, upper)
                return MergeWish(lower, sequencers[lower], upper, reason)

    def _leave_alone(self, now: float, *ids: int) -> None:
        self._recent |= dict.fromkeys(ids, now)
        self._cut.difference_update(ids)


def living(placement: Placement) -> list[WorkerLoad]:
    """The workers whose leases run, as the planner sees them: in the order of their registration."""
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
    )


def _to_be(row: PlacedInterval) -> Literal["split", "merged"] | None:
    if row.split_at is not None:
        return "split"
    return None if row.merge_with is None else "merged"
