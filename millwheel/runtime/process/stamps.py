from __future__ import annotations

from millwheel.core.clock import Clock


class Stamps:
    """The worker's logical clock: each stamp is greater than all earlier ones."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._ahead = 0
        """Microseconds ahead of this machine's clock."""
        self._last = 0

    def restore(self, last: int) -> None:
        self._last = max(self._last, last)

    def adjust(self, before: int, after: int, store: int) -> int:
        """The store's clock showed `store` while this machine's went from `before` to `after`;
        returns how far it is ahead.

        The former difference stays as far as it agrees: an answer that waited for a lock says
        little about the clock.
        """
        self._ahead = min(max(self._ahead, store - after), store - before)
        return self._ahead

    def now(self) -> int:
        """Microseconds, by the clock that all workers of the pipeline use."""
        return self._clock.now() + self._ahead

    def coming(self) -> int:
        """The stamp that `next` would give now. A moment later, with another time on the clock, it
        may give another."""
        return max(self.now(), self._last + 1)

    def next(self) -> int:
        self._last = self.coming()
        return self._last

    @property
    def last(self) -> int:
        return self._last
