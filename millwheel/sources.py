"""Sources: the protocol that injectors read through. Users may write their own sources.

A *source* is a set of *partitions*; each is read in order, by the worker that owns it. A
*replayable* source returns the same rows under the same numbers whenever it is read, so that its
rows need not be stored: after a crash they are read again with the same ids, and rows that were
processed before are dropped (I1, I2). Files are such sources (`millwheel.files`).

The contract of a partition::

    number of a row    0   1   2   .   .   5   6        numbers rise; they may have gaps
                       |---|---|           |---|---|......
                               ^ acknowledged      ^ read so far

* **The same number is the same row.** A number that was returned once never means another row.
* **Numbers may have gaps**, of any length: in a compacted log, or a log with markers between its
  rows. A gap costs nothing; it is acknowledged as soon as the reader has passed it.
* **An end is declared, never guessed.** A reader without further rows *waits* until its source
  wakes it. Only a `bounded` source ends, and only when its reader says so (`Reader.ended`). Event
  time of a stream ends when every partition has ended.
* **An unfinished last row is not a row**: a reader does not return it until it is complete.
* **Silence is idleness only if nothing is owed**: a partition without rows stops holding the low
  watermark (`idle_after` of `inject`) while its reader knows that it has returned all rows written
  so far (`Reader.caught_up`). If rows may be held up somewhere, it holds.

A source that finds partitions while it runs is a `GrowingSource`. One worker, by its lease, looks
for new partitions (`Discovery`); each is then owned like any other. A new partition starts at the
low watermark that the source has published by then, and never moves it back: its older rows are
late.

A source that several workers (on several machines) can read must return the same rows to each of
them: files must be on storage that all of them see.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from typing import Any, NamedTuple, Protocol, overload, runtime_checkable

import msgspec

from millwheel.errors import InputError

__all__ = ["Discovery", "GrowingSource", "Lag", "Partition", "Reader", "Row", "Rows", "Source"]


class Row(msgspec.Struct):
    """One row of a partition, with exactly one of `value`, `error` and `watermark`."""

    offset: int
    """The row's number, higher than that of every row before it; numbers in between are gaps."""
    line: int
    """The place of the row in its partition, for messages; for files the physical line, from 1."""
    value: Any = None
    """A value of the stream's type, equal to its decoded JSON (1.0 in a field of floats, not 1):
    another worker receives it as JSON."""
    watermark: int | None = None
    """No row on time with an older timestamp (in microseconds) will follow."""
    error: InputError | None = None
    text: str = ""
    """The raw text of a bad row, cut to a sensible length, for its dead letter."""
    micros: int | None = None
    """The row's own timestamp, in microseconds since the epoch; it counts if `inject` has no
    ``timestamp=``."""


class Rows(Sequence[Row]):
    """Rows of adjacent numbers and lines, without errors and watermarks, as columns.

    A reader may return it instead of a list of `Row` objects: the engine then makes none. A reader
    that works on another one's rows may change them: they are objects from the first look at one of
    them.
    """

    __slots__ = ("_rows", "line", "micros", "offset", "raws", "values")

    def __init__(
        self,
        offset: int,
        line: int,
        values: list[Any],
        raws: list[bytes] | None = None,
        micros: list[int] | None = None,
    ) -> None:
        """
        Args:
            offset: the number of the first row.
            line: the place of the first row, for messages.
            values: values of the stream's type, equal to their decoded JSON.
            raws: any JSON that decodes to each value, without NUL characters; None: there is none.
            micros: the rows' own timestamps (`Row.micros`); None: they have none.
        """
        self.offset = offset
        self.line = line
        self.values = values
        self.raws = raws or []
        self.micros = micros
        self._rows: list[Row] | None = None

    @property
    def are_columns(self) -> bool:
        """Whether the columns count: no single row was given out, which may have been changed."""
        return self._rows is None

    def follows(self, before: Rows) -> bool:
        """Whether these rows come right after others."""
        rows = len(before)
        return (self.offset, self.line) == (before.offset + rows, before.line + rows)

    def cut(self, place: int) -> tuple[Rows, Rows]:
        """The rows before a place, and those from there on."""
        return self._part(0, place), self._part(place, len(self))

    def _part(self, start: int, end: int) -> Rows:
        micros = None if self.micros is None else self.micros[start:end]
        values, raws = self.values[start:end], self.raws[start:end]
        return Rows(self.offset + start, self.line + start, values, raws, micros)

    def __len__(self) -> int:
        return len(self.values)

    @overload
    def __getitem__(self, place: int) -> Row: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[Row]: ...
    def __getitem__(self, place: int | slice) -> Row | Sequence[Row]:
        if self._rows is None:
            offsets, lines = count(self.offset), count(self.line)
            self._rows = list(map(Row, offsets, lines, self.values))
            for row, micros in zip(self._rows, self.micros or (), strict=False):
                row.micros = micros
        return self._rows[place]


class Lag(NamedTuple):
    """The unread part of a partition; None: not known."""

    rows: int | None = None
    bytes: int | None = None
    log_start: int | None = None
    """Offset of the first row that the partition still has."""
    log_end: int | None = None
    """One past the offset of its last row."""


