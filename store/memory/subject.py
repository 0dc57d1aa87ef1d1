from __future__ import annotations

import asyncio

from millwheel.core.clock import Clock
from millwheel.errors import StoreWentBack
from millwheel.store.memory.faults import Faults
from millwheel.store.memory.tables import Tables


class MemorySubject:
    """`clock` is that of leases."""

    def __init__(self, name: str, clock: Clock) -> None:
        self.tables = Tables(name)
        """Rows that a test may look at; table sinks keep their own."""
        self.faults = Faults()
        self._clock = clock
        self._incarnation: int | None = None

    async def _called(self, name: str) -> None:
        """Yield to the event loop, as a round trip does, and fail if a test asks for it."""
        await asyncio.sleep(0)
        if self.faults.before_call is not None:
            await self.faults.before_call(name)
        if self._incarnation is None:
            self._incarnation = self.tables.incarnation
        elif self._incarnation != self.tables.incarnation:
            raise StoreWentBack("the server has lost commits")
