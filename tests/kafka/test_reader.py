"""One partition: rows, positions, and records that are not there any more."""

from __future__ import annotations

import asyncio
import json
import re
from base64 import b64decode

import msgspec
import pytest

from millwheel.errors import InputError, UsageError
from millwheel.kafka import topic_reader as reading
from millwheel.kafka.decoding import Decoding
from millwheel.kafka.port import KafkaRecord
from millwheel.kafka.topic_reader import KafkaReader
from millwheel.sources import Lag, Rows
from tests.kafka.clusters import FakeSite, KafkaSite, Written
from tests.kafka.readers import MILLIS, end, numbers, opened, read


async def test_the_lag_knows_what_retention_has_deleted(
    cluster: KafkaSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "START_SECONDS", 0.05)
    topic = await cluster.make()
    await cluster.write(topic, numbers(5))
    reader = await opened(cluster, topic)
    assert len(await read(reader, 5)) == 5
    await cluster.delete_before(topic, 0, 3)
    async with asyncio.timeout(30):
        while reader.lag().log_start != 3:  # noqa: ASYNC110 - it is asked by whoever wants to know
            await asyncio.sleep(0.05)
    await end(reader)


async def test_rows_have_offset_value_and_time(cluster: KafkaSite) -> None:
    topic = await cluster.make()
    await cluster.write(topic, numbers(5))
    reader = await opened(cluster, topic)
    rows = await read(reader, 5, limit=2)
    assert [(row.offset, row.line, row.value) for row in rows] == [(n, n, n) for n in range(5)]
    assert [row.micros for row in rows] == [1000 * (MILLIS + n) for n in range(5)]
    assert reader.position(3) == {"next": 3}
    assert reader.lag() == Lag(rows=0, log_start=0, log_end=5)
    assert not reader.ended
    await end(reader)
    reader = await opened(cluster, topic, {"next": 3})
    assert [row.value for row in await read(reader, 2)] == [3, 4]
    await cluster.write(topic, numbers(1, 5))
    assert [row.value for row in await read(reader, 1)] == [5]
    await end(reader)


async def test_records_without_gaps_stay_columns() -> None:
    cluster = FakeSite()
    topic = await cluster.make()
    await cluster.write(topic, numbers(5))
    reader = await opened(cluster, topic)
    await reader.wait()
    rows = await reader.read(3)
    rest = await reader.read(3)
    for part, values in ((rows, [0, 1, 2]), (rest, [3, 4])):
        assert isinstance(part, Rows)
        assert part.are_columns
        assert part.values == values
        assert part.raws == [b"%d" % n for n in values]
        assert part.micros == [1000 * (MILLIS + n) for n in values]
    await end(reader)


async def test_tombstones(cluster: KafkaSite) -> None:
    topic = await cluster.make()
    await cluster.write(topic, [Written(None, key=b"k"), Written(b"7"), Written(None, key=b"k")])
    reader = await opened(cluster, topic)
    assert [(row.offset, row.value) for row in await read(reader, 1)] == [(1, 7)]
    await end(reader)
    reader = await opened(cluster, topic, value_type=int | None, tombstones="deliver")
    assert [row.value for row in await read(reader, 3)] == [None, 7, None]
    await end(reader)


async def test_only_tombstones_are_not_the_end() -> None:
    cluster = FakeSite()
    topic = await cluster.make()
    await cluster.write(topic, [Written(None)])
    reader = await opened(cluster, topic)
    assert not await reader.read(10)
    await asyncio.sleep(0)
    await cluster.write(topic, numbers(1))
    assert [row.offset for row in await read(reader, 1)] == [1]
    await end(reader)


async def test_a_bad_value_is_a_row_with_its_bytes_and_its_place() -> None:
    cluster = FakeSite()
    topic = await cluster.make()
    headers = (("trace", b"\xff"),)
    bad = Written(b"\xff{", key=b"k", headers=headers)
    await cluster.write(topic, [Written(b"1"), bad, Written(b"3", timestamp=-1), Written(b"4")])
    reader = await opened(cluster, topic)
    first, second, third, fourth = await read(reader, 4)
    assert (first.value, fourth.value) == (1, 4)
    assert second.error is not None
    assert f"Kafka topic {topic!r}, partition 0, offset 1: " in str(second.error)
    told = json.loads(second.text)
    assert b64decode(told["value"]) == b"\xff{"
    assert (told["offset"], b64decode(told["key"]), told["value_bytes"]) == (1, b"k", 2)
    assert told["headers"] == [["trace", "/w=="]]
    assert "no timestamp" in str(third.error)
    await end(reader)


