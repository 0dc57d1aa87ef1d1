"""Moves a pipeline back from Spark: reads states and timers from the checkpoint of a query that has
ended."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

from millwheel.core.model import MIN_TIME
from millwheel.errors import UsageError
from millwheel.spark.engine.buckets import DIRECTORY, PAGES
from millwheel.spark.engine.checkpoints import is_finished, offset_of, watermark_of
from millwheel.spark.engine.kind_of_query import refuse_sql
from millwheel.spark.engine.moved_keys import RETURN_SCHEMA, unpacked
from millwheel.spark.engine.moving import STAGING, Moving
from millwheel.spark.engine.query_progress import FIRST, QueryProgress

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
    refuse_sql(offset, pipeline)
    moving.prepare_return()
    staged = str(uuid.uuid4())
    rows = _states(spark, progress)
    rows.write.format("millwheel").mode("append").options(
        pipeline=pipeline, staging=STAGING, batch=staged, **options
    ).save()
    return moving.back(progress, offset, watermark, staged)


def _end_of(spark: SparkSession, progress: QueryProgress) -> tuple[dict[str, Any], int]:
    batch = progress.batch
    offset = offset_of(spark, progress.checkpoint, batch)
    if offset is None:
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
    watermark = watermark_of(spark, progress.checkpoint, batch)
    return offset, max(progress.floor, MIN_TIME if watermark is None else watermark)


def _states(spark: SparkSession, progress: QueryProgress) -> DataFrame:
    found: DataFrame | None = None
    metadata = spark.read.format("state-metadata").load(progress.checkpoint)
    for operator in sorted({row.operatorId for row in metadata.collect()}):
        pages = (
            spark.read.format("statestore")
            .option("operatorId", operator)
            .option("batchId", progress.batch)
            .option("stateVarName", PAGES)
            .load(progress.checkpoint)
        )
        rows = pages.where(pages["user_map_key.page"] > DIRECTORY).select(
            pages["key.receiver"].alias("receiver"),
            pages["user_map_value.content"].alias("content"),
        )
        found = rows if found is None else found.unionByName(rows)
    assert found is not None, "a query has operators"
    return found.mapInArrow(unpacked, RETURN_SCHEMA)
