from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from itertools import count
from typing import Any
from uuid import UUID

from millwheel.core.model import name_of
from millwheel.store.port.records import StoredProduction
from millwheel.store.port.seen import clusters
from millwheel.store.postgres.buckets import bucket_table
from millwheel.store.postgres.connections import Subject

PAGE_ROWS = 100
"""Rows of productions read by one statement."""


class PostgresRecords(Subject):
    async def read_productions(self, log: int, first: int) -> AsyncIterator[StoredProduction]:
        while True:
            rows = await self.connections.rows(
                "read_productions",
                {"log": log, "first": first, "limit": PAGE_ROWS},
                binary=True,
            )
            for row in rows:
                for production in _apart(row):
                    if production.seq >= first:
                        yield production
                        first = production.seq + 1
            if len(rows) < PAGE_ROWS:
                return

    async def retire_logs(self, logs: list[int]) -> None:
        await self.connections.run("retire_logs", {"logs": logs})

    async def look_up_seen(
        self, buckets: Sequence[int], computation: int, ids: Sequence[bytes]
    ) -> set[bytes]:
        statements = self.connections.statements
        statement = statements.union(
            "look_up_seen", [bucket_table("seen_record", bucket) for bucket in buckets]
        )
        parameters = {
            "low": [UUID(bytes=name_of(id_).ljust(16, b"\0")) for id_ in ids],
            "high": [UUID(bytes=name_of(id_).ljust(16, b"\xff")) for id_ in ids],
            "computation": computation,
        }
        async with self.connections.connection() as connection:
            cursor = await connection.execute(statement, parameters, prepare=True)
            return {id_.bytes for (id_,) in await cursor.fetchall()}

    async def look_up_numbers(
        self, bucket: int, computation: int, numbers: Mapping[int, Sequence[int]]
    ) -> dict[int, set[int]]:
        logs, lows, highs = zip(*clusters(numbers), strict=True)
        rows = await self.connections.rows(
            "look_up_numbers",
            {
                "log": list(logs),
                "low": list(lows),
                "high": list(highs),
                "computation": computation,
            },
            table=bucket_table("seen_run", bucket),
        )
        found: dict[int, set[int]] = {}
        asked = {log: sorted(of_log) for log, of_log in numbers.items()}
        for log, first, last, present in rows:
            of_log = asked[log]
            within = of_log[bisect_left(of_log, first) : bisect_right(of_log, last)]
            if present is not None:
                within = [number for number in within if present[number - first] == "1"]
            found.setdefault(log, set()).update(within)
        return found

    async def newest_seen(self, bucket: int, computation: int) -> dict[int, int]:
        rows = await self.connections.rows(
            "newest_seen",
            {"computation": computation},
            table=bucket_table("seen_run", bucket),
        )
        return dict(rows)

    async def count_seen(self, bucket: int, computation: int, slots: tuple[int, int]) -> int:
        ((found,),) = await self.connections.rows(
            "count_seen",
            {"computation": computation, "slot_from": slots[0], "slot_to": slots[1]},
            table=bucket_table("seen_record", bucket),
        )
        return int(found)

    async def scan_seen(
        self,
        bucket: int,
        computation: int,
        slots: tuple[int, int],
        after: tuple[bytes, int],
        limit: int,
    ) -> list[tuple[bytes, int]]:
        return await self.connections.rows(
            "scan_seen",
            {
                "computation": computation,
                "slot_from": slots[0],
                "slot_to": slots[1],
                "id": UUID(bytes=after[0]),
                "slot": after[1],
                "limit": limit,
            },
            binary=True,
            table=bucket_table("seen_record", bucket),
        )


def _apart(row: tuple[Any, ...]) -> Iterator[StoredProduction]:
    number, stream, receiver, slots, keys, values, version, ts, holds, stamp = row[:10]
    place, id_, origin = row[10:]
    for seq, slot, key, value, micros, hold in zip(
        count(number), slots, keys, values, ts, holds, strict=False
    ):
        yield StoredProduction(
            seq, stream, receiver, slot, key.encode(), value.encode(), version, micros, hold,
            stamp, place, id_.bytes if id_ else b"", origin,
        )  # fmt: skip
