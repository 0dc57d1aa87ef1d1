"""The connections of one worker to its store, and the server incarnation that they lead to.

========== ======================================================================================
pool       reads, claims, folds and buckets: one to four connections
lifeline   one connection for heartbeats, so that no other work delays the lease
lanes      one connection each, which commits (`millwheel.store.postgres.lane`)
========== ======================================================================================

The server processes behind pool and lanes are stored with the worker (`note_backends.sql`): a
successor ends them when it takes over an interval of a worker that hangs. A connection to another
incarnation of the server is refused (`millwheel.store.postgres.incarnation`).
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Protocol
from weakref import WeakKeyDictionary

import msgspec
import psycopg
from psycopg import AsyncConnection, sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg_pool import AsyncConnectionPool, PoolTimeout

from millwheel.errors import PooledStore, StoreUnavailable
from millwheel.store.postgres.incarnation import (
    Incarnations,
    ServerSession,
    Warnings,
    begin_session,
)
from millwheel.store.postgres.session import OwnSession, closed_on_failure
from millwheel.store.postgres.statements import READ_COMMITTED, Statements
from millwheel.store.postgres.translation import translate, unreached

SEQUENCE = "sequence_number"

RECONNECT_SECONDS = 1.0
"""Pause between the two attempts of a pool to connect, which it repeats while a caller waits."""

POOL_BACKENDS = 16
"""The newest server processes of the pool are stored with the worker; a few of them serve a
connection that the pool has replaced."""

SETTINGS = {
    "search_path": "",
    "statement_timeout": "300s",
    "idle_in_transaction_session_timeout": "60s",
    "timezone": "UTC",
    "jit": "off",
    **READ_COMMITTED,
}
"""Settings of the sessions of pool and lifeline."""

LIVELINESS = {
    "keepalives_idle": "5",
    "keepalives_interval": "5",
    "keepalives_count": "3",
    "tcp_user_timeout": "20000",
}
"""Settings without which libpq notices a cut line to Postgres only after hours; with them after 20
s. The store's address may set other values."""


def lively(url: str, application: str) -> str:
    """The address with the settings of every connection.

    `application` is its name in ``pg_stat_activity``.
    """
    asked = conninfo_to_dict(url)
    return make_conninfo(
        url,
        application_name=application,
        connect_timeout="5",
        client_encoding="utf8",
        **{name: value for name, value in LIVELINESS.items() if name not in asked},
    )


async def _try_on(pool: AsyncConnectionPool[AsyncConnection[Any]]) -> None:
    """Let a pool that has given up connect again for the callers that already wait; by itself it
    does so only for a new call."""
    if pool.get_stats().get("requests_waiting"):
        await pool.check()


class LaneConnection(Protocol):
    backend: tuple[int, str] | None
    """Process id and start of its server process."""

    @property
    def broken(self) -> bool: ...

    async def close(self) -> None: ...


