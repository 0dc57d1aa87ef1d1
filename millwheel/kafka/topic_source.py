"""A topic as a source."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from millwheel.errors import UsageError
from millwheel.kafka.aio import AioClient
from millwheel.kafka.cluster import KafkaCluster, check_topic
from millwheel.kafka.decoding import Decode, Decoding, Tombstones
from millwheel.kafka.partition_names import PartitionName
from millwheel.kafka.topic_partitions import Start, TopicDiscovery
from millwheel.kafka.topic_reader import KafkaReader, OnTruncation
from millwheel.sources import Partition


@dataclass(frozen=True)
class KafkaPartition:
    source: Kafka
    identity: str

    row_name = "offset"

    async def open(self, value_type: Any, position: dict[str, Any] | None) -> KafkaReader:
        """Open the partition at a stored offset, or at its first record.

        Raises:
            InputError: the cluster cannot be reached, the topic was created again, or records are
                missing.
            UsageError: values cannot be decoded to this type.
        """
        source = self.source
        name = PartitionName.of(self.identity)
        decoding = Decoding(str(name), value_type, source.decode, source.tombstones)
        reader = KafkaReader(
            AioClient(source.cluster), name, decoding, source.on_truncation, source.group
        )
        try:
            await reader.begin(position)
        except BaseException:
            reader.close()
            raise
        return reader


class Kafka:
    """The records of a topic, including future ones.

    ```python
    CLUSTER = KafkaCluster("broker1:9092,broker2:9092")
    PAYMENTS = Stream("payments", Order)
    pipeline.inject(PAYMENTS, Kafka(CLUSTER, "payments"), lateness=timedelta(seconds=10))
    ```

    Each partition of the topic is read in order by the worker that owns it: there is no consumer
    group. Positions are stored with the pipeline's state. Only committed records are read.

    Args:
        cluster: how to connect.
        topic: the topic's name.
        start: where a new pipeline begins: ``"earliest"``, ``"latest"``, an aware datetime (the
            first records that are as new), or offsets by partition (others from their first
            record). It is resolved once, at the first start. Partitions added later are read from
            their first record.
        decode: returns the value of a `KafkaRecord`, or an awaitable of it. A record for which it
            raises an error is a bad row; with `InputError` the source stops. By default the
            record's value is JSON of the stream's type.
        tombstones: ``"skip"`` leaves out records without a value; ``"deliver"`` decodes them too,
            by default as None, which the stream's type must allow.
        idle_after: a partition at its end for this long does not hold the low watermark
            (`Pipeline.inject`); None: it does, for ever. One with an open transaction, or without a
            leader that answers, always does.
        on_truncation: if records were deleted before they were read (by retention, for example),
            stop, or ``"skip"`` them: one bad row stands for them, which `on_error` of `inject` must
            allow.
        group: stores the position every five seconds as the offset of this group, for tools that
            show the lag. A fork stores none, and has a group of its own when its outputs are on.

    Raises:
        UsageError: an option does not fit.
    """

    bounded = False
    timestamps = True

    def __init__(
        self,
        cluster: KafkaCluster,
        topic: str,
        *,
        start: Start = "earliest",
        decode: Decode | None = None,
        tombstones: Tombstones = "skip",
        idle_after: timedelta | None = timedelta(seconds=30),
        on_truncation: OnTruncation = "fail",
        group: str | None = None,
    ) -> None:
        subject = check_topic(cluster, topic)
        if isinstance(start, datetime):
            if start.tzinfo is None:
                raise UsageError(f"{subject}: start={start} has no time zone; make it aware")
        elif not isinstance(start, Mapping) and start not in ("earliest", "latest"):
            raise UsageError(
                f'{subject}: start must be "earliest", "latest", an aware datetime or offsets by '
                f"partition, not {start!r}"
            )
        if tombstones not in ("skip", "deliver"):
            raise UsageError(
                f'{subject}: tombstones must be "skip" or "deliver", not {tombstones!r}'
            )
        if on_truncation not in ("fail", "skip"):
            raise UsageError(
                f'{subject}: on_truncation must be "fail" or "skip", not {on_truncation!r}'
            )
        if decode is not None and not callable(decode):
            raise UsageError(
                f"{subject}: decode must be a function of a KafkaRecord, not {decode!r}"
            )
        self.cluster = cluster
        self.topic = topic
        self.start = start
        self.decode = decode
        self.tombstones = tombstones
        self.idle_after = idle_after
        self.on_truncation = on_truncation
        self.group = group

    def with_group(self, group: str | None) -> Kafka:
        """The same source with another group."""
        made = copy.copy(self)
        made.group = group
        return made

    def partitions(self) -> list[Partition]:
        return []

    def describe(self) -> dict[str, Any]:
        """The topic, without addresses and secrets: brokers may move."""
        return {"kafka": self.topic}

    def partition(self, identity: str) -> KafkaPartition:
        return KafkaPartition(self, identity)

    def discover(self, position: dict[str, Any] | None) -> TopicDiscovery:
        return TopicDiscovery(AioClient(self.cluster), self.topic, self.start, position)

    def __repr__(self) -> str:
        return f"Kafka({self.topic!r})"
