"""Injectors: read one partition of a source, and timestamp and send its rows.

A replayable source is a sender whose log is the source itself: it stores no productions.
The stored position is the first un-ACKed row; rows from there on are read again after a crash, with the
same ids (I1, I9).

An injector has three states; only its reader decides about the last::

    READING ──nothing to read──> WAITING ──the source wakes it──> READING
    READING ──the reader has ended──> ENDED                       (bounded sources)
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice, pairwise
from operator import ge
from typing import Any

from millwheel.codec import LETTER_CHARACTERS, named_id, place_of, reason, shown, storable
from millwheel.context import BAD_ROWS
from millwheel.errors import InputError, MillwheelError, UserCodeError
from millwheel.model import (
    MAX_TIME,
    MIN_TIME,
    Delivery,
    clamp_time,
    event_micros,
    record_id,
    to_micros,
)
from millwheel.runtime.environment import Environment
from millwheel.runtime.interval.buckets import Buckets
from millwheel.runtime.interval.interval import Interval
from millwheel.runtime.interval.routing import NOBODY, Destination, StreamReader
from millwheel.runtime.interval.sent_log import SentLog
from millwheel.runtime.process.load import Measured
from millwheel.runtime.source.pacing import Flow, Pace
from millwheel.runtime.source.pausing import PausedInjectors
from millwheel.runtime.source.source_task import SourceTask
from millwheel.sources import Lag, Partition, Reader, Row
from millwheel.store.port import DeadLetter
from millwheel.timers.percentile import Disorder

ASSUMED_ROW_BYTES = 256
"""Assumed size of a row in the credits if its value is not encoded here: its reader is on this worker,
and cannot change the value."""


class Injector(SourceTask):
    """Reads one partition, and sends its rows to the readers of its stream."""

    def __init__(
        self,
        env: Environment,
        paused: PausedInjectors,
        interval: Interval,
        partition: Partition,
        buckets: Buckets,
        wake: asyncio.Event,
    ) -> None:
        super().__init__(env, paused, interval)
        self._buckets = buckets
        self._wake = wake
        """Set when rows were queued."""
        self._partition = partition
        node = interval.step.node
        assert node.injection is not None
        self._injection = node.injection
        self._stream = node.writes[0]
        self._seen_of = node.injection.seen
        self._watermark_of = node.injection.watermark
        idle_after = node.injection.idle_after
        self._idle_after = None if idle_after is None else idle_after.total_seconds()
        self._last_row_at = env.clock.monotonic()
        target = node.injection.latency_target
        credits_ = env.settings.max_unacked_records
        self.pace = Pace(
            min(node.injection.max_pending or credits_, credits_),
            None if target is None else target.total_seconds(),
        )
        """The cap on pending rows."""
        self._lateness = int(node.injection.lateness.total_seconds() * 1e6)
        self._reader: Reader | None = None
        self._seen = MIN_TIME
        self._disorder = Disorder()
        self._marks: deque[tuple[int, int, int]] = deque()
        """The source's progress in event time: (number of rows before this point, newest seen time, time
        at which the last of these rows was read)."""
        self.credit = asyncio.Event()
        """Set when reading may be possible again: rows were acknowledged, or the injector resumed."""
        self._last_number = -1
        """Number of the last row read since the partition was opened."""
        self._awaited_end = 0
        """Rows before this number may be read whatever the cap and the credits are."""
        self.waiting = False
        """All available rows have been read; the source will wake the injector."""
        self._position_stored = False
        """The position at which reading began after this start is stored."""
        self._sent_before = 0
        """Rows before this number may have been sent by an owner before this claim."""
        self._sent_since: int | None = None
        """Earliest time at which a former owner can have sent a row that is not stored as acknowledged;
        None if no owner has sent any."""

    async def start(self, *, reading: bool = True) -> None:
        """Open the partition at the stored position, and read from there if `reading`.

        Raises:
            InputError: the source is missing, or acknowledged rows of it have changed.
        """
        self.close()
        stored = self._interval.position.value
        with self._blamed(self._partition, "open"):
            self._reader = await self._partition.open(
                self._stream.value_type, stored["reader"] if stored else None
            )
        self._route = self._interval.step.routes[self._stream.name]
        readers = self._route.readers
        simple = len(readers) == 1 and self._env.options.inject_copies == 1
        self._only_reader = readers[0] if simple and not readers[0].step.node.named else None
        self._position_stored = self._injection.source.bounded
        # Rows past the stored position hold the watermark once they are read again; until
        # then it may not pass the stored promise.
        self._interval.watermarks.exact = self._interval.watermarks.durable
        self._seen = stored["seen"] if stored else MIN_TIME
        self.pace.start_over()
        self._last_number = -1
        self._awaited_end = 0
        self._disorder = Disorder()  # times seen before are ahead of the rows to read again
        self._marks.clear()
        read_at = stored.get("since") if stored else None
        self._marks.append((self.log.first, self._seen, read_at or self._env.now()))
        self.waiting = self.ended = False
        self._sent_before = self._buckets.sources.end(self.log.id)
        self._sent_since = self._interval.position.since
        if reading:
            self._begin(self._measured_run())

    @property
    def has_nothing(self) -> bool:
        """Whether there is no row to read now: the injector waits for the source, or has ended."""
        return self.waiting or self.ended

    def resume(self) -> None:
        """Resume after a pause; rows that arrived during the pause are not late because of it."""
        self._last_row_at = self._env.clock.monotonic()
        self.credit.set()

    def acknowledged(self) -> None:
        """Note that some rows are durable at their readers."""
        self.pace.acknowledged(self.log.first, self._env.clock.monotonic())
        self.credit.set()

    def tend(self) -> None:
        """Raise the cap if no acknowledgement arrives before more is read; called periodically."""
        if self.ended or self.paused:
            return
        room = self.pace.room(self.log.unacked, self._env.settings.chunk_records)
        if not room and self.pace.loosen(self._env.clock.monotonic()):
            self.credit.set()

    def read_up_to(self, offset: int) -> None:
        """Read up to a row that was read before the restart, whatever the cap is.

        The cap may have been higher then, and nothing is acknowledged before this row arrives.
        """
        if offset >= max(self._awaited_end, self.log.next_seq):
            self._awaited_end = offset + 1
            self.credit.set()

    def close(self) -> None:
        """Close the partition; commits up to then store its position."""
        reader, self._reader = self._reader, None
        if reader is not None:
            with self._blamed(reader, "close"):
                reader.close()

    @property
    def log(self) -> SentLog:
        """The log that the source is."""
        return self._interval.log

    def flow(self) -> Flow:
        """Pending rows, their latency, and the rows that wait to be read."""
        pace = self.pace
        return Flow(
            self.log.unacked, pace.cap, pace.latency_seconds, pace.target_seconds, *self.lag()
        )

    def progress(self) -> float | None:
        """The share of a bounded partition read, 0 to 1; None if the partition has no end."""
        if self.ended:
            return 1.0
        if self._reader is None:
            return 0.0
        with self._blamed(self._reader, "progress"):
            return self._reader.progress()

    def lag(self) -> Lag:
        """The rows and bytes of the partition that wait to be read."""
        if self._reader is None:
            return Lag()
        with self._blamed(self._reader, "lag"):
            return self._reader.lag()

    def position(self) -> dict[str, Any]:
        """The position to store: where to continue reading, and which row holds the watermark."""
        first = self.log.first
        held = (
            first < self.log.next_seq
            and self._interval.watermarks.promised < self._interval.watermarks.exact
        )
        reader = (self._interval.position.value or {}).get("reader")
        if self._reader is not None:
            with self._blamed(self._reader, "position"):
                reader = self._reader.position(first)
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
        """Earliest time at which a row past the stored position can have been sent.

        Buckets of user-supplied ids that end later are kept, since such a row is sent again after a crash
        (`named_acknowledged.sql`). Rows of former owners count from their time until they are
        acknowledged again, or are known not to exist: a paused injector reads nothing, and so cannot know.
        """
        first = self.log.first
        if self._sent_since is not None and first < self._sent_before:
            return self._sent_since
        for rows_before, _, read_at in self._marks:
            if rows_before > first:
                return read_at
        return self._env.now()

    def _caught_up(self) -> None:
        """Note that all rows are read: no former owner can have sent any further row."""
        self._sent_before = min(self._sent_before, self.log.next_seq)

    def _held_since(self, *, held: bool) -> int | None:
        """Read time of the row that holds the watermark; if there is none, of the newest row."""
        marks = self._marks
        if not marks:
            return (self._interval.position.value or {}).get("since")
        return marks[1 if held and len(marks) > 1 else -1][2]

    async def _measured_run(self) -> None:
        clock = self._env.process.run_seconds
        await Measured(self._run(), self._interval.workload, clock)

    async def _run(self) -> None:
        assert self._reader is not None
        reader, limit = self._reader, self._env.settings.chunk_records
        while True:
            while not (room := self._room(limit)):
                self.credit.clear()
                await self.credit.wait()
            with self._blamed(reader, "read"):
                rows = await reader.read(room)
            if rows:
                await self._inject(rows)
                continue
            self._caught_up()
            if reader.ended:
                break
            await self._wait_for_rows(reader)
        self._end()

    async def _inject(self, rows: Sequence[Row]) -> None:
        """Send rows, and advance the source's watermark."""
        env, log = self._env, self.log
        read_at = self._last_row_at = env.clock.monotonic()
        env.done.clear()
        self._check_numbers(rows)
        self._refuse_after_the_end(rows)
        if not self._position_stored:
            await self._store_first_position()
        for first, last in _runs(rows):
            await env.patiently(
                lambda: self._buckets.ensure_source(log.id, first, last)  # noqa: B023
            )
        self._send(rows)
        self.pace.read(log.next_seq, log.unacked, read_at)
        self.rows += len(rows)
        self._interval.workload.records += len(rows)
        self._marks.append((log.next_seq, self._seen, env.now()))
        self._wake.set()
        self._advance()
        await asyncio.sleep(0)

    async def _store_first_position(self) -> None:
        """Store the position at which reading began, before sending a row of a source without an end.

        Otherwise, after a crash before the next commit, the next start would begin with the rows that are
        available then (of a file rotated since, for example), and give the numbers of sent rows to other
        rows.
        """
        interval = self._interval
        stored, n = interval.position.value or {}, interval.commits.durable_n
        assert self._reader is not None
        with self._blamed(self._reader, "position"):
            here = self._reader.position(self.log.first)
        if stored.get("reader") != here:
            while interval.commits.durable_n == n:
                interval.touch(urgent=True)
                assert interval.lane is not None
                await interval.lane.settled()
        self._position_stored = True

    async def _wait_for_rows(self, reader: Reader) -> None:
        """Wait until the source has more rows."""
        self.waiting = True
        self._env.check_finished()
        with self._blamed(reader, "wait"):
            await reader.wait()
        self.waiting = False

    def _end(self) -> None:
        """End the partition, and its event time unless the option `keep_open` is set."""
        self.ended = True
        if not self._env.options.keep_open:
            self._interval.watermarks.raise_input(MAX_TIME)
        self._interval.touch(urgent=self._interval.watermarks.has_news())
        self._env.check_finished()

    def _check_numbers(self, rows: Sequence[Row]) -> None:
        """Refuse rows with numbers that do not rise: a lower number counts as processed.

        The engine would lose its row.

        Raises:
            UserCodeError: there is such a row.
        """
        numbers = [self._last_number, *(row.offset for row in rows)]
        self._last_number = numbers[-1]
        if any(map(ge, numbers, islice(numbers, 1, None))):
            before, number = next(pair for pair in pairwise(numbers) if pair[0] >= pair[1])
            raise UserCodeError(
                f"the source of {self._interval.step.node.label!r} gave row number {number}"
                f"{f' after row number {before}' if before >= 0 else ''}: the row numbers of a "
                f"partition ({self._partition.identity}) must rise, from 0 on. Correct the source and "
                "start again"
            )

    def _refuse_after_the_end(self, rows: Sequence[Row]) -> None:
        """Refuse rows that arrive after event time has ended: all of them would be late.

        Raises:
            InputError: there is such a row, and the option `accept_late` is not set.
        """
        if self._interval.watermarks.promised < MAX_TIME or self._env.options.accept_late:
            return
        row = next((row for row in rows if row.watermark is None), None)
        if row is not None and not self.log.is_acknowledged(row.offset):
            raise InputError(
                f"{self._partition.identity}, line {row.line}: this row arrived after event time had "
                f"ended. An earlier run read the input of stream {self._stream.name!r} to its end "
                "and closed all windows and timers, so the row is late for each of them. If the input "
                "continues, remove the pipeline (millwheel drop) and start it with follow=True on the "
                "source, or with --keep-open. To process such rows as late ones, start with "
                "--accept-late"
            )

    def _room(self, limit: int) -> int:
        """Number of rows that may be read now."""
        if self.paused:
            return 0
        if (awaited := self._awaited_end - self.log.next_seq) > 0:
            return min(limit, awaited)
        if not self._interval.may_send():
            return 0
        return self.pace.room(self.log.unacked, limit)

    def _advance(self) -> None:
        """Advance the source's own watermark to the newest seen time minus the lateness."""
        if self._seen == MIN_TIME:
            return
        interval = self._interval
        interval.watermarks.raise_input(clamp_time(self._seen - self._lateness))
        for percentile in interval.watermarks.percentiles:
            interval.watermarks.raise_percentile(percentile, self._disorder.watermark(percentile))
        if interval.watermarks.has_news():
            interval.touch(urgent=True)

    @property
    def idle(self) -> bool:
        """Whether it has waited for rows so long that it does not hold the stream's watermark.

        A paused injector is never idle: rows may be available, and must not become late.
        """
        return (
            self._idle_after is not None
            and self.waiting
            and not self.paused
            and self._env.clock.monotonic() - self._last_row_at >= self._idle_after
        )

    def advance_idle(self, watermark: int, percentiles: Mapping[float, int | None]) -> None:
        """Promise, while idle, the watermark that all tasks that are not idle have stored."""
        interval = self._interval
        if not interval.log.drained:
            return
        interval.watermarks.raise_input(watermark)
        for percentile in interval.watermarks.percentiles:
            if (early := percentiles[percentile]) is not None:
                interval.watermarks.raise_percentile(percentile, early)
        if interval.watermarks.has_news():
            interval.touch(urgent=True)

    def _send(self, rows: Sequence[Row]) -> None:
        """Send rows to all readers of the stream, as one batch; bad rows become dead letters.

        A row holds the watermark at no less than the source's promise when the row was read: an older row
        is late by declaration, and must not hold the watermark back while it is queued.
        """
        log, number = self.log, self.log.id
        route, stream = self._route, self._stream.name
        reader = self._only_reader
        seen, lateness, promised = self._seen, self._lateness, self._interval.watermarks.promised
        timestamp, seen_of, watermark_of = (
            self._injection.timestamp,
            self._seen_of,
            self._watermark_of,
        )
        encode, check, mutable = route.codec.encode, route.codec.check, route.codec.mutable
        receiver = reader.step.id if reader is not None else NOBODY
        least = MAX_TIME
        size = 0
        number_of_last = rows[-1].offset
        known = rows[0].offset < log.known_end
        done: list[int] = []
        disorder = self._disorder if self._interval.watermarks.percentiles else None
        holds: list[int] = []
        """The hold of each row, if percentile low watermarks are kept."""
        for row in rows:
            offset, value = row.offset, row.value
            if row.error is not None:
                least = min(least, promised)
                self._give_up(row, row.error)
                continue
            if row.watermark is not None:
                seen = max(seen, row.watermark + lateness)
                self._marks.append((offset + 1, seen, self._env.now()))
                done.append(offset)
                continue
            try:
                micros = event_micros(timestamp(value))
                if watermark_of is not None:
                    given = watermark_of(value)
                    moment = MIN_TIME if given is None else to_micros(given)
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
                    # `_address`, inlined: one reader without user-supplied ids is the normal case
                    key, key_text, slot = reader.address(value, stream, offset)
                    destination = reader.step.interval_of(slot)
                    encoded = b""
                    if mutable or not destination.is_here:
                        encoded = encode(value)
                        if not destination.is_here:
                            check(encoded, value)
                    bytes_ = len(encoded) or ASSUMED_ROW_BYTES
                    destination.intake.append(
                        Delivery(
                            key, value, micros, stream, key_text, slot, receiver, hold,
                            bytes_, encoded, number, offset, offset,
                            record_id(number, offset), 0, False, number,
                        )
                    )  # fmt: skip
                    size += bytes_
            except BaseException as error:
                least = min(least, promised)
                self._give_up(row, self._blame(row, error))
                continue
            if hold < least:
                least = hold
            if moment > seen:
                seen = moment
        self._seen = seen
        if number_of_last - log.next_seq >= len(rows):
            log.lack(_gaps(rows, log.next_seq))
        log.sent(number_of_last + 1, max(least, promised), size, holds=holds)
        if done or known:
            log.acknowledge(done)
            self._interval.touch(urgent=False)

    def _address(
        self, reader: StreamReader, offset: int, value: Any, micros: int, hold: int
    ) -> tuple[Destination, Delivery[Any]]:
        """The delivery of a row for one reader, and its destination; the reader's extractor gives the key."""
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
            if not destination.is_here:
                route.codec.check(encoded, value)
        return destination, Delivery(
            key, value, micros, route.stream, key_text, slot, reader.step.id, hold,
            len(encoded) or ASSUMED_ROW_BYTES, encoded, log, offset, offset, id_, 0, named,
            log,
        )  # fmt: skip

    def _send_to_all(self, row: Row, micros: int, hold: int) -> int:
        """Send a row to each reader, with a value of its own, in `inject_copies` copies.

        Returns:
            The row's size in the credits.
        """
        codec = self._route.codec
        value = row.value
        found: list[tuple[Destination, Delivery[Any]]] = []
        for reader in self._route.readers:
            if found and codec.mutable:
                value = codec.check(codec.encode(row.value), row.value)
            found.append(self._address(reader, row.offset, value, micros, hold))
        for destination, delivery in found * self._env.options.inject_copies:
            destination.intake.append(delivery)
        if len(self._route.readers) > 1:
            all_readers = sum(reader.bit for reader in self._route.readers)
            self.log.wait_for_several(row.offset, all_readers)
        return max((delivery.size for _, delivery in found), default=0)

    def _blame(self, row: Row, error: BaseException) -> InputError:
        """The error to report for a bad row, with its place in the input."""
        place = f"{self._partition.identity}, line {row.line}"
        if isinstance(error, MillwheelError):
            return InputError(f"{place}: {error}")
        option, function = self._at_fault(row.value)
        return InputError(
            f"{place}: {option}= of inject({self._stream.name!r}, ...), {place_of(function)}, failed or "
            f"returned no time: {reason(error)}; value {shown(row.value, 300)}"
        )

    def _at_fault(self, value: Any) -> tuple[str, Callable[[Any], Any]]:
        """The function given to `inject` that fails on a value or returns no time, with its option."""
        injection = self._injection
        try:
            event_micros(injection.timestamp(value))
        except BaseException:
            return "timestamp", injection.timestamp
        if injection.watermark is not None:
            return "watermark", injection.watermark
        return "seen", injection.seen or injection.timestamp

    def _give_up(self, row: Row, error: InputError) -> None:
        """Handle a row that cannot be read: stop, or store it as a dead letter and continue."""
        if self.log.is_acknowledged(row.offset):
            return
        if self._injection.on_error == "fail":
            raise InputError(
                f"{error}. Correct {'that function or the row' if row.error is None else 'the file'} "
                "and start again, or pass "
                'on_error="dead_letter" to inject(...) to set such rows aside'
            ) from error
        interval = self._interval
        assert interval.lane is not None
        work = interval.lane.open_work(interval)
        work.given_up.append(row.offset)  # acknowledged when the letter is durable
        work.effects.count(BAD_ROWS, 1)
        work.effects.dead_letters.append(
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
                stamp=self._env.now(),
            )
        )


def _runs(rows: Sequence[Row]) -> Iterator[tuple[int, int]]:
    """The numbers of rows as runs without gaps: (first, last)."""
    first, last = rows[0].offset, rows[-1].offset
    if last - first + 1 == len(rows):
        yield first, last
        return
    end = first
    for row in rows:
        if row.offset != end:
            yield first, end - 1
            first = row.offset
        end = row.offset + 1
    yield first, last


def _gaps(rows: Sequence[Row], start: int) -> Iterator[tuple[int, int]]:
    """The numbers from `start` on that rows skip, as runs: (first, one past the last)."""
    for row in rows:
        if row.offset > start:
            yield start, row.offset
        start = row.offset + 1
