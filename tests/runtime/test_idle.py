"""Partitions that are idle, on several workers: nobody waits for them, wherever they are."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from millwheel import Computation, Context, Pipeline, Record, Stream, Table
from millwheel.core.model import MAX_TIME, MIN_TIME, to_micros
from millwheel.runtime.engine import Engine
from millwheel.runtime.interval.interval import Interval
from millwheel.runtime.source.injector import Injector
from millwheel.testing import inject
from millwheel.testing.script import Script, ScriptReader
from tests.support.clusters import SHARED, Cluster
from tests.support.pipelines import QUICK, Parts, Tally, script
from tests.support.values import ITEMS, TALLY, Count, Counted, Item, at, key_of, time_of
from tests.support.worlds import World

IDLE_SECONDS = 10.0
SOON = 3.0
"""Word of it has come to everybody by then."""


class Partitions(Cluster):
    """One source with some partitions, which are fed by hand."""

    endless = True

    def __init__(self, number: int, **options: Any) -> None:
        self.scripts = [script(ITEMS, [], f"part {n}") for n in range(number)]
        made = Pipeline("parts", settings=replace(SHARED, placement_cooldown_seconds=1.0))
        made.inject(
            ITEMS, Parts(*self.scripts), timestamp=time_of, name="source",
            idle_after=timedelta(seconds=IDLE_SECONDS),
            lateness=timedelta(seconds=options.pop("lateness", 0)),
        )  # fmt: skip
        made.add(Tally(), ITEMS.by(key_of), **options)
        made.sink(TALLY, Table("out", Counted, numbered=True))
        super().__init__(made)
        self._sent = 0

    async def spread(self, *, over: int) -> None:
        """Have so many workers, each with its share of the partitions."""
        while len(self.alive) < over:
            await self.join()
        least, most = len(self.scripts) // over, -(-len(self.scripts) // over)

        def is_even() -> bool:
            held = [len(engine.injectors) for engine in self.alive]
            owned = sum(len(engine.intervals) for engine in self.alive)
            placed = owned >= len(self.scripts) + SHARED.intervals
            return placed and min(held) >= least and max(held) <= most

        await self.go(is_even)
        await self.rest(SOON)

    def injector(self, number: int) -> Injector:
        """Who reads a partition."""
        (found,) = [
            injector
            for engine in self.alive
            for injector in engine.injectors
            if injector.interval.slots[0] == number
        ]
        return found

    def worker_of(self, number: int) -> Engine:
        """Where a partition is read."""
        injector = self.injector(number)
        return next(engine for engine in self.alive if injector in engine.injectors)

    async def feed(self, number: int, *seconds: float) -> None:
        """Rows of these times come to a partition, and are read and promised."""
        for second in seconds:
            self._sent += 1
            self.scripts[number].append(
                inject(ITEMS, Item(f"key {self._sent}", self._sent, second))
            )
        await self.go(lambda: len(self.rows()) == self._sent)
        await self.rest(0.5)

    async def rest(self, seconds: float) -> None:
        """Let time pass, during which nothing comes."""
        until = self.clock.monotonic() + seconds
        await self.go(lambda: self.clock.monotonic() >= until, tick=0.05)

    def stored(self, number: int) -> float | None:
        """What a partition has promised."""
        return _seconds(self.injector(number).interval.watermarks.durable)

    def low(self) -> float | None:
        """How far the counting is."""
        return _seconds(min(i.watermarks.durable for i in self._tallying()))

    def input(self) -> float | None:
        """What the counting goes by."""
        return _seconds(min(i.watermarks.input for i in self._tallying()))

    def _tallying(self) -> list[Interval]:
        found = [i for e in self.alive for i in e.intervals if i.step.name == "tally"]
        assert len(found) >= SHARED.intervals
        return found

    async def end(self) -> None:
        for engine in list(self.alive):
            await self.crash(engine)


def _seconds(micros: int) -> float | None:
    return None if micros == MIN_TIME else (micros - to_micros(at(0))) / 1e6


@pytest.mark.parametrize("workers", [1, 2, 3])
async def test_one_that_is_silent_is_not_waited_for_wherever_it_is(workers: int) -> None:
    cluster = Partitions(3)
    await cluster.spread(over=workers)
    await cluster.feed(0, 50)
    await cluster.feed(1, 60)
    assert cluster.low() is None, "of the third nothing is known"
    await cluster.rest(IDLE_SECONDS)
    for second in (70, 90):
        await cluster.feed(0, second)
        await cluster.feed(1, second + 5)
        await cluster.rest(SOON)
        assert cluster.low() == second, "it is the least of the other two"
        assert cluster.stored(2) == second
    await cluster.end()


async def test_it_goes_along_with_the_least_of_all_and_not_with_its_neighbour() -> None:
    cluster = Partitions(3)
    await cluster.spread(over=2)
    (pair,) = [e for e in cluster.alive if len(e.injectors) == 2]
    silent, neighbour = [i.interval.slots[0] for i in pair.injectors]
    (far,) = {0, 1, 2} - {silent, neighbour}
    for second in (50, 60):
        await cluster.feed(far, second)
        await cluster.feed(neighbour, second + 100)
        await cluster.rest(IDLE_SECONDS / 2 + 1)
    await cluster.feed(far, 70)
    await cluster.feed(neighbour, 170)
    await cluster.rest(SOON)
    assert cluster.stored(silent) == 70
    await cluster.feed(silent, 75)
    await cluster.rest(SOON)
    assert cluster.low() == 70
    assert cluster.stored(silent) == 75, "its row was on time"
    await cluster.end()


async def test_those_that_are_silent_do_not_wait_for_each_other() -> None:
    cluster = Partitions(4)
    await cluster.spread(over=4)
    await cluster.feed(1, 20)
    await cluster.rest(IDLE_SECONDS + SOON)
    for second in (50, 60):
        await cluster.feed(0, second)
        await cluster.rest(SOON)
        assert [cluster.stored(n) for n in range(4)] == [second] * 4
    await cluster.end()


async def test_one_that_is_held_up_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a partition with an open transaction, or without a leader: silence is no idleness if rows
    may be owed."""
    held: set[str] = set()

    def caught_up(reader: ScriptReader) -> bool:
        return reader._script.identity not in held

    monkeypatch.setattr(ScriptReader, "caught_up", property(caught_up))
    cluster = Partitions(2)
    await cluster.spread(over=2)
    await cluster.feed(0, 50)
    await cluster.feed(1, 50)
    held.add(cluster.scripts[1].identity)
    await cluster.rest(3 * IDLE_SECONDS)
    await cluster.feed(0, 100)
    await cluster.rest(SOON)
    assert cluster.low() == 50
    held.clear()
    await cluster.rest(IDLE_SECONDS / 2)
    assert cluster.low() == 50, "rows that were held up elsewhere have time to come"
    await cluster.feed(1, 60)
    await cluster.rest(SOON)
    assert cluster.stored(1) == 60, "its row was on time"
    await cluster.rest(IDLE_SECONDS)
    await cluster.feed(0, 110)
    await cluster.rest(SOON)
    assert cluster.low() == 110, "it is silent now"
    assert cluster.injector(1).idle
    held.add(cluster.scripts[1].identity)
    assert not cluster.injector(1).idle, "at once, not at the next look"
    await cluster.end()


