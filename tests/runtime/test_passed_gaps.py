"""A gap behind the last row, which a reader has passed: no row speaks of it, and its position is
stored all the same."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from millwheel import Pipeline, Table
from millwheel.fetching import FetchingReader
from millwheel.sources import Row
from tests.support.pipelines import QUICK, Tally
from tests.support.values import ITEMS, TALLY, Counted, Item, key_of, time_of
from tests.support.worlds import World


class Log:
    """A log without end: rows, and numbers that are no rows (None)."""

    bounded = False
    identity = "log"

    def __init__(self) -> None:
        self.written: list[Item | None] = []
        self.opened: list[dict[str, Any] | None] = []

    def partitions(self) -> list[Any]:
        return [self]

    def describe(self) -> dict[str, Any]:
        return {}

    async def open(self, value_type: Any, position: dict[str, Any] | None) -> LogReader:
        self.opened.append(position)
        return LogReader(self, position["next"] if position else 0)


class LogReader(FetchingReader):
    def __init__(self, log: Log, first: int) -> None:
        super().__init__()
        self._log = log
        self._next = self._settled = first
        self._rows_end = 0

    async def fetch(self) -> Sequence[Row]:
        while True:
            first, self._next = self._next, len(self._log.written)
            rows = [
                Row(n, n, value)
                for n, value in enumerate(self._log.written[first:], first)
                if value is not None
            ]
            if rows:
                self._rows_end = rows[-1].offset + 1
                return rows
            if self._next > first:
                self.announce()
            self.found_none()
            await asyncio.sleep(0)

    def position(self, acknowledged: int) -> dict[str, Any]:
        passed = self._next if acknowledged >= self._rows_end else 0
        self._settled = max(self._settled, acknowledged, passed)
        return {"next": self._settled}


async def test_its_position_is_stored_without_a_row() -> None:
    log = Log()
    pipeline = Pipeline("gaps", settings=QUICK)
    pipeline.inject(ITEMS, log, timestamp=time_of)
    pipeline.add(Tally(), ITEMS.by(key_of))
    pipeline.sink(TALLY, Table("out", Counted, numbered=True))
    world = World(pipeline)
    engine = await world.start()
    log.written += [Item("a", 1), Item("a", 2)]
    await world.until(lambda: len(world.rows()) == 2, tick=0.05)

    def stored(next_: int) -> bool:
        found = [each.position for commit in world.commits for each in commit.intervals]
        return any(b'"next":%d' % next_ in position for position in found if position)

    await world.until(lambda: stored(2), tick=0.05)
    await world.turns(200, tick=0.05)
    log.written += [None, None]
    await world.turns(100, tick=0.05)
    assert stored(4)
    commits = len(world.commits)
    await world.turns(200, tick=0.05)
    assert len(world.commits) == commits, "it is stored once"
    await engine.stop()
    await world.start()
    assert log.opened == [None, {"next": 4}]
    log.written.append(Item("a", 3))
    await world.until(lambda: len(world.rows()) == 3, tick=0.05)
    await world.close()
