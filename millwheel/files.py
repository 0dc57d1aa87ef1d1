"""Files as sources: JSON Lines and CSV; plain, gzipped, or a member of a zip file.

A file is one partition and is *replayable*: the same row has the same offset in every run,
so rows are not stored, and only a position is (design: injectors). What makes that safe:

* **A row's number depends on the file's bytes alone**, never on how they were read: only
  ``\\n`` ends a line, blank lines are no rows, and a bad row counts like a good one.
* **A position proves the past.** It holds a BLAKE2b digest of every byte handed out so
  far, acknowledged or not, since a row that is read again must be the row that it was. On
  `open` these bytes are hashed again. A file may grow; what was read of it may not change.
* **A position is cheap.** A reader remembers *marks*, places between two rows where reading
  can start, one per `read` and per `MARK_ROWS` rows, thinned out when acknowledgements lag.
  Reading resumes at the last mark before the row wanted and skips the rest.

::

    0            mark       acknowledged      read               end of file
    |--------------|--------------|-------------|.....................|
    '------- covered by the digest -------------' may still change

**The end of the file.** A last line without a newline is a row. If the file then goes on
with a newline, nothing happened; if it goes on with anything else, the row was read half
written, and that is an error. A CSV quote that is still open at the end is an error and not
a row: the rows behind it cannot be told from its text, so none is made up. What was read
before an error stays valid; a file repaired *behind* that place is read on from there.

**Damage inside a compressed file** is found late: the checksum stands at the end, and what a
flipped bit unpacks to may look like rows. Such rows are in the digest, so the pipeline stops,
and the sound file is then refused as another one: start over. (A file that was merely cut
off gives true rows up to the cut.)
"""

from __future__ import annotations

import csv
import hashlib
import os
import re
import stat
import zipfile
import zlib
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from io import FileIO
from itertools import count
from operator import itemgetter
from types import GenericAlias
from typing import IO, Any, Literal, NamedTuple, NoReturn, Protocol, TypeAlias

import msgspec

from millwheel.errors import InputError, UsageError
from millwheel.sources import Partition, Row

AnyPath: TypeAlias = "str | os.PathLike[str]"

MAX_ROW_BYTES = 8 << 20
"""The default limit of one row's bytes; a longer row is a bad row and is never kept whole."""
CHUNK_BYTES = 256 << 10
"""Bytes asked of a file at once. More gains nothing: 64 KiB to 1 MiB measured alike."""
MARK_ROWS = 1_000
"""Rows between two marks at most (while there are fewer than `MAX_MARKS`)."""
MAX_MARKS = 4_096
"""Marks kept per reader; beyond it every second one is dropped."""
KEEP_BYTES = 16 << 20
"""Bytes between mark and digest kept while a prefix is checked, so as not to unpack twice."""
TEXT_CHARACTERS = 2_000
"""Characters kept of a bad row."""
GZIP_STEP_BYTES = 16 << 10
"""Compressed bytes unpacked at once: what one damaged place can hide before it."""

BOM = b"\xef\xbb\xbf"
UTF_16_BOMS = (b"\xff\xfe", b"\xfe\xff")
GZIP_MAGIC = b"\x1f\x8b"
ZIP_MAGICS = (b"PK\x03\x04", b"PK\x05\x06")
READ_ANEW = (
    "read it anew: remove the pipeline with `millwheel drop`, or give the pipeline a new name"
)
RESTORE = f"Restore the file as it was, or {READ_ANEW}"


# ------------------------------------------------------------------ bytes, however packed


class _Bytes(Protocol):
    """The unpacked bytes of a file. Every failure is an `InputError`."""

    def read(self, size: int) -> bytes:
        """1 to `size` further bytes; none at the end of what is there now."""
        ...

    def seek(self, byte: int) -> None:
        """Read on from unpacked byte `byte`."""
        ...

    def share(self) -> float:
        """The share of the file taken in so far, 0 to 1."""
        ...

    def close(self) -> None: ...


def _skip(source: _Bytes, count: int) -> None:
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
                    f"{self._name}: was cut to less than the {self.taken:,} bytes that were "
                    f"already read of it. {RESTORE}"
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

    def close(self) -> None:
        self._file.close()


class _Gzip:
    """One gzip member after another, as `cat a.gz b.gz` makes them.

    Not `gzip.GzipFile`: that loses up to a buffer of good rows before a damaged place, and
    does not tell how many compressed bytes it used.
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
                    self._fail("it ends early; is it still being written, or was it cut off?")
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
        raise InputError(f"{name}: has no member {member!r}; it has {shown}")

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
            # the error of a zip file that ends early has no text
            raise InputError(
                f"{self.name}: damaged behind byte {self._taken:,} of the unpacked data: "
                f"{error or 'it ends early'}"
            ) from error
        self._taken += len(data)
        return data

    def seek(self, byte: int) -> None:
        # opened anew: ZipExtFile.seek would switch the check of the CRC off
        self._data.close()
        self._open()
        _skip(self, byte)

    def share(self) -> float:
        return self._taken / self._info.file_size if self._info.file_size else 1.0

    def close(self) -> None:
        self._data.close()
        self._zip.close()
        self._file.close()


def _open_bytes(given: str, absolute: str, member: str | None) -> tuple[str, _Bytes]:
    """The file's name for messages and its bytes; how it is packed is seen by its first bytes."""
    try:
        mode = os.stat(absolute).st_mode
        if stat.S_ISDIR(mode):
            raise InputError(f"{given}: is a directory; name the files in it")
        if not stat.S_ISREG(mode):
            raise InputError(f"{given}: is no regular file, so it could not be read again")
        file = FileIO(absolute)
    except FileNotFoundError:
        where = "" if given == absolute else f" ({absolute})"
        raise InputError(f"{given}: there is no such file{where}") from None
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


