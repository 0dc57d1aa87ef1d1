"""Percentile low watermarks: early, approximate, and without harm to the exact one (paper 7.2)."""

from __future__ import annotations

import asyncio
import random
from collections import Counter, defaultdict
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from millwheel import Computation, Context, Pipeline, Record, Settings, Stream, Table
from millwheel.computations import FlatMap, Windowed, count
from millwheel.core.model import MAX_TIME, MIN_TIME, to_micros
from millwheel.errors import GraphError, StoreUnavailable
from millwheel.store.port import Commit
from millwheel.testing import Harness, inject
from millwheel.testing.script import Script
from millwheel.timers.holds import Holds
from millwheel.timers.percentile import LEAST_SAMPLES, SAMPLES, Disorder, Percentile
from millwheel.windows import Pane, Tumbling
from tests.support.fault_plans import FAULTS, Plan, run_plan
from tests.support.pipelines import QUICK
from tests.support.values import ITEMS, Item, at, key_of, time_of
from tests.support.worlds import Gate, World

MINUTES = Stream("minutes", Pane[int])
EARLY = Stream("early_minutes", Pane[int])
PASSED = Stream("passed", Item)
SEEN = Stream("seen", Item)
LATENESS = timedelta(hours=1)


class Row(msgspec.Struct, frozen=True):
    start: datetime
    number: int
    count: int
    late: bool


def row(pane: Pane[int]) -> Row:
    return Row(pane.start, pane.number, pane.value, pane.late)


class Punctual(Computation[Any, None]):
    """Counts what comes behind the low watermark that was promised to it."""

    writes = (SEEN,)

    async def process_record(self, record: Record[Any], ctx: Context[None]) -> None:
        ctx.count("late" if record.timestamp < ctx.low_watermark else "on_time")


def by_value(pane: Pane[int]) -> int:
    return pane.number


def number_of(item: Item) -> int:
    return item.number


def pipeline(source: Script, limits: Settings = QUICK, percentile: float = 90) -> Pipeline:
    """The same windows by the exact and, a step further, by a percentile low watermark."""
    made = Pipeline("percentile", settings=limits)
    made.inject(ITEMS, source, timestamp=time_of, lateness=LATENESS)
    windows = Tumbling(minutes=1)
    made.add(Windowed(windows, count, to=MINUTES), ITEMS.by(key_of))
    made.add(FlatMap(lambda item: [item], to=PASSED), ITEMS.by(number_of))
    made.add(
        Windowed(windows, count, to=EARLY, late="amend"),
        PASSED.by(key_of),
        low_watermark_percentile=percentile,
    )
    made.add(Punctual(), MINUTES.by(by_value), EARLY.by(by_value))
    made.sink(MINUTES, Table("minutes", Row), row=row)
    made.sink(EARLY, Table("early", Row), row=row)
    return made


def rows_out_of_order(number: int, seed: int, tardy: int = 20) -> list[Item]:
    """One a second; each `tardy`-th comes up to ten minutes after its time."""
    chance = random.Random(seed)
    timed = [(n + (chance.random() * 600 if n % tardy == 7 else 0), n) for n in range(number)]
    return [Item("k", n, n) for _, n in sorted(timed)]


