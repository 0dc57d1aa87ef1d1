"""Who should own what: the decisions of the balancer, as plain data.

`plan` looks at the workers that are alive and at all intervals, and says what should change. It
waits for nothing, asks nobody and knows no clock: whoever holds the balancer's lock reads the
figures, calls it, and writes the wishes (docs/decisions/0022-interval-ownership.md).

An interval's **home** is the worker that is to own it: the one it is wanted by, if that lives,
else its owner, if that lives. An interval without a home is an *orphan*.

Workers that cannot reach each other cannot share a pipeline: records for who is out of touch would
wait for ever. `in_touch` says who goes on; to all others `plan` gives nothing, and takes from them
what they have.

A worker may have what no newer code than its own has owned (decision 28); what nobody alive may
have stays where it is, or an orphan.

1. Orphans get a home at once, all of them: where fewest intervals of the same computation are at
   home, then where there is least load. A decision that does so does nothing else: nobody who is
   well is disturbed because another died.
2. While a computation has fewer intervals than there are workers, its hottest ones are split.
3. By load: the hottest worker gives the interval that fits best to the coolest one.
4. By number: of each computation, and of all, no worker has two more than another, as far as load
   allows. So a worker that joined gets its share.
5. An interval hotter than a worker's fair share is split.
6. Cold neighbours of one home are merged while a computation has more intervals than it needs.

**Why it comes to rest.** Let e(w) be a worker's load above `placement_quiet_load`. Step 3 lowers
the sum of e², by a gain that is not small. Step 4 never raises it, and lowers the sum of squares
of the numbers of intervals per computation and worker, or leaves that one and lowers the sum of
squares per worker. So no assignment comes twice while the load stays as it is. A part of a split
that is still hot is narrower than what was split, what is merged is too cold to be split, and
nothing is merged below twice the number of workers, at which nothing is split for being few.
Against figures that tremble there are thresholds, and intervals that were moved, split or merged
of late (`recent`) are left alone. But steps 2 and 4 ask for no figures: what was just split may be split
again, or go to a worker that has two less of the computation, so that those who join need not wait
for their share.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal, TypeAlias

import msgspec

from millwheel.settings import Settings

SATURATED = 0.95
"""CPU seconds per second of a worker that has nothing left to give: Python's code runs on one
core. It gets nothing more for the sake of load."""

COLD = 0.25
"""Neighbours are merged if both together are below this part of what an interval is split for."""

SPLIT_RELIEF = 0.9
"""The larger part of a split has at most this part of the load, or it is one hot key: no split
helps."""


@dataclass(frozen=True)
class WorkerLoad:
    """A worker that is alive."""

    id: str
    cpu: float = 0.0
    """CPU seconds per second, as it said of itself: with what belongs to no interval."""
    started: int = 0
    """When it registered, microseconds; among equals the younger one gets more."""
    generation: int = 1
    """Of its code."""
    unreached: tuple[str, ...] = ()
    """Workers that it has tried to reach in vain for as long as a lease."""


class ReportedIntervalLoad(msgspec.Struct, frozen=True):
    """What an owner says that an interval costs him; fields as those of `IntervalLoad`."""

    cpu: float = 0.0
    records: float = 0.0
    queue: int = 0
    state_bytes: int = 0
    histogram: tuple[tuple[int, float], ...] = ()


class ReportedLoad(msgspec.Struct, frozen=True):
    """What a worker says of its load, with its heartbeat."""

    cpu: float = 0.0
    intervals: dict[int, ReportedIntervalLoad] = {}
    unreached: tuple[str, ...] = ()

    @classmethod
    def read(cls, load: Mapping[str, Any]) -> ReportedLoad:
        """What is there of it. A worker that has not measured anything yet says nothing, and what
        another version says may not be understood: then it counts as idle."""
        try:
            return msgspec.convert(load, cls, strict=False)
        except msgspec.ValidationError:
            return cls()

    def of(self, interval_id: int) -> ReportedIntervalLoad:
        """What it says of one interval."""
        return self.intervals.get(interval_id, ReportedIntervalLoad())


@dataclass(frozen=True)
class IntervalLoad:
    """An interval, who has it, and what it costs him."""

    id: int
    computation: str
    kind: Literal["injector", "computation", "relay"]
    slot_from: int
    slot_to: int
    """One past the last slot, or partition of an injector."""
    grain: int = 1
    """It can be cut at multiples of so many slots alone: its keys share what must stay together."""
    sequencer: int = 0
    """Handed through to whoever writes the wish: a compare-and-set on it."""
    generation: int = 1
    """Of the newest code that owned it: workers of older code cannot claim it."""
    owner: str | None = None
    wanted_by: str | None = None
    pinned: bool = False
    """An operator wishes it to be where it is wanted: while that worker lives, nothing is done."""
    to_be: Literal["split", "merged"] | None = None
    """What its owner is about to do with it; merged: with its upper neighbour."""
    cpu: float = 0.0
    """CPU seconds per second."""
    records: float = 0.0
    """Records per second."""
    queue: int = 0
    """Records that wait."""
    state_bytes: int = 0
    """State in the owner's memory, which the next one has to read."""
    histogram: tuple[tuple[int, float], ...] = ()
    """Load by slot: (first slot, load from there up to the next one's). Any unit; may be empty."""


