"""The example with Kafka on both sides and HTTP between, killed while it works."""

from __future__ import annotations

import asyncio
import socket
import tempfile
import time
from pathlib import Path

import msgspec
import pytest
from aiokafka import AIOKafkaConsumer, TopicPartition

from examples import shop
from examples.kafka_broker import KafkaBroker
from tests.support.servers import quick_directory
from tests.support.worker_processes import Workers


@pytest.mark.soak
@pytest.mark.process
def test_each_overpaid_order_is_one_alert_in_both_places(broker: KafkaBroker) -> None:
    directory = Path(tempfile.mkdtemp(prefix="millwheel-shop-", dir=quick_directory()))
    directory.chmod(0o755)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    asyncio.run(shop.make_topics(broker.bootstrap))
    workers = Workers(
        directory,
        "shop",
        "examples.shop:pipeline",
        {"KAFKA": broker.bootstrap},
        ("--ingest", f"127.0.0.1:{port}"),
    )
    try:
        workers.start()
        overpaid = asyncio.run(_sell(broker.bootstrap, port, workers))
        deadline = time.monotonic() + 60
        found: set[int] = set()
        while found != overpaid and time.monotonic() < deadline:
            time.sleep(0.2)
            found = {number for (number,) in workers.query('SELECT "order" FROM SCHEMA.alerts')}
        assert found == overpaid, workers.tail()
        assert sorted(asyncio.run(_alerts(broker.bootstrap, len(overpaid)))) == sorted(overpaid)
        assert not workers.errors
    finally:
        workers.end()


async def _sell(brokers: str, port: int, workers: Workers) -> set[int]:
    selling = asyncio.create_task(shop.sell(brokers, f"http://127.0.0.1:{port}", 2_000, 1))
    await asyncio.sleep(4)
    (worker,) = workers.running
    await asyncio.to_thread(workers.kill, worker)
    workers.start()
    return await asyncio.wait_for(selling, 120)


async def _alerts(brokers: str, expected: int) -> list[int]:
    """The orders that a reader of committed records finds, waiting until there are as many as
    expected."""
    consumer = AIOKafkaConsumer(
        bootstrap_servers=brokers,
        isolation_level="read_committed",
        auto_offset_reset="earliest",
        enable_auto_commit=False,
    )
    await consumer.start()
    places = [TopicPartition(shop.ALERTS_TOPIC, number) for number in range(shop.PARTITIONS)]
    consumer.assign(places)
    await consumer.seek_to_beginning(*places)
    found: list[int] = []
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        some = await consumer.getmany(*places, timeout_ms=1000)
        found += [
            msgspec.json.decode(record.value, type=shop.Alert).order
            for records in some.values()
            for record in records
        ]
        if not some and len(found) >= expected:
            break
    await consumer.stop()
    return found
