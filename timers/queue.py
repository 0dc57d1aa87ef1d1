"""Pending timers of one interval and kind, ordered by due time.

Memory holds only the earliest timers. The others are *far*: in the store alone, and read page by
page as time approaches them, so that a million timers neither fill memory nor delay a claim. One
place in the order of time divides near from far; the far timers together hold the low watermark
there. A page shows the durable timers; later changes are remembered by timer name and override it.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from typing import NamedTuple

from millwheel.core.model import Key
from millwheel.timers.holds import Holds

TimerName = tuple[bytes, str]

Place = tuple[int, int, bytes, str]
"""Due, slot, key, tag."""

UNDECIDED = 1 << 62
"""Stands for the commit that will remove a fired timer while its number is not known."""


class Pending(NamedTuple):
    """A timer that is set. `due` and `hold` are in microseconds.

    ```python
    pending = Pending(due=60_000_000, hold=60_000_000, key="ann", slot=7)
    assert pending._replace(due=0).hold == 60_000_000
    ```
    """

    due: int
    hold: int
    key: Key
    slot: int


class TimerQueue:
    """Timers by name and by time: set, replace, cancel, take the due ones (paper 4.6).

    ```python
    timers = TimerQueue(limit=1_000, holds=Holds(), release=[])
    timers.put((b'"ann"', "pay"), due=60, hold=60, key="ann", slot=7, n=1)
    timers.put((b'"bob"', "pay"), due=90, hold=90, key="bob", slot=3, n=1)
    assert [timer.key for _, timer in timers.take_due(before=70, limit=10)] == ["ann"]
    assert timers.next_due() == 90
    ```

    Args:
        limit: number of timers in memory; up to twice as many while timers are being set.
        holds: counts the hold of each timer in memory; None for a kind of timer without holds.
        release: receives the holds of removed timers; the next commit releases them.
    """

    def __init__(self, limit: int, holds: Holds | None, release: list[int]) -> None:
        self._limit = limit
        self._holds = holds
        self._release = release
        self._pending: dict[TimerName, Pending] = {}
        self._heap: list[Place] = []
        self._last: Place | None = None
        """The last place in memory; None if there are no far timers."""
        self._recent: dict[TimerName, tuple[int, Pending | None]] = {}
        """Changes that the store may not show yet: commit number, and the timer or None."""
        self._forget_at = limit
        self.durable = 0
        self._shown: int | None = None
        """While a page is being read, the last commit that it certainly shows."""

    def put(self, name: TimerName, due: int, hold: int, key: Key, slot: int, n: int) -> None:
        """Set or replace a timer, in commit `n`."""
        self._drop(name)
        timer = Pending(due, hold, key, slot)
        self._remember(name, n, timer)
        if self._last is None or (due, slot, *name) <= self._last:
            self._add(name, timer)
            if len(self._pending) > 2 * self._limit:
                self._send_away()

    def cancel(self, name: TimerName, n: int) -> None:
        self._drop(name)
        self._remember(name, n, None)

    def take(self, name: TimerName, due: int) -> Pending | None:
        """Remove and return a timer if it is in memory and due at `due`; its hold stays."""
        timer = self._pending.get(name)
        if timer is None or timer.due != due:
            return None
        del self._pending[name]
        self._recent[name] = (UNDECIDED, None)
        return timer

    def known(self, name: TimerName) -> tuple[bool, Pending | None]:
        """Whether memory knows of a timer, and the timer if it is set. The store knows of the
        others."""
        if name in self._pending:
            return True, self._pending[name]
        if name in self._recent:
            return True, self._recent[name][1]
        return self._last is None, None

    def next_due(self) -> int | None:
        """The time at which the next timer is due, or a far timer may be."""
        heap, pending = self._heap, self._pending
        while heap:
            due, _, key_text, tag = heap[0]
            timer = pending.get((key_text, tag))
            if timer is not None and timer.due == due:
                return due
            heapq.heappop(heap)
        return None if self._last is None else self._last[0]

    def take_due(self, before: int, limit: int) -> list[tuple[TimerName, Pending]]:
        """Remove and return up to `limit` timers due before `before`, earliest first; their holds
        stay."""
        taken: list[tuple[TimerName, Pending]] = []
        while self._pending and len(taken) < limit:
            due = self.next_due()
            if due is None or due >= before or not self._pending:
                break
            _, _, key_text, tag = heapq.heappop(self._heap)
            name = (key_text, tag)
            taken.append((name, self._pending.pop(name)))
            self._recent[name] = (UNDECIDED, None)
        return taken

    def may_have(self, key_text: bytes, before: int) -> bool:
        """Whether a timer of a key may be due before an instant; looks at all timers in memory."""
        if self._last is not None and self._last[0] < before:
            return True
        return any(
            timer.due < before for name, timer in self._pending.items() if name[0] == key_text
        )

    # -- far timers -----------------------------------------------------------------

    def lacks(self, before: int) -> bool:
        """Whether memory is empty while far timers may be due, or hold the watermark, before
        `before`."""
        return self._last is not None and not self._pending and self._last[0] < before

    def begin_page(self) -> Place | None:
        """The place after which to read the next page, which will show everything that is durable
        now."""
        self._shown = None
        self._forget_durable()
        self._shown = self.durable
        return self._last

    def add_page(
        self, after: Place | None, rows: Iterable[tuple[TimerName, Pending]], *, more: bool
    ) -> None:
        """Add the page of timers that the store had `after` a place.

        Args:
            more: the store has further timers behind this page.
        """
        last, before = self._last, self._far_hold()
        self._shown = None
        if last != after:
            return  # timers set during the read moved the border: the page must be read again
        found = list(rows)
        self._last = None
        if more:
            name, timer = found[-1]
            self._last = (timer.due, timer.slot, *name)
        for name, timer in found:
            if name not in self._recent and name not in self._pending:
                self._add(name, timer)
        for name, (_, recent) in self._recent.items():
            if recent is None or name in self._pending:
                continue
            place = (recent.due, recent.slot, *name)
            if (last is None or place > last) and (self._last is None or place <= self._last):
                self._add(name, recent)
        self._change_far_hold(before)

    def _send_away(self) -> None:
        before = self._far_hold()
        places = sorted((t.due, t.slot, *name) for name, t in self._pending.items())
        self._last = places[self._limit - 1]
        self._change_far_hold(before)
        for _, _, key_text, tag in places[self._limit :]:
            timer = self._pending.pop((key_text, tag))
            if self._holds is not None:
                self._holds.remove(timer.hold)
        self._heap = places[: self._limit]

    def _far_hold(self) -> int | None:
        return None if self._last is None else self._last[0]

    def _change_far_hold(self, before: int | None) -> None:
        if self._holds is None:
            return
        now = self._far_hold()
        if now is not None:
            self._holds.add(now)
        if before is not None:
            self._holds.remove(before)

    # -- names ------------------------------------------------------------------------

    def _add(self, name: TimerName, timer: Pending) -> None:
        self._pending[name] = timer
        heapq.heappush(self._heap, (timer.due, timer.slot, *name))
        if self._holds is not None:
            self._holds.add(timer.hold)

    def _drop(self, name: TimerName) -> None:
        timer = self._pending.pop(name, None)
        if timer is not None and self._holds is not None:
            self._release.append(timer.hold)

    def _remember(self, name: TimerName, n: int, timer: Pending | None) -> None:
        self._recent[name] = (n, timer)
        if len(self._recent) > self._forget_at:
            self._forget_durable()
            self._forget_at = max(self._limit, 2 * len(self._recent))

    def _forget_durable(self) -> None:
        durable = self.durable if self._shown is None else self._shown
        self._recent = {name: kept for name, kept in self._recent.items() if kept[0] > durable}

    def __len__(self) -> int:
        return len(self._pending)

    @property
    def is_whole(self) -> bool:
        return self._last is None
