"""The name of a partition: in messages, and as the identity that scopes the ids of its records."""

from __future__ import annotations

import re
from typing import NamedTuple

_IDENTITY = re.compile(r"(.+)/(\d+) \(([0-9a-f-]+)\)")


class PartitionName(NamedTuple):
    topic: str
    topic_id: str
    """A topic that is deleted and made again under its name has another id."""
    number: int

    @classmethod
    def of(cls, identity: str) -> PartitionName:
        found = _IDENTITY.fullmatch(identity)
        assert found is not None
        return cls(found[1], found[3], int(found[2]))

    @property
    def identity(self) -> str:
        return f"{self.topic}/{self.number} ({self.topic_id})"

    def __str__(self) -> str:
        return f"Kafka topic {self.topic!r}, partition {self.number}"
