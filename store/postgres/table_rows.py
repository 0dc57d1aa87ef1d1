"""Rows of table sinks: those of a commit, as the parameters of one statement for each table."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from psycopg import sql

from millwheel.core.columns import Column
from millwheel.core.equality import fraction_digits
from millwheel.errors import StatementError
from millwheel.sinks import Table
from millwheel.store.postgres.statements import Statements, composed


def coalesced(
    found: list[tuple[Table[Any], tuple[Any, ...]]],
) -> list[tuple[Table[Any], list[list[Any]]]]:
    """Upserts keep the last write of each row only and are sorted by key, so that one statement
    never meets a row twice and two lanes never deadlock."""
    by_table: dict[str, tuple[Table[Any], list[tuple[Any, ...]]]] = {}
    for table, values in found:
        by_table.setdefault(table.name, (table, []))[1].append(values)
    result = []
    for _, (table, values_list) in sorted(by_table.items()):
        if table.key:
            last = {table.key_of(v): v for v in values_list}
            values_list = [last[key] for key in sorted(last)]
        columns = zip(table.columns, zip(*values_list, strict=True), strict=True)
        result.append((table, [_alike(column, values) for column, values in columns]))
    return result


def refuse_rounding(table: Table[Any], values: list[list[Any]], scales: Mapping[str, int]) -> None:
    """`StatementError` for decimals with more digits after the point than their column keeps."""
    for column, of_column in zip(table.columns, values, strict=True) if scales else ():
        scale = scales.get(column.name)
        for value in of_column if scale is not None else ():
            if isinstance(value, Decimal) and fraction_digits(value) > scale:  # type: ignore[operator]
                raise StatementError(
                    f"rows for table {table.name!r}: column {column.name!r} keeps {scale} digits "
                    f"after the point, so Postgres would round {value} without an error; round it "
                    "in the code, or alter the column"
                )


def _alike(column: Column, values: tuple[Any, ...]) -> list[Any]:
    """psycopg sends lists of one Python type, so an int among floats or decimals is converted."""
    kind = {"double precision": float, "numeric": Decimal}.get(column.type)
    if kind is None:
        return list(values)
    return [kind(v) if type(v) is int and v.bit_length() < 1024 else v for v in values]


def write_rows(statements: Statements, table: Table[Any]) -> str:
    """One array parameter for each column."""
    names = [sql.Identifier(column.name) for column in table.columns]
    arrays, selected = [], []
    for column, name in zip(table.columns, names, strict=True):
        bound = "text" if column.type == "jsonb" else column.type
        arrays.append(sql.SQL("%s::{}[]").format(sql.SQL(bound)))
        selected.append(
            sql.SQL("x.{}::jsonb").format(name)
            if column.type == "jsonb"
            else sql.SQL("x.{}").format(name)
        )
    parts: dict[str, sql.Composable] = {
        "table": statements.table(table.name),
        "names": sql.SQL(", ").join(names),
        "selected": sql.SQL(", ").join(selected),
        "arrays": sql.SQL(", ").join(arrays),
    }
    if not table.key:
        return composed("insert_rows", **parts)
    parts["key"] = sql.SQL(", ").join(map(sql.Identifier, table.key))
    rest = [name for name, c in zip(names, table.columns, strict=True) if c.name not in table.key]
    if not rest:
        return composed("insert_new_rows", **parts)
    changes = [sql.SQL("{0} = excluded.{0}").format(name) for name in rest]
    return composed("upsert_rows", **parts, changes=sql.SQL(", ").join(changes))
