"""The log that an interval writes, and those that it has inherited."""

from __future__ import annotations

import msgspec

from millwheel.runtime.interval.sent_log import SentLog
from millwheel.settings import Settings
from millwheel.store.port.claims import Claim
from millwheel.timers.holds import Holds


class IntervalLogs(list[SentLog]):
    """The logs since the last claim; the last one is written."""

    def __init__(self, claim: Claim, settings: Settings, holds: Holds) -> None:
        for row in claim.logs:
            first, runs = claim.acked.get(row.id, (0, []))
            self.append(
                SentLog(
                    row.id,
                    holds,
                    source=row.source is not None,
                    inherited=row.source is None,
                    first=first,
                    runs=runs,
                )
            )
        if claim.new_log:
            self.append(SentLog(claim.new_log, holds))
        self.newest = self[-1]
        self._settings = settings

    def may_send(self, decided: int) -> bool:
        """Whether each log has credits left (I8).

        Args:
            decided: productions that have no number yet.
        """
        settings = self._settings
        limit = settings.max_unacked_records - decided
        for log in self:
            if log.next_seq - log.first - log.absent >= limit:
                return False
            if log.unacked_bytes >= settings.max_unacked_bytes:
                return False
        return True

    @property
    def are_drained(self) -> bool:
        return all(log.drained for log in self)

    def floor(self, stamp: int) -> int:
        """The oldest stamp of a production that may be sent again (I9), or `stamp`."""
        floors = [floor for log in self if (floor := log.floor()) is not None]
        return min(floors, default=stamp)

    def acked(self) -> bytes:
        """The stored ACKs of each log, as JSON."""
        runs = self._settings.max_acked_runs
        return msgspec.json.encode({str(log.id): log.state(runs) for log in self})
