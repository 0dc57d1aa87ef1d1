"""Pending timers of one interval and kind, in the order in which they are due."""

from __future__ import annotations

import heapq
from dataclasses import dataclass

from millwheel.model import Key

TimerName = tuple[bytes, str]
"""Key and tag."""


@dataclass(slots=True, frozen=True)
class Pending:
    """A timer that is set. `due` and `hold` in microseconds."""

    due: int
    hold: int
    key: Key
    slot: int
    order: int


class TimerQueue:
    """Timers by name, and by time: set, replace, cancel, take what is due (paper 4.6)."""

    def __init__(self) -> None:
        self._pending: dict[TimerName, Pending] = {}
        self._heap: list[tuple[int, int, TimerName]] = []
        self._count = 0

    def put(self, name: TimerName, due: int, hold: int, key: Key, slot: int) -> Pending | None:
        """Set a timer; gives the one it replaces."""
        replaced = self._pending.get(name)
        self._count += 1
        self._pending[name] = Pending(due, hold, key, slot, self._count)
        heapq.heappush(self._heap, (due, self._count, name))
        return replaced

    def get(self, name: TimerName) -> Pending | None:
        """The timer of this name, if it is set."""
        return self._pending.get(name)

    def cancel(self, name: TimerName) -> Pending | None:
        """Forget a timer; gives the one that was set."""
        return self._pending.pop(name, None)

    def next_due(self) -> int | None:
        """When the next timer is due."""
        heap = self._heap
        while heap:
            due, order, name = heap[0]
            pending = self._pending.get(name)
            if pending is not None and pending.order == order:
                return due
            heapq.heappop(heap)
        return None

    def take_due(self, before: int, limit: int) -> list[tuple[TimerName, Pending]]:
        """Remove and give up to `limit` timers due before the instant `before`, earliest first."""
        taken: list[tuple[TimerName, Pending]] = []
        while len(taken) < limit:
            due = self.next_due()
            if due is None or due >= before:
                break
            name = heapq.heappop(self._heap)[2]
            taken.append((name, self._pending.pop(name)))
        return taken

    def __len__(self) -> int:
        return len(self._pending)
