"""The worker's chores: lease, folds, buckets, filters, logs that are drained.

None of them is on a record's way; each may fail and is done again the next time.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from millwheel.errors import StoreError
from millwheel.runtime.bundling import Bundling
from millwheel.runtime.interval import Interval
from millwheel.runtime.service import Service

if TYPE_CHECKING:
    from millwheel.runtime.engine import Engine

WAITING_SECONDS = 30.0
"""Two leases: whoever has the members' logs is known by then, and has sent them again."""

OLD_SNAPSHOT_SECONDS = 5.0
"""A snapshot this old keeps the dead rows of folds alive: folding waits for it, in bounds."""


class Housekeeping(Service):
    """Renews the lease, folds, opens and drops buckets, rebuilds filters."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine.clock, engine.settings.housekeeping_seconds)
        self._engine = engine
        self._settings = engine.settings
        self._last_fold: dict[Interval, float] = {}
        self._last_heartbeat = float("-inf")
        self._last_collection = float("-inf")
        self._waiting: dict[Bundling, float] = {}
        """Open bundles whose members have not all come again, and since when; those that were told
        of, since the end of time."""

    async def rebuild(self, interval: Interval, bucket: int) -> None:
        """Fill the filter of an inherited bucket, beside the lanes."""

        async def pause() -> None:
            await asyncio.sleep(0)

        try:
            await self._engine.patiently(lambda: interval.dedup.rebuild(bucket, pause))
        except StoreError:
            # Dropped meanwhile, with everything in it acknowledged: there is nothing to read.
            if not await self._engine.buckets.is_gone(bucket):
                raise

    async def run_once(self) -> None:
        now = self._engine.clock.monotonic()
        if now - self._last_heartbeat >= self._settings.lease_seconds / 3:
            await self._heartbeat()
            self._last_heartbeat = now
        await self._engine.buckets.ensure_current()
        if any(node.named for node in self._engine.graph.nodes):
            await self._engine.buckets.ensure_named()
        self._engine.promises.excuse_idle()
        for injector in self._engine.injectors:
            injector.tend()
        if self._engine.courier is not None:
            self._engine.courier.repeat()
        self._tend_waiting_bundles(now)
        await self._fold_what_is_due(now)
        if now - self._last_collection >= self._settings.bucket_seconds / 8:
            await self.collect()
            self._last_collection = now

    async def _heartbeat(self) -> None:
        engine = self._engine
        asked, before = engine.clock.monotonic(), engine.clock.now()
        answer = await engine.store.heartbeat(
            engine.worker, self._settings.lease_seconds, engine.load()
        )
        engine.lease.renewed(asked)
        if engine.courier is not None:
            engine.tell_time(before, answer.now)

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
                if found is not None and found[1].injector is not None:
                    found[1].injector.read_up_to(number)
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

    # -- folds --------------------------------------------------------------------------

    async def _fold_what_is_due(self, now: float) -> None:
        settings = self._settings
        due = [
            interval
            for interval in self._engine.intervals
            if interval.durable_n > interval.folded
            and (
                interval.changed_since_fold >= settings.fold_rows
                or (
                    interval.changed_since_fold
                    and now - self._last_fold.get(interval, 0.0) >= settings.fold_seconds
                )
                or now - self._last_fold.get(interval, 0.0) >= settings.bucket_seconds / 8
            )
        ]
        if not due:
            return
        snapshot = await self._engine.store.oldest_snapshot_seconds()
        for interval in due:
            if (
                snapshot > OLD_SNAPSHOT_SECONDS
                and interval.changed_since_fold < settings.fold_tail_rows
                and now - self._last_fold.get(interval, now) < 10 * settings.fold_seconds
            ):
                continue
            await self.fold(interval)
            self._last_fold[interval] = now

    async def fold(self, interval: Interval) -> bool:
        """Fold one interval's durable changes into the current tables (I15)."""
        through, changed = interval.durable_n, interval.changed_since_fold
        folded = await self._engine.store.fold(
            interval.id, interval.sequencer, interval.folded, through
        )
        if folded:
            interval.folded = through
            interval.changed_since_fold = max(0, interval.changed_since_fold - changed)
            if interval.states is not None:
                interval.states.folded = through
        return folded

    # -- buckets ------------------------------------------------------------------------

    async def collect(self) -> None:
        """Retire drained logs and drop buckets that nothing needs any more."""
        engine = self._engine
        await self._retire_logs()
        oldest = engine.buckets.oldest_time_bucket()
        if oldest is not None:
            for interval in engine.intervals:
                if interval.last_bucket == oldest.id:
                    engine.touch(interval, urgent=False)  # its last commit must not go with it
        dropped = await engine.buckets.collect()
        if dropped:
            for interval in engine.intervals:
                if interval.dedup is not None:
                    interval.dedup.forget_buckets(dropped)

    async def _retire_logs(self) -> None:
        engine = self._engine
        retired = [
            (interval, log)
            for interval in engine.intervals
            for log in interval.logs[:-1]
            if log.drained and not log.changed
        ]
        if retired:
            await engine.store.retire_logs([log.id for _, log in retired])
            for interval, log in retired:
                if log in interval.logs:  # else its lane has started over: what is there is sent
                    interval.logs.remove(log)  # again, and retired when that is acknowledged
                    engine.logs.pop(log.id, None)
