from __future__ import annotations

from collections.abc import Mapping

from millwheel.core.model import SLOTS
from millwheel.store.port.states import OldState, StoredEntry
from millwheel.store.postgres import arrays
from millwheel.store.postgres.connections import Subject

SAMPLED_PLACES = 4
"""Places, evenly spaced slots, at which migrations are tried on stored states."""

SAMPLED_ROWS = 20_000
"""Rows from each place on: about 50 ms."""


class PostgresStates(Subject):
    async def load_keys(
        self, computation: int, keys: list[tuple[int, bytes]], limit: int
    ) -> list[list[tuple[str, bytes, int]]]:
        rows = await self.connections.rows(
            "load_keys",
            {
                "slot": arrays.integers([slot for slot, _ in keys]),
                "key": arrays.texts([key for _, key in keys]),
                "computation": computation,
                "limit": limit,
            },
        )
        found: list[list[tuple[str, bytes, int]]] = [[] for _ in keys]
        for position, entry, value, version in rows:
            found[position - 1].append((entry, value.encode(), version))
        return found

    async def scan_states(
        self, computation: int, slots: tuple[int, int], limit: int
    ) -> list[StoredEntry]:
        rows = await self.connections.rows(
            "scan_states",
            {
                "computation": computation,
                "slot_from": slots[0],
                "slot_to": slots[1],
                "limit": limit,
            },
        )
        return [
            StoredEntry(slot, key.encode(), entry, value.encode(), version)
            for slot, key, entry, value, version in rows
        ]

    async def load_entry(
        self, computation: int, slot: int, key: bytes, entry: str
    ) -> tuple[bytes, int] | None:
        rows = await self.connections.rows(
            "load_entry",
            {"computation": computation, "slot": slot, "key": key.decode(), "entry": entry},
        )
        return (rows[0][0].encode(), rows[0][1]) if rows else None

    async def scan_entries(
        self, computation: int, slot: int, key: bytes, after: str, before: str, limit: int
    ) -> list[tuple[str, bytes, int]]:
        rows = await self.connections.rows(
            "scan_entries",
            {
                "computation": computation,
                "slot": slot,
                "key": key.decode(),
                "after": after,
                "before": before,
                "limit": limit,
            },
        )
        return [(entry, value.encode(), version) for entry, value, version in rows]

    async def sample_states(self, versions: Mapping[str, int], most: int) -> list[OldState]:
        rows = await self.connections.rows(
            "sample_states",
            {
                "names": list(versions),
                "versions": list(versions.values()),
                "most": most,
                "slots": list(range(0, SLOTS, SLOTS // SAMPLED_PLACES)),
                "rows": SAMPLED_ROWS,
            },
        )
        return [
            OldState(name, key.encode(), entry, version, value.encode())
            for name, key, entry, version, value in rows
        ]

    async def fold(self, interval_id: int, sequencer: int, after: int, through: int) -> bool:
        params = {
            "interval_id": interval_id,
            "sequencer": sequencer,
            "after": after,
            "through": through,
        }
        statements = self.connections.statements
        async with self.connections.connection() as connection, connection.transaction():
            cursor = await connection.execute(statements.get("advance_fold"), params)
            if cursor.rowcount != 1:
                return False
            await connection.execute(statements.get("fold_states"), params)
            await connection.execute(statements.get("fold_timers"), params)
        return True

    async def oldest_snapshot_seconds(self) -> float:
        rows = await self.connections.rows("oldest_snapshot")
        return float(rows[0][0])
