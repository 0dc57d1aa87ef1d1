"""JSON Lines: one JSON value per line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from millwheel.files.rows import RowFormat, is_utf_8, split_lines
from millwheel.sources import Row

NUL = b"\\u0000"
"""NUL in JSON. Rows with it are decoded one by one: Postgres does not store it."""


class JsonLinesFormat(RowFormat):
    name = "json_lines"

    def __init__(self, file: str, value_type: Any, max_row_bytes: int) -> None:
        super().__init__(file, max_row_bytes)
        self._value: Callable[[bytes], Any] = msgspec.json.Decoder(value_type).decode

    def split(self, buffer: bytes, start: int) -> list[bytes]:
        return split_lines(buffer, start)

    def find_end(self, piece: bytes, state: int) -> tuple[int, int]:
        return piece.find(b"\n") + 1, state

    def is_blank(self, raw: bytes) -> bool:
        return len(raw) <= self.max_row_bytes and not raw.strip(b" \t\r")

    def is_whole(self, raw: bytes) -> bool:
        return True

    def values(self, raws: list[bytes]) -> list[Any] | None:
        whole = b"\n".join(raws)
        if max(map(len, raws)) > self.max_row_bytes or not is_utf_8(whole) or NUL in whole:
            return None
        try:
            return list(map(self._value, raws))
        except Exception:  # a blank line, or a bad row: `decode` finds it
            return None

    def decode(self, raws: list[bytes], rows: list[Row], number: int, line: int) -> int:
        # msgspec skips members that the type does not have without checking their text
        whole = b"\n".join(raws)
        suspect = len(whole) > self.max_row_bytes or not is_utf_8(whole)
        decode, append = self._value, rows.append
        offset, first = number, line
        for line, raw in enumerate(raws, first):
            try:
                if suspect:
                    self.check(raw)
                append(Row(offset, line, decode(raw)))
            except Exception as error:  # a type's __post_init__ may raise anything
                if self.is_blank(raw):
                    continue
                append(self.bad(offset, line, raw, self.explain(raw, error)))
            offset += 1
        return first + len(raws)
