"""The project's tests, with millwheel's testing kit."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

from millwheel.testing import Harness, advance, assert_exactly_once, frame, inject

from .model import ALARMS, JOURNEYS, LIMITS, PARCELS, SCANS, Alarm, Journey, Limit, Parcel, Scan
from .pipeline import build
from .steps import Pager

NOON = datetime(2024, 5, 1, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)
LETTER = Parcel("p1", "north", NOON, 20)


async def watched() -> list[Alarm]:
    async with Harness(build(Pager()), start=NOON) as harness:
        await harness.inject(LIMITS, Limit("north", 2))
        await harness.inject(PARCELS, LETTER)
        assert harness.produced(ALARMS) == []
        for stream in (PARCELS, SCANS, LIMITS):
            await harness.advance(stream, NOON + 3 * HOUR)
        states: list[dict[str, object]] = harness.states("watch")
        assert [row["depot"] for row in states] == ["north"]
        assert len(frame(harness.rows("alarms"), ["number", "depot", "since", "s", "n"])) == 1
        return harness.produced(ALARMS)


def test_a_parcel_that_is_not_scanned_gets_an_alarm() -> None:
    assert asyncio.run(watched()) == [Alarm("p1", "north", NOON)]


def test_each_journey_is_counted_once() -> None:
    scan = Scan("p1", "south", NOON + HOUR)
    steps = [inject(PARCELS, LETTER), inject(SCANS, scan), advance(SCANS, NOON + 2 * HOUR)]
    expected = {JOURNEYS: [Journey("p1", "south", 3600.0)]}
    asyncio.run(assert_exactly_once(build(Pager()), steps, expected, max_crashes=4))
