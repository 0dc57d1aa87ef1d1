"""The balancer's decisions: what each rule does, and that they always come to rest."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations, pairwise
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from millwheel import Settings
from millwheel.core.model import SLOTS
from millwheel.runtime.ownership.canary import ENOUGH, plan_beside
from millwheel.runtime.ownership.planner import (
    Assign,
    Decision,
    IntervalLoad,
    Merge,
    Move,
    Split,
    WorkerLoad,
    in_touch,
    plan,
    split_at,
)
from tests.support.examples import examples

SETTINGS = Settings()
STEPS = 400
"""More decisions than any of the random clusters needs (the worst of 4,000 took 90)."""


def workers(*ids: str) -> list[WorkerLoad]:
    return [WorkerLoad(id) for id in ids]


def intervals(
    owners: Iterable[str | None],
    *,
    cpu: Iterable[float] | float = 0.0,
    computation: str = "count",
    first: int = 1,
) -> list[IntervalLoad]:
    """Intervals of one computation of equal width, one per owner."""
    owners = list(owners)
    loads = [cpu] * len(owners) if isinstance(cpu, float) else list(cpu)
    borders = [SLOTS * number // len(owners) for number in range(len(owners) + 1)]
    return [
        replace(
            IntervalLoad(first + n, computation, "computation", borders[n], borders[n + 1]),
            owner=owner,
            cpu=loads[n],
        )
        for n, owner in enumerate(owners)
    ]


# -- a cluster in which decisions take effect ----------------------------------------------------


@dataclass
class Cluster:
    """Workers and intervals under a load that belongs to slots, and that does not change."""

    workers: list[WorkerLoad]
    intervals: list[IntervalLoad]
    settings: Settings = SETTINGS
    spots: dict[str, dict[int, float]] = field(default_factory=dict)
    """Computation to slot to CPU seconds per second."""
    measured: bool = True
    """Whether the load by slot is told."""
    delay: bool = False
    """An interval is claimed only after the next decision."""
    cooldown: int = 1
    """Decisions for which an interval counts as changed of late."""
    changed: dict[int, int] = field(default_factory=dict)
    cut: set[int] = field(default_factory=set)
    """Those of them that are parts of a split, and not moved since."""
    plan: Callable[..., list[Decision]] = plan

    def look(self) -> list[IntervalLoad]:
        return [self._with_load(interval) for interval in self.intervals]

    def _with_load(self, interval: IntervalLoad) -> IntervalLoad:
        inside = {
            slot: cpu
            for slot, cpu in self.spots.get(interval.computation, {}).items()
            if interval.slot_from <= slot < interval.slot_to
        }
        bars: dict[int, float] = {}
        for slot, cpu in inside.items():
            bars |= {slot: cpu, slot + 1: inside.get(slot + 1, 0.0)}
        return replace(
            interval,
            cpu=sum(inside.values()),
            histogram=tuple(sorted(bars.items())) if self.measured else (),
        )

    def decide(self) -> list[Decision]:
        recent = {id for id, left in self.changed.items() if left > 0}
        self.cut &= recent
        decisions = self.plan(self.workers, self.look(), self.settings, recent, self.cut)
        self.check(decisions)
        return decisions

    def check(self, decisions: list[Decision]) -> None:
        alive = {worker.id for worker in self.workers}
        by_id = {interval.id: interval for interval in self.intervals}
        limited = [decision for decision in decisions if not isinstance(decision, Assign)]
        assert len(limited) <= self.settings.placement_moves
        named = [id for decision in decisions for id in ids_of(decision)]
        assert len(named) == len(set(named))
        for decision in decisions:
            assert decision.reason
            for id in ids_of(decision):
                interval = by_id[id]
                fixed = interval.pinned and interval.wanted_by in alive
                assert not fixed, "an operator's wish was overruled"
                for_number = id in self.cut and not isinstance(decision, Merge)
                if not (isinstance(decision, Assign) or for_number):
                    assert not self.changed.get(id), "not left alone"
            if isinstance(decision, Assign | Move):
                assert decision.worker in alive
            if isinstance(decision, Move):
                assert by_id[decision.interval].owner in alive
                assert by_id[decision.interval].owner != decision.worker
            if isinstance(decision, Split):
                interval = by_id[decision.interval]
                assert interval.slot_from < decision.at < interval.slot_to
                assert interval.kind != "injector"
            if isinstance(decision, Merge):
                lower, upper = by_id[decision.lower], by_id[decision.upper]
                assert lower.slot_to == upper.slot_from
                assert lower.computation == upper.computation
                assert (lower.owner, lower.kind) == (upper.owner, upper.kind) != (None, "injector")

    def settle(self) -> None:
        """Whoever is wanted claims what he is wanted for."""
        alive = {worker.id for worker in self.workers}
        self.intervals = [
            replace(interval, owner=interval.wanted_by) if interval.wanted_by in alive else interval
            for interval in self.intervals
        ]

    def apply(self, decisions: list[Decision]) -> None:
        if self.delay:
            self.settle()
        self.changed = {id: left - 1 for id, left in self.changed.items() if left > 1}
        for decision in decisions:
            before = {interval.id for interval in self.intervals}
            self._apply_one(decision)
            if not isinstance(decision, Assign) and self.cooldown:
                self.changed.update(dict.fromkeys(ids_of(decision), self.cooldown))
                self.cut.difference_update(ids_of(decision))
            if isinstance(decision, Split):
                self.cut |= {i.id for i in self.intervals} - before | {decision.interval}
        if not self.delay:
            self.settle()

    def _apply_one(self, decision: Decision) -> None:
        by_id = {interval.id: interval for interval in self.intervals}
        new = max(by_id, default=0) + 1
        match decision:
            case Assign(id, worker) | Move(id, worker):
                by_id[id] = replace(by_id[id], wanted_by=worker, pinned=False)
            case Split(id, at):
                parent = by_id[id]
                by_id[id] = replace(parent, slot_to=at)
                by_id[new] = replace(parent, id=new, slot_from=at)
                self.changed[new] = self.cooldown
            case Merge(lower, upper):
                by_id[new] = replace(by_id.pop(lower), id=new, slot_to=by_id.pop(upper).slot_to)
                self.changed[new] = self.cooldown
        self.intervals = list(by_id.values())

    def come_to_rest(self) -> list[list[Decision]]:
        """Decide until nothing is left to do, also for those that were left alone."""
        past: list[list[Decision]] = []
        for _ in range(STEPS):
            decisions = self.decide()
            under_way = any(i.wanted_by not in (None, i.owner) for i in self.intervals)
            if not decisions and not self.changed and not under_way:
                return past
            past.append(decisions)
            self.apply(decisions)
        pytest.fail(f"still busy after {STEPS} decisions: {past[-3:]}")

    def covered(self) -> dict[str, list[tuple[int, int]]]:
        """Per computation, the ranges that are owned, with neighbours put together."""
        found: dict[str, list[tuple[int, int]]] = {}
        for interval in sorted(self.intervals, key=lambda i: (i.computation, i.slot_from)):
            ranges = found.setdefault(interval.computation, [])
            if ranges and ranges[-1][1] == interval.slot_from:
                ranges[-1] = (ranges[-1][0], interval.slot_to)
            else:
                ranges.append((interval.slot_from, interval.slot_to))
        return found


def ids_of(decision: Decision) -> tuple[int, ...]:
    if isinstance(decision, Merge):
        return decision.lower, decision.upper
    return (decision.interval,)


NAMES = ("ann", "bob", "cid", "dan", "eve")
DEAD = ("rip", "zoe")


@st.composite
def clusters(draw: st.DrawFn, *, most_workers: int = 5, loaded: bool = True) -> Cluster:
    alive = NAMES[: draw(st.integers(1, most_workers))]
    published = st.sampled_from((0.0, 0.3, 0.7, 1.0))
    found: list[IntervalLoad] = []
    spots: dict[str, dict[int, float]] = {}
    for number in range(draw(st.integers(1, 4))):
        computation = f"c{number}"
        kind: Literal["injector", "computation"] = draw(
            st.sampled_from(("computation", "injector"))
        )
        if kind == "injector":
            borders = list(range(draw(st.integers(1, 6)) + 1))
        else:
            inner = draw(st.sets(st.integers(1, SLOTS - 1), max_size=12))
            borders = [0, *sorted(inner), SLOTS]
        for low, high in pairwise(borders):
            owner = draw(st.sampled_from((None, *alive, *DEAD)))
            wanted = draw(st.sampled_from((None, None, *alive, *DEAD)))
            pinned = wanted is not None and draw(st.booleans()) and draw(st.booleans())
            found.append(
                IntervalLoad(len(found) + 1, computation, kind, low, high, owner=owner,
                             wanted_by=wanted, pinned=pinned)
            )  # fmt: skip
        if loaded:
            slots = st.integers(0, borders[-1] - 1)
            spots[computation] = draw(
                st.dictionaries(slots, st.floats(0.001, 1.5), max_size=10)
            )  # fmt: skip
    return Cluster(
        [WorkerLoad(name, draw(published), draw(st.integers(0, 2))) for name in alive],
        found,
        Settings(
            placement_moves=draw(st.integers(1, 5)),
            placement_minimum_gain=draw(st.sampled_from((0.02, 0.1, 0.3))),
            placement_imbalance=draw(st.sampled_from((0.0, 0.2, 1.0))),
            placement_quiet_load=draw(st.sampled_from((0.0, 0.2, 0.5))),
            placement_intervals_most=draw(st.sampled_from((1, 8, 64))),
            placement_intervals_least=draw(st.sampled_from((1, 4, 8))),
        ),
        spots,
        measured=draw(st.booleans()),
        delay=draw(st.booleans()),
        cooldown=draw(st.integers(0, 2)),
    )


@given(clusters())
@hypothesis_settings(max_examples=examples(80), deadline=None)
def test_from_any_state_it_comes_to_rest_with_everything_owned(cluster: Cluster) -> None:
    covered = cluster.covered()
    before = Counter(interval.computation for interval in cluster.intervals)
    cluster.come_to_rest()
    cluster.settle()
    alive = {worker.id for worker in cluster.workers}
    assert all(interval.owner in alive for interval in cluster.intervals)
    assert cluster.covered() == covered
    assert all(interval.slot_from < interval.slot_to for interval in cluster.intervals)
    for computation, number in Counter(i.computation for i in cluster.intervals).items():
        most = cluster.settings.placement_intervals_most
        assert number <= max(before[computation], most)
    assert cluster.decide() == []


@given(clusters(), st.randoms(use_true_random=False))
@hypothesis_settings(max_examples=examples(50), deadline=None)
def test_the_order_of_what_is_told_does_not_matter(cluster: Cluster, chance: random.Random) -> None:
    for _ in range(6):
        told = cluster.look()
        shuffled = chance.sample(told, len(told))
        others = chance.sample(cluster.workers, len(cluster.workers))
        one = plan(cluster.workers, told, cluster.settings)
        assert plan(others, shuffled, cluster.settings) == one
        cluster.apply(one)
        cluster.settle()


@given(clusters())
@hypothesis_settings(max_examples=examples(50), deadline=None)
def test_a_death_moves_only_what_the_dead_one_had(cluster: Cluster) -> None:
    cluster.come_to_rest()
    cluster.settle()
    if len(cluster.workers) == 1:
        return
    dead = cluster.workers.pop(0).id
    his = {interval.id for interval in cluster.intervals if interval.owner == dead}
    decisions = cluster.decide()
    if his:
        assert {d.interval for d in decisions if isinstance(d, Assign)} == his
        assert len(decisions) == len(his)
    cluster.apply(decisions)
    cluster.settle()
    assert all(interval.owner != dead for interval in cluster.intervals)
    cluster.come_to_rest()


@given(clusters(loaded=False))
@hypothesis_settings(max_examples=examples(50), deadline=None)
def test_without_load_everybody_has_the_same_number(cluster: Cluster) -> None:
    cluster.intervals = [replace(interval, pinned=False) for interval in cluster.intervals]
    cluster.come_to_rest()
    found = Counter((interval.owner, interval.computation) for interval in cluster.intervals)
    total = Counter(interval.owner for interval in cluster.intervals)
    for computation in {interval.computation for interval in cluster.intervals}:
        numbers = [found[worker.id, computation] for worker in cluster.workers]
        assert max(numbers) - min(numbers) <= 1
    numbers = [total[worker.id] for worker in cluster.workers]
    assert max(numbers) - min(numbers) <= 1


@given(clusters(most_workers=4))
@hypothesis_settings(max_examples=examples(50), deadline=None)
def test_a_worker_that_joins_is_given_something_and_gives_nothing_back(cluster: Cluster) -> None:
    cluster.intervals = [replace(interval, pinned=False) for interval in cluster.intervals]
    cluster.workers = [replace(worker, cpu=0.0) for worker in cluster.workers]
    cluster.come_to_rest()
    cluster.settle()
    cluster.workers.append(WorkerLoad("new", started=9))
    decisions = [decision for step in cluster.come_to_rest() for decision in step]
    cluster.settle()
    if len(cluster.intervals) >= 2 * len(cluster.workers):
        assert any(interval.owner == "new" for interval in cluster.intervals)
    if not any(isinstance(d, Split | Merge) for d in decisions) and not any(cluster.spots.values()):
        moved = [d.interval for d in decisions if isinstance(d, Move)]
        assert len(moved) == len(set(moved)) == len(decisions)
        # Its share, and what evens out where others were taken more from than others.
        share = -(-len(cluster.intervals) // len(cluster.workers))
        computations = len({interval.computation for interval in cluster.intervals})
        assert len(moved) <= share + computations


# -- canaries ------------------------------------------------------------------------------------


def slots_of(cluster: Cluster, worker: str) -> Counter[str]:
    return Counter(
        {
            computation: sum(
                i.slot_to - i.slot_from
                for i in cluster.intervals
                if i.owner == worker and i.computation == computation
            )
            for computation in {i.computation for i in cluster.intervals if i.kind != "injector"}
        }
    )


@given(clusters(most_workers=4), st.sampled_from((0.001, 0.05, 0.3, 0.9)))
@hypothesis_settings(max_examples=examples(30), deadline=None)
def test_a_canary_gets_its_part_of_the_keys_and_no_more(cluster: Cluster, part: float) -> None:
    cluster.intervals = [
        replace(interval, pinned=False, generation=1) for interval in cluster.intervals
    ]
    cluster.plan = plan_beside
    covered = cluster.covered()
    cluster.come_to_rest()
    cluster.settle()
    canary = WorkerLoad("tweety", started=9, generation=2, only_keys=part)
    cluster.workers.append(canary)
    for death in (False, True):
        if death and len(cluster.workers) > 2:
            cluster.workers.pop(0)
        cluster.come_to_rest()
        cluster.settle()
        target = round(part * SLOTS)
        for slots in slots_of(cluster, "tweety").values():
            assert ENOUGH * target <= slots <= target
        assert not [i for i in cluster.intervals if i.kind == "injector" and i.owner == "tweety"]
        assert cluster.covered() == covered
    cluster.workers[:-1] = []
    assert cluster.decide() == [], "the canary is alone, and what others had waits for them"


def test_a_canary_that_was_alone_gives_back_what_others_may_own() -> None:
    canary = WorkerLoad("tweety", only_keys=0.25)
    cluster = Cluster(
        [canary],
        [
            IntervalLoad(1, "rows", "injector", 0, 1),
            IntervalLoad(2, "count", "computation", 0, SLOTS),
        ],
        plan=plan_beside,
    )
    cluster.come_to_rest()
    cluster.settle()
    assert all(interval.owner == "tweety" for interval in cluster.intervals)
    cluster.workers.append(WorkerLoad("ann"))
    cluster.come_to_rest()
    cluster.settle()
    assert slots_of(cluster, "tweety") == {"count": SLOTS // 4}
    assert slots_of(cluster, "ann") == {"count": 3 * SLOTS // 4}
    assert {i.owner for i in cluster.intervals if i.kind == "injector"} == {"ann"}


def test_a_canary_of_former_code_gets_nothing_that_newer_code_has_owned() -> None:
    cluster = Cluster(
        [WorkerLoad("ann", generation=2), WorkerLoad("tweety", only_keys=0.25)],
        [IntervalLoad(1, "count", "computation", 0, SLOTS, generation=2, owner="ann")],
        plan=plan_beside,
    )
    assert cluster.decide() == []


def test_what_only_the_code_of_the_canary_may_own_is_all_its_own() -> None:
    cluster = Cluster(
        [WorkerLoad("ann"), WorkerLoad("tweety", generation=2, only_keys=0.05)],
        [
            IntervalLoad(1, "old", "computation", 0, SLOTS, owner="ann"),
            IntervalLoad(2, "new", "computation", 0, SLOTS, generation=2),
        ],
        plan=plan_beside,
    )
    cluster.come_to_rest()
    cluster.settle()
    assert slots_of(cluster, "tweety") == {"old": round(0.05 * SLOTS), "new": SLOTS}
    cluster.workers.append(WorkerLoad("bob", generation=2))
    cluster.workers.pop(1)
    cluster.come_to_rest()
    cluster.settle()
    assert all(interval.owner in ("ann", "bob") for interval in cluster.intervals)


# -- one rule each -------------------------------------------------------------------------------


@given(st.integers(1, 6), st.sets(st.tuples(st.integers(0, 5), st.integers(0, 6))), st.randoms())
def test_those_in_touch_all_reach_each_other(
    number: int, unreached: set[tuple[int, int]], chance: random.Random
) -> None:
    found = [
        WorkerLoad(f"w{n}", started=n, unreached=tuple(f"w{b}" for a, b in unreached if a == n))
        for n in range(number)
    ]

    def apart(one: WorkerLoad, other: WorkerLoad) -> bool:
        return one.id in other.unreached or other.id in one.unreached

    kept = in_touch(found)
    assert not any(apart(one, other) for one, other in combinations(kept, 2))
    for worker in found:
        assert worker in kept or any(apart(worker, other) for other in kept)
    chance.shuffle(found)
    assert in_touch(found) == kept


def test_who_says_that_its_certificate_has_expired_keeps_nobody_out() -> None:
    eldest = WorkerLoad("a", started=0, unreached=("b",), expired=True)
    b, c = WorkerLoad("b", started=1), WorkerLoad("c", started=2)
    assert in_touch([eldest, b]) == [b]
    assert in_touch([eldest, b, c]) == [c, b]
    assert in_touch([eldest, c]) == [c, eldest], "its links are still up"
    assert in_touch([eldest]) == [eldest]


def test_who_is_reached_by_nobody_goes_and_of_two_the_younger() -> None:
    eldest = WorkerLoad("a", started=0, unreached=("b", "c", "dead"))
    b, c = WorkerLoad("b", started=1), WorkerLoad("c", started=2)
    assert in_touch([eldest, b, c]) == [b, c]
    assert in_touch([eldest, b]) == [eldest]
    assert in_touch([b, eldest]) == [eldest]
    assert in_touch([eldest]) == [eldest]


def test_what_is_with_somebody_out_of_touch_is_given_to_others() -> None:
    a, b, c = workers("a", "b", "c")
    b = replace(b, unreached=("a", "c"))
    held, wished, free = intervals(["b", "a", None])
    found = [held, replace(wished, wanted_by="b"), replace(free, wanted_by="b")]
    told = [d for d in plan([a, b, c], found, SETTINGS) if isinstance(d, Assign)]
    assert {decision.worker for decision in told} == {"a", "c"}
    assert {decision.reason for decision in told} == {
        "its owner b is unreachable",
        "worker b, its next owner, is unreachable: it stays",
        "it has no owner, and b, its next owner, is unreachable",
    }


def test_nobody_is_there() -> None:
    assert plan([], intervals(["ann", None]), SETTINGS) == []
    assert plan(workers("ann"), [], SETTINGS) == []


def test_all_orphans_are_assigned_at_once_spread_by_computation() -> None:
    state = [
        *intervals([None] * 8),
        *intervals(["rip"] * 4, computation="join", first=11),
        replace(intervals([None], computation="lines", first=21)[0], kind="injector"),
    ]
    decisions = plan(workers("ann", "bob"), state, SETTINGS)
    assert all(isinstance(decision, Assign) for decision in decisions)
    given = Counter(
        (decision.worker, by_id(state)[decision.interval].computation)
        for decision in decisions
        if isinstance(decision, Assign)
    )
    assert given["ann", "count"] == given["bob", "count"] == 4
    assert given["ann", "join"] == given["bob", "join"] == 2
    assert given["ann", "lines"] + given["bob", "lines"] == 1
    told = {decision.reason for decision in decisions}
    assert told == {"it has no owner", "its owner rip is gone"}


def test_partitions_of_many_injectors_are_spread_too() -> None:
    state = [
        replace(intervals([None], computation=f"in{n}", first=n)[0], kind="injector")
        for n in range(10)
    ]
    given = Counter(
        d.worker for d in plan(workers("ann", "bob"), state, SETTINGS) if isinstance(d, Assign)
    )
    assert given == {"ann": 5, "bob": 5}
    # Of each there is one, and still a worker that joins gets its share.
    cluster = Cluster(workers("ann", "bob"), [replace(i, owner="ann") for i in state])
    cluster.come_to_rest()
    assert Counter(i.owner for i in cluster.intervals) == {"ann": 5, "bob": 5}


def test_hot_orphans_are_not_put_together() -> None:
    state = intervals(["ann", "bob", None, None], cpu=[0.1, 0.1, 0.8, 0.7])
    decisions = plan(workers("ann", "bob"), state, SETTINGS)
    assert {d.interval: d.worker for d in decisions if isinstance(d, Assign)} == {
        3: "ann",
        4: "bob",
    }


def test_orphans_are_spread_by_computation_before_load() -> None:
    state = [
        *intervals(["ann", None], cpu=0.05),
        *intervals(["bob"], cpu=0.5, computation="join", first=11),
    ]
    (decision,) = plan(workers("ann", "bob"), state, SETTINGS)
    assert decision == Assign(2, "bob", "it has no owner")


def test_who_joins_gets_a_part_of_what_was_split_for_it_at_once() -> None:
    cluster = Cluster(workers("ann", "new"), intervals(["ann"], cpu=0.8), cooldown=99)
    (split,) = cluster.decide()
    assert isinstance(split, Split)
    cluster.apply([split])
    (move,) = cluster.decide()
    assert isinstance(move, Move)
    assert move.worker == "new"
    assert "ann has 2 intervals of count and new has 0" in move.reason
    cluster.apply([move])
    assert cluster.decide() == []


def test_all_who_join_together_have_a_part_at_once() -> None:
    names = ("ann", "bob", "cid", "dan")
    cluster = Cluster(workers(*names), intervals(["ann"], cpu=0.8), cooldown=99)
    for _ in range(3):
        cluster.apply(cluster.decide())
    assert sorted(i.owner or "" for i in cluster.intervals) == [*names]
    assert {i.slot_to - i.slot_from for i in cluster.intervals} == {SLOTS // 4}
    assert cluster.decide() == []


def test_what_was_cut_is_cut_again_for_no_other_reason() -> None:
    state = intervals(["ann", "bob"], cpu=[5.0, 0.1])
    assert [type(decision) for decision in plan(workers("ann", "bob"), state, SETTINGS)] == [Split]
    assert plan(workers("ann", "bob"), state, SETTINGS, {1, 2}, {1, 2}) == []


def test_what_was_cut_is_moved_for_no_other_reason() -> None:
    state = intervals(["ann"] * 3 + ["bob"] * 2, cpu=[0.6] * 3 + [0.0] * 2)
    recent = {1, 2, 3}
    assert plan(workers("ann", "bob"), state, SETTINGS, recent, recent) == []
    moves = plan(workers("ann", "bob"), state, SETTINGS)
    assert [type(move) for move in moves] == [Move]
    state = [replace(interval, wanted_by="ann", pinned=True) for interval in state[:2]]
    assert plan(workers("ann", "bob"), state, SETTINGS, recent, recent) == []


def test_what_waits_for_its_claim_is_no_orphan() -> None:
    state = [replace(interval, wanted_by="bob") for interval in intervals([None, "rip"])]
    state += intervals(["ann", "bob"], computation="join", first=9)
    assert plan(workers("ann", "bob"), state, SETTINGS) == []


def test_a_wish_of_a_dead_worker_is_taken_back() -> None:
    state = [replace(intervals(["ann"])[0], wanted_by="rip"), *intervals(["bob"], first=2)]
    (decision,) = plan(workers("ann", "bob"), state[:1], SETTINGS)
    assert decision == Assign(1, "ann", "worker rip, its next owner, is gone: it stays")


def test_a_worker_that_joins_gets_its_share_a_few_at_a_time() -> None:
    settings = replace(SETTINGS, placement_intervals_least=16)
    cluster = Cluster(workers("ann", "bob", "new"), intervals(["ann", "bob"] * 8), settings)
    steps = [step for step in cluster.come_to_rest() if step]
    moves = [decision for step in steps for decision in step]
    assert all(isinstance(move, Move) and move.worker == "new" for move in moves)
    assert len(moves) == 5
    assert max(map(len, steps)) == SETTINGS.placement_moves
    assert sorted(Counter(i.owner for i in cluster.intervals).values()) == [5, 5, 6]


def test_moves_under_way_count_against_the_limit() -> None:
    state = intervals(["ann"] * 12)
    state[0] = replace(state[0], wanted_by="bob")
    state[1] = replace(state[1], wanted_by="bob")
    decisions = plan(workers("ann", "bob"), state, replace(SETTINGS, placement_moves=3))
    assert len(decisions) == 1
    assert plan(workers("ann", "bob"), state, replace(SETTINGS, placement_moves=2)) == []


def test_the_best_fitting_interval_goes_from_the_hottest_to_the_coolest() -> None:
    state = intervals(
        ["ann", "ann", "ann", "bob", "bob", "cid"], cpu=[0.5, 0.3, 0.2, 0.3, 0.2, 0.4]
    )
    few = replace(SETTINGS, placement_moves=1, placement_quiet_load=0.1)
    (decision,) = plan(workers("ann", "bob", "cid"), state, few)
    assert isinstance(decision, Move)
    assert (decision.interval, decision.worker) == (2, "cid")
    assert "ann uses 1.00 of a CPU and cid uses 0.40" in decision.reason


def test_of_two_that_fit_the_one_with_less_state_goes() -> None:
    state = intervals(["ann", "ann", "ann", "bob"], cpu=[0.3, 0.3, 0.3, 0.0])
    state[0] = replace(state[0], state_bytes=1000)
    state[2] = replace(state[2], state_bytes=2000)
    (decision,) = plan(workers("ann", "bob"), state, replace(SETTINGS, placement_moves=1))
    assert isinstance(decision, Move)
    assert decision.interval == 2


def test_a_move_that_only_swaps_the_roles_is_not_made() -> None:
    state = intervals(["ann", "bob"], cpu=[0.9, 0.1])
    assert plan(workers("ann", "bob"), state, replace(SETTINGS, placement_intervals_most=2)) == []


def test_number_gives_way_to_load() -> None:
    """One hot interval against many cold ones: the numbers stay unequal, and that is right."""
    cluster = Cluster(
        workers("ann", "bob"),
        intervals(["ann", "bob"] * 4),
        spots={"count": {100: 0.9, **{SLOTS * n // 8 + 9: 0.1 for n in range(1, 8)}}},
    )
    cluster.come_to_rest()
    (hot,) = [interval for interval in cluster.look() if interval.cpu > 0.5]
    beside = [i for i in cluster.look() if i.owner == hot.owner and i.id != hot.id]
    assert sum(interval.cpu for interval in beside) < 0.15


def test_a_saturated_worker_is_not_given_more() -> None:
    state = intervals(["ann", "ann", "ann", "bob"], cpu=[0.4, 0.4, 0.4, 0.1])
    busy = [WorkerLoad("ann"), WorkerLoad("bob", cpu=0.99)]
    calm = [WorkerLoad("ann"), WorkerLoad("bob", cpu=0.11)]
    few = replace(SETTINGS, placement_moves=1)
    assert [d for d in plan(busy, state, few) if isinstance(d, Move) and "CPU" in d.reason] == []
    assert [type(d) for d in plan(calm, state, few)] == [Move]


def test_figures_that_tremble_move_nothing() -> None:
    chance = random.Random(7)
    for level in (0.01, 0.1, 0.2):
        for _ in range(300):
            loads = [level * chance.uniform(0.85, 1.15) for _ in range(8)]
            state = intervals(["ann", "bob"] * 4, cpu=loads)
            assert plan(workers("ann", "bob"), state, SETTINGS) == []


@pytest.mark.parametrize(("more", "moves"), [(0.15, 0), (0.25, 1)])
def test_a_load_near_the_fair_share_is_left_as_it_is(more: float, moves: int) -> None:
    loads = [1 + more - 0.12, 0.12, 0.0, 1 - more, 0.0, 0.0]
    state = intervals(["ann"] * 3 + ["bob"] * 3, cpu=loads)
    settings = replace(SETTINGS, placement_intervals_most=6)
    assert len(plan(workers("ann", "bob"), state, settings)) == moves


def test_what_was_moved_of_late_is_left_alone() -> None:
    state = intervals(["ann"] * 6 + ["bob"])
    moved = [
        d.interval for d in plan(workers("ann", "bob"), state, SETTINGS) if isinstance(d, Move)
    ]
    assert len(moved) == 2
    again = plan(workers("ann", "bob"), state, SETTINGS, recent=set(moved))
    assert {d.interval for d in again if isinstance(d, Move)}.isdisjoint(moved)
    assert len(again) == 2
    assert plan(workers("ann", "bob"), state, SETTINGS, recent=range(1, 8)) == []


def test_an_orphan_is_assigned_even_if_it_was_moved_of_late() -> None:
    (decision,) = plan(workers("ann"), intervals(["rip"]), SETTINGS, recent={1})
    assert isinstance(decision, Assign)


def test_a_hot_interval_is_split_where_its_load_has_its_median() -> None:
    state = intervals(["ann", "bob"] * 4, cpu=[0.9] + [0.05] * 7)
    state[0] = replace(state[0], histogram=((0, 1.0), (10, 4.0), (20, 3.0), (30, 2.0)))
    (decision,) = plan(workers("ann", "bob"), state, SETTINGS)
    assert isinstance(decision, Split)
    assert (decision.interval, decision.at) == (1, 20)
    assert "uses 0.90 of a CPU" in decision.reason


def test_a_hot_interval_with_one_worker_is_not_split() -> None:
    assert plan(workers("ann"), intervals(["ann"] * 2, cpu=[2.0, 0.0]), SETTINGS) == []


def test_hot_partitions_are_never_split_or_merged() -> None:
    state = [replace(i, kind="injector") for i in intervals(["ann", "bob"], cpu=[3.0, 0.1])]
    assert plan(workers("ann", "bob"), state, SETTINGS) == []
    state = [replace(i, kind="injector") for i in intervals(["ann"] * 20)]
    assert plan(workers("ann"), state, SETTINGS) == []


def test_a_computation_with_fewer_intervals_than_workers_is_split_until_all_have_one() -> None:
    cluster = Cluster(workers("ann", "bob", "cid"), intervals(["ann"]))
    cluster.come_to_rest()
    assert Counter(i.owner for i in cluster.intervals) == {"ann": 1, "bob": 1, "cid": 1}


def test_splits_end_at_the_cap() -> None:
    cap = replace(SETTINGS, placement_intervals_most=3)
    cluster = Cluster(workers(*NAMES), intervals(["ann"]), cap)
    cluster.come_to_rest()
    assert len(cluster.intervals) == 3


@pytest.mark.parametrize(
    ("slots", "histogram", "at"),
    [
        ((0, 100), (), 50),
        ((7, 9), (), 8),
        ((7, 8), (), None),
        ((0, 100), ((0, 1.0), (1, 1.0), (2, 2.0)), 2),
        ((0, 100), ((3, 1.0), (4, 20.0), (5, 1.0)), None),  # one hot key
        ((0, 100), ((0, 1.0), (50, 99.0)), 75),  # somewhere in that bar
        ((0, 100), ((0, 5.0),), 50),
        ((4, 6), ((0, 5.0), (5, 5.0)), 5),
        ((0, 4), ((0, 0.0), (2, 0.0)), 2),  # measured, and nothing was there
    ],
)
def test_where_a_split_goes(
    slots: tuple[int, int], histogram: tuple[tuple[int, float], ...], at: int | None
) -> None:
    interval = IntervalLoad(1, "count", "computation", *slots, histogram=histogram)
    assert split_at(interval) == at


@given(
    st.integers(0, 90),
    st.integers(1, 10),
    st.lists(st.tuples(st.integers(0, 120), st.floats(0, 10)), max_size=8),
)
def test_a_split_leaves_a_slot_on_each_side(
    low: int, width: int, histogram: Sequence[tuple[int, float]]
) -> None:
    interval = IntervalLoad(1, "c", "computation", low, low + width, histogram=tuple(histogram))
    at = split_at(interval)
    assert at is None or low < at < low + width


def test_cold_neighbours_of_one_worker_are_merged_when_there_are_too_many() -> None:
    owners = ["ann"] * 5 + ["bob"] * 5
    few = replace(SETTINGS, placement_moves=1)
    (decision,) = plan(workers("ann", "bob"), intervals(owners), few)
    assert decision == Merge(
        1, 2, "both have little load, and 10 intervals are more than the 8 needed"
    )
    assert plan(workers("ann", "bob"), intervals(owners[1:-1]), few) == []
    # Not those of which one is warm, was split of late, or is another's.
    warm = intervals(owners, cpu=[0.02] * 10)
    warm[4] = replace(warm[4], cpu=0.0)
    (decision,) = plan(workers("ann", "bob"), warm, few, recent=(1, 2))
    assert isinstance(decision, Merge)
    assert (decision.lower, decision.upper) == (4, 5)
    assert plan(workers("ann", "bob"), intervals(["ann", "bob"] * 5), few) == []
    apart = intervals(["ann"] * 24)[::2]
    assert plan(workers("ann"), apart, few) == []


def test_what_an_operator_pinned_stays_while_that_worker_lives() -> None:
    pinned = [
        replace(interval, wanted_by="ann", pinned=True)
        for interval in intervals(["ann"] * 12, cpu=[2.0] + [0.0] * 11)
    ]
    assert plan(workers("ann", "bob"), pinned, SETTINGS) == []
    assert plan(workers("ann"), pinned, SETTINGS) == []
    decisions = plan(workers("bob"), pinned, SETTINGS)
    assert all(isinstance(d, Assign) and d.worker == "bob" for d in decisions)
    assert len(decisions) == 12


def by_id(state: Iterable[IntervalLoad]) -> dict[int, IntervalLoad]:
    return {interval.id: interval for interval in state}


# -- several versions of the code ----------------------------------------------------------------


def test_what_newer_code_owned_goes_to_newer_code_only() -> None:
    old, new = WorkerLoad("ann", generation=1), WorkerLoad("bob", generation=2)
    lost = [replace(i, generation=2) for i in intervals([None, None, None])]
    assert {d.worker for d in plan([old, new], lost, SETTINGS) if isinstance(d, Assign)} == {"bob"}
    assert plan([old], lost, SETTINGS) == []


def test_what_is_nobodys_hinders_nothing_else() -> None:
    """Cold neighbours of it are merged, orphans that somebody may have get a home."""
    old = WorkerLoad("ann", generation=1)
    waiting = [replace(i, generation=2) for i in intervals([None] * 8)]
    assert plan([old], waiting, SETTINGS) == []
    other = intervals([None], computation="sum", first=20)
    (decision,) = plan([old], [*waiting, *other], SETTINGS)
    assert decision == Assign(20, "ann", "it has no owner")


def test_what_old_code_must_not_have_any_more_moves_as_soon_as_somebody_may_have_it() -> None:
    old, new = WorkerLoad("ann", generation=1), WorkerLoad("bob", generation=2)
    outgrown = [
        replace(i, generation=2, wanted_by="ann") for i in intervals(["ann", "ann", "ann", "ann"])
    ]
    assert plan([old], outgrown, SETTINGS) == []
    decisions = plan([old, new], outgrown, replace(SETTINGS, placement_moves=1))
    assert [(type(d), d.interval, d.worker) for d in decisions if isinstance(d, Assign)] == [
        (Assign, i.id, "bob") for i in outgrown
    ]
    assert all("ann runs older code than generation 2" in d.reason for d in decisions)


@pytest.mark.parametrize("cpu", [0.0, 0.4])
def test_nothing_is_moved_to_a_worker_whose_code_is_too_old(cpu: float) -> None:
    """Neither for its load nor for the number."""
    old, new = WorkerLoad("ann", generation=1), WorkerLoad("bob", generation=2)
    his = [replace(i, generation=2, wanted_by="bob") for i in intervals(["bob"] * 6, cpu=cpu)]
    assert not [d for d in plan([old, new], his, SETTINGS) if isinstance(d, Assign | Move)]
    free = [replace(i, generation=1) for i in his]
    assert [d for d in plan([old, new], free, SETTINGS) if isinstance(d, Move)]
