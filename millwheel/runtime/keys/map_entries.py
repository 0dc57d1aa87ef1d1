"""Entries of one key's collections in memory: the durable ones plus changes that are not durable
yet.

Each entry keeps the encoded form last captured for a commit, as the state object does
(`millwheel.runtime.keys.key_state`). For whole collections and for ranges of names, `Entries` knows
whether all stored entries are in memory.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import AsyncIterator, Iterable, Iterator
from typing import Any, Protocol

from millwheel.core.codec import Codec
from millwheel.core.stored_form import Fidelity
from millwheel.errors import InvariantBroken, UserCodeError
from millwheel.state import ABSENT, UNKNOWN, Collection

ENTRIES_BYTES = 700
"""Additional bytes of memory for a key with collections, without entries."""

CELL_BYTES = 220
"""Bytes of memory per entry besides its encoded value."""

TRIM_CELLS = 4096
"""Number of one key's entries in memory above which folded entries are dropped."""

SCAN_ENTRIES = 1000
"""Entries fetched at a time for a whole collection."""

READ_AHEAD = 256
"""Entries fetched at a time for a range: reads by time usually continue where the last one
ended."""

MAX_SPANS = 64
"""Most ranges of one collection that are known to be in memory; the oldest are forgotten."""

AFTER = "\x01"
"""Suffix that makes the least name after a given one: names are JSON, which escapes control
characters."""

Change = tuple[str, bytes | None]
"""An entry's name and its encoded value; None: removed."""


class Cell:
    """One entry: its last captured form (`encoded`), and its value once user code has used it."""

    __slots__ = ("codec", "encoded", "n", "value")

    def __init__(self, encoded: bytes | None, n: int = 0) -> None:
        self.encoded = encoded
        self.value: Any = UNKNOWN
        self.codec: Codec[Any] | None = None
        self.n = n
        """The commit of the last change; -1: written without knowing the stored value, not captured
        yet."""


Encoding = tuple[str, Cell, bytes | None]
"""Name, cell and current encoded value of an entry that user code has used."""


class EntryOwner(Protocol):
    key: Any
    complete: bool
    """Whether all entries of the key are in memory."""

    @property
    def cache(self) -> Any: ...


