"""Describe a relation from Postgres' catalog, and map its types to Spark and Arrow.

===========================  =====================  ==========================================
Postgres                     Spark
===========================  =====================  ==========================================
bigint, integer, smallint    long, int, short
double precision, real       double, float
numeric(p, s)                decimal(p, s)          at most 38 digits
numeric                      decimal(38, 18)        rounded to that; from 10^20 on, NaN: an error
boolean                      boolean
text, varchar, name, enums   string
char(n)                      string                 without the padding blanks
timestamptz                  timestamp              an instant, whatever the session's time zone
timestamp                    timestamp_ntz
date                         date
interval                     interval day to second a day has 24 hours; months are an error
bytea                        binary
json, jsonb, uuid            string                 JSON text
domains                      as the underlying type
arrays of these              array                  one dimension
===========================  =====================  ==========================================

Other types are an error that names column and type. A time of ``infinity`` is the last one of the
year 9999, and ``-infinity`` the first one of the year 1, as for Python; an infinite interval is the
longest one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, LiteralString

import pyarrow as pa
import pyarrow.compute as pc
from psycopg import sql
from pyspark.sql import types as spark

from millwheel.core.suggestion import with_suggestion
from millwheel.errors import StoreError, UsageError
from millwheel.spark.snapshots import no_such_relation
from millwheel.spark.store_sessions import Connection, statement

MAX_DIGITS = 38
"""Maximum precision of a decimal in Spark and Arrow."""
FREE_DIGITS, FREE_SCALE = 38, 18
"""Precision and scale of a numeric without them."""
SLOTS = 1 << 16
SLOT = "slot"
INTEGERS = ("int2", "int4", "int8")

_MICROSECONDS_1970_TO_2000 = 946_684_800_000_000
_DAYS_1970_TO_2000 = 10_957
MIN_MICROS, MAX_MICROS = -62_135_596_800_000_000, 253_402_300_799_999_999
"""The first and the last microsecond that Python's datetime has, from 1970."""
MICROS_A_DAY = 86_400_000_000


@dataclass(frozen=True)
class TypeMapping:
    spark: spark.DataType
    arrow: pa.DataType
    literal: tuple[LiteralString, ...]
    """Types that a filter's text is cast to, in this order."""
    cast: LiteralString = ""
    """Type that the SELECT casts the column to; empty: none."""
    wire: pa.DataType | None = None
    """Type of the integers that Postgres sends for a time, counted from 2000."""
    epoch: int = 0
    """Offset that converts these integers to counts from 1970."""
    ends: tuple[int, int] = (0, 0)
    """Counts from 1970 that stand for -infinity and infinity."""

    def parameter(self, *, is_list: bool) -> sql.Composable:
        place: sql.Composable = sql.Placeholder()
        for name in self.literal:
            place = _cast(place, name, is_array=is_list)
        return place


def _text(*literal: LiteralString, cast: LiteralString = "text") -> TypeMapping:
    return TypeMapping(spark.StringType(), pa.string(), literal or ("text",), cast=cast)


