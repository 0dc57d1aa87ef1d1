"""The table of hours by a query equals the one by a class."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest

from examples import flights
from examples.flights import query
from millwheel import Pipeline
from millwheel.services.run import Run
from millwheel.store.console.migrate import migrate
from tests.support.flights_pages import SLICE, cut


@pytest.mark.process
async def test_the_query_gives_the_table_of_the_class(
    postgres_url: Callable[[int], str], tmp_path: Path
) -> None:
    url, files = postgres_url(18), cut(SLICE, tmp_path)
    found = []
    for build in (flights.build, query.build):
        pipeline: Pipeline = build(files.flights)
        migrate(url, pipeline.name)
        await Run(pipeline, url).run()
        with psycopg.connect(url) as connection:
            rows = connection.execute(
                f"SELECT * FROM {pipeline.name}.airport_hour ORDER BY origin, hour".encode()
            ).fetchall()
            connection.execute("SET client_min_messages = warning")
            connection.execute(f"DROP SCHEMA {pipeline.name} CASCADE".encode())
        found.append(rows)
    by_class, by_query = found
    assert len(by_class) > 50
    assert by_query == by_class
