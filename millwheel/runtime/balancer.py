"""The balancer: what the planner decides from what the store says (decision 22)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from millwheel.placement import Assign, IntervalLoad, Move, WorkerLoad, plan
from millwheel.store.port import Placement, Wish

if TYPE_CHECKING:
    from millwheel.runtime.engine import Engine


class Balancer:
    """Who should own what, as long as this worker is the one to say so."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._moved: dict[int, float] = {}
        """Intervals that were given to somebody, and when, by the monotonic clock."""
        self._told = 0
        """The newest generation that intervals were found to wait for."""

    def __call__(self, placement: Placement) -> list[Wish]:
        """The wishes that follow from a look at the store."""
        engine = self._engine
        now = engine.clock.monotonic()
        cooldown = engine.settings.placement_cooldown_seconds
        self._moved = {id_: at for id_, at in self._moved.items() if now - at < cooldown}
        sequencers = {row.id: row.sequencer for row in placement.intervals}
        decisions = plan(
            [
                WorkerLoad(w.id, generation=w.generation)
                for w in placement.workers
                if w.lease_left > 0
            ],
            [
                IntervalLoad(
                    row.id,
                    computation=row.name,
                    kind=row.kind,
                    slot_from=row.slot_from,
                    slot_to=row.slot_to,
                    grain=engine.steps[row.computation].node.grain,
                    sequencer=row.sequencer,
                    owner=None if row.lease_over else row.owner,
                    wanted_by=row.wanted_by,
                    generation=row.generation,
                )
                for row in placement.intervals
            ],
            engine.settings,
            self._moved.keys(),
        )
        self._tell_of_orphans(placement)
        wishes = []
        for decision in decisions:
            if isinstance(decision, (Assign, Move)):
                id_ = decision.interval
                wishes.append(Wish(id_, sequencers[id_], decision.worker, decision.reason))
                if isinstance(decision, Move):
                    self._moved[id_] = now
        return wishes

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
