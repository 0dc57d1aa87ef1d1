"""The store in memory and the engines that the tests of the runtime share
(`tests.support.worlds`)."""

from __future__ import annotations

from tests.support.pipelines import script, tally_pipeline
from tests.support.values import ITEMS, Item, items, tally_of
from tests.support.worlds import World


async def test_a_world_runs_a_pipeline_to_its_end() -> None:
    values = [Item("abc"[n % 3], n, n) for n in range(30)]
    world = World(tally_pipeline(script(ITEMS, values)))
    await world.run()
    assert world.tallied() == tally_of(values)
    assert world.state("tally", "a") == {"": {"count": 10}}
    assert world.store.pending_productions() == []


async def test_a_world_outlives_its_engines() -> None:
    values = items(*range(10))
    world = World(tally_pipeline(script(ITEMS, values)))
    first = await world.start()
    await world.until(lambda: world.tallied())
    await first.kill()
    await world.run()
    assert world.tallied() == tally_of(values)
