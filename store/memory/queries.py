from __future__ import annotations

from millwheel.store.memory.subject import MemorySubject
from millwheel.store.port.queries import StoredQueries


class MemoryQueries(MemorySubject):
    async def queries(self) -> StoredQueries:
        await self._called("queries")
        return StoredQueries(self.tables.queries.revision, self.tables.queries.queries)

    async def queries_revision(self) -> int:
        await self._called("queries_revision")
        return self.tables.queries.revision
