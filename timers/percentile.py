"""Percentile low watermarks: early, and approximate (paper 7.2).

The exact low watermark waits for the slowest record that may still arrive. A percentile watermark
runs ahead of it. At an injector it is the newest timestamp minus the lateness that the given share
of the records does not exceed. In every other computation it moves like the exact watermark, but
records behind it do not hold it. It is never behind the exact watermark, and never moves back.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from millwheel.core.model import MAX_TIME, MIN_TIME
from millwheel.timers.holds import Holds

SAMPLES = 4096
"""Number of newest records from which the lateness of a source is estimated."""

LEAST_SAMPLES = 100
"""Least number of samples for an estimate; with fewer, only the exact low watermark counts."""


class Disorder:
    """How far behind the newest timestamp the records of one partition arrive."""

    def __init__(self) -> None:
        self._behind: deque[int] = deque(maxlen=SAMPLES)
        self._newest = MIN_TIME

    def see(self, timestamp: int) -> None:
        """Add a record's timestamp, in microseconds, in the order of the source."""
        if timestamp > self._newest:
            self._newest = timestamp
        self._behind.append(self._newest - timestamp)

    def watermark(self, percentile: float) -> int:
        """The time behind which only 100 - `percentile` per cent of the records arrived."""
        behind = sorted(self._behind)
        if len(behind) < LEAST_SAMPLES:
            return MIN_TIME
        return self._newest - behind[min(len(behind) - 1, int(len(behind) * percentile / 100))]


class Percentile:
    """One percentile low watermark of one interval.

    Every hold of the exact watermark holds this one too, except holds that were already behind
    it when they were added. Those are the holds below `promised`, which only rises, so that the
    holds need no second count. A batch of records has one hold, its least. If that hold is behind
    while other records of the batch are not, the least of the others is added to `batches`.

    Args:
        promised: the stored value of this watermark, in microseconds.
        holds: everything that holds the exact low watermark.
    """

    __slots__ = ("_above", "batches", "durable", "input", "promised")

    def __init__(self, promised: int, *holds: Holds) -> None:
        self.input = promised
        """The percentile low watermark of the input."""
        self.promised = self.durable = promised
        self.batches = Holds()
        """For each batch with its least hold behind: the least of its holds that is not."""
        self._above = [held.above() for held in holds]

    def hold_of(self, holds: Iterable[int]) -> int:
        """The time at which a batch holds this watermark; the end of time if all is behind."""
        promised = self.promised
        return min((hold for hold in holds if hold >= promised), default=MAX_TIME)

    def output(self, exact: int) -> int:
        """The value that may be published now, given the exact low watermark's value."""
        promised = self.promised
        least = min(self.input, self.batches.least(), *(a.least(promised) for a in self._above))
        return max(promised, exact, least)
