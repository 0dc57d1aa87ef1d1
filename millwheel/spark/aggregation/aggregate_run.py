"""``millwheel spark aggregate MODULE:PIPELINE``: keep a pipeline's aggregates up to date."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import structlog
from rich.console import Console
from rich.status import Status

from millwheel.aggregates import Aggregate, Parquet
from millwheel.core.suggestion import with_suggestion
from millwheel.errors import UsageError
from millwheel.graph.outside import own_directory
from millwheel.pipeline import Pipeline
from millwheel.sinks import Table
from millwheel.spark.aggregation.aggregate_progress import Stored
from millwheel.spark.aggregation.rounds import (
    PARTITIONS,
    AggregateRunner,
    DoneBatch,
    run_batches,
)
from millwheel.spark.launch import Cluster, launched
from millwheel.spark.spark_stopping import Interruptible
from millwheel.spark.store_sessions import statement, store_url
from millwheel.store.console.inspection import inspect
from millwheel.store.console.outputs import output_status
from millwheel.store.port.deploy import CopyState

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MOST_ROWS = 100_000
"""Default of the most rows of a followed table in one batch."""
WAIT_SECONDS = 60.0
"""Longest wait for a pipeline that is about to start and makes its tables."""
LOOK_SECONDS = 2.0
LINE_SECONDS = 10.0

log = structlog.get_logger("millwheel.spark")


def run_aggregates(
    pipeline: Pipeline,
    store: str | None = None,
    *,
    only: Sequence[str] = (),
    until_caught_up: bool = False,
    from_scratch: bool = False,
    most_rows: int = MOST_ROWS,
    cluster: Cluster | None = None,
    console: Console | None = None,
) -> None:
    """Keep the aggregates of a pipeline up to date, until interrupted or, if wanted, until nothing
    is new.

    Args:
        store: a postgresql:// URL; None: the value of MILLWHEEL_STORE.
        only: names of aggregates; none: all.
        until_caught_up: end as soon as no new rows wait.
        from_scratch: make them from all rows first.
        most_rows: most new rows of the followed table in one batch.
        console: where progress is shown; None: standard error.

    Raises:
        UsageError: there is no such aggregate, its tables do not exist, or another process keeps it
            up to date.
        UserCodeError: its function failed.
        StoreError: the store cannot be used.
    """
    cluster = cluster or Cluster()
    pipeline.graph()
    aggregates = _chosen(pipeline, only)
    url = store_url({} if store is None else {"store": store})
    _require_tables([Stored(url, pipeline.name, aggregate) for aggregate in aggregates])
    every = [
        Stored(url, pipeline.name, aggregate) for aggregate in _as_run(pipeline, url, aggregates)
    ]
    with Interruptible() as interruptible, ExitStack() as stack:
        for stored in every:
            stack.enter_context(stored.sole())
            stored.begin()
            if from_scratch or (stored.aggregate not in aggregates and _is_empty(stored)):
                stored.start_over()
        modules = {aggregate.function.__module__ for aggregate in aggregates}
        with launched(
            cluster, url, interruptible, console, modules=modules, shows_stages=False
        ) as (spark, options):
            runners = [
                stack.enter_context(
                    closing(
                        AggregateRunner(
                            spark,
                            stored,
                            most_rows=most_rows,
                            options=options,
                            partitions=_partitions(spark, cluster),
                        )
                    )
                )
                for stored in every
            ]
            with _display(console or Console(stderr=True)) as display:
                run_batches(
                    runners,
                    until_caught_up=until_caught_up,
                    patience_seconds=pipeline.settings.store_patience_seconds,
                    done=display.show,
                    idle=display.rest,
                )


def _as_run(pipeline: Pipeline, url: str, aggregates: Sequence[Aggregate]) -> list[Aggregate]:
    """The aggregates as this pipeline makes them: files of a fork are withheld, or are in a
    directory of its own (decision 86).

    Raises:
        UsageError: all of them are withheld.
    """
    name = pipeline.name
    with inspect(url) as inspection:
        inspection.require_current(name)
        outputs = output_status(inspection.connection, name)
    copied = CopyState(outputs.origin, outputs.withholds)
    files = [one for one in aggregates if isinstance(one.to, Parquet)]
    if copied.withholds and files:
        names = ", ".join(one.name for one in files)
        way = f"to make them: millwheel outputs {name} on"
        if len(files) == len(aggregates):
            raise UsageError(f"pipeline {name!r} withholds its outputs: {names}; {way}")
        log.warning("aggregates_withheld", aggregates=names, what_to_do=way)
        return [one for one in aggregates if one not in files]
    if not copied.is_beside(name, pipeline.name_in_code):
        return list(aggregates)
    return [
        replace(one, to=Parquet(one.to.path / own_directory(name)))
        if isinstance(one.to, Parquet)
        else one
        for one in aggregates
    ]


def _is_empty(stored: Stored) -> bool:
    """Whether there are no files yet: a fork has the progress of its origin, which has its files
    elsewhere."""
    to = stored.aggregate.to
    return isinstance(to, Parquet) and not to.path.exists()


def _partitions(spark: SparkSession, cluster: Cluster) -> int:
    """Few on this machine, and on a cluster as many as Spark's shuffles have."""
    if cluster.is_local:
        return PARTITIONS
    return int(spark.conf.get("spark.sql.shuffle.partitions") or PARTITIONS)


