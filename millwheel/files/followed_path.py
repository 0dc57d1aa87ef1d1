"""A followed path and its directory: the file there, its rotated siblings and its copies."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal, TypeAlias

from millwheel.errors import InputError
from millwheel.files.followed_position import FollowedFile, Log
from millwheel.files.packed import READ_AGAIN
from millwheel.files.rotation import (
    Denied,
    DirectoryEntry,
    entry_at,
    matches,
    may_hold,
    open_log,
    other_entries,
    siblings,
)
from millwheel.files.watching import Signal, logger

DENIED_SECONDS = 5.0
"""Time for a new file to become readable, before reading ends with an error."""

OnMissing: TypeAlias = Literal["fail", "skip"]


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


class FollowedPath:
    """Finds and opens the files at a path and beside it."""

    def __init__(self, following: Following) -> None:
        self._following = following
        self.path = following.path
        self.signal = Signal()
        """Set when something in the directory may have changed."""
        self.youngest_at_begin = 0
        """Modification time of the youngest rotated sibling at the start, if the path did not exist."""
        self._denied_at: float | None = None
        """Since when opening the file at the path has been denied."""

    def watch(self) -> None:
        """Watch the directories of the path and, if it is a link, of its target."""
        for directory, name in _places(self.path):
            self.signal.watch(directory, name.__eq__)

    # -- the directory

    def entry(self) -> DirectoryEntry | None:
        """Return the file at the path; None if there is none.

        Raises:
            InputError: it is not a regular file, or cannot be accessed.
        """
        return entry_at(self.path)

    def others(self) -> list[DirectoryEntry]:
        """Return the other regular files in the directory."""
        return other_entries(self.path)

    def snapshot(self, file: FollowedFile | None) -> object:
        """Return a value that changes when files may have changed; for polling.

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
        """Return the rotated siblings of the path, oldest first."""
        return siblings(self.path, self.others())

    def since(self, modified: int) -> list[DirectoryEntry]:
        """Return the rotated siblings modified after a time, oldest first."""
        return [entry for entry in self.siblings() if entry.modified > modified]

    def younger(self, file: FollowedFile | None) -> list[DirectoryEntry]:
        """Return the rotated siblings younger than a file, oldest first; without a file, all."""
        found = self.siblings()
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

    def older(self) -> list[DirectoryEntry]:
        """Return the rotated siblings to read before the path, when nothing has been read yet."""
        takes = self._following.takes_older
        if self.youngest_at_begin:  # siblings since the start have been at the path
            return [
                e
                for e in self.since(0)
                if e.modified > self.youngest_at_begin or (takes and takes(e.path))
            ]
        return [] if takes is None else [entry for entry in self.since(0) if takes(entry.path)]

    def elsewhere(self) -> list[DirectoryEntry]:
        """Return files in other directories that may be the file that was at the path."""
        find = self._following.elsewhere
        directory = os.path.dirname(self.path)
        found = []
        for path in find() if find is not None else ():
            if os.path.dirname(path) != directory:
                with suppress(InputError):  # for example a directory
                    found.append(entry_at(path))
        return [entry for entry in found if entry is not None]

    def name_of(self, path: str) -> str:
        """Return the name under which messages refer to a file of this path."""
        if path == self.path:
            return path
        directory, name = os.path.split(path)
        return f"{self.path} (now {name if directory == os.path.dirname(self.path) else path})"

    # -- opening

    @property
    def is_denied(self) -> bool:
        """Whether opening the file at the path is denied at present."""
        return self._denied_at is not None

    def open_first_of(
        self, find: Callable[[], list[DirectoryEntry]], *, patient: bool
    ) -> Log | None:
        """Open the first rotated file that `find` returns, or otherwise the file at the path.

        Args:
            patient: wait DENIED_SECONDS for the permission to open it.

        Returns:
            None: the file does not exist, or not any more.
        """
        younger = find()
        entry = younger[0] if younger else self.entry()
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
            self.signal.set()  # files have just been renamed: try again
        return log

    # -- copies

    def copies_before_reading(
        self, file: FollowedFile, now: DirectoryEntry | None
    ) -> list[DirectoryEntry]:
        """Return copies of a file that was copied and truncated before any byte of it was read."""
        if file.log.taken:
            return []
        younger = self.younger(file)
        if not younger or (file.is_at(now) and file.is_at(self.entry())):
            return younger
        return written_before(file, younger)

    async def younger_than_copy(
        self, file: FollowedFile, younger: list[DirectoryEntry]
    ) -> list[DirectoryEntry]:
        """Return the rotated files younger than the copy of a file, which was itself removed."""
        for number, entry in enumerate(younger):
            log = open_log(entry, rotated=True) if file.log.taken else None
            if log is not None and await continues(file, log):
                log.close()
                file.device, file.inode = entry.device, entry.inode
                file.modified = entry.modified
                return younger[number + 1 :]
        return younger

    async def open_copy(self, file: FollowedFile) -> Log | None:
        """Open the copy of a file, made before it was truncated, behind the bytes that were read."""
        named = likely_copies(self.path, self.others())
        for entry in sorted(named, key=lambda e: e.modified < file.modified):
            with suppress(InputError):  # unreadable or compressed differently: cannot be identified
                log = open_log(entry, rotated=True)
                if log is not None and await continues(file, log):
                    return log
        return None

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
            f"{row:,}), and its rows up to there are processed.{more} It is no longer here, and no "
            f"file in the directory with a name like {name}.1 or {name}.1.gz begins with the bytes "
            "that were read. Rows that were written before it was rotated, truncated or removed may "
            "therefore be missing. Bring the file back under such a name, or give "
            'on_missing="skip" to continue without these rows at the start of the current file, or '
            f"{READ_AGAIN}"
        )


def likely_copies(path: str, entries: list[DirectoryEntry]) -> list[DirectoryEntry]:
    """Return the files that may be copies of the file at a path, judged by name; oldest first."""
    return sorted((e for e in entries if may_hold(path, e)), key=lambda e: e.age)


def written_before(file: FollowedFile, entries: list[DirectoryEntry]) -> list[DirectoryEntry]:
    """Return the entries that were last changed before `file` was."""
    changed = file.log.state().st_mtime_ns
    return [entry for entry in entries if entry.modified < changed]


async def continues(file: FollowedFile, log: Log) -> bool:
    """Whether `log` begins with the bytes read of `file`; if not, it is closed."""
    try:
        found = await matches(log, file.known)
    except BaseException:
        log.close()
        raise
    if not found:
        log.close()
    return found


def outline(state: os.stat_result) -> tuple[int, int, int]:
    """Return the attributes that change when a file is written, renamed or removed."""
    return state.st_size, state.st_mtime_ns, state.st_nlink


def _places(path: str) -> set[tuple[str, str]]:
    """Return directory and name of a path and, for a link, of its target."""
    return {os.path.split(path), os.path.split(os.path.realpath(path))}
