"""Tree acknowledgement: what is passed on is kept nowhere, and counted once all the same."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from random import Random
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millwheel import Computation, Context, Pipeline, Record, Settings, Stream, Table, Timer
from millwheel.core.codec import encode_key
from millwheel.core.model import SLOTS, Delivery
from millwheel.errors import CommitUnknown, GraphError, StoreUnavailable
from millwheel.graph import drawing
from millwheel.runtime.engine import Engine
from millwheel.runtime.interval.interval import Interval
from millwheel.runtime.modes.tree import Tree
from millwheel.runtime.modes.tree_roots import Entry, Roots, edge_of, owner_bits, owner_of
from millwheel.runtime.network.frames import Loose, RootReport, decode
from millwheel.runtime.process.tasks import end
from millwheel.store.port.commit import Commit
from millwheel.testing import inject
from millwheel.testing.fake_network import FAIR, Fate, Weather
from tests.support.clusters import SHARED, Cluster, check, many, number_of
from tests.support.drawing import examples
from tests.support.modes import entry_of
from tests.support.pipelines import QUICK, Tally, script
from tests.support.values import ITEMS, TALLY, Count, Counted, Item, at, items, key_of, time_of
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
from tests.support.worlds import Gate, World, read_on

TREE: dict[str, Any] = {"productions": "weak", "acknowledgement": "tree"}


def stretch(
    values: Sequence[Any],
    settings: Settings = FEW,
    *,
    depth: int = 2,
    replay_after: float = 5.0,
    **options: Any,
) -> Pipeline:
    """As `chain`, acknowledged by trees."""
    return chain(
        values,
        settings,
        depth=depth,
        acknowledgement="tree",
        replay_after=timedelta(seconds=replay_after),
        **options,
    )


def pending(world: World) -> int:
    """Roots that the newest engine tracks."""
    return len(world.engines[-1].modes.trees.roots)


def replays(world: World) -> int:
    """Replays of the newest engine, stored or not."""
    engine = world.engines[-1]
    return sum(
        i.counters.totals.get("replays", 0)
        + (i.mode.entry.replayed if isinstance(i.mode, Tree) else 0)
        for i in engine.intervals
    )


# -- the numbers by themselves ---------------------------------------------------------------


def delivery(number: int) -> Delivery[None]:
    return Delivery("", None, 0, "s", b'""', 0, 1, 0, 0, b"", 1, number, 0, b"%16d" % number)


def entry(patience: float = 1.0) -> Entry:
    return Entry(None, patience, [], lambda causes: None)  # type: ignore[arg-type]


@given(data=st.data())
@examples(30)
def test_a_root_is_done_when_all_that_came_of_it_is_and_not_before(data: st.DataObject) -> None:
    """Any tree, its reports in any order, and some of them twice: then it is never done too
    early."""
    chance = data.draw(st.randoms(use_true_random=False))
    twice = data.draw(st.booleans())
    roots, tracked = Roots("one"), entry()
    token = roots.next_token()
    count = 0
    reports: list[int] = []
    lacking: set[int] = set()

    def outputs(depth: int, most: int) -> int:
        nonlocal count
        xor = 0
        for _ in range(chance.randint(0, most)):
            count += 1
            xor ^= run(edge_of(b"%16d" % count, token, depth), depth)
        return xor

    def run(edge: int, depth: int) -> int:
        """A delivery: it gives others, or is durable. Whoever has its edge tells it."""
        reports.append(edge ^ (outputs(depth + 1, 3) if depth < 4 else 0))
        return edge

    first = run(edge_of(b"%16d" % 0, token, 0), 0) ^ outputs(0, 3)
    roots.begin(token, tracked, delivery(7), first, 0.0)
    chance.shuffle(reports)
    lacking = set(range(len(reports)))
    sent = [*lacking, *(chance.choices(range(len(reports)), k=3) if twice else ())]
    if twice:
        chance.shuffle(sent)
    for number in sent:
        lacking.discard(number)
        assert roots.add_report(token, 0, 0.0) is None, "a sign of life changes nothing"
        done = roots.add_report(token, reports[number], 0.0)
        if done is not None:
            assert not lacking
            assert done.cause.seq == 7
            break
    else:
        assert twice
    assert len(roots) == tracked.pending == (0 if done is not None else 1)


def test_tokens_say_whose_they_are_and_never_come_again() -> None:
    one, again = Roots("one"), Roots("another")
    tokens = [one.next_token() for _ in range(100)]
    assert {owner_of(token) for token in tokens} == {owner_bits("one")}
    assert len({*tokens, *(again.next_token() for _ in range(100))}) == 200
    assert all(0 < token < 1 << 63 for token in tokens)


def test_edges_differ_by_reader_cell_and_attempt() -> None:
    same = edge_of(b"a" * 16, 5, 1)
    assert same == edge_of(b"a" * 16, 5, 1)
    assert (
        len({same, edge_of(b"b" * 16, 5, 1), edge_of(b"a" * 16, 6, 1), edge_of(b"a" * 16, 5, 2)})
        == 4
    )
    assert 0 < same < 1 << 63


def test_replays_are_few_at_a_time_and_ever_more_seldom() -> None:
    roots, tracked = Roots("one"), entry(patience=1.0)
    for number in range(320):
        roots.begin(roots.next_token(), tracked, delivery(number), 1, 0.0)
    assert roots.overdue(1.0) == []
    found = roots.overdue(1.1)
    assert [root.cause.seq for root in found] == list(range(20)), "those silent for longest"
    assert tracked.pending == len(roots) == 300
    for number in range(20, 300, 20):
        roots.overdue(1.1 + number)
    while roots.overdue(1000.0):
        pass
    assert tracked.take_replayed() == 320
    now, waited = 0.0, []
    for _ in range(7):
        roots.begin(roots.next_token(), tracked, delivery(0), 1, now)
        began = now
        while not roots.overdue(now):
            now += 0.25
        waited.append(int(now - began))
    assert waited == [2, 4, 8, 16, 16, 16, 16], "it was replayed once before"


def test_who_is_patient_does_not_hide_who_is_not() -> None:
    roots, slow, quick = Roots("one"), entry(100.0), entry(1.0)
    roots.begin(roots.next_token(), slow, delivery(0), 1, 0.0)
    roots.begin(roots.next_token(), quick, delivery(1), 1, 0.5)
    assert [root.cause.seq for root in roots.overdue(2.0)] == [1]
    assert [root.cause.seq for root in roots.overdue(101.0)] == [0]


@pytest.mark.parametrize("end", ["its tree is done", "a commit notes it"])
def test_how_often_a_record_was_replayed_is_forgotten_when_it_is_through(end: str) -> None:
    """If its sender starts over and sends it once more, it is met with the patience of the first
    time."""
    roots, tracked = Roots("one"), entry(patience=1.0)
    for began in (0.0, 10.0):
        roots.begin(roots.next_token(), tracked, delivery(0), 1, began)
        (lost,) = roots.overdue(began + 1.5)
        if end == "a commit notes it":
            tracked.noted([lost.cause.id])
            continue
        token = roots.next_token()
        roots.begin(token, tracked, lost.cause, 1, began + 1.5)
        assert roots.overdue(began + 3.0) == [], "twice as patient"
        assert roots.add_report(token, 1, began + 3.0) is not None
    assert not tracked.tries, "nothing is kept of it"


def test_a_root_takes_the_same_room_whatever_its_tree() -> None:
    roots, tracked = Roots("one"), entry()
    token = roots.next_token()
    cause = delivery(1)
    roots.begin(token, tracked, cause, 1, 0.0)
    for number in range(1000):
        roots.add_report(token, edge_of(b"%16d" % number, token, 1), 0.0)
    (root,) = roots._roots.values()
    assert set(root.__slots__) == {"cause", "entry", "reported_at", "tries", "xor"}
    assert root.xor < 1 << 63
    assert not hasattr(root, "__dict__")


# -- one worker ------------------------------------------------------------------------------


@pytest.mark.parametrize("depth", [1, 3])
async def test_nothing_is_stored_of_a_stretch_and_nothing_is_numbered(depth: int) -> None:
    world = World(stretch(VALUES, depth=depth))
    engine = await world.run(tick=0.001)
    assert_once(world, VALUES)
    inside = {s.id for s in engine.exchange.steps.values() if s.node.is_tree}
    assert len(inside) == depth
    assert not any(commit.stragglers for commit in world.commits)
    seen = {computation for c in world.commits for ids in c.seen.values() for computation, _ in ids}
    assert not seen & inside
    assert all(i.log.next_seq == 0 for i in engine.intervals if i.step.id in inside)
    assert pending(world) == replays(world) == 0
    assert world.counter("halve", "processed") == len(VALUES)
    for hop in range(1, depth):
        assert world.counter(f"pass_{hop}", "processed") == 22


async def test_an_input_is_acknowledged_when_all_that_came_of_it_is_durable() -> None:
    """Not before: or it would be lost if the receiver crashed."""
    world = World(stretch(VALUES[:1], depth=3))
    gate = Gate()
    world.on_try = lambda commit: gate.wait() if commit.rows else None
    engine = await world.start()
    await world.until(lambda: gate.reached)
    await world.turns(500, tick=0.1)
    assert world.interval("items_injector").log.first == 0
    assert pending(world) == 1
    gate.open()
    await world.until(engine.done.is_set, tick=0.01)
    assert world.interval("items_injector").log.first == 1
    assert pending(world) == replays(world) == 0


async def test_the_low_watermark_waits_for_what_is_in_a_stretch() -> None:
    world = World(slow_stretch(VALUES, gate := Gate(), depth=3))
    engine = await world.start(close_at_end=True)
    await world.until(lambda: gate.reached)
    await world.turns(500, tick=0.05)
    waiting = world.interval("items_injector").log.first
    assert all(
        interval.watermarks.input <= at_micros(VALUES[waiting])
        for interval in engine.intervals
        if interval.step.name == "slow"
    )
    gate.open()
    await world.finish(engine)
    assert_once(world, VALUES)


def at_micros(item: Item) -> int:
    return int(at(item.second).timestamp() * 1e6)


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("when", ["before", "after", "unknown"])
async def test_a_crash_at_any_commit_loses_and_doubles_nothing(depth: int, when: str) -> None:
    commits = await commits_of(stretch(VALUES, depth=depth))
    for point in range(depth % 2, commits, 5):
        world = World(stretch(VALUES, depth=depth))
        reached = asyncio.Event()

        def stop_there(
            commit: Commit, world: World = world, point: int = point, reached: Any = reached
        ) -> Any:
            if (world.tried if when == "before" else len(world.commits)) != point + 1:
                return None
            reached.set()
            if when == "unknown":
                raise CommitUnknown("the connection was lost")
            return asyncio.Event().wait()

        if when == "before":
            world.on_try = stop_there
        else:
            world.on_durable = stop_there
        first = await world.start()
        await world.until(
            lambda e=first, r=reached: r.is_set() or e.done.is_set(),  # type: ignore[misc]
            tick=0.05,
        )
        if when == "unknown":
            await world.finish(first)
        else:
            world.on_try = world.on_durable = None
            await first.kill()
            await world.run()
        assert_once(world, VALUES)
        assert world.store.pending_productions() == []
        assert pending(world) == 0


async def at_every(
    made: Any, step: int, check_all: Any, *, tick: float = 0.005, **options: Any
) -> None:
    """Crash after every so many turns of the loop, and see what came of it."""
    world = World(made())
    engine = await world.start(**options)
    turns = 0
    while not engine.done.is_set():
        await world.turns(1, tick=tick)
        turns += 1
        assert turns < 3000, "stuck"
    await engine.kill()
    check_all(world)
    for point in range(0, turns, step):
        world = World(made())
        first = await world.start(**options)
        await world.turns(point, tick=tick)
        await first.kill()
        await world.run(tick=tick, **options)
        check_all(world)
        assert world.store.pending_productions() == []
        assert pending(world) == 0


@pytest.mark.parametrize("depth", [1, 2, 3])
async def test_a_crash_at_any_moment_loses_and_doubles_nothing(depth: int) -> None:
    """After every so many turns of the loop: between receiving, running, sending, reports."""
    await at_every(
        lambda: stretch(VALUES, depth=depth), 7, lambda world: assert_once(world, VALUES)
    )


@given(seed=st.integers(0, 1 << 30))
@examples(6)
def test_any_faults(seed: int) -> None:
    asyncio.run(go_through_faults(seed))


@pytest.mark.soak
@given(seed=st.integers(0, 1 << 30))
@examples(1000)
def test_any_faults_for_long(seed: int) -> None:
    asyncio.run(go_through_faults(seed))


async def go_through_faults(seed: int) -> None:
    chance = Random(seed)
    values = [Item("", n, n / 10) for n in range(40)]
    limits = replace(FEW, intervals=chance.choice([1, 2]))
    pipeline = stretch(
        values,
        limits,
        depth=chance.choice([1, 2, 3]),
        replay_after=chance.choice([0.05, 0.5, 5.0]),
    )
    world = World(pipeline)
    share = chance.choice([0.0, 0.05, 0.2])
    lost = chance.choice([0.0, 0.1])

    def perhaps(commit: Commit) -> None:
        if chance.random() < share:
            raise chance.choice([StoreUnavailable, CommitUnknown])("by chance")

    for _ in range(chance.randrange(4)):
        world.on_try = world.on_durable = perhaps
        engine = await world.start(inject_copies=chance.choice([1, 2]))
        lose(engine, lambda: chance.random() < lost)
        await world.turns(chance.randrange(1, 400), tick=0.01)
        await engine.kill()
    world.on_try = world.on_durable = None
    await world.run(tick=0.02)
    assert_once(world, values)
    assert world.store.pending_productions() == []


def lose(engine: Engine, is_lost: Any) -> None:
    """Let some deliveries of stretches get lost between two intervals of a worker."""
    send = engine.exchange.send
    engine.exchange.send = lambda productions: send(  # type: ignore[method-assign]
        [p for p in productions if p.log >= 0 or not is_lost()]
    )


# -- loss and slowness -----------------------------------------------------------------------


async def test_what_is_lost_is_made_again() -> None:
    chance = Random(3)
    values = [Item("", n, n / 10) for n in range(60)]
    world = World(stretch(values, replace(FEW, max_unacked_records=30), depth=3))
    engine = await world.start()
    lose(engine, lambda: chance.random() < 0.1)
    await world.finish(engine)
    assert_once(world, values)
    again = replays(world)
    assert 15 < again < 80, "a third of the trees have lost something; some of them twice"
    assert sum(world.counter(n, "replays") for n in ("halve", "pass_1", "pass_2")) == again
    assert world.clock.monotonic() > 5.0


async def test_what_is_made_again_is_made_of_the_value_that_came() -> None:
    """Whatever the first run has done to it."""

    class Box(msgspec.Struct):
        number: int

    class Shift(Computation[Box, None]):
        writes = (HALVES,)

        async def process_record(self, record: Record[Box], ctx: Context[None]) -> None:
            record.value.number += 100
            ctx.produce(HALVES, Item("k", record.value.number, 0))

    boxes = Stream("boxes", Box)
    made = Pipeline("shifted", settings=FEW)
    made.inject(
        boxes, script(boxes, [Box(item.number) for item in VALUES]), timestamp=lambda _: at(0)
    )
    made.add(Shift(), boxes.by(lambda box: box.number), name="shift", **TREE)
    made.add(Tally(), HALVES.by(key_of))
    made.sink(TALLY, Table("out", Counted, numbered=True))
    world = World(made)
    engine = await world.start()
    first = iter(range(5))
    lose(engine, lambda: next(first, None) is not None)
    await world.finish(engine)
    assert replays(world) == 5
    assert sorted(world.numbers()) == [100 + item.number for item in VALUES]


async def test_a_report_that_is_lost_costs_a_replay_and_nothing_else() -> None:
    world = World(stretch(VALUES, depth=2))
    engine = await world.start()
    report, told = engine.modes.trees.report, 0

    def some(token: int, xor: int) -> None:
        nonlocal told
        told += bool(xor)
        if not xor or told % 5:
            report(token, xor)

    engine.modes.trees.report = some  # type: ignore[method-assign]
    await world.finish(engine)
    assert_once(world, VALUES)
    assert replays(world) >= 5
    assert world.counter("tally", "duplicates_dropped") > 0


def slow_stretch(
    values: Sequence[Any], gate: Gate, settings: Settings = FEW, depth: int = 1
) -> Pipeline:
    """A leaf that waits at one of three keys until it is told."""
    made = Pipeline("slowly", settings=settings)
    made.inject(ITEMS, script(ITEMS, values), timestamp=time_of)
    made.add(Halve(), ITEMS.by(number_of_item), **TREE)
    last = HALVES
    for number in range(1, depth):
        to = Stream(f"stage_{number}", Item)
        made.add(Relay(to), last.by(number_of_item), name=f"pass_{number}", **TREE)
        last = to
    made.add(Slow(gate, "key 1"), last.by(key_of))
    made.sink(TALLY, Table("out", Counted, numbered=True))
    return made


@pytest.mark.parametrize("settings", [FEW, replace(QUICK, intervals=2)], ids=["full", "wide"])
async def test_who_is_slow_is_not_taken_for_lost(settings: Settings) -> None:
    """A leaf that stands for a minute, with full queues before it: no replay at all."""
    values = [Item("", n, n / 10) for n in range(60)]
    world = World(slow_stretch(values, gate := Gate(), settings, depth=2))
    engine = await world.start()
    await world.until(lambda: gate.reached)
    end = world.clock.monotonic() + 60
    await world.until(lambda: world.clock.monotonic() > end, tick=0.05)
    assert pending(world) > 2
    assert replays(world) == 0
    gate.open()
    await world.finish(engine)
    assert_once(world, values)
    assert replays(world) == 0
    assert world.counter("slow", "duplicates_dropped") == 0


async def test_a_commit_that_hangs_is_not_taken_for_a_loss() -> None:
    world = World(stretch(VALUES, depth=2))
    gate = Gate()
    world.on_try = lambda commit: gate.wait() if commit.rows else None
    engine = await world.start()
    await world.until(lambda: gate.reached)
    end = world.clock.monotonic() + 60
    await world.until(lambda: world.clock.monotonic() > end, tick=0.05)
    assert pending(world)
    assert replays(world) == 0
    gate.open()
    await world.finish(engine)
    assert_once(world, VALUES)


async def test_a_store_that_is_away_is_not_taken_for_a_loss() -> None:
    """Whoever waits for a look-up has what he looks up in his hands."""
    world = World(stretch(VALUES, depth=2))
    engine = await world.start()
    gate = Gate()
    look_up = world.store.look_up_seen

    async def hang(*arguments: Any) -> set[bytes]:
        await gate.wait()
        return await look_up(*arguments)

    world.store.look_up_seen = hang  # type: ignore[assignment,method-assign]
    tally = world.interval("tally")
    for bucket in range(1, 50):
        tally.dedup.seen_in(bucket).ready = False  # every record may have been seen
    await world.until(lambda: gate.reached, tick=0.001)
    end = world.clock.monotonic() + 30
    await world.until(lambda: world.clock.monotonic() > end, tick=0.05)
    assert replays(world) == 0
    gate.open()
    await world.finish(engine)
    assert_once(world, VALUES)


class Waiting(Computation[Item, None]):
    """Waits at every key until it is told."""

    writes = (TALLY,)

    def __init__(self, gate: Gate) -> None:
        self._gate = gate

    async def process_record(self, record: Record[Item], ctx: Context[None]) -> None:
        await self._gate.wait()
        ctx.produce(TALLY, Counted(record.value.key, record.value.number, 0))


class Unfold(Computation[Item, None]):
    """Twenty for one."""

    writes = (HALVES,)

    async def process_record(self, record: Record[Item], ctx: Context[None]) -> None:
        for part in range(20):
            number = 20 * record.value.number + part
            ctx.produce(HALVES, Item(f"key {number % 3}", number, record.value.second))


async def test_what_is_queued_in_a_stretch_is_bounded() -> None:
    """However many records are made of one (I8)."""
    values = [Item("", n, n / 10) for n in range(40)]
    made = Pipeline("wide", settings=FEW)
    made.inject(ITEMS, script(ITEMS, values), timestamp=time_of)
    made.add(Unfold(), ITEMS.by(number_of_item), **TREE)
    made.add(Relay(AGAIN), HALVES.by(number_of_item), name="on", **TREE)
    made.add(Slow(gate := Gate(), "key 1"), AGAIN.by(key_of))
    made.sink(TALLY, Table("out", Counted, numbered=True))
    world = World(made)
    engine = await world.start()
    longest = 0
    for turn in range(4000):
        found = [len(i.intake) for i in engine.intervals if i.step.name in ("on", "slow")]
        longest = max(longest, *found)
        await world.turns(1, tick=0.01)
        if turn == 2000:
            gate.open()
    assert longest <= FEW.max_unacked_records + 20 * FEW.chunk_records
    await world.finish(engine)
    assert sorted(world.numbers()) == list(range(800))
    assert replays(world) == 0


class Leaf(Computation[Item, Count]):
    """Counts, and sends nothing on."""

    async def process_record(self, record: Record[Item], ctx: Context[Count]) -> None:
        ctx.state.count += 1


def key_in(slots: range) -> str:
    return next(key for n in range(99) if encode_key(key := f"key {n}")[1] in slots)


class Crowded:
    """An entry in one lane and its reader in another, whose queue is full of what others sent."""

    def __init__(self) -> None:
        low, high = key_in(range(SLOTS // 2)), key_in(range(SLOTS // 2, SLOTS))
        self.source = script(ITEMS, [], "items")
        others = [Stream(f"other_{number}", Item) for number in range(2)]
        full = [script(other, items(*range(8), key=high), other.name) for other in others]
        made = Pipeline("room", settings=replace(SHARED, chunk_records=2, max_unacked_records=8))
        for stream, rows in ((others[0], full[0]), (ITEMS, self.source), (others[1], full[1])):
            made.inject(stream, rows, timestamp=time_of)
        made.add(Relay(HALVES), ITEMS.by(key_of), name="entry", **TREE)
        made.add(Leaf(), HALVES.by(lambda item: high), *(o.by(key_of) for o in others), name="leaf")
        self.cluster = Cluster(made)
        self.cluster.endless = True
        self.gate = Gate()
        """Until it is open the reader waits for the store."""
        self._record = inject(ITEMS, Item(low, 8))

    async def start(self, *, alone: bool) -> Engine:
        cluster = self.cluster
        cluster.store.faults.before_call = self._load_later
        engine = await (cluster.start() if alone else cluster.join())
        await cluster.go(lambda: self.gate.reached)
        await cluster.turns(100, tick=0.001)
        self.source.append(self._record)
        read_on(engine)
        self.entry = next(i for i in engine.intervals if i.step.name == "entry")
        self.leaf = [i for i in engine.intervals if i.step.name == "leaf"][1]
        await cluster.go(lambda: self.entry.intake)
        await cluster.turns(100, tick=0.001)
        assert not self.entry.may_send(), "the queue is full"
        return engine

    async def _load_later(self, name: str) -> None:
        if name == "load_keys":
            await self.gate.wait()


async def test_who_waits_for_room_in_a_queue_goes_on_when_another_lane_makes_some() -> None:
    """Of what others have sent nothing is told to who waits."""
    crowded = Crowded()
    engine = await crowded.start(alone=True)
    crowded.gate.open()
    await crowded.cluster.go(engine.done.is_set, turns=1_000)
    assert engine.processed == 18
    await engine.stop()


async def test_who_waits_for_room_in_a_queue_goes_on_when_its_interval_leaves() -> None:
    crowded = Crowded()
    cluster, engine = crowded.cluster, await crowded.start(alone=False)
    await end([task for task in engine.env.tasks if task.get_name() == "claiming"])
    crowded.gate.open()
    await cluster.pass_time(hand_over(engine, crowded.leaf))
    await cluster.go(lambda: not crowded.entry.intake, turns=1_000)
    await cluster.leave(engine)


async def hand_over(engine: Engine, interval: Interval) -> None:
    assert await engine.owned.give_up(interval)


@pytest.mark.parametrize("leaf", "abf")
@pytest.mark.parametrize("on", "abe")
async def test_who_waits_for_room_in_a_queue_of_another_lane_goes_on(on: str, leaf: str) -> None:
    """The queue is full of what others sent, nothing of its own is on its way that could be told
    of, and no watermark moves: nobody else wakes its lane."""

    class Tell(Relay):
        def __init__(self) -> None:
            self.writes = (TALLY,)

        async def process_record(self, record: Record[Item], ctx: Context[None]) -> None:
            ctx.produce(TALLY, Counted(record.value.key, record.value.number, 0))

    values = [Item("", n) for n in range(3 * FEW.max_unacked_records)]
    made = Pipeline(
        "room", settings=replace(FEW, intervals=3, chunk_records=100, bundle_records=100)
    )
    made.inject(ITEMS, script(ITEMS, [], "silent"), timestamp=time_of, name="silent")
    made.inject(ITEMS, rows := script(ITEMS, [], "rows"), timestamp=time_of, name="rows")
    made.add(Relay(AGAIN), ITEMS.by(lambda item: on), name="on", **TREE)
    made.add(Tell(), AGAIN.by(lambda item: leaf), ITEMS.by(lambda item: leaf))
    made.sink(TALLY, Table("out", Counted, numbered=True))
    world = World(made)
    engine = await world.start()
    await world.turns(100, tick=0.01)
    for value in values:
        rows.append(inject(ITEMS, value))
    read_on(engine)
    await world.turns(500, tick=0.01)
    assert sorted(world.numbers()) == sorted(2 * list(range(len(values))))


async def test_roots_are_bounded() -> None:
    """More senders than one do not make them more (I8)."""
    values = [Item("", n, n / 10) for n in range(90)]
    made = Pipeline("many", settings=FEW)
    for number in range(3):
        source = script(ITEMS, values[number::3], f"part {number}")
        made.inject(ITEMS, source, timestamp=time_of, name=f"source_{number}")
    made.add(Relay(AGAIN), ITEMS.by(number_of_item), **TREE)
    gate = Gate()
    made.add(Waiting(gate), AGAIN.by(number_of_item))
    made.sink(TALLY, Table("out", Counted, numbered=True))
    world = World(made)
    engine = await world.start()
    await world.turns(500, tick=0.01)
    assert gate.reached > 4
    assert 4 < pending(world) <= FEW.max_unacked_records + FEW.chunk_records
    gate.open()
    await world.finish(engine)
    assert sorted(world.numbers()) == list(range(90))


async def test_reports_of_an_attempt_before_count_for_nothing() -> None:
    """The first attempt's leaves are told after the second has begun: it waits for its own."""
    world = World(stretch(VALUES[:1], depth=2, replay_after=1.0))
    engine = await world.start()
    held: list[tuple[int, int]] = []
    send = engine.modes.trees.report
    engine.modes.trees.report = lambda token, xor: held.append((token, xor))  # type: ignore[method-assign]
    await world.until(lambda: replays(world) == 1 and pending(world) == 1, tick=0.01)
    gate = Gate()
    world.on_try = lambda commit: gate.wait() if commit.rows else None
    old = {token for token, _ in held}
    (now,) = engine.modes.trees.roots._roots
    assert now not in old
    for report in held:
        send(*report)
    engine.modes.trees.report = send  # type: ignore[method-assign]
    held.clear()
    await world.turns(3)
    assert pending(world) == 1
    gate.open()
    await world.finish(engine)
    assert_once(world, VALUES[:1])


