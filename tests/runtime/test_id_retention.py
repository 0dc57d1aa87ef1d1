"""How long user-supplied ids are remembered: as long as rows that have them may come again (I9)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from millwheel.store.port.commit import Commit
from millwheel.testing import inject
from millwheel.testing.script import Script
from tests.support.fault_plans import with_ids
from tests.support.pipelines import QUICK, script
from tests.support.values import ITEMS, Item
from tests.support.worlds import Gate, World, read_on

LIMITS = replace(
    QUICK,
    id_bucket_seconds=10.0,
    id_retention_seconds=60.0,
    bucket_seconds=8.0,
    fold_seconds=0.1,
    source_bucket_rows=1000,
)
"""Ids are remembered for a minute."""

ROWS = 10


async def killed_with_unacknowledged_rows(world: World) -> None:
    """A worker dies when the ids of all rows are durable, and no position is."""
    engine = await world.start()
    noted: list[Commit] = []

    def durable(commit: Commit) -> object:
        if not any(commit.seen.values()):
            return None
        noted.append(commit)
        return Gate().wait()

    world.on_durable = durable  # type: ignore[assignment]
    await world.until(lambda: noted)
    assert sum(map(len, noted[0].seen.values())) == ROWS
    await engine.kill()
    world.on_durable = None


def source_of(count: int = ROWS, name: str = "one") -> Script:
    return script(ITEMS, [Item("a", number) for number in range(count)], name)


@pytest.mark.parametrize("paused", [False, True], ids=["reading", "paused"])
@pytest.mark.parametrize("outage", [5.0, 200.0, 86_400.0])
async def test_rows_count_once_however_long_nobody_ran(outage: float, paused: bool) -> None:
    """Their ids are there when they come again, though they are older than the retention."""
    world = World(with_ids([source_of()], LIMITS))
    await killed_with_unacknowledged_rows(world)
    world.clock.advance(outage)
    if paused:
        world.store.pause("items_injector")
    engine = await world.start()
    await world.turns(400, tick=0.5)
    world.store.pause()
    await world.turns(40, tick=0.25)
    await world.until(engine.done.is_set, tick=0.25)
    assert sorted(world.numbers()) == list(range(ROWS))
    await world.turns(400, tick=0.5)
    assert len(engine.buckets.named()) < 12, "what was kept for them goes afterwards"
    await engine.stop()


async def test_rows_count_once_though_workers_die_again_and_again() -> None:
    """What the first of them sent stays the past of all that come after."""
    world = World(with_ids([source_of()], LIMITS))
    await killed_with_unacknowledged_rows(world)
    for _ in range(3):
        world.clock.advance(100.0)
        world.store.pause("items_injector")
        engine = await world.start()
        await world.turns(400, tick=0.5)
        await engine.kill()
    world.store.pause()
    engine = await world.start()
    await world.until(engine.done.is_set, tick=0.25)
    await engine.stop()
    assert sorted(world.numbers()) == list(range(ROWS))


async def test_a_row_that_waits_for_long_keeps_the_ids_of_those_behind_it() -> None:
    """The first row is not acknowledged for days; all others are, but their ACKs are not stored,
    since a position is one number and few runs."""
    limits = replace(LIMITS, max_acked_runs=0)
    world = World(with_ids([source_of()], limits))
    world.on_try = lambda commit: None
    engine = await world.start()
    log = world.interval("items_injector").log
    acknowledge = log.acknowledge
    patched = pytest.MonkeyPatch()

    def all_but_the_first(self: object, seqs: object, reader: int = 0) -> None:
        acknowledge([seq for seq in seqs if seq], reader)  # type: ignore[attr-defined]

    patched.setattr(type(log), "acknowledge", all_but_the_first)
    try:
        await world.until(lambda: len(world.numbers()) == ROWS)
        await world.turns(800, tick=0.5)
        assert log.first == 0
    finally:
        patched.undo()
    await engine.kill()
    engine = await world.start()
    await world.turns(40, tick=0.25)
    await world.until(engine.done.is_set, tick=0.25)
    await engine.stop()
    assert sorted(world.numbers()) == list(range(ROWS))


@pytest.mark.parametrize("resting", ["", "paused", "at its end"])
async def test_buckets_go_while_the_pipeline_is_well(resting: str) -> None:
    """Also when a partition reads nothing for long: its owner's commits say that it has sent
    nothing."""
    one, two = source_of(), source_of(0, "two")
    pipeline = with_ids([one, two], LIMITS)
    world = World(pipeline)
    engine = await world.start()
    names = [i.step.name for i in engine.intervals if i.source_task is not None]
    if resting == "paused":
        world.store.pause(names[1])
    most = 0
    for number in range(60):
        one.append(inject(ITEMS, Item("a", 1000 + number)))
        if not resting:
            two.append(inject(ITEMS, Item("b", 2000 + number)))
        read_on(engine)
        await world.turns(20, tick=0.5)
        most = max(most, len(engine.buckets.named()))
    assert most <= 10, "seven are for the retention, one is current, one is opened ahead"
    live = [b for b in await world.store.live_buckets() if b.family == "named"]
    assert len(live) <= 10
    assert len(world.numbers()) == ROWS + (120 if not resting else 60)
    await engine.stop()
