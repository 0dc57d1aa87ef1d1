"""Intervals that are to leave while user code keeps them: the worker looks after all else
meanwhile."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import datetime, timedelta
from random import Random
from uuid import UUID

import pytest

from millwheel import Computation, Context, Pipeline, Record, Settings, Stream, Table
from millwheel.core.counters import STRAGGLERS
from millwheel.errors import StoreError, StoreUnavailable
from millwheel.runtime.engine import Engine
from millwheel.runtime.interval.interval import Interval
from millwheel.runtime.lane.committer import Committing
from millwheel.runtime.process.tasks import end
from millwheel.services.operating import Operator
from millwheel.store.port.commit import Commit
from millwheel.store.port.placement import (
    Lapse,
    MergeWish,
    Placement,
    PlacementChange,
    SplitWish,
    Wish,
)
from millwheel.testing.fake_network import Weather
from tests.support.clusters import AGAIN, SHARED, Cluster, Recount, check, many, number_of
from tests.support.drawing import seeds
from tests.support.pipelines import Broken, Tally, script, tally_pipeline
from tests.support.values import ITEMS, TALLY, Count, Counted, Item, key_of, time_of
from tests.support.worlds import Gate, World

STUCK = "key 3"


class Waiting(Tally):
    """Counts, and waits for a gate with each item of some keys."""

    def __init__(self, gate: Gate, keys: set[str]) -> None:
        self._gate = gate
        self._keys = keys

    async def process_record(self, record: Record[Item], ctx: Context[Count]) -> None:
        if record.value.key in self._keys:
            await self._gate.wait()
        await super().process_record(record, ctx)


class Held(Cluster):
    """A cluster whose code waits with one key, and whose intervals move when the test says so."""

    def __init__(
        self,
        values: list[Item],
        keys: set[str] | None = None,
        limits: Settings = SHARED,
        weather: Weather | None = None,
    ) -> None:
        self.gate = Gate()
        self.were_two = False
        """Both workers have been there: only then the intervals are given out."""
        self.values = values
        pipeline = Pipeline("counting", settings=limits)
        for number in range(2):
            rows = script(ITEMS, values[number::2], f"part {number}")
            pipeline.inject(ITEMS, rows, timestamp=time_of, name=f"source_{number}")
        pipeline.add(Waiting(self.gate, {STUCK} if keys is None else keys), ITEMS.by(key_of))
        pipeline.add(Recount(), TALLY.by(number_of))
        pipeline.sink(AGAIN, Table("out", Counted, numbered=True))
        super().__init__(pipeline, weather)

    async def pair(self) -> tuple[Engine, Engine]:
        """Two workers, that decide nothing."""
        first = await self.join()
        await self.obey(first)
        second = await self.join()
        await self.obey(second)
        return first, second

    async def stuck(self) -> tuple[Engine, Engine, Interval]:
        """Two workers; the first has the interval in which the key waits, and nobody decides
        anything."""
        first, second = await self.pair()
        await self.go(lambda: self.gate.reached and len(second.intervals) >= 2)
        (interval,) = (i for e in self.alive for i in e.intervals if b'"key 3"' in i.backlog)
        if interval in second.intervals:
            first, second = second, first
        return first, second, interval

    async def obey(self, engine: Engine) -> None:
        """A worker decides only who has what is nobody's, at home with whoever is there."""

        def decide(placement: Placement) -> list[PlacementChange]:
            alive = [w.id for w in placement.workers if w.lease_left > 0]
            self.were_two |= len(alive) > 1
            if not self.were_two:
                return []
            return [
                Wish(row.id, row.sequencer, alive[row.id % len(alive)], "it was nobody's")
                for row in placement.intervals
                if row.wanted_by not in alive and (row.owner is None or row.lease_over)
            ]

        await end([task for task in engine.env.tasks if task.get_name() == "claiming"])
        engine.attend(lambda it: it.claiming(decide), "claiming")

    async def wish(self, interval: Interval, worker: Engine) -> None:
        """Let a worker have an interval."""
        wish = Wish(interval.id, interval.commits.sequencer, worker.worker, "a test wants it")
        assert await self.store.wish([wish]) == [interval.id]

    async def let_leave(self, what: str, interval: Interval, other: Engine) -> None:
        """Wish that an interval be moved or cut."""
        row, *_ = [row for row in await self.parts("waiting") if row.id == interval.id]
        if what == "move":
            await self.wish(interval, other)
        elif what == "split":
            middle = (row.slot_from + row.slot_to) // 2
            await self.store.wish([SplitWish(row.id, row.sequencer, middle, "a test wants it")])
        else:
            lower, upper = await self.parts("waiting")
            here = next(e for e in self.alive if interval in e.intervals)
            moved = upper if lower.id == interval.id else lower
            await self.store.wish([Wish(moved.id, moved.sequencer, here.worker, "to be merged")])
            await self.go(lambda: here.exchange.held(moved.id) is not None)
            lower, upper = await self.parts("waiting")
            merge = MergeWish(lower.id, lower.sequencer, upper.id, "a test wants it")
            assert await self.store.wish([merge]) == [lower.id]
        await self.go(lambda: interval.leaving)

    async def commit_or_wait(self, number: int) -> None:
        """Let so many more commits become durable, or a while pass: all may wait."""
        commits, until = len(self.commits) + number, self.clock.monotonic() + 2
        await self.go(lambda: len(self.commits) >= commits or self.clock.monotonic() > until)

    async def happen(self, random: Random) -> None:
        """Something, to somebody."""
        engine, other = (random.choice(self.alive) for _ in range(2))
        what = random.choice(
            ["move", "move", "move", "split", "merge", "join", "crash", "leave", "cut", "gate"]
        )
        if what == "move":
            placement = await self.store.read_placement()
            row = random.choice(placement.intervals)
            await self.store.wish([Wish(row.id, row.sequencer, other.worker, "chaos")])
        elif what in ("split", "merge"):
            await self.cut(random.randrange(20), 0.5 if what == "split" else None)
        elif what == "join" and len(self.alive) < 4:
            await self.join()
        elif what == "crash" and len(self.alive) > 1:
            await self.crash(engine)
        elif what == "leave" and len(self.alive) > 1:
            await self.leave(engine)
        elif what == "cut" and engine is not other:
            self.ether.cut(*(f"w{self.engines.index(one)}" for one in (engine, other)))
        elif what == "gate":
            self.gate.open()
            self.gate.shut()  # who waited goes on

    async def live(self, seconds: float) -> None:
        until = self.clock.monotonic() + seconds
        await self.go(lambda: self.clock.monotonic() > until)

    async def end(self) -> None:
        await self.finish_soon(self.values)
        for engine in list(self.alive):
            await self.leave(engine)


