"""Joins, and queries over their results, give the rows that Postgres gives over the same input."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millwheel import Discard, Inbox, Pipeline
from millwheel.testing import Harness
from tests.sql.answers import (
    EPOCH,
    ORDERS,
    PAYMENTS,
    Order,
    Payment,
    from_pipeline,
    from_postgres,
    pipeline_of,
    rows_of,
)
from tests.sql.rows import ORDERED, PAID, ordered, paid, second
from tests.support.examples import examples

NEAR = "o.placed BETWEEN p.at - INTERVAL '10 s' AND p.at + INTERVAL '5 s'"
MINUTE = "INTERVAL '1 minute'"
PAIRS = "payments p {} JOIN orders o ON p.account = o.customer AND " + NEAR

QUERIES = [
    *(f"SELECT p.cents, o.item FROM {PAIRS.format(k)}" for k in ("", "LEFT", "RIGHT", "FULL")),
    f"SELECT p.*, o.item FROM {PAIRS.format('')}",
    f"SELECT o.*, p.cents FROM {PAIRS.format('LEFT')} AND o.item < p.cents",
    f"SELECT p.cents, o.item FROM {PAIRS.format('LEFT')} AND p.paid",
    f"SELECT p.cents, o.item FROM {PAIRS.format('RIGHT')} AND p.paid AND o.item > 1",
    f"SELECT p.cents, o.item FROM {PAIRS.format('FULL')} AND p.paid AND o.item > 1",
    f"SELECT p.cents, o.item FROM {PAIRS.format('LEFT')} WHERE o.item IS NULL AND p.cents > 0",
    f"SELECT p.cents FROM payments p, orders o WHERE p.account = o.customer AND {NEAR} AND p.paid",
    f"SELECT p.cents, o.item FROM payments p JOIN orders o ON o.price = p.price AND {NEAR}",
    "SELECT p.cents, o.item FROM payments p LEFT JOIN orders o ON o.item + 1 = p.fee + 1 AND "
    f"{NEAR}",
    f"SELECT p.cents, o.item FROM payments p FULL JOIN orders o ON o.customer = p.note AND {NEAR}",
    "SELECT p.cents, q.cents AS next FROM payments p JOIN payments q ON p.account = q.account "
    "AND q.at > p.at AND q.at <= p.at + INTERVAL '1 hour'",
    "SELECT p.cents, o.item FROM payments p JOIN orders o ON p.account = o.customer "
    "RETAIN UNBOUNDED",
    "SELECT p.cents, o.item FROM payments p JOIN orders o ON p.account = o.customer AND "
    "o.item >= p.fee RETAIN INTERVAL '1 day'",
    "SELECT p.cents, o.item FROM payments p LEFT JOIN orders o ON p.account = o.customer "
    "RETAIN INTERVAL '1 day'",
    f"SELECT p.account, p.cents, o.item FROM TUMBLE(payments, at, {MINUTE}) p JOIN "
    f"TUMBLE(orders, placed, {MINUTE}) o ON p.account = o.customer AND "
    "p.window_start = o.window_start",
    f"SELECT p.account, p.window_end, o.item FROM TUMBLE(payments, at, {MINUTE}) p LEFT JOIN "
    f"TUMBLE(orders, placed, {MINUTE}) o ON p.account = o.customer AND p.window_end = o.window_end "
    "AND o.window_start = p.window_start",
    f"SELECT p.cents, o.item FROM TUMBLE(payments, at, {MINUTE}) p FULL JOIN "
    f"TUMBLE(orders, placed, {MINUTE}) o ON p.window_end = o.window_end",
    "SELECT a.cents, b.cents AS b, c.item FROM payments a JOIN payments b ON a.account = b.account "
    "AND b.at BETWEEN a.at AND a.at + INTERVAL '2 minutes' LEFT JOIN orders c ON "
    "c.customer = b.account AND c.placed BETWEEN b.at - INTERVAL '1 h' AND b.at + INTERVAL '1 h'",
    *(
        f"SELECT a.cents, b.cents AS b, c.item FROM payments a {first} JOIN payments b ON a.account"
        " = b.account AND b.at BETWEEN a.at - INTERVAL '1 s' AND a.at + INTERVAL '1 minute' "
        f"{then} JOIN orders c ON c.customer = a.account AND c.placed BETWEEN a.at - INTERVAL '9 s'"
        " AND a.at + INTERVAL '9 s'"
        for first in ("", "LEFT", "RIGHT", "FULL")
        for then in ("", "LEFT", "RIGHT", "FULL")
    ),
    f"SELECT p.cents, o.item, q.cents AS q FROM TUMBLE(payments, at, {MINUTE}) p JOIN "
    f"TUMBLE(orders, placed, {MINUTE}) o ON p.account = o.customer AND p.window_start = "
    f"o.window_start LEFT JOIN payments q ON q.at BETWEEN p.at AND p.at + {MINUTE} AND "
    "q.account = p.account",
    "SELECT item, tag FROM orders, unnest(tags) AS tag",
    "SELECT item, tag FROM orders LEFT JOIN unnest(tags) AS x(tag) ON true",
    "SELECT item, tag, n FROM orders LEFT JOIN unnest(tags) WITH ORDINALITY AS x(tag, n) ON true",
    "SELECT item, tag FROM orders CROSS JOIN LATERAL unnest(tags) AS x(tag) WHERE tag = 'c'",
    f"SELECT tag, window_start, count(*) AS n FROM TUMBLE(orders, placed, {MINUTE}), "
    "unnest(tags) AS x(tag) WHERE tag IS NOT NULL GROUP BY tag, window_start",
    f"SELECT p.cents, tag FROM {PAIRS.format('')}, unnest(o.tags) AS x(tag)",
]  # fmt: skip

NESTED = f"""
WITH counts AS (
    SELECT account, count(*) AS n, window_start, window_end
    FROM HOP(payments, at, INTERVAL '30 s', {MINUTE}) GROUP BY account, window_start, window_end
), most AS (
    SELECT max(n) AS n, window_start, window_end FROM counts GROUP BY window_start, window_end
)
SELECT counts.* FROM counts JOIN most ON counts.window_start = most.window_start
    AND counts.window_end = most.window_end AND counts.n = most.n
