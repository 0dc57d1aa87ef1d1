"""Files that appear: those that match a pattern, or are in a directory.

Each new file is a partition, named by the path at which it was seen first. These are no new files:

* one that was renamed: it has the inode of a known one that is not at its path any more, and begins alike;
* a rotated sibling (``app.log.1`` beside ``app.log``), which the reader of the other finds by itself;
* a second name of a file that is known, by a link;
* an empty one: it has no rows yet, and may still be renamed.

New ones are numbered in the order of their modification times, then of their names.
"""

from __future__ import annotations

import asyncio
import glob
import os
from collections.abc import Iterator
from contextlib import suppress
from fnmatch import fnmatchcase
from io import FileIO
from typing import Any

import msgspec
import xxhash

from millwheel.errors import InputError
from millwheel.files.following import DENIED_SECONDS, first_position
from millwheel.files.rotation import PACKED_NAMES, bases, packing
from millwheel.files.watching import Signal, logger

HEAD_BYTES = 1024
"""Of a file, by which it is told from another one that got its inode."""


class Pattern:
    """Which files are meant."""

    def __init__(self, given: str) -> None:
        self.given = given
        self.is_directory = given.endswith(os.sep)
        """All regular files in it that are neither hidden nor packed."""
        self.absolute = os.path.abspath(given)
        if self.is_directory:
            self._glob = os.path.join(glob.escape(self.absolute), "*")
        else:
            self._glob = self.absolute

    def paths(self) -> list[str]:
        """The paths that match now."""
        return glob.glob(self._glob, recursive=True)

    def directories(self) -> Iterator[str]:
        """Where a new file or a new directory on the way to one would show."""
        place = os.path.dirname(self._glob)
        while glob.has_magic(place):
            yield from (p for p in glob.glob(place, recursive=True) if os.path.isdir(p))
            place = os.path.dirname(place)
        yield self.absolute if self.is_directory else place

    def may_match(self, name: str) -> bool:
        """Whether a file of this name, or one in a directory of this name, may match."""
        return glob.has_magic(os.path.dirname(self._glob)) or self.matches(name)

    def matches(self, path: str) -> bool:
        """Whether a file in the directory of one that matches does so too."""
        return fnmatchcase(os.path.basename(path), os.path.basename(self._glob))


class _Known(msgspec.Struct):
    """How to know a file again."""

    device: int
    number: int
    """Of the inode."""
    size: int
    """Of the head."""
    head: str
    youngest: int = 0
    """When its youngest rotated sibling was written last, when it was found."""


class _Position(msgspec.Struct):
    files: dict[str, _Known]
    """By the path at which they were seen first."""
    renamed: dict[str, _Known]
    """By the other path that they have now."""


class _Found(msgspec.Struct):
    path: str
    inode: tuple[int, int]
    """The device, and the number on it."""
    modified: int
    size: int
    is_link: bool


def _bases_of(path: str) -> list[str]:
    """The paths of which a file may be a rotated sibling."""
    directory, name = os.path.split(path)
    return [os.path.join(directory, base) for base in bases(name)]


