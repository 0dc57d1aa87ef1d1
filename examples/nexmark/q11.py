"""Q11, user sessions: how many bids each bidder made before a break of 10 s.

A session ends 10 s after its last bid; a bid just then begins the next one. Bids may come in any
order: one between two sessions that it is near enough to makes them one.
"""

from __future__ import annotations

from datetime import datetime, timedelta

import msgspec

from examples.nexmark.model import Bid
from examples.nexmark.options import Options
from examples.nexmark.sources import BIDS, LATE_BIDS, inject, keep_late
from millwheel import Pipeline, Stream, Table
from millwheel.computations import Windowed, count
from millwheel.windows import Pane, Session

GAP = timedelta(seconds=10)


class BidderSession(msgspec.Struct, frozen=True):
    """A row of `q11`; `session_end` is 10 s after the last bid."""

    bidder: int
    session_start: datetime
    session_end: datetime
    bids: int


SESSIONS = Stream("sessions", Pane[int])


def by_bidder(bid: Bid) -> int:
    """Sessions are a bidder's own."""
    return bid.bidder


def row_of(pane: Pane[int]) -> BidderSession:
    """A session that is over."""
    assert isinstance(pane.key, int)
    return BidderSession(pane.key, pane.start, pane.end, pane.value)


def build(options: Options) -> Pipeline:
    """Sessions into the table ``q11``."""
    pipeline = Pipeline("nexmark_q11")
    inject(pipeline, options, BIDS)
    sessions = Windowed(Session(GAP), count, to=SESSIONS, late=LATE_BIDS)
    pipeline.add(sessions, BIDS.by(by_bidder))
    pipeline.sink(SESSIONS, Table("q11", BidderSession), row=row_of)
    keep_late(pipeline, LATE_BIDS)
    return pipeline


def pipeline() -> Pipeline:
    """Q11 with options from the environment."""
    return build(Options.from_environment())
