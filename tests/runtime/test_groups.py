"""Records of a key in one call (`process_group`): the same effects as one after the other."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from millwheel import Computation, Context, Pipeline, Record, Stream
from millwheel.testing import Harness, assert_exactly_once, inject
from tests.support.pipelines import QUICK, script
from tests.support.values import ITEMS, Item, at, key_of, time_of

OUT = Stream("out", Item)
SUMS = Stream("sums", int)


class Sum(msgspec.Struct):
    total: int = 0


class Add(Computation[Item, Sum]):
    """Adds numbers up, and passes the records on; notes how they came."""

    writes = (OUT, SUMS)

    def __init__(self) -> None:
        self.groups: list[int] = []
        self.alone: list[int] = []

    async def process_record(self, record: Record[Item], ctx: Context[Sum]) -> None:
        self.alone.append(record.value.number)
        self.take(record, ctx)
        ctx.produce(SUMS, ctx.state.total)

    async def process_group(self, records: Sequence[Record[Item]], ctx: Context[Sum]) -> None:
        self.groups.append(len(records))
        for record in records:
            self.take(record, ctx)
        ctx.produce(SUMS, ctx.state.total)

    def take(self, record: Record[Item], ctx: Context[Sum]) -> None:
        if record.value.number < 0:
            raise ValueError("a number below zero")
        ctx.state.total += record.value.number
        ctx.produce(OUT, record.value, record.timestamp)


class AddSlowly(Add):
    """Waits in the middle."""

    async def process_group(self, records: Sequence[Record[Item]], ctx: Context[Sum]) -> None:
        half = len(records) // 2
        for record in records[:half]:
            self.take(record, ctx)
        await asyncio.sleep(0.01)
        for record in records[half:]:
            self.take(record, ctx)
        ctx.produce(SUMS, ctx.state.total)


def pipeline_of(add: Computation[Item, Any], **options: Any) -> Pipeline:
    pipeline = Pipeline("groups", settings=QUICK)
    pipeline.inject(ITEMS, script(ITEMS, []), timestamp=time_of)
    pipeline.add(add, ITEMS.by(key_of), name="add", **options)
    return pipeline


VALUES = [Item("ab"[n % 2], n, n) for n in range(20)]


async def test_records_of_a_key_that_come_together_are_one_call() -> None:
    add = Add()
    async with Harness(pipeline_of(add)) as harness:
        await harness.inject(ITEMS, *VALUES)
        assert harness.produced(SUMS) == [90, 100]
        assert sorted(item.number for item in harness.produced(OUT)) == [*range(20)]
        assert harness.state("add", "a") == {"": {"total": 90}}
        await harness.inject(ITEMS, Item("a", 1, 30))
        assert harness.produced(SUMS)[-1] == 91
    assert add.alone == [1], "a record alone is not a group"
    assert add.groups == [10, 10]


async def test_a_call_for_a_group_may_wait() -> None:
    """It continues; in that time another key's group runs."""
    add = AddSlowly()
    async with Harness(pipeline_of(add)) as harness:
        await harness.inject(ITEMS, *VALUES)
        assert sorted(item.number for item in harness.produced(OUT)) == [*range(20)]
        assert harness.state("add", "a") == {"": {"total": 90}}
        assert harness.state("add", "b") == {"": {"total": 100}}
    assert add.alone == []


async def test_a_production_has_the_least_of_the_timestamps_unless_it_is_given_one() -> None:
    seen: dict[str, list[float]] = {"sums": [], "out": []}

    class Note(Computation[Any, None]):
        async def process_record(self, record: Record[Any], ctx: Context[None]) -> None:
            seen[record.stream].append((record.timestamp - at(0)).total_seconds())

    pipeline = pipeline_of(Add())
    pipeline.add(Note(), SUMS.by(str), OUT.by(key_of), name="note")
    async with Harness(pipeline) as harness:
        await harness.inject(ITEMS, *[Item("a", n, second) for n, second in enumerate([7, 3, 5])])
    assert seen == {"sums": [3.0], "out": [7.0, 3.0, 5.0]}


