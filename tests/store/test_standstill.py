"""A switch at a standstill: each result leaves the store once, by the one pipeline or the other."""

from __future__ import annotations

import asyncio
import itertools
import json
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import psycopg
import pytest
from psycopg import sql

from millwheel import JsonLines, JsonLinesFiles, Pipeline, Settings, Stream, Table
from millwheel.errors import UsageError
from millwheel.services.run import Run
from millwheel.store.console.administration import pause
from millwheel.store.console.migrate import migrate
from millwheel.store.copies.publishing import publish
from millwheel.store.copies.standstill import switch_at_standstill
from millwheel.store.copies.switching import Takeover, switch
from tests.support.store_sites import Schema

pytestmark = pytest.mark.newest

BEGIN = datetime(2024, 1, 1, tzinfo=UTC)
NAMES = ("wheel", "wheel2")
SETTINGS = replace(Settings(), lease_seconds=6.0, intervals=2)
"""Workers notice a pause before they notice that outputs are turned on or off."""


class Visit(msgspec.Struct):
    at: datetime
    number: int


OUTPUT = ("sink: visits → files",)

PAUSED = "SELECT bool_or(paused) FROM {}"

VISITS = Stream("visits", Visit)


def visits_pipeline(name: str, directory: Path, *, source: str = "visits.jsonl") -> Pipeline:
    made = Pipeline(name, settings=SETTINGS)
    made.inject(
        VISITS,
        JsonLines(directory / source, follow=True),
        timestamp=lambda visit: visit.at,
        lateness=timedelta(seconds=1),
    )
    made.sink(VISITS, Table("visits_seen", Visit, key=("number",)))
    made.sink(VISITS, JsonLinesFiles(directory / f"out_{name}"))
    return made


def append(directory: Path, numbers: range) -> None:
    with (directory / "visits.jsonl").open("ab") as file:
        for number in numbers:
            visit = Visit(BEGIN + timedelta(seconds=number), number)
            file.write(msgspec.json.encode(visit) + b"\n")


def delivered(directory: Path) -> Counter[tuple[str, int]]:
    """The pipeline and number of each line outside the store."""
    return Counter(
        (name, json.loads(line)["number"])
        for name in NAMES
        for path in (directory / f"out_{name}").rglob("*.jsonl")
        for line in path.read_text().splitlines()
    )


def are_delivered(directory: Path, name: str, rows: range) -> bool:
    return {(name, row) for row in rows} <= {*delivered(directory)}


def query(schema: Schema, text: str, name: str, table: str) -> Any:
    with psycopg.connect(schema.url, autocommit=True) as connection:
        place = sql.Identifier(name, table)
        cursor = connection.execute(sql.SQL(text).format(place))
        return cursor.fetchall()[0][0] if cursor.description else None


async def until(is_so: Callable[[], bool]) -> None:
    while not is_so():  # noqa: ASYNC110  # only the store knows
        await asyncio.sleep(0.05)


async def until_seen(schema: Schema, number: int, names: Sequence[str] = NAMES) -> None:
    """A pipeline makes its table when it starts."""
    for name in names:
        await until(partial(has_seen, schema, name, number))


def has_seen(schema: Schema, name: str, number: int) -> bool:
    is_made = f"SELECT to_regclass('{name}.visits_seen') IS NOT NULL FROM {{}}"
    if not query(schema, is_made, name, "alembic_version"):
        return False
    return bool(query(schema, "SELECT count(*) FROM {}", name, "visits_seen") >= number)


@asynccontextmanager
async def running(schema: Schema, *pipelines: Pipeline) -> AsyncIterator[None]:
    stop = asyncio.Event()
    tasks = [
        asyncio.create_task(Run(one, schema.url, keep_open=True).run(stop)) for one in pipelines
    ]
    await asyncio.sleep(0)
    try:
        async with asyncio.timeout(60):
            yield
    finally:
        stop.set()
        await asyncio.gather(*tasks)


