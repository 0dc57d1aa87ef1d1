"""The worker's chores that take no time: buckets for what comes, what is said again to others.

None of them is on a record's way; each may fail and is done again the next time. What may take
long has a service of its own (`millwheel.runtime.upkeep.folding`), and so has the lease, which waits for
nothing (`millwheel.runtime.ownership.heartbeat`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from millwheel.errors import StoreError
from millwheel.runtime.interval.interval import Interval, Ownership
from millwheel.runtime.modes.batches import Bundling
from millwheel.runtime.process.service import Service

if TYPE_CHECKING:
    from millwheel.runtime.engine import Engine

WAITING_SECONDS = 30.0
"""Two leases: whoever has the members' logs is known by then, and has sent them again."""


class Housekeeping(Service):
    """Opens buckets, says again what may have been lost on the way, rebuilds filters."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine.clock, engine.settings.housekeeping_seconds)
        self._engine = engine
        self._waiting: dict[Bundling, float] = {}
        """Open bundles whose members have not all come again, and since when; those that were told
        of, since the end of time."""

    async def rebuild(self, interval: Interval) -> None:
        """Learn what others have seen of its keys, beside the lanes.

        Buckets that share a filter come last, and it is made for all that they hold: one that has to grow
        is several, which every record is to ask.
        """
        dedup = interval.dedup
        alone, sharing = dedup.inherited_by_kind()
        for bucket in alone:
            await self._learn(interval, bucket, dedup.rebuild)
        for bucket in sharing:
            await self._learn(interval, bucket, dedup.expect)
        for bucket in sharing:
            await self._learn(interval, bucket, dedup.rebuild)

    async def _learn(
        self, interval: Interval, bucket: int, learn: Callable[[int], Awaitable[None]]
    ) -> None:
        if interval.ownership is not Ownership.HELD:
            return
        try:
            await self._engine.patiently(lambda: learn(bucket))
        except StoreError:
            # Dropped meanwhile, with everything in it acknowledged: there is nothing to read.
            if not await self._engine.buckets.is_gone(bucket):
                raise

    async def run_once(self) -> None:
        engine = self._engine
        engine.promises.excuse_idle()
        for injector in engine.injectors:
            injector.tend()
        if engine.courier is not None:
            engine.courier.repeat()
        self._tend_waiting_bundles(engine.clock.monotonic())
        engine.letters.flush()
        await engine.buckets.ensure_current()
        if any(node.named for node in engine.graph.nodes):
            await engine.buckets.ensure_named()

    def _tend_waiting_bundles(self, now: float) -> None:
        """Have sources read as far as bundles wait for, and say which of these wait for members that
        may never come."""
        waiting: dict[Bundling, float] = {}
        for interval in self._engine.intervals:
            bundling = interval.bundling
            if bundling is None or not bundling.missing:
                continue
            for log, number in bundling.awaited().items():
                found = self._engine.logs.get(log)
                if found is not None and found[1].source_task is not None:
                    found[1].source_task.read_up_to(number)
            since = self._waiting.get(bundling, now)
            if now - since >= WAITING_SECONDS:
                since = float("inf")
                self._engine.log.warning(
                    "bundle_waits",
                    interval=interval.name,
                    scope=interval.id,
                    number=bundling.number,
                    missing=bundling.missing,
                    what_it_means="records of a bundle that was begun have not come again; nothing "
                    "else of the interval is delivered before they do",
                    what_to_do="see that the workers and sources they come from run; what came from "
                    "a computation that was removed is gone. A source that another worker reads may "
                    "have a lower max_pending now, or max_unacked_records: give it the former one",
                )
            waiting[bundling] = since
        self._waiting = waiting
