from __future__ import annotations

import asyncio

from millwheel.core.clock import Clock
from millwheel.errors import StoreWentBack
from millwheel.store.memory.faults import Faults
from millwheel.store.memory.tables import Tables


class MemorySubject:
    """The base of the subjects of `MemoryStore`; `clock` is that of leases."""

    def __init__(self, name: str, clock: Clock) -> None:
        self.tables = Tables(name)
        """The stored rows, for a test to look into, but not those of table sinks."""
        self.faults = Faults()
        self._clock = clock
        self._incarnation: int | None = None
        """The first incarnation of the server that this object has met."""

    async def _called(self, name: str) -> None:
        """Yield to the event loop, as a round trip does, and fail if a test asks for it."""
        await asyncio.sleep(0)
        if self.faults.before_call is not None:
            await self.faults.before_call(name)
        if self._incarnation is None:
            self._incarnation = self.tables.incarnation
        elif self._incarnation != self.tables.incarnation:
            raise StoreWentBack("the server has lost commits")
