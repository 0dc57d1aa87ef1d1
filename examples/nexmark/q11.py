"""Q11, user sessions: the number of bids of each bidder before a break of 10 s.

A session ends 10 s after its last bid; a bid at exactly that time begins the next session. Bids may
arrive in any order: a bid between two sessions that is near enough to both joins them.
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
    """The bidder, as the key."""
    return bid.bidder


def row_of(pane: Pane[int]) -> BidderSession:
    """The row of a finished session."""
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
