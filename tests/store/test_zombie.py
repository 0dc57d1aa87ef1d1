"""The zombie of the paper's figure 12: an owner that lost its interval and does not know it yet.

Its last commit is on the wire while a successor claims the interval and reads what is stored. It
must be refused, or be there for the successor to read; nothing else will do:

* *The lost timer.* It sets a timer after the successor has read the timers: nobody fires it.
* *The hidden production.* It writes a production after the successor has read the log: nobody
  sends it, and the low watermark goes on without it.

A transaction does not help (paper 6.2): only a fence in every commit (I3), and a successor that
reads after it has raised the sequencer (I4).
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Literal

import psycopg
import pytest

from millwheel import Computation, Context, Pipeline, Record, Table, Timer
from millwheel.errors import CommitUnknown, Fenced, MillwheelError, StoreUnavailable
from millwheel.runtime.engine import Engine
from millwheel.runtime.ownership.balancer import Balancer
from millwheel.runtime.process.tasks import end
from millwheel.store.port import Store
from millwheel.store.port.claims import Claim
from millwheel.store.port.commit import Commit
from millwheel.store.port.placement import Wish
from millwheel.store.postgres.lane import PostgresLane
from millwheel.store.postgres.rows import ARRAY_ROWS
from tests.support.clusters import (
    AGAIN,
    SHARED,
    Cluster,
    Recount,
    counting,
    many,
    number_of,
)
from tests.support.pipelines import script
from tests.support.sessions import lane_of, until, waiting_for_a_lock
from tests.support.store_sites import (
    LOG,
    SECOND,
    MemorySite,
    Owner,
    PostgresSite,
    Site,
    deploy,
    row,
)
from tests.support.values import ITEMS, TALLY, Count, Counted, Item, key_of, time_of

pytestmark = pytest.mark.newest

Form = Literal["lost timer", "hidden production", "all of it, by arrays"]
How = Literal["whatever owner", "what is free"]

FORMS: list[Form] = ["lost timer", "hidden production", "all of it, by arrays"]
HOWS: list[How] = ["whatever owner", "what is free"]


def last_commit(zombie: Owner, form: Form) -> Commit:
    """What the zombie has on the wire."""
    commit = zombie.commit()
    commit.rows = [(LOG, row("a zombie's", 1))]
    if form == "lost timer":
        commit.timers = [zombie.timer("late", zombie.stamp + SECOND)]
    elif form == "hidden production":
        commit.productions = [zombie.production("late", "hidden")]
    else:
        zombie.fill(commit, ARRAY_ROWS, first=100)
    return commit


@dataclass(frozen=True)
class Known:
    """What an owner goes by, as it found it when it claimed: it never looks again."""

    commits: dict[int, int]
    """The number of the last one, by interval."""
    watermarks: dict[int, int]
    timers: frozenset[tuple[Any, ...]]
    productions: frozenset[tuple[int, int]]
    """(log, number)."""


async def take(store: Store, zombie: Owner, how: How, worker: str) -> Known:
    """Claim the zombie's intervals and read what is stored, as an engine does."""
    ids = [interval.id for interval in zombie.intervals]
    sequencers = {id_: zombie.links[id_].sequencer for id_ in ids}
    claims = await store.claim(worker, ids, sequencers=sequencers if how == HOWS[1] else None)
    assert len(claims) == len(ids)
    return await read(store, claims)


async def read(store: Store, claims: list[Claim]) -> Known:
    """What claims gave, and the productions of the logs they inherited."""
    productions = {
        (log.id, found.seq)
        for claim in claims
        for log in claim.logs
        async for found in store.read_productions(log.id, 0)
    }
    return Known(
        {claim.interval.id: claim.n for claim in claims},
        {claim.interval.id: claim.low_watermark for claim in claims},
        frozenset(
            (timer.slot, timer.key, timer.tag, timer.due)
            for claim in claims
            for timer in claim.timers
        ),
        frozenset(productions),
    )


