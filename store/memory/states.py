from __future__ import annotations

from collections.abc import Mapping

from millwheel.core.clock import Clock
from millwheel.store.memory import views
from millwheel.store.memory.jsonb import jsonb_text
from millwheel.store.memory.subject import MemorySubject
from millwheel.store.memory.tables import StateKey
from millwheel.store.port.states import OldState, StoredEntry


class MemoryStates(MemorySubject):
    def __init__(self, name: str, clock: Clock) -> None:
        super().__init__(name, clock)
        self.snapshot_seconds = 0.0
        """Age of the oldest snapshot of another session; a test sets it."""

    async def load_keys(
        self, computation: int, keys: list[tuple[int, bytes]], limit: int
    ) -> list[list[tuple[str, bytes, int]]]:
        await self._called("load_keys")
        return [
            self._entries((slot, computation, key), "", "", limit, also_first=True)
            for slot, key in keys
        ]

    async def scan_states(
        self, computation: int, slots: tuple[int, int], limit: int
    ) -> list[StoredEntry]:
        await self._called("scan_states")
        keys = [
            (slot, of, key)
            for slot, of, key in self.tables.state
            if of == computation and slots[0] <= slot < slots[1]
        ]
        found = [
            StoredEntry(key[0], key[2], *entry)
            for key in sorted(keys)
            for entry in self._entries(key, "", "", limit, also_first=True)
        ]
        return found[:limit]

    async def load_entry(
        self, computation: int, slot: int, key: bytes, entry: str
    ) -> tuple[bytes, int] | None:
        await self._called("load_entry")
        found = self.tables.state.get((slot, computation, key), {}).get(entry)
        return None if found is None else (jsonb_text(found[0]), found[1])

    async def scan_entries(
        self, computation: int, slot: int, key: bytes, after: str, before: str, limit: int
    ) -> list[tuple[str, bytes, int]]:
        await self._called("scan_entries")
        return self._entries((slot, computation, key), after, before, limit)

    def _entries(
        self, key: StateKey, after: str, before: str, limit: int, *, also_first: bool = False
    ) -> list[tuple[str, bytes, int]]:
        """Folded entries of a key within (after, before), in order; `also_first`: all of them."""
        found = self.tables.state.get(key, {})
        names = sorted(name for name in found if also_first or after < name < before)
        return [(name, jsonb_text(found[name][0]), found[name][1]) for name in names[:limit]]

    async def sample_states(self, versions: Mapping[str, int], most: int) -> list[OldState]:
        await self._called("sample_states")
        return views.old_states(self.tables, versions, most)

    async def fold(self, interval_id: int, sequencer: int, after: int, through: int) -> bool:
        await self._called("fold")
        tables = self.tables
        if not tables.is_current(interval_id, sequencer):
            return False
        interval = tables.intervals[interval_id]
        if not after <= interval.folded <= through:
            return False
        states, timers = tables.tail(interval_id, after, through)
        for (key, entry), change in states.items():
            if change.value is not None:
                tables.state.setdefault(key, {})[entry] = (change.value, change.version)
            elif (entries := tables.state.get(key)) is not None:
                entries.pop(entry, None)
                if not entries:
                    del tables.state[key]
        for name, timer in timers.items():
            if timer.due is None:
                tables.timers.pop(name, None)
            else:
                assert timer.hold is not None
                tables.timers[name] = (timer.due, timer.hold)
        interval.folded = through
        return True

    async def oldest_snapshot_seconds(self) -> float:
        await self._called("oldest_snapshot_seconds")
        return self.snapshot_seconds
