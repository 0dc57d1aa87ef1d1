"""Weak productions: sent before anything is stored, and counted once all the same (paper 6.1.3)."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from functools import partial
from random import Random
from typing import Any
from uuid import UUID

import msgspec
import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from millwheel import Computation, Context, Pipeline, Record, Settings, Stream, Table, Timer
from millwheel.core.model import Delivery
from millwheel.errors import CommitUnknown, GraphError, NotTheSameAgain, StoreUnavailable
from millwheel.graph.node import Productions
from millwheel.runtime.engine import Engine
from millwheel.runtime.network.remote import Remote
from millwheel.store.port.commit import Commit
from millwheel.store.port.placement import Wish
from millwheel.store.postgres.store import PostgresStore
from millwheel.testing import Harness
from millwheel.testing.fake_network import Fate, Weather
from tests.support.clusters import SHARED, Cluster, check, many, number_of
from tests.support.drawing import chosen, examples, seeds
from tests.support.pipelines import QUICK, Tally, script
from tests.support.store_sites import Schema
from tests.support.values import ITEMS, TALLY, Count, Counted, Item, at, key_of, time_of
from tests.support.weak_chains import (
    AGAIN,
    FEW,
    HALVES,
    ONES,
    VALUES,
    Halve,
    Ones,
    Relay,
    Slow,
    assert_once,
    chain,
    commits_of,
    halves,
    number_of_item,
)
from tests.support.worlds import Gate, World


class Pass(Computation[Item, None]):
    """Passes on."""

    writes = (AGAIN,)

    async def process_record(self, record: Record[Item], ctx: Context[None]) -> None:
        ctx.produce(AGAIN, record.value)


async def test_nothing_is_stored_of_what_arrives() -> None:
    world = World(chain(VALUES, depth=3))
    await world.run(tick=0.001)
    assert_once(world, VALUES)
    assert not any(commit.stragglers for commit in world.commits)
    weak = {s.id for e in world.engines for s in e.exchange.steps.values() if s.node.is_weak}
    assert len(weak) == 3
    seen = {computation for c in world.commits for ids in c.seen.values() for computation, _ in ids}
    assert not seen & weak, "no record of a weak computation is noted as seen"
    for name, number in (("halve", len(VALUES)), ("pass_1", 22), ("pass_2", 22), ("tally", 22)):
        assert world.counter(name, "processed") == number


async def test_two_that_make_the_same_of_the_same_rows_are_told_apart() -> None:
    """They read the same ids, and write the same values to the same stream and reader."""
    made = Pipeline("twins", settings=FEW)
    made.inject(ITEMS, script(ITEMS, VALUES), timestamp=time_of)
    for name in ("one", "other"):
        made.add(Relay(HALVES), ITEMS.by(number_of_item), name=name, productions="weak")
    made.add(Tally(), HALVES.by(key_of))
    made.sink(TALLY, Table("out", Counted, numbered=True))
    world = World(made)
    await world.run(tick=0.001)
    assert sorted(world.numbers()) == [n for n in range(12) for _ in range(2)]


async def test_an_input_is_acknowledged_when_all_that_came_of_it_is_durable() -> None:
    """Not before: or it would be lost if the receiver crashed."""
    world = World(chain(VALUES[:1]))
    gate = Gate()
    world.on_try = lambda commit: gate.wait() if commit.rows else None
    engine = await world.start()
    await world.until(lambda: gate.reached)
    await world.turns()
    assert world.interval("items_injector").log.first == 0
    gate.open()
    await world.until(engine.done.is_set)
    assert world.interval("items_injector").log.first == 1


# -- crashes -----------------------------------------------------------------------------


def either(one: asyncio.Event, other: asyncio.Event) -> bool:
    return one.is_set() or other.is_set()


@pytest.mark.parametrize("depth", chosen([1, 2, 3], 1, 3))
@pytest.mark.parametrize("when", ["before", "after", "unknown"])
async def test_a_crash_at_any_commit_loses_and_doubles_nothing(depth: int, when: str) -> None:
    commits = await commits_of(chain(VALUES, depth=depth))
    for point in range(0, commits, 3):
        world = World(chain(VALUES, depth=depth))
        reached = asyncio.Event()

        def stop_there(
            commit: Commit, world: World = world, point: int = point, reached: Any = reached
        ) -> Any:
            if (world.tried if when == "before" else len(world.commits)) != point + 1:
                return None
            if when == "unknown":
                reached.set()
                raise CommitUnknown("the connection was lost")
            reached.set()
            return asyncio.Event().wait()

        if when == "before":
            world.on_try = stop_there
        else:
            world.on_durable = stop_there
        first = await world.start()
        await world.until(partial(either, first.done, reached), tick=0.05)
        if when == "unknown":
            await world.finish(first)
        else:
            world.on_try = world.on_durable = None
            await first.kill()
            await world.run()
        assert_once(world, VALUES)
        assert world.store.pending_productions() == []


@pytest.mark.parametrize("straggler_after", [0.01, 1.0])
@pytest.mark.parametrize("depth", chosen([1, 2, 3], 1, 3))
async def test_a_crash_at_any_moment_loses_and_doubles_nothing(
    depth: int, straggler_after: float
) -> None:
    """After every so many turns of the loop: between receiving, running, sending, ACKs, storing."""

    def made() -> Pipeline:
        return chain(VALUES, depth=depth, straggler_after=straggler_after)

    turns = 0
    world = World(made())
    engine = await world.start()
    while not engine.done.is_set():
        assert engine.failure is None, engine.failure
        await world.turns(1, tick=0.005)
        turns += 1
    await engine.kill()
    for point in range(0, turns, 7):
        world = World(made())
        first = await world.start()
        await world.turns(point, tick=0.005)
        await first.kill()
        await world.run(tick=0.005)
        assert_once(world, VALUES)
        assert world.store.pending_productions() == []


@given(seed=st.integers(0, 1 << 30))
@examples(20)
def test_any_faults(seed: int) -> None:
    asyncio.run(go_through_faults(seed))


async def go_through_faults(seed: int) -> None:
    chance = Random(seed)
    values = [Item("", n, n / 10) for n in range(40)]
    depth = chance.choice([1, 2, 3])
    straggler_after = chance.choice([0.02, 0.2, 1.0])
    limits = replace(FEW, intervals=chance.choice([1, 2]))
    world = World(chain(values, limits, depth=depth, straggler_after=straggler_after))
    share = chance.choice([0.0, 0.05, 0.2])

    def perhaps(commit: Commit) -> None:
        if chance.random() < share:
            raise chance.choice([StoreUnavailable, CommitUnknown])("by chance")

    for _ in range(chance.randrange(4)):
        world.on_try = world.on_durable = perhaps
        engine = await world.start(inject_copies=chance.choice([1, 2]))
        await world.turns(chance.randrange(1, 400), tick=0.01)
        await engine.kill()
    world.on_try = world.on_durable = None
    await world.run(tick=0.02)
    assert_once(world, values)
    assert world.store.pending_productions() == []


# -- stragglers --------------------------------------------------------------------------


def slow_chain(values: Sequence[Any], gate: Gate, settings: Settings = FEW) -> Pipeline:
    made = Pipeline("weakly", settings=settings)
    made.inject(ITEMS, script(ITEMS, values), timestamp=time_of)
    made.add(Halve(), ITEMS.by(number_of_item), productions="weak")
    made.add(Slow(gate, "key 1"), HALVES.by(key_of))
    made.sink(TALLY, Table("out", Counted, numbered=True))
    return made


async def test_a_straggler_is_stored_and_its_input_acknowledged() -> None:
    world = World(slow_chain(VALUES[:1], gate := Gate()))  # 0 and 1: the second waits
    engine = await world.start()
    await world.until(lambda: world.numbers() == [0])
    await world.turns()
    assert not any(commit.stragglers for commit in world.commits)
    before = world.clock.monotonic()
    await world.until(lambda: any(c.stragglers for c in world.commits), tick=0.01)
    assert world.clock.monotonic() - before < 1.5
    assert world.counter("halve", "stragglers") == 1
    (straggler,) = [d for commit in world.commits for d in commit.stragglers]
    assert straggler.value.number == 1, "the one that has arrived is not stored"
    await world.until(lambda: world.interval("items_injector").log.first == 1, tick=0.01)
    assert [log for log, _ in world.store.pending_productions()] == [straggler.log]
    await engine.kill()
    gate.open()
    await world.run()
    assert sorted(world.numbers()) == [0, 1], "read and sent again, and counted once"
    assert world.store.pending_productions() == []


@pytest.mark.parametrize("productions", ["strong", "weak"])
async def test_what_is_late_is_stored_with_what_was_promised_before_it_was_sent(
    productions: Productions,
) -> None:
    """Whoever asks what holds the low watermark is not told of a time that it has passed."""
    gate, away = Gate(), Gate()

    class Dawdle(Relay):
        async def process_record(self, record: Record[Item], ctx: Context[None]) -> None:
            if record.value.number == 1:
                await gate.wait()
            await super().process_record(record, ctx)

    made = Pipeline("late", settings=QUICK)
    values = [Item("a", 0, 50), Item("key 1", 1, 5)]
    made.inject(ITEMS, script(ITEMS, values), timestamp=time_of)
    made.add(Dawdle(HALVES), ITEMS.by(key_of), productions=productions, name="dawdle")
    made.add(Slow(away, "key 1"), HALVES.by(key_of))
    made.sink(TALLY, Table("out", Counted, numbered=True))
    world = World(made)
    engine = await world.start()
    promised = int(at(50).timestamp() * 1e6)
    await world.until(
        lambda: gate.reached and world.interval("dawdle").watermarks.durable == promised
    )
    gate.open()

    def stored() -> list[Delivery[Any]]:
        found = [d for commit in world.commits for d in (*commit.productions, *commit.stragglers)]
        return [d for d in found if d.stream == HALVES.name and d.value.number == 1]

    await world.until(stored, tick=0.01)
    (late,) = stored()
    assert late.timestamp == at(5)
    assert late.hold == promised
    away.open()
    await world.finish(engine)
    assert world.numbers() == [0, 1]


async def test_a_straggler_that_arrives_at_last_is_forgotten() -> None:
    world = World(slow_chain(VALUES, gate := Gate(), QUICK))
    engine = await world.start()
    await world.until(lambda: any(c.stragglers for c in world.commits), tick=0.01)
    assert world.store.pending_productions()
    gate.open()
    await world.finish(engine)
    assert_once(world, VALUES)
    assert world.store.pending_productions() == []
    tried = len([c for c in world.commits if c.stragglers])
    await world.run()
    assert len([c for c in world.commits if c.stragglers]) == tried
    assert_once(world, VALUES)


async def test_nobody_waits_for_what_was_sent_between_stored_ones_and_is_made_again() -> None:
    """Every other record has an effect, and what comes of it is stored; the rest has numbers
    between those, and after a crash it comes again under other ones."""

    class CountOdd(Relay):
        async def process_record(self, record: Record[Item], ctx: Context[None]) -> None:
            await super().process_record(record, ctx)
            if record.value.number % 2:
                ctx.count("odd")

    made = Pipeline("odd", settings=FEW)
    made.inject(ITEMS, script(ITEMS, VALUES), timestamp=time_of)
    made.add(CountOdd(HALVES), ITEMS.by(number_of_item), productions="weak")
    made.add(Tally(), HALVES.by(key_of))
    made.sink(TALLY, Table("out", Counted, numbered=True))
    world = World(made)
    world.on_durable = lambda commit: Gate().wait() if commit.stragglers else None
    engine = await world.start()
    await world.until(lambda: world.commits and world.commits[-1].stragglers, tick=0.001)
    assert world.commits[-1].stragglers[0].seq > 0
    world.on_durable = None
    await engine.kill()
    await world.run()
    assert sorted(world.numbers()) == list(range(12))
    assert world.store.pending_productions() == []


async def test_a_record_that_a_commit_notes_is_no_straggler_however_long_that_takes() -> None:
    """Every other record has an effect; the commit of the first one hangs."""

    class CountOdd(Relay):
        async def process_record(self, record: Record[Item], ctx: Context[None]) -> None:
            await super().process_record(record, ctx)
            if record.value.number % 2:
                ctx.count("odd")

    made = Pipeline("odd", settings=FEW)
    made.inject(ITEMS, script(ITEMS, VALUES), timestamp=time_of)
    made.add(CountOdd(HALVES), ITEMS.by(number_of_item), name="odd", productions="weak")
    made.add(Tally(), HALVES.by(key_of))
    made.sink(TALLY, Table("out", Counted, numbered=True))
    world = World(made)
    gate = Gate()
    world.on_try = lambda commit: gate.wait() if commit.stragglers else None
    engine = await world.start()
    await world.until(lambda: gate.reached, tick=0.001)
    await pass_time(world, 10)
    gate.open()
    await world.finish(engine)
    assert sorted(world.numbers()) == list(range(12))
    assert world.counter("odd", "odd") == 6
    assert world.counter("odd", "processed") == 12
    assert world.counter("odd", "stragglers") <= 6, "those without an effect alone"


@pytest.mark.parametrize("seconds", [1, 30])
async def test_buckets_of_stragglers_stay(seconds: int) -> None:
    """Its id is kept where its input's is: that must not be dropped while it may come again."""
    settings = replace(
        QUICK, bucket_seconds=1.0, source_bucket_rows=4, housekeeping_seconds=0.1, bucket_rows=5
    )
    values = [Item("", n, n / 10) for n in range(60)]
    world = World(slow_chain(values, gate := Gate(), settings))
    engine = await world.start()
    await world.until(lambda: world.interval("items_injector").log.first == len(values), tick=0.01)
    end = world.clock.monotonic() + seconds
    await world.until(lambda: world.clock.monotonic() > end, tick=0.05)
    await engine.kill()
    gate.open()
    await world.run()
    assert_once(world, values)


