"""Slices of the year of flights, and the examples that run on them with their batch answers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from examples.flights import last_hours, replay, trips, weather
from millwheel import Pipeline
from tests.support import flights_oracle
from tests.support.flights_oracle import Stretches


def day(month: int, day_: int, year: int = 2013) -> datetime:
    return datetime(year, month, day_, tzinfo=UTC)


SLICE = (
    (day(3, 9), day(3, 11)),  # a storm, and clocks go forward
    (day(6, 27), day(6, 29)),  # thunderstorms
    (day(11, 3), day(11, 4)),  # clocks go back: New York's shows an hour of the weather twice
    (day(12, 31), day(1, 2, 2014)),  # the weather ended the day before
)

STORM = SLICE[1:2]


class Page(NamedTuple):
    """One of the examples: its pipeline, the question to its table, the batch answer."""

    build: Callable[[Path, Path], Pipeline]
    """Over a file of flights, and one of the weather."""
    query: str
    answer: Callable[[Iterable[flights_oracle.Flight]], Counter[Any]]
    year: Callable[[], Pipeline]
    rows: int
    """Of the year."""


PAGES = {
    "trips": Page(
        lambda flights, _: trips.build(flights),
        "SELECT tailnum, first, last, legs, delay_minutes FROM {} WHERE NOT retracted",
        lambda flights: Counter(flights_oracle.trips(flights)),
        trips.pipeline,
        291_499,
    ),
    "last_three_hours": Page(
        lambda flights, _: last_hours.build(flights),
        "SELECT origin, until, flights, cancelled, delay_minutes, delayed_15 FROM {}",
        lambda flights: Counter(
            (*key, *counts) for key, counts in flights_oracle.last_three_hours(flights).items()
        ),
        last_hours.pipeline,
        87_929,
    ),
    "departure_weather": Page(
        weather.build,
        "SELECT flight_row, origin, departed_at, dep_delay, observed_at, temp, wind_speed, precip, "
        "visib FROM {}",
        lambda flights: Counter(flights_oracle.departure_weather(flights)),
        weather.pipeline,
        336_776,
    ),
}  # fmt: skip


class Seen(msgspec.Struct):
    """What a line of the flights' replay tells of time."""

    seen_at: datetime


class Observed(msgspec.Struct):
    """What a line of the weather's tells."""

    observed_at: datetime


class Files(NamedTuple):
    """A slice of the year."""

    flights: Path
    weather: Path
    rows: int
    """Flights."""


def cut(stretches: Stretches, directory: Path) -> Files:
    """What was seen within some stretches of time, and the weather of two days before as well."""

    def write(path: Path, name: str, time_in: Callable[[bytes], datetime], before: int) -> int:
        rows = 0
        with path.open("rb") as lines, (directory / name).open("wb") as out:
            for line in lines:
                time = time_in(line)
                if any(begin - timedelta(days=before) <= time < end for begin, end in stretches):
                    out.write(line)
                    rows += 1
        return rows

    seen = msgspec.json.Decoder(Seen).decode
    observed = msgspec.json.Decoder(Observed).decode
    rows = write(replay.prepare(), "flights.jsonl", lambda line: seen(line).seen_at, 0)
    write(replay.prepare_weather(), "weather.jsonl", lambda line: observed(line).observed_at, 2)
    return Files(directory / "flights.jsonl", directory / "weather.jsonl", rows)


def check(found: Counter[Any], expected: Counter[Any]) -> None:
    """They are the same, or what differs is told, and not all of it."""
    missing, extra = expected - found, found - expected
    assert found == expected, (
        f"{missing.total()} rows missing, such as {sorted(missing)[:3]}; "
        f"{extra.total()} too much, such as {sorted(extra)[:3]}"
    )
