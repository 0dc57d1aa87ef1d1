"""Low watermarks: never back, never ahead of pending work, told only once stored (I5, I7).

That they are so in any graph and through any faults: `test_random_graphs`.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from millwheel import Computation, Context, Pipeline, Record, Stream, Table
from millwheel.core.model import MAX_TIME, MIN_TIME, from_micros, to_micros
from millwheel.errors import GraphError, InputError, StoreUnavailable, UserCodeError
from millwheel.store.port.commit import Commit
from millwheel.testing import Harness, advance, inject
from tests.support.cancellation import cancel_oneself
from tests.support.pipelines import (
    QUICK,
    Broken,
    Kept,
    Parts,
    Tally,
    doing,
    produce,
    script,
    two_sources,
)
from tests.support.values import ITEMS, TALLY, Counted, Item, at, items, key_of, time_of
from tests.support.worlds import Gate, World, fail_once, read_on


def low_of(world: World, name: str) -> datetime:
    return from_micros(
        min(i.watermarks.durable for i in world.engines[-1].intervals if i.step.name == name)
    )


async def test_a_late_record_that_waits_does_not_freeze_the_watermark() -> None:
    """It holds at what was promised when it was read, not at its own timestamp (I5)."""
    gate = Gate()

    async def do(record: Record[Item], ctx: Context[Kept]) -> None:
        if record.value.number == 1:
            await gate.wait()
        produce(ctx, record.value.number)

    source = script(ITEMS, [Item("a", 0, 100), Item("b", 1, 3), Item("a", 2, 200)])
    world = World(doing(source, do))
    engine = await world.start()
    await world.until(lambda: gate.reached and world.numbers() == [0, 2])
    await world.turns()
    assert low_of(world, "items_injector") == at(100)
    assert low_of(world, "do") == at(100)
    gate.open()
    await world.until(engine.done.is_set)
    assert low_of(world, "do") == at(200)
    await engine.stop()


async def test_an_on_time_record_that_waits_holds_the_watermark() -> None:
    gate = Gate()

    async def do(record: Record[Item], ctx: Context[Kept]) -> None:
        if record.value.number == 0:
            await gate.wait()
        produce(ctx, record.value.number)

    source = script(ITEMS, [Item("a", 0, 100), Item("b", 1, 150), Item("c", 2, 200)])
    world = World(doing(source, do))
    engine = await world.start()
    await world.until(lambda: gate.reached and sorted(world.numbers()) == [1, 2])
    await world.turns(100, tick=0.1)
    assert low_of(world, "items_injector") == at(100)
    gate.open()
    await world.until(engine.done.is_set)
    assert low_of(world, "do") == at(200)
    await engine.stop()


async def test_late_records_in_a_long_queue_do_not_freeze_the_watermark() -> None:
    """One in a hundred is very late: at every commit the reader is at most a queue behind."""
    values = [Item("a", n, 0 if n % 100 == 99 else n) for n in range(600)]
    limits = replace(QUICK, chunk_records=10, bundle_records=20, max_unacked_records=50)
    world = World(doing(values, lambda record, ctx: count_one(ctx), settings=limits))
    behind: list[float] = []
    done = 0

    def watch(commit: Commit) -> None:
        nonlocal done
        done += sum(map(len, commit.seen.values()))
        low = [link.low_watermark for link in commit.intervals if link.position is not None]
        if low and done > 100:
            behind.append(done - (from_micros(low[0]) - at(0)).total_seconds())

    world.on_durable = watch
    await world.run()
    assert max(behind) < 120


async def count_one(ctx: Context[Kept]) -> None:
    ctx.state.count += 1


async def test_the_watermark_is_told_only_once_it_is_stored() -> None:
    """While the injector's commit is on the wire, its reader knows nothing of it."""
    world = World(doing([advance(ITEMS, at(100))], lambda record, ctx: count_one(ctx)))
    gate = Gate()
    world.on_try = lambda commit: gate.wait() if _moves(commit) else None
    engine = await world.start()
    await world.until(lambda: gate.reached)
    await world.turns()
    assert world.interval("do").watermarks.input == MIN_TIME
    gate.open()
    await world.until(engine.done.is_set)
    assert world.interval("do").watermarks.input == to_micros(at(100))
    await engine.stop()


def _moves(commit: Commit) -> bool:
    return any(link.low_watermark > MIN_TIME for link in commit.intervals)


