"""Q9, winning bids: the price and the buyer of each auction.

The winner is the highest bid that reaches the reserve and is before the auction expires; of equal
prices the earliest, and of bids at the same time the one of the bidder with the lowest id. It is
decided at ``expires``, which is the winner's timestamp. An auction without a sufficient bid has no
result.

The generator lets people bid on auctions that are not opened yet. Such a bid counts; it waits for
its auction for 600 s of event time. A closed auction is remembered for a minute, so that its
further bids need not wait. Half of all bids go to one auction at a time: only the best of them is
kept. A bid that would have counted, but arrived after the close, goes to `late_bids`.

The query has its own computation, because no window of the library ends at a time from a record,
here the auction's ``expires``.

Q4 and Q6 begin with the same computation. For Q4's SQL form, it also produces the highest price bid
from the auction's opening up to and including its expiry, whether it reaches the reserve or not.
"""

from __future__ import annotations

from datetime import datetime, timedelta

import msgspec

from examples.nexmark.model import Auction, Bid
from examples.nexmark.options import Options
from examples.nexmark.q0 import by_auction
from examples.nexmark.sources import AUCTIONS, BIDS, LATE_BIDS, inject, keep_late
from millwheel import Computation, Context, ListState, Pipeline, Record, Stream, Table, Timer

PATIENCE = timedelta(seconds=600)
"""Time for which a bid waits for its auction to be opened."""
MEMORY = timedelta(seconds=60)
"""Time for which a closed auction is remembered."""

CLOSE, FORGET = "close", "forget"


class Winner(msgspec.Struct, frozen=True):
    """A row of `q9`: an auction, and the bid that won it (`date_time` is the bid's)."""

    auction: int
    seller: int
    category: int
    reserve: int
    expires: datetime
    bidder: int
    price: int
    date_time: datetime


class HighestPrice(msgspec.Struct, frozen=True):
    """The highest price bid on an auction while it was open, whatever its reserve."""

    auction: int
    category: int
    price: int


class Offer(msgspec.Struct, frozen=True):
    """The relevant fields of a bid."""

    price: int
    date_time: datetime
    bidder: int

    def beats(self, other: Offer | None) -> bool:
        """Whether it wins over `other`: by price, then time, then bidder."""
        if other is None:
            return True
        ours = (-self.price, self.date_time, self.bidder)
        return ours < (-other.price, other.date_time, other.bidder)


class Terms(msgspec.Struct, frozen=True):
    """The relevant fields of an auction."""

    opens: datetime
    expires: datetime
    reserve: int
    seller: int
    category: int


class Lot(msgspec.Struct):
    """The state of an auction."""

    terms: Terms | None = None
    best: Offer | None = None
    highest: int | None = None
    closed: datetime | None = None
    """The time at which it expired, after the winner is decided."""
    waiting: ListState[Offer] = msgspec.field(default_factory=ListState)
    """Bids that arrived before the auction."""
    waits_until: datetime | None = None

    def take(self, terms: Terms, offer: Offer) -> None:
        """Update the best and the highest bid with one bid."""
        if offer.price >= terms.reserve and offer.date_time < terms.expires:
            self.best = offer if offer.beats(self.best) else self.best
        if terms.opens <= offer.date_time <= terms.expires:
            self.highest = max(offer.price, self.highest or 0)


WINNERS = Stream("winners", Winner)
LATE_WINNERS = Stream("late_winners", Winner)
HIGHEST = Stream("highest", HighestPrice)


class CloseAuctions(Computation[Auction | Bid, Lot]):
    """Produces each auction's winner when it expires, and the highest price bid while it was
    open."""

    writes = (WINNERS, HIGHEST, LATE_BIDS)

    async def process_record(self, record: Record[Auction | Bid], ctx: Context[Lot]) -> None:
        match record.value:
            case Auction() as auction:
                await self._open(auction, ctx)
            case Bid() as bid:
                await self._take(bid, ctx)

    async def _open(self, auction: Auction, ctx: Context[Lot]) -> None:
        lot = ctx.state
        lot.terms = terms = Terms(
            auction.date_time, auction.expires, auction.reserve, auction.seller, auction.category
        )
        async for offer in lot.waiting.values():
            lot.take(terms, offer)
        await lot.waiting.clear()
        lot.waits_until = None
        ctx.cancel_timer(FORGET)
        ctx.set_timer(terms.expires, CLOSE)

    async def _take(self, bid: Bid, ctx: Context[Lot]) -> None:
        lot, offer = ctx.state, Offer(bid.price, bid.date_time, bid.bidder)
        if lot.closed is not None:
            ctx.count("bids_on_closed_auctions")
            if offer.date_time <= lot.closed:
                ctx.count("late_sent")
                ctx.produce(LATE_BIDS, bid)
        elif lot.terms is not None:
            lot.take(lot.terms, offer)
        else:
            await lot.waiting.append(offer)
            patience_ends = offer.date_time + PATIENCE
            lot.waits_until = max(lot.waits_until or patience_ends, patience_ends)
            ctx.set_timer(lot.waits_until, FORGET)

    async def process_timer(self, timer: Timer, ctx: Context[Lot]) -> None:
        lot = ctx.state
        if timer.tag == CLOSE:
            self._close(lot, ctx)
            ctx.state = Lot(closed=timer.at)
            ctx.set_timer(timer.at + MEMORY, FORGET)
        else:
            await lot.waiting.clear()
            ctx.state = Lot()

    def _close(self, lot: Lot, ctx: Context[Lot]) -> None:
        auction, terms, best = ctx.key, lot.terms, lot.best
        assert isinstance(auction, int)
        assert terms is not None
        if best is not None:
            winner = Winner(
                auction,
                terms.seller,
                terms.category,
                terms.reserve,
                terms.expires,
                best.bidder,
                best.price,
                best.date_time,
            )
            ctx.produce(WINNERS, winner)
        if lot.highest is not None:
            ctx.produce(HIGHEST, HighestPrice(auction, terms.category, lot.highest))


def by_id(auction: Auction) -> int:
    """The id of an auction, as the key."""
    return auction.id


def close_auctions(name: str, options: Options) -> Pipeline:
    """A pipeline with the winners of auctions, the common beginning of Q4, Q6 and Q9."""
    pipeline = Pipeline(name)
    inject(pipeline, options, AUCTIONS, BIDS)
    pipeline.add(CloseAuctions(), AUCTIONS.by(by_id), BIDS.by(by_auction))
    keep_late(pipeline, LATE_BIDS)
    return pipeline


def build(options: Options) -> Pipeline:
    """Winning bids into the table ``q9``."""
    pipeline = close_auctions("nexmark_q9", options)
    pipeline.sink(WINNERS, Table("q9", Winner))
    return pipeline


def pipeline() -> Pipeline:
    """Q9 with options from the environment."""
    return build(Options.from_environment())
