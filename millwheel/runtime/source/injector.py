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
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice, pairwise
from operator import ge
from typing import Any

from millwheel.errors import InputError, UserCodeError
from millwheel.model import (
    MAX_TIME,
)
from millwheel.runtime.environment import Environment
from millwheel.runtime.interval.buckets import Buckets
from millwheel.runtime.interval.interval import Interval
from millwheel.runtime.interval.sent_log import SentLog
from millwheel.runtime.process.load import measured
from millwheel.runtime.source.pacing import Flow, Pace
from millwheel.runtime.source.pausing import PausedInjectors
from millwheel.runtime.source.row_sender import RowSender
from millwheel.runtime.source.source_task import SourceTask
from millwheel.runtime.source.source_time import SourceTime
from millwheel.sources import Lag, Partition, Reader, Row, Rows, row_place


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
        self._reader: Reader | None = None
        self._time = self._restored_time()
        self._sender = RowSender(env, interval, partition, self._time)
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

    def _restored_time(self) -> SourceTime:
        """The source's time, as stored."""
        return SourceTime(
            self._injection.lateness,
            self._interval.position,
            self.log.first,
            self._buckets.sources.end(self.log.id),
            self._env.now(),
        )

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
        self._time = self._restored_time()
        self._sender = RowSender(self._env, self._interval, self._partition, self._time)
        self._position_stored = self._injection.source.bounded
        # Rows past the stored position hold the watermark once they are read again; until
        # then it may not pass the stored promise.
        self._interval.watermarks.exact = self._interval.watermarks.durable
        self.pace.start_over()
        self._last_number = -1
        self._awaited_end = 0
        self.waiting = self.ended = False
        if reading:
            self._begin(measured(self._run, self._interval.workload, self._env.process.run_seconds))

    @property
    def has_nothing(self) -> bool:
        """Whether there is no row to read now: the injector waits for the source, or has ended."""
        return self.waiting or self.ended

    def resume(self) -> None:
        """Resume after a pause; rows that arrived during the pause are not late because of it."""
        self._last_row_at = self._env.clock.monotonic()
        self.credit.set()

    def acknowledged(self) -> list[float]:
        """Note that some rows are durable at their readers; gives the seconds since each reading of them."""
        self.credit.set()
        return self.pace.acknowledged(self.log.first, self._env.clock.monotonic())

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
        self._time.acknowledged(first)
        return {
            "reader": reader,
            "seen": self._time.seen_by_acknowledged,
            "held_by": first if held else None,
            "since": self._time.held_since(held=held),
            "sent_since": self._time.first_sent(first, self._env.now()),
            "ended": self.ended,
        }

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
            if self._injection.shown_by_reader and self._time.show(
                getattr(reader, "seen", None), self.log.next_seq, self._env.now()
            ):
                self._advance()
            if rows:
                continue
            self._time.caught_up(self.log.next_seq)
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
        self._sender.send(rows)
        self.pace.read(log.next_seq, log.unacked, read_at)
        self.rows += len(rows)
        self._interval.workload.records += len(rows)
        self._time.mark(log.next_seq, env.now())
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
        if isinstance(rows, Rows) and rows.are_columns and rows.offset > self._last_number:
            self._last_number = rows.offset + len(rows) - 1
            return
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
                f"{row_place(self._partition, row)}: this row arrived after event time had "
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
        watermark = self._time.watermark()
        if watermark is None:
            return
        interval = self._interval
        if interval.watermarks.advance(watermark, self._time.disorder.watermark):
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
        if interval.watermarks.advance(watermark, percentiles.get):
            interval.touch(urgent=True)


def _runs(rows: Sequence[Row]) -> Iterator[tuple[int, int]]:
    """The numbers of rows as runs without gaps: (first, last)."""
    if isinstance(rows, Rows) and rows.are_columns:
        yield rows.offset, rows.offset + len(rows) - 1
        return
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
