"""A million rows of state read by Spark in two partitions, beside ``COPY`` of the same view over one connection.

Spark counts the rows and the bytes of their values, so that each value reaches it. The start of Spark is not in the time;
the first read, which starts its Python processes, is not either. Then a worker of another pipeline on the same server
takes records as fast as it can, alone and while Spark reads the rows again and again.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql

from bench import on_spark
from bench.fleet import ROOT
from bench.server import drop, fresh_store
from millwheel.java import prepare_environment
from millwheel.spark import register, snapshot
from millwheel.spark.session import session
from millwheel.store.migrate import migrate

NAME = "bench_states"
OTHER = on_spark.NAME
KEYS, RECORDS = 10_000, 3_000_000
ROUNDS_MEANWHILE = 3
SECONDS_ALONE = 10.0


async def fill(url: str, rows: int) -> None:
    """Make a pipeline with so many rows of state."""
    store = await fresh_store(url, NAME)
    await store.close()
    with psycopg.connect(url, autocommit=True) as connection:
        schema = sql.Identifier(NAME)
        connection.execute(
            sql.SQL(
                "INSERT INTO {}.computation (name, kind, version, state, upstream, paused) "
                "VALUES ('keep_balance', 'computation', 1, '{{}}', '[]', false)"
            ).format(schema)
        )
        connection.execute(
            sql.SQL(
                "INSERT INTO {0}.state (slot, computation, key, entry, value, version) "
                "SELECT (n::bigint * 7919 %% 65536)::integer, (SELECT id FROM {0}.computation), n::text, '', "
                "jsonb_build_object('payments', n, 'total', n * 100), 1 FROM generate_series(1, %s) AS n"
            ).format(schema),
            [rows],
        )
        connection.execute(sql.SQL("VACUUM ANALYZE {}.state").format(schema))


def by_copy(url: str) -> float:
    """Seconds of COPY of the view over one connection."""
    began = time.perf_counter()
    with psycopg.connect(url) as connection, connection.cursor() as cursor:
        text = sql.SQL("COPY (SELECT computation, key, entry, value FROM {}.states) TO STDOUT")
        size = 0
        with cursor.copy(text.format(sql.Identifier(NAME))) as copy:
            for block in copy:
                size += len(block)
    return time.perf_counter() - began


def by_spark(spark: Any, url: str) -> float:
    """Seconds of a read by two tasks."""
    from pyspark.sql import functions as F

    began = time.perf_counter()
    with snapshot(url, NAME) as held:
        chosen = held.options("states", columns=["computation", "key", "entry", "value"])
        rows = spark.read.format("millwheel").options(**chosen, partitions="2").load()
        rows.agg(F.count("*"), F.sum(F.length("value"))).collect()
    return time.perf_counter() - began


def processed(url: str) -> int:
    """Number of records that the other pipeline has processed."""
    text = sql.SQL(
        "SELECT coalesce(sum((counters ->> 'processed')::bigint), 0)::bigint FROM {} "
        "WHERE computation = 'keep_balance'"
    ).format(sql.Identifier(OTHER, "latest_commits"))
    with psycopg.connect(url) as connection:
        row = connection.execute(text).fetchone()
    assert row is not None
    return int(row[0])


@contextmanager
def working(url: str, directory: Path) -> Iterator[None]:
    """Run the other pipeline, on more records than it can take meanwhile."""
    path = directory / "payments.jsonl"
    on_spark.write(path, KEYS, RECORDS)
    drop(url, OTHER)
    migrate(url, OTHER)
    command = [
        sys.executable,
        "-m",
        "millwheel",
        "worker",
        "bench.on_spark:pipeline",
        "--store",
        url,
    ]
    environment = {**os.environ, on_spark.FILE: str(path), "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL)
    try:
        while processed(url) == 0:
            time.sleep(0.1)
        yield
    finally:
        process.terminate()
        process.wait()
        drop(url, OTHER)
        path.unlink()


def meanwhile(spark: Any, url: str, directory: Path) -> float:
    """The other pipeline's rate while Spark reads, by its rate alone."""
    with working(url, directory):
        ratios = []
        for _ in range(ROUNDS_MEANWHILE):
            alone = _rate(url, lambda: time.sleep(SECONDS_ALONE))
            ratios.append(_rate(url, lambda: by_spark(spark, url)) / alone)
    return statistics.median(ratios)


def _rate(url: str, work: Callable[[], object]) -> float:
    before, began = processed(url), time.perf_counter()
    work()
    return (processed(url) - before) / (time.perf_counter() - began)


def measure(url: str, directory: Path, *, rows: int, rounds: int) -> dict[str, Any]:
    """Measure both in turns."""
    asyncio.run(fill(url, rows))
    prepare_environment()
    with session() as spark:
        register(spark)
        by_spark(spark, url)
        pairs = [(by_copy(url), by_spark(spark, url)) for _ in range(rounds)]
        engine = meanwhile(spark, url, directory)
    ratio = statistics.median(copy / read for copy, read in pairs)
    result = {
        "rows": rows,
        "copy_rows_per_second": rows / statistics.median(copy for copy, _ in pairs),
        "spark_rows_per_second": rows / statistics.median(read for _, read in pairs),
        "ratio": ratio,
        "engine_meanwhile": engine,
    }
    print("state rows:", json.dumps(result))
    drop(url, NAME)
    return result