async def test_where_all_are_silent_time_stands_still() -> None:
    cluster = Partitions(3)
    await cluster.spread(over=3)
    for number, second in enumerate((30, 20, 40)):
        await cluster.feed(number, second)
    await cluster.rest(10 * IDLE_SECONDS)
    assert [cluster.stored(n) for n in range(3)] == [40] * 3, "where the last was that spoke"
    assert cluster.low() == 40
    await cluster.end()


async def test_one_that_comes_back_counts_again_for_all_workers() -> None:
    cluster = Partitions(3)
    await cluster.spread(over=3)
    await cluster.rest(IDLE_SECONDS)
    await cluster.feed(0, 50)
    await cluster.rest(SOON)
    assert cluster.low() == 50
    await cluster.feed(1, 55)
    await cluster.rest(SOON)
    await cluster.feed(0, 100)
    await cluster.rest(SOON)
    assert [cluster.stored(n) for n in range(3)] == [100, 55, 55]
    assert cluster.low() == 55
    await cluster.rest(IDLE_SECONDS)
    await cluster.feed(0, 110)
    await cluster.rest(SOON)
    assert cluster.low() == 110, "it is silent again"
    await cluster.end()


async def test_one_whose_worker_is_gone_is_waited_for_until_somebody_has_looked() -> None:
    cluster = Partitions(2)
    await cluster.spread(over=2)
    await cluster.rest(IDLE_SECONDS)
    await cluster.feed(0, 50)
    await cluster.rest(SOON)
    assert cluster.low() == 50
    await cluster.crash(cluster.worker_of(1))
    await cluster.spread(over=1)
    await cluster.feed(0, 80)
    await cluster.rest(SOON)
    assert cluster.low() == 50, "its new worker has just begun to look"
    await cluster.rest(IDLE_SECONDS)
    await cluster.feed(0, 90)
    await cluster.rest(SOON)
    assert cluster.low() == 90
    await cluster.end()


async def test_percentiles_go_along_too() -> None:
    cluster = Partitions(2, low_watermark_percentile=90, lateness=100)
    await cluster.spread(over=2)
    await cluster.rest(IDLE_SECONDS)
    await cluster.feed(0, *range(1000, 1300))
    await cluster.rest(SOON)
    assert cluster.low() == 1199, "a hundred seconds of lateness"
    early = cluster.input()
    assert early is not None
    assert early > 1290
    await cluster.end()


