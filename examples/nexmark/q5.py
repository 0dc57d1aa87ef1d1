"""Q5, hot items: the auctions with the most bids, in windows of 10 s that begin every 5 s.

Where several have as many, all of them are told. Bids are counted by tumbling windows of 5 s first,
so that a bid is handled once, not once per window that it is in; and since half of all bids go to
one auction, little remains for the step that compares all auctions of a window.

The published SQL begins a window every 2 s: the pipeline ``q5_sql``, into a table of that name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime, timedelta

import msgspec

from examples.nexmark.model import from_milliseconds, to_milliseconds
from examples.nexmark.options import Options
from examples.nexmark.q0 import by_auction
from examples.nexmark.sources import BIDS, inject
from examples.nexmark.windows import PERIOD, SIZE, last_of, starts_of
from millwheel import Computation, Context, MapState, Pipeline, Record, Stream, Table, Timer
from millwheel.computations import FlatMap, Windowed, count
from millwheel.windows import Pane, Tumbling

SQL_PERIOD = timedelta(seconds=2)


class HotItem(msgspec.Struct, frozen=True):
    """A row of `q5`: an auction that no other had more bids than."""

    auction: int
    window_start: datetime
    window_end: datetime
    bids: int


class Counted(msgspec.Struct, frozen=True):
    """Some bids of a window."""

    window_start: datetime
    auction: int
    bids: int


class Race(msgspec.Struct):
    """The bids of one window."""

    begun: bool = False
    bids: MapState[int, int] = msgspec.field(default_factory=MapState)
    """By auction."""


COUNTS = Stream("counts", Pane[int])
COUNTED = Stream("counted", Counted)
HOT_ITEMS = Stream("hot_items", HotItem)


def into_windows(period: timedelta) -> Callable[[Pane[int]], Iterable[Counted]]:
    """The bids of a period, in each of the sliding windows that it is part of."""
    assert SIZE % period == timedelta(0), "a window is made of whole periods"

    def spread(pane: Pane[int]) -> Iterable[Counted]:
        assert isinstance(pane.key, int)
        for start in starts_of(pane.start, period):
            yield Counted(start, pane.key, pane.value)

    return spread


class FindHottest(Computation[Counted, Race]):
    """Tells who is ahead when the window is over."""

    writes = (HOT_ITEMS,)

    async def process_record(self, record: Record[Counted], ctx: Context[Race]) -> None:
        counted, race = record.value, ctx.state
        if not race.begun:
            race.begun = True
            ctx.set_timer(last_of(counted.window_start))
        before = await race.bids.get(counted.auction) or 0
        race.bids.put(counted.auction, before + counted.bids)

    async def process_timer(self, timer: Timer, ctx: Context[Race]) -> None:
        assert isinstance(ctx.key, int)
        start, race = from_milliseconds(ctx.key), ctx.state
        counts = {auction: bids async for auction, bids in race.bids.items()}
        most = max(counts.values())
        for auction, bids in sorted(counts.items()):
            if bids == most:
                ctx.produce(HOT_ITEMS, HotItem(auction, start, start + SIZE, bids))
        await race.bids.clear()
        race.begun = False


def auction_of(pane: Pane[int]) -> int:
    """Spreads the work; nothing is kept for a key."""
    assert isinstance(pane.key, int)
    return pane.key


def by_window(counted: Counted) -> int:
    """All auctions of a window are compared."""
    return to_milliseconds(counted.window_start)


def build(options: Options, period: timedelta = PERIOD, table: str = "q5") -> Pipeline:
    """Hot auctions into the table ``q5``, or another."""
    pipeline = Pipeline(f"nexmark_{table}")
    inject(pipeline, options, BIDS)
    pipeline.add(Windowed(Tumbling(period), count, to=COUNTS), BIDS.by(by_auction))
    pipeline.add(FlatMap(into_windows(period), to=COUNTED), COUNTS.by(auction_of))
    pipeline.add(FindHottest(), COUNTED.by(by_window))
    pipeline.sink(HOT_ITEMS, Table(table, HotItem))
    return pipeline


def pipeline() -> Pipeline:
    """Q5 with options from the environment."""
    return build(Options.from_environment())


def sql_pipeline() -> Pipeline:
    """Q5 as the published SQL has it, with options from the environment."""
    return build(Options.from_environment(), SQL_PERIOD, "q5_sql")
