"""Who is there: the workers and their leases, by the store's clock."""

from __future__ import annotations

from typing import Any

from millwheel.clock import Clock
from millwheel.errors import Fenced
from millwheel.store.memory.jsonb import plain
from millwheel.store.memory.tables import Tables, Worker
from millwheel.store.port import OtherWorker, PlacedWorker

FORGET_WORKERS_SECONDS = 86_400.0
"""A worker whose lease ended so long ago is forgotten when another registers."""

ENDED = (
    "somebody ended this worker, or it was silent for so long that it was forgotten; it must let go of "
    "everything"
)

HOST = "memory"
"""The machine that all workers of such a store run on."""


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
        workers[worker] = Worker(
            number, now + lease_seconds, {}, lease_seconds, beat, address, generation
        )
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
        self.cut_leases()

    def cut_leases(self) -> None:
        """No lease ends later than its length from now."""
        now = self._clock.monotonic()
        for worker in self._tables.workers.values():
            worker.lease_until = min(worker.lease_until, now + worker.lease_seconds)

    def stop(self, worker: str) -> None:
        found = self._tables.workers.get(worker)
        if found is not None:
            found.stopped = True
            found.lease_until = self._clock.monotonic()

    def others(self, worker: str) -> list[OtherWorker]:
        """Those that have not stopped, besides this one."""
        now = self._clock.monotonic()
        return [
            OtherWorker(id_, HOST, other.number, "", [], max(0.0, other.lease_until - now))
            for id_, other in self._tables.workers.items()
            if id_ != worker and not other.stopped
        ]

    def placed(self) -> list[PlacedWorker]:
        """Those that have not stopped, as placement is told of them."""
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
        """That of its code; of one that never registered, the first."""
        found = self._tables.workers.get(worker)
        return 1 if found is None else found.generation

    def is_alive(self, worker: str | None) -> bool:
        """Whether a worker has not stopped, and its lease lasts."""
        found = None if worker is None else self._tables.workers.get(worker)
        return (
            found is not None and not found.stopped and found.lease_until > self._clock.monotonic()
        )
