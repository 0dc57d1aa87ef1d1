"""A source that follows a numbered table: its contract, its event time, and its refusals."""

from __future__ import annotations

import asyncio
import json
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec
import psycopg
import pytest
from psycopg import sql

from millwheel import Computation, Context, Pipeline, Record, Stream, Table
from millwheel.core.model import MAX_TIME, to_micros
from millwheel.core.numbered import Marks
from millwheel.errors import InputError, UsageError
from millwheel.files import JsonLines
from millwheel.following import NumberedTable
from millwheel.following.table_source import SenderDiscovery, TablePartition, TableReader
from millwheel.following.upstream import Look, Written
from millwheel.services.run import Run
from millwheel.sources import Row
from millwheel.store.console.migrate import migrate
from millwheel.testing import check_source
from tests.following import service
from tests.support.servers import quick_directory

START = datetime(2020, 1, 1, tzinfo=UTC)


class Event(msgspec.Struct):
    """A row of the input."""

    number: int
    key: str


class Kept(msgspec.Struct):
    """A row of the table, with a column of each type."""

    number: int
    key: str
    at: datetime
    day: date
    raw: bytes
    price: Decimal
    share: float
    good: bool
    tag: UUID
    parts: list[int]
    nothing: str | None


EVENTS = Stream("events", Event)
KEPT = Stream("kept", Kept)


def moment(event: Event) -> datetime:
    return START + timedelta(seconds=event.number)


def kept(number: int, key: str) -> Kept:
    """The row of an event."""
    at = START + timedelta(seconds=number)
    return Kept(
        number, key, at, at.date(), bytes([number % 256, 0, 255]) * 40, Decimal(number) / 4,
        number / 3, number % 2 == 0,
        UUID(int=number), [number, number], None,
    )  # fmt: skip


class Keep(Computation[Event, None]):
    """Makes a row of each event."""

    writes = (KEPT,)

    async def process_record(self, record: Record[Event], ctx: Context[None]) -> None:
        ctx.produce(KEPT, kept(record.value.number, record.value.key))


def followed(name: str, path: Path) -> Pipeline:
    """A pipeline with a numbered table."""
    pipeline = Pipeline(name)
    pipeline.inject(EVENTS, JsonLines(path), timestamp=moment)
    pipeline.add(Keep(), EVENTS.by(lambda event: event.key))
    pipeline.sink(KEPT, Table("kept_log", Kept, numbered=True))
    pipeline.sink(KEPT, Table("last", Kept, key=("key",)))
    return pipeline


class Upstreams:
    """Pipelines to be followed, on one server."""

    def __init__(self, url: str, path: Path) -> None:
        self.url = url
        self.path = path
        self.name = "followed_wheel"
        self._is_made = False

    def write(self, first: int, until: int) -> None:
        """Append events."""
        with self.path.open("ab") as file:
            for number in range(first, until):
                file.write(msgspec.json.encode(Event(number, f"key_{number % 3}")) + b"\n")

    def run(self, *, keep_open: bool = True) -> None:
        """Process what is there; each run is a new owner of the intervals."""
        pipeline = followed(self.name, self.path)
        if not self._is_made:
            migrate(self.url, self.name)
        self._is_made = True
        asyncio.run(Run(pipeline, self.url, keep_open=keep_open).run())

    def source(self, table: str = "kept_log") -> NumberedTable[Kept]:
        return NumberedTable(self.url, self.name, table, timestamp=lambda row: row.at)

    def execute(self, text: str) -> None:
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute("SET client_min_messages = warning")
            connection.execute(sql.SQL("SET search_path = {}").format(sql.Identifier(self.name)))
            connection.execute(text.encode())


@pytest.fixture
def upstream(postgres_url: Callable[[int], str], tmp_path: Path) -> Iterator[Upstreams]:
    made = Upstreams(postgres_url(18), tmp_path / "events.jsonl")
    made.path.touch()
    yield made
    made.execute("DROP SCHEMA followed_wheel CASCADE")


