"""Whether a pipeline runs as Spark's SQL or by classes. Its first batch decides for good: the two
keep different states in the checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import structlog

from millwheel.errors import UsageError
from millwheel.spark.engine.column_input import AS_SQL
from millwheel.spark.engine.query_progress import QueryProgress
from millwheel.spark.queries.query_plan import QueryPlan

log = structlog.get_logger("millwheel.spark")


def refuse_sql(offset: Mapping[str, Any], pipeline: str) -> None:
    """`UsageError` if the state of a query is that of Spark's own SQL."""
    if offset.get(AS_SQL):
        raise UsageError(
            f"pipeline {pipeline!r} runs as Spark's own SQL, and its groups are in a form that "
            "only Spark reads: it stays on Spark. Pipelines that are to come back run with "
            "--by-classes from their first batch"
        )


def runs_as_sql(
    queries: QueryPlan,
    offset: Mapping[str, Any] | None,
    progress: QueryProgress,
    *,
    by_classes: bool,
) -> bool:
    """Whether a query runs as Spark's SQL.

    Args:
        offset: that of its last batch; None: its checkpoint is new.
        by_classes: the user wants classes.

    Raises:
        UsageError: its checkpoint has the state of SQL, and it would run by classes.
    """
    if offset is not None:
        as_sql = bool(offset.get(AS_SQL))
        if as_sql and (by_classes or not queries.is_whole):
            why = "; ".join(f"{name}: {why}" for name, why in queries.reasons.items())
            raise UsageError(
                f"the checkpoint {progress.checkpoint} has the state of Spark's SQL, which classes "
                f"cannot read ({why or '--by-classes'}): run the code and the command with which "
                "it began; or remove the pipeline with all its results (millwheel drop), and take "
                "a new checkpoint"
            )
    else:
        as_sql = queries.is_whole and not by_classes and progress.begins_with is None
    if queries.steps:
        log.info(
            "queries_on_spark",
            run="as Spark's SQL" if as_sql else "by classes",
            **({} if as_sql or not queries.reasons else {"because": queries.reasons}),
        )
    return as_sql
