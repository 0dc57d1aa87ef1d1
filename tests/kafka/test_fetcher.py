"""The fetcher by aiokafka: errors amid a fetch, compressed records, and an end that is not
confirmed any more."""

from __future__ import annotations

import time
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka import errors as kafka_errors

from examples.kafka_broker import KafkaBroker
from millwheel.errors import InputError
from millwheel.kafka.fetcher import AioFetcher
from tests.kafka.clusters import RealSite, Written
from tests.kafka.readers import end, opened, read

PLACE = TopicPartition("orders", 0)


class Consumer:
    """A consumer of aiokafka with some records; errors among them are raised in their turn."""

    def __init__(self, *turns: Any) -> None:
        self.turns = list(turns)
        self.at = 0
        self.end = self.stable = len(turns)
        self.answered_at = time.time()

    async def getone(self, place: TopicPartition) -> Any:
        turn = self.turns[self.at]
        if isinstance(turn, Exception):
            del self.turns[self.at]
            raise turn
        self.at += 1
        return turn

    async def getmany(self, place: TopicPartition, **_: Any) -> dict[TopicPartition, list[Any]]:
        return {place: [await self.getone(place)]} if self.at < len(self.turns) else {}

    async def position(self, place: TopicPartition) -> int:
        return self.at

    def highwater(self, place: TopicPartition) -> int:
        return self.end

    def last_stable_offset(self, place: TopicPartition) -> int:
        return self.stable

    def last_poll_timestamp(self, place: TopicPartition) -> int:
        return int(self.answered_at * 1000)


@pytest.mark.parametrize(
    "error",
    [
        kafka_errors.CorruptRecordException(),
        kafka_errors.NodeNotReadyError(),
        kafka_errors.OffsetOutOfRangeError({PLACE: 1}),
    ],
)
async def test_an_error_behind_a_record_does_not_lose_it(error: Exception) -> None:
    """aiokafka is past the record, and would not return it again."""
    fetcher: Any = AioFetcher(Consumer("a", error, "b"), PLACE, 0)
    assert await fetcher.fetch(10) == ["a"]
    assert fetcher.position == 1
    assert await fetcher.fetch(10) == ["b"]


async def test_the_end_is_what_the_leader_has_said_a_moment_ago() -> None:
    consumer = Consumer("a")
    fetcher = AioFetcher(consumer, PLACE, 0)
    assert not fetcher.at_end, "a record waits"
    await fetcher.fetch(10)
    assert fetcher.at_end
    consumer.end = 3
    assert not fetcher.at_end, "a transaction is open"
    consumer.stable = 3
    assert not fetcher.at_end, "records wait"
    consumer.end = consumer.stable = 1
    consumer.answered_at -= 2
    assert not fetcher.at_end, "the leader does not answer"


async def test_a_missing_library_is_named() -> None:
    missing = kafka_errors.UnsupportedCodecError("Libraries for snappy compression codec not found")
    fetcher = AioFetcher(Consumer(missing), PLACE, 0)
    with pytest.raises(
        InputError, match=r"orders.*snappy.*pip install 'millwheel-engine\[kafka\]'"
    ):
        await fetcher.fetch(10)


async def test_a_missing_right_is_named() -> None:
    fetcher = AioFetcher(Consumer(kafka_errors.TopicAuthorizationFailedError()), PLACE, 0)
    with pytest.raises(InputError, match="rights to describe and read the topic"):
        await fetcher.fetch(10)


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
async def test_compressed_records_are_read(broker: KafkaBroker, codec: str) -> None:
    """By what the extra installs: none of these libraries is a development dependency of its
    own."""
    site = RealSite(broker.bootstrap)
    await site.open()
    topic = await site.make()
    producer = AIOKafkaProducer(bootstrap_servers=broker.bootstrap, compression_type=codec)
    await producer.start()
    for number in range(50):
        await producer.send(topic, b"%d" % number, timestamp_ms=Written().timestamp)
    await producer.stop()
    reader = await opened(site, topic)
    assert [row.value for row in await read(reader, 50)] == list(range(50))
    await end(reader)
    await site.close()
