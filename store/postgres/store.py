"""The store on Postgres (`millwheel.store.port.Store`), put together from its subjects.

=============== ==========================================================================
`workers`       registration, heartbeats, dead workers, the peer secret, the leadership
`claims`        ownership: claims, releases, wishes, splits, merges
`records`       productions to send again, ids that were seen
`states`        state of keys, folds
`queries`       queries that were submitted to the pipeline
`inbox`         records that users send in their own transactions
`buckets`       the tables of the append-only past: open, close, drop
`deployment`    the deployed graph
`lane`          commits
=============== ==========================================================================

Nothing here relies on ``search_path``: every name carries its schema.
"""

from __future__ import annotations

from millwheel.store.port.deploy import Deployment, DescribedGraph, Plan
from millwheel.store.postgres.buckets import DROP_LOCK_MILLISECONDS, PostgresBuckets
from millwheel.store.postgres.claims import PostgresClaims
from millwheel.store.postgres.connections import Connections
from millwheel.store.postgres.deployment import Deploy, OnSpark
from millwheel.store.postgres.inbox import PostgresInbox
from millwheel.store.postgres.lane import PostgresLane
from millwheel.store.postgres.queries import PostgresQueries
from millwheel.store.postgres.records import PostgresRecords
from millwheel.store.postgres.requests import PostgresRequests
from millwheel.store.postgres.states import PostgresStates
from millwheel.store.postgres.thread_heartbeat import ThreadHeartbeat
from millwheel.store.postgres.workers import PostgresWorkers


class PostgresStore(
    PostgresWorkers,
    PostgresClaims,
    PostgresRecords,
    PostgresStates,
    PostgresBuckets,
    PostgresQueries,
    PostgresInbox,
    PostgresRequests,
):
    """One pipeline's schema in a Postgres database.

    Args:
        url: a libpq connection string or URL.
        schema: the pipeline's name.
        lock_timeout_milliseconds: longest wait for the lock under which a bucket is dropped.
    """

    def __init__(
        self, url: str, schema: str, *, lock_timeout_milliseconds: int = DROP_LOCK_MILLISECONDS
    ) -> None:
        super().__init__(Connections(url, schema))
        self.drop_lock_milliseconds = lock_timeout_milliseconds
        self._streams: dict[str, tuple[int, int]] = {}
        """Id and version by name, of the deployed code."""

    async def open(self) -> PostgresStore:
        await self.connections.open()
        return self

    async def close(self) -> None:
        await self.connections.close()

    async def incarnation(self) -> str:
        return await self.connections.incarnation()

    def begin_again(self) -> None:
        self.connections.begin_again()

    def thread_heartbeat(self) -> ThreadHeartbeat:
        return ThreadHeartbeat(self.connections)

    async def now(self) -> int:
        ((micros,),) = await self.connections.rows("database_time")
        return int(micros)

    async def deploy(
        self,
        described: DescribedGraph,
        *,
        stamp: int,
        bucket_high: int,
        shared: bool = False,
        back: bool = False,
        on_spark: OnSpark | None = None,
    ) -> Deployment:
        connections = self.connections
        async with connections.connection() as connection, connection.transaction():
            deployment = await Deploy(
                connection, connections.statements, connections.sequence, described
            ).run(stamp=stamp, bucket_high=bucket_high, shared=shared, back=back, on_spark=on_spark)
        ids = deployment.streams
        self._streams = {new.name: (ids[new.name], new.version) for new in described.streams}
        return deployment

    async def plan(self, described: DescribedGraph) -> Plan:
        connections = self.connections
        async with connections.connection() as connection, connection.transaction():
            return await Deploy(
                connection, connections.statements, connections.sequence, described
            ).plan()

    async def open_lane(self) -> PostgresLane:
        connections = self.connections
        lane = PostgresLane(
            connections.url,
            connections.schema,
            connections.statements,
            self._streams,
            connections.begin_lane,
            connections.end_lane,
        )
        await lane.connect()
        await connections.add_lane(lane)
        return lane
