"""Windows of parked keys come out as without the failure, whenever it is mended, and whatever stops
meanwhile."""

from __future__ import annotations

import random
from datetime import datetime, timedelta
from typing import Any

import msgspec
import pytest

from millwheel import Park, Pipeline, Stream, Table
from millwheel.computations import Fold, Windowed
from millwheel.testing import advance, inject
from millwheel.testing.script import Script
from millwheel.windows import Pane, Session, Sliding, Tumbling
from tests.support.drawing import seeds
from tests.support.pipelines import QUICK
from tests.support.values import ITEMS, Item, at, key_of, time_of
from tests.support.worlds import World

BAD: set[int] = set()
SECONDS = 100
KEYS = "abc"

NUMBERS = Stream("numbers", Pane[list[int]])
TOTALS = Stream("totals", Pane[int])


class Row(msgspec.Struct):
    """One window of a key: its numbers in the order in which they were added."""

    key: str
    start: datetime
    end: datetime
    value: str


def add(numbers: list[int], item: Item) -> list[int]:
    if item.number in BAD:
        raise ValueError(f"{item.number} is bad")
    return [*numbers, item.number]


WINDOWS: dict[str, Any] = {
    "tumbling": Tumbling(timedelta(seconds=7)),
    "sliding": Sliding(timedelta(seconds=9), timedelta(seconds=3)),
    "sessions": Session(timedelta(seconds=3)),
}


def pipeline_of(source: Script, windows: str, park: Park) -> Pipeline:
    """The numbers of each window of a key, and their count in windows over all keys."""
    pipeline = Pipeline("windows", settings=QUICK)
    pipeline.inject(ITEMS, source, timestamp=time_of, lateness=timedelta(seconds=SECONDS))
    lists: Fold[Item, list[int], list[int]] = Fold(
        list, add, list, list[int], lambda one, other: one + other
    )
    pipeline.add(
        Windowed(WINDOWS[windows], lists, NUMBERS),
        ITEMS.by(key_of),
        name="lists",
        on_error=park,
    )
    count: Fold[Pane[list[int]], int, int] = Fold(
        int, lambda total, pane: total + len(pane.value), int, int, lambda one, other: one + other
    )
    pipeline.add(
        Windowed(Tumbling(timedelta(seconds=20)), count, TOTALS),
        NUMBERS.by(lambda pane: "all"),
        name="totals",
    )
    pipeline.sink(NUMBERS, Table("numbers", Row), row=row_of)
    pipeline.sink(TOTALS, Table("totals", Row), row=row_of)
    return pipeline


def row_of(pane: Pane[Any]) -> Row:
    return Row(str(pane.key), pane.start, pane.end, str(pane.value))


async def run(
    script: list[Any], windows: str, park: Park, chance: random.Random | None
) -> dict[str, list[Any]]:
    """The rows of both tables; with `chance`, keys are parked, retried and taken over at random."""
    source = Script("items")
    world = World(pipeline_of(source, windows, park))
    await world.start()
    for step in script:
        source.append(step)
        if chance is None:
            continue
        await world.turns(chance.choice([1, 5, 40]), tick=0.05)
        if chance.random() < 0.1:
            BAD.difference_update(chance.sample(sorted(BAD), len(BAD) // 2))
            retry(world)
        if chance.random() < 0.05:
            await world.engines[-1].kill()
            await world.start()
    BAD.clear()
    for _ in range(200):
        await world.turns(60, tick=0.05)
        if not world.store.dead_letters:
            break
        retry(world)
    assert world.store.dead_letters == []
    source.end()
    await world.turns(300, tick=0.05)
    failure = world.engines[-1].failure
    assert failure is None, failure
    await world.close()
    return {name: sorted(world.rows(name)) for name in ("numbers", "totals")}


def retry(world: World) -> None:
    """Ask for every failed record of every parked key again."""
    for letter in world.store.dead_letters:
        asked = world.store.asked_about(letter)
        if letter.parked == "failed" and not asked and letter.key is not None:
            world.store.ask("retry", "lists", letter.key.decode().strip('"'), letter=letter)


@pytest.mark.parametrize("seed", seeds(1, 20))
@pytest.mark.parametrize("windows", list(WINDOWS))
async def test_windows_of_parked_keys_are_as_without_the_failure(windows: str, seed: int) -> None:
    """Their own panes always; those downstream as well if the watermark is held."""
    chance = random.Random(seed * 7 + len(windows))
    script: list[Any] = []
    promised = 0.0
    numbers = 0
    for second in range(SECONDS):
        for _ in range(chance.choice([0, 0, 1, 1, 2])):
            numbers += 1
            late_by = chance.random() * (second - promised)
            script.append(inject(ITEMS, Item(chance.choice(KEYS), numbers, second - late_by)))
        if chance.random() < 0.2:
            promised = max(promised, second - chance.choice([0, 2, 10]))
            script.append(advance(ITEMS, at(promised)))
    BAD.clear()
    expected = await run(script, windows, Park(), None)
    for park in (Park(hold_watermark=True), Park(), Park(most_records=2)):
        BAD.update(chance.sample(range(1, numbers + 1), 6))
        found = await run(script, windows, park, chance)
        assert found["numbers"] == expected["numbers"]
        if park.hold_watermark:
            assert found["totals"] == expected["totals"]
