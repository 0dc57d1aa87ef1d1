"""What a worker believes of what its peers say (I18, decision 41).

A peer speaks for the intervals that it owns and for the logs of these, and the store says which
they are. What the store last said is kept here, so that the normal case needs no round trip::

    a peer's frame names an interval, or a log, and a sequencer      what becomes of it
    ---------------------------------------------------------------  ----------------------------
    the store says: this peer, this sequencer                        true: it counts at once
    the store says a higher sequencer, or another owner              false: it is refused
    the store says a lower sequencer, or does not know the interval  new: a hint to look at the
                                                                     store, and to judge again then

Sequencers only rise, so a frame with a lower one comes from a former owner and will never be true. A
hint is judged again after a look at the store that *began* after the frame came: an owner claims
before it speaks, so that look sees its claim. If the frame is still new then, no owner sent it.

Reports of low watermarks that are new are kept until that look, the newest of each peer and interval.
Everything here is plain data: no await, no clock.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from typing import NamedTuple

from millwheel.runtime.network.frames import IntervalReport
from millwheel.store.port import PlacedInterval, Placement

KEPT_REPORTS = 10_000
"""Reports of one peer that wait for a look at the store. Any more are refused; they are repeated."""


class Word(enum.Enum):
    """What the store says of a peer's claim to own something."""

    TRUE = "true"
    FALSE = "false"
    NEW = "new"


class KeptReport(NamedTuple):
    """A report that waits for a look at the store."""

    looks: int
    """How many looks had begun when it came."""
    report: IntervalReport


class Trust:
    """Who may speak for which intervals and logs, as the store last said."""

    def __init__(self) -> None:
        self.looks = 0
        """How many looks at the store have begun."""
        self._seen = 0
        """The number of the newest look whose result is here."""
        self._intervals: dict[int, PlacedInterval] = {}
        self._of_log: dict[int, PlacedInterval] = {}
        self._generations: dict[str, int] = {}
        self._waiting: dict[str, dict[int, KeptReport]] = {}
        """By peer and interval."""

    def begin_look(self) -> int:
        """A look at the store begins; gives its number."""
        self.looks += 1
        return self.looks

    def learn(self, placement: Placement, look: int) -> None:
        """Take the result of a look."""
        self._seen = max(self._seen, look)
        self._intervals = {row.id: row for row in placement.intervals}
        self._of_log = {log: row for row in placement.intervals for log in row.logs}
        self._generations = {worker.id: worker.generation for worker in placement.workers}

    def knows(self, peer: str) -> bool:
        """Whether a peer is a worker of the pipeline that has not stopped."""
        return peer in self._generations

    def generation(self, peer: str) -> int | None:
        """The generation of a peer's code; None: it is no worker that the store knows."""
        return self._generations.get(peer)

    def owns(self, peer: str, interval: int, sequencer: int) -> Word:
        """Whether a peer owns an interval under this sequencer."""
        return _judge(peer, self._intervals.get(interval), sequencer)

    def sends(self, peer: str, log: int, sequencer: int) -> Word:
        """Whether a peer owns the interval of a log under this sequencer."""
        return _judge(peer, self._of_log.get(log), sequencer)

    def fits(self, report: IntervalReport) -> bool:
        """Whether a report names its interval's own computation and slots."""
        id_, computation, low, high, *_ = report
        row = self._intervals.get(id_)
        return row is not None and (row.computation, row.slot_from, row.slot_to) == (
            computation,
            low,
            high,
        )

    def is_settled(self, looks: int) -> bool:
        """Whether the store was asked, and has answered, since so many looks had begun: then what
        is still new is false."""
        return self._seen > looks

    def keep(self, peer: str, report: IntervalReport, looks: int) -> bool:
        """Keep a report until the store says who owns its interval; of one interval the newest.

        Args:
            looks: how many looks had begun when it came.

        Returns:
            Whether there was room for it.
        """
        waiting = self._waiting.setdefault(peer, {})
        id_, sequencer, watermark = report[0], report[4], report[5]
        before = waiting.get(id_)
        if before is None and len(waiting) >= KEPT_REPORTS:
            return False
        if before is None or (sequencer, watermark) >= (before.report[4], before.report[5]):
            waiting[id_] = KeptReport(looks, report)
        return True

    def take_kept(self) -> Iterable[tuple[str, list[KeptReport]]]:
        """Give the reports that were kept, by peer, and forget them."""
        kept, self._waiting = self._waiting, {}
        return [(peer, list(waiting.values())) for peer, waiting in kept.items()]

    def forget(self, peer: str) -> None:
        """Drop what was kept of a peer: its link is down, and it repeats all when that is up."""
        self._waiting.pop(peer, None)


def _judge(peer: str, row: PlacedInterval | None, sequencer: int) -> Word:
    if row is None or sequencer > row.sequencer:
        return Word.NEW
    return Word.TRUE if sequencer == row.sequencer and row.owner == peer else Word.FALSE
