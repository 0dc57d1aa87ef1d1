"""Search for the file of a stored position: at its path, renamed, copied, compressed or moved.

::

    the position has acknowledged bytes   the file that begins with them, preferably the same
                                          inode; if there is none, rows may be missing, and the
                                          search ends with the next file
    it has none                           the same, by the bytes that were read ahead, or seen
    no byte was ever seen                 the next file of the path
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from millwheel.errors import InputError
from millwheel.files.catalogue import NOTHING, KnownFile
from millwheel.files.content import Fingerprint, Log, matches
from millwheel.files.directory import DirectoryEntry, siblings
from millwheel.files.file_rows import RowFormat
from millwheel.files.followed_path import FollowedPath, NextFile
from millwheel.files.followed_position import FollowedFile, FollowedPosition
from millwheel.files.packed import CHUNK_BYTES
from millwheel.files.reader import BOM

ATTEMPTS = 3
"""Searches for the file that was read, ATTEMPT_SECONDS apart, before it counts as missing."""
ATTEMPT_SECONDS = 0.3
"""Time between two searches: a rename or compression may be in progress."""


@dataclass(frozen=True)
class ReadFile:
    file: FollowedFile
    shrunk_to: int | None
    """Its size, if it is a copy that is smaller than the file was: rows may be missing."""


class Removed:
    """The only file to read was removed or truncated."""


class PositionSearch:
    """Finds the file that was read up to a position, or the file to be read next.

    Args:
        path: the followed path.
        format_: reads the header of a file that is not read from its start.
    """

    def __init__(self, path: FollowedPath, format_: RowFormat) -> None:
        self._path = path
        self._format = format_

    async def find(
        self, position: FollowedPosition | None, *, patient: bool
    ) -> ReadFile | NextFile | Removed | None:
        """Open the file of a position or, without a position, the first file; None if there is
        none.

        Args:
            patient: the reader has started: a missing file may come back, and is not searched in
                other directories; a file that must not be opened may become readable.

        Raises:
            InputError: the file is missing, and `on_missing` is "fail"; or it cannot be followed.
        """
        path = self._path
        number = path.catalogue.next_number if position is None else position.number
        known = path.catalogue.get(number)
        if position is None or known is None:
            return path.open_next(number, patient=patient)
        seen = max(position.seen, known.known.byte)
        for _ in range(ATTEMPTS):
            now, others = path.entry(), path.others()
            if (now is None or path.is_one_file) and not patient:
                others += path.elsewhere()
            if found := await self._find(position, known, now, others):
                return found
            if not seen or (not known.known.byte and path.unread()):
                return path.open_next(number, patient=patient)
            if now is None and not path.is_one_file:
                return None  # it may come back
            await asyncio.sleep(ATTEMPT_SECONDS)
        rotated = siblings(path.path, others)  # another name may have the inode of a removed file
        is_truncated = any(e is not None and e.inode == known.place for e in (now, *rotated))
        was_left = path.catalogue.get(number + 1) is not None
        is_read = position.byte > 0 and (is_truncated or was_left or path.is_one_file)
        if not is_read or seen > position.byte:
            path.report_missing(position.byte, seen, position.line, position.row)
        if path.is_one_file:
            return Removed()
        if position.byte:
            path.catalogue.note(number, known.place, position.acknowledged)
        return path.open_next(number + 1, patient=patient)

    async def _find(
        self,
        position: FollowedPosition,
        known: KnownFile,
        now: DirectoryEntry | None,
        others: list[DirectoryEntry],
    ) -> ReadFile | None:
        path = self._path
        present = others if now is None else [now, *others]
        same = [entry for entry in present if entry.inode == known.place]
        begins = position.acknowledged if position.byte else known.known
        for entry in same:
            if path.catalogue.begins(entry, begins) and (
                found := await self._open(entry, position, is_surely=True)
            ):
                return found
        for bytes_ in dict.fromkeys((known.known, begins)):
            for entry in path.copies(position.number, bytes_, others):
                if found := await self._open(entry, position, is_surely=False):
                    return found
        if now in same and position.format and not position.byte:  # it has been corrected
            return await self._open(now, position, is_surely=True, is_corrected=True)
        return None

    async def _open(
        self,
        entry: DirectoryEntry,
        position: FollowedPosition,
        *,
        is_surely: bool,
        is_corrected: bool = False,
    ) -> ReadFile | None:
        path = self._path
        try:
            log = await path.open_behind(entry, position.acknowledged)
            if log is not None and self._format.has_header and position.byte:
                log = await self._with_header(log, position.acknowledged)
        except InputError:
            if is_surely:
                raise
            return None
        if log is None:
            return None
        is_copy = entry.path != path.path and not is_surely and not log.packed
        shrunk = is_copy and entry.size < position.seen
        before = path.catalogue.get(position.number)
        known = NOTHING if before is None or is_corrected else before.known
        return ReadFile(FollowedFile(log, position.number, known), entry.size if shrunk else None)

    async def _with_header(self, log: Log, known: Fingerprint) -> Log:
        try:
            log.rewind()
            await self._read_header(log)
            log.rewind()
            await matches(log, known)
        except BaseException:
            log.close()
            raise
        return log

    async def _read_header(self, log: Log) -> None:
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
