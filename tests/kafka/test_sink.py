"""The sink on a real broker: what readers of committed records find."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.errors import NoError
from structlog.testing import capture_logs

from examples.kafka_broker import KafkaBroker
from millwheel.bundles import RecordsRefused
from millwheel.core.model import to_micros
from millwheel.errors import OutputError, UsageError
from millwheel.kafka import KafkaCluster, KafkaSink
from millwheel.kafka.port import Interrupted, Message, Position, Refused, Topic
from millwheel.testing import check_sink
from tests.kafka.bundles import Bench, Bundle, deliver, records

_names = itertools.count()

KEPT = {"retention.ms": "-1"}
"""The messages are of 2023, and the broker looks for old ones every five minutes."""


@pytest.fixture
async def bench(broker: KafkaBroker) -> AsyncIterator[Bench]:
    """A topic with one partition."""
    topic = f"sink-{next(_names)}"
    admin = AIOKafkaAdminClient(bootstrap_servers=broker.bootstrap)
    await admin.start()
    await admin.create_topics([NewTopic(topic, 1, 1, topic_configs=KEPT)])
    await admin.close()
    made = Bench(broker.bootstrap, topic)
    yield made
    await made.close()


async def test_a_message_has_key_value_headers_and_time(bench: Bench) -> None:
    sink = bench.sink(
        key=lambda value: value[0],
        encode=lambda value: None if value == "b" else value.encode(),
        headers=lambda value: [("h", b"1"), ("h", None)],
    )
    await deliver(sink, ["a1", "b", "\u00e42"], 1)
    first, second, third = await bench.read()
    assert (first.key, first.value, first.timestamp) == (b"a", b"a1", 1_700_000_000_123)
    assert tuple(first.headers) == (("h", b"1"), ("h", None))
    assert second.value is None
    assert third.key == "\u00e4".encode()


async def test_a_bundle_that_comes_again_is_not_written_again(bench: Bench) -> None:
    """By the worker that wrote it (its commit was refused), and by another one."""
    first = bench.sink()
    await deliver(first, ["a", "b"], 1)
    await deliver(first, ["a", "b"], 1, repeat=True)
    await deliver(first, ["c"], 2)
    second = bench.sink()
    await deliver(second, ["c"], 2, repeat=True)
    await deliver(second, ["d"], 3)
    assert await bench.values() == [b'"a"', b'"b"', b'"c"', b'"d"']


async def test_the_contract_of_sinks(bench: Bench) -> None:
    async def read() -> list[str]:
        return [value.decode().strip('"') for value in await bench.values()]

    await check_sink(bench.sink, ["a", "b", "c", "d", "e"], read)


async def test_a_transaction_that_a_dead_worker_left_open_ends(bench: Bench) -> None:
    """Its records are never read, and readers do not wait for its timeout."""
    await deliver(bench.sink(), ["a"], 1)
    id_ = f"millwheel.shop.0123456789ab.{bench.topic}.17"
    dead = await bench.client.writer(id_)
    await dead._producer.begin_transaction()
    await dead._send(bench.topic, [[(0, Message(0, None, b"lost", 0))]], singly=False)
    successor = bench.sink()
    await deliver(successor, ["b"], 2, repeat=True)
    assert await bench.values() == [b'"a"', b'"b"']
    assert b"lost" in [one.value for one in await bench.read("read_uncommitted")]
    await dead.close()


async def test_a_worker_that_was_replaced_writes_nothing_and_fences_nobody(bench: Bench) -> None:
    former, successor = bench.sink(), bench.sink()
    await deliver(former, ["a"], 1)
    await deliver(successor, ["a"], 1, repeat=True)
    zombie: Any = Bundle(2, owned=False)
    task = asyncio.create_task(former.deliver(records("zombie"), zombie))
    while not zombie.asked:  # noqa: ASYNC110 - it asks once, after it was fenced
        await asyncio.sleep(0.05)
    await asyncio.sleep(1.5)  # it would have tried again
    await deliver(successor, ["b"], 2)
    await deliver(successor, ["c"], 3)
    assert not task.done()
    assert zombie.asked == 1
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    assert await bench.values() == [b'"a"', b'"b"', b'"c"']


async def test_a_commit_whose_answer_is_lost_is_found_by_its_position(bench: Bench) -> None:
    """The bundle is not written twice, and its position is no stranger's."""
    sink = bench.sink()
    await deliver(sink, ["a"], 1)
    writer: Any = sink._writers[17].writer
    write = writer.write

    async def answer_lost(*args: Any, **options: Any) -> None:
        await write(*args, **options)
        raise Interrupted("the answer was lost")

    writer.write = answer_lost
    await deliver(sink, ["b"], 2)
    await deliver(sink, ["c"], 3)
    assert await bench.values() == [b'"a"', b'"b"', b'"c"']


