"""Late data: a reading for a minute that has closed corrects its row for an hour; one that is
later still goes to a table of its own.

    echo '{"at": "2024-01-01T02:00:10Z", "sensor": "a", "value": 10}' > readings.jsonl
    echo '{"at": "2024-01-01T02:02:00Z", "sensor": "a", "value": 12}' >> readings.jsonl
    millwheel run examples.late_data:pipeline --store .millwheel --keep-open
    echo '{"at": "2024-01-01T02:00:50Z", "sensor": "a", "value": 30}' >> readings.jsonl
    echo '{"at": "2024-01-01T00:00:00Z", "sensor": "a", "value": 99}' >> readings.jsonl
    millwheel run examples.late_data:pipeline --store .millwheel --keep-open
    millwheel sql 'TABLE minutes' 'TABLE too_late' --store .millwheel --pipeline late_data
"""

from __future__ import annotations

from datetime import datetime, timedelta

from msgspec import Struct

from millwheel import JsonLines, Pipeline, Stream, Table
from millwheel.computations import Windowed, mean
from millwheel.windows import Pane, Tumbling


class Reading(Struct):
    at: datetime
    sensor: str
    value: float


class Minute(Struct):
    sensor: str
    minute: datetime
    mean: float


READINGS = Stream("readings", Reading)
MINUTES = Stream("minutes", Pane[float])
TOO_LATE = Stream("too_late", Reading)


def value(reading: Reading) -> float:
    return reading.value


def row(pane: Pane[float]) -> Minute:
    return Minute(str(pane.key), pane.start, pane.value)


TEN_SECONDS, HOUR = timedelta(seconds=10), timedelta(hours=1)

pipeline = Pipeline("late_data")
pipeline.inject(
    READINGS, JsonLines("readings.jsonl"), timestamp=lambda each: each.at, lateness=TEN_SECONDS
)
pipeline.add(
    Windowed(Tumbling(minutes=1), mean(value), to=MINUTES, late=TOO_LATE, allowed_lateness=HOUR),
    READINGS.by(lambda reading: reading.sensor),
)
pipeline.sink(MINUTES, Table("minutes", Minute, key=("sensor", "minute")), row=row)
pipeline.sink(TOO_LATE, Table("too_late", Reading))
