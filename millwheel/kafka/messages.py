"""Turns records into messages: keys, values, headers and timestamps, by the user's functions.

An error of these functions is the fault of a record, and counts under the sink's ``on_error``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from typing import Any, Literal

import msgspec
from aiokafka.partitioner import murmur2

from millwheel.core.codec import MAX_KEY_BYTES, place_of
from millwheel.core.model import Record, event_micros, from_micros
from millwheel.errors import UsageError
from millwheel.kafka.port import Message

Encode = Callable[[Any], "bytes | Awaitable[bytes | None] | None"]
Headers = Callable[[Any], Sequence[tuple[str, "bytes | None"]]]
Timestamp = Literal["event", "written"] | Callable[[Any], datetime]

SHORT_KEY_BYTES = 200
"""A key of this many bytes fits the limit of keys, however it is escaped."""


class Messages:
    """Makes the messages of a topic.

    Raises:
        UsageError: an option does not fit.
    """

    def __init__(
        self,
        what: str,
        key: Callable[[Any], Any] | None,
        encode: Encode | None,
        headers: Headers | None,
        timestamp: Timestamp,
    ) -> None:
        for option, given in (("key", key), ("encode", encode), ("headers", headers)):
            if given is not None and not callable(given):
                raise UsageError(f"{what}: {option} must be a function of a value, not {given!r}")
        if timestamp not in ("event", "written") and not callable(timestamp):
            raise UsageError(
                f'{what}: timestamp must be "event", "written" or a function of a value, not '
                f"{timestamp!r}"
            )
        self.key = key
        self._encode: Encode = encode or msgspec.json.Encoder().encode
        self._headers = headers
        self.timestamp = timestamp

    def key_of(self, value: Any) -> str:
        """The key of the engine for a value: messages with one key of Kafka have one, and stay in
        order."""
        assert self.key is not None
        try:
            return _text(self.key(value))
        except Exception:  # the message of this value meets it again, where `on_error` counts
            return ""

    async def message(self, record: Record[Any], place: int, partitions: int, now: int) -> Message:
        """The message of a record.

        Args:
            place: the record's place in its bundle, which gives the partition of a message without
                a key.
            now: microseconds.

        Raises:
            Exception: user code has raised it, or has returned a value of a wrong type.
        """
        value = record.value
        encoded = self._encode(value)
        if not isinstance(encoded, bytes):
            encoded = await self._encoded(encoded)
        key = None if self.key is None else _bytes(self.key(value))
        partition = place % partitions if key is None else _partition(key, partitions)
        headers = () if self._headers is None else tuple(self._headers(value))
        for name, content in headers:
            if not isinstance(name, str) or not isinstance(content, bytes | None):
                raise TypeError(
                    f"headers= gives pairs of a str and bytes or None, not ({name!r:.50}, "
                    f"{content!r:.50})"
                )
        return Message(partition, key, encoded, self._millis(record, now), headers)

    async def _encoded(self, found: Any) -> bytes | None:
        encoded = await found if isinstance(found, Awaitable) else found
        if encoded is not None and not isinstance(encoded, bytes):
            type_name = type(encoded).__name__
            raise TypeError(f"encode=, {place_of(self._encode)}, returned {type_name}, not bytes")
        return encoded

    def _millis(self, record: Record[Any], now: int) -> int:
        micros = record.micros
        if callable(self.timestamp):
            micros = event_micros(self.timestamp(record.value))
        elif self.timestamp == "written":
            micros = now
        if micros < 0:
            raise ValueError(
                f"its timestamp {from_micros(micros).isoformat()} is before 1970, and Kafka has no "
                'such timestamps; give KafkaSink(timestamp="written"), or a function of the '
                "value"
            )
        return micros // 1000


def _partition(key: bytes, partitions: int) -> int:
    """The partition that Java's producer chooses for a key."""
    return int((murmur2(key) & 0x7FFFFFFF) % partitions)


def _bytes(key: Any) -> bytes | None:
    if key is None or isinstance(key, bytes):
        return key
    return key.encode() if isinstance(key, str) else msgspec.json.encode(key)


def _text(key: Any) -> str:
    """A key of the engine for one of Kafka, which may have any bytes: a digest if the engine's may
    not."""
    found = _bytes(key)
    if found is None:
        return ""
    text = found.decode("utf-8", "backslashreplace")
    is_long = len(found) > SHORT_KEY_BYTES and len(msgspec.json.encode(text)) > MAX_KEY_BYTES
    return hashlib.sha256(found).hexdigest() if is_long or "\0" in text else text
