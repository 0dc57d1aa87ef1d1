"""A part file of a JSON Lines sink: appended and fsynced before the commit that counts it.

The committed length is in the commit; the bytes beyond it were written for a commit that never
became durable, and are cut off before anything is appended. A part file belongs to one owner, by a
lock that ends with its process: a successor of an owner that may still be writing leaves it the old
file, and continues in a copy of the committed part. The file is named after the interval's id, which
no other interval ever gets: an interval that is made by a split or a merge can cut off no other's lines.

A part file is written and cut, so it must be the sink's own. A symbolic link in its place is refused,
as is anything else that is no regular file. A file with a second name (a hard link: a snapshot made
by `cp -al`, say) is left alone, and continued in a copy. The sink's directory may be a link.
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
from collections.abc import Callable, Iterator
from pathlib import Path

from millwheel.errors import InputError, OutputError, OutputFull

COPY_BYTES = 1 << 20

FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
"""Errors that end when somebody makes room."""


class PartFile:
    """One file of lines, as long as the last commit says.

    Args:
        path: its name; missing directories are made.
        length: its committed bytes.
        monotonic: a clock.

    Raises:
        InputError: the file is shorter than that.
        OutputFull: there is no room for it.
        OutputError: it cannot be opened or written, or is no file of the sink's own.
    """

    def __init__(
        self, path: Path, length: int, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self.path = path
        self.length = length
        self.no_room: OutputFull | None = None
        """Why the last append failed, if that was for want of room."""
        self._monotonic = monotonic
        self._writing = threading.Lock()
        """Held by the thread that appends: nobody else cuts or closes the file meanwhile."""
        self._file: int | None = None
        self._closed = False
        with self._doing("opened"):
            path.parent.mkdir(parents=True, exist_ok=True)
            directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            with self._doing("opened"):
                self._file = self._opened(directory)
                os.fsync(directory)
            self._check(length)
            with self._doing("opened"):
                if os.fstat(self._file).st_nlink > 1 or not _locked(self._file):
                    self._file = self._replaced(directory, self._file, length)
            self.restore(length)
        except BaseException:
            self.close()
            raise
        finally:
            os.close(directory)

    def _opened(self, directory: int) -> int:
        """The file, made if it is missing; opened by its name in the directory, and never through a
        link."""
        # O_NONBLOCK: a pipe in the file's place would wait for its other end.
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK
        try:
            file = os.open(self.path.name, flags, 0o666, dir_fd=directory)
        except OSError as error:
            if error.errno == errno.ELOOP:
                target = os.readlink(self.path.name, dir_fd=directory)
                raise OutputError(
                    f"{self.path} is a symbolic link to {target}: output is not written through links. "
                    "Remove the link, and start again"
                ) from error
            if error.errno in (errno.EISDIR, errno.ENXIO):
                raise self._no_file() from error
            raise
        if not stat.S_ISREG(os.fstat(file).st_mode):
            os.close(file)
            raise self._no_file()
        return file

    def _no_file(self) -> OutputError:
        return OutputError(
            f"{self.path} is no regular file, so nothing can be written there. Remove it, and start "
            "again"
        )

    def _replaced(self, directory: int, old: int, length: int) -> int:
        """A copy of the committed part in the file's place, locked; the old file is left as it is."""
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
            "replaced. Put it back, or start the pipeline under a new name"
        )

    def restore(self, length: int) -> None:
        """Cut the file to its committed length.

        Raises:
            InputError: the file is shorter than that: somebody took lines away.
        """
        with self._writing:
            self._check(length)
            with self._doing("cut to what is committed"):
                os.ftruncate(self._open_file(), length)
            self.length = length

    def length_with(self, lines: list[bytes]) -> int:
        """The length once `lines` are appended."""
        return self.length + sum(map(len, lines)) + len(lines)

    async def append(self, lines: list[bytes]) -> None:
        """Append lines and wait until they are on the disk.

        Raises:
            OutputFull: there is no room; after `restore` it may be tried again.
            OutputError: it cannot be written.
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
        """Give up the file, and its lock: now, or when the thread that appends is done."""
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
        """Errors of the system as errors that say which file it is about and what to do."""
        try:
            yield
        except OSError as error:
            if error.errno in FULL:
                raise OutputFull(
                    f"{self.path} cannot be {what}: {error.strerror}. Make room there: nothing is lost"
                ) from error
            raise OutputError(
                f"{self.path} cannot be {what}: {error.strerror or error}. Mend that, and start again: "
                "nothing is lost"
            ) from error


def _locked(file: int) -> bool:
    """Take the file for this owner; False: another one still has it."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _write_all(file: int, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(file, left) :]
