"""A deploy sees each change of a query, and none where there is none."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from millwheel import Inbox, Pipeline
from tests.sql.answers import PAYMENTS
from tests.sql.meanings import described

MINUTE = "TUMBLE(payments, at, INTERVAL '1 minute') w"
RANKED = """
SELECT account, {} AS c, n FROM (SELECT account, cents, row_number() OVER (PARTITION BY account
ORDER BY {}) AS n FROM payments) x WHERE n <= {} RETAIN UNBOUNDED
"""
UNNESTED = "SELECT item, tag FROM orders {} unnest(tags) AS x(tag) {}"

CHANGES = [
    (
        "SELECT greatest(cents, fee) AS g FROM payments",
        "SELECT least(cents, fee) AS g FROM payments",
    ),
    *(
        (
            f"SELECT item FROM orders WHERE 'a' {one}(tags)",
            f"SELECT item FROM orders WHERE 'a' {other}(tags)",
        )
        for one, other in (("= ANY", "<> ANY"), ("< ANY", "> ANY"), ("= ALL", "= ANY"))
    ),
    (UNNESTED.format(",", ""), UNNESTED.format("LEFT JOIN", "ON true")),
    *(
        (
            f"SELECT window_start FROM TUMBLE(payments, at, INTERVAL {one}) w",
            f"SELECT window_start FROM TUMBLE(payments, at, INTERVAL {other}) w",
        )
        for one, other in (
            ("'1 minute'", "'1 hour'"),
            ("'1 day', 'Europe/Berlin'", "'1 day', 'Europe/Paris'"),
            ("'1 month'", "'2 months'"),
        )
    ),
    *(
        (
            f"SELECT p.window_start, o.item FROM TUMBLE(payments, at, INTERVAL '{one}') p JOIN "
            "orders o ON p.account = o.customer RETAIN INTERVAL '1 h'",
            f"SELECT p.window_start, o.item FROM TUMBLE(payments, at, INTERVAL '{other}') p JOIN "
            "orders o ON p.account = o.customer RETAIN INTERVAL '1 h'",
        )
        for one, other in (("1 minute", "2 minutes"),)
    ),
    *(
        (RANKED.format("cents", "fee", 2), RANKED.format(*other))
        for other in (
            ("cents + 1", "fee", 2),
            ("cents", "fee DESC", 2),
            ("cents", "fee NULLS FIRST", 2),
            ("cents", "fee", 3),
        )
    ),
]


@pytest.mark.parametrize(("before", "after"), CHANGES)
def test_a_deploy_sees_a_change(before: str, after: str) -> None:
    assert described(before) != described(after)
    assert described(before) == described(before)


JOINED = """
SELECT a.cents AS x, b.cents AS y, c.item, a.note, b.note AS n, c.price, b.price AS p
FROM payments a JOIN payments b ON a.account = b.account AND a.at = b.at
JOIN orders c ON c.customer = b.account AND c.placed = b.at AND b.fee <> c.item
JOIN orders d ON d.customer = c.customer AND d.placed = c.placed AND d.price < c.price
"""


def test_a_query_is_the_same_in_each_process() -> None:
    """Whatever the order of Python's sets is."""
    code = f"from tests.sql.meanings import described; print(described({JOINED!r}))"
    seen = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": str(seed)},
            check=True,
            capture_output=True,
        ).stdout
        for seed in range(3)
    }
    assert len(seen) == 1


@pytest.mark.parametrize("length", [30, 48])
def test_names_that_follow_from_a_long_one_are_shortened(length: int) -> None:
    pipeline = Pipeline("names")
    pipeline.inject(PAYMENTS, Inbox(), timestamp=lambda payment: payment.at)
    name = "a" * length
    result = pipeline.sql(
        f"INSERT INTO {name} SELECT * FROM (SELECT *, row_number() OVER (PARTITION BY window_end "
        f"ORDER BY n) AS r FROM (SELECT account, window_end, count(*) AS n FROM {MINUTE} "
        "GROUP BY account, window_end) s) x WHERE r < 3"
    )
    assert result.name == name
    assert all(len(node) <= 48 for node in pipeline.nodes)
