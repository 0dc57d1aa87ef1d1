"""``millwheel spark run`` on Spark itself: `tests/spark/test_engine.py` has the rules."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import psycopg
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from millwheel.services.run import Run
from millwheel.spark.engine.moving import Moving
from millwheel.spark.engine.plan import planned
from millwheel.spark.engine.query import BatchDone, QueryRun
from millwheel.spark.engine.query_progress import StoredQuery
from millwheel.spark.engine.staged_results import Results
from millwheel.store.console.migrate import migrate
from tests.spark import engine_service
from tests.spark.by_command import by_command
from tests.support import spark_pipelines
from tests.support.spark_inputs import write_flights
from tests.support.spark_pipelines import FILE, FINAL


@pytest.mark.spark
@pytest.mark.soak
def test_who_takes_over_and_is_killed_takes_over_again(
    stateful: SparkSession,
    postgres_url: Callable[[int], str],
    directory: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Killed between the store's commit of the first batch and Spark's: the checkpoint has no state
    yet. The command is given again, the pipeline is moved back, and has the results of the engine;
    two operators, a clock, tables with and without a key."""
    url, file, target = (
        postgres_url(18),
        directory / "flights.jsonl",
        f"{engine_service.MODULE}:hours",
    )
    monkeypatch.setenv(FILE, str(file))
    monkeypatch.setitem(stateful.sparkContext.environment, FILE, str(file))
    write_flights(file, 600)
    lines = file.read_text().splitlines(keepends=True)
    file.write_text("".join(lines[:400]))
    planned.cache_clear()
    plan = planned(target)
    migrate(url, plan.pipeline.name)
    asyncio.run(Run(spark_pipelines.hours(), url, keep_open=True).run())
    checkpoint = str(directory / "checkpoint")
    moved = Moving(plan, url).to_spark(checkpoint, lambda *found: None)
    assert moved > 20
    file.write_text("".join(lines))

    stored = StoredQuery(url, plan.pipeline.name)
    options = {"store": url}
    results = Results(stored, plan.graph, options)
    results.prepare()
    given = {"rows": "1000", "keep_open": "false"}

    def killed(_: BatchDone) -> None:
        raise RuntimeError("killed")

    query = QueryRun(stateful, target, plan, stored, results, checkpoint, given, ends=True)
    with closing(results), pytest.raises(StreamingQueryException, match="killed"):
        query.take_over(options, killed)
    assert stored.load().batch == 0
    assert stored.load().may_have_start
    command = ["spark", "run", target, "--store", url, "--checkpoint", checkpoint]
    by_command(monkeypatch, *command, "--max-rows", "1000", "--keep-open", "--until-caught-up")
    assert "there already" in "".join(capsys.readouterr()), "the rows of the first batch"
    assert not stored.load().may_have_start
    by_command(monkeypatch, "spark", "return", target, "--store", url)
    with psycopg.connect(url) as connection:
        ((returned,),) = connection.execute("SELECT count(*) FROM flights.states").fetchall()
    assert returned > 5
    asyncio.run(Run(spark_pipelines.hours(), url).run())

    other = spark_pipelines.hours()
    other.name = "flights_by_engine"
    migrate(url, other.name)
    asyncio.run(Run(other, url).run())
    with psycopg.connect(url) as connection:
        found, expected, left = (
            connection.execute(text).fetchall()
            for text in (
                "SELECT origin, hour, flights FROM flights.airport_hour ORDER BY 1, 2",
                "SELECT origin, hour, flights FROM flights_by_engine.airport_hour ORDER BY 1, 2",
                "SELECT count(*) FROM flights.spark_start",
            )
        )
        connection.execute("DROP SCHEMA flights, flights_by_engine CASCADE")
    assert found == expected
    assert left == [(0,)]


@pytest.mark.soak
@pytest.mark.spark
def test_a_pipeline_on_spark_is_killed_and_goes_on(directory: Path) -> None:
    """The process of the command, which is given again after a kill."""
    said: list[str] = []
    wrong = engine_service.run(
        ["hours"], directory, kills=1, cluster=False, batch_rows=500, rows=1_500, seed=1,
        say=said.append,
    )  # fmt: skip
    assert not wrong, "\n".join(wrong)
    assert said[-1].endswith("equal")


@pytest.mark.soak
@pytest.mark.parametrize("cluster", [False, True])
def test_each_pipeline_on_spark_equals_the_engine(directory: Path, cluster: bool) -> None:
    """Drivers, and on a cluster executors, are killed amid batches."""
    assert not engine_service.run(
        list(FINAL), directory, kills=2, cluster=cluster, batch_rows=300, rows=4_000, seed=1,
        say=print
    )  # fmt: skip
