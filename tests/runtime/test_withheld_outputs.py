"""Outputs of a fork: nothing leaves the store until an operator turns that on (decision 86)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import psycopg
import pytest
from structlog.testing import capture_logs

from millwheel import (
    Bundles,
    Computation,
    Console,
    Context,
    JsonLines,
    JsonLinesFiles,
    Pipeline,
    Record,
    Settings,
    Stream,
    Table,
)
from millwheel.cli.status_text import print_status
from millwheel.context import BundleContext
from millwheel.errors import OutputError
from millwheel.runtime.engine import Engine
from millwheel.services.run import Run, Summary
from millwheel.store.address import StoreAddress
from millwheel.store.console.inspection import PipelineStatus, inspect
from millwheel.store.console.migrate import migrate
from millwheel.store.console.outputs import delivering_origin, switch_outputs
from millwheel.store.copies.forks import fork
from millwheel.store.memory.store import MemoryStore
from millwheel.store.port.deploy import CopyState
from tests.support.pipelines import QUICK, script
from tests.support.store_sites import Schema
from tests.support.values import ITEMS, items, time_of

pytestmark = pytest.mark.newest

SETTINGS = replace(Settings(), intervals=1, lease_seconds=1.0)


class Number(msgspec.Struct):
    n: int


NUMBERS = Stream("numbers", Number)


class Books:
    """A database outside, which keeps the last number of each scope, whichever pipeline it is of:
    the origin and its fork have the same scopes."""

    def __init__(self) -> None:
        self.rows: list[tuple[str, int]] = []
        """The pipeline, and the number that it has written."""
        self.last: dict[int, int] = {}
        self.names: set[str] = set()

    def written_by(self, pipeline: str) -> list[int]:
        return [n for name, n in self.rows if name == pipeline]

    def write(self, pipeline: str, bundle: Any, records: Sequence[Record[Number]]) -> None:
        if self.last.get(bundle.scope, 0) < bundle.number:
            self.last[bundle.scope] = bundle.number
            self.rows += [(pipeline, record.value.n) for record in records]


class Ledger:
    """A sink of the user's own."""

    bundles, key = Bundles(records=10, seconds=0.0), None

    def __init__(self, books: Books) -> None:
        self._books = books

    def describe(self) -> dict[str, Any]:
        return {"ledger": True}

    async def deliver(self, records: Sequence[Record[Any]], ctx: BundleContext[Any, Any]) -> None:
        name = (await ctx.store_id()).partition(".")[0]
        self._books.names.add(ctx.own_name("books"))
        self._books.write(name, ctx.bundle_id, records)

    async def close(self) -> None: ...


class ToBooks(Computation[Number, None]):
    """Numbered bundles of a computation."""

    bundles = Bundles(records=10, seconds=0.0)

    def __init__(self, books: Books) -> None:
        self._books = books

    async def process_bundle(self, records: Sequence[Record[Number]], ctx: Context[None]) -> None:
        assert isinstance(ctx, BundleContext)
        name = (await ctx.store_id()).partition(".")[0]
        self._books.write(name, ctx.bundle_id, records)


