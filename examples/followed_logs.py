"""Follows the log files of a directory, through their rotation, and counts errors by minute.

    millwheel worker examples.followed_logs:pipeline --store .millwheel
    millwheel sql --watch 'SELECT * FROM errors ORDER BY minute DESC' --store .millwheel

Each line of `logs/*.jsonl` counts once: also of files that appear later, and of files that are
renamed, or copied and truncated. A file that stays silent does not keep the others waiting.
"""

from __future__ import annotations

import os
from datetime import datetime, timedelta
from typing import Literal

from msgspec import Struct

from millwheel import JsonLines, Pipeline, Stream, Table
from millwheel.computations import FlatMap, Windowed, count
from millwheel.windows import Pane, Tumbling

LOGS = os.environ.get("LOGS", "logs")


class Line(Struct):
    at: datetime
    service: str
    level: Literal["debug", "info", "warning", "error"]
    text: str


class Errors(Struct):
    service: str
    minute: datetime
    errors: int


LINES, FAILURES = Stream("lines", Line), Stream("failures", Line)
MINUTES = Stream("minutes", Pane[int])

pipeline = Pipeline("followed_logs")
pipeline.inject(
    LINES,
    JsonLines(f"{LOGS}/*.jsonl", follow=True),
    timestamp=lambda line: line.at,
    lateness=timedelta(seconds=5),
    idle_after=timedelta(seconds=10),
    on_error="dead_letter",  # a line that is no JSON is set aside
)
pipeline.add(
    FlatMap(lambda line: [line] if line.level == "error" else [], to=FAILURES), LINES.spread()
)
pipeline.add(
    Windowed(Tumbling(minutes=1), count, to=MINUTES), FAILURES.by(lambda line: line.service)
)
pipeline.sink(
    MINUTES,
    Table("errors", Errors, key=("service", "minute")),
    row=lambda pane: Errors(str(pane.key), pane.start, pane.value),
)
