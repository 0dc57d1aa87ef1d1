"""Following a numbered table with Spark: each row once, whatever order the commits of its senders
have."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import psycopg
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows

from millwheel import Table
from millwheel.errors import StoreError, UsageError
from millwheel.spark import lookout
from millwheel.spark.following import FollowingReader
from millwheel.spark.stream_source import MillwheelSource
from millwheel.store.port.placement import IntervalRow
from tests.support.sessions import until
from tests.support.store_sites import Owner, PostgresSite, Schema, deploy

pytestmark = pytest.mark.parametrize("schema", [18], indirect=True)


class Made(msgspec.Struct):
    """A row."""

    number: int


OUT = Table("out", Made, numbered=True)
PLAIN = Table("plain", Made)

Row = tuple[int, int, int]
"""Number, sender, sequence."""


class Wheel:
    """A pipeline whose computation writes numbered rows, a commit at a time."""

    def __init__(self, site: PostgresSite, owner: Owner) -> None:
        self.site = site
        self.owner = owner
        self.written: list[Row] = []
        self.followers: list[Follower] = []

    @classmethod
    async def start(cls, site: PostgresSite) -> Wheel:
        deployment = await deploy(site.store, tables=(OUT, PLAIN))
        return cls(site, await Owner.take(site.store, deployment))

    async def write(self, rows: int, interval: IntervalRow | None = None, **more: Any) -> list[Row]:
        """Write rows with one commit; `more` are other parts of it."""
        interval = interval or self.owner.intervals[0]
        last = self.owner.links[interval.id]
        first = last.table_rows.get("out", 0)
        made = [(len(self.written) + n, interval.id, first + n) for n in range(rows)]
        self.written += made
        commit = self.owner.commit(interval, table_rows={"out": first + rows})
        commit.rows = [(OUT, row) for row in made]
        for name, value in more.items():
            setattr(commit, name, value)
        await self.owner.write(commit)
        return made

    def source(self, table: str = "out", **options: str) -> MillwheelSource:
        schema = self.site.schema
        wanted = {"store": schema.url, "pipeline": schema.name, "table": table, **options}
        return MillwheelSource(wanted)

    def follow(self, **options: str) -> Follower:
        follower = Follower(self.source(**options))
        self.followers.append(follower)
        return follower


class Follower:
    """Follows a table as Spark's driver and tasks would: plans a batch, reads it, keeps the
    offset."""

    def __init__(self, made: MillwheelSource) -> None:
        reader = made.streamReader(made.schema())
        assert isinstance(reader, FollowingReader)
        self.reader = reader
        self.offset = reader.initialOffset()
        self.rows: list[Row] = []

    def batch(self, limit: ReadLimit | None = None) -> list[Row]:
        """The rows of one batch, which is planned and read twice, as after a crash."""
        end = self.reader.latestOffset(self.offset, limit or ReadAllAvailable())
        rows = self.read(end)
        assert self.read(end) == rows
        self.offset = end
        self.rows += rows
        return rows

    def read(self, end: dict[str, Any]) -> list[Row]:
        return [
            row
            for share in self.reader.partitions(self.offset, end)
            for batch in self.reader.read(share)
            for row in zip(*batch.to_pydict().values(), strict=True)
        ]


@pytest.fixture
async def wheel(postgres: PostgresSite, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Wheel]:
    monkeypatch.setattr(lookout, "LOOK_SECONDS", 0.0)
    wheel = await Wheel.start(postgres)
    yield wheel
    for follower in wheel.followers:
        follower.reader.stop()


async def test_rows_are_read_once_and_in_each_senders_order(wheel: Wheel) -> None:
    low, high = wheel.owner.intervals
    follower = wheel.follow()
    assert follower.batch() == []
    rows = await wheel.write(3, low)
    assert follower.batch() == rows
    first = await wheel.write(2, high)
    second = await wheel.write(4, low)
    assert follower.batch() == second + first, "by sender"
    await wheel.owner.claim()  # a takeover
    assert follower.batch() == []
    rows = await wheel.write(1, high)
    assert follower.batch() == rows
    assert sorted(follower.rows) == sorted(wheel.written)


async def test_a_commit_that_takes_long_is_not_skipped(wheel: Wheel) -> None:
    """Its rows have lower numbers in the table than those that are seen before them (I11)."""
    low, high = wheel.owner.intervals
    schema = wheel.site.schema
    await wheel.site.query(
        "ALTER TABLE {t} ADD COLUMN place bigint GENERATED ALWAYS AS IDENTITY", t="out"
    )
    by_number = GlobalFollower(schema)
    follower = wheel.follow(columns="number,sender,sequence")
    other = await Owner.take(await wheel.site.another(), wheel.owner.deployment)
    slow = Wheel(wheel.site, other)
    await wheel.owner.claim(high)
    with psycopg.connect(schema.url) as blocker:
        blocker.execute("SELECT pg_advisory_xact_lock(4711)")
        wait = ("SELECT pg_advisory_xact_lock(4711)", ())
        task = asyncio.create_task(slow.write(2, low, statements=[wait]))
        waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'advisory'"

        async def is_held() -> bool:
            return await wheel.site.query(waits) == [(1,)]

        await until(is_held)
        seen = await wheel.write(3, high)
        assert follower.batch() == seen
        assert len(by_number.batch()) == 3
        blocker.rollback()
        late = await task
    assert follower.batch() == late
    assert by_number.batch() == [], "one number for all senders skips what was committed late"


class GlobalFollower:
    """A reader that keeps one number for all rows."""

    def __init__(self, schema: Schema) -> None:
        self._schema = schema
        self._seen = 0

    def batch(self) -> list[tuple[int, int]]:
        rows = self._schema.query(
            f"SELECT place, number FROM {{t}} WHERE place > {self._seen} ORDER BY place", t="out"
        )
        self._seen = max([self._seen, *(place for place, _ in rows)])
        return rows


async def test_senders_that_have_ended_are_read_to_their_end(wheel: Wheel) -> None:
    low, high = wheel.owner.intervals
    follower = wheel.follow()
    await wheel.write(3, low)
    follower.batch(ReadMaxRows(1))
    await wheel.write(2, high)
    await wheel.owner.write(wheel.owner.commit())  # so that both have their last commit there
    store = wheel.owner.store
    sequencers = {row.id: wheel.owner.claims[row.id].interval.sequencer for row in (low, high)}
    for row in (low, high):
        await store.fold(row.id, sequencers[row.id], 0, wheel.owner.links[row.id].n)
    await store.release(wheel.owner.worker, sequencers)
    merged = await store.merge(low.id, high.id, sequencers)
    (claim,) = await wheel.owner.claim(replace(low, id=merged))
    assert await wheel.write(2, claim.interval)
    assert len(follower.batch()) == 6
    assert sorted(follower.rows) == sorted(wheel.written)
    assert follower.batch() == []


async def test_batches_are_bounded_and_a_run_that_ends_has_its_end(wheel: Wheel) -> None:
    low, high = wheel.owner.intervals
    await wheel.write(7, low)
    await wheel.write(5, high)
    follower = wheel.follow()
    assert follower.reader.getDefaultReadLimit() == ReadAllAvailable()
    follower.reader.prepareForTriggerAvailableNow()
    await wheel.write(9, high)
    sizes = [len(follower.batch(ReadMaxRows(5))) for _ in range(4)]
    assert sizes == [5, 5, 2, 0], "what came after the start is left to the next run"
    assert follower.reader.reportLatestOffset() == {str(low.id): 7, str(high.id): 14}
    assert wheel.follow(maxRowsPerTrigger="5").reader.getDefaultReadLimit() == ReadMaxRows(5)


async def test_large_batches_are_shared_among_tasks(
    wheel: Wheel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("millwheel.spark.following.LEAST_ROWS", 10)
    low, high = wheel.owner.intervals
    await wheel.write(100, low)
    await wheel.write(20, high)
    follower = wheel.follow(partitions="3")
    end = follower.reader.latestOffset(follower.offset, ReadAllAvailable())
    shares = follower.reader.partitions(follower.offset, end)
    assert [sum(s.rows for s in share.ranges) for share in shares] == [40, 40, 40]  # type: ignore[attr-defined]
    assert sorted(follower.batch()) == sorted(wheel.written)


async def test_rows_that_were_deleted_before_they_were_read_are_an_error(wheel: Wheel) -> None:
    low, _ = wheel.owner.intervals
    follower, careless = wheel.follow(), wheel.follow(failOnDataLoss="false")
    some = wheel.follow(filters='[["number", ">", "6"]]')
    await wheel.write(4, low)
    follower.batch()
    await wheel.write(4, low)
    await wheel.site.query("DELETE FROM {t} WHERE number < 4", t="out")
    assert len(follower.batch()) == 4, "rows that were read may go"
    found = f"4 of the rows 0 to 7 of sender {low.id} were deleted from table 'out'"
    with pytest.raises(StoreError, match=found):
        some.batch()
    assert [row[0] for row in careless.batch()] == [4, 5, 6, 7]
    await wheel.site.query("DELETE FROM {t}", t="out")
    await wheel.write(1, low)
    assert [row[0] for row in careless.batch()] == [8]


async def test_a_fresh_start_begins_with_what_is_there(wheel: Wheel) -> None:
    low, high = wheel.owner.intervals
    await wheel.write(4, low)
    await wheel.write(3, high)
    await wheel.site.query("DELETE FROM {t} WHERE number < 2 OR sender = %s", high.id, t="out")
    early, late = wheel.follow(), wheel.follow(startingOffsets="latest")
    await wheel.write(1, high)
    assert [row[0] for row in early.batch()] == [2, 3, 7]
    assert [row[0] for row in late.batch()] == [7]


async def test_a_store_that_went_back_is_refused(wheel: Wheel) -> None:
    low, _ = wheel.owner.intervals
    await wheel.write(4, low)
    follower = wheel.follow()
    follower.batch()
    follower.offset["next"][str(low.id)] = 5
    with pytest.raises(
        StoreError, match=r"5 rows of sender .* were read, but it has written only 4"
    ):
        follower.batch()


@pytest.mark.parametrize("restarted", [False, True])
async def test_a_store_that_has_written_other_rows_again_is_refused(
    wheel: Wheel, restarted: bool
) -> None:
    """It was restored to two rows of a sender, and has written two others, and one more."""
    low, high = wheel.owner.intervals
    await wheel.write(4, low)
    await wheel.write(3, high)
    follower = wheel.follow()
    follower.batch()
    offset = msgspec.json.decode(msgspec.json.encode(follower.offset))
    await wheel.write(2, high)
    if restarted:
        follower = wheel.follow()
        follower.offset = offset
    assert len(follower.batch()) == 2
    planned = dict(follower.offset)
    await wheel.site.query(
        "UPDATE {t} SET number = number + 100 WHERE sender = %s AND sequence > 1", low.id, t="out"
    )
    assert follower.batch() == [], "nothing is new yet"
    await wheel.write(1, high)
    with pytest.raises(StoreError, match=rf"the last of 4 rows of sender {low.id} of table 'out'"):
        follower.batch()
    again = wheel.follow()
    with pytest.raises(StoreError, match=rf"the last of 4 rows of sender {low.id} of table 'out'"):
        again.reader.partitions(offset, planned)  # a batch that was planned before


async def test_a_checkpoint_of_another_pipeline_is_refused(wheel: Wheel) -> None:
    follower = wheel.follow()
    follower.offset["id"] = "somebody else's"
    with pytest.raises(UsageError, match="the checkpoint was made with another pipeline than"):
        follower.batch()
    planned = wheel.follow().reader
    with pytest.raises(UsageError, match="the checkpoint was made with another pipeline than"):
        planned.partitions(follower.offset, follower.offset)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"table": "plain"}, r"the table 'plain' cannot be followed: its rows have no numbers"),
        ({"startingOffsets": "5"}, "'startingOffsets' must be 'earliest' or 'latest', not '5'"),
        ({"maxRowsPerTrigger": "0"}, "'maxRowsPerTrigger' must be a number from 1, not '0'"),
        ({"failOnDataLoss": "no"}, "'failOnDataLoss' must be true or false, not 'no'"),
        ({"stream": "nothing"}, "the stream 'nothing' .* is not written to a numbered table"),
    ],
)
async def test_wrong_options_are_refused(wheel: Wheel, options: dict[str, str], text: str) -> None:
    """At load(), or when the query starts: PySpark hides an error of `streamReader` behind one of
    its own."""
    made = wheel.source(**options)
    if options.keys() & {"table"}:
        refused = made.streamReader(made.schema())
        with pytest.raises(UsageError, match=text):
            refused.getDefaultReadLimit()
    else:
        with pytest.raises(UsageError, match=text):
            made.schema()


# ------------------------------------------------------------------------------- with Spark itself


@pytest.mark.spark
async def test_a_query_goes_on_from_its_checkpoint(
    wheel: Wheel, spark: SparkSession, tmp_path: Path
) -> None:
    low, high = wheel.owner.intervals
    options = {
        "store": wheel.site.schema.url,
        "pipeline": wheel.site.schema.name,
        "table": "out",
        "maxRowsPerTrigger": "4",
    }

    def run() -> list[int]:
        """Run the query to the end of the table; gives the rows of its batches."""
        sizes: list[int] = []

        def keep(rows: DataFrame, _: int) -> None:
            found = [(row.number, row.sender, row.sequence) for row in rows.collect()]
            sizes.append(len(found))
            seen.extend(found)

        query = (
            spark.readStream.format("millwheel").options(**options).load()
            .writeStream.foreachBatch(keep)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )  # fmt: skip
        query.awaitTermination(120)
        assert query.exception() is None
        return sizes

    seen: list[Row] = []
    await wheel.write(6, low)
    await wheel.write(3, high)
    assert run() == [4, 4, 1]
    await wheel.write(2, low)
    assert run() == [2]
    assert sorted(seen) == sorted(wheel.written)
    await wheel.site.query(
        "UPDATE {t} SET number = number + 100 WHERE sender = %s AND sequence > 1", low.id, t="out"
    )
    await wheel.write(1, low)
    with pytest.raises(StreamingQueryException, match="the store was restored from a backup"):
        run()


@pytest.mark.spark
async def test_spark_shows_why_a_table_cannot_be_followed(
    wheel: Wheel, spark: SparkSession, tmp_path: Path
) -> None:
    rows = (
        spark.readStream.format("millwheel")
        .option("store", wheel.site.schema.url)
        .option("pipeline", wheel.site.schema.name)
        .option("table", "plain")
        .load()
    )
    writer = rows.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "c"))
    with pytest.raises(StreamingQueryException, match="'plain' cannot be followed: its rows have"):
        writer.start().awaitTermination(120)
