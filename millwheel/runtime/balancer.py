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

    def __call__(self, placement: Placement) -> list[Wish]:
        """The wishes that follow from a look at the store."""
        engine = self._engine
        now = engine.clock.monotonic()
        cooldown = engine.settings.placement_cooldown_seconds
        self._moved = {id_: at for id_, at in self._moved.items() if now - at < cooldown}
        sequencers = {row.id: row.sequencer for row in placement.intervals}
        decisions = plan(
            [WorkerLoad(w.id) for w in placement.workers if w.lease_left > 0],
            [
                IntervalLoad(
                    row.id,
                    computation=engine.steps[row.computation].name,
                    kind=engine.steps[row.computation].node.kind,
                    slot_from=row.slot_from,
                    slot_to=row.slot_to,
                    grain=engine.steps[row.computation].node.grain,
                    sequencer=row.sequencer,
                    owner=None if row.lease_over else row.owner,
                    wanted_by=row.wanted_by,
                )
                for row in placement.intervals
                if row.computation in engine.steps
            ],
            engine.settings,
            self._moved.keys(),
        )
        wishes = []
        for decision in decisions:
            if isinstance(decision, (Assign, Move)):
                id_ = decision.interval
                wishes.append(Wish(id_, sequencers[id_], decision.worker, decision.reason))
                if isinstance(decision, Move):
                    self._moved[id_] = now
        return wishes
