"""The results of queries that run as Spark's SQL, as rows for the tables of the store."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import reduce
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from millwheel.errors import UserCodeError
from millwheel.sinks import Table
from millwheel.spark.engine.column_input import FORMAT, ColumnSource, queries_of
from millwheel.spark.engine.input import parcel_batch
from millwheel.spark.engine.plan import planned
from millwheel.spark.engine.result_writer import ResultSink
from millwheel.spark.engine.stream_rows import (
    SCHEMA,
    TABLE,
    Packing,
    StreamRow,
    mark_of,
    table_row,
)
from millwheel.spark.queries.frames import Frames
from millwheel.spark.queries.query_plan import TableWrite, written_tables
from millwheel.spark.queries.query_steps import EVENT, MARK, SEQ

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def rows_by_sql(
    spark: SparkSession, target: str, options: Mapping[str, str], delay: str
) -> DataFrame:
    """The parcels with the rows of all tables.

    Args:
        options: further options of the source.
        delay: how far Spark's watermark is behind the promise.
    """
    spark.dataSource.register(ColumnSource)
    spark.dataSource.register(ResultSink)
    rows = spark.readStream.format(FORMAT).options(target=target, **options).load()
    plan = queries_of(target)
    frames = Frames(rows.withWatermark(MARK, delay), plan)
    made = [
        frames.of(write.stream).mapInArrow(parcels_of(target, write), SCHEMA)
        for write in plan.writes
    ]
    return reduce(lambda a, b: a.union(b), made)


def parcels_of(
    target: str, write: TableWrite
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """The function that makes rows of a table from those of a stream, where tasks run."""

    def pack(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        node = planned(target).steps[write.writer].node
        stream, use = written_tables(node)[write.place]
        table = use.sink
        assert isinstance(table, Table)
        for batch in batches:
            packing = Packing(1)
            for row in batch.to_pylist():
                seq = row.pop(SEQ)
                del row[EVENT]
                value = stream.value_type(**row)
                values = _values(table, use.row(value) if use.row else value)
                made = StreamRow(b"", TABLE, table_row(table, values), 0, False, seq)
                packing.add_result(0, made)
            if parcels := list(packing.take(mark_of(0))):
                yield parcel_batch(parcels)

    return pack


def _values(table: Table[Any], row: Any) -> Any:
    try:
        return table.values(row)
    except (TypeError, AttributeError) as error:
        raise UserCodeError(f"table {table.name!r}: {error}") from error
