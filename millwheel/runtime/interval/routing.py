"""Routing: a node of the graph in this worker, its routes, and the destinations of its records."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import groupby, repeat
from operator import itemgetter
from typing import Any, Protocol

import msgspec

from millwheel.addresses import Address, cell_address, spread_addresses
from millwheel.chunk import Chunk, Outbox
from millwheel.codec import Codec, encode_key, encode_keys, place_of, reason, shown
from millwheel.context import Effects, Produced, StateCell
from millwheel.errors import UserCodeError
from millwheel.graph import Node, Reading
from millwheel.model import NAME_BYTES, SLOTS, Delivery, Key
from millwheel.runtime.interval.weak_ids import NO_RUN, WeakIds, id_at
from millwheel.sinks import Console, JsonLinesFiles, SinkUse, Table
from millwheel.streams import Broadcast, Stream


class DeliveryQueue(Protocol):
    """The queue of an interval as a sender sees it."""

    def append(self, item: Chunk | Delivery[Any], /) -> None: ...


class Destination(Protocol):
    """An interval of this worker or of another one, as a sender sees it."""

    @property
    def id(self) -> int: ...
    @property
    def slots(self) -> tuple[int, int]: ...
    @property
    def intake(self) -> DeliveryQueue: ...
    @property
    def is_here(self) -> bool: ...
    @property
    def queued(self) -> int:
        """Number of records that wait for the interval, as far as this worker knows and no log bounds it."""
        ...

    def insert(self, deliveries: list[Delivery[Any]], /) -> None:
        """Take records that were queued elsewhere, ahead of newer ones."""
        ...


NOBODY = 0
"""The receiver of productions without a reader: the commit that stores them acknowledges them."""


@dataclass(eq=False)
class Step:
    """One node of the graph with its stored id, its routes, and the destinations of its slots."""

    id: int
    place: int
    """Position in the order of the graph, in which writers come before readers."""
    node: Node
    routes: dict[str, StreamRoute]
    run: bytes = NO_RUN
    """This worker's mark in the ids of weak productions."""
    removed: bool = False
    """A newer deploy has removed the node, while this worker still runs code with it."""
    destinations: list[Destination] = field(default_factory=list)
    """The destinations of the node's records, in the order of their slots."""
    starts: list[int] = field(default_factory=list)
    """The first slot of each destination."""
    _nearest: list[Address] | None = None

    def put(self, destination: Destination) -> Destination | None:
        """Assign a destination to its slots; gives the former one that began at the same slot."""
        start = destination.slots[0]
        place = bisect_right(self.starts, start)
        if place and self.starts[place - 1] == start:
            before, self.destinations[place - 1] = self.destinations[place - 1], destination
            self._nearest = None
            return before
        self._nearest = None
        self.starts.insert(place, start)
        self.destinations.insert(place, destination)
        return None

    def arrange(self, destinations: list[Destination]) -> None:
        """Replace all destinations; the new ones are in the order of their slots."""
        self._nearest = None
        self.destinations = destinations
        self.starts = [destination.slots[0] for destination in destinations]

    def cut(self, chunk: Chunk) -> list[tuple[Destination, Chunk]]:
        """The parts of a chunk for each destination."""
        destinations, starts = self.destinations, self.starts
        if len(destinations) == 1:
            return [(destinations[0], chunk)]
        of: dict[int, list[int]] = {}
        for place, slot in enumerate(chunk.slots):
            of.setdefault(bisect_right(starts, slot) - 1, []).append(place)
        if len(of) == 1:
            return [(destinations[number], chunk) for number in of]
        return [(destinations[number], chunk.part(places)) for number, places in of.items()]

    def interval_of(self, slot: int) -> Destination:
        """The destination of a slot's records: an interval here, or a port to one of another worker."""
        return self.destinations[bisect_right(self.starts, slot) - 1]

    @property
    def nearest(self) -> list[Address]:
        """Addresses for spread records, each interval as often: intervals of this worker if it has any."""
        if self._nearest is None:
            of: dict[int, list[Address]] = {}
            for address in spread_addresses():
                of.setdefault(bisect_right(self.starts, address.slot) - 1, []).append(address)
            here = [
                addresses for place, addresses in of.items() if self.destinations[place].is_here
            ]
            rows = _in_turn(here or list(of.values()))
            self._nearest = [address for row in rows for address in row]
        return self._nearest

    @property
    def slots(self) -> int:
        """Number of slots of its keys; for an injector, the number of present or possible partitions."""
        injection = self.node.injection
        if injection is None or injection.growing is not None:
            return SLOTS
        return len(injection.source.partitions())

    @property
    def name(self) -> str:
        """The node's name."""
        return self.node.name

    @property
    def version(self) -> int:
        """The version of its state's type."""
        return self.node.computation.version if self.node.computation else 1

    @cached_property
    def fleeting(self) -> frozenset[int]:
        """The computations among its readers that get each record at most once."""
        readers = [reader for route in self.routes.values() for reader in route.readers]
        return frozenset(reader.step.id for reader in readers if reader.step.node.at_most_once)

    def divided(self, productions: list[Chunk]) -> tuple[list[Chunk], list[Chunk]]:
        """Productions that are stored, and those that are sent at most once and stored nowhere."""
        fleeting = self.fleeting
        if not fleeting:
            return productions, []
        return (
            [p for p in productions if p.receiver not in fleeting],
            [p for p in productions if p.receiver in fleeting],
        )

    @cached_property
    def codecs(self) -> dict[str, Codec[Any]]:
        """The codec of each stream that the node reads."""
        return {input_.stream.name: input_.stream.codec for input_ in self.node.inputs}

    def renew(self, delivery: Delivery[Any]) -> None:
        """Restore the original value of a record that runs again: user code may have changed it."""
        codec = self.codecs[delivery.stream]
        if codec.mutable:
            delivery.value = codec.decode(delivery.encoded)


