"""Roles of a pipeline in Postgres, for people and programs that are not its workers.

========================== =============================================================================
``NAME_reader``            reads tables and views, but not the workers' secret
``NAME_operator``          a reader that may ask the owners of keys, withdraw requests, pause, and discard dead letters
========================== =============================================================================

Neither can log in or owns anything: grant them to logins. A worker makes and drops bucket tables, and only the owner of a
table may do that, so the workers of a pipeline are its owner (docs/deploy).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import psycopg
from psycopg import sql

from millwheel.errors import StoreError
from millwheel.store.administration import transaction
from millwheel.store.statements import Statements, composed, text_of

OPERATOR = {
    "request": "INSERT, UPDATE (outcome, settled_at)",
    "computation": "UPDATE (paused)",
    "dead_letter": "DELETE, UPDATE (attempts)",
}
"""Rights of an operator besides those of a reader. Only who may change a row may lock it, as `retry` does with letters."""

READER = ("grant_usage", "grant_select", "revoke_secret", "grant_select_to_come")
"""The statements that make a role a reader."""


class Roles(NamedTuple):
    """The names of a pipeline's roles."""

    reader: str
    operator: str


def make_roles(url: str, pipeline: str) -> Roles:
    """Make the roles of a pipeline unless they exist, and grant them their rights; may be repeated.

    Raises:
        StoreError: this login may make no roles, or does not own the schema.
    """
    roles = Roles(f"{pipeline}_reader", f"{pipeline}_operator")
    with transaction(url) as connection:
        owns = connection.execute(text_of("owns_schema"), {"schema": pipeline}).fetchone()
        if owns != (True,):
            raise _refused(pipeline, "this login does not own the schema")
        try:
            _grant(connection, pipeline, roles)
        except psycopg.errors.InsufficientPrivilege as error:
            raise _refused(pipeline, str(error).strip()) from error
    return roles


def _refused(pipeline: str, reason: str) -> StoreError:
    return StoreError(
        f"the roles of {pipeline!r} cannot be made: {reason}. Run this as the owner of the schema, with CREATEROLE, "
        "or as a superuser"
    )


def _grant(connection: psycopg.Connection[Any], pipeline: str, roles: Roles) -> None:
    reader, operator = map(sql.Identifier, roles)
    table = Statements(pipeline).table
    names = {"schema": sql.Identifier(pipeline), "peer_secret": table("peer_secret")}
    for role in roles:
        if connection.execute(text_of("find_role"), {"role": role}).fetchone() is None:
            connection.execute(composed("make_role", role=sql.Identifier(role)))
    for name in READER:
        connection.execute(composed(name, role=reader, **names))
    connection.execute(composed("grant_role", other=reader, role=operator))
    for name, rights in OPERATOR.items():
        given = {"rights": sql.SQL(rights), "table": table(name)}
        connection.execute(composed("grant_rights", role=operator, **given))
    sequence = table("request_id_seq")
    connection.execute(composed("grant_sequence", sequence=sequence, role=operator))
