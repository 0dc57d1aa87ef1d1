"""One partition's SELECT: columns, the filters that Spark pushed down, and the share it reads.

A filter that is taken over is not checked again by Spark, so it must mean the same here. Where
it might not, it is left to Spark:

* text is compared by its bytes, as in Spark: ``COLLATE "C"`` for order, and for equality where
  the column's own collation lets unequal bytes be equal;
* a column that is cast on the way (JSON, UUID, enums, numeric without precision) is compared
  after the cast;
* the literal must be of the column's type; arrays, nested fields and LIKE stay with Spark.

Values are parameters and names are identifiers: nothing is pasted into the text.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from itertools import pairwise
from typing import Any, LiteralString

from psycopg import sql
from pyspark.sql import datasource as ds
from pyspark.sql import types as spark

from millwheel.spark.relation import SLOTS, Column, Relation

MAX_LIST = 1000
"""A longer IN list stays with Spark: a statement takes 65,535 parameters."""

ORDERED: Mapping[type[ds.Filter], LiteralString] = {
    ds.GreaterThan: "{} > {}",
    ds.GreaterThanOrEqual: "{} >= {}",
    ds.LessThan: "{} < {}",
    ds.LessThanOrEqual: "{} <= {}",
}
EQUAL: Mapping[type[ds.Filter], LiteralString] = {
    ds.EqualTo: "{} = {}",
    ds.EqualNullSafe: "{} IS NOT DISTINCT FROM {}",
}
NULL: Mapping[type[ds.Filter], LiteralString] = {
    ds.IsNull: "{} IS NULL",
    ds.IsNotNull: "{} IS NOT NULL",
}

LITERALS: Mapping[type[spark.DataType], Callable[[Any], bool]] = {
    spark.LongType: lambda value: type(value) is int,
    spark.IntegerType: lambda value: type(value) is int,
    spark.ShortType: lambda value: type(value) is int,
    spark.DoubleType: lambda value: type(value) is float,
    spark.FloatType: lambda value: type(value) is float,
    spark.DecimalType: lambda value: isinstance(value, Decimal) and value.is_finite(),
    spark.BooleanType: lambda value: isinstance(value, bool),
    spark.StringType: lambda value: isinstance(value, str) and "\0" not in value,
    spark.BinaryType: lambda value: isinstance(value, bytes | bytearray),
    spark.TimestampType: lambda value: isinstance(value, dt.datetime) and value.tzinfo is not None,
    spark.TimestampNTZType: lambda value: isinstance(value, dt.datetime) and value.tzinfo is None,
    spark.DateType: lambda value: type(value) is dt.date,
}


@dataclass(frozen=True)
class Condition:
    """A piece of a WHERE clause, and its parameters."""

    text: sql.Composable
    values: tuple[Any, ...] = ()


class Whole(ds.InputPartition):
    """All of a relation."""

    def __init__(self) -> None:
        super().__init__(None)

    def conditions(self) -> list[Condition]:
        return []


@dataclass
class Slots(ds.InputPartition):
    """The keys of a range of slots. The first share has no lower bound and the last no upper
    one, and a row without a slot is in the first: each row is in one share, whatever it holds."""

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
class Blocks(ds.InputPartition):
    """A range of a table's blocks, read by a TID range scan. A version that the snapshot sees
    stays where it is, and none is beyond the last block; an update adds another version."""

    low: int
    high: int | None

    def conditions(self) -> list[Condition]:
        at_least = Condition(sql.SQL("ctid >= {}::tid").format(_HERE), (f"({self.low},0)",))
        if self.high is None:
            return [at_least]
        below = Condition(sql.SQL("ctid < {}::tid").format(_HERE), (f"({self.high},0)",))
        return [at_least, below]


Share = Whole | Slots | Blocks

_HERE = sql.Placeholder()


def shares(relation: Relation, wanted: int) -> list[Share]:
    """Cut a relation into at most `wanted` shares that together hold each row once."""
    if relation.has_blocks:
        # A share of less than a block would be empty.
        wanted = min(wanted, relation.blocks)
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
    relation: Relation,
    columns: Sequence[Column],
    share: Share,
    pushed: Sequence[Condition] = (),
) -> tuple[sql.Composed, list[Any]]:
    """The statement that reads one share, and its parameters."""
    conditions = [*share.conditions(), *pushed]
    text = sql.SQL("SELECT {} FROM {}").format(
        sql.SQL(", ").join(column.expression for column in columns),
        sql.Identifier(relation.pipeline, relation.name),
    )
    if conditions:
        text += sql.SQL(" WHERE ")
        text += sql.SQL(" AND ").join(condition.text for condition in conditions)
    return text, [value for condition in conditions for value in condition.values]


def condition(pushed: ds.Filter, columns: Mapping[str, Column]) -> Condition | None:
    """A filter of Spark's as SQL, or None if Spark has to apply it itself."""
    if isinstance(pushed, ds.Not):
        inner = condition(pushed.child, columns)
        return inner and Condition(sql.SQL("NOT ({})").format(inner.text), inner.values)
    path: ds.ColumnPath = getattr(pushed, "attribute", ())
    column = columns.get(path[0]) if len(path) == 1 else None
    if column is None:
        return None
    kind = type(pushed)
    if kind in NULL:
        return Condition(sql.SQL(NULL[kind]).format(sql.Identifier(column.name)))
    if isinstance(pushed, ds.In):
        return _in_list(column, pushed.value)
    template = ORDERED.get(kind) or EQUAL.get(kind)
    if template is None or not _fits(column, value := getattr(pushed, "value", None)):
        return None
    left = _by_bytes(column, ordered=kind in ORDERED)
    return Condition(sql.SQL(template).format(left, _HERE), (value,))


def _in_list(column: Column, values: Sequence[Any]) -> Condition | None:
    # NULL in a list means the same in both: no match is then unknown.
    if not 0 < len(values) <= MAX_LIST:
        return None
    if not all(value is None or _fits(column, value) for value in values):
        return None
    places = sql.SQL(", ").join([_HERE] * len(values))
    left = _by_bytes(column, ordered=False)
    return Condition(sql.SQL("{} IN ({})").format(left, places), tuple(values))


def _fits(column: Column, value: Any) -> bool:
    fits = LITERALS.get(type(column.kind.spark))
    return not column.is_array and fits is not None and fits(value)


def _by_bytes(column: Column, *, ordered: bool) -> sql.Composable:
    if isinstance(column.kind.spark, spark.StringType) and (ordered or not column.byte_order):
        return sql.SQL('{} COLLATE "C"').format(column.expression)
    return column.expression
