"""Hooks called on engine events."""

from __future__ import annotations

from millwheel.runtime.interval.interval import Interval
from millwheel.runtime.interval.work import IntervalWork


class Observer:
    """Does nothing on any event. Subclasses override methods, which run in the event loop: they
    must be short, and must not raise."""

    def interval_taken(self, interval: Interval) -> None:
        """An interval was claimed; its counters are as stored."""

    def interval_gone(self, interval: Interval) -> None:
        """An interval was given up or lost; its counters are as stored."""

    def interval_fenced(self, interval: Interval) -> None:
        """Another owner has claimed an interval; `interval_gone` is called as well."""

    def code_ran(self, interval: Interval, calls: int, seconds: float) -> None:
        """User code of an interval was called so many times, and took so long each time, waits
        included."""

    def records_durable(self, interval: Interval, work: IntervalWork) -> None:
        """An interval's part of a commit is durable."""

    def rows_acknowledged(self, interval: Interval, seconds: float) -> None:
        """Rows that were read together are durable at all their readers; `seconds` is the time
        since they were read."""

    def commit_durable(self, seconds: float) -> None:
        """A commit is durable; `seconds` is the time since it was sent."""
