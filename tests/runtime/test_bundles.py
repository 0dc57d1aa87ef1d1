"""Numbered bundles: what a database outside of the store may rely on, whatever fails when."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from random import Random
from typing import Any

import msgspec
import pytest
from structlog.testing import capture_logs

from millwheel import (
    Bundles,
    Computation,
    Context,
    Pipeline,
    Record,
    Settings,
    Stream,
    Table,
    Timer,
)
from millwheel.core.model import NAME_BYTES, RUN_BYTES, Delivery, from_micros, record_id
from millwheel.errors import (
    GraphError,
    InvariantBroken,
    NotTheSameAgain,
    StatementError,
    StoreUnavailable,
    UserCodeError,
)
from millwheel.graph import drawing
from millwheel.runtime.engine import Engine
from millwheel.runtime.interval.sent_log import SentLog
from millwheel.runtime.modes.batches import Batches, Kept, Phase
from millwheel.store.port.commit import Commit, IntervalCommit
from millwheel.store.port.placement import Wish
from millwheel.store.postgres.store import PostgresStore
from millwheel.testing import Harness, advance, assert_exactly_once, inject
from millwheel.testing.fake_network import Weather
from millwheel.timers.holds import Holds
from tests.support.cancellation import await_what_is_cancelled, cancel_oneself
from tests.support.clusters import SHARED, Cluster, Recount, many
from tests.support.lone_clusters import Lone
from tests.support.outside import (
    DONE,
    FEW,
    Bundle,
    Outside,
    Pass,
    ToOutside,
    by_key,
    links,
    outward,
)
from tests.support.pipelines import QUICK, Broken, Tally, script
from tests.support.store_sites import Schema
from tests.support.values import ITEMS, TALLY, Counted, Item, at, items, key_of, time_of
from tests.support.worlds import Gate, World, fail_once, read_on, unknown_once


def sink_of(pipeline: Pipeline) -> Any:
    return pipeline.nodes["to_outside"].computation


def check(world: World, outside: Outside, values: list[Item]) -> None:
    """Outside, and in the store."""
    outside.check(values)
    assert Counter(world.numbers()) == Counter(value.number for value in values)


# -- every moment at which a worker may die ---------------------------------------------------


async def run_through(
    crash_at: int | None, how: str, limits: Settings, intervals: int = 1, *, weakly: bool = False
) -> int:
    """Run with one mishap at a moment; gives how many moments there are."""
    values = [Item("abc"[n % 3], n, n) for n in range(14)]
    outside = Outside()
    made = outward(outside, values, limits=replace(limits, intervals=intervals), weakly=weakly)
    world = World(made)
    outside.commits = world.commits
    moments = 0
    reached, gate = asyncio.Event(), Gate()

    def moment(*_: Any) -> Awaitable[None] | None:
        nonlocal moments
        moments += 1
        if moments - 1 != crash_at:
            return None
        reached.set()
        return gate.wait()

    world.on_try = world.on_durable = moment
    sink_of(made).moment = moment
    first = await world.start()
    await world.until(lambda: reached.is_set() or first.done.is_set(), tick=0.05)
    if reached.is_set() and how == "crash":
        await first.kill()
        await world.run()
    elif reached.is_set() and how == "stop":
        gate.open()
        await first.stop()
        await world.run()
    elif reached.is_set():
        second = await world.start()
        if how == "zombie":  # the first goes on while the second works
            gate.open()
        await world.until(second.done.is_set, tick=0.05)
        gate.open()
        await world.turns(20)
        await first.kill()
        await second.stop()
    await world.close()
    check(world, outside, values)
    assert world.store.pending_productions() == []
    numbers = [number for scope, number in outside.given]
    assert max(numbers) >= (3 if intervals == 1 else 1)
    return moments


QUICK_MISHAPS = {("crash", True), ("late zombie", False)}
"""Those of `make test`."""


@pytest.mark.parametrize(
    ("how", "weakly"),
    [
        pytest.param(how, weakly, marks=[] if (how, weakly) in QUICK_MISHAPS else pytest.mark.soak)
        for how in ("crash", "zombie", "late zombie", "stop")
        for weakly in (False, True)
    ],
)
async def test_a_mishap_at_every_moment(how: str, weakly: bool) -> None:
    moments = await run_through(None, how, FEW, weakly=weakly)
    assert moments > 30
    for moment in range(moments):
        await run_through(moment, how, FEW, weakly=weakly)


@pytest.mark.soak
@pytest.mark.parametrize("how", ["crash", "zombie", "late zombie", "stop"])
@pytest.mark.parametrize("chunk", [1, 3, 100])
async def test_a_mishap_at_every_moment_of_other_sizes(how: str, chunk: int) -> None:
    limits = replace(FEW, chunk_records=chunk, max_unacked_records=chunk + 3)
    for weakly in (False, True):
        for moment in range(await run_through(None, how, limits, intervals=2, weakly=weakly)):
            await run_through(moment, how, limits, intervals=2, weakly=weakly)


# -- several workers ----------------------------------------------------------------------------


def shared(values: list[Item], pause: int = 3, *, weakly: bool = False) -> tuple[Outside, Pipeline]:
    """Bundles by number for several workers, whose calls take their time."""
    outside = Outside()
    sink = ToOutside(outside, Bundles(records=4, seconds=0.05), pause)
    return outside, outward(
        outside, values, limits=SHARED, sources=2, computation=sink, weakly=weakly
    )


async def wander(seed: int, *, weakly: bool = False) -> None:
    """Workers come, go and crash, and intervals are moved and cut, by chance."""
    random = Random(seed)
    values = many(random.choice([150, 300]), random.choice([3, 40]))
    outside, made = shared(values, pause=random.choice([0, 3, 30]), weakly=weakly)
    bad = Weather(Random(seed), delay=0.05, drop=0.02, duplicate=0.05, overtake=0.05)
    cluster = Cluster(made, bad if random.random() < 0.5 else None)
    outside.commits = cluster.commits
    numbering = Numbering(cluster)
    for _ in range(random.randint(1, 3)):
        await cluster.join()
    for _ in range(random.randint(2, 12)):
        await cluster.commit(random.randint(1, 20))
        what = random.choice(["split", "merge", "move", "join", "crash", "leave"])
        engine = random.choice(cluster.alive)
        if what == "split":
            await cluster.cut(random.randrange(20), random.choice([0.1, 0.5, 0.9]))
        elif what == "merge":
            await cluster.cut(random.randrange(20), None)
        elif what == "move":
            for row in await cluster.parts("to_outside"):
                wish = Wish(row.id, row.sequencer, engine.worker, "chaos", pinned=True)
                await cluster.store.wish([wish])
        elif what == "join" and len(cluster.alive) < 4:
            await cluster.join()
        elif what == "crash" and len(cluster.alive) > 1:
            await cluster.crash(engine)
        elif what == "leave" and len(cluster.alive) > 1:
            await cluster.leave(engine)
    await cluster.go(cluster.finished)
    check(cluster, outside, values)
    for engine in list(cluster.alive):
        await cluster.leave(engine)
    numbering.check(outside)


class Numbering:
    """What scopes that are made by cuts should go on from."""

    def __init__(self, cluster: Cluster) -> None:
        self._commits = cluster.commits
        self._inherited: dict[int, int] = {}
        store = cluster.store
        split, merge = store.split, store.merge

        async def noted_split(id_: int, sequencer: int, at: int, *, reason: str = "") -> int:
            made = await split(id_, sequencer, at, reason=reason)
            self._inherited[made] = self._last(id_)
            return made

        async def noted_merge(
            lower: int, upper: int, sequencers: Mapping[int, int], *, reason: str = ""
        ) -> int:
            made = await merge(lower, upper, sequencers, reason=reason)
            self._inherited[made] = max(self._last(lower), self._last(upper))
            return made

        store.split, store.merge = noted_split, noted_merge  # type: ignore[method-assign, assignment]

    def _last(self, scope: int) -> int:
        """The number that the last commit of a scope tells, or what it began with."""
        chain = links(self._commits, scope)
        told = number_in(chain[-1]) if chain else None
        return self._inherited.get(scope, 0) if told is None else told

    def check(self, outside: Outside) -> None:
        """Numbers rise by one in each scope, from where its parents were."""
        for scope in {scope for scope, _ in outside.given}:
            numbers = [number for of, number in outside.given if of == scope]
            first = self._inherited.get(scope, 0) + 1
            assert numbers == list(range(first, first + len(numbers))), f"scope {scope}"


def number_in(link: IntervalCommit) -> int | None:
    found = msgspec.json.decode(link.position or b"{}").get("bundle")
    return None if found is None else found["number"]


@pytest.mark.parametrize("weakly", [False, True])
@pytest.mark.parametrize("seed", range(3))
async def test_workers_come_and_go_and_intervals_are_cut(seed: int, *, weakly: bool) -> None:
    await wander(seed, weakly=weakly)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(3, 500))
async def test_workers_come_and_go_and_intervals_are_cut_for_long(seed: int) -> None:
    await wander(seed, weakly=seed % 2 == 0)


async def at_work(cluster: Lone, outside: Outside) -> None:
    """Two workers in the midst of their bundles, each with an interval of the sink."""
    engines = [await cluster.join() for _ in range(2)]

    def owned(engine: Any) -> bool:
        return any(interval.step.name == "to_outside" for interval in engine.intervals)

    await cluster.go(lambda: all(map(owned, engines)))
    begun = len(outside.calls)
    await cluster.go(lambda: len(outside.calls) > begun + 5)


async def test_who_gives_an_interval_up_delivers_what_is_closed_first() -> None:
    values = many(600)
    outside, made = shared(values)
    cluster = Lone(made)
    await at_work(cluster, outside)
    row, _ = await cluster.parts("to_outside")
    owner = cluster.owner_of(row)
    (other,) = (engine for engine in cluster.alive if engine is not owner)
    gate, held = Gate(), set[int]()

    def hold(bundle: Bundle) -> Awaitable[None] | None:
        scope, number = bundle
        if scope != row.id or held:
            return None
        held.add(number)
        return gate.wait()

    sink_of(made).moment = hold
    await cluster.go(lambda: gate.reached)
    await cluster.store.wish([Wish(row.id, row.sequencer, other.worker, "", pinned=True)])
    await cluster.go(lambda: owner.exchange.held(row.id) is None)
    for _ in range(50):
        await asyncio.sleep(0)
    assert owner.exchange.knows(row.id), "it waits for the sink"
    gate.open()
    (number,) = held
    await cluster.go(lambda: not owner.exchange.knows(row.id))
    assert (row.id, number + 1) not in outside.given, "it begins no other one"
    await cluster.go(lambda: other.exchange.held(row.id) is not None)
    assert outside.calls.count((row.id, number)) == 1, "nobody had to do it again"
    await cluster.go(lambda: (row.id, number + 1) in outside.given)
    await cluster.go(cluster.finished)
    check(cluster, outside, values)
    for engine in list(cluster.alive):
        await cluster.leave(engine)


async def test_an_interval_is_split_once_its_bundle_is_delivered() -> None:
    values = many(600)
    outside, made = shared(values)
    cluster = Lone(made)
    numbering = Numbering(cluster)
    await at_work(cluster, outside)
    row, _ = await cluster.parts("to_outside")
    owner = cluster.owner_of(row)
    await cluster.split(row)
    upper = await cluster.split_here(owner, row)
    await cluster.go(cluster.finished)
    check(cluster, outside, values)
    numbering.check(outside)
    assert min(number for scope, number in outside.given if scope == upper) > 1, "no second 1"
    for engine in list(cluster.alive):
        await cluster.leave(engine)


# -- what is in a bundle, and when it goes ---------------------------------------------------------


async def test_a_bundle_goes_when_it_is_full_or_its_oldest_record_has_waited() -> None:
    outside = Outside()
    source = script(ITEMS, items(*range(7)))
    made = Pipeline("gathering", settings=QUICK)
    made.inject(ITEMS, source, timestamp=time_of)
    sink = ToOutside(outside, Bundles(records=3, seconds=0.2))
    made.add(sink, ITEMS.by(key_of), name="to_outside")
    world = World(made)
    engine = await world.start()
    await world.turns(200)
    assert [number for _, number in outside.rows] == [0, 1, 2, 3, 4, 5], "two are full"
    interval = world.interval("to_outside")
    assert (len(interval.intake), interval.dirty) == (0, False)
    assert not interval.is_idle(world.clock.now()), "one waits for company"
    world.clock.advance(0.15)
    source.append(inject(ITEMS, Item("a", 7)))
    read_on(engine)
    await world.turns(100)
    assert len(outside.rows) == 6
    world.clock.advance(0.06)
    await world.turns(100)
    assert [number for _, number in outside.rows] == list(range(8)), "and the third has waited"
    assert outside.calls == [(outside.calls[0][0], number) for number in (1, 2, 3)]
    await world.finish(engine)


async def test_a_bundle_comes_again_as_it_was_whatever_comes_first_now() -> None:
    outside = Outside()
    parts = [script(ITEMS, values, f"part {n}") for n, values in enumerate((items(0), items(1)))]
    made = Pipeline("again", settings=QUICK)
    for part in parts:
        made.inject(ITEMS, part, timestamp=time_of)
    sink = ToOutside(outside, Bundles(records=3, seconds=0.1))
    made.add(sink, ITEMS.by(key_of), name="to_outside")
    gate = Gate()
    sink.moment = lambda bundle: gate.wait()
    world = World(made)
    first = await world.start()
    await world.turns(50)
    world.clock.advance(0.2)
    await world.until(lambda: gate.reached)
    (first_call,) = outside.given.values()
    assert [value.number for _, value in first_call] == [0, 1]
    await first.kill()
    sink.moment = None
    for number in (3, 5, 7, 9):
        parts[1].append(inject(ITEMS, Item("a", number)))
    kept = parts[0].steps[:]
    parts[0].steps.clear()
    second = await world.start()
    await world.turns(50, tick=0.1)
    assert outside.rows == [], "one is missing, and nothing overtakes it"
    parts[0].steps += kept
    parts[0].append(inject(ITEMS, Item("a", 2)))
    read_on(second)
    await world.finish(second)
    assert [number for _, number in outside.calls] == [1, 1, 2, 3]
    assert [number for _, number in outside.rows][:5] == [0, 1, 3, 5, 7]
    assert sorted(number for _, number in outside.rows) == [0, 1, 2, 3, 5, 7, 9]


async def test_a_bundle_that_is_larger_than_the_cap_of_its_source_by_now_comes_again() -> None:
    """A cap that moves begins low, and grows by what is acknowledged: nothing is, before all
    members have come."""
    outside = Outside()
    made = Pipeline("again", settings=QUICK)
    source = script(ITEMS, items(*range(200)))
    made.inject(ITEMS, source, timestamp=time_of, latency_target=timedelta(seconds=5))
    sink = ToOutside(outside, Bundles(records=60, seconds=0.1))
    made.add(sink, ITEMS.by(key_of), name="to_outside")
    gate = Gate()

    async def wait_with_a_large_one() -> None:
        if len(outside.given[outside.calls[-1]]) == 60:
            await gate.wait()

    sink.moment = lambda bundle: wait_with_a_large_one()
    world = World(made)
    first = await world.start()
    await world.until(lambda: gate.reached, tick=0.01)
    await first.kill()
    gate.open()
    await world.run(tick=0.01)
    assert sorted(number for _, number in outside.rows) == list(range(200))


@dataclass
class Behind:
    """A bundle of records of the second of two sources, open when its worker dies; at the next
    start the first one has enough rows to use up all credits before the second has any.

    The sink is not behind anybody strong who would have stored its records.
    """

    records: int = 5
    stages: int = 1
    spread: bool = False
    options: dict[str, Any] = field(default_factory=lambda: {"productions": "weak"})

    def __post_init__(self) -> None:
        self.outside = Outside()
        self.gate = Gate()
        self.sink = Plainly(self.outside, Bundles(records=self.records, seconds=60))
        self.sink.moment = lambda bundle: self.gate.wait()
        self.parts = [
            script(ITEMS, [], "part 0"),
            script(ITEMS, items(*range(100, 100 + self.records)), "part 1"),
        ]
        limits = replace(QUICK, max_unacked_records=8, chunk_records=2)
        self.made = Pipeline("behind", settings=replace(limits, lease_seconds=3.0))
        for number, part in enumerate(self.parts):
            self.made.inject(ITEMS, part, timestamp=time_of, name=f"source_{number}")
        last = ITEMS
        for number in range(self.stages):
            to = Stream(f"stage_{number}", Item)
            self.made.add(Pass(to), last.by(key_of), name=f"pass_{number}", **self.options)
            last = to
        reading = last.spread() if self.spread else last.by(key_of)
        self.made.add(self.sink, reading, name="to_outside")
        self.kept: list[Any] = []

    def crashed(self) -> None:
        """What the sources have from now on."""
        self.gate.open()
        first, second = self.parts
        first.steps += [inject(ITEMS, item) for item in items(*range(20))]
        self.kept = second.steps[:]
        second.steps.clear()

    def go_on(self) -> None:
        """The second source has its rows."""
        self.parts[1].steps += self.kept

    def check(self) -> None:
        """Everything is outside, and the bundle was given as it was before."""
        numbers = [*range(20), *range(100, 100 + self.records)]
        assert sorted(number for _, number in self.outside.rows) == numbers
        assert self.outside.calls[:2] == self.outside.calls[:1] * 2


class Plainly(ToOutside):
    """Tells nobody, so that the end of its rows is the end of it."""

    writes = ()

    async def process_bundle(self, records: Sequence[Record[Any]], ctx: Context[None]) -> None:
        bundle = (ctx.bundle_id.scope, ctx.bundle_id.number)
        self.outside.begin(bundle, records)
        await self._wait(bundle)
        self.outside.write(bundle, records)


BEHIND: dict[str, dict[str, Any]] = {
    "strong": {"options": {}},
    "weak": {},
    "by a tree": {"options": {"productions": "weak", "acknowledgement": "tree"}},
    "at least once": {"options": {"productions": "weak", "exactly_once": False}},
    "two stages": {"stages": 2},
    "spread": {"spread": True},
    "as many as credits": {"records": 8},
}


@pytest.mark.parametrize("how", BEHIND)
async def test_a_bundle_comes_again_though_other_records_have_used_up_the_credits(
    how: str,
) -> None:
    """They wait behind the bundle, un-ACKed, so that nothing more could be made again."""
    behind = Behind(**BEHIND[how])
    world = World(behind.made)
    first = await world.start()
    await world.until(lambda: behind.gate.reached, tick=0.01)
    await first.kill()
    behind.crashed()
    second = await world.start()
    await world.turns(100, tick=0.1)
    behind.go_on()
    read_on(second)
    world.clock.advance(60)
    await world.until(lambda: len(behind.outside.rows) >= 20 + behind.records, tick=1)
    behind.check()
    await world.until(lambda: not second.lane.busy and not world.interval("to_outside").dirty)
    await world.turns(200, tick=0.1)
    assert world.store.pending_productions() == []
    await second.stop()


@pytest.mark.parametrize("how", BEHIND)
async def test_the_same_with_two_workers(how: str) -> None:
    behind = Behind(**BEHIND[how])
    cluster = Cluster(behind.made)
    cluster.endless = True  # rows are added after the crash
    workers = [await cluster.join() for _ in range(2)]
    await cluster.go(lambda: behind.gate.reached)
    for worker in workers:
        await cluster.crash(worker)
    behind.crashed()
    for _ in range(2):
        await cluster.join()
    until = cluster.clock.monotonic() + 20
    await cluster.go(lambda: cluster.clock.monotonic() > until)
    behind.go_on()
    for worker in cluster.alive:
        read_on(worker)
    await cluster.go(lambda: len(behind.outside.rows) >= 20 + behind.records, tick=0.05)
    behind.check()
    for worker in list(cluster.alive):
        await cluster.leave(worker)


@pytest.mark.parametrize("weakly", [False, True])
async def test_members_that_nobody_has_stored_are_stored_once_with_their_bundle(
    *, weakly: bool
) -> None:
    """However many commits say that the bundle is open; strong ones are not."""
    outside, gate = Outside(), Gate()
    values = [Item("a", n, n) for n in range(3)]
    made = outward(outside, values, weakly=weakly)
    sink_of(made).moment = lambda bundle: gate.wait()
    world = World(made)
    engine = await world.start()
    await world.until(lambda: gate.reached, tick=0.01)
    scope, _ = outside.calls[0]
    interval = world.interval("to_outside")
    for _ in range(5):
        interval.touch(urgent=True)
        await world.turns(50, tick=0.02)
    told = [link for link in links(world.commits, scope) if b"open" in (link.position or b"")]
    assert len(told) > 3
    kept = [d for c in world.commits for d in c.stragglers if d.log == interval.log.id]
    assert [d.value.number for d in kept] == ([0, 1, 2] if weakly else [])
    if weakly:
        stamps = [d.stamp for d in interval.dedup.in_flight.values()]
        assert told[-1].floor == min(stamps), "their buckets stay (I9)"
    assert interval.watermarks.output() <= at(0).timestamp() * 1e6
    gate.open()
    await world.finish(engine)
    check(world, outside, values)
    assert world.store.pending_productions() == []
    assert interval.watermarks.durable >= at(2).timestamp() * 1e6


async def test_a_bundle_of_more_than_its_commit_should_hold_is_made_smaller() -> None:
    """If it is stored; a single record always goes."""
    for weakly, size in ((False, 3), (True, 2)):
        outside = Outside()
        values = [Item("a", n, n) for n in range(6)]
        one = len(msgspec.json.encode(Counted("a", 0, 1)))
        for limit, most in ((2 * one, size), (one // 2, 1 if weakly else 3)):
            outside = Outside()
            limits = replace(FEW, bundle_bytes=limit, chunk_records=9, max_unacked_records=20)
            world = World(outward(outside, values, limits=limits, weakly=weakly))
            await world.run()
            check(world, outside, values)
            assert max(map(len, outside.given.values())) == most


@pytest.mark.parametrize("setting", ["max_pending", "max_unacked_records", "max_unacked_bytes"])
async def test_a_source_that_may_have_less_on_its_way_reads_on_up_to_the_members(
    setting: str,
) -> None:
    outside, gate = Outside(), Gate()
    source = script(ITEMS, items(*range(40)))
    sink = ToOutside(outside, Bundles(records=12, seconds=0.1))

    def pipeline(limits: Settings, most: int | None) -> Pipeline:
        made = Pipeline("again", settings=limits)
        made.inject(ITEMS, source, timestamp=time_of, max_pending=most)
        made.add(sink, ITEMS.by(key_of), name="to_outside")
        return made

    sink.moment = lambda bundle: gate.wait() if bundle[1] == 2 else None
    world = World(pipeline(replace(QUICK, chunk_records=3), None))
    first = await world.start()
    await world.until(lambda: gate.reached, tick=0.01)
    await first.kill()
    gate.open()
    limits = replace(QUICK, chunk_records=3)
    if setting == "max_unacked_records":
        limits = replace(limits, max_unacked_records=4)
    elif setting == "max_unacked_bytes":
        limits = replace(limits, max_unacked_bytes=1)
    pending: list[int] = []
    second = await world.start(pipeline(limits, 4 if setting == "max_pending" else None))
    world.on_try = lambda commit: pending.append(second.injectors[0].log.unacked)
    await world.until(lambda: len(outside.rows) == 40, tick=0.01)
    assert max(pending) == 12, "as many as the bundle has, and no more"
    assert [number for _, number in outside.rows] == list(range(40))
    assert outside.calls.count(outside.calls[1]) == 2
    assert max(pending[-5:]) <= 4, "and then by its cap"
    await second.stop()


async def test_records_are_gathered_by_the_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    """However little is known of how long user code takes: it is not what gathers them."""
    taken: list[int] = []
    offer = Batches.offer

    def counted(self: Batches, deliveries: Any, now: int) -> None:
        taken.append(len(deliveries))
        offer(self, deliveries, now)

    monkeypatch.setattr(Batches, "offer", counted)
    outside = Outside()
    source = script(ITEMS, [Item("a", n) for n in range(300)])
    made = Pipeline("gathered", settings=replace(QUICK, chunk_records=300))
    made.inject(ITEMS, source, timestamp=time_of)
    made.add(ToOutside(outside, Bundles(records=300)), ITEMS.by(key_of), name="to_outside")
    made.sink(DONE, Table("out", Counted, numbered=True))
    world = World(made)
    engine = await world.start()
    await world.until(lambda: len(outside.rows) == 300, tick=0.01)
    assert taken == [300]
    await engine.stop()


async def test_what_waits_for_the_sink_holds_its_senders_and_the_watermark() -> None:
    outside = Outside()
    values = [Item("a", n, n) for n in range(100)]
    made = outward(outside, values)
    gate = Gate()
    sink_of(made).moment = lambda bundle: gate.wait() if bundle[1] == 2 else None
    world = World(made)
    engine = await world.start(close_at_end=True)
    await world.until(lambda: gate.reached, tick=0.05)
    await world.turns(300, tick=0.05)
    interval = world.interval("to_outside")
    assert interval.watermarks.durable <= at(3).timestamp() * 1e6, "the fourth item is in its hands"
    assert len(outside.given) == 2, "one at a time"
    assert len(interval.dedup.in_flight) + len(interval.intake) <= (
        FEW.max_unacked_records + FEW.chunk_records
    ), "its sender's credits, and what that had taken"
    gate.open()
    await world.finish(engine)
    check(world, outside, values)
    assert interval.watermarks.durable > at(100).timestamp() * 1e6


async def test_who_reads_what_bundles_produce_holds_the_sink() -> None:
    class Slow(Computation[Counted, None]):
        async def process_record(self, record: Record[Counted], ctx: Context[None]) -> None:
            await gate.wait()

    outside, gate = Outside(), Gate()
    values = [Item("a", n, n) for n in range(60)]
    made = outward(outside, values)
    made.add(Slow(), DONE.by(by_key))
    world = World(made)
    engine = await world.start()
    await world.until(lambda: gate.reached, tick=0.05)
    await world.turns(500, tick=0.05)
    assert len(outside.rows) <= FEW.max_unacked_records + 3 + FEW.chunk_records, (
        "its credits, and what it had taken"
    )
    gate.open()
    await world.finish(engine)
    check(world, outside, values)


async def test_a_stop_leaves_the_open_bundle_to_the_next_start() -> None:
    outside = Outside()
    values = [Item("ab"[n % 2], n, n) for n in range(12)]
    made = outward(outside, values)
    gate = Gate()
    sink_of(made).moment = lambda bundle: gate.wait()
    world = World(made)
    first = await world.start()
    await world.until(lambda: gate.reached, tick=0.05)
    await first.stop()
    assert outside.rows == []
    sink_of(made).moment = None
    await world.run()
    check(world, outside, values)
    assert outside.calls[:2] == [outside.calls[0]] * 2


@pytest.mark.parametrize("weakly", [False, True])
@pytest.mark.parametrize("error", [StoreUnavailable("gone"), None])
async def test_a_store_that_fails_in_between_has_the_bundle_replayed(
    error: Exception | None, *, weakly: bool
) -> None:
    """None: nobody knows what became of a commit."""
    values = [Item("abc"[n % 3], n, n) for n in range(14)]
    for number in range(1, 30):
        outside = Outside()
        world = World(outward(outside, values, weakly=weakly))
        outside.commits = world.commits
        if error is not None:
            fail_once(world, number, error)
        else:
            unknown_once(world, number)
        await world.run()
        check(world, outside, values)
        await world.close()


@pytest.mark.newest
@pytest.mark.parametrize("weakly", [False, True])
async def test_postgres_has_the_number_and_the_members_while_a_bundle_is_open(
    schema: Schema, *, weakly: bool
) -> None:
    outside = Outside()
    values = [Item("ab"[n % 2], n, n) for n in range(8)]
    sink = ToOutside(outside, Bundles(records=3, seconds=0.0))
    made = outward(outside, values, computation=sink, weakly=weakly)
    made.name = schema.name
    reached = asyncio.Event()

    async def stay() -> None:
        reached.set()
        await asyncio.Event().wait()

    sink.moment = lambda bundle: stay() if bundle[1] == 2 and outside.last else None
    position = "SELECT position -> 'bundle' FROM {t} WHERE computation = 'to_outside'"

    async def run() -> None:
        store = await PostgresStore(schema.url, schema.name).open()
        engine = Engine(made, store, take_over=True)
        await engine.start()
        async with asyncio.timeout(60):
            await engine.run(stop=reached)
        if reached.is_set():
            await engine.kill()
        else:
            await engine.stop()
        await store.close()

    await run()
    ((told,),) = schema.query(position, t="latest_commits")
    assert told["number"] == 2
    first, *_ = outside.given
    members = [value.number for _, value in outside.given[first[0], 2]]
    assert len(told["open"]) == len(members)
    query = (
        "SELECT (value ->> 'number')::int, id::text FROM {p} WHERE sender = 'to_outside' AND weak "
        "ORDER BY seq"
    )
    kept = schema.query(query, p="pending_productions")
    assert [number for number, _ in kept] == (members if weakly else [])
    assert {id_.replace("-", "") for _, id_ in kept} <= {*told["open"]}
    reached.clear()
    sink.moment = None
    await run()
    outside.check(values)
    assert outside.calls.count((first[0], 2)) == 2
    ((told,),) = schema.query(position, t="latest_commits")
    assert (told["number"], told.get("open")) == (outside.last[first[0]], None)
    assert schema.query(query, p="pending_productions") == []
    assert sorted(number for (number,) in schema.query("SELECT number FROM {t}", t="out")) == [
        *range(8)
    ]


# -- errors -------------------------------------------------------------------------------------


class Fragile(ToOutside):
    """Fails on bundles that hold a certain item: after its transaction, so many times."""

    def __init__(self, outside: Outside, bad: int, times: int = 1_000) -> None:
        super().__init__(outside, Bundles(records=3, seconds=0.1))
        self._bad = bad
        self.left = times

    async def process_bundle(self, records: Sequence[Record[Any]], ctx: Context[None]) -> None:
        await super().process_bundle(records, ctx)
        if self.left and any(record.value.number == self._bad for record in records):
            self.left -= 1
            raise Broken("the outside said no")


async def test_a_bundle_that_fails_is_tried_again_with_the_same_records() -> None:
    outside, values = Outside(), items(*range(8))
    sink = Fragile(outside, bad=4, times=2)
    world = World(outward(outside, values, computation=sink, retries=2))
    await world.run()
    check(world, outside, values)
    assert [number for _, number in outside.calls] == [1, 2, 2, 2, 3]
    assert world.counter("to_outside", "bundles") == 3


async def test_a_bundle_that_fails_for_good_stops_everything_and_waits_for_better_code() -> None:
    outside, values = Outside(), items(*range(8))
    sink = Fragile(outside, bad=4)
    world = World(outward(outside, values, computation=sink, retries=1))
    engine = await world.start()
    with pytest.raises(UserCodeError, match=r"failed on bundle 2 of scope \d+, 3 records") as told:
        await world.until(engine.done.is_set, tick=0.05)
    assert "the outside said no" in str(told.value)
    await engine.stop()
    sink.left = 0
    await world.run()
    check(world, outside, values)
    assert [number for _, number in outside.calls] == [1, 2, 2, 2, 3]


async def test_a_bundle_that_is_given_up_leaves_its_records_and_uses_its_number() -> None:
    outside, values = Outside(), items(*range(8))
    sink = Fragile(outside, bad=4)
    world = World(outward(outside, values, computation=sink, retries=1, on_error="dead_letter"))
    await world.run()
    assert sorted(world.numbers()) == [0, 1, 2, 6, 7], "nothing of it in the store"
    found = [msgspec.json.decode(value)["number"] for value, _ in world.letters()]
    assert found == [3, 4, 5]
    assert {letter.attempts for letter in world.store.dead_letters} == {2}
    assert [number for _, number in outside.calls] == [1, 2, 2, 3]
    assert world.counter("to_outside", "dead_letters") == 3
    outside.check(values)  # its transaction had gone through, and that is for it to tell


@pytest.mark.parametrize("cancel", [cancel_oneself, await_what_is_cancelled])
async def test_a_bundle_that_cancels_its_task_is_tried_again_and_given_up(
    cancel: Callable[[], Awaitable[None]],
) -> None:
    outside, values = Outside(), items(*range(8))
    made = outward(outside, values, retries=1, on_error="dead_letter")

    def moment(bundle: Bundle) -> Awaitable[None] | None:
        return cancel() if bundle[1] == 2 and outside.rows[3:] else None

    sink_of(made).moment = moment
    world = World(made)
    await world.run()
    assert sorted(world.numbers()) == [0, 1, 2, 6, 7]
    assert [msgspec.json.decode(value)["number"] for value, _ in world.letters()] == [3, 4, 5]
    assert [number for _, number in outside.calls] == [1, 2, 2, 3]


class Basket(msgspec.Struct):
    """A value that user code can spoil."""

    key: str
    things: list[int]


async def test_a_bundle_that_is_tried_again_has_the_values_it_came_with() -> None:
    seen: list[list[int]] = []

    class Spoils(Computation[Basket, None]):
        bundles = Bundles(seconds=0)

        async def process_bundle(
            self, records: Sequence[Record[Basket]], ctx: Context[None]
        ) -> None:
            seen.append([*records[0].value.things])
            records[0].value.things.clear()
            if len(seen) < 3:
                raise Broken("not yet")

    baskets = Stream("baskets", Basket)
    made = Pipeline("spoiling", settings=QUICK)
    made.inject(baskets, script(baskets, [Basket("a", [1, 2])]), timestamp=lambda _: at(0))
    made.add(Spoils(), baskets.by(lambda basket: basket.key), retries=2)
    await World(made).run()
    assert seen == [[1, 2]] * 3


async def test_members_that_do_not_come_again_are_missed_aloud() -> None:
    """Of a sender that was taken away, say."""
    outside = Outside()
    source = script(ITEMS, items(*range(4)))
    made = Pipeline("missing", settings=QUICK)
    made.inject(ITEMS, source, timestamp=time_of)
    sink = ToOutside(outside, Bundles(records=2, seconds=0.1))
    made.add(sink, ITEMS.by(key_of), name="to_outside")
    gate = Gate()
    sink.moment = lambda bundle: gate.wait()
    world = World(made)
    first = await world.start()
    await world.until(lambda: gate.reached)
    await first.kill()
    sink.moment = None
    kept = source.steps[:]
    source.steps.clear()
    with capture_logs() as logs:
        second = await world.start()
        await world.turns(200, tick=0.5)
    told = [entry for entry in logs if entry["event"] == "bundle_waits"]
    assert [(entry["number"], entry["missing"]) for entry in told] == [(1, 2)], "once"
    assert outside.rows == []
    source.steps += kept
    read_on(second)
    await world.until(lambda: len(outside.rows) == 4, tick=0.05)
    await second.stop()


class Executing(ToOutside):
    """Has a statement in the second commit, which the store may refuse."""

    async def process_bundle(self, records: Sequence[Record[Any]], ctx: Context[None]) -> None:
        await super().process_bundle(records, ctx)
        ctx.execute("INSERT INTO t VALUES (%s)", [[r.value.number for r in records]])


@pytest.mark.parametrize("weakly", [False, True])
@pytest.mark.parametrize("intervals", [1, 2])
async def test_a_refused_statement_is_the_fault_of_its_bundle_alone(
    intervals: int, *, weakly: bool
) -> None:
    outside = Outside()
    values = [Item(f"key {n % 10}", n, n) for n in range(40)]
    sink = Executing(outside, Bundles(records=4, seconds=0.1))
    options: dict[str, Any] = {"on_error": "dead_letter", "retries": 1}
    limits = replace(QUICK, intervals=intervals)
    made = outward(outside, values, limits=limits, computation=sink, weakly=weakly, **options)
    made.add(Recount(), DONE.by(by_key))  # shares the commits
    world = World(made)
    refused: list[int] = []

    def refuse(commit: Commit) -> None:
        if any(17 in params[0] for _, params in commit.statements):
            refused.append(len(commit.intervals))
            raise StatementError("no such row")

    world.on_try = refuse
    await world.run()
    assert refused[-2:] == [1, 1], "alone, and once more"
    assert refused.count(1) == 2, "and that is all"
    lost = {msgspec.json.decode(value)["number"] for value, _ in world.letters()}
    assert 17 in lost
    assert len(lost) <= 4
    assert {error for _, error in world.letters()} == {"StatementError: no such row"}
    assert Counter(world.numbers()) == Counter(set(range(40)) - lost)
    outside.check(values)


async def test_a_refused_bundle_is_no_fault_of_the_record_that_shared_its_commit() -> None:
    """A single one, so that there is nothing to halve."""
    outside = Outside()
    values = [Item(f"key {n}", n, n) for n in range(6)]
    source = script(ITEMS, values[:4])
    sink = Executing(outside, Bundles(records=4, seconds=0.1))
    made = Pipeline("outward", settings=replace(QUICK, bundle_records=100))
    made.inject(ITEMS, source, timestamp=time_of)
    made.add(Tally(), ITEMS.by(key_of), on_error="dead_letter")
    made.add(sink, TALLY.by(by_key), name="to_outside", on_error="dead_letter")
    made.sink(DONE, Table("out", Counted, numbered=True))
    world = World(made)
    call, wire = Gate(), Gate()
    sink.moment = lambda bundle: call.wait()
    engine = await world.start()
    await world.until(lambda: call.reached, tick=0.05)
    await world.turns()
    world.on_try = lambda commit: wire.wait() if commit.seen else None
    source.append(inject(ITEMS, values[4]))
    read_on(engine)
    await world.until(lambda: wire.reached)
    source.append(inject(ITEMS, values[5]))
    read_on(engine)
    call.open()
    await world.until(lambda: engine.lane.commits.open.count == 5)

    def refuse(commit: Commit) -> None:
        if any(3 in params[0] for _, params in commit.statements):
            raise StatementError("no such row")

    world.on_try = refuse
    wire.open()
    await world.finish(engine)
    lost = {msgspec.json.decode(value)["number"] for value, _ in world.letters()}
    assert lost == {0, 1, 2, 3}, "the members of the bundle, and nobody else"
    assert Counter(world.numbers()) == Counter([4, 5])


class Wrong(Computation[Any, None]):
    """Asks for what a bundle does not have."""

    bundles = Bundles(seconds=0)
    writes = (DONE,)

    def __init__(self, ask: Callable[[Context[Any]], object]) -> None:
        self._ask = ask

    async def process_bundle(self, records: Sequence[Record[Any]], ctx: Context[None]) -> None:
        self._ask(ctx)


ASKED: dict[str, Callable[[Context[Any]], object]] = {
    "asked for its key": lambda ctx: ctx.key,
    "asked for its state": lambda ctx: ctx.state,
    "set its state": lambda ctx: setattr(ctx, "state", 5),
    "asked for a shared table": lambda ctx: ctx.shared,
    "set a timer": lambda ctx: ctx.set_timer(at(1)),
    "cancelled a timer": lambda ctx: ctx.cancel_timer(),
    "held the low watermark": lambda ctx: ctx.hold_watermark(at(1)),
    "released the low watermark": lambda ctx: ctx.release_watermark(),
    r"BundleId\(scope=\d+, number=1\): an output of stream 'done' .* older than both": (
        lambda ctx: ctx.produce(DONE, Counted("a", 1, 1), timestamp=at(4))
    ),
}


@pytest.mark.parametrize("what", ASKED)
async def test_what_has_no_meaning_in_a_bundle_is_an_error(what: str) -> None:
    values = [advance(ITEMS, at(4.5)), Item("a", 1, 5), Item("b", 2, 9)]
    world = World(outward(Outside(), values, computation=Wrong(ASKED[what])))  # type: ignore[arg-type]
    with pytest.raises(UserCodeError, match=what):
        await world.run()
    await world.close()


async def test_what_is_older_than_its_bundle_holds_the_watermark_while_code_waits() -> None:
    gate = Gate()

    class Older(Computation[Item, None]):
        bundles = Bundles(seconds=0)
        writes = (DONE,)

        async def process_bundle(self, records: Sequence[Record[Item]], ctx: Context[None]) -> None:
            if records[0].value.number == 1:
                ctx.produce(DONE, Counted("a", 1, 1), timestamp=at(50))
                await gate.wait()

    source = script(ITEMS, [Item("a", 1, 100)])
    made = Pipeline("older", settings=QUICK)
    made.inject(ITEMS, source, timestamp=time_of, lateness=timedelta(seconds=100))
    made.add(Older(), ITEMS.by(key_of), name="older")
    made.sink(DONE, Table("out", Counted, numbered=True))
    world = World(made)
    engine = await world.start()
    await world.until(lambda: gate.reached, tick=0.01)
    source.append(inject(ITEMS, Item("b", 2, 200)))
    read_on(engine)
    await world.turns(200, tick=0.01)
    assert from_micros(world.interval("older").watermarks.durable) == at(50)
    gate.open()
    await world.finish(engine)
    assert world.numbers() == [1]
    assert {len(interval.watermarks.holds) for interval in engine.intervals} == {0}
    assert from_micros(world.interval("older").watermarks.durable) == at(100)


async def test_only_a_bundle_has_a_number() -> None:
    class Asks(Computation[Item, None]):
        async def process_record(self, record: Record[Item], ctx: Context[None]) -> None:
            assert ctx.bundle_id

    made = Pipeline("asking", settings=QUICK)
    made.inject(ITEMS, script(ITEMS, items(1)), timestamp=time_of)
    made.add(Asks(), ITEMS.by(key_of))
    world = World(made)
    with pytest.raises(UserCodeError, match="do not come in bundles"):
        await world.run()
    await world.close()


async def test_what_a_bundle_produces_counts_as_its_newest_record() -> None:
    class Tells(Computation[Item, None]):
        bundles = Bundles(seconds=0)
        writes = (DONE,)

        async def process_bundle(self, records: Sequence[Record[Item]], ctx: Context[None]) -> None:
            ctx.produce(DONE, Counted("default", len(records), 0))
            ctx.produce(DONE, Counted("oldest", len(records), 0), timestamp=records[0].timestamp)

    class When(Computation[Counted, None]):
        async def process_record(self, record: Record[Counted], ctx: Context[None]) -> None:
            told[record.value.key] = record.micros

    told: dict[str, int] = {}
    made = Pipeline("when", settings=QUICK)
    made.inject(ITEMS, script(ITEMS, [Item("a", 1, 3), Item("b", 2, 7)]), timestamp=time_of)
    made.add(Tells(), ITEMS.by(key_of))
    made.add(When(), DONE.by(by_key))
    await World(made).run()
    assert {name: from_micros(micros) for name, micros in told.items()} == {
        "default": at(7),
        "oldest": at(3),
    }


# -- what is refused before anything starts -------------------------------------------------------


class Plain(Computation[Item, None]):
    bundles = Bundles()

    async def process_bundle(self, records: Sequence[Record[Item]], ctx: Context[None]) -> None:
        pass


class WithState(Computation[Item, Counted]):
    bundles = Bundles()

    async def process_bundle(self, records: Sequence[Record[Item]], ctx: Context[Counted]) -> None:
        pass


class WithTimer(Plain):
    async def process_timer(self, timer: Timer, ctx: Context[None]) -> None:
        pass


class WithBoth(Plain):
    async def process_record(self, record: Record[Item], ctx: Context[None]) -> None:
        pass


class WithGroup(Plain):
    async def process_group(self, records: Sequence[Record[Item]], ctx: Context[None]) -> None: ...


class WithBroadcast(Plain):
    async def process_broadcast(self, record: Any, shared: Any) -> None:
        pass


class WithoutBundles(Computation[Item, None]):
    async def process_bundle(self, records: Sequence[Record[Item]], ctx: Context[None]) -> None:
        pass


class WithoutMethod(Computation[Item, None]):
    bundles = Bundles()


class WithNumber(Plain):
    bundles = 500  # type: ignore[assignment]


REFUSED: list[tuple[Computation[Any, Any], dict[str, Any], str]] = [
    (WithState(), {}, "keeps state by key"),
    (WithTimer(), {}, "has timers by key"),
    (WithBoth(), {}, "both process_record and process_bundle"),
    (WithGroup(), {}, "both process_group and process_bundle"),
    (WithBroadcast(), {}, "a table built from a broadcast"),
    (WithoutBundles(), {}, "no limits for its bundles"),
    (WithoutMethod(), {}, "defines no process_bundle"),
    (WithNumber(), {}, "bundles must be a Bundles"),
    (Plain(), {"exactly_once": False}, "takes exactly_once=True"),
    (Plain(), {"productions": "weak"}, "they must be 'strong'"),
]


@pytest.mark.parametrize(("computation", "options", "why"), REFUSED)
def test_what_does_not_go_with_bundles_is_refused(
    computation: Computation[Any, Any], options: dict[str, Any], why: str
) -> None:
    with pytest.raises(GraphError, match=why):
        Pipeline("refused").add(computation, ITEMS.by(key_of), **options)


def test_a_table_of_the_producing_key_is_refused() -> None:
    made = Pipeline("refused")
    made.inject(ITEMS, script(ITEMS, []), timestamp=time_of)
    made.add(ToOutside(Outside(), Bundles()), ITEMS.by(key_of))
    made.sink(DONE, Table("t", Counted, key=("key",), producer_key=("key",)))
    with pytest.raises(GraphError, match="records have many keys; leave producer_key out"):
        made.graph()


@pytest.mark.parametrize(
    "limits",
    [
        {"records": 0},
        {"records": 10_001},
        {"records": 2.5},
        {"records": True},
        {"seconds": -1},
        {"seconds": 3601},
        {"seconds": float("nan")},
        {"seconds": "1"},
    ],
)
def test_limits_out_of_range_are_refused(limits: dict[str, Any]) -> None:
    with pytest.raises(GraphError, match="Bundles: "):
        Bundles(**limits)


def test_the_graph_shows_bundles_and_a_deploy_keeps_them() -> None:
    graph = outward(Outside(), bundles=Bundles(1_500, 0.2)).graph()
    assert "in numbered bundles of 1,500, or fewer after 0.2 s" in drawing.text(graph)
    assert graph.describe()["nodes"]["to_outside"]["bundles"] is True
    assert "bundles" not in graph.describe()["nodes"]["tally"]


def test_what_is_out_of_turn_is_a_bug() -> None:
    bundling = Batches(Bundles(), None)
    for act in (bundling.deliver, bundling.delivered):
        with pytest.raises(InvariantBroken, match="while gathering"):
            act()
    assert bundling.phase is Phase.GATHERING


def delivery(number: int) -> Delivery[Item]:
    item = Item("a", number)
    return Delivery("a", item, 0, "items", b"a", 0, 1, 0, 0, id=record_id(1, number))


def phase_of(bundling: Batches) -> str:
    return bundling.phase.value


def test_a_commit_says_of_a_bundle_what_is_true_with_it() -> None:
    """Open from the commit that closes it until the one that carries what its delivery left."""
    bundling = Batches(Bundles(records=2, seconds=1), None)
    bundling.offer([delivery(5), delivery(3), delivery(4)], now=10)
    assert bundling.position(1, delivers=False) == {"number": 0}
    assert bundling.is_due(10)
    bundling.close(0)
    bundling.settled(1)
    assert phase_of(bundling) == "closing", "the commit before does not have it"
    ids = [record_id(1, number).hex() for number in (5, 3)]
    held = {"number": 1, "open": ids, "previous": 0, "at": 0}
    for n in (2, 3):
        assert bundling.position(n, delivers=False) == held
    bundling.settled(2)
    bundling.deliver()
    assert bundling.position(4, delivers=False) == held
    bundling.delivered()
    assert bundling.position(5, delivers=False) == held, "of another lane's turn, say"
    bundling.settled(5)
    assert phase_of(bundling) == "delivered"
    assert bundling.position(6, delivers=True) == {"number": 1}
    bundling.settled(6)
    assert phase_of(bundling) == "gathering"
    assert (bundling.due_at(), bundling.is_due(1_000_009)) == (1_000_010, False)
    assert bundling.is_due(1_000_010)


def test_a_bundle_is_stored_in_the_order_in_which_it_is_given() -> None:
    """That of arrival, whatever the ids: an owner that has it again gives it so once more."""
    arrived = [5, 3, 9, 1]
    bundling = Batches(Bundles(records=4), None)
    bundling.offer([delivery(number) for number in arrived], now=0)
    bundling.close(0)
    assert [member.value.number for member in bundling.members] == arrived
    stored = bundling.position(1, delivers=False)
    again = Batches(Bundles(records=4), {"bundle": stored})
    again.offer([delivery(number) for number in sorted(arrived)], now=0)
    assert [member.value.number for member in again.members] == arrived


def test_a_member_that_was_made_again_with_another_value_is_an_error() -> None:
    """A weak production: the sink has had the bundle with the value before, perhaps."""
    name = b"\x80" + bytes(NAME_BYTES - 1)
    first, other = delivery(5), delivery(6)
    first.id, other.id = name + b"1" * (16 - NAME_BYTES), name + b"2" * (16 - NAME_BYTES)
    stored = {"bundle": {"number": 7, "open": [first.id.hex()]}}
    with pytest.raises(NotTheSameAgain):
        Batches(Bundles(), stored).offer([other], now=0)
    other.id = name + b"3" * RUN_BYTES + b"2" * (16 - NAME_BYTES - RUN_BYTES)
    with pytest.raises(NotTheSameAgain):
        Batches(Bundles(), stored).offer([other], now=0)
    for says in (first.id, name + b"3" * RUN_BYTES + first.id[NAME_BYTES + RUN_BYTES :]):
        again = Batches(Bundles(), stored)
        same = delivery(5)
        same.id = says
        again.offer([same], now=0)
        assert again.members == [same]


def weak(number: int) -> Delivery[Item]:
    made = delivery(number)
    made.id = b"\xff" + made.id[1:]
    made.size = 10
    return made


def test_what_nobody_else_keeps_is_stored_by_the_first_commit_that_carries_it() -> None:
    bundling = Batches(Bundles(records=9), None, most_bytes=20)
    bundling.offer([weak(1), delivery(2), weak(3), weak(4)], now=0)
    assert bundling.to_keep() == []
    bundling.close(0)
    assert [member.value.number for member in bundling.members] == [1, 2, 3], "20 bytes"
    assert [member.value.number for member in bundling.to_keep()] == [1, 3]
    bundling.position(5, delivers=False)
    assert bundling.to_keep() == []
    bundling.settled(5)
    bundling.deliver()
    assert bundling.to_keep() == []


def test_how_far_the_logs_of_missing_members_go() -> None:
    ids = [record_id(1, 5), record_id(1, 9), record_id(2, 3), weak(7).id]
    bundling = Batches(Bundles(), {"bundle": {"number": 7, "open": [id_.hex() for id_ in ids]}})
    assert bundling.awaited() == {1: 9, 2: 3}
    bundling.offer([delivery(9)], now=0)
    assert bundling.awaited() == {1: 5, 2: 3}
    bundling.offer([delivery(5), weak(7)], now=0)
    assert bundling.awaited() == {2: 3}
    assert bundling.lacks_members


def test_a_clock_that_goes_back_does_not_make_a_bundle_wait() -> None:
    bundling = Batches(Bundles(seconds=1), None)
    bundling.offer([delivery(1)], now=500_000_000)
    assert not bundling.is_due(200_000_000)
    assert bundling.due_at() == 201_000_000
    assert bundling.is_due(201_000_000)


def test_a_later_claim_knows_where_the_copies_of_members_are() -> None:
    """It acknowledges them with the bundle: the members themselves may have come from their
    senders."""
    bundling = Batches(Bundles(), None)
    bundling.offer([weak(1), weak(2)], now=0)
    bundling.close(0)
    bundling.kept = Kept(33, range(3, 5))
    stored = bundling.position(1, delivers=False)
    assert stored["kept"] == [33, 3, 5]
    again = Batches(Bundles(), {"bundle": stored})
    assert again.kept == bundling.kept
    log = SentLog(33, Holds(), inherited=True, first=3)
    log.sent(4, 0, 10)  # the other is not sent again yet
    log.settle(again.kept.numbers)
    assert log.unacked == log.unacked_bytes == 0
    assert log.is_acknowledged(4)
    again.offer([weak(1), weak(2)], now=1)
    again.deliver()
    again.delivered()
    assert "kept" not in again.position(2, delivers=True)


def test_a_claim_goes_on_from_what_is_stored() -> None:
    ids = [record_id(1, number).hex() for number in (5, 3)]
    bundling = Batches(Bundles(records=1), {"bundle": {"number": 7, "open": ids}})
    bundling.offer([delivery(3), delivery(9), delivery(8)], now=10)
    assert (bundling.phase, bundling.missing) == (Phase.REPLAYING, 1)
    assert bundling.wants_more, "the other may be behind any number of them"
    assert bundling.due_at() is None
    held = {"number": 7, "open": ids, "previous": 6, "at": 0}
    assert bundling.position(1, delivers=False) == held
    bundling.offer([delivery(5)], now=11)
    assert [member.value.number for member in bundling.members] == [5, 3]
    assert bundling.may_be_delivered
    assert not bundling.wants_more
    done = Batches(Bundles(), {"bundle": {"number": 7}})
    assert (done.number, done.is_empty) == (7, True)


# -- tests of users -------------------------------------------------------------------------------


async def test_a_harness_waits_for_nobody() -> None:
    outside = Outside()
    async with Harness(outward(outside, bundles=Bundles(records=5, seconds=60))) as harness:
        await harness.inject(ITEMS, *items(1, 2))
        assert [value.number for value in harness.produced(DONE)] == [1, 2]
        await harness.inject(ITEMS, *items(3))
        outside.check(items(1, 2, 3))


async def test_one_test_many_modes() -> None:
    outside = Outside()
    values = [Item("ab"[n % 2], n, n) for n in range(7)]
    made = outward(outside, computation=Checked(outside))
    runs = 0

    def fresh() -> None:
        nonlocal runs
        runs += 1
        outside.__init__()  # type: ignore[misc]

    await assert_exactly_once(
        made,
        [inject(ITEMS, value) for value in values],
        {DONE: [Counted(value.key, value.number, 0) for value in values]},
        max_crashes=6,
        before_each=fresh,
        after_each=lambda: outside.check(values),
    )
    assert runs > 20
    with pytest.raises(AssertionError, match="coalesced: "):
        await assert_exactly_once(
            made,
            [inject(ITEMS, values[0])],
            {DONE: [Counted("a", 0, 0)]},
            before_each=fresh,
            after_each=lambda: outside.check(values),
        )


class Checked(ToOutside):
    """Says nothing of numbers, which depend on how the inputs are bundled."""

    def __init__(self, outside: Outside) -> None:
        super().__init__(outside, Bundles(records=3, seconds=60))

    async def process_bundle(self, records: Sequence[Record[Any]], ctx: Context[None]) -> None:
        bundle = (ctx.bundle_id.scope, ctx.bundle_id.number)
        self.outside.write(bundle, records)
        for record in records:
            ctx.produce(DONE, Counted(record.value.key, record.value.number, 0))
