"""A followed path: the file there, and the files of its directory that were or will be at it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal, TypeAlias

from millwheel.errors import InputError
from millwheel.files.catalogue import Catalogue, KnownFile
from millwheel.files.content import Denied, Fingerprint, Log, matches, open_log
from millwheel.files.directory import (
    DirectoryEntry,
    bases,
    entry_at,
    may_follow,
    may_hold,
    other_entries,
    siblings,
)
from millwheel.files.followed_position import FollowedFile
from millwheel.files.packed import READ_AGAIN
from millwheel.files.watching import Signal, logger

DENIED_SECONDS = 5.0
"""Time for a new file to become readable, before reading ends with an error."""

OnMissing: TypeAlias = Literal["fail", "skip"]


@dataclass(frozen=True)
class Following:
    path: str
    poll_seconds: float
    on_missing: OnMissing
    is_one_file: bool = False
    """Whether to read only this file, until it is removed or truncated: other partitions read the
    rest."""
    elsewhere: Callable[[], list[str]] | None = None
    """Returns further paths to search when the file is no longer in its directory."""


@dataclass(frozen=True)
class NextFile:
    log: Log
    number: int
    resumes: KnownFile | None = None
    """It is a file that was read before, has come back, and has grown."""


class FollowedPath:
    def __init__(self, following: Following) -> None:
        self._following = following
        self.path = following.path
        self.is_one_file = following.is_one_file
        self.signal = Signal()
        self.catalogue = Catalogue()
        self._denied_at: float | None = None

    def watch(self) -> None:
        """Watch the directories of the path and, if it is a link, of its target."""
        for directory, name in _places(self.path):
            self.signal.watch(directory, name.__eq__)

    # -- the directory

    def entry(self) -> DirectoryEntry | None:
        """The file at the path; None if there is none.

        Raises:
            InputError: it is not a regular file, or cannot be accessed.
        """
        return entry_at(self.path)

    def others(self) -> list[DirectoryEntry]:
        return other_entries(self.path)

    def snapshot(self, file: FollowedFile | None) -> object:
        """A value that changes when files may have changed; for polling.

        Args:
            file: the file that is read now.
        """
        try:
            now = self.entry()
        except InputError:
            now = None
        if file is not None:
            return now, outline(file.log.state())
        # a file may appear at the path and be renamed between two polls
        with suppress(OSError):
            return now, os.stat(os.path.dirname(self.path)).st_mtime_ns
        return now, None

    def siblings(self) -> list[DirectoryEntry]:
        """The rotated files by their names, oldest first. An empty one has no rows yet."""
        if self.is_one_file:
            return []
        return [e for e in siblings(self.path, self.others()) if self.catalogue.size(e)]

    def unread(self) -> list[DirectoryEntry]:
        found, now = self.siblings(), self.entry()
        known = self.catalogue.recognize(found, now)
        return [e for e in found if e not in known and (now is None or e.inode != now.inode)]

    def elsewhere(self) -> list[DirectoryEntry]:
        """Files in other directories that may be the file that was at the path."""
        find = self._following.elsewhere
        directory = os.path.dirname(self.path)
        found = []
        for path in find() if find is not None else ():
            if os.path.dirname(path) != directory:
                with suppress(InputError):  # for example a directory
                    found.append(entry_at(path))
        return [entry for entry in found if entry is not None]

    def name_of(self, path: str) -> str:
        if path == self.path:
            return path
        directory, name = os.path.split(path)
        return f"{self.path} (now {name if directory == os.path.dirname(self.path) else path})"

    # -- opening

    @property
    def is_denied(self) -> bool:
        return self._denied_at is not None

    def open_next(self, number: int, *, patient: bool) -> NextFile | None:
        """Open the next file: the one with this number before a restart; the oldest unread rotated
        file; or the file at the path. None: there is none, or not any more.

        Args:
            patient: wait DENIED_SECONDS for the permission to open it.

        Raises:
            InputError: it cannot be opened.
        """
        found, now = self.siblings(), self.entry()
        known = self.catalogue.recognize(found, now)
        planned = self.catalogue.get(number)
        is_planned = planned is not None and planned.known.byte > 0
        if planned is not None and is_planned:
            entry = self._find_planned(planned, known, now)
        else:
            unread = [e for e in found if e not in known and (now is None or e.inode != now.inode)]
            entry = unread[0] if unread else now
        if entry is None:
            return None
        read = known.get(entry) if entry is now and not is_planned else None
        if read is not None and read.known.byte >= entry.size:
            return None  # it was read, and has been put back
        log = self._open(entry, patient=patient)
        if log is None:
            return None
        if entry is now and not is_planned and self.unread():
            log.close()  # the file that was at the path until now must be read first
            self.signal.set()
            return None
        self.catalogue.prune(known.values())
        return NextFile(log, number, read)

    def _is_rotated(self, entry: DirectoryEntry) -> bool:
        return entry.path != self.path or (self.is_one_file and bool(bases(entry.name)))

    def _open(self, entry: DirectoryEntry, *, patient: bool) -> Log | None:
        try:
            log = open_log(entry, rotated=self._is_rotated(entry))
        except Denied:
            clock = asyncio.get_running_loop().time()
            self._denied_at = self._denied_at or clock
            if not patient or clock >= self._denied_at + DENIED_SECONDS:
                raise
            return None
        self._denied_at = None
        if log is None:
            self.signal.set()  # files have just been renamed: try again
        return log

    def _find_planned(
        self,
        planned: KnownFile,
        known: dict[DirectoryEntry, KnownFile],
        now: DirectoryEntry | None,
    ) -> DirectoryEntry | None:
        others = self.others()
        for entry in others if now is None else (now, *others):
            if entry.inode == planned.place and self.catalogue.begins(entry, planned.known):
                return entry
        found = [entry for entry, file in known.items() if file is planned]
        found += self.copies(planned.number, planned.known, others)
        return found[0] if found else None

    def is_lost(self, number: int) -> KnownFile | None:
        """The file that had a number before a restart, if it is not here any more."""
        planned, now = self.catalogue.get(number), self.entry()
        if planned is None or not planned.known.byte:
            return None
        known = self.catalogue.recognize(self.siblings(), now)
        return planned if self._find_planned(planned, known, now) is None else None

    # -- copies

    def copies(
        self, number: int, known: Fingerprint, others: list[DirectoryEntry]
    ) -> list[DirectoryEntry]:
        """The files that begin with the known bytes of a file, the longest first: copies, or from a
        backup.

        A name must begin like the path, and files with another number do not count.
        """
        now, file = self.entry(), self.catalogue.get(number)
        if self.is_one_file:
            place = None if file is None else file.place
            own = {entry.name for entry in others if entry.inode == place}
            is_here = bool(own) or (now is not None and now.inode == place)
            own.add(os.path.basename(self.path))
            named = [e for e in others if any(may_follow(e.name, name) for name in own)]
            if not is_here and not any(self.catalogue.holds(entry, known) for entry in named):
                named = [e for e in others if e.name.endswith(".gz")]  # renamed, and compressed
        else:
            named = [entry for entry in others if may_hold(self.path, entry)]
        taken = self.catalogue.recognize(named, now)
        if now is not None:
            named.append(now)
        return sorted(
            (
                entry
                for entry in named
                if (entry not in taken or taken[entry].number == number)
                and self.catalogue.holds(entry, known)
            ),
            key=lambda entry: -self.catalogue.size(entry),
        )

    async def open_copy(self, file: FollowedFile) -> Log | None:
        others = self.others()
        for bytes_ in dict.fromkeys((file.known, file.read)):
            for entry in self.copies(file.number, bytes_, others):
                if not file.is_at(entry) and (log := await self.open_behind(entry, file.read)):
                    return log
        return None

    async def open_behind(self, entry: DirectoryEntry, known: Fingerprint) -> Log | None:
        """Open a file behind the bytes of a fingerprint; None if it does not begin with them.

        Raises:
            InputError: it cannot be read, or is compressed in a way that cannot be read.
        """
        log = open_log(entry, rotated=self._is_rotated(entry))
        if log is None:
            return None
        try:
            found = await matches(log, known)
        except BaseException:
            log.close()
            raise
        if not found:
            log.close()
            return None
        return log

    # -- missing rows

    def report_missing(self, byte: int, seen: int, line: int, row: int) -> None:
        """Report that rows may be missing: log it with ``on_missing="skip"``, otherwise raise.

        Args:
            byte: number of bytes of the file that were read.
            seen: largest size that the file is known to have had.
            line: line number of the first row that was not read.
            row: number of that row.

        Raises:
            InputError: `on_missing` is "fail".
        """
        if self._following.on_missing == "skip":
            logger().warning(
                "rows_missing", path=self.path, bytes_read=byte, bytes_seen=seen, line=line
            )
            return
        more = f" It had {seen:,} bytes when last seen." if seen > byte else ""
        name = os.path.basename(self.path)
        raise InputError(
            f"{self.path}: the file at this path was read up to byte {byte:,} (line {line}, row "
            f"{row:,}), and its rows up to there are processed.{more} It is no longer here, and "
            f"no file in the directory with a name like {name}.1 or {name}.1.gz begins with the "
            "bytes that were read. Rows that were written before it was rotated, truncated or "
            "removed may therefore be missing. Bring the file back under such a name, or give "
            'on_missing="skip" to continue without these rows at the start of the current file, '
            f"or {READ_AGAIN}"
        )


def outline(state: os.stat_result) -> tuple[int, int, int]:
    """The attributes that change when a file is written, renamed or removed."""
    return state.st_size, state.st_mtime_ns, state.st_nlink


def _places(path: str) -> set[tuple[str, str]]:
    return {os.path.split(path), os.path.split(os.path.realpath(path))}
