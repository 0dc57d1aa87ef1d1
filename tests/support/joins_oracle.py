"""What a join must answer, worked out over all records at once; and a pipeline to ask it in."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal

import msgspec
from hypothesis import strategies as st

from millwheel import Computation, Context, Pipeline, Record, Settings, Stream, Table
from millwheel.computations import FlatMap, IntervalJoin, TemporalJoin, WindowJoin
from millwheel.core.model import to_micros
from millwheel.windows import Tumbling
from tests.support.pipelines import script
from tests.support.values import ITEMS, Item, at, key_of, time_of

LEFT = Stream("left_items", Item)
RIGHT = Stream("right_items", Item)
LATE_LEFT = Stream("late_left", Item)
LATE_RIGHT = Stream("late_right", Item)
SIZE = 10
"""Seconds of a window."""

ON_TIME = 100
"""Seconds of lateness with which no record of these tests is late."""


class Pair(msgspec.Struct, frozen=True):
    """The numbers of a left and a right item; None: there was none."""

    left: int | None
    right: int | None


class Told(msgspec.Struct, frozen=True):
    """A pair with its timestamp, in microseconds."""

    left: int | None
    right: int | None
    micros: int


PAIRS = Stream("pairs", Pair)
TOLD = Stream("told", Told)
Kind = Literal["inner", "left", "right", "outer"]
KINDS: list[Kind] = ["inner", "left", "right", "outer"]


def pair(left: Item, right: Item) -> Pair:
    return Pair(left.number, right.number)


def left_alone(left: Item) -> Pair:
    return Pair(left.number, None)


def right_alone(right: Item) -> Pair:
    return Pair(None, right.number)


def alone(kind: Kind) -> dict[str, Any]:
    """The functions that make a join of this kind."""
    return {
        "unmatched_left": left_alone if kind in ("left", "outer") else None,
        "unmatched_right": right_alone if kind in ("right", "outer") else None,
    }


class Tell(Computation[Pair, None]):
    """Writes down the timestamp of each pair, and sees that it comes on time (I7) if all records
    do. (One behind its sender's watermark, but not yet behind the join's, is joined; what comes
    of it may be late.)"""

    writes = (TOLD,)

    def __init__(self, *, on_time: bool) -> None:
        self._on_time = on_time

    async def process_record(self, record: Record[Pair], ctx: Context[None]) -> None:
        if self._on_time:
            assert record.timestamp >= ctx.low_watermark, "a result of records on time is late"
        ctx.produce(TOLD, Told(record.value.left, record.value.right, record.micros))


@dataclass(frozen=True)
class Setup:
    """A join, and how its two streams come in."""

    what: Literal["interval", "window", "temporal"]
    kind: Kind
    before: int
    after: int
    """Seconds; 0: left out."""
    split: bool
    """Both sides come out of one source, in one order; else from a source each."""
    lateness: int

    def join(self) -> Computation[Item, Any]:
        late: dict[str, Any] = {"late_left": LATE_LEFT, "late_right": LATE_RIGHT}
        if self.what == "interval":
            bounds: dict[str, Any] = {
                name: timedelta(seconds=seconds)
                for name, seconds in (("before", self.before), ("after", self.after))
                if seconds
            }
            return IntervalJoin(
                LEFT, RIGHT, **bounds, to=PAIRS, combine=pair, **alone(self.kind), **late
            )
        if self.what == "window":
            windows = Tumbling(seconds=SIZE)
            return WindowJoin(
                LEFT, RIGHT, windows, to=PAIRS, combine=pair, **alone(self.kind), **late
            )
        unmatched = left_alone if self.kind == "left" else None
        return TemporalJoin(
            LEFT, RIGHT, to=PAIRS, combine=pair, unmatched=unmatched, late=LATE_LEFT
        )

    def build(self, values: list[Item], limits: Settings) -> Pipeline:
        pipeline = Pipeline("joins", settings=limits)
        lateness = timedelta(seconds=self.lateness)
        if self.split:
            pipeline.inject(ITEMS, script(ITEMS, values), timestamp=time_of, lateness=lateness)
            pipeline.add(FlatMap(lambda i: [i] if is_left(i) else [], to=LEFT), ITEMS.by(key_of))
            pipeline.add(FlatMap(lambda i: [] if is_left(i) else [i], to=RIGHT), ITEMS.by(key_of))
        else:
            for stream, mine in (LEFT, True), (RIGHT, False):
                own = [value for value in values if is_left(value) == mine]
                source = script(stream, own, stream.name)
                pipeline.inject(stream, source, timestamp=time_of, lateness=lateness)
        pipeline.add(self.join(), LEFT.by(key_of), RIGHT.by(key_of))
        pipeline.add(
            Tell(on_time=self.lateness == ON_TIME), PAIRS.by(lambda found: found.left or 0)
        )
        pipeline.sink(TOLD, Table("told", Told))
        pipeline.sink(LATE_LEFT, Table("late_left", Item))
        if self.what != "temporal":
            pipeline.sink(LATE_RIGHT, Table("late_right", Item))
        return pipeline

    def answer(self, values: list[Item]) -> Counter[Told]:
        """What must come of records that are all on time."""
        left = [value for value in values if is_left(value)]
        right = [value for value in values if not is_left(value)]
        if self.what == "temporal":
            return self._rows(left, right)
        found: Counter[Told] = Counter()
        for one in left:
            for other in right:
                if one.key == other.key and self._meet(one, other):
                    latest = max(one.second, other.second)
                    found[_told(one, other, self._stamp(latest, 0))] += 1
        lefts = {told.left for told in found}
        rights = {told.right for told in found}
        if self.kind in ("left", "outer"):
            for one in left:
                if one.number not in lefts:
                    found[_told(one, None, self._stamp(one.second, self.after))] += 1
        if self.kind in ("right", "outer"):
            for other in right:
                if other.number not in rights:
                    found[_told(None, other, self._stamp(other.second, self.before))] += 1
        return found

    def _meet(self, left: Item, right: Item) -> bool:
        if self.what == "window":
            return left.second // SIZE == right.second // SIZE
        return -self.before <= right.second - left.second <= self.after

    def _stamp(self, second: float, delay: int) -> int:
        if self.what == "window":
            return to_micros(at((second // SIZE + 1) * SIZE)) - 1
        return to_micros(at(second + delay))

    def _rows(self, records: list[Item], versions: list[Item]) -> Counter[Told]:
        found: Counter[Told] = Counter()
        for record in records:
            rows = [v for v in versions if v.key == record.key and v.second <= record.second]
            row = max(rows, key=lambda v: (v.second, v.number), default=None)
            if row is not None or self.kind == "left":
                found[_told(record, row, to_micros(at(record.second)))] += 1
        return found


def is_left(item: Item) -> bool:
    """Items tell their side by their number."""
    return item.number % 2 == 0


def _told(left: Item | None, right: Item | None, micros: int) -> Told:
    return Told(left.number if left else None, right.number if right else None, micros)


@st.composite
def arrivals(draw: st.DrawFn) -> list[Item]:
    """Items of two sides and keys in any order; numbers grow in the order of arrival."""
    seconds = st.integers(0, 60)
    drawn = draw(
        st.lists(st.tuples(st.booleans(), st.sampled_from("ab"), seconds), min_size=1, max_size=24)
    )
    return [Item(key, 2 * n + right, second) for n, (right, key, second) in enumerate(drawn)]


@st.composite
def setups(
    draw: st.DrawFn, what: Literal["interval", "window", "temporal"]
) -> tuple[Setup, list[Item]]:
    before = draw(st.sampled_from([0, 1, 5, 20]))
    after = draw(st.sampled_from([1, 7, 30] if before == 0 else [0, 1, 7, 30]))
    # A version that is late changes what comes later: only the others have late records.
    lateness = ON_TIME if what == "temporal" else draw(st.sampled_from([ON_TIME, ON_TIME, 15, 0]))
    kinds: list[Kind] = ["inner", "left"] if what == "temporal" else KINDS
    kind = draw(st.sampled_from(kinds))
    return Setup(what, kind, before, after, draw(st.booleans()), lateness), draw(arrivals())