async def pass_time(world: World, seconds: float) -> None:
    """Let everybody go on for so long."""
    end = world.clock.monotonic() + seconds
    await world.until(lambda: world.clock.monotonic() > end, tick=0.05)


async def test_buckets_of_stragglers_of_stored_records_stay() -> None:
    """Of what came of stored productions, whose buckets are times: while its sender knows it, and
    while somebody has it who has read it back. Later buckets go when nothing waits any more."""
    settings = replace(QUICK, bucket_seconds=1.0, housekeeping_seconds=0.1)
    gate = Gate()

    def made() -> Pipeline:
        made = Pipeline("weakly", settings=settings)
        made.inject(ITEMS, script(ITEMS, VALUES), timestamp=time_of)
        made.add(Relay(AGAIN), ITEMS.by(number_of_item), name="stored")
        made.add(Halve(), AGAIN.by(number_of_item), productions="weak")
        made.add(Slow(gate, "key 1"), HALVES.by(key_of))
        made.sink(TALLY, Table("out", Counted, numbered=True))
        return made

    world = World(made())
    for _ in range(2):
        engine = await world.start()
        await world.until(lambda: world.interval("stored").log.drained, tick=0.01)
        await pass_time(world, 20)
        await engine.kill()
    gate.open()
    engine = await world.start()
    await world.until(engine.done.is_set, tick=0.05)
    assert_once(world, VALUES)
    before = engine.buckets.gc_watermark
    await pass_time(world, 5)
    assert engine.buckets.gc_watermark > before
    await engine.stop()


