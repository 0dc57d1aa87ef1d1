"""A record on which a query fails: the error shows the line of the query."""

from __future__ import annotations

import pytest

from millwheel import sql
from millwheel.testing import Harness
from tests.sql.answers import ORDERS, PAYMENTS, Order, Payment, pipeline_of
from tests.sql.rows import second

MINUTE = "INTERVAL '1 minute'"


@sql.function
def refuses(value: int) -> int:
    raise LookupError(f"no {value}")


@pytest.mark.parametrize(
    ("query", "says"),
    [
        ("SELECT account,\n  1 + 100 / cents AS x\nFROM payments",
         "division by zero, in line 3 of the query: 100 / cents AS x"),
        ("SELECT account\nFROM payments\nWHERE fee IS NULL AND 1 / cents > 0",
         "division by zero, in line 4 of the query: 1 / cents > 0"),
        (f"SELECT window_start,\n  sum(1 % cents)\nFROM TUMBLE(payments, at, {MINUTE})\nGROUP BY 1",
         "division by zero, in line 3 of the query: 1 % cents)"),
        (f"SELECT window_start, count(*)\nFROM TUMBLE(payments, at, {MINUTE})\n"
         "GROUP BY 1, 1 / cents", "division by zero, in line 4 of the query: 1 / cents"),
        (f"SELECT window_start, sum(cents)\nFROM TUMBLE(payments, at, {MINUTE})\nGROUP BY 1\n"
         "HAVING 1 / sum(cents) > 0", "division by zero, in line 5 of the query: 1 / sum(cents) >"),
        ("SELECT item FROM payments JOIN orders ON account = customer\n"
         "  AND item / cents < 7\nRETAIN UNBOUNDED",
         "division by zero, in line 3 of the query: item / cents < 7"),
        ("SELECT (account || 'x')::int AS x FROM payments",
         'invalid input syntax for type integer: "annx", in line 2 of the query: account || '),
    ],
)  # fmt: skip
async def test_the_line_of_the_query_is_shown(query: str, says: str) -> None:
    pipeline, _ = pipeline_of(f"INSERT INTO r\n{query}", on_error="dead_letter")
    async with Harness(pipeline) as harness:
        if "orders" in query:
            await harness.inject(ORDERS, Order("ann", second(0), 1))
        await harness.inject(PAYMENTS, Payment("ann", second(1), 0))
        await harness.advance(PAYMENTS, second(10_000_000))
        (letter,) = harness.dead_letters
        assert says in letter.error


async def test_an_error_of_a_function_of_the_user_names_the_line_in_its_traceback() -> None:
    pipeline, _ = pipeline_of(
        "INSERT INTO r\nSELECT account,\n  refuses(cents) AS x FROM payments",
        on_error="dead_letter",
    )
    async with Harness(pipeline) as harness:
        await harness.inject(PAYMENTS, Payment("ann", second(1), 3))
        (letter,) = harness.dead_letters
        assert letter.error == "LookupError: no 3"
        assert "in line 3 of the query: refuses(cents) AS x FROM payments" in letter.traceback
