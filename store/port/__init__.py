"""The store as the engine uses it: a protocol, and the data that goes in and out.

Two stores implement it: Postgres (`millwheel.store.postgres.store`), and memory for tests and
simulation (`millwheel.store.memory`). One contract suite tests both.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias

from millwheel.core.chunk import Chunks, Columns
from millwheel.core.extractors import Keys
from millwheel.core.model import Delivery
from millwheel.errors import DeployRefused
from millwheel.sinks import Table
from millwheel.store.port.state_shape import StateShape


@dataclass(frozen=True, slots=True)
class Bucket:
    """One stretch of the append-only past, ``[low, high)``, which is dropped as a whole.

    Families: *time* (stamps; all six tables), *source* (offsets of one replayable log;
    seen ids only), *named* (arrival of user-supplied ids; seen ids only).
    """

    id: int
    family: str
    log: int
    low: int
    high: int


NodeKind = Literal["injector", "computation", "relay"]

EARLY_CLOSE_MICROS = 5_000_000
"""A look at the buckets is final for stamps up to the time of the look plus this."""

CLOCK_STEP_MICROS = 5_000_000
"""Largest unnoticed step back of the database's clock between two heartbeats, if no lease is longer
than 15 s. With longer leases it is a third of the longest one, which is the time between two
heartbeats."""

CLOSE_AHEAD_MICROS = EARLY_CLOSE_MICROS + CLOCK_STEP_MICROS
"""Least distance between the database's clock and the end of a bucket that is closed early, if no
lease is longer than 15 s."""


@dataclass(frozen=True, slots=True)
class BucketView:
    """The live buckets at one moment of the store's clock.

    Buckets that are opened or closed later do not change the bucket of a stamp before `now` plus
    `EARLY_CLOSE_MICROS`.
    """

    now: int
    buckets: list[Bucket]


class StateChange(NamedTuple):
    """One entry of one key after a commit; a `value` of None means that the entry is removed."""

    interval_id: int
    n: int
    computation: int
    slot: int
    key: bytes
    entry: str
    value: bytes | None
    version: int


class OldState(NamedTuple):
    """A stored state or shared table, written by another version of its type than the code's."""

    computation: str
    key: bytes
    version: int
    value: bytes


StateRow = tuple[int, int, int, int, bytes, str, "bytes | None", int]
"""The fields of a `StateChange` as a plain tuple, which is cheaper to make."""


SeenRow = tuple[int, int, bytes]
"""A seen record: slot, computation and id."""

TIMER_KINDS = ("watermark", "wall", "hold")
"""Kinds of stored timers: by event time, by the clock, and holds of the watermark by user code,
which never fire."""

TIMERS_A_PAGE = 20_000

TimerPlace = tuple[int, int, bytes, str]
"""The place of a timer in the order of time: due, slot, key, tag."""


class TimerChange(NamedTuple):
    """One timer after a commit; a `due` of None means that it has fired or was cancelled."""

    interval_id: int
    n: int
    computation: int
    slot: int
    key: bytes
    kind: str
    tag: str
    due: int | None
    hold: int | None


Parked = Literal["failed", "waiting"]
"""The part of a dead letter in a parked key: it has failed and stops the key, or it waits in its
order."""


class DeadLetter(NamedTuple):
    """A record, row or timer that the engine gave up on, with the reason."""

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
    parked: Parked | None = None
    """Its part in a parked key (decision 60); None: its key goes on."""
    watermark: int | None = None
    """In a parked key, the low watermark that user code sees when it runs."""
    hold: int | None = None
    """In a parked key, where it holds the low watermark if the key's computation parks with
    ``hold_watermark``."""


class PlacedSlots(NamedTuple):
    """An interval, and the slots that it has."""

    interval_id: int
    computation: int
    slot_from: int
    slot_to: int


class KeptLetter(NamedTuple):
    """A dead letter that its owner is asked to process again."""

    id: int
    stream: str
    record_id: bytes | None
    value: str
    ts: int | None
    attempts: int
    parked: Parked | None = None
    watermark: int | None = None
    stamp: int = 0
    """When the engine gave up on it, in microseconds."""


