from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import psycopg
from psycopg.types.json import Jsonb

from millwheel.core.codec import storable
from millwheel.errors import Fenced, StoreUnavailable
from millwheel.store.port.workers import HeartbeatReply, OtherWorker, WorkerEnd
from millwheel.store.postgres import processes
from millwheel.store.postgres.blockers import blockers_of
from millwheel.store.postgres.connections import Connections, Subject

ERROR_CHARACTERS = 8_192
"""Longest text of an error that is kept."""

KEEP_ENDS = 1_000
"""A worker that a supervisor starts again each second leaves so many in a quarter of an hour."""

ENDED = (
    "another worker ended this one, or the store forgot it because it sent no heartbeat for too "
    "long; it must release everything it holds"
)


def heartbeat_of(
    connections: Connections, worker: str, lease_seconds: float, load: dict[str, Any], stamp: int
) -> dict[str, Any]:
    return {
        "id": worker,
        "lease_seconds": lease_seconds,
        "backends": connections.backends(),
        "load": msgspec.json.encode(load).decode(),
        "stamp": stamp,
        "pipeline": connections.schema,
    }


class PostgresWorkers(Subject):
    """Rows of the table `worker`, the workers' shared secret, and the leadership."""

    async def register_worker(
        self,
        worker: str,
        lease_seconds: float,
        *,
        address: str = "",
        generation: int = 1,
        load: Mapping[str, Any] | None = None,
    ) -> None:
        self.connections.worker = worker
        host, pid, started = processes.process_identity()
        registered = await self.connections.run(
            "register_worker",
            {
                "id": worker,
                "host": host,
                "pid": pid,
                "pid_started": started,
                "lease_seconds": lease_seconds,
                "address": address,
                "generation": generation,
                "load": Jsonb(load or {}),
            },
        )
        if not registered:
            raise Fenced(ENDED)
        await self.connections.run("cut_leases", {})
        await self.connections.run("forget_workers", {})
        await self.connections.run("forget_requests", {}, forget_requests="forget_requests")

    async def heartbeat(
        self, worker: str, lease_seconds: float, load: dict[str, Any], stamp: int = 0
    ) -> HeartbeatReply:
        connections = self.connections
        params = heartbeat_of(connections, worker, lease_seconds, load, stamp)
        async with connections.connection(connections.lifeline) as connection:
            cursor = await connection.execute(
                connections.statements.get("heartbeat"), params, prepare=True
            )
            row = await cursor.fetchone()
            if row is None:
                raise Fenced(ENDED)
            await connection.require_own(row[1])
            await connection.execute(connections.statements.get("cut_leases"), prepare=True)
        return HeartbeatReply(row[0], bool(row[2]))

    async def blockers(self) -> list[str]:
        try:
            return await blockers_of(self.connections.url, self.connections.pids())
        except psycopg.Error as error:
            raise StoreUnavailable(str(error).strip()) from error

    async def stop_worker(self, worker: str) -> None:
        await self.connections.run("stop_worker", {"id": worker})

    async def note_worker_end(self, end: WorkerEnd) -> None:
        host, pid, _ = processes.process_identity()
        item = end.item
        await self.connections.run(
            "note_worker_end",
            {
                "worker": end.worker,
                "host": host,
                "pid": pid,
                "kind": end.kind,
                "error": storable(end.error[:ERROR_CHARACTERS]),
                "computation": None if item is None else item.computation,
                "item": None if item is None else item.name,
                "key": None if item is None else item.key,
                "partition": None if item is None else item.partition,
                "keep": KEEP_ENDS,
            },
        )

    async def other_workers(self, worker: str) -> list[OtherWorker]:
        rows = await self.connections.rows("other_workers")
        return [
            OtherWorker(id_, host, pid, started, msgspec.json.decode(backends), lease_left)
            for id_, host, pid, started, backends, lease_left in rows
            if id_ != worker
        ]

    def is_dead(self, other: OtherWorker) -> bool:
        return processes.is_dead(other.host, other.pid, other.pid_started)

    async def end_worker(self, other: OtherWorker) -> None:
        await self.end_backends(other.backends)
        await self.stop_worker(other.id)

    async def end_lost_leases(self, suspects: Sequence[str]) -> list[str]:
        rows = await self.connections.rows(
            "end_lost_leases", {"suspects": list(suspects), "pipeline": self.connections.schema}
        )
        return [id_ for (id_,) in rows]

    async def end_backends(self, backends: Sequence[tuple[int, str]]) -> None:
        await self.connections.end_backends(backends)

    async def peer_secret(self) -> bytes:
        """The server draws the secret, so that no log of statements contains it."""
        while True:
            rows = await self.connections.rows("read_peer_secret", binary=True)
            if rows:
                return bytes(rows[0][0])
            await self.connections.run("make_peer_secret", {})

    async def try_lead(self, worker: str, seconds: float) -> int | None:
        rows = await self.connections.rows("lead", {"worker": worker, "seconds": seconds})
        return rows[0][0] if rows else None
