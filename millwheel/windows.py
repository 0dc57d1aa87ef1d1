"""Windows as pure data: which stretch of time a record belongs to, and what comes out of it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Generic, TypeVar

import msgspec

from millwheel.errors import GraphError
from millwheel.model import EPOCH, ONE_MICROSECOND

R = TypeVar("R")


class Pane(msgspec.Struct, Generic[R], frozen=True, gc=False):
    """One result of one window of one key: ``[start, end)``, UTC.

    Attributes:
        number: 0 for the pane at the watermark, then one more for each amendment.
        late: an amendment, made by a record that came after the window had closed.
        final: no further pane of this window will come.
    """

    key: str | int | tuple[str | int, ...]
    start: datetime
    end: datetime
    value: R
    number: int = 0
    late: bool = False
    final: bool = False


@dataclass(frozen=True)
class Span:
    """A window's bounds in microseconds since the epoch, ``[start, end)``."""

    start: int
    end: int

    @property
    def last(self) -> int:
        """The last microsecond inside: the timestamp of the window's on-time pane."""
        return self.end - 1


class Tumbling:
    """Windows of one size, side by side, aligned to the epoch in UTC plus `offset`."""

    def __init__(
        self,
        size: timedelta | None = None,
        *,
        days: float = 0,
        hours: float = 0,
        minutes: float = 0,
        seconds: float = 0,
        offset: timedelta = timedelta(0),
    ) -> None:
        length = size if size is not None else timedelta()
        length += timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds)
        self.size = length // ONE_MICROSECOND
        if self.size <= 0:
            raise GraphError(
                f"Tumbling needs a size above zero, not {length}; for example Tumbling(minutes=1)"
            )
        self.offset = (offset // ONE_MICROSECOND) % self.size

    def of(self, micros: int) -> Span:
        """The window that holds the instant `micros`."""
        start = micros - (micros - self.offset) % self.size
        return Span(start, start + self.size)

    def at(self, start: int) -> Span:
        """The window that starts at `start`."""
        return Span(start, start + self.size)

    def __repr__(self) -> str:
        return f"Tumbling({timedelta(microseconds=self.size)})"


def instant(micros: int) -> datetime:
    """The aware UTC ``datetime`` of a window's bound."""
    return EPOCH + timedelta(microseconds=micros)
