"""JSON Lines: a JSON value per line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from millwheel.files.packed import Bytes
from millwheel.files.reader import FileReader, is_utf_8, split_lines
from millwheel.sources import Row


class JsonLinesReader(FileReader):
    format = "json_lines"

    def __init__(self, name: str, source: Bytes, value_type: Any, max_row_bytes: int) -> None:
        super().__init__(name, source, max_row_bytes)
        self._value: Callable[[bytes], Any] = msgspec.json.Decoder(value_type).decode

    def _split(self, buffer: bytes, start: int) -> list[bytes]:
        return split_lines(buffer, start)

    def _find_end(self, piece: bytes, state: int) -> tuple[int, int]:
        return piece.find(b"\n") + 1, state

    def _is_blank(self, raw: bytes) -> bool:
        return not raw.strip(b" \t\r")

    def _is_whole(self, raw: bytes) -> bool:
        return True

    def _decode(self, raws: list[bytes], rows: list[Row]) -> int:
        # msgspec passes over members that the type does not have without looking at their text
        whole = b"\n".join(raws)
        suspect = len(whole) > self._max_row_bytes or not is_utf_8(whole)
        decode, append = self._value, rows.append
        offset, first = self._rows, self._line
        for line, raw in enumerate(raws, first):
            try:
                if suspect:
                    self._check(raw)
                append(Row(offset, line, decode(raw)))
            except Exception as error:  # a type's __post_init__ may raise anything
                if self._is_blank(raw) and len(raw) <= self._max_row_bytes:
                    continue
                append(self._bad(offset, line, raw, self._what_is_wrong(raw, error)))
            offset += 1
        return first + len(raws)
