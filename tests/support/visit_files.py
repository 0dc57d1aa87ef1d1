"""Files of visits, and a pipeline that counts them per user and minute."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec

from millwheel import JsonLines, Pipeline, Settings, Stream, Table
from millwheel.computations import Windowed, count
from millwheel.windows import Pane, Tumbling


class Visit(msgspec.Struct):
    at: datetime
    user: str


class Minute(msgspec.Struct, frozen=True):
    user: str
    minute: datetime
    visits: int


VISITS, MINUTES = Stream("visits", Visit), Stream("minutes", Pane[int])

SHARED = replace(
    Settings(), intervals=2, bundle_records=20, chunk_records=10, placement_seconds=0.2
)


def minute(pane: Pane[int]) -> Minute:
    return Minute(str(pane.key), pane.start, pane.value)


def pipeline(name: str, files: list[Path]) -> Pipeline:
    made = Pipeline(name, settings=SHARED)
    made.inject(
        VISITS, JsonLines(files), timestamp=lambda visit: visit.at, lateness=timedelta(seconds=1)
    )
    made.add(Windowed(Tumbling(minutes=1), count, to=MINUTES), VISITS.by(lambda visit: visit.user))
    made.sink(MINUTES, Table("minute", Minute, key=("user", "minute")), row=minute)
    return made


def write(directory: Path, number: int) -> tuple[list[Path], dict[tuple[str, datetime], int]]:
    """Visits in two files, and how many there are per user and minute."""
    begin = datetime(2024, 1, 1, tzinfo=UTC)
    totals: dict[tuple[str, datetime], int] = {}
    files = [directory / f"visits-{part}.jsonl" for part in range(2)]
    for part, path in enumerate(files):
        lines = []
        for n in range(part, number, 2):
            visit = Visit(begin + timedelta(seconds=n), f"user {n * 7 % 23}")
            lines.append(msgspec.json.encode(visit))
            name = (visit.user, visit.at.replace(second=0))
            totals[name] = totals.get(name, 0) + 1
        path.write_bytes(b"\n".join(lines) + b"\n")
    return files, totals
