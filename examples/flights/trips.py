"""Sessions: the trips of each aircraft out of New York, with their legs and their delay.

Departures of one tail number belong to one trip if they are planned at most six hours apart.
``millwheel run examples.flights.trips:pipeline`` maintains the table ``trips``:

==================  ==========================================================================
``tailnum``         the aircraft
``first``, ``last``  planned departures (UTC) of the first and the last leg
``legs``            number of departures
``delay_minutes``   sum of their delays; early departures count negative
``retracted``       true: this is no longer a trip of its own; leave it out
==================  ==========================================================================

**Legs.** A leg is a flight that left. Cancelled flights and flights without a tail number are not
legs; both are counted (``millwheel status``: ``cancelled``, ``no_tail_number``), so that legs and
counters add up to all flights.

**Late flights.** A trip is written when the watermark, two hours behind the newest departure, has
passed it. A flight later than that amends its trip: the row is overwritten (one row per aircraft
and first leg). A late flight may also be before the first leg, or join two trips; then the row of a
trip that now starts elsewhere is written again with ``retracted``. The valid trips at any time
are::

    SELECT * FROM trips WHERE NOT retracted
"""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path

import msgspec

from examples.flights import FLIGHTS, LATENESS, LATEST, SETTINGS, replay
from examples.flights.replay import Flight
from millwheel import Computation, Context, JsonLines, Pipeline, Record, Stream, Table
from millwheel.computations import Fold, Windowed
from millwheel.windows import Pane, Session

PAUSE = timedelta(hours=6)
"""The longest time from one leg to the next."""
GAP = PAUSE + timedelta(microseconds=1)
"""`Session` separates records exactly its gap apart; 573 pairs of legs are exactly six hours apart,
and belong together here."""


class Leg(msgspec.Struct, frozen=True):
    """A flight that left."""

    tailnum: str
    delay: int


class Totals(msgspec.Struct, frozen=True):
    """The totals of one trip."""

    legs: int = 0
    delay_minutes: int = 0


class Trip(msgspec.Struct, frozen=True):
    """A row of `trips`."""

    tailnum: str
    first: datetime
    last: datetime
    legs: int
    delay_minutes: int
    retracted: bool


LEGS = Stream("legs", Leg)
TRIPS = Stream("trips", Pane[Totals])


class FindLegs(Computation[Flight, None]):
    """Passes on the legs of trips, and counts the other flights."""

    writes = (LEGS,)

    async def process_record(self, record: Record[Flight], ctx: Context[None]) -> None:
        flight = record.value
        if flight.tailnum is None:
            ctx.count("no_tail_number")
        elif flight.dep_delay is None:
            ctx.count("cancelled")
        else:
            ctx.produce(LEGS, Leg(flight.tailnum, flight.dep_delay))


totals: Fold[Leg, Totals, Totals] = Fold(
    Totals,
    lambda kept, leg: Totals(kept.legs + 1, kept.delay_minutes + leg.delay),
    lambda kept: kept,
    Totals,
    merge=lambda one, other: Totals(one.legs + other.legs, one.delay_minutes + other.delay_minutes),
)


def trip(pane: Pane[Totals]) -> Trip:
    """The row of a pane, which replaces the row of the pane before."""
    return Trip(
        str(pane.key),
        pane.start,
        pane.end - GAP,
        pane.value.legs,
        pane.value.delay_minutes,
        pane.retracted,
    )


def build(path: Path) -> Pipeline:
    """The pipeline over a replay file."""
    pipeline = Pipeline("flights_trips", settings=SETTINGS)
    pipeline.inject(
        FLIGHTS,
        JsonLines(path),
        timestamp=lambda flight: flight.scheduled_at,
        seen=lambda flight: flight.seen_at,
        lateness=LATENESS,
    )
    pipeline.add(FindLegs(), FLIGHTS.by(lambda flight: flight.row))
    pipeline.add(
        Windowed(Session(GAP), totals, to=TRIPS, late="amend", allowed_lateness=LATEST),
        LEGS.by(lambda leg: leg.tailnum),
    )
    pipeline.sink(
        TRIPS,
        Table("trips", Trip, key=("tailnum", "first"), producer_key=("tailnum",)),
        row=trip,
    )
    return pipeline


def pipeline() -> Pipeline:
    """The pipeline over the whole year; prepares the replay file the first time."""
    return build(replay.prepare())
