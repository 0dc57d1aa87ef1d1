"""The intervals of a lane, in the orders in which it asks them."""

from __future__ import annotations

from millwheel.runtime.interval.interval import Interval


class LaneIntervals:
    """The intervals that a lane works on."""

    def __init__(self) -> None:
        self.all: list[Interval] = []
        self.downstream_first: list[Interval] = []
        """The same; those nearest to the end of the graph first."""
        self._tended: list[Interval] = []
        """Those whose mode has something to do by itself."""

    def __contains__(self, interval: Interval) -> bool:
        return interval in self.all

    def add(self, interval: Interval) -> None:
        """Work on one more interval."""
        self.all.append(interval)
        self.downstream_first = sorted(self.all, key=lambda i: -i.step.place)
        if interval.mode.is_tended:
            self._tended.append(interval)

    def remove(self, interval: Interval) -> None:
        """Work on an interval no longer."""
        self.all.remove(interval)
        self.downstream_first = [i for i in self.downstream_first if i is not interval]
        self._tended = [i for i in self._tended if i is not interval]

    def tend_modes(self, now: int) -> None:
        """Start what modes have due at wall time `now`."""
        for interval in self._tended:
            interval.mode.tend(now)
