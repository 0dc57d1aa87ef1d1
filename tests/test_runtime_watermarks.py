"""Low watermarks: never back, never ahead of pending work, told only once stored (I5, I7).

The property test keeps books of its own: from the commits alone it knows what is pending
and what was promised when it was sent, and holds every stored watermark against that.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from millwheel import Computation, Context, Pipeline, Record, Settings, Stream, Table, Timer
from millwheel.errors import GraphError, UserCodeError
from millwheel.model import MAX_TIME, MIN_TIME, from_micros, record_id, to_micros
from millwheel.store.port import Commit
from millwheel.testing import Harness, advance, inject
from millwheel.testing.script import Script
from tests.test_exactly_once import FAULTS, Plan, run_plan
from tests.test_runtime_world import (
    ITEMS,
    QUICK,
    TALLY,
    Count,
    Counted,
    Do,
    Gate,
    Item,
    Kept,
    Tally,
    World,
    at,
    doing,
    items,
    key_of,
    produce,
    script,
    time_of,
)

STREAMS = [Stream(f"s{number}", Item) for number in range(8)]


def outcome(hop: int, item: Item) -> tuple[list[Item], list[tuple[int, Item]]]:
    """What a hop makes of an item: at once, and (second, item) by timers; of the value alone."""
    chance = item.number * 7 + hop * 3
    now, later = [], []
    if chance % 4:
        now.append(
            Item("abcde"[chance % 5], item.number * 100 + hop * 10, item.second + chance % 5)
        )
    if chance % 3 == 0:
        second = item.second + 1 + chance % 20
        later.append((int(second), Item(item.key, item.number * 100 + hop * 10 + 1, second)))
    return now, later


class Hop(Computation[Item, Count]):
    """Passes on, moves in time, sets timers; tells of records that are late without cause."""

    def __init__(self, hop: int, to: Stream[Item]) -> None:
        self.writes = (to,)
        self._hop = hop
        self._to = to

    async def process_record(self, record: Record[Item], ctx: Context[Count]) -> None:
        ctx.state.count += 1
        now, later = outcome(self._hop, record.value)
        for item in now:
            ctx.produce(self._to, item, timestamp=max(record.timestamp, at(item.second)))
        for second, item in later:
            ctx.set_timer(at(second), tag=f"{item.number} {item.key}")
        if record.timestamp < ctx.low_watermark:
            ctx.count("late")

    async def process_timer(self, timer: Timer, ctx: Context[Count]) -> None:
        number, key = timer.tag.split(" ")
        second = (timer.at - at(0)).total_seconds()
        assert timer.at < ctx.low_watermark
        ctx.produce(self._to, Item(key, int(number), second))


@dataclass
class Shape:
    """A random graph: which streams each hop reads. Streams 0..sources-1 are injected."""

    sources: int
    reads: list[list[int]]
    rows: list[list[Item | int]]
    """Per source: items, and seconds that the source promises."""
    lateness: int

    def build(self, limits: Settings) -> Pipeline:
        pipeline = Pipeline("graph", settings=limits)
        for number in range(self.sources):
            pipeline.inject(
                STREAMS[number],
                self.script(number),
                timestamp=time_of,
                lateness=timedelta(seconds=self.lateness),
            )
        for hop, reads in enumerate(self.reads):
            to = STREAMS[self.sources + hop]
            pipeline.add(
                Hop(hop, to), *(STREAMS[n].by(key_of) for n in sorted(set(reads))), name=f"hop{hop}"
            )
            pipeline.sink(to, Table(f"t{hop}", Item))
        return pipeline

    def script(self, number: int) -> Script:
        stream = STREAMS[number]
        steps = [
            advance(stream, at(row)) if isinstance(row, int) else inject(stream, row)
            for row in self.rows[number]
        ]
        return Script(stream.name, steps)

    def expected(self) -> dict[str, Counter[int]]:
        """The numbers in each table, by running the hops over everything at once."""
        streams: list[list[Item]] = [
            [row for row in rows if isinstance(row, Item)] for rows in self.rows
        ]
        tables = {}
        for hop, reads in enumerate(self.reads):
            made = []
            for number in set(reads):
                for item in streams[number]:
                    now, later = outcome(hop, item)
                    # An item moves no further back than its record; its number tells them apart.
                    made += now
                    made += [replace_second(item_, second) for second, item_ in later]
            streams.append(made)
            tables[f"t{hop}"] = Counter(item.number for item in made)
        return tables


def replace_second(item: Item, second: float) -> Item:
    return Item(item.key, item.number, second)


@dataclass
class Books:
    """What is pending, by the commits alone."""

    shape: Shape
    stored: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Interval -> (input, low) watermark as last stored."""
    productions: dict[bytes, tuple[int, int, int, int]] = field(default_factory=dict)
    """Id -> (sender, receiver, slot, what it may hold the watermark at)."""
    timers: dict[tuple[int, bytes, str], tuple[int, int]] = field(default_factory=dict)
    seen: dict[tuple[int, bytes], int] = field(default_factory=lambda: defaultdict(int))
    commits: int = 0

    def check(self, world: World, commit: Commit) -> None:
        self.commits += 1
        store = world.store
        computations = {known.id: name for name, known in store._computations.items()}
        for receiver, id_ in (
            (receiver, id_) for rows in commit.seen.values() for _, receiver, id_ in rows
        ):
            self.seen[receiver, id_] += 1
            assert self.seen[receiver, id_] == 1, "processed twice"
            found = self.productions.get(id_)
            if found is not None and found[1] == receiver:
                del self.productions[id_]
        before = dict(self.stored)
        for link in commit.intervals:
            old_input, old_low = before.get(link.interval_id, (MIN_TIME, MIN_TIME))
            assert link.low_watermark >= old_low, "a low watermark went back"
            assert link.low_watermark <= link.input_watermark, "output ahead of input"
            self.stored[link.interval_id] = (link.input_watermark, link.low_watermark)
            del old_input
        for production in commit.productions:
            sender = store._logs[production.log].interval_id
            promise = max(production.micros, before.get(sender, (0, MIN_TIME))[1])
            assert production.hold == promise, "a hold is not what was promised"
            if (production.receiver, production.id) not in self.seen:
                self.productions[production.id] = (
                    sender, production.receiver, production.slot, promise,
                )  # fmt: skip
        for change in commit.timers:
            name = (change.computation, change.key, change.tag)
            self.timers.pop(name, None)
            if change.due is not None:
                low = before.get(change.interval_id, (0, MIN_TIME))[1]
                self.timers[name] = (change.interval_id, max(change.due, low))
        self._check_pending(world, computations)

    def _check_pending(self, world: World, computations: dict[int, str]) -> None:
        low = {interval: stored[1] for interval, stored in self.stored.items()}
        for sender, _, _, hold in self.productions.values():
            assert low.get(sender, MIN_TIME) <= hold, "ahead of a production nobody has processed"
        for interval, hold in self.timers.values():
            assert low[interval] <= hold, "ahead of a pending timer"
        by_name: dict[str, list[int]] = defaultdict(list)
        for row in world.store._intervals.values():
            by_name[computations[row.computation]].append(row.id)
        ids = {name: id_ for id_, name in computations.items()}
        for number in range(self.shape.sources):
            (injector,) = by_name[f"s{number}_injector"]
            self._check_rows(world, number, injector, low.get(injector, MIN_TIME), ids)
        for hop, reads in enumerate(self.shape.reads):
            senders = [
                sender
                for n in reads
                for sender in by_name[
                    f"s{n}_injector" if n < self.shape.sources else f"hop{n - self.shape.sources}"
                ]
            ]
            least = min(low.get(sender, MIN_TIME) for sender in senders)
            for interval in by_name[f"hop{hop}"]:
                input_, _ = self.stored.get(interval, (MIN_TIME, MIN_TIME))
                assert input_ <= least, "told before it was stored"

    def _check_rows(
        self, world: World, number: int, injector: int, low: int, ids: dict[str, int]
    ) -> None:
        """Rows not processed by all their readers, whether they were read yet or not."""
        (log,) = [id_ for id_, log in world.store._logs.items() if log.interval_id == injector]
        readers = [
            ids[f"hop{hop}"] for hop, reads in enumerate(self.shape.reads) if number in reads
        ]
        lateness = self.shape.lateness * 1_000_000
        promised = MIN_TIME
        for offset, row in enumerate(self.shape.rows[number]):
            if isinstance(row, int):
                promised = max(promised, to_micros(at(row)))
                continue
            micros = to_micros(at(row.second))
            if any((reader, record_id(log, offset)) not in self.seen for reader in readers):
                assert low <= max(micros, promised), "ahead of a row nobody has processed"
            promised = max(promised, micros - lateness)


