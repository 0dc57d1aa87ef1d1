"""Fused stages: weak computations on one key, back to back, and nobody can tell (decision 33)."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from random import Random
from typing import Any
from uuid import UUID

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millwheel import Computation, Context, Pipeline, Record, Settings, Stream, Table
from millwheel.computations import Windowed, total
from millwheel.errors import StoreUnavailable
from millwheel.model import Delivery, from_micros
from millwheel.runtime.engine import Engine
from millwheel.runtime.interval import Interval
from millwheel.runtime.sent import SentLog
from millwheel.runtime.two_ways import TwoWays
from millwheel.store.port import SplitWish
from millwheel.testing import advance, inject
from millwheel.timers.holds import Holds
from millwheel.windows import Pane, Tumbling
from tests.support.cancellation import cancel_oneself
from tests.support.clusters import SHARED, Cluster
from tests.support.drawing import examples
from tests.support.weak_chains import Relay, assert_once, chain, number_of_item
from tests.support.worlds import (
    ITEMS,
    QUICK,
    TALLY,
    Counted,
    Gate,
    Item,
    Tally,
    World,
    at,
    fail_once,
    key_of,
    read_on,
    script,
    time_of,
)

FEW = replace(QUICK, chunk_records=2, bundle_records=3, max_unacked_records=8)
VALUES = [Item("", n, n / 10) for n in range(12)]
Doing = Callable[[Item, Context[None]], Any]


class Act(Computation[Item, None]):
    """Does what a test wants, and passes on to the test's streams."""

    def __init__(self, do: Doing, *to: Stream[Item]) -> None:
        self._do = do
        self.writes = to

    async def process_record(self, record: Record[Item], ctx: Context[None]) -> None:
        answer = self._do(record.value, ctx)
        if answer is not None:
            await answer


def stream(number: int) -> Stream[Item]:
    return Stream(f"stream_{number}", Item)


FIRST, SECOND = stream(1), stream(2)


def relayed(
    values: Sequence[Any],
    do: Doing,
    *,
    settings: Settings = FEW,
    key: Callable[[Item], Any] = key_of,
    lateness: float = 0,
    **options: Any,
) -> Pipeline:
    """Items to `first`, to `second`, which does what it is told, and counted per key."""
    made = Pipeline("relayed", settings=settings)
    made.inject(
        ITEMS, script(ITEMS, values), timestamp=time_of, lateness=timedelta(seconds=lateness)
    )
    made.add(Relay(FIRST), ITEMS.by(key_of), name="first", productions="weak")
    made.add(Act(do, SECOND), FIRST.by(key), name="second", productions="weak", **options)
    made.add(Tally(), SECOND.by(key_of))
    made.sink(TALLY, Table("out", Counted, numbered=True))
    return made


def pass_on(item: Item, ctx: Context[None]) -> None:
    ctx.produce(SECOND, item)


def sent_to(engine: Engine) -> Counter[str]:
    """Counts, from now on, what an engine sends to whom."""
    counts: Counter[str] = Counter()
    send = engine.send

    def counting(productions: Any) -> None:
        productions = list(productions)
        counts.update(engine.steps[p.receiver].name for p in productions)
        send(productions)

    engine.send = counting  # type: ignore[method-assign]
    return counts


def seen_by(world: World, name: str) -> set[bytes]:
    """The ids that a computation has noted."""
    ids = {
        step.id for engine in world.engines for step in engine.steps.values() if step.name == name
    }
    return {
        id_
        for commit in world.commits
        for seen in commit.seen.values()
        for _, receiver, id_ in seen
        if receiver in ids
    }


async def turns_of(pipeline: Pipeline, **options: Any) -> int:
    """How many turns of the loop a run takes."""
    world = World(pipeline)
    engine = await world.start(**options)
    turns = 0
    while not engine.done.is_set():
        assert engine.failure is None, engine.failure
        await world.turns(1, tick=0.005)
        turns += 1
    await engine.kill()
    return turns


def items_of(number: int, keys: int = 3) -> list[Item]:
    return [Item("abcdefg"[n % keys], n, n / 10) for n in range(number)]


# -- what is fused ---------------------------------------------------------------------------


@pytest.mark.parametrize("fuse", [True, False])
async def test_a_fused_stage_takes_no_queue_and_counts_what_it_did(fuse: bool) -> None:
    world = World(chain(VALUES, replace(FEW, fuse=fuse), depth=3))
    engine = await world.start()
    counts = sent_to(engine)
    await world.finish(engine, tick=0.001)
    assert_once(world, VALUES)
    for name in ("pass_1", "pass_2"):
        assert world.counter(name, "processed") == 22
    assert counts["pass_1"] == 22 - fuse, "half an item has another key; but for the first of 0"
    assert counts["pass_2"] == (0 if fuse else 22)
    assert counts["tally"] == 22
    assert engine.processed == 12 + 3 * 22


async def test_another_key_and_other_readers_take_the_queue() -> None:
    """Of what goes to three readers, only that by the same key is fused."""
    made = Pipeline("readers", settings=FEW)
    made.inject(ITEMS, script(ITEMS, items_of(12)), timestamp=time_of)
    made.add(Relay(FIRST), ITEMS.by(key_of), name="first", productions="weak")
    for name, key in (("same", key_of), ("other", number_of_item)):
        made.add(Act(lambda i, c: None), FIRST.by(key), name=name, productions="weak")
    made.add(Relay(SECOND), FIRST.spread(), name="spread", productions="weak")
    made.add(Relay(stream(3)), FIRST.by(key_of), name="strong")
    made.add(Tally(), SECOND.by(key_of))
    made.sink(TALLY, Table("out", Counted, numbered=True))
    world = World(made)
    engine = await world.start()
    counts = sent_to(engine)
    await world.finish(engine)
    assert counts == {"other": 12, "spread": 12, "strong": 12, "tally": 12}
    for name in ("same", "other", "spread", "strong"):
        assert world.counter(name, "processed") == 12


