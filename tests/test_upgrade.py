"""Rolling restarts: workers of old and new code on one pipeline; growing and shrinking it."""

from __future__ import annotations

import asyncio
import uuid
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from millwheel import Computation, Context, Pipeline, Record, Settings, Stream, Table
from millwheel.errors import DeployRefused, Fenced, UsageError
from millwheel.model import MAX_TIME, SLOTS
from millwheel.runtime.balancer import Balancer
from millwheel.runtime.engine import Engine
from millwheel.runtime.greeting import Identity
from millwheel.runtime.links import Links
from millwheel.runtime.placing import Decide, LeaseGuard, Placing
from millwheel.store.administration import remove_computations
from millwheel.store.port import NodeDeploy, Placement, Store, Wish
from millwheel.testing.ether import Weather
from tests.store_contract import COUNT, GRAPH, WORDS, MemorySite, PostgresSite, Site, deploy
from tests.test_runtime_world import (
    ITEMS,
    TALLY,
    Counted,
    Item,
    Tally,
    key_of,
    script,
    time_of,
)
from tests.test_sharing import AGAIN, SHARED, Cluster, Recount, check, counting, many, number_of

LONG_SECONDS = 20.0
"""Of virtual time, in which both versions of the code are at work."""

EXTRA = Stream("extra", Counted)


# -- the same pipeline, some time later ---------------------------------------------------------


class Total(msgspec.Struct):
    """The state of `Tally` by another name."""

    total: int = 0


class Told(msgspec.Struct):
    """What `Tally` says, by another name: it was the `times`-th of its key."""

    key: str
    number: int
    times: int


def renamed(value: dict[str, Any], old: str, new: str) -> dict[str, Any]:
    """JSON with a field by another name."""
    return {new if name == old else name: found for name, found in value.items()}


def count_to_total(value: dict[str, Any]) -> dict[str, Any]:
    return renamed(value, "count", "total")


def total_to_count(value: dict[str, Any]) -> dict[str, Any]:
    return renamed(value, "total", "count")


TOLD = Stream(
    "tally", Told, version=2, migrations={1: lambda value: renamed(value, "count", "times")}
)


def pipeline_of(
    values: list[Item],
    tally: Computation[Any, Any],
    recount: Computation[Any, Any] | None = None,
    told: Stream[Any] = TALLY,
    limits: Settings = SHARED,
) -> Pipeline:
    """`counting`, of other parts."""
    made = Pipeline("counting", settings=limits)
    for number in range(2):
        made.inject(
            ITEMS,
            script(ITEMS, values[number::2], f"part {number}"),
            timestamp=time_of,
            name=f"source_{number}",
        )
    made.add(tally, ITEMS.by(key_of))
    made.add(recount or Recount(), told.by(number_of))
    made.sink(AGAIN, Table("out", Counted, numbered=True))
    return made


def with_total(values: list[Item]) -> Pipeline:
    """Its state has another class."""

    class Tally(Computation[Item, Total]):
        writes = (TALLY,)
        version = 2
        migrations = {1: count_to_total}

        async def process_record(self, record: Record[Item], ctx: Context[Total]) -> None:
            ctx.state.total += 1
            item = record.value
            ctx.produce(TALLY, Counted(item.key, item.number, ctx.state.total))

    return pipeline_of(values, Tally())


class Back(Tally):
    """The code that was there first, with a way back to it."""

    migrations = {2: total_to_count}


Back.__name__ = "Tally"


def gone_back(values: list[Item]) -> Pipeline:
    return pipeline_of(values, Back())


def with_told(values: list[Item], limits: Settings = SHARED) -> Pipeline:
    """A stream has values of another class."""

    class Tally(Computation[Item, "Count"]):
        writes = (TOLD,)

        async def process_record(self, record: Record[Item], ctx: Context[Any]) -> None:
            ctx.state.count += 1
            item = record.value
            ctx.produce(TOLD, Told(item.key, item.number, ctx.state.count))

        @property
        def state_type(self) -> Any:
            return OldTally().state_type

    class Recount(Computation[Told, "Count"]):
        writes = (AGAIN,)

        async def process_record(self, record: Record[Told], ctx: Context[Any]) -> None:
            ctx.state.count += 1
            told = record.value
            ctx.produce(
                AGAIN, Counted(told.key, told.number, told.times * 100 + ctx.state.count)
            )

        @property
        def state_type(self) -> Any:
            return OldTally().state_type

    return pipeline_of(values, Tally(), Recount(), TOLD, limits)


