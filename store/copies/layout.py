"""The parts of a schema, as the server's catalogs have them, and how the same are made in another
one.

Tables are made by ``LIKE``, which copies columns, defaults, checks and comments. The rest is read
as definitions while the search path is the origin's, so that they name its relations without a
schema, and executed while it is the copy's.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import psycopg
from psycopg import sql

from millwheel.store.console.views import NAMES, VIEWS
from millwheel.store.postgres.statements import composed, text_of


class TableLayout(NamedTuple):
    name: str
    kind: str
    parent: str | None
    """Of a bucket."""
    is_unlogged: bool
    options: str | None
    """``WITH (...)``"""
    bytes: int
    """Without indexes."""
    blocks: int
    comment: str | None
    columns: list[str]
    """Without generated ones."""


class SequenceLayout(NamedTuple):
    name: str
    type: str
    start: int
    increment: int
    least: int
    greatest: int
    cache: int
    cycles: bool
    is_identity: bool
    of_table: str | None
    of_column: str | None

    @property
    def column(self) -> tuple[str, str] | None:
        """Table and column to which it belongs."""
        if self.of_table is None or self.of_column is None:
            return None
        return self.of_table, self.of_column


class KeyLayout(NamedTuple):
    of_table: str
    name: str
    definition: str
    outside: str | None
    """The table of another schema that a foreign key refers to."""


class IndexLayout(NamedTuple):
    of_table: str
    name: str
    is_unique: bool
    rest: str
    """``USING ...``"""


class DefaultLayout(NamedTuple):
    of_table: str
    of_column: str
    expression: str


class StatisticsLayout(NamedTuple):
    of_table: str
    of_column: str
    target: int


class FunctionLayout(NamedTuple):
    name: str
    called: str
    """Its name with the schema, as it stands in the definition."""
    definition: str
    is_first: bool
    """It needs nothing of the schema, and tables may call it."""


class ViewLayout(NamedTuple):
    name: str
    definition: str
    options: str | None
    comment: str | None


class TableDefinition(NamedTuple):
    """A table as it is made where ``LIKE`` cannot see the origin's."""

    of_table: str
    definitions: list[str]
    """Of columns and checks."""
    statements: list[str]
    """Comments and storage of columns."""


class SchemaLayout(NamedTuple):
    tables: list[TableLayout]
    sequences: list[SequenceLayout]
    keys: list[KeyLayout]
    indexes: list[IndexLayout]
    defaults: list[DefaultLayout]
    statistics: list[StatisticsLayout]
    functions: list[FunctionLayout]
    views: list[ViewLayout]
    left_out: list[str]
    """Objects of users that are not copied, in words."""

    @property
    def bytes(self) -> int:
        return sum(table.bytes for table in self.tables)

    def without(self, table: str | None) -> SchemaLayout:
        """All parts but a table, and its own; None: all."""
        return self._replace(
            tables=[one for one in self.tables if one.name != table],
            sequences=[one for one in self.sequences if table is None or one.of_table != table],
            keys=[one for one in self.keys if one.of_table != table],
            indexes=[one for one in self.indexes if one.of_table != table],
            defaults=[one for one in self.defaults if one.of_table != table],
            statistics=[one for one in self.statistics if one.of_table != table],
        )


def layout_of(connection: psycopg.Connection[Any], schema: str) -> SchemaLayout:
    """All parts at the connection's snapshot; changes its search path to the schema."""
    connection.execute(set_path(schema))

    def rows(name: str, **params: Any) -> list[Any]:
        return connection.execute(text_of(name), {"schema": schema, **params}).fetchall()

    return SchemaLayout(
        [TableLayout(*row) for row in rows("copied_tables") if row[1] == "r"],
        [SequenceLayout(*row) for row in rows("copied_sequences")],
        [KeyLayout(*row) for row in rows("copied_keys")],
        [IndexLayout(*row) for row in rows("copied_indexes")],
        [DefaultLayout(*row) for row in rows("copied_defaults")],
        [StatisticsLayout(*row) for row in rows("copied_statistics")],
        [FunctionLayout(*row) for row in rows("copied_functions", known=list(NAMES))],
        [ViewLayout(*row) for row in rows("copied_views", known=list(VIEWS))],
        [text for (text,) in rows("left_out")],
    )


def table_definitions(
    connection: psycopg.Connection[Any], schema: str
) -> dict[str, TableDefinition]:
    """By table, while the schema is the search path."""
    rows = connection.execute(text_of("copied_columns"), {"schema": schema})
    return {row[0]: TableDefinition(*row) for row in rows}


def set_path(schema: str) -> str:
    return composed("copy_search_path", schema=sql.Identifier(schema))


