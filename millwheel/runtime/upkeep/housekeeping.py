from __future__ import annotations

from millwheel.runtime.environment import Environment
from millwheel.runtime.exchange.exchange import Exchange
from millwheel.runtime.exchange.watermark_publisher import WatermarkPublisher
from millwheel.runtime.lane.dead_letter_log import DeadLetterLog
from millwheel.runtime.modes.batched import Batched
from millwheel.runtime.modes.batches import Batches
from millwheel.runtime.network.courier import Courier
from millwheel.runtime.process.service import Service
from millwheel.runtime.seen.seen_buckets import Buckets

WAITING_SECONDS = 30.0
"""Time until a waiting bundle is logged, several leases: by then the missing members' logs have an
owner, which has sent the members again."""


class Housekeeping(Service):
    """Opens buckets, and repeats messages that may have been lost. Each chore may fail, and runs
    again at the next period."""

    def __init__(
        self,
        env: Environment,
        exchange: Exchange,
        buckets: Buckets,
        publisher: WatermarkPublisher,
        letters: DeadLetterLog,
        courier: Courier | None,
    ) -> None:
        super().__init__(env.clock, env.settings.housekeeping_seconds)
        self._env = env
        self._exchange = exchange
        self._buckets = buckets
        self._publisher = publisher
        self._letters = letters
        self._courier = courier
        self._waiting: dict[Batches, float] = {}
        """Time since which members of a bundle are missing; infinity once that was logged."""

    async def run_once(self) -> None:
        self._publisher.excuse_idle()
        for task in self._exchange.source_tasks:
            task.tend()
        if self._courier is not None:
            self._courier.sender.repeat()
        self._tend_waiting_bundles(self._env.clock.monotonic())
        self._letters.flush()
        await self._buckets.ensure_current()
        if any(node.named for node in self._env.graph.nodes):
            await self._buckets.ensure_named()

    def _tend_waiting_bundles(self, now: float) -> None:
        """Have sources read the rows that bundles wait for; warn of bundles that wait too long."""
        waiting: dict[Batches, float] = {}
        for interval in self._exchange.intervals:
            mode = interval.mode
            if not isinstance(mode, Batched) or not mode.batches.missing:
                continue
            batches = mode.batches
            for log, number in batches.awaited().items():
                found = self._exchange.logs.get(log)
                if found is not None and found[1].source_task is not None:
                    found[1].source_task.read_up_to(number)
            since = self._waiting.get(batches, now)
            if now - since >= WAITING_SECONDS:
                since = float("inf")
                self._env.log.warning(
                    "bundle_waits",
                    interval=interval.name,
                    scope=interval.id,
                    number=batches.number,
                    missing=batches.missing,
                    what_it_means=(
                        "records of an open bundle have not come again; the interval "
                        "delivers nothing before they do"
                    ),
                    what_to_do=(
                        "make sure that the workers and sources they come from run; records of a "
                        "removed computation are lost. A source that another worker reads may "
                        "have a lower max_pending or max_unacked_records now: restore the former "
                        "value"
                    ),
                )
            waiting[batches] = since
        self._waiting = waiting
