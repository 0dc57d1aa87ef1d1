"""The lease: how long this worker may work on its intervals without an answer from the store.

When a worker's lease has run out by the store's clock, other workers claim its intervals. The
worker itself counts by its own monotonic clock, from the time before it requested the lease, and
stops work a margin earlier, when no other worker can have begun. The fence in every commit is the
guarantee (I3): if a worker was frozen and wakes up later, the store refuses its first commit.
"""

from __future__ import annotations

from millwheel.core.clock import Clock

MARGIN = 0.2
"""The part of a lease that is left unused, as a margin."""


class Lease:
    """The time left of a worker's lease."""

    def __init__(self, clock: Clock, seconds: float) -> None:
        self._clock = clock
        self.seconds = seconds
        self._ends = float("-inf")

    def renewed(self, asked: float) -> None:
        """Note that the store has renewed the lease.

        Args:
            asked: when the renewal was requested, by the monotonic clock.
        """
        self._ends = max(self._ends, asked + self.seconds * (1 - MARGIN))

    def end(self) -> None:
        """End the lease: this worker may not work on its intervals any more."""
        self._ends = float("-inf")

    @property
    def left(self) -> float:
        """Seconds for which this worker may work on its intervals; negative after the end."""
        return self._ends - self._clock.monotonic()