async def test_percentiles_go_along_where_the_exact_watermark_does_not_move() -> None:
    cluster = Partitions(2, low_watermark_percentile=90, lateness=100)
    await cluster.spread(over=2)
    await cluster.feed(1, 1350)
    await cluster.feed(0, *range(1000, 1300))
    for second in (1301, 1302):
        await cluster.rest(IDLE_SECONDS / 2 + 1)
        await cluster.feed(0, second)
    await cluster.rest(SOON)
    assert cluster.stored(1) == 1250
    early = cluster.input()
    assert early is not None
    assert early > 1290
    await cluster.end()


# -- several injectors, on one worker -----------------------------------------------------------


def sources(number: int, lateness: float = 0, **options: Any) -> tuple[list[Script], Pipeline]:
    """As many injectors of one stream, with one partition each."""
    scripts = [script(ITEMS, [], f"source {n}") for n in range(number)]
    made = Pipeline("sources", settings=QUICK)
    for n, source in enumerate(scripts):
        made.inject(
            ITEMS, source, timestamp=time_of, name=f"source_{n}",
            idle_after=timedelta(seconds=IDLE_SECONDS), lateness=timedelta(seconds=lateness),
        )  # fmt: skip
    made.add(Tally(), ITEMS.by(key_of), **options)
    made.sink(TALLY, Table("out", Counted, numbered=True))
    return scripts, made


async def rest(world: World, seconds: float) -> None:
    until = world.clock.monotonic() + seconds
    await world.until(lambda: world.clock.monotonic() >= until, tick=0.05)


async def test_one_that_is_paused_counts_again() -> None:
    """Nobody knows what it will read when it goes on."""
    (busy, *_), made = sources(3)
    world = World(made)
    engine = await world.start()
    await rest(world, IDLE_SECONDS + SOON)

    async def feed(second: int) -> list[float | None]:
        busy.append(inject(ITEMS, Item("a", second, second)))
        await rest(world, SOON)
        return [_seconds(world.interval(f"source_{n}").watermarks.durable) for n in range(3)]

    assert await feed(50) == [50, 50, 50]
    world.store.pause("source_1")
    await rest(world, SOON)
    assert await feed(80) == [80, 50, 50]
    world.store.pause()
    await rest(world, SOON)
    assert await feed(90) == [90, 50, 50], "it is given time to read"
    await rest(world, IDLE_SECONDS)
    assert await feed(100) == [100, 100, 100]
    await engine.stop()


async def test_an_injector_that_keeps_no_percentile_counts_with_its_exact_watermark() -> None:
    (busy, _), made = sources(2, lateness=100, low_watermark_percentile=90)
    notes = Stream("notes", Item)
    aside = script(notes, [], "aside")
    made.inject(notes, aside, timestamp=time_of)
    made.add(Other(), notes.by(key_of))
    world = World(made)
    engine = await world.start()
    await rest(world, IDLE_SECONDS - 1)
    aside.append(inject(notes, Item("x", 0, 1280)))
    for n in range(300):
        busy.append(inject(ITEMS, Item("a", n, 1000 + n)))
    await rest(world, SOON)
    tally = world.interval("tally")
    assert _seconds(tally.watermarks.durable) == 1199
    assert _seconds(tally.watermarks.input) == 1280
    await engine.stop()


class Other(Computation[Item, Count]):
    """Reads something else, and goes by no percentile."""

    async def process_record(self, record: Record[Item], ctx: Context[Count]) -> None:
        ctx.state.count += 1


async def test_an_idle_partition_does_not_go_along_with_one_that_has_ended() -> None:
    """It would be carried to the end of time, and refuse every later row."""
    ending, silent = script(ITEMS, [Item("a", 0, 100)], "ending"), script(ITEMS, [], "silent")
    pipeline = Pipeline("parts", settings=QUICK)
    pipeline.inject(
        ITEMS, Parts(ending, silent), timestamp=time_of, idle_after=timedelta(seconds=IDLE_SECONDS)
    )
    pipeline.add(Tally(), ITEMS.by(key_of))
    pipeline.sink(TALLY, Table("out", Counted, numbered=True))
    world = World(pipeline)
    engine = await world.start(keep_open=False)
    ending.end()
    tally = world.interval("tally")
    await world.turns(200, tick=2 * IDLE_SECONDS / 200)
    _, idle = engine.injectors
    assert idle.idle
    assert idle.interval.watermarks.durable < MAX_TIME
    silent.append(inject(ITEMS, Item("a", 1, 50)))
    await world.until(lambda: world.numbers() == [0, 1], tick=0.01)
    assert tally.watermarks.durable < MAX_TIME
    silent.end()
    await world.until(lambda: tally.watermarks.durable == MAX_TIME, tick=0.01)
    await engine.stop()
