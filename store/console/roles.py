"""Roles of a pipeline in Postgres: each has the rights for its work, and no more (decision 61).

* ``owner`` owns the schema and its tables, views and functions: migrates, moves intervals, removes,
  drops.
* ``worker`` changes rows, has buckets made and dropped, and owns the other things of workers: the
  tables of sinks, the views of states.
* ``operator`` is a reader that may ask the owners of keys, withdraw requests, pause, and discard
  dead letters.
* ``reader`` reads tables and views, but not the workers' secret.

Their names begin with those of the database and the pipeline, ``DATABASE_PIPELINE_reader``: roles
belong to the whole server, and a pipeline of the same name in another database must not share them.

None of them can log in: grant them to logins. An owner has the rights of a worker, an operator
those of a reader.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any, NamedTuple

import psycopg
from psycopg import sql

from millwheel.errors import StoreError
from millwheel.store.console.administration import transaction
from millwheel.store.console.views import NAMES, VIEWS
from millwheel.store.postgres.statements import TABLES, Statements, composed, text_of

OPERATOR = {
    "request": "INSERT, UPDATE (outcome, settled_at)",
    "computation": "UPDATE (paused)",
    "pipeline": "UPDATE (withholds)",
    "dead_letter": "DELETE, UPDATE (attempts)",
}
"""Rights of an operator besides those of a reader. `retry` locks letters, which takes the right to
change rows."""

WORKER = {
    "request": "SELECT, UPDATE (outcome, detail, settled_at)",
    "alembic_version": "SELECT",
}
"""Rights of a worker on tables in which it may not change rows at will: the log of operators, and
the version."""

OWNED = {*TABLES, *VIEWS, "alembic_version"}
"""Relations that belong to the owner, those of buckets with their parents. All others are made by
workers, but for the sequence of numbers: its owner also gets all that workers make
(`Deploy.run`)."""

CALLED = {
    "make_bucket": ("worker",),
    "drop_bucket": ("worker",),
    "forget_requests": ("worker", "operator"),
}
"""Functions that work with the owner's rights, and the only roles that may call them."""

LONGEST_NAME = 63


class Roles(NamedTuple):
    owner: str
    worker: str
    operator: str
    reader: str


def roles_of(database: str, pipeline: str) -> Roles:
    """A digest stands for the name of a database that leaves no room."""
    room = LONGEST_NAME - max(len(f"_{pipeline}_{name}".encode()) for name in Roles._fields)
    if len(database.encode()) > room:
        database = hashlib.sha256(database.encode()).hexdigest()[:room]
    return Roles(*(f"{database}_{pipeline}_{name}" for name in Roles._fields))


def make_roles(url: str, pipeline: str) -> Roles:
    """Make the roles of a pipeline unless they exist, and give them their rights; may be repeated.

    A former owner of the schema becomes a member of the new one, so that its workers can continue.
    `StoreError` if this login may make no roles, or does not own the schema; or if a role of such a
    name has rights in another database.
    """
    with transaction(url) as connection:
        roles = roles_of(connection.info.dbname, pipeline)
        found = connection.execute(text_of("owner_of_schema"), {"schema": pipeline}).fetchone()
        assert found is not None, "the schema was migrated before"
        former, may_act, is_superuser = found
        if not may_act:
            raise _refused(pipeline, f"this login does not own the schema. {NEEDED}")
        making = _Making(connection, pipeline, roles)
        try:
            making.make()
            if former != roles.owner and not is_superuser:
                making.join(roles.owner, former)
            making.give(former)
            making.grant()
        except psycopg.errors.InsufficientPrivilege as error:
            raise _refused(pipeline, f"{str(error).strip()}. {NEEDED}") from error
    return roles


NEEDED = (
    "Run this as the owner of the schema, with CREATEROLE and CREATE on the database, or as a "
    "superuser"
)


def _refused(pipeline: str, reason: str) -> StoreError:
    return StoreError(f"the roles of {pipeline!r} cannot be made: {reason}")


class _Making:
    def __init__(self, connection: psycopg.Connection[Any], pipeline: str, roles: Roles) -> None:
        self._connection = connection
        self._pipeline = pipeline
        self._roles = roles
        self._table = Statements(pipeline).table

    def _run(self, name: str, **parts: str | sql.Composable) -> None:
        """A part that is a text is a name."""
        named = {
            part: sql.Identifier(value) if isinstance(value, str) else value
            for part, value in parts.items()
        }
        schema = sql.Identifier(self._pipeline)
        self._connection.execute(composed(name, schema=schema, **named))

    def make(self) -> None:
        for role in self._roles:
            if self._connection.execute(text_of("find_role"), {"role": role}).fetchone() is None:
                self._run("make_role", role=role)
            self._refuse_shared(role)
        self.join(self._roles.worker, self._roles.owner)
        self.join(self._roles.reader, self._roles.operator)

    def _refuse_shared(self, role: str) -> None:
        quoted = sql.Identifier(role).as_string(None)
        elsewhere = self._connection.execute(text_of("elsewhere"), {"role": quoted}).fetchall()
        if elsewhere:
            raise _refused(
                self._pipeline,
                f"the role {role} has rights in the database {elsewhere[0][0]} too, and its "
                "members would have them in both. Drop or rename it",
            )

    def join(self, role: str, member: str) -> None:
        self._run("grant_role", other=role, role=member)

    def give(self, former: str) -> None:
        owner, worker = self._roles.owner, self._roles.worker
        self._run("grant_making", role=worker)
        if former != owner:
            self._run("own_schema", role=owner)
        for name, has, parent in self._rows("owned_relations"):
            role = owner if parent in OWNED else worker
            if has != role:
                self._run("own_relation", relation=self._table(name), role=role)
        for name, signature, has in self._rows("owned_routines"):
            role = owner if name in NAMES else worker
            if has != role:
                self._run("own_routine", routine=sql.SQL(signature), role=role)

    def _rows(self, name: str) -> Iterator[tuple[str, ...]]:
        yield from self._connection.execute(text_of(name), {"schema": self._pipeline}).fetchall()

    def grant(self) -> None:
        owner, worker, operator, reader = self._roles
        self._run("grant_usage", role=reader)
        self._run("grant_select", role=reader)
        for maker in (owner, worker, self._connection.info.user):
            self._run("grant_select_to_come", maker=maker, role=reader)
        self._run("grant_changes", role=worker)
        self._run("grant_changes_to_come", maker=owner, role=worker)
        self._run("grant_sequences", role=worker)
        self._run("grant_sequences_to_come", maker=owner, role=worker)
        self._run("revoke_rights", table=self._table("peer_secret"), role=reader)
        for table in WORKER:
            self._run("revoke_rights", table=self._table(table), role=worker)
        for role, given in ((worker, WORKER), (operator, OPERATOR)):
            for table, rights in given.items():
                self._run(
                    "grant_rights", rights=sql.SQL(rights), table=self._table(table), role=role
                )
        for function, callers in CALLED.items():
            for caller in callers:
                role = getattr(self._roles, caller)
                self._run("grant_execute", function=self._table(function), role=role)
        self._run("grant_sequence", sequence=self._table("request_id_seq"), role=operator)
