"""Clock, settings, store, log and tasks, which all rooms of one worker share.

The engine makes a new `Environment` when it starts over, so that nothing forgotten stays in it.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar

import structlog

from millwheel.context import Context
from millwheel.core.backoff import Backoff
from millwheel.core.clock import Clock
from millwheel.core.effects import Effects
from millwheel.core.model import Record
from millwheel.errors import StoreUnavailable
from millwheel.graph.order import Graph
from millwheel.runtime.process.late_use import LateUses
from millwheel.runtime.process.load import Process
from millwheel.runtime.process.stamps import Stamps
from millwheel.settings import Settings
from millwheel.store.port import Store
from millwheel.store.port.deploy import CopyState

T = TypeVar("T")

UserCode = Callable[[Record[Any], Context[Any, Any]], Awaitable[None]]

Wrap = Callable[[Any, UserCode, Any, Effects], UserCode]
"""Arguments: the `Step`, its `process_record`, a function that makes a context for a step and
effects, and the effects that the engine commits."""


@dataclass(frozen=True)
class Options:
    """Other runs of the same pipeline need not share them."""

    keep_open: bool = False
    """Leave event time at the last data when a bounded source ends. Otherwise its partitions
    promise the end of time, and when all sources have done so, every window closes."""
    accept_late: bool = False
    """Rows after the end of event time are late rows; otherwise they are an error."""
    only_keys: float = 1.0
    """The part of the keys of each computation that this worker runs, if it is a canary."""
    inject_copies: int = 1
    """How often each source row is delivered; 2 to test deduplication."""
    guard_shared: bool = False
    """Fail a record that changes `Context.shared`. For tests: encodes the table for each key in a
    chunk."""
    compare_stored: bool = False
    """Warn of state that is not read back from the store as it was. For tests."""
    wrap_weak: Wrap | None = None
    """Puts code around the user code of weak computations (`millwheel.testing.determinism`)."""
    least_level: int = logging.NOTSET
    """Least level of log lines, unless the program configures structlog. For tests and notebooks,
    in which each start and each planned fault would be lines of output."""

    def logger(self) -> Any:
        if self.least_level == logging.NOTSET or structlog.is_configured():
            return structlog.get_logger()
        return structlog.wrap_logger(
            None, wrapper_class=structlog.make_filtering_bound_logger(self.least_level)
        )

    @property
    def in_load(self) -> dict[str, Any]:
        """A part of the load by which other workers know a canary."""
        return {} if self.only_keys == 1.0 else {"only_keys": self.only_keys}


@dataclass(frozen=True)
class StoreWait:
    what: str
    """"commit" or "heartbeat"."""
    seconds: float
    sessions: tuple[str, ...]
    """Postgres' sessions that hold the locks that it needs, in words."""

    def __str__(self) -> str:
        whom = f", for {'; '.join(self.sessions)}" if self.sessions else ""
        return f"a {self.what} has waited for {self.seconds:.0f} s{whom}"


class Environment:
    """The environment of one worker since its last start.

    Args:
        fail: stops the engine with an error; the first one counts.
        check_finished: called when work has ended that may have been the last.
        done: set when all input is processed; a source clears it when a row arrives.
        is_shared: other workers may hold intervals of the pipeline.
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
        """0 before it has deployed."""
        self.rekeyed: frozenset[str] = frozenset()
        """Computations that may have had other keys for the same records under former code."""
        self.copied = CopyState()
        self.file_owner = ""
        """The owner of part files (`store_id`); empty: it has none."""
        self.stopping = False
        self.store_wait: StoreWait | None = None
        self.processed = 0
        self.tasks: set[asyncio.Task[Any]] = set()

    @property
    def is_beside(self) -> bool:
        """See `CopyState.is_beside`."""
        return self.copied.is_beside(self.graph.name, self.graph.name_in_code)

    def own_name(self, name: str) -> str:
        """A name of the code's for something outside the store, which is this pipeline's alone."""
        return f"{name}.{self.graph.name}" if self.is_beside else name

    async def store_id(self) -> str:
        """The pipeline's name, and a text that distinguishes its store."""
        secret = await self.patiently(self.store.peer_secret)
        digest = hashlib.sha256(b"store id" + secret).hexdigest()
        return f"{self.graph.name}.{digest[:12]}"

    def now(self) -> int:
        """Wall time in microseconds. Workers that share a pipeline use the store's, so that timers
        and ages mean the same to an interval's next owner."""
        return self.stamps.now()

    def spawn(self, coroutine: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        """Run a task as long as the engine; its failure stops the engine."""
        task = asyncio.create_task(coroutine, name=name)
        self.tasks.add(task)
        task.add_done_callback(self._task_ended)
        return task

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        self.tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            self.fail(task.exception())

    async def patiently(self, attempt: Callable[[], Awaitable[T]]) -> T:
        """`StoreUnavailable` after `store_patience_seconds`."""
        backoff = self.backoff()
        while True:
            try:
                return await attempt()
            except StoreUnavailable:
                if backoff.is_over:
                    raise
            await backoff.wait()

    def backoff(self) -> Backoff:
        return Backoff(self.clock, patience=self.settings.store_patience_seconds)
