"""Windowed: the edges of time, what is late, and panes that equal a batch answer."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, Literal

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from millwheel import Computation, Context, Pipeline, Record, Settings, Stream, Table
from millwheel.computations import Fold, Windowed, count, total
from millwheel.core.model import to_micros
from millwheel.errors import GraphError
from millwheel.testing import Harness, advance, assert_exactly_once, inject
from millwheel.windows import Pane, Tumbling
from tests.support.examples import examples
from tests.support.fault_plans import FAULTS, Plan, run_plan
from tests.support.panes import Row, batch, text_key
from tests.support.pipelines import QUICK, script
from tests.support.values import ITEMS, Item, at, key_of, time_of
from tests.support.worlds import World

PANES = Stream("panes", Pane[int])
DAYS = Stream("days", Pane[int])
LATE = Stream("late", Item)
MINUTE = Tumbling(minutes=1)
MICRO = timedelta(microseconds=1)

Late = Literal["drop", "amend"] | Stream[Item]


def windows(
    late: Late = "drop",
    *,
    allowed: timedelta | None = None,
    steps: list[Any] | None = None,
    lateness: float = 0,
    limits: Settings = QUICK,
    size: Any = MINUTE,
) -> Pipeline:
    pipeline = Pipeline("windows", settings=limits)
    pipeline.inject(
        ITEMS, script(ITEMS, steps or []), timestamp=time_of, lateness=timedelta(seconds=lateness)
    )
    windowed = Windowed(size, count, to=PANES, late=late, allowed_lateness=allowed)
    pipeline.add(windowed, ITEMS.by(key_of))
    return pipeline


def pane(
    minute: int,
    value: int,
    number: int = 0,
    late: bool = False,
    final: bool = True,
    key: str = "a",
) -> Pane[int]:
    return Pane(key, at(60 * minute), at(60 * minute + 60), value, number, late, final)


# -- edges -----------------------------------------------------------------------------------------


async def test_a_window_closes_when_its_last_microsecond_is_past() -> None:
    async with Harness(windows()) as harness:
        await harness.inject(ITEMS, Item("a", 1, 0), Item("a", 2, 59.999999))
        await harness.advance(ITEMS, at(60) - MICRO)
        assert harness.produced(PANES) == []
        await harness.inject(ITEMS, Item("a", 3, 60))
        assert harness.produced(PANES) == [pane(0, 2)]
        await harness.advance(ITEMS, at(120))
        assert harness.produced(PANES) == [pane(0, 2), pane(1, 1)]


async def test_an_on_time_pane_carries_the_windows_last_microsecond() -> None:
    seen: list[datetime] = []

    class See(Computation[Pane[int], None]):
        async def process_record(self, record: Record[Pane[int]], ctx: Context[None]) -> None:
            assert ctx.low_watermark <= record.timestamp, "it is on time at its reader"
            seen.append(record.timestamp)

    pipeline = windows()
    pipeline.add(See(), PANES.by(lambda p: p.key))
    async with Harness(pipeline) as harness:
        await harness.inject(ITEMS, Item("a", 1, 5), Item("a", 1, 200))
        await harness.advance(ITEMS, at(300))
    assert seen == [at(60) - MICRO, at(240) - MICRO]


@pytest.mark.parametrize(
    ("second", "start"), [(0, 0), (59, 0), (60, 60), (-1, -60), (-60, -60), (1e9, 999999960)]
)
async def test_windows_are_aligned_to_the_epoch(second: float, start: float) -> None:
    span = MINUTE.of(to_micros(at(second)))
    assert (span.start, span.end) == (to_micros(at(start)), to_micros(at(start + 60)))
    assert span.last == span.end - 1
    assert MINUTE.at(span.start) == span


async def test_an_offset_moves_the_windows() -> None:
    days = Tumbling(days=1, offset=timedelta(hours=6))
    span = days.of(to_micros(at(5 * 3600)))
    assert span.start == to_micros(at(-18 * 3600))
    same = Tumbling(days=1, offset=timedelta(hours=-18))
    assert same.of(to_micros(at(0))) == days.of(to_micros(at(0)))


async def test_records_long_before_the_epoch_have_windows() -> None:
    old = datetime(1950, 3, 1, 12, 0, 30, tzinfo=at(0).tzinfo)
    second = (old - at(0)).total_seconds()
    async with Harness(windows()) as harness:
        await harness.inject(ITEMS, Item("a", 1, second))
        await harness.advance(ITEMS, old + timedelta(hours=1))
        (found,) = harness.produced(PANES)
        assert (found.start, found.value) == (old - timedelta(seconds=30), 1)


def test_a_window_needs_a_size() -> None:
    for size in ({}, {"seconds": -1}, {"seconds": 1e-9}):
        with pytest.raises(GraphError, match="size above zero"):
            Tumbling(**size)
    with pytest.raises(
        GraphError, match=r"'panes'.*allowed_lateness.*but late records are dropped"
    ):
        windows("drop", allowed=timedelta(0))
    with pytest.raises(GraphError, match=r"'panes'.*allowed_lateness.*not -1 day, 0:00:00"):
        windows("amend", allowed=timedelta(-1))


# -- what is late ----------------------------------------------------------------------------------


async def test_late_records_are_dropped_and_counted() -> None:
    """A worker logs the first one of the stream, beside the counter."""
    async with Harness(windows()) as harness:
        await harness.inject(ITEMS, Item("a", 1, 5))
        await harness.advance(ITEMS, at(60))
        with capture_logs() as lines:
            await harness.inject(ITEMS, Item("a", 2, 6), Item("b", 3, 59))
        (line,) = [line for line in lines if line["event"] == "late_record_dropped"]
        assert (line["computation"], line["stream"], line["key"]) == ("make_panes", "items", "'a'")
        assert line["late_seconds"] == 54
        await harness.inject(ITEMS, Item("a", 4, 60))
        await harness.advance(ITEMS, at(120))
        assert harness.produced(PANES) == [pane(0, 1), pane(1, 1)]
        assert harness.counters("make_panes")["late_dropped"] == 2
        assert harness.state("make_panes", "a") == {}


async def test_a_late_record_of_a_window_that_is_still_open_is_not_late() -> None:
    """Behind the watermark, but its window's last microsecond is not."""
    async with Harness(windows()) as harness:
        await harness.advance(ITEMS, at(30))
        await harness.inject(ITEMS, Item("a", 1, 5))
        await harness.advance(ITEMS, at(60) - MICRO)
        await harness.inject(ITEMS, Item("a", 2, 6))
        await harness.advance(ITEMS, at(60))
        assert harness.produced(PANES) == [pane(0, 2)]
        assert "late_dropped" not in harness.counters("make_panes")


