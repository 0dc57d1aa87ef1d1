"""Which files a path has been: names that rotation gives, fingerprints, and their order.

::

    app.log.3   app.log.2.gz   app.log.1   app.log        oldest to youngest, by modification time
    `---------- rotated siblings ---------'  `- the path

A file is known again by its inode and, as inodes are given to other files later, by its *fingerprint*:
its first bytes, and the last ones before the place that was read up to.
"""

from __future__ import annotations

import asyncio
import os
import re
import stat
from collections.abc import Iterable
from io import FileIO
from pathlib import PurePath
from typing import NamedTuple

import xxhash

from millwheel.errors import InputError
from millwheel.files.packed import CHUNK_BYTES, GZIP_MAGIC, ZIP_MAGICS, Bytes, Gzip

FINGERPRINT_BYTES = 4096
"""At each end of what was read, that a file is known by."""
LISTS = 100
"""Of a directory at most, until nothing is renamed in between."""
PACKED_MAGICS = {
    GZIP_MAGIC: "gzip",
    **dict.fromkeys(ZIP_MAGICS, "zip"),
    b"\xfd7zXZ": "xz",
    b"BZh": "bzip2",
    b"\x28\xb5\x2f\xfd": "zstd",
}
PACKED_NAMES = (".gz", ".zip", ".xz", ".bz2", ".zst", ".lz4")

_STAMP = r"\d[\dT:._-]*"
_BEHIND = re.compile(rf"(?P<name>.+?)[._-](?P<stamp>{_STAMP})")
_BETWEEN = re.compile(rf"(?P<stem>.+?)[._-](?P<stamp>{_STAMP})(?P<suffix>\.[^.]*[^.\d][^.]*)")


def packing(head: bytes) -> str | None:
    """How a file is packed, by its first bytes; None if it is not."""
    return next((name for magic, name in PACKED_MAGICS.items() if head.startswith(magic)), None)


def bases(name: str) -> list[str]:
    """The names of which this one may be a rotated sibling: ``app.log`` of ``app.log.2.gz``."""
    for packed in PACKED_NAMES:
        name = name.removesuffix(packed)
    found = []
    if match := _BEHIND.fullmatch(name):
        found.append(match["name"])
    if match := _BETWEEN.fullmatch(name):
        found.append(match["stem"] + match["suffix"])
    return found


class Entry(NamedTuple):
    """A regular file in a directory."""

    path: str
    device: int
    inode: int
    size: int
    modified: int
    """Nanoseconds since 1970."""

    @property
    def name(self) -> str:
        return os.path.basename(self.path)

    @property
    def age(self) -> tuple[int, int, str]:
        """Sorts from old to young. Of app.log.2 and app.log.1 of one instant the first is older."""
        number = re.search(r"[._-](\d{1,5})$", self.name.removesuffix(".gz"))
        return self.modified, -int(number[1]) if number else 0, self.name


def look(path: str) -> Entry | None:
    """The file at a path; None if there is none.

    Raises:
        InputError: it is no regular file, or may not be looked at.
    """
    try:
        found = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise InputError(f"{path}: cannot be looked at: {error.strerror}") from error
    if stat.S_ISDIR(found.st_mode):
        raise InputError(
            f"{path}: has become a directory. Move it away, or start anew to follow the files in it"
        )
    if not stat.S_ISREG(found.st_mode):
        raise InputError(f"{path}: is no regular file, so it could not be read again")
    return Entry(path, found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)


def beside(path: str) -> list[Entry]:
    """The other regular files in the directory of a path.

    A file that is renamed while the directory is listed may be missed. So it is listed until two
    lists name the same files.
    """
    found = _list(path)
    for _ in range(LISTS):
        before, found = found, _list(path)
        if [entry[:3] for entry in before] == [entry[:3] for entry in found]:
            break
    return found


def _list(path: str) -> list[Entry]:
    directory, own = os.path.split(path)
    found = []
    try:
        with os.scandir(directory) as entries:
            for entry in entries:
                if entry.name != own and entry.is_file(follow_symlinks=False):
                    try:
                        seen = entry.stat(follow_symlinks=False)
                    except FileNotFoundError:
                        continue  # it was renamed or removed just now
                    found.append(
                        Entry(entry.path, seen.st_dev, seen.st_ino, seen.st_size, seen.st_mtime_ns)
                    )
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise InputError(
            f"{directory}: cannot be listed: {error.strerror}. Rotated files of {path} are looked "
            "for there"
        ) from error
    return found


def siblings(path: str, entries: Iterable[Entry]) -> list[Entry]:
    """Rotated siblings of a path, from old to young. Where ``x.gz`` is made of ``x``, only ``x``."""
    own = os.path.basename(path)
    found = {entry.name: entry for entry in entries if own in bases(entry.name)}
    return sorted(
        (
            e
            for name, e in found.items()
            if PurePath(name).stem not in found or not _is_packed(name)
        ),
        key=lambda entry: entry.age,
    )


def _is_packed(name: str) -> bool:
    return name.endswith(PACKED_NAMES)


def may_be(path: str, entry: Entry) -> bool:
    """Whether a file may be what was once at `path`, by its name: it begins likewise."""
    own = PurePath(path)
    return entry.name.startswith((own.name, own.stem))


class Denied(InputError):
    """A file may not be opened now; it may get its rights yet."""


class Rewritten(Exception):
    """The bytes before the place are not those that were read: the file was truncated."""


