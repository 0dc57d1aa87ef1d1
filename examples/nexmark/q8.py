"""Q8, monitor new users: who registered and opened an auction in the same window of 10 s.

One row for each such person, however many auctions; it is told as soon as both have happened. The
key is the person and the window, so that what is kept goes when the window is over.
"""

from __future__ import annotations

from datetime import datetime

import msgspec

from examples.nexmark.model import Auction, Person, to_milliseconds
from examples.nexmark.options import Options
from examples.nexmark.sources import AUCTIONS, PEOPLE, inject
from examples.nexmark.windows import SIZE, last_of, start_of
from millwheel import Computation, Context, Pipeline, Record, Stream, Table, Timer


class NewSeller(msgspec.Struct, frozen=True):
    """A row of `q8`."""

    id: int
    name: str
    window_start: datetime
    window_end: datetime


class Newcomer(msgspec.Struct):
    """What somebody has done in a window."""

    name: str | None = None
    """Set once the person has registered."""
    opened: bool = False
    told: bool = False


NEW_SELLERS = Stream("new_sellers", NewSeller)


class WatchNewcomers(Computation[Person | Auction, Newcomer]):
    """Tells who has done both."""

    writes = (NEW_SELLERS,)

    async def process_record(
        self, record: Record[Person | Auction], ctx: Context[Newcomer]
    ) -> None:
        state, start = ctx.state, start_of(record.value.date_time)
        ctx.set_timer(last_of(start))
        match record.value:
            case Person(id=id_, name=name):
                state.name = name
            case Auction(seller=id_):
                state.opened = True
        if state.name is not None and state.opened and not state.told:
            state.told = True
            ctx.produce(NEW_SELLERS, NewSeller(id_, state.name, start, start + SIZE))

    async def process_timer(self, timer: Timer, ctx: Context[Newcomer]) -> None:
        ctx.state = Newcomer()


def by_person(person: Person) -> tuple[int, int]:
    """The person, and the window of the registration."""
    return person.id, to_milliseconds(start_of(person.date_time))


def by_seller(auction: Auction) -> tuple[int, int]:
    """The person, and the window of the opening."""
    return auction.seller, to_milliseconds(start_of(auction.date_time))


def build(options: Options) -> Pipeline:
    """New sellers into the table ``q8``."""
    pipeline = Pipeline("nexmark_q8")
    inject(pipeline, options, PEOPLE, AUCTIONS)
    pipeline.add(WatchNewcomers(), PEOPLE.by(by_person), AUCTIONS.by(by_seller))
    pipeline.sink(NEW_SELLERS, Table("q8", NewSeller))
    return pipeline


def pipeline() -> Pipeline:
    """Q8 with options from the environment."""
    return build(Options.from_environment())