async def test_what_a_stretch_passes_on_is_kept_nowhere_behind_a_chain_either() -> None:
    """Fused, its outputs would stand in the log of the chain, and be stored as stragglers."""
    gate = Gate()

    class Slow(Tally):
        async def process_record(self, record: Record[Item], ctx: Context[Any]) -> None:
            await gate.wait()
            await super().process_record(record, ctx)

    made = Pipeline("stretch", settings=FEW)
    made.inject(ITEMS, script(ITEMS, items_of(3)), timestamp=time_of)
    made.add(Relay(FIRST), ITEMS.by(key_of), name="first", productions="weak")
    made.add(
        Relay(SECOND), FIRST.by(key_of), name="second", productions="weak", acknowledgement="tree"
    )
    made.add(Slow(), SECOND.by(key_of), name="tally")
    made.sink(TALLY, Table("out", Counted, numbered=True))
    world = World(made)
    engine = await world.start()
    await world.until(lambda: len(world.store.pending_productions()) == 3, tick=0.01)
    assert {d.stream for commit in world.commits for d in commit.stragglers} == {FIRST.name}
    gate.open()
    await world.finish(engine)
    assert sorted(world.numbers()) == [0, 1, 2]


async def test_a_fused_output_is_waited_for() -> None:
    """The input is not acknowledged before what came of it at the end of the chain is durable."""
    world = World(relayed(items_of(1), pass_on))
    gate = Gate()
    world.on_try = lambda commit: gate.wait() if commit.rows else None
    engine = await world.start()
    await world.until(lambda: gate.reached)
    await world.turns()
    assert world.interval("items_injector").log.first == 0
    gate.open()
    await world.until(engine.done.is_set)
    assert world.interval("items_injector").log.first == 1


async def test_a_straggler_behind_a_fused_stage_is_stored_under_its_own_id() -> None:
    """And known again when it is sent from the store, and made again by the unfused form."""
    gate = Gate()

    class Slow(Tally):
        async def process_record(self, record: Record[Item], ctx: Context[Any]) -> None:
            await gate.wait()
            await super().process_record(record, ctx)

    def made(settings: Settings) -> Pipeline:
        made = Pipeline("slow", settings=settings)
        made.inject(ITEMS, script(ITEMS, items_of(3, 1)), timestamp=time_of)
        made.add(Relay(FIRST), ITEMS.by(key_of), name="first", productions="weak")
        made.add(Relay(SECOND), FIRST.by(key_of), name="second", productions="weak")
        made.add(Slow(), SECOND.by(key_of), name="tally")
        made.sink(TALLY, Table("out", Counted, numbered=True))
        return made

    world = World(made(FEW))
    engine = await world.start()
    await world.until(lambda: len(world.store.pending_productions()) == 3, tick=0.01)
    ids = {d.id for commit in world.commits for d in commit.stragglers}
    await engine.kill()
    gate.open()
    world.pipeline = made(replace(FEW, fuse=False))
    await world.run()
    assert world.tallied() == {"a": [(0, 1), (1, 2), (2, 3)]}
    assert seen_by(world, "tally") == ids
    assert world.store.pending_productions() == []


# -- what cannot be fused --------------------------------------------------------------------


async def both_ways_at_any_moment(
    made: Callable[[bool], Pipeline], check: Callable[[World], None], every: int
) -> None:
    """Run fused, crash after every so many turns, go on unfused; and the other way round."""
    for fuse in (True, False):
        turns = await turns_of(made(fuse))
        for point in range(0, turns, every):
            world = World(made(fuse))
            first = await world.start()
            await world.turns(point, tick=0.005)
            await first.kill()
            world.pipeline = made(not fuse)
            await world.run(tick=0.005)
            check(world)
            assert world.store.pending_productions() == []


async def test_effects_of_the_second_happen_once_and_end_the_fusion() -> None:
    """What it counts and writes is stored with its own record, in its own commit."""

    def do(item: Item, ctx: Context[None]) -> None:
        if item.number % 2:
            ctx.count("odd")
        ctx.produce(SECOND, item)

    def check(world: World) -> None:
        assert sorted(world.numbers()) == list(range(12))
        assert world.counter("second", "odd") == 6

    world = World(relayed(items_of(12), do))
    engine = await world.start()
    counts = sent_to(engine)
    await world.finish(engine)
    check(world)
    assert counts["second"] == 11, "all but the first, which counted nothing"
    assert world.counter("second", "processed") == 12
    await both_ways_at_any_moment(
        lambda fuse: relayed(items_of(12), do, settings=replace(FEW, fuse=fuse)), check, 9
    )


class Open(msgspec.Struct):
    """A value that code may change."""

    numbers: list[int]


OPEN = Stream("open", Open)


class Opened(Computation[Item, None]):
    """Makes such a value."""

    writes = (OPEN,)

    async def process_record(self, record: Record[Item], ctx: Context[None]) -> None:
        ctx.produce(OPEN, Open([record.value.number]))


class Spoil(Computation[Open, None]):
    """Changes what it was given, and fails on fives."""

    writes = (SECOND,)

    def __init__(self) -> None:
        self.seen: dict[int, list[list[int]]] = defaultdict(list)

    async def process_record(self, record: Record[Open], ctx: Context[None]) -> None:
        numbers = record.value.numbers
        self.seen[numbers[0]].append(list(numbers))
        numbers.append(7)
        ctx.produce(SECOND, Item("a", numbers[0]))
        if numbers[0] == 5:
            raise ValueError("five")


def constantly(value: Any) -> str:
    return "a"


async def test_one_that_sends_at_most_once_is_not_fused() -> None:
    """What it sends so is an effect: the commit that notes its record sends it."""
    made = Pipeline("once", settings=FEW)
    made.inject(ITEMS, script(ITEMS, items_of(12)), timestamp=time_of)
    made.add(Relay(FIRST), ITEMS.by(key_of), name="first", productions="weak")
    second = Act(pass_on, SECOND)
    made.add(second, FIRST.by(key_of), name="second", productions="weak")
    made.add(Tally(), SECOND.by(key_of), delivery="at_most_once")
    made.sink(TALLY, Table("out", Counted, numbered=True))
    world = World(made)
    engine = await world.start()
    assert not any(engine.fusion.behind(step) for step in engine.steps.values())
    counts = sent_to(engine)
    await world.finish(engine)
    assert counts["second"] == 12
    assert sorted(world.numbers()) == list(range(12))


