"""Exactly once, whatever happens: I1, I2 and I14 through faults at random commits.

Two steps in a row, a plain state and a map, watermark timers that produce; stores that
fail, connections that break, engines that crash, are taken over and go on as zombies.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from millwheel import Computation, Context, Pipeline, Record, Stream, Table
from millwheel.errors import StatementError, StoreUnavailable, UserCodeError
from millwheel.store.port.commit import Commit
from millwheel.testing import advance, assert_exactly_once, inject
from tests.support.examples import examples
from tests.support.fault_plans import FAULTS, PASSED, RINGS, Plan, run_plan, two_steps, with_ids
from tests.support.pipelines import QUICK, Broken, Do, Kept, doing, produce, script, tally_pipeline
from tests.support.values import ITEMS, TALLY, Counted, Item, at, items, key_of, tally_of, time_of
from tests.support.worlds import Gate, World, fail_once, read_on


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    limits = replace(
        QUICK,
        intervals=draw(st.integers(1, 3)),
        chunk_records=draw(st.sampled_from([1, 2, 7, 100])),
        bundle_records=draw(st.sampled_from([1, 3, 20, 1000])),
        max_unacked_records=draw(st.sampled_from([1, 5, 30, 1000])),
        cache_bytes=draw(st.sampled_from([0, 5_000, 1 << 20])),
        eager_entries=draw(st.sampled_from([1, 4, 64])),
        max_acked_runs=draw(st.sampled_from([0, 2, 64])),
        timers_in_memory=draw(st.sampled_from([1, 3, 1000])),
        filter_capacity=draw(st.sampled_from([1, 50, 1000])),
        fold_seconds=draw(st.sampled_from([0.1, 2.0])),
        bucket_seconds=draw(st.sampled_from([2.0, 120.0])),
        source_bucket_rows=draw(st.sampled_from([100, 250_000])),
        housekeeping_seconds=0.1,
    )
    keys = draw(st.integers(1, 5))
    count = draw(st.integers(1, 40))
    seconds = draw(st.lists(st.integers(0, 60), min_size=count, max_size=count))
    values = [Item("abcde"[n % keys], n, second) for n, second in enumerate(seconds)]
    faults = draw(st.dictionaries(st.integers(0, 40), st.sampled_from(FAULTS), max_size=6))
    return Plan(limits, values, faults, draw(st.integers(1, 2)))


def check_two_steps(world: World, plan: Plan) -> None:
    values = plan.values
    assert world.tallied() == tally_of(values)
    rings = Counter((key, number, count) for key, number, count, *_ in world.rows("rings"))
    assert rings == Counter((v.key, v.number, 1) for v in values)
    for key in {v.key for v in values}:
        numbers = [v.number for v in values if v.key == key]
        found = world.state("pass", key)
        assert found[""] == {"count": len(numbers)}
        assert {e: n for e, n in found.items() if e.startswith("numbers/")} == {
            f"numbers/{n}": 1 for n in numbers
        }
        assert [n for e, n in sorted(found.items()) if e.startswith("last/0")] == numbers[-3:]
    assert world.store.timers() == []
    assert world.store.pending_productions() == []
    assert world.store.dead_letters == []


@settings(
    max_examples=examples(50),
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)
@given(plans())
def test_effects_happen_once_and_in_order_through_any_faults(plan: Plan) -> None:
    """I1, I2, I12, I14: counts per key are 1..n in the sender's order; nothing is left over."""

    async def go() -> None:
        world = await run_plan(plan)
        check_two_steps(world, plan)

    asyncio.run(go())


# -- the traps of dedup and of user code that fails, by name (I2) ---------------------------


