"""The programs of the pages about Spark run as they stand, with a session and a pipeline."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from millwheel import Pipeline
from millwheel.client import Client
from millwheel.runtime.engine import Engine
from millwheel.spark import Job, snapshot
from tests.support.code_blocks import run_block
from tests.support.pasted_pages import blocks
from tests.support.sessions import until
from tests.support.store_sites import PostgresSite

pytestmark = [pytest.mark.spark, pytest.mark.parametrize("schema", [18], indirect=True)]

PAGES = Path(__file__).parents[2] / "docs/howto/connect"
AT = datetime(2024, 5, 1, tzinfo=UTC)


class Guide:
    """Programs of pages, which share their names, the store and the directory of a test.

    Spark does not learn that the test has changed its directory, so the pages name ``/data``.
    """

    def __init__(self, site: PostgresSite, directory: Path) -> None:
        self.site = site
        self.directory = directory
        self.names: dict[str, Any] = {}

    async def run(self, page: str, language: str) -> None:
        """Run the blocks of a language."""
        schema, path = self.site.schema, PAGES / f"{page}.md"
        found = [block.text for block in blocks(path) if block.language == language]
        for text in found:
            for written, meant in ("postgresql://…", schema.url), ("shop", schema.name):
                text = text.replace(f'"{written}"', f'"{meant}"')
            text = text.replace('"/data', f'"{self.directory}')
            await run_block(text, self.names, path)

    @asynccontextmanager
    async def working(self) -> AsyncIterator[Client]:
        pipeline = self.names["pipeline"]
        assert isinstance(pipeline, Pipeline)
        engine = Engine(pipeline, self.site.store)
        await engine.start()
        work = asyncio.create_task(engine.run())
        async with Client(self.site.schema.name, self.site.schema.url) as client:
            yield client
        await engine.stop()
        await asyncio.gather(work, return_exceptions=True)

    async def count(self, table: str, rows: int) -> None:
        async def are_there() -> bool:
            return await self.site.query("SELECT count(*) FROM {t}", t=table) == [(rows,)]

        await until(are_there)


async def test_a_table_is_read_reported_and_followed(
    postgres: PostgresSite, spark: SparkSession, tmp_path: Path
) -> None:
    guide = Guide(postgres, tmp_path)
    await guide.run("spark-follow", "python")
    names, url = guide.names, postgres.schema.url
    async with guide.working() as client:
        orders = [names["Order"](customer, 100, AT) for customer in ("ann", "bob", "ann")]
        await client.send_all(names["ORDERS"], orders)
        await guide.count("order_log", 3)
    await guide.run("spark-snapshot", "py")
    assert {tuple(row) for row in names["totals"]} == {("ann", 200), ("bob", 100)}
    with snapshot(url, postgres.schema.name) as held:
        names["best_customers"](Job(spark, tmp_path, held, {"store": url}))
    (best,) = (tmp_path / "best").glob("*.csv")
    assert best.read_text() == "ann,200\nbob,100\n"

    await guide.run("spark-follow", "py")
    query = names["query"]
    await asyncio.to_thread(query.processAllAvailable)
    query.stop()
    assert spark.read.parquet(str(tmp_path / "orders")).count() == 3


async def test_rows_are_sent(postgres: PostgresSite, spark: SparkSession, tmp_path: Path) -> None:
    guide = Guide(postgres, tmp_path)
    await guide.run("spark-write", "python")
    async with guide.working():
        await guide.run("spark-write", "py")
        await guide.count("score_log", 1)
    rows = await postgres.query("SELECT customer, month, score FROM {t}", t="score_log")
    assert rows == [("ann", "2024-05", 0.7)]
