"""State in memory: the durable state plus the changes of commits that are not durable yet.

A `KeyState` keeps the encoded form last captured for a commit. When a key's records have run, a
state object that user code may have changed is encoded again and compared with that form. If it
differs, the object is replaced by the one that a restart would decode from it
(`millwheel.core.stored_form`), so that memory and store never show user code different values.
Preparing for an exception costs nothing: to revert, the objects are dropped and decoded again.

Entries that are not folded are never evicted: the owner has the tail of the store in memory, and
all other state is in the current table (I15).
"""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from copy import copy
from typing import Any, NamedTuple

from millwheel.core.chunk import Chunk
from millwheel.core.codec import Codec, Migration, apply_migrations, decode_key
from millwheel.core.model import Key
from millwheel.core.redaction import shown_key
from millwheel.core.stored_form import Fidelity, first_difference
from millwheel.errors import MigrationFailed
from millwheel.runtime.keys.map_entries import Change, Encoding, Entries
from millwheel.state import UNKNOWN, StateLayout

KEY_BYTES = 450
"""Bytes of memory per key, with the state object, besides the encoded state."""

LOOKS = 64
"""Keys that each eviction may check, besides `LOOKS_PER_KEY` for each key added since the last
one."""
LOOKS_PER_KEY = 4
"""Keys that an eviction may check for each key added since the last one."""

Encoded = tuple["bytes | None", "list[Encoding] | None"]
"""An encoded state without its collections, and the entries that were used; None: no entries."""

EntryFetcher = Callable[["KeyState", str], Awaitable["tuple[bytes, int] | None"]]
"""Reads an entry of a key: its encoded value and version; None: it is not stored."""

EntryScanner = Callable[["KeyState", str, str, int], Awaitable["list[tuple[str, bytes, int]]"]]
"""Reads entries of a key, given the names after and before them (both exclusive) and a limit."""

SETTLED_BYTES = 512
"""Largest state that is read again between two records of a key, in some microseconds. The records
of a larger state in one bundle share its object, and leave it as a restart would read it."""


