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
    asks: all taken     ignored            progress              gap
    asks: not all       ignored            gap                   gap

Who is slow has lost nothing, and must not get everything once more (decision 31). So a sender whose
oldest record is not acknowledged for a while *asks*, naming the last number it has sent, and
goes by the answer::

    answer              says                                         the sender
    ------------------  -------------------------------------------  ------------------------------
    progress            I have all of it, and work at it             waits, and sends what is new
    progress, no more   I am about to give the interval up           is *held* until somebody has it
    gap                 I have not all of it                         begins anew
    not mine            somebody else has it                         looks the owner up
    (none)              three times in a row                         begins anew

Progress tells a number before which all that was taken is durable: the first that was not
acknowledged. That is how a lost acknowledgement is mended. It says nothing of what is behind it (I1).
An answer for another epoch than the present one counts for nothing, and so does one of another worker
than the stream goes to. What an answer names is cut down to what was sent to that worker and is not
acknowledged: no peer can acknowledge what it never had (decision 41).

An interval that is being given up takes no frames: *not mine*. If the store still names the owner who has just
said so, the stream is held and he is asked before all is sent to him again.

A receiver whose code is too old to read a frame takes nothing of its epoch and says so; the stream
is *halted* then until it begins anew: for another owner, or to try again, ever more seldom.

So the records of one log come to a key in the sender's order (I14), whatever the wire does; a
record that comes twice, because a stream began anew, is dropped by its id like any other copy.
"""

from __future__ import annotations

import enum
from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Sequence
from itertools import islice
from operator import itemgetter
from typing import Any

from millwheel.errors import PeerError
from millwheel.model import Delivery
from millwheel.runtime.network.frames import Run

NOTHING = -1
"""In place of the number sent before: the epoch begins."""

FIRST_PATIENCE_SECONDS = 2.0
"""So long the oldest record may be un-ACKed before its receiver is asked. A link that is up loses
nothing by itself; what sits between two workers may."""

LONGEST_PATIENCE_SECONDS = 30.0

QUESTIONS = 3
"""So many in a row without an answer: one of them or the answer may be lost, not all."""

Epoch = tuple[int, int]
"""The sequencer of the sending interval, and a number that rises with every stream its owner
begins: a stream to an interval that was cut, and is known anew, is above those before the cut."""


class Due(enum.Enum):
    """What a sender should do about a stream of which it has heard nothing."""

    NOTHING = "nothing"
    ASK = "ask"
    BEGIN = "begin"


class Outgoing:
    """The sender's end: the records of a log for one interval that it has not acknowledged."""

    __slots__ = (
        "_asked",
        "_oldest",
        "_once",
        "_patience",
        "_quiet_since",
        "_unsent",
        "epoch",
        "halted",
        "held",
        "highest_sent",
        "last",
        "receiver",
        "unacked",
    )

    def __init__(self, *, once: bool = False) -> None:
        self._once = once
        """What was sent is never sent again."""
        self._quiet_since = float("inf")
        self._patience = FIRST_PATIENCE_SECONDS
        self._oldest = NOTHING
        """The record that was the first un-ACKed one when it began to be quiet."""
        self._asked = 0
        """Questions since the last answer."""
        self.unacked: dict[int, Delivery[Any]] = {}
        """By number, in the order in which they were sent to here."""
        self._unsent: deque[Delivery[Any]] = deque()
        self.epoch = 0
        """The number it began with; 0: it has not epoch yet."""
        self.halted = False
        """The receiver cannot read what comes: nothing is sent until it begins anew."""
        self.held = False
        """The receiver takes nothing now, and may have all: it is asked before anything is sent."""
        self.last = NOTHING
        self.receiver = ""
        """The worker that it was last sent to."""
        self.highest_sent = NOTHING
        """The highest number sent to that worker, in whatever epoch."""

    def set_receiver(self, worker: str) -> None:
        """From here on it is sent to this worker."""
        if worker != self.receiver:
            self.receiver = worker
            self.highest_sent = NOTHING

    def append(self, delivery: Delivery[Any]) -> None:
        """Add a record, after those before it; a copy of one that is not acknowledged yet adds
        nothing, as numbers on the wire ascend."""
        if delivery.seq not in self.unacked:
            self._unsent.append(delivery)
        self.unacked[delivery.seq] = delivery

    def begin(self, number: int) -> list[int]:
        """Send everything again that is not acknowledged, as a stream of its own.

        Args:
            number: higher than that of any stream epoch before.

        Returns:
            The numbers that are given up.
        """
        dropped = self.drop_sent()
        self.epoch = number
        self.halted = self.held = False
        self._quiet_since = float("inf")
        self._asked = 0
        self.last = NOTHING
        self._unsent = deque(self.unacked.values())
        return dropped

    def drop_sent(self) -> list[int]:
        """Forget what was sent and may have arrived, where records are sent once only; gives the
        numbers."""
        if not self._once:
            return []
        unsent = {delivery.seq for delivery in self._unsent}
        dropped = [seq for seq in self.unacked if seq not in unsent]
        for seq in dropped:
            del self.unacked[seq]
        return dropped

    def take(self, records: int, size: int) -> tuple[int, list[Delivery[Any]]]:
        """The next records to send, none if there are none, and the number sent before them.

        Args:
            records, size: at most so many, and of so many bytes together; but at least one.
        """
        previous = self.last
        taken: list[Delivery[Any]] = []
        if self.halted or self.held:
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
            self.highest_sent = max(self.highest_sent, self.last)
        return previous, taken

    def acknowledge(self, runs: Sequence[Run]) -> list[int]:
        """The worker that it is sent to has these, in ascending runs; numbers of other intervals are
        passed over.

        Returns:
            The numbers among them that were sent to that worker and were un-ACKed. The work for it is
            bounded by the number of un-ACKed records and of runs, whatever the runs say.
        """
        unacked = self.unacked
        if not unacked:
            return []
        first, highest_sent = next(iter(unacked)), self.highest_sent
        about = [
            range(max(low, first), min(high, highest_sent) + 1)
            for low, high in islice(runs, bisect_left(runs, first, key=_end_of_run), None)
        ]
        if sum(map(len, about)) <= len(unacked):
            found = [seq for numbers in about for seq in numbers if seq in unacked]
        else:  # there are gaps in a source's numbers, or a peer acknowledges more than it was sent
            found = _both(unacked, about)
        for seq in found:
            del unacked[seq]
        if found:
            self._answered()
        return found

    def progress(self, epoch: int, done: int, *, takes: bool = True) -> list[int]:
        """The receiver has all that it was asked about, and works at it.

        Args:
            epoch: the number that the stream had epoch with when it was asked.
            done: what was sent in that epoch and comes before this number is durable there.
            takes: whether it takes more; else it may lack what was sent last, too.

        Returns:
            The numbers that must have been acknowledged: the word of it was lost.
        """
        if epoch != self.epoch:
            return []
        self._answered()
        self.held = not takes
        last = self.last
        found = [seq for seq in self.unacked if seq < done and seq <= last]
        for seq in found:
            del self.unacked[seq]
        return found

    def _answered(self) -> None:
        self._asked = 0
        self._patience = FIRST_PATIENCE_SECONDS

    def due(self, now: float) -> Due:
        """Whether to ask the receiver how far it is, or to begin anew, since it says nothing.

        Called again and again, with the time on a monotonic clock. What was acknowledged behind the
        oldest record does not count: the word of that one may be lost. A halted stream is epoch
        anew, ever more seldom: nobody else may have the interval, and the owner newer code.
        """
        if not self.unacked or (self._unsent and not (self.halted or self.held)):
            self._quiet_since = float("inf")
            return Due.NOTHING
        oldest = next(iter(self.unacked))
        if self._quiet_since == float("inf") or oldest != self._oldest:
            self._quiet_since, self._oldest = now, oldest
            return Due.NOTHING
        if now - self._quiet_since <= self._patience:
            return Due.NOTHING
        self._quiet_since = now
        if not self.halted and self._asked < QUESTIONS:
            self._asked += 1
            return Due.ASK
        self._asked = 0
        self._patience = min(2 * self._patience, LONGEST_PATIENCE_SECONDS)
        return Due.BEGIN


