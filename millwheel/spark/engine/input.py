"""The sources of a pipeline as one source of Spark, with the promise of the injectors beside the
rows.

The offset has the position of each partition, as the engine stores it, and the promised low
watermark, so a batch that runs again has the same rows and the same watermark. In each batch one
row, the clock, has the promise, which is Spark's watermark: no row is ever late for Spark. The
computation decides whether a record is late, as in the engine.

The driver reads ahead to find the end of a batch and the promise of the sources there; tasks read
the rows again.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from millwheel.core.counters import BAD_ROWS
from millwheel.core.model import MAX_TIME, MIN_TIME, clamp_time
from millwheel.errors import InputError, InvariantBroken
from millwheel.graph.node import Node
from millwheel.runtime.interval.step import Step
from millwheel.runtime.source.row_rules import RowRules
from millwheel.sources import Discovery, Partition, Reader, Row
from millwheel.spark.engine.plan import SparkPlan, planned
from millwheel.spark.engine.stream_rows import (
    CLOCK,
    COUNTER,
    LETTER,
    SCHEMA,
    Packing,
    Parcel,
    StreamRow,
    counter_row,
    letter_row,
    mark_of,
)

FORMAT = "millwheel_injectors"
READ_ROWS = 1_000
PACKED_ROWS = 20_000
"""Rows that are packed together: of few, a bucket would get a parcel of one or two."""
DISCOVER_SECONDS = 1.0
"""Pause between two looks for new partitions."""
LOOK_SECONDS = 0.05
"""Wait for a row of a partition that has none, while the query runs."""
LAST_LOOK_SECONDS = 2.0
"""The same before the query ends: rows that come over a network are not there at once."""
PATIENCE_SECONDS = 60.0
"""How long a task waits for a row that the driver has seen."""

TYPES = pa.schema(
    [
        ("receiver", pa.string()),
        ("bucket", pa.int32()),
        ("rows", pa.binary()),
        ("mark", pa.timestamp("us", tz="UTC")),
    ]
)

Place = dict[str, Any]
"""How far a partition is read: its stored position, the number of the next row, the time seen, and
whether it has ended."""


@dataclass
class SourcePart(InputPartition):
    injector: str
    identity: str
    position: dict[str, Any] | None
    until: int
    """One past the number of the last row."""
    mark: int
    buckets: int


@dataclass
class ClockPart(InputPartition):
    """The row that has the promise for Spark."""

    mark: int


class InjectedSource(DataSource):
    """The source of a query.

    Options: ``target``; ``rows``, the most of a batch; ``buckets`` of each step; ``keep_open``;
    ``begins_with``, an offset as JSON.
    """

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> str:
        return SCHEMA

    def streamReader(self, schema: Any) -> InputReader:
        return InputReader(
            self.options["target"],
            int(self.options["rows"]),
            int(self.options["buckets"]),
            keep_open=self.options.get("keep_open") == "true",
            begins_with=json.loads(self.options.get("begins_with", "null")),
        )


class InputReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Cuts batches in the driver's process, and reads a part of a partition in each task.

    Args:
        rows: most rows of a batch.
        buckets: number of buckets of each step, which the offset keeps.
        keep_open: leave event time at the last data when bounded sources end.
        begins_with: the first offset; None: the beginning of all partitions.
    """

    def __init__(
        self,
        target: str,
        rows: int,
        buckets: int,
        *,
        keep_open: bool = False,
        begins_with: dict[str, Any] | None = None,
    ) -> None:
        self._target = target
        self._rows = rows
        self._keep_open = keep_open
        self._buckets = buckets
        begins_with = begins_with or {"mark": MIN_TIME, "partitions": {}}
        self._begins_with = {**begins_with, "buckets": buckets}
        self._ahead: ReadAhead | None = None

    # -- in the driver's process ----------------------------------------------------------

    def initialOffset(self) -> dict[str, Any]:
        return self._begins_with

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self._rows)

    def prepareForTriggerAvailableNow(self) -> None:
        self._made_ahead().ends = True

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        most = self._rows if isinstance(limit, ReadAllAvailable) else limit.max_rows  # type: ignore[attr-defined]
        return self._made_ahead().cut(start, most)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        if start == end:
            return []
        if end.get("buckets") != self._buckets:
            raise InvariantBroken(
                f"the operators look for keys in {self._buckets} buckets of each step, and the "
                f"checkpoint has {end.get('buckets')}"
            )
        mark = end["mark"]
        found: list[InputPartition] = [ClockPart(mark)]
        for name, place in end["partitions"].items():
            before = start["partitions"].get(name) or place["first"]
            if before["next"] < place["next"]:
                injector, _, identity = name.partition(" ")
                position, until = before["position"], place["next"]
                found.append(SourcePart(injector, identity, position, until, mark, end["buckets"]))
        return found

    def stop(self) -> None:
        ahead, self._ahead = self._ahead, None
        if ahead is not None:
            ahead.close()

    def _made_ahead(self) -> ReadAhead:
        if self._ahead is None:
            self._ahead = ReadAhead(planned(self._target), keep_open=self._keep_open)
        return self._ahead

    # -- in a task ------------------------------------------------------------------------

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        plan = planned(self._target)
        if isinstance(partition, ClockPart):
            yield self.clock(plan, partition.mark)
            return
        assert isinstance(partition, SourcePart), partition
        with asyncio.Runner() as runner:
            opened = self.opened(plan, partition)
            runner.run(opened.open())
            try:
                while not opened.ended:
                    yield from runner.run(opened.read())
            finally:
                opened.close()

    def clock(self, plan: SparkPlan, mark: int) -> pa.RecordBatch:
        """The row with the promise."""
        return parcel_batch([_clock(mark)])

    def opened(self, plan: SparkPlan, part: SourcePart) -> OpenPart:
        """A part of a partition, to be read."""
        return OpenPart(plan, part)