Addresses = tuple[list[Key], list[bytes], list[int]]
"""Keys, their canonical bytes, and slots, as columns."""


class StreamReader(Protocol):
    """A reader of a stream, which determines the address of each record."""

    step: Step
    bit: int
    """The reader's bit in the mask of the readers of a source's row."""

    def address(self, value: Any, stream: str, offset: int | None = None) -> tuple[Any, bytes, int]:
        """The key for a value, the key's canonical bytes, and its slot.

        Args:
            offset: the offset of a source's row; None: the value is a production.
        """
        ...

    def addresses(
        self, values: Sequence[Any], stream: str, offsets: Sequence[int] | None = None
    ) -> Addresses:
        """The addresses of several values, as columns."""
        ...


@dataclass(eq=False)
class KeyedReader:
    """A reader that extracts the key from the value."""

    step: Step
    bit: int
    extractor: Callable[[Any], Key]

    def address(self, value: Any, stream: str, offset: int | None = None) -> tuple[Key, bytes, int]:
        """Extract the key of a value.

        Raises:
            UserCodeError: the extractor failed, or returned a value that cannot be a key.
        """
        extractor = self.extractor
        try:
            key = extractor(value)
        except BaseException as error:
            raise UserCodeError(
                f"the key extractor of {self.step.name!r} failed on a value of stream {stream!r}: "
                f"{reason(error)}; value {shown(value, 300)}; the extractor is {place_of(extractor)}"
            ) from error
        try:
            key_text, slot = encode_key(key)
        except UserCodeError as error:
            raise UserCodeError(
                f"the key extractor of {self.step.name!r} returned an invalid key for a value of stream "
                f"{stream!r}: {error}; the extractor is {place_of(extractor)}"
            ) from error
        return key, key_text, slot

    def addresses(
        self, values: Sequence[Any], stream: str, offsets: Sequence[int] | None = None
    ) -> Addresses:
        """The addresses of several values.

        Raises:
            UserCodeError: as `address`.
        """
        try:
            keys = list(map(self.extractor, values))
            return keys, *encode_keys(keys)
        except BaseException:
            return _one_by_one(self, values, stream, offsets)


@dataclass(eq=False)
class SpreadReader:
    """A reader that leaves the choice of the key to the engine."""

    step: Step
    bit: int
    sent: int = 0

    def address(self, value: Any, stream: str, offset: int | None = None) -> Address:
        """The next address in turn.

        A source's row that is read again must get the same address, wherever the intervals are then:
        seen ids are kept by slot. A production's address is stored with it.
        """
        if offset is not None:
            everywhere = spread_addresses()
            return everywhere[offset % len(everywhere)]
        nearest = self.step.nearest
        self.sent += 1
        return nearest[self.sent % len(nearest)]

    def addresses(
        self, values: Sequence[Any], stream: str, offsets: Sequence[int] | None = None
    ) -> Addresses:
        """The addresses of several values."""
        return _one_by_one(self, values, stream, offsets)

    def address_of(self, id_: bytes) -> Address:
        """The address of a weak production: the same each time that the production is made."""
        everywhere = spread_addresses()
        return everywhere[int.from_bytes(id_[:NAME_BYTES]) % len(everywhere)]


@dataclass(eq=False)
class CellReader:
    """One cell of a reader that gets every record in all its cells."""

    step: Step
    bit: int
    cell: Address

    def address(self, value: Any, stream: str, offset: int | None = None) -> Address:
        """The address of the cell."""
        return self.cell

    def addresses(
        self, values: Sequence[Any], stream: str, offsets: Sequence[int] | None = None
    ) -> Addresses:
        """The address of the cell, for each value."""
        return _one_by_one(self, values, stream, offsets)


