"""Q5, hot items: the auctions with the most bids, in windows of 10 s that begin every 5 s.

If several auctions have the most bids, all of them are in the result. Half of all bids go to one
auction. Bids are counted before auctions are compared, so that the single key that compares all
auctions gets one pane per auction and window. The timestamp of each pane is its window's last
microsecond, so that all panes within one span of 5 s belong to one window.

In the published SQL a window begins every 2 s: the pipeline ``q5_sql`` does so, with a table of
that name.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any

import msgspec

from examples.nexmark.leading import leading
from examples.nexmark.options import Options
from examples.nexmark.q0 import by_auction
from examples.nexmark.sources import BIDS, LATE_BIDS, inject, keep_late
from millwheel import Pipeline, Stream, Table
from millwheel.computations import FlatMap, Windowed, count
from millwheel.windows import Pane, Sliding, Tumbling

SIZE = timedelta(seconds=10)
SLIDE = timedelta(seconds=5)
SQL_SLIDE = timedelta(seconds=2)


class HotItem(msgspec.Struct, frozen=True):
    """A row of `q5`: an auction with the most bids of its window."""

    auction: int
    window_start: datetime
    window_end: datetime
    bids: int


COUNTS = Stream("counts", Pane[int])
HOTTEST = Stream("hottest", Pane[list[Pane[int]]])
HOT_ITEMS = Stream("hot_items", HotItem)

most_bids = leading(lambda counted: counted.value, Pane[int])


def together(pane: Pane[Any]) -> str:
    """A single key, by which all auctions are compared."""
    return "all"


def rows_of(hottest: Pane[list[Pane[int]]]) -> Iterable[HotItem]:
    """The rows of a window's hottest auctions."""
    for counted in hottest.value:
        assert isinstance(counted.key, int)
        yield HotItem(counted.key, counted.start, counted.end, counted.value)


def build(options: Options, slide: timedelta = SLIDE, table: str = "q5") -> Pipeline:
    """Hot auctions into the table ``q5``, or another one."""
    pipeline = Pipeline(f"nexmark_{table}")
    inject(pipeline, options, BIDS)
    counts = Windowed(Sliding(SIZE, slide), count, to=COUNTS, late=LATE_BIDS)
    pipeline.add(counts, BIDS.by(by_auction))
    pipeline.add(Windowed(Tumbling(slide), most_bids, to=HOTTEST), COUNTS.by(together))
    pipeline.add(FlatMap(rows_of, to=HOT_ITEMS), HOTTEST.by(together))
    pipeline.sink(HOT_ITEMS, Table(table, HotItem))
    keep_late(pipeline, LATE_BIDS)
    return pipeline


def pipeline() -> Pipeline:
    """Q5 with options from the environment."""
    return build(Options.from_environment())


def sql_pipeline() -> Pipeline:
    """Q5 with the windows of the published SQL, with options from the environment."""
    return build(Options.from_environment(), SQL_SLIDE, "q5_sql")