async def test_an_owner_that_was_fenced_becomes_the_writer_again(bench: Bench) -> None:
    """As after a transaction that took longer than its timeout."""
    sink = bench.sink()
    await deliver(sink, ["a"], 1)
    other = await bench.client.writer(f"millwheel.shop.0123456789ab.{bench.topic}.17")
    await deliver(sink, ["b"], 2)
    assert await bench.values() == [b'"a"', b'"b"']
    await other.close()


async def test_a_record_that_is_too_large_is_named_and_nothing_behind_it_is_lost(
    bench: Bench,
) -> None:
    """aiokafka commits such a transaction without an error, and loses the records from there on."""
    sink, large = bench.sink(), "x" * (2 << 20)
    with pytest.raises(RecordsRefused) as caught:
        await deliver(sink, ["a", large, "b"], 1)
    assert list(caught.value.reasons) == [1]
    assert await bench.values() == []
    reasons = caught.value.reasons
    await deliver(sink, ["a", "b"], 1, refused=reasons)
    assert await bench.values() == [b'"a"', b'"b"']
    again = bench.sink()  # the commit with the dead letter was lost: it is told again
    with pytest.raises(RecordsRefused) as caught:
        await deliver(again, ["a", large, "b"], 1, repeat=True)
    assert list(caught.value.reasons) == [1]
    await deliver(again, ["a", "b"], 1, repeat=True, refused=reasons)
    assert await bench.values() == [b'"a"', b'"b"']


async def test_a_record_that_cannot_be_encoded_is_named(bench: Bench) -> None:
    def encode(value: str) -> bytes:
        if value == "bad":
            raise ValueError(value)
        return value.encode()

    sink = bench.sink(encode=encode)
    with pytest.raises(RecordsRefused, match="ValueError: bad") as caught:
        await deliver(sink, ["a", "bad", "b", "bad"], 1)
    assert list(caught.value.reasons) == [1, 3]
    await deliver(sink, ["a", "b"], 1, refused=caught.value.reasons)
    await deliver(sink, [], 2, refused={0: "all of it"})
    other = bench.sink(encode=encode)
    await deliver(other, ["c"], 3)
    assert await bench.values() == [b"a", b"b", b"c"]


async def test_a_whole_bundle_is_refused(bench: Bench) -> None:
    """Its places fit into the note of the position, however many they are."""

    def encode(value: str) -> bytes:
        raise ValueError("\u0436" * 100)

    sink, values = bench.sink(encode=encode), ["x"] * 10_000
    with pytest.raises(RecordsRefused) as caught:
        await deliver(sink, values, 1)
    await deliver(sink, [], 1, refused=caught.value.reasons)
    with pytest.raises(RecordsRefused) as again:
        await deliver(bench.sink(encode=encode), values, 1, repeat=True)
    assert again.value.reasons.keys() == caught.value.reasons.keys()


async def test_wrong_headers_are_the_records_fault(bench: Bench) -> None:
    sink = bench.sink(headers=lambda value: [("h", value)])
    with pytest.raises(RecordsRefused, match="headers= gives pairs"):
        await deliver(sink, ["a"], 1)


async def test_a_worker_that_was_replaced_while_it_looked_for_the_culprit(bench: Bench) -> None:
    """It does not write singly what its successor has written."""
    sink, successor, large = bench.sink(), bench.sink(), "x" * (2 << 20)
    has, calls = sink._has, []

    async def replaced(*args: Any) -> bool:
        calls.append(args)
        if len(calls) == 2:
            await deliver(successor, ["a", "b"], 1, repeat=True, refused={1: "large"})
        return await has(*args)

    sink._has = replaced  # type: ignore[assignment, method-assign]
    with pytest.raises(RecordsRefused):
        await deliver(sink, ["a", large, "b"], 1)
    assert await bench.values() == [b'"a"', b'"b"']


