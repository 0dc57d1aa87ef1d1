"""Dedup with up to 10^8 seen ids in the store.

User-supplied ids are looked up among all ids of the last day, independent of their age, so history
may cost time here. SQL writes it into the buckets of 24 hours. A worker then starts and fills its
Bloom filters from the tables. Only then do the payments arrive, each with a new id.
"""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql

from bench.apart import apart
from bench.growth.running import through
from bench.server import drop, fresh_store, settle
from bench.workload import BALANCES, PAYMENTS, KeepBalance, payments_file
from millwheel import Discard, JsonLines, Pipeline
from millwheel.runtime.engine import Engine
from millwheel.runtime.environment import Options
from millwheel.store.postgres.store import PostgresStore

SCHEMA = "bench_history"
HOURS = 24
HOUR = 3_600_000_000
WARM = 0.4
"""Share of the rows that are warm-up: the worker has just scanned gigabytes, and the current hour's
index must return to memory."""
FILL = """
INSERT INTO {} (slot, computation, id)
SELECT (hashint8(number) & 65535), %s, ('0' || substr(md5(number::text), 2))::uuid
FROM generate_series(%s::bigint, %s::bigint) AS number
ORDER BY 1, 3
"""


def pipeline(path: Path) -> Pipeline:
    """Build the workload with user-supplied ids."""
    made = Pipeline(SCHEMA)
    made.inject(
        PAYMENTS,
        JsonLines(path, follow=True),
        timestamp=lambda payment: payment.at,
        lateness=timedelta(seconds=10),
        id=lambda payment: payment.at.isoformat(),
    )
    made.add(KeepBalance(), PAYMENTS.by(lambda payment: payment.account))
    made.sink(BALANCES, Discard())
    return made


async def lay_out(url: str, path: Path) -> int:
    """Create the tables, with a bucket for each of the last hours including the current one.

    Returns:
        The id of the computation that keeps the ids.
    """
    store = await fresh_store(url, SCHEMA)
    now = time.time_ns() // 1000
    begins = [now - hour * HOUR for hour in reversed(range(HOURS))]
    for low, high in pairwise([*begins, now + 2 * HOUR]):  # no bucket opens during the run
        await store.open_bucket("named", 0, low, high)
    engine = Engine(pipeline(path), store, options=Options(keep_open=True))
    await engine.start()
    await engine.run()
    await engine.stop()
    found = [bucket for bucket in await store.live_buckets() if bucket.family == "named"]
    assert len(found) == HOURS, f"{len(found)} buckets instead of {HOURS}"
    await store.close()
    return next(id_ for id_, step in engine.exchange.steps.items() if step.node.named)


def fill(url: str, computation: int, buckets: list[int], ids: int) -> None:
    """Write N ids, the same number into each bucket."""
    share = ids // len(buckets)
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("SET maintenance_work_mem = '512MB'")
        connection.execute("SET work_mem = '512MB'")
        for place, bucket in enumerate(buckets):
            table = sql.Identifier(SCHEMA, f"seen_record_{bucket}")
            first = place * share
            connection.execute(sql.SQL(FILL).format(table), (computation, first, first + share - 1))
    settle(url, SCHEMA, *(f"seen_record_{bucket}" for bucket in buckets))


async def point(url: str, path: Path, rows: Path, count: int) -> dict[str, Any]:
    """Start on the history and fill the filters, then let the rows arrive and measure."""
    store = await PostgresStore(url, SCHEMA).open()
    engine = Engine(pipeline(path), store, options=Options(keep_open=True))
    before = time.perf_counter()
    await engine.start()
    await engine.run()
    named = [bucket.id for bucket in await store.live_buckets() if bucket.family == "named"]
    keepers = [i.dedup for i in engine.intervals if i.step.node.named]
    while not all(keeper.seen_in(bucket).ready for keeper in keepers for bucket in named):
        await asyncio.sleep(0.02)
    ready = time.perf_counter() - before
    path.write_bytes(rows.read_bytes())
    found = await through(engine, count, int(count * WARM))
    maybes = sum(keeper.maybes for keeper in keepers)
    await engine.stop()
    await store.close()
    return {**found, "filters_seconds": ready, "maybes": maybes / count}


async def measure(url: str, directory: Path, quick: bool) -> list[dict[str, Any]]:
    """Measure from no history to the longest, which runs between two runs without history."""
    count = 20_000 if quick else 1_000_000
    payments_file(directory, count)
    rows = directory / f"payments-{count}.jsonl"

    async def one(ids: int) -> dict[str, Any]:
        path = directory / "history.jsonl"
        path.write_bytes(b"")
        computation = await lay_out(url, path)
        store = await PostgresStore(url, SCHEMA).open()
        buckets = [bucket.id for bucket in await store.live_buckets() if bucket.family == "named"]
        await store.close()
        before = time.perf_counter()
        if ids:
            fill(url, computation, buckets, ids)
        filled = time.perf_counter() - before
        line = await apart(point, url, path, rows, count)
        print(
            f"  {ids:11,} ids: {line['rate']:9,.0f} records/s, peak "
            f"{line['peak_megabytes']:.0f} MB; filters after {line['filters_seconds']:.1f} s; "
            f"{line['maybes']:.4f} look-ups per record"
        )
        return {"ids": ids, "fill_seconds": filled, **line}

    found = [await one(ids) for ids in ((0, 10**5) if quick else (0, 10**6, 10**7))]
    before, line, after = await one(0), await one(10**6 if quick else 10**8), await one(0)
    drop(url, SCHEMA)
    return [*found, {**line, "beside": (before["rate"] + after["rate"]) / 2}]
