"""Two-phase aggregation: the same panes as one phase, and few records between the phases."""

from __future__ import annotations

import asyncio
import operator
from collections import Counter
from dataclasses import replace
from datetime import timedelta
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from millwheel import Context, Key, Pipeline, Record, Settings, Stream, Table
from millwheel.computations import (
    Partial,
    PreAggregate,
    Spread,
    Windowed,
    count,
    merged,
    real_key,
    total,
)
from millwheel.errors import GraphError
from millwheel.testing import Harness, advance, assert_exactly_once, inject
from millwheel.windows import Months, Pane, Session, Sliding, Tumbling
from tests.support.examples import examples
from tests.support.fault_plans import FAULTS, Plan, run_plan
from tests.support.panes import Row, batch, text_key
from tests.support.pipelines import QUICK, script
from tests.support.values import ITEMS, Item, at, key_of, time_of
from tests.support.worlds import World

PARTIALS = Stream("partials", Partial[int])
PANES = Stream("panes", Pane[int])
MINUTE = Tumbling(minutes=1)
SECOND = timedelta(seconds=1)


class Counting(Windowed[Partial[int], int, int]):
    """Counts the records it receives; `processed` counts timers, too."""

    async def process_record(self, record: Record[Partial[int]], ctx: Context[Any]) -> None:
        ctx.count("received")
        await super().process_record(record, ctx)


def two_phases(
    values: list[Item],
    limits: Settings = QUICK,
    *,
    ways: int = 3,
    lateness: float = 0,
    late: Any = "drop",
    by: Any = key_of,
    **flush: Any,
) -> Pipeline:
    pipeline = Pipeline("two_phases", settings=limits)
    pipeline.inject(ITEMS, script(ITEMS, values), timestamp=time_of, lateness=lateness * SECOND)
    pipeline.add(PreAggregate(MINUTE, count, to=PARTIALS, **flush), ITEMS.by(Spread(by, ways=ways)))
    second = Counting(MINUTE, merged(count, operator.add), to=PANES, late=late)
    pipeline.add(second, PARTIALS.by(real_key))
    pipeline.sink(PARTIALS, Table("partials", Sent), row=sent)
    pipeline.sink(PANES, Table("panes", Row, key=("key", "start")), row=text_key)
    return pipeline


class Sent(msgspec.Struct):
    """A partial result as a row."""

    key: str
    value: int
    records: int


def sent(partial: Partial[int]) -> Sent:
    return Sent(str(partial.key), partial.value, partial.records)


@settings(
    max_examples=examples(30),
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)
@given(
    arrivals=st.lists(
        st.tuples(st.sampled_from("aaaab"), st.integers(0, 200)), min_size=1, max_size=40
    ),
    ways=st.sampled_from([2, 5]),
    flush=st.sampled_from(
        [{}, {"flush_records": 1}, {"flush_records": 3}, {"flush_every": SECOND}]
    ),
    faults=st.dictionaries(st.integers(0, 30), st.sampled_from(FAULTS), max_size=4),
    late=st.sampled_from([False, True]),
    chunk=st.sampled_from([1, 3, 100]),
    copies=st.integers(1, 2),
)
def test_two_phases_give_the_panes_of_one(
    arrivals: list[tuple[str, int]],
    ways: int,
    flush: dict[str, Any],
    faults: dict[int, str],
    late: bool,
    chunk: int,
    copies: int,
) -> None:
    """And the records of all partial results together are those that came. Late ones amend."""
    values = [Item(key, number, second) for number, (key, second) in enumerate(arrivals)]
    limits = replace(QUICK, intervals=2, chunk_records=chunk, bundle_records=5)
    plan = Plan(limits, values, dict(faults), copies, close_at_end=True)
    options: dict[str, Any] = {"lateness": 10, "late": "amend"} if late else {"lateness": 500}

    async def go() -> None:
        world = await run_plan(plan, lambda v, s: two_phases(v, s, ways=ways, **flush, **options))
        found = {(key, start): value for key, start, value, _ in world.rows("panes")}
        assert found == batch(values)
        assert sum(row[2] for row in world.rows("partials")) == len(values)
        assert all(row[1] == row[2] for row in world.rows("partials"))
        if not late:
            assert [state for state in world.store.states() if "records" in str(state)] == []
            left = [timer for timer in world.store.timers() if timer.kind != "wall"]
            assert left == [], "a wall timer fires when its time has come, with nothing to do"

    asyncio.run(go())


async def test_two_phases_hold_through_every_mode_of_the_kit() -> None:
    values = [Item("ab"[n % 4 == 3], n, float(10 * n)) for n in range(12)]
    expected = [
        Pane(key, start, start + timedelta(minutes=1), value, 0, False, True)
        for (key, start), value in batch(values).items()
    ]
    steps: list[Any] = [*(inject(ITEMS, value) for value in values), advance(ITEMS, at(600))]
    await assert_exactly_once(two_phases([], lateness=5), steps, {PANES: expected})


# -- how many records the second phase receives ----------------------------------------------------


def partials(world: World) -> list[int]:
    """The numbers of records in each partial result."""
    return sorted(row[2] for row in world.rows("partials"))


def received(world: World) -> int:
    return world.counter("make_panes", "received")


HOT = [Item("hot" if n % 10 else f"cold {n}", n, n * 60 / 1000) for n in range(1000)]
"""A key with 90 % of the traffic, within one minute."""


