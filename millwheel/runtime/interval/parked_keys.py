"""The parked keys of one interval: each stands still at a record that failed, and the later ones
wait in order (decision 60).

Their records are rows of ``dead_letter``. Memory has the size of each key, its due timers, which
stay timers in the store, and the records that arrive while the rows run. All of it is read again
when the interval starts over.

A parked key has one *turn* at a time: one row, or the timers that were due before it. Only then it
is known whether the key still stands, and which timers have come due by what has run.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter, deque
from collections.abc import Callable, Container, Iterable, Iterator
from typing import Any

from millwheel.core.effects import Effects
from millwheel.core.model import MAX_TIME, MIN_TIME, Delivery, Firing
from millwheel.parking import Park
from millwheel.runtime.interval.interval_watermarks import IntervalWatermarks
from millwheel.runtime.interval.requests import IntervalRequests, KeyRequest
from millwheel.runtime.interval.work import Item
from millwheel.store.port.requests import DeadLetter, ParkedKeyPlace, ParkedRows, SettledRequest

UNPARK = "unpark"
"""The verb of a request that runs a row; its owner asks itself, and the store has no such
request."""


class ParkedKey:
    """One parked key."""

    __slots__ = (
        "bytes", "failed", "firings", "held", "read", "records", "rows", "slot", "times", "turn",
    )  # fmt: skip

    def __init__(self, slot: int, rows: int, size: int, *, failed: bool, times: list[int]) -> None:
        self.slot = slot
        self.rows = rows
        """Number of its rows, with the failed one."""
        self.bytes = size
        """Size of their values, in characters."""
        self.failed = failed
        """A row has failed, so none of them runs until an operator has retried or discarded it."""
        self.times = sorted(times)
        """Timestamps of its rows, in microseconds."""
        self.held: int | None = None
        """Where it holds the low watermark, in microseconds; None: it does not."""
        self.firings: list[Firing] = []
        """Timers that have become due."""
        self.records: list[Delivery[Any]] = []
        """Records that have arrived while rows run, or when there was no room for more rows;
        un-ACKed."""
        self.read: deque[KeyRequest] = deque()
        """Rows that were read from the store and wait for their turn."""
        self.turn: KeyRequest | None = None
        """The row that is next, or runs."""


class ParkedKeys:
    """The parked keys of an interval.

    Args:
        park: how its computation parks keys; None: it parks no more keys, and these were parked by
            former code.
        requests: the requests to its keys; a row that is next is among them.
    """

    def __init__(self, park: Park | None, requests: IntervalRequests) -> None:
        self.park = park or Park()
        self._parks = park is not None
        self._requests = requests
        self._keys: dict[bytes, ParkedKey] = {}
        self._watermarks: IntervalWatermarks

    def restore(self, found: Iterable[ParkedRows], watermarks: IntervalWatermarks) -> None:
        """Start only from the stored rows; their holds are those that the present code asks for."""
        self._watermarks = watermarks
        for key in self._keys.values():
            self._forget_read(key)
        self._keys = {
            each.key: ParkedKey(
                each.slot, each.rows, each.size, failed=each.failed, times=each.times
            )
            for each in found
        }
        for key in self._keys.values():
            self._hold(key)

    def __len__(self) -> int:
        return len(self._keys)

    def __contains__(self, key_text: bytes) -> bool:
        return key_text in self._keys

    @property
    def rows(self) -> int:
        """Number of rows of all keys."""
        return sum(key.rows for key in self._keys.values())

    @property
    def have_ended(self) -> bool:
        """Whether no row can run before an operator does something."""
        return all(key.failed for key in self._keys.values())

    def are_apart_from(self, key_texts: Iterable[bytes]) -> bool:
        """Whether none of some keys is parked."""
        return not self._keys or self._keys.keys().isdisjoint(key_texts)

    # -- the next turn ------------------------------------------------------------------------

    def admitted(self, items: list[Item], running: Container[bytes] = ()) -> list[Item]:
        """The items that have their turn now.

        A row lets the timers that were due before it go first, and has the turn after theirs. Other
        due timers wait here once their hold is settled. So do records that arrive while rows run,
        or for which the store has no room: they are un-ACKed, so that flow control slows their
        sender.

        Args:
            running: keys that have a turn: their items wait behind it, and are looked at again
                afterwards.
        """
        if not self._keys:
            return items
        rows = {item.key_text for item in items if isinstance(item, KeyRequest)}
        to_store: Counter[bytes] = Counter()
        found: list[Item] = []
        for item in items:
            key = self._keys.get(item.key_text)
            if key is None or item.key_text in running:
                found.append(item)
            elif isinstance(item, KeyRequest):
                found += self._row_or_timers(key, item)
            elif isinstance(item, Delivery):
                others = to_store[item.key_text]
                if key.failed and not key.records and self._has_room(key, others):
                    to_store[item.key_text] += 1
                    found.append(item)
                else:
                    key.records.append(item)
            elif item.key_text in rows or self._keeps(item):
                key.firings.append(item)
            else:
                found.append(item)
        return found

    def _row_or_timers(self, key: ParkedKey, request: KeyRequest) -> list[Item]:
        if request.verb != UNPARK or key.failed or not (due := _due_before(key, request)):
            return [request]
        self._requests.waiting.appendleft(request)
        return [*due]

    @staticmethod
    def first_turn(items: list[Item]) -> tuple[list[Item], list[Item]]:
        """Divide a parked key's items behind the first request: the others have other turns."""
        for place, item in enumerate(items, 1):
            if isinstance(item, KeyRequest):
                return items[:place], items[place:]
        return items, []

    def stops(self, item: Item, *, just_failed: bool) -> bool:
        """Whether an item of a key must not run: it is parked, or put back.

        Args:
            just_failed: an item before it has failed.
        """
        key = self._keys.get(item.key_text)
        has_failed = just_failed or (key is not None and key.failed)
        if isinstance(item, KeyRequest):
            return has_failed and item.verb == UNPARK
        if isinstance(item, Firing) and item.watermark is not None:
            return has_failed
        return just_failed or key is not None

    def has_stopped(self, item: Item) -> bool:
        """Whether the failure of an item stops its key: not that of an operator's request."""
        if isinstance(item, KeyRequest):
            return item.verb == UNPARK
        return self._parks

    def _has_room(self, key: ParkedKey, others: int) -> bool:
        """Whether a record may be stored in a key, with so many others."""
        return key.rows + others <= self.park.most_records and key.bytes <= self.park.most_bytes

    def _keeps(self, firing: Firing) -> bool:
        """Whether a due timer may wait in memory: its hold is wanted, or settled."""
        return (
            self.park.hold_watermark or firing.timer.kind != "watermark" or firing.hold == MAX_TIME
        )

    # -- what was decided ---------------------------------------------------------------------

    def decided(self, key_text: bytes, effects: Effects) -> None:
        """Take the rows that a key has got and lost by a turn. The next commit, which has its
        effects, moves its hold."""
        for letter in effects.dead_letters:
            if letter.parked is not None:
                self._add(letter)
        key = self._keys.get(key_text)
        if key is not None:
            for one in effects.settled:
                self._settled(key, one)
            self._hold(key)

    def _hold(self, key: ParkedKey) -> None:
        """Hold the low watermark at the oldest row of a key, if its computation says so."""
        holds = self.park.hold_watermark and key.rows
        wanted = max(key.times[0], self._watermarks.promised) if holds else None
        if wanted == key.held:
            return
        if wanted is not None:
            self._watermarks.holds.add(wanted)
        if key.held is not None:
            self._watermarks.release.append(key.held)
        key.held = wanted

    def drop_void(self, key_text: bytes, still_due: Callable[[Firing], bool]) -> list[Firing]:
        """Drop the due timers of a key that were replaced or cancelled.

        Args:
            still_due: whether a timer was not.
        """
        key = self._keys.get(key_text)
        if key is None:
            return []
        void = [firing for firing in key.firings if not still_due(firing)]
        key.firings = [firing for firing in key.firings if still_due(firing)]
        return void

    def released(self, key_text: bytes) -> list[Item] | None:
        """The items that have waited in memory and have their turn after the one that was decided;
        None: there is no such key."""
        key = self._keys.get(key_text)
        if key is None:
            return None
        if not key.rows:
            del self._keys[key_text]
            return [*sorted(key.firings, key=_due), *key.records]
        again: list[Item] = [firing for firing in key.firings if not self._keeps(firing)]
        key.firings = [firing for firing in key.firings if self._keeps(firing)]
        if key.failed:
            self._forget_read(key)
            again += key.records  # to be stored, as far as there is room
            key.records = []
        else:
            self._feed(key)
        return again

    def _add(self, letter: DeadLetter) -> None:
        assert letter.key is not None
        assert letter.ts is not None
        key = self._keys.get(letter.key)
        if key is None:
            key = self._keys[letter.key] = ParkedKey(letter.slot, 0, 0, failed=False, times=[])
        key.rows += 1
        key.bytes += len(letter.value)
        insort(key.times, letter.ts)
        key.failed |= letter.parked == "failed"

    def _settled(self, key: ParkedKey, one: SettledRequest) -> None:
        request = self._requests.taken.get(one.id)
        if request is None:
            return
        if request is key.turn:
            key.turn = None
        letter = request.letter
        if letter is None or letter.parked is None:
            return
        if one.outcome == "done":
            assert letter.ts is not None
            key.rows -= 1
            key.bytes -= len(letter.value)
            del key.times[bisect_left(key.times, letter.ts)]
            if letter.parked == "failed":
                key.failed = False
        elif one.failure is not None:
            key.failed = True

    # -- rows that run ------------------------------------------------------------------------

    def places(self, interval_id: int, computation: int) -> Iterator[ParkedKeyPlace]:
        """The keys with rows to read from the store: nothing stops them, and none is read
        already."""
        for key_text, key in self._keys.items():
            if not (key.failed or key.read or key.turn is not None):
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
        """Let the next row have its turn."""
        if key.read and key.turn is None:
            key.turn = key.read.popleft()
            self._requests.waiting.append(key.turn)

    def _forget_read(self, key: ParkedKey) -> None:
        self._requests.settled([row.id for row in key.read])
        key.read.clear()


def _due_before(key: ParkedKey, request: KeyRequest) -> list[Firing]:
    """Take the timers of a key that fire before a row: they were due when it arrived."""
    if not key.firings:
        return []
    letter = request.letter
    assert letter is not None
    watermark = MIN_TIME if letter.watermark is None else letter.watermark
    due: list[Firing] = []
    later: list[Firing] = []
    for firing in key.firings:
        until = watermark if firing.timer.kind == "watermark" else letter.stamp + 1
        (due if _due(firing) < until else later).append(firing)
    key.firings = later
    for firing in due:
        firing.watermark = watermark
    return sorted(due, key=_due)


def _due(firing: Firing) -> int:
    return firing.timer.micros
