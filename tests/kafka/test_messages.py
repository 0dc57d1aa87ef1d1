"""Messages of records: keys and timestamps, and the reasons for which a topic deletes or refuses
them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from millwheel.core.codec import encode_key
from millwheel.core.model import Record, to_micros
from millwheel.errors import UsageError
from millwheel.kafka.limits import UNKNOWN, TopicLimits
from millwheel.kafka.messages import Messages
from millwheel.kafka.port import Message

NOW = to_micros(datetime(2026, 1, 1, tzinfo=UTC))
WEEK = {"retention.ms": "604800000", "message.timestamp.type": "CreateTime",
        "max.message.bytes": "1048588"}  # fmt: skip


def maker(**options: Any) -> Messages:
    given = {"key": None, "encode": None, "headers": None, "timestamp": "event", **options}
    return Messages("topic t", **given)


async def timestamp(micros: int, how: Any) -> int:
    record = Record("k", {"at": 1}, micros, "alerts")
    return (await maker(timestamp=how).message(record, 0, 1, NOW)).timestamp


async def test_a_message_has_the_timestamp_that_was_asked_for() -> None:
    assert await timestamp(5_000_999, "event") == 5_000
    assert await timestamp(5_000_999, "written") == NOW // 1000
    at = datetime(2020, 1, 1, tzinfo=UTC)
    assert await timestamp(5_000_999, lambda value: at) == to_micros(at) // 1000
    with pytest.raises(UsageError, match='timestamp must be "event", "written" or a function'):
        maker(timestamp="now")


async def test_a_time_before_1970_is_refused_and_not_changed() -> None:
    with pytest.raises(ValueError, match=r"1969-12-31T23:59:59.* before 1970.*timestamp="):
        await timestamp(-1_000_000, "event")
    assert await timestamp(-1_000_000, "written") == NOW // 1000


@pytest.mark.parametrize(
    "key",
    [
        b"\0\0\0\0\0\0\0\x2a",
        b"\x00",
        "a\0b",
        b"\xff\0",
        b"x" * 5000,
        "\u0001" * 1000,
        b"\xfe" * 600,
    ],
)
def test_a_key_with_any_bytes_is_a_key_of_the_engine(key: Any) -> None:
    """Java's longs and Avro begin with zero bytes, which Postgres does not store in a text."""
    made = maker(key=lambda value: value)
    encode_key(made.key_of(key))
    assert made.key_of(key) == made.key_of(key)
    assert made.key_of(key) != made.key_of(key + type(key)(b"a" if isinstance(key, bytes) else "a"))


def test_keys_that_were_taken_before_stay_the_same() -> None:
    """An interval of the sink would else get another one's keys amid their values."""
    made = maker(key=lambda value: value)
    for key, expected in (("anna", "anna"), (b"\xffa", "\\xffa"), (None, ""),
                          ("x" * 1302, "x" * 1302), (17, "17")):  # fmt: skip
        assert made.key_of(key) == expected


def test_a_key_function_that_fails_does_so_where_the_message_is_made() -> None:
    """In the producing step it would stop the pipeline, whatever the sink's ``on_error`` is."""
    assert maker(key=lambda value: value["missing"]).key_of({}) == ""


def test_a_topic_that_deletes_a_message_at_once() -> None:
    limits = TopicLimits.of(WEEK)
    old = Message(0, None, b"1", NOW // 1000 - 8 * 86_400_000)
    why = limits.expired(old, NOW)
    assert why is not None
    assert "2025-12-24" in why
    assert "older than the 7 days" in why
    assert 'timestamp="written"' in why
    assert limits.expired(old._replace(timestamp=NOW // 1000 - 6 * 86_400_000), NOW) is None
    for kept in (
        {**WEEK, "message.timestamp.type": "LogAppendTime"},
        {**WEEK, "retention.ms": "-1"},
        {**WEEK, "cleanup.policy": "compact"},
    ):
        assert TopicLimits.of(kept).expired(old, NOW) is None
    assert UNKNOWN.expired(old, NOW) is None


def test_a_refusal_has_size_or_timestamp_and_the_limit() -> None:
    limits = TopicLimits.of({**WEEK, "message.timestamp.after.max.ms": "3600000"})
    message = Message(0, b"kk", b"x" * 2_000_000, 4_000_000_000_000, (("h", b"12"),))
    large = limits.refusal("MessageSizeTooLargeError", message)
    assert "2,000,005 bytes" in large
    assert "1,048,588" in large
    ahead = limits.refusal("InvalidTimestampError", message)
    assert "2096-10-02" in ahead
    assert "after.max.ms of the topic, which is 1:00:00" in ahead
    assert "before.max.ms" not in ahead
    both = TopicLimits.of(
        {"message.timestamp.after.max.ms": "3600000", "message.timestamp.before.max.ms": "60000"}
    ).refusal("InvalidTimestampError", message)
    assert "after.max.ms of the topic, which is 1:00:00 or" in both
    assert "before.max.ms of the topic, which is 0:01:00" in both
    unset = {"message.timestamp.after.max.ms": str(2**63 - 1)}
    assert "which is" not in TopicLimits.of(unset).refusal("InvalidTimestampError", message)
    assert limits.refusal("CorruptRecordException", message) == "CorruptRecordException"
