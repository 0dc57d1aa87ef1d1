"""The rates that viewers have seen of late, in the memory of the pages.

Each look that a page makes for a viewer notes the rates. Without viewers there are no looks, so the
lines have gaps and cost nothing. They begin again with the process.
"""

from __future__ import annotations

import threading
from array import array
from collections import OrderedDict
from typing import NamedTuple

MOST_POINTS = 120
"""Of a line; the oldest go first."""
MOST_LINES = 2000
"""Of all pipelines together, 2 kB each; those noted longest ago go first."""
SPAN_SECONDS = 180.0
"""Older points are not shown."""
LEAST_SECONDS = 0.5
"""Two pages that show a step note one point."""
LATE_SECONDS = 20.0
"""A look that takes long is noted after newer ones; an even older time is of a clock that was set
back."""

WHOLE = ""
"""In place of a step: the pipeline."""


class RatePoint(NamedTuple):
    ago_seconds: float
    per_second: float


class _Line:
    """Times in seconds, and rates."""

    def __init__(self) -> None:
        self.times = array("d")
        self.rates = array("d")

    def append(self, at: float, rate: float) -> None:
        since = at - self.times[-1] if self.times else LEAST_SECONDS
        if since < -LATE_SECONDS:
            del self.times[:], self.rates[:]
        elif since < LEAST_SECONDS:
            return
        self.times.append(at)
        self.rates.append(rate)
        del self.times[:-MOST_POINTS], self.rates[:-MOST_POINTS]


class RateHistory:
    """May be used by several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lines: OrderedDict[tuple[str, str], _Line] = OrderedDict()

    def note(self, pipeline: str, at: float, rates: dict[str, float | None]) -> None:
        """Note rates of steps, or of `WHOLE`. None: not known, so a gap.

        Args:
            at: seconds, by the database's clock.
            rates: records per second, by step.
        """
        with self._lock:
            for step, rate in rates.items():
                if rate is None:
                    continue
                line = self._lines.setdefault((pipeline, step), _Line())
                self._lines.move_to_end((pipeline, step))
                line.append(at, rate)
            while len(self._lines) > MOST_LINES:
                self._lines.popitem(last=False)

    def of(self, pipeline: str, step: str, at: float) -> list[RatePoint]:
        """The points of the `SPAN_SECONDS` before `at`, oldest first."""
        with self._lock:
            line = self._lines.get((pipeline, step))
            if line is None:
                return []
            return [
                RatePoint(round(at - then, 1), rate)
                for then, rate in zip(line.times, line.rates, strict=True)
                if 0 <= at - then <= SPAN_SECONDS
            ]
