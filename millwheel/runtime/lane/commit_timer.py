"""When an interval's watermark, ACKs or position are stored without records to ride on."""

from __future__ import annotations

import asyncio
from math import ceil

from millwheel.runtime.interval.interval import Interval
from millwheel.settings import Settings


class CommitTimer:
    """Asks for a commit of intervals that have something to store, now or after a pause.

    Args:
        wanted: set when a commit is to be made.
    """

    def __init__(self, settings: Settings, wanted: asyncio.Event) -> None:
        self._settings = settings
        self._wanted = wanted
        self._timer: asyncio.Handle | None = None
        """On uvloop a handle that does not know its time, if that is less than half a millisecond away."""
        self._alone_at: dict[Interval, float] = {}
        """When each interval has asked, or will ask, for a commit of its watermark alone."""
        self._due = 0.0
        """When it rings, by the event loop's clock."""

    def touch(self, interval: Interval, *, urgent: bool) -> None:
        """Store something of the interval with the next commit, or with one of its own after a while:
        soon if readers wait for it, as they do for a watermark.

        A watermark waits a little while its interval's records are on their way, as its commit would
        delay them, and if the interval's last one was stored alone just before: then all such
        intervals of the lane wait for the same instant, and share a commit. Otherwise it is stored
        at once.
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
        """When a watermark may be stored alone."""
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
        """An interval is gone."""
        self._alone_at.pop(interval, None)

    def cancel(self) -> None:
        """Ask for nothing more."""
        if self._timer is not None:
            self._timer.cancel()


def _next_turn(earliest: float, now: float, pause: float) -> float:
    """When a watermark may be stored alone: now if `earliest` is over, otherwise at a multiple of the
    pause, so that intervals that wait for their turn have it together."""
    return now if earliest <= now else ceil(earliest / pause) * pause
