"""How a consumer reads a stream: spread over intervals, or by broadcast into a shared table."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import replace
from random import Random
from typing import Any, ClassVar

import msgspec
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from millwheel import (
    Computation,
    Context,
    ListState,
    MapState,
    Pipeline,
    Record,
    Settings,
    Stream,
    Table,
    Timer,
)
from millwheel.computations import FlatMap
from millwheel.core.addresses import SPREAD_KEYS, cell_address, spread_addresses
from millwheel.core.codec import decode_key, encode_key, slot_of
from millwheel.core.model import SLOTS, Delivery
from millwheel.errors import (
    DeployRefused,
    GraphError,
    InvariantBroken,
    MigrationFailed,
    PlacementRefused,
    UsageError,
    UserCodeError,
)
from millwheel.graph import drawing
from millwheel.runtime.engine import Engine
from millwheel.runtime.environment import Options
from millwheel.runtime.interval.interval_fold import fold
from millwheel.runtime.interval.step import Step
from millwheel.runtime.keys.broadcast_tables import BroadcastTables
from millwheel.runtime.ownership import balancer, trial
from millwheel.runtime.ownership.deploying import node_deploy
from millwheel.runtime.ownership.planner import IntervalLoad, split_at
from millwheel.runtime.routes.readers import SpreadReader
from millwheel.store.memory import MemoryStore
from millwheel.store.postgres.store import PostgresStore
from millwheel.testing import Harness, advance, assert_exactly_once, inject
from millwheel.testing.fake_network import Weather
from tests.support.clusters import ACTS, SHARED, Act, Cluster
from tests.support.examples import examples
from tests.support.pipelines import QUICK, Broken, script
from tests.support.store_sites import Schema
from tests.support.values import ITEMS, Count, Item, at, items, key_of, time_of
from tests.support.worlds import Gate, World, read_on, unknown_once

CELLS = 4
FEW_CELLS = replace(QUICK, broadcast_cells=CELLS)


class Rule(msgspec.Struct, frozen=True):
    """One line of the table: `name` is worth `number` from `second` on."""

    name: str
    number: int
    second: float = 0
    source: int = 0


class Rules(msgspec.Struct):
    """Everything that was ever told, in order, per source; and what holds now."""

    told: dict[str, list[int]] = msgspec.field(default_factory=dict)
    now: dict[str, int] = msgspec.field(default_factory=dict)
    since: dict[str, list[tuple[float, int]]] = msgspec.field(default_factory=dict)


class Judged(msgspec.Struct):
    """What an item saw of the rules."""

    key: str
    number: int
    rules: dict[str, int]


RULES = Stream("rules", Rule)
JUDGED = Stream("judged", Judged)
DOUBLED = Stream("doubled", Item)


def second_of(rule: Rule) -> Any:
    return at(rule.second)


class Learn(Computation[Item, Any, Rule, Rules]):
    """Takes rules into the table; what is done with items is for others to say."""

    async def process_broadcast(self, record: Record[Rule], shared: Rules) -> None:
        rule = record.value
        shared.told.setdefault(str(rule.source), []).append(rule.number)
        shared.now[rule.name] = rule.number
        shared.since.setdefault(rule.name, []).append((rule.second, rule.number))


class Judge(Learn, Computation[Item, None, Rule, Rules]):
    """Passes each item on with the rules as they are."""

    writes = (JUDGED,)

    async def process_record(self, record: Record[Item], ctx: Context[None, Rules]) -> None:
        item = record.value
        ctx.produce(JUDGED, Judged(item.key, item.number, dict(ctx.shared.now)))


class Waiting(msgspec.Struct):
    """Items until time has passed them."""

    items: list[Item] = msgspec.field(default_factory=list)


class JudgeAsOf(Learn, Computation[Item, Waiting, Rule, Rules]):
    """Passes each item on with the rules of its own instant: what the docs say how to do."""

    writes = (JUDGED,)

    async def process_record(self, record: Record[Item], ctx: Context[Waiting, Rules]) -> None:
        ctx.state.items.append(record.value)
        ctx.set_timer(record.timestamp, tag=str(record.value.number))

    async def process_timer(self, timer: Timer, ctx: Context[Waiting, Rules]) -> None:
        for item in [i for i in ctx.state.items if str(i.number) == timer.tag]:
            ctx.state.items.remove(item)
            rules = {
                name: max(known)[1]
                for name, found in ctx.shared.since.items()
                if (known := [rule for rule in found if rule[0] <= item.second])
            }
            ctx.produce(JUDGED, Judged(item.key, item.number, rules))


class Double(Computation[Item, None]):
    """Work that depends on no key."""

    writes = (DOUBLED,)

    async def process_record(self, record: Record[Item], ctx: Context[None]) -> None:
        item = record.value
        ctx.produce(DOUBLED, msgspec.structs.replace(item, number=item.number * 2))


class Keep(Computation[Item, Count]):
    """Counts what came, per key."""

    async def process_record(self, record: Record[Item], ctx: Context[Count]) -> None:
        ctx.state.count += 1


def judging(
    computation: Computation[Any, Any, Any, Any] | None = None,
    *,
    rules: Any = (),
    orders: Any = (),
    limits: Settings = FEW_CELLS,
    **options: Any,
) -> Pipeline:
    """Items by their key, rules by broadcast."""
    made = Pipeline("judging", settings=limits)
    made.inject(RULES, script(RULES, rules, "rules"), timestamp=second_of)
    made.inject(ITEMS, script(ITEMS, orders), timestamp=time_of)
    made.add(computation or Judge(), ITEMS.by(key_of), RULES.broadcast(), name="judge", **options)
    if computation is None or computation.writes:
        made.sink(JUDGED, Table("out", Judged, numbered=True))
    return made


def tables_of(store: MemoryStore, computation: str = "judge") -> dict[int, Any]:
    """The stored table of each cell."""
    return {
        row.key["cell"]: row.value
        for row in store.states()
        if row.computation == computation and isinstance(row.key, dict)
    }


# -- spread ------------------------------------------------------------------------------------


def doubling(
    values: list[Item] | None = None, limits: Settings = QUICK, *, named: bool = False
) -> Pipeline:
    """A source spread, its results spread once more, and counted by key."""
    made = Pipeline("doubling", settings=limits)
    name = (lambda item: str(item.number)) if named else None
    made.inject(ITEMS, script(ITEMS, values or []), timestamp=time_of, id=name)
    made.add(Double(), ITEMS.spread(), name="first")
    made.add(FlatMap(lambda item: [item], to=AGAIN), DOUBLED.spread(), name="second")
    made.add(Keep(), AGAIN.by(key_of))
    made.sink(AGAIN, Table("out", Item, numbered=True))
    return made


AGAIN = Stream("again", Item)


async def test_what_is_spread_runs_once_whatever_happens() -> None:
    values = [Item("abc"[n % 3], n, n) for n in range(9)]
    await assert_exactly_once(
        doubling(),
        [inject(ITEMS, value) for value in values],
        {AGAIN: [msgspec.structs.replace(value, number=value.number * 2) for value in values]},
    )


async def test_a_spread_key_is_a_number_and_records_of_one_source_have_many() -> None:
    keys: list[Any] = []

    class Look(Double):
        async def process_record(self, record: Record[Item], ctx: Context[None]) -> None:
            assert record.key == ctx.key
            keys.append(ctx.key)

    made = Pipeline("looking", settings=QUICK)
    made.inject(ITEMS, script(ITEMS, items(*range(100))), timestamp=time_of)
    made.add(Look(), ITEMS.spread())
    world = World(made)
    await world.run()
    assert len(set(keys)) == 100
    assert {type(key) for key in keys} == {int}


def test_spread_keys_cover_the_slots_evenly_and_for_ever() -> None:
    addresses = spread_addresses()
    assert all(encode_key(a.key) == (a.key_text, a.slot) for a in addresses)
    parts = Counter(a.slot * SPREAD_KEYS // SLOTS for a in addresses)
    assert parts == dict.fromkeys(range(SPREAD_KEYS), 1)
    # The ids of rows that are read again are kept under these: another order would lose them.
    assert [a.key for a in addresses[:5]] == [0, 1, 2, 3, 4]
    assert [a.key for a in addresses[-3:]] == [6788, 8300, 9873]


class Place:
    """An interval here or elsewhere."""

    def __init__(self, id_: int, slots: tuple[int, int], is_here: bool) -> None:
        self.id, self.slots, self.is_here = id_, slots, is_here
        self.intake: Any = None
        self.queued = 0

    def insert(self, deliveries: list[Delivery[Any]], /) -> None:
        raise NotImplementedError


def step_of(*places: Place) -> Step:
    step = Step(1, 0, doubling().graph().by_name["first"], {})
    step.arrange(list(places))
    return step


def sent(step: Step, number: int) -> Counter[int]:
    """How many productions each of a step's intervals gets."""
    reader = SpreadReader(step, 1)
    return Counter(step.interval_of(reader.address(None, "items").slot).id for _ in range(number))