async def opened(
    source: NumberedTable[Any], position: int | None = None, kind: type = Kept
) -> TableReader:
    """The reader of the only sender."""
    with closing(source.discover(None)) as discovery:
        (identity,) = await discovery.look()
    stored = None if position is None else {"next": position}
    return await source.partition(identity).open(kind, stored)


async def read(reader: TableReader, rows: int) -> list[Any]:
    found: list[Any] = []
    while len(found) < rows:
        await asyncio.wait_for(reader.wait(), 10)
        for row in await reader.read(7):
            assert row.error is None, row.error
            found.append(row.value)
    return found


async def test_it_keeps_the_contract_of_sources(upstream: Upstreams) -> None:
    upstream.write(0, 50)
    await asyncio.to_thread(upstream.run)
    await check_source(upstream.source, Kept, rows=10)


async def test_each_column_arrives_as_it_was(upstream: Upstreams) -> None:
    """And the rows come in the order of their numbers, from a stored position on."""
    upstream.write(0, 20)
    await asyncio.to_thread(upstream.run)
    reader = await opened(upstream.source())
    rows = await read(reader, 20)
    assert sorted(rows, key=lambda row: row.number) == [kept(n, f"key_{n % 3}") for n in range(20)]
    assert reader.position(7)["next"] == 7
    assert reader.lag().log_end == 20
    again = await opened(upstream.source(), 7)
    assert await read(again, 13) == rows[7:]
    for each in (reader, again):
        each.close()


class Renamed(msgspec.Struct, rename="camel"):
    """Fields of the table under other names in JSON: by a rule, each by itself, and two that are
    exchanged."""

    at: datetime
    is_good: bool = msgspec.field(default=False, name="good")
    nothing: str | None = "never read"
    raw: bytes = msgspec.field(default=b"", name="price_tag")
    key: str = msgspec.field(default="", name="number")
    number: int = msgspec.field(default=-1, name="key")


async def test_columns_are_fields_whatever_their_names_in_json(upstream: Upstreams) -> None:
    upstream.write(0, 4)
    await asyncio.to_thread(upstream.run)
    reader = await opened(upstream.source(), kind=Renamed)
    wanted = [kept(number, f"key_{number % 3}") for number in range(4)]
    rows = sorted(await read(reader, 4), key=lambda row: row.at)
    assert rows == [Renamed(w.at, w.good, None, w.raw, w.key, w.number) for w in wanted]
    reader.close()


class Numbers(msgspec.Struct):
    at: datetime
    share: float | None


class Exact(msgspec.Struct):
    at: datetime
    share: Decimal


async def test_numbers_that_json_lacks_are_bad_rows_or_decimals(upstream: Upstreams) -> None:
    """And minus zero and the least float arrive as they were."""
    upstream.write(0, 5)
    await asyncio.to_thread(upstream.run)
    texts = ["NaN", "-Infinity", "-0", "5e-324", "0.1"]
    for second, text in enumerate(texts):
        at = START + timedelta(seconds=second)
        upstream.execute(f"UPDATE kept_log SET share = '{text}' WHERE at = '{at.isoformat()}'")
    reader = await opened(upstream.source(), kind=Numbers)
    found: list[Row] = []
    while len(found) < 5:
        await asyncio.wait_for(reader.wait(), 10)
        found += await reader.read(7)
    errors = sorted(str(row.error).partition(": ")[2] for row in found if row.error is not None)
    reason = "a stream's values are stored as JSON, where a float cannot be that"
    assert [error[:80] for error in errors] == [
        f"share is -infinity: {reason}"[:80],
        f"share is NaN: {reason}"[:80],
    ]
    values = sorted((row.value for row in found if row.error is None), key=lambda row: row.at)
    assert [str(value.share) for value in values] == ["-0.0", "5e-324", "0.1"]
    reader.close()
    exact = await opened(upstream.source(), kind=Exact)
    shares = sorted((row.at, str(row.share)) for row in await read(exact, 5))
    assert [share for _, share in shares[:2]] == ["NaN", "-Infinity"]
    exact.close()


