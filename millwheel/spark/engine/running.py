"""``millwheel spark run MODULE:PIPELINE``: run a pipeline as a streaming query."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import structlog
from rich.console import Console
from rich.status import Status

from millwheel.core.clock import SystemClock
from millwheel.core.own_loop import run_to_end
from millwheel.errors import UsageError
from millwheel.pipeline import Pipeline
from millwheel.runtime.ownership.deploying import described
from millwheel.spark.engine.checkpoints import is_elsewhere, is_used
from millwheel.spark.engine.moving import Moving
from millwheel.spark.engine.plan import SparkPlan
from millwheel.spark.engine.query_progress import StoredQuery
from millwheel.spark.engine.refusals import refuse
from millwheel.spark.engine.staged_results import Results
from millwheel.spark.engine.targets import modules_of, shipped_target
from millwheel.spark.failures import user_error
from millwheel.spark.launch import Cluster, launched
from millwheel.spark.patience import Patience
from millwheel.spark.spark_stopping import Interruptible
from millwheel.spark.store_sessions import store_url
from millwheel.store.postgres.deployment import OnSpark
from millwheel.store.postgres.store import PostgresStore

if TYPE_CHECKING:
    from millwheel.spark.engine.query import BatchDone

MOST_ROWS = 100_000
"""Default of the most rows of a batch: a batch costs about two seconds of CPU itself, and the more
records a page of keys has in it, the less often is the page read and written for each."""
LINE_SECONDS = 10.0

log = structlog.get_logger("millwheel.spark")


def run_on_spark(
    pipeline: Pipeline,
    target: str,
    store: str | None = None,
    *,
    checkpoint: str,
    until_caught_up: bool = False,
    keep_open: bool = False,
    most_rows: int = MOST_ROWS,
    by_classes: bool = False,
    cluster: Cluster | None = None,
    console: Console | None = None,
) -> None:
    """Run a pipeline on Spark until its input has ended, or until interrupted.

    Args:
        target: MODULE:PIPELINE, from which Spark's workers make the pipeline, or a file of SQL.
        store: a postgresql:// URL; None: the value of MILLWHEEL_STORE.
        checkpoint: where Spark keeps the state: a directory, or a URL that Spark can write to.
        until_caught_up: end as soon as the present input is processed.
        keep_open: leave event time at the last data when bounded input ends.
        most_rows: most rows of a batch.
        by_classes: run queries as the classes that they were compiled to, and not as Spark's SQL.
        console: where progress is shown; None: standard error.

    Raises:
        SparkRefused: a part of the pipeline cannot run on Spark.
        DeployRefused: the store has the state of this pipeline, or results of another query.
        UserCodeError: user code failed.
        StoreError: the store cannot be used.
    """
    cluster = cluster or Cluster()
    if cluster.remote is not None:
        raise UsageError(
            "a pipeline does not run through Spark Connect: give a master in place of the server"
        )
    plan = SparkPlan.of(pipeline)
    refuse(plan.graph)
    _log_ineffective_options(plan)
    url = store_url({} if store is None else {"store": store})
    place = _place(checkpoint)
    stored = StoredQuery(url, pipeline.name)
    given = {"rows": str(most_rows), "keep_open": str(keep_open).lower()}
    ends = until_caught_up or pipeline.bounded
    with stored.sole():
        run_to_end(deploy_on_spark(plan, url, place))
        stored.load().refuse_lost_checkpoint(pipeline.name)
        _run_query(
            plan, shipped_target(target), stored, place, given, cluster, console,
            ends=ends, by_classes=by_classes,
        )  # fmt: skip


def _run_query(
    plan: SparkPlan,
    target: str,
    stored: StoredQuery,
    checkpoint: str,
    given: dict[str, str],
    cluster: Cluster,
    console: Console | None,
    *,
    ends: bool,
    by_classes: bool = False,
) -> None:
    """Run a query that is deployed; `given` are options of its source."""
    from millwheel.spark.engine.query import QueryRun

    with (
        Interruptible() as interruptible,
        launched(
            _with_settings(cluster),
            stored.store,
            interruptible,
            console,
            modules=modules_of(target),
            shows_stages=False,
        ) as (spark, options),
        closing(Results(stored, plan.graph, options)) as results,
        _display(console or Console(stderr=True)) as display,
    ):
        patience = Patience(plan.pipeline.settings.store_patience_seconds, "the last batch")

        def done(batch: BatchDone) -> None:
            patience.progressed()
            display.show(batch)

        def run() -> None:
            with user_error(f"pipeline {stored.pipeline!r}"):
                results.prepare()
                query = QueryRun(
                    spark, target, plan, stored, results, checkpoint, given,
                    ends=ends, by_classes=by_classes,
                )  # fmt: skip
                if not stored.load().may_have_start or query.take_over(options, done):
                    query.until_end(done, patience.progressed)
                else:
                    log.info(
                        "nothing_is_new", what_it_means="the state is taken over with the next row"
                    )

        patience.call(run)
    display.end(stored)


def move_to_spark(pipeline: Pipeline, store: str, checkpoint: str) -> int:
    """Move a pipeline, with its state, from the engine to Spark; its workers end. Returns the
    number of entries of state and timers.

    Raises:
        SparkRefused: a part of the pipeline cannot run on Spark.
        UsageError: something of it cannot be moved.
    """
    plan = SparkPlan.of(pipeline)
    refuse(plan.graph)
    logged_at = float("-inf")

    def report(productions: int, partitions: int) -> None:
        nonlocal logged_at
        if time.monotonic() >= logged_at + LINE_SECONDS:
            logged_at = time.monotonic()
            log.info(
                "waits_for_records_in_flight",
                productions=productions,
                partitions=partitions,
                what_to_do="nothing while workers run; if none does, start one",
            )

    return Moving(plan, store).to_spark(_place(checkpoint), report)


def move_to_engine(
    pipeline: Pipeline, store: str, *, cluster: Cluster, console: Console | None = None
) -> int:
    """Move a pipeline, with its state, back from Spark to the engine; its query must have ended.
    Returns the number of entries of state and timers.

    Raises:
        UsageError: the pipeline does not run on Spark, or its checkpoint is missing.
    """
    plan = SparkPlan.of(pipeline)
    stored = StoredQuery(store, pipeline.name)
    from millwheel.spark.engine.returning import bring_back

    with stored.sole():
        progress = stored.load()
        with (
            Interruptible() as interruptible,
            launched(_with_settings(cluster), store, interruptible, console) as (spark, options),
            user_error(f"moving pipeline {pipeline.name!r}"),
        ):
            return bring_back(spark, Moving(plan, store), progress, pipeline.name, options)


def _place(checkpoint: str) -> str:
    return checkpoint if is_elsewhere(checkpoint) else str(Path(checkpoint).resolve())


def _with_settings(cluster: Cluster) -> Cluster:
    from millwheel.spark.engine.query import SETTINGS

    return replace(cluster, config={**SETTINGS, **cluster.config})


async def deploy_on_spark(plan: SparkPlan, url: str, checkpoint: str) -> None:
    settings = plan.pipeline.settings
    found = described(plan.graph, settings.intervals)
    stamp = SystemClock().now()
    store = await PostgresStore(url, plan.pipeline.name).open()
    try:
        await store.deploy(
            found,
            stamp=stamp,
            bucket_high=stamp + int(settings.bucket_seconds * 1e6),
            on_spark=OnSpark(checkpoint, plan.levels, is_used(checkpoint)),
        )
    finally:
        await store.close()


def _log_ineffective_options(plan: SparkPlan) -> None:
    without: dict[str, list[str]] = {}
    for node in plan.graph.nodes:
        options = {
            'productions="weak"': node.is_weak,
            "exactly_once=False": not node.exactly_once,
            'acknowledgement="tree"': node.is_tree,
            'delivery="at_most_once"': node.at_most_once,
        }
        if node.injection is not None:
            options["max_pending"] = node.injection.max_pending is not None
            options["latency_target"] = node.injection.latency_target is not None
        for option, is_set in options.items():
            if is_set:
                without.setdefault(option, []).append(node.name)
    for option, names in without.items():
        log.info(
            "without_meaning_on_spark", option=option, of=names, why="a batch counts as a whole"
        )


class QueryDisplay:
    """Shows batches: in one line of a terminal, or as log lines."""

    def __init__(self, status: Status | None) -> None:
        self._status = status
        self._logged_at = float("-inf")
        self._began = self._batch_began = time.monotonic()
        self._batches = 0
        self._rows = 0

    def show(self, batch: BatchDone) -> None:
        now = time.monotonic()
        seconds, self._batch_began = now - self._batch_began, now
        self._batches += 1
        self._rows += batch.rows or 0
        if self._status is not None:
            self._status.update(
                f"batch {batch.number:,} is done, {self._rows:,} rows in tables, {seconds:.1f} s"
            )
        elif now >= self._logged_at + LINE_SECONDS or batch.rows is None:
            self._logged_at = now
            log.info(
                "batch_done",
                batch=batch.number,
                rows="there already" if batch.rows is None else batch.rows,
                seconds=round(seconds, 2),
            )

    def end(self, stored: StoredQuery) -> None:
        found = stored.load()
        processed = sum(of.get("processed", 0) for of in found.counters.values())
        log.info(
            "query_end",
            batches=self._batches,
            rows=self._rows,
            **({"processed_in_all": processed} if found.counters else {}),
            seconds=round(time.monotonic() - self._began, 1),
        )


@contextmanager
def _display(console: Console) -> Iterator[QueryDisplay]:
    if not console.is_terminal:
        yield QueryDisplay(None)
        return
    with console.status("Spark has started") as status:
        yield QueryDisplay(status)
