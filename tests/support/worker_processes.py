"""Worker processes on a Postgres of their own, to be killed and frozen by a test."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import psycopg

from millwheel.store import embedded
from millwheel.store.console.migrate import migrate

LEASE_SECONDS = 3.0


class Workers:
    """The worker processes of one pipeline, and their store.

    Args:
        target: the pipeline, as the command line takes it.
        environment: further variables.
        options: further options of ``millwheel worker``.
    """

    def __init__(
        self,
        directory: Path,
        name: str,
        target: str,
        environment: Mapping[str, str] | None = None,
        options: tuple[str, ...] = (),
    ) -> None:
        self.name = name
        self._log = directory / "workers.log"
        self._directory = directory / "store"
        self.url = embedded.start(self._directory).url
        migrate(self.url, name)
        self._command = [sys.executable, "-m", "millwheel.cli.main", "worker", target, *options]
        self._environment = {**os.environ, "MILLWHEEL_STORE": self.url, **(environment or {})}
        self.running: list[subprocess.Popen[bytes]] = []
        self.errors: list[str] = []

    def start(self) -> None:
        """Start another worker."""
        with self._log.open("ab") as log:
            self.running.append(
                subprocess.Popen(
                    self._command, env=self._environment, stdin=subprocess.DEVNULL, stdout=log,
                    stderr=log
                )
            )  # fmt: skip

    def kill(self, one: subprocess.Popen[bytes]) -> None:
        """Kill a worker; if it has ended by itself, note an error."""
        if one.poll() is not None:
            self.errors.append(f"a worker ended by itself, with exit code {one.returncode}")
        one.kill()
        one.wait()
        self.running.remove(one)

    def replace(self, choice: random.Random) -> None:
        """Kill a worker, and start another one."""
        self.kill(choice.choice(self.running))
        self.start()

    async def freeze(self, choice: random.Random) -> None:
        """Make a zombie: freeze a worker until another one has taken over, and wake it."""
        one = choice.choice(self.running)
        one.send_signal(signal.SIGSTOP)
        self.start()
        await asyncio.sleep(LEASE_SECONDS + choice.uniform(0.5, 2.0))
        one.send_signal(signal.SIGCONT)
        await asyncio.sleep(0.5)
        if one.poll() is not None:  # it has noticed that its intervals have other owners
            self.running.remove(one)
        else:
            self.kill(one)

    @property
    def alive(self) -> bool:
        """Whether a worker runs."""
        return any(one.poll() is None for one in self.running)

    def query(self, text: str) -> list[tuple[Any, ...]]:
        """The rows of a query, in which SCHEMA stands for the pipeline's; none before there is a
        table."""
        with suppress(psycopg.errors.UndefinedTable), psycopg.connect(self.url) as connection:
            return connection.execute(text.replace("SCHEMA", self.name).encode()).fetchall()
        return []

    def last_words(self) -> list[str]:
        """What workers have written that is no event: why they ended."""
        return [
            line
            for line in self._log.read_text(errors="replace").splitlines()
            if not line.startswith("{")
        ]

    def tail(self) -> str:
        """The last lines of the workers' log."""
        return self._log.read_text(errors="replace")[-4000:]

    def stop(self) -> None:
        """End the workers."""
        for one in self.running:
            one.send_signal(signal.SIGCONT)
            one.terminate()
        for one in self.running:
            one.wait()
        self.running.clear()

    def end(self) -> None:
        """End the workers and their store."""
        self.stop()
        embedded.remove(self._directory)
