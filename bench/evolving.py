"""States migrated, and a column added, while workers, readers and writers continue.

A worker of new code runs the endless workload while ``millwheel migrate --states`` brings N stored
keys to the new version. The result is its rate during that time, beside the rates before and
after. Every second, all keys of a slot are read from the view `states`: each has its former value
and version, or its new ones.

Then a column is added to a table of N rows, while some sessions read and write it. The result is
the longest time of one of their statements, beside the lock timeout of a deploy.
"""

from __future__ import annotations

import random
import subprocess
import sys
import threading
import time
from pathlib import Path
from statistics import mean
from typing import Any

import psycopg
from psycopg import sql

from bench.fleet import ROOT, Fleet
from millwheel.core.model import SLOTS

FACTOR = 100
"""The new version of a total is this number of times the former one; as `bench.shared.evolved`."""

WINDOW_SECONDS = 15.0

SESSIONS = 4

LOCK_SECONDS = 2.0
"""Of a deploy: `store/sql/deploy/wait_briefly_for_locks.sql`."""

FILL = """
INSERT INTO {state} (slot, computation, key, entry, value, version)
SELECT slot, computation, key, '', value, 1 FROM (
    SELECT (k.n::bigint * 7919 %% 65536)::integer AS slot, c.id AS computation, k.key,
        jsonb_build_object('payments', 1, 'total', k.n) AS value
    FROM {computation} AS c, LATERAL (
        SELECT n, '"filled ' || n || '"' AS key FROM generate_series(1, %(keys)s) AS n
    ) AS k
    WHERE c.name = 'keep_balance'
) AS made
ORDER BY 1, 2, 3
"""