OldTally = Tally


class Extra(Computation[Counted, None]):
    """Reads what was there before it, and writes down what it saw."""

    writes = (EXTRA,)

    async def process_record(self, record: Record[Counted], ctx: Context[None]) -> None:
        ctx.produce(EXTRA, record.value)


def grown(values: list[Item], limits: Settings = SHARED) -> Pipeline:
    """One computation more."""
    made = counting(values, limits)
    made.add(Extra(), TALLY.by(number_of))
    made.sink(EXTRA, Table("extra", Counted, numbered=True))
    return made


# -- a cluster whose workers run different code ---------------------------------------------------


class Rolling(Cluster):
    """A cluster whose workers each run code of their own."""

    def __init__(self, pipeline: Pipeline, weather: Weather | None = None) -> None:
        super().__init__(pipeline, weather)
        self.generations: list[dict[int, int]] = []

    async def start_worker(
        self, pipeline: Pipeline, decide: Callable[[Engine], Decide] = Balancer
    ) -> Engine:
        """One more worker, with this code; `decide` makes what decides if it leads."""
        number = len(self.engines)

        def network(worker: str) -> Links:
            return Links(
                Identity(pipeline.name, worker),
                self.ether.medium(f"w{number}"),
                clock=self.clock,
                random=Random(number),
            )

        engine = Engine(pipeline, self.store.another(), clock=self.clock, network=network)
        self.engines.append(engine)
        await engine.start()
        self.alive.append(engine)
        engine.spawn(Placing(engine, decide(engine)).run(), "placing")
        engine.spawn(LeaseGuard(engine).run(), "lease guard")
        return engine

    async def wait(self, seconds: float) -> None:
        """Let virtual time pass."""
        until = self.clock.monotonic() + seconds
        await self.go(lambda: self.clock.monotonic() >= until, tick=0.05)

    async def end(self) -> None:
        """Run to the end of the input, and stop everybody."""
        await self.go(self.finished)
        for engine in list(self.alive):
            await self.leave(engine)

    def versions(self, computation: str) -> Counter[int]:
        """How many keys have state of which version."""
        return Counter(row.version for row in self.store.states() if row.computation == computation)

    async def generation_of(self, engine: Engine) -> int:
        placement = await self.store.read_placement()
        (found,) = [w.generation for w in placement.workers if w.id == engine.worker]
        return found


async def roll(cluster: Rolling, to: Pipeline, *, both_for: float = LONG_SECONDS) -> None:
    """Restart all workers with other code, one after the other, while records flow."""
    for old in list(cluster.alive):
        await cluster.leave(old)
        await cluster.start_worker(to)
        commits = len(cluster.commits)
        await cluster.wait(both_for)
        assert len(cluster.commits) > commits, "it stands still"
        assert all(engine.intervals for engine in cluster.alive), "somebody has nothing to do"
    assert not cluster.finished(), "too little to do for both to be at work"


@pytest.mark.parametrize("change", [with_total, with_told])
async def test_workers_go_over_to_new_code_one_by_one_and_nothing_is_lost(
    change: Callable[[list[Item]], Pipeline],
) -> None:
    values = many(4000)
    cluster = Rolling(counting(values))
    for _ in range(3):
        await cluster.start_worker(cluster.pipeline)
    await cluster.go(lambda: all(engine.processed > 50 for engine in cluster.alive))
    await roll(cluster, change(values))
    await cluster.end()
    check(cluster, values)


async def test_state_is_brought_up_to_date_key_by_key_when_it_is_touched() -> None:
    values = many(800, keys=20)
    cluster = Rolling(counting(values[:400]))
    await cluster.start_worker(counting(values[:400]))
    await cluster.end()
    assert cluster.versions("tally") == {1: 20}
    late = [item for item in values[400:] if item.key in ("key 1", "key 2")]
    await cluster.start_worker(with_total(values[:400] + late))
    await cluster.end()
    check(cluster, values[:400] + late)
    assert cluster.versions("tally") == {1: 18, 2: 2}
    assert cluster.state("tally", "key 1") == {"": {"total": 40}}
    assert cluster.state("tally", "key 3") == {"": {"count": 20}}


