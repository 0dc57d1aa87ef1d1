"""Sources that go on: partitions that appear while they are read, and numbers with gaps (I17)."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import timedelta
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millwheel import Pipeline, Settings, Table
from millwheel.core.model import MAX_TIME, MIN_TIME
from millwheel.errors import Fenced
from millwheel.runtime.interval.sent_log import SentLog
from millwheel.runtime.source.partition_discovery import PartitionDiscovery
from millwheel.sources import Partition, Row
from millwheel.store.port.commit import Commit
from millwheel.testing import advance, inject
from millwheel.testing.script import Script, ScriptReader
from millwheel.timers.holds import Holds
from millwheel.timers.watermark import WatermarkReport, Watermarks
from tests.support.clusters import SHARED, Cluster
from tests.support.examples import examples
from tests.support.fault_plans import FAULTS, Plan, run_plan
from tests.support.pipelines import QUICK, Tally
from tests.support.store_sites import Owner, Site
from tests.support.values import ITEMS, TALLY, Counted, Item, at, key_of, tally_of, time_of
from tests.support.worlds import World

pytestmark = pytest.mark.newest

IDLE_SECONDS = 5.0


class Shelf:
    """A growing source: scripts that a test adds, each a partition."""

    bounded = False

    def __init__(self) -> None:
        self.scripts: dict[str, Script] = {}
        self.looks: list[Look] = []

    def add(self, name: str, values: Iterable[Any] = ()) -> Script:
        """One more partition, which is found by itself."""
        found = self.scripts[name] = Script(name, [inject(ITEMS, value) for value in values])
        for look in self.looks:
            look.more.set()
        return found

    def partitions(self) -> list[Partition]:
        return []

    def partition(self, identity: str) -> Partition:
        return next(script for script in self.scripts.values() if script.identity == identity)

    def describe(self) -> dict[str, Any]:
        return {"shelf": True}

    def discover(self, position: dict[str, Any] | None) -> Look:
        look = Look(self)
        self.looks.append(look)
        return look


class Look:
    """The discovery of a `Shelf`."""

    def __init__(self, shelf: Shelf) -> None:
        self._shelf = shelf
        self.more = asyncio.Event()
        self.seen: int | None = None

    async def look(self) -> Sequence[str]:
        return [script.identity for script in self._shelf.scripts.values()]

    async def wait(self) -> None:
        await self.more.wait()
        self.more.clear()

    def first_position(self, identity: str) -> None:
        return None

    def position(self) -> dict[str, Any]:
        return {}

    def close(self) -> None:
        if self in self._shelf.looks:
            self._shelf.looks.remove(self)


def shelf_pipeline(shelf: Shelf, limits: Settings = QUICK, **options: Any) -> Pipeline:
    pipeline = Pipeline("shelf", settings=limits)
    pipeline.inject(ITEMS, shelf, timestamp=time_of, name="source", **options)
    pipeline.add(Tally(), ITEMS.by(key_of))
    pipeline.sink(TALLY, Table("out", Counted, numbered=True))
    return pipeline


def stored(world: World) -> dict[str, int]:
    """The low watermark that each partition, and the discovery, has stored."""
    tables = world.store.tables
    sources = {log.interval_id: log.source for log in tables.logs.values() if log.source}
    return {
        str(sources[row.id]): tables.last_commit(row.id)[0].link.low_watermark
        for row in tables.in_order()
        if row.id in sources
    }


def nobody_is_ahead(world: World) -> None:
    """No reader of the source goes by a time that a partition of it has not stored (I5, I17)."""
    least = min(stored(world).values())
    for engine in world.engines:
        for interval in engine.intervals:
            if interval.step.name == "tally":
                assert interval.watermarks.input <= least


async def test_a_partition_that_appears_is_read_by_itself() -> None:
    shelf = Shelf()
    shelf.add("a", [Item("a", 0, 10)])
    world = World(shelf_pipeline(shelf))
    engine = await world.start()
    await world.until(lambda: world.numbers() == [0], tick=0.01)
    b = shelf.add("b", [Item("b", 1, 20)])
    await world.until(lambda: world.numbers() == [0, 1], tick=0.01)
    b.append(inject(ITEMS, Item("b", 2, 30)))
    await world.until(lambda: world.numbers() == [0, 1, 2], tick=0.01)
    await world.until(engine.done.is_set, tick=0.01)
    await engine.stop()


async def test_a_new_partition_moves_no_watermark_back_and_holds_it_from_then_on() -> None:
    shelf = Shelf()
    a = shelf.add("a", [Item("a", 0, 100)])
    world = World(shelf_pipeline(shelf))
    world.on_durable = lambda commit: nobody_is_ahead(world)
    engine = await world.start()
    tally = world.interval("tally")
    await world.until(lambda: tally.watermarks.durable == at_micros(100), tick=0.01)
    b = shelf.add("b")
    await world.until(lambda: len(stored(world)) == 3, tick=0.01)
    assert stored(world)[b.identity] == at_micros(100), "what was promised by then"
    a.append(inject(ITEMS, Item("a", 1, 200)))
    await world.turns(100, tick=0.01)
    assert tally.watermarks.durable == at_micros(100), "the new partition has said nothing yet"
    b.append(inject(ITEMS, Item("b", 2, 50)))  # late, and counted all the same
    await world.until(lambda: 2 in world.numbers(), tick=0.01)
    assert tally.watermarks.durable == at_micros(100)
    b.append(inject(ITEMS, Item("b", 3, 150)))
    await world.until(lambda: tally.watermarks.durable == at_micros(150), tick=0.01)
    await engine.stop()


class Clocked(Shelf):
    """A shelf that shows how far it is in event time, also for partitions that are not found
    yet."""

    timestamps = True
    shows_time = True

    def discover(self, position: dict[str, Any] | None) -> Look:
        look = super().discover(position)
        look.seen = at_micros(50)
        return look


async def test_a_source_that_shows_its_time_holds_it_for_partitions_that_are_not_found_yet() -> (
    None
):
    shelf = Clocked()
    a = shelf.add("a")
    a.append(advance(ITEMS, at(100)))
    pipeline = Pipeline("shelf", settings=QUICK)
    pipeline.inject(ITEMS, shelf, name="source")
    pipeline.add(Tally(), ITEMS.by(key_of))
    pipeline.sink(TALLY, Table("out", Counted, numbered=True))
    world = World(pipeline)
    world.on_durable = lambda commit: nobody_is_ahead(world)
    engine = await world.start()
    tally = world.interval("tally")
    await world.until(lambda: stored(world).get(a.identity) == at_micros(100), tick=0.01)
    await world.until(lambda: tally.watermarks.durable == at_micros(50), tick=0.01)
    await world.turns(100, tick=0.01)
    assert tally.watermarks.durable == at_micros(50), "the found partition alone is further"
    (look,) = shelf.looks
    look.seen = at_micros(200)
    look.more.set()
    await world.until(lambda: tally.watermarks.durable == at_micros(100), tick=0.01)
    await engine.stop()


def at_micros(second: float) -> int:
    return int(at(second).timestamp() * 1_000_000)


async def test_an_empty_source_and_silent_partitions_are_excused_after_a_while() -> None:
    shelf, other = Shelf(), Script("other", [advance(ITEMS, at(500))])
    pipeline = shelf_pipeline(shelf, idle_after=timedelta(seconds=IDLE_SECONDS))
    pipeline.inject(ITEMS, other, timestamp=time_of, name="other")
    world = World(pipeline)
    engine = await world.start()
    tally = world.interval("tally")
    await world.turns(200, tick=0.01)
    assert tally.watermarks.durable == MIN_TIME
    await world.until(lambda: tally.watermarks.durable == at_micros(500), tick=0.05)
    shelf.add("a", [Item("a", 1, 600)])
    other.append(advance(ITEMS, at(700)))
    await world.until(lambda: tally.watermarks.durable == at_micros(600), tick=0.01)
    await world.until(lambda: tally.watermarks.durable == at_micros(700), tick=0.05)
    await engine.stop()


async def test_a_restart_knows_the_partitions_and_doubles_nothing() -> None:
    shelf = Shelf()
    for name in "abc":
        shelf.add(name, [Item(name, n, n) for n in range(5)])
    world = World(shelf_pipeline(shelf))
    for _ in range(3):
        engine = await world.start()
        await world.turns(40)
        await engine.kill()
    engine = await world.start()
    await world.until(lambda: len(world.numbers()) == 15, tick=0.01)
    shelf.add("d", [Item("d", 9, 9)])
    await world.until(lambda: len(world.numbers()) == 16, tick=0.01)
    await world.until(engine.done.is_set, tick=0.01)
    assert Counter(world.numbers()) == Counter([*range(5)] * 3 + [9])
    assert len(stored(world)) == 5
    await engine.stop()


async def test_what_appeared_while_nobody_looked_starts_where_the_discovery_stopped() -> None:
    """Others read on meanwhile, and the watermark waits for the discovery to look again."""
    shelf = Shelf()
    a = shelf.add("a", [Item("a", 0, 100)])
    world = World(shelf_pipeline(shelf))
    engine = await world.start()
    tally = world.interval("tally")
    await world.until(lambda: tally.watermarks.durable == at_micros(100), tick=0.01)
    (discovery,) = [task for task in engine.exchange.source_tasks if task not in engine.injectors]
    await discovery.stop()
    a.append(inject(ITEMS, Item("a", 1, 900)))
    b = shelf.add("b", [Item("b", 2, 300)])
    await world.until(lambda: stored(world)[a.identity] == at_micros(900), tick=0.01)
    await discovery.start(reading=False)
    await world.turns(50, tick=0.01)
    await discovery.start()
    await world.until(lambda: 2 in world.numbers(), tick=0.01)
    await world.until(engine.done.is_set, tick=0.01)
    assert stored(world)[b.identity] == at_micros(300), "on time: the watermark stood at 100"
    assert tally.watermarks.durable == at_micros(300)
    await engine.stop()


class Several(Cluster):
    """Workers that share a growing source."""

    endless = True

    def __init__(self, shelf: Shelf) -> None:
        super().__init__(shelf_pipeline(shelf, replace(SHARED, placement_cooldown_seconds=1.0)))


@pytest.mark.parametrize("seed", range(3))
async def test_workers_share_partitions_that_appear_and_nobody_runs_ahead(seed: int) -> None:
    """A worker that has not heard of a partition yet is held by the discovery."""
    random = Random(seed)
    shelf = Shelf()
    scripts = [shelf.add("p0")]
    cluster = Several(shelf)
    cluster.on_durable = lambda commit: nobody_is_ahead(cluster)
    for _ in range(2):
        await cluster.join()
    sent: list[Item] = []
    for step in range(60):
        if random.random() < 0.15:
            scripts.append(shelf.add(f"p{len(scripts)}"))
        if random.random() < 0.08:
            await cluster.crash(random.choice(cluster.alive))
            await cluster.join()
        for script in random.sample(scripts, random.randint(1, len(scripts))):
            sent.append(Item(script.identity, len(sent), 10 * step + random.random()))
            script.append(inject(ITEMS, sent[-1]))
        until = cluster.clock.monotonic() + random.random()
        await cluster.go(lambda until=until: cluster.clock.monotonic() >= until)  # type: ignore[misc]
    await cluster.go(lambda: len(cluster.rows()) >= len(sent))
    assert cluster.tallied() == tally_of(sent)
    await cluster.go(lambda: sum(len(e.injectors) for e in cluster.alive) == len(scripts))
    (finder,) = [t for e in cluster.alive for t in e.exchange.source_tasks if t not in e.injectors]
    assert isinstance(finder, PartitionDiscovery)
    for engine in list(cluster.alive):
        await cluster.crash(engine)


async def test_a_discovery_whose_interval_was_claimed_makes_nothing(site: Site) -> None:
    owner = await Owner.take(site.store)
    discovery = owner.injector
    claim = owner.claims[discovery.id]
    at_once = {"x": None, "y": None}
    made = await site.store.add_partitions(discovery.id, claim.interval.sequencer, at_once)
    later = {"y": {"row": 1}, "z": {"row": 2}}
    again = await site.store.add_partitions(discovery.id, claim.interval.sequencer, later)
    assert [found.identity for found in made][-2:] == ["x", "y"]
    assert [found.identity for found in again][-3:] == ["x", "y", "z"]
    slots = [found.slot for found in again]
    assert slots == sorted(set(slots))
    assert min(slots) >= discovery.slot_to
    assert {found.low_watermark for found in made} == {claim.low_watermark}
    placed = {row.id: row for row in (await site.store.read_placement()).intervals}
    assert all(placed[found.interval_id].owner is None for found in again)
    (new,) = await site.store.claim(owner.worker, [again[-1].interval_id])
    assert [log.source for log in new.logs] == ["z"]
    assert (new.n, new.low_watermark, new.new_log) == (0, claim.low_watermark, 0)
    assert new.position == {"row": 2}
    (old,) = await site.store.claim(owner.worker, [again[-2].interval_id])
    assert old.position is None, "it was there"
    await owner.claim(discovery)
    with pytest.raises(Fenced):
        await site.store.add_partitions(discovery.id, claim.interval.sequencer, {"w": None})
    kept = await site.store.add_partitions(discovery.id, claim.interval.sequencer, {})
    assert [found.identity for found in kept] == [found.identity for found in again]


async def test_partitions_that_have_ended_are_deleted_and_their_slots_used_again(
    site: Site,
) -> None:
    owner = await Owner.take(site.store)
    discovery = owner.injector
    sequencer = owner.claims[discovery.id].interval.sequencer
    positions = {"x": {"ended": True}, "y": None, "z": {"ended": True}}
    made = await site.store.add_partitions(discovery.id, sequencer, positions)
    assert [found.position for found in made][-3:] == [{"ended": True}, None, {"ended": True}]
    ended = [found.interval_id for found in made if found.identity in "xz"]
    rest = await site.store.retire_partitions(discovery.id, sequencer, ended)
    assert [found.identity for found in rest] == [
        f.identity for f in made if f.identity not in "xz"
    ]
    assert await site.store.retire_partitions(discovery.id, sequencer, ended) == rest
    placed = {row.id for row in (await site.store.read_placement()).intervals}
    assert not placed & set(ended)
    again = await site.store.add_partitions(discovery.id, sequencer, {"x": None, "v": None})
    slots = {found.identity: found.slot for found in again}
    before = {found.identity: found.slot for found in made}
    assert slots["x"] == before["x"]
    assert slots["v"] == before["z"]
    await owner.claim(discovery)
    (kept,) = [found.interval_id for found in again if found.identity == "y"]
    rest = await site.store.retire_partitions(discovery.id, sequencer, [kept])
    assert "y" in [found.identity for found in rest], "another worker has claimed the discovery"


def test_a_slot_without_a_partition_holds_nothing() -> None:
    watermarks = Watermarks()
    watermarks.add_sender(1, 1, free=9)
    watermarks.add_reader(2, [1])
    for slot, time in ((1, 20), (2, 40), (0, 50)):
        watermarks.report(WatermarkReport(1, slot, slot + 1, 10 + slot, time))
    assert watermarks.input(2) == 20
    assert watermarks.free(1, 1, {2}) == [2]
    assert watermarks.input(2) == 40
    assert watermarks.free(1, 1, set()) == [2]
    assert watermarks.input(2) == 50, "slot 0 is the discovery's"
    watermarks.report(WatermarkReport(1, 1, 2, 20, 60))
    assert (watermarks.at(1, 1), watermarks.least_from(1, 1)) == (60, 60)


def test_slots_of_partitions_to_come_count_from_their_first_report_on() -> None:
    kept = Watermarks()
    kept.add_sender(1, 1, free=9)
    kept.add_reader(2, [1])
    assert kept.least_from(1, 1) is None
    kept.report(WatermarkReport(1, 0, 1, 5, 100))
    assert kept.input(2) == 100
    kept.report(WatermarkReport(1, 3, 4, 6, 70))
    assert (kept.input(2), kept.least(1), kept.least_from(1, 1)) == (100, 70, 70)
    kept.report(WatermarkReport(1, 0, 1, 5, 200))
    assert kept.input(2) == 100
    kept.report(WatermarkReport(1, 3, 4, 6, 150))
    assert (kept.input(2), kept.least_from(1, 1)) == (150, 150)
    kept.report(WatermarkReport(1, 0, 10, 99, MAX_TIME))
    assert kept.all_at_end()


# -- gaps in the numbers ------------------------------------------------------------------------


class Sparse(Script):
    """A script whose rows have numbers of their own: with gaps of any length."""

    def __init__(self, name: str, values: Sequence[Any], numbers: Sequence[int]) -> None:
        super().__init__(name, [v if hasattr(v, "stream") else inject(ITEMS, v) for v in values])
        self.numbers = list(numbers)

    async def open(self, value_type: Any, position: dict[str, Any] | None) -> ScriptReader:
        start = position["row"] if position else 0
        place = sum(number < start for number in self.numbers)
        return self.opened(SparseReader(self, value_type, place))


class SparseReader(ScriptReader):
    async def read(self, limit: int) -> list[Row]:
        rows = list(await super().read(limit))
        script = self._script
        assert isinstance(script, Sparse)
        for row in rows:
            row.offset = script.numbers[row.offset]
        return rows


def spread_out(count: int, random: Random, longest: int) -> list[int]:
    numbers, number = [], random.randint(0, longest)
    for _ in range(count):
        numbers.append(number)
        number += 1 if random.random() < 0.5 else random.randint(1, longest)
    return numbers


@settings(max_examples=examples(30), deadline=None, derandomize=True)
@given(
    st.integers(0, 10_000),
    st.dictionaries(st.integers(0, 30), st.sampled_from(FAULTS), max_size=4),
    st.sampled_from([3, 1000, 10_000_000]),
    st.sampled_from([1, 5, 1000]),
)
def test_rows_behind_gaps_count_once_through_any_faults(
    seed: int, faults: dict[int, str], longest: int, credits_: int
) -> None:
    random = Random(seed)
    values = [Item("abc"[n % 3], n, n) for n in range(random.randint(1, 30))]
    limits = replace(
        QUICK, max_unacked_records=credits_, chunk_records=random.choice([1, 4, 100]),
        source_bucket_rows=100, bucket_seconds=2.0, housekeeping_seconds=0.1,
    )  # fmt: skip
    numbers = spread_out(len(values), random, longest)

    def build(values: list[Item], limits: Settings) -> Pipeline:
        pipeline = Pipeline("sparse", settings=limits)
        pipeline.inject(ITEMS, Sparse("rows", values, numbers), timestamp=time_of)
        pipeline.add(Tally(), ITEMS.by(key_of))
        pipeline.sink(TALLY, Table("out", Counted, numbered=True))
        return pipeline

    async def go() -> None:
        world = await run_plan(Plan(limits, values, faults), build)
        assert world.tallied() == tally_of(values)

    asyncio.run(go())


async def test_a_gap_of_millions_takes_neither_credits_nor_buckets() -> None:
    numbers = [0, 1, 50_000_000, 50_000_001, 90_000_000_000]
    values = [Item("a", n, n) for n in range(5)]
    limits = replace(QUICK, max_unacked_records=3, chunk_records=10)
    pipeline = Pipeline("sparse", settings=limits)
    pipeline.inject(ITEMS, Sparse("rows", values, numbers), timestamp=time_of)
    pipeline.add(Tally(), ITEMS.by(key_of))
    pipeline.sink(TALLY, Table("out", Counted, numbered=True))
    world = World(pipeline)
    opened: list[Commit] = []
    world.on_durable = opened.append
    await world.run()
    assert world.numbers() == [0, 1, 2, 3, 4]
    family = [b.row for b in world.store.tables.buckets.values() if b.row.family == "source"]
    assert len(family) <= 3
    (log,) = world.interval("items_injector").logs
    assert (log.first, log.absent, log.unacked) == (90_000_000_001, 0, 0)


@settings(max_examples=examples(200), derandomize=True)
@given(st.integers(0, 100_000))
def test_a_log_with_gaps_is_one_without_that_has_other_numbers(seed: int) -> None:
    """Against a log of the same rows numbered without gaps: prefix, credits, holds are the same."""
    random = Random(seed)
    numbers = spread_out(random.randint(1, 20), random, random.choice([2, 1_000_000]))
    sparse, dense = SentLog(1, Holds(), source=True), SentLog(1, Holds(), source=True)
    done = 0
    waiting: list[int] = []
    while done < len(numbers) or waiting:
        if done < len(numbers) and (not waiting or random.random() < 0.5):
            end = random.randint(done + 1, len(numbers))
            gaps, start = [], sparse.next_seq
            for number in numbers[done:end]:
                if number > start:
                    gaps.append((start, number))
                start = number + 1
            sparse.lack(gaps)
            sparse.sent(numbers[end - 1] + 1, 7, 3)
            dense.sent(end, 7, 3)
            waiting += range(done, end)
            done = end
        else:
            count = random.randint(1, len(waiting))
            acked = random.sample(waiting, count)
            waiting = [place for place in waiting if place not in acked]
            sparse.acknowledge([numbers[place] for place in acked])
            dense.acknowledge(acked)
        prefix = dense.first
        at_least = numbers[prefix - 1] + 1 if prefix else 0
        assert at_least <= sparse.first <= (numbers[prefix] if prefix < done else sparse.next_seq)
        assert sparse.unacked == dense.unacked
        assert sparse.next_seq - sparse.first - sparse.absent == dense.next_seq - dense.first
        assert sparse.unacked_bytes == dense.unacked_bytes
        assert sparse.drained == dense.drained
