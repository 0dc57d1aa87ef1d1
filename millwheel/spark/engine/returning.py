"""Moves a pipeline back from Spark: reads states and timers from the checkpoint of a query that has
ended."""

from __future__ import annotations

import json
import uuid
from typing import TYPE_CHECKING, Any

from millwheel.core.codec import slot_of
from millwheel.core.model import MIN_TIME
from millwheel.errors import UsageError
from millwheel.spark.engine.checkpoints import is_finished, lines_of
from millwheel.spark.engine.moving import COLUMNS, STAGING, Moving
from millwheel.spark.engine.operator import CELLS, TIMERS
from millwheel.spark.engine.query_progress import FIRST, QueryProgress
from millwheel.spark.engine.stream_rows import micros_of_watermark

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import DataFrame, SparkSession


def bring_back(
    spark: SparkSession,
    moving: Moving,
    progress: QueryProgress,
    pipeline: str,
    options: Mapping[str, str],
) -> int:
    """Put the state of a query into the engine's tables; returns the number of entries and timers.

    `UsageError` if the checkpoint is missing, or its last batch is not finished.
    """
    if progress.batch == FIRST:
        raise UsageError(
            f"pipeline {pipeline!r} has done no batch on Spark yet: run it first, with millwheel "
            "spark run"
        )
    offset, watermark = _end_of(spark, progress)
    moving.prepare_return()
    staged = str(uuid.uuid4())
    rows = _states(spark, progress)
    rows.select(*COLUMNS).write.format("millwheel").mode("append").options(
        pipeline=pipeline, staging=STAGING, batch=staged, **options
    ).save()
    return moving.back(progress, offset, watermark, staged)


def _end_of(spark: SparkSession, progress: QueryProgress) -> tuple[dict[str, Any], int]:
    batch = progress.batch
    lines = lines_of(spark, progress.checkpoint, f"offsets/{batch}")
    if lines is None:
        raise UsageError(
            f"the checkpoint {progress.checkpoint} has no batch {batch}: it is not there, or older "
            "than the tables. Restore it"
        )
    if not is_finished(spark, progress.checkpoint, batch):
        raise UsageError(
            f"batch {batch} is in the tables, and Spark has not finished it: it was killed between "
            "the two. Run the pipeline on Spark (millwheel spark run) for one more batch, and then "
            "return it"
        )
    _, found, offset = lines[0], json.loads(lines[1]), json.loads(lines[2])
    watermark = micros_of_watermark(found["batchWatermarkMs"])
    return offset, max(progress.floor, MIN_TIME if watermark is None else watermark)


def _states(spark: SparkSession, progress: QueryProgress) -> DataFrame:
    from pyspark.sql import functions as F

    slot = F.udf(lambda key: slot_of(key.encode()), "int")
    found: DataFrame | None = None
    metadata = spark.read.format("state-metadata").load(progress.checkpoint)
    for operator in sorted({row.operatorId for row in metadata.collect()}):
        for kind in (CELLS, TIMERS):
            rows = (
                spark.read.format("statestore")
                .option("operatorId", operator)
                .option("batchId", progress.batch)
                .option("stateVarName", kind)
                .load(progress.checkpoint)
            )
            entry, value = rows["user_map_key"], rows["user_map_value"]
            is_cell = kind == CELLS
            columns = rows.select(
                rows["key.receiver"].alias("receiver"),
                rows["key.key"].alias("key"),
                F.lit(kind).alias("kind"),
                entry["entry" if is_cell else "tag"].alias("name"),
                (value["value"] if is_cell else F.lit(None).cast("string")).alias("value"),
                (value["version"] if is_cell else F.lit(None).cast("int")).alias("version"),
                (F.lit(None).cast("bigint") if is_cell else value["due"]).alias("due"),
                slot(rows["key.key"]).alias("slot"),
            )
            found = columns if found is None else found.unionByName(columns)
    assert found is not None, "a query has operators"
    return found