async def test_a_copy_that_joins_another_in_a_stretch_is_passed_on_for_itself() -> None:
    """What came of the first has its edges: that of the copy is not told by it."""
    world = World(stretch(VALUES[:1], QUICK, depth=2, replay_after=0.5))
    engine = await world.start()
    lost: list[Delivery[Any]] = []
    dropped: list[Delivery[Any]] = []
    send = engine.exchange.send

    def first_late(productions: Any) -> None:
        """What the first attempt sends comes with what the second does; and what came of that is
        lost, under the first token."""
        productions = list(productions)
        if productions and productions[0].stream == "halves":
            if not lost:
                lost.extend(productions)
                return
            productions = [*lost, *productions]
        elif productions and lost and productions[0].log == lost[0].log:
            dropped.extend(productions)
            return
        send(productions)

    engine.exchange.send = first_late  # type: ignore[method-assign]
    await world.finish(engine, tick=0.01)
    assert dropped
    assert_once(world, VALUES[:1])


async def test_a_replayed_record_is_noted_with_another_of_its_key() -> None:
    """Nothing is kept then of how often it was replayed: no tree will ever end for it."""
    gate = Gate()

    class Busy(Relay):
        async def process_record(self, record: Record[Item], ctx: Context[None]) -> None:
            if record.value.number == 1:
                await gate.wait()
            if record.value.number == 2:
                ctx.count("twos")
            await super().process_record(record, ctx)

    made = Pipeline("noted", settings=replace(QUICK, chunk_records=1))
    made.inject(ITEMS, script(ITEMS, VALUES[:3]), timestamp=time_of)
    made.add(Busy(AGAIN), ITEMS.by(key_of), name="busy", **TREE)
    made.add(Tally(), AGAIN.by(key_of))
    made.sink(TALLY, Table("out", Counted, numbered=True))
    world = World(made)
    engine = await world.start()
    first = iter([True])
    lose(engine, lambda: next(first, False))
    await world.until(lambda: gate.reached and replays(world) == 1, tick=0.05)
    await world.turns()
    gate.open()
    await world.finish(engine)
    assert sorted(world.numbers()) == [0, 1, 2]
    assert world.counter("busy", "twos") == 1
    assert not entry_of(world.interval("busy")).tries


