"""Workers of a pipeline as processes, on a store of their own, killed and started again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import psycopg
from psycopg import sql

from millwheel.store import embedded


class Service:
    """Workers of a pipeline, as processes in a directory.

    Args:
        target: the pipeline, ``MODULE:PIPELINE``.
        schema: its name.
        variable: the variable of the environment that tells the module the directory.
    """

    def __init__(self, directory: Path, target: str, schema: str, variable: str) -> None:
        self.directory = directory
        self._target = target
        self._schema = schema
        self._variable = variable
        self.workers: list[subprocess.Popen[bytes]] = []
        self.kills = 0

    def start(self, *options: str) -> None:
        environment = {
            **os.environ,
            "PYTHONPATH": str(Path(__file__).parents[2]),
            self._variable: str(self.directory),
        }
        command = [
            sys.executable,
            "-m",
            "millwheel",
            "worker",
            self._target,
            "--store",
            "store",
            *options,
        ]
        with (self.directory / "workers.log").open("ab") as log:
            self.workers.append(
                subprocess.Popen(
                    command, cwd=self.directory, env=environment, stdout=log, stderr=log
                )
            )

    def kill(self, random: Random) -> None:
        victim = self.workers.pop(random.randrange(len(self.workers)))
        victim.send_signal(signal.SIGKILL)
        victim.wait()
        self.kills += 1
        self.start()

    def url(self) -> str:
        """The address of the store, once it is there."""
        deadline = time.monotonic() + 120
        while True:
            state = embedded.status(self.directory / "store")
            if state.running and state.url is not None:
                return state.url
            assert time.monotonic() < deadline, self.log()
            time.sleep(0.2)

    def read(self, query: str) -> list[tuple[Any, ...]]:
        try:
            with psycopg.connect(self.url(), autocommit=True) as connection:
                connection.execute(
                    sql.SQL("SET search_path = {}").format(sql.Identifier(self._schema))
                )
                return connection.execute(sql.SQL(query)).fetchall()
        except (psycopg.OperationalError, psycopg.errors.UndefinedTable):
            return []

    def wait(self, query: str, wanted: Callable[[Any], bool], seconds: float = 600) -> None:
        """Wait until the first value of a query is as wanted."""
        deadline = time.monotonic() + seconds
        while True:
            rows = self.read(query)
            if rows and wanted(rows[0][0]):
                return
            for worker in self.workers:
                assert worker.poll() is None, (worker.returncode, self.log())
            assert time.monotonic() < deadline, (query, rows, self.log())
            time.sleep(0.3)

    def log(self) -> str:
        return (self.directory / "workers.log").read_text()[-6000:]

    def stop(self) -> None:
        """End the workers in order."""
        for worker in self.workers:
            worker.send_signal(signal.SIGTERM)
        for worker in self.workers:
            worker.wait(60)
