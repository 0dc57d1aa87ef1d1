"""User code that really waits: it holds up its own key and nobody else."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter, defaultdict, deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import msgspec
import pytest

from millwheel import Computation, Context, Record, Timer
from millwheel.context import call_of
from millwheel.core.model import to_micros
from millwheel.errors import StoreUnavailable, UserCodeError
from millwheel.runtime.interval.interval_fold import fold
from millwheel.runtime.keys import map_entries as entries
from millwheel.store.port.commit import Commit
from millwheel.testing import Harness, advance, inject
from tests.support.cancellation import await_what_is_cancelled, cancel_oneself
from tests.support.pipelines import (
    QUICK,
    Broken,
    Kept,
    doing,
    produce,
    script,
    tally_pipeline,
)
from tests.support.values import ITEMS, TALLY, Counted, Item, at, items, tally_of
from tests.support.worlds import Gate, World, fail_once, read_on


async def test_a_key_that_waits_holds_up_neither_other_keys_nor_their_commits() -> None:
    gate = Gate()

    async def do(record: Record[Item], ctx: Context[Kept]) -> None:
        if record.value.key == "slow":
            await gate.wait()
        ctx.state.count += 1
        produce(ctx, record.value.number, ctx.state.count)

    values = [Item("slow" if n % 5 == 0 else f"fast {n % 3}", n) for n in range(50)]
    world = World(doing(values, do))
    engine = await world.start()
    others = [v for v in values if v.key != "slow"]
    await world.until(lambda: len(world.rows()) == len(others))
    assert world.tallied() == tally_of(others)
    assert gate.reached == 1, "the records of one key run one after the other"
    gate.open()
    await world.finish(engine)
    assert world.tallied() == tally_of(values)


async def test_the_keys_at_work_are_counted_and_the_oldest_is_named() -> None:
    gate = Gate()

    async def do(record: Record[Item], ctx: Context[Kept]) -> None:
        if record.value.key == "slow":
            await gate.wait()
        produce(ctx, record.value.number)

    values = [Item(key, n) for n, key in enumerate(["slow", "quick", "slow"])]
    world = World(doing(values, do))
    engine = await world.start()
    await world.until(lambda: gate.reached == 1 and len(world.rows()) == 1)
    (interval,) = [i for i in engine.intervals if i.backlog]
    world.clock.advance(4.0)
    assert interval.lane is not None
    found = interval.lane.at_work(interval)
    assert (found.keys, found.oldest) == (1, "slow"), "records behind it are not at work"
    assert found.seconds >= 4.0
    assert interval.figures()["at_work"]["oldest"] == "'slow'"
    await world.until(lambda: interval.figures()["queue"] == 2)  # it, and the one behind it
    gate.open()
    await world.finish(engine)
    assert "at_work" not in interval.figures()


async def test_a_task_whose_keys_others_have_run_is_at_work_with_no_key() -> None:
    """It ends in the next turn of the loop, and a heartbeat may come before."""
    world = World(tally_pipeline(script(ITEMS, items(1))))
    engine = await world.start()
    interval = world.interval("tally")
    tasks = engine.lane.tasks

    async def run_nothing() -> None:
        await tasks._run(interval, tasks.execution(interval), deque())
        found.append(tasks.at_work(interval)[:2])

    found: list[tuple[int, Any]] = []
    tasks.run_apart(interval, run_nothing)
    await world.until(lambda: found)
    assert found == [(1, None)]
    await engine.stop()


@pytest.mark.parametrize("waits", ["first", "last", "never", "fails"])
@pytest.mark.parametrize("at_number", range(6))
async def test_what_code_decides_before_and_after_it_waits_counts_once(
    waits: str, at_number: int
) -> None:
    """All records come in one chunk; one of them stops it, in the middle of what it decides."""

    async def stop(number: int, when: str) -> None:
        if number == at_number and when == waits:
            await asyncio.sleep(0)
            await asyncio.sleep(0)

    async def do(record: Record[Item], ctx: Context[Kept]) -> None:
        number = record.value.number
        await stop(number, "first")
        ctx.state.count += 1
        produce(ctx, number, ctx.state.count)
        ctx.count("records")
        ctx.execute("SELECT %s", (number,))
        if waits == "fails" and number == at_number and not failed:
            failed.append(number)
            raise ValueError("the first time")
        await stop(number, "last")

    class Hear(Computation[Counted, None]):
        async def process_record(self, record: Record[Counted], ctx: Context[None]) -> None:
            heard.append(record.value.number)

    failed: list[int] = []
    heard: list[int] = []
    values = [Item("abc"[n % 3], n) for n in range(6)]
    pipeline = doing(values, do, retries=1)
    pipeline.add(Hear(), TALLY.by(lambda counted: counted.key))
    world = World(pipeline)
    await world.run()
    assert world.tallied() == tally_of(values)
    assert sorted(heard) == list(range(6))
    assert sorted(params[0] for _, params in world.store.tables.statements) == list(range(6))
    assert world.interval("do").counters.totals["records"] == 6


@pytest.mark.parametrize("ends", ["fails", "waits and is killed"])
@pytest.mark.parametrize("effect", ["count", "late count", "execute", "row", "hold"])
async def test_keys_before_one_that_stops_a_chunk_keep_their_effects(
    effect: str, ends: str
) -> None:
    """Each kind of effect, alone: user code that counts and does nothing else has its counts,
    too."""
    gate = Gate()

    async def do(record: Record[Item], ctx: Context[Kept]) -> None:
        number = record.value.number
        if effect == "count":
            ctx.count("seen")
        elif effect == "late count":
            call_of(ctx).effects.count("seen", 1)
        elif effect == "execute":
            ctx.execute("SELECT %s", (number,))
        elif effect == "hold":
            ctx.hold_watermark(at(number), "it")
        else:
            produce(ctx, number, 1)
        if number == 5 and ends == "fails":
            raise ValueError("it is bad")
        if number == 5:
            await gate.wait()

    source = script(ITEMS, [Item(f"k{n}", n, float(n)) for n in range(6)])
    world = World(doing(source, do, on_error="dead_letter"))
    engine = await world.start()
    if ends == "fails":
        source.end()
        await world.finish(engine)
    else:
        await world.until(lambda: gate.reached == 1)
        await world.turns(100, tick=0.05)
        await engine.kill()
        gate.open()
        await world.start()
        await world.turns(100, tick=0.05)
    expected = 5 if ends == "fails" else 6
    if effect in ("count", "late count"):
        assert world.counter("do", "seen") == expected
    elif effect == "execute":
        assert sorted(one for _, (one,) in world.store.tables.statements) == [*range(expected)]
    elif effect == "hold":
        assert len(world.store.timers()) == expected
    else:
        assert sorted(world.numbers()) == [*range(expected)]
    await world.close()


async def test_a_call_sees_one_time_however_long_it_waits() -> None:
    gate = Gate()
    told: list[datetime] = []

    async def do(record: Record[Item], ctx: Context[Kept]) -> None:
        told.append(ctx.now)
        world.clock.advance(1)
        await gate.wait()
        told.append(ctx.now)

    world = World(doing([Item("a", 0)], do))
    engine = await world.start()
    await world.until(lambda: gate.reached)
    gate.open()
    await world.finish(engine)
    assert told[0] == told[1]


async def test_order_per_key_is_kept_whatever_waits_how_long() -> None:
    """Each record waits for a turn that comes in a shuffled order."""
    values = [Item("abcd"[n % 4], n) for n in range(80)]
    turns: dict[int, asyncio.Event] = {v.number: asyncio.Event() for v in values}
    running: dict[str, int] = defaultdict(int)

    async def do(record: Record[Item], ctx: Context[Kept]) -> None:
        key = record.value.key
        running[key] += 1
        assert running[key] == 1, "two records of one key at once"
        if record.value.number % 3:
            await turns[record.value.number].wait()
        ctx.state.count += 1
        running[key] -= 1
        produce(ctx, record.value.number, ctx.state.count)

    world = World(doing(values, do, settings=replace(QUICK, chunk_records=7, bundle_records=5)))
    engine = await world.start()
    for number in sorted(turns, key=lambda n: (n * 37) % 80):
        turns[number].set()
        await world.turns(3)
    await world.finish(engine)
    assert world.tallied() == tally_of(values)


async def test_a_record_that_waited_behind_another_is_told_what_time_it_is_now() -> None:
    gate = Gate()
    told: list[tuple[datetime, datetime]] = []

    async def do(record: Record[Item], ctx: Context[Kept]) -> None:
        told.append((ctx.now, ctx.low_watermark))
        if record.value.number == 0:
            await gate.wait()

    source = script(ITEMS, [Item("slow", 0, 10)])
    world = World(doing(source, do))
    engine = await world.start()
    await world.until(lambda: gate.reached)
    source.append(inject(ITEMS, Item("slow", 1, 20)))
    read_on(engine)
    do_ = world.interval("do")
    await world.until(
        lambda: any(do_.backlog.values()) and do_.watermarks.input == to_micros(at(10))
    )
    world.clock.advance(60)
    gate.open()
    await world.finish(engine)
    assert told[1][0] - told[0][0] >= timedelta(minutes=1)
    assert told[0][1] < told[1][1] == at(10)


async def test_many_keys_may_wait_at_once_within_a_limit() -> None:
    gate = Gate()

    async def do(record: Record[Item], ctx: Context[Kept]) -> None:
        await gate.wait()
        produce(ctx, record.value.number)

    values = [Item(f"key {n}", n) for n in range(60)]
    world = World(doing(values, do, settings=replace(QUICK, waiting_keys=20, chunk_records=10)))
    engine = await world.start()
    await world.until(lambda: gate.reached >= 20)
    await world.turns()
    assert 20 <= gate.reached < 20 + 10
    gate.open()
    await world.finish(engine)
    assert sorted(world.numbers()) == list(range(60))


@pytest.mark.parametrize("on_error", ["dead_letter", "retry"])
async def test_code_that_waits_and_then_fails(on_error: str) -> None:
    """Its key's other records keep their order and their effects; so do other keys'."""
    gate = Gate()
    tries: list[int] = []

    async def do(record: Record[Item], ctx: Context[Kept]) -> None:
        number = record.value.number
        ctx.state.count += 1
        await ctx.state.queue.append(number)
        if number == 3:
            await gate.wait()
            tries.append(number)
            if on_error == "dead_letter" or len(tries) < 3:
                raise TimeoutError
        produce(ctx, number, ctx.state.count)

    values = [Item("ab"[n % 2], n) for n in range(12)]
    retries = 0 if on_error == "dead_letter" else 3
    world = World(doing(values, do, on_error="dead_letter", retries=retries))
    engine = await world.start()
    await world.until(lambda: gate.reached)
    gate.open()
    await world.finish(engine)
    good = [v for v in values if on_error == "retry" or v.number != 3]
    assert world.tallied() == tally_of(good)
    assert len(world.letters()) == len(values) - len(good)


async def test_state_that_was_captured_before_a_wait_is_in_the_commit_after_it() -> None:
    """Two records of one key; the second fails after waiting, so they run one by one: what the
    first changed is captured early and committed late. A fold and an eviction in between may
    not take it for durable."""
    gate = Gate()
    tries: list[int] = []

    async def do(record: Record[Item], ctx: Context[Kept]) -> None:
        ctx.state.count += 1
        if record.value.number == 2:
            tries.append(2)
            if len(tries) == 2:
                await gate.wait()
            raise ValueError("second")
        produce(ctx, record.value.number, ctx.state.count)

    source = script(ITEMS, [Item("a", 1), Item("a", 2)])
    limits = replace(QUICK, cache_bytes=0, housekeeping_seconds=1e9)
    world = World(doing(source, do, settings=limits, on_error="dead_letter"))
    engine = await world.start()
    # The first time both run together and the second fails; then one by one, and it waits.
    await world.until(lambda: gate.reached)
    interval = world.interval("do")
    captured = interval.commits.n + 1
    interval.touch(urgent=True)
    await world.until(lambda: interval.commits.durable_n == captured)
    assert world.letters() == []
    gate.open()
    await world.until(lambda: interval.commits.durable_n > captured)
    assert world.letters()
    # Folded up to the commit for which it was captured, not up to the one that carries it.
    assert await world.store.fold(
        interval.id, interval.commits.sequencer, interval.commits.folded, captured
    )
    interval.commits.folded = interval.states.folded = captured
    interval.states.evict(0, interval.backlog.__contains__)
    source.append(inject(ITEMS, Item("a", 3)))
    read_on(engine)
    await world.finish(engine, tick=0.0)
    assert [row[1:3] for row in world.rows()] == [(1, 1), (3, 2)]


async def test_work_that_is_done_while_a_bucket_is_opened_goes_with_its_own_commit() -> None:
    """Between closing a bundle and numbering it the lane may wait for the store; what is
    finished meanwhile (a timer, here) must not lend its watermark to the commit before."""
    gate = Gate()

    async def do(record: Record[Item], ctx: Context[Kept]) -> None:
        if record.value.number == 1:
            ctx.set_timer(at(10), tag="t")
        produce(ctx, record.value.number)

    async def ring(timer: Timer, ctx: Context[Kept]) -> None:
        produce(ctx, 99)

    source = script(ITEMS, [Item("a", 1, 5)])
    world = World(doing(source, do, ring, settings=replace(QUICK, housekeeping_seconds=1e9)))
    engine = await world.start()
    await world.until(engine.done.is_set)

    async def hold(name: str) -> None:
        if name == "open_bucket":
            await gate.wait()

    interval = world.interval("do")
    due = int(at(10).timestamp() * 1e6)
    lows: list[tuple[int, int]] = []

    def watch(commit: Commit) -> None:
        low = {link.interval_id: link.low_watermark for link in commit.intervals}
        if interval.id in low:
            lows.append((low[interval.id], len(world.store.timers())))
        if max(low.values()) > due and not gate.reached:
            # The timer is due from here on. Time leaps, so that the next commit needs a bucket.
            world.store.faults.before_call = hold
            world.clock.advance(10_000)
            interval.touch(urgent=True)

    world.on_durable = watch
    source.append(advance(ITEMS, at(100)))
    read_on(engine)
    await world.until(lambda: gate.reached)
    await world.turns()
    gate.open()
    await world.finish(engine)
    assert all(low <= due for low, pending in lows if pending), "ahead of a pending timer"
    assert world.numbers() == [1, 99]


@pytest.mark.parametrize("error", [None, StoreUnavailable("away")])
async def test_waiting_code_runs_again_after_the_lane_started_over(
    error: Exception | None,
) -> None:
    gate = Gate()

    async def do(record: Record[Item], ctx: Context[Kept]) -> None:
        ctx.state.count += 1
        await ctx.state.queue.append(record.value.number)
        await gate.wait()
        produce(ctx, record.value.number, ctx.state.count)

    values = [Item("abc"[n % 3], n) for n in range(12)]
    world = World(doing(values, do))
    engine = await world.start()
    await world.until(lambda: gate.reached == 3)
    if error is not None:
        fail_once(world, 1, error)
        world.interval("do").touch(urgent=True)
        await world.until(lambda: gate.reached == 6, tick=0.05)
    else:
        await engine.kill()
        engine = await world.start()
        await world.until(lambda: gate.reached == 6)
    gate.open()
    await world.finish(engine)
    assert world.tallied() == tally_of(values)


CANCELLING = [cancel_oneself, await_what_is_cancelled]


async def test_code_that_cancels_its_own_task_is_an_error() -> None:
    """Nobody else would ever run its key."""

    async def do(record: Record[Item], ctx: Context[Kept]) -> None:
        if record.value.number == 1:
            await cancel_oneself()
        produce(ctx, record.value.number)

    world = World(doing(items(0, 1, 2), do))
    with pytest.raises(UserCodeError, match=r"failed on a record.*cancelled the task"):
        await world.run()
    await world.close()


@pytest.mark.parametrize("cancel", CANCELLING)
@pytest.mark.parametrize("bad", range(6))
async def test_code_that_cancels_its_own_task_costs_its_own_record_alone(
    cancel: Callable[[], Awaitable[None]], bad: int
) -> None:
    runs: Counter[int] = Counter()

    async def do(record: Record[Item], ctx: Context[Kept]) -> None:
        ctx.state.count += 1
        count, number = ctx.state.count, record.value.number
        runs[number] += 1
        if number == bad:
            await cancel()
        elif number % 3 == 0:
            await asyncio.sleep(0)
        produce(ctx, number, count)

    values = [Item("ab"[n % 2], n) for n in range(6)]
    world = World(doing(values, do, on_error="dead_letter", retries=1))
    await world.run()
    assert world.tallied() == tally_of([v for v in values if v.number != bad])
    assert [msgspec.json.decode(v)["number"] for v, _ in world.letters()] == [bad]
    assert runs[bad] >= 2, "it is tried again, as the computation says"


@pytest.mark.parametrize("cancel", CANCELLING)
@pytest.mark.parametrize("bad", range(6))
async def test_a_lane_that_looks_for_a_refused_statement_outlives_code_that_cancels_its_task(
    cancel: Callable[[], Awaitable[None]], bad: int
) -> None:
    """The halves run in the committer's own task: without that nothing would be stored again."""
    refused: list[int] = []

    async def do(record: Record[Item], ctx: Context[Kept]) -> None:
        ctx.state.count += 1
        count, number = ctx.state.count, record.value.number
        if number == bad and refused:
            await cancel()
        ctx.execute("INSERT INTO anything VALUES (%s)", (number,))
        produce(ctx, number, count)

    def judge(statement: str, params: Sequence[Any]) -> str | None:
        if params and params[0] == 3:
            refused.append(3)
            return "on purpose"
        return None

    values = [Item("ab"[n % 2], n) for n in range(6)]
    world = World(doing(values, do, on_error="dead_letter", retries=1))
    world.store.faults.refuse = judge
    await world.run()
    assert world.tallied() == tally_of([v for v in values if v.number not in (3, bad)])
    letters = [msgspec.json.decode(v)["number"] for v, _ in world.letters()]
    assert sorted(letters) == sorted({3, bad})


