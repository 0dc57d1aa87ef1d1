"""The intervals of a lane, in the orders in which the runner asks them for work."""

from __future__ import annotations

from millwheel.runtime.interval.interval import Interval


class LaneIntervals:
    def __init__(self) -> None:
        self.all: list[Interval] = []
        """In the order in which they were added."""
        self.downstream_first: list[Interval] = []
        """Sorted by distance to the end of the graph, the nearest first."""
        self._tended: list[Interval] = []
        """Intervals with a mode that needs calls of `tend`."""

    def __contains__(self, interval: Interval) -> bool:
        return interval in self.all

    def add(self, interval: Interval) -> None:
        self.all.append(interval)
        self.downstream_first = sorted(self.all, key=lambda i: -i.step.place)
        if interval.mode.is_tended:
            self._tended.append(interval)

    def remove(self, interval: Interval) -> None:
        self.all.remove(interval)
        self.downstream_first = [i for i in self.downstream_first if i is not interval]
        self._tended = [i for i in self._tended if i is not interval]

    def tend_modes(self, now: int) -> None:
        for interval in self._tended:
            interval.mode.tend(now)