async def test_what_comes_of_one_record_is_spread() -> None:
    """By its id, and not by the record's place: or it would all be one worker's."""
    places: set[int] = set()

    class Many(Relay):
        async def process_record(self, record: Record[Item], ctx: Context[None]) -> None:
            for number in range(200):
                ctx.produce(HALVES, Item("", number, 0))

    class Note(Relay):
        async def process_record(self, record: Record[Item], ctx: Context[None]) -> None:
            assert isinstance(record, Delivery)
            places.add(record.slot)

    made = Pipeline("spread", settings=QUICK)
    made.inject(ITEMS, script(ITEMS, VALUES[:1]), timestamp=time_of)
    made.add(Many(HALVES), ITEMS.by(key_of), productions="weak")
    made.add(Note(AGAIN), HALVES.spread())
    await World(made).run()
    assert len(places) > 50


@pytest.mark.newest
async def test_on_postgres_through_crashes(schema: Schema) -> None:
    """With everything that is not acknowledged within a millisecond stored as a straggler."""
    values = [Item("", n, n / 10) for n in range(400)]
    limits = replace(FEW, chunk_records=20, bundle_records=40, max_unacked_records=60)
    made = chain(values, limits, depth=2, straggler_after=0.001, name=schema.name)
    stragglers = 0
    with psycopg.connect(schema.url, autocommit=True) as connection:

        def ask(text: str) -> list[Any]:
            return connection.execute(schema.compose(text, t=text.split()[-1])).fetchall()

        for crash_at in (150, 400, None):
            store = await PostgresStore(schema.url, schema.name).open()
            engine = Engine(made, store, take_over=True)
            await engine.start()
            async with asyncio.timeout(60):
                while not (engine.done.is_set() or (crash_at and engine.processed >= crash_at)):
                    assert engine.failure is None, engine.failure
                    await asyncio.sleep(0.001)
            if crash_at is None:
                await engine.stop()
            else:
                await engine.kill()
                pending = ask("SELECT weak FROM {t} AS pending_productions")
                stragglers += sum(weak for (weak,) in pending)
            await store.close()
        rows = ask("SELECT number, key, count FROM {t} AS out")
        assert sorted(number for number, _, _ in rows) == halves(values)
        for key in {key for _, key, _ in rows}:
            counts = sorted(count for _, of, count in rows if of == key)
            assert counts == list(range(1, len(counts) + 1))
        assert ask("SELECT weak FROM {t} AS pending_productions") == []
    assert stragglers, "some were stored, read back and sent again"


