"""Sliding windows: the departures of the last three hours at each airport, every 15 minutes.

``millwheel run examples.flights.last_hours:pipeline`` maintains the table ``last_three_hours``:

==================  ==========================================================================
``origin``          the airport
``until``           each quarter of an hour (UTC); the row covers the three hours before it
``flights``         departures planned in ``[until - 3 h, until)``, including cancelled ones
``cancelled``       flights that never left
``delay_minutes``   sum of the delays of flights that left; early departures count negative
``delayed_15``      flights that left 15 minutes late or more
==================  ==========================================================================

Three hours without planned departures have no row. Every flight counts in twelve rows, but writes
to one accumulator: the engine keeps one per quarter of an hour, and merges twelve of them when a
window closes (`add_totals` is the fold's ``merge``).

**Late flights.** A flight that left more than two hours late finds some of its windows closed;
their rows are overwritten. Windows accept flights for a day after they have closed, and no flight
of this year was later; such a flight would be counted as ``late_dropped``.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path

import msgspec

from examples.flights import FLIGHTS, LATENESS, LATEST, SETTINGS, origin_of, replay
from examples.flights.model import HourTotals, departures
from millwheel import JsonLines, Pipeline, Stream, Table
from millwheel.computations import Windowed
from millwheel.windows import Pane, Sliding

WINDOWS = Sliding(timedelta(hours=3), timedelta(minutes=15))


class LastThreeHours(msgspec.Struct, frozen=True):
    """A row of `last_three_hours`."""

    origin: str
    until: datetime
    flights: int
    cancelled: int
    delay_minutes: int
    delayed_15: int


STRETCHES = Stream("stretches", Pane[HourTotals])


def last_three_hours(pane: Pane[HourTotals]) -> LastThreeHours:
    """The row of a pane, which replaces the row of the pane before."""
    return LastThreeHours(str(pane.key), pane.end, **msgspec.structs.asdict(pane.value))


def build(path: Path) -> Pipeline:
    """The pipeline over a replay file."""
    pipeline = Pipeline("flights_last_hours", settings=SETTINGS)
    pipeline.inject(
        FLIGHTS,
        JsonLines(path),
        timestamp=lambda flight: flight.scheduled_at,
        seen=lambda flight: flight.seen_at,
        lateness=LATENESS,
    )
    pipeline.add(
        Windowed(WINDOWS, departures, to=STRETCHES, late="amend", allowed_lateness=LATEST),
        FLIGHTS.by(origin_of),
    )
    pipeline.sink(
        STRETCHES,
        Table(
            "last_three_hours", LastThreeHours, key=("origin", "until"), producer_key=("origin",)
        ),
        row=last_three_hours,
    )
    return pipeline


def pipeline() -> Pipeline:
    """The pipeline over the whole year; prepares the replay file the first time."""
    return build(replay.prepare())
