"""The intervals of other workers, and the worker that owns each.

The owner is read from the store only: every second, and immediately when a worker's frame does not
fit the last placement.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

from millwheel.core.chunk import Chunk
from millwheel.core.model import MAX_TIME, Delivery
from millwheel.runtime.environment import Environment
from millwheel.runtime.exchange.exchange import Exchange
from millwheel.runtime.exchange.watermark_publisher import WatermarkPublisher
from millwheel.runtime.interval.interval import Interval
from millwheel.runtime.interval.step import Step
from millwheel.runtime.network.frames import IntervalReport
from millwheel.runtime.network.peers import Peers
from millwheel.runtime.network.remote import Remote, in_order
from millwheel.runtime.network.sender import Sender
from millwheel.runtime.network.trust import ClaimStatus, Trust
from millwheel.runtime.process.lease import Lease
from millwheel.runtime.routes.destinations import Destination
from millwheel.runtime.routes.routes import NOBODY
from millwheel.store.port.placement import PlacedInterval, Placement
from millwheel.timers.watermark import FIRST_SLOT, WatermarkReport

FINAL_SEQUENCER = (1 << 63) - 1
"""Above all others: no report that is still in flight counts after it."""


class RemovedStep:
    """Acknowledges all records for a removed computation."""

    id = NOBODY
    is_here = False
    queued = 0

    def __init__(self, exchange: Exchange, step: Step) -> None:
        self._exchange = exchange
        self._arrived: list[Delivery[Any]] = []
        self.slots = (0, step.slots)
        self.intake = self

    def append(self, item: Chunk | Delivery[Any]) -> None:
        """A record is acknowledged after its sender has noted that it was sent."""
        if not self._arrived:
            asyncio.get_running_loop().call_soon(self._acknowledge)
        self._arrived += item.apart() if isinstance(item, Chunk) else (item,)

    def _acknowledge(self) -> None:
        arrived, self._arrived = self._arrived, []
        self._exchange.acknowledge(arrived)

    def insert(self, deliveries: Iterable[Delivery[Any]]) -> None:
        for delivery in deliveries:
            self.append(delivery)


class RemoteIntervals:
    def __init__(
        self,
        env: Environment,
        exchange: Exchange,
        publisher: WatermarkPublisher,
        lease: Lease,
        peers: Peers,
        sender: Sender,
        refused: Counter[str],
        pause: Callable[[frozenset[int]], None],
    ) -> None:
        self._env = env
        self._exchange = exchange
        self._publisher = publisher
        self._lease = lease
        self._peers = peers
        self._sender = sender
        self._refused = refused
        self._pause = pause
        self.on_placed: Callable[[], None]
        self.out_of_touch: frozenset[str] = frozenset()
        """All other workers, if this one does not reach them and so cannot share the pipeline."""
        self.unowned = 0
        self._stand_ins: dict[int, Remote] = {}
        sender.use(self._stand_ins)
        self.trust = Trust()
        self._refresh = 0
        self.refresh_wanted = asyncio.Event()

    def remotes(self) -> Iterable[Remote]:
        return self._stand_ins.values()

    def remote(self, interval_id: int) -> Remote | None:
        return self._stand_ins.get(interval_id)

    def stand_in(self, interval: Interval) -> Remote:
        found = self._stand_ins.get(interval.id)
        if found is not None and found.slots == interval.slots:
            return found  # the interval was lost while it was draining
        return self._stand_in(interval.step, interval.id, interval.slots)

    def _stand_in(self, step: Step, id_: int, slots: tuple[int, int]) -> Remote:
        remote = self._stand_ins[id_] = Remote(self._sender, step, id_, slots)
        return remote

    def forget_stand_in(self, remote: Remote) -> list[Delivery[Any]]:
        """Returns the records that waited."""
        self._stand_ins.pop(remote.id, None)
        return remote.take_unacked()

    def forget_sent(self, logs: set[int]) -> None:
        """Drop the records of these logs: another worker sends them, or they will be sent again."""
        for remote in self.remotes():
            for log in logs & remote.streams.keys():
                del remote.streams[log]

    def request_refresh(self) -> None:
        self.refresh_wanted.set()

    async def refresh(self) -> Placement:
        """Skip the update while our lease may have expired and this worker still holds intervals:
        others may have split or merged these, and the records that wait in them must be sent before
        new ones (I14)."""
        steps = self._exchange.steps
        refresh = self.trust.begin_refresh()
        placement = await self._env.store.read_placement()
        for computation in placement.removed & steps.keys():
            self._remove(steps[computation])
        if self._lease.left > 0 or not self._exchange.intervals:
            self._refresh = refresh
            self.place(placement)
        return placement

    def place(self, placement: Placement) -> None:
        env, exchange = self._env, self._exchange
        steps = exchange.steps
        self.trust.learn(placement, self._refresh)
        self.unowned = sum(row.is_free for row in placement.intervals)
        self._pause(placement.paused)
        self._peers.connect_to(
            {w.id: w.address for w in placement.workers if w.id != env.worker and w.address}
        )
        of: dict[int, list[Destination]] = {step: [] for step in steps}
        before = dict(self._stand_ins)
        self._stand_ins.clear()
        for peer in placement.workers:
            if peer.is_blocked:
                self._peers.excuse(peer.id)
        for row in placement.intervals:
            step = steps.get(row.computation)
            if step is not None:
                of[step.id].append(exchange.held(row.id) or self._place(step, row, before))
        for step_id, destinations in of.items():
            step = steps[step_id]
            step.arrange([RemovedStep(exchange, step)] if step.removed else destinations)
            if step.node.injection is not None and step.node.injection.growing is not None:
                self._free_slots(step, destinations)
        self._reroute(before.values())
        for worker, kept in self.trust.take_kept():
            for refreshes, report in kept:
                self._judge_report(worker, report, refreshes)
        self.on_placed()
        env.check_finished()

    def _free_slots(self, step: Step, partitions: Iterable[Destination]) -> None:
        """Forget partitions that have ended and were deleted; their last reports may not have
        arrived.

        Not for the owner of the discovery, to which this placement may be older than a new
        partition.
        """
        kept = {partition.slots[0] for partition in partitions}
        if not any(interval.slots[0] < FIRST_SLOT for interval in self._exchange.of(step.id)):
            self._publisher.free(step.id, FIRST_SLOT, kept)

    def _place(self, step: Step, row: PlacedInterval, known: dict[int, Remote]) -> Remote:
        slots = (row.slot_from, row.slot_to)
        found = known.get(row.id)
        if found is not None and found.slots == slots:
            remote = self._stand_ins[row.id] = known.pop(row.id)
        else:
            remote = self._stand_in(step, row.id, slots)
        if row.sequencer >= remote.sequencer:
            owner = None if row.lease_over or row.owner == self._env.worker else row.owner
            remote.set_owner(owner, row.sequencer)
        return remote

    def _reroute(self, cut: Iterable[Remote]) -> None:
        """Send the records of split or merged intervals to the intervals that have their slots now.

        The records of a log stay in order, and precede its newer ones (I14).
        """
        waiting = [delivery for remote in cut for delivery in remote.take_unacked()]
        waiting.sort(key=in_order)
        self._exchange.send(waiting)

    def receive_reports(self, worker: str, reports: Iterable[IntervalReport]) -> None:
        for report in reports:
            self._judge_report(worker, report, self.trust.refreshes)
        self._env.check_finished()

    def _judge_report(self, worker: str, report: IntervalReport, refreshes: int) -> None:
        """If the last placement does not name the owner, wait for a refresh after `refreshes`."""
        trust = self.trust
        id_, computation, low, high, sequencer, watermark, idle = report
        if computation not in self._exchange.steps:
            return  # the graph grew after this worker's start
        status = trust.owns(worker, id_, sequencer)
        if status is ClaimStatus.UNKNOWN and not trust.is_settled(refreshes):
            self.request_refresh()
            if trust.keep(worker, report, refreshes):
                return
        if status is not ClaimStatus.CONFIRMED or not trust.fits(report):
            self._refused["report"] += 1
            return
        self._publisher.take_report(
            WatermarkReport(computation, low, high, sequencer, watermark, idle)
        )

    def _remove(self, step: Step) -> None:
        """The store has deleted the intervals, so their next commits are refused, which is the
        normal way to lose an interval."""
        if step.removed:
            return
        step.removed = True
        self._env.log.info("computation_removed", computation=step.name)
        end = WatermarkReport(step.id, 0, step.slots, FINAL_SEQUENCER, MAX_TIME)
        self._publisher.take_report(end)
        for interval in self._exchange.of(step.id):
            interval.touch(urgent=True)
