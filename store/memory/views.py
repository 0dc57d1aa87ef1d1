"""Committed data, as the views of the same names show it (`millwheel.store.console.views`)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from millwheel.core.clock import Clock
from millwheel.store.memory.jsonb import jsonb_text
from millwheel.store.memory.sink_tables import TableSinks
from millwheel.store.memory.subject import MemorySubject
from millwheel.store.memory.tables import ShownEvent, StateKey, Tables
from millwheel.store.port.requests import DeadLetter
from millwheel.store.port.states import OldState


class ShownState(NamedTuple):
    computation: str
    slot: int
    key: Any
    entry: str
    value: Any
    version: int


class ShownTimer(NamedTuple):
    """Microseconds."""

    computation: str
    slot: int
    key: Any
    kind: str
    tag: str
    due: int
    hold: int


def states(tables: Tables) -> list[ShownState]:
    """Every entry of state: current tables and unfolded tail together, decoded."""
    names = tables.names()
    return [
        ShownState(names[computation], slot, json.loads(key), entry, json.loads(value), version)
        for ((slot, computation, key), entry), (value, version) in sorted(_merged(tables).items())
    ]


def old_states(tables: Tables, versions: Mapping[str, int], most: int) -> list[OldState]:
    """States and entries of other versions than these, at most `most` of each."""
    names = tables.names()
    found: dict[tuple[str, int, str], list[OldState]] = {}
    for ((_, computation, key), entry), (value, version) in sorted(_merged(tables).items()):
        name = names[computation]
        if version != versions.get(name, version):
            same = found.setdefault((name, version, entry.partition("/")[0]), [])
            if len(same) < most:
                same.append(OldState(name, key, entry, version, jsonb_text(value)))
    return [old for _, same in sorted(found.items()) for old in same]


def _merged(tables: Tables) -> dict[tuple[StateKey, str], tuple[bytes, int]]:
    merged = {
        (key, entry): found
        for key, entries in tables.state.items()
        for entry, found in entries.items()
    }
    for interval in tables.intervals.values():
        for name, change in tables.tail(interval.id, interval.folded)[0].items():
            merged.pop(name, None)
            if change.value is not None:
                merged[name] = (change.value, change.version)
    return merged


def timers(tables: Tables) -> list[ShownTimer]:
    merged = dict(tables.timers)
    for interval in tables.intervals.values():
        for name, change in tables.tail(interval.id, interval.folded)[1].items():
            merged.pop(name, None)
            if change.due is not None and change.hold is not None:
                merged[name] = (change.due, change.hold)
    names = tables.names()
    return [
        ShownTimer(names[computation], slot, json.loads(key), kind, tag, due, hold)
        for (slot, computation, key, kind, tag), (due, hold) in sorted(merged.items())
    ]


def pending_productions(tables: Tables) -> list[tuple[int, int]]:
    """(log, seq) of every record sent and not acknowledged."""
    pending = []
    for id_, log in sorted(tables.logs.items()):
        if log.retired or log.source is not None:
            continue
        last, _ = tables.last_commit(log.interval_id)
        first, runs = msgspec.json.decode(last.link.acked).get(str(id_), (0, []))
        pending += [
            (id_, row.seq)
            for row in sorted(tables.productions(id_), key=lambda row: row.seq)
            if row.seq >= first and not any(a <= row.seq <= b for a, b in runs)
        ]
    return pending


class MemoryViews(MemorySubject):
    def __init__(self, name: str, clock: Clock) -> None:
        super().__init__(name, clock)
        self._sinks = TableSinks()

    def states(self) -> list[ShownState]:
        return states(self.tables)

    def timers(self) -> list[ShownTimer]:
        return timers(self.tables)

    def pending_productions(self) -> list[tuple[int, int]]:
        return pending_productions(self.tables)

    def placement_events(self) -> list[ShownEvent]:
        """Oldest first."""
        return list(self.tables.events)

    def state(self, computation: str, key: bytes) -> dict[str, Any]:
        """Entry -> decoded value."""
        wanted = json.loads(key)
        return {
            row.entry: row.value
            for row in self.states()
            if row.computation == computation and row.key == wanted
        }

    def rows(self, table: str) -> list[tuple[Any, ...]]:
        """Rows by key, or in the order of writing if the table has no key.

        `KeyError` if no pipeline was deployed with such a table.
        """
        return self._sinks.rows(table)

    @property
    def dead_letters(self) -> list[DeadLetter]:
        return self.tables.dead_letters

    @property
    def statements(self) -> list[tuple[str, Sequence[Any]]]:
        """Statements of `ctx.execute`, in the order of commits; the store runs none of them."""
        return self.tables.statements
