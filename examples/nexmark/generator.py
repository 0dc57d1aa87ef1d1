"""The events of one generator, as pure functions of their number.

An event's content depends on its id alone (its time depends on its number): each event draws from
its own `JavaRandom`, seeded with the id. So neither the order in which events are made nor the
number of generators changes the data of an event.

=====================  =====================================================================
id                     counts all events of all generators: determines kind and content
number                 counts the events of one generator from 0: determines the time
=====================  =====================================================================

Of 50 ids in a row, the first is a person, three are auctions, the rest are bids. The order of
the draws of each kind is part of the definition: one draw more or less would change every
field after it. ``extra`` pads an event to its kind's usual size and is drawn last.
"""

from __future__ import annotations

import math
from typing import TypeAlias

from examples.nexmark.java_random import JavaRandom
from examples.nexmark.model import Auction, Bid, Event, Person, from_milliseconds, to_milliseconds
from examples.nexmark.options import LONGEST_DELAY, Options
from millwheel.errors import UsageError

Kind: TypeAlias = type[Person] | type[Auction] | type[Bid]

CYCLE = 50
"""Ids after which kinds repeat: 1 person, 3 auctions, 46 bids."""
AUCTIONS_PER_CYCLE = 3
FIRST_PERSON = 1000
FIRST_AUCTION = 1000
FIRST_CATEGORY = 10
CATEGORIES = 5
ACTIVE_PEOPLE = 1000
AUCTIONS_IN_FLIGHT = 100
LEAD = 10
"""Number of ids that a reference may be ahead of the existing ones."""
HOT_EVERY = 100
"""Number of people or auctions of which one is hot at a time."""
HOT_SELLERS = 4
HOT_AUCTIONS = 2
HOT_BIDDERS = 4
"""One draw in this number is *not* for the hot one."""
PERSON_BYTES, AUCTION_BYTES, BID_BYTES = 200, 500, 100
"""The average size to which `extra` pads an event."""
NUMBER_BYTES = 8
"""The size of a number or a time in that calculation."""
LATE_SEED = 0x6C617465
"""Separates the draws for lateness from those for the event."""

STATES = ("AZ", "CA", "ID", "OR", "WA", "WY")
CITIES = (
    "Tucson", "Fresno", "Oakland", "Nampa", "Salem", "Eugene", "Tacoma", "Spokane", "Laramie",
    "Casper",
)  # fmt: skip
FIRST_NAMES = (
    "Ada", "Boris", "Clara", "Dmitri", "Edith", "Farid", "Greta", "Hugo", "Ines", "Jonas", "Kaori",
)  # fmt: skip
LAST_NAMES = (
    "Archer", "Brandt", "Castro", "Dubois", "Eriksen", "Fontana", "Gupta", "Horvat", "Ito",
)  # fmt: skip

