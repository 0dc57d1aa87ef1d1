"""The services beside the lanes: none of them keeps another waiting, and the lease least of all."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace

import pytest

from millwheel.errors import Fenced, StoreUnavailable
from millwheel.runtime.engine import Engine
from millwheel.runtime.interval.interval import Interval
from millwheel.runtime.interval.interval_fold import fold
from millwheel.runtime.process.lease import MARGIN
from millwheel.runtime.process.tasks import end
from millwheel.runtime.upkeep.folding import OLD_SNAPSHOT_SECONDS, PATIENCE_WITH_SNAPSHOTS
from millwheel.store.port.placement import Wish
from millwheel.testing import inject
from tests.support.clusters import SHARED, Cluster, counting, many
from tests.support.pipelines import QUICK, script, tally_pipeline
from tests.support.values import ITEMS, Item, items, tally_of
from tests.support.worlds import Gate, World, read_on

FOLDS = replace(QUICK, fold_seconds=1.0, housekeeping_seconds=0.1)


class Folds:
    """Sees the folds that a store is asked for; holds up those of some intervals."""

    def __init__(self, world: World) -> None:
        self._fold = world.store.fold
        self.gates: dict[int, Gate] = {}
        """By interval; those that have none fold at once."""
        self.asked: list[int] = []
        self.at_a_time: Counter[int] = Counter()
        self.most_at_a_time = 0
        world.store.fold = self.fold  # type: ignore[method-assign]

    async def fold(self, interval_id: int, sequencer: int, after: int, through: int) -> bool:
        self.asked.append(interval_id)
        self.at_a_time[interval_id] += 1
        self.most_at_a_time = max(self.most_at_a_time, self.at_a_time[interval_id])
        try:
            if interval_id in self.gates:
                await self.gates[interval_id].wait()
            return await self._fold(interval_id, sequencer, after, through)
        finally:
            self.at_a_time[interval_id] -= 1


async def pass_time(world: World, seconds: float) -> None:
    """Let everybody go on for so long."""
    ends = world.clock.monotonic() + seconds
    await world.until(lambda: world.clock.monotonic() > ends, tick=0.01)


# -- who waits for what ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "waits"),
    [
        ("oldest_snapshot_seconds", "folding"),
        ("fold", "folding"),
        ("retire_logs", "folding"),
        ("advance_gc_watermark", "folding"),
        ("drop_bucket", "folding"),
        ("view_buckets", "housekeeping"),
    ],
)
async def test_the_lease_waits_for_nothing(call: str, waits: str) -> None:
    values = many(400)
    limits = replace(SHARED, bucket_seconds=2.0, fold_seconds=0.5, housekeeping_seconds=0.1)
    cluster = Cluster(counting(values, limits))
    first, second = await cluster.join(), await cluster.join()
    gate = Gate()
    repeated: list[float] = []
    looked: list[float] = []

    async def hang(name: str) -> None:
        task = asyncio.current_task()
        assert task is not None
        if name == call and task.get_name() == waits:
            await gate.wait()

    courier, ensure = first.courier, first.buckets.ensure_current
    assert courier is not None
    repeat = courier.sender.repeat

    def repeats() -> None:
        repeated.append(cluster.clock.monotonic())
        repeat()

    async def ensures() -> None:
        looked.append(cluster.clock.monotonic())
        await ensure()

    courier.sender.repeat = repeats  # type: ignore[method-assign]
    first.buckets.ensure_current = ensures  # type: ignore[method-assign]
    await cluster.go(lambda: first.processed > 20)
    cluster.store.faults.before_call = hang
    if call == "retire_logs":  # a new owner has the former one's log, which drains
        moved = next(row for row in await cluster.parts("tally") if row.owner == first.worker)
        await cluster.store.wish(
            [Wish(moved.id, moved.sequencer, second.worker, "a test wants it")]
        )
    await cluster.go(lambda: gate.reached)
    began = cluster.clock.monotonic()

    def hangs_for_long() -> bool:
        assert min(first.lease.left, second.lease.left) > 0.3 * limits.lease_seconds
        return cluster.clock.monotonic() > began + 4 * limits.lease_seconds

    await cluster.go(hangs_for_long)
    assert gate.reached <= 2, "one at a time"
    if waits == "folding":
        assert sum(at > began for at in repeated) > 50
        assert sum(at > began for at in looked) > 50
    gate.open()
    await cluster.finish_soon(values)


async def test_a_worker_that_takes_long_to_claim_keeps_its_lease() -> None:
    world = World(tally_pipeline(script(ITEMS, items(1, 2, 3))))
    gate = Gate()

    async def hang(name: str) -> None:
        if name == "claim":
            await gate.wait()

    world.store.faults.before_call = hang
    starting = asyncio.ensure_future(world.start())
    await world.until(lambda: gate.reached, tick=0.01)
    await pass_time(world, 3 * QUICK.lease_seconds)
    (engine,) = world.engines
    (row,) = await world.store.other_workers("")
    assert row.lease_left > 0
    assert engine.lease.left > 0
    gate.open()
    await starting
    await world.finish(engine)
    assert world.tallied() == tally_of(items(1, 2, 3))


async def test_a_heartbeat_that_fails_is_tried_again_long_before_the_next() -> None:
    world = World(tally_pipeline(script(ITEMS, items(1)), replace(QUICK, housekeeping_seconds=1e9)))
    engine = await world.start()
    beats: list[float] = []
    away = False

    async def count(name: str) -> None:
        if name == "heartbeat":
            beats.append(world.clock.monotonic())
            if away:
                raise StoreUnavailable("away")

    world.store.faults.before_call = count
    await pass_time(world, 60)
    beats_a_lease = len(beats) * QUICK.lease_seconds / 60
    assert 2.5 <= beats_a_lease <= 3.3
    away = True
    beats.clear()
    await pass_time(world, 10)
    assert len(beats) >= 10
    away = False
    await pass_time(world, 1)
    assert engine.lease.left > 0.6 * QUICK.lease_seconds
    await engine.stop()


async def test_a_lease_counts_from_when_it_was_asked_for() -> None:
    """By the store's clock it may count from then: others begin when that is over."""
    world = World(tally_pipeline(script(ITEMS, items(1))))
    engine = await world.start()
    gate = Gate()

    async def late(name: str) -> None:
        if name == "heartbeat":
            await gate.wait()

    world.store.faults.before_call = late
    await world.until(lambda: gate.reached, tick=0.01)
    before = engine.lease.left
    await pass_time(world, 4)
    gate.open()
    await world.turns(10)
    usable = QUICK.lease_seconds * (1 - MARGIN)
    assert max(0, before - 4) < engine.lease.left <= usable - 4
    await engine.stop()


