"""Expressions asked of Postgres and of millwheel, to compare the answers.

An answer is the type and the text of the value, or that there is an error.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import psycopg

from millwheel.errors import SqlError
from millwheel.sql import syntax as s
from millwheel.sql import typed as t
from millwheel.sql.functions import ValueRefused, cast_of
from millwheel.sql.generating import Generator
from millwheel.sql.parsing import parse_expression
from millwheel.sql.place import Place
from millwheel.sql.resolving import Resolver
from millwheel.sql.types import TEXT, SqlType, shown

NOWHERE = Place("", 0)

Row = Mapping[str, tuple[str, str | None]]
"""By the name of a column: its type, by Postgres' own name, and its value as a text."""


class Answer(NamedTuple):
    type: str
    """``error``: there is no value."""
    text: str | None
    """NULL: None; of an error, its message."""

    def agrees(self, other: Answer) -> bool:
        """Whether type and value are the same, or both are errors."""
        if "error" in (self.type, other.type):
            return self.type == other.type
        return self == other


class Columns:
    """The columns of a row as a scope."""

    def __init__(self, row: Row, *, nullable: bool) -> None:
        self._row = row
        self._nullable = nullable

    def column(self, name: s.Name) -> t.Typed:
        if name.column not in self._row:
            raise SqlError(f'column "{name.column}" does not exist', name.place)
        kind, value = self._row[name.column]
        nullable = self._nullable or value is None
        return t.ColumnValue(SqlType(kind), nullable, name.place, "", name.column)


def value_of(kind: str, text: str | None) -> Any:
    """A text as a value of a type, by the type's input."""
    if text is None or kind in ("text", "varchar", "bpchar"):
        return text
    implementation = cast_of("text", kind)
    assert implementation is not None
    assert implementation.function is not None
    return implementation.function(text)


def ours(expression: str, row: Row, *, nullable: bool = True) -> Answer:
    """The answer of millwheel.

    Args:
        nullable: whether columns that are not NULL in the row are declared as if they could be.
    """
    try:
        resolver = Resolver(Columns(row, nullable=nullable), no_aggregates_in="an expression")
        found = resolver.value(parse_expression(expression))
        as_text = found if found.type == TEXT else resolver.explicit(found, TEXT, NOWHERE)
        generator = Generator(lambda column: column.name)
        code = generator.value(as_text)
        names = {name: value_of(*of) for name, of in row.items()}
        value = eval(code, {**generator.names, **names})
    except (SqlError, ValueRefused) as error:
        return Answer("error", str(error).split("\n")[0])
    return Answer(shown(found.type.plain), value)


class Oracle:
    """Postgres, with the settings of `millwheel.sql.functions`."""

    def __init__(self, url: str) -> None:
        self._connection = psycopg.connect(url, autocommit=True)
        for setting in ("TimeZone = 'UTC'", "DateStyle = 'ISO, MDY'", "IntervalStyle = 'postgres'"):
            self._connection.execute(f"SET {setting}".encode())

    def __call__(self, expression: str, row: Row) -> Answer:
        columns = ", ".join(
            f"CAST({'NULL' if text is None else _quoted(text)} AS {_declared(kind)}) AS {name}"
            for name, (kind, text) in row.items()
        )
        # OFFSET keeps the columns from being taken for constants, which are evaluated before.
        source = f"(SELECT {columns} OFFSET 0) AS t"
        query = (
            f"SELECT pg_typeof(v)::text, v::text FROM (SELECT ({expression}) AS v FROM {source})"
        )
        try:
            found = self._connection.execute(query.encode()).fetchone()
        except psycopg.Error as error:
            return Answer("error", error.diag.message_primary)
        assert found is not None
        return Answer(*found)

    def close(self) -> None:
        self._connection.close()


def _declared(kind: str) -> str:
    # `character` would be character(1).
    return "bpchar" if kind == "bpchar" else shown(SqlType(kind))


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def differences(oracle: Oracle, expressions: list[str], row: Row) -> list[str]:
    """The expressions on which the answers are not the same, with both answers."""
    found = []
    for expression in expressions:
        theirs = oracle(expression, row)
        for nullable in (True, False):
            mine = ours(expression, row, nullable=nullable)
            if mine.type == "error" and "available" in str(mine.text):
                continue  # a value or a form that is refused, as the documentation says
            if mine.type == "error" and str(theirs.text).endswith(" BC"):
                continue  # so are years before 1
            if not mine.agrees(theirs):
                found.append(f"{expression}: Postgres {theirs}, millwheel {mine}")
    return found
