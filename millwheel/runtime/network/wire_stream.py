"""Wire streams: a log's deliveries to one interval of another worker (decision 23).

The sender keeps un-ACKed records and can restart the stream at any time: its *epoch* rises, and its
first frame says that no frame precedes it. The receiver accepts a frame that follows the last
accepted one of the newest epoch it has seen::

    frame               of a lower epoch   of this epoch         of a higher epoch
    ------------------  -----------------  --------------------  ------------------
    first of its epoch  ignored (zombie)   ignored (duplicate)   taken
    follows the last    ignored            taken                 gap
    repeats             ignored            ignored (duplicate)   gap
    skips records       ignored            gap                   gap
    asks: all taken     ignored            progress              gap
    asks: not all       ignored            gap                   gap

A slow receiver must not get all records again (decision 31). So if the oldest record stays
un-ACKed, the sender *asks*, naming the last number it has sent, and acts on the answer::

    answer              meaning                                      the sender
    ------------------  -------------------------------------------  ------------------------------
    progress            all records arrived, and are processed       waits, and sends new records
    progress, no more   the interval is being drained                *holds* the stream until the
                                                                     interval has a new owner
    gap                 some records did not arrive                  restarts the stream
    not mine            another worker owns the interval             looks the owner up
    (none)              no answer to three questions in a row        restarts the stream

Progress names the first un-ACKed number; it says nothing about later records (I1). An answer counts
only for the present epoch, from the worker that the stream is sent to, and for un-ACKed records
that were sent to it (decision 41).

If the store still names a worker that has just refused, the stream is held, and the worker is asked
before all records are sent again. A stream that the receiver's code cannot read is *halted* until
it restarts: for another owner, or to try again, at growing intervals.

So the records of one log reach a key in the sender's order (I14). A record that a restart repeats
is dropped by its id.
"""

from __future__ import annotations

import enum
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterable, Sequence
from itertools import accumulate
from operator import attrgetter, itemgetter
from typing import Any, TypeAlias

from millwheel.core.chunk import Chunk
from millwheel.core.model import Delivery
from millwheel.errors import PeerError
from millwheel.runtime.network.frames import Run

NOTHING = -1
"""The previous number in the first frame of an epoch."""

FIRST_PATIENCE_SECONDS = 2.0
"""Time the oldest record may stay un-ACKed before its receiver is asked; each restart doubles it,
and an answer resets it. A link that is up loses no frame by itself, but a middlebox may."""

LONGEST_PATIENCE_SECONDS = 30.0

QUESTIONS = 3

Epoch = tuple[int, int]
"""Sequencer of the sending interval, and a number that rises with every stream of its owner: a
stream to a split or merged interval is above all streams before."""


Sent: TypeAlias = Chunk | Delivery[Any]


class Due(enum.Enum):
    NOTHING = "nothing"
    ASK = "ask"
    BEGIN = "begin"


