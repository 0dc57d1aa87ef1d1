"""Observe a running engine from outside: its figures and its readiness.

::

    engine = Engine(...)
    observed = EngineObserved(engine)  # before the start, so that no claim is missed
    async with HttpService(observed, address):
        await engine.start()
        ...
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Sequence

import msgspec

from millwheel import __version__
from millwheel.core.model import MIN_TIME, Delivery
from millwheel.errors import StoreError
from millwheel.runtime.engine import Engine
from millwheel.runtime.interval.interval import Interval, waiting
from millwheel.runtime.interval.observer import Observer
from millwheel.runtime.interval.step import Step
from millwheel.runtime.interval.work import IntervalWork
from millwheel.runtime.process.durations import CODE_BOUNDS, Durations
from millwheel.services.certificates import Certificate
from millwheel.services.worker_figures import ComputationFigures, Figures, Tally

STORE_SECONDS = 1.0
"""Time limit for the store to return its time; a round trip takes a millisecond."""


class EngineObserved(Observer):
    def __init__(self, engine: Engine, certificates: Sequence[Certificate] = ()) -> None:
        self._engine = engine
        self._certificates = certificates
        self._tally = Tally()
        self._commits = Durations()
        self._code: defaultdict[str, Durations] = defaultdict(lambda: Durations(CODE_BOUNDS))
        self._acknowledgements: defaultdict[str, Durations] = defaultdict(Durations)
        self._stages: defaultdict[str, Durations] = defaultdict(Durations)
        self._fenced = 0
        self._asking: asyncio.Task[int] | None = None
        for interval in engine.intervals:
            self.interval_taken(interval)
        engine.observe(self)

    # -- hooks that the engine calls ------------------------------------------------------

    def interval_taken(self, interval: Interval) -> None:
        self._tally.claimed(interval.id, _totals(interval))

    def interval_gone(self, interval: Interval) -> None:
        self._tally.released(interval.id, interval.step.name, _totals(interval))

    def interval_fenced(self, interval: Interval) -> None:
        self._fenced += 1

    def code_ran(self, interval: Interval, calls: int, seconds: float) -> None:
        self._code[interval.step.name].observe(seconds, calls)

    def records_durable(self, interval: Interval, work: IntervalWork) -> None:
        stage, now = self._stages[interval.step.name], self._engine.env.now()
        for chunk in work.chunks:
            if not chunk.origin:
                stage.observe(max(0, now - chunk.stamp) / 1e6, len(chunk))
        for item in work.items:
            if type(item) is Delivery and not item.origin:
                stage.observe(max(0, now - item.stamp) / 1e6)  # a stamp may be ahead of the clock

    def rows_acknowledged(self, interval: Interval, seconds: float) -> None:
        self._acknowledgements[interval.step.name].observe(seconds)

    def commit_durable(self, seconds: float) -> None:
        self._commits.observe(seconds)

    # -- the interface for observers ------------------------------------------------------

    def figures(self) -> Figures:
        engine = self._engine
        since = engine.lane.committer.waits_since
        counted = self._tally.counted((i.id, i.step.name, _totals(i)) for i in engine.intervals)
        return Figures(
            pipeline=engine.pipeline.name,
            worker=engine.worker,
            version=__version__,
            now=engine.env.now(),
            lease_seconds_left=max(0.0, engine.lease.left),
            fenced=self._fenced,
            certificates={one.use: one.expires.timestamp() for one in self._certificates},
            commits=self._commits.distribution(),
            oldest_commit_seconds=0.0 if since is None else engine.clock.monotonic() - since,
            blocked_seconds=engine.blocked_seconds,
            code={
                step.name: self._code[step.name].distribution()
                for step in engine.exchange.steps.values()
                if step.node.computation is not None
            },
            stages={
                step.name: self._stages[step.name].distribution()
                for step in engine.exchange.steps.values()
                if step.node.injection is None
            },
            acknowledgements={
                step.name: self._acknowledgements[step.name].distribution()
                for step in engine.exchange.steps.values()
                if step.node.injection is not None
            },
            computations=tuple(
                _computation(
                    step, engine.exchange.of(step.id), counted.get(step.name, {}), engine.env.now()
                )
                for step in engine.exchange.steps.values()
            ),
        )

    @property
    def blocked_by(self) -> str | None:
        return self._engine.blocked_by

    async def why_not_ready(self) -> str | None:
        engine = self._engine
        if engine.failure is not None:
            return f"it has failed: {engine.failure}"
        if engine.stopping:
            return "it is stopping"
        if not engine.started:
            return "it is still starting"
        if engine.lease.left <= 0:
            return "its lease has expired: it may not use its intervals until the store renews it"
        if engine.out_of_touch:
            others = ", ".join(sorted(worker[:8] for worker in engine.out_of_touch))
            return (
                f"it does not reach the workers {others} of the same pipeline, so it takes no "
                "intervals. Its log shows the reason (link_down, stranger_refused)"
            )
        if engine.env.store_wait is not None:
            return str(engine.env.store_wait)
        if engine.unowned and not engine.intervals:
            return (
                f"it owns no interval, and {engine.unowned} intervals have no owner: nothing "
                "assigns them, or this worker may not take them (`millwheel status` tells; with "
                "older code than the last owner's it may not)"
            )
        for interval in engine.intervals:
            if interval.part_file is not None and interval.part_file.no_room is not None:
                return f"commits wait for disk space: {interval.part_file.no_room}"
        return await self._why_no_store()

    async def _why_no_store(self) -> str | None:
        """Ask the store for the time, and return an error text if it does not answer.

        At most one query is outstanding: probes every second would otherwise use up all
        connections.
        """
        asking = self._asking
        if asking is None:
            asking = self._asking = asyncio.create_task(self._engine.store.now())
            asking.add_done_callback(self._answered)
        late = asyncio.create_task(self._engine.clock.sleep(STORE_SECONDS))
        try:
            await asyncio.wait((asking, late), return_when=asyncio.FIRST_COMPLETED)
        finally:
            late.cancel()
        if not asking.done():
            return f"the store has not answered within {STORE_SECONDS:g} s"
        error = asking.exception()
        if isinstance(error, StoreError):
            return f"the store does not answer: {error}"
        if error is not None:
            raise error
        return None

    def _answered(self, asking: asyncio.Task[int]) -> None:
        self._asking = None
        if not asking.cancelled():
            asking.exception()  # retrieve it, since the caller may have been cancelled


def _totals(interval: Interval) -> dict[str, int]:
    """Durable counters only; those of a commit that fails would be rolled back."""
    found: dict[str, int] = msgspec.json.decode(interval.counters.durable)
    return found


def _computation(
    step: Step, intervals: list[Interval], counters: dict[str, int], now: int
) -> ComputationFigures:
    tasks = [interval.source_task for interval in intervals if interval.source_task is not None]
    work = [one.lane.at_work(one) for one in intervals if one.lane is not None]
    flows = [flow for task in tasks if (flow := task.flow()) is not None]
    return ComputationFigures(
        name=step.name,
        intervals=len(intervals),
        counters=counters,
        backlog=sum(map(waiting, intervals)),
        keys_at_work=sum(each.keys for each in work),
        oldest_at_work_seconds=max((each.seconds for each in work), default=0.0),
        unacked=sum(log.unacked for interval in intervals for log in interval.logs),
        lag_rows=_known_sum(flow.lag_rows for flow in flows),
        lag_bytes=_known_sum(flow.lag_bytes for flow in flows),
        pending_cap=sum(flow.cap for flow in flows) if flows else None,
        acknowledge_seconds=max((f.latency for f in flows if f.latency is not None), default=None),
        latency_target_seconds=flows[0].target if flows else None,
        bundle_open_seconds=None if step.node.bundles is None else _open_seconds(intervals, now),
        input_watermark=min((i.watermarks.input for i in intervals), default=MIN_TIME),
        low_watermark=min((i.watermarks.durable for i in intervals), default=MIN_TIME),
    )


def _open_seconds(intervals: list[Interval], now: int) -> float:
    """How long the oldest bundle of some intervals is being delivered; 0: none is."""
    since = [one.mode.busy_since for one in intervals if one.mode.busy_since is not None]
    return max(0.0, (now - min(since)) / 1e6) if since else 0.0


def _known_sum(parts: Iterable[int | None]) -> int | None:
    known = [part for part in parts if part is not None]
    return sum(known) if known else None
