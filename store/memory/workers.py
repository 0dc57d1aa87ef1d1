"""The workers and their leases, by the store's clock (`millwheel.store.postgres.workers`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from millwheel.core.clock import Clock
from millwheel.errors import Fenced
from millwheel.store.memory.jsonb import plain
from millwheel.store.memory.subject import MemorySubject
from millwheel.store.memory.tables import Tables, WorkerRow
from millwheel.store.port.placement import PlacedWorker
from millwheel.store.port.workers import HeartbeatReply, OtherWorker

FORGET_WORKERS_SECONDS = 86_400.0
"""When a worker registers, the store forgets workers with leases that ended this long ago."""

ENDED = (
    "another worker ended this one, or the store forgot it because it sent no heartbeat for too "
    "long; it must release everything it holds"
)

HOST = "memory"
"""Name of the machine of all workers."""


class Workers:
    """The workers of one pipeline."""

    def __init__(self, tables: Tables, clock: Clock) -> None:
        self._tables = tables
        self._clock = clock

    def register(self, worker: str, lease_seconds: float, address: str, generation: int) -> None:
        now = self._clock.monotonic()
        known = self._tables.workers.get(worker)
        if known is not None and known.stopped:
            raise Fenced(ENDED)
        workers = self._tables.workers = {
            id_: other
            for id_, other in self._tables.workers.items()
            if other.lease_until >= now - FORGET_WORKERS_SECONDS
        }
        number = self._tables.next_number() if known is None else known.number
        beat = self._clock.now() if known is None else max(known.heartbeat_at, self._clock.now())
        workers[worker] = WorkerRow(
            number, now + lease_seconds, {}, lease_seconds, beat, address, generation
        )  # without a liveness lock: only a heartbeat takes it
        self.cut_leases()

    def heartbeat(
        self, worker: str, lease_seconds: float, load: dict[str, Any], stamp: int
    ) -> None:
        found = self._tables.workers.get(worker)
        if found is None or found.stopped:
            raise Fenced(ENDED)
        found.lease_until = self._clock.monotonic() + lease_seconds
        found.lease_seconds = lease_seconds
        found.heartbeat_at = max(found.heartbeat_at, self._clock.now(), stamp)
        found.load = plain(load)
        found.locked_on = self._tables.liveness.starts
        self._tables.liveness.held.add(worker)
        self.cut_leases()

    def cut_leases(self) -> None:
        """Shorten leases that end later than their length from now."""
        now = self._clock.monotonic()
        for worker in self._tables.workers.values():
            worker.lease_until = min(worker.lease_until, now + worker.lease_seconds)

    def stop(self, worker: str) -> None:
        found = self._tables.workers.get(worker)
        if found is not None:
            found.stopped = True
            found.lease_until = self._clock.monotonic()

    def end_lost_leases(self, suspects: Sequence[str]) -> list[str]:
        """End the leases of suspects that held their liveness lock since the server started, and do
        not now."""
        lost = [
            id_
            for id_ in suspects
            if self.is_alive(id_)
            and self._tables.workers[id_].locked_on == self._tables.liveness.starts
            and id_ not in self._tables.liveness.held
        ]
        for id_ in lost:
            found = self._tables.workers[id_]
            found.lease_until, found.locked_on = self._clock.monotonic(), None
        return lost

    def lead(self, worker: str, seconds: float) -> int | None:
        """Take or renew the leadership; gives its term."""
        leader, now = self._tables.leader, self._clock.monotonic()
        if not self.is_alive(worker):
            return None
        if leader.worker != worker:
            if leader.lease_until > now and self.is_alive(leader.worker):
                return None
            leader.worker, leader.term = worker, leader.term + 1
        leader.lease_until = now + seconds
        return leader.term

    def others(self, worker: str) -> list[OtherWorker]:
        """Other workers that have not stopped."""
        now = self._clock.monotonic()
        return [
            OtherWorker(id_, HOST, other.number, "", [], max(0.0, other.lease_until - now))
            for id_, other in self._tables.workers.items()
            if id_ != worker and not other.stopped
        ]

    def placed(self) -> list[PlacedWorker]:
        """Workers that have not stopped, in the form of the placement."""
        now = self._clock.monotonic()
        return [
            PlacedWorker(
                id_, found.address, HOST, found.number, "", [], max(0.0, found.lease_until - now),
                plain(found.load), found.generation,
            )
            for id_, found in self._tables.workers.items()
            if not found.stopped
        ]  # fmt: skip

    def generation(self, worker: str) -> int:
        """The generation of a worker's code; the first one for a worker that never registered."""
        found = self._tables.workers.get(worker)
        return 1 if found is None else found.generation

    def is_alive(self, worker: str | None) -> bool:
        """Whether a worker has not stopped and has a valid lease."""
        found = None if worker is None else self._tables.workers.get(worker)
        return (
            found is not None and not found.stopped and found.lease_until > self._clock.monotonic()
        )


class MemoryWorkers(MemorySubject):
    """The methods of the store on workers (`millwheel.store.postgres.workers`)."""

    def __init__(self, name: str, clock: Clock) -> None:
        super().__init__(name, clock)
        self.dead_workers: set[str] = set()
        """Workers with a process that a test declares dead."""
        self._workers = Workers(self.tables, clock)

    async def register_worker(
        self,
        worker: str,
        lease_seconds: float,
        *,
        address: str = "",
        generation: int = 1,
    ) -> None:
        await self._called("register_worker")
        self._workers.register(worker, lease_seconds, address, generation)

    async def heartbeat(
        self, worker: str, lease_seconds: float, load: dict[str, Any], stamp: int = 0
    ) -> HeartbeatReply:
        await self._called("heartbeat")
        self._workers.heartbeat(worker, lease_seconds, load, stamp)
        return HeartbeatReply(self._clock.now())

    async def blockers(self) -> list[str]:
        return []

    async def stop_worker(self, worker: str) -> None:
        await self._called("stop_worker")
        self._workers.stop(worker)

    async def other_workers(self, worker: str) -> list[OtherWorker]:
        await self._called("other_workers")
        return self._workers.others(worker)

    def is_dead(self, other: OtherWorker) -> bool:
        return other.id in self.dead_workers

    async def end_worker(self, other: OtherWorker) -> None:
        await self.stop_worker(other.id)

    async def end_lost_leases(self, suspects: Sequence[str]) -> list[str]:
        await self._called("end_lost_leases")
        return self._workers.end_lost_leases(suspects)

    def end_liveness_session(self, worker: str) -> None:
        """End the session of a worker's heartbeats: the process has died, or an operator has ended
        it."""
        self.tables.liveness.held.discard(worker)

    def restart_server(self) -> None:
        """End all sessions; nobody holds a lock, and nothing is lost."""
        self.tables.liveness.server_started()

    async def peer_secret(self) -> bytes:
        await self._called("peer_secret")
        return self.tables.peer_secret

    async def try_lead(self, worker: str, seconds: float) -> int | None:
        await self._called("try_lead")
        return self._workers.lead(worker, seconds)
