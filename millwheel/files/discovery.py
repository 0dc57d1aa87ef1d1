"""Discovery of files that match a pattern or appear in a directory.

See ``docs/howto/connect/followed-files.md``.

The identity of a file's partition is the path at which it was first seen, with a number if another
file was seen there before: ``/logs/app.log#2``. A file that was truncated and written again is
another one. No file is in two partitions. These are not new files:

* a renamed file: it has the inode of a known file, and begins as that file does;
* a corrected file, at the start: it begins with the acknowledged bytes of the file at its path, or
  nothing was acknowledged and its inode is known;
* the successor of a file that is gone: at the same path, or called like a rotated file of it
  (``app.log.1.gz`` beside ``app.log``), it begins as that file did;
* a copy of a file that is truncated within COPY_SECONDS (*copytruncate*): it is called like a
  rotated file of it, and has nothing but that file's bytes;
* a link to a known file;
* an empty file: it has no rows yet, and may still be renamed.

A rotated file that does not match the pattern is read if it may have been at a known path since
that path was first seen. New files are numbered by modification time, then by name.
"""

from __future__ import annotations

import asyncio
import glob
import os
import re
from collections.abc import Iterator
from fnmatch import fnmatchcase
from typing import Any

import msgspec

from millwheel.errors import InputError
from millwheel.files.catalogue import Catalogue, KnownFile
from millwheel.files.content import FINGERPRINT_BYTES, Fingerprint, Glimpse
from millwheel.files.directory import (
    PACKED_NAMES,
    DirectoryEntry,
    bases,
    entries_of,
    entry_at,
    may_follow,
)
from millwheel.files.followed_path import DENIED_SECONDS
from millwheel.files.followed_position import first_position
from millwheel.files.watching import Signal, logger

COPY_SECONDS = 5.0
"""Time for a file to be truncated after it was copied. Later, the copy is a file of its own."""
MOST_PLACES = 3
ENDED_FILES = 100
"""Number of files that are remembered although they are gone and read to their end."""


class Pattern:
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
        return glob.glob(self._glob, recursive=True)

    def directories(self) -> Iterator[str]:
        """The directories in which a new matching file, or a new directory above one, would
        appear."""
        place = os.path.dirname(self._glob)
        while glob.has_magic(place):
            yield from (p for p in glob.glob(place, recursive=True) if os.path.isdir(p))
            place = os.path.dirname(place)
        yield self.absolute if self.is_directory else place

    def may_match(self, name: str) -> bool:
        return glob.has_magic(os.path.dirname(self._glob)) or self.matches(name)

    def matches(self, path: str) -> bool:
        """Whether a path matches, given that another file in its directory does."""
        return fnmatchcase(os.path.basename(path), os.path.basename(self._glob))


class _Known(msgspec.Struct, array_like=True):
    first: str
    path: str
    places: list[tuple[int, int]]
    """Devices and inodes of its content, the latest last: a copy may have taken its place."""
    begins: Fingerprint
    """Its first bytes; all that was read, if its partition has ended."""
    size: int
    ended: bool = False
    skips: int = 0
    """Number of its first bytes that were read by a partition that has ended."""
    line: int = 1
    """Line number of the byte behind `skips`."""

    def move(self, place: tuple[int, int]) -> None:
        kept = [other for other in self.places if other != place]
        self.places = [*kept[1 - MOST_PLACES :], place]

    def goes_on_in(self, entry: DirectoryEntry, glimpse: Glimpse, *, is_truncated: bool) -> bool:
        """Whether another file, which is called like it, has the content that this one had.

        If its partition has ended, another file may begin with the same few bytes.
        """
        is_sure = is_truncated or entry.path == f"{self.path}.gz" or not self.ended
        return glimpse.begins(self.begins) if is_sure else glimpse.is_copy(self.begins)

    def is_called_like(self, entry: DirectoryEntry) -> bool:
        """Whether a file is at the path of this one, or is called like a rotated file of it."""
        directory = os.path.dirname(entry.path)
        return entry.path in (self.first, self.path) or any(
            os.path.dirname(path) == directory and may_follow(entry.name, os.path.basename(path))
            for path in (self.first, self.path)
        )


class _DiscoveryPosition(msgspec.Struct):
    known: dict[str, _Known]
    skipped: list[KnownFile]
    """Rotated files that were beside a path when it was first seen, and do not match the
    pattern."""


def path_of(identity: str) -> str:
    return re.sub(r"#\d+$", "", identity)


