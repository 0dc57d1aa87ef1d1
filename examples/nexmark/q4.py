"""Q4, average price per category: what auctions of a category are sold for.

Winning bids as in Q9, then per category the mean of the prices of the auctions that closed in
a window of 10 s; a window begins every 5 s.

The table ``q4_sql`` holds what the published SQL asks for instead: per category the mean over all
auctions so far of the highest price bid while they were open, whatever their reserve.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

import msgspec

from examples.nexmark.model import from_milliseconds, to_milliseconds
from examples.nexmark.options import Options
from examples.nexmark.q9 import HIGHEST, WINNERS, HighestPrice, Winner, close_auctions
from examples.nexmark.windows import SIZE, last_of, starts_of
from millwheel import Computation, Context, Pipeline, Record, Stream, Table, Timer
from millwheel.computations import FlatMap


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


class Sale(msgspec.Struct, frozen=True):
    """An auction that closed, as one of its windows sees it."""

    category: int
    window_start: datetime
    price: int


class Sum(msgspec.Struct):
    """Prices so far."""

    total: int = 0
    count: int = 0

    def add(self, price: int) -> None:
        """One more."""
        self.total += price
        self.count += 1

    def mean(self) -> float:
        """Of all so far."""
        return self.total / self.count


SALES = Stream("sales", Sale)
MEANS = Stream("means", MeanPrice)
CATEGORY_PRICES = Stream("category_prices", CategoryPrice)


def sales_of(winner: Winner) -> Iterable[Sale]:
    """The sale in each window that holds the auction's end."""
    for start in starts_of(winner.expires):
        yield Sale(winner.category, start, winner.price)


class MeanOfWindow(Computation[Sale, Sum]):
    """The mean of each category and window, when the window is over."""

    writes = (MEANS,)

    async def process_record(self, record: Record[Sale], ctx: Context[Sum]) -> None:
        if not ctx.state.count:
            ctx.set_timer(last_of(record.value.window_start))
        ctx.state.add(record.value.price)

    async def process_timer(self, timer: Timer, ctx: Context[Sum]) -> None:
        assert isinstance(ctx.key, tuple)
        category, start = map(int, ctx.key)
        window_start = from_milliseconds(start)
        ctx.produce(
            MEANS,
            MeanPrice(category, window_start, window_start + SIZE, ctx.state.mean()),
        )
        ctx.state = Sum()


class MeanOfAll(Computation[HighestPrice, Sum]):
    """The mean of each category so far."""

    writes = (CATEGORY_PRICES,)

    async def process_record(self, record: Record[HighestPrice], ctx: Context[Sum]) -> None:
        ctx.state.add(record.value.price)
        ctx.produce(CATEGORY_PRICES, CategoryPrice(record.value.category, ctx.state.mean()))


def category_of(winner: Winner) -> int:
    """Spreads the work; nothing is kept for a key."""
    return winner.category


def by_category(price: HighestPrice) -> int:
    """One mean for a category."""
    return price.category


def by_window(sale: Sale) -> tuple[int, int]:
    """One mean for a category and window."""
    return sale.category, to_milliseconds(sale.window_start)


def build(options: Options) -> Pipeline:
    """Mean prices into the tables ``q4`` and ``q4_sql``."""
    pipeline = close_auctions("nexmark_q4", options)
    pipeline.add(FlatMap(sales_of, to=SALES), WINNERS.by(category_of))
    pipeline.add(MeanOfWindow(), SALES.by(by_window))
    pipeline.add(MeanOfAll(), HIGHEST.by(by_category))
    pipeline.sink(MEANS, Table("q4", MeanPrice))
    pipeline.sink(
        CATEGORY_PRICES,
        Table("q4_sql", CategoryPrice, key=("category",), producer_key=("category",)),
    )
    return pipeline


def pipeline() -> Pipeline:
    """Q4 with options from the environment."""
    return build(Options.from_environment())
