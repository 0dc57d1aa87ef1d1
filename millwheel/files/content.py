"""The content of followed files: their bytes as they grow, and fingerprints that recognize them.

A *fingerprint* is a number of bytes with digests of the first and the last of them; of a gzipped
file, of the unpacked bytes.
"""

from __future__ import annotations

import asyncio
import os
import resource
from contextlib import suppress
from io import FileIO
from typing import NamedTuple, TypeAlias

import xxhash

from millwheel.errors import InputError
from millwheel.files.directory import DirectoryEntry, entry_of_inode
from millwheel.files.packed import CHUNK_BYTES, GZIP_MAGIC, ZIP_MAGICS, Bytes, Gzip

FINGERPRINT_BYTES = 4096
MOST_OPEN = 1_000
"""Growing files that a process keeps open, or a quarter of the files that it may open."""
PACKED_MAGICS = {
    GZIP_MAGIC: "gzip",
    **dict.fromkeys(ZIP_MAGICS, "zip"),
    b"\xfd7zXZ": "xz",
    b"BZh": "bzip2",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"\x04\x22\x4d\x18": "lz4",
}


def packing(head: bytes) -> str | None:
    return next((name for magic, name in PACKED_MAGICS.items() if head.startswith(magic)), None)


class Fingerprint(NamedTuple):
    """Digests that identify a file by its bytes up to `byte`."""

    byte: int
    head: str
    tail: str


def fingerprint(byte: int, head: bytes, tail: bytes) -> Fingerprint:
    """Compute the fingerprint of a file, given the first and the last bytes before `byte`."""
    kept = min(byte, FINGERPRINT_BYTES)
    return Fingerprint(byte, digest(head[:kept]), digest(tail[-kept:] if kept else b""))


def digest(data: bytes) -> str:
    return xxhash.xxh3_64_hexdigest(data)


class Denied(InputError):
    """Opening a file is denied now; the permission may still be granted."""


class Rewritten(Exception):
    """The bytes before the position have changed: the file was truncated."""


# -- files that are read


