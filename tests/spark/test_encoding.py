"""Rows of Spark as JSON, and whether they fit the records of a stream."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Annotated, Any, Literal

import msgspec
import pyarrow as pa
import pytest
from pyspark.sql import types as st

from millwheel.core.codec import type_fingerprint
from millwheel.errors import UsageError, UserCodeError
from millwheel.spark.encoding import encoded, in_utc, values
from millwheel.spark.fitting import check_fit
from millwheel.spark.sending import ENCODER


def test_times_within_lists_structs_and_maps_are_in_utc() -> None:
    berlin = pa.timestamp("us", "Europe/Berlin")
    at = dt.datetime(2024, 10, 27, 0, 30, tzinfo=dt.UTC)
    deep = pa.list_(pa.struct([("by", pa.map_(berlin, pa.large_list(berlin)))]))
    batch = pa.RecordBatch.from_pydict({"deep": pa.array([[{"by": [(at, [at, None])]}]], deep)})
    (row,) = values(in_utc(batch))
    utc = "2024-10-27T00:30:00Z"
    assert encoded(row, ENCODER, "a test") == f'{{"deep":[{{"by":{{"{utc}":["{utc}",null]}}}}]}}'


def test_a_map_with_a_key_twice_is_refused() -> None:
    doubled = pa.array([[("a", 1), ("a", 2)]], pa.map_(pa.string(), pa.int64()))
    with pytest.raises(UserCodeError, match="a map has a key twice"):
        values(doubled)


class Part(msgspec.Struct, tag=True):
    """One of two kinds."""

    kind: Literal["a", "b"]
    price: Decimal


class Other(msgspec.Struct, tag=True):
    """The other one."""

    size: int


class Wide(msgspec.Struct, rename="camel", forbid_unknown_fields=True):
    """A record with a field of each kind."""

    the_price: Decimal
    raw: bytes
    by_number: dict[int, Part] | None
    lot: list[Part | Other]
    day: dt.date
    moment: Annotated[dt.datetime, msgspec.Meta(tz=True)]
    anything: Any
    number: float
    whole: int
    pair: tuple[int, str]
    nothing: str | None
    good: bool = False


def fit(**kinds: st.DataType) -> str:
    """What does not fit a `Wide` record."""
    part = st.StructType(
        [st.StructField(name, st.StringType()) for name in ("type", "kind")]
        + [st.StructField("price", st.DecimalType(9, 2))]
    )
    right: dict[str, st.DataType] = {
        "thePrice": st.DecimalType(9, 2), "raw": st.BinaryType(),
        "byNumber": st.MapType(st.IntegerType(), part),
        "lot": st.ArrayType(part), "day": st.DateType(), "moment": st.TimestampType(),
        "anything": st.MapType(st.StringType(), st.ArrayType(st.LongType())),
        "number": st.LongType(), "whole": st.DecimalType(9, 0),
        "pair": st.ArrayType(st.LongType()), "nothing": st.NullType(), "good": st.BooleanType(),
    }  # fmt: skip
    fields = [st.StructField(name, kind) for name, kind in (right | kinds).items()]
    try:
        check_fit(fields, type_fingerprint(Wide), "wide")
    except UsageError as error:
        return str(error)
    return ""


def test_columns_of_each_type_fit_their_fields() -> None:
    assert fit() == ""
    assert "column 'good' is string" in fit(good=st.StringType())
    assert "'moment' is date, and the stream has date-time" in fit(moment=st.DateType())
    assert "it has no field 'others'; it has" in fit(others=st.LongType())
    assert "'lot' is bigint, and the stream has object" in fit(lot=st.ArrayType(st.LongType()))
    bare = st.StructType([st.StructField("kind", st.StringType())])
    assert "no column type, price in 'byNumber'" in fit(byNumber=st.MapType(st.IntegerType(), bare))
