"""Sources and tables that are defined in SQL."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from operator import attrgetter
from typing import Any

import msgspec

from millwheel.core.suggestion import did_you_mean
from millwheel.errors import SqlError
from millwheel.sinks import Table
from millwheel.sql import syntax as s
from millwheel.sql.resolving import Resolver
from millwheel.sql.schemas import Field, check_held, check_name, struct_of
from millwheel.sql.scopes import NoScope, Scope, TableColumns
from millwheel.sql.types import SqlType, shown
from millwheel.sql.window_tables import microseconds
from millwheel.streams import Stream

Described = Sequence[tuple[str, SqlType, bool]]
"""Name, type, and whether NULL may occur."""


@dataclass(frozen=True)
class DefinedTable:
    """A table and its columns."""

    sink: Table[Any]
    columns: Described
    row_type: type[msgspec.Struct]


@dataclass(frozen=True)
class EventTime:
    """The event time of a source's rows."""

    timestamp: Callable[[Any], datetime]
    lateness: timedelta


def columns_of(definitions: Sequence[s.ColumnDefinition]) -> Described:
    """Raises:
    SqlError: a type is not available, or a column is there twice.
    """
    resolver = Resolver(NoScope())
    found: list[tuple[str, SqlType, bool]] = []
    for each in definitions:
        check_name(each.name, [name for name, _, _ in found], each.place)
        kind = resolver.type_of(each.type)
        check_held(kind, each.place)
        found.append((each.name, kind, not each.is_required))
    return found


def stream_of(statement: s.CreateSource) -> Stream[Any]:
    """The stream of a source's rows."""
    described = columns_of(statement.columns)
    return Stream(statement.name, struct_of(statement.name, described, may_be_missing=True))


def event_time(statement: s.CreateSource) -> EventTime | None:
    """The event time by ``WATERMARK FOR``; None: the source has times of its own.

    Raises:
        SqlError: it is none of the forms that are available.
    """
    if statement.watermark is None:
        return None
    time, value = statement.watermark
    fields = [
        Field(name, kind, nullable, shown(kind))
        for name, kind, nullable in columns_of(statement.columns)
    ]
    scope = Scope([TableColumns(statement.name, statement.name, fields)])
    column = scope.column(time)
    if column.type.name != "timestamptz":
        raise SqlError(
            f'event times have the type timestamptz, and "{time.column}" is {shown(column.type)}',
            time.place,
        )
    return EventTime(attrgetter(time.column), _lateness(time, value, scope))


def _lateness(time: s.Name, value: s.Expression, scope: Scope) -> timedelta:
    if isinstance(value, s.Name) and value.column == time.column:
        return timedelta(0)
    if (
        isinstance(value, s.Operation)
        and value.operator == "-"
        and isinstance(value.operands[0], s.Name)
        and value.operands[0].column == time.column
    ):
        interval = Resolver(scope).value(value.operands[1])
        return timedelta(microseconds=microseconds(interval))
    raise SqlError(
        "a watermark is the time, or the time minus an interval",
        value.place,
        f"Write WATERMARK FOR {time.column} AS {time.column} - INTERVAL '5 seconds'",
    )


def table_of(statement: s.CreateTable) -> DefinedTable:
    """The table of a definition.

    Raises:
        SqlError: its columns or its key are wrong.
    """
    described = columns_of(statement.columns)
    names = [name for name, _, _ in described]
    for column, (name, kind, _) in zip(statement.columns, described, strict=True):
        if kind.name.removeprefix("_") == "timestamp":
            raise SqlError(f'"{name}" has no time zone', column.place, "Use timestamptz")
    for name in statement.key:
        if name not in names:
            advice = did_you_mean(name, names)
            raise SqlError(f'column "{name}" of the key does not exist', statement.place, advice)
    columns = [
        (name, kind, nullable and name not in statement.key) for name, kind, nullable in described
    ]
    row_type = struct_of(statement.name, columns)
    table: Table[Any] = Table(statement.name, row_type, key=statement.key)
    return DefinedTable(table, columns, row_type)
