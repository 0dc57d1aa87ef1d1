"""The data source that Spark's tasks write a result to: a staging table, from which one transaction takes the rows.

A task may run twice, also at the same time, and tasks of a driver that was killed may still write. So each attempt marks
its rows; those of the attempts that Spark counts are marked with the batch, and no other rows are taken.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import pyarrow as pa
from psycopg import sql
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from millwheel.errors import UsageError
from millwheel.spark.connection import Connection, writing

ATTEMPT = "written_by_attempt"
"""The column of a staging table that tells which attempt of a task has written a row."""
BATCH = "counted_in_batch"
"""The column that tells in which attempt of a batch the row counts; NULL: in none."""


@dataclass
class Attempt(WriterCommitMessage):
    """An attempt that has written its rows."""

    id: str
    rows: int


class StagingTable:
    """A staging table of a pipeline."""

    def __init__(self, store: str, pipeline: str, name: str) -> None:
        self._store = store
        self.name = name
        self.identifier = sql.Identifier(pipeline, name)

    def make(self, columns: sql.Composable) -> None:
        """Make it, empty, in place of one that a killed process has left.

        Args:
            columns: their definitions, or ``LIKE`` of a table.
        """
        text = sql.SQL("CREATE UNLOGGED TABLE {} ({}, {} uuid NOT NULL, {} uuid)").format(
            self.identifier, columns, sql.Identifier(ATTEMPT), sql.Identifier(BATCH)
        )
        with writing(self._store) as connection:
            self.drop_in(connection)
            connection.execute(text)

    def empty(self) -> None:
        """Remove all rows; a snapshot that is held would keep it from that."""
        with writing(self._store) as connection:
            connection.execute(sql.SQL("TRUNCATE {}").format(self.identifier))

    def drop(self) -> None:
        """Drop it, if it is there."""
        with writing(self._store) as connection:
            self.drop_in(connection)

    def drop_in(self, connection: Connection) -> None:
        """Drop it in a transaction."""
        connection.execute(sql.SQL("DROP TABLE IF EXISTS {}").format(self.identifier))


class StagingWriter(DataSourceArrowWriter):
    """Writes rows to a staging table.

    Args:
        table: its schema and name.
        batch: an id of this attempt of the batch.
        json: names of the columns of type jsonb; values that are not text are encoded.
    """

    def __init__(
        self,
        store: str,
        table: tuple[str, str],
        batch: str,
        columns: Sequence[str],
        json: Sequence[str],
    ) -> None:
        self._store = store
        self._table = table
        self._batch = batch
        self._columns = list(columns)
        self._json = set(json)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Attempt:
        attempt = str(uuid.uuid4())
        names = sql.SQL(", ").join(map(sql.Identifier, (*self._columns, ATTEMPT)))
        text = sql.SQL("COPY {} ({}) FROM STDIN").format(sql.Identifier(*self._table), names)
        rows = 0
        with writing(self._store) as connection, connection.cursor().copy(text) as copy:
            for batch in iterator:
                for row in zip(*(self._values(batch, name) for name in self._columns), strict=True):
                    copy.write_row((*row, attempt))
                    rows += 1
        return Attempt(attempt, rows)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        counted = [message.id for message in messages if isinstance(message, Attempt)]
        text = sql.SQL("UPDATE {} SET {} = %s WHERE {} = ANY(%s::uuid[])").format(
            sql.Identifier(*self._table), sql.Identifier(BATCH), sql.Identifier(ATTEMPT)
        )
        with writing(self._store) as connection:
            connection.execute(text, [self._batch, counted])

    def _values(self, batch: pa.RecordBatch, name: str) -> list[Any]:
        values: list[Any] = batch.column(name).to_pylist()
        if name in self._json:
            return [
                v if isinstance(v, str | None) else msgspec.json.encode(v).decode() for v in values
            ]
        return values


def check_columns(found: Sequence[str], wanted: Sequence[str], name: str) -> None:
    """Refuse a result whose columns are not those of its table.

    Raises:
        UsageError: with both lists.
    """
    if sorted(found) != sorted(wanted):
        raise UsageError(
            f"the function of aggregate {name!r} returned the columns {', '.join(found)}; its table has "
            f"{', '.join(wanted)}"
        )
