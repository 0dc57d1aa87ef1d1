"""What the engine asks of a store, as data and as a protocol.

Two stores keep it: Postgres (`millwheel.store.postgres`) and one in memory for tests and
simulation (`millwheel.store.memory`), held to the same contract suite.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias

from millwheel.extractors import Keys
from millwheel.model import Delivery
from millwheel.sinks import Table
from millwheel.store.state_shape import StateShape


@dataclass(frozen=True, slots=True)
class Bucket:
    """A stretch of the append-only past that is dropped whole: ``[low, high)``.

    Families: *time* (stamps; all five tables), *source* (offsets of one replayable log;
    seen ids only), *named* (arrival of user-supplied ids; seen ids only).
    """

    id: int
    family: str
    log: int
    low: int
    high: int


NodeKind = Literal["injector", "computation", "relay"]

EARLY_CLOSE_MICROS = 5_000_000
"""What was read of the buckets is final for every stamp before the time of reading and this much."""

CLOCK_STEP_MICROS = 5_000_000
"""How far the database's clock may go back between two heartbeats without being noticed, if no lease is
longer than 15 s; else a third of the longest lease, which is the time between two heartbeats."""

CLOSE_AHEAD_MICROS = EARLY_CLOSE_MICROS + CLOCK_STEP_MICROS
"""A bucket closed early ends at least so far ahead of the database's clock, if no lease is longer than 15 s."""


@dataclass(frozen=True, slots=True)
class BucketView:
    """The live buckets as of one moment of the store's clock.

    Whatever is opened or closed later, the bucket of a stamp before `now` plus
    `EARLY_CLOSE_MICROS` stays the one found here.
    """

    now: int
    buckets: list[Bucket]


class StateChange(NamedTuple):
    """One entry of one key as a commit leaves it; `value` None means removed."""

    interval_id: int
    n: int
    computation: int
    slot: int
    key: bytes
    entry: str
    value: bytes | None
    version: int


class OldState(NamedTuple):
    """A state, or a shared table, as an older or newer version of its type has written it."""

    computation: str
    key: bytes
    version: int
    value: bytes


StateRow = tuple[int, int, int, int, bytes, str, "bytes | None", int]
"""The fields of a `StateChange`, as a plain tuple where many are made."""


TIMER_KINDS = ("watermark", "wall", "hold")
"""What is kept as a timer: timers by event time and by the clock, and what user code holds the
watermark at, which never fires."""

TIMERS_A_PAGE = 20_000

TimerPlace = tuple[int, int, bytes, str]
"""Where a timer stands in the order of time: due, slot, key, tag."""


class TimerChange(NamedTuple):
    """One timer as a commit leaves it; `due` None means fired or cancelled."""

    interval_id: int
    n: int
    computation: int
    slot: int
    key: bytes
    kind: str
    tag: str
    due: int | None
    hold: int | None


class DeadLetter(NamedTuple):
    """Something given up on, with the reason."""

    slot: int
    computation: int
    stream: str
    record_id: bytes | None
    key: bytes | None
    value: str
    ts: int | None
    place: str
    error: str
    traceback: str
    attempts: int
    stamp: int


ANOTHER_CHAIN = (
    "the interval's chain of commits is not as this worker left it, though no other worker has claimed "
    "the interval: the store has lost commits"
)
"""Says a commit that is refused although its sequencer is right."""


@dataclass(slots=True)
class IntervalCommit:
    """One interval's part of a commit: its link in the chain and what it promises."""

    interval_id: int
    sequencer: int
    n: int
    previous_bucket: int
    input_watermark: int
    low_watermark: int
    floor: int
    acked: bytes
    position: bytes | None
    counters: bytes
    percentiles: dict[float, int] = field(default_factory=dict)
    """Percentile low watermarks promised beside the exact one."""


