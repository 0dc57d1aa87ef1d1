"""Renews the worker's lease, and does nothing else: other services may wait for a fold, a lock, or
the drop of a bucket, and a healthy worker must not lose its intervals."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from millwheel.runtime.environment import Environment
from millwheel.runtime.process.lease import Lease
from millwheel.runtime.process.service import Service

BEATS_PER_LEASE = 3
"""If one heartbeat is lost, the next one still comes before the lease ends."""

TRIES_PER_BEAT = 10


class Heartbeat(Service):
    """`set_clock` gets this machine's time before the request, and the store's time; `switch` is
    called if outputs are withheld now, and were not at the start, or the other way round."""

    def __init__(
        self,
        env: Environment,
        lease: Lease,
        load: Callable[[], dict[str, Any]],
        set_clock: Callable[[int, int], None],
        switch: Callable[[], None],
    ) -> None:
        self._every = env.settings.lease_seconds / BEATS_PER_LEASE
        super().__init__(env.clock, self._every / TRIES_PER_BEAT)
        self._env = env
        self._lease = lease
        self._load = load
        self._set_clock = set_clock
        self._switch = switch
        self._last = float("-inf")
        self.waits_since: float | None = None
        """Monotonic time of the unanswered heartbeat; None: all are answered."""
        self.published: dict[str, Any] = {}

    async def run_once(self) -> None:
        env = self._env
        asked, before = env.clock.monotonic(), env.clock.now()
        if asked - self._last < self._every:
            return
        self.published = self._load()
        if self.waits_since is None:
            self.waits_since = asked
        answer = await env.store.heartbeat(
            env.worker, env.settings.lease_seconds, self.published, env.stamps.last
        )
        self.waits_since = None
        self._last = asked
        self._lease.renewed(asked)
        self.answered(before, answer.now)
        if answer.withholds != env.copied.withholds:
            self._switch()

    def answered(self, before: int, now: int) -> None:
        """Adopt the store's time; `before` is this machine's time before the request."""
        if self._env.is_shared:
            self._set_clock(before, now)