@dataclass(frozen=True)
class Assign:
    """An interval that nobody alive owns, or is to own, gets a home."""

    interval: int
    worker: str
    reason: str


@dataclass(frozen=True)
class Move:
    """An interval that is at home with one worker shall be another's."""

    interval: int
    worker: str
    reason: str


@dataclass(frozen=True)
class Split:
    """An interval becomes two; `at` is the first slot of the upper one. Both stay at home."""

    interval: int
    at: int
    reason: str


@dataclass(frozen=True)
class Merge:
    """Two neighbours that are at home with one worker become one interval."""

    lower: int
    upper: int
    reason: str


Decision: TypeAlias = Assign | Move | Split | Merge


def in_touch(workers: Iterable[WorkerLoad]) -> list[WorkerLoad]:
    """Those that can share a pipeline: each of them reaches each other.

    Who is apart from fewest comes first, then who was there first: one that nobody reaches goes,
    and of two that do not reach each other the younger one, whose secret, certificate or address
    is the likelier to be wrong.
    """
    found = {worker.id: worker for worker in workers}
    apart: dict[str, set[str]] = {id_: set() for id_ in found}
    for worker in found.values():
        for other in found.keys() & set(worker.unreached):
            apart[worker.id].add(other)
            apart[other].add(worker.id)
    kept: list[WorkerLoad] = []
    for worker in sorted(found.values(), key=lambda w: (len(apart[w.id]), w.started, w.id)):
        if apart[worker.id].isdisjoint(other.id for other in kept):
            kept.append(worker)
    return kept


def plan(
    workers: Iterable[WorkerLoad],
    intervals: Iterable[IntervalLoad],
    settings: Settings,
    recent: Collection[int] = frozenset(),
    cut: Collection[int] = frozenset(),
) -> list[Decision]:
    """What should change now.

    Moves, splits and merges, with those that are still under way, are
    `settings.placement_moves` at the most; assignments are as many as there are orphans. Does
    not depend on the order of the arguments; no interval is named twice.

    Args:
        workers: those whose leases run, in touch with the others or not.
        intervals: all of the pipeline.
        recent: ids of intervals that were moved, split (both parts) or merged less than
            `settings.placement_cooldown_seconds` ago.
        cut: those of them that are parts of a split, and about which nothing was decided since.
    """
    workers = list(workers)
    alive = in_touch(workers)
    if not alive:
        return []
    left_out = {worker.id for worker in workers} - {worker.id for worker in alive}
    planner = _Planner(alive, left_out, sorted(intervals, key=_place), settings, recent, cut)
    planner.assign_orphans()
    if planner.decisions:
        return planner.decisions
    planner.split_few()
    planner.move_by_load()
    planner.move_by_number()
    planner.split_hot()
    planner.merge()
    return planner.decisions


def _place(interval: IntervalLoad) -> tuple[str, int, int]:
    return interval.computation, interval.slot_from, interval.id


