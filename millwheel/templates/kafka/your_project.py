"""From one Kafka topic to another: each order adds to its customer's total, exactly once.

    python topics.py make
    millwheel run your_project:pipeline --store store

Brokers are in the variable KAFKA. Readers of the totals need `isolation.level=read_committed`.
"""

from __future__ import annotations

import os

from msgspec import Struct

from millwheel import Computation, Context, Pipeline, Record, Stream
from millwheel.kafka import Kafka, KafkaCluster, KafkaSink

CLUSTER = KafkaCluster(os.environ.get("KAFKA", "127.0.0.1:9094"))
ORDERS_TOPIC, TOTALS_TOPIC = "orders", "totals"


class Order(Struct):
    """A record of the topic of orders, as JSON."""

    number: int
    customer: str
    cents: int


class Total(Struct):
    """The state of one customer, and a record of the topic of totals."""

    customer: str = ""
    orders: int = 0
    cents: int = 0


ORDERS = Stream("orders", Order)
TOTALS = Stream("totals", Total)


class AddUp(Computation[Order, Total]):
    """Adds up the orders of each customer."""

    writes = (TOTALS,)

    async def process_record(self, record: Record[Order], ctx: Context[Total]) -> None:
        order, total = record.value, ctx.state
        total.customer = order.customer
        total.orders += 1
        total.cents += order.cents
        ctx.produce(TOTALS, Total(total.customer, total.orders, total.cents))


pipeline = Pipeline("your_project")
pipeline.inject(ORDERS, Kafka(CLUSTER, ORDERS_TOPIC))
pipeline.add(AddUp(), ORDERS.by(lambda order: order.customer))
pipeline.sink(TOTALS, KafkaSink(CLUSTER, TOTALS_TOPIC, key=lambda total: total.customer))
