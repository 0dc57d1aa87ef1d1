"""What a worker tells of itself: figures of one moment, as data. `millwheel.services.http` shows them.

Counters here are **what this process counted since it started**, and never fall: whoever draws a
rate takes a falling counter for a restart. What is stored with an interval are totals since
deploy, which come and go with it; `Tally` makes the one out of the other.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Protocol

COMMIT_BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Seconds: one record alone takes about a millisecond, a full bundle some tens."""


@dataclass(frozen=True)
class Distribution:
    """How many took at most how long."""

    bounds: tuple[float, ...]
    """Seconds, rising."""
    counts: tuple[int, ...]
    """Up to each bound, and one more: all of them."""
    total: float
    """Seconds, of all together."""

    @property
    def count(self) -> int:
        """All of them."""
        return self.counts[-1]


class Durations:
    """Counts durations by their length."""

    def __init__(self, bounds: tuple[float, ...] = COMMIT_BOUNDS) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._total = 0.0

    def observe(self, seconds: float) -> None:
        """One more, of so many seconds."""
        self._counts[bisect_left(self._bounds, seconds)] += 1
        self._total += seconds

    def distribution(self) -> Distribution:
        """As it is now."""
        return Distribution(self._bounds, tuple(accumulate(self._counts)), self._total)


class Tally:
    """What this process counted, made out of totals that come and go with their intervals."""

    def __init__(self) -> None:
        self._at_claim: dict[int, Counter[str]] = {}
        self._gone: dict[str, Counter[str]] = {}

    def claimed(self, interval: int, totals: Mapping[str, int]) -> None:
        """An interval came, with totals since deploy."""
        self._at_claim[interval] = Counter(totals)

    def released(self, interval: int, computation: str, totals: Mapping[str, int]) -> None:
        """An interval that was claimed goes, with totals that were counted on meanwhile."""
        counted = self._gone.setdefault(computation, Counter())
        counted.update(self._since_claim(interval, totals))
        del self._at_claim[interval]

    def counted(
        self, owned: Iterable[tuple[int, str, Mapping[str, int]]]
    ) -> dict[str, Counter[str]]:
        """Per computation, what was counted here; `owned`: interval, computation, totals."""
        found = {computation: Counter(counted) for computation, counted in self._gone.items()}
        for interval, computation, totals in owned:
            counted = found.setdefault(computation, Counter())
            counted.update(self._since_claim(interval, totals))
        return found

    def _since_claim(self, interval: int, totals: Mapping[str, int]) -> dict[str, int]:
        before = self._at_claim[interval]
        return {name: total - before[name] for name, total in totals.items()}


@dataclass(frozen=True, kw_only=True)
class ComputationFigures:
    """What this worker knows of one node of the graph."""

    name: str
    intervals: int = 0
    """That it owns."""
    counters: Mapping[str, int] = field(default_factory=dict)
    """processed, duplicates_dropped, bloom_maybes, dead_letters, bad_rows, late_…, and those of
    user code; since this process started."""
    backlog: int = 0
    """Records that arrived and wait."""
    unacked: int = 0
    """Records sent and not acknowledged."""
    lag_rows: int | None = None
    """Of an injector: rows that are there and were not read yet; None: not known."""
    lag_bytes: int | None = None
    """Bytes of these rows; None: not known."""
    pending_cap: int | None = None
    """Of an injector: how many may be, over its partitions here."""
    acknowledge_seconds: float | None = None
    """Of an injector: within which 95 of 100 of its last readings were acknowledged, by the slowest of
    its partitions here; None: there was none yet."""
    latency_target_seconds: float | None = None
    """Of an injector that has one."""
    input_watermark: int
    """The least of its intervals here, microseconds."""
    low_watermark: int
    """As above, of what is promised downstream."""


@dataclass(frozen=True, kw_only=True)
class Figures:
    """A worker at one moment."""

    pipeline: str
    worker: str
    version: str
    """Of millwheel."""
    now: int
    """Microseconds, by the clock that records are stamped with."""
    lease_seconds_left: float
    """Less the safety margin; 0 or less: it let go of everything."""
    fenced: int = 0
    """How often an interval was lost to another owner; since this process started."""
    commits: Distribution
    """From being sent to known durable."""
    computations: tuple[ComputationFigures, ...] = ()


class Observed(Protocol):
    """A worker, as far as those who look at it from outside need to know it."""

    def figures(self) -> Figures:
        """Its figures now. Called in the event loop; waits for nothing."""
        ...

    async def why_not_ready(self) -> str | None:
        """Why it cannot process records now: no lease, no store, still starting. None: it can."""
        ...
