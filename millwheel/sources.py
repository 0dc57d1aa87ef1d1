"""Where records come from: the port that injectors read through.

A *replayable* source gives the same rows at the same offsets whenever it is read, so its
rows need not be stored: after a crash they are read again with the same ids, and what was
done already is dropped (design: injectors). Files are such sources; see `millwheel.files`.
"""

from __future__ import annotations

from typing import Any, Protocol

import msgspec

from millwheel.errors import InputError


class Row(msgspec.Struct):
    """One row of a partition: `offset` counts rows from 0; either `value` or `error` is set."""

    offset: int
    line: int
    """The physical line (from 1) it starts on, for messages."""
    value: Any = None
    """Of the stream's type and just as its JSON is decoded (1.0 in a field of floats, not 1): when the
    row is on its way to another worker that is what arrives."""
    watermark: int | None = None
    """In place of a value: no on-time row older than this (microseconds) will follow."""
    error: InputError | None = None
    text: str = ""
    """The raw text of a bad row, cut to a sensible length, for its dead letter."""


class Reader(Protocol):
    """An open partition."""

    def read(self, limit: int) -> list[Row]:
        """Up to `limit` further rows; an empty list at the end of what is there now."""
        ...

    def position(self, acknowledged: int) -> dict[str, Any]:
        """What to store so that `Partition.open` can go on after row `acknowledged` - 1."""
        ...

    def progress(self) -> float:
        """The share of the input read so far, 0 to 1."""
        ...

    def close(self) -> None: ...


class Partition(Protocol):
    """A stretch of a source that is read in order by one owner."""

    @property
    def identity(self) -> str:
        """A name that never changes: it scopes the rows' ids."""
        ...

    def open(self, value_type: Any, position: dict[str, Any] | None) -> Reader:
        """Start at a stored position, or at the beginning.

        Raises:
            InputError: the source is missing, or what was already read of it has changed.
        """
        ...


class Source(Protocol):
    """Something an injector can read."""

    def partitions(self) -> list[Partition]:
        """The partitions, known before anything is read."""
        ...

    def describe(self) -> dict[str, Any]:
        """What is stored of it in the graph."""
        ...
