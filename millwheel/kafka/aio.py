"""The client by aiokafka.

Its admin and offset calls do not retry while a broker or a coordinator moves: `_patiently` does.
Topics are described by a request of our own (Metadata, version 12), which has the topic's id.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from io import BytesIO
from typing import Any, TypeVar
from uuid import UUID

import structlog
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka import errors as kafka_errors
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.client import AIOKafkaClient
from aiokafka.protocol.api import Request, RequestStruct, Response
from aiokafka.protocol.types import (
    Boolean,
    CompactArray,
    CompactString,
    Int16,
    Int32,
    Schema,
    TaggedFields,
)

from millwheel.errors import InputError
from millwheel.kafka.broker_errors import (
    BACKOFF_SECONDS,
    OF_RIGHTS,
    PASSING,
    advice,
    no_right,
    passes,
)
from millwheel.kafka.cluster import KafkaCluster
from millwheel.kafka.fetcher import AioFetcher, consumer_of
from millwheel.kafka.port import Bounds, Position, Topic
from millwheel.kafka.writing import AioWriter

T = TypeVar("T")

logger = structlog.get_logger("millwheel.kafka")

PATIENCE_SECONDS = 60.0
"""Time for which a new client waits for an answer: its address may be wrong."""

WARN_SECONDS = 30.0
"""Time without an answer after which it is logged, and between two such lines."""

UNKNOWN_SECONDS = 5.0
"""Time for which an unknown topic is asked for again: a broker knows a new one a moment later."""

GONE_SECONDS = 30.0
"""The same once the cluster was there: a broker that has crashed may know no topic until it has
caught up."""

OFFSETS_SECONDS = 10.0
"""Time for the answer to a question for offsets; aiokafka repeats it for 40 s otherwise."""


class AioClient:
    """A connection to a cluster, for one partition or one topic; see `KafkaClient` and
    `KafkaOutput`."""

    def __init__(self, cluster: KafkaCluster) -> None:
        self._cluster = cluster
        self._client: AIOKafkaClient | None = None
        self._admin: AIOKafkaAdminClient | None = None
        self._admin_lock = asyncio.Lock()
        self._patience = PATIENCE_SECONDS

    def wait_for_ever(self) -> None:
        self._patience = math.inf

    async def topic(self, name: str) -> Topic | None:
        loop = asyncio.get_running_loop()
        was_there = self._patience == math.inf
        deadline = loop.time() + (GONE_SECONDS if was_there else UNKNOWN_SECONDS)
        while True:
            answer = await self._patiently(lambda: self._describe(name))
            ((error, _, id_, _, partitions, *_),) = answer.topics
            if error != kafka_errors.UnknownTopicOrPartitionError.errno:
                break
            if loop.time() > deadline:
                return None
            await asyncio.sleep(BACKOFF_SECONDS)
        if error and error != kafka_errors.LeaderNotAvailableError.errno:
            kind = kafka_errors.for_code(error)
            raise InputError(
                f"Kafka topic {name!r} cannot be read: {kind.__name__}{advice(kind())}"
            )
        return Topic(str(id_), sorted(partition for _, partition, *_ in partitions))

    async def _describe(self, name: str) -> Any:
        client = self._client
        if client is None:
            client = AIOKafkaClient(**self._cluster.options())
            try:
                await client.bootstrap()
            except BaseException:
                await client.close()
                raise
            self._client = client
        try:
            return await client.send(client.get_random_node(), _DescribeTopic(name))
        except NotImplementedError as error:
            raise InputError(
                f"the brokers at {self._cluster.bootstrap} do not report the ids of topics; "
                "millwheel needs Kafka 2.8 or newer"
            ) from error
        except PASSING:
            self._client = None  # it may know only nodes that are gone
            await client.close()
            raise

    async def bounds(self, topic: str, partitions: Sequence[int]) -> dict[int, Bounds]:
        async def ask(consumer: AIOKafkaConsumer, all_: list[TopicPartition]) -> dict[int, Bounds]:
            first = await consumer.beginning_offsets(all_)
            end = await consumer.end_offsets(all_)
            return {one.partition: Bounds(first[one], end[one]) for one in all_}

        return await self._ask(topic, partitions, ask)

    async def since(self, topic: str, partitions: Sequence[int], millis: int) -> dict[int, int]:
        async def ask(consumer: AIOKafkaConsumer, all_: list[TopicPartition]) -> dict[int, int]:
            end = await consumer.end_offsets(all_)
            found = await consumer.offsets_for_times(dict.fromkeys(all_, millis))
            return {
                one.partition: end[one] if found.get(one) is None else found[one].offset
                for one in all_
            }

        return await self._ask(topic, partitions, ask)

    async def _ask(
        self,
        topic: str,
        partitions: Sequence[int],
        ask: Callable[[AIOKafkaConsumer, list[TopicPartition]], Awaitable[dict[int, T]]],
    ) -> dict[int, T]:
        if not partitions:
            return {}

        async def once() -> dict[int, T]:
            consumer = consumer_of(self._cluster, None)
            try:
                await consumer.start()
                all_ = [TopicPartition(topic, partition) for partition in partitions]
                return await asyncio.wait_for(ask(consumer, all_), OFFSETS_SECONDS)
            except TimeoutError as error:
                raise kafka_errors.RequestTimedOutError from error
            finally:
                await consumer.stop()

        return await self._patiently(once)

    async def fetcher(
        self, topic: str, partition: int, offset: int, group: str | None
    ) -> AioFetcher:
        async def once() -> AioFetcher:
            consumer = consumer_of(self._cluster, group)
            try:
                await consumer.start()
            except BaseException:
                await consumer.stop()
                raise
            place = TopicPartition(topic, partition)
            consumer.assign([place])
            consumer.seek(place, offset)
            return AioFetcher(consumer, place, offset)

        return await self._patiently(once)

    async def writer(self, id: str | None) -> AioWriter:
        async def once() -> AioWriter:
            writer = AioWriter(self._cluster, id)
            try:
                await writer.start()
            except OF_RIGHTS as error:
                await writer.close()
                raise no_right(f"transactional id {id!r}", error) from error
            except BaseException:
                await writer.close()
                raise
            return writer

        return await self._patiently(once)

    async def position(self, id: str, topic: str) -> Position | None:
        place = TopicPartition(topic, 0)

        async def ask(admin: Any) -> Position | None:
            found = await admin.list_consumer_group_offsets(id, partitions=[place])
            # aiokafka drops the error of an answer; without one, each place is in it
            if place not in found:
                raise kafka_errors.GroupCoordinatorNotAvailableError
            offset, note = found[place]
            return None if offset < 0 else Position(offset, note or "")

        return await self._administer(ask)

    async def settings(self, topic: str) -> Mapping[str, str | None]:
        async def ask(admin: Any) -> Mapping[str, str | None]:
            resource = ConfigResource(ConfigResourceType.TOPIC, topic)
            (answer,) = await admin.describe_configs([resource])
            ((error, _, _, _, entries),) = answer.resources
            return {} if error else {name: value for name, value, *_ in entries}

        return await self._administer(ask)

    async def _administer(self, ask: Callable[[Any], Awaitable[T]]) -> T:
        async def once() -> T:
            admin = await self._administration()
            try:
                return await ask(admin)
            except kafka_errors.KafkaError:
                if self._admin is admin:
                    self._admin = None
                await admin.close()  # it may know only nodes that are gone
                raise

        return await self._patiently(once)

    async def _administration(self) -> AIOKafkaAdminClient:
        async with self._admin_lock:
            if self._admin is None:
                admin = AIOKafkaAdminClient(**self._cluster.options())
                await admin.start()
                self._admin = admin
            return self._admin

    async def _patiently(self, call: Callable[[], Awaitable[T]]) -> T:
        """Repeat a call while no broker answers, or they cannot answer yet.

        Raises:
            InputError: that took too long, or the cluster refuses it.
        """
        loop, where = asyncio.get_running_loop(), self._cluster.bootstrap
        began = warned_at = loop.time()
        while True:
            try:
                return await call()
            except kafka_errors.KafkaError as error:
                if not passes(error):
                    raise InputError(f"Kafka at {where}: {error!r}{advice(error)}") from error
                now = loop.time()
                if now - began > self._patience:
                    raise InputError(
                        f"Kafka at {where} does not answer: {error!r}. Check the address, and "
                        f"security_protocol={self._cluster.security_protocol!r}"
                    ) from error
                if now - warned_at > WARN_SECONDS:
                    warned_at = now
                    seconds = round(now - began)
                    logger.warning("no_answer", brokers=where, seconds=seconds, reason=repr(error))
            await asyncio.sleep(BACKOFF_SECONDS)

    async def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.close()
        admin, self._admin = self._admin, None
        if admin is not None:
            await admin.close()


# -- Metadata, version 12 (KIP-516) ----------------------------------------------------------------


class _Uuid:
    @staticmethod
    def encode(value: UUID) -> bytes:
        return value.bytes

    @staticmethod
    def decode(data: BytesIO) -> UUID:
        return UUID(bytes=data.read(16))

    @staticmethod
    def repr(value: UUID) -> str:
        return str(value)


_TEXT = CompactString("utf-8")
_NUMBERS = CompactArray(Int32)
_BROKER = (
    ("node", Int32),
    ("host", _TEXT),
    ("port", Int32),
    ("rack", _TEXT),
    ("tags", TaggedFields),
)
_PARTITION = (
    ("error", Int16), ("partition", Int32), ("leader", Int32), ("leader_epoch", Int32),
    ("replicas", _NUMBERS), ("in_sync", _NUMBERS), ("offline", _NUMBERS), ("tags", TaggedFields),
)  # fmt: skip
_TOPIC = (
    ("error", Int16), ("name", _TEXT), ("id", _Uuid), ("is_internal", Boolean),
    ("partitions", CompactArray(*_PARTITION)), ("operations", Int32), ("tags", TaggedFields),
)  # fmt: skip


class _Described(Response):  # type: ignore[misc]
    API_KEY = 3
    API_VERSION = 12
    SCHEMA = Schema(
        ("throttled_ms", Int32),
        ("brokers", CompactArray(*_BROKER)),
        ("cluster", _TEXT),
        ("controller", Int32),
        ("topics", CompactArray(*_TOPIC)),
        ("tags", TaggedFields),
    )


class _DescribeTopic12(RequestStruct):  # type: ignore[misc]
    API_KEY = 3
    API_VERSION = 12
    FLEXIBLE_VERSION = True
    RESPONSE_TYPE = _Described
    SCHEMA = Schema(
        ("topics", CompactArray(("id", _Uuid), ("name", _TEXT), ("tags", TaggedFields))),
        ("may_create", Boolean),
        ("with_operations", Boolean),
        ("tags", TaggedFields),
    )


class _DescribeTopic(Request[_DescribeTopic12]):  # type: ignore[misc]
    API_KEY = 3

    def __init__(self, name: str) -> None:
        self._name = name

    def build(self, request_struct_class: type[_DescribeTopic12]) -> _DescribeTopic12:
        tags: Mapping[int, bytes] = {}
        return request_struct_class([(UUID(int=0), self._name, tags)], False, False, tags)
