"""The roles of a pipeline: a reader reads, an operator asks, and neither can do more."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest
from psycopg import errors, sql
from psycopg.conninfo import make_conninfo

from millwheel.errors import StoreError
from millwheel.store import administration
from millwheel.store.asking import Actor, Asking
from millwheel.store.inspection import inspect
from millwheel.store.migrate import migrate
from millwheel.store.roles import Roles, make_roles
from tests.support.store_sites import Schema

ME = Actor("ada", "why not")


PASSWORD = "a password of the tests"


@pytest.fixture
def roles(schema: Schema) -> Iterator[Roles]:
    """The roles, and a login of each, since a session's own options would not survive."""
    migrate(schema.url, schema.name)
    made = make_roles(schema.url, schema.name)
    logins = [login_of(role) for role in made]
    with psycopg.connect(schema.url, autocommit=True) as connection:
        for login, role in zip(logins, made, strict=True):
            connection.execute(
                sql.SQL("CREATE ROLE {} LOGIN PASSWORD {} IN ROLE {}").format(
                    sql.Identifier(login), PASSWORD, sql.Identifier(role)
                )
            )
    yield made
    with psycopg.connect(schema.url, autocommit=True) as connection:
        for role in (*logins, *reversed(made)):
            for end in ("DROP OWNED BY {}", "DROP ROLE {}"):
                connection.execute(sql.SQL(end).format(sql.Identifier(role)))


def login_of(role: str) -> str:
    return f"{role}_ada"


def under(schema: Schema, role: str) -> str:
    """The address of the store for a login with a role."""
    url = make_conninfo(schema.url, user=login_of(role), password=PASSWORD)
    with psycopg.connect(url) as connection:
        assert connection.execute("SELECT current_user").fetchone() == (login_of(role),)
    return url


def refused(url: str, schema: Schema, statement: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(sql.SQL("SET search_path = {}").format(sql.Identifier(schema.name)))
        with pytest.raises(errors.InsufficientPrivilege):
            connection.execute(sql.SQL(statement))


WRITES = (
    "INSERT INTO state SELECT * FROM state",
    "DELETE FROM state",
    "UPDATE key_interval SET sequencer = 1",
    "UPDATE key_interval SET wanted_by = NULL",
    "UPDATE commit_record SET acked = NULL",
    "DELETE FROM request",
    "UPDATE request SET actor = 'somebody else'",
    "DROP TABLE dead_letter",
    "CREATE TABLE mine (a int)",
    "SELECT * FROM peer_secret",
)


def test_a_reader_reads_and_can_do_nothing_else(schema: Schema, roles: Roles) -> None:
    url = under(schema, roles.reader)
    with inspect(url) as inspection:
        assert inspection.status(schema.name).schema_current
        assert inspection.dead_letters(schema.name, 10) == []
    for statement in (*WRITES, "DELETE FROM dead_letter", "UPDATE computation SET paused = true"):
        refused(url, schema, statement)


def test_a_reader_reads_the_tables_to_come(schema: Schema, roles: Roles) -> None:
    with psycopg.connect(schema.url, autocommit=True) as owner:
        owner.execute(schema.compose("CREATE TABLE {later} (a int)", later="later"))
    with psycopg.connect(under(schema, roles.reader)) as reader:
        assert (
            reader.execute(schema.compose("SELECT * FROM {later}", later="later")).fetchall() == []
        )


def test_an_operator_asks_and_pauses(schema: Schema, roles: Roles) -> None:
    url = under(schema, roles.operator)
    with psycopg.connect(schema.url, autocommit=True) as owner:
        for number, (name, kind) in enumerate([("check", "computation"), ("pays", "injector")], 1):
            owner.execute(
                schema.compose(
                    "INSERT INTO {c} (id, name, kind, version, state, upstream, paused) "
                    "OVERRIDING SYSTEM VALUE VALUES (%s, %s, %s, 1, '{{}}', '[]', false)",
                    c="computation",
                ),
                [number, name, kind],
            )
        owner.execute(
            schema.compose(
                "INSERT INTO {d} (slot, computation, stream, key, value, place, error, traceback, attempts, stamp) "
                "VALUES (1, 1, 's', '1', '1', 'here', 'no', '', 1, 0), (1, 1, 's', '1', '1', 'here', 'no', '', 1, 0)",
                d="dead_letter",
            )
        )
    with administration.transaction(url) as connection:
        asked = Asking(connection, schema.name)
        batch = asked.ask(ME, "delete_state", "check", 1, {})
        assert asked.retry(ME, [1])[1] == 1
        assert asked.discard(ME, [1, 2]) == [2]
        assert asked.withdraw(batch) == 1
    assert administration.pause(url, schema.name, actor=ME).changed == ["pays"]
    for statement in WRITES:
        refused(url, schema, statement)


def test_roles_are_made_again_for_what_has_come(schema: Schema, roles: Roles) -> None:
    assert make_roles(schema.url, schema.name) == roles


def test_who_may_make_no_roles_is_told_what_is_needed(schema: Schema, roles: Roles) -> None:
    with pytest.raises(StoreError, match="Run this as the owner of the schema"):
        make_roles(under(schema, roles.operator), schema.name)
