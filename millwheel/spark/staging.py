"""The data source that Spark's tasks write a result to: a staging table, from which one transaction
takes the rows.

A task may run twice, also at the same time, and tasks of a driver that was killed may still write.
So each attempt marks its rows, and a second table lists, for each batch, the attempts that Spark
counts and how many rows they have. The transaction counts these: both tables are unlogged, and
empty after a crash of the server, which tasks that are repeated may outlive.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import msgspec
import pyarrow as pa
from psycopg import sql
from pyspark.sql import types as spark
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from millwheel.core.columns import Column
from millwheel.errors import StoreUnavailable, UsageError
from millwheel.spark.encoding import check_types, encoded, in_utc, values
from millwheel.spark.store_sessions import Connection, limit_lock_wait, statement, writing

COMPLEX = (spark.ArrayType, spark.MapType, spark.StructType)
"""Types that only a column of type jsonb can hold."""
ENCODER = msgspec.json.Encoder()

ATTEMPT = "written_by_attempt"
"""The column of a staging table that identifies the attempt of a task that has written a row."""


@dataclass
class Attempt(WriterCommitMessage):
    id: str
    rows: int


class StagingTable:
    def __init__(self, store: str, pipeline: str, name: str) -> None:
        self._store = store
        self._pipeline = pipeline
        self.name = name
        self.identifier = sql.Identifier(pipeline, name)
        self._batches = _batches(pipeline, name)

    def make(self, columns: sql.Composable) -> None:
        """Replaces a table that a killed process has left; `columns` are definitions, or ``LIKE``
        of a table."""
        with self._alone() as connection:
            self.drop_in(connection)
            connection.execute(self.statement("staging/make", columns=columns))

    def empty(self) -> None:
        with self._alone() as connection:
            connection.execute(self.statement("staging/empty"))

    def drop(self) -> None:
        with self._alone() as connection:
            self.drop_in(connection)

    def drop_in(self, connection: Connection) -> None:
        connection.execute(self.statement("staging/drop"))

    def statement(self, name: str, **parts: sql.Composable) -> sql.Composed:
        parts |= {"staging": self.identifier, "attempt": sql.Identifier(ATTEMPT)}
        return statement(name, self._pipeline, batches=self._batches, **parts)

    def counted(self, connection: Connection, batch: str) -> list[str]:
        """The attempts that make up a batch; their rows stay until the end of the transaction.

        `StoreUnavailable` if some of the rows are missing: the batch has to be done again.
        """
        found = connection.execute(self.statement("staging/attempts"), {"batch": batch}).fetchone()
        if found is not None:
            attempts, rows = found
            ((there,),) = connection.execute(
                self.statement("staging/count"), {"attempts": attempts}
            ).fetchall()
            if there == rows:
                return list(attempts)
        raise StoreUnavailable(
            f"rows of a batch are gone from the table {self.name!r}: since they were written, the "
            "server has crashed, or another process has created the table again. Nothing of the "
            "batch counts; run it again"
        )

    @contextmanager
    def _alone(self) -> Iterator[Connection]:
        """Waits for others at the table for a while only, such as tasks of a killed driver."""
        with writing(self._store) as connection:
            limit_lock_wait(connection)
            yield connection


def _batches(pipeline: str, name: str) -> sql.Identifier:
    return sql.Identifier(pipeline, f"{name}_batches")


class StagingWriter(DataSourceArrowWriter):
    """Values of the columns `json` that are not text are encoded."""

    def __init__(
        self,
        store: str,
        table: tuple[str, str],
        batch: str,
        columns: Sequence[str],
        json: Sequence[str] = (),
    ) -> None:
        self._store = store
        self._table = table
        self._batch = batch
        self._columns = list(columns)
        self._json = set(json)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Attempt:
        attempt = str(uuid.uuid4())
        names = sql.SQL(", ").join(map(sql.Identifier, (*self._columns, ATTEMPT)))
        text = statement("staging/copy", staging=sql.Identifier(*self._table), columns=names)
        rows = 0
        with writing(self._store) as connection, connection.cursor().copy(text) as copy:
            for batch in iterator:
                for row in self.rows(batch):
                    copy.write_row((*row, attempt))
                    rows += 1
        return Attempt(attempt, rows)

    def rows(self, batch: pa.RecordBatch) -> Iterator[tuple[Any, ...]]:
        """The rows of a batch, with the columns of the table."""
        found = in_utc(batch)
        return zip(*(self._values(found, name) for name in self._columns), strict=True)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        counted = [message for message in messages if isinstance(message, Attempt)]
        noted = {
            "batch": self._batch,
            "attempts": [attempt.id for attempt in counted],
            "rows": sum(attempt.rows for attempt in counted),
        }
        with writing(self._store) as connection:
            text = statement("staging/note_attempts", batches=_batches(*self._table))
            connection.execute(text, noted)

    def _values(self, batch: pa.RecordBatch, name: str) -> list[Any]:
        found = values(batch.column(name))
        if name in self._json:
            where = f"column {name!r}"
            return [v if isinstance(v, str | None) else encoded(v, ENCODER, where) for v in found]
        return found


def check_columns(found: spark.StructType, wanted: Sequence[Column], name: str) -> None:
    """`UsageError` for a result with other columns than its table."""
    if sorted(found.fieldNames()) != sorted(column.name for column in wanted):
        raise UsageError(
            f"the function of aggregate {name!r} returned the columns "
            f"{', '.join(found.fieldNames())}; its table has "
            f"{', '.join(column.name for column in wanted)}"
        )
    for column in wanted:
        field = found[column.name]
        if column.is_json:
            check_types([field], f"the table of aggregate {name!r}")
        elif isinstance(field.dataType, COMPLEX):
            raise UsageError(
                f"the function of aggregate {name!r} returned column {column.name!r} as "
                f"{field.dataType.simpleString()}; in its table it is {column.type}"
            )