async def stored(store: Store, zombie: Owner) -> Known:
    """What there is in the end, as a third owner finds it."""
    ids = [interval.id for interval in zombie.intervals]
    return await read(store, await store.claim(str(uuid.uuid4()), ids))


async def zombie_at(store: Store) -> Owner:
    """An owner with something stored, whose lease is over."""
    zombie = await Owner.take(store)
    await zombie.write(zombie.fill(zombie.commit(), 3))
    await store.heartbeat(zombie.worker, 0.0, {})
    return zombie


async def successor_at(store: Store) -> str:
    """Another worker, which knows the pipeline."""
    await deploy(store)
    worker = str(uuid.uuid4())
    await store.register_worker(worker, 60.0)
    return worker


async def outcome(work: asyncio.Task[None]) -> type[Exception] | None:
    """How a commit ended; None: it is durable, as far as its owner knows."""
    try:
        await work
    except (MillwheelError, psycopg.Error) as error:
        return type(error)
    return None


# -- any store: the commit comes late -----------------------------------------------------------


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("form", FORMS)
async def test_what_comes_after_the_scan_is_refused(site: Site, form: Form, how: How) -> None:
    zombie = await zombie_at(site.store)
    store = await site.another()
    commit = last_commit(zombie, form)
    known = await take(store, zombie, how, await successor_at(store))
    with pytest.raises(Fenced):
        await zombie.lane.commit(commit)
    assert await stored(store, zombie) == known
    assert await site.rows(LOG) == []


# -- the store in memory: the commit lands at any moment of the claim -----------------------------


@pytest.mark.parametrize("turns", range(8))
@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("form", FORMS)
async def test_in_memory_it_is_refused_or_seen_whenever_it_lands(
    form: Form, how: How, turns: int
) -> None:
    site = MemorySite()
    zombie = await zombie_at(site.store)
    worker = await successor_at(site.store)
    wire, reached = asyncio.Event(), asyncio.Event()

    async def hold(_: Commit) -> None:
        reached.set()
        await wire.wait()

    site.store.faults.before_commit = hold
    committing = asyncio.create_task(zombie.lane.commit(last_commit(zombie, form)))
    await reached.wait()
    taking = asyncio.create_task(take(site.store, zombie, how, worker))
    for _ in range(turns):
        await asyncio.sleep(0)
    wire.set()
    known = await taking
    refused = await outcome(committing)
    assert refused in (None, Fenced)
    assert await stored(site.store, zombie) == known
    assert len(await site.rows(LOG)) == (refused is None)
    await site.aclose()


# -- Postgres: the transaction is open -------------------------------------------------------------


@dataclass
class Stopped:
    """A lane whose process stops in the midst of a commit, until it is woken."""

    committing: asyncio.Task[None]
    reached: asyncio.Event
    awake: asyncio.Event


