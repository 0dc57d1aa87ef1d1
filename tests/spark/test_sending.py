"""Writing back: rows of Spark become records of a stream, each once."""

from __future__ import annotations

import asyncio
import datetime as dt
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as st

from millwheel import Inbox, Pipeline, Stream, Table
from millwheel.errors import StatementError, UsageError, UserCodeError
from millwheel.runtime.engine import Engine
from millwheel.spark.sending import SendingWriter
from millwheel.spark.stream_source import MillwheelSource
from tests.support.sessions import until
from tests.support.store_sites import PostgresSite

pytestmark = pytest.mark.parametrize("schema", [18], indirect=True)


class Score(msgspec.Struct):
    """A record that Spark sends."""

    customer: int
    score: float
    month: dt.date | None = None
    at: dt.datetime | None = None
    by_day: dict[str, int] | None = None


SCORES = Stream("scores", Score)

FIELDS = st.StructType(
    [
        st.StructField("customer", st.LongType()),
        st.StructField("score", st.DoubleType()),
        st.StructField("month", st.DateType()),
        st.StructField("at", st.TimestampType()),
    ]
)
AT = dt.datetime(2024, 5, 1, tzinfo=dt.UTC)


class Scores:
    """A pipeline that writes what it is sent to a table."""

    def __init__(self, site: PostgresSite) -> None:
        self.site = site

    def source(self, **options: str) -> MillwheelSource:
        schema = self.site.schema
        given = {
            "store": schema.url,
            "pipeline": schema.name,
            "stream": "scores",
            "id": "customer",
        }
        return MillwheelSource({**given, **options})

    def writer(self, schema: st.StructType = FIELDS, **options: str) -> SendingWriter:
        made = self.source(**{"timestamp": "at", **options}).writer(schema, overwrite=False)
        assert isinstance(made, SendingWriter)
        return made

    async def table(self, count: int) -> list[tuple[Any, ...]]:
        """The rows, as soon as there are so many."""

        async def are_there() -> bool:
            rows = await self.site.query("SELECT count(*) FROM {t}", t="scored")
            return bool(rows == [(count,)])

        await until(are_there)
        return await self.site.query(
            "SELECT customer, score, month FROM {t} ORDER BY customer, score", t="scored"
        )


@pytest.fixture
async def scores(postgres: PostgresSite) -> AsyncIterator[Scores]:
    pipeline = Pipeline(postgres.schema.name)
    pipeline.inject(SCORES, Inbox())
    pipeline.sink(SCORES, Table("scored", Score))
    engine = Engine(pipeline, postgres.store)
    await engine.start()
    work = asyncio.create_task(engine.run())
    yield Scores(postgres)
    await engine.stop()
    await asyncio.gather(work, return_exceptions=True)


