"""The streams of queries as DataFrames of a streaming query."""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING

from millwheel.spark.queries.query_plan import QueryPlan
from millwheel.spark.queries.query_steps import (
    EVENT,
    SEQ,
    STREAM,
    WINDOW,
    Projection,
    Step,
    WindowGroups,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SETTINGS = {
    "spark.sql.ansi.enabled": "true",
    # A part that two expressions share would be computed beforehand, also where CASE or AND does
    # not come to it.
    "spark.sql.subexpressionElimination.enabled": "false",
    # Of a = b and 10 / a > 1, it would make 10 / b > 1, and compute that before.
    "spark.sql.constraintPropagation.enabled": "false",
    # Of a + (b + c), it would make (a + b) + c, which is out of range for other values.
    "spark.sql.optimizer.excludedRules": (
        "org.apache.spark.sql.catalyst.optimizer.ReorderAssociativeOperator"
    ),
    "spark.sql.session.timeZone": "UTC",
}
"""The meaning of expressions depends on these."""

_IS_EVENT_TIME = {"spark.watermarkDelayMs": 1}
"""Metadata by which Spark knows a column of event time. The watermark itself is that of the mark,
which the sources promise, whatever the times of the records are."""


class Frames:
    """DataFrames of the streams.

    Args:
        rows: the rows of `millwheel.spark.engine.column_input`, with a watermark over the mark.
    """

    def __init__(self, rows: DataFrame, plan: QueryPlan) -> None:
        self._rows = rows
        self._plan = plan
        self._known: dict[str, DataFrame] = {}

    def of(self, stream: str) -> DataFrame:
        """The rows of a stream: its columns, event time and place."""
        if stream not in self._known:
            if stream in self._plan.sources:
                made = self._source(stream)
            else:
                steps = [step for step in self._plan.steps.values() if step.target == stream]
                made = reduce(lambda a, b: a.unionByName(b), map(self._made, steps))
            self._known[stream] = made
        return self._known[stream]

    def _source(self, stream: str) -> DataFrame:
        from pyspark.sql import functions as F

        # The row with the promise must reach the watermark. Spark moves no condition past one that
        # depends on the task, and that one not below the watermark.
        rows = self._rows.where(f"{STREAM} = '{stream}' OR spark_partition_id() < 0")
        names = self._plan.sources[stream].kinds
        return rows.select(
            *(F.col(f"`{stream}`.`{name}`").alias(name) for name in names),
            F.col(EVENT).alias(EVENT, metadata=_IS_EVENT_TIME),
            F.col(SEQ),
        )

    def _made(self, step: Step) -> DataFrame:
        rows = self.of(step.source)
        if step.where is not None:
            rows = rows.where(step.where)
        return _projected(rows, step) if isinstance(step, Projection) else _grouped(rows, step)


def _projected(rows: DataFrame, step: Projection) -> DataFrame:
    from pyspark.sql import functions as F

    columns = [F.expr(sql).alias(name) for name, sql in step.columns]
    return rows.select(*columns, F.col(EVENT), F.col(SEQ))


def _grouped(rows: DataFrame, step: WindowGroups) -> DataFrame:
    from pyspark.sql import functions as F

    keys = [F.expr(sql).alias(name) for name, sql in step.keys]
    aggregates = [F.expr(sql).alias(name) for name, sql in step.aggregates]
    aggregates = aggregates or [F.count(F.lit(1)).alias("__records")]
    groups = rows.groupBy(F.expr(step.window).alias(WINDOW), *keys).agg(*aggregates)
    if step.having is not None:
        groups = groups.where(step.having)
    columns = [F.expr(sql).alias(name) for name, sql in step.columns]
    end = F.col(f"{WINDOW}.end")
    return groups.select(
        *columns,
        (end - F.expr("INTERVAL 1 MICROSECOND")).alias(EVENT),
        F.unix_micros(end).alias(SEQ),
    )
