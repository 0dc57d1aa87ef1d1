"""Aggregates that follow a running engine, both killed again and again: ``python -m
tests.spark.service [--kills 20]``.

A process appends flights to a file. Two workers count them by airport and hour, with late flights
that amend closed hours, and ``millwheel spark aggregate`` keeps sums by month in a table and in
Parquet files. Workers and the process with Spark are killed, with all their children. In the end
hours, months and files must equal plain arithmetic.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import psycopg
import pyarrow.dataset as ds

from examples.flights import SETTINGS, build, replay
from examples.flights.months import by_month
from millwheel import Pipeline
from millwheel.aggregates import Parquet, months
from millwheel.settings import Settings
from tests.support.worker_processes import LEASE_SECONDS, Workers

PIPELINE = "tests.spark.service:pipeline"
FLIGHTS = 336_776
BATCHES = "SELECT sum(batch)::bigint FROM SCHEMA.aggregates"
SUMS = ("flights", "cancelled", "delay_minutes", "delayed_15")

Month = tuple[str, str]
"""Airport and month."""


def pipeline() -> Pipeline:
    """The flights of the example, over a file that grows, with a second aggregate."""
    place = Path(os.environ["FLIGHTS"])
    settings = Settings(
        bundle_records=SETTINGS.bundle_records,
        chunk_records=SETTINGS.chunk_records,
        lease_seconds=LEASE_SECONDS,
        placement_seconds=0.5,
    )
    made = build(place / "flights.jsonl", follow=True, settings=settings)
    made.spark(
        by_month,
        name="month_files",
        follows="pane_log",
        reads="airport_hour",
        group=("origin", months("hour")),
        to=Parquet(place / "months"),
    )
    return made


class Feed(threading.Thread):
    """Appends flights to the file, and keeps their sums."""

    def __init__(self, path: Path, count: int, rate: float) -> None:
        super().__init__(daemon=True)
        self._rate = rate
        self._path = path
        self._count = count
        self.hours: dict[Month, list[int]] = defaultdict(lambda: [0, 0, 0, 0])
        path.touch()

    def run(self) -> None:
        with replay.prepare().open("rb") as rows, self._path.open("ab", buffering=0) as file:
            began = time.monotonic()
            for number in range(self._count):
                line = rows.readline()
                self._add(json.loads(line))
                file.write(line)
                if number % 100 == 0:
                    time.sleep(max(0.0, began + number / self._rate - time.monotonic()))
            for number, origin in enumerate(sorted({origin for origin, _ in self.hours})):
                file.write(self._last(origin, number))

    def _add(self, flight: dict[str, Any]) -> None:
        sums = self.hours[flight["origin"], flight["scheduled_at"][:13]]
        delay = flight.get("dep_delay")
        sums[0] += 1
        sums[1] += bool(flight.get("cancelled"))
        sums[2] += delay or 0
        sums[3] += delay is not None and delay >= 15

    def _last(self, origin: str, number: int) -> bytes:
        """A flight so late that all hours before are closed; its own stays open."""
        far = "2014-06-01T00:00:00Z"
        flight = {
            "row": 10_000_000 + number, "seen_at": far, "scheduled_at": far, "origin": origin,
            "dest": "-",
            "carrier": "-", "flight": 0,
        }  # fmt: skip
        return json.dumps(flight).encode() + b"\n"

    def months(self) -> dict[Month, tuple[int, ...]]:
        """By airport and month: the number of hours, and their sums."""
        found: dict[Month, list[int]] = defaultdict(lambda: [0, 0, 0, 0, 0])
        for (origin, hour), sums in self.hours.items():
            month = found[origin, hour[:7] + "-01"]
            month[0] += 1
            for place, value in enumerate(sums, 1):
                month[place] += value
        return {key: tuple(value) for key, value in found.items()}


class SparkProcess:
    """``millwheel spark aggregate`` in a process group of its own."""

    def __init__(self, environment: dict[str, str], log: Path) -> None:
        self._environment = environment
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, *options: str) -> None:
        words = ["spark", "aggregate", PIPELINE, *options]
        command = [sys.executable, "-m", "millwheel.cli.main", *words]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                command, env=self._environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True,
            )  # fmt: skip

    def kill(self) -> None:
        """Kill it with the JVM and all Python processes."""
        assert self._process is not None
        assert self._process.poll() is None, self.tail()
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    @property
    def lives(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def wait(self, seconds: float) -> int:
        """Wait until it ends by itself; returns its exit code."""
        assert self._process is not None
        return self._process.wait(seconds)

    def tail(self) -> str:
        return self._log.read_text(errors="replace")[-4000:]


def run(
    directory: Path,
    kills: int,
    *,
    crashes: int = 0,
    seed: int,
    flights: int,
    rate: float,
    say: Callable[[str], None],
) -> list[str]:
    """Run the service; returns the differences.

    Args:
        kills: how often Spark is killed.
        crashes: how often the server is, before.
        flights: how many are appended to the file.
        rate: how many in a second.
    """
    choice = random.Random(seed)
    environment = {"FLIGHTS": str(directory)}
    feed = Feed(directory / "flights.jsonl", flights, rate)
    workers = Workers(directory, "flights", PIPELINE, environment)
    spark = SparkProcess(
        {**os.environ, **environment, "MILLWHEEL_STORE": workers.url}, directory / "spark.log"
    )
    try:
        workers.start()
        workers.start()
        feed.start()
        while not workers.query("SELECT 1 FROM SCHEMA.pane_log LIMIT 1"):
            time.sleep(0.2)
        spark.start()
        for number in range(1, crashes + 1):
            _crash(workers, choice)
            assert spark.lives, spark.tail()
            say(f"{number} of {crashes} crashes of the server; {_batches(workers)} batches")
        for number in range(1, kills + 1):
            if choice.random() < 0.25:  # amid the start of Spark
                time.sleep(choice.uniform(1, 8))
            else:  # amid batches
                before = _batches(workers)
                deadline = time.monotonic() + 90
                more = choice.randint(1, 4)
                while _batches(workers) < before + more and time.monotonic() < deadline:
                    time.sleep(0.1)
                time.sleep(choice.uniform(0, 5))
            spark.kill()
            spark.start()
            if number % 2:
                workers.replace(choice)
            batches = _batches(workers)
            say(f"{number} of {kills} kills; {len(feed.hours)} hours; {batches} batches")
        feed.join()
        wrong = _wait_for_hours(workers, feed)
        time.sleep(2.0)
        spark.kill()
        spark.start("--until-caught-up")
        if code := spark.wait(300.0):
            wrong.append(f"the last run ended with {code}: {spark.tail()}")
        ((amended,),) = workers.query("SELECT count(*) FROM SCHEMA.pane_log WHERE late")
        wrong += _differences(workers, feed, directory)
        each = workers.query("SELECT name, batch FROM SCHEMA.aggregates ORDER BY 1")
        say(f"{flights} flights, {amended} amended panes, batches {each}: {len(wrong)} differences")
        return [*workers.errors, *wrong]
    finally:
        if spark._process is not None and spark._process.poll() is None:
            spark.kill()
        workers.end()


def _crash(workers: Workers, choice: random.Random) -> None:
    """Kill a session of a task of Spark, which takes all others with it, and empties unlogged
    tables."""
    before, more = _batches(workers), choice.randint(1, 3)
    while _batches(workers) < before + more:
        time.sleep(0.1)
    pids: list[tuple[Any, ...]] = []
    while not pids:
        pids = workers.query(
            "SELECT pid FROM pg_stat_activity WHERE application_name = 'millwheel spark' AND query "
            "LIKE 'COPY%staging%'"
        )
    os.kill(choice.choice(pids)[0], signal.SIGKILL)
    while True:
        with suppress(psycopg.OperationalError):
            workers.query("SELECT 1")
            return
        time.sleep(0.1)


def _batches(workers: Workers) -> int:
    """How many batches of both aggregates are done."""
    ((batches,),) = workers.query(BATCHES) or [(0,)]
    return int(batches or 0)


def _wait_for_hours(workers: Workers, feed: Feed) -> list[str]:
    """Wait until the engine has counted all flights."""
    expected = {key: tuple(sums) for key, sums in feed.hours.items()}
    deadline = time.monotonic() + 180
    while True:
        rows = workers.query(
            "SELECT origin, to_char(hour AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24'), flights, "
            "cancelled, delay_minutes, delayed_15 FROM SCHEMA.airport_hour"
        )
        found = {(origin, hour): tuple(sums) for origin, hour, *sums in rows}
        if found == expected:
            return []
        if time.monotonic() > deadline:
            wrong = [key for key in expected if found.get(key) != expected[key]]
            return [f"hour {key}: {found.get(key)}, not {expected[key]}" for key in wrong[:10]]
        time.sleep(0.5)


def _differences(workers: Workers, feed: Feed, directory: Path) -> list[str]:
    expected = feed.months()
    names = ("hours", *SUMS)
    table = {
        (origin, str(month)): tuple(sums)
        for origin, month, *sums in workers.query(
            f"SELECT origin, month, {', '.join(names)} FROM SCHEMA.airport_month"
        )
    }
    files = {
        (str(row["origin"]), str(row["month"])): tuple(row[name] for name in names)
        for row in ds.dataset(directory / "months", partitioning="hive").to_table().to_pylist()
    }
    return [
        f"{what}, {key}: {found.get(key)}, not {expected.get(key)}"
        for what, found in (("table", table), ("files", files))
        for key in sorted(found.keys() | expected.keys())
        if found.get(key) != expected.get(key)
    ]


def main() -> int:
    """Run it in a directory of its own."""
    parser = argparse.ArgumentParser(description="Aggregates by Spark under kills.")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--crashes", type=int, default=0, help="of the server, before the kills")
    parser.add_argument("--flights", type=int, default=FLIGHTS)
    parser.add_argument("--rate", type=float, default=400.0, help="flights a second")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="millwheel-spark-service-"))
    directory.chmod(0o755)
    try:
        wrong = run(
            directory,
            given.kills,
            crashes=given.crashes,
            seed=given.seed,
            flights=given.flights,
            rate=given.rate,
            say=print,
        )
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    print("\n".join(wrong) or "all as arithmetic says")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
