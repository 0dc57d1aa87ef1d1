"""A temporal join: each flight with the weather at its airport at its departure.

``millwheel run examples.flights.weather:pipeline`` writes the table ``departure_weather`` with a
row for every flight:

==================  ==========================================================================
``flight_row``      the flight's row in the package's table, from 0
``origin``          the airport
``departed_at``     the departure; for a cancelled flight the planned departure (UTC)
``dep_delay``       minutes; null: cancelled
``observed_at``     the newest observation at or before ``departed_at``; null: there is none
``temp``, …         the observed values; null: not recorded
==================  ==========================================================================

**Time.** The event time of a flight is its departure here, not its planned departure as in the
other pipelines of flights. So the stream is in order, no flight is late, and each waits only until
the next one leaves. An observation applies from its full hour until the next one, however long that
takes: the package has none after 30 December 23:00 UTC, and some hours are missing. ``observed_at``
shows its age.
"""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

import msgspec

from examples.flights import FLIGHTS, SETTINGS, origin_of, replay
from examples.flights.replay import Flight, Observation
from millwheel import JsonLines, Pipeline, Stream, Table
from millwheel.computations import TemporalJoin


class DepartureWeather(msgspec.Struct, frozen=True):
    """A row of `departure_weather`."""

    flight_row: int
    origin: str
    departed_at: datetime
    dep_delay: int | None
    observed_at: datetime | None = None
    temp: float | None = None
    wind_speed: float | None = None
    precip: float | None = None
    visib: float | None = None


WEATHER = Stream("weather", Observation)
JOINED = Stream("departure_weather", DepartureWeather)


def without_weather(flight: Flight) -> DepartureWeather:
    """The row of a flight that left before the first observation."""
    return DepartureWeather(flight.row, flight.origin, flight.seen_at, flight.dep_delay)


def with_weather(flight: Flight, seen: Observation) -> DepartureWeather:
    """The row of a flight with the last observation before it left."""
    return msgspec.structs.replace(
        without_weather(flight),
        observed_at=seen.observed_at,
        temp=seen.temp,
        wind_speed=seen.wind_speed,
        precip=seen.precip,
        visib=seen.visib,
    )


def build(flights: Path, weather: Path) -> Pipeline:
    """The pipeline over two replay files."""
    pipeline = Pipeline("flights_weather", settings=SETTINGS)
    pipeline.inject(FLIGHTS, JsonLines(flights), timestamp=lambda flight: flight.seen_at)
    pipeline.inject(WEATHER, JsonLines(weather), timestamp=lambda seen: seen.observed_at)
    join = TemporalJoin(
        FLIGHTS, WEATHER, to=JOINED, combine=with_weather, unmatched=without_weather
    )
    pipeline.add(join, FLIGHTS.by(origin_of), WEATHER.by(lambda seen: seen.origin))
    pipeline.sink(JOINED, Table("departure_weather", DepartureWeather))
    return pipeline


def pipeline() -> Pipeline:
    """The pipeline over the whole year; prepares the replay files the first time."""
    return build(replay.prepare(), replay.prepare_weather())
