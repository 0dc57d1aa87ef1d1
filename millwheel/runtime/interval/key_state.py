"""State in memory: what is durable plus what the running bundles have changed.

A `KeyState` holds the state object of one key, and its collections' entries (`entries`) if there are any. It
remembers the encoded form as last captured for a commit; an object that user code may have changed
is encoded again when the key's records have run, and differs or not. So going back after an
exception costs nothing beforehand: the objects are dropped and decoded again.

Entries not folded yet are never evicted: the tail of the store is in memory of its owner,
and whatever is not in memory stands in the current table (I15).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from millwheel.codec import Migration, apply_migrations, shown
from millwheel.errors import MigrationFailed
from millwheel.model import Key
from millwheel.runtime.interval.map_entries import Change, Entries
from millwheel.state import UNKNOWN, StateLayout

KEY_BYTES = 450
"""Bytes that a key costs in memory besides its encoded state, with the state object."""

LOOKS = 64
"""Keys that an eviction may look at, and `LOOKS_PER_KEY` for each key that has come since the last."""
LOOKS_PER_KEY = 4

EntryFetcher = Callable[["KeyState", str], Awaitable["tuple[bytes, int] | None"]]
EntryScanner = Callable[["KeyState", str, str, int], Awaitable["list[tuple[str, bytes, int]]"]]
"""Key, after, before (both exclusive), how many at the most."""


class KeyState:
    """The state of one key; what `Context.state` works on."""

    __slots__ = ("_encoded", "_entries", "_is_newer", "_state", "_version", "cache", "complete", "key",
                 "key_text", "loaded", "n", "slot", "used")  # fmt: skip

    def __init__(self, cache: StateCache, key: Key, key_text: bytes, slot: int) -> None:
        self.cache = cache
        self.key = key
        self.key_text = key_text
        self.slot = slot
        self.loaded = False
        self.complete = False
        """Whether all that is stored of the key is here."""
        self.used = False
        self.n = 0
        """The commit that carries the last change."""
        self._encoded: bytes | None = None
        """The plain part of the state as captured last."""
        self._version = cache.version
        """The version of the code that wrote it so."""
        self._is_newer = False
        """It has been captured or restored here: what has been folded is older."""
        self._state: Any = UNKNOWN
        """The state object, if somebody looked."""
        self._entries: Entries | None = None

    @property
    def size(self) -> int:
        """Bytes that it occupies, about."""
        entries = 0 if self._entries is None else self._entries.size
        return KEY_BYTES + len(self._encoded or b"") + entries

    # -- what user code sees ------------------------------------------------------

    def open_state(self) -> Any:
        """The state object, decoded when first asked for."""
        if self._state is UNKNOWN:
            layout, cache = self.cache.layout, self.cache
            stored = self._encoded
            if stored is not None and self._version != cache.version:
                stored = cache.current(stored, self._version, self.key)
            if layout.collections:
                entries = self._made_entries()
                state = layout.decode(stored, entries)
                entries.bound = layout.bound(state)
            else:
                state = layout.decode(stored)
            if stored is not None:
                # As this code writes it: Postgres gives jsonb back in a form of its own,
                # and reading alone must not look like a change.
                encoded: bytes | None = layout.encode(state)
                self._keep(None if encoded == layout.empty else encoded)
                self._version = cache.version
            self._state = state
        return self._state

    def replace_state(self, state: Any) -> None:
        """Make `state` the state object: all of it, its collections too."""
        layout = self.cache.layout
        layout.check(state)
        self.open_state()  # what is stored must be known as this code writes it
        if layout.collections:
            self._made_entries().replace(state)
        self._state = state

    def _made_entries(self) -> Entries:
        if self._entries is None:
            self._entries = Entries(self)
        return self._entries

    def _keep(self, encoded: bytes | None) -> None:
        self.cache.size += len(encoded or b"") - len(self._encoded or b"")
        self._encoded = encoded

    # -- what the engine does ------------------------------------------------------

    @property
    def captured(self) -> tuple[bytes | None, int]:
        """The plain part of the state as captured last, and the version that wrote it so."""
        return self._encoded, self._version

    def fill(self, rows: list[tuple[str, bytes, int]], *, complete: bool) -> None:
        """Take what the store holds of the key; what is here already is newer."""
        for entry, encoded, version in rows:
            if entry != "":
                entries = self._made_entries()
                if entry not in entries.cells:
                    entries.add(entry, encoded)
            elif not self._is_newer:
                self._keep(encoded)
                self._version = version
        self.loaded = True
        self.complete = complete

    def restore(self, entry: str, encoded: bytes | None, version: int, n: int) -> None:
        """Take an entry of the tail: committed by commit `n`, not folded yet."""
        if entry == "":
            self._keep(encoded)
            self._version, self._is_newer = version, True
        else:
            self._made_entries().add(entry, encoded, n)
        self.n = max(self.n, n)

    def capture(self, n: int) -> list[Change]:
        """What changed since the last capture; it goes into commit `n`.

        Everything is encoded before anything is noted, so that a value that cannot be
        encoded leaves the key as it was.

        Raises:
            MigrationFailed: user code went on without a state that could not be read.
        """
        cache, before = self.cache, self._encoded
        layout, encoded = cache.layout, before
        if self._state is not UNKNOWN:
            encode = layout.encode
            encoded = encode(self._state)
            if encoded == layout.empty:
                encoded = None
            elif encoded != before:
                layout.codec.check(encoded, self._state)
        elif cache.failed is not None:
            raise cache.failed  # user code has caught it
        changes: list[Change] = []
        if self._entries is not None:
            changes = self._capture_entries(self._entries, n)
        if encoded != before:
            cache.size += len(encoded or b"") - len(before or b"")  # `_keep`, written out
            self._encoded = encoded
            self._is_newer = True
            changes.append(("", encoded))
        if changes:
            self.n = n
        return changes

    def _capture_entries(self, entries: Entries, n: int) -> list[Change]:
        layout = self.cache.layout
        if (
            self._state is not UNKNOWN
            and layout.collections
            and layout.bound(self._state) != entries.bound
        ):
            entries.replace(self._state)  # one of them was assigned alone
        touched = entries.encoded()
        return entries.capture(touched, n) if touched else []

    def carry(self, changes: list[Change], n: int) -> None:
        """The changes go into commit `n`, however long user code waited since their capture."""
        self.n = n
        if self._entries is not None:
            for entry, _ in changes:
                cell = self._entries.cells.get(entry)
                if cell is not None:
                    cell.n = n

    def revert(self) -> None:
        """Forget what user code did since the last capture."""
        self._state = UNKNOWN
        if self._entries is not None:
            self._entries.revert()


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
        migrations: Mapping[int, Migration],
        fetch_entry: EntryFetcher,
        scan_entries: EntryScanner,
    ) -> None:
        self.layout = layout
        self.fetch_entry = fetch_entry
        self.scan_entries = scan_entries
        self.folded = 0
        self.size = 0
        self.version = version
        self.failed: MigrationFailed | None = None
        """Why the state of a key cannot be read. Nothing that ran without it may be stored."""
        self._what = what
        self._migrations = migrations
        self._keys: dict[bytes, KeyState] = {}
        self._queue: deque[KeyState] = deque()
        """The same; who is looked at next comes first."""
        self._left = 0
        """The size that the last eviction left."""
        self.looked_ahead = 0
        """Number of queued records whose state is loaded or being loaded."""
        self.loaded_bytes = 0
        """What a key takes, of those that were loaded last; 0: none was."""

    def current(self, encoded: bytes, version: int, key: Key) -> bytes:
        """Stored JSON, brought up to this code's version.

        Raises:
            MigrationFailed: that failed, which ends the worker.
        """
        what = f"{self._what}, key {shown(key)}"
        decode = self.layout.codec.decode
        try:
            return apply_migrations(encoded, version, self.version, self._migrations, what, decode)
        except MigrationFailed as error:
            self.failed = error
            raise

    def get(self, key: Key, key_text: bytes, slot: int) -> KeyState:
        """The key's state, loaded or not."""
        found = self._keys.get(key_text)
        if found is not None:
            found.used = True
        else:
            found = self._keys[key_text] = KeyState(self, key, key_text, slot)
            self._queue.append(found)
            self.size += KEY_BYTES
            found.loaded = found.complete = self.layout.stateless
        return found

    def has(self, state: KeyState) -> bool:
        """Whether the key has this state, and not been forgotten since."""
        return self._keys.get(state.key_text) is state

    def evict(self, limit: int, keep: Callable[[bytes], bool]) -> None:
        """Drop keys that were not used lately, until at most `limit` bytes are left.

        A key stays while its changes are not folded, or while `keep` says so. So that a commit waits
        for what has come since the last one, and not for all that is here, it may take several
        calls.
        """
        looks = LOOKS + LOOKS_PER_KEY * max(0, self.size - self._left) // KEY_BYTES
        queue = self._queue
        for _ in range(min(looks, 2 * len(queue))):
            if self.size <= limit:
                break
            state = queue.popleft()
            if state.used or state.n > self.folded or keep(state.key_text):
                state.used = False
                queue.append(state)
            else:
                del self._keys[state.key_text]
                self.size -= state.size
        self._left = self.size

    def __len__(self) -> int:
        return len(self._keys)
