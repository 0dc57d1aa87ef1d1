"""Which queries run as Spark's own SQL, and with what SQL; without Spark."""

from __future__ import annotations

from datetime import datetime
from functools import partial
from typing import Any

import msgspec
import pytest
from structlog.testing import capture_logs

from millwheel import Computation, Context, JsonLines, Pipeline, Record, Stream, Table
from millwheel.errors import UsageError, UserCodeError
from millwheel.spark.engine.column_input import check_event_times, column_schema
from millwheel.spark.engine.kind_of_query import refuse_sql, runs_as_sql
from millwheel.spark.engine.query_progress import FIRST, QueryProgress
from millwheel.spark.queries.query_plan import QueryPlan
from tests.support.spark_queries import AS_SQL, BY_CLASSES, SOURCE


class Payment(msgspec.Struct):
    """A record with columns that Spark cannot hold as they are."""

    account: str
    at: datetime
    cents: int
    price: float
    tags: list[str]
    note: str | None = None


PAYMENTS = Stream("payments", Payment)


def planned_queries(*texts: str) -> QueryPlan:
    pipeline = Pipeline("bank")
    pipeline.inject(PAYMENTS, JsonLines("payments.jsonl"), timestamp=lambda payment: payment.at)
    for number, text in enumerate(texts):
        result = pipeline.sql(f"INSERT INTO result_{number} {text}")
        pipeline.sink(result, Table(result.name, result.value_type))
    return QueryPlan.of(pipeline.graph())


def test_a_plan_has_the_sql_of_each_step_and_the_columns_of_each_source() -> None:
    plan = planned_queries(
        "SELECT cents + 1 AS more FROM payments WHERE note IS NULL",
        "SELECT note, window_end AS ends, count(*) FILTER (WHERE cents > 0) AS n "
        "FROM HOP(payments, at, INTERVAL '1 second', INTERVAL '1 minute') "
        "GROUP BY note, window_end HAVING min(account) <> ''",
    )
    assert plan.is_whole
    assert [step.text for step in plan.steps.values()] == [
        "SELECT (`cents` + CAST(1 AS BIGINT)) AS `more`\nFROM payments WHERE (`note` IS NULL)",
        "SELECT `__k0` AS `note`, `__window`.`end` AS `ends`, `__a0` AS `n`\n"
        "FROM (SELECT window(__event, '60000000 microseconds', '1000000 microseconds') AS "
        "`__window`, `note` AS `__k0`, count(1) FILTER (WHERE (`cents` > CAST(0 AS BIGINT))) AS "
        "`__a0`, min(`account`) AS `__a1`\n  FROM payments GROUP BY window(__event, "
        "'60000000 microseconds', '1000000 microseconds'), `note`) WHERE (`__a1` <> '')",
    ]
    (rows,) = plan.sources.values()
    assert rows.times == {"at"}
    assert column_schema(plan.sources).endswith(
        "`payments` STRUCT<`note`: STRING, `cents`: BIGINT, `account`: STRING, `at`: TIMESTAMP>"
    )


WINDOWS = "TUMBLE(payments, at, INTERVAL '1 minute')"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("SELECT upper(account) AS a FROM payments", "upper(text)"),
        ("SELECT price * 2 AS a FROM payments", "float8mul(double precision, double precision)"),
        ("SELECT cents::numeric / 3 AS a FROM payments", "numeric_div(numeric, numeric)"),
        ("SELECT cents * 1.5 > 3 AS a FROM payments", "numeric_mul(numeric, numeric)"),
        ("SELECT account::bigint AS a FROM payments", "the cast from text to bigint"),
        ("SELECT account::varchar(3) AS a FROM payments", "the type character varying(3)"),
        ("SELECT tags AS a FROM payments", "the type text[]"),
        ("SELECT tags[1] AS a FROM payments", "element expressions"),
        ("SELECT length(note) + (cents + 1) AS a FROM payments", "of a part that may fail"),
        ("SELECT p.cents AS a FROM payments p JOIN payments q ON p.account = q.account RETAIN "
         "UNBOUNDED", "a part of a join"),
        ("SELECT tag AS a FROM payments, unnest(tags) AS tag", "unnest"),
        ("SELECT LEAST(price, 0) AS a FROM payments", "least of double precision"),
        ("SELECT a FROM (SELECT cents AS a, cents AS \"A\" FROM payments) AS p",
         "columns a that differ in upper"),
        (f"SELECT window_start AS a FROM {WINDOWS}", "windows without GROUP BY"),
        (f"SELECT window_start AS a, avg(cents) AS m FROM {WINDOWS} GROUP BY 1", "avg(bigint)"),
        (f"SELECT window_start AS a, sum(price) AS m FROM {WINDOWS} GROUP BY 1",
         "sum(double precision)"),
        ("SELECT window_start AS a, max(cents / cents) FILTER (WHERE cents > 0) AS m FROM "
         f"{WINDOWS} GROUP BY 1", "max with FILTER of values that may fail"),
        ("SELECT window_start AS a, sum(CASE WHEN cents > 0 THEN 1 / cents END) AS m FROM "
         f"{WINDOWS} GROUP BY 1", "sum of parts that may fail"),
        (f"SELECT window_start AS a, count(DISTINCT note) AS m FROM {WINDOWS} GROUP BY 1",
         "count with DISTINCT"),
        (f"SELECT window_start AS a FROM {WINDOWS} GROUP BY 1 EMIT ON UPDATE", "EMIT ON UPDATE"),
        (f"SELECT window_start AS a FROM {WINDOWS} GROUP BY 1 ALLOWED LATENESS UNBOUNDED",
         "ALLOWED LATENESS"),
        ("SELECT window_start AS a FROM SESSION(payments, at, INTERVAL '1 minute') GROUP BY 1",
         "SESSION"),
        ("SELECT count(*) AS a FROM payments RETAIN UNBOUNDED", "groups without windows"),
        ("SELECT window_start AS a FROM TUMBLE((SELECT coalesce(at, at) AS moment FROM payments), "
         "moment, INTERVAL '1 minute') GROUP BY 1", "the event time moment, which is computed"),
        ("SELECT window_start AS a FROM TUMBLE((SELECT window_start AS w, window_end AS e FROM "
         f"{WINDOWS} GROUP BY 1, 2), e, INTERVAL '1 hour') GROUP BY 1",
         "windows over the rows of windows"),
        ("SELECT double FROM (SELECT cents * 2 AS double, note FROM payments) AS p WHERE note = ''",
         "values of result_0_from, its input, may fail"),
    ],
)  # fmt: skip
def test_a_query_with_another_meaning_in_spark_runs_by_classes(text: str, reason: str) -> None:
    plan = planned_queries(text, "SELECT cents FROM payments")
    assert not plan.is_whole
    assert any(reason in each for each in plan.reasons.values()), plan.reasons
    said = "".join(plan.lines())
    assert "a class, since others are" in said
    assert reason in said


