"""What happens to records under way when an interval changes hands, or its worker only thinks
so."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from millwheel import Pipeline, Table
from millwheel.core.model import MAX_TIME, Delivery
from millwheel.errors import CommitUnknown, Fenced, StatementError, StoreUnavailable
from millwheel.graph.node import Node
from millwheel.runtime.engine import Engine
from millwheel.runtime.interval.interval import Interval
from millwheel.runtime.interval.sent_log import SentLog
from millwheel.runtime.interval.step import Step
from millwheel.runtime.lane.committer import Committing
from millwheel.runtime.network.frames import Report, decode
from millwheel.runtime.network.remote import Remote
from millwheel.runtime.process.tasks import end
from millwheel.store.port.claims import Claim
from millwheel.store.port.commit import Commit
from millwheel.testing.fake_network import FAIR, Fate, Weather
from millwheel.timers.holds import Holds
from tests.support.clusters import (
    AGAIN,
    SHARED,
    Act,
    Cluster,
    Recount,
    check,
    counting,
    many,
    number_of,
)
from tests.support.drawing import examples
from tests.support.peers import next_of
from tests.support.pipelines import Tally, script
from tests.support.values import ITEMS, TALLY, Counted, key_of, time_of
from tests.support.worlds import Gate

ACTS = ["join", "crash", "leave", "lapse", "away", "unknown", "refused", "cut", "outage", "slow"]


class Faulty(Cluster):
    """A cluster whose leases lapse and whose commits fail, when asked to."""

    def __init__(self, weather: Weather | None, seed: int) -> None:
        self.values = many(400)
        pipeline = Pipeline("counting", settings=SHARED)
        for number in range(2):
            rows = script(ITEMS, self.values[number::2], f"part {number}")
            pipeline.inject(ITEMS, rows, timestamp=time_of, name=f"source_{number}")
        pipeline.add(Tally(), ITEMS.by(key_of), retries=9)
        pipeline.add(Recount(), TALLY.by(number_of), retries=9)
        pipeline.sink(AGAIN, Table("out", Counted, numbered=True))
        super().__init__(pipeline, weather)
        self._before_commit: list[Exception] = []
        self._after_commit: list[Exception] = []
        self._draw = Random(seed)
        self._away_until = self._slow_until = float("-inf")
        self.on_try = self._fail_before
        self.on_durable = self._fail_after
        self.store.faults.before_call = self._call

    async def _call(self, name: str = "") -> None:
        """The store does not answer, or takes its time."""
        if self.clock.monotonic() < self._slow_until:
            await self.clock.sleep(self._draw.choice((0.02, 0.1, 0.5)))
        if self.clock.monotonic() < self._away_until:
            raise StoreUnavailable("away")

    async def _fail_before(self, commit: Commit) -> None:
        await self._call()
        if self._before_commit:
            raise self._before_commit.pop()

    async def _fail_after(self, commit: Commit) -> None:
        if self._after_commit:
            raise self._after_commit.pop()

    def lapse(self, engine: Engine) -> None:
        """As after a stop of the whole process: the lease is over before anybody has looked."""
        engine.lease.end()

    async def happen(self, what: str, who: int) -> None:
        engine = self.alive[who % len(self.alive)]
        if what == "join" and len(self.alive) < 4:
            try:
                await self.join()
            except StoreUnavailable:  # a service manager would try again
                await self.crash(self.alive[-1])
        elif what == "crash" and len(self.alive) > 1:
            await self.crash(engine)
        elif what == "leave" and len(self.alive) > 1:
            await self.leave(engine)
        elif what == "lapse":
            self.lapse(engine)
        elif what == "away":
            self._before_commit.append(StoreUnavailable("away"))
        elif what == "unknown":
            self._after_commit.append(CommitUnknown("lost on the wire"))
        elif what == "refused":
            self._before_commit.append(StatementError("refused, the first time"))
        elif what == "outage":
            self._away_until = (
                self.clock.monotonic() + SHARED.lease_seconds * self._draw.random() * 2
            )
        elif what == "slow":
            self._slow_until = self.clock.monotonic() + SHARED.lease_seconds
        elif what == "cut":
            other = self.alive[(who + 1) % len(self.alive)]
            if other is not engine:
                names = [f"w{self.engines.index(e)}" for e in (engine, other)]
                self.ether.cut(names[0], names[1])


PLANS = given(
    acts=st.lists(
        st.tuples(st.integers(1, 20), st.sampled_from(ACTS), st.integers(0, 3)), max_size=10
    ),
    bad=st.booleans(),
    seed=st.integers(0, 1000),
)


def check_whatever_happens_to_leases_and_commits(acts: list[Act], bad: bool, seed: int) -> None:
    async def go() -> None:
        weather = Weather(Random(seed), delay=0.05, drop=0.02, duplicate=0.05, overtake=0.05)
        cluster = Faulty(weather if bad else None, seed)
        await cluster.join()
        await cluster.join()
        for after, what, who in acts:
            await cluster.commit(after)
            await cluster.pass_time(cluster.happen(what, who))
        await cluster.go(cluster.finished)
        check(cluster, cluster.values)
        for engine in list(cluster.alive):
            await cluster.leave(engine)

    asyncio.run(go())


@pytest.mark.soak
@examples(8)
@PLANS
@example([(5, "lapse", 0), (3, "lapse", 1), (2, "lapse", 0)], False, 0)
@example([(8, "join", 0), (2, "refused", 0), (1, "lapse", 0), (1, "refused", 1)], False, 0)
@example([(5, "slow", 0), *[(10, "refused", 0)] * 2, (8, "outage", 0), (5, "lapse", 3)], False, 43)
def test_whatever_happens_to_leases_and_commits(acts: list[Act], bad: bool, seed: int) -> None:
    check_whatever_happens_to_leases_and_commits(acts, bad, seed)


@pytest.mark.soak
@examples(1_000)
@PLANS
def test_whatever_happens_to_leases_and_commits_for_long(
    acts: list[Act], bad: bool, seed: int
) -> None:
    check_whatever_happens_to_leases_and_commits(acts, bad, seed)


async def test_a_lane_that_recovers_while_all_is_let_go_of_takes_nothing() -> None:
    """Its records are pulled away: what it took before that is looked up would be nobody's."""
    cluster = Faulty(None, 0)
    engine = await cluster.join()
    await cluster.go(lambda: engine.processed > 20)
    claims, let_go = asyncio.Event(), asyncio.Event()
    claiming: list[str] = []

    async def hold_up(name: str = "") -> None:
        if name == "claim":
            claiming.append(name)
            await claims.wait()

    async def slow_to_end() -> None:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        await let_go.wait()

    cluster.store.faults.before_call = hold_up
    await cluster.happen("away", 0)
    await cluster.go(lambda: claiming)  # a lane starts over
    change = asyncio.ensure_future(engine.owned.change(slow_to_end()))
    await cluster.go(lambda: engine.owned._changes)
    letting_go = asyncio.ensure_future(engine.owned.lose_all())
    await cluster.turns(50)  # what another lane has on the wire comes to its end
    before = len(cluster.commits)
    claims.set()
    for _ in range(200):  # it has its intervals again, and all the time it wants
        await asyncio.sleep(0)
    assert any(interval.intake for interval in engine.intervals), "there is something to take"
    assert not [commit for commit in cluster.commits[before:] if commit.seen]
    let_go.set()
    await cluster.go(lambda: letting_go.done() and change.done())
    await letting_go
    assert not engine.intervals
    await cluster.finish_soon(cluster.values)


