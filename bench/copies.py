"""Savepoints and forks of a pipeline with a gigabyte of state: how long a fork takes beside plain
``CREATE TABLE AS`` with the same indexes, and how much a savepoint slows an engine at its limit."""

from __future__ import annotations

import asyncio
import statistics
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import psycopg
from psycopg import sql

from bench.endless import Endless
from bench.lag import TrackedStore, Tracking
from bench.looks import ADD_STATES
from bench.server import drop, fresh_store, make_wal_files, settle
from bench.snapshot import rows_by_second
from bench.workload import pipeline
from millwheel.core.quantities import byte_text
from millwheel.runtime.engine import Engine
from millwheel.store.console.administration import schema_size
from millwheel.store.copies.copying import CopyMarks, copy_pipeline
from millwheel.store.copies.layout import layout_of

SCHEMA = "bench_copies"
COPY = "bench_copies@one"
PLAIN = "bench_copies_plain"
WARM_SECONDS = 10
QUIET_SECONDS = 20
LARGE_BLOCKS = 100
"""Smaller tables are not copied by the yardstick."""

WAL_FILES_OF_A_SAVEPOINT = 120
"""For a savepoint, and the engine beside it, with some to spare."""

STATES = 7_000_000
"""A gigabyte with the indexes."""


async def filled(url: str, states: int) -> TrackedStore:
    """Return a store whose pipeline has been deployed, with so many further states."""
    await (await fresh_store(url, SCHEMA)).close()
    store = TrackedStore(url, SCHEMA, Tracking())
    await store.open()
    engine = Engine(pipeline(SCHEMA, Endless()), store)
    await engine.start()
    await asyncio.sleep(1)
    await engine.stop()
    with psycopg.connect(url, autocommit=True) as connection:
        text = "SELECT name FROM {}.computation WHERE kind = 'computation' ORDER BY id LIMIT 1"
        name = connection.execute(sql.SQL(text).format(sql.Identifier(SCHEMA))).fetchone()
        assert name is not None
        params = {"first": 1_000_000, "last": 1_000_000 + states, "computation": name[0]}
        connection.execute(sql.SQL(ADD_STATES).format(schema=sql.Identifier(SCHEMA)), params)
    settle(url, SCHEMA, "state")
    return store


def plain_copy(url: str) -> float:
    """Measure the seconds of ``CREATE TABLE AS`` for the large tables, and of their indexes."""
    with psycopg.connect(url) as connection:
        layout = layout_of(connection, SCHEMA)
        connection.rollback()
        large = {table.name for table in layout.tables if table.blocks >= LARGE_BLOCKS}
        connection.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(PLAIN)))
        connection.execute(sql.SQL("SET search_path = {}").format(sql.Identifier(PLAIN)))
        connection.commit()
        began = time.perf_counter()
        for name in sorted(large):
            connection.execute(
                sql.SQL("CREATE TABLE {} AS TABLE {}").format(
                    sql.Identifier(name), sql.Identifier(SCHEMA, name)
                )
            )
        for key in layout.keys:
            if key.of_table in large:
                table = sql.Identifier(key.of_table)
                text = sql.SQL("ALTER TABLE {} ADD {}").format(table, sql.SQL(key.definition))
                connection.execute(text)
        for index in layout.indexes:
            if index.of_table in large:
                table = sql.Identifier(index.of_table)
                text = sql.SQL("CREATE INDEX ON {} {}").format(table, sql.SQL(index.rest))
                connection.execute(text)
        connection.commit()
        return time.perf_counter() - began


def copy(url: str) -> float:
    """Measure the seconds of a copy by the product."""
    began = time.perf_counter()
    copy_pipeline(url, SCHEMA, COPY, CopyMarks())
    return time.perf_counter() - began


class Pace(NamedTuple):
    """How fast an engine at its limit is."""

    rate: float
    """Records per second."""
    p99: float
    """Of the seconds from a bundle's opening until it is durable."""


class Load:
    """An engine at its limit, and savepoints of it that another process makes."""

    def __init__(self, url: str, store: TrackedStore) -> None:
        self._url, self._bundles = url, store._tracking.bundles
        self._engine = Engine(pipeline(SCHEMA, Endless()), store)

    async def savepoints(self, rounds: int) -> dict[str, Any]:
        """Compare the time of each savepoint with the times before and after it."""
        await self._engine.start()
        await rows_by_second(self._engine, WARM_SECONDS)
        times, rates, p99s = [], [], []
        before = await self._quiet()
        for number in range(rounds):
            seconds, during = await self._savepoint(f"s{number}")
            after = await self._quiet()
            times.append(seconds)
            rates.append(during.rate / statistics.mean((before.rate, after.rate)))
            p99s.append(during.p99 / statistics.mean((before.p99, after.p99)))
            print(
                f"savepoint under load: {seconds:.0f} s, rate {rates[-1]:.2f}, p99 {p99s[-1]:.2f}"
            )
            before = after
        await self._engine.stop()
        for number in range(rounds):
            drop(self._url, f"{SCHEMA}@s{number}")
        return {
            "seconds": statistics.median(times),
            "rate": before.rate,
            "rate_ratio": statistics.median(rates),
            "p99": before.p99,
            "p99_ratio": statistics.median(p99s),
        }

    async def _quiet(self) -> Pace:
        self._bundles.clear()
        return self._found(await rows_by_second(self._engine, QUIET_SECONDS))

    async def _savepoint(self, label: str) -> tuple[float, Pace]:
        command = ["-m", "millwheel", "--store", self._url, "savepoint", SCHEMA, label, "--yes"]
        self._bundles.clear()
        rows: list[float] = []
        began = time.perf_counter()
        process = await asyncio.create_subprocess_exec(sys.executable, *command)
        ended = asyncio.create_task(process.wait())
        while not ended.done():
            rows += await rows_by_second(self._engine, 1)
        seconds = time.perf_counter() - began
        assert ended.result() == 0
        return seconds, self._found(rows)

    def _found(self, rows: list[float]) -> Pace:
        bundles = sorted(self._bundles)
        return Pace(statistics.mean(rows), bundles[len(bundles) * 99 // 100])


async def measure(url: str, directory: Path, *, states: int, rounds: int) -> dict[str, Any]:
    """Measure both; the directory is not needed."""
    store = await filled(url, states)
    size = schema_size(url, SCHEMA)[1]
    both = []
    for _ in range(rounds):
        plain = plain_copy(url)
        drop(url, PLAIN)
        both.append((copy(url), plain))
        drop(url, COPY)
        print(f"copy of {byte_text(size)}: {both[-1][0]:.1f} s, plain {plain:.1f} s")
    load = {"first": await Load(url, store).savepoints(1)}
    make_wal_files(url, WAL_FILES_OF_A_SAVEPOINT * rounds)
    load["ready"] = await Load(url, store).savepoints(rounds)
    await store.close()
    found = {
        "bytes": size,
        "seconds": min(seconds for seconds, _ in both),
        "ratio": statistics.median(seconds / plain for seconds, plain in both),
        "load": load,
    }
    drop(url, SCHEMA)
    print("copies:", found)
    return found