async def test_a_restart_goes_on_from_the_stored_watermark() -> None:
    source = script(ITEMS, [Item("a", 0, 10), advance(ITEMS, at(100))])
    world = World(doing(source, lambda record, ctx: count_one(ctx)))
    await world.run()
    engine = await world.start()
    assert world.interval("do").watermarks.input == to_micros(at(100))
    assert low_of(world, "do") == at(100)
    await engine.stop()


@pytest.mark.parametrize("bound", ["end of time", "left open"])
async def test_the_watermark_at_the_end_of_the_input(bound: str) -> None:
    close = bound == "end of time"
    world = World(doing(items(1, 2, second=5), lambda record, ctx: count_one(ctx)))
    engine = await world.run(close_at_end=close)
    lows = {interval.watermarks.durable for interval in engine.intervals}
    assert lows == {MAX_TIME if close else to_micros(at(5))}


async def test_a_source_without_rows_ends_at_the_end_of_time() -> None:
    world = World(doing([], lambda record, ctx: count_one(ctx)))
    engine = await world.run(close_at_end=True)
    assert {interval.watermarks.durable for interval in engine.intervals} == {MAX_TIME}


# -- I7 ---------------------------------------------------------------------------------------


def producing(second: float | None) -> Any:
    async def do(record: Record[Item], ctx: Context[Kept]) -> None:
        timestamp = None if second is None else at(second)
        ctx.produce(TALLY, Counted("a", record.value.number, 0), timestamp=timestamp)

    return do


@pytest.mark.parametrize(
    ("number", "second", "output", "legal"),
    [
        (1, 150, 149, True),  # older than its record, not older than promised
        (1, 150, 101, True),
        (1, 150, 100, True),  # just as promised
        (1, 150, 99, False),  # an on-time record's output would be late
        (2, 50, None, True),  # a late record's output may be as late
        (2, 50, 50, True),
        (2, 50, 49, False),
        (2, 50, 5000, True),
    ],
)
async def test_an_output_may_not_be_older_than_promised(
    number: int, second: float, output: float | None, legal: bool
) -> None:
    steps = [Item("z", 0, 0), advance(ITEMS, at(100))]
    source = script(ITEMS, steps)
    world = World(doing(source, producing(output) if True else None, on_error="dead_letter"))

    engine = await world.start()
    await world.until(engine.done.is_set)
    world.store.dead_letters.clear()
    before = len(world.rows())
    source.append(inject(ITEMS, Item("a", number, second)))
    read_on(engine)
    await world.until(engine.done.is_set)
    if legal:
        assert world.letters() == []
        assert len(world.rows()) == before + 1
    else:
        ((_, error),) = world.letters()
        assert "older than both its input" in error
        assert len(world.rows()) == before
    await engine.stop()


COPIES = Stream("copies", Counted)


class Plain(Computation[Item, None]):
    """Does what a test wants, and keeps nothing."""

    writes = (COPIES,)

    def __init__(self, do: Any) -> None:
        self._do = do

    async def process_record(self, record: Record[Item], ctx: Context[None]) -> None:
        await self._do(record, ctx)


class Copy(Computation[Counted, None]):
    """Passes on what it gets."""

    writes = (TALLY,)

    async def process_record(self, record: Record[Counted], ctx: Context[None]) -> None:
        ctx.produce(TALLY, record.value)


class Older:
    """A record at 100 s whose code waits, before it produces something of 50 s or after it, while
    the source gets to 200 s."""

    def __init__(self, *, waits: str, fails: bool = False, weak: bool = False) -> None:
        self.gate, self.fails = Gate(), fails
        self.told: datetime | None = None
        self.waits = waits
        self.source = script(ITEMS, [Item("a", 1, 100)])
        options: dict[str, Any] = {"on_error": "dead_letter", "retries": 0}
        if weak:
            options["productions"] = "weak"
            self.made = Pipeline("older", settings=QUICK)
            self.made.inject(ITEMS, self.source, timestamp=time_of, lateness=timedelta(seconds=100))
            self.made.add(Plain(self.do), ITEMS.by(key_of), name="do", **options)
            self.made.add(Copy(), COPIES.by(lambda counted: counted.key))
            self.made.sink(TALLY, Table("out", Counted, numbered=True))
        else:
            self.made = doing(self.source, self.do, lateness=100, **options)
        self.to = COPIES if weak else TALLY
        self.world = World(self.made)

    async def do(self, record: Record[Item], ctx: Any) -> None:
        if record.value.number != 1:
            return
        if self.waits == "before":
            await self.gate.wait()
            if self.to is TALLY and self.told is None:
                self.told = ctx.output_watermark
        ctx.produce(self.to, Counted("a", 1, 0), timestamp=at(50))
        if self.waits == "after":
            await self.gate.wait()
        if self.fails:
            raise Broken("on purpose")

    async def begin(self) -> Any:
        """The watermark that is stored of it while the code waits, and who does it."""
        engine = await self.world.start()
        await self.world.until(lambda: self.gate.reached)
        self.source.append(inject(ITEMS, Item("b", 2, 200)))
        read_on(engine)
        await self.world.turns(200, tick=0.01)
        return engine

    @property
    def stored(self) -> Any:
        return from_micros(self.world.interval("do").watermarks.durable)


