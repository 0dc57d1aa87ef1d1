"""What every room of one worker uses and none of them owns.

The engine makes an `Environment` at each start, and again when it starts over: nothing in it
outlives what the worker has forgotten.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar

from millwheel.clock import Clock
from millwheel.context import Context, Effects
from millwheel.errors import StoreUnavailable
from millwheel.graph import Graph
from millwheel.model import Record
from millwheel.runtime.process.late_use import LateUses
from millwheel.runtime.process.load import Process
from millwheel.runtime.process.stamps import Stamps
from millwheel.settings import Settings
from millwheel.store.port import Store

T = TypeVar("T")

FIRST_PAUSE_SECONDS = 0.05
LONGEST_PAUSE_SECONDS = 2.0
"""Between two tries of a store that does not answer: the first pause, doubled up to the longest."""

UserCode = Callable[[Record[Any], Context[Any, Any]], Awaitable[None]]
"""The user's `process_record`."""

Wrap = Callable[[Any, UserCode, Any, Effects], UserCode]
"""Puts code around a user's `process_record`, given its `Step`, the code, a maker of contexts for
a step and effects, and the effects that count."""


@dataclass(frozen=True)
class Options:
    """How one run differs from others of the same pipeline."""

    keep_open: bool = False
    """Leave event time where the data put it when a bounded source ends. Otherwise its partitions
    promise the end of time, and once all sources have, every window closes."""
    accept_late: bool = False
    """Process rows that come after event time has ended, as late ones; otherwise they are an error."""
    inject_copies: int = 1
    """How often each source row is delivered; 2 to test deduplication."""
    guard_shared: bool = False
    """Fail a record that changes `Context.shared`, which it may only read. Encodes the table for
    each key in a chunk; for tests."""
    wrap_weak: Wrap | None = None
    """Puts code around the user code of weak computations (`millwheel.testing.determinism`)."""


class Environment:
    """Clock, settings, store, log, tasks and options of one worker since its last start.

    Args:
        fail: stops the engine with an error; the first one counts.
        check_finished: called when something has ended that may have been the last work.
        done: set when all input is processed; a source clears it when a row comes.
        is_shared: other workers may have intervals of the pipeline.
    """

    def __init__(
        self,
        graph: Graph,
        settings: Settings,
        store: Store,
        clock: Clock,
        log: Any,
        worker: str,
        process: Process,
        options: Options,
        *,
        fail: Callable[[BaseException | None], None],
        check_finished: Callable[[], None],
        done: asyncio.Event,
        late_uses: LateUses,
        is_shared: bool,
    ) -> None:
        self.graph = graph
        self.settings = settings
        self.store = store
        self.clock = clock
        self.log = log
        self.worker = worker
        self.process = process
        self.options = options
        self.fail = fail
        self.check_finished = check_finished
        self.done = done
        self.late_uses = late_uses
        self.is_shared = is_shared
        self.stamps = Stamps(clock)
        self.generation = 0
        """The generation of this worker's code; known once it has deployed."""
        self.rekeyed: frozenset[str] = frozenset()
        """Computations whose records may have had other keys under former code."""
        self.stopping = False
        """The worker takes no new work: it commits what is finished, and ends."""
        self.processed = 0
        """Records and timers whose effects are durable, since this start."""
        self.tasks: set[asyncio.Task[Any]] = set()
        """Tasks that run for the engine's life."""

    def now(self) -> int:
        """Wall time in microseconds: the store's where workers share it, so that a timer or
        an age means the same to the next owner of an interval."""
        return self.stamps.now()

    def spawn(self, coroutine: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        """Run something for the engine's life; its failure is the engine's."""
        task = asyncio.create_task(coroutine, name=name)
        self.tasks.add(task)
        task.add_done_callback(self._task_ended)
        return task

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        self.tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            self.fail(task.exception())

    async def patiently(self, attempt: Callable[[], Awaitable[T]]) -> T:
        """Try something of the store until it answers, for as long as patience lasts.

        Raises:
            StoreUnavailable: it did not answer in time.
        """
        pause = FIRST_PAUSE_SECONDS
        deadline = self.clock.monotonic() + self.settings.store_patience_seconds
        while True:
            try:
                return await attempt()
            except StoreUnavailable:
                if self.clock.monotonic() > deadline:
                    raise
                await self.clock.sleep(pause)
                pause = min(LONGEST_PAUSE_SECONDS, pause * 2)