async def test_going_back_takes_a_way_down() -> None:
    values = many(4000)
    cluster = Rolling(counting(values))
    for pipeline in (counting(values), counting(values)):
        await cluster.start_worker(pipeline)
    await roll(cluster, with_total(values), both_for=5.0)
    with pytest.raises(DeployRefused) as caught:
        await cluster.start_worker(counting(values))
    for part in (
        "this code is generation 1 of pipeline 'counting', and generation 2 is deployed",
        "Nothing is left for it",
        "the state of 'tally' is stored as version 2, but this code knows only version 1",
        "migrations = {2: down}",
    ):
        assert part in str(caught.value)
    await roll(cluster, gone_back(values), both_for=5.0)
    assert {await cluster.generation_of(engine) for engine in cluster.alive} == {3}
    await cluster.end()
    check(cluster, values)
    assert cluster.versions("tally") == {1: 40}


async def test_who_crashes_while_others_go_over_may_come_back_with_the_old_code() -> None:
    values = many(4000)
    cluster = Rolling(counting(values))
    for _ in range(3):
        await cluster.start_worker(cluster.pipeline)
    await cluster.go(lambda: all(engine.processed > 50 for engine in cluster.alive))
    first, second, third = cluster.alive
    await cluster.leave(first)
    new = await cluster.start_worker(with_total(values))
    await cluster.wait(2.0)
    await cluster.crash(second)
    back = await cluster.start_worker(counting(values))
    assert await cluster.generation_of(back) == 1
    await cluster.wait(LONG_SECONDS)
    assert third.intervals
    assert new.intervals
    for old in (third, back):
        await cluster.leave(old)
        await cluster.start_worker(with_total(values))
    await cluster.end()
    check(cluster, values)


async def test_what_newer_code_has_had_waits_for_newer_code_and_that_is_said_once(
    capsys: pytest.CaptureFixture[str],
) -> None:
    values = many(4000)
    cluster = Rolling(counting(values))
    old = await cluster.start_worker(counting(values))
    new = await cluster.start_worker(with_total(values))
    await cluster.go(lambda: new.processed > 50 and new.intervals)
    taken = {interval.id for interval in new.intervals}
    await cluster.crash(new)
    await cluster.wait(LONG_SECONDS)
    assert taken.isdisjoint(interval.id for interval in old.intervals)
    assert capsys.readouterr().out.count("no_worker_of_generation") == 1
    await cluster.start_worker(with_total(values))
    await cluster.end()
    check(cluster, values)


class Hushed:
    """A balancer that decides nothing any more once it is hushed."""

    hushed = False

    def __init__(self, engine: Engine) -> None:
        self._balancer = Balancer(engine)

    def __call__(self, placement: Placement) -> list[Wish]:
        return [] if Hushed.hushed else self._balancer(placement)


async def test_what_old_code_cannot_read_waits_at_its_sender(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The balancer takes such intervals from old workers at once; here it does not."""
    values = many(600)
    cluster = Rolling(counting(values))
    old = await cluster.start_worker(counting(values), Hushed)
    await cluster.go(lambda: old.processed > 50)
    monkeypatch.setattr(Hushed, "hushed", True)
    new = await cluster.start_worker(with_told(values), Hushed)
    alive = {"old": old, "new": new}

    async def want(worker: str, computation: str) -> None:
        placement = await cluster.store.read_placement()
        wishes = [
            Wish(row.id, row.sequencer, alive[worker].worker, "a test wants it")
            for row in placement.intervals
            if row.name == computation
        ]
        assert await cluster.store.wish(wishes)

    def has(worker: str, computation: str) -> bool:
        return sum(i.step.name == computation for i in alive[worker].intervals) == 2

    await want("new", "tally")
    await cluster.go(lambda: has("new", "tally"))
    assert old.courier is not None
    refused = old.courier.refused
    await cluster.go(lambda: refused["too new"])
    await cluster.wait(LONG_SECONDS)
    assert has("old", "recount")
    assert refused["too new"] < 40, "it is asked again and again"
    seen = {row[1] for row in cluster.rows()}
    assert len(seen) < len(values)
    monkeypatch.setattr(Hushed, "hushed", False)
    await cluster.end()
    check(cluster, values)