@pytest.mark.parametrize("weak", [False, True])
async def test_what_is_older_than_its_record_holds_the_watermark_while_code_waits(
    weak: bool,
) -> None:
    """I5: it was no older than promised when it was produced, and must not come late."""
    older = Older(waits="after", weak=weak)
    engine = await older.begin()
    assert older.stored == at(50)
    older.gate.open()
    await older.world.finish(engine)
    assert older.world.numbers() == [1]
    assert older.world.letters() == []
    assert {len(interval.watermarks.holds) for interval in engine.intervals} == {0}
    assert older.stored == at(100)


@pytest.mark.parametrize("weak", [False, True])
async def test_what_is_produced_after_a_wait_may_be_older_than_promised_meanwhile(
    weak: bool,
) -> None:
    """An error that says so: an on-time record's output would be late (I7)."""
    older = Older(waits="before", weak=weak)
    engine = await older.begin()
    assert older.stored == at(100), "nothing else is known to be owed"
    older.gate.open()
    await older.world.finish(engine)
    assert older.world.numbers() == []
    ((_, error),) = older.world.letters()
    assert "older than both its input" in error
    assert "2024-01-01T00:01:40" in error, "what is promised by now"
    assert older.told == (None if weak else at(100))


@pytest.mark.parametrize("weak", [False, True])
async def test_what_was_never_sent_holds_nothing(weak: bool) -> None:
    older = Older(waits="after", fails=True, weak=weak)
    engine = await older.begin()
    assert older.stored == at(50)
    older.gate.open()
    await older.world.finish(engine)
    assert older.world.numbers() == []
    assert len(older.world.letters()) == 1
    assert {len(interval.watermarks.holds) for interval in engine.intervals} == {0}


async def test_a_lane_that_starts_over_holds_nothing_for_what_its_code_has_produced() -> None:
    """It runs again, and may find that more is promised by then."""
    older = Older(waits="after")
    engine = await older.begin()
    assert older.stored == at(50)
    fail_once(older.world, 1, StoreUnavailable("away"))
    older.world.interval("do").touch(urgent=True)
    await older.world.until(lambda: older.stored == at(100), tick=0.05)
    older.gate.open()
    await older.world.finish(engine)
    ((_, error),) = older.world.letters()
    assert "older than both its input" in error
    assert {len(interval.watermarks.holds) for interval in engine.intervals} == {0}


async def test_code_that_cancels_its_task_leaves_no_hold_behind() -> None:
    """Neither of its own record nor of one that ran before it, one by one since another fails."""

    async def do(record: Record[Item], ctx: Context[Kept]) -> None:
        if record.value.number:
            ctx.produce(TALLY, Counted("a", record.value.number, 0), timestamp=at(50))
        if record.value.number == 2:
            raise Broken("on purpose")
        if record.value.number == 3:
            await cancel_oneself()

    values = [Item("z", 0, 60), *(Item("a", n, 100) for n in (1, 2, 3, 4))]
    world = World(doing(values, do, lateness=100, on_error="dead_letter", retries=0))
    engine = await world.run()
    assert world.numbers() == [1, 4]
    assert {len(interval.watermarks.holds) for interval in engine.intervals} == {0}


async def test_the_error_for_an_output_too_old_says_what_and_where() -> None:
    pipeline = doing([], producing(5))
    async with Harness(pipeline) as harness:
        await harness.advance(ITEMS, at(100))
        with pytest.raises(UserCodeError, match=r"key 'a'.*tally.*older than both"):
            await harness.inject(ITEMS, Item("a", 1, 150))