TYPE_MAPPINGS: Mapping[str, TypeMapping] = {
    "int8": TypeMapping(spark.LongType(), pa.int64(), ("bigint",)),
    "int4": TypeMapping(spark.IntegerType(), pa.int32(), ("bigint",)),
    "int2": TypeMapping(spark.ShortType(), pa.int16(), ("bigint",)),
    "float8": TypeMapping(spark.DoubleType(), pa.float64(), ("float8",)),
    "float4": TypeMapping(spark.FloatType(), pa.float32(), ("float8",)),
    "bool": TypeMapping(spark.BooleanType(), pa.bool_(), ("bool",)),
    "text": _text(cast=""),
    "varchar": _text(cast=""),
    "bpchar": _text(),
    "name": _text(),
    "enum": _text(),
    "json": _text(),
    "jsonb": _text("jsonb", "text"),
    "uuid": _text("uuid", "text"),
    "bytea": TypeMapping(spark.BinaryType(), pa.binary(), ("bytea",)),
    "timestamptz": TypeMapping(
        spark.TimestampType(),
        pa.timestamp("us", tz="UTC"),
        ("timestamptz",),
        wire=pa.int64(),
        epoch=_MICROSECONDS_1970_TO_2000,
        ends=(MIN_MICROS, MAX_MICROS),
    ),
    "timestamp": TypeMapping(
        spark.TimestampNTZType(),
        pa.timestamp("us"),
        ("timestamp",),
        wire=pa.int64(),
        epoch=_MICROSECONDS_1970_TO_2000,
        ends=(MIN_MICROS, MAX_MICROS),
    ),
    "date": TypeMapping(
        spark.DateType(),
        pa.date32(),
        ("date",),
        wire=pa.int32(),
        epoch=_DAYS_1970_TO_2000,
        ends=(MIN_MICROS // MICROS_A_DAY, MAX_MICROS // MICROS_A_DAY),
    ),
    "interval": TypeMapping(spark.DayTimeIntervalType(), pa.duration("us"), ("interval",)),
}


@dataclass(frozen=True)
class SparkColumn:
    name: str
    declared: str
    kind: TypeMapping
    is_array: bool = False
    byte_order: bool = True
    """A collation in which unequal bytes may be equal has none."""

    @property
    def spark(self) -> spark.DataType:
        return spark.ArrayType(self.kind.spark) if self.is_array else self.kind.spark

    @property
    def arrow(self) -> pa.DataType:
        return pa.list_(self.kind.arrow) if self.is_array else self.kind.arrow

    @property
    def is_free_numeric(self) -> bool:
        return bool(self.kind.cast) and isinstance(self.kind.spark, spark.DecimalType)

    @property
    def expression(self) -> sql.Composable:
        name = sql.Identifier(self.name)
        cast = self.kind.cast
        return _cast(name, cast, is_array=self.is_array) if cast else name

    def to_arrow(self, values: Sequence[Any]) -> pa.Array:
        """`StoreError` if Spark cannot represent a value."""
        kind = self.kind
        try:
            if self.is_array:
                return pa.array([_item_list(kind, items) for items in values], self.arrow)
            return _items(kind, values)
        except (pa.ArrowException, OverflowError, TypeError) as error:
            raise StoreError(
                f"column {self.name!r} ({self.declared}) holds a value that Spark cannot "
                "represent, such as NaN in a numeric, months in an interval, or an array of "
                f"arrays: {error}. Leave it out with the option 'columns', or cast it in a view"
            ) from error


@dataclass(frozen=True)
class SparkRelation:
    pipeline: str
    name: str
    kind: str
    """Value of ``pg_class.relkind``: r table, p partitioned table, m materialized view, v view."""
    blocks: int
    has_slots: bool
    """Whether it has an integer column `slot` (0 to 65,535, a hash of the key) to divide it by."""
    columns: tuple[SparkColumn, ...]
    numbered: bool = False
    """Whether its rows have a `sender` and a number, `sequence`."""

    def column(self, name: str) -> SparkColumn:
        for column in self.columns:
            if column.name == name:
                return column
        raise no_such_column(self.name, name, [column.name for column in self.columns])

    @property
    def has_blocks(self) -> bool:
        return self.kind in "rpm"


def no_such_column(table: str, name: str, known: Sequence[str]) -> UsageError:
    message = f"{table!r} has no column {name!r}; it has: {', '.join(known)}"
    return UsageError(with_suggestion(message, name, known))


def describe(
    connection: Connection, pipeline: str, table: str, only: Sequence[str] | None = None
) -> SparkRelation:
    """Only the types of the columns `only` must be supported.

    `UsageError` if there is no such relation or column, or a type is not supported.
    """
    names = {"pipeline": pipeline, "table": table}
    row = connection.execute(statement("reading/relation"), names).fetchone()
    if row is None:
        known = connection.execute(statement("reading/relations"), names).fetchall()
        raise UsageError(no_such_relation(pipeline, table, tuple(name for (name,) in known)))
    oid, relkind, blocks = row
    rows = connection.execute(statement("reading/columns"), {"relation": oid}).fetchall()
    for name in only or ():
        if name not in (row[0] for row in rows):
            raise no_such_column(table, name, [row[0] for row in rows])
    columns = [_column(table, row) for row in rows if only is None or row[0] in only]
    has_slots = any(
        name == SLOT and type_name in INTEGERS and not is_array
        for name, _, type_name, _, is_array, _ in rows
    )
    types = {(name, type_name, is_array) for name, _, type_name, _, is_array, _ in rows}
    numbered = {("sender", "int8", False), ("sequence", "int8", False)} <= types
    return SparkRelation(
        pipeline, table, relkind, blocks, has_slots, tuple(columns), numbered and relkind in "rp"
    )


def _column(table: str, row: Sequence[Any]) -> SparkColumn:
    name, declared, type_name, modifier, is_array, deterministic = row
    kind = _numeric(modifier) if type_name == "numeric" else TYPE_MAPPINGS.get(type_name)
    if kind is None:
        raise UsageError(
            f"column {name!r} of {table!r} is of type {declared}, which Spark does not support: "
            "leave it out with the option 'columns' (names separated by commas), or cast it to "
            "text in a view"
        )
    return SparkColumn(name, declared, kind, is_array, byte_order=deterministic)


def _numeric(modifier: int) -> TypeMapping | None:
    """`modifier` packs precision and scale (``numeric.c``), the scale in 11 signed bits.

    None: it has too many digits for Spark.
    """
    if modifier < 0:
        cast: LiteralString = "numeric(38, 18)"  # rounds; too many digits are an error
        digits, scale = FREE_DIGITS, FREE_SCALE
    else:
        cast = ""
        packed = modifier - 4
        digits = (packed >> 16) & 0xFFFF
        scale = ((packed & 0x7FF) ^ 1024) - 1024
        if scale < 0:  # numeric(5, -2): seven digits, the last two zero
            digits, scale = digits - scale, 0
        digits = max(digits, scale)
    if digits > MAX_DIGITS:
        return None
    return TypeMapping(
        spark.DecimalType(digits, scale), pa.decimal128(digits, scale), ("numeric",), cast=cast
    )


def _cast(expression: sql.Composable, type_name: LiteralString, *, is_array: bool) -> sql.Composed:
    brackets = sql.SQL("[]" if is_array else "")
    return sql.SQL("{}::{}{}").format(expression, sql.SQL(type_name), brackets)


def _items(kind: TypeMapping, values: Sequence[Any]) -> pa.Array:
    if kind.wire is None:
        return pa.array(values, kind.arrow)
    counted = pa.array(values, kind.wire)
    found = pc.add(counted, pa.scalar(kind.epoch, kind.wire))
    lowest = -1 << (kind.wire.bit_width - 1)
    for infinity, end in zip((lowest, ~lowest), kind.ends, strict=True):
        is_infinite = pc.equal(counted, pa.scalar(infinity, kind.wire))
        found = pc.if_else(is_infinite, pa.scalar(end, kind.wire), found)
    return found.cast(kind.arrow)


def _item_list(kind: TypeMapping, items: list[Any] | None) -> list[Any] | pa.Array | None:
    if items is None or kind.wire is None:
        return items
    return _items(kind, items)
