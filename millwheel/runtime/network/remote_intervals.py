"""The intervals of other workers, and which worker owns each.

A record goes to the interval that has its slot. Where that is not here, a stand-in
(`millwheel.runtime.network.remote`) takes its place among the destinations of its step, keeps the records
that wait to be sent, and knows the worker that they go to. Only the store says which worker that is: it is
asked every second, and at once when a worker says something that the last answer does not know of
(`millwheel.runtime.network.trust`).
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

from millwheel.model import MAX_TIME, Delivery
from millwheel.runtime.environment import Environment
from millwheel.runtime.interval.exchange import Exchange
from millwheel.runtime.interval.interval import Interval
from millwheel.runtime.interval.routing import NOBODY, Destination, Step
from millwheel.runtime.interval.watermark_publisher import WatermarkPublisher
from millwheel.runtime.network.frames import IntervalReport
from millwheel.runtime.network.peers import Peers
from millwheel.runtime.network.remote import Remote, in_order
from millwheel.runtime.network.sender import Sender
from millwheel.runtime.network.trust import Trust, Word
from millwheel.runtime.process.lease import Lease
from millwheel.store.port import PlacedInterval, Placement
from millwheel.timers.watermark import WatermarkReport

LAST_WORD = (1 << 63) - 1
"""A sequencer above all: nothing that is still on its way counts after it."""


class RemovedStep:
    """Stands in the place of a removed computation's intervals: records sent there are finished."""

    id = NOBODY
    is_here = False
    queued = 0

    def __init__(self, exchange: Exchange, step: Step) -> None:
        self._exchange = exchange
        self._came: list[Delivery[Any]] = []
        self.slots = (0, step.slots)
        self.intake = self

    def append(self, delivery: Delivery[Any]) -> None:
        """One more; it is acknowledged when its sender has noted that it was sent."""
        if not self._came:
            asyncio.get_running_loop().call_soon(self._acknowledge)
        self._came.append(delivery)

    def _acknowledge(self) -> None:
        came, self._came = self._came, []
        self._exchange.acknowledge(came)

    def insert(self, deliveries: Iterable[Delivery[Any]]) -> None:
        """Records that were queued somewhere else until now."""
        for delivery in deliveries:
            self.append(delivery)


