"""The shape of everything that runs beside the lanes: one piece of work, again and again."""

from __future__ import annotations

from millwheel.clock import Clock
from millwheel.errors import StoreUnavailable


class Service:
    """Does `run_once` every `period` seconds; an unreachable store is for the lanes to judge."""

    def __init__(self, clock: Clock, period: float) -> None:
        self._clock = clock
        self._period = period

    async def run_once(self) -> None:
        """The work."""
        raise NotImplementedError

    async def run(self) -> None:
        """Work until cancelled."""
        while True:
            await self._clock.sleep(self._period)
            try:
                await self.run_once()
            except StoreUnavailable:
                continue
