"""The oldest work of an interval: a multiset of times that knows its least.

Everything that keeps a low watermark back counts here with its *hold*: un-ACKed
productions and source rows, timers, results that wait for their commit (I5; paper 4.5
"oldest work").
"""

from __future__ import annotations

import heapq

from millwheel.model import MAX_TIME


class Holds:
    """A multiset of holds in microseconds; adding and removing cost O(log n)."""

    __slots__ = ("_above", "_counts", "_heap")

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}
        self._heap: list[int] = []
        self._above: list[Above] = []

    def add(self, hold: int) -> None:
        """Hold the watermark at `hold`, until it is removed."""
        counts = self._counts
        held = counts.get(hold)
        if held is None:
            counts[hold] = 1
            heapq.heappush(self._heap, hold)
            for above in self._above:
                above.push(hold)
        else:
            counts[hold] = held + 1

    def remove(self, hold: int) -> None:
        """Take one hold of this time away; it must be there."""
        left = self._counts[hold] - 1
        if left:
            self._counts[hold] = left
        else:
            # A stale entry stays in the heap until it comes up; one that is added again
            # meanwhile finds itself twice there, which does no harm.
            del self._counts[hold]

    def least(self) -> int:
        """The least hold, or the end of time when nothing is held."""
        heap = self._heap
        while heap and heap[0] not in self._counts:
            heapq.heappop(heap)
        return heap[0] if heap else MAX_TIME

    def above(self) -> Above:
        """A look at the same holds that leaves out those below a bound that only rises."""
        above = Above(self._counts)
        self._above.append(above)
        return above

    def __len__(self) -> int:
        return sum(self._counts.values())


class Above:
    """The holds of a `Holds` from a rising bound on. Made by `Holds.above`."""

    __slots__ = ("_counts", "_heap")

    def __init__(self, counts: dict[int, int]) -> None:
        self._counts = counts
        self._heap: list[int] = list(counts)
        heapq.heapify(self._heap)

    def push(self, hold: int) -> None:
        """There is a hold at a new time."""
        heapq.heappush(self._heap, hold)

    def least(self, bound: int) -> int:
        """The least hold that is not below `bound`, which must not be less than last time."""
        heap, counts = self._heap, self._counts
        while heap and (heap[0] < bound or heap[0] not in counts):
            heapq.heappop(heap)
        return heap[0] if heap else MAX_TIME
