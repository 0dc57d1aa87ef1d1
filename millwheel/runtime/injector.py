"""Injectors: one partition of a source, read, timestamped and sent.

A replayable source is a sender whose log is the source itself: it writes no productions.
What is stored is the first row not acknowledged, and with it where to read on; rows past
it are read again after a crash, with the same ids (design, injectors).
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Any

from millwheel.codec import encode_key, named_id
from millwheel.errors import InputError, MillwheelError
from millwheel.model import MAX_TIME, MIN_TIME, Delivery, clamp_time, record_id, to_micros
from millwheel.runtime.interval import Interval
from millwheel.runtime.sent import SentLog
from millwheel.sources import Partition, Reader, Row
from millwheel.store.port import DeadLetter

if TYPE_CHECKING:
    from millwheel.runtime.engine import Engine

ASSUMED_ROW_BYTES = 256
"""What a row of a source counts for in the credits: its value is never encoded here."""


class Injector:
    """Reads one partition into the readers of its stream."""

    def __init__(self, engine: Engine, interval: Interval, partition: Partition) -> None:
        self._engine = engine
        self._interval = interval
        self._partition = partition
        node = interval.step.node
        assert node.injection is not None
        self._injection = node.injection
        self._stream = node.writes[0]
        self._seen_of = node.injection.seen
        self._lateness = int(node.injection.lateness.total_seconds() * 1e6)
        self._reader: Reader | None = None
        self._seen = MIN_TIME
        self._marks: deque[tuple[int, int]] = deque()
        """How far in time the source was, by row: (rows before it, newest seen time)."""
        self._task: asyncio.Task[None] | None = None
        self.credit = asyncio.Event()
        self.ended = False
        self.rows = 0

    def start(self) -> None:
        """Open the partition where the stored position says, and read on.

        Raises:
            InputError: the source is missing, or what was read of it has changed.
        """
        self.close()
        stored = self._interval.stored_position
        self._reader = self._partition.open(
            self._stream.value_type, stored["reader"] if stored else None
        )
        self._route = self._interval.step.routes[self._stream.name]
        readers = self._route.readers
        self._everybody = sum(reader.bit for reader in readers) if len(readers) > 1 else 0
        """The mask of all readers, where there are several to wait for."""
        # Rows past the stored position hold the watermark once they are read again; until
        # then nothing beyond what was promised may be.
        self._interval.input_watermark = self._interval.durable
        self._seen = stored["seen"] if stored else MIN_TIME
        self._marks.clear()
        self._marks.append((self.log.first, self._seen))
        self.ended = False
        self._read_on()

    def _read_on(self) -> None:
        self._task = self._engine.spawn(self._run(), f"injector {self._interval.name}")

    def read_on(self) -> None:
        """Read what was added to the source since its end was met."""
        if self.ended:
            self.ended = False
            self._read_on()

    async def stop(self) -> None:
        """Read no more."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def close(self) -> None:
        """Close the partition; what is committed until then still stores its position."""
        if self._reader is not None:
            self._reader.close()
            self._reader = None

    @property
    def log(self) -> SentLog:
        """The log that the source is."""
        return self._interval.log

    def progress(self) -> float:
        """The share of the partition read, 0 to 1."""
        return 1.0 if self.ended else (self._reader.progress() if self._reader else 0.0)

    def position(self) -> dict[str, Any]:
        """What is stored of it: where to read on, and which row holds the watermark."""
        first = self.log.first
        held = self.log.unacked > 0 and self._interval.promised < self._interval.input_watermark
        reader = (
            self._reader.position(first)
            if self._reader is not None
            else (self._interval.stored_position or {}).get("reader")
        )
        marks = self._marks
        while len(marks) > 1 and marks[1][0] <= first:
            marks.popleft()
        seen = marks[0][1] if marks else MIN_TIME
        return {
            "reader": reader,
            "seen": seen,
            "held_by": first if held else None,
            "ended": self.ended,
        }

    async def _run(self) -> None:
        engine = self._engine
        assert self._reader is not None
        limit = engine.settings.chunk_records
        while True:
            while not self._interval.may_send():
                self.credit.clear()
                await self.credit.wait()
            rows = self._reader.read(limit)
            if not rows:
                break
            first, last = rows[0].offset, rows[-1].offset
            await engine.patiently(
                lambda: engine.buckets.ensure_source(self.log.id, first, last)  # noqa: B023
            )
            for row in rows:
                self._send(row)
            self.rows += len(rows)
            self._marks.append((rows[-1].offset + 1, self._seen))
            engine.wake_all()
            self._advance()
            await asyncio.sleep(0)
        self.ended = True
        if engine.close_at_end:
            self._interval.input_watermark = MAX_TIME
        engine.touch(self._interval, urgent=True)
        engine.check_finished()

    def _advance(self) -> None:
        """Move the source's own watermark: the newest seen time less the lateness."""
        if self._seen == MIN_TIME:
            return
        watermark = clamp_time(self._seen - self._lateness)
        interval = self._interval
        if watermark > interval.input_watermark:
            interval.input_watermark = watermark
            if interval.output_watermark() > interval.durable:
                self._engine.touch(interval, urgent=True)

    def _send(self, row: Row) -> None:
        """One row to every reader of the stream, or to the dead letters."""
        log = self.log
        offset = row.offset
        if row.error is not None:
            if not log.is_acknowledged(offset):
                self._give_up(row, row.error)
            return
        if row.watermark is not None:
            self._take_watermark(offset, row.watermark)
            return
        try:
            micros = to_micros(self._injection.timestamp(row.value))
            seen = micros if self._seen_of is None else to_micros(self._seen_of(row.value))
            deliveries = self._address(row, micros)
        except MillwheelError as error:
            self._give_up(row, InputError(f"{self._partition.identity}, line {row.line}: {error}"))
            return
        except Exception as error:
            self._give_up(
                row,
                InputError(
                    f"{self._partition.identity}, line {row.line}: the timestamp of stream "
                    f"{self._stream.name!r} cannot be taken: {error}; value {row.value!r:.300}"
                ),
            )
            return
        if log.is_acknowledged(offset):
            self._seen = max(self._seen, seen)
            return
        interval = self._interval
        # What the source had promised when the row was read: a row older than that is late
        # by declaration, and must not hold the watermark back while it waits in a queue.
        hold = max(micros, interval.promised, self._seen - self._lateness)
        if seen > self._seen:
            self._seen = seen
        interval.holds.add(hold)
        steps = self._engine.steps
        for delivery in deliveries:
            delivery.hold = hold
            steps[delivery.receiver].interval_of(delivery.slot).intake.append(delivery)
        if self._everybody:
            log.sent_to_several(offset, hold, ASSUMED_ROW_BYTES, self._everybody)
        else:
            log.sent(offset, hold, ASSUMED_ROW_BYTES)

    def _take_watermark(self, offset: int, watermark: int) -> None:
        """A row that carries no record but the source's own word on time."""
        self._seen = max(self._seen, watermark + self._lateness)
        self._marks.append((offset + 1, self._seen))
        if self.log.is_acknowledged(offset):
            return
        hold = max(self._interval.promised, MIN_TIME)
        self._interval.holds.add(hold)
        self.log.sent(offset, hold, 0)
        self.log.acknowledge(offset, 0)
        self._engine.touch(self._interval, urgent=False)

    def _address(self, row: Row, micros: int) -> list[Delivery[Any]]:
        """The row as each reader gets it; its key is the reader's choice."""
        deliveries: list[Delivery[Any]] = []
        route = self._route
        value, offset, log = row.value, row.offset, self.log.id
        id_ = record_id(log, offset)
        for reader in route.readers:
            if deliveries:
                value = route.codec.check(route.codec.encode(row.value), row.value)
            key = reader.key_of(value, route.stream)
            key_text, slot = encode_key(key)
            named = reader.step.node.named
            if named:
                id_ = named_id(reader.step.node.writes[0].name, key_text.decode())
            delivery: Delivery[Any] = Delivery(
                key, value, micros, route.stream, key_text, slot, reader.step.id, 0,
                ASSUMED_ROW_BYTES, b"", log, offset, offset, id_, 0, named,
            )  # fmt: skip
            deliveries.append(delivery)
        if self._engine.inject_copies > 1:
            deliveries *= self._engine.inject_copies
        return deliveries

    def _give_up(self, row: Row, error: InputError) -> None:
        """A row that cannot be read: stop, or keep it as a dead letter and go on."""
        if self._injection.on_error == "fail":
            raise InputError(
                f"{error}. Correct the file and start again, or give inject(...) "
                'on_error="dead_letter" to set such rows aside'
            ) from error
        interval = self._interval
        hold = max(interval.promised, MIN_TIME)
        interval.holds.add(hold)
        self.log.sent(row.offset, hold, 0)
        text = row.text or repr(row.value)
        self._engine.give_up_row(
            interval,
            row.offset,
            DeadLetter(
                slot=0,
                computation=interval.step.id,
                stream=self._stream.name,
                record_id=record_id(self.log.id, row.offset),
                key=None,
                value=text.replace("\x00", "\\x00"),
                ts=None,
                place=f"{self._partition.identity}, line {row.line}",
                error=str(error).replace("\x00", "\\x00"),
                traceback="",
                attempts=1,
                stamp=self._engine.clock.now(),
            ),
        )