async def test_timestamps_need_a_time_zone() -> None:
    async def do(record: Record[Item], ctx: Context[Kept]) -> None:
        naive = datetime(2024, 1, 1)
        ctx.produce(TALLY, Counted("a", 1, 0), timestamp=naive)

    world = World(doing(items(1), do, on_error="dead_letter"))
    await world.run()
    assert "no time zone" in world.letters()[0][1]


# -- sources that say nothing ------------------------------------------------------------------


async def test_an_idle_source_does_not_hold_the_others_back_and_comes_back_late() -> None:
    busy = script(ITEMS, [Item("a", n, n) for n in range(10)], "busy")
    silent = script(ITEMS, [Item("b", 100, 2)], "silent")
    world = World(two_sources(busy, silent, idle_after=timedelta(seconds=30)))
    engine = await world.start()
    await world.until(engine.done.is_set)

    def low(name: str) -> float:
        return float(world.interval(name).watermarks.durable - int(at(0).timestamp() * 1e6)) / 1e6

    assert (low("source_0"), low("source_1"), low("tally")) == (9, 2, 2)
    await world.turns(200, tick=0.1)
    assert low("tally") == 2, "it has been silent for 20 seconds only"
    busy.append(inject(ITEMS, Item("a", 10, 50)))
    read_on(engine)
    await world.until(lambda: low("source_0") == 50, tick=0.01)
    await world.turns(150, tick=0.1)
    await world.until(lambda: low("tally") == 50, tick=0.1)
    silent.append(inject(ITEMS, Item("b", 101, 40)))
    read_on(engine)
    await world.until(lambda: len(world.rows()) == 13, tick=0.01)
    assert low("tally") == low("source_1") == 50, "a watermark never goes back"
    busy.append(inject(ITEMS, Item("a", 11, 70)))
    read_on(engine)
    await world.until(lambda: low("source_0") == 70, tick=0.01)
    await world.turns(100, tick=0.01)
    assert low("tally") == 50, "it counts again"
    await world.finish(engine)


async def test_all_idle_stands_still() -> None:
    sources = [script(ITEMS, [Item(k, 1, n)], k) for n, k in enumerate("ab", 1)]
    world = World(two_sources(*sources, idle_after=timedelta(seconds=1)))
    engine = await world.start()
    await world.until(engine.done.is_set)
    await world.turns(300, tick=0.1)
    assert world.interval("tally").watermarks.durable == int(at(1).timestamp() * 1e6)
    await world.finish(engine)


async def test_a_partition_that_is_silent_holds_the_watermark_at_its_last_value() -> None:
    parts = [script(ITEMS, [], name) for name in "abc"]
    pipeline = Pipeline("parts", settings=QUICK)
    pipeline.inject(ITEMS, Parts(*parts), timestamp=time_of)
    pipeline.add(Tally(), ITEMS.by(key_of))
    pipeline.sink(TALLY, Table("out", Counted, numbered=True))
    world = World(pipeline)

    async def grow(*seconds: int | None) -> Any:
        """Each partition gets one more item, or None; gives the consumer's low watermark."""
        for number, (part, second) in enumerate(zip(parts, seconds, strict=True)):
            if second is not None:
                part.append(inject(ITEMS, Item(part.identity[-1], 1000 * number + second, second)))
        await world.run()
        stored = world.interval("tally").watermarks.durable
        return None if stored == MIN_TIME else (from_micros(stored) - at(0)).total_seconds()

    assert await grow(10, 20, None) is None, "nothing is known of the third"
    assert await grow(30, 40, 15) == 15
    assert await grow(50, 60, None) == 15, "it stands where the third was, over restarts too"
    assert await grow(None, None, None) == 15
    assert await grow(None, None, 55) == 50, "the first is the least now"
    assert len(world.rows()) == 8


