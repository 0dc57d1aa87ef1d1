"""Up to 10^7 pending timers, due in a year, while each record sets another one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql

from bench.apart import apart
from bench.growth.running import run
from bench.server import drop, fresh_store, settle
from bench.timers import SCHEMA, pipeline
from bench.workload import KEYS, START, payments_file
from millwheel import JsonLines
from millwheel.core.codec import encode_key
from millwheel.core.model import to_micros
from millwheel.runtime.engine import Engine
from millwheel.runtime.environment import Options
from millwheel.store.postgres.store import PostgresStore

YEAR = 365 * 86_400 * 1_000_000
FILL = """
INSERT INTO {} (slot, computation, key, kind, tag, due, hold, set_at)
SELECT slot, %(computation)s, key, 'watermark', number::text, %(due)s + number, %(due)s + number, 0
FROM key_slot CROSS JOIN generate_series(1, %(each)s) AS number
ORDER BY slot, key, number::text COLLATE "C"
"""


async def lay_out(url: str, path: Path) -> int:
    """Create the tables; return the id of the computation that sets timers."""
    store = await fresh_store(url, SCHEMA)
    engine = Engine(pipeline(JsonLines(path)), store, options=Options(keep_open=True))
    await engine.start()
    await engine.run()
    await engine.stop()
    await store.close()
    return next(id_ for id_, step in engine.exchange.steps.items() if step.name == "remind")


def fill(url: str, computation: int, timers: int) -> None:
    """Write N timers over the keys of the workload, as folds leave them."""
    with psycopg.connect(url) as connection:
        connection.execute('CREATE TEMPORARY TABLE key_slot (slot integer, key text COLLATE "C")')
        with connection.cursor().copy("COPY key_slot FROM STDIN") as copy:
            for text, slot in map(encode_key, range(min(KEYS, timers))):
                copy.write_row((slot, text.decode()))
        table = sql.Identifier(SCHEMA, "timer")
        connection.execute(
            sql.SQL(FILL).format(table),
            {
                "computation": computation,
                "due": to_micros(START) + YEAR,
                "each": max(1, timers // KEYS),
            },
        )
    settle(url, SCHEMA, "timer")


async def point(url: str, path: Path, rows: int) -> dict[str, Any]:
    """Measure a run with the pending timers, which do not fire since event time stays open."""
    store = await PostgresStore(url, SCHEMA).open()
    try:
        return await run(pipeline(JsonLines(path)), store, rows, keep_open=True)
    finally:
        await store.close()


async def measure(url: str, directory: Path, quick: bool) -> list[dict[str, Any]]:
    """Measure from no timers to 10^7."""
    rows = 20_000 if quick else 200_000
    payments_file(directory, rows)
    source = directory / f"payments-{rows}.jsonl"
    found = []
    for timers in (0, 10**4, 10**5) if quick else (0, 10**4, 10**5, 10**6, 10**7):
        path = directory / "timers.jsonl"
        path.write_bytes(b"")
        computation = await lay_out(url, path)
        if timers:
            fill(url, computation, timers)
        path.write_bytes(source.read_bytes())
        line = await apart(point, url, path, rows)
        found.append({"timers": timers, **line})
        print(
            f"  {timers:10,} timers: {line['rate']:9,.0f} records/s, peak "
            f"{line['peak_megabytes']:.0f} MB; started in {line['start_seconds']:.2f} s"
        )
    drop(url, SCHEMA)
    return found
