"""Followed files: read a path and, across rotations, all files that were or will be at it.

::

    file 0 (now app.log.2)  file 1 (now app.log.1)  file 2 (app.log)
    |-----------------------|-----------------------|-------------......
    numbers from 0          from FILE_ROWS          from 2 * FILE_ROWS

A row's number is made of the file's number and the row's number in that file. Numbers therefore
increase, and do not depend on rows that are appended to a file after the reader has left it: such a
row, read after a restart, gets a number that no other row has.

At the end of the current file::

    this file is at the path    wait
    no file is at the path      wait: it may come back
    another file is at the path wait until this file has not grown for GRACE_SECONDS; then continue with
                                the younger rotated siblings, and then with the path
    this file was truncated     continue in the copy that was made before, if there is one in the
                                directory; then as above. Without a copy, either all rows were read,
                                or rows are missing

When the reader leaves a file, it takes a last line without a newline as it is: no writer will
complete it.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import msgspec

from millwheel.errors import InputError
from millwheel.files.packed import CHUNK_BYTES, READ_AGAIN
from millwheel.files.reader import BOM, FileReader, RowBoundary
from millwheel.files.rotation import (
    FINGERPRINT_BYTES,
    Denied,
    DirectoryEntry,
    Fingerprint,
    Growing,
    Rewritten,
    Unpacking,
    begins_with,
    entry_at,
    fingerprint,
    matches,
    may_hold,
    open_log,
    other_entries,
    siblings,
)
from millwheel.files.rows import RowFormat
from millwheel.files.watching import Signal, logger
from millwheel.sources import Lag, Row

FILE_ROWS = 1 << 40
"""Row numbers reserved for each file."""
GRACE_SECONDS = 0.3
"""A renamed file is left when it has not grown for this time."""
ATTEMPTS = 3
"""Searches for the file that was read, GRACE_SECONDS apart, before it counts as missing."""
DENIED_SECONDS = 5.0
"""Time for a new file to become readable, before reading ends with an error."""

OnMissing: TypeAlias = Literal["fail", "skip"]
Log: TypeAlias = Growing | Unpacking


class HeadAndTail:
    """A proof of a file's acknowledged bytes: the first and the last of them."""

    __slots__ = ("head", "tail")

    def __init__(self, head: bytes = b"", tail: bytes = b"") -> None:
        self.head = head
        self.tail = tail

    def update(self, data: bytes | memoryview) -> None:
        if len(self.head) < FINGERPRINT_BYTES:
            self.head += bytes(data[: FINGERPRINT_BYTES - len(self.head)])
        self.tail = (self.tail + bytes(data[-FINGERPRINT_BYTES:]))[-FINGERPRINT_BYTES:]

    def copy(self) -> HeadAndTail:
        return HeadAndTail(self.head, self.tail)


class PreviousFile(msgspec.Struct, frozen=True):
    """Identity of the file read before the current one, which is not read again if it grows late."""

    device: int
    inode: int
    fingerprint: Fingerprint

    def is_at(self, entry: DirectoryEntry) -> bool:
        return (entry.device, entry.inode) == (self.device, self.inode) and begins_with(
            entry, self.fingerprint
        )


class _File:
    """One of the files that have been at the path."""

    def __init__(self, log: Log, number: int, before: PreviousFile | None) -> None:
        self.log = log
        self.number = number
        self.before = before
        state = log.state()
        self.device, self.inode = state.st_dev, state.st_ino
        self.seen = 0 if log.packed else state.st_size
        """Largest size that the file is known to have had."""
        self.modified = state.st_mtime_ns
        """Latest modification time known from while it was at the path."""

    def is_at(self, entry: DirectoryEntry | None) -> bool:
        return entry is not None and (entry.device, entry.inode) == (self.device, self.inode)

    @property
    def known(self) -> Fingerprint:
        """Fingerprint of the bytes read so far."""
        return fingerprint(self.log.taken, self.log.head, self.log.last)

    @property
    def as_previous(self) -> PreviousFile:
        """Identity of this file for after the reader has left it."""
        return PreviousFile(self.device, self.inode, self.known)


