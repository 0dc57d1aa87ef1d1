"""Rights that are withdrawn, and a topic that is deleted, amid a transaction of the sink: nothing
behind it is lost."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, NamedTuple

import pytest
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.client import AIOKafkaClient
from aiokafka.protocol.admin import CreateAclsRequest, DeleteAclsRequest, DescribeAclsRequest

from millwheel.errors import OutputError
from millwheel.kafka import KafkaCluster, KafkaSink
from millwheel.kafka.writing import AioWriter
from tests.kafka.bundles import Bench, deliver
from tests.kafka.clusters import GuardedBroker
from tests.support.drawing import chosen

TOPIC, GROUP, TRANSACTIONAL_ID = 2, 3, 5
READ, WRITE, DESCRIBE = 3, 4, 8
PREFIXED, ALLOW = 4, 3

_numbers = itertools.count()


class Right(NamedTuple):
    """A right of anna's on all resources of a kind whose names have a prefix."""

    kind: int
    prefix: str
    operation: int

    @property
    def fields(self) -> tuple[int, str, int, str, str, int, int]:
        return (self.kind, self.prefix, PREFIXED, "User:anna", "*", self.operation, ALLOW)


NEEDED = (
    Right(TOPIC, "guarded", WRITE),
    Right(TOPIC, "guarded", DESCRIBE),
    Right(TOPIC, "guarded", READ),
    Right(GROUP, "millwheel.", READ),
    Right(TRANSACTIONAL_ID, "millwheel.", WRITE),
    Right(TRANSACTIONAL_ID, "millwheel.", DESCRIBE),
)
"""The rights that docs/howto/connect/kafka-out.md names."""


class Rights:
    """Gives and withdraws rights, and waits until the broker knows."""

    def __init__(self, address: str) -> None:
        self._client = AIOKafkaClient(bootstrap_servers=address)

    async def give(self, right: Right) -> None:
        await self._ask(CreateAclsRequest(*right.fields))
        await self._until(right, known=True)

    async def withdraw(self, right: Right) -> None:
        await self._ask(DeleteAclsRequest(*right.fields))
        await self._until(right, known=False)

    async def _until(self, right: Right, *, known: bool) -> None:
        while True:
            answer = await self._ask(DescribeAclsRequest(*right.fields))
            if bool(answer.resources) == known:
                return
            await asyncio.sleep(0.05)

    async def _ask(self, request: Any) -> Any:
        return await self._client.send(self._client.get_random_node(), request)

    async def __aenter__(self) -> Rights:
        await self._client.bootstrap()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.close()


@pytest.fixture
async def rights(broker: GuardedBroker) -> AsyncIterator[Rights]:
    """All rights that the sink needs."""
    async with Rights(broker.bootstrap) as made:
        for right in NEEDED:
            await made.give(right)
        yield made


@pytest.fixture
async def bench(broker: GuardedBroker, rights: Rights) -> AsyncIterator[Bench]:
    del rights
    made = Bench(broker.bootstrap, f"guarded-{next(_numbers)}")
    await make(made)
    yield made
    await made.close()


async def make(bench: Bench) -> None:
    """Make the topic of a bench, or make it anew."""
    admin = AIOKafkaAdminClient(bootstrap_servers=bench.cluster.bootstrap)
    await admin.start()
    error = 1
    while error:
        answer = await admin.create_topics(
            [
                NewTopic(bench.topic, 1, 1, topic_configs={"retention.ms": "-1"})
            ]  # its messages are of 2023
        )
        ((_, error, *_),) = answer.topic_errors
        await asyncio.sleep(0.1)
    await admin.close()


def amid_a_transaction(
    monkeypatch: pytest.MonkeyPatch, what: Callable[[], Awaitable[None]]
) -> None:
    """Let something happen between the next messages and their commit."""
    send = AioWriter._send

    async def send_and_then(self: AioWriter, *args: Any, **options: Any) -> Any:
        found = await send(self, *args, **options)
        monkeypatch.setattr(AioWriter, "_send", send)
        await what()
        return found

    monkeypatch.setattr(AioWriter, "_send", send_and_then)


@pytest.mark.parametrize("right", NEEDED)
@pytest.mark.parametrize("amid", chosen([False, True], True))
async def test_a_right_that_is_withdrawn(
    broker: GuardedBroker,
    bench: Bench,
    rights: Rights,
    right: Right,
    amid: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The error says which rights are needed; once it is given again, each record is there once."""
    monkeypatch.setenv("MILLWHEEL_KAFKA_USER", "anna")
    monkeypatch.setenv("MILLWHEEL_KAFKA_PASSWORD", "secret")
    cluster = KafkaCluster(broker.with_password, "SASL_PLAINTEXT", "PLAIN")

    def sink() -> KafkaSink:
        return KafkaSink(cluster, bench.topic)

    first = sink()
    await deliver(first, ["a"], 1)
    if amid:
        amid_a_transaction(monkeypatch, lambda: rights.withdraw(right))
    else:
        await rights.withdraw(right)
    refused = None
    try:
        await deliver(first, ["b"], 2)
    except OutputError as error:
        refused = str(error)
    await first.close()
    if refused is not None:
        assert "right" in refused
    elif not amid:
        assert right.operation == DESCRIBE  # which who may write has anyway
    await rights.give(right)
    second = sink()
    await deliver(second, ["b"], 2, repeat=True)
    await deliver(second, ["c"], 3)
    await second.close()
    assert await bench.values() == [b'"a"', b'"b"', b'"c"']


async def test_a_topic_that_is_deleted(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Amid a transaction. Once it is made anew, it gets the bundle and all that come after it."""
    monkeypatch.setattr("millwheel.kafka.writing.WRITE_SECONDS", 5.0)
    monkeypatch.setattr("millwheel.kafka.aio.GONE_SECONDS", 5.0)

    async def delete() -> None:
        admin = AIOKafkaAdminClient(bootstrap_servers=bench.cluster.bootstrap)
        await admin.start()
        await admin.delete_topics([bench.topic])
        await admin.close()

    first = bench.sink()
    await deliver(first, ["a"], 1)
    amid_a_transaction(monkeypatch, delete)
    with pytest.raises(OutputError, match="there is no Kafka topic"):
        await deliver(first, ["b"], 2)
    await make(bench)
    second = bench.sink()
    await deliver(second, ["b"], 2, repeat=True)
    await deliver(second, ["c"], 3)
    assert await bench.values() == [b'"b"', b'"c"']
