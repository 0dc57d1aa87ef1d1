"""A server that loses its newest commits, and workers that live on (I16, decision 40)."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from millwheel import Record
from millwheel.errors import Fenced, StoreUnavailable
from millwheel.pipeline import Pipeline
from millwheel.runtime.engine import Engine
from millwheel.runtime.interval.observer import Observer
from millwheel.store.port.commit import Commit
from tests.support.clusters import Cluster, counting, many
from tests.support.outside import Outside, outward
from tests.support.pipelines import QUICK, doing, produce, script, tally_pipeline
from tests.support.values import ITEMS, Item, items, tally_of
from tests.support.worlds import Gate, World

TEN = [Item("a", number) for number in range(10)]


def in_small_commits() -> Pipeline:
    """Ten records, a commit for each or two of them."""
    return tally_pipeline(script(ITEMS, TEN), replace(QUICK, chunk_records=1, bundle_records=1))


class Losing:
    """Saves what is stored before each commit; the server comes back as it was `back` commits
    ago."""

    def __init__(self, world: World, at: int, back: int) -> None:
        self._world, self._at, self._back = world, at, back
        self._saved: list[Any] = []
        self.lost = 0
        world.on_durable = self._durable
        world.on_try = self._tried

    def _tried(self, commit: Commit) -> None:
        if not self.lost:
            self._saved.append(self._world.store.saved())

    def _durable(self, commit: Commit) -> None:
        if not self.lost and len(self._world.commits) >= self._at:
            back = self._saved[-min(self._back, len(self._saved))]
            self.lost = self._back
            self._world.store.come_back_as(back)


@pytest.mark.parametrize("back", [1, 2, 3, 6])
@pytest.mark.parametrize("at", range(1, 9))
async def test_what_a_worker_alone_was_told_is_durable_and_is_lost_happens_once(
    at: int, back: int
) -> None:
    world = World(in_small_commits())
    losing = Losing(world, at, back)
    await world.run()
    assert losing.lost
    await world.run()  # what was lost when all was done is done by the next
    assert world.tallied() == tally_of(TEN)


@pytest.mark.parametrize("back", [1, 3, 8])
@pytest.mark.parametrize("at", [3, 8, 15, 24])
async def test_what_workers_told_each_other_and_is_lost_happens_once(at: int, back: int) -> None:
    values = many(60)
    cluster = Sharing(counting(values))
    losing = Losing(cluster, at, back)
    for _ in range(3):
        await cluster.join()
    await cluster.go(cluster.finished)
    assert losing.lost
    found = Counter((row[1], row[2] % 100) for row in cluster.rows())
    assert found == Counter((value.number, 1) for value in values)
    await cluster.close()


class Sharing(Cluster):
    """Workers whose stores are each their own view of one server."""

    async def join(self) -> Engine:
        return await self.admit(pipeline=self.pipeline)


async def test_a_worker_that_nobody_remembers_registers_again() -> None:
    """The server has lost even that there was such a worker, and what it had deployed."""
    world = World(in_small_commits())
    nothing = world.store.saved()
    losing = Losing(world, 4, 1)
    losing._saved = [nothing]
    engine = await world.start()
    losing._saved = [nothing]
    world.on_try = None
    await world.finish(engine)
    assert losing.lost
    assert world.tallied() == tally_of(TEN)


async def test_a_worker_that_was_ended_does_not_come_back() -> None:
    world = World(in_small_commits())
    engine = await world.start()
    await world.turns(5)
    await world.store.stop_worker(engine.worker)
    world.store.come_back_as(world.store.saved())
    with pytest.raises(Fenced, match="another worker ended this one"):
        await world.until(engine.done.is_set, tick=0.05)
    await engine.stop()


async def test_what_waits_in_user_code_is_cancelled_and_runs_again() -> None:
    gate, runs = Gate(), 0

    async def do(record: Any, ctx: Any) -> None:
        nonlocal runs
        runs += 1
        if runs == 1:
            await gate.wait()
        produce(ctx, record.value.number)

    world = World(doing(items(1), do))
    engine = await world.start()
    await world.until(lambda: gate.reached)
    world.store.come_back_as(world.store.saved())
    await world.finish(engine)
    assert runs == 2
    assert world.numbers() == [1]


async def test_a_worker_that_stops_while_it_starts_over_stops() -> None:
    world = World(in_small_commits())
    engine = await world.start()
    held = Gate()

    async def hold(name: str) -> None:
        if name == "deploy":
            await held.wait()

    world.store.come_back_as(world.store.saved())
    world.store.faults.before_call = hold
    await world.until(lambda: held.reached, tick=0.05)
    world.store.faults.before_call = None
    await engine.stop()
    assert engine.failure is None
    assert not engine.intervals
    again = await world.run()
    assert again.failure is None
    assert world.tallied() == tally_of(TEN)


async def test_a_worker_whose_store_goes_back_while_it_stops_ends_without_another_commit() -> None:
    world = World(in_small_commits())
    engine = await world.start()
    await world.until(lambda: world.commits)
    world.store.come_back_as(world.store.saved())
    stopping = asyncio.ensure_future(engine.stop())
    for _ in range(500):
        await world.turns(1, tick=0.01)
    await stopping
    assert engine.failure is None
    await world.run()
    assert world.tallied() == tally_of(TEN)


class Counting(Observer):
    def __init__(self) -> None:
        self.balance: Counter[int] = Counter()

    def interval_taken(self, interval: Any) -> None:
        self.balance[interval.id] += 1
        assert self.balance[interval.id] == 1

    def interval_gone(self, interval: Any) -> None:
        self.balance[interval.id] -= 1


async def test_observers_hear_of_every_interval_that_goes_and_comes() -> None:
    world = World(in_small_commits())
    engine = await world.start()
    observer = Counting()
    engine.observe(observer)
    for interval in engine.intervals:
        observer.interval_taken(interval)
    world.store.come_back_as(world.store.saved())
    await world.finish(engine)
    assert set(observer.balance.values()) == {1}


# -- databases elsewhere ------------------------------------------------------------------------


class Keeping(Outside):
    """A database that keeps what the store has lost, and takes numbers that jump."""

    def write(self, bundle: tuple[int, int], records: Sequence[Record[Any]]) -> None:
        scope, number = bundle
        if number <= self.last.get(scope, 0):
            return
        self.last[scope] = number
        self.rows += [(record.value.key, record.value.number) for record in records]


@pytest.mark.parametrize("back", [1, 2, 4, 7])
@pytest.mark.parametrize("at", range(2, 15, 2))
async def test_a_database_elsewhere_loses_nothing_of_what_the_store_has_lost(
    at: int, back: int
) -> None:
    """Its greatest number may be one that the store has never given, by now: nothing is left
    out."""
    values = [Item("abc"[n % 3], n, n) for n in range(14)]
    outside = Keeping()
    world = World(outward(outside, values))
    losing = Losing(world, at, back)
    await world.run()
    assert losing.lost
    await world.run()
    assert {number for _, number in outside.rows} == set(range(14))
    assert len(world.numbers()) == len(set(world.numbers())) == 14


async def test_a_bundle_that_is_stored_keeps_its_number_and_the_next_one_is_above_all() -> None:
    values = [Item("a", n, n) for n in range(6)]
    outside = Keeping()
    world = World(outward(outside, values))
    saved: list[Any] = []

    def durable(commit: Commit) -> None:
        """OpenCommit 1 is closed; what comes after that is lost when bundle 2 has been
        delivered."""
        if not saved and outside.calls == [] and any(_bundles_in(commit)):
            saved.append(world.store.saved())
        elif len(saved) == 1 and len(outside.calls) == 2:
            saved.append(None)
            world.store.come_back_as(saved[0])

    world.on_durable = durable
    await world.run()
    assert len({scope for scope, _ in outside.calls}) == 1
    numbers = [number for _, number in outside.calls]
    assert numbers[:3] == [1, 2, 1]
    assert min(numbers[3:]) > 1_000_000
    assert sorted(numbers[3:]) == list(range(numbers[3], numbers[3] + len(numbers[3:])))
    assert {number for _, number in outside.rows} == set(range(6))


async def test_a_worker_that_lived_on_counts_above_what_it_has_given_whatever_the_clock_says(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    values = [Item("a", n, n) for n in range(6)]
    outside = Keeping()
    world = World(outward(outside, values))
    engine = await world.start()
    nothing = world.store.saved()  # deployed, and no bundle closed

    async def long_ago() -> int:
        return 1

    await world.until(lambda: len(outside.calls) == 2, tick=0.01)
    monkeypatch.setattr(world.store, "now", long_ago)
    world.store.come_back_as(nothing)
    await world.finish(engine)
    numbers = [number for _, number in outside.calls]
    assert numbers[:3] == [1, 2, 3]
    assert {number for _, number in outside.rows} == set(range(6))


def _bundles_in(commit: Commit) -> list[str]:
    return [
        link_id
        for link in commit.intervals
        for link_id in (
            msgspec.json.decode(link.position or b"{}").get("bundle", {}).get("open", [])
        )
    ]


async def test_numbers_go_on_by_one_where_nothing_was_lost() -> None:
    """Also when another process has the pipeline next."""
    values = [Item("a", n, n) for n in range(14)]
    outside = Keeping()
    world = World(outward(outside, values))
    engine = await world.start()
    await world.until(lambda: len(outside.calls) == 2, tick=0.01)
    await engine.kill()
    await world.run()
    for scope in outside.last:
        numbers = sorted({number for of, number in outside.calls if of == scope})
        assert numbers == list(range(1, len(numbers) + 1))


async def test_a_pipeline_that_the_store_remembers_from_before_counts_above_all() -> None:
    """All of its workers have gone, and with them the memory of what was given."""
    values = [Item("a", n, n) for n in range(6)]
    outside = Keeping()
    world = World(outward(outside, values))
    engine = await world.start()
    nothing = world.store.saved()  # deployed, and no bundle closed
    await world.until(lambda: len(outside.calls) == 1, tick=0.01)
    await engine.kill()
    world.store.come_back_as(nothing)
    world.store.begin_again()
    await world.run()
    assert min(number for _, number in outside.calls[1:]) > 1_000_000
    assert {number for _, number in outside.rows} == set(range(6))


async def test_patience_with_a_server_that_does_not_stay_up_ends_with_a_clear_error() -> None:
    world = World(in_small_commits())
    engine = await world.start()

    async def crash(name: str) -> None:
        if name == "deploy":
            world.store.come_back_as(world.store.saved())

    world.store.faults.before_call = crash
    world.store.come_back_as(world.store.saved())
    with pytest.raises(StoreUnavailable, match="could not start over within 60 s"):
        await world.until(engine.done.is_set, tick=0.1)
    world.store.faults.before_call = None
    await engine.stop()
    world.store.begin_again()
    await world.run()
    assert world.tallied() == tally_of(TEN)