def test_a_divisor_that_is_no_zero_does_not_fail() -> None:
    inner = (
        "SELECT d FROM (SELECT cents / 7 AS d, cents % 2 AS r, note FROM payments) AS p WHERE r = 0"
    )
    assert planned_queries(inner).is_whole


def test_what_is_no_query_makes_all_run_by_classes() -> None:
    class Pass(Computation[Payment, None]):
        """Sends nothing."""

        async def process_record(self, record: Record[Payment], ctx: Context[None]) -> None:
            """Do nothing."""

    def reasons(build: object) -> str:
        pipeline = Pipeline("bank")
        build(pipeline)  # type: ignore[operator]
        return "; ".join(QueryPlan.of(pipeline.graph()).reasons.values())

    def by_file(pipeline: Pipeline, **options: Any) -> None:
        inject: Any = partial(pipeline.inject, timestamp=lambda payment: payment.at)
        inject(PAYMENTS, JsonLines("payments.jsonl"), **options)
        result = pipeline.sql("INSERT INTO r SELECT cents FROM payments")
        pipeline.sink(result, Table("r", result.value_type))

    def with_class(pipeline: Pipeline) -> None:
        by_file(pipeline)
        pipeline.add(Pass(), PAYMENTS.by(lambda payment: payment.account))

    def with_letters(pipeline: Pipeline) -> None:
        pipeline.inject(PAYMENTS, JsonLines("payments.jsonl"), timestamp=lambda payment: payment.at)
        pipeline.sql("INSERT INTO r SELECT cents FROM payments", on_error="dead_letter")

    assert reasons(by_file) == ""
    assert "a class of the user" in reasons(with_class)
    assert "on_error='dead_letter'" in reasons(with_letters)
    assert "on_error=" in reasons(lambda pipeline: by_file(pipeline, on_error="dead_letter"))
    assert "id=" in reasons(lambda pipeline: by_file(pipeline, id=lambda payment: payment.account))


def test_the_parts_of_the_file_that_is_compared_run_as_the_tests_say() -> None:
    def plan_of(part: str) -> QueryPlan:
        pipeline = Pipeline("bank")
        pipeline.sql(SOURCE.replace("{path}", "payments.jsonl") + part)
        return QueryPlan.of(pipeline.graph())

    assert all(plan_of(part).is_whole for part in AS_SQL.values())
    assert not any(plan_of(part).is_whole for part in BY_CLASSES.values())


def test_the_first_batch_decides_how_a_query_runs() -> None:
    whole, other = planned_queries("SELECT cents FROM payments"), QueryPlan(reasons={"a": "avg"})
    whole_or_moved = QueryProgress(1, None, "DIR", {}, None, 0, FIRST)
    moved = QueryProgress(1, None, "DIR", {}, {"mark": 0}, 0, FIRST)
    with capture_logs() as logs:
        assert runs_as_sql(whole, None, whole_or_moved, by_classes=False)
        assert not runs_as_sql(whole, None, whole_or_moved, by_classes=True)
        assert not runs_as_sql(whole, None, moved, by_classes=False)
        assert not runs_as_sql(whole, {"buckets": 1}, whole_or_moved, by_classes=False)
        assert not runs_as_sql(other, None, whole_or_moved, by_classes=False)
    assert [each["run"] for each in logs] == ["as Spark's SQL", *["by classes"] * 3]
    with pytest.raises(UsageError, match="--by-classes"):
        runs_as_sql(whole, {"as_sql": True}, whole_or_moved, by_classes=True)
    with pytest.raises(UsageError, match="a: avg"):
        runs_as_sql(other, {"as_sql": True}, whole_or_moved, by_classes=False)
    refuse_sql({"buckets": 1}, "bank")
    with pytest.raises(UsageError, match="stays on Spark"):
        refuse_sql({"as_sql": True}, "bank")


def test_windows_take_the_event_time_and_none_before_1970() -> None:
    at = datetime.fromisoformat("1970-01-01T00:00:01+00:00")
    check_event_times([at], [1_000_000], "at")
    for value, micros, message in (
        (at, 1_000_001, "windows follow the event time"),
        (None, 1, "which is None"),
        (datetime.fromisoformat("1969-12-31T23:59:59+00:00"), -1_000_000, "--by-classes"),
    ):
        with pytest.raises(UserCodeError, match=message):
            check_event_times([value], [micros], "at")