class _OpenFiles:
    """The growing files that are open, the least recently used first; the others rest."""

    def __init__(self) -> None:
        self._files: dict[Growing, None] = {}
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        unlimited = soft == resource.RLIM_INFINITY
        self.most = MOST_OPEN if unlimited else max(1, min(MOST_OPEN, soft // 4))

    def use(self, file: Growing) -> None:
        self._files.pop(file, None)
        self._files[file] = None
        while len(self._files) > self.most:
            next(iter(self._files)).rest()

    def forget(self, file: Growing) -> None:
        self._files.pop(file, None)


class Growing:
    """The bytes of a plain file that other processes append to. It detects truncation.

    `rest` closes the file until its next use, when it is found wherever in its directory it is.
    """

    packed = False

    def __init__(self, name: str, file: FileIO) -> None:
        self.name = name
        self._file: FileIO | None = file
        self.is_gone = False
        """Whether it was removed while it rested: bytes that were not read are lost."""
        open_files.use(self)
        self._state = os.fstat(file.fileno())
        self.taken = 0
        self.head = b""
        self.last = b""
        """The last bytes before the position, which each read compares with the file."""

    def read(self, size: int) -> bytes:
        """Read the next 1 to `size` bytes; empty at the end.

        Raises:
            Rewritten: the file no longer holds the bytes that were read.
            InputError: reading failed.
        """
        last = self.last
        data = self._pread(len(last) + size, self.taken - len(last))
        if data is None:
            return b""
        if not data.startswith(last):
            raise Rewritten
        data = data[len(last) :]
        if data:
            if self.taken < FINGERPRINT_BYTES:
                self.head += data[: FINGERPRINT_BYTES - self.taken]
            self.taken += len(data)
            self.last = (last + data)[-FINGERPRINT_BYTES:]
        return data

    def start_at(self, byte: int, head: bytes, last: bytes) -> None:
        self.taken, self.head, self.last = byte, head, last

    def rewind(self) -> None:
        self.start_at(0, b"", b"")

    def between(self, start: int, stop: int) -> bytes:
        return self._pread(stop - start, start) or b""

    def state(self) -> os.stat_result:
        """The file's current status; without a link if it was removed."""
        if self._file is not None:
            self._state = os.fstat(self._file.fileno())
        elif (entry := self._find()) is not None:
            with suppress(OSError):
                self._state = os.stat(entry.path)
        else:
            self.is_gone = True
            self._state = os.stat_result((*self._state[:3], 0, *self._state[4:]))
        return self._state

    def rest(self) -> None:
        self.state()
        self.close()
        self._file = None

    def close(self) -> None:
        open_files.forget(self)
        if self._file is not None:
            self._file.close()

    def _pread(self, size: int, start: int) -> bytes | None:
        """Read bytes; None: the file rests, and was removed since."""
        try:
            if self._file is None:
                entry = self._find()
                if entry is None:
                    return None
                self._file = FileIO(entry.path)
            open_files.use(self)
            return os.pread(self._file.fileno(), size, start)
        except OSError as error:
            raise InputError(
                f"{self.name}: cannot be read beyond byte {self.taken:,}: {error.strerror}"
            ) from error

    def _find(self) -> DirectoryEntry | None:
        return entry_of_inode(self.name, self._state.st_dev, self._state.st_ino)


open_files = _OpenFiles()


class Unpacking:
    """The bytes of a rotated, gzipped file, which no longer changes."""

    packed = True

    def __init__(self, name: str, file: FileIO) -> None:
        self.name = name
        self._file = file
        self._bytes: Bytes = Gzip(name, file)
        self.taken = 0
        self.head = self.last = b""

    def read(self, size: int) -> bytes:
        data = self._bytes.read(size)
        if self.taken < FINGERPRINT_BYTES:
            self.head += data[: FINGERPRINT_BYTES - self.taken]
        self.taken += len(data)
        self.last = (self.last + data)[-FINGERPRINT_BYTES:]
        return data

    def rewind(self) -> None:
        self._bytes.seek(0)
        self.taken, self.head, self.last = 0, b"", b""

    def state(self) -> os.stat_result:
        return os.fstat(self._file.fileno())

    def close(self) -> None:
        self._bytes.close()


Log: TypeAlias = Growing | Unpacking


def open_log(entry: DirectoryEntry, *, rotated: bool) -> Log | None:
    """Open a file that is or was at a path; None if it was removed or renamed since the scan.

    Raises:
        Denied: opening it is not permitted.
        InputError: reading failed, or its compression cannot be followed.
    """
    path = entry.path
    file = _open(entry)
    if file is None:
        return None
    try:
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
            f"{path}: is a rotated file with unread rows, compressed with {packed}, which cannot "
            "be read here. Unpack it in the same directory, under its name without the ending"
        )
    raise InputError(
        f"{path}: is compressed ({packed}), and a compressed file cannot be followed. Read it once "
        "(without follow=True), or follow the file before it is compressed; rotated files may be "
        "gzipped"
    )


def _open(entry: DirectoryEntry) -> FileIO | None:
    try:
        file = FileIO(entry.path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise Denied(f"{entry.path}: cannot be opened: {error.strerror}") from error
    state = os.fstat(file.fileno())
    if (state.st_dev, state.st_ino) != entry.inode:
        file.close()
        return None
    return file


async def matches(log: Log, known: Fingerprint) -> bool:
    """Whether a file begins with the bytes of a fingerprint; if so, its position is behind them."""
    kept = min(known.byte, FINGERPRINT_BYTES)
    head = await _read(log, kept)
    if len(head) < kept or digest(head) != known.head:
        return False
    if isinstance(log, Growing):
        tail = log.between(known.byte - kept, known.byte)
        log.start_at(known.byte, head, tail)
    else:
        await _read(log, known.byte - log.taken, keep=False)
        tail = log.last[-kept:] if kept else b""
    return log.taken == known.byte and len(tail) == kept and digest(tail) == known.tail


async def _read(log: Log, count: int, *, keep: bool = True) -> bytes:
    data = b""
    while count and (piece := log.read(min(CHUNK_BYTES, count))):
        count -= len(piece)
        if keep:
            data += piece
        await asyncio.sleep(0)
    return data


# -- files that are looked at


class Glimpse:
    """The content of a file, as far as it can be seen without reading all of it."""

    def __init__(self, entry: DirectoryEntry) -> None:
        """
        Raises:
            OSError: the file cannot be read.
            InputError: it cannot be opened.
        """
        self._entry = entry
        self.head = b""
        """Its first bytes, unpacked; empty if it is compressed otherwise than with gzip."""
        self.size = entry.size
        self.packed: str | None = None
        file = _open(entry)
        self.is_gone = file is None
        if file is None:
            return
        with file:
            raw = os.pread(file.fileno(), FINGERPRINT_BYTES, 0)
            self.packed = packing(raw)
            if self.packed is None:
                self.head = raw
            elif self.packed == "gzip":
                self._unpack(file)

    def _unpack(self, file: FileIO) -> None:
        # the last four bytes of a gzip member are its unpacked size
        self.size = int.from_bytes(
            os.pread(file.fileno(), 4, max(0, self._entry.size - 4)), "little"
        )
        unpacked = Gzip(self._entry.path, file)
        with suppress(InputError):  # it is damaged, or still being written
            while len(self.head) < FINGERPRINT_BYTES:
                piece = unpacked.read(FINGERPRINT_BYTES - len(self.head))
                if not piece:
                    self.size = len(self.head)
                    break
                self.head += piece

    @property
    def is_opaque(self) -> bool:
        return self.packed not in (None, "gzip")

    def begins(self, known: Fingerprint) -> bool:
        kept = min(known.byte, FINGERPRINT_BYTES)
        if len(self.head) < kept or digest(self.head[:kept]) != known.head:
            return False
        if known.byte <= FINGERPRINT_BYTES:
            return True
        if self.packed is None:
            return self.size >= known.byte and self._tail(known.byte) == known.tail
        return self.size == known.byte or self._unpacks_to(known)

    def is_copy(self, known: Fingerprint) -> bool:
        """Whether it is a copy of a file with this fingerprint: of a short one, with no further
        bytes, since other files may begin with the same few."""
        is_whole = known.byte >= FINGERPRINT_BYTES or self.size == known.byte
        return known.byte > 0 and is_whole and self.begins(known)

    def beginning(self) -> Fingerprint:
        return fingerprint(len(self.head), self.head, self.head)

    def fingerprint(self) -> Fingerprint:
        """The fingerprint of all of it; if it is compressed, only of its head."""
        if self.packed is not None or self.size <= FINGERPRINT_BYTES:
            return self.beginning()
        return Fingerprint(self.size, digest(self.head), self._tail(self.size))

    def _tail(self, stop: int) -> str:
        with suppress(OSError, InputError):
            if (file := _open(self._entry)) is not None:
                with file:
                    start = stop - FINGERPRINT_BYTES
                    return digest(os.pread(file.fileno(), FINGERPRINT_BYTES, start))
        return ""

    def _unpacks_to(self, known: Fingerprint) -> bool:
        """Unpack it, for a late line or several members make its size another one."""
        with suppress(OSError, InputError):
            if (file := _open(self._entry)) is not None:
                with file:
                    log = Unpacking(self._entry.path, file)
                    while (left := known.byte - log.taken) and log.read(min(CHUNK_BYTES, left)):
                        pass
                    return log.taken == known.byte and digest(log.last) == known.tail
        return True  # it is still being written: it may become the file