# -- what else a weak computation may do ------------------------------------------------------


class Busy(Computation[Item, Count]):
    """Counts for itself and for a table, and passes on what depends on the item alone."""

    writes = (HALVES, TALLY)
    order_insensitive = True

    async def process_record(self, record: Record[Item], ctx: Context[Count]) -> None:
        ctx.state.count += 1
        ctx.count("items_seen")
        item = record.value
        ctx.produce(HALVES, item)
        ctx.produce(TALLY, Counted(item.key, item.number, ctx.state.count))
        ctx.set_timer(record.timestamp + timedelta(seconds=1), tag=str(item.number))

    async def process_timer(self, timer: Timer, ctx: Context[Count]) -> None:
        assert ctx.now
        ctx.produce(HALVES, Item(f"timer {ctx.key}", int(timer.tag) + 1000, 0))


def busy(values: Sequence[Item]) -> Pipeline:
    made = Pipeline("busy", settings=FEW)
    made.inject(ITEMS, script(ITEMS, values), timestamp=time_of)
    made.add(Busy(), ITEMS.by(key_of), productions="weak")
    made.add(Relay(AGAIN), HALVES.by(key_of), name="on", productions="weak")
    made.add(Tally(), AGAIN.by(key_of))
    made.sink(TALLY, Table("out", Counted, numbered=True))
    return made


async def test_effects_of_a_weak_computation_happen_once_at_any_crash() -> None:
    values = [Item("abc"[n % 3], n, n / 10) for n in range(12)]

    def check_all(world: World) -> None:
        wanted = Counter(dict.fromkeys(range(12), 2)) + Counter(range(1000, 1012))
        assert Counter(world.numbers()) == wanted
        assert {k: world.state("busy", k)[""]["count"] for k in "abc"} == dict.fromkeys("abc", 4)
        assert world.counter("busy", "items_seen") == 12
        assert world.store.pending_productions() == []

    world = World(busy(values))
    engine = await world.start(close_at_end=True)
    turns = 0
    while not engine.done.is_set():
        assert engine.failure is None, engine.failure
        await world.turns(1, tick=0.005)
        turns += 1
    await engine.kill()
    check_all(world)
    for point in range(0, turns, 5):
        world = World(busy(values))
        first = await world.start(close_at_end=True)
        await world.turns(point, tick=0.005)
        await first.kill()
        await world.run(tick=0.005, close_at_end=True)
        check_all(world)


async def test_a_due_timer_that_is_cancelled_before_its_turn_lets_the_watermark_go_on() -> None:
    """Nothing comes of it, not even an effect; yet what it has held is let go of."""
    gate = Gate()

    class Twice(Relay):
        order_insensitive = True

        async def process_record(self, record: Record[Item], ctx: Context[None]) -> None:
            for tag in ("first", "second"):
                ctx.set_timer(record.timestamp, tag=tag)

        async def process_timer(self, timer: Timer, ctx: Context[None]) -> None:
            await gate.wait()
            ctx.cancel_timer("second")
            ctx.produce(HALVES, Item("k", 1, 0))

    made = Pipeline("timers", settings=replace(FEW, chunk_records=1))
    made.inject(ITEMS, script(ITEMS, VALUES[:1]), timestamp=time_of)
    made.add(Twice(HALVES), ITEMS.by(key_of), productions="weak", name="twice")
    made.add(Tally(), HALVES.by(key_of))
    made.sink(TALLY, Table("out", Counted, numbered=True))
    world = World(made)
    engine = await world.start(close_at_end=True)
    await world.until(lambda: gate.reached and world.interval("twice").timers.firings == 2)
    await world.turns()
    gate.open()
    await world.finish(engine)
    assert world.numbers() == [1]