@st.composite
def shapes(draw: st.DrawFn) -> Shape:
    sources = draw(st.integers(1, 2))
    hops = draw(st.integers(1, 5))
    reads = [
        draw(st.lists(st.integers(0, sources + hop - 1), min_size=1, max_size=2))
        for hop in range(hops)
    ]
    for number in range(sources):  # every source has a reader
        if not any(number in streams for streams in reads):
            reads[draw(st.integers(0, hops - 1))].append(number)
    row = st.one_of(st.tuples(st.sampled_from("abc"), st.integers(0, 60)), st.integers(0, 60))
    rows: list[list[Item | int]] = []
    for source in range(sources):
        drawn = draw(st.lists(row, max_size=15))
        rows.append(
            [
                r if isinstance(r, int) else Item(r[0], 1 + source + 2 * n, r[1])
                for n, r in enumerate(drawn)
            ]
        )
    return Shape(sources, reads, rows, draw(st.sampled_from([0, 5, 100])))


@settings(
    max_examples=150, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck)
)
@given(
    shape=shapes(),
    faults=st.dictionaries(st.integers(0, 40), st.sampled_from(FAULTS[:5]), max_size=5),
    lanes=st.integers(1, 3),
    chunk=st.sampled_from([1, 2, 100]),
    bundle=st.sampled_from([1, 3, 1000]),
    unacked=st.sampled_from([1, 5, 1000]),
    bucket_seconds=st.sampled_from([2.0, 120.0]),
    copies=st.integers(1, 2),
)
def test_a_stored_watermark_never_goes_back_and_never_passes_pending_work(
    shape: Shape,
    faults: dict[int, str],
    lanes: int,
    chunk: int,
    bundle: int,
    unacked: int,
    bucket_seconds: float,
    copies: int,
) -> None:
    """Chains, fan-in, fan-out and diamonds with timers, any order of arrival, any faults."""
    limits = replace(
        QUICK,
        lanes=lanes,
        chunk_records=chunk,
        bundle_records=bundle,
        max_unacked_records=unacked,
        bucket_seconds=bucket_seconds,
        housekeeping_seconds=0.1,
        fold_seconds=0.2,
    )
    books = Books(shape)

    async def go() -> None:
        world = await run_plan(
            Plan(limits, [], dict(faults), copies, close_at_end=True),
            lambda values, chosen: shape.build(chosen),
            books.check,
        )
        for table, numbers in shape.expected().items():
            assert Counter(row[1] for row in world.rows(table)) == numbers
        assert books.productions == {}
        assert books.timers == {}
        assert {low for _, low in books.stored.values()} == {MAX_TIME}

    asyncio.run(go())