def test_productions_stay_on_the_worker_and_go_evenly_to_its_intervals() -> None:
    narrow, wide, other = (
        Place(1, (0, 8192), True),
        Place(2, (8192, 40_000), True),
        Place(3, (40_000, SLOTS), False),
    )
    assert sent(step_of(narrow, wide, other), 1000) == {1: 500, 2: 500}


def test_productions_go_to_all_where_none_is_here_and_follow_what_moves() -> None:
    step = step_of(Place(1, (0, 30_000), False), Place(2, (30_000, SLOTS), False))
    assert sent(step, 1000) == {1: 500, 2: 500}
    step.put(Place(2, (30_000, SLOTS), True))
    assert sent(step, 1000) == {2: 1000}
    step.put(Place(2, (30_000, SLOTS), False))
    assert sent(step, 1000) == {1: 500, 2: 500}
    step.put(Place(3, (50_000, SLOTS), True))  # the upper part of what was split
    assert sent(step, 1000) == {3: 1000}
    step.arrange([Place(4, (0, 10_000), True), Place(5, (10_000, SLOTS), False)])
    assert sent(step, 1000) == {4: 1000}


def test_an_interval_without_a_number_is_passed_over() -> None:
    inside = sorted(address.slot for address in spread_addresses())
    gap = (inside[4] + 1, inside[5])
    step = step_of(
        Place(1, (0, gap[0]), False), Place(2, gap, True), Place(3, (gap[1], SLOTS), False)
    )
    assert sent(step, 1000) == {1: 500, 3: 500}


async def test_spread_records_wait_beside_each_other() -> None:
    """Calling a service: each record of a source waits by itself, none behind another."""
    gate = Gate()

    class Call(Double):
        async def process_record(self, record: Record[Item], ctx: Context[None]) -> None:
            await gate.wait()
            await super().process_record(record, ctx)

    made = Pipeline("calling", settings=QUICK)
    made.inject(ITEMS, script(ITEMS, items(*range(50))), timestamp=time_of)
    made.add(Call(), ITEMS.spread())
    made.sink(DOUBLED, Table("out", Item, numbered=True))
    world = World(made)
    engine = await world.start()
    await world.until(lambda: gate.reached == 50)
    gate.open()
    await world.finish(engine)
    assert sorted(world.numbers()) == [n * 2 for n in range(50)]


async def test_a_row_read_again_goes_where_it_went() -> None:
    """Wherever its reader's intervals are by then: else its id is looked for in the wrong place."""
    values = items(*range(40), key="a")
    world = World(doubling(values, replace(QUICK, max_unacked_records=20), named=True))
    places: dict[bytes, set[int]] = defaultdict(set)

    def note(commit: Any) -> None:
        for seen in commit.seen.values():
            for slot, _, id_ in seen.rows:
                places[id_].add(slot)

    world.on_try = note
    first = await world.start()
    await world.until(lambda: len(world.rows()) > 10)
    await first.kill()
    world.pipeline = doubling(values, replace(QUICK, intervals=3), named=True)
    await world.run()
    assert sorted(world.numbers()) == [value.number * 2 for value in values]
    assert len(places) == 40
    assert all(len(slots) == 1 for slots in places.values())


