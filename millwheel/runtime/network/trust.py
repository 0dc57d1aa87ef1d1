"""Decides which frames of peers a worker trusts (I18, decision 41); plain data: no await, no clock.

A peer may send frames about the intervals that it owns, and about their logs. The last placement is
kept here, so that the normal case needs no round trip::

    a frame names an interval or log and a sequencer; the store has  status and consequence
    ---------------------------------------------------------------  -------------------------------
    this peer and this sequencer                                     confirmed: the frame counts
    a higher sequencer, or another owner                             refuted: the frame is refused
    a lower sequencer, or does not know the interval                 unknown: refresh the placement,
                                                                     then check the frame again

Sequencers only rise, so a frame with a lower one comes from a former owner. An unknown frame is
checked again after a refresh that *began* after its arrival: an owner claims before it sends, so
that refresh sees its claim. Unknown reports of low watermarks are kept until then, the newest of
each peer and interval.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from typing import NamedTuple

from millwheel.runtime.network.frames import IntervalReport
from millwheel.store.port.placement import PlacedInterval, Placement

KEPT_REPORTS = 10_000
"""Reports of one peer that wait for a refresh; further ones are refused, and repeated."""


class ClaimStatus(enum.Enum):
    CONFIRMED = "confirmed"
    REFUTED = "refuted"
    UNKNOWN = "unknown"


class KeptReport(NamedTuple):
    refreshes: int
    """Refreshes that had begun when the report arrived."""
    report: IntervalReport


class Trust:
    def __init__(self) -> None:
        self.refreshes = 0
        self._seen = 0
        """Number of the newest applied refresh."""
        self._intervals: dict[int, PlacedInterval] = {}
        self._of_log: dict[int, PlacedInterval] = {}
        self._generations: dict[str, int] = {}
        self._pending: dict[str, dict[int, KeptReport]] = {}
        """Reports that wait for a refresh, by peer and interval."""

    def begin_refresh(self) -> int:
        self.refreshes += 1
        return self.refreshes

    def learn(self, placement: Placement, refresh: int) -> None:
        self._seen = max(self._seen, refresh)
        self._intervals = {row.id: row for row in placement.intervals}
        self._of_log = {log: row for row in placement.intervals for log in row.logs}
        self._generations = {worker.id: worker.generation for worker in placement.workers}

    def knows(self, peer: str) -> bool:
        return peer in self._generations

    def generation(self, peer: str) -> int | None:
        """The generation of a peer's code; None if the store does not know the peer."""
        return self._generations.get(peer)

    def owns(self, peer: str, interval: int, sequencer: int) -> ClaimStatus:
        return _judge(peer, self._intervals.get(interval), sequencer)

    def sends(self, peer: str, log: int, sequencer: int) -> ClaimStatus:
        return _judge(peer, self._of_log.get(log), sequencer)

    def fits(self, report: IntervalReport) -> bool:
        id_, computation, low, high, *_ = report
        row = self._intervals.get(id_)
        return row is not None and (row.computation, row.slot_from, row.slot_to) == (
            computation,
            low,
            high,
        )

    def is_settled(self, refreshes: int) -> bool:
        """Whether a later refresh than number `refreshes` was applied: unknown claims are false
        then."""
        return self._seen > refreshes

    def keep(self, peer: str, report: IntervalReport, refreshes: int) -> bool:
        """Keep the newest report per interval, until a refresh names the owner; false: there was no
        room."""
        pending = self._pending.setdefault(peer, {})
        id_, sequencer, watermark = report[0], report[4], report[5]
        before = pending.get(id_)
        if before is None and len(pending) >= KEPT_REPORTS:
            return False
        if before is None or (sequencer, watermark) >= (before.report[4], before.report[5]):
            pending[id_] = KeptReport(refreshes, report)
        return True

    def take_kept(self) -> Iterable[tuple[str, list[KeptReport]]]:
        kept, self._pending = self._pending, {}
        return [(peer, list(pending.values())) for peer, pending in kept.items()]

    def forget(self, peer: str) -> None:
        """The peer repeats its reports when the link is up."""
        self._pending.pop(peer, None)


def _judge(peer: str, row: PlacedInterval | None, sequencer: int) -> ClaimStatus:
    if row is None or sequencer > row.sequencer:
        return ClaimStatus.UNKNOWN
    return (
        ClaimStatus.CONFIRMED
        if sequencer == row.sequencer and row.owner == peer
        else ClaimStatus.REFUTED
    )
