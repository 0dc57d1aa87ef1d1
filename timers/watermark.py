"""Input low watermarks of all computations, from what their senders have stored.

``IW(A) = min(stored LW of every interval that sends to A)``: a record queued or running
at A is un-ACKed at its sender, whose stored watermark it holds, so it need not be counted
again here. A value is told only after it is stored, and never goes back (I5).
"""

from __future__ import annotations

from collections.abc import Mapping

from millwheel.model import MAX_TIME, MIN_TIME


class Watermarks:
    """The low watermarks that intervals have stored, and the minima their readers go by."""

    def __init__(self) -> None:
        self._stored: dict[int, int] = {}
        self._senders: dict[int, list[int]] = {}
        self._readers: dict[int, list[int]] = {}
        self._input: dict[int, int] = {}

    def add_reader(self, computation: int, senders: list[int]) -> None:
        """`computation` reads what the intervals `senders` write."""
        self._senders[computation] = senders
        self._input[computation] = MIN_TIME
        for sender in senders:
            self._readers.setdefault(sender, []).append(computation)

    def restore(self, stored: Mapping[int, int]) -> None:
        """Start from what is stored; a sender that is missing counts as "nothing known"."""
        self._stored.update(stored)
        for computation in self._senders:
            self._input[computation] = max(self._input[computation], self._least(computation))

    def _least(self, computation: int) -> int:
        stored = self._stored
        return min(
            (stored.get(sender, MIN_TIME) for sender in self._senders[computation]),
            default=MAX_TIME,
        )

    def advance(self, sender: int, watermark: int) -> list[int]:
        """`sender` has stored `watermark`; gives the computations whose input watermark moved."""
        if watermark <= self._stored.get(sender, MIN_TIME):
            return []
        self._stored[sender] = watermark
        moved = []
        for computation in self._readers.get(sender, ()):
            least = self._least(computation)
            if least > self._input[computation]:
                self._input[computation] = least
                moved.append(computation)
        return moved

    def stored(self, sender: int) -> int:
        """What an interval has stored."""
        return self._stored.get(sender, MIN_TIME)

    def input(self, computation: int) -> int:
        """The input low watermark of a computation."""
        return self._input[computation]