class FileDiscovery:
    """Looks for files."""

    def __init__(
        self, pattern: Pattern, poll_seconds: float, position: dict[str, Any] | None
    ) -> None:
        self._pattern = pattern
        self._poll_seconds = poll_seconds
        stored = _Position({}, {}) if position is None else msgspec.convert(position, _Position)
        self._known, self._renamed = stored.files, stored.renamed
        self._signal = Signal()
        self._watched: set[str] = set()
        self._settled: set[str] = set()
        """Names about which a look would find out nothing new."""
        self._told: set[str] = set()
        self._denied: dict[str, float] = {}
        """The files that may not be opened now, and since when; they may get their rights yet."""

    async def look(self) -> list[str]:
        """The paths at which files were seen first, of all that were found so far, in the order in
        which new ones are numbered.

        Raises:
            InputError: a directory or a file may not be read.
        """
        self._signal.clear()
        directories, found, youngest = await asyncio.to_thread(self._scan)
        for directory in directories - self._watched:
            self._signal.watch(directory, self._concerns)
            self._watched.add(directory)
        found.sort(key=lambda file: (file.is_link, file.modified, file.path))
        paths = {file.path for file in found} | self._known.keys()
        moved = self._moved(found)
        renamed, self._renamed = self._renamed, {}
        taken: set[tuple[int, int]] = set()
        for file in found:
            if (inode := file.inode) in taken or not file.size:
                continue
            is_known = file.path in self._known
            if not is_known and not paths.isdisjoint(_bases_of(file.path)):
                continue
            head = self._head(file)
            if head is None:
                continue
            taken.add(inode)
            was = moved.get(inode) or renamed.get(file.path)
            if not is_known and was is not None and self._is_same(was, file, head):
                self._renamed[file.path] = _Known(*inode, *head)
                continue
            self._known[file.path] = _Known(*inode, *head, youngest.get(file.path, 0))
        self._settled = {
            os.path.basename(file.path)
            for file in found
            if file.size and file.path not in self._denied
        }
        return list(self._known)

    def _moved(self, found: list[_Found]) -> dict[tuple[int, int], _Known]:
        """The known files that are at another path now, by their inodes."""
        at = {file.path: file.inode for file in found}
        known = {**self._renamed, **self._known}
        return {
            (file.device, file.number): file
            for path, file in known.items()
            if at.get(path) != (file.device, file.number)
        }

    def _scan(self) -> tuple[set[str], list[_Found], dict[str, int]]:
        """The directories, the files that match, and when the youngest rotated sibling of a path
        was written last."""
        found = []
        youngest: dict[str, int] = {}
        directories = set(self._pattern.directories())
        for directory in directories:
            try:
                with os.scandir(directory) as entries:
                    for entry in entries:
                        for base in _bases_of(entry.path):
                            with suppress(FileNotFoundError):
                                modified = entry.stat(follow_symlinks=False).st_mtime_ns
                                youngest[base] = max(youngest.get(base, 0), modified)
            except FileNotFoundError:
                continue
            except OSError as error:
                raise InputError(
                    f"{self._pattern.given}: {directory} cannot be listed: {error.strerror}"
                ) from error
        for path in self._pattern.paths():
            try:
                state = os.stat(path)
            except OSError:
                continue  # gone again, or a link that leads nowhere
            if os.path.isfile(path):
                found.append(
                    _Found(
                        path, (state.st_dev, state.st_ino), state.st_mtime_ns, state.st_size,
                        os.path.islink(path),
                    )
                )  # fmt: skip
        return directories, found, youngest

    def _is_same(self, known: _Known, file: _Found, head: tuple[int, str]) -> bool:
        """Whether a file is one that is known: it has its inode, and begins alike."""
        if file.inode != (known.device, known.number):
            return False
        size, digest = head
        if size > known.size:
            digest = self._digest(file.path, known.size)
        return size >= known.size and digest == known.head

    def _head(self, file: _Found) -> tuple[int, str] | None:
        """Size and digest of its first bytes; None: it is none of those that are meant, or gone."""
        known = self._known.get(file.path)
        if (
            known is not None
            and (known.device, known.number) == file.inode
            and known.size == min(file.size, HEAD_BYTES)
        ):
            return known.size, known.head
        try:
            with FileIO(file.path) as opened:
                head = opened.read(HEAD_BYTES)
        except FileNotFoundError:
            return None
        except OSError as error:
            now = asyncio.get_running_loop().time()
            if now < self._denied.setdefault(file.path, now) + DENIED_SECONDS:
                return None
            raise InputError(f"{file.path}: cannot be opened: {error.strerror}") from error
        self._denied.pop(file.path, None)
        if self._pattern.is_directory and (packing(head) or file.path.endswith(PACKED_NAMES)):
            if file.path not in self._told:
                self._told.add(file.path)
                logger().warning("packed_file_not_followed", path=file.path)
            return None
        return len(head), xxhash.xxh3_128_hexdigest(head)

    def _digest(self, path: str, size: int) -> str:
        try:
            with FileIO(path) as opened:
                return xxhash.xxh3_128_hexdigest(opened.read(size))
        except OSError:
            return ""

    def _concerns(self, name: str) -> bool:
        return name not in self._settled and self._pattern.may_match(name)

    async def wait(self) -> None:
        """Return when a file may have appeared."""
        await self._signal.wait(self._poll_seconds)

    def first_position(self, path: str) -> dict[str, Any]:
        """Which file is meant, by its inode and its head: it may be renamed before it is opened."""
        known = self._known[path]
        return first_position(
            path, known.device, known.number, known.youngest, known.size, known.head
        )

    def position(self) -> dict[str, Any]:
        """The inode and the head of each file."""
        found: dict[str, Any] = msgspec.to_builtins(_Position(self._known, self._renamed))
        return found

    def close(self) -> None:
        """Watch nothing more."""
        self._signal.close()