class ParkedRows(NamedTuple):
    """A parked key, with the size of its rows."""

    computation: int
    slot: int
    key: bytes
    rows: int
    size: int
    """Characters of their values."""
    failed: bool
    """Whether a failed one stops the key."""
    times: list[int]
    """Their timestamps, in microseconds."""


class BlockingItem(NamedTuple):
    """A record or timer whose code has blocked the event loop of a worker for longer than the
    limit."""

    key: bytes
    item: str
    """Identifies it among the records and timers of its key: see
    `millwheel.runtime.interval.refused_items`."""
    error: str
    """What happened, and the lines of the code that blocked."""


class ParkedKeyPlace(NamedTuple):
    """A parked key of an interval."""

    interval_id: int
    computation: int
    slot: int
    key: bytes


class OpenRequest(NamedTuple):
    """A request of an operator to the owner of a key (decision 59)."""

    id: int
    interval_id: int
    verb: str
    slot: int
    key: bytes
    payload: Any
    """Its arguments, a dict; None: they could not be read."""
    about: int | None
    """The dead letter that it is about."""
    letter: KeptLetter | None
    """That dead letter; None: it is gone."""


class SettledRequest(NamedTuple):
    """The outcome of a request; its effects are in the same commit."""

    id: int
    outcome: Literal["done", "refused", "failed"]
    detail: str = ""
    letter: int | None = None
    """The dead letter that it was about: deleted with ``done``."""
    failure: DeadLetter | None = None
    """With ``failed``: the new text of the dead letter."""


ANOTHER_CHAIN = (
    "the interval's chain of commits is not as this worker left it, although no other worker has "
    "claimed the interval: the store has lost commits"
)
"""Message of a commit that is refused although its sequencer is current."""


@dataclass(slots=True)
class IntervalCommit:
    """One interval's part of a commit: its link in the chain, its watermarks, floor and
    acknowledgements."""

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
    table_rows: dict[str, int] = field(default_factory=dict)
    """By numbered table: the rows that the interval has written up to this commit."""


@dataclass(slots=True)
class Commit:
    """All that one transaction of a lane writes."""

    stamp: int
    bucket: int
    intervals: list[IntervalCommit] = field(default_factory=list)
    seen: dict[int, list[SeenRow] | Columns[SeenRow]] = field(default_factory=dict)
    """Seen records by bucket."""
    states: list[StateRow] | Columns[StateRow] = field(default_factory=list)
    timers: list[TimerChange] | Columns[TimerChange] = field(default_factory=list)
    productions: list[Delivery[Any]] | Chunks = field(default_factory=list)
    stragglers: list[Delivery[Any]] = field(default_factory=list)
    """Weak productions that were sent and are not acknowledged yet (paper 6.1.3)."""
    dead_letters: list[DeadLetter] = field(default_factory=list)
    settled: list[SettledRequest] = field(default_factory=list)
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
    """An interval that a worker has claimed, with all stored data that its owner starts from."""

    interval: IntervalRow
    n: int
    bucket: int
    stamp: int
    input_watermark: int
    low_watermark: int
    acked: dict[int, tuple[int, list[tuple[int, int]]]]
    position: dict[str, Any] | None
    counters: dict[str, int]
    table_rows: dict[str, int]
    """By numbered table: the rows that the interval has written."""
    folded: int
    logs: list[LogRow]
    """Live logs, oldest first, without the one that this claim opened."""
    new_log: int
    """The log that this claim opened; 0 for an interval that writes no productions."""
    states: list[StateChange]
    """Changes that are not folded yet: the last one of each entry."""
    timers: list[TimerChange]
    """The soonest pending timers of each kind, in the order of time."""
    more_timers: frozenset[str]
    """Kinds that have further pending timers; see `Store.read_timers`."""
    parked: list[ParkedRows]
    """The parked keys."""
    blocking: list[BlockingItem]
    """Records and timers that blocked a former owner for too long. The store has forgotten them."""
    asked: list[OpenRequest]
    """The open requests to set records aside and, of an injector's interval, all open requests."""


@dataclass(slots=True)
class StoredProduction:
    """A stored production that its log sends again."""

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
    """Logical time of the commit that stored it."""
    place: int
    """Its place in the buckets, the same in every resend: a stamp, or an offset of `origin`."""
    id: bytes = b""
    """Id of a weak production; empty for a strong one, which has the id of its log and number."""
    origin: int = 0
    """Log of the source that `place` is an offset of; 0 if `place` is a stamp."""


