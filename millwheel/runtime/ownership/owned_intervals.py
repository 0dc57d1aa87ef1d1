"""The intervals that this worker owns: claiming them, handing them over, losing them.

All data of a held interval in memory was read from the store after the claim had raised its
sequencer (I4), and is dropped when the interval is given up or fenced. Claiming works one interval
at a time while the lane runs:

1. claim, and read what is stored (the store does both in that order);
2. attach state, timers and dedup; send again the un-ACKed productions of its logs;
3. give the interval to the lane: from then on its records run.

Giving up is the reverse: drain (accept no more records, let running work finish and commit), fold,
release. A draining interval may be kept until it is released. The records in its queue are not
lost: their senders have no ACK.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping
from typing import Any

from millwheel.errors import StoreError
from millwheel.graph.outside import own_directory
from millwheel.runtime.environment import Environment
from millwheel.runtime.exchange.exchange import Exchange
from millwheel.runtime.exchange.watermark_publisher import WatermarkPublisher
from millwheel.runtime.interval.filter_restoring import rebuild_filters
from millwheel.runtime.interval.interval import Interval, Ownership
from millwheel.runtime.interval.interval_fold import fold
from millwheel.runtime.interval.part_files import PartFile, PartPlace
from millwheel.runtime.lane.lane import Lane
from millwheel.runtime.modes.choosing import Modes
from millwheel.runtime.network.courier import Courier
from millwheel.runtime.network.remote import Remote
from millwheel.runtime.ownership.restoring import Restoring
from millwheel.runtime.process.tasks import end
from millwheel.runtime.seen.dedup import Dedup
from millwheel.runtime.seen.seen_buckets import Buckets
from millwheel.runtime.source.source_tasks import SourceTasks
from millwheel.sinks import JsonLinesFiles
from millwheel.store.port.claims import Claim


class OwnedIntervals:
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
        self._changes: set[asyncio.Task[None]] = set()

    def held_or_draining(self, interval_id: int) -> Interval | None:
        interval = self._exchange.get(interval_id)
        if interval is None or (interval.leaving and interval not in self._drains):
            return None
        return interval

    async def take(
        self, interval_ids: list[int], sequencers: Mapping[int, int] | None = None
    ) -> list[Interval]:
        """Claim intervals and begin to work on them; returns those that are still here and do not
        leave.

        An interval whose sequencer is not that of `sequencers` is not claimed. None: claim all,
        even from their present owners.
        """
        claims = await self._env.store.claim(
            self._env.worker,
            interval_ids,
            timers=self._env.settings.timers_in_memory,
            sequencers=sequencers,
        )
        if not claims:
            return []
        # After the claim: no other worker can add ids of these slots to a bucket any more.
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
            if self._courier is not None:  # otherwise the engine ends with this error
                for interval in taken:  # we own them, and a later round claims them again
                    if self._exchange.owns(interval):
                        await self.lose(interval)
            raise
        # A worker that has begun to stop gives these intervals up before they run.
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
                self._courier.sender.publish(interval)  # also announces the new owner
        return taken

    def take_new(self, interval_ids: list[int]) -> None:
        """Claim the intervals of new partitions; in a shared pipeline the balancer places them
        instead."""
        if self._courier is not None:
            self._courier.remotes.request_refresh()
            return
        new = [id_ for id_ in interval_ids if not self._exchange.knows(id_)]
        self._env.spawn(self._take_all(new), "new partitions")

    async def _take_all(self, interval_ids: list[int]) -> None:
        await self.take(interval_ids)

    async def retire(self, interval_ids: list[int]) -> None:
        """Stop work on intervals of ended partitions, which are deleted in the store next.

        An owner elsewhere finds its interval gone.
        """
        for interval in [i for i in self.held if i.id in interval_ids and not i.leaving]:
            interval.leaving = True
            await self._drain(interval)
            if self._exchange.owns(interval):
                interval.transition("fenced")
                self._forget(interval)

    def _install(self, claim: Claim, inherited: frozenset[int]) -> Interval:
        """The interval's records do not run yet."""
        step = self._exchange.steps[claim.interval.computation]
        interval = Interval(step, claim, self._env.settings, self._modes)
        self._exchange.add(interval)
        self._put(interval)
        if step.node.injection is not None:
            interval.source_task = self._sources.of(interval, step.node.injection, claim)
        else:
            self._equip(interval, claim, inherited)
        return interval

    def _put(self, interval: Interval) -> None:
        """Records go to its queue, behind those that its stand-in kept."""
        before = interval.step.put(interval)
        if isinstance(before, Remote):
            assert self._courier is not None
            interval.intake.extend(self._courier.remotes.forget_stand_in(before))

    def _equip(self, interval: Interval, claim: Claim, inherited: frozenset[int]) -> None:
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
        if interval.step.withholds:
            return
        for uses in interval.step.node.sinks.values():
            for use in uses:
                if isinstance(use.sink, JsonLinesFiles):
                    self._open_part_file(interval, claim, use.sink)

    def _open_part_file(self, interval: Interval, claim: Claim, sink: JsonLinesFiles) -> None:
        env = self._env
        own = own_directory(env.graph.name) if env.is_beside else None
        place = PartPlace.of(sink.path, interval.id, claim.position, own)
        interval.part_file = PartFile.at(place, env.clock.monotonic, env.file_owner)

    @property
    def held(self) -> list[Interval]:
        """Intervals of this worker, including those that drain."""
        return self._exchange.intervals

    @property
    def draining(self) -> list[Interval]:
        return list(self._drains)

    def is_drained(self, interval: Interval) -> bool:
        return interval.drained and interval in self._drains

    def drain(self, interval: Interval) -> asyncio.Task[None]:
        """Runs as a task, since user code may delay it for ever."""
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
        """Resume a draining interval: no other worker should own it any more.

        Not for an injector: its source task has stopped, and only a new claim reads the position to
        continue from.
        """
        assert interval.source_task is None
        self._drains.pop(interval).cancel()
        interval.leaving = interval.drained = False
        self._put(interval)
        if interval.lane is not None:
            interval.lane.resume(interval)

    async def give_up(self, interval: Interval) -> bool:
        """Drain, fold and release an interval; returns whether it is free now.

        It is not if another worker has claimed it, it was kept, or another task gives it up. After
        a `StoreError` it is as it is stored, and no work runs on it here.
        """
        if interval.leaving and interval not in self._drains:
            return False  # another task gives it up or loses it
        await asyncio.wait((self.drain(interval),))
        if self._drains.pop(interval, None) is None:
            return False  # lost or kept during the drain, or another task gives it up
        try:
            while (
                interval.ownership is Ownership.HELD
                and interval.commits.folded < interval.commits.durable_n
                and await self._env.patiently(lambda: fold(self._env.store, interval))
            ):
                pass
        except StoreError:
            if interval.ownership is Ownership.HELD:
                await self.lose(interval)  # we own it, and a later round claims it again
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
        assert self._courier is not None
        interval.step.put(self._courier.remotes.stand_in(interval))
        self._exchange.wake.set()  # senders that waited for room in its queue can continue

    def _send_on(self, interval: Interval) -> None:
        """Forward the waiting records, before those that came since the interval began to leave
        (I14).

        Other workers send theirs again.
        """
        waiting = [] if interval.dedup is None else interval.dedup.start_over()
        for delivery in waiting:  # the interval may return to this worker, and run them
            interval.step.renew(delivery)
        interval.mode.start_over()
        if interval.step.node.at_most_once:  # they may have had effects, and must not run again
            self._exchange.acknowledge(waiting)
            waiting = []
        self._exchange.send_on(interval.step, [*waiting, *interval.intake])
        interval.intake.clear()

    def _forget(self, interval: Interval) -> None:
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
        """Stop work on an interval; everything since its last durable commit is discarded."""
        interval.transition("fenced")
        interval.leaving = True
        if interval.source_task is not None:
            await interval.source_task.stop()
        self._leave(interval)
        self._send_on(interval)
        self._forget(interval)

    # -- all intervals ----------------------------------------------------------------------

    async def change(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine that claims or hands over intervals; `lose_all` cancels it."""
        task = asyncio.ensure_future(work)
        self._changes.add(task)
        try:
            await asyncio.wait((task,))
            if not task.cancelled():
                task.result()
        finally:
            self._changes.discard(task)
            await end([task])

    async def give_up_all(self) -> list[Exception]:
        """Give up all intervals, including those being claimed; returns the failures."""
        tried: set[Interval] = set()
        outcomes: list[Any] = []
        while (rest := [i for i in self.held if i not in tried]) or self._changes:
            tried.update(rest)
            outcomes += await asyncio.gather(*map(self.give_up, rest), return_exceptions=True)
            if self._changes:  # a claim under way installs its intervals only when it is answered
                await asyncio.wait(self._changes)
        return [outcome for outcome in outcomes if isinstance(outcome, Exception)]

    async def lose_all(self) -> None:
        await self._lane.suspend()
        try:
            await end(self._changes)
            for interval in list(self._exchange.intervals):
                if interval in self._exchange.intervals:  # not given up while `lose` waited
                    await self.lose(interval)
        finally:
            self._lane.unsuspend()
