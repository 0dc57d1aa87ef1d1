"""One key interval owned by this worker: queue, state, timers, dedup, logs, watermarks.

Ownership of an interval is a small protocol::

    FREE ──claim──▶ HELD ──release──▶ FREE
                     │ fenced
                     ▼
                   FENCED            (another owner's sequencer is higher: drop the interval)

    HELD ──claim──▶ HELD             (claiming an own interval again settles an unknown commit)
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable
from typing import Any, Protocol

import msgspec

from millwheel.core.addresses import CELL_MARK
from millwheel.core.chunk import Chunk
from millwheel.core.codec import decode_key
from millwheel.core.counters import BLOOM_MAYBES, DUPLICATES_DROPPED, WEAK_CHANGED
from millwheel.core.model import MAX_TIME, Delivery, Key
from millwheel.core.redaction import shown_key
from millwheel.core.source_progress import SourceProgress
from millwheel.runtime.interval.intake import Intake
from millwheel.runtime.interval.interval_commits import IntervalCommits
from millwheel.runtime.interval.interval_counters import IntervalCounters
from millwheel.runtime.interval.interval_logs import IntervalLogs
from millwheel.runtime.interval.interval_timers import IntervalTimers
from millwheel.runtime.interval.interval_watermarks import IntervalWatermarks
from millwheel.runtime.interval.key_requests import IntervalRequests, KeyRequest
from millwheel.runtime.interval.mode import Mode
from millwheel.runtime.interval.part_files import PartFile
from millwheel.runtime.interval.ports import LanePort, SourcePort
from millwheel.runtime.interval.sent_log import SentLog
from millwheel.runtime.interval.step import Step
from millwheel.runtime.interval.turns import Turns
from millwheel.runtime.interval.work import IntervalWork, Item
from millwheel.runtime.keys.broadcast_tables import BroadcastTables
from millwheel.runtime.keys.key_state import KeyState, StateCache
from millwheel.runtime.process.load import Workload
from millwheel.runtime.process.state_table import next_state
from millwheel.runtime.seen.dedup import Dedup
from millwheel.settings import Settings
from millwheel.store.port.claims import Claim
from millwheel.timers.watermark import WatermarkReport


class Ownership(enum.Enum):
    """As far as this worker knows."""

    FREE = "free"
    HELD = "held"
    FENCED = "fenced"


TRANSITIONS = {
    Ownership.FREE: {"claim": Ownership.HELD},
    Ownership.HELD: {
        "claim": Ownership.HELD,
        "release": Ownership.FREE,
        "fenced": Ownership.FENCED,
    },
    Ownership.FENCED: {"claim": Ownership.HELD},
}


class ModesPort(Protocol):
    """Creates the parts of an interval that its computation's options choose."""

    def of(self, interval: Interval) -> Mode: ...

    def turns_of(self, interval: Interval, claim: Claim) -> Turns: ...


