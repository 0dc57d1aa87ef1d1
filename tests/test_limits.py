"""The limits example: lines spread, limits by broadcast."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path

import msgspec

from examples.limits import ALARMS, LIMITS, LINES, Alarm, Limit, Line, build, write
from millwheel.runtime.engine import Engine
from millwheel.store.memory import MemoryStore
from millwheel.testing import Harness, advance, assert_exactly_once, inject
from tests.test_runtime_world import at


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


async def test_the_files_it_writes_come_to_the_batch_answer(tmp_path: Path) -> None:
    write(tmp_path)
    lines = [
        msgspec.json.decode(row, type=Line)
        for row in (tmp_path / "lines.jsonl").read_bytes().splitlines()
    ]
    limits = [
        msgspec.json.decode(row, type=Limit)
        for row in (tmp_path / "limits.jsonl").read_bytes().splitlines()
    ]
    expected = set()
    for line in lines:
        sensor, value = line.text.split()[:2]
        kind = sensor.split("/")[0]
        held = [limit for limit in limits if limit.kind == kind and limit.since <= line.at]
        if held and float(value) > (most := max(held, key=lambda limit: limit.since).most):
            expected.add((sensor, line.at, float(value), most))
    assert len(expected) > 1000
    store = MemoryStore("limits")
    engine = Engine(build(tmp_path), store)
    await engine.start()
    async with asyncio.timeout(60):
        await engine.run()
    await engine.stop()
    assert set(store.rows("alarm")) == expected
    assert len(store.dead_letters) == 100
    assert max(line.at for line in lines) - min(line.at for line in lines) < timedelta(days=1)
