"""The parts of a condition that joins two tables: equal keys, and times near each other."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from millwheel.sql import typed as t
from millwheel.sql.keys import is_same_key
from millwheel.sql.types import BOOL

_EQUALITIES = frozenset(
    """
    booleq int2eq int4eq int8eq int24eq int42eq int28eq int82eq int48eq int84eq texteq numeric_eq
    date_eq time_eq timestamp_eq timestamptz_eq uuid_eq byteaeq
    """.split()  # noqa: SIM905
)

_COMPARISONS = {
    "timestamptz_ge": (True, False), "timestamptz_gt": (True, False),
    "timestamptz_le": (False, True), "timestamptz_lt": (False, True),
    "timestamptz_eq": (True, True),
}  # fmt: skip
"""By comparison: whether the left side has a least value, and whether it has a greatest one."""

Columns = Collection[str]


def conjuncts(value: t.Typed | None) -> list[t.Typed]:
    """The conditions that AND connects; TRUE is left out."""
    if value is None or (isinstance(value, t.ConstantValue) and value.value is True):
        return []
    if isinstance(value, t.LogicValue) and value.kind == "AND":
        return [part for operand in value.operands for part in conjuncts(operand)]
    return [value]


def conjunction(values: Iterable[t.Typed]) -> t.Typed | None:
    """The condition that all of some hold; None: there are none."""
    parts = list(values)
    if len(parts) < 2:
        return parts[0] if parts else None
    nullable = any(part.nullable for part in parts)
    return t.LogicValue(BOOL, nullable, parts[0].place, "AND", tuple(parts))


def columns_in(value: t.Typed, table: str) -> set[str]:
    """The columns of a table that a value uses."""
    return {
        part.name
        for part in t.walk(value)
        if isinstance(part, t.ColumnValue) and part.table == table
    }


@dataclass(frozen=True)
class EqualKeys:
    """An equality between the tables of a join."""

    left: t.Typed
    right: t.Typed
    condition: t.Typed

    @property
    def columns(self) -> tuple[str, str] | None:
        """The two columns, if each side is one."""
        if isinstance(self.left, t.ColumnValue) and isinstance(self.right, t.ColumnValue):
            return self.left.name, self.right.name
        return None


def equal_keys(condition: t.Typed, table: str, left: Columns, right: Columns) -> EqualKeys | None:
    """A condition as an equality of keys; None: it is none.

    Args:
        table: the table of all columns.
        left: those of the left side.
        right: those of the right side.
    """
    if not isinstance(condition, t.Apply) or condition.signature.name not in _EQUALITIES:
        return None
    first, second = condition.arguments
    used = columns_in(first, table), columns_in(second, table)
    if not used[0] or not used[1] or not is_same_key(first, second):
        return None
    if used[0].issubset(left) and used[1].issubset(right):
        return EqualKeys(first, second, condition)
    if used[0].issubset(right) and used[1].issubset(left):
        return EqualKeys(second, first, condition)
    return None


@dataclass(frozen=True)
class TimeBound:
    """How far the time of a right record may be from that of its left one, in microseconds."""

    left: str
    """The column with the time."""
    right: str
    earliest: int
    """May be negative: before the left record."""
    latest: int


def time_bound(
    conditions: Iterable[t.Typed], table: str, left: Columns, right: Columns
) -> TimeBound | None:
    """The bound that conditions imply together; None: they leave one side open."""
    least: dict[tuple[str, str], int] = {}
    greatest: dict[tuple[str, str], int] = {}
    for condition in conditions:
        found = _difference(condition, table, left, right)
        if found is None:
            continue
        pair, distance, has_least, has_greatest = found
        if has_least:
            least[pair] = max(least.get(pair, distance), distance)
        if has_greatest:
            greatest[pair] = min(greatest.get(pair, distance), distance)
    for pair in least:
        if pair in greatest:
            return TimeBound(*pair, least[pair], greatest[pair])
    return None


def _difference(
    condition: t.Typed, table: str, left: Columns, right: Columns
) -> tuple[tuple[str, str], int, bool, bool] | None:
    """A comparison of two times: their columns, the distance right minus left, and whether it is
    the least and the greatest one."""
    if not isinstance(condition, t.Apply) or condition.signature.name not in _COMPARISONS:
        return None
    has_least, has_greatest = _COMPARISONS[condition.signature.name]
    sides = [_moved_column(argument, table) for argument in condition.arguments]
    if sides[0] is None or sides[1] is None:
        return None
    (first, first_offset), (second, second_offset) = sides[0], sides[1]
    if first in right and second in left:
        return (second, first), second_offset - first_offset, has_least, has_greatest
    if first in left and second in right:
        return (first, second), first_offset - second_offset, has_greatest, has_least
    return None


def _moved_column(value: t.Typed, table: str) -> tuple[str, int] | None:
    """A column with a time, and the microseconds that are added to it."""
    if isinstance(value, t.ColumnValue) and value.table == table:
        return value.name, 0
    if not isinstance(value, t.Apply):
        return None
    name, arguments = value.signature.name, value.arguments
    if name == "interval_pl_timestamptz":
        arguments = arguments[::-1]
    elif name not in ("timestamptz_pl_interval", "timestamptz_mi_interval"):
        return None
    moved = _moved_column(arguments[0], table)
    length = arguments[1]
    if moved is None or not isinstance(length, t.ConstantValue) or length.value is None:
        return None
    if length.value.months:
        return None
    micros = length.value.days * 86_400_000_000 + length.value.micros
    return moved[0], moved[1] + (-micros if name == "timestamptz_mi_interval" else micros)
