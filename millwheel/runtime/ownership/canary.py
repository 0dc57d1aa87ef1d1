"""A canary: a worker, mostly of new code, that runs a part of the keys of each computation while
workers of the former code run the others (``millwheel worker --only-keys``).

A pure function in front of the planner. It gives a canary its share of the slots of each
computation: intervals as they are, or the lower part of one that is split first. The other workers
share the rest by the ordinary plan, and never get the canary's intervals. The canary never gets
more, even if all others die; but intervals that only its code may own, of added computations for
example, are all its own until other workers of that code come. It runs no injectors. Of several
canaries the oldest gets its part, and the others keep their intervals.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable

from millwheel.core.model import SLOTS
from millwheel.runtime.ownership.planner import (
    Assign,
    Decision,
    IntervalLoad,
    Move,
    Split,
    WorkerLoad,
    in_touch,
    plan,
)
from millwheel.settings import Settings

ENOUGH = 0.75
"""A canary with so much of its share gets no more."""


def plan_beside(
    workers: Iterable[WorkerLoad],
    intervals: Iterable[IntervalLoad],
    settings: Settings,
    recent: Collection[int] = frozenset(),
    cut: Collection[int] = frozenset(),
) -> list[Decision]:
    """As `plan`, with workers that are to have only a part of the keys (`WorkerLoad.only_keys`)."""
    workers, intervals = list(workers), list(intervals)
    canaries = [worker for worker in in_touch(workers) if worker.only_keys < 1.0]
    if not canaries:
        return plan(workers, intervals, settings, recent, cut)
    canary = min(canaries, key=lambda worker: (worker.started, worker.id))
    others = [worker for worker in workers if worker.only_keys >= 1.0]
    shares = _Shares(canary, others, intervals, settings, set(recent) - set(cut))
    surplus = shares.surplus()
    decisions = shares.decisions(surplus)
    apart = {worker.id for worker in canaries}
    taken = {_subject(decision) for decision in decisions}
    rest = [
        interval
        for interval in intervals
        if interval.id in surplus or (interval.id not in taken and _home(interval) not in apart)
    ]
    further = plan(others, rest, settings, recent, cut)
    if any(not isinstance(decision, Assign) for decision in decisions):
        further = [decision for decision in further if isinstance(decision, Assign)]
    return decisions + further


def _home(interval: IntervalLoad) -> str | None:
    return interval.wanted_by or interval.owner


def _subject(decision: Decision) -> int:
    assert isinstance(decision, Assign | Move | Split)
    return decision.interval


class _Shares:
    def __init__(
        self,
        canary: WorkerLoad,
        others: list[WorkerLoad],
        intervals: list[IntervalLoad],
        settings: Settings,
        fixed: set[int],
    ) -> None:
        self._canary = canary
        self._others = {worker.id for worker in others}
        self._newest = max((worker.generation for worker in others), default=canary.generation - 1)
        """Generation of the others; if there are none, they may come again."""
        self._intervals = intervals
        self._fixed = fixed
        self._budget = settings.placement_moves

    def surplus(self) -> set[int]:
        """Intervals of the canary above its part, which others may own: it was alone, perhaps."""
        found: set[int] = set()
        had: Counter[str] = Counter()
        for interval in sorted(self._intervals, key=lambda i: (i.computation, i.slot_from)):
            if _home(interval) != self._canary.id or interval.generation > self._newest:
                continue
            slots = interval.slot_to - interval.slot_from
            part = 0 if interval.kind == "injector" else self._target(interval.grain)
            if had[interval.computation] + slots > part:
                found.add(interval.id)
            else:
                had[interval.computation] += slots
        return found

    def decisions(self, surplus: Collection[int]) -> list[Decision]:
        """`surplus` goes to others."""
        found: list[Decision] = []
        had: Counter[str] = Counter()
        for interval in self._intervals:
            if interval.id in surplus:
                continue
            if _home(interval) == self._canary.id:
                had[interval.computation] += interval.slot_to - interval.slot_from
            elif self._is_only_for_it(interval):
                found.append(Assign(interval.id, self._canary.id, "no other worker may own it"))
        of: dict[str, list[IntervalLoad]] = {}
        for interval in self._intervals:
            if self._may_give(interval):
                of.setdefault(interval.computation, []).append(interval)
        for computation, candidates in sorted(of.items()):
            if self._budget <= len(found):
                break
            change = self._change(had[computation], candidates)
            if change is not None:
                found.append(change)
        return found

    def _is_only_for_it(self, interval: IntervalLoad) -> bool:
        """An interval without an owner that only the canary's code may have."""
        orphan = interval.owner not in self._others and interval.wanted_by not in self._others
        return orphan and self._newest < interval.generation <= self._canary.generation

    def _may_give(self, interval: IntervalLoad) -> bool:
        settled = interval.owner in self._others and interval.wanted_by in (None, interval.owner)
        return (
            settled
            and interval.generation <= self._canary.generation
            and interval.kind != "injector"
            and not interval.pinned
            and interval.to_be is None
            and interval.id not in self._fixed
        )

    def _target(self, grain: int) -> int:
        """Slots of a computation that the canary should have."""
        return round(self._canary.only_keys * SLOTS / grain) * grain

    def _change(self, had: int, candidates: list[IntervalLoad]) -> Decision | None:
        """One step towards the canary's share of a computation."""
        target = self._target(candidates[0].grain)
        if target == 0 or had >= ENOUGH * target:
            return None
        need = target - had
        reason = f"{self._canary.id} runs {self._canary.only_keys:.2%} of the keys"
        whole = [i for i in candidates if i.slot_to - i.slot_from <= need]
        if whole:
            widest = max(whole, key=lambda i: (i.slot_to - i.slot_from, -i.slot_from))
            return Move(widest.id, self._canary.id, reason)
        narrowest = min(candidates, key=lambda i: (i.slot_to - i.slot_from, i.slot_from))
        at = narrowest.slot_from + need
        return Split(narrowest.id, at, f"{reason}, and this interval has more")
