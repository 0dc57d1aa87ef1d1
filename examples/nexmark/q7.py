"""Q7, highest bid: the bids with the highest price of each window of 10 s.

Windows include their start and exclude their end, so that a bid on the border is in one window. If
several bids have the highest price, all of them are in the result. The highest bids of each auction
are found first, so that the single key that compares them has little work.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

import msgspec

from examples.nexmark.leading import leading
from examples.nexmark.model import Bid
from examples.nexmark.options import Options
from examples.nexmark.q0 import by_auction
from examples.nexmark.q5 import together
from examples.nexmark.sources import BIDS, LATE_BIDS, inject, keep_late
from millwheel import Pipeline, Stream, Table
from millwheel.computations import FlatMap, Windowed
from millwheel.windows import Pane, Tumbling

WINDOWS = Tumbling(seconds=10)


class HighestBid(msgspec.Struct, frozen=True):
    """A row of `q7`."""

    window_start: datetime
    auction: int
    bidder: int
    price: int
    date_time: datetime
    extra: str


BEST_BIDS = Stream("best_bids", Pane[list[Bid]])
HIGHEST_BIDS = Stream("highest_bids", Pane[list[Pane[list[Bid]]]])
ROWS = Stream("rows", HighestBid)

of_auction = leading(lambda bid: bid.price, Bid)
of_all = leading(lambda best: best.value[0].price, Pane[list[Bid]])


def rows_of(highest: Pane[list[Pane[list[Bid]]]]) -> Iterable[HighestBid]:
    """The rows of a window's highest bids."""
    for best in highest.value:
        for bid in best.value:
            yield HighestBid(
                best.start, bid.auction, bid.bidder, bid.price, bid.date_time, bid.extra
            )


def build(options: Options) -> Pipeline:
    """The highest bids into the table ``q7``."""
    pipeline = Pipeline("nexmark_q7")
    inject(pipeline, options, BIDS)
    best = Windowed(WINDOWS, of_auction, to=BEST_BIDS, late=LATE_BIDS)
    pipeline.add(best, BIDS.by(by_auction))
    pipeline.add(Windowed(WINDOWS, of_all, to=HIGHEST_BIDS), BEST_BIDS.by(together))
    pipeline.add(FlatMap(rows_of, to=ROWS), HIGHEST_BIDS.by(together))
    pipeline.sink(ROWS, Table("q7", HighestBid))
    keep_late(pipeline, LATE_BIDS)
    return pipeline


def pipeline() -> Pipeline:
    """Q7 with options from the environment."""
    return build(Options.from_environment())
