"""Shows the rows of a pipeline's sinks as they come."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from millwheel.cli.developing.reports import Checked, Delivered, as_raw
from millwheel.cli.developing.row_lines import RowLines
from millwheel.core.quantities import count_of
from millwheel.errors import StoreError
from millwheel.store.console.new_rows import Row, RowLook

LOOK_SECONDS = 0.3

REST = 4
"""Times of a look's own duration until the next one: a look reads the tables as a whole."""

MOST = 50
"""Rows of a table, or lines of a directory, that are shown of one look."""


class Arrivals:
    """Looks at tables and part files, and prints the rows that have come since the look before.

    Args:
        url: the store.
        say: prints a line.
    """

    def __init__(self, url: str, say: Callable[[str], None]) -> None:
        self._url = url
        self._say = say
        self._lines = RowLines()
        self._tables: dict[str, bool] = {}
        self._look: RowLook | None = None
        self._files: dict[str, GrownFiles] = {}
        self._looking = asyncio.Lock()
        self._is_away = False

    async def begin(self, checked: Checked) -> None:
        """Look at the sinks of this version. Those of the pipeline as it is are not shown again."""
        self._tables = checked.tables
        self._lines.expect([*checked.tables, *checked.directories])
        self._files = {
            directory: self._files.get(directory) or GrownFiles(Path(directory))
            for directory in checked.directories
        }
        if self._look is None:
            self._look = RowLook(self._url, checked.pipeline, MOST)
        await self.look()

    async def run(self) -> None:
        """Look again and again."""
        loop = asyncio.get_running_loop()
        while True:
            began = loop.time()
            await self.look()
            await asyncio.sleep(max(LOOK_SECONDS, REST * (loop.time() - began)))

    async def look(self) -> None:
        async with self._looking:
            if self._look is None:
                return
            try:
                found = await asyncio.to_thread(self._look.look, [*self._tables])
            except StoreError as error:
                if not self._is_away:
                    self._say(f"rows cannot be shown now: {error}")
                self._is_away = True
                return
            self._is_away = False
            for new in found:
                operation = "upsert" if self._tables[new.table] else "insert"
                self._show(new.table, operation, new.rows, new.before)
            for directory, files in self._files.items():
                rows = list(files.lines())
                self._show(directory, "line", rows[-MOST:], len(rows[:-MOST]))

    def delivered(self, report: Delivered) -> None:
        self._show(report.sink, "deliver", [_row(report.value)], 0)

    def _show(self, place: str, operation: str, rows: list[Row], before: int) -> None:
        if before:
            self._say(f"{place}  {operation}  {count_of(before, 'row')} before these:")
        for line in self._lines.lines(place, operation, rows):
            self._say(line)


class GrownFiles:
    """The lines that part files in a directory have got. A file that was cut off, as after a crash,
    is read again from its new end."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._read = {path: path.stat().st_size for path in self._paths()}

    def _paths(self) -> list[Path]:
        return sorted(self._directory.glob("*.jsonl"))

    def lines(self) -> Iterator[Row]:
        for path in self._paths():
            with path.open("rb") as file:
                position = min(self._read.get(path, 0), path.stat().st_size)
                file.seek(position)
                whole, newline, _ = file.read().rpartition(b"\n")
                self._read[path] = position + len(whole) + len(newline)
            yield from (_row(msgspec.Raw(line)) for line in whole.splitlines())


def _row(value: msgspec.Raw) -> Row:
    """A value that is no object has one column."""
    try:
        return msgspec.json.decode(value, type=Row)
    except msgspec.DecodeError:
        return {"value": value if bytes(value).strip() else as_raw(None)}