class RemoteIntervals:
    """The intervals that are not here, as this worker sees them.

    Args:
        refused: counts frames that were not taken, by reason.
        pause: pauses the injectors of these computations, and no others.
    """

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
        """Called when the store's answer has been placed."""
        self.out_of_touch: frozenset[str] = frozenset()
        """The workers that share the pipeline, if this one cannot since it does not reach them."""
        self._stand_ins: dict[int, Remote] = {}
        """By interval."""
        sender.use(self._stand_ins)
        self.trust = Trust()
        self._look = 0
        """The number of the look at the store whose result is being placed."""
        self.look_up_wanted = asyncio.Event()
        """Who owns what should be read again soon."""

    def remotes(self) -> Iterable[Remote]:
        """What stands here for intervals that are not."""
        return self._stand_ins.values()

    def remote(self, interval_id: int) -> Remote | None:
        """What stands here for an interval that is not."""
        return self._stand_ins.get(interval_id)

    def stand_in(self, interval: Interval) -> Remote:
        """What stands for an interval from the moment when it leaves."""
        found = self._stand_ins.get(interval.id)
        if found is not None and found.slots == interval.slots:
            return found  # it was leaving, and is lost
        return self._stand_in(interval.step, interval.id, interval.slots)

    def _stand_in(self, step: Step, id_: int, slots: tuple[int, int]) -> Remote:
        remote = self._stand_ins[id_] = Remote(self._sender, step, id_, slots)
        return remote

    def forget_stand_in(self, remote: Remote) -> list[Delivery[Any]]:
        """The interval is here now: gives the records that waited for it."""
        self._stand_ins.pop(remote.id, None)
        return remote.take_out()

    def forget_sent(self, logs: set[int]) -> None:
        """Records of these logs are not for this worker to send, or will be sent again."""
        for remote in self.remotes():
            for log in logs & remote.streams.keys():
                del remote.streams[log]

    def look_up(self) -> None:
        """Request a placement refresh: the owner of an interval may be another one by now."""
        self.look_up_wanted.set()

    async def look_around(self) -> Placement:
        """Read from the store which workers there are and what they own, and send records there.

        Skip the update while our lease may have expired and intervals are still here: others may
        have cut these, and what waits in them has to come before what is sent from now on (I14).
        """
        steps = self._exchange.steps
        look = self.trust.begin_look()
        placement = await self._env.store.read_placement()
        for computation in placement.removed & steps.keys():
            self._take_away(steps[computation])
        if self._lease.left > 0 or not self._exchange.intervals:
            self._look = look
            self.place(placement)
        return placement

    def place(self, placement: Placement) -> None:
        """Take over what the store says of other workers and of all intervals."""
        env, exchange = self._env, self._exchange
        steps = exchange.steps
        self.trust.learn(placement, self._look)
        self._pause(placement.paused)
        self._peers.meet(
            {w.id: w.address for w in placement.workers if w.id != env.worker and w.address}
        )
        of: dict[int, list[Destination]] = {step: [] for step in steps}
        before = dict(self._stand_ins)
        self._stand_ins.clear()
        for row in placement.intervals:
            step = steps.get(row.computation)
            if step is not None:
                of[step.id].append(exchange.held(row.id) or self._place(step, row, before))
        for step_id, destinations in of.items():
            step = steps[step_id]
            step.arrange([RemovedStep(exchange, step)] if step.removed else destinations)
        self._share_out(before.values())
        for worker, kept in self.trust.take_kept():
            for looks, report in kept:
                self._weigh(worker, report, looks)
        self.on_placed()
        env.check_finished()

    def _place(self, step: Step, row: PlacedInterval, known: dict[int, Remote]) -> Remote:
        """What stands for an interval that is not here: the one that is `known`, if it is no
        other interval by now."""
        slots = (row.slot_from, row.slot_to)
        found = known.get(row.id)
        if found is not None and found.slots == slots:
            remote = self._stand_ins[row.id] = known.pop(row.id)
        else:
            remote = self._stand_in(step, row.id, slots)
        if row.sequencer >= remote.sequencer:
            owner = None if row.lease_over or row.owner == self._env.worker else row.owner
            remote.belongs_to(owner, row.sequencer)
        return remote

    def _share_out(self, cut: Iterable[Remote]) -> None:
        """Records for intervals that were split or merged go by their slots to those that have
        these now: of each log in its order, before anything newer (I14)."""
        waiting = [delivery for remote in cut for delivery in remote.take_out()]
        self._exchange.send(sorted(waiting, key=in_order))

    def hear(self, worker: str, reports: Iterable[IntervalReport]) -> None:
        """Take the low watermarks that another worker has stored for intervals that it owns."""
        for report in reports:
            self._weigh(worker, report, self.trust.looks)
        self._env.check_finished()

    def _weigh(self, worker: str, report: IntervalReport, looks: int) -> None:
        """Take a report if the store says that the worker owns the interval; ask the store if what
        it said last does not decide.

        Args:
            looks: how many looks at the store had begun when the report came.
        """
        trust = self.trust
        id_, computation, low, high, sequencer, watermark, idle, percentiles = report
        if computation not in self._exchange.steps:
            return  # of a graph that grew since we started
        word = trust.owns(worker, id_, sequencer)
        if word is Word.NEW and not trust.is_settled(looks):
            self.look_up()
            if trust.keep(worker, report, looks):
                return
        if word is not Word.TRUE or not trust.fits(report):
            self._refused["report"] += 1
            return
        self._publisher.take_report(
            WatermarkReport(computation, low, high, sequencer, watermark, idle)
        )
        for percentile, early in percentiles.items():
            of_percentile = WatermarkReport(computation, low, high, sequencer, early, idle)
            self._publisher.take_percentile(percentile, of_percentile)

    def _take_away(self, step: Step) -> None:
        """A computation was removed: nobody waits for it, and what it has here goes.

        Its intervals are gone from the store, so that the next commit of each is refused, and
        who wrote it lets go: the one way there is out of an interval that is not one's own.
        """
        if step.removed:
            return
        step.removed = True
        self._env.log.info("computation_removed", computation=step.name)
        end = WatermarkReport(step.id, 0, step.slots, LAST_WORD, MAX_TIME)
        self._publisher.take_report(end)
        for percentile in self._publisher.percentiles:
            self._publisher.take_percentile(percentile, end)
        for interval in self._exchange.of(step.id):
            interval.touch(urgent=True)
