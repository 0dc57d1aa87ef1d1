"""Legal parts of a pipeline that are probably mistakes."""

from __future__ import annotations

from typing import Any

from millwheel import Computation, Context, Discard, JsonLines, Pipeline, Record, Stream, Table
from millwheel.graph.doubts import Doubt, doubts
from tests.support.values import ITEMS, Item, key_of, time_of

OTHERS = Stream("others", Item)


class Counting(Computation[Item, None]):
    def __init__(self) -> None:
        self.number = 0
        self.keys: dict[str, int] = {}
        self.number += 1  # as a parameter of the class

    async def process_record(self, record: Record[Item], ctx: Context[None]) -> None:
        self.number += record.value.number
        self._note(record.value.key)
        number = 0
        number += 1

    def _note(self, key: str) -> None:
        self.keys[key] += 1


class Below(Counting):
    async def process_record(self, record: Record[Item], ctx: Context[None]) -> None:
        if self.number == 0:  # made once, as a client of a service
            self.number = 5
        record.value.number += 1  # type: ignore[misc]


def found(pipeline: Pipeline) -> list[Doubt]:
    return list(doubts(pipeline.nodes.values(), pipeline.sinks))


def made(*computations: Computation[Any, Any]) -> Pipeline:
    pipeline = Pipeline("made")
    for stream in (ITEMS, OTHERS):
        pipeline.inject(stream, JsonLines("none"), timestamp=time_of)
    for computation in computations:
        pipeline.add(computation, ITEMS.by(key_of))
    return pipeline


def test_an_attribute_that_a_class_adds_to() -> None:
    one, other = found(made(Counting()))
    assert {one.event, other.event} == {"attribute_of_process"}
    line = Counting.process_record.__code__.co_firstlineno + 1
    assert one.subject == {
        "computation": "counting",
        "at": f"{__file__}:{line} in process_record: self.number += record.value.number",
    }
    assert other.subject["at"].endswith("in _note: self.keys[key] += 1")


def test_attributes_that_are_set_and_those_of_records_are_no_counters() -> None:
    (doubt,) = found(made(Below()))
    assert doubt.subject["at"].endswith("in _note: self.keys[key] += 1")  # of the class above it


def test_a_table_with_a_key_that_several_streams_write() -> None:
    pipeline = made()
    with_key, without = Table("both", Item, key=("key",)), Table("appended", Item)
    pipeline.sink(ITEMS, with_key)
    pipeline.sink(ITEMS, with_key, row=lambda item: item)
    pipeline.sink(ITEMS, without)
    pipeline.sink(OTHERS, without)
    pipeline.sink(OTHERS, Discard())
    assert found(pipeline) == []
    pipeline.sink(OTHERS, with_key)
    (doubt,) = found(pipeline)
    assert (doubt.event, doubt.subject) == (
        "table_of_several_streams",
        {"table": "both", "streams": ["items", "others"]},
    )
