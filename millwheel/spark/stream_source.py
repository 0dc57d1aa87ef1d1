"""``spark.read.format("millwheel")``: a Python Data Source over one pipeline's relations.

Where the code runs (seen on Spark 4.1 and 4.3):

=========================  ===============================================================
``schema()``               at ``load()``, in a Python process that the JVM takes from a pool
``reader()``,              at planning, in such a process, maybe another one; the reader is
``partitions()``           pickled there, and the process then does other work
``read(partition)``        in a task's Python worker, once per partition
=========================  ===============================================================

None of these processes is the driver, and none lives as long as the read. Each opens its own
connection and joins the exported snapshot, which the driver holds
(:mod:`millwheel.spark.snapshots`).

Options: ``store`` (postgresql://…; default: MILLWHEEL_STORE), ``pipeline``, ``table``, ``snapshot``
(from :func:`millwheel.spark.snapshot`), ``partitions`` (4; 1 without a snapshot), ``columns`` and
``filters`` (see :meth:`millwheel.spark.Snapshot.options`). Option values are not part of Spark's
plans.

``columns`` exists because a Python source does not learn from Spark which columns it needs.
``filters`` exists because push-down (``pushFilters``) is broken in Spark 4.1 to 4.3: *all* queries
on one DataFrame share the resulting read. On 4.1.4 and 4.3.0, after ``df.where("a =
5").collect()``, ``df.count()`` is 1; and ``df.where("a = 1").union(df.where("a = 2"))`` returns the
second part twice. (Spark's master keeps it in the scan.) A test fails if ``pushFilters`` is
implemented here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property

import pyarrow as pa
from pyspark.sql import types as spark
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)

from millwheel.errors import MillwheelError, UsageError
from millwheel.spark.filters import WrittenFilter, parsed
from millwheel.spark.following import FollowingReader, RefusedReader, StreamOptions
from millwheel.spark.groups import Groups
from millwheel.spark.lookout import numbered_table
from millwheel.spark.reading import RelationRows
from millwheel.spark.relation import SparkRelation, describe
from millwheel.spark.sending import SendingWriter, SparkSender, StreamSendingWriter
from millwheel.spark.share_query import Share, condition, shares
from millwheel.spark.staging import StagingWriter
from millwheel.spark.store_sessions import reading, store_url

PARTITIONS = 4


class MillwheelSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return "millwheel"

    def schema(self) -> spark.StructType:
        self._given_partitions()  # so that load() already reports a bad option
        StreamOptions.of(self.options, PARTITIONS)
        relation = self._relation
        names = self._wanted() or [column.name for column in relation.columns]
        columns = [relation.column(name) for name in names]
        return spark.StructType(
            [spark.StructField(column.name, column.spark) for column in columns]
        )

    def reader(self, schema: spark.StructType) -> MillwheelReader:
        return MillwheelReader(self._rows(schema), self._partitions(), self._groups())

    def streamReader(self, schema: spark.StructType) -> DataSourceStreamReader:
        try:
            return self._following(schema)
        except MillwheelError as error:
            return RefusedReader(error)

    def _following(self, schema: spark.StructType) -> FollowingReader:
        rows = self._rows(schema)
        if rows.relation.numbered:
            return FollowingReader(rows, StreamOptions.of(self.options, self._given_partitions()))
        raise UsageError(
            f"the table {rows.relation.name!r} cannot be followed: its rows have no numbers. Write "
            "the rows to follow into a table of their own, with pipeline.sink(STREAM, Table(…, "
            "numbered=True))"
        )

    def writer(self, schema: spark.StructType, overwrite: bool) -> StagingWriter | SendingWriter:
        """Sends rows to a stream; or writes an aggregate's result, with options of its own."""
        if "staging" not in self.options:
            return SendingWriter(self._sender(schema, overwrite=overwrite))
        table = self._required("pipeline"), self._required("staging")
        json = self.options.get("json", "")
        return StagingWriter(
            store_url(self.options),
            table,
            self._required("batch"),
            schema.fieldNames(),
            json.split(",") if json else (),
        )

    def streamWriter(self, schema: spark.StructType, overwrite: bool) -> StreamSendingWriter:
        return StreamSendingWriter(self._sender(schema, overwrite=overwrite))

    def _sender(self, schema: spark.StructType, *, overwrite: bool) -> SparkSender:
        if overwrite:
            raise UsageError("records of a stream cannot be overwritten: write with mode('append')")
        return SparkSender(
            store_url(self.options),
            self._required("pipeline"),
            self._required("stream"),
            schema,
            id=self.options.get("id", ""),
            timestamp=self.options.get("timestamp"),
        )

    def _rows(self, schema: spark.StructType) -> RelationRows:
        if "_relation" not in self.__dict__:
            # The user has given a schema, which determines the columns to read.
            self._relation = self._describe(schema.fieldNames())
        filters = [condition(self._relation.column(one[0]), one) for one in self._filters()]
        snapshot = self.options.get("snapshot")
        return RelationRows(store_url(self.options), snapshot, self._relation, schema, filters)

    @cached_property
    def _relation(self) -> SparkRelation:
        """Looked up once; then it is in ``__dict__`` and pickled with this object."""
        return self._describe(self._wanted())

    def _describe(self, wanted: list[str] | None) -> SparkRelation:
        pipeline = self._required("pipeline")
        if stream := self.options.get("stream"):
            table = numbered_table(store_url(self.options), pipeline, stream)
        else:
            table = self._required("table")
        needed = [one[0] for one in self._filters()]
        if groups := self._groups():
            needed += [column for column, _ in groups.columns]
        only = None if wanted is None else [*wanted, *needed]
        with reading(store_url(self.options), snapshot=self.options.get("snapshot")) as connection:
            return describe(connection, pipeline, table, only)

    def _groups(self) -> Groups | None:
        given = self.options.get("groups")
        return Groups.parsed(given) if given else None

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
        """The number of shares of a batch; `UsageError` for several without a snapshot."""
        snapshot = self.options.get("snapshot")
        if not (snapshot or "partitions" in self.options):
            return 1
        partitions = self._given_partitions()
        if partitions > 1 and not snapshot:
            raise UsageError(
                f"{partitions} partitions without a snapshot would read different moments: read "
                "inside `with millwheel.spark.snapshot(…) as held` with its options, or with one "
                "partition"
            )
        return partitions

    def _given_partitions(self) -> int:
        given = self.options.get("partitions", str(PARTITIONS))
        if not given.isdecimal() or int(given) < 1:
            raise UsageError(f"the option 'partitions' must be a number from 1, not {given!r}")
        return int(given)


class MillwheelReader(DataSourceReader):
    """Plans the shares of a relation, and reads one share in each task."""

    def __init__(self, rows: RelationRows, partitions: int, groups: Groups | None) -> None:
        self._rows = rows
        self._partitions = partitions
        self._groups = groups

    def partitions(self) -> Sequence[InputPartition]:
        return list(shares(self._rows.relation, self._partitions, self._groups))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Share), partition
        with self._rows.connection() as connection:
            yield from self._rows.rows(connection, partition)
