"""Q1, currency conversion: every bid with its price in another currency.

The rate and the product are decimal numbers, exact with three decimal places.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from decimal import Decimal

import msgspec

from examples.nexmark.model import Bid
from examples.nexmark.options import Options
from examples.nexmark.q0 import by_auction
from examples.nexmark.sources import BIDS, inject
from millwheel import Pipeline, Stream, Table
from millwheel.computations import FlatMap

RATE = Decimal("0.908")


class ConvertedBid(msgspec.Struct, frozen=True):
    """A row of `q1`."""

    auction: int
    bidder: int
    price: Decimal
    date_time: datetime
    extra: str


CONVERTED = Stream("converted", ConvertedBid)


def convert(bid: Bid) -> Iterable[ConvertedBid]:
    """The bid with its price in the other currency."""
    yield ConvertedBid(bid.auction, bid.bidder, bid.price * RATE, bid.date_time, bid.extra)


def build(options: Options) -> Pipeline:
    """Converted bids into the table ``q1``."""
    pipeline = Pipeline("nexmark_q1")
    inject(pipeline, options, BIDS)
    pipeline.add(FlatMap(convert, to=CONVERTED), BIDS.by(by_auction))
    pipeline.sink(CONVERTED, Table("q1", ConvertedBid))
    return pipeline


def pipeline() -> Pipeline:
    """Q1 with options from the environment."""
    return build(Options.from_environment())
