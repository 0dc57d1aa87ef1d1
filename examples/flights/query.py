"""The table `airport_hour` of `examples.flights`, by a query in place of a class.

``millwheel run examples.flights.query:pipeline`` maintains it: the same rows.
"""

from __future__ import annotations

from pathlib import Path

from examples.flights import FLIGHTS, LATENESS, SETTINGS, AirportHour, replay
from millwheel import JsonLines, Pipeline, Settings, Stream, Table

HOURS = Stream("airport_hours", AirportHour)
"""Its type is checked against the columns of the query."""

QUERY = """
INSERT INTO airport_hours
SELECT origin, window_start AS hour, count(*) AS flights,
    count(*) FILTER (WHERE cancelled) AS cancelled,
    coalesce(sum(dep_delay), 0)::bigint AS delay_minutes,
    count(*) FILTER (WHERE dep_delay >= 15) AS delayed_15
FROM TUMBLE(flights, scheduled_at, INTERVAL '1 hour')
GROUP BY origin, window_start
ALLOWED LATENESS UNBOUNDED
"""


def build(path: Path, *, settings: Settings = SETTINGS) -> Pipeline:
    """The pipeline over a replay file."""
    pipeline = Pipeline("flights_query", settings=settings)
    pipeline.inject(
        FLIGHTS,
        JsonLines(path),
        timestamp=lambda flight: flight.scheduled_at,
        seen=lambda flight: flight.seen_at,
        lateness=LATENESS,
    )
    pipeline.sql(QUERY, HOURS)
    pipeline.sink(HOURS, Table("airport_hour", AirportHour, key=("origin", "hour")))
    return pipeline


def pipeline() -> Pipeline:
    """The pipeline over the whole year; prepares the replay file the first time."""
    return build(replay.prepare())
