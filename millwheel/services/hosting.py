"""An engine in a process: started, run and ended in order, with what works beside it.

::

    deploy, claim ──> run ──┬── all input is processed ──> done
          │                 ├── asked to stop ───────────> finished bundles are committed
          │                 └── an error ────────────────> raised
          └── asked to stop: nothing was begun

Whatever the end, the lease is given up and the connections are closed before it is told.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import structlog

from millwheel.clock import Clock
from millwheel.errors import StoreError
from millwheel.pipeline import Pipeline
from millwheel.runtime.engine import Engine
from millwheel.runtime.process.service import Service
from millwheel.runtime.process.tasks import end
from millwheel.store.postgres import PostgresStore

TEND_SECONDS = 2.0
"""How often an embedded server is looked after; a look is one round trip."""


@asynccontextmanager
async def opened(pipeline: Pipeline, url: str) -> AsyncIterator[PostgresStore]:
    """The pipeline's store, connected.

    Raises:
        StoreUnavailable: nobody answers there.
    """
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
async def hosted(engine: Engine, beside: Iterable[Service]) -> AsyncIterator[None]:
    """Around an engine's start and run: services work beside it, and it ends in order.

    Raises:
        MillwheelError: why the engine could not go on.
    """
    tasks = [asyncio.create_task(service.run()) for service in beside]
    try:
        yield
    finally:
        await end(tasks)
        if engine.failure is None and not engine.done.is_set():
            engine.log.info("stopping")
        await engine.stop()
    if engine.failure is not None:
        raise engine.failure


async def unless(stop: asyncio.Event, work: Coroutine[Any, Any, None]) -> bool:
    """Do `work` to its end, unless `stop` is set meanwhile; then it is cancelled.

    Once may not be enough: where the server is asked to end a statement that it has not begun, it
    does not, and psycopg waits for that statement's end (for a lock, for ever).
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
class Progress:
    """How far a worker is."""

    processed: int
    """Records and timers, over all computations, whose effects are durable; this run."""
    read: int | None
    """Rows read from the sources; this run. None, here and below: not known."""
    per_second: float
    """Processed, since the report before."""
    low_watermark: int
    """The least of all intervals', microseconds."""
    backlog: int | None
    """Records waiting to be processed."""
    share: float | None
    """Of the input, 0 to 1, read so far."""
    seconds: float
    """Since the run began."""


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


@dataclass(frozen=True)
class Beside:
    """What goes on beside an engine."""

    show: Callable[[Progress], None] | None = None
    """Gets the figures every `show_seconds`."""
    show_seconds: float = 1.0
    tend: Callable[[], None] | None = None
    """Called every few seconds, in a thread, to look after the store."""

    def services(self, engine: Engine, clock: Clock) -> list[Service]:
        """As services of that engine."""
        services: list[Service] = []
        if self.show is not None:
            services.append(Reporter(engine, self.show, clock, self.show_seconds))
        if self.tend is not None:
            services.append(Tending(self.tend, clock))
        return services
