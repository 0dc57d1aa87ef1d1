"""Sources: the protocol that injectors read through. Users may write their own.

A *source* is a set of *partitions*; each is read in order, by the worker that owns it. A
*replayable* source gives the same rows under the same numbers whenever it is read, so its rows
need not be stored: after a crash they are read again with the same ids, and rows that were
processed before are dropped (I1, I2). Files are such sources (`millwheel.files`).

What a partition promises::

    number of a row    0   1   2   .   .   5   6        numbers rise; they may have gaps
                       |---|---|           |---|---|......
                               ^ acknowledged      ^ read so far

* **The same number is the same row.** A number that was given out never means another row.
* **Numbers may have gaps**, of any length: a log that was compacted, or that holds markers
  besides rows. A gap costs nothing; it is acknowledged as soon as it has been passed.
* **An end is said, never guessed.** A reader that has nothing to give *waits*, until its
  source wakes it. Only a source that is `bounded` ends, and only when its reader says so
  (`Reader.ended`). The end of every partition of a stream is the end of event time for it.
* **An unfinished last row is not a row**: a reader leaves it alone until it is whole.

A source whose partitions appear while it runs is a `GrowingSource`. One worker, by its lease,
looks for them (`Discovery`); each new partition is then owned like any other. A new partition
starts at the low watermark that the source has promised by then, and never moves it back: rows
of it that are older are late.

A source that can be read by several workers (on several machines) has to give the same rows to
each of them: files have to lie on storage that all of them see.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import msgspec

from millwheel.errors import InputError


class Row(msgspec.Struct):
    """One row of a partition: either `value` or `error` is set, or `watermark`."""

    offset: int
    """Its number: higher than that of every row before it; numbers in between are gaps."""
    line: int
    """Where it starts in the partition, for messages: for files the physical line, from 1."""
    value: Any = None
    """Of the stream's type and just as its JSON is decoded (1.0 in a field of floats, not 1): when the
    row is on its way to another worker that is what arrives."""
    watermark: int | None = None
    """In place of a value: no on-time row older than this (microseconds) will follow."""
    error: InputError | None = None
    text: str = ""
    """The raw text of a bad row, cut to a sensible length, for its dead letter."""


class Lag(NamedTuple):
    """How much of a partition waits to be read; None: not known."""

    rows: int | None = None
    bytes: int | None = None


class Reader(Protocol):
    """An open partition. One task uses it; `position` and the figures are asked for in between."""

    @property
    def ended(self) -> bool:
        """Whether no row will ever follow. Only the reader of a bounded source says so."""
        ...

    async def read(self, limit: int) -> Sequence[Row]:
        """Up to `limit` further rows of those that are there now; none if there are none.

        It may wait for the disk or the network, not for rows to be written.

        Raises:
            InputError: the partition cannot be read on; the message says what to do.
        """
        ...

    async def wait(self) -> None:
        """Return when `read` may find more than it just did. It may be cancelled at any time.

        Called only after `read` has found nothing and while the partition has not `ended`. The
        source wakes it; where it cannot, it looks now and then by itself.

        Raises:
            InputError: as `read`.
        """
        ...

    def position(self, acknowledged: int) -> dict[str, Any]:
        """What to store so that `Partition.open` goes on with the first row at or past a number.

        Args:
            acknowledged: rows before this number are durable at all readers of the stream. It
                never goes back, and may lie in a gap.

        Returns:
            JSON values. It covers what is acknowledged, and no more: rows that were only read
            ahead may be corrected before they are read again.
        """
        ...

    def progress(self) -> float | None:
        """The share of a bounded partition read so far, 0 to 1; None where there is no end."""
        ...

    def lag(self) -> Lag:
        """How much is there and not read yet. Asked every second or so: it must be cheap."""
        ...

    def close(self) -> None:
        """Let go of files and connections."""
        ...


class Partition(Protocol):
    """A part of a source that is read in order by one owner."""

    @property
    def identity(self) -> str:
        """A name that never changes: it scopes the rows' ids."""
        ...

    async def open(self, value_type: Any, position: dict[str, Any] | None) -> Reader:
        """Start at a stored position, or at the beginning.

        Long work (hashing what was read before) lets the event loop run in between.

        Raises:
            InputError: the source is missing, or acknowledged rows of it have changed.
        """
        ...


class Source(Protocol):
    """What an injector can read."""

    @property
    def bounded(self) -> bool:
        """Whether it has an end. Then event time ends with it, as every window must close."""
        ...

    def partitions(self) -> list[Partition]:
        """The partitions, known before anything is read; always the same, in the same order."""
        ...

    def describe(self) -> dict[str, Any]:
        """What is stored of it in the graph: code that describes it otherwise is another source."""
        ...


class Discovery(Protocol):
    """Looks for the partitions of a growing source, in the worker that owns this task."""

    async def look(self) -> Sequence[str]:
        """The identities of all partitions that are there now, those that were found before among
        them or not; in the order in which new ones are to be numbered.

        What `position` says is stored before a new partition is made. So a partition that `look` has
        found must be named again as long as it may not have been made.

        Raises:
            InputError: it cannot be found out; the message says what to do.
        """
        ...

    async def wait(self) -> None:
        """Return when `look` may find more than it just did. It may be cancelled at any time."""
        ...

    def first_position(self, identity: str) -> dict[str, Any] | None:
        """The position at which a partition that `look` has just found is opened first; None: at its
        beginning. It is stored when the partition is made."""
        ...

    def position(self) -> dict[str, Any]:
        """What a later discovery should know of this one, as JSON values."""
        ...

    def close(self) -> None:
        """Let go of files and connections."""
        ...


@runtime_checkable
class GrowingSource(Protocol):
    """A source of which partitions appear while it runs. It is never bounded."""

    @property
    def bounded(self) -> bool: ...

    def partitions(self) -> list[Partition]:
        """None: all are found by `discover`."""
        ...

    def describe(self) -> dict[str, Any]: ...

    def partition(self, identity: str) -> Partition:
        """The partition of a name that was found before."""
        ...

    def discover(self, position: dict[str, Any] | None) -> Discovery:
        """Begin to look for partitions; `position` is what the discovery before has left."""
        ...
