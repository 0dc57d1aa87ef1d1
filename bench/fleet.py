"""Worker processes, measured from outside by the rows they store and by their CPU."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import psycopg
from psycopg import sql

from bench.processes import cpu_of, postgres_cpu
from bench.server import drop
from millwheel.store.console.migrate import migrate

ROOT = Path(__file__).resolve().parent.parent
PATIENCE_SECONDS = 300.0
QUIET = timedelta(seconds=2)
"""Time without placement events after which placement has settled; several periods of the
balancer."""


class Stretch(NamedTuple):
    """Figures of the middle part of a run."""

    per_second: float
    """Source rows per second."""
    python: float
    """Cores used by the workers."""
    postgres: float
    """Cores used by Postgres."""


PROGRESS = """
SELECT (c.acked -> l.id::text ->> 0)::bigint
FROM {interval} AS k
JOIN {log} AS l ON l.interval_id = k.id AND l.source IS NOT NULL
CROSS JOIN LATERAL (
    SELECT acked FROM {commits} AS r WHERE r.interval_id = k.id ORDER BY n DESC LIMIT 1
) AS c
"""


class Fleet:
    """Worker processes of one pipeline of `bench.shared`, on a fresh schema."""

    def __init__(self, url: str, directory: Path, pipeline: str, **environment: str) -> None:
        self.url = url
        self.name = f"bench_{pipeline}"
        self._pipeline = pipeline
        self._log = directory / f"{self.name}.log"
        self.environment = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "MILLWHEEL_STORE": url,
            "BENCH_NAME": self.name,
            "BENCH_FILES": str(directory),
            **environment,
        }
        self.processes: list[subprocess.Popen[bytes]] = []
        drop(url, self.name)
        migrate(url, self.name)
        self._connection = psycopg.connect(url, autocommit=True)
        self._progress = sql.SQL(PROGRESS).format(
            interval=sql.Identifier(self.name, "key_interval"),
            log=sql.Identifier(self.name, "log"),
            commits=sql.Identifier(self.name, "commit_record"),
        )

    def close(self) -> None:
        """Stop all workers, and close the connection to the store."""
        self.end()
        self._connection.close()

    def end(self) -> None:
        """Stop all workers."""
        for process in self.processes:
            process.send_signal(signal.SIGTERM)
        for process in self.processes:
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self.processes.clear()

    def start(self, number: int, *, until_done: bool = False) -> None:
        """Start N workers, and wait until each has its share."""
        options = ["--until-done"] if until_done else []
        with self._log.open("ab") as log:
            for _ in range(number):
                self.processes.append(
                    subprocess.Popen(
                        [sys.executable, "-m", "millwheel.cli.main", "worker",
                         f"bench.shared:{self._pipeline}", *options],
                        cwd=ROOT, env=self.environment, stdout=log, stderr=log,
                    )
                )  # fmt: skip
        self.wait_until(lambda: self._is_placed(len(self.processes)), "placement settled")

    def _is_placed(self, number: int) -> bool:
        """Whether each interval is at its wanted owner, each worker has some, and placement has
        settled."""
        rows = self.ask(
            "SELECT count(DISTINCT owner), count(*) FILTER (WHERE owner IS NULL OR "
            "owner IS DISTINCT FROM wanted_by OR split_at IS NOT NULL) FROM {}",
            "key_interval",
        )
        quiet = self.ask(
            "SELECT max(at) < clock_timestamp() - %s FROM {}", "placement_event", QUIET
        )
        return bool(rows[0] == (number, 0) and quiet[0][0])

    def rows_done(self) -> int:
        """Return the number of acknowledged source rows."""
        return sum(row[0] or 0 for row in self._connection.execute(self._progress).fetchall())

    def over(self, first: int, last: int) -> Stretch:
        """Measure the run from row `first` to row `last` of the sources."""
        self.wait_until(lambda: self.rows_done() >= first, f"{first} rows")
        rows, begin, (python, postgres) = self.rows_done(), time.perf_counter(), self.cpu()
        self.wait_until(lambda: self.rows_done() >= last, f"{last} rows")
        done, end, (python_then, postgres_then) = self.rows_done(), time.perf_counter(), self.cpu()
        return Stretch(
            (done - rows) / (end - begin),
            (python_then - python) / (end - begin),
            (postgres_then - postgres) / (end - begin),
        )

    def wait_until(self, condition: Callable[[], bool], what: str) -> None:
        """Wait for a condition.

        Raises:
            RuntimeError: a worker ended with an error, or the condition was not met in time.
        """
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not condition():
            for process in self.processes:
                if process.poll() not in (None, 0, -signal.SIGKILL):
                    raise RuntimeError(f"a worker ended:\n{self._log.read_text()[-3000:]}")
            if time.monotonic() > deadline:
                raise RuntimeError(f"not within {PATIENCE_SECONDS:.0f} s: {what}")
            time.sleep(0.05)

    def ask(self, query: str, table: str, *parameters: Any) -> list[Any]:
        """Query a table or view of the pipeline; no rows while it does not exist."""
        text = sql.SQL(query).format(sql.Identifier(self.name, table))
        with contextlib.suppress(psycopg.errors.UndefinedTable):
            return self._connection.execute(text, parameters).fetchall()
        return []

    def cpu(self) -> tuple[float, float]:
        """Return the CPU seconds of the workers and of Postgres so far."""
        return sum(cpu_of(process.pid) for process in self.processes), postgres_cpu(self.url)


@contextlib.contextmanager
def fleet(url: str, directory: Path, pipeline: str, **environment: str) -> Iterator[Fleet]:
    """Create a fleet, and close it at the end of the block."""
    made = Fleet(url, directory, pipeline, **environment)
    try:
        yield made
    finally:
        made.close()
