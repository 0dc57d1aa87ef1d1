"""The intervals that a worker holds, and their exchange of records, ACKs, and room in queues.

A record goes to the interval that owns its slot: into a queue here, or to the port of another
worker's interval (`millwheel.runtime.network.peer_ports`). An ACK goes back to the log of its
record, here or elsewhere, or to the tree of a record that is in no log (decision 32).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from millwheel.core.chunk import Chunk
from millwheel.core.model import Delivery
from millwheel.errors import InvariantBroken
from millwheel.runtime.environment import Environment
from millwheel.runtime.interval.interval import Interval, Ownership
from millwheel.runtime.interval.observer import Observer
from millwheel.runtime.interval.ports import SourcePort
from millwheel.runtime.interval.sent_log import SentLog
from millwheel.runtime.interval.step import Step
from millwheel.runtime.routes.destinations import Destination
from millwheel.runtime.routes.routes import NOBODY


class RemoteLogs(Protocol):
    def acknowledge(self, log: int, receiver: int, seqs: Iterable[int]) -> None:
        """Send an ACK to the owner of a log."""


class Trees(Protocol):
    """The trees of records that are in no log."""

    def report(self, token: int, xor: int) -> None:
        """Report an edge of a tree as done."""

    def receive(self, step: Step, deliveries: Iterable[Delivery[Any]], peer: str) -> int:
        """Take records of trees from another worker; gives how many were dropped."""

    def receive_reports(self, reports: Iterable[tuple[int, int]]) -> None:
        """Take another worker's reports on trees that begin here."""


