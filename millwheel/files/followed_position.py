"""The stored position of a followed file: a place in it, and the catalogue of its path."""

from __future__ import annotations

from typing import Any

import msgspec

from millwheel.errors import InputError
from millwheel.files.catalogue import Catalogue, KnownFile
from millwheel.files.content import (
    FINGERPRINT_BYTES,
    Fingerprint,
    Growing,
    Log,
    digest,
    fingerprint,
)
from millwheel.files.directory import DirectoryEntry
from millwheel.files.packed import READ_AGAIN
from millwheel.files.reader import RowBoundary

FILE_ROWS = 1 << 40


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


class FollowedFile:
    def __init__(self, log: Log, number: int, before: Fingerprint) -> None:
        self.log = log
        self.number = number
        self.before = before
        """Its bytes that were read before a restart, acknowledged or not."""
        state = log.state()
        self.inode = state.st_dev, state.st_ino
        self.seen = 0 if log.packed else state.st_size
        """Largest size that the file is known to have had."""

    def is_at(self, entry: DirectoryEntry | None) -> bool:
        return entry is not None and entry.inode == self.inode

    @property
    def read(self) -> Fingerprint:
        return fingerprint(self.log.taken, self.log.head, self.log.last)

    @property
    def known(self) -> Fingerprint:
        return self.before if self.log.taken < self.before.byte else self.read

    def is_another(self) -> bool:
        """Whether it was truncated since the restart, before a byte of it was read."""
        kept = min(self.before.byte, FINGERPRINT_BYTES)
        return (
            isinstance(self.log, Growing)
            and not self.log.taken
            and digest(self.log.between(0, kept)) != self.before.head
            and kept > 0
        )


class FollowedPosition(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The stored position: the start of the first unacknowledged row, and the known files."""

    format: str
    """The rules by which it was split into rows; empty if no file was opened yet."""
    row: int
    number: int
    byte: int
    line: int
    cut: int | None
    """Start of the row before, if that row was taken without a newline at its end."""
    head: str
    tail: str
    seen: int
    files: list[KnownFile]
    """The catalogue, with the bytes that were read of the file, acknowledged or not."""

    def check(self) -> None:
        if min(self.row, self.byte, self.number) < 0 or not 0 <= (self.cut or 0) <= self.byte:
            raise ValueError("its numbers contradict each other")

    @property
    def acknowledged(self) -> Fingerprint:
        return Fingerprint(self.byte, self.head, self.tail)


def first_position(
    inode: tuple[int, int], known: Fingerprint, size: int, skips: int = 0, line: int = 1
) -> dict[str, Any]:
    """The position of a file that was discovered and is not opened yet.

    Args:
        known: its first bytes.
        size: its size.
        skips: number of first bytes that were read before; `known` is the fingerprint of these.
        line: line number of the byte behind these.
    """
    read = known if skips else fingerprint(0, b"", b"")
    files = [KnownFile(0, *inode, known)]
    found: dict[str, Any] = msgspec.to_builtins(
        FollowedPosition("", 0, 0, skips, line, None, read.head, read.tail, size, files)
    )
    return found


def read_position(stored: dict[str, Any], path: str, format_: str) -> FollowedPosition:
    """A stored position of the file at `path`, which is read by the rules `format_` now.

    Raises:
        InputError: it is invalid, or the file was read by other rules.
    """
    try:
        position = msgspec.convert(stored, FollowedPosition)
        position.check()
    except ValueError as error:
        former = " It was stored by a former version, which knew files by their times." * (
            "modified" in stored
        )
        raise InputError(
            f"{path}: its stored position {stored!r:.300} is invalid: {error}.{former} "
            f"To continue, {READ_AGAIN}"
        ) from error
    if position.row and position.format != format_:
        raise InputError(
            f"{path}: was read as {position.format} before and as {format_} now, "
            f"which numbers the rows differently. Read it as before, or {READ_AGAIN}"
        )
    return position


def position_at(
    format_: str,
    row: int,
    place: RowBoundary[FollowedFile | None],
    proof: HeadAndTail,
    catalogue: Catalogue,
) -> dict[str, Any]:
    """The position to store from which reading continues with row `row`.

    Args:
        format_: the rules by which its files are split into rows.
        place: the start of that row.
        proof: the first and the last bytes before it.
        catalogue: the known files.
    """
    file = place.file
    known = fingerprint(place.byte, proof.head, proof.tail)
    return {
        "format": format_,
        "row": row,
        "number": catalogue.next_number if file is None else file.number,
        "byte": place.byte,
        "line": place.line,
        "cut": place.cut,
        "head": known.head,
        "tail": known.tail,
        "seen": 0 if file is None else max(file.seen, place.byte),
        "files": catalogue.stored(),
    }