class Shop:
    """A pipeline with an output of each kind, and the places that they write to."""

    def __init__(self, directory: Path, url: str, capture: pytest.CaptureFixture[str]) -> None:
        self.directory = directory
        self.url = url
        self.sold, self.made = Books(), Books()
        self._capture = capture

    @property
    def out(self) -> Path:
        return self.directory / "out"

    def pipeline(self) -> Pipeline:
        made = Pipeline("wheel", settings=SETTINGS)
        source = JsonLines(self.directory / "numbers.jsonl")
        made.inject(NUMBERS, source, timestamp=lambda value: datetime.fromtimestamp(value.n, UTC))
        made.sink(NUMBERS, Table("kept", Number))
        made.sink(NUMBERS, JsonLinesFiles(self.out))
        made.sink(NUMBERS, Console("line: "))
        made.sink(NUMBERS, Ledger(self.sold))
        made.add(ToBooks(self.made), NUMBERS.by(lambda _: ""))
        return made

    def write(self, until: int) -> None:
        lines = [msgspec.json.encode(Number(n)) for n in range(1, until + 1)]
        (self.directory / "numbers.jsonl").write_bytes(b"\n".join(lines) + b"\n")

    async def run(self, name: str, until: int) -> Summary:
        self.write(until)
        pipeline = self.pipeline().named(name)
        return await Run(pipeline, self.url, keep_open=True).run()

    def printed(self) -> list[int]:
        """Numbers on the terminal since the last call."""
        lines = self._capture.readouterr().out.splitlines()
        return [msgspec.json.decode(line[6:])["n"] for line in lines if line.startswith("line: ")]

    def lines(self, inside: str = "") -> list[int]:
        found = []
        for part in sorted((self.out / inside).glob("part-*.jsonl")):
            found += [msgspec.json.decode(line)["n"] for line in part.read_bytes().splitlines()]
        return found

    def kept(self, name: str) -> list[int]:
        with psycopg.connect(self.url) as connection:
            rows = connection.execute(f"SELECT n FROM {name}.kept ORDER BY n".encode())
            return [n for (n,) in rows]

    def status(self, name: str) -> PipelineStatus:
        with inspect(self.url) as inspection:
            return inspection.status(name)

    def come_back(self, *names: str) -> None:
        """As after a crash of the server: numbers of bundles jump."""
        with psycopg.connect(self.url) as connection:
            for name in names:
                connection.execute(f"TRUNCATE {name}.incarnation".encode())

    def withheld(self, name: str) -> dict[str, int]:
        return {
            one.name: one.counters["withheld"]
            for one in self.status(name).computations
            if "withheld" in one.counters
        }


