"""The store as the engine uses it: a protocol by subject, combined in `Store`.

Postgres (`millwheel.store.postgres.store`) implements it, and memory for tests and simulation
(`millwheel.store.memory`). One contract suite tests both.
"""

from __future__ import annotations

from typing import Protocol

from millwheel.store.port.buckets import StoreBuckets
from millwheel.store.port.claims import StoreClaims
from millwheel.store.port.commit import StoreLane
from millwheel.store.port.deploy import StoreDeploys
from millwheel.store.port.inbox import StoreInbox
from millwheel.store.port.placement import StorePlacements
from millwheel.store.port.queries import StoreQueries
from millwheel.store.port.records import StoreRecords
from millwheel.store.port.requests import StoreRequests
from millwheel.store.port.states import StoreStates
from millwheel.store.port.workers import StoreWorkers


class Store(
    StoreDeploys,
    StoreQueries,
    StoreWorkers,
    StoreClaims,
    StorePlacements,
    StoreRecords,
    StoreStates,
    StoreBuckets,
    StoreInbox,
    StoreRequests,
    Protocol,
):
    """The stored data of one pipeline.

    The server may come back without its newest commits. Once the store has met another incarnation
    of it, every method raises `StoreWentBack` until `begin_again` (decision 40).
    """

    async def incarnation(self) -> str:
        """The incarnation of the server: the same for all workers, and another one after a crash or
        a failover."""
        ...

    def begin_again(self) -> None:
        """Work with the incarnation that was met last; the caller drops all data in memory and
        closes its lanes before."""
        ...

    async def open_lane(self) -> StoreLane: ...

    async def now(self) -> int:
        """Microseconds, in one round trip."""
        ...

    async def close(self) -> None: ...
