"""Timers: in order of time per key, once per set, through everything (I6).

In any graph and through any faults: `test_random_graphs`.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millwheel import Computation, Context, Pipeline, Record, Timer
from millwheel.core.model import MAX_TIME, MIN_TIME
from millwheel.testing import Harness, advance, inject
from millwheel.timers.holds import Holds
from millwheel.timers.queue import Pending, Place, TimerName, TimerQueue
from millwheel.timers.watermark import SlotWatermarks, WatermarkReport, Watermarks
from tests.support.examples import examples
from tests.support.pipelines import QUICK, Do, Kept, doing, produce, script
from tests.support.values import EPOCH, ITEMS, TALLY, Counted, Item, at, items, key_of, time_of
from tests.support.worlds import Gate, World, read_on


def second(moment: datetime) -> int:
    return round((moment - at(0)).total_seconds())


async def ring(timer: Timer, ctx: Context[Kept]) -> None:
    produce(ctx, second(timer.at), int(timer.tag or 0))


async def set_at_number(record: Record[Item], ctx: Context[Kept]) -> None:
    """A timer at the second that is the item's number; its tag is the item's second."""
    ctx.set_timer(at(record.value.number), tag=f"{record.value.second:.0f}")


# -- the edges --------------------------------------------------------------------------------


async def test_a_watermark_timer_fires_when_the_watermark_is_past_it() -> None:
    """LW = t promises nothing older than t: a timer at t itself is not due yet."""
    async with Harness(doing([], set_at_number, ring)) as harness:
        await harness.inject(ITEMS, Item("a", 50, 1))
        await harness.advance(ITEMS, at(50))
        assert harness.rows("out") == []
        await harness.advance(ITEMS, at(50) + timedelta(microseconds=1))
        assert [row[1] for row in harness.rows("out")] == [50]


async def test_a_pending_timer_holds_what_is_promised_downstream() -> None:
    async with Harness(doing([], set_at_number, ring)) as harness:
        await harness.inject(ITEMS, Item("a", 50, 1))
        await harness.advance(ITEMS, at(40))
        assert harness.low_watermark("do") == at(40)
        await harness.advance(ITEMS, at(50))
        assert harness.low_watermark("do") == at(50)
        await harness.advance(ITEMS, at(70))
        assert harness.low_watermark("do") == at(70)


async def test_an_output_of_a_timer_carries_its_time() -> None:
    seen: list[datetime] = []

    async def bell(timer: Timer, ctx: Context[Kept]) -> None:
        seen.append(timer.at)
        assert ctx.low_watermark > timer.at
        await ring(timer, ctx)

    async with Harness(doing([], set_at_number, bell)) as harness:
        await harness.inject(ITEMS, Item("a", 50, 1))
        await harness.advance(ITEMS, at(1000))
        assert seen == [at(50)]


async def test_a_timer_in_the_past_fires_right_after_the_current_record() -> None:
    async def do(record: Record[Item], ctx: Context[Kept]) -> None:
        ctx.set_timer(at(3))
        produce(ctx, 1000 + record.value.number)

    async with Harness(doing([], do, ring)) as harness:
        await harness.advance(ITEMS, at(100))
        await harness.inject(ITEMS, Item("a", 1, 150))
        assert [row[1] for row in harness.rows("out")] == [1001, 3]


@pytest.mark.parametrize("moment", [datetime.max.replace(tzinfo=UTC), at(10**9)])
async def test_the_end_of_time_fires_every_timer_that_is_set(moment: datetime) -> None:
    """However far off; at the end of a bounded input nothing may be left pending."""

    async def do(record: Record[Item], ctx: Context[Kept]) -> None:
        ctx.set_timer(moment)

    async def bell(timer: Timer, ctx: Context[Kept]) -> None:
        produce(ctx, 1)

    world = World(doing([Item("a", 1)], do, bell))
    await world.run(close_at_end=True)
    assert world.numbers() == [1]
    assert world.store.timers() == []


async def test_timers_set_by_timers_fire_too() -> None:
    async def do(record: Record[Item], ctx: Context[Kept]) -> None:
        ctx.set_timer(at(10))

    async def bell(timer: Timer, ctx: Context[Kept]) -> None:
        await ring(timer, ctx)
        if second(timer.at) < 100:
            ctx.set_timer(timer.at + timedelta(seconds=10))

    world = World(doing([Item("a", 1), advance(ITEMS, at(1000))], do, bell))
    await world.run()
    assert world.numbers() == list(range(10, 101, 10))


# -- holds of the user's -----------------------------------------------------------------------


async def test_a_hold_keeps_the_watermark_until_it_is_released() -> None:
    """What is sent at the time held is not late downstream, however long it waited."""

    async def do(record: Record[Item], ctx: Context[Kept]) -> None:
        if record.value.number == 1:
            ctx.hold_watermark(record.timestamp)
            ctx.hold_watermark(record.timestamp + timedelta(seconds=5), tag="other")
        elif record.value.number == 2:
            ctx.produce(TALLY, Counted("a", 2, 0), timestamp=at(10))
            ctx.release_watermark()
        else:
            ctx.release_watermark("other")

    async with Harness(doing([], do, ring)) as harness:
        await harness.inject(ITEMS, Item("a", 1, 10))
        await harness.advance(ITEMS, at(100))
        assert harness.low_watermark("do") == at(10)
        await harness.inject(ITEMS, Item("a", 2, 100))
        assert harness.low_watermark("do") == at(15)
        await harness.inject(ITEMS, Item("a", 3, 100))
        assert harness.low_watermark("do") == at(100)
        assert harness.store.timers() == []
        assert harness.dead_letters == []


async def test_a_hold_outlives_the_engine_and_ends_with_time() -> None:
    async def do(record: Record[Item], ctx: Context[Kept]) -> None:
        ctx.hold_watermark(record.timestamp)

    source = script(ITEMS, [Item("a", 1, 10), advance(ITEMS, at(100))])
    world = World(doing(source, do, ring))
    await world.run()
    source.append(advance(ITEMS, at(200)))
    engine = await world.start()
    await world.until(engine.done.is_set)
    assert world.interval("do").watermarks.durable == int(at(10).timestamp() * 1e6)
    await engine.stop()
    await world.run(close_at_end=True)
    assert world.interval("do").watermarks.durable == MAX_TIME


async def test_a_hold_does_not_end_with_time_before_the_last_timer_has_fired() -> None:
    """A timer that is to release it sends what was held with the timestamp that was held."""

    async def do(record: Record[Item], ctx: Context[Kept]) -> None:
        ctx.hold_watermark(record.timestamp)
        ctx.hold_watermark(record.timestamp, tag="never released")
        ctx.set_timer(record.timestamp + timedelta(seconds=10), tag=str(record.value.number))

    async def bell(timer: Timer, ctx: Context[Kept]) -> None:
        number = int(timer.tag)
        ctx.produce(TALLY, Counted("a", number, 0), timestamp=timer.at - timedelta(seconds=10))
        ctx.release_watermark()

    limits = replace(QUICK, chunk_records=1, bundle_records=1)
    values = [Item(key, number, number) for number, key in enumerate("abc")]
    world = World(doing(values, do, bell, settings=limits))
    await world.run(close_at_end=True)
    assert world.numbers() == [0, 1, 2]
    assert world.interval("do").watermarks.durable == MAX_TIME


async def test_holds_that_are_not_in_memory_and_were_released_hold_nothing() -> None:
    """The watermark stands where they begin, and then goes on; nothing else happens in the lane."""

    async def do(record: Record[Item], ctx: Context[Kept]) -> None:
        for number in range(1, 6):
            if record.value.number == 0:
                ctx.hold_watermark(at(10 * number), tag=str(number))
            else:
                ctx.release_watermark(str(number))

    limits = replace(QUICK, intervals=2, timers_in_memory=2, chunk_records=1)
    source = script(ITEMS, [*items(0, 1, key="k0"), advance(ITEMS, at(20))])
    world = World(doing(source, do, settings=limits))
    engine = await world.start()
    await world.until(engine.done.is_set, tick=0.001)
    (interval,) = (i for i in engine.intervals if not i.timers.queue("hold").is_whole)
    for second in (20, 60):
        source.append(advance(ITEMS, at(second)))
        read_on(engine)
        due = int(at(second).timestamp() * 1e6)
        await world.until(lambda due=due: interval.watermarks.durable == due, tick=0.001)  # type: ignore[misc]
    await engine.stop()


@pytest.mark.parametrize("kind", ["watermark", "wall"])
@pytest.mark.parametrize("limit", [1, 3, 50])
async def test_timers_that_are_not_in_memory_fire_all_the_same(kind: Any, limit: int) -> None:
    """In order, once, and with the watermark behind them; also after a restart."""

    async def do(record: Record[Item], ctx: Context[Kept]) -> None:
        base = ctx.now if kind == "wall" else EPOCH
        ctx.set_timer(base + timedelta(seconds=record.value.number), str(record.value.number), kind)

    async def bell(timer: Timer, ctx: Context[Kept]) -> None:
        produce(ctx, int(timer.tag))

    order = [(n * 37) % 101 + 1 for n in range(101)]
    limits = replace(QUICK, timers_in_memory=limit, chunk_records=7, fold_seconds=0.2)
    source = script(ITEMS, [Item("abc"[n % 3], n) for n in order])
    world = World(doing(source, do, bell, settings=limits, lateness=1000))
    engine = await world.start()
    await world.until(engine.done.is_set)
    assert len(world.store.timers()) == 101
    assert all(len(q) <= 2 * limit for i in engine.intervals for q in i.timers.queues.values())
    await engine.stop()
    if kind == "watermark":
        source.append(advance(ITEMS, at(50.5)))
    engine = await world.start()
    await world.until(lambda: len(world.rows()) >= 50, tick=0.5 if kind == "wall" else 0)
    if kind == "watermark":
        assert sorted(world.numbers()) == list(range(1, 51))
        low = int(at(50.5).timestamp() * 1e6)
        await world.until(lambda: world.interval("do").watermarks.durable == low)
        source.append(advance(ITEMS, at(1000)))
        read_on(engine)
    await world.until(lambda: len(world.rows()) == 101, tick=0.5)
    await world.finish(engine)
    assert (world.numbers() if kind == "wall" else sorted(world.numbers())) == sorted(order)
    assert world.store.timers() == []


async def test_far_timers_that_come_due_are_read_before_anything_else_is_taken() -> None:
    """Also when they come due between the look at the store and the taking."""

    async def do(record: Record[Item], ctx: Context[Kept]) -> None:
        for number in range(10, 20):
            ctx.set_timer(at(number), str(number))

    limits = replace(QUICK, timers_in_memory=1)
    source = script(ITEMS, [Item("a", 1)])
    world = World(doing(source, do, ring, settings=limits))
    await world.run()
    engine = await world.start()
    await world.until(engine.done.is_set)
    interval, lane = world.interval("do"), engine.lane
    far = interval.timers.queue("watermark")
    assert far.take((b'"a"', "10"), int(at(10).timestamp() * 1e6)) is not None
    interval.watermarks.input = int(at(100).timestamp() * 1e6)
    assert interval.timers.lacking(world.clock.now()) == ["watermark"]
    lane.wake.clear()
    assert lane.runner._take(world.clock.now()) is None
    assert lane.wake.is_set()
    await world.until(lambda: len(world.rows()) == 9)
    assert world.numbers() == list(range(11, 20))
    await world.close()


# -- order -------------------------------------------------------------------------------------


async def test_timers_of_a_key_fire_in_order_across_tags() -> None:
    values = [Item("ab"[n % 2], 100 + (n * 37) % 50, n) for n in range(50)]
    for chunk in (1, 3, 100):
        limits = replace(QUICK, chunk_records=chunk)
        steps = [*values, advance(ITEMS, at(1000))]
        world = World(doing(steps, set_at_number, ring, settings=limits, lateness=100))
        await world.run()
        assert len(world.rows()) == 50
        for key in "ab":
            fired = [number for number, _ in world.tallied()[key]]
            assert fired == sorted(fired)


async def test_a_timer_set_by_a_timer_fires_before_a_later_one_that_is_due_already() -> None:
    """I6: the first sets one for 15; another is set for 20; all are due at once."""

    async def do(record: Record[Item], ctx: Context[Kept]) -> None:
        ctx.set_timer(at(10), tag="1")
        ctx.set_timer(at(20), tag="2")

    async def bell(timer: Timer, ctx: Context[Kept]) -> None:
        await ring(timer, ctx)
        if timer.tag == "1":
            ctx.set_timer(at(15), tag="3")

    world = World(doing([Item("a", 1), advance(ITEMS, at(1000))], do, bell))
    await world.run()
    assert world.numbers() == [10, 15, 20]


async def test_a_timer_set_by_a_waiting_record_fires_before_a_later_one_in_its_backlog() -> None:
    gate = Gate()

    async def do(record: Record[Item], ctx: Context[Kept]) -> None:
        if record.value.number == 1:
            ctx.set_timer(at(20), tag="2")
        else:
            await gate.wait()
            ctx.set_timer(at(15), tag="1")

    source = script(ITEMS, [Item("a", 1, 1), advance(ITEMS, at(18))])
    world = World(doing(source, do, ring))
    engine = await world.start()
    await world.until(engine.done.is_set)
    source.append(inject(ITEMS, Item("a", 2, 1)))
    read_on(engine)
    await world.until(lambda: gate.reached)
    interval = world.interval("do")
    # As progress of another input would: the record that waits is late and does not hold it.
    interval.watermarks.input = int(at(30).timestamp() * 1e6)
    engine.lane.wake.set()
    await world.turns()
    gate.open()
    await world.finish(engine)
    assert world.numbers() == [15, 20]


async def test_any_number_of_timers_in_a_backlog_fire_after_an_earlier_one() -> None:
    """As with windows of one key that all close at once; a thousand were too many."""
    gate, many = Gate(), range(100, 1400)

    async def do(record: Record[Item], ctx: Context[Kept]) -> None:
        if record.value.number == 1:
            for number in many:
                ctx.set_timer(at(number), tag=str(number))
        else:
            await gate.wait()
            ctx.set_timer(at(50), tag="50")

    source = script(ITEMS, [Item("a", 1, 1), advance(ITEMS, at(40))])
    world = World(doing(source, do, ring))
    engine = await world.start()
    await world.until(engine.done.is_set)
    source.append(inject(ITEMS, Item("a", 2, 1)))
    read_on(engine)
    await world.until(lambda: gate.reached)
    interval = world.interval("do")
    interval.watermarks.input = int(at(2000).timestamp() * 1e6)
    engine.lane.wake.set()
    await world.turns()
    gate.open()
    await world.finish(engine)
    assert world.numbers() == [50, *many]


# -- set, replace, cancel --------------------------------------------------------------------------


async def test_a_timer_that_is_set_again_fires_once_at_its_new_time() -> None:
    async def do(record: Record[Item], ctx: Context[Kept]) -> None:
        ctx.set_timer(at(record.value.number), tag="7")

    async with Harness(doing([], do, ring)) as harness:
        await harness.inject(ITEMS, Item("a", 50, 1))
        await harness.inject(ITEMS, Item("a", 80, 1))
        await harness.advance(ITEMS, at(60))
        assert harness.rows("out") == []
        assert harness.low_watermark("do") == at(60), "the old hold went with the old time"
        await harness.inject(ITEMS, Item("a", 70, 60))
        await harness.advance(ITEMS, at(75))
        await harness.advance(ITEMS, at(100))
        assert [row[1] for row in harness.rows("out")] == [70]


async def test_a_cancelled_timer_does_not_fire_and_holds_nothing() -> None:
    async def do(record: Record[Item], ctx: Context[Kept]) -> None:
        if record.value.number:
            ctx.set_timer(at(record.value.number))
        else:
            ctx.cancel_timer()
            ctx.cancel_timer("never set")

    async with Harness(doing([], do, ring)) as harness:
        await harness.inject(ITEMS, Item("a", 50, 1), Item("b", 55, 1))
        await harness.inject(ITEMS, Item("a", 0, 1))
        await harness.advance(ITEMS, at(100))
        assert [row[:2] for row in harness.rows("out")] == [("b", 55)]
        assert harness.low_watermark("do") == at(100)
        assert harness.store.timers() == []


async def test_kinds_and_tags_and_keys_are_names_of_their_own() -> None:
    async def do(record: Record[Item], ctx: Context[Kept]) -> None:
        ctx.set_timer(at(10), tag="1")
        ctx.set_timer(at(20), tag="2")
        ctx.set_timer(ctx.now + timedelta(days=1), tag="1", kind="wall")
        ctx.cancel_timer("2", kind="wall")

    async with Harness(doing([], do, ring)) as harness:
        await harness.inject(ITEMS, Item("a", 1), Item("b", 1))
        assert len(harness.store.timers()) == 6
        await harness.advance(ITEMS, at(100))
        assert [row[:2] for row in harness.rows("out")] == [
            ("a", 10), ("b", 10), ("a", 20), ("b", 20),
        ] or Counter(row[1] for row in harness.rows("out")) == {10: 2, 20: 2}  # fmt: skip
        assert len(harness.store.timers()) == 2


@pytest.mark.parametrize("change", ["later", "cancel", "same", "past"])
async def test_a_timer_changed_while_it_is_due_and_waits_in_a_backlog(change: str) -> None:
    """A record of the key waits in user code; the timer comes due and queues behind it; then
    the record moves or cancels it: it fires as the record left it, once."""
    gate = Gate()

    async def do(record: Record[Item], ctx: Context[Kept]) -> None:
        if record.value.number == 1:
            ctx.set_timer(at(10), tag="7")
            return
        await gate.wait()
        if change == "cancel":
            ctx.cancel_timer("7")
        else:
            moment = {"later": 500, "same": 10, "past": 5}[change]
            ctx.set_timer(at(moment), tag="7")

    source = script(ITEMS, [Item("a", 1, 1), advance(ITEMS, at(8))])
    world = World(doing(source, do, ring))
    engine = await world.start()
    await world.until(engine.done.is_set)
    source.append(inject(ITEMS, Item("a", 2, 1)))
    read_on(engine)
    await world.until(lambda: gate.reached)
    interval = world.interval("do")
    interval.watermarks.input = int(at(30).timestamp() * 1e6)
    engine.lane.wake.set()
    await world.turns()
    assert interval.timers.firings == 1, "it is due, and waits for its key"
    gate.open()
    await world.until(engine.done.is_set)
    now = {"later": [], "cancel": [], "same": [10], "past": [5]}[change]
    assert world.numbers() == now
    assert len(interval.watermarks.holds) == (change == "later")
    assert interval.timers.firings == 0
    assert not interval.timers.taken
    source.append(advance(ITEMS, at(1000)))
    read_on(engine)
    await world.finish(engine)
    assert world.numbers() == (now or {"later": [500], "cancel": []}[change])


async def test_a_record_before_a_due_timer_in_the_backlog_may_cancel_it() -> None:
    gate = Gate()

    async def do(record: Record[Item], ctx: Context[Kept]) -> None:
        if record.value.number == 1:
            ctx.set_timer(at(10), tag="7")
        elif record.value.number == 2:
            await gate.wait()
        else:
            ctx.cancel_timer("7")

    source = script(ITEMS, [Item("a", 1, 1), advance(ITEMS, at(8))])
    world = World(doing(source, do, ring))
    engine = await world.start()
    await world.until(engine.done.is_set)
    source.append(inject(ITEMS, Item("a", 2, 1)))
    source.append(inject(ITEMS, Item("a", 3, 1)))
    read_on(engine)
    await world.until(lambda: gate.reached)
    await world.turns()
    interval = world.interval("do")
    interval.watermarks.input = int(at(30).timestamp() * 1e6)
    engine.lane.wake.set()
    await world.turns()
    gate.open()
    await world.finish(engine)
    assert world.numbers() == []
    assert len(interval.watermarks.holds) == 0
    assert world.store.timers() == []


# -- wall time ------------------------------------------------------------------------------------


async def set_wall(record: Record[Item], ctx: Context[Kept]) -> None:
    ctx.set_timer(
        ctx.now + timedelta(seconds=record.value.number), tag=f"{record.value.number}", kind="wall"
    )


async def tell_tag(timer: Timer, ctx: Context[Kept]) -> None:
    assert timer.kind == "wall"
    assert ctx.now >= timer.at
    produce(ctx, int(timer.tag))


async def test_wall_timers_fire_by_the_clock_in_order() -> None:
    async with Harness(doing([], set_wall, tell_tag)) as harness:
        await harness.inject(ITEMS, Item("a", 30), Item("a", 10), Item("b", 20))
        await harness.sleep(9.9)
        assert harness.rows("out") == []
        await harness.sleep(0.1)
        assert [row[1] for row in harness.rows("out")] == [10]
        await harness.sleep(100)
        assert [row[1] for row in harness.rows("out")] == [10, 20, 30]


async def test_a_wall_timer_holds_no_watermark() -> None:
    async with Harness(doing([], set_wall, tell_tag)) as harness:
        await harness.inject(ITEMS, Item("a", 30))
        await harness.advance(ITEMS, at(10**8))
        assert harness.low_watermark("do") == at(10**8)


async def test_an_idle_engine_wakes_for_a_wall_timer() -> None:
    """Also for one set earlier than the one it waits for."""
    source = script(ITEMS, [Item("a", 100)])
    world = World(doing(source, set_wall, tell_tag))
    engine = await world.start()
    await world.until(engine.done.is_set)
    source.append(inject(ITEMS, Item("b", 10)))
    read_on(engine)
    await world.until(engine.done.is_set)
    world.clock.advance(10)
    await world.until(lambda: world.numbers() == [10])
    world.clock.advance(90)
    await world.until(lambda: world.numbers() == [10, 100])
    await engine.stop()


async def test_a_wall_timer_that_is_due_and_waits_for_credits_keeps_nobody_busy() -> None:
    gate = Gate()

    async def do(record: Record[Item], ctx: Context[Kept]) -> None:
        ctx.set_timer(ctx.now + timedelta(seconds=1), "bell", "wall")
        produce(ctx, record.value.number)

    async def bell(timer: Timer, ctx: Context[Kept]) -> None:
        produce(ctx, 99)

    class Slow(Computation[Counted, None]):
        async def process_record(self, record: Record[Counted], ctx: Context[None]) -> None:
            await gate.wait()

    made = Pipeline("slow", settings=replace(QUICK, chunk_records=1, max_unacked_records=4))
    made.inject(ITEMS, script(ITEMS, items(*range(9))), timestamp=time_of)
    made.add(Do(do, bell), ITEMS.by(key_of))
    made.add(Slow(), TALLY.by(lambda counted: counted.key))
    world = World(made)
    engine = await world.start()
    await world.turns(300)
    world.clock.advance(1)
    await world.turns(50)
    lane = engine.lane
    assert world.interval("do").timers.has_due(world.clock.now())
    take, looks = lane.runner._take, 0

    def counting(*arguments: Any) -> Any:
        nonlocal looks
        looks += 1
        return take(*arguments)

    lane.runner._take = counting  # type: ignore[assignment,method-assign]
    await world.turns(300)
    assert looks == 0
    gate.open()
    await world.until(engine.done.is_set, tick=0.05)
    assert engine.processed == 9 + 9 + 1 + 1
    await engine.stop()


async def test_wall_timers_outlive_the_engine() -> None:
    world = World(doing([Item("a", 100), Item("b", 10)], set_wall, tell_tag))
    await world.run(tick=0)
    world.clock.advance(50)
    engine = await world.start()
    await world.until(lambda: world.numbers() == [10])
    world.clock.advance(50)
    await world.until(lambda: world.numbers() == [10, 100])
    await engine.stop()


# -- bad arguments ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ((datetime(2024, 1, 1), "x"), "no time zone"),
        ((5, "x"), "aware datetime"),
        ((at(5), "x", "event"), "kind"),
        ((at(5), "a\0b"), "NUL"),
        ((at(5), "x" * 2000), "at most 1,024 bytes"),
        ((at(5), "\ud800"), "tag"),
        ((at(5), "é" * 600), "at most 1,024 bytes"),
    ],
)
async def test_bad_timers_are_the_records_fault(arguments: tuple[object, ...], told: str) -> None:
    async def do(record: Record[Item], ctx: Context[Kept]) -> None:
        ctx.set_timer(*arguments)  # type: ignore[arg-type]

    world = World(doing([Item("a", 1)], do, ring, on_error="dead_letter"))
    await world.run()
    assert [told in error for _, error in world.letters()] == [True], world.letters()


@pytest.mark.parametrize(
    ("arguments", "told"), [(("\ud800",), "tag"), (("a\0b",), "NUL"), (("", "event"), "kind")]
)
async def test_cancelling_what_cannot_be_a_timer_is_the_records_fault(
    arguments: tuple[object, ...], told: str
) -> None:
    async def do(record: Record[Item], ctx: Context[Kept]) -> None:
        ctx.cancel_timer(*arguments)  # type: ignore[arg-type]

    world = World(doing([Item("a", 1)], do, ring, on_error="dead_letter"))
    await world.run()
    assert [told in error for _, error in world.letters()] == [True], world.letters()


async def test_a_computation_without_process_timer_says_so() -> None:
    class Forgetful(Computation[Item, None]):
        async def process_record(self, record: Record[Item], ctx: Context[None]) -> None:
            ctx.set_timer(at(1))

    pipeline = Pipeline("forgetful", settings=QUICK)
    steps = [Item("a", 1), advance(ITEMS, at(10))]
    pipeline.inject(ITEMS, script(ITEMS, steps), timestamp=lambda item: at(item.second))
    pipeline.add(Forgetful(), ITEMS.by(lambda item: item.key), on_error="dead_letter")
    world = World(pipeline)
    await world.run()
    assert "sets a timer but defines no process_timer" in world.letters()[0][1]


# -- the pure parts --------------------------------------------------------------------------------


class Shelf:
    """What a queue's store would hold: commits become durable later, pages show what is."""

    def __init__(self) -> None:
        self.waiting: list[dict[TimerName, Pending | None]] = [{}]
        self.durable: dict[TimerName, Pending] = {}
        self.n = 0

    def decide(self, name: TimerName, timer: Pending | None) -> int:
        self.waiting[-1][name] = timer
        return self.n + len(self.waiting)

    def commit(self) -> int:
        changes = self.waiting.pop(0)
        self.waiting = self.waiting or [{}]
        self.n += 1
        for name, timer in changes.items():
            self.durable.pop(name, None)
            if timer is not None:
                self.durable[name] = timer
        return self.n

    def page(self, after: Place | None, limit: int) -> list[tuple[TimerName, Pending]]:
        rows = sorted(((t.due, t.slot, *name), name, t) for name, t in self.durable.items())
        return [(name, t) for place, name, t in rows if after is None or place > after][:limit]


