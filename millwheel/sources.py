"""Sources: the protocol that injectors read through.

``docs/howto/connect/own-source.md`` has the rules for your own.

A *source* is a set of *partitions*; each is read in order, by the worker that owns it. The same
number is the same row for ever: rows are not stored but read again after a crash, and those that
were processed before are dropped by their ids (I1, I2)::

    number of a row    0   1   2   .   .   5   6        numbers rise; they may have gaps
                       |---|---|           |---|---|......
                               ^ acknowledged      ^ read so far

A gap is acknowledged as soon as the reader has passed it. Event time of a stream ends when every
partition has ended.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from typing import Any, NamedTuple, Protocol, overload, runtime_checkable

import msgspec

from millwheel.errors import InputError

__all__ = ["Discovery", "GrowingSource", "Lag", "Partition", "Reader", "Row", "Rows", "Source"]


class Row(msgspec.Struct):
    """One row of a partition, with exactly one of `value`, `error` and `watermark`.

    ```python
    from millwheel.errors import InputError

    row = Row(offset=7, line=8, value=TEA)
    bad = Row(offset=8, line=9, error=InputError("the customer is missing"), text='{"item": "tea"}')
    ```
    """

    offset: int
    """The row's number, higher than that of every row before it; numbers in between are gaps."""
    line: int
    """The place of the row in its partition, for messages; for files the physical line, from 1."""
    value: Any = None
    """A value of the stream's type, equal to its decoded JSON, as another worker receives it (1.0
    in a field of floats, not 1)."""
    watermark: int | None = None
    """No row on time with an older timestamp (in microseconds) will follow."""
    error: InputError | None = None
    text: str = ""
    """The raw text of a bad row, cut to a sensible length, for its dead letter."""
    micros: int | None = None
    """The row's own timestamp, in microseconds since the epoch, for `inject` without
    ``timestamp=``."""


class Rows(Sequence[Row]):
    """Rows of adjacent numbers and lines, without errors and watermarks, as columns.

    ```python
    rows = Rows(7, 8, [TEA, MILK])
    assert rows[1] == Row(offset=8, line=9, value=MILK)
    ```

    A reader may return it instead of a list of `Row`: the engine then makes no objects. A reader
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
    """The unread part of a partition; None: not known.

    ```python
    lag = Lag(rows=1_200)
    assert lag.bytes is None
    ```
    """

    rows: int | None = None
    bytes: int | None = None
    log_start: int | None = None
    """Offset of the first row that the partition still has."""
    log_end: int | None = None
    """One past the offset of its last row."""


class Reader(Protocol):
    """An open partition. One task uses it; `position` and the figures are read between its calls.

    ```python
    class One:  # a reader of one row; `FetchingReader` has most of this
        ended = caught_up = False

        async def read(self, limit: int) -> list[Row]:
            rows = [] if self.ended else [Row(0, 1, TEA)]
            self.ended = self.caught_up = True
            return rows

        async def wait(self) -> None: ...

        def position(self, acknowledged: int) -> dict[str, int]:
            return {"row": acknowledged}

        def progress(self) -> float:
            return float(self.ended)

        def lag(self) -> Lag:
            return Lag(rows=int(not self.ended))

        def close(self) -> None: ...
    ```

    An attribute `seen`, for a source with ``shows_time = True``, is the event time in microseconds
    up to which the source has come by the rows read so far, or None. It replaces the rows' times,
    and `wait` returns when it has advanced. A change of an attribute `promised` (the file that was
    begun, for example) makes the engine store the position before the rows read since are sent.
    """

    @property
    def ended(self) -> bool:
        """Whether no row will ever follow: of a bounded source, or a partition that is gone for
        good."""
        ...

    @property
    def caught_up(self) -> bool:
        """Whether the reader knows that it has returned all rows written so far, and none may be
        held up (by a server that does not answer, or an open transaction). Otherwise the partition
        is not idle, however long it is silent. Called about every second; must be cheap."""
        ...

    async def read(self, limit: int) -> Sequence[Row]:
        """Return up to `limit` further complete rows that exist now, or an empty sequence.

        It may wait for the disk or the network, but not for rows to be written.

        Raises:
            InputError: the partition cannot be read further; the message says how to continue.
        """
        ...

    async def wait(self) -> None:
        """Return when `read` may find further rows. It may be cancelled at any time.

        Called after `read` has returned no rows, before the partition has `ended`.

        Raises:
            InputError: as `read`.
        """
        ...

    def position(self, acknowledged: int) -> dict[str, Any]:
        """The position to store: `Partition.open` resumes there with the first row at or past a
        number.

        Args:
            acknowledged: rows before this number are durable at all readers of the stream. It never
                goes back, and may lie in a gap.

        Returns:
            JSON values that cover acknowledged rows only: rows read ahead may be corrected before
            they are read again. If all rows read are acknowledged, also the gap behind them that
            the reader has passed; `wait` returns when it has grown, so that the engine stores the
            new position.
        """
        ...

    def progress(self) -> float | None:
        """The share of a bounded partition read so far, 0 to 1; None if it has no end."""
        ...

    def lag(self) -> Lag:
        """The amount not read yet. Called about every second; must be cheap."""
        ...

    def close(self) -> None:
        """Close files and connections."""
        ...


class Partition(Protocol):
    """A part of a source that is read in order by one owner.

    ```python
    from pathlib import Path

    partition = JsonLines("orders.jsonl").partitions()[0]
    Path("orders.jsonl").write_text('{"customer": "ann", "item": "tea", "cents": 300}')
    reader = await partition.open(Order, position=None)
    assert [row.value for row in await reader.read(10)] == [TEA]
    reader.close()
    ```

    Messages name a row as ``IDENTITY, line N``; an attribute `row_name` replaces *line*, and the
    partition is then not called a file.
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
    return f"{partition.identity}, {getattr(partition, 'row_name', 'line')} {row.line}"


