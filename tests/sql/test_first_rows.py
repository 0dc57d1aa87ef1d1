"""First rows of partitions: those of Postgres, at the end of windows or replaced as they change."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import psycopg
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millwheel.testing import Harness
from tests.sql.answers import PAYMENTS, Payment, from_pipeline, from_postgres, pipeline_of, rows_of
from tests.sql.rows import ORDERED, PAID, paid, second
from tests.support.examples import examples

MINUTE = "TUMBLE(payments, at, INTERVAL '1 minute') w"
COUNTS = f"SELECT account, count(*) AS n, window_end FROM {MINUTE} GROUP BY account, window_end"

IN_WINDOWS = f"""
SELECT * FROM (SELECT account, n, window_end, row_number() OVER (PARTITION BY window_end ORDER BY
n DESC, account) AS rank FROM ({COUNTS}) c) x WHERE rank <= 2
|
SELECT account, rank FROM (SELECT account, n, window_end, rank() OVER (PARTITION BY window_end
ORDER BY n DESC) AS rank FROM ({COUNTS}) c) x WHERE rank <= 1 AND n > 0
|
SELECT account, rank FROM (SELECT account, n, window_end, dense_rank() OVER (PARTITION BY window_end
ORDER BY n) AS rank FROM ({COUNTS}) c) x WHERE rank < 3
|
SELECT account, most FROM (SELECT account, max(cents) AS most, window_end, row_number() OVER
(PARTITION BY window_end ORDER BY count(*) DESC, account DESC) FROM {MINUTE}
GROUP BY account, window_end) x WHERE row_number = 1
|
SELECT account, r FROM (SELECT account, window_end, rank() OVER (PARTITION BY window_end
ORDER BY account) AS r FROM ({COUNTS}) c) x WHERE 3 >= r AND r = 2
|
SELECT DISTINCT ON (window_end) account, n FROM ({COUNTS}) c ORDER BY window_end, n DESC, account
|
SELECT DISTINCT ON (e) window_end AS e, account, -n AS n FROM ({COUNTS}) c ORDER BY e, n, 2 DESC
|
SELECT DISTINCT ON (2, window_end) account, window_end, c.n FROM ({COUNTS}) c ORDER BY 2, c.n, 1
"""


@pytest.mark.parametrize("query", IN_WINDOWS.split("|"))
async def test_first_rows_of_windows_are_those_of_postgres(
    query: str, server: psycopg.Connection[Any]
) -> None:
    written = f"INSERT INTO result\n{' '.join(query.split())}"
    found = await from_pipeline(written, PAID, ORDERED)
    assert found == from_postgres(server, written, PAID, ORDERED)
    assert found


def _last(rows: Sequence[tuple[Any, ...]], key: int) -> dict[tuple[Any, ...], tuple[Any, ...]]:
    """The rows that a table with a key of so many columns has in the end."""
    return {row[:key]: row for row in rows}


ORDERS_BY = ["cents", "cents DESC", "fee", "fee DESC NULLS LAST", "note DESC", "price DESC, cents",
             "paid NULLS FIRST", "fee NULLS FIRST, note DESC NULLS FIRST"]  # fmt: skip


@given(
    order=st.sampled_from(ORDERS_BY),
    limit=st.integers(1, 4),
    partition=st.sampled_from(["account", "note", "account, paid", "cents > 0"]),
    payments=paid,
)
@settings(max_examples=examples(500))
def test_drawn_first_rows_are_those_of_postgres(
    server: psycopg.Connection[Any], order: str, limit: int, partition: str, payments: list[Payment]
) -> None:
    """With the time as the last part of the order, of which there is one of each."""
    payments = list({payment.at: payment for payment in payments}.values())
    columns = ", ".join(f"{part} AS p{n}" for n, part in enumerate(partition.split(", ")))
    query = (
        f"INSERT INTO result\nSELECT * FROM (SELECT {columns}, row_number() OVER (PARTITION BY "
        f"{partition} ORDER BY {order}, at) AS rank, at, cents FROM payments) x "
        f"WHERE rank <= {limit} RETAIN UNBOUNDED"
    )
    key = len(partition.split(", ")) + 1
    found = _last(asyncio.run(rows_of(query, payments)), key)
    wanted = from_postgres(server, query, payments)
    assert sorted(map(repr, found.values())) == sorted(map(repr, wanted.elements()))


@pytest.mark.parametrize("order", ["at", "at DESC", "cents DESC, at"])
async def test_distinct_on_is_the_first_row(order: str, server: psycopg.Connection[Any]) -> None:
    query = (
        "INSERT INTO result\nSELECT DISTINCT ON (account) account, cents, at FROM payments "
        f"ORDER BY account, {order} RETAIN INTERVAL '30 days'"
    )
    found = _last(await rows_of(query, PAID), 1)
    assert sorted(found.values()) == sorted(from_postgres(server, query, PAID).elements())


async def test_a_row_is_sent_when_its_rank_changes() -> None:
    pipeline, result = pipeline_of(
        "INSERT INTO r SELECT * FROM (SELECT cents, row_number() OVER (ORDER BY cents DESC) AS n "
        "FROM payments) x WHERE n <= 2 RETAIN UNBOUNDED"
    )
    async with Harness(pipeline) as harness:
        for number, cents in enumerate((5, 9, 1, 7)):
            await harness.inject(PAYMENTS, Payment("ann", second(number), cents))
        found = [(row.cents, row.n) for row in harness.produced(result)]
        assert found == [(5, 1), (9, 1), (5, 2), (7, 2)]


async def test_rows_are_forgotten_after_their_time() -> None:
    pipeline, result = pipeline_of(
        "INSERT INTO r SELECT * FROM (SELECT cents, row_number() OVER (ORDER BY cents DESC) AS n "
        "FROM payments) x WHERE n = 1 RETAIN INTERVAL '1 hour'"
    )
    async with Harness(pipeline) as harness:
        await harness.inject(PAYMENTS, Payment("ann", second(0), 9))
        await harness.inject(PAYMENTS, Payment("ann", second(7200), 1))
        assert [row.cents for row in harness.produced(result)] == [9, 1]


@pytest.mark.parametrize("query", ["DISTINCT account", "account"])
async def test_a_distinct_row_is_sent_once_as_long_as_it_is_kept(query: str) -> None:
    groups = "" if "DISTINCT" in query else " GROUP BY account"
    pipeline, result = pipeline_of(
        f"INSERT INTO r SELECT {query} FROM payments{groups} RETAIN INTERVAL '1 hour'"
    )
    async with Harness(pipeline) as harness:
        for number, account in ((0, "ann"), (1, "bob"), (2, "ann"), (7200, "ann")):
            await harness.inject(PAYMENTS, Payment(account, second(number), 1))
        assert [row.account for row in harness.produced(result)] == ["ann", "bob", "ann"]
