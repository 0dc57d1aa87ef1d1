"""Savepoints and forks of a pipeline with a gigabyte of state: how long a fork takes beside plain
``CREATE TABLE AS`` with the same indexes, and what a savepoint costs an engine under full load."""

from __future__ import annotations

import asyncio
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql

from bench.endless import Endless
from bench.lag import TrackedStore, Tracking
from bench.looks import ADD_STATES
from bench.server import drop, fresh_store, settle
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
BEFORE_SECONDS = 30
LARGE_BLOCKS = 100
"""Smaller tables are not copied by the yardstick."""

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


async def under_load(url: str, store: TrackedStore) -> dict[str, Any]:
    """Measure the rate, and the time from a bundle's opening until it is durable, before and during
    a savepoint that another process makes."""
    bundles = store._tracking.bundles
    engine = Engine(pipeline(SCHEMA, Endless()), store)
    await engine.start()
    await rows_by_second(engine, WARM_SECONDS)
    bundles.clear()
    before = await rows_by_second(engine, BEFORE_SECONDS)
    usual, during = sorted(bundles), []
    bundles.clear()
    command = ["-m", "millwheel", "--store", url, "savepoint", SCHEMA, "one", "--yes"]
    began = time.perf_counter()
    process = await asyncio.create_subprocess_exec(sys.executable, *command)
    ended = asyncio.create_task(process.wait())
    while not ended.done():
        during += await rows_by_second(engine, 1)
    seconds = time.perf_counter() - began
    assert ended.result() == 0
    held = sorted(bundles)
    await engine.stop()
    await store.close()
    return {
        "seconds": seconds,
        "rate_before": statistics.mean(before),
        "rate_ratio": statistics.mean(during) / statistics.mean(before),
        "p99_before": usual[len(usual) * 99 // 100],
        "p99_ratio": held[len(held) * 99 // 100] / usual[len(usual) * 99 // 100],
    }


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
    found = {
        "bytes": size,
        "seconds": min(seconds for seconds, _ in both),
        "ratio": statistics.median(seconds / plain for seconds, plain in both),
        **{f"load_{name}": value for name, value in (await under_load(url, store)).items()},
    }
    drop(url, COPY)
    drop(url, SCHEMA)
    print("copies:", found)
    return found