@dataclass(slots=True)
class Commit:
    """Everything one transaction of a lane writes."""

    stamp: int
    bucket: int
    intervals: list[IntervalCommit] = field(default_factory=list)
    seen: dict[int, list[tuple[int, int, bytes]]] = field(default_factory=dict)
    """Per bucket: (slot, computation, id)."""
    states: list[StateRow] = field(default_factory=list)
    timers: list[TimerChange] = field(default_factory=list)
    productions: list[Delivery[Any]] = field(default_factory=list)
    stragglers: list[Delivery[Any]] = field(default_factory=list)
    """Weak productions that were sent before and have not arrived (paper 6.1.3)."""
    dead_letters: list[DeadLetter] = field(default_factory=list)
    rows: list[tuple[Table[Any], tuple[Any, ...]]] = field(default_factory=list)
    statements: list[tuple[str, Sequence[Any]]] = field(default_factory=list)


@dataclass(slots=True)
class IntervalRow:
    """A key interval as stored."""

    id: int
    computation: int
    slot_from: int
    slot_to: int
    sequencer: int


@dataclass(slots=True)
class LogRow:
    """A live log; `source` names the partition of a replayable source."""

    id: int
    source: str | None


@dataclass(slots=True)
class Claim:
    """An interval taken over, with everything its new owner starts from."""

    interval: IntervalRow
    n: int
    bucket: int
    stamp: int
    input_watermark: int
    low_watermark: int
    percentiles: dict[float, int]
    acked: dict[int, tuple[int, list[tuple[int, int]]]]
    position: dict[str, Any] | None
    counters: dict[str, int]
    folded: int
    logs: list[LogRow]
    """Live logs, oldest first, without the one opened by this claim."""
    new_log: int
    """The log opened by this claim; 0 for an interval that writes no productions."""
    states: list[StateChange]
    """Changes not folded yet, the last per entry."""
    timers: list[TimerChange]
    """Pending timers: of each kind the soonest, in the order of time."""
    more_timers: frozenset[str]
    """The kinds of which there are yet more; see `Store.read_timers`."""


@dataclass(slots=True)
class StoredProduction:
    """A production read back, to be sent again."""

    seq: int
    stream: str
    receiver: int
    slot: int
    key: bytes
    value: bytes
    version: int
    ts: int
    hold: int
    stamp: int
    """When it was stored."""
    place: int
    """Its stamp, as every resend has it."""
    id: bytes = b""
    """Empty: that of log and number, as of all strong productions."""
    origin: int = 0
    """The source among whose offsets `place` is; 0: it is a time."""


@dataclass(slots=True)
class OtherWorker:
    """A worker that may still hold intervals."""

    id: str
    host: str
    pid: int
    pid_started: str
    backends: list[tuple[int, str]]
    lease_left: float


@dataclass(frozen=True, slots=True)
class HeartbeatReply:
    """The store's answer to a heartbeat."""

    now: int
    """The store's clock, microseconds."""


@dataclass(frozen=True, slots=True)
class PlacedInterval:
    """An interval, who owns it and who should."""

    id: int
    computation: int
    slot_from: int
    slot_to: int
    sequencer: int
    owner: str | None
    wanted_by: str | None
    lease_over: bool
    """It has an owner, who stopped, is unknown, or let the lease run out."""
    generation: int
    """Of the newest code that owned it: workers of older code cannot claim it."""
    name: str
    """Of the computation, which may be of newer code than this worker's."""
    kind: NodeKind
    grain: int
    """Slots that stay together: it is cut at multiples of it only."""
    pinned: bool = False
    """An operator said who should own it: the balancer leaves it there while that one lives."""
    split_at: int | None = None
    """Its owner is to split it: the first slot of the upper part."""
    merge_with: int | None = None
    """Its owner is to merge it with its upper neighbour, who has this id."""
    logs: tuple[int, ...] = ()
    """The logs that its owner sends, under its sequencer: those that are not retired."""

    @property
    def is_free(self) -> bool:
        """Whether a claim with its sequencer would get it."""
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
    """Seconds; 0.0 when the lease is over."""
    load: dict[str, Any]
    generation: int
    """Of the code that it runs."""


