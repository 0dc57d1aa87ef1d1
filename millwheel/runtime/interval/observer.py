"""Hooks called on engine events."""

from __future__ import annotations

from millwheel.runtime.interval.interval import Interval
from millwheel.runtime.interval.work import IntervalWork


class Observer:
    """Hooks that run in the event loop: they must be short, and must not raise."""

    def interval_taken(self, interval: Interval) -> None:
        """Its counters are as stored."""

    def interval_gone(self, interval: Interval) -> None:
        """Given up or lost; its counters are as stored."""

    def interval_fenced(self, interval: Interval) -> None:
        """Another owner has claimed it; `interval_gone` is called as well."""

    def code_ran(self, interval: Interval, calls: int, seconds: float) -> None:
        """User code was called so often, and took this long each time, waits included."""

    def records_durable(self, interval: Interval, work: IntervalWork) -> None:
        """An interval's part of a commit is durable."""

    def rows_acknowledged(self, interval: Interval, seconds: float) -> None:
        """Rows that were read together, this long ago, are durable at all their readers."""

    def commit_durable(self, seconds: float) -> None:
        """`seconds`: since it was sent."""