class _Planner:
    """The state of one decision: where everything is at home, with what was decided so far."""

    def __init__(
        self,
        workers: list[WorkerLoad],
        left_out: set[str],
        intervals: list[IntervalLoad],
        settings: Settings,
        recent: Collection[int],
        cut: Collection[int],
    ) -> None:
        self.decisions: list[Decision] = []
        self._workers = {worker.id: worker for worker in workers}
        self._left_out = left_out
        """Workers that live and are out of touch."""
        self._intervals = intervals
        self._settings = settings
        self._home: dict[int, str] = {}
        self._load = dict.fromkeys(self._workers, 0.0)
        self._total: Counter[str] = Counter()
        self._number: Counter[tuple[str, str]] = Counter()
        self._fixed: set[int] = set(recent)
        """Intervals that nothing more is decided about, orphans aside."""
        self._cut: set[int] = set(cut)
        """Those of them that may be split or moved for the number of their computation alone."""
        self._budget = settings.placement_moves
        for interval in intervals:
            home = self._home_of(interval)
            if home is None:
                continue
            self._settle(interval, home)
            under_way = home != interval.owner
            if under_way and interval.owner in self._workers:
                self._budget -= 1
            if interval.to_be is not None:
                self._budget -= 1
            pinned = interval.pinned and interval.wanted_by == home
            if under_way or pinned or interval.to_be is not None:
                self._fixed.add(interval.id)
                self._cut.discard(interval.id)
        self._fair = sum(interval.cpu for interval in intervals) / len(workers)
        """Load of a worker, if all had the same."""
        self._hot = max(settings.placement_quiet_load, self._fair) * (
            1 + settings.placement_imbalance
        )
        """What is hotter than this has more than its share."""

    def _home_of(self, interval: IntervalLoad) -> str | None:
        if self._may_have(interval.wanted_by, interval):
            return interval.wanted_by
        # Its owner lets go of it if somebody else is wanted, even if that one is dead by now.
        return interval.owner if interval.wanted_by is None and self._owned(interval) else None

    def _owned(self, interval: IntervalLoad) -> bool:
        return self._may_have(interval.owner, interval)

    def _may_have(self, worker: str | None, interval: IntervalLoad) -> bool:
        """Whether a worker is alive, and its code not older than what the interval needs."""
        known = self._workers.get(worker or "")
        return known is not None and known.generation >= interval.generation

    def _settle(self, interval: IntervalLoad, home: str) -> None:
        self._home[interval.id] = home
        self._load[home] += interval.cpu
        self._total[home] += 1
        self._number[home, interval.computation] += 1

    def _unsettle(self, interval: IntervalLoad) -> str:
        home = self._home.pop(interval.id)
        self._load[home] -= interval.cpu
        self._total[home] -= 1
        self._number[home, interval.computation] -= 1
        return home

    def _move(self, interval: IntervalLoad, worker: str, reason: str) -> None:
        self._unsettle(interval)
        self._settle(interval, worker)
        self._spend(interval)
        self.decisions.append(Move(interval.id, worker, reason))

    def _spend(self, *intervals: IntervalLoad) -> None:
        self._budget -= 1
        ids = {interval.id for interval in intervals}
        self._fixed |= ids
        self._cut -= ids

    def _movable(self, home: str, *, with_cut: bool = False) -> list[IntervalLoad]:
        fixed = self._fixed - self._cut if with_cut else self._fixed
        return [
            interval
            for interval in self._intervals
            if self._home.get(interval.id) == home and interval.id not in fixed
        ]

    # -- orphans --------------------------------------------------------------------------------

    def assign_orphans(self) -> None:
        """Give each orphan a home, the hottest first."""
        orphans = [interval for interval in self._intervals if interval.id not in self._home]
        for interval in sorted(orphans, key=lambda orphan: (-orphan.cpu, _place(orphan))):
            worker = self._assignee(interval)
            self._fixed.add(interval.id)
            if worker is None:
                continue
            self._settle(interval, worker)
            self.decisions.append(Assign(interval.id, worker, self._why_orphan(interval)))

    def _assignee(self, interval: IntervalLoad) -> str | None:
        """Who has fewest of its computation; then who has least to do; then who has fewest.

        None: all who are alive run older code than it needs.
        """
        if self._owned(interval):  # wanted by a worker that died before it got it
            assert interval.owner is not None
            return interval.owner

        def preference(worker: str) -> tuple[int, float, int, float, int, str]:
            known = self._workers[worker]
            return (
                self._number[worker, interval.computation],
                self._load[worker],
                self._total[worker],
                known.cpu,
                -known.started,
                worker,
            )

        able = [worker for worker in self._workers if self._may_have(worker, interval)]
        return min(able, key=preference, default=None)

    def _why_orphan(self, interval: IntervalLoad) -> str:
        if self._owned(interval):
            return f"worker {interval.wanted_by}, who was to have it, {self._gone(interval.wanted_by)}: it stays"
        if interval.owner in self._workers:
            return (
                f"its owner {interval.owner} runs older code than generation {interval.generation}"
            )
        if interval.owner is not None:
            return f"its owner {interval.owner} {self._gone(interval.owner)}"
        if interval.wanted_by is not None:
            return f"nobody owns it, and {interval.wanted_by}, who was to have it, {self._gone(interval.wanted_by)}"
        return "nobody owns it"

    def _gone(self, worker: str | None) -> str:
        return "is out of touch" if worker in self._left_out else "is gone"

    # -- moves ----------------------------------------------------------------------------------

    def move_by_load(self) -> None:
        """While a worker is too hot, and one of its intervals makes a real difference elsewhere."""
        while self._budget > 0 and self._move_one_by_load():
            pass

    def _move_one_by_load(self) -> bool:
        by_load = sorted(self._load, key=lambda worker: (self._load[worker], worker))
        receivers = [w for w in by_load if self._workers[w].cpu < SATURATED]
        if not receivers:
            return False
        cool = receivers[0]
        for hot in reversed(by_load):
            before = self._load[hot]
            if before <= self._hot:
                return False
            found = self._best_fit(hot, cool)
            if found is None:
                continue
            reason = (
                f"{hot} has {before:.2f} of CPU and {cool} has {self._load[cool]:.2f}; it takes "
                f"{found.cpu:.2f} along"
            )
            self._move(found, cool, reason)
            return True
        return False

    def _best_fit(self, hot: str, cool: str) -> IntervalLoad | None:
        """What leaves the hotter one of both as cool as possible, if that is a gain."""

        def result(interval: IntervalLoad) -> float:
            return max(self._load[hot] - interval.cpu, self._load[cool] + interval.cpu)

        best = min(
            [interval for interval in self._movable(hot) if self._may_have(cool, interval)],
            key=lambda interval: (round(result(interval), 3), interval.state_bytes, interval.id),
            default=None,
        )
        if best is None:
            return None
        gain = self._load[hot] - result(best)
        return best if gain >= self._settings.placement_minimum_gain else None

    def move_by_number(self) -> None:
        """Until no worker has two more than another, of a computation and of all."""
        while self._budget > 0 and (self._move_one_of_a_computation() or self._move_one_of_all()):
            pass

    def _move_one_of_a_computation(self) -> bool:
        for computation in sorted({interval.computation for interval in self._intervals}):
            for giver, taker in self._unequal(
                {worker: self._number[worker, computation] for worker in self._workers}
            ):
                own = [
                    interval
                    for interval in self._movable(giver, with_cut=True)
                    if interval.computation == computation
                ]
                found = self._lightest(own, giver, taker)
                if found is not None:
                    reason = (
                        f"{giver} has {self._number[giver, computation]} intervals of "
                        f"{computation} and {taker} has {self._number[taker, computation]}"
                    )
                    self._move(found, taker, reason)
                    return True
        return False

    def _move_one_of_all(self) -> bool:
        for giver, taker in self._unequal({w: self._total[w] for w in self._workers}):
            # Those that the giver has more of: so no computation becomes less equal by it.
            spare = [
                interval
                for interval in self._movable(giver)
                if self._number[giver, interval.computation]
                > self._number[taker, interval.computation]
            ]
            found = self._lightest(spare, giver, taker)
            if found is not None:
                reason = (
                    f"{giver} has {self._total[giver]} intervals and {taker} has "
                    f"{self._total[taker]}"
                )
                self._move(found, taker, reason)
                return True
        return False

    def _unequal(self, numbers: dict[str, int]) -> list[tuple[str, str]]:
        """(giver, taker), the most unequal first, as long as a move makes them less unequal."""
        pairs = [
            (giver, taker)
            for taker in numbers
            for giver in numbers
            if numbers[giver] - numbers[taker] >= 2
        ]

        def preference(pair: tuple[str, str]) -> tuple[int, int, float, str, str]:
            giver, taker = pair
            return (
                numbers[taker] - numbers[giver],
                self._total[taker] - self._total[giver],
                self._load[taker] - self._load[giver],
                giver,
                taker,
            )

        return sorted(pairs, key=preference)

    def _lightest(
        self, candidates: list[IntervalLoad], giver: str, taker: str
    ) -> IntervalLoad | None:
        """What brings the two loads nearest to each other, without making the taker the hotter."""
        room = max(self._settings.placement_quiet_load, self._load[giver]) - self._load[taker]
        fitting = [
            interval
            for interval in candidates
            if interval.cpu <= room and self._may_have(taker, interval)
        ]
        difference = self._load[giver] - self._load[taker]
        return min(
            fitting,
            key=lambda interval: (
                round(abs(difference - 2 * interval.cpu), 3),
                interval.state_bytes,
                interval.id,
            ),
            default=None,
        )

    # -- splits and merges ----------------------------------------------------------------------

    def split_few(self) -> None:
        """Computations that cannot be everywhere."""
        numbers = self._numbers()
        for interval in self._by_heat():
            number = numbers[interval.computation]
            if number < len(self._workers) and interval.id not in self._fixed - self._cut:
                reason = f"{number} intervals are too few for {len(self._workers)} workers"
                self._split(interval, numbers, reason)

    def split_hot(self) -> None:
        """What is too hot for any worker."""
        numbers = self._numbers()
        for interval in self._by_heat():
            if (
                len(self._workers) > 1
                and interval.cpu > self._hot
                and interval.id not in self._fixed
            ):
                reason = f"it takes {interval.cpu:.2f} of CPU, a fair share is {self._fair:.2f}"
                self._split(interval, numbers, reason)

    def _by_heat(self) -> list[IntervalLoad]:
        """Those that may be split, the hottest first, then the widest."""
        found = [interval for interval in self._intervals if interval.kind != "injector"]
        return sorted(found, key=lambda i: (-i.cpu, i.slot_from - i.slot_to, i.id))

    def _split(self, interval: IntervalLoad, numbers: Counter[str], reason: str) -> None:
        """Split it, if there is a place to do so, and if there may be one more."""
        most = self._settings.placement_intervals_most
        if self._budget <= 0 or numbers[interval.computation] >= most:
            return
        at = split_at(interval)
        if at is None:
            return
        numbers[interval.computation] += 1
        self._spend(interval)
        self.decisions.append(Split(interval.id, at, reason))

    def _numbers(self) -> Counter[str]:
        """Intervals per computation, once what is under way is done."""
        numbers: Counter[str] = Counter()
        for interval in self._intervals:
            numbers[interval.computation] += {"split": 2, "merged": 0, None: 1}[interval.to_be]
        return numbers

    def merge(self) -> None:
        """Cold neighbours, the coldest first, of computations with more intervals than needed."""
        numbers = self._numbers()
        needed = max(self._settings.placement_intervals_least, 2 * len(self._workers))
        pairs = [
            (lower.cpu + upper.cpu, lower, upper)
            for lower, upper in pairwise(self._intervals)
            if lower.computation == upper.computation
            and lower.kind != "injector"
            and lower.slot_to == upper.slot_from
            and lower.cpu + upper.cpu <= COLD * self._hot
        ]
        for _, lower, upper in sorted(pairs, key=lambda pair: (pair[0], pair[1].id)):
            if self._budget <= 0:
                return
            if self._fixed & {lower.id, upper.id} or numbers[lower.computation] <= needed:
                continue
            if self._home[lower.id] != self._home[upper.id]:
                continue
            reason = (
                f"both have little to do, and {numbers[lower.computation]} intervals are more "
                f"than the {needed} that are needed"
            )
            numbers[lower.computation] -= 1
            self._spend(lower, upper)
            self.decisions.append(Merge(lower.id, upper.id, reason))


