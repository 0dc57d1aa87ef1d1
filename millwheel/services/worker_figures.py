"""A worker's figures at one moment, as data; `millwheel.services.http` serves them.

Counters are **of this process since it started** and never decrease, because monitoring takes that
for a restart. An interval's totals since deploy arrive and leave with it; `Tally` converts them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from millwheel.runtime.process.durations import Distribution


class Tally:
    def __init__(self) -> None:
        self._at_claim: dict[int, Counter[str]] = {}
        self._gone: dict[str, Counter[str]] = {}

    def claimed(self, interval: int, totals: Mapping[str, int]) -> None:
        """Note a claimed interval, with its totals since deploy."""
        self._at_claim[interval] = Counter(totals)

    def released(self, interval: int, computation: str, totals: Mapping[str, int]) -> None:
        """Note that a claimed interval leaves, with its totals at that time."""
        counted = self._gone.setdefault(computation, Counter())
        counted.update(self._since_claim(interval, totals))
        del self._at_claim[interval]

    def counted(
        self, owned: Iterable[tuple[int, str, Mapping[str, int]]]
    ) -> dict[str, Counter[str]]:
        """From interval, computation and current totals of each owned interval."""
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
    """This worker's figures of one node of the graph."""

    name: str
    intervals: int = 0
    """Intervals of the node that the worker owns."""
    counters: Mapping[str, int] = field(default_factory=dict)
    """processed, records_out, duplicates_dropped, bloom_maybes, dead_letters, bad_rows, late_… and
    the counters of user code."""
    backlog: int = 0
    """Records received, with effects that are not durable yet."""
    keys_at_work: int = 0
    """Keys with user code that has begun and waits."""
    oldest_at_work_seconds: float = 0.0
    """0 if no key is at work."""
    unacked: int = 0
    """Records sent and not yet acknowledged."""
    lag_rows: int | None = None
    """Rows available and not yet read, of an injector; None: unknown."""
    lag_bytes: int | None = None
    """Bytes available and not yet read, of an injector; None: unknown."""
    pending_cap: int | None = None
    """Limit of un-ACKed rows of an injector, summed over its partitions on this worker."""
    acknowledge_seconds: float | None = None
    """95th percentile of the time from reading to acknowledgement, of an injector's slowest
    partition here; None: nothing was acknowledged yet."""
    latency_target_seconds: float | None = None
    """Target of `acknowledge_seconds`, if configured."""
    bundle_open_seconds: float | None = None
    """Age of the oldest bundle in delivery to a sink outside the store; 0: none is; None: it has no
    numbered bundles."""
    input_watermark: int
    """Lowest input watermark of its intervals on this worker, microseconds."""
    low_watermark: int
    """Lowest published watermark of its intervals on this worker, microseconds."""


@dataclass(frozen=True, kw_only=True)
class Figures:
    pipeline: str
    worker: str
    version: str
    now: int
    """Microseconds, by the clock that stamps records."""
    lease_seconds_left: float
    """Rest of the lease without the safety margin; at 0 the worker releases all intervals."""
    fenced: int = 0
    """Intervals lost to another owner since this process started."""
    certificates: Mapping[str, float] = field(default_factory=dict)
    """When a certificate expires, in seconds since 1970, by its use: workers or http."""
    commits: Distribution
    """Time from sending a commit until it is durable."""
    oldest_commit_seconds: float = 0.0
    """How long the oldest commit that is not durable yet has been tried; 0: none is under way."""
    blocked_seconds: float = 0.0
    """Time for which code has blocked the event loop, for two seconds or longer each."""
    code: Mapping[str, Distribution] = field(default_factory=dict)
    """Time of one call of user code, waits included, by computation; of code that does not wait,
    the mean of its chunk."""
    stages: Mapping[str, Distribution] = field(default_factory=dict)
    """Time from the commit that produced a record until that with its effects is durable, by
    computation or sink. Records of weak productions since their source's row have none."""
    acknowledgements: Mapping[str, Distribution] = field(default_factory=dict)
    """Time from reading rows until their effects are durable at all readers, by injector."""
    computations: tuple[ComputationFigures, ...] = ()


class Observed(Protocol):
    """A worker as the HTTP endpoint sees it."""

    def figures(self) -> Figures:
        """Called in the event loop; does not wait."""
        ...

    @property
    def blocked_by(self) -> str | None:
        """The code that blocks the event loop, if known. May be read in another thread."""
        ...

    async def why_not_ready(self) -> str | None:
        """Why it cannot process records: no lease, no store, still starting. None: it can."""
        ...