class KeyState:
    """The state of one key, which `Context.state` reads and changes."""

    __slots__ = ("_encoded", "_entries", "_is_newer", "_version", "cache", "complete", "key",
                 "key_text", "loaded", "n", "opened", "slot", "used")  # fmt: skip

    def __init__(self, cache: StateCache, key: Key, key_text: bytes, slot: int) -> None:
        self.cache = cache
        self.key = key
        self.key_text = key_text
        self.slot = slot
        self.loaded = False
        self.complete = False
        """Whether everything stored for the key is in memory."""
        self.used = False
        """Whether the key was used since an eviction last checked it."""
        self.n = 0
        """Number of the commit that carries the last change."""
        self._encoded: bytes | None = None
        """The last captured form of the state without its collections; None: the empty state."""
        self._version = cache.version
        """The state version of the code that wrote `_encoded`."""
        self._is_newer = False
        """`_encoded` was captured here or restored from the tail: the folded form is older."""
        self.opened: Any = UNKNOWN
        """The state object, once user code has asked for it."""
        self._entries: Entries | None = None

    @property
    def size(self) -> int:
        """Approximate size in memory, in bytes."""
        entries = 0 if self._entries is None else self._entries.size
        return KEY_BYTES + len(self._encoded or b"") + entries

    # -- for user code ------------------------------------------------------

    def open_state(self) -> Any:
        """The state object, decoded on first use."""
        if self.opened is UNKNOWN:
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
                # Encode it as this code does: Postgres returns jsonb in another form, and reading
                # alone must not look like a change.
                encoded: bytes | None = layout.encode(state)
                self._keep(None if encoded == layout.empty else encoded)
                self._version = cache.version
            self.opened = state
        return self.opened

    def replace_state(self, state: Any) -> None:
        """Replace the whole state object, with its collections."""
        layout = self.cache.layout
        layout.check(state)
        self.open_state()  # so that `_encoded` is as this code writes it
        if layout.collections:
            self._made_entries().replace(state)
        self.opened = state

    def amend(self, encoded: bytes) -> None:
        """Replace the state object by another stored form; its collections stay.

        Raises:
            msgspec.ValidationError: it is no state of this type.
        """
        layout = self.cache.layout
        self.open_state()
        if not layout.collections:
            self.opened = layout.decode(encoded)
            return
        entries = self._made_entries()
        self.opened = state = layout.decode(encoded, entries)
        entries.bound = layout.bound(state)

    def _made_entries(self) -> Entries:
        if self._entries is None:
            self._entries = Entries(self)
        return self._entries

    def _keep(self, encoded: bytes | None) -> None:
        self.cache.size += len(encoded or b"") - len(self._encoded or b"")
        self._encoded = encoded

    # -- for the engine ------------------------------------------------------

    @property
    def captured(self) -> tuple[bytes | None, int]:
        """The last captured form of the state without its collections, and its version."""
        return self._encoded, self._version

    def fill(self, rows: list[tuple[str, bytes, int]], *, complete: bool) -> None:
        """Add rows of the key from the store; values already in memory are newer and stay."""
        for entry, encoded, version in rows:
            if entry != "":
                entries = self._made_entries()
                if entry not in entries.cells:
                    entries.add(entry, encoded, version)
            elif not self._is_newer:
                self._keep(encoded)
                self._version = version
        self.loaded = True
        self.complete = complete

    def restore(self, entry: str, encoded: bytes | None, version: int, n: int) -> None:
        """Add an entry of the tail: written by commit `n` and not folded yet."""
        if entry == "":
            self._keep(encoded)
            self._version, self._is_newer = version, True
        else:
            self._made_entries().add(entry, encoded, version, n)
        self.n = max(self.n, n)

    def capture(self, n: int) -> list[Change]:
        """Capture the changes since the last capture, for commit `n`.

        Everything is encoded before anything is recorded: a value that cannot be encoded leaves the
        key as it was.

        Raises:
            MigrationFailed: the state could not be read, and user code continued without it.
        """
        return self.record(self.encoded(), n)

    def encoded(self) -> Encoded:
        """The present form of the state and of touched entries, to `record` before user code runs
        again.

        Changed values are replaced by those that a restart would decode from that form.

        Raises:
            MigrationFailed: as `capture`.
        """
        cache, before = self.cache, self._encoded
        layout, encoded = cache.layout, before
        if self.opened is not UNKNOWN:
            encoded = layout.encode(self.opened)
            # A text that is known may come from a value that is not.
            if not (encoded in (before, layout.empty) and layout.codec.is_kept(encoded)):
                encoded = self._reread(encoded)
            if encoded == layout.empty:
                encoded = None
        elif cache.failed is not None:
            raise cache.failed  # user code has caught it
        return encoded, None if self._entries is None else self._touched(self._entries)

    def settle(self) -> None:
        """Between two records of the key: show the second one the values that a restart would read.

        A large state is settled only when it is captured, since this encodes it.
        """
        layout = self.cache.layout
        is_small = self._encoded is None or len(self._encoded) <= SETTLED_BYTES
        if is_small and self.opened is not UNKNOWN and layout.codec.fidelity != Fidelity.FULL:
            encoded = layout.encode(self.opened)
            if not layout.codec.is_kept(encoded):
                self._reread(encoded)
        if self._entries is not None:
            self._entries.settle()

    def _reread(self, encoded: bytes) -> bytes:
        """Replace the state object, just encoded, by the one that a restart would read; gives its
        stored form."""
        cache = self.cache
        was = copy(self.opened) if cache.compares else None
        encoded, self.opened = cache.layout.settle(encoded, self.opened)
        if was is not None:
            cache.compare(was, self.opened, cache.layout.codec)
        return encoded

    def record(self, found: Encoded, n: int) -> list[Change]:
        cache, before = self.cache, self._encoded
        encoded, touched = found
        changes: list[Change] = []
        if touched:
            assert self._entries is not None
            changes = self._entries.capture(touched, n)
        if encoded != before:
            cache.size += len(encoded or b"") - len(before or b"")  # `_keep`, inlined
            self._encoded = encoded
            self._is_newer = True
            changes.append(("", encoded))
        if changes:
            self.n = n
        return changes

    def _touched(self, entries: Entries) -> list[Encoding]:
        layout = self.cache.layout
        if (
            self.opened is not UNKNOWN
            and layout.collections
            and layout.bound(self.opened) != entries.bound
        ):
            entries.replace(self.opened)  # user code has assigned a single collection
        return entries.encoded()

    def carry(self, changes: list[Change], n: int) -> None:
        """Assign captured changes to commit `n`: user code may have waited long since the
        capture."""
        self.n = n
        if self._entries is not None:
            for entry, _ in changes:
                cell = self._entries.cells.get(entry)
                if cell is not None:
                    cell.n = n

    def revert(self) -> None:
        """Drop all changes since the last capture."""
        self.opened = UNKNOWN
        if self._entries is not None:
            self._entries.revert()


