"""The computations that a query becomes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from millwheel.computation import Computation
from millwheel.context import Context
from millwheel.core.chunk import Chunk
from millwheel.core.chunk_code import ChunkCode, SendAll
from millwheel.core.model import Record, Timer, from_micros
from millwheel.sql.analysis import Analyzed
from millwheel.sql.generated import Generated
from millwheel.streams import Input, Stream

Made = tuple[Sequence[Any], Sequence[int] | None, Sequence[int] | None]
"""Values; their timestamps in microseconds, and the places of records that they come from: None,
if each record has one value."""


class Loop(Computation[Any, None], ChunkCode):
    """Filters and projects the records of a chunk, or adds them up in groups, in one loop.

    Args:
        function: takes values and their timestamps; returns `Made`.
        to: the stream of the results.
        query: the typed SELECT, for engines that run it in their own way; None: a part of one.
    """

    def __init__(self, function: Generated, to: Stream[Any], query: Analyzed | None = None) -> None:
        self._to = to
        self._function = function
        self.query = query
        self.writes = (to,)
        self.rules = {"query": function.meaning}

    @property
    def name(self) -> str:
        return f"make_{self._to.name}"

    @property
    def source(self) -> str:
        """The Python of the loop."""
        return self._function.source

    async def process_record(self, record: Record[Any], ctx: Context[None]) -> None:
        values, micros, _ = self._function([record.value], [record.micros])
        for place, value in enumerate(values):
            at = record.timestamp if micros is None else from_micros(micros[place])
            ctx.produce(self._to, value, timestamp=at)

    def process_chunk(self, chunk: Chunk, send: SendAll) -> None:
        send(self._to.name, *self._function(chunk.values, chunk.micros))


@dataclass(frozen=True)
class HeldPart:
    """The part of a stream's records that a join holds.

    Attributes:
        stream: a stream of such parts, which only the join knows.
        of: makes the part of a value and its timestamp in microseconds.
    """

    stream: Stream[Any]
    of: Generated


class QueryJoin(Computation[Any, Any]):
    """A join of a query.

    Args:
        join: the join of its parts.
        parts: by the name of a stream of which records the join holds parts, how it takes them.
        functions: those of the join.
    """

    def __init__(
        self,
        join: Computation[Any, Any],
        parts: Mapping[str, HeldPart],
        functions: Sequence[Generated],
    ) -> None:
        self.join = join
        self._parts = parts
        self._functions = functions
        self.writes = join.writes
        meaning = "; ".join(each.meaning for each in (*self._made_of_parts, *functions))
        self.rules = {**join.rules, "query": meaning}

    @property
    def _made_of_parts(self) -> list[Generated]:
        return [part.of for part in self._parts.values()]

    @property
    def name(self) -> str:
        return self.join.name

    @property
    def class_name(self) -> str:
        return self.join.class_name

    @property
    def state_type(self) -> Any:
        return self.join.state_type

    @property
    def source(self) -> str:
        """The Python of its functions."""
        return "\n".join(each.source for each in (*self._made_of_parts, *self._functions))

    def check_inputs(self, inputs: tuple[Input[Any], ...]) -> None:
        """The planner gives both streams keys of one type."""

    async def process_record(self, record: Record[Any], ctx: Context[Any]) -> None:
        part = self._parts.get(record.stream)
        if part is not None:
            held = part.of(record.value, record.micros)
            record = Record(record.key, held, record.micros, part.stream.name)
        await self.join.process_record(record, ctx)

    async def process_timer(self, timer: Timer, ctx: Context[Any]) -> None:
        await self.join.process_timer(timer, ctx)


class GroupTotals(Computation[Any, Any]):
    """Groups without windows: a row with the new values whenever records have been added.

    Records that arrive together give one row.

    Args:
        sums: the state: a struct, with the values of an empty group as defaults.
        add: adds a partial sum to the state.
        row: makes a row of a key and its state.
        to: the stream of rows.
    """

    def __init__(self, sums: type, add: Generated, row: Generated, to: Stream[Any]) -> None:
        self._sums = sums
        self._add = add
        self._row = row
        self._to = to
        self.writes = (to,)
        self.state_functions = {"query": (1, (add,))}

    @property
    def name(self) -> str:
        return f"make_{self._to.name}"

    @property
    def state_type(self) -> Any:
        return self._sums

    async def process_record(self, record: Record[Any], ctx: Context[Any]) -> None:
        await self.process_group([record], ctx)

    async def process_group(self, records: Sequence[Record[Any]], ctx: Context[Any]) -> None:
        sums = ctx.state
        for record in records:
            self._add(sums, record.value)
        newest = max(record.timestamp for record in records)
        ctx.produce(self._to, self._row(ctx.key, sums), timestamp=newest)


class NewGroup(msgspec.Struct):
    """The state of a group whose row is sent once."""

    is_sent: bool = False


class NewGroups(Computation[Any, NewGroup]):
    """Groups without windows and aggregates: a row when a group appears.

    Args:
        row: makes a row of a key.
        to: the stream of rows.
    """

    def __init__(self, row: Generated, to: Stream[Any]) -> None:
        self._row = row
        self._to = to
        self.writes = (to,)

    @property
    def name(self) -> str:
        return f"make_{self._to.name}"

    async def process_record(self, record: Record[Any], ctx: Context[NewGroup]) -> None:
        if not ctx.state.is_sent:
            ctx.state.is_sent = True
            ctx.produce(self._to, self._row(ctx.key, None), timestamp=record.timestamp)
