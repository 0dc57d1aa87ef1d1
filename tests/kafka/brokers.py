"""A cluster in memory for sinks: transactions, positions and settings, at the port."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from millwheel.kafka import KafkaCluster, KafkaSink
from millwheel.kafka.port import Message, Position, Refused, Topic


class FakeBrokers:
    """One partition of one topic, and positions. It is a `KafkaOutput` as well, and its own
    writer."""

    def __init__(self) -> None:
        self.written: list[Message] = []
        self.positions: list[Position] = []
        """The position; later ones show after further questions."""
        self.left_open: tuple[list[Message], Position] | None = None
        """A transaction that its coordinator is committing: the next writer of the id waits for
        it."""
        self.topic_settings: dict[str, str | None] = {}
        self.refuses: dict[bytes | None, str] = {}
        """The brokers' error for messages with a value."""

    def sink(self, monkeypatch: pytest.MonkeyPatch, **options: Any) -> KafkaSink:
        sink = KafkaSink(KafkaCluster("localhost:9092"), "t", **options)
        monkeypatch.setattr(sink, "connect", lambda: self)
        return sink

    def wait_for_ever(self) -> None: ...

    async def topic(self, name: str) -> Topic | None:
        return Topic("id", [0])

    async def settings(self, topic: str) -> dict[str, str | None]:
        return self.topic_settings

    async def writer(self, id: str | None) -> FakeBrokers:
        if self.left_open is not None:
            (messages, position), self.left_open = self.left_open, None
            self.written += messages
            self.positions = [position]
        return self

    async def write(
        self,
        topic: str,
        messages: Sequence[Message],
        position: Position | None,
        *,
        singly: bool = False,
    ) -> None:
        refused = {
            n: self.refuses[one.value]
            for n, one in enumerate(messages)
            if one.value in self.refuses
        }
        if refused:
            raise Refused(refused)
        self.written += messages
        self.positions = [] if position is None else [position]

    async def position(self, id: str, topic: str) -> Position | None:
        if not self.positions:
            return None
        return self.positions.pop(0) if len(self.positions) > 1 else self.positions[0]

    async def close(self) -> None: ...
