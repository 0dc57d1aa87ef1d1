"""A part file of a JSON Lines sink: appended and fsynced before the commit that stores its length.

Bytes beyond the committed length belong to a commit that never became durable; they are cut off
before anything is appended. A part file has one owner, by a lock that ends with the owner's
process. If the former owner may still be writing, its successor leaves it the old file, and
continues in a copy of the committed part. The file is named after the interval's id, which is never
used again: an interval made by a split or a merge can cut off no lines of another one.

Each part file must belong to the sink alone. A symbolic link in its place is refused, as is
anything that is not a regular file. A file with a second name (a hard link, for example of a
snapshot made by `cp -al`) stays as it is, and a copy is continued. The sink's directory may be a
symbolic link.

Two pipelines with one directory would cut each other's lines, since both have an interval 1. So a
file knows its pipeline, by an extended attribute, where the file system has them; and a fork, like
code that runs under another name, writes to a directory of its own inside the sink's (decision 86).
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import os
import stat
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from millwheel.errors import InputError, OutputError, OutputFull

COPY_BYTES = 1 << 20
"""Bytes copied at a time when a file is replaced."""

OWNER = "user.millwheel.pipeline"
"""Extended attribute with the pipeline's name and its store (`Environment.store_id`)."""

FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
"""System errors that end when an operator frees space."""


@dataclass(frozen=True)
class PartPlace:
    """The place of an interval's lines."""

    path: Path
    length: int
    """Committed length in bytes."""
    inside: str | None
    """The pipeline's own directory inside the sink's; None: it has none."""

    @classmethod
    def of(
        cls,
        directory: Path,
        interval_id: int,
        position: Mapping[str, Any] | None,
        own: str | None,
    ) -> PartPlace:
        """
        Args:
            position: the stored one of the interval.
            own: the pipeline's own directory inside the sink's, if it has to have one.
        """
        inside = own or (position or {}).get("in")
        place = directory if inside is None else directory / inside
        length = _stored_length(position, inside)
        return cls(place / f"part-{interval_id:05d}.jsonl", length, inside)


def _stored_length(position: Mapping[str, Any] | None, inside: str | None) -> int:
    """The length in a stored position; 0 if it is that of a file elsewhere: the pipeline is a fork,
    and the position is that of its origin."""
    stored = position or {}
    length: int = stored.get("length", 0) if stored.get("in") == inside else 0
    return length


