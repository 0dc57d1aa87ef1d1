"""The cap on pending rows of a partition: fixed, or adapted to a latency target. Plain code: time
comes in, numbers go out.

A *root* is a row of a source. It is pending from its read until all its readers have made its
effects durable. A row waits behind all rows read before it, so a cap bounds the latency, if the
speed of the readers is known (decision 31).

If `p` roots were pending after a reading (rows read together), and it was acknowledged after `L`
seconds, then the readers process `p` roots in `L` (Little's law). In the time aimed at, they would
process ::

    p * aim / L + min(√p, p / 8)

The second summand makes partitions that share their readers converge to equal shares. The cap is
the number that all but one of the last 20 readings allow, and at most twice the largest number
tried. A latency is paired with the number pending *at that reading*, so a reading from before a
fall of the cap does not lower it again. A slow reading that used only a part of the cap is paired
with the whole cap: other partitions share the readers, and the smallest need not give way. A fast
reading that used less than half of the cap is ignored.

A used-up cap also grows if nothing is acknowledged for a while: an open bundle may wait for members
that were read under a higher cap (decision 30).

The fixed point is `L = aim / (1 - 1/√cap)`, or `aim * 8/7` for caps below 64: somewhat below the
target, since acknowledgements arrive in batches.
"""

from __future__ import annotations

from collections import deque
from math import sqrt
from typing import NamedTuple

FIRST_CAP = 16
"""An adaptive cap doubles while it is too small."""

READINGS = 20
"""Remembered readings. One of them may be slow: the target is a 95th percentile."""

AIM = 0.75
"""Aim as a part of the target; the second summand adds at most a seventh."""

PARTS = 8
"""Minimum number of readings that fill a cap: rows that were read together wait together."""

SILENT_SECONDS = 30.0
"""A used-up cap is doubled after this time without an acknowledgement."""

LEAST_SECONDS = 1e-6
"""Avoids a division by zero."""


class Reading(NamedTuple):
    end: int
    pending: int
    """Pending roots, including these rows."""
    cap: float
    at: float
    """Monotonic seconds."""


class Estimate(NamedTuple):
    allowed: float
    """Pending roots at which the latency would be the aim."""
    tried: float
    """Pending roots that the latency belongs to."""


class Flow(NamedTuple):
    """Times are in seconds."""

    pending: int
    cap: int
    latency: float | None
    """95th percentile from read to acknowledgement."""
    target: float | None
    """Target of `latency`; None: the cap is fixed."""
    lag_rows: int | None = None
    """Available rows that were not read yet."""
    lag_bytes: int | None = None
    log_start: int | None = None
    """Offset of the first row that the partition still has."""
    log_end: int | None = None
    """One past the offset of the last row."""


class Pace:
    """`most` is the fixed cap, or the upper limit of an adaptive one, at least 1. No target: a
    fixed cap."""

    def __init__(self, most: int, target_seconds: float | None = None) -> None:
        self.most = most
        self.target_seconds = target_seconds
        self._cap = float(most if target_seconds is None else min(most, FIRST_CAP))
        self._readings: deque[Reading] = deque()
        self._estimates: deque[Estimate] = deque(maxlen=READINGS)
        self._latencies: deque[float] = deque(maxlen=READINGS)
        self._moved_at = float("inf")
        """The last acknowledgement, or a later read while no reading was pending."""

    @property
    def cap(self) -> int:
        return max(1, int(self._cap))

    @property
    def latency_seconds(self) -> float | None:
        """95th percentile of the last readings."""
        latencies = sorted(self._latencies, reverse=True)
        return latencies[len(latencies) // READINGS] if latencies else None

    def room(self, pending: int, chunk: int) -> int:
        """There is room for a row when none is pending. Room smaller than a part of the cap counts
        as none."""
        cap = self.cap
        part = max(1, min(chunk, cap // PARTS))
        room = cap - pending
        if room < part:
            return 0
        return min(room, chunk if self.target_seconds is None else part)

    def read(self, end: int, pending: int, now: float) -> None:
        """Note that the rows before number `end` were read, with `pending` roots by now."""
        if not self._readings:
            self._moved_at = now
        self._readings.append(Reading(end, pending, self._cap, now))

    def acknowledged(self, first: int, now: float) -> list[float]:
        """Returns the seconds since each reading before row `first`."""
        self._moved_at = now
        readings = self._readings
        latencies: list[float] = []
        while readings and readings[0].end <= first:
            reading = readings.popleft()
            latencies.append(now - reading.at)
            self._judge(reading, latencies[-1])
        return latencies

    def loosen(self, now: float) -> bool:
        """Whether a used-up cap was doubled."""
        if self.target_seconds is None or now - self._moved_at < SILENT_SECONDS:
            return False
        self._moved_at = now
        self._cap = min(2 * self._cap, float(self.most))
        return True

    def start_over(self) -> None:
        """Forget pending readings: their rows will be read again."""
        self._readings.clear()

    def _judge(self, reading: Reading, latency: float) -> None:
        self._latencies.append(latency)
        if self.target_seconds is None or not reading.pending:
            return
        aim = AIM * self.target_seconds
        tried = float(reading.pending)
        if latency > aim:
            tried = reading.cap
        elif tried < reading.cap / 2:
            return
        estimate = tried * aim / max(latency, LEAST_SECONDS) + min(sqrt(tried), tried / 8)
        estimates = self._estimates
        estimates.append(Estimate(estimate, tried))
        allowed = sorted(estimates)[len(estimates) // READINGS].allowed
        most_tried = max(each.tried for each in estimates)
        self._cap = min(max(1.0, min(allowed, 2 * most_tried)), float(self.most))