async def test_a_dead_letter_of_a_weak_computation_is_kept_once() -> None:
    class Picky(Relay):
        async def process_record(self, record: Record[Item], ctx: Context[None]) -> None:
            await super().process_record(record, ctx)
            if record.value.number == 3:
                raise ValueError("three")

    made = Pipeline("picky", settings=FEW)
    made.inject(ITEMS, script(ITEMS, VALUES), timestamp=time_of)
    made.add(
        Picky(HALVES), ITEMS.by(lambda i: i.number % 2), productions="weak", on_error="dead_letter"
    )
    made.add(Tally(), HALVES.by(key_of))
    made.sink(TALLY, Table("out", Counted, numbered=True))
    world = World(made)
    await world.run()
    assert sorted(world.numbers()) == [n for n in range(12) if n != 3]
    assert [error for _, error in world.letters()] == ["ValueError: three"]


@pytest.mark.parametrize("manner", ["spread", "broadcast"])
async def test_other_ways_to_read_what_is_produced_weakly(manner: str) -> None:
    class Table_(msgspec.Struct):
        numbers: list[int] = msgspec.field(default_factory=list)

    class Look(Computation[Item, None, Item, Table_]):
        writes = (TALLY,)

        async def process_record(self, record: Record[Item], ctx: Context[None, Table_]) -> None:
            item = record.value
            ctx.produce(TALLY, Counted(item.key, item.number, len(ctx.shared.numbers)))

        async def process_broadcast(self, record: Record[Item], shared: Table_) -> None:
            shared.numbers.append(record.value.number)

    class Tell(Relay):
        writes = (TALLY,)

        def __init__(self) -> None: ...

        async def process_record(self, record: Record[Item], ctx: Context[None]) -> None:
            item = record.value
            ctx.produce(TALLY, Counted(item.key, item.number, 0))

    def made() -> Pipeline:
        made = Pipeline("manners", settings=replace(FEW, broadcast_cells=4))
        made.inject(ITEMS, script(ITEMS, VALUES), timestamp=time_of)
        made.add(Relay(HALVES), ITEMS.by(number_of_item), productions="weak")
        if manner == "spread":
            made.add(Tell(), HALVES.spread())
        else:
            made.inject(AGAIN, script(AGAIN, [], "again"), timestamp=time_of)
            made.add(Look(), AGAIN.by(key_of), HALVES.broadcast(), name="look")
        made.sink(TALLY, Table("out", Counted, numbered=True))
        return made

    world = World(made())
    engine = await world.start()
    turns = 0
    while not engine.done.is_set():
        assert engine.failure is None, engine.failure
        await world.turns(1, tick=0.005)
        turns += 1
    await engine.kill()
    for point in range(0, turns, 5):
        world = World(made())
        first = await world.start()
        await world.turns(point, tick=0.005)
        await first.kill()
        await world.run(tick=0.005)
        if manner == "spread":
            assert sorted(world.numbers()) == list(range(12))
        else:
            cells = [
                row.value["numbers"] for row in world.store.states() if row.computation == "look"
            ]
            assert len(cells) == 4, "every cell has a copy of its own"
            assert all(sorted(numbers) == list(range(12)) for numbers in cells)


# -- at least once ---------------------------------------------------------------------------


@pytest.mark.parametrize("productions", ["strong", "weak"])
async def test_at_least_once_remembers_nothing_and_loses_nothing(
    productions: Productions,
) -> None:
    def made() -> Pipeline:
        made = Pipeline("careless", settings=FEW)
        made.inject(ITEMS, script(ITEMS, VALUES), timestamp=time_of)
        made.add(Halve(), ITEMS.by(number_of_item), productions=productions, exactly_once=False)
        made.add(Tally(), HALVES.by(key_of), exactly_once=False)
        made.sink(TALLY, Table("out", Counted, numbered=True))
        return made

    world = World(made())
    engine = await world.start()
    turns = 0
    while not engine.done.is_set():
        assert engine.failure is None, engine.failure
        await world.turns(1, tick=0.005)
        turns += 1
    await engine.kill()
    assert_once(world, VALUES)
    assert not any(commit.seen for commit in world.commits)
    doubled = 0
    for point in range(0, turns, 7):
        world = World(made())
        first = await world.start()
        await world.turns(point, tick=0.005)
        await first.kill()
        await world.run(tick=0.005)
        assert set(world.numbers()) == set(halves(VALUES))
        doubled += len(world.numbers()) - len(halves(VALUES))
    assert doubled, "what was in flight at a crash was processed again, and counted again"


# -- at most once ----------------------------------------------------------------------------


def fleeting(
    values: Sequence[Item], productions: Productions = "strong", settings: Settings = FEW
) -> Pipeline:
    """Every hop of the way at most once."""
    made = Pipeline("counting", settings=settings)
    made.inject(ITEMS, script(ITEMS, values), timestamp=time_of)
    made.add(Halve(), ITEMS.by(number_of_item), productions=productions, delivery="at_most_once")
    made.add(Tally(), HALVES.by(key_of), delivery="at_most_once")
    made.sink(TALLY, Table("out", Counted, numbered=True))
    return made


def assert_at_most_once(world: World, values: Sequence[Item]) -> int:
    """Nothing is there twice, and what is there was sent; gives how much is missing."""
    numbers = world.numbers()
    assert len(set(numbers)) == len(numbers)
    assert set(numbers) <= set(halves(values))
    for counted in world.tallied().values():
        assert [count for _, count in counted] == list(range(1, len(counted) + 1))
    return len(halves(values)) - len(numbers)


