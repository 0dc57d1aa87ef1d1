"""What the Nexmark queries must come to, in batch SQL on DuckDB.

A judge that shares no code with the engine or with the example: it knows the three files, and what
the benchmark says of each query. Times are milliseconds since 1970, windows ``[start, end)``; every
answer is a list of rows in no order.

``python tests/support/nexmark_oracle.py DIR q5`` prints an answer as CSV, of the files that
``python -m examples.nexmark --write DIR`` has written, or of anybody's that look the same.
"""

from __future__ import annotations

import csv
import sys
from pathlib import Path
from typing import Any

import duckdb

Row = tuple[Any, ...]

COLUMNS = {
    "person": {
        "id": "BIGINT",
        "name": "VARCHAR",
        "email": "VARCHAR",
        "credit_card": "VARCHAR",
        "city": "VARCHAR",
        "state": "VARCHAR",
        "date_time": "BIGINT",
        "extra": "VARCHAR",
    },
    "auction": {
        "id": "BIGINT",
        "item_name": "VARCHAR",
        "description": "VARCHAR",
        "initial_bid": "BIGINT",
        "reserve": "BIGINT",
        "date_time": "BIGINT",
        "expires": "BIGINT",
        "seller": "BIGINT",
        "category": "BIGINT",
        "extra": "VARCHAR",
    },
    "bid": {
        "auction": "BIGINT",
        "bidder": "BIGINT",
        "price": "BIGINT",
        "date_time": "BIGINT",
        "extra": "VARCHAR",
    },
}

WINNING = """
    WITH ranked AS (
        SELECT a.id AS auction, a.seller, a.category, a.reserve, a.expires,
               b.bidder, b.price, b.date_time,
               row_number() OVER (
                   PARTITION BY a.id ORDER BY b.price DESC, b.date_time ASC, b.bidder ASC
               ) AS place
        FROM auction a JOIN bid b ON b.auction = a.id
        WHERE b.price >= a.reserve AND b.date_time < a.expires
    ),
    winning AS (SELECT * EXCLUDE place FROM ranked WHERE place = 1)
"""

HOT_ITEMS = """
    WITH counted AS (
        SELECT slide.start, auction, count(*) AS bids
        FROM bid, LATERAL (
            SELECT unnest(range(
                date_time - date_time % {period}, date_time - 10000, -{period}
            )) AS start
        ) slide
        GROUP BY slide.start, auction
    )
    SELECT auction, start, start + 10000, bids
    FROM counted c
    WHERE bids = (SELECT max(bids) FROM counted o WHERE o.start = c.start)
"""

QUERIES = {
    "q0": "SELECT auction, bidder, price, date_time, extra FROM bid",
    "q1": "SELECT auction, bidder, 0.908 * price, date_time, extra FROM bid",
    "q2": "SELECT auction, price FROM bid WHERE auction % 123 = 0",
    "q3": """
        SELECT p.name, p.city, p.state, a.id
        FROM auction a JOIN person p ON a.seller = p.id
        WHERE a.category = 10 AND p.state IN ('OR', 'ID', 'CA')
    """,
    "q4": WINNING
    + """
        SELECT category, start, start + 10000, avg(price)
        FROM winning, LATERAL (
            SELECT unnest([expires - expires % 5000, expires - expires % 5000 - 5000]) AS start
        ) slide
        GROUP BY category, start
    """,
    "q4_sql": """
        SELECT category, avg(final)
        FROM (
            SELECT a.id, a.category, max(b.price) AS final
            FROM auction a, bid b
            WHERE a.id = b.auction AND b.date_time BETWEEN a.date_time AND a.expires
            GROUP BY a.id, a.category
        )
        GROUP BY category
    """,
    "q5": HOT_ITEMS.format(period=5000),
    "q5_sql": HOT_ITEMS.format(period=2000),
    "q6": WINNING
    + """
        SELECT seller, auction, expires, avg(price) OVER (
            PARTITION BY seller ORDER BY expires, auction
            ROWS BETWEEN 9 PRECEDING AND CURRENT ROW
        )
        FROM winning
    """,
    "q7": """
        WITH highest AS (
            SELECT date_time // 10000 AS number, max(price) AS price FROM bid GROUP BY number
        )
        SELECT h.number * 10000, b.auction, b.bidder, b.price, b.date_time, b.extra
        FROM bid b JOIN highest h ON b.price = h.price AND b.date_time // 10000 = h.number
    """,
    "q8": """
        SELECT DISTINCT p.id, p.name, p.start, p.start + 10000
        FROM (SELECT id, name, date_time - date_time % 10000 AS start FROM person) p
        JOIN (SELECT seller, date_time - date_time % 10000 AS start FROM auction) a
          ON p.id = a.seller AND p.start = a.start
    """,
    "q9": WINNING + "SELECT * FROM winning",
    "q11": """
        WITH marked AS (
            SELECT bidder, date_time, coalesce(
                date_time - lag(date_time) OVER (PARTITION BY bidder ORDER BY date_time) >= 10000,
                true
            ) AS begins
            FROM bid
        ),
        numbered AS (
            SELECT bidder, date_time, count_if(begins) OVER (
                PARTITION BY bidder ORDER BY date_time ROWS UNBOUNDED PRECEDING
            ) AS session
            FROM marked
        )
        SELECT bidder, min(date_time), max(date_time) + 10000, count(*)
        FROM numbered GROUP BY bidder, session
    """,
    # needs a table `arrival (bidder, arrived)`: when each bid was processed
    "q12": """
        SELECT bidder, arrived - arrived % 10000, arrived - arrived % 10000 + 10000, count(*)
        FROM arrival GROUP BY ALL
    """,
}


class Oracle:
    """The events in `directory`: person.jsonl, auction.jsonl and bid.jsonl."""

    def __init__(self, directory: Path) -> None:
        self._database = duckdb.connect()
        for table, columns in COLUMNS.items():
            file = directory / f"{table}.jsonl"
            fields = ", ".join(f"{name} {type_}" for name, type_ in columns.items())
            self._database.execute(f"CREATE TABLE {table} ({fields})")
            if file.stat().st_size:
                self._database.execute(
                    f"INSERT INTO {table} BY NAME SELECT * FROM read_json("
                    "?, format = 'newline_delimited', columns = ?)",
                    [str(file), columns],
                )

    def arrive(self, arrivals: list[tuple[int, int]]) -> None:
        """For Q12: the bidder of each bid, and the wall time when it was processed."""
        self._database.execute("CREATE OR REPLACE TABLE arrival (bidder BIGINT, arrived BIGINT)")
        self._database.executemany("INSERT INTO arrival VALUES (?, ?)", arrivals)

    def answer(self, query: str) -> list[Row]:
        """The rows of a query."""
        return self.rows(QUERIES[query])

    def rows(self, statement: str) -> list[Row]:
        """The rows of any statement on the three tables."""
        return self._database.execute(statement).fetchall()


def main() -> None:
    directory, query = sys.argv[1:]
    csv.writer(sys.stdout, lineterminator="\n").writerows(
        sorted(Oracle(Path(directory)).answer(query))
    )


if __name__ == "__main__":
    main()
