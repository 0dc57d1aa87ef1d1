"""The origin of a copy, as it is at one moment.

::

    list the tables ─▶ BEGIN, lock them for reading ─▶ snapshot

Workers of the origin continue; a deploy that changes a table waits, and folds wait for the snapshot
within their bound (I15).
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator
from contextlib import AbstractContextManager
from datetime import datetime
from typing import Any, NamedTuple

import psycopg
from psycopg import sql
from psycopg.conninfo import make_conninfo

from millwheel.errors import StoreError, StoreUnavailable, UsageError
from millwheel.store.console.inspection import Inspection
from millwheel.store.console.snapshot import CONNECT_SECONDS, translated
from millwheel.store.postgres import session
from millwheel.store.postgres.statements import composed, text_of
from millwheel.store.postgres.translation import unreached

SIGN = "@"
"""Between pipeline and label in the name of a savepoint: no pipeline has it in its name."""

LOCK_SECONDS = 10

LOCK_ATTEMPTS = 5

EMPTY = frozenset({"incarnation", "peer_secret", "worker", "worker_end"})
"""Tables that begin empty in a copy: they are about the processes that run the origin."""

SETTINGS = {
    "search_path": "",
    "timezone": "UTC",
    "datestyle": "ISO",
    "intervalstyle": "postgres",
    "bytea_output": "hex",
    "extra_float_digits": "1",
    "lock_timeout": f"{LOCK_SECONDS}s",
    "statement_timeout": "0",
    "idle_in_transaction_session_timeout": "0",
    "jit": "off",
}
"""Values as text have one form on each server, and no limit of the role ends a long copy."""


class Origin(NamedTuple):
    """A pipeline or savepoint at the snapshot of a transaction."""

    connection: psycopg.Connection[Any]
    name: str
    at: datetime
    """The moment that a copy shows: of a savepoint the same as that shows."""


def is_savepoint(name: str) -> bool:
    return SIGN in name


@contextlib.contextmanager
def origin_at_one_moment(
    url: str,
    name: str,
    explained: AbstractContextManager[None],
    without: Collection[str] = (),
) -> Iterator[Origin]:
    """A transaction that is rolled back if the block fails.

    Args:
        explained: turns errors of the server, from the first lock on, into the command's.
        without: tables that are neither locked nor read.

    Raises:
        UsageError: the origin was never run, its schema is of another version, or it runs on Spark.
    """
    with connected(url) as connection:
        require_copyable(connection, name)
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        with explained, contextlib.ExitStack() as transaction:
            for left in reversed(range(LOCK_ATTEMPTS)):
                found = connection.execute(text_of("list_tables"), {"schema": name}).fetchall()
                tables = [table for (table,) in found if table not in without]
                try:
                    with contextlib.ExitStack() as attempt:
                        attempt.enter_context(connection.transaction())
                        at = _take_snapshot(connection, name, tables)
                        transaction.enter_context(attempt.pop_all())
                        break
                except psycopg.errors.UndefinedTable:  # it was dropped before it was locked
                    if not left:
                        raise
            yield Origin(connection, name, at)


@contextlib.contextmanager
def reading_explained(origin: str) -> Iterator[None]:
    """Errors of the origin's server in words, for copies that make nothing there."""
    try:
        yield
    except psycopg.errors.LockNotAvailable as error:
        raise StoreUnavailable(
            f"another session has held a table of {origin!r} for {LOCK_SECONDS} s: a deploy, or a "
            "migration. Nothing was made; try again"
        ) from error
    except psycopg.errors.InsufficientPrivilege as error:
        raise StoreError(
            f"this login may not read all of {origin!r}: {str(error).strip()}. It takes the role "
            f"that owns the schema (DATABASE_{origin.partition(SIGN)[0]}_owner). Nothing was made"
        ) from error


@contextlib.contextmanager
def connected(url: str) -> Iterator[psycopg.Connection[Any]]:
    """A connection whose transactions wait for no lock longer than `LOCK_SECONDS`."""
    try:
        connection = session.connect(
            make_conninfo(
                url,
                application_name="millwheel copy",
                connect_timeout=CONNECT_SECONDS,
                client_encoding="utf8",
            ),
            SETTINGS,
        )
    except psycopg.Error as error:
        raise unreached(error) from error
    with contextlib.closing(connection), translated():
        yield connection


def require_copyable(connection: psycopg.Connection[Any], name: str) -> None:
    """`UsageError` if there is nothing to copy, or this code cannot."""
    inspection = Inspection(connection)
    inspection.require_owners(name)
    if not inspection.labels(name):
        raise UsageError(f"{name!r} was never run: there is nothing to copy")


def _take_snapshot(connection: psycopg.Connection[Any], name: str, tables: list[str]) -> datetime:
    """Locks first: a table that is dropped after the snapshot would be empty in it."""
    locked = sql.SQL(", ").join(sql.Identifier(name, table) for table in tables)
    connection.execute(composed("lock_for_reading", tables=locked))
    pipeline = sql.Identifier(name, "pipeline")
    found: datetime = connection.execute(
        composed("shown_moment", pipeline=pipeline), {"is_savepoint": is_savepoint(name)}
    ).fetchall()[0][0]
    return found
