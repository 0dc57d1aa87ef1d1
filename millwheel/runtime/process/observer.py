"""Who is told what happens inside a worker, at the moment when it does."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from millwheel.runtime.interval.interval import Interval


class Observer:
    """Hears of everything and makes nothing of it. Its methods are called in the event loop: they
    must be short, and may not fail."""

    def interval_taken(self, interval: Interval) -> None:
        """An interval was claimed; its counters are as stored."""

    def interval_gone(self, interval: Interval) -> None:
        """An interval was given up or lost; its counters are as stored."""

    def interval_fenced(self, interval: Interval) -> None:
        """Another owner had claimed an interval; that it is gone is told as well."""

    def commit_durable(self, seconds: float) -> None:
        """A commit took so long, from being sent to known durable."""