def batch(*rows: tuple[Any, ...]) -> pa.RecordBatch:
    columns = list(zip(*rows, strict=True))
    kinds = [pa.int64(), pa.float64(), pa.date32(), pa.timestamp("us", "UTC")]
    arrays = [pa.array(c, k) for c, k in zip(columns, kinds, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, names=FIELDS.fieldNames())


async def test_a_task_that_runs_twice_sends_once(scores: Scores) -> None:
    rows = batch((1, 0.5, dt.date(2024, 5, 1), AT), (2, 1e300, None, AT))
    writer = scores.writer()
    await asyncio.to_thread(writer.write, iter([rows]))
    await asyncio.to_thread(writer.write, iter([rows, batch((3, 1.0, None, AT))]))
    may = dt.date(2024, 5, 1)
    assert await scores.table(3) == [(1, 0.5, may), (2, 1e300, None), (3, 1.0, None)]


async def test_an_id_with_another_value_is_refused(scores: Scores) -> None:
    await asyncio.to_thread(scores.writer().write, iter([batch((1, 0.5, None, AT))]))
    with pytest.raises(
        StatementError, match=r"""id "\[1\]" was sent to stream "scores" with another value"""
    ):
        await asyncio.to_thread(scores.writer().write, iter([batch((1, 0.6, None, AT))]))
    other = scores.writer(id="customer, score")
    await asyncio.to_thread(other.write, iter([batch((1, 0.6, None, AT))]))
    assert len(await scores.table(2)) == 2


def columns(**kinds: st.DataType) -> st.StructType:
    """A schema with a customer and a score, and further columns."""
    own = {"customer": st.LongType(), "score": st.DoubleType(), **kinds}
    return st.StructType([st.StructField(name, kind) for name, kind in own.items()])


def moments(zone: str) -> pa.RecordBatch:
    """Two instants in an hour that Berlin has twice, as a session in a zone gives them."""
    times = [dt.datetime(2024, 10, 27, hour, 30, tzinfo=dt.UTC) for hour in (0, 1)]
    kind = pa.timestamp("us", zone)
    return pa.RecordBatch.from_pydict(
        {"customer": pa.array([1, 1]), "score": pa.array([0.5, 0.5]), "at": pa.array(times, kind)}
    )


async def test_an_id_is_the_same_from_each_time_zone(scores: Scores) -> None:
    """Both are sent, and neither twice: neither as an id nor as a value."""
    writer = scores.writer(columns(at=st.TimestampType()), id="customer,at", timestamp="")
    for zone in ("UTC", "Europe/Berlin", "America/New_York"):
        await asyncio.to_thread(writer.write, iter([moments(zone)]))
    await scores.table(2)
    found = await scores.site.query("SELECT at FROM {t} ORDER BY at", t="scored")
    assert [(at.hour, at.minute) for (at,) in found] == [(0, 30), (1, 30)]


async def test_a_map_is_an_object(scores: Scores) -> None:
    kind = pa.map_(pa.string(), pa.int64())
    rows = pa.RecordBatch.from_pydict(
        {
            "customer": pa.array([1, 2, 3]),
            "score": pa.array([0.5, 0.5, 0.5]),
            "by_day": pa.array([[("2024-10-26", 5)], [], None], kind),
        }
    )
    by_day = columns(by_day=st.MapType(st.StringType(), st.LongType()))
    writer = scores.writer(by_day, timestamp="")
    await asyncio.to_thread(writer.write, iter([rows]))
    await scores.table(3)
    found = await scores.site.query("SELECT by_day FROM {t} ORDER BY customer", t="scored")
    assert [row[0] for row in found] == [{"2024-10-26": 5}, {}, None]


LONGS = st.ArrayType(st.LongType())


@pytest.mark.parametrize(
    ("kinds", "id_", "text"),
    [
        ({"by_day": LONGS}, "customer",
         "column 'by_day' is array<bigint>, and the stream has object there"),
        ({"by_day": st.MapType(st.StringType(), st.StringType())}, "customer",
         "column 'by_day' is string, and the stream has integer there"),
        ({"month": st.TimestampType()}, "customer",
         "column 'month' is timestamp, and the stream has date there"),
        ({"customer": st.StringType()}, "score",
         "column 'customer' is string, and the stream has integer there"),
        ({"by_day": st.MapType(LONGS, st.LongType())}, "customer",
         "'by_day' is map<array<bigint>,bigint>, which JSON does not have"),
        ({"more": st.ArrayType(st.StructType([st.StructField("v", st.VariantType())]))}, "customer",
         "'more.v' is variant, which JSON does not have"),
        ({"by_day": st.MapType(st.StringType(), st.LongType())}, "customer,by_day",
         "the members of a map are in no order: it cannot be a part of an id"),
    ],
)  # fmt: skip
async def test_columns_that_are_no_records_are_refused_before_any_is_sent(
    scores: Scores, kinds: dict[str, st.DataType], id_: str, text: str
) -> None:
    with pytest.raises(UsageError, match=re.escape(text)):
        scores.writer(columns(**kinds), id=id_, timestamp="")


async def test_a_column_that_is_missing_is_named(scores: Scores) -> None:
    only = st.StructType([st.StructField("customer", st.LongType())])
    with pytest.raises(UsageError, match="no column score, which a record must have"):
        scores.writer(only, timestamp="")


async def test_what_json_does_not_have_is_refused(scores: Scores) -> None:
    with pytest.raises(UserCodeError, match="has NaN or an infinity, which JSON does not have"):
        scores.writer().write(iter([batch((1, float("nan"), None, AT))]))


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"id": ""}, "the option 'id' of format 'millwheel' is missing"),
        ({"id": "client"}, "there is no column 'client'; there are customer, score"),
        ({"timestamp": "month"}, "the column 'month' is date, not timestamp"),
        ({"stream": ""}, "the option 'stream' of format 'millwheel' is missing"),
    ],
)
async def test_wrong_options_are_refused(
    scores: Scores, options: dict[str, str], text: str
) -> None:
    with pytest.raises(UsageError, match=text):
        scores.writer(FIELDS, **options)


async def test_a_stream_without_an_inbox_takes_nothing(scores: Scores) -> None:
    with pytest.raises(
        StatementError, match=r"""stream "nothing" takes no records. Inject an Inbox"""
    ):
        scores.writer(stream="nothing").write(iter([batch((1, 0.5, None, AT))]))


async def test_records_cannot_be_overwritten(scores: Scores) -> None:
    with pytest.raises(UsageError, match=r"write with mode\('append'\)"):
        scores.source().writer(FIELDS, overwrite=True)


@pytest.mark.spark
async def test_a_table_and_a_stream_of_spark_are_sent(
    scores: Scores, spark: SparkSession, tmp_path: Path
) -> None:
    schema = scores.site.schema
    options = {"store": schema.url, "pipeline": schema.name, "stream": "scores", "id": "customer"}
    rows = spark.range(1, 301, numPartitions=2).select(
        F.col("id").alias("customer"), (F.col("id") / 4).alias("score")
    )

    rows.write.format("millwheel").mode("append").options(**options).save()
    assert len(await scores.table(300)) == 300
    (tmp_path / "in").mkdir()
    rows.write.mode("append").json(str(tmp_path / "in"))
    more = rows.withColumn("customer", F.col("customer") + 200)
    more.write.mode("append").json(str(tmp_path / "in"))
    query = (
        spark.readStream.schema("customer bigint, score double").json(str(tmp_path / "in"))
        .writeStream.format("millwheel").options(**{**options, "id": "customer,score"})
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )  # fmt: skip
    query.awaitTermination(120)
    assert query.exception() is None
    found = await scores.table(900)
    assert len({(customer, score) for customer, score, _ in found}) == 600