@pytest.mark.parametrize("what", ["state", "broadcast", "table"])
async def test_one_that_keeps_or_writes_anything_is_not_run_in_vain(what: str) -> None:
    """It is called once for each record, with all it needs at hand."""
    runs: Counter[int] = Counter()

    class Numbers(msgspec.Struct):
        numbers: list[int] = msgspec.field(default_factory=list)

    class Keep(Computation[Item, Numbers]):
        writes = (SECOND,)
        order_insensitive = True

        async def process_record(self, record: Record[Item], ctx: Context[Numbers]) -> None:
            runs[record.value.number] += 1
            ctx.state.numbers.append(record.value.number)
            ctx.produce(SECOND, record.value)

    class Look(Computation[Item, None, Item, Numbers]):
        writes = (SECOND,)
        order_insensitive = True

        async def process_record(self, record: Record[Item], ctx: Context[None, Numbers]) -> None:
            runs[record.value.number] += 1
            if record.value.number not in ctx.shared.numbers:
                ctx.produce(SECOND, record.value)

        async def process_broadcast(self, record: Record[Item], shared: Numbers) -> None:
            shared.numbers.append(record.value.number)

    def note_and_pass_on(item: Item, ctx: Context[None]) -> None:
        runs[item.number] += 1
        pass_on(item, ctx)

    made = Pipeline("keeping", settings=FEW)
    made.inject(ITEMS, script(ITEMS, items_of(12)), timestamp=time_of)
    made.add(Relay(FIRST), ITEMS.by(key_of), name="first", productions="weak")
    if what == "state":
        made.add(Keep(), FIRST.by(key_of), name="second", productions="weak")
    elif what == "broadcast":
        other = Stream("other_items", Item)
        made.inject(other, script(other, [], "other"), timestamp=time_of)
        made.add(Look(), FIRST.by(key_of), other.broadcast(), name="second", productions="weak")
    else:
        made.add(Act(note_and_pass_on, SECOND), FIRST.by(key_of), name="second", productions="weak")
        made.sink(SECOND, Table("second_rows", Item))
    made.add(Tally(), SECOND.by(key_of))
    made.sink(TALLY, Table("out", Counted, numbered=True))
    world = World(made)
    engine = await world.start()
    counts = sent_to(engine)
    await world.finish(engine)
    assert sorted(world.numbers()) == list(range(12))
    assert runs == Counter(range(12))
    assert counts["second"] == 12
    if what == "state":
        kept = [world.state("second", key)[""]["numbers"] for key in "abc"]
        assert kept == [[n for n in range(12) if n % 3 == odd] for odd in range(3)]
    elif what == "table":
        assert len(world.rows("second_rows")) == 12


async def test_what_goes_by_the_queue_behind_a_fused_run_that_made_nothing_is_sent() -> None:
    """In the same run, and the second is not fused any more: nothing else is on its way."""

    def do(item: Item, ctx: Context[None]) -> None:
        if item.number:
            ctx.count("counted")
            ctx.produce(SECOND, item)

    world = World(relayed(items_of(12, 1), do))
    await world.run()
    assert world.numbers() == list(range(1, 12))
    assert world.counter("second", "counted") == 11


async def test_one_that_wants_something_stored_gets_the_value_that_came() -> None:
    """What it did to it before nobody knew that is no effect."""

    class Count(Spoil):
        async def process_record(self, record: Record[Open], ctx: Context[None]) -> None:
            await super().process_record(record, ctx)
            ctx.count("opened")

    made = Pipeline("spoiled", settings=FEW)
    made.inject(ITEMS, script(ITEMS, items_of(4, 1)), timestamp=time_of)
    made.add(Opened(), ITEMS.by(constantly), productions="weak")
    made.add(spoil := Count(), OPEN.by(constantly), name="count", productions="weak")
    made.add(Tally(), SECOND.by(key_of))
    made.sink(TALLY, Table("out", Counted, numbered=True))
    world = World(made)
    await world.run()
    assert sorted(world.numbers()) == [0, 1, 2, 3]
    assert world.counter("count", "opened") == 4
    assert len(spoil.seen[0]) == 2, "once fused"
    assert all(seen == [n] for n, each in spoil.seen.items() for seen in each)


async def test_one_that_fails_is_dealt_with_by_its_own_rules() -> None:
    """What it changed in the record before it failed is not seen when it is tried again."""
    spoil = Spoil()

    def made(fuse: bool) -> Pipeline:
        made = Pipeline("spoiled", settings=replace(FEW, fuse=fuse))
        made.inject(ITEMS, script(ITEMS, items_of(12, 1)), timestamp=time_of)
        made.add(Opened(), ITEMS.by(constantly), productions="weak")
        made.add(spoil, OPEN.by(constantly), productions="weak", on_error="dead_letter", retries=1)
        made.add(Tally(), SECOND.by(key_of))
        made.sink(TALLY, Table("out", Counted, numbered=True))
        return made

    def check(world: World) -> None:
        assert sorted(world.numbers()) == [n for n in range(12) if n != 5]
        assert [error for _, error in world.letters()] == ["ValueError: five"]
        assert all(seen == [n] for n, each in spoil.seen.items() for seen in each)

    world = World(made(True))
    await world.run()
    check(world)
    assert len(spoil.seen[5]) >= 3, "once fused, and twice by its own rules"
    assert len(spoil.seen[4]) == 1
    await both_ways_at_any_moment(made, check, 9)


async def test_one_that_has_failed_is_not_fused_any_more() -> None:
    """Or what fails would run once more than its rules say, each time."""
    runs: Counter[int] = Counter()

    def do(item: Item, ctx: Context[None]) -> None:
        runs[item.number] += 1
        if item.number in (3, 8):
            raise ValueError("on purpose")
        ctx.produce(SECOND, item)

    world = World(relayed(items_of(10), do, settings=FEW, on_error="dead_letter", retries=1))
    await world.run()
    assert sorted(world.numbers()) == [0, 1, 2, 4, 5, 6, 7, 9]
    assert len(world.letters()) == 2
    assert runs[8] == runs[3] - 1


async def test_one_that_cancels_its_task_is_dealt_with_by_its_own_rules() -> None:
    """And not by those of the computation that it is fused behind."""

    async def do(item: Item, ctx: Context[None]) -> None:
        if item.number in (3, 8):
            await cancel_oneself()
        ctx.produce(SECOND, item)

    world = World(relayed(items_of(10), do, settings=FEW, on_error="dead_letter", retries=1))
    await world.run()
    assert sorted(world.numbers()) == [0, 1, 2, 4, 5, 6, 7, 9]
    assert {letter.computation for letter in world.store.dead_letters} == {
        world.interval("second").step.id
    }
    assert len(world.letters()) == 2


