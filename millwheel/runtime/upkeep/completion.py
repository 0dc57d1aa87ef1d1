from __future__ import annotations

from millwheel.runtime.environment import Environment
from millwheel.runtime.exchange.exchange import Exchange
from millwheel.runtime.exchange.watermark_publisher import WatermarkPublisher
from millwheel.runtime.interval.interval import Interval
from millwheel.runtime.lane.lane import Lane
from millwheel.runtime.source.pausing import PausedInjectors


class Completion:
    """Sets `Environment.done` when no source has another row and no work is left."""

    def __init__(
        self,
        env: Environment,
        exchange: Exchange,
        publisher: WatermarkPublisher,
        lane: Lane,
        paused: PausedInjectors,
    ) -> None:
        self._env = env
        self._exchange = exchange
        self._publisher = publisher
        self._lane = lane
        self._paused = paused
        self.is_open = False
        """The requests of operators that were waiting at the start have been read."""

    def check(self) -> None:
        env, intervals = self._env, self._exchange.intervals
        tasks = self._exchange.source_tasks
        if not self.is_open or self._paused or not all(task.has_nothing for task in tasks):
            return
        if env.is_shared and not self._publisher.watermarks.all_at_end():
            return  # other workers have work left, or some intervals have no owner
        now = env.now()
        ended = not env.options.keep_open and all(task.ended for task in tasks)
        is_over = Interval.is_finished if ended else Interval.is_idle
        if all(is_over(interval, now) for interval in intervals) and not self._lane.busy:
            env.done.set()
