"""The catalogue of a followed path: every file that was read at it, or is not to be read.

A file is known by its inode together with its content, or by its content alone (decision 62)::

    the inode of a known file, which begins with the bytes that were read of it   that file
    another inode, and a known file's content                                     a copy of it,
    unless that is short, and its own inode has it too: then                      not read yet
    gzip, and a known file's content                                              a copy of it
    any other                                                                     not read yet

Names and times decide nothing. The catalogue is stored with the position. A known file that is gone
may come back (from a backup, or while it is compressed): the newest ABSENT of them are kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from millwheel.errors import InputError
from millwheel.files.content import FINGERPRINT_BYTES, Fingerprint, Glimpse
from millwheel.files.directory import DirectoryEntry

SKIPPED = -1
"""Number of the files that were beside the path at its first start, and are not read."""
ABSENT = 20
"""Number of known files that are kept although they are gone."""


class KnownFile(msgspec.Struct, array_like=True):
    number: int
    """Its number among the files read at the path, or SKIPPED."""
    device: int
    inode: int
    known: Fingerprint
    """Its bytes that were read; of one that is not to be read, all that it had."""

    @property
    def place(self) -> tuple[int, int]:
        return self.device, self.inode


class Catalogue:
    """The known files of one path.

    Args:
        files: the stored ones, in the order in which they became known.
    """

    def __init__(self, files: Iterable[KnownFile] = ()) -> None:
        self._files = [msgspec.structs.replace(file) for file in files]
        self._glimpses: dict[DirectoryEntry, Glimpse] = {}
        self._stored: list[Any] = []

    # -- what is known

    @property
    def next_number(self) -> int:
        return max((file.number for file in self._files), default=SKIPPED) + 1

    def get(self, number: int) -> KnownFile | None:
        return next((file for file in self._files if file.number == number), None)

    def note(self, number: int, inode: tuple[int, int], known: Fingerprint) -> None:
        """Note how much was read of the file with a number, which an empty file loses."""
        noted = KnownFile(number, *inode, known)
        for place, file in enumerate(self._files):
            if file.number == number:
                if file != noted:
                    self._files[place] = noted
                    del self._stored[place:]
                return
        self._files.append(noted)

    def forget(self, number: int) -> None:
        """Forget the file with a number: the rest of it gets another one."""
        self._keep([file for file in self._files if file.number != number])

    def _keep(self, files: list[KnownFile]) -> None:
        self._files, self._stored = files, []

    def skip(self, entries: Iterable[DirectoryEntry]) -> None:
        for entry in entries:
            glimpse = self._glimpse(entry)
            known = NOTHING if glimpse is None else glimpse.fingerprint()
            self._files.append(KnownFile(SKIPPED, *entry.inode, known))

    def stored(self) -> list[Any]:
        changed = self._files[len(self._stored) :]
        self._stored += [msgspec.to_builtins(file) for file in changed]
        return self._stored.copy()

    # -- what is in the directory

    def recognize(
        self, entries: Sequence[DirectoryEntry], at_path: DirectoryEntry | None = None
    ) -> dict[DirectoryEntry, KnownFile]:
        """Find the known files among rotated ones, and at the path.

        There only by the inode: a new file may begin as an old one did.
        """
        here_now = {*entries, at_path}
        self._glimpses = {e: g for e, g in self._glimpses.items() if e in here_now}
        by_inode = {f.place: f for f in self._files if f.known.byte or f.number == SKIPPED}
        found: dict[DirectoryEntry, KnownFile] = {}
        others = []
        for entry in entries if at_path is None else (at_path, *entries):
            file = by_inode.get(entry.inode)
            if file is not None and self.begins(entry, file.known):
                found[entry] = file
            elif entry is not at_path:
                others.append(entry)
        here = {id(file) for file in found.values()}
        for entry in others:
            copied = next((f for f in self._files if self._is_copy(entry, f, id(f) in here)), None)
            if copied is None:
                continue
            found[entry] = copied
            if id(copied) not in here:
                here.add(id(copied))
                copied.device, copied.inode = entry.inode
                self._stored = []
        return found

    def begins(self, entry: DirectoryEntry, known: Fingerprint) -> bool:
        if not known.byte:
            return True
        glimpse = self._glimpse(entry)
        return glimpse is not None and (glimpse.is_opaque or glimpse.begins(known))

    def holds(self, entry: DirectoryEntry, known: Fingerprint) -> bool:
        """Whether a file is a copy of another one, or of its beginning."""
        glimpse = self._glimpse(entry)
        return glimpse is not None and known.byte > 0 and glimpse.begins(known)

    def size(self, entry: DirectoryEntry) -> int:
        glimpse = self._glimpse(entry)
        return entry.size if glimpse is None else glimpse.size

    def _is_copy(self, entry: DirectoryEntry, file: KnownFile, is_here: bool) -> bool:
        glimpse = self._glimpse(entry)
        if glimpse is None:
            return False
        if glimpse.is_opaque:  # it takes the place of a file that has gone
            return not is_here and bool(file.known.byte)
        may_be = not is_here or glimpse.packed is not None or file.known.byte >= FINGERPRINT_BYTES
        return may_be and glimpse.is_copy(file.known)

    def _glimpse(self, entry: DirectoryEntry) -> Glimpse | None:
        if entry not in self._glimpses:
            try:
                self._glimpses[entry] = Glimpse(entry)
            except (OSError, InputError):
                return None
        return self._glimpses[entry]

    def prune(self, recognized: Iterable[KnownFile]) -> None:
        """Forget files that have been gone for long.

        Args:
            recognized: the files that are here.
        """
        kept = set(map(id, recognized))
        kept.update(map(id, [file for file in self._files if id(file) not in kept][-ABSENT:]))
        if len(kept) < len(self._files):
            self._keep([file for file in self._files if id(file) in kept])


NOTHING = Fingerprint(0, "", "")