async def test_what_is_looked_up_ends_before_anybody_starts_over() -> None:
    """A lease is over while a lane waits for the store, and a commit of the lane is refused: both
    have the lane stop, and neither may go on before it has."""
    cluster = Faulty(None, 0)
    first = await cluster.join()
    await cluster.go(lambda: first.processed > 20)
    await cluster.crash(first)
    asking: list[str] = []
    tried: list[Commit] = []
    answer, refusal = asyncio.Event(), asyncio.Event()

    async def answer_late(name: str) -> None:
        if name == "look_up_numbers" and not asking:
            asking.append(name)
            with contextlib.suppress(asyncio.CancelledError):  # as the pool may do
                await asyncio.Event().wait()
            await answer.wait()

    async def refuse(commit: Commit) -> None:
        if asking and not refusal.is_set():
            tried.append(commit)
            await refusal.wait()
            raise Fenced("another has it")

    cluster.store.faults.before_call = answer_late
    cluster.on_try = refuse
    engine = await cluster.join()
    try:
        await cluster.go(lambda: asking)
        lane = engine.lane
        assert lane.runner.sorting is not None
        ours = {interval.id for interval in lane.intervals}
        lane.touch(lane.intervals[0], urgent=True)
        await cluster.go(
            lambda: any(link.interval_id in ours for c in tried for link in c.intervals)
        )
        letting_go = asyncio.ensure_future(engine.owned.lose_all())
        await cluster.turns(20)
        refusal.set()
        await cluster.turns(20)
    finally:
        answer.set()
        refusal.set()
    await cluster.go(letting_go.done)
    await letting_go
    await cluster.finish_soon(cluster.values)


