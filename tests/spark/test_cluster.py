"""A Spark cluster of processes: a master and a worker that do not have the user's code."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import psycopg
import pyspark
import pytest

from millwheel.errors import UsageError
from millwheel.spark.shipping import top_level, zipped
from millwheel.store import embedded

CLASSES = "org.apache.spark.deploy"


class Standalone:
    """A master and a worker on this machine.

    Args:
        root: the folder of millwheel, which is installed on executors.
    """

    def __init__(self, directory: Path, root: Path) -> None:
        self._directory = directory
        self._stack = ExitStack()
        self._environment = {
            **os.environ,
            "SPARK_NO_DAEMONIZE": "1",
            "SPARK_LOCAL_IP": "127.0.0.1",
            "PYSPARK_PYTHON": sys.executable,
            "PYTHONPATH": str(root),
        }
        self.url = self._start(
            "master", r"Starting Spark master at (spark://\S+)", f"{CLASSES}.master.Master",
            "--host", "127.0.0.1", "--port", "0", "--webui-port", "0",
        )  # fmt: skip
        self._start(
            "worker", r"Successfully registered with (master)", f"{CLASSES}.worker.Worker",
            "--host", "127.0.0.1", "--cores", "2", "--memory", "1g", "--webui-port", "0",
            "--work-dir", str(directory / "work"), self.url,
        )  # fmt: skip

    def _start(self, name: str, sign: str, *command: str) -> str:
        """Start a process, and wait for a line of its log."""
        log = self._directory / f"{name}.log"
        program = Path(pyspark.__file__).parent / "bin" / "spark-class"
        with log.open("wb") as output:
            process = subprocess.Popen(
                [str(program), *command], env=self._environment, stdout=output, stderr=output
            )
        self._stack.callback(process.wait)
        self._stack.callback(process.terminate)
        deadline = time.monotonic() + 90
        while not (found := re.search(sign, log.read_text())):
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.1)
        return found[1]

    def close(self) -> None:
        self._stack.close()


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Standalone]:
    from millwheel.java import prepare_environment

    for name in ("JAVA_HOME", "PATH"):
        monkeypatch.setenv(name, os.environ.get(name, ""))
    prepare_environment()
    with closing(Standalone(tmp_path, Path(__file__).resolve().parents[2])) as made:
        yield made


@pytest.mark.spark
def test_a_cluster_gets_the_users_code(cluster: Standalone, tmp_path: Path) -> None:
    """A function of the user's package runs in executors, which read from the store."""
    package = tmp_path / "mine" / "wheel_cluster"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "units.py").write_text("def hours(minutes):\n    return minutes / 60\n")
    (package / "jobs.py").write_text(
        textwrap.dedent(
            """
            from pyspark.sql import functions as F
            from wheel_cluster.units import hours

            def in_hours(minutes):
                return hours(minutes)

            def report(job):
                in_hours_ = F.udf(in_hours, "double")
                rows = job.table("airport_hour").select(in_hours_("minutes").alias("hours"))
                (job.output / "total").write_text(str(rows.agg(F.sum("hours")).first()[0]))
            """
        )
    )
    store = tmp_path / "store"
    server = embedded.start(store)
    try:
        with psycopg.connect(server.url, autocommit=True) as connection:
            connection.execute("CREATE SCHEMA flights")
            connection.execute("CREATE TABLE flights.commit_record (n bigint)")
            connection.execute(
                "CREATE TABLE flights.airport_hour AS SELECT n AS minutes FROM generate_series(1, 600) AS n"
            )
        command = [
            sys.executable, "-m", "millwheel", "spark", "wheel_cluster.jobs:report", "--store", server.url,
            "--pipeline", "flights", "--output", str(tmp_path / "out"), "--master", cluster.url,
            "--conf", "spark.executor.memory=512m", "--conf", "spark.driver.host=127.0.0.1",
        ]  # fmt: skip
        root = str(Path(__file__).resolve().parents[2])
        done = subprocess.run(
            command, cwd=package.parent, env={**os.environ, "PYTHONPATH": root}, capture_output=True,
            text=True, timeout=240, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert float((tmp_path / "out" / "total").read_text()) == 600 * 601 / 2 / 60
    finally:
        embedded.remove(store)


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
