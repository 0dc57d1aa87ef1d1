"""Rolling restarts: workers of old and new code on one pipeline; growing and shrinking it."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import replace
from itertools import pairwise
from random import Random
from typing import Any, ClassVar

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millwheel import Computation, Context, Pipeline, Record, Stream, Table
from millwheel.core.model import MAX_TIME, SLOTS, Delivery, record_id
from millwheel.errors import DeployRefused, Fenced, MigrationFailed, UsageError
from millwheel.runtime.engine import Engine
from millwheel.runtime.environment import Environment
from millwheel.runtime.network.frames import Frame, Gap
from millwheel.runtime.network.wire_stream import Due, Outgoing
from millwheel.runtime.ownership.balancer import Balancer
from millwheel.services.worker import PipelineWorker
from millwheel.store.console.administration import remove_computations
from millwheel.store.console.inspection import inspect
from millwheel.store.port import Store
from millwheel.store.port.deploy import Deployment, DescribedGraph, NodeDeploy
from millwheel.store.port.placement import Placement, PlacementChange, Wish
from millwheel.store.postgres.store import PostgresStore
from millwheel.testing import inject
from millwheel.testing.fake_network import Weather
from tests.support.clusters import AGAIN, SHARED, Recount, check, counting, many, number_of
from tests.support.drawing import examples
from tests.support.peers import next_of
from tests.support.pipelines import Tally, script
from tests.support.rolling_clusters import Rolling
from tests.support.sessions import until, waiting_for_a_lock
from tests.support.store_sites import (
    BUCKET_HIGH,
    COUNT,
    GRAPH,
    LINES,
    SECOND,
    START,
    WORDS,
    MemorySite,
    Owner,
    PostgresSite,
    Site,
    deploy,
)
from tests.support.values import ITEMS, TALLY, Count, Counted, Item, key_of, time_of
from tests.support.worlds import end_scripts, scripts_of

pytestmark = pytest.mark.newest

LONG_SECONDS = 10.0
"""Of virtual time, in which both versions of the code are at work."""

EXTRA = Stream("extra", Counted)


# -- the same pipeline, some time later ---------------------------------------------------------


async def worker(store: Store, generation: int) -> str:
    """A worker that is registered."""
    name = str(uuid.uuid4())
    await store.register_worker(name, 60.0, address="somewhere", generation=generation)
    return name


class Total(msgspec.Struct):
    """The state of `Tally` by another name."""

    total: int = 0


class Told(msgspec.Struct):
    """What `Tally` says, by another name: it was the `times`-th of its key."""

    key: str
    number: int
    times: int


def renamed(value: dict[str, Any], old: str, new: str) -> dict[str, Any]:
    """JSON with a field by another name."""
    return {new if name == old else name: found for name, found in value.items()}


def count_to_total(value: dict[str, Any]) -> dict[str, Any]:
    return renamed(value, "count", "total")


def total_to_count(value: dict[str, Any]) -> dict[str, Any]:
    return renamed(value, "total", "count")


TOLD = Stream(
    "tally", Told, version=2, migrations={1: lambda value: renamed(value, "count", "times")}
)


def pipeline_of(
    values: list[Item],
    tally: Computation[Any, Any],
    recount: Computation[Any, Any] | None = None,
    told: Stream[Any] = TALLY,
) -> Pipeline:
    """`counting`, of other parts."""
    made = Pipeline("counting", settings=SHARED)
    for number in range(2):
        made.inject(
            ITEMS,
            script(ITEMS, values[number::2], f"part {number}"),
            timestamp=time_of,
            name=f"source_{number}",
        )
    made.add(tally, ITEMS.by(key_of))
    made.add(recount or Recount(), told.by(number_of))
    made.sink(AGAIN, Table("out", Counted, numbered=True))
    return made


def with_total(values: list[Item]) -> Pipeline:
    """Its state has another class."""

    class Tally(Computation[Item, Total]):
        writes = (TALLY,)
        version = 2
        migrations: ClassVar = {1: count_to_total}

        async def process_record(self, record: Record[Item], ctx: Context[Total]) -> None:
            ctx.state.total += 1
            item = record.value
            ctx.produce(TALLY, Counted(item.key, item.number, ctx.state.total))

    return pipeline_of(values, Tally())


class Back(Tally):
    """The code that was there first, with a way back to it."""

    migrations: ClassVar = {2: total_to_count}


Back.__name__ = "Tally"


def gone_back(values: list[Item]) -> Pipeline:
    return pipeline_of(values, Back())


def with_told(values: list[Item], tally: Stream[Told] = TOLD) -> Pipeline:
    """A stream has values of another class."""

    class Tally(Computation[Item, Count]):
        writes = (tally,)

        async def process_record(self, record: Record[Item], ctx: Context[Count]) -> None:
            ctx.state.count += 1
            item = record.value
            ctx.produce(tally, Told(item.key, item.number, ctx.state.count))

    class Recount(Computation[Told, Count]):
        writes = (AGAIN,)

        async def process_record(self, record: Record[Told], ctx: Context[Count]) -> None:
            ctx.state.count += 1
            told = record.value
            ctx.produce(AGAIN, Counted(told.key, told.number, told.times * 100 + ctx.state.count))

    return pipeline_of(values, Tally(), Recount(), tally)


class Extra(Computation[Counted, None]):
    """Reads what was there before it, and writes down what it saw."""

    writes = (EXTRA,)

    async def process_record(self, record: Record[Counted], ctx: Context[None]) -> None:
        ctx.produce(EXTRA, record.value)


def grown(values: list[Item]) -> Pipeline:
    """One computation more."""
    made = counting(values)
    made.add(Extra(), TALLY.by(number_of))
    made.sink(EXTRA, Table("extra", Counted, numbered=True))
    return made


# -- a cluster whose workers run different code ---------------------------------------------------


async def roll(cluster: Rolling, to: Pipeline, *, both_for: float = LONG_SECONDS) -> None:
    """Restart all workers with other code, one after the other, while records flow."""
    for old in list(cluster.alive):
        await cluster.leave(old)
        await cluster.start_worker(to)
        commits = len(cluster.commits)
        await cluster.wait(both_for)
        assert len(cluster.commits) > commits, "it stands still"
        assert all(engine.intervals for engine in cluster.alive), "somebody has nothing to do"
    assert not cluster.finished(), "too little to do for both to be at work"


@pytest.mark.parametrize("change", [with_total, with_told])
async def test_workers_go_over_to_new_code_one_by_one_and_nothing_is_lost(
    change: Callable[[list[Item]], Pipeline],
) -> None:
    values = many(1000)
    cluster = Rolling(counting(values))
    for _ in range(3):
        await cluster.start_worker(cluster.pipeline)
    await cluster.go(lambda: all(engine.processed > 50 for engine in cluster.alive))
    await roll(cluster, change(values))
    await cluster.end()
    check(cluster, values)


async def test_state_is_brought_up_to_date_key_by_key_when_it_is_touched() -> None:
    values = many(800, keys=20)
    cluster = Rolling(counting(values[:400]))
    cluster.endless = True
    engine = await cluster.start_worker(counting(values[:400]))
    await cluster.go(lambda: len(cluster.rows()) == 400)
    await cluster.leave(engine)
    assert cluster.versions("tally") == {1: 20}
    late = [item for item in values[400:] if item.key in ("key 1", "key 2")]
    cluster.endless = False
    await cluster.start_worker(with_total(values[:400] + late))
    await cluster.end()
    check(cluster, values[:400] + late)
    assert cluster.versions("tally") == {1: 18, 2: 2}
    assert cluster.state("tally", "key 1") == {"": {"total": 40}}
    assert cluster.state("tally", "key 3") == {"": {"count": 20}}


async def test_going_back_takes_a_way_down() -> None:
    values = many(1000)
    cluster = Rolling(counting(values))
    for pipeline in (counting(values), counting(values)):
        await cluster.start_worker(pipeline)
    await roll(cluster, with_total(values), both_for=5.0)
    with pytest.raises(DeployRefused) as caught:
        await cluster.start_worker(counting(values))
    for part in (
        "this code is generation 1 of pipeline 'counting', and generation 2 is deployed",
        "No interval is left for it",
        "state of 'tally': a former version of a type",
        "migrations = {2: down}",
    ):
        assert part in str(caught.value)
    await roll(cluster, gone_back(values), both_for=5.0)
    assert {await cluster.generation_of(engine) for engine in cluster.alive} == {3}
    await cluster.end()
    check(cluster, values)
    assert cluster.versions("tally") == {1: 40}


async def test_who_crashes_while_others_go_over_may_come_back_with_the_old_code() -> None:
    values = many(1000)
    cluster = Rolling(counting(values))
    for _ in range(3):
        await cluster.start_worker(cluster.pipeline)
    await cluster.go(lambda: all(engine.processed > 50 for engine in cluster.alive))
    first, second, third = cluster.alive
    await cluster.leave(first)
    new = await cluster.start_worker(with_total(values))
    await cluster.wait(2.0)
    await cluster.crash(second)
    back = await cluster.start_worker(counting(values))
    assert await cluster.generation_of(back) == 1
    await cluster.wait(LONG_SECONDS)
    assert third.intervals
    assert new.intervals
    for old in (third, back):
        await cluster.leave(old)
        await cluster.start_worker(with_total(values))
    await cluster.end()
    check(cluster, values)


async def test_what_newer_code_has_had_waits_for_newer_code_and_that_is_said_once(
    capsys: pytest.CaptureFixture[str],
) -> None:
    values = many(1000)
    cluster = Rolling(counting(values))
    old = await cluster.start_worker(counting(values))
    new = await cluster.start_worker(with_total(values))
    await cluster.go(lambda: new.processed > 50 and new.intervals)
    taken = {interval.id for interval in new.intervals}
    await cluster.crash(new)
    await cluster.wait(LONG_SECONDS)
    assert taken.isdisjoint(interval.id for interval in old.intervals)
    assert capsys.readouterr().out.count("no_worker_of_generation") == 1
    await cluster.start_worker(with_total(values))
    await cluster.end()
    check(cluster, values)


class Hushed:
    """A balancer that decides nothing any more once it is hushed."""

    hushed = False

    def __init__(self, env: Environment) -> None:
        self._balancer = Balancer(env)

    def __call__(self, placement: Placement) -> list[PlacementChange]:
        return [] if Hushed.hushed else self._balancer(placement)


class StrayLink:
    """A link that nothing is sent over."""

    peer = "old"
    outgoing = True
    up = True
    full = False

    def send(self, frame: Frame) -> None:
        raise AssertionError("nothing is to be said")

    def close(self) -> None:
        raise AssertionError("it stays")


def outgoing(*numbers: int) -> Outgoing:
    """A stream of deliveries with these records."""
    stream = Outgoing()
    for number in numbers:
        stream.append(
            Delivery(
                "a", number, 0, "tally", b'"a"', 0, 1, 0, 1, b"0", 1, number, 0, b"%016d" % number
            )
        )
    return stream


def test_a_frame_has_no_more_than_it_may_and_a_long_record_one_to_itself() -> None:
    stream = Outgoing()
    for number, size in enumerate((40, 40, 40, 300, 10, 100, 1)):
        stream.append(
            Delivery(
                "a", number, 0, "tally", b'"a"', 0, 1, 0, size, b"0", 1, number, 0,
                b"%016d" % number
            )
        )  # fmt: skip
    stream.begin(1)
    frames = [next_of(stream, 9, 100) for _ in range(7)]
    assert frames == [[0, 1], [2], [3], [4], [5], [6], []]


def test_a_halted_stream_sends_nothing_until_it_begins_anew() -> None:
    stream = outgoing(1, 2, 3)
    stream.begin(1)
    assert next_of(stream, 2, 100) == [1, 2]
    stream.halted = True
    assert stream.take(9, 100)[1] == []
    stream.begin(2)
    assert next_of(stream, 9, 100) == [1, 2, 3]


def test_a_halted_stream_is_tried_again_ever_more_seldom() -> None:
    stream = outgoing(1, 2, 3)
    stream.begin(3)
    stream.take(1, 100)
    stream.halted = True
    tried = []
    for second in range(100):
        if stream.due(float(second)) is Due.BEGIN:
            tried.append(second)
            stream.begin(4)
            stream.take(1, 100)
            stream.halted = True
    assert tried[0] == 3
    assert 3 < len(tried) < 8
    pauses = [later - earlier for earlier, later in pairwise(tried)]
    assert pauses == sorted(pauses)


async def test_what_old_code_cannot_read_waits_at_its_sender(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The balancer takes such intervals from old workers at once; here it does not."""
    values = many(600)
    cluster = Rolling(counting(values))
    old = await cluster.start_worker(counting(values), Hushed)
    await cluster.go(lambda: old.processed > 50)
    monkeypatch.setattr(Hushed, "hushed", True)
    new = await cluster.start_worker(with_told(values), Hushed)
    alive = {"old": old, "new": new}

    async def want(worker: str, computation: str) -> None:
        placement = await cluster.store.read_placement()
        wishes = [
            Wish(row.id, row.sequencer, alive[worker].worker, "a test wants it")
            for row in placement.intervals
            if row.name == computation
        ]
        assert await cluster.store.wish(wishes)

    def has(worker: str, computation: str) -> bool:
        return sum(i.step.name == computation for i in alive[worker].intervals) == 2

    await want("new", "tally")
    await cluster.go(lambda: has("new", "tally"))
    assert old.courier is not None
    refused = old.courier.refused
    await cluster.go(lambda: refused["too new"])
    await cluster.wait(LONG_SECONDS)
    assert has("old", "recount")
    assert refused["too new"] < 40, "it is asked again and again"
    waiting = [
        (remote, log, stream)
        for remote in new.remotes.remotes()
        if remote.step.name == "recount"
        for log, stream in remote.streams.items()
        if stream.unacked
    ]
    assert waiting
    assert all(stream.halted for _, _, stream in waiting)
    remote, log, stream = waiting[0]
    begun = stream.epoch
    assert new.courier is not None
    gap = Gap(log, begun, remote.id, -1)  # of a frame that was on its way when it was halted
    new.courier.received(StrayLink(), gap)
    assert stream.epoch == begun
    seen = {row[1] for row in cluster.rows()}
    assert len(seen) < len(values)
    monkeypatch.setattr(Hushed, "hushed", False)
    await cluster.end()
    check(cluster, values)