async def test_who_hands_over_what_is_let_go_of_meanwhile_does_not_wait_for_ever() -> None:
    """A worker that looks at the store just as its lease is over: it would never look again, and
    what others wish it to have would be nobody's."""
    cluster = Faulty(None, 0)
    engine = await cluster.join()
    await cluster.go(lambda: engine.processed > 20)
    await end([task for task in engine.env.tasks if task.get_name() == "claiming"])
    stuck = next(i for i in engine.intervals if i.step.name == "recount")
    lose = engine.owned.lose
    changes: list[asyncio.Task[None]] = []

    async def lose_later(interval: Interval) -> None:
        """The first time, somebody begins to hand over another one."""
        if not changes:
            stuck.backlog[b'"waits"'] = None  # its code does
            changes.append(asyncio.ensure_future(engine.owned.change(give_up(engine, stuck))))
            for _ in range(10):
                await asyncio.sleep(0)
            assert stuck.leaving
        await lose(interval)

    engine.owned.lose = lose_later  # type: ignore[method-assign]
    await cluster.pass_time(engine.owned.lose_all())
    (change,) = changes
    await cluster.go(change.done, turns=500)
    await cluster.join()
    await cluster.crash(engine)
    await cluster.finish_soon(cluster.values)


async def test_a_claim_under_way_as_the_worker_stops_is_handed_over_too() -> None:
    """The claim is in the store, its answer on the way: the interval must not keep the name of a
    stopped worker."""
    cluster = Faulty(None, 0)
    first = await cluster.join()
    await cluster.go(lambda: first.processed > 20)
    second = await cluster.join()
    claimed, answer = asyncio.Event(), asyncio.Event()
    claim = second.store.claim

    async def claim_slowly(*args: Any, **options: Any) -> list[Claim]:
        claims = await claim(*args, **options)
        if claims:
            claimed.set()
            await answer.wait()
        return claims

    second.store.claim = claim_slowly  # type: ignore[method-assign]
    await cluster.go(claimed.is_set)
    leaving = asyncio.ensure_future(cluster.leave(second))
    await cluster.turns(20)
    answer.set()
    await cluster.go(leaving.done)
    await leaving
    placement = await first.store.read_placement()
    assert second.env.worker not in {row.owner for row in placement.intervals}
    await cluster.finish_soon(cluster.values)


async def test_what_is_read_while_an_interval_drains_comes_after_what_waited_in_it() -> None:
    """The source is here and reads on: its rows must not overtake those that wait in the queue."""
    values = many(2000, keys=4)
    cluster = Cluster(counting(values, SHARED))
    first = await cluster.join()
    await cluster.go(lambda: first.processed > 100)
    second = await cluster.join()
    await cluster.go(lambda: len(second.intervals) >= 3)
    for _ in range(6):  # back and forth, under load
        for engine, other in ((first, second), (second, first)):
            for interval in list(engine.intervals):
                if interval.source_task is None and not interval.leaving:
                    await cluster.pass_time(give_up(engine, interval))
                    placement = await other.store.read_placement()
                    (row,) = [row for row in placement.intervals if row.id == interval.id]
                    await cluster.pass_time(take(other, row.id, row.sequencer))
                    break
    await cluster.finish_soon(values)


async def test_what_a_claim_sends_again_wakes_its_readers() -> None:
    """Nobody else may: what came of the log fills all credits, so that nothing new is sent."""
    values = many(200)
    cluster = Cluster(counting(values, SHARED))
    engine = await cluster.join()
    await cluster.go(lambda: engine.processed > 20)
    await end([task for task in engine.env.tasks if task.get_name() == "claiming"])
    readers = [i for i in engine.intervals if i.step.name == "recount"]
    for reader in readers:
        reader.leaving = True  # takes no more
    senders = [i for i in engine.intervals if i.step.name == "tally"]
    await cluster.go(lambda: not all(i.may_send() for i in senders) and not engine.lane.busy)
    sender = next(i for i in senders if not i.may_send())
    await cluster.pass_time(engine.owned.lose_all())
    for interval in (*readers, sender):
        await cluster.pass_time(take(engine, interval.id, interval.commits.sequencer))
        await cluster.pass_time(asyncio.sleep(0.1))
    (sender,) = (i for i in engine.intervals if i.step.name == "tally")
    await cluster.go(lambda: all(log.drained for log in sender.logs), turns=5_000)
    engine.attend(Engine.claiming, "claiming")
    await cluster.finish_soon(values)


