"""``millwheel spark --prepare``: writes the archive of Spark's classes (`millwheel.spark.archive`)."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from pyspark.sql import Row
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.streaming.stateful_processor import (
    StatefulProcessor,
    StatefulProcessorHandle,
    TimerValues,
)

from millwheel.errors import UsageError
from millwheel.java import prepare_environment
from millwheel.spark.archive import WRITE_SECONDS, Archive, link_home, writing
from millwheel.spark.engine.query import SETTINGS
from millwheel.spark.session import JVM_OPTIONS, QUICK_COMPILER, session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SHAPE = "k LONG, at TIMESTAMP"
FILES = 3
"""Files, one a batch, of the streaming query."""

QUERY_SECONDS = 120
"""Longest time for these batches."""


def prepare_spark() -> Archive:
    """Write the archive for the Java and the PySpark of this environment, in place of an earlier one.

    Raises:
        UsageError: there is no Java, or no folder to write to, or SPARK_HOME names an installation of the user's own.
    """
    prepare_environment()
    try:
        archive = Archive.of()
    except PermissionError as error:
        raise UsageError(f"there is no folder for the archive: {error}") from error
    if archive is None:
        raise UsageError(
            "SPARK_HOME is set, and the archive is for the Spark of the package pyspark: unset it, or leave out --prepare"
        )
    archive.folder.mkdir(mode=0o700, exist_ok=True)
    link_home(archive.home)
    unfinished = archive.folder / f"unfinished-{os.getpid()}.jsa"
    try:
        with session(
            environment={"SPARK_HOME": str(archive.home)},
            config={JVM_OPTIONS: f"{QUICK_COMPILER} {writing(unfinished)}", **SETTINGS},
            stop_seconds=WRITE_SECONDS,
        ) as spark:
            load_classes(spark)
        if not unfinished.exists():
            raise UsageError(
                "this Java has written no archive, so Spark starts as before. Any OpenJDK of version 17 or later can: "
                "see the variable JAVA_HOME"
            )
        unfinished.replace(archive.file)
    finally:
        unfinished.unlink(missing_ok=True)
    return archive


def load_classes(spark: SparkSession) -> None:
    """Run one of each kind of work, so that the JVM has loaded the classes for it."""
    spark.dataSource.register(_Rows)
    rows = spark.read.format(_Rows.name()).load()
    rows.groupBy("k").count().join(rows, "k").orderBy("at").toPandas()
    with TemporaryDirectory(prefix="millwheel-spark-") as directory:
        rows.repartition(FILES).write.parquet(f"{directory}/rows")
        files = spark.readStream.schema(SHAPE).option("maxFilesPerTrigger", 1)
        query = (
            files.parquet(f"{directory}/rows")
            .withWatermark("at", "1 second")
            .groupBy("k")
            .transformWithState(
                _Last(), SHAPE, outputMode="Append", timeMode="EventTime", eventTimeColumnName="at"
            )
            .writeStream.option("checkpointLocation", f"{directory}/checkpoint")
            .trigger(availableNow=True)
            .foreachBatch(_collect)
            .start()
        )
        query.awaitTermination(QUERY_SECONDS)
        query.stop()


def _collect(batch: Any, _: int) -> None:
    batch.collect()


class _Rows(DataSource):
    """A few rows."""

    @classmethod
    def name(cls) -> str:
        return "millwheel_classes"

    def schema(self) -> str:
        return SHAPE

    def reader(self, schema: Any) -> DataSourceReader:
        return _Reader()


class _Reader(DataSourceReader):
    def partitions(self) -> Sequence[InputPartition]:
        return [InputPartition(part) for part in range(2)]

    def read(self, partition: InputPartition) -> Iterator[tuple[int, datetime]]:
        for number in range(100):
            yield number % 7, datetime.fromtimestamp(number, UTC)


class _Last(StatefulProcessor):
    """Keeps the last row of each key in a map, and sets a timer."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._handle = handle
        self._kept = handle.getMapState("kept", "k LONG", "at TIMESTAMP")

    def handleInputRows(
        self, key: Any, rows: Iterator[Row], timerValues: TimerValues
    ) -> Iterator[Row]:
        for row in rows:
            self._kept.updateValue((row.k,), (row.at,))
            self._handle.registerTimer(int(row.at.timestamp() * 1000) + 1000)
        for (k,), (at,) in self._kept.iterator():
            yield Row(k=k, at=at)

    def close(self) -> None:
        pass
