"""Bounds: credits hold back whoever sends, the cache stays small, big state costs what is
touched."""

from __future__ import annotations

import asyncio
import tracemalloc
from collections.abc import Callable, Iterable
from dataclasses import replace
from random import Random
from typing import Any

import msgspec
import pytest

from millwheel import Computation, Context, ListState, MapState, Pipeline, Record, Stream, Table
from millwheel.core.codec import encode_key
from millwheel.errors import CommitUnknown
from millwheel.runtime.interval.interval_fold import fold
from millwheel.runtime.keys.key_state import StateCache
from millwheel.runtime.keys.map_entries import CELL_BYTES, Entries
from millwheel.runtime.lane.sorting import AHEAD_SHARE
from millwheel.state import StateLayout
from millwheel.store.memory.tables import changes_of
from millwheel.store.port.commit import Commit
from millwheel.testing import inject
from tests.support.pipelines import QUICK, Kept, Tally, doing, produce, script, tally_pipeline
from tests.support.values import ITEMS, TALLY, Counted, Item, items, key_of, tally_of, time_of
from tests.support.worlds import Gate, World, read_on

NEXT = Stream("next", Counted)


class Slow(Computation[Counted, None]):
    """A consumer that waits."""

    writes = (NEXT,)

    def __init__(self, gate: Gate, only: int | None = None) -> None:
        self._gate = gate
        self._only = only

    async def process_record(self, record: Record[Counted], ctx: Context[None]) -> None:
        if self._only in (None, record.value.number):
            await self._gate.wait()
        ctx.produce(NEXT, record.value)


async def test_a_consumer_that_waits_holds_back_the_injector() -> None:
    """I8: through two steps; nobody piles up more than the credits of one log and a chunk."""
    gate = Gate()
    values = [Item("a", n) for n in range(2000)]
    limits = replace(QUICK, max_unacked_records=40, chunk_records=10, bundle_records=10)
    pipeline = Pipeline("credits", settings=limits)
    pipeline.inject(ITEMS, script(ITEMS, values), timestamp=time_of)
    pipeline.add(Tally(), ITEMS.by(key_of))
    pipeline.add(Slow(gate), TALLY.by(lambda counted: counted.key))
    pipeline.sink(NEXT, Table("out", Counted, numbered=True))
    world = World(pipeline)
    engine = await world.start()
    await world.until(lambda: gate.reached)
    await world.turns(500)
    assert engine.injectors[0].rows <= 2 * (40 + 10) + 10
    assert all(log.unacked <= 40 + 10 for log, _ in engine.exchange.logs.values())
    assert sum(len(i.intake) for i in engine.intervals) <= 2 * 60
    gate.open()
    await world.finish(engine)
    assert world.tallied() == tally_of(values)


async def test_bytes_count_against_the_credits_too() -> None:
    gate = Gate()
    texts = Stream("texts", str)

    class Widen(Computation[Item, None]):
        writes = (texts,)

        async def process_record(self, record: Record[Item], ctx: Context[None]) -> None:
            ctx.produce(texts, "x" * 10_000)

    class Wait(Computation[str, None]):
        async def process_record(self, record: Record[str], ctx: Context[None]) -> None:
            await gate.wait()

    limits = replace(QUICK, max_unacked_bytes=50_000, chunk_records=2, bundle_records=2)
    pipeline = Pipeline("bytes", settings=limits)
    pipeline.inject(ITEMS, script(ITEMS, items(*range(500))), timestamp=time_of)
    pipeline.add(Widen(), ITEMS.by(key_of))
    pipeline.add(Wait(), texts.by(lambda text: text[:5]))
    world = World(pipeline)
    engine = await world.start()
    await world.until(lambda: gate.reached)
    await world.turns(300)
    assert max(log.unacked_bytes for log, _ in engine.exchange.logs.values()) <= 50_000 + 5 * 10_000
    gate.open()
    await world.finish(engine)