async def test_what_is_taken_tells_its_readers_here_how_far_it_is() -> None:
    """Its last owner could not: nobody else would, once all of it has arrived."""
    values = many(100)
    cluster = Cluster(counting(values, replace(SHARED, intervals=1)))
    first = await cluster.join()
    await cluster.go(lambda: len(first.intervals) == 4)
    second = await cluster.join()
    for engine in (first, second):
        await end([task for task in engine.env.tasks if task.get_name() == "claiming"])
        await cluster.pass_time(look(engine))

    def lose_reports(sender: str, receiver: str, body: bytes) -> Fate:
        return Fate(copies=0) if isinstance(decode(body), Report) and sender == "w1" else FAIR

    cluster.ether.weather = lose_reports
    tally, recount = (
        next(i for i in first.intervals if i.step.name == name) for name in ("tally", "recount")
    )
    await cluster.pass_time(move(tally, first, second))
    (tally,) = second.intervals
    await cluster.go(lambda: tally.watermarks.durable == MAX_TIME)
    assert recount.watermarks.durable < MAX_TIME
    await cluster.pass_time(move(tally, second, first))
    await cluster.go(lambda: recount.watermarks.durable == MAX_TIME, turns=2_000)
    check(cluster, values)


async def test_what_could_not_be_given_up_is_worked_on_again() -> None:
    """The store did not fold for longer than anybody is patient, while the lease went on."""
    values = many(400)
    cluster = Cluster(counting(values, replace(SHARED, store_patience_seconds=1.0)))
    engine = await cluster.join()
    await cluster.go(lambda: engine.processed > 20)

    async def fold_nothing(name: str) -> None:
        if name == "fold":
            raise StoreUnavailable("asks to try again")

    cluster.store.faults.before_call = fold_nothing
    interval = next(i for i in engine.intervals if i.step.name == "tally")
    with pytest.raises(StoreUnavailable):
        await cluster.pass_time(give_up(engine, interval))
    cluster.store.faults.before_call = None
    await cluster.go(cluster.finished, turns=5_000)
    check(cluster, values)


async def test_what_was_not_sent_yet_is_sent_to_who_refused_what_was() -> None:
    """Its owner was just claiming it, and the sender has started over since: there is nothing that
    the owner could be asked about, and the credits are used up."""
    values = many(400)
    cluster = Cluster(counting(values, replace(SHARED, intervals=1)))
    first = await cluster.join()
    await cluster.go(lambda: first.processed > 20)
    second = await cluster.join()
    for engine in (first, second):
        await end([task for task in engine.env.tasks if task.get_name() == "claiming"])
        await cluster.pass_time(look(engine))
    (recount,) = (i for e in cluster.alive for i in e.intervals if i.step.name == "recount")
    if recount in second.intervals:
        await cluster.pass_time(move(recount, second, first))
        (recount,) = (i for i in first.intervals if i.step.name == "recount")
    gate, load = Gate(), second.buckets.load

    async def load_late() -> None:
        await gate.wait()
        await load()

    second.buckets.load = load_late  # type: ignore[method-assign]
    (tally,) = (i for i in first.intervals if i.step.name == "tally")
    moving = asyncio.ensure_future(move(recount, first, second))
    await cluster.go(lambda: gate.reached and not tally.may_send())
    await cluster.pass_time(look(first))
    (remote,) = (r for r in first.remotes.remotes() if r.step is recount.step)
    await cluster.go(lambda: remote.refused_by == second.worker)

    def fail_once(commit: Commit) -> None:
        cluster.on_try = None
        raise StoreUnavailable("away")

    cluster.on_try = fail_once
    tally.touch(urgent=True)
    await cluster.go(lambda: first.lane.committer.state is Committing.RECOVERING)
    await cluster.go(lambda: first.lane.committer.state is not Committing.RECOVERING)
    await cluster.pass_time(look(first))
    gate.open()
    await cluster.go(moving.done)
    for _ in range(10):
        await cluster.turns(100, tick=0.01)
        for engine in (first, second):  # who claims again is believed when the store says so
            await cluster.pass_time(look(engine))
    assert all(log.drained for log in tally.logs[:-1])
    await cluster.finish_soon(values)