def _unpack(given: str, file: FileIO, member: str | None) -> tuple[str, _Bytes]:
    magic = file.read(4)
    file.seek(0)
    if magic in ZIP_MAGICS:
        unzipped = _ZipMember(given, file, member)
        return unzipped.name, unzipped
    if member is not None:
        raise InputError(f"{given}: is no zip file, so it has no member {member!r}")
    return given, (_Gzip if magic.startswith(GZIP_MAGIC) else _Plain)(given, file)


# ------------------------------------------------------------------------------- readers


class _Mark(NamedTuple):
    """A place between two rows: the next row's number, its first byte, its line (from 1)."""

    row: int
    byte: int
    line: int


class _Position(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is stored: see the picture at the top."""

    format: str
    """How the file was cut into rows; other rules would number them differently."""
    row: int
    mark_row: int
    mark_byte: int
    mark_line: int
    read_byte: int
    read_line: int
    digest: str
    """BLAKE2b-128 of the first `read_byte` unpacked bytes."""
    unterminated: bool
    """The bytes read end in a line without a newline."""

    def check(self) -> None:
        if not (0 <= self.mark_byte <= self.read_byte and 0 <= self.mark_row <= self.row):
            raise ValueError("its numbers do not fit together")


class _FileReader(ABC):
    """A file cut into raw rows; what a row is and means is up to the two kinds below.

    `_buffer` holds the file's bytes from `_base` on. All before `_byte` was handed out;
    `_raws[_next:]` are the whole rows that come after it, without their newlines.
    """

    format = ""

    def __init__(self, name: str, source: _Bytes, max_row_bytes: int) -> None:
        self._name = name
        self._source = source
        self._max_row_bytes = max_row_bytes
        self._buffer = b""
        self._base = 0
        self._raws: list[bytes] = []
        self._next = 0
        self._rows = 0
        self._byte = 0
        self._line = 1
        self._hash = hashlib.blake2b(digest_size=16)
        self._hashed = 0
        self._unterminated = False
        self._at_end = False
        self._failure: InputError | None = None
        self._read: _Position | None = None
        """The position last made or opened: its digest reaches furthest."""
        self._marks = deque([_Mark(0, 0, 1)])
        self._spacing = 1

    # -- the Reader protocol

    def read(self, limit: int) -> list[Row]:
        """Up to `limit` further rows; an empty list at the end of what is there now.

        Raises:
            InputError: the file is damaged here, was cut, or grew within its last row.
                Rows before that place are returned first; from then on each call raises.
        """
        if self._failure is not None:
            raise self._failure
        rows: list[Row] = []
        while len(rows) < limit:
            if self._next == len(self._raws):
                try:
                    self._at_end = not self._fill(rows)
                except InputError as error:
                    self._failure = error
                    if rows:
                        break
                    raise
                if self._at_end:
                    break
            else:
                stop = self._next + min(limit - len(rows), MARK_ROWS)
                block = self._raws[self._next : stop]
                before = len(rows)
                line = self._decode(block, rows)
                self._pass(block, len(rows) - before, line)
            self._mark()
        return rows

    def position(self, acknowledged: int) -> dict[str, Any]:
        """What to store so that `open` goes on with row `acknowledged`.

        Args:
            acknowledged: rows fully handled, from the first on; never less than last time.
        """
        marks = self._marks
        assert marks[0].row <= acknowledged <= self._rows, (marks[0], acknowledged, self._rows)
        while len(marks) > 1 and marks[1].row <= acknowledged:
            marks.popleft()
        if len(marks) < MAX_MARKS // 4:
            self._spacing = 1
        mark = marks[0]
        read = self._read
        if read is None or read.read_byte < self._byte:
            self._hash_up()
            read = _Position(
                self.format,
                acknowledged,
                *mark,
                self._byte,
                self._line,
                self._hash.hexdigest(),
                self._unterminated,
            )
            self._read = read
        stored = msgspec.structs.asdict(read)
        stored["row"] = acknowledged
        stored["mark_row"], stored["mark_byte"], stored["mark_line"] = mark
        return stored

    def progress(self) -> float:
        """The share of the file handed out so far, 0 to 1."""
        fetched = self._base + len(self._buffer)
        share = self._source.share()
        if self._at_end or not fetched:
            return share
        return min(1.0, share * self._byte / fetched)

    def close(self) -> None:
        """Close the file."""
        self._source.close()

    # -- what a kind of file defines

    @abstractmethod
    def _split(self, buffer: bytes, start: int) -> list[bytes]:
        """The whole raw rows in `buffer` from `start` on."""

    @abstractmethod
    def _find_end(self, piece: bytes, state: int) -> tuple[int, int]:
        """Where a row ends in a piece of it (behind the newline, or 0), and the new state."""

    @abstractmethod
    def _is_blank(self, raw: bytes) -> bool:
        """Whether a raw row is a blank line."""

    @abstractmethod
    def _decode(self, raws: list[bytes], rows: list[Row]) -> int:
        """Append the rows that `raws` make to `rows`; returns the line that comes after."""

    @abstractmethod
    def _is_whole(self, raw: bytes) -> bool:
        """Whether a last row without a newline is more than half a row."""

    # -- cutting the file into raw rows

    def _fill(self, rows: list[Row]) -> bool:
        """Get the next raw rows, or append one bad row that was too long; false at the end."""
        self._hash_up()
        self._buffer = self._buffer[self._byte - self._base :]
        self._base = self._byte
        while True:
            if self._may_start():
                start = self._byte - self._base
                self._raws = self._split(self._buffer, start)
                self._next = 0
                if self._raws:
                    return True
                if len(self._buffer) - start > self._max_row_bytes:
                    rows.append(self._pass_long_row(start))
                    return True
            # in ever larger pieces while a long row is incomplete: else it takes quadratic time
            piece = self._source.read(max(CHUNK_BYTES, min(len(self._buffer), self._max_row_bytes)))
            if not piece:
                return self._take_last()
            self._buffer += piece

    def _may_start(self) -> bool:
        """Step over what may stand before a row: the byte order mark, or a newline still owed."""
        if self._byte == 0:
            if self._buffer.startswith(UTF_16_BOMS):
                raise InputError(f"{self._name}: is UTF-16; convert it to UTF-8")
            if self._buffer.startswith(BOM):
                self._byte = len(BOM)
        if self._unterminated:
            rest = self._buffer[self._byte - self._base :][:2]
            if rest in (b"", b"\r"):
                return False
            self._check_newline(rest, self._line - 1)
            last = self._marks[-1]
            step = 1 if rest[0] == 0x0A else 2
            if last.byte == self._byte:
                self._marks[-1] = last._replace(byte=self._byte + step)
            self._byte += step
            self._unterminated = False
        return True

    def _check_newline(self, following: bytes, line: int) -> None:
        if not following.startswith((b"\n", b"\r\n")) and following not in (b"", b"\r"):
            raise InputError(
                f"{self._name}, line {line}: the file ended within this line when it was read, "
                "and now the line goes on, so a part of it was taken for a whole row. "
                f"Let files grow by whole lines, newline included. {RESTORE}"
            )

    def _take_last(self) -> bool:
        """At the end of the file: a last line without a newline is a row, too."""
        last = self._buffer[self._byte - self._base :]
        if self._unterminated or self._is_blank(last):
            return False
        if not self._is_whole(last):
            raise self._open_quote(self._line)
        self._raws, self._next = [last], 0
        self._unterminated = True
        return True

    def _pass(self, raws: list[bytes], rows: int, line: int) -> None:
        """Account for raw rows that were handed out."""
        self._rows += rows
        self._line = line
        self._byte += sum(map(len, raws)) + len(raws) - self._unterminated
        self._next += len(raws)

    def _pass_long_row(self, start: int) -> Row:
        """Read to the end of a row without keeping it."""
        self._hash_up()
        digest = self._hash.copy()  # a failure below must leave the position as it is
        text = b""
        offset, line, size, newlines, state = self._rows, self._line, 0, 0, _START
        piece = self._buffer[start:]
        while piece:
            end, state = self._find_end(piece, state)
            part = piece[:end] if end else piece
            digest.update(part)
            text += part[: 4 * TEXT_CHARACTERS - len(text)]
            size += len(part)
            newlines += part.count(b"\n")
            if end:
                self._buffer = piece[end:]
                break
            piece = self._source.read(CHUNK_BYTES)
        else:
            if state == _QUOTED:
                raise self._open_quote(line)
            self._buffer = b""
            self._unterminated = True
        self._hash = digest
        self._byte += size
        self._hashed = self._base = self._byte
        self._line += newlines + self._unterminated
        self._rows += 1
        size -= not self._unterminated
        return self._bad(offset, line, text[:size], self._too_long(size))

    def _open_quote(self, line: int) -> InputError:
        return InputError(
            f"{self._name}, line {line}: a quote in the row that starts here is never closed, so "
            "it cannot be told where the next row starts. Close it (rows read so far stay "
            "valid), or use quote=None if quotes mean nothing in this file"
        )

    # -- positions

    def _hash_up(self) -> None:
        """Bring the running digest up to what was handed out."""
        if self._hashed < self._byte:
            start, stop = self._hashed - self._base, self._byte - self._base
            self._hash.update(memoryview(self._buffer)[start:stop])
            self._hashed = self._byte

    def _mark(self) -> None:
        if self._rows - self._marks[-1].row >= self._spacing:
            self._marks.append(_Mark(self._rows, self._byte, self._line))
            if len(self._marks) > MAX_MARKS:
                self._marks = deque(list(self._marks)[::2])
                self._spacing *= 2

    def resume(self, stored: dict[str, Any]) -> None:
        """Check that what was read is unchanged, and go on behind it.

        Raises:
            InputError: it is not, or the position is none of this kind of file.
        """
        try:
            position = msgspec.convert(stored, _Position)
            position.check()
        except ValueError as error:
            raise InputError(
                f"{self._name}: its stored position {stored!r:.300} cannot be understood: {error}"
            ) from error
        if position.format != self.format:
            raise InputError(
                f"{self._name}: was read as {position.format} before and is {self.format} now, "
                f"which numbers the rows differently. Read it as before; or {READ_ANEW}"
            )
        source = self._source
        source.seek(0)
        self._hash = hashlib.blake2b(digest_size=16)
        self._hash_prefix(self._hash, position.mark_byte, position)
        whole = self._hash.copy()
        between = position.read_byte - position.mark_byte
        kept: list[bytes] | None = [] if between <= KEEP_BYTES else None
        self._hash_prefix(whole, between, position, kept)
        if whole.hexdigest() != position.digest:
            raise self._changed(position)
        if position.unterminated:
            following = source.read(2)
            if len(following) == 1:
                following += source.read(1)
            self._check_newline(following, position.read_line - 1)
            if kept is not None:
                kept.append(following)
        if kept is None:
            source.seek(position.mark_byte)
            kept = []
        self._buffer = b"".join(kept)
        self._base = self._byte = self._hashed = position.mark_byte
        self._rows, self._line = position.mark_row, position.mark_line
        self._unterminated = position.unterminated and not between
        self._raws, self._next = [], 0
        self._read = position
        self._marks = deque([_Mark(self._rows, self._byte, self._line)])
        while self._rows < position.row:
            if not self.read(min(MARK_ROWS, position.row - self._rows)):
                raise self._changed(position, f"it has no row {position.row:,}")
        self._marks = deque([_Mark(self._rows, self._byte, self._line)])

    def _hash_prefix(
        self,
        digest: hashlib.blake2b,
        count: int,
        position: _Position,
        kept: list[bytes] | None = None,
    ) -> None:
        while count:
            piece = self._source.read(min(CHUNK_BYTES, count))
            if not piece:
                raise self._changed(position, "it is shorter now")
            digest.update(piece)
            count -= len(piece)
            if kept is not None:
                kept.append(piece)

    def _changed(self, position: _Position, what: str = "its digest differs") -> InputError:
        return InputError(
            f"{self._name}: the first {position.read_byte:,} bytes (before line "
            f"{position.read_line}) are not what they were when they were read: {what}. "
            f"A file may grow between runs, but not change. {RESTORE}"
        )

    # -- bad rows

    def _bad(self, offset: int, line: int, raw: bytes, what: str) -> Row:
        if self._unterminated:
            what += " (it is the last line and has no newline: is the file still being written?)"
        text = raw[: 4 * TEXT_CHARACTERS].decode(errors="backslashreplace")
        # Postgres, where dead letters end up, does not store NUL
        text = text.replace("\0", "\\x00")[:TEXT_CHARACTERS]
        what = what.replace("\0", "\\x00")[:TEXT_CHARACTERS]
        error = InputError(f"{self._name}, line {line}: {what}")
        return Row(offset, line, error=error, text=text)

    def _too_long(self, size: int) -> str:
        return (
            f"the row has {size:,} bytes, more than the limit of {self._max_row_bytes:,} "
            "(max_row_bytes)"
        )

    def _what_is_wrong(self, raw: bytes, error: Exception) -> str:
        if len(raw) > self._max_row_bytes:
            return self._too_long(len(raw))
        try:
            raw.decode()
        except UnicodeDecodeError as wrong:
            return f"byte {wrong.start + 1:,} of the row is not UTF-8: {wrong.reason}"
        if isinstance(error, (msgspec.MsgspecError, _BadRow)):
            return str(error)
        return f"{type(error).__name__}: {error}"

    def _check(self, raw: bytes) -> None:
        if len(raw) > self._max_row_bytes or not _is_utf_8(raw):
            raise _BadRow


class _BadRow(Exception):
    """What is wrong with one row."""


_START, _PLAIN, _QUOTED, _CLOSING = range(4)
"""Where a CSV row is being cut: at a cell's start, in it, in its quotes, behind a quote in them."""


def _split_lines(buffer: bytes, start: int) -> list[bytes]:
    end = buffer.rfind(b"\n", start)
    return buffer[start:end].split(b"\n") if end >= 0 else []


class _JsonLinesReader(_FileReader):
    format = "json_lines"

    def __init__(self, name: str, source: _Bytes, value_type: Any, max_row_bytes: int) -> None:
        super().__init__(name, source, max_row_bytes)
        self._value: Callable[[bytes], Any] = msgspec.json.Decoder(value_type).decode

    def _split(self, buffer: bytes, start: int) -> list[bytes]:
        return _split_lines(buffer, start)

    def _find_end(self, piece: bytes, state: int) -> tuple[int, int]:
        return piece.find(b"\n") + 1, state

    def _is_blank(self, raw: bytes) -> bool:
        return not raw.strip(b" \t\r")

    def _is_whole(self, raw: bytes) -> bool:
        return True

    def _decode(self, raws: list[bytes], rows: list[Row]) -> int:
        # msgspec passes over members that the type does not have without looking at their text
        whole = b"\n".join(raws)
        suspect = len(whole) > self._max_row_bytes or not _is_utf_8(whole)
        decode, append = self._value, rows.append
        offset, first = self._rows, self._line
        for line, raw in enumerate(raws, first):
            try:
                if suspect:
                    self._check(raw)
                append(Row(offset, line, decode(raw)))
            except Exception as error:  # a type's __post_init__ may raise anything
                if self._is_blank(raw) and len(raw) <= self._max_row_bytes:
                    continue
                append(self._bad(offset, line, raw, self._what_is_wrong(raw, error)))
            offset += 1
        return first + len(raws)


def _is_utf_8(data: bytes) -> bool:
    if not data.isascii():
        try:
            data.decode()
        except UnicodeDecodeError:
            return False
    return True


# ----------------------------------------------------------------------------------- CSV


_NullMeaning: TypeAlias = Literal["none", "default", "text"]
"""What a null cell means: None, the field's default, or its own text."""


@dataclass(frozen=True)
class _Dialect:
    delimiter: str
    quote: str | None
    null: frozenset[str]
    optional: frozenset[str]


@dataclass(frozen=True)
class _Field:
    """A field that a column fills."""

    name: str
    may_lack: bool
    """It has a default."""
    if_null: _NullMeaning
    """What a null cell means in it."""


class _Fields(NamedTuple):
    """What a value type wants of the columns."""

    fields: tuple[_Field, ...] | None
    """None: it takes any column, all treated like `other`."""
    other: _NullMeaning
    tag: str | None
    closed: bool
    """Columns without a field are refused."""


def _fields_of(value_type: Any) -> _Fields:
    """What a CSV row of `value_type` consists of.

    Raises:
        UsageError: it has no named fields.
    """
    found = msgspec.inspect.type_info(value_type)
    while isinstance(found, msgspec.inspect.Metadata):
        found = found.type
    if isinstance(found, msgspec.inspect.AnyType):
        return _Fields(None, "none", None, False)
    if isinstance(found, msgspec.inspect.DictType):
        return _Fields(None, _if_null(found.value_type, True), None, False)
    struct = msgspec.inspect.StructType
    if isinstance(
        found, (struct, msgspec.inspect.DataclassType, msgspec.inspect.TypedDictType)
    ) and not (isinstance(found, struct) and found.array_like):
        is_struct = isinstance(found, struct)
        return _Fields(
            tuple(
                _Field(field.encode_name, not field.required, _if_null(field.type, field.required))
                for field in found.fields
            ),
            "text",
            found.tag_field if is_struct else None,  # type: ignore[union-attr]
            found.forbid_unknown_fields if is_struct else False,  # type: ignore[union-attr]
        )
    raise UsageError(
        f"a CSV row cannot become a {value_type!r}: use a type with named fields "
        "(a msgspec.Struct, a dataclass, a TypedDict), or a dict"
    )


def _if_null(found: msgspec.inspect.Type, required: bool) -> _NullMeaning:
    kinds: list[msgspec.inspect.Type] = []
    rest = [found]
    while rest:
        kind = rest.pop()
        if isinstance(kind, msgspec.inspect.Metadata):
            rest.append(kind.type)
        elif isinstance(kind, msgspec.inspect.UnionType):
            rest.extend(kind.types)
        else:
            kinds.append(kind)
    if any(isinstance(k, (msgspec.inspect.NoneType, msgspec.inspect.AnyType)) for k in kinds):
        return "none"
    if required or any(isinstance(k, msgspec.inspect.StrType) for k in kinds):
        return "text"
    return "default"


class _CsvReader(_FileReader):
    def __init__(
        self, name: str, source: _Bytes, value_type: Any, dialect: _Dialect, max_row_bytes: int
    ) -> None:
        super().__init__(name, source, max_row_bytes)
        self.format = f"csv {dialect.delimiter}{dialect.quote or ''}"
        self._type = value_type
        self._types = GenericAlias(list, (value_type,))
        self._optional = dialect.optional
        self._null = dialect.null
        self._delimiter = dialect.delimiter
        self._quote = dialect.quote
        self._quoted = (dialect.quote or "").encode()
        self._separator = re.compile(b"[%b\n]" % re.escape(dialect.delimiter.encode()))
        if dialect.quote is not None:
            delimiter, quote = re.escape(dialect.delimiter), re.escape(dialect.quote)
            # No possessive groups: Python before 3.11.5 gets them wrong. None is needed, as
            # each quote closes, or is the first of two, whatever stands before it.
            quoted = f"{quote}[^{quote}]*+(?:{quote}{quote}[^{quote}]*+)*{quote}(?!{quote})"
            cell = f"(?:{quoted}|(?!{quote}))[^{delimiter}\n]*+"
            row = f"{cell}(?:{delimiter}{cell})*"
            self._match_row = re.compile(f"{row}\n".encode()).match
            self._match_all = re.compile(row.encode()).fullmatch
            self._match_quoted = re.compile(quoted).match
        self._columns: tuple[str, ...] = ()
        self._names: tuple[str, ...] = ()
        self._if_null: tuple[_NullMeaning, ...] = ()
        self._pick: Callable[[Sequence[str]], Sequence[str]] = tuple
        self._read_header(_fields_of(value_type))
        self._marks = deque([_Mark(0, self._byte, self._line)])

    def _read_header(self, wanted: _Fields) -> None:
        columns: list[str] | None = None
        while columns is None:
            long: list[Row] = []
            if not self._fill(long):
                raise InputError(f"{self._name}: is empty; a CSV file starts with a header row")
            if long:
                error = long[0].error
                assert error is not None
                raise error
            while columns is None and self._next < len(self._raws):
                raw = self._raws[self._next]
                if not self._is_blank(raw):
                    try:
                        self._check(raw)
                        columns = self._cells(raw)
                    except (_BadRow, UnicodeDecodeError) as error:
                        what = self._what_is_wrong(raw, error)
                        raise InputError(
                            f"{self._name}, line {self._line}: the header: {what}"
                        ) from error
                self._pass([raw], 0, self._line + 1 + raw.count(b"\n"))
        self._columns = tuple(columns)
        self._choose_columns(wanted)

    def _choose_columns(self, wanted: _Fields) -> None:
        columns, name = self._columns, self._name
        type_name = getattr(self._type, "__name__", str(self._type))
        # Spreadsheets leave nameless columns at the end; nothing can ask for these.
        counted = [c for c in columns if c or wanted.fields is None]
        twice = sorted({c for c in counted if counted.count(c) > 1})
        if twice:
            raise InputError(f"{name}: more than one column has the name {_listed(twice)}")
        if wanted.fields is None:
            self._names = columns
            self._if_null = (wanted.other,) * len(columns)
            return
        known = {field.name for field in wanted.fields}
        missing = [
            field.name
            for field in wanted.fields
            if field.name not in columns and not (field.may_lack and field.name in self._optional)
        ]
        if missing:
            raise InputError(
                f"{name}: the header has no column {_listed(missing)}, which {type_name} asks for; "
                f"it has {_listed(columns)}. Rename the field or the column, or, for a field with "
                "a default, name it in optional=(...)"
            )
        extra = [column for column in columns if column not in known and column != wanted.tag]
        if wanted.closed and extra:
            raise InputError(
                f"{name}: the column {_listed(extra)} is no field of {type_name}, which forbids "
                f"unknown fields; it has {_listed(known)}"
            )
        if_null = {field.name: field.if_null for field in wanted.fields}
        self._names = tuple(c for c in columns if c in known or c == wanted.tag)
        self._if_null = tuple(if_null.get(c, "text") for c in self._names)
        places = [columns.index(c) for c in self._names]
        if len(places) == len(columns):
            return
        if len(places) > 1:
            self._pick = itemgetter(*places)
        else:
            self._pick = lambda cells: [cells[place] for place in places]

    def _split(self, buffer: bytes, start: int) -> list[bytes]:
        if not self._quoted or buffer.find(self._quoted, start) < 0:
            return _split_lines(buffer, start)
        raws = []
        match = self._match_row
        while (found := match(buffer, start)) is not None:
            end = found.end()
            raws.append(buffer[start : end - 1])
            start = end
        return raws

    def _find_end(self, piece: bytes, state: int) -> tuple[int, int]:
        place = 0
        while place < len(piece):
            if state == _QUOTED:
                place = piece.find(self._quoted, place) + 1
                if not place:
                    break
                state = _CLOSING
            elif state != _PLAIN and self._quoted and piece[place] == self._quoted[0]:
                state = _QUOTED  # it opens the cell, or was doubled
                place += 1
            else:
                found = self._separator.search(piece, place)
                if found is None:
                    return 0, _PLAIN
                place, state = found.end(), _START
                if found[0] == b"\n":
                    return place, state
        return 0, state

    def _is_blank(self, raw: bytes) -> bool:
        return raw in (b"", b"\r")

    def _is_whole(self, raw: bytes) -> bool:
        return not self._quoted or self._match_all(raw) is not None

    def _decode(self, raws: list[bytes], rows: list[Row]) -> int:
        offset, line = self._rows, self._line
        values = self._decode_together(raws)
        if values is not None:
            if b"\n" in b"".join(raws):
                for value, raw in zip(values, raws, strict=True):
                    rows.append(Row(offset, line, value))
                    offset += 1
                    line += 1 + raw.count(b"\n")
                return line
            rows += map(Row, count(offset), count(line), values)
            return line + len(raws)
        for raw in raws:
            if not self._is_blank(raw):
                rows.append(self._decode_one(raw, offset, line))
                offset += 1
            line += 1 + raw.count(b"\n")
        return line

    def _decode_together(self, raws: list[bytes]) -> list[Any] | None:
        """The values of many rows at once; None if any needs a closer look.

        Must give what `_decode_one` gives, which has the last word. Three times as fast: most
        of the time of `msgspec.convert` and `csv.reader` goes into starting.
        """
        whole = b"\n".join(raws)
        if len(whole) > self._max_row_bytes or b"" in raws:
            return None
        if b"\r" in whole:
            if b"\r" in raws or whole.count(b"\r") != sum(raw.endswith(b"\r") for raw in raws):
                return None
            raws = [raw.removesuffix(b"\r") for raw in raws]
        try:
            texts = [raw.decode() for raw in raws]
            cells: Iterable[list[str]]
            if self._quoted and self._quoted in whole:
                cells = list(
                    csv.reader(texts, delimiter=self._delimiter, quotechar=self._quote, strict=True)
                )
            else:
                delimiter = self._delimiter
                cells = [text.split(delimiter) for text in texts]
            if len(cells) != len(raws) or set(map(len, cells)) != {len(self._columns)}:
                return None
            values: list[Any] = msgspec.convert(self._assign(cells), self._types, strict=False)
        except Exception:  # a type's __post_init__ may raise anything
            return None
        return values

    def _assign(self, rows: Iterable[Sequence[str]]) -> list[dict[str, str | None]]:
        """Cells to named values, with null cells as None or left out."""
        names, pick, is_plain = self._names, self._pick, self._null.isdisjoint
        assigned: list[dict[str, str | None]] = []
        for cells in rows:
            picked = pick(cells)
            values: dict[str, str | None] = dict(zip(names, picked, strict=True))
            if not is_plain(picked):
                for name, cell, if_null in zip(names, picked, self._if_null, strict=True):
                    if cell in self._null:
                        if if_null == "none":
                            values[name] = None
                        elif if_null == "default":
                            del values[name]
            assigned.append(values)
        return assigned

    def _decode_one(self, raw: bytes, offset: int, line: int) -> Row:
        try:
            self._check(raw)
            cells = self._cells(raw)
            self._check_width(cells)
            (values,) = self._assign([cells])
            return Row(offset, line, self._convert(values))
        except Exception as error:  # a type's __post_init__ may raise anything
            return self._bad(offset, line, raw, self._what_is_wrong(raw, error))

    def _check_width(self, cells: list[str]) -> None:
        if len(cells) != len(self._columns):
            raise _BadRow(f"the row has {len(cells)} cells, the header {len(self._columns)}")

    def _convert(self, values: dict[str, str | None]) -> Any:
        try:
            return msgspec.convert(values, self._type, strict=False)
        except msgspec.ValidationError as error:
            found = re.fullmatch(r"(.*) - at `\$\.(.*)`", str(error), re.DOTALL)
            if found is None or found[2] not in values:
                raise
            cell = values[found[2]]
            raise _BadRow(f"column {found[2]!r} holds {cell!r:.200}: {found[1]}") from error

    def _cells(self, raw: bytes) -> list[str]:
        """The cells of one row, as `csv.reader` in strict mode would cut them.

        Not `csv.reader`: its limit of 128 KiB per cell can only be lifted for the whole process.
        """
        text = raw.decode().removesuffix("\r")
        delimiter, quote = self._delimiter, self._quote
        cells: list[str] = []
        place = 0
        while True:
            if quote is not None and text.startswith(quote, place):
                found = self._match_quoted(text, place)
                assert found is not None, "rows are cut where quotes are closed"
                cells.append(found[0][1:-1].replace(quote * 2, quote))
                place = found.end()
                if place < len(text) and text[place] != delimiter:
                    raise _BadRow(
                        f"cell {len(cells)} goes on behind its closing quote; "
                        "a quote within quotes must be doubled"
                    )
            else:
                end = text.find(delimiter, place)
                cells.append(text[place : end if end >= 0 else None])
                place = end if end >= 0 else len(text)
                if "\r" in cells[-1]:
                    raise _BadRow(
                        f"there is a carriage return in cell {len(cells)}, which is not quoted; "
                        "lines must end in \\n or \\r\\n"
                    )
            if place == len(text):
                return cells
            place += 1


def _listed(names: Iterable[str]) -> str:
    names = list(names)
    shown = ", ".join(map(repr, names[:40]))
    return shown if len(names) <= 40 else f"{shown} and {len(names) - 40} more"


# ---------------------------------------------------------------------------- the sources


@dataclass(frozen=True)
class FilePartition:
    """One file."""

    path: str
    """As given."""
    absolute: str
    member: str | None
    make_reader: Callable[[str, _Bytes, Any], _FileReader]

    @property
    def identity(self) -> str:
        """The absolute path, and the member as given: ``/data/all.zip!2013.csv``.

        Made from what the program says, not from what is on disk: it is known without the
        file, and a symbolic link that is turned to a newer release keeps its name. A file
        that is moved, or named otherwise, is another file and is read from its start.
        """
        return self.absolute if self.member is None else f"{self.absolute}!{self.member}"

    def open(self, value_type: Any, position: dict[str, Any] | None) -> _FileReader:
        """Start at a stored position, or at the beginning.

        Hashes what was read before: about 1 s per GB; gzip and zip are unpacked for it.

        Raises:
            InputError: the file is missing, damaged or no such file, or what was already
                read of it has changed.
            UsageError: rows cannot become values of this type.
        """
        name, source = _open_bytes(self.path, self.absolute, self.member)
        try:
            try:
                reader = self.make_reader(name, source, value_type)
            except (TypeError, NotImplementedError, NameError) as error:
                raise UsageError(
                    f"{name}: rows cannot be read as {value_type!r}: {error}"
                ) from error
            if position is not None:
                reader.resume(position)
        except BaseException:
            source.close()
            raise
        return reader


class _Files(ABC):
    """One or more files; each is a partition."""

    def __init__(
        self, path: AnyPath | Sequence[AnyPath], member: str | None, max_row_bytes: int
    ) -> None:
        self._many = not isinstance(path, (str, os.PathLike))
        given = [path] if isinstance(path, (str, os.PathLike)) else path
        self._paths = [os.fspath(one) for one in given]
        # now, not when it is opened: a later chdir must not make it another file
        self._absolute = [os.path.abspath(one) for one in self._paths]
        self.member = member
        self.max_row_bytes = max_row_bytes
        kind = type(self).__name__
        if not self._paths:
            raise UsageError(f"{kind}: no path is given")
        twice = {one for one in self._absolute if self._absolute.count(one) > 1}
        if twice:
            raise UsageError(f"{kind}: a file is named more than once: {_listed(sorted(twice))}")
        if max_row_bytes < 1:
            raise UsageError(f"{kind}: max_row_bytes must be at least 1, not {max_row_bytes}")

    def partitions(self) -> list[Partition]:
        """One partition per file, in the order given. Nothing is opened yet."""
        return [
            FilePartition(path, absolute, self.member, self._make_reader)
            for path, absolute in zip(self._paths, self._absolute, strict=True)
        ]

    @abstractmethod
    def _make_reader(self, name: str, source: _Bytes, value_type: Any) -> _FileReader: ...

    def _describe(self, kind: str) -> dict[str, Any]:
        described: dict[str, Any] = {kind: self._paths if self._many else self._paths[0]}
        if self.member is not None:
            described["member"] = self.member
        return described


class JsonLines(_Files):
    """A JSON value per line: ``JsonLines("lines.jsonl")``.

    Blank lines are skipped. Bad rows — no JSON, of another type, not UTF-8, too long — are
    handed to the injector's error policy.

    Args:
        path: a file, or a sequence of files; plain, gzip or zip, told by their first bytes.
        member: the member of a zip file that holds several.
        max_row_bytes: a longer line is a bad row.
    """

    def __init__(
        self,
        path: AnyPath | Sequence[AnyPath],
        *,
        member: str | None = None,
        max_row_bytes: int = MAX_ROW_BYTES,
    ) -> None:
        super().__init__(path, member, max_row_bytes)

    def _make_reader(self, name: str, source: _Bytes, value_type: Any) -> _FileReader:
        return _JsonLinesReader(name, source, value_type, self.max_row_bytes)

    def describe(self) -> dict[str, Any]:
        """What is stored of it in the graph."""
        return self._describe("json_lines")


class Csv(_Files):
    """A row per line, under a header row that names the fields: ``Csv("flights.csv")``.

    Cells are read as msgspec's lax mode reads strings: ``12``, ``0.5``, ``true``,
    ``2013-01-01T05:00:00Z``; ``+1``, ``007`` and `` 5`` are no numbers. Columns without a
    field are left out. A bad row — other cells than the header, a cell that does not fit its
    field, text behind a closing quote, not UTF-8, too long — is handed to the injector's
    error policy.

    A null cell becomes None where the field allows it; else stays the text it is in a str
    field; else means the field's default; else the row is bad.

    Args:
        path: a file, or a sequence of files; plain, gzip or zip, told by their first bytes.
        member: the member of a zip file that holds several.
        delimiter: one ASCII character between cells.
        quote: one ASCII character around cells that hold delimiters, newlines or (doubled)
            quotes; None if no character is special.
        null: the cells that mean "no value", such as ``("", "NA")``. In a field that is
            neither str nor bytes, msgspec takes the text ``null`` for None as well.
        optional: fields with a default that the header may lack. (A missing column is an
            error else: a misspelt field would silently be its default in every row.)
        max_row_bytes: a longer row is a bad row.
    """

    def __init__(
        self,
        path: AnyPath | Sequence[AnyPath],
        *,
        member: str | None = None,
        delimiter: str = ",",
        quote: str | None = '"',
        null: Sequence[str] = ("",),
        optional: Sequence[str] = (),
        max_row_bytes: int = MAX_ROW_BYTES,
    ) -> None:
        super().__init__(path, member, max_row_bytes)
        for what, character in (("delimiter", delimiter), ("quote", quote)):
            if character is not None and (
                len(character) != 1 or not character.isascii() or character in "\r\n\0"
            ):
                raise UsageError(f"Csv: the {what} must be one ASCII character, not {character!r}")
        if delimiter == quote:
            raise UsageError(f"Csv: delimiter and quote are both {quote!r}")
        for what, names in (("null", null), ("optional", optional)):
            if isinstance(names, str):
                raise UsageError(f"Csv: give {what} as a tuple of strings, not {names!r}")
        self.delimiter = delimiter
        self.quote = quote
        self.null = tuple(null)
        self.optional = tuple(optional)

    def _make_reader(self, name: str, source: _Bytes, value_type: Any) -> _FileReader:
        dialect = _Dialect(
            self.delimiter, self.quote, frozenset(self.null), frozenset(self.optional)
        )
        return _CsvReader(name, source, value_type, dialect, self.max_row_bytes)

    def describe(self) -> dict[str, Any]:
        """What is stored of it in the graph."""
        return {
            **self._describe("csv"),
            "delimiter": self.delimiter,
            "quote": self.quote,
            "null": list(self.null),
            "optional": list(self.optional),
        }