TAKEN_CHARACTERS = 8 << 20
"""Most characters of the records that one call of `take_sent` or `read_sent` gives; the last of
them may exceed it."""


class SentRecord(NamedTuple):
    """A record that a user sent, with its number in the injector's log."""

    number: int
    value: bytes
    """JSON."""
    ts: int
    """Event time, microseconds."""


class TakenRecords(NamedTuple):
    """The answer of `Store.take_sent`, at one snapshot of the store."""

    owned: bool
    """Whether the interval still has the given sequencer; otherwise there are no records."""
    now: int
    """The store's time, no later than the snapshot."""
    oldest: int
    """Every transaction before this one has ended."""
    newest: int | None
    """Every transaction after this one began after `now`, and its records have later times; None if
    it was not asked for, and no record was taken."""
    last_seq: int
    """The last number in the order of sending that was given to any record by about now."""
    records: list[SentRecord]


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


ELSEWHERE = 2**31 - 1
"""The generation of intervals of a pipeline that runs elsewhere, on Spark: no code has it, so
nobody claims them."""


@dataclass(frozen=True, slots=True)
class PlacedInterval:
    """An interval with its owner and its wanted owner."""

    id: int
    computation: int
    slot_from: int
    slot_to: int
    sequencer: int
    owner: str | None
    wanted_by: str | None
    lease_over: bool
    """Its owner has stopped, is unknown, or has an expired lease."""
    generation: int
    """Generation of the newest code that has owned it: workers of older code cannot claim it."""
    name: str
    """Name of the computation, which the code of this worker may not have yet."""
    kind: NodeKind
    grain: int
    """Number of slots that stay together: intervals begin and end at multiples of it."""
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
    """Seconds; 0.0 when the lease has expired."""
    load: dict[str, Any]
    generation: int
    """Generation of its code."""

    @property
    def is_blocked(self) -> bool:
        """Whether user code blocks its event loop: a thread sends its heartbeats."""
        return "blocked" in self.load


@dataclass(frozen=True, slots=True)
class Placement:
    """All intervals with their owners, and all workers, at one moment."""

    now: int
    """The store's clock, microseconds."""
    intervals: list[PlacedInterval]
    """Sorted by computation and slot."""
    workers: list[PlacedWorker]
    """Sorted by time of registration."""
    removed: frozenset[int]
    """Removed computations: workers send nothing to them, and no watermark waits for them."""
    paused: frozenset[int] = frozenset()
    """Injectors that must not read."""

    def refuse_elsewhere(self) -> None:
        """Refuse to go on with a pipeline that was moved away.

        Raises:
            DeployRefused: no worker can own any of its intervals.
        """
        if self.intervals and all(row.generation == ELSEWHERE for row in self.intervals):
            raise DeployRefused(
                "the pipeline was moved to Spark, and its state with it: workers have nothing to "
                "do. To move it back: millwheel move MODULE:PIPELINE --to engine"
            )


@dataclass(frozen=True, slots=True)
class Wish:
    """A wanted owner for an interval, if its sequencer is still this one.

    Without `pinned` it comes from the balancer: it does not move an interval that is pinned to a
    living worker, and removes the pin of one that is pinned to a dead worker.
    """

    interval_id: int
    sequencer: int
    worker: str | None
    reason: str
    pinned: bool = False
    """It comes from an operator: the balancer must not move the interval again."""


@dataclass(frozen=True, slots=True)
class Unpin:
    """Removes a pin: the balancer may move the interval again."""

    interval_id: int
    sequencer: int
    reason: str


@dataclass(frozen=True, slots=True)
class SplitWish:
    """Asks the owner of an interval to split it: `at` is the first slot of the upper part."""

    interval_id: int
    sequencer: int
    at: int
    reason: str


@dataclass(frozen=True, slots=True)
class MergeWish:
    """Asks the owner of an interval to merge it with its upper neighbour."""

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
"""Number of placement events that a store keeps."""

PlacementChange: TypeAlias = Wish | Unpin | SplitWish | MergeWish | Lapse
"""A change of an interval's placement: a compare-and-set on its sequencer."""


