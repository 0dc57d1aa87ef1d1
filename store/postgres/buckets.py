"""Buckets: the tables that hold one stretch of the append-only past, from creation to drop
(decision 1).

A bucket has a row in the table `bucket` and child tables that inherit from the append-only parents:
all seven for family *time*, `seen_record` and `seen_run` for *source* and *named*.

A dropped bucket is found by its missing row, in the same transaction snapshot as its missing
tables. Postgres names no table in the diagnostics of an `undefined_table` error, so
`refuse_dropped` asks the table `bucket` which of a commit's buckets is missing.
"""

from __future__ import annotations

from typing import Any

import psycopg
from psycopg import AsyncConnection, sql

from millwheel.errors import BucketGone
from millwheel.store.port.buckets import CLOCK_STEP_MICROS, EARLY_CLOSE_MICROS, Bucket, BucketView
from millwheel.store.port.commit import Commit
from millwheel.store.postgres.connections import Connections, Subject
from millwheel.store.postgres.statements import BUCKETED, SEEN, Statements, composed
from millwheel.store.postgres.translation import translate

LOCK_TIMEOUT = "1s"
"""Longest wait for the lock under which a bucket is made. An ANALYZE of the pipeline's tables holds
a conflicting one (share update exclusive), and every session that reads the buckets waits behind
this one, commits among them."""

DROP_LOCK_MILLISECONDS = 50
"""Longest wait for the lock under which a bucket is dropped: readers of the parents queue behind
it."""

IDLE_TIMEOUT = "5s"
"""Postgres ends a change whose process was stopped after this time, so that others do not wait
longer."""


def bucket_table(parent: str, bucket: int) -> str:
    return f"{parent}_{bucket}"


def bucket_of(table: str) -> int:
    return int(table.rsplit("_", 1)[1])


def tables_of(bucket: Bucket) -> list[str]:
    return [bucket_table(parent, bucket.id) for parent in _parents(bucket.family)]


def _parents(family: str) -> tuple[str, ...]:
    return BUCKETED if family == "time" else SEEN


async def newest_commit_table(connection: AsyncConnection[Any], statements: Statements) -> str:
    """The newest table of commits, where new chains begin."""
    cursor = await connection.execute(statements.get("newest_time_bucket"))
    row = await cursor.fetchone()
    assert row is not None, "there is always a bucket to write to"
    return bucket_table("commit_record", row[0])


async def create_bucket(
    connection: AsyncConnection[Any],
    statements: Statements,
    family: str,
    log: int,
    low: int,
    high: int,
) -> Bucket:
    params = {"family": family, "log": log, "low": low, "high": high}
    cursor = await connection.execute(statements.get("register_bucket"), params)
    row = await cursor.fetchone()
    assert row is not None
    bucket = Bucket(row[0], family, log, low, high)
    text = statements.get("make_bucket", make_bucket="make_bucket")
    await connection.execute(text, {"id": bucket.id})
    return bucket


async def refuse_dropped(
    connection: AsyncConnection[Any], statements: Statements, commit: Commit
) -> None:
    """`BucketGone` if a commit that met a missing table notes ids in a dropped bucket.

    A bucket newer than all stored ones was not dropped: the server has lost it.
    """
    elsewhere = [bucket for bucket in commit.seen if bucket != commit.bucket]
    if not elsewhere:
        return
    try:
        cursor = await connection.execute(statements.get("dropped_buckets"), {"ids": elsewhere})
        dropped = await cursor.fetchall()
    except psycopg.Error as error:
        raise translate(error) from error
    if dropped:
        raise BucketGone(
            f"bucket {dropped[0][0]}, in which the commit notes records as seen, was dropped"
        )


