from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeAlias

from millwheel.errors import DeployRefused

NodeKind = Literal["injector", "computation", "relay"]


@dataclass(slots=True)
class IntervalRow:
    id: int
    computation: int
    slot_from: int
    slot_to: int
    sequencer: int


ELSEWHERE = 2**31 - 1
"""The generation of intervals of a pipeline that runs on Spark: no code has it, so no worker claims
them."""


@dataclass(frozen=True, slots=True)
class PlacedInterval:
    id: int
    computation: int
    slot_from: int
    slot_to: int
    sequencer: int
    owner: str | None
    wanted_by: str | None
    lease_over: bool
    """The owner has stopped, is unknown, or has an expired lease."""
    generation: int
    """Newest generation of code that has owned it: workers of older code cannot claim it."""
    name: str
    """The computation may be unknown to the code of this worker."""
    kind: NodeKind
    grain: int
    """Intervals begin and end at multiples of this number of slots."""
    pinned: bool = False
    """An operator chose its owner: the balancer does not move it while that worker lives."""
    split_at: int | None = None
    """First slot of the upper part, if its owner should split it."""
    merge_with: int | None = None
    """Id of its upper neighbour, if its owner should merge both."""
    logs: tuple[int, ...] = ()
    """Logs that are not retired, which its owner sends under its sequencer."""

    @property
    def is_free(self) -> bool:
        return self.owner is None or self.lease_over


@dataclass(frozen=True, slots=True)
class PlacedWorker:
    """A worker that has not stopped."""

    id: str
    address: str
    host: str
    pid: int
    pid_started: str
    backends: list[tuple[int, str]]
    lease_left: float
    """Seconds; 0.0 when the lease has expired."""
    load: dict[str, Any]
    generation: int

    @property
    def is_blocked(self) -> bool:
        """User code blocks its event loop: a thread sends its heartbeats."""
        return "blocked" in self.load


@dataclass(frozen=True, slots=True)
class Placement:
    """All at one moment."""

    now: int
    """Microseconds."""
    intervals: list[PlacedInterval]
    """Sorted by computation and slot."""
    workers: list[PlacedWorker]
    """Sorted by time of registration."""
    removed: frozenset[int]
    """Workers send nothing to removed computations, and no watermark waits for them."""
    paused: frozenset[int] = frozenset()

    def refuse_elsewhere(self) -> None:
        """`DeployRefused` if the pipeline was moved to Spark: no worker can own any of its
        intervals."""
        if self.intervals and all(row.generation == ELSEWHERE for row in self.intervals):
            raise DeployRefused(
                "the pipeline was moved to Spark, and its state with it: workers have nothing to "
                "do. To move it back: millwheel spark return MODULE:PIPELINE"
            )


@dataclass(frozen=True, slots=True)
class Wish:
    """A wanted owner for an interval.

    Without `pinned` it comes from the balancer: it does not move an interval that is pinned to a
    living worker, and removes a pin to a dead one.
    """

    interval_id: int
    sequencer: int
    worker: str | None
    reason: str
    pinned: bool = False
    """An operator's wish: the balancer must not move the interval again."""


@dataclass(frozen=True, slots=True)
class Unpin:
    """The balancer may move the interval again."""

    interval_id: int
    sequencer: int
    reason: str


@dataclass(frozen=True, slots=True)
class SplitWish:
    """`at` is the first slot of the upper part."""

    interval_id: int
    sequencer: int
    at: int
    reason: str


@dataclass(frozen=True, slots=True)
class MergeWish:
    interval_id: int
    sequencer: int
    upper_id: int
    reason: str


@dataclass(frozen=True, slots=True)
class Lapse:
    """Takes back the wish to split or merge an interval."""

    interval_id: int
    sequencer: int
    reason: str


KEEP_EVENTS = 10_000

PlacementChange: TypeAlias = Wish | Unpin | SplitWish | MergeWish | Lapse
"""A compare-and-set on the interval's sequencer."""


@dataclass(frozen=True, slots=True)
class FoundPartition:
    """A partition of a growing source with its interval."""

    interval_id: int
    slot: int
    sequencer: int
    identity: str
    low_watermark: int
    position: dict[str, Any] | None


class StorePlacements(Protocol):
    async def add_partitions(
        self, discovery: int, sequencer: int, found: Mapping[str, dict[str, Any] | None]
    ) -> list[FoundPartition]:
        """Make an interval with a log for each partition that has none, in the given order.

        A new interval begins with the stored low watermark of the discovery's interval, and without
        an owner.

        Args:
            discovery: the interval of the discovery, which has this sequencer.
            found: by identity, the first position of the interval of a new partition.

        Returns:
            All partitions of the injector, in the order in which they were found.

        Raises:
            Fenced: another worker has claimed the discovery; nothing was made.
        """
        ...

    async def retire_partitions(
        self, discovery: int, sequencer: int, interval_ids: Sequence[int]
    ) -> list[FoundPartition]:
        """Delete the intervals of partitions that have ended, with their logs; returns the others.

        The caller makes sure that they have stored the end of time as low watermark, so that
        nothing of them is un-ACKed, and that their owners do no more than find their interval gone.
        """
        ...

    async def read_placement(self) -> Placement:
        """One snapshot, one round trip."""
        ...

    async def wish(self, changes: Sequence[PlacementChange], term: int | None = None) -> list[int]:
        """Store wishes for intervals that still have the given sequencer; returns the changed ones.

        Each change adds a placement event. A wish changes nothing if it holds already or is
        impossible (a slot outside the interval, a wrong neighbour, an injector's partition). The
        last of several changes of one interval counts. Every later raise of a sequencer ends wishes
        to split and to merge, because they were decided for the interval as it was before.

        Args:
            term: the leader's term (`try_lead`): nothing is stored once another worker leads. None:
                an operator's wish, or an owner's own.
        """
        ...

    async def split(self, interval_id: int, sequencer: int, at: int, *, reason: str = "") -> int:
        """Cut a released and folded interval in two at a slot; returns the id of the upper part.

        The lower part keeps the id, the chain of commits, the logs and the counters. The upper part
        begins a chain with the parent's watermarks and the number of its last bundle. Both keep the
        wanted owner and pin. No row of state moves.

        Raises:
            Fenced: another worker has claimed, split or merged it.
            PlacementRefused: it has an owner, is not folded, has an undelivered bundle, is a
                partition of an injector, or `at` is not inside it.
        """
        ...

    async def merge(
        self, lower_id: int, upper_id: int, sequencers: Mapping[int, int], *, reason: str = ""
    ) -> int:
        """Merge two released and folded neighbours; returns the id of the new interval.

        It takes over the logs of both with their acknowledgements, the lower of the two low
        watermarks and of the two floors, the higher input watermark and bundle number (no other
        position: files of the parts stay), the sum of the counters, and the wanted owner and pin of
        the lower part.

        Raises:
            Fenced: another worker has claimed, split or merged one of them.
            PlacementRefused: they are not neighbours in one computation, or one has an owner, is
                not folded, has an undelivered bundle, or is a partition of an injector.
        """
        ...