_end_of_run = itemgetter(1)


def _both(numbers: Iterable[int], ranges: Iterable[range]) -> list[int]:
    """The numbers that are in one of the ranges; both ascend."""
    found: list[int] = []
    left = iter(ranges)
    present = next(left, None)
    for number in numbers:
        while present is not None and present.stop <= number:
            present = next(left, None)
        if present is None:
            break
        if number in present:
            found.append(number)
    return found


def check_runs(runs: Iterable[Run]) -> None:
    """See that runs of numbers are not empty, ascend, and do not overlap.

    Raises:
        PeerError: they are not as every worker sends them.
    """
    end = NOTHING
    for low, high in runs:
        if not end < low <= high:
            raise PeerError(
                f"numbers that no worker acknowledges: a run from {low} to {high} behind {end}"
            )
        end = high


class Verdict(enum.Enum):
    """What becomes of a frame."""

    TAKEN = "taken"
    IGNORED = "ignored"
    GAP = "gap"


class Incoming:
    """The receiver's end: the newest epoch seen, and what was taken of it."""

    __slots__ = ("epoch", "last", "pending")

    def __init__(self) -> None:
        self.epoch: Epoch = (-1, -1)
        self.last = NOTHING
        self.pending: set[int] = set()
        """Taken in this epoch and not acknowledged since. What was taken before and is still
        queued comes again in this epoch, or was acknowledged before it began."""

    def judge(self, epoch: Epoch, previous: int, seqs: Sequence[int]) -> Verdict:
        """What to do with a frame of records `seqs` that comes after number `previous`."""
        if epoch < self.epoch:
            return Verdict.IGNORED
        if epoch > self.epoch:
            if previous != NOTHING:
                return Verdict.GAP
            self.epoch = epoch
            self.pending.clear()
        elif previous < self.last or (previous == NOTHING and self.last == NOTHING):
            return Verdict.IGNORED
        elif previous > self.last:
            return Verdict.GAP
        self.last = seqs[-1]
        self.pending.update(seqs)
        return Verdict.TAKEN

    def judge_question(self, epoch: Epoch, last: int) -> Verdict:
        """What to answer who has sent everything through `last`: whether all of it was taken."""
        if epoch < self.epoch:
            return Verdict.IGNORED
        return Verdict.TAKEN if epoch == self.epoch and self.last >= last else Verdict.GAP

    def acknowledge(self, seqs: Iterable[int]) -> None:
        """These are durable; numbers of other intervals are passed over."""
        self.pending.difference_update(seqs)

    @property
    def done(self) -> int:
        """What was taken in this epoch and comes before this number is durable."""
        return min(self.pending, default=self.last + 1)
