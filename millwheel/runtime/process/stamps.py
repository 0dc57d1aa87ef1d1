"""The worker's logical clock."""

from __future__ import annotations

from millwheel.clock import Clock


class Stamps:
    """The worker's logical clock: each stamp is greater than every one before it."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._ahead = 0
        """How far the store's clock is ahead of this machine's."""
        self._last = 0

    def restore(self, last: int) -> None:
        """Start after `last`, the newest stamp found in the store."""
        self._last = max(self._last, last)

    def adjust(self, before: int, store: int) -> int:
        """Go by the store's clock, which showed `store` when this one showed `before`.

        Returns:
            How far the store's clock is ahead, in microseconds.
        """
        self._ahead = store - before
        return self._ahead

    def now(self) -> int:
        """The time by which all workers stamp."""
        return self._clock.now() + self._ahead

    def next(self) -> int:
        """A new stamp: the clock's microseconds, or one more than the last."""
        self._last = max(self.now(), self._last + 1)
        return self._last

    @property
    def last(self) -> int:
        """The newest stamp given."""
        return self._last