@pytest.mark.parametrize("productions", ["strong", "weak"])
async def test_at_most_once_stores_nothing_and_loses_what_was_on_its_way(
    productions: Productions,
) -> None:
    world = World(fleeting(VALUES, productions))
    engine = await world.start()
    turns = 0
    while not engine.done.is_set():
        assert engine.failure is None, engine.failure
        await world.turns(1, tick=0.005)
        turns += 1
    await engine.kill()
    assert_once(world, VALUES)
    tally = next(s.id for s in engine.exchange.steps.values() if s.name == "tally")
    seen = {computation for c in world.commits for ids in c.seen.values() for computation, _ in ids}
    assert not seen & {s.id for s in engine.exchange.steps.values() if s.node.at_most_once}
    written = [p for c in world.commits for p in (*c.productions, *c.stragglers)]
    assert not [p for p in written if p.receiver == tally], "what it is sent is stored nowhere"
    missing = 0
    for point in range(0, turns, 5):
        world = World(fleeting(VALUES, productions))
        first = await world.start()
        await world.turns(point, tick=0.005)
        await first.kill()
        await world.run(tick=0.005)
        missing += assert_at_most_once(world, VALUES)
    assert missing, "a crash loses what was on its way"


@pytest.mark.parametrize("productions", ["strong", "weak"])
async def test_who_gets_records_at_most_once_gets_none_twice_whoever_sends_them(
    productions: Productions,
) -> None:
    """The sender itself gets its records again after a crash, and makes the same of them."""

    def made() -> Pipeline:
        made = Pipeline("counting", settings=FEW)
        made.inject(ITEMS, script(ITEMS, VALUES), timestamp=time_of)
        made.add(Halve(), ITEMS.by(number_of_item), productions=productions)
        made.add(Tally(), HALVES.by(key_of), delivery="at_most_once")
        made.sink(TALLY, Table("out", Counted, numbered=True))
        return made

    for point in range(0, 60, 3):
        world = World(made())
        first = await world.start()
        await world.turns(point, tick=0.005)
        await first.kill()
        await world.run(tick=0.005)
        assert_at_most_once(world, VALUES)


@pytest.mark.parametrize("seed", range(4))
async def test_at_most_once_through_failing_commits(seed: int) -> None:
    """Without a crash nothing is lost but what a commit of unknown fate carried."""
    chance = Random(seed)
    unknown = seed % 2 == 1
    world = World(fleeting(VALUES))
    failed = 0

    def perhaps(commit: Commit) -> None:
        nonlocal failed
        if failed < 6 and chance.random() < 0.3:
            failed += 1
            raise CommitUnknown("by chance") if unknown else StoreUnavailable("by chance")

    world.on_try = perhaps
    if unknown:
        world.on_durable = perhaps
    await world.run(tick=0.02)
    missing = assert_at_most_once(world, VALUES)
    assert failed
    assert unknown or not missing
    assert world.store.pending_productions() == []


@pytest.mark.parametrize("seed", range(3))
async def test_at_most_once_while_workers_come_and_go(seed: int) -> None:
    chance = Random(seed)
    values = [Item("", n, n / 10) for n in range(150)]
    weather = Weather(Random(seed), drop=0.02, duplicate=0.02, overtake=0.02, delay=0.1)
    cluster = Cluster(fleeting(values, settings=SHARED), weather if seed % 2 else None)
    await cluster.join()
    for _ in range(3):
        await cluster.commit(chance.randrange(5, 60))
        match chance.choice(["join", "crash", "cut"]):
            case "crash" if len(cluster.alive) > 1:
                await cluster.crash(chance.choice(cluster.alive))
            case "cut":
                await cluster.cut(chance.randrange(100), chance.choice([None, 0.5]))
            case _:
                await cluster.join()
    await cluster.go(cluster.finished)
    assert_at_most_once(cluster, values)
    for engine in list(cluster.alive):
        await cluster.leave(engine)


async def test_at_most_once_what_waits_in_an_interval_that_moves_does_not_go_along() -> None:
    """It has run, and what came of it is on its way: it is not run once more by the next owner."""
    runs: Counter[int] = Counter()

    class Note(Relay):
        async def process_record(self, record: Record[Item], ctx: Context[None]) -> None:
            runs[record.value.number] += 1
            await super().process_record(record, ctx)

    values = [Item("key 1", n, n / 10) for n in range(12)]
    made = Pipeline("counting", settings=SHARED)
    made.inject(ITEMS, script(ITEMS, values), timestamp=time_of)
    made.add(
        Note(HALVES),
        ITEMS.by(number_of_item),
        name="note",
        productions="weak",
        delivery="at_most_once",
        straggler_after=timedelta(seconds=600),
    )
    made.add(Slow(gate := Gate(), "key 1"), HALVES.by(key_of))
    made.sink(TALLY, Table("out", Counted, numbered=True))
    cluster = Cluster(made)
    first = await cluster.join()
    await cluster.go(lambda: gate.reached and sum(runs.values()) > 5)
    second = await cluster.join()
    for row in await cluster.parts("note"):
        wish = Wish(row.id, row.sequencer, second.worker, "test", pinned=True)
        await cluster.store.wish([wish])
    await cluster.go(lambda: not [i for i in first.intervals if i.step.name == "note"])
    gate.open()
    await cluster.go(cluster.finished)
    assert set(runs.values()) == {1}
    for engine in (first, second):
        await cluster.leave(engine)