async def test_records_on_time_are_on_time_at_every_step() -> None:
    """Within the declared lateness nothing is late anywhere, however slow a step is."""
    values = [Item("abc"[n % 3], n + 1, (n * 7) % 20) for n in range(60)]
    shape = Shape(1, [[0], [1], [0, 2], [2, 3]], [list(values)], 20)
    for lanes in (1, 2):
        limits = replace(QUICK, lanes=lanes, chunk_records=2, bundle_records=3)
        world = World(shape.build(limits))
        await world.run(close_at_end=True)
        for hop in range(4):
            assert world.counter(f"hop{hop}", "late") == 0
            assert sum(shape.expected()[f"t{hop}"].values()) == len(world.rows(f"t{hop}"))


def low_of(world: World, name: str) -> datetime:
    return from_micros(min(i.durable for i in world.engines[-1].intervals if i.step.name == name))


async def test_a_late_record_that_waits_does_not_freeze_the_watermark() -> None:
    """It holds at what was promised when it was read, not at its own timestamp (design 5)."""
    gate = Gate()

    async def do(record: Record[Item], ctx: Context[Kept]) -> None:
        if record.value.number == 1:
            await gate.wait()
        produce(ctx, record.value.number)

    source = script(ITEMS, [Item("a", 0, 100), Item("b", 1, 3), Item("a", 2, 200)])
    world = World(doing(source, do))
    engine = await world.start()
    await world.until(lambda: gate.reached and world.numbers() == [0, 2])
    await world.turns()
    assert low_of(world, "items_injector") == at(100)
    assert low_of(world, "do") == at(100)
    gate.open()
    await world.until(engine.done.is_set)
    assert low_of(world, "do") == at(200)
    await engine.stop()


