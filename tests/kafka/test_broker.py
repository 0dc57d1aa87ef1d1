"""Brokers that go away, ask for a password, or are not there; and what a group's tools see."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from contextlib import suppress

import pytest
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import KafkaError

from examples.kafka_broker import KafkaBroker
from millwheel.errors import InputError
from millwheel.kafka import KafkaCluster, aio, topic_reader
from millwheel.kafka.aio import AioClient
from millwheel.kafka.decoding import Decoding
from millwheel.kafka.partition_names import PartitionName
from millwheel.kafka.topic_reader import KafkaReader
from tests.kafka.clusters import GuardedBroker, RealSite
from tests.kafka.readers import end, numbers, opened, read


@pytest.mark.soak
async def test_a_reader_outlives_its_broker(
    broker: KafkaBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A start gives up where nobody answers; a reader that has begun waits for as long as it
    takes."""
    monkeypatch.setattr(aio, "PATIENCE_SECONDS", 0.5)
    site = RealSite(broker.bootstrap)
    await site.open()
    topic = await site.make()
    await site.write(topic, numbers(3))
    running = await opened(site, topic)
    assert len(await read(running, 3)) == 3
    await site.close()
    await asyncio.to_thread(broker.signal, signal.SIGKILL)
    client = AioClient(site.cluster)
    with pytest.raises(InputError, match="does not answer"):
        await client.topic(topic)
    await client.close()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(read(running, 1), 3)
    await asyncio.to_thread(broker.start)
    await site.open()
    await site.write(topic, numbers(2, 3))
    assert [row.value for row in await read(running, 2)] == [3, 4]
    await end(running)
    await site.close()


async def test_the_position_is_stored_for_tools(
    broker: KafkaBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topic_reader, "GROUP_SECONDS", 0.1)
    site = RealSite(broker.bootstrap)
    await site.open()
    topic = await site.make()
    await site.write(topic, numbers(5))
    client = site.client()
    found = await client.topic(topic)
    assert found is not None
    name = PartitionName(topic, found.id, 0)
    one = KafkaReader(client, name, Decoding(str(name), int, None, "skip"), "fail", "shop")
    await one.begin(None)
    assert len(await read(one, 5)) == 5
    one.position(4)
    admin = AIOKafkaAdminClient(bootstrap_servers=broker.bootstrap)
    await admin.start()
    for _ in range(100):
        offsets = {}
        with suppress(KafkaError):  # nobody coordinates a new group at once
            offsets = await admin.list_consumer_group_offsets("shop")
        if any(place.topic == topic and at.offset == 4 for place, at in offsets.items()):
            break
        await asyncio.sleep(0.1)
    else:
        raise AssertionError(offsets)
    await admin.close()
    await end(one)
    await site.close()


async def test_name_and_password(broker: GuardedBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    """With SASL; a wrong password and none at all are refused, not waited for."""
    monkeypatch.setattr(aio, "PATIENCE_SECONDS", 1.0)
    monkeypatch.setenv("MILLWHEEL_KAFKA_USER", "berta")
    monkeypatch.setenv("MILLWHEEL_KAFKA_PASSWORD", "secret")
    cluster = KafkaCluster(broker.with_password, "SASL_PLAINTEXT", "PLAIN")
    client = AioClient(cluster)
    assert await client.topic("no-such-topic") is None
    await client.close()
    monkeypatch.setenv("MILLWHEEL_KAFKA_PASSWORD", "wrong")
    for refused in (cluster, KafkaCluster(broker.with_password)):
        client = AioClient(refused)
        with pytest.raises(InputError, match=r"security_protocol|Authentication"):
            await client.topic("no-such-topic")
        await client.close()


def test_without_the_package_the_import_says_what_to_install() -> None:
    code = "import sys; sys.modules['aiokafka'] = None; import millwheel.kafka"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "pip install 'millwheel-engine[kafka]'" in ran.stderr
