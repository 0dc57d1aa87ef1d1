"""Injectors that an operator lets rest: nothing is read, nothing lost, nothing promised."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta

import pytest

from millwheel import Context, Record
from millwheel.core.model import to_micros
from millwheel.errors import StoreUnavailable, UsageError
from millwheel.runtime.engine import Engine
from millwheel.store.console import administration
from millwheel.testing import inject
from tests.support.clusters import Cluster, counting, many
from tests.support.pipelines import QUICK, Kept, doing, script, tally_pipeline, two_sources
from tests.support.store_sites import PostgresSite, Schema, deploy
from tests.support.values import ITEMS, Item, at, items, tally_of
from tests.support.worlds import Gate, World, fail_once, read_on

pytestmark = pytest.mark.newest

FEW = replace(QUICK, chunk_records=5, bundle_records=10, max_unacked_records=10)
"""An injector with these is never far ahead of what is processed."""

NOTICED_SECONDS = 2.0
"""An operator is not kept waiting for longer."""

INJECTOR = "items_injector"


def rows_read(engine: Engine) -> int:
    return int(engine.progress()["read"])


async def pass_seconds(world: World, seconds: float) -> None:
    """Everybody goes on while the clock does."""
    until = world.clock.monotonic() + seconds
    await world.until(lambda: world.clock.monotonic() >= until, tick=0.02)


async def test_what_was_read_is_processed_and_nothing_more_until_it_goes_on() -> None:
    values = [Item("abc"[n % 3], n, n) for n in range(3000)]
    world = World(tally_pipeline(script(ITEMS, values), FEW))
    engine = await world.start()
    await world.until(lambda: rows_read(engine) > 100)
    world.store.pause(INJECTOR)
    await pass_seconds(world, NOTICED_SECONDS)
    read = rows_read(engine)
    assert 100 < read < 3000
    await pass_seconds(world, 60)
    assert rows_read(engine) == len(world.rows()) == read, "what was read is in the table"
    assert engine.progress()["unacked"] == 0
    assert not engine.done.is_set()
    promised = to_micros(at(read - 1))
    assert (
        world.interval(INJECTOR).watermarks.durable
        == world.interval("tally").watermarks.durable
        == promised
    )
    world.store.pause()
    await pass_seconds(world, NOTICED_SECONDS)
    assert rows_read(engine) > read
    await world.finish(engine)
    assert world.tallied() == tally_of(values)


async def test_who_starts_while_it_rests_does_not_read() -> None:
    values = items(*range(20))
    world = World(tally_pipeline(script(ITEMS, values)))
    first = await world.start()
    await first.stop()
    before = len(world.rows())
    world.store.pause(INJECTOR)
    engine = await world.start()
    await pass_seconds(world, 10)
    assert rows_read(engine) == 0
    assert len(world.rows()) == before
    assert not engine.done.is_set()
    world.store.pause()
    await world.finish(engine)
    assert world.tallied() == tally_of(values)


async def test_a_lane_that_starts_over_leaves_it_at_rest() -> None:
    values = [Item("abc"[n % 3], n, n) for n in range(400)]
    world = World(tally_pipeline(script(ITEMS, values), FEW))
    engine = await world.start()
    await world.until(lambda: rows_read(engine) > 100)
    world.store.pause(INJECTOR)
    await pass_seconds(world, NOTICED_SECONDS)
    fail_once(world, 1, StoreUnavailable("away"))
    tried = world.tried
    world.interval("tally").touch(urgent=True)
    await world.until(lambda: world.tried > tried + 1, tick=0.02, what="no second try")
    read = rows_read(engine)
    await pass_seconds(world, 10)
    assert rows_read(engine) == read
    world.store.pause()
    await world.finish(engine)
    assert world.tallied() == tally_of(values)


async def test_the_end_is_not_reached_while_something_rests() -> None:
    """Even if it had read all there was: more may have come, and nobody looks."""
    gate = Gate()

    async def do(record: Record[Item], ctx: Context[Kept]) -> None:
        await gate.wait()

    world = World(doing(items(1, 2), do))
    engine = await world.start(close_at_end=True)
    await world.until(lambda: gate.reached and engine.injectors[0].ended)
    world.store.pause("items_injector")
    await pass_seconds(world, NOTICED_SECONDS)
    gate.open()
    await pass_seconds(world, 10)
    assert world.interval("do").is_finished(world.clock.now())
    assert not engine.done.is_set()
    world.store.pause()
    await pass_seconds(world, NOTICED_SECONDS)
    assert engine.done.is_set()
    await engine.stop()


async def test_what_rests_is_not_excused_as_idle() -> None:
    """Its rows may be there, and are on time when it goes on."""
    busy = script(ITEMS, [Item("a", n, n) for n in range(10)], "busy")
    resting = script(ITEMS, [Item("b", 100, 2)], "resting")
    world = World(two_sources(busy, resting, idle_after=timedelta(seconds=30)))
    engine = await world.start()
    await world.until(engine.done.is_set)
    world.store.pause("source_1")
    await pass_seconds(world, 1.5)

    def low(name: str) -> float:
        return float(world.interval(name).watermarks.durable - to_micros(at(0))) / 1e6

    async def feed(second: int) -> None:
        busy.append(inject(ITEMS, Item("a", second, second)))
        read_on(engine)
        await world.until(lambda: low("source_0") == second, tick=0.01)

    for second in (50, 60):
        await feed(second)
        await pass_seconds(world, 25)
    assert low("tally") == low("source_1") == 2
    world.store.pause()
    await feed(70)
    await pass_seconds(world, 5)
    assert low("tally") == 2, "it has time to look for what came meanwhile"
    await feed(80)
    await pass_seconds(world, 15)
    await feed(90)
    await pass_seconds(world, 15)
    await world.until(lambda: low("tally") == 90, tick=0.05)
    await world.finish(engine)


async def test_one_of_several_rests_on_whatever_worker_it_is() -> None:
    values = many(600)
    cluster = Cluster(counting(values))
    first, second = await cluster.join(), await cluster.join()
    await cluster.go(lambda: first.processed and second.processed)
    cluster.store.pause("source_0")
    await cluster.go(_after(cluster, NOTICED_SECONDS))
    rested = _counted(cluster, 0)
    assert 0 < rested < 300
    await cluster.go(lambda: _counted(cluster, 1) == 300)
    third = await cluster.join()  # injectors may move: they rest wherever they are
    await cluster.go(_after(cluster, 20))
    assert _counted(cluster, 0) == rested
    assert not any(engine.done.is_set() for engine in cluster.alive)
    cluster.store.pause()
    await cluster.finish_soon(values)
    for engine in (first, second, third):
        await cluster.leave(engine)


def _counted(cluster: Cluster, source: int) -> int:
    """Items of a source that came out at the end: the first has the even numbers."""
    return sum(row[1] % 2 == source for row in cluster.rows())


def _after(cluster: Cluster, seconds: float) -> Callable[[], bool]:
    until = cluster.clock.monotonic() + seconds
    return lambda: cluster.clock.monotonic() >= until


# -- what an operator does, on Postgres -----------------------------------------------------------


async def worker(site: PostgresSite, lease_seconds: float) -> None:
    await site.store.register_worker(str(uuid.uuid4()), lease_seconds)


async def test_the_operator_hears_what_was_changed(postgres: PostgresSite) -> None:
    deployment = await deploy(postgres.store)
    schema = postgres.schema
    assert pause(schema) == (["lines"], [], 0)
    resting = (await postgres.store.read_placement()).paused
    assert resting == {deployment.computations["lines"]}, "no computation rests"
    assert pause(schema, "lines") == ([], ["lines"], 0)
    await worker(postgres, 60.0)
    await worker(postgres, 0.0)
    assert pause(schema, paused=False) == (["lines"], [], 1), "one has no lease"
    assert pause(schema, "lines", "lines", paused=False) == ([], ["lines"], 1)


def pause(schema: Schema, *injectors: str, paused: bool = True) -> tuple[list[str], list[str], int]:
    return administration.pause(schema.url, schema.name, injectors, paused=paused)


@pytest.mark.parametrize(
    ("injectors", "message"),
    [
        (["lines", "nothing"], "has no injector 'nothing'; it has: lines. Nothing was changed"),
        (["count"], "has no injector 'count'; it has: lines"),
    ],
)
async def test_what_is_no_injector_is_refused(
    postgres: PostgresSite, injectors: list[str], message: str
) -> None:
    await deploy(postgres.store)
    with pytest.raises(UsageError, match=message):
        pause(postgres.schema, *injectors)
    assert (await postgres.store.read_placement()).paused == frozenset()


async def test_a_pipeline_that_is_not_there_cannot_rest(schema: Schema) -> None:
    with pytest.raises(UsageError, match="has no injector 'x'; it has: none"):
        pause(schema, "x")
    with pytest.raises(UsageError, match="has no pipeline 'nothing'"):
        administration.pause(schema.url, "nothing")
