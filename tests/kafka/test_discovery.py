"""The partitions of a topic, and where each of them begins."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from millwheel import Discard, JsonLines, Pipeline, Stream
from millwheel.errors import GraphError, InputError, UsageError
from millwheel.kafka import Kafka, KafkaCluster
from millwheel.kafka.topic_partitions import Start, TopicDiscovery
from tests.kafka.clusters import FakeSite, KafkaSite, Written

SECOND = 1_000
MILLIS = 1_700_000_000_000


async def filled(cluster: KafkaSite) -> str:
    """A topic with ten records, a second apart, in the first of two partitions."""
    topic = await cluster.make(2)
    await cluster.write(topic, [Written(b"%d" % n, MILLIS + n * SECOND) for n in range(10)])
    await cluster.delete_before(topic, 0, 1)
    return topic


@pytest.mark.parametrize(
    ("start", "first"),
    [
        ("earliest", [1, 0]),
        ("latest", [10, 0]),
        (datetime.fromtimestamp(MILLIS / 1000 + 6, UTC), [6, 0]),
        ({0: 4}, [4, 0]),
    ],
)
async def test_where_a_new_pipeline_begins(
    cluster: KafkaSite, start: Start, first: list[int]
) -> None:
    topic = await filled(cluster)
    discovery = TopicDiscovery(cluster.client(), topic, start, None)
    identities = await discovery.look()
    assert [identity.split(" ")[0] for identity in identities] == [f"{topic}/0", f"{topic}/1"]
    assert [discovery.first_position(one) for one in identities] == [{"next": n} for n in first]
    stored = msgspec.json.decode(msgspec.json.encode(discovery.position()))
    await cluster.write(topic, [Written()])
    again = TopicDiscovery(cluster.client(), topic, start, stored)
    assert await again.look() == identities
    assert [again.first_position(one) for one in identities] == [{"next": n} for n in first], (
        "it is resolved once"
    )
    for one in (discovery, again):
        one.close()
        assert one.closing is not None
        await one.closing


async def test_a_start_beyond_the_end_is_the_starts_fault(cluster: KafkaSite) -> None:
    """Not that of an election: nothing was read before."""
    topic = await filled(cluster)
    for offset in (5_000, -1):
        discovery = TopicDiscovery(cluster.client(), topic, {0: offset}, None)
        with pytest.raises(InputError, match=rf"start= gives offset {offset:,} of partition 0"):
            await discovery.look()
        discovery.close()


async def test_a_partition_that_is_added_is_read_from_its_first_record(cluster: KafkaSite) -> None:
    topic = await filled(cluster)
    discovery = TopicDiscovery(cluster.client(), topic, "latest", None)
    await discovery.look()
    await cluster.grow(topic, 3)
    for _ in range(100):
        identities = await discovery.look()
        if len(identities) == 3:
            break
        await asyncio.sleep(0.1)
    assert [discovery.first_position(one) for one in identities[1:]] == [{"next": 0}, None]
    discovery.close()
    assert discovery.closing is not None
    await discovery.closing


async def test_a_topic_that_is_not_there_and_one_made_anew() -> None:
    cluster = FakeSite()
    topic = await filled(cluster)
    discovery = TopicDiscovery(cluster.client(), topic, "earliest", None)
    await discovery.look()
    await cluster.make_again(topic)
    with pytest.raises(InputError, match="deleted and created again"):
        await discovery.look()
    await cluster.delete(topic)
    with pytest.raises(InputError, match="there is no Kafka topic"):
        await discovery.look()
    other = TopicDiscovery(cluster.client(), await cluster.make(), {7: 0}, None)
    with pytest.raises(InputError, match=r"no partitions \[7\]"):
        await other.look()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"start": datetime(2026, 1, 1)}, "no time zone"),
        ({"start": "begin"}, "start must be"),
        ({"tombstones": "keep"}, "tombstones must be"),
        ({"on_truncation": "go"}, "on_truncation must be"),
        ({"decode": 3}, "decode must be"),
    ],
)
def test_options_that_do_not_fit(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Kafka(KafkaCluster("broker:9092"), "orders", **options)


def test_the_options_of_a_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="HOST:PORT"):
        KafkaCluster("broker")
    with pytest.raises(UsageError, match="no effect with PLAINTEXT"):
        KafkaCluster("broker:9092", ca_file="ca.pem")
    with pytest.raises(UsageError, match="need each other"):
        KafkaCluster("broker:9092", "SASL_SSL", "OAUTHBEARER")
    cluster = KafkaCluster("broker:9092", "SASL_PLAINTEXT", "SCRAM-SHA-512", user="A", password="B")
    with pytest.raises(UsageError, match="environment variable A, which is not set"):
        cluster.options()
    monkeypatch.setenv("A", "anna")
    monkeypatch.setenv("B", "secret")
    assert cluster.options()["sasl_plain_password"] == "secret"
    assert "secret" not in repr(cluster)
    with pytest.raises(UsageError, match="cannot be read"):
        KafkaCluster("broker:9092", "SSL", ca_file="/no/such.pem").options()


def test_nothing_of_the_cluster_is_stored_with_the_graph() -> None:
    """Brokers move, and secrets are none of the graph's business."""
    assert Kafka(KafkaCluster("a:1"), "orders").describe() == {"kafka": "orders"}


def test_only_a_source_with_times_needs_no_timestamp() -> None:
    orders = Stream("orders", int)
    made = Pipeline("shop")
    made.inject(orders, Kafka(KafkaCluster("a:1"), "orders"))
    made.sink(orders, Discard())
    node = next(node for node in made.graph().nodes if node.injection is not None)
    assert node.injection is not None
    assert node.injection.idle_after == timedelta(seconds=30)
    with pytest.raises(GraphError, match="give timestamp="):
        made.inject(Stream("lines", int), JsonLines("lines.jsonl"))
