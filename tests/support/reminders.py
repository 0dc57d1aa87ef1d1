"""A pipeline whose keys have a state and timers of both kinds, for an operator to change."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta

import msgspec

from millwheel import Computation, Context, JsonLines, Pipeline, Record, Stream, Timer

BEGIN = datetime(2024, 1, 1, tzinfo=UTC)


class Order(msgspec.Struct):
    customer: str
    cents: int
    minute: int


class Customer(msgspec.Struct):
    cents: int = 0
    fired: list[str] = []
    address: dict[str, str] = {}


ORDERS = Stream("orders", Order)


class Remind(Computation[Order, Customer]):
    """Sets a timer of event time and one of the clock, which nothing here brings about."""

    async def process_record(self, record: Record[Order], ctx: Context[Customer]) -> None:
        ctx.state.cents += record.value.cents
        ctx.set_timer(BEGIN + timedelta(days=1), "close")
        ctx.set_timer(ctx.now + timedelta(days=1), "call", kind="wall")

    async def process_timer(self, timer: Timer, ctx: Context[Customer]) -> None:
        ctx.state.fired.append(f"{timer.kind} {timer.tag}")


pipeline = Pipeline("reminders")
pipeline.inject(
    ORDERS,
    JsonLines(os.environ.get("INPUT", "orders.jsonl"), follow=True),
    timestamp=lambda order: BEGIN + timedelta(minutes=order.minute),
)
pipeline.add(Remind(), ORDERS.by(lambda order: order.customer), name="remind")
