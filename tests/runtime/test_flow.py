"""How many rows are on their way in a running engine, by a cap or by a latency (decision 31)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest

from millwheel import Pipeline, Stream, Table
from millwheel.core.clock import VirtualClock
from millwheel.errors import CommitUnknown, GraphError
from millwheel.runtime.engine import Engine
from millwheel.runtime.interval.sent_log import SentLog
from millwheel.runtime.source.pacing import FIRST_CAP
from millwheel.services.observed import EngineObserved
from millwheel.sources import Row
from millwheel.store.port.commit import Commit
from millwheel.testing import inject
from millwheel.testing.script import Script, ScriptReader
from millwheel.timers.holds import Holds
from tests.support.clusters import (
    AGAIN,
    SHARED,
    Cluster,
    Recount,
    check,
    counting,
    many,
    number_of,
)
from tests.support.pipelines import QUICK, Tally, script
from tests.support.values import ITEMS, TALLY, Counted, Item, items, key_of, time_of
from tests.support.worlds import Gate, World

TARGET = 2.0


class Timed(Script):
    """A source that remembers when each of its items was read last."""

    clock: VirtualClock

    def __init__(self, name: str, values: list[Item], read_at: dict[int, float]) -> None:
        super().__init__(name, [inject(ITEMS, value) for value in values])
        self.read_at = read_at

    async def open(self, value_type: Any, position: dict[str, Any] | None) -> ScriptReader:
        source = self

        class Reader(ScriptReader):
            async def read(self, limit: int) -> Sequence[Row]:
                rows = await super().read(limit)
                for row in rows:
                    source.read_at[row.value.number] = source.clock.monotonic()
                return rows

        return self.opened(Reader(self, value_type, position["row"] if position else 0))


class Counter:
    """A world whose one stage takes `seconds` a record, and who measures it from outside."""

    def __init__(self, rows: int, partitions: int = 1, **options: Any) -> None:
        self.seconds = 0.01
        self.read_at: dict[int, float] = {}
        self.waits: list[tuple[float, float]] = []
        """When an item became durable, and how long that was after it was read."""
        values = [Item(f"key {n % 50}", n, n / 1000) for n in range(rows)]
        pipeline = Pipeline("paced", settings=replace(QUICK, max_unacked_records=4000))
        sources = [
            Timed(f"part {n}", values[n::partitions], self.read_at) for n in range(partitions)
        ]
        for number, source in enumerate(sources):
            pipeline.inject(ITEMS, source, timestamp=time_of, name=f"source_{number}", **options)
        pipeline.add(Tally(), ITEMS.by(key_of))
        pipeline.sink(TALLY, Table("out", Counted, numbered=True))
        self.world = World(pipeline)
        self.clock = self.world.clock
        for source in sources:
            source.clock = self.clock
        self.world.on_try = lambda commit: self.clock.sleep(0.002 + self.seconds * len(commit.rows))
        self.world.on_durable = self._durable

    def _durable(self, commit: Commit) -> None:
        now = self.clock.monotonic()
        self.waits += [(now, now - self.read_at[values[1]]) for _, values in commit.rows]

    async def live(self, seconds: float, tick: float = 0.01) -> None:
        """Let time pass; each time the loop has done what there was to do."""
        for _ in range(int(seconds / tick)):
            self.clock.advance(tick)
            for _ in range(8):
                await asyncio.sleep(0)
        for engine in self.world.engines:
            assert engine.failure is None

    def since(self, at: float) -> list[float]:
        return [wait for when, wait in self.waits if when >= at]

    async def measure(self, seconds: float) -> tuple[float, float]:
        """Records per second, and what 95 of 100 of them waited at the most."""
        began = self.clock.monotonic()
        await self.live(seconds)
        waits = sorted(self.since(began))
        return len(waits) / seconds, waits[int(0.95 * len(waits))]


def caps(engine: Engine) -> list[int]:
    return [injector.pace.cap for injector in engine.injectors]


# -- a cap that stays ----------------------------------------------------------------------------


@pytest.mark.parametrize("most", [1, 5, 200])
async def test_no_more_rows_than_the_cap_are_ever_pending(most: int) -> None:
    counter = Counter(600, max_pending=most)
    engine = await counter.world.start()
    seen = set()

    def done() -> bool:
        seen.add(
            max(
                log.unacked for log, i in engine.exchange.logs.values() if i.source_task is not None
            )
        )
        return engine.done.is_set()

    await counter.world.until(done, tick=0.05)
    assert max(seen) == most
    assert sorted(number for _, number, *_ in counter.world.rows()) == list(range(600))
    await engine.stop()


async def test_rows_are_read_again_when_there_is_room_for_more_than_a_crumb() -> None:
    """Else each row that is acknowledged alone would be followed by a chunk of one."""
    counter = Counter(2000, max_pending=80)
    engine = await counter.world.start()
    await counter.world.until(engine.done.is_set, tick=0.05)
    moments = sorted(counter.read_at.values())
    sizes = [moments.count(at) for at in set(moments)]
    assert min(sizes[:-1]) >= 10
    await engine.stop()


async def test_a_row_that_is_larger_than_all_credits_passes_alone() -> None:
    settings = replace(QUICK, max_unacked_bytes=10)
    pipeline = Pipeline("large", settings=settings)
    values = items(*range(5), key="a" * 100)
    pipeline.inject(
        ITEMS,
        script(ITEMS, values),
        timestamp=time_of,
        max_pending=1,
        latency_target=timedelta(microseconds=1),
    )
    pipeline.add(Tally(), ITEMS.by(key_of))
    pipeline.sink(TALLY, Table("out", Counted, numbered=True))
    world = World(pipeline)
    await world.run()
    assert [number for _, number, *_ in world.rows()] == list(range(5))


@pytest.mark.parametrize("most", [1, 4])
async def test_rows_that_are_given_up_make_room_for_others(most: int) -> None:
    """Their letter is durable, and no reader acknowledges them: who else would have the rest
    read?"""

    def time_of_good(item: Item) -> datetime:
        if item.number < 20:
            raise ValueError("no time")
        return time_of(item)

    pipeline = Pipeline("bad", settings=replace(QUICK, chunk_records=4))
    pipeline.inject(
        ITEMS,
        script(ITEMS, items(*range(25))),
        timestamp=time_of_good,
        max_pending=most,
        on_error="dead_letter",
    )
    pipeline.add(Tally(), ITEMS.by(key_of))
    pipeline.sink(TALLY, Table("out", Counted, numbered=True))
    world = World(pipeline)

    async def takes_its_time(commit: Commit) -> None:
        for _ in range(50):
            await asyncio.sleep(0)

    world.on_try = takes_its_time
    await world.run()
    assert world.numbers() == list(range(20, 25))
    assert len(world.letters()) == 20


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"max_pending": 0}, "max_pending must be a number of rows, 1 or more, not 0"),
        ({"max_pending": -3}, "max_pending must be a number of rows, 1 or more, not -3"),
        ({"max_pending": 2.5}, "max_pending must be a number of rows, 1 or more, not 2.5"),
        ({"max_pending": True}, "max_pending must be a number of rows, 1 or more, not True"),
        ({"max_pending": 8001}, "max_pending=8,001 is above Settings.max_unacked_records, 8,000"),
        ({"latency_target": timedelta(0)}, "latency_target must be above zero, not 0:00:00"),
        ({"latency_target": 3}, "latency_target must be a timedelta"),
    ],
)
def test_what_is_no_cap_and_no_target_is_refused(options: dict[str, Any], told: str) -> None:
    with pytest.raises(GraphError, match=told):
        Pipeline("p").inject(ITEMS, script(ITEMS, []), timestamp=time_of, **options)


def test_the_options_are_no_part_of_the_deployed_graph() -> None:
    def described(**options: Any) -> Any:
        pipeline = Pipeline("p")
        pipeline.inject(ITEMS, script(ITEMS, []), timestamp=time_of, **options)
        pipeline.add(Tally(), ITEMS.by(key_of))
        pipeline.sink(TALLY, Table("out", Counted, numbered=True))
        return [node.describe() for node in pipeline.graph().nodes]

    assert described() == described(max_pending=7, latency_target=timedelta(seconds=1))


def test_rows_known_to_be_acknowledged_do_not_make_others_less() -> None:
    """After a restart, until what was acknowledged out of order is passed."""
    log = SentLog(1, Holds(), source=True, inherited=True, runs=[(10, 99)])
    log.sent(8, 0, 0)
    assert log.unacked == 8
    log.sent(50, 0, 0)
    assert log.unacked == 10
    log.sent(120, 0, 0)
    assert log.unacked == 30
    log.acknowledge(range(10))
    assert log.unacked == 20


# -- a cap that moves ----------------------------------------------------------------------------


async def test_the_target_is_held_and_the_stage_is_busy() -> None:
    counter = Counter(12_000, latency_target=timedelta(seconds=TARGET))
    engine = await counter.world.start()
    assert caps(engine) == [FIRST_CAP]
    await counter.live(20)
    rate, wait = await counter.measure(20)
    assert wait <= TARGET
    assert rate >= 0.9 / counter.seconds
    assert 50 < caps(engine)[0] < 200

    counter.seconds *= 10
    await counter.live(20)
    rate, wait = await counter.measure(20)
    assert wait <= TARGET
    assert rate >= 0.9 / counter.seconds
    assert 1 <= caps(engine)[0] < 20

    counter.seconds /= 10
    await counter.live(20)
    rate, wait = await counter.measure(20)
    assert wait <= TARGET
    assert rate >= 0.9 / counter.seconds
    await engine.kill()


async def test_without_a_target_rows_wait_as_long_as_the_credits_make_them() -> None:
    """What the test above would find if the cap did not move."""
    counter = Counter(12_000)
    engine = await counter.world.start()
    await counter.live(30)
    _, wait = await counter.measure(30)
    assert wait > 10 * TARGET
    await engine.kill()


async def test_several_partitions_share_what_the_target_allows() -> None:
    counter = Counter(12_000, partitions=3, latency_target=timedelta(seconds=TARGET))
    engine = await counter.world.start()
    await counter.live(30)
    rate, wait = await counter.measure(20)
    assert wait <= TARGET
    assert rate >= 0.9 / counter.seconds
    assert max(caps(engine)) < 3 * min(caps(engine))
    await engine.kill()


async def test_it_goes_on_with_the_cap_it_had_after_a_commit_that_failed() -> None:
    """The half minute that it took is no word on the readers."""
    counter = Counter(5000, latency_target=timedelta(seconds=TARGET))
    engine = await counter.world.start()
    await counter.live(15)
    (before,) = caps(engine)
    assert before > 2 * FIRST_CAP
    delay = counter.world.on_try
    counter.world.on_try = _failing_once(counter.world, delay)
    for _ in range(80):
        await counter.live(0.5)
        assert 0.5 * before < caps(engine)[0] < 2 * before
    await counter.world.until(engine.done.is_set, tick=0.02)
    assert sorted(number for _, number, *_ in counter.world.rows()) == list(range(5000))
    await engine.stop()


def _failing_once(world: World, then: Any) -> Callable[[Commit], Any]:
    async def fail(commit: Commit) -> None:
        world.on_try = then
        await world.clock.sleep(30)
        raise CommitUnknown("the line is dead")

    return fail


async def test_a_stage_that_is_slow_on_another_worker_is_paced_too() -> None:
    values = many(600)
    pipeline = counting(values, replace(SHARED, max_unacked_records=400))
    for node in pipeline.nodes.values():
        if node.injection is not None:
            target = timedelta(seconds=TARGET)
            node.injection = replace(node.injection, latency_target=target)
    cluster = Cluster(pipeline)
    engines = [await cluster.join(), await cluster.join()]
    cluster.on_try = lambda commit: cluster.clock.sleep(0.01 * len(commit.seen))
    await cluster.go(cluster.finished, tick=0.02)
    check(cluster, values)
    for engine in engines:
        for injector in engine.injectors:
            assert injector.pace.latency_seconds is not None
            assert 1 <= injector.pace.cap <= 400
        await cluster.leave(engine)


# -- what is told --------------------------------------------------------------------------------


async def test_what_is_told_of_it() -> None:
    counter = Counter(2000, partitions=2, latency_target=timedelta(seconds=TARGET), max_pending=500)
    engine = Engine(counter.world.pipeline, counter.world.store, clock=counter.clock)
    observed = EngineObserved(engine)
    counter.world.engines.append(engine)
    await engine.start()
    gate = Gate()
    counter.world.on_try, delay = lambda commit: gate.wait(), counter.world.on_try
    await counter.live(0.2)
    flows = [injector.flow()[:4] for injector in engine.injectors]
    assert flows == [(FIRST_CAP, FIRST_CAP, None, TARGET)] * 2
    counter.world.on_try = delay
    gate.open()
    await counter.live(5)
    loads = engine.figures.load()["intervals"]
    first = engine.injectors[0]
    flow = loads[str(first.interval.id)]["flow"]
    assert flow["pending"] == first.log.unacked
    assert (flow["cap"], flow["target"]) == (first.pace.cap, TARGET)
    assert 0 < flow["latency"] == first.pace.latency_seconds
    assert ["flow" in loads[str(i.id)] for i in engine.intervals].count(True) == 2
    figures = {one.name: one for one in observed.figures().computations}
    assert figures["source_0"].pending_cap == first.pace.cap
    assert figures["source_0"].acknowledge_seconds == first.pace.latency_seconds
    assert figures["source_0"].latency_target_seconds == TARGET
    assert figures["tally"].pending_cap is None
    await engine.kill()


OTHERS = [Stream(f"items_{number}", Item) for number in range(5)]
"""Each of a source with credits of its own."""


async def test_what_is_decided_while_a_commit_is_on_the_wire_takes_credits() -> None:
    """It has no number yet, and will all be on its way as soon as that commit is durable."""
    limits = replace(QUICK, chunk_records=2, bundle_records=1000, max_unacked_records=10)
    made = Pipeline("tally", settings=limits)
    sources = [script(stream, items(*range(9)), stream.name) for stream in OTHERS]
    for stream, source in zip(OTHERS, sources, strict=True):
        made.inject(stream, source, timestamp=time_of)
    made.add(Tally(), *(stream.by(key_of) for stream in OTHERS))
    made.add(Recount(), TALLY.by(number_of))
    made.sink(AGAIN, Table("out", Counted, numbered=True))
    world = World(made)
    gate = Gate()
    world.on_durable = lambda commit: gate.wait() if any(commit.seen.values()) else None
    engine = await world.start()
    await world.turns(100)
    decided = [work.effects.productions for work in engine.lane.commits.open.works.values()]
    assert 0 < sum(map(len, decided)) <= limits.max_unacked_records + limits.chunk_records
    gate.open()
    await world.finish(engine)
