"""The lane of a worker: its intervals, a runner, a committer, and the connection between them.

A worker has one lane (decision 46). It has one ordered chain of commits (I12).
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from millwheel.runtime.environment import Environment
from millwheel.runtime.exchange.exchange import Exchange
from millwheel.runtime.exchange.watermark_publisher import WatermarkPublisher
from millwheel.runtime.interval.interval import Interval
from millwheel.runtime.interval.ports import AtWork
from millwheel.runtime.interval.work import IntervalWork
from millwheel.runtime.lane.commit_timer import CommitTimer
from millwheel.runtime.lane.committer import Committer, Committing
from millwheel.runtime.lane.dead_letter_log import DeadLetterLog
from millwheel.runtime.lane.lane_intervals import LaneIntervals
from millwheel.runtime.lane.open_commit import OpenCommits
from millwheel.runtime.lane.recovery import Claims, Recovery
from millwheel.runtime.lane.runner import Runner
from millwheel.runtime.lane.sorting import Sorter
from millwheel.runtime.lane.worker_tasks import WorkerTasks
from millwheel.runtime.modes.choosing import Modes
from millwheel.runtime.seen.seen_buckets import Buckets


class Lane:
    """Runs and commits the work of its intervals, in order.

    Args:
        modes: their own work stops with the runner.
    """

    def __init__(
        self,
        env: Environment,
        exchange: Exchange,
        buckets: Buckets,
        publisher: WatermarkPublisher,
        modes: Modes,
    ) -> None:
        self._env = env
        self._exchange = exchange
        self._buckets = buckets
        self._modes = modes
        self._intervals = LaneIntervals()
        self.commits = OpenCommits(env)
        self.letters = DeadLetterLog(env.log, env.clock, exchange.steps)
        self.tasks = WorkerTasks(
            env, self.commits.add, self.commits.add_run, self._code_ran, self._task_ended
        )
        self.sorter = Sorter(env, exchange, buckets)
        self.runner = Runner(env, exchange, self._intervals, self.commits, self.sorter, self.tasks)
        self.committer = Committer(
            env,
            exchange,
            buckets,
            publisher,
            self.letters,
            self._intervals,
            self.commits,
            self.runner,
        )
        self.runner.on_full = self.committer.build_early
        self._timer = CommitTimer(env.settings, self.commits.wanted)
        self.wake = self.runner.wake
        self._is_suspended = False
        """Whether the worker is giving up all intervals: no runner may take their work."""

    def use(self, claims: Claims) -> None:
        """Set the means to claim intervals again after a failed commit."""
        committer = self.committer
        committer.recovery = Recovery(self._env, self._exchange, self._buckets, self, claims)
        committer.on_recovered = self.run_on

    # -- life ---------------------------------------------------------------------

    @property
    def intervals(self) -> list[Interval]:
        return self._intervals.all

    @property
    def busy(self) -> bool:
        """Whether any work is running, finished and uncommitted, or on the wire."""
        return self.committer.is_committing or not self.commits.is_empty or len(self.tasks) > 0

    async def start(self) -> None:
        await self.committer.connect()
        self.runner.start()
        self._env.spawn(self.committer.run(), "committer")

    async def stop_running(self) -> None:
        """Take no more work; user code that waits is cancelled and will run again."""
        await self.runner.stop()
        await self._modes.pause()

    def run_on(self) -> None:
        """Take work again after `stop_running`; no-op during recovery, which starts the runner
        itself, and while the worker gives up all intervals."""
        recovering = self.committer.state is Committing.RECOVERING
        if self.runner.is_stopped and not recovering and not self._is_suspended:
            self.runner.start()

    async def suspend(self) -> None:
        """Take no work until `unsuspend`, and drop all uncommitted work."""
        self._is_suspended = True
        await self.stop_running()
        self.commits.drop()

    def unsuspend(self) -> None:
        self._is_suspended = False
        self.run_on()

    async def close(self) -> None:
        self._timer.cancel()
        await self.committer.close()

    def _code_ran(self, interval: Interval, calls: int, seconds: float) -> None:
        interval.workload.code.observe(seconds, calls)
        self._exchange.observer.code_ran(interval, calls, seconds)

    def _task_ended(self) -> None:
        self.commits.announce()
        self.wake.set()

    @property
    def is_recovering(self) -> bool:
        return self.committer.state is Committing.RECOVERING

    # -- for its intervals (`LanePort`) --------------------------------------------------

    def add(self, interval: Interval) -> None:
        interval.lane = self
        self._intervals.add(interval)

    def remove(self, interval: Interval) -> None:
        """Remove a drained interval and wake tasks that wait for the drain."""
        interval.lane = None
        self._timer.forget(interval)
        self._intervals.remove(interval)
        self.commits.announce()

    async def drain(self, interval: Interval) -> None:
        """Wait until no work of a leaving interval runs or waits for a commit."""
        commits = self.commits
        while interval in self._intervals and (
            interval is self.runner.sorting
            or interval.backlog
            or interval.dirty
            or commits.holds(interval)
            or interval in self.committer.on_wire
            or interval.mode.is_busy
        ):
            if commits.has_any(self.intervals):
                commits.wanted.set()
            await commits.settled()

    def resume(self, interval: Interval) -> None:
        """Resume an interval after its hand-over was cancelled."""
        self.touch(interval, urgent=interval.watermarks.has_news())
        interval.mode.resume()
        self.wake.set()

    def touch(self, interval: Interval, *, urgent: bool) -> None:
        self._timer.touch(interval, urgent=urgent)

    def open_work(self, interval: Interval, *, alone: bool = False) -> IntervalWork:
        return self.commits.work(interval, alone=alone)

    def run_apart(self, interval: Interval, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self.tasks.run_apart(interval, work)

    def at_work(self, interval: Interval) -> AtWork:
        return self.tasks.at_work(interval)

    async def settled(self) -> None:
        await self.commits.settled()
