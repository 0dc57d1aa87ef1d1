"""The query of a pipeline: the sources, one operator a level, and the tables."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from millwheel.spark.engine.input import FORMAT, InjectedSource
from millwheel.spark.engine.operator import LevelOperator
from millwheel.spark.engine.output import Results
from millwheel.spark.engine.plan import SparkPlan
from millwheel.spark.engine.rows import SCHEMA

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

DELAY = "1 millisecond"
"""How far Spark's watermark is behind the promise: Spark takes an event time that equals it for late."""

SETTINGS = {
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
}
"""Operators with maps and timers need this store of state; a change log keeps a commit from copying all of it."""


@dataclass(frozen=True)
class BatchDone:
    """A batch that is done."""

    number: int
    rows: int | None
    """Rows in tables; None: they were there already."""


def planned_rows(
    spark: SparkSession, target: str, plan: SparkPlan, options: Mapping[str, str]
) -> DataFrame:
    """The rows that leave the last operator."""
    spark.dataSource.register(InjectedSource)
    rows = spark.readStream.format(FORMAT).options(target=target, **options).load()
    rows = rows.withWatermark("mark", DELAY)
    for level in range(1, plan.depth + 1):
        rows = rows.groupBy("receiver", "key").transformWithState(
            LevelOperator(target, level),
            SCHEMA,
            outputMode="Append",
            timeMode="EventTime",
            eventTimeColumnName="mark",
        )
    return rows


def start(
    rows: DataFrame,
    results: Results,
    checkpoint: str,
    *,
    until_caught_up: bool,
    done: Callable[[BatchDone], None],
) -> StreamingQuery:
    """Start the query.

    Args:
        until_caught_up: end as soon as the input that is there is processed.
        done: called after each batch, in another thread.
    """
    known = threading.Event()
    ids: list[str] = []

    def take(batch: DataFrame, number: int) -> None:
        known.wait()
        done(BatchDone(number, results.take(batch, ids[0], number)))

    writer = rows.writeStream.outputMode("append").option("checkpointLocation", checkpoint)
    if until_caught_up:
        writer = writer.trigger(availableNow=True)
    query = writer.foreachBatch(take).start()
    ids.append(query.id)
    known.set()
    return query