async def test_an_on_time_record_that_waits_holds_the_watermark() -> None:
    gate = Gate()

    async def do(record: Record[Item], ctx: Context[Kept]) -> None:
        if record.value.number == 0:
            await gate.wait()
        produce(ctx, record.value.number)

    source = script(ITEMS, [Item("a", 0, 100), Item("b", 1, 150), Item("c", 2, 200)])
    world = World(doing(source, do))
    engine = await world.start()
    await world.until(lambda: gate.reached and sorted(world.numbers()) == [1, 2])
    await world.turns(100, tick=0.1)
    assert low_of(world, "items_injector") == at(100)
    gate.open()
    await world.until(engine.done.is_set)
    assert low_of(world, "do") == at(200)
    await engine.stop()


async def test_late_records_in_a_long_queue_do_not_freeze_the_watermark() -> None:
    """One in a hundred is very late: at every commit the reader is at most a queue behind."""
    values = [Item("a", n, 0 if n % 100 == 99 else n) for n in range(600)]
    limits = replace(QUICK, chunk_records=10, bundle_records=20, max_unacked_records=50)
    world = World(doing(values, lambda record, ctx: count_one(ctx), settings=limits))
    behind: list[float] = []
    done = 0

    def watch(commit: Commit) -> None:
        nonlocal done
        done += sum(map(len, commit.seen.values()))
        low = [link.low_watermark for link in commit.intervals if link.position is not None]
        if low and done > 100:
            behind.append(done - (from_micros(low[0]) - at(0)).total_seconds())

    world.on_durable = watch
    await world.run()
    assert max(behind) < 120


async def count_one(ctx: Context[Kept]) -> None:
    ctx.state.count += 1


async def test_the_watermark_is_told_only_once_it_is_stored() -> None:
    """While the injector's commit is on the wire, its reader knows nothing of it."""
    world = World(doing([advance(ITEMS, at(100))], lambda record, ctx: count_one(ctx)))
    gate = Gate()
    world.on_try = lambda commit: gate.wait() if _moves(commit) else None
    engine = await world.start()
    await world.until(lambda: gate.reached)
    await world.turns()
    assert world.interval("do").input_watermark == MIN_TIME
    gate.open()
    await world.until(engine.done.is_set)
    assert world.interval("do").input_watermark == to_micros(at(100))
    await engine.stop()


def _moves(commit: Commit) -> bool:
    return any(link.low_watermark > MIN_TIME for link in commit.intervals)


async def test_a_restart_goes_on_from_the_stored_watermark() -> None:
    source = script(ITEMS, [Item("a", 0, 10), advance(ITEMS, at(100))])
    world = World(doing(source, lambda record, ctx: count_one(ctx)))
    await world.run()
    engine = await world.start()
    assert world.interval("do").input_watermark == to_micros(at(100))
    assert low_of(world, "do") == at(100)
    await engine.stop()


@pytest.mark.parametrize("bound", ["end of time", "left open"])
async def test_the_watermark_at_the_end_of_the_input(bound: str) -> None:
    close = bound == "end of time"
    world = World(doing(items(1, 2, second=5), lambda record, ctx: count_one(ctx)))
    engine = await world.run(close_at_end=close)
    lows = {interval.durable for interval in engine.intervals}
    assert lows == {MAX_TIME if close else to_micros(at(5))}