def note_kept(engine: Engine) -> list[Interval]:
    """The intervals that a worker has kept, from now on."""
    kept: list[Interval] = []
    keep = engine.owned.keep

    def note(interval: Interval) -> None:
        kept.append(interval)
        keep(interval)

    engine.owned.keep = note  # type: ignore[method-assign]
    return kept


@pytest.mark.parametrize("what", ["move", "split", "merge"])
async def test_who_waits_for_a_key_takes_over_from_who_died(what: str) -> None:
    cluster = Held(many(400))
    first, second, interval = await cluster.stuck()
    await cluster.let_leave(what, interval, second)
    lost = {i.id for i in second.intervals}
    assert lost
    await cluster.crash(second)
    until = cluster.clock.monotonic() + 3 * SHARED.lease_seconds
    await cluster.go(
        lambda: all(first.exchange.knows(id_) for id_ in lost) or cluster.clock.monotonic() > until
    )
    assert all(first.exchange.knows(id_) for id_ in lost)
    assert b'"key 3"' in interval.backlog, "it waits as before"
    cluster.gate.open()
    await cluster.end()


async def test_one_that_drains_keeps_no_other_from_being_handed_over_or_cut() -> None:
    cluster = Held(many(1000))
    first, second, interval = await cluster.stuck()
    kept = note_kept(first)
    await cluster.wish(interval, second)
    await cluster.go(lambda: interval.leaving)
    other, *_ = (i for i in first.intervals if i.step.name == "recount")
    partition, *_ = [i for e in cluster.alive for i in e.intervals if i.source_task is not None]
    to = second if partition in first.intervals else first
    middle = sum(other.slots) // 2
    await cluster.wish(partition, to)
    await cluster.store.wish(
        [SplitWish(other.id, other.commits.sequencer, middle, "a test wants it")]
    )
    await cluster.go(lambda: to.exchange.held(partition.id))
    await cluster.go(lambda: len(first.exchange.of(other.step.id)) == 2)
    assert first.exchange.held(other.id) is not other, "it was cut"
    await cluster.live(1.0)
    assert interval in first.intervals
    assert not kept, "it is still wished away"
    cluster.gate.open()
    await cluster.go(lambda: second.exchange.held(interval.id))
    await cluster.end()


