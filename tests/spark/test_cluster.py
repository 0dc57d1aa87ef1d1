"""Spark elsewhere: a master and a worker, or a Connect server, that do not have the user's code."""

from __future__ import annotations

import os
import re
import socket
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
CONNECT = "org.apache.spark.sql.connect.service.SparkConnectServer"
ROOT = Path(__file__).resolve().parents[2]
"""The folder of millwheel, which must be installed on executors."""


class Processes:
    """Processes of Spark on this machine, which have millwheel and not the user's code."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._stack = ExitStack()
        self._environment = {
            **os.environ,
            "SPARK_NO_DAEMONIZE": "1",
            "SPARK_LOCAL_IP": "127.0.0.1",
            "PYSPARK_PYTHON": sys.executable,
            "PYTHONPATH": str(ROOT),
        }

    def standalone(self) -> str:
        """Start a master and a worker; returns the master's address."""
        master = self._start(
            "master", r"Starting Spark master at (spark://\S+)", "spark-class", f"{CLASSES}.master.Master",
            "--host", "127.0.0.1", "--port", "0", "--webui-port", "0",
        )  # fmt: skip
        self._start(
            "worker", r"Successfully registered with (master)", "spark-class", f"{CLASSES}.worker.Worker",
            "--host", "127.0.0.1", "--cores", "2", "--memory", "1g", "--webui-port", "0",
            "--work-dir", str(self._directory / "work"), master,
        )  # fmt: skip
        return master

    def connect(self) -> str:
        """Start a Connect server; returns its address."""
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self._start(
            "connect", r"Spark Connect server (started)", "spark-submit", "--master", "local[2]",
            "--driver-memory", "700m", "--conf", f"spark.connect.grpc.binding.port={port}",
            "--conf", "spark.ui.enabled=false", "--class", CONNECT, "spark-internal",
        )  # fmt: skip
        return f"sc://127.0.0.1:{port}"

    def _start(self, name: str, sign: str, program: str, *command: str) -> str:
        """Start a process, and wait for a line of its log."""
        log = self._directory / f"{name}.log"
        path = Path(pyspark.__file__).parent / "bin" / program
        with log.open("wb") as output:
            process = subprocess.Popen(
                [str(path), *command], env=self._environment, stdout=output, stderr=output
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
def processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Processes]:
    from millwheel.java import prepare_environment

    for name in ("JAVA_HOME", "PATH"):
        monkeypatch.setenv(name, os.environ.get(name, ""))
    prepare_environment()
    with closing(Processes(tmp_path)) as made:
        yield made


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A package of the user's, in which one module needs another."""
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
                convert = F.udf(in_hours, "double")
                rows = job.table("airport_hour").select(convert("minutes").alias("hours"))
                (job.output / "total").write_text(str(rows.agg(F.sum("hours")).first()[0]))
            """
        )
    )
    return package


@pytest.fixture
def store(tmp_path: Path) -> Iterator[str]:
    server = embedded.start(tmp_path / "store")
    with psycopg.connect(server.url, autocommit=True) as connection:
        connection.execute("CREATE SCHEMA flights")
        connection.execute("CREATE TABLE flights.commit_record (n bigint)")
        connection.execute(
            "CREATE TABLE flights.airport_hour AS SELECT n AS minutes FROM generate_series(1, 600) AS n"
        )
    yield server.url
    embedded.remove(tmp_path / "store")


@pytest.mark.spark
@pytest.mark.parametrize("kind", ["standalone", pytest.param("connect", marks=pytest.mark.soak)])
def test_a_cluster_gets_the_users_code(
    processes: Processes, package: Path, store: str, tmp_path: Path, kind: str
) -> None:
    """A function of the user's package runs in executors, which read from the store."""
    if kind == "standalone":
        where = ["--master", processes.standalone(), "--conf", "spark.executor.memory=512m"]
        where += ["--conf", "spark.driver.host=127.0.0.1"]
    else:
        pytest.importorskip("grpc", reason="the extra 'connect' is not installed")
        where = ["--remote", processes.connect()]
    command = [
        sys.executable, "-m", "millwheel", "spark", "wheel_cluster.jobs:report", "--store", store,
        "--pipeline", "flights", "--output", str(tmp_path / "out"), *where,
    ]  # fmt: skip
    done = subprocess.run(
        command, cwd=package.parent, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True,
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