async def test_a_source_without_rows_ends_at_the_end_of_time() -> None:
    world = World(doing([], lambda record, ctx: count_one(ctx)))
    engine = await world.run(close_at_end=True)
    assert {interval.durable for interval in engine.intervals} == {MAX_TIME}


# -- I7 ---------------------------------------------------------------------------------------


def producing(second: float | None) -> Any:
    async def do(record: Record[Item], ctx: Context[Kept]) -> None:
        timestamp = None if second is None else at(second)
        ctx.produce(TALLY, Counted("a", record.value.number, 0), timestamp=timestamp)

    return do


@pytest.mark.parametrize(
    ("number", "second", "output", "legal"),
    [
        (1, 150, 149, True),  # older than its record, not older than promised
        (1, 150, 101, True),
        (1, 150, 100, True),  # just as promised
        (1, 150, 99, False),  # an on-time record's output would be late
        (2, 50, None, True),  # a late record's output may be as late
        (2, 50, 50, True),
        (2, 50, 49, False),
        (2, 50, 5000, True),
    ],
)
async def test_an_output_may_not_be_older_than_promised(
    number: int, second: float, output: float | None, legal: bool
) -> None:
    steps = [Item("z", 0, 0), advance(ITEMS, at(100))]
    source = script(ITEMS, steps)
    world = World(doing(source, producing(output) if True else None, on_error="dead_letter"))

    engine = await world.start()
    await world.until(engine.done.is_set)
    world.store.dead_letters.clear()
    before = len(world.rows())
    source.append(inject(ITEMS, Item("a", number, second)))
    engine.read_on()
    await world.until(engine.done.is_set)
    if legal:
        assert world.letters() == []
        assert len(world.rows()) == before + 1
    else:
        ((_, error),) = world.letters()
        assert "older than both its input" in error
        assert len(world.rows()) == before
    await engine.stop()


async def test_the_error_for_an_output_too_old_says_what_and_where() -> None:
    pipeline = doing([], producing(5))
    async with Harness(pipeline) as harness:
        await harness.advance(ITEMS, at(100))
        with pytest.raises(UserCodeError, match=r"key 'a'.*tally.*older than both"):
            await harness.inject(ITEMS, Item("a", 1, 150))


async def test_timestamps_need_a_time_zone() -> None:
    async def do(record: Record[Item], ctx: Context[Kept]) -> None:
        naive = datetime(2024, 1, 1)
        ctx.produce(TALLY, Counted("a", 1, 0), timestamp=naive)

    world = World(doing(items(1), do, on_error="dead_letter"))
    await world.run()
    assert "no time zone" in world.letters()[0][1]


# -- sources that say nothing ------------------------------------------------------------------


def two_sources(first: Any, second: Any, **options: Any) -> Pipeline:
    pipeline = Pipeline("two", settings=QUICK)
    for number, source in enumerate((first, second)):
        pipeline.inject(ITEMS, source, timestamp=time_of, name=f"source_{number}", **options)
    pipeline.add(Tally(), ITEMS.by(key_of))
    pipeline.sink(TALLY, Table("out", Counted, numbered=True))
    return pipeline


