"""The numbers of 10^8 seen records, as runs and as a row for each (decision 69): their size, and
the look-ups of a restart.

A worker that takes over asks for the newest number of each log. Then it looks up the records that
its senders send again: numbers that are there, and, where another interval of the computation was
ahead, numbers that are not.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import psycopg
from psycopg import sql

from bench.server import drop, fresh_store
from millwheel.core.model import log_and_number, record_id
from millwheel.store.port import Store

SCHEMA = "bench_seen"
COMPUTATION, LOG = 1, 7
RUN = 700
"""Records of a chunk."""
LOOK_UPS = 100

AS_RUNS = """
INSERT INTO {} (log, last, first, computation)
SELECT 7, n * 1400 + 699, n * 1400, 1 FROM generate_series(0, %s) AS n
"""
AS_ROWS = """
INSERT INTO {} (slot, computation, id)
SELECT
    hashint8(n * 1400 + i) & 65535, 1,
    ('0000000000000007' || lpad(to_hex(n * 1400 + i), 16, '0'))::uuid
FROM generate_series(0, %s) AS n, generate_series(0, 699) AS i
"""
NEWEST = """
SELECT id FROM {} WHERE computation = 1 AND id < '80000000-0000-0000-0000-000000000000'
ORDER BY id DESC LIMIT 1
"""

Ask = Callable[[Sequence[int]], Awaitable[int]]


async def measure(url: str, *, ids: int) -> dict[str, Any]:
    """Every second chunk of a log was seen; those between were not."""
    store = await fresh_store(url, SCHEMA)
    bucket = await store.open_bucket("source", LOG, 0, 4 * ids)
    rows_bucket = await store.open_bucket("named", 0, 0, 1)  # others refuse such rows
    chunks = ids // RUN
    with psycopg.connect(url, autocommit=True) as connection:

        def fill(table: str, statement: str) -> int:
            name = sql.Identifier(SCHEMA, table)
            connection.execute(sql.SQL(statement).format(name), (chunks - 1,))
            connection.execute(sql.SQL("VACUUM (ANALYZE) {}").format(name))
            found = connection.execute(
                "SELECT pg_total_relation_size(%s::regclass)", (name.as_string(),)
            ).fetchone()
            assert found is not None
            return int(found[0])

        async def of_runs(numbers: Sequence[int]) -> int:
            found = await store.look_up_numbers(bucket.id, COMPUTATION, {LOG: numbers})
            return len(found.get(LOG, ()))

        async def of_rows(numbers: Sequence[int]) -> int:
            asked = [record_id(LOG, number) for number in numbers]
            return len(await store.look_up_seen([rows_bucket.id], COMPUTATION, asked))

        runs = {
            "bytes": fill(f"seen_run_{bucket.id}", AS_RUNS),
            **await _restart(store, bucket.id, chunks),
        }
        runs |= await _looked_up(of_runs, chunks)
        rows: dict[str, Any] = {"bytes": fill(f"seen_record_{rows_bucket.id}", AS_ROWS)}
        name = sql.Identifier(SCHEMA, f"seen_record_{rows_bucket.id}")
        before = time.perf_counter()
        newest = connection.execute(sql.SQL(NEWEST).format(name)).fetchone()
        rows["newest"] = time.perf_counter() - before
        assert newest is not None
        assert log_and_number(newest[0].bytes) == (LOG, (chunks - 1) * 2 * RUN + RUN - 1)
        rows |= await _looked_up(of_rows, chunks)
    await store.close()
    drop(url, SCHEMA)
    for name_, found in (("runs", runs), ("rows", rows)):
        print(
            f"{ids:,} ids as {name_}: {found['bytes'] / ids:.2f} bytes an id; the newest number "
            f"after {found['newest'] * 1e3:.1f} ms; a chunk looked up: {found['there'] * 1e3:.1f} "
            f"ms if it is there, {found['missing'] * 1e3:.1f} ms if not"
        )
    return {"ids": ids, "runs": runs, "rows": rows}


async def _restart(store: Store, bucket: int, chunks: int) -> dict[str, float]:
    before = time.perf_counter()
    newest = await store.newest_seen(bucket, COMPUTATION)
    assert newest == {LOG: (chunks - 1) * 2 * RUN + RUN - 1}
    return {"newest": time.perf_counter() - before}


async def _looked_up(ask: Ask, chunks: int) -> dict[str, float]:
    """Seconds that a look-up of a whole chunk takes, over the whole log."""
    found: dict[str, list[float]] = {"there": [], "missing": []}
    for place in range(LOOK_UPS):
        chunk = place * (chunks - 1) // LOOK_UPS
        for kind, first in (("there", chunk * 2 * RUN), ("missing", (chunk * 2 + 1) * RUN)):
            before = time.perf_counter()
            seen = await ask(range(first, first + RUN))
            found[kind].append(time.perf_counter() - before)
            assert seen == (RUN if kind == "there" else 0)
    return {kind: statistics.median(seconds) for kind, seconds in found.items()}