class Exchange:
    """The intervals, steps and logs of one worker since its last start."""

    def __init__(self, env: Environment, observer: Observer) -> None:
        self._env = env
        self.observer = observer
        self.steps: dict[int, Step] = {}
        """The nodes of the graph by stored id."""
        self.logs: dict[int, tuple[SentLog, Interval]] = {}
        """Logs of intervals here, by id."""
        self.intervals: list[Interval] = []
        self._of: dict[int, list[Interval]] = {}
        """Intervals here by computation."""
        self._by_id: dict[int, Interval] = {}
        self.remote: RemoteLogs | None = None
        """None: this worker is alone."""
        self.trees: Trees
        self.wake = asyncio.Event()
        """Set when there may be something to run: records, due timers, credits, room in a
        commit."""

    # -- the intervals here -------------------------------------------------------------

    def add(self, interval: Interval) -> None:
        self.intervals.append(interval)
        self._of.setdefault(interval.step.id, []).append(interval)
        self._by_id[interval.id] = interval
        self.observer.interval_taken(interval)

    def remove(self, interval: Interval) -> None:
        """An interval was given up or lost."""
        for log in interval.logs:
            self.logs.pop(log.id, None)
        self.intervals.remove(interval)
        self._of[interval.step.id].remove(interval)
        del self._by_id[interval.id]
        self.observer.interval_gone(interval)

    def of(self, computation: int) -> list[Interval]:
        return self._of.get(computation, [])

    def knows(self, interval_id: int) -> bool:
        """Whether an interval is here, including while it drains."""
        return interval_id in self._by_id

    def get(self, interval_id: int) -> Interval | None:
        """An interval here, including while it drains."""
        return self._by_id.get(interval_id)

    def held(self, interval_id: int) -> Interval | None:
        """An interval that takes records here."""
        interval = self._by_id.get(interval_id)
        return None if interval is None or interval.leaving else interval

    def owns(self, interval: Interval) -> bool:
        """False while the interval is being released."""
        return interval.ownership is Ownership.HELD and self._by_id.get(interval.id) is interval

    @property
    def source_tasks(self) -> list[SourcePort]:
        return [i.source_task for i in self.intervals if i.source_task is not None]

    def shrink_caches(self) -> None:
        """Keep the state caches within `cache_bytes`."""
        limit = self._env.settings.cache_bytes
        total = sum(i.states.size for i in self.intervals if i.states is not None)
        if total <= limit:
            return
        share = limit // max(1, len(self.intervals))
        for interval in self.intervals:
            if interval.states is not None:
                interval.states.evict(share, interval.backlog.__contains__)

    # -- records ------------------------------------------------------------------------

    def send(self, productions: Iterable[Chunk | Delivery[Any]]) -> None:
        """Send chunks and records to their readers, for the first time or again.

        Other code that queues records has to set `wake` as well: if these use all credits, no other
        event sets it.
        """
        sent = False
        for item in productions:
            if item.receiver == NOBODY:
                continue
            step = self.steps[item.receiver]
            if isinstance(item, Chunk):
                for destination, part in step.cut(item):
                    destination.intake.append(part)
            else:
                step.interval_of(item.slot).intake.append(item)
            sent = True
        if sent:
            self.wake.set()

    def send_on(self, step: Step, deliveries: Iterable[Delivery[Any]]) -> None:
        """Send records of a gone interval to the present owners of their slots, ahead of newer
        ones: only those of logs here or of no log, since each owner sends its log again."""
        of: dict[Destination, list[Delivery[Any]]] = {}
        for delivery in deliveries:
            if delivery.in_tree or delivery.log in self.logs:
                of.setdefault(step.interval_of(delivery.slot), []).append(delivery)
        for destination, waiting in of.items():
            if destination.is_here:
                self.send(waiting)
            else:
                destination.insert(waiting)

    def made_room(self, reader: Step) -> None:
        """A queue of a computation is no longer full: wake upstream intervals that it has blocked
        (I8) and that no ACK will wake."""
        for interval in self.intervals:
            if interval.mode.awaits_room_of(reader.id):
                interval.wake()

    # -- acknowledgements ------------------------------------------------------------------

    def acknowledge(
        self, deliveries: Iterable[Delivery[Any]], chunks: Iterable[Chunk] = ()
    ) -> None:
        """The effects of these records are durable: acknowledge them to their senders (I1)."""
        by_sender: dict[tuple[int, int], list[int]] = {}
        log = receiver = -1
        seqs: list[int] = []
        for delivery in deliveries:
            if delivery.in_tree:
                self.trees.report(delivery.token, delivery.seq)
                continue
            if delivery.log != log or delivery.receiver != receiver:
                log, receiver = delivery.log, delivery.receiver
                seqs = by_sender.setdefault((log, receiver), [])
            seqs.append(delivery.seq)
        owners: dict[Interval, None] = {}
        arrived: list[tuple[tuple[int, int], Sequence[int]]] = [
            ((chunk.log, chunk.receiver), chunk.numbers) for chunk in chunks
        ]
        arrived += by_sender.items()
        for (log, receiver), numbers in arrived:
            found = self.logs.get(log)
            if found is not None:
                sent, owner = found
                self._arrived(sent, owner, receiver, numbers)
                owners[owner] = None
            elif self.remote is not None:
                self.remote.acknowledge(log, receiver, numbers)
            # otherwise the log was drained and retired: these are late copies
        self._credit(owners)

    def acknowledged(self, log: int, receiver: int, seqs: list[int]) -> None:
        """Records of a log here are durable on another worker. The courier has checked that they
        were sent there and were un-ACKed."""
        found = self.logs.get(log)
        if found is None:
            return
        sent, owner = found
        self._arrived(sent, owner, receiver, seqs)
        self._credit([owner])

    def _arrived(self, sent: SentLog, owner: Interval, receiver: int, seqs: Sequence[int]) -> None:
        """Note ACKs of a log here; inputs that waited for them may be finished."""
        sent.acknowledge(seqs, self._reader_bit(owner, receiver) if sent.source else 0)
        if sent is owner.log and (done := owner.mode.arrived(seqs)):
            self.finish(owner, done)

    def finish(self, interval: Interval, inputs: list[Delivery[Any]]) -> None:
        """Acknowledge inputs of a weak computation that are finished and had nothing to store."""
        interval.workload.records += len(inputs)
        self._env.processed += len(inputs)
        self.acknowledge(interval.dedup.landed([cause.id for cause in inputs]))
        interval.touch(urgent=False)

    def _credit(self, owners: Iterable[Interval]) -> None:
        for owner in owners:
            owner.touch(urgent=owner.watermarks.has_news())
            owner.wake()
            self.rows_acknowledged(owner)

    def rows_acknowledged(self, owner: Interval) -> None:
        if owner.source_task is not None:
            for seconds in owner.source_task.acknowledged():
                self.observer.rows_acknowledged(owner, seconds)

    @staticmethod
    def _reader_bit(owner: Interval, receiver: int) -> int:
        for route in owner.step.routes.values():
            for reader in route.readers:
                if reader.step.id == receiver:
                    return reader.bit
        raise InvariantBroken(f"{owner.name} never sent to computation {receiver}")
