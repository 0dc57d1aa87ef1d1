"""A timer that sets itself again keeps a run from its end: a warning names its computation."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import msgspec
from structlog.testing import capture_logs

from millwheel import Computation, Context, Pipeline, Record, Stream, Table, Timer
from millwheel.runtime.engine import Engine
from millwheel.runtime.environment import Options
from millwheel.runtime.process.load import FREE_OF_CHARGE
from millwheel.services.hosting import AfterInput
from millwheel.store.memory import MemoryStore
from millwheel.testing.script import Script
from tests.support.pipelines import QUICK, script
from tests.support.values import ITEMS, Item, items, key_of, time_of
from tests.support.worlds import TURNS

BEATS = Stream("beats", Item)
HOUR = timedelta(hours=1)


class Beats(msgspec.Struct):
    fired: int = 0


class Heartbeat(Computation[Item, Beats]):
    writes = (BEATS,)

    def __init__(self, most: int) -> None:
        self._most = most

    async def process_record(self, record: Record[Item], ctx: Context[Beats]) -> None:
        ctx.set_timer(record.timestamp + HOUR)

    async def process_timer(self, timer: Timer, ctx: Context[Beats]) -> None:
        ctx.state.fired += 1
        if ctx.state.fired < self._most:
            ctx.set_timer(timer.at + HOUR)


def beating(most: int) -> tuple[Pipeline, Script]:
    source = script(ITEMS, items(1))
    pipeline = Pipeline("beating", settings=QUICK)
    pipeline.inject(ITEMS, source, timestamp=time_of)
    pipeline.add(Heartbeat(most), ITEMS.by(key_of), name="heartbeat")
    pipeline.sink(BEATS, Table("beats", Item))
    return pipeline, source


async def warnings(most: int, *, keep_open: bool = False) -> tuple[list[object], bool]:
    """The computations of each warning, of three looks amid the run; and whether the run has
    ended."""
    pipeline, source = beating(most)
    source.end()
    engine = Engine(
        pipeline,
        MemoryStore("beating"),
        options=Options(keep_open=keep_open),
        process=FREE_OF_CHARGE,
    )
    look = AfterInput(engine, engine.clock, period=10.0)
    with capture_logs() as logs:
        await engine.start()
        running = asyncio.create_task(engine.run())
        for fired in (50, 100, 150):
            for _ in range(TURNS):
                if engine.processed >= fired or running.done():
                    break
                await asyncio.sleep(0)
            await look.run_once()
        has_ended = running.done()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await engine.stop()
    found = [log for log in logs if log["event"] == "timers_after_the_input"]
    assert all("--keep-open" in log["what_to_do"] and log["fired"] > 0 for log in found)
    return [log["computations"] for log in found], has_ended


async def test_a_timer_that_sets_itself_for_ever_is_named() -> None:
    assert await warnings(1_000_000) == ([["heartbeat"], ["heartbeat"]], False)


async def test_a_run_that_ends_is_not_warned_of() -> None:
    assert await warnings(20) == ([], True)


async def test_with_event_time_kept_open_such_a_run_ends() -> None:
    assert await warnings(1_000_000, keep_open=True) == ([], True)
