"""One level of the graph as an operator of Spark, with the state and timers of its keys (paper
section 4).

Spark groups the rows of a batch by step and key, and calls the operator once for each group, and
once more for each group with a timer that its watermark has passed. Rows for other levels, and
results, pass through.

State is one map a key: the entries of the view ``states``, each with its JSON and its version;
timers are another. So a pipeline is moved to Spark and back by copying rows, and migrations keep
working.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from typing import Any

from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import (
    ExpiredTimerInfo,
    MapState,
    StatefulProcessor,
    StatefulProcessorHandle,
    TimerValues,
)

from millwheel.core.model import MIN_TIME
from millwheel.spark.engine.key_run import Entry, IdRunner, Moment, Outcome, StepRunner
from millwheel.spark.engine.plan import SparkPlan, planned
from millwheel.spark.engine.stream_rows import (
    BUNCHES,
    COUNTER,
    LETTER,
    RESULT,
    TABLE,
    StreamRow,
    counter_row,
    letter_row,
    mark_of,
    micros_of_watermark,
    millis_of_timer,
    table_row,
)

CELLS, TIMERS = "cells", "timers"
"""Names of the two maps; also the kinds of rows of a state to begin with."""


class LevelOperator(StatefulProcessor):
    """Runs the steps of one level.

    Args:
        target: MODULE:PIPELINE.
        level: the level, from 1.
        floor: the least low watermark, in microseconds: Spark's begins in 1970, also for a pipeline
            that was moved.
    """

    def __init__(self, target: str, level: int, floor: int = MIN_TIME) -> None:
        self._target = target
        self._level = level
        self._floor = floor

    # -- called by Spark, which gives the arguments by name -------------------------------

    def init(self, handle: StatefulProcessorHandle) -> None:
        plan = planned(self._target)
        self._handle = handle
        self._cells = handle.getMapState(CELLS, "entry STRING", "value STRING, version INT")
        self._timers = handle.getMapState(TIMERS, "tag STRING", "due BIGINT")
        self._loop = asyncio.new_event_loop()
        self._plan = plan
        self._seq = 0
        self._place: int | None = None
        self._key_cells = KeyCells(self._cells)
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
        yield from self._run(runner, key[1], [StreamRow(*row) for row in rows], timerValues)

    def handleExpiredTimer(
        self, key: Any, timerValues: TimerValues, expiredTimerInfo: ExpiredTimerInfo
    ) -> Iterator[Row]:
        yield from self._run(self._runners[key[0]], key[1], [], timerValues)

    def handleInitialState(self, key: Any, initialState: Any, timerValues: TimerValues) -> None:
        """Take over an entry or a timer that was exported from the engine."""
        if key[0] not in self._runners:
            return
        if initialState.kind == CELLS:
            entry = (initialState.value, initialState.version)
            self._cells.updateValue((initialState.name,), entry)
        else:
            self._timers.updateValue((initialState.name,), (initialState.due,))
            self._handle.registerTimer(millis_of_timer(initialState.due))

    def close(self) -> None:
        self._loop.close()

    # -- -----------------------------------------------------------------------------------

    def _runner(self, plan: SparkPlan, name: str) -> StepRunner:
        step = plan.steps[name]
        cells, first = self._key_cells, self._level == 1
        if step.node.named:
            seconds = plan.pipeline.settings.id_retention_seconds
            return IdRunner(
                step, cells.load, cells.load_all, is_first=first, retention_seconds=seconds
            )
        return StepRunner(step, cells.load, cells.load_all, is_first=first)

    def _run(
        self, runner: StepRunner, key: str, rows: list[StreamRow], times: TimerValues
    ) -> Iterator[Row]:
        watermark = micros_of_watermark(times.getCurrentWatermarkInMs())
        moment = Moment(
            max(self._floor, MIN_TIME if watermark is None else watermark),
            times.getCurrentProcessingTimeInMs() * 1000,
        )
        self._key_cells.begin()
        before = {}
        if runner.has_timers:  # each look at the state of Spark is a call to another process
            before = {tag: due for (tag,), (due,) in self._timers.iterator()}
        done = runner.run(key.encode(), rows, before, moment, self._loop)
        self._store(runner, done, before, moment)
        yield from self._rows(runner, done, moment)

    def _store(
        self, runner: StepRunner, done: Outcome, before: dict[str, int], moment: Moment
    ) -> None:
        for entry, encoded in done.changes.items():
            if encoded is None:
                self._cells.removeKey((entry,))
            else:
                self._cells.updateValue((entry,), (encoded.decode(), runner.step.version))
        for tag in before.keys() - done.timers.keys():
            self._timers.removeKey((tag,))
        for tag, due in done.timers.items():
            if before.get(tag) != due:
                self._timers.updateValue((tag,), (due,))
        wanted = {millis_of_timer(due) for due in done.timers.values()}
        known = {millis_of_timer(due) for due in before.values() if due >= moment.watermark}
        for millis in known - wanted:
            self._handle.deleteTimer(millis)
        for millis in wanted - known:
            self._handle.registerTimer(millis)

    def _rows(self, runner: StepRunner, done: Outcome, moment: Moment) -> Iterator[Row]:
        effects, name = done.effects, runner.step.name
        mark = mark_of(moment.watermark + 1_000)
        self._place = done.place
        for chunks in effects.productions.of.values():
            for chunk in chunks:
                if not chunk.receiver:
                    continue  # nobody reads it
                receiver = self._plan.name_of(chunk.receiver)
                columns = zip(
                    chunk.key_texts, chunk.encoded, chunk.micros, chunk.holds, strict=True
                )
                for key_text, encoded, micros, hold in columns:
                    to = receiver, key_text.decode(), chunk.stream
                    yield self._row(to, encoded.decode(), mark, micros, late=hold > micros)
        for table, values in effects.rows:
            yield self._result(TABLE, table_row(table, values), mark)
        for counter, by in effects.counters.items():
            yield self._result(COUNTER, counter_row(name, counter, by), mark)
        for letter in effects.dead_letters:
            yield self._result(LETTER, letter_row(name, letter), mark)

    def _result(self, kind: str, value: str, mark: Any) -> Row:
        return self._row((RESULT, str(self._seq % BUNCHES), kind), value, mark)

    def _row(
        self,
        to: tuple[str, str, str],
        value: str,
        mark: Any,
        micros: int = 0,
        *,
        late: bool = False,
    ) -> Row:
        """`to` is a receiver, a key and a stream."""
        self._seq += 1
        place = self._seq if self._place is None else self._place
        return ROW(*to, value, micros, late, place, mark)


ROW = Row(*StreamRow._fields)


class KeyCells:
    """The entries of the key that an operator runs; reads each one once, and all at most once."""

    def __init__(self, cells: MapState) -> None:
        self._cells = cells
        self._all: list[Entry] | None = None

    def begin(self) -> None:
        self._all = None

    def load(self, entry: str) -> Entry | None:
        found = self._cells.getValue((entry,))
        return None if found is None else (entry, found[0].encode(), found[1])

    def load_all(self) -> list[Entry]:
        if self._all is None:
            self._all = sorted(_entries(self._cells.iterator()))
        return self._all


def _entries(found: Iterable[Any]) -> Iterator[Entry]:
    for (entry,), (value, version) in found:
        yield entry, value.encode(), version
