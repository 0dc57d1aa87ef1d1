"""From the command ``millwheel spark report MODULE:FUNCTION`` to its first row, and the same on a
busy machine.

The function counts the rows of a table, as soon as it has a session. On a busy machine, a few
starts at a time have busy processes beside them, `LOAD` in all, and none may fail.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.fleet import ROOT
from bench.server import drop
from bench.state_rows import NAME, fill
from millwheel.spark import Job

LOAD = 20
"""Starts and busy processes at a time, on a busy machine."""
AT_ONCE = 4
"""Starts among them."""
ROWS = 1_000
LIMIT_SECONDS = 1_800.0
SAID = "first row after"


def job(job: Job) -> None:
    """Count the rows, and say when they are there."""
    print(SAID, job.table("states").count(), flush=True)


@contextmanager
def busy(count: int) -> Iterator[None]:
    """Run so many processes that do nothing but take time."""
    processes = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
        for process in processes:
            process.wait()


def start(url: str, directory: Path) -> float | None:
    """Seconds to the first row; None: the command failed."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [
        sys.executable, "-m", "millwheel", "spark", "report", "bench.spark_start:job",
        "--store", url, "--pipeline", NAME,
        "--output", str(directory / f"output_{threading.get_ident()}"),
    ]  # fmt: skip
    began = time.perf_counter()
    with (directory / "spark_start.log").open("ab") as log:
        process = subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=log, text=True
        )
        assert process.stdout is not None
        seconds = None
        for line in process.stdout:
            if line.startswith(SAID):
                seconds = time.perf_counter() - began
        process.wait(LIMIT_SECONDS)
    return seconds if process.returncode == 0 else None


def measure(url: str, directory: Path, *, rounds: int, busy_starts: int) -> dict[str, Any]:
    """Measure starts one by one, and several at a time on a busy machine."""
    asyncio.run(fill(url, ROWS))
    start(url, directory)  # the files of Spark are in memory from here on
    alone = [start(url, directory) for _ in range(rounds)]
    with busy(LOAD - AT_ONCE), ThreadPoolExecutor(AT_ONCE) as pool:
        loaded = list(pool.map(lambda _: start(url, directory), range(busy_starts)))
    drop(url, NAME)
    result = {
        "rounds": rounds,
        "seconds": _median(alone),
        "load": LOAD,
        "busy_starts": busy_starts,
        "busy_done": sum(seconds is not None for seconds in loaded),
        "busy_seconds": _median(loaded),
    }
    print("spark start:", json.dumps(result))
    return result


def _median(found: list[float | None]) -> float | None:
    return statistics.median([seconds for seconds in found if seconds is not None] or [0.0])
