"""A file of SQL by the engine, by classes on Spark, and as Spark's own SQL: the same rows.

The lateness covers the disorder of the input, so no record is late on any of them: the watermark
moves by batches on Spark.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import sql
from pyspark.sql import SparkSession

from millwheel.cli.target import load_pipeline
from millwheel.errors import UsageError
from millwheel.services.run import Run
from millwheel.spark.engine.plan import planned
from millwheel.spark.engine.running import deploy_on_spark
from millwheel.spark.engine.targets import shipped_target
from millwheel.spark.queries.query_plan import QueryPlan
from millwheel.store.console.migrate import migrate
from tests.spark.by_command import by_command
from tests.spark.stand_in import StandIn
from tests.support.spark_queries import AS_SQL, BY_CLASSES, SOURCE, write_payments


class Files:
    """Files of SQL over one input, and the rows that they make.

    Args:
        parts: the parts of the file, by table.
    """

    def __init__(self, directory: Path, url: str, parts: dict[str, str]) -> None:
        self._directory = directory
        self._url = url
        self._parts = parts
        self.names: list[str] = []

    def written(self, name: str) -> str:
        path = self._directory / f"{name}.sql"
        source = SOURCE.replace("{path}", str(self._directory / "payments.jsonl"))
        path.write_text(source + "".join(self._parts.values()))
        migrate(self._url, name)
        self.names.append(name)
        return str(path)

    def rows(self, name: str) -> dict[str, list[str]]:
        found = {}
        with psycopg.connect(self._url) as connection:
            for table in self._parts:
                text = sql.SQL("SELECT t::text FROM {} AS t").format(sql.Identifier(name, table))
                found[table] = sorted(row for (row,) in connection.execute(text))
        return found

    def by_engine(self, name: str) -> dict[str, list[str]]:
        asyncio.run(Run(load_pipeline(self.written(name)), self._url).run())
        return self.rows(name)

    def drop(self) -> None:
        with psycopg.connect(self._url, autocommit=True) as connection:
            connection.execute("SET client_min_messages = warning")
            for name in self.names:
                text = sql.SQL("DROP SCHEMA IF EXISTS {} CASCADE").format(sql.Identifier(name))
                connection.execute(text)


@pytest.fixture
def made(
    postgres_url: Callable[[int], str], directory: Path, request: pytest.FixtureRequest
) -> Any:
    files = Files(directory, postgres_url(18), request.param)
    yield files
    files.drop()


@pytest.mark.spark
@pytest.mark.parametrize("made", [AS_SQL], indirect=True)
@pytest.mark.soak
def test_a_file_of_sql_gives_the_same_rows_three_times(
    made: Files,
    stateful: SparkSession,
    directory: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    postgres_url: Callable[[int], str],
) -> None:
    write_payments(directory / "payments.jsonl", 900)  # whole batches: then the end comes alone
    expected = made.by_engine("bank_by_engine")
    assert all(expected.values())
    for name, options, how in (
        ("bank_as_sql", (), "as Spark's SQL"),
        ("bank_by_classes", ("--by-classes",), "by classes"),
    ):
        file = made.written(name)
        place = ("--store", postgres_url(18), "--checkpoint", str(directory / name))
        command = ("spark", "run", file, *place, "--max-rows", "300")
        by_command(monkeypatch, *command, *options)
        assert how in "".join(capsys.readouterr())
        assert made.rows(name) == expected


@pytest.mark.spark
@pytest.mark.parametrize("made", [AS_SQL], indirect=True)
def test_a_query_as_spark_s_sql_continues_and_stays(
    made: Files,
    stateful: SparkSession,
    directory: Path,
    monkeypatch: pytest.MonkeyPatch,
    postgres_url: Callable[[int], str],
) -> None:
    """It is ended amid its input and continues by its checkpoint; neither classes nor the engine
    take over its state."""
    url, input_ = postgres_url(18), directory / "payments.jsonl"
    write_payments(input_, 600)
    expected = made.by_engine("bank_by_engine")
    lines = input_.read_text().splitlines(keepends=True)
    input_.write_text("".join(lines[:300]))
    file = made.written("bank_of_two_runs")
    place = ("--store", url, "--checkpoint", str(directory / "checkpoint"))
    by_command(monkeypatch, "spark", "run", file, *place, "--keep-open")
    input_.write_text("".join(lines))
    with pytest.raises(SystemExit, match="2"):
        _command(monkeypatch, "spark", "run", file, *place, "--by-classes")
    with pytest.raises(SystemExit, match="2"):
        _command(monkeypatch, "spark", "return", file, "--store", url)
    by_command(monkeypatch, "spark", "run", file, *place)
    assert made.rows("bank_of_two_runs") == expected


def _command(monkeypatch: pytest.MonkeyPatch, *words: str) -> None:
    from millwheel.cli.main import main

    monkeypatch.setattr("sys.argv", ["millwheel", *words])
    main()


@pytest.mark.parametrize("rows", [130, 5_000])
@pytest.mark.parametrize("made", [{**AS_SQL, **BY_CLASSES}], indirect=True)
def test_all_kinds_of_queries_run_by_classes(
    made: Files, directory: Path, rows: int, postgres_url: Callable[[int], str]
) -> None:
    """Without Java, in batches and in one batch."""
    write_payments(directory / "payments.jsonl", 900)
    expected = made.by_engine("bank_by_engine")
    assert all(expected.values())
    url, file = postgres_url(18), made.written("bank_on_spark")
    target = shipped_target(file)
    Path(file).unlink()  # executors have the text alone
    plan = planned(target)
    assert not QueryPlan.of(plan.graph).is_whole
    asyncio.run(deploy_on_spark(plan, url, "/checkpoint"))
    StandIn(target, plan, url, rows=rows).run()
    assert made.rows("bank_on_spark") == expected


def test_a_file_that_is_missing_is_named() -> None:
    with pytest.raises(UsageError, match="cannot be read"):
        load_pipeline("/nowhere/bank.sql")