async def test_of_a_group_that_fails_only_the_record_at_fault_does() -> None:
    add = Add()
    async with Harness(pipeline_of(add, on_error="dead_letter", retries=0)) as harness:
        bad = Item("a", -1, 4)
        await harness.inject(ITEMS, *VALUES[:4], bad, *VALUES[4:])
        assert [letter.value for letter in harness.dead_letters] == [
            msgspec.json.encode(bad).decode()
        ]
        assert harness.state("add", "a") == {"": {"total": 90}}
        assert harness.state("add", "b") == {"": {"total": 100}}
        assert sorted(item.number for item in harness.produced(OUT)) == [*range(20)]


async def test_a_class_below_with_its_own_process_record_is_not_passed_by() -> None:
    class Twice(Add):
        async def process_record(self, record: Record[Item], ctx: Context[Sum]) -> None:
            await super().process_record(record, ctx)
            ctx.state.total += record.value.number

    add = Twice()
    async with Harness(pipeline_of(add)) as harness:
        await harness.inject(ITEMS, *VALUES)
        assert harness.state("add", "a") == {"": {"total": 180}}
    assert add.groups == []


@pytest.mark.filterwarnings("ignore:.*when it is read again")
async def test_state_that_json_does_not_keep_is_seen_as_it_is_read_back() -> None:
    """One record after the other: the second of a key sees what a restart would read."""

    class Kept(msgspec.Struct):
        pair: Any = None

    class Keep(Computation[Item, Kept]):
        writes = (SUMS,)

        async def process_record(self, record: Record[Item], ctx: Context[Kept]) -> None:
            ctx.produce(SUMS, 1 if isinstance(ctx.state.pair, list) else 0)
            ctx.state.pair = (1, record.value.number)

        async def process_group(self, records: Sequence[Record[Item]], ctx: Context[Kept]) -> None:
            for record in records:
                await self.process_record(record, ctx)

    async with Harness(pipeline_of(Keep())) as harness:
        await harness.inject(ITEMS, *VALUES[:6:2])
        assert harness.produced(SUMS) == [0, 1, 1]


@pytest.mark.parametrize("kind", [Add, AddSlowly])
async def test_effects_of_groups_happen_once(kind: type[Add]) -> None:
    await assert_exactly_once(
        pipeline_of(kind()), [inject(ITEMS, value) for value in VALUES], {OUT: VALUES}
    )


async def test_broadcast_records_are_no_group() -> None:
    """They change the table, one by one, and the records of keys are still grouped."""

    class Rules(msgspec.Struct):
        numbers: list[int] = []

    class Both(Computation[Item, Sum, Item, Rules]):
        writes = (OUT,)

        def __init__(self) -> None:
            self.groups: list[int] = []

        async def process_broadcast(self, record: Record[Item], shared: Rules) -> None:
            shared.numbers.append(record.value.number)

        async def process_record(self, record: Record[Item], ctx: Context[Sum, Rules]) -> None:
            ctx.produce(OUT, Item(record.value.key, len(ctx.shared.numbers), 0))

        async def process_group(
            self, records: Sequence[Record[Item]], ctx: Context[Sum, Rules]
        ) -> None:
            self.groups.append(len(records))
            for record in records:
                await self.process_record(record, ctx)

    rules, both = Stream("rules", Item), Both()
    pipeline = Pipeline("groups", settings=QUICK)
    pipeline.inject(ITEMS, script(ITEMS, []), timestamp=time_of)
    pipeline.inject(rules, script(rules, []), timestamp=time_of)
    pipeline.add(both, ITEMS.by(key_of), rules.broadcast(), name="both")
    async with Harness(pipeline) as harness:
        await harness.inject(rules, *VALUES[:6])
        assert both.groups == []
        await harness.inject(ITEMS, *VALUES)
        assert {item.number for item in harness.produced(OUT)} == {6}
    assert both.groups == [10, 10]