class Entries:
    """The entries of one key, which its collections read and change."""

    __slots__ = ("_cache", "_key", "_order", "_settled", "_spans", "_touched", "_trimmed_at",
                 "_whole", "bound", "cells", "size")  # fmt: skip

    def __init__(self, key: EntryOwner) -> None:
        self._key = key
        self._cache = key.cache
        self.cells: dict[str, Cell] = {}
        self.size = 0
        """Approximate size in memory, in bytes."""
        self.bound: Any = None
        """The collections of the state object that are bound to these entries."""
        self._whole: tuple[str, ...] = ()
        """Prefixes of collections with all entries in memory; if the key is complete, all have."""
        self._spans: dict[str, list[tuple[str, str]]] = {}
        """Per collection, ranges [first, until) of names with all entries in memory."""
        self._order: dict[str, list[str]] = {}
        """Per collection that is read by range, the sorted names of its entries in memory. Removed
        entries are left out once captured: reading a queue would otherwise pass all its former
        ones."""
        self._touched: set[str] = set()
        self._settled: set[str] | None = None
        """Entries that records before the present one have touched, since the last capture."""
        self._trimmed_at = -1
        self._grow(ENTRIES_BYTES)

    # -- for collections -------------------------------------------------------

    def known(self, prefix: str) -> list[str] | None:
        if not self._knows(prefix):
            return None
        return [entry for entry in self.cells if entry.startswith(prefix)]

    def _knows(self, entry: str) -> bool:
        """Whether an entry missing from memory is certainly missing from the store."""
        if self._key.complete or entry.startswith(self._whole):
            return True
        return bool(self._spans) and any(
            first <= entry < until for spans in self._spans.values() for first, until in spans
        )

    def lookup(self, entry: str, codec: Codec[Any]) -> Any:
        cell = self.cells.get(entry)
        if cell is None:
            return ABSENT if self._knows(entry) else UNKNOWN
        return self.value(entry, cell, codec)

    def value(self, entry: str, cell: Cell, codec: Codec[Any]) -> Any:
        """The value of an entry, decoded on first use; `ABSENT` if it was removed."""
        if cell.value is UNKNOWN:
            cell.codec = codec
            if cell.encoded is None:
                cell.value = ABSENT
            else:
                cell.value = codec.read(cell.encoded)
                stored, cell.encoded = cell.encoded, codec.encode(cell.value)
                self._grow(len(cell.encoded) - len(stored))
        self._touched.add(entry)
        return cell.value

    async def fetch(self, entry: str, codec: Codec[Any]) -> Any:
        found = await self._cache.fetch_entry(self._key, entry)
        if entry not in self.cells:  # otherwise concurrent user code has added it
            self.add(entry, *(found or (None, self._cache.version)))
        value = self.value(entry, self.cells[entry], codec)
        prefix = entry[: entry.index("/") + 1]
        if entry != prefix and _is_last(entry, prefix, self.cells):
            # Windows and the like get ever greater names: the next one is known to be new then.
            await self._load_ahead(prefix, entry)
        return value

    def add(self, entry: str, encoded: bytes | None, version: int, n: int = 0) -> Cell:
        """Add an entry to those in memory, migrated to this code's version.

        Raises:
            MigrationFailed: a migration failed, which ends the worker.
        """
        if encoded is not None and version != self._cache.version:
            encoded = self._cache.current_entry(entry, encoded, version, self._key.key)
        cell = self.cells[entry] = Cell(encoded, n)
        self._grow(len(encoded or b"") + CELL_BYTES)
        if self._order:
            self._keep_order(entry, there=True)
        return cell

    def _keep_order(self, entry: str, *, there: bool) -> None:
        for prefix, names in self._order.items():
            if entry.startswith(prefix):
                place = bisect_left(names, entry)
                is_known = place < len(names) and names[place] == entry
                if there and not is_known:
                    names.insert(place, entry)
                elif is_known and not there:
                    del names[place]

    def store(self, entry: str, codec: Codec[Any], value: Any) -> None:
        cell = self.cells.get(entry)
        if cell is None:
            cell = self.add(entry, None, self._cache.version)
        elif cell.encoded is None and self._order:
            self._keep_order(entry, there=True)
        cell.codec = codec
        cell.value = value
        self._touched.add(entry)
        if cell.encoded is None and cell.n == 0 and not self._knows(entry):
            cell.n = -1  # written without knowing the stored value

    def erase(self, entry: str, codec: Codec[Any]) -> None:
        self.store(entry, codec, ABSENT)

    async def scan(self, prefix: str, codec: Codec[Any]) -> AsyncIterator[tuple[str, Any]]:
        if not self._knows(prefix):
            await self._load_all(prefix)
        for entry in sorted(entry for entry in self.cells if entry.startswith(prefix)):
            cell = self.cells.get(entry)
            if cell is not None:
                value = self.value(entry, cell, codec)
                if value is not ABSENT:
                    yield entry, value

    def span(
        self, prefix: str, first: str, until: str, codec: Codec[Any]
    ) -> AsyncIterator[tuple[str, Any]]:
        return EntrySpan(self, prefix, first, until, codec)

    async def names_from(self, prefix: str, first: str, until: str) -> tuple[list[str], str]:
        """A collection's names from `first` on, with the end of the range that they fill."""
        while (end := self._in_memory_until(prefix, first, until)) <= first:
            await self._load_ahead(prefix, first)
        names = self._names(prefix)
        return names[bisect_left(names, first) : bisect_left(names, end)], end

    def _in_memory_until(self, prefix: str, first: str, until: str) -> str:
        """The end of the range from `first` in which all entries are in memory."""
        if self._key.complete or prefix in self._whole:
            return until
        for start, end in self._spans.get(prefix, ()):
            if start <= first < end:
                return min(end, until)
        return first

    def _names(self, prefix: str) -> list[str]:
        names = self._order.get(prefix)
        if names is None:
            names = self._order[prefix] = sorted(
                entry
                for entry, cell in self.cells.items()
                if entry.startswith(prefix)
                and not (cell.encoded is None and (cell.value is UNKNOWN or cell.value is ABSENT))
            )
        return names

    async def _load_ahead(self, prefix: str, first: str) -> None:
        """Fetch entries from `first` on, up to the next range that is in memory.

        This reads past the requested range: the next one mostly begins inside it and ends a little
        later, and should not need the store again.
        """
        spans = self._spans.get(prefix, [])
        until = min((start for start, _ in spans if start > first), default=_end_of(prefix))
        page = await self._cache.scan_entries(self._key, first, until, READ_AHEAD)
        for entry, encoded, version in page:
            if entry not in self.cells:
                self.add(entry, encoded, version)
        if len(page) == READ_AHEAD:
            until = page[-1][0] + AFTER
        apart = [span for span in spans if span[1] < first or span[0] > until]
        joined = [span for span in spans if span not in apart]
        begin = min([first, *(span[0] for span in joined)])
        end = max([until, *(span[1] for span in joined)])
        self._spans[prefix] = [*apart, (begin, end)][-MAX_SPANS:]

    async def _load_all(self, prefix: str) -> None:
        after, before = prefix, _end_of(prefix)
        while True:
            page = await self._cache.scan_entries(self._key, after, before, SCAN_ENTRIES)
            for entry, encoded, version in page:
                if entry not in self.cells:
                    self.add(entry, encoded, version)
            if not page:
                break
            after = page[-1][0]
        self._whole += (prefix,)

    # -- for the key's state -----------------------------------------------

    def replace(self, state: Any) -> None:
        fresh: list[tuple[Collection, str, Codec[Any], Any]] = []
        gone: list[str] = []
        for name, (kind, key_type, codec) in self._cache.layout.collections.items():
            prefix = name + "/"
            collection = getattr(state, name)
            if not isinstance(collection, kind):
                raise UserCodeError(
                    f"{name} of the new state is not a {kind.__name__} but a "
                    f"{type(collection).__name__}"
                )
            if collection.is_part_of(self, prefix):
                continue
            if not collection.is_loose():
                raise UserCodeError(
                    f"{name} of the new state belongs to another state already; copy its entries "
                    f"into a new {kind.__name__}()"
                )
            entries = collection.entries_of(self, prefix)
            if entries is None:
                raise UserCodeError(
                    f"key {self._key.key!r} has more entries of {name} in the store than in "
                    f"memory, so a new state cannot replace them; await ctx.state.{name}.clear() "
                    "first"
                )
            fresh.append((collection, prefix, codec, key_type))
            gone += entries
        for entry in gone:
            self.erase(entry, fresh[0][2])
        for collection, prefix, codec, key_type in fresh:
            collection.take_over(self, prefix, codec, key_type)
        self.bound = self._cache.layout.bound(state)

    def encoded(self) -> list[Encoding]:
        """Entries that user code has used since the last capture, with their current values."""
        encodings: list[Encoding] = []
        self._touched |= self._settled or set()
        for entry in self._touched:
            cell = self.cells[entry]
            if cell.value is UNKNOWN:
                continue
            if cell.codec is None:
                raise InvariantBroken(f"entry {entry!r} of key {self._key.key!r} has no codec")
            encoded = None if cell.value is ABSENT else cell.codec.encode(cell.value)
            if encoded is not None and not (
                encoded == cell.encoded and cell.codec.is_kept(encoded)
            ):
                before = cell.value
                encoded, cell.value = cell.codec.settle(encoded, before)
                if self._cache.compares:
                    self._cache.compare(before, cell.value, cell.codec)
            encodings.append((entry, cell, encoded))
        return encodings

    def settle(self) -> None:
        """Between two records of the key: show the second one the values that a restart would
        read."""
        for entry in self._touched:
            cell = self.cells[entry]
            codec, value = cell.codec, cell.value
            if (
                codec is None
                or codec.fidelity == Fidelity.FULL
                or value is UNKNOWN
                or value is ABSENT
            ):
                continue
            encoded = codec.encode(value)
            if not codec.is_kept(encoded):
                cell.value = codec.settle(encoded, value)[1]
                if self._cache.compares:
                    self._cache.compare(value, cell.value, codec)
        if self._settled is None:
            self._settled = set()
        self._settled |= self._touched
        self._touched.clear()

    def capture(self, touched: list[Encoding], n: int) -> list[Change]:
        """Capture the changes since the last capture, for commit `n`."""
        changes: list[Change] = []
        for entry, cell, value in touched:
            if value != cell.encoded or cell.n == -1:
                self._grow(len(value or b"") - len(cell.encoded or b""))
                cell.encoded = value
                cell.n = n
                changes.append((entry, value))
                if value is None and self._order:
                    self._keep_order(entry, there=False)
        self._touched.clear()
        self._settled = None
        if len(self.cells) > TRIM_CELLS and self._cache.folded != self._trimmed_at:
            self._trim()
        return changes

    def revert(self) -> None:
        """Drop all changes since the last capture."""
        for entry in self._touched | (self._settled or set()):
            cell = self.cells[entry]
            cell.value = UNKNOWN
            if cell.n == -1:
                del self.cells[entry]
                self._grow(-len(cell.encoded or b"") - CELL_BYTES)
                self._forget_whole()  # the stored value of this name was never fetched
        self._touched.clear()
        self._settled = None

    def _trim(self) -> None:
        folded = self._trimmed_at = self._cache.folded
        dropped = [entry for entry, cell in self.cells.items() if cell.n <= folded]
        ends = {}
        for prefix in (f"{name}/" for name in self._cache.layout.collections):
            is_whole = self._key.complete or prefix in self._whole
            known = prefix if is_whole else _reaching_the_end(prefix, self._spans.get(prefix, ()))
            ends[prefix] = _without(dropped, prefix, known)
        for entry in dropped:
            cell = self.cells.pop(entry)
            self._grow(-len(cell.encoded or b"") - CELL_BYTES)
        self._key.complete = False
        self._forget_whole()
        for prefix, first in ends.items():
            if first is not None:
                self._spans[prefix] = [(first, _end_of(prefix))]

    def _forget_whole(self) -> None:
        """Drop all knowledge about entries not in memory, except the key's `complete`."""
        self._whole = ()
        self._spans.clear()
        self._order.clear()

    def _grow(self, by: int) -> None:
        self.size += by
        self._cache.size += by


