"""The sources of events: generators, or JSON Lines files.

Each kind of event is a separate stream with its own source: a query reads only the kinds that it
needs, and events from other programs are read in the same form.

**Generated.** A source has one partition per generator. An event is made when it is read, so that
events are not stored. Its place in the order is as fixed as its content, so that a crash changes
neither. Events come in *blocks*: the shuffled group, or 50 events in order. A block consists of

1. a watermark: the time of its oldest event, minus the allowed lateness. Times never go back with
   numbers, so that no event on time can be older, and the watermark is exact;
2. its events, in the order given by ``STRIDE``;
3. the delayed events of this and earlier blocks with a delay that ends in this block.

A late event is in the block in which its delay ends, and therefore behind the block's own time by
at most the delay: with an allowed lateness of 3 s it is on time.

**Read.** ``person.jsonl``, ``auction.jsonl`` and ``bid.jsonl`` in a directory, one object per line
with the fields of `examples.nexmark.model`. Times are whole milliseconds since 1970, or ISO text
with a time zone. ``extra`` may be missing; other fields are ignored.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from examples.nexmark.generator import Generator, Kind
from examples.nexmark.model import (
    Auction,
    Bid,
    Event,
    Person,
    from_milliseconds,
    time_of,
    to_milliseconds,
)
from examples.nexmark.options import LONGEST_DELAY, STRIDE, Options
from millwheel import JsonLines, Pipeline, Stream, Table
from millwheel.errors import InputError
from millwheel.sources import Lag, Partition, Reader, Row, Rows

PEOPLE = Stream("people", Person)
AUCTIONS = Stream("auctions", Auction)
BIDS = Stream("bids", Bid)
LATE_PEOPLE = Stream("late_people", Person)
LATE_AUCTIONS = Stream("late_auctions", Auction)
LATE_BIDS = Stream("late_bids", Bid)

FILES: dict[Kind, str] = {Person: "person.jsonl", Auction: "auction.jsonl", Bid: "bid.jsonl"}
NOTHING_SEEN = datetime(1, 1, 2, tzinfo=UTC)
"""The `seen` time of generated events, which has no effect: the stream contains watermarks."""

_DELAY_MILLISECONDS = round(LONGEST_DELAY.total_seconds() * 1000)


def inject(pipeline: Pipeline, options: Options, *streams: Stream[Any]) -> None:
    """Inject the given streams into `pipeline`, from the source that `options` choose."""
    for stream in streams:
        if options.directory is not None:
            pipeline.inject(
                stream,
                EventLines(options.directory / FILES[stream.value_type]),
                timestamp=time_of,
                lateness=options.allowed_lateness,
            )
        else:
            pipeline.inject(
                stream,
                MadeEvents(stream.value_type, options),
                timestamp=time_of,
                seen=_nothing_seen,
            )


def keep_late(pipeline: Pipeline, *streams: Stream[Any]) -> None:
    """Write late records to tables with the names of the streams."""
    for stream in streams:
        pipeline.sink(stream, Table(stream.name, stream.value_type))


def _nothing_seen(event: Event) -> datetime:
    return NOTHING_SEEN


# -------------------------------------------------------------------------- generated


def emitted(generator: Generator, options: Options, first: int = 0) -> Iterator[list[int]]:
    """Event numbers in the order in which they are emitted, block by block from block `first`.

    A delayed event is in the block in which its delay ends. Delays that end after the last block
    make one more block.
    """
    size, count = options.block, generator.count
    steps = [k * STRIDE % size for k in range(size)] if options.group > 1 else range(size)
    delayed: list[tuple[int, int]] = []
    """The delayed events, as (end of the delay, number)."""
    before = first * size
    if options.late:
        start = generator.milliseconds(before)
        for number in range(min(before, count) - 1, -1, -1):
            due = generator.milliseconds(number)
            if due + _DELAY_MILLISECONDS < start:
                break
            due += (delay := generator.delay(number))
            if delay and due >= start:
                delayed.append((due, number))
    for base in range(before, count, size):
        block = []
        for step in steps:
            number = base + step
            if number < count:  # the last group may be incomplete
                if delay := generator.delay(number):
                    delayed.append((generator.milliseconds(number) + delay, number))
                else:
                    block.append(number)
        if delayed:
            end = generator.milliseconds(base + size)
            block += [number for due, number in sorted(delayed) if due < end]
            delayed = [entry for entry in delayed if entry[0] >= end]
        yield block
    if delayed:
        yield [number for _, number in sorted(delayed)]


@dataclass(frozen=True)
class MadeEvents:
    """All events of one kind, made by the generators of `options`."""

    kind: Kind
    options: Options

    @property
    def bounded(self) -> bool:
        """Always true: the number of events is known."""
        return True

    def partitions(self) -> list[Partition]:
        """One partition for each generator."""
        return [
            GeneratorPartition(self.kind, self.options, index)
            for index in range(self.options.generators)
        ]

    def describe(self) -> dict[str, Any]:
        """The description stored in the graph: every option that affects events or their order."""
        options = self.options
        return {
            "nexmark": self.kind.__name__.lower(),
            "events": options.events,
            "generators": options.generators,
            "rate": options.rate,
            "base_time": options.base_time.isoformat(),
            "group": options.group,
            "late": options.late,
            "lateness": options.allowed_lateness.total_seconds(),
        }


@dataclass(frozen=True)
class GeneratorPartition:
    """The events of one kind from one generator."""

    kind: Kind
    options: Options
    index: int

    @property
    def identity(self) -> str:
        """``nexmark bid, generator 0 of 4``"""
        generators = self.options.generators
        return f"nexmark {self.kind.__name__.lower()}, generator {self.index} of {generators}"

    async def open(self, value_type: Any, position: dict[str, Any] | None) -> GeneratorReader:
        """Open the partition at a stored position, or at the first event.

        The position always belongs to the same events: other options make another source, and the
        deploy of a pipeline with a changed source is refused.
        """
        place = _Position() if position is None else msgspec.convert(position, _Position)
        return GeneratorReader(self.kind, self.options, self.index, place)


class _Position(msgspec.Struct, frozen=True):
    """The stored position: row `row` is next, in or after `block`, which begins with row
    `first`."""

    row: int = 0
    block: int = 0
    first: int = 0


class _Mark(NamedTuple):
    """A place where reading can start: a block, and its first row."""

    block: int
    first: int


class GeneratorReader:
    """Makes the rows of one partition; the module's docstring describes their order."""

    def __init__(self, kind: Kind, options: Options, index: int, place: _Position) -> None:
        self._kind = kind
        self._options = options
        self._generator = Generator(options, index)
        self._lateness = round(options.allowed_lateness.total_seconds() * 1e6)
        start = _Mark(place.block, place.first)
        self._marks = deque([start])
        """The marks from the last one at or before the first unacknowledged row."""
        self._blocks = max(1, -(-self._generator.count // options.block))
        self._made = self._make(start)
        self._waiting: list[Row] = []
        """Rows that are made and not read yet."""
        self._ended = False
        to_skip = place.row - place.first
        while to_skip and (rows := next(self._made, None)) is not None:
            self._waiting = rows[to_skip:]
            to_skip = max(0, to_skip - len(rows))

    def _make(self, mark: _Mark) -> Iterator[list[Row]]:
        generator, kind = self._generator, self._kind
        row = mark.first
        blocks = emitted(generator, self._options, mark.block)
        for block, numbers in enumerate(blocks, mark.block):
            self._marks.append(_Mark(block, row))
            oldest = generator.milliseconds(block * self._options.block) * 1000 - self._lateness
            rows = [Row(row, row + 1, watermark=oldest)]
            for number in numbers:
                if generator.kind(number) is kind:
                    offset = row + len(rows)
                    rows.append(Row(offset, offset + 1, generator.event(number)))
            row += len(rows)
            yield rows

    @property
    def ended(self) -> bool:
        """Whether all events were read."""
        return self._ended

    async def read(self, limit: int) -> list[Row]:
        """Up to `limit` further rows; an empty list at the end."""
        rows = self._waiting
        while len(rows) < limit and (more := next(self._made, None)) is not None:
            rows = rows + more if rows else more
        self._waiting = rows[limit:]
        self._ended = not rows
        return rows[:limit]

    async def wait(self) -> None:
        """Return at once: events are made when they are read."""

    def position(self, acknowledged: int) -> dict[str, Any]:
        """The first unacknowledged row, and the beginning of its block."""
        marks = self._marks
        while len(marks) > 1 and marks[1].first <= acknowledged:
            marks.popleft()
        place = _Position(acknowledged, marks[0].block, marks[0].first)
        return msgspec.structs.asdict(place)

    def progress(self) -> float:
        """The share of blocks that have begun."""
        return min(1.0, self._marks[-1].block / self._blocks)

    @property
    def caught_up(self) -> bool:
        """Whether all events were made."""
        return self._ended

    def lag(self) -> Lag:
        """Not known: the number of events of this kind is known only after they are made."""
        return Lag()

    def close(self) -> None:
        """Do nothing: there is nothing to close."""


# ------------------------------------------------------------------------------- read


class EventLines:
    """JSON Lines of one kind of event: `millwheel.JsonLines` with another format of times."""

    def __init__(self, path: Path) -> None:
        self._lines = JsonLines(path)

    @property
    def bounded(self) -> bool:
        """Whether the file has an end."""
        return self._lines.bounded

    def partitions(self) -> list[Partition]:
        """The file, as one partition."""
        return [EventFile(partition) for partition in self._lines.partitions()]

    def describe(self) -> dict[str, Any]:
        """The description stored in the graph."""
        return {"nexmark": self._lines.describe()}


@dataclass(frozen=True)
class EventFile:
    """One file of events."""

    file: Partition

    @property
    def identity(self) -> str:
        """The identity of the file."""
        return self.file.identity

    async def open(self, value_type: Any, position: dict[str, Any] | None) -> EventReader:
        """Open the file at a stored position, or at the beginning.

        Raises:
            InputError: the file is missing, or acknowledged rows of it have changed.
        """
        return EventReader(await self.file.open(_line_type(value_type), position), value_type)


def _line_type(kind: Kind) -> Any:
    """The kind, with its times in all accepted formats."""
    fields: list[Any] = []
    for field in msgspec.structs.fields(kind):
        type_ = datetime | int if field.type is datetime else field.type
        default = () if field.default is msgspec.NODEFAULT else (field.default,)
        fields.append((field.name, type_, *default))
    return msgspec.defstruct(f"{kind.__name__}Line", fields, gc=False)


class EventReader:
    """Converts a file's lines to events."""

    def __init__(self, lines: Reader, kind: Kind) -> None:
        self._lines = lines
        self._kind = kind
        self._times = [
            number
            for number, field in enumerate(msgspec.structs.fields(kind))
            if field.type is datetime
        ]
        self.wait = lines.wait
        self.position = lines.position
        self.progress = lines.progress
        self.lag = lines.lag
        self.close = lines.close

    @property
    def caught_up(self) -> bool:
        """Whether all complete lines were read."""
        return self._lines.caught_up

    @property
    def ended(self) -> bool:
        """Whether the file was read to its end."""
        return self._lines.ended

    async def read(self, limit: int) -> Sequence[Row]:
        """Up to `limit` further rows; none at the end of the file."""
        rows = await self._lines.read(limit)
        if isinstance(rows, Rows):
            try:
                return Rows(rows.offset, rows.line, list(map(self._event, rows.values)))
            except OverflowError:
                pass  # some of these rows is bad
        for row in rows:
            if row.error is None:
                try:
                    row.value = self._event(row.value)
                except OverflowError as error:
                    row.text = repr(row.value)[:2000]
                    row.error = InputError(
                        f"line {row.line}: a time is out of range; it must be in milliseconds "
                        f"since 1970: {error}"
                    )
        return rows

    def _event(self, line: msgspec.Struct) -> Event:
        values = list(msgspec.structs.astuple(line))
        for number in self._times:
            if isinstance(values[number], int):
                values[number] = from_milliseconds(values[number])
        return self._kind(*values)


def write(directory: Path, options: Options) -> dict[Kind, int]:
    """Write all events in the format of `EventLines`, in the order in which they are emitted.

    The blocks of the generators, which all start at the same time, alternate. The three files get
    their names when they are complete.

    Returns:
        The number of lines of each file.
    """
    directory.mkdir(parents=True, exist_ok=True)
    encode = msgspec.json.Encoder().encode
    written: dict[Kind, int] = dict.fromkeys(FILES, 0)
    parts = {kind: directory / f"{name}.part" for kind, name in FILES.items()}
    files = {kind: path.open("wb") for kind, path in parts.items()}
    try:
        for event in in_order_of_emission(options):
            kind = type(event)
            fields = msgspec.structs.asdict(event)
            for name, value in fields.items():
                if isinstance(value, datetime):
                    fields[name] = to_milliseconds(value)
            files[kind].write(encode(fields) + b"\n")
            written[kind] += 1
    finally:
        for file in files.values():
            file.close()
    for kind, path in parts.items():
        path.replace(directory / FILES[kind])
    return written


def in_order_of_emission(options: Options) -> Iterator[Event]:
    """The events of all generators, a block of each in turn."""
    generators = [Generator(options, index) for index in range(options.generators)]
    turns = [emitted(generator, options) for generator in generators]
    while True:
        blocks = [next(turn, None) for turn in turns]
        if all(block is None for block in blocks):
            return
        yield from chain.from_iterable(
            map(generator.event, block or ())
            for generator, block in zip(generators, blocks, strict=True)
        )
