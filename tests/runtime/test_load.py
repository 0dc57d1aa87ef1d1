"""What the work of each interval costs: counted in chunks, told with the heartbeat."""

from __future__ import annotations

import asyncio
import errno
import os
import time
from dataclasses import replace
from datetime import datetime
from typing import Any, cast

import pytest

from millwheel import Computation, Context, Pipeline, Record, Table
from millwheel.core.codec import encode_key
from millwheel.core.model import SLOTS
from millwheel.runtime.engine import Engine
from millwheel.runtime.process.load import (
    BARS,
    CHUNK_SECONDS,
    FIRST_CHUNK,
    HALF_LIFE_SECONDS,
    SAMPLED,
    Measured,
    Process,
    Workload,
    resident_bytes,
)
from millwheel.store.port.commit import Commit
from millwheel.testing import inject
from tests.support.clusters import Cluster, counting, many
from tests.support.pipelines import QUICK, Kept, Tally, doing, script, tally_pipeline
from tests.support.values import ITEMS, TALLY, Counted, Item, at, items, key_of, time_of
from tests.support.worlds import Gate, World, read_on

MUCH = 1 << 30
"""Bytes."""


# -- where in the slots ---------------------------------------------------------------------


def test_a_histogram_shows_where_the_work_is() -> None:
    work = Workload((1000, 1000 + 32 * 10))
    for slot, records in ((1000, 6), (1009, 1), (1010, 3), (1319, 10)):
        work.sample([slot] * SAMPLED * records)
    found = work.histogram()
    assert [slot for slot, _ in found] == list(range(1000, 1320, 10)), "each bar has its place"
    assert {slot: load for slot, load in found if load} == {1000: 7.0, 1010: 3.0, 1310: 10.0}


@pytest.mark.parametrize("slots", [(0, SLOTS), (7, 8), (5, 37), (5, 38), (0, 1000), (3, 3 + 33)])
def test_a_histogram_has_few_bars_that_cover_all_slots(slots: tuple[int, int]) -> None:
    work = Workload(slots)
    work.sample([slot for slot in range(*slots) for _ in range(SAMPLED)])
    found = work.histogram()
    assert 1 <= len(found) <= BARS
    assert found[0][0] == slots[0]
    assert all(slots[0] <= slot < slots[1] for slot, _ in found)
    assert sum(load for _, load in found) == slots[1] - slots[0]
    assert all(load > 0 for _, load in found), "no bar lies outside"