class PartFile:
    """A file of lines, with the length that the last durable commit has stored.

    Args:
        path: the file's path; missing directories are made.
        length: committed length in bytes.
        monotonic: a monotonic clock, in seconds.
        owner: the pipeline's name and its store; empty: not known.
        inside: the pipeline's own directory inside the sink's; None: it has none.

    Raises:
        InputError: the file is shorter than its committed length.
        OutputFull: the disk or quota is full.
        OutputError: the file cannot be opened or written, or does not belong to the sink alone.
    """

    def __init__(
        self,
        path: Path,
        length: int,
        monotonic: Callable[[], float] = time.monotonic,
        *,
        owner: str = "",
        inside: str | None = None,
    ) -> None:
        self.path = path
        self.length = length
        self.no_room: OutputFull | None = None
        """The error of the last append, if the disk or quota was full."""
        self._inside = inside
        self._monotonic = monotonic
        self._writing = threading.Lock()
        """Held while appending, so that the file is not cut or closed then."""
        self._file: int | None = None
        self._closed = False
        with self._doing("opened"):
            path.parent.mkdir(parents=True, exist_ok=True)
            directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            with self._doing("opened"):
                self._file = self._opened(directory)
                os.fsync(directory)
            self._refuse_others(self._file, owner)
            self._check(length)
            with self._doing("opened"):
                if os.fstat(self._file).st_nlink > 1 or not _locked(self._file):
                    self._file = self._replaced(directory, self._file, length)
            _set_owner(self._file, owner)
            self.restore(length)
        except BaseException:
            self.close()
            raise
        finally:
            os.close(directory)

    @classmethod
    def at(cls, place: PartPlace, monotonic: Callable[[], float], owner: str) -> PartFile:
        return cls(place.path, place.length, monotonic, owner=owner, inside=place.inside)

    def _opened(self, directory: int) -> int:
        """Open or make the file by its name in the directory, never through a link."""
        # O_NONBLOCK: opening a pipe in the file's place would wait for the pipe's other end.
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK
        try:
            file = os.open(self.path.name, flags, 0o666, dir_fd=directory)
        except OSError as error:
            if error.errno == errno.ELOOP:
                target = os.readlink(self.path.name, dir_fd=directory)
                raise OutputError(
                    f"{self.path} is a symbolic link to {target}: output is not written through "
                    "links. Remove the link, and start again"
                ) from error
            if error.errno in (errno.EISDIR, errno.ENXIO):
                raise self._no_file() from error
            raise
        if not stat.S_ISREG(os.fstat(file).st_mode):
            os.close(file)
            raise self._no_file()
        return file

    def _refuse_others(self, file: int, owner: str) -> None:
        """Refuse a file of another pipeline. One of the same name, in another store, was dropped,
        unless it holds the lock."""
        known = _owner_of(file)
        if not known or not owner or _store_in(known) == _store_in(owner):
            return
        name = _name_in(known)
        if name == _name_in(owner) and _locked(file):
            return
        raise OutputError(
            f"{self.path} has lines of the pipeline {name!r} of another store or copy, and two "
            "pipelines would cut each other's lines. Give the sink of one of them another "
            "directory; or, if that pipeline is gone, move the file away, and start again"
        )

    def _no_file(self) -> OutputError:
        return OutputError(
            f"{self.path} is no regular file, so the sink cannot write to it. Remove it, and start "
            "again"
        )

    def _replaced(self, directory: int, old: int, length: int) -> int:
        """Put a locked copy of the committed part in the file's place; the old file stays
        unchanged."""
        name, fresh = self.path.name, self.path.with_suffix(".taken").name
        with contextlib.suppress(FileNotFoundError):
            os.unlink(fresh, dir_fd=directory)
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
        copy = os.open(fresh, flags, 0o600, dir_fd=directory)
        try:
            _locked(copy)
            place = 0
            while data := os.pread(old, min(COPY_BYTES, length - place), place):
                _write_all(copy, data)
                place += len(data)
            os.fchmod(copy, stat.S_IMODE(os.fstat(old).st_mode))
            os.fsync(copy)
            os.rename(fresh, name, src_dir_fd=directory, dst_dir_fd=directory)
            os.fsync(directory)
        except BaseException:
            os.close(copy)
            raise
        os.close(old)
        return copy

    def _check(self, length: int) -> None:
        with self._doing("read"):
            size = os.fstat(self._open_file()).st_size
        if size < length:
            raise self._shorter(size, length)

    def _shorter(self, size: int, length: int) -> InputError:
        return InputError(
            f"{self.path} has {size} bytes, but {length} were committed: the file was cut or "
            "replaced. Restore it, or start the pipeline under a new name"
        )

    def restore(self, length: int) -> None:
        """Cut the file to its committed length.

        Raises:
            InputError: the file is shorter than that: lines were removed.
        """
        with self._writing:
            self._check(length)
            with self._doing("cut to what is committed"):
                os.ftruncate(self._open_file(), length)
            self.length = length

    def restore_to(self, position: Mapping[str, Any] | None) -> None:
        """Cut the file to the length in a stored position."""
        self.restore(_stored_length(position, self._inside))

    def position_with(self, lines: list[bytes]) -> dict[str, Any]:
        """The position to store in the commit of some lines."""
        length = self.length + sum(map(len, lines)) + len(lines)
        return {"length": length} | ({} if self._inside is None else {"in": self._inside})

    async def append(self, lines: list[bytes]) -> None:
        """Append lines and wait until they are on the disk.

        Raises:
            OutputFull: the disk or quota is full; call `restore` before trying again.
            OutputError: the file cannot be written.
        """
        data = b"".join(line + b"\n" for line in lines)
        try:
            await asyncio.to_thread(self._append, data)
        except OutputFull as error:
            error.since = self._monotonic() if self.no_room is None else self.no_room.since
            self.no_room = error
            raise
        self.no_room = None
        self.length += len(data)

    def _append(self, data: bytes) -> None:
        with self._writing, self._doing("written"):
            _write_all(self._open_file(), data)
            os.fsync(self._open_file())
        if self._closed:
            self.close()

    def close(self) -> None:
        """Close the file and release its lock, now or when a running append has ended."""
        self._closed = True
        if self._writing.acquire(blocking=False):
            try:
                file, self._file = self._file, None
                if file is not None:
                    os.close(file)
            finally:
                self._writing.release()

    def _open_file(self) -> int:
        if self._file is None:
            raise OutputError(f"{self.path} was closed")
        return self._file

    @contextlib.contextmanager
    def _doing(self, what: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if error.errno in FULL:
                raise OutputFull(
                    f"{self.path} cannot be {what}: {error.strerror}. Make room there; nothing is "
                    "lost"
                ) from error
            raise OutputError(
                f"{self.path} cannot be {what}: {error.strerror or error}. Mend that, and start "
                "again: nothing is lost"
            ) from error


def _locked(file: int) -> bool:
    """Lock the file for this owner; False: another process still holds the lock."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _owner_of(file: int) -> str:
    """Empty: not known, or the file system has no such attributes."""
    try:
        return os.getxattr(file, OWNER).decode()
    except (OSError, AttributeError, UnicodeDecodeError):
        return ""


def _set_owner(file: int, owner: str) -> None:
    if owner and _owner_of(file) != owner:
        with contextlib.suppress(OSError, AttributeError):  # not on every file system
            os.setxattr(file, OWNER, owner.encode())


def _name_in(owner: str) -> str:
    return owner.partition(".")[0]


def _store_in(owner: str) -> str:
    return owner.partition(".")[2]


def _write_all(file: int, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(file, left) :]
