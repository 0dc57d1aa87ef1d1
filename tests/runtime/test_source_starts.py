"""A source that is slow to open: commits and recoveries while it is being opened."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from millwheel import Pipeline, Stream, Table
from millwheel.errors import StoreUnavailable
from millwheel.sources import Lag, Row
from tests.support.pipelines import QUICK, Tally
from tests.support.values import ITEMS, TALLY, Counted, Item, key_of, time_of
from tests.support.worlds import Gate, World, fail_once, unknown_once

SLOW = Stream("slow", Item)


class Shelf:
    """A source of a list, which opens when its gate does."""

    bounded = False

    def __init__(self, identity: str, items: list[Item]) -> None:
        self.identity = identity
        self.items = items
        self.gate = Gate()
        self.gate.open()
        self.opened: list[dict[str, Any] | None] = []
        self.reading: list[ShelfReader] = []
        self.is_opening = False

    def partitions(self) -> list[Any]:
        return [self]

    def describe(self) -> dict[str, Any]:
        return {}

    async def open(self, value_type: Any, position: dict[str, Any] | None) -> ShelfReader:
        assert not self.is_opening, "it is opened twice at once"
        self.is_opening = True
        self.opened.append(position)
        await self.gate.wait()
        self.is_opening = False
        self.reading.append(ShelfReader(self, position["next"] if position else 0))
        return self.reading[-1]


class ShelfReader:
    ended = False

    def __init__(self, shelf: Shelf, first: int) -> None:
        self._shelf, self._next = shelf, first
        self.closed = False

    async def read(self, limit: int) -> list[Row]:
        first, items = self._next, self._shelf.items
        self._next = min(first + limit, len(items))
        return [Row(n, n, items[n]) for n in range(first, self._next)]

    async def wait(self) -> None:
        while self._next == len(self._shelf.items):  # noqa: ASYNC110 (the test adds to the list)
            await asyncio.sleep(0)

    def position(self, acknowledged: int) -> dict[str, Any]:
        assert acknowledged <= self._next
        return {"next": acknowledged}

    def caught_up(self) -> bool:
        return self._next == len(self._shelf.items)

    def progress(self) -> None:
        return None

    def lag(self) -> Lag:
        return Lag()

    def close(self) -> None:
        self.closed = True


def pipeline_of(quick: Shelf, slow: Shelf) -> Pipeline:
    pipeline = Pipeline("shelves", settings=QUICK)
    pipeline.inject(ITEMS, quick, timestamp=time_of)
    pipeline.inject(SLOW, slow, timestamp=time_of)
    pipeline.add(Tally(), ITEMS.by(key_of), SLOW.by(key_of))
    pipeline.sink(TALLY, Table("out", Counted, numbered=True))
    return pipeline


def slow_positions(world: World) -> list[Any]:
    """The positions of the slow source that were stored, in order."""
    interval = world.interval("slow_injector").id
    stored = [each for commit in world.commits for each in commit.intervals]
    return [
        msgspec.json.decode(each.position)["reader"]
        for each in stored
        if each.interval_id == interval and each.position
    ]


@pytest.mark.parametrize(
    "fault",
    [
        lambda world: fail_once(world, 1, StoreUnavailable("the server is away")),
        lambda world: unknown_once(world, 1),
    ],
    ids=["a commit failed", "the outcome of a commit is unknown"],
)
async def test_its_lane_recovers_while_it_is_opened(fault: Callable[[World], None]) -> None:
    quick, slow = Shelf("quick", [Item("a", 1)]), Shelf("slow", [Item("b", n) for n in range(5)])
    slow.gate.shut()
    world = World(pipeline_of(quick, slow))
    fault(world)
    starting = asyncio.create_task(world.start())
    await world.until(lambda: slow.gate.reached and len(quick.opened) == 2, tick=0.05)
    slow.gate.open()
    await starting
    await world.until(lambda: len(world.rows()) == 6, tick=0.05)
    await world.turns(200, tick=0.05)
    assert len(world.rows()) == 6
    assert [reader.closed for reader in slow.reading] == [True, False]
    await world.close()


async def test_a_commit_while_it_is_opened_keeps_its_position() -> None:
    quick, slow = Shelf("quick", []), Shelf("slow", [Item("b", n) for n in range(5)])
    world = World(pipeline_of(quick, slow))
    engine = await world.start()
    await world.until(lambda: {"next": 5} in slow_positions(world), tick=0.05)
    await engine.stop()
    slow.gate.shut()
    starting = asyncio.create_task(world.start())
    await world.until(lambda: slow.gate.reached == 2, tick=0.05)
    interval = world.interval("slow_injector")
    await interval.store_all()
    assert slow_positions(world)[-1] == {"next": 5}
    slow.gate.open()
    await starting
    slow.items.append(Item("b", 5))
    await world.until(lambda: len(world.rows()) == 6, tick=0.05)
    assert slow.opened == [None, {"next": 5}]
    await world.close()


async def test_it_is_closed_if_the_engine_stops_while_it_is_opened() -> None:
    quick, slow = Shelf("quick", []), Shelf("slow", [Item("b", 1)])
    slow.gate.shut()
    world = World(pipeline_of(quick, slow))
    starting = asyncio.create_task(world.start())
    await world.until(lambda: slow.gate.reached, tick=0.05)
    task = world.interval("slow_injector").source_task
    assert task is not None
    await task.stop()
    slow.gate.open()
    await starting
    await world.turns(100, tick=0.05)
    assert [reader.closed for reader in slow.reading] == [True]
    assert world.rows() == []
    await world.close()
