"""The balancer's decisions about the ownership of intervals: a pure function, without await or
clock (docs/decisions/0022-interval-ownership.md).

An interval's **home** is the live worker for which it is wanted, or otherwise its live owner. An
interval without a home is an *orphan*.

Workers that cannot reach each other cannot share a pipeline; `in_touch` selects those that
continue. `plan` gives no intervals to the others, and takes theirs away. A worker may own an
interval only if no newer code than its own has owned it (decision 28); one that no live worker may
own stays with its owner, or remains an orphan.

1. All orphans get a home at once: on the worker with the fewest intervals of the same computation,
   then on the one with the least load. Nothing more changes, so that the death of one worker does
   not disturb the others.
2. While a computation has fewer intervals than there are workers, its hottest ones are split.
3. By load: the hottest worker gives its best-fitting interval to the coolest worker.
4. By number: no worker has two intervals more than another, of each computation and in total, as
   far as the load allows. Thus a worker that joins gets its share.
5. An interval hotter than a worker's fair share is split.
6. Cold neighbours of one home are merged while a computation has more intervals than it needs.

**Why this converges.** Let e(w) be a worker's load above `placement_quiet_load`. Step 3 lowers the
sum of e². Step 4 never raises that sum, and either lowers the sum of squares of the numbers of
intervals per computation and worker, or keeps it and lowers the sum of squares per worker. So no
assignment occurs twice while the load stays the same. A hot part of a split is narrower than the
interval before; merged intervals are too cold to be split; nothing is merged below twice the number
of workers, where step 2 splits nothing. Thresholds absorb noise, and recently changed intervals
(`recent`) stay; but steps 2 and 4, which do not depend on figures, may use the parts of a recent
split, so that workers that join need not wait.
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
"""A worker is fully loaded at this, since Python code runs on one core."""

COLD = 0.25
"""Neighbours are merged if their joint load is below this part of the load that causes a split."""

SPLIT_RELIEF = 0.9
"""Maximum part of the load in one part of a split: with more there is one hot key."""


@dataclass(frozen=True)
class WorkerLoad:
    id: str
    cpu: float = 0.0
    """CPU seconds per second of the whole process."""
    started: int = 0
    """Time of its registration, in microseconds; among equal workers the younger one gets more."""
    generation: int = 1
    unreached: tuple[str, ...] = ()
    expired: bool = False
    only_keys: float = 1.0
    """The part of the keys that it may have; see `millwheel.runtime.ownership.canary`."""


class ReportedIntervalLoad(msgspec.Struct, frozen=True):
    cpu: float = 0.0
    records: float = 0.0
    """Records per second."""
    queue: int = 0
    state_bytes: int = 0
    histogram: tuple[tuple[int, float], ...] = ()


class ReportedLoad(msgspec.Struct, frozen=True):
    cpu: float = 0.0
    intervals: dict[int, ReportedIntervalLoad] = {}
    unreached: tuple[str, ...] = ()
    expired: bool = False
    only_keys: float = 1.0

    @classmethod
    def read(cls, load: Mapping[str, Any]) -> ReportedLoad:
        """A worker without a report that can be decoded counts as idle."""
        try:
            return msgspec.convert(load, cls, strict=False)
        except msgspec.ValidationError:
            return cls()

    def of(self, interval_id: int) -> ReportedIntervalLoad:
        return self.intervals.get(interval_id, ReportedIntervalLoad())


@dataclass(frozen=True)
class IntervalLoad:
    id: int
    computation: str
    kind: Literal["injector", "computation", "relay"]
    slot_from: int
    slot_to: int
    """One past the last slot, or partition of an injector."""
    grain: int = 1
    """The interval may be split at multiples of this number of slots."""
    sequencer: int = 0
    generation: int = 1
    """Newest generation of code that owned it; workers of older code cannot claim it."""
    owner: str | None = None
    wanted_by: str | None = None
    pinned: bool = False
    """An operator's wish: the interval stays on `wanted_by` while that worker is alive."""
    to_be: Literal["split", "merged"] | None = None
    """Pending change; a merge joins the interval with its upper neighbour."""
    cpu: float = 0.0
    """CPU seconds per second."""
    records: float = 0.0
    queue: int = 0
    state_bytes: int = 0
    histogram: tuple[tuple[int, float], ...] = ()
    """(first slot, load up to the next entry's first slot). Any unit; may be empty."""


