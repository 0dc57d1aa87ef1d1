"""The counters of one interval, which its commits store."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from millwheel.store.port import Claim


class IntervalCounters:
    """Totals since the deploy.

    User code counts with its effects. Events (duplicates, replays) are counted as they happen: they do not
    happen again if the commit that counts them fails.
    """

    def __init__(self, claim: Claim) -> None:
        self._events: dict[str, int] = {}
        """Events counted by the last commit built."""
        self._events_of = 0
        """The number of that commit."""
        self._uncounted: dict[str, int] = {}
        """Events of commits that have failed."""
        self._totals: dict[str, int]
        self.restore(claim)

    def restore(self, claim: Claim) -> None:
        """Start from the stored totals; keep events of commits that the totals do not include."""
        if claim.n < self._events_of:
            _add(self._uncounted, self._events)
            self._events = {}
        self._totals = dict(claim.counters)
        self.encoded = self.durable = msgspec.json.encode(self._totals)

    @property
    def totals(self) -> dict[str, int]:
        """Totals up to the last commit built."""
        return self._totals

    def count(self, n: int, counters: dict[str, int], events: Iterable[dict[str, int]]) -> None:
        """Add to the totals of commit `n`, which is being built: counters of user code, and events."""
        happened, self._uncounted = self._uncounted, {}
        for each in events:
            _add(happened, each)
        self._events, self._events_of = happened, n
        if counters or happened:
            _add(self._totals, counters)
            _add(self._totals, happened)
            self.encoded = msgspec.json.encode(self._totals)

    def settled(self) -> None:
        """The last commit built is durable."""
        self.durable = self.encoded


def _add(counters: dict[str, int], more: dict[str, int]) -> None:
    for name, by in more.items():
        counters[name] = counters.get(name, 0) + by
