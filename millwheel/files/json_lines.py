"""JSON Lines: one JSON value per line."""

from __future__ import annotations

from typing import Any

from millwheel.core.json_rows import BadRow, JsonRows
from millwheel.files.file_rows import RowFormat, split_lines
from millwheel.sources import Row


class JsonLinesFormat(RowFormat):
    name = "json_lines"

    def __init__(self, file: str, value_type: Any, max_row_bytes: int) -> None:
        super().__init__(file, max_row_bytes)
        self._json = JsonRows(value_type)

    def split(self, buffer: bytes, start: int) -> list[bytes]:
        return split_lines(buffer, start)

    def find_end(self, piece: bytes, state: int) -> tuple[int, int]:
        return piece.find(b"\n") + 1, state

    def is_blank(self, raw: bytes) -> bool:
        return len(raw) <= self.max_row_bytes and not raw.strip(b" \t\r")

    def is_whole(self, raw: bytes) -> bool:
        return True

    def values(self, raws: list[bytes]) -> list[Any] | None:
        return self._json.together(raws, self.max_row_bytes)  # None also for a blank line

    def decode(self, raws: list[bytes], rows: list[Row], number: int, line: int) -> int:
        append = rows.append
        offset, first = number, line
        for line, raw in enumerate(raws, first):
            try:
                append(Row(offset, line, self._decode_one(raw)))
            except BadRow as error:
                if self.is_blank(raw):
                    continue
                append(self.bad(offset, line, raw, self.explain(raw, error)))
            offset += 1
        return first + len(raws)

    def _decode_one(self, raw: bytes) -> Any:
        if len(raw) > self.max_row_bytes:
            raise BadRow
        return self._json.one(raw)
