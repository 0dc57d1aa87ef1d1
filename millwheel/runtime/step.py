"""A node of the graph as it runs here: its routes, and the intervals that are owned."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol

import msgspec

from millwheel.codec import Codec, encode_key, reason, shown
from millwheel.context import Effects, StateCell
from millwheel.errors import UserCodeError
from millwheel.graph import Node
from millwheel.model import SLOTS, Delivery, Key
from millwheel.sinks import Console, JsonLinesFiles, SinkUse, Table
from millwheel.streams import Input, Stream


class Queue(Protocol):
    """Where records are put for an interval."""

    def append(self, delivery: Delivery[Any], /) -> None: ...


class Destination(Protocol):
    """An interval, here or elsewhere, as a sender sees it."""

    @property
    def id(self) -> int: ...
    @property
    def slots(self) -> tuple[int, int]: ...
    @property
    def intake(self) -> Queue: ...


NOBODY = 0
"""The receiver of what is stored, sent and forgotten: acknowledged at once."""


@dataclass(eq=False)
class Step:
    """One node with its stored id and the intervals this worker holds of it."""

    id: int
    place: int
    """In the order of the graph, in which writers come before readers."""
    node: Node
    routes: dict[str, StreamRoute]
    removed: bool = False
    """It was taken away while this worker runs code that still has it."""
    destinations: list[Destination] = field(default_factory=list)
    """Who gets the records of which slots, in the order of slots."""
    starts: list[int] = field(default_factory=list)
    """The first slot of each."""

    def put(self, destination: Destination) -> Destination | None:
        """Let an interval have its slots; gives who had exactly these."""
        start = destination.slots[0]
        place = bisect_right(self.starts, start)
        if place and self.starts[place - 1] == start:
            before, self.destinations[place - 1] = self.destinations[place - 1], destination
            return before
        self.starts.insert(place, start)
        self.destinations.insert(place, destination)
        return None

    def arrange(self, destinations: list[Destination]) -> None:
        """All of them anew, in the order of slots."""
        self.destinations = destinations
        self.starts = [destination.slots[0] for destination in destinations]

    def interval_of(self, slot: int) -> Destination:
        """Who gets a key's records: an interval here, or what stands for one elsewhere."""
        return self.destinations[bisect_right(self.starts, slot) - 1]

    @property
    def slots(self) -> int:
        """How many slots its keys have; of an injector, how many partitions there are."""
        injection = self.node.injection
        return SLOTS if injection is None else len(injection.source.partitions())

    @property
    def name(self) -> str:
        """The node's name."""
        return self.node.name

    @property
    def version(self) -> int:
        """The version of its state's type."""
        return self.node.computation.version if self.node.computation else 1

    @cached_property
    def codecs(self) -> dict[str, Codec[Any]]:
        """The codec of each stream it reads."""
        return {input_.stream.name: input_.stream.codec for input_ in self.node.inputs}

    def renew(self, delivery: Delivery[Any]) -> None:
        """Give a record that runs again the value it came with, whatever was done to it."""
        codec = self.codecs[delivery.stream]
        if codec.mutable:
            delivery.value = codec.decode(delivery.encoded)


@dataclass(eq=False)
class Reader:
    """A consumer of a stream: who, and by which key."""

    step: Step
    extractor: Callable[[Any], Key]
    bit: int

    def key_of(self, value: Any, stream: str) -> Key:
        """The key the consumer takes from a value; its failure is told as such."""
        try:
            return self.extractor(value)
        except Exception as error:
            raise UserCodeError(
                f"the key extractor of {self.step.name!r} failed on a value of stream {stream!r}: "
                f"{reason(error)}; value {shown(value, 300)}"
            ) from error


class StreamRoute:
    """Where one stream goes from one node: consumers here, and sinks in the same commit."""

    def __init__(self, stream: Stream[Any], sinks: list[SinkUse]) -> None:
        self.stream = stream.name
        self.codec = stream.codec
        self.readers: list[Reader] = []
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

    def send(self, effects: Effects, cell: StateCell, value: Any, micros: int, hold: int) -> None:
        """One delivery per consumer and one row per table, decided, not yet written.

        Each consumer gets an object of its own, decoded from what is stored: what it sees
        is what it would see after a crash, and nobody's changes reach anybody else.
        """
        readers = self.readers
        if self.discarded:
            encoded = self.codec.encode(value)
            size = len(encoded)
            effects.size += size
            effects.productions.append(
                Delivery(
                    cell.key, None, micros, self.stream, cell.key_text, cell.slot, NOBODY, hold,
                    size, encoded,
                )
            )  # fmt: skip
        if readers:
            encoded = self.codec.encode(value)
            size = len(encoded)
            effects.size += size * len(readers)
            for reader in readers:
                copy = self.codec.check(encoded, value)
                reader_key = reader.key_of(copy, self.stream)
                key_text, slot = encode_key(reader_key)
                effects.productions.append(
                    Delivery(
                        reader_key, copy, micros, self.stream, key_text, slot, reader.step.id,
                        hold, size, encoded,
                    )
                )  # fmt: skip
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
                    f"table {table.name!r}: the columns {table.producer_key} of the row hold {own!r}, "
                    f"but the producing key is {key!r}; another key could write the same row. "
                    "Leave producer_key out: then the rows get a step of their own"
                )
        effects.rows.append((table, values))
        effects.size += 32 * len(values)

    def _write_line(self, effects: Effects, value: Any) -> None:
        for row in self.rows:
            line = msgspec.json.encode(row(value) if row else value)
            if self.to_file:
                effects.lines.append(line)
                effects.size += len(line)
            for prefix in self.prefixes:
                print(prefix + line.decode(), flush=True)


def connect(steps: dict[str, Step], node: Node, routes: dict[str, StreamRoute]) -> None:
    """Attach the readers of everything `node` writes."""
    for stream in node.writes:
        route = routes[stream.name]
        readers: list[tuple[Step, Input[Any]]] = [
            (step, input_)
            for step in steps.values()
            for input_ in step.node.inputs
            if input_.stream.name == stream.name
        ]
        route.readers = [
            Reader(step, input_.extractor, 1 << number)
            for number, (step, input_) in enumerate(readers)
        ]
