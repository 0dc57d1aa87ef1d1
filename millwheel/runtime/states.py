"""State in memory: what is durable plus what the running bundles have changed.

A `KeyState` holds the entries of one key. Each entry remembers its encoded form as last
captured for a commit; an object that user code may have changed is encoded again when the
key's records have run, and differs or not. So going back after an exception costs nothing
beforehand: the objects are dropped and decoded again.

Entries not folded yet are never evicted: the tail of the store is in memory of its owner,
and whatever is not in memory stands in the current table (design, the store).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from millwheel.codec import Codec, apply_migrations
from millwheel.errors import InvariantBroken
from millwheel.model import Key
from millwheel.state import ABSENT, UNKNOWN, StateLayout

ENTRY_OVERHEAD = 200
"""Bytes an entry costs in memory besides its encoded value."""

TRIM_CELLS = 4096
"""Entries of one key from which clean ones are dropped one by one."""

Change = tuple[str, bytes | None]
"""Entry and encoded value; None: removed."""

EntryFetcher = Callable[["KeyState", str], Awaitable["tuple[bytes, int] | None"]]
EntryScanner = Callable[["KeyState", str, str], Awaitable["list[tuple[str, bytes, int]]"]]


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

    __slots__ = ("_cache", "_main", "_opened", "_state", "_touched", "_trimmed_at", "cells", "complete", "key",
                 "key_text", "loaded", "n", "size", "slot", "used")  # fmt: skip

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
        self._state: Any = UNKNOWN
        self._opened = False
        self._touched: set[str] = set()

    # -- what user code sees ------------------------------------------------------

    def open_state(self) -> Any:
        """The state object, decoded when first asked for."""
        if not self._opened:
            layout = self._cache.layout
            main = self._main
            self._state = layout.decode(main.encoded, self)
            self._opened = True
            if main.encoded is not None:
                # As this code writes it: Postgres gives jsonb back in a form of its own,
                # and reading alone must not look like a change.
                main.encoded = layout.encode(self._state)
                if main.encoded == layout.empty:
                    main.encoded = None
        return self._state

    def replace_state(self, state: Any) -> None:
        """Make `state` the state object."""
        layout = self._cache.layout
        layout.encode(state)
        if layout.collections:
            current = self.open_state()
            for name in layout.collections:
                setattr(state, name, getattr(current, name))
        self._state = state
        self._opened = True

    def lookup(self, entry: str, codec: Codec[Any]) -> Any:
        cell = self.cells.get(entry)
        if cell is None:
            return ABSENT if self.complete else UNKNOWN
        return self._value(entry, cell, codec)

    def _value(self, entry: str, cell: Cell, codec: Codec[Any]) -> Any:
        if cell.value is UNKNOWN:
            cell.codec = codec
            if cell.encoded is None:
                cell.value = ABSENT
            else:
                cell.value = codec.decode(cell.encoded)
                cell.encoded = codec.encode(cell.value)
        self._touched.add(entry)
        return cell.value

    async def fetch(self, entry: str, codec: Codec[Any]) -> Any:
        found = await self._cache.fetch_entry(self, entry)
        if found is None:
            cell = Cell(None)
        else:
            cell = Cell(self._cache.current(found[0], found[1]))
            self._grow(len(found[0]) + ENTRY_OVERHEAD)
        self.cells[entry] = cell
        return self._value(entry, cell, codec)

    def store(self, entry: str, codec: Codec[Any], value: Any) -> None:
        cell = self.cells.get(entry)
        if cell is None:
            cell = self.cells[entry] = Cell(None)
            self._grow(ENTRY_OVERHEAD)
        cell.codec = codec
        cell.value = value
        self._touched.add(entry)
        if not self.complete and cell.encoded is None and cell.n == 0:
            cell.n = -1  # written blindly: what the store holds is unknown

    def erase(self, entry: str, codec: Codec[Any]) -> None:
        self.store(entry, codec, ABSENT)

    async def scan(self, prefix: str, codec: Codec[Any]) -> AsyncIterator[tuple[str, Any]]:
        if not self.complete:
            await self._load_all(prefix)
        for entry in sorted(entry for entry in self.cells if entry.startswith(prefix)):
            cell = self.cells.get(entry)
            if cell is not None:
                value = self._value(entry, cell, codec)
                if value is not ABSENT:
                    yield entry, value

    async def _load_all(self, prefix: str) -> None:
        after, before = prefix, prefix[:-1] + chr(ord(prefix[-1]) + 1)
        while True:
            page = await self._cache.scan_entries(self, after, before)
            for entry, encoded, version in page:
                if entry not in self.cells:
                    self.cells[entry] = Cell(self._cache.current(encoded, version))
                    self._grow(len(encoded) + ENTRY_OVERHEAD)
            if not page:
                return
            after = page[-1][0]

    # -- what the engine does ------------------------------------------------------

    def fill(self, rows: list[tuple[str, bytes, int]], *, complete: bool) -> None:
        """Take what the store holds of the key; what is here already is newer."""
        for entry, encoded, version in rows:
            if entry == "":
                if self._main.n == 0:
                    self._main.encoded = self._cache.current(encoded, version)
            elif entry not in self.cells:
                self.cells[entry] = Cell(self._cache.current(encoded, version))
            self._grow(len(encoded) + ENTRY_OVERHEAD)
        self.loaded = True
        self.complete = complete

    def restore(self, entry: str, encoded: bytes | None, version: int, n: int) -> None:
        """Take an entry of the tail: committed by commit `n`, not folded yet."""
        value = None if encoded is None else self._cache.current(encoded, version)
        if entry == "":
            self._main.encoded, self._main.n = value, n
        else:
            self.cells[entry] = Cell(value, n)
        self.n = max(self.n, n)
        self._grow(len(encoded or b"") + ENTRY_OVERHEAD)

    def capture(self, n: int) -> list[Change]:
        """What changed since the last capture; it goes into commit `n`.

        Everything is encoded before anything is noted, so that a value that cannot be
        encoded leaves the key as it was.
        """
        main = self._main
        encoded = main.encoded
        if self._opened:
            layout = self._cache.layout
            if not layout.stateless:
                encoded = layout.encode(self._state)
                if encoded == layout.empty:
                    encoded = None
        touched = self._encode_touched() if self._touched else ()
        changes: list[Change] = []
        if encoded != main.encoded:
            self._grow(len(encoded or b"") - len(main.encoded or b""))
            main.encoded = encoded
            main.n = n
            changes.append(("", encoded))
            self.n = n
        if not touched:
            return changes
        for entry, cell, value in touched:
            if value != cell.encoded or cell.n == -1:
                self._grow(len(value or b"") - len(cell.encoded or b""))
                cell.encoded = value
                cell.n = n
                changes.append((entry, value))
        if changes:
            self.n = n
        self._touched.clear()
        if len(self.cells) > TRIM_CELLS:
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
            encodings.append((entry, cell, encoded))
        return encodings

    def carry(self, changes: list[Change], n: int) -> None:
        """The changes go into commit `n`, however long user code waited since their capture."""
        if self.n == n:
            return
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
        self._touched.clear()

    def _trim(self) -> None:
        folded = self._cache.folded
        if folded == self._trimmed_at:
            return
        self._trimmed_at = folded
        for entry in [e for e, cell in self.cells.items() if cell.n <= folded]:
            cell = self.cells.pop(entry)
            self._grow(-len(cell.encoded or b"") - ENTRY_OVERHEAD)
        self.complete = False

    def _grow(self, by: int) -> None:
        self.size += by
        self._cache.size += by


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
        self._what = what
        self._version = version
        self._migrations = migrations
        self._keys: dict[bytes, KeyState] = {}

    def current(self, encoded: bytes, version: int) -> bytes:
        """Stored JSON, brought up to this code's version."""
        if version == self._version:
            return encoded
        return apply_migrations(encoded, version, self._version, self._migrations, self._what)

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
