"""One key interval owned by this worker: queue, state, timers, dedup, logs, watermarks.

Ownership of an interval is a small protocol::

    FREE ──claim──▶ HELD ──release──▶ FREE
                     │ fenced
                     ▼
                   FENCED            (another owner's sequencer is higher: let go)

    HELD ──claim──▶ HELD             (claiming one's own again settles an unknown commit)
"""

from __future__ import annotations

import asyncio
import enum
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from millwheel.addresses import CELL_MARK
from millwheel.codec import decode_key
from millwheel.context import BLOOM_MAYBES, DUPLICATES_DROPPED, REPLAYS, WEAK_CHANGED, TimerIdentity
from millwheel.errors import InvariantBroken
from millwheel.model import MAX_TIME, MIN_TIME, Delivery, Firing, Key, Timer
from millwheel.runtime.interval.broadcast_tables import SharedTables
from millwheel.runtime.interval.dedup import Dedup
from millwheel.runtime.interval.key_state import KeyState, StateCache
from millwheel.runtime.interval.part_files import PartFile
from millwheel.runtime.interval.routing import Step
from millwheel.runtime.interval.sent_log import SentLog
from millwheel.runtime.lane.open_commit import IntervalWork, Item
from millwheel.runtime.modes.ack_chain import AckChain
from millwheel.runtime.modes.batches import Bundling, Numbering, encoded
from millwheel.runtime.modes.tree_roots import Entry
from millwheel.runtime.process.load import Workload
from millwheel.settings import Settings
from millwheel.store.port import Claim, DeadLetter, TimerChange, TimerPlace
from millwheel.timers.holds import Holds
from millwheel.timers.percentile import Percentile
from millwheel.timers.queue import Pending, TimerQueue
from millwheel.timers.watermark import Report

if TYPE_CHECKING:
    from millwheel.runtime.source.source_task import SourceTask


class Ownership(enum.Enum):
    """Whose an interval is, as far as this worker knows."""

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


class Lane(Protocol):
    """The runner and committer that work on an interval, as the interval's rooms see them."""

    wake: asyncio.Event
    """Set when there may be something to run."""

    def touch(self, interval: Interval, *, urgent: bool) -> None:
        """Store something of the interval with the next commit, or with one of its own after a pause."""

    def give_up_row(self, interval: Interval, offset: int, letter: DeadLetter) -> None:
        """Store a bad row of a source as a dead letter."""

    async def settled(self) -> None:
        """Wait until some work of the lane has ended."""

    async def drain(self, interval: Interval) -> None:
        """Wait until nothing of the interval runs or waits for a commit."""

    def resume(self, interval: Interval) -> None:
        """Take work of the interval again: its hand-over was cancelled."""

    def remove(self, interval: Interval) -> None:
        """Forget a drained interval."""


