"""The bytes of a file: plain, gzipped, or a member of a zip file."""

from __future__ import annotations

import os
import stat
import zipfile
import zlib
from contextlib import suppress
from io import FileIO
from typing import IO, Any, NoReturn, Protocol

from millwheel.core.suggestion import closest, with_suggestion
from millwheel.errors import InputError

CHUNK_BYTES = 256 << 10
"""Bytes per read of a file: 64 KiB to 1 MiB measured the same."""
GZIP_STEP_BYTES = 16 << 10
"""Compressed bytes unpacked at once; damage may lose up to this many good bytes before it."""

GZIP_MAGIC = b"\x1f\x8b"
ZIP_MAGICS = (b"PK\x03\x04", b"PK\x05\x06")
READ_AGAIN = (
    "read it from its start: remove the pipeline with `millwheel drop`, or give the pipeline a new "
    "name"
)
RESTORE = f"Restore the file as it was, or {READ_AGAIN}"


class Bytes(Protocol):
    """The unpacked bytes of a file. Every failure is an `InputError`."""

    def read(self, size: int) -> bytes:
        """Read the next 1 to `size` bytes; empty at the current end."""
        ...

    def seek(self, byte: int) -> None: ...

    def share(self) -> float:
        """The share of the file read so far, 0 to 1."""
        ...

    def left(self) -> int:
        """The number of bytes of the file not read yet; compressed bytes if it is compressed."""
        ...

    def close(self) -> None: ...


def _skip(source: Bytes, count: int) -> None:
    while count and (piece := source.read(min(CHUNK_BYTES, count))):
        count -= len(piece)


class _Plain:
    def __init__(self, name: str, file: FileIO) -> None:
        self._name = name
        self._file = file
        self.taken = 0

    def read(self, size: int) -> bytes:
        try:
            data = self._file.read(size)
            if not data and os.fstat(self._file.fileno()).st_size < self.taken:
                raise InputError(
                    f"{self._name}: was truncated below the {self.taken:,} bytes that were already "
                    f"read. {RESTORE}"
                )
        except OSError as error:
            raise InputError(
                f"{self._name}: cannot be read beyond byte {self.taken:,}: {error.strerror}"
            ) from error
        self.taken += len(data)
        return data

    def seek(self, byte: int) -> None:
        self._file.seek(byte)
        self.taken = byte

    def share(self) -> float:
        size = os.fstat(self._file.fileno()).st_size
        return self.taken / size if size else 1.0

    def left(self) -> int:
        return max(0, os.fstat(self._file.fileno()).st_size - self.taken)

    def close(self) -> None:
        self._file.close()


class Gzip:
    """A sequence of gzip members, as `cat a.gz b.gz` creates.

    `gzip.GzipFile` loses up to a buffer of good rows before damage, and does not report how many
    compressed bytes it has used.
    """

    def __init__(self, name: str, file: FileIO) -> None:
        self._name = name
        self._file = _Plain(name, file)
        self._packed = b""
        self._member: Any = None

    def read(self, size: int) -> bytes:
        while True:
            if not self._packed:
                self._packed = self._file.read(GZIP_STEP_BYTES)
                if not self._packed:
                    if self._member is None:
                        return b""
                    self._fail("it ends early; is it still being written, or was it truncated?")
            if self._member is None:
                self._packed = self._packed.lstrip(b"\0")  # padding between members is allowed
                if not self._packed:
                    continue
                self._member = zlib.decompressobj(16 + zlib.MAX_WBITS)
            try:
                data: bytes = self._member.decompress(self._packed, size)
            except zlib.error as error:
                self._fail(str(error))
            if self._member.eof:
                self._packed, self._member = self._member.unused_data, None
            else:
                self._packed = self._member.unconsumed_tail
            if data:
                return data

    def _fail(self, what: str) -> NoReturn:
        raise InputError(
            f"{self._name}: the gzip file is damaged near its byte {self._file.taken:,}: {what}"
        )

    def seek(self, byte: int) -> None:
        self._file.seek(0)
        self._packed, self._member = b"", None
        _skip(self, byte)

    def share(self) -> float:
        taken = self._file.taken
        return self._file.share() * ((taken - len(self._packed)) / taken if taken else 1.0)

    def left(self) -> int:
        return self._file.left() + len(self._packed)

    def close(self) -> None:
        self._file.close()


