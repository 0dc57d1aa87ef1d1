"""Values of Spark's rows as JSON: records, their ids, and columns of type jsonb.

Arrow has instants in the session's time zone, and a map as a list of pairs. Here instants are in
UTC and maps are objects, so that a row has one text in all sessions.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import pyarrow as pa
from pyspark.sql import types as spark

from millwheel.errors import UsageError, UserCodeError

SCALARS = (
    spark.NullType, spark.BooleanType, spark.IntegralType, spark.FractionalType, spark.StringType,
    spark.BinaryType,
    spark.DateType, spark.TimestampType, spark.TimestampNTZType, spark.DayTimeIntervalType,
    spark.TimeType,
    spark.CharType, spark.VarcharType,
)  # fmt: skip
NOT_A_KEY = (spark.NullType, spark.BooleanType, spark.BinaryType)


def check_types(fields: Sequence[spark.StructField], use: str) -> None:
    """`UsageError` for values that JSON does not have; `use` is that of the columns, as in "a
    record"."""
    for field in fields:
        for path, wrong in _without_json(field.name, field.dataType):
            raise UsageError(
                f"the column {path!r} is {wrong.simpleString()}, which JSON does not have, and so "
                f"{use} cannot have it: cast it, or leave it out"
            )


def _without_json(path: str, of: spark.DataType) -> Iterator[tuple[str, spark.DataType]]:
    match of:
        case spark.ArrayType():
            yield from _without_json(path, of.elementType)
        case spark.StructType():
            for field in of.fields:
                yield from _without_json(f"{path}.{field.name}", field.dataType)
        case spark.MapType():
            if not isinstance(of.keyType, SCALARS) or isinstance(of.keyType, NOT_A_KEY):
                yield path, of
            yield from _without_json(path, of.valueType)
        case _ if not isinstance(of, SCALARS):
            yield path, of


def has_map(of: spark.DataType) -> bool:
    match of:
        case spark.MapType():
            return True
        case spark.ArrayType():
            return has_map(of.elementType)
        case spark.StructType():
            return any(has_map(field.dataType) for field in of.fields)
    return False


def in_utc(batch: pa.RecordBatch) -> pa.RecordBatch:
    schema = pa.schema([field.with_type(_in_utc(field.type)) for field in batch.schema])
    return batch if schema == batch.schema else batch.cast(schema)


def _in_utc(of: pa.DataType) -> pa.DataType:
    if pa.types.is_timestamp(of):
        return of if of.tz is None else pa.timestamp(of.unit, "UTC")
    if pa.types.is_large_list(of):
        return pa.large_list(of.value_field.with_type(_in_utc(of.value_type)))
    if pa.types.is_list(of):
        return pa.list_(of.value_field.with_type(_in_utc(of.value_type)))
    if pa.types.is_struct(of):
        # Spark leaves the members of a null struct null, also those that it declares not null.
        return pa.struct([field.with_type(_in_utc(field.type)).with_nullable(True) for field in of])
    if pa.types.is_map(of):
        return pa.map_(
            of.key_field.with_type(_in_utc(of.key_type)),
            of.item_field.with_type(_in_utc(of.item_type)),
        )
    return of


def values(of: pa.RecordBatch | pa.Array) -> list[Any]:
    """Maps are dictionaries; `UserCodeError` if a map has a key twice."""
    try:
        found: list[Any] = of.to_pylist(maps_as_pydicts="strict")
    except KeyError as error:
        raise UserCodeError(f"a map has a key twice, and JSON has each once: {error}") from error
    return found


def encoded(value: Any, encoder: msgspec.json.Encoder, where: str) -> str:
    """`UserCodeError`, which names the destination `where`, for a number that JSON does not
    have."""
    if _has_no_number(value):
        raise UserCodeError(
            f"a row for {where} has NaN or an infinity, which JSON does not have: {value!r:.200}"
        )
    return encoder.encode(value).decode()


def _has_no_number(value: Any) -> bool:
    match value:
        case float():
            return not math.isfinite(value)
        case dict():
            return any(map(_has_no_number, (*value, *value.values())))
        case list():
            return any(map(_has_no_number, value))
    return False
