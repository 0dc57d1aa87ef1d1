"""Run an engine in a process: start, run and shut down, with services that run beside it.

::

    deploy, claim ──> run ──┬── all input is processed ──> done
          │                 ├── stop requested ──────────> finished bundles are committed
          │                 └── an error ────────────────> raised
          └── stop requested: nothing was started

In every case the lease is given up and the connections are closed before the result is reported.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import structlog

from millwheel.core.clock import Clock
from millwheel.core.codec import reason
from millwheel.core.model import MAX_TIME, MIN_TIME
from millwheel.errors import MillwheelError, StoreError
from millwheel.pipeline import Pipeline
from millwheel.runtime.engine import Engine
from millwheel.runtime.interval.interval import waiting
from millwheel.runtime.process.service import Service
from millwheel.runtime.process.tasks import end
from millwheel.services.block_watch import BlockWatch, Heartbeats
from millwheel.store.port.workers import WorkerEnd
from millwheel.store.postgres.store import PostgresStore

AFTER_INPUT_SECONDS = 10.0
"""Time for which timers fire after all input before a warning, and between two warnings."""

NOTE_SECONDS = 5.0
"""Longest wait of a worker that has failed for the store to take the reason."""

TEND_SECONDS = 2.0
"""Period of the upkeep of an embedded server, which costs one round trip."""


@asynccontextmanager
async def opened(pipeline: Pipeline, url: str) -> AsyncIterator[PostgresStore]:
    store = PostgresStore(
        url,
        pipeline.name,
        lock_timeout_milliseconds=pipeline.settings.lock_timeout_milliseconds,
    )
    await store.open()
    try:
        yield store
    finally:
        await store.close()


@asynccontextmanager
async def hosted(
    engine: Engine, beside: Iterable[Service], heartbeats: Heartbeats
) -> AsyncIterator[None]:
    """Run services beside a started engine and shut it down at the end; `heartbeats` keep its lease
    while user code blocks the event loop."""
    tasks = [asyncio.create_task(service.run()) for service in beside]
    watch = BlockWatch(engine, heartbeats)
    watch.start()
    try:
        yield
    except Exception as error:
        await _note_end(engine, error)
        raise
    finally:
        await end(tasks)
        await watch.stop()
        if engine.failure is None and not engine.done.is_set():
            engine.log.info("stopping")
        await engine.stop()
    if engine.failure is not None:
        raise engine.failure


async def _note_end(engine: Engine, error: Exception) -> None:
    """Tell the store, so the readers of its pages, why this worker ends."""
    item = error.item if isinstance(error, MillwheelError) else None
    text = str(error) if isinstance(error, MillwheelError) else reason(error)
    noted = WorkerEnd(engine.worker, type(error).__name__, text, item)
    try:
        async with asyncio.timeout(NOTE_SECONDS):
            await engine.store.note_worker_end(noted)
    except (StoreError, TimeoutError) as away:
        engine.log.warning("end_not_noted", error=str(away) or "the store does not answer")


async def unless(stop: asyncio.Event, work: Coroutine[Any, Any, None]) -> bool:
    """Run `work` to completion and return True, or cancel it when `stop` is set.

    The cancellation is repeated: the server ignores a request to cancel a statement that it has not
    started yet, and psycopg then waits for it (for a lock, for ever).
    """
    working = asyncio.create_task(work)
    stopping = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait((working, stopping), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            return False
        working.result()
        return True
    finally:
        await end((working, stopping))


@dataclass(frozen=True)
class RunProgress:
    processed: int
    """Records and timers whose effects are durable, in this run."""
    read: int | None
    """Rows read from the sources in this run."""
    per_second: float
    """Records and timers per second since the previous report."""
    low_watermark: int
    """Lowest low watermark of all intervals, microseconds."""
    backlog: int | None
    """Records waiting to be processed."""
    share: float | None
    """Share of the input read so far, 0 to 1."""
    seconds: float
    workers: int | None = None
    """Workers that run the pipeline; None: it is run by one alone."""
    lag_seconds: float | None = None
    """How far event time is behind; None: it has not begun, or has ended."""


def lag_of(low_watermark: int, clock: Clock) -> float | None:
    """Seconds from a low watermark to now; None if it is an end of time."""
    if not MIN_TIME < low_watermark < MAX_TIME:
        return None
    return (clock.now() - low_watermark) / 1e6


class Reporter(Service):
    def __init__(
        self, engine: Engine, show: Callable[[RunProgress], None], clock: Clock, period: float
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
            RunProgress(
                processed=found["processed"],
                read=found["read"],
                per_second=(found["processed"] - self._last_processed) / passed,
                low_watermark=found["low_watermark"],
                backlog=found["backlog"],
                share=found["share"],
                seconds=now - self._began,
                workers=found["workers"],
                lag_seconds=lag_of(found["low_watermark"], self._clock),
            )
        )
        self._last, self._last_processed = now, found["processed"]


class AfterInput(Service):
    """Warns while timers still fire although all input is processed, since some may set themselves
    for ever.

    Event time has ended, so that each timer fires at once.
    """

    def __init__(self, engine: Engine, clock: Clock, period: float = AFTER_INPUT_SECONDS) -> None:
        super().__init__(clock, period)
        self._engine = engine
        self._seconds = 0.0
        self._processed = 0
        self._names: set[str] = set()

    async def run_once(self) -> None:
        processed, names = self._engine.processed, self._timers_alone()
        fired = processed - self._processed
        if names & self._names and fired:
            self._seconds += self._period
            structlog.get_logger().warning(
                "timers_after_the_input",
                computations=sorted(names & self._names),
                fired=fired,
                seconds=self._seconds,
                what_it_means=(
                    "all input is processed and event time has ended for these computations; a run "
                    "ends when no timer is left, and never if process_timer always sets "
                    "another one"
                ),
                what_to_do=(
                    "stop setting it, or run with --keep-open: event time then stays at the last "
                    "record"
                ),
            )
        else:
            self._seconds = 0.0
        self._processed, self._names = processed, names

    def _timers_alone(self) -> set[str]:
        """Computations that no record can reach any more, and that still have work."""
        now = self._clock.now()
        return {
            interval.step.name
            for interval in self._engine.intervals
            if interval.watermarks.exact == MAX_TIME
            and not waiting(interval)
            and not interval.is_finished(now)
        }


class Tending(Service):
    """Calls a function for the upkeep of the store, in a thread since it may block."""

    def __init__(self, tend: Callable[[], None], clock: Clock) -> None:
        super().__init__(clock, TEND_SECONDS)
        self._tend = tend

    async def run_once(self) -> None:
        try:
            await asyncio.to_thread(self._tend)
        except StoreError as error:
            structlog.get_logger().warning("store_not_restarted", error=str(error))


@dataclass(frozen=True)
class Beside:
    show: Callable[[RunProgress], None] | None = None
    """Called every `show_seconds`."""
    show_seconds: float = 1.0
    tend: Callable[[], None] | None = None
    """Called every `TEND_SECONDS`, in a thread, for the upkeep of the store."""

    def services(self, engine: Engine, clock: Clock) -> list[Service]:
        services: list[Service] = [AfterInput(engine, clock)]
        if self.show is not None:
            services.append(Reporter(engine, self.show, clock, self.show_seconds))
        if self.tend is not None:
            services.append(Tending(self.tend, clock))
        return services
