"""Workers over TCP on a real Postgres: the same answer, however many."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import psycopg
import pytest
from psycopg import sql

from millwheel import JsonLines, Pipeline, Settings, Stream, Table
from millwheel.clock import SystemClock
from millwheel.computations import Windowed, count
from millwheel.errors import UsageError
from millwheel.runtime.process import tasks
from millwheel.services.hosting import unless
from millwheel.services.operating import Operator
from millwheel.services.worker import Worker
from millwheel.store.postgres import PostgresStore
from millwheel.windows import Pane, Tumbling
from tests.support.store_sites import Schema


async def test_a_start_ends_when_asked_to_although_it_swallows_a_cancellation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As psycopg's wait for a statement does that was to end before it had begun."""
    monkeypatch.setattr(tasks, "PATIENCE_SECONDS", 0.0)  # it is real time
    stop, begun, swallowed = asyncio.Event(), asyncio.Event(), False

    async def stubborn() -> None:
        nonlocal swallowed
        begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            swallowed = True
        await asyncio.Event().wait()

    starting = asyncio.create_task(unless(stop, stubborn()))
    await begun.wait()
    stop.set()
    for _ in range(100):
        await asyncio.sleep(0)
    assert swallowed
    assert starting.done()
    assert starting.result() is False


class Visit(msgspec.Struct):
    at: datetime
    user: str


class Minute(msgspec.Struct, frozen=True):
    user: str
    minute: datetime
    visits: int


VISITS, MINUTES = Stream("visits", Visit), Stream("minutes", Pane[int])
SHARED = replace(
    Settings(), intervals=2, bundle_records=20, chunk_records=10, placement_seconds=0.2
)


def minute(pane: Pane[int]) -> Minute:
    return Minute(str(pane.key), pane.start, pane.value)


def pipeline(name: str, files: list[Path]) -> Pipeline:
    made = Pipeline(name, settings=SHARED)
    made.inject(
        VISITS, JsonLines(files), timestamp=lambda visit: visit.at, lateness=timedelta(seconds=1)
    )
    made.add(Windowed(Tumbling(minutes=1), count, to=MINUTES), VISITS.by(lambda visit: visit.user))
    made.sink(MINUTES, Table("minute", Minute, key=("user", "minute")), row=minute)
    return made


def write(directory: Path, number: int) -> tuple[list[Path], dict[tuple[str, datetime], int]]:
    """Visits in two files, and how many there are per user and minute."""
    begin = datetime(2024, 1, 1, tzinfo=UTC)
    totals: dict[tuple[str, datetime], int] = {}
    files = [directory / f"visits-{part}.jsonl" for part in range(2)]
    for part, path in enumerate(files):
        lines = []
        for n in range(part, number, 2):
            visit = Visit(begin + timedelta(seconds=n), f"user {n * 7 % 23}")
            lines.append(msgspec.json.encode(visit))
            name = (visit.user, visit.at.replace(second=0))
            totals[name] = totals.get(name, 0) + 1
        path.write_bytes(b"\n".join(lines) + b"\n")
    return files, totals


def minutes(schema: Schema) -> dict[tuple[str, datetime], int]:
    """What came of it."""
    with psycopg.connect(schema.url) as connection:
        rows = connection.execute(
            sql.SQL('SELECT "user", minute, visits FROM {}').format(
                sql.Identifier(schema.name, "minute")
            )
        ).fetchall()
    return {(user, at): visits for user, at, visits in rows}


@pytest.mark.parametrize("workers", [1, 2, 3])
async def test_workers_come_to_the_batch_answer(
    workers: int, new_schema: Callable[[int], Schema], tmp_path: Path
) -> None:
    schema = new_schema(18)
    files, totals = write(tmp_path, 4000)
    stop = asyncio.Event()
    async with asyncio.timeout(90):
        done = await asyncio.gather(
            *(
                Worker(pipeline(schema.name, files), schema.url, until_done=True).run(stop)
                for _ in range(workers)
            )
        )
    assert all(done)
    assert minutes(schema) == totals


async def test_intervals_are_cut_again_and_again_and_the_answer_stays(
    new_schema: Callable[[int], Schema], tmp_path: Path
) -> None:
    schema = new_schema(18)
    files, totals = write(tmp_path, 5000)
    made = pipeline(schema.name, files)
    stop = asyncio.Event()

    async def cut(store: PostgresStore) -> None:
        """Split the first interval of each computation, and merge it again, all along."""
        operator = Operator(store, SystemClock(), lambda line: None)
        while rows := (await store.read_placement()).intervals:
            for computation in {row.computation for row in rows if row.slot_to - row.slot_from > 1}:
                (lower, *_) = (row for row in rows if row.computation == computation)
                await operator.split(lower.id, None, 60)
                parts = [
                    row
                    for row in (await store.read_placement()).intervals
                    if row.computation == computation
                ]
                await operator.merge(parts[0].id, parts[1].id, 60)

    async with asyncio.timeout(120):
        workers = [
            asyncio.create_task(Worker(made, schema.url, until_done=True).run(stop))
            for _ in range(2)
        ]
        store = await PostgresStore(schema.url, schema.name).open()
        while len([w for w in (await store.read_placement()).workers if w.address]) < 2:
            assert not any(worker.done() for worker in workers)
        cutting = asyncio.create_task(cut(store))
        assert all([await worker for worker in workers])
        cutting.cancel()
        with contextlib.suppress(asyncio.CancelledError, UsageError):  # nobody is left to do it
            await cutting
        await store.close()
    assert minutes(schema) == totals
    with psycopg.connect(schema.url) as connection:
        rows = connection.execute(
            sql.SQL("SELECT what FROM {}").format(sql.Identifier(schema.name, "placement_events"))
        ).fetchall()
    happened = [what for (what,) in rows]
    assert happened.count("split") >= 2
    assert happened.count("merge") >= 1
