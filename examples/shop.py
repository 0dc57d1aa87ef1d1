"""Orders from Kafka, payments over HTTP, alerts to Kafka and to Postgres, each once in any crash.

An order that is paid with more than it costs is an alert. Orders and payments may come in any
sequence.

    python -m examples.kafka_broker start .kafka   # a Kafka on this machine; prints its address
    export KAFKA=127.0.0.1:9092                    # that address
    python -m examples.shop topics                 # makes the topics
    millwheel worker examples.shop:pipeline --ingest 127.0.0.1:8080 --store .millwheel
    python -m examples.shop sell --orders 1000     # in another terminal
    millwheel sql 'SELECT * FROM shop.alerts' --store .millwheel

`examples/compose.yaml` runs the same in containers.
"""

from __future__ import annotations

import argparse
import asyncio
import os
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from random import Random
from typing import Any

import msgspec

from millwheel import Computation, Context, Inbox, Pipeline, Record, Stream, Table
from millwheel.kafka import Kafka, KafkaCluster, KafkaSink

ORDERS_TOPIC, ALERTS_TOPIC = "shop-orders", "shop-alerts"
PARTITIONS = 3


class Order(msgspec.Struct, frozen=True, tag="order"):
    """An order, from Kafka."""

    number: int
    cents: int


class Payment(msgspec.Struct, frozen=True, tag="payment"):
    """A payment of an order, over HTTP."""

    order: int
    cents: int


class Alert(msgspec.Struct, frozen=True):
    """An order that was paid with more than it costs."""

    order: int
    cents: int
    """Its price."""
    paid: int
    """The sum paid when that was noticed."""


class Account(msgspec.Struct):
    """The state of one order."""

    cents: int | None = None
    """Its price; None: the order has not come yet."""
    paid: int = 0
    alerted: bool = False


ORDERS = Stream("orders", Order)
PAYMENTS = Stream("payments", Payment)
ALERTS = Stream("alerts", Alert)


class FindOverpaid(Computation[Order | Payment, Account]):
    """Compares the payments for an order with its price."""

    writes = (ALERTS,)

    async def process_record(self, record: Record[Order | Payment], ctx: Context[Account]) -> None:
        value, account = record.value, ctx.state
        if isinstance(value, Order):
            account.cents = value.cents
        else:
            account.paid += value.cents
        if account.cents is not None and account.paid > account.cents and not account.alerted:
            account.alerted = True
            number = value.number if isinstance(value, Order) else value.order
            ctx.produce(ALERTS, Alert(number, account.cents, account.paid))


def pipeline() -> Pipeline:
    """The pipeline; brokers are in the variable KAFKA."""
    cluster = KafkaCluster(os.environ.get("KAFKA", "127.0.0.1:9092"))
    made = Pipeline("shop")
    made.inject(ORDERS, Kafka(cluster, ORDERS_TOPIC, idle_after=timedelta(seconds=5)))
    made.inject(PAYMENTS, Inbox(require_id=True))
    made.add(
        FindOverpaid(),
        ORDERS.by(lambda order: order.number),
        PAYMENTS.by(lambda payment: payment.order),
        name="find_overpaid",
    )
    made.sink(ALERTS, Table("alerts", Alert, key=("order",)))
    made.sink(ALERTS, KafkaSink(cluster, ALERTS_TOPIC, key=lambda alert: str(alert.order)))
    return made


# -- customers ---------------------------------------------------------------------------------


async def make_topics(brokers: str) -> None:
    """Make the topics that are not there yet."""
    from aiokafka.admin import AIOKafkaAdminClient, NewTopic
    from aiokafka.errors import TopicAlreadyExistsError

    admin = AIOKafkaAdminClient(bootstrap_servers=brokers)
    await admin.start()
    for name in (ORDERS_TOPIC, ALERTS_TOPIC):
        with suppress(TopicAlreadyExistsError):
            await admin.create_topics([NewTopic(name, PARTITIONS, 1)])
    await admin.close()


def drawn(orders: int, seed: int) -> tuple[list[Order], list[Payment], set[int]]:
    """Orders and their payments, and the numbers of the orders that are overpaid."""
    random = Random(seed)  # noqa: S311
    sold, payments, overpaid = [], [], set()
    for number in range(orders):
        order = Order(number, random.randrange(500, 50_000))
        sold.append(order)
        payments.append(Payment(number, order.cents))
        if random.random() < 0.1:  # the customer pays a part of it again
            payments.append(Payment(number, random.randrange(1, order.cents)))
            overpaid.add(number)
    random.shuffle(payments)
    return sold, payments, overpaid


async def sell(brokers: str, url: str, orders: int, seed: int) -> set[int]:
    """Write orders to Kafka, and post payments, at the same time; gives the orders that are
    overpaid."""
    sold, payments, overpaid = drawn(orders, seed)
    await asyncio.gather(_order(brokers, sold), _pay(url, payments))
    return overpaid


async def _order(brokers: str, orders: Sequence[Order]) -> None:
    from aiokafka import AIOKafkaProducer

    producer = AIOKafkaProducer(bootstrap_servers=brokers, enable_idempotence=True)
    await producer.start()
    try:
        for order in orders:
            await producer.send(ORDERS_TOPIC, msgspec.json.encode(order), key=b"%d" % order.number)
        await producer.flush()
    finally:
        await producer.stop()


async def _pay(url: str, payments: Sequence[Payment]) -> None:
    """Post each payment until it is accepted: a repeat with the same key has no second effect."""
    import httpx

    waiting = list(enumerate(payments))
    async with httpx.AsyncClient(base_url=url, timeout=10) as client:

        async def pay() -> None:
            while waiting:
                number, payment = waiting.pop()
                while not await _accepted(client, number, payment):  # noqa: ASYNC110
                    await asyncio.sleep(0.2)

        await asyncio.gather(*(pay() for _ in range(16)))


async def _accepted(client: Any, number: int, payment: Payment) -> bool:
    import httpx

    try:
        answer = await client.post(
            f"/streams/{PAYMENTS.name}",
            content=msgspec.json.encode(payment),
            headers={
                "content-type": "application/json",
                "idempotency-key": f"payment-{number}",
                "authorization": f"Bearer {os.environ.get('MILLWHEEL_INGEST_TOKENS', 'none')}",
            },
        )
    except httpx.HTTPError:
        return False
    if answer.status_code in (429, 503):
        return False
    answer.raise_for_status()
    return True


def main() -> None:
    """Make the topics, or write orders and payments."""
    parser = argparse.ArgumentParser(description="Orders and payments for examples.shop.")
    parser.add_argument("what", choices=("topics", "sell"))
    parser.add_argument("--orders", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--url", default="http://127.0.0.1:8080", help="where --ingest listens")
    given = parser.parse_args()
    brokers = os.environ.get("KAFKA", "127.0.0.1:9092")
    if given.what == "topics":
        asyncio.run(make_topics(brokers))
        return
    overpaid = asyncio.run(sell(brokers, given.url, given.orders, given.seed))
    print(f"{given.orders:,} orders, of which {len(overpaid):,} are overpaid")


if __name__ == "__main__":
    main()