async def test_who_was_ended_by_somebody_fails_with_its_heartbeat() -> None:
    world = World(tally_pipeline(script(ITEMS, items(1))))
    engine = await world.start()
    await world.until(engine.done.is_set)
    await world.store.stop_worker(engine.worker)
    with pytest.raises(Fenced):
        await pass_time(world, QUICK.lease_seconds)
    await engine.stop()


# -- folds -------------------------------------------------------------------------------------


def first_two(engine: Engine) -> tuple[Interval, Interval]:
    """Intervals that fold, and that others may have."""
    tally, recount, *_ = [i for i in engine.intervals if i.step.name in ("tally", "recount")]
    return tally, recount


async def test_an_interval_is_folded_by_one_at_a_time() -> None:
    """Who gives it up folds it too, and waits for the fold that is under way."""
    values = many(400)
    cluster = Cluster(counting(values, replace(SHARED, fold_seconds=0.5)))
    engine = await cluster.join()
    await cluster.go(lambda: engine.processed > 20)
    interval, _ = first_two(engine)
    folds = Folds(cluster)
    gate = folds.gates[interval.id] = Gate()
    await cluster.go(lambda: gate.reached)
    await end([task for task in engine.env.tasks if task.get_name() == "claiming"])
    giving = asyncio.ensure_future(engine.owned.give_up(interval))
    ends = cluster.clock.monotonic() + 3 * SHARED.lease_seconds
    await cluster.go(lambda: cluster.clock.monotonic() > ends)
    assert not giving.done()
    assert interval.ownership.value == "held"
    assert gate.reached == 1
    gate.open()
    await cluster.go(giving.done)
    assert giving.result() is True
    assert interval.commits.folded == interval.commits.durable_n
    assert cluster.store.tables.intervals[interval.id].folded == interval.commits.durable_n
    assert folds.most_at_a_time == 1
    await cluster.crash(engine)


async def test_what_was_let_go_of_while_another_was_folded_is_folded_no_more() -> None:
    values = many(400)
    cluster = Cluster(counting(values, replace(SHARED, fold_seconds=0.5)))
    engine = await cluster.join()
    await cluster.go(lambda: engine.processed > 20)
    folds = Folds(cluster)
    folded, waits = first_two(engine)
    gate = folds.gates[folded.id] = Gate()
    await cluster.go(lambda: gate.reached and waits.commits.changed_since_fold)
    await end([task for task in engine.env.tasks if task.get_name() == "claiming"])
    await cluster.pass_time(engine.owned.lose(waits))
    folds.asked.clear()
    gate.open()
    ends = cluster.clock.monotonic() + 5
    await cluster.go(lambda: cluster.clock.monotonic() > ends)
    assert waits.id not in folds.asked
    assert set(engine.folding._folded_at) <= set(engine.intervals), "it is remembered for ever"
    await cluster.crash(engine)