class Outgoing:
    """The sender's end: the un-ACKed records of a log for one interval."""

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
        """Records are sent at most once."""
        self._quiet_since = float("inf")
        self._patience = FIRST_PATIENCE_SECONDS
        self._oldest = NOTHING
        """The first un-ACKed record at `_quiet_since`."""
        self._asked = 0
        self.unacked: dict[int, Sent] = {}
        """The numbers of un-ACKed records, in order, each with the record or its chunk."""
        self._unsent: deque[Sent] = deque()
        self.epoch = 0
        """0 before the first."""
        self.halted = False
        """Send nothing until a restart: the receiver cannot read the records."""
        self.held = False
        """Ask before sending: the receiver accepts no records now, and may have all."""
        self.last = NOTHING
        self.receiver = ""
        self.highest_sent = NOTHING
        """The highest number sent to that worker, in any epoch."""

    def set_receiver(self, worker: str) -> None:
        if worker != self.receiver:
            self.receiver = worker
            self.highest_sent = NOTHING

    def append(self, item: Sent) -> None:
        """A duplicate of an un-ACKed record is not sent: numbers on the wire ascend."""
        numbers = _numbers(item)
        if self.unacked.keys().isdisjoint(numbers):
            self.unacked.update(dict.fromkeys(numbers, item))
            self._unsent.append(item)
        elif type(item) is Chunk:
            for delivery in item.apart():
                self.append(delivery)

    def begin(self, number: int) -> list[int]:
        """All un-ACKed records are sent in an epoch above all earlier ones; returns the numbers
        that `drop_sent` dropped."""
        dropped = self.drop_sent()
        self.epoch = number
        self.halted = self.held = False
        self._quiet_since = float("inf")
        self._asked = 0
        self.last = NOTHING
        self._unsent = deque(dict.fromkeys(self.unacked.values()))
        return dropped

    def drop_sent(self) -> list[int]:
        """Drop records that may have arrived if they are sent at most once; returns their
        numbers."""
        if not self._once:
            return []
        unsent = {number for item in self._unsent for number in _numbers(item)}
        dropped = [seq for seq in self.unacked if seq not in unsent]
        for seq in dropped:
            del self.unacked[seq]
        return dropped

    @property
    def is_sent(self) -> bool:
        return not self._unsent and not (self.unacked and (self.halted or self.held))

    def take(self, records: int, size: int) -> tuple[int, Chunk | list[Delivery[Any]]]:
        """The number sent before, and the next records: of one chunk, or single ones.

        `size` limits their bytes together; a single record may be larger.
        """
        previous = self.last
        if self.halted or self.held:
            return previous, []
        taken = self._take(records, size)
        if taken:
            self.last = taken.numbers[-1] if isinstance(taken, Chunk) else taken[-1].seq
            self.highest_sent = max(self.highest_sent, self.last)
        return previous, taken

    def _take(self, records: int, size: int) -> Chunk | list[Delivery[Any]]:
        unsent = self._unsent
        taken: list[Delivery[Any]] = []
        while unsent and len(taken) < records:
            item = unsent[0]
            left = self._left(item)
            if left is None:  # it was acknowledged before its resend
                unsent.popleft()
            elif isinstance(left, Chunk):
                if taken:
                    break
                unsent.popleft()
                fitting = _fitting(left, records, size)
                if fitting < len(left):
                    left, rest = left.split(fitting)
                    unsent.appendleft(rest)
                return left
            else:
                size -= left.size
                if taken and size < 0:
                    break
                taken.append(left)
                unsent.popleft()
        return taken

    def _left(self, item: Sent) -> Sent | None:
        """The part of it that is un-ACKed."""
        unacked = self.unacked
        if not isinstance(item, Chunk):
            return item if item.seq in unacked else None
        places = [place for place, number in enumerate(item.numbers) if number in unacked]
        if len(places) == len(item):
            return item
        return item.part(places) if places else None

    def left(self) -> list[Delivery[Any]]:
        """All un-ACKed records, in order."""
        found: list[Delivery[Any]] = []
        for item in dict.fromkeys(self.unacked.values()):
            part = self._left(item)
            found += part.apart() if isinstance(part, Chunk) else [part] if part else []
        found.sort(key=attrgetter("seq"))
        return found

    def acknowledge(self, runs: Sequence[Run]) -> list[int]:
        """Returns the numbers that were sent to the present receiver and un-ACKed.

        The work is bounded by the number of un-ACKed records and of runs, whatever the runs
        contain.
        """
        unacked = self.unacked
        if not unacked:
            return []
        first, highest_sent = next(iter(unacked)), self.highest_sent
        later = runs[bisect_left(runs, first, key=_end_of_run) :]
        if later and (later[0][0] < first or later[-1][1] > highest_sent):
            later = [(max(low, first), min(high, highest_sent)) for low, high in later]
        about = [range(low, high + 1) for low, high in later]
        if sum(map(len, about)) <= len(unacked):
            found = [seq for numbers in about for seq in numbers if seq in unacked]
        else:  # a source's numbers have gaps, or a peer acknowledges more than it received
            found = _both(unacked, about)
        for seq in found:
            del unacked[seq]
        if found:
            self._answered()
        return found

    def progress(self, epoch: int, done: int, *, takes: bool = True) -> list[int]:
        """Returns the numbers with a lost acknowledgement; records sent in `epoch` before number
        `done` are durable.

        If the receiver `takes` no more, it may also lack the last records.
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
        """Called periodically, with a monotonic time.

        ACKs of records after the oldest do not count as signs of life: the ACK of the oldest may be
        lost. A halted stream is restarted at growing intervals: its receiver may have newer code by
        then.
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


def _numbers(item: Sent) -> Sequence[int]:
    return item.numbers if isinstance(item, Chunk) else (item.seq,)


def _fitting(chunk: Chunk, records: int, size: int) -> int:
    """How many of its first records fit into these limits; at least one."""
    if chunk.size <= size:
        return min(records, len(chunk))
    return min(records, bisect_right(list(accumulate(map(len, chunk.encoded))), size) or 1)


def _both(numbers: Iterable[int], ranges: Iterable[range]) -> list[int]:
    """The numbers within the ranges; both iterables ascend."""
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
    """`PeerError` unless runs ascend, and are neither empty nor overlapping."""
    end = NOTHING
    for low, high in runs:
        if not end < low <= high:
            raise PeerError(
                f"acknowledged numbers are not in ascending runs: a run from {low} to {high} after "
                f"{end}"
            )
        end = high


class Verdict(enum.Enum):
    TAKEN = "taken"
    IGNORED = "ignored"
    GAP = "gap"


class Incoming:
    """The receiver's end: the newest epoch seen, and the records accepted in it."""

    __slots__ = ("epoch", "last", "pending")

    def __init__(self) -> None:
        self.epoch: Epoch = (-1, -1)
        self.last = NOTHING
        self.pending: set[int] = set()
        """Numbers accepted in this epoch and not acknowledged yet. Queued records of an earlier
        epoch are sent again in this epoch, or were acknowledged before it began."""

    def judge(self, epoch: Epoch, previous: int, seqs: Sequence[int]) -> Verdict:
        """Decide on a frame of records `seqs` that follows number `previous`."""
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
        if epoch < self.epoch:
            return Verdict.IGNORED
        return Verdict.TAKEN if epoch == self.epoch and self.last >= last else Verdict.GAP

    def acknowledge(self, seqs: Iterable[int]) -> None:
        """Numbers of other intervals are ignored."""
        self.pending.difference_update(seqs)

    @property
    def done(self) -> int:
        """The number before which all records accepted in this epoch are durable."""
        return min(self.pending, default=self.last + 1)