@dataclass(frozen=True, slots=True)
class Placement:
    """Who owns what and who is there, at one moment."""

    now: int
    """The store's clock, microseconds."""
    intervals: list[PlacedInterval]
    """In the order of computations and slots."""
    workers: list[PlacedWorker]
    """In the order in which they registered."""
    removed: frozenset[int]
    """Computations that were taken away: nothing is sent to them, nobody waits for them."""
    paused: frozenset[int] = frozenset()
    """Computations: injectors that are not to read."""


@dataclass(frozen=True, slots=True)
class Wish:
    """Who should own an interval, if its sequencer is still this one.

    Without `pinned` it is the balancer's: it changes nothing of what is pinned to a worker that
    lives, and takes the pin off if that one is gone.
    """

    interval_id: int
    sequencer: int
    worker: str | None
    reason: str
    pinned: bool = False
    """An operator's: the balancer is to leave it there."""


@dataclass(frozen=True, slots=True)
class Unpin:
    """The balancer may have an interval again; it stays where it is until that moves it."""

    interval_id: int
    sequencer: int
    reason: str


@dataclass(frozen=True, slots=True)
class SplitWish:
    """The owner of an interval is to split it: `at` is the first slot of the upper part."""

    interval_id: int
    sequencer: int
    at: int
    reason: str


@dataclass(frozen=True, slots=True)
class MergeWish:
    """The owner of an interval is to merge it with its upper neighbour."""

    interval_id: int
    sequencer: int
    upper_id: int
    reason: str


@dataclass(frozen=True, slots=True)
class Lapse:
    """An interval is not to be split or merged after all."""

    interval_id: int
    sequencer: int
    reason: str


PlacementChange: TypeAlias = Wish | Unpin | SplitWish | MergeWish | Lapse
"""What may be said of an interval; each is a compare-and-set on its sequencer."""


@dataclass(frozen=True, slots=True)
class FoundPartition:
    """A partition of a growing source that has an interval."""

    interval_id: int
    slot: int
    sequencer: int
    identity: str
    low_watermark: int
    """As it is stored."""
    percentiles: dict[float, int]


@dataclass(slots=True)
class Deployment:
    """The ids that the stored graph gave to names."""

    computations: dict[str, int]
    streams: dict[str, int]
    intervals: list[IntervalRow]
    generation: int
    """That of the code: what it may own depends on it."""
    rekeyed: frozenset[str] = frozenset()
    """Computations that may have had records under other keys than this code gives them."""
    newly_rekeyed: tuple[tuple[str, str], ...] = ()
    """Those, with the streams, whose keys this deploy has changed."""
    is_first: bool = True
    """The pipeline was deployed first in this incarnation of the server: none of its commits is lost."""


@dataclass(slots=True)
class NodeDeploy:
    """A node of the graph as deploy needs it."""

    name: str
    kind: NodeKind
    version: int
    state: dict[str, Any]
    upstream: list[str]
    slots: list[tuple[int, int]]
    """The intervals to make: slot ranges, or partition numbers of an injector."""
    sources: list[str]
    """Identities of the injector's partitions."""
    migrates_from: list[int] = field(default_factory=list)
    """The versions from which there is a migration of the state."""
    shared_migrates_from: list[int] = field(default_factory=list)
    """The same of what its keys share."""
    keys: dict[str, Keys] = field(default_factory=dict)
    """How it takes keys, by stream."""
    shape: StateShape | None = None
    """The state as columns, for the views of it; None: there are none to make."""
    shared: StateShape | None = None
    """What its keys share, likewise."""


@dataclass(slots=True)
class StreamDeploy:
    """A stream of the graph as deploy needs it."""

    name: str
    version: int
    type: dict[str, Any]
    migrates_from: list[int] = field(default_factory=list)