def _clock(mark: int) -> Parcel:
    packing = Packing(1)
    packing.add_result(0, StreamRow(b"", CLOCK, b"", mark, False, 0))
    (parcel,) = packing.take(mark_of(mark))
    return parcel


def parcel_batch(parcels: Sequence[Parcel]) -> pa.RecordBatch:
    columns = zip(*parcels, strict=True)
    arrays = [pa.array(column, type_) for column, type_ in zip(columns, TYPES.types, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=TYPES)


class ReadAhead:
    """Reads partitions ahead, in the driver's process, to cut batches."""

    def __init__(self, plan: SparkPlan, *, keep_open: bool) -> None:
        self.ends = False
        self._runner = asyncio.Runner()
        self._injectors = [
            InjectorAhead(plan.steps[node.name], keep_open=keep_open)
            for node in plan.graph.nodes
            if node.kind == "injector"
        ]

    def cut(self, start: dict[str, Any], limit: int) -> dict[str, Any]:
        return self._runner.run(self._cut(start, limit))

    def close(self) -> None:
        for injector in self._injectors:
            injector.close()
        self._runner.close()

    async def _cut(self, start: dict[str, Any], limit: int) -> dict[str, Any]:
        places: dict[str, Place] = dict(start["partitions"])
        for injector in self._injectors:
            await injector.find(places, start["mark"])
        hungry = [
            ahead
            for injector in self._injectors
            for ahead in injector.partitions
            if not (places[ahead.name]["ended"] or (self.ends and ahead.caught_up))
        ]
        patience = LAST_LOOK_SECONDS if self.ends else LOOK_SECONDS
        share = max(1, limit // max(1, len(hungry)))
        while hungry and share:  # what some do not need is shared by those that have more
            counts = await asyncio.gather(*(a.read(places, share, patience) for a in hungry))
            limit -= sum(counts)
            hungry = [a for a, count in zip(hungry, counts, strict=True) if count >= share]
            share = limit // max(1, len(hungry))
        promised = min(injector.promised(places) for injector in self._injectors)
        mark = max(start["mark"], promised)
        found = {**start, "mark": mark, "partitions": places}
        return start if found == start else found


class InjectorAhead:
    def __init__(self, step: Step, *, keep_open: bool) -> None:
        injection = step.node.injection
        assert injection is not None
        self._step = step
        self._injection = injection
        self._keep_open = keep_open
        self.partitions: list[PartitionAhead] = []
        self._known: set[str] = set()
        self._found: dict[str, dict[str, Any] | None] = {}
        self._discovery: Discovery | None = None
        self._looked = float("-inf")

    async def find(self, places: dict[str, Place], mark: int) -> None:
        """Find partitions; a new one begins at the promised watermark."""
        growing = self._injection.growing
        for name in places:
            injector, _, identity = name.partition(" ")
            if injector == self._step.name and identity not in self._known and growing is not None:
                self._add(growing.partition(identity))
        if growing is None:
            for partition in self._injection.source.partitions():
                if partition.identity not in self._known:
                    self._add(partition)
                self._begin(places, partition.identity, None, MIN_TIME)
            return
        if self._discovery is None:
            self._discovery = growing.discover(None)
        if time.monotonic() >= self._looked + DISCOVER_SECONDS:
            self._looked = time.monotonic()
            for identity in await self._discovery.look():
                if identity not in self._known:
                    self._add(growing.partition(identity))
                    self._found[identity] = self._discovery.first_position(identity)
        for identity, first in self._found.items():
            self._begin(places, identity, first, mark)

    def _begin(
        self, places: dict[str, Place], identity: str, position: dict[str, Any] | None, mark: int
    ) -> None:
        name = f"{self._step.name} {identity}"
        if name not in places:
            lateness = _micros(self._injection.lateness)
            seen = MIN_TIME if mark == MIN_TIME else clamp_time(mark + lateness)
            first = {"position": position, "next": 0}
            places[name] = {**first, "seen": seen, "ended": False, "first": first}

    def _add(self, partition: Partition) -> None:
        self._known.add(partition.identity)
        self.partitions.append(PartitionAhead(self._step, partition, keep_open=self._keep_open))

    def promised(self, places: Mapping[str, Place]) -> int:
        """The low watermark of the injector's stream: the least of its partitions that are not
        idle."""
        if not self.partitions:
            return MIN_TIME
        lateness = _micros(self._injection.lateness)
        idle_after = self._injection.idle_after
        found = []
        for ahead in self.partitions:
            place = places[ahead.name]
            if place["ended"]:
                continue
            if idle_after is not None and ahead.idle_seconds >= idle_after.total_seconds():
                continue
            seen = place["seen"]
            found.append(MIN_TIME if seen == MIN_TIME else clamp_time(seen - lateness))
        shown = getattr(self._discovery, "seen", None)
        if self._injection.shown_by_reader and shown is not None:
            found.append(shown)  # of partitions that are not found yet
        if found:
            return min(found)
        return MAX_TIME if all(places[a.name]["ended"] for a in self.partitions) else MIN_TIME

    def close(self) -> None:
        for ahead in self.partitions:
            ahead.close()
        if self._discovery is not None:
            self._discovery.close()


class PartitionAhead:
    def __init__(self, step: Step, partition: Partition, *, keep_open: bool) -> None:
        assert step.node.injection is not None
        self._keep_open = keep_open
        self.name = f"{step.name} {partition.identity}"
        self.caught_up = False
        self._node = step.node
        self._injection = step.node.injection
        self._partition = partition
        self._rules = RowRules(self._injection, step.node.writes[0].name, partition)
        self._reader: Reader | None = None
        self._next = -1
        self._owing_at = time.monotonic()

    @property
    def idle_seconds(self) -> float:
        """Time since its last row, or since rows may have been held up, while none waits."""
        return time.monotonic() - self._owing_at if self.caught_up else 0.0

    async def read(self, places: dict[str, Place], limit: int, patience: float) -> int:
        """Read at most `limit` rows, and replace the partition's place, which has not ended; gives
        their number.

        `patience` is the longest wait for a row, in seconds. `InputError` if a row cannot be read,
        and ``inject`` has ``on_error="fail"``.
        """
        place = places[self.name]
        reader = await self._opened(place)
        seen, end = place["seen"], place["next"]
        left = limit
        while left > 0:
            rows = await reader.read(min(left, READ_ROWS))
            if not rows:
                if reader.ended or left < limit or not await _has_news(reader, patience):
                    break
                patience = 0.0
                continue
            left -= len(rows)
            end = rows[-1].offset + 1
            for row in rows:
                seen = max(seen, self._shown(row))
        if self._injection.shown_by_reader:
            seen = max(seen, getattr(reader, "seen", None) or MIN_TIME)
        self._next = end
        ended = left > 0 and reader.ended and not self._keep_open
        self.caught_up = left == limit
        if not (self.caught_up and reader.caught_up):
            self._owing_at = time.monotonic()
        if (end, seen, ended) != (place["next"], place["seen"], place["ended"]):
            position = reader.position(end) if end > place["next"] else place["position"]
            places[self.name] = {
                "position": position, "next": end, "seen": seen, "ended": ended,
                "first": place["first"],
            }  # fmt: skip
        return limit - left

    async def _opened(self, place: Place) -> Reader:
        """The reader at a place; it is opened again if a batch was not cut at its position."""
        if self._reader is not None and self._next == place["next"]:
            return self._reader
        self.close()
        stream = self._node.writes[0]
        self._reader = await self._partition.open(stream.value_type, place["position"])
        self._next = place["next"]
        return self._reader

    def _shown(self, row: Row) -> int:
        """The event time that the source has reached, as a row shows it; a bad row shows
        nothing."""
        if row.watermark is not None:
            return row.watermark + _micros(self._injection.lateness)
        error = row.error
        if error is None:
            try:
                return self._rules.shown_by(row.value, self._rules.time_of(row))
            except Exception as wrong:
                error = self._rules.blame(row, wrong)
        self._rules.check_may_go_on(row, error)
        return MIN_TIME

    def close(self) -> None:
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.close()


async def _has_news(reader: Reader, seconds: float) -> bool:
    """Wait for rows; whether the source says that there may be some."""
    try:
        async with asyncio.timeout(seconds):
            await reader.wait()
    except TimeoutError:
        return False
    return True


class OpenPart:
    def __init__(self, plan: SparkPlan, part: SourcePart) -> None:
        step = plan.steps[part.injector]
        node = step.node
        assert node.injection is not None
        self._plan = plan
        self._step = step
        self._part = part
        self._stream = node.writes[0]
        self._route = step.routes[self._stream.name]
        self._partition = _partition(node, part.identity)
        self._rules = RowRules(node.injection, self._stream.name, self._partition)
        self._next = -1
        self._packing = Packing(part.buckets)
        self._mark = mark_of(part.mark)
        self._reader: Reader

    async def open(self) -> None:
        self._reader = await self._partition.open(self._stream.value_type, self._part.position)

    @property
    def ended(self) -> bool:
        return self._next >= self._part.until

    async def read(self) -> list[pa.RecordBatch]:
        """Pack the next rows. `InputError` if rows are missing that the driver has read."""
        left = PACKED_ROWS
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not self.ended and left > 0:
            rows = await self._reader.read(READ_ROWS)
            if not rows:
                await self._wait(deadline)
                continue
            for row in rows:
                if row.offset < self._part.until and row.watermark is None:
                    self._pack(row)
            self._next = rows[-1].offset + 1
            left -= len(rows)
        return self._taken()

    def _taken(self) -> list[pa.RecordBatch]:
        """The rows that were packed."""
        parcels = list(self._packing.take(self._mark))
        return [parcel_batch(parcels)] if parcels else []

    def close(self) -> None:
        self._reader.close()

    async def _wait(self, deadline: float) -> None:
        left = deadline - time.monotonic()
        if left <= 0 or self._reader.ended:
            raise InputError(
                f"{self._partition.identity}: its rows up to number {self._part.until - 1} were "
                "there when the batch was cut, and are not there now (after number "
                f"{self._next - 1}). Restore them, and start again"
            )
        try:
            async with asyncio.timeout(left):
                await self._reader.wait()
        except TimeoutError:
            pass

    def _pack(self, row: Row) -> None:
        error = row.error
        if error is None:
            try:
                made = list(self._addressed(row))
            except Exception as wrong:
                error = self._rules.blame(row, wrong)
            else:
                for receiver, slot, each in made:
                    self._packing.add(receiver, slot, each)
                return
        self._give_up(row, error)

    def _addressed(self, row: Row) -> Iterator[tuple[str, int, StreamRow]]:
        """The row for each step that reads it, with the name of the step and the key's slot."""
        micros = self._rules.time_of(row)
        encoded = self._stream.codec.encode(row.value)
        self._stream.codec.check(encoded, row.value)
        stream = self._stream.name
        for reader in self._route.readers:
            _, key_text, slot = reader.address(row.value, stream, row.offset)
            made = StreamRow(key_text, stream, encoded, micros, False, row.offset)
            yield reader.step.name, slot, made

    def _give_up(self, row: Row, error: InputError) -> None:
        self._rules.check_may_go_on(row, error)
        name = self._step.name
        letter = self._rules.letter(
            row, error, computation=self._step.id, record_id=None, stamp=time.time_ns() // 1000
        )
        for kind, value in (
            (LETTER, letter_row(name, letter)),
            (COUNTER, counter_row(name, BAD_ROWS, 1)),
        ):
            self._packing.add_result(0, StreamRow(b"", kind, value, 0, False, row.offset))


def _partition(node: Node, identity: str) -> Partition:
    assert node.injection is not None
    if node.injection.growing is not None:
        return node.injection.growing.partition(identity)
    return next(p for p in node.injection.source.partitions() if p.identity == identity)


def _micros(duration: Any) -> int:
    return int(duration.total_seconds() * 1e6)
