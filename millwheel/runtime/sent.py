"""The sender's side of delivery: what was sent, and what of it is acknowledged.

A log is a sequence of records numbered from 0. ACKs come in any order; what is stored is
the first number not acknowledged and a bounded list of runs beyond it. ACKs of the same
record may come twice (a resend that was dropped is acknowledged too): only the first
counts. A row of a source may go to several readers and is done when all have acknowledged.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any

from millwheel.model import Delivery
from millwheel.timers.holds import Holds

MAX_SCATTERED = 512
"""ACKs beyond the prefix up to which their runs are stored at all."""


class SentLog:
    """One log as its sender sees it, since the interval was last claimed.

    Only what this claim has sent can be acknowledged: the ACK of a copy from before, for a
    record that is not sent again yet, counts for nothing; the record's new copy will be
    dropped by its reader and acknowledged in turn.
    """

    __slots__ = (
        "_beyond",
        "_holds",
        "_sent",
        "_several",
        "_stamps",
        "changed",
        "complete",
        "first",
        "id",
        "next_seq",
        "source",
        "unacked_bytes",
    )

    def __init__(
        self,
        log: int,
        holds: Holds,
        *,
        source: bool = False,
        first: int = 0,
        runs: Iterable[tuple[int, int]] = (),
    ) -> None:
        self.id = log
        self.source = source
        self.first = first
        self.next_seq = first
        self.unacked_bytes = 0
        self.changed = False
        self.complete = True
        """False while an inherited log is being sent again: more may be un-ACKed."""
        self._holds = holds
        self._sent: dict[int, int] = {}
        """Records sent and not acknowledged, with the holds they count for."""
        self._beyond: set[int] = set()
        for low, high in runs:
            self._beyond.update(range(low, high + 1))
        self._several: dict[int, int] = {}
        self._stamps: deque[tuple[int, int]] = deque()

    def stamp(self, first_seq: int, stamp: int) -> None:
        """Records from `first_seq` on were produced at `stamp`."""
        if not self._stamps or self._stamps[-1][1] != stamp:
            self._stamps.append((first_seq, stamp))

    def sent(self, seq: int, hold: int, size: int) -> None:
        """Record `seq` is on its way to one reader; its hold is counted already."""
        if seq >= self.next_seq:
            self.next_seq = seq + 1
        self._sent[seq] = hold
        self.unacked_bytes += size

    def sent_to_several(self, seq: int, hold: int, size: int, readers: int) -> None:
        """Row `seq` is on its way to several readers, given as a mask."""
        self.sent(seq, hold, size)
        self._several[seq] = readers

    def is_acknowledged(self, seq: int) -> bool:
        """Whether `seq` is done."""
        return seq < self.first or seq in self._beyond

    def acknowledge(self, seq: int, size: int, reader: int = 0) -> None:
        """One reader has made the effects of `seq` durable; `reader` is its bit in the mask."""
        waiting = self._several.get(seq)
        if waiting is not None:
            waiting &= ~reader
            if waiting:
                self._several[seq] = waiting
                return
            del self._several[seq]
        hold = self._sent.pop(seq, None)
        if hold is None:
            return
        self.unacked_bytes -= size
        self._holds.remove(hold)
        self.changed = True
        if seq != self.first:
            self._beyond.add(seq)
            return
        first = seq + 1
        beyond = self._beyond
        while first in beyond:
            beyond.discard(first)
            first += 1
        self.first = first

    def acknowledge_all(self, deliveries: list[Delivery[Any]], reader: int) -> None:
        """One reader has made the effects of all these durable."""
        acknowledge = self.acknowledge
        for delivery in deliveries:
            acknowledge(delivery.seq, delivery.size, reader)

    @property
    def unacked(self) -> int:
        """How many records are on their way."""
        return len(self._sent)

    def state(self, max_runs: int) -> list[Any]:
        """What is stored: the first not acknowledged, and runs beyond it."""
        self.changed = False
        if not self._beyond or len(self._beyond) > MAX_SCATTERED:
            return [self.first, []]
        runs: list[list[int]] = []
        for seq in sorted(self._beyond):
            if runs and runs[-1][1] == seq - 1:
                runs[-1][1] = seq
            else:
                runs.append([seq, seq])
        return [self.first, runs[:max_runs]]

    def floor(self) -> int | None:
        """The oldest stamp that may be sent again; None when everything is acknowledged."""
        stamps = self._stamps
        while len(stamps) > 1 and stamps[1][0] <= self.first:
            stamps.popleft()
        return stamps[0][1] if stamps and self._sent else None

    @property
    def drained(self) -> bool:
        """Whether every record is acknowledged."""
        return not self._sent and self.complete
