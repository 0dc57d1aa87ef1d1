"""Partitions that appear while their source is read.

The injector of a growing source has an interval for the *discovery* of partitions, in slot 0, beside
those of the partitions found so far. Whichever worker owns it looks for partitions, makes an interval
for each new one, and holds the watermark for those that nobody has found yet (I17)::

    partition 1   |----- stored low watermark ----->
    partition 2   |--------------->
    discovery     |-------------->                  the least of all partitions found
    partition 3                   |                 found now: starts at what the discovery has stored

Readers of the stream take the least of all slots (`millwheel.timers.watermark`). A worker that has not
heard of partition 3 yet is held by the discovery: from the moment when partition 3 is made, that
promises no more than partition 3 has promised. So the new partition moves no watermark back, and
what its rows say of time counts from its first row on.

A partition starts at the low watermark that is *stored* for the discovery. While intervals are made,
the discovery therefore stands still: it hears nothing more, and all that it has heard before is
stored, so that no commit with a higher promise is on its way or to come. It also stands still from
its start until it has looked once, as partitions may have appeared while nobody looked.

What the discovery knows of a partition is stored before the partition is made, and how the partition
begins is stored with it: a crash at any moment leaves neither a partition of which the discovery has
forgotten what it was, nor one whose owner does not know which file, say, is meant.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from millwheel.errors import Fenced, InputError
from millwheel.model import MIN_TIME, SLOTS
from millwheel.runtime.environment import Environment
from millwheel.runtime.interval.interval import Interval
from millwheel.runtime.interval.watermark_publisher import WatermarkPublisher
from millwheel.runtime.source.pacing import Flow
from millwheel.runtime.source.pausing import PausedInjectors
from millwheel.runtime.source.source_task import SourceTask
from millwheel.sources import Discovery, GrowingSource, Lag
from millwheel.store.port import FoundPartition
from millwheel.timers.watermark import WatermarkReport

FIRST_SLOT = 1
"""The first slot of a partition; the discovery has the one before it."""

MOST_PARTITIONS = SLOTS - FIRST_SLOT


class PartitionDiscovery(SourceTask):
    """Looks for partitions of one growing source, and holds the watermark for them."""

    def __init__(
        self,
        env: Environment,
        paused: PausedInjectors,
        interval: Interval,
        source: GrowingSource,
        publisher: WatermarkPublisher,
        on_partitions: Callable[[list[int]], None],
    ) -> None:
        super().__init__(env, paused, interval)
        self._publisher = publisher
        self._on_partitions = on_partitions
        self._source = source
        self._discovery: Discovery | None = None
        self._known: dict[str, FoundPartition] = {}
        """The partitions found so far, by identity."""
        self._stands_still = True
        """Nothing more is promised: partitions are being made, or it has not looked for any yet."""
        self._waiting = False
        node = interval.step.node
        assert node.injection is not None
        idle_after = node.injection.idle_after
        self._idle_after = None if idle_after is None else idle_after.total_seconds()
        self._began = env.clock.monotonic()

    async def start(self, *, reading: bool = True) -> None:
        """Know the partitions found so far, and look for more, unless told not to."""
        self.close()
        stored = self._interval.position.value
        with self._blamed(self._source, "discover"):
            self._discovery = self._source.discover(stored["reader"] if stored else None)
        self._stands_still, self._waiting = True, False
        await self._make({})
        if reading:
            self._begin(self._run(self._discovery))

    def close(self) -> None:
        """Look no more."""
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
            self._stands_still = False
            self.follow()
            self._waiting = True
            self._env.check_finished()
            with self._blamed(discovery, "wait"):
                await discovery.wait()
            self._waiting = False

    async def _add(self, identities: Sequence[str]) -> None:
        """Make an interval for each new partition, at what the discovery has stored as promised."""
        env, interval = self._env, self._interval
        if len(self._known) + len(identities) > MOST_PARTITIONS:
            raise InputError(
                f"the source of {interval.step.name!r} has {len(self._known) + len(identities):,} "
                f"partitions; at most {MOST_PARTITIONS:,} can be told apart. Read fewer: a pattern "
                "that fits fewer files, or several pipelines"
            )
        env.done.clear()
        self._stands_still = True
        n = interval.commits.durable_n
        while (
            interval.commits.durable_n == n
            or interval.watermarks.has_news()
            or interval.watermarks.promised != interval.watermarks.durable
        ):
            interval.touch(urgent=True)
            assert interval.lane is not None
            await interval.lane.settled()
        before = set(self._known)
        try:
            await self._make({each: self._first_position(each) for each in identities})
        except Fenced:  # the next commit finds that out too, and ends work on the interval
            interval.touch(urgent=True)
            return
        for identity in self._known.keys() - before:
            env.log.info("partition_found", injector=interval.step.name, partition=identity)
        self._on_partitions([self._known[identity].interval_id for identity in identities])

    def _first_position(self, identity: str) -> dict[str, Any] | None:
        assert self._discovery is not None
        with self._blamed(self._discovery, "first_position"):
            first = self._discovery.first_position(identity)
        return None if first is None else {"reader": first, "seen": MIN_TIME}

    async def _make(self, new: Mapping[str, dict[str, Any] | None]) -> None:
        """Make the intervals, and take the word of the store for what all partitions promise."""
        env, interval = self._env, self._interval
        found = await env.patiently(
            lambda: env.store.add_partitions(interval.id, interval.commits.sequencer, new)
        )
        self._known = {partition.identity: partition for partition in found}
        for partition in found:
            slot = partition.slot
            report = WatermarkReport(
                interval.step.id, slot, slot + 1, partition.sequencer, partition.low_watermark
            )
            self._publisher.take_report(report)
            for percentile, early in partition.percentiles.items():
                self._publisher.take_percentile(percentile, report._replace(watermark=early))

    def follow(self) -> None:
        """Promise the least that the partitions found so far have stored."""
        interval, publisher = self._interval, self._publisher
        if self._stands_still or not self._known:
            return
        least = publisher.watermarks.least_from(interval.step.id, FIRST_SLOT)
        assert least is not None, "every known partition has a report"
        interval.watermarks.raise_input(least)
        for percentile in interval.watermarks.percentiles:
            kept = publisher.percentiles[percentile]
            if (early := kept.least_from(interval.step.id, FIRST_SLOT)) is not None:
                interval.watermarks.raise_percentile(percentile, early)
        if interval.watermarks.has_news():
            interval.touch(urgent=True)

    @property
    def has_nothing(self) -> bool:
        """Whether all partitions that there are have been found."""
        return self._waiting

    @property
    def idle(self) -> bool:
        """Always: it only follows its partitions, and nothing is to wait for it besides them."""
        return True

    def go_along(self, watermark: int, percentiles: Mapping[float, int | None]) -> None:
        """Follow the other injectors for as long as there is no partition to follow.

        An empty directory holds the watermark like a silent partition: until `idle_after`.
        """
        interval = self._interval
        waited = self._env.clock.monotonic() - self._began
        if (
            self._known
            or self._stands_still
            or self._idle_after is None
            or waited < self._idle_after
        ):
            return
        interval.watermarks.raise_input(watermark)
        for percentile in interval.watermarks.percentiles:
            if (early := percentiles[percentile]) is not None:
                interval.watermarks.raise_percentile(percentile, early)
        if interval.watermarks.has_news():
            interval.touch(urgent=True)

    def position(self) -> dict[str, Any]:
        """What the next owner of the discovery should know."""
        stored = self._interval.position.value or {}
        reader = stored.get("reader")
        if self._discovery is not None:
            with self._blamed(self._discovery, "position"):
                reader = self._discovery.position()
        return {
            "reader": reader,
            "seen": None,
            "held_by": None,
            "since": None,
            "ended": False,
            "sent_since": self._env.now(),  # it sends no row whose id would have to be kept
        }

    def progress(self) -> float | None:
        """None: there is no end."""
        return None

    def lag(self) -> Lag:
        """Nothing that could be counted."""
        return Lag()

    def flow(self) -> Flow | None:
        """None: it sends nothing."""
        return None