async def test_what_drains_is_handed_over_as_soon_as_its_keys_are_through() -> None:
    cluster = Held(many(400), limits=replace(SHARED, placement_seconds=1.0))
    first, second, interval = await cluster.stuck()
    await cluster.wish(interval, second)
    await cluster.go(lambda: interval.leaving)
    await cluster.live(2.5)
    cluster.gate.open()
    began = cluster.clock.monotonic()
    await cluster.go(lambda: not first.exchange.knows(interval.id))
    assert cluster.clock.monotonic() - began < 0.5
    await cluster.end()


@pytest.mark.parametrize("why", ["died", "thought again", "lapsed"])
async def test_what_nobody_wishes_away_any_more_goes_on_but_for_the_key_that_waits(
    why: str,
) -> None:
    """Its other keys have records here and at the other worker."""
    cluster = Held(many(600))
    first, second, interval = await cluster.stuck()
    if why == "lapsed":
        await cluster.let_leave("merge", interval, second)
    else:
        await cluster.wish(interval, second)
        await cluster.go(lambda: interval.leaving)
    before = interval.commits.durable_n
    await cluster.live(1.0)
    if why == "died":
        await cluster.crash(second)
    elif why == "thought again":  # as `millwheel intervals move` does
        operator = Operator(cluster.store, cluster.clock, print)
        await operator.move(interval.id, first.worker, None)
    else:
        lower, _ = await cluster.parts("waiting")
        lapse = Lapse(lower.id, lower.sequencer, "a test thinks again")
        assert await cluster.store.wish([lapse]) == [lower.id]
        await cluster.go(lambda: not any(i.leaving for i in first.intervals))
    await cluster.go(lambda: first.exchange.held(interval.id) is interval)
    await cluster.go(lambda: interval.commits.durable_n > before + 5, turns=5_000)
    assert b'"key 3"' in interval.backlog
    cluster.gate.open()
    await cluster.end()


FIRST = Stream("first", Item)


class Relay(Computation[Item, None]):
    """Passes items on, those of some keys after the gate has opened."""

    writes = (FIRST,)

    def __init__(self, gate: Gate, keys: set[str]) -> None:
        self._gate = gate
        self._keys = keys

    async def process_record(self, record: Record[Item], ctx: Context[None]) -> None:
        if record.value.key in self._keys:
            await self._gate.wait()
        ctx.produce(FIRST, record.value)


