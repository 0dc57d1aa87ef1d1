"""Postgres's errors as the engine's (`millwheel.errors`), by SQLSTATE."""

from __future__ import annotations

import re

import psycopg

from millwheel.errors import (
    MillwheelError,
    StatementError,
    StatementRace,
    StoreError,
    StoreUnavailable,
)

UNDEFINED_TABLE = "42P01"
NO_RIGHT = "42501"

RETRY_CLASSES = frozenset({"08", "25", "40", "53", "55", "57", "58"})
"""SQLSTATE classes that say nothing about the data of a statement of the engine's."""

RACES = frozenset({"40001", "40P01", "55P03"})
"""A user's statement met another transaction: a later attempt may succeed."""

OF_THE_SERVER = re.compile("08|53|25006|57P0[123]")
"""Beginnings of SQLSTATEs that concern the connection or the server, whatever the statement."""

LOST = (psycopg.OperationalError, psycopg.InterfaceError, psycopg.InternalError)
"""The connection or the server is at fault. Any other error without an SQLSTATE concerns a value
that psycopg could not send (a NUL in a text, a number out of range)."""


ANSWERS = {
    re.compile(r'FATAL: +database ".*" does not exist'): (
        "The server answers: make that database, for example with createdb, or name another one "
        "with --store"
    ),
    re.compile(
        r'FATAL: +(?:role ".*" does not exist|(?:password|peer|ident) authentication failed'
        r"|no pg_hba.conf entry)",
        re.IGNORECASE,
    ): (
        "The server answers: correct user and password in --store, or let the server's pg_hba.conf "
        "admit them"
    ),
}
"""Answers of a server to a connection, and their remedies. They have no SQLSTATE."""


def translate(error: psycopg.Error, *, user: str = "", alive: bool = True) -> MillwheelError:
    """The engine's error for one of Postgres.

    Args:
        user: the user's statement or rows that were running. Then every SQLSTATE counts against a
            record, except those of the server and of a race: users and extensions have their own.
        alive: the connection is still there.
    """
    state = error.sqlstate or ""
    text = str(error).strip()
    if user and state in RACES:
        return StatementRace(f"the store broke off {user}: {text}")
    if user and alive and not OF_THE_SERVER.match(state) and (state or not isinstance(error, LOST)):
        return StatementError(f"Postgres refused {user}: {text}")
    if not alive or (isinstance(error, LOST) and (not state or state[:2] in RETRY_CLASSES)):
        return StoreUnavailable(f"the store broke off{f' {user}' if user else ''}: {text}")
    if state == NO_RIGHT:
        return _without_right(text)
    return StoreError(f"the store answered {state}: {text}")


def unreached(error: psycopg.Error, store: str = "the store") -> StoreError:
    """The error for a connection that could not be opened, or not be used at all; `store` has its
    address."""
    text = str(error).strip()
    if error.sqlstate == NO_RIGHT:
        return _without_right(text)
    for answer, remedy in ANSWERS.items():
        if answer.search(text):
            return StoreUnavailable(f"{store} refuses the connection: {text}\n{remedy}")
    return StoreUnavailable(
        f"{store} cannot be reached: {text}\nCheck --store, and that Postgres is running there"
    )


def _without_right(text: str) -> StoreError:
    return StoreError(
        f"this login has no right to do that in the store: {text}\nGive it a role of the pipeline. "
        "As the owner of its schema, run `millwheel migrate PIPELINE --roles`, then GRANT "
        "DATABASE_PIPELINE_worker TO the login of a worker, DATABASE_PIPELINE_operator for "
        "commands, or DATABASE_PIPELINE_reader to look"
    )
