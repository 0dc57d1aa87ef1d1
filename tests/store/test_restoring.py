"""A restored pipeline is as it was at the savepoint, and its workers go on from there."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import psycopg
import pytest
from psycopg import sql

from millwheel import (
    Computation,
    Context,
    Inbox,
    JsonLines,
    JsonLinesFiles,
    Pipeline,
    Record,
    Settings,
    Stream,
)
from millwheel import Table as Rows
from millwheel.errors import UsageError
from millwheel.services.run import Run
from millwheel.services.worker import PipelineWorker
from millwheel.store.copies.replacing import restore
from millwheel.store.copies.savepoints import list_savepoints, make_savepoint
from tests.support.store_sites import Schema

pytestmark = pytest.mark.newest

BEGIN = datetime(2024, 1, 1, tzinfo=UTC)
KEYS = 13


class Pay(msgspec.Struct):
    account: int
    cents: int


class Total(msgspec.Struct):
    account: int = 0
    cents: int = 0
    payments: int = 0


PAYS, TOTALS = Stream("pays", Pay), Stream("totals", Total)


class AddUp(Computation[Pay, Total]):
    writes = (TOTALS,)

    async def process_record(self, record: Record[Pay], ctx: Context[Total]) -> None:
        pay, before = record.value, ctx.state
        ctx.state = Total(pay.account, before.cents + pay.cents, before.payments + 1)
        ctx.produce(TOTALS, ctx.state)


def pipeline(source: Any) -> Pipeline:
    made = Pipeline("wheel", settings=Settings(lease_seconds=5.0, bucket_seconds=1.0))
    if isinstance(source, Inbox):
        made.inject(PAYS, source)
    else:
        made.inject(PAYS, source, timestamp=lambda _: BEGIN)
    made.add(AddUp(), PAYS.by(lambda pay: pay.account))
    made.sink(TOTALS, Rows("total", Total, key=("account",)))
    return made


def append(path: Path, numbers: range) -> None:
    with path.open("ab") as file:
        for number in numbers:
            file.write(msgspec.json.encode(Pay(number % KEYS, number)) + b"\n")


def sums(schema: Schema, name: str = "wheel") -> tuple[int, int]:
    """Payments and cents in the table of a sink."""
    table = sql.Identifier(name, "total")
    text = sql.SQL("SELECT coalesce(sum(payments), 0)::int, coalesce(sum(cents), 0)::int FROM {}")
    with psycopg.connect(schema.url) as connection:
        try:
            row = connection.execute(text.format(table)).fetchone()
        except psycopg.errors.UndefinedTable:
            return 0, 0
    assert row is not None
    return row


async def until(condition: Callable[[], bool], running: asyncio.Task[Any]) -> None:
    while not condition():
        await asyncio.sleep(0.05)
        if running.done():
            running.result()
            raise AssertionError("it has ended")


@contextlib.asynccontextmanager
async def live(made: Run | PipelineWorker) -> AsyncIterator[asyncio.Task[Any]]:
    stop = asyncio.Event()
    running = asyncio.create_task(made.run(stop))
    yield running
    stop.set()
    await running


def expected(number: int) -> tuple[int, int]:
    return number, sum(range(number))


@pytest.mark.parametrize("kind", [Run, PipelineWorker], ids=["run", "worker"])
async def test_live_workers_start_over_from_the_savepoint(
    schema: Schema, tmp_path: Path, kind: type[Run] | type[PipelineWorker]
) -> None:
    path = tmp_path / "pays.jsonl"
    append(path, range(500))
    made = kind(pipeline(JsonLines(path, follow=True)), schema.url)
    async with live(made) as running:
        await until(lambda: sums(schema) == expected(500), running)
        await asyncio.to_thread(make_savepoint, schema.url, "wheel", "one")
        append(path, range(500, 1000))
        await until(lambda: sums(schema) == expected(1000), running)
        for number in (1, 2, 3):
            found = await asyncio.to_thread(restore, schema.url, "wheel@one")
            assert found.replaced == f"wheel@replaced-{number}"
            assert (found.sent_again, found.not_sent_again) == (0, 0), "it has no inbox"
            assert sums(schema, found.replaced)[0] >= 500
            append(path, range(1000 + 10 * number - 10, 1000 + 10 * number))
            await until(lambda n=number: sums(schema) == expected(1000 + 10 * n), running)  # type: ignore[misc]
    names = {one.name for one in list_savepoints(schema.url)}
    assert names == {"wheel@one", "wheel@replaced-1", "wheel@replaced-2", "wheel@replaced-3"}
    with psycopg.connect(schema.url) as connection:
        log = connection.execute("SELECT verb FROM wheel.request ORDER BY id").fetchall()
    assert [verb for (verb,) in log] == ["savepoint", "restore", "restore", "restore"]


async def test_records_that_were_sent_since_wait_again(schema: Schema) -> None:
    def send(number: int) -> bool:
        with psycopg.connect(schema.url) as connection:
            text = "SELECT wheel.send('pays', %s::jsonb, id => %s)"
            value = msgspec.json.encode(Pay(0, number)).decode()
            row = connection.execute(text, [value, f"id {number}"]).fetchone()
        assert row is not None
        return bool(row[0])

    made = Run(pipeline(Inbox()), schema.url)
    async with live(made) as running:
        await until(lambda: len(list_savepoints(schema.url)) == 0 and ready(schema), running)
        for number in range(10):
            assert await asyncio.to_thread(send, number)
        await until(lambda: sums(schema) == expected(10), running)
        await asyncio.to_thread(make_savepoint, schema.url, "wheel", "one")
        for number in range(10, 15):
            assert await asyncio.to_thread(send, number)
        await until(lambda: sums(schema) == expected(15), running)
    for number in range(15, 20):
        assert send(number), "nobody runs: they wait"
    found = restore(schema.url, "wheel@one")
    assert found.sent_again + found.not_sent_again >= 10
    assert found.sent_again >= 5
    assert not send(19), "its id is known, since its record waits again"
    text = """
    SELECT (SELECT min(sequencer) FROM wheel.key_interval),
        (SELECT max(sequencer) FROM "wheel@replaced-1".key_interval),
        (SELECT value ->> 'payments' FROM wheel.state_of('add_up', '0')),
        (SELECT value ->> 'payments' FROM "wheel@replaced-1".state_of('add_up', '0'))
    """
    with psycopg.connect(schema.url) as connection:
        ((least, greatest, *payments),) = connection.execute(text).fetchall()
    assert least > greatest, "no commit of before passes the fence"
    assert payments == ["10", "15"], "functions read the tables of their own schema"
    async with live(Run(pipeline(Inbox()), schema.url)) as running:
        await until(lambda: sums(schema)[0] == 10 + found.sent_again, running)
        for number in range(10, 15):
            await asyncio.to_thread(send, number)
        await until(lambda: sums(schema) == expected(20), running)


def ready(schema: Schema) -> bool:
    with psycopg.connect(schema.url) as connection:
        row = connection.execute("SELECT count(*) FROM wheel.inbox WHERE interval_id IS NOT NULL")
        found = row.fetchone()
    return found is not None and found[0] > 0


async def test_part_files_are_cut_and_go_on(schema: Schema, tmp_path: Path) -> None:
    path, out = tmp_path / "pays.jsonl", tmp_path / "out"
    append(path, range(50))

    def lines() -> list[int]:
        """The sums of cents that were written, one for each payment."""
        parts = sorted(out.glob("part-*.jsonl"))
        return sorted(
            msgspec.json.decode(line, type=Total).payments
            for part in parts
            for line in part.read_bytes().splitlines()
        )

    made = pipeline(JsonLines(path, follow=True))
    made.sink(TOTALS, JsonLinesFiles(out))
    async with live(Run(made, schema.url)) as running:
        await until(lambda: sums(schema) == expected(50), running)
        await asyncio.to_thread(make_savepoint, schema.url, "wheel", "one")
        append(path, range(50, 80))
        await until(lambda: sums(schema) == expected(80), running)
        once = lines()
        assert len(once) == 80
        await asyncio.to_thread(restore, schema.url, "wheel@one")
        await until(lambda: sums(schema) == expected(80), running)
        assert lines() == once, "each line is there once, also of payments since the savepoint"


async def test_views_of_other_schemas_follow(schema: Schema, tmp_path: Path) -> None:
    path = tmp_path / "pays.jsonl"
    append(path, range(10))
    await Run(pipeline(JsonLines(path)), schema.url, keep_open=False).run()
    make_savepoint(schema.url, "wheel", "one")
    with psycopg.connect(schema.url, autocommit=True) as connection:
        connection.execute("CREATE SCHEMA report")
        connection.execute(
            "CREATE VIEW report.total WITH (security_barrier) AS "
            "SELECT sum(cents) AS c FROM wheel.total"
        )
        connection.execute("UPDATE wheel.total SET cents = 0")
        restore(schema.url, "wheel@one")
        assert connection.execute("SELECT c FROM report.total").fetchone() == (45,)
        options = "SELECT reloptions FROM pg_class WHERE oid = 'report.total'::regclass"
        assert connection.execute(options).fetchone() == (["security_barrier=true"],)
        connection.execute(
            "CREATE TABLE report.note (account integer REFERENCES wheel.total (account))"
        )
        with pytest.raises(UsageError, match="the foreign key note_account_fkey"):
            restore(schema.url, "wheel@one")
        connection.execute("DROP SCHEMA report CASCADE")


async def test_there_is_no_such_savepoint(schema: Schema) -> None:
    with pytest.raises(UsageError, match="there is no savepoint 'wheel@one'"):
        restore(schema.url, "wheel@one")
