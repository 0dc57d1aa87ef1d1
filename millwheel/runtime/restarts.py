"""Starting over, when the store may have lost its newest commits (decision 40), when its queries
have changed (decision 81), or when outputs were turned on or off (decision 86).

A worker's memory reflects commits: ACKs, sent productions, published watermarks, seen ids, cached
state. After a crash of the server, or the promotion of a lagging standby, the store may be an
earlier consistent cut. So the worker acts as after a crash of its own: it drops everything and
starts from the store. A change of queries or outputs takes the same way, after a moment in which
finished work is committed: the worker takes its intervals over from itself.

::

    running ──StoreWentBack, QueriesChanged, OutputsSwitched──▶ dropping ──▶ forgotten
       ▲                                                           ▲             │
       └────────────────────────── starting ◀──────────────────────┼─────────────┘
                                       └─ the same, StoreUnavailable (with patience)

The process, its worker id, its address and its probes stay.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from millwheel.core.backoff import Backoff
from millwheel.core.clock import Clock
from millwheel.errors import Fenced, QueriesChanged, StoreUnavailable, StoreWentBack
from millwheel.runtime.interval.interval import Interval
from millwheel.runtime.process.tasks import end, within
from millwheel.settings import Settings

FINISH_SECONDS = 2.0
"""Longest wait for commits before queries are loaded; the rest of the work is done again."""


@dataclass(frozen=True)
class OutputsSwitched:
    """An operator has turned outputs on or off: no error."""


Reason: TypeAlias = StoreWentBack | QueriesChanged | Fenced | OutputsSwitched
"""`Fenced`: a worker that is alone has lost an interval, which a dropped query explains."""


class Restartable(Protocol):
    clock: Clock
    settings: Settings
    log: Any

    @property
    def intervals(self) -> list[Interval]: ...

    async def begin(self) -> None: ...

    async def are_queries_changed(self) -> bool:
        """Whether the store has other queries than the graph."""

    async def commit_finished_work(self) -> None:
        """Take no more work, and return when the finished one is durable."""

    async def drop_and_forget(self) -> None:
        """Stop as in a crash, and drop everything in memory that is not in the store."""

    def fail(self, error: BaseException | None) -> None: ...


class Restarts:
    def __init__(self, engine: Restartable) -> None:
        self._engine = engine
        self._wanted = asyncio.Event()
        self._reason: Reason | None = None
        self._watching: asyncio.Task[None] | None = None
        self.under_way = False
        """Parts of the engine are dropped, or not started yet."""

    def wanted(self, reason: Reason) -> None:
        self._reason = reason
        self._wanted.set()

    @property
    def is_wanted(self) -> bool:
        """Memory and store differ."""
        return self._wanted.is_set()

    def watch(self) -> None:
        self._watching = asyncio.create_task(self._watch(), name="restarts")

    async def _watch(self) -> None:
        while True:
            await self._wanted.wait()
            assert self._reason is not None
            try:
                await self.start_over(self._reason)
            except Exception as error:
                self._engine.fail(error)
                return

    async def start_over(self, reason: Reason) -> None:
        """`MillwheelError` if the engine cannot start, or not within `store_patience_seconds`."""
        engine = self._engine
        if isinstance(reason, StoreWentBack):
            self._warn(reason)
        elif isinstance(reason, Fenced) and not await engine.are_queries_changed():
            raise reason
        else:
            switched = isinstance(reason, OutputsSwitched)
            event = "outputs_switched" if switched else "loads_queries"
            engine.log.info(event, intervals=len(engine.intervals))
            with suppress(TimeoutError):
                await within(engine.clock, FINISH_SECONDS, engine.commit_finished_work())
        self.under_way = True
        patience = engine.settings.store_patience_seconds
        backoff = Backoff(engine.clock, patience=patience)
        while True:
            await engine.drop_and_forget()
            self._wanted.clear()  # tasks that ended in the meantime may have had the same error
            try:
                await engine.begin()
            except (StoreUnavailable, StoreWentBack, QueriesChanged) as error:
                if backoff.is_over:
                    raise StoreUnavailable(
                        f"the worker could not start over within {patience:.0f} s: {error}. "
                        "Everything that the server has kept is safe: start the worker again "
                        "when the server is well"
                    ) from error
            else:
                break
            await backoff.wait()
        self.under_way = False

    def _warn(self, reason: StoreWentBack) -> None:
        self._engine.log.warning(
            "starts_over",
            reason=str(reason),
            intervals=len(self._engine.intervals),
            what_it_means=(
                "the worker drops everything in memory and claims its intervals again, as "
                "after a crash: work that the server has lost is done again"
            ),
            what_to_do=(
                "nothing, if the server's crash or failover was expected; "
                "docs/howto/run/failover.md says how to keep a failover from losing commits"
            ),
        )

    async def close(self) -> None:
        if self._watching is not None:
            await end([self._watching])
