"""A pipeline whose keys, values, errors and tags of timers are texts of strangers, for the pages.

Orders come from the file ``$HOSTILE_SHOP/orders.jsonl``. The field `what` says what becomes of one:
``sum`` is added up, with a timer; ``fail`` becomes a dead letter; ``park`` parks its key.
"""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec

from millwheel import Computation, Context, JsonLines, Park, Pipeline, Record, Stream, Table, Timer

BEGIN = datetime(2024, 1, 1, tzinfo=UTC)
FILE = Path(os.environ.get("HOSTILE_SHOP", ".")) / "orders.jsonl"
PARTS = "customer", "note", "what", "second"


class Order(msgspec.Struct):
    customer: str
    note: str
    what: str
    second: int


class Total(msgspec.Struct):
    orders: int = 0
    last: str = ""


class Sold(msgspec.Struct):
    customer: str
    orders: int
    note: str


ORDERS = Stream("orders", Order)
TOTALS = Stream("totals", Sold)
SEEN = Stream("seen", Sold)


class AddUp(Computation[Order, Total]):
    writes = (TOTALS,)

    async def process_record(self, record: Record[Order], ctx: Context[Total]) -> None:
        order = record.value
        if order.what == "fail":
            raise ValueError(order.note)
        ctx.state.orders += 1
        ctx.state.last = order.note
        ctx.set_timer(record.timestamp + timedelta(days=300), order.note[:200])
        ctx.produce(TOTALS, Sold(order.customer, ctx.state.orders, order.note))

    async def process_timer(self, timer: Timer, ctx: Context[Total]) -> None:
        """Never due: event time does not get that far."""


class Check(Computation[Order, None]):
    writes = (SEEN,)

    async def process_record(self, record: Record[Order], ctx: Context[None]) -> None:
        order = record.value
        if order.what == "park":
            raise LookupError(order.note)
        ctx.produce(SEEN, Sold(order.customer, 1, order.note))


def build() -> Pipeline:
    made = Pipeline("shop")
    made.inject(
        ORDERS,
        JsonLines(FILE, follow=True),
        timestamp=lambda order: BEGIN + timedelta(seconds=order.second),
        on_error="dead_letter",
    )
    by_customer = ORDERS.by(lambda order: order.customer)
    made.add(AddUp(), by_customer, name="add_up", on_error="dead_letter")
    made.add(Check(), by_customer, name="check", on_error=Park(hold_watermark=True))
    made.sink(TOTALS, Table("sold", Sold))
    return made


pipeline = build()