async def test_a_migration_that_fails_on_what_comes_from_old_code_ends_the_new_worker() -> None:
    """Not the connection, again and again: who starts it anew would meet the same record."""
    values = many(600)

    def fail(_: dict[str, Any]) -> dict[str, Any]:
        raise ValueError("no such form")

    told = Stream("tally", Told, version=2, migrations={1: fail})
    cluster = Rolling(counting(values))
    old = await cluster.start_worker(counting(values))
    await cluster.go(lambda: old.processed > 50)
    new = await cluster.start_worker(with_told(values, told))
    with pytest.raises(MigrationFailed, match=r"stream 'tally', key (.|\n)*no such form"):
        await cluster.go(lambda: False)
    assert isinstance(new.failure, MigrationFailed)
    assert old.failure is None
    await cluster.close()


# -- growing ------------------------------------------------------------------------------------


async def test_a_computation_is_added_while_workers_that_do_not_know_it_go_on() -> None:
    values = many(1000)
    cluster = Rolling(counting(values))
    for _ in range(2):
        await cluster.start_worker(cluster.pipeline)
    await cluster.go(lambda: all(engine.processed > 50 for engine in cluster.alive))
    old, other = cluster.alive
    await cluster.leave(old)
    new = await cluster.start_worker(grown(values))
    extra = next(step for step in new.exchange.steps.values() if step.name == "extra")
    tally = next(step for step in new.exchange.steps.values() if step.name == "tally")
    await cluster.go(lambda: new.exchange.of(extra.id))
    until = cluster.clock.monotonic() + LONG_SECONDS

    def promise_kept() -> bool:
        """Nobody promises for the new one what those who send to it have not (I5)."""
        assert all(
            interval.watermarks.durable <= new.publisher.watermarks.least(tally.id)
            for interval in new.exchange.of(extra.id)
        )
        return cluster.clock.monotonic() > until

    await cluster.go(promise_kept, tick=0.05)
    assert other.intervals
    await cluster.leave(other)
    before = {
        production.value.number
        for commit in cluster.commits
        for production in commit.productions
        if production.stream == "tally"
    }
    assert len(before) < len(values)
    await cluster.start_worker(grown(values))
    await cluster.end()
    check(cluster, values)
    told = Counter(row[1] for row in cluster.rows("extra"))
    assert set(told.values()) == {1}
    assert {item.number for item in values} - before <= told.keys()
    assert cluster.letters() == []


