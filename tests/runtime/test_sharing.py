"""Several workers on one pipeline: engines in one event loop, on one store, over one ether."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Coroutine
from dataclasses import replace
from random import Random
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millwheel import Computation, Context, Pipeline, Record, Settings, Stream, Table
from millwheel.clock import Clock
from millwheel.runtime.engine import Engine
from millwheel.runtime.network.handshake import Identity, Secret
from millwheel.runtime.network.links import Links
from millwheel.runtime.ownership.balancer import Balancer
from millwheel.runtime.ownership.claiming import LeaseGuard, Placing
from millwheel.runtime.process.load import FREE_OF_CHARGE
from millwheel.store.port import MergeWish, PlacedInterval, SplitWish, Wish
from millwheel.testing.ether import SECRET, Ether, Weather
from tests.support.drawing import examples
from tests.support.engine_dump import told
from tests.support.worlds import (
    ITEMS,
    QUICK,
    TALLY,
    Count,
    Counted,
    Item,
    Tally,
    World,
    end_scripts,
    key_of,
    script,
    time_of,
)

SHARED = replace(
    QUICK,
    intervals=2,
    chunk_records=3,
    bundle_records=6,
    max_unacked_records=12,
    placement_seconds=0.2,
    lease_seconds=3.0,
)
AGAIN = Stream("again", Counted)


class Cluster(World):
    """A world with several workers at a time."""

    def __init__(self, pipeline: Pipeline, weather: Weather | None = None) -> None:
        super().__init__(pipeline)
        self.ether = Ether(self.clock, *([weather] if weather else []))
        self.alive: list[Engine] = []

    endless = False
    """Its scripts wait for more rows when all are read; otherwise event time ends with them."""

    async def join(self) -> Engine:
        """One more worker."""
        return await self.admit()

    async def admit(
        self,
        *,
        pipeline: Pipeline | None = None,
        clock: Clock | None = None,
        secret: Secret = SECRET,
    ) -> Engine:
        """One more worker, perhaps with a graph, a clock or a secret of its own."""
        name = f"w{len(self.engines)}"
        seed = len(self.engines)

        def network(worker: str) -> Links:
            return Links(
                Identity(self.pipeline.name, worker, secret),
                self.ether.medium(name),
                clock=self.clock,
                random=Random(seed),
            )

        if not self.endless:
            end_scripts(pipeline or self.pipeline)
        worker = str(UUID(int=Random(seed).getrandbits(128)))  # drawn, and always the same
        engine = Engine(
            pipeline or self.pipeline,
            self.store if pipeline is None else self.store.another(),
            clock=clock or self.clock,
            network=network,
            worker=worker,
            process=FREE_OF_CHARGE,
        )
        self.engines.append(engine)
        self.alive.append(engine)
        await engine.start()
        engine.attend(lambda it: Placing(it, Balancer(it)), "placing")
        engine.attend(LeaseGuard, "lease guard")
        return engine

    async def go(
        self, condition: Callable[[], object], tick: float = 0.01, turns: int = 60_000
    ) -> None:
        """Turn the loop until `condition` holds."""
        for _ in range(turns):
            if condition():
                return
            for engine in self.alive:
                if engine.failure is not None:
                    raise engine.failure
            await asyncio.sleep(0)
            self.clock.advance(tick)
        raise AssertionError("stuck\n" + "\n".join(map(told, self.alive)))

    async def leave(self, engine: Engine) -> None:
        """A worker ends in order."""
        self.alive.remove(engine)
        await self.pass_time(engine.stop())

    async def crash(self, engine: Engine) -> None:
        """A worker is gone without a word."""
        self.alive.remove(engine)
        await self.pass_time(engine.kill())

    async def parts(self, name: str) -> list[PlacedInterval]:
        """The intervals of a computation, in the order of slots."""
        (step,) = (step for step in self.alive[0].steps.values() if step.name == name)
        placement = await self.store.read_placement()
        return [row for row in placement.intervals if row.computation == step.id]

    async def cut(self, number: int, share: float | None) -> None:
        """Wish that an interval be split, where a `share` of its slots is below, or that it be
        merged with its neighbour."""
        steps = {step.id: step for step in self.alive[0].steps.values()}
        placement = await self.store.read_placement()
        rows = [r for r in placement.intervals if steps[r.computation].node.kind != "injector"]
        place = number % len(rows)
        row = rows[place]
        if share is not None:
            at = row.slot_from + int((row.slot_to - row.slot_from) * share)
            await self.store.wish([SplitWish(row.id, row.sequencer, at, "chaos")])
        elif place + 1 < len(rows):
            upper = rows[place + 1]
            await self.store.wish(
                [
                    Wish(upper.id, upper.sequencer, row.owner, "to be merged"),
                    MergeWish(row.id, row.sequencer, upper.id, "chaos"),
                ]
            )

    async def pass_time(self, work: Coroutine[Any, Any, None]) -> None:
        """Let time pass while something is done."""
        task = asyncio.ensure_future(work)
        await self.go(task.done)
        await task

    async def commit(self, number: int) -> None:
        """Let so many more commits become durable, or all there are."""
        until = len(self.commits) + number
        await self.go(lambda: len(self.commits) >= until or self.finished())

    def finished(self) -> bool:
        return all(engine.done.is_set() for engine in self.alive)


def number_of(counted: Counted) -> int:
    return counted.number


class Recount(Computation[Counted, Count]):
    """Passes on, under another key: to any worker."""

    writes = (AGAIN,)

    async def process_record(self, record: Record[Counted], ctx: Context[Count]) -> None:
        ctx.state.count += 1
        ctx.produce(AGAIN, replace_count(record.value, ctx.state.count))


def replace_count(counted: Counted, times: int) -> Counted:
    """How often this number was counted: once, if effects happen once."""
    return Counted(counted.key, counted.number, counted.count * 100 + times)


def counting(values: list[Item], limits: Settings = SHARED, sources: int = 2) -> Pipeline:
    """Items are counted per key; what comes out goes by its number to a step that adds a 1."""
    made = Pipeline("counting", settings=limits)
    for number in range(sources):
        made.inject(
            ITEMS,
            script(ITEMS, values[number::sources], f"part {number}"),
            timestamp=time_of,
            name=f"source_{number}",
        )
    made.add(Tally(), ITEMS.by(key_of))
    made.add(Recount(), TALLY.by(number_of))
    made.sink(AGAIN, Table("out", Counted, numbered=True))
    return made


def many(number: int, keys: int = 40) -> list[Item]:
    return [Item(f"key {n * 7 % keys}", n, n // 10) for n in range(number)]


def check(cluster: World, values: list[Item]) -> None:
    """Each item counted once, and told once; per source and key in order."""
    rows = [(key, number, count) for key, number, count, *_ in cluster.rows()]
    assert sorted(number for _, number, _ in rows) == [item.number for item in values]
    of_key: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for key, number, count in rows:
        assert count % 100 == 1, "told twice"
        of_key[key].append((count // 100, number))
    for key, found in of_key.items():
        counts = [count for count, _ in sorted(found)]
        assert counts == list(range(1, len(counts) + 1)), f"{key}: lost or doubled"
        for parity in (0, 1):  # each source has every other number
            numbers = [number for _, number in sorted(found) if number % 2 == parity]
            assert numbers == sorted(numbers), f"{key}: out of order"


@pytest.mark.parametrize("workers", [1, 2, 3, 4])
async def test_any_number_of_workers_come_to_the_same(workers: int) -> None:
    values = many(600)
    cluster = Cluster(counting(values))
    for _ in range(workers):
        await cluster.join()
    await cluster.go(cluster.finished)
    check(cluster, values)
    assert all(engine.processed > 50 for engine in cluster.alive[:2])
    for engine in list(cluster.alive):
        await cluster.leave(engine)


async def test_who_leaves_in_order_hands_over_at_once() -> None:
    values = many(2000)
    cluster = Cluster(counting(values))
    first, second = await cluster.join(), await cluster.join()
    await cluster.go(lambda: min(first.processed, second.processed) > 100)
    began = cluster.clock.monotonic()
    await cluster.leave(first)
    await cluster.go(lambda: len(second.intervals) == 6)
    assert cluster.clock.monotonic() - began < SHARED.lease_seconds / 2
    await cluster.go(cluster.finished)
    check(cluster, values)
    await cluster.leave(second)


async def test_who_crashes_is_taken_over_when_the_lease_is_over() -> None:
    values = many(2000)
    cluster = Cluster(counting(values))
    first, second = await cluster.join(), await cluster.join()
    await cluster.go(lambda: min(first.processed, second.processed) > 100)
    await cluster.crash(first)
    await cluster.go(cluster.finished)
    check(cluster, values)
    await cluster.leave(second)


async def test_who_joins_gets_a_share() -> None:
    values = many(3000)
    cluster = Cluster(counting(values))
    first = await cluster.join()
    await cluster.go(lambda: first.processed > 200)
    second = await cluster.join()
    await cluster.go(cluster.finished)
    check(cluster, values)
    assert second.processed > 200
    for engine in (first, second):
        await cluster.leave(engine)


Act = tuple[int, str, int]
"""After so many more commits, what happens, to whom."""

ACTS = ["join", "crash", "leave", "cut", "part", "split", "merge", "shatter"]

PLANS = given(
    acts=st.lists(
        st.tuples(st.integers(1, 30), st.sampled_from(ACTS), st.integers(0, 9)), max_size=10
    ),
    bad=st.booleans(),
    keys=st.sampled_from([3, 40]),
    seed=st.integers(0, 1000),
)


def check_workers_come_and_go_and_the_wire_is_bad(
    acts: list[Act], bad: bool, keys: int, seed: int
) -> None:
    values = many(400, keys)

    async def happen(cluster: Cluster, what: str, who: int) -> None:
        engine = cluster.alive[who % len(cluster.alive)]
        other = cluster.alive[(who + 1) % len(cluster.alive)]
        names = [f"w{cluster.engines.index(e)}" for e in (engine, other)]
        if what == "join" and len(cluster.alive) < 4:
            await cluster.join()
        elif what == "crash" and len(cluster.alive) > 1:
            await cluster.crash(engine)
        elif what == "leave" and len(cluster.alive) > 1:
            await cluster.leave(engine)
        elif what == "cut" and engine is not other:
            cluster.ether.cut(names[0], names[1])
        elif what == "part" and engine is not other:
            cluster.ether.part(names[0], names[1])
            until = cluster.clock.monotonic() + 2
            await cluster.go(lambda: cluster.clock.monotonic() > until)
            cluster.ether.join(names[0], names[1])
        elif what == "split":
            await cluster.cut(who, 0.5)
        elif what == "merge":
            await cluster.cut(who, None)
        elif what == "shatter":
            for number in range(6):
                await cluster.cut(who + number, 0.3 if number % 3 else None)

    async def go() -> None:
        weather = Weather(Random(seed), delay=0.05, drop=0.02, duplicate=0.05, overtake=0.05)
        cluster = Cluster(counting(values), weather if bad else None)
        await cluster.join()
        await cluster.join()
        for after, what, who in acts:
            await cluster.commit(after)
            await happen(cluster, what, who)
        await cluster.go(cluster.finished)
        check(cluster, values)
        for engine in list(cluster.alive):
            await cluster.leave(engine)

    asyncio.run(go())


@examples(40)
@PLANS
def test_workers_come_and_go_and_the_wire_is_bad(
    acts: list[Act], bad: bool, keys: int, seed: int
) -> None:
    check_workers_come_and_go_and_the_wire_is_bad(acts, bad, keys, seed)


@pytest.mark.soak
@examples(1_000)
@PLANS
def test_workers_come_and_go_and_the_wire_is_bad_for_long(
    acts: list[Act], bad: bool, keys: int, seed: int
) -> None:
    check_workers_come_and_go_and_the_wire_is_bad(acts, bad, keys, seed)


async def wander(seed: int) -> None:
    """Few keys and many cuts, by chance; what went wrong once is kept below by its seed."""
    random = Random(seed)
    values = many(random.choice([300, 600]), random.choice([3, 40]))
    weather = Weather(Random(seed), delay=0.05, drop=0.02, duplicate=0.05, overtake=0.05)
    cluster = Cluster(counting(values), weather if random.random() < 0.6 else None)
    for _ in range(random.randint(1, 3)):
        await cluster.join()
    acts = ["split", "merge", "split", "merge", "join", "crash", "leave", "cut", "shatter"]
    for _ in range(random.randint(0, 14)):
        await cluster.commit(random.randint(1, 25))
        what, who = random.choice(acts), random.randrange(20)
        engine, other = (cluster.alive[(who + n) % len(cluster.alive)] for n in range(2))
        if what == "split":
            await cluster.cut(who, random.choice([0.1, 0.5, 0.9]))
        elif what == "merge":
            await cluster.cut(who, None)
        elif what == "shatter":
            for number in range(6):
                await cluster.cut(who + number, random.choice([0.3, None, 0.7]))
        elif what == "join" and len(cluster.alive) < 4:
            await cluster.join()
        elif what == "crash" and len(cluster.alive) > 1:
            await cluster.crash(engine)
        elif what == "leave" and len(cluster.alive) > 1:
            await cluster.leave(engine)
        elif what == "cut" and engine is not other:
            cluster.ether.cut(*(f"w{cluster.engines.index(one)}" for one in (engine, other)))
    await cluster.go(cluster.finished)
    check(cluster, values)
    for engine in list(cluster.alive):
        await cluster.leave(engine)


@pytest.mark.parametrize("seed", [24, 36, 48, 64, 69, 132, 137, 232])
def test_what_went_wrong_once(seed: int) -> None:
    asyncio.run(wander(seed))
