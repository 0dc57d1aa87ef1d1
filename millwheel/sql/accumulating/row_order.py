"""The order of rows by several values, each ascending or descending, with NULL first or last."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from operator import itemgetter
from typing import Any

from millwheel.errors import SqlError
from millwheel.sql import typed as t
from millwheel.sql.types import shown

RowOrder = tuple[tuple[int | None, bool, bool], ...]
"""For each key: its place in a row, whether it descends, whether NULL is first. None: a row is its
only value."""

ORDERED = (
    "bool", "int2", "int4", "int8", "float4", "float8", "numeric", "text", "varchar", "date",
    "time", "timestamp", "timestamptz", "uuid", "bytea",
)  # fmt: skip
"""Types with values that Python compares as Postgres does."""


def check_ordered(value: t.Typed) -> None:
    """Raises:
    SqlError: values of this type have no order here.
    """
    if value.type.name in ORDERED:
        return
    advice = {
        "interval": "Use extract(epoch FROM ...), a number",
        "bpchar": "Cast it: ::text",
        "json": "Use ->> 'field', a text",
        "jsonb": "Use ->> 'field', a text",
    }.get(value.type.name, "Use its elements")
    raise SqlError(f"values of {shown(value.type)} have no order here", value.place, advice)


def in_order(rows: Iterable[Any], order: RowOrder) -> list[Any]:
    """Rows in order; equal ones stay as they are."""
    found = list(rows)
    for place, descending, nulls_first in reversed(order):
        found.sort(key=_key(found, place, descending == nulls_first), reverse=descending)
    return found


def _key(rows: Sequence[Any], place: int | None, nulls_are_greatest: bool) -> Any:
    """The key of a sort that may be reversed."""
    value: Callable[[Any], Any] | None = None if place is None else itemgetter(place)
    values = rows if value is None else list(map(value, rows))
    if all(each is not None for each in values):
        return value

    def key(row: Any) -> tuple[bool, Any]:
        found = row if value is None else value(row)
        return (found is None) == nulls_are_greatest, found

    return key


def precedes(row: Sequence[Any], other: Sequence[Any], order: RowOrder) -> bool:
    """Whether a row is before another, and not equal to it in all keys."""
    for place, descending, nulls_first in order:
        assert place is not None
        mine, theirs = row[place], other[place]
        if mine == theirs:
            continue
        if mine is None or theirs is None:
            return nulls_first == (mine is None)
        return bool(mine > theirs if descending else mine < theirs)
    return False
