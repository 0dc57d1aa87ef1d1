"""A running engine as those outside see it."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace

import pytest

from millwheel import Computation, Context, Pipeline, Record, Stream, Table
from millwheel.core.clock import VirtualClock
from millwheel.core.model import MAX_TIME, to_micros
from millwheel.errors import InvariantBroken, StoreUnavailable
from millwheel.graph.node import Productions
from millwheel.runtime.engine import Engine
from millwheel.runtime.environment import Options
from millwheel.services.observed import STORE_SECONDS, EngineObserved
from millwheel.services.worker_figures import ComputationFigures, Figures, Observed
from millwheel.store.port.commit import Commit
from millwheel.store.postgres.store import PostgresStore
from millwheel.testing import inject
from tests.support.clusters import Cluster, counting, many
from tests.support.pipelines import (
    QUICK,
    Do,
    Kept,
    Quiet,
    Tally,
    doing,
    script,
    tally_pipeline,
)
from tests.support.store_sites import Schema
from tests.support.values import ITEMS, TALLY, Counted, Item, at, items, key_of, time_of
from tests.support.worlds import Gate, World, end_scripts

TWICE = Stream("twice_items", Item)


def of(figures: Figures, name: str) -> ComputationFigures:
    (found,) = [one for one in figures.computations if one.name == name]
    return found


def observing(world: World, *, close_at_end: bool = True) -> tuple[Engine, EngineObserved]:
    """An engine that has not started, and who looks at it."""
    engine = Engine(
        world.pipeline, world.store, clock=world.clock, options=Options(keep_open=not close_at_end)
    )
    world.engines.append(engine)
    return engine, EngineObserved(engine)


# -- figures --------------------------------------------------------------------------------


async def test_figures_of_an_engine_that_has_not_started() -> None:
    engine, observed = observing(World(tally_pipeline(script(ITEMS, []))))
    figures = observed.figures()
    assert (figures.pipeline, figures.worker) == ("tally", engine.worker)
    assert (figures.lease_seconds_left, figures.commits.count) == (0.0, 0)
    assert figures.computations == ()


async def test_how_long_user_code_and_acknowledgements_take() -> None:
    """A call that waits counts with its wait, and no other key's call does."""
    gate = Gate()

    async def slowly(record: Record[Item], ctx: Context[Kept]) -> None:
        if record.value.number == 3:
            await gate.wait()

    world = World(doing(script(ITEMS, [Item(f"k{n}", n, n) for n in range(8)]), slowly))
    engine, observed = observing(world, close_at_end=False)
    await engine.start()
    await world.until(lambda: gate.reached == 1)
    await world.turns(20)
    world.clock.advance(7.0)
    gate.open()
    await world.until(engine.done.is_set)
    figures = observed.figures()
    assert set(figures.code) == {"do"}
    code = figures.code["do"]
    assert code.count == 8
    assert code.total == pytest.approx(7.0)
    assert code.counts[code.bounds.index(5.0)] == 7, "one took longer than five seconds"
    (acknowledged,) = figures.acknowledgements.values()
    assert acknowledged.count >= 1
    assert acknowledged.total >= 7.0


class Twice(Computation[Item, None]):
    """Passes on each item twice."""

    writes = (TWICE,)

    async def process_record(self, record: Record[Item], ctx: Context[None]) -> None:
        ctx.produce(TWICE, record.value)
        ctx.produce(TWICE, record.value)


@pytest.mark.parametrize("productions", ["strong", "weak"])
async def test_records_that_leave_each_stage_and_how_long_they_take(
    productions: Productions,
) -> None:
    """A record counts once for each reader, and so does a row of a table."""
    pipeline = Pipeline("tally", settings=QUICK)
    pipeline.inject(ITEMS, script(ITEMS, [Item("a", n, n) for n in range(30)]), timestamp=time_of)
    pipeline.add(Twice(), ITEMS.by(key_of), productions=productions)
    pipeline.add(Tally(), TWICE.by(key_of))
    pipeline.add(Quiet(), TWICE.by(key_of))
    pipeline.sink(TALLY, Table("out", Counted, numbered=True))
    world = World(pipeline)
    engine, observed = observing(world, close_at_end=False)
    await engine.start()
    await world.until(engine.done.is_set)
    figures = observed.figures()
    out = {one.name: one.counters.get("records_out", 0) for one in figures.computations}
    assert out == {"items_injector": 30, "twice": 120, "tally": 60, "quiet": 0}
    timed = 60 if productions == "strong" else 0  # otherwise no commit produced the records
    assert {name: found.count for name, found in figures.stages.items()} == {
        "twice": 0,  # its records are rows of the source
        "tally": timed,
        "quiet": timed,
    }
    await engine.stop()


