"""Connections of the driver and the Spark workers to the store.

A connection that reads is one transaction, repeatable read, which never writes and ends with the
connection. Errors are raised as millwheel's own, without the password.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from struct import Struct

import psycopg
from psycopg import sql
from psycopg.abc import Buffer
from psycopg.adapt import Loader
from psycopg.conninfo import make_conninfo
from psycopg.pq import Format
from psycopg.rows import TupleRow
from psycopg.types.numeric import Int4BinaryLoader, Int8BinaryLoader

from millwheel.errors import SnapshotGone, StatementError, StoreUnavailable, UsageError
from millwheel.store.address import VARIABLE, StoreAddress
from millwheel.store.postgres import session
from millwheel.store.postgres.statements import filled

APPLICATION = "millwheel spark"
CONNECT_SECONDS = 10
LOCK_SECONDS = 10

SOLE_SECONDS = 30.0
"""Longest wait for a process that does the same and is about to end."""

INTERVAL = Struct("!qii")
"""Microseconds, days and months, as Postgres sends an interval."""
INFINITE = ((2**63 - 1, 2**31 - 1, 2**31 - 1), (-(2**63), -(2**31), -(2**31)))
"""Postgres has infinite intervals from 17 on."""

Connection = psycopg.Connection[TupleRow]


def statement(name: str, pipeline: str = "", **parts: sql.Composable) -> sql.Composed:
    """The statement in ``sql/NAME.sql``; `parts` and relations of a pipeline fill placeholders."""
    return filled("millwheel.spark", name, pipeline, **parts)


def store_url(options: Mapping[str, str]) -> str:
    """The option ``store``, or otherwise MILLWHEEL_STORE; both must be a URL."""
    found = options.get("store") or os.environ.get(VARIABLE)
    if not found:
        raise UsageError(f"no store given: set the option 'store' to postgresql://…, or {VARIABLE}")
    address = StoreAddress.parse(found)
    if address.url is None:
        raise UsageError(
            f"the store {found!r} is not a postgresql:// URL. The server of a directory has to run "
            "first: `millwheel spark report` starts it"
        )
    return address.url


def redacted(url: str) -> str:
    """The URL without its password, for messages and logs."""
    return StoreAddress(url=url).redacted()


def connected(url: str, *, autocommit: bool = False) -> Connection:
    conninfo = make_conninfo(
        url,
        application_name=APPLICATION,
        connect_timeout=CONNECT_SECONDS,
        client_encoding="UTF8",
    )
    return session.connect(conninfo, {"timezone": "UTC"}, autocommit=autocommit)


class IntervalLoader(Loader):
    """Months stay text, which `SparkColumn.to_arrow` refuses."""

    format = Format.BINARY

    def load(self, data: Buffer) -> int | str:
        micros, days, months = INTERVAL.unpack(data)
        if (micros, days, months) in INFINITE:
            return int(micros)
        return f"{months} months" if months else int(micros + days * 86_400_000_000)


@contextmanager
def writing(url: str, *, autocommit: bool = False) -> Iterator[Connection]:
    with translated(url), connected(url, autocommit=autocommit) as connection:
        yield connection


@contextmanager
def reading(url: str, *, snapshot: str | None = None) -> Iterator[Connection]:
    with opened(url, snapshot=snapshot) as connection, translated(url):
        yield connection


@contextmanager
def opened(url: str, *, snapshot: str | None = None) -> Iterator[Connection]:
    """Like :func:`reading`, but without translating errors inside the block.

    Idle timeouts are disabled: a reader waits for Spark between two batches, and the holder of a
    snapshot is idle by design.
    """
    with translated(url):
        connection = connected(url)
    try:  # always closed, and never committed: there is nothing to commit
        with translated(url):
            _prepare(connection)
            if snapshot is not None:
                _join(connection, snapshot)
        yield connection
    finally:
        connection.close()


@contextmanager
def sole(url: str, pipeline: str, name: str, others: str) -> Iterator[None]:
    """Keep other processes from the same work during the block; `others` begins the error's text.

    The lock is one of the whole database, and for people: if its session ends, the number of the
    batch still keeps two processes apart. `UsageError` if another process keeps the lock.
    """
    which = {"key": f"{pipeline}{name}", "schema": pipeline}
    deadline = time.monotonic() + SOLE_SECONDS
    with writing(url, autocommit=True) as session:
        while not session.execute(statement("sessions/lock_alone"), which).fetchall()[0][0]:
            if time.monotonic() > deadline:
                raise UsageError(f"{others}; end it first")
            time.sleep(0.5)
        yield


def lock(connection: Connection, pipeline: str, tables: list[str]) -> None:
    """Prevent `tables` from being dropped, truncated or rewritten during this transaction.

    Call it before the first query, which takes the snapshot: a table truncated between snapshot and
    lock reads as empty, without an error.
    """
    if tables:
        names = sql.SQL(", ").join(sql.Identifier(pipeline, table) for table in tables)
        connection.execute(statement("sessions/lock_tables", tables=names))


def limit_lock_wait(connection: Connection) -> None:
    timeout = sql.Literal(f"{LOCK_SECONDS}s")
    connection.execute(statement("sessions/limit_lock_wait", timeout=timeout))


@contextmanager
def translated(url: str) -> Iterator[None]:
    try:
        yield
    except psycopg.errors.LockNotAvailable as error:
        raise StoreUnavailable(
            f"a table stayed locked for {LOCK_SECONDS} s, as it does while a migration runs: "
            f"{error}"
        ) from error
    except psycopg.OperationalError as error:
        raise StoreUnavailable(f"the store {redacted(url)} cannot be used: {error}") from error
    except psycopg.Error as error:
        raise StatementError(f"Postgres refused a statement in {redacted(url)}: {error}") from error


def _prepare(connection: Connection) -> None:
    connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
    connection.read_only = True
    connection.execute(statement("sessions/begin_reading"))
    if connection.info.server_version >= 170000:
        connection.execute(statement("sessions/allow_long_transaction"))
    limit_lock_wait(connection)
    # Load times as the integers that Postgres sends: this saves the conversion to datetime and
    # back, and infinity or a year after 9999 reaches `SparkColumn.to_arrow`.
    for type_name, loader in (
        ("timestamptz", Int8BinaryLoader),
        ("timestamp", Int8BinaryLoader),
        ("date", Int4BinaryLoader),
        ("interval", IntervalLoader),
    ):
        connection.adapters.register_loader(type_name, loader)


def _join(connection: Connection, snapshot: str) -> None:
    try:
        connection.execute(statement("sessions/join_snapshot", snapshot=sql.Literal(snapshot)))
    except psycopg.Error as error:
        if connection.broken:
            raise
        raise SnapshotGone(
            f"the snapshot {snapshot} is no longer held: a DataFrame has to be computed before its "
            "snapshot is closed (with `millwheel spark report`: before the job's function returns, "
            "and within --snapshot-seconds), and a restart of the server closes it. Postgres says: "
            f"{error}"
        ) from error