async def test_a_new_writer_of_a_stream_takes_its_readers_from_workers_that_do_not_know_it() -> (
    None
):
    """They would go by a low watermark that leaves it out."""
    values = many(1000)
    more = [Item("more", 10_000 + number, 0) for number in range(200)]
    cluster = Rolling(counting(values))
    old = await cluster.start_worker(counting(values))
    await cluster.go(lambda: old.processed > 50)
    wider = counting(values)
    wider.inject(ITEMS, script(ITEMS, more, "part 2"), timestamp=time_of, name="source_2")
    new = await cluster.start_worker(wider)
    await cluster.go(lambda: len([i for i in new.intervals if i.step.name == "tally"]) == 2)
    await cluster.end()
    numbers = [row[1] for row in cluster.rows()]
    assert sorted(numbers) == sorted(item.number for item in [*values, *more])


# -- shrinking ----------------------------------------------------------------------------------


def names_held(engine: Engine) -> set[str]:
    return {interval.step.name for interval in engine.intervals}


async def test_a_computation_is_removed_while_its_workers_run() -> None:
    values = many(1000)
    cluster = Rolling(grown(values))
    for _ in range(2):
        await cluster.start_worker(grown(values))
    await cluster.go(lambda: len(cluster.rows("extra")) > 50)
    cluster.store.remove(["extra"])
    removed = cluster.clock.monotonic()
    await cluster.go(lambda: all("extra" not in names_held(e) for e in cluster.alive))
    assert cluster.clock.monotonic() - removed < 2.0
    written = len(cluster.rows("extra"))
    await cluster.go(lambda: len(cluster.rows()) > 500)
    with pytest.raises(DeployRefused, match=r"computation 'extra': the name of a removed step"):
        await cluster.start_worker(grown(values))
    first, second = cluster.alive
    await cluster.crash(first)
    third = await cluster.start_worker(counting(values))
    await cluster.wait(5.0)
    assert third.intervals, "what the old ones sent to the removed one is in its way"
    await cluster.leave(second)
    await cluster.end()
    check(cluster, values)
    assert len(cluster.rows("extra")) == written
    assert cluster.versions("extra") == {}
    assert cluster.store.pending_productions() == []


