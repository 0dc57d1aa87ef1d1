"""How far the injectors of the engine and of Spark have read: the `position` of their commits.

Statements that read these fields name `SourceProgress` in a comment; a test compares the names.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from millwheel.core.model import MIN_TIME


class FirstProgress(msgspec.Struct, frozen=True):
    """The progress of a partition before its first commit."""

    reader: dict[str, Any] | None = None
    """Position of the reader, or knowledge of the discovery; None: the beginning."""
    seen: int | None = None
    """Newest event time that acknowledged rows have shown, in microseconds; None: of a discovery,
    which has no rows."""


class SourceProgress(FirstProgress, frozen=True):
    """The progress of a partition, or of the discovery of partitions."""

    held_by: int | None = None
    """Number of the row that holds the low watermark."""
    since: int | None = None
    """Time at which that row was read, or the newest row if none holds it, in microseconds."""
    sent_since: int | None = None
    """Earliest time at which a row past this position can have been sent, in microseconds."""
    ended: bool = False
    """The reader has ended."""

    @classmethod
    def stored(cls, position: Mapping[str, Any] | None) -> SourceProgress:
        """None: nothing is stored yet."""
        return msgspec.convert(position or {}, cls)

    @property
    def event_time(self) -> int:
        """`seen`, or the least time."""
        return MIN_TIME if self.seen is None else self.seen
