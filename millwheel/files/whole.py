"""Files that have an end: read once, and proved by a digest of everything that is acknowledged."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import xxhash

from millwheel.errors import InputError
from millwheel.files.packed import CHUNK_BYTES, READ_ANEW, RESTORE, Bytes
from millwheel.files.reader import FileReader, Place
from millwheel.files.rows import QUOTED, RowFormat
from millwheel.sources import Lag, Row


class _Position(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is stored: the place of the first row not acknowledged, and a proof of what is before."""

    format: str
    """How the file was cut into rows; other rules would number them differently."""
    row: int
    byte: int
    line: int
    cut: int | None
    """Where the last row before begins, if it was taken without a newline behind it."""
    digest: str
    """XXH3-128 of the first `byte` unpacked bytes."""

    def check(self) -> None:
        if min(self.row, self.byte) < 0 or not 0 <= (self.cut or 0) <= self.byte:
            raise ValueError("its numbers do not fit together")


class WholeFileReader(FileReader[xxhash.xxh3_128, None]):
    """Reads one file to its end."""

    def __init__(self, format_: RowFormat, source: Bytes) -> None:
        self._source = source
        self._ended = False
        super().__init__(format_, xxhash.xxh3_128(), None)

    @property
    def ended(self) -> bool:
        """Whether the end was reached."""
        return self._ended

    async def wait(self) -> None:
        """Return: the file has an end, so there is nothing to wait for."""

    def progress(self) -> float:
        """The share of the file handed out so far, 0 to 1."""
        fetched = self._base + len(self._buffer)
        share = self._source.share()
        if self._ended or not fetched:
            return share
        return min(1.0, share * self._byte / fetched)

    def lag(self) -> Lag:
        """The bytes of the file that were not read yet; of a packed file, packed."""
        waiting = max(0, self._base + len(self._buffer) - self._byte)
        return Lag(bytes=self._source.left() + waiting)

    def close(self) -> None:
        """Close the file."""
        self._source.close()

    async def begin(self, stored: dict[str, Any] | None) -> None:
        """Take the header, and go on behind a stored position.

        Raises:
            InputError: acknowledged bytes have changed, or the file or the position is not of
                this kind.
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
        """A last line without a newline is a row too, if it is a good one."""
        format_ = self._format
        if self._long is not None:
            if self._long.state == QUOTED:
                raise self._open_quote()
            raise self._incomplete(format_.too_long(self._long.size))
        last = self._buffer[self._lead :]
        if self._cut is not None:
            rest = self._buffer[self._byte - self._base :]
            if not format_.is_blank(rest):
                raise self._incomplete("it goes on since it was read last")
            last = b""
        if self._header_due:
            if format_.is_blank(last):
                raise InputError(f"{format_.file}: is empty; a CSV file starts with a header row")
            if not format_.is_whole(last):
                raise self._open_quote()
            format_.read_header(last, self._line)  # not passed: it may go on
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
        self._take_last(last, rows)
        return True

    def _incomplete(self, what: str) -> InputError:
        return InputError(
            f"{self._format.file}, line {self._line}: the file ends within this line (no newline), and "
            f"as it stands it is no good row: {what}. It was left alone, and will be read when it "
            "is whole. If the file is still being written, read it with follow=True, or run again "
            "when it is finished. If the line will stay so, end it with a newline (then on_error "
            "decides about it), or remove it"
        )

    # -- positions

    def _describe(self, row: int, place: Place[None], proof: xxhash.xxh3_128) -> dict[str, Any]:
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
            position = msgspec.convert(stored, _Position)
            position.check()
        except ValueError as error:
            raise InputError(
                f"{format_.file}: its stored position {stored!r:.300} cannot be understood: {error}"
            ) from error
        if position.format != format_.name:
            raise InputError(
                f"{format_.file}: was read as {position.format} before and is {format_.name} now, "
                f"which numbers the rows differently. Read it as before; or {READ_ANEW}"
            )
        self._source.seek(0)
        self._proof = xxhash.xxh3_128()
        begin = position.byte if position.cut is None else position.cut
        await self._hash(begin, position)
        kept = await self._hash(position.byte - begin, position, keep=True)
        if self._proof.hexdigest() != position.digest:
            raise self._changed(position, "its digest differs")
        place = Place(None, position.byte, position.line, position.cut)
        self._blocks.clear()
        self._go_to(place)
        self._place, self._buffer = place, kept
        self._rows = self._acknowledged = position.row

    async def _hash(self, count: int, position: _Position, *, keep: bool = False) -> bytes:
        kept = []
        while count:
            piece = self._source.read(min(CHUNK_BYTES, count))
            if not piece:
                raise self._changed(position, "it is shorter now")
            self._proof.update(piece)
            count -= len(piece)
            if keep:
                kept.append(piece)
            await asyncio.sleep(0)
        return b"".join(kept)

    def _changed(self, position: _Position, what: str) -> InputError:
        return InputError(
            f"{self._format.file}: the first {position.byte:,} bytes (before line "
            f"{position.line}) are not what they were when their rows were processed: {what}. "
            f"A file may grow, and rows that were not processed yet may be corrected. {RESTORE}"
        )