|
SELECT p.account, p.n, o.n AS orders FROM (
    SELECT account, count(*) AS n, window_end FROM TUMBLE(payments, at, {MINUTE}) w
    GROUP BY account, window_end
) p FULL JOIN (
    SELECT customer, count(*) AS n, window_end FROM TUMBLE(orders, placed, {MINUTE}) w
    GROUP BY customer, window_end
) o ON p.account = o.customer AND p.window_end = o.window_end
|
SELECT p.cents, m.cents AS most FROM payments p JOIN (
    SELECT max(cents) AS cents, window_end FROM TUMBLE(payments, at, {MINUTE}) w GROUP BY window_end
) m ON p.cents = m.cents AND p.at BETWEEN m.window_end - {MINUTE} AND m.window_end
    AND p.at < m.window_end
|
SELECT account, p.window_start, count(*) AS n, sum(o.item) AS items
FROM TUMBLE(payments, at, {MINUTE}) p JOIN TUMBLE(orders, placed, {MINUTE}) o
    ON p.account = o.customer AND p.window_start = o.window_start
GROUP BY account, p.window_start
|
SELECT p.window_end, count(o.item) AS n FROM TUMBLE(payments, at, {MINUTE}) p
LEFT JOIN TUMBLE(orders, placed, {MINUTE}) o
    ON p.account = o.customer AND p.window_start = o.window_start GROUP BY p.window_end
