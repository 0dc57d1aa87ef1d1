from __future__ import annotations

from millwheel.core.clock import Clock
from millwheel.errors import StoreUnavailable


class Service:
    """Calls `run_once` every `period` seconds.

    It ignores an unreachable store: the lane decides when to give up on it.
    """

    def __init__(self, clock: Clock, period: float) -> None:
        self._clock = clock
        self._period = period

    async def run_once(self) -> None:
        raise NotImplementedError

    async def run(self) -> None:
        while True:
            await self._clock.sleep(self._period)
            try:
                await self.run_once()
            except StoreUnavailable:
                continue