def stop_before(
    lane: PostgresLane, step: str, commit: Commit, patch: pytest.MonkeyPatch
) -> Stopped:
    """Begin a commit that stops before one of its steps."""
    reached, awake = asyncio.Event(), asyncio.Event()
    go_on = getattr(lane, step)

    async def stop(*args: Any) -> Any:
        reached.set()
        await awake.wait()
        return await go_on(*args)

    patch.setattr(lane, step, stop)
    return Stopped(asyncio.create_task(lane.commit(commit)), reached, awake)


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("form", FORMS)
async def test_a_transaction_that_was_open_before_the_claim_is_refused_by_the_fence(
    postgres: PostgresSite, monkeypatch: pytest.MonkeyPatch, form: Form, how: How
) -> None:
    """It was begun before the claim, and its fence comes after the scan."""
    zombie = await zombie_at(postgres.store)
    store = await postgres.another()
    worker = await successor_at(store)
    stopped = stop_before(lane_of(zombie), "_append", last_commit(zombie, form), monkeypatch)
    await stopped.reached.wait()
    known = await take(store, zombie, how, worker)
    stopped.awake.set()
    assert await outcome(stopped.committing) is Fenced
    assert await stored(store, zombie) == known
    assert await postgres.rows(LOG) == []


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("form", FORMS)
async def test_a_commit_that_was_past_the_fence_is_waited_for_and_seen(
    postgres: PostgresSite, monkeypatch: pytest.MonkeyPatch, form: Form, how: How
) -> None:
    """All of it is appended when the claim begins; only COMMIT is missing."""
    zombie = await zombie_at(postgres.store)
    store = await postgres.another()
    worker = await successor_at(store)
    commit = last_commit(zombie, form)
    stopped = stop_before(lane_of(zombie), "_finish", commit, monkeypatch)
    await stopped.reached.wait()
    taking = asyncio.create_task(take(store, zombie, how, worker))

    async def waits_or_has_not_waited() -> bool:
        return taking.done() or await waiting_for_a_lock(postgres)

    await until(waits_or_has_not_waited)
    stopped.awake.set()
    assert await outcome(stopped.committing) is None
    known = await taking
    assert known.commits == {link.interval_id: link.n for link in commit.intervals}
    assert await stored(store, zombie) == known


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("form", FORMS)
async def test_a_commit_that_is_stopped_past_the_fence_is_ended(
    postgres: PostgresSite, monkeypatch: pytest.MonkeyPatch, form: Form, how: How
) -> None:
    """Its process wakes up only when the successor has read everything."""
    zombie = await zombie_at(postgres.store)
    store = await postgres.another()
    worker = await successor_at(store)
    stopped = stop_before(lane_of(zombie), "_finish", last_commit(zombie, form), monkeypatch)
    await stopped.reached.wait()
    known = await take(store, zombie, how, worker)
    stopped.awake.set()
    assert await outcome(stopped.committing) in (StoreUnavailable, CommitUnknown)
    assert await stored(store, zombie) == known
    assert await postgres.rows(LOG) == []


# -- two engines -----------------------------------------------------------------------------------


class Later(Computation[Item, Count]):
    """Passes an item on when its timer rings."""

    writes = (TALLY,)

    async def process_record(self, record: Record[Item], ctx: Context[Count]) -> None:
        ctx.state.count += 1
        ctx.set_timer(record.timestamp + timedelta(seconds=1), tag=str(record.value.number))

    async def process_timer(self, timer: Timer, ctx: Context[Count]) -> None:
        ctx.produce(TALLY, Counted(str(ctx.key), int(timer.tag), 1))


def ringing(values: list[Item]) -> Pipeline:
    """Timers are set, ring, and what they produce goes to any worker by its number."""
    made = Pipeline("ringing", settings=replace(SHARED, intervals=1))
    made.inject(ITEMS, script(ITEMS, values), timestamp=time_of)
    made.add(Later(), ITEMS.by(key_of))
    made.add(Recount(), TALLY.by(number_of))
    made.sink(AGAIN, Table("out", Counted, numbered=True))
    return made


class Wire:
    """Holds one commit on its way, and notes which commits the store refuses."""

    def __init__(self, cluster: Cluster, wanted: Callable[[Commit], object]) -> None:
        self.cluster = cluster
        self.held: Commit | None = None
        self.tried: list[Commit] = []
        self._wanted = wanted
        self._released = asyncio.Event()
        self._claiming = False
        cluster.on_try = self._try

    async def _try(self, commit: Commit) -> None:
        self.tried.append(commit)
        if self.held is None and self._wanted(commit):
            self.held = commit
            await self._released.wait()

    def release(self) -> None:
        """Let it through."""
        self._released.set()

    def let_land(self, turns: int) -> None:
        """Let it through so many turns of the loop after the next claim has begun."""

        async def called(name: str) -> None:
            if name == "claim" and not self._claiming:
                self._claiming = True
                self._count_down(turns)

        self.cluster.store.faults.before_call = called

    def _count_down(self, turns: int) -> None:
        if turns == 0:
            self.release()
        else:
            asyncio.get_running_loop().call_soon(self._count_down, turns - 1)

    def refused(self) -> list[Commit]:
        """What was tried, and is not durable."""
        durable = {id(commit) for commit in self.cluster.commits}
        return [commit for commit in self.tried if id(commit) not in durable]