@dataclass(frozen=True)
class Assign:
    interval: int
    worker: str
    reason: str


@dataclass(frozen=True)
class Move:
    interval: int
    worker: str
    reason: str


@dataclass(frozen=True)
class Split:
    """`at` is the first slot of the upper part; both keep the home."""

    interval: int
    at: int
    reason: str


@dataclass(frozen=True)
class Merge:
    lower: int
    upper: int
    reason: str


Decision: TypeAlias = Assign | Move | Split | Merge


def in_touch(workers: Iterable[WorkerLoad]) -> list[WorkerLoad]:
    """The workers that can share a pipeline: each of them reaches every other one.

    Chosen in order of the number of workers that they are cut off from, then of age: the younger
    one's secret, certificate or address is more likely to be wrong. A worker with an expired
    certificate comes last: it keeps no worker out that has renewed its own.
    """
    found = {worker.id: worker for worker in workers}
    apart: dict[str, set[str]] = {id_: set() for id_ in found}
    for worker in found.values():
        for other in found.keys() & set(worker.unreached):
            apart[worker.id].add(other)
            apart[other].add(worker.id)
    kept: list[WorkerLoad] = []
    for worker in sorted(
        found.values(), key=lambda w: (w.expired, len(apart[w.id]), w.started, w.id)
    ):
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
    """The changes to make now: at most `settings.placement_moves` moves, splits and merges,
    including those in progress, and an assignment for each orphan.

    The result does not depend on the order of the arguments; no interval occurs in it twice.

    Args:
        workers: all workers with a valid lease, whether they reach the others or not.
        recent: ids of intervals that were moved, split (both parts) or merged less than
            `settings.placement_cooldown_seconds` ago.
        cut: the recent intervals that are parts of a split and have no later decision.
    """
    workers = list(workers)
    alive = in_touch(workers)
    if not alive:
        return []
    left_out = {worker.id for worker in workers} - {worker.id for worker in alive}
    homes = _Homes(alive, left_out, sorted(intervals, key=_place), settings, recent, cut)
    _assign_orphans(homes)
    if homes.decisions:
        return homes.decisions
    _split_few(homes)
    _move_by_load(homes)
    _move_by_number(homes)
    _split_hot(homes)
    _merge(homes)
    return homes.decisions


def _place(interval: IntervalLoad) -> tuple[str, int, int]:
    return interval.computation, interval.slot_from, interval.id


