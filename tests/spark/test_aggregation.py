"""Aggregates by Spark: groups are replaced whole, and each batch counts once."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.datasource import WriterCommitMessage

from millwheel import Table
from millwheel.aggregates import Aggregate, Parquet, hours, make_aggregate, months
from millwheel.errors import UsageError, UserCodeError
from millwheel.spark.aggregation import aggregate_run
from millwheel.spark.aggregation.aggregate_progress import AggregateProgress, Stored
from millwheel.spark.aggregation.aggregate_tables import TableTarget
from millwheel.spark.aggregation.rounds import AggregateRunner, DoneBatch, run_batches
from millwheel.spark.staging import StagingWriter
from tests.support.store_sites import Owner, PostgresSite, deploy

pytestmark = [pytest.mark.spark, pytest.mark.parametrize("schema", [18], indirect=True)]


class Hour(msgspec.Struct):
    """A row that is replaced as late records come."""

    origin: str
    hour: datetime
    flights: int


class Changed(msgspec.Struct):
    """A row of the log of changes."""

    origin: str
    hour: datetime


class Month(msgspec.Struct):
    """A sum."""

    origin: str
    month: date
    flights: int
    hours: list[int]


HOURS = Table("hours", Hour, key=("origin", "hour"), producer_key=("origin",))
CHANGES = Table("changes", Changed, numbered=True)
MONTHS = Table("months", Month, key=("origin", "month"))
PLAIN = {table.name: table for table in (HOURS, CHANGES)}


def by_month(hours: DataFrame) -> DataFrame:
    """The function under test, as users write it."""
    month = F.date_trunc("month", "hour").cast("date").alias("month")
    flights = F.sum("flights").alias("flights")
    return hours.groupBy("origin", month).agg(
        flights, F.sort_array(F.collect_list("flights")).alias("hours")
    )


def aggregate(function: Callable[[DataFrame], DataFrame], to: Any = MONTHS) -> Aggregate:
    return make_aggregate(
        function,
        follows="changes",
        reads="hours",
        group=("origin", months("hour")),
        to=to,
        name="by_month",
        tables=PLAIN,
    )


class Engine:
    """Writes hours, and the log of changes, in one commit each."""

    def __init__(self, site: PostgresSite, owner: Owner) -> None:
        self.site = site
        self.owner = owner

    async def write(self, *hours: tuple[str, str, int]) -> None:
        row, *_ = self.owner.intervals
        first = self.owner.links[row.id].table_rows.get("changes", 0)
        commit = self.owner.commit(row, table_rows={"changes": first + len(hours)})
        for number, (origin, hour, flights) in enumerate(hours):
            at = datetime.fromisoformat(hour).replace(tzinfo=UTC)
            commit.rows.append((HOURS, (origin, at, flights)))
            commit.rows.append((CHANGES, (origin, at, row.id, first + number)))
        await self.owner.write(commit)

    def stored(self, made: Aggregate) -> Stored:
        return Stored(self.site.schema.url, self.site.schema.name, made)

    async def months(self) -> list[tuple[Any, ...]]:
        return await self.site.query(
            "SELECT origin, month::text, flights, hours FROM {t} ORDER BY 1, 2", t="months"
        )

    async def behind(self) -> list[tuple[Any, ...]]:
        return await self.site.query("SELECT batch, rows_behind FROM {v}", v="aggregates")


@pytest.fixture
async def engine(postgres: PostgresSite) -> Engine:
    deployment = await deploy(postgres.store, tables=(HOURS, CHANGES, MONTHS, RICH))
    return Engine(postgres, await Owner.take(postgres.store, deployment))


@pytest.fixture
def run(engine: Engine, spark: SparkSession) -> Any:
    """Gives the batches that a process does until nothing is new."""

    def caught_up(made: Aggregate, most_rows: int = 1000) -> list[DoneBatch]:
        stored = engine.stored(made)
        stored.begin()
        options = {"store": stored.store}
        runner = AggregateRunner(spark, stored, most_rows=most_rows, options=options)
        done: list[DoneBatch] = []
        try:
            run_batches([runner], until_caught_up=True, patience_seconds=60, done=done.append)
        finally:
            runner.close()
        return done

    return caught_up


JANUARY, FEBRUARY = "2013-01-01", "2013-02-01"


async def test_a_table_follows_what_changes(engine: Engine, run: Any) -> None:
    await engine.write(("EWR", "2013-01-31T23:00", 5), ("EWR", "2013-02-01T00:00", 7))
    await engine.write(("JFK", "2013-01-01T00:00", 1))
    (first,) = run(aggregate(by_month))
    assert (first.number, first.rows, first.groups, first.behind) == (1, 3, None, 0)
    assert await engine.months() == [
        ("EWR", JANUARY, 5, [5]), ("EWR", FEBRUARY, 7, [7]), ("JFK", JANUARY, 1, [1]),
    ]  # fmt: skip
    assert run(aggregate(by_month)) == [], "nothing is new"
    await engine.write(("EWR", "2013-01-31T23:00", 6), ("EWR", "2013-01-01T00:00", 2))
    assert await engine.behind() == [(1, 2)]
    (second,) = run(aggregate(by_month))
    assert (second.number, second.rows, second.groups) == (2, 2, 1)
    assert await engine.months() == [
        ("EWR", JANUARY, 8, [2, 6]), ("EWR", FEBRUARY, 7, [7]), ("JFK", JANUARY, 1, [1]),
    ]  # fmt: skip
    assert await engine.behind() == [(2, 0)]


async def test_a_group_whose_rows_are_gone_goes_as_well(engine: Engine, run: Any) -> None:
    await engine.write(("EWR", "2013-01-31T23:00", 5), ("JFK", "2013-01-01T00:00", 1))
    run(aggregate(by_month))
    await engine.site.query("DELETE FROM {t} WHERE origin = 'EWR'", t="hours")
    await engine.write(("JFK", "2013-01-01T00:00", 2))
    run(aggregate(by_month))
    assert len(await engine.months()) == 2, "nobody has told of the group"
    row, *_ = engine.owner.intervals
    commit = engine.owner.commit(row, table_rows={"changes": 4})
    commit.rows = [(CHANGES, ("EWR", datetime(2013, 1, 1, tzinfo=UTC), row.id, 3))]
    await engine.owner.write(commit)
    run(aggregate(by_month))
    assert await engine.months() == [("JFK", JANUARY, 2, [2])]


async def test_batches_are_bounded(engine: Engine, run: Any) -> None:
    await engine.write(("EWR", "2013-01-01T00:00", 1))
    run(aggregate(by_month))
    await engine.write(*(("EWR", f"2013-01-01T{hour:02}:00", 1) for hour in range(7)))
    assert [batch.rows for batch in run(aggregate(by_month), most_rows=3)] == [3, 3, 1]
    assert await engine.months() == [("EWR", JANUARY, 7, [1] * 7)]


async def test_what_was_deleted_before_it_was_read_makes_all_anew(engine: Engine, run: Any) -> None:
    await engine.write(("EWR", "2013-01-01T00:00", 1))
    run(aggregate(by_month))
    await engine.write(("JFK", "2013-01-01T00:00", 2))
    await engine.site.query("DELETE FROM {t}", t="changes")
    (batch,) = run(aggregate(by_month))
    assert batch.groups is None
    assert len(await engine.months()) == 2


async def test_a_batch_counts_once_whatever_fails(
    engine: Engine, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rows and the vector are one transaction."""
    await engine.write(("EWR", "2013-01-01T00:00", 1))
    run(aggregate(by_month))
    await engine.write(("EWR", "2013-01-01T00:00", 9))
    advance = Stored.advance

    def die(self: Stored, connection: Any, before: AggregateProgress, read: Any) -> None:
        advance(self, connection, before, read)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Stored, "advance", die)
        with pytest.raises(KeyboardInterrupt):
            run(aggregate(by_month))
    assert await engine.months() == [("EWR", JANUARY, 1, [1])]
    assert await engine.behind() == [(1, 1)]
    run(aggregate(by_month))
    assert await engine.months() == [("EWR", JANUARY, 9, [9])]
    assert await engine.behind() == [(2, 0)]


