"""The fetcher by aiokafka."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import suppress

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka import errors as kafka_errors

from millwheel.core.distribution import install
from millwheel.errors import InputError
from millwheel.kafka.broker_errors import BACKOFF_SECONDS, advice, passes
from millwheel.kafka.cluster import KafkaCluster
from millwheel.kafka.port import KafkaRecord, OffsetGone

FETCH_SECONDS = 0.5
"""Longest wait of a fetch before it reports the position, which may have passed markers."""

ANSWER_SECONDS = 1.0
"""Age of the leader's last answer (one each half second) at which the end of the log is unknown."""


class AioFetcher:
    """Fetches a partition by a consumer of its own, which has no other partition; see `Fetcher`."""

    def __init__(self, consumer: AIOKafkaConsumer, place: TopicPartition, position: int) -> None:
        self._consumer = consumer
        self._place = place
        self._position = position

    async def fetch(self, limit: int) -> Sequence[KafkaRecord]:
        """As `Fetcher.fetch`. A `getmany` that waits leaves a waiter behind, so `getone` waits."""
        try:
            async with asyncio.timeout(FETCH_SECONDS):
                records = [await self._consumer.getone(self._place)]
        except TimeoutError:
            records = []
        except kafka_errors.OffsetOutOfRangeError as error:
            raise OffsetGone from error
        except kafka_errors.KafkaError as error:
            if passes(error):
                await asyncio.sleep(BACKOFF_SECONDS)
                return ()
            raise self._failure(error) from error
        if records:
            # The consumer is past the first record, so an error waits for the next call, which
            # meets it again.
            with suppress(kafka_errors.KafkaError):
                limit = max(1, limit - 1)
                found = await self._consumer.getmany(self._place, timeout_ms=0, max_records=limit)
                records += found.get(self._place, ())
        self._position = await self._consumer.position(self._place)
        return records

    def _failure(self, error: kafka_errors.KafkaError) -> InputError:
        place = f"Kafka topic {self._place.topic!r}, partition {self._place.partition}"
        if isinstance(error, kafka_errors.UnsupportedCodecError):
            return InputError(
                f"{place}: records are compressed, and the library for that is missing ({error}): "
                f"{install('kafka')} brings cramjam for snappy, lz4 and zstd"
            )
        return InputError(f"{place}: {error!r}{advice(error)}")

    @property
    def position(self) -> int:
        return self._position

    @property
    def at_end(self) -> bool:
        consumer, place = self._consumer, self._place
        answered_at = consumer.last_poll_timestamp(place)
        if answered_at is None or abs(time.time() - answered_at / 1000) > ANSWER_SECONDS:
            return False
        end, stable = consumer.highwater(place), consumer.last_stable_offset(place)
        return bool(end == stable == self._position)

    @property
    def stable_end(self) -> int | None:
        end: int | None = self._consumer.last_stable_offset(self._place)
        return end if end is not None and end >= 0 else None

    async def commit(self, offset: int) -> None:
        try:
            await self._consumer.commit({self._place: offset})
        except kafka_errors.KafkaError as error:
            raise InputError(f"the offset of the group was not stored: {error!r}") from error

    async def close(self) -> None:
        with suppress(kafka_errors.KafkaError):
            await self._consumer.stop()


def consumer_of(cluster: KafkaCluster, group: str | None) -> AIOKafkaConsumer:
    return AIOKafkaConsumer(
        **cluster.options(),
        group_id=group,
        enable_auto_commit=False,
        auto_offset_reset="none",  # the default jumps to the end, and loses what is in between
        isolation_level="read_committed",
    )
