"""`RowLook`: what is committed from one look to the next, each row once, and nothing else."""

from __future__ import annotations

import json
from collections.abc import Iterator

import msgspec
import psycopg
import pytest

from millwheel.store.console.new_rows import RowLook
from tests.support.store_sites import Schema

MOST = 3


@pytest.fixture
def session(schema: Schema) -> Iterator[psycopg.Connection[tuple[object, ...]]]:
    with psycopg.connect(schema.url, options=f"-c search_path={schema.name}") as connection:
        connection.execute("CREATE TABLE trend (n int PRIMARY KEY, content text)")
        connection.commit()
        yield connection


def shown(look: RowLook, *tables: str) -> list[object]:
    """The new rows as JSON, and before them the number of those that are left out."""
    found: list[object] = []
    for new in look.look(tables or ("trend",)):
        found += [new.before] if new.before else []
        found += [json.loads(msgspec.json.encode(row)) for row in new.rows]
    return found


def row(n: int, content: str | None) -> dict[str, object]:
    return {"n": n, "content": content}


def test_rows_are_shown_once_they_are_committed(
    schema: Schema, session: psycopg.Connection[tuple[object, ...]]
) -> None:
    session.execute("INSERT INTO trend VALUES (1, 'old')")
    session.commit()
    look = RowLook(schema.url, schema.name, MOST)
    assert shown(look) == []  # it was there before the first look
    session.execute("INSERT INTO trend VALUES (2, NULL)")
    assert shown(look) == []
    with psycopg.connect(
        schema.url, autocommit=True
    ) as other:  # a later transaction, committed first
        other.execute(f"INSERT INTO {schema.name}.trend VALUES (3, 'c')".encode())
        assert shown(look) == [row(3, "c")]
    session.commit()
    assert shown(look) == [row(2, None)]
    assert shown(look) == []


def test_a_change_is_shown_as_the_last_one_left_it(
    schema: Schema, session: psycopg.Connection[tuple[object, ...]]
) -> None:
    look = RowLook(schema.url, schema.name, MOST)
    look.look(["trend"])
    for content in ("a", "b"):
        session.execute(
            "INSERT INTO trend VALUES (1, %s) "
            "ON CONFLICT (n) DO UPDATE SET content = EXCLUDED.content",
            [content],
        )
        session.commit()
    assert shown(look) == [row(1, "b")]
    session.execute("UPDATE trend SET content = 'never'")
    session.rollback()
    session.execute("INSERT INTO trend VALUES (2, 'gone')")
    session.execute("DELETE FROM trend WHERE n = 2")
    session.commit()
    assert shown(look) == []


def test_of_many_rows_the_last_ones_are_shown_in_their_order(
    schema: Schema, session: psycopg.Connection[tuple[object, ...]]
) -> None:
    look = RowLook(schema.url, schema.name, MOST)
    look.look(["trend"])
    for n in (5, 4, 9, 1, 2):
        session.execute("INSERT INTO trend VALUES (%s, '')", [n])
        session.commit()
    assert shown(look) == [2, row(9, ""), row(1, ""), row(2, "")]


def test_a_table_may_come_later_and_have_any_columns(
    schema: Schema, session: psycopg.Connection[tuple[object, ...]]
) -> None:
    look = RowLook(schema.url, schema.name, MOST)
    assert shown(look, "absent") == []
    session.execute("CREATE TABLE absent (until int, number int, place text, xmin_ text)")
    session.execute("INSERT INTO absent VALUES (1, 2, 'x', 'y')")
    session.commit()
    assert shown(look, "absent") == [{"until": 1, "number": 2, "place": "x", "xmin_": "y"}]
