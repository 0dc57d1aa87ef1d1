"""Pipelines that run while drawn faults happen at drawn commits."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

import msgspec

from millwheel import (
    Computation,
    Context,
    ListState,
    MapState,
    Pipeline,
    Record,
    Settings,
    Stream,
    Table,
    Timer,
)
from millwheel.errors import CommitUnknown, Fenced, StoreUnavailable
from millwheel.runtime.engine import Engine
from millwheel.store.port.commit import Commit
from millwheel.testing import advance
from millwheel.testing.script import Script
from tests.support.pipelines import QUICK, Tally, script
from tests.support.values import ITEMS, TALLY, Counted, Item, at, key_of, time_of
from tests.support.worlds import World

PASSED = Stream("passed", Item)

RINGS = Stream("rings", Counted)


class Seen(msgspec.Struct):
    """What `Pass` keeps of a key."""

    count: int = 0
    numbers: MapState[int, int] = msgspec.field(default_factory=MapState)
    last: ListState[int] = msgspec.field(default_factory=ListState)


class Pass(Computation[Item, Seen]):
    """Passes items on, remembers them in three ways, and rings ten seconds after each."""

    writes = (PASSED, RINGS)

    async def process_record(self, record: Record[Item], ctx: Context[Seen]) -> None:
        item, state = record.value, ctx.state
        state.count += 1
        state.numbers.put(item.number, (await state.numbers.get(item.number) or 0) + 1)
        await state.last.append(item.number)
        if await state.last.length() > 3:
            await state.last.pop_first()
        ctx.set_timer(record.timestamp + timedelta(seconds=10), tag=str(item.number))
        ctx.produce(PASSED, item)
        ctx.count("passed")

    async def process_timer(self, timer: Timer, ctx: Context[Seen]) -> None:
        seen = await ctx.state.numbers.get(int(timer.tag))
        ctx.produce(RINGS, Counted(str(ctx.key), int(timer.tag), seen or 0))


class Recount(Computation[Item, Seen]):
    """Counts what was passed on."""

    writes = (TALLY,)

    async def process_record(self, record: Record[Item], ctx: Context[Seen]) -> None:
        ctx.state.count += 1
        item = record.value
        ctx.produce(TALLY, Counted(item.key, item.number, ctx.state.count))


def two_steps(values: list[Item], settings: Settings) -> Pipeline:
    steps = [*values, advance(ITEMS, at(10_000))]
    pipeline = Pipeline("two_steps", settings=settings)
    pipeline.inject(ITEMS, script(ITEMS, steps), timestamp=time_of, lateness=timedelta(seconds=2))
    pipeline.add(Pass(), ITEMS.by(key_of))
    pipeline.add(Recount(), PASSED.by(key_of))
    pipeline.sink(TALLY, Table("out", Counted, numbered=True))
    pipeline.sink(RINGS, Table("rings", Counted, numbered=True))
    return pipeline


FAULTS = ("unavailable", "lost before", "lost after", "kill before", "kill after", "zombie")


@dataclass
class Plan:
    """What to run, under which limits, and what goes wrong at which commit."""

    settings: Settings
    values: list[Item]
    faults: dict[int, str]
    copies: int = 1
    close_at_end: bool = False


async def run_plan(
    plan: Plan,
    build: Callable[[list[Item], Settings], Pipeline] = two_steps,
    watch: Callable[[World, Commit], None] | None = None,
) -> World:
    """Run a plan to its end, with a new engine after every crash and takeover."""
    world = World(build(plan.values, plan.settings))
    over = asyncio.Event()
    zombies: list[Engine] = []
    cuts: dict[int, str] = {}

    def due(commit: Commit) -> str | None:
        """The fault planned for this commit, if it is not a zombie's."""
        own = {interval.commits.sequencer for interval in world.engines[-1].intervals}
        if over.is_set() or commit.intervals[0].sequencer not in own:
            return None
        return plan.faults.pop(world.tried - 1, None)

    async def tried(commit: Commit) -> None:
        fault = due(commit)
        if fault == "unavailable":
            raise StoreUnavailable("the store is away")
        if fault == "lost before":
            raise CommitUnknown("lost before the commit")
        if fault == "kill before":
            over.set()
            await asyncio.Event().wait()
        if fault == "zombie":
            zombies.append(world.engines[-1])
            over.set()
        elif fault is not None:
            cuts[id(commit)] = fault

    async def durable(commit: Commit) -> None:
        if watch is not None:
            watch(world, commit)
        fault = cuts.pop(id(commit), None)
        if fault == "lost after":
            raise CommitUnknown("lost after the commit")
        if fault == "kill after":
            over.set()
            await asyncio.Event().wait()

    world.on_try, world.on_durable = tried, durable
    while True:
        over.clear()
        cuts.clear()
        engine = await world.start(inject_copies=plan.copies, close_at_end=plan.close_at_end)
        await world.until(lambda e=engine: over.is_set() or e.done.is_set(), tick=0.02)  # type: ignore[misc]
        if not over.is_set():
            break
        if engine not in zombies:
            await engine.kill()
    world.on_try = world.on_durable = None
    # Only a fenced zombie may have failed, and only of that.
    assert {type(z.failure) for z in zombies} <= {type(None), Fenced}, [z.failure for z in zombies]
    await engine.stop()
    await world.close()
    return world


def with_ids(sources: list[Script], limits: Settings = QUICK) -> Pipeline:
    pipeline = Pipeline("with_ids", settings=limits)
    for source in sources:
        pipeline.inject(ITEMS, source, timestamp=time_of, id=number_of)
    pipeline.add(Tally(), ITEMS.by(key_of))
    pipeline.sink(TALLY, Table("out", Counted, numbered=True))
    return pipeline


def number_of(item: Item) -> int:
    return item.number
