"""A file of SQL in parts, and its input."""

from __future__ import annotations

import json
import random
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

SOURCE = """
CREATE SOURCE payments (
    at timestamptz NOT NULL, account text NOT NULL, cents bigint NOT NULL, note text, kind int,
    WATERMARK FOR at AS at - INTERVAL '20 seconds'
) WITH (connector = 'files', path = '{path}');
"""
AS_SQL = {
    "per_minute": """
CREATE TABLE per_minute (
    account text, minute timestamptz, payments bigint, cents numeric, PRIMARY KEY (account, minute)
);
CREATE STREAM large AS SELECT account, at, cents FROM payments WHERE cents > 500;
INSERT INTO per_minute
SELECT account, window_start, count(*), sum(cents)
FROM TUMBLE(large, at, INTERVAL '1 minute')
GROUP BY account, window_start;
""",
    "hops": """
CREATE TABLE hops (
    note text, kind int, begins timestamptz, ends timestamptz, n int, total numeric(30, 0),
    small bigint, least bigint, most text, all_even boolean
);
CREATE STREAM parts AS
SELECT note || '!' AS remark, at AS moment, cents, kind FROM payments WHERE kind IS NOT NULL
UNION ALL SELECT account, at, cents % 100, NULL::int FROM payments WHERE cents < 0 OR account = 'ä';
INSERT INTO hops
SELECT remark, kind, window_start, window_end, count(*), coalesce(sum(cents), 0),
    count(*) FILTER (WHERE cents < 100), min(cents), max(remark), bool_and(cents % 2 = 0)
FROM HOP(parts, moment, INTERVAL '20 seconds', INTERVAL '1 minute')
GROUP BY remark, kind, window_start, window_end
HAVING count(*) > 1 AND max(cents) IS DISTINCT FROM 7;
""",
    "labels": """
CREATE TABLE labels (account text, at timestamptz, label text, rest bigint, is_noted boolean);
INSERT INTO labels
SELECT account, at, CASE WHEN cents % 2 = 0 THEN 'even' WHEN note IS NULL THEN NULL ELSE note END,
    CASE WHEN kind <> 0 THEN cents / kind END, NULLIF(note, 'tea') IS NOT NULL
FROM payments WHERE cents BETWEEN -900 AND 900 AND account IN ('ann', 'bob', 'ä');
""",
    "counts": """
CREATE TABLE counts (begins timestamptz, n bigint, accounts bigint);
INSERT INTO counts
SELECT window_start, count(*), count(note) FROM TUMBLE(
    (SELECT at, note FROM (SELECT at, note, kind FROM payments) AS a WHERE kind > 0) AS b,
    at, INTERVAL '90 seconds'
) GROUP BY window_start;
""",
}
"""By the name of its table, the part of a file that runs as Spark's SQL."""
BY_CLASSES = {
    "totals": """
CREATE TABLE totals (
    account text, n bigint, mean numeric, latest timestamptz, PRIMARY KEY (account)
);
INSERT INTO totals SELECT account, count(*), avg(cents), max(at) FROM payments
GROUP BY account RETAIN UNBOUNDED;
""",
    "retained": """
CREATE TABLE retained (kind int, n bigint, notes bigint, PRIMARY KEY (kind));
INSERT INTO retained SELECT coalesce(kind, -1), count(*), count(DISTINCT note) FROM payments
GROUP BY 1 RETAIN INTERVAL '1 day';
""",
    "visits": """
CREATE TABLE visits (account text, begins timestamptz, ends timestamptz, n bigint, cents numeric);
INSERT INTO visits SELECT account, window_start, window_end, count(*), sum(cents)
FROM SESSION(payments, at, INTERVAL '5 seconds') GROUP BY account, window_start, window_end;
""",
}
"""Parts that do not."""


def write_payments(path: Path, number: int, seed: int = 1) -> None:
    chosen = random.Random(seed)
    begin = datetime(2024, 1, 1, tzinfo=UTC)
    with path.open("w") as lines:
        for place in range(number):
            at = begin + timedelta(milliseconds=500 * place - chosen.randrange(19_000) + 20_000)
            row: dict[str, Any] = {
                "at": at.isoformat(),
                "account": chosen.choice(["ann", "bob", "", "ä", "\U0001f600", "o'neil\\\"${x}"]),
                "cents": chosen.choice([chosen.randrange(-1000, 1000), 2**62, -(2**62), 7]),
                "note": chosen.choice([None, "tea", "Tea", "", "名前"]),
                "kind": chosen.choice([None, 0, 1, -1, 3, 2**31 - 1, -(2**31)]),
            }
            lines.write(json.dumps(row) + "\n")