class Interval:
    """A range of slots of one step (or a partition of an injector) and its owner's soft state.

    `restore` can rebuild all of it from the store; it lives as long as the claim (paper 6.2).
    """

    is_here = True

    def __init__(
        self,
        step: Step,
        claim: Claim,
        settings: Settings,
        modes: ModesPort,
    ) -> None:
        self.step = step
        self.id = claim.interval.id
        self.slots = (claim.interval.slot_from, claim.interval.slot_to)
        self.name = f"{step.name}[{self.slots[0]}:{self.slots[1]}]"
        self.ownership = Ownership.FREE
        self.intake = Intake()
        self.backlog: dict[bytes, list[Item] | None] = {}
        """Keys that are running or waiting in user code, with items that have arrived since."""
        self.requests = IntervalRequests()
        """Requests of operators to its keys."""
        self.lane: LanePort | None = None
        """None before it takes records, and after it was removed."""
        self.dirty = False
        """The next commit has to store something for it."""
        self.leaving = False
        """It is being handed over: it finishes work that has begun, and takes no new work."""
        self.drained = False
        """No more commits; the next owner recovers later ACKs."""
        self.states: StateCache = None  # type: ignore[assignment]
        self.tables: BroadcastTables | None = None
        """None: its computation reads no broadcast."""
        self.state_of: Callable[[Key, bytes, int], KeyState]
        """The state of a key, or the table of a cell, loaded or not."""
        self.dedup: Dedup = None  # type: ignore[assignment]
        self.part_file: PartFile | None = None
        """None: it has no JSON Lines sink."""
        self.source_task: SourcePort | None = None
        """Reads an injector's partition, or looks for partitions."""
        self.sent_before = 0
        """Uncounted records that an injector or a weak computation sent before a commit."""
        self.workload = Workload(self.slots)
        self.counters = IntervalCounters(claim)
        self.commits = IntervalCommits(claim)
        self.mode = modes.of(self)
        self.turns = modes.turns_of(self, claim)
        self.restore(claim, settings)

    def restore(self, claim: Claim, settings: Settings) -> None:
        """Start only from the stored state of the claim."""
        self.transition("claim")
        self.requests.forget_waiting()  # they were read before the claim
        self.requests.to_injector = claim.asked
        self.counters.restore(claim)
        self.commits.restore(claim)
        self.watermarks = IntervalWatermarks(claim)
        self.turns.restore(claim)
        self.timers = IntervalTimers(
            claim, settings.timers_in_memory, self.watermarks, self.backlog
        )
        self.logs = IntervalLogs(claim, settings, self.watermarks.holds)
        self.position = StoredPosition(claim)
        self.mode.begin(claim)

    def attach(
        self, states: StateCache, tables: BroadcastTables | None, dedup: Dedup, claim: Claim
    ) -> None:
        """Take the parts that need the store; restore unfolded changes of state."""
        self.states = states
        self.tables = tables
        self.state_of = states.get if tables is None else self._state_of_key_or_cell
        self.dedup = dedup
        states.folded = claim.folded
        for change in claim.states:
            state = self.state_of(decode_key(change.key), change.key, change.slot)
            state.restore(change.entry, change.value, change.version, change.n)

    def _state_of_key_or_cell(self, key: Key, key_text: bytes, slot: int) -> KeyState:
        if key_text.startswith(CELL_MARK):
            assert self.tables is not None
            return self.tables.of(slot)
        return self.states.get(key, key_text, slot)

    def transition(self, event: str) -> None:
        self.ownership = next_state(TRANSITIONS, self.ownership, event, self.name)

    @property
    def takes_chunks(self) -> bool:
        """Whether user code may run on a whole chunk: its records need no tables or special
        mode."""
        node = self.step.node
        one_by_one = node.is_weak or node.at_most_once or self.tables is not None
        return node.exactly_once and not one_by_one and self.mode.is_strong

    def begin_keys(self, chunk: Chunk) -> list[tuple[KeyState, list[int]]]:
        """Mark the keys of a chunk as running; gives their states, which may not be loaded yet, and
        the places of their records."""
        by_key: dict[bytes, list[int]] = {}
        for place, key_text in enumerate(chunk.key_texts):
            same = by_key.get(key_text)
            if same is None:
                by_key[key_text] = [place]
            else:
                same.append(place)
        self.backlog.update(dict.fromkeys(by_key))
        return list(zip(self.states.get_all(chunk, by_key), by_key.values(), strict=True))

    # -- its queue --------------------------------------------------------------------------

    @property
    def queued(self) -> int:
        return self.intake.length

    def insert(self, deliveries: Iterable[Delivery[Any]]) -> None:
        """Take records that were queued elsewhere."""
        self.intake.extend(deliveries)
        self.wake()

    async def store_all(self) -> None:
        """Store the interval as it is now; return once that is durable.

        A commit that is on the wire already was built before, so the next one counts.
        """
        assert self.lane is not None
        built = self.commits.n
        while self.commits.durable_n <= built:
            self.touch(urgent=True)
            await self.lane.settled()

    def put_back(self, item: Item) -> None:
        """Keep an item until its running key has finished."""
        waiting = self.backlog[item.key_text]
        if waiting is None:
            self.backlog[item.key_text] = [item]
        else:
            waiting.append(item)

    def requeue(self, apart: set[int]) -> None:
        """Queue received records that are not durable again, in their order.

        Records with an identity (`id`) in `apart` are left out: recovery runs them separately.
        """
        self.backlog.clear()
        self.requests.start_over(apart)
        self.mode.start_over()
        if self.dedup is None:
            return
        again = [d for d in self.dedup.start_over() if id(d) not in apart]
        for delivery in again:
            self.step.renew(delivery)
        self.intake.put_first(again)

    def forget_queued(self, logs: set[int]) -> None:
        """Drop queued records of `logs`, whose sender sends them again, except those sent only
        once."""
        if self.step.node.at_most_once:
            return
        self.intake.drop_logs(logs)

    def retake(self, items: list[Item]) -> list[Item]:
        """Take items that were requeued `apart` into flight again; timers no longer set are left
        out."""
        taken: list[Item] = []
        for item in items:
            if isinstance(item, Delivery):
                self.dedup.take_by_hand(item)
                taken.append(item)
            elif isinstance(item, KeyRequest):
                taken.append(item)
            elif (again := self.timers.take_again(item)) is not None:
                taken.append(again)
        return taken

    # -- its lane ---------------------------------------------------------------------------

    def touch(self, *, urgent: bool) -> None:
        """Store something with a later commit: soon if `urgent`, when readers wait for its low
        watermark."""
        if self.lane is None:
            self.dirty = True
        else:
            self.lane.touch(self, urgent=urgent)

    def wake(self) -> None:
        if self.lane is not None:
            self.lane.wake.set()

    def next_alarm(self) -> int | None:
        """Wall time, in microseconds, when a timer or the mode's work is due; None: never."""
        timer = self.timers.next_wall()
        due = None if self.leaving else self.mode.due_at()
        if timer is None or due is None:
            return due if timer is None else timer
        return min(timer, due)

    def may_send(self, decided: int = 0) -> bool:
        """Whether each of its logs, and its mode, has credits left (I8).

        Args:
            decided: productions that have no number yet.
        """
        return self.logs.may_send(decided) and self.mode.has_room()

    # -- its commits --------------------------------------------------------------------------

    @property
    def log(self) -> SentLog:
        return self.logs.newest

    def events(self) -> list[dict[str, int]]:
        """Events that dedup and the mode have counted since the last commit."""
        found = [self.mode.take_events()]
        dedup = self.dedup
        if dedup is not None and dedup.maybes | dedup.dropped:
            found.append({BLOOM_MAYBES: dedup.maybes, DUPLICATES_DROPPED: dedup.dropped})
            dedup.maybes = dedup.dropped = 0
        if dedup is not None and dedup.changed:
            found.append({WEAK_CHANGED: dedup.changed})
            dedup.changed = 0
        return found

    def take_sent_before(self) -> int:
        """Number of records sent before a commit since the last call.

        If the commit that should count them fails, they count when they are sent again.
        """
        sent, self.sent_before = self.sent_before, 0
        return sent

    def encoded_position(self, work: IntervalWork) -> bytes | None:
        """The JSON position from which a next owner continues after the commit being built."""
        if self.source_task is not None:
            return msgspec.json.encode(self.source_task.position())
        if self.part_file is not None:
            return msgspec.json.encode(self.part_file.position_with(work.effects.lines))
        found = self.mode.position(work)
        if found is None and self.step.withholds and self.position.value is not None:
            return msgspec.json.encode(self.position.value)  # of the part file that waits
        return found

    def settled(self, work: IntervalWork) -> None:
        self.watermarks.settled(work)
        self.commits.durable_n = work.n
        self.counters.settled(work.n)
        self.timers.settled(work.n)
        self.turns.forget(work.items)
        if work.effects.settled:
            self.requests.settled(one.id for one in work.effects.settled)
        self.mode.durable(work)

    # -- reports ------------------------------------------------------------

    def report(self, watermark: int) -> WatermarkReport:
        idle = self.source_task is not None and self.source_task.idle
        return WatermarkReport(self.step.id, *self.slots, self.commits.sequencer, watermark, idle)

    def figures(self) -> dict[str, Any]:
        """Sizes of its queue and state, and its source's flow, for the heartbeat."""
        found: dict[str, Any] = {
            "queue": waiting(self),
            "state_bytes": 0 if self.states is None else self.states.size,
        }
        if self.lane is not None and (work := self.lane.at_work(self)).keys:
            oldest = None if work.oldest is None else shown_key(work.oldest)
            found["at_work"] = {"keys": work.keys, "oldest": oldest, "seconds": work.seconds}
        found |= self.turns.figures()
        flow = None if self.source_task is None else self.source_task.flow()
        if flow is not None:
            found["flow"] = flow._asdict()
        return found

    @property
    def is_in_motion(self) -> bool:
        """Whether records are queued, running, or sent and un-ACKed."""
        running = self.dedup is not None and self.dedup.in_flight
        return bool(self.intake.length or running) or not self.logs.are_drained

    def is_idle(self, now: int) -> bool:
        """Whether nothing is queued, due, running, un-ACKed, or waiting to be stored."""
        return (
            not self.intake.length
            and not self.timers.has_due(now)
            and not self.backlog
            and not self.dirty
            and self.mode.is_empty
            and self.logs.are_drained
            and self.turns.is_empty
            and not self.requests.taken
        )

    def is_finished(self, now: int) -> bool:
        """Whether it is idle and its low watermark is at the end of time."""
        return self.watermarks.durable == MAX_TIME and self.is_idle(now)


def waiting(interval: Interval) -> int:
    """Number of records received and not durable: queued, at work, or behind a key at work."""
    taken = () if interval.dedup is None else interval.dedup.in_flight.values()
    return interval.intake.length + sum(len(one) if type(one) is Chunk else 1 for one in taken)


class StoredPosition:
    """The stored position of an interval."""

    def __init__(self, claim: Claim) -> None:
        self.value = claim.position
        """The JSON object that the last durable commit stored; None: nothing."""
        sent_since = SourceProgress.stored(claim.position).sent_since
        self.since = claim.stamp if sent_since is None else sent_since
        """The earliest time at which an injector can have sent a row past the stored position."""