class _Homes:
    """The homes of all intervals, with the decisions so far."""

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
        self.workers = {worker.id: worker for worker in workers}
        self.left_out = left_out
        self.intervals = intervals
        self.settings = settings
        self.home: dict[int, str] = {}
        self.load = dict.fromkeys(self.workers, 0.0)
        """CPU seconds per second."""
        self.total: Counter[str] = Counter()
        self.number: Counter[tuple[str, str]] = Counter()
        """Intervals by worker and computation."""
        self.fixed: set[int] = set(recent)
        """Intervals that no decision may change further, except orphans."""
        self.cut: set[int] = set(cut)
        """Fixed, but may still be split or moved to even out their computation's number."""
        self.budget = settings.placement_moves
        for interval in intervals:
            home = self._home_of(interval)
            if home is None:
                continue
            self.settle(interval, home)
            under_way = home != interval.owner
            if under_way and interval.owner in self.workers:
                self.budget -= 1
            if interval.to_be is not None:
                self.budget -= 1
            pinned = interval.pinned and interval.wanted_by == home
            if under_way or pinned or interval.to_be is not None:
                self.fixed.add(interval.id)
                self.cut.discard(interval.id)
        self.fair = sum(interval.cpu for interval in intervals) / len(workers)
        self.hot = max(settings.placement_quiet_load, self.fair) * (
            1 + settings.placement_imbalance
        )

    def _home_of(self, interval: IntervalLoad) -> str | None:
        if self.may_have(interval.wanted_by, interval):
            return interval.wanted_by
        # An owner releases the interval if another worker is wanted, even if that one has died.
        return interval.owner if interval.wanted_by is None and self.owned(interval) else None

    def owned(self, interval: IntervalLoad) -> bool:
        return self.may_have(interval.owner, interval)

    def may_have(self, worker: str | None, interval: IntervalLoad) -> bool:
        known = self.workers.get(worker or "")
        return known is not None and known.generation >= interval.generation

    def settle(self, interval: IntervalLoad, home: str) -> None:
        self.home[interval.id] = home
        self.load[home] += interval.cpu
        self.total[home] += 1
        self.number[home, interval.computation] += 1

    def _unsettle(self, interval: IntervalLoad) -> str:
        home = self.home.pop(interval.id)
        self.load[home] -= interval.cpu
        self.total[home] -= 1
        self.number[home, interval.computation] -= 1
        return home

    def move(self, interval: IntervalLoad, worker: str, reason: str) -> None:
        self._unsettle(interval)
        self.settle(interval, worker)
        self.spend(interval)
        self.decisions.append(Move(interval.id, worker, reason))

    def spend(self, *intervals: IntervalLoad) -> None:
        """No other decision may change these intervals then."""
        self.budget -= 1
        ids = {interval.id for interval in intervals}
        self.fixed |= ids
        self.cut -= ids

    def movable(self, home: str, *, with_cut: bool = False) -> list[IntervalLoad]:
        """`with_cut` includes parts of a recent split."""
        fixed = self.fixed - self.cut if with_cut else self.fixed
        return [
            interval
            for interval in self.intervals
            if self.home.get(interval.id) == home and interval.id not in fixed
        ]


# -- orphans ---------------------------------------------------------------------------------------


def _assign_orphans(homes: _Homes) -> None:
    orphans = [interval for interval in homes.intervals if interval.id not in homes.home]
    for interval in sorted(orphans, key=lambda orphan: (-orphan.cpu, _place(orphan))):
        worker = _assignee(homes, interval)
        homes.fixed.add(interval.id)
        if worker is None:
            continue
        homes.settle(interval, worker)
        homes.decisions.append(Assign(interval.id, worker, _why_orphan(homes, interval)))


def _assignee(homes: _Homes, interval: IntervalLoad) -> str | None:
    """Fewest intervals of the computation, then least load, then fewest of all; None: all run too
    old code."""
    if homes.owned(interval):  # the wanted worker died before it got the interval
        assert interval.owner is not None
        return interval.owner

    def preference(worker: str) -> tuple[int, float, int, float, int, str]:
        known = homes.workers[worker]
        return (
            homes.number[worker, interval.computation],
            homes.load[worker],
            homes.total[worker],
            known.cpu,
            -known.started,
            worker,
        )

    able = [worker for worker in homes.workers if homes.may_have(worker, interval)]
    return min(able, key=preference, default=None)


def _why_orphan(homes: _Homes, interval: IntervalLoad) -> str:
    if homes.owned(interval):
        return (
            f"worker {interval.wanted_by}, its next owner, {_gone(homes, interval.wanted_by)}: it "
            "stays"
        )
    if interval.owner in homes.workers:
        return f"its owner {interval.owner} runs older code than generation {interval.generation}"
    if interval.owner is not None:
        return f"its owner {interval.owner} {_gone(homes, interval.owner)}"
    if interval.wanted_by is not None:
        return (
            f"it has no owner, and {interval.wanted_by}, its next owner, "
            f"{_gone(homes, interval.wanted_by)}"
        )
    return "it has no owner"


def _gone(homes: _Homes, worker: str | None) -> str:
    return "is unreachable" if worker in homes.left_out else "is gone"


# -- moves -----------------------------------------------------------------------------------------


