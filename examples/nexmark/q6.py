"""Q6, average selling price by seller: the mean of a seller's last ten winning prices.

There is one row for each sold auction, with its price as the last of the ten. Auctions are ordered
by the time at which they close, then by id.

(A published SQL uses ``ROWS BETWEEN 10 PRECEDING AND CURRENT ROW``, which is eleven rows. Here it
is ten, as in the text of the query.)

The query has its own computation, because windows of `Count` do not overlap, and `InOrder` leaves
auctions that close at the same time in the order of their arrival.
"""

from __future__ import annotations

from datetime import datetime

import msgspec

from examples.nexmark.options import Options
from examples.nexmark.q9 import WINNERS, Winner, close_auctions
from millwheel import Computation, Context, Pipeline, Record, Stream, Table, Timer

LAST = 10


class SellerPrice(msgspec.Struct, frozen=True):
    """A row of `q6`: the seller's mean price after the close of this auction."""

    seller: int
    auction: int
    expires: datetime
    price: float


class Sales(msgspec.Struct):
    """The sales of a seller."""

    last: list[int] = msgspec.field(default_factory=list)
    """Up to ten prices, the newest at the end."""
    waiting: list[Winner] = msgspec.field(default_factory=list)
    """Auctions that may still be preceded by an earlier one."""


SELLER_PRICES = Stream("seller_prices", SellerPrice)


class MeanOfLast(Computation[Winner, Sales]):
    """Orders a seller's auctions, and produces the mean after each one.

    The winners of two auctions may arrive in any order. A timer at a winner's timestamp fires when
    no winner of that time or before can follow.
    """

    writes = (SELLER_PRICES,)

    async def process_record(self, record: Record[Winner], ctx: Context[Sales]) -> None:
        ctx.state.waiting.append(record.value)
        ctx.set_timer(record.value.expires, tag=str(record.value.auction))

    async def process_timer(self, timer: Timer, ctx: Context[Sales]) -> None:
        sales = ctx.state
        closed = [winner for winner in sales.waiting if winner.expires <= timer.at]
        for winner in sorted(closed, key=lambda winner: (winner.expires, winner.auction)):
            sales.last = [*sales.last, winner.price][-LAST:]
            mean = sum(sales.last) / len(sales.last)
            ctx.produce(
                SELLER_PRICES, SellerPrice(winner.seller, winner.auction, winner.expires, mean)
            )
        sales.waiting = [winner for winner in sales.waiting if winner.expires > timer.at]


def by_seller(winner: Winner) -> int:
    """The seller of an auction, as the key."""
    return winner.seller


def build(options: Options) -> Pipeline:
    """Mean prices into the table ``q6``."""
    pipeline = close_auctions("nexmark_q6", options)
    pipeline.add(MeanOfLast(), WINNERS.by(by_seller))
    pipeline.sink(SELLER_PRICES, Table("q6", SellerPrice))
    return pipeline


def pipeline() -> Pipeline:
    """Q6 with options from the environment."""
    return build(Options.from_environment())
