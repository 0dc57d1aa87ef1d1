"""Exactly once, whatever happens: I1, I2 and I14 through faults at random commits.

Two steps in a row, a plain state and a map, watermark timers that produce; stores that
fail, connections that break, engines that crash, are taken over and go on as zombies.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta

import msgspec
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

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
from millwheel.store.port import Commit
from millwheel.testing import advance
from tests.test_runtime_world import (
    ITEMS,
    QUICK,
    TALLY,
    Counted,
    Item,
    World,
    at,
    key_of,
    script,
    tally_of,
    time_of,
)

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
    copies: int


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    limits = replace(
        QUICK,
        lanes=draw(st.integers(1, 3)),
        chunk_records=draw(st.sampled_from([1, 2, 7, 100])),
        bundle_records=draw(st.sampled_from([1, 3, 20, 1000])),
        max_unacked_records=draw(st.sampled_from([1, 5, 30, 1000])),
        cache_bytes=draw(st.sampled_from([0, 5_000, 1 << 20])),
        eager_entries=draw(st.sampled_from([1, 4, 64])),
        max_acked_runs=draw(st.sampled_from([0, 2, 64])),
        filter_capacity=draw(st.sampled_from([1, 50, 1000])),
        fold_seconds=draw(st.sampled_from([0.1, 2.0])),
        bucket_seconds=draw(st.sampled_from([2.0, 120.0])),
        source_bucket_rows=draw(st.sampled_from([100, 250_000])),
        housekeeping_seconds=0.1,
    )
    keys = draw(st.integers(1, 5))
    count = draw(st.integers(1, 40))
    seconds = draw(st.lists(st.integers(0, 60), min_size=count, max_size=count))
    values = [Item("abcde"[n % keys], n, second) for n, second in enumerate(seconds)]
    faults = draw(st.dictionaries(st.integers(0, 40), st.sampled_from(FAULTS), max_size=6))
    return Plan(limits, values, faults, draw(st.integers(1, 2)))


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
        own = {interval.sequencer for interval in world.engines[-1].intervals}
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
        engine = await world.start(inject_copies=plan.copies)
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


def check_two_steps(world: World, plan: Plan) -> None:
    values = plan.values
    assert world.tallied() == tally_of(values)
    rings = Counter((key, number, count) for key, number, count, *_ in world.rows("rings"))
    assert rings == Counter((v.key, v.number, 1) for v in values)
    for key in {v.key for v in values}:
        numbers = [v.number for v in values if v.key == key]
        found = world.state("pass", key)
        assert found[""] == {"count": len(numbers)}
        assert {e: n for e, n in found.items() if e.startswith("numbers/")} == {
            f"numbers/{n}": 1 for n in numbers
        }
        assert [n for e, n in sorted(found.items()) if e.startswith("last/0")] == numbers[-3:]
    assert world.store.timers() == []
    assert world.store.pending_productions() == []
    assert world.store.dead_letters == []


@settings(
    max_examples=120, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck)
)
@given(plans())
def test_effects_happen_once_and_in_order_through_any_faults(plan: Plan) -> None:
    """I1, I2, I12, I14: counts per key are 1..n in the sender's order; nothing is left over."""

    async def go() -> None:
        world = await run_plan(plan)
        check_two_steps(world, plan)

    asyncio.run(go())
