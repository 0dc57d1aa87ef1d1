"""The limits example: lines spread, limits by broadcast."""

from __future__ import annotations

import asyncio
import math
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

import msgspec
import pytest

from examples.limits import ALARMS, LIMITS, LINES, Alarm, Limit, Line, build, write
from millwheel.runtime.engine import Engine
from millwheel.services.worker import PipelineWorker
from millwheel.store.memory import MemoryStore
from millwheel.testing import Harness, advance, assert_exactly_once, inject
from tests.support.store_sites import Schema
from tests.support.values import at

V = TypeVar("V")


async def test_a_reading_is_held_against_the_limit_of_its_own_instant() -> None:
    await assert_exactly_once(
        build(),
        [
            inject(LINES, Line(at(5), "boiler/1 60")),
            inject(LINES, Line(at(25), "boiler/1 75")),
            inject(LINES, Line(at(15), "boiler/2 60")),
            inject(LINES, Line(at(25), "pump/1 99")),
            inject(LIMITS, Limit(at(0), "boiler", 70.0)),
            inject(LIMITS, Limit(at(10), "boiler", 50.0)),
            inject(LIMITS, Limit(at(20), "boiler", 80.0)),
            inject(LINES, Line(at(30), "boiler/2 81")),
            advance(LINES, at(100)),
            advance(LIMITS, at(100)),
        ],
        {ALARMS: [Alarm("boiler/2", at(15), 60.0, 50.0), Alarm("boiler/2", at(30), 81.0, 80.0)]},
        max_crashes=15,
    )


async def test_a_line_that_cannot_be_read_is_set_aside() -> None:
    async with Harness(build()) as harness:
        await harness.inject(LINES, Line(at(1), "boiler 1"), Line(at(1), "?"))
        assert len(harness.dead_letters) == 2


def batch_answer(directory: Path) -> set[tuple[str, datetime, float, float]]:
    """The alarms, computed from the files at once."""
    lines = read(directory / "lines.jsonl", Line)
    limits = read(directory / "limits.jsonl", Limit)
    alarms = set()
    for line in lines:
        sensor, value = line.text.split()[:2]
        kind = sensor.split("/")[0]
        held = [limit for limit in limits if limit.kind == kind and limit.since <= line.at]
        most = max(held, key=lambda limit: limit.since).most if held else math.inf
        if "/" in sensor and float(value) > most:
            alarms.add((sensor, line.at, float(value), most))
    return alarms


def read(path: Path, kind: type[V]) -> list[V]:
    return [msgspec.json.decode(row, type=kind) for row in path.read_bytes().splitlines()]


async def test_the_files_it_writes_come_to_the_batch_answer(tmp_path: Path) -> None:
    write(tmp_path)
    expected = batch_answer(tmp_path)
    assert len(expected) > 300
    store = MemoryStore("limits")
    engine = Engine(build(tmp_path), store)
    await engine.start()
    async with asyncio.timeout(60):
        await engine.run()
    await engine.stop()
    assert set(store.rows("alarm")) == expected
    assert len(store.dead_letters) == 25


@pytest.mark.newest
async def test_workers_on_postgres_come_to_the_batch_answer(schema: Schema, tmp_path: Path) -> None:
    write(tmp_path)
    stop = asyncio.Event()
    async with asyncio.timeout(120):
        done = await asyncio.gather(
            *(
                PipelineWorker(build(tmp_path, schema.name), schema.url, until_done=True).run(stop)
                for _ in range(2)
            )
        )
    assert all(done)
    rows = schema.query("SELECT sensor, at, value, most FROM {t}", t="alarm")
    assert {(sensor, at_.astimezone(UTC), *rest) for sensor, at_, *rest in rows} == batch_answer(
        tmp_path
    )
    (count,) = schema.query('SELECT count(DISTINCT "of") FROM {t}', t="state_of_watch_shared")
    assert count == (1,)
    assert schema.query("SELECT count(*) FROM {t}", t="state_of_watch_shared") == [(16,)]