async def stored(upstream: Upstreams, number: int) -> dict[str, Any]:
    """The position of a follower that has read so many rows."""
    with closing(await opened(upstream.source())) as reader:
        await read(reader, 20)
        return msgspec.json.decode(msgspec.json.encode(reader.position(number)))  # type: ignore[no-any-return]


async def at(source: NumberedTable[Kept], position: dict[str, Any]) -> TableReader:
    """The reader of the only sender, at a stored position."""
    with closing(source.discover(None)) as discovery:
        (identity,) = await discovery.look()
    return await source.partition(identity).open(Kept, position)


OTHER = "UPDATE kept_log SET number = number + 100 WHERE sequence BETWEEN 10 AND 19"
"""The store is restored to ten rows, and its pipeline writes ten others."""


@pytest.mark.parametrize("number", [11, 20])
async def test_a_store_that_has_written_other_rows_again_is_noticed(
    upstream: Upstreams, number: int
) -> None:
    """Though it has as many rows as were read, or more; while nothing was read of the others."""
    upstream.write(0, 20)
    await asyncio.to_thread(upstream.run)
    position = await stored(upstream, number)
    upstream.execute(OTHER)
    upstream.write(20, 25)
    await asyncio.to_thread(upstream.run)
    with closing(await at(upstream.source(), position)) as reader:
        await asyncio.wait_for(reader.wait(), 10)
        with pytest.raises(InputError, match=f"the last of {number} rows of sender .* restored"):
            await reader.read(1)


async def test_a_follower_that_runs_notices_it_as_well(upstream: Upstreams) -> None:
    upstream.write(0, 20)
    await asyncio.to_thread(upstream.run)
    with closing(await opened(upstream.source())) as reader:
        await read(reader, 20)
        upstream.execute(OTHER)
        upstream.write(20, 25)
        await asyncio.to_thread(upstream.run)
        with pytest.raises(InputError, match=r"the last of 20 rows of sender .* restored"):
            await read(reader, 5)


async def test_what_may_change_in_a_table_is_no_other_store(upstream: Upstreams) -> None:
    """Rows that were read are deleted, or it has got a column; also one that cannot be compared."""
    upstream.write(0, 20)
    await asyncio.to_thread(upstream.run)
    position = await stored(upstream, 20)
    upstream.write(20, 25)
    await asyncio.to_thread(upstream.run)
    for change in (
        "DELETE FROM kept_log WHERE sequence < 15",
        "ALTER TABLE kept_log ADD COLUMN more text DEFAULT 'new'",
        "ALTER TABLE kept_log ADD COLUMN most json",
    ):
        upstream.execute(change)
        with closing(await at(upstream.source(), position)) as reader:
            assert {row.number for row in await read(reader, 5)} == {*range(20, 25)}
            later = reader.position(23)
            assert ("last" in later) == ("json" not in change)
        with closing(await at(upstream.source(), later)) as reader:
            assert len(await read(reader, 2)) == 2
    with closing(await at(upstream.source(), {"next": 20})) as reader:  # of a former version
        assert len(await read(reader, 5)) == 5


class Scripted:
    """A pipeline that is followed, which has two rows, and promises more from look to look."""

    def __init__(self) -> None:
        self.looks = 0
        self.looked_thrice = asyncio.Event()
        self.shown: list[int | None] = []
        """What the reader showed while its rows were on their way."""
        self.reader: TableReader

    async def look(self) -> Look:
        self.looks += 1
        if self.looks > 2:
            self.looked_thrice.set()
        return Look("id", 0, {1: Written(2, min(self.looks, 2) * 10)})

    async def rows(self, sender: int, first: int, until: int, limit: int) -> list[tuple[int, str]]:
        self.shown.append(self.reader.seen)
        return [(number, msgspec.json.encode(kept(number, "")).decode()) for number in (0, 1)]

    async def marks(self, sender: int, first: int, until: int) -> Marks:
        self.shown.append(self.reader.seen)
        return Marks()

    def hold(self, user: object) -> None: ...

    def let_go(self, user: object) -> None: ...


