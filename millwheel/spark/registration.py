from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register(spark: SparkSession) -> None:
    """Register ``spark.read.format("millwheel")`` with a session.

    ```python
    from pyspark.sql import SparkSession

    spark = SparkSession.builder.getOrCreate()
    register(spark)
    spark.read.format("millwheel").option("table", "airport_hour").load().show()
    ```
    """
    from millwheel.spark.stream_source import MillwheelSource

    spark.dataSource.register(MillwheelSource)
