"""Small pipelines over items: counted, done with as a test says, from one source or several."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from datetime import timedelta
from typing import Any

import msgspec

from millwheel import (
    Computation,
    Context,
    ListState,
    MapState,
    Pipeline,
    Record,
    Settings,
    Stream,
    Table,
    Timer,
)
from millwheel.sources import Partition
from millwheel.testing import inject
from millwheel.testing.script import Script, ScriptStep
from tests.support.values import ITEMS, TALLY, Count, Counted, Item, key_of, time_of

QUICK = Settings(intervals=1, idle_commit_seconds=0.0, watermark_commit_seconds=0.0)


class Tally(Computation[Item, Count]):
    """Counts the items of each key, and passes each on with its count."""

    writes = (TALLY,)

    async def process_record(self, record: Record[Item], ctx: Context[Count]) -> None:
        ctx.state.count += 1
        item = record.value
        ctx.produce(TALLY, Counted(item.key, item.number, ctx.state.count))


class Kept(msgspec.Struct):
    """State of every kind."""

    count: int = 0
    numbers: list[int] = msgspec.field(default_factory=list)
    marks: MapState[str, int] = msgspec.field(default_factory=MapState)
    queue: ListState[int] = msgspec.field(default_factory=ListState)


Doing = Callable[[Record[Item], Context[Kept]], Awaitable[None]]

Ringing = Callable[[Timer, Context[Kept]], Awaitable[None]]


class Do(Computation[Item, Kept]):
    """Whatever a test wants done with each item and timer."""

    writes = (TALLY,)

    def __init__(self, do: Doing, ring: Ringing | None = None) -> None:
        self._do = do
        self._ring = ring

    async def process_record(self, record: Record[Item], ctx: Context[Kept]) -> None:
        await self._do(record, ctx)

    async def process_timer(self, timer: Timer, ctx: Context[Kept]) -> None:
        assert self._ring is not None
        await self._ring(timer, ctx)


def produce(ctx: Context[Kept], number: int, count: int = 0) -> None:
    """One row for the table `out`."""
    ctx.produce(TALLY, Counted(str(ctx.key), number, count))


class Broken(Exception):
    """User code that fails on purpose."""


def script(stream: Stream[Any], values: Iterable[Any], name: str = "items") -> Script:
    """A source that gives `values`; a `Step` among them is taken as it is."""
    return Script(name, [v if isinstance(v, ScriptStep) else inject(stream, v) for v in values])


def tally_pipeline(source: Script, settings: Settings = QUICK, **options: Any) -> Pipeline:
    """Items are counted per key, and what comes out is kept in the table `out`."""
    pipeline = Pipeline("tally", settings=settings)
    pipeline.inject(ITEMS, source, timestamp=time_of)
    pipeline.add(Tally(), ITEMS.by(key_of), **options)
    pipeline.sink(TALLY, Table("out", Counted, numbered=True))
    return pipeline


def doing(
    source: Script | Iterable[Any],
    do: Doing,
    ring: Ringing | None = None,
    *,
    settings: Settings = QUICK,
    lateness: float = 0,
    **options: Any,
) -> Pipeline:
    """Items to `do`, and what it produces to the table `out`."""
    if not isinstance(source, Script):
        source = script(ITEMS, source)
    pipeline = Pipeline("doing", settings=settings)
    pipeline.inject(ITEMS, source, timestamp=time_of, lateness=timedelta(seconds=lateness))
    pipeline.add(Do(do, ring), ITEMS.by(key_of), **options)
    pipeline.sink(TALLY, Table("out", Counted, numbered=True))
    return pipeline


class Quiet(Computation[Item, None]):
    async def process_record(self, record: Record[Item], ctx: Context[None]) -> None:
        pass


def two_sources(first: Any, second: Any, **options: Any) -> Pipeline:
    pipeline = Pipeline("two", settings=QUICK)
    for number, source in enumerate((first, second)):
        pipeline.inject(ITEMS, source, timestamp=time_of, name=f"source_{number}", **options)
    pipeline.add(Tally(), ITEMS.by(key_of))
    pipeline.sink(TALLY, Table("out", Counted, numbered=True))
    return pipeline


class Parts:
    """A source of several partitions, all of them expected from the beginning."""

    def __init__(self, *scripts: Script) -> None:
        self.scripts = scripts

    bounded = True

    def partitions(self) -> list[Partition]:
        return list(self.scripts)

    def describe(self) -> dict[str, Any]:
        return {"parts": [script.identity for script in self.scripts]}