class Interval:
    """A range of slots of one step (or a partition of an injector) and its owner's soft state.

    Everything here can be rebuilt from the store by `restore`; it lives as long as the
    claim (paper 6.2, soft state).
    """

    is_here = True

    def __init__(
        self, step: Step, claim: Claim, settings: Settings, numbering: Numbering | None = None
    ) -> None:
        self.step = step
        self._numbering = numbering or Numbering()
        self.id = claim.interval.id
        self.slots = (claim.interval.slot_from, claim.interval.slot_to)
        self.name = f"{step.name}[{self.slots[0]}:{self.slots[1]}]"
        self.ownership = Ownership.FREE
        self.settings = settings
        self.intake: deque[Delivery[Any]] = deque()
        self.looked_ahead = 0
        """Of so many at its head the states are here, or have been asked for, as far as is known."""
        self.backlog: dict[bytes, list[Item] | None] = {}
        """Keys that are running, or waiting in user code, with what came for them meanwhile."""
        self.lane: Lane | None = None
        """The lane that works on it; None before it takes records, and after it is given up."""
        self.dirty = False
        self.leaving = False
        """It is being handed over: what it has is finished, nothing more is taken."""
        self.folding = asyncio.Lock()
        """Whoever holds it folds the interval."""
        self.drained = False
        """It is finished, and nothing more is stored either: what is acknowledged or promised from now
        on its next owner finds out anew."""
        self.states: StateCache = None  # type: ignore[assignment]
        self.tables: SharedTables | None = None
        """What its keys share, if its computation reads anything by broadcast."""
        self.state_of: Callable[[Key, bytes, int], KeyState]
        """The state of a key, or of a cell, loaded or not."""
        self.dedup: Dedup = None  # type: ignore[assignment]
        self.alone_at = float("-inf")
        """When it last asked, or will ask, for a commit of its watermark alone, by the event loop's
        clock."""
        self.part_file: PartFile | None = None
        self.source_task: SourceTask | None = None
        """Of an injector: what reads its partition, or looks for partitions."""
        self.bundling: Bundling | None = None
        """Its records come in numbered bundles."""
        self.workload = Workload(self.slots)
        readers = {r.step.id: r.step for route in step.routes.values() for r in route.readers}
        self.entry = (
            Entry(self, step.node.replay_seconds, readers.values()) if step.node.is_tree else None
        )
        """Of a tree computation: the records from outside of the stretch that it tracks."""
        self._events: dict[str, int] = {}
        """What the commit on its way counts beside what its items decided: it has happened, and
        does not happen again if the commit fails."""
        self._events_of = 0
        """That commit."""
        self._uncounted: dict[str, int] = {}
        """Of commits that have failed."""
        self.restore(claim)

    def restore(self, claim: Claim) -> None:
        """Start from what is stored, and from nothing else."""
        self.transition("claim")
        if claim.n < self._events_of:
            _add(self._uncounted, self._events)
            self._events = {}
        self.sequencer = claim.interval.sequencer
        self.n = claim.n
        """The last commit put together."""
        self.durable_n = claim.n
        """The last commit known to be durable."""
        self.last_bucket = claim.bucket
        self.folded = claim.folded
        self.changed_since_fold = len(claim.states)
        self.input_watermark = claim.input_watermark
        """Its timers fire by it and its code goes by it."""
        self.exact_watermark = claim.low_watermark
        """No record that is on time comes with an older timestamp; `input_watermark` is ahead of
        it where the computation goes by a percentile."""
        self.promised = claim.low_watermark
        """The low watermark of the last commit put together: the next one follows it or fails."""
        self.durable = claim.low_watermark
        self.counters: dict[str, int] = dict(claim.counters)
        """Totals since deploy, up to the last commit put together."""
        self.durable_counters = msgspec.json.encode(claim.counters)
        """The same up to the last commit known to be durable, as JSON."""
        self.stored_position = claim.position
        self.stored_since = int((claim.position or {}).get("sent_since", claim.stamp))
        """Of an injector: the first instant at which a row past the stored position can have been
        sent."""
        self.holds = Holds()
        self.release: list[int] = []
        """Holds that the next commit takes away: of timers, and of what it gives its place in the log."""
        self.state_holds = Holds()
        """What user code holds the watermark at."""
        self.state_release: list[int] = []
        self.percentiles = {
            percentile: Percentile(
                claim.percentiles.get(percentile, MIN_TIME), self.holds, self.state_holds
            )
            for percentile in self.step.node.percentiles
        }
        limit = self.settings.timers_in_memory
        self.timers: dict[str, TimerQueue] = {
            "watermark": TimerQueue(limit, self.holds, self.release),
            "wall": TimerQueue(limit, None, []),
            "hold": TimerQueue(limit, self.state_holds, self.state_release),
        }
        """Timers by kind; state holds are kept like timers that never fire."""
        self.firings = 0
        """Due timers taken from the queues that have not run yet."""
        self.taken: dict[tuple[bytes, str, str], Firing] = {}
        """Due timers that have not run yet; one that is replaced or cancelled leaves."""
        for kind, queue in self.timers.items():
            queue.durable = claim.n
            changes = [change for change in claim.timers if change.kind == kind]
            self.add_timers(kind, None, changes, more=kind in claim.more_timers)
        self.logs: list[SentLog] = []
        percentiles = tuple(self.percentiles.values())
        for row in claim.logs:
            first, runs = claim.acked.get(row.id, (0, []))
            self.logs.append(
                SentLog(
                    row.id,
                    self.holds,
                    percentiles=percentiles,
                    source=row.source is not None,
                    inherited=row.source is None,
                    first=first,
                    runs=runs,
                )
            )
        if claim.new_log:
            self.logs.append(SentLog(claim.new_log, self.holds, percentiles=percentiles))
        self.log = self.logs[-1]
        node = self.step.node
        self.chain = (
            AckChain(self.logs, node.straggler_seconds, keeps_percentiles=bool(self.percentiles))
            if node.is_weak
            else None
        )
        """Of a computation with weak productions: the inputs that wait for what came of them."""
        self.rows_written = 0
        self.encoded_counters = msgspec.json.encode(self.counters)
        if self.step.node.bundles is not None:
            before = None if self.bundling is None else self.bundling.refusal
            self.bundling = Bundling(
                self.step.node.bundles,
                claim.position,
                before,
                most_bytes=self.settings.bundle_bytes,
                numbering=self._numbering,
            )

    def attach(
        self, states: StateCache, tables: SharedTables | None, dedup: Dedup, claim: Claim
    ) -> None:
        """Take the parts that need the store, and the tail of the state."""
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

    def requeue(self, apart: set[int]) -> None:
        """Put what was received and is not durable back into the queue, in its order.

        Those whose identity is in `apart` are left out: somebody runs them by hand.
        """
        self.backlog.clear()
        if self.dedup is None:
            return
        if self.chain is not None:
            self.chain.clear()
        again = [d for d in self.dedup.start_over() if id(d) not in apart]
        for delivery in again:
            self.step.renew(delivery)
        self.intake.extendleft(reversed(again))

    def forget_queued(self, logs: set[int]) -> None:
        """Take away what is queued of `logs`: their sender is about to send it all again, but for
        what it sends only once."""
        if self.step.node.at_most_once:
            return
        self.intake = deque(d for d in self.intake if d.log not in logs)

    def retake(self, items: list[Item]) -> list[Item]:
        """Take items by hand that were requeued `apart`: they are in flight again.

        A timer is taken from the queue; one that is no longer set is left out.
        """
        taken: list[Item] = []
        for item in items:
            if isinstance(item, Delivery):
                self.dedup.take_by_hand(item)
                taken.append(item)
                continue
            name = (item.key_text, item.timer.kind, item.timer.tag)
            queue = self.timers[item.timer.kind]
            pending = queue.take((item.key_text, item.timer.tag), item.timer.micros)
            if pending is not None:
                again = Firing(item.key, item.key_text, item.slot, item.timer, pending.hold)
                self.taken[name] = again
                self.firings += 1
                taken.append(again)
        return taken

    def transition(self, event: str) -> None:
        """Move along the ownership protocol.

        Raises:
            InvariantBroken: the event is illegal in this state.
        """
        allowed = TRANSITIONS[self.ownership]
        if event not in allowed:
            raise InvariantBroken(f"{self.name}: {event!r} while {self.ownership.value}")
        self.ownership = allowed[event]

    # -- timers -------------------------------------------------------------------

    def add_timers(
        self, kind: str, after: TimerPlace | None, changes: list[TimerChange], *, more: bool
    ) -> None:
        """Take in a page of stored timers, those `after` a place."""
        rows = []
        for change in changes:
            assert change.due is not None
            assert change.hold is not None
            timer = Pending(change.due, change.hold, decode_key(change.key), change.slot)
            rows.append(((change.key, change.tag), timer))
        self.timers[kind].add_page(after, rows, more=more)

    def lacking_timers(self, now: int) -> list[str]:
        """The kinds of which the store holds timers that may be due, and none is here."""
        watermark = self.input_watermark
        return [
            kind
            for kind, queue in self.timers.items()
            if not queue.is_whole and queue.lacks(now + 1 if kind == "wall" else watermark)
        ]

    def set_timer(self, name: TimerIdentity, timer: tuple[int, int, Key, int] | None) -> None:
        """Set, replace or (None) forget a timer; its old hold goes with the next commit."""
        key_text, kind, tag = name
        self.taken.pop(name, None)
        n = self.n + 1
        if timer is None:
            self.timers[kind].cancel((key_text, tag), n)
            return
        due, hold, key, slot = timer
        self.timers[kind].put((key_text, tag), due, hold, key, slot, n)
        if self.firings and (waiting := self.backlog.get(key_text)):
            self._put_off(waiting, kind, due)

    def _put_off(self, waiting: list[Item], kind: str, due: int) -> None:
        """Due timers that wait behind their key fire after one that was just set for an
        earlier instant: they go back to the queue (I6)."""
        for item in waiting:
            if (
                isinstance(item, Firing)
                and item.timer.kind == kind
                and item.timer.micros > due
                and self.still_due(item)
            ):
                # Not by `set_timer`, which would put off in turn what is later than this one:
                # that waits here as well, and there may be thousands.
                name = (item.key_text, item.timer.tag)
                del self.taken[(item.key_text, kind, item.timer.tag)]
                self.timers[kind].put(
                    name, item.timer.micros, item.hold, item.key, item.slot, self.n + 1
                )

    def due_timers(self, now: int, limit: int) -> list[Firing]:
        """Take up to `limit` timers that are due, in order of time.

        A watermark timer at T is due when the input watermark is past T; a wall timer
        when the clock has reached T.
        """
        firings = [
            Firing(p.key, name[0], p.slot, Timer(name[1], "watermark", p.due), p.hold)
            for name, p in self.timers["watermark"].take_due(self.input_watermark, limit)
        ]
        firings += [
            Firing(p.key, name[0], p.slot, Timer(name[1], "wall", p.due), p.hold)
            for name, p in self.timers["wall"].take_due(now + 1, limit - len(firings))
        ]
        self.firings += len(firings)
        for firing in firings:
            self.taken[(firing.key_text, firing.timer.kind, firing.timer.tag)] = firing
        return firings

    def put_back(self, item: Item) -> None:
        """Keep an item until the key that is running has come to an end."""
        waiting = self.backlog[item.key_text]
        if waiting is None:
            self.backlog[item.key_text] = [item]
        else:
            waiting.append(item)

    def fired(self, firing: Firing) -> None:
        """A due timer has run (or was overtaken): the next commit lets go of its hold."""
        self.firings -= 1
        if self.still_due(firing):
            del self.taken[(firing.key_text, firing.timer.kind, firing.timer.tag)]
        if firing.timer.kind == "watermark":
            self.release.append(firing.hold)

    def still_due(self, firing: Firing) -> bool:
        """Whether a due timer was neither replaced nor cancelled before its turn came."""
        name = (firing.key_text, firing.timer.kind, firing.timer.tag)
        return self.taken.get(name) is firing

    def next_wall_timer(self) -> int | None:
        """When the clock will make a timer due."""
        return self.timers["wall"].next_due()

    def next_alarm(self) -> int | None:
        """When the clock will make anything due: a timer, or a bundle that is not full."""
        timer = self.next_wall_timer()
        if self.bundling is None or self.leaving:
            return timer
        due = self.bundling.due_at()
        return min((at for at in (timer, due) if at is not None), default=None)

    def has_due(self, now: int) -> bool:
        """Whether any timer is due."""
        due = self.timers["watermark"].next_due()
        if due is not None and due < self.input_watermark:
            return True
        due = self.timers["wall"].next_due()
        return due is not None and due <= now

    # -- credits and watermarks ------------------------------------------------------

    def may_send(self, decided: int = 0) -> bool:
        """Whether this interval has credits left: I8, one log at a time.

        Args:
            decided: productions that have no number yet.
        """
        settings = self.settings
        most = settings.max_unacked_records - decided
        return all(
            log.next_seq - log.first - log.absent < most
            and log.unacked_bytes < settings.max_unacked_bytes
            for log in self.logs
        ) and (self.entry is None or self.entry.has_room(settings.max_unacked_records))

    @property
    def queued(self) -> int:
        """How many records wait in its queue."""
        return len(self.intake)

    def hear(self, watermark: int) -> None:
        """Nothing on time comes in any more that is older than `watermark`."""
        self.exact_watermark = max(self.exact_watermark, watermark)
        self.input_watermark = max(self.input_watermark, watermark)

    def hear_percentile(self, percentile: float, watermark: int) -> None:
        """Little comes in any more that is older than `watermark`."""
        kept = self.percentiles[percentile]
        kept.input = max(kept.input, watermark)
        if self.step.node.percentile == percentile:
            self.input_watermark = max(self.input_watermark, watermark)

    def output_watermark(self) -> int:
        """What may be promised now: LW = min(IW, everything held), and never back.

        At the end of time, when the last timer has fired, nothing is left that could release what
        user code still holds.
        """
        least = min(self.exact_watermark, self.holds.least())
        if least < MAX_TIME:
            least = min(least, self.state_holds.least())
        return max(self.promised, least)

    def promise_percentiles(self) -> dict[float, int]:
        """Promise, beside `promised`, what may be of the percentile low watermarks."""
        for kept in self.percentiles.values():
            kept.promised = kept.output(self.promised)
        return {percentile: kept.promised for percentile, kept in self.percentiles.items()}

    def report(self, watermark: int) -> Report:
        """What others are told of its low watermark."""
        idle = self.source_task is not None and self.source_task.idle
        return Report(self.step.id, *self.slots, self.sequencer, watermark, idle)

    def touch(self, *, urgent: bool) -> None:
        """Have something of it stored: soon if `urgent`, as readers wait for a low watermark."""
        if self.lane is None:
            self.dirty = True
        else:
            self.lane.touch(self, urgent=urgent)

    def wake(self) -> None:
        """Have its lane look for work."""
        if self.lane is not None:
            self.lane.wake.set()

    def has_news(self) -> bool:
        """Whether more may be promised than is stored."""
        exact = self.output_watermark()
        return exact > self.durable or any(
            kept.output(exact) > kept.durable for kept in self.percentiles.values()
        )

    def settled(self, work: IntervalWork) -> None:
        """A commit is durable, with what it promised."""
        self.durable = work.low_watermark
        for percentile, watermark in work.percentiles.items():
            self.percentiles[percentile].durable = watermark
        self.durable_n = work.n
        if self.bundling is not None:
            self.bundling.settled(work.n)
        self.durable_counters = self.encoded_counters
        for queue in self.timers.values():
            queue.durable = work.n

    def floor(self, stamp: int) -> int:
        """Nothing produced before it is ever sent again (I9)."""
        floors = [f for f in (log.floor() for log in self.logs) if f is not None]
        return min(floors, default=stamp)

    def encoded_position(self, work: IntervalWork) -> bytes | None:
        """What else the interval's owner must know to go on from the commit that is being put
        together."""
        if self.source_task is not None:
            return msgspec.json.encode(self.source_task.position())
        if self.part_file is not None:
            return msgspec.json.encode({"length": self.part_file.length_with(work.effects.lines)})
        if self.bundling is not None:
            return encoded(self.bundling.position(self.n, delivers=work.delivers))
        return None

    def acked_state(self) -> bytes:
        """What is stored of ACKs: per live log."""
        runs = self.settings.max_acked_runs
        return msgspec.json.encode({str(log.id): log.state(runs) for log in self.logs})

    def keep_back(self, micros: int) -> None:
        """Promise no more than this before `let_up`: user code has produced it, and goes on."""
        self.holds.add(micros)

    def let_up(self, micros: int) -> None:
        """It stands in the log, or never was."""
        self.holds.remove(micros)

    def let_go(self) -> None:
        """Take away the holds that the commit being put together takes away."""
        for holds, release in (
            (self.holds, self.release),
            (self.state_holds, self.state_release),
        ):
            for hold in release:
                holds.remove(hold)
            release.clear()

    def count(self, counters: dict[str, int]) -> None:
        """Add to the totals that go with the commit that is being put together, with what dedup
        and the trees have counted."""
        events, self._uncounted = self._uncounted, {}
        if self.dedup is not None and self.dedup.maybes | self.dedup.dropped:
            _add(events, {BLOOM_MAYBES: self.dedup.maybes, DUPLICATES_DROPPED: self.dedup.dropped})
            self.dedup.maybes = self.dedup.dropped = 0
        if self.dedup is not None and self.dedup.changed:
            _add(events, {WEAK_CHANGED: self.dedup.changed})
            self.dedup.changed = 0
        if self.entry is not None and (replayed := self.entry.take_replayed()):
            _add(events, {REPLAYS: replayed})
        self._events, self._events_of = events, self.n
        if counters or events:
            _add(self.counters, counters)
            _add(self.counters, events)
            self.encoded_counters = msgspec.json.encode(self.counters)

    @property
    def is_in_motion(self) -> bool:
        """Whether records are queued, running, or on their way from here."""
        running = self.dedup is not None and self.dedup.in_flight
        return bool(self.intake or running) or not all(log.drained for log in self.logs)

    def is_idle(self, now: int) -> bool:
        """Nothing queued, due, running, on its way, or waiting to be stored."""
        return (
            not self.intake
            and not self.has_due(now)
            and not self.backlog
            and not self.dirty
            and (self.bundling is None or self.bundling.is_empty)
            and all(log.drained for log in self.logs)
        )

    def is_finished(self, now: int) -> bool:
        """Idle at the end of time."""
        return self.durable == MAX_TIME and self.is_idle(now)


def _add(counters: dict[str, int], more: dict[str, int]) -> None:
    for name, by in more.items():
        counters[name] = counters.get(name, 0) + by
