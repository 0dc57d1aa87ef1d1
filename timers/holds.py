"""The oldest work of an interval: a multiset of times that knows its minimum.

Everything that keeps a low watermark back is counted here by its *hold*, a time: un-ACKed
productions and source rows, timers, and results waiting for their commit (I5; paper 4.5
"oldest work").
"""

from __future__ import annotations

import heapq

from millwheel.core.model import MAX_TIME


class Holds:
    """A multiset of holds in microseconds; adding and removing cost O(log n)."""

    __slots__ = ("_above", "_counts", "_heap")

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}
        self._heap: list[int] = []
        self._above: list[Above] = []

    def add(self, hold: int) -> None:
        """Hold the watermark at `hold` until the hold is removed."""
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
        """Remove one hold of this time, which must be present."""
        left = self._counts[hold] - 1
        if left:
            self._counts[hold] = left
        else:
            # The heap keeps a stale entry until it reaches the top. If the same time is added
            # again before that, the heap holds it twice, which does no harm.
            del self._counts[hold]

    def least(self) -> int:
        """The least hold, or the end of time if there is none."""
        heap = self._heap
        while heap and heap[0] not in self._counts:
            heapq.heappop(heap)
        return heap[0] if heap else MAX_TIME

    def above(self) -> Above:
        """A view of these holds that ignores all below a bound; the bound only rises."""
        above = Above(self._counts)
        self._above.append(above)
        return above

    def __len__(self) -> int:
        return sum(self._counts.values())


class Above:
    """The holds of a `Holds` at or above a rising bound. Made by `Holds.above`."""

    __slots__ = ("_counts", "_heap")

    def __init__(self, counts: dict[int, int]) -> None:
        self._counts = counts
        self._heap: list[int] = list(counts)
        heapq.heapify(self._heap)

    def push(self, hold: int) -> None:
        """Note that the multiset has a hold at a new time."""
        heapq.heappush(self._heap, hold)

    def least(self, bound: int) -> int:
        """The least hold at or above `bound`, which must not be lower than in the last call."""
        heap, counts = self._heap, self._counts
        while heap and (heap[0] < bound or heap[0] not in counts):
            heapq.heappop(heap)
        return heap[0] if heap else MAX_TIME
