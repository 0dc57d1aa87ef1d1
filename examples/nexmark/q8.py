"""Q8, monitor new users: people with a registration and a new auction in one window of 10 s.

There is one row for each such person, written as soon as both have happened. The join produces one
record for each auction; those of one person and window have the same timestamp, and only the first
one passes `Deduplicate`.
"""

from __future__ import annotations

from datetime import datetime, timedelta

import msgspec

from examples.nexmark.model import Auction, Person
from examples.nexmark.options import Options
from examples.nexmark.q3 import by_id, by_seller
from examples.nexmark.sources import (
    AUCTIONS,
    LATE_AUCTIONS,
    LATE_PEOPLE,
    PEOPLE,
    inject,
    keep_late,
)
from millwheel import Pipeline, Stream, Table
from millwheel.computations import Deduplicate, WindowJoin
from millwheel.windows import Tumbling, instant, micros_of

SIZE = timedelta(seconds=10)
WINDOWS = Tumbling(SIZE)


class NewSeller(msgspec.Struct, frozen=True):
    """A row of `q8`."""

    id: int
    name: str
    window_start: datetime
    window_end: datetime


OPENINGS = Stream("openings", NewSeller)
NEW_SELLERS = Stream("new_sellers", NewSeller)


def opening(person: Person, auction: Auction) -> NewSeller:
    """The row of a new seller, with the window of registration and auction."""
    window = WINDOWS.of(micros_of(person.date_time))
    return NewSeller(person.id, person.name, instant(window.start), instant(window.end))


def by_person(seller: NewSeller) -> int:
    """The person, as the key of deduplication."""
    return seller.id


def build(options: Options) -> Pipeline:
    """New sellers into the table ``q8``."""
    pipeline = Pipeline("nexmark_q8")
    inject(pipeline, options, PEOPLE, AUCTIONS)
    join = WindowJoin(
        PEOPLE,
        AUCTIONS,
        WINDOWS,
        to=OPENINGS,
        combine=opening,
        late_left=LATE_PEOPLE,
        late_right=LATE_AUCTIONS,
    )
    pipeline.add(join, PEOPLE.by(by_id), AUCTIONS.by(by_seller))
    pipeline.add(Deduplicate(to=NEW_SELLERS, horizon=SIZE), OPENINGS.by(by_person))
    pipeline.sink(NEW_SELLERS, Table("q8", NewSeller))
    keep_late(pipeline, LATE_PEOPLE, LATE_AUCTIONS)
    return pipeline


def pipeline() -> Pipeline:
    """Q8 with options from the environment."""
    return build(Options.from_environment())
