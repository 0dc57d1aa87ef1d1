"""Which records are late: what is promised, whatever the size of bundles (docs/why/guarantees.md).

*On time is never late.* A record that comes within the lateness that its source declares is
counted. *Late is told within a bound* where the source is read directly. A record is late when its
window is closed, and a window is closed at the latest when twice as many rows as may be on their
way (`max_pending`) have been read after the row that ended it. In between it depends on how far the
pipeline has got.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from millwheel import Pipeline, Settings, Stream, Table
from millwheel.computations import FlatMap, Windowed, count
from millwheel.testing import inject
from millwheel.testing.script import Script
from millwheel.windows import Pane, Tumbling
from tests.support import flights_oracle
from tests.support.drawing import chosen
from tests.support.pipelines import QUICK
from tests.support.worlds import World

STORM = [(datetime(2013, 6, 27, tzinfo=UTC), datetime(2013, 6, 29, tzinfo=UTC))]
"""Two days of thunderstorms: some 1,900 flights, hundreds of them hours late."""

HOUR = timedelta(hours=1)


class Departure(msgspec.Struct):
    row: int
    origin: str
    planned: datetime
    seen: datetime


FLIGHTS = Stream("flights", Departure)
PASSED_ON = Stream("passed_on", Departure)
LATE = Stream("late", Departure)
HOURS = Stream("hours", Pane[int])


def departures() -> list[Departure]:
    flights = flights_oracle.flights_of(STORM)
    return [Departure(f.row, f.origin, f.planned, f.seen) for f in flights]


async def late_rows(
    rows: Sequence[Departure],
    lateness: timedelta,
    limits: Settings,
    pending: int | None,
    *,
    passed_on: bool = False,
) -> set[int]:
    """The rows that find their window closed.

    Args:
        passed_on: by a computation between source and window.
    """
    pipeline = Pipeline("late", settings=limits)
    pipeline.inject(
        FLIGHTS,
        Script("flights", [inject(FLIGHTS, row) for row in rows]),
        timestamp=lambda flight: flight.planned,
        seen=lambda flight: flight.seen,
        lateness=lateness,
        max_pending=pending,
    )
    windowed = Windowed(Tumbling(hours=1), count, to=HOURS, late=LATE)
    read = FLIGHTS
    if passed_on:
        read = PASSED_ON
        pipeline.add(
            FlatMap(lambda flight: [flight], to=PASSED_ON),
            FLIGHTS.by(lambda flight: flight.origin),
            productions="strong",
        )
    pipeline.add(windowed, read.by(lambda flight: flight.origin))
    pipeline.sink(LATE, Table("late", Departure))
    pipeline.sink(HOURS, Table("hours", Hour), row=lambda pane: Hour(str(pane.key), pane.value))
    world = World(pipeline)
    await world.run(close_at_end=True)
    late = {row[0] for row in world.rows("late")}
    assert sum(row[1] for row in world.rows("hours")) == len(rows) - len(late), "nothing is lost"
    return late


class Hour(msgspec.Struct):
    origin: str
    flights: int


def late_by_declaration(rows: Sequence[Departure], lateness: timedelta, behind: int) -> set[int]:
    """The rows whose window had ended, by the declared lateness, `behind` rows before they came."""
    found = set()
    newest = datetime.min.replace(tzinfo=UTC)
    ended: list[datetime] = []
    """What the source declared to be over before each row."""
    for place, row in enumerate(rows):
        ended.append(newest)
        newest = max(newest, row.seen - lateness)
        end = row.planned.replace(minute=0) + HOUR
        if place >= behind and end <= ended[place - behind]:
            found.add(row.row)
    return found


@pytest.mark.parametrize("minutes", chosen([60, 120, 360], 60))
@pytest.mark.parametrize(
    ("limits", "pending"),
    [
        pytest.param(Settings(), None, id="as they are"),
        pytest.param(Settings(), 100, id="at most 100 on their way"),
        pytest.param(Settings(bundle_records=50, chunk_records=50), 50, id="bundles of 50"),
        pytest.param(Settings(bundle_records=1, chunk_records=1), 1, id="bundles of one"),
    ],
)
async def test_on_time_is_never_late_and_late_is_told_within_the_bound(
    minutes: int, limits: Settings, pending: int | None
) -> None:
    rows, lateness = departures(), timedelta(minutes=minutes)
    limits = replace(
        QUICK,
        intervals=1,
        bundle_records=limits.bundle_records,
        chunk_records=limits.chunk_records,
        max_unacked_records=limits.max_unacked_records,
    )
    late = await late_rows(rows, lateness, limits, pending)
    may_be = late_by_declaration(rows, lateness, 0)
    has_to_be = late_by_declaration(rows, lateness, 2 * (pending or limits.max_unacked_records))
    assert late <= may_be, "on time, and late all the same"
    assert has_to_be <= late, "its window was over long ago, and it was counted"
    if pending is not None and minutes < 360:
        assert has_to_be, "the bound is tried"


@pytest.mark.parametrize(("intervals", "pending"), [(1, 100), (1, 5), (2, 50)])
async def test_on_time_is_never_late_behind_another_computation(
    intervals: int, pending: int
) -> None:
    rows, lateness = departures(), timedelta(minutes=60)
    limits = replace(QUICK, intervals=intervals, bundle_records=50, chunk_records=50)
    late = await late_rows(rows, lateness, limits, pending, passed_on=True)
    assert late
    assert late <= late_by_declaration(rows, lateness, 0)


async def test_a_bound_of_one_row_tells_every_late_record() -> None:
    rows, lateness = departures(), timedelta(minutes=60)
    limits = replace(QUICK, intervals=1, bundle_records=1, chunk_records=1)
    late = await late_rows(rows, lateness, limits, 1)
    assert late_by_declaration(rows, lateness, 2) <= late
    assert late <= late_by_declaration(rows, lateness, 0)
    assert len(late) > 100
