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
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import msgspec

from millwheel.errors import InputError
from millwheel.files.followed_path import (
    FollowedPath,
    Following,
    continues,
    outline,
    written_before,
)
from millwheel.files.followed_position import (
    FILE_ROWS,
    FollowedFile,
    FollowedPosition,
    HeadAndTail,
    Log,
    PreviousFile,
    position_at,
    read_position,
)
from millwheel.files.position_search import PositionSearch, ReadFile
from millwheel.files.reader import FileReader, RowBoundary
from millwheel.files.rotation import Growing, Rewritten
from millwheel.files.rows import RowFormat
from millwheel.files.watching import logger
from millwheel.sources import Lag, Row

GRACE_SECONDS = 0.3
"""A renamed file is left when it has not grown for this time."""


class FollowedReader(FileReader[HeadAndTail, FollowedFile | None]):
    """Reads the successive files at a path, without end.

    `FollowedPath` finds the files in the directory, `PositionSearch` the file of a stored position.
    """

    def __init__(self, format_: RowFormat, following: Following) -> None:
        self._path = FollowedPath(following)
        self._poll_seconds = following.poll_seconds
        self._search = PositionSearch(self._path, format_)
        self._stored: FollowedPosition | None = None
        """The position to resume at, until its file is found."""
        self._truncated = False
        self._idle_since: tuple[float, int] | None = None
        """Since when the renamed file has not grown, and its size."""
        self._last_snapshot: object = None
        """The file system's state at the last read."""
        super().__init__(format_, HeadAndTail(), None)

    # -- the Reader protocol

    @property
    def ended(self) -> bool:
        """Always false: a followed path does not end."""
        return False

    async def read(self, limit: int) -> Sequence[Row]:
        """Return up to `limit` further complete rows."""
        self._path.signal.clear()
        if self._file is None and self._failure is None:
            self._last_snapshot = self._path.snapshot(None)
            await self._find(patient=True)
        return await super().read(limit)

    async def wait(self) -> None:
        """Wait until something changed, or until a renamed file may be left."""
        path, signal = self._path, self._path.signal
        while True:
            seconds = self._poll_seconds
            if self._idle_since is not None or path.is_denied:
                await signal.wait(min(seconds, GRACE_SECONDS))
                return
            if await signal.wait(seconds) or self._last_snapshot != path.snapshot(self._file):
                return

    def progress(self) -> None:
        """Return None: there is no end."""

    def lag(self) -> Lag:
        """The number of bytes not yet returned as rows: of this file and of those to be read next."""
        waiting = 0
        file = self._file
        with suppress(InputError):
            now = self._path.entry()
            if file is None or not file.is_at(now):
                waiting += now.size if now is not None else 0
                waiting += sum(entry.size for entry in self._path.younger(file))
        if file is not None and isinstance(file.log, Growing):
            waiting += max(0, file.log.state().st_size - self._byte)
        return Lag(bytes=waiting)

    def close(self) -> None:
        """Close the file and remove all watches."""
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
        if stored is not None:
            self._stored = read_position(stored, path.path, self._format.name)
            self._rows = self._acknowledged = self._stored.row
        youngest = max((entry.modified for entry in path.since(0)), default=1)
        await self._find(patient=False)
        if self._file is None:
            path.youngest_at_begin = youngest
            logger().info("file_not_there_yet", path=path.path)

    async def _find(self, *, patient: bool) -> None:
        """Open the file to read, if it exists."""
        position = self._stored
        found = await self._search.find(position, patient=patient)
        if isinstance(found, ReadFile):
            assert position is not None
            self._resume(found, position)
        elif found is not None:
            self._begin_file(found.log, found.number, found.before)
        if found is not None:
            self._stored = None

    def _resume(self, found: ReadFile, position: FollowedPosition) -> None:
        """Continue in the file of the stored position."""
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
        if (size := found.shrunk_to) is not None:
            self._path.report_missing(size, position.seen, position.line, position.row)

    # -- from one file to the next

    def _begin_file(self, log: Log | None, number: int, before: PreviousFile | None) -> bool:
        """Continue at the start of a file; return False if there is none."""
        if log is None:
            return False
        if self._file is not None and self._file.log is not log:
            self._file.log.close()
        file = FollowedFile(log, number, before)
        self._format.file = self._path.name_of(log.name)
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
        other = FollowedFile(log, file.number, file.before)
        if log.name != self._path.path:
            other.modified = file.modified
        file.log.close()
        self._file = other
        self._format.file = self._path.name_of(log.name)
        self._idle_since = None
        self._truncated = False

    def _read_piece(self, size: int) -> bytes:
        file = self._file
        if file is None or self._truncated:
            return b""
        if not file.log.taken and self._path.copies_before_reading(file, self._path.entry()):
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
        now, state = self._path.entry(), file.log.state()
        self._last_snapshot = now, outline(state)
        if isinstance(file.log, Growing):
            file.seen = max(file.seen, state.st_size)
            if younger := self._path.copies_before_reading(file, now):
                log = self._path.open_first_of(lambda: younger, patient=True)
                return self._begin_file(log, file.number, before=file.before)
            if file.is_at(now):
                file.modified = state.st_mtime_ns
            if state.st_size > file.log.taken:
                self._path.signal.set()  # it has just grown: try again
                return False
            if file.is_at(now):
                self._idle_since = None
                return False
            if state.st_nlink == 0 and now is not None and await self._is_replaced(file):
                return True
        younger = self._path.younger(file)
        if younger and state.st_nlink == 0:
            younger = await self._path.younger_than_copy(file, younger)
        if now is None and not younger:
            self._idle_since = None  # it may come back
            return False
        if isinstance(file.log, Growing) and not self._rests(state.st_size):
            return False
        return self._leave(file, rows)

    def _rests(self, size: int) -> bool:
        """Whether the file, of this size now, has not grown for GRACE_SECONDS."""
        now = asyncio.get_running_loop().time()
        if self._idle_since is None or self._idle_since[1] != size:
            self._idle_since = (now, size)
            return False
        return now >= self._idle_since[0] + GRACE_SECONDS

    def _leave(self, file: FollowedFile, rows: list[Row]) -> bool:
        log = self._path.open_first_of(lambda: self._path.younger(file), patient=True)
        if log is None:
            return False
        self._take_last_line(rows)
        if not file.log.taken:  # an empty file gets no number: it may not exist at the next start
            return self._begin_file(log, file.number, before=file.before)
        return self._begin_file(log, file.number + 1, before=file.as_previous)

    async def _is_replaced(self, file: FollowedFile) -> bool:
        """Check whether a removed file is at the path again, perhaps longer; if so, continue there."""
        log = self._path.open_first_of(list, patient=True) if file.log.taken else None
        if log is None or not await continues(file, log):
            return False
        self._continue_in(log)
        return True

    async def _after_truncation(self, file: FollowedFile, rows: list[Row]) -> bool:
        """Continue in the copy made before the truncation, or otherwise with the next file."""
        copy = await self._path.open_copy(file)
        if copy is not None:
            self._continue_in(copy)
            return True
        now = self._path.entry()
        if now is None:
            return False
        if file.seen > file.log.taken:
            self._path.report_missing(file.log.taken, file.seen, self._line, self._rows)
            file.seen = file.log.taken
        was_rotated = not file.is_at(now) and isinstance(file.log, Growing)
        if was_rotated and not written_before(file, self._path.younger(file)):
            self._take_last_line(rows)  # what was written to it since comes next
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

    def _describe(
        self, row: int, place: RowBoundary[FollowedFile | None], proof: HeadAndTail
    ) -> dict[str, Any]:
        if self._stored is not None:
            found: dict[str, Any] = msgspec.to_builtins(self._stored)
            return found
        path = self._path
        return position_at(path.path, self._format.name, row, place, proof, path.youngest_at_begin)