async def test_a_removed_computation_that_has_nothing_to_do_is_let_go_of_as_well() -> None:
    values = many(200)
    cluster = Rolling(grown(values))
    for _ in range(2):
        await cluster.start_worker(grown(values))
    await cluster.go(cluster.finished)
    await cluster.wait(2.0)
    assert any("extra" in names_held(engine) for engine in cluster.alive)
    cluster.store.remove(["extra"])
    await cluster.wait(2.0)
    assert all("extra" not in names_held(engine) for engine in cluster.alive)
    await cluster.end()


async def test_what_was_sent_to_a_removed_computation_is_not_sent_again_by_newer_code() -> None:
    values = many(600)
    cluster = Rolling(grown(values))
    old = await cluster.start_worker(grown(values))
    extra = next(step.id for step in old.exchange.steps.values() if step.name == "extra")
    await cluster.go(
        lambda: any(p.receiver == extra for c in cluster.commits[-1:] for p in c.productions)
    )
    cluster.store.remove(["extra"])
    await cluster.crash(old)
    assert cluster.store.pending_productions()
    await cluster.start_worker(counting(values))
    await cluster.end()
    check(cluster, values)
    assert cluster.store.pending_productions() == []


async def test_what_is_removed_as_soon_as_it_is_claimed_hinders_nobody() -> None:
    values = many(600)
    cluster = Rolling(grown(values))

    async def remove_behind(call: str) -> None:
        if call == "claim":
            cluster.store.faults.before_call = None
            asyncio.get_running_loop().call_soon(cluster.store.remove, ["extra"])

    cluster.store.faults.before_call = remove_behind
    worker = await cluster.start_worker(grown(values))
    await cluster.end()
    check(cluster, values)
    assert "extra" not in names_held(worker)


async def test_an_injector_is_removed_and_nobody_waits_for_its_watermark() -> None:
    values = many(600)
    endless = [Item("b", 10_000 + number, 0) for number in range(20_000)]

    def three(with_third: bool) -> Pipeline:
        made = counting(values)
        if with_third:
            source = script(ITEMS, endless, "part 2")
            made.inject(ITEMS, source, timestamp=time_of, name="source_2")
        return made

    cluster = Rolling(three(with_third=True))
    for _ in range(2):
        await cluster.start_worker(three(with_third=True))
    await cluster.go(lambda: len(cluster.rows()) > 700)
    assert not cluster.finished()
    cluster.store.remove(["source_2"])
    await cluster.go(cluster.finished)
    for engine in list(cluster.alive):
        await cluster.leave(engine)
    read = {row[1] for row in cluster.rows()}
    assert {item.number for item in values} <= read
    last = await cluster.start_worker(three(with_third=False))
    await cluster.end()
    assert all(interval.watermarks.durable == MAX_TIME for interval in last.intervals)
    assert len(cluster.rows()) == len(read)


@pytest.mark.parametrize(
    ("names", "reason"),
    [
        (["nothing"], "has no 'nothing'; it has extra, recount, source_0, source_1, tally"),
        (["tally"], "recount reads tally, and no other node writes it"),
        (["tally", "recount", "extra"], "source_0 injects items, and no other node reads it"),
        (["source_0", "source_1"], "tally reads items, and no other node writes it"),
        (["source_0", "source_1", "tally", "recount", "extra"], "millwheel drop counting"),
    ],
)
async def test_what_others_need_is_not_removed(names: list[str], reason: str) -> None:
    cluster = Rolling(grown(many(10)))
    await cluster.start_worker(cluster.pipeline)
    with pytest.raises(UsageError, match=reason):
        cluster.store.remove(names)
    await cluster.end()


# -- at random ----------------------------------------------------------------------------------

Act = tuple[int, str, int]
"""After so many more commits, what happens, to whom."""

PLANS = given(
    acts=st.lists(
        st.tuples(
            st.integers(1, 25),
            st.sampled_from(["old", "new", "new", "crash", "leave"]),
            st.integers(0, 3),
        ),
        max_size=9,
    ),
    change=st.sampled_from([with_total, with_told, grown]),
    bad=st.booleans(),
    seed=st.integers(0, 1000),
)


