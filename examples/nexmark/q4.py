"""Q4, average price per category: the mean selling price of a category's auctions.

It finds winning bids as in Q9, then, per category, the mean price of the auctions that closed in a
window of 10 s; a window begins every 5 s.

The table ``q4_sql`` contains the result of the published SQL instead: per category, the mean over
all auctions so far of the highest price bid while they were open, whatever their reserve.
"""

from __future__ import annotations

from datetime import datetime, timedelta

import msgspec

from examples.nexmark.options import Options
from examples.nexmark.q9 import (
    HIGHEST,
    LATE_WINNERS,
    WINNERS,
    HighestPrice,
    Winner,
    close_auctions,
)
from examples.nexmark.sources import keep_late
from millwheel import Pipeline, Stream, Table
from millwheel.computations import Windowed, mean
from millwheel.windows import Early, Global, Pane, Sliding

WINDOWS = Sliding(timedelta(seconds=10), timedelta(seconds=5))


class MeanPrice(msgspec.Struct, frozen=True):
    """A row of `q4`."""

    category: int
    window_start: datetime
    window_end: datetime
    price: float


class CategoryPrice(msgspec.Struct, frozen=True):
    """A row of `q4_sql`."""

    category: int
    price: float


MEANS = Stream("means", Pane[float])
MEANS_SO_FAR = Stream("means_so_far", Pane[float])


def winning_price(winner: Winner) -> int:
    """The price at which an auction is sold."""
    return winner.price


def highest_price(highest: HighestPrice) -> int:
    """The highest price bid on an auction."""
    return highest.price


def by_category(sale: Winner | HighestPrice) -> int:
    """The category of a sale, as the key."""
    return sale.category


def row_of(pane: Pane[float]) -> MeanPrice:
    """The row of a window's mean."""
    assert isinstance(pane.key, int)
    return MeanPrice(pane.key, pane.start, pane.end, pane.value)


def row_so_far(pane: Pane[float]) -> CategoryPrice:
    """The row of the mean so far, which replaces the previous one."""
    assert isinstance(pane.key, int)
    return CategoryPrice(pane.key, pane.value)


def build(options: Options) -> Pipeline:
    """Mean prices into the tables ``q4`` and ``q4_sql``."""
    pipeline = close_auctions("nexmark_q4", options)
    means = Windowed(WINDOWS, mean(winning_price), to=MEANS, late=LATE_WINNERS)
    pipeline.add(means, WINNERS.by(by_category))
    pipeline.sink(MEANS, Table("q4", MeanPrice), row=row_of)
    each = Windowed(Global(), mean(highest_price), to=MEANS_SO_FAR, early=Early(records=1))
    pipeline.add(each, HIGHEST.by(by_category))
    table = Table("q4_sql", CategoryPrice, key=("category",), producer_key=("category",))
    pipeline.sink(MEANS_SO_FAR, table, row=row_so_far)
    keep_late(pipeline, LATE_WINNERS)
    return pipeline


def pipeline() -> Pipeline:
    """Q4 with options from the environment."""
    return build(Options.from_environment())
