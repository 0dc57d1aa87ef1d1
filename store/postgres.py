"""The store on Postgres: everything but the commits themselves (`millwheel.store.lane`).

Reads go through a small pool; deploy, claims, folds and buckets are transactions of their
own. Nothing here relies on ``search_path``: every name carries its schema.
"""

from __future__ import annotations

import contextlib
import os
import platform
from collections import deque
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import UUID
from weakref import WeakKeyDictionary

import msgspec
import psycopg
from psycopg import AsyncConnection, sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg_pool import AsyncConnectionPool, PoolTimeout

from millwheel.errors import Fenced, PooledStore, StoreError, StoreUnavailable
from millwheel.model import SLOTS, log_and_number, name_of
from millwheel.sinks import Table
from millwheel.store import deployment
from millwheel.store.incarnation import Incarnations, Session, Warnings, begin_session
from millwheel.store.lane import PostgresLane, translate
from millwheel.store.leadership import Leadership
from millwheel.store.placement import PostgresPlacement, as_percentiles
from millwheel.store.port import (
    CLOCK_STEP_MICROS,
    EARLY_CLOSE_MICROS,
    TIMER_KINDS,
    TIMERS_A_PAGE,
    Bucket,
    BucketView,
    Claim,
    Deployment,
    FoundPartition,
    Heartbeat,
    IntervalRow,
    LogRow,
    NodeDeploy,
    OldState,
    OtherWorker,
    Placement,
    PlacementChange,
    StateChange,
    StoredProduction,
    StreamDeploy,
    TimerChange,
    TimerPlace,
)
from millwheel.store.session import OwnSession, closed_on_failure
from millwheel.store.statements import BUCKETED, READ_COMMITTED, Statements

SEQUENCE = "sequence_number"
PAGE_ROWS = 2000

RECONNECT_SECONDS = 1.0
"""A pool tries to connect twice, so long apart, and again for as long as somebody waits."""

POOL_BACKENDS = 16
"""The newest connections of the pool, with some that it has replaced since."""

BUCKET_LOCK_TIMEOUT = "1s"
"""Whoever makes a bucket waits for an ANALYZE of the pipeline's tables (a share update exclusive
lock), and all who look at the buckets wait for him, commits among them."""

SAMPLED_PLACES = 4
"""Slots, evenly apart, from which on stored states are looked at when migrations are tried."""

SAMPLED_ROWS = 20_000
"""Rows looked at from each of them: some 50 ms."""

ENDED = (
    "somebody ended this worker, or it was silent for so long that it was forgotten; it must let go of "
    "everything"
)

LIVELINESS = {
    "keepalives_idle": "5",
    "keepalives_interval": "5",
    "keepalives_count": "3",
    "tcp_user_timeout": "20000",
}
"""A line that is cut between here and Postgres tells nobody: libpq would wait for hours. After these 20 s
it fails as any other does; an address may say otherwise."""


async def _try_on(pool: AsyncConnectionPool[AsyncConnection[Any]]) -> None:
    """A pool that has given up connects when it is asked anew, not for those who asked before."""
    if pool.get_stats().get("requests_waiting"):
        await pool.check()


def bucket_table(parent: str, bucket: int) -> str:
    """The name of a bucket's table."""
    return f"{parent}_{bucket}"


