"""The tables of table sinks, and their rows."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from decimal import Decimal
from typing import Any

from millwheel.core.columns import Column
from millwheel.sinks import Table
from millwheel.store.rules.changes.table_changes import (
    AddColumn,
    AllowNull,
    Alteration,
    CastColumn,
    RenameColumn,
    StoredTable,
)

_CASTS: dict[str, Callable[[Any], Any]] = {
    "numeric": Decimal,
    "text": str,
    "double precision": float,
}

Values = tuple[Any, ...]


class TableSinks:
    def __init__(self) -> None:
        self._tables: dict[str, Table[Any]] = {}
        self._columns: dict[str, list[Column]] = {}
        """The columns of each table, in the order of its rows' values."""
        self._missing: dict[str, list[Any]] = {}
        """For each column the value in a row of a writer that does not know it."""
        self._appended: dict[str, list[tuple[Any, ...]]] = {}
        self._upserted: dict[str, dict[tuple[Any, ...], tuple[Any, ...]]] = {}

    def stored(self) -> dict[str, StoredTable]:
        return {
            name: StoredTable(
                {column.name: (column.type, column.is_optional) for column in columns},
                [sorted(self._tables[name].unique)],
            )
            for name, columns in self._columns.items()
        }

    def add(self, tables: list[Table[Any]]) -> None:
        for table in tables:
            self._tables.setdefault(table.name, table)
            self._columns.setdefault(table.name, list(table.columns))
            self._missing.setdefault(table.name, [None] * len(table.columns))

    def alter(self, alterations: Sequence[Alteration]) -> None:
        """Change tables, and the rows that they have."""
        for one in alterations:
            columns = self._columns[one.table]
            match one:
                case AddColumn(_, column, default):
                    columns.append(column)
                    self._missing[one.table].append(default)
                    self._change_rows(one.table, _with_default, default)
                case AllowNull(_, name):
                    self._replace(columns, name, nullable=True)
                case RenameColumn(_, former, name):
                    self._replace(columns, former, name=name)
                case CastColumn(_, name, type_):
                    before = self._replace(columns, name, type=type_)
                    place = columns.index(replace(before, type=type_))
                    self._change_rows(one.table, _with_cast, place, before.type, type_)

    def _replace(self, columns: list[Column], column: str, /, **parts: Any) -> Column:
        """Returns the former one."""
        (before,) = (each for each in columns if each.name == column)
        columns[columns.index(before)] = replace(before, **parts)
        return before

    def _change_rows(self, table: str, change: Callable[..., Values], *how: Any) -> None:
        rows, by_key = self._appended.get(table, []), self._upserted.get(table, {})
        rows[:] = [change(row, *how) for row in rows]
        by_key.update({key: change(row, *how) for key, row in by_key.items()})

    def __contains__(self, name: str) -> bool:
        return name in self._tables

    def write(self, table: Table[Any], values: tuple[Any, ...]) -> None:
        by_key = self._upserted.setdefault(table.name, {}) if table.key else None
        key = table.key_of(values) if table.key else None
        columns = self._columns[table.name]
        if tuple(columns) != table.columns:  # written by code of another row type
            names = [column.name for column in columns]
            stored = by_key.get(key) if by_key is not None and key is not None else None
            found = dict(zip(names, stored or self._missing[table.name], strict=True))
            types = {column.name: column.type for column in columns}
            for column, value in zip(table.columns, values, strict=True):
                found[column.name] = _as(value, column.type, types[column.name])
            values = tuple(found[name] for name in names)
        if by_key is not None and key is not None:
            by_key[key] = values
        else:
            self._appended.setdefault(table.name, []).append(values)

    def rows(self, name: str) -> list[tuple[Any, ...]]:
        """`KeyError` if no pipeline was deployed with such a table."""
        table = self._tables[name]
        if table.key:
            upserted = self._upserted.get(name, {})
            found = [upserted[key] for key in sorted(upserted)]
        else:
            found = self._appended.get(name, [])
        columns = self._columns[name]
        if not any(column.is_json for column in columns):
            return list(found)
        return [
            tuple(
                json.loads(value) if column.is_json and value is not None else value
                for column, value in zip(columns, values, strict=True)
            )
            for values in found
        ]


def _with_default(row: Values, default: Any) -> Values:
    return (*row, default)


def _with_cast(row: Values, place: int, before: str, after: str) -> Values:
    return (*row[:place], _as(row[place], before, after), *row[place + 1 :])


def _as(value: Any, type_: str, stored: str) -> Any:
    """A value of a column's type, as a column that was cast to another type has it."""
    return value if value is None or type_ == stored else _CASTS[stored](value)
