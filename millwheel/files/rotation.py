"""Rotated files of a path: their names, their order and their fingerprints.

::

    app.log.3   app.log.2.gz   app.log.1   app.log        oldest to youngest, by modification time
    `---------- rotated siblings ---------'  `- the path

A file is recognized by its inode and, since inodes are reused, by its *fingerprint*: its first bytes,
and the last bytes before the position.
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
"""Size of each of the two parts of a fingerprint: the first and the last bytes read."""
LISTS = 100
"""Limit of directory scans until two consecutive ones agree."""
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
    """Detect the compression of a file by its first bytes; None if it is not compressed."""
    return next((name for magic, name in PACKED_MAGICS.items() if head.startswith(magic)), None)


def bases(name: str) -> list[str]:
    """Return the names that a name may be a rotated sibling of: ``app.log`` for ``app.log.2.gz``."""
    for packed in PACKED_NAMES:
        name = name.removesuffix(packed)
    found = []
    if match := _BEHIND.fullmatch(name):
        found.append(match["name"])
    if match := _BETWEEN.fullmatch(name):
        found.append(match["stem"] + match["suffix"])
    return found


class DirectoryEntry(NamedTuple):
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
        """Sort key, oldest first. At equal modification times app.log.2 is older than app.log.1."""
        number = re.search(r"[._-](\d{1,5})$", self.name.removesuffix(".gz"))
        return self.modified, -int(number[1]) if number else 0, self.name


def entry_at(path: str) -> DirectoryEntry | None:
    """Return the file at a path; None if there is none.

    Raises:
        InputError: it is not a regular file, or cannot be accessed.
    """
    try:
        found = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise InputError(f"{path}: cannot be accessed: {error.strerror}") from error
    if stat.S_ISDIR(found.st_mode):
        raise InputError(
            f"{path}: has become a directory. Move it away, or restart to follow the files in it"
        )
    if not stat.S_ISREG(found.st_mode):
        raise InputError(f"{path}: is not a regular file, so it could not be read again")
    return DirectoryEntry(path, found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)


def other_entries(path: str) -> list[DirectoryEntry]:
    """Return the other regular files in the directory of a path.

    A scan may miss a file that is renamed during it, so the directory is scanned until two
    consecutive scans return the same files.
    """
    found = _list(path)
    for _ in range(LISTS):
        before, found = found, _list(path)
        if [entry[:3] for entry in before] == [entry[:3] for entry in found]:
            break
    return found


def _list(path: str) -> list[DirectoryEntry]:
    directory, own = os.path.split(path)
    found = []
    try:
        with os.scandir(directory) as entries:
            for entry in entries:
                if entry.name != own and entry.is_file(follow_symlinks=False):
                    try:
                        seen = entry.stat(follow_symlinks=False)
                    except FileNotFoundError:
                        continue  # it has just been renamed or removed
                    found.append(
                        DirectoryEntry(
                            entry.path, seen.st_dev, seen.st_ino, seen.st_size, seen.st_mtime_ns
                        )
                    )
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise InputError(
            f"{directory}: cannot be listed: {error.strerror}. It is searched for rotated files of "
            f"{path}"
        ) from error
    return found


def siblings(path: str, entries: Iterable[DirectoryEntry]) -> list[DirectoryEntry]:
    """Return the rotated siblings of a path, oldest first; ``x.gz`` is left out if ``x`` exists."""
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


def may_hold(path: str, entry: DirectoryEntry) -> bool:
    """Whether a file may have been at `path`: its name has the same beginning."""
    own = PurePath(path)
    return entry.name.startswith((own.name, own.stem))


class Denied(InputError):
    """Opening a file is denied now; the permission may still be granted."""


class Rewritten(Exception):
    """The bytes before the position have changed: the file was truncated."""


class Growing:
    """The bytes of a plain file that other processes append to. It detects truncation."""

    packed = False

    def __init__(self, name: str, file: FileIO) -> None:
        self.name = name
        self._file = file
        self.taken = 0
        self.head = b""
        self._last = b""
        """The bytes before the position, which each read compares with the file."""

    def read(self, size: int) -> bytes:
        """Read the next 1 to `size` bytes; empty at the end.

        Raises:
            Rewritten: the file no longer holds the bytes that were read.
            InputError: reading failed.
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
        """Continue at a byte, given the file's first bytes and the last ones before it."""
        self.taken, self.head, self._last = byte, head, last

    def rewind(self) -> None:
        """Continue at the start of the file."""
        self.start_at(0, b"", b"")

    def between(self, start: int, stop: int) -> bytes:
        """Read earlier bytes again, without moving the position."""
        return os.pread(self._file.fileno(), stop - start, start)

    @property
    def last(self) -> bytes:
        """The last bytes before the position."""
        return self._last

    def state(self) -> os.stat_result:
        """Return the file's current status."""
        return os.fstat(self._file.fileno())

    def close(self) -> None:
        self._file.close()


class Unpacking:
    """The bytes of a rotated, gzipped file, which no longer changes."""

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
        """Continue at the start of the file."""
        self._bytes.seek(0)
        self.taken, self.head, self._last = 0, b"", b""

    @property
    def last(self) -> bytes:
        """The last bytes before the position."""
        return self._last

    def state(self) -> os.stat_result:
        """Return the file's current status."""
        return os.fstat(self._file.fileno())

    def close(self) -> None:
        self._bytes.close()


def open_log(entry: DirectoryEntry, *, rotated: bool) -> Growing | Unpacking | None:
    """Open a file that is or was at a path; None if it was removed or renamed since the scan.

    Raises:
        Denied: opening it is not permitted.
        InputError: reading failed, or its compression cannot be followed.
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
            f"{path}: is a rotated file with unread rows, compressed with {packed}, which cannot be "
            "read here. Unpack it in the same directory, under its name without the ending"
        )
    raise InputError(
        f"{path}: is compressed ({packed}), and a compressed file cannot be followed. Read it once "
        "(without follow=True), or follow the file before it is compressed; rotated files may be "
        "gzipped"
    )


class Fingerprint(NamedTuple):
    """Digests that identify a file by its bytes up to `byte`."""

    byte: int
    head: str
    tail: str


def fingerprint(byte: int, head: bytes, tail: bytes) -> Fingerprint:
    """Compute the fingerprint of a file, given the first and the last bytes before `byte`."""
    kept = min(byte, FINGERPRINT_BYTES)
    return Fingerprint(byte, _digest(head[:kept]), _digest(tail[-kept:] if kept else b""))


def _digest(data: bytes) -> str:
    return xxhash.xxh3_128_hexdigest(data)


def begins_with(entry: DirectoryEntry, known: Fingerprint) -> bool:
    """Whether a plain file begins with a known file's first bytes; False if that file was empty."""
    kept = min(known.byte, FINGERPRINT_BYTES)
    try:
        with FileIO(entry.path) as file:
            return kept > 0 and _digest(file.read(kept)) == known.head
    except OSError:
        return False


async def matches(log: Growing | Unpacking, known: Fingerprint) -> bool:
    """Whether a file matches a fingerprint; if so, its position is then at the fingerprint's byte."""
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
