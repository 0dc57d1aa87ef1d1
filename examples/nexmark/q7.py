"""Q7, highest bid: the bids with the highest price of each window of 10 s.

Windows are closed at the start and open at the end, so a bid on the border is in one of them.
Where several bids have the highest price, all of them are told. The highest of each auction are
found first, so that comparing them all is little work for one key.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

import msgspec

from examples.nexmark.model import Bid
from examples.nexmark.options import Options
from examples.nexmark.q0 import by_auction
from examples.nexmark.sources import BIDS, inject
from examples.nexmark.windows import SIZE
from millwheel import Pipeline, Stream, Table
from millwheel.computations import FlatMap, Fold, Windowed
from millwheel.windows import Pane, Tumbling

Bids = tuple[Bid, ...]
"""Bids of one price."""


class HighestBid(msgspec.Struct, frozen=True):
    """A row of `q7`."""

    window_start: datetime
    auction: int
    bidder: int
    price: int
    date_time: datetime
    extra: str


BEST_BIDS = Stream("best_bids", Pane[Bids])
HIGHEST_BIDS = Stream("highest_bids", Pane[Bids])
ROWS = Stream("rows", HighestBid)


def higher(best: Bids, more: Bids) -> Bids:
    """Those with the higher price, or all if it is the same."""
    if not best or not more:
        return best or more
    if best[0].price == more[0].price:
        return best + more
    return max(best, more, key=lambda bids: bids[0].price)


def _unchanged(best: Bids) -> Bids:
    return best


of_bids: Fold[Bid, Bids, Bids] = Fold(
    tuple, lambda best, bid: higher(best, (bid,)), _unchanged, Bids
)
of_panes: Fold[Pane[Bids], Bids, Bids] = Fold(
    tuple, lambda best, pane: higher(best, pane.value), _unchanged, Bids
)


def rows_of(pane: Pane[Bids]) -> Iterable[HighestBid]:
    """Each of the window's highest bids."""
    for bid in pane.value:
        yield HighestBid(pane.start, bid.auction, bid.bidder, bid.price, bid.date_time, bid.extra)


def together(pane: Pane[Bids]) -> str:
    """One key: all auctions are compared."""
    return "all"


def build(options: Options) -> Pipeline:
    """The highest bids into the table ``q7``."""
    pipeline = Pipeline("nexmark_q7")
    inject(pipeline, options, BIDS)
    pipeline.add(Windowed(Tumbling(SIZE), of_bids, to=BEST_BIDS), BIDS.by(by_auction))
    pipeline.add(Windowed(Tumbling(SIZE), of_panes, to=HIGHEST_BIDS), BEST_BIDS.by(together))
    pipeline.add(FlatMap(rows_of, to=ROWS), HIGHEST_BIDS.by(together))
    pipeline.sink(ROWS, Table("q7", HighestBid))
    return pipeline


def pipeline() -> Pipeline:
    """Q7 with options from the environment."""
    return build(Options.from_environment())
