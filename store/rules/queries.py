"""Which code may be deployed beside the queries that were submitted."""

from __future__ import annotations

from millwheel.errors import QueriesChanged
from millwheel.store.port.deploy import DescribedGraph
from millwheel.store.port.queries import StoredQueries


def refuse_other_queries(pipeline: str, stored: StoredQueries, described: DescribedGraph) -> None:
    """`QueriesChanged` if a graph was built with other queries than the store has."""
    if stored.revision != described.submitted.revision:
        names = ", ".join(query.name for query in stored.queries) or "none"
        raise QueriesChanged(
            f"pipeline {pipeline!r} has other submitted queries than this code was built with; it "
            f"has now: {names}. Workers read them when they start. Spark does not run them: drop "
            "them first, millwheel query drop"
        )
