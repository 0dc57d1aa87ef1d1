"""Processes of Spark on this machine: a master and workers, or a Connect server."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import pyspark

CLASSES = "org.apache.spark.deploy"
CONNECT = "org.apache.spark.sql.connect.service.SparkConnectServer"
ROOT = Path(__file__).resolve().parents[2]
"""The folder of millwheel, which must be installed on executors."""


class SparkProcesses:
    """Processes of Spark, which have millwheel and not the user's code."""

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

    def standalone(self, workers: int = 1) -> str:
        """Start a master and workers of two cores; returns the master's address."""
        master = self._start(
            "master", r"Starting Spark master at (spark://\S+)", "spark-class",
            f"{CLASSES}.master.Master",
            "--host", "127.0.0.1", "--port", "0", "--webui-port", "0",
        )  # fmt: skip
        for number in range(workers):
            self._start(
                f"worker_{number}", r"Successfully registered with (master)", "spark-class",
                f"{CLASSES}.worker.Worker", "--host", "127.0.0.1", "--cores",
                str(2 // workers or 1),
                "--memory", "1g", "--webui-port", "0", "--work-dir", str(self._directory / "work"),
                master,
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
