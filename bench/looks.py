"""Looks of an operator at a large store, by their cost at a small one, or by the primary key.

A pipeline with a few pending timers, then with ten million: the view ``watermark_holders``, and all
that ``millwheel status`` reads. And one key among millions: ``state_of`` beside the same row by its
primary key, and all that ``millwheel state get`` reads. Each time is the least of several.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql

from bench.fleet import ROOT
from bench.on_spark import FILE, NAME, write
from bench.server import drop
from millwheel.store.console.inspection import inspect
from millwheel.store.console.migrate import migrate

FEW = 1_000
KEYS = 1_000
"""Keys that the pipeline itself has left state of."""
TIMES = 20
COMPUTATION = "keep_balance"

ADD_TIMERS = """
INSERT INTO {schema}.timer (slot, computation, key, kind, tag, due, hold, set_at)
SELECT (n::bigint * 7919 %% 65536)::integer, c.id, n::text, 'watermark', 'close', t, t, 0
FROM {schema}.computation AS c, generate_series(%(first)s::bigint, %(last)s::bigint) AS n,
    LATERAL (SELECT 1704067200000000 + n / 1000 * 3600000000::bigint AS t) AS due
WHERE c.name = %(computation)s
"""
ADD_STATES = """
INSERT INTO {schema}.state (slot, computation, key, entry, value, version)
SELECT {schema}.slot_of(to_jsonb(n)), c.id, n::text, '', jsonb_build_object('total', n), 1
FROM {schema}.computation AS c, generate_series(%(first)s::bigint, %(last)s::bigint) AS n
WHERE c.name = %(computation)s
"""
BY_PRIMARY_KEY = """
SELECT entry, value, version FROM {schema}.state
WHERE slot = %(slot)s AND computation = %(number)s AND key = %(key)s
"""
BY_FUNCTION = (
    "SELECT entry, value, version FROM {schema}.state_of(%(computation)s, %(json)s::jsonb)"
)


class Looks:
    """Timed looks at the pipeline, over one connection."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._connection = psycopg.connect(url, autocommit=True)
        self._connection.execute("SET jit = off")

    def run(self, text: str, **params: Any) -> list[Any]:
        composed = sql.SQL(text).format(schema=sql.Identifier(NAME))
        cursor = self._connection.execute(composed, params)
        return cursor.fetchall() if cursor.description else []

    def add(self, text: str, first: int, last: int, table: str) -> None:
        self.run(text, first=first, last=last, computation=COMPUTATION)
        self.run(f"VACUUM ANALYZE {{schema}}.{table}")

    def holders(self) -> float:
        return _least(lambda: self.run("SELECT * FROM {schema}.watermark_holders"))

    def status(self) -> float:
        def look() -> None:
            with inspect(self._url) as inspection:
                inspection.status(NAME)

        return _least(look)

    def key(self, key: int) -> dict[str, float]:
        """Seconds of each way to look at one key."""
        ((number,),) = self.run(
            "SELECT id FROM {schema}.computation WHERE name = %(computation)s",
            computation=COMPUTATION,
        )
        ((slot,),) = self.run("SELECT {schema}.slot_of(%(key)s::jsonb)", key=str(key))
        params = {"number": number, "slot": slot, "key": str(key)}
        row = self.run(BY_PRIMARY_KEY, **params)
        assert row, key
        assert row == self.run(BY_FUNCTION, computation=COMPUTATION, json=str(key))

        def get() -> None:
            with inspect(self._url) as inspection:
                inspection.key(NAME, COMPUTATION, key)

        return {
            "primary_key": _least(lambda: self.run(BY_PRIMARY_KEY, **params)),
            "state_of": _least(
                lambda: self.run(BY_FUNCTION, computation=COMPUTATION, json=str(key))
            ),
            "state_get": _least(get),
        }

    def close(self) -> None:
        self._connection.close()


def _least(look: Callable[[], object]) -> float:
    times = []
    for _ in range(TIMES):
        began = time.perf_counter()
        look()
        times.append(time.perf_counter() - began)
    return min(times)


def prepare(url: str, directory: Path) -> None:
    """Run the pipeline over a few records; event time continues afterwards."""
    path = directory / "payments.jsonl"
    write(path, KEYS, KEYS)
    drop(url, NAME)
    migrate(url, NAME)
    command = [
        sys.executable,
        "-m",
        "millwheel",
        "run",
        "bench.on_spark:pipeline",
        "--keep-open",
        "--store",
        url,
    ]
    environment = {**os.environ, FILE: str(path), "PYTHONPATH": str(ROOT)}
    subprocess.run(command, env=environment, check=True, capture_output=True)


def measure(url: str, directory: Path, *, timers: int, states: int) -> dict[str, Any]:
    """Measure with few timers, with many, and with many keys."""
    prepare(url, directory)
    looks = Looks(url)
    looks.add(ADD_TIMERS, 1, FEW, "timer")
    few = {"holders": looks.holders(), "status": looks.status()}
    looks.add(ADD_TIMERS, FEW + 1, timers, "timer")
    many = {"holders": looks.holders(), "status": looks.status()}
    looks.add(ADD_STATES, KEYS + 1, states, "state")
    key = looks.key(states // 3)
    looks.close()
    drop(url, NAME)
    result = {
        "timers": timers,
        "states": states,
        "few_seconds": few,
        "many_seconds": many,
        "holders_ratio": many["holders"] / few["holders"],
        "status_ratio": many["status"] / few["status"],
        "key_seconds": key,
        "key_ratio": key["state_of"] / key["primary_key"],
    }
    print("looks:", json.dumps(result))
    return result
