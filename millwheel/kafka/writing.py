"""The writer by aiokafka.

* A commit of aiokafka reports success although a message of the transaction failed, and loses those
  behind it: the result of each batch is awaited before the commit.
* A producer that has failed once is thrown away: its further calls raise errors of all kinds.
* Whole batches are written: single messages take ten times the CPU.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka import errors as kafka_errors
from aiokafka.structs import OffsetAndMetadata

from millwheel.kafka.broker_errors import lacks_rights, no_right
from millwheel.kafka.cluster import KafkaCluster
from millwheel.kafka.port import Interrupted, Message, Position, Refused

BATCH_BYTES = 900_000
"""Most bytes of a batch, before compression: a broker takes 1 MiB by default."""

TRANSACTION_SECONDS = 15.0
"""The brokers abort a longer transaction. A killed writer keeps readers waiting as long, unless its
successor ends the transaction before."""

WRITE_SECONDS = 2 * TRANSACTION_SECONDS
"""A transaction is given up after this time: aiokafka asks for ever about a deleted topic."""

OF_MESSAGES = (
    kafka_errors.MessageSizeTooLargeError,
    kafka_errors.RecordListTooLargeError,
    kafka_errors.InvalidTimestampError,
    kafka_errors.CorruptRecordException,
)

INVALID_RECORD = 87
"""The code of an error that aiokafka does not name."""


def is_refusal(error: BaseException) -> bool:
    return isinstance(error, OF_MESSAGES) or getattr(error, "errno", None) == INVALID_RECORD


class AioWriter:
    """Writes by a producer of its own; see `Writer`.

    Args:
        id: the transactional id, which is also the group of the position; None: no transactions.
    """

    def __init__(self, cluster: KafkaCluster, id: str | None) -> None:
        self._id = id
        self._producer = AIOKafkaProducer(
            **cluster.options(),
            enable_idempotence=True,
            transactional_id=id,
            transaction_timeout_ms=int(TRANSACTION_SECONDS * 1000),
            request_timeout_ms=int(TRANSACTION_SECONDS * 1000),
            max_batch_size=BATCH_BYTES,
            max_request_size=1 << 30,  # the brokers know the limit, which topics may change
        )

    async def start(self) -> None:
        await self._producer.start()

    async def write(
        self,
        topic: str,
        messages: Sequence[Message],
        position: Position | None,
        *,
        singly: bool = False,
    ) -> None:
        try:
            async with asyncio.timeout(WRITE_SECONDS):
                refused = await self._write(topic, messages, position, singly=singly)
        except (kafka_errors.KafkaError, AssertionError, TimeoutError) as error:
            if lacks_rights(error):
                raise no_right(f"topic {topic!r}", error) from error
            raise Interrupted(repr(error)) from error
        if refused:
            raise Refused(refused)

    async def _write(
        self,
        topic: str,
        messages: Sequence[Message],
        position: Position | None,
        *,
        singly: bool,
    ) -> dict[int, str]:
        """Write the transaction; it is aborted if messages are refused, which are returned."""
        parts = _by_partition(messages)
        if position is None:
            return await self._send(topic, parts, singly=singly)
        await self._producer.begin_transaction()
        refused = await self._send(topic, parts, singly=singly)
        if refused:
            await self._producer.abort_transaction()
            return refused
        place = OffsetAndMetadata(position.number, position.note)
        await self._producer.send_offsets_to_transaction(
            {TopicPartition(topic, 0): place}, self._id
        )
        await self._producer.commit_transaction()
        return {}

    async def _send(
        self, topic: str, parts: list[list[tuple[int, Message]]], *, singly: bool
    ) -> dict[int, str]:
        """Send messages and wait for all of them.

        Args:
            parts: messages with their places, those of a partition in order.
            singly: a batch for each message, to find those that are refused.

        Returns:
            The brokers' error for each refused message, or for each message of a refused batch.

        Raises:
            KafkaError, TimeoutError: a batch failed for another reason.
        """
        sent: list[tuple[list[int], asyncio.Future[Any]]] = []
        for part in parts:
            places: list[int] = []
            batch = self._producer.create_batch()
            for place, message in part:
                if (singly and places) or not _append(batch, message):
                    sent.append((places, await self._send_batch(topic, part, places, batch)))
                    places, batch = [], self._producer.create_batch()
                    _append(batch, message)
                places.append(place)
            sent.append((places, await self._send_batch(topic, part, places, batch)))
        results = await asyncio.gather(*(future for _, future in sent), return_exceptions=True)
        refused: dict[int, str] = {}
        others: list[BaseException] = []
        for (places, _), result in zip(sent, results, strict=True):
            if isinstance(result, BaseException):
                if is_refusal(result):
                    refused.update(dict.fromkeys(places, type(result).__name__))
                else:
                    others.append(result)
        if refused:
            return refused
        for error in others:
            raise error
        return {}

    async def _send_batch(
        self, topic: str, part: list[tuple[int, Message]], places: list[int], batch: Any
    ) -> asyncio.Future[Any]:
        batch.close()
        partition = part[0][1].partition
        return await self._producer.send_batch(batch, topic, partition=partition)  # type: ignore[no-any-return]

    async def close(self) -> None:
        """Close the connections; an open transaction is aborted."""
        problems = (kafka_errors.KafkaError, AssertionError, asyncio.TimeoutError)
        if self._id is not None:
            with suppress(*problems):  # it is in no transaction, or was fenced
                await asyncio.wait_for(self._producer.abort_transaction(), TRANSACTION_SECONDS)
        with suppress(*problems):
            await asyncio.wait_for(self._producer.stop(), TRANSACTION_SECONDS)


def _append(batch: Any, message: Message) -> bool:
    done = batch.append(
        key=message.key,
        value=message.value,
        timestamp=message.timestamp,
        headers=list(message.headers),
    )
    return done is not None


def _by_partition(messages: Sequence[Message]) -> list[list[tuple[int, Message]]]:
    parts: dict[int, list[tuple[int, Message]]] = {}
    for place, message in enumerate(messages):
        parts.setdefault(message.partition, []).append((place, message))
    return list(parts.values())
