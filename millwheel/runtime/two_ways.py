"""Two ways to the same reader, and one order: fused at once, or by the queue (decision 33).

What a fused B produces stands in A's log; what it produces of a record from its queue, in its
own. A key may change its way only when nothing is left on the other one ::

    fused ──all that came of it is ACKed──▶ by the queue: until then outputs are held back here
    by the queue ──all of it is ACKed──▶ fused: until then outputs go by the queue too

Kept by key, and only while something is un-ACKed (I8). No await, no clock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any

from millwheel.model import Delivery
from millwheel.runtime.sent import SentLog

Way = tuple[bytes, int]
"""A key, and the computation that it leads to."""

LEAST_SWEPT = 1024
"""Ways that are remembered before those are looked for that nothing is left on."""


class TwoWays:
    """What of one interval's log went which way.

    Args:
        logs: the interval's; the last one is written to, the others are inherited.
    """

    __slots__ = (
        "_by_queue",
        "_fused",
        "_held",
        "_last_fused",
        "_log",
        "_logs",
        "_receivers",
        "_sweep_at",
    )

    def __init__(self, logs: list[SentLog]) -> None:
        self._logs = logs
        self._log = logs[-1]
        self._by_queue: dict[Way, int] = {}
        """Up to which number outputs went by the queue."""
        self._fused: dict[Way, int] = {}
        """Up to which number something was made by a fused stage."""
        self._last_fused: dict[int, int] = {}
        """The same by computation, of all keys."""
        self._held: deque[tuple[int, Delivery[Any]]] = deque()
        """Numbered, but not sent before everything up to the number is acknowledged."""
        self._receivers: set[int] = set()
        """Of what is held back: anything else for them waits behind it."""
        self._sweep_at = LEAST_SWEPT

    def may_fuse(self, way: Way) -> bool:
        """Whether nothing of the key is on its way to the computation by the queue."""
        if len(self._logs) > 1 and not self._inherited_is_done():
            return False
        end = self._by_queue.get(way)
        if end is None:
            return True
        if end > self._log.first:
            return False
        del self._by_queue[way]
        return True

    def is_clear_of(self, receiver: int) -> bool:
        """Whether nothing is on its way that was made by a fused stage, of whatever key."""
        return self._last_fused.get(receiver, 0) <= self._log.first and self._inherited_is_done()

    def in_order(
        self,
        key_text: bytes,
        outputs: Sequence[Delivery[Any]],
        fused: set[int],
        queued: set[int],
    ) -> Sequence[Delivery[Any]]:
        """What may be sent now of the numbered outputs of one key's records.

        Args:
            fused: computations that ran fused on the way to some of them.
            queued: computations that could be fused, and to which some go by the queue.
        """
        end = self._log.next_seq
        held_back: dict[int, int] = {}
        for receiver in queued:
            way = (key_text, receiver)
            self._by_queue[way] = end
            before = self._fused.get(way, 0)
            if receiver in fused:
                before = end  # told apart below: by its own number
            if before > self._log.first or not self._inherited_is_done():
                held_back[receiver] = before
        for receiver in fused:
            self._fused[(key_text, receiver)] = self._last_fused[receiver] = end
        if len(self._fused) + len(self._by_queue) > self._sweep_at:
            self._sweep()
        if not held_back and not self._held:
            return outputs
        now = []
        for output in outputs:
            until = held_back.get(output.receiver)
            if until is None and output.receiver not in self._receivers:
                now.append(output)
                continue
            self._held.append((min(until or 0, output.seq), output))
            self._receivers.add(output.receiver)
        return [*now, *self.released()]  # if nothing is left to wait for, nobody will say so

    def released(self) -> list[Delivery[Any]]:
        """What need not be held back any more, in its order."""
        if not self._held or not self._inherited_is_done():
            return []
        first = self._log.first
        found = []
        while self._held and self._held[0][0] <= first:
            found.append(self._held.popleft()[1])
        self._receivers = {output.receiver for _, output in self._held}
        return found

    @property
    def holds_back(self) -> bool:
        """Whether anything is held back."""
        return bool(self._held)

    def _inherited_is_done(self) -> bool:
        return all(log.drained for log in self._logs[:-1])

    def _sweep(self) -> None:
        first = self._log.first
        for ways in (self._by_queue, self._fused):
            for way in _left_behind(ways, first):
                del ways[way]
        self._sweep_at = max(LEAST_SWEPT, 2 * (len(self._fused) + len(self._by_queue)))


def _left_behind(ways: dict[Way, int], first: int) -> Iterable[Way]:
    return [way for way, end in ways.items() if end <= first]