@dataclass(frozen=True, slots=True)
class FoundPartition:
    """A partition of a growing source with its interval."""

    interval_id: int
    slot: int
    sequencer: int
    identity: str
    low_watermark: int
    """Stored low watermark of the interval."""
    position: dict[str, Any] | None
    """Stored position of the interval."""


@dataclass(slots=True)
class Deployment:
    """Ids of the deployed graph, by name."""

    computations: dict[str, int]
    streams: dict[str, int]
    intervals: list[IntervalRow]
    generation: int
    """Generation of the code, which decides the intervals that its worker may own."""
    rekeyed: frozenset[str] = frozenset()
    """Computations that may have stored records under other keys than this code gives them."""
    newly_rekeyed: tuple[tuple[str, str], ...] = ()
    """Computations, and their input streams, with key extractors that this deploy has changed."""
    is_first: bool = True
    """The first deploy was in this incarnation of the server: none of the pipeline's commits is
    lost."""


@dataclass(slots=True)
class NodeDeploy:
    """A node of the graph, as `Store.deploy` takes it."""

    name: str
    kind: NodeKind
    version: int
    state: dict[str, Any]
    upstream: list[str]
    slots: list[tuple[int, int]]
    """Intervals of a new node: slot ranges, or partition numbers of an injector."""
    sources: list[str]
    """Identities of the injector's partitions."""
    migrates_from: list[int] = field(default_factory=list)
    """Versions of the state that the code has a migration for."""
    shared_migrates_from: list[int] = field(default_factory=list)
    """Versions of the shared table that the code has a migration for."""
    keys: dict[str, Keys] = field(default_factory=dict)
    """Key extractors, by stream."""
    shape: StateShape | None = None
    """Columns of the views of its state; None if it has no such views."""
    shared: StateShape | None = None
    """Columns of the view of its shared table; None if it has no such view."""


@dataclass(slots=True)
class StreamDeploy:
    """A stream of the graph, as `Store.deploy` takes it."""

    name: str
    version: int
    type: dict[str, Any]
    migrates_from: list[int] = field(default_factory=list)


class StoreLane(Protocol):
    """One ordered chain of commits."""

    def prepare(self, commit: Commit) -> None:
        """Encode a commit that will be made after the one on the wire, if that saves time."""
        ...

    async def commit(self, commit: Commit) -> None:
        """Make a commit durable, or raise.

        Raises:
            Fenced: another worker has claimed one of the intervals; nothing was written.
            StatementError: a user's statement or row was refused; nothing was written.
            StoreUnavailable: the store is away or asks for another attempt; nothing was written.
            BucketGone: the commit notes ids in a dropped bucket; nothing was written.
            CommitUnknown: the connection broke while the commit was on the wire.
            StoreWentBack: the worker still owns the interval, but the commit is not the next of its
                chain.
        """
        ...

    async def close(self) -> None:
        """Close the connection and end its server process, so that no commit is on the wire any
        more.

        Raises:
            StoreUnavailable: the server process could not be ended; close the lane again.
        """
        ...


