"""Measure the cost of work: time, and CPU of this process and of the server."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import psycopg

from bench.processes import postgres_cpu


@dataclass
class Cost:
    """The cost of processing records."""

    rate: float = 0.0
    """Records per second."""
    python_us: float = 0.0
    """CPU of this process, microseconds per record."""
    postgres_us: float = 0.0
    """CPU of all server processes, including folds and vacuum, microseconds per record."""
    wal_bytes: float = 0.0
    """Bytes of WAL per record."""

    @property
    def cpu_us(self) -> float:
        """CPU of both sides, microseconds per record."""
        return self.python_us + self.postgres_us

    def as_json(self) -> dict[str, Any]:
        """Return the figures for the results."""
        return {**asdict(self), "cpu_us": self.cpu_us}

    def __str__(self) -> str:
        return (
            f"{self.rate:9,.0f} records/s, {self.python_us:4.1f} us of Python and "
            f"{self.postgres_us:4.1f} us of Postgres a record, {self.wal_bytes:.0f} bytes of WAL"
        )


@contextmanager
def metered(url: str, records: int) -> Iterator[Cost]:
    """Measure the block; the yielded cost is filled in at its end."""
    cost = Cost()
    server, own, start = postgres_cpu(url), time.process_time(), time.perf_counter()
    wal = wal_position(url)
    yield cost
    seconds, own_end = time.perf_counter() - start, time.process_time()
    cost.rate = records / seconds
    cost.python_us = (own_end - own) / records * 1e6
    cost.postgres_us = (postgres_cpu(url) - server) / records * 1e6
    cost.wal_bytes = (wal_position(url) - wal) / records


def wal_position(url: str) -> float:
    """The end of the WAL, in bytes."""
    with psycopg.connect(url) as connection:
        row = connection.execute("SELECT pg_current_wal_insert_lsn() - '0/0'").fetchone()
    assert row is not None
    return float(row[0])