async def test_a_topic_that_is_not_there(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("millwheel.kafka.aio.UNKNOWN_SECONDS", 0.5)
    sink = KafkaSink(bench.cluster, "no-such-topic")
    with pytest.raises(OutputError, match="there is no Kafka topic 'no-such-topic'"):
        await deliver(sink, ["a"], 1)
    await sink.close()


async def test_refusals_name_both_numbers(bench: Bench) -> None:
    """A restored store, a reset group, an expired position; each leaves the topic as it is."""
    await deliver(bench.sink(), ["a"], 5)
    for number, previous, repeat, reason in (
        (4, 3, False, "Kafka has bundle 5, but the store has only delivered bundle 3"),
        (9, 8, False, "Kafka has bundle 5, but bundle 8 was acknowledged"),
    ):
        with pytest.raises(OutputError, match=reason):
            await deliver(bench.sink(), ["x"], number, previous=previous, repeat=repeat)
    elsewhere = bench.sink(id_prefix="another", positions_kept=timedelta(days=6))
    with pytest.raises(OutputError, match="Kafka has no position any more"):
        await deliver(elsewhere, ["x"], 5, repeat=True, closed_at=0)
    assert await bench.values() == [b'"a"']


async def test_a_fork_does_not_take_the_ids_of_its_origin(bench: Bench) -> None:
    """They have the same scopes. Under one id, each would end the other's transactions, and take
    its positions for its own."""
    origin, fork = bench.sink(id_prefix="shop"), bench.sink(id_prefix="shop")
    await deliver(origin, ["a"], 1)
    await deliver(fork, ["x"], 7, previous=6, fork="shop2")
    await deliver(origin, ["b"], 2)
    await deliver(fork, ["y"], 8, fork="shop2")
    assert await bench.values() == [b'"a"', b'"x"', b'"b"', b'"y"']


async def test_bundles_that_were_withheld_are_no_gap(bench: Bench) -> None:
    """Outputs were on, off, and on again."""
    await deliver(bench.sink(), ["a"], 3)
    await deliver(bench.sink(), ["d"], 9, previous=6, inherited=6)
    await deliver(bench.sink(), ["e"], 10, inherited=6)
    assert await bench.values() == [b'"a"', b'"d"', b'"e"']


async def test_the_topics_limits_explain_what_it_refuses_and_deletes(broker: KafkaBroker) -> None:
    """With Kafka's defaults: a week, an hour ahead, a megabyte."""
    topic = f"sink-{next(_names)}"
    admin = AIOKafkaAdminClient(bootstrap_servers=broker.bootstrap)
    await admin.start()
    await admin.create_topics([NewTopic(topic, 1, 1)])
    await admin.close()
    bench = Bench(broker.bootstrap, topic)
    sink: Any = bench.sink()
    with pytest.raises(RecordsRefused, match=r"2096-10-02.*which is 1:00:00"):
        await sink.deliver(records("a", micros=4_000_000_000_000_000), Bundle(1))
    with pytest.raises(RecordsRefused, match=r"2,097,154 bytes.*which is 1,048,588"):
        await sink.deliver(records("x" * (2 << 20), micros=to_micros(datetime.now(UTC))), Bundle(1))
    with capture_logs() as lines:
        await sink.deliver(records("a"), Bundle(1))
    (line,) = [line for line in lines if line["event"] == "messages_expire"]
    assert "older than the 7 days" in line["reason"]
    await bench.close()


async def test_without_exactly_once_there_is_no_position(bench: Bench) -> None:
    sink = bench.sink(exactly_once=False)
    await deliver(sink, ["a"], 1)
    await deliver(bench.sink(exactly_once=False), ["a"], 1, repeat=True)
    with pytest.raises(RecordsRefused):
        await deliver(sink, ["b", "x" * (2 << 20)], 2)
    assert (await bench.values())[:2] == [b'"a"', b'"a"']
    assert (
        await bench.client.position(f"millwheel.shop.0123456789ab.{bench.topic}.17", bench.topic)
        is None
    )


async def test_many_partitions_and_batches(broker: KafkaBroker) -> None:
    """A bundle of several batches, in order for each key."""
    topic = f"sink-{next(_names)}"
    admin = AIOKafkaAdminClient(bootstrap_servers=broker.bootstrap)
    await admin.start()
    await admin.create_topics([NewTopic(topic, 4, 1, topic_configs=KEPT)])
    await admin.close()
    bench = Bench(broker.bootstrap, topic)
    sink = bench.sink(key=lambda value: value["key"])
    values = [{"key": f"k{n % 50}", "n": n, "pad": "x" * 900} for n in range(5000)]
    for number in range(3):
        await deliver(sink, values, number + 1)
    found = await bench.read()
    assert len(found) == 15_000
    assert len({one.partition for one in found}) == 4
    by_key: dict[bytes, list[bytes]] = {}
    for one in found:
        by_key.setdefault(one.key, []).append(one.value)
    assert all(len(of_key) == 300 for of_key in by_key.values())
    assert by_key[b"k7"] == 3 * [one.value for one in found if one.key == b"k7"][:100]
    await bench.close()


class Hanging:
    """A cluster whose commits return, and whose positions do not follow."""

    def __init__(self) -> None:
        self.follows = False
        self.number = 0

    def wait_for_ever(self) -> None: ...

    async def topic(self, name: str) -> Topic | None:
        return Topic("id", [0])

    async def settings(self, topic: str) -> dict[str, str | None]:
        return {}

    async def writer(self, id: str | None) -> Hanging:
        return self

    async def write(
        self,
        topic: str,
        messages: Sequence[Message],
        position: Position | None,
        *,
        singly: bool = False,
    ) -> None:
        if self.follows and position is not None:
            self.number = position.number

    async def position(self, id: str, topic: str) -> Position | None:
        return Position(self.number)

    async def close(self) -> None: ...


async def test_a_commit_that_returned_is_no_proof(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bundle is done when its position is read back."""
    monkeypatch.setattr("millwheel.kafka.sink.STUCK_SECONDS", 0.5)
    sink, cluster = KafkaSink(KafkaCluster("localhost:9092"), "t"), Hanging()
    monkeypatch.setattr(sink, "connect", lambda: cluster)
    task = asyncio.create_task(deliver(sink, ["a"], 1))
    await asyncio.sleep(0.2)
    assert not task.done()
    with pytest.raises(OutputError, match=r"a transaction of 'millwheel.shop.*' hangs"):
        await task
    cluster.follows = True
    await deliver(sink, ["a"], 1, repeat=True)


# -- the port -------------------------------------------------------------------------------


async def test_a_new_writer_fences_the_one_before(bench: Bench) -> None:
    first = await bench.client.writer("w")
    await first.write(bench.topic, [Message(0, None, b"a", 0)], Position(1, "note"))
    second = await bench.client.writer("w")
    assert await bench.client.position("w", bench.topic) == Position(1, "note")
    with pytest.raises(Interrupted):
        await first.write(bench.topic, [Message(0, None, b"b", 0)], Position(2))
    await second.write(bench.topic, [Message(0, None, b"c", 0)], Position(2))
    assert await bench.values() == [b"a", b"c"]
    await first.close()
    await second.close()


async def test_a_position_that_a_coordinator_cannot_tell_yet_is_asked_for_again(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """aiokafka drops the error of the whole answer. Without its position a bundle would be written
    twice."""
    writer = await bench.client.writer("w")
    await writer.write(bench.topic, [Message(0, None, b"a", 0)], Position(1))
    await writer.close()
    ask, answers = AIOKafkaAdminClient.list_consumer_group_offsets, [{}, NoError()]

    async def not_yet(self: Any, *args: Any, **options: Any) -> Any:
        if not answers:
            return await ask(self, *args, **options)
        answer = answers.pop()
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(AIOKafkaAdminClient, "list_consumer_group_offsets", not_yet)
    assert await bench.client.position("w", bench.topic) == Position(1)
    assert not answers


async def test_nothing_is_written_with_a_refused_message(bench: Bench) -> None:
    writer = await bench.client.writer("w")
    messages = [
        Message(0, None, b"a", 0),
        Message(0, None, b"x" * (2 << 20), 0),
        Message(0, None, b"b", 0),
    ]
    with pytest.raises(Refused) as caught:
        await writer.write(bench.topic, messages, Position(1), singly=True)
    assert list(caught.value.reasons) == [1]
    assert await bench.client.position("w", bench.topic) is None
    await writer.close()
    writer = await bench.client.writer("w")
    await writer.write(bench.topic, messages[:1], Position(1))
    assert await bench.values() == [b"a"]
    await writer.close()


async def test_a_topic_that_takes_small_batches_only(broker: KafkaBroker) -> None:
    """Its limit counts for a batch: no record is at fault if each fits alone."""
    topic = f"sink-{next(_names)}"
    admin = AIOKafkaAdminClient(bootstrap_servers=broker.bootstrap)
    await admin.start()
    await admin.create_topics(
        [NewTopic(topic, 1, 1, topic_configs={"max.message.bytes": "10000", **KEPT})]
    )
    await admin.close()
    bench = Bench(broker.bootstrap, topic)
    sink = bench.sink()
    for number in range(2):
        await deliver(sink, ["x" * 3000] * 20, number + 1)
    assert len(await bench.values()) == 40
    await bench.close()


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"topic": "a b"}, "a topic's name has"),
        ({"key": "word"}, "key must be a function"),
        ({"on_lost_commits": "skip"}, "on_lost_commits must be"),
        ({"cluster": "localhost:9092"}, "give KafkaCluster"),
    ],
)
def test_mistakes(options: dict[str, Any], reason: str) -> None:
    given: dict[str, Any] = {"cluster": KafkaCluster("localhost:9092"), "topic": "t", **options}
    with pytest.raises(UsageError, match=reason):
        KafkaSink(given.pop("cluster"), given.pop("topic"), **given)
