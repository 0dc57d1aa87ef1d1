"""Discovery of files that match a pattern or appear in a directory.

Each new file is a partition, identified by the path at which it was first seen. These do not count as
new files:

* a renamed file: it has the inode of a known file that is no longer at its path, and the same head;
* a rotated sibling (``app.log.1`` beside ``app.log``), which the reader of ``app.log`` finds itself;
* a link to a known file;
* an empty file: it has no rows yet, and may still be renamed.

New files are numbered by modification time, then by name.
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
from millwheel.files.followed_path import DENIED_SECONDS
from millwheel.files.followed_position import first_position
from millwheel.files.rotation import PACKED_NAMES, bases, packing
from millwheel.files.watching import Signal, logger

HEAD_BYTES = 1024
"""Size of a file's head, which distinguishes it from a later file with the same inode."""


class Pattern:
    """A pattern or directory that selects files."""

    def __init__(self, given: str) -> None:
        self.given = given
        self.is_directory = given.endswith(os.sep)
        """Whether it selects a directory's regular files that are neither hidden nor compressed."""
        self.absolute = os.path.abspath(given)
        if self.is_directory:
            self._glob = os.path.join(glob.escape(self.absolute), "*")
        else:
            self._glob = self.absolute

    def paths(self) -> list[str]:
        """The paths that match now."""
        return glob.glob(self._glob, recursive=True)

    def directories(self) -> Iterator[str]:
        """The directories in which a new matching file, or a new directory above one, would appear."""
        place = os.path.dirname(self._glob)
        while glob.has_magic(place):
            yield from (p for p in glob.glob(place, recursive=True) if os.path.isdir(p))
            place = os.path.dirname(place)
        yield self.absolute if self.is_directory else place

    def may_match(self, name: str) -> bool:
        """Whether a file of this name, or one in a directory of this name, may match."""
        return glob.has_magic(os.path.dirname(self._glob)) or self.matches(name)

    def matches(self, path: str) -> bool:
        """Whether a path matches, given that another file in its directory does."""
        return fnmatchcase(os.path.basename(path), os.path.basename(self._glob))


class _Known(msgspec.Struct):
    """The identity of a known file."""

    device: int
    number: int
    """Inode number."""
    size: int
    """Size of the head, bytes."""
    head: str
    """Digest of the head."""
    youngest: int = 0
    """Modification time of its youngest rotated sibling when the file was found; 0: it had none."""


class _DiscoveryPosition(msgspec.Struct):
    files: dict[str, _Known]
    """Known files, by the path at which they were first seen."""
    renamed: dict[str, _Known]
    """Renamed files, by their current path."""


class _Found(msgspec.Struct):
    path: str
    inode: tuple[int, int]
    """Device and inode number."""
    modified: int
    size: int
    is_link: bool


def _bases_of(path: str) -> list[str]:
    """Return the paths that a file may be a rotated sibling of."""
    directory, name = os.path.split(path)
    return [os.path.join(directory, base) for base in bases(name)]


class FileDiscovery:
    """Discovers files that match a pattern."""

    def __init__(
        self, pattern: Pattern, poll_seconds: float, position: dict[str, Any] | None
    ) -> None:
        self._pattern = pattern
        self._poll_seconds = poll_seconds
        stored = (
            _DiscoveryPosition({}, {})
            if position is None
            else msgspec.convert(position, _DiscoveryPosition)
        )
        self._known, self._renamed = stored.files, stored.renamed
        self._signal = Signal()
        self._watched: set[str] = set()
        self._settled: set[str] = set()
        """Names that need no new scan when they change."""
        self._warned: set[str] = set()
        """Paths of compressed files that were logged as not followed."""
        self._denied: dict[str, float] = {}
        """Files without read permission and the time since; the permission may still be granted."""

    async def look(self) -> list[str]:
        """Scan for files; return the first-seen paths of all files found so far, in numbering order.

        Raises:
            InputError: a directory or a file cannot be read.
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
        """Return the known files that are no longer at their path, by inode."""
        at = {file.path: file.inode for file in found}
        known = {**self._renamed, **self._known}
        return {
            (file.device, file.number): file
            for path, file in known.items()
            if at.get(path) != (file.device, file.number)
        }

    def _scan(self) -> tuple[set[str], list[_Found], dict[str, int]]:
        """Scan the file system.

        Returns:
            The directories, the matching files, and for paths with rotated siblings the modification
            time of the youngest.
        """
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
                continue  # removed since, or a dangling link
            if os.path.isfile(path):
                found.append(
                    _Found(
                        path, (state.st_dev, state.st_ino), state.st_mtime_ns, state.st_size,
                        os.path.islink(path),
                    )
                )  # fmt: skip
        return directories, found, youngest

    def _is_same(self, known: _Known, file: _Found, head: tuple[int, str]) -> bool:
        """Whether a file is the known one: same inode and same head."""
        if file.inode != (known.device, known.number):
            return False
        size, digest = head
        if size > known.size:
            digest = self._digest(file.path, known.size)
        return size >= known.size and digest == known.head

    def _head(self, file: _Found) -> tuple[int, str] | None:
        """Return size and digest of a file's head; None: it is removed, excluded or not readable yet."""
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
            if file.path not in self._warned:
                self._warned.add(file.path)
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
        """Wait until a file may have appeared."""
        await self._signal.wait(self._poll_seconds)

    def first_position(self, path: str) -> dict[str, Any]:
        """Return the position of a file that is not opened yet.

        It holds the file's inode and head, since the file may be renamed before it is opened.
        """
        known = self._known[path]
        return first_position(
            path, known.device, known.number, known.youngest, known.size, known.head
        )

    def position(self) -> dict[str, Any]:
        """Return the state to store: inode and head of each file."""
        found: dict[str, Any] = msgspec.to_builtins(_DiscoveryPosition(self._known, self._renamed))
        return found

    def close(self) -> None:
        """Remove all watches."""
        self._signal.close()
