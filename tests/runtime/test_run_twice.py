"""Weak code is run twice in tests, and must say the same: what else could be told of it?"""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from millwheel import Computation, Context, MapState, Pipeline, Record, Stream, Timer
from millwheel.errors import NotTheSameAgain, UserCodeError
from millwheel.graph.node import OnError
from millwheel.testing import Harness, assert_exactly_once, inject
from tests.support.pipelines import QUICK, script
from tests.support.values import ITEMS, Count, Item, at, key_of, time_of

OUT = Stream("out_items", Item)
NEXT = Stream("next_items", Item)
LISTS = Stream("lists", list[int])
Making = Callable[[Item], "Iterable[Item]"]


class Make(Computation[Item, None]):
    """Whatever a test wants made of an item."""

    writes = (OUT,)

    def __init__(self, make: Making) -> None:
        self._make = make

    async def process_record(self, record: Record[Item], ctx: Context[None]) -> None:
        for item in self._make(record.value):
            ctx.produce(OUT, item)


class Pass(Computation[Item, None]):
    """Passes on."""

    writes = (NEXT,)

    async def process_record(self, record: Record[Item], ctx: Context[None]) -> None:
        ctx.produce(NEXT, record.value)


def making(computation: Computation[Item, Any], **options: Any) -> Pipeline:
    made = Pipeline("making", settings=QUICK)
    made.inject(ITEMS, script(ITEMS, []), timestamp=time_of)
    made.add(computation, ITEMS.by(key_of), name="maker", productions="weak", **options)
    made.add(Pass(), OUT.by(key_of), productions="weak")
    return made


async def in_a_harness(pipeline: Pipeline, *values: Item) -> Any:
    async with Harness(pipeline) as harness:
        await harness.inject(ITEMS, *values)
        return harness.produced(NEXT)


counter = itertools.count()
calls: list[str] = []


def once_more(item: Item) -> list[Item]:
    calls.append(item.key)
    return [item] if len(calls) % 2 else []


def in_the_order_of_identity(item: Item) -> list[Item]:
    """A set of objects comes in the order of their places in memory."""
    found = {Named(n) for n in range(50)}
    kept.append(found)  # so that the next ones have other places
    return [Item(item.key, each.number) for each in found]


class Named:
    """Hashed by its identity, as objects are."""

    def __init__(self, number: int) -> None:
        self.number = number