class CapturedStates(NamedTuple):
    states: list[KeyState]
    values: list[bytes | None]
    """States without collections, encoded; None: empty."""
    others: list[tuple[KeyState, list[Change]]]
    """Changes of entries, by key."""


def encode_all(states: Sequence[KeyState]) -> Sequence[Encoded] | list[bytes]:
    """`KeyState.encoded` of states of one cache; texts alone if no state has entries.

    Raises:
        Exception: a state cannot be encoded, or read.
    """
    layout = states[0].cache.layout
    objects = [state.opened for state in states]
    if layout.stateless or layout.collections or any(each is UNKNOWN for each in objects):
        return [state.encoded() for state in states]
    codec = layout.codec
    texts = codec.encode_all(objects)
    if states[0].cache.compares or not codec.are_settled(texts, objects):
        return [state.encoded() for state in states]
    for state, found in zip(states, codec.check_all(texts, objects), strict=True):
        state.opened = found  # as a restart reads it
    if layout.empty in texts:
        return [(None if text == layout.empty else text, None) for text in texts]
    return texts


def record_all(
    states: Sequence[KeyState], found: Sequence[Encoded] | list[bytes], n: int
) -> CapturedStates:
    captured = CapturedStates([], [], [])
    if not isinstance(found[0], bytes):
        for state, each in zip(states, found, strict=True):
            changes = state.record(each, n)  # type: ignore[arg-type]
            if changes:
                captured.others.append((state, changes))
        return captured
    size, changed, values = 0, captured.states, captured.values
    for state, text in zip(states, found, strict=True):
        before = state._encoded
        if text != before:
            size += len(text) if before is None else len(text) - len(before)
            state._encoded, state._is_newer, state.n = text, True, n  # type: ignore[assignment]
            changed.append(state)
            values.append(text)  # type: ignore[arg-type]
    states[0].cache.size += size
    return captured