class Definitions:
    """The statements that make the parts of an origin's layout in another schema; None: in the one
    that is the search path."""

    def __init__(self, origin: str, target: str | None) -> None:
        self._origin, self._target = origin, target

    def table(self, table: TableLayout) -> Iterator[str]:
        yield composed(
            "copy_table",
            unlogged=sql.SQL("UNLOGGED" if table.is_unlogged else ""),
            table=self._new(table.name),
            like=self._like(table.name),
            options=_options(table.options),
        )
        yield from self._comment("TABLE", table.name, table.comment)

    def whole_table(self, table: TableLayout, made: TableDefinition) -> Iterator[str]:
        yield composed(
            "whole_table",
            unlogged=sql.SQL("UNLOGGED" if table.is_unlogged else ""),
            table=self._new(table.name),
            definitions=sql.SQL(", ").join(map(sql.SQL, made.definitions)),
            options=_options(table.options),
        )
        yield from self._comment("TABLE", table.name, table.comment)
        yield from made.statements

    def parentage(self, table: TableLayout) -> Iterator[str]:
        if table.parent is not None:
            yield composed(
                "copy_parentage", table=self._new(table.name), parent=self._new(table.parent)
            )

    def rows(self, table: TableLayout, low: int, high: int) -> str:
        """Copies the rows in a range of blocks."""
        return composed(
            "copy_rows",
            table=self._new(table.name),
            like=self._like(table.name),
            columns=sql.SQL(", ").join(map(sql.Identifier, table.columns)),
            low=sql.Literal(f"({low},0)"),
            high=sql.Literal(f"({high},0)"),
        )

    def sequence(self, sequence: SequenceLayout) -> Iterator[str]:
        if not sequence.is_identity:  # those come with their tables
            yield composed(
                "copy_sequence",
                sequence=self._new(sequence.name),
                type=sql.SQL(sequence.type),
                start=sql.Literal(sequence.start),
                increment=sql.Literal(sequence.increment),
                least=sql.Literal(sequence.least),
                greatest=sql.Literal(sequence.greatest),
                cache=sql.Literal(sequence.cache),
                cycle=sql.SQL("CYCLE" if sequence.cycles else "NO CYCLE"),
            )

    def ownership(self, sequence: SequenceLayout) -> Iterator[str]:
        if sequence.column is not None and not sequence.is_identity:
            column = self._new(*sequence.column)
            yield composed("copy_ownership", sequence=self._new(sequence.name), column=column)

    def position(self, sequence: SequenceLayout) -> str:
        like = self._like(sequence.name)
        if sequence.is_identity:
            assert sequence.column is not None
            table, column = sequence.column
            quoted = sql.Literal(self._new(table).as_string(None))
            return composed(
                "copy_identity_position", table=quoted, column=sql.Literal(column), like=like
            )
        name = sql.Literal(self._new(sequence.name).as_string(None))
        return composed("copy_position", sequence=name, like=like)

    def default(self, default: DefaultLayout) -> str:
        return composed(
            "copy_default",
            table=self._new(default.of_table),
            column=sql.Identifier(default.of_column),
            expression=sql.SQL(default.expression),
        )

    def statistics(self, statistics: StatisticsLayout) -> str:
        return composed(
            "copy_statistics",
            table=self._new(statistics.of_table),
            column=sql.Identifier(statistics.of_column),
            target=sql.Literal(statistics.target),
        )

    def key(self, key: KeyLayout) -> str:
        return composed(
            "copy_key",
            table=self._new(key.of_table),
            called=sql.Identifier(key.name),
            definition=sql.SQL(key.definition),
        )

    def index(self, index: IndexLayout) -> str:
        return composed(
            "copy_index",
            unique=sql.SQL("UNIQUE" if index.is_unique else ""),
            called=sql.Identifier(index.name),
            table=self._new(index.of_table),
            rest=sql.SQL(index.rest),
        )

    def function(self, function: FunctionLayout) -> str:
        made = self._new(function.name).as_string(None)
        return function.definition.replace(function.called, made, 1)

    def view(self, view: ViewLayout) -> Iterator[str]:
        yield composed(
            "copy_view",
            view=self._new(view.name),
            options=_options(view.options),
            definition=sql.SQL(view.definition.rstrip(";")),
        )
        yield from self._comment("VIEW", view.name, view.comment)

    def analysis(self, table: TableLayout) -> str:
        return composed("copy_analyze", table=self._new(table.name))

    def _comment(self, kind: str, name: str, comment: str | None) -> Iterator[str]:
        if comment is not None:
            yield composed(
                "copy_comment",
                kind=sql.SQL(kind),
                relation=self._new(name),
                comment=sql.Literal(comment),
            )

    def _new(self, *name: str) -> sql.Identifier:
        return sql.Identifier(*(() if self._target is None else (self._target,)), *name)

    def _like(self, name: str) -> sql.Identifier:
        return sql.Identifier(self._origin, name)


def _options(options: str | None) -> sql.SQL:
    return sql.SQL(options or "")
