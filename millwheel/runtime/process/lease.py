"""The lease: how long this worker may work on its intervals without an answer from the store.

When it has run out by the store's clock, other workers claim the intervals. The worker counts by
its own monotonic clock, from before its request, and stops a margin earlier. The guarantee is the
fence in every commit (I3): if a worker was frozen and wakes up later, the store refuses its first
commit.
"""

from __future__ import annotations

from millwheel.core.clock import Clock

MARGIN = 0.2
"""Unused part of a lease."""


class Lease:
    def __init__(self, clock: Clock, seconds: float) -> None:
        self._clock = clock
        self.seconds = seconds
        self._ends = float("-inf")

    def renewed(self, asked: float) -> None:
        """`asked` is the monotonic time of the request."""
        self._ends = max(self._ends, asked + self.seconds * (1 - MARGIN))

    def end(self) -> None:
        self._ends = float("-inf")

    @property
    def left(self) -> float:
        """Seconds for which this worker may work; negative after the end of the lease."""
        return self._ends - self._clock.monotonic()
