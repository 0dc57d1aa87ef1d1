"""Steps of the engine that take a chunk as it is: the same effects as record by record."""

from __future__ import annotations

import pytest

from millwheel import Context, Pipeline, Record, Table
from millwheel.core.chunk import Chunk
from millwheel.core.chunk_code import SendAll
from millwheel.graph.relays import Relay
from millwheel.testing.script import Script
from tests.support.pipelines import QUICK, Do, Kept, produce, script
from tests.support.values import ITEMS, TALLY, Counted, Item, items, key_of, time_of
from tests.support.worlds import World


async def note(record: Record[Item], ctx: Context[Kept]) -> None:
    produce(ctx, record.value.number)


class RefusesOnce:
    """A row function that refuses a number the first time."""

    def __init__(self, *numbers: int) -> None:
        self.left = set(numbers)

    def __call__(self, item: Item) -> Item:
        if item.number in self.left:
            self.left.remove(item.number)
            raise ValueError(f"{item.number} is refused")
        return item


def pipeline_of(source: Script, *refused: int) -> Pipeline:
    """Items with ids, which a relay writes into a table and passes on."""
    pipeline = Pipeline("relayed", settings=QUICK)
    pipeline.inject(ITEMS, source, timestamp=time_of, id=lambda item: item.number)
    pipeline.sink(ITEMS, Table("arrived", Item), row=RefusesOnce(*refused))
    pipeline.add(Do(note), ITEMS.by(key_of))
    pipeline.sink(TALLY, Table("out", Counted, numbered=True))
    return pipeline


def counted_calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of records of the chunks that relays are given."""
    sizes: list[int] = []
    former = Relay.process_chunk

    def process_chunk(self: Relay, chunk: Chunk, send: SendAll) -> None:
        sizes.append(len(chunk))
        former(self, chunk, send)

    monkeypatch.setattr(Relay, "process_chunk", process_chunk)
    return sizes


async def test_a_relay_takes_its_chunk_in_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = counted_calls(monkeypatch)
    world = World(pipeline_of(script(ITEMS, items(1, 2, 2, 4, 5))))
    await world.run()
    assert world.numbers() == [1, 2, 4, 5]
    world = World(pipeline_of(script(ITEMS, items(1, 2, 4, 5))))
    await world.run()
    assert sizes[-1] == 4
    assert world.numbers() == [1, 2, 4, 5]
    await world.close()


async def test_a_chunk_that_fails_has_no_effect_before_its_records_run_alone() -> None:
    world = World(pipeline_of(script(ITEMS, items(1, 2, 3, 4, 5)), 3))
    await world.run()
    assert world.numbers() == [1, 2, 3, 4, 5]
    assert [row[1] for row in world.rows("arrived")] == [1, 2, 3, 4, 5]
    await world.close()