async def test_late_records_amend_the_pane() -> None:
    async with Harness(windows("amend")) as harness:
        await harness.inject(ITEMS, Item("a", 1, 5))
        await harness.advance(ITEMS, at(60))
        await harness.inject(ITEMS, Item("a", 2, 6), Item("a", 3, 7))
        await harness.inject(ITEMS, Item("b", 4, 8))
        assert harness.produced(PANES) == [
            pane(0, 1, final=False),
            pane(0, 2, 1, True, False),
            pane(0, 3, 2, True, False),
            pane(0, 1, 0, True, False, key="b"),
        ]
        assert harness.counters("make_panes")["late_amended"] == 3


async def test_late_records_go_to_a_stream() -> None:
    async with Harness(windows(LATE)) as harness:
        await harness.inject(ITEMS, Item("a", 1, 5))
        await harness.advance(ITEMS, at(100))
        await harness.inject(ITEMS, Item("a", 2, 6))
        assert harness.produced(LATE) == [Item("a", 2, 6)]
        assert harness.produced(PANES) == [pane(0, 1)]
        assert harness.counters("make_panes")["late_sent"] == 1


async def test_an_amendment_carries_what_is_promised_as_its_timestamp() -> None:
    seen: list[tuple[bool, datetime]] = []

    class See(Computation[Pane[int], None]):
        async def process_record(self, record: Record[Pane[int]], ctx: Context[None]) -> None:
            seen.append((record.value.late, record.timestamp))

    pipeline = windows("amend")
    pipeline.add(See(), PANES.by(lambda p: p.key))
    async with Harness(pipeline) as harness:
        await harness.inject(ITEMS, Item("a", 1, 5))
        await harness.advance(ITEMS, at(100))
        await harness.inject(ITEMS, Item("a", 2, 6))
    assert seen == [(False, at(60) - MICRO), (True, at(100))]


