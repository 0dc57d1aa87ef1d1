from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from millwheel.core.model import SLOTS
from millwheel.spark.engine.buckets import BUCKETS_PER_TASK
from millwheel.spark.engine.checkpoints import is_finished, offset_of, query_of
from millwheel.spark.engine.column_input import queries_of
from millwheel.spark.engine.input import FORMAT, InjectedSource
from millwheel.spark.engine.kind_of_query import runs_as_sql
from millwheel.spark.engine.moved_keys import START_COLUMNS, START_SCHEMA, packing
from millwheel.spark.engine.operator import LevelOperator
from millwheel.spark.engine.plan import SparkPlan
from millwheel.spark.engine.query_progress import FIRST, StoredQuery
from millwheel.spark.engine.query_rows import rows_by_sql
from millwheel.spark.engine.result_writer import ResultSink
from millwheel.spark.engine.staged_results import Results
from millwheel.spark.engine.stream_rows import SCHEMA
from millwheel.spark.queries.frames import SETTINGS as MEANING
from millwheel.spark.snapshots import snapshot

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, GroupedData, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

DELAY = "1 millisecond"
"""How far Spark's watermark is behind the promise: Spark takes an event time that equals it for
late."""

SETTINGS = {
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
}
"""Operators with maps and timers need this store of state; a change log keeps a commit from copying
all of it."""


WAITING = "Waiting for data to arrive"


@dataclass(frozen=True)
class BatchDone:
    number: int
    rows: int | None
    """Rows in tables; None: they were there already."""


def planned_rows(
    spark: SparkSession,
    target: str,
    plan: SparkPlan,
    options: Mapping[str, str],
    *,
    floor: int,
    start: DataFrame | None = None,
) -> DataFrame:
    """The parcels that leave the last operator.

    Args:
        options: further options of the source; ``buckets`` is that of the checkpoint.
        floor: the least low watermark, in microseconds.
        start: the table ``spark_start``, states and timers to begin with; None: there are none, or
            they were taken over.
    """
    spark.dataSource.register(InjectedSource)
    spark.dataSource.register(ResultSink)
    buckets = int(options["buckets"])
    rows = spark.readStream.format(FORMAT).options(target=target, **options).load()
    rows = rows.withWatermark("mark", DELAY)
    for level in range(1, plan.depth + 1):
        rows = rows.groupBy("receiver", "bucket").transformWithState(
            LevelOperator(target, level, buckets, floor),
            SCHEMA,
            outputMode="Append",
            timeMode="EventTime",
            initialState=None if start is None else _of_level(start, plan, level, buckets),
            eventTimeColumnName="mark",
        )
    return rows


def _of_level(start: DataFrame, plan: SparkPlan, level: int, buckets: int) -> GroupedData:
    names = [name for name, own in plan.levels.items() if own == level]
    rows = start.where(start.receiver.isin(names)).select(*START_COLUMNS)
    return rows.mapInArrow(packing(buckets), START_SCHEMA).groupBy("receiver", "bucket")


def buckets_of(spark: SparkSession, checkpoint: str, last: int) -> int:
    """The number of buckets of each step: that of the checkpoint, or for a new one, a number for
    the tasks that an operator has.

    Args:
        last: the last batch in the tables; `FIRST`: there is none.
    """
    return _buckets(spark, _last_offset(spark, checkpoint, last))


def _last_offset(spark: SparkSession, checkpoint: str, last: int) -> dict[str, Any] | None:
    """The offset of the last batch; None: the checkpoint is new."""
    return offset_of(spark, checkpoint, max(last, FIRST + 1))


def _buckets(spark: SparkSession, offset: Mapping[str, Any] | None) -> int:
    if offset is not None:
        return int(offset["buckets"])
    tasks = int(spark.conf.get("spark.sql.shuffle.partitions") or 1)
    return min(SLOTS, BUCKETS_PER_TASK * tasks)


class TakenOver(Exception):
    """Ends the run of the first batch, if Spark begins another one: that belongs to the next
    run."""


