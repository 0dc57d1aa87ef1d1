"""The pipeline in the docs' pictures: a shop. Some of its accounts do not exist."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

from msgspec import Struct
from msgspec.json import encode

from millwheel import (
    Computation,
    Context,
    JsonLines,
    Park,
    Pipeline,
    Record,
    Settings,
    Stream,
    Table,
)
from millwheel.computations import Windowed, total
from millwheel.windows import Pane, Tumbling

FILE = Path(os.environ.get("PICTURED_ORDERS", "orders.jsonl"))
BEGIN = datetime(2026, 1, 5, 8, tzinfo=UTC)
ORDERS_A_MINUTE = 60
ACCOUNTS = 40
MISSING = (13, 31)
"""Accounts that do not exist."""


class Order(Struct):
    at: datetime
    account: int
    cents: int


class Account(Struct):
    orders: int = 0
    cents: int = 0


class Sold(Struct):
    start: datetime
    cents: int


ORDERS, CHECKED = Stream("orders", Order), Stream("checked", Order)
PANES = Stream("panes", Pane[int])


class Check(Computation[Order, Account]):
    """Adds orders up by account."""

    writes = (CHECKED,)

    async def process_record(self, record: Record[Order], ctx: Context[Account]) -> None:
        order = record.value
        if order.account in MISSING:
            raise LookupError(f"no such account: {order.account}")
        ctx.state.orders += 1
        ctx.state.cents += order.cents
        ctx.produce(CHECKED, order)


def write_orders(count: int) -> None:
    """Write the file of orders, one a second."""
    lines = [
        encode(Order(BEGIN + timedelta(seconds=n), n % ACCOUNTS, 100 + n % 900))
        for n in range(count)
    ]
    FILE.write_bytes(b"\n".join(lines) + b"\n")


pipeline = Pipeline("shop", settings=Settings(intervals=4))
pipeline.inject(ORDERS, JsonLines(FILE, follow=True), timestamp=lambda order: order.at)
pipeline.add(Check(), ORDERS.by(lambda order: order.account), on_error=Park(hold_watermark=True))
pipeline.add(
    Windowed(Tumbling(minutes=1), total(lambda order: order.cents), to=PANES),
    CHECKED.by(lambda order: 0),
    name="sales_by_minute",
)
pipeline.sink(
    PANES,
    Table("sales", Sold, key=("start",)),
    row=lambda pane: Sold(pane.start, pane.value),
)