@pytest.mark.parametrize("allowed", [0, 30, 600])
async def test_allowed_lateness_ends_exactly_then(allowed: int) -> None:
    """Up to the end and what is allowed, inclusive, a record amends; after that it is dropped
    and the window's state is gone."""
    end = at(60 + allowed)
    async with Harness(windows("amend", allowed=timedelta(seconds=allowed))) as harness:
        await harness.inject(ITEMS, Item("a", 1, 5))
        await harness.advance(ITEMS, end)
        await harness.inject(ITEMS, Item("a", 2, 6))
        assert [p.value for p in harness.produced(PANES)] == [1, 2]
        assert harness.state("make_panes", "a") != {}
        await harness.advance(ITEMS, end + MICRO)
        assert harness.state("make_panes", "a") == {}
        await harness.inject(ITEMS, Item("a", 3, 7), Item("b", 4, 8))
        assert [p.value for p in harness.produced(PANES)] == [1, 2]
        assert harness.counters("make_panes")["late_dropped"] == 2
        assert harness.store.timers() == []


async def test_a_window_opened_by_a_late_record_goes_away_too() -> None:
    async with Harness(windows("amend", allowed=timedelta(seconds=30))) as harness:
        await harness.advance(ITEMS, at(70))
        await harness.inject(ITEMS, Item("a", 1, 5))
        assert harness.produced(PANES) == [pane(0, 1, 0, True, False)]
        await harness.advance(ITEMS, at(91))
        assert harness.state("make_panes", "a") == {}


async def test_without_allowed_lateness_state_stays_for_ever() -> None:
    async with Harness(windows("amend")) as harness:
        await harness.inject(ITEMS, Item("a", 1, 5))
        await harness.advance(ITEMS, at(10**8))
        await harness.inject(ITEMS, Item("a", 2, 6))
        assert [p.value for p in harness.produced(PANES)] == [1, 2]


async def test_keys_of_every_kind_come_back_in_panes() -> None:
    """What is decoded from the store is what was sent: a tuple, an int, a text of digits."""
    for key, extractor in (
        (("a", 1), lambda item: (item.key, item.number)),
        (1, lambda item: item.number),
        ("1", lambda item: str(item.number)),
    ):
        seen: list[Any] = []

        class See(Computation[Pane[int], None]):
            async def process_record(
                self, record: Record[Pane[int]], ctx: Context[None], seen: list[Any] = seen
            ) -> None:
                seen.append(record.value.key)

        pipeline = Pipeline("keys", settings=QUICK)
        pipeline.inject(ITEMS, script(ITEMS, []), timestamp=time_of)
        pipeline.add(Windowed(MINUTE, count, to=PANES), ITEMS.by(extractor))
        pipeline.add(See(), PANES.by(lambda p: p.key))
        async with Harness(pipeline) as harness:
            await harness.inject(ITEMS, Item("a", 1, 5))
            await harness.advance(ITEMS, at(100))
        assert seen == [key]
        assert type(seen[0]) is type(key)


# -- folds -----------------------------------------------------------------------------------------


class Mean(msgspec.Struct):
    """An accumulator of its own type."""

    sum: float = 0.0
    count: int = 0


def add(mean: Mean, item: Item) -> Mean:
    return Mean(mean.sum + item.number, mean.count + 1)


async def test_accumulators_of_any_type_survive_a_restart() -> None:
    means = Stream("means", Pane[float])
    fold: Fold[Item, Mean, float] = Fold(Mean, add, lambda mean: mean.sum / mean.count, Mean)
    source = script(ITEMS, [Item("a", 1, 5), Item("a", 2, 6)])
    pipeline = Pipeline("means", settings=QUICK)
    pipeline.inject(ITEMS, source, timestamp=time_of)
    pipeline.add(Windowed(MINUTE, fold, to=means), ITEMS.by(key_of))
    pipeline.sink(means, Table("out", Pane[float]))
    world = World(pipeline)
    await world.run()
    source.append(inject(ITEMS, Item("a", 6, 7)))
    await world.run()
    source.append(advance(ITEMS, at(60)))
    await world.run()
    assert [row[3] for row in world.rows()] == [3.0]


