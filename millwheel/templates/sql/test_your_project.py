"""The queries in memory, under a clock that stands still: no server, no file, no sleeping."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from millwheel import Pipeline
from millwheel.testing import Harness, advance, assert_exactly_once, inject

START = datetime(2024, 1, 1, tzinfo=UTC)

pipeline = Pipeline("your_project")
pipeline.sql(Path(__file__).with_name("your_project.sql").read_text("utf-8"))
VISITS, STAYS = pipeline.graph().streams["visits"], pipeline.graph().streams["stays"]


def visit(second: int, visitor: str, page: str) -> Any:
    at = START + timedelta(seconds=second)
    return VISITS.value_type(at=at, visitor=visitor, page=page)


def stay(second: int, visits: int, first_page: str, last_page: str) -> Any:
    began = START + timedelta(seconds=second)
    return STAYS.value_type(
        visitor="ann", began=began, visits=visits, first_page=first_page, last_page=last_page
    )


def test_visits_are_counted_by_page_and_minute() -> None:
    async def run() -> None:
        async with Harness(pipeline) as harness:
            await harness.inject(
                VISITS, visit(1, "ann", "/"), visit(2, "bob", "/"), visit(50, "ann", "/")
            )
            assert harness.rows("minutes") == []  # the minute is not over
            await harness.advance(VISITS, START + timedelta(minutes=1))
            assert harness.rows("minutes") == [("/", START, 3, 2)]

    asyncio.run(run())


def test_a_stay_ends_after_two_minutes_whichever_commit_crashes() -> None:
    inputs = [
        inject(VISITS, visit(0, "ann", "/")),
        inject(VISITS, visit(90, "ann", "/tea")),
        inject(VISITS, visit(300, "ann", "/")),
        advance(VISITS, START + timedelta(minutes=10)),
    ]
    expected = {STAYS: [stay(0, 2, "/", "/tea"), stay(300, 1, "/", "/")]}
    asyncio.run(assert_exactly_once(pipeline, inputs, expected))
