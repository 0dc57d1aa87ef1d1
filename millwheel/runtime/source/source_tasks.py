from __future__ import annotations

from collections.abc import Awaitable, Callable

from millwheel.graph.node import Injection
from millwheel.inbox import Inbox
from millwheel.runtime.environment import Environment
from millwheel.runtime.exchange.exchange import Exchange
from millwheel.runtime.exchange.watermark_publisher import WatermarkPublisher
from millwheel.runtime.interval.interval import Interval
from millwheel.runtime.seen.seen_buckets import Buckets
from millwheel.runtime.source.inbox_reader import StoredInbox
from millwheel.runtime.source.injector import Injector
from millwheel.runtime.source.partition_discovery import PartitionDiscovery
from millwheel.runtime.source.pausing import PausedInjectors
from millwheel.runtime.source.source_task import SourceTask
from millwheel.sources import Partition
from millwheel.store.port.claims import Claim
from millwheel.timers.watermark import FIRST_SLOT


class SourceTasks:
    """Makes the source tasks of injectors' intervals."""

    def __init__(
        self,
        env: Environment,
        exchange: Exchange,
        buckets: Buckets,
        publisher: WatermarkPublisher,
    ) -> None:
        self._env = env
        self._exchange = exchange
        self._buckets = buckets
        self._publisher = publisher
        self.paused = PausedInjectors(env, exchange)
        self.on_partitions: Callable[[list[int]], None] = lambda _: None
        """Called with the ids of intervals made for new partitions."""
        self.on_ended: Callable[[list[int]], Awaitable[None]]
        """Called with the ids of the intervals of ended partitions, before these are deleted."""

    def of(self, interval: Interval, injection: Injection, claim: Claim) -> SourceTask:
        growing, slot = injection.growing, interval.slots[0]
        if isinstance(injection.source, Inbox):
            stream = interval.step.node.writes[0].name
            partition: Partition = StoredInbox(self._env, interval, injection.source, stream)
        elif growing is None:
            partition = injection.source.partitions()[slot]
        elif slot < FIRST_SLOT:
            return PartitionDiscovery(
                self._env,
                self.paused,
                interval,
                growing,
                self._publisher,
                self._appeared,
                self._ended,
            )
        else:
            (identity,) = [log.source for log in claim.logs if log.source is not None]
            partition = growing.partition(identity)
        return Injector(
            self._env, self.paused, interval, partition, self._buckets, self._exchange.wake
        )

    def _appeared(self, interval_ids: list[int]) -> None:
        self.on_partitions(interval_ids)

    async def _ended(self, interval_ids: list[int]) -> None:
        await self.on_ended(interval_ids)