class _FollowedPosition(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True
):
    """The stored position: the start of the first unacknowledged row, and the file's identity."""

    format: str
    """The rules by which it was split into rows; empty if it was discovered but not opened yet."""
    row: int
    byte: int
    line: int
    cut: int | None
    """Start of the row before, if that row was taken without a newline at its end."""
    file: str
    """Path at which it was last found."""
    number: int
    """Number of files read at the path before it."""
    device: int
    inode: int
    before: PreviousFile | None
    modified: int
    seen: int
    head: str
    tail: str
    begins: Fingerprint | None = None
    """For a file without acknowledged bytes: fingerprint of its known first bytes."""

    def check(self) -> None:
        if min(self.row, self.byte, self.number) < 0 or not 0 <= (self.cut or 0) <= self.byte:
            raise ValueError("its numbers contradict each other")

    @property
    def fingerprint(self) -> Fingerprint:
        return Fingerprint(self.byte, self.head, self.tail)

    def is_at(self, entry: DirectoryEntry) -> bool:
        """Whether an entry is this file, by inode and first bytes."""
        return (entry.device, entry.inode) == (self.device, self.inode) and (
            self.begins is None or begins_with(entry, self.begins)
        )

    @property
    def as_previous(self) -> PreviousFile:
        """Identity of this file for after the reader has left it."""
        return PreviousFile(self.device, self.inode, self.fingerprint)


def first_position(
    path: str, device: int, inode: int, modified: int, size: int, head: str
) -> dict[str, Any]:
    """Return the position of a file that was discovered and is not opened yet.

    Args:
        modified: modification time of its youngest rotated sibling at that time.
        size: number of first bytes that `head` covers.
        head: digest of these bytes.
    """
    nothing = fingerprint(0, b"", b"")
    found: dict[str, Any] = msgspec.to_builtins(
        _FollowedPosition(
            "", 0, 0, 1, None, path, 0, device, inode, None, modified, 0,
            nothing.head, nothing.tail, Fingerprint(size, head, ""),
        )
    )  # fmt: skip
    return found


@dataclass(frozen=True)
class Following:
    """The options of following a path."""

    path: str
    """The absolute path."""
    poll_seconds: float
    on_missing: OnMissing
    takes_older: Callable[[str], bool] | None = None
    """Whether to read a rotated sibling that existed before the reader's first start; None: none."""
    elsewhere: Callable[[], list[str]] | None = None
    """Returns further paths to search when the file is no longer in its directory."""