def _one_by_one(
    reader: StreamReader, values: Sequence[Any], stream: str, offsets: Sequence[int] | None
) -> Addresses:
    places: Iterable[int | None] = repeat(None) if offsets is None else offsets
    found = [reader.address(v, stream, o) for v, o in zip(values, places, strict=False)]
    return [f[0] for f in found], [f[1] for f in found], [f[2] for f in found]


class StreamRoute:
    """The readers of one node's stream, and the sinks that are written in the node's own commit."""

    def __init__(self, stream: Stream[Any], sinks: list[SinkUse]) -> None:
        self.stream = stream.name
        self.codec = stream.codec
        self._classes = stream.codec.classes
        self._encode_unchecked = stream.codec.encode_unchecked
        self._line_codec: Codec[Any] = Codec(Any, what=f"a row of stream {stream.name!r}")
        self.readers: list[StreamReader] = []
        self.tables: list[tuple[Table[Any], Callable[[Any], Any] | None]] = []
        self.prefixes: list[str] = []
        self.to_file = False
        self.discarded = False
        for use in sinks:
            if isinstance(use.sink, Table):
                self.tables.append((use.sink, use.row))
            elif isinstance(use.sink, Console):
                self.prefixes.append(use.sink.prefix)
            elif isinstance(use.sink, JsonLinesFiles):
                self.to_file = True
            else:
                self.discarded = True
        self.rows = [use.row for use in sinks if isinstance(use.sink, (Console, JsonLinesFiles))]

    @cached_property
    def copies(self) -> int:
        """Number of records that a value becomes."""
        return len(self.readers) + self.discarded

    @cached_property
    def is_written(self) -> bool:
        """Whether a value becomes a row of a table, or a line."""
        return bool(self.tables or self.to_file or self.prefixes)

    def send(self, effects: Effects, cell: StateCell, value: Any, micros: int) -> None:
        """Add a value to the effects: one delivery per reader and one row per table.

        Each reader gets a separate object, decoded from the stored JSON: it sees the same value as
        after a crash, and no changes by other readers.

        Raises:
            UserCodeError: the value is not of the stream's type.
        """
        if type(value) not in self._classes:
            self._check(value)
        if self.copies:
            encode = self._encode_unchecked if effects.together else self.codec.encode
            effects.produced.append((self, cell, value, encode(value), micros))
            if not effects.together:
                address_all(effects)
        if self.is_written:
            self._write(effects, cell, value)

    def address(self, outbox: Outbox, produced: Sequence[Produced]) -> int:
        """Add productions of this route to the outbox: for each reader, and for the store alone.

        Returns:
            Their size in bytes.

        Raises:
            UserCodeError: a value is not of the stream's type, or a reader's extractor refuses it.
        """
        columns = tuple(zip(*produced, strict=True))
        _, cells, values, encoded, _ = columns
        self.codec.check_texts(encoded, values)
        if self.discarded:
            chunk = self._chunk(NOBODY, columns)
            chunk.keys, chunk.values = [cell.key for cell in cells], [None] * len(cells)
            chunk.key_texts = [cell.key_text for cell in cells]
            chunk.slots = [cell.slot for cell in cells]
            outbox.add(chunk)
        for reader in self.readers:
            outbox.add(self._addressed(reader, columns))
        return sum(map(len, encoded)) * self.copies

    def _addressed(self, reader: StreamReader, columns: Sequence[Sequence[Any]]) -> Chunk:
        chunk = self._chunk(reader.step.id, columns)
        chunk.values = self.codec.check_all(chunk.encoded, columns[2])
        chunk.keys, chunk.key_texts, chunk.slots = reader.addresses(chunk.values, self.stream)
        return chunk

    def _chunk(self, receiver: int, columns: Sequence[Sequence[Any]]) -> Chunk:
        chunk = Chunk(self.stream, receiver)
        chunk.encoded, chunk.micros = map(list, columns[3:])
        chunk.holds = chunk.micros.copy()  # its commit raises them to the promise of that moment
        return chunk

    def _check(self, value: Any) -> None:
        """Refuse a value that is not of the stream's type, if its class alone does not prove the type."""
        codec = self.codec
        codec.check_class(value)
        if not self.readers:  # readers decode the stored JSON, which checks it
            codec.check(codec.encode(value), value)

    def _write(self, effects: Effects, cell: StateCell, value: Any) -> None:
        """Write a value to the sinks in the producer's commit; they accept the values that readers accept."""
        if not self.readers:  # for readers it was encoded, which checks it
            self.codec.check_finite(value)
        for table, row in self.tables:
            self._write_row(effects, cell.key, table, row(value) if row else value)
        if self.to_file or self.prefixes:
            self._write_line(effects, value)

    def _write_row(self, effects: Effects, key: Key, table: Table[Any], row: Any) -> None:
        try:
            values = table.values(row)
        except (TypeError, AttributeError, msgspec.MsgspecError) as error:
            raise UserCodeError(f"table {table.name!r}: {error}") from error
        if table.producer_positions:
            own = tuple(values[position] for position in table.producer_positions)
            if own != (key if isinstance(key, tuple) else (key,)):
                raise UserCodeError(
                    f"table {table.name!r}: the columns {table.producer_key} of the row hold {own!r:.80}, "
                    f"but the producing key is {key!r:.80}; another key could write the same row. "
                    "Omit producer_key: then a separate step writes the rows"
                )
        effects.rows.append((table, values))
        effects.size += 32 * len(values)

    def _write_line(self, effects: Effects, value: Any) -> None:
        for row in self.rows:
            if row is None:
                line = self.codec.encode(value)
                self.codec.check(line, value)
            else:
                line = self._line_codec.encode(row(value))
            if self.to_file:
                effects.lines.append(line)
                effects.size += len(line)
            for prefix in self.prefixes:
                print(prefix + line.decode(), flush=True)