|
SELECT window_start, sum(n) AS n FROM (
    SELECT account, window_start, count(*) AS n FROM TUMBLE(payments, at, {MINUTE}) w
    GROUP BY account, window_start
) x GROUP BY window_start HAVING sum(n) > 1
|
SELECT DISTINCT account, window_end FROM TUMBLE(payments, at, {MINUTE}) w
|
WITH c AS (
    SELECT account, count(*) AS n, window_end FROM TUMBLE(payments, at, {MINUTE}) w
    GROUP BY account, window_end
)
SELECT a.account, b.account AS other, c.account AS third FROM c a
LEFT JOIN c b ON a.window_end = b.window_end AND a.account < b.account
FULL JOIN c ON c.window_end = b.window_end AND c.n = b.n
|
WITH c AS (
    SELECT account, count(*) AS n, window_end FROM TUMBLE(payments, at, {MINUTE}) w
    GROUP BY account, window_end
), d AS (
    SELECT a.account, b.account AS other, b.window_end FROM c a
    LEFT JOIN c b ON a.window_end = b.window_end AND a.account < b.account
)
SELECT d.account, d.other, p.cents FROM (SELECT other, account, window_end FROM d) d
FULL JOIN payments p ON p.account = d.other AND p.at < d.window_end
    AND p.at >= d.window_end - {MINUTE}
