"""Workers over TCP on a real Postgres: the same answer, however many."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import psycopg
import pytest
from psycopg import sql

from millwheel.core.clock import SystemClock
from millwheel.errors import UsageError
from millwheel.runtime.process import tasks
from millwheel.services.hosting import unless
from millwheel.services.operating import Operator
from millwheel.services.worker import PipelineWorker
from millwheel.store.postgres.store import PostgresStore
from tests.support.store_sites import Schema
from tests.support.visit_files import pipeline, write


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


def minutes(schema: Schema) -> dict[tuple[str, datetime], int]:
    """What came of it."""
    with psycopg.connect(schema.url) as connection:
        rows = connection.execute(
            sql.SQL('SELECT "user", minute, visits FROM {}').format(
                sql.Identifier(schema.name, "minute")
            )
        ).fetchall()
    return {(user, at): visits for user, at, visits in rows}


@pytest.mark.parametrize(
    "workers", [pytest.param(1, marks=pytest.mark.soak), 2, pytest.param(3, marks=pytest.mark.soak)]
)
async def test_workers_come_to_the_batch_answer(
    workers: int, new_schema: Callable[[int], Schema], tmp_path: Path
) -> None:
    schema = new_schema(18)
    files, totals = write(tmp_path, 4000)
    stop = asyncio.Event()
    async with asyncio.timeout(90):
        done = await asyncio.gather(
            *(
                PipelineWorker(pipeline(schema.name, files), schema.url, until_done=True).run(stop)
                for _ in range(workers)
            )
        )
    assert all(done)
    assert minutes(schema) == totals


@pytest.mark.soak
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
            asyncio.create_task(PipelineWorker(made, schema.url, until_done=True).run(stop))
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