ACTS = st.one_of(
    st.tuples(st.just("put"), st.integers(0, 9), st.integers(0, 30)),
    st.tuples(st.just("put"), st.integers(0, 9), st.integers(0, 30)),
    st.tuples(st.just("cancel"), st.integers(0, 9), st.just(0)),
    st.tuples(st.just("read"), st.just(0), st.integers(0, 31)),
    st.tuples(st.just("take"), st.integers(1, 3), st.integers(0, 31)),
    st.tuples(st.sampled_from(["commit", "next commit"]), st.just(0), st.just(0)),
)


@settings(max_examples=examples(200), deadline=None, derandomize=True)
@given(st.integers(1, 3), st.lists(ACTS, min_size=20, max_size=60))
def test_a_timer_queue_is_a_sorted_dictionary_whatever_of_it_is_in_memory(
    limit: int, acts: list[tuple[str, int, int]]
) -> None:
    """Timers come in order and once, and the watermark never passes one, near or far."""
    holds, shelf = Holds(), Shelf()
    release: list[int] = []
    queue = TimerQueue(limit, holds, release)
    model: dict[TimerName, Pending] = {}

    def page_in(before: int) -> None:
        while queue.lacks(before):
            after = queue.begin_page()
            rows = shelf.page(after, limit)
            queue.add_page(after, rows, more=len(rows) == limit)

    for act, number, due in acts:
        name = (b"k%d" % number, "")
        if act == "put":
            model[name] = timer = Pending(due, due, "k", number % 3)
            n = shelf.decide(name, timer)
            queue.put(name, due, due, "k", number % 3, n)
        elif act == "cancel":
            model.pop(name, None)
            queue.cancel(name, shelf.decide(name, None))
        elif act == "take":
            page_in(due)
            taken = queue.take_due(due, number)
            ready = sorted((t.due, t.slot, *n) for n, t in model.items() if t.due < due)
            places = [(t.due, t.slot, *n) for n, t in taken]
            assert places == ready[: len(places)]
            assert len(places) >= min(number, len(ready), 1)
            for name, timer in taken:
                del model[name]
                release.append(timer.hold)
                queue.cancel(name, shelf.decide(name, None))
        elif act == "commit":
            queue.durable = shelf.commit()
        elif act == "next commit":
            shelf.waiting.append({})
        else:
            page_in(due)
        for hold in release:
            holds.remove(hold)
        release.clear()
        assert holds.least() <= min((t.hold for t in model.values()), default=MAX_TIME)
        if queue.is_whole:
            assert len(queue) == len(model)
            assert queue.next_due() == min((t.due for t in model.values()), default=None)
    page_in(MAX_TIME)
    left = []
    while taken := queue.take_due(MAX_TIME, 2):
        left += taken
        page_in(MAX_TIME)
    assert dict(left) == model


