"""The tables that broadcast records make: one for each cell of an interval.

A cell's table is the state of the cell's key (`millwheel.addresses`), and is stored, folded and
handed over like any other. Broadcast records change it one after the other. All others see its
`snapshot`: an object of their own, decoded from what was captured last. So nobody sees half of a
change, a change that failed, or one whose commit could come after his own; and what user code
does to a snapshot cannot get into the store.

An interval has all its tables in memory as long as it is held: they are small, few, and wanted by
every record.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from millwheel.addresses import cell_address
from millwheel.errors import InvariantBroken, UserCodeError
from millwheel.runtime.interval.key_state import KeyState, StateCache
from millwheel.state import UNKNOWN


class BroadcastTable(KeyState):
    """The table of one cell."""

    __slots__ = ("_decoded_from", "_guarded", "_snapshot", "_spelled")

    def __init__(
        self, cache: StateCache, key: Any, key_text: bytes, slot: int, *, guarded: bool
    ) -> None:
        super().__init__(cache, key, key_text, slot)
        self._guarded = guarded
        self._snapshot: Any = UNKNOWN
        self._decoded_from: bytes | None = None
        self._spelled = b""
        """What a snapshot that nobody has changed is as JSON, if anybody is to know."""

    def snapshot(self) -> Any:
        """The table as it was captured last, to be read by records of the cell's keys."""
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
        """See to it that a record could read the table, and, if this is a test, that it has left the
        snapshot as it was.

        Raises:
            UserCodeError: it did not.
            MigrationFailed: it went on without a table that could not be read.
        """
        if self.cache.failed is not None:
            raise self.cache.failed
        if not self._guarded or self._snapshot is UNKNOWN:
            return
        layout, snapshot = self.cache.layout, self._snapshot
        self._snapshot = UNKNOWN  # whatever comes now: nobody else sees a changed one
        if layout.encode(snapshot) != self._spelled:
            raise UserCodeError(
                f"{layout.owner}: ctx.shared was changed by a record or timer, which may only read "
                "it: the change would not be stored. Change it in process_broadcast, or copy it"
            )
        self._snapshot = snapshot


class BroadcastTables:
    """The tables of an interval's cells.

    Args:
        grain: slots of a cell.
        guarded: note it when a record changes a table, at the price of encoding it each time.

    Raises:
        InvariantBroken: the interval does not begin and end at cells.
    """

    def __init__(
        self, cache: StateCache, slots: tuple[int, int], grain: int, *, guarded: bool
    ) -> None:
        if slots[0] % grain or slots[1] % grain:
            raise InvariantBroken(
                f"an interval of the slots {slots} was cut apart from cells of {grain} slots"
            )
        self._grain = grain
        self._tables = {
            cell: BroadcastTable(cache, *cell_address(cell, grain), guarded=guarded)
            for cell in range(slots[0] // grain, slots[1] // grain)
        }

    def of(self, slot: int) -> BroadcastTable:
        """The table that the keys of a slot share."""
        return self._tables[slot // self._grain]

    def __iter__(self) -> Iterator[BroadcastTable]:
        return iter(self._tables.values())
