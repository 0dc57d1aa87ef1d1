"""How long intervals stand still, as somebody sees it who looks at their last commits.

Five looks a second, from outside: while Postgres is away there is nothing to be seen, which counts
as standing still. A stall of a fault is the longest time between two commits of one interval that
it meets, from before it began until after its end; where faults overlap, so do their stalls.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import psycopg

from tests.campaign.looker import Looker

BUSY_SECONDS = 1.0
LOOK = "SELECT interval_id, n, owner::text FROM latest_commits"


@dataclass
class Beat:
    """One interval."""

    n: int
    times: list[float] = field(default_factory=list)
    """When it was seen to have committed, by `time.monotonic`."""
    gone: float | None = None
    """When it was seen to be there no more."""


class Pulse(Looker):
    """Looks at the last commits."""

    pause_seconds = 0.2

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.owned: dict[str, set[int]] = {}
        """Intervals by worker, its first eight letters."""
        self.last = time.monotonic()
        """When any interval was seen to commit."""
        self.commits = 0
        self._beats: dict[int, Beat] = {}

    def stall(self, intervals: Collection[int] | None, began: float, ended: float) -> float:
        """The longest pause of these intervals (None: of all) that overlaps a time."""
        longest = 0.0
        for id_, beat in list(self._beats.items()):
            if intervals is not None and id_ not in intervals:
                continue
            times = [*beat.times, time.monotonic() if beat.gone is None else beat.gone]
            for before, after in pairwise(times):
                if before < ended and after > began:
                    longest = max(longest, after - before)
        return longest

    def commits_since(self, intervals: Collection[int], when: float) -> bool:
        """Whether all of these (that are there) were seen to commit since then."""
        beats = [self._beats[id_] for id_ in intervals if id_ in self._beats]
        return all(beat.gone is not None or beat.times[-1] > when for beat in beats)

    def is_busy(self, intervals: Collection[int]) -> bool:
        """Whether any of these was seen to commit just now: records are on their way there."""
        beats = [self._beats[id_] for id_ in intervals if id_ in self._beats]
        return any(beat.times[-1] > time.monotonic() - BUSY_SECONDS for beat in beats)

    def look(self, connection: psycopg.Connection[Any]) -> None:
        rows = connection.execute(LOOK.encode()).fetchall()
        now = time.monotonic()
        owned: dict[str, set[int]] = {}
        there = set()
        for id_, n, owner in rows:
            there.add(id_)
            if owner is not None:
                owned.setdefault(owner[:8], set()).add(id_)
            beat = self._beats.get(id_)
            if beat is None:
                self._beats[id_] = Beat(n, [now])
            elif n != beat.n:
                self.commits += max(0, n - beat.n)  # a server that lost commits counts from before
                beat.n = n
                beat.times.append(now)
                self.last = now
        for id_, beat in list(self._beats.items()):
            if id_ not in there and beat.gone is None:
                beat.gone = now
        self.owned = owned
