"""Data that former code has written and the deployed code does not know: columns of sink tables,
and entries of collections of states (*orphaned state*)."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec
import psycopg
from psycopg import sql

from millwheel.core.model import SLOTS
from millwheel.errors import UsageError
from millwheel.store.console.administration import (
    SLOTS_AT_A_TIME,
    locked_pipeline,
    transaction,
)
from millwheel.store.console.asking import UNNAMED, Actor, Asking
from millwheel.store.postgres.statements import Statements, composed
from millwheel.store.postgres.states import SAMPLED_PLACES, SAMPLED_ROWS
from millwheel.store.rules.changes.table_changes import left_columns
from millwheel.store.rules.changes.type_changes import left_collections
from millwheel.store.rules.code import Code, Generation, with_present_names


class OrphanedState(NamedTuple):
    """Entries that no code reads."""

    computation: str
    collection: str
    generation: int
    """The newest one that knows them."""


def orphaned(connection: psycopg.Connection[Any], statements: Statements) -> list[OrphanedState]:
    """Collections with entries that the deployed code does not know, as far as a bounded part of a
    large pipeline shows."""
    left = left_collections(_history(connection, statements))
    if not left:
        return []
    names, collections = map(list, zip(*left, strict=True))
    params = {
        "names": names,
        "collections": collections,
        "slots": list(range(0, SLOTS, SLOTS // SAMPLED_PLACES)),
        "rows": SAMPLED_ROWS,
    }
    rows = connection.execute(statements.get("left_entries"), params).fetchall()
    return [OrphanedState(name, part, left[name, part]) for name, part in rows]


def drop_left_data(url: str, pipeline: str, *, actor: Actor = UNNAMED) -> list[str]:
    """Drop such columns, and delete such entries; returns a name for each.

    Raises:
        UsageError: workers of former code may still write some of it.
        StoreUnavailable: another session uses a table for long; nothing was dropped.
    """
    statements = Statements(pipeline)
    with locked_pipeline(url, pipeline) as connection:
        history = _history(connection, statements)
        found = orphaned(connection, statements)
        columns = _columns(connection, statements, history)
        last = {f"column {column} of table {table}": n for table, column, n in columns}
        last |= {f"entries of {of.collection} of {of.computation}": of.generation for of in found}
        _refuse_written(connection, statements, last)
        connection.execute(statements.get("wait_briefly_for_locks"))
        try:
            for table, column, _ in columns:
                names = {"table": statements.table(table), "column": sql.Identifier(column)}
                connection.execute(composed("drop_column", **names))
        except psycopg.errors.DependentObjectsStillExist as error:
            raise UsageError(
                f"{error.diag.message_primary}: {error.diag.message_detail}. Nothing was dropped; "
                "drop these objects first"
            ) from error
        if last:
            Asking(connection, pipeline).note(actor, "drop", {"what": list(last)})
        deployed = connection.execute(statements.get("deployed_computations")).fetchall()
    ids = {name: id_ for id_, name in deployed}
    for of in found:
        which = {"computation": ids[of.computation], "collection": of.collection}
        for low in range(0, SLOTS, SLOTS_AT_A_TIME):
            slots = {"slot_from": low, "slot_to": low + SLOTS_AT_A_TIME}
            with transaction(url) as connection:
                connection.execute(statements.get("delete_entries"), {**which, **slots})
    return list(last)


def _history(connection: psycopg.Connection[Any], statements: Statements) -> list[Generation]:
    """All generations, with the present names of their nodes."""
    rows = connection.execute(statements.get("deployed")).fetchall()
    history = [Generation(n, msgspec.json.decode(code, type=Code)) for n, code in rows]
    return with_present_names(history, {})


def _columns(
    connection: psycopg.Connection[Any], statements: Statements, history: list[Generation]
) -> list[tuple[str, str, int]]:
    """Tables and columns, each with the newest generation that writes it."""
    found: list[tuple[str, str, int]] = []
    for table in sorted(history[-1].code.tables if history else ()):
        place = {"schema": statements.schema, "table": table}
        there = {of[0] for of in connection.execute(statements.get("table_columns"), place)}
        left = left_columns(history, table)
        found += [(table, column, left[column]) for column in sorted(left.keys() & there)]
    return found


def _refuse_written(
    connection: psycopg.Connection[Any], statements: Statements, last: dict[str, int]
) -> None:
    """`UsageError` if an interval may still have an owner with code that writes some of it.

    Args:
        last: the newest generation that writes each, by its name.
    """
    rows = connection.execute(statements.get("least_generation")).fetchall()
    least = rows[0][0] if rows else None
    for name, generation in last.items():
        if least is not None and least <= generation:
            raise UsageError(
                f"workers of former code may still write the {name}: not all key intervals were "
                f"taken over since generation {generation}, which has it. Nothing was dropped; "
                "start workers of the deployed code, and repeat the command"
            )
