"""Calls a service over HTTP once for each order, although the code may run more than once.

A call cannot be in the transaction of the record: after a crash it is repeated. The key of a call
is made of the record alone, so the service takes the repeat for what it is. Orders of one customer
wait for each other; a customer whose call fails again and again is parked until the cause is gone.

    millwheel run examples.calls_with_idempotency:pipeline --store .millwheel
    millwheel dead-letters list --waiting --store .millwheel
"""

from __future__ import annotations

import os
from datetime import datetime

import httpx
import msgspec

from millwheel import Computation, Context, JsonLines, Pipeline, Record, Stream, Table

SERVICE = os.environ.get("CHARGES", "http://127.0.0.1:8090/charges")


class Order(msgspec.Struct):
    at: datetime
    number: int
    customer: str
    cents: int


class Charged(msgspec.Struct):
    number: int
    receipt: str


ORDERS, CHARGED = Stream("orders", Order), Stream("charged", Charged)


async def charge(order: Order) -> str:
    """The receipt of the service; a status of an error is an exception."""
    headers = {"Idempotency-Key": f"charge-{order.number}"}
    async with httpx.AsyncClient(timeout=10) as client:
        answer = await client.post(SERVICE, json=msgspec.to_builtins(order), headers=headers)
    return answer.raise_for_status().text


class Charge(Computation[Order, None]):
    writes = (CHARGED,)

    async def process_record(self, record: Record[Order], ctx: Context[None]) -> None:
        receipt = await charge(record.value)
        ctx.produce(CHARGED, Charged(record.value.number, receipt))


pipeline = Pipeline("calls")
pipeline.inject(ORDERS, JsonLines("orders.jsonl"), timestamp=lambda order: order.at)
pipeline.add(Charge(), ORDERS.by(lambda order: order.customer), retries=3, on_error="park")
pipeline.sink(CHARGED, Table("charged", Charged, key=("number",)))
