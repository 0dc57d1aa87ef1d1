"""The calls of the port: a real cluster and the one in memory answer alike."""

from __future__ import annotations

import asyncio

import pytest

from millwheel.kafka.port import Bounds, Fetcher, KafkaRecord, OffsetGone
from tests.kafka.clusters import KafkaSite, Written


async def fetched(fetcher: Fetcher, count: int) -> list[KafkaRecord]:
    """The next records, at least `count`."""
    found: list[KafkaRecord] = []
    while len(found) < count:
        found += await asyncio.wait_for(fetcher.fetch(100), 30)
    return found


async def test_a_topic_has_an_id_that_does_not_come_back(cluster: KafkaSite) -> None:
    client = cluster.client()
    topic = await cluster.make(2)
    before = await client.topic(topic)
    assert before is not None
    assert list(before.partitions) == [0, 1]
    await cluster.grow(topic, 3)
    for _ in range(50):
        grown = await client.topic(topic)
        assert grown is not None
        assert grown.id == before.id
        if len(grown.partitions) == 3:
            break
        await asyncio.sleep(0.1)
    assert grown is not None
    assert list(grown.partitions) == [0, 1, 2]
    await cluster.make_again(topic)
    after = await client.topic(topic)
    assert after is not None
    assert after.id != before.id
    assert await client.topic("no-such-topic") is None
    await client.close()


async def test_records_come_in_order_with_all_that_they_have(cluster: KafkaSite) -> None:
    client = cluster.client()
    topic = await cluster.make()
    headers = (("a", b"1"), ("a", None))
    await cluster.write(
        topic,
        [Written(b"x", 1_700_000_000_123, b"k", headers), Written(None, key=b"k"), Written(b"z")],
    )
    fetcher = await client.fetcher(topic, 0, 0, None)
    first, second, third = await fetched(fetcher, 3)
    assert (first.topic, first.partition, first.offset) == (topic, 0, 0)
    assert (first.value, first.key, first.timestamp) == (b"x", b"k", 1_700_000_000_123)
    assert first.timestamp_type == 0
    assert tuple(first.headers) == headers
    assert second.value is None
    assert (third.offset, third.value) == (2, b"z")
    assert fetcher.stable_end == 3
    assert not await asyncio.wait_for(fetcher.fetch(100), 30), "it waits a moment, no longer"
    assert (fetcher.position, fetcher.at_end) == (3, True)
    await fetcher.close()
    await client.close()


async def test_aborted_records_and_markers_are_gaps(cluster: KafkaSite) -> None:
    client = cluster.client()
    topic = await cluster.make()
    await cluster.write(topic, [Written(b"a")])
    await cluster.write(topic, [Written(b"lost"), Written(b"lost")], aborted=True)
    await cluster.write(topic, [Written(b"b")])
    fetcher = await client.fetcher(topic, 0, 0, None)
    found = await fetched(fetcher, 2)
    assert [one.value for one in found] == [b"a", b"b"]
    assert found[1].offset in (3, 4), "the marker of the end may come before it or after it"
    assert (await client.bounds(topic, [0]))[0] == Bounds(0, 5)
    await fetcher.close()
    await client.close()


async def test_an_offset_that_is_not_there_is_told(cluster: KafkaSite) -> None:
    client = cluster.client()
    topic = await cluster.make()
    await cluster.write(topic, [Written(b"%d" % n) for n in range(5)])
    await cluster.delete_before(topic, 0, 3)
    assert (await client.bounds(topic, [0]))[0] == Bounds(3, 5)
    for offset in (0, 9):
        fetcher = await client.fetcher(topic, 0, offset, None)
        with pytest.raises(OffsetGone):
            await asyncio.wait_for(fetcher.fetch(10), 30)
        await fetcher.close()
    await client.close()


async def test_offsets_of_an_instant(cluster: KafkaSite) -> None:
    client = cluster.client()
    topic = await cluster.make(2)
    start = 1_700_000_000_000
    await cluster.write(topic, [Written(b"%d" % n, start + 1000 * n) for n in range(5)])
    found = await client.since(topic, [0, 1], start + 2500)
    assert found == {0: 3, 1: 0}
    assert (await client.since(topic, [0], start + 60_000)) == {0: 5}
    await client.close()
