"""Reads the workload in one snapshot after the other, while workers and Postgres are harmed.

What is read is exactly what anybody else would see by SQL: the views, the user's tables, and the
stored positions of the source, in one transaction. It runs in a thread of its own.
"""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql

from tests.campaign import evidence
from tests.campaign.checks import Found, Snapshot, Watcher
from tests.campaign.looker import Looker, connect
from tests.campaign.workload import KEYS, NAME, PARTITIONS, STRIDE, Work
from tests.support.fleet import CHAINS

PENDING_LOOKS = 4
"""Every so many looks what is pending is counted, too: that costs more."""

KEPT = 50
"""Anomalies that are told in words."""

LOCK = "LOCK TABLE commit_record, state_change, production, straggler, state IN ACCESS SHARE MODE"
"""Before the snapshot is taken: what is dropped meanwhile would be missing in it (I15)."""

STATES = """
SELECT computation, key::int, (value ->> 'count')::bigint, (value ->> 'total')::bigint,
       (value ->> 'squares')::bigint, (value ->> 'astray')::bigint
FROM states WHERE computation IN ('accounts', 'branches')
"""
LEDGER = "SELECT account, count, total FROM ledger"
RECEIPTS = "SELECT account, count(*), count(DISTINCT number) FROM receipt GROUP BY account"
POSITIONS = """
SELECT slot_from, coalesce((position -> 'reader' ->> 'row')::bigint, 0) FROM latest_commits
WHERE kind = 'injector'
"""
INCARNATION = "SELECT coalesce((SELECT id::text FROM incarnation), '')"
PENDING = "SELECT count(*) FROM pending_productions WHERE receiver = 'branches'"

FINAL = """
WITH made AS (
    SELECT p * {keys} + o * {stride} %% {keys} AS account, o / {keys} AS number
    FROM generate_series(0, {partitions} - 1) AS p,
         generate_series(0::bigint, %(rows)s::bigint - 1) AS o
), wanted AS (
    SELECT account, count(*) AS count, sum(number) AS total, sum(number * number) AS squares
    FROM made GROUP BY account
), found AS (
    SELECT key::int AS account, (value ->> 'count')::numeric AS count,
           (value ->> 'total')::numeric AS total, (value ->> 'squares')::numeric AS squares
    FROM states WHERE computation = 'accounts'
)
SELECT account, w.count, f.count, w.total, f.total
FROM wanted AS w FULL JOIN found AS f USING (account)
WHERE (w.count, w.total, w.squares) IS DISTINCT FROM (f.count, f.total, f.squares)
LIMIT 50
"""
"""The same by SQL alone: each deposit is made once more, and compared with what is stored."""

STRAY = "SELECT (SELECT count(*) FROM dead_letters), (SELECT count(*) FROM pending_productions)"


def read(
    connection: psycopg.Connection[Any], work: Work, *, pending: bool, loses: bool = False
) -> Snapshot:
    """One snapshot, in a transaction of its own; of a server that `loses` commits, with its
    incarnation."""
    connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
    try:
        connection.execute(LOCK.encode())
        found = read_within(connection, work, pending=pending)
        if loses:
            ((found.incarnation,),) = connection.execute(INCARNATION.encode()).fetchall()
        return found
    finally:
        with contextlib.suppress(psycopg.Error):
            connection.execute("ROLLBACK")


def read_within(connection: psycopg.Connection[Any], work: Work, *, pending: bool) -> Snapshot:
    """What the transaction sees that is open."""

    def rows(query: str) -> list[Any]:
        return connection.execute(query.encode()).fetchall()

    found = Snapshot()
    for computation, key, count, total, squares, astray in rows(STATES):
        if computation == "accounts":
            found.accounts[key] = (count, total, squares, astray)
        else:
            found.branches[key] = (count, total)
    found.acknowledged = dict(rows(POSITIONS))
    if work.tables:
        found.ledger = {account: (count, total) for account, count, total in rows(LEDGER)}
        found.receipts = {account: (n, different) for account, n, different in rows(RECEIPTS)}
    if pending:
        found.pending = rows(PENDING)[0][0]
    return found


class Reader(Looker):
    """Looks at everything there is.

    Args:
        keep: where the tables are kept as they are at the first anomaly; None: nowhere.
    """

    pause_seconds = 0.4

    def __init__(
        self, url: str, work: Work, *, loses: bool = False, keep: Path | None = None
    ) -> None:
        super().__init__(url)
        self._loses = loses
        self._keep = keep
        self.looks = 0
        self.anomalies: Counter[str] = Counter()
        self.told: list[str] = []
        self.last = Snapshot()
        self._work = work
        self._watcher = Watcher(work)

    def note(self, found: list[Found]) -> None:
        """Count anomalies, and keep some of them."""
        for one in found:
            self.anomalies[one.what] += 1
            if len(self.told) < KEPT:
                self.told.append(f"look {self.looks}: {one}")

    def look(self, connection: psycopg.Connection[Any]) -> None:
        snapshot = read(
            connection, self._work, pending=self.looks % PENDING_LOOKS == 0, loses=self._loses
        )
        self.looks += 1
        self.last = snapshot
        found = self._watcher.look(snapshot)
        self.note(found)
        if found and self._keep is not None:
            evidence.keep(connection, self._keep)
            self._keep = None


def judge(url: str, rows: int) -> tuple[list[str], int]:
    """What Postgres itself finds wrong when all is done, in words; and links of chains that are
    broken."""
    query = sql.SQL(FINAL).format(
        keys=sql.Literal(KEYS), stride=sql.Literal(STRIDE), partitions=sql.Literal(PARTITIONS)
    )
    with connect(url) as connection:
        differences = [
            f"account {account}: {have} of {count} deposits, {sum_have} not {total}"
            for account, count, have, total, sum_have in connection.execute(query, {"rows": rows})
        ]
        row = connection.execute(STRAY.encode()).fetchone()
        assert row is not None
        for stray, what in zip(row, ("dead letters", "pending productions"), strict=True):
            if stray:
                differences.append(f"{stray} {what}")
        chains = connection.execute(CHAINS.format(schema=NAME).encode()).fetchone()
    assert chains is not None
    return differences, chains[0]


def positions_of(url: str) -> dict[int, int]:
    """Row of each partition up to which all is acknowledged."""
    with connect(url) as connection:
        return dict(connection.execute(POSITIONS.encode()).fetchall())


def wait_for(url: str, seconds: float) -> bool:
    """Until the server answers."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            connect(url).close()
        except psycopg.OperationalError:
            time.sleep(0.1)
        else:
            return True
    return False