async def test_code_that_cancels_its_task_and_does_not_wait_costs_nobody_anything() -> None:
    """Whoever awaits next in that task is cancelled for it, and is run again."""

    async def do(record: Record[Item], ctx: Context[Kept]) -> None:
        ctx.state.count += 1
        count = ctx.state.count
        if record.value.key == "b":
            await cancel_oneself(await_it=False)
        elif record.value.key in "ac":
            await asyncio.sleep(0)
        produce(ctx, record.value.number, count)

    values = [Item("abcbd"[n % 5], n) for n in range(20)]
    world = World(doing(values, do, on_error="dead_letter", retries=0))
    await world.run()
    assert world.tallied() == tally_of(values)
    assert world.letters() == []


async def test_code_that_is_run_apart_ends_before_its_lane_starts_over() -> None:
    """Also if it does not heed that its task is to end; then it runs again."""
    gate = Gate()
    running = most = 0

    async def do(record: Record[Item], ctx: Context[Kept]) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        try:
            if gate.reached == 0:
                gate.reached += 1
                await cancel_oneself()
            try:
                await gate.wait()
            except asyncio.CancelledError:
                for _ in range(5):
                    with contextlib.suppress(asyncio.CancelledError):
                        await asyncio.sleep(0.05)
        finally:
            running -= 1
        produce(ctx, record.value.number)

    source = script(ITEMS, items(1))
    world = World(doing(source, do))
    engine = await world.start()
    await world.until(lambda: gate.reached == 2)
    fail_once(world, 1, StoreUnavailable("away"))
    world.interval("do").touch(urgent=True)
    async with asyncio.timeout(20):
        while gate.reached < 3:
            world.clock.advance(0.05)
            await asyncio.sleep(0.01)
    gate.open()
    await world.finish(engine)
    assert world.numbers() == [1]
    assert most == 1, "one after the other"