# -- what else a tree computation may do -----------------------------------------------------------


class Picky(Relay):
    """Counts every third, and fails on every fifth."""

    async def process_record(self, record: Record[Item], ctx: Context[None]) -> None:
        number = record.value.number
        if number % 3 == 0:
            ctx.count("thirds")
        ctx.produce(self._to, record.value)
        if number % 5 == 0:
            raise ValueError("a fifth")


def picky(depth: int = 2) -> Pipeline:
    made = Pipeline("picky", settings=FEW)
    made.inject(ITEMS, script(ITEMS, PICKED), timestamp=time_of)
    last = ITEMS
    for number in range(depth):
        to = Stream(f"hop_{number}", Item)
        kind = Picky if number == depth // 2 else Relay
        made.add(kind(to), last.by(key_of), name=f"hop_{number}", on_error="dead_letter", **TREE)
        last = to
    made.add(Tally(), last.by(key_of))
    made.sink(TALLY, Table("out", Counted, numbered=True))
    return made


PICKED = [Item(f"key {n % 3}", n, n / 10) for n in range(18)]


@pytest.mark.parametrize("depth", [1, 3])
async def test_effects_of_a_tree_computation_happen_once_at_any_crash(depth: int) -> None:
    """They take the way of the chain, and the rest of the tree does not mind."""

    def check_all(world: World) -> None:
        wanted = [n for n in range(18) if n % 5]
        assert sorted(world.numbers()) == wanted
        assert world.counter(f"hop_{depth // 2}", "thirds") == len(
            [n for n in wanted if n % 3 == 0]
        )
        assert [error for _, error in world.letters()] == ["ValueError: a fifth"] * 4

    await at_every(lambda: picky(depth), 11, check_all)


