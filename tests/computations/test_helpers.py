"""Deduplicate, Throttle, Debounce, InOrder: against plain answers, at their edges, and what is
refused."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from millwheel import Computation, Pipeline, Settings, Stream, Table
from millwheel.computations import Debounce, Deduplicate, InOrder, Throttle
from millwheel.errors import GraphError
from millwheel.testing import Harness, advance, assert_exactly_once, inject
from tests.support.examples import examples
from tests.support.fault_plans import FAULTS, Plan, run_plan
from tests.support.pipelines import QUICK, script
from tests.support.values import ITEMS, Item, at, key_of, time_of

OUT = Stream("out", Item)
LATE = Stream("late", Item)
REST = Stream("rest", Item)
SECOND = timedelta(seconds=1)

Answer = Callable[[list[Item]], list[Item]]
"""What passes of the items of one key, given in the order in which they come."""


def built(
    computation: Computation[Item, Any],
    values: list[Item] | None = None,
    limits: Settings = QUICK,
    lateness: int = 100,
) -> Pipeline:
    pipeline = Pipeline("helpers", settings=limits)
    source = script(ITEMS, values or [])
    pipeline.inject(ITEMS, source, timestamp=time_of, lateness=lateness * SECOND)
    pipeline.add(computation, ITEMS.by(key_of))
    for stream in computation.writes:
        pipeline.sink(stream, Table(stream.name, Item, numbered=True))
    return pipeline


def deduplicated(values: list[Item]) -> list[Item]:
    passed: list[Item] = []
    for value in values:
        if all(abs(value.second - other.second) >= 10 for other in passed):
            passed.append(value)
    return passed


def throttled(values: list[Item]) -> list[Item]:
    passed: Counter[float] = Counter()
    found = []
    for value in values:
        if passed[value.second // 10] < 2:
            found.append(value)
        passed[value.second // 10] += 1
    return found


def debounced(values: list[Item]) -> list[Item]:
    last = {value.second: value for value in values}
    return [
        value
        for second, value in sorted(last.items())
        if not any(second < other <= second + 10 for other in last)
    ]


def ordered(values: list[Item]) -> list[Item]:
    return sorted(values, key=lambda value: value.second)


CASES: dict[str, tuple[Callable[[], Computation[Item, Any]], Answer]] = {
    "deduplicate": (lambda: Deduplicate(to=OUT, horizon=10 * SECOND, late=LATE), deduplicated),
    "throttle": (lambda: Throttle(to=OUT, at_most=2, per=10 * SECOND, late=LATE), throttled),
    "debounce": (lambda: Debounce(to=OUT, quiet=10 * SECOND, late=LATE), debounced),
    "in order": (lambda: InOrder(to=OUT, late=LATE), ordered),
}


@settings(
    max_examples=examples(50),
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)
@given(
    case=st.sampled_from(sorted(CASES)),
    arrivals=st.lists(
        st.tuples(st.sampled_from("ab"), st.integers(0, 60)), min_size=1, max_size=24
    ),
    lateness=st.sampled_from([100, 15, 0]),
    faults=st.dictionaries(st.integers(0, 30), st.sampled_from(FAULTS), max_size=3),
    chunk=st.sampled_from([1, 3, 100]),
    cache=st.sampled_from([0, 1 << 20]),
    eager=st.sampled_from([1, 64]),
    copies=st.integers(1, 2),
)
def test_what_passes_is_what_a_plain_loop_lets_through(
    case: str,
    arrivals: list[tuple[str, int]],
    lateness: int,
    faults: dict[int, str],
    chunk: int,
    cache: int,
    eager: int,
    copies: int,
) -> None:
    """Of what is not late; and then nothing is held any more."""
    make, answer = CASES[case]
    values = [Item(key, number, second) for number, (key, second) in enumerate(arrivals)]
    limits = replace(
        QUICK, chunk_records=chunk, bundle_records=5, cache_bytes=cache, eager_entries=eager,
        fold_seconds=0.05, housekeeping_seconds=0.05,
    )  # fmt: skip
    plan = Plan(limits, values, dict(faults), copies, close_at_end=True)

    async def go() -> None:
        world = await run_plan(plan, lambda v, s: built(make(), v, s, lateness))
        late = {row[1] for row in world.rows("late")}
        for key in "ab":
            mine = [v for v in values if v.key == key and v.number not in late]
            rows = sorted((row for row in world.rows() if row[0] == key), key=lambda row: row[-2:])
            assert [row[1] for row in rows] == [value.number for value in answer(mine)], key
        assert world.store.states() == []
        assert world.store.timers() == []

    asyncio.run(go())


@pytest.mark.parametrize("case", sorted(CASES))
async def test_they_hold_through_every_mode_of_the_kit(case: str) -> None:
    make, answer = CASES[case]
    values = [Item("a", n, float(7 * n % 50)) for n in range(10)]
    steps: list[Any] = [*(inject(ITEMS, value) for value in values), advance(ITEMS, at(600))]
    await assert_exactly_once(built(make()), steps, {OUT: answer(values)})


# -- edges -------------------------------------------------------------------------------------


async def test_the_horizon_ends_exactly_then() -> None:
    async with Harness(built(Deduplicate(to=OUT, horizon=10 * SECOND))) as harness:
        items = [Item("a", n, s) for n, s in enumerate([100, 109.999999, 110, 90.000001, 90, 100])]
        await harness.inject(ITEMS, *items)
        assert [item.number for item in harness.produced(OUT)] == [0, 2, 4]
        assert harness.counters("make_out")["duplicates"] == 3
        await harness.advance(ITEMS, at(119.999999))
        assert len(harness.state("make_out", "a")) == 2, "a copy of the one at 110 may still come"
        await harness.inject(ITEMS, Item("a", 9, 119.999999))
        assert len(harness.produced(OUT)) == 3
        await harness.advance(ITEMS, at(120))
        assert harness.store.states() == []


async def test_late_records_are_dropped_and_counted() -> None:
    for computation, state in (
        (Deduplicate(to=OUT, horizon=10 * SECOND), 2),
        (Debounce(to=OUT, quiet=10 * SECOND), 2),
        (InOrder(to=OUT), 0),
        (Throttle(to=OUT, at_most=1, per=10 * SECOND), 1),
    ):
        async with Harness(built(computation)) as harness:
            await harness.inject(ITEMS, Item("a", 1, 20))
            await harness.advance(ITEMS, at(20.000001))
            await harness.inject(ITEMS, Item("a", 2, 9.999999))
            assert harness.counters("make_out") == {
                **harness.counters("make_out"),
                "late_dropped": 1,
            }
            assert len(harness.state("make_out", "a")) == state


async def test_a_throttles_rest_can_be_had() -> None:
    throttle = Throttle(to=OUT, at_most=2, per=10 * SECOND, rest=REST, late=REST)
    async with Harness(built(throttle)) as harness:
        await harness.inject(ITEMS, *(Item("a", n, 5) for n in range(4)), Item("a", 4, 10))
        await harness.advance(ITEMS, at(10))
        await harness.inject(ITEMS, Item("a", 5, 9.999999), Item("a", 6, 10))
        assert [item.number for item in harness.produced(OUT)] == [0, 1, 4, 6]
        assert [item.number for item in harness.produced(REST)] == [2, 3, 5]
        assert harness.counters("make_out")["throttled"] == 2


async def test_a_quiet_time_is_proved_by_the_watermark() -> None:
    async with Harness(built(Debounce(to=OUT, quiet=10 * SECOND))) as harness:
        await harness.inject(ITEMS, Item("a", 1, 0), Item("a", 2, 20), Item("a", 3, 20))
        await harness.advance(ITEMS, at(10))
        assert harness.produced(OUT) == []
        await harness.inject(ITEMS, Item("a", 4, 10))
        await harness.advance(ITEMS, at(30))
        assert harness.produced(OUT) == []
        await harness.advance(ITEMS, at(30.000001))
        assert [item.number for item in harness.produced(OUT)] == [3]
        assert harness.counters("make_out")["debounced"] == 3


async def test_records_of_one_instant_keep_their_order() -> None:
    async with Harness(built(InOrder(to=OUT))) as harness:
        count = 2300
        values = [Item("a", n, 5 - n % 3) for n in range(count)]
        await harness.inject(ITEMS, *values)
        assert harness.produced(OUT) == []
        await harness.advance(ITEMS, at(5))
        assert {item.second for item in harness.produced(OUT)} == {3, 4}
        await harness.advance(ITEMS, at(6))
        assert harness.produced(OUT) == ordered(values)
        assert harness.store.states() == []


# -- refused -----------------------------------------------------------------------------------


@pytest.mark.parametrize("seconds", [0, -1, 1e-9])
def test_stretches_of_time_are_above_zero(seconds: float) -> None:
    for make, name in (
        (lambda t: Deduplicate(to=OUT, horizon=t), "Deduplicate: horizon"),
        (lambda t: Debounce(to=OUT, quiet=t), "Debounce: quiet"),
        (lambda t: Throttle(to=OUT, at_most=1, per=t), "Throttle: per"),
    ):
        with pytest.raises(GraphError, match=f"{name} must be a timedelta above zero"):
            make(seconds * SECOND)


@pytest.mark.parametrize("at_most", [0, -1, 1.5])
def test_a_throttle_lets_something_through(at_most: Any) -> None:
    with pytest.raises(
        GraphError, match=f"at_most must be a whole number, 1 or more, not {at_most}"
    ):
        Throttle(to=OUT, at_most=at_most, per=SECOND)