class FileDiscovery:
    def __init__(
        self, pattern: Pattern, poll_seconds: float, position: dict[str, Any] | None
    ) -> None:
        self._pattern = pattern
        self._poll_seconds = poll_seconds
        stored = _DiscoveryPosition({}, [])
        if position is not None:
            try:
                stored = msgspec.convert(position, _DiscoveryPosition)
            except msgspec.ValidationError as error:
                raise InputError(
                    f"{pattern.given}: the stored list of its files is not one of this version "
                    f"({error}). Remove the pipeline with `millwheel drop`, or give it a new name"
                ) from error
        self._known = stored.known
        self._skipped = Catalogue(stored.skipped)
        self._whole: set[int] = set()
        self._acknowledged: dict[int, Fingerprint] = {}
        """Bytes of known files that were acknowledged before this start."""
        self._signal = Signal()
        self._watched: set[str] = set()
        self._settled: set[str] = set()
        """Names that need no new scan when they change."""
        self._glimpses: dict[DirectoryEntry, Glimpse] = {}
        self._copying: dict[tuple[int, int], tuple[int, float]] = {}
        """Files that may be copies in progress: their size, and since when they have it."""
        self._warned: set[str] = set()
        self._denied: dict[str, float] = {}
        """Files without read permission, which may still be granted, and the time since."""

    async def look(self) -> list[str]:
        """Scan for files; return the identities of all that have not ended, in numbering order.

        Raises:
            InputError: a directory or a file cannot be read.
        """
        self._signal.clear()
        directories, matching, others = await asyncio.to_thread(self._scan)
        for directory in directories - self._watched:
            self._signal.watch(directory, self._concerns)
            self._watched.add(directory)
        paths = {path for file in self._known.values() for path in (file.first, file.path)}
        rotated = [entry for entry in others if _is_sibling(entry, paths)]
        found = sorted(matching, key=_order) + sorted(rotated, key=_order)
        self._glimpses = {e: g for e, g in self._glimpses.items() if e in set(found)}
        rest = self._recognize(found)
        skipped = self._skipped.recognize([entry for entry in rest if entry in set(rotated)])
        for entry in rest:
            if entry not in skipped and not self._is_copying(entry):
                self._add(entry, others)
        ended = (file.path for file in self._known.values() if file.ended)
        self._settled = {entry.name for entry in matching if entry.size} - {
            os.path.basename(path) for path in (*self._denied, *(e.path for e in rest), *ended)
        }
        self._forget()
        return [identity for identity, file in self._known.items() if not file.ended]

    def _scan(self) -> tuple[set[str], list[DirectoryEntry], list[DirectoryEntry]]:
        """Scan the file system.

        Returns:
            The directories, the matching files, and the other files of the directories.
        """
        directories = set(self._pattern.directories())
        listed = [e for each in directories for e in entries_of(each, self._pattern.given)]
        matching: dict[tuple[int, int], DirectoryEntry] = {}
        for path in sorted(self._pattern.paths(), key=lambda path: (os.path.islink(path), path)):
            try:
                entry = entry_at(path)
            except InputError:
                continue  # a directory, for example
            if entry is not None:
                matching.setdefault(entry.inode, entry)
        others = [entry for entry in listed if entry.inode not in matching]
        return directories, list(matching.values()), others

    def _recognize(self, found: list[DirectoryEntry]) -> list[DirectoryEntry]:
        by_inode: dict[tuple[int, int], list[_Known]] = {}
        for file in self._known.values():
            for place in file.places:
                by_inode.setdefault(place, []).append(file)
        self._whole = whole = set[int]()
        rest = []
        for entry in found:
            glimpse = self._glimpse(entry) if entry.size else None
            same = by_inode.get(entry.inode, ())
            for file in same:
                if file.places[-1] == entry.inode and not file.ended:
                    file.path = entry.path
            if glimpse is None:
                continue
            known = next((file for file in same if glimpse.begins(file.begins)), None)
            if known is None:
                rest.append(entry)
            elif known.ended and glimpse.size > known.begins.byte:
                self._go_on(known, entry)
            else:
                whole.add(id(known))
                self._note(known, entry, glimpse)
        new, here = [], {entry.inode for entry in found}
        for entry in rest:
            glimpse = self._glimpses[entry]
            for file in self._known.values():
                if id(file) in whole or not file.is_called_like(entry):
                    continue
                is_corrected = self._is_corrected(file, entry, glimpse)
                is_truncated = not here.isdisjoint(file.places)
                if not is_corrected and not file.goes_on_in(
                    entry, glimpse, is_truncated=is_truncated
                ):
                    continue
                if file.ended and glimpse.size > file.begins.byte:
                    self._go_on(file, entry)
                    break
                whole.add(id(file))
                if is_corrected:
                    file.begins = glimpse.beginning()
                file.path = entry.path
                file.move(entry.inode)
                break
            else:
                new.append(entry)
        self._acknowledged.clear()
        return new

    def _is_corrected(self, file: _Known, entry: DirectoryEntry, glimpse: Glimpse) -> bool:
        acknowledged = self._acknowledged.get(id(file))
        if acknowledged is None or entry.path != file.path:
            return False
        if not acknowledged.byte:
            return entry.inode in file.places
        return glimpse.begins(acknowledged)

    def _note(self, file: _Known, entry: DirectoryEntry, glimpse: Glimpse) -> None:
        file.path = entry.path
        file.move(entry.inode)
        if not file.ended and file.begins.byte < min(len(glimpse.head), FINGERPRINT_BYTES):
            file.begins = glimpse.beginning()

    def _is_copying(self, entry: DirectoryEntry) -> bool:
        glimpse, now = self._glimpses[entry], asyncio.get_running_loop().time()
        copied = glimpse.fingerprint()
        for file in self._known.values():
            if id(file) in self._whole and file.is_called_like(entry):
                try:
                    original = entry_at(file.path)
                    is_copy = original is not None and Glimpse(original).begins(copied)
                except (OSError, InputError):
                    continue
                if is_copy:
                    size, since = self._copying.get(entry.inode, (-1, now))
                    if size != entry.size:
                        since = now
                    self._copying[entry.inode] = entry.size, since
                    return now < since + COPY_SECONDS
        return False

    def _go_on(self, ended: _Known, entry: DirectoryEntry) -> None:
        """Make a partition for the rest of a file that was read by a partition that has ended."""
        (former,) = [identity for identity, file in self._known.items() if file is ended]
        rest = _Known(
            first=ended.first,
            path=entry.path,
            places=[entry.inode],
            begins=ended.begins,
            size=self._glimpses[entry].size,
            skips=ended.begins.byte,
            line=ended.line,
        )
        self._known[self._new_identity(ended.first)] = rest
        del self._known[former]
        self._whole.add(id(rest))

    def _new_identity(self, path: str) -> str:
        """An identity with a higher number than all known ones: one that has ended may not be
        retired yet."""
        numbers = [
            int(identity[len(path) + 1 :] or 1)
            for identity, file in self._known.items()
            if file.first == path
        ]
        if not numbers and path_of(path) == path:
            return path
        return f"{path}#{max(numbers, default=1) + 1}"

    def _add(self, entry: DirectoryEntry, others: list[DirectoryEntry]) -> None:
        glimpse = self._glimpses[entry]
        is_known = any(file.first == entry.path for file in self._known.values())
        if not is_known:
            beside = [other for other in others if _is_sibling(other, {entry.path})]
            known = self._skipped.recognize(beside)
            inodes = {place for file in self._known.values() for place in file.places}
            self._skipped.skip(e for e in beside if e not in known and e.inode not in inodes)
        self._known[self._new_identity(entry.path)] = _Known(
            entry.path, entry.path, [entry.inode], glimpse.beginning(), entry.size
        )
        self._copying.pop(entry.inode, None)

    def _glimpse(self, entry: DirectoryEntry) -> Glimpse | None:
        glimpse = self._glimpses.get(entry)
        if glimpse is None:
            try:
                glimpse = Glimpse(entry)
            except (OSError, InputError) as error:
                now = asyncio.get_running_loop().time()
                if now < self._denied.setdefault(entry.path, now) + DENIED_SECONDS:
                    return None
                raise InputError(str(error)) from error
            self._denied.pop(entry.path, None)
            self._glimpses[entry] = glimpse
        if glimpse.is_gone:
            return None
        return None if self._is_refused(entry, glimpse) else glimpse

    def _is_refused(self, entry: DirectoryEntry, glimpse: Glimpse) -> bool:
        """Whether a file of a directory is compressed, and not one that was followed before."""
        if not self._pattern.is_directory or not (
            glimpse.packed or entry.path.endswith(PACKED_NAMES)
        ):
            return False
        if any(
            file.is_called_like(entry) and (bases(entry.name) or glimpse.begins(file.begins))
            for file in self._known.values()
        ):
            return False
        if entry.path not in self._warned:
            self._warned.add(entry.path)
            logger().warning("packed_file_not_followed", path=entry.path)
        return True

    def _forget(self) -> None:
        gone = [i for i, file in self._known.items() if file.ended and id(file) not in self._whole]
        for identity in gone[:-ENDED_FILES]:
            del self._known[identity]

    def _concerns(self, name: str) -> bool:
        return name not in self._settled and self._pattern.may_match(name)

    async def wait(self) -> None:
        await self._signal.wait(self._poll_seconds)

    def first_position(self, identity: str) -> dict[str, Any]:
        """The position of a file that is not opened yet.

        It holds inode and first bytes: the file may be renamed before it is opened.
        """
        file = self._known[identity]
        return first_position(file.places[-1], file.begins, file.size, file.skips, file.line)

    def resumed(self, identity: str, position: dict[str, Any], *, ended: bool) -> None:
        """Note the stored position of a partition: at the start, and when its reader has ended."""
        file = self._known.get(identity)
        if file is None:
            return
        files = msgspec.convert(position["files"], list[KnownFile])
        if files[0].place not in file.places:
            file.places.insert(0, files[0].place)
        if ended:
            file.begins, file.line, file.ended = files[0].known, position["line"], True
        elif position["format"]:  # otherwise it was never opened
            self._acknowledged[id(file)] = Fingerprint(
                position["byte"], position["head"], position["tail"]
            )

    def position(self) -> dict[str, Any]:
        found: dict[str, Any] = msgspec.to_builtins(_DiscoveryPosition(self._known, []))
        found["skipped"] = self._skipped.stored()
        return found

    def close(self) -> None:
        self._signal.close()


def _is_sibling(entry: DirectoryEntry, paths: set[str]) -> bool:
    directory = os.path.dirname(entry.path)
    return any(os.path.join(directory, base) in paths for base in bases(entry.name))


def _order(entry: DirectoryEntry) -> tuple[int, str]:
    return entry.modified, entry.path