async def test_the_second_phase_receives_one_record_per_partial_key_and_window() -> None:
    world = World(two_phases(HOT, ways=4, lateness=100))
    await world.run(close_at_end=True)
    assert received(world) == 4 + 100, "four partial keys of the hot one, the others alone"
    assert len(partials(world)) == 104
    assert sum(partials(world)) == 1000
    found = {row[0]: row[2] for row in world.rows("panes")}
    assert found["hot"] == 900


async def test_it_receives_at_most_one_more_per_flush() -> None:
    hot = [Item("hot", n, 1) for n in range(900)]
    world = World(two_phases(hot, ways=4, lateness=100, flush_records=50))
    await world.run(close_at_end=True)
    sizes = partials(world)
    assert sizes.count(50) == sum(size // 50 for size in ways_of(hot, 4).values())
    assert received(world) == len(sizes) <= 900 // 50 + 4
    assert sum(sizes) == 900


def ways_of(values: list[Item], ways: int) -> Counter[Any]:
    spread = Spread(key_of, ways=ways)
    return Counter(spread(value) for value in values)


async def test_it_flushes_some_time_after_the_first_record() -> None:
    pipeline = two_phases([], ways=2, lateness=1000, flush_every=5 * SECOND)
    async with Harness(pipeline) as harness:
        await harness.inject(ITEMS, *(Item("a", n, 70 * (n % 2)) for n in range(40)))
        await harness.sleep(4.9)
        assert harness.produced(PARTIALS) == []
        await harness.sleep(0.2)
        flushed = harness.produced(PARTIALS)
        assert len(flushed) == 4, "two ways, two windows"
        assert sum(partial.records for partial in flushed) == 40
        await harness.sleep(100)
        assert harness.produced(PARTIALS) == flushed, "nothing is flushed twice"
        await harness.inject(ITEMS, Item("a", 99, 1))
        await harness.sleep(5)
        assert len(harness.produced(PARTIALS)) == 5
        assert harness.produced(PANES) == []
        await harness.advance(ITEMS, at(120))
        assert [pane.value for pane in harness.produced(PANES)] == [21, 20]
        assert harness.store.timers() == []


# -- late records, keys, and what is refused -------------------------------------------------------


@pytest.mark.parametrize("late", ["drop", "amend"])
async def test_what_becomes_of_a_late_record_is_for_the_second_phase_to_say(late: Any) -> None:
    async with Harness(two_phases([], lateness=1000, late=late)) as harness:
        await harness.inject(ITEMS, Item("a", 1, 5))
        await harness.advance(ITEMS, at(60))
        await harness.inject(ITEMS, Item("a", 2, 6))
        assert harness.counters("make_partials")["late_passed_on"] == 1
        values = [pane.value for pane in harness.produced(PANES)]
        assert values == ([1] if late == "drop" else [1, 2])
        told = {"drop": "late_dropped", "amend": "late_amended"}[late]
        assert harness.counters("make_panes")[told] == 1


@pytest.mark.parametrize("key", ["a", "", "tuple", 1, ("a",), ("a", 1), (1,), ("tuple", "x")])
async def test_the_real_key_comes_back(key: Key) -> None:
    async with Harness(two_phases([], by=lambda item: key)) as harness:
        await harness.inject(ITEMS, *(Item("a", n, 5) for n in range(10)))
        await harness.advance(ITEMS, at(60))
        (pane,) = harness.produced(PANES)
        assert pane.key == key
        assert type(pane.key) is type(key)
        assert (pane.value, pane.start) == (10, at(0))


def test_keys_are_spread_evenly_and_always_the_same_way() -> None:
    values = [Item("hot", n, n / 7) for n in range(8000)]
    ways = ways_of(values, 8)
    assert len(ways) == 8
    assert max(ways.values()) < 1.2 * 1000
    assert ways == ways_of(values, 8)
    by = Spread(key_of, ways=2, by=lambda item: item.number)
    assert {by(Item("x", 5, second)) for second in range(9)} == {by(Item("x", 5))}
    assert Spread(key_of, ways=2).__qualname__ == "key_of, spread"


def test_a_sum_keeps_its_result_function() -> None:
    fold = merged(total(lambda item: item.number), operator.add)
    parts = [Partial("a", value, 1) for value in (1, 2, 3)]
    accumulator = fold.init()
    for part in parts:
        accumulator = fold.add(accumulator, part)
    assert fold.result(accumulator) == 6


def test_what_makes_no_sense_is_refused() -> None:
    wrong: Any
    for wrong in (1, 0, -3, 2.5):
        with pytest.raises(
            GraphError, match=f"ways must be a whole number, 2 or more, not {wrong}"
        ):
            Spread(key_of, ways=wrong)
    for wrong in (0, 1.5):
        with pytest.raises(GraphError, match="flush_records must be a whole number, 1 or more"):
            PreAggregate(MINUTE, count, to=PARTIALS, flush_records=wrong)
    for wrong in (Sliding(2 * SECOND, SECOND), Session(SECOND), Months()):
        with pytest.raises(GraphError, match="PreAggregate takes Tumbling windows, not "):
            PreAggregate(wrong, count, to=PARTIALS)
    for seconds in (0, -1):
        with pytest.raises(GraphError, match="flush_every must be a timedelta above zero"):
            PreAggregate(MINUTE, count, to=PARTIALS, flush_every=seconds * SECOND)
    with pytest.raises(GraphError, match=r"items.by\(Spread\(..., ways=8\)\)"):
        Pipeline("p").add(PreAggregate(MINUTE, count, to=PARTIALS), ITEMS.by(key_of))
