"""Writes orders to a database that is not the store, a SQLite file: each row once, despite crashes.

`ToSqlite` receives its orders in numbered bundles, and writes each bundle in one SQLite transaction
with the bundle's number. After a crash a bundle is repeated with the same number and the same
orders; a number that is already written is skipped. This works with any database with transactions,
and with any number of workers: each scope (a range of keys) has its own numbers.

    python -m examples.orders_to_sqlite            # writes orders-input/orders.jsonl
    millwheel run examples.orders_to_sqlite:pipeline --store .millwheel    # kill -9 it, and again
    sqlite3 orders-input/orders.sqlite 'SELECT count(*), count(DISTINCT number) FROM orders'
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec

from millwheel import (
    BundleId,
    Bundles,
    Computation,
    Context,
    JsonLines,
    Pipeline,
    Record,
    Stream,
)

INPUT = Path("orders-input")

TABLES = """
CREATE TABLE IF NOT EXISTS orders (number INTEGER, customer TEXT, cents INTEGER);
CREATE TABLE IF NOT EXISTS delivered (scope INTEGER PRIMARY KEY, number INTEGER NOT NULL);
"""


class Order(msgspec.Struct, frozen=True):
    """A line of the input, and a row of the table."""

    at: datetime
    number: int
    customer: str
    cents: int


ORDERS = Stream("orders", Order)


class ToSqlite(Computation[Order, None]):
    """Writes orders to a SQLite file."""

    bundles = Bundles(records=100, seconds=0.2)

    def __init__(self, path: Path) -> None:
        self._path = path

    async def process_bundle(self, records: Sequence[Record[Order]], ctx: Context[None]) -> None:
        orders = [record.value for record in records]
        await asyncio.to_thread(self._write, ctx.bundle_id, orders)  # SQLite waits for the disk

    def _write(self, bundle: BundleId, orders: list[Order]) -> None:
        with closing(sqlite3.connect(self._path, timeout=60, isolation_level=None)) as database:
            database.executescript(TABLES)
            database.execute("BEGIN IMMEDIATE")  # before reading: two calls may run at once
            row = database.execute(
                "SELECT number FROM delivered WHERE scope = ?", [bundle.scope]
            ).fetchone()
            if row is not None and bundle.number <= row[0]:
                return
            database.executemany(
                "INSERT INTO orders VALUES (?, ?, ?)",
                [(order.number, order.customer, order.cents) for order in orders],
            )
            database.execute(
                "INSERT INTO delivered VALUES (?, ?) "
                "ON CONFLICT (scope) DO UPDATE SET number = excluded.number",
                [bundle.scope, bundle.number],
            )
            database.execute("COMMIT")


def build(directory: Path = INPUT, name: str = "orders_to_sqlite") -> Pipeline:
    """The pipeline from ``orders.jsonl`` in a directory to ``orders.sqlite``."""
    made = Pipeline(name)
    made.inject(ORDERS, JsonLines(directory / "orders.jsonl"), timestamp=lambda order: order.at)
    made.add(ToSqlite(directory / "orders.sqlite"), ORDERS.by(lambda order: order.customer))
    return made


def write(directory: Path = INPUT, number: int = 5_000) -> list[Order]:
    """Write orders of a hundred customers as lines of a file.

    Args:
        number: the number of orders.
    """
    begin = datetime(2024, 5, 1, tzinfo=UTC)
    orders = [
        Order(begin + timedelta(seconds=n), n, f"customer {n * 7 % 100}", n * 31 % 10_000)
        for n in range(number)
    ]
    directory.mkdir(exist_ok=True)
    lines = b"".join(msgspec.json.encode(order) + b"\n" for order in orders)
    (directory / "orders.jsonl").write_bytes(lines)
    return orders


pipeline = build()

if __name__ == "__main__":
    write()
