"""Groups of rows: found by new rows of one table, read from another, replaced in a third."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from psycopg import sql

from millwheel.aggregates import days, hours, months, years
from millwheel.spark.groups import Groups, group_values
from tests.support.store_sites import Schema

TYPES = {"origin": "text", "n": "bigint", "at": "timestamp with time zone", "day": "date"}
ROWS = [
    ("EWR", 1, "2013-01-31 23:59:59.999999+00", "2013-01-31"),
    ("EWR", 2, "2013-02-01 00:00:00+00", "2013-02-01"),
    ("it's", 3, "2012-12-31 19:00:00-05", "2013-12-31"),
    ("EWR", 4, "2013-02-28 23:00:00+00", "2013-02-10"),
]


@pytest.fixture
def connection(new_schema: Callable[[int], Schema]) -> Any:
    schema = new_schema(18)
    with psycopg.connect(schema.url, options="-c timezone=UTC") as connection:
        connection.execute("CREATE TEMP TABLE t (origin text, n bigint, at timestamptz, day date)")
        with connection.cursor() as cursor:
            cursor.executemany("INSERT INTO t VALUES (%s, %s, %s, %s)", ROWS)
        yield connection


def found(connection: psycopg.Connection[Any], parts: tuple[Any, ...], where: str) -> Groups:
    """The groups of some rows."""
    values = sql.SQL(", ").join(group_values(parts, TYPES.__getitem__))
    rows = connection.execute(
        sql.SQL("SELECT DISTINCT {} FROM t WHERE ").format(values) + sql.SQL(where)
    )
    return Groups.of(parts, [tuple(row) for row in rows])


def numbers(connection: psycopg.Connection[Any], groups: Groups) -> list[int]:
    """The rows of some groups."""
    text = sql.SQL("SELECT t.n FROM t, {} WHERE {} ORDER BY 1").format(
        groups.listed(TYPES.__getitem__), groups.matches(sql.SQL("t"))
    )
    return [n for (n,) in connection.execute(text, groups.parameters)]


@pytest.mark.parametrize(
    ("parts", "row", "same"),
    [
        (("origin",), 1, [1, 2, 4]),
        (("origin",), 3, [3]),
        (("n",), 2, [2]),
        ((months("at"),), 1, [1, 3]),
        ((months("at"),), 4, [2, 4]),
        (("origin", months("at")), 1, [1]),
        ((hours("at"),), 1, [1]),
        ((days("at"),), 3, [3]),
        ((years("at"),), 1, [1, 2, 3, 4]),
        ((months("day"),), 2, [2, 4]),
        ((years("day"), "origin"), 3, [3]),
    ],
)
def test_a_row_finds_the_rows_of_its_group(
    connection: psycopg.Connection[Any], parts: tuple[Any, ...], row: int, same: list[int]
) -> None:
    groups = found(connection, parts, f"n = {row}")
    assert len(groups.values) == 1
    assert numbers(connection, groups) == same
    assert numbers(connection, Groups.parsed(groups.written())) == same


def test_groups_are_divided_and_known_by_their_begins(
    connection: psycopg.Connection[Any],
) -> None:
    groups = found(connection, ("origin", months("at")), "true")
    assert len(groups.values) == 3
    shares = list(groups.divided(2))
    assert [len(share.values) for share in shares] == [2, 1]
    assert sorted(n for share in shares for n in numbers(connection, share)) == [1, 2, 3, 4]
    connection.execute("CREATE TEMP TABLE sums (origin text, month date)")
    connection.execute("INSERT INTO sums SELECT DISTINCT origin, date_trunc('month', at) FROM t")
    kinds = {"origin": "text", "month": "date"}
    begins = groups.by_begin(("origin", "month"))
    text = sql.SQL("SELECT count(*) FROM sums, {} WHERE {}").format(
        begins.listed(kinds.__getitem__), begins.matches(sql.SQL("sums"))
    )
    assert connection.execute(text, begins.parameters).fetchall() == [(3,)]