async def test_what_failed_once_is_not_processed_after_all() -> None:
    """A letter is an effect: whoever is fused must know that there is none."""
    failing = True

    def do(item: Item, ctx: Context[None]) -> None:
        if failing and item.number == 3:
            raise ValueError("for now")
        ctx.produce(SECOND, item)

    def made(fuse: bool) -> Pipeline:
        return relayed(items_of(6), do, settings=replace(FEW, fuse=fuse), on_error="dead_letter")

    world = World(made(False))
    gate = Gate()
    first = await world.start()
    # the letter is stored, and its sender is not told
    world.on_durable = lambda commit: gate.wait() if commit.dead_letters else None
    await world.until(lambda: gate.reached)
    await first.kill()
    world.on_durable = None
    failing = False
    world.pipeline = made(True)
    await world.run()
    assert sorted(world.numbers()) == [0, 1, 2, 4, 5]
    assert len(world.letters()) == 1


# -- single-threaded, in order ------------------------------------------------------------------


@pytest.mark.parametrize("lanes", [1, 2])
@pytest.mark.parametrize("seed", range(4))
async def test_one_key_runs_once_at_a_time_and_in_order(seed: int, lanes: int) -> None:
    """A stage that waits, and that another stream comes to as well by its queue; commits fail."""
    chance = Random(seed)
    running: Counter[str] = Counter()
    other = Stream("other_items", Item)

    async def wait(item: Item, ctx: Context[None]) -> None:
        running[item.key] += 1
        assert running[item.key] == 1, "two records of one key at once"
        try:
            for _ in range(chance.choice([0, 0, 0, 1, 5])):
                await asyncio.sleep(0)
        finally:
            running[item.key] -= 1
        ctx.produce(SECOND, item)

    made = Pipeline("order", settings=replace(FEW, lanes=lanes, max_unacked_records=20))
    mine = items_of(60, 2)
    others = [Item("ab"[n % 2], 1000 + n, n / 10) for n in range(40)]
    made.inject(ITEMS, script(ITEMS, mine), timestamp=time_of)
    made.inject(other, script(other, others, "other"), timestamp=time_of)
    made.add(Relay(FIRST), ITEMS.by(key_of), name="first", productions="weak")
    made.add(
        Act(lambda i, c: wait(i, c), SECOND), FIRST.by(key_of), other.by(key_of), name="second",
        productions="weak", straggler_after=timedelta(seconds=chance.choice([0.05, 1])),
    )  # fmt: skip
    made.add(Relay(stream(3)), SECOND.by(key_of), name="third", productions="weak")
    made.add(Tally(), stream(3).by(key_of))
    made.sink(TALLY, Table("out", Counted, numbered=True))
    world = World(made)
    engine = await world.start()
    for _ in range(3):
        await world.turns(chance.randrange(1, 60), tick=0.01)
        fail_once(world, 1, StoreUnavailable("by chance"))
    counts = sent_to(engine)
    await world.finish(engine, tick=0.01)
    for key, found in world.tallied().items():
        for of in (mine, others):
            wanted = [i.number for i in of if i.key == key]
            assert [n for n, _ in found if n in set(wanted)] == wanted
    assert sorted(world.numbers()) == sorted(i.number for i in (*mine, *others))
    assert counts["third"] < 100, "some of it was fused"


def sent_log(*numbers: int) -> list[SentLog]:
    return [SentLog(number, Holds()) for number in numbers]


def output(log: SentLog, receiver: int = 1) -> Delivery[Any]:
    seq = log.next_seq
    log.sent(seq + 1, 0, 0)
    return Delivery("k", 0, 0, "s", b"k", 0, receiver, 0, 0, b"", log.id, seq)


def test_a_key_goes_by_the_queue_only_behind_what_was_fused() -> None:
    logs = sent_log(1)
    ways, log = TwoWays(logs), logs[-1]
    made = output(log, 9)
    assert ways.in_order(b"k", [made], {1}, set()) == [made]
    queued, third = output(log), output(log, 3)
    assert ways.in_order(b"k", [queued, third], set(), {1}) == [third]
    assert not ways.may_fuse((b"k", 1))
    assert ways.may_fuse((b"other", 1))
    assert ways.may_fuse((b"k", 2))
    behind = output(log)
    assert ways.in_order(b"other", [behind], set(), set()) == [], "in the order of the log"
    assert ways.released() == []
    log.acknowledge([made.seq])
    assert ways.released() == [queued, behind]
    assert not ways.holds_back
    assert not ways.may_fuse((b"k", 1))
    log.acknowledge([queued.seq, third.seq])
    assert ways.may_fuse((b"k", 1))


def test_what_was_fused_in_the_same_run_goes_first() -> None:
    logs = sent_log(1)
    ways, log = TwoWays(logs), logs[-1]
    made, queued = output(log, 9), output(log)
    assert ways.in_order(b"k", [made, queued], {1}, {1}) == [made]
    log.acknowledge([made.seq])
    assert ways.released() == [queued]


def test_what_waits_for_nothing_is_not_held_back() -> None:
    """What was fused has made nothing, or nothing of it is left: no ACK would let it go."""
    logs = sent_log(1)
    ways, log = TwoWays(logs), logs[-1]
    queued, behind = output(log), output(log)
    assert ways.in_order(b"k", [queued, behind], {1}, {1}) == [queued]
    log.acknowledge([queued.seq])
    assert ways.released() == [behind]
    assert not ways.holds_back


def test_inherited_logs_go_first() -> None:
    logs = sent_log(1, 2)
    old = output(logs[0])
    ways, log = TwoWays(logs), logs[-1]
    assert not ways.may_fuse((b"k", 1))
    queued = output(log)
    assert ways.in_order(b"k", [queued], set(), {1}) == []
    assert ways.released() == []
    logs[0].acknowledge([old.seq])
    assert ways.released() == [queued]


def test_nobody_is_waited_for_when_nothing_is_left_of_a_fused_stage() -> None:
    logs = sent_log(1, 2)
    old = output(logs[0])
    ways, log = TwoWays(logs), logs[-1]
    assert not ways.is_clear_of(1), "the log before may hold what it has made"
    logs[0].acknowledge([old.seq])
    assert ways.is_clear_of(1)
    made = output(log, 9)
    ways.in_order(b"k", [made], {1}, set())
    assert not ways.is_clear_of(1)
    assert ways.is_clear_of(2)
    log.acknowledge([made.seq])
    assert ways.is_clear_of(1)


