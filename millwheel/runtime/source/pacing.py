"""How many rows of a partition may be on their way: a cap, or one that holds a latency.

A *root* is a row of a source; it is pending from when it is read until all its readers have made its
effects durable. What is pending takes memory, and time: a row waits behind all that were read before.
So a cap on the one is a bound on the other, if one knows how quick the readers are (decision 31).

They tell with each reading. One after which `p` roots were pending, and which was acknowledged after
`L` seconds, says that they do `p` in `L` (Little's law), so that in the time aimed at they would do ::

    p * aim / L + least(√p, p / 8)

of which the summand lets partitions that share their readers come to equal shares: it gives the
smaller ones relatively more. The cap is what all but one of the last 20 readings allow, and no more
than twice what was tried. A latency is paired with what was pending *then*, so a reading from before the
cap fell does not press it down once more. One that was slow while the cap was not used up says that of
the cap: others share the readers, and it is not for the least of them to give way. One that was quick
while less than half of it was used says nothing.

It may be that nothing is acknowledged before more is read: a bundle that was open when its sink ended
waits for all its members (decision 30), and these were read under the cap of before. So a cap that
is used up, and under which nothing moves, does not stay either.

The rest point is where `L = aim / (1 - 1/√cap)`, or `aim * 8/7` for caps below 64: some way below the
target, since what is acknowledged together comes in steps.

Plain code: time comes in, numbers go out.
"""

from __future__ import annotations

from collections import deque
from math import sqrt
from typing import NamedTuple

FIRST_CAP = 16
"""Where a cap that moves begins: it doubles while that is too little."""

READINGS = 20
"""So many are remembered. One of them may be slow: the target is for 95 of 100."""

AIM = 0.75
"""Of the target: what the summand adds comes on top, a seventh at the most."""

PARTS = 8
"""A cap is filled in so many readings at the least: what was read together waits together."""

SILENT_SECONDS = 30.0
"""A cap below which nothing is acknowledged for so long is doubled, and again after as long."""

LEAST_SECONDS = 1e-6
"""Less than a latency ever is."""


class Reading(NamedTuple):
    """Rows that were read together."""

    end: int
    """One past the last row's number."""
    pending: int
    """Roots on their way, these among them."""
    cap: float
    at: float
    """Monotonic seconds."""


class Estimate(NamedTuple):
    """What a reading said of the readers when it was acknowledged."""

    allowed: float
    """Roots that may be pending so that the latency is the one aimed at."""
    tried: float
    """Roots that were pending."""


class Flow(NamedTuple):
    """What is told of a partition. Times in seconds."""

    pending: int
    """Roots on their way."""
    cap: int
    """How many may be."""
    latency: float | None
    """Within which 95 of 100 of the last readings were acknowledged; None: there was none yet."""
    target: float | None
    """Within which they should be; None: the cap stays as it is."""
    lag_rows: int | None = None
    """Rows that are there and were not read yet; None: not known."""
    lag_bytes: int | None = None
    """Bytes of these rows; None: not known."""


class Pace:
    """The cap of one partition.

    Args:
        most: the cap, or where one that moves ends. At least 1.
        target_seconds: within which readings are to be acknowledged; None: the cap stays.
    """

    def __init__(self, most: int, target_seconds: float | None = None) -> None:
        self.most = most
        self.target_seconds = target_seconds
        self._cap = float(most if target_seconds is None else min(most, FIRST_CAP))
        self._readings: deque[Reading] = deque()
        self._estimates: deque[Estimate] = deque(maxlen=READINGS)
        self._latencies: deque[float] = deque(maxlen=READINGS)
        self._moved_at = float("inf")
        """When something was acknowledged last, or else read while nothing was on its way."""

    @property
    def cap(self) -> int:
        """Roots that may be pending, at least 1."""
        return max(1, int(self._cap))

    @property
    def latency_seconds(self) -> float | None:
        """What 95 of 100 of the last readings took at the most; None: there was none yet."""
        latencies = sorted(self._latencies, reverse=True)
        return latencies[len(latencies) // READINGS] if latencies else None

    def room(self, pending: int, chunk: int) -> int:
        """How many rows to read now, `chunk` at the most; 0: when some were acknowledged.

        There is room for one when none is pending. It is not given out in crumbs.
        """
        cap = self.cap
        part = max(1, min(chunk, cap // PARTS))
        room = cap - pending
        if room < part:
            return 0
        return min(room, chunk if self.target_seconds is None else part)

    def read(self, end: int, pending: int, now: float) -> None:
        """Rows up to number `end` were read, and so many roots are pending since."""
        if not self._readings:
            self._moved_at = now
        self._readings.append(Reading(end, pending, self._cap, now))

    def acknowledged(self, first: int, now: float) -> None:
        """Something is, and all rows before number `first` are acknowledged."""
        self._moved_at = now
        readings = self._readings
        while readings and readings[0].end <= first:
            reading = readings.popleft()
            self._judge(reading, now - reading.at)

    def loosen(self, now: float) -> bool:
        """See whether nothing moves under a cap that is used up; then let more be read.

        Returns:
            Whether more may be.
        """
        if self.target_seconds is None or now - self._moved_at < SILENT_SECONDS:
            return False
        self._moved_at = now
        self._cap = min(2 * self._cap, float(self.most))
        return True

    def start_over(self) -> None:
        """What was on its way will be read again; what was learned is not forgotten."""
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
        allowed = tried * aim / max(latency, LEAST_SECONDS) + min(sqrt(tried), tried / 8)
        estimates = self._estimates
        estimates.append(Estimate(allowed, tried))
        allowed = sorted(estimates)[len(estimates) // READINGS].allowed
        most_tried = max(estimate.tried for estimate in estimates)
        self._cap = min(max(1.0, min(allowed, 2 * most_tried)), float(self.most))