async def test_on_several_workers_what_is_made_here_is_read_here() -> None:
    values = [Item(f"key {n % 20}", n, n // 10) for n in range(2000)]
    cluster = Cluster(doubling(values, SHARED))
    for _ in range(2):
        await cluster.join()
    reader = next(id_ for id_, s in cluster.engines[0].exchange.steps.items() if s.name == "second")
    await cluster.go(lambda: all(len(e.exchange.of(reader)) == 1 for e in cluster.alive))
    await cluster.commit(20)  # with what was decided before
    here: Counter[bool] = Counter()

    def look(commit: Any) -> None:
        holders = {i.log.id: engine for engine in cluster.alive for i in engine.intervals}
        for production in commit.productions:
            if production.receiver == reader:
                (interval,) = holders[production.log].exchange.of(reader)
                low, high = interval.slots
                here[low <= production.slot < high] += 1

    cluster.on_durable = look
    await cluster.go(cluster.finished)
    assert here.keys() == {True}
    assert here[True] > 1000
    assert sorted(row[1] for row in cluster.rows()) == sorted(v.number * 2 for v in values)
    for engine in list(cluster.alive):
        await cluster.leave(engine)


def test_a_spread_reader_keeps_nothing_by_key() -> None:
    class Timed(Double):
        async def process_timer(self, timer: Timer, ctx: Context[None]) -> None: ...

    class Two(Computation[Item | Rule, None]):
        async def process_record(self, record: Any, ctx: Any) -> None: ...

    def add(computation: Any, *inputs: Any) -> None:
        Pipeline("wrong").add(computation, *inputs, name="reader")

    with pytest.raises(GraphError, match=r"reads 'items' spread(.|\n)*state(.|\n)*STREAM\.by"):
        add(Keep(), ITEMS.spread())
    with pytest.raises(GraphError, match=r"reads 'items' spread(.|\n)*timers(.|\n)*STREAM\.by"):
        add(Timed(), ITEMS.spread())
    with pytest.raises(GraphError, match=r"reads 'items' spread(.|\n)*'rules' by second_of"):
        add(Two(), ITEMS.spread(), RULES.by(second_of))
    add(Two(), ITEMS.spread(), RULES.spread())


@pytest.mark.parametrize(
    "do",
    [
        lambda ctx: ctx.set_timer(at(1)),
        lambda ctx: ctx.cancel_timer(),
        lambda ctx: ctx.hold_watermark(at(1)),
        lambda ctx: ctx.release_watermark(),
    ],
)
async def test_a_spread_key_has_no_timers_and_no_holds(do: Callable[[Any], None]) -> None:
    class Wrong(Double):
        async def process_record(self, record: Record[Item], ctx: Context[None]) -> None:
            do(ctx)

    made = Pipeline("wrong", settings=QUICK)
    made.inject(ITEMS, script(ITEMS, items(1)), timestamp=time_of)
    made.add(Wrong(), ITEMS.spread(), name="reader")
    with pytest.raises(UserCodeError, match=r"'reader'(.|\n)*STREAM\.spread\(\)(.|\n)*STREAM\.by"):
        await World(made).run()


# -- broadcast ---------------------------------------------------------------------------------


async def test_every_key_sees_what_was_broadcast() -> None:
    async with Harness(judging()) as harness:
        await harness.inject(RULES, Rule("tax", 7))
        await harness.inject(ITEMS, *[Item(f"key {n}", n) for n in range(30)])
        await harness.inject(RULES, Rule("tax", 19), Rule("fee", 2))
        await harness.inject(ITEMS, Item("key 1", 100))
        judged = harness.produced(JUDGED)
        assert [j.rules for j in judged] == [{"tax": 7}] * 30 + [{"tax": 19, "fee": 2}]
        assert harness.shared("judge", "key 1")["now"] == {"tax": 19, "fee": 2}
        assert sorted(tables_of(harness.store)) == list(range(CELLS))
        to_table_and_harness = 2 * 31
        assert harness.counters("judge") == {
            "processed": 31 + 3 * CELLS,
            "records_out": to_table_and_harness,
        }


async def test_without_a_rule_the_table_is_empty() -> None:
    async with Harness(judging()) as harness:
        await harness.inject(ITEMS, Item("a", 1))
        assert harness.produced(JUDGED) == [Judged("a", 1, {})]
        assert harness.shared("judge", "a") is None
        with pytest.raises(UsageError, match="'items_injector' reads no stream by broadcast"):
            harness.shared("items_injector", "a")
        assert tables_of(harness.store) == {}


async def test_each_item_finds_the_rules_of_its_own_instant_whatever_happens() -> None:
    """A timer at an instant sees every broadcast record up to it: what is promised of order."""
    orders = [Item("abc"[n % 3], n, n * 2 + 1) for n in range(6)]
    rules = [Rule("ab"[n % 2], n, n * 3) for n in range(4)]
    steps: list[Any] = [
        *[inject(ITEMS, order) for order in orders],
        *[inject(RULES, r) for r in rules],
    ]
    expected = [
        Judged(o.key, o.number, {r.name: r.number for r in rules if r.second <= o.second})
        for o in orders
    ]
    await assert_exactly_once(
        judging(JudgeAsOf()),
        [*steps, advance(ITEMS, at(100)), advance(RULES, at(100))],
        {JUDGED: expected},
    )


class Tell(Learn, Computation[Item, None, Rule, Rules]):
    """At the end of the items of a key, says everything that was told."""

    writes = (JUDGED,)

    async def process_record(self, record: Record[Item], ctx: Context[None, Rules]) -> None:
        ctx.set_timer(at(1000))

    async def process_timer(self, timer: Timer, ctx: Context[None, Rules]) -> None:
        for source, numbers in ctx.shared.told.items():
            ctx.produce(JUDGED, Judged(str(ctx.key), len(numbers), {source: hash(tuple(numbers))}))


async def test_no_rule_is_lost_doubled_or_out_of_order_whatever_happens() -> None:
    numbers = list(range(7))
    told = [Judged(key, 7, {"0": hash(tuple(numbers))}) for key in "abcdef"]
    steps: list[Any] = [
        *[inject(ITEMS, Item(key, 1)) for key in "abcdef"],
        *[inject(RULES, Rule("a", number)) for number in numbers],
        advance(ITEMS, at(2000)),
        advance(RULES, at(2000)),
    ]
    await assert_exactly_once(judging(Tell()), steps, {JUDGED: told}, max_crashes=6)


async def test_a_stream_that_a_computation_makes_can_be_broadcast() -> None:
    made = Pipeline("judging", settings=FEW_CELLS)
    made.inject(ITEMS, script(ITEMS, []), timestamp=time_of)
    made.add(
        FlatMap(lambda item: [Rule(item.key, item.number)] * (item.number < 0), to=RULES),
        ITEMS.spread(),
    )
    made.add(Judge(), ITEMS.by(key_of), RULES.broadcast())
    assert "relay" not in {node.kind for node in made.graph().nodes}
    async with Harness(made) as harness:
        await harness.inject(ITEMS, Item("tax", -1))
        await harness.inject(ITEMS, Item("a", 1))
        assert harness.produced(JUDGED)[-1] == Judged("a", 1, {"tax": -1})
        assert harness.shared("judge", "a")["told"] == {"0": [-1]}


async def test_spread_records_see_the_table_too() -> None:
    made = Pipeline("judging", settings=FEW_CELLS)
    made.inject(RULES, script(RULES, [], "rules"), timestamp=second_of)
    made.inject(ITEMS, script(ITEMS, []), timestamp=time_of)
    made.add(Judge(), ITEMS.spread(), RULES.broadcast())
    async with Harness(made) as harness:
        await harness.inject(RULES, Rule("tax", 7))
        await harness.inject(ITEMS, *items(*range(40)))
        judged = sorted(harness.produced(JUDGED), key=lambda judged: judged.number)
        assert judged == [Judged("a", n, {"tax": 7}) for n in range(40)]


async def test_no_key_of_a_users_is_a_cell() -> None:
    keys: list[Any] = ['{"cell":0}', "cell", "0", 0]

    class Count_(Learn, Computation[Item, Count, Rule, Rules]):
        async def process_record(self, record: Record[Item], ctx: Context[Count, Rules]) -> None:
            ctx.state.count += len(ctx.shared.now)

    made = Pipeline("judging", settings=FEW_CELLS)
    made.inject(RULES, script(RULES, [], "rules"), timestamp=second_of)
    made.inject(ITEMS, script(ITEMS, []), timestamp=time_of)
    made.add(
        Count_(),
        ITEMS.by(lambda item: ("cell", 0) if item.number < 0 else keys[item.number]),
        RULES.broadcast(),
        name="judge",
    )
    async with Harness(made) as harness:
        await harness.inject(RULES, Rule("tax", 7))
        await harness.inject(ITEMS, *items(0, 1, 2, 3, -1))
        for key in [*keys, ("cell", 0)]:
            assert harness.state("judge", key) == {"": {"count": 1}}
        assert all(table["told"] == {"0": [7]} for table in tables_of(harness.store).values())
    for cell in range(CELLS):
        address = cell_address(cell, SLOTS // CELLS)
        assert decode_key(address.key_text) == address.key
        assert address.slot * CELLS // SLOTS == cell


async def test_a_rule_that_fails_leaves_the_table_as_it_was() -> None:
    class Careless(Judge):
        async def process_broadcast(self, record: Record[Rule], shared: Rules) -> None:
            await super().process_broadcast(record, shared)
            if record.value.name == "bad":
                raise Broken("no such rule")

    pipeline = judging(Careless(), on_error="dead_letter", retries=1)
    async with Harness(pipeline) as harness:
        await harness.inject(RULES, Rule("tax", 7), Rule("bad", 1), Rule("fee", 2))
        await harness.inject(ITEMS, Item("a", 1))
        assert harness.produced(JUDGED) == [Judged("a", 1, {"tax": 7, "fee": 2})]
        assert all(t["told"] == {"0": [7, 2]} for t in tables_of(harness.store).values())
        letters = harness.dead_letters
        assert sorted(letter.key for letter in letters) == [
            cell_address(cell, 1).key_text for cell in range(CELLS)
        ]
        assert {(letter.stream, letter.attempts) for letter in letters} == {("rules", 2)}


async def test_a_rule_that_fails_for_good_stops_the_worker() -> None:
    class Careless(Judge):
        async def process_broadcast(self, record: Record[Rule], shared: Rules) -> None:
            raise Broken("no such rule")

    world = World(judging(Careless(), rules=[Rule("a", 1)]))
    with pytest.raises(UserCodeError, match=r"'judge' failed(.|\n)*'rules', key \{'cell': "):
        await world.run()


async def test_an_item_that_fails_takes_no_rule_along() -> None:
    """Rules and items of one bundle run again one by one, and each counts once."""

    class Picky(Judge):
        async def process_record(self, record: Record[Item], ctx: Context[None, Rules]) -> None:
            await super().process_record(record, ctx)
            ctx.execute("INSERT INTO marks VALUES (%s)", [record.value.number])
            if record.value.number == 3:
                raise Broken("three")

    rules, orders = [Rule("a", n) for n in range(5)], items(*range(6), key="b")
    world = World(judging(Picky(), rules=rules, orders=orders, on_error="dead_letter"))
    world.store.faults.refuse = lambda what, params: (
        "no five" if what.startswith("INSERT INTO marks") and list(params) == [5] else None
    )
    await world.run()
    assert sorted(row[1] for row in world.rows()) == [0, 1, 2, 4]
    assert len(world.store.dead_letters) == 2
    assert all(t["told"] == {"0": list(range(5))} for t in tables_of(world.store).values())


async def test_rules_beside_a_refused_statement_are_committed_apart() -> None:
    """Both are in one bundle, which is refused, and bisected until the item stands alone."""
    gate = Gate()

    class Refused(Judge):
        async def process_broadcast(self, record: Record[Rule], shared: Rules) -> None:
            await gate.wait()
            await super().process_broadcast(record, shared)

        async def process_record(self, record: Record[Item], ctx: Context[None, Rules]) -> None:
            await gate.wait()
            ctx.execute("INSERT INTO marks VALUES (%s)", [record.value.number])

    rules, orders = [Rule("a", 1), Rule("a", 2)], items(5, key="b")
    world = World(judging(Refused(), rules=rules, orders=orders, on_error="dead_letter"))
    world.store.faults.refuse = lambda what, _: "no" if what.startswith("INSERT") else None
    engine = await world.start()
    await world.until(lambda: gate.reached == CELLS + 1)
    gate.open()
    await world.finish(engine)
    assert [letter.stream for letter in world.store.dead_letters] == ["items"]
    assert [t["told"] for t in tables_of(world.store).values()] == [{"0": [1, 2]}] * CELLS


async def test_a_lost_commit_takes_the_table_back() -> None:
    rules, orders = [Rule("a", n) for n in range(20)], items(*range(20), key="b")
    for number in range(1, 12):
        world = World(judging(rules=rules, orders=orders))
        unknown_once(world, number)
        await world.run()
        assert sorted(row[1] for row in world.rows()) == list(range(20))
        tables = tables_of(world.store)
        assert len(tables) == CELLS
        assert all(t["told"] == {"0": list(range(20))} for t in tables.values())


async def test_a_table_is_seen_whole_or_not_at_all() -> None:
    """While a rule waits half done, items see the table before it, and one call sees one table."""
    gate, second = Gate(), Gate()

    class Slow(Judge):
        async def process_broadcast(self, record: Record[Rule], shared: Rules) -> None:
            shared.now["half"] = record.value.number
            if record.value.number == 2:
                await gate.wait()
            shared.now["rest"] = record.value.number

        async def process_record(self, record: Record[Item], ctx: Context[None, Rules]) -> None:
            before = ctx.shared
            if record.value.number == 50:
                await second.wait()
            assert ctx.shared is before
            await super().process_record(record, ctx)

    rules, orders = script(RULES, [Rule("a", 1)], "rules"), script(ITEMS, [])
    made = Pipeline("judging", settings=FEW_CELLS)
    made.inject(RULES, rules, timestamp=second_of)
    made.inject(ITEMS, orders, timestamp=time_of)
    made.add(Slow(), ITEMS.by(key_of), RULES.broadcast(), name="judge")
    made.sink(JUDGED, Table("out", Judged, numbered=True))
    world = World(made)
    engine = await world.start()
    await world.until(lambda: len(tables_of(world.store)) == CELLS)
    rules.append(inject(RULES, Rule("a", 2)))
    orders.append(inject(ITEMS, Item("slow", 50)))
    read_on(engine)
    await world.until(lambda: gate.reached == CELLS and second.reached == 1)
    orders.append(inject(ITEMS, Item("b", 1)))
    read_on(engine)
    await world.until(lambda: len(world.rows()) == 1)
    gate.open()
    await world.until(lambda: all(t["now"]["rest"] == 2 for t in tables_of(world.store).values()))
    second.open()
    orders.append(inject(ITEMS, Item("b", 2)))
    read_on(engine)
    await world.until(lambda: len(world.rows()) == 3)
    seen = {row[1]: row[2] for row in world.rows()}
    assert seen == {
        1: {"half": 1, "rest": 1},
        2: {"half": 2, "rest": 2},
        50: {"half": 1, "rest": 1},
    }
    await world.close()


class Spoil(Judge):
    """Changes what it may only read."""

    async def process_record(self, record: Record[Item], ctx: Context[None, Rules]) -> None:
        await super().process_record(record, ctx)
        if record.value.number == 1:
            ctx.shared.now["spoilt"] = 1


async def test_a_harness_tells_who_changes_what_is_to_be_read() -> None:
    async with Harness(judging(Spoil(), on_error="dead_letter")) as harness:
        await harness.inject(RULES, Rule("tax", 7))
        await harness.inject(ITEMS, *items(0, 1, 2))
        assert [j.number for j in harness.produced(JUDGED)] == [0, 2]
        assert [j.rules for j in harness.produced(JUDGED)] == [{"tax": 7}] * 2
        (letter,) = harness.dead_letters
        assert "ctx.shared was changed" in letter.error
    with pytest.raises(UserCodeError, match="process_broadcast"):
        await assert_exactly_once(
            judging(Spoil()), [inject(RULES, Rule("tax", 7)), inject(ITEMS, Item("a", 1))], {}
        )


async def test_what_a_record_changes_is_never_stored() -> None:
    rules, orders = script(RULES, [Rule("tax", 7)], "rules"), script(ITEMS, [])
    made = Pipeline("judging", settings=FEW_CELLS)
    made.inject(RULES, rules, timestamp=second_of)
    made.inject(ITEMS, orders, timestamp=time_of)
    made.add(Spoil(), ITEMS.by(key_of), RULES.broadcast(), name="judge")
    world = World(made)
    engine = await world.start()
    await world.until(lambda: len(tables_of(world.store)) == CELLS)
    orders.append(inject(ITEMS, Item("a", 1)))
    read_on(engine)
    await world.until(lambda: world.counter("judge", "processed") == 1 + CELLS)
    rules.append(inject(RULES, Rule("fee", 2)))
    read_on(engine)
    await world.until(lambda: world.counter("judge", "processed") == 1 + 2 * CELLS)
    await world.finish(engine)
    assert all(t["now"] == {"tax": 7, "fee": 2} for t in tables_of(world.store).values())


async def test_tables_stay_in_memory_when_keys_are_evicted() -> None:
    rules = [Rule("a", n) for n in range(3)]
    orders = [Item(f"key {n}", n) for n in range(300)]
    limits = replace(FEW_CELLS, cache_bytes=1)
    world = World(judging(JudgeAsOf(), rules=rules, orders=orders, limits=limits))
    loads: list[str] = []

    async def note(name: str) -> None:
        loads.append(name)

    engine = await world.start()
    await world.until(lambda: len(tables_of(world.store)) == CELLS)
    world.store.faults.before_call = note
    await world.finish(engine)
    assert all(t["told"] == {"0": [0, 1, 2]} for t in tables_of(world.store).values())


# -- a table is stored as state is -----------------------------------------------------------------


async def run_until(pipeline: Pipeline, store: Any, done: Callable[[], object]) -> None:
    """An engine that runs until something holds, and stops in order."""
    engine = Engine(pipeline, store, options=Options(keep_open=True), take_over=True)
    await engine.start()
    async with asyncio.timeout(30):
        while not done():
            if engine.failure is not None:
                raise engine.failure
            await asyncio.sleep(0.001)
        await engine.run()
    await engine.stop()


@pytest.fixture
async def database(schema: Schema) -> AsyncIterator[PostgresStore]:
    """A store on each version of Postgres."""
    store = await PostgresStore(schema.url, schema.name).open()
    yield store
    await store.close()


def in_schema(schema: Schema, rules: Any, orders: Any, **changes: Any) -> Pipeline:
    limits = replace(FEW_CELLS, **changes)
    made = Pipeline(schema.name, settings=limits)
    made.inject(RULES, rules, timestamp=second_of)
    made.inject(ITEMS, orders, timestamp=time_of)
    made.add(Seen(), ITEMS.by(key_of), RULES.broadcast(), name="judge")
    made.sink(JUDGED, Table("out", Judged, numbered=True))
    return made


class Seen(Judge, Computation[Item, Count, Rule, Rules]):
    """Counts beside the table."""

    async def process_record(self, record: Record[Item], ctx: Context[Any, Rules]) -> None:
        ctx.state.count += 1
        await super().process_record(record, ctx)


@pytest.mark.newest
async def test_a_table_outlives_its_worker_folded_or_not(
    schema: Schema, database: PostgresStore
) -> None:
    """Also cut in two at a cell and put together again, and shown to SQL."""
    rules, orders = script(RULES, [Rule("tax", 7)], "rules"), script(ITEMS, [])

    def count(table: str) -> int:
        return int(schema.query("SELECT count(*) FROM {t}", t=table)[0][0])

    pipeline = in_schema(schema, rules, orders, fold_seconds=3600.0)
    await run_until(pipeline, database, lambda: count("state_of_judge_shared") == CELLS)
    assert count("state") == 0  # it is all in the tail
    rules.append(inject(RULES, Rule("fee", 2)))
    orders.append(inject(ITEMS, Item("a", 1)))
    pipeline = in_schema(schema, rules, orders, fold_seconds=0.0, housekeeping_seconds=0.01)
    await run_until(pipeline, database, lambda: count("out") == 1 and count("state") == CELLS + 1)
    orders.append(inject(ITEMS, Item("a", 2)))
    await run_until(pipeline, database, lambda: count("out") == 2)
    assert schema.query('SELECT "rules" FROM {t} WHERE number = 2', t="out") == [
        ({"tax": 7, "fee": 2},)
    ]
    assert schema.query(
        "SELECT cell, now, told FROM {t} ORDER BY cell", t="state_of_judge_shared"
    ) == [(cell, {"tax": 7, "fee": 2}, {"0": [7, 2]}) for cell in range(CELLS)]
    assert schema.query("SELECT key, count FROM {t}", t="state_of_judge") == [("a", 2)]
    assert schema.query(
        "SELECT DISTINCT slot, key FROM {t} WHERE computation = 'judge' AND key ? 'cell' ORDER "
        "BY 1",
        t="states",
    ) == [(cell * SLOTS // CELLS, {"cell": cell}) for cell in range(CELLS)]


async def folded(engine: Engine, interval: Any) -> None:
    while interval.commits.folded < interval.commits.durable_n and await fold(
        engine.store, interval
    ):
        pass


@pytest.mark.newest
async def test_a_computation_with_tables_is_cut_between_cells_alone(
    schema: Schema, database: PostgresStore
) -> None:
    await _cut_between_cells(schema.name, database)


async def test_a_computation_with_tables_is_cut_between_cells_alone_in_memory() -> None:
    await _cut_between_cells("judging", MemoryStore("judging"))


async def _cut_between_cells(name: str, store: Any) -> None:
    limits = replace(FEW_CELLS, intervals=1)
    rules, orders = script(RULES, [Rule("tax", 7)], "rules"), script(ITEMS, [])

    def pipeline() -> Pipeline:
        made = Pipeline(name, settings=limits)
        made.inject(RULES, rules, timestamp=second_of)
        made.inject(ITEMS, orders, timestamp=time_of)
        made.add(Judge(), ITEMS.by(key_of), RULES.broadcast(), name="judge")
        made.sink(JUDGED, Table("out", Judged, numbered=True))
        return made

    async def go(records: int) -> list[Any]:
        """Run until so many records were processed; then let go of everything, folded."""
        engine = Engine(pipeline(), store, options=Options(keep_open=True), take_over=True)
        await engine.start()
        own = [i for i in engine.intervals if i.step.name == "judge"]
        async with asyncio.timeout(30):
            while sum(i.counters.totals.get("processed", 0) for i in own) < records:
                if engine.failure is not None:
                    raise engine.failure
                await asyncio.sleep(0.001)
            await engine.run()
        for interval in own:
            await folded(engine, interval)
        await store.release(engine.worker, {i.id: i.commits.sequencer for i in own})
        await engine.kill()
        await store.stop_worker(engine.worker)
        return own

    (whole,) = await go(CELLS)
    grain = SLOTS // CELLS
    for wrong in (1, grain - 1, grain + 1, SLOTS - 1):
        with pytest.raises(
            PlacementRefused, match=f"every {grain} slots: the interval can be split"
        ):
            await store.split(whole.id, whole.commits.sequencer, wrong)
    await store.split(whole.id, whole.commits.sequencer, 3 * grain)
    rules.append(inject(RULES, Rule("fee", 2)))
    lower, upper = await go(2 * CELLS)
    assert [lower.slots, upper.slots] == [(0, 3 * grain), (3 * grain, SLOTS)]
    await store.merge(
        lower.id, upper.id, {part.id: part.commits.sequencer for part in (lower, upper)}
    )
    orders.append(inject(ITEMS, *[Item("a", 1)]))
    (again,) = await go(2 * CELLS + 1)
    assert again.slots == (0, SLOTS)
    tables = {table.key["cell"]: table.snapshot().told for table in again.tables}
    assert tables == {cell: {"0": [7, 2]} for cell in range(CELLS)}
    await store.close()


def test_an_interval_that_cuts_a_cell_apart_is_never_worked_on() -> None:
    with pytest.raises(InvariantBroken, match="do not begin and end at cells of 64 slots"):
        BroadcastTables(None, (0, 100), 64, guarded=False)  # type: ignore[arg-type]


@given(
    grain=st.sampled_from([1, 4, 64, 4096, 16384]),
    bounds=st.tuples(st.integers(0, SLOTS), st.integers(1, SLOTS)),
    bars=st.dictionaries(st.integers(0, SLOTS - 1), st.floats(0, 100), max_size=12),
)
def test_the_planner_cuts_at_grains_and_cuts_what_it_can(
    grain: int, bounds: tuple[int, int], bars: dict[int, float]
) -> None:
    low = bounds[0] // grain * grain
    high = max(low + grain, min(SLOTS, low + bounds[1]) // grain * grain)
    load = IntervalLoad(1, "judge", "computation", low, high, grain=grain,
                        histogram=tuple(sorted(bars.items())))  # fmt: skip
    at_ = split_at(load)
    if at_ is None:
        inside = sum(bars[slot] for slot in bars if slot < high)
        assert high - low < 2 * grain or inside > 0
    else:
        assert low < at_ < high
        assert at_ % grain == 0


def test_the_planner_halves_the_load_at_a_grain() -> None:
    def cut(histogram: tuple[tuple[int, float], ...]) -> int | None:
        return split_at(IntervalLoad(1, "j", "computation", 0, 400, grain=100, histogram=histogram))

    assert cut(()) == 200
    assert cut(((0, 1.0), (100, 9.0), (200, 5.0), (300, 5.0))) == 200
    assert cut(((0, 8.0), (100, 4.0), (200, 2.0), (300, 2.0))) == 100
    assert cut(((0, 4.0), (350, 12.0))) == 300
    assert cut(((0, 0.1), (110, 20.0), (190, 0.1))) is None  # one cell has it all
    assert cut(((0, 8.0),)) == 200  # one bar over everything


async def test_the_balancer_knows_the_grains(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(judging())
    engine = await world.start()
    planned: list[IntervalLoad] = []

    def plan(workers: Any, intervals: list[IntervalLoad], *rest: Any) -> list[Any]:
        planned.extend(intervals)
        return []

    monkeypatch.setattr(balancer, "plan_beside", plan)
    balancer.Balancer(engine.env)(await world.store.read_placement())
    grains = {interval.computation: interval.grain for interval in planned}
    assert (grains["judge"], grains["rules_relay"]) == (SLOTS // CELLS, 1)
    await world.close()


def test_intervals_begin_and_end_at_cells_from_the_start() -> None:
    for intervals, cells, expected in (
        (3, 4, [(0, 16384), (16384, 32768), (32768, 65536)]),
        (4, 2, [(0, 32768), (32768, 65536)]),
        (2, 16, [(0, 32768), (32768, 65536)]),
    ):
        limits = replace(QUICK, intervals=intervals, broadcast_cells=cells)
        engine = Engine(judging(limits=limits), MemoryStore("judging"))
        deployed = node_deploy(engine.graph, engine.graph.by_name["judge"], intervals)
        assert deployed.slots == expected


class NewRules(msgspec.Struct):
    """The next version of `Rules`."""

    told: dict[str, list[int]] = msgspec.field(default_factory=dict)
    worth: dict[str, int] = msgspec.field(default_factory=dict)


class NewJudge(Computation[Item, None, Rule, NewRules]):
    writes = (JUDGED,)
    version = 2

    async def process_broadcast(self, record: Record[Rule], shared: NewRules) -> None:
        shared.worth[record.value.name] = record.value.number

    async def process_record(self, record: Record[Item], ctx: Context[None, NewRules]) -> None:
        ctx.produce(JUDGED, Judged(record.value.key, record.value.number, ctx.shared.worth))


NewJudge.__name__ = "Judge"


def renamed(old: dict[str, Any]) -> dict[str, Any]:
    return {"told": old["told"], "worth": old["now"]}


async def test_a_table_goes_to_its_next_version_when_it_is_read() -> None:
    class Migrated(NewJudge):
        shared_migrations: ClassVar = {1: renamed}

    Migrated.__name__ = "Judge"
    world = World(judging(rules=[Rule("tax", 7)]))
    await world.run()
    new = judging(Migrated(), rules=[Rule("tax", 7)], orders=items(1))
    engine = await world.start(new)
    await world.finish(engine)
    assert [row[2] for row in world.rows()] == [{"tax": 7}]
    new = judging(Migrated(), rules=[Rule("tax", 7), Rule("fee", 2)], orders=items(1, 2))
    engine = await world.start(new)
    await world.finish(engine)
    assert [table["worth"] for table in tables_of(world.store).values()] == [
        {"tax": 7, "fee": 2}
    ] * CELLS


async def test_a_table_of_another_type_is_refused() -> None:
    class SameVersion(NewJudge):
        version = 1

    class Stateful(NewJudge, Computation[Item, Count, Rule, NewRules]):
        shared_migrations: ClassVar = {1: renamed}

    SameVersion.__name__ = Stateful.__name__ = "Judge"
    world = World(judging(rules=[Rule("tax", 7)]))
    await world.run()
    with pytest.raises(DeployRefused, match=r"shared(.|\n)*NewRules(.|\n)*version = 2"):
        await world.start(judging(SameVersion(), rules=[Rule("tax", 7)]))
    with pytest.raises(DeployRefused, match="from version 1 to 2"):
        await world.start(judging(NewJudge(), rules=[Rule("tax", 7)]))
    # Where there was no state, none needs a migration.
    await world.finish(await world.start(judging(Stateful(), rules=[Rule("tax", 7)])))


class Totals(msgspec.Struct):
    """State beside a shared table, first version."""

    dollars: int = 0


class Cents(msgspec.Struct):
    """Second version."""

    cents: int = 0


class Rating(Computation[Item, Totals, Rule, Rules]):
    """Adds what items are worth by the shared rules."""

    writes = (JUDGED,)

    async def process_broadcast(self, record: Record[Rule], shared: Rules) -> None:
        shared.now[record.value.name] = record.value.number

    async def process_record(self, record: Record[Item], ctx: Context[Totals, Rules]) -> None:
        ctx.state.dollars += record.value.number
        now = {**ctx.shared.now, "sum": ctx.state.dollars}
        ctx.produce(JUDGED, Judged(record.value.key, record.value.number, now))


class RatingInCents(Computation[Item, Cents, Rule, Rules]):
    """The state changes, the table does not."""

    writes = (JUDGED,)
    version = 2
    migrations: ClassVar = {1: lambda old: {"cents": 100 * old["dollars"]}}

    async def process_broadcast(self, record: Record[Rule], shared: Rules) -> None:
        shared.now[record.value.name] = record.value.number

    async def process_record(self, record: Record[Item], ctx: Context[Cents, Rules]) -> None:
        ctx.state.cents += 100 * record.value.number
        now = {**ctx.shared.now, "sum": ctx.state.cents}
        ctx.produce(JUDGED, Judged(record.value.key, record.value.number, now))


class RatingAnew(Computation[Item, Totals, Rule, NewRules]):
    """The table changes, the state does not."""

    writes = (JUDGED,)
    version = 2
    shared_migrations: ClassVar = {1: renamed}

    async def process_broadcast(self, record: Record[Rule], shared: NewRules) -> None:
        shared.worth[record.value.name] = record.value.number

    async def process_record(self, record: Record[Item], ctx: Context[Totals, NewRules]) -> None:
        ctx.state.dollars += record.value.number
        now = {**ctx.shared.worth, "sum": ctx.state.dollars}
        ctx.produce(JUDGED, Judged(record.value.key, record.value.number, now))


RatingInCents.__name__ = RatingAnew.__name__ = "Rating"


@pytest.mark.parametrize(("code", "sums"), [(RatingInCents, 1500), (RatingAnew, 15)])
async def test_only_the_type_that_changed_needs_a_migration(
    code: type[Computation[Any, Any, Any, Any]], sums: int
) -> None:
    """State and shared table have one version; the one whose type stays goes along as it is."""
    rules = [Rule("tax", 7)]
    world = World(judging(Rating(), rules=rules, orders=[Item("a", 5)]))
    await world.run()
    engine = await world.start(judging(code(), rules=rules, orders=[Item("a", 5), Item("a", 10)]))
    await world.finish(engine)
    assert world.rows()[-1][2] == {"tax": 7, "sum": sums}


async def test_only_the_type_that_changed_needs_a_migration_back() -> None:
    back = type(
        "Rating", (Rating,), {"migrations": {2: lambda old: {"dollars": old["cents"] // 100}}}
    )
    lacking = type("Rating", (Rating,), {"shared_migrations": {2: lambda old: old}})
    rules, orders = [Rule("tax", 7)], [Item("a", 5), Item("a", 10), Item("a", 20)]
    world = World(judging(RatingInCents(), rules=rules, orders=orders[:1]))
    await world.run()
    with pytest.raises(
        DeployRefused,
        match=r"state of 'judge': a former version(.|\n)* give migrations = {2: down}",
    ):
        await world.start(judging(lacking(), rules=rules, orders=orders[:2]))
    engine = await world.start(judging(back(), rules=rules, orders=orders[:2]))
    await world.finish(engine)
    assert world.rows()[-1][2] == {"tax": 7, "sum": 15}


@pytest.mark.parametrize(
    ("code", "attribute", "says"),
    [
        (
            RatingInCents,
            "migrations",
            "state of 'judge': a new version without a migration to it",
        ),
        (
            RatingAnew,
            "shared_migrations",
            "shared table of 'judge': a new version without a migration to it",
        ),
    ],
)
async def test_what_lacks_a_migration_is_called_by_its_name(
    code: type[Computation[Any, Any, Any, Any]], attribute: str, says: str
) -> None:
    lacking = type("Rating", (code,), {attribute: {}})
    world = World(judging(Rating(), rules=[Rule("tax", 7)], orders=[Item("a", 5)]))
    await world.run()
    with pytest.raises(DeployRefused, match=says):
        await world.start(judging(lacking(), rules=[Rule("tax", 7)]))
    same = type("Rating", (code,), {"version": 1})
    with pytest.raises(DeployRefused, match=f"Set version = 2 and give {attribute} = "):
        await world.start(judging(same(), rules=[Rule("tax", 7)]))


@pytest.mark.parametrize(
    ("migration", "says"),
    [
        (lambda old: {"told": old["told"], "worth": old["was"]}, "'was'"),
        (lambda old: {"worth": 5}, "Expected `object`, got `int`"),
    ],
)
async def test_a_migration_of_a_table_is_tried_first(migration: Any, says: str) -> None:
    class Wrongly(RatingAnew):
        shared_migrations: ClassVar = {1: migration}

    Wrongly.__name__ = "Rating"
    world = World(judging(Rating(), rules=[Rule("tax", 7)], orders=[Item("a", 5)]))
    await world.run()
    with pytest.raises(DeployRefused, match=rf"shared table of 'judge', key .*cell(.|\n)*{says}"):
        await world.start(judging(Wrongly(), rules=[Rule("tax", 7)]))


@pytest.mark.parametrize("caught", [False, True])
async def test_a_migration_of_a_table_that_fails_when_it_is_read_stops_the_worker(
    monkeypatch: pytest.MonkeyPatch, caught: bool
) -> None:
    class Wrongly(RatingAnew):
        shared_migrations: ClassVar = {1: lambda old: {"told": old["told"], "worth": old["was"]}}

        async def process_record(self, record: Any, ctx: Any) -> None:
            with suppress(*([Exception] if caught else [])):
                await super().process_record(record, ctx)

    Wrongly.__name__ = "Rating"
    monkeypatch.setattr(trial, "TRIED_STATES", 0)
    world = World(judging(Rating(), rules=[Rule("tax", 7)], orders=[Item("a", 5)]))
    await world.run()
    new = judging(Wrongly(), rules=[Rule("tax", 7)], orders=[Item("a", 5), Item("a", 6)])
    engine = await world.start(new)
    with pytest.raises(MigrationFailed, match="shared table of 'judge'"):
        await world.finish(engine)
    assert world.letters() == []


async def test_other_cells_are_refused() -> None:
    world = World(judging())
    await world.run()
    with pytest.raises(
        DeployRefused, match=r"'judge', broadcast_cells: another way to process .*\(4 → 8\)"
    ):
        await world.start(judging(limits=replace(FEW_CELLS, broadcast_cells=8)))


# -- several workers ---------------------------------------------------------------------------


def shared_judging(rules: int, orders: int, seed: int) -> tuple[Pipeline, dict[str, list[int]]]:
    """Two sources of rules and one of items; and what each table is to hold of each source."""
    random = Random(seed)
    made = Pipeline("judging", settings=replace(SHARED, broadcast_cells=8))
    expected: dict[str, list[int]] = {}
    for source in range(2):
        told = [Rule(f"rule {n % 5}", n, n // 10, source) for n in range(rules)]
        random.shuffle(told)
        expected[str(source)] = [rule.number for rule in told]
        made.inject(
            RULES, script(RULES, told, f"rules {source}"), timestamp=second_of, name=f"s{source}"
        )
    values = [Item(f"key {n * 7 % 40}", n, n // 10) for n in range(orders)]
    made.inject(ITEMS, script(ITEMS, values), timestamp=time_of)
    made.add(Judge(), ITEMS.by(key_of), RULES.broadcast(), name="judge")
    made.sink(JUDGED, Table("out", Judged, numbered=True))
    return made, expected


def check_tables(cluster: Cluster, expected: dict[str, list[int]], orders: int) -> None:
    """Each cell has every rule once, in the order of its source; each item was judged once."""
    tables = tables_of(cluster.store)
    assert sorted(tables) == list(range(8))
    for table in tables.values():
        assert table["told"] == expected
    assert sorted(row[1] for row in cluster.rows()) == list(range(orders))


@pytest.mark.parametrize("workers", [1, 2, 3, 4])
async def test_any_number_of_workers_have_the_same_table(workers: int) -> None:
    pipeline, expected = shared_judging(60, 200, 1)
    cluster = Cluster(pipeline)
    for _ in range(workers):
        await cluster.join()
    await cluster.go(cluster.finished)
    check_tables(cluster, expected, 200)
    for engine in list(cluster.alive):
        await cluster.leave(engine)


@settings(
    max_examples=examples(12, 4),
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)
@given(
    acts=st.lists(
        st.tuples(st.integers(1, 20), st.sampled_from(ACTS), st.integers(0, 3)), max_size=6
    ),
    bad=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_tables_are_the_fold_of_all_rules_however_workers_come_and_go(
    acts: list[Act], bad: bool, seed: int
) -> None:
    async def happen(cluster: Cluster, what: str, who: int) -> None:
        engine = cluster.alive[who % len(cluster.alive)]
        other = cluster.alive[(who + 1) % len(cluster.alive)]
        if what == "join" and len(cluster.alive) < 4:
            await cluster.join()
        elif what == "crash" and len(cluster.alive) > 1:
            await cluster.crash(engine)
        elif what == "leave" and len(cluster.alive) > 1:
            await cluster.leave(engine)
        elif what == "cut" and engine is not other:
            names = [f"w{cluster.engines.index(e)}" for e in (engine, other)]
            cluster.ether.cut(*names)

    async def go() -> None:
        pipeline, expected = shared_judging(40, 80, seed)
        weather = Weather(Random(seed), delay=0.05, drop=0.02, duplicate=0.05, overtake=0.05)
        cluster = Cluster(pipeline, weather if bad else None)
        await cluster.join()
        await cluster.join()
        for after, what, who in acts:
            await cluster.commit(after)
            await happen(cluster, what, who)
        await cluster.go(cluster.finished)
        check_tables(cluster, expected, 80)
        for engine in list(cluster.alive):
            await cluster.leave(engine)

    asyncio.run(go())


@settings(
    max_examples=examples(8, 3),
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)
@given(
    acts=st.lists(
        st.tuples(
            st.integers(1, 20), st.sampled_from(["join", "crash", "leave"]), st.integers(0, 3)
        ),
        max_size=6,
    ),
    seed=st.integers(0, 1000),
)
@example(acts=[(1, "join", 0)], seed=0)  # an interval is given up while its records are looked up
@example(acts=[(1, "crash", 0), (5, "join", 0)], seed=0)  # a log is retired before it is sent again
def test_spread_records_are_processed_once_however_workers_come_and_go(
    acts: list[Act], seed: int
) -> None:
    async def go() -> None:
        values = [Item(f"key {n % 20}", n, n // 10) for n in range(200)]
        weather = Weather(Random(seed), delay=0.05, drop=0.02, duplicate=0.05, overtake=0.05)
        cluster = Cluster(doubling(values, SHARED), weather)
        await cluster.join()
        await cluster.join()
        for after, what, who in acts:
            await cluster.commit(after)
            engine = cluster.alive[who % len(cluster.alive)]
            if what == "join":
                await cluster.join()
            elif len(cluster.alive) > 1:
                await (cluster.crash(engine) if what == "crash" else cluster.leave(engine))
        await cluster.go(cluster.finished)
        assert sorted(row[1] for row in cluster.rows()) == [n * 2 for n in range(200)]
        for engine in list(cluster.alive):
            await cluster.leave(engine)

    asyncio.run(go())


# -- the graph ---------------------------------------------------------------------------------


async def test_rows_that_are_broadcast_become_productions_first() -> None:
    """And whoever else reads the stream gets each of them once."""
    made = judging()
    made.add(FlatMap(lambda rule: [Item(rule.name, rule.number)], to=DOUBLED), RULES.by(name_of))
    made.add(Keep(), DOUBLED.by(key_of))
    graph = made.graph()
    assert [n.name for n in graph.writers("rules")] == ["rules_injector"]
    (relay,) = [node for node, _ in graph.readers("rules") if node.kind == "relay"]
    assert [n.name for n, _ in graph.readers(relay.writes[0].name)] == ["judge"]
    rules = [Rule("ab"[n % 2], n) for n in range(5)]
    await assert_exactly_once(
        made,
        [inject(RULES, rule) for rule in rules],
        {DOUBLED: [Item(r.name, r.number) for r in rules], RULES: rules},
        max_crashes=5,
    )


def name_of(rule: Rule) -> str:
    return rule.name


async def test_a_broadcast_record_tells_its_stream() -> None:
    """Rows of a source take another way than what a computation has made; nobody need know."""
    names: list[str] = []

    class Two(Judge):
        async def process_broadcast(self, record: Record[Any], shared: Rules) -> None:
            assert record.timestamp == at(3)
            names.append(record.stream)

    made = Pipeline("judging", settings=replace(QUICK, broadcast_cells=1))
    made.inject(RULES, script(RULES, [], "rules"), timestamp=second_of)
    made.inject(ITEMS, script(ITEMS, []), timestamp=time_of)
    made.add(Double(), ITEMS.spread())
    two: Computation[Item, None, Any, Rules] = Two()
    made.add(two, ITEMS.by(key_of), RULES.broadcast(), DOUBLED.broadcast())
    made.add(Judge(), ITEMS.by(key_of), RULES.broadcast(), name="another")
    assert sum(node.kind == "relay" for node in made.graph().nodes) == 1
    async with Harness(made) as harness:
        await harness.inject(RULES, Rule("tax", 7, 3))
        await harness.inject(ITEMS, Item("a", 1, 3))
        assert names == ["rules", "doubled"]
        assert harness.shared("another", "a")["now"] == {"tax": 7}


async def test_a_deployed_graph_may_grow_by_a_broadcast() -> None:
    """Who is there already is not touched: the new reader begins with what comes from then on."""

    def pipeline(rules: list[Rule], orders: list[Item], *, grown: bool) -> Pipeline:
        made = Pipeline("growing", settings=FEW_CELLS)
        made.inject(RULES, script(RULES, rules, "rules"), timestamp=second_of)
        made.inject(ITEMS, script(ITEMS, orders), timestamp=time_of)
        made.add(
            FlatMap(lambda rule: [Item(rule.name, rule.number)], to=DOUBLED), RULES.by(name_of)
        )
        made.add(Keep(), DOUBLED.by(key_of), ITEMS.by(key_of))
        if grown:
            made.add(Judge(), ITEMS.by(key_of), RULES.broadcast(), name="judge")
        return made

    world = World(pipeline([Rule("old", 1)], [], grown=False))
    await world.run()
    world.pipeline = pipeline([Rule("old", 1), Rule("new", 2)], items(1), grown=True)
    await world.run()
    assert [table["now"] for table in tables_of(world.store).values()] == [{"new": 2}] * CELLS


async def test_rows_with_ids_are_broadcast_once_each() -> None:
    made = Pipeline("judging", settings=FEW_CELLS)
    made.inject(RULES, script(RULES, [], "rules"), timestamp=second_of, id=name_of)
    made.inject(ITEMS, script(ITEMS, []), timestamp=time_of)
    made.add(Judge(), ITEMS.by(key_of), RULES.broadcast(), name="judge")
    assert [n.name for n in made.graph().writers("rules")] == ["rules_by_id"]
    async with Harness(made) as harness:
        await harness.inject(RULES, Rule("a", 1), Rule("a", 2), Rule("b", 3))
        assert sorted(harness.shared("judge", "x")["told"]["0"]) == [1, 3]


def test_a_graph_shows_how_streams_are_read() -> None:
    made = judging()
    made.add(Double(), ITEMS.spread())
    made.sink(DOUBLED, Table("doubled", Item))
    graph = made.graph()
    assert "reads items by key_of" in drawing.text(graph)
    assert "reads items spread" in drawing.text(graph)
    assert "reads rules__relayed broadcast to 4 cells" in drawing.text(graph)
    mermaid = drawing.mermaid(graph)
    assert "items_injector -->|items| judge" in mermaid
    assert "items_injector -->|items, spread| double" in mermaid
    assert "rules_relay -->|rules, broadcast| judge" in mermaid
    judge, double = graph.by_name["judge"].describe(), graph.by_name["double"].describe()
    assert judge["inputs"] == [["items", "key_of"], ["rules__relayed", "broadcast()"]]
    assert judge["broadcast_cells"] == 4
    assert double["inputs"] == [["items", "spread()"]]
    assert "broadcast_cells" not in double


class Mapped(msgspec.Struct):
    """State that is no table."""

    names: MapState[str, int] = msgspec.field(default_factory=MapState)


class Listed(msgspec.Struct):
    names: ListState[str] = msgspec.field(default_factory=ListState)


class Frozen(msgspec.Struct, frozen=True):
    name: str = ""


class NoDefault(msgspec.Struct):
    name: str


def of_table(table: Any) -> Computation[Any, Any, Any, Any]:
    class Tabled(Judge):
        shared_type = table

    return Tabled()


@pytest.mark.parametrize(
    ("computation", "inputs", "message"),
    [
        (Double(), [ITEMS.by(key_of), RULES.broadcast()], "defines no process_broadcast"),
        (Judge(), [ITEMS.by(key_of)], "reads nothing by broadcast"),
        (Judge(), [ITEMS.by(key_of), RULES.by(name_of)], "reads nothing by broadcast"),
        (Judge(), [RULES.broadcast()], "no record uses"),
        (Judge(), [ITEMS.by(key_of), ITEMS.broadcast()], "reads one stream twice"),
        (of_table(None), [ITEMS.by(key_of), RULES.broadcast()], "its table has no type"),
        (of_table(Mapped), [ITEMS.by(key_of), RULES.broadcast()], "MapState or ListState names"),
        (of_table(Listed), [ITEMS.by(key_of), RULES.broadcast()], "MapState or ListState names"),
        (of_table(Frozen), [ITEMS.by(key_of), RULES.broadcast()], "cannot be changed in place"),
        (of_table(int), [ITEMS.by(key_of), RULES.broadcast()], "cannot be changed in place"),
        (of_table(NoDefault), [ITEMS.by(key_of), RULES.broadcast()], "no empty value"),
    ],
)
def test_a_broadcast_that_does_not_fit_is_told_at_once(
    computation: Any, inputs: list[Any], message: str
) -> None:
    with pytest.raises(GraphError, match=message):
        Pipeline("wrong").add(computation, *inputs)


@pytest.mark.parametrize("cells", [3, 24])
def test_cells_are_a_power_of_two(cells: int) -> None:
    with pytest.raises(GraphError, match="broadcast_cells must be a power of two"):
        judging(limits=replace(QUICK, broadcast_cells=cells))


def test_a_spread_slot_is_the_hash_of_its_key() -> None:
    assert all(slot_of(a.key_text) == a.slot for a in spread_addresses())