class _ZipMember:
    def __init__(self, name: str, file: FileIO, member: str | None) -> None:
        try:
            self._zip = zipfile.ZipFile(file)
        except (zipfile.BadZipFile, OSError, ValueError) as error:
            raise InputError(f"{name}: the zip file is damaged: {error}") from error
        self._file = file
        self._info = self._choose(name, member)
        self.name = f"{name}!{self._info.filename}"
        self._open()

    def _choose(self, name: str, member: str | None) -> zipfile.ZipInfo:
        # macOS puts a __MACOSX/._name beside each member
        members = [
            info
            for info in self._zip.infolist()
            if not info.is_dir() and not info.filename.startswith("__MACOSX/")
        ]
        if member is None and len(members) == 1:
            return members[0]
        if member is not None:
            with suppress(KeyError):
                return self._zip.getinfo(member)
        shown = ", ".join(repr(info.filename) for info in members[:20])
        if len(members) > 20:
            shown += f" and {len(members) - 20} more"
        if not members:
            raise InputError(f"{name}: the zip file holds no files")
        if member is None:
            raise InputError(f"{name}: choose one of its members with member=...: {shown}")
        message = f"{name}: has no member {member!r}; it has {shown}"
        known = [info.filename for info in members]
        raise InputError(with_suggestion(message, member, known))

    def _open(self) -> None:
        self._taken = 0
        try:
            self._data: IO[bytes] = self._zip.open(self._info)
        except (zipfile.BadZipFile, NotImplementedError, RuntimeError, OSError) as error:
            # RuntimeError: it is encrypted
            raise InputError(f"{self.name}: cannot be unpacked: {error}") from error

    def read(self, size: int) -> bytes:
        try:
            data = self._data.read(size)
        except (zipfile.BadZipFile, zlib.error, EOFError, OSError, ValueError) as error:
            # the error of a truncated zip file has no text
            raise InputError(
                f"{self.name}: damaged after byte {self._taken:,} of the unpacked data: "
                f"{error or 'it ends early'}"
            ) from error
        self._taken += len(data)
        return data

    def seek(self, byte: int) -> None:
        # reopened, because ZipExtFile.seek would disable the CRC check
        self._data.close()
        self._open()
        _skip(self, byte)

    def share(self) -> float:
        return self._taken / self._info.file_size if self._info.file_size else 1.0

    def left(self) -> int:
        return round(self._info.compress_size * (1 - self.share()))

    def close(self) -> None:
        self._data.close()
        self._zip.close()
        self._file.close()


def open_bytes(given: str, absolute: str, member: str | None) -> tuple[str, Bytes]:
    """Open a file; its first bytes show its compression.

    Returns:
        The file's name for messages, and its bytes.
    """
    try:
        mode = os.stat(absolute).st_mode
        if stat.S_ISDIR(mode):
            raise InputError(f"{given}: is a directory; name the files in it")
        if not stat.S_ISREG(mode):
            raise InputError(f"{given}: is not a regular file, so it could not be read again")
        file = FileIO(absolute)
    except FileNotFoundError:
        where = "" if given == absolute else f" ({absolute})"
        advice = _neighbour(given, absolute)
        raise InputError(f"{given}: there is no such file{where}{advice}") from None
    except OSError as error:
        raise InputError(f"{given}: cannot be opened: {error.strerror}") from error
    try:
        return _unpack(given, file, member)
    except OSError as error:
        file.close()
        raise InputError(f"{given}: cannot be read: {error.strerror}") from error
    except InputError:
        file.close()
        raise


def _neighbour(given: str, absolute: str) -> str:
    """A question with the file there whose name is most like that of a file that is missing."""
    beginning, name = os.path.split(given)
    try:
        found = closest(name, os.listdir(os.path.dirname(absolute)))
    except OSError:
        return ""
    return "" if found is None else f". Did you mean {os.path.join(beginning, found)}?"


def _unpack(given: str, file: FileIO, member: str | None) -> tuple[str, Bytes]:
    magic = file.read(4)
    file.seek(0)
    if magic in ZIP_MAGICS:
        unzipped = _ZipMember(given, file, member)
        return unzipped.name, unzipped
    if member is not None:
        raise InputError(f"{given}: is not a zip file, so it has no member {member!r}")
    return given, (Gzip if magic.startswith(GZIP_MAGIC) else _Plain)(given, file)