def check_old_and_new_come_and_go_and_the_wire_is_bad(
    acts: list[Act], change: Callable[[list[Item]], Pipeline], bad: bool, seed: int
) -> None:
    values = many(400)
    newest: dict[int, int] = {}
    """Per interval the newest generation that was seen to own it."""

    async def look(cluster: Rolling) -> None:
        placement = await cluster.store.read_placement()
        of = {worker.id: worker.generation for worker in placement.workers}
        for row in placement.intervals:
            if row.owner in of:
                assert of[row.owner] >= newest.get(row.id, 1), "old code has what newer code had"
                newest[row.id] = of[row.owner]

    async def happen(cluster: Rolling, what: str, who: int) -> None:
        engine = cluster.alive[who % len(cluster.alive)]
        if what == "new" and len(cluster.alive) < 4:
            await cluster.start_worker(change(values))
        elif what == "old" and len(cluster.alive) < 4:
            with contextlib.suppress(DeployRefused):  # nothing may be left for it
                await cluster.start_worker(counting(values))
        elif what == "crash" and len(cluster.alive) > 1:
            await cluster.crash(engine)
        elif what == "leave" and len(cluster.alive) > 1:
            await cluster.leave(engine)

    async def go() -> None:
        weather = Weather(Random(seed), delay=0.05, drop=0.02, duplicate=0.05, overtake=0.05)
        cluster = Rolling(counting(values), weather if bad else None)
        await cluster.start_worker(counting(values))
        await cluster.start_worker(counting(values))
        for after, what, who in acts:
            until = len(cluster.commits) + after, cluster.clock.monotonic() + 5
            # Not for ever: if only old ones live, there may be nothing that they can do.
            await cluster.go(
                lambda until=until: (  # type: ignore[misc]
                    len(cluster.commits) >= until[0] or cluster.clock.monotonic() >= until[1]
                )
            )
            await look(cluster)
            await happen(cluster, what, who)
        await cluster.start_worker(change(values))
        await cluster.end()
        check(cluster, values)

    asyncio.run(go())


@examples(4)
@PLANS
def test_old_and_new_come_and_go_and_the_wire_is_bad(
    acts: list[Act], change: Callable[[list[Item]], Pipeline], bad: bool, seed: int
) -> None:
    check_old_and_new_come_and_go_and_the_wire_is_bad(acts, change, bad, seed)


@pytest.mark.soak
@examples(1_000)
@PLANS
def test_old_and_new_come_and_go_and_the_wire_is_bad_for_long(
    acts: list[Act], change: Callable[[list[Item]], Pipeline], bad: bool, seed: int
) -> None:
    check_old_and_new_come_and_go_and_the_wire_is_bad(acts, change, bad, seed)


# -- the store ----------------------------------------------------------------------------------

NEWER = replace(COUNT, state={"type": "object", "n": "string"}, version=3, migrates_from=[2])
OTHERS = NodeDeploy("others", "computation", 1, {}, ["count"], [(0, SLOTS)], [])
PAGES = NodeDeploy("pages", "injector", 1, {}, [], [(0, 1)], ["file pages.txt"])
GROWN = {
    "nodes": {
        **GRAPH["nodes"],
        "others": {"inputs": [["totals", "key"]], "kind": "computation", "writes": []},
    }
}


async def claim(store: Store, worker: str) -> list[int]:
    """Claim whatever can be claimed; gives the ids."""
    rows = (await store.read_placement()).intervals
    sequencers = {row.id: row.sequencer for row in rows}
    claims = await store.claim(worker, list(sequencers), sequencers=sequencers)
    return [claim.interval.id for claim in claims]


async def release(store: Store, worker: str) -> None:
    rows = (await store.read_placement()).intervals
    await store.release(worker, {row.id: row.sequencer for row in rows})


async def test_no_worker_claims_what_newer_code_has_owned(site: Site) -> None:
    await deploy(site.store)
    newer = await deploy(site.store, count=NEWER)
    assert newer.generation == 2
    old, new = await worker(site.store, 1), await worker(site.store, 2)
    everything = await claim(site.store, old)
    assert len(everything) == 3
    await release(site.store, old)
    assert await claim(site.store, new) == everything
    await release(site.store, new)
    for older in (old, str(uuid.uuid4())):
        assert await claim(site.store, older) == []
        with pytest.raises(Fenced):
            await site.store.claim(older, everything)
    assert await claim(site.store, new) == everything
    with pytest.raises(DeployRefused, match="No interval is left for it"):
        await deploy(await site.another(), shared=True)


