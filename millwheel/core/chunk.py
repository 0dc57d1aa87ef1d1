"""Chunks: records of one log and one stream for one computation, as columns, in the order of their
numbers.

No record needs an object of its own on its way to user code, and a rule for the whole chunk is one
comparison:

* a chunk whose first number is greater than the newest one seen of its log is new (I2, I14); one
  with ids of the user is new if a filter, or one look-up, knows none of them;
* the records of one commit have one stamp, so one bucket keeps their ids;
* a chunk in flight becomes durable, and is acknowledged, as a whole (I1).

Otherwise it is taken `apart` into `Delivery` objects (decision 48). A record is never in flight
both ways.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, groupby, repeat
from operator import itemgetter
from typing import Any, Generic, TypeVar, overload

from millwheel.core.model import Delivery, Key, record_id

T = TypeVar("T")

ASSUMED_ROW_BYTES = 256
"""Size in the credits of a row without an encoded value, which its reader on this worker cannot
change."""


class Chunk:
    """A new production has no log and no numbers before its commit is built."""

    __slots__ = (
        "bucket", "encoded", "holds", "key_texts", "keys", "log", "micros", "names", "numbers",
        "origin", "receiver", "slots", "stamp", "stream", "values",
    )  # fmt: skip

    def __init__(self, stream: str, receiver: int, *, source: int = 0) -> None:
        self.stream = stream
        self.receiver = receiver
        self.log = self.origin = source
        self.stamp = 0
        """Logical time of the producing commit; of a source's rows, each one's own number."""
        self.bucket = 0
        """The receiver's bucket that keeps the ids."""
        self.numbers: Sequence[int] = ()
        self.names: list[bytes] = []
        """User-supplied ids; empty: log and numbers give the ids."""
        self.keys: Sequence[Key] = []
        self.key_texts: list[bytes] = []
        self.slots: list[int] = []
        self.values: list[Any] = []
        self.encoded: list[bytes] = []
        """A production's stored form; of a source's row, which is stored nowhere, any JSON, or
        nothing if the value cannot be changed."""
        self.micros: list[int] = []
        self.holds: list[int] = []

    def __len__(self) -> int:
        return len(self.slots)

    @property
    def size(self) -> int:
        """Bytes in the credits."""
        return sum(map(len, self.encoded))

    def ids(self) -> list[bytes]:
        return self.names or [record_id(self.log, number) for number in self.numbers]

    def part(self, places: Sequence[int]) -> Chunk:
        part = Chunk(self.stream, self.receiver)
        part.log, part.origin, part.stamp = self.log, self.origin, self.stamp
        part.bucket = self.bucket
        take = _taker(places)
        part.numbers = take(self.numbers) if len(self.numbers) else ()
        part.names = take(self.names) if self.names else []
        for name in _COLUMNS:
            setattr(part, name, take(getattr(self, name)))
        return part

    def split(self, place: int) -> tuple[Chunk, Chunk]:
        return self.part(range(place)), self.part(range(place, len(self)))

    def extend(self, more: Chunk) -> None:
        for name in _COLUMNS:
            getattr(self, name).extend(getattr(more, name))

    def apart(self) -> list[Delivery[Any]]:
        stamps: Iterable[int] = self.numbers if self.origin else repeat(self.stamp)
        is_named = bool(self.names)
        columns = zip(
            self.keys, self.values, self.micros, self.key_texts, self.slots, self.holds,
            self.encoded,
            self.numbers or repeat(0), stamps, self.names or repeat(None),
            strict=False,
        )  # fmt: skip
        return [
            Delivery(
                key, value, micros, self.stream, key_text, slot, self.receiver, hold,
                len(text) or ASSUMED_ROW_BYTES, text, self.log, number, stamp,
                name or record_id(self.log, number), self.bucket, is_named, self.origin,
            )
            for key, value, micros, key_text, slot, hold, text, number, stamp, name in columns
        ]  # fmt: skip


_COLUMNS = ("keys", "key_texts", "slots", "values", "encoded", "micros", "holds")


