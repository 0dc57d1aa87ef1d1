"""The key of a failed record is parked: it stands still in order, and comes out as without the
failure."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from millwheel import Context, Park, Pipeline, Record, Timer
from millwheel.core.model import to_micros
from millwheel.errors import CommitUnknown, GraphError, UserCodeError
from millwheel.store.port.commit import Commit
from millwheel.testing import advance, inject
from tests.support.parking import (
    BAD,
    ask,
    drained,
    number_in,
    parked,
    quiet,
    timed,
    work,
    world_of,
)
from tests.support.pipelines import QUICK, Kept, doing, produce, script
from tests.support.store_sites import REFUSED
from tests.support.values import ITEMS, Item, at
from tests.support.worlds import Gate, World


@pytest.fixture(autouse=True)
def all_are_good() -> None:
    BAD.clear()


async def do_nothing(timer: Timer, ctx: Context[Kept]) -> None:
    """Let a timer end."""


async def test_the_records_behind_a_failed_one_wait_and_other_keys_go_on() -> None:
    BAD.add(2)
    world, _ = world_of(("a", 1), ("a", 2), ("b", 3), ("a", 4), ("b", 5), ("a", 6))
    await world.start()
    await quiet(world)
    assert world.numbers() == [1, 3, 5]
    assert parked(world) == [(2, "failed"), (4, "waiting"), (6, "waiting")]
    assert drained(world), "all are acknowledged"
    BAD.clear()
    assert await ask(world, "retry", 2) == "done"
    await quiet(world)
    assert world.tallied() == {"a": [(1, 1), (2, 2), (4, 3), (6, 4)], "b": [(3, 1), (5, 2)]}
    assert world.store.dead_letters == []
    assert world.counter("do", "processed") == 6
    await world.close()


async def test_records_that_come_later_wait_as_well_and_the_key_goes_on_afterwards() -> None:
    BAD.add(1)
    world, source = world_of(("a", 1))
    await world.start()
    await quiet(world)
    for number in (2, 3):
        source.append(inject(ITEMS, Item("a", number, float(number))))
        await quiet(world)
    assert parked(world) == [(1, "failed"), (2, "waiting"), (3, "waiting")]
    BAD.clear()
    assert await ask(world, "retry", 1) == "done"
    await quiet(world)
    source.append(inject(ITEMS, Item("a", 4, 4.0)))
    await quiet(world)
    assert world.tallied() == {"a": [(1, 1), (2, 2), (3, 3), (4, 4)]}
    assert not world.interval("do").turns.figures()
    await world.close()


async def test_a_discarded_record_lets_the_next_one_begin() -> None:
    BAD.add(1)
    world, _ = world_of(("a", 1), ("a", 2), ("a", 3))
    await world.start()
    await quiet(world)
    assert await ask(world, "discard", 1) == "done"
    await quiet(world)
    assert world.tallied() == {"a": [(2, 1), (3, 2)]}
    assert world.store.dead_letters == []
    await world.close()


async def test_a_record_gets_another_value() -> None:
    BAD.add(1)
    world, _ = world_of(("a", 1), ("a", 2))
    await world.start()
    await quiet(world)
    value = {"key": "a", "number": 10, "second": 1.0}
    assert await ask(world, "retry", 1, value=value) == "done"
    await quiet(world)
    assert world.tallied() == {"a": [(10, 1), (2, 2)]}
    await world.close()


async def test_a_waiting_record_that_fails_stops_its_key() -> None:
    BAD.update({1, 3})
    world, source = world_of(("a", 1), ("a", 2), ("a", 3), ("a", 4))
    await world.start()
    await quiet(world)
    BAD.remove(1)
    assert await ask(world, "retry", 1) == "done"
    await quiet(world)
    assert world.numbers() == [1, 2]
    assert parked(world) == [(3, "failed"), (4, "waiting")]
    assert world.letters()[0][1] == "ValueError: 3 is bad"
    source.append(inject(ITEMS, Item("a", 5, 5.0)))
    await quiet(world)
    BAD.clear()
    assert await ask(world, "retry", 3) == "done"
    await quiet(world)
    assert world.tallied() == {"a": [(1, 1), (2, 2), (3, 3), (4, 4), (5, 5)]}
    await world.close()


async def test_a_retry_that_fails_again_changes_nothing() -> None:
    BAD.add(1)
    world, _ = world_of(("a", 1), ("a", 2))
    await world.start()
    await quiet(world)
    assert await ask(world, "retry", 1) == "failed"
    await quiet(world)
    assert parked(world) == [(1, "failed"), (2, "waiting")]
    assert await ask(world, "retry", 2) == "refused", "it waits behind 1"
    assert parked(world) == [(1, "failed"), (2, "waiting")]
    await world.close()


async def test_a_waiting_record_can_be_discarded() -> None:
    BAD.add(1)
    world, _ = world_of(("a", 1), ("a", 2), ("a", 3))
    await world.start()
    await quiet(world)
    assert await ask(world, "discard", 2) == "done"
    BAD.clear()
    assert await ask(world, "retry", 1) == "done"
    await quiet(world)
    assert world.tallied() == {"a": [(1, 1), (3, 2)]}
    await world.close()


async def test_the_state_of_a_parked_key_can_be_mended() -> None:
    BAD.add(2)
    world, _ = world_of(("a", 1), ("a", 2), ("a", 3))
    await world.start()
    await quiet(world)
    request = world.store.ask("set_state", "do", "a", {"merge": {"count": 100}})
    await world.until(lambda: world.store.outcome(request) is not None, tick=0.05)
    BAD.clear()
    assert await ask(world, "retry", 2) == "done"
    await quiet(world)
    assert world.tallied() == {"a": [(1, 1), (2, 101), (3, 102)]}
    await world.close()


@pytest.mark.parametrize("when", ["parked", "running"])
async def test_the_next_owner_knows_the_parked_keys(when: str) -> None:
    BAD.update({1, 3})
    world, source = world_of(("a", 1), ("a", 2), ("a", 3), ("a", 4))
    first = await world.start()
    await quiet(world)
    if when == "running":
        BAD.remove(1)
        (letter,) = (one for one in world.store.dead_letters if number_in(one) == 1)
        world.store.ask("retry", "do", "a", letter=letter)
        await world.until(lambda: 1 in world.numbers(), tick=0.05)
    await first.kill()
    BAD.clear()
    await world.start()
    source.append(inject(ITEMS, Item("a", 5, 5.0)))
    await quiet(world)
    if when == "parked":
        assert parked(world)[0] == (1, "failed")
        assert await ask(world, "retry", 1) == "done"
        await quiet(world)
    assert world.tallied() == {"a": [(1, 1), (2, 2), (3, 3), (4, 4), (5, 5)]}
    await world.close()


async def test_records_that_arrive_while_the_waiting_ones_run_come_after_them() -> None:
    gate = Gate()

    async def slowly(record: Record[Item], ctx: Context[Kept]) -> None:
        if record.value.number in BAD:
            raise ValueError("it is bad")
        if record.value.number == 2:
            await gate.wait()
        ctx.state.count += 1
        produce(ctx, record.value.number, ctx.state.count)

    BAD.add(1)
    source = script(ITEMS, [Item("a", n, float(n)) for n in (1, 2, 3)])
    world = World(doing(source, slowly, on_error="park"))
    await world.start()
    await quiet(world)
    BAD.clear()
    assert await ask(world, "retry", 1) == "done"
    await world.until(lambda: gate.reached == 1, tick=0.05)
    for number in (4, 5):
        source.append(inject(ITEMS, Item("a", number, float(number))))
    source.append(inject(ITEMS, Item("b", 6, 6.0)))
    await quiet(world)
    assert world.numbers() == [1, 6]
    assert parked(world) == [
        (2, "waiting"),
        (3, "waiting"),
    ], "4 and 5 are not stored: their turn is near"
    assert not world.interval("do").is_idle(world.clock.now())
    gate.open()
    await quiet(world)
    assert world.tallied()["a"] == [(1, 1), (2, 2), (3, 3), (4, 4), (5, 5)]
    await world.close()


async def test_records_that_arrived_before_a_waiting_one_failed_are_stored() -> None:
    gate = Gate()

    async def slowly(record: Record[Item], ctx: Context[Kept]) -> None:
        if record.value.number == 2 and 1 not in BAD:
            await gate.wait()
        if record.value.number in BAD:
            raise ValueError("it is bad")
        produce(ctx, record.value.number)

    BAD.update({1, 2})
    source = script(ITEMS, [Item("a", n, float(n)) for n in (1, 2, 3)])
    world = World(doing(source, slowly, on_error="park"))
    await world.start()
    await quiet(world)
    BAD.remove(1)
    assert await ask(world, "retry", 1) == "done"
    await world.until(lambda: gate.reached == 1, tick=0.05)
    source.append(inject(ITEMS, Item("a", 4, 4.0)))
    await quiet(world)
    gate.open()
    await quiet(world)
    assert parked(world) == [(2, "failed"), (3, "waiting"), (4, "waiting")]
    BAD.clear()
    assert await ask(world, "retry", 2) == "done"
    await quiet(world)
    assert world.numbers() == [1, 2, 3, 4]
    await world.close()


@pytest.mark.parametrize("durable", [True, False])
@pytest.mark.parametrize("lost", ["parking", "waiting", "retry", "row"])
async def test_each_runs_once_when_a_commit_is_lost(lost: str, durable: bool) -> None:
    BAD.add(2)
    world, source = world_of(("a", 1))

    def concerns(commit: Commit) -> bool:
        letters = {letter.parked for letter in commit.dead_letters}
        settled = {one.id > 0 for one in commit.settled}
        return {
            "parking": "failed" in letters,
            "waiting": "waiting" in letters,
            "retry": True in settled,
            "row": False in settled,
        }[lost]

    def lose(commit: Commit) -> None:
        if concerns(commit):
            world.on_try = world.on_durable = None
            raise CommitUnknown("the connection was lost")

    if durable:
        world.on_durable = lose
    else:
        world.on_try = lose
    await world.start()
    for number in range(2, 7):
        source.append(inject(ITEMS, Item("a", number, float(number))))
        await quiet(world)
    BAD.clear()
    assert await ask(world, "retry", 2) == "done"
    await quiet(world)
    assert (world.on_try, world.on_durable) == (None, None)
    assert world.tallied() == {"a": [(n, n) for n in range(1, 7)]}
    assert world.store.dead_letters == []
    await world.close()


async def test_a_record_with_a_refused_statement_parks_its_key() -> None:
    async def refuse(record: Record[Item], ctx: Context[Kept]) -> None:
        if record.value.number in BAD:
            ctx.execute(REFUSED)
        ctx.state.count += 1
        produce(ctx, record.value.number, ctx.state.count)

    BAD.add(2)
    numbers = [("a", n) for n in range(1, 6)] + [("b", n) for n in range(6, 9)]
    source = script(ITEMS, [Item(key, n, float(n)) for key, n in numbers])
    world = World(doing(source, refuse, on_error="park"))
    world.store.faults.refuse = lambda what, _: "no such table" if what == REFUSED else None
    await world.start()
    await quiet(world)
    assert parked(world) == [(2, "failed"), (3, "waiting"), (4, "waiting"), (5, "waiting")]
    assert world.tallied() == {"a": [(1, 1)], "b": [(6, 1), (7, 2), (8, 3)]}
    BAD.clear()
    assert await ask(world, "retry", 2) == "done"
    await quiet(world)
    assert world.tallied()["a"] == [(n, n) for n in range(1, 6)]
    await world.close()


# -- time ---------------------------------------------------------------------------------------


async def test_a_due_timer_waits_and_a_waiting_record_may_move_it() -> None:
    """Number 2 moves the timer of 1 to 15 seconds; it is due as the first one is, at 10."""
    BAD.add(2)
    world, source = timed(Item("a", 1, 0.0), Item("a", 2, 5.0), on_error="park")
    await world.start()
    source.append(inject(ITEMS, Item("b", 3, 100.0)))
    source.append(advance(ITEMS, at(100)))
    await quiet(world)
    assert [row[:2] for row in world.rows()] == [("a", 1), ("b", 3)], "no timer of a has fired"
    BAD.clear()
    assert await ask(world, "retry", 2) == "done"
    await quiet(world)
    assert [(row[1], row[2]) for row in world.rows() if row[0] == "a"][1:] == [
        (2, world.rows()[0][2]), (-1, 2),
    ]  # fmt: skip
    assert [t.key for t in world.store.timers()] == ["b"]
    await world.close()


async def test_a_timer_fires_before_the_records_that_came_after_it_was_due() -> None:
    BAD.add(2)
    world, source = timed(Item("a", 1, 0.0), Item("a", 2, 5.0), on_error="park")
    await world.start()
    source.append(advance(ITEMS, at(50)))
    await quiet(world)
    source.append(inject(ITEMS, Item("a", 3, 60.0)))
    await quiet(world)
    BAD.clear()
    assert await ask(world, "retry", 2) == "done"
    await quiet(world)
    assert world.numbers() == [1, 2, -1, 3], "as if 2 had not failed"
    await world.close()


async def test_the_watermark_goes_on_unless_it_is_to_be_held() -> None:
    for park, expected in ((Park(), 100), (Park(hold_watermark=True), 5)):
        BAD.add(2)
        world, source = timed(Item("a", 1, 0.0), Item("a", 2, 5.0), on_error=park)
        await world.start()
        source.append(advance(ITEMS, at(100)))
        await quiet(world)
        assert world.interval("do").watermarks.durable == to_micros(at(expected))
        await world.engines[-1].kill()
        await world.start()
        await quiet(world)
        assert world.interval("do").watermarks.durable == to_micros(at(expected)), (
            "also the next owner"
        )
        BAD.clear()
        assert await ask(world, "retry", 2) == "done"
        await quiet(world)
        assert world.interval("do").watermarks.durable == to_micros(at(100))
        assert world.numbers() == [1, 2, -1]
        assert world.store.timers() == []
        await world.close()


async def test_the_watermark_is_held_at_the_oldest_record_of_a_key() -> None:
    """Whether the records come together or one by one, and in whatever order of time."""
    for together in (True, False):
        BAD.add(2)
        records = [Item("a", 2, 7.0), Item("a", 3, 9.0), Item("a", 4, 4.0), Item("a", 5, 8.0)]
        source = script(ITEMS, records if together else [])
        world = World(doing(source, work, on_error=Park(hold_watermark=True), lateness=100))
        await world.start()
        for record in () if together else records:
            source.append(inject(ITEMS, record))
            await quiet(world)
        source.append(advance(ITEMS, at(100)))
        await quiet(world)
        assert world.interval("do").watermarks.durable == to_micros(at(4))
        await world.close()


@pytest.mark.parametrize("in_memory", [1000, 10])
async def test_the_watermark_is_held_beside_any_number_of_timers(in_memory: int) -> None:
    """Also beside timers that only the store has."""

    async def remind(record: Record[Item], ctx: Context[Kept]) -> None:
        await work(record, ctx)
        ctx.set_timer(at(100_000 + record.value.number), str(record.value.number))

    BAD.add(1)
    first = [Item(f"k{n}", 10 + n, 5.0) for n in range(30)]
    source = script(ITEMS, [*first, Item("a", 1, 10.0), Item("b", 2, 20.0)])
    settings = replace(QUICK, timers_in_memory=in_memory)
    world = World(
        doing(source, remind, do_nothing, on_error=Park(hold_watermark=True), settings=settings)
    )
    await world.start()
    await quiet(world)
    source.append(advance(ITEMS, at(500)))
    await quiet(world)
    assert world.interval("do").watermarks.durable == to_micros(at(10))
    await world.engines[-1].kill()
    await world.start()
    await quiet(world)
    source.append(advance(ITEMS, at(600)))
    await quiet(world)
    assert world.interval("do").watermarks.durable == to_micros(at(10)), "also the next owner"
    BAD.clear()
    assert await ask(world, "retry", 1) == "done"
    await quiet(world)
    assert world.interval("do").watermarks.durable == to_micros(at(600))
    await world.close()


@pytest.mark.parametrize("held", [True, False])
async def test_a_deploy_with_another_policy_holds_or_releases_keys_that_are_parked(
    held: bool,
) -> None:
    BAD.add(1)
    source = script(ITEMS, [Item("a", 1, 10.0), Item("b", 2, 20.0)])
    world = World(doing(source, work, on_error=Park(hold_watermark=held)))
    await world.start()
    await quiet(world)
    await world.engines[-1].stop()
    world.pipeline = doing(source, work, on_error=Park(hold_watermark=not held))
    await world.start(world.pipeline)
    source.append(advance(ITEMS, at(200)))
    await quiet(world)
    last = 200 if held else 20
    assert world.interval("do").watermarks.durable == to_micros(at(last))
    assert len(world.store.dead_letters) == 1, "it is parked still"
    await world.close()


@pytest.mark.parametrize("held", [True, False])
async def test_a_run_whose_input_has_ended_waits_for_a_held_key_only(held: bool) -> None:
    BAD.add(2)
    world, _ = timed(Item("a", 1, 0.0), Item("a", 2, 5.0), on_error=Park(hold_watermark=held))
    engine = await world.start(close_at_end=True)
    await quiet(world)
    assert engine.done.is_set() == (not held)
    BAD.clear()
    assert await ask(world, "retry", 2) == "done"
    await world.until(engine.done.is_set, tick=0.05)
    await quiet(world)
    assert world.numbers() == [1, 2, -1]
    assert world.store.timers() == []
    await world.close()


async def test_a_run_that_has_nothing_else_to_do_carries_out_what_was_asked_for() -> None:
    BAD.add(2)
    world, _ = world_of(("a", 1), ("a", 2), ("a", 3))
    await world.run(close_at_end=True)
    BAD.clear()
    (letter,) = (one for one in world.store.dead_letters if one.parked == "failed")
    world.store.ask("retry", "do", "a", letter=letter)
    await world.run(close_at_end=True)
    assert world.tallied() == {"a": [(1, 1), (2, 2), (3, 3)]}
    assert world.store.dead_letters == []
    await world.close()


# -- limits -------------------------------------------------------------------------------------


@pytest.mark.parametrize("park", [Park(most_records=2), Park(most_bytes=80)])
async def test_records_beyond_the_limit_of_a_key_stay_with_their_sender(park: Park) -> None:
    BAD.add(1)
    world, source = world_of(*(("a", n) for n in range(1, 8)), on_error=park)
    await world.start()
    await quiet(world)
    for number in range(8, 20):
        source.append(inject(ITEMS, Item("a", number, float(number))))
    await quiet(world)
    stored = len(world.store.dead_letters)
    assert stored < 19
    assert not drained(world)
    BAD.clear()
    assert await ask(world, "retry", 1) == "done"
    await quiet(world)
    assert world.tallied() == {"a": [(n, n) for n in range(1, 20)]}
    await world.close()


async def test_too_many_parked_keys_stop_the_worker() -> None:
    BAD.update({1, 2, 3})
    world, _ = world_of(("a", 1), ("b", 2), ("c", 3), on_error=Park(most_keys=2))
    await world.start()
    with pytest.raises(UserCodeError, match=r"2 parked keys .*Park\(most_keys=2\)"):
        await world.until(lambda: False, tick=0.05)
    await world.close()


# -- what cannot be parked ----------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [{"exactly_once": False}, {"delivery": "at_most_once"}],
)
def test_records_without_a_commit_of_their_own_cannot_wait(options: dict[str, Any]) -> None:
    with pytest.raises(GraphError, match="does not go with"):
        doing([], work, on_error="park", **options)


def test_a_limit_is_at_least_one() -> None:
    with pytest.raises(GraphError, match="at least 1"):
        Park(most_keys=0)


def test_an_unknown_policy_is_refused() -> None:
    pipeline = Pipeline("wrong")
    with pytest.raises(GraphError, match=r"Park\(\.\.\.\)"):
        doing([], work, on_error="parked")
    assert not pipeline.nodes
