"""Files that are read once to their end, with a digest of all acknowledged bytes as proof."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import xxhash

from millwheel.errors import InputError
from millwheel.files.file_rows import QUOTED, RowFormat
from millwheel.files.packed import CHUNK_BYTES, READ_AGAIN, RESTORE, Bytes
from millwheel.files.reader import FileReader, RowBoundary
from millwheel.sources import Lag, Row


class _WholePosition(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The stored position: the start of the first unacknowledged row, and a proof of the bytes
    before."""

    format: str
    """The rules by which the file was split; others would number the rows differently."""
    row: int
    byte: int
    line: int
    cut: int | None
    """Start of the row before, if that row was taken without a newline at its end."""
    digest: str
    """XXH3-128 of the first `byte` unpacked bytes."""

    def check(self) -> None:
        if min(self.row, self.byte) < 0 or not 0 <= (self.cut or 0) <= self.byte:
            raise ValueError("its numbers contradict each other")


class WholeFileReader(FileReader[xxhash.xxh3_128, None]):
    def __init__(self, format_: RowFormat, source: Bytes) -> None:
        self._source = source
        self._ended = False
        super().__init__(format_, xxhash.xxh3_128(), None)

    @property
    def ended(self) -> bool:
        return self._ended

    async def wait(self) -> None:
        """The file is bounded: there is nothing to wait for."""

    def progress(self) -> float:
        fetched = self._base + len(self._buffer)
        share = self._source.share()
        if self._ended or not fetched:
            return share
        return min(1.0, share * self._byte / fetched)

    def lag(self) -> Lag:
        """The number of bytes not read yet; for a compressed file, of compressed bytes."""
        waiting = max(0, self._base + len(self._buffer) - self._byte)
        return Lag(bytes=self._source.left() + waiting)

    def close(self) -> None:
        self._source.close()

    async def begin(self, stored: dict[str, Any] | None) -> None:
        """Read the header, and continue at a stored position.

        Raises:
            InputError: acknowledged bytes have changed, or the file or the position is invalid.
        """
        if self._format.has_header:
            await self._fill([])
        if stored is not None:
            await self._resume(stored)

    def _read_piece(self, size: int) -> bytes:
        piece = self._source.read(size)
        self._ended = False
        return piece

    async def _at_end(self, rows: list[Row]) -> bool:
        """Take a last line without a newline as a row, if it is valid."""
        format_ = self._format
        if self._long is not None:
            if self._long.state == QUOTED:
                raise self._open_quote()
            raise self._incomplete(format_.too_long(self._long.size))
        last = self._buffer[self._lead :]
        if self._cut is not None:
            rest = self._buffer[self._byte - self._base :]
            if not format_.is_blank(rest):
                raise self._incomplete("it has grown since it was last read")
            last = b""
        if self._header_due:
            if format_.is_blank(last):
                raise InputError(f"{format_.file}: is empty; a CSV file starts with a header row")
            if not format_.is_whole(last):
                raise self._open_quote()
            format_.read_header(last, self._line)  # not consumed: the line may still grow
            last = b""
        if format_.is_blank(last):
            self._ended = True
            return False
        if not format_.is_whole(last):
            raise self._open_quote()
        found: list[Row] = []
        format_.decode([last], found, self._rows, self._line)
        if found[0].error is not None:
            message = str(found[0].error)
            raise self._incomplete(message.removeprefix(f"{format_.file}, line {self._line}: "))
        rows += found
        self._cover(1, len(last), self._line, [len(last)], 0, cut=self._byte + self._lead)
        return True

    def _incomplete(self, what: str) -> InputError:
        return InputError(
            f"{self._format.file}, line {self._line}: the file ends within this line (no newline), "
            f"and the line is not a valid row so far: {what}. It was not processed, and will be "
            "read when it is complete. If the file is still being written, read it with "
            "follow=True, or run again when it is finished. If the line will stay as it is, end "
            "it with a newline (on_error then applies to it), or remove it"
        )

    # -- positions

    def _describe(
        self, row: int, place: RowBoundary[None], proof: xxhash.xxh3_128
    ) -> dict[str, Any]:
        return {
            "format": self._format.name,
            "row": row,
            "byte": place.byte,
            "line": place.line,
            "cut": place.cut,
            "digest": proof.hexdigest(),
        }

    async def _resume(self, stored: dict[str, Any]) -> None:
        format_ = self._format
        try:
            position = msgspec.convert(stored, _WholePosition)
            position.check()
        except ValueError as error:
            raise InputError(
                f"{format_.file}: its stored position {stored!r:.300} is invalid: {error}"
            ) from error
        if position.format != format_.name:
            raise InputError(
                f"{format_.file}: was read as {position.format} before and as {format_.name} now, "
                f"which numbers the rows differently. Read it as before, or {READ_AGAIN}"
            )
        self._source.seek(0)
        self._proof = xxhash.xxh3_128()
        begin = position.byte if position.cut is None else position.cut
        await self._hash(begin, position)
        kept = await self._hash(position.byte - begin, position, keep=True)
        if self._proof.hexdigest() != position.digest:
            raise self._changed(position, "their digest differs")
        place = RowBoundary(None, position.byte, position.line, position.cut)
        self._blocks.clear()
        self._go_to(place)
        self._place, self._buffer = place, kept
        self._rows = self._acknowledged = position.row

    async def _hash(self, count: int, position: _WholePosition, *, keep: bool = False) -> bytes:
        kept = []
        while count:
            piece = self._source.read(min(CHUNK_BYTES, count))
            if not piece:
                raise self._changed(position, "the file is shorter now")
            self._proof.update(piece)
            count -= len(piece)
            if keep:
                kept.append(piece)
            await asyncio.sleep(0)
        return b"".join(kept)

    def _changed(self, position: _WholePosition, what: str) -> InputError:
        return InputError(
            f"{self._format.file}: the first {position.byte:,} bytes (before line "
            f"{position.line}) have changed since their rows were processed: {what}. "
            "A file may grow, and rows that are not processed yet may be corrected, but processed "
            f"rows may not change. {RESTORE}"
        )
