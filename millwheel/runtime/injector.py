"""Injectors: one partition of a source, read, timestamped and sent.

A replayable source is a sender whose log is the source itself: it writes no productions.
What is stored is the first row not acknowledged, and with it where to read on; rows past
it are read again after a crash, with the same ids (design, injectors).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from millwheel.codec import LETTER_CHARACTERS, named_id, reason, shown, storable
from millwheel.errors import InputError, MillwheelError
from millwheel.model import (
    MAX_TIME,
    MIN_TIME,
    Delivery,
    clamp_time,
    event_micros,
    record_id,
    to_micros,
)
from millwheel.runtime.interval import Interval
from millwheel.runtime.load import Measured
from millwheel.runtime.pacing import Flow, Pace
from millwheel.runtime.sent import SentLog
from millwheel.runtime.step import NOBODY, Destination
from millwheel.runtime.step import Reader as StreamReader
from millwheel.runtime.tasks import end
from millwheel.sources import Partition, Reader, Row
from millwheel.store.port import DeadLetter
from millwheel.timers.percentile import Disorder

if TYPE_CHECKING:
    from millwheel.runtime.engine import Engine

ASSUMED_ROW_BYTES = 256
"""What a row of a source counts for in the credits, if its value is not encoded here: its reader is
on this worker, and cannot change it."""


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
        self._word_of = node.injection.watermark
        idle_after = node.injection.idle_after
        self._idle_after = None if idle_after is None else idle_after.total_seconds()
        self._last_row_at = engine.clock.monotonic()
        target = node.injection.latency_target
        credits_ = engine.settings.max_unacked_records
        self.pace = Pace(
            min(node.injection.max_pending or credits_, credits_),
            None if target is None else target.total_seconds(),
        )
        """How many rows may be on their way."""
        self._lateness = int(node.injection.lateness.total_seconds() * 1e6)
        self._reader: Reader | None = None
        self._seen = MIN_TIME
        self._disorder = Disorder()
        self._marks: deque[tuple[int, int, int]] = deque()
        """How far in time the source was, by row: (rows before it, newest seen time, when the
        last of them was read)."""
        self._task: asyncio.Task[None] | None = None
        self.credit = asyncio.Event()
        """It may be able to read on: some of what it sent was acknowledged, or it was resumed."""
        self._awaited_end = 0
        """Rows before this number may be read whatever the cap is, and the credits."""
        self._sent_before = 0
        """Rows before this number may have been sent by an owner before this claim."""
        self._sent_since: int | None = None
        """The first instant at which such an owner can have sent one that is not stored as
        acknowledged; None: nobody has sent any."""
        self.ended = False
        self.rows = 0

    def start(self, *, reading: bool = True) -> None:
        """Open the partition where the stored position says, and read on, unless told not to.

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
        simple = len(readers) == 1 and self._engine.inject_copies == 1
        self._only_reader = readers[0] if simple and not readers[0].step.node.named else None
        # Rows past the stored position hold the watermark once they are read again; until
        # then nothing beyond what was promised may be.
        self._interval.exact_watermark = self._interval.durable
        self._seen = stored["seen"] if stored else MIN_TIME
        self.pace.start_over()
        self._awaited_end = 0
        self._disorder = Disorder()  # what it has shown before is ahead of what is read again
        self._marks.clear()
        read_at = stored.get("since") if stored else None
        self._marks.append((self.log.first, self._seen, read_at or self._engine.now()))
        self._sent_before = self._engine.buckets.source_end(self.log.id)
        self._sent_since = self._interval.stored_since
        self.ended = False
        if reading:
            self._read_on()

    def _read_on(self) -> None:
        self._task = self._engine.spawn(self._measured_run(), f"injector {self._interval.name}")

    def read_on(self) -> None:
        """Read what was added to the source since its end was met.

        One that was stopped (its lane starts over) opens the source anew and finds it there.
        """
        if self.ended and self._task is not None:
            self.ended = False
            self._read_on()

    @property
    def paused(self) -> bool:
        """Whether an operator wants it to rest."""
        return self._interval.step.id in self._engine.paused

    def resume(self) -> None:
        """Read where it stopped; what came to the source meanwhile is not old news."""
        self._last_row_at = self._engine.clock.monotonic()
        self.credit.set()

    def acknowledged(self) -> None:
        """Some of what it sent is durable at its readers."""
        self.pace.acknowledged(self.log.first, self._engine.clock.monotonic())
        self.credit.set()

    def tend(self) -> None:
        """Read on where nothing comes back before that; called every now and then."""
        engine = self._engine
        if self.ended or self.paused:
            return
        room = self.pace.room(self.log.unacked, engine.settings.chunk_records)
        if not room and self.pace.loosen(engine.clock.monotonic()):
            self.credit.set()

    def read_up_to(self, offset: int) -> None:
        """Read on up to a row that was read before the restart, under a higher cap perhaps: nothing
        is acknowledged before it is here."""
        if offset >= max(self._awaited_end, self.log.next_seq):
            self._awaited_end = offset + 1
            self.credit.set()

    async def stop(self) -> None:
        """Read no more."""
        task, self._task = self._task, None
        if task is not None:
            await end([task])

    def close(self) -> None:
        """Close the partition; what is committed until then still stores its position."""
        if self._reader is not None:
            self._reader.close()
            self._reader = None

    @property
    def log(self) -> SentLog:
        """The log that the source is."""
        return self._interval.log

    @property
    def interval(self) -> Interval:
        """The partition as an interval."""
        return self._interval

    def flow(self) -> Flow:
        """How much is on its way, and for how long."""
        pace = self.pace
        return Flow(self.log.unacked, pace.cap, pace.latency_seconds, pace.target_seconds)

    def progress(self) -> float:
        """The share of the partition read, 0 to 1."""
        return 1.0 if self.ended else (self._reader.progress() if self._reader else 0.0)

    def position(self) -> dict[str, Any]:
        """What is stored of it: where to read on, and which row holds the watermark."""
        first = self.log.first
        held = (
            first < self.log.next_seq and self._interval.promised < self._interval.exact_watermark
        )
        reader = (
            self._reader.position(first)
            if self._reader is not None
            else (self._interval.stored_position or {}).get("reader")
        )
        marks = self._marks
        while len(marks) > 1 and marks[1][0] <= first:
            marks.popleft()
        return {
            "reader": reader,
            "seen": marks[0][1] if marks else MIN_TIME,
            "held_by": first if held else None,
            "since": self._held_since(held=held),
            "sent_since": self._first_sent(),
            "ended": self.ended,
        }

    def _first_sent(self) -> int:
        """The first instant at which a row past the stored position can have been sent.

        Buckets of user-supplied ids that end later stay: such a row comes again after a crash
        (`named_acknowledged.sql`). What former owners sent counts from their time until it is
        acknowledged again, or is known not to exist: a paused injector reads nothing, and so
        cannot tell.
        """
        first = self.log.first
        if self._sent_since is not None and first < self._sent_before:
            return self._sent_since
        for rows_before, _, read_at in self._marks:
            if rows_before > first:
                return read_at
        return self._engine.now()

    def _caught_up(self) -> None:
        """The source has nothing more: no former owner can have sent a row that was not read here."""
        self._sent_before = min(self._sent_before, self.log.next_seq)

    def _held_since(self, *, held: bool) -> int | None:
        """When the row that holds the watermark was read; without one, when the newest was."""
        marks = self._marks
        if not marks:
            return (self._interval.stored_position or {}).get("since")
        return marks[1 if held and len(marks) > 1 else -1][2]

    async def _measured_run(self) -> None:
        clock = self._engine.process.run_seconds
        await Measured(self._run(), self._interval.workload, clock)

    async def _run(self) -> None:
        engine = self._engine
        assert self._reader is not None
        limit = engine.settings.chunk_records
        while True:
            while not (room := self._room(limit)):
                self.credit.clear()
                await self.credit.wait()
            rows, read_at = self._reader.read(room), engine.clock.monotonic()
            if not rows:
                self._caught_up()
                break
            first, last = rows[0].offset, rows[-1].offset
            await engine.patiently(
                lambda: engine.buckets.ensure_source(self.log.id, first, last)  # noqa: B023
            )
            self._last_row_at = engine.clock.monotonic()
            self._send(rows)
            self.pace.read(last + 1, self.log.unacked, read_at)
            self.rows += len(rows)
            self._interval.workload.records += len(rows)
            self._marks.append((rows[-1].offset + 1, self._seen, engine.now()))
            engine.wake_all()
            self._advance()
            await asyncio.sleep(0)
        self.ended = True
        if engine.close_at_end:
            self._interval.hear(MAX_TIME)
        engine.touch(self._interval, urgent=self._interval.has_news())
        engine.check_finished()

    def _room(self, limit: int) -> int:
        """How many rows may be read now; 0: none."""
        if self.paused:
            return 0
        if (awaited := self._awaited_end - self.log.next_seq) > 0:
            return min(limit, awaited)
        if not self._interval.may_send():
            return 0
        return self.pace.room(self.log.unacked, limit)

    def _advance(self) -> None:
        """Move the source's own watermark: the newest seen time less the lateness."""
        if self._seen == MIN_TIME:
            return
        interval = self._interval
        interval.hear(clamp_time(self._seen - self._lateness))
        for percentile in interval.percentiles:
            interval.hear_percentile(percentile, self._disorder.watermark(percentile))
        if interval.has_news():
            self._engine.touch(interval, urgent=True)

    @property
    def idle(self) -> bool:
        """Whether it has waited for rows so long that it counts for nothing in the watermark.

        One that is paused has not waited: its rows may be there, and must not come too late.
        """
        return (
            self._idle_after is not None
            and self.ended
            and not self.paused
            and self._engine.clock.monotonic() - self._last_row_at >= self._idle_after
        )

    def go_along(self, watermark: int, percentiles: Mapping[float, int | None]) -> None:
        """Promise, while idle, what all that are not have stored."""
        interval = self._interval
        if not interval.log.drained:
            return
        interval.hear(watermark)
        for percentile in interval.percentiles:
            if (early := percentiles[percentile]) is not None:
                interval.hear_percentile(percentile, early)
        if interval.has_news():
            self._engine.touch(interval, urgent=True)

    def _send(self, rows: list[Row]) -> None:
        """Rows to every reader of the stream, as one batch; bad ones to the dead letters.

        What counts for the watermark is what the source had promised when a row was read: a
        row older than that is late by declaration, and must not hold it back in a queue.
        """
        log, number = self.log, self.log.id
        route, stream = self._route, self._stream.name
        reader = self._only_reader
        seen, lateness, promised = self._seen, self._lateness, self._interval.promised
        timestamp, seen_of, word_of = self._injection.timestamp, self._seen_of, self._word_of
        encode, mutable = route.codec.encode, route.codec.mutable
        receiver = reader.step.id if reader is not None else NOBODY
        least = MAX_TIME
        size = 0
        known = rows[0].offset < log.known_end
        done: list[int] = []
        disorder = self._disorder if self._interval.percentiles else None
        holds: list[int] = []
        """Of each row, if percentile low watermarks are kept."""
        for row in rows:
            offset, value = row.offset, row.value
            if row.error is not None:
                least = min(least, promised)
                self._give_up(row, row.error)
                continue
            if row.watermark is not None:
                seen = max(seen, row.watermark + lateness)
                self._marks.append((offset + 1, seen, self._engine.now()))
                done.append(offset)
                continue
            try:
                micros = event_micros(timestamp(value))
                if word_of is not None:
                    word = word_of(value)
                    moment = MIN_TIME if word is None else to_micros(word)
                else:
                    moment = micros if seen_of is None else event_micros(seen_of(value))
                if known and log.is_acknowledged(offset):
                    seen = max(seen, moment)
                    continue
                hold = micros if micros > promised else promised
                if hold < seen - lateness:
                    hold = seen - lateness
                if disorder is not None:
                    disorder.see(micros)
                    holds.append(hold)
                if reader is None:
                    size += self._send_to_all(row, micros, hold)
                else:
                    # `_address`, written out: one reader and no ids of its own is the rule
                    key, key_text, slot = reader.address(value, stream, offset)
                    destination = reader.step.interval_of(slot)
                    encoded = b""
                    if mutable or not destination.is_here:
                        encoded = encode(value)
                    bytes_ = len(encoded) or ASSUMED_ROW_BYTES
                    destination.intake.append(
                        Delivery(
                            key, value, micros, stream, key_text, slot, receiver, hold,
                            bytes_, encoded, number, offset, offset,
                            record_id(number, offset), 0, False, number,
                        )
                    )  # fmt: skip
                    size += bytes_
            except Exception as error:
                least = min(least, promised)
                self._give_up(row, self._blame(row, error))
                continue
            if hold < least:
                least = hold
            if moment > seen:
                seen = moment
        self._seen = seen
        log.sent(rows[-1].offset + 1, max(least, promised), size, holds=holds)
        if done or known:
            log.acknowledge(done)
            self._engine.touch(self._interval, urgent=False)

    def _address(
        self, reader: StreamReader, offset: int, value: Any, micros: int, hold: int
    ) -> tuple[Destination, Delivery[Any]]:
        """The row as one reader gets it, and where; its key is the reader's choice."""
        route, log = self._route, self.log.id
        key, key_text, slot = reader.address(value, route.stream, offset)
        named = reader.step.node.named
        id_ = record_id(log, offset)
        if named:
            id_ = named_id(reader.step.node.writes[0].name, key_text.decode())
        destination = reader.step.interval_of(slot)
        encoded = b""
        if route.codec.mutable or not destination.is_here:
            encoded = route.codec.encode(value)
        return destination, Delivery(
            key, value, micros, route.stream, key_text, slot, reader.step.id, hold,
            len(encoded) or ASSUMED_ROW_BYTES, encoded, log, offset, offset, id_, 0, named,
            log,
        )  # fmt: skip

    def _send_to_all(self, row: Row, micros: int, hold: int) -> int:
        """The row to each reader, in as many copies as asked for; each has its own value.

        Returns:
            What it counts for in the credits.
        """
        codec = self._route.codec
        value = row.value
        found: list[tuple[Destination, Delivery[Any]]] = []
        for reader in self._route.readers:
            if found and codec.mutable:
                value = codec.check(codec.encode(row.value), row.value)
            found.append(self._address(reader, row.offset, value, micros, hold))
        for destination, delivery in found * self._engine.inject_copies:
            destination.intake.append(delivery)
        if len(self._route.readers) > 1:
            everybody = sum(reader.bit for reader in self._route.readers)
            self.log.wait_for_several(row.offset, everybody)
        return max((delivery.size for _, delivery in found), default=0)

    def _blame(self, row: Row, error: Exception) -> InputError:
        """What is wrong with a row, and where it stands."""
        place = f"{self._partition.identity}, line {row.line}"
        if isinstance(error, MillwheelError):
            return InputError(f"{place}: {error}")
        return InputError(
            f"{place}: the timestamp of stream {self._stream.name!r} cannot be taken: "
            f"{reason(error)}; value {shown(row.value, 300)}"
        )

    def _give_up(self, row: Row, error: InputError) -> None:
        """A row that cannot be read: stop, or keep it as a dead letter and go on."""
        if self.log.is_acknowledged(row.offset):
            return
        if self._injection.on_error == "fail":
            raise InputError(
                f"{error}. Correct the file and start again, or give inject(...) "
                'on_error="dead_letter" to set such rows aside'
            ) from error
        interval = self._interval
        self._engine.give_up_row(
            interval,
            row.offset,
            DeadLetter(
                slot=0,
                computation=interval.step.id,
                stream=self._stream.name,
                record_id=record_id(self.log.id, row.offset),
                key=None,
                value=storable(row.text or shown(row.value, LETTER_CHARACTERS)),
                ts=None,
                place=f"{self._partition.identity}, line {row.line}",
                error=storable(str(error)),
                traceback="",
                attempts=1,
                stamp=self._engine.now(),
            ),
        )