def address_all(effects: Effects) -> None:
    """Give the values that user code has produced their addresses.

    Values of one receiver keep their order, even if they are of several streams.

    Raises:
        UserCodeError: as `StreamRoute.address`.
    """
    produced, effects.produced = effects.produced, []
    routes = dict.fromkeys(map(itemgetter(0), produced))
    receivers = [reader.step.id for route in routes for reader in route.readers]
    if len(set(receivers)) == len(receivers):
        for route in routes:
            mine = [each for each in produced if each[0] is route] if len(routes) > 1 else produced
            effects.size += route.address(effects.productions, mine)
    else:
        for route, run in groupby(produced, key=itemgetter(0)):
            effects.size += route.address(effects.productions, list(run))


class WeakRoute(StreamRoute):
    """The route of a weak computation's stream: readers get its values before anything is stored."""

    def send(self, effects: Effects, cell: StateCell, value: Any, micros: int) -> None:
        """Add a value to the effects, as for strong productions, with an id derived from the record's id.

        Productions of a timer are strong: the commit that removes the timer carries them.
        """
        lineage = effects.lineage
        assert isinstance(lineage, WeakIds)
        cause = lineage.cause
        if cause is None:
            super().send(effects, cell, value, micros)
            return
        if type(value) not in self._classes:
            self._check(value)
        if self.readers:
            encoded = self.codec.encode(value)
            size, hold = len(encoded), max(micros, effects.promised)
            id_ = lineage.next_id(self.stream, encoded, micros)
            for reader in self.readers:
                copy = self.codec.check(encoded, value)
                # Sent once, by the commit that stores the record's id.
                if reader.step.node.at_most_once:
                    columns: list[list[Any]] = [[self], [cell], [value], [encoded], [micros]]
                    effects.productions.add(self._addressed(reader, columns))
                    continue
                of = id_
                if isinstance(reader, SpreadReader):
                    key, key_text, slot = reader.address_of(id_)
                else:
                    key, key_text, slot = reader.address(copy, self.stream)
                if isinstance(reader, CellReader):
                    of = id_at(id_, slot)
                output: Delivery[Any] = Delivery(
                    key, copy, micros, self.stream, key_text, slot, reader.step.id, hold, size,
                    encoded, 0, 0, cause.stamp, of, 0, False, cause.origin,
                )  # fmt: skip
                effects.caused.append((cause, output))
        self._write(effects, cell, value)


def connect(steps: dict[str, Step], node: Node, routes: dict[str, StreamRoute]) -> None:
    """Attach the readers of all streams that `node` writes."""
    for stream in node.writes:
        readers = routes[stream.name].readers
        for step in steps.values():
            for input_ in step.node.inputs:
                if input_.stream.name == stream.name:
                    readers += _readers(step, input_, 1 << len(readers))


def _readers(step: Step, input_: Reading, bit: int) -> list[StreamReader]:
    """The readers of one input: one for each cell of a broadcast, otherwise a single one. The graph makes
    sure that no source's row goes to several cells."""
    if isinstance(input_, Broadcast):
        node = step.node
        cells = [cell_address(cell, node.grain) for cell in range(node.cells)]
        return [CellReader(step, bit, cell) for cell in cells]
    if input_.extractor is None:
        return [SpreadReader(step, bit)]
    return [KeyedReader(step, bit, input_.extractor)]


def _in_turn(lists: list[list[Address]]) -> list[list[Address]]:
    """Rows with one address of each list; shorter lists start again until the longest one has ended."""
    longest = max(map(len, lists))
    return [[each[row % len(each)] for each in lists] for row in range(longest)]