async def test_nothing_runs_again_when_all_tasks_of_the_loop_are_cancelled() -> None:
    """As `asyncio.run` does at its end: that was not user code, and nobody would wait for more."""
    gate = Gate()

    async def do(record: Record[Item], ctx: Context[Kept]) -> None:
        await gate.wait()

    world = World(doing(items(1), do))
    await world.start()
    await world.until(lambda: gate.reached)
    for task in asyncio.all_tasks() - {asyncio.current_task()}:
        task.cancel()
    await world.turns()
    assert gate.reached == 1
    await world.close()


async def test_a_stop_in_order_does_not_wait_for_user_code() -> None:
    gate = Gate()

    async def do(record: Record[Item], ctx: Context[Kept]) -> None:
        if record.value.number == 1:
            await gate.wait()
        produce(ctx, record.value.number)

    world = World(doing([Item("a", 0), Item("b", 1), Item("c", 2)], do))
    engine = await world.start()
    await world.until(lambda: gate.reached and len(world.rows()) == 2)
    await engine.stop()
    assert sorted(world.numbers()) == [0, 2]
    gate.open()
    await world.run()
    assert sorted(world.numbers()) == [0, 1, 2]


async def test_the_harness_waits_for_user_code_that_yields() -> None:
    async def do(record: Record[Item], ctx: Context[Kept]) -> None:
        for _ in range(10):
            await asyncio.sleep(0)
        produce(ctx, record.value.number)

    async with Harness(doing([], do)) as harness:
        await harness.inject(ITEMS, *items(1, 2, 3))
        assert [row[1] for row in harness.rows("out")] == [1, 2, 3]


