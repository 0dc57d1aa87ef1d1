"""Percentile low watermarks: early, and approximate (paper 7.2).

The exact low watermark waits for the slowest record that may still come. A percentile one goes
ahead of it: at the injectors it is the newest time less what that share of the records came
behind it; everywhere else it moves like the exact one, but a record that comes behind it counts
for nothing. It is never behind the exact one, and never goes back.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from millwheel.model import MAX_TIME, MIN_TIME
from millwheel.timers.holds import Holds

SAMPLES = 4096
"""Records by whose disorder a source is judged: the last ones."""

LEAST_SAMPLES = 100
"""Fewer say nothing: until then only the exact low watermark counts."""


class Disorder:
    """How far behind the newest timestamp the records of one partition come."""

    def __init__(self) -> None:
        self._behind: deque[int] = deque(maxlen=SAMPLES)
        self._newest = MIN_TIME

    def see(self, timestamp: int) -> None:
        """One more record, in the order of the source. Microseconds."""
        if timestamp > self._newest:
            self._newest = timestamp
        self._behind.append(self._newest - timestamp)

    def watermark(self, percentile: float) -> int:
        """The time behind which only 100 - `percentile` of a hundred records came."""
        behind = sorted(self._behind)
        if len(behind) < LEAST_SAMPLES:
            return MIN_TIME
        return self._newest - behind[min(len(behind) - 1, int(len(behind) * percentile / 100))]


class Percentile:
    """One percentile low watermark of one interval.

    What holds the exact watermark holds this one too, but for what was behind it when it came.
    That is so for every hold below `promised`, which only rises; so the holds need not be
    counted twice. A batch of records counts by its least, which may be behind while others in
    it are not: the least of those is added here.

    Args:
        promised: what is stored of it.
        holds: everything that holds the exact low watermark.
    """

    __slots__ = ("_above", "batches", "durable", "input", "promised")

    def __init__(self, promised: int, *holds: Holds) -> None:
        self.input = promised
        """The percentile low watermark of what comes in."""
        self.promised = self.durable = promised
        self.batches = Holds()
        """Batches whose least hold is behind; by the least that is not."""
        self._above = [held.above() for held in holds]

    def hold_of(self, holds: Iterable[int]) -> int:
        """What a batch holds this watermark at; the end of time if all of it is behind."""
        promised = self.promised
        return min((hold for hold in holds if hold >= promised), default=MAX_TIME)

    def output(self, exact: int) -> int:
        """What may be promised now, given what the exact low watermark may be."""
        promised = self.promised
        least = min(self.input, self.batches.least(), *(a.least(promised) for a in self._above))
        return max(promised, exact, least)
