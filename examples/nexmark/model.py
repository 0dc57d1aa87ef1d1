"""The events of an online auction: people, auctions and bids. Prices are in cents."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TypeAlias

import msgspec

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
ONE_MILLISECOND = timedelta(milliseconds=1)


class Person(msgspec.Struct, frozen=True, gc=False):
    """A registered person: may open auctions and bid."""

    id: int
    name: str
    email: str
    credit_card: str
    city: str
    state: str
    date_time: datetime
    extra: str = ""


class Auction(msgspec.Struct, frozen=True, gc=False):
    """Something for sale."""

    id: int
    item_name: str
    description: str
    initial_bid: int
    reserve: int
    """The least price at which the auction is sold."""
    date_time: datetime
    expires: datetime
    seller: int
    """The id of a person; the person may register later."""
    category: int
    extra: str = ""


class Bid(msgspec.Struct, frozen=True, gc=False):
    """A price offered by a person. Bids have no id: two bids may be equal in every field."""

    auction: int
    """The id of an auction, which may be opened later, or may already be closed."""
    bidder: int
    """The id of a person; the person may register later."""
    price: int
    date_time: datetime
    extra: str = ""


Event: TypeAlias = "Person | Auction | Bid"


def time_of(event: Event) -> datetime:
    """The time of an event."""
    return event.date_time


def from_milliseconds(milliseconds: int) -> datetime:
    """The aware UTC ``datetime`` of milliseconds since the epoch."""
    return EPOCH + timedelta(milliseconds=milliseconds)


def to_milliseconds(moment: datetime) -> int:
    """Whole milliseconds since the epoch of an aware ``datetime``."""
    return (moment - EPOCH) // ONE_MILLISECOND
