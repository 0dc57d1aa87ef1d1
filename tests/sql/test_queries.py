"""Queries give the rows that Postgres gives over the same input."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from decimal import Decimal
from typing import Any

import psycopg
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Struct

from millwheel import Discard, Inbox, Pipeline, Stream, Table
from millwheel.core.model import to_micros
from millwheel.errors import GraphError, SqlError
from millwheel.sql.steps import Loop
from millwheel.testing import Harness
from tests.sql.answers import EPOCH, Payment, agree, from_pipeline, from_postgres, pipeline_of
from tests.sql.answers import PAYMENTS as PAYMENTS_STREAM
from tests.sql.drawn_aggregates import drawn_aggregates
from tests.sql.drawn_rows import TRUTHS, filters, payments, truths
from tests.support.examples import examples

PAYMENTS = [
    Payment("ann", EPOCH, 300, 3, "tea", Decimal("3.00"), True),
    Payment("bob", EPOCH + timedelta(seconds=59.999999), -20, None, None, Decimal("0.5"), None),
    Payment("ann", EPOCH + timedelta(seconds=60), 90, 1, "milk", Decimal("0.900"), False),
    Payment("ann", EPOCH + timedelta(seconds=61), 90, None, "tea", Decimal("12.34"), True),
    Payment("", EPOCH + timedelta(seconds=3600), 0, 0, "", Decimal("0"), False),
    Payment("bob", EPOCH + timedelta(days=40), 2**40, 7, None, Decimal("-1.5"), None),
]

QUERIES = (
    """
SELECT account, cents FROM payments
SELECT * FROM payments WHERE paid
SELECT p.account AS who, p.cents * 2 + 1 AS twice FROM payments AS p WHERE p.note = 'tea' OR fee \
> 2
SELECT cents, note IS NULL AS unknown, coalesce(fee, -1) AS fee FROM payments WHERE NOT paid
SELECT account, window_start, window_end, cents FROM TUMBLE(payments, at, INTERVAL '1 minute')
SELECT account, window_start, count(*) AS n, sum(cents) AS total FROM TUMBLE(payments, at, \
INTERVAL '1 minute') GROUP BY account, window_start
SELECT window_start, window_end, count(*), count(fee) AS fees, sum(fee), min(fee) AS low, \
max(note) AS last FROM TUMBLE(payments, at, INTERVAL '1 hour') GROUP BY 1, 2
SELECT account AS who, window_end, avg(cents) AS mean, avg(price) AS price, sum(price) AS paid \
FROM TUMBLE(payments, at, INTERVAL '1 day') WHERE cents <> 0 GROUP BY who, window_end
SELECT note, window_start, count(DISTINCT account) AS accounts, bool_and(paid) AS every, \
bool_or(paid) AS some FROM TUMBLE(payments, at, INTERVAL '2 hours') GROUP BY note, window_start
SELECT paid, cents > 50 AS large, window_start, count(*) FILTER (WHERE note = 'tea') AS teas, \
sum(cents) FILTER (WHERE paid) AS paid_cents FROM TUMBLE(payments, at, INTERVAL '1 hour') GROUP \
BY paid, large, window_start
SELECT account, window_start, count(*) AS n FROM HOP(payments, at, INTERVAL '20 seconds', \
INTERVAL '1 minute') GROUP BY account, window_start
SELECT account, window_start, sum(cents) + count(*) AS both FROM TUMBLE(payments, at, INTERVAL \
'1 minute') GROUP BY account, window_start HAVING count(*) > 1 OR max(fee) IS NULL
SELECT at, fee, window_end, count(*) FROM TUMBLE(payments, at, INTERVAL '1 hour') GROUP BY 1, 2, 3
SELECT NULL AS x, '2024-01-01' AS at, account FROM payments UNION ALL SELECT price, at, NULL FROM \
payments UNION ALL SELECT '1.5', NULL, 'tea' FROM payments
SELECT account, window_start + INTERVAL '1 h' AS later, count(*) FROM HOP(payments, at, INTERVAL \
'20 seconds', INTERVAL '1 minute') GROUP BY account, window_start, later
SELECT at < window_start + INTERVAL '30 s' AS early, window_end, max(window_start) AS most, \
count(*) FILTER (WHERE at > window_start) AS n FROM TUMBLE(payments, at, INTERVAL '1 minute') \
WHERE window_start > '2024-01-01 00:00:30+00' GROUP BY 1, 2
SELECT DISTINCT account, window_start, date_trunc('hour', window_end) AS hour FROM TUMBLE(payments,\
 at, INTERVAL '1 minute')
