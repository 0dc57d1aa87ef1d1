"""The disk by table, and the sessions that keep dead rows."""

from __future__ import annotations

from typing import Any

import msgspec
import psycopg

from millwheel.store.console.left_data import orphaned
from millwheel.store.console.snapshot import iso_text
from millwheel.store.postgres.statements import Statements

MOST_SNAPSHOTS = 10


class TableUse(msgspec.Struct, frozen=True):
    kind: str
    """As of `DiskStatus.kinds`."""
    relation: str
    """Name of the table; its buckets are counted with it."""
    tables: int
    """The table and its buckets."""
    bytes: int
    """With indexes."""
    dead_rows: int
    """Former versions of rows that are not removed yet, by the server's estimate."""
    retention: str | None
    """How long rows stay; None: as long as the pipeline, or as their owner keeps them."""


class LongSnapshot(msgspec.Struct, frozen=True):
    """Keeps dead rows in all tables of the database."""

    kind: str
    """session, prepared transaction, or replication slot."""
    detail: str
    """The session with its statement, or the name."""
    pid: int | None
    """Server process of a session."""
    since: str | None
    seconds: float | None


class LeftState(msgspec.Struct, frozen=True):
    """Entries of a collection that no code reads any more."""

    computation: str
    collection: str
    generation: int
    """The newest one that knows them."""


class DiskTables(msgspec.Struct, frozen=True):
    tables: list[TableUse]
    """The largest first."""
    snapshots: list[LongSnapshot]
    """Those older than a minute, the oldest first, at most `MOST_SNAPSHOTS`."""
    sees_all_sessions: bool
    """Whether this login would see the snapshots of others."""
    orphaned: list[LeftState]


def disk_tables(connection: psycopg.Connection[Any], pipeline: str) -> DiskTables:
    """Sizes are of now, and not of the connection's snapshot."""
    statements = Statements(pipeline)
    tables = connection.execute(statements.get("disk_tables", disk_use="disk_use"))
    snapshots = connection.execute(
        statements.get("long_snapshots", old_snapshots="old_snapshots"), {"most": MOST_SNAPSHOTS}
    )
    return DiskTables(
        [TableUse(*row) for row in tables.fetchall()],
        [
            LongSnapshot(kind, what, pid, iso_text(since), seconds)
            for kind, what, pid, since, seconds in snapshots.fetchall()
        ],
        bool(connection.execute(statements.get("sees_all_sessions")).fetchall()[0][0]),
        [LeftState(*left) for left in orphaned(connection, statements)],
    )
