"""The cap of a partition, as plain data: bounds, rest point, shares (decision 31)."""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from itertools import pairwise
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millwheel.runtime.source.pacing import FIRST_CAP, READINGS, SILENT_SECONDS, Pace
from tests.support.drawing import examples

CHUNK = 256


@dataclass
class Partition:
    """A partition with as many rows as anybody wants, from an instant on."""

    pace: Pace
    begins: float = 0.0
    next: int = 0
    first: int = 0
    waits: list[tuple[float, float]] = field(default_factory=list)
    """When a row was acknowledged, and how long it took."""

    @property
    def pending(self) -> int:
        return self.next - self.first


class Stage:
    """Rows of some partitions go through one after the other, then it takes them `base` more.

    Several are acknowledged together if they are done within `bundle` seconds.
    """

    def __init__(
        self, *partitions: Partition, rate: float, base: float = 0.0, bundle: float = 0.0
    ) -> None:
        self.partitions = partitions
        self.rate = rate
        self.base = base
        self.bundle = bundle
        self.now = 0.0
        self.free_at = 0.0
        self.done: list[tuple[float, int, int, int, float]] = []
        """Acknowledgements on their way: when, order, partition, up to which row, read when."""
        self.count = 0
        self.processed = 0

    def run(self, seconds: float) -> None:
        until = self.now + seconds
        while True:
            self._read()
            begins = min((p.begins for p in self.partitions if p.begins > self.now), default=inf)
            at = min(self.done[0][0] if self.done else inf, begins)
            if at > until:
                self.now = until
                return
            self.now = at
            while self.done and self.done[0][0] <= at:
                _, _, number, end, read_at = heapq.heappop(self.done)
                partition = self.partitions[number]
                self.processed += end - partition.first
                partition.waits.append((at, at - read_at))
                partition.first = end
                partition.pace.acknowledged(end, at)

    def _read(self) -> None:
        for number, partition in enumerate(self.partitions):
            if partition.begins > self.now:
                continue
            while rows := partition.pace.room(partition.pending, CHUNK):
                assert partition.pending + rows <= partition.pace.cap
                partition.next += rows
                partition.pace.read(partition.next, partition.pending, self.now)
                for row in range(partition.next - rows + 1, partition.next + 1):
                    self.free_at = max(self.free_at, self.now) + 1 / self.rate
                    at = self.free_at + self.base
                    if self.bundle:
                        at = (at // self.bundle + 1) * self.bundle
                    self.count += 1
                    heapq.heappush(self.done, (at, self.count, number, row, self.now))


def late_share(partition: Partition, since: float, target: float) -> float:
    """The part of the rows acknowledged since an instant that took longer than the target."""
    waits = [wait for at, wait in partition.waits if at >= since]
    return sum(wait > target for wait in waits) / len(waits)


def test_a_cap_without_a_target_stays() -> None:
    pace = Pace(100)
    assert (pace.cap, pace.latency_seconds) == (100, None)
    assert [pace.room(pending, CHUNK) for pending in (0, 50, 88, 89, 100, 120)] == [
        100, 50, 12, 0, 0, 0,
    ]  # fmt: skip
    assert pace.room(0, 8) == 8
    assert pace.room(92, 8) == 8
    pace.read(50, 50, 1.0)
    pace.read(100, 100, 2.0)
    pace.acknowledged(99, 3.0)
    assert (pace.cap, pace.latency_seconds) == (100, 2.0)


def test_what_was_on_its_way_when_it_starts_over_is_not_judged() -> None:
    pace = Pace(100, 1.0)
    pace.read(50, 50, 1.0)
    pace.start_over()
    pace.acknowledged(50, 99.0)
    assert (pace.cap, pace.latency_seconds) == (FIRST_CAP, None)


def test_a_cap_under_which_nothing_moves_is_doubled_now_and_then() -> None:
    pace = Pace(100, 1.0)
    pace.read(8, 8, 1000.0)
    pace.read(16, 16, 1010.0)
    assert not pace.loosen(1000.0 + SILENT_SECONDS - 1)
    assert pace.loosen(1000.0 + SILENT_SECONDS)
    assert pace.cap == 2 * FIRST_CAP
    assert not pace.loosen(1000.0 + 2 * SILENT_SECONDS - 1)
    pace.acknowledged(0, 1050.0)
    assert not pace.loosen(1000.0 + 2 * SILENT_SECONDS)
    for number in range(1, 9):
        assert pace.loosen(1050.0 + number * SILENT_SECONDS)
    assert pace.cap == 100
    assert not Pace(100).loosen(1e9)


@pytest.mark.parametrize("most", [1, 2, 5, 16, 1000])
def test_there_is_always_room_for_one_when_none_is_pending(most: int) -> None:
    for pace in (Pace(most), Pace(most, 0.001)):
        for number in range(100):
            assert 1 <= pace.room(0, 1) <= pace.room(0, CHUNK) <= most
            pace.read(number, 1, number * 100.0)
            pace.acknowledged(number, number * 100.0 + 50)
    assert pace.cap == 1


@pytest.mark.parametrize("bundle", [0.0, 0.1])
@pytest.mark.parametrize("rate", [20, 300, 2000])
def test_the_target_holds_and_the_stage_is_busy(rate: float, bundle: float) -> None:
    one = Partition(Pace(8000, 1.0))
    stage = Stage(one, rate=rate, base=0.02, bundle=bundle)
    stage.run(10)
    before = stage.processed
    stage.run(20)
    assert late_share(one, 10, 1.0) <= 0.05
    assert stage.processed - before >= 0.95 * 20 * rate
    assert 0.3 * rate < one.pace.cap < rate


def test_a_stage_that_gets_slow_and_quick_again() -> None:
    one = Partition(Pace(8000, 1.0))
    stage = Stage(one, rate=1000, base=0.02)
    stage.run(20)
    quick = one.pace.cap
    stage.rate = 100
    stage.run(10)
    assert one.pace.cap < 0.15 * quick
    stage.run(20)
    assert late_share(one, 30, 1.0) <= 0.05
    stage.rate = 1000
    stage.run(10)
    assert one.pace.cap > 0.8 * quick
    before = stage.processed
    stage.run(10)
    assert stage.processed - before >= 0.95 * 10 * 1000


def test_a_stage_that_stands_for_a_minute() -> None:
    one = Partition(Pace(8000, 1.0))
    stage = Stage(one, rate=1000, base=0.02)
    stage.run(20)
    quick = one.pace.cap
    stage.free_at += 60
    stage.run(60)
    stage.run(15)
    assert one.pace.cap > 0.8 * quick


def test_one_slow_reading_of_many_is_not_taken_for_a_slow_stage() -> None:
    pace = Pace(8000, 1.0)
    for number in range(10 * READINGS):
        pace.read(number, pace.cap, float(number))
        pace.acknowledged(number, number + (9.0 if number % READINGS == 7 else 0.1))
    assert pace.cap > 1000
    for number in range(1000, 1002):
        pace.read(number, pace.cap, float(number))
        pace.acknowledged(number, number + 9.0)
    assert pace.cap < 1000


def filled(pace: Pace, end: int, now: float) -> int:
    """Read until the cap is used up; gives the end of the rows."""
    pending = 0
    while rows := pace.room(pending, CHUNK):
        pending += rows
        end += rows
        pace.read(end, pending, now)
    return end


def test_no_more_is_tried_than_twice_what_was() -> None:
    """Sixteen rows in a millisecond say little of what thousands take."""
    pace, caps, end = Pace(8000, 1.0), [], 0
    for turn in range(60):
        caps.append(pace.cap)
        end = filled(pace, end, float(turn))
        pace.acknowledged(end, turn + 0.001)
    assert caps[0] == FIRST_CAP
    assert all(later <= 2 * earlier for earlier, later in pairwise(caps))
    assert caps[-1] == 8000


def test_what_was_read_before_the_cap_fell_does_not_press_it_down_again() -> None:
    pace, end = Pace(1000, 1.0), 0
    for turn in range(40):
        end = filled(pace, end, float(turn))
        pace.acknowledged(end, turn + 0.01)
    assert pace.cap == 1000
    end = filled(pace, end, 100.0)
    for number in range(end - 1000, end + 1, 10):
        pace.acknowledged(number, 110.0)
    assert 70 <= pace.cap <= 120, "1,000 took ten seconds"


def test_a_source_that_gives_little_does_not_move_the_cap() -> None:
    pace = Pace(8000, 1.0)
    stage = Stage(Partition(pace), rate=1000, base=0.02)
    stage.run(20)
    pace.start_over()
    before = pace.cap
    for number in range(100_000, 100_100):
        pace.read(number, 2, float(number))
        pace.acknowledged(number, number + 0.01)
    assert pace.cap == before


def test_partitions_that_share_a_stage_come_to_equal_shares() -> None:
    """The second one begins when the first has all of it to itself."""
    first, second, third = (Partition(Pace(8000, 1.0), begins) for begins in (0.0, 20.0, 20.0))
    stage = Stage(first, second, third, rate=400, base=0.02)
    stage.run(20)
    assert first.pace.cap > 250
    stage.run(100)
    caps = sorted(partition.pace.cap for partition in stage.partitions)
    assert caps[-1] < 2 * caps[0]
    for partition in stage.partitions:
        assert late_share(partition, 60, 1.0) <= 0.05
    before = stage.processed
    stage.run(10)
    assert stage.processed - before >= 0.95 * 10 * 400


@examples(30)
@given(
    target=st.sampled_from([0.5, 1.0, 3.0]),
    in_target=st.floats(20, 600),
    base=st.floats(0, 0.29),
    most=st.sampled_from([8000, 200]),
    bundle=st.sampled_from([0.0, 0.1]),
)
def test_it_comes_to_rest_below_the_target_for_any_constant_rate(
    target: float, in_target: float, base: float, most: int, bundle: float
) -> None:
    """`in_target` rows are done within the target; base and bundle are parts of it too. Together
    they stay below 0.4 of it: from there on the cap may rest where a fifth to a half of the rate is
    left."""
    one = Partition(Pace(most, target))
    rate, base, bundle = in_target / target, base * target, bundle * target
    stage = Stage(one, rate=rate, base=base, bundle=bundle)
    settled = 20 * target
    stage.run(settled)
    before = stage.processed
    stage.run(10 * target)
    fastest = min(rate, most / (base + bundle + 1 / rate))
    assert late_share(one, settled, target) <= 0.05
    assert stage.processed - before >= 0.9 * 10 * target * fastest - 2


EVENTS = st.lists(st.tuples(st.integers(0, 400), st.floats(0, 100), st.integers(0, 3)), max_size=60)


@examples(100)
@given(EVENTS, st.integers(1, 9000), st.sampled_from([None, 0.01, 1.0, 100.0]))
def test_whatever_happens_the_cap_keeps_its_bounds(
    events: list[tuple[int, float, int]], most: int, target: float | None
) -> None:
    pace = Pace(most, target)
    now, first, ends = 0.0, 0, [0]
    for wanted, seconds, acknowledged in events:
        now += seconds
        pending = ends[-1] - first
        rows = min(wanted, pace.room(pending, CHUNK))
        assert 0 <= rows <= CHUNK
        if rows:
            ends.append(ends[-1] + rows)
            pace.read(ends[-1], pending + rows, now)
        for _ in range(acknowledged):
            if len(ends) > 1:
                first = ends.pop(0)
                pace.acknowledged(first, now)
        assert 1 <= pace.cap <= most
        assert pace.room(0, 1) == 1
        assert target is not None or pace.cap == most
