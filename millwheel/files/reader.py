"""A file cut into rows, whatever its format: positions, marks, digests, long and bad rows.

What makes it safe to read again is told in `millwheel.files`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable
from typing import Any, NamedTuple

import msgspec
import xxhash

from millwheel.errors import InputError
from millwheel.files.packed import CHUNK_BYTES, READ_ANEW, RESTORE, Bytes
from millwheel.sources import Row

MARK_ROWS = 1_000
"""Rows between two marks at most (while there are fewer than `MAX_MARKS`)."""
MAX_MARKS = 4_096
"""Marks kept per reader; beyond it every second one is dropped."""
READ_BYTES = 8 << 20
"""Handed out at a time, and what the buffer holds besides: rows may be large, and hundreds are asked for."""
KEEP_BYTES = 16 << 20
"""Bytes between mark and digest kept while a prefix is checked, so as not to unpack twice."""
TEXT_CHARACTERS = 2_000
"""Characters kept of a bad row."""

BOM = b"\xef\xbb\xbf"
UTF_16_BOMS = (b"\xff\xfe", b"\xfe\xff")

START, PLAIN, QUOTED, CLOSING = range(4)
"""Where a row is being cut: at a cell's start, in it, in its quotes, behind a quote in them. Without
quotes, only the first."""


class Mark(NamedTuple):
    """A place between two rows: the next row's number, its first byte, its line (from 1)."""

    row: int
    byte: int
    line: int


class _Position(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is stored: see the picture in `millwheel.files`."""

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


class FileReader(ABC):
    """A file cut into raw rows; what a row is and means is up to the two kinds below.

    `_buffer` holds the file's bytes from `_base` on. All before `_byte` was handed out;
    `_raws[_next:]` are the whole rows that come after it, without their newlines.
    """

    format = ""

    def __init__(self, name: str, source: Bytes, max_row_bytes: int) -> None:
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
        self._hash = xxhash.xxh3_128()
        self._hashed = 0
        self._unterminated = False
        self._at_end = False
        self._failure: InputError | None = None
        self._read: _Position | None = None
        """The position last made or opened: its digest reaches furthest."""
        self._marks = deque([Mark(0, 0, 1)])
        self._spacing = 1

    # -- the Reader protocol

    def read(self, limit: int) -> list[Row]:
        """Up to `limit` further rows, fewer if they are large; an empty list at the end of what is there
        now.

        Raises:
            InputError: the file is damaged here, was cut, or grew within its last row.
                Rows before that place are returned first; from then on each call raises.
        """
        if self._failure is not None:
            raise self._failure
        rows: list[Row] = []
        enough = self._byte + READ_BYTES
        while len(rows) < limit and (self._byte < enough or not rows):
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
        offset, line, size, newlines, state = self._rows, self._line, 0, 0, START
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
            if state == QUOTED:
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
            self._marks.append(Mark(self._rows, self._byte, self._line))
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
        self._hash = xxhash.xxh3_128()
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
        self._marks = deque([Mark(self._rows, self._byte, self._line)])
        while self._rows < position.row:
            if not self.read(min(MARK_ROWS, position.row - self._rows)):
                raise self._changed(position, f"it has no row {position.row:,}")
        self._marks = deque([Mark(self._rows, self._byte, self._line)])

    def _hash_prefix(
        self,
        digest: xxhash.xxh3_128,
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
        if isinstance(error, (msgspec.MsgspecError, BadRow)):
            return str(error)
        return f"{type(error).__name__}: {error}"

    def _check(self, raw: bytes) -> None:
        if len(raw) > self._max_row_bytes or not is_utf_8(raw):
            raise BadRow


class BadRow(Exception):
    """What is wrong with one row."""


def split_lines(buffer: bytes, start: int) -> list[bytes]:
    end = buffer.rfind(b"\n", start)
    return buffer[start:end].split(b"\n") if end >= 0 else []


def is_utf_8(data: bytes) -> bool:
    if not data.isascii():
        try:
            data.decode()
        except UnicodeDecodeError:
            return False
    return True


def listed(names: Iterable[str]) -> str:
    names = list(names)
    shown = ", ".join(map(repr, names[:40]))
    return shown if len(names) <= 40 else f"{shown} and {len(names) - 40} more"