async def test_a_stage_takes_as_long_as_its_records_wait() -> None:
    gate = Gate()

    async def slowly(record: Record[Item], ctx: Context[Kept]) -> None:
        await gate.wait()

    pipeline = Pipeline("tally", settings=QUICK)
    pipeline.inject(ITEMS, script(ITEMS, items(1, 2)), timestamp=time_of)
    pipeline.add(Twice(), ITEMS.by(key_of))
    pipeline.add(Do(slowly), TWICE.by(key_of))
    world = World(pipeline)
    engine, observed = observing(world, close_at_end=False)
    await engine.start()
    await world.until(lambda: gate.reached >= 1)
    world.clock.advance(7.0)
    gate.open()
    await world.until(engine.done.is_set)
    found = observed.figures().stages["do"]
    assert found.count == 4
    assert found.total == pytest.approx(4 * 7.0, abs=0.1)
    await engine.stop()


async def test_what_was_processed_and_how_far_it_is() -> None:
    world = World(tally_pipeline(script(ITEMS, [Item("a", n, n) for n in range(30)])))
    engine, observed = observing(world, close_at_end=False)
    await engine.start()
    await world.until(engine.done.is_set)
    figures = observed.figures()
    assert [one.name for one in figures.computations] == ["items_injector", "tally"]
    tally = of(figures, "tally")
    assert tally.counters["processed"] == 30
    assert (tally.intervals, tally.backlog, tally.unacked) == (1, 0, 0)
    assert tally.input_watermark == tally.low_watermark == to_micros(at(29))
    assert figures.commits.count == len(world.commits)
    assert figures.now == world.clock.now()
    assert QUICK.lease_seconds / 2 < figures.lease_seconds_left < QUICK.lease_seconds
    await engine.stop()


async def test_what_waits_and_what_is_not_acknowledged() -> None:
    gate = Gate()

    async def do(record: Record[Item], ctx: Context[Kept]) -> None:
        await gate.wait()

    limits = replace(QUICK, waiting_keys=2, chunk_records=1)
    world = World(doing([Item(f"key {n}", n) for n in range(10)], do, settings=limits))
    engine, observed = observing(world)
    await engine.start()
    await world.until(lambda: gate.reached == 2)
    await world.turns()
    figures = observed.figures()
    assert (of(figures, "do").backlog, of(figures, "do").unacked) == (10, 0), "two are at work"
    assert of(figures, "items_injector").unacked == 10
    assert of(figures, "do").low_watermark == to_micros(at(0))
    await engine.kill()


async def test_counters_are_of_this_process_and_never_fall() -> None:
    """Totals are those of the interval, since deploy; what a failed commit counted is no fact."""
    source = script(ITEMS, items(*range(20)))
    world = World(tally_pipeline(source))
    await world.run()
    for value in items(*range(20, 50)):
        source.append(inject(ITEMS, value))
    engine, observed = observing(world, close_at_end=False)
    seen = [0]

    def look(commit: Commit) -> None:
        if of_tally := [one for one in observed.figures().computations if one.name == "tally"]:
            seen.append(of_tally[0].counters.get("processed", 0))

    refused: list[Commit] = []

    def refuse_the_first(commit: Commit) -> None:
        look(commit)
        if commit.seen and not refused:
            refused.append(commit)
            raise StoreUnavailable("away")

    await engine.start()
    world.on_try = refuse_the_first
    world.on_durable = look
    await world.until(engine.done.is_set, tick=0.05)
    assert refused
    seen.append(of(observed.figures(), "tally").counters["processed"])
    assert seen == sorted(seen)
    assert seen[-1] == 30
    assert set(seen) == {0, 30}, "nothing is counted that is not durable"
    await engine.stop()


async def test_how_long_commits_take() -> None:
    world = World(tally_pipeline(script(ITEMS, items(1))))
    gate = Gate()
    world.on_try = lambda commit: gate.wait()
    engine, observed = observing(world)
    await engine.start()
    await world.until(lambda: gate.reached)
    world.clock.advance(0.3)
    assert observed.figures().commits.count == 0
    world.on_try = None
    gate.open()
    await world.until(engine.done.is_set)
    commits = observed.figures().commits
    assert commits.total == pytest.approx(0.3)
    assert commits.count == len(world.commits)
    assert dict(zip(commits.bounds, commits.counts, strict=False))[0.25] == commits.count - 1
    await engine.stop()


