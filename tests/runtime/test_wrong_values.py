"""A value of another type than its stream's is refused where it is produced."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Generic, Literal, NewType, TypeVar
from uuid import UUID

import msgspec
import pytest

from millwheel import (
    Computation,
    Console,
    Context,
    Discard,
    JsonLinesFiles,
    Pipeline,
    Record,
    Stream,
    Table,
)
from millwheel.core.codec import Codec
from millwheel.errors import UserCodeError
from millwheel.graph.node import Productions
from millwheel.sinks import Sink
from millwheel.testing import Harness
from tests.support.pipelines import QUICK, script
from tests.support.values import ITEMS, Item, items, key_of, time_of
from tests.support.worlds import World

T = TypeVar("T")


class Order(msgspec.Struct):
    number: int = 0


class Rush(Order):
    hours: int = 1


class Payment(msgspec.Struct):
    number: int = 0


class Box(msgspec.Struct, Generic[T]):
    inside: T


@dataclass
class Point:
    x: int = 0


class Color(Enum):
    RED = "red"


class Word(msgspec.Struct):
    word: str


UserId = NewType("UserId", int)
NOON = datetime(2024, 1, 1, 12, tzinfo=UTC)

GOOD: list[tuple[Any, Any]] = [
    (str, "a"), (int, 5), (float, 5), (float, 0.5), (bool, True), (type(None), None), (bytes, b"a"),
    (datetime, NOON), (Decimal, Decimal("1.5")), (UUID, UUID(int=1)), (Color, Color.RED),
    (Order, Order()), (Order, Rush()), (Point, Point()), (Box[int], Box(1)), (str | None, None),
    (int | str, "a"), (list[int], [1]), (dict[str, int], {"a": 1}), (tuple[int, str], (1, "a")),
    (Annotated[int, msgspec.Meta(ge=0)], 1), (Literal["a"], "a"), (UserId, UserId(1)), (Any, [1]),
    (Order | None, None), (list[Order], [Order()]), (list[int] | str, [1]), (list[int] | str, "a"),
]  # fmt: skip

WRONG: list[tuple[Any, Any]] = [
    (str, 5), (str, None), (str, NOON), (str, Decimal(1)), (int, "5"), (int, True), (int, 0.5),
    (float, "a"),
    (float, True), (bool, 1), (type(None), 0), (bytes, "a"), (datetime, "2024-01-01T12:00:00Z"),
    (Color, "red"), (Order, Payment()), (Order, {"number": 1}), (Order, Order), (Point, Order()),
    (str | None, 5), (int | str, 0.5), (list[int], ["a"]), (dict[str, int], {"a": "b"}),
    (tuple[int, str], (1,)), (Annotated[int, msgspec.Meta(ge=0)], -1), (Literal["a"], "b"),
    (UserId, "a"), (Order | None, Payment()), (list[Order], [1]), (list[int] | str, ["a"]),
]  # fmt: skip


class Say(Computation[Item, None]):
    """Produces one value, whatever it is given."""

    def __init__(self, stream: Stream[Any], value: object) -> None:
        self.writes = (stream,)
        self._value = value

    async def process_record(self, record: Record[Item], ctx: Context[None]) -> None:
        ctx.produce(self.writes[0], self._value)


class Read(Computation[Any, None]):
    """Reads, and that is all."""

    async def process_record(self, record: Record[Any], ctx: Context[None]) -> None:
        pass


def saying(value_type: Any, value: object, **options: Any) -> tuple[Pipeline, Stream[Any]]:
    out: Stream[Any] = Stream("out", value_type)
    pipeline = Pipeline("saying", settings=QUICK)
    pipeline.inject(ITEMS, script(ITEMS, items(1)), timestamp=time_of)
    pipeline.add(Say(out, value), ITEMS.by(key_of), **options)
    return pipeline, out


def as_text(value: object) -> Word:
    return Word(str(value))


def alone(pipeline: Pipeline, out: Stream[Any]) -> None:
    """Nothing reads it."""


def read(pipeline: Pipeline, out: Stream[Any]) -> None:
    pipeline.add(Read(), out.by(str))


def into(sink: Sink, row: Callable[[Any], Any] | None = None) -> Callable[..., None]:
    def attach(pipeline: Pipeline, out: Stream[Any]) -> None:
        pipeline.sink(out, sink, row=row)

    return attach


WAYS = {
    "nowhere": alone,
    "a reader": read,
    "discarded": into(Discard()),
    "printed": into(Console()),
    "a table": into(Table("words", Word), row=as_text),
    "a table of its own step": into(Table("words", Word, key=("word",)), row=as_text),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("productions", ["strong", "weak"])
async def test_a_value_of_another_type_is_refused_wherever_it_would_go(
    way: str, productions: Productions
) -> None:
    pipeline, out = saying(str, 5, productions=productions)
    WAYS[way](pipeline, out)
    world = World(pipeline)
    with pytest.raises(UserCodeError, match=r"stream 'out' takes values of type str, not int: 5"):
        await world.run()
    await world.close()


@pytest.mark.parametrize(("value_type", "value"), WRONG, ids=repr)
@pytest.mark.parametrize("way", ["nowhere", "a reader", "a table"])
async def test_values_of_all_kinds_are_refused(value_type: Any, value: object, way: str) -> None:
    pipeline, out = saying(value_type, value)
    WAYS[way](pipeline, out)
    world = World(pipeline)
    with pytest.raises(UserCodeError, match="stream 'out'"):
        await world.run()
    await world.close()


@pytest.mark.parametrize(("value_type", "value"), GOOD, ids=repr)
@pytest.mark.parametrize("way", ["nowhere", "a reader", "a table"])
async def test_values_of_the_type_pass(value_type: Any, value: object, way: str) -> None:
    pipeline, out = saying(value_type, value)
    WAYS[way](pipeline, out)
    world = World(pipeline)
    await world.run()
    await world.close()


async def test_a_harness_refuses_fields_of_another_type_where_they_are_produced() -> None:
    pipeline, out = saying(Word, Word(5))  # type: ignore[arg-type]
    async with Harness(pipeline) as harness:
        with pytest.raises(UserCodeError, match=r"Word\(word=5\) is not a value of type Word"):
            await harness.inject(ITEMS, *items(1))
        assert harness.produced(out) == []


async def test_a_forgotten_await_is_named() -> None:
    async def fetch_word() -> str:
        return "word"

    pipeline, _ = saying(str, fetch_word())
    world = World(pipeline)
    with pytest.raises(
        UserCodeError, match=r'Did you forget "await" before .*fetch_word\(\.\.\.\)'
    ):
        await world.run()
    await world.close()


def test_the_class_of_a_value_tells_for_plain_types_only() -> None:
    assert Codec(str, what="x").classes == {str}
    assert Codec(Box[int], what="x").classes == {Box}
    assert Codec(Order | None, what="x").classes == {Order, type(None)}
    assert Codec(list[int], what="x").classes == frozenset()
    assert Codec(Annotated[int, msgspec.Meta(ge=0)], what="x").classes == frozenset()


class Measured(msgspec.Struct):
    word: str
    number: float | None = None
    more: dict[str, float] = msgspec.field(default_factory=dict)


class Reading(msgspec.Struct):
    word: str
    number: float | None = None


NAN, INFINITY = float("nan"), float("inf")


@pytest.mark.parametrize(
    "way",
    [*(way for way in WAYS if way != "nowhere"), "its own table", "its own table, keyed", "files"],
)
@pytest.mark.parametrize("number", [NAN, INFINITY])
async def test_no_value_of_a_stream_is_nan_or_infinite_wherever_it_goes(
    way: str, number: float, tmp_path: Path
) -> None:
    ways = {
        **WAYS,
        "its own table": into(Table("readings", Reading)),
        "its own table, keyed": into(Table("readings", Reading, key=("word",))),
        "files": into(JsonLinesFiles(tmp_path), row=as_text),
    }
    pipeline, out = saying(Reading, Reading("a", number))
    ways[way](pipeline, out)
    world = World(pipeline)
    with pytest.raises(UserCodeError, match=f"stream 'out': JSON cannot hold {number}"):
        await world.run()
    await world.close()


async def test_a_row_may_hold_nan_in_a_column_of_floats_and_nowhere_else(tmp_path: Path) -> None:
    async def run(sink: Sink, row: Callable[[Any], Any]) -> World:
        pipeline, out = saying(Word, Word("a"))
        pipeline.sink(out, sink, row=row)
        world = World(pipeline)
        try:
            await world.run()
        finally:
            await world.close()
        return world

    world = await run(Table("readings", Reading), lambda _: Reading("a", NAN))
    ((_, number),) = world.rows("readings")
    assert number != number
    with pytest.raises(
        UserCodeError, match=r"column 'more' of table 'measured': JSON cannot hold nan"
    ):
        await run(Table("measured", Measured), lambda _: Measured("a", None, {"x": NAN}))
    with pytest.raises(UserCodeError, match=r"a row of stream 'out.*JSON cannot hold inf"):
        await run(JsonLinesFiles(tmp_path), lambda _: {"x": INFINITY})


async def test_an_absent_number_is_none() -> None:
    pipeline, out = saying(Reading, Reading("a", None))
    pipeline.sink(out, Table("readings", Reading))
    world = World(pipeline)
    await world.run()
    assert world.rows("readings") == [("a", None)]
    await world.close()
