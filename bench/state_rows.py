"""A million rows of state read by Spark in two partitions, beside ``COPY`` of the same view over
one connection.

Spark counts the rows and the bytes of their values, so that each value reaches it. The start of
Spark is not in the time; the first read, which starts its Python processes, is not either. Then a
worker of another pipeline on the same server takes records as fast as it can, alone and while
``millwheel spark report`` reads the rows again and again: as it is, and by ``nice``.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import sql

from bench import on_spark
from bench.fleet import ROOT
from bench.server import drop, fresh_store
from millwheel.spark import Job, register, snapshot
from millwheel.spark.java import prepare_environment
from millwheel.spark.local_session import session
from millwheel.store.console.migrate import migrate

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

NAME = "bench_states"
OTHER = on_spark.NAME
KEYS, RECORDS = 10_000, 8_000_000
ROUNDS_MEANWHILE = 3
SECONDS_ALONE = 10.0
COLUMNS = ["computation", "key", "entry", "value"]
RESTS, READS, ENDS = "rests", "reads", "ends"
"""The words of a process that reads."""
YIELDING = ("nice", "-n", "19")
"""Processes of one session share the cores by this. Postgres has a session of its own."""


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
                "INSERT INTO {0}.state (slot, computation, key, entry, value, version) SELECT "
                "(n::bigint * 7919 %% 65536)::integer, (SELECT id FROM {0}.computation), n::text, "
                "'', jsonb_build_object('payments', n, 'total', n * 100), 1 FROM "
                "generate_series(1, %s) AS n"
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
    began = time.perf_counter()
    with snapshot(url, NAME) as held:
        chosen = held.options("states", columns=COLUMNS)
        count(spark.read.format("millwheel").options(**chosen, partitions="2").load())
    return time.perf_counter() - began


def count(rows: DataFrame) -> None:
    """Have Spark count the rows and the characters of their values."""
    from pyspark.sql import functions as F

    rows.agg(F.count("*"), F.sum(F.length("value"))).collect()


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
    """Run the other pipeline, on more records than it can take in that time."""
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


def job(job: Job) -> None:
    """Read the rows several times, and say before each read and after it; see `meanwhile`."""
    for read in range(1 + ROUNDS_MEANWHILE):
        if read:
            print(RESTS, flush=True)
            time.sleep(SECONDS_ALONE)
            print(READS, flush=True)
        count(job.table("states", COLUMNS))
    print(ENDS, flush=True)


def meanwhile(url: str, directory: Path, prefix: Sequence[str] = ()) -> float:
    """The other pipeline's rate while a process with Spark reads, by its rate while that one rests.

    Args:
        prefix: words before the command, as ``nice``.
    """
    command = [
        *prefix, sys.executable, "-m", "millwheel", "spark", "report", "bench.state_rows:job",
        "--store", url, "--pipeline", NAME,
        "--output", str(directory / "state_rows"),
    ]  # fmt: skip
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with working(url, directory), (directory / "state_rows.log").open("ab") as log:
        process = subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=log, text=True
        )
        assert process.stdout is not None
        looks = [
            (time.perf_counter(), processed(url))
            for line in process.stdout
            if line.strip() in {RESTS, READS, ENDS}
        ]
        assert process.wait() == 0
    rates = [(done - before) / (to - at) for (at, before), (to, done) in pairwise(looks)]
    alone, reading = rates[::2], rates[1::2]
    return statistics.median(b / a for a, b in zip(alone, reading, strict=True))


def measure(url: str, directory: Path, *, rows: int, rounds: int) -> dict[str, Any]:
    """Measure both in turns."""
    asyncio.run(fill(url, rows))
    prepare_environment()
    with session() as spark:
        register(spark)
        by_spark(spark, url)
        pairs = [(by_copy(url), by_spark(spark, url)) for _ in range(rounds)]
    engine = meanwhile(url, directory)
    yielded = meanwhile(url, directory, YIELDING)
    ratio = statistics.median(copy / read for copy, read in pairs)
    result = {
        "rows": rows,
        "copy_rows_per_second": rows / statistics.median(copy for copy, _ in pairs),
        "spark_rows_per_second": rows / statistics.median(read for _, read in pairs),
        "ratio": ratio,
        "engine_meanwhile": engine,
        "engine_meanwhile_nice": yielded,
    }
    print("state rows:", json.dumps(result))
    drop(url, NAME)
    return result
