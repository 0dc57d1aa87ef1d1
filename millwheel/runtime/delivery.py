"""Streams of deliveries: what one log sends to one receiving interval of another worker.

Decision 23. The sender keeps what is not acknowledged and can begin anew at any time; then the
stream's *epoch* is higher, and its first frame says that nothing was sent before it. The receiver
takes a frame that follows the last one it took of the newest epoch it has seen::

    frame               of a lower epoch   of this epoch         of a higher epoch
    ------------------  -----------------  --------------------  ------------------
    says: nothing sent  ignored (zombie)   ignored (a copy)      taken
    follows the last    ignored            taken                 gap
    repeats             ignored            ignored (a copy)      gap
    leaves out          ignored            gap                   gap

A receiver whose code is too old to read a frame takes nothing of its epoch and says so; the stream
is *halted* then until it begins anew: for another owner, or to try again, ever more seldom.

So the records of one log come to a key in the sender's order (I14), whatever the wire does; a
record that comes twice, because a stream began anew, is dropped by its id like any other copy.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Iterable
from typing import Any

from millwheel.model import Delivery

NOTHING = -1
"""In place of the number sent before: the epoch begins."""

FIRST_PATIENCE_SECONDS = 2.0
"""A link that is up loses nothing by itself; what sits between two workers may."""

LONGEST_PATIENCE_SECONDS = 30.0

Epoch = tuple[int, int]
"""The sequencer of the sending interval, and a number that rises with every stream its owner
begins: a stream to an interval that was cut, and is known anew, is above those before the cut."""


class Outgoing:
    """The sender's end: the records of a log for one interval that it has not acknowledged."""

    __slots__ = (
        "_patience",
        "_quiet_since",
        "_unsent",
        "begun",
        "halted",
        "last",
        "unacked",
    )

    def __init__(self) -> None:
        self._quiet_since = float("inf")
        self._patience = FIRST_PATIENCE_SECONDS
        self.unacked: dict[int, Delivery[Any]] = {}
        """By number, in the order in which they were sent to here."""
        self._unsent: deque[Delivery[Any]] = deque()
        self.begun = 0
        """The number it began with; 0: it has not begun yet."""
        self.halted = False
        """The receiver cannot read what comes: nothing is sent until it begins anew."""
        self.last = NOTHING

    def append(self, delivery: Delivery[Any]) -> None:
        """One more record, after those before it."""
        self.unacked[delivery.seq] = delivery
        self._unsent.append(delivery)

    def begin(self, number: int) -> None:
        """Send everything again that is not acknowledged, as a stream of its own.

        Args:
            number: higher than that of any stream begun before.
        """
        self.begun = number
        self.halted = False
        self.last = NOTHING
        self._unsent = deque(self.unacked.values())

    def take(self, records: int, size: int) -> tuple[int, list[Delivery[Any]]]:
        """The next records to send, none if there are none, and the number sent before them.

        Args:
            records, size: at most so many, and of so many bytes together; but at least one.
        """
        previous = self.last
        taken: list[Delivery[Any]] = []
        if self.halted:
            return previous, taken
        unsent, unacked = self._unsent, self.unacked
        while unsent and len(taken) < records:
            delivery = unsent[0]
            if delivery.seq in unacked:  # else it was acknowledged before it could be sent again
                size -= delivery.size
                if taken and size < 0:
                    break
                taken.append(delivery)
            unsent.popleft()
        if taken:
            self.last = taken[-1].seq
        return previous, taken

    def acknowledge(self, seqs: Iterable[int]) -> None:
        """The receiver has these; numbers of other intervals are passed over."""
        pop = self.unacked.pop
        before = len(self.unacked)
        for seq in seqs:
            pop(seq, None)
        if len(self.unacked) < before:
            self._quiet_since = float("inf")
            self._patience = FIRST_PATIENCE_SECONDS

    def is_overdue(self, now: float) -> bool:
        """Whether nothing was heard for so long that a frame or its answer must be lost, or that a
        receiver who could not read it may be asked again.

        Asked again and again, with the time on a monotonic clock; each time it says so, it waits
        twice as long for the next.
        """
        if not self.unacked or (self._unsent and not self.halted):
            self._quiet_since = float("inf")
        elif self._quiet_since == float("inf"):
            self._quiet_since = now
        elif now - self._quiet_since > self._patience:
            self._quiet_since = now
            self._patience = min(2 * self._patience, LONGEST_PATIENCE_SECONDS)
            return True
        return False


class Verdict(enum.Enum):
    """What becomes of a frame."""

    TAKEN = "taken"
    IGNORED = "ignored"
    GAP = "gap"


class Incoming:
    """The receiver's end: the newest epoch seen, and the last number taken of it."""

    __slots__ = ("epoch", "last")

    def __init__(self) -> None:
        self.epoch: Epoch = (-1, -1)
        self.last = NOTHING

    def judge(self, epoch: Epoch, previous: int, last: int) -> Verdict:
        """What to do with a frame that comes after number `previous` and ends with `last`."""
        if epoch < self.epoch:
            return Verdict.IGNORED
        if epoch > self.epoch:
            if previous != NOTHING:
                return Verdict.GAP
            self.epoch = epoch
        elif previous < self.last or (previous == NOTHING and self.last == NOTHING):
            return Verdict.IGNORED
        elif previous > self.last:
            return Verdict.GAP
        self.last = last
        return Verdict.TAKEN