async def test_at_most_once_when_a_link_breaks_with_the_acknowledgements() -> None:
    """What they were for has been counted: nothing of it is sent again over the next link."""
    values = [Item("", n, n / 10) for n in range(400)]
    cluster = Cluster(fleeting(values, settings=SHARED))
    workers = [await cluster.join() for _ in range(2)]
    await cluster.go(lambda: min(engine.processed for engine in workers) > 50)
    couriers = [engine.courier for engine in workers if engine.courier is not None]
    acknowledge = [courier.acknowledge for courier in couriers]
    for courier in couriers:
        courier.acknowledge = lambda *lost: None  # type: ignore[method-assign]
    until = cluster.clock.monotonic() + 1
    await cluster.go(lambda: cluster.clock.monotonic() > until)
    unacked = {
        remote.step.name: len(stream.unacked)
        for engine in workers
        for remote in engine.remotes.remotes()
        for stream in remote.streams.values()
    }
    assert unacked.keys() & {"halve", "tally"}, unacked
    cluster.ether.cut("w0", "w1")
    for courier, again in zip(couriers, acknowledge, strict=True):
        courier.acknowledge = again  # type: ignore[method-assign]
    await cluster.go(cluster.finished)
    assert_at_most_once(cluster, values)
    for engine in workers:
        await cluster.leave(engine)


async def test_at_most_once_is_not_sent_again_when_its_interval_is_cut() -> None:
    """What was sent has arrived, and its sender learns of the cut before it is acknowledged."""
    values = [Item("", n, n / 10) for n in range(1000)]
    cluster = Cluster(fleeting(values, settings=SHARED))
    sender = await cluster.join()
    await cluster.join()

    def late(source: str, target: str, body: bytes) -> Fate:
        return Fate(delay=3.0 if source == "w1" else 0.0)  # what the receiver answers

    tally = next(id_ for id_, step in sender.exchange.steps.items() if step.name == "tally")

    def of_tally() -> list[Remote]:
        return [r for r in sender.remotes.remotes() if r.step.id == tally and r.owner]

    await cluster.go(of_tally)
    cluster.ether.weather = late
    sent: list[Remote] = []

    def on_its_way() -> bool:
        sent[:] = [
            remote
            for remote in of_tally()
            if any(s.unacked and s.last == max(s.unacked) for s in remote.streams.values())
        ]
        return bool(sent)

    await cluster.go(on_its_way)
    assert [d.seq for r in sent for d in r.take_unacked()] == []  # as a look at the cut has it
    await cluster.go(cluster.finished)
    assert_at_most_once(cluster, values)
    for engine in list(cluster.alive):
        await cluster.leave(engine)


async def test_records_of_a_source_keep_the_name_of_their_stream() -> None:
    names: list[str] = []

    class Note(Relay):
        async def process_record(self, record: Record[Item], ctx: Context[None]) -> None:
            names.append(record.stream)

    made = Pipeline("names", settings=FEW)
    made.inject(ITEMS, script(ITEMS, VALUES[:2]), timestamp=time_of)
    made.add(Note(HALVES), ITEMS.by(key_of), delivery="at_most_once")
    await World(made).run()
    assert names == ["items", "items"]


# -- what is refused ---------------------------------------------------------------------------


def refused(match: str, computation: Computation[Any, Any], **options: Any) -> None:
    made = Pipeline("refused")
    made.inject(ITEMS, script(ITEMS, []), timestamp=time_of)
    with pytest.raises(GraphError, match=match):
        made.add(computation, ITEMS.by(key_of), **options)


def test_weak_productions_that_depend_on_state_are_refused() -> None:
    refused("'tally' keeps state.*order_insensitive", Tally(), productions="weak")


def test_bad_options_are_refused() -> None:
    refused("'strong' or 'weak'", Halve(), productions="strongly")
    refused("exactly_once must be True or False", Halve(), exactly_once=1)
    refused("'acknowledged' or 'at_most_once'", Halve(), delivery="never")
    refused("straggler_after must be a timedelta", Halve(), productions="weak", straggler_after=1)


def test_rows_that_would_come_twice_for_good_are_refused() -> None:
    made = Pipeline("refused")
    made.inject(ITEMS, script(ITEMS, []), timestamp=time_of)
    made.add(Halve(), ITEMS.by(key_of), productions="weak", exactly_once=False)
    made.sink(HALVES, Table("rows", Item))
    with pytest.raises(GraphError, match=r"no key.*exactly_once=True"):
        made.graph()


@pytest.mark.parametrize(
    "what", ["now", "low_watermark", "low_watermark_micros", "output_watermark"]
)
async def test_the_time_is_not_for_weak_code(what: str) -> None:
    class Timely(Relay):
        async def process_record(self, record: Record[Item], ctx: Context[None]) -> None:
            getattr(ctx, what)

    made = Pipeline("timely")
    made.inject(ITEMS, script(ITEMS, []), timestamp=time_of)
    made.add(Timely(HALVES), ITEMS.by(key_of), productions="weak")
    async with Harness(made) as harness:
        with pytest.raises(Exception, match=f"ctx.{what}.*order_insensitive"):
            await harness.inject(ITEMS, Item("a", 1))


