"""The oldest work of an interval: a multiset of times that knows its minimum.

All that keeps a low watermark back is counted here by its *hold*, a time: un-ACKed productions and
source rows, timers, and results waiting for their commit (I5; paper 4.5 "oldest work").
"""

from __future__ import annotations

import heapq

from millwheel.core.model import MAX_TIME


class Holds:
    """A multiset of holds in microseconds; adding and removing cost O(log n).

    ```python
    holds = Holds()
    holds.add(20)
    holds.add(10)
    holds.remove(10)
    assert holds.least() == 20
    ```
    """

    __slots__ = ("_counts", "_heap")

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}
        self._heap: list[int] = []

    def add(self, hold: int) -> None:
        counts = self._counts
        held = counts.get(hold)
        if held is None:
            counts[hold] = 1
            heapq.heappush(self._heap, hold)
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

    def __len__(self) -> int:
        return sum(self._counts.values())
