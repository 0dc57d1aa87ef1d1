"""Changes of the tables of sinks: from the columns that a table has to those of its row type."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from millwheel.core.columns import NO_DEFAULT, Column
from millwheel.sinks import Table
from millwheel.store.port.change import CodeChange
from millwheel.store.rules.changes import kinds

_ALSO = {
    "bigint": {"integer", "smallint", "numeric"},
    "text": {"character varying", "character"},
    "double precision": {"real", "numeric"},
    "jsonb": {"json"},
}
"""Types of columns made by hand that take the values of a type."""


@dataclass(frozen=True)
class StoredTable:
    columns: Mapping[str, tuple[str, bool]]
    """By name, its type and whether it may be NULL or has a default."""
    unique: Sequence[Sequence[str]] = ()
    """Columns of its unique indexes, each in alphabetical order."""


@dataclass(frozen=True)
class Alteration:
    """Something to do to a table before code of the new row type writes it."""

    table: str
    add: Column | None = None
    default: Any = None
    """Of an additional column, in its stored form; None: NULL."""
    allow_null: str | None = None
    """Name of a column."""


def table_changes(
    pipeline: str,
    former: Mapping[str, Any],
    stored: Mapping[str, StoredTable],
    tables: Sequence[Table[Any]],
) -> Iterator[tuple[CodeChange, Alteration | None]]:
    """Compare the tables that are in the store; the others are made.

    Args:
        former: the deployed code's descriptions of tables (`Table.describe`), by name.
    """
    for table in tables:
        if table.name in stored:
            yield from _changes(pipeline, former.get(table.name, {}), stored[table.name], table)


def _changes(
    pipeline: str, former: Mapping[str, Any], stored: StoredTable, table: Table[Any]
) -> Iterator[tuple[CodeChange, Alteration | None]]:
    def where(column: str) -> str:
        return f"table {table.name!r}, column {column!r}"

    for column in table.columns:
        found = stored.columns.get(column.name)
        if found is None:
            if column.name in table.unique or not column.is_optional:
                yield CodeChange(kinds.COLUMN_REQUIRED, where(column.name), after=column.type), None
            else:
                default = None if column.default is NO_DEFAULT else table.default_of(column)
                added = Alteration(table.name, column, default)
                yield CodeChange(kinds.COLUMN_ADDED, where(column.name), after=column.type), added
            continue
        kind, may_be_left_out = found
        if kind != column.type and kind not in _ALSO.get(column.type, ()):
            given = {
                "pipeline": pipeline,
                "table": table.name,
                "column": column.name,
                "type": column.type,
            }
            change = CodeChange(kinds.COLUMN_TYPE, where(column.name), kind, column.type, given)
            yield change, None
        elif column.nullable and not may_be_left_out:
            change = CodeChange(kinds.COLUMN_NULLABLE, where(column.name))
            yield change, Alteration(table.name, allow_null=column.name)
    names = {column.name for column in table.columns}
    for name, *_ in former.get("columns", ()):
        if name in stored.columns and name not in names:
            kind, may_be_left_out = stored.columns[name]
            alteration = None if may_be_left_out else Alteration(table.name, allow_null=name)
            yield CodeChange(kinds.COLUMN_MISSING, where(name), before=kind), alteration
    if former.get("key", list(table.key)) != list(table.key):
        return  # the comparison of the graphs refuses it
    if table.unique and sorted(table.unique) not in [list(of) for of in stored.unique]:
        given = {
            "pipeline": pipeline,
            "table": table.name,
            "columns": ", ".join(table.unique),
            "use": "followed by number" if table.numbered else "replaced by key",
        }
        yield CodeChange(kinds.TABLE_INDEX, f"table {table.name!r}", given=given), None
