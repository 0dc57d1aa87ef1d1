"""Followed files: read a path and, across rotations, all files that were or will be at it.

::

    file 0 (now app.log.2)  file 1 (now app.log.1)  file 2 (app.log)
    |-----------------------|-----------------------|-------------......
    numbers from 0          from FILE_ROWS          from 2 * FILE_ROWS

A row's number is made of the file's number and the row's number in that file. So a row that is
appended to a file after the reader has left it, and read after a restart, gets a number that no
other row has. At the end of the current file (`millwheel.files.catalogue` recognizes files)::

    this file is at the path    wait
    no file is at the path      wait: it may come back
    another file is at the path wait until this file has not grown for GRACE_SECONDS; then continue
                                with the rotated files that were not read, then with the path
    this file was truncated     continue in the copy that was made before, if there is one in the
                                directory; then as above. Without a copy, either all rows were read,
                                or rows are missing

The reader takes the last line of a file that it leaves as it is: no writer will complete it. In a
directory, where each file is a partition, it ends when its file was removed or truncated, or has
not grown for FINISHED_SECONDS.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from math import inf
from typing import Any, NamedTuple

import msgspec

from millwheel.errors import InputError
from millwheel.files.catalogue import NOTHING, Catalogue
from millwheel.files.content import Growing, Log, Rewritten
from millwheel.files.directory import DirectoryEntry
from millwheel.files.file_rows import RowFormat
from millwheel.files.followed_path import FollowedPath, Following, NextFile, outline
from millwheel.files.followed_position import (
    FILE_ROWS,
    FollowedFile,
    FollowedPosition,
    HeadAndTail,
    position_at,
    read_position,
)
from millwheel.files.packed import CHUNK_BYTES
from millwheel.files.position_search import ATTEMPTS, PositionSearch, ReadFile, Removed
from millwheel.files.reader import FileReader, RowBoundary
from millwheel.files.watching import logger
from millwheel.sources import Lag, Row

GRACE_SECONDS = 0.3
"""A renamed file is left when it has not grown for this time."""
FINISHED_SECONDS = 600.0
"""A file of a directory is finished when it was read to its end and has not grown for this time."""


class _Idle(NamedTuple):
    """A file that has not grown, and may be left after some seconds."""

    size: int
    seconds: float
    since: float

    @property
    def left(self) -> float:
        return max(0.0, self.since + self.seconds - asyncio.get_running_loop().time())


class FollowedReader(FileReader[HeadAndTail, FollowedFile | None]):
    """Reads the successive files at a path, without end.

    `FollowedPath` finds the files in the directory, `PositionSearch` the file of a stored position.
    """

    def __init__(self, format_: RowFormat, following: Following) -> None:
        self._path = FollowedPath(following)
        self._poll_seconds = following.poll_seconds
        self._search = PositionSearch(self._path, format_)
        self._stored: FollowedPosition | None = None
        self._truncated = self.ended = False
        self._idle: _Idle | None = None
        self._searches = 0
        """Searches without success for the next file, which had its number before a restart."""
        self._last_snapshot: object = None
        super().__init__(format_, HeadAndTail(), None)

    # -- the Reader protocol

    @property
    def promised(self) -> object:
        """The files with numbers, the inode of the current one, and whether it has given rows.

        The position must be stored before these rows are sent: it makes the file known by its
        content.
        """
        file, number = self._file, self._path.catalogue.next_number
        if file is None:
            return number, None, False
        return number, file.inode, self._rows > file.number * FILE_ROWS

    async def read(self, limit: int) -> Sequence[Row]:
        self._path.signal.clear()
        if self._file is None and self._failure is None:
            self._last_snapshot = self._path.snapshot(None)
            await self._find(patient=True)
        return await super().read(limit)

    async def wait(self) -> None:
        path, signal = self._path, self._path.signal
        while True:
            seconds = min(self._poll_seconds, GRACE_SECONDS if path.is_denied else inf)
            if self._idle is not None:
                seconds = min(seconds, self._idle.left)
            if (
                await signal.wait(seconds)
                or path.is_denied
                or (self._idle is not None and not self._idle.left)
                or self._last_snapshot != path.snapshot(self._file)
            ):
                return

    def progress(self) -> None:
        """Return None: there is no end."""

    def lag(self) -> Lag:
        """Bytes not yet returned as rows, of this file and of those to be read next."""
        if self.ended:
            return Lag(bytes=0)
        waiting = 0
        file = self._file
        with suppress(InputError):
            now = self._path.entry()
            if (file is None or not file.is_at(now)) and not self._path.is_one_file:
                self._note()
                waiting += now.size if now is not None else 0
                waiting += sum(entry.size for entry in self._path.unread())
        if file is not None and isinstance(file.log, Growing):
            size = file.log.state().st_size
            file.seen = max(file.seen, size)
            waiting += max(0, size - self._byte)
        return Lag(bytes=waiting)

    def close(self) -> None:
        self._path.signal.close()
        if self._file is not None:
            self._file.log.close()

    # -- the file to begin with

    async def begin(self, stored: dict[str, Any] | None) -> None:
        """Find the file of the stored position and continue in it, or start at the path.

        Raises:
            InputError: the file is missing or cannot be followed.
        """
        path = self._path
        path.watch()
        if stored is None:
            path.catalogue.skip(path.siblings())
        else:
            self._stored = read_position(stored, path.path, self._format.name)
            path.catalogue = Catalogue(self._stored.files)
            self._rows = self._acknowledged = self._stored.row
        await self._find(patient=False)
        if self._file is None and not self.ended:
            logger().info("file_not_there_yet", path=path.path)

    async def _find(self, *, patient: bool) -> None:
        position = self._stored
        found = await self._search.find(position, patient=patient)
        if isinstance(found, ReadFile):
            assert position is not None
            self._resume(found, position)
        elif isinstance(found, NextFile):
            self._begin_file(found)
        elif isinstance(found, Removed):
            self.ended = True
            return
        if found is not None:
            self._stored = None

    def _resume(self, found: ReadFile, position: FollowedPosition) -> None:
        file = found.file
        log = file.log
        cut = position.cut if isinstance(log, Growing) else None
        place: RowBoundary[FollowedFile | None] = RowBoundary(
            file, position.byte, position.line, cut
        )
        self._go_to(place)
        if cut is not None and isinstance(log, Growing):
            self._buffer = log.between(cut, position.byte)
        self._place = place
        self._proof = HeadAndTail(log.head, log.last)
        self._rows = max(self._rows, position.number * FILE_ROWS)
        self._format.file = self._path.name_of(log.name)
        self._note()
        if (size := found.shrunk_to) is not None:
            self._path.report_missing(size, position.seen, position.line, position.row)

    def _note(self) -> None:
        if (file := self._file) is not None and (known := file.known).byte:
            self._path.catalogue.note(file.number, file.inode, known)

    # -- from one file to the next

    def _begin_file(self, found: NextFile) -> None:
        log, number, catalogue = found.log, found.number, self._path.catalogue
        if self._file is not None:
            self._file.log.close()
        planned = catalogue.get(number)
        file = FollowedFile(log, number, NOTHING if planned is None else planned.known)
        self._format.file = self._path.name_of(log.name)
        self._rows = max(self._rows, number * FILE_ROWS)
        place: RowBoundary[FollowedFile | None] = RowBoundary(file)
        proof = HeadAndTail()
        if (read := found.resumes) is not None:
            catalogue.forget(read.number)
            place, proof = _behind(file, read.known.byte)
        catalogue.note(number, file.inode, file.known)
        self._go_to(place)
        if read is not None or self._place.file is None:  # it is the first file of this reader
            self._move_to(place, proof)
        else:
            self._append_block(0, place, proof)
        self._idle, self._truncated, self._searches = None, False, 0

    def _continue_in(self, log: Log) -> None:
        file = self._file
        assert file is not None
        file.log.close()
        self._file = FollowedFile(log, file.number, file.before)
        self._format.file = self._path.name_of(log.name)
        self._note()
        self._idle = None
        self._truncated = False

    def _read_piece(self, size: int) -> bytes:
        file = self._file
        if file is None or self._truncated:
            return b""
        is_first = not file.log.taken
        if is_first and file.is_another():
            self._truncated = True
            return b""
        try:
            piece = file.log.read(size)
        except Rewritten:
            self._truncated = True
            return b""
        if is_first and piece and isinstance(file.log, Growing) and self._comes_later(file):
            file.log.rewind()  # it was copied and truncated before
            return b""
        file.seen = max(file.seen, file.log.taken)
        return piece

    def _comes_later(self, file: FollowedFile) -> bool:
        """Whether there are older files than one of which nothing was read."""
        if file.before.byte:
            return False  # it has its number
        unread = [entry.inode for entry in self._path.unread()]
        return bool(unread) and unread[0] != file.inode

    async def _at_end(self, rows: list[Row]) -> bool:
        """Wait, or continue with another file; it may be cancelled."""
        file = self._file
        if file is None or rows or self.ended:
            return False
        if self._truncated:
            return await self._after_truncation(file, rows)
        now, state = self._path.entry(), file.log.state()
        self._last_snapshot = now, outline(state)
        if isinstance(file.log, Growing):
            file.seen = max(file.seen, state.st_size)
            is_at_path = file.is_at(now)
            if not file.log.taken and self._comes_later(file):
                return self._leave(file, rows)
            if file.log.is_gone:  # as if it had been truncated: a copy may have its rest
                self._truncated = True
                return await self._after_truncation(file, rows)
            if state.st_size > file.log.taken:
                self._path.signal.set()  # it has just grown: try again
                return False
            if self._path.is_one_file and state.st_nlink:
                return self._finish(state.st_size)
            if is_at_path:
                self._idle = None
                return False
            if state.st_nlink == 0 and now is not None and await self._is_replaced(file, now):
                return True
            if now is None and not self._path.is_one_file and not self._path.unread():
                self._idle = None  # it may come back
                return False
            if not self._rests(state.st_size, GRACE_SECONDS):
                return False
        return self._leave(file, rows)

    def _rests(self, size: int, seconds: float) -> bool:
        if self._idle is None or self._idle[:2] != (size, seconds):
            self._idle = _Idle(size, seconds, asyncio.get_running_loop().time())
            return False
        return not self._idle.left

    def _finish(self, size: int) -> bool:
        """End if the file has not grown for long; a later rest is another partition's.

        A file that ends within a row is not finished.
        """
        if self._byte < size or self._cut is not None:
            self._idle = None
        elif self._rests(size, FINISHED_SECONDS):
            self._end()
        return False

    def _end(self) -> None:
        self._note()
        self.ended = True
        if self._file is not None and isinstance(self._file.log, Growing):
            self._file.log.rest()

    def _leave(self, file: FollowedFile, rows: list[Row]) -> bool:
        self._note()
        if self._path.is_one_file:
            self._take_last_line(rows)
            self._end()
            return bool(rows)
        # an empty file gets no number: it may not exist at the next start
        number = file.number + bool(file.log.taken)
        found = self._path.open_next(number, patient=True)
        if found is None:
            self._search_again(number)
            return False
        self._take_last_line(rows)
        if found.resumes is not None and any(block.row < block.end_row for block in self._blocks):
            # a stored position may still name the number that the file had before
            found.log.close()
            self._idle = _Idle(file.log.taken, GRACE_SECONDS, asyncio.get_running_loop().time())
            return bool(rows)
        self._begin_file(found)
        return True

    def _search_again(self, number: int) -> None:
        """Wait for the file that had a number before a restart; at last, its rows are missing."""
        lost = self._path.is_lost(number)
        if lost is None:
            return
        self._searches += 1
        if self._searches >= ATTEMPTS:
            self._path.report_missing(0, lost.known.byte, 1, number * FILE_ROWS)
            self._path.catalogue.forget(number)
            self._path.signal.set()

    async def _is_replaced(self, file: FollowedFile, now: DirectoryEntry) -> bool:
        """Whether a removed file is at the path again, perhaps longer; then continue there."""
        log = await self._path.open_behind(now, file.known) if file.log.taken else None
        if log is None:
            return False
        self._continue_in(log)
        return True

    async def _after_truncation(self, file: FollowedFile, rows: list[Row]) -> bool:
        self._note()
        copy = await self._path.open_copy(file)
        if copy is not None:
            self._continue_in(copy)
            return True
        is_alone = self._path.is_one_file
        if not is_alone and self._path.entry() is None and not self._path.unread():
            return False
        if file.seen > file.log.taken:
            self._path.report_missing(file.log.taken, file.seen, self._line, self._rows)
            file.seen = file.log.taken
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
            problem = "the header is incomplete" if self._header_due else "a quote is not closed"
            rows.append(
                format_.bad(self._rows, self._line, last, f"{problem} at the end of the file")
            )
        else:
            format_.decode([last], rows, self._rows, self._line)
        size = len(last) - taken
        self._cover(1, size, self._line, [size], 0, cut=self._byte + self._lead)

    def _describe(
        self, row: int, place: RowBoundary[FollowedFile | None], proof: HeadAndTail
    ) -> dict[str, Any]:
        if self._stored is not None:
            found: dict[str, Any] = msgspec.to_builtins(self._stored)
            return found
        self._note()
        return position_at(self._format.name, row, place, proof, self._path.catalogue)


def _behind(file: FollowedFile, byte: int) -> tuple[RowBoundary[FollowedFile | None], HeadAndTail]:
    log = file.log
    assert isinstance(log, Growing)
    proof, lines = HeadAndTail(), 1
    for start in range(0, byte, CHUNK_BYTES):
        piece = log.between(start, min(byte, start + CHUNK_BYTES))
        proof.update(piece)
        lines += piece.count(b"\n")
    log.start_at(byte, proof.head, proof.tail)
    return RowBoundary(file, byte, lines), proof
