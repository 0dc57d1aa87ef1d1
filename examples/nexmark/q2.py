"""Q2, selection: the prices bid on some auctions."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from examples.nexmark.model import Bid
from examples.nexmark.options import Options
from examples.nexmark.q0 import by_auction
from examples.nexmark.sources import BIDS, inject
from millwheel import Pipeline, Stream, Table
from millwheel.computations import FlatMap

EVERY = 123
"""Auctions with an id that is a multiple of it are selected."""


class SelectedBid(msgspec.Struct, frozen=True):
    """A row of `q2`."""

    auction: int
    price: int


SELECTED = Stream("selected", SelectedBid)


def select(bid: Bid) -> Iterable[SelectedBid]:
    """The bid, if its auction is selected."""
    if bid.auction % EVERY == 0:
        yield SelectedBid(bid.auction, bid.price)


def build(options: Options) -> Pipeline:
    """Selected bids into the table ``q2``."""
    pipeline = Pipeline("nexmark_q2")
    inject(pipeline, options, BIDS)
    pipeline.add(FlatMap(select, to=SELECTED), BIDS.by(by_auction))
    pipeline.sink(SELECTED, Table("q2", SelectedBid))
    return pipeline


def pipeline() -> Pipeline:
    """Q2 with options from the environment."""
    return build(Options.from_environment())