class Growing:
    """The bytes of a plain file to which others append. It sees if the file was truncated."""

    packed = False

    def __init__(self, name: str, file: FileIO) -> None:
        self.name = name
        self._file = file
        self.taken = 0
        self.head = b""
        self._last = b""
        """What came before, to be read again with what comes."""

    def read(self, size: int) -> bytes:
        """1 to `size` further bytes; none at the end.

        Raises:
            Rewritten: the file does not hold any more what was read of it.
            InputError: it cannot be read.
        """
        last = self._last
        try:
            data = os.pread(self._file.fileno(), len(last) + size, self.taken - len(last))
        except OSError as error:
            raise InputError(
                f"{self.name}: cannot be read beyond byte {self.taken:,}: {error.strerror}"
            ) from error
        if not data.startswith(last):
            raise Rewritten
        data = data[len(last) :]
        if data:
            if self.taken < FINGERPRINT_BYTES:
                self.head += data[: FINGERPRINT_BYTES - self.taken]
            self.taken += len(data)
            self._last = (last + data)[-FINGERPRINT_BYTES:]
        return data

    def start_at(self, byte: int, head: bytes, last: bytes) -> None:
        """Read on from here, behind these bytes."""
        self.taken, self.head, self._last = byte, head, last

    def rewind(self) -> None:
        """Read from the begin."""
        self.start_at(0, b"", b"")

    def between(self, start: int, stop: int) -> bytes:
        """Bytes that were read before."""
        return os.pread(self._file.fileno(), stop - start, start)

    @property
    def last(self) -> bytes:
        """The last bytes that were read."""
        return self._last

    def state(self) -> os.stat_result:
        """What the file system says of it."""
        return os.fstat(self._file.fileno())

    def close(self) -> None:
        self._file.close()


class Unpacking:
    """The bytes of a rotated file that was gzipped; it does not change any more."""

    packed = True

    def __init__(self, name: str, file: FileIO) -> None:
        self.name = name
        self._file = file
        self._bytes: Bytes = Gzip(name, file)
        self.taken = 0
        self.head = b""
        self._last = b""

    def read(self, size: int) -> bytes:
        data = self._bytes.read(size)
        if self.taken < FINGERPRINT_BYTES:
            self.head += data[: FINGERPRINT_BYTES - self.taken]
        self.taken += len(data)
        self._last = (self._last + data)[-FINGERPRINT_BYTES:]
        return data

    def rewind(self) -> None:
        """Read from the begin."""
        self._bytes.seek(0)
        self.taken, self.head, self._last = 0, b"", b""

    @property
    def last(self) -> bytes:
        """The last bytes that were read."""
        return self._last

    def state(self) -> os.stat_result:
        """What the file system says of it."""
        return os.fstat(self._file.fileno())

    def close(self) -> None:
        self._bytes.close()


def open_log(entry: Entry, *, rotated: bool) -> Growing | Unpacking | None:
    """Open one of the files that a path has been; None if it is gone, or renamed since it was seen.

    Raises:
        InputError: it may not be read, or is packed in a way in which it cannot be followed.
    """
    path = entry.path
    try:
        file = FileIO(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise Denied(f"{path}: cannot be opened: {error.strerror}") from error
    try:
        state = os.fstat(file.fileno())
        if (state.st_dev, state.st_ino) != (entry.device, entry.inode):
            file.close()
            return None
        packed = packing(os.pread(file.fileno(), 8, 0))
        if packed is None:
            return Growing(path, file)
        if rotated and packed == "gzip":
            return Unpacking(path, file)
        file.close()
    except OSError as error:
        file.close()
        raise InputError(f"{path}: cannot be read: {error.strerror}") from error
    if rotated:
        raise InputError(
            f"{path}: is a rotated file that holds rows which were not read yet, and is packed with "
            f"{packed}, which cannot be read here. Unpack it beside, under its name without the ending"
        )
    raise InputError(
        f"{path}: is packed ({packed}), and a packed file cannot be followed. Read it once "
        "(without follow=True), or follow the file before it is packed; rotated files may be gzipped"
    )


class Fingerprint(NamedTuple):
    """What a file is known by, up to a byte."""

    byte: int
    head: str
    tail: str


def fingerprint(byte: int, head: bytes, tail: bytes) -> Fingerprint:
    """Of a file of which `head` and `tail` are the first and last bytes before `byte`."""
    kept = min(byte, FINGERPRINT_BYTES)
    return Fingerprint(byte, _digest(head[:kept]), _digest(tail[-kept:] if kept else b""))


def _digest(data: bytes) -> str:
    return xxhash.xxh3_128_hexdigest(data)


def begins_with(entry: Entry, known: Fingerprint) -> bool:
    """Whether a plain file begins with the first bytes of one that is known; False if it was empty."""
    kept = min(known.byte, FINGERPRINT_BYTES)
    try:
        with FileIO(entry.path) as file:
            return kept > 0 and _digest(file.read(kept)) == known.head
    except OSError:
        return False


async def matches(log: Growing | Unpacking, known: Fingerprint) -> bool:
    """Whether a file begins as the one that is known; it is then read up to that byte."""
    kept = min(known.byte, FINGERPRINT_BYTES)
    head = await _read(log, kept)
    if len(head) < kept or _digest(head) != known.head:
        return False
    if isinstance(log, Growing):
        tail = log.between(known.byte - kept, known.byte)
        log.start_at(known.byte, head, tail)
    else:
        await _read(log, known.byte - log.taken, keep=False)
        tail = log.last[-kept:] if kept else b""
    return log.taken == known.byte and len(tail) == kept and _digest(tail) == known.tail


async def _read(log: Growing | Unpacking, count: int, *, keep: bool = True) -> bytes:
    data = b""
    while count and (piece := log.read(min(CHUNK_BYTES, count))):
        count -= len(piece)
        if keep:
            data += piece
        await asyncio.sleep(0)
    return data
