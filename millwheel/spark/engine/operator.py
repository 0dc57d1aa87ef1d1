"""One level of the graph as an operator of Spark, with the state and timers of its keys (paper
section 4).

Spark groups the rows of a batch by step and bucket of keys (`buckets`), and calls the operator once
for each group, and once more for each group with a timer that its watermark has passed. The
operator runs the keys of the bucket one after the other, and Spark has one timer for all of theirs.
Rows for other levels, and results, pass through.

A key has the entries of the view ``states``, each with its JSON and its version, and its timers. So
a pipeline is moved to Spark and back by copying rows, and migrations keep working.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import (
    ExpiredTimerInfo,
    StatefulProcessor,
    StatefulProcessorHandle,
    TimerValues,
)

from millwheel.core.chunk import Chunk
from millwheel.core.model import MAX_TIME, MIN_TIME
from millwheel.spark.engine.buckets import PAGE_CONTENT, PAGE_NUMBER, PAGES, KeptKey, KeyBucket
from millwheel.spark.engine.key_run import IdRunner, KeyEntries, Moment, Outcome, StepRunner
from millwheel.spark.engine.moved_keys import decode_keys
from millwheel.spark.engine.plan import SparkPlan, planned
from millwheel.spark.engine.stream_rows import (
    COUNTER,
    LETTER,
    TABLE,
    Packing,
    Parcel,
    StreamRow,
    counter_row,
    decode_rows,
    letter_row,
    mark_of,
    micros_of_watermark,
    millis_of_timer,
    table_row,
)

PARCEL = Row(*Parcel._fields)

Rows = Mapping[bytes, list[StreamRow]]
"""Key as JSON -> its records in this batch."""


class LevelOperator(StatefulProcessor):
    """Runs the steps of one level.

    Args:
        target: MODULE:PIPELINE.
        level: the level, from 1.
        buckets: the number of buckets of each step; that of the checkpoint.
        floor: the least low watermark, in microseconds: Spark's begins in 1970, also for a pipeline
            that was moved.
    """

    def __init__(self, target: str, level: int, buckets: int, floor: int = MIN_TIME) -> None:
        self._target = target
        self._level = level
        self._buckets = buckets
        self._floor = floor

    # -- called by Spark, which gives the arguments by name -------------------------------

    def init(self, handle: StatefulProcessorHandle) -> None:
        plan = planned(self._target)
        self._handle = handle
        self._pages = handle.getMapState(PAGES, PAGE_NUMBER, PAGE_CONTENT)
        self._loop = asyncio.new_event_loop()
        self._plan = plan
        self._seq = 0
        self._packing = Packing(self._buckets)
        self._entries = KeyEntries()
        self._runners = {
            name: self._runner(plan, name)
            for name, level in plan.levels.items()
            if level == self._level
        }

    def handleInputRows(
        self, key: Any, rows: Iterator[Row], timerValues: TimerValues
    ) -> Iterator[Row]:
        runner = self._runners.get(key[0])
        if runner is None:
            yield from rows
            return
        by_key: dict[bytes, list[StreamRow]] = {}
        for row in rows:
            for each in decode_rows(row.rows):
                by_key.setdefault(each.key, []).append(each)
        yield from self._run(runner, key[1], by_key, timerValues)

    def handleExpiredTimer(
        self, key: Any, timerValues: TimerValues, expiredTimerInfo: ExpiredTimerInfo
    ) -> Iterator[Row]:
        yield from self._run(self._runners[key[0]], key[1], {}, timerValues)

    def handleInitialState(self, key: Any, initialState: Any, timerValues: TimerValues) -> None:
        """Take over keys that were exported from the engine: a part of the bucket."""
        if key[0] not in self._runners:
            return
        bucket = KeyBucket(self._pages)
        for each, part in decode_keys(initialState.keys).items():
            kept = bucket.get(each)
            kept.entries.update(part.entries)
            kept.timers.update(part.timers)
            bucket.put(each, kept)
        self._store(bucket, MIN_TIME)

    def close(self) -> None:
        self._loop.close()

    # -- -----------------------------------------------------------------------------------

    def _runner(self, plan: SparkPlan, name: str) -> StepRunner:
        step = plan.steps[name]
        entries, first = self._entries, self._level == 1
        if step.node.named:
            seconds = plan.pipeline.settings.id_retention_seconds
            return IdRunner(step, entries, is_first=first, retention_seconds=seconds)
        return StepRunner(step, entries, is_first=first)

    def _run(
        self, runner: StepRunner, number: int, rows: Rows, times: TimerValues
    ) -> Iterator[Row]:
        watermark = micros_of_watermark(times.getCurrentWatermarkInMs())
        moment = Moment(
            max(self._floor, MIN_TIME if watermark is None else watermark),
            times.getCurrentProcessingTimeInMs() * 1000,
        )
        self._loop.run_until_complete(self._run_keys(runner, number, rows, moment))
        for parcel in self._packing.take(mark_of(moment.watermark + 1_000)):
            yield PARCEL(*parcel)

    async def _run_keys(self, runner: StepRunner, number: int, rows: Rows, moment: Moment) -> None:
        """Run the keys with records and those with timers that are due, in the order of the keys:
        a batch that runs again comes to the same result."""
        bucket = KeyBucket(self._pages) if runner.keeps else None
        due = () if bucket is None else bucket.due_before(moment.watermark)
        counters: Counter[str] = Counter()
        for key in sorted({*rows, *due}):
            kept = KeptKey() if bucket is None else bucket.get(key)
            self._entries.of = kept.entries
            done = await runner.run(key, rows.get(key, ()), kept.timers, moment)
            if bucket is not None:
                self._keep(runner, bucket, key, kept, done)
            self._pack(runner, number, done)
            counters.update(done.effects.counters)
        for each in counters.items():
            self._add_result(number, COUNTER, counter_row(runner.step.name, *each), self._next())
        if bucket is not None:
            self._store(bucket, moment.watermark)

    def _keep(
        self, runner: StepRunner, bucket: KeyBucket, key: bytes, kept: KeptKey, done: Outcome
    ) -> None:
        if not done.changes and done.timers == kept.timers:
            return
        for entry, encoded in done.changes.items():
            if encoded is None:
                kept.entries.pop(entry, None)
            else:
                kept.entries[entry] = encoded, runner.step.version
        kept.timers = done.timers
        bucket.put(key, kept)

    def _store(self, bucket: KeyBucket, watermark: int) -> None:
        """Write a bucket, and have Spark call for it when its first timer is due.

        Args:
            watermark: Spark itself removes its timers before this instant, in microseconds.
        """
        bucket.divide()
        before, due = bucket.wake, bucket.due
        wake = bucket.wake = None if due == MAX_TIME else millis_of_timer(due)
        bucket.store()
        if wake == before:
            return
        if before is not None and before * 1000 >= watermark:
            self._handle.deleteTimer(before)
        if wake is not None:
            self._handle.registerTimer(wake)

    def _pack(self, runner: StepRunner, number: int, done: Outcome) -> None:
        effects = done.effects
        for chunks in effects.productions.of.values():
            for chunk in chunks:
                if chunk.receiver:  # otherwise nobody reads it
                    self._pack_records(chunk, done.place)
        for table, values in effects.rows:
            self._add_result(number, TABLE, table_row(table, values), self._next(done.place))
        for letter in effects.dead_letters:
            value = letter_row(runner.step.name, letter)
            self._add_result(number, LETTER, value, self._next(done.place))

    def _pack_records(self, chunk: Chunk, place: int | None) -> None:
        receiver, stream = self._plan.name_of(chunk.receiver), chunk.stream
        columns = (chunk.key_texts, chunk.slots, chunk.encoded, chunk.micros, chunk.holds)
        for key, slot, encoded, micros, hold in zip(*columns, strict=True):
            row = StreamRow(key, stream, encoded, micros, hold > micros, self._next(place))
            self._packing.add(receiver, slot, row)

    def _add_result(self, number: int, kind: str, value: bytes, place: int) -> None:
        self._packing.add_result(number, StreamRow(b"", kind, value, 0, False, place))

    def _next(self, place: int | None = None) -> int:
        """The place of the next row among those of the task, unless it has one already."""
        self._seq += 1
        return self._seq if place is None else place
