"""What an operator changes in a store by hand: injectors paused, dead letters let go, pipelines
removed."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

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


class Paused(NamedTuple):
    """What came of pausing injectors, or of letting them go on."""

    changed: list[str]
    """Those that were not so before, in the order of the graph."""
    unchanged: list[str]
    """Those that were asked for and were so already."""
    workers: int
    """That run the pipeline: they look every second or so."""


def pause(url: str, pipeline: str, injectors: Sequence[str] = (), *, paused: bool = True) -> Paused:
    """Let injectors of a pipeline rest (or, `paused` False, read on): these, or all of them.

    Raises:
        UsageError: there is no such pipeline, or no such injector; then nothing is changed.
    """
    with _transaction(url) as connection:
        _find(connection, pipeline)
        statements = Statements(pipeline)
        known = [name for (name,) in connection.execute(statements.get("list_injectors"))]
        missing = [name for name in injectors if name not in known]
        if missing:
            raise UsageError(
                f"pipeline {pipeline!r} has no injector {', '.join(map(repr, missing))}; it has: "
                f"{', '.join(known) or 'none'}. Nothing was changed"
            )
        rows = connection.execute(
            statements.get("pause_injectors"),
            {"names": list(injectors) or None, "paused": paused},
        )
        found = {name for (name,) in rows}
        asked = [name for name in known if not injectors or name in injectors]
        return Paused(
            [name for name in asked if name in found],
            [name for name in asked if name not in found],
            len(_alive(connection, statements)),
        )


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
        for host, pid, lease_left in _alive(connection, statements):
            raise UsageError(
                f"pipeline {pipeline!r} is being run by process {pid} on {host!r} "
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


def _alive(
    connection: psycopg.Connection[Any], statements: Statements
) -> list[tuple[str, int, float]]:
    """Host, process and what is left of the lease of each worker that runs."""
    return [
        (host.split()[0], pid, lease_left)
        for _, host, pid, pid_started, _, lease_left in connection.execute(
            statements.get("other_workers")
        )
        if lease_left > 0 and not is_dead(host, pid, pid_started)
    ]


def _find(connection: psycopg.Connection[Any], pipeline: str) -> None:
    rows = connection.execute(Statements(pipeline).get("list_pipelines")).fetchall()
    choose([name for (name,) in rows], pipeline)
