"""``millwheel spark``: a pipeline's aggregates, or a function on a snapshot; ``millwheel run
--engine spark``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import typer

from millwheel.cli.asking import actor
from millwheel.cli.target import load_pipeline, names_a_pipeline
from millwheel.errors import UsageError
from millwheel.pipeline import Pipeline
from millwheel.spark.launch import Cluster
from millwheel.store.address import StoreAddress
from millwheel.store.console.administration import transaction
from millwheel.store.console.asking import Asking
from millwheel.store.console.migrate import require_version
from millwheel.store.console.presence import present


def run(
    target: str,
    store: str | None,
    pipeline: str | None,
    *,
    output: Path,
    until_caught_up: bool,
    from_scratch: bool,
    only: Sequence[str],
    max_rows: int,
    snapshot_seconds: float,
    cluster: Cluster,
) -> None:
    """Run a pipeline's aggregates, or a function."""
    if names_a_pipeline(target):
        from millwheel.spark.aggregation.aggregate_run import run_aggregates

        found = load_pipeline(target)
        if pipeline not in (None, found.name):
            raise UsageError(
                f"{target} is the pipeline {found.name!r}, not {pipeline!r}: leave --pipeline out"
            )
        with present(StoreAddress.parse(store)) as presence:
            run_aggregates(
                found,
                presence.url,
                only=only,
                until_caught_up=until_caught_up,
                from_scratch=from_scratch,
                most_rows=max_rows,
                cluster=cluster,
            )
        return
    if until_caught_up or from_scratch or only:
        raise UsageError(
            f"{target!r} is a function to run once: --until-caught-up, --from-scratch and --only "
            "are for a pipeline's aggregates"
        )
    from millwheel.spark import run_job

    with present(StoreAddress.parse(store)) as presence:
        run_job(
            target,
            presence.url,
            pipeline,
            output=output,
            cluster=cluster,
            snapshot_seconds=snapshot_seconds or None,
        )


def run_engine(
    pipeline: Pipeline,
    target: str,
    store: str | None,
    *,
    checkpoint: str | None,
    until_caught_up: bool,
    keep_open: bool,
    max_rows: int,
    cluster: Cluster,
    others: Mapping[str, bool],
) -> None:
    """Run a pipeline on Spark.

    Args:
        others: options of the engine, and whether they were given.

    Raises:
        UsageError: such an option was given, or the checkpoint was not.
    """
    for option, is_given in others.items():
        if is_given:
            raise UsageError(f"{option} is not for --engine spark")
    if checkpoint is None:
        raise UsageError(
            "--engine spark needs --checkpoint DIR: there Spark keeps the state of the pipeline "
            "and its place in the input"
        )
    from millwheel.spark.engine.pipeline_run import run_on_spark

    address = StoreAddress.parse(store)
    with present(address, create=True) as presence:
        require_version(presence.url, pipeline.name, address=address, migrate_now=address.embedded)
        run_on_spark(
            pipeline,
            target,
            presence.url,
            checkpoint=checkpoint,
            until_caught_up=until_caught_up,
            keep_open=keep_open,
            most_rows=max_rows,
            cluster=cluster,
        )


def move(
    target: str,
    store: str | None,
    *,
    to: str,
    checkpoint: str | None,
    cluster: Cluster,
    reason: str,
) -> None:
    """Move a pipeline with its state to Spark, or back to the engine.

    Raises:
        UsageError: it cannot be moved.
    """
    from millwheel.spark.engine.pipeline_run import move_to_engine, move_to_spark

    pipeline = load_pipeline(target)
    with present(StoreAddress.parse(store)) as presence:
        if to == "engine":
            if checkpoint is not None:
                raise UsageError("the store knows the checkpoint: leave --checkpoint out")
            moved = move_to_engine(pipeline, presence.url, cluster=cluster)
            then = f"millwheel run {target}, or its workers"
        else:
            if checkpoint is None:
                raise UsageError(
                    "--to spark needs --checkpoint DIR: there Spark will keep the state"
                )
            moved = move_to_spark(pipeline, presence.url, checkpoint)
            then = f"millwheel run {target} --engine spark --checkpoint {checkpoint}"
        with transaction(presence.url) as connection:
            noted = {"to": to, "checkpoint": checkpoint}
            Asking(connection, pipeline.name).note(actor(reason), "move", noted)
    typer.echo(f"{pipeline.name}: moved {moved:,} entries of state and timers. Go on with: {then}")


def settings_of(given: Sequence[str]) -> dict[str, str]:
    """Settings of Spark from NAME=VALUE.

    Raises:
        UsageError: one has no "=".
    """
    found = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not (name and equals):
            raise UsageError(
                f"--conf {text!r} is not of the form NAME=VALUE, as in spark.executor.memory=2g"
            )
        found[name] = value
    return found
