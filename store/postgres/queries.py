from __future__ import annotations

from typing import Any

import msgspec

from millwheel.store.port.queries import StoredQueries, SubmittedQuery
from millwheel.store.postgres.connections import Subject


def queries_of(row: tuple[Any, ...]) -> StoredQueries:
    """The row of ``stored_queries.sql``."""
    revision, queries = row
    return StoredQueries(revision, msgspec.json.decode(queries, type=tuple[SubmittedQuery, ...]))


class PostgresQueries(Subject):
    """Rows of the table `query`; a deploy writes them."""

    async def queries(self) -> StoredQueries:
        (row,) = await self.connections.rows("stored_queries")
        return queries_of(row)

    async def queries_revision(self) -> int:
        ((revision,),) = await self.connections.rows("queries_revision")
        return int(revision)
