"""The timers of one interval: the soonest in memory, later ones only in the store."""

from __future__ import annotations

from collections.abc import Mapping

from millwheel.core.codec import decode_key
from millwheel.core.effects import TimerIdentity
from millwheel.core.model import Firing, Key, Timer
from millwheel.runtime.interval.interval_watermarks import IntervalWatermarks
from millwheel.runtime.interval.work import Item
from millwheel.store.port.claims import Claim
from millwheel.store.port.states import TimerChange, TimerPlace
from millwheel.timers.queue import Pending, TimerQueue


class IntervalTimers:
    """The timers of an interval since its last claim.

    Args:
        limit: timers of each kind that are kept in memory.
        backlog: the interval's keys that are taken, with the items that wait for each.
    """

    def __init__(
        self,
        claim: Claim,
        limit: int,
        watermarks: IntervalWatermarks,
        backlog: Mapping[bytes, list[Item] | None],
    ) -> None:
        self._limit = limit
        self._watermarks = watermarks
        self._backlog = backlog
        self._durable = claim.n
        self.queues: dict[str, TimerQueue] = {}
        """Timers by kind; holds of user code are stored as timers that never fire."""
        self.firings = 0
        """Due timers taken from the queues that have not run yet."""
        self.taken: dict[TimerIdentity, Firing] = {}
        """Due timers that have not run yet, without replaced or cancelled ones."""
        for kind in ("watermark", "wall", "hold"):
            changes = [change for change in claim.timers if change.kind == kind]
            if changes or kind in claim.more_timers:
                self.add_page(kind, None, changes, more=kind in claim.more_timers)

    def queue(self, kind: str) -> TimerQueue:
        found = self.queues.get(kind)
        if found is None:
            watermarks = self._watermarks
            holds, release = {
                "watermark": (watermarks.holds, watermarks.release),
                "hold": (watermarks.state_holds, watermarks.state_release),
            }.get(kind, (None, []))
            found = self.queues[kind] = TimerQueue(self._limit, holds, release)
            found.durable = self._durable
        return found

    # -- stored timers --------------------------------------------------------------------

    def add_page(
        self, kind: str, after: TimerPlace | None, changes: list[TimerChange], *, more: bool
    ) -> None:
        """Add a page of stored timers.

        Args:
            after: the place of the last timer of the preceding page; None: the first page.
            more: the store may have further timers after this page.
        """
        rows = []
        for change in changes:
            assert change.due is not None
            assert change.hold is not None
            timer = Pending(change.due, change.hold, decode_key(change.key), change.slot)
            rows.append(((change.key, change.tag), timer))
        self.queue(kind).add_page(after, rows, more=more)

    def lacking(self, now: int) -> list[str]:
        """Kinds with due timers that may be only in the store."""
        watermark = self._watermarks.input
        return [
            kind
            for kind, queue in self.queues.items()
            if queue.lacks(now + 1 if kind == "wall" else watermark)
        ]

    def settled(self, n: int) -> None:
        self._durable = n
        for queue in self.queues.values():
            queue.durable = n

    # -- setting and firing ------------------------------------------------------------------

    def set(self, name: TimerIdentity, timer: tuple[int, int, Key, int] | None, n: int) -> None:
        """Set, replace or (None) cancel a timer with commit `n`; that releases the old timer's
        hold."""
        key_text, kind, tag = name
        self.taken.pop(name, None)
        if timer is None:
            self.queue(kind).cancel((key_text, tag), n)
            return
        due, hold, key, slot = timer
        self.queue(kind).put((key_text, tag), due, hold, key, slot, n)
        if self.firings and (waiting := self._backlog.get(key_text)):
            self._put_off(waiting, kind, due, n)

    def _put_off(self, waiting: list[Item], kind: str, due: int, n: int) -> None:
        """Queue due timers that wait behind their key again: they fire after a timer just set for
        an earlier instant (I6)."""
        for item in waiting:
            if (
                isinstance(item, Firing)
                and item.timer.kind == kind
                and item.timer.micros > due
                and self.still_due(item)
            ):
                # Not by `set`, which would in turn put off timers that are later than this one:
                # this loop handles them as well, and there may be thousands.
                name = (item.key_text, item.timer.tag)
                del self.taken[(item.key_text, kind, item.timer.tag)]
                self.queue(kind).put(name, item.timer.micros, item.hold, item.key, item.slot, n)

    def take_due(self, now: int, limit: int) -> list[Firing]:
        """Take up to `limit` due timers, in order of time.

        A watermark timer at T is due when the input watermark is past T; a wall timer when the
        clock has reached T.
        """
        firings = [
            Firing(p.key, name[0], p.slot, Timer(name[1], "watermark", p.due), p.hold)
            for name, p in self.queue("watermark").take_due(self._watermarks.input, limit)
        ]
        firings += [
            Firing(p.key, name[0], p.slot, Timer(name[1], "wall", p.due), p.hold)
            for name, p in self.queue("wall").take_due(now + 1, limit - len(firings))
        ]
        self.firings += len(firings)
        for firing in firings:
            self.taken[(firing.key_text, firing.timer.kind, firing.timer.tag)] = firing
        return firings

    def take_again(self, firing: Firing) -> Firing | None:
        """Take a due timer again that was taken before a restart; None: it is no longer set."""
        queue = self.queue(firing.timer.kind)
        pending = queue.take((firing.key_text, firing.timer.tag), firing.timer.micros)
        if pending is None:
            return None
        again = Firing(
            firing.key, firing.key_text, firing.slot, firing.timer, pending.hold, firing.watermark
        )
        self.taken[(firing.key_text, firing.timer.kind, firing.timer.tag)] = again
        self.firings += 1
        return again

    def fired(self, firing: Firing) -> None:
        """A due timer has run (or was replaced): the next commit releases its hold."""
        self.firings -= 1
        if self.still_due(firing):
            del self.taken[(firing.key_text, firing.timer.kind, firing.timer.tag)]
        if firing.timer.kind == "watermark":
            self._watermarks.release.append(firing.hold)

    def still_due(self, firing: Firing) -> bool:
        """Whether a due timer was neither replaced nor cancelled."""
        name = (firing.key_text, firing.timer.kind, firing.timer.tag)
        return self.taken.get(name) is firing

    def due_at(self, name: TimerIdentity) -> tuple[bool, int | None]:
        """Whether memory knows a timer, and its due time; None: not set."""
        key_text, kind, tag = name
        firing = self.taken.get(name)
        if firing is not None:
            return True, firing.timer.micros
        known, timer = self.queue(kind).known((key_text, tag))
        return known, None if timer is None else timer.due

    def may_have_due(self, key_text: bytes, before: int) -> bool:
        """Whether a key may have a due watermark timer that was not taken; looks at all timers in
        memory."""
        return self.queue("watermark").may_have(key_text, before)

    def next_wall(self) -> int | None:
        queue = self.queues.get("wall")
        return None if queue is None else queue.next_due()

    def has_due(self, now: int) -> bool:
        if not self.queues:
            return False
        due = self._next("watermark")
        if due is not None and due < self._watermarks.input:
            return True
        due = self._next("wall")
        return due is not None and due <= now

    def _next(self, kind: str) -> int | None:
        queue = self.queues.get(kind)
        return None if queue is None else queue.next_due()
