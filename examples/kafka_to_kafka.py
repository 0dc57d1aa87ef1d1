"""From a Kafka topic to another: payments that a producer may have sent twice are passed on once.

    python -m examples.kafka_broker start .kafka   # a Kafka on this machine; prints its address
    export KAFKA=127.0.0.1:9092                    # that address
    python -m examples.kafka_to_kafka              # makes the topics
    millwheel worker examples.kafka_to_kafka:pipeline --store .millwheel

Readers of the second topic need `isolation.level=read_committed`.
"""

from __future__ import annotations

import asyncio
import os
from datetime import timedelta

from msgspec import Struct

from millwheel import Pipeline, Stream
from millwheel.computations import Deduplicate
from millwheel.kafka import Kafka, KafkaCluster, KafkaSink

BROKERS = os.environ.get("KAFKA", "127.0.0.1:9092")
CLUSTER = KafkaCluster(BROKERS)
PAYMENTS_TOPIC, ONCE_TOPIC = "payments", "payments-once"


class Payment(Struct):
    """A record of both topics, as JSON; its event time is its timestamp in Kafka."""

    id: str
    account: str
    cents: int


PAYMENTS, ONCE = Stream("payments", Payment), Stream("once", Payment)

pipeline = Pipeline("kafka_to_kafka")
pipeline.inject(PAYMENTS, Kafka(CLUSTER, PAYMENTS_TOPIC), lateness=timedelta(minutes=10))
pipeline.add(
    Deduplicate(to=ONCE, horizon=timedelta(days=1)), PAYMENTS.by(lambda payment: payment.id)
)
pipeline.sink(ONCE, KafkaSink(CLUSTER, ONCE_TOPIC, key=lambda payment: payment.account))


async def make_topics() -> None:
    """Make both topics."""
    from aiokafka.admin import AIOKafkaAdminClient, NewTopic

    admin = AIOKafkaAdminClient(bootstrap_servers=BROKERS)
    await admin.start()
    await admin.create_topics([NewTopic(name, 3, 1) for name in (PAYMENTS_TOPIC, ONCE_TOPIC)])
    await admin.close()


if __name__ == "__main__":
    asyncio.run(make_topics())
