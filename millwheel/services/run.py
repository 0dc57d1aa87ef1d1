"""Runs a pipeline in this process until its input ends, somebody stops it, or it fails.

::

    deploy, claim ──> run ──┬── all input is processed ──> "complete" or "nothing to do"
          │                 ├── asked to stop ───────────> "stopped": finished bundles committed
          │                 └── an error ────────────────> raised
          └── asked to stop: nothing was begun ──────────> "stopped"

Whatever the end, the lease is given up and the connections are closed before it is told.
Beside the engine run a reporter, who hands the figures to whoever shows them, and, for an
embedded store, somebody who starts a server again that was killed.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, Literal

import structlog

from millwheel.clock import Clock, SystemClock
from millwheel.errors import StoreError
from millwheel.model import MAX_TIME
from millwheel.pipeline import Pipeline
from millwheel.runtime.engine import Engine
from millwheel.runtime.service import Service
from millwheel.store.postgres import PostgresStore

TEND_SECONDS = 2.0
"""How often an embedded server is looked after; a look is one round trip."""

Outcome = Literal["complete", "nothing to do", "stopped"]


@dataclass(frozen=True)
class Progress:
    """How far a run is."""

    processed: int
    """Records and timers, over all computations, whose effects are durable; this run."""
    read: int
    """Rows read from the sources; this run."""
    per_second: float
    """Processed, since the report before."""
    low_watermark: int
    """The least of all intervals', microseconds."""
    backlog: int
    """Records waiting to be processed."""
    share: float
    """Of the input, 0 to 1, read so far."""
    seconds: float
    """Since the run began."""


@dataclass(frozen=True)
class Summary:
    """How a run ended."""

    pipeline: str
    outcome: Outcome
    processed: int
    read: int
    seconds: float
    low_watermark: int
    counters: dict[str, int] = field(default_factory=dict)
    """What the computations counted in this run."""

    @property
    def per_second(self) -> float:
        """Processed records per second, starting and ending included."""
        return self.processed / self.seconds if self.seconds > 0 else 0.0


class Reporter(Service):
    """Tells how far the engine is, again and again."""

    def __init__(
        self, engine: Engine, show: Callable[[Progress], None], clock: Clock, period: float
    ) -> None:
        super().__init__(clock, period)
        self._engine = engine
        self._show = show
        self._began = self._last = clock.monotonic()
        self._last_processed = 0

    async def run_once(self) -> None:
        now = self._clock.monotonic()
        found = self._engine.progress()
        passed = max(now - self._last, 1e-9)
        self._show(
            Progress(
                processed=found["processed"],
                read=found["read"],
                per_second=(found["processed"] - self._last_processed) / passed,
                low_watermark=found["low_watermark"],
                backlog=found["backlog"],
                share=found["share"],
                seconds=now - self._began,
            )
        )
        self._last, self._last_processed = now, found["processed"]


class Tending(Service):
    """Calls something that looks after the store, and that may block."""

    def __init__(self, tend: Callable[[], None], clock: Clock) -> None:
        super().__init__(clock, TEND_SECONDS)
        self._tend = tend

    async def run_once(self) -> None:
        try:
            await asyncio.to_thread(self._tend)
        except StoreError as error:
            structlog.get_logger().warning("store_not_restarted", error=str(error))


class Run:
    """One run of a pipeline.

    Args:
        url: where the store is; its schema is at the right version.
        close_at_end: as `Engine`'s.
        inject_copies: as `Engine`'s.
        show: gets the figures every `show_seconds`.
        tend: called every few seconds, in a thread, to look after the store.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        url: str,
        *,
        close_at_end: bool = True,
        inject_copies: int = 1,
        show: Callable[[Progress], None] | None = None,
        show_seconds: float = 1.0,
        tend: Callable[[], None] | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._pipeline = pipeline
        self._url = url
        self._close_at_end = close_at_end
        self._inject_copies = inject_copies
        self._show = show
        self._show_seconds = show_seconds
        self._tend = tend
        self._clock = clock or SystemClock()

    async def run(self, stop: asyncio.Event | None = None) -> Summary:
        """Work until there is nothing left to do, or `stop` is set.

        Raises:
            MillwheelError: why it cannot go on; nothing that was acknowledged is lost.
        """
        pipeline = self._pipeline
        stop = stop or asyncio.Event()
        began = self._clock.monotonic()
        store = PostgresStore(
            self._url,
            pipeline.name,
            lock_timeout_milliseconds=pipeline.settings.lock_timeout_milliseconds,
        )
        await store.open()
        try:
            engine = Engine(
                pipeline,
                store,
                clock=self._clock,
                close_at_end=self._close_at_end,
                inject_copies=self._inject_copies,
            )
            before = await self._work(engine, stop)
        finally:
            await store.close()
        found = engine.progress()
        return Summary(
            pipeline.name,
            _outcome(engine),
            processed=found["processed"],
            read=found["read"],
            seconds=self._clock.monotonic() - began,
            low_watermark=found["low_watermark"] if engine.intervals else MAX_TIME,
            counters=dict(sorted((_counters(engine) - before).items())),
        )

    async def _work(self, engine: Engine, stop: asyncio.Event) -> Counter[str]:
        """Start, run and end the engine; gives what had been counted before."""
        before: Counter[str] = Counter()
        beside = [asyncio.create_task(service.run()) for service in self._services(engine)]
        try:
            if await _unless(stop, engine.start()):
                before = _counters(engine)
                await engine.run(stop)
                if stop.is_set() and not engine.done.is_set():
                    engine.log.info("stopping")
        finally:
            for task in beside:
                task.cancel()
            await asyncio.gather(*beside, return_exceptions=True)
            await engine.stop()
        if engine.failure is not None:
            raise engine.failure
        return before

    def _services(self, engine: Engine) -> list[Service]:
        services: list[Service] = []
        if self._show is not None:
            services.append(Reporter(engine, self._show, self._clock, self._show_seconds))
        if self._tend is not None:
            services.append(Tending(self._tend, self._clock))
        return services


async def _unless(stop: asyncio.Event, work: Coroutine[Any, Any, None]) -> bool:
    """Do `work` to its end, unless `stop` is set meanwhile; then it is cancelled."""
    working = asyncio.create_task(work)
    stopping = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait((working, stopping), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            return False
        working.result()
        return True
    finally:
        for task in (working, stopping):
            task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.gather(working, stopping, return_exceptions=True)


def _counters(engine: Engine) -> Counter[str]:
    total: Counter[str] = Counter()
    for interval in engine.intervals:
        total.update(interval.counters)
    return total


def _outcome(engine: Engine) -> Outcome:
    if not engine.done.is_set():
        return "stopped"
    found = engine.progress()
    return "complete" if found["processed"] or found["read"] else "nothing to do"