def split_at(interval: IntervalLoad) -> int | None:
    """The first slot of the upper part: where both have half of the load, or half of the slots.

    Always a multiple of the interval's grain. None: it is one grain of slots, or one of them has
    nearly all of its load.
    """
    if interval.slot_to - interval.slot_from < 2 * interval.grain:
        return None
    loads = [
        (max(slot, interval.slot_from), load)
        for slot, load in sorted(interval.histogram)
        if slot < interval.slot_to and load > 0
    ]
    total = sum(load for _, load in loads)
    if total <= 0:
        half = (interval.slot_from + interval.slot_to) // 2
        return half - half % interval.grain
    if interval.grain > 1:
        loads = _by_grain(interval, loads)
    best, largest = interval.slot_from, total
    below = 0.0
    for (_, load), (border, _) in pairwise([*loads, (interval.slot_to, 0.0)]):
        below += load
        if interval.slot_from < border < interval.slot_to and max(below, total - below) < largest:
            best, largest = border, max(below, total - below)
    if best > interval.slot_from and largest <= SPLIT_RELIEF * total:
        return best
    return _inside(interval, loads, total)


def _by_grain(interval: IntervalLoad, loads: list[tuple[int, float]]) -> list[tuple[int, float]]:
    """The same load by grains: that of a bar is taken to be even over its slots."""
    found = dict.fromkeys(range(interval.slot_from, interval.slot_to, interval.grain), 0.0)
    for (begin, load), (end, _) in pairwise([*loads, (interval.slot_to, 0.0)]):
        for grain in found:
            shared = min(end, grain + interval.grain) - max(begin, grain)
            if shared > 0:
                found[grain] += load * shared / (end - begin)
    return list(found.items())


def _inside(interval: IntervalLoad, loads: list[tuple[int, float]], total: float) -> int | None:
    """The middle of the bar that has nearly everything; None if that is a single slot."""
    ends = [*(slot for slot, _ in loads[1:]), interval.slot_to]
    hottest = max(range(len(loads)), key=lambda number: loads[number][1])
    begin, end = loads[hottest][0], ends[hottest]
    if end - begin < 2 * interval.grain:
        return None
    return (begin + end) // 2
