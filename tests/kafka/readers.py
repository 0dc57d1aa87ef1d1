"""Readers of a partition, for tests."""

from __future__ import annotations

import asyncio
from typing import Any

from millwheel.kafka.decoding import Decode, Decoding, Tombstones
from millwheel.kafka.partition_names import PartitionName
from millwheel.kafka.topic_reader import KafkaReader, OnTruncation
from millwheel.sources import Row
from tests.kafka.clusters import KafkaSite, Written

MILLIS = 1_700_000_000_000
"""Timestamp of the first of some numbers."""


async def opened(
    cluster: KafkaSite,
    topic: str,
    position: dict[str, Any] | None = None,
    *,
    value_type: Any = int,
    decode: Decode | None = None,
    tombstones: Tombstones = "skip",
    on_truncation: OnTruncation = "fail",
    topic_id: str | None = None,
) -> KafkaReader:
    """A reader of partition 0."""
    client = cluster.client()
    if topic_id is None:
        found = await client.topic(topic)
        assert found is not None
        topic_id = found.id
    name = PartitionName(topic, topic_id, 0)
    decoding = Decoding(str(name), value_type, decode, tombstones)
    reader = KafkaReader(client, name, decoding, on_truncation, None)
    try:
        await reader.begin(position)
    except BaseException:
        reader.close()
        await closed(reader)
        raise
    return reader


async def closed(reader: KafkaReader) -> None:
    """Return when its connections are closed."""
    assert reader.closing is not None
    await reader.closing


async def read(reader: KafkaReader, count: int, limit: int = 100) -> list[Row]:
    """The next rows, at least `count`."""
    rows: list[Row] = []
    while len(rows) < count:
        found = await reader.read(limit)
        assert len(found) <= limit
        rows += found
        if not found:
            await asyncio.wait_for(reader.wait(), 30)
    return rows


async def end(reader: KafkaReader) -> None:
    reader.close()
    await closed(reader)


def numbers(count: int, start: int = 0) -> list[Written]:
    return [Written(b"%d" % n, MILLIS + n) for n in range(start, start + count)]
