"""Files of rows: CSV in gzip, in parts, each with a digest."""

from __future__ import annotations

import gzip
import hashlib
import re
import zlib
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import psycopg

from millwheel.errors import InputError
from millwheel.store.copies.file_manifest import REMEDY, RowFile
from millwheel.store.copies.file_places import FilePlace, Read, Write
from millwheel.store.copies.layout import TableLayout

PART_BYTES = 256 << 20
"""Text of one file, before it is compressed; a row is not divided."""

BLOCK_BYTES = 256 << 10

LEVEL = 1
"""Of gzip: a higher one makes the copy much slower, and holds its snapshot for longer."""


class RowBlock(NamedTuple):
    data: bytes
    rows: int


def row_blocks(copy: psycopg.Copy) -> Iterator[RowBlock]:
    """The rows that the server sends, many at once; the first row of a CSV is its header."""
    rows: list[bytes] = []
    size = 0
    for row in copy:
        rows.append(bytes(row))
        size += len(row)
        if size >= BLOCK_BYTES:
            yield RowBlock(b"".join(rows), len(rows))
            rows, size = [], 0
    if rows:
        yield RowBlock(b"".join(rows), len(rows))


class RowFiles:
    """The files of one table, in the order of the tables.

    Args:
        number: of the table, which tells its files from others with such a name.
    """

    def __init__(self, place: FilePlace, table: TableLayout, number: int) -> None:
        self._place, self._table = place, table
        plain = re.sub(r"[^a-z0-9_]+", "_", table.name.lower())[:40]
        self._stem = f"rows/{number:04}-{plain}"
        self.made: list[RowFile] = []

    def write(self, header: bytes, blocks: Iterable[RowBlock]) -> Iterator[RowBlock]:
        """Write all rows; gives each block that is written. A table without rows has no file."""
        coming = iter(blocks)
        block = next(coming, None)
        while block is not None:
            name = f"{self._stem}-{len(self.made) + 1:04}.csv.gz"
            with self._place.writing(name) as write:
                counted = _CountedWrites(write)
                rows, size = 0, 0
                with gzip.GzipFile("", "wb", LEVEL, counted, mtime=0) as file:
                    file.write(header)
                    while block is not None and size < PART_BYTES:
                        file.write(block.data)
                        rows += block.rows
                        size += len(block.data)
                        yield block
                        block = next(coming, None)
            self.made.append(
                RowFile(
                    name,
                    self._table.name,
                    self._table.columns,
                    rows,
                    counted.size,
                    counted.digest.hexdigest(),
                )
            )


class _CountedWrites:
    """A file for gzip that counts and digests the bytes it gets."""

    def __init__(self, write: Write) -> None:
        self._write = write
        self.digest = hashlib.sha256()
        self.size = 0

    def write(self, data: Any) -> int:
        block = bytes(data)
        self._write(block)
        self.digest.update(block)
        self.size += len(block)
        return len(block)

    def flush(self) -> None:
        pass


class _DigestedReads:
    """A file for gzip that digests the bytes it gives."""

    def __init__(self, read: Read) -> None:
        self._read = read
        self.digest = hashlib.sha256()

    def read(self, size: int = -1) -> bytes:
        block = self._read(size)
        self.digest.update(block)
        return block

    def drain(self) -> None:
        while self.read(BLOCK_BYTES):
            pass


def stored_rows(place: FilePlace, one: RowFile) -> Iterator[bytes]:
    """The text of a file, with its header. `InputError` at its end, or before, if it is damaged:
    the server says only after the last block whether it takes the rows."""
    with place.reading(one.file) as read:
        digested = _DigestedReads(read)
        try:
            with gzip.GzipFile(fileobj=digested) as file:  # type: ignore[call-overload]
                while block := file.read(BLOCK_BYTES):
                    yield block
        except (gzip.BadGzipFile, zlib.error, EOFError) as error:
            raise _damaged(place, one) from error
        digested.drain()
        if digested.digest.hexdigest() != one.sha256:
            raise _damaged(place, one)


def _damaged(place: FilePlace, one: RowFile) -> InputError:
    return InputError(
        f"{place.text}/{one.file}, rows of table {one.table!r}, is damaged: its digest is another "
        f"one than the manifest has. {REMEDY}"
    )