class QueryRun:
    """The runs of a query in this process.

    Args:
        checkpoint: where Spark keeps the state.
        options: options of the source.
        ends: end as soon as the present input is processed.
        by_classes: run queries as the classes that they were compiled to, and not as Spark's SQL.
    """

    def __init__(
        self,
        spark: SparkSession,
        target: str,
        plan: SparkPlan,
        stored: StoredQuery,
        results: Results,
        checkpoint: str,
        options: Mapping[str, str],
        *,
        ends: bool,
        by_classes: bool = False,
    ) -> None:
        self._spark = spark
        self._target = target
        self._plan = plan
        self._stored = stored
        self._results = results
        self._checkpoint = checkpoint
        self._options = dict(options)
        self._ends = ends
        before = stored.load()
        self._floor = before.floor
        offset = _last_offset(spark, checkpoint, before.batch)
        self._options["buckets"] = str(_buckets(spark, offset))
        self._as_sql = runs_as_sql(queries_of(target), offset, before, by_classes=by_classes)
        if before.begins_with is not None:
            self._options["begins_with"] = json.dumps(before.begins_with)

    def take_over(self, options: Mapping[str, str], done: Callable[[BatchDone], None]) -> bool:
        """Do the first batch of a pipeline that was moved, with the states and timers that were put
        aside; False: nothing is new, and the present input was to be processed.

        It is a run of its own: Spark would read them again for each batch. It is over when the
        checkpoint has them, and not when the tables have its results: a process that is killed in
        between takes them over again.
        """
        from pyspark.errors import StreamingQueryException

        if is_finished(self._spark, self._checkpoint, FIRST + 1):
            self._stored.load().refuse_foreign_checkpoint(self._stored.pipeline)
        if self._has_taken_over():
            self._stored.forget_start()
            return True
        first = threading.Event()

        def note_done(batch: BatchDone) -> None:
            done(batch)
            first.set()

        # The states of ten million keys take an hour, and tasks begin to read until the end.
        with snapshot(self._stored.store, self._stored.pipeline, most_seconds=None) as held:
            chosen = held.options("spark_start", with_store=False) | dict(options)
            start = self._spark.read.format("millwheel").options(**chosen).load()
            query = self._start(start, note_done)
            try:
                while not (first.is_set() and self._has_taken_over()):
                    if query.awaitTermination(1):
                        break
            except StreamingQueryException:
                if not self._has_taken_over():
                    raise
            finally:
                query.stop()
        if not self._has_taken_over():
            return False
        self._stored.forget_start()
        return True

    def _has_taken_over(self) -> bool:
        stored = self._stored.load()
        return (
            stored.batch > FIRST
            and stored.id == query_of(self._spark, self._checkpoint)
            and is_finished(self._spark, self._checkpoint, FIRST + 1)
        )

    def until_end(
        self, done: Callable[[BatchDone], None], idle: Callable[[], None] = lambda: None
    ) -> None:
        """Run until the input ends, or for ever; `idle` is called while nothing is new."""
        query = self._start(None, done)
        try:
            while not query.awaitTermination(1):  # a signal is looked at between two
                if query.status["message"] == WAITING:
                    idle()
        finally:
            query.stop()

    def _start(self, start: DataFrame | None, done: Callable[[BatchDone], None]) -> StreamingQuery:
        """Start a run; `done` is called after each batch, in another thread."""
        known = threading.Event()
        ids: list[str] = []

        def take(batch: DataFrame, number: int) -> None:
            if start is not None and number > FIRST + 1:
                raise TakenOver
            known.wait()
            promised = self._promised(number) if self._as_sql else None
            done(BatchDone(number, self._results.take(batch, ids[0], number, promised)))

        rows = self._rows(start)
        writer = rows.writeStream.outputMode("append")
        writer = writer.option("checkpointLocation", self._checkpoint)
        if self._ends:
            writer = writer.trigger(availableNow=True)
        query = writer.foreachBatch(take).start()
        ids.append(query.id)
        known.set()
        return query

    def _rows(self, start: DataFrame | None) -> DataFrame:
        if not self._as_sql:
            return planned_rows(
                self._spark, self._target, self._plan, self._options, floor=self._floor,
                start=start,
            )  # fmt: skip
        for name, value in MEANING.items():
            self._spark.conf.set(name, value)
        return rows_by_sql(self._spark, self._target, self._options, DELAY)

    def _promised(self, batch: int) -> int:
        """The low watermark at the end of a batch that was begun."""
        offset = offset_of(self._spark, self._checkpoint, batch)
        assert offset is not None
        return int(offset["mark"])
