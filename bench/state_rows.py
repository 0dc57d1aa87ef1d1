"""A million rows of state read by Spark in two partitions, beside ``COPY`` of the same view over one connection.

Spark counts the rows and the bytes of their values, so that each value reaches it. The start of Spark is not in the time;
the first read, which starts its Python processes, is not either.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import time
from typing import Any

import psycopg
from psycopg import sql

from bench.server import drop, fresh_store
from millwheel.java import prepare_environment
from millwheel.spark import register, snapshot
from millwheel.spark.session import session

NAME = "bench_states"


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


def measure(url: str, *, rows: int, rounds: int) -> dict[str, Any]:
    """Measure both in turns."""
    asyncio.run(fill(url, rows))
    prepare_environment()
    with session() as spark:
        register(spark)
        by_spark(spark, url)
        pairs = [(by_copy(url), by_spark(spark, url)) for _ in range(rounds)]
    ratio = statistics.median(copy / read for copy, read in pairs)
    result = {
        "rows": rows,
        "copy_rows_per_second": rows / statistics.median(copy for copy, _ in pairs),
        "spark_rows_per_second": rows / statistics.median(read for _, read in pairs),
        "ratio": ratio,
    }
    print("state rows:", json.dumps(result))
    drop(url, NAME)
    return result
