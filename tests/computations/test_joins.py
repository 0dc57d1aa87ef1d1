"""Joins: the edges of time, what is late, what is refused, and what a record costs."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta
from itertools import chain
from typing import Any

import msgspec
import pytest
from structlog.testing import capture_logs

from millwheel import Computation, Pipeline, Stream, Table
from millwheel.computations import IntervalJoin, TemporalJoin, WindowJoin
from millwheel.core.clock import VirtualClock
from millwheel.core.model import to_micros
from millwheel.errors import GraphError
from millwheel.runtime.engine import Engine
from millwheel.runtime.environment import Options
from millwheel.runtime.interval.interval_fold import fold
from millwheel.runtime.keys import map_entries as entries
from millwheel.store.memory.tables import changes_of
from millwheel.store.port.commit import Commit
from millwheel.testing import Harness, inject
from millwheel.testing.script import Script
from millwheel.windows import LAST_INSTANT, Months, Session, Sliding, Tumbling, instant
from tests.support.joins_oracle import (
    LATE_LEFT,
    LATE_RIGHT,
    LEFT,
    PAIRS,
    RIGHT,
    Pair,
    alone,
    left_alone,
    pair,
)
from tests.support.pipelines import QUICK, script
from tests.support.store_sites import PostgresSite
from tests.support.values import Item, at, key_of, time_of
from tests.support.worlds import World

SECOND = timedelta(seconds=1)
MICRO = timedelta(microseconds=1)


def joined(join: Computation[Item, Any], settings: Any = QUICK) -> Pipeline:
    pipeline = Pipeline("joined", settings=settings)
    for stream in LEFT, RIGHT:
        source = script(stream, [], stream.name)
        # The tests alone say how far the watermark is.
        pipeline.inject(stream, source, timestamp=time_of, lateness=timedelta(days=100))
    pipeline.add(join, LEFT.by(key_of), RIGHT.by(key_of))
    return pipeline


def interval(before: float = 0, after: float = 0, **options: Any) -> Computation[Item, Any]:
    bounds: dict[str, Any] = {"before": before * SECOND or None, "after": after * SECOND or None}
    late: dict[str, Any] = {"late_left": None, "late_right": None}
    return IntervalJoin(LEFT, RIGHT, **bounds, to=PAIRS, combine=pair, **{**late, **options})


async def both(harness: Harness, second: float) -> None:
    """Both sources promise that nothing older comes."""
    await harness.advance(LEFT, at(second))
    await harness.advance(RIGHT, at(second))


# -- interval join -----------------------------------------------------------------------------


async def test_both_bounds_are_inside() -> None:
    async with Harness(joined(interval(before=5, after=10))) as harness:
        await harness.inject(LEFT, Item("a", 0, 100))
        rights = [94.999999, 95, 100, 110, 110.000001]
        await harness.inject(RIGHT, *(Item("a", n, s) for n, s in enumerate(rights)))
        await harness.inject(RIGHT, Item("b", 9, 100))
        assert harness.produced(PAIRS) == [Pair(0, 1), Pair(0, 2), Pair(0, 3)]
        await harness.inject(LEFT, Item("a", 1, 84.999999), Item("a", 2, 115))
        assert harness.produced(PAIRS)[3:] == [Pair(1, 0), Pair(2, 3), Pair(2, 4)]


async def test_a_bound_left_out_is_the_records_own_instant() -> None:
    async with Harness(joined(interval(after=10))) as harness:
        await harness.inject(LEFT, Item("a", 0, 100))
        await harness.inject(RIGHT, Item("a", 1, 99.999999), Item("a", 2, 100))
        assert harness.produced(PAIRS) == [Pair(0, 2)]


async def test_a_record_is_held_as_long_as_a_partner_may_come_and_no_longer() -> None:
    join = interval(after=10, **alone("outer"))
    async with Harness(joined(join)) as harness:
        # The first is due before the second, so that the timer fires while the second is held.
        await harness.inject(LEFT, Item("a", 0, 99), Item("a", 2, 100))
        await both(harness, 110)
        assert harness.produced(PAIRS) == [Pair(0, None)], "a partner at 110 is on time still"
        await harness.inject(RIGHT, Item("a", 1, 110))
        await both(harness, 110.000001)
        assert harness.produced(PAIRS) == [Pair(0, None), Pair(2, 1)]
        assert harness.state("make_pairs", "a") == {}, "the right one was due at once"
        assert harness.store.timers() == []


async def test_late_records_are_not_joined() -> None:
    for late in ({}, {"late_left": LATE_LEFT, "late_right": LATE_RIGHT}):
        async with Harness(joined(interval(5, 5, **late, **alone("outer")))) as harness:
            await harness.inject(LEFT, Item("a", 0, 100))
            await both(harness, 101)
            await harness.inject(RIGHT, Item("a", 1, 100.999999), Item("a", 3, 101))
            await harness.inject(LEFT, Item("a", 2, 1))
            assert harness.produced(PAIRS) == [Pair(0, 3)]
            counters = harness.counters("make_pairs")
            if late:
                assert harness.produced(LATE_LEFT) == [Item("a", 2, 1)]
                assert harness.produced(LATE_RIGHT) == [Item("a", 1, 100.999999)]
                assert counters["late_sent"] == 2
            else:
                assert counters["late_dropped"] == 2


async def test_both_sides_can_set_aside_into_one_stream() -> None:
    async with Harness(joined(interval(5, late_left=LATE_LEFT, late_right=LATE_LEFT))) as harness:
        await both(harness, 100)
        await harness.inject(LEFT, Item("a", 0, 1))
        await harness.inject(RIGHT, Item("a", 1, 1))
        assert harness.produced(LATE_LEFT) == [Item("a", 0, 1), Item("a", 1, 1)]


async def test_the_slower_side_holds_the_watermark() -> None:
    async with Harness(joined(interval(after=10, unmatched_left=left_alone))) as harness:
        await harness.inject(LEFT, Item("a", 0, 1))
        await harness.advance(LEFT, at(1000))
        assert harness.produced(PAIRS) == []
        await harness.inject(RIGHT, Item("a", 1, 5))
        assert harness.produced(PAIRS) == [Pair(0, 1)]


async def test_records_at_the_ends_of_the_calendar_are_joined_and_let_go() -> None:
    early, late = -62135510400.0 - at(0).timestamp(), 253402127999.0 - at(0).timestamp()
    async with Harness(joined(interval(1e9, 1e9, **alone("outer")))) as harness:
        await harness.inject(LEFT, Item("a", 0, early), Item("b", 2, late))
        await harness.inject(RIGHT, Item("a", 1, early), Item("b", 3, late - 1))
        assert harness.produced(PAIRS) == [Pair(0, 1), Pair(2, 3)]
        await both(harness, late + 86_400)
        assert harness.produced(PAIRS) == [Pair(0, 1), Pair(2, 3)]
        assert harness.store.states() == []


async def test_more_than_one_firings_worth_is_let_go_in_order() -> None:
    async with Harness(joined(interval(after=10, unmatched_left=left_alone))) as harness:
        count = 2500
        await harness.inject(LEFT, *(Item("a", n, 100) for n in range(count)))
        await both(harness, 200)
        assert harness.produced(PAIRS) == [Pair(n, None) for n in range(count)]
        assert harness.store.states() == []


# -- window join -------------------------------------------------------------------------------


async def test_a_window_join_keeps_to_its_windows() -> None:
    windows = Tumbling(seconds=10)
    join = WindowJoin(LEFT, RIGHT, windows, to=PAIRS, combine=pair, **alone("outer"))
    async with Harness(joined(join)) as harness:
        await harness.inject(LEFT, Item("a", 0, 9.999999), Item("a", 2, 10))
        await both(harness, 9)
        await harness.inject(RIGHT, Item("a", 1, 0), Item("a", 3, 20))
        assert harness.produced(PAIRS) == [Pair(0, 1)], "its window is open: it is not late"
        await both(harness, 20)
        assert harness.produced(PAIRS) == [Pair(0, 1), Pair(2, None)]
        await harness.inject(LEFT, Item("a", 4, 19.999999), Item("a", 6, 20))
        assert harness.produced(PAIRS)[2:] == [Pair(6, 3)]
        assert harness.counters("make_pairs")["late_dropped"] == 1
        await both(harness, 30)
        assert harness.store.states() == []


# -- temporal join -----------------------------------------------------------------------------


def temporal(**options: Any) -> Computation[Item, Any]:
    return TemporalJoin(LEFT, RIGHT, to=PAIRS, combine=pair, **options)


async def test_a_record_gets_the_row_of_its_time() -> None:
    async with Harness(joined(temporal(unmatched=left_alone))) as harness:
        seconds = [9.999999, 10, 19, 20, 25]
        await harness.inject(LEFT, *(Item("a", n, s) for n, s in enumerate(seconds)))
        await harness.inject(RIGHT, Item("a", 20, 20), Item("a", 10, 10), Item("b", 0, 0))
        assert harness.produced(PAIRS) == [], "nothing is certain yet"
        await both(harness, 25)
        expected = [Pair(0, None), Pair(1, 10), Pair(2, 10), Pair(3, 20)]
        assert harness.produced(PAIRS) == expected
        await both(harness, 26)
        assert harness.produced(PAIRS) == [*expected, Pair(4, 20)]


async def test_old_versions_go_once_a_newer_one_holds() -> None:
    async with Harness(joined(temporal())) as harness:
        await harness.inject(RIGHT, Item("a", 10, 10), Item("a", 20, 20), Item("a", 30, 30))
        for second, held in ((10, 3), (20, 3), (20.000001, 2), (30, 2), (31, 1), (1000, 1)):
            await both(harness, second)
            entries = [e for e in harness.state("make_pairs", "a") if e.startswith("versions/")]
            assert len(entries) == held, second
        await harness.inject(LEFT, Item("a", 1, 5000))
        await both(harness, 5001)
        assert harness.produced(PAIRS) == [Pair(1, 30)]
        assert harness.store.timers() == []


async def test_without_waiting_a_record_gets_what_is_there() -> None:
    async with Harness(joined(temporal(wait=False))) as harness:
        await harness.inject(LEFT, Item("a", 0, 15))
        await harness.inject(RIGHT, Item("a", 10, 10), Item("a", 20, 20))
        await harness.inject(LEFT, Item("a", 1, 15), Item("a", 2, 20))
        assert harness.produced(PAIRS) == [Pair(1, 10), Pair(2, 20)]
        assert harness.counters("make_pairs")["unmatched"] == 1


async def test_a_late_version_counts_from_now_on_unless_it_is_superseded() -> None:
    async with Harness(joined(temporal())) as harness:
        await harness.inject(RIGHT, Item("a", 10, 10))
        await both(harness, 50)
        with capture_logs() as logs:
            await harness.inject(RIGHT, Item("a", 20, 20), Item("a", 15, 15))
        (told,) = (log for log in logs if log["event"] == "late_record_dropped")
        assert (told["stream"], told["key"], told["late_seconds"]) == (RIGHT.name, "'a'", 35)
        assert "late_versions_dropped" in told["what_it_means"]
        assert "late=" not in told["what_to_do"]
        await harness.inject(LEFT, Item("a", 1, 50), Item("a", 3, 49))
        await both(harness, 60)
        assert harness.produced(PAIRS) == [Pair(1, 20)]
        counters = harness.counters("make_pairs")
        assert counters["late_versions"] == counters["late_versions_dropped"] == 1
        assert counters["late_dropped"] == 1


async def test_of_two_versions_of_one_instant_the_last_holds() -> None:
    async with Harness(joined(temporal())) as harness:
        await harness.inject(RIGHT, Item("a", 1, 10), Item("a", 2, 10))
        await harness.inject(LEFT, Item("a", 0, 10))
        await both(harness, 11)
        assert harness.produced(PAIRS) == [Pair(0, 2)]


# -- refused -----------------------------------------------------------------------------------


def number_of(item: Item) -> int:
    return item.number


def name_of(item: Item) -> str:
    return item.key


def both_of(item: Item) -> tuple[str, int]:
    return item.key, item.number


def all_joins() -> list[Computation[Item, Any]]:
    window = WindowJoin(LEFT, RIGHT, Tumbling(minutes=1), to=PAIRS, combine=pair)
    return [interval(after=1), window, temporal()]


@pytest.mark.parametrize(
    ("left", "right", "told"),
    [
        (name_of, number_of, ("str", "int")),
        (lambda item: item.key, number_of, ("str", "int")),
        (lambda item: item.number, lambda item: item.key, ("int", "str")),
        (both_of, name_of, ("(str, int)", "str")),
        (lambda item: (item.number, item.key), both_of, ("(int, str)", "(str, int)")),
        (lambda item: str(item.number), lambda item: item.number, ("str", "int")),
    ],
)
def test_sides_must_agree_on_the_type_of_the_key(left: Any, right: Any, told: Any) -> None:
    for join in all_joins():
        with pytest.raises(GraphError) as refused:
            Pipeline("p").add(join, LEFT.by(left), RIGHT.by(right))
        text = str(refused.value)
        assert f"'left_items' is read by keys of type {told[0]}" in text
        assert f"'right_items' by keys of type {told[1]}" in text
        assert "never equal" in text


def test_keys_of_one_type_or_of_a_type_that_cannot_be_told_are_accepted() -> None:
    unknown = Stream("left_items", dict[str, Any])
    for left, right in (
        (name_of, lambda item: item.key),
        (both_of, lambda item: (item.key, item.number)),
        (number_of, lambda item: len(item.key)),
        (lambda item: item.key.split("/")[7], number_of),
    ):
        for join in all_joins():
            Pipeline("p").add(join, LEFT.by(left), RIGHT.by(right))
    plain = IntervalJoin(unknown, RIGHT, after=SECOND, to=PAIRS, combine=lambda a, b: Pair(1, 1))
    Pipeline("p").add(plain, unknown.by(lambda value: value["key"]), RIGHT.by(number_of))


class Nested(msgspec.Struct):
    """A value with fields of many types."""

    item: Item
    maybe: int | None
    tags: list[str]
    pair: tuple[str, int]


@pytest.mark.parametrize(
    ("extractor", "kind"),
    [
        (lambda value: value.item.key, "str"),
        (lambda value: value.maybe, None),
        (lambda value: (value.item.key, value.maybe), None),
        (lambda value: value.tags[0], None),
        (lambda value: len(value.tags), "int"),
        (lambda value: value.pair, "(str, int)"),
        (lambda value: f"{value.maybe}", "str"),
        (lambda value: value.wrong, None),
    ],
)
def test_the_type_of_a_key_is_told_where_it_can_be(extractor: Any, kind: str | None) -> None:
    assert Stream("nested", Nested).by(extractor).key_type == kind


def test_a_whole_value_can_be_the_key() -> None:
    assert Stream("words", str).by(str).key_type == "str"
    assert Stream("numbers", int).by(lambda number: number).key_type == "int"
    assert Stream("moments", int).by(str).key_type == "str"


@pytest.mark.parametrize("bound", [0, -1, -1e-6, 1e-9])
@pytest.mark.parametrize("name", ["before", "after"])
def test_bounds_are_above_zero(name: str, bound: float) -> None:
    bounds: dict[str, Any] = {"before": SECOND, "after": SECOND, name: bound * SECOND}
    with pytest.raises(GraphError, match=f"IntervalJoin: {name} must be .*above zero"):
        IntervalJoin(LEFT, RIGHT, to=PAIRS, combine=pair, **bounds)


def test_a_bound_is_a_duration_and_one_is_needed() -> None:
    with pytest.raises(GraphError, match="IntervalJoin needs before="):
        IntervalJoin(LEFT, RIGHT, to=PAIRS, combine=pair)
    with pytest.raises(GraphError, match="must be a timedelta above zero"):
        IntervalJoin(LEFT, RIGHT, after=10, to=PAIRS, combine=pair)  # type: ignore[arg-type]


@pytest.mark.parametrize("windows", [Sliding(2 * SECOND, SECOND), Session(SECOND), SECOND])
def test_a_window_join_takes_windows_side_by_side(windows: Any) -> None:
    with pytest.raises(GraphError, match="WindowJoin takes Tumbling windows or Months, not "):
        WindowJoin(LEFT, RIGHT, windows, to=PAIRS, combine=pair)


@pytest.mark.parametrize(
    "month", [Tumbling(days=30, zone="America/New_York"), Months(zone="America/New_York")]
)
async def test_windows_of_a_local_month_join_to_the_end_of_time(month: Any) -> None:
    """The window that the end of time is in ends beyond the calendar."""
    join = WindowJoin(LEFT, RIGHT, month, to=PAIRS, combine=pair)
    async with Harness(joined(join)) as harness:
        await harness.inject(LEFT, Item("a", 1, 0))
        await harness.inject(RIGHT, Item("a", 2, 0))
        for stream in (LEFT, RIGHT):
            await harness.advance(stream, instant(LAST_INSTANT + 1))
        assert harness.produced(PAIRS) == [Pair(1, 2)]
        assert harness.store.states() == []


def test_a_join_reads_its_two_streams() -> None:
    for join in all_joins():
        with pytest.raises(GraphError, match="joins 'left_items' and 'right_items'"):
            Pipeline("p").add(join, LEFT.by(key_of))
        with pytest.raises(GraphError, match="joins 'left_items' and 'right_items'"):
            Pipeline("p").add(join, LEFT.by(key_of), LATE_LEFT.by(key_of))
    for make in (
        lambda: IntervalJoin(LEFT, LEFT, after=SECOND, to=PAIRS, combine=pair),
        lambda: WindowJoin(LEFT, LEFT, Tumbling(minutes=1), to=PAIRS, combine=pair),
        lambda: TemporalJoin(LEFT, LEFT, to=PAIRS, combine=pair),
    ):
        with pytest.raises(GraphError, match="both are 'left_items'"):
            make()


# -- what a record costs -----------------------------------------------------------------------


def bytes_of(commit: Commit) -> int:
    """What a commit writes, but for ids and the fixed part that every commit has."""
    return (
        sum(
            len(change.key) + len(change.entry) + len(change.value or b"")
            for change in chain.from_iterable(map(changes_of, commit.states))
        )
        + sum(len(timer.key) + 40 for timer in commit.timers)
        + sum(len(delivery.encoded) for delivery in commit.productions)
        + sum(len(str(values)) for _, values in commit.rows)
    )


MEASURED = 10


async def cost(held: int, kind: str) -> tuple[float, int, int]:
    """With so many records held under one key: bytes a record, its results, scans of the store."""
    lefts = [Item("a", 2 * n, n * 1000 / held) for n in range(held)]
    left, right = Script("left"), Script("right")
    limits = replace(QUICK, fold_rows=10_000)
    pipeline = Pipeline("costs", settings=limits)
    pipeline.inject(LEFT, left, timestamp=time_of, lateness=timedelta(days=1))
    pipeline.inject(RIGHT, right, timestamp=time_of, lateness=timedelta(days=1))
    if kind == "interval":
        # Each record meets one of them, however many are held: so dense do they stand.
        join = interval(before=400 / held, after=400 / held, **alone("left"))
    else:
        join = temporal()
    pipeline.add(join, LEFT.by(key_of), RIGHT.by(key_of))
    pipeline.sink(PAIRS, Table("pairs", Pair))
    world = World(pipeline)
    for item in lefts:
        left.append(inject(LEFT, item))
    await world.run()
    filled = len(world.commits)
    small = replace(limits, bundle_records=1, chunk_records=1)
    pipeline.settings = small
    for number in range(MEASURED):
        second = lefts[(number * 7919) % held].second
        right.append(inject(RIGHT, Item("a", 2 * number + 1, second)))
    scans = 0
    scan = world.store.scan_entries

    async def counted(*arguments: Any) -> Any:
        nonlocal scans
        scans += 1
        return await scan(*arguments)

    world.store.scan_entries = counted  # type: ignore[method-assign, assignment]
    await world.run()
    commits = world.commits[filled:]
    made = len(world.rows("pairs"))
    return sum(map(bytes_of, commits)) / MEASURED, made, scans


@pytest.mark.parametrize(
    ("kind", "entries"),
    [
        ("interval", 20_000),
        pytest.param("interval", 100_000, marks=pytest.mark.soak),
        pytest.param("temporal", 100_000, marks=pytest.mark.soak),
    ],
)
def test_a_record_writes_as_much_into_a_large_buffer_as_into_a_small_one(
    kind: str, entries: int
) -> None:
    """Many entries under one key: bytes written per record at most twice those at 10."""

    async def go() -> None:
        small, few, _ = await cost(10, kind)
        large, many, scans = await cost(entries, kind)
        assert small > 50
        assert few == many == (MEASURED if kind == "interval" else 0), "not the same results"
        assert large <= 2 * small, (small, large)
        assert scans <= 3 * MEASURED

    asyncio.run(go())


# -- on Postgres -------------------------------------------------------------------------------


@pytest.mark.newest
async def test_a_join_on_postgres_goes_on_after_a_restart_and_shows_what_it_holds(
    postgres: PostgresSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With so little kept in memory that each range is read from the table."""
    monkeypatch.setattr(entries, "READ_AHEAD", 3)
    left, right = Script("left"), Script("right")
    limits = replace(QUICK, eager_entries=2, fold_seconds=0.0, cache_bytes=0)
    pipeline = Pipeline("joined", settings=limits)
    pipeline.inject(LEFT, left, timestamp=time_of, lateness=timedelta(days=1))
    pipeline.inject(RIGHT, right, timestamp=time_of, lateness=timedelta(days=1))
    pipeline.add(interval(after=5, unmatched_left=left_alone), LEFT.by(key_of), RIGHT.by(key_of))
    pipeline.sink(PAIRS, Table("pairs", Pair))

    async def run(close: bool) -> None:
        if close:
            left.end()
            right.end()
        clock = VirtualClock(to_micros(at(0)))
        engine = Engine(
            pipeline,
            postgres.store,
            clock=clock,
            options=Options(keep_open=not close),
            take_over=True,
        )
        await engine.start()
        await engine.run()
        for held in engine.intervals:
            await fold(engine.store, held)
        await engine.stop()

    for number in range(30):
        left.append(inject(LEFT, Item("a", number, number)))
    await run(close=False)
    for number in (3, 17, 18):
        right.append(inject(RIGHT, Item("a", 100 + number, number)))
    await run(close=False)
    found = await postgres.query("SELECT * FROM {v} ORDER BY 1, 2", v="pairs")
    expected = [(n - back, 100 + n) for n in (3, 17, 18) for back in range(6) if n >= back]
    assert found == sorted(expected)
    held = await postgres.query("SELECT * FROM {v} ORDER BY entry", v="state_of_make_pairs_left")
    assert len(held) == 30
    key, entry, value, *_ = held[3]
    assert (key, entry) == ("a", "2024-01-01T00:00:03.000000/000000000003")
    assert value == {"value": {"key": "a", "number": 3, "second": 3}, "matched": True}
    await run(close=True)
    alone = sorted(set(range(30)) - {pair[0] for pair in expected})
    found = await postgres.query('SELECT * FROM {v} WHERE "right" IS NULL ORDER BY 1', v="pairs")
    assert found == [(number, None) for number in alone]
    assert await postgres.query("SELECT * FROM {v}", v="states") == []
