"""``spark.read.format("millwheel")``: a Python Data Source over one pipeline's relations.

Where the code runs (seen on Spark 4.1 and 4.3):

=========================  ===============================================================
``schema()``               at ``load()``, in a Python process that the JVM takes from a pool
``reader()``,              at planning, in such a process, maybe another one; the reader is
``partitions()``           pickled there, and the process then does other work
``read(partition)``        in a task's Python worker, once per partition
=========================  ===============================================================

None of these processes is the driver, and none lives as long as the read, so they cannot share a
connection. Each opens its own and joins the exported snapshot, which the driver holds
(:mod:`millwheel.spark.snapshots`). The pickled reader carries the description of the relation, so a
task runs only its SELECT.

Options: ``store`` (postgresql://…; default: MILLWHEEL_STORE), ``pipeline``, ``table``,
``snapshot`` (from :func:`millwheel.spark.snapshot`), ``partitions`` (4; 1 without a snapshot),
``columns`` and ``filters`` (see :meth:`millwheel.spark.Snapshot.options`). Option values are not
part of Spark's plans.

``columns`` exists because Spark does not tell a Python source which columns it needs. ``filters``
exists because push-down (``pushFilters``) is broken in Spark 4.1 to 4.3: the resulting read is kept in
an object that *all* queries on one DataFrame share. Tried on 4.1.4 and 4.3.0: after
``df.where("a = 5").collect()``, ``df.count()`` is 1; and
``df.where("a = 1").union(df.where("a = 2"))`` returns the second part twice. (Spark's master keeps it
in the scan.) A filter option belongs to one ``load()`` and does not leak. A test fails if
``pushFilters`` is implemented here.

A task reads through a server-side cursor, in batches of about 4 MB.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property

import pyarrow as pa
from psycopg import ServerCursor
from psycopg.errors import NumericValueOutOfRange
from psycopg.rows import TupleRow
from pyspark.sql import types as spark
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from millwheel.errors import StoreError, UsageError
from millwheel.spark.connection import lock, reading, store_url
from millwheel.spark.filters import WrittenFilter, parsed
from millwheel.spark.query import Condition, Share, condition, select, shares
from millwheel.spark.relation import FREE_DIGITS, FREE_SCALE, SparkColumn, SparkRelation, describe

PARTITIONS = 4
BATCH_BYTES = 4 << 20
FIRST_ROWS = 16
"""Rows of the first batch; their size is unknown, up to some megabytes each."""
MAX_ROWS = 2_000
GROWTH = 4
"""Maximum growth factor of the rows per batch, since row sizes may vary."""


class MillwheelSource(DataSource):
    """The data source for one table or view of a pipeline."""

    @classmethod
    def name(cls) -> str:
        return "millwheel"

    def schema(self) -> spark.StructType:
        self._partitions()  # so that load() already reports a bad option
        relation = self._relation
        names = self._wanted() or [column.name for column in relation.columns]
        columns = [relation.column(name) for name in names]
        return spark.StructType(
            [spark.StructField(column.name, column.spark) for column in columns]
        )

    def reader(self, schema: spark.StructType) -> MillwheelReader:
        if "_relation" not in self.__dict__:
            # The user has given a schema, which determines the columns to read.
            self._relation = self._describe(schema.fieldNames())
        return MillwheelReader(
            store_url(self.options),
            self.options.get("snapshot"),
            self._relation,
            schema,
            [condition(self._relation.column(one[0]), one) for one in self._filters()],
            self._partitions(),
        )

    @cached_property
    def _relation(self) -> SparkRelation:
        """The relation, looked up once; then it is in ``__dict__`` and pickled with this object."""
        return self._describe(self._wanted())

    def _describe(self, wanted: list[str] | None) -> SparkRelation:
        pipeline, table = self._required("pipeline"), self._required("table")
        only = None if wanted is None else [*wanted, *(one[0] for one in self._filters())]
        with reading(store_url(self.options), snapshot=self.options.get("snapshot")) as connection:
            return describe(connection, pipeline, table, only)

    def _wanted(self) -> list[str] | None:
        given = self.options.get("columns")
        return [name.strip() for name in given.split(",")] if given else None

    def _filters(self) -> list[WrittenFilter]:
        return parsed(self.options.get("filters") or "[]")

    def _required(self, option: str) -> str:
        if value := self.options.get(option):
            return value
        raise UsageError(f"the option {option!r} of format 'millwheel' is missing")

    def _partitions(self) -> int:
        snapshot, given = self.options.get("snapshot"), self.options.get("partitions")
        if given is None:
            return PARTITIONS if snapshot else 1
        if not given.isdecimal() or int(given) < 1:
            raise UsageError(f"the option 'partitions' must be a number from 1, not {given!r}")
        if int(given) > 1 and not snapshot:
            raise UsageError(
                f"{given} partitions without a snapshot would read different moments: read inside "
                "`with millwheel.spark.snapshot(…) as held` with its options, or with one partition"
            )
        return int(given)


class MillwheelReader(DataSourceReader):
    """Plans the shares of a relation, and reads one share in each task."""

    def __init__(
        self,
        store: str,
        snapshot: str | None,
        relation: SparkRelation,
        schema: spark.StructType,
        filters: list[Condition],
        partitions: int,
    ) -> None:
        self._store = store
        self._snapshot = snapshot
        self._relation = relation
        self._filters = filters
        self._partitions = partitions
        self._columns = [_column(relation, field) for field in schema.fields]
        self._arrow = pa.schema(
            [
                pa.field(field.name, column.arrow, nullable=field.nullable)
                for field, column in zip(schema.fields, self._columns, strict=True)
            ]
        )

    def partitions(self) -> Sequence[InputPartition]:
        return list(shares(self._relation, self._partitions))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Share), partition
        query, values = select(self._relation, self._columns, partition, self._filters)
        with reading(self._store, snapshot=self._snapshot) as connection:
            if self._snapshot is None and self._relation.kind in "rp":
                # With a snapshot, its holder has already locked the tables.
                lock(connection, self._relation.pipeline, [self._relation.name])
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
                f"a numeric without precision in {self._relation.name!r} ({' or '.join(names)}) "
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
    """Return the number of rows for a batch of BATCH_BYTES, estimated from the last batch."""
    return max(1, min(MAX_ROWS, rows * GROWTH, rows * BATCH_BYTES // max(1, size)))


def _column(relation: SparkRelation, field: spark.StructField) -> SparkColumn:
    column = relation.column(field.name)
    if column.spark != field.dataType:
        raise UsageError(
            f"column {field.name!r} of {relation.name!r} ({column.declared}) is "
            f"{column.spark.simpleString()} in Spark; the schema says {field.dataType.simpleString()}"
        )
    return column
