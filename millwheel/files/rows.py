"""What a format knows: how bytes are cut into rows, and what one row means."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable

import msgspec

from millwheel.errors import InputError
from millwheel.sources import Row

TEXT_CHARACTERS = 2_000
"""Characters kept of a bad row."""

START, PLAIN, QUOTED, CLOSING = range(4)
"""Where a row is being cut: at a cell's start, in it, in its quotes, behind a quote in them. Without
quotes, only the first."""


class RowFormat(ABC):
    """Cuts bytes into raw rows, and decodes them. It belongs to one reader."""

    name = ""
    """How it cuts: a stored position is only good for the same rules."""
    has_header = False
    """Whether the first row of each file names the columns."""

    def __init__(self, file: str, max_row_bytes: int) -> None:
        self.file = file
        """The file that is being read, for messages."""
        self.max_row_bytes = max_row_bytes

    @abstractmethod
    def split(self, buffer: bytes, start: int) -> list[bytes]:
        """The whole raw rows in `buffer` from `start` on, without their newlines."""

    @abstractmethod
    def find_end(self, piece: bytes, state: int) -> tuple[int, int]:
        """Where a row ends in a piece of it (behind the newline, or 0), and the new state."""

    @abstractmethod
    def is_blank(self, raw: bytes) -> bool:
        """Whether a raw row is a blank line, which is no row."""

    @abstractmethod
    def is_whole(self, raw: bytes) -> bool:
        """Whether no quote is open at the end of a row that has no newline."""

    @abstractmethod
    def decode(self, raws: list[bytes], rows: list[Row], number: int, line: int) -> int:
        """Append the rows that `raws` make to `rows`, the first with this number and line.

        Returns:
            The line that comes after them.
        """

    def read_header(self, raw: bytes, line: int) -> None:
        """Take the names of the columns.

        Raises:
            InputError: it is no header, or lacks a column.
        """
        raise NotImplementedError

    # -- bad rows

    def bad(self, number: int, line: int, raw: bytes, what: str) -> Row:
        """The row of a raw row that is refused."""
        text = raw[: 4 * TEXT_CHARACTERS].decode(errors="backslashreplace")
        # Postgres, where dead letters end up, does not store NUL
        text = text.replace("\0", "\\x00")[:TEXT_CHARACTERS]
        what = what.replace("\0", "\\x00")[:TEXT_CHARACTERS]
        return Row(number, line, error=InputError(f"{self.file}, line {line}: {what}"), text=text)

    def too_long(self, size: int) -> str:
        """What is wrong with a row of this many bytes."""
        return (
            f"the row has {size:,} bytes, more than the limit of {self.max_row_bytes:,} "
            "(max_row_bytes)"
        )

    def what_is_wrong(self, raw: bytes, error: Exception) -> str:
        """Why a row was refused with `error`, in words."""
        if len(raw) > self.max_row_bytes:
            return self.too_long(len(raw))
        try:
            raw.decode()
        except UnicodeDecodeError as wrong:
            return f"byte {wrong.start + 1:,} of the row is not UTF-8: {wrong.reason}"
        if isinstance(error, (msgspec.MsgspecError, BadRow)):
            return str(error)
        return f"{type(error).__name__}: {error}"

    def check(self, raw: bytes) -> None:
        """Raise BadRow if the row is too long, or not UTF-8."""
        if len(raw) > self.max_row_bytes or not is_utf_8(raw):
            raise BadRow


class BadRow(Exception):
    """What is wrong with one row."""


def split_lines(buffer: bytes, start: int) -> list[bytes]:
    end = buffer.rfind(b"\n", start)
    return buffer[start:end].split(b"\n") if end >= 0 else []


def is_utf_8(data: bytes) -> bool:
    if not data.isascii():
        try:
            data.decode()
        except UnicodeDecodeError:
            return False
    return True


def listed(names: Iterable[str]) -> str:
    names = list(names)
    shown = ", ".join(map(repr, names[:40]))
    return shown if len(names) <= 40 else f"{shown} and {len(names) - 40} more"
