"""Folding, and dropping the data that folds have made superfluous: drained logs and buckets.

This may take long, and no other work waits for it; only the tail of unfolded commits grows. One
task at a time folds an interval: this service, or the task that gives the interval up. The store
refuses a fold if the interval has another owner by now, or was claimed again since.
"""

from __future__ import annotations

import contextlib

from millwheel.errors import StoreUnavailable
from millwheel.runtime.environment import Environment
from millwheel.runtime.exchange.exchange import Exchange
from millwheel.runtime.interval.interval import Interval
from millwheel.runtime.interval.interval_fold import fold
from millwheel.runtime.process.service import Service
from millwheel.runtime.seen.seen_buckets import Buckets

OLD_SNAPSHOT_SECONDS = 5.0
"""Folding waits for the end of an older snapshot, which keeps its dead rows alive."""

PATIENCE_WITH_SNAPSHOTS = 10
"""Longest wait for an old snapshot, in multiples of `fold_seconds`."""


class Folding(Service):
    def __init__(self, env: Environment, exchange: Exchange, buckets: Buckets) -> None:
        super().__init__(env.clock, env.settings.housekeeping_seconds)
        self._env = env
        self._exchange = exchange
        self._buckets = buckets
        self._settings = env.settings
        self._folded_at: dict[Interval, float] = {}
        """Time of the last fold, or when the interval was first seen here."""
        self._last_collection = float("-inf")

    async def run_once(self) -> None:
        now = self._env.clock.monotonic()
        await self._fold_due_intervals(now)
        if now - self._last_collection >= self._settings.bucket_seconds / 8:
            await self.collect()
            self._last_collection = now

    # -- folds --------------------------------------------------------------------------

    async def _fold_due_intervals(self, now: float) -> None:
        intervals = self._exchange.intervals
        self._folded_at = {i: self._folded_at.get(i, now) for i in intervals}
        due = [interval for interval in intervals if self._is_due(interval, now)]
        if not due:
            return
        snapshot = await self._env.store.oldest_snapshot_seconds()
        for interval in due:
            if interval.leaving or (
                snapshot > OLD_SNAPSHOT_SECONDS and self._may_wait(interval, now)
            ):
                continue
            with contextlib.suppress(StoreUnavailable):  # fold the other intervals nevertheless
                await fold(self._env.store, interval)
                self._folded_at[interval] = now

    def _is_due(self, interval: Interval, now: float) -> bool:
        settings = self._settings
        if interval.commits.durable_n <= interval.commits.folded:
            return False
        waited = now - self._folded_at[interval]
        return (
            interval.commits.changed_since_fold >= settings.fold_rows
            or (interval.commits.changed_since_fold > 0 and waited >= settings.fold_seconds)
            or waited >= settings.bucket_seconds / 8
        )

    def _may_wait(self, interval: Interval, now: float) -> bool:
        settings = self._settings
        patience = PATIENCE_WITH_SNAPSHOTS * settings.fold_seconds
        return (
            interval.commits.changed_since_fold < settings.fold_tail_rows
            and now - self._folded_at[interval] < patience
        )

    # -- buckets ------------------------------------------------------------------------

    async def collect(self) -> None:
        await self._retire_logs()
        oldest = self._buckets.oldest_time_bucket()
        if oldest is not None:
            for interval in self._exchange.intervals:
                if interval.commits.last_bucket == oldest.id:
                    interval.touch(urgent=False)  # move its last commit to a newer bucket
        dropped = await self._buckets.collect()
        if dropped:
            for interval in self._exchange.intervals:
                if interval.dedup is not None:
                    interval.dedup.forget_buckets(dropped)

    async def _retire_logs(self) -> None:
        retired = [
            (interval, log)
            for interval in self._exchange.intervals
            for log in interval.logs[:-1]
            if log.drained and not log.changed
        ]
        if retired:
            await self._env.store.retire_logs([log.id for _, log in retired])
            for interval, log in retired:
                # A restart of the lane may have replaced the logs. The new objects send their
                # productions again, and are retired when these are acknowledged.
                if log in interval.logs:
                    interval.logs.remove(log)
                    self._exchange.logs.pop(log.id, None)
