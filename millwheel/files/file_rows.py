"""File formats: how bytes are split into rows, and how a row is decoded."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any, Self

import msgspec

from millwheel.core.json_rows import BadRow, is_utf_8
from millwheel.errors import InputError
from millwheel.sources import Row, Rows

TEXT_CHARACTERS = 2_000

START, PLAIN, QUOTED, CLOSING = range(4)
"""State of splitting a row: at a cell's start, inside it, inside its quotes, after a quote in a
quoted cell. A format without quotes only uses the first."""


class FoundRows(list[Row]):
    """The rows of one read: as columns (`together`) as long as all of them were decoded
    together."""

    def __init__(self) -> None:
        super().__init__()
        self.together: Rows | None = None

    def add(self, rows: Rows) -> None:
        before = self.together
        if before is not None and rows.follows(before):
            before.values += rows.values
            before.raws += rows.raws
        elif before is None and not super().__len__():
            self.together = rows
        else:
            self.extend(rows)

    def append(self, row: Row) -> None:
        self._separate()
        super().append(row)

    def extend(self, rows: Iterable[Row]) -> None:
        self._separate()
        super().extend(rows)

    def __iadd__(self, rows: Iterable[Row]) -> Self:  # type: ignore[misc, override]
        self.extend(rows)
        return self

    def _separate(self) -> None:
        together, self.together = self.together, None
        if together is not None:
            super().extend(together)

    def __len__(self) -> int:
        return super().__len__() if self.together is None else len(self.together)

    def __bool__(self) -> bool:
        return len(self) > 0


class RowFormat(ABC):
    """Splits bytes into raw rows and decodes them. Each reader has its own instance."""

    name = ""
    """Name of its splitting rules; a stored position is only valid for the same rules."""
    has_header = False

    def __init__(self, file: str, max_row_bytes: int) -> None:
        self.file = file
        self.max_row_bytes = max_row_bytes

    @abstractmethod
    def split(self, buffer: bytes, start: int) -> list[bytes]:
        """The complete raw rows in `buffer` from `start`, without their newlines."""

    @abstractmethod
    def find_end(self, piece: bytes, state: int) -> tuple[int, int]:
        """Find the end of a row in a piece of it.

        Returns:
            The index after the newline, or 0 if the row does not end here, and the new state.
        """

    @abstractmethod
    def is_blank(self, raw: bytes) -> bool:
        """Whether a raw row is a blank line, which does not count as a row."""

    @abstractmethod
    def is_whole(self, raw: bytes) -> bool:
        """Whether no quote is open at the end of a row that has no newline."""

    @abstractmethod
    def decode(self, raws: list[bytes], rows: list[Row], number: int, line: int) -> int:
        """Decode `raws`, append the rows to `rows`, and return the number of the next line.

        Args:
            number: number of the first row.
            line: line of the first raw row.
        """

    def values(self, raws: list[bytes]) -> list[Any] | None:
        """Decode raw rows of JSON together; None: this format or these rows need `decode`."""
        return None

    def read_header(self, raw: bytes, line: int) -> None:
        """Read the names of the columns.

        Raises:
            InputError: the header is invalid, or lacks a column.
        """
        raise NotImplementedError

    # -- bad rows

    def bad(self, number: int, line: int, raw: bytes, what: str) -> Row:
        text = raw[: 4 * TEXT_CHARACTERS].decode(errors="backslashreplace")
        # Postgres, which stores the dead letters, does not accept NUL
        text = text.replace("\0", "\\x00")[:TEXT_CHARACTERS]
        what = what.replace("\0", "\\x00")[:TEXT_CHARACTERS]
        return Row(number, line, error=InputError(f"{self.file}, line {line}: {what}"), text=text)

    def too_long(self, size: int) -> str:
        return (
            f"the row has {size:,} bytes, more than the limit of {self.max_row_bytes:,} "
            "(max_row_bytes)"
        )

    def explain(self, raw: bytes, error: Exception) -> str:
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
        """Check size and encoding of a row.

        Raises:
            BadRow: the row is too long, or not UTF-8.
        """
        if len(raw) > self.max_row_bytes or not is_utf_8(raw):
            raise BadRow


def split_lines(buffer: bytes, start: int) -> list[bytes]:
    end = buffer.rfind(b"\n", start)
    return buffer[start:end].split(b"\n") if end >= 0 else []


def listed(names: Iterable[str]) -> str:
    names = list(names)
    shown = ", ".join(map(repr, names[:40]))
    return shown if len(names) <= 40 else f"{shown} and {len(names) - 40} more"