class Reader(Protocol):
    """An open partition. One task uses it; `position` and the figures are read between its
    calls.

    The reader of a source with ``shows_time = True`` has an attribute `seen`: the time up to which
    the source has come by the rows read so far, in microseconds, or None. It replaces the times of
    the rows themselves, and `wait` also returns when it has advanced.

    A reader may have an attribute `promised`. When its value has changed, the position is stored
    before the rows that were read since are sent: it says which rows the numbers stand for (the
    file that was begun, for example).
    """

    @property
    def ended(self) -> bool:
        """Whether no row will ever follow: of a bounded source, or of a partition that is gone for
        good."""
        ...

    @property
    def caught_up(self) -> bool:
        """Whether the reader knows that it has returned all rows written so far.

        False if rows may be held up: the server does not answer, or a transaction that has written
        is open. Such a partition is not idle, however long it is silent, since its rows would come
        late. It is called about every second and must be cheap.
        """
        ...

    async def read(self, limit: int) -> Sequence[Row]:
        """Return up to `limit` further rows that exist now, or an empty sequence.

        It may wait for the disk or the network, but not for rows to be written.

        Raises:
            InputError: the partition cannot be read further; the message says how to continue.
        """
        ...

    async def wait(self) -> None:
        """Return when `read` may find further rows. It may be cancelled at any time.

        Called only after `read` has returned no rows and while the partition has not `ended`. The
        source wakes it; if the source cannot, it polls.

        Raises:
            InputError: as `read`.
        """
        ...

    def position(self, acknowledged: int) -> dict[str, Any]:
        """The position to store: `Partition.open` resumes there with the first row at or past a
        number.

        Args:
            acknowledged: rows before this number are durable at all readers of the stream. It
                never goes back, and may lie in a gap.

        Returns:
            JSON values. The position covers acknowledged rows only: rows that were read ahead may
            be corrected before they are read again. If all rows read so far are acknowledged, it
            also covers the gap that the reader has passed behind them. `wait` returns when that gap
            has grown, so that the engine stores the new position.
        """
        ...

    def progress(self) -> float | None:
        """The share of a bounded partition read so far, 0 to 1; None if it has no end."""
        ...

    def lag(self) -> Lag:
        """The amount not read yet. It is called about every second and must be cheap."""
        ...

    def close(self) -> None:
        """Close files and connections."""
        ...


class Partition(Protocol):
    """A part of a source that is read in order by one owner.

    Messages name a row as ``IDENTITY, line N``. A partition with an attribute `row_name` has that
    word in place of *line*, and is not called a file.
    """

    @property
    def identity(self) -> str:
        """A name that never changes; it is part of the rows' ids."""
        ...

    async def open(self, value_type: Any, position: dict[str, Any] | None) -> Reader:
        """Open the partition at a stored position, or at the beginning.

        Long work (such as hashing the part read before) must let the event loop run in between.

        Raises:
            InputError: the source is missing, or acknowledged rows of it have changed.
        """
        ...


def row_place(partition: Partition, row: Row) -> str:
    """The place of a row, for messages."""
    return f"{partition.identity}, {getattr(partition, 'row_name', 'line')} {row.line}"


class Source(Protocol):
    """The input of an injector.

    A source whose rows all have timestamps of their own (`Row.micros`) says so with an attribute
    ``timestamps = True``; then `inject` needs no ``timestamp=``. One with an attribute `idle_after`
    gives the default of that option. One with ``shows_time = True`` has readers that know how far
    event time is (`Reader`); they count if the rows have timestamps of their own, and `inject` has
    neither ``timestamp=`` nor ``seen=`` nor ``watermark=``.
    """

    @property
    def bounded(self) -> bool:
        """Whether the source has an end. Event time ends with it, so that every window closes."""
        ...

    def partitions(self) -> list[Partition]:
        """The partitions, known before anything is read; always the same, in the same order."""
        ...

    def describe(self) -> dict[str, Any]:
        """The description stored in the graph; a different description means a different source."""
        ...


class Discovery(Protocol):
    """Looks for the partitions of a growing source, in the worker that owns this task.

    If partitions may end (`Reader.ended`), it has a method ``resumed(identity, position, *,
    ended)``, with the stored position of the partition's reader: called for each partition at the
    start, and when one has ended. From then on `look` leaves the identity out. If the partition is
    continued, it is under another identity.

    That of a source with ``shows_time = True`` may have an attribute `seen`: a time in
    microseconds, or None. Of a partition that the last look has not found, no row on time is older;
    it holds the stream's watermark.
    """

    async def look(self) -> Sequence[str]:
        """The identities of all partitions that exist now, in the order in which new ones are
        numbered.

        Partitions that were found before may be left out, unless they may not have been created
        yet: the result of `position` is stored before a new partition is created. It is also stored
        after each look that has changed it.

        Raises:
            InputError: the partitions cannot be listed; the message says how to continue.
        """
        ...

    async def wait(self) -> None:
        """Return when `look` may find further partitions. It may be cancelled at any time."""
        ...

    def first_position(self, identity: str) -> dict[str, Any] | None:
        """The first position of a partition that `look` has just found; None: its beginning.

        It is stored when the partition is created.
        """
        ...

    def position(self) -> dict[str, Any]:
        """The position from which a later discovery continues, as JSON values."""
        ...

    def close(self) -> None:
        """Close files and connections."""
        ...


@runtime_checkable
class GrowingSource(Protocol):
    """A source that finds partitions while it runs. It is never bounded."""

    @property
    def bounded(self) -> bool: ...

    def partitions(self) -> list[Partition]:
        """An empty list: `discover` finds all partitions."""
        ...

    def describe(self) -> dict[str, Any]: ...

    def partition(self, identity: str) -> Partition:
        """The partition with an identity that was found before."""
        ...

    def discover(self, position: dict[str, Any] | None) -> Discovery:
        """Begin to look for partitions; `position` is the stored position of the last discovery."""
        ...
