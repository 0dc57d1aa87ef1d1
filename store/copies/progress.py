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
    is_building: bool = False
    """Whether indexes are built, after all rows: no estimate includes that."""

    @property
    def share(self) -> float:
        """0 to 1."""
        return min(1.0, self.bytes / self.total_bytes) if self.total_bytes else 1.0

    @property
    def seconds_left(self) -> float | None:
        """Until all rows are copied, at the speed so far; None: none is yet, or all are."""
        if self.is_building or not self.bytes:
            return None
        return self.seconds * (1.0 - self.share) / self.share


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

    def building(self, table: str) -> None:
        self._show_at(table, is_building=True)

    def at(self, table: str, *, rows: int = 0, size: int = 0) -> None:
        self.rows += rows
        self.bytes += size
        self._show_at(table, is_building=False)

    def _show_at(self, table: str, *, is_building: bool) -> None:
        passed = time.monotonic() - self._began
        progress = CopyProgress(table, self.rows, self.bytes, self._total, passed, is_building)
        self._show(progress)
