"""Input low watermarks of all computations, from the watermarks that their senders have stored.

``IW(A) = min(stored LW of every interval that sends to A)``: a record queued or running at A is
un-ACKed at its sender and holds the sender's stored watermark. A value is published only after it
is stored, and never moves back (I5).

Stored watermarks are kept by slot (paper 7.2). A report applies to each slot of its interval unless
a newer one (by sequencer) is known for it; other slots keep their last value. So a worker that does
not know of a split does not run ahead of the new interval. A growing source has slot 0 for the
discovery, which holds for partitions that a worker does not know yet, and free slots for later
partitions, which hold nothing (I17).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Set
from typing import NamedTuple

from millwheel.core.model import MAX_TIME, MIN_TIME

FIRST_SLOT = 1
"""The first slot of a partition of a growing source."""


class WatermarkReport(NamedTuple):
    """The low watermark that the owner of an interval has stored.

    ```python
    report = WatermarkReport(computation=1, slot_from=0, slot_to=65_536, sequencer=3, watermark=60)
    assert not report.idle
    ```
    """

    computation: int
    slot_from: int
    slot_to: int
    sequencer: int
    watermark: int
    idle: bool = False
    """The partition of a source has been silent for so long that its readers do not wait for it."""


class Stretch(NamedTuple):
    end: int
    """One past the last slot; the first slot is the end of the stretch before."""
    sequencer: int
    watermark: int
    idle: bool = False


class SlotWatermarks:
    """The stored low watermarks of one computation over its slots ``[0, slots)``.

    ```python
    watermarks = SlotWatermarks(slots=100)
    watermarks.report(0, 50, sequencer=1, watermark=60, idle=False)
    watermarks.report(50, 100, sequencer=2, watermark=90, idle=False)
    assert (watermarks.at(70), watermarks.least) == (90, 60)
    ```

    Args:
        free: further slots, which count only once they have been reported.
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
        """Apply the report of an interval's owner.

        A lower watermark with the same sequencer is an older report and is ignored.
        """
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
        place = bisect_right(self._starts, slot) - 1
        known = self._stretches[place]
        if self._starts[place] < slot < known.end:
            self._starts.insert(place + 1, slot)
            self._stretches[place] = known._replace(end=slot)
            self._stretches.insert(place + 1, known)

    def free(self, slot: int, kept: Set[int]) -> None:
        """Let reported slots from `slot` on hold nothing if no interval is there any more.

        Args:
            kept: the first slots of the intervals that exist.
        """
        for place, (start, known) in enumerate(zip(self._starts, self._stretches, strict=True)):
            if start >= slot and known.sequencer >= 0 and start not in kept:
                self._stretches[place] = known._replace(watermark=MAX_TIME)
        self.least = min(stretch.watermark for stretch in self._stretches)

    def at(self, slot: int) -> int:
        return self._stretches[bisect_right(self._starts, slot) - 1].watermark

    def least_from(self, slot: int) -> int | None:
        """The least watermark of the reported slots from `slot` on; None if there are none."""
        found = zip(self._starts, self._stretches, strict=True)
        return min(
            (s.watermark for start, s in found if start >= slot and s.sequencer >= 0), default=None
        )

    def least_awake(self) -> int | None:
        """The least watermark of the slots that are not idle; None if all are idle."""
        return min((s.watermark for s in self._stretches if not s.idle), default=None)

    def _overlay(
        self, slot_from: int, slot_to: int, sequencer: int, watermark: int, idle: bool
    ) -> None:
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
    """The low watermarks that senders have stored, and each reader's minimum of them.

    ```python
    watermarks = Watermarks()
    watermarks.add_sender(computation=1, slots=65_536)
    watermarks.add_reader(computation=2, senders=[1])
    report = WatermarkReport(computation=1, slot_from=0, slot_to=65_536, sequencer=3, watermark=60)
    assert watermarks.report(report) == [2]
    assert watermarks.input(2) == 60
    ```
    """

    def __init__(self) -> None:
        self._of: dict[int, SlotWatermarks] = {}
        self._senders: dict[int, list[int]] = {}
        self._readers: dict[int, list[int]] = {}
        self._input: dict[int, int] = {}

    def add_sender(self, computation: int, slots: int, free: int = 0) -> None:
        """Add a computation that has not reported yet.

        Args:
            slots: its number of slots; of an injector, its number of partitions.
            free: further slots, for partitions that may appear.
        """
        self._of[computation] = SlotWatermarks(slots, free)

    def add_reader(self, computation: int, senders: list[int]) -> None:
        self._senders[computation] = senders
        self._input[computation] = MIN_TIME if senders else MAX_TIME
        for sender in senders:
            self._readers.setdefault(sender, []).append(computation)

    def report(self, report: WatermarkReport) -> list[int]:
        """Apply a report, and return the computations with a new input low watermark."""
        of = self._of[report.computation]
        before = of.least
        of.report(*report[1:])
        return [] if of.least == before else self._moved(report.computation)

    def _moved(self, computation: int) -> list[int]:
        moved = []
        for reader in self._readers.get(computation, ()):
            least = min(self._of[sender].least for sender in self._senders[reader])
            if least > self._input[reader]:
                self._input[reader] = least
                moved.append(reader)
        return moved

    def input(self, computation: int) -> int:
        return self._input[computation]

    def free(self, computation: int, slot: int, kept: Set[int]) -> list[int]:
        """Forget the partitions of a source, in slots from `slot` on, that exist no more.

        Returns:
            The computations with a new input low watermark.
        """
        self._of[computation].free(slot, kept)
        return self._moved(computation)

    def at(self, computation: int, slot: int) -> int:
        return self._of[computation].at(slot)

    def all_at_end(self) -> bool:
        """Whether every computation has stored the end of time for all its slots."""
        return all(of.least == MAX_TIME for of in self._of.values())

    def least_from(self, computation: int, slot: int) -> int | None:
        """The least stored watermark of the slots from `slot` on; None if there is none."""
        return self._of[computation].least_from(slot)

    def least_awake(self, computation: int) -> int | None:
        """The least stored watermark of a source's partitions that are not idle; None if all
        are."""
        return self._of[computation].least_awake()

    def least(self, computation: int) -> int:
        return self._of[computation].least
