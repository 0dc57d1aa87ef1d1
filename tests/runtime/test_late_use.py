"""A `Context` refuses every use after its call, and the worker fails with it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import pytest
from structlog.testing import capture_logs

from millwheel import Bundles, Computation, Context, Pipeline, Record, Stream, Timer
from millwheel.context import (
    SPREAD,
    TIMERLESS,
    WEAK,
    BundleContext,
    EndedContext,
    context_class,
    end_context,
)
from millwheel.core.effects import BundleCall, Effects
from millwheel.errors import UserCodeError
from millwheel.testing import Harness
from tests.support.pipelines import QUICK, doing, produce, script
from tests.support.values import ITEMS, TALLY, Counted, Item, at, items, key_of, time_of
from tests.support.worlds import Gate, World

LATE = "after the call that ctx belongs to had ended"
STRAY = "has started a task that uses ctx, and has not awaited it"

USES: dict[str, Callable[[Any], object]] = {
    "produce": lambda ctx: ctx.produce(TALLY, Counted("a", 1, 1)),
    "state": lambda ctx: ctx.state,
    "key": lambda ctx: ctx.key,
    "set_timer": lambda ctx: ctx.set_timer(at(1)),
    "cancel_timer": lambda ctx: ctx.cancel_timer(),
    "hold_watermark": lambda ctx: ctx.hold_watermark(at(1)),
    "release_watermark": lambda ctx: ctx.release_watermark(),
    "execute": lambda ctx: ctx.execute("SELECT 1"),
    "count": lambda ctx: ctx.count("seen"),
    "shared": lambda ctx: ctx.shared,
    "low_watermark": lambda ctx: ctx.low_watermark,
    "output_watermark": lambda ctx: ctx.output_watermark,
    "now": lambda ctx: ctx.now,
    "bundle_id": lambda ctx: ctx.bundle_id,
}


def assign_state(ctx: Any) -> None:
    ctx.state = None


class Strays:
    """Tasks that user code starts and does not await."""

    def __init__(self) -> None:
        self.gate = Gate()
        self.tasks: list[asyncio.Task[Any]] = []

    def start(self, ctx: Any, use: Callable[[Any], object]) -> None:
        async def later() -> object:
            await self.gate.wait()
            return use(ctx)

        self.tasks.append(asyncio.create_task(later()))

    async def end(self) -> list[BaseException | Any]:
        self.gate.open()
        return await asyncio.gather(*self.tasks, return_exceptions=True)


@pytest.mark.parametrize("use", [*USES.values(), assign_state], ids=[*USES, "assigning state"])
async def test_every_use_after_the_call_is_refused_and_ends_the_worker(
    use: Callable[[Any], object],
) -> None:
    strays = Strays()

    async def do(record: Record[Item], ctx: Context[Any]) -> None:
        strays.start(ctx, use)

    world = World(doing(items(1), do, on_error="dead_letter"))
    engine = await world.start()
    await world.until(engine.done.is_set)
    (error,) = await strays.end()
    assert isinstance(error, UserCodeError)
    assert LATE in str(error)
    assert engine.failure is error
    assert world.letters() == []
    await world.close()


async def test_a_late_use_while_the_next_key_runs_reaches_neither_key() -> None:
    strays = Strays()
    gate = Gate()

    async def do(record: Record[Item], ctx: Context[Any]) -> None:
        if record.key == "a":
            strays.start(ctx, lambda ctx: produce(ctx, 99))
        else:
            await gate.wait()
            produce(ctx, record.value.number)

    world = World(doing([*items(1, key="a"), *items(2, key="b")], do))
    engine = await world.start()
    await world.until(lambda: gate.reached)
    (error,) = await strays.end()
    assert isinstance(error, UserCodeError)
    assert engine.failure is error
    assert world.numbers() == []
    await world.close()


async def test_a_task_that_waits_when_all_input_is_processed_is_no_complete_run() -> None:
    strays = Strays()

    async def do(record: Record[Item], ctx: Context[Any]) -> None:
        strays.start(ctx, USES["produce"])

    pipeline = doing([], do)
    async with Harness(pipeline) as harness:
        with pytest.raises(UserCodeError, match=STRAY) as raised:
            await harness.inject(ITEMS, *items(1))
    assert "test_late_use.py" in str(raised.value)
    await strays.end()


def closing_over(ctx: Any) -> Callable[[], object]:
    return lambda: ctx.count("later")


WAYS: dict[str, Callable[[Any], object]] = {
    "a method": lambda ctx: ctx.produce,
    "a partial": lambda ctx: partial(ctx.count, "later"),
    "an argument of a partial": lambda ctx: partial(USES["count"], ctx),
    "a closure": closing_over,
    "a partial of a closure": lambda ctx: partial(closing_over(ctx)),
}


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
async def test_a_function_that_can_use_ctx_counts_as_well(way: Callable[[Any], object]) -> None:
    gate = Gate()

    async def later(use: object) -> None:
        await gate.wait()

    tasks: list[asyncio.Task[None]] = []

    async def do(record: Record[Item], ctx: Context[Any]) -> None:
        tasks.append(asyncio.create_task(later(way(ctx))))

    async with Harness(doing([], do)) as harness:
        with pytest.raises(UserCodeError, match=STRAY):
            await harness.inject(ITEMS, *items(1))
    gate.open()
    await asyncio.gather(*tasks)


async def test_tasks_that_are_awaited_may_use_ctx() -> None:
    async def one(ctx: Context[Any], number: int) -> None:
        await asyncio.sleep(0)
        produce(ctx, number)

    async def do(record: Record[Item], ctx: Context[Any]) -> None:
        async with asyncio.TaskGroup() as group:
            for number in (1, 2):
                group.create_task(one(ctx, number))

    world = World(doing(items(1), do))
    await world.run()
    assert sorted(world.numbers()) == [1, 2]
    await world.close()


async def test_a_context_that_is_only_kept_harms_nobody() -> None:
    kept: list[Context[Any]] = []

    async def do(record: Record[Item], ctx: Context[Any]) -> None:
        kept.append(ctx)
        produce(ctx, record.value.number)

    values = [Item("ab"[n % 2], n) for n in range(6)]
    world = World(doing(values, do))
    await world.run()
    assert sorted(world.numbers()) == list(range(6))
    assert len({id(ctx) for ctx in kept}) == 6
    assert all(isinstance(ctx, EndedContext) for ctx in kept)
    await world.close()


async def test_a_context_serves_call_after_call_if_nobody_keeps_it() -> None:
    seen: set[int] = set()

    async def do(record: Record[Item], ctx: Context[Any]) -> None:
        seen.add(id(ctx))
        if record.value.number < 20:
            ctx.set_timer(at(record.value.number))
        await asyncio.sleep(0)

    async def ring(timer: Timer, ctx: Context[Any]) -> None:
        seen.add(id(ctx))

    world = World(doing([Item("a", n, n) for n in range(40)], do, ring))
    ended: list[Context[Any]] = []
    engine = await world.start()
    engine.late_uses.end = ended.append  # type: ignore[method-assign, assignment]
    await world.finish(engine)
    assert ended == []
    await world.close()


async def test_the_context_of_a_failed_call_has_ended() -> None:
    strays = Strays()

    async def do(record: Record[Item], ctx: Context[Any]) -> None:
        strays.start(ctx, USES["count"])
        raise ValueError("on purpose")

    world = World(doing(items(1), do, on_error="dead_letter", retries=1))
    engine = await world.start()
    await world.until(lambda: world.letters())
    errors = await strays.end()
    assert len(errors) >= 3
    assert all(isinstance(error, UserCodeError) and LATE in str(error) for error in errors)
    assert engine.failure in errors
    await world.close()


async def test_timers_and_bundles_have_contexts_that_end_as_well() -> None:
    strays = Strays()

    async def do(record: Record[Item], ctx: Context[Any]) -> None:
        ctx.set_timer(at(0))

    async def ring(timer: Timer, ctx: Context[Any]) -> None:
        strays.start(ctx, USES["produce"])

    async with Harness(doing([], do, ring)) as harness:
        await harness.inject(ITEMS, *items(1))
        with pytest.raises(UserCodeError, match=STRAY):
            await harness.advance(ITEMS, at(10))
    (error,) = await strays.end()
    assert LATE in str(error)

    class Outside(Computation[Item, None]):
        bundles = Bundles(records=2, seconds=0.0)

        async def process_bundle(self, records: Any, ctx: Context[None]) -> None:
            strays.start(ctx, USES["bundle_id"])

    strays = Strays()
    pipeline = Pipeline("bundled", settings=QUICK)
    pipeline.inject(ITEMS, script(ITEMS, []), timestamp=time_of)
    pipeline.add(Outside(), ITEMS.by(key_of))
    async with Harness(pipeline) as harness:
        with pytest.raises(UserCodeError, match=STRAY):
            await harness.inject(ITEMS, *items(1))
    (error,) = await strays.end()
    assert LATE in str(error)


NEXT = Stream("next_items", Item)


class Pass(Computation[Item, None]):
    """Passes on, behind another in the same execution."""

    writes = (NEXT,)

    def __init__(self, then: Callable[[Any], Awaitable[None]]) -> None:
        self._then = then

    async def process_record(self, record: Record[Item], ctx: Context[None]) -> None:
        await self._then(ctx)
        ctx.produce(NEXT, record.value)


OUT = Stream("out_items", Item)


async def test_a_stop_while_a_task_waits_is_logged() -> None:
    strays = Strays()

    async def do(record: Record[Item], ctx: Context[Any]) -> None:
        strays.start(ctx, USES["count"])

    world = World(doing(items(1), do))
    engine = await world.start()
    await world.until(engine.done.is_set)
    engine.done.clear()
    stop = asyncio.Event()
    stop.set()
    with capture_logs() as logs:
        await engine.run(stop)
    (line,) = [line for line in logs if line["event"] == "context_used_late"]
    assert STRAY in line["error"]
    await engine.stop()
    await strays.end()


@pytest.mark.parametrize(
    "kind",
    [
        context_class(),
        context_class(SPREAD),
        context_class(TIMERLESS, WEAK),
        context_class(SPREAD, WEAK),
        BundleContext,
    ],
)
def test_every_kind_of_context_can_end(kind: type[Context[Any]]) -> None:
    told: list[UserCodeError] = []
    context = kind(BundleCall("name", {}, Effects()))
    end_context(context, told.append)
    with pytest.raises(UserCodeError, match=LATE):
        context.count("x")
    assert len(told) == 1