@pytest.mark.parametrize("where", ["source", "log"])
async def test_one_record_that_waits_bounds_what_may_lie_past_it(where: str) -> None:
    """I8: at most `max_unacked` may lie past the acknowledged prefix; else what must
    be remembered of it, and be sent again after a crash, grows without bound."""
    gate = Gate()
    values = [Item(f"key {n}", n) for n in range(2000)]
    limits = replace(QUICK, max_unacked_records=50, chunk_records=10, bundle_records=10)
    pipeline = Pipeline("prefix", settings=limits)
    pipeline.inject(ITEMS, script(ITEMS, values), timestamp=time_of)
    if where == "source":

        async def do(record: Record[Item], ctx: Context[Kept]) -> None:
            if record.value.number == 3:
                await gate.wait()

        pipeline = doing(values, do, settings=limits)
    else:
        pipeline.add(Tally(), ITEMS.by(key_of))
        pipeline.add(Slow(gate, only=3), TALLY.by(lambda counted: counted.key))
        pipeline.sink(NEXT, Table("out", Counted, numbered=True))
    world = World(pipeline)
    engine = await world.start()
    await world.until(lambda: gate.reached)
    await world.turns(2000)
    past = max(log.next_seq - log.first for log, _ in engine.exchange.logs.values())
    assert past <= 50 + 10, f"{past} records lie past the one that waits"
    gate.open()
    await world.finish(engine)


async def test_repeated_failures_do_not_pile_up_copies_in_the_queues() -> None:
    """Each new start of a lane sends again what is un-ACKed; the copies from before must go."""
    values = items(*range(40))
    limits = replace(QUICK, chunk_records=1, store_patience_seconds=3600)
    world = World(tally_pipeline(script(ITEMS, values), limits))
    longest = 0

    def refuse(commit: Commit) -> None:
        nonlocal longest
        queues = [len(interval.intake) for interval in world.engines[-1].intervals]
        longest = max(longest, *queues)
        if world.tried < 60 and commit.seen:
            raise CommitUnknown("lost")

    world.on_try = refuse
    await world.run()
    assert world.tallied() == tally_of(values)
    assert longest <= 4 * len(values)


# -- the cache ------------------------------------------------------------------------------


async def remember(record: Record[Item], ctx: Context[Kept]) -> None:
    state, number = ctx.state, record.value.number
    state.count += 1
    marks = await state.marks.get("n") or 0
    state.marks.put("n", marks + 1)
    await state.queue.append(number)
    if await state.queue.length() > 2:
        await state.queue.pop_first()
    assert state.count == marks + 1, "plain state and map went apart"
    produce(ctx, number, state.count)


@pytest.mark.parametrize("cache_bytes", [0, 2_000, 1 << 20])
@pytest.mark.parametrize("fold_seconds", [0.05, 1.0, 1e9])
async def test_a_tiny_cache_changes_nothing(cache_bytes: int, fold_seconds: float) -> None:
    """Also where nothing is ever folded: what is not folded is never evicted."""
    values = [Item(f"key {(n * 7) % 23}", n) for n in range(400)]
    limits = replace(
        QUICK,
        cache_bytes=cache_bytes,
        fold_seconds=fold_seconds,
        housekeeping_seconds=0.05,
        chunk_records=3,
        bundle_records=7,
        eager_entries=2,
        max_unacked_records=20,
    )
    world = World(doing(values, remember, settings=limits))
    await world.run(tick=0.01)
    assert world.tallied() == tally_of(values)
    for key in {v.key for v in values}:
        numbers = [v.number for v in values if v.key == key]
        found = world.state("do", key)
        assert found['marks/"n"'] == len(numbers)
        assert [v for e, v in sorted(found.items()) if e.startswith("queue/0")] == numbers[-2:]


async def test_the_cache_stays_within_its_bytes_once_folded() -> None:
    values = [Item(f"key {n}", n) for n in range(3000)]
    limits = replace(
        QUICK, cache_bytes=60_000, fold_seconds=0.05, housekeeping_seconds=0.05, bundle_records=50,
        chunk_records=50, max_unacked_records=100,
    )  # fmt: skip
    world = World(doing(values, remember, settings=limits))
    sizes: list[int] = []

    def watch(commit: Commit) -> None:
        caches = [i.states for i in world.engines[-1].intervals if i.states is not None]
        sizes.append(sum(cache.size for cache in caches))

    world.on_durable = watch
    engine = await world.run(tick=0.05)
    cache = world.interval("do").states
    assert cache.size == sum(state.size for state in cache._keys.values())
    assert all(state.size >= 0 for state in cache._keys.values())
    assert max(sizes) < 60_000 + 300_000, "the bound and what was not folded yet"
    assert sizes[-1] <= 60_000 + 200_000
    await engine.kill()


