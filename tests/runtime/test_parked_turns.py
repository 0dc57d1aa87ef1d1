"""A parked key has one turn at a time: orders that records, rows, timers and operators' requests
must keep."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from millwheel import Context, Park, Record, Timer
from millwheel.core.model import to_micros
from millwheel.errors import StoreUnavailable
from millwheel.runtime.upkeep import request_desk
from millwheel.store.port.commit import Commit
from millwheel.store.port.requests import DeadLetter
from millwheel.testing import advance, inject
from tests.support.parking import BAD, ask, number_in, parked, quiet, timed, work
from tests.support.pipelines import Kept, doing, produce, script
from tests.support.store_sites import REFUSED
from tests.support.values import ITEMS, Item, at
from tests.support.worlds import Gate, World


@pytest.fixture(autouse=True)
def all_are_good() -> None:
    BAD.clear()


def of_a(*numbers: int) -> list[Item]:
    return [Item("a", number, float(number)) for number in numbers]


def letter_of(world: World, number: int) -> DeadLetter:
    (found,) = (one for one in world.store.dead_letters if number_in(one) == number)
    return found


def watermark(world: World) -> int:
    return world.interval("do").watermarks.durable


def refusing(world: World) -> None:
    world.store.faults.refuse = lambda what, _: "no such table" if what == REFUSED else None


async def fail_or_produce(record: Record[Item], ctx: Context[Kept]) -> None:
    if record.value.number in BAD:
        raise ValueError("it is bad")
    produce(ctx, record.value.number)


@pytest.mark.parametrize("fails_again", [False, True])
async def test_records_that_come_together_stay_in_order_beyond_the_limit(
    fails_again: bool,
) -> None:
    """They arrive while the failed one is retried: one of them has room, the others have not."""
    gate = Gate()
    waits = False

    async def slowly(record: Record[Item], ctx: Context[Kept]) -> None:
        if record.value.number == 1 and waits:
            await gate.wait()
        await fail_or_produce(record, ctx)

    BAD.add(1)
    source = script(ITEMS, of_a(1))
    world = World(doing(source, slowly, on_error=Park(most_records=1)))
    await world.start()
    await quiet(world)
    waits = True
    if not fails_again:
        BAD.clear()
    world.store.ask("retry", "do", "a", letter=letter_of(world, 1))
    await world.until(lambda: gate.reached == 1, tick=0.05)
    for item in of_a(2, 3, 4, 5, 6):
        source.append(inject(ITEMS, item))
    await quiet(world)
    gate.open()
    await quiet(world)
    if fails_again:
        BAD.clear()
        assert await ask(world, "retry", 1) == "done"
        await quiet(world)
    assert world.numbers() == [1, 2, 3, 4, 5, 6]
    await world.close()


@pytest.mark.parametrize("held", [False, True])
async def test_timers_set_by_timers_fire_before_the_records_that_came_later(held: bool) -> None:
    """A timer that sets itself again has been due five times when 3 comes."""

    async def begin(record: Record[Item], ctx: Context[Kept]) -> None:
        if record.value.number in BAD:
            raise ValueError("it is bad")
        if record.value.number == 1:
            ctx.set_timer(at(10), "tick")
        produce(ctx, record.value.number, ctx.state.count)

    async def tick(timer: Timer, ctx: Context[Kept]) -> None:
        ctx.state.count += 1
        if ctx.state.count < 8:
            ctx.set_timer(at(10 * (ctx.state.count + 1)), "tick")

    BAD.add(2)
    source = script(ITEMS, [Item("a", 1, 0.0), Item("a", 2, 5.0)])
    world = World(doing(source, begin, tick, on_error=Park(hold_watermark=held)))
    await world.start()
    await quiet(world)
    source.append(advance(ITEMS, at(55)))
    await quiet(world)
    source.append(inject(ITEMS, Item("a", 3, 60.0)))
    await quiet(world)
    BAD.clear()
    assert await ask(world, "retry", 2) == "done"
    await quiet(world)
    assert world.tallied() == {"a": [(1, 0), (2, 0), (3, 5)]}
    await world.close()


async def test_a_timer_before_a_row_sees_the_watermark_that_the_row_met() -> None:
    """So it takes a record for late, or not, as without the failure."""

    async def begin(record: Record[Item], ctx: Context[Kept]) -> None:
        if record.value.number in BAD:
            raise ValueError("it is bad")
        ctx.set_timer(at(10), "end")

    async def ring(timer: Timer, ctx: Context[Kept]) -> None:
        produce(ctx, -1, int((ctx.low_watermark - at(0)).total_seconds()))

    BAD.add(2)
    source = script(ITEMS, [Item("a", 1, 0.0), Item("a", 2, 5.0)])
    world = World(doing(source, begin, ring, on_error="park"))
    await world.start()
    await quiet(world)
    source.append(advance(ITEMS, at(55)))
    await quiet(world)
    source.append(inject(ITEMS, Item("a", 3, 60.0)))
    await quiet(world)
    source.append(advance(ITEMS, at(100)))
    await quiet(world)
    BAD.clear()
    assert await ask(world, "retry", 2) == "done"
    await quiet(world)
    assert world.tallied()["a"][0] == (-1, 55)
    await world.close()


async def test_a_timer_that_was_just_set_fires_before_a_row_behind_other_work() -> None:
    """An operator's request waits at a gate while a row's timer and the next row wait for the
    key."""
    first, second = Gate(), Gate()

    async def begin(record: Record[Item], ctx: Context[Kept]) -> None:
        if record.value.number in BAD:
            raise ValueError("it is bad")
        if record.value.number == 0:
            ctx.set_timer(at(1000), "far")
        if record.value.number == 2:
            await first.wait()
            ctx.set_timer(at(10), "end")
        produce(ctx, record.value.number)

    async def ring(timer: Timer, ctx: Context[Kept]) -> None:
        if timer.tag == "far":
            await second.wait()
        produce(ctx, 1000 if timer.tag == "far" else -1)

    BAD.add(1)
    source = script(ITEMS, of_a(0, 1, 2))
    world = World(doing(source, begin, ring, on_error="park"))
    await world.start()
    await quiet(world)
    source.append(advance(ITEMS, at(50)))
    await quiet(world)
    source.append(inject(ITEMS, Item("a", 3, 60.0)))
    await quiet(world)
    BAD.clear()
    assert await ask(world, "retry", 1) == "done"
    await world.until(lambda: first.reached == 1, tick=0.05)
    world.store.ask("fire_timer", "do", "a", {"tag": "far", "kind": "watermark"})
    await quiet(world)
    first.open()
    await quiet(world)
    second.open()
    await quiet(world)
    assert world.numbers() == [0, 1, 2, 1000, -1, 3]
    await world.close()


@pytest.mark.parametrize("moved", [False, True])
async def test_a_timer_that_was_cancelled_or_moved_stays_so(moved: bool) -> None:
    """The timer that does it is due together with the one that fails."""

    async def begin(record: Record[Item], ctx: Context[Kept]) -> None:
        for second in (10, 20, 30):
            ctx.set_timer(at(second), str(second))

    async def ring(timer: Timer, ctx: Context[Kept]) -> None:
        if timer.tag == "10" and moved:
            ctx.set_timer(at(500), "30")
        elif timer.tag == "10":
            ctx.cancel_timer("30")
        if timer.tag == "20" and BAD:
            raise ValueError("it is bad")
        produce(ctx, int(timer.tag))

    BAD.add(1)
    source = script(ITEMS, of_a(0))
    world = World(doing(source, begin, ring, on_error="park"))
    await world.start()
    await quiet(world)
    source.append(advance(ITEMS, at(100)))
    await quiet(world)
    assert world.numbers() == [10]
    BAD.clear()
    (letter,) = world.store.dead_letters
    world.store.ask("retry", "do", "a", letter=letter)
    await quiet(world)
    assert world.numbers() == [10, 20]
    assert [timer.due for timer in world.store.timers()] == [to_micros(at(500))] * moved
    await world.close()


# -- the hold -------------------------------------------------------------------------------------


@pytest.mark.parametrize("verbs", [("discard", "discard"), ("retry", "discard")])
async def test_the_hold_ends_with_the_last_row_whatever_ends_it(verbs: tuple[str, str]) -> None:
    BAD.add(1)
    source = script(ITEMS, of_a(1, 2))
    world = World(doing(source, work, on_error=Park(hold_watermark=True)))
    await world.start()
    await quiet(world)
    BAD.clear()
    for verb, letter in zip(verbs, list(world.store.dead_letters), strict=True):
        world.store.ask(verb, "do", "a", letter=letter)
    await quiet(world)
    source.append(advance(ITEMS, at(100)))
    await quiet(world)
    assert world.store.dead_letters == []
    assert not world.interval("do").turns.figures()
    assert world.store.timers() == []
    assert watermark(world) == to_micros(at(100))
    await world.close()


async def test_the_hold_stays_while_a_record_waits_that_came_before_the_retry() -> None:
    """The key's user code waits; then a record that fails and the retry of an older one have their
    turns."""
    gate = Gate()

    async def begin(record: Record[Item], ctx: Context[Kept]) -> None:
        if record.value.number == 0:
            ctx.set_timer(at(1000), "far")
        await fail_or_produce(record, ctx)

    async def ring(timer: Timer, ctx: Context[Kept]) -> None:
        await gate.wait()

    BAD.update({1, 3})
    source = script(ITEMS, of_a(0, 1))
    world = World(doing(source, begin, ring, on_error=Park(hold_watermark=True)))
    await world.start()
    await quiet(world)
    world.store.ask("fire_timer", "do", "a", {"tag": "far", "kind": "watermark"})
    await world.until(lambda: gate.reached == 1, tick=0.05)
    source.append(inject(ITEMS, Item("a", 3, 3.0)))
    await quiet(world)
    BAD.remove(1)
    world.store.ask("retry", "do", "a", letter=letter_of(world, 1))
    await quiet(world)
    gate.open()
    await quiet(world)
    source.append(advance(ITEMS, at(100)))
    await quiet(world)
    assert parked(world) == [(3, "failed")]
    assert watermark(world) == to_micros(at(3))
    await world.close()


async def test_a_due_timer_that_an_operator_cancels_holds_nothing() -> None:
    async def begin(record: Record[Item], ctx: Context[Kept]) -> None:
        await fail_or_produce(record, ctx)
        ctx.set_timer(at(10), "end")

    async def ring(timer: Timer, ctx: Context[Kept]) -> None:
        produce(ctx, -1)

    BAD.add(2)
    source = script(ITEMS, [Item("a", 1, 0.0), Item("a", 2, 30.0)])
    world = World(doing(source, begin, ring, on_error=Park(hold_watermark=True), lateness=100))
    await world.start()
    await quiet(world)
    source.append(advance(ITEMS, at(100)))
    await quiet(world)
    assert watermark(world) == to_micros(at(10))
    number = world.store.ask("cancel_timer", "do", "a", {"tag": "end", "kind": "watermark"})
    await world.until(lambda: world.store.outcome(number) is not None, tick=0.05)
    await quiet(world)
    assert watermark(world) == to_micros(at(30))
    assert world.interval("do").timers.firings == 0
    await world.close()


# -- failed commits -------------------------------------------------------------------------------


async def test_rows_of_a_refused_commit_do_not_overtake_each_other() -> None:
    """One refused commit has a retry, two rows, and the record of another key that is at fault."""
    gate = Gate()
    is_armed = False

    async def refuse(record: Record[Item], ctx: Context[Kept]) -> None:
        if record.value.number == 9:
            ctx.execute(REFUSED)
        await fail_or_produce(record, ctx)

    async def wait(commit: Commit) -> None:
        nonlocal is_armed
        if is_armed:
            is_armed = False
            await gate.wait()

    BAD.add(1)
    source = script(ITEMS, of_a(1, 2, 3))
    world = World(doing(source, refuse, on_error="park"))
    refusing(world)
    await world.start()
    await quiet(world)
    BAD.clear()
    world.on_try, is_armed = wait, True
    source.append(inject(ITEMS, Item("b", 8, 8.0)))
    await world.until(lambda: gate.reached == 1, tick=0.05)
    world.store.ask("retry", "do", "a", letter=letter_of(world, 1))
    await quiet(world)
    source.append(inject(ITEMS, Item("b", 9, 9.0)))
    await quiet(world)
    gate.open()
    await quiet(world)
    await quiet(world)
    assert [number for number in world.numbers() if number < 4] == [1, 2, 3]
    assert parked(world) == [(9, "failed")]
    await world.close()


async def test_rows_that_are_read_amid_a_recovery_are_read_again() -> None:
    """The commit that gives a row up fails once; reading the productions of the new claim takes a
    while."""
    refused = {2}

    async def refuse(record: Record[Item], ctx: Context[Kept]) -> None:
        if record.value.number in refused:
            ctx.execute(REFUSED)
        await fail_or_produce(record, ctx)

    BAD.add(1)
    world = World(doing(script(ITEMS, of_a(1, 2, 3)), refuse, on_error="park"))
    refusing(world)
    engine = await world.start()
    await quiet(world)
    BAD.clear()
    failures = 0
    read = engine.store.read_productions

    async def slowly(log: int, first: int) -> AsyncIterator[Any]:
        for _ in range(300 if failures else 0):
            await asyncio.sleep(0)
        async for row in read(log, first):
            yield row

    def fail(commit: Commit) -> None:
        nonlocal failures
        if not failures and any(one.outcome == "failed" for one in commit.settled):
            failures = 1
            raise StoreUnavailable("away")

    engine.store.read_productions = slowly  # type: ignore[method-assign]
    world.on_try = fail
    assert await ask(world, "retry", 1) == "done"
    await world.until(lambda: parked(world) == [(2, "failed"), (3, "waiting")], tick=0.05)
    assert failures == 1
    refused.clear()
    assert await ask(world, "retry", 2) == "done"
    await quiet(world)
    assert world.numbers() == [1, 2, 3]
    await world.close()


@pytest.mark.parametrize("on_error", ["park", "dead_letter"])
@pytest.mark.parametrize("singly", [2, 3])
async def test_records_of_a_refused_commit_run_again_in_their_order(
    singly: int, on_error: Any
) -> None:
    """One of 2 and 3 has run in a chunk, the other by itself since it has waited, and 9 is at
    fault."""
    gate = Gate()
    is_armed = False

    async def refuse(record: Record[Item], ctx: Context[Kept]) -> None:
        if record.value.number == singly:
            await asyncio.sleep(0)
        if record.value.number == 9:
            ctx.execute(REFUSED)
        ctx.state.count += 1
        produce(ctx, record.value.number, ctx.state.count)

    async def wait(commit: Commit) -> None:
        nonlocal is_armed
        if is_armed:
            is_armed = False
            await gate.wait()

    source = script(ITEMS, [])
    world = World(doing(source, refuse, on_error=on_error))
    refusing(world)
    await world.start()
    await quiet(world)
    world.on_try, is_armed = wait, True
    source.append(inject(ITEMS, Item("b", 8, 8.0)))
    await world.until(lambda: gate.reached == 1, tick=0.05)
    for key, number in (("a", 2), ("a", 3), ("b", 9)):
        source.append(inject(ITEMS, Item(key, number, 10.0 + number)))
        await quiet(world)
    gate.open()
    await quiet(world)
    await quiet(world)
    assert world.tallied()["a"] == [(2, 1), (3, 2)]
    await world.close()


# -- figures and fairness -------------------------------------------------------------------------


async def test_what_was_processed_is_counted_as_without_the_failure() -> None:
    BAD.add(2)
    world, source = timed(Item("a", 1, 0.0), Item("a", 2, 5.0), on_error="park")
    await world.start()
    await quiet(world)
    source.append(advance(ITEMS, at(50)))
    await quiet(world)
    BAD.clear()
    assert await ask(world, "retry", 2) == "done"
    await quiet(world)
    assert (world.numbers(), world.counter("do", "processed")) == ([1, 2, -1], 3)
    await world.close()


async def test_a_row_that_waits_in_user_code_delays_no_request_to_other_keys(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(request_desk, "MOST_TAKEN", 4)
    gate = Gate()

    async def slowly(record: Record[Item], ctx: Context[Kept]) -> None:
        if record.value.number == 2:
            await gate.wait()
        await fail_or_produce(record, ctx)

    BAD.update({1, 10})
    source = script(ITEMS, [*of_a(*range(1, 8)), Item("b", 10, 10.0), Item("b", 11, 11.0)])
    world = World(doing(source, slowly, on_error="park"))
    await world.start()
    await quiet(world)
    BAD.clear()
    assert await ask(world, "retry", 1) == "done"
    await world.until(lambda: gate.reached == 1, tick=0.05)
    await quiet(world)
    assert await ask(world, "retry", 10) == "done"
    await world.close()