async def test_what_was_counted_stays_when_intervals_move() -> None:
    values = many(600)
    cluster = Cluster(counting(values))
    first = await cluster.join()
    early = EngineObserved(first)
    second = await cluster.join()
    late = EngineObserved(second)
    await cluster.go(cluster.finished)
    counted: Counter[str] = Counter()
    for observed, engine in ((early, first), (late, second)):
        figures = observed.figures()
        held = Counter(i.step.name for i in engine.intervals)
        assert {c.name: c.intervals for c in figures.computations if c.intervals} == dict(held)
        for computation in figures.computations:
            counted[computation.name] += computation.counters.get("processed", 0)
    assert counted["tally"] == counted["recount"] == 600
    before = of(late.figures(), "tally").counters["processed"]
    await cluster.leave(second)
    after = of(late.figures(), "tally")
    assert (after.counters["processed"], after.intervals) == (before, 0)
    assert late.figures().fenced == 0
    await cluster.leave(first)


async def test_intervals_that_another_owner_has_claimed_are_counted() -> None:
    values = many(2000)
    cluster = Cluster(counting(values))
    first = await cluster.join()
    await cluster.go(lambda: first.processed > 100)
    observed = EngineObserved(first)  # late: what it holds is counted from here on
    before = first.processed
    (interval, *_) = [i for i in first.intervals if i.step.name == "tally"]
    await cluster.store.claim("somebody", [interval.id])
    await cluster.go(lambda: observed.figures().fenced)
    figures = observed.figures()
    assert figures.fenced == 1
    assert of(figures, "tally").intervals == 1
    await cluster.go(lambda: first.processed > before + 50)
    figures = observed.figures()
    assert 0 < of(figures, "tally").counters["processed"] <= first.processed - before
    await first.kill()


# -- readiness --------------------------------------------------------------------------------


async def ready(observed: Observed, clock: VirtualClock | None = None) -> str | None:
    """Ask; time passes while it is thought about."""
    asked = asyncio.ensure_future(observed.why_not_ready())
    for _ in range(200):
        if asked.done():
            break
        await asyncio.sleep(0)
        if clock is not None:
            clock.advance(0.1)
    return await asyncio.wait_for(asked, 0)


async def test_it_is_ready_between_its_start_and_its_end() -> None:
    world = World(tally_pipeline(script(ITEMS, items(1))))
    engine, observed = observing(world)
    assert await ready(observed) == "it is still starting"
    await engine.start()
    assert await ready(observed) is None
    await engine.stop()
    assert await ready(observed) == "it is stopping"


async def test_who_has_failed_says_why() -> None:
    world = World(tally_pipeline(script(ITEMS, items(1))))
    engine, observed = observing(world)
    await engine.start()
    engine.fail(InvariantBroken("the wheel came off"))
    assert await ready(observed) == "it has failed: the wheel came off"
    await engine.stop()
    assert await ready(observed) == "it has failed: the wheel came off"


async def test_who_has_no_lease_is_not_ready() -> None:
    cluster = Cluster(counting(many(10)))
    engine = await cluster.join()
    observed = EngineObserved(engine)
    await cluster.go(lambda: engine.intervals)
    assert await ready(observed) is None
    engine.lease.end()
    reason = await ready(observed)
    assert reason is not None
    assert reason.startswith("its lease has expired")
    assert observed.figures().lease_seconds_left == 0.0
    await cluster.leave(engine)


async def test_who_has_no_store_is_not_ready() -> None:
    world = World(tally_pipeline(script(ITEMS, items(1))))
    engine, observed = observing(world)
    await engine.start()
    await world.until(engine.done.is_set)

    async def away(call: str) -> None:
        raise StoreUnavailable("the connection was refused")

    world.store.faults.before_call = away
    assert await ready(observed) == "the store does not answer: the connection was refused"
    gate = Gate()
    asked: list[str] = []

    async def silent(call: str) -> None:
        if call == "now":
            asked.append(call)
            await gate.wait()

    world.store.faults.before_call = silent
    for _ in range(3):
        reason = await ready(observed, world.clock)
        assert reason == f"the store has not answered within {STORE_SECONDS:g} s"
    assert len(asked) == 1, "what has no answer is not asked again"
    gate.open()
    await world.turns(3)
    assert await ready(observed) is None
    assert len(asked) == 2
    await engine.stop()


# -- on Postgres ------------------------------------------------------------------------------


@pytest.mark.newest
async def test_a_run_on_postgres_is_observed(schema: Schema) -> None:
    store = await PostgresStore(schema.url, schema.name).open()
    pipeline = tally_pipeline(script(ITEMS, [Item("abc"[n % 3], n, n) for n in range(300)]))
    end_scripts(pipeline)
    engine = Engine(pipeline, store)
    observed = EngineObserved(engine)
    assert await observed.why_not_ready() == "it is still starting"
    await engine.start()
    assert await observed.why_not_ready() is None
    await engine.run()
    figures = observed.figures()
    assert of(figures, "tally").counters["processed"] == 300
    assert of(figures, "tally").low_watermark == MAX_TIME
    assert figures.commits.count > 0
    assert figures.commits.total > 0
    assert 0 < figures.lease_seconds_left <= 15
    await engine.stop()
    await store.close()