@pytest.mark.parametrize("done", [True, False])
async def test_who_starts_over_leaves_alone_what_is_being_released(done: bool) -> None:
    """Done or not: the worker does not know it yet, while a lane that had it claims again."""
    values = many(400)
    cluster = Cluster(counting(values, SHARED))
    engine = await cluster.join()
    await cluster.go(lambda: engine.processed > 40)
    interval = next(i for i in engine.intervals if i.step.name == "recount")
    lane = engine.lane
    connection, answer = Gate(), Gate()
    release = cluster.store.release

    async def release_late(worker: str, sequencers: Mapping[int, int]) -> list[int]:
        if not done:
            await answer.wait()
        released = await release(worker, sequencers)
        await answer.wait()
        return released

    async def connect_late(name: str) -> None:
        if name == "open_lane":
            await connection.wait()

    def fail_others(commit: Commit) -> None:
        ids = {link.interval_id for link in commit.intervals}
        idle = not (interval.dirty or interval.backlog or interval in lane.commits.open.works)
        if idle and ids < {other.id for other in lane.intervals} - {interval.id}:
            cluster.on_try = None
            raise StoreUnavailable("away")

    cluster.store.release = release_late  # type: ignore[method-assign]
    cluster.store.faults.before_call = connect_late
    cluster.on_try = fail_others
    await cluster.go(lambda: connection.reached)
    change = asyncio.ensure_future(engine.owned.change(give_up(engine, interval)))
    await cluster.go(lambda: answer.reached, turns=500)
    connection.open()
    await cluster.go(lambda: lane.committer.state is not Committing.RECOVERING, turns=500)
    answer.open()
    await cluster.go(change.done)
    await change
    await cluster.finish_soon(values)


async def look(engine: Engine) -> None:
    await engine.remotes.refresh()


async def move(interval: Interval, engine: Engine, other: Engine) -> None:
    """Hand an interval over, without anybody's wishes."""
    assert await engine.owned.give_up(interval)
    placement = await other.remotes.refresh()
    (row,) = (row for row in placement.intervals if row.id == interval.id)
    await other.owned.take([row.id], {row.id: row.sequencer})
    await look(engine)


async def give_up(engine: Engine, interval: Interval) -> None:
    await engine.owned.give_up(interval)


async def take(engine: Engine, interval: int, sequencer: int) -> None:
    with contextlib.suppress(KeyError):
        await engine.owned.take([interval], {interval: sequencer})
    engine.remotes.request_refresh()


def test_a_log_that_is_taken_over_is_not_drained_before_it_was_sent_again() -> None:
    """Whoever retires drained logs may look while its interval is being taken."""
    assert SentLog(7, Holds(), first=5).drained
    assert not SentLog(7, Holds(), first=5, inherited=True).drained


def test_what_is_acknowledged_of_a_source_and_not_read_again_yet_moves_no_position() -> None:
    log = SentLog(7, Holds(), source=True, first=10, runs=[(12, 20)])
    log.sent(15, 0, 1)
    log.acknowledge([10, 11])
    assert log.first == 15
    log.sent(22, 0, 1)
    log.acknowledge([])
    assert log.first == 21


def test_what_waited_elsewhere_comes_before_what_came_meanwhile() -> None:
    step = Step(1, 0, Node("reader", "computation"), {})
    remote = Remote(Silent(), step, 1, (0, 10))  # type: ignore[arg-type]
    for number in (5, 6):
        remote.append(delivery(number))
    remote.insert([delivery(number) for number in (3, 4)])
    stream = remote.streams[1]
    stream.begin(1)
    assert next_of(stream, 9, 100) == [3, 4, 5, 6]


class Silent:
    """In the place of a courier."""

    def has_work(self, remote: Remote) -> None:
        pass


def delivery(number: int) -> Delivery[str]:
    return Delivery("a", "", 0, "items", b'"a"', 0, 1, 0, 1, b"0", 1, number, 0, b"")


async def test_what_is_given_up_while_everything_is_let_go_of_is_gone_once() -> None:
    """The lease is over while the worker hands something over, and an injector takes its time."""
    cluster = Cluster(counting(many(20)))
    engine = await cluster.join()
    await cluster.go(cluster.finished)
    gate = Gate()
    injector = engine.injectors[0]
    stop = injector.stop

    async def slowly() -> None:
        await gate.wait()
        await stop()

    injector.stop = slowly  # type: ignore[method-assign]
    letting_go = asyncio.ensure_future(engine.owned.lose_all())
    await cluster.go(lambda: gate.reached)
    given = engine.intervals[-1]
    await cluster.pass_time(hand_over(engine, given))
    gate.open()
    await cluster.go(letting_go.done)
    await letting_go
    assert given not in engine.intervals
    await cluster.leave(engine)


async def hand_over(engine: Engine, interval: Interval) -> None:
    assert await engine.owned.give_up(interval)
