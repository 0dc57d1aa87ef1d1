"""Groups, projections and unions as Spark's SQL, beside the classes, row by row: over a table at
rest, so that each aggregate meets many values quickly. `test_queries_on_spark` has streams."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from millwheel import Inbox, Pipeline, Stream, Table
from millwheel.core.model import to_micros
from millwheel.spark.engine.column_input import column_batch
from millwheel.spark.queries.equivalents import AGGREGATES
from millwheel.spark.queries.frames import SETTINGS, Frames
from millwheel.spark.queries.query_plan import QueryPlan
from millwheel.spark.queries.query_steps import EVENT, SEQ, WindowGroups
from millwheel.sql.schemas import struct_of
from millwheel.sql.types import SqlType
from millwheel.testing import Harness
from tests.support.spark_values import BY_KIND, COLUMNS, VALUES, shown

pytestmark = pytest.mark.spark

START = datetime(2024, 1, 1, tzinfo=UTC)
KEPT = {name: kind for name, kind in COLUMNS.items() if kind != "numeric"}
ROW = struct_of(
    "rows",
    [("at", SqlType("timestamptz"), False)]
    + [(name, SqlType(kind), True) for name, kind in KEPT.items()],
)
ROWS: Stream[Any] = Stream("rows", ROW)


def drawn(number: int, seed: int) -> list[Any]:
    """Rows in the order of their times; few enough of a group are large that no sum is out of
    range."""
    chosen = random.Random(seed)
    found = []
    for place in range(number):
        values = {name: chosen.choice(VALUES[kind]) for name, kind in KEPT.items()}
        found.append(ROW(at=START + timedelta(milliseconds=777 * place), **values))
    return found


def queries() -> list[str]:
    keys = ["t", "c", "p", "w", "y", "coalesce(t, u)", "p, q"]
    found = []
    for number, key in enumerate(AGGREGATES):
        name, kind = key.rstrip(")").split("(")
        column = "*" if not kind else BY_KIND["text" if kind == "any" else kind][0]
        windows = "TUMBLE(rows, at, INTERVAL '1 minute')"
        if number % 2:
            windows = "HOP(rows, at, INTERVAL '15 seconds', INTERVAL '1 minute')"
        group = keys[number % len(keys)]
        having = " HAVING count(*) > 1 AND bool_or(p) IS NOT FALSE" if number % 3 == 0 else ""
        found.append(
            f"SELECT {group.replace('p, q', 'p AS k, q AS l')}"
            f"{'' if ',' in group and '(' not in group else ' AS k'}, window_start, window_end, "
            f"{name}({column}) AS every_one, {name}({column}) FILTER (WHERE p OR c > 1) AS some, "
            f"count(*) AS n FROM {windows} GROUP BY {group}, window_start, window_end{having}"
        )
    return [
        *found,
        "SELECT a, t || '!' AS t FROM rows WHERE c < d",
        "SELECT max(t) AS most FROM TUMBLE((SELECT at AS x, t FROM rows WHERE p UNION ALL "
        "SELECT at, u FROM rows WHERE c = d), x, INTERVAL '30 seconds') GROUP BY window_start",
        "SELECT window_end AS e, n / 2 AS half FROM (SELECT window_end, count(t) AS n FROM "
        "TUMBLE(rows, at, INTERVAL '7 seconds') GROUP BY window_end) AS s WHERE n > 2",
    ]


def built() -> tuple[Pipeline, list[Stream[Any]]]:
    pipeline = Pipeline("groups")
    pipeline.inject(ROWS, Inbox(), timestamp=lambda row: row.at)
    results = []
    for number, text in enumerate(queries()):
        result = pipeline.sql(f"INSERT INTO result_{number} {text}")
        pipeline.sink(result, Table(result.name, result.value_type))
        results.append(result)
    return pipeline, results


def as_counts(names: Sequence[str], rows: Sequence[Any]) -> Counter[Any]:
    return Counter(tuple(shown(row[name]) for name in names) for row in rows)


async def test_groups_have_the_rows_of_the_classes(spark: SparkSession) -> None:
    pipeline, results = built()
    plan = QueryPlan.of(pipeline.graph())
    assert plan.is_whole, plan.reasons
    rows = drawn(400, 1)
    expected = {}
    async with Harness(pipeline) as harness:
        for row in rows:
            await harness.inject(ROWS, row)
        await harness.advance(ROWS, START + timedelta(days=1))
        for result in results:
            names = result.value_type.__struct_fields__
            made = [
                {name: getattr(row, name) for name in names} for row in harness.produced(result)
            ]
            assert made, result.name
            expected[result.name] = as_counts(names, made)
    for name, value in SETTINGS.items():
        spark.conf.set(name, value)
    own = plan.sources["rows"].kinds
    columns = [["rows"] * len(rows), list(range(len(rows))), [row.at for row in rows],
               [None] * len(rows)]  # fmt: skip
    values = {name: [getattr(row, name) for row in rows] for name in own}
    batch = column_batch(plan.sources, columns, "rows", values)
    frames = Frames(spark.createDataFrame(pa.Table.from_batches([batch])), plan)
    times = {step.target: isinstance(step, WindowGroups) for step in plan.steps.values()}
    for result in results:
        names = result.value_type.__struct_fields__
        found = frames.of(result.name).toArrow().to_pylist()
        assert as_counts(names, found) == expected[result.name], result.name
        if times[result.name] and "window_end" in names:
            for row in found:
                assert row[SEQ] == to_micros(row["window_end"])
                assert row["window_end"] - row[EVENT] == timedelta(microseconds=1)