class Back(Relay):
    """Gives an older record than it got, as long as that is not promised away."""

    async def process_record(self, record: Record[Item], ctx: Context[None]) -> None:
        ctx.produce(self._to, record.value, record.timestamp - timedelta(seconds=0.5))


class Late(Computation[Item, None]):
    """Tells which records are late."""

    writes = (TALLY,)

    async def process_record(self, record: Record[Item], ctx: Context[None]) -> None:
        late = record.timestamp < ctx.low_watermark
        ctx.produce(TALLY, Counted(record.value.key, record.value.number, int(late)))


async def test_what_is_older_than_its_input_is_not_made_late_on_its_way() -> None:
    """Its root holds the low watermark at the input's time alone: it needs a hold of its own."""
    made = Pipeline("back", settings=QUICK)
    made.inject(ITEMS, script(ITEMS, VALUES), timestamp=time_of, lateness=timedelta(seconds=5))
    made.add(Back(HALVES), ITEMS.by(key_of), name="back", **TREE)
    made.add(Late(), HALVES.by(key_of))
    made.sink(TALLY, Table("out", Counted, numbered=True))
    world = World(made)
    engine = await world.start(close_at_end=True)
    await world.finish(engine)
    assert sorted(world.numbers()) == list(range(12))
    assert [row[2] for row in world.rows()] == [0] * 12
    assert world.interval("back").log.first == 12, "the log held them"


