"""Switches between two pipelines that both read a growing input: no reader sees fewer rows."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import psycopg
import pytest

from millwheel import JsonLines, Pipeline, Settings, Stream, Table
from millwheel.computations import Windowed, count
from millwheel.services.run import Run
from millwheel.store.console.administration import pause
from millwheel.store.console.migrate import migrate
from millwheel.store.copies.publishing import publish
from millwheel.store.copies.switching import Takeover, switch
from millwheel.windows import Pane, Tumbling
from tests.support.store_sites import Schema

pytestmark = pytest.mark.newest

BEGIN = datetime(2024, 1, 1, tzinfo=UTC)
NAMES = ("wheel", "wheel2")
SWITCHES = 4


class Visit(msgspec.Struct):
    at: datetime
    user: int


class SecondRow(msgspec.Struct):
    user: str
    at: datetime
    visits: int


def second(pane: Pane[int]) -> SecondRow:
    return SecondRow(str(pane.key), pane.start, pane.value)


def visits_by_second(name: str, path: Path) -> Pipeline:
    visits, seconds = Stream("visits", Visit), Stream("seconds", Pane[int])
    made = Pipeline(name, settings=replace(Settings(), intervals=4))
    made.inject(visits, JsonLines(path, follow=True), timestamp=lambda visit: visit.at)
    made.add(Windowed(Tumbling(seconds=1), count, to=seconds), visits.by(lambda visit: visit.user))
    made.sink(seconds, Table("second", SecondRow, key=("user", "at")), row=second)
    return made


@contextmanager
def beside(*works: threading.Thread, ends: threading.Event) -> Iterator[None]:
    for work in works:
        work.start()
    try:
        yield
    finally:
        ends.set()
        for work in works:
            work.join()


def append(path: Path, ends: threading.Event) -> None:
    """800 rows a second, of four seconds of event time."""
    number = 0
    while not ends.wait(0.05):
        with path.open("ab") as file:
            for _ in range(40):
                at = BEGIN + timedelta(milliseconds=5 * number)
                file.write(msgspec.json.encode(Visit(at, number % 50)) + b"\n")
                number += 1


def read(url: str, counts: list[int], ends: threading.Event) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        while not ends.is_set():
            found = connection.execute('SELECT count(*) FROM "out".second').fetchall()
            counts.append(found[0][0])


async def test_counts_never_fall_while_both_run(schema: Schema, tmp_path: Path) -> None:
    path, counts, ends, stop = tmp_path / "visits.jsonl", [0], threading.Event(), asyncio.Event()
    attempts = []
    path.touch()
    migrate(schema.url, "wheel2")
    running = [
        asyncio.create_task(Run(visits_by_second(name, path), schema.url).run(stop))
        for name in NAMES
    ]
    with beside(threading.Thread(target=append, args=(path, ends)), ends=ends):
        async with asyncio.timeout(60):
            for name in NAMES:
                while not await asyncio.to_thread(has_rows, schema.url, name):  # noqa: ASYNC110
                    await asyncio.sleep(0.1)
        await asyncio.to_thread(publish, schema.url, "wheel", "out")
        with beside(threading.Thread(target=read, args=(schema.url, counts, ends)), ends=ends):
            for number in range(SWITCHES):
                names = NAMES if number % 2 == 0 else NAMES[::-1]
                pause(schema.url, names[1])
                await asyncio.sleep(1.5)  # it falls behind
                resuming = threading.Timer(0.5, pause, (schema.url, names[1]), {"paused": False})
                resuming.start()
                done = await asyncio.to_thread(switch, schema.url, Takeover(*names))
                resuming.join()
                attempts.append(done.attempts)
    stop.set()
    await asyncio.gather(*running)
    assert min(attempts) > 1
    assert len(counts) > 100
    assert counts == sorted(counts)
    assert counts[-1] > counts[1]


def has_rows(url: str, name: str) -> bool:
    with psycopg.connect(url) as connection:
        try:
            found = connection.execute(f"SELECT count(*) FROM {name}.second").fetchall()
        except psycopg.errors.UndefinedTable:
            return False
    return bool(found[0][0] > 0)
