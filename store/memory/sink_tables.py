"""The tables of table sinks: their rows, and the checks of rows that Postgres does."""

from __future__ import annotations

import json
from datetime import date, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

from millwheel.core.columns import Column
from millwheel.errors import DeployRefused
from millwheel.sinks import Table

_PYTHON_TYPES: dict[str, type | tuple[type, ...]] = {
    "text": str,
    "bigint": int,
    "double precision": (float, int),
    "boolean": bool,
    "timestamp with time zone": datetime,
    "date": date,
    "bytea": bytes,
    "numeric": (Decimal, int),
    "uuid": UUID,
    "jsonb": str,
}


class TableSinks:
    def __init__(self, pipeline: str) -> None:
        self._pipeline = pipeline
        self._tables: dict[str, Table[Any]] = {}
        self._appended: dict[str, list[tuple[Any, ...]]] = {}
        self._upserted: dict[str, dict[tuple[Any, ...], tuple[Any, ...]]] = {}

    def check(self, tables: list[Table[Any]]) -> None:
        """`DeployRefused` if one does not fit its existing table."""
        for table in tables:
            existing = self._tables.get(table.name)
            if existing is None:
                continue
            found = {column.name: column.type for column in existing.columns}
            wrong = [
                f"{c.name}: the table has {found.get(c.name, 'no such column')}, the row type "
                f"gives {c.type}"
                for c in table.columns
                if found.get(c.name) != c.type
            ]
            if wrong or sorted(existing.key) != sorted(table.key):
                raise DeployRefused(
                    f"table {self._pipeline}.{table.name} does not fit its row type "
                    f"{table.row_type.__name__}:\n  " + "\n  ".join(wrong)
                )

    def add(self, tables: list[Table[Any]]) -> None:
        for table in tables:
            self._tables.setdefault(table.name, table)

    def __contains__(self, name: str) -> bool:
        return name in self._tables

    def write(self, table: Table[Any], values: tuple[Any, ...]) -> None:
        if table.key:
            self._upserted.setdefault(table.name, {})[table.key_of(values)] = values
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
        if not any(column.is_json for column in table.columns):
            return list(found)
        return [
            tuple(
                json.loads(value) if column.is_json and value is not None else value
                for column, value in zip(table.columns, values, strict=True)
            )
            for values in found
        ]


def refusal(table: Table[Any], values: tuple[Any, ...]) -> str | None:
    """Why Postgres would refuse a row; None if it would not."""
    wrong = [_refusal(c, value) for c, value in zip(table.columns, values, strict=True)]
    return next(filter(None, wrong), None)


def _refusal(column: Column, value: Any) -> str | None:
    if value is None:
        return None if column.nullable else f"null in column {column.name!r}"
    if not isinstance(value, _PYTHON_TYPES[column.type]):
        return f"column {column.name!r} is of type {column.type}, not {type(value).__name__}"
    if isinstance(value, str) and "\0" in value:
        return f"a NUL character in column {column.name!r}"
    if isinstance(value, int) and column.type == "bigint" and not -(1 << 63) <= value < 1 << 63:
        return f"{value} is out of range for column {column.name!r}"
    return None
