from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from millwheel.errors import ItemAtFault


@dataclass(slots=True)
class OtherWorker:
    id: str
    host: str
    pid: int
    pid_started: str
    backends: list[tuple[int, str]]
    lease_left: float


@dataclass(frozen=True, slots=True)
class WorkerEnd:
    """The error with which a worker ends."""

    worker: str
    kind: str
    """Name of the error's class."""
    error: str
    item: ItemAtFault | None = None


@dataclass(frozen=True, slots=True)
class HeartbeatReply:
    now: int
    """Microseconds."""
    withholds: bool = False
    """Nothing of the pipeline leaves the store from now on (decision 86)."""


class StoreWorkers(Protocol):
    async def register_worker(
        self,
        worker: str,
        lease_seconds: float,
        *,
        address: str = "",
        generation: int = 1,
        load: Mapping[str, Any] | None = None,
    ) -> None:
        """A worker that starts over registers again. `Fenced` if another worker has ended it.

        `address` is for connections from other workers. The worker never owns an interval that code
        of a newer `generation` has owned. `load` is as in `heartbeat`, and counts until the first
        one.
        """
        ...

    async def heartbeat(
        self, worker: str, lease_seconds: float, load: dict[str, Any], stamp: int = 0
    ) -> HeartbeatReply:
        """Renew the lease, and shorten leases that end too late because the store's clock went
        back.

        `stamp` is the newest that the worker has given. `Fenced` if another worker ended this one,
        or the store has forgotten it.
        """
        ...

    async def stop_worker(self, worker: str) -> None: ...

    async def note_worker_end(self, end: WorkerEnd) -> None:
        """Keep why a worker ends, for people."""

    async def other_workers(self, worker: str) -> list[OtherWorker]: ...

    def is_dead(self, other: OtherWorker) -> bool:
        """Whether a worker's process ran on this machine and is known to have ended."""
        ...

    async def end_worker(self, other: OtherWorker) -> None:
        """End the server processes of a dead worker, and its lease."""

    async def end_lost_leases(self, suspects: Sequence[str]) -> list[str]:
        """End the leases of suspected workers that hold their liveness lock no more (decision 58);
        returns these workers.

        The session of a worker's heartbeats holds the lock, which is free soon after the process
        has died. A worker that has not held it since the server started is not judged. A wrong
        guess is safe (I3), and the next heartbeat of the worker renews its lease.
        """
        ...

    async def blockers(self) -> list[str]:
        """The sessions that this worker's sessions wait for, in words."""
        ...

    async def peer_secret(self) -> bytes:
        """32 random bytes, the secret of the pipeline's workers, drawn by the first call ever.
        Concurrent callers get the same."""
        ...

    async def try_lead(self, worker: str, seconds: float) -> int | None:
        """The term of the leadership if this worker leads, or takes a free one; None: another
        worker leads.

        Each call keeps the leadership for `seconds`, or until the worker's lease has ended. Each
        change of the leader raises the term.
        """
        ...