class StateCache:
    """The states of one interval's keys in memory.

    Eviction spares a key that was used since the last check: this costs each record only a flag.
    """

    def __init__(
        self,
        layout: StateLayout[Any],
        *,
        what: str,
        version: int,
        migrations: Mapping[int, Migration],
        entry_migrations: Mapping[str, Mapping[int, Migration]],
        fetch_entry: EntryFetcher,
        scan_entries: EntryScanner,
        compares: bool = False,
    ) -> None:
        self.layout = layout
        self.fetch_entry = fetch_entry
        self.scan_entries = scan_entries
        self.folded = 0
        """Number of the last folded commit."""
        self.size = 0
        """Approximate size of all keys in memory, in bytes."""
        self.version = version
        self.failed: MigrationFailed | None = None
        """Why the state of a key cannot be read; work that ran without it must not be stored."""
        self.compares = compares
        """Whether to warn of the first value that is not read back as it was (tests)."""
        self._what = what
        self._migrations = migrations
        self._entry_migrations = entry_migrations
        self._keys: dict[bytes, KeyState] = {}
        self._queue: deque[KeyState] = deque()
        """The keys in memory, in the order of eviction's checks."""
        self._left = 0
        """The value of `size` after the last eviction."""
        self.has_all = False
        """Whether all stored states of the interval's keys are in memory: no other key has one."""
        self.are_read = False
        """Whether the reading of all states was begun."""
        self.evicted = 0
        """Number of keys that were dropped from memory."""
        self.looked_ahead = 0
        """Number of queued records with a state that is loaded or being loaded."""
        self.loaded_bytes = 0
        """Average size in bytes of the keys loaded last; 0: none was loaded."""

    def compare(self, before: Any, after: Any, codec: Codec[Any]) -> None:
        """Warn of a value that is not read back as it was, once."""
        is_full = codec.fidelity == Fidelity.FULL
        found = None if is_full else first_difference(before, after)
        if found is not None:
            self.compares = False
            warnings.warn(
                f"{codec.what}: {found}. State is stored as JSON; from the next record on, user "
                "code sees what is read from there. Store what JSON keeps: times in UTC (with "
                "the zone's name in a field of its own), lists for tuples without a declared "
                "type, 0.0",
                stacklevel=2,
            )

    def current(self, encoded: bytes, version: int, key: Key) -> bytes:
        """Migrate stored JSON to this code's version.

        Raises:
            MigrationFailed: a migration failed, which ends the worker.
        """
        subject = f"{self._what}, key {shown_key(key)}"
        decode = self.layout.codec.decode
        try:
            return apply_migrations(
                encoded, version, self.version, self._migrations, subject, decode
            )
        except MigrationFailed as error:
            self.failed = error
            raise

    def current_entry(self, entry: str, encoded: bytes, version: int, key: Key) -> bytes:
        """Migrate the stored JSON of an entry, as `current` does that of a state."""
        field = self.layout.field_of(entry)
        if field is None:
            return encoded
        subject = f"{self._what}, key {shown_key(key)}, {entry}"
        decode = self.layout.collections[field][2].decode
        try:
            return apply_migrations(
                encoded, version, self.version, self._entry_migrations[field], subject, decode
            )
        except MigrationFailed as error:
            self.failed = error
            raise

    def get(self, key: Key, key_text: bytes, slot: int) -> KeyState:
        """The state of a key; it may not be loaded yet."""
        found = self._keys.get(key_text)
        if found is not None:
            found.used = True
        else:
            found = self._keys[key_text] = KeyState(self, key, key_text, slot)
            self._queue.append(found)
            self.size += KEY_BYTES
            found.loaded = found.complete = self.has_all or self.layout.stateless
        return found

    def learn(self, slot: int, key_text: bytes, rows: list[tuple[str, bytes, int]]) -> None:
        """Take all stored entries of a key, which no record has asked for."""
        state = self.get(decode_key(key_text), key_text, slot)
        if not state.loaded:
            state.fill(rows, complete=True)

    def get_all(self, chunk: Chunk, by_key: Mapping[bytes, list[int]]) -> list[KeyState]:
        """The states of a chunk's keys, given the places of their records."""
        known, found = self._keys, []
        for key_text, places in by_key.items():
            state = known.get(key_text)
            if state is None:
                state = self.get(chunk.keys[places[0]], key_text, chunk.slots[places[0]])
            state.used = True
            found.append(state)
        return found

    def has(self, state: KeyState) -> bool:
        """Whether this state object was not evicted."""
        return self._keys.get(state.key_text) is state

    def evict(self, limit: int, keep: Callable[[bytes], bool]) -> None:
        """Drop keys that were not used lately, until at most `limit` bytes are left.

        A key stays while its changes are not folded, or while `keep` returns true. It may take
        several calls to reach the limit: each commit waits for a call, so the work of a call
        depends on the keys added since the last one and not on all keys in memory.
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
                self.evicted += 1
                self.has_all = False
        self._left = self.size

    def __len__(self) -> int:
        return len(self._keys)