class PostgresBuckets(Subject):
    def __init__(self, connections: Connections) -> None:
        super().__init__(connections)
        self.drop_lock_milliseconds = DROP_LOCK_MILLISECONDS
        self._timeouts = {"lock": LOCK_TIMEOUT, "idle": IDLE_TIMEOUT}

    async def live_buckets(self) -> list[Bucket]:
        return [Bucket(*row) for row in await self.connections.rows("live_buckets")]

    async def view_buckets(self) -> BucketView:
        statements = self.connections.statements
        async with self.connections.connection() as connection, connection.pipeline():
            await connection.execute("BEGIN", prepare=True)
            await connection.execute(statements.get("set_timeouts"), self._timeouts, prepare=True)
            await connection.execute(statements.get("share_buckets"), prepare=True)
            cursor = await connection.execute(statements.get("view_buckets"), prepare=True)
            await connection.execute("COMMIT", prepare=True)
            rows = await cursor.fetchall()
        return BucketView(rows[0][0], [Bucket(*row) for _, *row in rows if row[0] is not None])

    async def open_bucket(self, family: str, log: int, low: int, high: int) -> Bucket:
        statements = self.connections.statements
        async with self.connections.connection() as connection, connection.transaction():
            await connection.execute(statements.get("set_timeouts"), self._timeouts)
            await connection.execute(statements.get("lock_buckets"))
            cursor = await connection.execute(
                statements.get("find_bucket"), {"family": family, "log": log, "low": low}
            )
            row = await cursor.fetchone()
            assert row is not None
            id_, begin, end = row
            if id_ is not None:
                return Bucket(id_, family, log, begin, end)
            end = high if end is None else min(high, end)
            return await create_bucket(connection, statements, family, log, begin, end)

    async def close_bucket(self, bucket: int, high: int) -> Bucket | None:
        statements = self.connections.statements
        async with self.connections.connection() as connection, connection.transaction():
            await connection.execute(statements.get("set_timeouts"), self._timeouts)
            await connection.execute(statements.get("lock_buckets"))
            await connection.execute(
                statements.get("close_bucket"),
                {
                    "id": bucket,
                    "high": high,
                    "early": EARLY_CLOSE_MICROS,
                    "step": CLOCK_STEP_MICROS,
                },
            )
            cursor = await connection.execute(statements.get("live_buckets"))
            found = [Bucket(*row) for row in await cursor.fetchall()]
        return next((live for live in found if live.id == bucket), None)

    async def advance_gc_watermark(self) -> int:
        floor, stored = (await self.connections.rows("stored_floor"))[0]
        if floor is not None and floor > stored:
            await self.connections.run("advance_gc_watermark", {"floor": floor})
            stored = floor
        return int(stored)

    async def drop_bucket(self, bucket: Bucket) -> bool:
        statements = self.connections.statements
        tables = sql.SQL(", ").join(map(statements.table, tables_of(bucket)))
        timeouts = {"lock": f"{self.drop_lock_milliseconds}ms", "idle": IDLE_TIMEOUT}
        try:
            async with self.connections.checked() as connection, connection.transaction():
                await connection.execute(statements.get("set_timeouts"), timeouts)
                await connection.execute(composed("lock_for_drop", tables=tables))
                if not await self._is_droppable(connection, bucket):
                    return False
                text = statements.get("drop_bucket", drop_bucket="drop_bucket")
                await connection.execute(text, {"id": bucket.id})
        except psycopg.errors.LockNotAvailable:
            return False
        except psycopg.errors.UndefinedTable:
            return True  # an earlier attempt dropped it, and its answer was lost
        except psycopg.Error as error:
            raise translate(error) from error
        return True

    async def _is_droppable(self, connection: AsyncConnection[Any], bucket: Bucket) -> bool:
        """Look again, under the lock, at the stored rows: the worker's memory does not count."""
        statements = self.connections.statements

        async def first(name: str, params: dict[str, Any], **tables: str) -> Any:
            cursor = await connection.execute(statements.get(name, **tables), params)
            return await cursor.fetchone()

        if bucket.family == "source":
            params = {"log": bucket.log, "high": bucket.high}
            row = await first("source_acknowledged", params)
            return row is not None and bool(row[0])
        if bucket.family == "named":
            row = await first("named_acknowledged", {"high": bucket.high})
            return row is not None and bool(row[0])
        row = await first("stored_floor", {})
        if row is None or row[1] < bucket.high:
            return False
        table = bucket_table("commit_record", bucket.id)
        row = await first("bucket_in_use", {}, table=table)
        return row is not None and not row[0]
