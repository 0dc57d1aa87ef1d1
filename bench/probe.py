"""Periodic bare commits during a measurement, which show the disk's latency at the time."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg

PAUSE_SECONDS = 0.02


@contextmanager
def probed(url: str) -> Iterator[list[float]]:
    """Commit one row fifty times a second during the block; yield the list of latencies, in
    milliseconds.

    They count from when each commit was due, as for the measured records, which do not wait for
    each other.
    """
    found: list[float] = []
    ending = threading.Event()

    def commit() -> None:
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("CREATE TABLE IF NOT EXISTS bench_probe (number integer)")
            due = time.perf_counter()
            while not ending.wait(max(0.0, due - time.perf_counter())):
                connection.execute("INSERT INTO bench_probe VALUES (%s)", [len(found)])
                found.append((time.perf_counter() - due) * 1e3)
                due += PAUSE_SECONDS
            connection.execute("DROP TABLE bench_probe")

    probing = threading.Thread(target=commit)
    probing.start()
    try:
        yield found
    finally:
        ending.set()
        probing.join()
