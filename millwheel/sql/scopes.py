"""The columns that the parts of a query may use."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches

from millwheel.errors import SqlError
from millwheel.sql import syntax as s
from millwheel.sql import typed as t
from millwheel.sql.schemas import Field
from millwheel.sql.types import TIMESTAMPTZ

WINDOW = "window"
"""Stands for the table of `WINDOW_COLUMNS`."""

WINDOW_COLUMNS = ("window_start", "window_end")


@dataclass(frozen=True)
class StreamScope:
    """The columns of one stream, and of the windows over it."""

    stream: str
    alias: str
    fields: Sequence[Field]
    has_windows: bool

    def column(self, name: s.Name) -> t.Typed:
        """Raises:
        SqlError: there is no such column, or queries cannot use it.
        """
        if name.table not in (None, self.alias):
            raise SqlError(
                f'missing FROM-clause entry for table "{name.table}"',
                name.place,
                f"The stream is called {self.alias} here",
            )
        for field in self.fields:
            if field.name == name.column:
                return self._of_field(field, name)
        if name.column in WINDOW_COLUMNS and self.has_windows:
            return t.ColumnValue(TIMESTAMPTZ, False, name.place, WINDOW, name.column)
        raise SqlError(f'column "{name.column}" does not exist', name.place, self._advice(name))

    def _of_field(self, field: Field, name: s.Name) -> t.Typed:
        if field.type is None:
            raise SqlError(
                f'column "{field.name}" has the type {field.shown}, which queries cannot use',
                name.place,
                "Give it a type that SQL has, or read it in a class",
            )
        return t.ColumnValue(field.type, field.nullable, name.place, self.stream, field.name)

    def _advice(self, name: s.Name) -> str:
        if name.column in WINDOW_COLUMNS:
            return "It exists over TUMBLE, HOP and SESSION"
        known = [field.name for field in self.fields]
        close = get_close_matches(name.column, known, 1)
        if close:
            return f"Did you mean {close[0]}?"
        return f"The columns of {self.stream} are {', '.join(known)}"

    def all(self, star: s.Star) -> list[tuple[str, t.Typed]]:
        """The columns that ``*`` stands for."""
        if star.table not in (None, self.alias):
            raise SqlError(f'there is no stream called "{star.table}" here', star.place)
        names = [field.name for field in self.fields]
        names += WINDOW_COLUMNS if self.has_windows else ()
        return [(name, self.column(s.Name(star.place, None, name))) for name in names]


class NoScope:
    """There are no columns."""

    def column(self, name: s.Name) -> t.Typed:
        """Raises:
        SqlError: always.
        """
        raise SqlError(f'column "{name.column}" does not exist', name.place)