async def test_what_a_kept_interval_has_sent_weakly_waits_no_longer_than_elsewhere() -> None:
    """It was drained, and nobody watched its inputs."""
    here, there = Gate(), Gate()
    made = Pipeline("weakly", settings=SHARED)
    made.inject(ITEMS, script(ITEMS, [Item("a", 0), Item("d", 1)]), timestamp=time_of)
    made.add(
        Relay(here, {"a"}),
        ITEMS.by(key_of),
        name="relay",
        productions="weak",
        straggler_after=timedelta(seconds=1),
    )
    made.add(Waiting(there, {"d"}), FIRST.by(key_of))
    made.sink(TALLY, Table("out", Counted, numbered=True))
    cluster = Cluster(made)
    engine = await cluster.join()
    await cluster.go(lambda: here.reached and there.reached)
    await end([task for task in engine.env.tasks if task.get_name() == "claiming"])
    engine.attend(lambda it: it.claiming(lambda _: []), "claiming")
    parts = [i for i in engine.intervals if i.step.name == "relay"]
    lower, upper = sorted(parts, key=lambda i: i.slots)
    (drained,) = (i for i in parts if b'"a"' not in i.backlog)
    assert await cluster.store.wish(
        [MergeWish(lower.id, lower.commits.sequencer, upper.id, "test")]
    )
    await cluster.go(lambda: drained.drained)
    until = cluster.clock.monotonic() + 2
    await cluster.go(lambda: cluster.clock.monotonic() > until)
    assert await cluster.store.wish([Lapse(lower.id, lower.commits.sequencer, "thought again")])
    await cluster.go(lambda: drained.counters.totals.get(STRAGGLERS), turns=500)
    for gate in (here, there):
        gate.open()
    await cluster.go(cluster.finished)
    assert sorted(cluster.numbers()) == [0, 1]
    await cluster.leave(engine)


@pytest.mark.parametrize("through", [True, False])
async def test_a_worker_that_stops_hands_over_what_comes_through_in_time(through: bool) -> None:
    cluster = Held(many(400))
    first, second, interval = await cluster.stuck()
    await cluster.wish(interval, second)
    await cluster.go(lambda: interval.leaving)
    await cluster.live(1.0)
    cluster.alive.remove(first)
    leaving = asyncio.ensure_future(first.stop())
    await cluster.go(lambda: first.intervals == [interval])
    if through:
        cluster.gate.open()
        await cluster.go(lambda: not first.intervals)
        assert not leaving.done()
    await cluster.go(leaving.done)
    await leaving
    released = [e for e in cluster.store.placement_events() if e.what == "release"]
    assert (interval.id in {event.interval_id for event in released}) is through
    cluster.gate.open()
    await cluster.end()


async def test_what_two_give_up_is_released_once() -> None:
    cluster = Held(many(400))
    first, _, interval = await cluster.stuck()
    folds = Gate()

    async def fold_late(name: str) -> None:
        if name == "fold" and interval.drained:
            await folds.wait()

    cluster.store.faults.before_call = fold_late
    givings = [asyncio.ensure_future(first.owned.give_up(interval)) for _ in range(2)]
    await cluster.go(lambda: interval.leaving)
    cluster.gate.open()
    await cluster.go(lambda: folds.reached)
    assert not await first.owned.give_up(interval), "somebody is at it"
    folds.open()
    await cluster.go(lambda: all(giving.done() for giving in givings))
    assert sorted([await giving for giving in givings]) == [False, True]
    await cluster.end()


async def test_what_came_for_an_interval_that_was_drained_is_stored_if_it_is_kept() -> None:
    cluster = Held(many(40), keys=set())
    engine = await cluster.join()
    await cluster.go(cluster.finished)
    interval = next(i for i in engine.intervals if i.step.name == "waiting")
    await cluster.go(engine.owned.drain(interval).done)
    interval.touch(urgent=True)
    assert not interval.dirty
    before = interval.commits.durable_n
    engine.owned.keep(interval)
    await cluster.go(lambda: interval.commits.durable_n > before, turns=100)
    await cluster.end()


async def test_an_interval_is_not_drained_to_be_merged_with_one_that_leaves() -> None:
    cluster = Held(many(1000))
    first, second, interval = await cluster.stuck()
    lower, upper = await cluster.parts("waiting")
    assert interval.id == upper.id
    wish = Wish(lower.id, lower.sequencer, first.worker, "a test wants it")
    await cluster.store.wish([wish])
    await cluster.go(lambda: first.exchange.held(lower.id))
    lower, upper = await cluster.parts("waiting")
    merge = MergeWish(lower.id, lower.sequencer, upper.id, "a test wants it")
    elsewhere = Wish(upper.id, upper.sequencer, second.worker, "a test thinks again")
    assert len(await cluster.store.wish([merge, elsewhere])) == 2
    await cluster.go(lambda: interval.leaving)
    kept = note_kept(first)
    await cluster.live(1.0)
    assert first.exchange.held(lower.id)
    assert not kept
    cluster.gate.open()
    await cluster.end()