class Source(Protocol):
    """The input of an injector.

    ```python
    from typing import Any

    class TwoFiles:
        bounded = True

        def partitions(self) -> list[Partition]:
            return JsonLines(["monday.jsonl", "tuesday.jsonl"]).partitions()

        def describe(self) -> dict[str, Any]:
            return {"days": 2}

    VISITS = Stream("visits", Order)
    pipeline.inject(VISITS, TwoFiles(), timestamp=lambda visit: at(0))
    ```

    Optional attributes: ``timestamps = True``: all rows have timestamps of their own
    (`Row.micros`), so that `inject` needs no ``timestamp=``. `idle_after`: the default of that
    option. ``shows_time = True``: its readers have `seen`, which counts if the rows have timestamps
    of their own; `inject` has neither ``timestamp=``, ``seen=`` nor ``watermark=``.
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

    ```python
    import asyncio
    from pathlib import Path
    from typing import Any

    class Days:
        async def look(self) -> list[str]:
            return sorted(path.name for path in Path("days").glob("*.jsonl"))

        async def wait(self) -> None:
            await asyncio.sleep(60)

        def first_position(self, identity: str) -> None: ...

        def position(self) -> dict[str, Any]:
            return {}

        def close(self) -> None: ...
    ```

    If partitions may end (`Reader.ended`), a method ``resumed(identity, position, *, ended)`` is
    called for each one at the start, and when it has ended, with its stored position. From then on
    `look` leaves the identity out; a continued partition has another one.

    With ``shows_time = True`` of the source, it may have an attribute `seen` (microseconds or
    None), which holds the stream's watermark: no row on time of a partition that is not found yet
    is older.
    """

    async def look(self) -> Sequence[str]:
        """The identities of all partitions that exist now, in the order in which new ones are
        numbered.

        Partitions found before may be left out once they have been created. The result of
        `position` is stored before a new partition is created, and after each look that has changed
        it.

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
    """A source that finds partitions while it runs. It is never bounded.

    ```python
    folder = JsonLines("days/", follow=True)
    assert isinstance(folder, GrowingSource)
    assert folder.partitions() == []
    assert folder.partition("days/monday.jsonl").identity == "days/monday.jsonl"
    ```

    One worker, by its lease, looks for new partitions. Each starts at the low watermark that the
    source has published by then, and never moves it back: its older rows are late.
    """

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