async def test_decode_gets_the_record_and_its_error_names_it() -> None:
    cluster = FakeSite()
    topic = await cluster.make()
    await cluster.write(
        topic, [Written(b"1", key=b"k", headers=(("a", b"2"),)), Written(b"0", key=b"k")]
    )

    def decode(record: KafkaRecord) -> str:
        assert record.key is not None
        return (
            f"{record.key.decode()} {1 // int(record.value or b'')} {dict(record.headers)['a']!r}"
        )

    reader = await opened(cluster, topic, decode=decode, value_type=str)
    good, bad = await read(reader, 2)
    assert good.value == "k 1 b'2'"
    assert "decode=, decode (" in str(bad.error)
    assert "ZeroDivisionError" in str(bad.error)
    await end(reader)


def test_a_type_that_is_no_json_needs_decode() -> None:
    with pytest.raises(UsageError, match="give decode="):
        Decoding("here", complex | list[msgspec.Raw] | int | str | float | type, None, "skip")


async def test_deleted_records_are_refused_with_both_offsets_and_their_number(
    cluster: KafkaSite,
) -> None:
    topic = await cluster.make()
    await cluster.write(topic, numbers(10))
    await cluster.delete_before(topic, 0, 6)
    with pytest.raises(InputError, match=r"offset 2 to 5 were deleted .*\(4 at most.*left is 6"):
        await opened(cluster, topic, {"next": 2})
    reader = await opened(cluster, topic, {"next": 2}, on_truncation="skip")
    lost, first, *_ = await read(reader, 5)
    assert (lost.offset, first.offset, first.value) == (5, 6, 6)
    assert "offset 2 to 5" in str(lost.error)
    await end(reader)


async def test_records_that_are_deleted_while_it_reads(cluster: KafkaSite) -> None:
    """The fetch that finds them gone goes the same way as the start."""
    topic = await cluster.make()
    await cluster.write(topic, numbers(3))
    reader = await opened(cluster, topic, {"next": 3}, on_truncation="skip")
    await cluster.write(topic, numbers(4, 3))
    await cluster.delete_before(topic, 0, 5)
    rows = await read(reader, 2)
    while rows[-1].offset < 6:
        rows += await read(reader, 1)
    good = [row.value for row in rows if row.error is None]
    missing: list[int] = []
    for row in rows:
        if row.error is not None:
            (gap,) = re.findall(r"from offset (\d+) to (\d+) were deleted", str(row.error))
            missing += range(int(gap[0]), int(gap[1]) + 1)
    assert sorted(good + missing) == [3, 4, 5, 6], "it was in time, or it says what is missing"
    assert good[-2:] == [5, 6]
    await end(reader)


async def test_a_log_that_was_cut_off_is_refused(cluster: KafkaSite) -> None:
    topic = await cluster.make()
    await cluster.write(topic, numbers(3))
    with pytest.raises(
        InputError, match="ends at offset 3, but was read up to offset 8: 5 records"
    ):
        await opened(cluster, topic, {"next": 8})


async def test_a_topic_made_anew_is_refused(cluster: KafkaSite) -> None:
    topic = await cluster.make()
    await cluster.write(topic, numbers(3))
    client = cluster.client()
    before = await client.topic(topic)
    assert before is not None
    await cluster.make_again(topic)
    await cluster.write(topic, numbers(9))
    with pytest.raises(
        InputError, match=f"created again: it was read as {before.id} up to offset 3"
    ):
        await opened(cluster, topic, {"next": 3}, topic_id=before.id)
    await client.close()


