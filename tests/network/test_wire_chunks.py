"""Chunks between workers: they cross as they are, and what a peer can get wrong in one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from millwheel.core.chunk import Chunk
from millwheel.errors import PeerError
from millwheel.runtime.interval.step import Step
from millwheel.runtime.network.frames import Deliver, DeliverChunk, WireChunk, decode, encode
from millwheel.runtime.network.wire_records import frame_of, migrate, read
from millwheel.runtime.network.wire_stream import Outgoing
from millwheel.testing.fake_network import FAIR, Fate
from tests.support.clusters import SHARED, Cluster, check, counting, many
from tests.support.peers import chunk, next_of, record

LIMITS = replace(SHARED, chunk_records=20, bundle_records=20, max_unacked_records=200)


# -- a stream of chunks ------------------------------------------------------------------


def outgoing(*items: Any, once: bool = False) -> Outgoing:
    stream = Outgoing(once=once)
    for item in items:
        stream.append(item)
    stream.begin(1)
    return stream


def test_a_chunk_leaves_as_it_came_and_apart_from_single_records() -> None:
    first, second = chunk(1, 2, 5), chunk(9, 10)
    stream = outgoing(first, record(6), record(7), second)
    assert stream.take(99, 1000)[1] is first
    assert next_of(stream, 99, 1000) == [6, 7]
    assert stream.take(99, 1000)[1] is second
    assert stream.is_sent
    assert stream.last == stream.highest_sent == 10


def test_a_long_chunk_is_cut_by_records_and_by_bytes() -> None:
    stream = outgoing(chunk(*range(10)), chunk(*range(10, 14), size=40), chunk(20, size=300))
    frames = [next_of(stream, 4, 100) for _ in range(7)]
    assert frames == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9], [10, 11], [12, 13], [20], []]


def test_only_what_is_not_acknowledged_of_a_chunk_is_sent_again() -> None:
    stream = outgoing(chunk(1, 2, 3, 4), chunk(5, 6), record(7))
    while next_of(stream, 3, 1000):
        pass
    assert stream.acknowledge([(2, 3), (5, 7)]) == [2, 3, 5, 6, 7]
    stream.append(chunk(8, 9))
    stream.begin(2)
    assert next_of(stream, 9, 1000) == [1, 4]
    assert stream.acknowledge([(1, 8)]) == [1, 4], "8 was not sent to anybody"
    assert next_of(stream, 9, 1000) == [8, 9]


def test_what_is_acknowledged_between_two_epochs_is_not_sent_again() -> None:
    stream = outgoing(chunk(1, 2), chunk(3, 4))
    next_of(stream, 9, 1000), next_of(stream, 9, 1000)
    stream.begin(2)
    assert stream.acknowledge([(1, 3)]) == [1, 2, 3]
    assert next_of(stream, 9, 1000) == [4]
    assert stream.is_sent


def test_a_copy_of_a_record_in_a_chunk_is_not_sent_beside_it() -> None:
    stream = outgoing(chunk(1, 2, 3))
    stream.append(record(2))
    stream.append(chunk(3, 4))
    assert next_of(stream, 9, 1000) == [1, 2, 3]
    assert next_of(stream, 9, 1000) == [4]
    assert [each.seq for each in stream.left()] == [1, 2, 3, 4]


def test_of_a_chunk_that_is_sent_at_most_once_the_part_that_was_sent_is_dropped() -> None:
    stream = outgoing(chunk(1, 2, 3, 4), once=True)
    assert next_of(stream, 2, 1000) == [1, 2]
    assert stream.begin(2) == [1, 2]
    assert next_of(stream, 9, 1000) == [3, 4]


# -- a chunk on the wire -----------------------------------------------------------------


def wired(**changes: Any) -> WireChunk:
    """Three rows of a source, as the engine sends them."""
    fields: dict[str, Any] = {
        "stream": "items", "version": 1, "of_source": True, "stamp": 0, "numbers": [4, 5, 9],
        "names": [],
        "key_texts": [b'"a"', b"7", b'["x",2]'], "slots": [1, 2, 3], "micros": [10, 20, 30],
        "holds": [10, 25, 30], "values": [b'{"key":"a","number":%d}' % n for n in range(3)],
    }  # fmt: skip
    return WireChunk(**{**fields, **changes})


class Graph:
    """The streams and the counting step of a worker."""

    def __init__(self) -> None:
        graph = counting([]).graph()
        self.streams = graph.streams
        nodes = [node for node in graph.nodes if node.computation is not None]
        self.step = Step(7, 1, nodes[0], {})
        (self.name,) = self.step.codecs

    def read(self, **changes: Any) -> Chunk:
        frame = DeliverChunk(3, 1, 1, 1, 7, -1, wired(**{"stream": self.name, **changes}))
        found = read(frame, self.step, self.streams)
        assert isinstance(found, Chunk)
        migrate(frame, found, self.streams)
        return found


def test_a_chunk_arrives_as_it_was_sent() -> None:
    graph = Graph()
    for of_source in (True, False):
        sent = graph.read(of_source=of_source, stamp=0 if of_source else 77)
        frame = frame_of((3, 1, 1, 1, 7, -1), sent, graph.streams)
        body = bytes(encode(frame, 1 << 20)[4:])
        back = decode(body)
        assert isinstance(back, DeliverChunk)
        assert back == frame
        found = read(back, graph.step, graph.streams)
        assert isinstance(found, Chunk)
        for name in Chunk.__slots__:
            assert getattr(found, name) == getattr(sent, name), name
        assert found.keys == ["a", 7, ("x", 2)]
        assert (found.log, found.origin) == (3, 3 if of_source else 0)
        assert [each.stamp for each in found.apart()] == ([4, 5, 9] if of_source else [77] * 3)


def test_the_ids_of_users_cross_with_their_chunk() -> None:
    graph = Graph()
    sent = graph.read(names=[b"%016d" % number for number in range(3)])
    frame = frame_of((3, 1, 1, 1, 7, -1), sent, graph.streams)
    found = read(decode(bytes(encode(frame, 1 << 20)[4:])), graph.step, graph.streams)  # type: ignore[arg-type]
    assert isinstance(found, Chunk)
    assert [(each.id, each.named) for each in found.apart()] == [
        (b"%016d" % number, True) for number in range(3)
    ]


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        *(
            ({column: getattr(wired(), column)[:2]}, "the columns of a chunk .* differ in length")
            for column in ("key_texts", "slots", "micros", "holds", "values")
        ),
        ({"names": [b"1" * 16] * 2}, "the columns of a chunk .* differ in length"),
        ({"key_texts": [b'"a"', b"7", b"{"]}, "with the key b'{'"),
        ({"key_texts": [b'"a"', b"7", b"1.5"]}, "which is not a str, an int or a tuple of these"),
        ({"key_texts": [b'"a"', b"null", b"7"]}, "b'null'.* is not a str, an int or a tuple"),
        ({"values": [b"{}", b"{", b"{}"]}, "with the value b'{"),
        ({"values": [b'{"key":"a","number":1},{}', b"", b"{}"]}, "with the value"),
    ],
)
def test_a_chunk_that_cannot_be_read_is_the_fault_of_its_peer(
    changes: dict[str, Any], told: str
) -> None:
    with pytest.raises(PeerError, match=told):
        Graph().read(**changes)


@pytest.mark.parametrize(
    "changes",
    [
        {"slots": [1, 2, 65536]},
        {"slots": [1, -1, 3]},
        {"numbers": []},
        {"numbers": list(range(1001))},
        {"numbers": [1, -2, 3]},
        {"holds": [0, 0, 1 << 62]},
        {"key_texts": [b"", b"1", b"2"]},
        {"key_texts": [b'"' + b"x" * 5000 + b'"', b"1", b"2"]},
        {"names": [b"1" * 16, b"2" * 15, b"3" * 16]},
        {"stamp": -1},
        {"version": 1 << 15},
    ],
)
def test_a_chunk_beyond_the_limits_is_no_frame(changes: dict[str, Any]) -> None:
    body = encode(DeliverChunk(3, 1, 1, 1, 7, -1, wired(**changes)), 1 << 20)
    with pytest.raises(PeerError, match="no valid frame"):
        decode(bytes(body[4:]))


def test_a_chunk_of_another_version_is_migrated_as_a_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    graph = Graph()
    stream = graph.streams[graph.name]

    def renamed(value: dict[str, Any]) -> dict[str, Any]:
        return {"key": value["of"], "number": value["count"]}

    monkeypatch.setattr(stream, "migrations", {2: renamed})
    found = graph.read(version=2, values=[b'{"of":"a","count":%d}' % n for n in range(3)])
    assert [msgspec.to_builtins(value)["number"] for value in found.values] == [0, 1, 2]
    assert [stream.codec.decode(text) for text in found.encoded] == found.values


# -- two workers -------------------------------------------------------------------------


class Crossing:
    """Weather that counts the records that cross in chunks, and in rows."""

    def __init__(self, lose: Callable[[int], bool] = lambda number: False) -> None:
        self.in_chunks = self.in_rows = self.frames = 0
        self._lose = lose

    def __call__(self, sender: str, receiver: str, body: bytes) -> Fate:
        frame = decode(body)
        if isinstance(frame, DeliverChunk):
            self.in_chunks += len(frame.chunk.numbers)
        elif isinstance(frame, Deliver):
            self.in_rows += len(frame.records)
        else:
            return FAIR
        self.frames += 1
        return Fate(copies=0) if self._lose(self.frames) else FAIR


@pytest.mark.parametrize("lost", [0, 3])
async def test_records_cross_in_chunks_and_each_counts_once(lost: int) -> None:
    """Also if every third frame is lost, so that streams begin anew."""
    values = many(1000)
    crossing = Crossing(lambda number: bool(lost) and number % lost == 0 and number < 40)
    cluster = Cluster(counting(values, LIMITS))
    cluster.ether.weather = crossing
    first, second = await cluster.join(), await cluster.join()
    await cluster.go(lambda: min(first.processed, second.processed) > 100)
    handed_over, crossing.in_rows = crossing.in_rows, 0
    await cluster.go(cluster.finished)
    check(cluster, values)
    assert handed_over < 200
    assert crossing.in_chunks > 200
    assert crossing.in_rows < crossing.in_chunks / 10
    assert crossing.frames < crossing.in_chunks / 3
