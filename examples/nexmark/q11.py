"""Q11, user sessions: how many bids each bidder made before a break of 10 s.

A session ends 10 s after its last bid; a bid just then begins the next one. Bids may come in any
order: one between two sessions that it is near enough to makes them one.
"""

from __future__ import annotations

from datetime import datetime

import msgspec

from examples.nexmark.model import Bid
from examples.nexmark.options import Options
from examples.nexmark.sources import BIDS, inject
from examples.nexmark.windows import ONE_MICROSECOND
from examples.nexmark.windows import SIZE as GAP
from millwheel import Computation, Context, Pipeline, Record, Stream, Table, Timer


class BidderSession(msgspec.Struct, frozen=True):
    """A row of `q11`; `session_end` is 10 s after the last bid."""

    bidder: int
    session_start: datetime
    session_end: datetime
    bids: int


class Session(msgspec.Struct, frozen=True):
    """Bids that stand close together: ``[start, end)``."""

    start: datetime
    end: datetime
    bids: int


class Sessions(msgspec.Struct):
    """A bidder's sessions that may still grow; one as a rule, more where bids come out of order."""

    open: list[Session] = msgspec.field(default_factory=list)


BIDDER_SESSIONS = Stream("bidder_sessions", BidderSession)


class CountSessions(Computation[Bid, Sessions]):
    """Counts the bids of each session, and tells when it is over."""

    writes = (BIDDER_SESSIONS,)

    async def process_record(self, record: Record[Bid], ctx: Context[Sessions]) -> None:
        start = record.value.date_time
        merged, others = Session(start, start + GAP, 1), []
        for session in ctx.state.open:
            if session.start < merged.end and merged.start < session.end:
                merged = Session(
                    min(session.start, merged.start),
                    max(session.end, merged.end),
                    session.bids + merged.bids,
                )
            else:
                others.append(session)
        if merged.end <= ctx.low_watermark:
            ctx.count("late_dropped")
            return
        ctx.state.open = sorted([*others, merged], key=lambda session: session.start)
        self._wait(ctx)

    async def process_timer(self, timer: Timer, ctx: Context[Sessions]) -> None:
        over = [session for session in ctx.state.open if session.end <= ctx.low_watermark]
        for session in over:
            assert isinstance(ctx.key, int)
            ctx.produce(
                BIDDER_SESSIONS, BidderSession(ctx.key, session.start, session.end, session.bids)
            )
        ctx.state.open = ctx.state.open[len(over) :]
        self._wait(ctx)

    def _wait(self, ctx: Context[Sessions]) -> None:
        if ctx.state.open:
            ctx.set_timer(ctx.state.open[0].end - ONE_MICROSECOND)


def by_bidder(bid: Bid) -> int:
    """Sessions are a bidder's own."""
    return bid.bidder


def build(options: Options) -> Pipeline:
    """Sessions into the table ``q11``."""
    pipeline = Pipeline("nexmark_q11")
    inject(pipeline, options, BIDS)
    pipeline.add(CountSessions(), BIDS.by(by_bidder))
    pipeline.sink(BIDDER_SESSIONS, Table("q11", BidderSession))
    return pipeline


def pipeline() -> Pipeline:
    """Q11 with options from the environment."""
    return build(Options.from_environment())