class CountingReader:
    """Counts the rows of a published table in a loop."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._ends = threading.Event()
        self.counts: list[int] = []

    @contextmanager
    def reading(self) -> Iterator[None]:
        thread = threading.Thread(target=self._read)
        thread.start()
        try:
            yield
        finally:
            self._ends.set()
            thread.join()

    def _read(self) -> None:
        with psycopg.connect(self._url, autocommit=True) as connection:
            while not self._ends.is_set():
                rows = connection.execute('SELECT count(*) FROM "out".visits_seen').fetchall()
                self.counts.append(rows[0][0])


@pytest.fixture
def pair(schema: Schema, tmp_path: Path) -> Schema:
    """Two pipelines of which the second withholds its outputs; nothing has run."""
    migrate(schema.url, "wheel2")
    query(
        schema, "INSERT INTO {} (name, gc_watermark, withholds) VALUES ('wheel2', 0, true)",
        "wheel2", "pipeline",
    )  # fmt: skip
    (tmp_path / "visits.jsonl").touch()
    return schema


async def test_each_result_leaves_the_store_once(pair: Schema, tmp_path: Path) -> None:
    """Rows are appended while the sources are paused, too: they are read when they resume."""
    pipelines = [visits_pipeline(name, tmp_path) for name in NAMES]
    number = itertools.count()

    def write() -> range:
        first = 100 * next(number)
        append(tmp_path, rows := range(first, first + 100))
        return rows

    def write_while_paused(_: str) -> None:
        write()
        for name in NAMES:
            assert query(pair, PAUSED, name, "computation")

    write()
    async with running(pair, *pipelines):
        await until_seen(pair, 100)
        await asyncio.to_thread(publish, pair.url, "wheel", "out")
        for former, new in (NAMES, NAMES[::-1]):
            reader = CountingReader(pair.url)
            with reader.reading():
                done = await asyncio.to_thread(
                    switch_at_standstill, pair.url, Takeover(former, new), tell=write_while_paused
                )
            assert len(reader.counts) > 10
            assert reader.counts == sorted(reader.counts), "a reader saw fewer rows than before"
            assert [one.name for one in done.foreseen.names] == ["out.visits_seen"]
            last = write()
            await until_seen(pair, last.stop)
            await until(partial(are_delivered, tmp_path, new, last))
    found = Counter(row for _, row in delivered(tmp_path).elements())
    assert found == dict.fromkeys(range(last.stop), 1)
    assert len({name for name, _ in delivered(tmp_path)}) == 2


async def test_sources_that_were_paused_stay_so(pair: Schema, tmp_path: Path) -> None:
    """Both have read different rows: there is no same position before the input stops."""
    append(tmp_path, range(100))
    pipelines = [visits_pipeline(name, tmp_path) for name in NAMES]
    async with running(pair, *pipelines):
        await until_seen(pair, 100)
        await asyncio.to_thread(publish, pair.url, "wheel", "out")
        pause(pair.url, "wheel2")
        await asyncio.sleep(2)
        append(tmp_path, range(100, 200))
        await until_seen(pair, 200, ["wheel"])
        with pytest.raises(UsageError, match=r"have read .* up to different rows") as caught:
            await asyncio.to_thread(
                switch_at_standstill, pair.url, Takeover(*NAMES), wait_seconds=8.0
            )  # fmt: skip
        assert "nothing was changed" in str(caught.value)
        assert query(pair, PAUSED, "wheel2", "computation")
        assert not query(pair, PAUSED, "wheel", "computation")
        assert query(pair, "SELECT withholds FROM {}", "wheel2", "pipeline")


async def test_outputs_are_switched_if_nothing_is_published(pair: Schema, tmp_path: Path) -> None:
    append(tmp_path, range(100))
    async with running(pair, *(visits_pipeline(name, tmp_path) for name in NAMES)):
        await until_seen(pair, 100)
        done = await asyncio.to_thread(switch, pair.url, Takeover(*NAMES))
    assert done.foreseen.names == ()
    assert (done.foreseen.withheld, done.foreseen.delivered) == (OUTPUT, OUTPUT)
    withheld = [query(pair, "SELECT withholds FROM {}", name, "pipeline") for name in NAMES]
    assert withheld == [True, False]


async def test_other_sources_have_no_same_positions(pair: Schema, tmp_path: Path) -> None:
    (tmp_path / "others.jsonl").touch()
    async with running(
        pair,
        visits_pipeline("wheel", tmp_path),
        visits_pipeline("wheel2", tmp_path, source="others.jsonl"),
    ):
        await until_seen(pair, 0)
        await asyncio.to_thread(publish, pair.url, "wheel", "out")
        with pytest.raises(UsageError, match=r"read other sources \(visits_injector\)"):
            await asyncio.to_thread(switch_at_standstill, pair.url, Takeover(*NAMES))