async def test_what_drains_and_is_let_go_of_with_all_else_is_taken_anew() -> None:
    cluster = Held(many(400))
    first, second, interval = await cluster.stuck()
    await cluster.wish(interval, second)
    await cluster.go(lambda: interval.leaving)
    await cluster.live(1.0)
    await cluster.pass_time(first.owned.lose_all())
    assert interval not in first.intervals
    assert not first.owned.draining
    await cluster.go(lambda: any(engine.exchange.held(interval.id) for engine in cluster.alive))
    cluster.gate.open()
    await cluster.end()


class Rest(Computation[Counted, Count]):
    """Nobody needs it; waits for a gate with one key."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate

    async def process_record(self, record: Record[Counted], ctx: Context[Count]) -> None:
        if record.value.key == STUCK:
            await self._gate.wait()
        ctx.state.count += 1


async def at_rest() -> tuple[Held, Engine, Engine, Interval]:
    """As `Held.stuck`, in a computation that can be removed."""
    cluster = Held(many(400), keys=set())
    gate = cluster.gate
    cluster.pipeline.add(Rest(gate), TALLY.by(lambda counted: counted.key))
    first, second = await cluster.pair()
    await cluster.go(lambda: gate.reached)
    (interval,) = (i for e in cluster.alive for i in e.intervals if b'"key 3"' in i.backlog)
    if interval in second.intervals:
        first, second = second, first
    return cluster, first, second, interval


async def test_what_drains_and_is_removed_is_forgotten() -> None:
    cluster, first, second, interval = await at_rest()
    await cluster.wish(interval, second)
    await cluster.go(lambda: interval.leaving)
    cluster.store.remove(["rest"])
    await cluster.go(lambda: interval not in first.intervals, turns=2_000)
    await cluster.end()
    assert cluster.store.pending_productions() == []


async def test_what_is_removed_when_it_is_drained_is_forgotten() -> None:
    """Nothing of it is stored any more, and no commit of it is refused."""
    cluster, first, _, interval = await at_rest()
    lower, upper = await cluster.parts("rest")
    drained = lower if interval.id == upper.id else upper
    await cluster.store.wish([Wish(drained.id, drained.sequencer, first.worker, "to be merged")])
    await cluster.go(lambda: first.exchange.held(drained.id))
    lower, upper = await cluster.parts("rest")
    assert await cluster.store.wish([MergeWish(lower.id, lower.sequencer, upper.id, "test")])
    await cluster.go(lambda: any(i.drained for i in first.intervals))
    kept = note_kept(first)
    cluster.store.remove(["rest"])
    await cluster.go(lambda: not first.exchange.of(interval.step.id), turns=2_000)
    assert not kept
    await cluster.end()
    assert cluster.store.pending_productions() == []


async def test_what_waits_in_an_interval_that_is_removed_as_it_is_given_up_is_done_with() -> None:
    """Its stand-in is gone by then; whoever sent the records would wait for their ACK for ever."""
    cluster, first, _, interval = await at_rest()
    await end([task for task in first.env.tasks if task.get_name() == "claiming"])
    interval.leaving = True  # takes no more
    await cluster.go(lambda: any(d.log in first.exchange.logs for d in interval.intake))
    interval.leaving = False
    first.owned.drain(interval)
    folds = Gate()

    async def fold_late(name: str) -> None:
        if name == "fold" and interval.drained:
            await folds.wait()

    cluster.store.faults.before_call = fold_late
    giving = asyncio.ensure_future(first.owned.give_up(interval))
    cluster.gate.open()
    await cluster.go(lambda: folds.reached)
    assert any(d.log in first.exchange.logs for d in interval.intake), (
        "somebody here waits for its ACK"
    )
    cluster.store.remove(["rest"])
    await cluster.obey(first)
    await cluster.go(lambda: interval.step.removed)
    await cluster.turns(20, tick=0.01)
    folds.open()
    await cluster.go(giving.done)
    assert not await giving
    await cluster.end()
    assert cluster.store.pending_productions() == []


async def test_what_is_removed_as_its_cut_is_taken_back_ends_nobody() -> None:
    cluster, first, _, interval = await at_rest()
    cluster.gate.open()

    async def remove_behind(call: str) -> None:
        if call == "claim":
            cluster.store.faults.before_call = None
            asyncio.get_running_loop().call_soon(cluster.store.remove, ["rest"])

    row = next(row for row in await cluster.parts("rest") if row.id == interval.id)
    cluster.store.faults.before_call = remove_behind
    middle = (row.slot_from + row.slot_to) // 2
    assert await cluster.store.wish([SplitWish(row.id, row.sequencer, middle, "test")])
    await cluster.go(lambda: cluster.store.faults.before_call is None)
    await cluster.go(lambda: not first.exchange.of(interval.step.id))
    await cluster.end()


async def test_nothing_is_stored_of_an_interval_between_its_drain_and_its_release() -> None:
    """A record that it sent is acknowledged while it is folded: its split would be refused."""
    cluster = Held(many(400), keys=set())
    first, _ = await cluster.pair()
    await cluster.go(lambda: first.processed > 60)
    interval = next(i for i in first.intervals if i.step.name == "waiting")
    folds = Gate()

    async def fold_late(name: str) -> None:
        if name == "fold" and interval.drained:
            await folds.wait()

    cluster.store.faults.before_call = fold_late
    giving = asyncio.ensure_future(first.owned.give_up(interval))
    await cluster.go(lambda: folds.reached)
    interval.touch(urgent=True)
    interval.touch(urgent=False)

    def fold_behind(commit: Commit) -> None:
        assert interval.id not in {link.interval_id for link in commit.intervals}

    cluster.on_try = fold_behind
    await cluster.turns(100, tick=0.01)
    cluster.on_try = None
    folds.open()
    await cluster.go(giving.done)
    assert await giving
    middle = sum(interval.slots) // 2
    assert await cluster.store.split(interval.id, interval.commits.sequencer, middle)
    await cluster.end()


async def test_who_has_not_placed_what_was_cut_takes_nothing_of_it() -> None:
    """The lease is as good as over at the look, and is renewed just after that."""
    cluster = Held(many(1000), keys=set())
    first, second = await cluster.pair()
    await cluster.go(lambda: min(first.processed, second.processed) > 60)
    for task in [t for t in first.env.tasks if t.get_name() in ("claiming", "lease guard")]:
        await end([task])
    interval = next(i for i in second.intervals if i.step.name == "recount")
    await end([task for task in second.env.tasks if task.get_name() == "claiming"])
    await cluster.pass_time(give_up(second, interval))
    middle = sum(interval.slots) // 2
    made = await cluster.store.split(interval.id, interval.commits.sequencer, middle)
    rows = {row.id: row for row in await cluster.parts("recount")}
    for id_ in (interval.id, made):
        wish = Wish(id_, rows[id_].sequencer, first.worker, "a test wants it")
        assert await cluster.store.wish([wish])
    first.lease.end()

    async def renew(name: str) -> None:
        if name == "try_lead":
            first.lease.renewed(cluster.clock.monotonic())

    cluster.store.faults.before_call = renew
    placing = first.claiming(lambda _: [])
    await cluster.pass_time(placing.run_once())
    assert first.lease.left > 0
    assert not any(first.exchange.knows(id_) for id_ in (interval.id, made))
    cluster.store.faults.before_call = None
    await cluster.pass_time(placing.run_once())
    assert all(first.exchange.knows(id_) for id_ in (interval.id, made))
    for engine in (first, second):
        await cluster.obey(engine)
    await cluster.end()


async def give_up(engine: Engine, interval: Interval) -> None:
    assert await engine.owned.give_up(interval)


async def test_an_injector_that_is_not_wished_away_any_more_is_given_up_and_taken_back() -> None:
    """Where it would have read on is known by who claims it."""
    cluster = Held(many(800), keys=set())
    first, second = await cluster.pair()
    await cluster.go(lambda: min(first.processed, second.processed) > 60)
    interval = next(i for i in first.intervals if i.source_task is not None)
    commits = Gate()

    async def commit_late(commit: Commit) -> None:
        if interval.id in {link.interval_id for link in commit.intervals}:
            await commits.wait()

    cluster.on_try = commit_late
    await cluster.go(lambda: commits.reached)
    await cluster.wish(interval, second)
    await cluster.go(lambda: interval.leaving)
    await cluster.live(0.5)
    await cluster.wish(interval, first)
    await cluster.live(0.5)
    assert interval in first.intervals
    commits.open()
    await cluster.go(lambda: interval not in first.intervals)
    await cluster.go(lambda: first.exchange.held(interval.id))
    await cluster.end()


async def test_why_a_lone_worker_could_not_take_an_interval_is_told_as_it_is() -> None:
    """There is nobody to whom what waits in it could be sent on."""
    world = World(tally_pipeline(script(ITEMS, many(20))))

    async def refuse(name: str) -> None:
        if name == "live_buckets":
            claimed.append(name)
        if name == "read_productions":
            raise StoreError("it is broken")

    claimed: list[str] = []
    engine = await world.start()
    await world.until(lambda: engine.processed > 5)
    await engine.kill()
    world.store.faults.before_call = refuse
    with pytest.raises(StoreError, match="it is broken"):
        await world.start()
    await world.engines[-1].stop()
    world.store.faults.before_call = None
    await world.run()
    assert sorted(world.numbers()) == list(range(20))


async def test_who_has_missed_that_others_had_an_interval_takes_it_again() -> None:
    """It had nothing to store meanwhile, so that no commit of it was refused."""
    cluster = Held(many(40))
    _, second, _ = await cluster.stuck()
    await cluster.live(2.0)
    interval = next(i for i in second.intervals if i.source_task is None)
    other = str(UUID(int=7))
    (claim,) = await cluster.store.claim(other, [interval.id])
    sequencer = claim.interval.sequencer
    await cluster.store.wish([Wish(interval.id, sequencer, second.worker, "a test wants it")])
    assert await cluster.store.release(other, {interval.id: sequencer})

    def is_his_again() -> bool:
        held = second.exchange.held(interval.id)
        return held is not None and held.commits.sequencer > sequencer

    await cluster.go(is_his_again, turns=2_000)
    cluster.gate.open()
    await cluster.end()


async def test_who_has_missed_that_an_interval_was_merged_lets_go_of_it() -> None:
    cluster = Held(many(40))
    _, second, _ = await cluster.stuck()
    await cluster.live(2.0)
    interval = next(i for i in second.intervals if i.step.name == "recount")
    lower, upper = await cluster.parts("recount")
    other = str(UUID(int=7))
    claims = await cluster.store.claim(other, [lower.id, upper.id])
    sequencers = {claim.interval.id: claim.interval.sequencer for claim in claims}
    for claim in claims:
        sequencer = claim.interval.sequencer
        await cluster.store.fold(claim.interval.id, sequencer, claim.folded, claim.n)
    assert await cluster.store.release(other, sequencers)
    await cluster.store.merge(lower.id, upper.id, sequencers)
    await cluster.go(lambda: interval not in second.intervals, turns=2_000)
    cluster.gate.open()
    await cluster.end()


@pytest.mark.parametrize("then", ["stops", "takes it", "lets go of all"])
async def test_who_stops_while_he_takes_over_leaves_it_to_others(then: str) -> None:
    """What he has claimed he gives up before he has read what is to be sent again."""
    cluster = Held(many(400), set())
    first, second = await cluster.pair()
    await cluster.commit(40)
    gate = Gate()

    async def read_late(name: str) -> None:
        if name == "read_productions":
            await gate.wait()

    cluster.store.faults.before_call = read_late
    await cluster.crash(first)
    await cluster.go(lambda: gate.reached)
    claimed = len(second.intervals)
    cluster.alive.remove(second)
    stopping = asyncio.ensure_future(second.stop())
    await cluster.go(lambda: len(second.intervals) < claimed)
    if then == "takes it":
        gate.open()
    if then == "lets go of all":
        await cluster.pass_time(second.owned.lose_all())
    await cluster.go(stopping.done)
    await stopping
    assert second.failure is None
    assert not second.lane.intervals
    assert second.intervals == []
    assert second.exchange.logs == {}
    gate.open()
    await cluster.join()
    await cluster.end()


def time_unless_bad(item: Item) -> datetime:
    if item.key == "bad":
        raise Broken("no time")
    return time_of(item)


@pytest.mark.parametrize("call", ["open_lane", "claim", "read_productions"])
async def test_an_injector_joins_a_lane_that_starts_over(call: str) -> None:
    """It reads while the lane's other intervals are claimed again, and gives up bad rows."""
    values = many(400)
    pipeline = Pipeline("counting", settings=replace(SHARED, intervals=1))
    for number in range(2):
        rows = values[number::2]
        if number:
            rows = [row for item in rows for row in (item, Item("bad", item.number))]
        source = script(ITEMS, rows, f"part {number}")
        pipeline.inject(
            ITEMS,
            source,
            timestamp=time_unless_bad,
            on_error="dead_letter",
            name=f"source_{number}",
        )
    pipeline.add(Tally(), ITEMS.by(key_of))
    pipeline.add(Recount(), TALLY.by(number_of))
    pipeline.sink(AGAIN, Table("out", Counted, numbered=True))
    cluster = Cluster(pipeline)
    first = await cluster.join()
    await cluster.go(lambda: first.processed > 40)
    await end([task for task in first.env.tasks if task.get_name() == "claiming"])
    interval = next(i for i in first.intervals if i.step.name == "source_1")
    await cluster.pass_time(give_up(first, interval))
    await cluster.pass_time(look(first))
    gate = Gate()

    async def start_over_late(name: str) -> None:
        if (
            name == call
            and first.lane.committer.state is Committing.RECOVERING
            and not gate.reached
        ):
            await gate.wait()

    def fail_once(commit: Commit) -> None:
        cluster.on_try = None
        raise StoreUnavailable("away")

    cluster.store.faults.before_call = start_over_late
    cluster.on_try = fail_once
    await cluster.go(lambda: gate.reached)
    letters = len(cluster.store.dead_letters)
    await cluster.pass_time(take(first, interval))
    (again,) = (i for i in first.intervals if i.id == interval.id)
    assert again.source_task is not None
    await cluster.go(lambda: again.log.next_seq > again.log.first, turns=2_000)
    assert len(cluster.store.dead_letters) == letters, "nothing is stored before that is done"
    gate.open()
    first.attend(Engine.claiming, "claiming")
    await cluster.go(cluster.finished)
    check(cluster, values)
    assert len(cluster.store.dead_letters) == 200
    await cluster.leave(first)