SELECT length(account) + 0 AS size, window_start, max(at) AS last FROM TUMBLE(payments, at, \
INTERVAL '1 hour') GROUP BY 1, 2
""".replace("\\\n", "")
    .strip()
    .splitlines()
)


ARRAYS = """
SELECT coalesce(null, array[1, 2])::int8[] AS x FROM payments
SELECT (CASE WHEN coalesce(fee, 1) > 1 THEN array[1] ELSE array[2] END)::text[] AS x FROM payments
""".strip().splitlines()


@pytest.mark.parametrize("query", [*QUERIES, *ARRAYS])
async def test_a_query_gives_the_rows_of_postgres(
    query: str, server: psycopg.Connection[Any]
) -> None:
    written = f"INSERT INTO result\n{query}"
    assert await from_pipeline(written, PAYMENTS) == from_postgres(server, written, PAYMENTS)


# -- drawn queries --------------------------------------------------------------------------------

WHOLE = ["cents", "fee", "cents + 1", "cents * fee", "abs(cents)", "cents % 7", "coalesce(fee, -1)",
         "CASE WHEN paid THEN cents ELSE fee END", "nullif(fee, 3)", "-fee",
         "extract(minute FROM at)::int"]  # fmt: skip
TEXTS = ["account", "note", "coalesce(note, '-')", "CASE WHEN fee > 2 THEN note ELSE account END"]
NUMBERS = ["price", "price * 2", "price + cents", "round(price, 1)", "fee / 2.0", "cents::numeric"]
SIZES = ["10 seconds", "1 minute", "90 seconds", "1 hour", "1 day"]

wheres = st.one_of(st.just(""), st.builds(" WHERE {}".format, truths))
values = st.one_of(*map(st.sampled_from, (WHOLE, TEXTS, TRUTHS, NUMBERS)), truths)
keys = st.one_of(*map(st.sampled_from, (WHOLE, TEXTS, TRUTHS)))
aggregated = st.one_of(
    st.just("count(*)"),
    st.builds("{}({})".format, st.sampled_from(["count", "sum", "min", "max", "avg"]),
              st.sampled_from(WHOLE + NUMBERS)),
    st.builds("{}({})".format, st.sampled_from(["count", "min", "max"]), st.sampled_from(TEXTS)),
    st.builds("count(DISTINCT {})".format, st.sampled_from(WHOLE + TEXTS + TRUTHS)),
    st.builds("{}({})".format, st.sampled_from(["bool_and", "bool_or"]), st.sampled_from(TRUTHS)),
    drawn_aggregates,
)  # fmt: skip
aggregates = st.builds("{}{}".format, aggregated, filters)


@st.composite
def windows(draw: st.DrawFn) -> str:
    size = draw(st.sampled_from(SIZES))
    if draw(st.booleans()):
        return f"TUMBLE(payments, at, INTERVAL '{size}')"
    slide = draw(st.sampled_from(["5 seconds", "10 seconds", "30 seconds"]))
    return f"HOP(payments, at, INTERVAL '{slide}', INTERVAL '{draw(st.integers(1, 4)) * 30} s')"


@st.composite
def queries(draw: st.DrawFn) -> str:
    where = draw(wheres)
    if draw(st.booleans()):
        found = draw(st.lists(values, min_size=1, max_size=4))
        columns = ", ".join(f"{value} AS c{number}" for number, value in enumerate(found))
        return f"SELECT {columns} FROM payments{where}"
    groups = draw(st.lists(keys, max_size=2, unique=True))
    found = draw(st.lists(aggregates, min_size=1, max_size=4))
    columns = ", ".join(f"{value} AS c{number}" for number, value in enumerate([*groups, *found]))
    numbers = "".join(f", {number + 2}" for number in range(len(groups)))
    having = f" HAVING count(*) > {draw(st.integers(0, 2))}" if draw(st.booleans()) else ""
    source = draw(windows())
    groups_by = f"GROUP BY window_start{numbers}{having}"
    return f"SELECT window_start, {columns} FROM {source}{where} {groups_by}"


@given(query=queries(), rows=payments)
@settings(max_examples=examples(1000))
def test_drawn_queries_give_the_rows_of_postgres(
    server: psycopg.Connection[Any], query: str, rows: list[Payment]
) -> None:
    written = f"INSERT INTO result\n{query}"
    found, expected = (
        asyncio.run(from_pipeline(written, rows)),
        from_postgres(server, written, rows),
    )
    assert agree(found.elements(), expected.elements()), f"{expected}\n{found}"


# -- steps ----------------------------------------------------------------------------------------


async def test_records_that_arrive_together_are_sent_as_groups() -> None:
    """With the least timestamp of each, so that the watermark waits for all of them."""
    pipeline, _ = pipeline_of(
        "INSERT INTO r SELECT account, window_start, sum(cents) AS s FROM TUMBLE(payments, at, "
        "INTERVAL '1 minute') GROUP BY account, window_start"
    )
    loop = pipeline.nodes["make_r_partials"].computation
    assert isinstance(loop, Loop)
    rows = [
        Payment("ann", EPOCH + timedelta(seconds=second), cents)
        for second, cents in ((30, 1), (10, 2), (50, 4), (70, 8))
    ]
    times = [to_micros(row.at) for row in rows]
    found, micros, places = loop._function(rows, times)
    assert [(part.k0, part.s0) for part in found] == [("ann", 7), ("ann", 8)]
    assert micros == [times[1], times[3]]
    assert places == [0, 3]


async def test_only_the_record_that_fails_becomes_a_dead_letter() -> None:
    pipeline, result = pipeline_of(
        "INSERT INTO r SELECT cents, 100 / cents AS q, at FROM payments", on_error="dead_letter"
    )
    async with Harness(pipeline) as harness:
        rows = [Payment("ann", EPOCH + timedelta(seconds=n), n - 2) for n in range(5)]
        await harness.inject(PAYMENTS_STREAM, *rows)
        assert sorted(row.cents for row in harness.produced(result)) == [-2, -1, 1, 2]
        assert {row.at for row in harness.produced(result)} == {r.at for r in rows if r.cents}
        (letter,) = harness.dead_letters
        assert "division by zero" in letter.error


async def test_windows_over_another_time_than_the_streams_are_refused() -> None:
    pipeline = Pipeline("times")
    pipeline.inject(
        PAYMENTS_STREAM, Inbox(), timestamp=lambda payment: payment.at + timedelta(hours=1)
    )
    result = pipeline.sql(
        "INSERT INTO r SELECT window_start, count(*) FROM TUMBLE(payments, at, INTERVAL '1 minute')"
        " GROUP BY 1",
        on_error="dead_letter",
    )
    pipeline.sink(result, Discard())
    async with Harness(pipeline) as harness:
        await harness.inject(PAYMENTS_STREAM, PAYMENTS[0])
        (letter,) = harness.dead_letters
        assert "windows follow the event time that the stream was given" in letter.error


async def test_a_group_without_windows_sends_its_new_values() -> None:
    pipeline, result = pipeline_of(
        "INSERT INTO r SELECT account, count(*) AS n, sum(cents) AS s FROM payments "
        "GROUP BY account RETAIN INTERVAL '1 day'"
    )
    async with Harness(pipeline) as harness:
        await harness.inject(PAYMENTS_STREAM, Payment("ann", EPOCH, 1), Payment("ann", EPOCH, 2))
        await harness.inject(PAYMENTS_STREAM, Payment("ann", EPOCH + timedelta(hours=1), 4))
        later = EPOCH + timedelta(days=3)
        await harness.inject(PAYMENTS_STREAM, Payment("ann", later, 8))
        found = [(row.account, row.n, int(row.s)) for row in harness.produced(result)]
        assert found == [("ann", 2, 3), ("ann", 3, 7), ("ann", 1, 8)]


async def test_late_records_amend_a_window_for_as_long_as_is_said() -> None:
    pipeline, result = pipeline_of(
        "INSERT INTO r SELECT window_start, count(*) AS n FROM TUMBLE(payments, at, INTERVAL "
        "'1 minute') GROUP BY window_start ALLOWED LATENESS INTERVAL '1 hour'"
    )
    async with Harness(pipeline) as harness:
        await harness.inject(PAYMENTS_STREAM, Payment("ann", EPOCH, 1))
        await harness.advance(PAYMENTS_STREAM, EPOCH + timedelta(minutes=10))
        await harness.inject(PAYMENTS_STREAM, Payment("ann", EPOCH, 2))
        await harness.advance(PAYMENTS_STREAM, EPOCH + timedelta(hours=3))
        await harness.inject(PAYMENTS_STREAM, Payment("ann", EPOCH, 3))
        assert [row.n for row in harness.produced(result)] == [1, 2]


async def test_the_others_of_a_chunk_that_fails_are_in_their_windows() -> None:
    """They run one by one."""
    pipeline, result = pipeline_of(
        "INSERT INTO r SELECT window_start, sum(100 / cents) AS s FROM TUMBLE(payments, at, "
        "INTERVAL '1 minute') WHERE cents >= 0 GROUP BY window_start",
        on_error="dead_letter",
    )
    async with Harness(pipeline) as harness:
        rows = [Payment("ann", EPOCH + timedelta(minutes=n), n) for n in range(3)]
        await harness.inject(PAYMENTS_STREAM, *rows)
        await harness.advance(PAYMENTS_STREAM, EPOCH + timedelta(days=1))
        found = [(row.window_start, int(row.s)) for row in harness.produced(result)]
        assert found == [(rows[1].at, 100), (rows[2].at, 50)]
        assert len(harness.dead_letters) == 1


async def test_each_record_of_a_chunk_is_checked_for_its_time() -> None:
    pipeline = Pipeline("times")
    late = timedelta(hours=1)
    pipeline.inject(
        PAYMENTS_STREAM,
        Inbox(),
        timestamp=lambda payment: payment.at + (late if payment.cents < 0 else timedelta(0)),
    )
    result = pipeline.sql(
        "INSERT INTO r SELECT window_start, count(*) FROM TUMBLE(payments, at, INTERVAL '1 minute')"
        " GROUP BY 1",
        on_error="dead_letter",
    )
    pipeline.sink(result, Discard())
    async with Harness(pipeline) as harness:
        await harness.inject(PAYMENTS_STREAM, *(Payment("ann", EPOCH, n) for n in (1, -1, 2)))
        await harness.advance(PAYMENTS_STREAM, EPOCH + timedelta(days=1))
        (letter,) = harness.dead_letters
        assert '"cents":-1' in letter.value
        assert [row.count for row in harness.produced(result)] == [2]


async def test_records_out_of_order_make_one_session() -> None:
    pipeline, result = pipeline_of(
        "INSERT INTO r SELECT account, window_start, sum(cents) AS s FROM SESSION(payments, at, "
        "INTERVAL '1 minute') GROUP BY account, window_start"
    )
    async with Harness(pipeline) as harness:
        seconds = (50, 0, 300, 100, 140)
        rows = [Payment("ann", EPOCH + timedelta(seconds=n), 1) for n in seconds]
        await harness.inject(PAYMENTS_STREAM, *rows)
        await harness.advance(PAYMENTS_STREAM, EPOCH + timedelta(days=2))
        found = [(row.window_start, int(row.s)) for row in harness.produced(result)]
        assert sorted(found) == [(EPOCH, 4), (EPOCH + timedelta(seconds=300), 1)]


async def test_two_statements_may_write_one_stream() -> None:
    pipeline, result = pipeline_of(
        "INSERT INTO r SELECT cents FROM payments; INSERT INTO r SELECT -cents AS cents FROM "
        "payments"
    )
    async with Harness(pipeline) as harness:
        await harness.inject(PAYMENTS_STREAM, Payment("ann", EPOCH, 1))
        assert sorted(row.cents for row in harness.produced(result)) == [-1, 1]


def test_a_text_with_a_mistake_changes_nothing() -> None:
    pipeline = Pipeline("unchanged")
    pipeline.inject(PAYMENTS_STREAM, Inbox(), timestamp=lambda payment: payment.at)
    before = set(pipeline.nodes)
    with pytest.raises(SqlError):
        pipeline.sql("INSERT INTO r SELECT cents FROM payments; INSERT INTO q SELECT x FROM r")
    assert set(pipeline.nodes) == before


async def test_a_literal_has_the_type_of_the_column_that_it_is_inserted_into() -> None:
    pipeline = Pipeline("literals")
    pipeline.inject(PAYMENTS_STREAM, Inbox(), timestamp=lambda payment: payment.at)
    result = pipeline.sql(
        "CREATE TABLE t (a bigint, b numeric, c text); "
        "INSERT INTO t SELECT NULL, '1.50', 'tea' FROM payments"
    )
    async with Harness(pipeline) as harness:
        await harness.inject(PAYMENTS_STREAM, PAYMENTS[0])
        (row,) = harness.produced(result)
        assert (row.a, row.b, row.c) == (None, Decimal("1.50"), "tea")


TOTALS = "INSERT INTO r SELECT account, sum(cents)::bigint AS s FROM payments GROUP BY account {}"


@pytest.mark.parametrize(
    ("query", "key"),
    [
        (TOTALS.format("RETAIN UNBOUNDED"), ("account",)),
        (
            "INSERT INTO r SELECT account, s + 1 AS s FROM (SELECT account, sum(cents)::bigint AS s"
            " FROM payments GROUP BY account RETAIN UNBOUNDED) AS x",
            ("account",),
        ),
        (
            "INSERT INTO r SELECT window_start, cents > 3 AS large, count(*) AS n FROM "
            "TUMBLE(payments, at, INTERVAL '1 minute') GROUP BY 1, 2 ALLOWED LATENESS UNBOUNDED",
            ("window_start", "large"),
        ),
        (
            "INSERT INTO r SELECT cents, n FROM (SELECT *, row_number() OVER (ORDER BY at) AS n "
            "FROM payments) AS x WHERE n < 3 RETAIN UNBOUNDED",
            ("n",),
        ),
        (
            "INSERT INTO r SELECT account, cents FROM (SELECT account, cents, row_number() OVER "
            "(PARTITION BY account ORDER BY at) AS n FROM payments) AS x WHERE n < 2 "
            "RETAIN UNBOUNDED",
            ("account",),
        ),
    ],
)
def test_rows_that_replace_others_are_written_by_the_step_that_makes_them(
    query: str, key: tuple[str, ...]
) -> None:
    """On the way to another step, an older one could overtake a newer one."""
    pipeline, result = pipeline_of(query)
    before = {node.name for node in pipeline.graph().nodes}
    pipeline.sink(result, Table("r", result.value_type, key=key))
    assert {node.name for node in pipeline.graph().nodes} == before


@pytest.mark.parametrize(
    ("query", "key", "says"),
    [
        (TOTALS.format("RETAIN UNBOUNDED"), ("s",), r"must contain \(account\)"),
        (
            "INSERT INTO r SELECT sum(cents)::bigint AS s FROM payments GROUP BY account "
            "RETAIN UNBOUNDED",
            ("s",),
            "Add the columns of GROUP BY",
        ),
        (
            "INSERT INTO r SELECT window_start, window_end, account, count(*) AS s FROM "
            "TUMBLE(payments, at, INTERVAL '1 minute') GROUP BY 1, 2, 3 EMIT ON UPDATE",
            ("account",),
            r"must contain \(account, window_end or window_start\)",
        ),
        (
            "INSERT INTO r SELECT account, n FROM (SELECT account, row_number() OVER (PARTITION BY "
            "account ORDER BY at) AS n FROM payments) AS x WHERE n < 3 RETAIN UNBOUNDED",
            ("account",),
            r"must contain \(account, n\)",
        ),
    ],
)
def test_a_table_in_which_rows_could_overtake_others_is_refused(
    query: str, key: tuple[str, ...], says: str
) -> None:
    pipeline, result = pipeline_of(query.replace("sum(cents)::bigint", "count(*)"))
    pipeline.sink(result, Table("r", result.value_type, key=key))
    with pytest.raises(GraphError, match=says):
        pipeline.graph()


class Total(Struct):
    """A row of `TOTALS`."""

    account: str
    s: int | None


RESULT = Stream("r", Total)


def test_a_stream_may_be_written_by_queries_of_two_pipelines() -> None:
    """One after the other, as tests and examples build a pipeline several times."""
    payments = Stream("wages", Payment)
    for _ in range(2):
        pipeline = Pipeline("again")
        pipeline.inject(payments, Inbox(), timestamp=lambda payment: payment.at)
        pipeline.sql(TOTALS.format("RETAIN UNBOUNDED").replace("payments", "wages"), RESULT)
        assert RESULT.facts.is_updating
    other = Pipeline("other")
    other.inject(payments, Inbox(), timestamp=lambda payment: payment.at)
    other.sql("INSERT INTO r SELECT account, cents AS s FROM wages", RESULT)
    assert not RESULT.facts.is_updating
