from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register(spark: SparkSession) -> None:
    """Register ``spark.read.format("millwheel")`` with a session."""
    from millwheel.spark.source import MillwheelSource

    spark.dataSource.register(MillwheelSource)
