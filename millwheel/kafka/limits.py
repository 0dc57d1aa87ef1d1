"""Limits of a topic by its settings: the messages that it refuses, and those that it deletes."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import NamedTuple

from millwheel.core.model import from_micros
from millwheel.kafka.port import Message

HOW_TO_KEEP = (
    'give KafkaSink(timestamp="written"), or set message.timestamp.type=LogAppendTime or a longer '
    "retention.ms for the topic"
)


class TopicLimits(NamedTuple):
    """The settings of a topic that depend on timestamps and sizes; None: not known, or no limit."""

    retention_millis: int | None
    """Messages with timestamps older than this are deleted."""
    by_record: bool
    """Whether messages keep the timestamps that they are written with."""
    ahead_millis: int | None
    """Messages with timestamps further in the future are refused."""
    behind_millis: int | None
    """Messages with timestamps further in the past are refused."""
    bytes: int | None

    @classmethod
    def of(cls, settings: Mapping[str, str | None]) -> TopicLimits:
        def number(name: str) -> int | None:
            found = settings.get(name)
            return int(found) if found is not None and int(found) >= 0 else None

        deletes = "delete" in (settings.get("cleanup.policy") or "delete")
        return cls(
            number("retention.ms") if deletes else None,
            settings.get("message.timestamp.type") != "LogAppendTime",
            number("message.timestamp.after.max.ms"),
            number("message.timestamp.before.max.ms"),
            number("max.message.bytes"),
        )

    def expired(self, message: Message, now: int) -> str | None:
        """Why the topic deletes a message, although it is new; None: it keeps it for a while.

        Args:
            now: microseconds.
        """
        kept = self.retention_millis
        if kept is None or not self.by_record or message.timestamp >= now // 1000 - kept:
            return None
        return (
            f"a message has the timestamp {_shown(message.timestamp)}, which is older than the "
            f"{_span(kept)} for which the topic keeps messages: brokers delete "
            f"it, perhaps before it is read. To keep it, {HOW_TO_KEEP}"
        )

    def refusal(self, reason: str, message: Message) -> str:
        """Why the brokers refuse a message, by the name of their error."""
        if "TooLarge" in reason:
            size = len(message.key or b"") + len(message.value or b"")
            size += sum(len(name) + len(content or b"") for name, content in message.headers)
            limit = "" if self.bytes is None else f", which is {self.bytes:,}"
            return (
                f"a message of {size:,} bytes, with key and headers, is larger than "
                f"max.message.bytes of the topic{limit} ({reason})"
            )
        if "InvalidTimestamp" in reason:
            sides = {"after": self.ahead_millis, "before": self.behind_millis}
            known = [
                f"message.timestamp.{side}.max.ms of the topic, which is {_span(most)}"
                for side, most in sides.items()
                if most is not None and most < NO_LIMIT
            ]
            limits = " or ".join(known or [f"message.timestamp.{side}.max.ms" for side in sides])
            return (
                f"the timestamp {_shown(message.timestamp)} is further from the broker's clock "
                f'than {limits} ({reason}); give KafkaSink(timestamp="written"), or set '
                "message.timestamp.type=LogAppendTime for the topic"
            )
        return reason


NO_LIMIT = 10**13
"""Milliseconds; a longer time, such as Kafka's largest number, is no limit that a person sets."""

UNKNOWN = TopicLimits(None, by_record=True, ahead_millis=None, behind_millis=None, bytes=None)


def _shown(millis: int) -> str:
    return from_micros(1000 * millis).isoformat(timespec="milliseconds")


def _span(milliseconds: int) -> str:
    """For example ``7 days``, or ``1:00:00``."""
    return str(timedelta(milliseconds=milliseconds)).removesuffix(", 0:00:00")