async def test_parts_and_wholes_are_for_the_code_that_their_intervals_are_for(site: Site) -> None:
    await deploy(site.store)
    await deploy(site.store, count=NEWER)
    old, new = await worker(site.store, 1), await worker(site.store, 2)
    rows = [row for row in (await site.store.read_placement()).intervals if row.name == "count"]
    assert [row.generation for row in rows] == [1, 1]
    upper = rows[1]
    await site.store.claim(new, [upper.id], sequencers={upper.id: upper.sequencer})
    await release(site.store, new)
    lower, upper = [
        row for row in (await site.store.read_placement()).intervals if row.name == "count"
    ]
    whole = await site.store.merge(
        lower.id, upper.id, {lower.id: lower.sequencer, upper.id: upper.sequencer}
    )
    (row,) = [row for row in (await site.store.read_placement()).intervals if row.id == whole]
    assert row.generation == 2
    part = await site.store.split(whole, row.sequencer, SLOTS // 4)
    assert {whole, part}.isdisjoint(await claim(site.store, old))


@pytest.mark.parametrize("change", ["state", "graph"])
async def test_many_workers_that_start_at_once_begin_one_generation(
    site: Site, change: str
) -> None:
    await deploy(site.store)
    stores = [await site.another() for _ in range(6)]
    if change == "state":
        found = await asyncio.gather(*(deploy(store, count=NEWER) for store in stores))
    else:
        found = await asyncio.gather(
            *(deploy(store, graph=GROWN, more=(OTHERS,)) for store in stores)
        )
    assert {deployment.generation for deployment in found} == {2}
    assert len({tuple(row.id for row in deployment.intervals) for deployment in found}) == 1
    assert (await deploy(site.store, shared=True)).generation == 1, "there is old work left"


async def test_a_stream_of_another_version_takes_its_readers_from_older_code(site: Site) -> None:
    graph = {"nodes": {**GROWN["nodes"], "count": {"inputs": [["words", "key"]], "writes": []}}}
    await deploy(site.store, graph=graph, more=(OTHERS,))
    newer = replace(WORDS, version=2, type={"type": "integer"}, migrates_from=[1])
    await deploy(site.store, graph=graph, more=(OTHERS,), words=newer)
    rows = (await site.store.read_placement()).intervals
    assert {(row.name, row.generation) for row in rows} == {
        ("lines", 1), ("count", 2), ("others", 1),
    }  # fmt: skip


async def test_a_version_is_never_used_for_two_types(site: Site) -> None:
    await deploy(site.store)
    await deploy(site.store, count=NEWER)
    back = replace(COUNT, migrates_from=[3])
    assert (await deploy(site.store, count=back)).generation == 3
    other = replace(NEWER, state={"type": "object", "n": "boolean"})
    with pytest.raises(DeployRefused, match="version = 4"):
        await deploy(site.store, count=other)
    with pytest.raises(DeployRefused, match=r"goes from version 2 to 4.*no entry for version 2"):
        await deploy(site.store, count=replace(other, version=4, migrates_from=[3]))
    last = replace(other, version=4, migrates_from=[2, 3])
    assert (await deploy(site.store, count=last)).generation == 4


async def remove(site: Site, *names: str) -> None:
    """As the command does."""
    if isinstance(site, MemorySite):
        site.tables.remove(list(names))
    else:
        assert isinstance(site, PostgresSite)
        await asyncio.to_thread(remove_computations, site.schema.url, site.schema.name, list(names))


FOUR: dict[str, Any] = {
    "lines": {"kind": "injector", "writes": ["words"]},
    "count": {"inputs": [["words", "key"]], "writes": ["totals"]},
    "others": {"inputs": [["words", "key"]], "writes": []},
    "pages": {"kind": "injector", "writes": ["words"]},
}
"""Nodes, two of which can go."""
OF_FOUR = {"nodes": FOUR, "streams": ["totals", "words"]}


async def test_what_is_removed_counts_for_nothing_and_its_rows_are_deleted(site: Site) -> None:
    owner = await Owner.take(
        site.store, await deploy(site.store, graph=OF_FOUR, more=(OTHERS, PAGES), tables=())
    )
    first = owner.intervals[0]
    await owner.write(owner.fill(owner.commit(), 50))
    link = owner.links[first.id]
    assert await site.store.fold(first.id, link.sequencer, 0, link.n)
    assert await site.states()
    assert await site.timers()
    rest = [row for row in owner.deployment.intervals if row not in owner.intervals]
    owner.stamp += 1000 * SECOND
    await owner.write(owner.commit(*rest))
    floor = owner.stamp
    assert await site.store.advance_gc_watermark() < floor
    (log,) = [
        log
        for claim in owner.claims.values()
        for log in claim.logs
        if log.source == PAGES.sources[0]
    ]
    rows = await site.store.open_bucket("source", log.id, 0, 100)
    assert not await site.store.drop_bucket(rows)
    await site.store.stop_worker(owner.worker)
    await remove(site, "count", "pages")
    with pytest.raises(Fenced):
        await owner.write(owner.commit())
    assert await site.states() == []
    assert await site.timers() == []
    assert await site.pending() == []
    assert await site.store.advance_gc_watermark() == floor
    placement = await site.store.read_placement()
    assert {row.name for row in placement.intervals} == {"lines", "others"}
    gone = {owner.deployment.computations[name] for name in ("count", "pages")}
    assert placement.removed == gone
    assert await site.store.drop_bucket(rows)
    with pytest.raises(Fenced):
        await owner.claim(first)
    with pytest.raises(
        DeployRefused, match=r"'count': the name of a removed step(.|\n)*'pages': the name"
    ):
        await deploy(site.store, graph=OF_FOUR, more=(OTHERS, PAGES), shared=True)
    if isinstance(site, PostgresSite):
        query = "SELECT upstream FROM {c} WHERE name = 'others'"
        assert await site.query(query, c="computation") == [([],)]
    left = {"nodes": {name: FOUR[name] for name in ("lines", "others")}, "streams": ["words"]}
    deployment = await site.store.deploy(
        DescribedGraph(left, [LINES, OTHERS], [WORDS], []), stamp=START, bucket_high=BUCKET_HIGH
    )
    assert deployment.generation == 2
    assert sorted(deployment.computations) == ["lines", "others"]


@pytest.mark.parametrize("delivered", [False, True])
async def test_whose_records_are_in_a_bundle_that_is_begun_is_not_removed(
    site: Site, *, delivered: bool
) -> None:
    """Unless it has been delivered since, or goes as well."""
    owner = await Owner.take(
        site.store, await deploy(site.store, graph=OF_FOUR, more=(OTHERS, PAGES), tables=())
    )
    logs = {
        log.source: log.id for claim in owner.claims.values() for log in claim.logs if log.source
    }
    pages, lines = logs[PAGES.sources[0]], logs[LINES.sources[0]]
    weak = owner.straggler("k", 1).id
    members = [record_id(pages, 5), record_id(lines, 1), record_id(pages, 6), weak]

    async def say(bundle: dict[str, Any]) -> None:
        position = msgspec.json.encode({"bundle": bundle})
        await owner.write(owner.commit(owner.intervals[0], position=position))

    await say({"number": 7, "open": [id_.hex() for id_ in members]})
    await site.store.stop_worker(owner.worker)
    with pytest.raises(
        UsageError, match=r"removed.*\n  2 in bundle 7 of count\nPause the injectors"
    ):
        await remove(site, "pages")
    assert (await site.store.read_placement()).removed == frozenset()
    assert len((await site.store.read_placement()).intervals) == 5
    if delivered:
        await say({"number": 7})
        await remove(site, "pages")
        await say({"number": 8, "open": [record_id(lines, 2).hex(), weak.hex()]})
        await remove(site, "others")
    else:
        await remove(site, "count", "pages")
    left = {row.name for row in (await site.store.read_placement()).intervals}
    assert left == ({"lines", "count"} if delivered else {"lines", "others"})


async def test_a_removal_that_was_broken_off_is_taken_up_again(
    postgres: PostgresSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, name = postgres.schema.url, postgres.schema.name
    graph = {"nodes": {"lines": {"writes": ["words"]}, "count": {}}, "streams": ["words"]}
    owner = await Owner.take(postgres.store, await deploy(postgres.store, graph=graph, tables=()))
    await owner.write(owner.fill(owner.commit(), 20))
    for row in owner.intervals:
        link = owner.links[row.id]
        assert await postgres.store.fold(row.id, link.sequencer, 0, link.n)
    with pytest.raises(UsageError, match="has the pipeline to itself"):
        await asyncio.to_thread(remove_computations, url, name, ["count"])
    await postgres.store.stop_worker(owner.worker)
    with monkeypatch.context() as patch:
        patch.setattr("millwheel.store.console.administration.SLOTS", SLOTS // 2)
        await asyncio.to_thread(remove_computations, url, name, ["count"])
    assert (await postgres.states(), await postgres.timers()) == ([], [])
    left = await asyncio.to_thread(remove_computations, url, name, ["count"])
    assert 0 < left < 40
    assert await asyncio.to_thread(remove_computations, url, name, ["count"]) == 0
    query = "SELECT number, began_at IS NULL FROM {generation} ORDER BY number"
    assert await postgres.query(query, generation="generation") == [(1, False), (2, False)]
    assert await postgres.query("SELECT FROM {state}", state="state") == []
    assert await postgres.query("SELECT FROM {timer}", timer="timer") == []


class Held:
    """Changes of placement by one store stand still just before they are committed."""

    def __init__(self, store: PostgresStore, monkeypatch: pytest.MonkeyPatch) -> None:
        self.made, self.go_on = asyncio.Event(), asyncio.Event()
        change = store._change

        async def held(ids: list[int], worker: str | None, work: Any, **more: Any) -> Any:
            async def stand_still(connection: Any) -> Any:
                result = await work(connection)
                self.made.set()
                await self.go_on.wait()
                return result

            return await change(ids, worker, stand_still, **more)

        monkeypatch.setattr(store, "_change", held)


WIRED = {
    "nodes": {
        "lines": {"kind": "injector", "writes": ["words"]},
        "count": {"inputs": [["words", "key"]], "writes": ["totals"]},
        "others": {"inputs": [["words", "key"]], "writes": []},
    },
    "streams": ["totals", "words"],
}


def cut(store: Store, deployment: Deployment, how: str) -> Coroutine[Any, Any, int]:
    """Split the first interval of "count", or merge both."""
    id_ = deployment.computations["count"]
    lower, upper = [row for row in deployment.intervals if row.computation == id_]
    if how == "split":
        return store.split(lower.id, lower.sequencer, 100)
    sequencers = {row.id: row.sequencer for row in (lower, upper)}
    return store.merge(lower.id, upper.id, sequencers)


@pytest.mark.parametrize("how", ["split", "merge"])
async def test_what_is_cut_while_newer_code_is_deployed_is_for_newer_code_too(
    postgres: PostgresSite, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    deployment = await deploy(postgres.store, graph=WIRED, more=(OTHERS,), tables=())
    other = await postgres.another()
    held = Held(other, monkeypatch)
    cutting = asyncio.create_task(cut(other, deployment, how))
    await held.made.wait()
    words = replace(WORDS, version=2, migrates_from=[1])
    deploying = asyncio.create_task(
        deploy(postgres.store, graph=WIRED, words=words, more=(OTHERS,), tables=())
    )
    await until(lambda: waiting_for_a_lock(postgres))
    held.go_on.set()
    made = await cutting
    assert (await deploying).generation == 2
    rows = (await postgres.store.read_placement()).intervals
    assert {row.id: row.generation for row in rows if row.name == "count"}[made] == 2


async def is_removing(site: PostgresSite) -> bool:
    """Whether the command stands in line for a lock."""
    query = (
        "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' "
        "AND application_name = 'millwheel administration'"
    )
    return bool((await site.query(query))[0][0])


@pytest.mark.parametrize("how", ["split", "merge", "claim"])
async def test_what_is_cut_or_claimed_while_it_is_removed_goes_as_well(
    postgres: PostgresSite, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    deployment = await deploy(postgres.store, graph=WIRED, more=(OTHERS,), tables=())
    other = await postgres.another()
    worker = str(uuid.uuid4())
    await other.register_worker(worker, 60.0, address="here:1")
    held = Held(other, monkeypatch)
    sequencers = {row.id: row.sequencer for row in deployment.intervals}
    change: Coroutine[Any, Any, Any] = (
        other.claim(worker, list(sequencers), sequencers=sequencers)
        if how == "claim"
        else cut(other, deployment, how)
    )
    changing = asyncio.create_task(change)
    await held.made.wait()
    removing = asyncio.create_task(remove(postgres, "count"))
    await until(lambda: is_removing(postgres))
    held.go_on.set()
    with contextlib.suppress(Fenced):  # it was removed as soon as it was claimed
        await changing
    await removing
    rows = await postgres.query("SELECT computation FROM {k}", k="key_interval")
    gone = deployment.computations["count"]
    assert {id_ for (id_,) in rows} == {*deployment.computations.values()} - {gone}


async def test_what_is_left_of_a_removed_computation_is_not_in_the_way_of_a_look(
    postgres: PostgresSite,
) -> None:
    deployment = await deploy(postgres.store, graph=WIRED, more=(OTHERS,), tables=())
    owner = await Owner.take(postgres.store, deployment)
    commit = owner.commit()
    gone = deployment.computations["others"]
    sent = owner.production("a key", 1)
    sent.receiver = gone
    commit.productions = [sent]
    commit.dead_letters.append(owner.dead_letter(1)._replace(computation=gone))
    await owner.write(commit)
    await postgres.store.stop_worker(owner.worker)
    await remove(postgres, "others")
    with inspect(postgres.schema.url) as inspection:
        status = inspection.status(postgres.schema.name)
        letters = inspection.letters(postgres.schema.name).newest(10)
    assert [computation.name for computation in status.computations] == ["lines", "count"]
    assert [letter.computation for letter in letters] == ["others"]


# -- bad input ----------------------------------------------------------------------------------


async def test_another_graph_under_the_same_name_is_refused_and_disturbs_nobody() -> None:
    values = many(600)
    cluster = Rolling(counting(values))
    first = await cluster.start_worker(counting(values))
    await cluster.go(lambda: first.processed > 50)
    other = Pipeline("counting", settings=SHARED)
    other.inject(ITEMS, script(ITEMS, values, "part 0"), timestamp=time_of, name="source_0")
    other.add(Tally(), ITEMS.by(lambda item: item.number))
    with pytest.raises(DeployRefused) as caught:
        await cluster.start_worker(other)
    assert "millwheel remove counting recount" in str(caught.value)
    assert "the key extractor of 'tally' for stream 'items'" in str(caught.value)
    assert len((await cluster.store.read_placement()).workers) == 1
    await cluster.end()
    check(cluster, values)


async def test_a_worker_alone_is_refused_with_older_code() -> None:
    """It could have only a part of the intervals, and nobody would have the others."""
    values = many(60)
    cluster = Rolling(counting(values))
    for pipeline in (counting(values), with_total(values)):
        alone = await cluster.start(pipeline)
        await cluster.turns(20)
        await alone.kill()
    with pytest.raises(DeployRefused, match="It may only run beside workers of that one"):
        await cluster.start(counting(values))


# -- on Postgres --------------------------------------------------------------------------------


def begin(site: PostgresSite, made: Pipeline) -> tuple[asyncio.Event, asyncio.Task[bool]]:
    """A worker with this code; what stops it, and whether it was done. Its input goes on."""
    made.name = site.schema.name
    stop = asyncio.Event()
    worker = PipelineWorker(made, site.schema.url, until_done=True)
    return stop, asyncio.create_task(worker.run(stop))


async def at_work(site: PostgresSite, generation: int, workers: int) -> None:
    """Wait until so many workers of a generation have something."""

    async def are_there() -> bool:
        query = "SELECT count(*) FROM {workers} WHERE generation = %s AND intervals > 0"
        return await site.query(query, generation, workers="workers") == [(workers,)]

    await until(are_there, seconds=60.0)


async def check_table(site: PostgresSite, values: list[Item]) -> None:
    """Each item counted once, and told once."""
    rows = await site.query("SELECT key, number, count FROM {out}", out="out")
    assert sorted(number for _, number, _ in rows) == [item.number for item in values]
    assert all(count % 100 == 1 for _, _, count in rows), "told twice"
    of_key = Counter(key for key, _, _ in rows)
    assert {(key, count // 100) for key, _, count in rows} == {
        (key, place) for key, most in of_key.items() for place in range(1, most + 1)
    }


@pytest.mark.parametrize(
    ("schema", "change"), [(15, with_total), (18, with_told)], indirect=["schema"]
)
async def test_workers_on_postgres_go_over_to_new_code(
    postgres: PostgresSite, change: Callable[[list[Item]], Pipeline]
) -> None:
    values = many(750)
    olds = [begin(postgres, counting(values)) for _ in range(2)]
    await at_work(postgres, 1, 2)
    codes, news = [change(values), change(values)], []
    for number, (stop, old) in enumerate(olds, 1):
        stop.set()
        assert not await old, "it was done too soon"
        news.append(begin(postgres, codes[number - 1]))
        await at_work(postgres, 2, number)
    for code in codes:
        end_scripts(code)
    assert all([await new for _, new in news])
    await check_table(postgres, values)


@pytest.mark.parametrize("schema", [18], indirect=True)
async def test_workers_on_postgres_go_on_when_a_computation_is_removed(
    postgres: PostgresSite,
) -> None:
    values = many(750)
    codes = [grown(values[:400]) for _ in range(2)]
    workers = [begin(postgres, code) for code in codes]
    await at_work(postgres, 1, 2)

    async def has_begun() -> bool:
        return await postgres.query("SELECT count(*) > 50 FROM {t}", t="extra") == [(True,)]

    await until(has_begun, seconds=60.0)
    await asyncio.to_thread(
        remove_computations, postgres.schema.url, postgres.schema.name, ["extra"]
    )
    for code in codes:
        for number, source in enumerate(scripts_of(code)):
            for value in values[400 + number :: 2]:
                source.append(inject(ITEMS, value))
        end_scripts(code)
    assert all([await worker for _, worker in workers])
    await check_table(postgres, values)
    ((told,),) = await postgres.query("SELECT count(*) FROM {t}", t="extra")
    assert told < len(values)
    assert await postgres.query(
        "SELECT sum(rows), bool_and(ended) FROM {v} WHERE table_name = 'extra'", v="numbered_rows"
    ) == [(told, True)]
    assert await postgres.pending() == []
