from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

import structlog

from millwheel.errors import SnapshotGone, StoreUnavailable

AWAY_SECONDS = 2.0

T = TypeVar("T")

log = structlog.get_logger("millwheel.spark")


class Patience:
    """`seconds` is the longest time without progress, `work` a name for the log."""

    def __init__(self, seconds: float, work: str) -> None:
        self._seconds = seconds
        self._work = work
        self._away_since: float | None = None

    def call(self, work: Callable[[], T]) -> T:
        """`StoreUnavailable` or `SnapshotGone` if the store was away for too long."""
        while True:
            try:
                found = work()
            except (StoreUnavailable, SnapshotGone) as error:
                self._wait(error)
            else:
                self.progressed()
                return found

    def progressed(self) -> None:
        """Note that the store is there."""
        if self._away_since is not None:
            log.info("store_back", seconds=round(time.monotonic() - self._away_since, 1))
            self._away_since = None

    def _wait(self, error: Exception) -> None:
        if self._away_since is None:
            self._away_since = time.monotonic()
            log.warning(
                "store_away",
                error=str(error),
                what=f"{self._work} is tried again until it is back",
                longest_seconds=self._seconds,
            )
        elif time.monotonic() > self._away_since + self._seconds:
            raise error
        time.sleep(AWAY_SECONDS)
