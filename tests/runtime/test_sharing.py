"""Several workers on one pipeline: engines in one event loop, on one store, over one fake
network."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millwheel.testing.fake_network import Weather
from tests.support.clusters import ACTS, SHARED, Act, Cluster, check, counting, many
from tests.support.drawing import examples

LONG_LEASES = replace(SHARED, lease_seconds=60.0)


@pytest.mark.parametrize("workers", [1, 2, 3, 4])
async def test_any_number_of_workers_come_to_the_same(workers: int) -> None:
    values = many(600)
    cluster = Cluster(counting(values))
    cluster.store.pause("source_0", "source_1")
    for _ in range(workers):
        await cluster.join()
    await cluster.go(lambda: all(engine.intervals for engine in cluster.alive))
    cluster.store.pause()
    await cluster.go(cluster.finished)
    check(cluster, values)
    assert sum(engine.processed > 50 for engine in cluster.alive) >= min(workers, 2)
    for engine in list(cluster.alive):
        await cluster.leave(engine)


async def test_who_leaves_in_order_hands_over_at_once() -> None:
    values = many(1000)
    cluster = Cluster(counting(values))
    first, second = await cluster.join(), await cluster.join()
    await cluster.go(lambda: min(first.processed, second.processed) > 100)
    began = cluster.clock.monotonic()
    await cluster.leave(first)
    await cluster.go(lambda: len(second.intervals) == 6)
    assert cluster.clock.monotonic() - began < SHARED.lease_seconds / 2
    await cluster.finish_soon(values)
    await cluster.leave(second)


async def test_who_crashes_is_taken_over_at_once() -> None:
    values = many(1000)
    cluster = Cluster(counting(values, LONG_LEASES))
    first, second = await cluster.join(), await cluster.join()
    await cluster.go(lambda: min(first.processed, second.processed) > 100)
    began = cluster.clock.monotonic()
    await cluster.crash(first)
    await cluster.go(lambda: len(second.intervals) == 6)
    assert cluster.clock.monotonic() - began < LONG_LEASES.lease_seconds / 60
    await cluster.finish_soon(values)
    await cluster.leave(second)


async def test_who_vanishes_is_taken_over_when_the_lease_is_over() -> None:
    values = many(1000)
    cluster = Cluster(counting(values))
    first, second = await cluster.join(), await cluster.join()
    await cluster.go(lambda: min(first.processed, second.processed) > 100)
    began = cluster.clock.monotonic()
    await cluster.vanish(first)
    await cluster.go(lambda: len(second.intervals) == 6)
    assert cluster.clock.monotonic() - began > SHARED.lease_seconds / 2
    await cluster.finish_soon(values)
    await cluster.leave(second)


async def test_who_is_in_reach_keeps_its_intervals_without_the_lock() -> None:
    """An operator has ended its session."""
    values = many(1000)
    cluster = Cluster(counting(values, LONG_LEASES))
    first, second = await cluster.join(), await cluster.join()
    await cluster.go(lambda: min(first.processed, second.processed) > 100)
    held = {interval.id for interval in first.intervals}
    cluster.store.end_liveness_session(first.worker)
    began = cluster.clock.monotonic()
    await cluster.go(lambda: cluster.clock.monotonic() > began + 3)
    assert {interval.id for interval in first.intervals} == held
    await cluster.finish_soon(values)
    for engine in (first, second):
        await cluster.leave(engine)


async def test_who_joins_gets_a_share() -> None:
    values = many(1500)
    cluster = Cluster(counting(values))
    first = await cluster.join()
    await cluster.go(lambda: first.processed > 200)
    second = await cluster.join()
    await cluster.go(lambda: second.processed > 200)
    await cluster.finish_soon(values)
    for engine in (first, second):
        await cluster.leave(engine)


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


@examples(10, 4)
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
