"""Expiring: state with a time to live, by event time and by wall time."""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

import msgspec
import pytest

from millwheel import Computation, Context, ListState, MapState, Pipeline, Record, Stream, Timer
from millwheel.computations import Expiring, FlatMap
from millwheel.errors import GraphError
from millwheel.testing import Harness, advance, assert_exactly_once, inject
from tests.support.pipelines import QUICK, script
from tests.support.values import EPOCH, ITEMS, Item, at, key_of, time_of

COUNTS = Stream("counts", int)
SECOND = timedelta(seconds=1)


class Visits(msgspec.Struct):
    """State of every kind."""

    count: int = 0
    numbers: MapState[int, int] = msgspec.field(default_factory=MapState)
    queue: ListState[int] = msgspec.field(default_factory=ListState)


class CountVisits(Computation[Item, Visits]):
    """Tells how many there were."""

    writes = (COUNTS,)
    version = 3

    async def process_record(self, record: Record[Item], ctx: Context[Visits]) -> None:
        ctx.state.count += 1
        ctx.state.numbers.put(record.value.number, 1)
        await ctx.state.queue.append(record.value.number)
        assert len([n async for n in ctx.state.numbers.items()]) == ctx.state.count
        ctx.produce(COUNTS, ctx.state.count)
        if record.value.number < 0:
            ctx.set_timer(record.timestamp + 50 * SECOND, tag="own")

    async def process_timer(self, timer: Timer, ctx: Context[Visits]) -> None:
        assert timer.tag == "own"
        ctx.produce(COUNTS, 1000 + ctx.state.count)


def visits(after: float = 10, time: Literal["event", "wall"] = "event") -> Pipeline:
    pipeline = Pipeline("visits", settings=QUICK)
    pipeline.inject(ITEMS, script(ITEMS, []), timestamp=time_of, lateness=timedelta(days=1))
    expiring = Expiring(CountVisits(), after=after * SECOND, time=time)
    pipeline.add(expiring, ITEMS.by(key_of))
    return pipeline


async def test_state_goes_when_the_watermark_is_past_the_newest_record_by_the_time() -> None:
    async with Harness(visits()) as harness:
        await harness.inject(ITEMS, Item("a", 1, 100), Item("a", 2, 95))
        await harness.advance(ITEMS, at(110))
        assert harness.state("count_visits", "a")[""]["count"] == 2
        await harness.advance(ITEMS, at(110.000001))
        assert harness.store.states() == []
        assert harness.store.timers() == []
        await harness.inject(ITEMS, Item("a", 3, 120))
        assert harness.produced(COUNTS) == [1, 2, 1]


async def test_a_record_prolongs_it_and_sets_no_timer_of_its_own() -> None:
    async with Harness(visits()) as harness:
        for second in range(100, 140, 5):
            await harness.inject(ITEMS, Item("a", second, second))
            await harness.advance(ITEMS, at(second))
            assert len(harness.store.timers()) == 1
        assert harness.produced(COUNTS) == list(range(1, 9))
        await harness.advance(ITEMS, at(145))
        assert harness.state("count_visits", "a")[""]["count"] == 8
        await harness.advance(ITEMS, at(146))
        assert harness.store.states() == []


async def test_a_late_record_counts_as_of_the_watermark() -> None:
    async with Harness(visits()) as harness:
        await harness.advance(ITEMS, at(1000))
        await harness.inject(ITEMS, Item("a", 1, 5))
        await harness.advance(ITEMS, at(1010))
        assert harness.state("count_visits", "a") != {}
        await harness.advance(ITEMS, at(1011))
        assert harness.store.states() == []


async def test_its_own_timers_find_the_state_empty() -> None:
    async with Harness(visits()) as harness:
        await harness.inject(ITEMS, Item("a", -1, 100))
        await harness.advance(ITEMS, at(151))
        assert harness.produced(COUNTS) == [1, 1000]
        assert harness.store.states() == []


async def test_wall_time_counts_from_when_a_record_was_processed() -> None:
    async with Harness(visits(time="wall")) as harness:
        await harness.inject(ITEMS, Item("a", 1, 100))
        await harness.advance(ITEMS, at(10_000))
        await harness.sleep(6)
        await harness.inject(ITEMS, Item("a", 2, 50))
        await harness.sleep(6)
        assert harness.state("count_visits", "a")[""]["count"] == 2
        await harness.sleep(5)
        assert harness.store.states() == []
        assert harness.store.timers() == []
        await harness.inject(ITEMS, Item("a", 3, 100))
        assert harness.produced(COUNTS) == [1, 2, 1]


