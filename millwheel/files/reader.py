"""Splits files into rows, independently of the format, and tracks which rows are acknowledged.

::

    0        acknowledged         returned          in the buffer      end of file
    |-------------|--------------------|------------------|................|
    '- the proof -'---- the blocks ----'

A *block* is a run of rows that `read` returned together; its bytes are kept until its rows are
acknowledged (credits limit them). The *proof* in a stored position is a digest of the bytes before
it. It covers only bytes of acknowledged rows: rows that were read ahead may be corrected before
they are read again.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence
from typing import Any, Generic, Protocol, Self, TypeVar

import msgspec

from millwheel.errors import InputError
from millwheel.files.file_rows import START, TEXT_CHARACTERS, FoundRows, RowFormat
from millwheel.files.packed import CHUNK_BYTES
from millwheel.sources import Lag, Row, Rows

BLOCK_ROWS = 1_000
READ_BYTES = 8 << 20
"""Limit of bytes returned by one `read`, and of further bytes in the buffer: rows may be large."""

BOM = b"\xef\xbb\xbf"
UTF_16_BOMS = (b"\xff\xfe", b"\xfe\xff")


class PrefixProof(Protocol):
    """A proof, computed incrementally, of the bytes before a position."""

    def update(self, data: bytes | memoryview) -> None: ...

    def copy(self) -> Self: ...


P = TypeVar("P", bound=PrefixProof)
F = TypeVar("F")


class RowBoundary(msgspec.Struct, Generic[F]):
    file: F
    byte: int = 0
    """Index of the byte after the rows before it."""
    line: int = 1
    """Line number of that byte, or of the row at `cut`."""
    cut: int | None = None
    """Start of the row before, if that row was taken without a newline at its end."""


class _Block(msgspec.Struct, Generic[P, F]):
    """Rows returned together. A header (which is not a row) and the start of a file are blocks
    too."""

    row: int
    """First row that the proof does not cover."""
    end_row: int
    buffer: bytes
    """Holds the bytes of the block up to `stop`."""
    taken: int
    """Index in `buffer` up to which the proof covers the bytes."""
    stop: int
    sizes: list[int]
    """Bytes of each row, without `newline`; the first includes blank lines and a BOM before it."""
    newline: int
    """1, or 0 if the sizes include the newlines."""
    lines: int
    """Number of lines of each row; 0 if they differ."""
    end: RowBoundary[F]
    proof: P | None = None
    """Proof at the end of the block, if its bytes are not kept."""


class _LongRow(Generic[P]):
    """A row over the size limit, which is not kept, while its end is searched."""

    def __init__(self, proof: P, skip: int) -> None:
        self.proof = proof
        self.skip = skip
        """Bytes at its start that the proof already covers."""
        self.text = b""
        self.size = self.newlines = 0
        self.state = START

    def add(self, part: bytes) -> None:
        self.proof.update(part[self.skip :])
        self.skip = max(0, self.skip - len(part))
        self.text += part[: 4 * TEXT_CHARACTERS - len(self.text)]
        self.size += len(part)
        self.newlines += part.count(b"\n")


class FileReader(ABC, Generic[P, F]):
    """Splits the bytes of files into rows; subclasses provide the bytes and the stored position.

    `_buffer` holds the file's bytes from `_base`. Bytes before `_byte` were returned as rows;
    `_raws[_next:]` are the complete rows after it, starting `_lead` bytes further.
    """

    def __init__(self, format_: RowFormat, proof: P, file: F) -> None:
        self._format = format_
        self._proof: P = proof
        self._acknowledged = 0
        self._place: RowBoundary[F] = RowBoundary(file)
        self._blocks: deque[_Block[P, F]] = deque()
        self._failure: InputError | None = None
        self._rows = 0
        self._taken = 0
        self._pieces = 0
        self._found_none = False
        self._go_to(RowBoundary(file))

    def _go_to(self, place: RowBoundary[F]) -> None:
        """Continue at a position; bytes are read from its `cut` if there is one."""
        self._file = place.file
        self._byte, self._line, self._cut = place.byte, place.line, place.cut
        self._base = place.byte if place.cut is None else place.cut
        self._buffer = b""
        self._searched = self._lead = 0
        self._raws: list[bytes] = []
        self._next = 0
        self._long: _LongRow[P] | None = None
        self._header_due = self._format.has_header and place.byte == 0

    # -- the Reader protocol

    @property
    def caught_up(self) -> bool:
        """Whether the last `read` has found no complete row."""
        return self._found_none

    async def read(self, limit: int) -> Sequence[Row]:
        """Return up to `limit` further rows, fewer if they are large; it may be cancelled.

        Raises:
            InputError: the file is damaged here, or reading failed. Rows before the damage are
                returned first; from then on each call raises.
        """
        if self._failure is not None:
            raise self._failure
        self._found_none = False
        rows = FoundRows()
        enough = self._taken + READ_BYTES
        self._pieces = 0
        try:
            while len(rows) < limit and (self._taken < enough or not rows):
                if self._next < len(self._raws):
                    self._hand_out(limit - len(rows), rows)
                elif not await self._fill(rows):
                    break
        except InputError as error:
            self._failure = error
            if not rows:
                raise
        self._found_none = not rows
        return rows if rows.together is None else rows.together

    def position(self, acknowledged: int) -> dict[str, Any]:
        """The position to store from which `open` continues with row `acknowledged`.

        Its proof covers all bytes before that row.
        """
        assert self._acknowledged <= acknowledged <= self._rows, (self._acknowledged, self._rows)
        self._acknowledged = acknowledged
        blocks = self._blocks
        while blocks and blocks[0].end_row <= acknowledged:
            block = blocks.popleft()
            self._prove(block, block.stop)
            if block.proof is not None:
                self._proof = block.proof
            self._place = block.end
        if blocks and (count := acknowledged - blocks[0].row) > 0:
            block, place = blocks[0], self._place
            first = len(block.sizes) - (block.end_row - block.row)
            size = sum(block.sizes[first : first + count]) + count * block.newline
            lines = block.lines * count or block.buffer.count(
                b"\n", block.taken, block.taken + size
            )
            self._prove(block, block.taken + size)
            block.row = acknowledged
            self._place = RowBoundary(place.file, place.byte + size, place.line + lines)
        return self._describe(acknowledged, self._place, self._proof)

    def _prove(self, block: _Block[P, F], stop: int) -> None:
        if block.taken < stop:
            self._proof.update(memoryview(block.buffer)[block.taken : stop])
            block.taken = stop

    @abstractmethod
    def lag(self) -> Lag:
        """The number of bytes not yet returned as rows."""

    # -- implemented by subclasses: the bytes and the stored position

    @abstractmethod
    def _describe(self, row: int, place: RowBoundary[F], proof: P) -> dict[str, Any]:
        """Return the position to store."""

    @abstractmethod
    def _read_piece(self, size: int) -> bytes:
        """Read the next 1 to `size` bytes of the file; empty at its current end."""

    @abstractmethod
    async def _at_end(self, rows: list[Row]) -> bool:
        """Handle the current end of the file; return whether to continue reading."""

    # -- returning rows

    def _hand_out(self, limit: int, rows: FoundRows) -> None:
        raws = self._raws
        if self._next or limit < len(raws) or len(raws) > BLOCK_ROWS:
            raws = raws[self._next : self._next + min(limit, BLOCK_ROWS)]
        before = len(rows)
        if (values := self._format.values(raws)) is not None:
            rows.add(Rows(self._rows, self._line, values, list(raws)))
            line = self._line + len(raws)
        else:
            line = self._format.decode(raws, rows, self._rows, self._line)
        self._next += len(raws)
        sizes = list(map(len, raws))
        count = len(rows) - before
        size = sum(sizes) + len(raws)
        if count == len(raws):
            self._cover(count, size, line, sizes, 1)
        else:
            self._cover(count, size, line, self._with_blank_lines(raws), 0)

    def _with_blank_lines(self, raws: list[bytes]) -> list[int]:
        sizes = []
        size = 0
        for raw in raws:
            size += len(raw) + 1
            if not self._format.is_blank(raw):
                sizes.append(size)
                size = 0
        return sizes

    def _cover(
        self,
        count: int,
        size: int,
        line: int,
        sizes: list[int],
        newline: int,
        cut: int | None = None,
    ) -> None:
        """Account for returned bytes: `count` rows in the next `size` bytes.

        Args:
            line: number of the next line.
            sizes: size of each row.
            newline: 1 if `sizes` exclude the newlines, otherwise 0.
            cut: start of the last row in the file, if it has no newline.
        """
        if lead := self._lead:
            self._lead = 0
            size += lead
            sizes = [lead + sizes[0], *sizes[1:]] if sizes else []
        start = self._byte - self._base
        first = self._rows
        self._rows += count
        self._byte += size
        self._taken += size
        lines = 1 if line - self._line == count else 0
        self._line, self._cut = line, cut
        end = RowBoundary(self._file, self._byte, line, cut)
        self._blocks.append(
            _Block(first, self._rows, self._buffer, start, start + size, sizes, newline, lines, end)
        )

    # -- splitting the file into raw rows

    async def _fill(self, rows: list[Row]) -> bool:
        """Find the next raw rows, or append one row that is decoded separately.

        It awaits only while `rows` is empty, and cancellation keeps its progress.

        Returns:
            False: no more bytes are available now.
        """
        self._raws, self._next = [], 0
        self._drop_returned_bytes()
        pieces = 0
        while True:
            found, header_due = len(rows), self._header_due
            if self._long is None:
                self._cut_up(rows)
            if self._long is not None:
                self._pass_long_row(rows)
            if self._raws or len(rows) > found or header_due > self._header_due:
                return True
            if pieces and rows:
                return False
            # larger and larger pieces while a long row is incomplete, to avoid quadratic time
            size = max(CHUNK_BYTES, min(len(self._buffer), self._format.max_row_bytes))
            piece = self._read_piece(size)
            if not piece:
                if not await self._at_end(rows):
                    return False
                if len(rows) > found:
                    return True
            self._buffer = self._buffer + piece if self._buffer else piece
            pieces += 1
            self._pieces += 1
            if self._pieces > 1 and not rows:
                await asyncio.sleep(0)

    def _drop_returned_bytes(self) -> None:
        keep = self._byte if self._cut is None else self._cut
        if keep > self._base:
            self._buffer = self._buffer[keep - self._base :]
            self._searched = max(0, self._searched - (keep - self._base))
            self._base = keep

    def _cut_up(self, rows: list[Row]) -> None:
        buffer = self._buffer
        if self._base == 0 and self._byte == 0:
            if buffer.startswith(UTF_16_BOMS):
                raise InputError(f"{self._format.file}: is UTF-16; convert it to UTF-8")
            if BOM.startswith(buffer[:3]):
                if len(buffer) < len(BOM):
                    return
                self._lead = len(BOM)
        start = self._lead  # of the bytes not consumed yet, or of the row at `_cut`
        if buffer.find(b"\n", max(start, self._searched)) >= 0:
            raws = self._format.split(buffer, start)
            if raws and self._cut is not None:
                raws = self._take_rest(raws, rows)
            if raws and self._header_due:
                raws = self._take_header(raws)
            self._raws, self._next = raws, 0
            if raws or len(rows):
                return
            self._drop_returned_bytes()
            start = self._lead
        self._searched = len(self._buffer)
        if len(self._buffer) - start > self._format.max_row_bytes:
            self._begin_long_row()

    def _take_header(self, raws: list[bytes]) -> list[bytes]:
        for number, raw in enumerate(raws, 1):
            if not self._format.is_blank(raw):
                self._format.read_header(raw, self._line + number - 1)
                self._header_due = False
                break
        passed = raws[:number]
        lines = sum(raw.count(b"\n") for raw in passed) + number
        self._cover(0, sum(map(len, passed)) + number, self._line + lines, [], 0)
        return raws[number:]

    def _take_rest(self, raws: list[bytes], rows: list[Row]) -> list[bytes]:
        """Consume the rest of a row that was taken without a newline; return the raw rows after
        it."""
        assert self._cut is not None
        raw = raws[0]
        taken = self._byte - self._cut
        line = self._line + raw.count(b"\n") + 1
        if self._format.is_blank(raw[taken:]):
            self._cover(0, len(raw) + 1 - taken, line, [], 0)
        else:
            self._refuse_rest(raw, rows)
            size = len(raw) + 1 - taken
            self._cover(1, size, line, [size], 0)
        return raws[1:]

    def _refuse_rest(self, raw: bytes, rows: list[Row]) -> None:
        """Append a bad row: a row that was taken without a newline has grown."""
        assert self._cut is not None
        taken = raw[: self._byte - self._cut].decode(errors="backslashreplace")
        problem = (
            f"the file ended within this line when it was read, and {taken:.200} was processed as "
            "the whole row. The line is longer now. End the line where it ended then; to process "
            "the longer row too, append it as a line of its own. Read a file that is still being "
            "written with follow=True, which waits for incomplete lines"
        )
        rows.append(self._format.bad(self._rows, self._line, raw, problem))

    def _begin_long_row(self) -> None:
        proof = self._proof.copy()
        for block in self._blocks:
            if block.proof is not None:
                proof = block.proof.copy()
            else:
                proof.update(memoryview(block.buffer)[block.taken : block.stop])
        if self._lead:
            proof.update(self._buffer[: self._lead])
            self._buffer = self._buffer[self._lead :]
        self._long = _LongRow(proof, self._byte - self._base)

    def _pass_long_row(self, rows: list[Row]) -> None:
        long, piece = self._long, self._buffer
        assert long is not None
        end, long.state = self._format.find_end(piece, long.state)
        long.add(piece[:end] if end else piece)
        self._buffer = piece[end:] if end else b""
        if end:
            self._end_long_row(rows, ends_in_newline=True)

    def _end_long_row(self, rows: list[Row], *, ends_in_newline: bool) -> None:
        long, self._long = self._long, None
        assert long is not None
        size = long.size - ends_in_newline
        problem = self._format.too_long(size)
        if self._header_due:
            raise InputError(f"{self._format.file}, line {self._line}: the header: {problem}")
        rows.append(self._format.bad(self._rows, self._line, long.text[:size], problem))
        begin = self._byte if self._cut is None else self._cut
        byte = begin + self._lead + long.size
        line = self._line + (long.newlines if ends_in_newline else 0)
        cut = None if ends_in_newline else begin
        self._append_block(1, RowBoundary(self._file, byte, line, cut), long.proof)
        self._taken += byte - self._byte
        self._byte, self._line, self._cut = byte, line, cut
        self._base = byte
        self._searched = self._lead = 0

    def _move_to(self, place: RowBoundary[F], proof: P) -> None:
        """Move the position to another place. All rows returned so far are acknowledged."""
        self._blocks.clear()
        self._place, self._proof = place, proof

    def _append_block(self, count: int, end: RowBoundary[F], proof: P) -> None:
        first, self._rows = self._rows, self._rows + count
        self._blocks.append(_Block(first, self._rows, b"", 0, 0, [], 0, 0, end, proof))

    def _open_quote(self) -> InputError:
        return InputError(
            f"{self._format.file}, line {self._line}: a quote in the row that starts here is never "
            "closed, so the start of the next row is unknown. Close it (rows read so far stay "
            "valid), or use quote=None if quotes have no meaning in this file"
        )