def test_ways_are_forgotten_when_nothing_is_left_on_them() -> None:
    logs = sent_log(1)
    ways, log = TwoWays(logs), logs[-1]
    for number in range(20_000):
        made = output(log)
        ways.in_order(str(number).encode(), [made], {1}, set())
        log.acknowledge([made.seq])
    assert len(ways._fused) < 3_000


async def test_an_interval_leaves_as_soon_as_a_fused_run_is_through_with_its_key() -> None:
    """Be the run in another lane, and come to nothing."""
    before, gate = Gate(), Gate()

    async def second(item: Item, ctx: Context[None]) -> None:
        if item.number == 0:
            await before.wait()
        else:
            await gate.wait()
            ctx.count("waited")  # thrown away: the record goes by the queue
        ctx.produce(SECOND, item)

    made = Pipeline("leaving", settings=SHARED)
    source = script(ITEMS, [Item("a", 0)])
    made.inject(ITEMS, source, timestamp=time_of)
    made.add(Relay(FIRST), ITEMS.by(key_of), name="first", productions="weak")
    made.add(Act(second, SECOND), FIRST.by(key_of), name="second", productions="weak")
    made.add(Tally(), SECOND.by(key_of))
    made.sink(TALLY, Table("out", Counted, numbered=True))
    cluster = Cluster(made)
    cluster.endless = True
    engine = await cluster.join()
    await cluster.go(lambda: before.reached)
    row = (await cluster.parts("second"))[-1]
    await cluster.store.wish([SplitWish(row.id, row.sequencer, 60_000, "test")])
    await cluster.go(lambda: len(of(engine, "second")) == 3)
    source.append(inject(ITEMS, Item("b", 1)))
    await cluster.go(lambda: gate.reached)
    (leaves,) = [i for i in of(engine, "second") if b'"b"' in i.backlog]
    (runs,) = [i for i in of(engine, "first") if b'"b"' in i.backlog]
    assert not any({leaves, runs} <= {*lane.intervals} for lane in engine.lanes)
    given_up = asyncio.ensure_future(engine.holdings.give_up(leaves))
    await cluster.turns(100, tick=0.01)
    assert not given_up.done()
    gate.open()
    until = cluster.clock.monotonic() + 1
    await cluster.go(lambda: given_up.done() or cluster.clock.monotonic() > until)
    assert given_up.done()
    before.open()
    source.end()
    await cluster.go(cluster.finished)
    assert sorted(cluster.numbers()) == [0, 1]
    await cluster.leave(engine)


def of(engine: Engine, name: str) -> list[Interval]:
    """Its intervals of a computation."""
    return [i for i in engine.intervals if i.step.name == name]


# -- random graphs ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Spot:
    """One weak computation of a drawn graph."""

    kind: str
    reads: tuple[int, ...]
    """Streams, by number; 0: the items."""
    by_key: bool
    exactly_once: bool
    straggler_after: float


KINDS = ["pass", "twice", "filter", "rekey", "mix", "wait", "count", "fail"]


def outcome(kind: str, item: Item) -> list[Item]:
    """What comes of an item."""
    n = item.number
    match kind:
        case "twice":
            return [Item(item.key, 3 * n + half, item.second) for half in (1, 2)]
        case "filter":
            return [item] if n % 3 else []
        case "rekey":
            return [Item("xyz"[n % 3], n, item.second)]
        case "mix":
            return [item, Item("xy"[n % 2], 5 * n + 1, item.second)]
        case "fail":
            return [item] if n % 5 else []
        case _:
            return [item]


class Spotted(Computation[Item, None]):
    """A drawn computation."""

    def __init__(self, spot: Spot, to: Stream[Item]) -> None:
        self.spot = spot
        self.writes = (to,)

    async def process_record(self, record: Record[Item], ctx: Context[None]) -> None:
        item, kind = record.value, self.spot.kind
        if kind == "wait" and item.number % 4 == 0:
            await asyncio.sleep(0)
        if kind == "count" and item.number % 2:
            ctx.count("odd")
        for each in outcome(kind, item):
            ctx.produce(self.writes[0], each)
        if kind == "fail" and item.number % 5 == 0:
            raise ValueError("a multiple of five")


class Note(Computation[Item, None]):
    """A row for everything of every stream."""

    writes = (TALLY,)

    async def process_record(self, record: Record[Item], ctx: Context[None]) -> None:
        ctx.produce(TALLY, Counted(f"{record.stream} {record.key}", record.value.number, 0))


def draw(seed: int) -> list[Spot]:
    chance = Random(seed)
    spots = []
    for number in range(chance.randrange(2, 7)):
        kind = chance.choice(KINDS)
        spots.append(
            Spot(
                kind,
                tuple(sorted(chance.sample(range(number + 1), chance.choice([1, 1, 1, 2]) % (number + 2) or 1))),
                chance.random() < 0.8,
                kind in ("count", "fail") or chance.random() < 0.8,
                chance.choice([0.02, 1.0]),
            )
        )  # fmt: skip
    return spots


def key_or_parity(item: Item) -> str:
    return "ab"[item.number % 2]


def built(spots: Sequence[Spot], values: Sequence[Item], settings: Settings) -> Pipeline:
    made = Pipeline("drawn", settings=settings)
    made.inject(ITEMS, script(ITEMS, values), timestamp=time_of)
    streams = [ITEMS, *(stream(n) for n in range(1, len(spots) + 1))]
    for number, spot in enumerate(spots):
        key = key_of if spot.by_key else key_or_parity
        made.add(
            Spotted(spot, streams[number + 1]),
            *(streams[n].by(key) for n in spot.reads),
            name=f"spot_{number}",
            productions="weak",
            exactly_once=spot.exactly_once,
            straggler_after=timedelta(seconds=spot.straggler_after),
            on_error="dead_letter",
        )
    made.add(Note(), *(s.by(key_of) for s in streams[1:]))
    made.sink(TALLY, Table("out", Counted, numbered=True))
    return made


def expected(spots: Sequence[Spot], values: Sequence[Item]) -> list[list[Item]]:
    """What is in each stream, whoever computes it."""
    streams = [list(values)]
    for spot in spots:
        given = [item for n in spot.reads for item in streams[n]]
        streams.append([each for item in given for each in outcome(spot.kind, item)])
    return streams


