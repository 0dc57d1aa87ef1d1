"""How far a copy has come."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple


class CopyProgress(NamedTuple):
    table: str
    """The table that is being copied, or has its indexes built."""
    rows: int
    """Copied so far."""
    bytes: int
    """Of the origin's tables, without their indexes, copied so far."""
    total_bytes: int
    seconds: float
    """Since the begin."""

    @property
    def share(self) -> float:
        """0 to 1."""
        return min(1.0, self.bytes / self.total_bytes) if self.total_bytes else 1.0

    @property
    def seconds_left(self) -> float | None:
        """At the speed so far; None: nothing is copied yet."""
        return self.seconds * (1.0 - self.share) / self.share if self.bytes else None


Show = Callable[[CopyProgress], None]


def show_nothing(_: CopyProgress) -> None:
    pass


class CopyCount:
    """Counts rows and bytes as they are copied, and shows them."""

    def __init__(self, total_bytes: int, show: Show) -> None:
        self._total, self._show = total_bytes, show
        self._began = time.monotonic()
        self.rows = 0
        self.bytes = 0

    def at(self, table: str, *, rows: int = 0, size: int = 0) -> None:
        self.rows += rows
        self.bytes += size
        passed = time.monotonic() - self._began
        self._show(CopyProgress(table, self.rows, self.bytes, self._total, passed))