class Store(Protocol):
    """The stored data of one pipeline.

    The server behind it may come back without its newest commits. Once the store has met another
    incarnation of the server, every method raises `StoreWentBack` until `begin_again` (decision
    40).
    """

    async def incarnation(self) -> str:
        """A text that tells this run of the server from every other; all workers get the same."""
        ...

    def begin_again(self) -> None:
        """Work with the incarnation that was met last. Before, the caller drops all data in memory
        and closes its lanes."""
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
        """Store the graph of the code, or compare it with the stored one.

        Args:
            stamp: logical time of the first commits.
            bucket_high: end of the first time bucket.
            shared: the worker is one of several: its code may be older than the deployed code, as
                long as some interval is left that it may own.

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
        """Register a worker. A worker that starts over registers again.

        Args:
            address: address for connections from other workers.
            generation: generation of its code; it never owns an interval that newer code has owned.

        Raises:
            Fenced: another worker has ended it.
        """
        ...

    async def heartbeat(
        self, worker: str, lease_seconds: float, load: dict[str, Any], stamp: int = 0
    ) -> HeartbeatReply:
        """Renew the lease, and shorten leases that end too late because the store's clock went
        back.

        Args:
            stamp: the newest stamp that the worker has given.

        Raises:
            Fenced: another worker ended this one, or the store has forgotten it.
        """
        ...

    async def stop_worker(self, worker: str) -> None: ...

    async def other_workers(self, worker: str) -> list[OtherWorker]: ...

    def is_dead(self, other: OtherWorker) -> bool:
        """Whether a worker's process ran on this machine and is known to have ended."""
        ...

    async def end_worker(self, other: OtherWorker) -> None:
        """End the server processes of a dead worker, and its lease."""
        ...

    async def end_lost_leases(self, suspects: Sequence[str]) -> list[str]:
        """End the leases of those of the suspected workers that hold their liveness lock no more
        (decision 58).

        The session of a worker's heartbeats holds the lock; it is free soon after the process has
        died. A worker that has not held it since the server started is not judged: its lease
        decides. A wrong guess is safe (I3), and the next heartbeat of the worker renews its lease.

        Returns:
            The workers whose leases were ended.
        """
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
        """Claim intervals: raise their sequencers, and only then read their data (I4).

        Opens a log for each interval that is not a partition of a source. Ends sessions of the
        former owner that hold the intervals for longer than a moment, and no other sessions.

        Args:
            again: the worker claims its own intervals again; intervals of other workers are not
                taken.
            timers: largest number of timers of each kind that is read.
            sequencers: by interval, the sequencer that was read. Then the claim takes only
                intervals that still have this sequencer, that no newer code has owned, and that are
                free: without an owner, owned by this worker, or by one that has stopped, is
                unknown, or has an expired lease by the store's clock. The answer has exactly these,
                perhaps none. Not together with `again`.

        Raises:
            Fenced: without `sequencers`: an interval is gone, or newer code has owned it, or, with
                `again`, another worker has claimed one; nothing was changed.
        """
        ...

    async def open_requests(
        self, intervals: Sequence[PlacedSlots], taken: Sequence[int], limit: int
    ) -> list[OpenRequest]:
        """Requests to the owner of some intervals that are due and not settled, the oldest first.

        Args:
            taken: requests that the owner has read before, to be left out.
        """
        ...

    async def parked_rows(
        self, keys: Sequence[ParkedKeyPlace], taken: Sequence[int], limit: int
    ) -> list[OpenRequest]:
        """The records and timers that wait in parked keys, in their order, as requests to run them.

        Each has the negative of its letter's number.

        Args:
            taken: the letters that the owner has read before, to be left out.
            limit: most rows of each key.
        """
        ...

    async def settle_requests(self, settled: Sequence[SettledRequest]) -> None:
        """Settle requests that have no effect."""
        ...

    async def read_timer(
        self, interval_id: int, computation: int, slot: int, key: bytes, kind: str, tag: str
    ) -> tuple[int, int] | None:
        """The due time and the hold of one durable timer, in microseconds; None: there is none."""
        ...

    async def blockers(self) -> list[str]:
        """The sessions of the server that this worker's sessions wait for, in words.

        Raises:
            StoreUnavailable: the server does not answer.
        """
        ...

    async def is_owner(self, interval_id: int, sequencer: int) -> bool:
        """Whether an interval still has a sequencer: no other worker has claimed it since."""
        ...

    async def release(self, worker: str, sequencers: Mapping[int, int]) -> list[int]:
        """Release drained and folded intervals, for their wanted owners to claim.

        Args:
            sequencers: by interval, the sequencer that it was claimed with.

        Returns:
            The released intervals: the worker still owned them.
        """
        ...

    async def add_partitions(
        self, discovery: int, sequencer: int, found: Mapping[str, dict[str, Any] | None]
    ) -> list[FoundPartition]:
        """Make an interval with a log for each partition that has none, in the given order.

        A new interval begins with the stored low watermark of the discovery's interval, and without
        an owner.

        Args:
            discovery: the interval of the discovery.
            sequencer: the sequencer of that interval.
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
        """Delete the intervals of partitions that have ended, with their logs.

        The caller makes sure that they have stored the end of time as low watermark, so that
        nothing of them is un-ACKed, and that their owners do no more than find their interval gone.

        Args:
            discovery: the interval of the discovery.
            sequencer: the sequencer of that interval.
            interval_ids: the intervals to delete; one that is gone already is left out.

        Returns:
            The remaining partitions.
        """
        ...

    async def read_placement(self) -> Placement:
        """Read intervals, owners, wanted owners and workers: one snapshot, one round trip."""
        ...

    async def wish(self, changes: Sequence[PlacementChange], term: int | None = None) -> list[int]:
        """Store wishes (wanted owners, pins, splits, merges) for intervals that still have the
        given sequencer.

        Each change adds a placement event. A wish changes nothing if it holds already or is
        impossible (a slot outside the interval, a wrong neighbour, an injector's partition). The
        last of several changes of one interval counts. Every later raise of a sequencer ends wishes
        to split and to merge, because they were decided for the interval as it was before.

        Args:
            term: the leader's term (`try_lead`): nothing is stored once another worker leads. None:
                an operator's wish, or an owner's own.

        Returns:
            The changed intervals.
        """
        ...

    async def peer_secret(self) -> bytes:
        """The 32 random bytes that prove to a worker that its peer belongs to the pipeline. The
        first call ever draws them; two concurrent callers get the same."""
        ...

    async def try_lead(self, worker: str, seconds: float) -> int | None:
        """The term of the leadership if this worker leads; it takes a free one. None: another
        worker leads.

        Each call keeps the leadership for `seconds`. It is free after that, and as soon as the
        worker's lease has ended; a worker without a lease cannot lead. Each change of the leader
        raises the term.
        """
        ...

    async def split(self, interval_id: int, sequencer: int, at: int, *, reason: str = "") -> int:
        """Cut a released and folded interval in two at a slot; gives the id of the upper part.

        The lower part keeps the id, the chain of commits, the logs and the counters. The upper part
        begins a chain with the parent's watermarks and the number of its last bundle. Both parts
        keep the parent's wanted owner and pin. No row of state moves.

        Raises:
            Fenced: another worker has claimed, split or merged it.
            PlacementRefused: it has an owner, is not folded, has an undelivered bundle, is a
                partition of an injector, or `at` is not inside it.
        """
        ...

    async def merge(
        self, lower_id: int, upper_id: int, sequencers: Mapping[int, int], *, reason: str = ""
    ) -> int:
        """Merge two released and folded neighbours; gives the id of the new interval.

        It takes over the logs of both with their acknowledgements, the lower of the two low
        watermarks and of the two floors, the higher input watermark, and the sum of the counters.
        It keeps the wanted owner and pin of the lower part. Of the positions it keeps the higher
        bundle number only: the files of the parts stay as they are. The ids of the parts are
        forgotten.

        Raises:
            Fenced: another worker has claimed, split or merged one of them.
            PlacementRefused: they are not neighbours in one computation, or one has an owner, is
                not folded, has an undelivered bundle, or is a partition of an injector.
        """
        ...

    async def read_timers(
        self, interval_id: int, kind: str, after: TimerPlace | None, limit: int
    ) -> list[TimerChange]:
        """The next pending timers of an interval after a place in the order of time."""
        ...

    async def open_lane(self) -> StoreLane: ...

    def read_productions(self, log: int, first: int) -> AsyncIterator[StoredProduction]:
        """Stored productions of a log from number `first` on, in order: strong ones, and
        stragglers."""
        ...

    async def retire_logs(self, logs: list[int]) -> None: ...

    async def look_up_seen(
        self, buckets: Sequence[int], computation: int, ids: Sequence[bytes]
    ) -> set[bytes]:
        """The ids that are in one of the buckets, in any slot: a record with another key is still
        the same.

        An id of a weak production is found by the name in it (`millwheel.core.model.name_of`). The
        answer has the stored id, which may have another digest.
        """
        ...

    async def newest_seen(self, bucket: int, computation: int) -> dict[int, int]:
        """The highest number of each log among the ids of rows and strong productions in the
        bucket, in any slot."""
        ...

    async def count_seen(self, bucket: int, computation: int, slots: tuple[int, int]) -> int:
        """Total number of ids that `scan_seen` gives."""
        ...

    async def scan_seen(
        self,
        bucket: int,
        computation: int,
        slots: tuple[int, int],
        after: tuple[bytes, int],
        limit: int,
    ) -> list[tuple[bytes, int]]:
        """Up to `limit` pairs (id, slot) of a bucket, within the slots, in order."""
        ...

    async def load_keys(
        self, computation: int, keys: list[tuple[int, bytes]], limit: int
    ) -> list[list[tuple[str, bytes, int]]]:
        """The first `limit` entries of each key: (entry, value, version)."""
        ...

    async def load_entry(
        self, computation: int, slot: int, key: bytes, entry: str
    ) -> tuple[bytes, int] | None: ...

    async def scan_entries(
        self, computation: int, slot: int, key: bytes, after: str, before: str, limit: int
    ) -> list[tuple[str, bytes, int]]: ...

    async def sample_states(self, versions: Mapping[str, int], most: int) -> list[OldState]:
        """Plain states and shared tables written by another version than the code's, out of a
        bounded part of the stored ones.

        Args:
            versions: the code's version of each computation's type, by name.
            most: largest number for each computation and version.
        """
        ...

    async def open_inbox(
        self, stream: str, interval_id: int, *, requires_id: bool, remember: timedelta
    ) -> int:
        """Let a stream take records, for the injector of an interval; gives the stream's id.

        Args:
            requires_id: refuse records without an id.
            remember: how long an id is remembered after its record.
        """
        ...

    async def take_sent(
        self,
        stream: int,
        interval_id: int,
        sequencer: int,
        first: int,
        limit: int,
        *,
        after: int = 0,
        mark: bool = False,
    ) -> TakenRecords:
        """Take and number up to `limit` committed records of a stream that have no number yet, in
        the order in which they were sent.

        Args:
            stream: id of the stream.
            first: the number of the first one.
            after: no record waits that has this number in the order of sending, or one before.
            mark: find out which transaction is the newest, even if there is no record; it uses up a
                transaction id.
        """
        ...

    async def read_sent(self, interval_id: int, first: int, limit: int) -> list[SentRecord]:
        """Records that an interval has taken, from number `first` on, in order."""
        ...

    async def count_sent(self, stream: int, limit: int) -> int:
        """Number of committed records that have no number yet, up to `limit`."""
        ...

    async def forget_sent(self, stream: int, interval_id: int, limit: int) -> int:
        """Delete records before the injector's stored position, and ids that are old enough.

        Returns:
            The number of deleted records or ids, whichever is more; at most `limit`.
        """
        ...

    async def fold(self, interval_id: int, sequencer: int, after: int, through: int) -> bool:
        """Fold the commits in (after, through]; False if another worker owns the interval or has
        folded it.

        `after` is the last commit that the owner knows to be folded. If the answer of a fold was
        lost, more commits are folded, and the owner may repeat the fold.
        """
        ...

    async def oldest_snapshot_seconds(self) -> float: ...

    async def now(self) -> int:
        """The store's clock, microseconds: one round trip."""
        ...

    async def live_buckets(self) -> list[Bucket]: ...

    async def view_buckets(self) -> BucketView:
        """All buckets, oldest first, with the time of the look (see `BucketView`)."""
        ...

    async def open_bucket(self, family: str, log: int, low: int, high: int) -> Bucket:
        """The bucket that holds `low`: an existing one, or a new one that ends at `high`.

        Buckets of stamps and of arrivals are contiguous: a new one begins at the end of the newest,
        at or before `low`. Buckets of a source begin at `low` and end at `high`, or earlier where
        the next bucket begins.
        """
        ...

    async def close_bucket(self, bucket: int, high: int) -> Bucket | None:
        """End the newest bucket of its family early, at `high`.

        The end is at least `CLOSE_AHEAD_MICROS` after now by the store's clock, or after the end of
        the longest lease if that clock has gone back. Leases of more than 15 s delay the end
        further (`CLOCK_STEP_MICROS`). A bucket does not change if it has a successor, or would end
        later than before.

        Returns:
            The bucket with its current end; None: it was dropped.
        """
        ...

    async def advance_gc_watermark(self) -> int:
        """Store and return the GC watermark: the lowest stored floor."""
        ...

    async def drop_bucket(self, bucket: Bucket) -> bool:
        """Drop a bucket if no stored data needs it any more; False: try later."""
        ...

    async def close(self) -> None: ...
