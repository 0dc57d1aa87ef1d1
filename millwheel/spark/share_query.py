"""The SELECT of one share of a relation: its columns, filters and range of rows.

Values are passed as parameters and names as identifiers, never as text. Postgres compares

* text by its bytes, as Spark does: ``COLLATE "C"`` for order, and for equality where the
  column's own collation treats different bytes as equal;
* columns that the SELECT casts (JSON, UUID, enums, numeric without precision) after the cast;
* NULL as in SQL: ``("tail", "!=", "N1")`` excludes rows without a tail.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, LiteralString, TypeAlias

from psycopg import sql
from pyspark.sql import types as spark
from pyspark.sql.datasource import InputPartition

from millwheel.errors import UsageError
from millwheel.spark.filters import WrittenFilter
from millwheel.spark.groups import Groups
from millwheel.spark.relation import SLOTS, SparkColumn, SparkRelation
from millwheel.spark.store_sessions import statement

ORDERED = ("<", "<=", ">", ">=")
COMPARISONS: Mapping[str, LiteralString] = {
    "=": "{} = {}",
    "==": "{} = {}",
    "!=": "{} <> {}",
    "<>": "{} <> {}",
    "<": "{} < {}",
    "<=": "{} <= {}",
    ">": "{} > {}",
    ">=": "{} >= {}",
}
LISTS: Mapping[str, LiteralString] = {"in": "{} = ANY({})", "not in": "{} <> ALL({})"}
NULLS: Mapping[str, LiteralString] = {
    "=": "{} IS NULL",
    "==": "{} IS NULL",
    "!=": "{} IS NOT NULL",
    "<>": "{} IS NOT NULL",
}

_HERE = sql.Placeholder()
_TABLE = sql.SQL("millwheel_table")


@dataclass(frozen=True)
class Condition:
    text: sql.Composable
    values: tuple[Any, ...] = ()


class Whole(InputPartition):
    def __init__(self) -> None:
        super().__init__(None)

    def conditions(self) -> list[Condition]:
        return []


@dataclass
class Slots(InputPartition):
    """The rows of a range of slots.

    The first share has no lower bound and includes rows without a slot, and the last has no upper
    bound, so every row is in exactly one share.
    """

    low: int | None
    high: int | None

    def conditions(self) -> list[Condition]:
        if self.low is None:
            return [Condition(sql.SQL("(slot < {} OR slot IS NULL)").format(_HERE), (self.high,))]
        at_least = Condition(sql.SQL("slot >= {}").format(_HERE), (self.low,))
        if self.high is None:
            return [at_least]
        return [at_least, Condition(sql.SQL("slot < {}").format(_HERE), (self.high,))]


@dataclass
class Blocks(InputPartition):
    """A range of a table's blocks, read by a TID range scan.

    A row version that the snapshot sees does not move, and none is after the last block: an update
    adds another version.
    """

    low: int
    high: int | None

    def conditions(self) -> list[Condition]:
        at_least = Condition(sql.SQL("ctid >= {}::tid").format(_HERE), (f"({self.low},0)",))
        if self.high is None:
            return [at_least]
        below = Condition(sql.SQL("ctid < {}::tid").format(_HERE), (f"({self.high},0)",))
        return [at_least, below]


@dataclass
class Numbers(InputPartition):
    """Rows of one sender of a numbered table, in order: from number `first` up to, not including,
    `until`."""

    sender: int
    first: int
    until: int

    def conditions(self) -> list[Condition]:
        return [
            Condition(sql.SQL("sender = {}").format(_HERE), (self.sender,)),
            Condition(sql.SQL("sequence >= {}").format(_HERE), (self.first,)),
            Condition(sql.SQL("sequence < {}").format(_HERE), (self.until,)),
        ]


@dataclass
class InGroups(InputPartition):
    groups: Groups

    def conditions(self) -> list[Condition]:
        return [Condition(self.groups.matches(_TABLE))]


Share: TypeAlias = Whole | Slots | Blocks | Numbers | InGroups


def shares(relation: SparkRelation, wanted: int, groups: Groups | None = None) -> list[Share]:
    """Divide a relation, or some groups of its rows, into shares that together contain each row
    once."""
    if relation.has_blocks:
        # A share smaller than a block would be empty.
        wanted = min(wanted, relation.blocks)
    if groups is not None:
        return [InGroups(share) for share in groups.divided(wanted)]
    if wanted <= 1:
        return [Whole()]
    if relation.has_slots:
        cuts = [SLOTS * number // wanted for number in range(1, wanted)]
        return [Slots(low, high) for low, high in pairwise([None, *cuts, None])]
    if relation.has_blocks:
        starts = [relation.blocks * number // wanted for number in range(wanted)]
        return [Blocks(low, high) for low, high in zip(starts, [*starts[1:], None], strict=True)]
    return [Whole()]


def select(
    relation: SparkRelation,
    columns: Sequence[SparkColumn],
    share: Share,
    filters: Sequence[Condition] = (),
) -> tuple[sql.Composed, list[Any]]:
    chosen = sql.SQL(", ").join(column.expression for column in columns)
    text, values = _from(relation, chosen, share, [*share.conditions(), *filters])
    if isinstance(share, Numbers):
        text += sql.SQL(" ORDER BY sequence")
    return text, values


def count(relation: SparkRelation, share: Share) -> tuple[sql.Composed, list[Any]]:
    return _from(relation, sql.SQL("COUNT(*)"), share, share.conditions())


def _from(
    relation: SparkRelation,
    chosen: sql.Composable,
    share: Share,
    conditions: Sequence[Condition],
) -> tuple[sql.Composed, list[Any]]:
    table = sql.Identifier(relation.pipeline, relation.name)
    text = statement("reading/share", columns=chosen, relation=table)
    values: list[Any] = []
    if isinstance(share, InGroups):
        text += sql.SQL(", ") + share.groups.listed(lambda name: relation.column(name).declared)
        values += share.groups.parameters
    if conditions:
        text += sql.SQL(" WHERE ")
        text += sql.SQL(" AND ").join(condition.text for condition in conditions)
    return text, [*values, *(value for condition in conditions for value in condition.values)]


def condition(column: SparkColumn, written: WrittenFilter) -> Condition:
    _, operator, value = written
    if isinstance(value, list):
        known, kind = LISTS, "a list"
    elif value is None:
        known, kind = NULLS, "None"
    else:
        known, kind = COMPARISONS, "a value"
    template = known.get(operator)
    if template is None or column.is_array:
        what = "an array column" if column.is_array else f"{operator!r} and {kind}"
        raise UsageError(
            f"the filter on {column.name!r} is not possible: {what}; operators for {kind}: "
            + ", ".join(known)
        )
    left: sql.Composable = column.expression
    if isinstance(column.kind.spark, spark.StringType) and (
        operator in ORDERED or not column.byte_order
    ):
        left = sql.SQL('{} COLLATE "C"').format(left)
    right = column.kind.parameter(is_list=isinstance(value, list))
    return Condition(sql.SQL(template).format(left, right), () if value is None else (value,))