async def test_a_clock_at_the_end_of_time_forgets_everything() -> None:
    async with Harness(visits(after=1e9)) as harness:
        await harness.inject(ITEMS, Item("a", 1, 253402127999.0 - at(0).timestamp()))
        await harness.advance(ITEMS, at(253402214400.0 - at(0).timestamp()))
        assert harness.store.states() == []


async def test_it_holds_through_every_mode_of_the_kit() -> None:
    steps: list[Any] = []
    for number, second in enumerate([0, 5, 3, 14, 40, 41, 60]):
        steps += [inject(ITEMS, Item("a", number, second)), advance(ITEMS, at(second))]
    expected = [1, 2, 3, 4, 1, 2, 1]
    await assert_exactly_once(visits(), [*steps, advance(ITEMS, at(99))], {COUNTS: expected})


def test_it_stands_for_the_computation() -> None:
    expiring = Expiring(CountVisits(), after=SECOND)
    assert (expiring.name, expiring.version) == ("count_visits", 3)
    assert expiring.writes == (COUNTS,)
    assert issubclass(expiring.state_type, Visits)


class Frozen(msgspec.Struct, frozen=True):
    count: int = 0


class Taken(msgspec.Struct):
    expires_at: int = 0


@dataclasses.dataclass
class Plain:
    count: int = 0
    numbers: MapState[int, int] = dataclasses.field(default_factory=MapState)


def of(state: Any) -> Computation[Item, Any]:
    class Some(Computation[Item, Any]):
        writes = (COUNTS,)

        @property
        def state_type(self) -> Any:
            return state

        async def process_record(self, record: Record[Item], ctx: Context[Any]) -> None:
            ctx.state.count += 1
            ctx.produce(COUNTS, ctx.state.count)

    return Some()


async def test_a_dataclass_expires_too() -> None:
    pipeline = Pipeline("plain", settings=QUICK)
    pipeline.inject(ITEMS, script(ITEMS, []), timestamp=time_of, lateness=timedelta(days=1))
    pipeline.add(Expiring(of(Plain), after=10 * SECOND), ITEMS.by(key_of))
    async with Harness(pipeline) as harness:
        await harness.inject(ITEMS, Item("a", 1, 0), Item("a", 2, 0))
        await harness.advance(ITEMS, at(11))
        await harness.inject(ITEMS, Item("a", 3, 20))
        assert harness.produced(COUNTS) == [1, 2, 1]


AFTER_EPOCH = (datetime(1970, 1, 1, tzinfo=UTC) - EPOCH).total_seconds()
"""Seconds of an item at 1970-01-01T00:00Z."""


@pytest.mark.parametrize(
    "first", [-20_000_000.0, -11.0, -10.0, -9.0, 0.0], ids=lambda first: f"{first:+.0f}s"
)
async def test_state_expires_before_1970_at_its_instant_and_after_it(first: float) -> None:
    """An expiry of 0 microseconds is the epoch's own instant, not "none"."""
    start = AFTER_EPOCH + first
    async with Harness(visits()) as harness:
        await harness.inject(ITEMS, Item("a", 1, start), Item("a", 2, start))
        await harness.advance(ITEMS, at(start + 10))
        assert harness.state("count_visits", "a")[""]["expires_at"] == (first + 10) * 1_000_000
        await harness.inject(ITEMS, Item("a", 3, start + 10))  # not past the time to live yet
        await harness.advance(ITEMS, at(start + 20.000001))
        assert harness.store.states() == []
        assert harness.store.timers() == []
        await harness.inject(ITEMS, Item("a", 4, start + 30))
        assert harness.produced(COUNTS) == [1, 2, 3, 1]


@pytest.mark.parametrize("state", [Frozen, dict[str, int], int])
def test_a_state_that_cannot_take_a_field_is_refused(state: Any) -> None:
    with pytest.raises(GraphError, match=r"must be a msgspec\.Struct or a dataclass that is not"):
        Expiring(of(state), after=SECOND)


def test_what_cannot_expire_is_refused() -> None:
    with pytest.raises(GraphError, match="nothing can expire"):
        Expiring(FlatMap(lambda item: [1], to=COUNTS), after=SECOND)
    with pytest.raises(GraphError, match="already has a field expires_at"):
        Expiring(of(Taken), after=SECOND)
    for seconds in (0, -1):
        with pytest.raises(GraphError, match="after must be a timedelta above zero"):
            Expiring(CountVisits(), after=seconds * SECOND)
    with pytest.raises(GraphError, match="'event' or 'wall'"):
        Expiring(CountVisits(), after=SECOND, time="sun")  # type: ignore[arg-type]