def test_the_length_of_chunks_changes_nothing() -> None:
    """A record of a short chunk counts no more than one of a long chunk."""
    whole, parts = Workload((0, 64)), Workload((0, 64))
    records = [n * 7 % 64 for n in range(5000)]
    whole.sample(records)
    rest = records
    for length in (1, 2, 3, 30, 16, 17, 18, 1000, 0, 1, 5000):
        parts.sample(rest[:length])
        rest = rest[length:]
    assert whole.histogram() == parts.histogram()
    assert sum(load for _, load in whole.histogram()) == -(-5000 // SAMPLED)


@pytest.mark.parametrize("keys", [2, 4, 8, 16, 32, 10, 100])
def test_sources_that_go_round_their_keys_show_all_of_them(keys: int) -> None:
    work = Workload((0, keys))
    work.sample([n % keys for n in range(20_000)])
    loads = [load for _, load in work.histogram()]
    assert max(loads) <= 1.3 * min(loads)


def test_what_was_long_ago_fades() -> None:
    work = Workload((0, 2))
    work.sample([0] * SAMPLED * 8)
    work.forget(HALF_LIFE_SECONDS)
    work.sample([1] * SAMPLED * 8)
    assert work.histogram() == [(0, 4.0), (1, 8.0)]
    for _ in range(4):
        work.forget(HALF_LIFE_SECONDS / 2)
    assert work.histogram() == [(0, 1.0), (1, 2.0)]
    work.forget(100 * HALF_LIFE_SECONDS)
    assert work.histogram() == [], "nothing is left of it"


# -- how long it runs -----------------------------------------------------------------------


class Ticking:
    """A clock that only moves when work is done."""

    def __init__(self) -> None:
        self.at = 0.0

    def __call__(self) -> float:
        return self.at


async def test_what_runs_is_measured_and_what_waits_is_not() -> None:
    clock, work, gate = Ticking(), Workload((0, 1)), Gate()

    async def run() -> None:
        clock.at += 1
        await gate.wait()
        clock.at += 2
        await asyncio.sleep(0)
        clock.at += 4

    async def hand() -> None:
        await Measured(run(), work, clock)

    task = asyncio.create_task(hand())
    await asyncio.sleep(0)
    assert work.run_seconds == 1
    clock.at += 100
    gate.open()
    await task
    assert work.run_seconds == 7


async def test_what_is_cancelled_hears_of_it_and_what_fails_tells() -> None:
    clock, work, gate = Ticking(), Workload((0, 1)), Gate()
    heard = []

    async def wait() -> None:
        try:
            await gate.wait()
        except asyncio.CancelledError:
            clock.at += 3
            heard.append("cancelled")
            raise

    async def fail() -> None:
        clock.at += 5
        raise LookupError

    async def hand(what: Any) -> None:
        await Measured(what, work, clock)

    task = asyncio.create_task(hand(wait()))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert heard == ["cancelled"]
    with pytest.raises(LookupError):
        await hand(fail())
    assert work.run_seconds == 8


async def test_what_is_ready_to_go_on_can_be_cancelled() -> None:
    work = Workload((0, 1))
    ended = []

    async def turn() -> None:
        try:
            for _ in range(100):
                await asyncio.sleep(0)
        finally:
            ended.append("cancelled" if asyncio.current_task().cancelling() else "ran out")  # type: ignore[union-attr]

    async def hand() -> None:
        await Measured(turn(), work, Ticking())

    task = asyncio.create_task(hand())
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
    assert ended == ["cancelled"]


async def test_a_cancellation_that_is_caught_goes_on() -> None:
    """As `asyncio.timeout` in user code does."""
    clock, work = Ticking(), Workload((0, 1))
    gate = Gate()

    async def patient() -> None:
        try:
            async with asyncio.timeout(0):
                await gate.wait()
        except TimeoutError:
            clock.at += 1
        await asyncio.sleep(0)
        clock.at += 1

    async def hand() -> None:
        await Measured(patient(), work, clock)

    await hand()
    assert work.run_seconds == 2


@pytest.mark.parametrize("why", [errno.ENOENT, errno.EMFILE, errno.ENFILE, errno.EACCES])
def test_a_process_knows_its_memory(monkeypatch: pytest.MonkeyPatch, why: int) -> None:
    """A system without /proc, and a process without file descriptors, do not end the worker."""
    assert 1 << 20 < resident_bytes() < 1 << 40

    def refused(path: Any) -> bytes:
        raise OSError(why, os.strerror(why), str(path))

    monkeypatch.setattr("pathlib.Path.read_bytes", refused)
    assert 1 << 20 < resident_bytes() < 1 << 40


# -- how long a chunk runs ------------------------------------------------------------------


def ran(work: Workload, records: int, seconds: float, bytes_: int) -> None:
    """A chunk has run."""
    work.chunk_begins()
    work.run_seconds += seconds
    work.decided_bytes += bytes_
    work.chunk_ran(records)


def test_a_chunk_is_as_long_as_the_last_one_would_have_taken_ten_milliseconds() -> None:
    work = Workload((0, 1))
    assert work.chunk(1000, MUCH) == FIRST_CHUNK, "nothing has run yet"
    assert work.chunk(3, MUCH) == 3
    ran(work, FIRST_CHUNK, 0.0, 0)
    assert work.chunk(1000, MUCH) == 1000
    ran(work, 1000, CHUNK_SECONDS, 0)
    assert work.chunk(1000, MUCH) == 1000
    ran(work, 1000, 100 * CHUNK_SECONDS, 0)
    assert work.chunk(1000, MUCH) == 10
    assert work.chunk(3, MUCH) == 3
    work.forget(1.0)
    assert work.chunk(1000, MUCH) == 10, "a heartbeat does not make code faster"
    ran(work, 10, 1000 * CHUNK_SECONDS, 0)
    assert work.chunk(1000, MUCH) == 1, "it always goes on"
    ran(work, 1, -1.0, 0)
    assert work.chunk(1000, MUCH) == 1, "of a chunk that a heartbeat met nothing is known"
    ran(work, 1, CHUNK_SECONDS / 1000, 0)
    assert work.chunk(1000, MUCH) == 1000


def test_a_chunk_has_no_more_effects_than_fit_into_a_commit() -> None:
    work = Workload((0, 1))
    ran(work, FIRST_CHUNK, 0.0, FIRST_CHUNK * 50)
    assert work.chunk(1000, 50_000) == 1000
    assert work.chunk(1000, 49_999) == 999
    assert work.chunk(1000, 10) == 1, "it always goes on"
    ran(work, 10, CHUNK_SECONDS, 5000)
    assert (work.chunk(1000, 2500), work.chunk(1000, MUCH)) == (5, 10)


class Enlarge(Computation[Item, None]):
    """Makes a kilobyte of a few bytes."""

    writes = (TALLY,)

    async def process_record(self, record: Record[Item], ctx: Context[None]) -> None:
        ctx.produce(TALLY, Counted("x" * 1000, record.value.number, 0))


class Forget(Computation[Counted, None]):
    async def process_record(self, record: Record[Counted], ctx: Context[None]) -> None:
        pass


@pytest.mark.parametrize("productions", ["strong", "weak"])
async def test_large_effects_make_small_chunks(productions: Any) -> None:
    """One is begun while the bundle has room, and the log credits: it must not be far too much."""
    limits = replace(QUICK, chunk_records=1000, bundle_bytes=50_000, max_unacked_bytes=50_000)
    made = Pipeline("large", settings=limits)
    made.inject(ITEMS, script(ITEMS, many(2000)), timestamp=time_of)
    made.add(Enlarge(), ITEMS.by(key_of), name="enlarge", productions=productions)
    made.add(Forget(), TALLY.by(lambda found: found.number))
    world = World(made)
    sizes: list[int] = []

    def look(commit: Commit) -> None:
        sizes.append(sum(log.unacked_bytes for log in world.interval("enlarge").logs))
        sizes.append(sum(production.size for production in commit.productions))

    world.on_try = look
    engine = await world.start()
    await world.until(lambda: engine.processed == 4000, tick=0.01)
    assert 50_000 < max(sizes) < 150_000
    await engine.stop()


async def test_slow_code_leaves_the_event_loop_its_turns() -> None:
    costs = Costs()

    async def do(record: Record[Item], ctx: Context[Kept]) -> None:
        costs.work(0.001)

    values = many(3000)
    world = World(doing(values, do, settings=replace(QUICK, chunk_records=1000)))
    engine = await world.start(process=costs.process)
    looked_at, longest = costs.run.at, []

    def look() -> bool:
        nonlocal looked_at
        longest.append(costs.run.at - looked_at)
        looked_at = costs.run.at
        return engine.processed == len(values)

    await world.until(look)
    first, *others = [seconds for seconds in longest if seconds]
    assert first == pytest.approx(FIRST_CHUNK * 0.001)
    assert max(others) == pytest.approx(CHUNK_SECONDS)
    assert sum(longest) == pytest.approx(len(values) * 0.001)
    await engine.stop()


# -- what a heartbeat tells -----------------------------------------------------------------


class Costs:
    """A process in which user code takes as much time as a test says; the rest takes none."""

    def __init__(self) -> None:
        self.run = Ticking()
        self.cpu = Ticking()

    def work(self, seconds: float) -> None:
        self.run.at += seconds
        self.cpu.at += seconds

    @property
    def process(self) -> Process:
        return Process(self.cpu, self.run, lambda: 123_456)


class Beats:
    """Waits for heartbeats, and reads what they said."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._number = 0
        world.store.faults.before_call = self._note

    async def _note(self, call: str) -> None:
        self._number += call == "heartbeat"

    async def next(self, engine: Engine) -> dict[str, Any]:
        """What the next heartbeat says; time passes up to it."""
        until = self._number + 1
        await self._world.until(lambda: self._number >= until, tick=0.05)
        await self._world.turns(3)
        return await self.last(engine)

    async def last(self, engine: Engine) -> dict[str, Any]:
        placement = await self._world.store.read_placement()
        (found,) = [w for w in placement.workers if w.id == engine.worker]
        return found.load


PERIOD = QUICK.lease_seconds / 3


async def test_cpu_is_shared_out_by_the_time_that_each_interval_runs() -> None:
    costs, gate = Costs(), Gate()
    slot = encode_key("a")[1]

    async def do(record: Record[Item], ctx: Context[Kept]) -> None:
        await gate.wait()
        costs.work(0.1)
        ctx.state.numbers.append(record.value.number)

    world = World(doing(items(*range(20)), do, settings=replace(QUICK, intervals=4)))
    beats = Beats(world)
    engine = await world.start(process=costs.process)
    await beats.next(engine)
    gate.open()
    costs.cpu.at += 1  # of commits, say: it goes where the records went
    found = await beats.next(engine)
    assert found["cpu"] == pytest.approx(3 / PERIOD, rel=0.1)
    assert found["rss_bytes"] == 123_456
    hot = str(next(i.id for i in engine.intervals if i.slots[0] <= slot < i.slots[1] and i.states))
    assert found["intervals"].keys() == {str(i.id) for i in engine.intervals}
    for id_, figures in found["intervals"].items():
        reads = engine.exchange.held(int(id_)).source_task is not None  # type: ignore[union-attr]
        told = {"cpu", "records", "records_out", "queue", "state_bytes", "histogram", "code"}
        assert figures.keys() == (told | {"flow"} if reads else told)
        if id_ == hot:
            assert figures["cpu"] == found["cpu"]
            assert figures["records"] == pytest.approx(20 / PERIOD, rel=0.1)
            assert figures["state_bytes"] > 0
        elif not reads:
            assert (figures["cpu"], figures["records"], figures["state_bytes"]) == (0.0, 0.0, 0)
    found = await beats.next(engine)
    assert found["cpu"] == 0.0
    assert found["intervals"][hot]["records"] == 0.0, "rates are of the time since the last one"
    await engine.stop()


async def test_the_progress_of_a_worker_is_told_as_ever() -> None:
    world = World(tally_pipeline(script(ITEMS, items(*range(5)))))
    beats = Beats(world)
    engine = await world.start()
    await world.until(lambda: engine.processed == 5)
    found = await beats.next(engine)
    assert found.items() >= engine.progress().items()
    assert found["processed"] == 5
    await engine.stop()


async def test_records_that_wait_are_counted() -> None:
    gate = Gate()

    async def do(record: Record[Item], ctx: Context[Kept]) -> None:
        await gate.wait()

    limits = replace(QUICK, waiting_keys=2, chunk_records=1)
    values = [Item(f"key {n}", n) for n in range(10)]
    world = World(doing(values, do, settings=limits))
    beats = Beats(world)
    engine = await world.start()
    await world.until(lambda: gate.reached == 2)
    await world.turns()
    found = await beats.next(engine)
    assert found["intervals"][str(world.interval("do").id)]["queue"] == 10, "two are at work"
    gate.open()
    await engine.kill()


async def test_the_histogram_of_an_interval_shows_its_hot_keys() -> None:
    slots = {key: encode_key(key)[1] for key in ("hot", "cold")}
    values = [Item("cold" if n % 10 == 9 else "hot", n) for n in range(3000)]
    world = World(tally_pipeline(script(ITEMS, values)))
    beats = Beats(world)
    engine = await world.start()
    await world.until(lambda: engine.processed == 3000)
    found = await beats.next(engine)
    of = {i.id: i for i in engine.intervals if i.step.name == "tally"}
    bars = [
        (first, load)
        for id_ in of
        for first, load in found["intervals"][str(id_)]["histogram"]
        if load
    ]
    assert len(bars) == 2
    loads = {
        key: next(load for first, load in reversed(bars) if first <= slot)
        for key, slot in slots.items()
    }
    assert loads["hot"] + loads["cold"] == pytest.approx(3000 / SAMPLED, abs=1)
    assert loads["cold"] == pytest.approx(300 / SAMPLED, abs=2)
    (injector,) = [i for i in engine.intervals if i.source_task is not None]
    told = found["intervals"][str(injector.id)]
    assert (told["histogram"], told["queue"], told["state_bytes"]) == ([], 0, 0)
    await engine.stop()


async def test_the_rows_that_an_injector_reads_are_its_records() -> None:
    costs = Costs()

    def time_of(item: Item) -> datetime:
        costs.work(0.01)
        return at(0)

    source = script(ITEMS, [])
    pipeline = Pipeline("read", settings=QUICK)
    pipeline.inject(ITEMS, source, timestamp=time_of)
    pipeline.add(Tally(), ITEMS.by(key_of))
    pipeline.sink(TALLY, Table("out", Counted))
    world = World(pipeline)
    beats = Beats(world)
    engine = await world.start(process=costs.process)
    await beats.next(engine)
    for value in items(*range(30)):
        source.append(inject(ITEMS, value))
    read_on(engine)
    found = await beats.next(engine)
    told = found["intervals"][str(world.interval("items_injector").id)]
    assert told["records"] == pytest.approx(30 / PERIOD, rel=0.1)
    assert told["cpu"] == found["cpu"] == pytest.approx(0.3 / PERIOD, rel=0.1)
    await engine.stop()


async def test_who_takes_an_interval_over_tells_its_load() -> None:
    values = many(600)
    cluster = Cluster(counting(values))
    beats = Beats(cluster)
    first, second = await cluster.join(), await cluster.join()
    await cluster.go(cluster.finished)
    for engine in (first, second):
        await beats.next(engine)
    told = [await beats.last(engine) for engine in (first, second)]
    assert not told[0]["intervals"].keys() & told[1]["intervals"].keys()
    for engine, load in zip((first, second), told, strict=True):
        assert load["intervals"].keys() == {str(i.id) for i in engine.intervals}
    for engine in (first, second):
        await cluster.leave(engine)


# -- what measuring itself costs ---------------------------------------------------------------


async def test_measuring_costs_next_to_nothing() -> None:
    """In chunks of 256 less than four looks at each record, which take 0.01 µs each, and longer as
    well where others want the processor; a bound that only a blunder breaks."""
    work, items_ = Workload((0, SLOTS)), [n * 40 for n in range(256)]

    async def nothing() -> None:
        return None

    async def chunk() -> None:
        work.sample(items_)
        await Measured(nothing(), work, time.perf_counter)

    async def bare() -> None:
        await nothing()

    async def four_looks() -> None:
        for item in items_ * 4:
            item.real  # noqa: B018 - looking is all

    async def least(what: Any) -> float:
        found = []
        for _ in range(7):
            began = time.perf_counter()
            for _ in range(200):
                await what()
            found.append(time.perf_counter() - began)
        return min(found)

    assert await least(chunk) < await least(bare) + await least(four_looks)


async def test_a_call_that_waits_is_shown_by_itself_and_counts_before_it_ends() -> None:
    """Records of a key run one after the other in one turn: each has waited only since it began."""
    gate = Gate()
    begun: list[int] = []

    async def wait(record: Record[Item], ctx: Context[Kept]) -> None:
        begun.append(record.value.number)
        if record.value.number < 2:
            await world.clock.sleep(10)
        else:
            await gate.wait()

    world = World(doing(items(0, 1, 2, 3), wait))
    engine = await world.start()
    (interval,) = [one for one in engine.intervals if one.step.name == "do"]

    def figures() -> dict[str, Any]:
        return cast(dict[str, Any], engine.figures.load()["intervals"][str(interval.id)])

    await world.until(lambda: len(begun) == 3, tick=1, what="the third one begins")
    await world.turns()
    world.clock.advance(5)
    waited = figures()["at_work"]["seconds"]
    assert waited < 10, "the two calls before it took 20 s"
    world.clock.advance(1000)
    found = figures()
    assert (found["at_work"]["seconds"], found["code"]["p99"]) == (waited + 1000, waited + 1000)
    gate.open()
    await world.finish(engine, tick=1)
    await world.close()