async def test_the_testing_kit_agrees() -> None:
    values = [Item("ab"[n % 2], n, float(n)) for n in range(8)]
    expected = [Counted(v.key, v.number, n // 2 + 1) for n, v in enumerate(values)]
    steps = [inject(ITEMS, value) for value in values]
    rings = [Counted(v.key, v.number, 1) for v in values]
    await assert_exactly_once(
        two_steps([], QUICK),
        [*steps, advance(ITEMS, at(100))],
        {PASSED: values, TALLY: expected, RINGS: rings},
    )


async def test_the_testing_kit_compares_values_not_their_spelling() -> None:
    """An int where the type says float is the same value, and the same JSON once it is stored."""
    steps = [inject(ITEMS, Item("a", 1, 5))]
    await assert_exactly_once(two_steps([], QUICK), steps, {PASSED: [Item("a", 1, 5)]})


async def test_a_duplicate_of_an_uncommitted_record_joins_its_commit() -> None:
    """It is never run, and its sender hears of it only when the first copy is durable."""
    ran: list[int] = []
    gate = Gate()

    async def do(record: Record[Item], ctx: Context[Kept]) -> None:
        ran.append(record.value.number)
        produce(ctx, record.value.number)

    source = script(ITEMS, items(1))
    pipeline = Pipeline("doing", settings=QUICK)
    pipeline.inject(ITEMS, source, timestamp=time_of, id=lambda item: item.number)
    pipeline.add(Do(do), ITEMS.by(key_of))
    pipeline.sink(TALLY, Table("out", Counted, numbered=True))
    world = World(pipeline)
    engine = await world.start()
    await world.until(engine.done.is_set)
    world.on_try = lambda commit: gate.wait() if commit.seen else None
    source.append(inject(ITEMS, Item("a", 2)))
    source.append(inject(ITEMS, Item("a", 2)))
    read_on(engine)
    await world.until(lambda: gate.reached)
    source.append(inject(ITEMS, Item("a", 2)))
    read_on(engine)
    await world.turns()
    log = world.interval("items_injector").log
    assert (log.first, log.unacked) == (1, 3), "nothing is acknowledged before the commit"
    gate.open()
    await world.finish(engine)
    assert ran == [1, 2]
    assert world.numbers() == [1, 2]
    assert log.first == 4
    assert world.counter("items_by_id", "duplicates_dropped") == 2


async def test_every_record_twice_is_dropped_and_counted_once() -> None:
    values = [Item("abc"[n % 3], n, n) for n in range(40)]
    world = World(tally_pipeline(script(ITEMS, values)))
    await world.run(inject_copies=2)
    assert world.tallied() == tally_of(values)
    assert world.counter("tally", "duplicates_dropped") == len(values)


async def test_a_resend_is_counted_as_one_duplicate() -> None:
    """Also when it comes twice, and the table must tell that it was seen."""
    values = items(*range(4))
    world = World(tally_pipeline(script(ITEMS, values)))
    first = await world.start()
    world.on_durable = lambda commit: Gate().wait() if commit.seen else None
    await world.until(lambda: world.tallied())
    await first.kill()
    world.on_durable = None
    await world.run(inject_copies=2)
    assert world.tallied() == tally_of(values)
    assert world.counter("tally", "duplicates_dropped") == 2 * len(values)


async def test_a_filter_not_yet_rebuilt_answers_maybe() -> None:
    """Ids of an inherited bucket are looked up in the table until its filter is filled."""
    values = items(*range(20))
    world = World(tally_pipeline(script(ITEMS, values)))
    first = await world.start()
    world.on_durable = lambda commit: Gate().wait() if commit.seen else None
    await world.until(lambda: world.tallied())
    await first.kill()
    world.on_durable = None

    async def never(name: str) -> None:
        if name == "newest_seen":
            await Gate().wait()

    world.store.faults.before_call = never
    engine = await world.start()
    await world.until(engine.done.is_set)
    assert world.tallied() == tally_of(values)
    assert world.counter("tally", "bloom_maybes") == len(values)
    await world.close()


async def touch_everything(number: int, ctx: Context[Kept]) -> None:
    state = ctx.state
    state.count += number
    state.numbers.append(number)
    state.marks.put("sum", (await state.marks.get("sum") or 0) + number)
    state.marks.put(f"mark {number}", number)
    state.marks.remove(f"mark {number - 1}")
    await state.queue.append(number)
    if await state.queue.length() > 2:
        await state.queue.pop_first()
    ctx.set_timer(at(1000 + number), tag=str(number))
    ctx.execute("INSERT INTO anything VALUES (%s)", (number,))
    ctx.count("touched")
    produce(ctx, number, state.count)


def check_touched(world: World, numbers: list[int]) -> None:
    """State, timers, statements, counters and rows are what these numbers alone make."""
    found = world.state("do", "a")
    assert found[""] == {"count": sum(numbers), "numbers": numbers}
    assert found['marks/"sum"'] == sum(numbers)
    marks = {n for n in numbers if n + 1 not in numbers}
    assert {e for e in found if e.startswith('marks/"mark')} == {f'marks/"mark {n}"' for n in marks}
    assert [v for e, v in sorted(found.items()) if e.startswith("queue/0")] == numbers[-2:]
    assert [timer.tag for timer in world.store.timers()] == [str(n) for n in sorted(numbers)]
    assert [params for _, params in world.store.statements] == [(n,) for n in numbers]
    assert world.counter("do", "touched") == len(numbers)
    assert [row[1:3] for row in world.rows()] == [
        (n, sum(numbers[: i + 1])) for i, n in enumerate(numbers)
    ]


FAILURES: list[BaseException] = [
    Broken("on purpose"),
    asyncio.CancelledError(),
    TimeoutError(),
    UserCodeError("nested"),
    SystemExit(3),
    KeyboardInterrupt(),
    BaseException("of a kind of its own"),
]


@pytest.mark.parametrize("error", FAILURES, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("chunk", [1, 100])
async def test_code_that_mutates_and_raises_leaves_everything_as_it_was(
    error: BaseException, chunk: int
) -> None:
    """Also for the second and fourth of four records of one key in one bundle."""

    async def do(record: Record[Item], ctx: Context[Kept]) -> None:
        await touch_everything(record.value.number, ctx)
        if record.value.number % 2 == 0:
            raise error

    limits = replace(QUICK, chunk_records=chunk)
    world = World(doing(items(1, 2, 3, 4, 5), do, settings=limits, on_error="dead_letter"))
    await world.run()
    check_touched(world, [1, 3, 5])
    assert [msgspec.json.decode(v)["number"] for v, _ in world.letters()] == [2, 4]
    assert all(type(error).__name__ in text for _, text in world.letters())


async def test_code_that_is_cancelled_leaves_everything_as_it_was() -> None:
    """The lane starts over while a record waits in user code: it runs again, from scratch."""
    gate = Gate()

    async def do(record: Record[Item], ctx: Context[Kept]) -> None:
        await touch_everything(record.value.number, ctx)
        if record.value.key == "a" and record.value.number == 2:
            await gate.wait()

    source = script(ITEMS, items(1, 2, 3))
    world = World(doing(source, do))
    engine = await world.start()
    await world.until(lambda: gate.reached)
    fail_once(world, 1, StoreUnavailable("away"))
    world.interval("do").touch(urgent=True)
    await world.until(lambda: gate.reached == 2, tick=0.05)
    gate.open()
    await world.finish(engine)
    check_touched(world, [1, 2, 3])


async def test_code_that_swallows_its_cancellation_is_run_again_all_the_same() -> None:
    gate = Gate()

    async def do(record: Record[Item], ctx: Context[Kept]) -> None:
        await touch_everything(record.value.number, ctx)
        try:
            await gate.wait()
        except asyncio.CancelledError:
            ctx.state.count += 1000

    world = World(doing(items(1), do))
    engine = await world.start()
    await world.until(lambda: gate.reached)
    fail_once(world, 1, StoreUnavailable("away"))
    world.interval("do").touch(urgent=True)
    await world.until(lambda: gate.reached == 2, tick=0.05)
    gate.open()
    await world.finish(engine)
    check_touched(world, [1])


async def test_a_retry_that_succeeds_leaves_one_effect() -> None:
    tries: list[int] = []

    async def do(record: Record[Item], ctx: Context[Kept]) -> None:
        await touch_everything(record.value.number, ctx)
        tries.append(record.value.number)
        if record.value.number == 2 and tries.count(2) < 4:
            raise Broken("not yet")

    world = World(doing(items(1, 2, 3), do, retries=2))
    await world.run()
    check_touched(world, [1, 2, 3])


async def test_on_error_fail_names_the_record_and_commits_nothing_of_it() -> None:
    async def do(record: Record[Item], ctx: Context[Kept]) -> None:
        await touch_everything(record.value.number, ctx)
        if record.value.number == 3:
            raise Broken("third")

    world = World(doing(items(1, 2, 3, 4), do))
    engine = await world.start()
    with pytest.raises(UserCodeError, match=r"'do' failed on a record of stream 'items', key 'a'"):
        await world.until(engine.done.is_set)
    await engine.stop()
    assert world.numbers() in ([], [1, 2])
    # The code is mended and started again: the rest happens, once.
    healed = doing(
        items(1, 2, 3, 4), lambda record, ctx: touch_everything(record.value.number, ctx)
    )
    world.pipeline = healed
    await world.run()
    check_touched(world, [1, 2, 3, 4])


class Box(msgspec.Struct):
    """A value that can be changed."""

    key: str
    number: int


@pytest.mark.parametrize("why", ["the store is away", "the code fails", "the store says no"])
@pytest.mark.parametrize("intervals", [1, 2])
async def test_code_that_changes_its_input_sees_the_original_when_it_runs_again(
    why: str, intervals: int
) -> None:
    """User code may run more than once; what it did to the value it was given is no effect. With
    two lanes its record is not read again, but queued again where it is."""
    boxes = Stream("boxes", Box)
    failed: list[int] = []

    class Spoil(Computation[Box, None]):
        writes = (TALLY,)

        async def process_record(self, record: Record[Box], ctx: Context[None]) -> None:
            record.value.number += 1
            ctx.produce(TALLY, Counted(record.value.key, record.value.number, 0))
            if why == "the code fails" and not failed:
                failed.append(1)
                raise ValueError("once")

    pipeline = Pipeline("boxes", settings=replace(QUICK, intervals=intervals))
    pipeline.inject(boxes, script(boxes, [Box("a", 0)]), timestamp=lambda box: at(0))
    pipeline.add(Spoil(), boxes.by(lambda box: box.key), retries=1)
    pipeline.sink(TALLY, Table("out", Counted, numbered=True))
    world = World(pipeline)

    def refuse(commit: Commit) -> None:
        if commit.seen and not failed:
            failed.append(1)
            raise StatementError("no") if why == "the store says no" else StoreUnavailable("away")

    world.on_try = refuse
    await world.run()
    assert failed
    assert world.numbers() == [1]


# -- user-supplied ids -----------------------------------------------------------------------


@pytest.mark.parametrize("intervals", [1, 2])
async def test_ids_count_across_sources_and_restarts_whatever_the_key(intervals: int) -> None:
    limits = replace(QUICK, intervals=intervals)
    one = script(ITEMS, [Item("a", n) for n in range(10)], "one")
    two = script(ITEMS, [Item("b", n) for n in range(5, 15)], "two")
    world = World(with_ids([one, two], limits))
    await world.run()
    assert sorted(row[1] for row in world.rows()) == list(range(15))
    for source in (one, two):
        for number in (0, 7, 14, 20):
            source.append(inject(ITEMS, Item("c", number)))
    await world.run()
    await world.run(inject_copies=2)
    assert sorted(row[1] for row in world.rows()) == [*range(15), 20]


async def test_ids_are_kept_over_buckets_until_their_time_is_over() -> None:
    limits = replace(
        QUICK,
        id_bucket_seconds=10.0,
        id_retention_seconds=60.0,
        bucket_seconds=8.0,
        fold_seconds=0.1,
    )
    source = script(ITEMS, items(1), "one")
    world = World(with_ids([source], limits))
    engine = await world.start()
    await world.until(engine.done.is_set)

    async def again(number: int) -> None:
        source.append(inject(ITEMS, Item("a", number)))
        read_on(engine)
        await world.until(engine.done.is_set)

    for _ in range(5):
        await world.turns(20, tick=0.5)
        await again(1)
        assert world.numbers() == [1]
    await world.turns(400, tick=0.5)
    await again(1)
    assert world.numbers() == [1, 1], "after its time an id may come again"
    await engine.stop()


@settings(max_examples=examples(20), deadline=None, derandomize=True)
@given(
    st.lists(st.tuples(st.integers(0, 1), st.integers(0, 9)), min_size=1, max_size=40),
    st.dictionaries(st.integers(0, 25), st.sampled_from(FAULTS[:5]), max_size=4),
    st.integers(1, 2),
)
def test_ids_count_once_through_any_faults(
    arrivals: list[tuple[int, int]], faults: dict[int, str], intervals: int
) -> None:
    scripts = [
        script(ITEMS, [Item("abc"[n % 3], n) for at_, n in arrivals if at_ == which], f"s{which}")
        for which in (0, 1)
    ]
    limits = replace(QUICK, intervals=intervals, chunk_records=2, bundle_records=3)
    plan = Plan(limits, [], faults, 1)

    async def go() -> None:
        world = await run_plan(plan, lambda values, chosen: with_ids(scripts, chosen))
        assert sorted(row[1] for row in world.rows()) == sorted({n for _, n in arrivals})

    asyncio.run(go())


async def test_a_log_that_is_retired_while_its_lane_starts_over_is_acknowledged_once_more() -> None:
    """The commit that carries its last ACK fails while housekeeping retires it: it is sent again,
    and must not hold the watermark for ever."""
    values = [Item("a", n, n) for n in range(5)]
    limits = replace(QUICK, housekeeping_seconds=0.05)
    world = World(two_steps(values, limits))
    first = await world.start()
    world.on_durable = lambda commit: Gate().wait() if commit.productions else None
    await world.until(lambda: any(commit.productions for commit in world.commits))
    await first.kill()
    world.on_durable = None
    retiring, restored = asyncio.Event(), asyncio.Event()

    def is_drained() -> bool:
        inherited, *more = world.interval("pass").logs
        return bool(more) and inherited.drained and not inherited.changed

    async def refuse(commit: Commit) -> None:
        if is_drained() and not restored.is_set():
            await retiring.wait()
            raise StoreUnavailable("away")

    async def called(name: str) -> None:
        if name == "retire_logs" and is_drained() and not retiring.is_set():
            retiring.set()
            await restored.wait()
        elif name == "read_productions" and retiring.is_set():
            restored.set()

    engine = await world.start()
    world.on_try = refuse
    world.store.faults.before_call = called
    await world.finish(engine)
    assert restored.is_set()
    check_two_steps(world, Plan(limits, values, {}))
