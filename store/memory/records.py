from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace

from millwheel.core.model import name_of
from millwheel.errors import StoreError
from millwheel.store.memory.subject import MemorySubject
from millwheel.store.memory.tables import BucketTables
from millwheel.store.port.records import StoredProduction

PAGE_ROWS = 2000
"""Productions read between two yields to the event loop."""


class MemoryRecords(MemorySubject):
    async def read_productions(self, log: int, first: int) -> AsyncIterator[StoredProduction]:
        while True:
            await self._called("read_productions")
            found = sorted(
                (row for row in self.tables.productions(log) if row.seq >= first),
                key=lambda row: row.seq,
            )[:PAGE_ROWS]
            for row in found:
                yield replace(row)
            if len(found) < PAGE_ROWS:
                return
            first = found[-1].seq + 1

    async def retire_logs(self, logs: list[int]) -> None:
        await self._called("retire_logs")
        for log in logs:
            found = self.tables.logs.get(log)
            if found is not None and found.source is None:
                del self.tables.logs[log]
            elif found is not None:
                found.retired = True

    async def look_up_seen(
        self, buckets: Sequence[int], computation: int, ids: Sequence[bytes]
    ) -> set[bytes]:
        await self._called("look_up_seen")
        known = set().union(*map(self._seen, buckets))
        names = {name_of(id_) for id_ in ids}
        return {id_ for _, of, id_ in known if of == computation and name_of(id_) in names}

    async def look_up_numbers(
        self, bucket: int, computation: int, numbers: Mapping[int, Sequence[int]]
    ) -> dict[int, set[int]]:
        await self._called("look_up_numbers")
        seen = self._bucket(bucket).numbers
        return {
            log: seen.get((computation, log), set()).intersection(of_log)
            for log, of_log in numbers.items()
        }

    async def newest_seen(self, bucket: int, computation: int) -> dict[int, int]:
        await self._called("newest_seen")
        numbers = self._bucket(bucket).numbers
        return {log: max(seen) for (of, log), seen in numbers.items() if of == computation}

    async def count_seen(self, bucket: int, computation: int, slots: tuple[int, int]) -> int:
        await self._called("count_seen")
        return sum(
            of == computation and slots[0] <= slot < slots[1] for slot, of, _ in self._seen(bucket)
        )

    async def scan_seen(
        self,
        bucket: int,
        computation: int,
        slots: tuple[int, int],
        after: tuple[bytes, int],
        limit: int,
    ) -> list[tuple[bytes, int]]:
        await self._called("scan_seen")
        return sorted(
            (id_, slot)
            for slot, of, id_ in self._seen(bucket)
            if of == computation and (id_, slot) > after and slots[0] <= slot < slots[1]
        )[:limit]

    def _seen(self, bucket: int) -> set[tuple[int, int, bytes]]:
        return self._bucket(bucket).seen

    def _bucket(self, bucket: int) -> BucketTables:
        if bucket not in self.tables.buckets:
            raise StoreError(f"there is no bucket {bucket}")
        return self.tables.buckets[bucket]
