"""One Spark session for all tests that need one."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator

import pytest

pytest.importorskip("pyspark", reason="the extra 'spark' is not installed")

from pyspark.sql import SparkSession

from millwheel.spark import register
from millwheel.spark.java import prepare_environment
from millwheel.spark.local_session import session
from tests.support.class_archives import WRITE_SECONDS, ClassArchive


@pytest.fixture(scope="package")
def class_archive() -> Iterator[ClassArchive | None]:
    """Spark's classes for a quick start, and an environment in which Spark starts; None: there is
    no place for an archive, or Spark is an installation of the user's."""
    environment = dict(os.environ)
    java = prepare_environment()
    archive = None
    try:
        if "SPARK_HOME" not in os.environ:
            archive = ClassArchive(java)
            os.environ["SPARK_HOME"] = str(archive.home)
    except OSError:
        archive = None
    yield archive
    os.environ.clear()
    os.environ.update(environment)


@pytest.fixture(scope="package")
def spark(
    class_archive: ClassArchive | None, request: pytest.FixtureRequest
) -> Iterator[SparkSession]:
    jvms: list[subprocess.Popen[bytes]] = []
    config = {"spark.sql.shuffle.partitions": "2"}
    if class_archive is not None:
        has_engine = any("test_engine_on_spark" in item.nodeid for item in request.session.items)
        # An archive of a few tests would lack the classes of the others.
        config |= class_archive.config(write=has_engine)
    with session(config=config, launched=jvms.append, stop_seconds=WRITE_SECONDS) as spark:
        register(spark)
        yield spark
    if class_archive is not None:
        class_archive.keep(*jvms)
