"""The worker's chores that take no time: buckets for what comes, what is said again to others.

None of them is on a record's way; each may fail and is done again the next time. What may take
long has a service of its own (`millwheel.runtime.upkeep.folding`), and so has the lease, which waits for
nothing (`millwheel.runtime.ownership.heartbeat`).
"""

from __future__ import annotations

from millwheel.runtime.environment import Environment
from millwheel.runtime.interval.buckets import Buckets
from millwheel.runtime.interval.exchange import Exchange
from millwheel.runtime.interval.watermark_publisher import WatermarkPublisher
from millwheel.runtime.lane.dead_letter_log import DeadLetterLog
from millwheel.runtime.modes.batched import Batched
from millwheel.runtime.modes.batches import Batches
from millwheel.runtime.network.courier import Courier
from millwheel.runtime.process.service import Service

WAITING_SECONDS = 30.0
"""Two leases: whoever has the members' logs is known by then, and has sent them again."""


class Housekeeping(Service):
    """Opens buckets, and sends again what may have been lost on the way."""

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
        """Open bundles whose members have not all come again, and since when; those that were told
        of, since the end of time."""

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
        """Have sources read as far as bundles wait for, and say which of these wait for members that
        may never come."""
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
                    what_it_means="records of a bundle that was begun have not come again; nothing "
                    "else of the interval is delivered before they do",
                    what_to_do="see that the workers and sources they come from run; what came from "
                    "a computation that was removed is gone. A source that another worker reads may "
                    "have a lower max_pending now, or max_unacked_records: give it the former one",
                )
            waiting[batches] = since
        self._waiting = waiting
