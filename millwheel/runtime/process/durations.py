"""Histograms of durations, for metrics and heartbeats."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from itertools import accumulate

BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Seconds. A commit of one record takes about a millisecond, a full one some tens."""

CODE_BOUNDS = (0.00001, 0.000025, 0.00005, 0.0001, 0.00025, 0.0005, *BOUNDS)
"""Seconds of one call of user code: some microseconds, or as long as a service takes to answer."""


@dataclass(frozen=True)
class Distribution:
    bounds: tuple[float, ...]
    """Upper bounds of the buckets in seconds, ascending."""
    counts: tuple[int, ...]
    """Durations up to each bound; the last entry counts all."""
    total: float
    """Sum of the durations, seconds."""

    @property
    def count(self) -> int:
        return self.counts[-1]


class Durations:
    __slots__ = ("_bounds", "_counts", "count", "longest", "total")

    def __init__(self, bounds: tuple[float, ...] = BOUNDS) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self.count = 0
        self.total = 0.0
        self.longest = 0.0

    def observe(self, seconds: float, times: int = 1) -> None:
        self._counts[bisect_left(self._bounds, seconds)] += times
        self.count += times
        self.total += seconds * times
        if seconds > self.longest:
            self.longest = seconds

    def with_running(self, seconds: float) -> Durations:
        copy = Durations(self._bounds)
        copy._counts = self._counts.copy()
        copy.count, copy.total, copy.longest = self.count, self.total, self.longest
        copy.observe(seconds)
        return copy

    def percentile(self, share: float) -> float:
        """Upper bound of the bucket, at most the longest duration; 0: none."""
        left = share * self.count
        for bound, count in zip(self._bounds, self._counts, strict=False):
            left -= count
            if left <= 0:
                return min(bound, self.longest)
        return self.longest

    def distribution(self) -> Distribution:
        return Distribution(self._bounds, tuple(accumulate(self._counts)), self.total)