async def test_at_least_once_loses_nothing() -> None:
    def made() -> Pipeline:
        made = Pipeline("careless", settings=FEW)
        made.inject(ITEMS, script(ITEMS, VALUES), timestamp=time_of)
        made.add(Halve(), ITEMS.by(number_of_item), exactly_once=False, **TREE)
        made.add(Relay(AGAIN), HALVES.by(number_of_item), exactly_once=False, name="on", **TREE)
        made.add(Tally(), AGAIN.by(key_of), exactly_once=False)
        made.sink(TALLY, Table("out", Counted, numbered=True))
        return made

    doubled = 0

    def check_all(world: World) -> None:
        nonlocal doubled
        assert set(world.numbers()) == set(halves(VALUES))
        doubled += len(world.numbers()) - len(halves(VALUES))

    await at_every(made, 7, check_all)
    assert doubled, "what was in flight at a crash was processed again, and counted again"


@pytest.mark.parametrize("manner", ["spread", "broadcast", "two readers", "then a chain"])
async def test_other_readers_of_a_stretch(manner: str) -> None:
    class Numbers(msgspec.Struct):
        numbers: list[int] = msgspec.field(default_factory=list)

    class Look(Computation[Item, None, Item, Numbers]):
        writes = (TALLY,)

        async def process_record(self, record: Record[Item], ctx: Context[None, Numbers]) -> None:
            item = record.value
            ctx.produce(TALLY, Counted(item.key, item.number, 0))

        async def process_broadcast(self, record: Record[Item], shared: Numbers) -> None:
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
        made.add(Relay(HALVES), ITEMS.by(number_of_item), **TREE)
        if manner == "spread":
            made.add(Relay(AGAIN), HALVES.spread(), name="on", **TREE)
            made.add(Tell(), AGAIN.spread())
        elif manner == "broadcast":
            made.add(Look(), ITEMS.by(key_of), HALVES.broadcast(), name="look")
        elif manner == "two readers":
            made.add(Tell(), HALVES.spread(), name="one")
            made.add(Tell(), HALVES.by(key_of), name="other")
        else:
            made.add(Relay(AGAIN), HALVES.by(key_of), name="on", productions="weak")
            made.add(Tell(), AGAIN.spread())
        made.sink(TALLY, Table("out", Counted, numbered=True))
        return made

    def check_all(world: World) -> None:
        times = 2 if manner == "two readers" else 1
        assert Counter(world.numbers()) == Counter(dict.fromkeys(range(12), times))
        if manner == "broadcast":
            cells = [r.value["numbers"] for r in world.store.states() if r.computation == "look"]
            assert len(cells) == 4, "every cell has a copy of its own"
            assert all(sorted(numbers) == list(range(12)) for numbers in cells)

    await at_every(made, 11, check_all)


