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
    held_by: int | None = None
    """The row that holds the low watermark."""
    since: int | None = None
    """Microseconds at which that row was read, or the newest row if none holds it."""
    sent_since: int | None = None
    """Earliest time, in microseconds, at which a row past this position can have been sent."""
    ended: bool = False

    @classmethod
    def stored(cls, position: Mapping[str, Any] | None) -> SourceProgress:
        return msgspec.convert(position or {}, cls)

    @property
    def event_time(self) -> int:
        return MIN_TIME if self.seen is None else self.seen