async def test_rows_of_tasks_that_do_not_count_are_not_taken(
    engine: Engine, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as those of a driver that was killed, whose tasks write a little longer."""
    await engine.write(("EWR", "2013-01-01T00:00", 1))
    run(aggregate(by_month))
    await engine.write(("EWR", "2013-01-01T00:00", 2))
    write = TableTarget.write

    def and_a_late_task(self: TableTarget, result: DataFrame) -> None:
        write(self, result)
        late = StagingWriter(
            self._stored.store,
            (self._stored.pipeline, self._staged.name),
            str(uuid.uuid4()),
            ["origin", "month", "flights", "hours"],
            ["hours"],
        )
        row = {"origin": ["EWR"], "month": ["2013-01-01"], "flights": [7], "hours": ["[7]"]}
        attempts: list[WriterCommitMessage | None] = [
            late.write(iter([pa.RecordBatch.from_pydict(row)])) for _ in range(2)
        ]
        late.commit(attempts[:1])

    monkeypatch.setattr(TableTarget, "write", and_a_late_task)
    run(aggregate(by_month))
    assert await engine.months() == [("EWR", JANUARY, 2, [2])]


async def test_a_batch_is_done_again_if_the_store_was_away(
    engine: Engine, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its staged rows are gone after a crash of the server; a table cannot be read while it is
    away."""
    await engine.write(("EWR", "2013-01-01T00:00", 1))
    run(aggregate(by_month))
    await engine.write(("EWR", "2013-01-01T00:00", 2))
    monkeypatch.setattr("millwheel.spark.patience.AWAY_SECONDS", 0.1)
    mishaps: list[str] = []
    table, write = AggregateRunner._table, TableTarget.write

    def away(self: AggregateRunner, *args: Any) -> DataFrame:
        if not mishaps:
            mishaps.append("away")
            self._options["store"] = "postgresql://127.0.0.1:1/away"
        else:
            self._options["store"] = self._stored.store
        return table(self, *args)

    def and_a_crash(self: TableTarget, result: DataFrame) -> None:
        write(self, result)
        if len(mishaps) < 2:
            mishaps.append("crash")
            self._staged.empty()

    monkeypatch.setattr(AggregateRunner, "_table", away)
    monkeypatch.setattr(TableTarget, "write", and_a_crash)
    run(aggregate(by_month))
    assert mishaps == ["away", "crash"]
    assert await engine.months() == [("EWR", JANUARY, 2, [2])]


async def test_a_process_that_was_replaced_keeps_nothing(
    engine: Engine, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    await engine.write(("EWR", "2013-01-01T00:00", 1))
    run(aggregate(by_month))
    await engine.write(("EWR", "2013-01-01T00:00", 2))
    stale = engine.stored(aggregate(by_month)).load()
    run(aggregate(by_month))
    await engine.write(("EWR", "2013-01-01T00:00", 3))
    monkeypatch.setattr(Stored, "load", lambda _: stale)
    with pytest.raises(UsageError, match="another process has done batch 2 of the aggregate"):
        run(aggregate(by_month))
    assert await engine.months() == [("EWR", JANUARY, 2, [2])]


async def test_one_process_at_a_time(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("millwheel.spark.store_sessions.SOLE_SECONDS", 0.0)
    stored = engine.stored(aggregate(by_month))
    other = engine.stored(aggregate(by_month)).sole()
    with stored.sole(), pytest.raises(UsageError, match="another process keeps the aggregate"):
        other.__enter__()
    with engine.stored(aggregate(by_month)).sole():
        pass


def stray(hours: DataFrame) -> DataFrame:
    return by_month(hours).withColumn("origin", F.lit("ORD"))


def maps(hours: DataFrame) -> DataFrame:
    return by_month(hours).withColumn("flights", F.create_map("origin", "flights"))


def nan(hours: DataFrame) -> DataFrame:
    return by_month(hours).withColumn("hours", F.array(F.lit(float("nan"))))


def misnamed(hours: DataFrame) -> DataFrame:
    return by_month(hours).withColumnRenamed("flights", "departures")


def twice(hours: DataFrame) -> DataFrame:
    return by_month(hours).unionAll(by_month(hours))


def failing(hours: DataFrame) -> DataFrame:
    @F.udf("bigint")
    def explode(flights):  # type: ignore[no-untyped-def] # types would make it a pandas function
        raise ZeroDivisionError(f"no {flights} flights")

    return by_month(hours.withColumn("flights", explode("flights")))


MISFITS: list[tuple[Callable[[DataFrame], DataFrame], type[Exception], str]] = [
    (stray, UserCodeError, r"returned rows of groups that it was not given: ORD 2013-01-01"),
    (misnamed, UsageError,
     r"returned the columns origin, month, departures, hours; its table has"),
    (maps, UsageError, r"column 'flights' as map<string,bigint>; in its table it is bigint"),
    (nan, UserCodeError,
     r"a row for column 'hours' has NaN or an infinity, which JSON does not have"),
    (twice, UserCodeError, r"does not fit table 'months': duplicate key value"),
    (failing, UserCodeError,
     r"^aggregate 'by_month' failed: ZeroDivisionError: no 2 flights\n +.*in explode: raise"),
]  # fmt: skip


async def test_a_result_that_does_not_fit_is_refused(engine: Engine, run: Any) -> None:
    """And changes nothing, so that the next one is about the same rows."""
    await engine.write(("EWR", "2013-01-01T00:00", 1))
    run(aggregate(by_month))
    await engine.write(("EWR", "2013-01-01T00:00", 2))
    for function, error, text in MISFITS:
        with pytest.raises(error, match=text) as refused:
            run(aggregate(function))
        assert "jvm" not in str(refused.value).lower()
        assert len(str(refused.value).splitlines()) < 12
        assert await engine.months() == [("EWR", JANUARY, 1, [1])]
        assert await engine.behind() == [(1, 1)]


def sums(place: Path) -> dict[tuple[str, str], list[int]]:
    """The sums in Parquet files."""
    rows = ds.dataset(place, partitioning="hive").to_table().to_pylist()
    return {(str(row["origin"]), str(row["month"])[:10]): row["hours"] for row in rows}


def by_timestamp(hours: DataFrame) -> DataFrame:
    return by_month(hours).withColumn("month", F.col("month").cast("timestamp"))


@pytest.mark.parametrize("function", [by_month, pytest.param(by_timestamp, marks=pytest.mark.soak)])
async def test_files_follow_what_changes(
    engine: Engine, run: Any, tmp_path: Path, function: Any
) -> None:
    (tmp_path / "months").mkdir()
    (tmp_path / "months" / "thesis.txt").write_text("all my work")
    made = aggregate(function, Parquet(tmp_path / "months"))
    with pytest.raises(UsageError, match=r"has 'thesis.txt', which is none of its groups"):
        run(made)
    (tmp_path / "months" / "thesis.txt").unlink()
    await engine.write(("it's/é", "2013-01-31T23:00", 5), ("JFK", "2013-02-01T00:00", 7))
    run(made)
    assert sums(tmp_path / "months") == {("it's/é", JANUARY): [5], ("JFK", FEBRUARY): [7]}
    await engine.write(("UTC+00", "2013-02-01T00:00", 3))
    run(made)
    assert sums(tmp_path / "months")["UTC+00", FEBRUARY] == [3]
    await engine.site.query("DELETE FROM {t} WHERE flights = 3", t="hours")
    await engine.write(("UTC+00", "2013-01-01T00:00", 4), ("UTC+00", "2013-02-02T00:00", 6))
    await engine.site.query("DELETE FROM {t} WHERE origin = 'UTC+00'", t="hours")
    run(made)
    await engine.write(("JFK", "2013-02-01T00:00", 8), ("JFK", "2013-02-02T00:00", 1))
    run(made)
    assert sums(tmp_path / "months") == {("it's/é", JANUARY): [5], ("JFK", FEBRUARY): [1, 8]}
    await engine.site.query("DELETE FROM {t} WHERE flights = 5", t="hours")
    row, *_ = engine.owner.intervals
    commit = engine.owner.commit(row, table_rows={"changes": 8})
    commit.rows = [(CHANGES, ("it's/é", datetime(2013, 1, 9, tzinfo=UTC), row.id, 7))]
    await engine.owner.write(commit)
    run(made)
    assert sums(tmp_path / "months") == {("JFK", FEBRUARY): [1, 8]}
    await engine.write(("JFK", "2013-02-01T00:00", 9))
    with pytest.raises(UserCodeError, match="of groups that it was not given, such as ORD"):
        run(aggregate(stray, Parquet(tmp_path / "months")))
    assert sums(tmp_path / "months") == {("JFK", FEBRUARY): [1, 8]}


def by_hour(hours: DataFrame) -> DataFrame:
    return hours.groupBy("origin", "hour").agg(F.collect_list("flights").alias("hours"))


def of_hours(place: Path, function: Any = by_hour) -> Aggregate:
    return make_aggregate(
        function,
        follows="changes",
        reads="hours",
        group=("origin", hours("hour")),
        to=Parquet(place),
        name="by_hour",
        tables=PLAIN,
    )


def failing_at_the_end(hours: DataFrame) -> DataFrame:
    @F.udf("string")
    def explode(origin):  # type: ignore[no-untyped-def] # types would make it a pandas function
        if origin == "JFK":
            raise ZeroDivisionError("no JFK")
        return origin

    return by_hour(hours).withColumn("origin", explode("origin"))


@pytest.fixture
def berlin(spark: SparkSession) -> Iterator[None]:
    zone = spark.conf.get("spark.sql.session.timeZone") or ""
    spark.conf.set("spark.sql.session.timeZone", "Europe/Berlin")
    yield
    spark.conf.set("spark.sql.session.timeZone", zone)


async def test_files_are_right_in_a_session_with_changes_of_the_clock(
    engine: Engine, run: Any, tmp_path: Path, berlin: None
) -> None:
    """Two hours have one local name; from scratch, and by groups; and what fails deletes
    nothing."""
    twice = ("2024-10-27 00:00:00", "2024-10-27 01:00:00")
    await engine.write(*(("EWR", hour, n) for n, hour in enumerate(twice)), ("JFK", twice[0], 9))
    run(of_hours(tmp_path / "hours"))

    def sums() -> dict[tuple[str, str], list[int]]:
        rows = ds.dataset(tmp_path / "hours", partitioning="hive").to_table().to_pylist()
        return {(row["origin"], str(row["hour"])[:13]): row["hours"] for row in rows}

    first, second = (hour[:13] for hour in twice)
    expected = {("EWR", first): [0], ("EWR", second): [1], ("JFK", first): [9]}
    assert sums() == expected
    await engine.write(("EWR", twice[1], 7))
    (batch,) = run(of_hours(tmp_path / "hours"))
    assert batch.groups == 1
    expected["EWR", second] = [7]
    assert sums() == expected
    engine.stored(of_hours(tmp_path / "hours")).start_over()
    with pytest.raises(UserCodeError, match="ZeroDivisionError: no JFK"):
        run(of_hours(tmp_path / "hours", failing_at_the_end))
    assert sums() == expected
    run(of_hours(tmp_path / "hours"))
    assert sums() == expected


class Rich(msgspec.Struct):
    """A row with columns that JSON has and SQL has not."""

    origin: str
    by_hour: dict[datetime, int]
    best: dict[str, Any]


RICH = Table("rich", Rich, key=("origin",))


def rich(hours: DataFrame) -> DataFrame:
    by_hour = F.map_from_entries(F.collect_list(F.struct("hour", "flights"))).alias("by_hour")
    best = F.max(F.struct(F.col("flights").alias("n"), F.col("hour").alias("at"))).alias("best")
    return hours.groupBy("origin").agg(by_hour, best)


async def test_maps_and_structs_are_objects_with_times_in_utc(
    engine: Engine, run: Any, berlin: None
) -> None:
    made = make_aggregate(
        rich, follows="changes", reads="hours", group="origin", to=RICH, name="rich", tables=PLAIN
    )
    await engine.write(("EWR", "2024-10-27 00:00:00", 5), ("EWR", "2024-10-27 01:00:00", 7))
    run(made)
    assert await engine.site.query("SELECT by_hour, best FROM {t}", t="rich") == [
        ({"2024-10-27T00:00:00Z": 5, "2024-10-27T01:00:00Z": 7},
         {"n": 7, "at": "2024-10-27T01:00:00Z"})
    ]  # fmt: skip


async def test_what_is_not_there_is_told(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aggregate_run, "WAIT_SECONDS", 0.0)
    await engine.site.query("DROP TABLE {t}", t="months")
    with pytest.raises(UsageError, match=r"has no table months in the store: run it first"):
        aggregate_run._require_tables([engine.stored(aggregate(by_month))])
