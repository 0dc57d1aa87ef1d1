"""The counters of one interval, which its commits store."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from millwheel.store.port.claims import Claim


class IntervalCounters:
    """Totals since the deploy.

    User code counts with its effects. Events (duplicates, replays) are counted as they happen: they
    do not recur if the commit that counts them fails.
    """

    def __init__(self, claim: Claim) -> None:
        self._built: dict[int, tuple[dict[str, int], bytes]] = {}
        """Per commit that is built and not durable: the events that it counts, and its totals."""
        self._uncounted: dict[str, int] = {}
        """Events of commits that have failed."""
        self._totals: dict[str, int]
        self.restore(claim)

    def restore(self, claim: Claim) -> None:
        """Start from the stored totals; keep events of commits that they do not include."""
        for n, (events, _) in self._built.items():
            if claim.n < n:
                _add(self._uncounted, events)
        self._built = {}
        self._totals = dict(claim.counters)
        self.encoded = self.durable = msgspec.json.encode(self._totals)

    @property
    def totals(self) -> dict[str, int]:
        """Totals up to the last commit built."""
        return self._totals

    def count(self, n: int, counters: dict[str, int], events: Iterable[dict[str, int]]) -> None:
        """Add to the totals of commit `n`, which is being built."""
        happened, self._uncounted = self._uncounted, {}
        for each in events:
            _add(happened, each)
        if counters or happened:
            _add(self._totals, counters)
            _add(self._totals, happened)
            self.encoded = msgspec.json.encode(self._totals)
        self._built[n] = happened, self.encoded

    def settled(self, n: int) -> None:
        _, self.durable = self._built.pop(n)


def _add(counters: dict[str, int], more: dict[str, int]) -> None:
    for name, by in more.items():
        counters[name] = counters.get(name, 0) + by