@settings(max_examples=examples(100), deadline=None, derandomize=True)
@given(st.lists(st.tuples(st.booleans(), st.integers(0, 9)), max_size=80))
def test_holds_know_their_least(acts: list[tuple[bool, int]]) -> None:
    holds = Holds()
    model: Counter[int] = Counter()
    for add, hold in acts:
        if add:
            holds.add(hold)
            model[hold] += 1
        elif model[hold]:
            holds.remove(hold)
            model[hold] -= 1
        assert holds.least() == min(+model, default=MAX_TIME)
        assert len(holds) == model.total()


def test_watermarks_are_the_least_of_all_senders_and_never_go_back() -> None:
    marks = Watermarks()
    for sender in (1, 2):
        marks.add_sender(sender, 100)
    marks.add_reader(9, [1, 2])
    marks.add_reader(8, [2])
    assert marks.report(WatermarkReport(1, 0, 100, 1, 50)) == []
    assert marks.input(9) == MIN_TIME, "a sender that told nothing yet counts"
    assert marks.report(WatermarkReport(2, 0, 50, 2, 20)) == [], (
        "of half of its slots nothing is known"
    )
    assert marks.report(WatermarkReport(2, 50, 100, 3, 30)) == [9, 8]
    assert (marks.input(9), marks.input(8)) == (20, 20)
    assert marks.report(WatermarkReport(2, 0, 50, 2, 10)) == [], "an old report"
    assert marks.report(WatermarkReport(2, 0, 50, 2, 80)) == [9, 8]
    assert (marks.input(9), marks.input(8)) == (30, 30)
    assert marks.report(WatermarkReport(2, 50, 100, 4, 90)) == [9, 8]
    assert (marks.input(9), marks.input(8)) == (50, 80)
    assert marks.report(WatermarkReport(1, 0, 100, 1, 60)) == [9]
    assert marks.report(WatermarkReport(1, 0, 100, 5, 10)) == [], (
        "a merge may tell less; time stands"
    )
    assert (marks.input(9), marks.least(1)) == (60, 10)


