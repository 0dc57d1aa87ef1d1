"""The lease: how long this worker may touch its intervals without hearing from the store.

Others claim the intervals of a worker whose lease ran out, by the store's clock. This worker
counts by its own monotonic clock, from before it asked for the lease, and lets go a margin
earlier: then nobody else has begun. The fence in every commit backs it (I3): a worker that
was stopped and wakes up after all finds its first commit refused.
"""

from __future__ import annotations

from millwheel.clock import Clock

MARGIN = 0.2
"""The share of a lease that is not made use of."""


class Lease:
    """What is left of a worker's lease."""

    def __init__(self, clock: Clock, seconds: float) -> None:
        self._clock = clock
        self.seconds = seconds
        self._ends = float("-inf")

    def renewed(self, asked: float) -> None:
        """The store has renewed it; it was asked to at `asked` on the monotonic clock."""
        self._ends = max(self._ends, asked + self.seconds * (1 - MARGIN))

    def end(self) -> None:
        """Nothing may be touched any more."""
        self._ends = float("-inf")

    @property
    def left(self) -> float:
        """Seconds in which intervals may be touched; below zero when they may not."""
        return self._ends - self._clock.monotonic()