async def test_a_fold_that_ends_after_its_lane_started_over_changes_nothing_here() -> None:
    source = script(ITEMS, items(*range(5)))
    world = World(tally_pipeline(source, replace(QUICK, housekeeping_seconds=1e9)))
    engine = await world.start()
    await world.until(engine.done.is_set)
    interval = world.interval("tally")
    gate, in_store = Gate(), world.store.fold

    async def answer_late(interval_id: int, sequencer: int, after: int, through: int) -> bool:
        folded = await in_store(interval_id, sequencer, after, through)
        await gate.wait()
        return folded

    world.store.fold = answer_late  # type: ignore[method-assign]
    folding = asyncio.ensure_future(fold(engine.store, interval))
    await world.until(lambda: gate.reached)
    await engine.owned.restoring.restore([interval])
    assert interval.commits.changed_since_fold == 0
    assert interval.commits.folded == interval.commits.durable_n
    for number in range(5, 8):
        source.append(inject(ITEMS, Item("b", number)))
    read_on(engine)
    await world.until(engine.done.is_set)
    changed = interval.commits.changed_since_fold
    assert changed > 0
    gate.open()
    assert await folding is True
    assert interval.commits.changed_since_fold == changed
    await engine.stop()


async def test_an_interval_that_cannot_be_folded_keeps_no_other_waiting_and_no_bucket() -> None:
    values = [Item("ab"[n % 2], n) for n in range(20)]
    world = World(tally_pipeline(script(ITEMS, values), replace(FOLDS, bucket_seconds=8.0)))
    engine = await world.start()
    fold, bad = world.store.fold, world.interval("tally").id
    collected: list[float] = []

    async def refuse(interval_id: int, sequencer: int, after: int, through: int) -> bool:
        if interval_id == bad:
            raise StoreUnavailable("statement timeout")
        return await fold(interval_id, sequencer, after, through)

    async def note(name: str) -> None:
        if name == "advance_gc_watermark":
            collected.append(world.clock.monotonic())

    world.store.fold = refuse  # type: ignore[method-assign]
    world.store.faults.before_call = note
    await world.until(engine.done.is_set)
    await pass_time(world, 10)
    assert {i.id for i in engine.intervals if i.commits.folded < i.commits.durable_n - 2} == {bad}
    assert len(collected) > 5
    world.store.fold = fold  # type: ignore[method-assign]
    await pass_time(world, 3)
    assert world.interval("tally").commits.changed_since_fold == 0
    await engine.stop()


async def test_an_interval_that_changes_all_the_time_is_folded_now_and_then() -> None:
    values = [Item("a", n, n) for n in range(300)]
    world = World(tally_pipeline(script(ITEMS, values), replace(FOLDS, chunk_records=1)))
    folds = Folds(world)
    engine = await world.start()
    interval = world.interval("tally")
    await world.until(lambda: folds.asked, tick=0.01)
    began, before = world.clock.monotonic(), len(folds.asked)
    await world.until(engine.done.is_set, tick=0.01)
    passed = world.clock.monotonic() - began
    assert passed > 3 * FOLDS.fold_seconds
    assert folds.asked[before:].count(interval.id) <= passed / FOLDS.fold_seconds + 1
    await engine.stop()


@pytest.mark.parametrize("before", [False, True], ids=["first", "later"])
async def test_a_fold_waits_for_an_old_snapshot_but_not_for_ever(before: bool) -> None:
    source = script(ITEMS, items(*range(5)))
    world = World(tally_pipeline(source, FOLDS))
    world.clock.advance(1000)  # it is old, and the worker is not
    if not before:
        world.store.snapshot_seconds = OLD_SNAPSHOT_SECONDS + 1
    engine = await world.start()
    interval = world.interval("tally")
    await world.until(engine.done.is_set)
    if before:
        await world.until(lambda: not interval.commits.changed_since_fold, tick=0.01)
        world.store.snapshot_seconds = OLD_SNAPSHOT_SECONDS + 1
        source.append(inject(ITEMS, Item("a", 5)))
        read_on(engine)
        await world.until(engine.done.is_set)
    waits = PATIENCE_WITH_SNAPSHOTS * FOLDS.fold_seconds
    await pass_time(world, waits - 1)
    assert interval.commits.changed_since_fold
    await pass_time(world, 2)
    assert not interval.commits.changed_since_fold
    await engine.stop()


async def test_a_tail_that_is_long_does_not_wait_for_an_old_snapshot() -> None:
    limits = replace(FOLDS, fold_tail_rows=5)
    world = World(tally_pipeline(script(ITEMS, [Item(f"{n}", n) for n in range(5)]), limits))
    world.store.snapshot_seconds = OLD_SNAPSHOT_SECONDS + 1
    engine = await world.start()
    interval = world.interval("tally")
    await world.until(engine.done.is_set)
    assert interval.commits.changed_since_fold >= 5
    await pass_time(world, 2)
    assert not interval.commits.changed_since_fold
    await engine.stop()
