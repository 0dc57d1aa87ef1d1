"""The keys of a step, as Spark keeps them: in buckets, and in pages of a bucket.

Spark keeps state by group. For each group of a batch, Python asks the JVM for its state and its
timers over a socket, which takes about a millisecond, whatever the group holds. So a group is a
step and a *bucket*: a range of slots. Their number is fixed when the checkpoint is made, since a
row finds the task of its state by its bucket, and state cannot pass from one group to another.

The number of keys is not known then. So a bucket divides its keys among *pages*, and has more of
them as it grows: a batch reads and writes the pages of its keys, and no others. A page is split
with its batch, so the number of pages is in the checkpoint with the pages. The next one to split is
a function of their number (linear hashing), so that number is all that finds the page of a key.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, Protocol
from zlib import crc32

import msgspec

from millwheel.core.model import MAX_TIME, SLOTS

BUCKETS_PER_TASK: Final = 64
"""Buckets of a step for each task of an operator: tasks get them by a hash, so that of few, some
task would have twice as many as another."""
PAGE_BYTES: Final = 24_576
"""Average size at which a bucket gets another page. To read and write a page this large takes about
as long as the two requests themselves."""
DIRECTORY: Final = -1
"""The number of the page that describes the others."""
PAGES: Final = "pages"
"""Name of the map of a bucket."""
PAGE_NUMBER: Final = "page INT"
PAGE_CONTENT: Final = "content BINARY"


def bucket_of(slot: int, buckets: int) -> int:
    """The bucket of a key, among so many of its step."""
    return slot * buckets // SLOTS


class KeptKey(msgspec.Struct, array_like=True):
    """The state and the timers of a key."""

    entries: dict[str, tuple[bytes, int]] = {}
    """The entries of the view ``states``: name -> JSON, and the version of the state."""
    timers: dict[str, int] = {}
    """Tag -> due, in microseconds."""

    def __bool__(self) -> bool:
        return bool(self.entries or self.timers)


class KeyPage(msgspec.Struct, array_like=True):
    keys: dict[bytes, msgspec.Raw] = {}
    """Key as JSON -> `KeptKey`. Only the keys of a batch are decoded."""
    dues: dict[bytes, int] = {}
    """When the first timer of a key is due, in microseconds."""

    @property
    def size(self) -> int:
        return sum(map(len, self.keys)) + sum(map(len, self.keys.values()))


class Directory(msgspec.Struct, array_like=True):
    """The pages of a bucket: of each one the number of keys, their size in bytes, and when the
    first timer is due, `MAX_TIME` if none is set."""

    wake: int | None = None
    """When Spark calls for the bucket, in milliseconds."""
    keys: list[int] = msgspec.field(default_factory=lambda: [0])
    sizes: list[int] = msgspec.field(default_factory=lambda: [0])
    dues: list[int] = msgspec.field(default_factory=lambda: [MAX_TIME])


_encode = msgspec.msgpack.Encoder().encode
_key = msgspec.msgpack.Decoder(KeptKey).decode
_page = msgspec.msgpack.Decoder(KeyPage).decode
_directory = msgspec.msgpack.Decoder(Directory).decode


class PageMap(Protocol):
    """Spark's map of the present group."""

    def getValue(self, key: Any) -> Any: ...
    def updateValue(self, key: Any, value: Any) -> None: ...
    def removeKey(self, key: Any) -> None: ...


class KeyBucket:
    """The keys of the present group: `divide` them among the pages, then `store` the changes."""

    def __init__(self, stored: PageMap) -> None:
        self._stored = stored
        self._read: dict[int, KeyPage] = {}
        self._changed: set[int] = set()
        found = stored.getValue((DIRECTORY,))
        self._was = b"" if found is None else bytes(found[0])
        self._directory = _directory(self._was) if self._was else Directory()

    @property
    def wake(self) -> int | None:
        """When Spark calls for the bucket, in milliseconds; None: it has no timers."""
        return self._directory.wake

    @wake.setter
    def wake(self, millis: int | None) -> None:
        self._directory.wake = millis

    @property
    def due(self) -> int:
        """When its first timer was due as of `divide`, in microseconds; `MAX_TIME`: it has
        none."""
        return min(self._directory.dues)

    def due_before(self, watermark: int) -> Iterator[bytes]:
        """The keys with a timer that is due before an instant, in microseconds."""
        for number, due in enumerate(self._directory.dues):
            if due < watermark:
                dues = self._page(number).dues
                yield from [key for key, first in dues.items() if first < watermark]

    def get(self, key: bytes) -> KeptKey:
        """An empty one if nothing is kept of the key."""
        found = self._page(self._number_of(key)).keys.get(key)
        return KeptKey() if found is None else _key(found)

    def put(self, key: bytes, kept: KeptKey) -> None:
        number = self._number_of(key)
        page = self._page(number)
        if kept:
            page.keys[key] = msgspec.Raw(_encode(kept))
        else:
            page.keys.pop(key, None)
        if kept.timers:
            page.dues[key] = min(kept.timers.values())
        else:
            page.dues.pop(key, None)
        self._changed.add(number)

    def divide(self) -> None:
        """Split pages while they are too large on average, and have more than a key."""
        self._describe()
        of = self._directory
        while sum(of.sizes) > len(of.sizes) * PAGE_BYTES and sum(of.keys) > len(of.keys):
            self._split()
            self._describe()
        if not any(of.keys):
            self._directory = Directory(of.wake)

    def store(self) -> None:
        """Write the pages that have changed, and the directory."""
        for number in sorted(self._changed):
            page = self._read[number]
            if page.keys:
                self._stored.updateValue((number,), (_encode(page),))
            else:
                self._stored.removeKey((number,))
        self._changed.clear()
        encoded = b"" if self._directory == Directory() else _encode(self._directory)
        if encoded == self._was:
            return
        if encoded:
            self._stored.updateValue((DIRECTORY,), (encoded,))
        else:
            self._stored.removeKey((DIRECTORY,))
        self._was = encoded

    def _number_of(self, key: bytes) -> int:
        return page_of(key, len(self._directory.keys))

    def _page(self, number: int) -> KeyPage:
        found = self._read.get(number)
        if found is None:
            stored = self._stored.getValue((number,)) if self._directory.keys[number] else None
            found = self._read[number] = KeyPage() if stored is None else _page(bytes(stored[0]))
        return found

    def _describe(self) -> None:
        for number in self._changed:
            page = self._read[number]
            self._directory.keys[number] = len(page.keys)
            self._directory.sizes[number] = page.size
            self._directory.dues[number] = min(page.dues.values(), default=MAX_TIME)

    def _split(self) -> None:
        of = self._directory
        new = len(of.keys)
        old = new - (1 << (new.bit_length() - 1))
        of.keys.append(0)
        of.sizes.append(0)
        of.dues.append(MAX_TIME)
        page, added = self._page(old), KeyPage()
        for key in [key for key in page.keys if self._number_of(key) == new]:
            added.keys[key] = page.keys.pop(key)
            if key in page.dues:
                added.dues[key] = page.dues.pop(key)
        self._read[new] = added
        self._changed |= {old, new}


def page_of(key: bytes, pages: int) -> int:
    """The page of a key, among so many: a further page takes keys of one other page only."""
    span = 1 << (pages - 1).bit_length()
    place = crc32(key) & (span - 1)
    return place if place < pages else place - span // 2


def keys_of(content: bytes) -> Iterator[tuple[bytes, KeptKey]]:
    """The keys of a stored page."""
    for key, kept in _page(content).keys.items():
        yield key, _key(kept)
