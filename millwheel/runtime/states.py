"""State in memory: what is durable plus what the running bundles have changed.

A `KeyState` holds the entries of one key. Each entry remembers its encoded form as last
captured for a commit; an object that user code may have changed is encoded again when the
key's records have run, and differs or not. So going back after an exception costs nothing
beforehand: the objects are dropped and decoded again.

Entries not folded yet are never evicted: the tail of the store is in memory of its owner,
and whatever is not in memory stands in the current table (design, the store).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from millwheel.codec import Codec, apply_migrations
from millwheel.errors import InvariantBroken, UserCodeError
from millwheel.model import Key
from millwheel.state import ABSENT, UNKNOWN, Collection, StateLayout

ENTRY_OVERHEAD = 200
"""Bytes an entry costs in memory besides its encoded value."""

TRIM_CELLS = 4096
"""Entries of one key from which clean ones are dropped one by one."""

SCAN_ENTRIES = 1000
"""Entries fetched at a time for a whole collection."""

READ_AHEAD = 256
"""Entries fetched at a time for a range: what is read by time goes on where it ended."""

MAX_SPANS = 64
"""Stretches of one collection that are known to be in memory; the oldest are forgotten."""

AFTER = "\x01"
"""Sorts a name behind itself: names are JSON, which writes control characters as escapes."""

Change = tuple[str, bytes | None]
"""Entry and encoded value; None: removed."""

EntryFetcher = Callable[["KeyState", str], Awaitable["tuple[bytes, int] | None"]]
EntryScanner = Callable[["KeyState", str, str, int], Awaitable["list[tuple[str, bytes, int]]"]]
"""Key, after, before (both exclusive), how many at the most."""


class Cell:
    """One entry: as last captured (`encoded`), and as an object, if somebody looked."""

    __slots__ = ("codec", "encoded", "n", "value")

    def __init__(self, encoded: bytes | None, n: int = 0) -> None:
        self.encoded = encoded
        self.value: Any = UNKNOWN
        self.codec: Codec[Any] | None = None
        self.n = n
        """The commit that carries the last change."""


class KeyState:
    """The entries of one key; what `Context.state` and its collections work on."""

    __slots__ = ("_bound", "_cache", "_main", "_opened", "_order", "_spans", "_state", "_touched", "_trimmed_at", "_version",
                 "_whole", "cells", "complete", "key", "key_text", "loaded", "n", "size", "slot", "used")  # fmt: skip

    def __init__(self, cache: StateCache, key: Key, key_text: bytes, slot: int) -> None:
        self._cache = cache
        self.key = key
        self.key_text = key_text
        self.slot = slot
        self.cells: dict[str, Cell] = {}
        self.loaded = False
        self.complete = False
        self.used = False
        self._trimmed_at = -1
        self.n = 0
        self.size = ENTRY_OVERHEAD
        self._main = Cell(None)
        self._version = cache.version
        """The version of the code that wrote `_main` as it is encoded now."""
        self._whole: tuple[str, ...] = ()
        """Collections of which every entry is in memory; of all if `complete`."""
        self._spans: dict[str, list[tuple[str, str]]] = {}
        """Per collection, stretches [first, until) of which every entry is in memory."""
        self._order: dict[str, list[str]] = {}
        """Per collection that is read by range, the names of its entries in memory, sorted. What
        was removed and captured is left out: else a queue would be read past all it ever held."""
        self._state: Any = UNKNOWN
        self._bound: Any = None
        """The collections of the state object that are bound to this key."""
        self._opened = False
        self._touched: set[str] = set()

    # -- what user code sees ------------------------------------------------------

    def open_state(self) -> Any:
        """The state object, decoded when first asked for."""
        if not self._opened:
            layout = self._cache.layout
            main = self._main
            stored = main.encoded
            if stored is not None and self._version != self._cache.version:
                # Only now, within user code: a migration that fails is the record's fault.
                stored = self._cache.current(stored, self._version)
            self._state = layout.decode(stored, self)
            if layout.collections:
                self._bound = layout.bound(self._state)
            if stored is not None:
                # As this code writes it: Postgres gives jsonb back in a form of its own,
                # and reading alone must not look like a change.
                encoded: bytes | None = layout.encode(self._state)
                if encoded == layout.empty:
                    encoded = None
                self._grow(len(encoded or b"") - len(main.encoded or b""))
                main.encoded = encoded
                self._version = self._cache.version
            self._opened = True
        return self._state

    def replace_state(self, state: Any) -> None:
        """Make `state` the state object: all of it, its collections too."""
        layout = self._cache.layout
        layout.check(state)
        self.open_state()  # what is stored must be known as this code writes it
        if layout.collections:
            self._replace_collections(state)
        self._state = state

    def _replace_collections(self, state: Any) -> None:
        """Let the collections of `state` take the place of the stored ones."""
        fresh: list[tuple[Collection, str, Codec[Any], Any]] = []
        gone: list[str] = []
        for name, (kind, key_type, codec) in self._cache.layout.collections.items():
            prefix = name + "/"
            collection = getattr(state, name)
            if not isinstance(collection, kind):
                raise UserCodeError(f"{name} of the new state is no {kind.__name__}")
            if collection.is_part_of(self, prefix):
                continue
            if not collection.is_loose():
                raise UserCodeError(
                    f"{name} of the new state belongs to another state already; put its entries "
                    f"into a new {kind.__name__}()"
                )
            entries = collection.entries_of(self, prefix)
            if entries is None:
                raise UserCodeError(
                    f"key {self.key!r} has more of {name} than is in memory, so that a new state "
                    f"cannot take its place at once; await ctx.state.{name}.clear() before"
                )
            fresh.append((collection, prefix, codec, key_type))
            gone += entries
        for entry in gone:
            self.erase(entry, fresh[0][2])
        for collection, prefix, codec, key_type in fresh:
            collection.take_over(self, prefix, codec, key_type)
        self._bound = self._cache.layout.bound(state)

    def known(self, prefix: str) -> list[str] | None:
        if not self._knows(prefix):
            return None
        return [entry for entry in self.cells if entry.startswith(prefix)]

    def _knows(self, entry: str) -> bool:
        """Whether an entry that is not in memory is not stored either."""
        if self.complete or entry.startswith(self._whole):
            return True
        return bool(self._spans) and any(
            first <= entry < until for spans in self._spans.values() for first, until in spans
        )

    def lookup(self, entry: str, codec: Codec[Any]) -> Any:
        cell = self.cells.get(entry)
        if cell is None:
            return ABSENT if self._knows(entry) else UNKNOWN
        return self._value(entry, cell, codec)

    def _value(self, entry: str, cell: Cell, codec: Codec[Any]) -> Any:
        if cell.value is UNKNOWN:
            cell.codec = codec
            if cell.encoded is None:
                cell.value = ABSENT
            else:
                cell.value = codec.decode(cell.encoded)
                stored, cell.encoded = cell.encoded, codec.encode(cell.value)
                self._grow(len(cell.encoded) - len(stored))
        self._touched.add(entry)
        return cell.value

    async def fetch(self, entry: str, codec: Codec[Any]) -> Any:
        found = await self._cache.fetch_entry(self, entry)
        if entry not in self.cells:  # else user code that does several things at once was faster
            self._add(entry, None if found is None else found[0])
        return self._value(entry, self.cells[entry], codec)

    def _add(self, entry: str, encoded: bytes | None, n: int = 0) -> Cell:
        """One more entry in memory.

        It is as it was stored: migrations are for the state object alone.
        """
        cell = self.cells[entry] = Cell(encoded, n)
        self._grow(len(encoded or b"") + ENTRY_OVERHEAD)
        if self._order:
            self._put_in_order(entry)
        return cell

    def _put_in_order(self, entry: str) -> None:
        for prefix, names in self._order.items():
            if entry.startswith(prefix):
                place = bisect_left(names, entry)
                if place == len(names) or names[place] != entry:
                    names.insert(place, entry)

    def _take_out_of_order(self, entry: str) -> None:
        for prefix, names in self._order.items():
            if entry.startswith(prefix):
                place = bisect_left(names, entry)
                if place < len(names) and names[place] == entry:
                    del names[place]

    def store(self, entry: str, codec: Codec[Any], value: Any) -> None:
        cell = self.cells.get(entry)
        if cell is None:
            cell = self._add(entry, None)
        elif cell.encoded is None and self._order:
            self._put_in_order(entry)
        cell.codec = codec
        cell.value = value
        self._touched.add(entry)
        if cell.encoded is None and cell.n == 0 and not self._knows(entry):
            cell.n = -1  # written blindly: what the store holds is unknown

    def erase(self, entry: str, codec: Codec[Any]) -> None:
        self.store(entry, codec, ABSENT)

    async def scan(self, prefix: str, codec: Codec[Any]) -> AsyncIterator[tuple[str, Any]]:
        if not self._knows(prefix):
            await self._load_all(prefix)
        for entry in sorted(entry for entry in self.cells if entry.startswith(prefix)):
            cell = self.cells.get(entry)
            if cell is not None:
                value = self._value(entry, cell, codec)
                if value is not ABSENT:
                    yield entry, value

    async def span(
        self, prefix: str, first: str, until: str, codec: Codec[Any]
    ) -> AsyncIterator[tuple[str, Any]]:
        reached = first
        while reached < until:
            end = self._in_memory_until(prefix, reached, until)
            if end <= reached:
                await self._load_ahead(prefix, reached)
                continue
            names = self._names(prefix)
            for entry in names[bisect_left(names, reached) : bisect_left(names, end)]:
                cell = self.cells.get(entry)
                if cell is not None:
                    value = self._value(entry, cell, codec)
                    if value is not ABSENT:
                        yield entry, value
            reached = end

    def _in_memory_until(self, prefix: str, first: str, until: str) -> str:
        """How far, from `first` on, every entry of a collection is in memory."""
        if self.complete or prefix in self._whole:
            return until
        for start, end in self._spans.get(prefix, ()):
            if start <= first < end:
                return min(end, until)
        return first

    def _names(self, prefix: str) -> list[str]:
        """The sorted names of a collection's entries in memory."""
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
        """Fetch entries from `first` on, up to where they are in memory again.

        Not only as far as they were asked for: the next range mostly begins in this one and
        ends a little later, and should not need the store again.
        """
        spans = self._spans.get(prefix, [])
        until = min((start for start, _ in spans if start > first), default=_end_of(prefix))
        page = await self._cache.scan_entries(self, first, until, READ_AHEAD)
        for entry, encoded, _ in page:
            if entry not in self.cells:
                self._add(entry, encoded)
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
            page = await self._cache.scan_entries(self, after, before, SCAN_ENTRIES)
            for entry, encoded, _ in page:
                if entry not in self.cells:
                    self._add(entry, encoded)
            if not page:
                break
            after = page[-1][0]
        self._whole += (prefix,)

    # -- what the engine does ------------------------------------------------------

    @property
    def captured(self) -> tuple[bytes | None, int]:
        """The plain part of the state as captured last, and the version that wrote it so."""
        return self._main.encoded, self._version

    def fill(self, rows: list[tuple[str, bytes, int]], *, complete: bool) -> None:
        """Take what the store holds of the key; what is here already is newer."""
        for entry, encoded, version in rows:
            if entry == "":
                if self._main.n == 0:
                    self._main.encoded, self._version = encoded, version
                    self._grow(len(encoded))
            elif entry not in self.cells:
                self._add(entry, encoded)
        self.loaded = True
        self.complete = complete

    def restore(self, entry: str, encoded: bytes | None, version: int, n: int) -> None:
        """Take an entry of the tail: committed by commit `n`, not folded yet."""
        if entry == "":
            self._main.encoded, self._main.n, self._version = encoded, n, version
            self._grow(len(encoded or b""))
        else:
            self._add(entry, encoded, n)
        self.n = max(self.n, n)

    def capture(self, n: int) -> list[Change]:
        """What changed since the last capture; it goes into commit `n`.

        Everything is encoded before anything is noted, so that a value that cannot be
        encoded leaves the key as it was.
        """
        main = self._main
        before = encoded = main.encoded
        layout = self._cache.layout
        if self._opened and not layout.stateless:
            encoded = layout.encode(self._state)
            if encoded == layout.empty:
                encoded = None
            elif encoded != before:
                layout.codec.check(encoded, self._state)
            if layout.collections and layout.bound(self._state) != self._bound:
                self._replace_collections(self._state)  # one of them was assigned alone
        touched = self._encode_touched() if self._touched else ()
        changes: list[Change] = []
        if encoded != before:
            growth = len(encoded or b"") - len(before or b"")
            if growth:
                self._grow(growth)
            main.encoded = encoded
            self.n = main.n = n
            changes.append(("", encoded))
        if not touched:
            return changes
        for entry, cell, value in touched:
            if value != cell.encoded or cell.n == -1:
                self._grow(len(value or b"") - len(cell.encoded or b""))
                cell.encoded = value
                cell.n = n
                changes.append((entry, value))
                if value is None and self._order:
                    self._take_out_of_order(entry)
        if changes:
            self.n = n
        self._touched.clear()
        if len(self.cells) > TRIM_CELLS and self._cache.folded != self._trimmed_at:
            self._trim()
        return changes

    def _encode_touched(self) -> list[tuple[str, Cell, bytes | None]]:
        encodings: list[tuple[str, Cell, bytes | None]] = []
        for entry in self._touched:
            cell = self.cells[entry]
            if cell.value is UNKNOWN:
                continue
            if cell.codec is None:
                raise InvariantBroken(f"entry {entry!r} of key {self.key!r} has no codec")
            encoded = None if cell.value is ABSENT else cell.codec.encode(cell.value)
            if encoded is not None and encoded != cell.encoded:
                cell.codec.check(encoded, cell.value)
            encodings.append((entry, cell, encoded))
        return encodings

    def carry(self, changes: list[Change], n: int) -> None:
        """The changes go into commit `n`, however long user code waited since their capture."""
        self.n = n
        for entry, _ in changes:
            cell = self.cells.get(entry) if entry else self._main
            if cell is not None:
                cell.n = n

    def revert(self) -> None:
        """Forget what user code did since the last capture."""
        self._state = UNKNOWN
        self._opened = False
        for entry in self._touched:
            cell = self.cells[entry]
            cell.value = UNKNOWN
            if cell.n == -1:
                del self.cells[entry]
                self._grow(-len(cell.encoded or b"") - ENTRY_OVERHEAD)
                self._forget_whole()  # what the store holds under this name was not fetched
        self._touched.clear()

    def _trim(self) -> None:
        """Drop the entries that are folded; no others will be before the next fold."""
        folded = self._trimmed_at = self._cache.folded
        for entry in [e for e, cell in self.cells.items() if cell.n <= folded]:
            cell = self.cells.pop(entry)
            self._grow(-len(cell.encoded or b"") - ENTRY_OVERHEAD)
        self.complete = False
        self._forget_whole()

    def _forget_whole(self) -> None:
        """Nothing is known any more of entries that are not in memory, but by `complete`."""
        self._whole = ()
        self._spans.clear()
        self._order.clear()

    def _grow(self, by: int) -> None:
        self.size += by
        self._cache.size += by


