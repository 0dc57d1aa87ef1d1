"""The pipeline of the code with the queries that were submitted to it (decision 81)."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from millwheel.errors import DeployRefused, GraphError
from millwheel.graph.node import OnFailure
from millwheel.graph.submitted import Submitted
from millwheel.pipeline import Pipeline, copied
from millwheel.store.port import Store
from millwheel.store.port.queries import StoredQueries, SubmittedQuery
from millwheel.streams import Stream

ON_ERROR: OnFailure = "dead_letter"
"""A query that fails for a record must not stop the pipeline that it was added to."""


class QueryRefused(GraphError):
    """A submitted query cannot be compiled, or does not fit the pipeline."""

    def __init__(self, name: str, error: GraphError) -> None:
        super().__init__(f"query {name!r}: {error}")
        self.name = name
        self.error = error


@dataclass(frozen=True)
class QueriedStep:
    """A query as a part of a pipeline."""

    query: SubmittedQuery
    steps: tuple[str, ...]
    streams: frozenset[str]
    """Streams that the pipeline does not have without it."""
    written: Mapping[str, str]
    """The streams that its statements define or write, by the names in its text."""
    targets: tuple[str, ...]
    """Those of them that are no sources."""


@dataclass(frozen=True)
class Queried:
    """A pipeline with queries."""

    pipeline: Pipeline
    queries: Sequence[QueriedStep]

    def get(self, name: str) -> QueriedStep:
        return next(one for one in self.queries if one.query.name == name)


class QueriedPipeline:
    """Adds queries to copies of a pipeline, which itself stays as it is."""

    def __init__(self, pipeline: Pipeline) -> None:
        streams = pipeline.graph().streams.values()
        self.code = pipeline
        self._facts = {stream: stream.facts for stream in streams}
        """Those by queries of the code itself; queries of the store may add some."""
        self._known: tuple[int, Pipeline] | None = None

    def deployed(self, stored: StoredQueries) -> Pipeline:
        """The pipeline with the queries of the store; the same one again for the same revision.

        Raises:
            DeployRefused: a query does not fit this code any more.
        """
        if self._known is not None and self._known[0] == stored.revision:
            return self._known[1]
        try:
            found = self.compiled(stored.queries, stored.revision)
        except QueryRefused as error:
            raise DeployRefused(
                f"the submitted query {error.name!r} cannot be compiled with this code: "
                f"{error.error}\nCorrect the code, or take the query away with the code that is "
                f"deployed: millwheel query drop MODULE:PIPELINE {error.name}"
            ) from error
        for one in found.queries:
            if sorted(one.steps) != sorted(one.query.steps):
                raise DeployRefused(
                    f"the submitted query {one.query.name!r} becomes the steps "
                    f"{', '.join(sorted(one.steps))} with this code, and is deployed as "
                    f"{', '.join(sorted(one.query.steps))}: the code has a step or a stream of "
                    "such a name now, or another millwheel has compiled it. Use another name, or "
                    "take the query away, and submit it again: millwheel query drop "
                    f"MODULE:PIPELINE {one.query.name}"
                )
        pipeline = self.code if stored.revision == 0 else found.pipeline
        self._known = stored.revision, pipeline
        return pipeline

    def compiled(self, queries: Collection[SubmittedQuery], revision: int) -> Queried:
        """Add queries in their order.

        Raises:
            QueryRefused: one cannot be compiled, or does not fit.
        """
        for stream, facts in self._facts.items():
            stream.facts = facts
        pipeline = copied(self.code)
        graph = pipeline.graph()
        aliases: dict[str, Stream[Any]] = {}
        found: list[QueriedStep] = []
        for query in queries:
            # Its import takes 0.12 s, which a worker without queries need not spend.
            from millwheel.sql.adding import add_submitted

            try:
                written = add_submitted(
                    pipeline, query.text, aliases, query.avoided, on_error=ON_ERROR
                )
                with_it = pipeline.graph()
            except GraphError as error:
                raise QueryRefused(query.name, error) from error
            aliases |= written
            steps = tuple(node.name for node in with_it.nodes if node.name not in graph.by_name)
            streams = frozenset(with_it.streams.keys() - graph.streams.keys())
            sources = {node.writes[0].name for node in with_it.nodes if node.injection is not None}
            names = {name: stream.name for name, stream in written.items()}
            targets = tuple(name for name, stream in names.items() if stream not in sources)
            found.append(QueriedStep(query, steps, streams, names, targets))
            graph = with_it
        graph.submitted = Submitted(revision, {one.query.name: one.steps for one in found})
        return Queried(pipeline, found)


async def with_queries(pipeline: Pipeline, store: Store) -> Pipeline:
    """The pipeline with the queries of a store.

    Raises:
        DeployRefused: a query does not fit this code any more.
    """
    return QueriedPipeline(pipeline).deployed(await store.queries())