async def look(engine: Engine) -> None:
    await engine.remotes.refresh()


async def take(engine: Engine, interval: Interval) -> None:
    assert await engine.owned.take([interval.id], {interval.id: interval.commits.sequencer})


def wander(seed: int) -> None:
    """Intervals are wished to and fro and cut while keys wait for a while, by chance."""

    async def go() -> None:
        random = Random(seed)
        weather = Weather(Random(seed), delay=0.05, drop=0.02, duplicate=0.05, overtake=0.05)
        keys = {f"key {number}" for number in range(random.choice([1, 5, 20]))}
        cluster = Held(many(400), keys, weather=weather if random.random() < 0.5 else None)
        for _ in range(random.randint(1, 3)):
            await cluster.join()
        for _ in range(random.randint(2, 14)):
            if random.random() < 0.5:
                await cluster.commit_or_wait(random.randint(1, 10))
            else:
                await cluster.live(random.choice([0.1, 0.5, 1.5]))
            await cluster.happen(random)
        cluster.gate.open()
        await cluster.go(cluster.finished)
        check(cluster, cluster.values)
        for engine in list(cluster.alive):
            await cluster.leave(engine)

    asyncio.run(go())


@pytest.mark.parametrize("seed", seeds(3, 12))
def test_whatever_is_wished_while_keys_wait(seed: int) -> None:
    wander(seed)
