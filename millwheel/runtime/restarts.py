"""Starting over: what a worker does when the store may have lost its newest commits (decision 40).

Memory holds what was durable once: ACKs, productions that were sent, watermarks that were
published, ids that were seen, state that was cached. After a crash of the server, or the promotion of
a standby that lagged behind, some of it never happened. What is stored is a consistent cut of the
past, so the worker does what it does after a crash of its own: it drops everything and starts from the
store. No part of that is new: a worker may crash at any moment.

::

    running ──StoreWentBack──▶ dropping ──▶ forgotten ──▶ starting ──▶ running
                                  ▲                          │
                                  └── StoreWentBack, StoreUnavailable (with patience)

Any task of the engine may meet the other store; `Engine.fail` sends it here. The process, its worker
id, its address and its probes stay.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from millwheel.errors import StoreUnavailable, StoreWentBack
from millwheel.runtime.lane.recovery import FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS
from millwheel.runtime.process.tasks import end

if TYPE_CHECKING:
    from millwheel.runtime.engine import Engine


class Restarts:
    """Lets one engine start over, as often as it has to."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._wanted = asyncio.Event()
        self._reason: StoreWentBack | None = None
        self._watching: asyncio.Task[None] | None = None
        self.under_way = False
        """Nothing of the engine may be relied on: it is half dropped, or half started."""

    def wanted(self, reason: StoreWentBack) -> None:
        """Something has met a store that went back."""
        self._reason = reason
        self._wanted.set()

    @property
    def is_wanted(self) -> bool:
        """Whether memory and store have parted."""
        return self._wanted.is_set()

    def watch(self) -> None:
        """Start over from now on whenever that is wanted."""
        self._watching = asyncio.create_task(self._watch(), name="restarts")

    async def _watch(self) -> None:
        while True:
            await self._wanted.wait()
            assert self._reason is not None
            try:
                await self.start_over(self._reason)
            except Exception as error:
                self._engine.fail(error)
                return

    async def start_over(self, reason: StoreWentBack) -> None:
        """Drop everything, and start from what is stored.

        Raises:
            MillwheelError: the engine cannot start, or not within its patience with the store.
        """
        engine = self._engine
        engine.log.warning(
            "starts_over",
            reason=str(reason),
            intervals=len(engine.intervals),
            what_it_means="the worker forgets what it holds in memory and claims its intervals again, "
            "as after a crash: what the server has lost is done once more",
            what_to_do="nothing, if the server's crash or failover was expected; docs/deploy says how "
            "to keep a failover from losing commits",
        )
        self.under_way = True
        patience = engine.settings.store_patience_seconds
        deadline = engine.clock.monotonic() + patience
        pause = FIRST_PAUSE_SECONDS
        while True:
            await self._drop_and_forget()
            self._wanted.clear()  # what ended meanwhile may have met the same
            try:
                await engine.begin()
            except (StoreUnavailable, StoreWentBack) as error:
                if engine.clock.monotonic() > deadline:
                    raise StoreUnavailable(
                        f"the worker could not start over within {patience:.0f} s: {error}. Nothing is "
                        "lost that the server has kept: start again when it is well"
                    ) from error
                await engine.clock.sleep(pause)
                pause = min(LONGEST_PAUSE_SECONDS, 2 * pause)
            else:
                break
        self.under_way = False

    async def _drop_and_forget(self) -> None:
        engine = self._engine
        engine.started = False
        if engine.courier is not None:  # first: nothing of the lost past leaves, or comes in
            engine.courier.hang_up()
        await engine.drop_everything()
        for interval in list(engine.intervals):
            engine.observer.interval_gone(interval)
        engine.done.clear()
        engine.forget()
        engine.store.begin_again()

    async def close(self) -> None:
        """Start over no more, whatever happens."""
        if self._watching is not None:
            await end([self._watching])
