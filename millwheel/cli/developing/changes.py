"""Finds out that files have changed: those of the code by their content, inputs by time and
length."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from millwheel.files.watching import HAS_INOTIFY, Signal

POLL_SECONDS = 2.0 if HAS_INOTIFY else 0.5

SETTLE_SECONDS = 0.1
"""Time without a further change after which a file counts as written."""
SETTLES = 50
"""Most changes that are waited for: a program may append to an input all the time."""

SUFFIXES = (".py", ".sql")

Mark = bytes | tuple[int, int] | None


class FileChanges:
    """Watches the files of a version.

    Args:
        folder: that of the project. Files elsewhere are not the project's code.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._code: set[Path] = set()
        self._inputs: set[Path] = set()
        self._whole = False
        self._known: dict[Path, Mark] = {}
        self._signal = Signal()
        self._directories: set[Path] = set()

    @property
    def watched(self) -> list[Path]:
        return sorted(self._code | self._inputs)

    def watch(self, *, code: Iterable[Path] = (), inputs: Iterable[Path] = ()) -> None:
        """Watch more files. They count as they are now, but those that are watched already."""
        self._code |= {path for path in code if path.is_relative_to(self._folder)}
        self._inputs |= {*inputs}
        self._begin()

    def watch_all(self) -> None:
        """Watch all code in the folder: the version could not be imported, so that its files are
        not known."""
        self._whole = True
        self._begin()

    def forget(self) -> None:
        """Begin again with those of another version. A file of both that has changed in between
        counts as changed."""
        self._known = {path: self._known[path] for path in self._marks() if path in self._known}
        self._code.clear()
        self._inputs.clear()
        self._whole = False

    def _begin(self) -> None:
        for path, mark in self._marks().items():
            self._known.setdefault(path, mark)
        for directory in {self._folder, *(path.parent for path in self._known)}:
            if directory not in self._directories and directory.is_dir():
                self._directories.add(directory)
                self._signal.watch(str(directory), self._concerns)

    def _concerns(self, name: str) -> bool:
        return name.endswith(SUFFIXES) or any(path.name == name for path in self._inputs)

    def _marks(self) -> dict[Path, Mark]:
        code = self._code | {*code_files(self._folder)} if self._whole else self._code
        return {
            **{path: _content(path) for path in code},
            **{path: _times(path) for path in self._inputs},
        }

    async def wait(self) -> list[Path]:
        """Wait until files have changed, and have not changed again for a moment.

        Returns:
            Those files. They are known as they are then.
        """
        while True:
            self._signal.clear()
            if found := self._changed():
                for _ in range(SETTLES):
                    if not await self._signal.wait(SETTLE_SECONDS):
                        break
                    self._signal.clear()
                found += [path for path in self._changed() if path not in found]
                self._known.update(self._marks())
                return sorted(found)
            await self._signal.wait(POLL_SECONDS)

    def _changed(self) -> list[Path]:
        return [path for path, mark in self._marks().items() if self._known.get(path) != mark]

    def close(self) -> None:
        self._signal.close()


def code_files(folder: Path) -> Iterator[Path]:
    """The files of code in a folder, without hidden ones and virtual environments."""
    for parent, folders, names in os.walk(folder):
        folders[:] = [
            name
            for name in folders
            if not name.startswith((".", "__pycache__"))
            and not os.path.exists(os.path.join(parent, name, "pyvenv.cfg"))
        ]
        yield from (Path(parent, name) for name in names if name.endswith(SUFFIXES))


def _content(path: Path) -> Mark:
    try:
        return hashlib.blake2b(path.read_bytes()).digest()
    except OSError:
        return None


def _times(path: Path) -> Mark:
    try:
        found = path.stat()
    except OSError:
        return None
    return (found.st_mtime_ns, found.st_size)
