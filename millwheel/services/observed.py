"""A running engine as those outside see it: its figures, and whether it can work.

::

    engine = Engine(...)
    observed = EngineObserved(engine)  # before it starts, so that no claim is missed
    async with HttpService(observed, address):
        await engine.start()
        ...
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import msgspec

from millwheel import __version__
from millwheel.errors import StoreError
from millwheel.model import MIN_TIME
from millwheel.runtime.engine import Engine
from millwheel.runtime.interval.interval import Interval
from millwheel.runtime.interval.routing import Step
from millwheel.runtime.process.observer import Observer
from millwheel.services.figures import ComputationFigures, Durations, Figures, Tally

STORE_SECONDS = 1.0
"""How long the store may take to say what time it is; a round trip takes a millisecond."""


class EngineObserved(Observer):
    """Counts what an engine does from now on, and tells it (`millwheel.services.figures.Observed`)."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._tally = Tally()
        self._commits = Durations()
        self._fenced = 0
        self._asking: asyncio.Task[int] | None = None
        for interval in engine.intervals:
            self.interval_taken(interval)
        engine.observer = self

    # -- what the engine tells ------------------------------------------------------------

    def interval_taken(self, interval: Interval) -> None:
        self._tally.claimed(interval.id, _totals(interval))

    def interval_gone(self, interval: Interval) -> None:
        self._tally.released(interval.id, interval.step.name, _totals(interval))

    def interval_fenced(self, interval: Interval) -> None:
        self._fenced += 1

    def commit_durable(self, seconds: float) -> None:
        self._commits.observe(seconds)

    # -- what others ask ------------------------------------------------------------------

    def figures(self) -> Figures:
        """Its figures now. Called in the event loop; waits for nothing."""
        engine = self._engine
        counted = self._tally.counted((i.id, i.step.name, _totals(i)) for i in engine.intervals)
        return Figures(
            pipeline=engine.pipeline.name,
            worker=engine.worker,
            version=__version__,
            now=engine.now(),
            lease_seconds_left=max(0.0, engine.lease.left),
            fenced=self._fenced,
            commits=self._commits.distribution(),
            computations=tuple(
                _computation(step, engine.holdings.of(step.id), counted.get(step.name, {}))
                for step in engine.steps.values()
            ),
        )

    async def why_not_ready(self) -> str | None:
        """Why it cannot process records now; None: it can."""
        engine = self._engine
        if engine.failure is not None:
            return f"it has failed: {engine.failure}"
        if engine.stopping:
            return "it is stopping"
        if not engine.started:
            return "it is still starting"
        if engine.lease.left <= 0:
            return "its lease is over: it may touch no interval until the store renews it"
        if engine.out_of_touch:
            others = ", ".join(sorted(worker[:8] for worker in engine.out_of_touch))
            return (
                f"it does not reach the workers {others}, who share the pipeline: it takes no "
                "intervals. Its log says why (link_down, stranger_refused)"
            )
        for interval in engine.intervals:
            if interval.part_file is not None and interval.part_file.no_room is not None:
                return f"commits wait for room: {interval.part_file.no_room}"
        return await self._why_no_store()

    async def _why_no_store(self) -> str | None:
        """Ask the store for the time. A question that it has not answered is not asked again:
        those who look every second would take up all connections with it."""
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
            return f"the store has not answered for {STORE_SECONDS:g} s"
        error = asking.exception()
        if isinstance(error, StoreError):
            return f"the store does not answer: {error}"
        if error is not None:
            raise error
        return None

    def _answered(self, asking: asyncio.Task[int]) -> None:
        self._asking = None
        if not asking.cancelled():
            asking.exception()  # whoever asked may have gone: then nobody else looks at it


def _totals(interval: Interval) -> dict[str, int]:
    """What is counted and durable: totals of a commit that fails would be taken back."""
    found: dict[str, int] = msgspec.json.decode(interval.durable_counters)
    return found


def _computation(
    step: Step, intervals: list[Interval], counters: dict[str, int]
) -> ComputationFigures:
    tasks = [interval.source_task for interval in intervals if interval.source_task is not None]
    flows = [flow for task in tasks if (flow := task.flow()) is not None]
    return ComputationFigures(
        name=step.name,
        intervals=len(intervals),
        counters=counters,
        backlog=sum(len(interval.intake) for interval in intervals),
        unacked=sum(log.unacked for interval in intervals for log in interval.logs),
        lag_rows=_known_sum(flow.lag_rows for flow in flows),
        lag_bytes=_known_sum(flow.lag_bytes for flow in flows),
        pending_cap=sum(flow.cap for flow in flows) if flows else None,
        acknowledge_seconds=max((f.latency for f in flows if f.latency is not None), default=None),
        latency_target_seconds=flows[0].target if flows else None,
        input_watermark=min((i.input_watermark for i in intervals), default=MIN_TIME),
        low_watermark=min((i.durable for i in intervals), default=MIN_TIME),
    )


def _known_sum(parts: Iterable[int | None]) -> int | None:
    """The sum of the parts that are known; None: none is."""
    known = [part for part in parts if part is not None]
    return sum(known) if known else None
