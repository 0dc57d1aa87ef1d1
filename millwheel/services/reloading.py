"""Loads the queries of the store into a worker, when it starts and while it runs (decision 81)."""

from __future__ import annotations

import asyncio

from millwheel.errors import DeployRefused
from millwheel.pipeline import Pipeline
from millwheel.runtime.engine import Engine
from millwheel.runtime.ownership.deploying import described
from millwheel.runtime.process.service import Service
from millwheel.services.queried_pipeline import QueriedPipeline
from millwheel.store.port import Store


class LoadedQueries:
    """The pipeline of a worker's code, with the queries that its store has."""

    def __init__(self, pipeline: Pipeline, store: Store) -> None:
        self._queried = QueriedPipeline(pipeline)
        self._store = store

    async def pipeline(self) -> Pipeline:
        """`DeployRefused` if a query does not fit this code."""
        stored = await self._store.queries()
        return await asyncio.to_thread(self._queried.deployed, stored)

    def watch(self, engine: Engine) -> QueryWatch:
        """The service that loads changes while the engine runs."""
        return QueryWatch(engine, self)


class QueryWatch(Service):
    """Starts an engine over when the store has other queries.

    Code that is not the deployed one, in the middle of a rolling deploy, stays as it is: its
    intervals move to workers of the newer code, which have the queries.
    """

    def __init__(self, engine: Engine, queries: LoadedQueries) -> None:
        super().__init__(engine.clock, engine.settings.placement_seconds)
        self._engine = engine
        self._queries = queries
        self._left_at: int | None = None
        """The revision that this code cannot load."""

    async def run_once(self) -> None:
        engine = self._engine
        revision = await engine.store.queries_revision()
        if revision in (engine.graph.submitted.revision, self._left_at):
            return
        try:
            pipeline = await self._queries.pipeline()
        except DeployRefused as error:
            self._leave(revision, str(error))
            return
        graph = pipeline.graph()
        plan = await engine.store.plan(described(graph, engine.settings.intervals))
        if plan.is_newest:
            engine.reload()
        elif await engine.store.queries_revision() == graph.submitted.revision:
            self._leave(revision, "other code is deployed")

    def _leave(self, revision: int, reason: str) -> None:
        self._left_at = revision
        self._engine.log.warning(
            "queries_not_loaded",
            reason=reason,
            what_it_means=(
                "this worker continues as it is, and takes no intervals of the changed queries; "
                "workers of the deployed code do"
            ),
            what_to_do="start this worker with the deployed code",
        )
