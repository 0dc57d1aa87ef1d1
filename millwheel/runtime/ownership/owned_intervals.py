"""The intervals this worker owns: taking them, handing them over, losing them.

An interval that is held is a claim: everything of it in memory is read from the store after its
sequencer was raised (I4), and goes when it is given up or fenced. Taking over works one
interval at a time while the lane runs:

1. claim, and read what is stored (the store does both in that order);
2. attach state, timers and dedup; send again the un-ACKed productions of its logs;
3. give it to the lane: from then on its records run.

Giving up goes the other way: take no more, let running work finish and commit (drain: user
code may wait as long as it likes), fold, release. Until it is released an interval that drains may be
kept after all. Records that wait here are not lost: their senders have no ACK. A split or a
merge gives intervals up, cuts in the store, and takes the results (`millwheel.runtime.ownership.claiming`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping
from typing import Any

from millwheel.errors import StoreError
from millwheel.runtime.environment import Environment
from millwheel.runtime.interval.buckets import Buckets
from millwheel.runtime.interval.dedup import Dedup
from millwheel.runtime.interval.exchange import Exchange
from millwheel.runtime.interval.filters import rebuild_filters
from millwheel.runtime.interval.folds import fold
from millwheel.runtime.interval.interval import Interval, Ownership
from millwheel.runtime.interval.part_files import PartFile
from millwheel.runtime.interval.watermark_publisher import WatermarkPublisher
from millwheel.runtime.lane.lane import Lane
from millwheel.runtime.modes.choosing import Modes
from millwheel.runtime.network.courier import Courier
from millwheel.runtime.network.remote import Remote
from millwheel.runtime.ownership.restoring import Restoring
from millwheel.runtime.process.tasks import end
from millwheel.runtime.source.source_tasks import SourceTasks
from millwheel.sinks import JsonLinesFiles
from millwheel.store.port import Claim


class OwnedIntervals:
    """Takes, drains, gives up and loses intervals.

    Args:
        courier: the way to other workers; None: there are none.
    """

    def __init__(
        self,
        env: Environment,
        exchange: Exchange,
        buckets: Buckets,
        publisher: WatermarkPublisher,
        modes: Modes,
        sources: SourceTasks,
        lane: Lane,
        courier: Courier | None,
    ) -> None:
        self._env = env
        self._exchange = exchange
        self._buckets = buckets
        self._publisher = publisher
        self._modes = modes
        self._sources = sources
        self._lane = lane
        self._courier = courier
        self.restoring = Restoring(env, exchange, publisher, courier, self.lose)
        self._drains: dict[Interval, asyncio.Task[None]] = {}
        """Drains of leaving intervals, until these are released."""
        self._changes: set[asyncio.Task[None]] = set()
        """Takings and hand-overs that are under way."""

    def at_hand(self, interval_id: int) -> Interval | None:
        """An interval that takes records here, or drains."""
        interval = self._exchange.get(interval_id)
        if interval is None or (interval.leaving and interval not in self._drains):
            return None
        return interval

    async def take(
        self, interval_ids: list[int], sequencers: Mapping[int, int] | None = None
    ) -> list[Interval]:
        """Claim intervals and begin to work on them.

        Args:
            sequencers: as they were seen; an interval that moved on since is left alone. None:
                all are claimed, whoever holds them.
        """
        claims = await self._env.store.claim(
            self._env.worker,
            interval_ids,
            timers=self._env.settings.timers_in_memory,
            sequencers=sequencers,
        )
        if not claims:
            return []
        # After the claim: nobody writes ids of these slots to any bucket behind our back now.
        await self._env.patiently(self._buckets.load)
        self._env.stamps.restore(max((claim.stamp for claim in claims), default=0))
        inherited = frozenset(bucket.id for bucket in self._buckets.live())
        await self._env.patiently(self._buckets.ensure_current)
        if any(node.named for node in self._env.graph.nodes):
            await self._env.patiently(self._buckets.ensure_named)
        taken = [self._install(claim, inherited) for claim in claims]
        try:
            for claim, interval in zip(claims, taken, strict=True):
                if self._exchange.owns(interval):
                    await self.restoring.attach(interval, claim)
        except BaseException:
            if self._courier is not None:  # else nobody works on, and the error is told as it is
                for interval in taken:  # it is ours, and will be claimed again
                    if self._exchange.owns(interval):
                        await self.lose(interval)
            raise
        # Who stops meanwhile gives up what he has not begun to work on.
        taken = [i for i in taken if self._exchange.owns(i) and not i.leaving]
        self._publisher.restore()
        for interval in taken:
            if interval.dedup is not None:
                rebuilding = rebuild_filters(self._env, self._buckets, interval)
                self._env.spawn(rebuilding, f"filters of {interval.name}")
            self._lane.add(interval)
            interval.touch(urgent=interval.watermarks.has_news())
            interval.wake()
        for interval in taken:
            if interval.source_task is not None:
                await interval.source_task.start()
            if self._courier is not None:
                self._courier.sender.publish(interval)  # and with it, which worker has it now
        return taken

    def take_new(self, interval_ids: list[int]) -> None:
        """Take intervals that were made for new partitions, if this worker is alone; otherwise they are
        placed like all others."""
        if self._courier is not None:
            self._courier.remotes.request_refresh()
            return
        new = [id_ for id_ in interval_ids if not self._exchange.knows(id_)]
        self._env.spawn(self._take_all(new), "new partitions")

    async def _take_all(self, interval_ids: list[int]) -> None:
        await self.take(interval_ids)

    def _install(self, claim: Claim, inherited: frozenset[int]) -> Interval:
        """An interval in its place among the others; it takes no records yet."""
        step = self._exchange.steps[claim.interval.computation]
        interval = Interval(step, claim, self._env.settings, self._modes.of)
        self._exchange.add(interval)
        self._put(interval)
        if step.node.injection is not None:
            interval.source_task = self._sources.of(interval, step.node.injection, claim)
        else:
            self._equip(interval, claim, inherited)
        return interval

    def _put(self, interval: Interval) -> None:
        """From here on records for its keys go to its queue, after those that waited elsewhere."""
        before = interval.step.put(interval)
        if isinstance(before, Remote):
            assert self._courier is not None
            interval.intake.extend(self._courier.remotes.forget_stand_in(before))

    def _equip(self, interval: Interval, claim: Claim, inherited: frozenset[int]) -> None:
        """Give an interval its dedup and its part file."""
        interval.dedup = Dedup(
            self._env.store,
            self._buckets,
            interval.step.id,
            interval.slots,
            capacity=self._env.settings.filter_capacity,
            inherited=inherited,
            exactly_once=interval.step.node.exactly_once,
            rekeyed=interval.step.name in self._env.rekeyed,
        )
        for uses in interval.step.node.sinks.values():
            for use in uses:
                if isinstance(use.sink, JsonLinesFiles):
                    path = use.sink.path / f"part-{interval.id:05d}.jsonl"
                    length = (claim.position or {}).get("length", 0)
                    interval.part_file = PartFile(path, length, self._env.clock.monotonic)

    @property
    def draining(self) -> list[Interval]:
        """The intervals that are to leave, and may be kept."""
        return list(self._drains)

    def is_drained(self, interval: Interval) -> bool:
        """Whether nothing of an interval that is to leave is at work any more."""
        return interval.drained and interval in self._drains

    def drain(self, interval: Interval) -> asyncio.Task[None]:
        """Take no more for an interval, and let what it has begun be finished and stored; that goes on
        beside whatever else is done, as it may take for ever."""
        drain = self._drains.get(interval)
        if drain is None:
            interval.leaving = True
            self._leave(interval)
            drain = self._env.spawn(self._drain(interval), f"drain of {interval.name}")
            self._drains[interval] = drain
        return drain

    async def _drain(self, interval: Interval) -> None:
        if interval.source_task is not None:
            await interval.source_task.stop()
        if interval.lane is not None:
            await interval.lane.drain(interval)
        interval.drained = True

    def keep(self, interval: Interval) -> None:
        """Go on with an interval that drains: nobody else is to have it any more.

        None of an injector: where it would have read on is known by its next owner alone.
        """
        assert interval.source_task is None
        self._drains.pop(interval).cancel()
        interval.leaving = interval.drained = False
        self._put(interval)
        if interval.lane is not None:
            interval.lane.resume(interval)

    async def give_up(self, interval: Interval) -> bool:
        """Finish what an interval has begun, and let another worker have it (no lease wait).

        Returns:
            Whether it is free now: False if somebody has claimed it meanwhile, or it is kept.

        Raises:
            StoreError: it could not be finished; it is as it is stored, and nobody works on it.
        """
        if interval.leaving and interval not in self._drains:
            return False  # somebody is at it
        await asyncio.wait((self.drain(interval),))
        if self._drains.pop(interval, None) is None:
            return False  # lost or kept meanwhile, or somebody is at it
        try:
            while (
                interval.ownership is Ownership.HELD
                and interval.commits.folded < interval.commits.durable_n
                and await self._env.patiently(lambda: fold(self._env.store, interval))
            ):
                pass
        except StoreError:
            if interval.ownership is Ownership.HELD:
                await self.lose(interval)  # it is ours, and will be claimed again
            raise
        if interval.ownership is not Ownership.HELD:
            return False
        self._send_on(interval)
        self._forget(interval)
        released = await self._env.patiently(
            lambda: self._env.store.release(
                self._env.worker, {interval.id: interval.commits.sequencer}
            )
        )
        interval.transition("release")
        return bool(released)

    def _leave(self, interval: Interval) -> None:
        """From here on records for its keys go to whoever will have it."""
        assert self._courier is not None
        interval.step.put(self._courier.remotes.stand_in(interval))
        self._exchange.wake.set()  # who waited for room in its queue has it now

    def _send_on(self, interval: Interval) -> None:
        """Records of logs here, or of no log, that waited in it, before those that came since it
        leaves (I14); those of other workers they send again."""
        waiting = [] if interval.dedup is None else interval.dedup.start_over()
        for delivery in waiting:  # it may come back
            interval.step.renew(delivery)
        interval.mode.start_over()
        if interval.step.node.at_most_once:  # they may have had their effect, and shall not again
            self._exchange.acknowledge(waiting)
            waiting = []
        self._exchange.send_on(interval.step, [*waiting, *interval.intake])
        interval.intake.clear()

    def _forget(self, interval: Interval) -> None:
        """Nothing of it is here any more."""
        self._drains.pop(interval, None)
        if self._courier is not None:
            self._courier.remotes.forget_sent({log.id for log in interval.logs})
            self._courier.forget(interval)
        if interval.source_task is not None:
            interval.source_task.close()
        if interval.part_file is not None:
            interval.part_file.close()
        if interval.lane is not None:
            interval.lane.remove(interval)
        self._exchange.remove(interval)

    async def lose(self, interval: Interval) -> None:
        """Stop to work on an interval, whoever has it: what it did here since its last durable
        commit never was."""
        interval.transition("fenced")
        interval.leaving = True
        if interval.source_task is not None:
            await interval.source_task.stop()
        self._leave(interval)
        self._send_on(interval)
        self._forget(interval)

    # -- all at once ------------------------------------------------------------------------

    async def change(self, work: Coroutine[Any, Any, None]) -> None:
        """Take or hand over intervals; cut short when all are given up."""
        task = asyncio.ensure_future(work)
        self._changes.add(task)
        try:
            await asyncio.wait((task,))
            if not task.cancelled():
                task.result()
        finally:
            self._changes.discard(task)
            await end([task])

    async def lose_all(self) -> None:
        """Stop work on all intervals: other workers may have them by now, or will soon."""
        await self._lane.suspend()
        try:
            await end(self._changes)
            for interval in list(self._exchange.intervals):
                if interval in self._exchange.intervals:  # otherwise it was given up meanwhile
                    await self.lose(interval)
        finally:
            self._lane.unsuspend()
