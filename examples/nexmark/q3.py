"""Q3, local items: people in Oregon, Idaho or California with an auction in category 10.

It is an incremental join on the person's id. A person is kept for ever. An auction that arrives
before its seller waits, and is given up 600 s of event time after the seller's last auction. A pair
further apart than that need not be found, in either order.

The query has its own computation, because no join of the library keeps one side for ever while the
other side waits. There is no lateness: late records are joined like all others.
"""

from __future__ import annotations

from datetime import datetime, timedelta

import msgspec

from examples.nexmark.model import Auction, Person
from examples.nexmark.options import Options
from examples.nexmark.sources import AUCTIONS, PEOPLE, inject
from millwheel import Computation, Context, MapState, Pipeline, Record, Stream, Table, Timer

CATEGORY = 10
STATES = frozenset(["OR", "ID", "CA"])
PATIENCE = timedelta(seconds=600)


class LocalItem(msgspec.Struct, frozen=True):
    """A row of `q3`: the seller, and the auction's id."""

    name: str
    city: str
    state: str
    id: int


class Seller(msgspec.Struct):
    """A seller, and auctions that wait for the seller."""

    person: Person | None = None
    newest: datetime | None = None
    """The time of the newest waiting auction."""
    waiting: MapState[int, datetime] = msgspec.field(default_factory=MapState)
    """Auctions that arrived before the person, by id."""


LOCAL_ITEMS = Stream("local_items", LocalItem)


class JoinSellers(Computation[Person | Auction, Seller]):
    """Produces each auction when its seller is known."""

    writes = (LOCAL_ITEMS,)

    async def process_record(self, record: Record[Person | Auction], ctx: Context[Seller]) -> None:
        match record.value:
            case Person() as person:
                await self._take_person(person, ctx)
            case Auction() as auction if auction.category == CATEGORY:
                self._take_auction(auction, ctx)

    async def _take_person(self, person: Person, ctx: Context[Seller]) -> None:
        state = ctx.state
        state.person = person
        waiting = [(opened, id_) async for id_, opened in state.waiting.items()]
        for _, id_ in sorted(waiting):
            self._send(person, id_, ctx)
        await self._give_up(state)
        ctx.cancel_timer()

    def _take_auction(self, auction: Auction, ctx: Context[Seller]) -> None:
        state = ctx.state
        if state.person is not None:
            self._send(state.person, auction.id, ctx)
            return
        state.waiting.put(auction.id, auction.date_time)
        state.newest = max(state.newest or auction.date_time, auction.date_time)
        ctx.set_timer(state.newest + PATIENCE)

    def _send(self, person: Person, auction: int, ctx: Context[Seller]) -> None:
        if person.state in STATES:
            ctx.produce(LOCAL_ITEMS, LocalItem(person.name, person.city, person.state, auction))

    async def process_timer(self, timer: Timer, ctx: Context[Seller]) -> None:
        ctx.count("sellers_given_up")
        await self._give_up(ctx.state)

    async def _give_up(self, state: Seller) -> None:
        await state.waiting.clear()
        state.newest = None


def by_id(person: Person) -> int:
    """The id of a person, as the key."""
    return person.id


def by_seller(auction: Auction) -> int:
    """The seller of an auction, as the key."""
    return auction.seller


def build(options: Options) -> Pipeline:
    """Auctions and their sellers into the table ``q3``."""
    pipeline = Pipeline("nexmark_q3")
    inject(pipeline, options, PEOPLE, AUCTIONS)
    pipeline.add(JoinSellers(), PEOPLE.by(by_id), AUCTIONS.by(by_seller))
    pipeline.sink(LOCAL_ITEMS, Table("q3", LocalItem))
    return pipeline


def pipeline() -> Pipeline:
    """Q3 with options from the environment."""
    return build(Options.from_environment())