def check_drawn(world: World, spots: Sequence[Spot], values: Sequence[Item]) -> None:
    streams = expected(spots, values)
    wanted = Counter(
        (f"stream_{n} {item.key}", item.number)
        for n, items in enumerate(streams[1:], 1)
        for item in items
    )
    assert Counter((row[0], row[1]) for row in world.rows()) == wanted
    for number, spot in enumerate(spots):
        given = [item for n in spot.reads for item in streams[n]]
        if spot.kind == "count":
            odd = sum(item.number % 2 for item in given)
            assert world.counter(f"spot_{number}", "odd") == odd
    fives = [
        item.number
        for spot in spots
        if spot.kind == "fail"
        for n in spot.reads
        for item in streams[n]
        if item.number % 5 == 0
    ]
    assert len(world.letters()) == len(fives)
    assert world.store.pending_productions() == []


async def go_through(seed: int, crashes: int) -> None:
    chance = Random(seed)
    spots = draw(seed)
    values = [Item("ab"[n % 2], n + 1, n / 10) for n in range(10)]
    limits = replace(FEW, lanes=chance.choice([1, 2]), chunk_records=chance.choice([2, 50]))
    ids = []
    turns = {}
    for fuse in (True, False):
        pipeline = built(spots, values, replace(limits, fuse=fuse))
        world = World(pipeline)
        await world.run(tick=0.002, worker=str(UUID(int=1)))  # whose mark is in the ids
        check_drawn(world, spots, values)
        ids.append(seen_by(world, "note"))
        streams = expected(spots, values)
        for number, spot in enumerate(spots):
            given = sum(len(streams[n]) for n in spot.reads)
            assert world.counter(f"spot_{number}", "processed") == given
        turns[fuse] = await turns_of(pipeline)
    assert ids[0] == ids[1], "the same productions are called the same"
    for _ in range(crashes):
        fuse = chance.random() < 0.5
        world = World(built(spots, values, replace(limits, fuse=fuse)))
        for _ in range(chance.choice([1, 1, 2, 3])):
            engine = await world.start(inject_copies=chance.choice([1, 2]))
            await world.turns(chance.randrange(turns[fuse]), tick=chance.choice([0.001, 0.02]))
            await engine.kill()
            fuse = not fuse
            world.pipeline = built(spots, values, replace(limits, fuse=fuse))
        await world.run(tick=0.01)
        check_drawn(world, spots, values)


@given(seed=st.integers(0, 1 << 30))
@examples(18)
def test_any_graph_comes_to_the_same_whichever_form_runs_when(seed: int) -> None:
    asyncio.run(go_through(seed, 4))


@pytest.mark.soak
@given(seed=st.integers(0, 1 << 30))
@examples(1_500)
def test_any_graph_comes_to_the_same_for_long(seed: int) -> None:
    asyncio.run(go_through(seed, 12))


@pytest.mark.parametrize("fuse", [True, False])
async def test_a_crash_at_any_moment_and_the_other_form_then(fuse: bool) -> None:
    def made(fuse: bool) -> Pipeline:
        return chain(VALUES, replace(FEW, fuse=fuse), depth=3, straggler_after=0.05)

    turns = await turns_of(made(fuse))
    for point in range(0, turns, 7):
        world = World(made(fuse))
        first = await world.start()
        await world.turns(point, tick=0.005)
        await first.kill()
        world.pipeline = made(not fuse)
        await world.run(tick=0.005)
        assert_once(world, VALUES)
        assert world.store.pending_productions() == []


# -- time ---------------------------------------------------------------------------------------

PANES = Stream("panes", Pane[int])


def number_of(item: Item) -> int:
    return item.number


def windows(settings: Settings) -> Pipeline:
    """Items, in order, through a chain to sums of ten seconds; nothing is late."""
    made = Pipeline("windows", settings=settings)
    values: list[Any] = []
    for n in range(40):
        values.append(Item("ab"[n % 2], n, n))
        if n % 5 == 4:
            values.append(advance(ITEMS, at(n - 1)))
    values.append(advance(ITEMS, at(200)))
    made.inject(ITEMS, script(ITEMS, values), timestamp=time_of, lateness=timedelta(seconds=3))
    made.add(Relay(FIRST), ITEMS.by(key_of), name="first", productions="weak")
    made.add(Relay(SECOND), FIRST.by(key_of), name="second", productions="weak")
    made.add(Relay(stream(3)), SECOND.by(key_of), name="third", productions="weak")
    made.add(
        Windowed(Tumbling(seconds=10), total(number_of), to=PANES), stream(3).by(key_of), name="sum"
    )
    made.sink(PANES, Table("out", Counted, numbered=True), row=pane_row)
    return made


def pane_row(pane: Pane[int]) -> Counted:
    return Counted(str(pane.key), int(pane.start.timestamp()), pane.value)


async def test_windows_behind_a_fused_chain_lose_nothing() -> None:
    """I5: the low watermark waits for what a fused stage has made."""
    wanted = Counter(
        (key, int(at(start).timestamp()), sum(n for n in range(start, start + 10) if n % 2 == odd))
        for odd, key in enumerate("ab")
        for start in (0, 10, 20, 30)
    )

    def check(world: World) -> None:
        assert Counter((k, n, c) for k, n, c, *_ in world.rows()) == wanted
        assert world.counter("sum", "late_records") == 0

    for fuse in (True, False):
        settings = replace(FEW, fuse=fuse)
        world = World(windows(settings))
        await world.run()
        check(world)
        turns = await turns_of(windows(settings))
        for point in range(0, turns, 29):
            world = World(windows(settings))
            first = await world.start()
            await world.turns(point, tick=0.005)
            await first.kill()
            await world.run(tick=0.005)
            check(world)