def _move_by_load(homes: _Homes) -> None:
    while homes.budget > 0 and _move_one_by_load(homes):
        pass


def _move_one_by_load(homes: _Homes) -> bool:
    by_load = sorted(homes.load, key=lambda worker: (homes.load[worker], worker))
    receivers = [w for w in by_load if homes.workers[w].cpu < SATURATED]
    if not receivers:
        return False
    cool = receivers[0]
    for hot in reversed(by_load):
        before = homes.load[hot]
        if before <= homes.hot:
            return False
        found = _best_fit(homes, hot, cool)
        if found is None:
            continue
        reason = (
            f"{hot} uses {before:.2f} of a CPU and {cool} uses {homes.load[cool]:.2f}; the move "
            f"takes {found.cpu:.2f} along"
        )
        homes.move(found, cool, reason)
        return True
    return False


def _best_fit(homes: _Homes, hot: str, cool: str) -> IntervalLoad | None:
    """The interval that leaves the hotter of both workers coolest, if the gain is large enough."""

    def result(interval: IntervalLoad) -> float:
        return max(homes.load[hot] - interval.cpu, homes.load[cool] + interval.cpu)

    best = min(
        [interval for interval in homes.movable(hot) if homes.may_have(cool, interval)],
        key=lambda interval: (round(result(interval), 3), interval.state_bytes, interval.id),
        default=None,
    )
    if best is None:
        return None
    gain = homes.load[hot] - result(best)
    return best if gain >= homes.settings.placement_minimum_gain else None


def _move_by_number(homes: _Homes) -> None:
    """No worker has two more than another then, per computation and in total."""
    while homes.budget > 0 and (_move_one_of_a_computation(homes) or _move_one_of_all(homes)):
        pass


def _move_one_of_a_computation(homes: _Homes) -> bool:
    for computation in sorted({interval.computation for interval in homes.intervals}):
        for giver, taker in _unequal(
            homes, {worker: homes.number[worker, computation] for worker in homes.workers}
        ):
            own = [
                interval
                for interval in homes.movable(giver, with_cut=True)
                if interval.computation == computation
            ]
            found = _lightest(homes, own, giver, taker)
            if found is not None:
                reason = (
                    f"{giver} has {homes.number[giver, computation]} intervals of "
                    f"{computation} and {taker} has {homes.number[taker, computation]}"
                )
                homes.move(found, taker, reason)
                return True
    return False


def _move_one_of_all(homes: _Homes) -> bool:
    for giver, taker in _unequal(homes, {w: homes.total[w] for w in homes.workers}):
        # Only of computations of which the giver has more, so that none becomes less even.
        spare = [
            interval
            for interval in homes.movable(giver)
            if homes.number[giver, interval.computation] > homes.number[taker, interval.computation]
        ]
        found = _lightest(homes, spare, giver, taker)
        if found is not None:
            reason = (
                f"{giver} has {homes.total[giver]} intervals and {taker} has {homes.total[taker]}"
            )
            homes.move(found, taker, reason)
            return True
    return False


def _unequal(homes: _Homes, numbers: dict[str, int]) -> list[tuple[str, str]]:
    """(giver, taker), the most unequal first."""
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
            homes.total[taker] - homes.total[giver],
            homes.load[taker] - homes.load[giver],
            giver,
            taker,
        )

    return sorted(pairs, key=preference)


def _lightest(
    homes: _Homes, candidates: list[IntervalLoad], giver: str, taker: str
) -> IntervalLoad | None:
    """The interval that best evens out both loads, without making the taker the hotter one."""
    room = max(homes.settings.placement_quiet_load, homes.load[giver]) - homes.load[taker]
    fitting = [
        interval
        for interval in candidates
        if interval.cpu <= room and homes.may_have(taker, interval)
    ]
    difference = homes.load[giver] - homes.load[taker]
    return min(
        fitting,
        key=lambda interval: (
            round(abs(difference - 2 * interval.cpu), 3),
            interval.state_bytes,
            interval.id,
        ),
        default=None,
    )


# -- splits and merges -----------------------------------------------------------------------------