kept: list[set[Named]] = []


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda i: [Item(i.key, random.randrange(10**9))], id="random"),
        pytest.param(lambda i: [Item(i.key, next(counter))], id="counter"),
        pytest.param(lambda i: [Item(i.key, time.perf_counter_ns())], id="clock"),
        pytest.param(
            lambda i: [Item(i.key, int(datetime.now(UTC).timestamp() * 1e6))], id="now"
        ),
        pytest.param(in_the_order_of_identity, id="set order"),
        pytest.param(once_more, id="only the first time"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("by", ["harness", "assert_exactly_once"])
async def test_what_differs_from_run_to_run_is_found(make: Making, by: str) -> None:
    pipeline = making(Make(make))
    work = (
        in_a_harness(pipeline, Item("a", 1))
        if by == "harness"
        else assert_exactly_once(pipeline, [inject(ITEMS, Item("a", 1))], {NEXT: []})
    )
    with pytest.raises(NotTheSameAgain) as told:
        await work
    text = str(told.value)
    assert "'maker' ran twice on a record of stream 'items', key 'a'" in text
    assert "at first:" in text
    assert "again:" in text
    assert "out_items" in text


@pytest.mark.parametrize("on_error", ["fail", "dead_letter"])
async def test_it_is_no_dead_letter(on_error: OnError) -> None:
    pipeline = making(Make(lambda i: [Item(i.key, next(counter))]), on_error=on_error)
    with pytest.raises(NotTheSameAgain):
        await in_a_harness(pipeline, Item("a", 1))


async def test_another_timestamp_or_order_or_stream_is_another_thing() -> None:
    turn = itertools.count()

    class Times(Make):
        async def process_record(self, record: Record[Item], ctx: Context[None]) -> None:
            ctx.produce(OUT, record.value, timestamp=at(100 + next(turn)))

    class Order(Make):
        async def process_record(self, record: Record[Item], ctx: Context[None]) -> None:
            for n in (1, 2) if next(turn) % 2 else (2, 1):
                ctx.produce(OUT, Item("a", n))

    class Streams(Make):
        def __init__(self, make: Making) -> None:
            self.writes = (OUT, Stream("else_items", Item))  # type: ignore[assignment]

        async def process_record(self, record: Record[Item], ctx: Context[None]) -> None:
            ctx.produce(self.writes[next(turn) % 2], record.value)

    for kind in (Times, Order, Streams):
        with pytest.raises(NotTheSameAgain):
            await in_a_harness(making(kind(lambda i: [])), Item("a", 1))


async def test_good_code_passes_and_its_effects_count_once() -> None:
    class Good(Computation[Item, None]):
        writes = (OUT,)

        async def process_record(self, record: Record[Item], ctx: Context[None]) -> None:
            ctx.count("items")
            for n in range(record.value.number):
                ctx.produce(OUT, Item(record.value.key, n))

    async with Harness(making(Good())) as harness:
        await harness.inject(ITEMS, Item("a", 2), Item("b", 3), Item("a", 0))
        assert sorted(i.number for i in harness.produced(OUT)) == [0, 0, 1, 1, 2]
        assert harness.produced(NEXT) == harness.produced(OUT)
        assert harness.counters("maker")["items"] == 3
        assert harness.counters("maker")["processed"] == 3
    await assert_exactly_once(
        making(Good()),
        [inject(ITEMS, Item("a", 2)), inject(ITEMS, Item("b", 3))],
        {OUT: [Item(k, n) for k, n in (("a", 0), ("a", 1), ("b", 0), ("b", 1), ("b", 2))]},
        max_crashes=8,
    )


async def test_what_is_written_weakly_is_not_stored_to_be_captured() -> None:
    """Weak productions take the weak way in a test, too."""
    async with Harness(making(Make(lambda i: [i]))) as harness:
        await harness.inject(ITEMS, Item("a", 2), Item("b", 3))
        names = {id_: step.name for id_, step in harness._engine.exchange.steps.items()}
        assert {i.number for i in harness.produced(OUT)} == {2, 3}
        seen = {
            names[computation]
            for bucket in harness.store.tables.buckets.values()
            for computation in (
                *(of for _, of, _ in bucket.seen),
                *(of for of, _ in bucket.numbers),
            )
        }
        assert "maker" not in seen
        assert "pass" not in seen


async def test_a_value_that_code_changes_is_given_anew() -> None:
    class Spoil(Computation[list[int], None]):
        writes = (NEXT,)

        async def process_record(self, record: Record[list[int]], ctx: Context[None]) -> None:
            ctx.produce(NEXT, Item("a", len(record.value)))
            record.value.append(1)

    made = Pipeline("spoil", settings=QUICK)
    made.inject(LISTS, script(LISTS, [], "lists"), timestamp=lambda _: at(0))
    made.add(Spoil(), LISTS.by(lambda _: "k"), productions="weak")
    async with Harness(made) as harness:
        await harness.inject(LISTS, [5, 6], [7])
        assert [i.number for i in harness.produced(NEXT)] == [2, 1]


async def test_a_record_that_fails_at_first_fails_as_ever() -> None:
    def fails(item: Item) -> list[Item]:
        if item.number == 2:
            raise ValueError("two")
        return [item]

    async with Harness(making(Make(fails), on_error="dead_letter")) as harness:
        await harness.inject(ITEMS, Item("a", 1), Item("a", 2), Item("a", 3))
        assert [i.number for i in harness.produced(NEXT)] == [1, 3]
        assert [letter.error for letter in harness.dead_letters] == ["ValueError: two"]
    with pytest.raises(UserCodeError, match="ValueError: two") as told:
        await in_a_harness(making(Make(fails)), Item("a", 2))
    assert not isinstance(told.value, NotTheSameAgain)


async def test_a_record_that_fails_the_second_time_is_not_the_same() -> None:
    runs = itertools.count()

    def fails(item: Item) -> list[Item]:
        if next(runs) % 2:
            raise ValueError("the second time")
        return [item]

    with pytest.raises(NotTheSameAgain, match="ValueError: the second time"):
        await in_a_harness(making(Make(fails)), Item("a", 2))


# -- with state that makes no difference ----------------------------------------------------------


class Keeping(msgspec.Struct):
    """A count, and numbers by their own name."""

    count: int = 0
    numbers: MapState[str, int] = msgspec.field(default_factory=MapState)


class Insensitive(Computation[Item, Keeping]):
    """Counts, and passes on what depends on the item alone."""

    writes = (OUT,)
    order_insensitive = True

    async def process_record(self, record: Record[Item], ctx: Context[Keeping]) -> None:
        ctx.state.count += 1
        name = str(record.value.number)
        ctx.state.numbers.put(name, (await ctx.state.numbers.get(name) or 0) + 1)
        ctx.set_timer(record.timestamp, tag=name)
        ctx.produce(OUT, record.value)

    async def process_timer(self, timer: Timer, ctx: Context[Keeping]) -> None:
        ctx.count("rings")


async def test_state_is_as_if_it_had_run_once() -> None:
    async with Harness(making(Insensitive())) as harness:
        await harness.inject(ITEMS, Item("a", 1), Item("a", 2), Item("a", 1), Item("b", 3))
        await harness.inject(ITEMS, Item("c", 3, 100))
        assert harness.state("maker", "a") == {
            "": {"count": 3}, 'numbers/"1"': 2, 'numbers/"2"': 1
        }  # fmt: skip
        assert harness.counters("maker")["rings"] == 3, "1 and 2 of a, and 3 of b"
        assert [i.number for i in harness.produced(NEXT)] == [1, 2, 1, 3, 3]
    inputs = [inject(ITEMS, Item("a", n)) for n in (1, 2, 1)]
    await assert_exactly_once(
        making(Insensitive()), inputs, {NEXT: [Item("a", n) for n in (1, 2, 1)]}, max_crashes=8
    )


async def test_state_that_makes_a_difference_is_found() -> None:
    """Twice on the same state it is the same; but not if nothing had come before."""

    class Sensitive(Computation[Item, Count]):
        writes = (OUT,)
        order_insensitive = True

        async def process_record(self, record: Record[Item], ctx: Context[Count]) -> None:
            ctx.state.count += 1
            ctx.produce(OUT, Item(record.value.key, ctx.state.count))

    pipeline = making(Sensitive())
    assert [i.number for i in await in_a_harness(pipeline, Item("a", 7))] == [1]
    with pytest.raises(NotTheSameAgain, match="with an empty state"):
        await in_a_harness(pipeline, Item("a", 7), Item("a", 8))
