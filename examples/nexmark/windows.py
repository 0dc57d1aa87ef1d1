"""Overlapping windows, cut from the plain ones that the engine has."""

from __future__ import annotations

from datetime import datetime, timedelta

from examples.nexmark.model import EPOCH

SIZE = timedelta(seconds=10)
"""Of every window of these queries, as of the gap between two sessions."""
PERIOD = timedelta(seconds=5)
"""From one sliding window's start to the next one's."""
ONE_MICROSECOND = timedelta(microseconds=1)


def start_of(moment: datetime, size: timedelta = SIZE) -> datetime:
    """The start of the tumbling window ``[start, start + size)`` that holds `moment`."""
    return moment - (moment - EPOCH) % size


def starts_of(moment: datetime, period: timedelta = PERIOD) -> list[datetime]:
    """The starts of the sliding windows ``[start, start + SIZE)`` that hold `moment`."""
    latest = start_of(moment, period)
    starts = []
    while latest + SIZE > moment:
        starts.append(latest)
        latest -= period
    return starts


def last_of(start: datetime) -> datetime:
    """The last microsecond of the window that begins at `start`: when it is decided."""
    return start + SIZE - ONE_MICROSECOND
