"""Times commits that store an interval's watermark, ACKs or position without records."""

from __future__ import annotations

import asyncio
from math import ceil

from millwheel.runtime.interval.interval import Interval
from millwheel.settings import Settings


class CommitTimer:
    """Asks for a commit of intervals that have something to store, now or after a pause.

    Args:
        wanted: asks the committer for a commit.
    """

    def __init__(self, settings: Settings, wanted: asyncio.Event) -> None:
        self._settings = settings
        self._wanted = wanted
        self._timer: asyncio.Handle | None = None
        """A plain `Handle`: uvloop's handle does not know its time if that is less than half a
        millisecond away."""
        self._alone_at: dict[Interval, float] = {}
        """When each interval may next have a commit that stores only its watermark, by the loop's
        clock."""
        self._due = 0.0
        """When the timer expires, by the loop's clock."""

    def touch(self, interval: Interval, *, urgent: bool) -> None:
        """Store something for the interval with the next commit, or with a separate one after a
        pause.

        Args:
            urgent: readers wait for it, as for a low watermark: store it at once. It waits a little
                if records of the interval are queued, running or un-ACKed, since its commit would
                delay them. It also waits if the interval's last watermark was stored alone just
                before: all such intervals of the lane then share a commit.
        """
        if interval.drained:
            return
        interval.dirty = True
        loop = asyncio.get_running_loop()
        now = loop.time()
        due = now + self._settings.idle_commit_seconds
        if urgent:
            due = self._due_alone(interval, now)
            if due <= now:
                self._wanted.set()
                return
        if self._timer is not None:
            if self._due <= due:
                return
            self._timer.cancel()
        self._due = due
        self._timer = loop.call_at(due, self._ring)

    def _due_alone(self, interval: Interval, now: float) -> float:
        """The earliest time at which a commit may store only the interval's watermark."""
        pause = self._settings.watermark_commit_seconds
        if interval.is_in_motion:
            return now + pause
        last = self._alone_at.get(interval, float("-inf"))
        if last > now:
            return last
        due = self._alone_at[interval] = _next_turn(last + pause, now, pause)
        return due

    def _ring(self) -> None:
        self._timer = None
        self._wanted.set()

    def forget(self, interval: Interval) -> None:
        self._alone_at.pop(interval, None)

    def cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()


def _next_turn(earliest: float, now: float, pause: float) -> float:
    """Now if `earliest` is past, otherwise a multiple of the pause, so that waiting intervals share
    a commit."""
    return now if earliest <= now else ceil(earliest / pause) * pause
