"""Changes that an operator makes in a store: pause injectors, remove nodes and pipelines."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import psycopg
from psycopg.conninfo import make_conninfo

from millwheel.core.model import SLOTS
from millwheel.core.suggestion import with_suggestion
from millwheel.errors import StoreUnavailable, UsageError
from millwheel.store.console.asking import UNNAMED, Actor, Asking
from millwheel.store.console.live_workers import live_workers
from millwheel.store.console.published_names import published_names
from millwheel.store.console.snapshot import CONNECT_SECONDS, choose, list_pipelines, translated
from millwheel.store.console.step_names import name_of_step
from millwheel.store.console.views import refuse_lookalikes
from millwheel.store.port.queries import StoredQueries, SubmittedQuery, find_query
from millwheel.store.postgres import session
from millwheel.store.postgres.processes import is_dead
from millwheel.store.postgres.queries import queries_of
from millwheel.store.postgres.removal import ATTEMPTS, Removal
from millwheel.store.postgres.statements import READ_COMMITTED, Statements
from millwheel.store.postgres.translation import unreached

LOCK_SECONDS = 10

SLOTS_AT_A_TIME = 1024


@contextlib.contextmanager
def transaction(url: str) -> Iterator[psycopg.Connection[Any]]:
    """A transaction that waits for no lock longer than `LOCK_SECONDS`."""
    try:
        connection = session.connect(
            make_conninfo(
                url,
                application_name="millwheel administration",
                connect_timeout=CONNECT_SECONDS,
            ),
            {
                "search_path": "",
                "timezone": "UTC",
                "lock_timeout": f"{LOCK_SECONDS}s",
                **READ_COMMITTED,
            },
            autocommit=False,
        )
    except psycopg.Error as error:
        raise unreached(error) from error
    with translated(), connection:
        yield connection


@contextlib.contextmanager
def locked_pipeline(url: str, pipeline: str) -> Iterator[psycopg.Connection[Any]]:
    """A transaction beside which no deploy and no migration begins."""
    with transaction(url) as connection:
        _lock(connection, Statements(pipeline), pipeline)
        yield connection


class Paused(NamedTuple):
    changed: list[str]
    """Injectors that the call has paused or resumed, in the order of the graph."""
    unchanged: list[str]
    """Named injectors that were paused, or running, already."""
    workers: int
    """Workers that run the pipeline; they notice the change within about a second."""


def pause(
    url: str,
    pipeline: str,
    injectors: Sequence[str] = (),
    *,
    paused: bool = True,
    actor: Actor = UNNAMED,
) -> Paused:
    """Pause injectors (none named: all), or resume them.

    `UsageError` if there is no such pipeline or injector.
    """
    with transaction(url) as connection:
        _find(connection, pipeline)
        statements = Statements(pipeline)
        injectors = [name_of_step(connection, pipeline, name) for name in injectors]
        known = [name for (name,) in connection.execute(statements.get("list_injectors"))]
        missing = [name for name in injectors if name not in known]
        if missing:
            message = (
                f"pipeline {pipeline!r} has no injector {', '.join(map(repr, missing))}; it has: "
                f"{', '.join(known) or 'none'}. Nothing was changed"
            )
            raise UsageError(with_suggestion(message, missing[0], known))
        rows = connection.execute(
            statements.get("pause_injectors"),
            {"names": list(injectors) or None, "paused": paused},
        )
        found = {name for (name,) in rows}
        if found:
            verb = "pause" if paused else "resume"
            Asking(connection, pipeline).note(actor, verb, {"injectors": sorted(found)})
        asked = [name for name in known if not injectors or name in injectors]
        return Paused(
            [name for name in asked if name in found],
            [name for name in asked if name not in found],
            len(live_workers(connection, statements)),
        )


def schema_size(url: str, pipeline: str) -> tuple[int, int]:
    """Number of tables, and bytes."""
    with transaction(url) as connection:
        _find(connection, pipeline)
        text = Statements(pipeline).get("schema_size")
        row = connection.execute(text, {"schema": pipeline}).fetchone()
        assert row is not None
        return row[0], row[1]


def drop_pipeline(url: str, pipeline: str) -> None:
    """Remove a pipeline's schema with everything in it.

    Raises:
        UsageError: there is no such pipeline, a live worker runs it, or readers use names that lead
            to it.
        StoreUnavailable: another session reads its tables for longer than `LOCK_SECONDS`.
    """
    with transaction(url) as connection:
        statements = Statements(pipeline)
        _lock(connection, statements, pipeline)
        for host, pid, lease_left in live_workers(connection, statements):
            raise UsageError(
                f"pipeline {pipeline!r} is being run by process {pid} on {host!r} "
                f"(its lease ends in {lease_left:.0f} s unless it renews it). Stop that one "
                "first; nothing was removed"
            )
        if published := published_names(connection, pipeline):
            names = ", ".join(one.words for one in published)
            schema = published[0].schema
            raise UsageError(
                f"readers use its tables as {names}. Let the names lead to another pipeline: "
                f"millwheel switch {pipeline} NEW; or drop them: millwheel unpublish {pipeline} "
                f"--in {schema}. Nothing was removed"
            )
        try:
            connection.execute(statements.get("drop_schema"))
        except psycopg.errors.LockNotAvailable as error:
            raise StoreUnavailable(
                f"another session has been reading tables of {pipeline!r} for {LOCK_SECONDS} s, a "
                "backup or a report maybe; nothing was removed. Try again when it has ended"
            ) from error


def remove_computations(
    url: str, pipeline: str, names: list[str], *, actor: Actor = UNNAMED
) -> int:
    """Remove nodes from a pipeline, which may be running; returns the number of deleted rows.

    One short transaction takes them out of the graph: workers release their intervals, senders
    treat records for them as acknowledged, and no watermark waits for them. Then their state and
    timers are deleted step by step. A repeated call resumes an interrupted removal.

    Raises:
        UsageError: there is no such node, a remaining node needs it, an open numbered bundle has
            records of it, or a worker that has the pipeline to itself is running.
        StoreUnavailable: a commit holds an interval for too long.
    """
    return delete_removed(url, pipeline, _take_away(url, pipeline, names, actor))


def delete_removed(url: str, pipeline: str, ids: Sequence[int]) -> int:
    """Delete state and timers of removed nodes step by step; returns the number of rows."""
    statements = Statements(pipeline)
    deleted = 0
    for low in range(0, SLOTS, SLOTS_AT_A_TIME):
        which = {"slot_from": low, "slot_to": low + SLOTS_AT_A_TIME, "computations": list(ids)}
        with transaction(url) as connection:
            for name in ("delete_states", "delete_timers"):
                deleted += connection.execute(statements.get(name), which).rowcount
    return deleted


def drop_query(url: str, pipeline: str, name: str, *, actor: Actor = UNNAMED) -> SubmittedQuery:
    """Remove the steps of a submitted query, as `remove_computations` does; workers notice it.

    Raises:
        UsageError: there is no such query, or a remaining node needs its steps.
        StoreUnavailable: a commit holds an interval for too long.
    """
    statements = Statements(pipeline)
    with transaction(url) as connection:
        _lock(connection, statements, pipeline)
        query = find_query(queries_of_pipeline(connection, statements), name)

        def take_away() -> list[int]:
            removed = _begin_without(connection, statements, pipeline, list(query.steps))
            connection.execute(statements.get("drop_query"), {"name": name})
            Asking(connection, pipeline).note(actor, "drop query", {"query": name})
            return removed

        removed = _attempted(connection, query.steps, take_away)
    delete_removed(url, pipeline, removed)
    return query


def queries_of_pipeline(
    connection: psycopg.Connection[Any], statements: Statements
) -> StoredQueries:
    row = connection.execute(statements.get("stored_queries")).fetchone()
    assert row is not None
    return queries_of(row)


def _attempted(
    connection: psycopg.Connection[Any], names: Sequence[str], change: Callable[[], list[int]]
) -> list[int]:
    """Make a change that waits for commits of owners; it is repeated if one holds its interval for
    long."""
    for _ in range(ATTEMPTS):
        try:
            with connection.transaction():
                return change()
        except (psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected):
            pass
    raise StoreUnavailable(
        f"a commit that does not end holds an interval of {', '.join(names)}, maybe of a "
        "process that was stopped; nothing was removed"
    )


def _take_away(url: str, pipeline: str, names: list[str], actor: Actor) -> list[int]:
    statements = Statements(pipeline)
    with transaction(url) as connection:
        _lock(connection, statements, pipeline)
        names = [name_of_step(connection, pipeline, name) for name in names]
        found = connection.execute(statements.get("removed_ids"), {"names": names}).fetchall()
        left = sorted({*names} - {name for _, name in found})
        if not left:
            return [id_ for id_, _ in found]
        _refuse_steps_of_queries(connection, statements, pipeline, left)
        for host, pid, pid_started in connection.execute(statements.get("lone_workers")):
            if not is_dead(host, pid, pid_started):
                raise UsageError(
                    f"pipeline {pipeline!r} is being run by process {pid} on {host.split()[0]!r}, "
                    "which has the pipeline to itself and would not notice. Stop that one first; "
                    "nothing was removed"
                )
        removed = _attempted(
            connection, left, lambda: _begin_without(connection, statements, pipeline, left)
        )
        Asking(connection, pipeline).note(actor, "remove", {"computations": left})
        return [*removed, *(id_ for id_, _ in found)]


def _refuse_steps_of_queries(
    connection: psycopg.Connection[Any], statements: Statements, pipeline: str, names: list[str]
) -> None:
    for query in queries_of_pipeline(connection, statements).queries:
        steps = sorted({*query.steps} & {*names})
        if steps:
            raise UsageError(
                f"{', '.join(steps)} of pipeline {pipeline!r} belong to the submitted query "
                f"{query.name!r}: millwheel query drop MODULE:PIPELINE {query.name}. Nothing was "
                "removed"
            )


def _begin_without(
    connection: psycopg.Connection[Any], statements: Statements, pipeline: str, names: list[str]
) -> list[int]:
    steps = Removal(statements, pipeline, names).run()
    text, params = next(steps)
    while True:
        cursor = connection.execute(text, params)
        rows = cursor.fetchall() if cursor.description is not None else []
        try:
            text, params = steps.send(rows)
        except StopIteration as end:
            return list(end.value)


def _lock(connection: psycopg.Connection[Any], statements: Statements, pipeline: str) -> None:
    """Find a pipeline, and take the lock of deploy and migrate: none of them begins before this
    transaction has ended."""
    _find(connection, pipeline)
    try:
        with connection.transaction():
            connection.execute(statements.get("lock_pipeline"))
    except (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName):
        pass  # it was dropped in between
    _find(connection, pipeline)
    refuse_lookalikes(connection, pipeline)


def _find(connection: psycopg.Connection[Any], pipeline: str) -> None:
    choose(list_pipelines(connection), pipeline)
