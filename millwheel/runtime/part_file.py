"""A part file of a JSON Lines sink: appended and fsynced before the commit that counts it.

The committed length stands in the commit; whatever is beyond it was written for a commit
that never became durable, and is cut off before anything is appended. A part file belongs
to one owner, by a lock that ends with its process: who takes over from an owner that may
still be writing leaves it the old file, and goes on in a copy of the committed part. It is
called after the interval's id, which no other interval ever gets: one that is made by a split
or a merge can cut off nobody's lines.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import shutil
from pathlib import Path
from typing import BinaryIO

from millwheel.errors import InputError

COPY_BYTES = 1 << 20


class PartFile:
    """One file of lines, as long as the last commit says."""

    def __init__(self, path: Path, length: int) -> None:
        self.path = path
        self.length = length
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = self._open()
        _sync_directory(path.parent)
        try:
            self._check(length)
            if not _lock(self._file):
                self._file = self._replaced(length)
            self.restore(length)
        except BaseException:
            self._file.close()
            raise

    def _open(self) -> BinaryIO:
        return open(self.path, "a+b")

    def _replaced(self, length: int) -> BinaryIO:
        """A copy of the committed part in the file's place: the old owner keeps its own."""
        fresh = self.path.with_suffix(".taken")
        fresh.unlink(missing_ok=True)
        with self._file as old, open(fresh, "xb") as copy:
            old.seek(0)
            left = length
            while left:
                data = old.read(min(COPY_BYTES, left))
                copy.write(data)
                left -= len(data)
            copy.flush()
            os.fsync(copy.fileno())
            shutil.copymode(self.path, fresh)
        os.replace(fresh, self.path)
        _sync_directory(self.path.parent)
        taken = self._open()
        _lock(taken)
        return taken

    def _check(self, length: int) -> None:
        size = os.fstat(self._file.fileno()).st_size
        if size < length:
            raise InputError(
                f"{self.path} has {size} bytes, but {length} were committed: the file was cut or "
                "replaced. Put it back, or start the pipeline under a new name"
            )

    def restore(self, length: int) -> None:
        """Cut the file to its committed length.

        Raises:
            InputError: the file is shorter than that: somebody took lines away.
        """
        self._check(length)
        self._file.truncate(length)
        self.length = length

    def length_with(self, lines: list[bytes]) -> int:
        """The length once `lines` are appended."""
        return self.length + sum(map(len, lines)) + len(lines)

    async def append(self, lines: list[bytes]) -> None:
        """Append lines and wait until they are on the disk."""
        data = b"".join(line + b"\n" for line in lines)
        await asyncio.to_thread(self._write, data)
        self.length += len(data)

    def _write(self, data: bytes) -> None:
        self._file.write(data)
        self._file.flush()
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Let the file, and its lock, go."""
        self._file.close()


def _lock(file: BinaryIO) -> bool:
    """Take the file for this owner; False: another one still has it."""
    try:
        fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _sync_directory(path: Path) -> None:
    directory = os.open(path, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