async def test_hourly_panes_summed_into_days_equal_direct_days() -> None:
    """No pane of the last hour may fall into the next day."""
    hours, direct, summed = (Stream(name, Pane[int]) for name in ("hours", "direct", "summed"))
    values = [Item("ab"[n % 2], n, (n * 1237) % (3 * 86_400)) for n in range(300)]
    values += [Item("a", 1, day * 86_400 - 1e-6) for day in (1, 2, 3)]
    values += [Item("a", 1, day * 86_400) for day in (0, 1, 2)]
    pipeline = Pipeline("days", settings=QUICK)
    pipeline.inject(ITEMS, script(ITEMS, values), timestamp=time_of, lateness=timedelta(days=4))
    pipeline.add(Windowed(Tumbling(hours=1), count, to=hours), ITEMS.by(key_of))
    pipeline.add(
        Windowed(Tumbling(days=1), total(lambda pane: pane.value), to=summed),
        hours.by(lambda pane: pane.key),
    )
    pipeline.add(Windowed(Tumbling(days=1), count, to=direct), ITEMS.by(key_of))
    pipeline.sink(summed, Table("summed", Pane[int]))
    pipeline.sink(direct, Table("direct", Pane[int]))
    world = World(pipeline)
    await world.run(close_at_end=True)
    assert len(world.rows("direct")) == 6
    assert sorted(world.rows("summed"), key=str) == sorted(world.rows("direct"), key=str)


# -- equal to batch --------------------------------------------------------------------------------


def with_table(late: Late, lateness: float) -> Any:
    def build(values: list[Item], limits: Settings) -> Pipeline:
        pipeline = windows(late, steps=list(values), lateness=lateness, limits=limits)
        pipeline.sink(PANES, Table("panes", Row, key=("key", "start")), row=text_key)
        if isinstance(late, Stream):
            pipeline.sink(late, Table("late", Item))
        return pipeline

    return build


@settings(
    max_examples=examples(40),
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)
@given(
    arrivals=st.lists(
        st.tuples(st.sampled_from("ab"), st.integers(0, 400)), min_size=1, max_size=40
    ),
    late=st.sampled_from(["on time", "amend", "stream"]),
    faults=st.dictionaries(st.integers(0, 30), st.sampled_from(FAULTS[:5]), max_size=4),
    intervals=st.integers(1, 2),
    chunk=st.sampled_from([1, 3, 100]),
    copies=st.integers(1, 2),
)
def test_final_panes_equal_a_batch_answer(
    arrivals: list[tuple[str, int]],
    late: str,
    faults: dict[int, str],
    intervals: int,
    chunk: int,
    copies: int,
) -> None:
    """On time: each pane. Amended: the last pane of each window. To a stream: nothing is lost."""
    values = [Item(key, number, second) for number, (key, second) in enumerate(arrivals)]
    what: Late = {"on time": "drop", "amend": "amend", "stream": LATE}[late]  # type: ignore[assignment]
    limits = replace(QUICK, intervals=intervals, chunk_records=chunk, bundle_records=5)
    plan = Plan(limits, values, dict(faults), copies, close_at_end=True)

    async def go() -> None:
        world = await run_plan(plan, _build(what, 500 if late == "on time" else 20))
        found = {(key, start): value for key, start, value, _ in world.rows("panes")}
        if late == "stream":
            assert sum(found.values()) + len(world.rows("late")) == len(values)
            assert {k: n for k, n in found.items() if n > batch(values)[k]} == {}
        else:
            assert found == batch(values)

    asyncio.run(go())


def _build(late: Late, lateness: float) -> Any:
    pipeline: list[Pipeline] = []

    def build(values: list[Item], limits: Settings) -> Pipeline:
        pipeline[:] = [with_table(late, lateness)(values, limits)]
        return pipeline[0]

    return build


async def test_windows_hold_through_every_mode_of_the_kit() -> None:
    values = [Item("ab"[n % 2], n, float(10 * n)) for n in range(12)]
    expected = [
        Pane(key, start, start + timedelta(minutes=1), value, 0, False, True)
        for (key, start), value in batch(values).items()
    ]
    await assert_exactly_once(
        windows(lateness=5),
        [*(inject(ITEMS, value) for value in values), advance(ITEMS, at(600))],
        {PANES: expected},
    )
