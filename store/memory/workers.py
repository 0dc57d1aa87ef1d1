from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from millwheel.core.clock import Clock
from millwheel.errors import Fenced
from millwheel.store.memory.jsonb import plain
from millwheel.store.memory.subject import MemorySubject
from millwheel.store.memory.tables import WorkerRow
from millwheel.store.port.placement import PlacedWorker
from millwheel.store.port.workers import HeartbeatReply, OtherWorker, WorkerEnd

FORGET_WORKERS_SECONDS = 86_400.0
"""Leases that ended this long ago are deleted when a worker registers."""

ENDED = (
    "another worker ended this one, or the store forgot it because it sent no heartbeat for too "
    "long; it must release everything it holds"
)

HOST = "memory"


class MemoryWorkers(MemorySubject):
    def __init__(self, name: str, clock: Clock) -> None:
        super().__init__(name, clock)
        self.dead_workers: set[str] = set()
        """A test declares their processes dead."""

    async def register_worker(
        self,
        worker: str,
        lease_seconds: float,
        *,
        address: str = "",
        generation: int = 1,
        load: Mapping[str, Any] | None = None,
    ) -> None:
        await self._called("register_worker")
        now = self._clock.monotonic()
        known = self.tables.workers.get(worker)
        if known is not None and known.stopped:
            raise Fenced(ENDED)
        workers = self.tables.workers = {
            id_: other
            for id_, other in self.tables.workers.items()
            if other.lease_until >= now - FORGET_WORKERS_SECONDS
        }
        number = self.tables.next_number() if known is None else known.number
        beat = self._clock.now() if known is None else max(known.heartbeat_at, self._clock.now())
        workers[worker] = WorkerRow(
            number, now + lease_seconds, dict(load or {}), lease_seconds, beat, address, generation
        )  # without a liveness lock: only a heartbeat takes it
        self._cut_leases()

    async def heartbeat(
        self, worker: str, lease_seconds: float, load: dict[str, Any], stamp: int = 0
    ) -> HeartbeatReply:
        await self._called("heartbeat")
        found = self.tables.workers.get(worker)
        if found is None or found.stopped:
            raise Fenced(ENDED)
        found.lease_until = self._clock.monotonic() + lease_seconds
        found.lease_seconds = lease_seconds
        found.heartbeat_at = max(found.heartbeat_at, self._clock.now(), stamp)
        found.load = plain(load)
        found.locked_on = self.tables.liveness.starts
        self.tables.liveness.held.add(worker)
        self._cut_leases()
        return HeartbeatReply(self._clock.now(), self.tables.copied.withholds)

    async def blockers(self) -> list[str]:
        return []

    async def stop_worker(self, worker: str) -> None:
        await self._called("stop_worker")
        found = self.tables.workers.get(worker)
        if found is not None:
            found.stopped = True
            found.lease_until = self._clock.monotonic()

    async def note_worker_end(self, end: WorkerEnd) -> None:
        await self._called("note_worker_end")
        self.tables.worker_ends.append(end)

    async def other_workers(self, worker: str) -> list[OtherWorker]:
        await self._called("other_workers")
        now = self._clock.monotonic()
        return [
            OtherWorker(id_, HOST, other.number, "", [], max(0.0, other.lease_until - now))
            for id_, other in self.tables.workers.items()
            if id_ != worker and not other.stopped
        ]

    def is_dead(self, other: OtherWorker) -> bool:
        return other.id in self.dead_workers

    async def end_worker(self, other: OtherWorker) -> None:
        await self.stop_worker(other.id)

    async def end_lost_leases(self, suspects: Sequence[str]) -> list[str]:
        await self._called("end_lost_leases")
        lost = [
            id_
            for id_ in suspects
            if self._is_alive(id_)
            and self.tables.workers[id_].locked_on == self.tables.liveness.starts
            and id_ not in self.tables.liveness.held
        ]
        for id_ in lost:
            found = self.tables.workers[id_]
            found.lease_until, found.locked_on = self._clock.monotonic(), None
        return lost

    def end_liveness_session(self, worker: str) -> None:
        """End the session of a worker's heartbeats: the process has died, or an operator has ended
        it."""
        self.tables.liveness.held.discard(worker)

    def restart_server(self) -> None:
        """End all sessions and with them the locks; nothing is lost."""
        self.tables.liveness.server_started()

    async def peer_secret(self) -> bytes:
        await self._called("peer_secret")
        return self.tables.peer_secret

    async def try_lead(self, worker: str, seconds: float) -> int | None:
        await self._called("try_lead")
        leader, now = self.tables.leader, self._clock.monotonic()
        if not self._is_alive(worker):
            return None
        if leader.worker != worker:
            if leader.lease_until > now and self._is_alive(leader.worker):
                return None
            leader.worker, leader.term = worker, leader.term + 1
        leader.lease_until = now + seconds
        return leader.term

    def _cut_leases(self) -> None:
        """Shorten leases that end later than their length from now."""
        now = self._clock.monotonic()
        for worker in self.tables.workers.values():
            worker.lease_until = min(worker.lease_until, now + worker.lease_seconds)

    def _placed_workers(self) -> list[PlacedWorker]:
        now = self._clock.monotonic()
        return [
            PlacedWorker(
                id_, found.address, HOST, found.number, "", [], max(0.0, found.lease_until - now),
                plain(found.load), found.generation,
            )
            for id_, found in self.tables.workers.items()
            if not found.stopped
        ]  # fmt: skip

    def _generation(self, worker: str) -> int:
        """The first generation for a worker that never registered."""
        found = self.tables.workers.get(worker)
        return 1 if found is None else found.generation

    def _is_alive(self, worker: str | None) -> bool:
        found = None if worker is None else self.tables.workers.get(worker)
        return (
            found is not None and not found.stopped and found.lease_until > self._clock.monotonic()
        )