_THREE = [chr(97 + n // 676) + chr(97 + n // 26 % 26) + chr(97 + n % 26) for n in range(17_576)]
"""All texts of three letters."""


class Generator:
    """One of the generators of `options`, by its index from 0."""

    def __init__(self, options: Options, index: int = 0) -> None:
        assert 0 <= index < options.generators, index
        share = options.events // options.generators
        self.first_id = index * share
        """The id of its event number 0."""
        is_last = index == options.generators - 1
        self.count = options.events - self.first_id if is_last else share
        """Number of its events; the last generator also makes the remainder of the division."""
        self._late = options.late
        self._base = to_milliseconds(options.base_time)
        self._delay = options.delay_microseconds
        try:
            from_milliseconds(self.milliseconds(self.count + 2 * _EVENTS_OF_AN_AUCTION))
        except OverflowError as error:
            raise UsageError(
                f"{options.events:,} events at {options.rate:,} a second end after the year 9999"
            ) from error

    def milliseconds(self, number: int) -> int:
        """The time of event `number`, in ms since 1970; never less than that of the one before."""
        return self._base + number * self._delay // 1000

    def kind(self, number: int) -> Kind:
        """The kind of event `number`."""
        offset = (self.first_id + number) % CYCLE
        if offset == 0:
            return Person
        return Auction if offset <= AUCTIONS_PER_CYCLE else Bid

    def event(self, number: int) -> Event:
        """Event `number`, always the same."""
        id_ = self.first_id + number
        random = JavaRandom(id_)
        offset = id_ % CYCLE
        if offset == 0:
            return self._person(id_, number, random)
        if offset <= AUCTIONS_PER_CYCLE:
            return self._auction(id_, number, random)
        return self._bid(id_, number, random)

    def delay(self, number: int) -> int:
        """The delay of event `number` in milliseconds, mostly 0."""
        if not self._late:
            return 0
        random = JavaRandom((self.first_id + number) ^ LATE_SEED)
        if random.next_double() >= self._late:
            return 0
        return 1 + random.next_int(round(LONGEST_DELAY.total_seconds() * 1000))

    def _person(self, id_: int, number: int, random: JavaRandom) -> Person:
        rand = random.next_int
        first = FIRST_NAMES[rand(len(FIRST_NAMES))]
        last = LAST_NAMES[rand(len(LAST_NAMES))]
        mailbox = _string(random, 7)
        email = f"{mailbox}@{_string(random, 5)}.com"
        card = " ".join([f"{rand(10_000):04d}" for _ in range(4)])
        city = CITIES[rand(len(CITIES))]
        state = STATES[rand(len(STATES))]
        name = f"{first} {last}"
        size = 2 * NUMBER_BYTES + len(name) + len(email) + len(card) + len(city) + len(state)
        return Person(
            FIRST_PERSON + last_person(id_),
            name,
            email,
            card,
            city,
            state,
            from_milliseconds(self.milliseconds(number)),
            _padding(random, PERSON_BYTES - size),
        )

    def _auction(self, id_: int, number: int, random: JavaRandom) -> Auction:
        rand = random.next_int
        newest = last_person(id_)
        if rand(HOT_SELLERS) > 0:
            seller = newest // HOT_EVERY * HOT_EVERY
        else:
            seller = _any_person(newest, random)
        category = FIRST_CATEGORY + rand(CATEGORIES)
        initial_bid = _price(random)
        now = self.milliseconds(number)
        horizon = self.milliseconds(number + _EVENTS_OF_AN_AUCTION) - now
        expires = now + 1 + rand(max(2 * horizon, 1))
        item_name = _string(random, 20)
        description = _string(random, 100)
        reserve = initial_bid + _price(random)
        size = 7 * NUMBER_BYTES + len(item_name) + len(description)
        return Auction(
            FIRST_AUCTION + last_auction(id_),
            item_name,
            description,
            initial_bid,
            reserve,
            from_milliseconds(now),
            from_milliseconds(expires),
            FIRST_PERSON + seller,
            category,
            _padding(random, AUCTION_BYTES - size),
        )

    def _bid(self, id_: int, number: int, random: JavaRandom) -> Bid:
        rand = random.next_int
        newest_auction, newest_person = last_auction(id_), last_person(id_)
        if rand(HOT_AUCTIONS) > 0:
            auction = newest_auction // HOT_EVERY * HOT_EVERY
        else:
            oldest = max(newest_auction - AUCTIONS_IN_FLIGHT, 0)
            auction = oldest + rand(newest_auction - oldest + 1 + LEAD)
        if rand(HOT_BIDDERS) > 0:
            # the person after the hot seller, so that the hot bidder is another person
            bidder = newest_person // HOT_EVERY * HOT_EVERY + 1
        else:
            bidder = _any_person(newest_person, random)
        return Bid(
            FIRST_AUCTION + auction,
            FIRST_PERSON + bidder,
            _price(random),
            from_milliseconds(self.milliseconds(number)),
            _padding(random, BID_BYTES - 4 * NUMBER_BYTES),
        )


_EVENTS_OF_AN_AUCTION = AUCTIONS_IN_FLIGHT * CYCLE // AUCTIONS_PER_CYCLE
"""An auction's usual length: the number of events in which `AUCTIONS_IN_FLIGHT` are opened."""


def last_person(id_: int) -> int:
    """The newest person, counted from 0, once event `id_` has happened."""
    return id_ // CYCLE


def last_auction(id_: int) -> int:
    """The newest auction, counted from 0, once event `id_` has happened; -1: none yet."""
    cycle, offset = divmod(id_, CYCLE)
    opened = min(offset, AUCTIONS_PER_CYCLE)
    return AUCTIONS_PER_CYCLE * cycle + opened - 1


def _any_person(newest: int, random: JavaRandom) -> int:
    """One of the newest people, or of the next ones to register."""
    people = newest + 1
    active = min(people, ACTIVE_PEOPLE)
    return people - active + random.next_int(active + LEAD)


def _price(random: JavaRandom) -> int:
    """A price in cents, of 1 to 1,000,000 in whole currency, log-uniform."""
    exponent = random.next_double() * 6.0
    return math.floor(math.pow(10.0, exponent) * 100.0 + 0.5)


def _string(random: JavaRandom, longest: int) -> str:
    """3 to `longest` - 1 letters and some blanks; blanks at the ends are removed."""
    rand = random.next_int
    length = 3 + rand(longest - 3)
    letters = [" " if rand(13) == 0 else chr(97 + rand(26)) for _ in range(length)]
    return "".join(letters).strip(" ")


def _padding(random: JavaRandom, size: int) -> str:
    """About `size` letters, up to 20 % more or fewer."""
    if size <= 0:
        return ""
    spread = size // 5
    length = size - spread + random.next_int(2 * spread + 1)
    draws = random.next_31_bits(-(-length // 6))
    return "".join([_THREE[d // 17_576 % 17_576] + _THREE[d % 17_576] for d in draws])[:length]
