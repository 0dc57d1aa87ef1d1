"""The pages of a large pipeline, each looked at alone, in seconds.

60 steps, some 500 intervals, a million keys with state, ten million pending timers and a hundred
thousand dead letters of a thousand keys; nothing runs at that time.
"""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import httpx
import psycopg
from psycopg import sql

from bench.looks import ADD_STATES, ADD_TIMERS
from bench.server import drop, fresh_store
from bench.workload import PAYMENTS, Account, Payment, payments_file
from millwheel import Computation, Context, Discard, Pipeline, Record, Settings, Stream
from millwheel.services.endpoint import Endpoint
from millwheel.services.run import Run
from millwheel.store.address import StoreAddress
from millwheel.ui.access import Level, Viewer, ViewerAccess
from millwheel.ui.application import PageOptions
from millwheel.ui.pages import PAGES
from millwheel.ui.serving import PageServer
from millwheel.ui.shared_looks import LOOK_SECONDS
from millwheel.ui.visited_store import VisitedStore

SCHEMA = "bench_pages"
STEPS = 60
INTERVALS = 9
RECORDS = 1_000
TIMES = 3
LAST = f"step_{STEPS - 1}"

ADD_LETTERS = """
INSERT INTO {schema}.dead_letter
    (slot, computation, stream, record_id, key, value, ts, place, error, traceback, attempts, stamp)
SELECT {schema}.slot_of(to_jsonb(n %% 1000)), c.id, 'payments', gen_random_uuid(),
    (n %% 1000)::text, '{{"amount": 1}}', n, 'a row',
    'ValueError: account ' || n %% 1000 || ' is odd',
    'Traceback …', 1, n
FROM {schema}.computation AS c, generate_series(1, %(last)s::bigint) AS n
WHERE c.name = %(computation)s
"""

FILTERS: dict[str, list[dict[str, Any]]] = {
    "key": [{"step": LAST}, {"step": LAST, "key": "17"}],
    "late": [{}, {"step": LAST}],
    "letters": [{}, {"group": "error"}, {"group": "key"}, {"key": "17"}, {"error": "account 17 "}],
    "sql": [{}, {"statement": "SELECT count(*) FROM states"}],
}
"""Filters of a viewer, besides the page without any."""


class Pass(Computation[Payment, Account]):
    """Counts, and passes on."""

    def __init__(self, to: Stream[Payment]) -> None:
        self.to = to
        self.writes = (to,)

    async def process_record(self, record: Record[Payment], ctx: Context[Account]) -> None:
        ctx.state.payments += 1
        ctx.produce(self.to, record.value)


def build(directory: Path) -> Pipeline:
    """Return a chain of steps."""
    pipeline = Pipeline(SCHEMA, settings=Settings(intervals=INTERVALS))
    pipeline.inject(
        PAYMENTS, payments_file(directory, RECORDS), timestamp=lambda payment: payment.at
    )
    stream: Stream[Payment] = PAYMENTS
    for number in range(STEPS):
        to = Stream(f"passed_{number}", Payment)
        pipeline.add(Pass(to), stream.by(lambda payment: payment.account), name=f"step_{number}")
        stream = to
    pipeline.sink(stream, Discard())
    return pipeline


def fill(url: str, *, states: int, timers: int, letters: int) -> None:
    """Add rows as a long life leaves them."""
    schema = sql.Identifier(SCHEMA)
    with psycopg.connect(url, autocommit=True) as connection:
        for text, table, params in (
            (ADD_STATES, "state", {"first": 1_000_000, "last": 1_000_000 + states}),
            (ADD_TIMERS, "timer", {"first": 1, "last": timers}),
            (ADD_LETTERS, "dead_letter", {"last": letters}),
        ):
            connection.execute(sql.SQL(text).format(schema=schema), {**params, "computation": LAST})
            connection.execute(sql.SQL("VACUUM ANALYZE {}").format(sql.Identifier(SCHEMA, table)))


def looked_at(client: httpx.Client, path: str, filters: dict[str, Any]) -> float:
    """Return the least seconds of several looks, none of which is shared."""
    found = []
    for _ in range(TIMES):
        time.sleep(LOOK_SECONDS)
        began = time.perf_counter()
        answer = client.get(path, params=filters)
        found.append(time.perf_counter() - began)
        assert answer.status_code == 200, answer.text
    return min(found)


async def measure(url: str, directory: Path, *, states: int, timers: int, letters: int) -> Any:
    """Measure each page."""
    store = await fresh_store(url, SCHEMA)
    await store.close()
    run = Run(build(directory), url, keep_open=True)
    await run.run(asyncio.Event())
    fill(url, states=states, timers=timers, letters=letters)
    viewed = VisitedStore(StoreAddress.parse(url))
    access = ViewerAccess(guests=Viewer("bench", Level.MEND))
    server = PageServer(Endpoint(), viewed, access, PageOptions(SCHEMA))
    server.start()
    found: dict[str, float] = {}
    with httpx.Client(base_url=server.url, timeout=120.0) as client:
        for page in ("", *(f"pipelines/{SCHEMA}/{name}".rstrip("/") for name in PAGES)):
            for filters in FILTERS.get(page.rpartition("/")[2], [{}]):
                seconds = looked_at(client, page, filters)
                found[f"/{page} {json.dumps(filters) if filters else ''}".strip()] = seconds
                print(f"{seconds:8.3f} s  /{page} {filters or ''}")
    server.stop()
    drop(url, SCHEMA)
    return {"seconds": found}
