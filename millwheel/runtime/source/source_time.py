"""How far one source is in event time, and when its rows were sent; plain data: no await, no
clock."""

from __future__ import annotations

from collections import deque
from datetime import timedelta

from millwheel.core.model import MIN_TIME, clamp_time
from millwheel.core.source_progress import SourceProgress
from millwheel.runtime.interval.interval import StoredPosition


class SourceTime:
    """`position` is the stored one, `first` the first row that is not acknowledged.

    Rows before `sent_before` may have been sent by an owner before this claim. Times are in
    microseconds.
    """

    def __init__(
        self,
        lateness: timedelta,
        position: StoredPosition,
        first: int,
        sent_before: int,
        now: int,
    ) -> None:
        stored = SourceProgress.stored(position.value)
        self.lateness = int(lateness.total_seconds() * 1e6)
        """Microseconds by which the watermark stays behind the newest seen time."""
        self.seen = stored.event_time
        self._marks: deque[tuple[int, int, int]] = deque()
        """Number of rows before this point, newest seen time, and time at which the last of these
        rows was read."""
        self._stored_since = stored.since
        self._sent_before = sent_before
        self._sent_since = position.since
        """Earliest time at which a former owner can have sent a row that is not stored as
        acknowledged."""
        self.mark(first, self._stored_since or now)

    def mark(self, rows_before: int, read_at: int) -> None:
        self._marks.append((rows_before, self.seen, read_at))

    def show(self, moment: int | None, rows_before: int, read_at: int) -> bool:
        """Adopt an event time that the source itself shows; returns whether it is news."""
        if moment is None or moment <= self.seen:
            return False
        self.seen = moment
        self.mark(rows_before, read_at)
        return True

    def acknowledged(self, first: int) -> None:
        marks = self._marks
        while len(marks) > 1 and marks[1][0] <= first:
            marks.popleft()

    def caught_up(self, next_row: int) -> None:
        """The source has no further row: no former owner can have sent one that was not read
        here."""
        self._sent_before = min(self._sent_before, next_row)

    def watermark(self) -> int | None:
        return None if self.seen == MIN_TIME else clamp_time(self.seen - self.lateness)

    @property
    def seen_by_acknowledged(self) -> int:
        """The newest time that acknowledged rows have shown: the stored position begins with it."""
        return self._marks[0][1]

    def first_sent(self, first: int, now: int) -> int:
        """Earliest time at which a row past the stored position can have been sent.

        Buckets of user-supplied ids that end later stay: such a row comes again after a crash
        (`named_acknowledged.sql`). Rows of former owners count until they are acknowledged again,
        or are known not to exist: a paused injector reads nothing, and so cannot know.
        """
        if first < self._sent_before:
            return self._sent_since
        for rows_before, _, read_at in self._marks:
            if rows_before > first:
                return read_at
        return now

    def held_since(self, *, held: bool) -> int:
        """Time at which the row that holds the watermark was read; without one, the newest row."""
        marks = self._marks
        return marks[1 if held and len(marks) > 1 else -1][2]