class FollowedReader(FileReader[HeadAndTail, _File | None]):
    """Reads the successive files at a path, without end."""

    def __init__(self, format_: RowFormat, following: Following) -> None:
        self._following = following
        self._path = following.path
        self._signal = Signal()
        self._stored: _FollowedPosition | None = None
        """The position to resume at, until its file is found."""
        self._truncated = False
        self._idle_since: tuple[float, int] | None = None
        """Since when the renamed file has not grown, and its size."""
        self._denied_at: float | None = None
        """Since when opening the file at the path has been denied."""
        self._last_snapshot: object = None
        """The file system's state at the last read."""
        self._youngest_at_begin = 0
        """Modification time of the youngest rotated sibling at the start, if the path did not exist."""
        super().__init__(format_, HeadAndTail(), None)

    # -- the Reader protocol

    @property
    def ended(self) -> bool:
        """Always false: a followed path does not end."""
        return False

    async def read(self, limit: int) -> list[Row]:
        """Return up to `limit` further complete rows."""
        self._signal.clear()
        if self._file is None and self._failure is None:
            self._last_snapshot = self._snapshot()
            await self._find(patient=True)
        return await super().read(limit)

    async def wait(self) -> None:
        """Wait until something changed, or until a renamed file may be left."""
        while True:
            seconds = self._following.poll_seconds
            if self._idle_since is not None or self._denied_at is not None:
                await self._signal.wait(min(seconds, GRACE_SECONDS))
                return
            if await self._signal.wait(seconds) or self._last_snapshot != self._snapshot():
                return

    def progress(self) -> None:
        """Return None: there is no end."""

    def lag(self) -> Lag:
        """The number of bytes not yet returned as rows: of this file and of those to be read next."""
        waiting = 0
        file = self._file
        with suppress(InputError):
            now = entry_at(self._path)
            if file is None or not file.is_at(now):
                waiting += now.size if now is not None else 0
                waiting += sum(entry.size for entry in self._younger(file))
        if file is not None and isinstance(file.log, Growing):
            waiting += max(0, file.log.state().st_size - self._byte)
        return Lag(bytes=waiting)

    def close(self) -> None:
        """Close the file and remove all watches."""
        self._signal.close()
        if self._file is not None:
            self._file.log.close()

    def _snapshot(self) -> object:
        """Return a value that changes when files may have changed; for polling."""
        try:
            now = entry_at(self._path)
        except InputError:
            now = None
        if self._file is not None:
            return now, _outline(self._file.log.state())
        # a file may appear at the path and be renamed between two polls
        with suppress(OSError):
            return now, os.stat(os.path.dirname(self._path)).st_mtime_ns
        return now, None

    # -- opening

    async def begin(self, stored: dict[str, Any] | None) -> None:
        """Find the file of the stored position and continue in it, or start at the path.

        Raises:
            InputError: the file is missing or cannot be followed.
        """
        for directory, name in _places(self._path):
            self._signal.watch(directory, name.__eq__)
        if stored is not None:
            self._stored = self._understand(stored)
            self._rows = self._acknowledged = self._stored.row
        youngest = max((entry.modified for entry in self._since(0)), default=1)
        await self._find(patient=False)
        if self._file is None:
            self._youngest_at_begin = youngest
            logger().info("file_not_there_yet", path=self._path)

    def _understand(self, stored: dict[str, Any]) -> _FollowedPosition:
        try:
            position = msgspec.convert(stored, _FollowedPosition)
            position.check()
        except ValueError as error:
            raise InputError(
                f"{self._path}: its stored position {stored!r:.300} is invalid: {error}"
            ) from error
        if position.row and position.format != self._format.name:
            raise InputError(
                f"{self._path}: was read as {position.format} before and as {self._format.name} now, "
                f"which numbers the rows differently. Read it as before, or {READ_AGAIN}"
            )
        return position

    async def _find(self, *, patient: bool) -> None:
        """Open the file to read, if it exists."""
        position = self._stored
        if position is None:
            log = self._open_first_of(self._older, patient=patient)
            self._begin_file(log, 0, before=None)
        elif await self._find_again(position, patient=patient):
            self._stored = None

    async def _find_again(self, position: _FollowedPosition, *, patient: bool) -> bool:
        """Open the file that was read up to `position`, or its successor; return whether one was found."""
        for _ in range(ATTEMPTS):
            now, others = entry_at(self._path), other_entries(self._path)
            moved = self._elsewhere() if now is None and not patient else []
            if not position.byte:
                others += moved
                return await self._find_unread(position, now, others, patient=patient)
            if await self._find_read(position, now, others, moved):
                return True
            if now is None:
                return False  # it may come back
            await asyncio.sleep(GRACE_SECONDS)  # a rename or compression may be in progress
        known = (position.device, position.inode)
        rotated = siblings(self._path, others)
        assert now is not None
        is_truncated = any((e.device, e.inode) == known for e in [now, *rotated])
        if not is_truncated or position.seen > position.byte:
            self._report_missing(position.byte, position.seen, position.line, position.row)
        log = self._open_first_of(lambda: self._since(position.modified), patient=patient)
        return self._begin_file(log, position.number + 1, before=position.as_previous)

    def _elsewhere(self) -> list[DirectoryEntry]:
        """Return files in other directories that may be the file that was at the path."""
        find = self._following.elsewhere
        directory = os.path.dirname(self._path)
        found = []
        for path in find() if find is not None else ():
            if os.path.dirname(path) != directory:
                with suppress(InputError):  # for example a directory
                    found.append(entry_at(path))
        return [entry for entry in found if entry is not None]

    async def _find_read(
        self,
        position: _FollowedPosition,
        now: DirectoryEntry | None,
        others: list[DirectoryEntry],
        moved: list[DirectoryEntry],
    ) -> bool:
        """Open the file that holds the bytes read so far; in another directory, only the same inode."""
        known = (position.device, position.inode)
        for entry in [*others, *moved] if now is None else [now, *others]:
            if (entry.device, entry.inode) == known and await self._resume(entry, position):
                return True
        named = sorted((e for e in others if may_hold(self._path, e)), key=lambda e: e.age)
        if now is not None:
            named.append(now)
        # a copy of the file, plain or compressed, is not older than the file
        for entry in sorted(named, key=lambda e: e.modified < position.modified):
            if await self._resume(entry, position):
                return True
        return False

    async def _find_unread(
        self,
        position: _FollowedPosition,
        now: DirectoryEntry | None,
        others: list[DirectoryEntry],
        *,
        patient: bool,
    ) -> bool:
        """Open a file without acknowledged bytes, which no fingerprint identifies."""
        if not position.format and self._older():
            log = self._open_first_of(self._older, patient=patient)
            return self._begin_file(log, position.number, before=position.before)
        for entry in others:
            if position.is_at(entry):
                return await self._resume(entry, position)
        if now is None:
            return False
        if position.begins is not None and position.is_at(now):
            log = self._open_first_of(list, patient=patient)
            return self._begin_file(log, position.number, before=position.before)
        since = position.modified - bool(position.seen)
        before = position.before
        log = self._open_first_of(
            lambda: [e for e in self._since(since) if before is None or not before.is_at(e)],
            patient=patient,
        )
        return self._begin_file(log, position.number, before=position.before)

    async def _resume(self, entry: DirectoryEntry, position: _FollowedPosition) -> bool:
        """Continue in this file if it is the one that was read; return whether it is."""
        is_path = entry.path == self._path
        is_surely = (entry.device, entry.inode) == (position.device, position.inode)
        try:
            log = open_log(entry, rotated=not is_path)
        except InputError:
            if is_surely:
                raise
            return False
        if log is None:
            return False
        try:
            found = await matches(log, position.fingerprint)
            if found and self._format.has_header and position.byte:
                log.rewind()
                await self._read_header(log)
                log.rewind()
                found = await matches(log, position.fingerprint)
        except BaseException as error:
            log.close()
            if isinstance(error, InputError) and not is_surely:
                return False
            raise
        if not found:
            log.close()
            return False
        file = _File(log, position.number, position.before)
        if not is_path:
            file.modified = position.modified
        cut = position.cut if isinstance(log, Growing) else None
        place: RowBoundary[_File | None] = RowBoundary(file, position.byte, position.line, cut)
        self._go_to(place)
        if cut is not None and isinstance(log, Growing):
            self._buffer = log.between(cut, position.byte)
        self._place = place
        self._proof = HeadAndTail(log.head, log.last)
        self._rows = max(self._rows, position.number * FILE_ROWS)
        self._format.file = self._name_of(entry.path)
        if not is_path and not is_surely and not log.packed and entry.size < position.seen:
            self._report_missing(entry.size, position.seen, position.line, position.row)
        return True

    async def _read_header(self, log: Log) -> None:
        """Read the header of a file whose rows are not read from its start."""
        data = b""
        while True:
            lead = len(BOM) if data.startswith(BOM) else 0
            for raw in self._format.split(data, lead):
                if not self._format.is_blank(raw):
                    self._format.read_header(raw, 1)
                    return
            piece = log.read(CHUNK_BYTES)
            if not piece:
                raise InputError(f"{log.name}: a CSV file starts with a header row; it has none")
            data += piece
            await asyncio.sleep(0)

    # -- from one file to the next

    def _younger(self, file: _File | None) -> list[DirectoryEntry]:
        """Return the rotated siblings younger than a file, oldest first; without a file, all."""
        found = siblings(self._path, other_entries(self._path))
        if file is None:
            return found
        own = next((entry.age[1:] for entry in found if file.is_at(entry)), (1, ""))
        age = (file.modified, *own)
        return [
            entry
            for entry in found
            if entry.age > age
            and not file.is_at(entry)
            and not (file.before is not None and file.before.is_at(entry))
        ]

    def _older(self) -> list[DirectoryEntry]:
        """Return the rotated siblings to read before the path, when nothing has been read yet."""
        takes = self._following.takes_older
        if self._youngest_at_begin:  # siblings since the start have been at the path
            return [
                e
                for e in self._since(0)
                if e.modified > self._youngest_at_begin or (takes and takes(e.path))
            ]
        return [] if takes is None else [entry for entry in self._since(0) if takes(entry.path)]

    def _since(self, modified: int) -> list[DirectoryEntry]:
        """Return the rotated siblings modified after a time, oldest first."""
        return [e for e in siblings(self._path, other_entries(self._path)) if e.modified > modified]

    def _open_first_of(
        self, find: Callable[[], list[DirectoryEntry]], *, patient: bool
    ) -> Log | None:
        """Open the first rotated file that `find` returns, or otherwise the file at the path.

        Returns:
            None: the file does not exist, or not any more.
        """
        younger = find()
        entry = younger[0] if younger else entry_at(self._path)
        if entry is None:
            return None
        try:
            log = open_log(entry, rotated=bool(younger))
        except Denied:
            clock = asyncio.get_running_loop().time()
            self._denied_at = self._denied_at or clock
            if not patient or clock >= self._denied_at + DENIED_SECONDS:
                raise
            return None
        self._denied_at = None
        if log is not None and not younger and find():
            log.close()  # the file that was at the path until now must be read first
            log = None
        if log is None:
            self._signal.set()  # files have just been renamed: try again
        return log

    def _begin_file(self, log: Log | None, number: int, before: PreviousFile | None) -> bool:
        """Continue at the start of a file; return False if there is none."""
        if log is None:
            return False
        if self._file is not None and self._file.log is not log:
            self._file.log.close()
        file = _File(log, number, before)
        self._format.file = self._name_of(log.name)
        self._rows = max(self._rows, number * FILE_ROWS)
        self._go_to(RowBoundary(file))
        if self._place.file is None:  # it is the first file of this reader
            self._place, self._proof = RowBoundary(file), HeadAndTail()
        else:
            self._append_block(0, RowBoundary(file), HeadAndTail())
        self._idle_since = None
        self._truncated = False
        return True

    def _continue_in(self, log: Log) -> None:
        """Continue at the same byte in a copy of the current file."""
        file = self._file
        assert file is not None
        other = _File(log, file.number, file.before)
        if log.name != self._path:
            other.modified = file.modified
        file.log.close()
        self._file = other
        self._format.file = self._name_of(log.name)
        self._idle_since = None
        self._truncated = False

    def _read_piece(self, size: int) -> bytes:
        file = self._file
        if file is None or self._truncated:
            return b""
        if not file.log.taken and self._emptied(file, entry_at(self._path)):
            return b""
        try:
            piece = file.log.read(size)
        except Rewritten:
            self._truncated = True
            return b""
        file.seen = max(file.seen, file.log.taken)
        return piece

    async def _at_end(self, rows: list[Row]) -> bool:
        """Handle the end of a file: wait, or continue with another file.

        Nothing is lost if this is cancelled.
        """
        file = self._file
        if file is None or rows:
            return False
        if self._truncated:
            return await self._after_truncation(file, rows)
        now, state = entry_at(self._path), file.log.state()
        self._last_snapshot = now, _outline(state)
        if isinstance(file.log, Growing):
            file.seen = max(file.seen, state.st_size)
            if younger := self._emptied(file, now):
                log = self._open_first_of(lambda: younger, patient=True)
                return self._begin_file(log, file.number, before=file.before)
            if file.is_at(now):
                file.modified = state.st_mtime_ns
            if state.st_size > file.log.taken:
                self._signal.set()  # it has just grown: try again
                return False
            if file.is_at(now):
                self._idle_since = None
                return False
            if state.st_nlink == 0 and now is not None and await self._is_replaced(file):
                return True
        younger = self._younger(file)
        if younger and state.st_nlink == 0:
            younger = await self._behind_its_copy(file, younger)
        if now is None and not younger:
            self._idle_since = None  # it may come back
            return False
        if isinstance(file.log, Growing):
            time_ = asyncio.get_running_loop().time()
            if self._idle_since is None or self._idle_since[1] != state.st_size:
                self._idle_since = (time_, state.st_size)
                return False
            if time_ < self._idle_since[0] + GRACE_SECONDS:
                return False
        return self._leave(file, rows)

    def _emptied(self, file: _File, now: DirectoryEntry | None) -> list[DirectoryEntry]:
        """Return copies of a file that was copied and truncated before any byte of it was read."""
        if file.log.taken:
            return []
        younger = self._younger(file)
        if not younger or (file.is_at(now) and file.is_at(entry_at(self._path))):
            return younger
        written = file.log.state().st_mtime_ns
        return [entry for entry in younger if entry.modified < written]

    def _leave(self, file: _File, rows: list[Row]) -> bool:
        log = self._open_first_of(lambda: self._younger(file), patient=True)
        if log is None:
            return False
        self._take_last_line(rows)
        if not file.log.taken:  # an empty file gets no number: it may not exist at the next start
            return self._begin_file(log, file.number, before=file.before)
        return self._begin_file(log, file.number + 1, before=file.as_previous)

    async def _is_replaced(self, file: _File) -> bool:
        """Check whether a removed file is at the path again, perhaps longer; if so, continue there."""
        log = self._open_first_of(list, patient=True) if file.log.taken else None
        if log is None or not await self._continues(file, log):
            return False
        self._continue_in(log)
        return True

    async def _behind_its_copy(
        self, file: _File, younger: list[DirectoryEntry]
    ) -> list[DirectoryEntry]:
        """Return the rotated files younger than the copy of this file, which was itself removed."""
        for number, entry in enumerate(younger):
            log = open_log(entry, rotated=True) if file.log.taken else None
            if log is not None and await self._continues(file, log):
                log.close()
                file.device, file.inode = entry.device, entry.inode
                file.modified = entry.modified
                return younger[number + 1 :]
        return younger

    async def _continues(self, file: _File, log: Log) -> bool:
        """Whether `log` begins with the bytes read of `file`; if not, it is closed."""
        try:
            found = await matches(log, file.known)
        except BaseException:
            log.close()
            raise
        if not found:
            log.close()
        return found

    async def _after_truncation(self, file: _File, rows: list[Row]) -> bool:
        """Continue in the copy made before the truncation, or otherwise with the next file."""
        named = sorted(
            (e for e in other_entries(self._path) if may_hold(self._path, e)), key=lambda e: e.age
        )
        for entry in sorted(named, key=lambda e: e.modified < file.modified):
            with suppress(InputError):  # unreadable or compressed differently: cannot be identified
                log = open_log(entry, rotated=True)
                if log is not None and await self._continues(file, log):
                    self._continue_in(log)
                    return True
        now = entry_at(self._path)
        if now is None:
            return False
        if file.seen > file.log.taken:
            self._report_missing(file.log.taken, file.seen, self._line, self._rows)
            file.seen = file.log.taken
        if not file.is_at(now) and isinstance(file.log, Growing):  # then it was rotated
            self._take_last_line(rows)
            file.log.rewind()
            return self._begin_file(file.log, file.number + 1, before=file.before)
        return self._leave(file, rows)

    def _take_last_line(self, rows: list[Row]) -> None:
        """Take the last line of a file that the reader leaves, although it has no newline."""
        format_ = self._format
        if self._long is not None:
            self._end_long_row(rows, ends_in_newline=False)
            return
        last = self._buffer[self._lead :]
        taken = 0 if self._cut is None else self._byte - self._cut
        if format_.is_blank(last[taken:]):
            return
        if taken:
            self._refuse_rest(last, rows)
        elif self._header_due or not format_.is_whole(last):
            what = "the header is incomplete" if self._header_due else "a quote is not closed"
            rows.append(format_.bad(self._rows, self._line, last, f"{what} at the end of the file"))
        else:
            format_.decode([last], rows, self._rows, self._line)
        self._take_last(last[taken:], rows)

    def _report_missing(self, byte: int, seen: int, line: int, row: int) -> None:
        """Report that rows may be missing: log it with ``on_missing="skip"``, otherwise raise.

        Raises:
            InputError: `on_missing` is "fail".
        """
        if self._following.on_missing == "skip":
            logger().warning(
                "rows_missing", path=self._path, bytes_read=byte, bytes_seen=seen, line=line
            )
            return
        more = f" It had {seen:,} bytes when last seen." if seen > byte else ""
        name = os.path.basename(self._path)
        raise InputError(
            f"{self._path}: the file at this path was read up to byte {byte:,} (line {line}, row "
            f"{row:,}), and its rows up to there are processed.{more} It is no longer here, and no "
            f"file in the directory with a name like {name}.1 or {name}.1.gz begins with the bytes "
            "that were read. Rows that were written before it was rotated, truncated or removed may "
            "therefore be missing. Bring the file back under such a name, or give "
            'on_missing="skip" to continue without these rows at the start of the current file, or '
            f"{READ_AGAIN}"
        )

    # -- positions

    def _describe(
        self, row: int, place: RowBoundary[_File | None], proof: HeadAndTail
    ) -> dict[str, Any]:
        if self._stored is not None:
            found: dict[str, Any] = msgspec.to_builtins(self._stored)
            return found
        file = place.file
        known = fingerprint(place.byte, proof.head, proof.tail)
        described = {
            "format": self._format.name,
            "row": row,
            "byte": place.byte,
            "line": place.line,
            "cut": place.cut,
            "file": self._path if file is None else file.log.name,
            "number": 0 if file is None else file.number,
            "device": 0 if file is None else file.device,
            "inode": 0 if file is None else file.inode,
            "before": None if file is None else msgspec.to_builtins(file.before),
            "modified": self._youngest_at_begin if file is None else file.modified,
            "seen": 0 if file is None else max(file.seen, place.byte),
            "head": known.head,
            "tail": known.tail,
        }
        if file is not None and not place.byte and file.log.taken:
            described["begins"] = msgspec.to_builtins(file.known)
        return described

    def _name_of(self, path: str) -> str:
        if path == self._path:
            return path
        directory, name = os.path.split(path)
        return f"{self._path} (now {name if directory == os.path.dirname(self._path) else path})"


def _places(path: str) -> set[tuple[str, str]]:
    """Return directory and name of a path and, for a link, of its target."""
    return {os.path.split(path), os.path.split(os.path.realpath(path))}


def _outline(state: os.stat_result) -> tuple[int, int, int]:
    """Return the attributes that change when a file is written, renamed or removed."""
    return state.st_size, state.st_mtime_ns, state.st_nlink