def _end_of(prefix: str) -> str:
    """The first name behind all that start with `prefix`."""
    return prefix[:-1] + chr(ord(prefix[-1]) + 1)


class StateCache:
    """The keys of one interval in memory.

    Eviction gives each key a second chance: one that was used since it was last looked at
    stays, which costs a record nothing but a flag.
    """

    def __init__(
        self,
        layout: StateLayout[Any],
        *,
        what: str,
        version: int,
        migrations: Any,
        fetch_entry: EntryFetcher,
        scan_entries: EntryScanner,
    ) -> None:
        self.layout = layout
        self.fetch_entry = fetch_entry
        self.scan_entries = scan_entries
        self.folded = 0
        self.size = 0
        self.version = version
        self._what = what
        self._migrations = migrations
        self._keys: dict[bytes, KeyState] = {}

    def current(self, encoded: bytes, version: int) -> bytes:
        """Stored JSON, brought up to this code's version."""
        return apply_migrations(encoded, version, self.version, self._migrations, self._what)

    def get(self, key: Key, key_text: bytes, slot: int) -> KeyState:
        """The key's state, loaded or not."""
        found = self._keys.get(key_text)
        if found is not None:
            found.used = True
        else:
            found = self._keys[key_text] = KeyState(self, key, key_text, slot)
            self.size += found.size
            found.loaded = found.complete = self.layout.stateless
        return found

    def evict(self, limit: int, keep: Callable[[bytes], bool]) -> None:
        """Drop keys that were not used lately, until at most `limit` bytes are left.

        A key stays while its changes are not folded, or while `keep` says so.
        """
        if self.size <= limit:
            return
        for key_text, state in [*self._keys.items(), *self._keys.items()]:
            if key_text not in self._keys:
                continue
            if state.used:
                state.used = False
                del self._keys[key_text]  # to the end of the queue
                self._keys[key_text] = state
            elif state.n <= self.folded and not keep(key_text):
                del self._keys[key_text]
                self.size -= state.size
                if self.size <= limit:
                    return

    def __len__(self) -> int:
        return len(self._keys)
