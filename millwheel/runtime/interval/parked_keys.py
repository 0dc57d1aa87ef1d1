"""The parked keys of one interval: each stands still at a record that failed, and the later ones wait in order (decision 60).

Their records are rows of ``dead_letter``. Memory has the size of each key, its due timers, which stay timers in the
store, and the records that arrive while the rows run. All of it is read again when the interval starts over.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator
from operator import attrgetter
from typing import Any

from millwheel.context import Effects
from millwheel.model import MAX_TIME, Delivery, Firing
from millwheel.parking import Park
from millwheel.runtime.interval.requests import IntervalRequests, KeyRequest
from millwheel.runtime.interval.work import Item
from millwheel.store.port import ParkedKeyPlace, ParkedRows, SettledRequest

UNPARK = "unpark"
"""The verb of a request that runs a row; its owner asks itself, and the store has no such request."""

HOLD = "millwheel:parked"
"""Tag of the timer that holds the low watermark for a parked key; it is due at the end of time."""


class ParkedKey:
    """One parked key."""

    __slots__ = ("busy", "bytes", "failed", "firings", "hold", "read", "records", "rows", "slot")

    def __init__(self, slot: int, rows: int, size: int, *, failed: bool, oldest: int) -> None:
        self.slot = slot
        self.rows = rows
        """Number of its rows, with the failed one."""
        self.bytes = size
        """Size of their values."""
        self.failed = failed
        """A row has failed, so none of them runs until an operator has retried or discarded it."""
        self.hold = oldest
        """Least timestamp of a row since the key was parked, in microseconds."""
        self.firings: list[Firing] = []
        """Timers that have become due."""
        self.records: list[Delivery[Any]] = []
        """Records that have arrived while rows run, or when there was no room for more rows; un-ACKed."""
        self.read: deque[KeyRequest] = deque()
        """Rows that were read from the store and wait for their turn."""
        self.busy = False
        """A row has its turn."""


class ParkedKeys:
    """The parked keys of an interval.

    Args:
        park: how its computation parks keys; None: it parks no more keys, and these were parked by former code.
        requests: the requests to its keys; a row that is next is among them.
    """

    def __init__(self, park: Park | None, requests: IntervalRequests) -> None:
        self.park = park or Park()
        self._parks = park is not None
        self._requests = requests
        self._keys: dict[bytes, ParkedKey] = {}

    def restore(self, found: Iterable[ParkedRows]) -> None:
        """Start only from the stored rows."""
        self._requests.settled([row.id for key in self._keys.values() for row in key.read])
        self._keys = {
            each.key: ParkedKey(
                each.slot, each.rows, each.bytes, failed=each.failed, oldest=each.oldest
            )
            for each in found
        }

    def __len__(self) -> int:
        return len(self._keys)

    def __contains__(self, key_text: bytes) -> bool:
        return key_text in self._keys

    def get(self, key_text: bytes) -> ParkedKey | None:
        """A parked key; None: it is not parked."""
        return self._keys.get(key_text)

    @property
    def rows(self) -> int:
        """Number of rows of all keys."""
        return sum(key.rows for key in self._keys.values())

    @property
    def have_ended(self) -> bool:
        """Whether no row can run before an operator does something."""
        return all(key.failed for key in self._keys.values())

    def runs_apart_from(self, key_texts: Iterable[bytes]) -> bool:
        """Whether none of some keys is parked."""
        return not self._keys or self._keys.keys().isdisjoint(key_texts)

    # -- what goes in -------------------------------------------------------------------------

    def admitted(self, items: list[Item]) -> list[Item]:
        """The items that have their turn now, each row behind the timers that were due before it.

        Due timers with a settled hold wait here, and so do records that arrive while rows run, or for which the
        store has no room: they are un-ACKed, so that flow control slows their sender.
        """
        if not self._keys:
            return items
        found: list[Item] = []
        to_store: Counter[bytes] = Counter()
        for item in items:
            key = self._keys.get(item.key_text)
            if key is None:
                found.append(item)
            elif isinstance(item, KeyRequest):
                if item.verb == UNPARK:
                    found += _before(key, item)
                found.append(item)
            elif isinstance(item, Delivery):
                if key.failed and self._has_room(key, to_store[item.key_text]):
                    to_store[item.key_text] += 1
                    found.append(item)
                else:
                    key.records.append(item)
            elif isinstance(item, Firing) and self._keeps(item):
                key.firings.append(item)
            else:
                found.append(item)
        return found

    def stops(self, item: Item, *, just_failed: bool) -> bool:
        """Whether an item of a key must not run: it is parked, or put back.

        Args:
            just_failed: an item before it has failed.
        """
        key = self._keys.get(item.key_text)
        if isinstance(item, KeyRequest) or (
            isinstance(item, Firing) and item.watermark is not None
        ):
            has_failed = just_failed or (key is not None and key.failed)
            return has_failed and not (isinstance(item, KeyRequest) and item.verb != UNPARK)
        return just_failed or key is not None

    def _has_room(self, key: ParkedKey, others: int) -> bool:
        """Whether a record may be stored in a key, with so many others."""
        return key.rows + others <= self.park.most_records and key.bytes <= self.park.most_bytes

    def _keeps(self, firing: Firing) -> bool:
        """Whether a due timer may wait in memory: its hold is wanted, or settled."""
        return (
            self.park.hold_watermark
            or firing.timer.kind != "watermark"
            or firing.hold == MAX_TIME
            or firing.timer.tag == HOLD
        )

    def has_stopped(self, item: Item) -> bool:
        """Whether the failure of an item stops its key: not that of an operator's request."""
        if isinstance(item, KeyRequest):
            return item.verb == UNPARK
        return self._parks

    # -- what was decided ---------------------------------------------------------------------

    def decided(self, key_text: bytes, effects: Effects) -> list[Item] | None:
        """Take the rows that a key has got and lost.

        Returns:
            Items that have waited in memory and have their turn now; None: the key is not parked.
        """
        for letter in effects.dead_letters:
            if letter.parked is not None:
                self._add(letter)
        key = self._keys.get(key_text)
        if key is None:
            return None
        for one in effects.settled:
            self._settled(key, one)
        if not key.rows:
            del self._keys[key_text]
            return [*sorted(key.firings, key=_due), *key.records]
        if key.failed:
            self._requests.settled([row.id for row in key.read])
            key.read.clear()
            waited: list[Item] = [*key.records]
            key.records.clear()
            return waited  # to be stored, as far as there is room
        self._feed(key)
        return []

    def _add(self, letter: Any) -> None:
        key = self._keys.get(letter.key)
        if key is None:
            key = self._keys[letter.key] = ParkedKey(
                letter.slot, 0, 0, failed=False, oldest=letter.ts
            )
        key.rows += 1
        key.bytes += len(letter.value)
        key.hold = min(key.hold, letter.ts)
        key.failed |= letter.parked == "failed"

    def _settled(self, key: ParkedKey, one: SettledRequest) -> None:
        request = self._requests.taken.get(one.id)
        if request is None:
            return
        if request.verb == UNPARK:
            key.busy = False
        if request.letter is None or request.letter.parked is None:
            return
        if one.outcome == "done":
            key.rows -= 1
            key.bytes -= len(request.letter.value)
            if request.letter.parked == "failed":
                key.failed = False
        elif one.failure is not None:
            key.failed = True

    # -- rows that run ------------------------------------------------------------------------

    def places(self, interval_id: int, computation: int) -> Iterator[ParkedKeyPlace]:
        """The keys with rows to read from the store: nothing stops them, and none is read already."""
        for key_text, key in self._keys.items():
            if not (key.failed or key.read or key.busy):
                yield ParkedKeyPlace(interval_id, computation, key.slot, key_text)

    def add_rows(self, rows: Iterable[KeyRequest]) -> None:
        """Take rows that were read, in their order; the first of a key has its turn soon."""
        for row in rows:
            key = self._keys.get(row.key_text)
            if key is not None and not key.failed:
                self._requests.taken[row.id] = row
                key.read.append(row)
                self._feed(key)

    def _feed(self, key: ParkedKey) -> None:
        """Let the next row have its turn. One row at a time, since the timers that it sets may be due before the
        next one."""
        if key.read and not key.busy:
            key.busy = True
            self._requests.waiting.append(key.read.popleft())


def _before(key: ParkedKey, request: KeyRequest) -> list[Firing]:
    """The timers of a key that fire before a row: they were due when it arrived."""
    if not key.firings:
        return []
    assert request.letter is not None
    watermark, arrived = request.letter.watermark or 0, request.letter.stamp
    due: list[Firing] = []
    later: list[Firing] = []
    for firing in key.firings:
        until = watermark if firing.timer.kind == "watermark" else arrived
        is_due = _due(firing) < until and firing.timer.tag != HOLD
        (due if is_due else later).append(firing)
    key.firings = later
    for firing in due:
        firing.watermark = watermark
    return sorted(due, key=_due)


_due = attrgetter("timer.micros")
