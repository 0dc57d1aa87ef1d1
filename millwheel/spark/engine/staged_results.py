"""The results of a batch: written to a staging table by Spark's tasks, moved from there in one
transaction.

The transaction also stores the number of the batch (`progress`). A batch that runs again, because
the driver was killed before Spark's own commit, finds its number and writes nothing. The state that
it leaves is the same if user code does the same again: see
``docs/howto/connect/spark-pipeline.md``.
"""

from __future__ import annotations

import uuid
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import sql

from millwheel.core.model import MIN_TIME
from millwheel.errors import StoreError, UserCodeError
from millwheel.graph.order import Graph
from millwheel.sinks import Table
from millwheel.spark.engine.query_progress import QueryProgress, StoredQuery
from millwheel.spark.engine.result_writer import FORMAT, PARCELS
from millwheel.spark.staging import StagingTable
from millwheel.spark.store_sessions import Connection, writing

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import DataFrame

STAGING = "staging_of_spark"


class Results:
    """The tables of a pipeline's sinks, and the staging table.

    `options` are those of Spark's tasks, with the store if they do not have it.
    """

    def __init__(self, stored: StoredQuery, graph: Graph, options: Mapping[str, str]) -> None:
        self._stored = stored
        self._options = options
        self._tables = tables_of(graph)
        self._staged = StagingTable(stored.store, stored.pipeline, STAGING)

    def prepare(self) -> None:
        self._staged.make(
            sql.SQL(
                "stream text NOT NULL, value text NOT NULL, seq bigint NOT NULL, micros bigint NOT "
                "NULL"
            )
        )

    def take(
        self, rows: DataFrame, query: str, batch: int, promised: int | None = None
    ) -> int | None:
        """Write a batch; returns the number of rows in tables, None: the batch was there already.

        Args:
            promised: the low watermark at its end; None: a row of it has that.

        Raises:
            UsageError: see `StoredQuery.next_of`.
            UserCodeError: a row does not fit its table.
            StoreUnavailable: see `StagingTable.counted`.
        """
        before = self._stored.next_of(query, batch)
        if before is None:
            # The operators must run all the same: without it the batch has no state, and the next
            # one fails.
            rows.write.format("noop").mode("overwrite").save()
            return None
        self._staged.empty()
        staged = str(uuid.uuid4())
        rows.select(PARCELS).write.format(FORMAT).mode("append").options(
            pipeline=self._stored.pipeline, staging=STAGING, batch=staged, **self._options
        ).save()
        return self.move(before, query, staged, promised)

    def move(
        self, before: QueryProgress, query: str, staged: str, promised: int | None = None
    ) -> int:
        """Move the rows of a batch into their tables, in one transaction; returns their number."""
        with writing(self._stored.store) as connection:
            attempts = self._staged.counted(connection, staged)
            rows = dict(before.table_rows)
            moved = sum(
                self._move(connection, table, before, rows, attempts) for table in self._tables
            )
            self._execute(connection, "insert_letters", attempts)
            counted = self._execute(connection, "counted", attempts).fetchall()
            if promised is None:
                (found,) = self._execute(connection, "clock", attempts).fetchall()
                promised = MIN_TIME if found[0] is None else found[0]
            self._stored.advance(
                connection,
                before,
                query,
                low_watermark=promised,
                counters=before.counted(counted),
                table_rows=rows,
            )
        return moved

    def close(self) -> None:
        """Drop the staging table, if the store is there."""
        with suppress(StoreError):
            self._staged.drop()

    def _move(
        self,
        connection: Connection,
        table: Table[Any],
        before: QueryProgress,
        rows: dict[str, int],
        attempts: list[str],
    ) -> int:
        text = self._statement(table)
        first = rows.get(table.name, 0)
        parameters = {
            "staged": attempts,
            "table": table.name,
            "sender": before.sender,
            "first": first,
        }
        try:
            moved = connection.execute(text, parameters).rowcount
        except (psycopg.errors.IntegrityError, psycopg.errors.DataError) as error:
            raise UserCodeError(
                f"a row does not fit table {table.name!r}: {str(error).strip()}. Nothing of its "
                "batch was written"
            ) from error
        if table.numbered:
            rows[table.name] = first + moved
        return moved

    def _execute(
        self, connection: Connection, name: str, attempts: list[str]
    ) -> psycopg.Cursor[Any]:
        return connection.execute(self._staged.statement(f"query/{name}"), {"staged": attempts})

    def _statement(self, table: Table[Any]) -> sql.Composed:
        own = table.columns[:-2] if table.numbered else table.columns
        values: list[sql.Composable] = [
            sql.SQL("(v -> 1 ->> {})::{} AS {}").format(
                sql.Literal(place), sql.SQL(column.type), sql.Identifier(column.name)
            )
            for place, column in enumerate(own)
        ]
        if table.numbered:
            values += [
                sql.SQL("%(sender)s::bigint AS sender"),
                sql.SQL("%(first)s::bigint + row_number() OVER (ORDER BY seq) - 1 AS sequence"),
            ]
        parts: dict[str, sql.Composable] = {
            "target": sql.Identifier(self._stored.pipeline, table.name),
            "columns": _joined([column.name for column in table.columns]),
            "rows": self._staged.statement("query/staged_rows", values=sql.SQL(", ").join(values)),
        }
        if not table.key:
            return self._staged.statement("query/insert_rows", **parts)
        changes = [
            sql.SQL("{0} = EXCLUDED.{0}").format(sql.Identifier(column.name))
            for column in table.columns
            if column.name not in table.key
        ]
        conflict = sql.SQL("UPDATE SET {}").format(sql.SQL(", ").join(changes))
        return self._staged.statement(
            "query/upsert_rows",
            key=_joined(table.key),
            conflict=conflict if changes else sql.SQL("NOTHING"),
            **parts,
        )


def _joined(names: Sequence[str]) -> sql.Composed:
    return sql.SQL(", ").join(map(sql.Identifier, names))


def tables_of(graph: Graph) -> list[Table[Any]]:
    found = {
        use.sink.name: use.sink
        for node in graph.nodes
        for uses in node.sinks.values()
        for use in uses
        if isinstance(use.sink, Table)
    }
    return list(found.values())
