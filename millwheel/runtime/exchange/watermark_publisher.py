"""Publishes low watermarks to readers after they are stored (I5).

An interval's low watermark is a promise to its readers, durable before any of them receives it,
here or on another worker. Readers then fire timers, and may raise their own low watermarks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Set

from millwheel.core.model import MAX_TIME
from millwheel.runtime.environment import Environment
from millwheel.runtime.exchange.exchange import Exchange
from millwheel.runtime.interval.interval import Interval
from millwheel.runtime.interval.ports import SourcePort
from millwheel.runtime.interval.work import IntervalWork
from millwheel.timers.watermark import WatermarkReport, Watermarks


class WatermarkPublisher:
    """Keeps and publishes the stored low watermarks of all intervals that this worker knows of."""

    def __init__(self, env: Environment, exchange: Exchange) -> None:
        self._env = env
        self._exchange = exchange
        self.publish: Callable[[Interval], None] = lambda _: None
        """Sends an interval's stored low watermarks to other workers."""
        self.watermarks = Watermarks()
        self._growing: set[int] = set()
        """Injectors that may get new partitions while they run."""
        self._idle: list[SourcePort] = []
        """The source tasks here that were idle at the last `excuse_idle`."""

    def connect(self) -> None:
        """Register each node as a sender, and each computation as a reader of those upstream."""
        by_name = {step.name: step for step in self._exchange.steps.values()}
        for step in by_name.values():
            injection = step.node.injection
            grows = injection is not None and injection.growing is not None
            slots, free = (1, step.slots - 1) if grows else (step.slots, 0)
            if grows:
                self._growing.add(step.id)
            self.watermarks.add_sender(step.id, slots, free)
            if step.node.kind != "injector":
                senders = [by_name[node.name].id for node in self._env.graph.upstream(step.node)]
                self.watermarks.add_reader(step.id, senders)

    def restore(self) -> None:
        """Start from the low watermarks that the intervals here have stored. All their readers here
        continue from these, including intervals that were here before."""
        intervals = self._exchange.intervals
        for interval in intervals:
            self.watermarks.report(interval.report(interval.watermarks.durable))
        for interval in intervals:
            if interval.source_task is None:
                interval.watermarks.raise_input(self.watermarks.input(interval.step.id))
                self._consider(interval)

    def stored(self, interval: Interval, work: IntervalWork) -> None:
        """A commit is durable: publish the low watermarks that it has stored (I5)."""
        if interval.source_task is not None:
            self.excuse_idle()
        self.publish(interval)
        self.take_report(interval.report(work.low_watermark))

    def take_report(self, report: WatermarkReport) -> None:
        """Take a stored low watermark of any worker's interval; its readers here continue from
        it."""
        readers = self.watermarks.report(report)
        self._follow(report.computation)
        self._raise_inputs(readers)

    def free(self, computation: int, slot: int, kept: Set[int]) -> None:
        """Forget ended partitions of a source that exist no more, in slots from `slot` on.

        Args:
            kept: the slots of those that exist.
        """
        self._raise_inputs(self.watermarks.free(computation, slot, kept))

    def _raise_inputs(self, readers: Iterable[int]) -> None:
        for computation in readers:
            moved = self.watermarks.input(computation)
            for reader in self._exchange.of(computation):
                reader.watermarks.raise_input(moved)
                self._consider(reader)

    def _follow(self, computation: int) -> None:
        """A partition has stored its low watermark: if the source's discovery of partitions runs
        here, it promises the least one of all partitions."""
        if computation in self._growing:
            for interval in self._exchange.of(computation):
                if interval.source_task is not None:
                    interval.source_task.follow()

    def _consider(self, interval: Interval) -> None:
        """An interval's input has moved: wake it if timers are due or must be read (holds of user
        code included), or store its low watermark if that has risen."""
        now = self._env.now()
        if interval.timers.has_due(now) or interval.timers.lacking(now):
            interval.wake()
        elif interval.watermarks.has_news():
            interval.touch(urgent=True)

    def excuse_idle(self) -> None:
        """Advance idle partitions here to the least low watermark of the partitions that are not
        idle, here or elsewhere.

        Other workers' low watermarks come from their reports, and are stored. An outdated report
        that a partition is idle does no harm: an idle partition promises only for its own rows, and
        readers still use the least low watermark of all partitions (decision 26).
        """
        tasks = {i.source_task: i for i in self._exchange.intervals if i.source_task is not None}
        idle = [task for task in tasks if task.idle]
        for task, interval in tasks.items():
            if (task in idle) != (task in self._idle):
                self._publish_here(interval)
        self._idle = idle
        if not idle:
            return
        least = self._least_awake()
        if least is None:
            return  # all partitions are idle: event time stands still
        for task in idle:
            task.advance_idle(least)

    def _publish_here(self, interval: Interval) -> None:
        """Report an interval's stored low watermarks, with its present idleness, to readers
        here."""
        self.take_report(interval.report(interval.watermarks.durable))

    def _least_awake(self) -> int | None:
        """The least stored low watermark of partitions that are neither idle nor ended; None: there
        are none."""
        found = [
            self.watermarks.least_awake(step.id)
            for step in self._exchange.steps.values()
            if step.node.kind == "injector"
        ]
        return min((least for least in found if least not in (None, MAX_TIME)), default=None)
