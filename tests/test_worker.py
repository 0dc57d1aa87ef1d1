"""Workers over TCP on a real Postgres: the same answer, however many."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import psycopg
import pytest
from psycopg import sql

from millwheel import JsonLines, Pipeline, Settings, Stream, Table
from millwheel.computations import Windowed, count
from millwheel.services.worker import Worker
from millwheel.windows import Pane, Tumbling
from tests.store_contract import Schema


class Visit(msgspec.Struct):
    at: datetime
    user: str


class Minute(msgspec.Struct, frozen=True):
    user: str
    minute: datetime
    visits: int


VISITS, MINUTES = Stream("visits", Visit), Stream("minutes", Pane[int])
SHARED = replace(Settings(), bundle_records=20, chunk_records=10, placement_seconds=0.2)


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
    with psycopg.connect(schema.url) as connection:
        rows = connection.execute(
            sql.SQL('SELECT "user", minute, visits FROM {}').format(
                sql.Identifier(schema.name, "minute")
            )
        ).fetchall()
    assert {(user, at): visits for user, at, visits in rows} == totals