async def stop_process(cluster: Cluster, engine: Engine) -> None:
    """As SIGSTOP does: what is on the wire stays there, the lease runs out, nobody is told."""
    cluster.alive.remove(engine)
    asleep = {"heartbeat", "housekeeping", "folding", "claiming", "lease guard"}
    await end([task for task in engine.env.tasks if task.get_name() in asleep])


@pytest.mark.parametrize("turns", range(6))
@pytest.mark.parametrize("form", ["lost timer", "hidden production"])
async def test_whatever_a_zombie_has_on_the_wire_each_timer_rings_once_and_is_heard_of(
    form: Form, turns: int
) -> None:
    """The claim takes two turns of the loop: the commit lands before, within and after it."""
    values = [Item(f"key {n % 5}", n, n / 10) for n in range(60)]
    cluster = Cluster(ringing(values))
    first = await cluster.join()
    (later,) = (step for step in first.exchange.steps.values() if step.name == "later")

    def last_words(commit: Commit) -> bool:
        theirs = {link.interval_id for link in commit.intervals}
        mine = {i.id for i in first.intervals if i.step is later}
        there = commit.timers if form == "lost timer" else commit.productions
        return len(cluster.commits) > 10 and bool(there) and bool(theirs & mine)

    wire = Wire(cluster, last_words)
    await cluster.go(lambda: wire.held)
    await stop_process(cluster, first)
    second = await cluster.join()
    wire.let_land(turns)
    await cluster.go(cluster.finished)
    numbers = sorted(number for _, number, *_ in cluster.rows())
    assert numbers == list(range(60))
    assert wire.refused() in ([], [wire.held]), "the successor went by less than was stored"
    await cluster.leave(second)
    await cluster.pass_time(first.kill())


async def test_who_reads_a_source_that_was_his_tells_who_has_it_now(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """He does not know yet that he lost the source, and is sent its rows: a log goes by the same
    number whoever owns it. To whom he says that they are durable must be the one who asks."""
    values = many(600)
    cluster = Cluster(counting(values, replace(SHARED, intervals=3), sources=1))
    first, second = await cluster.join(), await cluster.join()
    await cluster.go(lambda: min(first.processed, second.processed) > 20)
    (loser,) = (e for e in (first, second) if any(i.source_task for i in e.intervals))
    (taker,) = (e for e in (first, second) if e is not loser)
    (lost,) = (i for i in loser.intervals if i.source_task)
    wire = Wire(cluster, lambda commit: lost.id in {link.interval_id for link in commit.intervals})
    await cluster.go(lambda: wire.held)
    monkeypatch.setattr(Balancer, "__call__", lambda *_: [])  # it would move the source once more
    await cluster.pass_time(take_from_him(taker, lost.id))
    durable = len(cluster.commits)
    await cluster.go(lambda: len(cluster.commits) > durable + 5)
    assert loser.exchange.knows(lost.id), "he has not found out"
    wire.release()
    await cluster.finish_soon(values)
    for engine in (first, second):
        await cluster.leave(engine)


async def take_from_him(taker: Engine, interval_id: int) -> None:
    """Claim an interval whoever holds it, and keep it."""
    assert await taker.owned.take([interval_id])
    placement = await taker.store.read_placement()
    (row,) = (row for row in placement.intervals if row.id == interval_id)
    await taker.store.wish([Wish(row.id, row.sequencer, taker.worker, "stolen", pinned=True)])
