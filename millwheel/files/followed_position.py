"""The stored position of a followed file, and the file's identity.

A file is recognized by its device, its inode and a fingerprint of the bytes that were read
(`millwheel.files.rotation`). A stored position has all three, so that the file is found after a restart
although it has been renamed, copied or compressed.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import msgspec

from millwheel.errors import InputError
from millwheel.files.packed import READ_AGAIN
from millwheel.files.reader import RowBoundary
from millwheel.files.rotation import (
    FINGERPRINT_BYTES,
    DirectoryEntry,
    Fingerprint,
    Growing,
    Unpacking,
    begins_with,
    fingerprint,
)

FILE_ROWS = 1 << 40
"""Row numbers reserved for each file."""

Log: TypeAlias = Growing | Unpacking


class HeadAndTail:
    """A proof of a file's acknowledged bytes: the first and the last of them."""

    __slots__ = ("head", "tail")

    def __init__(self, head: bytes = b"", tail: bytes = b"") -> None:
        self.head = head
        self.tail = tail

    def update(self, data: bytes | memoryview) -> None:
        if len(self.head) < FINGERPRINT_BYTES:
            self.head += bytes(data[: FINGERPRINT_BYTES - len(self.head)])
        self.tail = (self.tail + bytes(data[-FINGERPRINT_BYTES:]))[-FINGERPRINT_BYTES:]

    def copy(self) -> HeadAndTail:
        return HeadAndTail(self.head, self.tail)


class PreviousFile(msgspec.Struct, frozen=True):
    """Identity of the file read before the current one, which is not read again if it grows late."""

    device: int
    inode: int
    fingerprint: Fingerprint

    def is_at(self, entry: DirectoryEntry) -> bool:
        return (entry.device, entry.inode) == (self.device, self.inode) and begins_with(
            entry, self.fingerprint
        )


class FollowedFile:
    """One of the files that have been at the path."""

    def __init__(self, log: Log, number: int, before: PreviousFile | None) -> None:
        self.log = log
        self.number = number
        self.before = before
        state = log.state()
        self.device, self.inode = state.st_dev, state.st_ino
        self.seen = 0 if log.packed else state.st_size
        """Largest size that the file is known to have had."""
        self.modified = state.st_mtime_ns
        """Latest modification time known from while it was at the path."""

    def is_at(self, entry: DirectoryEntry | None) -> bool:
        return entry is not None and (entry.device, entry.inode) == (self.device, self.inode)

    @property
    def known(self) -> Fingerprint:
        """Fingerprint of the bytes read so far."""
        return fingerprint(self.log.taken, self.log.head, self.log.last)

    @property
    def as_previous(self) -> PreviousFile:
        """Identity of this file for after the reader has left it."""
        return PreviousFile(self.device, self.inode, self.known)


class FollowedPosition(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The stored position: the start of the first unacknowledged row, and the file's identity."""

    format: str
    """The rules by which it was split into rows; empty if it was discovered but not opened yet."""
    row: int
    byte: int
    line: int
    cut: int | None
    """Start of the row before, if that row was taken without a newline at its end."""
    file: str
    """Path at which it was last found."""
    number: int
    """Number of files read at the path before it."""
    device: int
    inode: int
    before: PreviousFile | None
    modified: int
    seen: int
    head: str
    tail: str
    begins: Fingerprint | None = None
    """For a file without acknowledged bytes: fingerprint of its known first bytes."""

    def check(self) -> None:
        if min(self.row, self.byte, self.number) < 0 or not 0 <= (self.cut or 0) <= self.byte:
            raise ValueError("its numbers contradict each other")

    @property
    def fingerprint(self) -> Fingerprint:
        return Fingerprint(self.byte, self.head, self.tail)

    def is_at(self, entry: DirectoryEntry) -> bool:
        """Whether an entry is this file, by inode and first bytes."""
        return (entry.device, entry.inode) == (self.device, self.inode) and (
            self.begins is None or begins_with(entry, self.begins)
        )

    @property
    def as_previous(self) -> PreviousFile:
        """Identity of this file for after the reader has left it."""
        return PreviousFile(self.device, self.inode, self.fingerprint)


def first_position(
    path: str, device: int, inode: int, modified: int, size: int, head: str
) -> dict[str, Any]:
    """Return the position of a file that was discovered and is not opened yet.

    Args:
        modified: modification time of its youngest rotated sibling at that time.
        size: number of first bytes that `head` covers.
        head: digest of these bytes.
    """
    nothing = fingerprint(0, b"", b"")
    found: dict[str, Any] = msgspec.to_builtins(
        FollowedPosition(
            "", 0, 0, 1, None, path, 0, device, inode, None, modified, 0,
            nothing.head, nothing.tail, Fingerprint(size, head, ""),
        )
    )  # fmt: skip
    return found


def read_position(stored: dict[str, Any], path: str, format_: str) -> FollowedPosition:
    """Return a stored position of the file at `path`, which is read by the rules `format_` now.

    Raises:
        InputError: it is invalid, or the file was read by other rules.
    """
    try:
        position = msgspec.convert(stored, FollowedPosition)
        position.check()
    except ValueError as error:
        raise InputError(
            f"{path}: its stored position {stored!r:.300} is invalid: {error}"
        ) from error
    if position.row and position.format != format_:
        raise InputError(
            f"{path}: was read as {position.format} before and as {format_} now, "
            f"which numbers the rows differently. Read it as before, or {READ_AGAIN}"
        )
    return position


def position_at(
    path: str,
    format_: str,
    row: int,
    place: RowBoundary[FollowedFile | None],
    proof: HeadAndTail,
    youngest_at_begin: int,
) -> dict[str, Any]:
    """Return the position to store from which reading continues with row `row`.

    Args:
        path: the followed path.
        format_: the rules by which its files are split into rows.
        place: the start of that row.
        proof: the first and the last bytes before it.
        youngest_at_begin: `FollowedPath.youngest_at_begin`.
    """
    file = place.file
    known = fingerprint(place.byte, proof.head, proof.tail)
    described = {
        "format": format_,
        "row": row,
        "byte": place.byte,
        "line": place.line,
        "cut": place.cut,
        "file": path if file is None else file.log.name,
        "number": 0 if file is None else file.number,
        "device": 0 if file is None else file.device,
        "inode": 0 if file is None else file.inode,
        "before": None if file is None else msgspec.to_builtins(file.before),
        "modified": youngest_at_begin if file is None else file.modified,
        "seen": 0 if file is None else max(file.seen, place.byte),
        "head": known.head,
        "tail": known.tail,
    }
    if file is not None and not place.byte and file.log.taken:
        described["begins"] = msgspec.to_builtins(file.known)
    return described