def test_slots_that_nobody_reports_keep_their_last_value() -> None:
    """A reader that has not heard of a split does not run ahead of the part new to him."""
    of = SlotWatermarks(100)
    of.report(0, 100, 1, 10)
    of.report(0, 40, 2, 50)
    assert of.least == 10, "the upper part has told nothing since"
    of.report(0, 100, 1, 30)
    assert of.least == 30, "the old owner's word still counts where nothing is newer"
    of.report(40, 100, 3, 40)
    of.report(0, 100, 1, 90)
    assert of.least == 40, "and nowhere else"


def test_the_least_of_those_that_are_not_idle() -> None:
    marks = Watermarks()
    marks.add_sender(1, 3)
    marks.add_reader(9, [1])
    for partition, watermark in enumerate((10, 20, 30)):
        marks.report(WatermarkReport(1, partition, partition + 1, 1, watermark))
    assert marks.least_awake(1) == 10
    marks.report(WatermarkReport(1, 0, 1, 1, 10, idle=True))
    assert marks.least_awake(1) == 20, "that it is idle comes with no other watermark"
    assert marks.input(9) == 10, "who reads goes by the least of all"
    marks.report(WatermarkReport(1, 0, 1, 1, 5))
    assert marks.least_awake(1) == 20, "an old report"
    marks.report(WatermarkReport(1, 0, 1, 2, 5))
    assert marks.least_awake(1) == 5, "a new owner has begun to look"
    for partition in range(3):
        marks.report(WatermarkReport(1, partition, partition + 1, 3, 40, idle=True))
    assert marks.least_awake(1) is None
    assert marks.input(9) == 40