# -- what is refused -------------------------------------------------------------------------------


class Timed(Relay):
    async def process_timer(self, timer: Timer, ctx: Context[None]) -> None: ...


@pytest.mark.parametrize(
    ("match", "computation", "options"),
    [
        ("'chain' or 'tree', not 'bush'", Halve(), {"acknowledgement": "bush"}),
        (r"'halve' is added with acknowledgement=\"tree\" and productions=\"strong\"", Halve(),
         {"acknowledgement": "tree"}),
        ("replay_after must be a timedelta above zero", Halve(),
         {**TREE, "replay_after": timedelta(0)}),
        ("replay_after must be a timedelta above zero", Halve(), {**TREE, "replay_after": 5}),
        ("'timed' has timers.*only pass things on", Timed(HALVES), TREE),
        ("'ordered' keeps state.*only pass things on",
         type("Ordered", (Tally,), {"order_insensitive": True})(), TREE),
    ],
)  # fmt: skip
def test_what_does_not_only_pass_things_on_is_refused(
    match: str, computation: Any, options: dict[str, Any]
) -> None:
    made = Pipeline("refused")
    with pytest.raises(GraphError, match=match):
        made.add(computation, ITEMS.by(key_of), **options)


def test_tables_in_its_own_commits_are_refused() -> None:
    made = Pipeline("refused")
    made.inject(ITEMS, script(ITEMS, []), timestamp=time_of)
    made.add(Halve(), ITEMS.by(key_of), **TREE)
    made.sink(HALVES, Table("rows", Item))
    with pytest.raises(GraphError, match=r"makes no commits of its own.*'rows'.*step of its own"):
        made.graph()


