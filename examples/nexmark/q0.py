"""Q0, pass through: every bid, unchanged. It measures the cost of the engine itself."""

from __future__ import annotations

from collections.abc import Iterable

from examples.nexmark.model import Bid
from examples.nexmark.options import Options
from examples.nexmark.sources import BIDS, inject
from millwheel import Pipeline, Stream, Table
from millwheel.computations import FlatMap

PASSED = Stream("passed", Bid)


def same(bid: Bid) -> Iterable[Bid]:
    """The unchanged bid."""
    yield bid


def by_auction(bid: Bid) -> int:
    """The auction of a bid, as the key."""
    return bid.auction


def build(options: Options) -> Pipeline:
    """Bids into the table ``q0``."""
    pipeline = Pipeline("nexmark_q0")
    inject(pipeline, options, BIDS)
    pipeline.add(FlatMap(same, to=PASSED), BIDS.by(by_auction))
    pipeline.sink(PASSED, Table("q0", Bid))
    return pipeline


def pipeline() -> Pipeline:
    """Q0 with options from the environment."""
    return build(Options.from_environment())
