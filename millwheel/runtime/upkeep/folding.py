"""Folds, and the dropping of what they have made superfluous: logs that are drained, buckets.

All of it takes as long as there are rows, readers in the way, or a store that is slow; nothing but
the size of the tail waits for it. An interval is folded by one at a time: by this service, or by
who gives it up (`millwheel.runtime.ownership.owned_intervals`), and then by nobody else any more. The store refuses
a fold of what has another owner by now, or of what a lane has claimed again meanwhile.
"""

from __future__ import annotations

import contextlib

from millwheel.errors import StoreUnavailable
from millwheel.runtime.environment import Environment
from millwheel.runtime.interval.buckets import Buckets
from millwheel.runtime.interval.exchange import Exchange
from millwheel.runtime.interval.folds import fold
from millwheel.runtime.interval.interval import Interval
from millwheel.runtime.process.service import Service

OLD_SNAPSHOT_SECONDS = 5.0
"""A snapshot this old keeps the dead rows of folds alive: folding waits for it, in bounds."""

PATIENCE_WITH_SNAPSHOTS = 10
"""For so many times `fold_seconds`."""


class Folding(Service):
    """Folds what has changed, retires logs and drops buckets."""

    def __init__(self, env: Environment, exchange: Exchange, buckets: Buckets) -> None:
        super().__init__(env.clock, env.settings.housekeeping_seconds)
        self._env = env
        self._exchange = exchange
        self._buckets = buckets
        self._settings = env.settings
        self._folded_at: dict[Interval, float] = {}
        """When an interval was folded last; before that, when it was first seen here."""
        self._last_collection = float("-inf")

    async def run_once(self) -> None:
        now = self._env.clock.monotonic()
        await self._fold_what_is_due(now)
        if now - self._last_collection >= self._settings.bucket_seconds / 8:
            await self.collect()
            self._last_collection = now

    # -- folds --------------------------------------------------------------------------

    async def _fold_what_is_due(self, now: float) -> None:
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
            with contextlib.suppress(StoreUnavailable):  # the others have their turn all the same
                await fold(self._env.store, interval)
                self._folded_at[interval] = now

    def _is_due(self, interval: Interval, now: float) -> bool:
        settings = self._settings
        if interval.commits.durable_n <= interval.commits.folded:
            return False
        passed = now - self._folded_at[interval]
        return (
            interval.commits.changed_since_fold >= settings.fold_rows
            or (interval.commits.changed_since_fold > 0 and passed >= settings.fold_seconds)
            or passed >= settings.bucket_seconds / 8
        )

    def _may_wait(self, interval: Interval, now: float) -> bool:
        """Whether an interval that is due bears to be folded later."""
        settings = self._settings
        patience = PATIENCE_WITH_SNAPSHOTS * settings.fold_seconds
        return (
            interval.commits.changed_since_fold < settings.fold_tail_rows
            and now - self._folded_at[interval] < patience
        )

    # -- buckets ------------------------------------------------------------------------

    async def collect(self) -> None:
        """Retire drained logs and drop buckets that nothing needs any more."""
        await self._retire_logs()
        oldest = self._buckets.oldest_time_bucket()
        if oldest is not None:
            for interval in self._exchange.intervals:
                if interval.commits.last_bucket == oldest.id:
                    interval.touch(urgent=False)  # its last commit must not go with it
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
                if log in interval.logs:  # else its lane has started over: what is there is sent
                    interval.logs.remove(log)  # again, and retired when that is acknowledged
                    self._exchange.logs.pop(log.id, None)
