"""What a harness shows in a notebook: values and states as tables of pandas."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import msgspec
import pytest

from millwheel import Computation, Context, Pipeline, Record, Stream
from millwheel.errors import UsageError
from millwheel.testing import Harness, frame
from millwheel.windows import Pane
from tests.support.pipelines import Do, Kept, Tally, script
from tests.support.values import ITEMS, TALLY, Count, Counted, Item, at, items, key_of, time_of


class Spot(msgspec.Struct):
    name: str
    place: Count


@dataclass
class Plain:
    name: str
    seen: datetime


class Pair(NamedTuple):
    left: int
    right: int


def cells(values: list[Any], *columns: str) -> dict[str, list[Any]]:
    made = frame(values, columns)
    return {str(name): list(made[name]) for name in made.columns}


def test_each_kind_of_value_has_columns() -> None:
    now = datetime(2024, 1, 1, tzinfo=UTC)
    assert cells([Counted("a", 1, 2)]) == {"key": ["a"], "number": [1], "count": [2]}
    assert cells([Spot("x", Count(3))]) == {"name": ["x"], "place.count": [3]}
    assert cells([Plain("x", now)]) == {"name": ["x"], "seen": [now]}
    assert cells([{"a": 1}, {"b": 2.5}])["a"][0] == 1
    assert cells([(1, "x")], "number", "name") == {"number": [1], "name": ["x"]}
    assert cells([(1, "x")]) == {"0": [1], "1": ["x"]}
    assert cells([Pair(1, 2)]) == {"left": [1], "right": [2]}
    assert cells([300, 390]) == {"value": [300, 390]}
    assert cells([]) == {}
    assert list(frame([], ["left", "right"]).columns) == ["left", "right"]
    pane = Pane("ann", at(0), at(60), Count(3))
    assert cells([pane])["value.count"] == [3]
    assert cells([pane])["end"][0] - cells([pane])["start"][0] == timedelta(minutes=1)


def test_numbers_are_not_rounded_because_another_row_has_none() -> None:
    """Pandas makes floats of integers beside None: 2^53 + 1 would be 2^53."""
    large = 2**53 + 1
    made = frame([{"n": large, "yes": True}, {"n": None, "yes": None}])
    assert (made["n"][0], made["yes"][0]) == (large, True)
    assert made["n"].isna().tolist() == [False, True]
    assert str(made["n"].dtype) == "Int64"
    assert frame([{"n": 2**70}, {"n": None}])["n"][0] == 2**70


def test_times_of_any_year_are_shown() -> None:
    """The last window ends in the year 9999, which the nanoseconds of pandas do not reach."""
    last = datetime(9999, 12, 31, tzinfo=UTC)
    assert list(frame([Plain("x", last), Plain("y", at(0))])["seen"]) == [last, at(0)]
    assert str(frame([Plain("y", at(0))])["seen"].dtype).startswith("datetime64")


def test_without_pandas_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(UsageError, match=r"pip install 'millwheel-engine\[spark\]'"):
        frame([1])


# -- a harness without a block ---------------------------------------------------------------------


def counting() -> Pipeline:
    pipeline = Pipeline("counting")
    pipeline.inject(ITEMS, script(ITEMS, []), timestamp=time_of)
    pipeline.add(Tally(), ITEMS.by(key_of))
    return pipeline


async def test_a_harness_can_be_awaited_and_closed() -> None:
    harness = await Harness(counting())
    await harness.inject(ITEMS, *items(1, 2))
    assert len(harness.produced(TALLY)) == 2
    await harness.close()
    await harness.close()
    calls = (harness.inject(ITEMS, *items(1)), harness.sleep(1), harness.advance(ITEMS, at(9)))
    for call in calls:
        with pytest.raises(UsageError, match=r"between harness = await Harness\(\.\.\.\) and"):
            await call
    with pytest.raises(UsageError, match=r"make a new Harness\(pipeline\)"):
        await harness


async def test_closing_shows_letters_that_were_not_read() -> None:
    class Refuse(Computation[Item, None]):
        async def process_record(self, record: Record[Item], ctx: Context[None]) -> None:
            raise ValueError("not this one")

    pipeline = Pipeline("refusing")
    pipeline.inject(ITEMS, script(ITEMS, []), timestamp=time_of)
    pipeline.add(Refuse(), ITEMS.by(key_of), on_error="dead_letter")
    harness = await Harness(pipeline)
    await harness.inject(ITEMS, *items(1))
    with pytest.raises(AssertionError, match="not this one"):
        await harness.close()


def test_a_harness_belongs_to_one_event_loop() -> None:
    """Without a check, the second call would wait for ever for tasks that do not run."""
    harness = Harness(counting())

    async def start() -> None:
        await harness

    async def inject_again() -> None:
        await harness.inject(ITEMS, *items(1))

    asyncio.run(start())
    with pytest.raises(UsageError, match="started in another event loop"):
        asyncio.run(inject_again())


# -- states ----------------------------------------------------------------------------------------


async def test_states_are_a_table_in_the_order_of_the_keys() -> None:
    async with Harness(counting()) as harness:
        await harness.inject(ITEMS, *(Item(key, 1) for key in "hcbgadfe"), Item("b", 2))
        found = harness.states("tally")
        assert [(row["key"], row["count"]) for row in found][:3] == [("a", 1), ("b", 2), ("c", 1)]
        assert [row["key"] for row in found] == list("abcdefgh")
        assert list(frame(harness.states("tally")).columns) == ["key", "count"]
        with pytest.raises(UsageError, match="Did you mean tally"):
            harness.states("taly")


async def test_collections_and_keys_of_several_parts_are_shown() -> None:
    async def keep(record: Record[Item], ctx: Context[Kept]) -> None:
        ctx.state.count += 1
        ctx.state.marks.put(f"m{record.value.number}", record.value.number)
        await ctx.state.queue.append(record.value.number)

    pipeline = Pipeline("keeping")
    pipeline.inject(ITEMS, script(ITEMS, []), timestamp=time_of)
    pipeline.add(Do(keep), ITEMS.by(lambda item: (item.key, item.number // 10)))
    async with Harness(pipeline) as harness:
        await harness.inject(ITEMS, Item("a", 11), Item("a", 2), Item("a", 3))
        first, second = harness.states("do")
    assert first == {
        "key": ("a", 0), "count": 2, "numbers": [], "marks": {"m2": 2, "m3": 3}, "queue": [2, 3],
    }  # fmt: skip
    assert (second["key"], second["queue"]) == (("a", 1), [11])


async def test_an_empty_collection_is_shown_as_one() -> None:
    async def keep(record: Record[Item], ctx: Context[Kept]) -> None:
        ctx.state.count += 1

    pipeline = Pipeline("keeping")
    pipeline.inject(ITEMS, script(ITEMS, []), timestamp=time_of)
    pipeline.add(Do(keep), ITEMS.by(key_of))
    async with Harness(pipeline) as harness:
        await harness.inject(ITEMS, Item("a", 1))
        (row,) = harness.states("do")
    assert (row["marks"], row["queue"]) == ({}, [])


class Own(msgspec.Struct):
    key: str = ""


class KeepKey(Computation[Item, Own]):
    async def process_record(self, record: Record[Item], ctx: Context[Own]) -> None:
        ctx.state.key = "another"


async def test_a_field_called_key_does_not_hide_the_key() -> None:
    pipeline = Pipeline("keeping")
    pipeline.inject(ITEMS, script(ITEMS, []), timestamp=time_of)
    pipeline.add(KeepKey(), ITEMS.by(key_of))
    async with Harness(pipeline) as harness:
        await harness.inject(ITEMS, Item("a", 1))
        assert harness.states("keep_key") == [{"key": "a", "state.key": "another"}]


class Judge(Computation[Item, Count, int, Count]):
    async def process_broadcast(self, record: Record[int], shared: Count) -> None:
        shared.count = record.value

    async def process_record(self, record: Record[Item], ctx: Context[Count, Count]) -> None:
        ctx.state.count += ctx.shared.count


async def test_tables_of_broadcast_records_are_no_keys() -> None:
    limits = Stream("limits", int)
    pipeline = Pipeline("judging")
    pipeline.inject(ITEMS, script(ITEMS, []), timestamp=time_of)
    pipeline.inject(limits, script(limits, []), timestamp=lambda limit: at(0))
    pipeline.add(Judge(), ITEMS.by(key_of), limits.broadcast())
    async with Harness(pipeline) as harness:
        await harness.inject(limits, 5)
        await harness.inject(ITEMS, Item("a", 1))
        assert harness.states("judge") == [{"key": "a", "count": 5}]
