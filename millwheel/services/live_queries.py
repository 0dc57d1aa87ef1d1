"""Submits, replaces and lists queries of a pipeline that may be running (decision 81).

A query is compiled with the pipeline's code before anything is stored. One transaction then stores
it and begins its generation, as a deploy of code with these queries does. Steps of a replaced query
that its new text cannot continue are removed in the same transaction, as ``millwheel remove`` does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from msgspec import structs

from millwheel.core.names import check_name
from millwheel.core.own_loop import run_to_end
from millwheel.errors import DeployRefused, UsageError
from millwheel.graph.order import Graph
from millwheel.pipeline import Pipeline
from millwheel.runtime.engine import Engine
from millwheel.runtime.ownership.deploying import deploy, described
from millwheel.services.hosting import opened
from millwheel.services.queried_pipeline import (
    Queried,
    QueriedPipeline,
    QueriedStep,
    QueryRefused,
    with_queries,
)
from millwheel.sql.explaining import explained
from millwheel.store.console.administration import delete_removed
from millwheel.store.port import Store
from millwheel.store.port.change import CodeChange, lines_of
from millwheel.store.port.deploy import DescribedGraph, Plan
from millwheel.store.port.placement import PlacedWorker
from millwheel.store.port.queries import QueryChange, StoredQueries, SubmittedQuery, find_query
from millwheel.store.rules.changes import kinds

T = TypeVar("T")

ATTEMPTS = 10
"""Each attempt gives other names to the steps and streams that do not fit the stored ones."""

POLL_SECONDS = 0.2


@dataclass(frozen=True)
class PreparedQuery:
    """A new or another text of a query, compiled and compared with the store."""

    queried: Queried
    """The pipeline with all queries."""
    step: QueriedStep
    is_new: bool
    removed: tuple[str, ...]
    """Steps of its former text that go, with their state."""
    continued: tuple[str, ...]
    """Steps of its former text that continue with their state."""
    changes: Sequence[CodeChange]


@dataclass(frozen=True)
class Loaded:
    """The workers that run, and those of them that have a generation."""

    workers: int
    have_it: int

    @property
    def by_all(self) -> bool:
        return self.have_it == self.workers


@dataclass(frozen=True)
class ListedQuery:
    query: SubmittedQuery
    loaded: Loaded

    @property
    def state(self) -> str:
        if not self.loaded.workers:
            return "waits for workers"
        if self.loaded.by_all:
            return "running"
        return f"loaded by {self.loaded.have_it} of {self.loaded.workers} workers"


def prepare(pipeline: Pipeline, url: str, name: str, text: str, *, is_new: bool) -> PreparedQuery:
    """Compile a query, and find how its steps continue those that are stored. Nothing is changed.

    Raises:
        SqlError: it cannot be compiled.
        UsageError: its name is taken, or there is no query to replace.
        DeployRefused: the code is not the deployed one, or the stored data does not allow the
            query.
    """
    check_name(name, "query")
    return _in_store(
        pipeline, url, lambda store: _Preparing(pipeline, store).run(name, text, is_new)
    )


def carry_out(prepared: PreparedQuery, url: str, *, by: str, reason: str) -> int:
    """Store a prepared query with its generation; returns that one's number.

    Raises:
        QueriesChanged: others have changed queries since.
        DeployRefused: other code was deployed since.
    """
    pipeline, query = prepared.queried.pipeline, prepared.step.query
    change = QueryChange(
        "submit" if prepared.is_new else "replace",
        structs.replace(
            query, steps=prepared.step.steps, targets=prepared.step.targets, submitted_by=by
        ),
        prepared.removed,
        reason,
    )
    deployment = _in_store(
        pipeline, url, lambda store: deploy(Engine(pipeline, store).env, change=change)
    )
    if deployment.removed:
        delete_removed(url, pipeline.name, deployment.removed)
    return deployment.generation


def explained_query(pipeline: Pipeline, url: str, name: str) -> list[str]:
    """Lines on the steps of a submitted query; `UsageError` if there is no such query."""

    async def found(store: Store) -> list[str]:
        stored = await store.queries()
        query = find_query(stored, name)
        queried = QueriedPipeline(pipeline).compiled(stored.queries, stored.revision)
        step, nodes = queried.get(name), queried.pipeline.graph().by_name
        return explained([nodes[one] for one in step.steps], query.text, step.written)

    return _in_store(pipeline, url, found)


def pipeline_with_queries(pipeline: Pipeline, url: str) -> Pipeline:
    """`DeployRefused` if a query does not fit this code any more."""
    return _in_store(pipeline, url, lambda store: with_queries(pipeline, store))


def listed(pipeline: Pipeline, url: str) -> list[ListedQuery]:
    async def found(store: Store) -> list[ListedQuery]:
        stored, workers = await store.queries(), await _alive(store)
        return [ListedQuery(one, _loaded(workers, one.generation)) for one in stored.queries]

    return _in_store(pipeline, url, found)


def wait_for_workers(pipeline: Pipeline, url: str, generation: int, seconds: float) -> Loaded:
    """Wait until all workers that run have a generation, for so many seconds at the most."""

    async def found(store: Store) -> Loaded:
        clock = asyncio.get_running_loop().time
        deadline = clock() + seconds
        while True:
            loaded = _loaded(await _alive(store), generation)
            if loaded.by_all or clock() >= deadline:
                return loaded
            await asyncio.sleep(POLL_SECONDS)

    return _in_store(pipeline, url, found)


def _in_store(pipeline: Pipeline, url: str, work: Callable[[Store], Awaitable[T]]) -> T:
    async def run() -> T:
        async with opened(pipeline, url) as store:
            return await work(store)

    return run_to_end(run())


async def _alive(store: Store) -> list[PlacedWorker]:
    return [one for one in (await store.read_placement()).workers if one.lease_left > 0]


def _loaded(workers: Sequence[PlacedWorker], generation: int) -> Loaded:
    return Loaded(len(workers), sum(one.generation >= generation for one in workers))


class _Preparing:
    def __init__(self, pipeline: Pipeline, store: Store) -> None:
        self._pipeline = pipeline
        self._store = store
        self._queried = QueriedPipeline(pipeline)

    async def run(self, name: str, text: str, is_new: bool) -> PreparedQuery:
        stored = await self._store.queries()
        former = self._former(stored, name, is_new)
        current = self._queried.deployed(stored)
        await self._require_deployed(current.graph())
        avoided = set(() if former is None else former.avoided)
        for _ in range(ATTEMPTS):
            query = SubmittedQuery(name, text, tuple(sorted(avoided)))
            queried = self._compiled(stored, query)
            step = queried.get(name)
            before = () if former is None else former.steps
            removed = tuple(one for one in before if one not in step.steps)
            found = self._described(queried.pipeline.graph())
            plan = await self._store.plan(found)
            changes = [c for c in plan.changes if not _is_removal(c, removed)]
            self._refuse_other_tables(step, current.graph(), found, changes, plan)
            unfit = _unfit(step, queried.pipeline.graph(), changes)
            if unfit <= avoided:
                break
            avoided |= unfit
        _refuse(name, changes, is_own_code_kept=plan.is_own_code_newest)
        continued = tuple(one for one in before if one in step.steps)
        return PreparedQuery(queried, step, is_new, removed, continued, changes)

    def _former(self, stored: StoredQueries, name: str, is_new: bool) -> SubmittedQuery | None:
        if not is_new:
            return find_query(stored, name)
        if any(one.name == name for one in stored.queries):
            raise UsageError(
                f"there is a query {name!r} already: give another --name, or replace it: millwheel "
                f"query replace MODULE:PIPELINE {name} FILE.sql"
            )
        return None

    def _compiled(self, stored: StoredQueries, query: SubmittedQuery) -> Queried:
        """The pipeline with a query, in its former place or behind the others."""
        others = {one.name: one for one in stored.queries}
        try:
            return self._queried.compiled(
                list({**others, query.name: query}.values()), stored.revision
            )
        except QueryRefused as error:
            if error.name == query.name:
                raise error.error from None
            raise

    def _described(self, graph: Graph) -> DescribedGraph:
        return described(graph, self._pipeline.settings.intervals)

    async def _require_deployed(self, graph: Graph) -> None:
        """`DeployRefused` unless the code is the deployed one: a query must not deploy other
        code."""
        plan = await self._store.plan(self._described(graph))
        name = self._pipeline.name
        if plan.deployed is None:
            raise UsageError(
                f"pipeline {name!r} was never run, and queries are submitted to pipelines that are "
                "deployed: start its workers first"
            )
        if not plan.is_newest:
            raise DeployRefused(
                f"this code is not the deployed one of pipeline {name!r}, generation "
                f"{plan.deployed}. Give the deployed code, or deploy this one first: its workers "
                "do when they start. The differences:\n" + _lines(plan.changes)
            )

    def _refuse_other_tables(
        self,
        step: QueriedStep,
        current: Graph,
        found: DescribedGraph,
        changes: Iterable[CodeChange],
        plan: Plan,
    ) -> None:
        """Refuse a table that was there before, and was not written by deployed code, if it has
        other columns."""
        known = {table.name for table in self._described(current).tables}
        for table in found.tables:
            where = f"table {table.name!r}"
            if table.name in known or not any(
                change.where.startswith(where) and change.kind is not kinds.COLUMN_NULLABLE
                for change in changes
            ):
                continue
            has = ", ".join(f"{name} {type_}" for name, type_ in plan.tables[table.name].items())
            gives = ", ".join(f"{column.name} {column.type}" for column in table.columns)
            key = f", with the key ({', '.join(table.unique)})" if table.unique else ""
            raise DeployRefused(
                f"there is a table {table.name!r} in the schema, and it does not fit the query "
                f"{step.query.name!r}.\n  The table has: {has}\n  The query gives: {gives}{key}\n"
                "Write to a table of another name, give the query the columns of this one, or drop "
                "the table by SQL"
            )


def _is_removal(change: CodeChange, removed: Sequence[str]) -> bool:
    """Whether a change only says that steps are gone, which are removed on purpose."""
    return change.kind in kinds.MISSING and not change.names.isdisjoint(removed)


def _unfit(step: QueriedStep, graph: Graph, changes: Iterable[CodeChange]) -> set[str]:
    """Names of the query's steps and streams that stored data does not allow.

    A relay in front of a table has its name from the stream that it reads.
    """
    found: set[str] = set()
    for change in changes:
        if change.refuses and not change.where.startswith("table "):
            found |= change.names & {*step.steps, *step.streams}
    for name in found & set(step.steps):
        node = graph.by_name[name]
        if node.kind == "relay":
            found |= {each.stream.name for each in node.inputs} & step.streams
    return found


def _refuse(name: str, changes: Sequence[CodeChange], *, is_own_code_kept: bool) -> None:
    refusing = [change for change in changes if change.refuses]
    if refusing:
        raise DeployRefused(
            f"the query {name!r} does not fit the stored data; nothing was changed:\n"
            + _lines(refusing)
        )
    if not is_own_code_kept:
        raise DeployRefused(
            f"the query {name!r} would change steps of the code, which only a deploy does; nothing "
            "was changed:\n" + _lines(changes)
        )


def _lines(changes: Iterable[CodeChange]) -> str:
    return "\n".join(f"  {line}" for change in changes for line in lines_of(change))
