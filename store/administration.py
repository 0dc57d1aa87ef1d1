"""What an operator changes in a store by hand: dead letters let go, pipelines removed."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import psycopg
from psycopg.conninfo import make_conninfo

from millwheel.errors import StoreUnavailable, UsageError
from millwheel.store.inspection import CONNECT_SECONDS, choose, is_dead, translated
from millwheel.store.statements import Statements

LOCK_SECONDS = 10
"""How long a removal waits for those who are reading."""


@contextlib.contextmanager
def _transaction(url: str) -> Iterator[psycopg.Connection[Any]]:
    try:
        connection = psycopg.connect(
            make_conninfo(
                url,
                application_name="millwheel administration",
                connect_timeout=CONNECT_SECONDS,
                options=f"-c search_path= -c timezone=UTC -c lock_timeout={LOCK_SECONDS}s",
            )
        )
    except psycopg.Error as error:
        raise StoreUnavailable(f"the store cannot be reached: {str(error).strip()}") from error
    with translated(), connection:
        yield connection


def discard_dead_letters(url: str, pipeline: str, numbers: list[int] | None) -> list[int]:
    """Forget dead letters: those with these numbers, or all. Gives the numbers forgotten.

    Raises:
        UsageError: some of them are not there; then none is forgotten.
    """
    with _transaction(url) as connection:
        text = Statements(pipeline).get("discard_dead_letters")
        found = [number for (number,) in connection.execute(text, {"ids": numbers})]
        missing = sorted({*(numbers or [])} - {*found})
        if missing:
            raise UsageError(
                f"pipeline {pipeline!r} has no dead letter {', '.join(map(str, missing))}; "
                "nothing was discarded"
            )
        return sorted(found)


def schema_size(url: str, pipeline: str) -> tuple[int, int]:
    """How many tables a pipeline has in the store, and their bytes.

    Raises:
        UsageError: there is no such pipeline.
    """
    with _transaction(url) as connection:
        _find(connection, pipeline)
        text = Statements(pipeline).get("schema_size")
        row = connection.execute(text, {"schema": pipeline}).fetchone()
        assert row is not None
        return row[0], row[1]


def drop_pipeline(url: str, pipeline: str) -> None:
    """Remove a pipeline's schema with everything in it.

    Raises:
        UsageError: there is no such pipeline, or a live worker runs it.
        StoreUnavailable: somebody reads its tables for longer than `LOCK_SECONDS`.
    """
    with _transaction(url) as connection:
        # The lock of deploy and migrate: neither begins while this goes on.
        connection.execute(
            "SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", [f"millwheel {pipeline}"]
        )
        _find(connection, pipeline)
        statements = Statements(pipeline)
        for _, host, pid, pid_started, _, lease_left in connection.execute(
            statements.get("other_workers")
        ):
            if lease_left > 0 and not is_dead(host, pid, pid_started):
                raise UsageError(
                    f"pipeline {pipeline!r} is being run by process {pid} on {host.split()[0]!r} "
                    f"(its lease ends in {lease_left:.0f} s unless it renews it). Stop that one "
                    "first; nothing was removed"
                )
        try:
            connection.execute(statements.get("drop_schema"))
        except psycopg.errors.LockNotAvailable as error:
            raise StoreUnavailable(
                f"somebody has been reading tables of {pipeline!r} for {LOCK_SECONDS} s, a backup "
                "or a report maybe; nothing was removed. Try again when it has ended"
            ) from error


def _find(connection: psycopg.Connection[Any], pipeline: str) -> None:
    rows = connection.execute(Statements(pipeline).get("list_pipelines")).fetchall()
    choose([name for (name,) in rows], pipeline)