class Outbox:
    """Productions that have no numbers yet, for each receiver as chunks in the order of
    production."""

    __slots__ = ("_count", "of")

    def __init__(self) -> None:
        self.of: dict[int, list[Chunk]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, chunk: Chunk) -> None:
        """The chunk's columns may grow by later productions."""
        chunks = self.of.setdefault(chunk.receiver, [])
        if chunks and chunks[-1].stream == chunk.stream:
            chunks[-1].extend(chunk)
        else:
            chunks.append(chunk)
        self._count += len(chunk)

    def take(self, other: Outbox) -> None:
        for chunks in other.of.values():
            for chunk in chunks:
                self.add(chunk)
        other.of, other._count = {}, 0


def together(records: Iterable[Delivery[Any]]) -> list[Chunk | Delivery[Any]]:
    found: list[Chunk | Delivery[Any]] = []
    for kind, run in groupby(records, key=_kind):
        alike = list(run)
        found += alike if kind is None else [_chunk_of(alike)]
    return found


def _kind(record: Delivery[Any]) -> tuple[Any, ...] | None:
    """The properties that records of a chunk share; None: the record cannot be in a chunk."""
    log, number, origin = record.log, record.seq, record.origin
    if record.named or record.in_tree or not log or record.id != record_id(log, number):
        return None
    if origin:
        is_row = origin == log and record.stamp == number
        return (record.stream, record.receiver, log, origin) if is_row else None
    return record.stream, record.receiver, log, origin, record.stamp


def _chunk_of(records: Sequence[Delivery[Any]]) -> Chunk:
    first = records[0]
    chunk = Chunk(first.stream, first.receiver, source=first.origin)
    chunk.log, chunk.stamp = first.log, 0 if first.origin else first.stamp
    chunk.numbers = [each.seq for each in records]
    chunk.keys, chunk.values = [each.key for each in records], [each.value for each in records]
    chunk.key_texts = [each.key_text for each in records]
    chunk.slots, chunk.encoded = [each.slot for each in records], [each.encoded for each in records]
    chunk.micros, chunk.holds = [each.micros for each in records], [each.hold for each in records]
    return chunk


class PackedRows(Sequence[T], Generic[T]):
    """An iteration yields single rows."""

    @overload
    def __getitem__(self, place: int) -> T: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[T]: ...
    def __getitem__(self, place: int | slice) -> Any:
        return list(self)[place]


def _taker(places: Sequence[int]) -> Any:
    if isinstance(places, range):
        return itemgetter(slice(places.start, places.stop))
    if len(places) == 1:
        return itemgetter(slice(places[0], places[0] + 1))
    pick = itemgetter(*places)
    return lambda column: list(pick(column))


class Columns(PackedRows[T]):
    """`row` makes a row at iteration; None: plain tuples."""

    def __init__(
        self, *columns: Sequence[Any], row: Callable[[Iterable[Any]], T] | None = None
    ) -> None:
        self.columns = columns
        self._row = row

    def __len__(self) -> int:
        return len(self.columns[0])

    def __iter__(self) -> Iterator[T]:
        rows: Iterator[Any] = zip(*self.columns, strict=True)
        return rows if self._row is None else map(self._row, rows)


class Chunks(PackedRows["Delivery[Any]"]):
    def __init__(self, chunks: Iterable[Chunk] = ()) -> None:
        self.chunks = list(chunks)

    @classmethod
    def of(cls, deliveries: Iterable[Delivery[Any]]) -> Chunks:
        return cls(_chunk_of([each]) for each in deliveries)

    def column(self, name: str) -> list[Any]:
        columns = [getattr(chunk, name) for chunk in self.chunks]
        return columns[0] if len(columns) == 1 else list(chain.from_iterable(columns))

    def constant(self, name: str) -> list[Any]:
        values: list[Any] = []
        for chunk in self.chunks:
            values += [getattr(chunk, name)] * len(chunk)
        return values

    def __len__(self) -> int:
        return sum(map(len, self.chunks))

    def __iter__(self) -> Iterator[Delivery[Any]]:
        return chain.from_iterable(chunk.apart() for chunk in self.chunks)