async def test_no_record_of_a_topic_made_anew_is_read(cluster: KafkaSite) -> None:
    """Its offsets are those of other records: the engine would drop them as seen."""
    topic = await cluster.make()
    await cluster.write(topic, numbers(3))
    reader = await opened(cluster, topic)
    assert len(await read(reader, 3)) == 3
    await cluster.make_again(topic)
    await cluster.write(topic, numbers(9))
    with pytest.raises(InputError, match="created again"):
        await read(reader, 1)
    await end(reader)


async def _until(reader: KafkaReader, *, caught_up: bool) -> None:
    """Return when the reader says so."""
    async with asyncio.timeout(30):
        while reader.caught_up != caught_up:  # noqa: ASYNC110 - the engine asks as well
            await asyncio.sleep(0.02)


@pytest.mark.parametrize(("tail", "end_"), [("aborted", 6), ("tombstones", 5), ("committed", 4)])
async def test_what_was_passed_behind_the_last_row_may_be_deleted(
    cluster: KafkaSite, tail: str, end_: int
) -> None:
    """Markers, aborted records and skipped tombstones are no rows: nothing is missing without
    them."""
    topic = await cluster.make()
    if tail == "committed":
        async with cluster.transaction(topic, numbers(3)):
            pass
    else:
        await cluster.write(topic, numbers(3))
        behind = [Written(None, key=b"k"), Written(None, key=b"k")]
        await cluster.write(topic, behind, aborted=tail == "aborted")
    reader = await opened(cluster, topic)
    assert len(await read(reader, 3)) == 3
    assert not await reader.read(10)
    await _until(reader, caught_up=True)
    assert reader.lag().rows == 0
    assert reader.position(2) == {"next": 2}, "a row is not acknowledged yet"
    assert reader.position(3) == {"next": end_}
    await end(reader)
    await cluster.delete_before(topic, 0, end_)
    reader = await opened(cluster, topic, {"next": end_})
    await cluster.write(topic, numbers(2, 7))
    assert [row.value for row in await read(reader, 2)] == [7, 8]
    assert reader.position(3) == {"next": end_}, "a position does not go back"
    await end(reader)


async def test_a_reader_that_passes_a_marker_wakes_the_engine(cluster: KafkaSite) -> None:
    """Only a commit stores the position, and without rows there is none."""
    topic = await cluster.make()
    await cluster.write(topic, numbers(1))
    reader = await opened(cluster, topic)
    assert len(await read(reader, 1)) == 1
    assert not await reader.read(10)
    waiting = asyncio.ensure_future(reader.wait())
    await cluster.write(topic, numbers(2), aborted=True)
    await asyncio.wait_for(waiting, 30)
    assert not await reader.read(10)
    assert reader.position(1) == {"next": 4}
    await end(reader)


async def test_an_open_transaction_is_no_end(cluster: KafkaSite) -> None:
    topic = await cluster.make()
    await cluster.write(topic, numbers(1))
    reader = await opened(cluster, topic)
    assert len(await read(reader, 1)) == 1
    await _until(reader, caught_up=True)
    async with cluster.transaction(topic, numbers(2, 1)):
        await _until(reader, caught_up=False)
        assert not await reader.read(10)
    assert [row.value for row in await read(reader, 2)] == [1, 2]
    await _until(reader, caught_up=True)
    await end(reader)


async def test_a_reader_is_not_caught_up_while_a_record_is_decoded() -> None:
    """An async ``decode=`` may wait for a schema registry that is away."""
    cluster = FakeSite()
    topic = await cluster.make()
    there = asyncio.Event()

    async def decode(record: KafkaRecord) -> int:
        await there.wait()
        return int(record.value or b"")

    reader = await opened(cluster, topic, decode=decode)
    assert not await reader.read(10)
    await _until(reader, caught_up=True)
    await cluster.write(topic, numbers(1))
    await _until(reader, caught_up=False)
    there.set()
    assert len(await read(reader, 1)) == 1
    await end(reader)


async def test_a_leader_that_does_not_answer_is_no_end() -> None:
    cluster = FakeSite()
    topic = await cluster.make()
    reader = await opened(cluster, topic)
    assert not await reader.read(10)
    await _until(reader, caught_up=True)
    cluster.answers = False
    await _until(reader, caught_up=False)
    cluster.answers = True
    await _until(reader, caught_up=True)
    await end(reader)