class Told(Computation[Item, None]):
    """Tells of each item, for the table."""

    writes = (TALLY,)

    async def process_record(self, record: Record[Item], ctx: Context[None]) -> None:
        item = record.value
        ctx.produce(TALLY, Counted(item.key, item.number, 0))


class Fickle(Relay):
    """Says something else each time it runs on an item: 100 more; mended, it always adds 1000."""

    def __init__(self, *, mended: bool = False) -> None:
        super().__init__(HALVES)
        self._mended = mended
        self._runs = Counter[int]()

    async def process_record(self, record: Record[Item], ctx: Context[None]) -> None:
        number = record.value.number
        self._runs[number] += 1
        more = 1000 if self._mended else 100 * self._runs[number]
        ctx.produce(HALVES, Item("k", more + number))


def fickle(manner: str, code: Computation[Item, None]) -> Pipeline:
    made = Pipeline("fickle", settings=FEW)
    made.inject(ITEMS, script(ITEMS, VALUES), timestamp=time_of)
    made.add(code, ITEMS.by(key_of), productions="weak", name="fickle")
    if manner == "spread":
        made.add(Told(), HALVES.spread())
    else:
        made.add(Tally(), HALVES.by(key_of))
    made.sink(TALLY, Table("out", Counted, numbered=True))
    return made


@pytest.mark.parametrize("manner", ["by key", "spread"])
async def test_code_that_does_not_do_the_same_again_is_found_out(manner: str) -> None:
    """The second run of one worker says something else under the same id: neither dropped nor
    taken, and looked for where the first one went."""
    world = World(fickle(manner, Fickle()))
    cut = False

    def lose(commit: Commit) -> None:
        nonlocal cut
        if commit.rows and not cut:
            cut = True
            raise CommitUnknown("the connection was lost")

    world.on_durable = lose
    with pytest.raises(NotTheSameAgain, match=r"stream 'halves'.*different values"):
        await world.run()
    assert cut


@pytest.mark.parametrize("manner", ["by key", "spread"])
async def test_the_first_value_stays_when_the_code_is_changed_after_a_crash(manner: str) -> None:
    """A bug fix in weak code, deployed after a kill: values that were durable stay, which is
    counted and logged once; all others are the new code's; and each start goes well."""
    world = World(fickle(manner, Fickle()))
    reached = asyncio.Event()

    def stop(commit: Commit) -> Any:
        if not commit.rows:
            return None
        reached.set()
        return asyncio.Event().wait()

    world.on_durable = stop
    first = await world.start(worker=str(UUID(int=1)))
    await world.until(reached.is_set)
    world.on_durable = None
    await first.kill()
    kept = world.numbers()
    assert kept
    with capture_logs() as logs:
        engine = await world.start(fickle(manner, Fickle(mended=True)), worker=str(UUID(int=2)))
        await world.finish(engine)
    assert world.numbers()[: len(kept)] == kept
    assert {number % 100 for number in kept}.isdisjoint(
        number % 100 for number in world.numbers()[len(kept) :]
    )
    assert sorted(number % 100 for number in world.numbers()) == [v.number for v in VALUES]
    assert all(number >= 1000 for number in world.numbers()[len(kept) :])
    receiver = "told" if manner == "spread" else "tally"
    assert world.counter(receiver, "weak_changed") == len(kept)
    (said,) = (line for line in logs if line["event"] == "weak_changed")
    assert (said["computation"], said["stream"]) == (receiver, "halves")


# -- several workers -----------------------------------------------------------------------------


def shared(values: Sequence[Item], depth: int = 2) -> Pipeline:
    made = Pipeline("counting", settings=SHARED)
    for number in range(2):
        made.inject(
            ITEMS,
            script(ITEMS, values[number::2], f"part {number}"),
            timestamp=time_of,
            name=f"source_{number}",
        )
    last: Stream[Item] = ITEMS
    for number in range(depth):
        to = Stream(f"hop_{number}", Item)
        # By the key all the way: a record that overtook another would be seen in `check`.
        made.add(
            Relay(to),
            last.by(key_of),
            name=f"relay_{number}",
            productions="weak",
            straggler_after=timedelta(seconds=0.3),
        )
        last = to
    made.add(Tally(), last.by(key_of))
    made.add(Ones(), TALLY.by(number_of))
    made.sink(ONES, Table("out", Counted, numbered=True))
    return made


@pytest.mark.parametrize("seed", seeds(3, 12))
async def test_workers_come_and_go(seed: int) -> None:
    chance = Random(seed)
    # Seconds as a source of the real world reads them: what is made again is compared as JSON.
    values = [msgspec.structs.replace(item, second=float(item.second)) for item in many(300)]
    weather = Weather(Random(seed), drop=0.02, duplicate=0.02, overtake=0.02, delay=0.1)
    cluster = Cluster(shared(values), weather if seed % 2 else None)
    await cluster.join()
    for _ in range(4):
        await cluster.commit(chance.randrange(5, 60))
        match chance.choice(["join", "crash", "leave", "cut"]):
            case "join":
                await cluster.join()
            case "crash" if len(cluster.alive) > 1:
                await cluster.crash(chance.choice(cluster.alive))
            case "leave" if len(cluster.alive) > 1:
                await cluster.leave(chance.choice(cluster.alive))
            case _:
                await cluster.cut(chance.randrange(100), chance.choice([None, 0.5]))
    await cluster.go(cluster.finished)
    check(cluster, values)
    for engine in list(cluster.alive):
        await cluster.leave(engine)
    assert cluster.store.pending_productions() == []