async def test_records_may_say_themselves_how_far_time_is() -> None:
    """Punctuated: every tenth item promises that nothing older than itself comes any more."""

    def word(item: Item) -> datetime | None:
        return at(item.second) if item.number % 10 == 0 else None

    source = script(ITEMS, [Item("a", n, n) for n in range(1, 16)])
    pipeline = Pipeline("words", settings=QUICK)
    pipeline.inject(ITEMS, source, timestamp=time_of, watermark=word)
    pipeline.add(Tally(), ITEMS.by(key_of))
    pipeline.sink(TALLY, Table("out", Counted, numbered=True))
    world = World(pipeline)
    await world.run()
    assert world.interval("tally").watermarks.durable == int(at(10).timestamp() * 1e6)
    source.append(inject(ITEMS, Item("a", 20, 20)))
    await world.run()
    assert world.interval("tally").watermarks.durable == int(at(20).timestamp() * 1e6)


OUTSIDE: list[tuple[datetime, str]] = [
    (datetime(2024, 1, 1), "has no time zone"),
    (datetime(1, 1, 1, tzinfo=UTC), "0001-01-01T.*outside the range.*from 0001-01-02 to 9999"),
    (datetime(9999, 12, 31, tzinfo=UTC), "9999-12-31T.*outside the range"),
    (from_micros(MAX_TIME), "9999-12-30T.*outside the range"),
]


@pytest.mark.parametrize(("wrong", "reason"), OUTSIDE)
@pytest.mark.parametrize("which", ["timestamp", "seen"])
async def test_times_that_cannot_be_are_bad_rows(which: str, wrong: datetime, reason: str) -> None:
    """Such a row says nothing of the watermark: those after it are not late."""
    functions: dict[str, Any] = {"timestamp": time_of}
    functions[which] = lambda item: wrong if item.number == 1 else time_of(item)
    for on_error in ("fail", "dead_letter"):
        pipeline = Pipeline("wrong", settings=QUICK)
        source = script(ITEMS, items(0, 1, 2))
        pipeline.inject(ITEMS, source, **functions, on_error=on_error)
        pipeline.add(Tally(), ITEMS.by(key_of))
        pipeline.sink(TALLY, Table("out", Counted, numbered=True))
        world = World(pipeline)
        if on_error == "fail":
            with pytest.raises(
                InputError, match=rf"line 2: {which}= of inject\('items', \.\.\.\).*{reason}"
            ):
                await world.run(close_at_end=True)
        else:
            await world.run(close_at_end=True)
            assert [row[1] for row in world.rows()] == [0, 2]
            assert len(world.letters()) == 1


async def test_the_first_and_the_last_instant_can_be() -> None:
    pipeline = Pipeline("ends", settings=QUICK)
    ends = {0: from_micros(MIN_TIME), 1: from_micros(MAX_TIME - 1)}
    pipeline.inject(ITEMS, script(ITEMS, items(0, 1)), timestamp=lambda item: ends[item.number])
    pipeline.add(Tally(), ITEMS.by(key_of))
    pipeline.sink(TALLY, Table("out", Counted, numbered=True))
    world = World(pipeline)
    await world.run(close_at_end=True)
    assert [row[1] for row in world.rows()] == [0, 1]


@pytest.mark.parametrize(("wrong", "reason"), OUTSIDE[:3])
async def test_outputs_stand_in_time(wrong: datetime, reason: str) -> None:
    async def do(record: Record[Item], ctx: Context[Kept]) -> None:
        ctx.produce(TALLY, Counted("a", 1, 1), wrong)

    with pytest.raises(UserCodeError, match=f"'do' failed.*key 'a'.*{reason}"):
        await World(doing(items(1), do)).run()


def test_injections_that_contradict_themselves_are_refused() -> None:
    pipeline = Pipeline("wrong")
    with pytest.raises(GraphError, match="give either `watermark` or these"):
        pipeline.inject(
            ITEMS, script(ITEMS, []), timestamp=time_of, watermark=lambda item: None,
            lateness=timedelta(seconds=1),
        )  # fmt: skip
    wrong: Any
    for wrong in ({"lateness": 10}, {"idle_after": 10}):
        (option,) = wrong
        with pytest.raises(GraphError, match=f"'items': {option} must be a timedelta.*not 10"):
            pipeline.inject(ITEMS, script(ITEMS, []), timestamp=time_of, **wrong)
    with pytest.raises(GraphError, match="lateness may not be negative: -0:00:01"):
        pipeline.inject(ITEMS, script(ITEMS, []), timestamp=time_of, lateness=timedelta(seconds=-1))
    with pytest.raises(GraphError, match="idle_after must be above zero"):
        pipeline.inject(ITEMS, script(ITEMS, []), timestamp=time_of, idle_after=timedelta(0))
