"""Spark elsewhere: a master and a worker, or a Connect server, that do not have the user's code."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

from millwheel.errors import UsageError
from millwheel.spark.shipping import top_level, zipped
from millwheel.store import embedded
from tests.support.spark_cluster import ROOT, SparkProcesses


@pytest.fixture
def processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SparkProcesses]:
    from millwheel.spark.java import prepare_environment

    for name in ("JAVA_HOME", "PATH"):
        monkeypatch.setenv(name, os.environ.get(name, ""))
    prepare_environment()
    with closing(SparkProcesses(tmp_path)) as made:
        yield made


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A package of the user's, in which one module needs another."""
    package = tmp_path / "mine" / "wheel_cluster"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "units.py").write_text("def hours(minutes):\n    return minutes / 60\n")
    (package / "jobs.py").write_text(
        textwrap.dedent("""
            from pyspark.sql import functions as F
            from wheel_cluster.units import hours

            def in_hours(minutes):
                return hours(minutes)

            def report(job):
                convert = F.udf(in_hours, "double")
                rows = job.table("airport_hour").select(convert("minutes").alias("hours"))
                (job.output / "total").write_text(str(rows.agg(F.sum("hours")).first()[0]))
            """)
    )
    return package


@pytest.fixture
def store(tmp_path: Path) -> Iterator[str]:
    server = embedded.start(tmp_path / "store")
    with psycopg.connect(server.url, autocommit=True) as connection:
        connection.execute("CREATE SCHEMA flights")
        connection.execute("CREATE TABLE flights.commit_record (n bigint)")
        connection.execute(
            "CREATE TABLE flights.airport_hour AS SELECT n AS minutes FROM generate_series(1, 600) "
            "AS n"
        )
    yield server.url
    embedded.remove(tmp_path / "store")


@pytest.mark.soak
@pytest.mark.spark
@pytest.mark.parametrize("kind", ["standalone", pytest.param("connect", marks=pytest.mark.soak)])
def test_a_cluster_gets_the_users_code(
    processes: SparkProcesses, package: Path, store: str, tmp_path: Path, kind: str
) -> None:
    """A function of the user's package runs in executors, which read from the store."""
    if kind == "standalone":
        where = ["--master", processes.standalone(), "--conf", "spark.executor.memory=512m"]
        where += ["--conf", "spark.driver.host=127.0.0.1"]
    else:
        pytest.importorskip("grpc", reason="the extra 'connect' is not installed")
        where = ["--remote", processes.connect()]
    command = [
        sys.executable, "-m", "millwheel", "spark", "report", "wheel_cluster.jobs:report",
        "--store", store, "--pipeline", "flights", "--output", str(tmp_path / "out"), *where,
    ]  # fmt: skip
    done = subprocess.run(
        command, cwd=package.parent, env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True, timeout=240, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert float((tmp_path / "out" / "total").read_text()) == 600 * 601 / 2 / 60


def test_the_code_of_a_package_is_zipped_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import zipfile

    import tests.spark.service

    del tests.spark.service
    top = top_level("tests.spark.service")
    assert top is not None
    names = zipfile.ZipFile(zipped(top, tmp_path)).namelist()
    assert {"tests/__init__.py", "tests/spark/service.py"} <= set(names)
    assert top_level("psycopg.errors") is None, "it is installed"
    assert top_level("millwheel.spark") is None
    monkeypatch.setattr("millwheel.spark.shipping.MOST_BYTES", 1000)
    with pytest.raises(UsageError, match="install it on the executors in place of sending it"):
        zipped(top, tmp_path)
