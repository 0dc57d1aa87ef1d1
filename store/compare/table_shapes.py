"""The tables of two pipelines beside each other: the columns that are compared, the key, and the
column of time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import psycopg

from millwheel.core.columns import NUMBERS
from millwheel.store.postgres.statements import TABLES, Statements

ENGINE_TABLES = [*TABLES, "alembic_version"]

TIME_TYPE = "timestamp with time zone"

ENDS = ("end", "ends_at", "ended_at", "end_at", "until", "closed_at")
"""Names of columns with the end of a span of time; others end with `END`."""

END = "_end"

ROW_BYTES = 100.0
"""Of a table that was never analyzed."""


class OwnColumn(NamedTuple):
    name: str
    type: str
    """For messages."""
    cast: str
    has_equality: bool
    collation: int
    """0: the type has none."""


@dataclass(frozen=True)
class OwnTable:
    oid: int
    name: str
    bytes: int
    rows: float
    """An estimate; -1: not known."""
    columns: Sequence[OwnColumn]
    keys: Sequence[tuple[str, ...]]
    """The primary key first."""

    @property
    def row_bytes(self) -> float:
        return self.bytes / self.rows if self.rows > 0 and self.bytes else ROW_BYTES


@dataclass(frozen=True)
class PairedColumn:
    """A column that both tables have."""

    name: str
    types: tuple[str, str]
    cast: str
    by_text: bool
    """Its values are compared as texts: the types differ, or have no equality."""
    has_collation: bool
    sorts_alike: bool
    """Both sides have one order of its values."""

    @property
    def is_time(self) -> bool:
        return self.types == (TIME_TYPE, TIME_TYPE)


@dataclass(frozen=True)
class TablePair:
    """A table that both pipelines have."""

    name: str
    key: Sequence[PairedColumn]
    """Empty: no columns are a key of both."""
    values: Sequence[PairedColumn]
    is_in_order: bool
    """Both sides have the columns of the key in one order."""
    is_numbered: bool
    row_bytes: float
    rows: float
    """An estimate of the larger one; -1: not known."""
    lacking: tuple[Sequence[str], Sequence[str]]
    """Columns that only the first side has, and only the second."""

    @property
    def columns(self) -> list[PairedColumn]:
        return [*self.key, *self.values]

    @property
    def has_pages(self) -> bool:
        """Whether both sides have an index with the key in one order."""
        in_order = bool(self.key) and self.is_in_order
        return in_order and all(c.sorts_alike and not c.by_text for c in self.key)

    def times(self) -> list[PairedColumn]:
        """The columns that may be the time of a row, the likeliest alone; several if it is not
        known."""
        found = [column for column in self.columns if column.is_time]
        ends = [column for column in found if is_end(column.name)]
        in_key = [column for column in self.key if column.is_time]
        return next((one for one in (found, ends, in_key) if len(one) == 1), found)


def is_end(column: str) -> bool:
    return column in ENDS or column.endswith(END)


def tables_of(connection: psycopg.Connection[Any], pipeline: str) -> dict[str, OwnTable]:
    """The tables in a pipeline's schema that are not the engine's, by name."""
    statements = Statements(pipeline)

    def rows(name: str, **params: Any) -> list[tuple[Any, ...]]:
        return connection.execute(statements.get(name), params, prepare=False).fetchall()

    return {
        name: OwnTable(
            oid,
            name,
            size,
            count,
            [OwnColumn(*row) for row in rows("compared_columns", table=oid)],
            [tuple(names) for (names,) in rows("compared_keys", table=oid)],
        )
        for oid, name, size, count in rows("own_tables", schema=pipeline, engine=ENGINE_TABLES)
    }


def shared_table(a: OwnTable, b: OwnTable) -> TablePair:
    others = {column.name: column for column in b.columns}
    columns = {
        column.name: _shared(column, others[column.name])
        for column in a.columns
        if column.name in others
    }
    names = set(columns)
    is_numbered = set(NUMBERS) <= names and any(set(key) == set(NUMBERS) for key in a.keys)
    if is_numbered:  # numbers of key intervals and of their commits, which no run has again
        names -= set(NUMBERS)
    key = _common_key(a.keys, b.keys, names)
    return TablePair(
        a.name,
        [columns[name] for name in key],
        [column for name, column in columns.items() if name in names and name not in key],
        key in b.keys,
        is_numbered,
        max(a.row_bytes, b.row_bytes),
        max(a.rows, b.rows),
        (
            [column.name for column in a.columns if column.name not in columns],
            [name for name in others if name not in columns],
        ),
    )


def _common_key(
    keys: Iterable[tuple[str, ...]], others: Sequence[tuple[str, ...]], names: set[str]
) -> tuple[str, ...]:
    sets = [set(other) for other in others]
    found = [key for key in keys if set(key) in sets and set(key) <= names]
    return next((key for key in found if key in others), found[0] if found else ())


def _shared(a: OwnColumn, b: OwnColumn) -> PairedColumn:
    same_type = a.cast == b.cast
    return PairedColumn(
        a.name,
        (a.type, b.type),
        a.cast,
        not (same_type and a.has_equality and b.has_equality),
        bool(a.collation and b.collation),
        same_type and a.collation == b.collation,
    )
