"""The heartbeat: renews the worker's lease, and waits for nothing else.

Whatever the other services wait for, a fold of many rows, a lock, a bucket that is being dropped,
the lease goes on: a worker that works must not lose its intervals.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millwheel.runtime.process.service import Service

if TYPE_CHECKING:
    from millwheel.runtime.engine import Engine

BEATS_PER_LEASE = 3
"""One may be lost, and the next still comes before the lease is over."""

TRIES_PER_BEAT = 10
"""How often one that failed is tried until the next is due."""


class Heartbeat(Service):
    """Renews the lease, tells what this worker costs, and learns the store's time."""

    def __init__(self, engine: Engine) -> None:
        self._every = engine.settings.lease_seconds / BEATS_PER_LEASE
        super().__init__(engine.clock, self._every / TRIES_PER_BEAT)
        self._engine = engine
        self._last = float("-inf")

    async def run_once(self) -> None:
        engine = self._engine
        asked, before = engine.clock.monotonic(), engine.clock.now()
        if asked - self._last < self._every:
            return
        answer = await engine.store.heartbeat(
            engine.worker, engine.settings.lease_seconds, engine.load(), engine.stamps.last
        )
        self._last = asked
        engine.lease.renewed(asked)
        if engine.courier is not None:
            engine.tell_time(before, answer.now)