@pytest.fixture
def shop(schema: Schema, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Shop:
    return Shop(tmp_path, schema.url, capsys)


def span(first: int, last: int) -> list[int]:
    return list(range(first, last + 1))


STEPS = ["numbers_to_console", "numbers_to_files", "numbers_to_ledger", "to_books"]


async def test_a_fork_writes_its_tables_and_nothing_outside(shop: Shop) -> None:
    await shop.run("wheel", 40)
    fork(shop.url, "wheel", "wheel2")
    shop.printed()
    with capture_logs() as logs:
        await shop.run("wheel2", 60)
    assert shop.kept("wheel2") == span(1, 60)
    assert shop.printed() == []
    assert shop.lines() == span(1, 40)
    assert len(list(shop.out.iterdir())) == 1
    assert shop.sold.rows == shop.made.rows == [("wheel", n) for n in span(1, 40)]
    assert shop.withheld("wheel2") == dict.fromkeys(STEPS, 20)
    assert shop.withheld("wheel") == {}
    (warning,) = [one for one in logs if one["event"] == "outputs_withheld"]
    assert sorted(warning["steps"]) == [
        "numbers_to_ledger",
        "sink: numbers → console",
        "sink: numbers → files",
        "to_books",
    ]
    assert warning["copy_of"] == "wheel"
    assert "millwheel outputs wheel2 on" in warning["what_to_do"]
    print_status(shop.status("wheel2"), StoreAddress.parse(shop.url))
    printed = shop._capture.readouterr().out
    assert "withholds what leaves the store (a copy of wheel)" in printed
    assert "millwheel outputs wheel2 on" in printed
    assert "20 withheld" in printed


async def test_outputs_that_are_turned_on_begin_with_later_records(shop: Shop) -> None:
    """Under names of the fork's own, and above all numbers that the origin has given since: a
    database outside that knows scopes alone takes its bundles."""
    await shop.run("wheel", 40)
    fork(shop.url, "wheel", "wheel2")
    shop.come_back("wheel", "wheel2")
    await shop.run("wheel2", 60)
    await shop.run("wheel", 100)  # with higher numbers than those of the fork
    shop.printed()
    found = switch_outputs(shop.url, "wheel2", on=True)
    assert found.changed
    await shop.run("wheel2", 120)
    later = span(61, 120)
    assert shop.printed() == later
    assert shop.kept("wheel2") == span(1, 120)
    assert shop.sold.written_by("wheel2") == shop.made.written_by("wheel2") == later
    assert shop.sold.written_by("wheel") == span(1, 100)
    assert shop.sold.names == {"books", "books.wheel2"}
    assert shop.lines() == span(1, 100)
    assert shop.lines("_as_wheel2") == later
    assert shop.withheld("wheel2") == dict.fromkeys(STEPS, 20)
    await shop.run("wheel2", 130)
    assert shop.lines("_as_wheel2") == span(61, 130)


async def test_a_pause_of_outputs_leaves_a_gap_and_nothing_else(shop: Shop) -> None:
    """In a pipeline that is no copy, too; the part file continues where it was."""
    await shop.run("wheel", 20)
    switch_outputs(shop.url, "wheel", on=False)
    await shop.run("wheel", 30)
    switch_outputs(shop.url, "wheel", on=True)
    await shop.run("wheel", 50)
    assert shop.lines() == [*span(1, 20), *span(31, 50)]
    assert shop.sold.written_by("wheel") == [*span(1, 20), *span(31, 50)]
    assert shop.made.written_by("wheel") == [*span(1, 20), *span(31, 50)]
    assert shop.kept("wheel") == span(1, 50)


async def test_the_same_code_under_another_name_has_places_of_its_own(shop: Shop) -> None:
    await shop.run("wheel", 20)
    migrate(shop.url, "wheel3")
    await shop.run("wheel3", 30)
    assert shop.lines() == span(1, 20)
    assert shop.lines("_as_wheel3") == span(1, 30)
    assert shop.sold.names == {"books", "books.wheel3"}


async def test_a_pipeline_does_not_cut_the_lines_of_another_one(shop: Shop) -> None:
    """Two pipelines with one directory: both have an interval 3."""
    await shop.run("wheel", 20)
    other = shop.pipeline()
    other.name = other.name_in_code = "other"
    migrate(shop.url, "other")
    with pytest.raises(OutputError, match="lines of the pipeline 'wheel' of another store"):
        await Run(other, shop.url, keep_open=True).run()
    assert shop.lines() == span(1, 20)


async def test_an_origin_that_delivers_is_known(shop: Shop) -> None:
    await shop.run("wheel", 20)
    assert delivering_origin(shop.url, "wheel") is None
    fork(shop.url, "wheel", "wheel2")
    origin = delivering_origin(shop.url, "wheel2")
    assert origin is not None
    assert (origin.name, origin.workers) == ("wheel", 0)
    switch_outputs(shop.url, "wheel", on=False)
    assert delivering_origin(shop.url, "wheel2") is None


# -- while it runs, in memory ---------------------------------------------------------------


async def until(found: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not found():  # noqa: ASYNC110 - an engine that starts over has no event
            await asyncio.sleep(0.01)


async def test_workers_that_run_notice_it(capsys: pytest.CaptureFixture[str]) -> None:
    store = MemoryStore()
    store.tables.copied = CopyState("shop", withholds=True)
    steps = script(ITEMS, items(10))
    pipeline = Pipeline("items", settings=replace(QUICK, lease_seconds=0.6))
    pipeline.inject(ITEMS, steps, timestamp=time_of)
    pipeline.sink(ITEMS, Console("line: "))
    engine = Engine(pipeline, store)
    await engine.start()
    await engine.run(until_done=True)
    assert "line: " not in capsys.readouterr().out
    worker = engine.worker
    with capture_logs() as logs:
        store.tables.copied = CopyState("shop", withholds=False)
        await until(lambda: engine.started and not engine.env.copied.withholds)
    assert [one["event"] for one in logs].count("outputs_switched") == 1
    assert (engine.worker, engine.failure) == (worker, None)
    await engine.stop()
    await store.close()
