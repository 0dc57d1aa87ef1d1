"""Injectors: read one partition of a source, and timestamp and send its rows.

The log of a replayable source is the source itself: it stores no productions. The stored position
is the first un-ACKed row; rows from there on are read again after a crash, with the same ids (I1,
I9).

Only the reader decides about the last of an injector's three states::

    READING ──nothing to read──> WAITING ──the source wakes it──> READING
    READING ──the reader has ended──> ENDED                       (bounded sources)
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial

from millwheel.core.model import (
    MAX_TIME,
)
from millwheel.core.source_progress import SourceProgress
from millwheel.errors import InputError
from millwheel.runtime.environment import Environment
from millwheel.runtime.interval.interval import Interval
from millwheel.runtime.interval.sent_log import SentLog
from millwheel.runtime.process.load import measured
from millwheel.runtime.seen.seen_buckets import Buckets
from millwheel.runtime.source.asked_rows import AskedRows
from millwheel.runtime.source.pacing import Flow, Pace
from millwheel.runtime.source.pausing import PausedInjectors
from millwheel.runtime.source.row_numbers import RowNumbers, runs
from millwheel.runtime.source.row_sender import RowSender
from millwheel.runtime.source.source_task import SourceTask, Work
from millwheel.runtime.source.source_time import SourceTime
from millwheel.sources import Lag, Partition, Reader, Row, row_place


class Injector(SourceTask):
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
        self._partition = partition
        node = interval.step.node
        assert node.injection is not None
        self._injection = node.injection
        self._stream = node.writes[0]
        idle_after = node.injection.idle_after
        self._idle_after = None if idle_after is None else idle_after.total_seconds()
        self._owing_at = env.clock.monotonic()
        """The last read, or a later time at which rows may have been held up."""
        target = node.injection.latency_target
        credits_ = env.settings.max_unacked_records
        self.pace = Pace(
            min(node.injection.max_pending or credits_, credits_),
            None if target is None else target.total_seconds(),
        )
        self._reader: Reader | None = None
        self._time = self._restored_time()
        self._asked = AskedRows(env, interval)
        self._sender = RowSender(env, interval, partition, self._time, self._asked)
        self.credit = asyncio.Event()
        """Set after acknowledgements, or a pause."""
        self._numbers = RowNumbers(node.label, partition)
        self._awaited_end = 0
        """Rows before this number may be read whatever the cap and the credits are."""
        self.waiting = False
        """The source will wake the injector."""
        self._position_stored = False
        self._last_position = SourceProgress.stored(interval.position.value).reader
        self._promised: object = None

    def _restored_time(self) -> SourceTime:
        return SourceTime(
            self._injection.lateness,
            self._interval.position,
            self.log.first,
            self._buckets.sources.end(self.log.id),
            self._env.now(),
        )

    async def _open(self, is_current: Callable[[], bool]) -> Work | None:
        self.close()
        stored = SourceProgress.stored(self._interval.position.value)
        self._last_position = stored.reader  # a commit before the source is open keeps it
        is_done = self._interval.watermarks.durable == MAX_TIME  # all of its rows are acknowledged
        if stored.ended and is_done and self._injection.growing is not None:
            self.ended = True  # it waits to be retired
            return None
        with self._blamed(self._partition, "open"):
            reader = await self._partition.open(self._stream.value_type, stored.reader)
        if is_current():
            await self._asked.begin()
        if not is_current():
            with self._blamed(reader, "close"):
                reader.close()
            return None
        self._reader = reader
        self._time = self._restored_time()
        self._sender = RowSender(
            self._env, self._interval, self._partition, self._time, self._asked
        )
        self._position_stored = self._injection.source.bounded
        # Rows past the stored position hold the watermark once they are read again; until
        # then it may not pass the stored promise.
        self._interval.watermarks.exact = self._interval.watermarks.durable
        self.pace.start_over()
        self._numbers = RowNumbers(self._interval.step.node.label, self._partition)
        self._promised = None
        self._awaited_end = 0
        self.waiting = self.ended = False
        return partial(measured, self._run, self._interval.workload, self._env.process.run_seconds)

    @property
    def has_nothing(self) -> bool:
        """There is no row to read now: the injector waits for the source, or has ended."""
        return self.waiting or self.ended

    def resume(self) -> None:
        """Rows that arrived during the pause are not late because of it."""
        self._owing_at = self._env.clock.monotonic()
        self.credit.set()

    def acknowledged(self) -> list[float]:
        """Returns the seconds since each reading of rows that are durable at their readers."""
        self.credit.set()
        return self.pace.acknowledged(self.log.first, self._env.clock.monotonic())

    def tend(self) -> None:
        """Raise the cap if no acknowledgement arrives before more is read, and note that rows may
        be held up.

        Called periodically.
        """
        if not self._owes_nothing:
            self._owing_at = self._env.clock.monotonic()
        if self.ended or self.paused:
            return
        room = self.pace.room(self.log.unacked, self._env.settings.chunk_records)
        if not room and self.pace.loosen(self._env.clock.monotonic()):
            self.credit.set()

    def read_up_to(self, offset: int) -> None:
        """Read up to a row of before the restart: the cap may have been higher then, and nothing is
        acknowledged before this row arrives."""
        if offset >= max(self._awaited_end, self.log.next_seq):
            self._awaited_end = offset + 1
            self.credit.set()

    def close(self) -> None:
        """Commits up to then store the position."""
        reader, self._reader = self._reader, None
        if reader is not None:
            with self._blamed(reader, "close"):
                reader.close()

    @property
    def log(self) -> SentLog:
        return self._interval.log

    def flow(self) -> Flow:
        pace = self.pace
        return Flow(
            self.log.unacked, pace.cap, pace.latency_seconds, pace.target_seconds, *self.lag()
        )

    def progress(self) -> float | None:
        """0 to 1; None if the partition has no end."""
        if self.ended:
            return 1.0
        if self._reader is None:
            return 0.0
        with self._blamed(self._reader, "progress"):
            return self._reader.progress()

    def lag(self) -> Lag:
        if self._reader is None:
            return Lag()
        with self._blamed(self._reader, "lag"):
            return self._reader.lag()

    def position(self) -> SourceProgress:
        first = self.log.first
        held = (
            first < self.log.next_seq
            and self._interval.watermarks.promised < self._interval.watermarks.exact
        )
        if self._reader is not None:
            with self._blamed(self._reader, "position"):
                self._last_position = self._reader.position(first)
        self._time.acknowledged(first)
        return SourceProgress(
            self._last_position,
            self._time.seen_by_acknowledged,
            held_by=first if held else None,
            since=self._time.held_since(held=held),
            sent_since=self._time.first_sent(first, self._env.now()),
            ended=self.ended,
        )

    async def _run(self) -> None:
        assert self._reader is not None
        reader, limit = self._reader, self._env.settings.chunk_records
        while True:
            while not (room := self._room(limit)):
                self.credit.clear()
                await self.credit.wait()
            with self._blamed(reader, "read"):
                rows = await reader.read(room)
            promised = getattr(reader, "promised", None)
            if promised != self._promised or (rows and not self._position_stored):
                await self._store_position()
                self._promised = promised
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
        env, log = self._env, self.log
        read_at = self._owing_at = env.clock.monotonic()
        env.done.clear()
        self._numbers.check(rows)
        self._refuse_after_the_end(rows)
        for first, last in runs(rows):
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
        if self._asked:
            await self._asked.done([row.offset for row in rows])
        await asyncio.sleep(0)

    async def _store_position(self) -> None:
        """Store the position at which reading began before a row of an endless source is sent, and
        the files that it has begun since.

        Otherwise, after a crash before the next commit, the next start would begin with the rows
        available then (of a file rotated since, for example), and give the numbers of sent rows to
        other rows.
        """
        interval = self._interval
        stored = SourceProgress.stored(interval.position.value)
        assert self._reader is not None
        with self._blamed(self._reader, "position"):
            here = self._reader.position(self.log.first)
        if stored.reader != here:
            await interval.store_all()
        self._position_stored = True

    async def _wait_for_rows(self, reader: Reader) -> None:
        """Wait until the source has more rows.

        A reader that has passed a gap since the last commit (transaction markers, for example) has
        a position that no acknowledgement stores. Once the source deletes that gap, the former
        position would speak of lost rows.
        """
        if self._last_position is not None and self.log.drained:
            with self._blamed(reader, "position"):
                here = reader.position(self.log.first)
            if here != self._last_position:
                self._interval.touch(urgent=False)
        self.waiting = True
        self._env.check_finished()
        with self._blamed(reader, "wait"):
            await reader.wait()
        self.waiting = False

    def _end(self) -> None:
        """End the partition, and its event time unless `keep_open` is set.

        A partition of a growing source ends alone: the discovery holds the watermark.
        """
        self.ended = True
        if not self._env.options.keep_open or self._injection.growing is not None:
            self._interval.watermarks.raise_input(MAX_TIME)
        self._interval.touch(urgent=self._interval.watermarks.has_news())
        self._env.check_finished()

    def _refuse_after_the_end(self, rows: Sequence[Row]) -> None:
        """`InputError` for rows after the end of event time, unless `accept_late` is set: all of
        them would be late."""
        if self._interval.watermarks.promised < MAX_TIME or self._env.options.accept_late:
            return
        row = next((row for row in rows if row.watermark is None), None)
        if row is not None and not self.log.is_acknowledged(row.offset):
            raise InputError(
                f"{row_place(self._partition, row)}: this row arrived after event time had ended. "
                f"An earlier run read the input of stream {self._stream.name!r} to its end and "
                "closed all windows and timers, so the row is late for each of them. If the "
                "input continues, remove the pipeline (millwheel drop) and start it with "
                "follow=True on the source, or with --keep-open. To process such rows as late "
                "ones, start with --accept-late"
            )

    def _room(self, limit: int) -> int:
        if self.paused:
            return 0
        if (awaited := self._awaited_end - self.log.next_seq) > 0:
            return min(limit, awaited)
        if not self._interval.may_send():
            return 0
        return self.pace.room(self.log.unacked, limit)

    def _advance(self) -> None:
        watermark = self._time.watermark()
        if watermark is None:
            return
        interval = self._interval
        if interval.watermarks.advance(watermark):
            interval.touch(urgent=True)

    @property
    def _owes_nothing(self) -> bool:
        """No row exists that would become late if event time advanced.

        Not known while it is paused or reads, or while the source holds rows up.
        """
        reader = self._reader
        if reader is None or not self.waiting or self.paused:
            return False
        with self._blamed(reader, "caught_up"):
            return reader.caught_up

    @property
    def idle(self) -> bool:
        return (
            self._idle_after is not None
            and self._env.clock.monotonic() - self._owing_at >= self._idle_after
            and self._owes_nothing
        )

    def advance_idle(self, watermark: int) -> None:
        interval = self._interval
        if not interval.log.drained:
            return
        if interval.watermarks.advance(watermark):
            interval.touch(urgent=True)
