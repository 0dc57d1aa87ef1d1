"""Discovers partitions that appear while their source is read.

The injector of a growing source has an interval for the *discovery* in slot 0. Its owner looks for
partitions, makes an interval for each new one, and holds the watermark for partitions that are not
found yet (I17)::

    partition 1   |----- stored low watermark ----->
    partition 2   |--------------->
    discovery     |-------------->                  the minimum of all partitions found
    partition 3                   |                 just found: starts at the discovery's watermark

Readers of the stream take the minimum over all slots (`millwheel.timers.watermark`). If a worker
does not know partition 3 yet, the discovery holds its watermark: it promises no more than partition
3 has promised.

A partition starts at the low watermark that is *stored* for the discovery. So that watermark is
frozen while intervals are made: no commit with a higher promise is in flight or can follow. It is
also frozen from the start of the task until the first look, since partitions may have appeared
while the discovery had no owner.

The discovery's knowledge of a partition is stored before the partition is made, and the partition's
first position with it. So after a crash at any moment the discovery knows each partition, and its
owner knows where to read. What a look has changed in that knowledge (the file was copied, and
truncated) is stored before the next look.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec

from millwheel.core.model import MAX_TIME, MIN_TIME, SLOTS
from millwheel.core.source_progress import FirstProgress, SourceProgress
from millwheel.errors import Fenced, InputError
from millwheel.runtime.environment import Environment
from millwheel.runtime.exchange.watermark_publisher import WatermarkPublisher
from millwheel.runtime.interval.interval import Interval
from millwheel.runtime.source.pacing import Flow
from millwheel.runtime.source.pausing import PausedInjectors
from millwheel.runtime.source.source_task import SourceTask, Work
from millwheel.sources import Discovery, GrowingSource, Lag
from millwheel.store.port.placement import FoundPartition
from millwheel.timers.watermark import FIRST_SLOT, WatermarkReport

MOST_PARTITIONS = SLOTS - FIRST_SLOT


class PartitionDiscovery(SourceTask):
    """Looks for partitions of one growing source, and holds the watermark for those not found
    yet."""

    def __init__(
        self,
        env: Environment,
        paused: PausedInjectors,
        interval: Interval,
        source: GrowingSource,
        publisher: WatermarkPublisher,
        on_partitions: Callable[[list[int]], None],
        on_ended: Callable[[list[int]], Awaitable[None]],
    ) -> None:
        super().__init__(env, paused, interval)
        self._publisher = publisher
        self._on_partitions = on_partitions
        self._on_ended = on_ended
        self._source = source
        self._discovery: Discovery | None = None
        self._known: dict[str, FoundPartition] = {}
        self._frozen = True
        """The watermark may not advance: intervals are being made, or there was no look yet."""
        self._waiting = False
        self._stored: Any = None
        node = interval.step.node
        assert node.injection is not None
        idle_after = node.injection.idle_after
        self._idle_after = None if idle_after is None else idle_after.total_seconds()
        self._began = env.clock.monotonic()
        self._shows_time = node.injection.shown_by_reader
        self._shown: int | None = None
        """Event time that the source itself shows, for partitions that are not found yet."""

    async def _open(self, is_current: Callable[[], bool]) -> Work | None:
        self.close()
        stored = SourceProgress.stored(self._interval.position.value)
        with self._blamed(self._source, "discover"):
            discovery = self._source.discover(stored.reader)
        self._discovery = discovery
        self._stored = self.position().reader
        self._frozen, self._waiting = True, False
        await self._make({})
        if not is_current():
            self.close()
            return None
        for partition in self._known.values():
            self._resumed(partition, ended=False)
        return partial(self._run, discovery)

    def close(self) -> None:
        discovery, self._discovery = self._discovery, None
        if discovery is not None:
            with self._blamed(discovery, "close"):
                discovery.close()

    async def _run(self, discovery: Discovery) -> None:
        while True:
            with self._blamed(discovery, "look"):
                found = await discovery.look()
            new = [identity for identity in found if identity not in self._known]
            if new:
                await self._add(new)
            elif self.position().reader != self._stored:
                await self._commit()
            self._frozen = False
            await self._retire()
            if self._shows_time:
                self._shown = getattr(discovery, "seen", None)
            self.follow()
            self._waiting = True
            self._env.check_finished()
            with self._blamed(discovery, "wait"):
                await discovery.wait()
            self._waiting = False

    async def _add(self, identities: Sequence[str]) -> None:
        env, interval = self._env, self._interval
        if len(self._known) + len(identities) > MOST_PARTITIONS:
            raise InputError(
                f"the source of {interval.step.node.label!r} has "
                f"{len(self._known) + len(identities):,} partitions; at most {MOST_PARTITIONS:,} "
                "are supported. Use a pattern that matches fewer files, or several pipelines"
            )
        env.done.clear()
        self._frozen = True
        await self._commit()
        before = set(self._known)
        try:
            await self._make({each: self._first_position(each) for each in identities})
        except Fenced:  # the next commit is refused as well, and ends work on the interval
            interval.touch(urgent=True)
            return
        for identity in self._known.keys() - before:
            env.log.info("partition_found", injector=interval.step.name, partition=identity)
        self._on_partitions([self._known[identity].interval_id for identity in identities])

    async def _commit(self) -> None:
        """While the watermark is frozen, its last promise is stored."""
        interval, watermarks = self._interval, self._interval.watermarks
        known = self.position().reader
        await interval.store_all()
        while self._frozen and (watermarks.has_news() or watermarks.promised != watermarks.durable):
            await interval.store_all()
        self._stored = known

    async def _retire(self) -> None:
        """A partition has ended for all readers once it has stored the end of time: nothing of it
        is un-ACKed."""
        env, interval = self._env, self._interval
        at = self._publisher.watermarks.at
        ended = [p for p in self._known.values() if at(interval.step.id, p.slot) == MAX_TIME]
        if not ended or not hasattr(self._discovery, "resumed"):
            return
        self._frozen = True
        await self._make({})  # with their last positions
        ids = {p.identity for p in ended}
        ended = [p for p in self._known.values() if p.identity in ids and _has_ended(p)]
        for partition in ended:
            self._resumed(partition, ended=True)
        await self._commit()
        interval_ids = [partition.interval_id for partition in ended]
        await self._on_ended(interval_ids)
        rest = await env.patiently(
            lambda: env.store.retire_partitions(
                interval.id, interval.commits.sequencer, interval_ids
            )
        )
        self._learn(rest)
        for partition in ended:
            env.log.info(
                "partition_ended", injector=interval.step.name, partition=partition.identity
            )
        self._frozen = False

    def _resumed(self, partition: FoundPartition, *, ended: bool) -> None:
        resumed = getattr(self._discovery, "resumed", None)
        reader = SourceProgress.stored(partition.position).reader
        if resumed is not None and reader is not None:
            with self._blamed(self._discovery, "resumed"):
                resumed(partition.identity, reader, ended=ended or _has_ended(partition))

    def _first_position(self, identity: str) -> dict[str, Any] | None:
        assert self._discovery is not None
        with self._blamed(self._discovery, "first_position"):
            first = self._discovery.first_position(identity)
        return None if first is None else msgspec.to_builtins(FirstProgress(first, MIN_TIME))

    async def _make(self, new: Mapping[str, dict[str, Any] | None]) -> None:
        env, interval = self._env, self._interval
        found = await env.patiently(
            lambda: env.store.add_partitions(interval.id, interval.commits.sequencer, new)
        )
        self._learn(found)

    def _learn(self, found: Sequence[FoundPartition]) -> None:
        interval = self._interval
        self._known = {partition.identity: partition for partition in found}
        for partition in found:
            slot = partition.slot
            report = WatermarkReport(
                interval.step.id, slot, slot + 1, partition.sequencer, partition.low_watermark
            )
            self._publisher.take_report(report)
        self._publisher.free(interval.step.id, FIRST_SLOT, {partition.slot for partition in found})

    def follow(self) -> None:
        """Promise the minimum of the stored low watermarks of the partitions found so far, and of
        the event time that the source shows (`Discovery.seen`)."""
        interval, publisher = self._interval, self._publisher
        shown = self._shown
        if self._frozen or not (self._known or shown):
            return
        least = publisher.watermarks.least_from(interval.step.id, FIRST_SLOT)
        assert least is not None or not self._known, "every known partition has a report"
        known = [t for t in (least, shown) if t not in (None, MAX_TIME)]
        if not known:
            return  # all partitions have ended: the discovery holds the watermark for the next one
        interval.watermarks.raise_input(min(known))
        if interval.watermarks.has_news():
            interval.touch(urgent=True)

    @property
    def has_nothing(self) -> bool:
        return self._waiting

    @property
    def idle(self) -> bool:
        """Always true: the discovery only follows its partitions, so waiting for these is
        enough."""
        return True

    def advance_idle(self, watermark: int) -> None:
        """Promise the watermark of the other injectors while there is no partition to follow.

        An empty directory holds the watermark like a silent partition: until `idle_after`.
        """
        interval = self._interval
        waited = self._env.clock.monotonic() - self._began
        least = self._publisher.watermarks.least_from(interval.step.id, FIRST_SLOT)
        is_empty = least in (None, MAX_TIME)
        if not is_empty or self._frozen or self._idle_after is None or waited < self._idle_after:
            return
        if interval.watermarks.advance(watermark):
            interval.touch(urgent=True)

    def position(self) -> SourceProgress:
        reader = SourceProgress.stored(self._interval.position.value).reader
        if self._discovery is not None:
            with self._blamed(self._discovery, "position"):
                reader = self._discovery.position()
        # The discovery sends no row whose id must be kept.
        return SourceProgress(reader, sent_since=self._env.now())

    def progress(self) -> float | None:
        return None

    def lag(self) -> Lag:
        return Lag()

    def flow(self) -> Flow | None:
        return None


def _has_ended(partition: FoundPartition) -> bool:
    return SourceProgress.stored(partition.position).ended
