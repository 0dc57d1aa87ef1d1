"""Makes the topics, writes orders, and reads totals.

python topics.py make; python topics.py write 1000; python topics.py read
"""

from __future__ import annotations

import asyncio
import os
import sys
from contextlib import suppress

import msgspec
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer  # type: ignore[import-untyped]
from aiokafka.admin import AIOKafkaAdminClient, NewTopic  # type: ignore[import-untyped]
from aiokafka.errors import TopicAlreadyExistsError  # type: ignore[import-untyped]

from your_project import ORDERS_TOPIC, TOTALS_TOPIC, Order, Total

BROKERS = os.environ.get("KAFKA", "127.0.0.1:9094")
PARTITIONS = 3
CUSTOMERS = ("ann", "bob", "cem", "dot", "eve")


async def make() -> None:
    """Make the topics that are not there yet."""
    admin = AIOKafkaAdminClient(bootstrap_servers=BROKERS)
    await admin.start()
    try:
        for name in (ORDERS_TOPIC, TOTALS_TOPIC):
            with suppress(TopicAlreadyExistsError):
                await admin.create_topics([NewTopic(name, PARTITIONS, 1)])
    finally:
        await admin.close()


async def write(number: int) -> None:
    """Write as many orders."""
    producer = AIOKafkaProducer(bootstrap_servers=BROKERS, enable_idempotence=True)
    await producer.start()
    try:
        for n in range(number):
            order = Order(n, CUSTOMERS[n % len(CUSTOMERS)], 100 + n % 900)
            key = order.customer.encode()
            await producer.send(ORDERS_TOPIC, msgspec.json.encode(order), key=key)
        await producer.flush()
    finally:
        await producer.stop()


async def read(seconds: float = 3.0) -> None:
    """Print each customer's newest total; ends when no record has come for some seconds."""
    consumer = AIOKafkaConsumer(
        TOTALS_TOPIC,
        bootstrap_servers=BROKERS,
        auto_offset_reset="earliest",
        isolation_level="read_committed",
    )
    newest: dict[str, Total] = {}
    await consumer.start()
    try:
        while batch := await consumer.getmany(timeout_ms=int(seconds * 1000)):
            for records in batch.values():
                for record in records:
                    assert record.value is not None
                    total = msgspec.json.decode(record.value, type=Total)
                    newest[total.customer] = total
    finally:
        await consumer.stop()
    for total in sorted(newest.values(), key=lambda total: total.customer):
        print(f"{total.customer}  {total.orders:>6,} orders  {total.cents / 100:>10,.2f}")


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["make"]:
            asyncio.run(make())
        case ["write", number]:
            asyncio.run(write(int(number)))
        case ["read"]:
            asyncio.run(read())
        case _:
            sys.exit("usage: python topics.py make | write NUMBER | read")
