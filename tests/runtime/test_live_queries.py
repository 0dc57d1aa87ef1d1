"""Engines that load submitted queries, and that lose them with the server's newest commits."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest

from millwheel.errors import DeployRefused, QueriesChanged
from millwheel.pipeline import Pipeline
from millwheel.runtime.engine import Engine
from millwheel.runtime.ownership.deploying import deploy
from millwheel.services.queried_pipeline import QueriedPipeline
from millwheel.services.reloading import LoadedQueries
from millwheel.store.memory.store import MemoryStore
from millwheel.store.port.queries import QueryChange, SubmittedQuery
from tests.support.pipelines import QUICK, script, tally_pipeline
from tests.support.values import ITEMS, items

TEXT = "CREATE STREAM copies AS SELECT key, number FROM items"


def code() -> Pipeline:
    return tally_pipeline(script(ITEMS, items(10)), QUICK)


async def submit(store: MemoryStore) -> None:
    """Submit a query, as the command does."""
    found = QueriedPipeline(code()).compiled([SubmittedQuery("copies", TEXT)], 0)
    (step,) = found.queries
    query = SubmittedQuery("copies", TEXT, steps=step.steps)
    await deploy(Engine(found.pipeline, store.another()).env, change=QueryChange("submit", query))


async def until(found: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not found():  # noqa: ASYNC110 - an engine that starts over has no event
            await asyncio.sleep(0.01)


@pytest.fixture
async def store() -> AsyncIterator[MemoryStore]:
    made = MemoryStore()
    yield made
    await made.close()


async def started(store: MemoryStore, pipeline: Pipeline) -> Engine:
    queries = LoadedQueries(pipeline, store)
    engine = Engine(pipeline, store, renew=queries.pipeline)
    engine.attend(queries.watch, "queries")
    await engine.start()
    return engine


async def test_an_engine_loads_a_query_and_loses_it_with_the_server(store: MemoryStore) -> None:
    engine = await started(store, code())
    worker = engine.worker
    saved = store.saved()
    await submit(store)
    await until(lambda: engine.started and "make_copies" in engine.graph.by_name)
    assert engine.env.generation == 2
    store.come_back_as(saved)
    await until(lambda: engine.started and "make_copies" not in engine.graph.by_name)
    assert (engine.env.generation, engine.worker, engine.failure) == (1, worker, None)
    await submit(store)
    await until(lambda: engine.started and "make_copies" in engine.graph.by_name)
    await engine.stop()


async def test_an_engine_without_the_queries_of_the_store_does_not_start(
    store: MemoryStore,
) -> None:
    await (await started(store, code())).stop()
    await submit(store)
    engine = Engine(code(), store)
    with pytest.raises(DeployRefused, match="other submitted queries") as refused:
        await engine.start()
    assert not isinstance(refused.value, QueriesChanged)
    await engine.kill()


async def test_a_query_that_is_submitted_as_an_engine_starts_is_loaded(store: MemoryStore) -> None:
    """Between the look at the queries and the deploy: the deploy is refused, and tried again."""
    await (await started(store, code())).stop()

    async def submit_before_a_deploy(name: str) -> None:
        if name == "plan":
            store.faults.before_call = None
            await submit(store)

    store.faults.before_call = submit_before_a_deploy
    engine = await started(store, code())
    assert "make_copies" in engine.graph.by_name
    assert engine.env.generation == 2
    await engine.stop()
