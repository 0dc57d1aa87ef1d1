"""Files that are followed: a path, and all the files that it was and will be.

::

    file 0 (now app.log.2)  file 1 (now app.log.1)  file 2 (app.log)
    |-----------------------|-----------------------|-------------......
    numbers from 0          from FILE_ROWS          from 2 * FILE_ROWS

Rows are numbered by file and by row in it. So numbers rise, and do not depend on what is appended to a
file after it was left: such a row, read after a restart, gets a number that no other has.

When there is nothing more to read::

    the path is this file       wait
    there is nothing at the path  wait: it may come back
    the path is another file    wait until this one is at its end at two looks, GRACE_SECONDS apart; then
                                go on with the younger rotated siblings, and with the path
    this file was truncated     go on in the copy that was made of it before, if there is one beside; then
                                as above. Without a copy: all was read, or rows are missing

The last line of a file that was left, if it has no newline, is taken as it is: nobody will finish it.
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
from millwheel.files.packed import CHUNK_BYTES, READ_ANEW
from millwheel.files.reader import BOM, FileReader, Place
from millwheel.files.rotation import (
    FINGERPRINT_BYTES,
    Denied,
    Entry,
    Fingerprint,
    Growing,
    Rewritten,
    Unpacking,
    begins_with,
    beside,
    fingerprint,
    look,
    matches,
    may_be,
    open_log,
    siblings,
)
from millwheel.files.rows import RowFormat
from millwheel.files.watching import Signal, logger
from millwheel.sources import Lag, Row

FILE_ROWS = 1 << 40
"""Numbers for the rows of one file."""
GRACE_SECONDS = 0.3
"""A file that was renamed is left when nothing was appended to it for so long."""
LOOKS = 3
"""For a file that was read, before it is missed; GRACE_SECONDS apart."""
DENIED_SECONDS = 5.0
"""A new file that may not be opened gets its rights within this time, or reading ends."""

OnMissing: TypeAlias = Literal["fail", "skip"]
Log: TypeAlias = Growing | Unpacking


class Trail:
    """A proof of what is acknowledged of a file: its first and its last bytes."""

    __slots__ = ("head", "tail")

    def __init__(self, head: bytes = b"", tail: bytes = b"") -> None:
        self.head = head
        self.tail = tail

    def update(self, data: bytes | memoryview) -> None:
        if len(self.head) < FINGERPRINT_BYTES:
            self.head += bytes(data[: FINGERPRINT_BYTES - len(self.head)])
        self.tail = (self.tail + bytes(data[-FINGERPRINT_BYTES:]))[-FINGERPRINT_BYTES:]

    def copy(self) -> Trail:
        return Trail(self.head, self.tail)


class Left(msgspec.Struct, frozen=True):
    """The file that was read before another one: it is not read again if it is written to late."""

    device: int
    inode: int
    fingerprint: Fingerprint

    def is_at(self, entry: Entry) -> bool:
        return (entry.device, entry.inode) == (self.device, self.inode) and begins_with(
            entry, self.fingerprint
        )


class _File:
    """One of the files that the path has been."""

    def __init__(self, log: Log, number: int, before: Left | None) -> None:
        self.log = log
        self.number = number
        self.before = before
        state = log.state()
        self.device, self.inode = state.st_dev, state.st_ino
        self.seen = 0 if log.packed else state.st_size
        """Bytes that are known to have been in it."""
        self.modified = state.st_mtime_ns
        """When it was written last, as far as it is known to have been at the path."""

    def is_at(self, entry: Entry | None) -> bool:
        return entry is not None and (entry.device, entry.inode) == (self.device, self.inode)

    @property
    def known(self) -> Fingerprint:
        """Up to where it was read."""
        return fingerprint(self.log.taken, self.log.head, self.log.last)

    @property
    def left(self) -> Left:
        """This file, once it is left."""
        return Left(self.device, self.inode, self.known)


class _Position(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What is stored: the place of the first row not acknowledged, and how to know the file again."""

    format: str
    """How it was cut into rows; empty if it was only found, and not opened yet."""
    row: int
    byte: int
    line: int
    cut: int | None
    file: str
    """Where it was found last."""
    number: int
    """How many files the path had been before it."""
    device: int
    inode: int
    before: Left | None
    modified: int
    seen: int
    head: str
    tail: str
    begins: Fingerprint | None = None
    """Of a file of which nothing is acknowledged: what it begins with, if that is known."""

    def check(self) -> None:
        if min(self.row, self.byte, self.number) < 0 or not 0 <= (self.cut or 0) <= self.byte:
            raise ValueError("its numbers do not fit together")

    @property
    def fingerprint(self) -> Fingerprint:
        return Fingerprint(self.byte, self.head, self.tail)

    def is_at(self, entry: Entry) -> bool:
        """Whether an entry is the file, by its inode and by how it began."""
        return (entry.device, entry.inode) == (self.device, self.inode) and (
            self.begins is None or begins_with(entry, self.begins)
        )

    @property
    def left(self) -> Left:
        """This file, once it is left."""
        return Left(self.device, self.inode, self.fingerprint)


