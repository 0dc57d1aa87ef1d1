"""Workers, their leases, and their leader."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(slots=True)
class OtherWorker:
    """A worker that may still hold intervals."""

    id: str
    host: str
    pid: int
    pid_started: str
    backends: list[tuple[int, str]]
    lease_left: float


@dataclass(frozen=True, slots=True)
class HeartbeatReply:
    """The store's answer to a heartbeat."""

    now: int
    """The store's clock, microseconds."""


class StoreWorkers(Protocol):
    """Workers, their leases, and their leader."""

    async def register_worker(
        self,
        worker: str,
        lease_seconds: float,
        *,
        address: str = "",
        generation: int = 1,
    ) -> None:
        """Register a worker. A worker that starts over registers again.

        Args:
            address: address for connections from other workers.
            generation: generation of its code; it never owns an interval that newer code has owned.

        Raises:
            Fenced: another worker has ended it.
        """
        ...

    async def heartbeat(
        self, worker: str, lease_seconds: float, load: dict[str, Any], stamp: int = 0
    ) -> HeartbeatReply:
        """Renew the lease, and shorten leases that end too late because the store's clock went
        back.

        Args:
            stamp: the newest stamp that the worker has given.

        Raises:
            Fenced: another worker ended this one, or the store has forgotten it.
        """
        ...

    async def stop_worker(self, worker: str) -> None: ...

    async def other_workers(self, worker: str) -> list[OtherWorker]: ...

    def is_dead(self, other: OtherWorker) -> bool:
        """Whether a worker's process ran on this machine and is known to have ended."""
        ...

    async def end_worker(self, other: OtherWorker) -> None:
        """End the server processes of a dead worker, and its lease."""
        ...

    async def end_lost_leases(self, suspects: Sequence[str]) -> list[str]:
        """End the leases of those of the suspected workers that hold their liveness lock no more
        (decision 58).

        The session of a worker's heartbeats holds the lock; it is free soon after the process has
        died. A worker that has not held it since the server started is not judged: its lease
        decides. A wrong guess is safe (I3), and the next heartbeat of the worker renews its lease.

        Returns:
            The workers whose leases were ended.
        """
        ...

    async def blockers(self) -> list[str]:
        """The sessions of the server that this worker's sessions wait for, in words.

        Raises:
            StoreUnavailable: the server does not answer.
        """
        ...

    async def peer_secret(self) -> bytes:
        """The 32 random bytes that prove to a worker that its peer belongs to the pipeline. The
        first call ever draws them; two concurrent callers get the same."""
        ...

    async def try_lead(self, worker: str, seconds: float) -> int | None:
        """The term of the leadership if this worker leads; it takes a free one. None: another
        worker leads.

        Each call keeps the leadership for `seconds`. It is free after that, and as soon as the
        worker's lease has ended; a worker without a lease cannot lead. Each change of the leader
        raises the term.
        """
        ...