async def test_user_code_may_use_timeouts() -> None:
    """`asyncio.timeout` cancels the task from inside: that is user code's own affair."""

    async def do(record: Record[Item], ctx: Context[Kept]) -> None:
        ctx.state.count += 1
        try:
            async with asyncio.timeout(0):
                await asyncio.Event().wait()
        except TimeoutError:
            produce(ctx, record.value.number, ctx.state.count)
            return
        raise AssertionError

    values = items(1, 2, 3)
    world = World(doing(values, do))
    await world.run()
    assert world.tallied() == tally_of(values)


@pytest.mark.parametrize("number", range(1, 9))
@pytest.mark.parametrize("pauses", [1, 2, 3])
async def test_nothing_goes_on_with_keys_of_before_a_failed_commit(
    pauses: int, number: int
) -> None:
    """A key gives way and another is to go on with the rest, just as the lane starts over: what
    it would run is back in the queue."""

    async def do(record: Record[Item], ctx: Context[Kept]) -> None:
        ctx.state.count += 1
        count = ctx.state.count
        for _ in range(pauses):
            await asyncio.sleep(0)
        produce(ctx, record.value.number, count)

    values = [Item("abcde"[n % 5], n) for n in range(40)]
    limits = replace(QUICK, chunk_records=10, bundle_records=20)
    world = World(doing(values, do, settings=limits))
    fail_once(world, number, StoreUnavailable("away"))
    await world.run()
    assert world.tallied() == tally_of(values)


