"""The columns of a query as those of its target: of a union, a table, or a stream."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from millwheel.core.suggestion import with_suggestion
from millwheel.errors import SqlError
from millwheel.sql import syntax as s
from millwheel.sql import typed as t
from millwheel.sql.analysis import (
    Analyzed,
    ResultColumns,
)
from millwheel.sql.catalog import postgres
from millwheel.sql.definitions import DefinedTable
from millwheel.sql.resolving import Resolver
from millwheel.sql.schemas import check_name, fields_of
from millwheel.sql.scopes import NoScope
from millwheel.sql.types import SqlType, shown
from millwheel.streams import Stream


def described_columns(parts: Sequence[ResultColumns]) -> list[tuple[str, SqlType, bool]]:
    """The columns of a union: NULL may occur if it may in one part."""
    return [
        (columns[0][0], columns[0][1], any(nullable for _, _, nullable in columns))
        for columns in zip(*(part.described() for part in parts), strict=True)
    ]


def unified(parts: list[Analyzed]) -> list[Analyzed]:
    """Convert the columns of the parts of a union to common types."""
    if len(parts) == 1:
        return parts
    first = parts[0]
    for part in parts[1:]:
        if len(part.columns.names) != len(first.columns.names):
            raise SqlError("each UNION query must have the same number of columns", part.place)
    kinds = []
    for values in zip(*(part.columns.given for part in parts), strict=True):
        kind = postgres().common_type([value.type.name for value in values])
        if kind is None:
            names = " and ".join(sorted({shown(value.type) for value in values}))
            raise SqlError(
                f"UNION types {names} cannot be matched", values[-1].place, "Cast one of them"
            )
        kinds.append(SqlType(kind))
    converter = Resolver(NoScope())
    return [
        part.with_columns(
            ResultColumns(
                part.columns.names,
                [
                    converter.assigned(value, kind)
                    for value, kind in zip(part.columns.given, kinds, strict=True)
                ],
            )
        )
        for part in parts
    ]


def for_table(statement: s.Insert, part: Analyzed, table: DefinedTable) -> Analyzed:
    """Convert the columns of a query to those of a table, as an assignment does."""
    names = list(statement.columns) or [name for name, _, _ in table.columns]
    values = part.columns.given
    has = ", ".join(f"{name} {shown(kind)}" for name, kind, _ in table.columns)
    if len(names) != len(values):
        raise SqlError(
            f"the query has {len(values)} columns, and {len(names)} are inserted",
            part.place,
            f'The columns of "{statement.target}" are: {has}',
        )
    given = dict(zip(names, values, strict=True))
    converter = Resolver(NoScope())
    found = []
    for name, kind, nullable in table.columns:
        value = given.pop(name, None) or t.ConstantValue(kind, True, part.place, None)
        if value.nullable and not nullable:
            raise SqlError(
                f'column "{name}" is NOT NULL, and the query may give NULL',
                value.place,
                "Write coalesce(..., a value), or leave NOT NULL out",
            )
        found.append(converter.assigned(value, kind))
    for name in given:
        raise SqlError(
            f'column "{name}" of "{statement.target}" does not exist',
            statement.place,
            with_suggestion(
                f"Its columns are: {has}", name, [each for each, _, _ in table.columns]
            ),
        )
    return part.with_columns(ResultColumns([name for name, _, _ in table.columns], found))


def renamed(statement: s.Insert, columns: ResultColumns) -> ResultColumns:
    if not statement.columns:
        return columns
    if len(statement.columns) != len(columns.names):
        raise SqlError(
            f"INSERT has {len(statement.columns)} columns, and the query {len(columns.names)}",
            statement.place,
        )
    for number, name in enumerate(statement.columns):
        check_name(name, statement.columns[:number], statement.place)
    return ResultColumns(statement.columns, columns.values)


def columns_of(stream: Stream[Any]) -> str:
    return listed([(f.name, f.type, f.nullable) for f in fields_of(stream.value_type) or []])


def listed(columns: Sequence[tuple[str, SqlType | None, bool]]) -> str:
    return ", ".join(
        f"{name} {'?' if kind is None else shown(kind)}{'' if nullable else ' NOT NULL'}"
        for name, kind, nullable in columns
    )
