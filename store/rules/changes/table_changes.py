"""Changes of the tables of sinks: from the columns that a table has to those of its row type."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from millwheel.core.columns import NO_DEFAULT, Column
from millwheel.sinks import Table
from millwheel.store.port.change import CodeChange, Kind
from millwheel.store.rules.changes import kinds
from millwheel.store.rules.code import Generation

_ALSO = {
    "bigint": {"integer", "smallint", "numeric"},
    "text": {"character varying", "character"},
    "double precision": {"real", "numeric"},
    "jsonb": {"json"},
}
"""Types of columns made by hand that take the values of a type."""

_LOSSLESS = {
    ("smallint", "numeric"),
    ("integer", "numeric"),
    ("bigint", "numeric"),
    ("smallint", "double precision"),
    ("integer", "double precision"),
    ("uuid", "text"),
}
"""Casts of Postgres from a stored type to another one that lose nothing of any value."""

MOST_REWRITTEN_BYTES = 64 << 20
"""The rewriting of a larger table takes seconds, in which no other session can use it."""


@dataclass(frozen=True)
class StoredTable:
    columns: Mapping[str, tuple[str, bool]]
    """By name, its type and whether it may be NULL or has a default."""
    unique: Sequence[Sequence[str]] = ()
    """Columns of its unique indexes, each in alphabetical order."""
    size: int = 0
    """Bytes."""


@dataclass(frozen=True)
class AddColumn:
    table: str
    column: Column
    default: Any
    """In its stored form; None: NULL."""


@dataclass(frozen=True)
class AllowNull:
    table: str
    column: str


@dataclass(frozen=True)
class RenameColumn:
    table: str
    former: str
    column: str


@dataclass(frozen=True)
class CastColumn:
    table: str
    column: str
    type: str


Alteration: TypeAlias = AddColumn | AllowNull | RenameColumn | CastColumn
"""Something to do to a table before code of the new row type writes it."""

Found: TypeAlias = Iterator[tuple[CodeChange, Alteration | None]]


def table_changes(
    pipeline: str,
    former: Mapping[str, Any],
    stored: Mapping[str, StoredTable],
    tables: Sequence[Table[Any]],
    workers: int = 0,
) -> Found:
    """Compare the tables that are in the store; the others are made.

    Args:
        former: the deployed code's descriptions of tables (`Table.describe`), by name.
        workers: number of those that run former code.
    """
    for table in tables:
        if table.name in stored:
            known = former.get(table.name, {})
            yield from _TableChanges(pipeline, known, stored[table.name], table, workers).found()


class _TableChanges:
    def __init__(
        self,
        pipeline: str,
        former: Mapping[str, Any],
        stored: StoredTable,
        table: Table[Any],
        workers: int,
    ) -> None:
        self._pipeline = pipeline
        self._former = former
        self._stored = stored
        self._table = table
        self._workers = workers
        names = {column.name for column in table.columns}
        self._renamed = {
            name: old
            for name, old in table.renamed_from.items()
            if name not in stored.columns and old in stored.columns and old not in names
        }

    def found(self) -> Found:
        for column in self._table.columns:
            if column.name in self._renamed:
                yield from self._of_renamed(column)
            elif column.name in self._stored.columns:
                yield from self._of_known(column, self._stored.columns[column.name])
            else:
                yield self._of_added(column)
        yield from self._missing()
        yield from self._index()

    def _of_added(self, column: Column) -> tuple[CodeChange, Alteration | None]:
        name, table = column.name, self._table
        if name in table.unique or not column.is_optional:
            return self._change(kinds.COLUMN_REQUIRED, name, after=column.type), None
        default = None if column.default is NO_DEFAULT else table.default_of(column)
        change = self._change(kinds.COLUMN_ADDED, name, after=column.type)
        return change, AddColumn(table.name, column, default)

    def _of_renamed(self, column: Column) -> Found:
        name, former = column.name, self._renamed[column.name]
        kind = kinds.COLUMN_RENAMED_RUNNING if self._workers else kinds.COLUMN_RENAMED
        change = self._change(kind, name, former, name, workers=self._workers)
        yield change, RenameColumn(self._table.name, former, name)
        yield from self._of_known(column, self._stored.columns[former])

    def _of_known(self, column: Column, stored: tuple[str, bool]) -> Found:
        name, (type_, may_be_left_out) = column.name, stored
        if type_ != column.type and type_ not in _ALSO.get(column.type, ()):
            cast = CastColumn(self._table.name, name, column.type)
            if (type_, column.type) not in _LOSSLESS:
                yield self._change(kinds.COLUMN_TYPE, name, type_, column.type), None
            elif self._stored.size > MOST_REWRITTEN_BYTES:
                megabytes = self._stored.size >> 20
                large = kinds.COLUMN_WIDER_LARGE
                yield self._change(large, name, type_, column.type, megabytes=megabytes), None
            else:
                yield self._change(kinds.COLUMN_WIDER, name, type_, column.type), cast
        if column.nullable and not may_be_left_out:
            yield self._change(kinds.COLUMN_NULLABLE, name), AllowNull(self._table.name, name)

    def _missing(self) -> Found:
        names = {*self._renamed.values(), *(column.name for column in self._table.columns)}
        for name, *_ in self._former.get("columns", ()):
            if name in self._stored.columns and name not in names:
                type_, may_be_left_out = self._stored.columns[name]
                alteration = None if may_be_left_out else AllowNull(self._table.name, name)
                yield self._change(kinds.COLUMN_MISSING, name, type_), alteration
        if self._former:
            return
        for name, (type_, may_be_left_out) in self._stored.columns.items():
            if name not in names and not may_be_left_out:
                yield self._change(kinds.COLUMN_FOREIGN, name, type_), None

    def _index(self) -> Found:
        table = self._table
        if self._former.get("key", list(table.key)) != list(table.key):
            return  # the comparison of the graphs refuses it
        names = {old: name for name, old in self._renamed.items()}
        unique = [sorted(names.get(name, name) for name in of) for of in self._stored.unique]
        if table.unique and sorted(table.unique) not in unique:
            given = {
                "pipeline": self._pipeline,
                "table": table.name,
                "columns": ", ".join(table.unique),
                "use": "followed by number" if table.numbered else "replaced by key",
            }
            yield CodeChange(kinds.TABLE_INDEX, f"table {table.name!r}", given=given), None

    def _change(
        self, kind: Kind, column: str, before: Any = None, after: Any = None, **given: Any
    ) -> CodeChange:
        given |= {"pipeline": self._pipeline, "table": self._table.name, "column": column}
        given["type"] = after
        where = f"table {self._table.name!r}, column {column!r}"
        return CodeChange(kind, where, before, after, given)


def left_columns(history: Sequence[Generation], table: str) -> dict[str, int]:
    """Columns of a table that former code has written and the newest does not, each with the newest
    generation that has it."""
    left: dict[str, int] = {}
    for generation in history:
        names = [name for name, *_ in generation.code.tables.get(table, {}).get("columns", ())]
        left.update(dict.fromkeys(names, generation.number))
    return {name: number for name, number in left.items() if number < history[-1].number}