def test_uvloop_may_take_a_short_time_for_none() -> None:
    """It rings at once then, by a handle that does not tell when."""
    uvloop = pytest.importorskip("uvloop")
    values = [Item("abc"[n % 3], n, n) for n in range(30)]
    settings = replace(QUICK, idle_commit_seconds=0.0004, watermark_commit_seconds=0.0002)
    world = World(tally_pipeline(script(ITEMS, values), settings))
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(world.run())
    assert world.tallied() == tally_of(values)


async def test_what_was_captured_before_its_key_waited_is_not_taken_for_folded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Run one by one, since one has failed, each record's entries are captured at once; a commit of
    others that goes before the next one is through, and is folded, is not theirs."""
    monkeypatch.setattr(entries, "TRIM_CELLS", 2)
    work, wire = Gate(), Gate()
    seen: list[int | None] = []

    async def do(record: Record[Item], ctx: Context[Kept]) -> None:
        number, marks = record.value.number, ctx.state.marks
        if record.value.key == "b":
            ctx.state.count += 1
        elif number == 0:
            for name in "uvwxyz":
                marks.put(name, 0)
        elif number == 1:
            marks.put("x", 1)
        elif number == 2:
            await work.wait()
            if work.reached == 1:
                raise Broken
            marks.put("y", 2)
        elif number == 3:
            marks.put("z", 3)
        else:
            seen.append(await marks.get("x"))

    source = script(ITEMS, items(0))
    limits = replace(QUICK, fold_seconds=1e6, housekeeping_seconds=1e6)
    world = World(doing(source, do, settings=limits, on_error="dead_letter", retries=1))
    engine = await world.start()
    await world.until(engine.done.is_set)

    def more(*values: Item) -> None:
        for value in values:
            source.append(inject(ITEMS, value))
        read_on(engine)

    more(*items(1, 2))
    await world.until(lambda: work.reached)
    work.open()
    work.shut()
    await world.until(lambda: work.reached == 2)
    interval = world.interval("do")
    before = interval.commits.n
    more(Item("b", 0))
    await world.until(lambda: interval.commits.durable_n > before)
    world.on_try = lambda commit: wire.wait() if commit.seen else None
    work.open()
    await world.until(lambda: wire.reached)
    await fold(engine.store, interval)
    more(*items(3))
    await world.until(lambda: engine.lane.commits.open.count)
    more(*items(4))
    await world.until(lambda: seen)
    wire.open()
    await world.finish(engine)
    assert seen == [1]


@pytest.mark.parametrize("on_error", ["dead_letter", "fail"])
async def test_a_record_is_not_given_up_on_since_the_engine_stops(on_error: str) -> None:
    """Code that waits is cancelled then, and may make an error of its own of that."""
    gate = Gate()

    async def do(record: Record[Item], ctx: Context[Kept]) -> None:
        try:
            await gate.wait()
        except asyncio.CancelledError:
            raise Broken from None
        ctx.state.count += 1
        produce(ctx, record.value.number, ctx.state.count)

    values = items(1, 2)
    world = World(doing(values, do, on_error=on_error))
    engine = await world.start()
    await world.until(lambda: gate.reached)
    await engine.stop()
    assert engine.failure is None
    assert world.letters() == []
    gate.open()
    await world.run()
    assert world.tallied() == tally_of(values)
