"""A server that loses its newest commits, and workers that live on (design I16, decision 40)."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from structlog.testing import capture_logs

from millwheel.errors import Fenced
from millwheel.pipeline import Pipeline
from millwheel.runtime.engine import Engine
from millwheel.runtime.observer import Observer
from millwheel.store.port import Commit
from tests.test_runtime_world import (
    ITEMS,
    QUICK,
    Gate,
    Item,
    World,
    doing,
    items,
    produce,
    script,
    tally_of,
    tally_pipeline,
)
from tests.test_sharing import Cluster, counting, many

TEN = [Item("a", number) for number in range(10)]


def two_lanes() -> Pipeline:
    """The source and its reader commit in chains of their own."""
    return tally_pipeline(script(ITEMS, TEN), replace(QUICK, lanes=2, chunk_records=4))


class Losing:
    """Saves what is stored before each commit; the server comes back as it was `back` commits ago."""

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
@pytest.mark.parametrize("at", range(1, 10))
async def test_what_a_worker_alone_was_told_is_durable_and_is_lost_happens_once(
    at: int, back: int
) -> None:
    world = World(two_lanes())
    losing = Losing(world, at, back)
    await world.run()
    assert losing.lost
    await world.run()  # what was lost when all was done is done by the next
    assert world.tallied() == tally_of(TEN)


async def test_a_position_never_goes_past_records_that_the_server_has_lost() -> None:
    """The reader's commit is lost, and the source has the ACK: the case that doubled and lost rows."""
    world = World(two_lanes())
    engine = await world.start()
    injector = world.interval("items_injector").id
    before: list[Any] = []
    lost = False

    def tried(commit: Commit) -> None:
        nonlocal lost
        ids = {link.interval_id for link in commit.intervals}
        if not before and any(commit.seen.values()) and injector not in ids:
            before.append(world.store.saved())
        elif before and not lost and injector in ids:
            lost = True
            world.store.come_back_as(before[0])

    world.on_try = tried
    with capture_logs() as logs:
        await world.finish(engine)
    assert lost
    assert world.tallied() == tally_of(TEN)
    told = [line for line in logs if line["event"] == "starts_over"]
    assert len(told) == 1
    assert told[0]["intervals"] == 3


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
    world = World(two_lanes())
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
    world = World(two_lanes())
    engine = await world.start()
    await world.turns(5)
    await world.store.stop_worker(engine.worker)
    world.store.come_back_as(world.store.saved())
    with pytest.raises(Fenced, match="somebody ended this worker"):
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
    world = World(two_lanes())
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
    world = World(two_lanes())
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
    world = World(two_lanes())
    engine = await world.start()
    engine.observer = observer = Counting()
    for interval in engine.intervals:
        observer.interval_taken(interval)
    world.store.come_back_as(world.store.saved())
    await world.finish(engine)
    assert set(observer.balance.values()) == {1}
