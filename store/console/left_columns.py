"""Columns of sink tables that former code has written and the deployed code does not know."""

from __future__ import annotations

import msgspec
from psycopg import sql

from millwheel.errors import UsageError
from millwheel.store.console.administration import locked_pipeline
from millwheel.store.console.asking import UNNAMED, Actor, Asking
from millwheel.store.postgres.statements import Statements, composed
from millwheel.store.rules.changes.table_changes import left_columns
from millwheel.store.rules.code import Code, Generation


def drop_left_columns(url: str, pipeline: str, *, actor: Actor = UNNAMED) -> list[str]:
    """Drop these columns; returns them, each with its table in front.

    Raises:
        UsageError: workers of former code may still write one of them.
        StoreUnavailable: another session uses a table for long; nothing was dropped.
    """
    statements = Statements(pipeline)
    with locked_pipeline(url, pipeline) as connection:
        history = [
            Generation(number, msgspec.json.decode(code, type=Code))
            for number, code in connection.execute(statements.get("deployed"))
        ]
        least = connection.execute(statements.get("least_generation")).fetchone()
        connection.execute(statements.get("wait_briefly_for_locks"))
        dropped: list[str] = []
        for table in sorted(history[-1].code.tables if history else ()):
            place = {"schema": pipeline, "table": table}
            there = {of[0] for of in connection.execute(statements.get("table_columns"), place)}
            left = left_columns(history, table)
            for column in sorted(left.keys() & there):
                if least is not None and least[0] is not None and least[0] <= left[column]:
                    raise UsageError(
                        f"workers of former code may still write column {column!r} of table "
                        f"{table!r}: not all key intervals were taken over since generation "
                        f"{left[column]}, which has the column. Nothing was dropped; start workers "
                        "of the deployed code, and repeat the command"
                    )
                names = {"table": statements.table(table), "column": sql.Identifier(column)}
                connection.execute(composed("drop_column", **names))
                dropped.append(f"{table}.{column}")
        if dropped:
            Asking(connection, pipeline).note(actor, "drop columns", {"columns": dropped})
    return dropped
