"""One Spark session for all tests that need one."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

pytest.importorskip("pyspark", reason="the extra 'spark' is not installed")

from pyspark.sql import SparkSession

from millwheel.spark import register


@pytest.fixture(scope="package")
def spark() -> Iterator[SparkSession]:
    from millwheel.spark.java import prepare_environment
    from millwheel.spark.local_session import session

    environment = dict(os.environ)
    prepare_environment()
    try:
        with session(config={"spark.sql.shuffle.partitions": "2"}) as spark:
            register(spark)
            yield spark
    finally:
        os.environ.clear()
        os.environ.update(environment)