async def test_an_idle_source_does_not_hold_the_others_back_and_comes_back_late() -> None:
    busy = script(ITEMS, [Item("a", n, n) for n in range(10)], "busy")
    silent = script(ITEMS, [Item("b", 100, 2)], "silent")
    world = World(two_sources(busy, silent, idle_after=timedelta(seconds=30)))
    engine = await world.start()
    await world.until(engine.done.is_set)

    def low(name: str) -> float:
        return float(world.interval(name).durable - int(at(0).timestamp() * 1e6)) / 1e6

    assert (low("source_0"), low("source_1"), low("tally")) == (9, 2, 2)
    await world.turns(200, tick=0.1)
    assert low("tally") == 2, "it has been silent for 20 seconds only"
    busy.append(inject(ITEMS, Item("a", 10, 50)))
    engine.injectors[0].read_on()
    await world.until(lambda: low("source_0") == 50, tick=0.01)
    await world.turns(150, tick=0.1)
    await world.until(lambda: low("tally") == 50, tick=0.1)
    silent.append(inject(ITEMS, Item("b", 101, 40)))
    engine.injectors[1].read_on()
    await world.until(lambda: len(world.rows()) == 13, tick=0.01)
    assert low("tally") == low("source_1") == 50, "a watermark never goes back"
    busy.append(inject(ITEMS, Item("a", 11, 70)))
    engine.injectors[0].read_on()
    await world.until(lambda: low("source_0") == 70, tick=0.01)
    await world.turns(100, tick=0.01)
    assert low("tally") == 50, "it counts again"
    await world.finish(engine)


async def test_all_idle_stands_still() -> None:
    sources = [script(ITEMS, [Item(k, 1, n)], k) for n, k in enumerate("ab", 1)]
    world = World(two_sources(*sources, idle_after=timedelta(seconds=1)))
    engine = await world.start()
    await world.until(engine.done.is_set)
    await world.turns(300, tick=0.1)
    assert world.interval("tally").durable == int(at(1).timestamp() * 1e6)
    await world.finish(engine)


async def test_records_may_say_themselves_how_far_time_is() -> None:
    """Punctuated: every tenth item promises that nothing older than itself comes any more."""

    def word(item: Item) -> datetime | None:
        return at(item.second) if item.number % 10 == 0 else None

    source = script(ITEMS, [Item("a", n, n) for n in range(1, 16)])
    pipeline = Pipeline("words", settings=QUICK)
    pipeline.inject(ITEMS, source, timestamp=time_of, watermark=word)
    pipeline.add(Tally(), ITEMS.by(key_of))
    pipeline.sink(TALLY, Table("out", Counted, numbered=True))
    world = World(pipeline)
    await world.run()
    assert world.interval("tally").durable == int(at(10).timestamp() * 1e6)
    source.append(inject(ITEMS, Item("a", 20, 20)))
    await world.run()
    assert world.interval("tally").durable == int(at(20).timestamp() * 1e6)


async def test_user_code_never_sees_less_than_what_is_promised_already() -> None:
    """A late record waits for its key's state while another source moves time on: what user
    code takes for open must not be closed downstream."""
    saw: list[tuple[datetime, datetime]] = []

    async def do(record: Record[Item], ctx: Context[Kept]) -> None:
        saw.append((ctx.low_watermark, ctx.output_watermark))

    sources = [
        script(ITEMS, steps, name) for name, steps in (("a", [advance(ITEMS, at(9))]), ("b", []))
    ]
    pipeline = Pipeline("two", settings=QUICK)
    for source in sources:
        pipeline.inject(ITEMS, source, timestamp=time_of, name=source.identity[-1])
    pipeline.add(Do(do), ITEMS.by(key_of))
    world = World(pipeline)
    engine = await world.start()
    await world.until(engine.done.is_set)
    gate = Gate()

    async def slowly(name: str) -> None:
        if name == "load_keys":
            await gate.wait()

    world.store.faults.before_call = slowly
    sources[0].append(inject(ITEMS, Item("a", 1, 5)))
    engine.read_on()
    await world.until(lambda: gate.reached)
    sources[1].append(advance(ITEMS, at(9)))
    engine.read_on()
    await world.until(lambda: low_of(world, "do") == at(9))
    gate.open()
    await world.finish(engine)
    assert saw == [(at(9), at(9))]


def test_injections_that_contradict_themselves_are_refused() -> None:
    pipeline = Pipeline("wrong")
    with pytest.raises(GraphError, match="give one or the other"):
        pipeline.inject(
            ITEMS, script(ITEMS, []), timestamp=time_of, watermark=lambda item: None,
            lateness=timedelta(seconds=1),
        )  # fmt: skip
    with pytest.raises(GraphError, match="idle_after must be above zero"):
        pipeline.inject(ITEMS, script(ITEMS, []), timestamp=time_of, idle_after=timedelta(0))
