"""Input low watermarks of all computations, from what their senders have stored.

``IW(A) = min(stored LW of every interval that sends to A)``: a record queued or running
at A is un-ACKed at its sender, whose stored watermark it holds, so it need not be counted
again here. A value is told only after it is stored, and never goes back (I5).

What senders have stored is kept by slot, not by interval (paper 7.2): a report covers the
slots of its interval, and counts unless something newer, by its sequencer, is known of them.
Slots that are not reported any more keep their last value. So a worker that has not heard yet
of a split does not run ahead of the part that is new to it.

A source whose partitions appear while it runs has a slot for the discovery of partitions, slot 0,
and free slots for partitions to come. A free slot counts for nothing: the discovery promises no more
than the least of all partitions that were found, so that it holds for those that a worker has
not heard of (I17).
"""

from __future__ import annotations

from bisect import bisect_right
from typing import NamedTuple

from millwheel.model import MAX_TIME, MIN_TIME


class Report(NamedTuple):
    """What the owner of an interval has stored as its low watermark."""

    computation: int
    slot_from: int
    slot_to: int
    sequencer: int
    watermark: int
    idle: bool = False
    """A partition of a source that has been silent for so long that nobody waits for it."""


class Stretch(NamedTuple):
    """Slots of which the last word is the same."""

    end: int
    """One past the last; it begins where the one before ends."""
    sequencer: int
    watermark: int
    idle: bool = False


class SlotWatermarks:
    """The stored low watermarks of one computation over its slots ``[0, slots)``.

    Args:
        free: further slots, which count from their first report on.
    """

    __slots__ = ("_starts", "_stretches", "least")

    def __init__(self, slots: int, free: int = 0) -> None:
        self._starts = [0]
        self._stretches = [Stretch(slots, -1, MIN_TIME)]
        if free:
            self._starts.append(slots)
            self._stretches.append(Stretch(slots + free, -1, MAX_TIME))
        self.least = MIN_TIME

    def report(
        self, slot_from: int, slot_to: int, sequencer: int, watermark: int, idle: bool = False
    ) -> None:
        """Take the word of an interval's owner; of the same owner, a lower one is an old one."""
        starts, stretches = self._starts, self._stretches
        place = bisect_right(starts, slot_from) - 1
        known = stretches[place]
        if starts[place] == slot_from and known.end == slot_to:
            if (sequencer, watermark) >= (known.sequencer, known.watermark):
                stretches[place] = Stretch(slot_to, sequencer, watermark, idle)
        else:
            self._cut(slot_from)
            self._cut(slot_to)
            self._overlay(slot_from, slot_to, sequencer, watermark, idle)
        self.least = min(stretch.watermark for stretch in self._stretches)

    def _cut(self, slot: int) -> None:
        """Let a stretch begin at `slot`."""
        place = bisect_right(self._starts, slot) - 1
        known = self._stretches[place]
        if self._starts[place] < slot < known.end:
            self._starts.insert(place + 1, slot)
            self._stretches[place] = known._replace(end=slot)
            self._stretches.insert(place + 1, known)

    def least_from(self, slot: int) -> int | None:
        """The least of the reported slots from `slot` on; None: none was reported."""
        found = zip(self._starts, self._stretches, strict=True)
        return min(
            (s.watermark for start, s in found if start >= slot and s.sequencer >= 0), default=None
        )

    def least_awake(self) -> int | None:
        """The least of the slots that are not idle; None: all are."""
        return min((s.watermark for s in self._stretches if not s.idle), default=None)

    def _overlay(
        self, slot_from: int, slot_to: int, sequencer: int, watermark: int, idle: bool
    ) -> None:
        """Replace what is older in a range that begins and ends between stretches."""
        starts: list[int] = []
        stretches: list[Stretch] = []
        for start, known in zip(self._starts, self._stretches, strict=True):
            inside = slot_from <= start and known.end <= slot_to
            if inside and (sequencer, watermark) >= (known.sequencer, known.watermark):
                known = Stretch(known.end, sequencer, watermark, idle)
            if stretches and stretches[-1][1:] == known[1:]:
                stretches[-1] = known
            else:
                starts.append(start)
                stretches.append(known)
        self._starts, self._stretches = starts, stretches


class Watermarks:
    """The low watermarks that senders have stored, and the minima their readers go by."""

    def __init__(self) -> None:
        self._of: dict[int, SlotWatermarks] = {}
        self._senders: dict[int, list[int]] = {}
        self._readers: dict[int, list[int]] = {}
        self._input: dict[int, int] = {}

    def add_sender(self, computation: int, slots: int, free: int = 0) -> None:
        """A computation of `slots` slots (an injector: partitions); nothing is known of it yet.

        Args:
            free: further slots, for partitions that may appear.
        """
        self._of[computation] = SlotWatermarks(slots, free)

    def add_reader(self, computation: int, senders: list[int]) -> None:
        """`computation` reads what the computations `senders` write."""
        self._senders[computation] = senders
        self._input[computation] = MIN_TIME if senders else MAX_TIME
        for sender in senders:
            self._readers.setdefault(sender, []).append(computation)

    def report(self, report: Report) -> list[int]:
        """Take a report; gives the computations whose input watermark moved."""
        of = self._of[report.computation]
        before = of.least
        of.report(*report[1:])
        if of.least == before:
            return []
        moved = []
        for computation in self._readers.get(report.computation, ()):
            least = min(self._of[sender].least for sender in self._senders[computation])
            if least > self._input[computation]:
                self._input[computation] = least
                moved.append(computation)
        return moved

    def input(self, computation: int) -> int:
        """The input low watermark of a computation."""
        return self._input[computation]

    def all_at_end(self) -> bool:
        """Whether every computation has stored the end of time for all its slots."""
        return all(of.least == MAX_TIME for of in self._of.values())

    def least_from(self, computation: int, slot: int) -> int | None:
        """The least that is stored of a computation's slots from `slot` on; None: nothing is."""
        return self._of[computation].least_from(slot)

    def least_awake(self, computation: int) -> int | None:
        """The least that is stored of the partitions of a source that are not idle, whichever
        workers own them; None: all are idle."""
        return self._of[computation].least_awake()

    def least(self, computation: int) -> int:
        """The least that is stored of a computation."""
        return self._of[computation].least