async def test_no_time_is_shown_before_the_rows_are_read_that_were_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Neither while they are fetched, nor while they wait to be read: they would be late."""
    monkeypatch.setattr("millwheel.following.table_source.LOOK_AGAIN_SECONDS", 0.0)
    source: NumberedTable[Kept] = NumberedTable(
        "postgresql://nowhere.invalid/x", "a", "b", timestamp=lambda row: row.at
    )
    upstream = Scripted()
    monkeypatch.setattr(source, "upstream", lambda: upstream)
    with closing(await source.partition("id/1").open(Kept, None)) as reader:
        upstream.reader = reader
        await reader.wait()
        await asyncio.wait_for(upstream.looked_thrice.wait(), 10)
        assert upstream.shown == [None, None]
        assert reader.seen is None
        assert len(await reader.read(1)) == 1
        assert reader.seen is None, "another one waits"
        assert len(await reader.read(1)) == 1
        assert reader.seen == 20


async def test_event_time_is_that_of_the_followed_pipeline(upstream: Upstreams) -> None:
    """Only once all rows are read that its sender had written when it promised."""
    upstream.write(0, 20)
    await asyncio.to_thread(upstream.run)
    reader = await opened(upstream.source())
    await asyncio.wait_for(reader.wait(), 10)
    assert reader.seen is None, "there are rows to read"
    await read(reader, 20)
    async with asyncio.timeout(10):
        while reader.seen is None:
            await reader.wait()
            await reader.read(1)
    assert reader.seen == to_micros(START) + 19_000_000
    discovery = upstream.source().discover(None)
    await discovery.look()
    assert isinstance(discovery, SenderDiscovery)
    assert discovery.seen == reader.seen
    await asyncio.to_thread(upstream.run, keep_open=False)
    async with asyncio.timeout(10):
        while reader.seen != MAX_TIME:
            await reader.wait()
            await reader.read(1)
    reader.close()
    discovery.close()


async def test_senders_of_the_engine_have_not_ended_while_the_pipeline_is_on_spark(
    upstream: Upstreams,
) -> None:
    """It may be moved back, and then they write on; until then the watermark is that of Spark."""
    upstream.write(0, 20)
    await asyncio.to_thread(upstream.run)
    upstream.execute(
        "INSERT INTO spark_query (checkpoint, levels, sender, batch, low_watermark, "
        "output_watermark, counters, "
        "table_rows, began_at, changed_at) "
        """VALUES ('', '{}', 99, 3, 8, 7, '{}', '{"kept_log": 5}', now(), now())"""
    )
    with closing(upstream.source().upstream()) as looking:
        look = await looking.look()
        assert look.low_watermark == 7
        assert {sender.low_watermark for sender in look.senders.values()} == {7}
        assert look.senders[99].rows == 5
        upstream.execute("UPDATE spark_query SET ended_at = now()")
        await asyncio.sleep(0.2)
        assert (await looking.look()).senders[99].low_watermark == MAX_TIME


async def fails(source: NumberedTable[Kept], position: int | None = None) -> str:
    """The error with which a reader ends."""
    with closing(await opened(source, position)) as reader:
        await asyncio.wait_for(reader.wait(), 10)
        with pytest.raises(InputError) as error:
            await reader.read(1)
        return str(error.value)


class Strict(msgspec.Struct):
    """A row with code of its own, which fails on some."""

    number: int
    at: datetime

    def __post_init__(self) -> None:
        _ = {number: number for number in range(3)}[self.number]


async def test_a_row_that_cannot_be_read_is_a_bad_one(upstream: Upstreams) -> None:
    upstream.write(0, 5)
    await asyncio.to_thread(upstream.run)
    with closing(upstream.source().discover(None)) as discovery:
        (identity,) = await discovery.look()
    with closing(await upstream.source().partition(identity).open(Strict, None)) as reader:
        await asyncio.wait_for(reader.wait(), 10)
        rows = await reader.read(5)
    assert sorted(row.value.number for row in rows if row.error is None) == [0, 1, 2]
    assert sum("KeyError" in str(row.error) for row in rows) == 2


async def test_what_cannot_be_followed_is_refused(upstream: Upstreams) -> None:
    upstream.write(0, 20)
    await asyncio.to_thread(upstream.run)
    assert "3 rows" not in await fails(upstream.source(), 25)
    assert "25 rows of sender" in await fails(upstream.source(), 25)
    upstream.execute("DELETE FROM kept_log WHERE sequence < 5")
    assert "from number 0 on, up to 4, were deleted" in await fails(upstream.source())
    with (
        closing(upstream.source("nothing").discover(None)) as discovery,
        pytest.raises(InputError, match="writes a table 'nothing'"),
    ):
        await discovery.look()
    with (
        closing(upstream.source("last").upstream()) as last,
        pytest.raises(InputError, match="its rows have no numbers"),
    ):
        await last.rows(1, 0, 1, 1)
    other: NumberedTable[Kept] = NumberedTable(
        upstream.url, "no_such", "kept_log", timestamp=lambda row: row.at
    )
    with (
        closing(other.discover(None)) as discovery,
        pytest.raises(InputError, match="no pipeline 'no_such'"),
    ):
        await discovery.look()


async def test_a_pipeline_that_was_made_anew_is_another_one(upstream: Upstreams) -> None:
    upstream.write(0, 20)
    await asyncio.to_thread(upstream.run)
    source = upstream.source()
    with closing(source.discover(None)) as discovery:
        (identity,) = await discovery.look()
        stored = discovery.position()
    upstream.execute("UPDATE pipeline SET id = gen_random_uuid()")
    await asyncio.sleep(0.2)
    with (
        closing(source.discover(stored)) as discovery,
        pytest.raises(InputError, match="dropped and made again"),
    ):
        await discovery.look()
    with closing(await TablePartition(source, identity).open(Kept, None)) as reader:
        await reader.wait()
        with pytest.raises(InputError, match="dropped and made again"):
            await reader.read(1)


async def test_a_bad_row_has_the_names_of_the_stream(upstream: Upstreams) -> None:
    """As the value of a dead letter: a retry decodes it as the stream does."""

    class Narrow(msgspec.Struct, rename="upper"):
        number: str
        key: str

    upstream.write(0, 1)
    await asyncio.to_thread(upstream.run)
    reader = await opened(upstream.source(), kind=Narrow)
    await reader.wait()
    (row,) = await reader.read(10)
    text = json.loads(row.text or "")
    assert (text["NUMBER"], text["KEY"]) == (0, "key_0")
    reader.close()


async def test_a_row_that_does_not_fit_is_a_bad_row(upstream: Upstreams) -> None:
    class Narrow(msgspec.Struct):
        number: str

    upstream.write(0, 2)
    await asyncio.to_thread(upstream.run)
    source = upstream.source()
    with closing(source.discover(None)) as discovery:
        (identity,) = await discovery.look()
    with closing(await source.partition(identity).open(Narrow, None)) as reader:
        await reader.wait()
        rows = await reader.read(10)
    assert "table 'kept_log', sender" in str(rows[0].error)
    assert json.loads(rows[0].text or "")["number"] == 0


def test_a_directory_cannot_be_followed(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is not a postgresql:// URL"):
        NumberedTable(str(tmp_path), "a", "b", timestamp=lambda row: row)


@pytest.mark.soak
@pytest.mark.process
def test_two_pipelines_on_two_servers_are_killed_and_join() -> None:
    """With senders that appear and end; see `tests.following.service`."""
    directory = Path(tempfile.mkdtemp(prefix="millwheel-following-", dir=quick_directory()))
    directory.chmod(0o755)
    said: list[str] = []
    try:
        wrong = service.run(
            directory, 8, seed=1, flights=12_000, rate=1_000.0, say=said.append
        )  # fmt: skip
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    assert not wrong, "\n".join(wrong)
    assert said[-1].endswith(": 0 differences")
