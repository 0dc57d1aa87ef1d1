"""The structure of a pipeline as statements for another store.

The tables of a deploy and of users cannot be made by migrations, so all come from the catalogs of
the origin. No statement has the schema's name: they are executed while the new schema is the search
path.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import psycopg
from psycopg import sql

from millwheel.store.copies.layout import (
    Definitions,
    SchemaLayout,
    SequenceLayout,
    TableLayout,
    table_definitions,
)
from millwheel.store.postgres.statements import composed, text_of


class SchemaPart(msgspec.Struct, frozen=True):
    of_table: str
    """The table that it is about; empty: none."""
    statement: str


class SequencePosition(msgspec.Struct, frozen=True):
    name: str
    last_value: int
    is_called: bool
    """Whether the last value was given out."""

    def statement(self) -> str:
        """Sets the copy's sequence to this position."""
        return composed(
            "set_position",
            sequence=sql.Literal(sql.Identifier(self.name).as_string(None)),
            value=sql.Literal(self.last_value),
            is_called=sql.Literal(self.is_called),
        )


class Structure(msgspec.Struct, frozen=True):
    before_rows: list[SchemaPart]
    """Sequences, functions that tables may call, and tables."""
    after_rows: list[SchemaPart]
    """Indexes, keys and constraints."""
    code: list[SchemaPart]
    """Functions and views that are not those of the schema's version."""


def structure_of(
    connection: psycopg.Connection[Any], schema: str, layout: SchemaLayout
) -> Structure:
    """The statements, while the schema is the search path. Foreign keys to tables of other schemas
    are not among them (`left_behind`)."""
    made = Definitions(schema, None)
    tables = table_definitions(connection, schema)

    def before_rows() -> Iterator[SchemaPart]:
        yield SchemaPart("", text_of("unchecked_bodies"))
        for function in layout.functions:
            if function.is_first:
                yield SchemaPart("", made.function(function))
        for sequence in layout.sequences:
            yield from _parts("", made.sequence(sequence))
        for table in layout.tables:
            yield from _parts(table.name, made.whole_table(table, tables[table.name]))
        for table in layout.tables:
            yield from _parts(table.name, made.parentage(table))
        for statistics in layout.statistics:
            yield SchemaPart(statistics.of_table, made.statistics(statistics))
        for sequence in layout.sequences:
            yield from _parts(sequence.of_table or "", made.ownership(sequence))

    def after_rows() -> Iterator[SchemaPart]:
        for index in layout.indexes:
            yield SchemaPart(index.of_table, made.index(index))
        for key in layout.keys:
            if key.outside is None:
                yield SchemaPart(key.of_table, made.key(key))

    def code() -> Iterator[SchemaPart]:
        for function in layout.functions:
            if not function.is_first:
                yield SchemaPart("", made.function(function))
        for view in layout.views:
            yield from _parts("", made.view(view))

    return Structure(list(before_rows()), list(after_rows()), list(code()))


def _parts(of_table: str, statements: Iterator[str]) -> Iterator[SchemaPart]:
    return (SchemaPart(of_table, statement) for statement in statements)


def left_behind(layout: SchemaLayout) -> list[str]:
    """Objects of users that a copy in another store has not, in words."""
    keys = [
        f"foreign key {key.name} of {key.of_table}: it refers to {key.outside}"
        for key in layout.keys
        if key.outside is not None
    ]
    return [*layout.left_out, *keys]


def positions_of(
    connection: psycopg.Connection[Any], schema: str, sequences: list[SequenceLayout]
) -> list[SequencePosition]:
    """Read them after the rows."""
    found = []
    for sequence in sequences:
        name = sql.Identifier(schema, sequence.name)
        row = connection.execute(composed("sequence_position", sequence=name)).fetchone()
        assert row is not None
        found.append(SequencePosition(sequence.name, *row))
    return found


def rows_out(schema: str, table: TableLayout) -> str:
    """Reads the rows of a table as CSV, the first line with the names of columns."""
    return composed(
        "rows_out", columns=_columns(table.columns), table=sql.Identifier(schema, table.name)
    )


def rows_in(schema: str, table: str, columns: list[str]) -> str:
    """Takes the same rows."""
    return composed("rows_in", columns=_columns(columns), table=sql.Identifier(schema, table))


def rows_in_by_psql(table: str, columns: list[str], command: str) -> str:
    return composed(
        "rows_in_by_psql",
        columns=_columns(columns),
        table=sql.Identifier(table),
        command=sql.Literal(command),
    )


def _columns(names: list[str]) -> sql.Composed:
    return sql.SQL(", ").join(map(sql.Identifier, names))