async def test_the_watermark_is_held_by_what_a_fused_stage_has_made() -> None:
    gate = Gate()

    class Slow(Tally):
        async def process_record(self, record: Record[Item], ctx: Context[Any]) -> None:
            if record.value.number == 0:
                await gate.wait()
            await super().process_record(record, ctx)

    made = Pipeline("slow", settings=QUICK)
    made.inject(ITEMS, script(ITEMS, [Item("a", 0, 10), Item("b", 1, 50)]), timestamp=time_of)
    made.add(Relay(FIRST), ITEMS.by(key_of), name="first", productions="weak")
    made.add(Relay(SECOND), FIRST.by(key_of), name="second", productions="weak")
    made.add(Slow(), SECOND.by(key_of), name="tally")
    made.sink(TALLY, Table("out", Counted, numbered=True))
    world = World(made)
    engine = await world.start()
    await world.until(lambda: gate.reached and world.numbers() == [1])
    await world.turns(300, tick=0.05)  # long enough for the input to be noted, too

    def low(name: str) -> Any:
        return from_micros(min(i.durable for i in engine.intervals if i.step.name == name))

    assert low("first") == low("second") == low("tally") == at(10)
    gate.open()
    await world.finish(engine)
    assert low("tally") == at(50)


async def test_an_older_output_is_not_fused_where_it_could_not_be_held() -> None:
    """By what the second has promised itself it is on time, and so it must be for its readers."""
    gate = Gate()
    late: list[int] = []

    def back(item: Item, ctx: Context[None]) -> None:
        at_ = time_of(item) - timedelta(seconds=8 if item.number == 2 else 0)
        ctx.produce(SECOND, item, timestamp=at_)

    class Look(Tally):
        async def process_record(self, record: Record[Item], ctx: Context[Any]) -> None:
            if record.value.number == 1:
                await gate.wait()
            if record.timestamp < ctx.low_watermark:
                late.append(record.value.number)
            await super().process_record(record, ctx)

    made = Pipeline("back", settings=QUICK)
    source = script(ITEMS, [Item("c", 1, 10)])
    made.inject(ITEMS, source, timestamp=time_of)
    other = Stream("other_items", Item)
    silent = script(other, [], "other")
    made.inject(other, silent, timestamp=time_of)
    made.add(Relay(FIRST), ITEMS.by(key_of), name="first", productions="weak")
    made.add(
        Act(back, SECOND), FIRST.by(key_of), other.by(key_of), name="second", productions="weak"
    )
    made.add(Look(), SECOND.by(constantly), name="tally")
    made.sink(TALLY, Table("out", Counted, numbered=True))
    world = World(made)
    engine = await world.start()
    await world.until(lambda: gate.reached)

    def low(name: str) -> Any:
        return from_micros(min(i.durable for i in engine.intervals if i.step.name == name))

    await world.until(lambda: low("first") == at(10), tick=0.01)
    assert low("second") < at(0), "the other has said nothing"
    source.append(inject(ITEMS, Item("b", 2, 15)))  # comes out at 7 s, behind the one that waits
    read_on(engine)
    await world.turns(100, tick=0.01)
    silent.append(advance(other, at(60)))
    read_on(engine)
    await world.turns(100, tick=0.01)
    gate.open()
    await world.until(engine.done.is_set, tick=0.05)
    assert sorted(world.numbers()) == [1, 2]
    assert late == []
    await engine.stop()


@pytest.mark.parametrize("who", ["first", "second"])
async def test_an_older_output_of_a_fused_stage_holds_the_first_ones_watermark(who: str) -> None:
    """In whose log it will stand, whoever of the two waits after it."""
    gate = Gate()

    async def first(item: Item, ctx: Context[None]) -> None:
        ctx.produce(FIRST, item)
        if who == "first" and item.number == 2:
            await gate.wait()

    async def second(item: Item, ctx: Context[None]) -> None:
        if item.number == 1:
            ctx.produce(SECOND, item, timestamp=at(50))
            if who == "second":
                await gate.wait()

    source = script(ITEMS, [Item("a", 1, 100), Item("a", 2, 100)])
    made = Pipeline("older", settings=QUICK)
    made.inject(ITEMS, source, timestamp=time_of, lateness=timedelta(seconds=100))
    made.add(Act(first, FIRST), ITEMS.by(key_of), name="first", productions="weak")
    made.add(Act(second, SECOND), FIRST.by(key_of), name="second", productions="weak")
    made.add(Act(lambda i, c: c.produce(stream(3), i), stream(3)), SECOND.by(key_of))
    made.sink(stream(3), Table("out", Item, numbered=True))
    world = World(made)
    engine = await world.start()
    counts = sent_to(engine)
    await world.until(lambda: gate.reached)
    source.append(inject(ITEMS, Item("b", 3, 200)))
    read_on(engine)
    await world.turns(200, tick=0.01)
    assert from_micros(world.interval("first").durable) == at(50)
    gate.open()
    await world.finish(engine)
    assert counts["second"] == 0, "fused"
    assert world.numbers() == [1]
    assert {len(interval.holds) for interval in engine.intervals} == {0}
    assert from_micros(world.interval("first").durable) == at(100)


# -- one way at a time, end to end ------------------------------------------------------------


class Crossing:
    """Two streams meet in `second`, the one through `first`, and go on to a slow reader."""

    def __init__(self, first: Doing, second: Doing, last: Doing, **options: Any) -> None:
        self.made = Pipeline("crossing", settings=replace(QUICK, lanes=1))
        self.source = script(ITEMS, [])
        self.other = Stream("other_items", Item)
        self.others = script(self.other, [], "other")
        self.made.inject(ITEMS, self.source, timestamp=time_of)
        self.made.inject(self.other, self.others, timestamp=time_of)
        self.made.add(Act(first, FIRST), ITEMS.by(key_of), name="first", productions="weak")
        self.made.add(
            Act(second, SECOND),
            FIRST.by(key_of),
            self.other.by(key_of),
            name="second",
            productions="weak",
            **options,
        )
        self.made.add(Act(last, stream(3)), SECOND.by(key_of), name="last")
        self.made.sink(stream(3), Table("out", Item, numbered=True))
        self.world = World(self.made)

    async def start(self) -> Counter[str]:
        self.engine = await self.world.start()
        return sent_to(self.engine)

    async def come(self, *values: Item) -> None:
        for value in values:
            self.source.append(inject(ITEMS, value))
        read_on(self.engine)
        await self.world.turns(100)

    async def come_aside(self, *values: Item) -> None:
        for value in values:
            self.others.append(inject(self.other, value))
        read_on(self.engine)
        await self.world.turns(100)

    async def finish(self) -> list[int]:
        read_on(self.engine)
        await self.world.until(self.engine.done.is_set, tick=0.05)
        await self.engine.stop()
        return self.world.numbers()


