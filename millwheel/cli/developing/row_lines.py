"""Rows as aligned lines: the place, the operation, and each column with its name."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import msgspec
from rich.cells import cell_len

from millwheel.cli.printing import shortened
from millwheel.store.console.new_rows import Row

WIDEST = 30
"""Cells to which a column is aligned; a longer value moves those behind it."""

LONGEST = 60
"""Cells of a value; a longer one is cut."""

OPERATION = len("deliver")


class RowLines:
    """Makes lines. Each place keeps the widths that its columns have had, so that lines stay
    aligned as they come."""

    def __init__(self) -> None:
        self._widths: dict[tuple[str, str], int] = {}

    def expect(self, places: Iterable[str]) -> None:
        """Align the rows of all these places."""
        for place in places:
            self._widen("", "place", place)

    def lines(self, place: str, operation: str, rows: Sequence[Row]) -> Iterator[str]:
        """For example ``trends  upsert  query=cats  searches=12``."""
        texts = [
            {column: f"{column}={value_text(value)}" for column, value in row.items()}
            for row in rows
        ]
        self.expect([place])
        for text in texts:
            for column, part in text.items():
                self._widen(place, column, part)
        head = f"{self._padded('', 'place', place)}  {operation:<{OPERATION}}"
        for text in texts:
            parts = [self._padded(place, column, part) for column, part in text.items()]
            yield "  ".join([head, *parts]).rstrip()

    def _widen(self, place: str, column: str, text: str) -> None:
        width = min(cell_len(text), WIDEST)
        self._widths[place, column] = max(self._widths.get((place, column), 0), width)

    def _padded(self, place: str, column: str, text: str) -> str:
        return text + " " * (self._widths[place, column] - cell_len(text))


def value_text(value: msgspec.Raw) -> str:
    """A text as it is, and any other value as JSON, on one line."""
    data = bytes(value)
    text = msgspec.json.decode(data) if data.startswith(b'"') else data.decode()
    return shortened(str(text).replace("\n", "\\n"), LONGEST)