class Total(msgspec.Struct):
    """State without collections."""

    count: int = 0


def a_cache(state_type: Any) -> StateCache:
    async def nothing(*_: Any) -> Any:
        raise AssertionError("all is in memory")

    layout: StateLayout[Any] = StateLayout(state_type, owner="a test", limit=1 << 20)
    return StateCache(
        layout,
        what="a test",
        version=1,
        migrations={},
        entry_migrations={},
        fetch_entry=nothing,
        scan_entries=nothing,
    )


def fill(cache: StateCache, numbers: Iterable[int], entries: int = 0) -> None:
    """Keys as they are once their records have run, and have been folded."""
    for number in numbers:
        state = cache.get(number, *encode_key(number))
        if not state.loaded:
            plain = b'{"count":1000,"numbers":[]}'
            rows = [(f'marks/"{number} {mark}"', b"%d" % number, 1) for mark in range(entries)]
            state.fill([("", plain, 1), *rows], complete=True)
        state.open_state()
        state.capture(1)
    cache.folded = 1


@pytest.mark.parametrize(
    ("state_type", "entries"), [(Total, 0), (Kept, 0), (Kept, 1), (Kept, 10), (Kept, 100)]
)
def test_the_cache_occupies_about_what_it_says(state_type: Any, entries: int) -> None:
    cache = a_cache(state_type)
    tracemalloc.start()
    try:
        fill(cache, range(1000, 3000), entries)
        occupied = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert 0.8 < occupied / cache.size < 1.25


def test_an_eviction_looks_at_no_more_than_what_has_come() -> None:
    """Else each commit would wait for it, the longer the more there is in memory."""
    cache = a_cache(Total)
    fill(cache, range(20_000))
    looked = 0

    def keep(_: bytes) -> bool:
        nonlocal looked
        looked += 1
        return True

    cache.evict(0, keep)
    looked = 0
    for number in range(100):
        fill(cache, [20_000 + number])
        cache.evict(0, keep)
    assert 100 < looked < 100 * 100


def test_a_full_cache_stays_full_of_the_frequent_keys() -> None:
    cache, limit = a_cache(Total), 1000 * 500
    chance = Random(1)
    missed = 0
    for number in range(1, 60_001):
        key = int(10_001 ** chance.random())  # the k-th comes about 1/k as often as the first
        before = len(cache)
        fill(cache, [key])
        missed += len(cache) > before
        if number % 200 == 0:
            cache.evict(limit, lambda _: False)
            assert cache.size <= 1.1 * limit
    assert cache.size >= 0.8 * limit
    assert missed / 60_000 < 0.35, "a cache that knew all would miss a quarter"


@pytest.mark.parametrize("cache_bytes", [0, 1 << 30])
async def test_states_of_records_behind_are_loaded_with_the_missing_ones(cache_bytes: int) -> None:
    """So that not every chunk waits for the store; also if they are forgotten while they are
    loaded."""
    values = [Item(f"key {n % 500}", n) for n in range(2000)]
    limits = replace(QUICK, cache_bytes=cache_bytes, chunk_records=10, bundle_records=50,
                     max_unacked_records=1000, fold_seconds=0.05,
                     housekeeping_seconds=0.05)  # fmt: skip
    source = script(ITEMS, values[:1000])
    world = World(doing(source, remember, settings=limits))
    await world.run()
    loads = 0

    async def slow(name: str) -> None:
        nonlocal loads
        if name == "load_keys":
            loads += 1
            await world.clock.sleep(0.02)

    world.store.faults.before_call = slow
    for value in values[1000:]:
        source.append(inject(ITEMS, value))
    engine = await world.run(tick=0.005)
    assert world.tallied() == tally_of(values)
    cache = world.interval("do").states
    assert cache.size == sum(state.size for state in cache._keys.values())
    assert loads <= 100, "one a chunk at the most"
    assert cache_bytes == 0 or loads < 15
    await engine.kill()


