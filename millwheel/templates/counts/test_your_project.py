"""The pipeline in memory, under a clock that stands still: no server, no file, no sleeping."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

from millwheel.testing import Harness, advance, assert_exactly_once, inject

from your_project import LATE, SEARCHES, TRENDS, Search, Trend, Word, pipeline

START = datetime(2024, 1, 1, tzinfo=UTC)


def search(second: int, query: str) -> Search:
    return Search(START + timedelta(seconds=second), query)


def test_each_search_counts_once_whichever_commit_crashes() -> None:
    inputs = [
        inject(SEARCHES, search(1, "black cat")),
        inject(SEARCHES, search(2, "black cat")),
        advance(SEARCHES, START + timedelta(minutes=2)),
    ]
    expected = {TRENDS: [Trend("black cat", 1), Trend("black cat", 2)]}
    asyncio.run(assert_exactly_once(pipeline, inputs, expected))


def test_a_minute_is_counted_when_event_time_has_passed_it() -> None:
    async def run() -> None:
        async with Harness(pipeline) as harness:
            await harness.inject(SEARCHES, search(1, "cat"), search(59, "black cat"))
            assert harness.rows("minutes") == []
            await harness.inject(SEARCHES, search(75, "owl"))  # 75 - 10 seconds: the minute is over
            assert sorted(harness.rows("minutes")) == [("black", START, 1), ("cat", START, 2)]

    asyncio.run(run())


def test_a_word_that_comes_too_late_is_kept_apart() -> None:
    async def run() -> None:
        async with Harness(pipeline) as harness:
            await harness.inject(SEARCHES, search(75, "owl"))
            await harness.inject(SEARCHES, search(5, "cat"))
            assert harness.produced(LATE) == [Word("cat", START + timedelta(seconds=5))]

    asyncio.run(run())
