"""Names the sessions that a worker waits for when a commit or a heartbeat does not finish.

A lock of another session on a table stops a whole pipeline without an error. So a long wait is
logged with the sessions that hold the locks, again at each doubling of the time. The worker is not
ready during it, and its heartbeats publish it.
"""

from __future__ import annotations

from collections.abc import Callable

from millwheel.errors import StoreError
from millwheel.runtime.environment import Environment, StoreWait
from millwheel.runtime.process.service import Service

WAIT_SECONDS = 5.0
"""A commit or heartbeat that takes this long is reported; a commit takes milliseconds."""


class StoreWaits(Service):
    """`commit` and `heartbeat` return the monotonic time since which the oldest one waits, if
    any."""

    def __init__(
        self,
        env: Environment,
        commit: Callable[[], float | None],
        heartbeat: Callable[[], float | None],
    ) -> None:
        super().__init__(env.clock, env.settings.placement_seconds)
        self._env = env
        self._since = {"commit": commit, "heartbeat": heartbeat}
        self._log_at = WAIT_SECONDS

    async def run_once(self) -> None:
        env, now = self._env, self._env.clock.monotonic()
        waits = [
            (now - since, what) for what, get in self._since.items() if (since := get()) is not None
        ]
        seconds, what = max(waits, default=(0.0, ""))
        if seconds < WAIT_SECONDS:
            if env.store_wait is not None and self._log_at > WAIT_SECONDS:
                env.log.info("store_answers")
            env.store_wait, self._log_at = None, WAIT_SECONDS
            return
        blockers = await self._blockers()
        env.store_wait = StoreWait(what, seconds, blockers)
        if seconds >= self._log_at:
            self._log_at = 2 * seconds
            env.log.warning(
                "store_waits",
                what=what,
                seconds=round(seconds, 1),
                sessions=blockers,
                what_it_means=(
                    "other sessions hold locks that it needs"
                    if blockers
                    else (
                        "no other session holds a lock that it needs: the server, its disk or the "
                        "network is slow, or commits fail (commit_failed)"
                    )
                ),
                what_to_do=(
                    "end that transaction, or its session"
                    if blockers
                    else "look at the server: wait_event in pg_stat_activity, its log, its disk"
                ),
            )

    async def _blockers(self) -> tuple[str, ...]:
        try:
            return tuple(await self._env.store.blockers())
        except StoreError:
            return ()
