"""A topic that sinks write to, and the bundles that they get."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from aiokafka import AIOKafkaConsumer, TopicPartition

from millwheel.bundles import BundleId
from millwheel.core.model import Record
from millwheel.kafka import KafkaCluster, KafkaSink
from millwheel.kafka.aio import AioClient


class Bench:
    """A topic, and sinks that write to it as the workers of one pipeline."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.cluster = KafkaCluster(bootstrap)
        self.topic = topic
        self.client = AioClient(self.cluster)
        self._sinks: list[KafkaSink] = []

    def sink(self, **options: Any) -> KafkaSink:
        """The sink of another worker."""
        self._sinks.append(KafkaSink(self.cluster, self.topic, **options))
        return self._sinks[-1]

    async def read(self, isolation: str = "read_committed") -> list[Any]:
        """All records, by partition and offset, without waiting for open transactions."""
        consumer = AIOKafkaConsumer(
            bootstrap_servers=self.cluster.bootstrap,
            isolation_level=isolation,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
        )
        await consumer.start()
        try:
            topic = await self.client.topic(self.topic)
            assert topic is not None
            places = [TopicPartition(self.topic, number) for number in topic.partitions]
            consumer.assign(places)
            await consumer.seek_to_beginning(*places)
            found: list[Any] = []
            ends = await consumer.end_offsets(places)
            while [one for one in places if await consumer.position(one) < ends[one]]:
                some = await consumer.getmany(*places, timeout_ms=700)
                found += itertools.chain.from_iterable(some.values())
            return sorted(found, key=lambda one: (one.partition, one.offset))
        finally:
            await consumer.stop()

    async def values(self) -> list[bytes]:
        return [one.value for one in await self.read()]

    async def close(self) -> None:
        for sink in self._sinks:
            await sink.close()
        await self.client.close()


class Bundle:
    """The context of a bundle."""

    def __init__(
        self,
        number: int,
        *,
        repeat: bool = False,
        previous: int | None = None,
        owned: bool = True,
        refused: dict[int, str] | None = None,
        closed_at: int = 1 << 60,
        inherited: int = 0,
        fork: str = "",
    ) -> None:
        before = number - 1 if previous is None else previous
        self.bundle_id = BundleId(17, number, before, repeat, closed_at, inherited, refused or {})
        self.now = datetime.now(UTC)
        self._owned = owned
        self._fork = fork
        self.asked = 0

    async def is_owner(self) -> bool:
        self.asked += 1
        return self._owned

    async def store_id(self) -> str:
        return "shop.0123456789ab"

    def own_name(self, name: str) -> str:
        return f"{name}.{self._fork}" if self._fork else name


def records(*values: Any, micros: int = 1_700_000_000_123_456) -> list[Record[Any]]:
    return [Record("k", value, micros, "alerts") for value in values]


async def deliver(sink: KafkaSink, values: Sequence[Any], number: int, **options: Any) -> None:
    bundle: Any = Bundle(number, **options)
    await asyncio.wait_for(sink.deliver(records(*values), bundle), 40)
