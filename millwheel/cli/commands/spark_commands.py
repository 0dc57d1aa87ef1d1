"""``millwheel spark``: pipelines, aggregates and functions on Spark.

Functions import `millwheel.spark`: help is shown without PySpark, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from millwheel.cli.command import command, group
from millwheel.cli.opened_store import opened, opened_for
from millwheel.cli.operator_desk import actor
from millwheel.cli.options import (
    ChangeOptions,
    CodeOptions,
    CommonOptions,
    KeepOpen,
    OnePipeline,
    OptionGroup,
)
from millwheel.cli.printing import print_result
from millwheel.errors import UsageError
from millwheel.store.console.administration import transaction
from millwheel.store.console.asking import Asking

if TYPE_CHECKING:
    from millwheel.spark.launch import Cluster

app = typer.Typer()
spark = group(app, "spark")

PIPELINE_ROWS = 20_000
AGGREGATE_ROWS = 100_000

Checkpoint = Annotated[
    str,
    typer.Option(
        metavar="DIR",
        help="Where Spark keeps the pipeline's state and its place in the input: a directory or a "
        "URL.",
    ),
]


@dataclass(frozen=True)
class ClusterOptions(OptionGroup):
    master: Annotated[
        str, typer.Option(metavar="URL", help="Spark master: local[N] or spark://HOST:7077.")
    ] = "local[2]"
    conf: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="A setting of Spark; repeatable.")
    ] = None
    py_files: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FILE",
            help="A .py or .zip file for executors, besides the package of MODULE; repeatable.",
        ),
    ] = None

    def cluster(self) -> Cluster:
        from millwheel.spark.launch import Cluster

        return Cluster(self.master, config=_settings(self.conf or ()), py_files=self.py_files or ())


@dataclass(frozen=True)
class ConnectOptions(ClusterOptions):
    """A cluster or a Spark Connect server."""

    remote: Annotated[
        str | None,
        typer.Option(
            metavar="URL", help="Spark Connect server, sc://HOST:15002, in place of a master."
        ),
    ] = None

    def cluster(self) -> Cluster:
        return replace(super().cluster(), remote=self.remote)


@dataclass(frozen=True)
class BatchOptions(OptionGroup):
    until_caught_up: Annotated[
        bool, typer.Option("--until-caught-up", help="End as soon as no new rows wait.")
    ] = False
    max_rows: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="Most rows of a batch. Default: 20,000 of `run`, 100,000 of `aggregate`.",
        ),
    ] = None


@dataclass(frozen=True)
class QueryOptions(OptionGroup):
    keep_open: KeepOpen = False
    by_classes: Annotated[
        bool, typer.Option("--by-classes", help="Run no query as Spark's own SQL.")
    ] = False


@command(
    spark,
    "run",
    examples=[
        "millwheel spark run zeitgeist:pipeline --checkpoint checkpoint --until-caught-up",
    ],
)
def run_on_spark(
    code: CodeOptions,
    checkpoint: Checkpoint,
    batches: BatchOptions,
    how: QueryOptions,
    *,
    cluster: ClusterOptions,
    common: CommonOptions,
) -> None:
    """Run a pipeline as a streaming query. Run again, it resumes where it stopped."""
    pipeline = code.load()
    from millwheel.spark.engine.running import run_on_spark

    with opened_for(pipeline.name, common) as presence:
        run_on_spark(
            pipeline,
            code.target,
            presence.url,
            checkpoint=checkpoint,
            until_caught_up=batches.until_caught_up,
            keep_open=how.keep_open,
            most_rows=batches.max_rows or PIPELINE_ROWS,
            by_classes=how.by_classes,
            cluster=cluster.cluster(),
        )


@command(
    spark,
    "aggregate",
    examples=[
        "millwheel spark aggregate zeitgeist:pipeline",
        "millwheel spark aggregate zeitgeist:pipeline --from-scratch --until-caught-up",
    ],
)
def aggregate(
    code: CodeOptions,
    batches: BatchOptions,
    from_scratch: Annotated[
        bool, typer.Option("--from-scratch", help="Make them from all rows first.")
    ] = False,
    only: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Only this aggregate; repeatable.")
    ] = None,
    *,
    cluster: ConnectOptions,
    common: CommonOptions,
) -> None:
    """Keep the aggregates of a pipeline up to date."""
    pipeline = code.load()
    from millwheel.spark.aggregation.aggregate_run import run_aggregates

    where = cluster.cluster()
    with opened(common) as presence:
        run_aggregates(
            pipeline,
            presence.url,
            only=only or (),
            until_caught_up=batches.until_caught_up,
            from_scratch=from_scratch,
            most_rows=batches.max_rows or AGGREGATE_ROWS,
            cluster=where,
        )


@command(
    spark,
    "report",
    examples=[
        "millwheel spark report reports:busiest_hours --output reports",
    ],
)
def report(
    target: Annotated[
        str,
        typer.Argument(
            metavar="MODULE:FUNCTION", help="A function that takes a millwheel.spark.Job."
        ),
    ],
    pipeline: OnePipeline = None,
    output: Annotated[
        Path, typer.Option(metavar="DIR", help="Directory for the function's files.")
    ] = Path(".millwheel") / "output",
    snapshot_seconds: Annotated[
        float,
        typer.Option(
            min=0,
            metavar="SECONDS",
            help="Longest time for which the snapshot is held; 0: no limit.",
        ),
    ] = 3600.0,
    *,
    cluster: ConnectOptions,
    common: CommonOptions,
) -> None:
    """Run a function on a snapshot of a pipeline's tables."""
    from millwheel.spark import run_job

    where = cluster.cluster()
    with opened(common) as presence:
        run_job(
            target,
            presence.url,
            pipeline,
            output=output,
            cluster=where,
            snapshot_seconds=snapshot_seconds or None,
        )


