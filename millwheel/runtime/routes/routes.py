"""The routes of a node's streams: to their readers, and to the sinks that its own commits write."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from itertools import groupby, islice
from operator import itemgetter
from typing import Any

import msgspec

from millwheel.core.chunk import Chunk, Outbox
from millwheel.core.chunk_code import RecordPlace
from millwheel.core.codec import Codec
from millwheel.core.counters import WITHHELD
from millwheel.core.effects import Effects, Produced, StateCell
from millwheel.core.model import Delivery, Key
from millwheel.errors import UserCodeError
from millwheel.graph.node import Node
from millwheel.runtime.routes.destinations import ReceivingStep
from millwheel.runtime.routes.readers import CellReader, SpreadReader, StreamReader, readers_of
from millwheel.runtime.seen.weak_ids import WeakIds, id_at
from millwheel.sinks import Console, JsonLinesFiles, SinkUse, Table
from millwheel.streams import Stream

NOBODY = 0
"""The receiver of productions without a reader: the commit that stores them acknowledges them."""


class StreamRoute:
    """The readers of one node's stream, and the sinks that are written in the node's own commit."""

    def __init__(
        self, stream: Stream[Any], sinks: list[SinkUse], *, withholds: bool = False
    ) -> None:
        """
        Args:
            withholds: lines are counted, and written nowhere.
        """
        self.stream = stream.name
        self._withholds = withholds
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

    def send_all(
        self,
        effects: Effects,
        chunk: Chunk,
        values: Sequence[Any],
        micros: Sequence[int] | None = None,
        places: Sequence[int] | None = None,
    ) -> None:
        """Add values that come from records of a chunk (`millwheel.core.chunk_code.SendAll`).

        Raises:
            UserCodeError: a value is not of the stream's type, or a reader's extractor refuses it.
        """
        classes = self._classes
        for value in values:
            if type(value) not in classes:
                self._check(value)
        cells: Sequence[StateCell] = ()
        if self.discarded or self.is_written:
            all_cells = list(map(RecordPlace, chunk.keys, chunk.key_texts, chunk.slots))
            cells = all_cells if places is None else [all_cells[place] for place in places]  # type: ignore[assignment, misc]
        if self.copies:
            encoded = self.codec.encode_all(values)
            times = chunk.micros if micros is None else micros
            effects.size += self.address(effects.productions, cells, values, encoded, times)
        if self.is_written:
            for cell, value in zip(cells, values, strict=True):
                self._write(effects, cell, value)

    def address(
        self,
        outbox: Outbox,
        cells: Sequence[StateCell],
        values: Sequence[Any],
        encoded: Sequence[bytes],
        micros: Sequence[int],
    ) -> int:
        """Add productions of this route to the outbox: for each reader, and for the store alone.

        Args:
            cells: the producing keys; may be empty if only readers get the productions.

        Returns:
            Their size in bytes.

        Raises:
            UserCodeError: a value is not of the stream's type, or a reader's extractor refuses it.
        """
        self.codec.check_texts(encoded, values)
        if self.discarded:
            chunk = self._chunk(NOBODY, encoded, micros)
            chunk.keys, chunk.values = [cell.key for cell in cells], [None] * len(cells)
            chunk.key_texts = [cell.key_text for cell in cells]
            chunk.slots = [cell.slot for cell in cells]
            outbox.add(chunk)
        for reader in self.readers:
            outbox.add(self._addressed(reader, values, encoded, micros))
        return sum(map(len, encoded)) * self.copies

    def _addressed(
        self,
        reader: StreamReader,
        values: Sequence[Any],
        encoded: Sequence[bytes],
        micros: Sequence[int],
    ) -> Chunk:
        chunk = self._chunk(reader.step.id, encoded, micros)
        chunk.values = self.codec.check_all(encoded, values)
        chunk.keys, chunk.key_texts, chunk.slots = reader.addresses(chunk.values, self.stream)
        return chunk

    def _chunk(self, receiver: int, encoded: Sequence[bytes], micros: Sequence[int]) -> Chunk:
        chunk = Chunk(self.stream, receiver)
        chunk.encoded, chunk.micros = list(encoded), list(micros)
        chunk.holds = chunk.micros.copy()  # its commit raises them to the promise of that moment
        return chunk

    def _check(self, value: Any) -> None:
        """Refuse a value that is not of the stream's type, if its class alone does not prove the
        type."""
        codec = self.codec
        codec.check_class(value)
        if not self.readers:  # readers decode the stored JSON, which checks it
            codec.check(codec.encode(value), value)

    def _write(self, effects: Effects, cell: StateCell, value: Any) -> None:
        """Write a value to the sinks in the producer's commit; they accept the values that readers
        accept."""
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
                    f"table {table.name!r}: the columns {table.producer_key} of the row hold "
                    f"{own!r:.80}, but the producing key is {key!r:.80}; another key could write "
                    "the same row. Omit producer_key: then a separate step writes the rows"
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
            if self._withholds:
                effects.count(WITHHELD, 1)
                continue
            if self.to_file:
                effects.lines.append(line)
                effects.size += len(line)
            for prefix in self.prefixes:
                # One write: lines of workers that share a terminal or a file must not mix.
                print(f"{prefix}{line.decode()}\n", end="", flush=True)


class WeakRoute(StreamRoute):
    """The route of a weak computation's stream: readers get its values before they are stored."""

    def send(self, effects: Effects, cell: StateCell, value: Any, micros: int) -> None:
        """As for strong productions, with an id derived from the record's id.

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
                    effects.productions.add(self._addressed(reader, [value], [encoded], [micros]))
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


class ChunkSender:
    """Adds values that come from records of a chunk (`millwheel.core.chunk_code.SendAll`)."""

    __slots__ = ("_chunk", "_effects", "_routes")

    def __init__(self, routes: Mapping[str, StreamRoute], effects: Effects, chunk: Chunk) -> None:
        self._routes = routes
        self._effects = effects
        self._chunk = chunk

    def __call__(
        self,
        stream: str,
        values: Sequence[Any],
        micros: Sequence[int] | None = None,
        places: Sequence[int] | None = None,
    ) -> None:
        if values:
            self._routes[stream].send_all(self._effects, self._chunk, values, micros, places)


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
            effects.size += route.address(effects.productions, *_columns(mine))
    else:
        for route, run in groupby(produced, key=itemgetter(0)):
            effects.size += route.address(effects.productions, *_columns(run))


def _columns(produced: Iterable[Produced]) -> Iterable[Sequence[Any]]:
    return islice(zip(*produced, strict=True), 1, None)


def connect(steps: Mapping[str, ReceivingStep], node: Node, routes: dict[str, StreamRoute]) -> None:
    """Attach the readers of all streams that `node` writes."""
    for stream in node.writes:
        readers = routes[stream.name].readers
        for step in steps.values():
            for input_ in step.node.inputs:
                if input_.stream.name == stream.name:
                    readers += readers_of(step, input_, 1 << len(readers))