def _split_few(homes: _Homes) -> None:
    numbers = _numbers(homes)
    for interval in _by_heat(homes):
        number = numbers[interval.computation]
        if number < len(homes.workers) and interval.id not in homes.fixed - homes.cut:
            reason = f"{number} intervals are too few for {len(homes.workers)} workers"
            _split(homes, interval, numbers, reason)


def _split_hot(homes: _Homes) -> None:
    numbers = _numbers(homes)
    for interval in _by_heat(homes):
        if len(homes.workers) > 1 and interval.cpu > homes.hot and interval.id not in homes.fixed:
            reason = f"it uses {interval.cpu:.2f} of a CPU; a fair share is {homes.fair:.2f}"
            _split(homes, interval, numbers, reason)


def _by_heat(homes: _Homes) -> list[IntervalLoad]:
    """The hottest first, then the widest."""
    found = [interval for interval in homes.intervals if interval.kind != "injector"]
    return sorted(found, key=lambda i: (-i.cpu, i.slot_from - i.slot_to, i.id))


def _split(homes: _Homes, interval: IntervalLoad, numbers: Counter[str], reason: str) -> None:
    limit = homes.settings.placement_intervals_most
    if homes.budget <= 0 or numbers[interval.computation] >= limit:
        return
    at = split_at(interval)
    if at is None:
        return
    numbers[interval.computation] += 1
    homes.spend(interval)
    homes.decisions.append(Split(interval.id, at, reason))


def _numbers(homes: _Homes) -> Counter[str]:
    """Intervals of each computation after all pending changes."""
    numbers: Counter[str] = Counter()
    for interval in homes.intervals:
        numbers[interval.computation] += {"split": 2, "merged": 0, None: 1}[interval.to_be]
    return numbers


def _merge(homes: _Homes) -> None:
    """The coldest first, of computations with more intervals than needed."""
    numbers = _numbers(homes)
    needed = max(homes.settings.placement_intervals_least, 2 * len(homes.workers))
    pairs = [
        (lower.cpu + upper.cpu, lower, upper)
        for lower, upper in pairwise(homes.intervals)
        if lower.computation == upper.computation
        and lower.kind != "injector"
        and lower.slot_to == upper.slot_from
        and lower.cpu + upper.cpu <= COLD * homes.hot
    ]
    for _, lower, upper in sorted(pairs, key=lambda pair: (pair[0], pair[1].id)):
        if homes.budget <= 0:
            return
        if homes.fixed & {lower.id, upper.id} or numbers[lower.computation] <= needed:
            continue
        if homes.home[lower.id] != homes.home[upper.id]:
            continue
        reason = (
            f"both have little load, and {numbers[lower.computation]} intervals are more "
            f"than the {needed} needed"
        )
        numbers[lower.computation] -= 1
        homes.spend(lower, upper)
        homes.decisions.append(Merge(lower.id, upper.id, reason))


def split_at(interval: IntervalLoad) -> int | None:
    """The first slot of the upper part, so that both parts have half the load, or half the slots.

    A multiple of the grain. None: the interval is one grain wide, or one grain has nearly all of
    its load.
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
    """The same load by grains; each entry is distributed evenly over its slots."""
    found = dict.fromkeys(range(interval.slot_from, interval.slot_to, interval.grain), 0.0)
    for (begin, load), (end, _) in pairwise([*loads, (interval.slot_to, 0.0)]):
        for grain in found:
            shared = min(end, grain + interval.grain) - max(begin, grain)
            if shared > 0:
                found[grain] += load * shared / (end - begin)
    return list(found.items())


def _inside(interval: IntervalLoad, loads: list[tuple[int, float]], total: float) -> int | None:
    """The middle of the entry with nearly all load; None if it is too narrow to be split."""
    ends = [*(slot for slot, _ in loads[1:]), interval.slot_to]
    hottest = max(range(len(loads)), key=lambda number: loads[number][1])
    begin, end = loads[hottest][0], ends[hottest]
    if end - begin < 2 * interval.grain:
        return None
    return (begin + end) // 2
