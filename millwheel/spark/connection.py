"""How the driver and the Spark workers reach the store: read only, repeatable read, redacted.

Every connection of this package is one transaction that ends with it. It never writes, and
what goes wrong comes out as one of millwheel's own errors, without the password.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.resources import files

import psycopg
from psycopg import sql
from psycopg.rows import TupleRow
from psycopg.types.numeric import Int4BinaryLoader, Int8BinaryLoader

from millwheel.errors import StatementError, StoreError, StoreUnavailable, UsageError
from millwheel.store.address import VARIABLE, StoreAddress

APPLICATION = "millwheel spark"
CONNECT_SECONDS = 10
LOCK_SECONDS = 10
"""How long to wait for a table that a migration is changing."""

Connection = psycopg.Connection[TupleRow]


def statement(name: str) -> bytes:
    """The text of ``millwheel/spark/sql/NAME.sql``."""
    return (files("millwheel.spark") / "sql" / f"{name}.sql").read_bytes()


def store_url(options: Mapping[str, str]) -> str:
    """The option ``store``, else the variable MILLWHEEL_STORE; a URL in either case."""
    found = options.get("store") or os.environ.get(VARIABLE)
    if not found:
        raise UsageError(f"no store given: set the option 'store' to postgresql://…, or {VARIABLE}")
    address = StoreAddress.parse(found)
    if address.url is None:
        raise UsageError(
            f"the store {found!r} is not a postgresql:// URL: a directory is a server that has to "
            "run first, which `millwheel spark` sees to"
        )
    return address.url


def redacted(url: str) -> str:
    """The URL without its secrets: fit for messages and logs."""
    return StoreAddress(url=url).redacted()


@contextmanager
def reading(url: str, *, snapshot: str | None = None) -> Iterator[Connection]:
    """One read-only transaction, on the exported `snapshot` if there is one."""
    with opened(url, snapshot=snapshot) as connection, translated(url):
        yield connection


@contextmanager
def opened(url: str, *, snapshot: str | None = None) -> Iterator[Connection]:
    """As :func:`reading`, but errors inside the block stay what they are.

    The server may not end it for being idle: between two batches it waits for Spark, and the
    holder of a snapshot is idle by design.
    """
    with translated(url):
        connection = psycopg.connect(
            url,
            application_name=APPLICATION,
            connect_timeout=CONNECT_SECONDS,
            client_encoding="UTF8",
        )
    try:  # closed whatever happens, and never committed: there is nothing to commit
        with translated(url):
            _prepare(connection)
            if snapshot is not None:
                _join(connection, snapshot)
        yield connection
    finally:
        connection.close()


def lock(connection: Connection, pipeline: str, tables: list[str]) -> None:
    """Keep `tables` from being dropped, truncated or rewritten while this transaction lasts.

    To be called before the first query: the transaction's snapshot is taken by that query, and
    a table truncated between snapshot and lock reads as empty, without an error.
    """
    if tables:
        names = sql.SQL(", ").join(sql.Identifier(pipeline, table) for table in tables)
        connection.execute(sql.SQL("LOCK TABLE {} IN ACCESS SHARE MODE").format(names))


@contextmanager
def translated(url: str) -> Iterator[None]:
    """Turn Postgres' errors into millwheel's."""
    try:
        yield
    except psycopg.errors.LockNotAvailable as error:
        raise StoreUnavailable(
            f"a table stayed locked for {LOCK_SECONDS} s, as it does while a migration runs: {error}"
        ) from error
    except psycopg.OperationalError as error:
        raise StoreUnavailable(f"the store {redacted(url)} cannot be used: {error}") from error
    except psycopg.Error as error:
        raise StatementError(f"Postgres refused to read from {redacted(url)}: {error}") from error


def _prepare(connection: Connection) -> None:
    # SET takes no snapshot: LOCK and SET TRANSACTION SNAPSHOT may still follow.
    connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
    connection.read_only = True
    connection.execute("SET LOCAL idle_in_transaction_session_timeout = 0")
    if connection.info.server_version >= 170000:
        connection.execute("SET LOCAL transaction_timeout = 0")
    connection.execute(
        sql.SQL("SET LOCAL lock_timeout = {}").format(sql.Literal(f"{LOCK_SECONDS}s"))
    )
    # For what a view or a filter makes of times without a zone.
    connection.execute("SET LOCAL timezone = 'UTC'")
    # A cursor is planned as if a tenth of its rows were wanted; these are read to the end.
    connection.execute("SET LOCAL cursor_tuple_fraction = 1")
    # Times as the integers they are on the wire: no datetime is made that Arrow takes apart
    # again, and infinity or a year past 9999 reaches the place that can name the column.
    for type_name, loader in (
        ("timestamptz", Int8BinaryLoader),
        ("timestamp", Int8BinaryLoader),
        ("date", Int4BinaryLoader),
    ):
        connection.adapters.register_loader(type_name, loader)


def _join(connection: Connection, snapshot: str) -> None:
    try:
        connection.execute(sql.SQL("SET TRANSACTION SNAPSHOT {}").format(sql.Literal(snapshot)))
    except psycopg.Error as error:
        if connection.broken:
            raise
        raise StoreError(
            f"the snapshot {snapshot} is not held any more: a DataFrame has to be computed before "
            "its snapshot is closed (with `millwheel spark`: before the job's function returns). "
            f"Postgres says: {error}"
        ) from error