class Connections:
    """`url` is a libpq connection string or URL, `schema` the pipeline's name."""

    def __init__(self, url: str, schema: str) -> None:
        self.schema = schema
        self.statements = Statements(schema)
        self.sequence = sql.Identifier(schema, SEQUENCE).as_string(None)
        """Quoted."""
        self.url = lively(url, f"millwheel {schema}")
        self.worker = ""
        """Empty before the worker has registered."""
        self.lanes: list[LaneConnection] = []
        """Open lanes, and broken ones with a server process that may not have ended."""
        self._pooled: PooledStore | None = None
        """The last attempt to connect met a connection pooler that shares sessions."""
        self._incarnations = Incarnations()
        self._warnings = Warnings()
        self._incarnation_of: WeakKeyDictionary[AsyncConnection[Any], str] = WeakKeyDictionary()
        self._backend_of: WeakKeyDictionary[AsyncConnection[Any], tuple[int, str]] = (
            WeakKeyDictionary()
        )
        self._pool_backends: deque[tuple[AsyncConnection[Any], tuple[int, str]]] = deque(
            maxlen=POOL_BACKENDS
        )
        options = {"outcome": self._connected, "settings": SETTINGS}
        self.pool = AsyncConnectionPool(
            self.url,
            min_size=1,
            max_size=4,
            open=False,
            timeout=10,
            reconnect_timeout=RECONNECT_SECONDS,
            reconnect_failed=_try_on,
            configure=self._begin_pool,
            connection_class=OwnSession,
            kwargs=options,
        )
        self.lifeline = AsyncConnectionPool(
            self.url,
            min_size=0,
            max_size=1,
            open=False,
            timeout=2,
            reconnect_timeout=RECONNECT_SECONDS,
            reconnect_failed=_try_on,
            connection_class=OwnSession,
            configure=self._begin_pooled,
            kwargs=options,
        )
        """A connection for heartbeats alone: the lease does not wait for a free one of the pool. A
        heartbeat that finds no connection fails after two seconds."""

    async def open(self) -> None:
        """`StoreUnavailable` if the server does not answer, `PooledStore` if a connection pooler
        does that shares sessions."""
        try:
            async with await OwnSession.connect(self.url) as connection:
                await self._begin(connection)
        except psycopg.Error as error:
            raise unreached(error) from error
        await self.pool.open()
        await self.lifeline.open()

    async def close(self) -> None:
        for lane in list(self.lanes):
            with contextlib.suppress(StoreUnavailable):  # a successor ends its server process
                await lane.close()
        await self.lifeline.close(timeout=2)
        await self.pool.close(timeout=2)

    # -- statements -----------------------------------------------------------------

    @asynccontextmanager
    async def connection(
        self, pool: AsyncConnectionPool[OwnSession] | None = None
    ) -> AsyncIterator[OwnSession]:
        """A connection of a pool; errors of Postgres are raised as the engine's."""
        try:
            async with self.checked(pool) as connection:
                yield connection
        except PoolTimeout as error:
            if self._pooled is not None:
                raise PooledStore(str(self._pooled)) from error
            raise StoreUnavailable("the store does not answer") from error
        except psycopg.errors.LockNotAvailable as error:
            raise StoreUnavailable(
                f"the store is locked by another session ({str(error).splitlines()[0]}); look for "
                "it in pg_stat_activity"
            ) from error
        except psycopg.Error as error:
            raise translate(error) from error

    @asynccontextmanager
    async def checked(
        self, pool: AsyncConnectionPool[OwnSession] | None = None
    ) -> AsyncIterator[OwnSession]:
        """Like `connection`, but errors stay psycopg's. `StoreWentBack` if the server is another
        incarnation by now."""
        self._incarnations.check(self._incarnations.known)
        try:
            async with (pool or self.pool).connection() as connection:
                try:
                    self._incarnations.check(self._incarnation_of.get(connection))
                except StoreUnavailable:
                    await connection.close()
                    raise
                try:
                    yield connection
                except psycopg.errors.ReadOnlySqlTransaction:
                    # A database or login may have been read-only when the session began, and the
                    # session keeps that for its life; the next one has the setting of its time.
                    await connection.close()
                    raise
        except PoolTimeout:
            self._incarnations.check(self._incarnations.known)
            raise

    async def rows(
        self,
        name: str,
        params: dict[str, Any] | None = None,
        *,
        binary: bool = False,
        **tables: str,
    ) -> list[Any]:
        """`tables` fill further placeholders of ``<name>.sql``."""
        async with self.connection() as connection:
            cursor = await connection.execute(
                self.statements.get(name, **tables), params or {}, prepare=True, binary=binary
            )
            return await cursor.fetchall()

    async def run(self, name: str, params: dict[str, Any], **tables: str) -> int:
        """Returns the number of changed rows."""
        async with self.connection() as connection:
            cursor = await connection.execute(self.statements.get(name, **tables), params)
            return cursor.rowcount

    # -- incarnations of the server ---------------------------------------------------

    async def incarnation(self) -> str:
        """The worker's incarnation of the server, after a look at the connection."""
        async with self.connection():
            return self._incarnations.known

    def begin_again(self) -> None:
        if self._incarnations.begin_again():
            self.lanes.clear()  # their server processes ended with their incarnation
        for connection, backend in list(self._pool_backends):
            if self._incarnation_of[connection] != self._incarnations.known:
                self._pool_backends.remove((connection, backend))

    def _connected(self, pooled: PooledStore | None) -> None:
        self._pooled = pooled

    async def _begin(self, connection: OwnSession) -> ServerSession:
        session = await begin_session(connection, self.statements)
        self._incarnations.meet(session)
        return session

    async def begin_lane(self, connection: OwnSession) -> ServerSession:
        """Prepare a lane's connection. Only lanes warn of weak durability: no other connection
        commits what a crash could lose."""
        session = await self._begin(connection)
        self._warnings.look_at(session)
        self._incarnations.check(session.incarnation)
        return session

    async def _begin_pooled(self, connection: OwnSession) -> None:
        """Note the incarnation that a connection leads to; `checked` refuses another one.

        Behind a pooler nothing is prepared here: if that changes its mode, another client's session
        may know another statement by the same name.
        """
        if connection.proven.is_pooled:
            connection.prepare_threshold = None
        async with closed_on_failure(connection):
            session = await self._begin(connection)
        self._incarnation_of[connection] = session.incarnation
        self._backend_of[connection] = session.backend

    async def _begin_pool(self, connection: OwnSession) -> None:
        """Store the server process of a connection at once: a fold locks its interval, so a
        successor must be able to end it even if the worker hangs before the next heartbeat. (It
        cannot commit after a claim.)"""
        async with closed_on_failure(connection):
            await self._begin_pooled(connection)
            self._pool_backends.append((connection, self._backend_of[connection]))
            if self.worker and self._incarnation_of[connection] == self._incarnations.known:
                await connection.execute(
                    self.statements.get("note_backends"),
                    {"id": self.worker, "backends": self.backends()},
                )

    # -- server processes -------------------------------------------------------------

    def backends(self) -> str:
        """Server processes of lanes and pool as JSON: ``[[pid, start], ...]``."""
        lanes = [lane.backend for lane in self.lanes if lane.backend]
        pool = [backend for _, backend in self._pool_backends]
        return msgspec.json.encode([*lanes, *pool]).decode()

    def pids(self) -> list[int]:
        """Server processes of all connections in use, that of the heartbeats included."""
        pooled = [pid for connection, (pid, _) in self._backend_of.items() if not connection.closed]
        return [*pooled, *(lane.backend[0] for lane in self.lanes if lane.backend)]

    async def add_lane(self, lane: LaneConnection) -> None:
        self.lanes.append(lane)
        if self.worker:
            with contextlib.suppress(StoreUnavailable):  # the next heartbeat stores it
                await self.run("note_backends", {"id": self.worker, "backends": self.backends()})

    async def end_lane(self, lane: LaneConnection) -> None:
        """End the server process of a broken lane; until that succeeds it stays stored for
        successors."""
        if lane.backend is not None and lane.broken and lane in self.lanes:
            await self.end_backends([lane.backend])
        if lane in self.lanes:
            self.lanes.remove(lane)

    async def end_lost(self) -> None:
        """End the server processes of closed connections of the pool.

        A fold at the other end of a cut line holds its interval, and a worker's own new claim,
        which ends no session of its own, would wait.
        """
        await self.end_backends([b for connection, b in self._pool_backends if connection.closed])

    async def end_backends(self, backends: Sequence[tuple[int, str]]) -> None:
        if backends:
            await self.rows(
                "end_backends",
                {"pid": [b[0] for b in backends], "started": [b[1] for b in backends]},
            )


class Subject:
    """Base of the store's subjects: each is a class with the methods on one part of the schema."""

    def __init__(self, connections: Connections) -> None:
        self.connections = connections