def test_the_graph_shows_it() -> None:
    text = drawing.text(stretch(VALUES).graph())
    assert "weak productions, exactly once, acknowledged by trees" in text


# -- several workers -------------------------------------------------------------------------------


def shared(values: Sequence[Item], depth: int = 2, replay_after: float = 1.0) -> Pipeline:
    made = Pipeline("counting", settings=SHARED)
    for number in range(2):
        made.inject(
            ITEMS,
            script(ITEMS, values[number::2], f"part {number}"),
            timestamp=time_of,
            name=f"source_{number}",
        )
    last = ITEMS
    for number in range(depth):
        to = Stream(f"hop_{number}", Item)
        made.add(
            Relay(to),
            last.by(key_of if number % 2 else number_of_item),
            name=f"relay_{number}",
            replay_after=timedelta(seconds=replay_after),
            **TREE,
        )
        last = to
    made.add(Tally(), last.by(key_of))
    made.add(Ones(), TALLY.by(number_of))
    made.sink(ONES, Table("out", Counted, numbered=True))
    return made


def check_once(cluster: World, values: list[Item]) -> None:
    """As `check`, without the order of a key's records, which a replay gives up."""
    rows = [(key, number, count) for key, number, count, *_ in cluster.rows()]
    assert sorted(number for _, number, _ in rows) == sorted(item.number for item in values)
    counts: dict[str, list[int]] = {}
    for key, _, count in rows:
        assert count % 100 == 1, "told twice"
        counts.setdefault(key, []).append(count // 100)
    for key, found in counts.items():
        assert sorted(found) == list(range(1, len(found) + 1)), f"{key}: lost or doubled"


async def test_as_long_as_nothing_is_lost_order_is_kept_and_nothing_replayed() -> None:
    class ByKey(Relay):
        pass

    values = many(300)
    made = Pipeline("counting", settings=SHARED)
    for number in range(2):
        source = script(ITEMS, values[number::2], f"part {number}")
        made.inject(ITEMS, source, timestamp=time_of, name=f"source_{number}")
    made.add(ByKey(HALVES), ITEMS.by(key_of), name="one", **TREE)
    made.add(ByKey(AGAIN), HALVES.by(key_of), name="two", **TREE)
    made.add(Tally(), AGAIN.by(key_of))
    made.add(Ones(), TALLY.by(number_of))
    made.sink(ONES, Table("out", Counted, numbered=True))
    cluster = Cluster(made)
    for _ in range(3):
        await cluster.join()
    await cluster.go(cluster.finished)
    check(cluster, values)
    assert all(i.counters.totals.get("replays", 0) == 0 for e in cluster.alive for i in e.intervals)


async def come_and_go(seed: int, acts: int = 4) -> None:
    chance = Random(seed)
    values = [msgspec.structs.replace(item, second=float(item.second)) for item in many(300)]
    weather = Weather(Random(seed), drop=0.02, duplicate=0.02, overtake=0.02, delay=0.1)
    depth = chance.choice([1, 2, 3])
    cluster = Cluster(shared(values, depth), weather if seed % 2 else None)
    await cluster.join()
    for _ in range(acts):
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
    check_once(cluster, values)
    for engine in list(cluster.alive):
        assert len(engine.modes.trees.roots) == 0
        await cluster.leave(engine)
    assert cluster.store.pending_productions() == []


@pytest.mark.parametrize("seed", range(3))
async def test_workers_come_and_go(seed: int) -> None:
    await come_and_go(seed)


@pytest.mark.soak
@given(seed=st.integers(0, 1 << 30))
@examples(1000)
def test_workers_come_and_go_for_long(seed: int) -> None:
    asyncio.run(come_and_go(seed, acts=8))


async def test_lost_frames_cost_replays_and_nothing_else() -> None:
    """Only what is in no log is lost here: deliveries and reports of a stretch."""
    chance = Random(11)
    values = many(100)

    def lossy(sender: str, receiver: str, body: bytes) -> Fate:
        is_ours = isinstance(decode(body), Loose | RootReport)
        return Fate(copies=0) if is_ours and chance.random() < 0.1 else FAIR

    cluster = Cluster(shared(values, depth=3))
    for _ in range(2):
        await cluster.join()
    cluster.ether.weather = lossy
    await cluster.go(cluster.finished)
    check_once(cluster, values)
    assert sum(i.counters.totals.get("replays", 0) for e in cluster.alive for i in e.intervals) > 5
    for engine in list(cluster.alive):
        await cluster.leave(engine)


async def test_who_is_slow_on_another_worker_is_not_taken_for_lost() -> None:
    values = many(120)
    gate = Gate()
    made = Pipeline("slowly", settings=SHARED)
    made.inject(ITEMS, script(ITEMS, values), timestamp=time_of)
    soon = {**TREE, "replay_after": timedelta(seconds=1)}
    made.add(Relay(HALVES), ITEMS.by(number_of_item), name="one", **soon)
    made.add(Relay(AGAIN), HALVES.by(number_of_item), name="two", **soon)
    made.add(Waiting(gate), AGAIN.by(key_of), name="slow")
    made.sink(TALLY, Table("out", Counted, numbered=True))
    cluster = Cluster(made)
    cluster.store.pause("items_injector")  # a step that moves later would break its trees
    for _ in range(2):
        await cluster.join()
    await cluster.go(lambda: all(engine.intervals for engine in cluster.alive))
    cluster.store.pause()
    await cluster.go(lambda: gate.reached > 4)
    end = cluster.clock.monotonic() + 60
    await cluster.go(lambda: cluster.clock.monotonic() > end, tick=0.02)

    def again() -> int:
        return sum(
            i.counters.totals.get("replays", 0) + i.mode.entry.replayed
            for e in cluster.alive
            for i in e.intervals
            if isinstance(i.mode, Tree)
        )

    assert again() == 0
    held = {
        owner_of(-d.log)
        for e in cluster.alive
        for i in e.intervals
        if i.step.name == "slow"
        for d in (*i.intake, *i.dedup.held())
    }
    assert len(held) == 2, "roots of both workers wait here and there"
    for _ in range(5):  # who stood still has missed no sign of life
        cluster.clock.advance(1.5)
        await cluster.turns(100)
    assert again() == 0
    gate.open()
    await cluster.go(cluster.finished)
    assert sorted(cluster.numbers()) == list(range(120))
    assert again() == 0


async def test_who_waits_to_see_buckets_has_his_records_in_hand() -> None:
    """They are in no queue then, and not yet in flight."""
    values = many(200)
    cluster = Cluster(shared(values))
    engine = await cluster.join()
    await cluster.go(lambda: engine.processed > 100)
    gate = Gate()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine.buckets.sources, "knows", lambda *place: False)
        patch.setattr(engine.buckets, "load", gate.wait)
        await cluster.go(lambda: gate.reached)
        assert any(d.log < 0 for i in engine.intervals if i.dedup for d in i.dedup.sorting)
        end = cluster.clock.monotonic() + 30
        await cluster.go(lambda: cluster.clock.monotonic() > end, tick=0.05)
        assert replays(cluster) == 0
    gate.open()
    await cluster.go(cluster.finished)
    check_once(cluster, values)
    await cluster.leave(engine)


