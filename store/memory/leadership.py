"""The leadership: the right to write wishes (`millwheel.store.leadership`)."""

from __future__ import annotations

from millwheel.clock import Clock
from millwheel.store.memory.tables import Tables


class MemoryLeadership:
    """One candidate."""

    def __init__(self, tables: Tables, clock: Clock) -> None:
        self._tables = tables
        self._clock = clock

    def try_lead(self, seconds: float) -> bool:
        """Whether this candidate leads."""
        tables = self._tables
        now = self._clock.monotonic()
        if tables.leader is not None and tables.leader[1] <= now:
            lost, tables.leader = tables.leader[0], None
            if lost is self:  # the session was ended: the candidate learns that once
                return False
        if tables.leader is not None and tables.leader[0] is not self:
            return False
        tables.leader = self, now + seconds
        return True

    def close(self) -> None:
        """Release the leadership."""
        if self._tables.leader is not None and self._tables.leader[0] is self:
            self._tables.leader = None
