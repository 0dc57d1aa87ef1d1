"""The store in memory, put together from its subjects as `millwheel.store.postgres.store` is."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

from millwheel.core.clock import Clock, SystemClock
from millwheel.store.memory import administration, deployment, lane
from millwheel.store.memory.buckets import MemoryBuckets
from millwheel.store.memory.claims import MemoryClaims
from millwheel.store.memory.database import run_statements
from millwheel.store.memory.inbox import MemoryInbox
from millwheel.store.memory.lane import MemoryLane
from millwheel.store.memory.queries import MemoryQueries
from millwheel.store.memory.records import MemoryRecords
from millwheel.store.memory.requests import MemoryRequests
from millwheel.store.memory.states import MemoryStates
from millwheel.store.memory.views import MemoryViews
from millwheel.store.port.commit import Commit
from millwheel.store.port.deploy import Deployment, DescribedGraph, Plan
from millwheel.store.rules.generations import planned
from millwheel.store.rules.queries import refuse_other_queries

Saved = tuple[dict[str, Any], dict[str, Any]]


class MemoryStore(
    MemoryClaims,
    MemoryRecords,
    MemoryStates,
    MemoryBuckets,
    MemoryQueries,
    MemoryInbox,
    MemoryRequests,
    MemoryViews,
):
    """The store of one pipeline.

    Args:
        clock: the clock of leases.
        database: URL of a Postgres in which the statements of user code run; None: they do not run.
    """

    def __init__(
        self, name: str = "memory", *, clock: Clock | None = None, database: str | None = None
    ) -> None:
        super().__init__(name, clock or SystemClock())
        self._name = name
        self._database = database
        self._versions: dict[str, int] = {}
        """Versions of streams in the deployed code, by name."""

    def another(self) -> MemoryStore:
        """The same store for another process, with code of its own."""
        twin = copy.copy(self)
        twin._versions = {}
        twin._incarnation = None
        return twin

    def saved(self) -> Saved:
        return copy.deepcopy((vars(self.tables), vars(self._sinks)))

    def come_back_as(self, saved: Saved) -> None:
        """Crash the server, lose every commit after `saved`, and restart it."""
        incarnation, liveness = self.tables.incarnation, self.tables.liveness
        tables, sinks = copy.deepcopy(saved)
        vars(self.tables).update(tables)
        vars(self._sinks).update(sinks)
        self.tables.incarnation, self.tables.liveness = incarnation + 1, liveness
        self.restart_server()

    async def incarnation(self) -> str:
        await self._called("incarnation")
        return str(self._incarnation)

    def begin_again(self) -> None:
        self._incarnation = None

    async def close(self) -> None:
        """Nothing to close: other engines may use the store."""

    async def now(self) -> int:
        await self._called("now")
        return self._clock.now()

    async def deploy(
        self,
        described: DescribedGraph,
        *,
        stamp: int,
        bucket_high: int,
        shared: bool = False,
        back: bool = False,
    ) -> Deployment:
        await self._called("deploy")
        refuse_other_queries(self.tables.pipeline, self.tables.queries, described)
        removed = deployment.remove(self.tables, described.change)
        found = deployment.deployed(
            self.tables, self._sinks, described, self._others(shared), back=back
        )
        deployed = deployment.deploy(self.tables, self._sinks, found, described, stamp, bucket_high)
        deployed.removed = removed
        deployment.note_change(self.tables, described.change, deployed.generation)
        self._versions = {stream.name: stream.version for stream in described.streams}
        return deployed

    async def plan(self, described: DescribedGraph) -> Plan:
        await self._called("plan")
        found = deployment.deployed(
            self.tables, self._sinks, described, self._others(True), back=False
        )
        return planned(found, described)

    def _others(self, shared: bool) -> int | None:
        return sum(map(self._is_alive, self.tables.workers)) if shared else None

    def remove(self, names: list[str]) -> None:
        administration.remove(self.tables, names)

    def pause(self, *injectors: str) -> None:
        """Pause these injectors and resume all others, as an operator does."""
        administration.pause(self.tables, injectors)

    async def open_lane(self) -> MemoryLane:
        await self._called("open_lane")
        incarnation = self.tables.incarnation
        return MemoryLane(self.faults, self.apply, lambda: self.tables.incarnation == incarnation)

    def apply(self, commit: Commit) -> None:
        """A test may call it to make a commit durable that its lane gave up on."""
        lane.apply(
            commit,
            self.tables,
            self._sinks,
            self._versions,
            self.faults.refuse,
            self._run_statements,
        )

    def _run_statements(self, statements: Sequence[tuple[str, Sequence[Any]]]) -> None:
        if self._database is not None and statements:
            run_statements(self._database, self._name, statements)
