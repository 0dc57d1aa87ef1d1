"""The sink's rules on brokers in memory: the order of its questions, and the record at fault."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from structlog.testing import capture_logs

from millwheel import Pipeline
from millwheel.bundles import RecordsRefused
from millwheel.errors import OutputError, UserCodeError
from millwheel.kafka.port import Message, Position
from tests.kafka.brokers import FakeBrokers
from tests.kafka.bundles import deliver
from tests.support.pipelines import QUICK, Tally, script
from tests.support.values import ITEMS, TALLY, items, key_of, time_of
from tests.support.worlds import World


def message(value: bytes) -> Message:
    return Message(0, None, value, 1_700_000_000_123)


async def test_the_position_is_read_after_the_predecessors_transaction_has_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Before that it is the one of the bundle before, and the bundle would be written twice."""
    brokers = FakeBrokers()
    brokers.positions = [Position(1)]
    brokers.left_open = [message(b'"a"')], Position(2)
    await deliver(brokers.sink(monkeypatch), ["a"], 2, repeat=True)
    assert [one.value for one in brokers.written] == [b'"a"']


async def test_a_stranger_that_is_writing_is_noticed_before_anything_is_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A copy of the store writes under the same id: its transaction ends first, and shows where it
    is."""
    brokers = FakeBrokers()
    brokers.positions = [Position(1)]
    brokers.left_open = [message(b'"theirs"')], Position(5)
    with pytest.raises(
        OutputError, match="Kafka has bundle 5, but the store has only delivered bundle 1"
    ):
        await deliver(brokers.sink(monkeypatch), ["a"], 2)
    assert [one.value for one in brokers.written] == [b'"theirs"']


async def test_a_position_that_shows_late_is_looked_at_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Brokers before KIP-890 show it a moment after the commit."""
    monkeypatch.setattr("millwheel.kafka.sink.SETTLE_SECONDS", 0.0)
    brokers = FakeBrokers()
    brokers.written = [message(b'"a"')]
    brokers.positions = [Position(1), Position(2)]
    await deliver(brokers.sink(monkeypatch), ["a"], 2, repeat=True)
    assert [one.value for one in brokers.written] == [b'"a"']


async def test_a_topic_that_deletes_what_is_written_is_named_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    brokers = FakeBrokers()
    brokers.topic_settings = {"retention.ms": "604800000", "message.timestamp.type": "CreateTime"}
    sink = brokers.sink(monkeypatch)
    with capture_logs() as lines:
        await deliver(sink, ["a"], 1)
        await deliver(sink, ["b"], 2)
    settings, expire = lines
    assert settings["event"] == "topic_settings"
    assert settings["retention_ms"] == "604800000"
    assert (expire["event"], expire["log_level"]) == ("messages_expire", "warning")
    assert "2023-11-14" in expire["reason"]
    with capture_logs() as lines:
        await deliver(brokers.sink(monkeypatch, timestamp="written"), ["a"], 3, previous=2)
    assert [line["event"] for line in lines] == ["topic_settings"]
    now = datetime.now(UTC).timestamp()
    assert brokers.written[-1].timestamp == pytest.approx(1000 * now, abs=60_000)


async def test_a_refused_timestamp_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    brokers = FakeBrokers()
    brokers.refuses = {b'"b"': "InvalidTimestampError"}
    with pytest.raises(RecordsRefused, match=r"2023-11-14T22.*timestamp=\"written\"") as caught:
        await deliver(brokers.sink(monkeypatch), ["a", "b"], 1)
    assert list(caught.value.reasons) == [1]
    assert not brokers.written


def but_of_number_2(found: Any) -> Any:
    """A function that returns this for all values but one, for which it fails."""
    return lambda value: found if value.number != 2 else 1 // 0


def made(
    brokers: FakeBrokers, monkeypatch: pytest.MonkeyPatch, on_error: Any, **options: Any
) -> World:
    pipeline = Pipeline("books", settings=QUICK)
    pipeline.inject(ITEMS, script(ITEMS, items(*range(5))), timestamp=time_of)
    pipeline.add(Tally(), ITEMS.by(key_of))
    pipeline.sink(TALLY, brokers.sink(monkeypatch, **options), on_error=on_error)
    return World(pipeline)


@pytest.mark.parametrize(
    "options",
    [
        {"key": but_of_number_2(b"\0\0\x01")},
        {"key": lambda value: "\ud800" if value.number == 2 else "k"},
        {"key": lambda value: b"k", "encode": but_of_number_2(b"1")},
        {"headers": but_of_number_2(())},
        {"timestamp": but_of_number_2(datetime(2026, 1, 1, tzinfo=UTC))},
    ],
    ids=["key", "surrogate", "encode", "headers", "timestamp"],
)
async def test_on_error_counts_for_each_function(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    brokers = FakeBrokers()
    world = made(brokers, monkeypatch, "dead_letter", **options)
    await world.run()
    assert len(brokers.written) == 4
    (letter,) = world.store.dead_letters
    assert "Kafka topic 't'" in letter.error
    assert '"number":2' in str(letter.value)


async def test_a_refused_record_is_named_and_no_code_is_blamed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = made(FakeBrokers(), monkeypatch, "fail", headers=but_of_number_2(()))
    with pytest.raises(UserCodeError, match="ZeroDivisionError") as caught:
        await world.run()
    assert "1 of 5 records" in str(caught.value)
    assert "Fix the code" not in str(caught.value)
    assert 'on_error="dead_letter"' in str(caught.value)