def first_position(
    path: str, device: int, inode: int, modified: int, size: int, head: str
) -> dict[str, Any]:
    """The position of a file that was found, and not opened yet.

    Args:
        modified: its rotated siblings were written up to then when it was found.
        size: the bytes by which it is known, which is how many it has, or a few of them.
        head: their digest.
    """
    nothing = fingerprint(0, b"", b"")
    found: dict[str, Any] = msgspec.to_builtins(
        _Position(
            "", 0, 0, 1, None, path, 0, device, inode, None, modified, 0,
            nothing.head, nothing.tail, Fingerprint(size, head, ""),
        )
    )  # fmt: skip
    return found


@dataclass(frozen=True)
class Following:
    """How a path is followed."""

    path: str
    """Absolute."""
    poll_seconds: float
    on_missing: OnMissing
    takes_older: Callable[[str], bool] | None = None
    """Which rotated siblings are read too, before the path, where nothing was read yet."""
    elsewhere: Callable[[], list[str]] | None = None
    """Where the file may be besides, if it is not in its directory any more."""


class FollowedReader(FileReader[Trail, _File | None]):
    """Reads the files that a path is, one after the other, for ever."""

    def __init__(self, format_: RowFormat, following: Following) -> None:
        self._following = following
        self._path = following.path
        self._signal = Signal()
        self._stored: _Position | None = None
        """Where to go on, until the file is found."""
        self._truncated = False
        self._left_at: tuple[float, int] | None = None
        """Since when the file was seen at its end while the path was another, and its size."""
        self._denied_at: float | None = None
        """Since when the file at the path may not be opened."""
        self._looked: object = None
        """What the file system said at the last look."""
        self._begun_at = 0
        """The youngest rotated sibling when the path was looked for and not there."""
        super().__init__(format_, Trail(), None)

    # -- the Reader protocol

    @property
    def ended(self) -> bool:
        """It never ends."""
        return False

    async def read(self, limit: int) -> list[Row]:
        """Up to `limit` further rows of those that are whole."""
        self._signal.clear()
        if self._file is None and self._failure is None:
            self._looked = self._look()
            await self._find(patient=True)
        return await super().read(limit)

    async def wait(self) -> None:
        """Return when something changed, or a file that was renamed may be left."""
        while True:
            seconds = self._following.poll_seconds
            if self._left_at is not None or self._denied_at is not None:
                await self._signal.wait(min(seconds, GRACE_SECONDS))
                return
            if await self._signal.wait(seconds) or self._looked != self._look():
                return

    def progress(self) -> None:
        """There is no end."""

    def lag(self) -> Lag:
        """The bytes that were not handed out: of the file, and of those to be read after it."""
        waiting = 0
        file = self._file
        with suppress(InputError):
            now = look(self._path)
            if file is None or not file.is_at(now):
                waiting += now.size if now is not None else 0
                waiting += sum(entry.size for entry in self._younger(file))
        if file is not None and isinstance(file.log, Growing):
            waiting += max(0, file.log.state().st_size - self._byte)
        return Lag(bytes=waiting)

    def close(self) -> None:
        """Close the file, and watch nothing more."""
        self._signal.close()
        if self._file is not None:
            self._file.log.close()

    def _look(self) -> object:
        """Changes when there may be something new; for systems that do not tell."""
        try:
            now = look(self._path)
        except InputError:
            now = None
        if self._file is not None:
            return now, _outline(self._file.log.state())
        # a file may be at the path and be renamed between two looks
        with suppress(OSError):
            return now, os.stat(os.path.dirname(self._path)).st_mtime_ns
        return now, None

    # -- opening

    async def begin(self, stored: dict[str, Any] | None) -> None:
        """Look for the file that was read and go on in it, or begin.

        Raises:
            InputError: it is missing, or cannot be followed.
        """
        for directory, name in _places(self._path):
            self._signal.watch(directory, name.__eq__)
        if stored is not None:
            self._stored = self._understand(stored)
            self._rows = self._acknowledged = self._stored.row
        youngest = max((entry.modified for entry in self._since(0)), default=1)
        await self._find(patient=False)
        if self._file is None:
            self._begun_at = youngest
            logger().info("file_not_there_yet", path=self._path)

    def _understand(self, stored: dict[str, Any]) -> _Position:
        try:
            position = msgspec.convert(stored, _Position)
            position.check()
        except ValueError as error:
            raise InputError(
                f"{self._path}: its stored position {stored!r:.300} cannot be understood: {error}"
            ) from error
        if position.row and position.format != self._format.name:
            raise InputError(
                f"{self._path}: was read as {position.format} before and is {self._format.name} now, "
                f"which numbers the rows differently. Read it as before; or {READ_ANEW}"
            )
        return position

    async def _find(self, *, patient: bool) -> None:
        """Open the file to read, if it is there."""
        position = self._stored
        if position is None:
            log = self._open_first_of(self._older, patient=patient)
            self._begin_file(log, 0, before=None)
        elif await self._find_again(position, patient=patient):
            self._stored = None

    async def _find_again(self, position: _Position, *, patient: bool) -> bool:
        """Open the file that was read up to `position`, or what comes after it."""
        for _ in range(LOOKS):
            now, others = look(self._path), beside(self._path)
            moved = self._elsewhere() if now is None and not patient else []
            if not position.byte:
                others += moved
                return await self._find_unread(position, now, others, patient=patient)
            if await self._find_read(position, now, others, moved):
                return True
            if now is None:
                return False  # it may come back
            await asyncio.sleep(GRACE_SECONDS)  # it may be just being renamed, or packed
        known = (position.device, position.inode)
        rotated = siblings(self._path, others)
        assert now is not None
        is_truncated = any((e.device, e.inode) == known for e in [now, *rotated])
        if not is_truncated or position.seen > position.byte:
            self._miss(position.byte, position.seen, position.line, position.row)
        log = self._open_first_of(lambda: self._since(position.modified), patient=patient)
        return self._begin_file(log, position.number + 1, before=position.left)

    def _elsewhere(self) -> list[Entry]:
        """The files in other directories that may be the one that was at the path."""
        find = self._following.elsewhere
        directory = os.path.dirname(self._path)
        found = []
        for path in find() if find is not None else ():
            if os.path.dirname(path) != directory:
                with suppress(InputError):  # a directory, say
                    found.append(look(path))
        return [entry for entry in found if entry is not None]

    async def _find_read(
        self, position: _Position, now: Entry | None, others: list[Entry], moved: list[Entry]
    ) -> bool:
        """Open the file that holds what was read; in another directory only the very same one."""
        known = (position.device, position.inode)
        for entry in [*others, *moved] if now is None else [now, *others]:
            if (entry.device, entry.inode) == known and await self._resume(entry, position):
                return True
        named = sorted((e for e in others if may_be(self._path, e)), key=lambda e: e.age)
        if now is not None:
            named.append(now)
        # a copy, or what holds it packed, is not older than the file was
        for entry in sorted(named, key=lambda e: e.modified < position.modified):
            if await self._resume(entry, position):
                return True
        return False

    async def _find_unread(
        self, position: _Position, now: Entry | None, others: list[Entry], *, patient: bool
    ) -> bool:
        """Open the file of which nothing is acknowledged: no fingerprint tells it from others."""
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

    async def _resume(self, entry: Entry, position: _Position) -> bool:
        """Go on in this file if it is the one that was read."""
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
        place: Place[_File | None] = Place(file, position.byte, position.line, cut)
        self._go_to(place)
        if cut is not None and isinstance(log, Growing):
            self._buffer = log.between(cut, position.byte)
        self._place = place
        self._proof = Trail(log.head, log.last)
        self._rows = max(self._rows, position.number * FILE_ROWS)
        self._format.file = self._name_of(entry.path)
        if not is_path and not is_surely and not log.packed and entry.size < position.seen:
            self._miss(entry.size, position.seen, position.line, position.row)
        return True

    async def _read_header(self, log: Log) -> None:
        """Take the header of a file that is not read from its begin."""
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

    def _younger(self, file: _File | None) -> list[Entry]:
        """The rotated siblings that came after a file, from old to young; all, without one."""
        found = siblings(self._path, beside(self._path))
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

    def _older(self) -> list[Entry]:
        """The rotated siblings to be read where nothing was read yet."""
        takes = self._following.takes_older
        if self._begun_at:  # what came since was at the path
            return [
                e
                for e in self._since(0)
                if e.modified > self._begun_at or (takes and takes(e.path))
            ]
        return [] if takes is None else [entry for entry in self._since(0) if takes(entry.path)]

    def _since(self, modified: int) -> list[Entry]:
        """The rotated siblings that were written to after a time, from old to young."""
        return [e for e in siblings(self._path, beside(self._path)) if e.modified > modified]

    def _open_first_of(self, find: Callable[[], list[Entry]], *, patient: bool) -> Log | None:
        """Open the first rotated file that is found, or what is at the path if none is.

        Returns:
            None: it is not there, or not any more.
        """
        younger = find()
        entry = younger[0] if younger else look(self._path)
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
            log.close()  # what was at the path until now is to be read before it
            log = None
        if log is None:
            self._signal.set()  # files were renamed just now
        return log

    def _begin_file(self, log: Log | None, number: int, before: Left | None) -> bool:
        """Go on at the begin of a file."""
        if log is None:
            return False
        if self._file is not None and self._file.log is not log:
            self._file.log.close()
        file = _File(log, number, before)
        self._format.file = self._name_of(log.name)
        self._rows = max(self._rows, number * FILE_ROWS)
        self._go_to(Place(file))
        if self._place.file is None:  # it is where this reader begins
            self._place, self._proof = Place(file), Trail()
        else:
            self._append_block(0, Place(file), Trail())
        self._left_at = None
        self._truncated = False
        return True

    def _go_on_in(self, log: Log) -> None:
        """Go on in a file that holds the same as the one that is left."""
        file = self._file
        assert file is not None
        other = _File(log, file.number, file.before)
        if log.name != self._path:
            other.modified = file.modified
        file.log.close()
        self._file = other
        self._format.file = self._name_of(log.name)
        self._left_at = None
        self._truncated = False

    def _read_piece(self, size: int) -> bytes:
        file = self._file
        if file is None or self._truncated:
            return b""
        if not file.log.taken and self._emptied(file, look(self._path)):
            return b""
        try:
            piece = file.log.read(size)
        except Rewritten:
            self._truncated = True
            return b""
        file.seen = max(file.seen, file.log.taken)
        return piece

    async def _at_end(self, rows: list[Row]) -> bool:
        """Wait, or go on with another file; nothing is to be lost if this is cancelled."""
        file = self._file
        if file is None or rows:
            return False
        if self._truncated:
            return await self._after_truncation(file, rows)
        now, state = look(self._path), file.log.state()
        self._looked = now, _outline(state)
        if isinstance(file.log, Growing):
            file.seen = max(file.seen, state.st_size)
            if younger := self._emptied(file, now):
                log = self._open_first_of(lambda: younger, patient=True)
                return self._begin_file(log, file.number, before=file.before)
            if file.is_at(now):
                file.modified = state.st_mtime_ns
            if state.st_size > file.log.taken:
                self._signal.set()  # it grew just now
                return False
            if file.is_at(now):
                self._left_at = None
                return False
            if state.st_nlink == 0 and now is not None and await self._is_replaced(file):
                return True
        younger = self._younger(file)
        if younger and state.st_nlink == 0:
            younger = await self._behind_its_copy(file, younger)
        if now is None and not younger:
            self._left_at = None  # it may come back
            return False
        if isinstance(file.log, Growing):
            time_ = asyncio.get_running_loop().time()
            if self._left_at is None or self._left_at[1] != state.st_size:
                self._left_at = (time_, state.st_size)
                return False
            if time_ < self._left_at[0] + GRACE_SECONDS:
                return False
        return self._leave(file, rows)

    def _emptied(self, file: _File, now: Entry | None) -> list[Entry]:
        """The copies that were made of a file before anything of it was read; then it was truncated."""
        if file.log.taken:
            return []
        younger = self._younger(file)
        if not younger or (file.is_at(now) and file.is_at(look(self._path))):
            return younger
        written = file.log.state().st_mtime_ns
        return [entry for entry in younger if entry.modified < written]

    def _leave(self, file: _File, rows: list[Row]) -> bool:
        log = self._open_first_of(lambda: self._younger(file), patient=True)
        if log is None:
            return False
        self._take_unfinished(rows)
        if not file.log.taken:  # an empty file takes no number: it may be gone at the next start
            return self._begin_file(log, file.number, before=file.before)
        return self._begin_file(log, file.number + 1, before=file.left)

    async def _is_replaced(self, file: _File) -> bool:
        """Whether a file that was removed is at the path again, perhaps longer: then go on there."""
        log = self._open_first_of(list, patient=True) if file.log.taken else None
        if log is None or not await self._continues(file, log):
            return False
        self._go_on_in(log)
        return True

    async def _behind_its_copy(self, file: _File, younger: list[Entry]) -> list[Entry]:
        """The rotated files behind the one that was made of this file, which has no name any more."""
        for number, entry in enumerate(younger):
            log = open_log(entry, rotated=True) if file.log.taken else None
            if log is not None and await self._continues(file, log):
                log.close()
                file.device, file.inode = entry.device, entry.inode
                file.modified = entry.modified
                return younger[number + 1 :]
        return younger

    async def _continues(self, file: _File, log: Log) -> bool:
        """Whether a file begins with what was read of another one; else it is closed."""
        try:
            found = await matches(log, file.known)
        except BaseException:
            log.close()
            raise
        if not found:
            log.close()
        return found

    async def _after_truncation(self, file: _File, rows: list[Row]) -> bool:
        """Go on in the copy that was made before, or else with what comes after."""
        named = sorted(
            (e for e in beside(self._path) if may_be(self._path, e)), key=lambda e: e.age
        )
        for entry in sorted(named, key=lambda e: e.modified < file.modified):
            with suppress(InputError):  # not to be read, or packed otherwise: not known to be it
                log = open_log(entry, rotated=True)
                if log is not None and await self._continues(file, log):
                    self._go_on_in(log)
                    return True
        now = look(self._path)
        if now is None:
            return False
        if file.seen > file.log.taken:
            self._miss(file.log.taken, file.seen, self._line, self._rows)
            file.seen = file.log.taken
        if not file.is_at(now) and isinstance(file.log, Growing):  # it was rotated after that
            self._take_unfinished(rows)
            file.log.rewind()
            return self._begin_file(file.log, file.number + 1, before=file.before)
        return self._leave(file, rows)

    def _take_unfinished(self, rows: list[Row]) -> None:
        """The last line of a file that is left has no newline: nobody will finish it."""
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
            what = "the header is not finished" if self._header_due else "a quote is not closed"
            rows.append(format_.bad(self._rows, self._line, last, f"{what} where the file ends"))
        else:
            format_.decode([last], rows, self._rows, self._line)
        self._take_last(last[taken:], rows)

    def _miss(self, byte: int, seen: int, line: int, row: int) -> None:
        """Rows are not to be found any more.

        Raises:
            InputError: unless they are to be skipped.
        """
        if self._following.on_missing == "skip":
            logger().warning(
                "rows_missing", path=self._path, bytes_read=byte, bytes_seen=seen, line=line
            )
            return
        more = f" It had {seen:,} bytes when it was seen last." if seen > byte else ""
        raise InputError(
            f"{self._path}: the file that was here was read up to byte {byte:,} (line {line}, row "
            f"{row:,}); its rows up to there are processed.{more} It is not here any more, and no "
            f"file beside it begins with what was read, under a name like "
            f"{os.path.basename(self._path)}.1 or {os.path.basename(self._path)}.1.gz. So rows may be "
            "missing that were written before it was rotated, truncated or removed. Bring the file "
            'back under such a name; or give on_missing="skip" to go on without them at the start '
            f"of what is here now; or {READ_ANEW}"
        )

    # -- positions

    def _describe(self, row: int, place: Place[_File | None], proof: Trail) -> dict[str, Any]:
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
            "modified": self._begun_at if file is None else file.modified,
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
    """Directory and name of a path, and of where it leads to if it is a link."""
    return {os.path.split(path), os.path.split(os.path.realpath(path))}


def _outline(state: os.stat_result) -> tuple[int, int, int]:
    """What changes when others write to a file, or rename it."""
    return state.st_size, state.st_mtime_ns, state.st_nlink