def migrated(url: str, directory: Path, keys: int, rate: int) -> dict[str, Any]:
    """Migrate N keys under load."""
    made = Fleet(url, directory, "evolved", BENCH_VERSION="1")
    try:
        made.start(1)
        made.wait_until(lambda: made.rows_done() > 1_000, "rows")
        made.end()
        fill(made, keys)
        made.environment["BENCH_VERSION"] = "2"
        made.start(1)
        before = rate_over(made, WINDOW_SECONDS)
        rows, began = made.rows_done(), time.perf_counter()
        command = [sys.executable, "-m", "millwheel.cli.main", "migrate", "bench.shared:evolved",
                   "--states", "--rate", str(rate)]  # fmt: skip
        running = subprocess.Popen(
            command, cwd=ROOT, env=made.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        looks = 0
        while running.poll() is None:
            looks += look(made)
            time.sleep(1)
        seconds = time.perf_counter() - began
        during = (made.rows_done() - rows) / seconds
        said, errors = running.communicate()
        if running.returncode:
            raise RuntimeError(errors.decode())
        after = rate_over(made, WINDOW_SECONDS)
        ((left,),) = made.ask("SELECT count(*) FROM {} WHERE version = 1", "states")
        return {
            "keys": keys,
            "rate": rate,
            "seconds": seconds,
            "before": before,
            "during": during,
            "after": after,
            "ratio": during / mean([before, after]),
            "keys_looked_at": looks,
            "left": left,
            "said": said.decode().splitlines()[-1],
        }
    finally:
        made.close()


def fill(made: Fleet, keys: int) -> None:
    """Write N states of version 1; no record comes to these keys, so any slot will do."""
    names = {name: sql.Identifier(made.name, name) for name in ("state", "computation")}
    with psycopg.connect(made.url, autocommit=True) as connection:
        connection.execute("SET work_mem = '1GB'")
        connection.execute(sql.SQL(FILL).format(**names), {"keys": keys})
        connection.execute(sql.SQL("VACUUM ANALYZE {}").format(names["state"]))


def look(made: Fleet) -> int:
    """Check the keys of a slot in the view; returns their number."""
    found = made.ask(
        "SELECT key #>> '{{}}', value, version FROM {} WHERE slot = %s",
        "states",
        random.randrange(SLOTS),
    )
    filled = 0
    for key, value, version in found:
        if isinstance(key, str) and key.startswith("filled "):
            number = int(key.removeprefix("filled "))
            total = number * (FACTOR if version == 2 else 1)
            if value != {"payments": 1, "total": total}:
                raise RuntimeError(f"{key} is {value} of version {version}")
            filled += 1
    return filled


def rate_over(made: Fleet, seconds: float) -> float:
    """Rows of the source per second."""
    rows, began = made.rows_done(), time.perf_counter()
    time.sleep(seconds)
    return (made.rows_done() - rows) / (time.perf_counter() - began)


class Session(threading.Thread):
    """Reads and writes rows that the pipeline does not write, and notes the longest statement."""

    def __init__(self, url: str, table: sql.Identifier, rows: int, stop: threading.Event) -> None:
        super().__init__()
        self._url = url
        self._table = table
        self._rows = rows
        self._ends = stop
        self.longest = 0.0
        self.statements = 0

    def run(self) -> None:
        read = sql.SQL("SELECT total FROM {} WHERE account = %s").format(self._table)
        write = sql.SQL("UPDATE {} SET payments = payments + 1 WHERE account = %s").format(
            self._table
        )
        with psycopg.connect(self._url, autocommit=True) as connection:
            while not self._ends.is_set():
                began = time.perf_counter()
                statement = write if self.statements % 2 else read
                connection.execute(statement, [1_000_001 + random.randrange(self._rows)])
                self.longest = max(self.longest, time.perf_counter() - began)
                self.statements += 1


def column_added(url: str, directory: Path, rows: int) -> dict[str, Any]:
    """Add a column to a table of N rows, by a deploy, while sessions use it."""
    made = Fleet(url, directory, "evolved", BENCH_VERSION="1")
    try:
        table = sql.Identifier(made.name, "balances")
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(
                sql.SQL(
                    "CREATE TABLE {} (account bigint PRIMARY KEY, payments bigint NOT NULL, "
                    "total bigint NOT NULL)"
                ).format(table)
            )
            connection.execute(
                sql.SQL(
                    "INSERT INTO {} SELECT 1000000 + n, 0, n FROM generate_series(1, %s) AS n"
                ).format(table),
                [rows],
            )
        made.start(1)
        stop = threading.Event()
        sessions = [Session(url, table, rows, stop) for _ in range(SESSIONS)]
        for session in sessions:
            session.start()
        time.sleep(3)
        before = max(session.longest for session in sessions)
        for session in sessions:
            session.longest = 0.0
        made.environment["BENCH_VERSION"] = "column"
        began = time.perf_counter()
        made.start(1)
        seconds = time.perf_counter() - began
        stop.set()
        for session in sessions:
            session.join()
        columns = made.ask("SELECT * FROM {} LIMIT 1", "balances")
        return {
            "rows": rows,
            "statements": sum(session.statements for session in sessions),
            "longest_before_seconds": before,
            "longest_seconds": max(session.longest for session in sessions),
            "lock_seconds": LOCK_SECONDS,
            "deploy_seconds": seconds,
            "added": len(columns[0]) == 4,
        }
    finally:
        made.close()


def measure(url: str, directory: Path, keys: int, rate: int, rows: int) -> dict[str, Any]:
    """Run both parts."""
    states = migrated(url, directory, keys, rate)
    print(
        f"{states['keys']:,} keys in {states['seconds']:.0f} s at {rate:,}/s: the worker did "
        f"{states['during']:,.0f} rows/s, {states['before']:,.0f} before and "
        f"{states['after']:,.0f} after: ratio {states['ratio']:.2f}; {states['keys_looked_at']:,} "
        f"keys in the view were right, {states['left']} are left"
    )
    column = column_added(url, directory, rows)
    print(
        f"a column in a table of {column['rows']:,} rows: the longest of "
        f"{column['statements']:,} statements took {column['longest_seconds'] * 1000:.0f} ms "
        f"({column['longest_before_seconds'] * 1000:.0f} ms before), the lock timeout is "
        f"{LOCK_SECONDS:.0f} s"
    )
    return {"states": states, "column": column}
