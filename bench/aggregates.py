"""How far an aggregate by Spark is behind a live engine: from a pane's commit until its group is
replaced.

Flights are appended to a file at a steady pace. A worker closes hourly windows of them, and
``millwheel spark aggregate`` keeps sums by airport and month. Twenty times a second the number of
panes written is compared with the number that the aggregate has read, which is stored with its
result.
"""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
import threading
import time
from bisect import bisect_left
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql

from bench.fleet import ROOT
from bench.server import drop
from examples.flights import build, replay
from millwheel import Pipeline
from millwheel.store.console.migrate import migrate

RATE = 1_000
"""Flights appended a second."""
WARM_SECONDS = 45.0
"""Time for the start of Spark, which is not measured."""
LOOK_SECONDS = 0.05
NAME = "flights"

LOOK = """
SELECT
    (SELECT coalesce(sum(rows), 0)::bigint FROM {rows} WHERE table_name = 'pane_log'),
    (SELECT coalesce(sum(value::bigint), 0)::bigint FROM jsonb_each_text(a.read)),
    a.batch
FROM {aggregate} AS a
"""


def pipeline() -> Pipeline:
    """The flights over a file that grows."""
    return build(Path(os.environ["FLIGHTS"]), follow=True)


def measure(url: str, directory: Path, *, seconds: float) -> dict[str, Any]:
    """Follow for so many seconds; the delay of each pane, and the time of each batch."""
    drop(url, NAME)
    migrate(url, NAME)
    path = directory / "flights.jsonl"
    path.write_bytes(b"")
    environment = {
        **os.environ, "FLIGHTS": str(path), "MILLWHEEL_STORE": url, "PYTHONPATH": str(ROOT),
    }  # fmt: skip
    log = (directory / "aggregates.log").open("wb")
    over = threading.Event()
    feed = threading.Thread(target=_feed, args=(path, over))
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "millwheel", *command], env=environment, stdout=log, stderr=log
        )
        for command in (
            ["worker", "bench.aggregates:pipeline"],
            ["spark", "aggregate", "bench.aggregates:pipeline"],
        )
    ]
    try:
        feed.start()
        looks = _looks(url, WARM_SECONDS + seconds)
    finally:
        over.set()
        feed.join()
        for process in processes:
            process.send_signal(signal.SIGTERM)
            process.wait()
        log.close()
    return _figures([look for look in looks if look[0] > looks[0][0] + WARM_SECONDS])


def _feed(path: Path, over: threading.Event) -> None:
    """Append flights at an even pace."""
    with replay.prepare().open("rb") as rows, path.open("ab", buffering=0) as file:
        began = time.monotonic()
        for number, line in enumerate(rows):
            file.write(line)
            if number % 50 == 0 and over.wait(max(0.0, began + number / RATE - time.monotonic())):
                return


def _looks(url: str, seconds: float) -> list[tuple[float, int, int, int]]:
    """Time, panes written, panes read and number of batches, again and again."""
    text = sql.SQL(LOOK).format(
        rows=sql.Identifier(NAME, "numbered_rows"), aggregate=sql.Identifier(NAME, "aggregate")
    )
    found: list[tuple[float, int, int, int]] = []
    end = time.monotonic() + seconds
    with psycopg.connect(url, autocommit=True) as connection:
        while time.monotonic() < end or not found:
            row = connection.execute(text).fetchone()
            if row is not None:
                found.append((time.monotonic(), *row))
            time.sleep(LOOK_SECONDS)
    return found


def _figures(looks: list[tuple[float, int, int, int]]) -> dict[str, Any]:
    """Delays of panes, and the time between batches, in seconds."""
    times = [look[0] for look in looks]
    written, read = [look[1] for look in looks], [look[2] for look in looks]
    delays = sorted(
        times[bisect_left(read, pane)] - times[bisect_left(written, pane)]
        for pane in range(written[0] + 1, read[-1] + 1)
    )
    batches = looks[-1][3] - looks[0][3]
    result = {
        "panes": len(delays),
        "batches": batches,
        "batch_seconds": (times[-1] - times[0]) / max(1, batches),
        "delay_p50_seconds": statistics.median(delays),
        "delay_p95_seconds": delays[int(len(delays) * 0.95)],
        "panes_per_second": len(delays) / (times[-1] - times[0]),
    }
    print("aggregates:", json.dumps(result))
    return result
