"""Groups of rows: found in one table, read from another, replaced in a third.

A group's values travel as text, as Postgres writes them, since they reach Spark's tasks in an
option. A part of a group that is a column has one value; a period of a time column has two, its
begin and its end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import msgspec
from psycopg import sql

from millwheel.aggregates import GroupPart, Period

Values: TypeAlias = tuple[str, ...]

TypeOf: TypeAlias = Callable[[str], str]


@dataclass(frozen=True)
class Groups:
    columns: tuple[tuple[str, bool], ...]
    """Names, and whether the column has a range of values, not one."""
    values: tuple[Values, ...]

    @classmethod
    def of(cls, parts: Sequence[GroupPart], values: Sequence[Values]) -> Groups:
        """Groups by columns and periods of the table that they are found in, or read from."""
        columns = ((p.column, True) if isinstance(p, Period) else (p, False) for p in parts)
        return cls(tuple(columns), tuple(values))

    def by_begin(self, names: Sequence[str]) -> Groups:
        """A table of results has the begins of periods."""
        kept = [place for place, _ in _places(self.columns)]
        values = (tuple(row[place] for place in kept) for row in self.values)
        return Groups(tuple((name, False) for name in names), tuple(values))

    def divided(self, shares: int) -> Iterator[Groups]:
        size = max(1, -(-len(self.values) // shares))
        for first in range(0, len(self.values), size):
            yield Groups(self.columns, self.values[first : first + size])

    @property
    def source(self) -> sql.SQL:
        return sql.SQL("millwheel_group")

    def listed(self, type_of: TypeOf) -> sql.Composed:
        """An item of FROM; see `parameters`."""
        arrays, names = [], []
        for place, column in _places(self.columns):
            for number in range(place, place + (2 if column[1] else 1)):
                kind = sql.SQL(type_of(column[0]))  # from the catalog or the row type
                arrays.append(sql.SQL("{}::text[]::{}[]").format(sql.Placeholder(), kind))
                names.append(_value(number))
        return sql.SQL("unnest({}) AS {} ({})").format(
            sql.SQL(", ").join(arrays), self.source, sql.SQL(", ").join(names)
        )

    @property
    def parameters(self) -> list[list[str]]:
        return [list(column) for column in zip(*self.values, strict=True)]

    def matches(self, table: sql.Composable) -> sql.Composed:
        conditions = []
        for place, (name, is_range) in _places(self.columns):
            column = sql.SQL("{}.{}").format(table, sql.Identifier(name))
            value, end = _value(place), _value(place + 1)
            if is_range:
                text = sql.SQL("{} >= {} AND {} < {}").format(column, value, column, end)
            else:
                text = sql.SQL("{} = {}").format(column, value)
            conditions.append(text)
        return sql.SQL(" AND ").join(conditions)

    def written(self) -> str:
        return msgspec.json.encode([self.columns, self.values]).decode()

    @classmethod
    def parsed(cls, option: str) -> Groups:
        columns, values = msgspec.json.decode(
            option, type=tuple[tuple[tuple[str, bool], ...], tuple[Values, ...]]
        )
        return cls(columns, values)


def _places(columns: Sequence[tuple[str, bool]]) -> Iterator[tuple[int, tuple[str, bool]]]:
    place = 0
    for column in columns:
        yield place, column
        place += 2 if column[1] else 1


def _value(place: int) -> sql.Identifier:
    return sql.Identifier(f"millwheel_value_{place}")


def group_values(parts: Sequence[GroupPart], type_of: TypeOf) -> list[sql.Composed]:
    found: list[sql.Composed] = []
    for part in parts:
        if not isinstance(part, Period):
            found.append(sql.SQL("{}::text").format(sql.Identifier(part)))
            continue
        column, unit = sql.Identifier(part.column), sql.Literal(part.unit)
        if type_of(part.column) == "date":
            begin = sql.SQL("date_trunc({}, {}::timestamp)").format(unit, column)
            kind, zone = sql.SQL("date"), sql.SQL("")
        else:
            begin = sql.SQL("date_trunc({}, {} AT TIME ZONE 'UTC')").format(unit, column)
            kind, zone = sql.SQL("timestamptz"), sql.SQL(" AT TIME ZONE 'UTC'")
        end = sql.SQL("({} + {}::interval)").format(begin, sql.Literal(f"1 {part.unit}"))
        found += [sql.SQL("({}{})::{}::text").format(at, zone, kind) for at in (begin, end)]
    return found