class StoreLane(Protocol):
    """One ordered chain of commits."""

    async def commit(self, commit: Commit) -> None:
        """Make it durable, or raise.

        Raises:
            Fenced: another owner has one of the intervals; nothing was written.
            StatementError: a user's statement or row was refused; nothing was written.
            StoreUnavailable: the store is away or asked to try again; nothing was written.
            BucketGone: it notes ids in a bucket that was dropped; nothing was written.
            CommitUnknown: the connection broke while the commit was on the wire.
            StoreWentBack: the interval is still its owner's, and the commit is not the next of its chain.
        """
        ...

    async def close(self) -> None:
        """Let the connection go and end its server process, so that nothing is on the wire.

        Raises:
            StoreUnavailable: it could not be ended; to be closed again.
        """
        ...


class Store(Protocol):
    """Where a pipeline's state lives.

    The server behind it may come back without its newest commits. Every method raises `StoreWentBack`
    once the store has met another incarnation of the server than its first one, and goes on raising it
    until `begin_again` (decision 40).
    """

    async def incarnation(self) -> str:
        """What tells this run of the server from every other; the same text for every worker."""
        ...

    def begin_again(self) -> None:
        """Work with the incarnation that was met last. The caller has forgotten all it knew, and has
        closed its lanes."""
        ...

    async def deploy(
        self,
        graph: dict[str, Any],
        nodes: list[NodeDeploy],
        streams: list[StreamDeploy],
        tables: list[Table[Any]],
        *,
        stamp: int,
        bucket_high: int,
        shared: bool = False,
    ) -> Deployment:
        """Make or check what is stored of the graph.

        Args:
            stamp: the logical time of the first commits.
            bucket_high: the end of the first time bucket.
            shared: the worker is one of several: its code may be older than what is deployed,
                as long as there are intervals left that it may own.

        Raises:
            DeployRefused: another graph is stored under this name, or a type changed
                without a migration.
        """
        ...

    async def register_worker(
        self,
        worker: str,
        lease_seconds: float,
        *,
        address: str = "",
        generation: int = 1,
    ) -> None:
        """Say that a worker is there.

        Args:
            address: where others reach it.
            generation: that of its deployment; it never owns what newer code has owned.

        A worker that starts over registers again.

        Raises:
            Fenced: somebody has ended it meanwhile.
        """
        ...

    async def heartbeat(
        self, worker: str, lease_seconds: float, load: dict[str, Any], stamp: int = 0
    ) -> HeartbeatReply:
        """Renew the lease, and cut down those that end too late since the store's clock went back.

        Args:
            stamp: the newest one that the worker has given.

        Raises:
            Fenced: somebody ended this worker, or nobody remembers it.
        """
        ...

    async def stop_worker(self, worker: str) -> None: ...

    async def other_workers(self, worker: str) -> list[OtherWorker]: ...

    def is_dead(self, other: OtherWorker) -> bool:
        """Whether a worker's process ran on this machine and is known to be gone."""
        ...

    async def end_worker(self, other: OtherWorker) -> None:
        """End the server processes of a dead worker, and its lease."""
        ...

    async def claim(
        self,
        worker: str,
        interval_ids: list[int],
        *,
        again: bool = False,
        timers: int = TIMERS_A_PAGE,
        sequencers: Mapping[int, int] | None = None,
    ) -> list[Claim]:
        """Take intervals over: raise their sequencers, and only then read (I4).

        Opens a log for each interval that is no partition of a source. Sessions of the owner
        before that stand in the way for longer than a moment are ended; nobody else's are.

        Args:
            again: they are one's own already; somebody else's are not taken.
            timers: how many of each kind to read at the most.
            sequencers: per interval the sequencer that was read. Then only those are taken
                where it is still the same and that are free: without an owner, one's own, or
                of an owner who stopped, is unknown or let the lease run out, by the store's
                clock, and that no newer code has owned. The answer has exactly those, perhaps
                none. Not together with `again`.

        Raises:
            Fenced: without `sequencers`: one is gone, or newer code has owned it, or with
                `again`, somebody has claimed one meanwhile; nothing was changed.
        """
        ...

    async def release(self, worker: str, sequencers: Mapping[int, int]) -> list[int]:
        """Give intervals up that are drained and folded; who is wanted claims them.

        Args:
            sequencers: per interval the sequencer it was claimed with.

        Returns:
            Those given up: where the worker was still the owner.
        """
        ...

    async def add_partitions(
        self, discovery: int, sequencer: int, found: Mapping[str, dict[str, Any] | None]
    ) -> list[FoundPartition]:
        """Make an interval with a log for each partition that has none, in the order given.

        A new one promises what the interval of the discovery has stored as its low watermark; it
        has no owner yet.

        Args:
            discovery: the interval of the discovery, with its sequencer.
            found: by identity, the position that the interval of a new partition begins with.

        Returns:
            All partitions of the injector, in the order in which they were found.

        Raises:
            Fenced: somebody has claimed the discovery; nothing was made.
        """
        ...

    async def read_placement(self) -> Placement:
        """Who owns what, who should, and who is there: one snapshot, one round trip."""
        ...

    async def wish(self, changes: Sequence[PlacementChange]) -> list[int]:
        """Say who should own what, and what is to be cut, where the sequencer is still the same.

        Each change leaves a placement event; where it was so already, or cannot be (a slot that is
        outside, a neighbour that is none, an injector's partition), nothing is done. Of several
        for one interval the last counts. Whatever raises a sequencer later ends wishes to split
        and to merge: they were decided from how the interval was.

        Returns:
            The intervals where something changed.
        """
        ...

    async def peer_secret(self) -> bytes:
        """The 32 random bytes by which the pipeline's workers know each other. The first call ever
        makes them; two callers at once get the same."""
        ...

    async def try_lead(self, seconds: float) -> bool:
        """Whether this store object leads now: takes the leadership if nobody has it.

        Each call keeps it. Who does not call for `seconds` loses it: then the next call tells
        False, and the one after it tries again.
        """
        ...

    async def split(self, interval_id: int, sequencer: int, at: int, *, reason: str = "") -> int:
        """Cut a released and folded interval in two at a slot; gives the id of the upper part.

        The lower part keeps the id, the chain of commits, the logs and the counters. The upper
        part begins a chain with the parent's watermarks, and the number of its last bundle. Both
        are wanted, and pinned, as the parent was. No row of state moves.

        Raises:
            Fenced: somebody has claimed, split or merged it meanwhile.
            PlacementRefused: it has an owner, is not folded, has a bundle that is not delivered,
                is a partition of an injector, or `at` is not inside of it.
        """
        ...

    async def merge(
        self, lower_id: int, upper_id: int, sequencers: Mapping[int, int], *, reason: str = ""
    ) -> int:
        """Make two released and folded neighbours one; gives the id of the new interval.

        It takes over the logs of both with what is acknowledged of them, the lesser of what they
        promised, of their floors too, the greater of what they have heard, and the sum of their
        counters. It is wanted, and pinned, as the lower one was. Of their positions it has the
        greater number of a bundle, and nothing else: the files of its parts stay as they are. The
        ids of the parts are forgotten.

        Raises:
            Fenced: somebody has claimed, split or merged one meanwhile.
            PlacementRefused: they are no neighbours of one computation, or one has an owner,
                is not folded, has a bundle that is not delivered, or is a partition of an
                injector.
        """
        ...

    async def read_timers(
        self, interval_id: int, kind: str, after: TimerPlace | None, limit: int
    ) -> list[TimerChange]:
        """The next pending timers of an interval after a place in the order of time."""
        ...

    async def open_lane(self) -> StoreLane: ...

    def read_productions(self, log: int, first: int) -> AsyncIterator[StoredProduction]:
        """Productions of a log from `first` on, in order, weak ones that are stored among them."""
        ...

    async def retire_logs(self, logs: list[int]) -> None: ...

    async def look_up_seen(
        self, buckets: Sequence[int], computation: int, ids: Sequence[bytes]
    ) -> set[bytes]:
        """Which of these ids are in any of the buckets, whatever their slots: under another key
        than before a record is the same.

        Of a weak production the name in the id counts (`millwheel.model.name_of`), and the answer
        has the id as it is stored, whose digest may be another one.
        """
        ...

    async def newest_seen(self, bucket: int, computation: int) -> dict[int, int]:
        """The highest number of each log among the ids of rows and strong productions in the bucket, of
        whatever slots."""
        ...

    async def count_seen(self, bucket: int, computation: int, slots: tuple[int, int]) -> int:
        """How many ids `scan_seen` gives, all slices together."""
        ...

    async def scan_seen(
        self,
        bucket: int,
        computation: int,
        slots: tuple[int, int],
        after: tuple[bytes, int],
        limit: int,
    ) -> list[tuple[bytes, int]]:
        """Up to `limit` (id, slot) of a bucket and of the slots, in order."""
        ...

    async def load_keys(
        self, computation: int, keys: list[tuple[int, bytes]], limit: int
    ) -> list[list[tuple[str, bytes, int]]]:
        """Per key its first `limit` entries: (entry, value, version)."""
        ...

    async def load_entry(
        self, computation: int, slot: int, key: bytes, entry: str
    ) -> tuple[bytes, int] | None: ...

    async def scan_entries(
        self, computation: int, slot: int, key: bytes, after: str, before: str, limit: int
    ) -> list[tuple[str, bytes, int]]: ...

    async def sample_states(self, versions: Mapping[str, int], most: int) -> list[OldState]:
        """Plain states and shared tables that were written by another version of a computation's
        type than the code's, by name and version: at most so many of each, out of a bounded part of
        what is stored."""
        ...

    async def fold(self, interval_id: int, sequencer: int, after: int, through: int) -> bool:
        """Fold commits in (after, through]; False if somebody else owns the interval or folded.

        `after` is what the owner knows to be folded. If the answer of a fold was lost, more
        is: then the owner may fold again from where it believes to be.
        """
        ...

    async def oldest_snapshot_seconds(self) -> float: ...

    async def now(self) -> int:
        """The store's clock, microseconds: a round trip that does nothing else."""
        ...

    async def live_buckets(self) -> list[Bucket]: ...

    async def view_buckets(self) -> BucketView:
        """All buckets, oldest first, with the moment from which they are final for a while."""
        ...

    async def open_bucket(self, family: str, log: int, low: int, high: int) -> Bucket:
        """The bucket that holds `low`: the one there is, or a new one that ends at `high`.

        Buckets of stamps and of arrivals stand edge to edge: a new one begins where the newest
        ends, at or before `low`. Those of a source begin and end as they are asked for, but none
        goes on into the next.
        """
        ...

    async def close_bucket(self, bucket: int, high: int) -> Bucket | None:
        """End the newest bucket of its family early: at `high`, and not before
        `CLOSE_AHEAD_MICROS` from now by the store's clock, or from the end of the longest lease if that
        clock has gone back. Leases of more than 15 s put the end off by more (`CLOCK_STEP_MICROS`).
        One that has a successor, or that would end later than it does, is left alone.

        Returns:
            The bucket as it stands now; None: it is gone.
        """
        ...

    async def advance_gc_watermark(self) -> int:
        """Store and return the GC watermark: the least of all stored floors."""
        ...

    async def drop_bucket(self, bucket: Bucket) -> bool:
        """Drop a bucket if nothing stored needs it any more; False: try later."""
        ...

    async def close(self) -> None: ...