async def test_nothing_is_fused_while_something_stored_is_on_its_way() -> None:
    """Behind a straggler of the second's own, its productions go by the same log."""
    gate = Gate()

    async def slow(item: Item, ctx: Context[None]) -> None:
        if item.number == 0:
            await gate.wait()
        ctx.produce(stream(3), item)

    crossing = Crossing(lambda i, c: c.produce(FIRST, i), pass_on, slow)
    counts = await crossing.start()
    world = crossing.world
    await crossing.come_aside(Item("a", 0))
    await world.until(lambda: any(c.stragglers for c in world.commits), tick=0.01)
    await crossing.come(Item("b", 1))
    assert counts["second"] == 1, "not fused"
    gate.open()
    await world.until(lambda: not world.store.pending_productions(), tick=0.01)
    await crossing.come(Item("b", 2))
    assert counts["second"] == 1, "fused"
    assert sorted(await crossing.finish()) == [0, 1, 2]


async def test_a_record_does_not_overtake_one_that_is_not_sent_yet() -> None:
    """The second is busy with the key at the one, and not at the next of the same run."""
    first_gate, second_gate = Gate(), Gate()
    order: list[int] = []

    async def first(item: Item, ctx: Context[None]) -> None:
        ctx.produce(FIRST, item)
        if item.number == 2:
            await first_gate.wait()

    async def second(item: Item, ctx: Context[None]) -> None:
        if item.number == 100:
            await second_gate.wait()
        order.append(item.number)
        ctx.produce(SECOND, item)

    crossing = Crossing(first, second, lambda i, c: c.produce(stream(3), i))
    await crossing.start()
    await crossing.come_aside(Item("a", 100))
    assert second_gate.reached
    await crossing.come(Item("a", 1), Item("a", 2), Item("a", 3))
    assert first_gate.reached
    second_gate.open()
    await crossing.world.turns(100)
    first_gate.open()
    assert await crossing.finish() == [100, 1, 2, 3]
    assert order == [100, 1, 2, 3]


async def test_a_key_that_takes_the_queue_does_not_take_the_next_one_along() -> None:
    """Of two keys that run one after the other, the second stage is busy with the first one."""
    gate = Gate()

    async def second(item: Item, ctx: Context[None]) -> None:
        if item.number == 100:
            await gate.wait()
        ctx.produce(SECOND, item)

    crossing = Crossing(
        lambda i, c: c.produce(FIRST, i), second, lambda i, c: c.produce(stream(3), i)
    )
    counts = await crossing.start()
    await crossing.come_aside(Item("a", 100))
    assert gate.reached
    await crossing.come(Item("a", 1), Item("b", 2))
    assert counts["second"] == 1, "b is fused"
    gate.open()
    assert sorted(await crossing.finish()) == [1, 2, 100]


@pytest.mark.parametrize("how", ["fails", "wants something stored"])
async def test_a_key_is_not_overtaken_when_another_ends_the_fusion(how: str) -> None:
    """I14: what was fused of it is on its way, and what is made by the queue comes by another log."""
    gate = Gate()
    made: list[int] = []

    async def second(item: Item, ctx: Context[None]) -> None:
        if item.key == "bad" and how == "fails":
            raise ValueError("on purpose")
        if item.key == "bad":
            ctx.count("bad")
        made.append(item.number)
        ctx.produce(SECOND, item)

    async def slow(item: Item, ctx: Context[None]) -> None:
        if item.number == 1:
            await gate.wait()
        ctx.produce(stream(3), item)

    crossing = Crossing(
        lambda i, c: c.produce(FIRST, i), second, slow, on_error="dead_letter", retries=0
    )
    counts = await crossing.start()
    await crossing.come(Item("a", 1), Item("c", 2))
    assert gate.reached
    assert counts["second"] == 0, "fused"
    await crossing.come(Item("bad", 3))
    await crossing.come(Item("d", 5), Item("a", 4))
    await crossing.come(Item("a", 6))
    assert counts["second"] == 2, "the bad one, and that of a key of which nothing is on its way"
    assert {4, 6}.isdisjoint(made)
    gate.open()
    await crossing.world.turns(200, tick=0.01)
    await crossing.come(Item("a", 7))
    numbers = await crossing.finish()
    assert [n for n in numbers if n in (1, 4, 6, 7)] == [1, 4, 6, 7]
    assert sorted(n for n in made if n != 3) == [1, 2, 4, 5, 6, 7]
    assert crossing.engine.fusion.passing(crossing.world.interval("first")) is None, "it is over"


async def test_what_was_fused_in_a_run_is_not_overtaken_by_the_rest_of_it() -> None:
    """The fusion ends in between, by another key."""
    gate, last_gate = Gate(), Gate()

    async def first(item: Item, ctx: Context[None]) -> None:
        ctx.produce(FIRST, item)
        if item.number == 2:
            await gate.wait()

    def second(item: Item, ctx: Context[None]) -> None:
        if item.key == "bad":
            ctx.count("bad")
        ctx.produce(SECOND, item)

    async def slow(item: Item, ctx: Context[None]) -> None:
        await last_gate.wait()
        ctx.produce(stream(3), item)

    crossing = Crossing(first, second, slow)
    counts = await crossing.start()
    await crossing.come(Item("a", 1), Item("a", 2), Item("a", 3))
    assert gate.reached
    await crossing.come(Item("bad", 4))
    gate.open()
    await crossing.world.turns(100)
    assert counts["second"] == 1, "the bad one"
    last_gate.open()
    assert [n for n in await crossing.finish() if n != 4] == [1, 2, 3]


async def test_what_comes_for_a_key_that_runs_fused_waits_for_it() -> None:
    gate = Gate()
    running: Counter[str] = Counter()

    async def second(item: Item, ctx: Context[None]) -> None:
        running[item.key] += 1
        assert running[item.key] == 1, "two records of one key at once"
        if item.number == 1:
            await gate.wait()
        running[item.key] -= 1
        ctx.produce(SECOND, item)

    crossing = Crossing(
        lambda i, c: c.produce(FIRST, i), second, lambda i, c: c.produce(stream(3), i)
    )
    counts = await crossing.start()
    await crossing.come(Item("a", 1))
    assert gate.reached
    await crossing.come_aside(Item("a", 100), Item("b", 101))
    assert crossing.world.numbers() == [101]
    gate.open()
    assert sorted(await crossing.finish()) == [1, 100, 101]
    assert counts["second"] == 0
