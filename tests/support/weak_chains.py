"""Chains of weak computations, and what their commits must show."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

from millwheel import Computation, Context, Pipeline, Record, Settings, Stream, Table
from tests.support.pipelines import QUICK, Tally, script
from tests.support.values import ITEMS, TALLY, Count, Counted, Item, key_of, time_of
from tests.support.worlds import Gate, World

HALVES = Stream("halves", Item)

AGAIN = Stream("again", Item)

FEW = replace(QUICK, chunk_records=2, bundle_records=3, max_unacked_records=8)


class Halve(Computation[Item, None]):
    """Two for one: 2 n and 2 n + 1, each under a key of its own; nothing for every seventh."""

    writes = (HALVES,)

    async def process_record(self, record: Record[Item], ctx: Context[None]) -> None:
        item = record.value
        if item.number % 7 == 6:
            return
        for half in (0, 1):
            number = 2 * item.number + half
            ctx.produce(HALVES, Item(f"key {number % 3}", number, item.second))


def chain(
    values: Sequence[Any],
    settings: Settings = FEW,
    *,
    depth: int = 2,
    straggler_after: float = 1.0,
    name: str = "weakly",
    **options: Any,
) -> Pipeline:
    """Items to `depth` weak computations, and then counted per key into the table `out`."""
    made = Pipeline(name, settings=settings)
    made.inject(ITEMS, script(ITEMS, values), timestamp=time_of)
    weak = {
        "productions": "weak",
        "straggler_after": timedelta(seconds=straggler_after),
        **options,
    }
    made.add(Halve(), ITEMS.by(number_of_item), **weak)
    last = HALVES
    for number in range(1, depth):
        last = Stream(f"stage_{number}", Item)
        before = HALVES if number == 1 else Stream(f"stage_{number - 1}", Item)
        made.add(Relay(last), before.by(number_of_item), name=f"pass_{number}", **weak)
    made.add(Tally(), last.by(key_of))
    made.sink(TALLY, Table("out", Counted, numbered=True))
    return made


def number_of_item(item: Item) -> int:
    return item.number


class Relay(Computation[Item, None]):
    """Passes on to a stream of the test's."""

    def __init__(self, to: Stream[Item]) -> None:
        self.writes = (to,)
        self._to = to

    async def process_record(self, record: Record[Item], ctx: Context[None]) -> None:
        ctx.produce(self._to, record.value)


def halves(values: Sequence[Item]) -> list[int]:
    return sorted(2 * i.number + half for i in values if i.number % 7 != 6 for half in (0, 1))


def assert_once(world: World, values: Sequence[Item]) -> None:
    """Every half is there once, and every key has counted its own once."""
    assert sorted(world.numbers()) == halves(values)
    for counted in world.tallied().values():
        assert [count for _, count in counted] == list(range(1, len(counted) + 1))


VALUES = [Item("", n, n / 10) for n in range(12)]


async def commits_of(pipeline: Pipeline) -> int:
    world = World(pipeline)
    await world.run()
    return world.tried


class Slow(Computation[Item, Count]):
    """Waits at one key until it is told."""

    writes = (TALLY,)

    def __init__(self, gate: Gate, key: str) -> None:
        self._gate = gate
        self._key = key

    async def process_record(self, record: Record[Item], ctx: Context[Count]) -> None:
        if ctx.key == self._key:
            await self._gate.wait()
        ctx.state.count += 1
        item = record.value
        ctx.produce(TALLY, Counted(item.key, item.number, ctx.state.count))


ONES = Stream("ones", Counted)


class Ones(Computation[Counted, Count]):
    """Adds how often a number was told."""

    writes = (ONES,)

    async def process_record(self, record: Record[Counted], ctx: Context[Count]) -> None:
        ctx.state.count += 1
        counted = record.value
        times = ctx.state.count
        ctx.produce(ONES, Counted(counted.key, counted.number, counted.count * 100 + times))
