"""Search for the file of a stored position: at its path, renamed, copied, compressed or moved.

::

    the position has acknowledged bytes     the file that begins with them, preferably the same inode;
                                            if there is none, rows may be missing, and the search ends
                                            with the next file
    it has none                             the same inode, or the next file of the path
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from millwheel.errors import InputError
from millwheel.files.followed_path import FollowedPath, likely_copies
from millwheel.files.followed_position import FollowedFile, FollowedPosition, Log, PreviousFile
from millwheel.files.packed import CHUNK_BYTES
from millwheel.files.reader import BOM
from millwheel.files.rotation import DirectoryEntry, matches, open_log, siblings
from millwheel.files.rows import RowFormat

ATTEMPTS = 3
"""Searches for the file that was read, ATTEMPT_SECONDS apart, before it counts as missing."""
ATTEMPT_SECONDS = 0.3
"""Time between two searches: a rename or compression may be in progress."""


@dataclass(frozen=True)
class UnreadFile:
    """A file to be read from its start."""

    log: Log
    number: int
    before: PreviousFile | None


@dataclass(frozen=True)
class ReadFile:
    """The file of a position, in which reading continues there."""

    file: FollowedFile
    shrunk_to: int | None
    """Its size, if it is a copy that is smaller than the file was: rows may be missing."""


class PositionSearch:
    """Finds the file that was read up to a position, or the file to be read next.

    Args:
        path: the followed path.
        format_: reads the header of a file whose rows are not read from its start.
    """

    def __init__(self, path: FollowedPath, format_: RowFormat) -> None:
        self._path = path
        self._format = format_

    async def find(
        self, position: FollowedPosition | None, *, patient: bool
    ) -> ReadFile | UnreadFile | None:
        """Open the file of a position or, without a position, the first file; None if there is none.

        Args:
            patient: the reader has started: a missing file may come back, and is not searched in
                other directories; a file that must not be opened may become readable.

        Raises:
            InputError: the file is missing, and `on_missing` is "fail"; or it cannot be followed.
        """
        path = self._path
        if position is None:
            log = path.open_first_of(path.older, patient=patient)
            return _unread(log, 0, before=None)
        for _ in range(ATTEMPTS):
            now, others = path.entry(), path.others()
            moved = path.elsewhere() if now is None and not patient else []
            if not position.byte:
                others += moved
                return await self._find_unread(position, now, others, patient=patient)
            if found := await self._find_read(position, now, others, moved):
                return found
            if now is None:
                return None  # it may come back
            await asyncio.sleep(ATTEMPT_SECONDS)
        known = (position.device, position.inode)
        rotated = siblings(path.path, others)
        assert now is not None
        is_truncated = any((e.device, e.inode) == known for e in [now, *rotated])
        if not is_truncated or position.seen > position.byte:
            path.report_missing(position.byte, position.seen, position.line, position.row)
        log = path.open_first_of(lambda: path.since(position.modified), patient=patient)
        return _unread(log, position.number + 1, before=position.as_previous)

    async def _find_read(
        self,
        position: FollowedPosition,
        now: DirectoryEntry | None,
        others: list[DirectoryEntry],
        moved: list[DirectoryEntry],
    ) -> ReadFile | None:
        """Open the file that holds the bytes read so far; in another directory, only the same inode."""
        known = (position.device, position.inode)
        for entry in [*others, *moved] if now is None else [now, *others]:
            if (entry.device, entry.inode) == known and (
                found := await self._open(entry, position)
            ):
                return found
        named = likely_copies(self._path.path, others)
        if now is not None:
            named.append(now)
        # a copy of the file, plain or compressed, is not older than the file
        for entry in sorted(named, key=lambda e: e.modified < position.modified):
            if found := await self._open(entry, position):
                return found
        return None

    async def _find_unread(
        self,
        position: FollowedPosition,
        now: DirectoryEntry | None,
        others: list[DirectoryEntry],
        *,
        patient: bool,
    ) -> ReadFile | UnreadFile | None:
        """Open a file without acknowledged bytes, which no fingerprint identifies."""
        path = self._path
        number, before = position.number, position.before
        if not position.format and path.older():
            log = path.open_first_of(path.older, patient=patient)
            return _unread(log, number, before)
        for entry in others:
            if position.is_at(entry):
                return await self._open(entry, position)
        if now is None:
            return None
        if position.begins is not None and position.is_at(now):
            return _unread(path.open_first_of(list, patient=patient), number, before)
        since = position.modified - bool(position.seen)
        log = path.open_first_of(
            lambda: [e for e in path.since(since) if before is None or not before.is_at(e)],
            patient=patient,
        )
        return _unread(log, number, before)

    async def _open(self, entry: DirectoryEntry, position: FollowedPosition) -> ReadFile | None:
        """Open this file at the position if it is the one that was read."""
        is_path = entry.path == self._path.path
        is_surely = (entry.device, entry.inode) == (position.device, position.inode)
        try:
            log = open_log(entry, rotated=not is_path)
        except InputError:
            if is_surely:
                raise
            return None
        if log is None:
            return None
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
                return None
            raise
        if not found:
            log.close()
            return None
        file = FollowedFile(log, position.number, position.before)
        if not is_path:
            file.modified = position.modified
        is_copy = not is_path and not is_surely and not log.packed
        return ReadFile(file, entry.size if is_copy and entry.size < position.seen else None)

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


def _unread(log: Log | None, number: int, before: PreviousFile | None) -> UnreadFile | None:
    return None if log is None else UnreadFile(log, number, before)