class PostgresStore:
    """One pipeline's schema in a Postgres database.

    Args:
        url: a libpq connection string or URL.
        schema: the pipeline's name.
    """

    def __init__(self, url: str, schema: str, *, lock_timeout_milliseconds: int = 50) -> None:
        self.schema = schema
        self.statements = Statements(schema)
        self._lock_timeout = lock_timeout_milliseconds
        self._bucket_lock = {"pipeline": schema, "patience": BUCKET_LOCK_TIMEOUT}
        self._sequence = sql.Identifier(schema, SEQUENCE).as_string(None)
        asked = conninfo_to_dict(url)
        self._url = make_conninfo(
            url,
            application_name=f"millwheel {schema}",
            connect_timeout="5",
            client_encoding="utf8",
            **{name: value for name, value in LIVELINESS.items() if name not in asked},
        )
        self._pooled: PooledStore | None = None
        """Why the last connection of a pool was not made, if a connection pooler is in between."""
        self._incarnations = Incarnations()
        self._incarnation_of: WeakKeyDictionary[AsyncConnection[Any], str] = WeakKeyDictionary()
        """Of the connections of both pools."""
        self._backend_of: WeakKeyDictionary[AsyncConnection[Any], tuple[int, str]] = (
            WeakKeyDictionary()
        )
        self._warnings = Warnings()
        options = {
            "outcome": self._connected,
            "options": "-c search_path= -c statement_timeout=300000 "
            f"-c idle_in_transaction_session_timeout=60000 -c timezone=UTC -c jit=off {READ_COMMITTED}",
        }
        self._pool = AsyncConnectionPool(
            self._url,
            min_size=1,
            max_size=4,
            open=False,
            timeout=10,
            reconnect_timeout=RECONNECT_SECONDS,
            reconnect_failed=_try_on,
            configure=self._note_backend,
            connection_class=OwnSession,
            kwargs=options,
        )
        self._lifeline = AsyncConnectionPool(
            self._url,
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
        """For heartbeats alone: the lease does not wait until `_pool` has a connection left. Whoever
        waits here is told soon that there is none."""
        self._placement = PostgresPlacement(
            self.statements, self._sequence, self._checked, self.end_backends
        )
        self._leadership = Leadership(self._url, self.statements)
        self._lanes: list[PostgresLane] = []
        self._pool_backends: deque[tuple[AsyncConnection[Any], tuple[int, str]]] = deque(
            maxlen=POOL_BACKENDS
        )
        self._streams: dict[str, tuple[int, int]] = {}
        self._worker = ""

    async def open(self) -> PostgresStore:
        """Connect.

        Raises:
            StoreUnavailable: nobody answers there.
            PooledStore: a connection pooler does.
        """
        try:
            async with await OwnSession.connect(self._url) as connection:
                session = await begin_session(connection, self.statements)
                self._incarnations.meet(session.incarnation)
        except psycopg.Error as error:
            raise StoreUnavailable(
                f"the store cannot be reached: {str(error).strip()}\nCheck --store, and that "
                "Postgres is running"
            ) from error
        await self._pool.open()
        await self._lifeline.open()
        return self

    def _connected(self, pooled: PooledStore | None) -> None:
        """A connection of a pool was made, or was not."""
        self._pooled = pooled

    async def close(self) -> None:
        await self._leadership.close()
        for lane in list(self._lanes):
            with contextlib.suppress(StoreUnavailable):  # a successor ends what is left of it
                await lane.close()
        await self._lifeline.close(timeout=2)
        await self._pool.close(timeout=2)

    @asynccontextmanager
    async def _connection(
        self, pool: AsyncConnectionPool[OwnSession] | None = None
    ) -> AsyncIterator[AsyncConnection[Any]]:
        try:
            async with self._checked(pool) as connection:
                yield connection
        except PoolTimeout as error:
            if self._pooled is not None:
                raise PooledStore(str(self._pooled)) from error
            raise StoreUnavailable("the store does not answer") from error
        except psycopg.errors.LockNotAvailable as error:
            raise StoreUnavailable(
                f"the store is locked by another session ({str(error).splitlines()[0]}); look for it in "
                "pg_stat_activity"
            ) from error
        except psycopg.Error as error:
            raise translate(error) from error

    @asynccontextmanager
    async def _checked(
        self, pool: AsyncConnectionPool[OwnSession] | None = None
    ) -> AsyncIterator[AsyncConnection[Any]]:
        """A connection of a pool to the incarnation that this worker knows; errors are psycopg's.

        Raises:
            StoreWentBack: the server is another incarnation by now.
        """
        self._incarnations.check(self._incarnations.known)
        try:
            async with (pool or self._pool).connection() as connection:
                try:
                    self._incarnations.check(self._incarnation_of.get(connection))
                except StoreUnavailable:
                    await connection.close()
                    raise
                yield connection
        except PoolTimeout:
            self._incarnations.check(self._incarnations.known)
            raise

    async def _rows(
        self,
        name: str,
        params: dict[str, Any] | None = None,
        *,
        binary: bool = False,
        **tables: str,
    ) -> list[Any]:
        async with self._connection() as connection:
            cursor = await connection.execute(
                self.statements.get(name, **tables), params or {}, prepare=True, binary=binary
            )
            return await cursor.fetchall()

    async def _run(self, name: str, params: dict[str, Any], **tables: str) -> int:
        async with self._connection() as connection:
            cursor = await connection.execute(self.statements.get(name, **tables), params)
            return cursor.rowcount

    # -- incarnations of the server ------------------------------------------------

    async def incarnation(self) -> str:
        async with self._connection():
            return self._incarnations.known

    def begin_again(self) -> None:
        self._incarnations.begin_again()
        self._lanes.clear()  # their server processes are gone with their incarnation
        for connection, backend in list(self._pool_backends):
            if self._incarnation_of[connection] != self._incarnations.known:
                self._pool_backends.remove((connection, backend))

    async def _begin(self, connection: AsyncConnection[Any]) -> Session:
        session = await begin_session(connection, self.statements)
        self._incarnations.meet(session.incarnation)
        return session

    async def _begin_lane(self, connection: AsyncConnection[Any]) -> Session:
        session = await self._begin(connection)
        self._warnings.look_at(session)  # of a lane: who only looks on commits nothing that is lost
        self._incarnations.check(session.incarnation)
        return session

    async def _begin_pooled(self, connection: AsyncConnection[Any]) -> None:
        """Note the incarnation that a pool is connected with; `_checked` refuses another one."""
        async with closed_on_failure(connection):
            session = await self._begin(connection)
        self._incarnation_of[connection] = session.incarnation
        self._backend_of[connection] = session.backend

    # -- deploy -------------------------------------------------------------------

    async def deploy(
        self,
        graph: dict[str, Any],
        nodes: list[NodeDeploy],
        streams: list[StreamDeploy],
        tables: list[Table[Any]],
        *,
        stamp: int,
        bucket_high: int,
        shared: bool = False,
    ) -> Deployment:
        async with self._connection() as connection, connection.transaction():
            result = await deployment.deploy(
                connection,
                self.statements,
                self._sequence,
                graph,
                nodes,
                streams,
                tables,
                shared=shared,
            )
            if result.fresh:
                await self._create_bucket(connection, "time", 0, 0, bucket_high)
            if result.intervals:
                cursor = await connection.execute(self.statements.get("live_buckets"))
                newest = max(
                    (low, id_)
                    for id_, family, _, low, _ in await cursor.fetchall()
                    if family == "time"
                )[1]
                await deployment.write_first_commits(
                    connection,
                    self.statements,
                    bucket_table("commit_record", newest),
                    stamp,
                    result.intervals,
                )
        ids = result.deployment.streams
        self._streams = {stream.name: (ids[stream.name], stream.version) for stream in streams}
        return result.deployment

    # -- workers ------------------------------------------------------------------

    async def _note_backend(self, connection: AsyncConnection[Any]) -> None:
        """A fold holds its interval too: who takes that over must be able to end it, also if the worker
        hangs before its next heartbeat. (Whatever it holds, it can commit nothing after a claim.)"""
        async with closed_on_failure(connection):
            await self._begin_pooled(connection)
            self._pool_backends.append((connection, self._backend_of[connection]))
            if self._worker and self._incarnation_of[connection] == self._incarnations.known:
                await connection.execute(
                    self.statements.get("note_backends"),
                    {"id": self._worker, "backends": self._backends()},
                )

    def _backends(self) -> str:
        lanes = [lane.backend for lane in self._lanes if lane.backend]
        pool = [backend for _, backend in self._pool_backends]
        return msgspec.json.encode([*lanes, *pool]).decode()

    async def _end_lost(self) -> None:
        """A claim of one's own ends nobody who is in its way: it would wait, as successors need not,
        for a fold at the other end of a line that was cut."""
        await self.end_backends([b for connection, b in self._pool_backends if connection.closed])

    async def register_worker(
        self,
        worker: str,
        lease_seconds: float,
        *,
        address: str = "",
        generation: int = 1,
    ) -> None:
        self._worker = worker
        host, pid, started = process_identity()
        registered = await self._run(
            "register_worker",
            {
                "id": worker,
                "host": host,
                "pid": pid,
                "pid_started": started,
                "lease_seconds": lease_seconds,
                "address": address,
                "generation": generation,
            },
        )
        if not registered:
            raise Fenced(ENDED)
        await self._run("cut_leases", {})
        await self._run("forget_workers", {})

    async def heartbeat(
        self, worker: str, lease_seconds: float, load: dict[str, Any], stamp: int = 0
    ) -> Heartbeat:
        params = {
            "id": worker,
            "lease_seconds": lease_seconds,
            "backends": self._backends(),
            "load": msgspec.json.encode(load).decode(),
            "stamp": stamp,
        }
        async with self._connection(self._lifeline) as connection:
            cursor = await connection.execute(
                self.statements.get("heartbeat"), params, prepare=True
            )
            row = await cursor.fetchone()
            await connection.execute(self.statements.get("cut_leases"), prepare=True)
        if row is None:
            raise Fenced(ENDED)
        return Heartbeat(row[0])

    async def stop_worker(self, worker: str) -> None:
        await self._run("stop_worker", {"id": worker})

    async def other_workers(self, worker: str) -> list[OtherWorker]:
        rows = await self._rows("other_workers")
        return [
            OtherWorker(id_, host, pid, started, msgspec.json.decode(backends), lease_left)
            for id_, host, pid, started, backends, lease_left in rows
            if id_ != worker
        ]

    def is_dead(self, other: OtherWorker) -> bool:
        return other.host == host_identity() and process_started(other.pid) != other.pid_started

    async def end_worker(self, other: OtherWorker) -> None:
        await self.end_backends(other.backends)
        await self.stop_worker(other.id)

    async def end_backends(self, backends: Sequence[tuple[int, str]]) -> None:
        """End server processes, given by pid and start."""
        if backends:
            await self._rows(
                "end_backends",
                {"pid": [b[0] for b in backends], "started": [b[1] for b in backends]},
            )

    # -- claims -------------------------------------------------------------------

    async def claim(
        self,
        worker: str,
        interval_ids: list[int],
        *,
        again: bool = False,
        timers: int = TIMERS_A_PAGE,
        sequencers: Mapping[int, int] | None = None,
    ) -> list[Claim]:
        assert not (again and sequencers is not None), "one's own need no comparison"
        if again:
            await self._end_lost()
        if sequencers is None:
            raised, new_logs = await self._placement.take_over(worker, interval_ids, again=again)
        else:
            raised, new_logs = await self._placement.take_free(worker, interval_ids, sequencers)
            interval_ids = [id_ for id_ in interval_ids if id_ in raised]
            if not interval_ids:
                return []
        async with self._connection() as connection:
            await connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            try:
                return await self._read_claims(connection, interval_ids, raised, new_logs, timers)
            finally:
                await connection.execute("ROLLBACK")

    async def release(self, worker: str, sequencers: Mapping[int, int]) -> list[int]:
        return await self._placement.release(worker, sequencers)

    async def add_partitions(
        self, discovery: int, sequencer: int, found: Mapping[str, dict[str, Any] | None]
    ) -> list[FoundPartition]:
        return await self._placement.add_partitions(discovery, sequencer, found)

    async def read_placement(self) -> Placement:
        return await self._placement.read()

    async def wish(self, changes: Sequence[PlacementChange]) -> list[int]:
        return await self._placement.wish(changes)

    async def peer_secret(self) -> bytes:
        """Made by the server, so that it stands in no log of statements."""
        while True:
            rows = await self._rows("read_peer_secret", binary=True)
            if rows:
                return bytes(rows[0][0])
            await self._run("make_peer_secret", {})

    async def try_lead(self, seconds: float) -> bool:
        return await self._leadership.try_lead(seconds)

    async def split(self, interval_id: int, sequencer: int, at: int, *, reason: str = "") -> int:
        return await self._placement.split(interval_id, sequencer, at, reason)

    async def merge(
        self, lower_id: int, upper_id: int, sequencers: Mapping[int, int], *, reason: str = ""
    ) -> int:
        return await self._placement.merge(lower_id, upper_id, sequencers, reason)

    async def _read_claims(
        self,
        connection: AsyncConnection[Any],
        interval_ids: list[int],
        raised: dict[int, int],
        new_logs: dict[int, int],
        limit: int,
    ) -> list[Claim]:
        async def rows(name: str, **params: Any) -> list[Any]:
            cursor = await connection.execute(self.statements.get(name), params)
            return await cursor.fetchall()

        # The sequencer is what this claim raised it to, not what stands there now: another
        # claim may have raised it again, and its fence would let this owner pass.
        intervals = {
            id_: IntervalRow(id_, computation, low, high, raised[id_])
            for id_, computation, low, high, *_ in await rows("list_intervals")
            if id_ in raised
        }
        live_logs: dict[int, list[LogRow]] = {}
        for id_, interval_id, source in await rows("read_logs", interval_ids=interval_ids):
            if id_ != new_logs.get(interval_id):
                live_logs.setdefault(interval_id, []).append(LogRow(id_, source))
        claims = []
        for (
            id_, n, table, stamp, input_watermark, low_watermark, percentiles, acked, position,
            counters, folded,
        ) in await rows("read_last_commits", interval_ids=interval_ids):  # fmt: skip
            interval = intervals[id_]
            where = {"interval_id": id_, "after": folded}
            states = [
                StateChange(
                    id_, at, interval.computation, slot, key.encode(), entry,
                    None if value is None else value.encode(), version,
                )
                for key, slot, entry, value, version, at in await rows("read_state_tail", **where)
            ]  # fmt: skip
            pages = {
                kind: [
                    TimerChange(
                        id_, n, interval.computation, slot, key.encode(), kind, tag, due, hold
                    )
                    for key, slot, tag, due, hold in await rows(
                        "read_timers", **_page(id_, kind, None, limit)
                    )
                ]
                for kind in TIMER_KINDS
            }
            claims.append(
                Claim(
                    interval=interval,
                    n=n,
                    bucket=int(table.rsplit("_", 1)[1]),
                    stamp=stamp,
                    input_watermark=input_watermark,
                    low_watermark=low_watermark,
                    percentiles=as_percentiles(percentiles),
                    acked={
                        int(log): (first, [(a, b) for a, b in runs])
                        for log, (first, runs) in msgspec.json.decode(acked).items()
                    },
                    position=None if position is None else msgspec.json.decode(position),
                    counters=msgspec.json.decode(counters),
                    folded=folded,
                    logs=live_logs.get(id_, []),
                    new_log=new_logs.get(id_, 0),
                    states=states,
                    timers=[timer for page in pages.values() for timer in page],
                    more_timers=frozenset(k for k, page in pages.items() if len(page) == limit),
                )
            )
        if intervals.keys() != raised.keys():
            raise Fenced("intervals were claimed and merged by others as soon as they were claimed")
        if len(claims) != len(interval_ids):
            raise StoreError(
                f"intervals {interval_ids} were claimed, but only {len(claims)} have a commit "
                "record: the store was edited by hand or restored in part"
            )
        place = {id_: number for number, id_ in enumerate(interval_ids)}
        return sorted(claims, key=lambda claim: place[claim.interval.id])

    async def read_timers(
        self, interval_id: int, kind: str, after: TimerPlace | None, limit: int
    ) -> list[TimerChange]:
        rows = await self._rows("read_timers", _page(interval_id, kind, after, limit))
        return [
            TimerChange(interval_id, 0, 0, slot, key.encode(), kind, tag, due, hold)
            for key, slot, tag, due, hold in rows
        ]

    async def open_lane(self) -> PostgresLane:
        lane = PostgresLane(
            self._url, self.schema, self.statements, self._streams, self._begin_lane, self._end_lane
        )
        await lane.connect()
        self._lanes.append(lane)
        if self._worker:
            with contextlib.suppress(StoreUnavailable):  # then the next heartbeat tells
                await self._run("note_backends", {"id": self._worker, "backends": self._backends()})
        return lane

    async def _end_lane(self, lane: PostgresLane) -> None:
        if lane.backend is not None and lane.broken and lane in self._lanes:
            await self.end_backends([lane.backend])
        if lane in self._lanes:  # until here successors are told of it
            self._lanes.remove(lane)

    # -- productions and seen ids ---------------------------------------------------

    async def read_productions(self, log: int, first: int) -> AsyncIterator[StoredProduction]:
        while True:
            rows = await self._rows(
                "read_productions", {"log": log, "first": first, "limit": PAGE_ROWS}
            )
            for row in rows:
                seq, stream, receiver, slot, key, value, version, ts, hold, stamp = row[:10]
                place, id_, origin = row[10:]
                yield StoredProduction(
                    seq,
                    stream,
                    receiver,
                    slot,
                    key.encode(),
                    value.encode(),
                    version,
                    ts,
                    hold,
                    stamp,
                    place,
                    id_.bytes if id_ else b"",
                    origin,
                )
            if len(rows) < PAGE_ROWS:
                return
            first = rows[-1][0] + 1

    async def retire_logs(self, logs: list[int]) -> None:
        await self._run("retire_logs", {"logs": logs})

    async def look_up_seen(
        self, buckets: Sequence[int], computation: int, ids: Sequence[bytes]
    ) -> set[bytes]:
        statement = "\nUNION ALL\n".join(
            self.statements.get("look_up_seen", table=bucket_table("seen_record", bucket))
            for bucket in buckets
        )
        parameters = {
            "low": [UUID(bytes=name_of(id_).ljust(16, b"\0")) for id_ in ids],
            "high": [UUID(bytes=name_of(id_).ljust(16, b"\xff")) for id_ in ids],
            "computation": computation,
        }
        async with self._connection() as connection:
            cursor = await connection.execute(statement, parameters, prepare=True)
            return {id_.bytes for (id_,) in await cursor.fetchall()}

    async def newest_seen(self, bucket: int, computation: int) -> dict[int, int]:
        rows = await self._rows(
            "newest_seen",
            {"computation": computation},
            table=bucket_table("seen_record", bucket),
        )
        return dict(log_and_number(id_.bytes) for (id_,) in rows)

    async def count_seen(self, bucket: int, computation: int, slots: tuple[int, int]) -> int:
        ((found,),) = await self._rows(
            "count_seen",
            {"computation": computation, "slot_from": slots[0], "slot_to": slots[1]},
            table=bucket_table("seen_record", bucket),
        )
        return int(found)

    async def scan_seen(
        self,
        bucket: int,
        computation: int,
        slots: tuple[int, int],
        after: tuple[bytes, int],
        limit: int,
    ) -> list[tuple[bytes, int]]:
        return await self._rows(
            "scan_seen",
            {
                "computation": computation,
                "slot_from": slots[0],
                "slot_to": slots[1],
                "id": UUID(bytes=after[0]),
                "slot": after[1],
                "limit": limit,
            },
            binary=True,
            table=bucket_table("seen_record", bucket),
        )

    # -- state ----------------------------------------------------------------------

    async def load_keys(
        self, computation: int, keys: list[tuple[int, bytes]], limit: int
    ) -> list[list[tuple[str, bytes, int]]]:
        rows = await self._rows(
            "load_keys",
            {
                "slot": [slot for slot, _ in keys],
                "key": [key.decode() for _, key in keys],
                "computation": computation,
                "limit": limit,
            },
        )
        found: list[list[tuple[str, bytes, int]]] = [[] for _ in keys]
        for position, entry, value, version in rows:
            found[position - 1].append((entry, value.encode(), version))
        return found

    async def load_entry(
        self, computation: int, slot: int, key: bytes, entry: str
    ) -> tuple[bytes, int] | None:
        rows = await self._rows(
            "load_entry",
            {"computation": computation, "slot": slot, "key": key.decode(), "entry": entry},
        )
        return (rows[0][0].encode(), rows[0][1]) if rows else None

    async def scan_entries(
        self, computation: int, slot: int, key: bytes, after: str, before: str, limit: int
    ) -> list[tuple[str, bytes, int]]:
        rows = await self._rows(
            "scan_entries",
            {
                "computation": computation,
                "slot": slot,
                "key": key.decode(),
                "after": after,
                "before": before,
                "limit": limit,
            },
        )
        return [(entry, value.encode(), version) for entry, value, version in rows]

    async def sample_states(self, versions: Mapping[str, int], most: int) -> list[OldState]:
        rows = await self._rows(
            "sample_states",
            {
                "names": list(versions),
                "versions": list(versions.values()),
                "most": most,
                "slots": list(range(0, SLOTS, SLOTS // SAMPLED_PLACES)),
                "rows": SAMPLED_ROWS,
            },
        )
        return [
            OldState(name, key.encode(), version, value.encode())
            for name, key, version, value in rows
        ]

    # -- folds ------------------------------------------------------------------------

    async def fold(self, interval_id: int, sequencer: int, after: int, through: int) -> bool:
        params = {
            "interval_id": interval_id,
            "sequencer": sequencer,
            "after": after,
            "through": through,
        }
        async with self._connection() as connection, connection.transaction():
            cursor = await connection.execute(self.statements.get("advance_fold"), params)
            if cursor.rowcount != 1:
                return False
            await connection.execute(self.statements.get("fold_states"), params)
            await connection.execute(self.statements.get("fold_timers"), params)
        return True

    async def now(self) -> int:
        ((micros,),) = await self._rows("database_time")
        return int(micros)

    async def oldest_snapshot_seconds(self) -> float:
        rows = await self._rows("oldest_snapshot")
        return float(rows[0][0])

    # -- buckets ----------------------------------------------------------------------

    async def live_buckets(self) -> list[Bucket]:
        return [Bucket(*row) for row in await self._rows("live_buckets")]

    async def view_buckets(self) -> BucketView:
        async with self._connection() as connection, connection.pipeline():
            await connection.execute("BEGIN", prepare=True)
            await connection.execute(
                self.statements.get("share_buckets"), self._bucket_lock, prepare=True
            )
            cursor = await connection.execute(self.statements.get("view_buckets"), prepare=True)
            await connection.execute("COMMIT", prepare=True)
            rows = await cursor.fetchall()
        return BucketView(rows[0][0], [Bucket(*row) for _, *row in rows if row[0] is not None])

    async def _create_bucket(
        self, connection: AsyncConnection[Any], family: str, log: int, low: int, high: int
    ) -> Bucket:
        params = {"family": family, "log": log, "low": low, "high": high}
        cursor = await connection.execute(self.statements.get("register_bucket"), params)
        row = await cursor.fetchone()
        assert row is not None
        bucket = Bucket(row[0], family, log, low, high)
        parents = BUCKETED if family == "time" else ("seen_record",)
        tables = {f"{parent}_new": bucket_table(parent, bucket.id) for parent in parents}
        statement = "create_bucket_time" if family == "time" else "create_bucket_seen"
        await connection.execute(self.statements.get(statement, **tables))
        return bucket

    async def open_bucket(self, family: str, log: int, low: int, high: int) -> Bucket:
        async with self._connection() as connection, connection.transaction():
            await connection.execute(self.statements.get("lock_buckets"), self._bucket_lock)
            cursor = await connection.execute(
                self.statements.get("find_bucket"), {"family": family, "log": log, "low": low}
            )
            row = await cursor.fetchone()
            assert row is not None
            id_, begin, end = row
            if id_ is not None:
                return Bucket(id_, family, log, begin, end)
            end = high if end is None else min(high, end)
            return await self._create_bucket(connection, family, log, begin, end)

    async def close_bucket(self, bucket: int, high: int) -> Bucket | None:
        async with self._connection() as connection, connection.transaction():
            await connection.execute(self.statements.get("lock_buckets"), self._bucket_lock)
            await connection.execute(
                self.statements.get("close_bucket"),
                {
                    "id": bucket,
                    "high": high,
                    "early": EARLY_CLOSE_MICROS,
                    "step": CLOCK_STEP_MICROS,
                },
            )
            cursor = await connection.execute(self.statements.get("live_buckets"))
            found = [Bucket(*row) for row in await cursor.fetchall()]
        return next((live for live in found if live.id == bucket), None)

    async def advance_gc_watermark(self) -> int:
        floor, stored = (await self._rows("stored_floor"))[0]
        if floor is not None and floor > stored:
            await self._run("advance_gc_watermark", {"floor": floor})
            stored = floor
        return int(stored)

    async def drop_bucket(self, bucket: Bucket) -> bool:
        parents = BUCKETED if bucket.family == "time" else ("seen_record",)
        names = [bucket_table(parent, bucket.id) for parent in parents]
        identifiers = sql.SQL(", ").join(self.statements.table(name) for name in names)
        try:
            async with self._checked() as connection, connection.transaction():
                await connection.execute(  # nor does a process that is stopped hold readers up
                    "SELECT set_config('lock_timeout', %s, true), "
                    "set_config('idle_in_transaction_session_timeout', '5s', true)",
                    [f"{self._lock_timeout}ms"],
                )
                await connection.execute(
                    sql.SQL("LOCK TABLE {} IN ACCESS EXCLUSIVE MODE").format(identifiers)
                )
                if not await self._is_droppable(connection, bucket):
                    return False
                await connection.execute(self.statements.get("forget_bucket"), {"id": bucket.id})
                await connection.execute(sql.SQL("DROP TABLE {}").format(identifiers))
        except psycopg.errors.LockNotAvailable:
            return False
        except psycopg.errors.UndefinedTable:
            return True  # an attempt before this one dropped it, and its answer was lost
        except psycopg.Error as error:
            raise translate(error) from error
        return True

    async def _is_droppable(self, connection: AsyncConnection[Any], bucket: Bucket) -> bool:
        """Look again, under the lock, at what is stored: never at what this worker believes."""
        if bucket.family == "source":
            cursor = await connection.execute(
                self.statements.get("source_acknowledged"),
                {"log": bucket.log, "high": bucket.high},
            )
            row = await cursor.fetchone()
            return row is not None and bool(row[0])
        if bucket.family == "named":
            cursor = await connection.execute(
                self.statements.get("named_acknowledged"), {"high": bucket.high}
            )
            row = await cursor.fetchone()
            return row is not None and bool(row[0])
        cursor = await connection.execute(self.statements.get("stored_floor"))
        row = await cursor.fetchone()
        if row is None or row[1] < bucket.high:
            return False
        table = bucket_table("commit_record", bucket.id)
        cursor = await connection.execute(self.statements.get("bucket_in_use", table=table))
        row = await cursor.fetchone()
        return row is not None and not row[0]


def process_identity() -> tuple[str, int, str]:
    """This process: host (with boot and pid namespace), pid, and when it started."""
    return host_identity(), os.getpid(), process_started(os.getpid()) or ""


def host_identity() -> str:
    """Names this machine, this boot and this process namespace: where a pid means something."""
    parts = [platform.node()]
    for path in ("/etc/machine-id", "/proc/sys/kernel/random/boot_id"):
        try:
            parts.append(Path(path).read_text().strip())
        except OSError:
            parts.append("-")
    try:
        parts.append(str(Path("/proc/self/ns/pid").readlink()))
    except OSError:
        parts.append("-")
    return " ".join(parts)


def process_started(pid: int) -> str | None:
    """When a process of this machine started, in a form to compare; None if there is none."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
        return stat.rsplit(")", 1)[1].split()[19]
    except FileNotFoundError:
        if Path("/proc/self").exists():
            return None
    except (OSError, IndexError):
        pass
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return None
    except PermissionError:
        pass
    return ""


def _page(interval_id: int, kind: str, after: TimerPlace | None, limit: int) -> dict[str, Any]:
    """Parameters of ``read_timers.sql``."""
    due, slot, key, tag = after or (-(1 << 62), 0, b"", "")
    return {
        "interval_id": interval_id,
        "kind": kind,
        "due": due,
        "slot": slot,
        "key": key.decode(),
        "tag": tag,
        "limit": limit,
    }
