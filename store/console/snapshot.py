"""Consistent reads of a store: several statements under one snapshot, without lost rows (I15).

Buckets are dropped while readers work. A snapshot that is older than the drop, and has no lock,
misses the rows of the bucket without an error. So `snapshot` locks the buckets first, and takes its
snapshot afterwards::

    from millwheel.store.snapshot import snapshot

    with snapshot(".millwheel", "zeitgeist") as connection:
        states = connection.execute("SELECT * FROM states").fetchall()
        timers = connection.execute("SELECT * FROM timers").fetchall()

Both queries read the same moment. While the block runs, no bucket of the pipeline is dropped.
"""

from __future__ import annotations

import contextlib
import re
import struct
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

import psycopg
from psycopg import errors, sql
from psycopg.adapt import Buffer
from psycopg.conninfo import make_conninfo
from psycopg.types.datetime import TimestamptzBinaryLoader, TimestamptzLoader

from millwheel.core.suggestion import with_suggestion
from millwheel.errors import MillwheelError, StoreUnavailable, UsageError
from millwheel.store.address import StoreAddress
from millwheel.store.console.presence import present
from millwheel.store.postgres import session
from millwheel.store.postgres.blockers import lock_holders
from millwheel.store.postgres.statements import BUCKETED, Statements, composed, text_of
from millwheel.store.postgres.translation import translate, unreached

CONNECT_SECONDS = 5

LOCK_SECONDS = 3

STATEMENT_SECONDS = 60

LOCK_ATTEMPTS = 5
"""Attempts to lock the buckets: another session may drop a pipeline between list and lock."""


@contextlib.contextmanager
def snapshot(
    store: str | None = None, pipeline: str | None = None, *, seconds: float = STATEMENT_SECONDS
) -> Iterator[psycopg.Connection[Any]]:
    """A read-only connection on which all statements read the same moment.

    Names of the pipeline's tables and views need no schema in front. Times are in UTC; infinity,
    the end of event time, is read as `datetime.max`, and -infinity, its begin, as `datetime.min`.

    Args:
        store: as ``--store``: a directory or a Postgres URL; None: ``MILLWHEEL_STORE``, or
            ``.millwheel``.
        pipeline: None if the store has only one.
        seconds: longest run of one statement.

    Raises:
        UsageError: there is no such store or pipeline, or the store has several pipelines.
        StoreError: the store cannot be reached, or Postgres refuses to read it.
    """
    with present(StoreAddress.parse(store)) as presence:
        with reading(presence.url) as connection, translated():
            name = choose(list_pipelines(connection), pipeline)
        with reading(presence.url, seconds, (name, "public")) as connection:
            connection.adapters.register_loader("timestamptz", _EndsOfTimeLoader)
            connection.adapters.register_loader("timestamptz", _BinaryEndsOfTimeLoader)
            with translated():
                begin_snapshot(connection, [name])
            yield connection


@contextlib.contextmanager
def reading(
    url: str, seconds: float = STATEMENT_SECONDS, search_path: tuple[str, ...] = ()
) -> Iterator[psycopg.Connection[Any]]:
    """A connection that changes nothing and commits each statement, none of which runs longer than
    `seconds`."""
    path = sql.SQL(",").join(map(sql.Identifier, search_path)).as_string(None)
    try:
        connection = session.connect(
            make_conninfo(
                url,
                application_name="millwheel look",
                connect_timeout=CONNECT_SECONDS,
                client_encoding="utf8",
            ),
            {
                "search_path": path,
                "timezone": "UTC",
                "datestyle": "ISO",
                "statement_timeout": f"{int(seconds * 1000)}ms",
                "lock_timeout": f"{LOCK_SECONDS}s",
                "jit": "off",
            },
        )
    except psycopg.Error as error:
        raise unreached(error) from error
    with contextlib.closing(connection):
        try:
            with translated():
                connection.execute(text_of("set_read_only"))
            yield connection
        except MillwheelError as error:
            if isinstance(error.__cause__, errors.LockNotAvailable):
                raise _locked(url) from error
            raise


def _locked(url: str) -> StoreUnavailable:
    holders = lock_holders(url)
    whom = "".join(f"\n  {holder}" for holder in holders)
    return StoreUnavailable(
        f"tables of the store were locked for {LOCK_SECONDS} s by other sessions:{whom}\nEnd that "
        "transaction, or its session. Workers wait for it too"
        if holders
        else (
            f"tables of the store were locked for {LOCK_SECONDS} s by another session, which has "
            "gone since: try again"
        )
    )


def begin_snapshot(
    connection: psycopg.Connection[Any], pipelines: Sequence[str] | None = None
) -> None:
    """Lock the buckets of pipelines (None: all), so that none is dropped, and then begin to read at
    one moment."""
    statements = Statements("")
    for attempt in range(LOCK_ATTEMPTS):
        names = list_pipelines(connection) if pipelines is None else list(pipelines)
        found = connection.execute(
            statements.get("bucket_parents"), {"pipelines": names, "tables": list(BUCKETED)}
        ).fetchall()
        connection.execute(text_of("begin_snapshot"))
        if not found:
            return
        tables = sql.SQL(", ").join(sql.Identifier(*name) for name in found)
        try:
            connection.execute(composed("lock_for_reading", tables=tables))
        except (errors.UndefinedTable, errors.InvalidSchemaName):
            if attempt == LOCK_ATTEMPTS - 1:
                raise
            connection.execute("ROLLBACK")
        else:
            connection.execute(text_of("ping"))  # the first query takes the snapshot
            return


def list_pipelines(connection: psycopg.Connection[Any]) -> list[str]:
    return [name for (name,) in connection.execute(Statements("").get("list_pipelines"))]


def choose(pipelines: Sequence[str], wanted: str | None) -> str:
    """The wanted pipeline, or the only one; otherwise `UsageError`."""
    if wanted is not None:
        if wanted not in pipelines:
            message = (
                f"the store has no pipeline {wanted!r} that this login has a role of; it may read: "
                f"{', '.join(pipelines) or 'none'}"
            )
            raise UsageError(with_suggestion(message, wanted, pipelines))
        return wanted
    if not pipelines:
        raise UsageError("the store has no pipeline yet that this login has a role of")
    if len(pipelines) > 1:
        raise UsageError(
            f"the store has several pipelines: {', '.join(pipelines)}; name one with --pipeline"
        )
    return pipelines[0]


@contextlib.contextmanager
def translated() -> Iterator[None]:
    try:
        yield
    except psycopg.Error as error:
        raise translate(error) from error


# -- the ends of time, which psycopg refuses to read --------------------------------------------

BEGIN_OF_TIME = datetime.min.replace(tzinfo=UTC)
END_OF_TIME = datetime.max.replace(tzinfo=UTC)


class _EndsOfTimeLoader(TimestamptzLoader):
    def load(self, data: Buffer) -> datetime:
        text = bytes(data)
        if text == b"infinity":
            return END_OF_TIME
        if text == b"-infinity":
            return BEGIN_OF_TIME
        return super().load(data)


class _BinaryEndsOfTimeLoader(TimestamptzBinaryLoader):
    def load(self, data: Buffer) -> datetime:
        (micros,) = struct.unpack("!q", data)
        if micros == (1 << 63) - 1:
            return END_OF_TIME
        if micros == -1 << 63:
            return BEGIN_OF_TIME
        return super().load(data)


def iso_text(text: str | None) -> str | None:
    if text is None or " " not in text or text.endswith("BC"):
        return text
    text = text.replace(" ", "T", 1)
    return f"{text}:00" if re.search(r"[+-]\d\d\Z", text) else text
