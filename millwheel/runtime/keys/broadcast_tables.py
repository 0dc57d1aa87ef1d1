"""The tables that broadcast records build: one for each cell of an interval.

A cell's table is the state of the cell's key (`millwheel.core.addresses`), stored, folded and
handed over like any other state. Broadcast records change it one at a time. All other records read
a `snapshot`: a separate object, decoded from the last captured form. So no record sees half of a
change, a change that failed, or a change with a commit that could come after its own. Changes that
user code makes to a snapshot never reach the store.

All tables of an interval stay in memory while it is held: they are small and few, and every record
needs one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from millwheel.core.addresses import cell_address
from millwheel.errors import InvariantBroken, UserCodeError
from millwheel.runtime.keys.key_state import KeyState, StateCache
from millwheel.state import UNKNOWN


class BroadcastTable(KeyState):
    __slots__ = ("_decoded_from", "_guarded", "_snapshot", "_spelled")

    def __init__(
        self, cache: StateCache, key: Any, key_text: bytes, slot: int, *, guarded: bool
    ) -> None:
        super().__init__(cache, key, key_text, slot)
        self._guarded = guarded
        self._snapshot: Any = UNKNOWN
        self._decoded_from: bytes | None = None
        self._spelled = b""
        """JSON of the unchanged snapshot; kept only if `guarded`."""

    def snapshot(self) -> Any:
        """The last captured form of the table, for records of the cell's keys to read."""
        stored, version = self.captured
        if self._snapshot is UNKNOWN or self._decoded_from is not stored:
            layout = self.cache.layout
            current = stored
            if stored is not None and version != self.cache.version:
                current = self.cache.current(stored, version, self.key)
            self._snapshot = layout.decode(current)
            self._decoded_from = stored
            if self._guarded:
                self._spelled = layout.encode(self._snapshot)
        return self._snapshot

    def check_unchanged(self) -> None:
        """Check that a record could read the table and, if `guarded`, has not changed the snapshot.

        Raises:
            UserCodeError: the record or timer changed the snapshot.
            MigrationFailed: the table could not be read, and the record continued without it.
        """
        if self.cache.failed is not None:
            raise self.cache.failed
        if not self._guarded or self._snapshot is UNKNOWN:
            return
        layout, snapshot = self.cache.layout, self._snapshot
        self._snapshot = UNKNOWN  # even after an error, no other record sees a changed snapshot
        if layout.encode(snapshot) != self._spelled:
            raise UserCodeError(
                f"{layout.owner}: ctx.shared was changed by a record or timer, but is read-only "
                "there: the change would not be stored. Change it in process_broadcast, or "
                "copy it"
            )
        self._snapshot = snapshot


class BroadcastTables:
    """The tables of an interval's cells.

    Args:
        grain: number of slots in a cell.
        guarded: detect records that change a table (tests); each check encodes the table.

    Raises:
        InvariantBroken: the interval does not begin and end at cell boundaries.
    """

    def __init__(
        self, cache: StateCache, slots: tuple[int, int], grain: int, *, guarded: bool
    ) -> None:
        if slots[0] % grain or slots[1] % grain:
            raise InvariantBroken(
                f"the slots {slots} of an interval do not begin and end at cells of {grain} slots"
            )
        self._grain = grain
        self._tables = {
            cell: BroadcastTable(cache, *cell_address(cell, grain), guarded=guarded)
            for cell in range(slots[0] // grain, slots[1] // grain)
        }

    def of(self, slot: int) -> BroadcastTable:
        return self._tables[slot // self._grain]

    def __iter__(self) -> Iterator[BroadcastTable]:
        return iter(self._tables.values())
