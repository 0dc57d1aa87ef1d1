"""Q12, processing time windows: the number of bids of each bidder in 10 s of *wall* time.

This is the only query with a result that depends on the time of the run. A bid counts in the window
in which it is processed, whatever its own time. The result of a window is produced when the clock
has passed it, or at the end of bounded input, so that a run does not wait for the clock. `Windowed`
uses event time, so this query has its own computation.
"""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec

from examples.nexmark.model import Bid
from examples.nexmark.options import Options
from examples.nexmark.q11 import by_bidder
from examples.nexmark.sources import BIDS, inject
from millwheel import Computation, Context, MapState, Pipeline, Record, Stream, Table, Timer
from millwheel.windows import Tumbling, instant, micros_of

WINDOWS = Tumbling(seconds=10)

END_OF_INPUT = datetime(9999, 12, 30, tzinfo=UTC)
"""A time that the watermark reaches only when no bid can follow."""


class BidderCount(msgspec.Struct, frozen=True):
    """A row of `q12`."""

    bidder: int
    window_start: datetime
    window_end: datetime
    bids: int


class Arrivals(msgspec.Struct):
    """Number of bids by the start of their window (µs); at most two are open, unless timers lag."""

    bids: MapState[int, int] = msgspec.field(default_factory=MapState)


BIDDER_COUNTS = Stream("bidder_counts", BidderCount)


class CountArrivals(Computation[Bid, Arrivals]):
    """Counts bids by wall time, and produces a count when its window is over."""

    writes = (BIDDER_COUNTS,)

    async def process_record(self, record: Record[Bid], ctx: Context[Arrivals]) -> None:
        window = WINDOWS.of(micros_of(ctx.now))
        before = await ctx.state.bids.get(window.start) or 0
        ctx.state.bids.put(window.start, before + 1)
        if not before:
            ctx.set_timer(instant(window.end), tag=str(window.start), kind="wall")
            ctx.set_timer(END_OF_INPUT)

    async def process_timer(self, timer: Timer, ctx: Context[Arrivals]) -> None:
        if timer.kind == "wall":
            starts = [int(timer.tag)]
        else:
            starts = [start async for start, _ in ctx.state.bids.items()]
        for start in starts:
            await self._send(start, ctx)

    async def _send(self, start: int, ctx: Context[Arrivals]) -> None:
        assert isinstance(ctx.key, int)
        bids = await ctx.state.bids.get(start)
        if bids is not None:
            end = WINDOWS.at(start).end
            ctx.produce(BIDDER_COUNTS, BidderCount(ctx.key, instant(start), instant(end), bids))
            ctx.state.bids.remove(start)
            ctx.cancel_timer(tag=str(start), kind="wall")


def build(options: Options) -> Pipeline:
    """Bids by the clock into the table ``q12``."""
    pipeline = Pipeline("nexmark_q12")
    inject(pipeline, options, BIDS)
    pipeline.add(CountArrivals(), BIDS.by(by_bidder))
    pipeline.sink(BIDDER_COUNTS, Table("q12", BidderCount))
    return pipeline


def pipeline() -> Pipeline:
    """Q12 with options from the environment."""
    return build(Options.from_environment())
