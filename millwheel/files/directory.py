"""The directory of a followed path: its entries, and the names of rotated files.

::

    app.log.3   app.log.2.gz   app.log.1   app.log
    `---------- rotated siblings ---------'  `- the path

A name only makes a file a candidate. Its content decides whether it was read
(`millwheel.files.catalogue`), and its modification time the order of files that were not.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable
from pathlib import PurePath
from typing import NamedTuple

from millwheel.errors import InputError

LISTS = 100
"""Limit of directory scans until two consecutive ones agree."""
PACKED_NAMES = (".gz", ".zip", ".xz", ".bz2", ".zst", ".lz4")

_STAMP = r"\d[\dT:._-]*"
_ENDING = re.compile(rf"([._-]{_STAMP})?")
_BEHIND = re.compile(rf"(?P<name>.+?)[._-](?P<stamp>{_STAMP})")
_BETWEEN = re.compile(rf"(?P<stem>.+?)[._-](?P<stamp>{_STAMP})(?P<suffix>\.[^.]*[^.\d][^.]*)")


def bases(name: str) -> list[str]:
    """The names that a name may be a rotated sibling of: ``app.log`` for ``app.log.2.gz``."""
    for packed in PACKED_NAMES:
        name = name.removesuffix(packed)
    found = []
    if match := _BEHIND.fullmatch(name):
        found.append(match["name"])
    if match := _BETWEEN.fullmatch(name):
        found.append(match["stem"] + match["suffix"])
    return found


class DirectoryEntry(NamedTuple):
    path: str
    inode: tuple[int, int]
    """Device and inode number."""
    size: int
    modified: int
    """Nanoseconds since 1970."""
    changed: int
    """Time of the last change of its content or status, which no program can set."""

    @property
    def name(self) -> str:
        return os.path.basename(self.path)

    @property
    def age(self) -> tuple[int, int, str]:
        """Sort key, oldest first. At equal modification times app.log.2 is older than app.log.1."""
        number = re.search(r"[._-](\d{1,5})$", self.name.removesuffix(".gz"))
        return self.modified, -int(number[1]) if number else 0, self.name


def _entry(path: str, state: os.stat_result) -> DirectoryEntry:
    inode = state.st_dev, state.st_ino
    return DirectoryEntry(path, inode, state.st_size, state.st_mtime_ns, state.st_ctime_ns)


def entry_at(path: str) -> DirectoryEntry | None:
    """The file at a path; None if there is none.

    Raises:
        InputError: it is not a regular file, or cannot be accessed.
    """
    try:
        found = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise InputError(f"{path}: cannot be accessed: {error.strerror}") from error
    if stat.S_ISDIR(found.st_mode):
        raise InputError(
            f"{path}: has become a directory. Move it away, or restart to follow the files in it"
        )
    if not stat.S_ISREG(found.st_mode):
        raise InputError(f"{path}: is not a regular file, so it could not be read again")
    return _entry(path, found)


def other_entries(path: str) -> list[DirectoryEntry]:
    """The other regular files in the directory of a path.

    A scan may miss a file that is renamed during it: two consecutive scans must agree.
    """
    directory, own = os.path.split(path)

    def look() -> list[DirectoryEntry]:
        return [entry for entry in entries_of(directory, path) if entry.name != own]

    found = look()
    for _ in range(LISTS):
        before, found = found, look()
        if [entry[:2] for entry in before] == [entry[:2] for entry in found]:
            break
    return found


def entries_of(directory: str, path: str) -> list[DirectoryEntry]:
    """The regular files in a directory, without links; empty if it does not exist.

    Raises:
        InputError: it cannot be listed. The message says for which `path` it is searched.
    """
    found = []
    try:
        with os.scandir(directory) as entries:
            for entry in entries:
                if entry.is_file(follow_symlinks=False):
                    try:
                        state = entry.stat(follow_symlinks=False)
                    except FileNotFoundError:
                        continue  # it has just been renamed or removed
                    found.append(_entry(entry.path, state))
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise InputError(
            f"{directory}: cannot be listed: {error.strerror}. It is searched for files of {path}"
        ) from error
    return found


def entry_of_inode(path: str, device: int, number: int) -> DirectoryEntry | None:
    try:
        state = os.stat(path)
        if (state.st_dev, state.st_ino) == (device, number):
            return _entry(path, state)
    except OSError:
        pass
    others = other_entries(path)
    return next((entry for entry in others if entry.inode == (device, number)), None)


def siblings(path: str, entries: Iterable[DirectoryEntry]) -> list[DirectoryEntry]:
    """The files that are called like rotated files of a path, oldest first.

    ``x.gz`` is left out if ``x`` exists: it is being written.
    """
    own = os.path.basename(path)
    found = {entry.name: entry for entry in entries if own in bases(entry.name)}
    return sorted(
        (
            entry
            for name, entry in found.items()
            if PurePath(name).stem not in found or not name.endswith(PACKED_NAMES)
        ),
        key=lambda entry: entry.age,
    )


def may_follow(name: str, own: str) -> bool:
    """Whether a file is called like a rotated or compressed file of the one called `own`."""
    for packed in PACKED_NAMES:
        name = name.removesuffix(packed)
    rest = name.removeprefix(own)
    return own in bases(name) or (rest != name and _ENDING.fullmatch(rest) is not None)


def may_hold(path: str, entry: DirectoryEntry) -> bool:
    """Whether a file may be a copy of the one at `path`: its name has the same beginning."""
    own = PurePath(path)
    return entry.name.startswith((own.name, own.stem))
