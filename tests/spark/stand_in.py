"""A stand-in for Spark's stateful operator: the engine on Spark without Java.

The source, the operators and the tables are the product's own. Only what Spark does between them is
done here, by its rules: an operator gets the rows of a batch grouped by step and bucket, in no
order, then the timers that the watermark has passed; the watermark of a batch is the greatest mark
of the batches before, less the delay; a row that is not after the watermark of the batch before
would be dropped, and is an error here, since no row of the product may be.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from itertools import islice
from typing import Any

import pyarrow as pa
from pyspark.sql import Row
from pyspark.sql.streaming.datasource import ReadMaxRows
from pyspark.sql.streaming.stateful_processor import TimerValues

from millwheel.core.model import EPOCH, MIN_TIME
from millwheel.spark.engine.buckets import DIRECTORY, PAGES
from millwheel.spark.engine.input import InputReader
from millwheel.spark.engine.moved_keys import START_COLUMNS, packing, unpacked
from millwheel.spark.engine.operator import LevelOperator
from millwheel.spark.engine.plan import SparkPlan
from millwheel.spark.engine.query_progress import StoredQuery
from millwheel.spark.engine.result_writer import PARCELS, ResultWriter
from millwheel.spark.engine.staged_results import Results

QUERY = "6e7f5b1c-3c1d-4a53-9f0a-5a1b4f3f0001"
"""The id of the query."""

BUCKETS = 64
Group = tuple[str, int]
"""A step, and a bucket of its keys."""
START = Row("receiver", "bucket", "keys")


class KeptMap:
    """A MapState of the group that runs."""

    def __init__(self) -> None:
        self.of: dict[Group, dict[Any, Any]] = defaultdict(dict)
        self.group: Group = ("", 0)

    def getValue(self, key: Any) -> Any:
        return self.of[self.group].get(key)

    def updateValue(self, key: Any, value: Any) -> None:
        self.of[self.group][key] = value

    def removeKey(self, key: Any) -> None:
        self.of[self.group].pop(key, None)

    def iterator(self) -> Iterator[Any]:
        return iter(list(self.of[self.group].items()))


class Kept:
    """What Spark keeps for one task of an operator, as a handle of it."""

    def __init__(self) -> None:
        self.maps: dict[str, KeptMap] = defaultdict(KeptMap)
        self.timers: dict[Group, set[int]] = defaultdict(set)
        self.group: Group = ("", 0)

    def begin(self, group: Group) -> None:
        self.group = group
        for kept in self.maps.values():
            kept.group = group

    def getMapState(self, name: str, key: str, value: str) -> KeptMap:
        return self.maps[name]

    def registerTimer(self, millis: int) -> None:
        self.timers[self.group].add(millis)

    def deleteTimer(self, millis: int) -> None:
        self.timers[self.group].discard(millis)


@dataclass(frozen=True)
class Batch:
    """The times of a batch, in milliseconds: its watermark, that of the batch before, and the
    clock."""

    watermark: int
    before: int
    now: int


class Task:
    """One task of an operator, which has the same groups in each batch."""

    def __init__(self, target: str, level: int, buckets: int, floor: int) -> None:
        self._target = target
        self._level = level
        self._buckets = buckets
        self._floor = floor
        self.kept = Kept()

    def begin_with(self, row: Row) -> None:
        operator = self._operator()
        with closing(operator):
            group = row.receiver, row.bucket
            self.kept.begin(group)
            operator.handleInitialState(key=group, initialState=row, timerValues=TimerValues(0, 0))

    def _operator(self) -> LevelOperator:
        operator = LevelOperator(self._target, self._level, self._buckets, self._floor)
        operator.init(self.kept)  # type: ignore[arg-type]
        return operator

    def run(self, rows: list[Row], batch: Batch) -> list[Row]:
        operator = self._operator()
        with closing(operator):
            return self._run(operator, rows, batch)

    def _run(self, operator: LevelOperator, rows: list[Row], batch: Batch) -> list[Row]:
        times = TimerValues(batch.now, batch.watermark)
        groups: dict[Group, list[Row]] = defaultdict(list)
        for row in rows:
            assert millis(row.mark) > batch.before, ("Spark would drop this row as late", row)
            groups[row.receiver, row.bucket].append(row)
        found: list[Row] = []
        for group, own in groups.items():
            self.kept.begin(group)
            found += operator.handleInputRows(key=group, rows=iter(own), timerValues=times)
        for group in list(self.kept.timers):
            self.kept.begin(group)
            for at in sorted(t for t in self.kept.timers[group] if t <= batch.watermark):
                self.kept.timers[group].discard(at)
                found += operator.handleExpiredTimer(
                    key=group,
                    timerValues=times,
                    expiredTimerInfo=None,  # type: ignore[arg-type]
                )
        return found


class StandIn:
    """Runs a pipeline as Spark would.

    Args:
        rows: most rows of a batch.
        seed: of the order in which the rows of a batch arrive.
        tasks: tasks of each operator.
        buckets: of each step; 1: all keys share one.
    """

    def __init__(
        self,
        target: str,
        plan: SparkPlan,
        store: str,
        *,
        rows: int = 5_000,
        seed: int = 1,
        tasks: int = 2,
        buckets: int = BUCKETS,
        begins_with: dict[str, Any] | None = None,
    ) -> None:
        self.plan = plan
        self.offset: dict[str, Any] = {}
        self.watermark = 0
        """The watermark of the last batch, in milliseconds."""
        self._store = store
        self._reader = InputReader(target, rows, buckets, begins_with=begins_with)
        floor = MIN_TIME if begins_with is None else begins_with["mark"]
        self._rows = rows
        self._buckets = buckets
        self._random = random.Random(seed)
        self._levels = [
            [Task(target, level, buckets, floor) for _ in range(tasks)]
            for level in range(1, plan.depth + 1)
        ]
        self._stored = StoredQuery(store, plan.pipeline.name)
        self._results = Results(self._stored, plan.graph, {})
        self.batches = 0

    def begin_with(self, start: Iterable[tuple[Any, ...]]) -> None:
        """Give the operators states and timers: rows of the table ``spark_start``, in batches of a
        few."""
        for rows in batched(start, 7):
            columns = dict(zip(START_COLUMNS, zip(*rows, strict=True), strict=True))
            for batch in packing(self._buckets)(iter([pa.RecordBatch.from_pydict(columns)])):
                for row in made_rows(batch):
                    tasks = self._levels[self.plan.levels[row.receiver] - 1]
                    tasks[hash((row.receiver, row.bucket)) % len(tasks)].begin_with(START(*row))

    def kept(self) -> Iterator[tuple[Any, ...]]:
        """States and timers, as rows of the staging table in which they go back."""
        for task in (task for tasks in self._levels for task in tasks):
            for (receiver, _), pages in task.kept.maps[PAGES].of.items():
                stored = [content for (number,), (content,) in pages.items() if number > DIRECTORY]
                columns = {"receiver": [receiver] * len(stored), "content": stored}
                for batch in unpacked(iter([pa.RecordBatch.from_pydict(columns)])):
                    yield from (tuple(row.values()) for row in batch.to_pylist())

    def run(self, most: int | None = None, after: Callable[[], object] = lambda: None) -> None:
        """Do batches until nothing is new, or so many; `after` is called after each one."""
        reader = self._reader
        with ExitStack() as stack:
            stack.callback(reader.stop)
            stack.callback(self._results.close)
            self._results.prepare()
            reader.prepareForTriggerAvailableNow()
            offset = self.offset = reader.initialOffset()
            watermark = before = greatest = 0
            while most is None or self.batches < most:
                end = reader.latestOffset(offset, ReadMaxRows(self._rows))
                rows = [
                    row
                    for part in reader.partitions(offset, end)
                    for arrow in reader.read(part)
                    for row in made_rows(arrow)
                ]
                greatest = max([greatest, *(millis(row.mark) for row in rows)])
                if end == offset and watermark == before and self.batches:
                    break
                self._batch(rows, Batch(watermark, before, self.batches * 1_000))
                after()
                offset, before = end, watermark
                self.offset, self.watermark = end, watermark
                watermark = max(watermark, greatest - 1)

    def _batch(self, rows: list[Row], batch: Batch) -> None:
        frame = Frame(self._store, lambda: self._through(rows, batch))
        self._results.take(frame, QUERY, self.batches)  # type: ignore[arg-type]
        assert frame.ran == 1, "Spark would have no state of this batch"
        self.batches += 1

    def _through(self, rows: list[Row], batch: Batch) -> list[Row]:
        """The rows that leave the last operator."""
        for tasks in self._levels:
            self._random.shuffle(rows)
            found: list[Row] = []
            for number, task in enumerate(tasks):
                own = [r for r in rows if hash((r.receiver, r.bucket)) % len(tasks) == number]
                found += task.run(own, batch)
            rows = found
        return rows


class Frame:
    """The rows of a batch, as a DataFrame that is written: only then the operators run, as in
    Spark."""

    def __init__(self, store: str, rows: Callable[[], list[Row]]) -> None:
        self._store = store
        self._rows = rows
        self._format = ""
        self._options: dict[str, str] = {}
        self.ran = 0
        """How often the operators have run."""

    def select(self, *columns: str) -> Frame:
        assert columns == (PARCELS,)
        return self

    @property
    def write(self) -> Frame:
        return self

    def format(self, name: str) -> Frame:
        self._format = name
        return self

    def mode(self, name: str) -> Frame:
        return self

    def options(self, **options: str) -> Frame:
        self._options = options
        return self

    def save(self) -> None:
        rows = self._rows()
        self.ran += 1
        if self._format == "noop":
            return
        given = self._options
        place = given["pipeline"], given["staging"]
        writer = ResultWriter(self._store, place, given["batch"])
        table = pa.table({PARCELS: [row[PARCELS] for row in rows]})
        writer.commit([writer.write(iter(table.to_batches()))])


def batched(rows: Iterable[Any], size: int) -> Iterator[list[Any]]:
    left = iter(rows)
    while batch := list(islice(left, size)):
        yield batch


def made_rows(batch: pa.RecordBatch) -> list[Row]:
    """The rows of an Arrow batch, as an operator gets them."""
    return [Row(**row) for row in batch.to_pylist()]


def millis(mark: Any) -> int:
    return int((mark - EPOCH).total_seconds() * 1000)
