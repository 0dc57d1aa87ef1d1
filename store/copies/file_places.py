"""Places of savepoints in files: a directory, or an object store.

A directory is written under another name beside it, ``DIR.millwheel-partial``, and renamed when
all of it is on the disk; the next try removes such a remnant. In an object store the manifest is
written last. So a place with a manifest is whole.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol

from millwheel.core.distribution import install
from millwheel.core.quantities import byte_text
from millwheel.errors import InputError, MillwheelError, OutputError, UsageError

MANIFEST = "manifest.json"

PARTIAL = ".millwheel-partial"
"""End of the name of a directory that is not whole."""

URL = re.compile(r"[a-z][a-z0-9+.-]*://", re.IGNORECASE)

SECRET = re.compile(r"(?<=://)[^/@]*@")
"""User and password of a URL."""


Write = Callable[[bytes], object]
Read = Callable[[int], bytes]
"""At most so many bytes; none at the end."""


class FilePlace(Protocol):
    """Where the files of one savepoint are."""

    text: str
    """Shown to people; without secrets."""

    def begin(self) -> None:
        """Prepare to write. `UsageError`: there are files."""
        ...

    def require_room(self, size: int) -> None:
        """`OutputError` if files of this size, in bytes, will not fit, as far as is known."""
        ...

    def writing(self, name: str) -> AbstractContextManager[Write]:
        """Make a file; it is durable when the block has ended. `OutputError`, also of writes."""
        ...

    def finish(self) -> None:
        """All files are written, the manifest last: the savepoint appears. `OutputError`."""
        ...

    def discard(self) -> None:
        """Remove the files of a savepoint that is not finished; errors are ignored."""
        ...

    def size(self, name: str) -> int | None:
        """Bytes of a file; None: there is none. `InputError`."""
        ...

    def reading(self, name: str) -> AbstractContextManager[Read]:
        """Open a file. `InputError`, also of reads."""
        ...


def is_place(text: str) -> bool:
    """Whether a text names a directory or URL, and no label of a savepoint."""
    return os.sep in text or text in (".", "..") or text.startswith("~")


def place_of(text: str) -> FilePlace:
    """`UsageError` if the package for object stores is missing, or does not know the URL."""
    if not URL.match(text):
        return DirectoryPlace(Path(text).expanduser().absolute())
    if text.lower().startswith("file://"):
        return DirectoryPlace(Path(text[len("file://") :]))
    try:
        from fsspec.core import url_to_fs  # only object stores need it
    except ImportError as error:
        raise UsageError(
            f"{_redacted(text)} is the URL of an object store, which takes the package fsspec: "
            f"{install('objects')}, and the one for your store, as s3fs, gcsfs or adlfs. Or give a "
            "directory"
        ) from error
    try:
        files, path = url_to_fs(text)
    except (ImportError, ValueError) as error:  # the package of this kind of store is missing
        raise UsageError(f"{_redacted(text)} cannot be used: {error}") from None
    return ObjectPlace(files, path, _redacted(text))


def _redacted(url: str) -> str:
    return SECRET.sub("***@", url)


class DirectoryPlace:
    def __init__(self, directory: Path) -> None:
        self.text = str(directory)
        self._directory = directory
        self._partial = directory.with_name(f"{directory.name}{PARTIAL}")
        self._held: int | None = None
        """The directory that is written, locked for as long."""

    def begin(self) -> None:
        directory = self._directory
        if not directory.name:
            raise UsageError(f"{directory} cannot be a savepoint: name a directory in it")
        with self._writes():
            if directory.is_dir() and any(directory.iterdir()):
                raise UsageError(
                    f"{directory} is not empty; name a directory that is not there yet. Nothing "
                    "was made"
                )
            if directory.exists() and not directory.is_dir():
                raise UsageError(f"{directory} is a file; name a directory. Nothing was made")
            directory.parent.mkdir(parents=True, exist_ok=True)
            self._partial.mkdir(exist_ok=True)
            self._held = os.open(self._partial, os.O_RDONLY | os.O_DIRECTORY)
            try:
                fcntl.flock(self._held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                self._release()
                raise UsageError(
                    f"another process writes a savepoint to {directory} at this moment. Wait for "
                    "it, or name another directory"
                ) from error
            for path in self._partial.iterdir():  # of a process that was killed
                shutil.rmtree(path) if path.is_dir() else path.unlink()

    def require_room(self, size: int) -> None:
        free = shutil.disk_usage(self._partial).free
        if size > free:
            raise OutputError(
                f"the files would take up to {byte_text(size)}, and the disk of {self.text} has "
                f"{byte_text(free)} free. Make room, or name a directory on another disk. Nothing "
                "was made"
            )

    @contextlib.contextmanager
    def writing(self, name: str) -> Iterator[Write]:
        with self._writes():
            path = self._partial / name
            path.parent.mkdir(exist_ok=True)
            file = path.open("xb", buffering=0)

        def write(data: bytes) -> None:
            with self._writes():
                left = memoryview(data)
                while left:
                    left = left[file.write(left) :]

        with file:
            yield write
            with self._writes():
                os.fsync(file.fileno())

    def finish(self) -> None:
        with self._writes():
            for folder in {path.parent for path in self._partial.rglob("*")}:
                _sync(folder)
            self._partial.rename(self._directory)
            _sync(self._directory.parent)
        self._release()

    def discard(self) -> None:
        if self._held is not None:
            shutil.rmtree(self._partial, ignore_errors=True)
            self._release()

    def size(self, name: str) -> int | None:
        with self._reads(name):
            try:
                return (self._directory / name).stat().st_size
            except (FileNotFoundError, NotADirectoryError):
                return None

    @contextlib.contextmanager
    def reading(self, name: str) -> Iterator[Read]:
        with self._reads(name):
            file = (self._directory / name).open("rb")

        def read(size: int) -> bytes:
            with self._reads(name):
                return file.read(size)

        with file:
            yield read

    @contextlib.contextmanager
    def _reads(self, name: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise InputError(f"{self.text}/{name} cannot be read: {error.strerror}") from error

    @contextlib.contextmanager
    def _writes(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            is_full = error.errno in (errno.ENOSPC, errno.EDQUOT)
            remedy = "Make room, or name" if is_full else "Correct that, or name"
            raise OutputError(
                f"the savepoint cannot be written to {self.text}: {error.strerror or error}. "
                f"{remedy} a directory on another disk. Nothing was made"
            ) from error

    def _release(self) -> None:
        if self._held is not None:
            os.close(self._held)
            self._held = None


def _sync(folder: Path) -> None:
    opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


class ObjectPlace:
    """A folder of a file system of fsspec.

    Args:
        files: an ``AbstractFileSystem``.
        path: of the folder in it.
    """

    def __init__(self, files: Any, path: str, text: str) -> None:
        self.text = text
        self._files = files
        self._path = path.rstrip("/")
        self._written: dict[str, int | None] = {}

    def begin(self) -> None:
        with self._writing_store():
            found = sorted(self._files.find(self._path))
        if f"{self._path}/{MANIFEST}" in found:
            raise UsageError(f"{self.text} has a savepoint already; name another place")
        if found:
            raise UsageError(
                f"{self.text} is not empty: {len(found):,} files, the first is {found[0]}. They "
                "are no savepoint: perhaps one that was interrupted. Remove them, or name another "
                "place"
            )

    def require_room(self, size: int) -> None:
        """Object stores do not say how much room they have."""

    @contextlib.contextmanager
    def writing(self, name: str) -> Iterator[Write]:
        path = f"{self._path}/{name}"
        if name == MANIFEST:  # at once: a part of it must never be there
            blocks: list[bytes] = []
            yield blocks.append
            with self._writing_store():
                self._require_all()
                self._files.pipe_file(path, b"".join(blocks))
            self._written[name] = None
            return
        self._written[name] = None
        with self._writing_store():
            self._files.makedirs(path.rpartition("/")[0], exist_ok=True)
            file = self._files.open(path, "wb")

        def write(data: bytes) -> None:
            with self._writing_store():
                file.write(data)

        try:
            yield write
        finally:
            with self._writing_store():
                file.close()
        with self._writing_store():
            self._written[name] = self._files.size(path)

    def _require_all(self) -> None:
        """Another process may have written to the same place."""
        for name, size in self._written.items():
            if self._files.size(f"{self._path}/{name}") != size:
                raise OutputError(
                    f"{self.text}/{name} was changed by another process; name another place"
                )

    def finish(self) -> None:
        pass

    def discard(self) -> None:
        if self._written and MANIFEST not in self._written:
            with contextlib.suppress(Exception):
                self._files.rm(self._path, recursive=True)

    def size(self, name: str) -> int | None:
        path = f"{self._path}/{name}"
        with self._reading_store():
            return int(self._files.size(path)) if self._files.exists(path) else None

    @contextlib.contextmanager
    def reading(self, name: str) -> Iterator[Read]:
        with self._reading_store():
            file = self._files.open(f"{self._path}/{name}", "rb")

        def read(size: int) -> bytes:
            with self._reading_store():
                return bytes(file.read(size))

        with contextlib.closing(file):
            yield read

    @contextlib.contextmanager
    def _writing_store(self) -> Iterator[None]:
        """Packages for stores raise errors of their own."""
        try:
            yield
        except MillwheelError:
            raise
        except Exception as error:
            raise OutputError(
                f"the savepoint cannot be written to {self.text}: {error!r}. What was written is "
                "no savepoint, as it has no manifest"
            ) from error

    @contextlib.contextmanager
    def _reading_store(self) -> Iterator[None]:
        try:
            yield
        except MillwheelError:
            raise
        except Exception as error:
            raise InputError(f"{self.text} cannot be read: {error!r}") from error