|
WITH h AS (
    SELECT account, count(*) AS n, window_end FROM HOP(payments, at, INTERVAL '30 s', {MINUTE})
    GROUP BY account, window_end
)
SELECT h.window_end, sum(p.cents) AS cents FROM TUMBLE(payments, at, {MINUTE}) p
JOIN h ON p.account = h.account AND p.window_end = h.window_end GROUP BY h.window_end
|
SELECT DISTINCT 'a' AS a, 1 AS one FROM payments RETAIN UNBOUNDED
|
SELECT DISTINCT account, cents > 10 AS large FROM payments WHERE cents <> 0 RETAIN UNBOUNDED
|
SELECT account FROM payments GROUP BY account RETAIN INTERVAL '1 day'
"""


HOPS = f"""(
    SELECT account, count(*) AS n, window_end FROM HOP(payments, at, INTERVAL '30 s', {MINUTE})
    GROUP BY account, window_end
) h"""
ENDS = [
    f"SELECT p.cents, h.n FROM TUMBLE(payments, at, {MINUTE}) p {kind} JOIN {HOPS} "
    "ON p.account = h.account AND p.window_end = h.window_end"
    for kind in ("", "LEFT", "RIGHT", "FULL")
]
"""Windows that end together and do not begin together."""


@pytest.mark.parametrize("query", [*QUERIES, *NESTED.split("|"), *ENDS])
async def test_a_query_over_several_streams_gives_the_rows_of_postgres(
    query: str, server: psycopg.Connection[Any]
) -> None:
    written = f"INSERT INTO result\n{query.strip()}"
    found = await from_pipeline(written, PAID, ORDERED)
    assert found == from_postgres(server, written, PAID, ORDERED)
    assert found


# -- drawn joins ----------------------------------------------------------------------------------

KEYS = ["p.account = o.customer", "p.fee = o.item", "p.note = o.customer", "p.price = o.price",
        "p.fee + 1 = o.item", "lower(p.account) = o.customer",
        "p.account = o.customer AND p.fee = o.item"]  # fmt: skip
RESTS = ["p.paid", "o.item > 2", "p.cents > o.item", "o.item IS NOT NULL", "p.note IS NULL",
         "p.fee < 5 OR o.item < 2", "o.price <> p.price", "p.cents + o.item > 0"]  # fmt: skip
COLUMNS = ["p.account", "p.cents", "p.fee", "p.note", "o.customer", "o.item", "o.price",
           "p.at < o.placed", "coalesce(o.item, p.fee)", "p.cents + o.item",
           "o.item IS NULL"]  # fmt: skip
LENGTHS = ["5 seconds", "30 seconds", "2 minutes"]


@st.composite
def joins(draw: st.DrawFn) -> str:
    kind = draw(st.sampled_from(["", "LEFT", "RIGHT", "FULL"]))
    conditions = [draw(st.sampled_from(KEYS))]
    form = draw(st.sampled_from(["near", "windows", "all"]))
    tables = ["payments p", "orders o"]
    retain = ""
    if form == "near":
        before, after = draw(st.sampled_from(LENGTHS)), draw(st.sampled_from(LENGTHS))
        conditions.append(f"o.placed >= p.at - INTERVAL '{before}'")
        conditions.append(f"o.placed < p.at + INTERVAL '{after}'")
    elif form == "windows":
        size = draw(st.sampled_from(LENGTHS))
        tables = [
            f"TUMBLE(payments, at, INTERVAL '{size}') p",
            f"TUMBLE(orders, placed, INTERVAL '{size}') o",
        ]
        conditions.append("p.window_start = o.window_start")
    else:
        retain = " RETAIN INTERVAL '1 day'"
    conditions += draw(st.lists(st.sampled_from(RESTS), max_size=2, unique=True))
    order = draw(st.permutations(conditions))
    where = draw(st.lists(st.sampled_from(RESTS), max_size=2, unique=True))
    columns = draw(st.lists(st.sampled_from(COLUMNS), min_size=1, max_size=4))
    listed = ", ".join(f"{value} AS c{number}" for number, value in enumerate(columns))
    on = " AND ".join(f"({each})" for each in order)
    kept = f" WHERE {' AND '.join(f'({each})' for each in where)}" if where else ""
    return f"SELECT {listed} FROM {tables[0]} {kind} JOIN {tables[1]} ON {on}{kept}{retain}"


@given(query=joins(), payments=paid, orders=ordered)
@settings(max_examples=examples(1000))
def test_drawn_joins_give_the_rows_of_postgres(
    server: psycopg.Connection[Any], query: str, payments: list[Payment], orders: list[Order]
) -> None:
    written = f"INSERT INTO result\n{query}"
    found = asyncio.run(from_pipeline(written, payments, orders))
    assert found == from_postgres(server, written, payments, orders)


# -- what Postgres has no words for ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("query", "steps"),
    [
        ("SELECT p.account, o.item FROM payments p JOIN orders o ON p.cents = o.item", ["r"]),
        ("SELECT p.account, o.item FROM payments p JOIN orders o ON p.cents = o.item "
         "AND o.customer > p.account", ["r"]),
        ("SELECT p.account, o.item FROM payments p JOIN orders o ON p.cents = o.item "
         "AND o.item > 1", ["r", "r_o"]),
        ("SELECT p.cents, o.item FROM payments p JOIN orders o ON p.account = o.customer",
         ["r", "r_o"]),
        ("SELECT p.cents / o.item AS x FROM payments p JOIN orders o ON p.cents = o.item",
         ["r", "r_joined"]),
        ("SELECT p.account, o.item FROM payments p JOIN orders o ON p.cents = o.item + 1",
         ["r", "r_o"]),
        ("SELECT p.cents, q.cents AS c FROM payments p JOIN payments q ON p.account = q.account",
         ["r", "r_p", "r_q"]),
    ],
)  # fmt: skip
def test_a_join_takes_the_columns_and_makes_the_rows_itself_if_neither_can_fail(
    query: str, steps: list[str]
) -> None:
    pipeline, _ = pipeline_of(f"INSERT INTO r {query} RETAIN UNBOUNDED")
    made = {n: node.describe() for n, node in pipeline.nodes.items() if n.startswith("make_")}
    assert sorted(made) == [f"make_{step}" for step in steps]
    assert sum(step["class"] == "LastingJoin" for step in made.values()) == 1


async def test_a_pair_that_fails_leaves_the_other_pairs_of_a_record() -> None:
    pipeline, results = pipeline_of(
        "INSERT INTO r SELECT p.cents / o.item AS x FROM payments p JOIN orders o "
        "ON p.account = o.customer RETAIN UNBOUNDED",
        on_error="dead_letter",
    )
    async with Harness(pipeline) as harness:
        for item in (0, 2):
            await harness.inject(ORDERS, Order("ann", second(0), item))
        await harness.inject(PAYMENTS, Payment("ann", second(1), 8))
        assert [row.x for row in harness.produced(results)] == [4]
        assert len(harness.dead_letters) == 1


async def test_a_join_holds_the_columns_that_it_uses() -> None:
    pipeline, _ = pipeline_of(
        "INSERT INTO r SELECT p.cents, o.item FROM payments p JOIN orders o "
        f"ON p.cents = o.item AND {NEAR}"
    )
    async with Harness(pipeline) as harness:
        await harness.inject(PAYMENTS, Payment("ann", second(1), 8))
        held = [value for entry, value in harness.state("make_r", 8).items() if entry]
        assert [sorted(each["value"]) for each in held] == [["at", "cents"]]


async def test_a_row_is_joined_with_the_version_of_its_time() -> None:
    query = (
        "INSERT INTO r SELECT p.cents, o.item FROM payments p {} JOIN orders FOR SYSTEM_TIME AS OF "
        "p.at AS o ON p.account = o.customer"
    )
    inner = await rows_of(query.format(""), PAID, ORDERED)
    assert sorted(inner) == [(-20, 7), (0, 0), (90, 3), (90, 3)]
    left = await rows_of(query.format("LEFT"), PAID, ORDERED)
    assert sorted(set(left) - set(inner)) == [(7, None), (300, None)]


@pytest.mark.parametrize("word", ["AND", "WHERE"])
async def test_a_condition_besides_the_key_of_a_version(word: str) -> None:
    """It is tested for the newest version, whatever older ones there are."""
    rows = await rows_of(
        "INSERT INTO r SELECT p.cents, o.item FROM payments p JOIN orders FOR SYSTEM_TIME AS OF "
        f"p.at AS o ON p.account = o.customer {word} o.item > 2",
        [*PAID, Payment("ann", second(80), 5)],
        ORDERED,
    )
    assert sorted(rows) == [(-20, 7), (90, 3), (90, 3)]


async def test_the_version_at_the_later_time_of_joined_rows() -> None:
    rows = await rows_of(
        "INSERT INTO r SELECT p.cents, q.cents AS q, o.item FROM payments p JOIN payments q ON "
        "p.account = q.account AND q.at > p.at AND q.at < p.at + INTERVAL '1 h' JOIN orders "
        "FOR SYSTEM_TIME AS OF q.at AS o ON p.account = o.customer",
        PAID,
        ORDERED,
    )
    assert sorted(rows) == [(90, 90, 3), (300, 90, 3), (300, 90, 3)]


async def test_records_of_one_calendar_month_are_joined() -> None:
    months = [EPOCH, EPOCH + timedelta(days=30, hours=23), EPOCH + timedelta(days=40)]
    rows = await rows_of(
        "INSERT INTO r SELECT p.cents, o.item FROM TUMBLE(payments, at, INTERVAL '1 month', "
        "'Europe/Berlin') p JOIN TUMBLE(orders, placed, INTERVAL '1 month', 'Europe/Berlin') o "
        "ON p.account = o.customer AND p.window_start = o.window_start",
        [Payment("ann", at, n) for n, at in enumerate(months)],
        [Order("ann", at, n) for n, at in enumerate(months)],
    )
    assert sorted(rows) == [(0, 0), (1, 1), (1, 2), (2, 1), (2, 2)]


async def test_a_version_may_come_from_a_query_that_replaces_rows() -> None:
    rows = await rows_of(
        "INSERT INTO totals SELECT customer, sum(item)::bigint AS items FROM orders "
        "GROUP BY customer RETAIN UNBOUNDED; INSERT INTO r SELECT p.cents, items FROM payments p "
        "JOIN totals FOR SYSTEM_TIME AS OF p.at AS t ON t.customer = p.account",
        [Payment("ann", second(5), 1), Payment("ann", second(500), 2)],
        [Order("ann", second(1), 3)],
    )
    assert sorted(rows) == [(1, 3), (2, 3)]


async def test_a_version_may_come_from_a_query_of_with() -> None:
    rows = await rows_of(
        "INSERT INTO r WITH totals AS (SELECT customer, sum(item)::bigint AS items FROM orders "
        "GROUP BY customer RETAIN UNBOUNDED) SELECT p.cents, items FROM payments p "
        "JOIN totals FOR SYSTEM_TIME AS OF p.at ON customer = account",
        [Payment("ann", second(500), 2)],
        [Order("ann", second(1), 3), Order("ann", second(2), 4)],
    )
    assert rows == [(2, 7)]


@pytest.mark.parametrize("kind", ["LEFT", "RIGHT", "FULL"])
async def test_a_row_without_a_partner_is_joined_further_by_its_own_time(
    kind: str, server: psycopg.Connection[Any]
) -> None:
    query = (
        "INSERT INTO r\nSELECT a.cents, b.cents AS b, c.item FROM payments a "
        f"{kind} JOIN payments b ON a.account = b.note RETAIN INTERVAL '1 day' "
        "JOIN orders c ON c.item = coalesce(b.fee, a.fee) RETAIN INTERVAL '1 day'"
    )
    found = await from_pipeline(query, PAID, ORDERED)
    assert found == from_postgres(server, query, PAID, ORDERED)
    assert found


async def test_records_wait_for_a_partner_as_long_as_is_said() -> None:
    query = (
        "INSERT INTO r SELECT p.cents, o.item FROM payments p LEFT JOIN orders o ON "
        "p.account = o.customer RETAIN INTERVAL '1 minute'"
    )
    rows = await rows_of(
        query, [Payment("ann", second(0), 1)], [Order("ann", second(n), n) for n in (60, 61)]
    )
    assert rows == [(1, 60)]


@pytest.mark.parametrize(
    "join",
    [
        "payments p JOIN orders o ON p.account = o.customer AND o.placed = p.at",
        "payments p JOIN orders o ON p.cents = o.item AND o.placed = p.at",
        "TUMBLE(payments, at, INTERVAL '1 hour') p JOIN TUMBLE(orders, placed, INTERVAL '1 hour') "
        "o ON p.account = o.customer AND o.window_end = p.window_end",
    ],
)
async def test_a_join_in_windows_follows_the_event_time(join: str) -> None:
    """As a window does: a record with another time in the column is refused."""
    pipeline = Pipeline("times")
    pipeline.inject(PAYMENTS, Inbox(), timestamp=lambda payment: payment.at)
    pipeline.inject(ORDERS, Inbox(), timestamp=lambda order: order.placed + timedelta(seconds=9))
    result = pipeline.sql(
        f"INSERT INTO r SELECT p.cents FROM {join}",
        on_error="dead_letter",
    )
    pipeline.sink(result, Discard())
    async with Harness(pipeline) as harness:
        await harness.inject(ORDERS, Order("ann", second(1), 1))
        await harness.inject(PAYMENTS, Payment("ann", second(1), 1))
        (letter,) = harness.dead_letters
        assert "windows follow the event time" in letter.error


async def test_late_records_go_to_a_stream_of_their_own() -> None:
    pipeline, result = pipeline_of(
        "INSERT INTO r SELECT account, window_start, sum(cents) AS s FROM TUMBLE(payments, at, "
        "INTERVAL '1 minute') WHERE cents > 0 GROUP BY account, window_start LATE INTO too_late; "
        "INSERT INTO r SELECT account, at AS window_start, cents::numeric AS s FROM too_late"
    )
    async with Harness(pipeline) as harness:
        await harness.inject(PAYMENTS, Payment("ann", second(1), 5), Payment("ann", second(2), 6))
        await harness.advance(PAYMENTS, second(600))
        await harness.inject(PAYMENTS, Payment("ann", second(3), 7), Payment("ann", second(3), -7))
        found = [(row.account, row.window_start, int(row.s)) for row in harness.produced(result)]
        assert found == [("ann", EPOCH, 11), ("ann", second(3), 7)]
