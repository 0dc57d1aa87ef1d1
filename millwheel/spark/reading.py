"""Reading rows of a relation as Arrow batches: the part of the sources that runs in Spark's tasks.

It is pickled with the reader, and carries the description of the relation, so a task runs only its
SELECT, through a server-side cursor, in batches of about 4 MB.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager

import pyarrow as pa
from psycopg import ServerCursor
from psycopg.errors import NumericValueOutOfRange
from psycopg.rows import TupleRow
from pyspark.sql import types as spark

from millwheel.errors import StoreError, UsageError
from millwheel.spark.relation import FREE_DIGITS, FREE_SCALE, SparkColumn, SparkRelation
from millwheel.spark.share_query import Condition, Share, count, select
from millwheel.spark.store_sessions import Connection, lock, reading

BATCH_BYTES = 4 << 20
FIRST_ROWS = 16
"""Rows of the first batch; their size is unknown, up to some megabytes each."""
MAX_ROWS = 2_000
GROWTH = 4
"""Largest growth of the rows per batch, since row sizes may vary."""


class RelationRows:
    def __init__(
        self,
        store: str,
        snapshot: str | None,
        relation: SparkRelation,
        schema: spark.StructType,
        filters: Sequence[Condition],
    ) -> None:
        self.store = store
        self.relation = relation
        self.filters = filters
        self._snapshot = snapshot
        self._columns = [_column(relation, field) for field in schema.fields]
        self._arrow = pa.schema(
            [
                pa.field(field.name, column.arrow, nullable=field.nullable)
                for field, column in zip(schema.fields, self._columns, strict=True)
            ]
        )

    def connection(self) -> AbstractContextManager[Connection]:
        return reading(self.store, snapshot=self._snapshot)

    def count(self, connection: Connection, share: Share) -> int:
        """The number of rows without filters."""
        query, values = count(self.relation, share)
        row = connection.execute(query, values).fetchone()
        assert row is not None
        return int(row[0])

    def rows(self, connection: Connection, share: Share) -> Iterator[pa.RecordBatch]:
        query, values = select(self.relation, self._columns, share, self.filters)
        if self._snapshot is None and self.relation.kind in "rp":
            # With a snapshot, its holder has already locked the tables.
            lock(connection, self.relation.pipeline, [self.relation.name])
        with ServerCursor(connection, "millwheel_spark") as cursor:
            cursor.execute(query, values, binary=True)
            wanted = FIRST_ROWS
            while rows := self._fetch(cursor, wanted):
                batch = self._batch(rows)
                yield batch
                wanted = _next_rows(len(rows), batch.nbytes)

    def _fetch(self, cursor: ServerCursor[TupleRow], wanted: int) -> list[TupleRow]:
        try:
            return cursor.fetchmany(wanted)
        except NumericValueOutOfRange as error:
            names = [repr(column.name) for column in self._columns if column.is_free_numeric]
            raise StoreError(
                f"a numeric without precision in {self.relation.name!r} ({' or '.join(names)}) "
                f"does not fit into decimal({FREE_DIGITS}, {FREE_SCALE}): {error}. Leave it out "
                "with the option 'columns', or cast it in a view"
            ) from error

    def _batch(self, rows: list[TupleRow]) -> pa.RecordBatch:
        arrays = [
            column.to_arrow(values)
            for column, values in zip(self._columns, zip(*rows, strict=True), strict=True)
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self._arrow)


def _next_rows(rows: int, size: int) -> int:
    """Estimated from the last batch."""
    return max(1, min(MAX_ROWS, rows * GROWTH, rows * BATCH_BYTES // max(1, size)))


def _column(relation: SparkRelation, field: spark.StructField) -> SparkColumn:
    column = relation.column(field.name)
    if column.spark != field.dataType:
        raise UsageError(
            f"column {field.name!r} of {relation.name!r} ({column.declared}) is "
            f"{column.spark.simpleString()} in Spark; the schema says "
            f"{field.dataType.simpleString()}"
        )
    return column