def batch(items: list[Item]) -> Counter[datetime]:
    return Counter(at(item.second // 60 * 60) for item in items)


async def test_a_percentile_closes_windows_early_and_late_records_amend_them() -> None:
    items = rows_out_of_order(3000, seed=1)
    limits = replace(QUICK, chunk_records=20, bundle_records=20, max_unacked_records=40)
    async with Harness(pipeline(Script(ITEMS.name), limits)) as harness:
        await harness.inject(ITEMS, *items)
        early = [Row(*r) for r in harness.rows("early")]
        assert harness.rows("minutes") == [], "the exact one still waits for an hour"
        assert len({r.start for r in early}) > 30
        assert any(r.late for r in early)
        newest = {r.start: r.count for r in early}
        whole = batch(items)
        closed = [start for start in newest if start < at(3000 - 1200)]
        assert len(closed) > 20
        assert all(newest[start] == whole[start] for start in closed), "amended to what is true"
        first: dict[datetime, int] = {}
        for r in early:
            first.setdefault(r.start, r.count)
        assert sum(first[s] >= 54 for s in closed) > 0.9 * len(closed), (
            "nearly right the first time"
        )
        assert harness.counters("punctual")["on_time"] == len(early)
        assert "late" not in harness.counters("punctual"), "what is promised downstream is exact"


async def test_it_never_falls_behind_the_exact_one() -> None:
    """A source in order, without lateness: both are the same."""
    async with Harness(pipeline(Script(ITEMS.name))) as harness:
        await harness.inject(ITEMS, *(Item("k", n, n) for n in range(300)))
        await harness.advance(ITEMS, at(10_000))
        assert len(harness.rows("minutes")) == 5
        assert [r[:3] for r in harness.rows("early")] == [r[:3] for r in harness.rows("minutes")]


class Log:
    """What was promised, by the commits alone."""

    def __init__(self) -> None:
        self.low: dict[int, int] = defaultdict(lambda: MIN_TIME)
        self.percentile: dict[int, int] = defaultdict(lambda: MIN_TIME)
        self.early_commits = 0

    def check(self, world: World, commit: Commit) -> None:
        names = world.store.tables.names()
        of = {i.id: names[i.computation] for i in world.store.tables.intervals.values()}
        source = [id_ for id_, name in of.items() if name == "items_injector"]
        passed = [id_ for id_, name in of.items() if name == "make_passed"]
        exact = min(self.low[id_] for id_ in passed)
        told = min(max(self.low[id_], self.percentile[id_]) for id_ in passed)
        for link in commit.intervals:
            name = of[link.interval_id]
            assert link.low_watermark >= self.low[link.interval_id], "an exact one went back"
            if name == "make_minutes":
                assert link.input_watermark <= min(self.low[id_] for id_ in source)
            if name == "make_early_minutes":
                assert link.input_watermark <= told, "told before it was stored"
                self.early_commits += link.input_watermark > exact
            if link.percentiles:
                (value,) = link.percentiles.values()
                assert value >= link.low_watermark, "a percentile behind the exact one"
                assert value >= self.percentile[link.interval_id], "a percentile went back"
        for link in commit.intervals:
            self.low[link.interval_id] = link.low_watermark
            for value in link.percentiles.values():
                self.percentile[link.interval_id] = value


@settings(max_examples=20, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(
    seed=st.integers(0, 1000),
    number=st.integers(150, 400),
    faults=st.dictionaries(st.integers(0, 40), st.sampled_from(FAULTS[:5]), max_size=4),
    intervals=st.integers(1, 2),
    chunk=st.sampled_from([7, 100]),
    percentile=st.sampled_from([50.0, 90.0, 99.5]),
)
def test_through_any_faults_it_only_rises_and_amended_windows_end_as_the_batch_answer(
    seed: int, number: int, faults: dict[int, str], intervals: int, chunk: int, percentile: float
) -> None:
    items = rows_out_of_order(number, seed, tardy=5)
    limits = replace(
        QUICK, intervals=intervals, chunk_records=chunk, bundle_records=50, max_unacked_records=100
    )
    log = Log()

    async def go() -> None:
        world = await run_plan(
            Plan(limits, items, dict(faults), 1, close_at_end=True),
            lambda values, chosen: pipeline(
                Script(ITEMS.name, [inject(ITEMS, value) for value in values]), chosen, percentile
            ),
            log.check,
        )
        last: dict[datetime, tuple[int, int]] = {}
        for start, pane, total, _ in world.rows("early"):
            last[start] = max(last.get(start, (-1, 0)), (pane, total))
        assert {start: total for start, (_, total) in last.items()} == dict(batch(items))
        assert {r[0]: r[2] for r in world.rows("minutes")} == dict(batch(items))
        assert world.counter("punctual", "late") == 0

    asyncio.run(go())
    assert percentile > 50 or number < 300 or log.early_commits, "nothing was early"


async def test_a_restart_goes_on_from_what_is_stored() -> None:
    items = rows_out_of_order(1500, seed=3)
    source = Script(ITEMS.name, [inject(ITEMS, item) for item in items])
    world = World(pipeline(source))
    engine = await world.start()
    await world.until(engine.done.is_set)
    before = world.interval("make_early_minutes").watermarks.input
    exact = world.interval("make_early_minutes").watermarks.exact
    assert before > exact + 30 * 60 * 1_000_000
    await world.finish(engine)
    engine = await world.start()
    await world.until(engine.done.is_set)
    interval = world.interval("make_early_minutes")
    assert interval.watermarks.input == before
    assert interval.watermarks.exact == exact
    assert interval.watermarks.percentiles[90].durable >= interval.watermarks.durable
    await world.finish(engine)


@pytest.mark.parametrize("percentile", [0, 100, -1, 101, float("nan")])
def test_what_is_no_percentile_is_refused(percentile: float) -> None:
    with pytest.raises(GraphError, match="low_watermark_percentile must be between 0 and 100"):
        pipeline(Script(ITEMS.name), percentile=percentile)


def test_only_who_sends_to_it_keeps_it() -> None:
    found = {n.name: n.percentiles for n in pipeline(Script(ITEMS.name)).graph().nodes}
    assert found["items_injector"] == found["make_passed"] == found["make_early_minutes"] == (90,)
    assert found["make_minutes"] == found["punctual"] == ()


# -- the parts ---------------------------------------------------------------------------------


def test_the_disorder_of_a_source() -> None:
    disorder = Disorder()
    for second in range(LEAST_SAMPLES - 1):
        disorder.see(second * 1000)
    assert disorder.watermark(99) == MIN_TIME, "too few to say anything"
    disorder.see(0)
    assert disorder.watermark(98) == 98_000, "one of a hundred came behind"
    assert disorder.watermark(99.5) == 0
    for _ in range(SAMPLES):
        disorder.see(200_000)
    assert disorder.watermark(99.5) == 200_000, "only the last ones count"


Act = tuple[str, int]


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.lists(st.tuples(st.sampled_from(["hold", "batch", "drop", "input"]), st.integers(0, 30))))
def test_a_percentile_is_held_by_what_was_not_behind_it(acts: list[Act]) -> None:
    """Against a plain list of everything that holds, each with what it holds at."""
    holds, exact = Holds(), 0
    percentile = Percentile(0, holds)
    plain: list[tuple[int, list[int], int]] = []  # exact hold, batch, percentile's hold
    for act, value in acts:
        if act in ("hold", "batch"):
            batch = [max(value, exact), max(value + 7, exact)][: 1 if act == "hold" else 2]
            least = percentile.hold_of(batch)
            assert least == min((h for h in batch if h >= percentile.promised), default=MAX_TIME)
            holds.add(batch[0])
            if act == "batch" and least < MAX_TIME:
                percentile.batches.add(least)
            plain.append((batch[0], batch, least))
        elif act == "drop" and plain:
            first, batch, least = plain.pop(value % len(plain))
            holds.remove(first)
            if len(batch) > 1 and least < MAX_TIME:
                percentile.batches.remove(least)
        elif act == "input":
            percentile.input = max(percentile.input, value)
        exact = max(exact, min(10, holds.least()))
        expected = max(
            percentile.promised,
            exact,
            min([percentile.input, *(least for _, _, least in plain)]),
        )
        assert percentile.output(exact) == expected
        percentile.promised = expected


def test_times_are_microseconds() -> None:
    disorder = Disorder()
    for n in range(200):
        disorder.see(to_micros(at(n)))
    assert disorder.watermark(99) == to_micros(at(199))


async def test_rows_that_are_read_again_are_not_taken_for_late_ones() -> None:
    """What a source has shown before its lane starts over says nothing of what it shows then."""
    rows = [Item("k", n, n) for n in range(1000)]
    made = Pipeline("percentile", settings=replace(QUICK, chunk_records=5))
    made.inject(
        ITEMS,
        Script(ITEMS.name, [inject(ITEMS, row) for row in rows]),
        timestamp=time_of,
        lateness=LATENESS,
    )
    made.add(Punctual(), ITEMS.by(key_of), low_watermark_percentile=90)
    world = World(made)
    wire = Gate()

    async def fail(commit: Commit) -> None:
        if commit.seen:
            await wire.wait()
            world.on_try = None
            raise StoreUnavailable("away")

    world.on_try = fail
    engine = await world.start()
    await world.until(lambda: wire.reached)
    source = world.interval("items_injector")
    await world.until(lambda: source.log.next_seq >= 500)
    before = source.log
    wire.open()
    await world.until(lambda: source.log is not before and source.log.next_seq, tick=0.01)
    engine.sources.paused.set(frozenset({source.step.id}))
    await world.turns(100, tick=0.01)
    engine.sources.paused.set(frozenset())
    await world.finish(engine)
    assert world.counter("punctual", "on_time") == len(rows)