class Told(NamedTuple):
    low: int
    high: int
    sequencer: int
    watermark: int
    idle: bool


@settings(max_examples=examples(150), deadline=None, derandomize=True)
@given(
    st.lists(
        st.builds(
            Told,
            st.integers(0, 11),
            st.integers(1, 12),
            st.integers(0, 6),
            st.integers(0, 5),
            st.booleans(),
        ).filter(lambda told: told.low < told.high)
    )
)
def test_the_last_word_of_each_slot_counts(words: list[Told]) -> None:
    of = SlotWatermarks(12)
    slots = [(-1, MIN_TIME)] * 12
    idle = [False] * 12
    for told in words:
        of.report(*told)
        for slot in range(told.low, told.high):
            if (told.sequencer, told.watermark) >= slots[slot]:
                slots[slot] = (told.sequencer, told.watermark)
                idle[slot] = told.idle
        assert of.least == min(watermark for _, watermark in slots)
        awake = [slots[slot][1] for slot in range(12) if not idle[slot]]
        assert of.least_awake() == min(awake, default=None)


@pytest.mark.parametrize("upper", [MIN_TIME, 70])
def test_a_merge_takes_nothing_back_from_readers(upper: int) -> None:
    """The merged interval promises the least of its parts' promises, or nothing where one of them
    had none: a reader that went by the least over all slots sees no difference."""
    marks = Watermarks()
    marks.add_sender(1, 100)
    marks.add_reader(2, [1])
    marks.report(WatermarkReport(1, 0, 50, 5, 100))
    if upper > MIN_TIME:
        marks.report(WatermarkReport(1, 50, 100, 6, upper))
    assert marks.input(2) == upper
    assert marks.report(WatermarkReport(1, 0, 100, 9, upper)) == []
    assert marks.input(2) == upper
    assert marks.report(WatermarkReport(1, 0, 100, 9, 80)) == [2]
    assert marks.input(2) == 80
    assert marks.report(WatermarkReport(1, 0, 50, 5, 200)) == [], "a part's last word, too late"


@pytest.mark.parametrize("others", range(12))
def test_what_becomes_durable_while_a_page_is_read_outweighs_the_page(others: int) -> None:
    """The page is older than the commit: it neither lacks a timer set in that one for ever, nor
    brings back one that was cancelled in it, however many are set meanwhile."""
    queue = TimerQueue(2, Holds(), [])
    for due in range(1, 6):
        queue.put((b"far", str(due)), due, due, "far", 0, 1)
    queue.durable = 1
    queue.take_due(MAX_TIME, 9)
    after = queue.begin_page()
    rows = [((b"far", str(due)), Pending(due, due, "far", 0)) for due in range(3, 6)]
    queue.cancel((b"far", "4"), 2)
    queue.put((b"far", "7"), 7, 7, "far", 0, 2)
    queue.durable = 2
    for due in range(8, 8 + others):
        queue.put((b"far", str(due)), due, due, "far", 0, 3)
    queue.add_page(after, rows, more=False)
    taken = queue.take_due(MAX_TIME, 99)
    assert [timer.due for _, timer in taken] == [3, 5, 7, *range(8, 8 + others)]