class EntrySpan(AsyncIterator[tuple[str, Any]]):
    """The entries of a collection in a range of names, loaded on demand."""

    __slots__ = ("_codec", "_entries", "_names", "_prefix", "_reached", "_until")

    def __init__(
        self, entries: Entries, prefix: str, first: str, until: str, codec: Codec[Any]
    ) -> None:
        self._entries = entries
        self._prefix = prefix
        self._reached = first
        """The entries before this name have been found."""
        self._until = until
        self._codec = codec
        self._names: Iterator[str] = iter(())
        """Names before `_reached` that have not been returned."""

    async def __anext__(self) -> tuple[str, Any]:
        entries, codec = self._entries, self._codec
        while True:
            for entry in self._names:
                cell = entries.cells.get(entry)
                if cell is not None:
                    value = entries.value(entry, cell, codec)
                    if value is not ABSENT:
                        return entry, value
            if self._reached >= self._until:
                raise StopAsyncIteration
            names, self._reached = await entries.names_from(
                self._prefix, self._reached, self._until
            )
            self._names = iter(names)


def _is_last(entry: str, prefix: str, cells: Iterable[str]) -> bool:
    """Whether memory has no later entry of a collection."""
    return not any(name > entry and name.startswith(prefix) for name in cells)


def _reaching_the_end(prefix: str, spans: Iterable[tuple[str, str]]) -> str | None:
    """The start of the range that reaches the end of a collection; None: there is none."""
    end = _end_of(prefix)
    return min((start for start, until in spans if until == end), default=None)


def _without(dropped: Iterable[str], prefix: str, known: str | None) -> str | None:
    """The name from which on memory has all entries of a collection, once some are dropped.

    Args:
        known: that name before.
    """
    last = max((entry for entry in dropped if entry.startswith(prefix)), default=None)
    return known if known is None or last is None else max(known, last + AFTER)


def _end_of(prefix: str) -> str:
    return prefix[:-1] + chr(ord(prefix[-1]) + 1)