async def test_what_is_queued_where_a_leaf_leaves_goes_along() -> None:
    """A move in order loses nothing, and so costs no replay."""
    values = many(400)
    cluster = Cluster(shared(values, depth=2, replay_after=30.0))
    first = await cluster.join()
    await cluster.go(lambda: first.processed > 300)
    await cluster.join()
    await cluster.go(cluster.finished)
    check_once(cluster, values)
    moved = [i for e in cluster.alive[1:] for i in e.intervals]
    assert moved
    assert cluster.clock.monotonic() < 30.0, "or it would have waited for a replay"


async def test_two_who_take_each_other_for_an_owner_do_not_send_to_and_fro() -> None:
    """What would go back where it came from is dropped, and comes again when they know better."""
    values = many(60)
    cluster = Cluster(shared(values, depth=2, replay_after=0.5))
    first, second = [await cluster.join() for _ in range(2)]

    def of_second() -> list[Interval]:
        return [i for i in second.intervals if i.step.name == "relay_1"]

    await cluster.go(of_second)
    interval, gate, claim = of_second()[0], Gate(), cluster.store.claim

    async def wait_and_claim(*arguments: Any, **options: Any) -> Any:
        await gate.wait()
        return await claim(*arguments, **options)

    cluster.store.claim = wait_and_claim  # type: ignore[method-assign]
    await cluster.pass_time(second.owned.give_up(interval))  # type: ignore[arg-type]
    for engine, other in ((first, second), (second, first)):
        (remote,) = [r for r in engine.remotes.remotes() if r.id == interval.id]
        remote.set_owner(other.worker, interval.commits.sequencer + 1)
    sent = 0

    def counting(sender: str, receiver: str, body: bytes) -> Fate:
        nonlocal sent
        frame = decode(body)
        sent += len(frame.records) if isinstance(frame, Loose) else 0
        return FAIR

    cluster.ether.weather = counting
    end = cluster.clock.monotonic() + 5
    await cluster.go(lambda: cluster.clock.monotonic() > end)
    assert 0 < sent < 500, "each now and then, by replays"
    gate.open()
    await cluster.go(cluster.finished)
    check_once(cluster, values)


async def test_who_cannot_see_a_queue_is_not_let_fill_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is too much for an interval is dropped, and comes again."""
    values = many(150)
    monkeypatch.setattr("millwheel.runtime.modes.tree_acks.QUEUED_MOST", 0.1)
    cluster = Cluster(shared(values, depth=2, replay_after=0.2))
    for _ in range(2):
        await cluster.join()
    await cluster.go(cluster.finished)
    check_once(cluster, values)
    assert sum(e.courier.refused["loose"] for e in cluster.alive if e.courier) > 5