async def test_large_states_are_loaded_ahead_in_part_only() -> None:
    """A thousand of them would be more than all that the cache may hold."""
    limits = replace(QUICK, cache_bytes=1_000_000, chunk_records=10, bundle_records=50,
                     max_unacked_records=1000, fold_seconds=0.05,
                     housekeeping_seconds=0.05)  # fmt: skip

    async def grow(record: Record[Item], ctx: Context[Kept]) -> None:
        ctx.state.count += 1
        ctx.state.numbers = [10_000_000 + record.value.number] * 1000
        produce(ctx, record.value.number, ctx.state.count)

    values = [Item(f"key {n % 200}", n) for n in range(400)]
    source = script(ITEMS, values[:200])
    world = World(doing(source, grow, settings=limits))
    await world.run()
    asked: list[int] = []
    load_keys = world.store.load_keys

    async def count(computation: int, keys: list[Any], limit: int) -> Any:
        asked.append(len(keys))
        return await load_keys(computation, keys, limit)

    world.store.load_keys = count  # type: ignore[method-assign]
    for value in values[200:]:
        source.append(inject(ITEMS, value))
    engine = await world.run(tick=0.005)
    assert world.tallied() == tally_of(values)
    assert sum(asked) >= 200
    assert max(asked) <= 10 + 1_000_000 // AHEAD_SHARE // 8000
    await engine.kill()


async def test_failures_do_not_make_the_cache_count_wrong() -> None:
    """Its bytes are those of its entries, also after entries came and went in vain."""

    async def do(record: Record[Item], ctx: Context[Kept]) -> None:
        number = record.value.number
        ctx.state.marks.put(f"mark {number}", number)
        if number % 2:
            raise ValueError("odd")

    limits = replace(QUICK, eager_entries=1)
    world = World(doing(items(*range(200)), do, settings=limits, on_error="dead_letter"))
    engine = await world.start()
    await world.until(engine.done.is_set)
    cache = world.interval("do").states
    (state,) = cache._keys.values()
    assert state._entries is not None
    cells = state._entries.cells.values()
    assert state.size <= sum(len(cell.encoded or b"") + CELL_BYTES for cell in cells) + 2_000
    await engine.stop()


class Buffer(msgspec.Struct):
    """A join buffer."""

    filled: int = 0
    entries: MapState[int, str] = msgspec.field(default_factory=MapState)
    order: ListState[int] = msgspec.field(default_factory=ListState)


def written(commits: list[Commit]) -> int:
    """Bytes of state in these commits."""
    return sum(
        len(change.entry) + len(change.value or b"")
        for commit in commits
        for run in commit.states
        for change in changes_of(run)
    )


@pytest.mark.parametrize("restart", [pytest.param(False, marks=pytest.mark.soak), True])
async def test_state_of_many_entries_costs_what_is_touched(restart: bool) -> None:
    """Bytes written per record at 10^5 entries are at most twice those at ten."""
    buffers = Stream("buffers", Item)
    cost: dict[int, float] = {}

    class Join(Computation[Item, Buffer]):
        async def process_record(self, record: Record[Item], ctx: Context[Buffer]) -> None:
            number, state = record.value.number, ctx.state
            if number < 0:
                for entry in range(-number):
                    state.entries.put(entry, "filled")
                    await state.order.append(entry)
                state.filled = -number
                return
            await state.entries.get(number % state.filled)
            state.entries.put(number % state.filled, f"value {number}")
            await state.order.append(number)
            await state.order.pop_first()

    for size in (10, 100_000):
        source = script(buffers, [Item("a", -size)])
        # One record a commit: nothing is saved by writing an entry once for several records.
        limits = replace(QUICK, cache_bytes=1 << 30, chunk_records=1, bundle_records=1)
        pipeline = Pipeline("buffers", settings=limits)
        pipeline.inject(buffers, source, timestamp=time_of)
        pipeline.add(Join(), buffers.by(key_of))
        world = World(pipeline)
        engine = await world.start()
        await world.until(engine.done.is_set)
        if restart:
            for interval in engine.intervals:
                await fold(engine.store, interval)
            await engine.stop()
            engine = await world.start()
        before = len(world.commits)
        for number in range(50):
            source.append(inject(buffers, Item("a", number)))
        read_on(engine)
        await world.until(engine.done.is_set)
        cost[size] = written(world.commits[before:]) / 50
        await engine.kill()
    assert cost[100_000] <= 2 * cost[10]