@command(
    spark,
    "take",
    examples=[
        "millwheel spark take zeitgeist:pipeline --checkpoint checkpoint",
    ],
)
def take(
    code: CodeOptions, checkpoint: Checkpoint, *, change: ChangeOptions, common: CommonOptions
) -> None:
    """Move a pipeline with its state from its workers to Spark. Nothing is lost or doubled."""
    pipeline = code.load()
    from millwheel.spark.engine.running import move_to_spark

    with opened(common) as presence:
        moved = move_to_spark(pipeline, presence.url, checkpoint)
        _note_move(
            presence.url, pipeline.name, change.reason, {"to": "spark", "checkpoint": checkpoint}
        )
    then = f"millwheel spark run {code.words} --checkpoint {checkpoint}"
    _print_moved(pipeline.name, moved, then, change)


@command(
    spark,
    "return",
    examples=[
        "millwheel spark return zeitgeist:pipeline",
    ],
)
def give_back(
    code: CodeOptions, *, change: ChangeOptions, cluster: ClusterOptions, common: CommonOptions
) -> None:
    """Move a pipeline with its state from Spark back to workers. Nothing is lost or doubled."""
    pipeline = code.load()
    from millwheel.spark.engine.running import move_to_engine

    where = cluster.cluster()
    with opened(common) as presence:
        moved = move_to_engine(pipeline, presence.url, cluster=where)
        _note_move(presence.url, pipeline.name, change.reason, {"to": "engine", "checkpoint": None})
    _print_moved(pipeline.name, moved, f"millwheel run {code.words}, or its workers", change)


def _note_move(url: str, pipeline: str, reason: str, noted: dict[str, str | None]) -> None:
    with transaction(url) as connection:
        Asking(connection, pipeline).note(actor(reason), "move", noted)


def _print_moved(pipeline: str, entries: int, then: str, change: ChangeOptions) -> None:
    line = f"{pipeline}: moved {entries:,} entries of state and timers. Continue with: {then}"
    print_result({"pipeline": pipeline, "entries": entries}, [line], as_json=change.as_json)


def _settings(given: Sequence[str]) -> dict[str, str]:
    found = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not (name and equals):
            raise UsageError(
                f"--conf {text!r} is not of the form NAME=VALUE, as in spark.executor.memory=2g"
            )
        found[name] = value
    return found
