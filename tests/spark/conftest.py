"""One Spark session for all tests that need one."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="the extra 'spark' is not installed")

from pyspark.sql import SparkSession

from millwheel.spark import register
from millwheel.spark.engine import running
from millwheel.spark.engine.query import SETTINGS
from millwheel.spark.launch import Cluster
from tests.support.servers import quick_directory


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


@pytest.fixture
def directory(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    for name in ("NEXMARK_DIR", "NEXMARK_LATENESS", "MILLWHEEL_TEST_FILE", "JAVA_HOME", "PATH"):
        monkeypatch.setenv(name, os.environ.get(name, ""))
    made = Path(tempfile.mkdtemp(prefix="millwheel-engine-", dir=quick_directory()))
    made.chmod(0o755)
    yield made
    shutil.rmtree(made, ignore_errors=True)


@pytest.fixture
def stateful(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> Iterator[SparkSession]:
    """The session of the tests as one of the command: with the settings of a query with state, in
    one task of each operator; and commands in this process use it."""
    settings = {**SETTINGS, "spark.sql.shuffle.partitions": "1"}
    for name, value in settings.items():
        spark.conf.set(name, value)

    @contextmanager
    def present(
        cluster: Cluster, store: str, *_: object, **__: object
    ) -> Iterator[tuple[SparkSession, dict[str, str]]]:
        assert cluster.config == SETTINGS
        yield spark, {"store": store}

    monkeypatch.setattr(running, "launched", present)
    yield spark
    for name in settings:
        spark.conf.unset(name)
