"""``--engine spark`` without Java: the product's source, operators and tables, on a stand-in for Spark's operator."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import sql

from examples.nexmark.options import Options
from examples.nexmark.sources import write
from millwheel import Pipeline
from millwheel.services.run import Run
from millwheel.spark.engine.plan import SparkPlan, planned
from millwheel.spark.engine.running import deploy_on_spark
from millwheel.store.migrate import migrate
from tests.spark.stand_in import StandIn
from tests.support import spark_pipelines
from tests.support.spark_inputs import write_flights, write_lines
from tests.support.spark_pipelines import FILE, FINAL

MODULE = "tests.support.spark_pipelines"
FLIGHTS = 4_000


@dataclass(frozen=True)
class Place:
    """A server, and the ways to run a pipeline on it."""

    url: str

    def engine(self, name: str) -> str:
        """Run a pipeline with the engine, under another name."""
        pipeline: Pipeline = getattr(spark_pipelines, name)()
        pipeline.name += "_by_engine"
        migrate(self.url, pipeline.name)
        asyncio.run(Run(pipeline, self.url).run())
        return pipeline.name

    def stand_in(self, name: str, **options: Any) -> StandIn:
        """A pipeline, ready to run as Spark would."""
        planned.cache_clear()
        plan = planned(f"{MODULE}:{name}")
        migrate(self.url, plan.pipeline.name)
        asyncio.run(deploy_on_spark(plan, self.url, "/checkpoint"))
        return StandIn(f"{MODULE}:{name}", plan, self.url, **options)

    def rows(self, pipeline: str, table: str, columns: str = "*") -> list[tuple[Any, ...]]:
        text = sql.SQL("SELECT {} FROM {} AS t ORDER BY t::text").format(
            sql.SQL(columns), sql.Identifier(pipeline, table)
        )
        return sorted(self.query(text), key=repr)

    def query(self, text: sql.Composed) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.url) as connection:
            return connection.execute(text).fetchall()


@pytest.fixture
def place(postgres_url: Callable[[int], str]) -> Iterator[Place]:
    found = Place(postgres_url(18))
    yield found
    with psycopg.connect(found.url, autocommit=True) as connection:
        for name in FINAL:
            pipeline = getattr(spark_pipelines, name)().name
            for schema in (pipeline, f"{pipeline}_by_engine"):
                connection.execute(
                    sql.SQL("DROP SCHEMA IF EXISTS {} CASCADE").format(sql.Identifier(schema))
                )


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of all pipelines."""
    directory = tmp_path_factory.mktemp("inputs")
    write_flights(directory / "flights.jsonl", FLIGHTS)
    write_lines(directory / "lines.jsonl", 1_500)
    write(directory / "events", Options(events=6_000, rate=100, group=50))
    return directory


@pytest.fixture(autouse=True)
def environment(inputs: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Names the input of a pipeline."""
    monkeypatch.setenv("NEXMARK_DIR", str(inputs / "events"))
    monkeypatch.setenv("NEXMARK_LATENESS", "1")

    def choose(name: str) -> None:
        file = "lines.jsonl" if name == "words" else "flights.jsonl"
        monkeypatch.setenv(FILE, str(inputs / file))

    choose("hours")
    return choose


@pytest.mark.parametrize("rows", [300, 100_000])
@pytest.mark.parametrize("name", FINAL)
def test_final_rows_are_those_of_the_engine(
    name: str, rows: int, place: Place, environment: Callable[[str], None]
) -> None:
    environment(name)
    engine = place.engine(name)
    stand_in = place.stand_in(name, rows=rows)
    stand_in.run()
    pipeline = getattr(spark_pipelines, name)().name
    for table, columns in FINAL[name].items():
        expected = place.rows(engine, table, columns)
        assert len(expected) > 5
        assert place.rows(pipeline, table, columns) == expected


def test_plan_is_by_levels() -> None:
    plan = SparkPlan.of(spark_pipelines.words())
    assert plan.levels["lines_injector"] == 0
    assert plan.levels["lines_by_id"] == 1
    assert plan.depth == 4
