"""Roles of a pipeline in Postgres, for people and programs that are not its workers.

========================== =============================================================================
``NAME_reader``            reads tables and views, but not the workers' secret
``NAME_operator``          a reader that may ask the owners of keys, pause, discard dead letters, and wish
                           intervals elsewhere, as the commands of `millwheel` do
========================== =============================================================================

Neither can log in or owns anything: grant them to logins. A worker makes and drops bucket tables, and only the owner of a
table may do that, so the workers of a pipeline are its owner (docs/deploy).
"""

from __future__ import annotations

from typing import NamedTuple

import psycopg
from psycopg import sql

from millwheel.errors import StoreError
from millwheel.store.administration import transaction

OPERATOR = {
    "request": "INSERT, UPDATE (outcome, settled_at)",
    "computation": "UPDATE (paused)",
    "dead_letter": "DELETE, UPDATE (attempts)",
    "key_interval": "UPDATE (wanted_by, pinned, split_at, merge_with)",
    "placement_event": "INSERT",
}
"""Rights of an operator besides those of a reader. Only who may change a row may lock it, as `retry` does with letters."""

READER = (
    "GRANT USAGE ON SCHEMA {schema} TO {reader}",
    "GRANT SELECT ON ALL TABLES IN SCHEMA {schema} TO {reader}",
    "REVOKE ALL ON {schema}.peer_secret FROM {reader}",
    # The buckets and tables to come; all of them are made by this role, the owner.
    "ALTER DEFAULT PRIVILEGES IN SCHEMA {schema} GRANT SELECT ON TABLES TO {reader}",
)


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
    names = {
        "schema": sql.Identifier(pipeline),
        "reader": sql.Identifier(roles.reader),
        "operator": sql.Identifier(roles.operator),
    }
    statements = [*READER, "GRANT {reader} TO {operator}"]
    statements += [
        f"GRANT {rights} ON {{schema}}.{table} TO {{operator}}"
        for table, rights in OPERATOR.items()
    ]
    statements += ["GRANT USAGE ON SEQUENCE {schema}.request_id_seq TO {operator}"]
    try:
        with transaction(url) as connection:
            for role in roles:
                found = "SELECT 1 FROM pg_catalog.pg_roles WHERE rolname = %s"
                if connection.execute(found, [role]).fetchone() is None:
                    made = sql.SQL("CREATE ROLE {} NOLOGIN").format(sql.Identifier(role))
                    connection.execute(made)
            for statement in statements:
                connection.execute(sql.SQL(statement).format(**names))
    except psycopg.errors.InsufficientPrivilege as error:
        raise StoreError(
            f"the roles of {pipeline!r} cannot be made: {str(error).strip()}. Run this as the owner of the schema, "
            "with CREATEROLE, or as a superuser"
        ) from error
    return roles
