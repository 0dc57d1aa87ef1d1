"""The columns that the parts of a query may use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NoReturn

from millwheel.core.suggestion import did_you_mean
from millwheel.errors import SqlError
from millwheel.sql import syntax as s
from millwheel.sql import typed as t
from millwheel.sql.schemas import Field
from millwheel.sql.types import TIMESTAMPTZ

WINDOW = "window"
"""Stands for the table of `WINDOW_COLUMNS`."""

WINDOW_COLUMNS = ("window_start", "window_end")

WINDOW_FIELDS = [Field(name, TIMESTAMPTZ, False, "datetime") for name in WINDOW_COLUMNS]


@dataclass(frozen=True)
class TableColumns:
    """The columns of a table in FROM."""

    stream: str
    """The name under which its columns are known to later steps."""
    alias: str
    fields: Sequence[Field]
    attributes: Mapping[str, str] | None = None
    """Where the records have each column; None: under its name."""

    def value(self, field: Field, place: s.Name) -> t.Typed:
        """Raises:
        SqlError: queries cannot use the column.
        """
        if field.type is None:
            raise SqlError(
                f'column "{field.name}" has the type {field.shown}, which queries cannot use',
                place.place,
                "Give it a type that SQL has, or read it in a class",
            )
        where = field.name if self.attributes is None else self.attributes[field.name]
        return t.ColumnValue(field.type, field.nullable, place.place, self.stream, where)


@dataclass(frozen=True)
class Scope:
    """The columns of the tables in FROM, and of the windows over a single one."""

    tables: Sequence[TableColumns]
    has_windows: bool = False

    @property
    def names(self) -> list[str]:
        """The columns of all tables, without those of windows."""
        return [field.name for table in self.tables for field in table.fields]

    def column(self, name: s.Name) -> t.Typed:
        """Raises:
        SqlError: there is no such column, several have the name, or queries cannot use it.
        """
        tables = self._called(name.table, name)
        found = [
            (table, field)
            for table in tables
            for field in table.fields
            if field.name == name.column
        ]
        is_of_window = name.column in WINDOW_COLUMNS and self.has_windows
        if found and is_of_window and found[0][0] is self.tables[0]:
            raise SqlError(
                f'column reference "{name.column}" is ambiguous',
                name.place,
                f"{found[0][0].alias} has such a column, and its windows have one as well: give "
                f"it another name, FROM (SELECT {name.column} AS other, ...) AS x",
            )
        if len(found) > 1:
            raise SqlError(
                f'column reference "{name.column}" is ambiguous',
                name.place,
                f"Write {' or '.join(f'{table.alias}.{name.column}' for table, _ in found)}",
            )
        if found:
            table, field = found[0]
            return table.value(field, name)
        if is_of_window and tables[0] is self.tables[0]:
            return t.ColumnValue(TIMESTAMPTZ, False, name.place, WINDOW, name.column)
        raise SqlError(
            f'column "{name.column}" does not exist', name.place, self._advice(name, tables)
        )

    def _called(self, alias: str | None, name: s.Name) -> Sequence[TableColumns]:
        """The tables with an alias; all of them without one."""
        found = [table for table in self.tables if alias in (None, table.alias)]
        if found:
            return found
        if len(self.tables) == 1:
            advice = f"The stream is called {self.tables[0].alias} here"
        else:
            aliases = ", ".join(table.alias for table in self.tables)
            advice = f"The streams are called {aliases} here"
        raise SqlError(f'missing FROM-clause entry for table "{alias}"', name.place, advice)

    def _advice(self, name: s.Name, tables: Sequence[TableColumns]) -> str:
        if name.column in WINDOW_COLUMNS:
            return "It exists over TUMBLE, HOP and SESSION"
        known = [field.name for table in tables for field in table.fields]
        return did_you_mean(name.column, known) or "; ".join(
            f"The columns of {table.alias if len(self.tables) > 1 else table.stream} are "
            f"{', '.join(field.name for field in table.fields)}"
            for table in tables
        )

    def all(self, star: s.Star) -> list[tuple[str, t.Typed]]:
        """The columns that ``*`` stands for."""
        tables = [table for table in self.tables if star.table in (None, table.alias)]
        if not tables:
            advice = did_you_mean(str(star.table), [table.alias for table in self.tables])
            raise SqlError(f'there is no stream called "{star.table}" here', star.place, advice)
        found = [
            (field.name, table.value(field, s.Name(star.place, table.alias, field.name)))
            for table in tables
            for field in table.fields
        ]
        if self.has_windows and tables[0] is self.tables[0]:
            windows = [s.Name(star.place, None, name) for name in WINDOW_COLUMNS]
            found[len(tables[0].fields) : len(tables[0].fields)] = [
                (name.column, self.column(name)) for name in windows
            ]
        return found


class NoScope:
    """There are no columns."""

    def column(self, name: s.Name) -> NoReturn:
        """Raises:
        SqlError: always.
        """
        raise SqlError(f'column "{name.column}" does not exist', name.place)