class Pair(msgspec.Struct):
    """A value whose JSON text is not what jsonb gives back."""

    left: int = 0
    right: float = 0.5


class Pairs(msgspec.Struct):
    """State whose reading should cost nothing."""

    name: str = ""
    first: Pair = msgspec.field(default_factory=Pair)
    entries: MapState[int, Pair] = msgspec.field(default_factory=MapState)


async def test_reading_state_writes_nothing_even_after_a_restart() -> None:
    """Postgres gives JSON back in another form; that is no change."""

    class Read(Computation[Item, Pairs]):
        async def process_record(self, record: Record[Item], ctx: Context[Pairs]) -> None:
            if record.value.number < 0:
                ctx.state.name, ctx.state.first = "x", Pair(1)
                for entry in range(50):
                    ctx.state.entries.put(entry, Pair(entry))
                return
            assert ctx.state.first.left == 1
            assert len([value async for _, value in ctx.state.entries.items()]) == 50

    source = script(ITEMS, items(-1))
    pipeline = Pipeline("pairs", settings=QUICK)
    pipeline.inject(ITEMS, source, timestamp=time_of)
    pipeline.add(Read(), ITEMS.by(key_of))
    world = World(pipeline)
    first = await world.start()
    await world.until(first.done.is_set)
    for interval in first.intervals:
        await fold(first.store, interval)
    await first.stop()
    source.append(inject(ITEMS, Item("a", 1)))
    before = len(world.commits)
    await world.run()
    assert written(world.commits[before:]) == 0


async def test_many_unfolded_entries_of_one_key_do_not_slow_each_record_down() -> None:
    """Work per record, counted in entries looked at, must not grow with what is unfolded."""

    class Fill(Computation[Item, Buffer]):
        async def process_record(self, record: Record[Item], ctx: Context[Buffer]) -> None:
            if record.value.number < 0:
                for entry in range(-record.value.number):
                    ctx.state.entries.put(entry, "x")
            else:
                ctx.state.entries.put(-1, "y")

    source = script(ITEMS, items(-20_000))
    limits = replace(QUICK, chunk_records=1, fold_seconds=1e9, housekeeping_seconds=1e9)
    pipeline = Pipeline("fill", settings=limits)
    pipeline.inject(ITEMS, source, timestamp=time_of)
    pipeline.add(Fill(), ITEMS.by(key_of))
    world = World(pipeline)
    engine = await world.start()
    await world.until(engine.done.is_set)
    looked = count_calls(world)
    for number in range(100):
        source.append(inject(ITEMS, Item("a", number)))
    read_on(engine)
    await world.until(engine.done.is_set)
    await engine.kill()
    assert looked() < 10, "the whole key was gone through again and again"


def count_calls(world: World) -> Callable[[], int]:
    """How often the entries of a key were gone through for something to drop."""
    calls = 0
    original = Entries._trim

    def trim(self: Any) -> None:
        nonlocal calls
        calls += 1
        original(self)

    Entries._trim = trim  # type: ignore[method-assign]

    def result() -> int:
        Entries._trim = original  # type: ignore[method-assign]
        return calls

    return result


async def test_nothing_is_kept_of_what_is_done() -> None:
    """After a run: no ids in flight, no holds, no un-ACKed records, empty queues."""
    values = [Item("abc"[n % 3], n) for n in range(300)]
    world = World(tally_pipeline(script(ITEMS, values)))
    engine = await world.run(inject_copies=2)
    for interval in engine.intervals:
        assert not interval.intake
        assert not interval.backlog
        assert not interval.timers.taken
        assert interval.timers.firings == 0
        assert len(interval.watermarks.holds) == 0
        assert interval.dedup is None or not interval.dedup.in_flight
        assert all(not log._beyond and not log._several for log in interval.logs)
    await asyncio.sleep(0)
