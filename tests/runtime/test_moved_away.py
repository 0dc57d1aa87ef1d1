"""A pipeline that was moved to Spark while its workers live: they end, and own nothing of it
again."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from millwheel.errors import DeployRefused, Fenced
from millwheel.store.port.placement import ELSEWHERE
from tests.support.clusters import Cluster
from tests.support.pipelines import script, tally_pipeline
from tests.support.values import ITEMS, Item
from tests.support.worlds import World


@pytest.mark.parametrize("kind", [World, Cluster])
async def test_a_worker_of_a_pipeline_that_was_moved_away_ends(
    kind: Callable[..., World],
) -> None:
    """One that has the pipeline to itself may notice at a commit; both say at the next start what
    has happened."""
    world = kind(tally_pipeline(script(ITEMS, [Item("a", 0, 10)])))
    engine = await (world.join() if isinstance(world, Cluster) else world.start())
    await world.until(lambda: world.numbers() == [0], tick=0.01)
    for row in world.store.tables.intervals.values():
        row.generation, row.owner = ELSEWHERE, None
        row.sequencer += 100
    with pytest.raises((DeployRefused, Fenced), match=r"was moved to Spark|claimed"):
        await world.until(lambda: False, tick=0.05)
    assert all(row.owner is None for row in world.store.tables.intervals.values())
    await engine.kill()
