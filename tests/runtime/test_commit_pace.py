"""When a lane commits: records wait for one commit at each stage, and watermarks are not in their
way.

On virtual time, where a commit takes a millisecond and everything else none.
"""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any

import pytest

from millwheel import Computation, Context, Pipeline, Record, Settings, Stream
from millwheel.core.model import to_micros
from millwheel.store.port.commit import Commit
from millwheel.testing import inject
from millwheel.testing.script import Script
from millwheel.testing.virtual_loop import new_loop
from tests.support.values import Item, at, key_of, time_of
from tests.support.worlds import World, read_on

COMMIT_SECONDS = 0.001
STAGES = 3


class Pass(Computation[Item, None]):
    """Passes on, and says when."""

    def __init__(self, to: Stream[Item]) -> None:
        self.writes = (to,)
        self._to = to

    async def process_record(self, record: Record[Item], ctx: Context[None]) -> None:
        ctx.produce(self._to, record.value)


@dataclass
class Paced:
    """Records that come one by one to a row of strong stages in one lane."""

    came: list[float] = field(default_factory=list)
    """When each record came."""
    left: list[float] = field(default_factory=list)
    """When what the last stage made of it was durable."""
    promised: list[tuple[float, int]] = field(default_factory=list)
    """When a low watermark of the last stage was durable, and which."""
    alone: int = 0
    """Commits without records."""

    async def run(self, seconds_between: float, records: int, **modes: Any) -> None:
        source = Script("items")
        streams = [Stream(f"items_{number}", Item) for number in range(STAGES + 1)]
        pipeline = Pipeline("paced", settings=Settings(intervals=1, idle_commit_seconds=0.05))
        pipeline.inject(streams[0], source, timestamp=time_of)
        for number in range(STAGES):
            stage = Pass(streams[number + 1])
            pipeline.add(stage, streams[number].by(key_of), name=f"stage_{number}", **modes)
        world = World(pipeline)
        world.on_durable = self._durable
        engine = await world.start()
        self._last = next(i for i in engine.intervals if i.step.name == f"stage_{STAGES - 1}")
        await asyncio.sleep(1)
        self.alone = 0
        for number in range(records):
            self.came.append(asyncio.get_running_loop().time())
            source.append(inject(streams[0], Item(f"key {number}", number, second=number)))
            read_on(engine)
            await asyncio.sleep(seconds_between)
        await asyncio.sleep(1)
        await engine.stop()

    async def _durable(self, commit: Commit) -> None:
        await asyncio.sleep(COMMIT_SECONDS)
        now = asyncio.get_running_loop().time()
        if not any(commit.seen.values()):
            self.alone += 1
        for link in commit.intervals:
            if link.interval_id == self._last.id:
                self.promised.append((now, link.low_watermark))
        self.left += [now for receiver in self._receivers(commit) if receiver == self._last.step.id]

    @staticmethod
    def _receivers(commit: Commit) -> list[int]:
        return [receiver for ids in commit.seen.values() for receiver, _ in ids]

    def lag(self) -> float:
        """Seconds from when a record came until the last stage promised its time; the median."""
        found = []
        for number, came in enumerate(self.came):
            due = to_micros(at(number))
            found.append(next(when for when, promise in self.promised if promise >= due) - came)
        return statistics.median(found)

    @property
    def latencies(self) -> list[float]:
        return [left - came for came, left in zip(self.came, self.left, strict=True)]


def run(work: Coroutine[Any, Any, None]) -> None:
    loop = new_loop()
    try:
        loop.run(work)
    finally:
        loop.close()


def watched(seconds_between: float, records: int = 300, **modes: Any) -> Paced:
    paced = Paced()
    run(paced.run(seconds_between, records, **modes))
    return paced


@pytest.mark.parametrize("seconds_between", [0.0004, 0.0013, 0.002])
def test_a_record_waits_for_one_commit_at_each_stage(seconds_between: float) -> None:
    """And before the first for one that is on the wire: what a commit sends joins the next."""
    paced = watched(seconds_between)
    assert len(paced.left) == 300
    assert statistics.median(paced.latencies) <= (STAGES + 1.25) * COMMIT_SECONDS
    assert max(paced.latencies) <= (STAGES + 3.25) * COMMIT_SECONDS


@pytest.mark.parametrize("seconds_between", [0.0004, 0.0013, 0.0037])
def test_watermarks_alone_leave_the_lane_free(seconds_between: float) -> None:
    """Records that are not stored leave promises behind, and those need a commit now and then."""
    paced = watched(seconds_between, productions="weak", exactly_once=False)
    assert 0 < paced.alone * COMMIT_SECONDS <= 0.5 * seconds_between * 300
    assert paced.lag() <= (STAGES + 1) * 0.005


def test_a_watermark_goes_through_a_graph_at_rest_without_a_pause() -> None:
    for paced in (watched(0.02), watched(0.02, productions="weak", exactly_once=False)):
        assert paced.lag() <= (STAGES + 1.25) * COMMIT_SECONDS