def _chosen(pipeline: Pipeline, only: Sequence[str]) -> list[Aggregate]:
    known = pipeline.aggregates
    if not known:
        raise UsageError(
            f"pipeline {pipeline.name!r} has no aggregates for Spark: declare them with "
            "pipeline.spark(…), or name a function of a Job to run once"
        )
    for name in only:
        if name not in known:
            message = (
                f"pipeline {pipeline.name!r} has no aggregate {name!r}; it has {', '.join(known)}"
            )
            raise UsageError(with_suggestion(message, name, known))
    return [aggregate for name, aggregate in known.items() if not only or name in only]


def _require_tables(every: Sequence[Stored]) -> None:
    """Wait for tables that the pipeline makes when it starts; `UsageError` after `WAIT_SECONDS`."""
    deadline = time.monotonic() + WAIT_SECONDS
    while missing := _missing_tables(every):
        name = every[0].pipeline
        if time.monotonic() > deadline:
            raise UsageError(
                f"pipeline {name!r} has no table {', '.join(missing)} in the store: run it first, "
                "with this code, which makes them"
            )
        log.info("waits_for_tables", pipeline=name, tables=missing)
        time.sleep(LOOK_SECONDS)


def _missing_tables(every: Sequence[Stored]) -> list[str]:
    found: list[str] = []
    for stored in every:
        aggregate = stored.aggregate
        to = [aggregate.to.name] if isinstance(aggregate.to, Table) else []
        names = [aggregate.follows, *aggregate.reads, *to, "aggregate"]
        with stored.transaction() as connection:
            there = {
                name
                for (name,) in connection.execute(
                    statement("reading/relations"), {"pipeline": stored.pipeline}
                )
            }
        found += [name for name in names if name not in there]
    return found


class BatchDisplay:
    """Shows batches: in one line of a terminal, or as log lines."""

    def __init__(self, status: Status | None) -> None:
        self._status = status
        self._told = float("-inf")
        self._batches = 0
        self._rows = 0
        self._groups = 0

    def show(self, batch: DoneBatch) -> None:
        self._batches += 1
        self._rows += batch.rows
        self._groups += batch.groups or 0
        groups = "all groups" if batch.groups is None else f"{batch.groups:,} groups"
        if self._status is not None:
            self._status.update(
                f"{batch.aggregate}: batch {batch.number:,}, {batch.rows:,} rows in {groups}, "
                f"{batch.behind:,} rows wait, {batch.seconds:.1f} s"
            )
        elif batch.groups is None or time.monotonic() >= self._told + LINE_SECONDS:
            self._told = time.monotonic()
            log.info(
                "batch_done",
                aggregate=batch.aggregate,
                batch=batch.number,
                rows=batch.rows,
                groups="all" if batch.groups is None else batch.groups,
                behind=batch.behind,
                seconds=round(batch.seconds, 2),
            )

    def rest(self) -> None:
        if self._status is not None:
            self._status.update("nothing is new")

    def end(self) -> None:
        log.info("aggregates_end", batches=self._batches, rows=self._rows, groups=self._groups)


@contextmanager
def _display(console: Console) -> Iterator[BatchDisplay]:
    if not console.is_terminal:
        display = BatchDisplay(None)
        try:
            yield display
        finally:
            display.end()
        return
    with console.status("Spark has started") as status:
        display = BatchDisplay(status)
        try:
            yield display
        finally:
            display.end()
