"""The parked keys of one interval: each stands still at a record that failed, and the later ones
wait in order (decision 60).

Their records are rows of ``dead_letter``. Memory has the size of each key, its due timers, which
stay timers in the store, and the records that arrive while the rows run. All of it is read again
when the interval starts over.

A parked key has one *turn* at a time: one row, or the timers that were due before it. Only then it
is known whether the key still stands, and which timers have come due.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter, deque
from collections.abc import Container, Iterator, Sequence
from typing import Any

from millwheel.core.effects import Effects
from millwheel.core.model import MAX_TIME, MIN_TIME, Delivery, Firing
from millwheel.errors import SetAside, UserCodeError
from millwheel.parking import Park
from millwheel.runtime.interval.giving_up import waiting_letter
from millwheel.runtime.interval.interval import Interval
from millwheel.runtime.interval.key_requests import KeyRequest, ParkedRow
from millwheel.runtime.interval.turns import Stopped, Turns
from millwheel.runtime.interval.work import Item
from millwheel.store.port.claims import Claim
from millwheel.store.port.requests import DeadLetter, ParkedKeyPlace, ParkedRows, SettledRequest


class ParkedKey:
    __slots__ = (
        "bytes", "failed", "firings", "held", "read", "records", "rows", "slot", "times", "turn",
    )  # fmt: skip

    def __init__(self, slot: int, found: ParkedRows | None = None) -> None:
        self.slot = slot
        self.rows = 0 if found is None else found.rows
        """Number of its rows, with the failed one."""
        self.bytes = 0 if found is None else found.size
        """Size of their values, in characters."""
        self.failed = found is not None and found.failed
        """A row has failed, so none of them runs until an operator has retried or discarded it."""
        self.times = [] if found is None else sorted(found.times)
        """Timestamps of its rows, in microseconds."""
        self.held: int | None = None
        """Where it holds the low watermark, in microseconds; None: it does not."""
        self.firings: list[Firing] = []
        """Timers that have become due."""
        self.records: list[Delivery[Any]] = []
        """Un-ACKed records that have arrived while rows run, or without room for more rows."""
        self.read: deque[ParkedRow] = deque()
        """Rows that were read from the store and wait for their turn."""
        self.turn: ParkedRow | None = None
        """The row that is next, or runs."""

    def has_room(self, park: Park, others: int) -> bool:
        """Whether one more record may be stored, with so many others."""
        return self.rows + others <= park.most_records and self.bytes <= park.most_bytes

    def add(self, letter: DeadLetter) -> None:
        """Take a row that a turn has stored."""
        assert letter.ts is not None
        self.rows += 1
        self.bytes += len(letter.value)
        insort(self.times, letter.ts)
        self.failed |= letter.parked == "failed"

    def settle(self, request: KeyRequest, settled: SettledRequest) -> None:
        """Take the outcome of a request: a row is gone, or has failed again."""
        letter = request.letter
        if request is self.turn:
            self.turn = None
        if letter is None or letter.parked is None:
            return
        if settled.outcome == "done":
            assert letter.ts is not None
            self.rows -= 1
            self.bytes -= len(letter.value)
            del self.times[bisect_left(self.times, letter.ts)]
            if letter.parked == "failed":
                self.failed = False
        elif settled.failure is not None:
            self.failed = True

    def take_due_before(self, row: ParkedRow) -> list[Firing]:
        """Take the timers that fire before a row: they were due when it arrived."""
        if self.failed or not self.firings:
            return []
        letter = row.letter
        assert letter is not None
        watermark = MIN_TIME if letter.watermark is None else letter.watermark
        due: list[Firing] = []
        later: list[Firing] = []
        for firing in self.firings:
            until = watermark if firing.timer.kind == "watermark" else letter.stamp + 1
            (due if _due(firing) < until else later).append(firing)
        self.firings = later
        for firing in due:
            firing.watermark = watermark
        return sorted(due, key=_due)


class ParkedKeys(Turns):
    """The parked keys of an interval; a row that is next is among the interval's requests.

    Its computation may park no more keys: then these were parked by former code.
    """

    def __init__(self, interval: Interval) -> None:
        super().__init__(interval.step)
        park = interval.step.node.park
        self._interval = interval
        self._park = park or Park()
        self._parks = park is not None
        self._requests = interval.requests
        self._keys: dict[bytes, ParkedKey] = {}

    def restore(self, claim: Claim) -> None:
        """Start only from the stored rows; their holds are those that the present code asks for."""
        for key in self._keys.values():
            self._forget_read(key)
        self._keys = {found.key: ParkedKey(found.slot, found) for found in claim.parked}
        for key in self._keys.values():
            self._hold(key)
        super().restore(claim)
        self.careful.update(self._keys)

    def _is_careful(self, key_text: bytes) -> bool:
        return key_text in self._keys or super()._is_careful(key_text)

    def figures(self) -> dict[str, Any]:
        if not self._keys:
            return {}
        rows = sum(key.rows for key in self._keys.values())
        return {"parked": {"keys": len(self._keys), "rows": rows}}

    @property
    def is_empty(self) -> bool:  # type: ignore[override]
        return all(key.failed for key in self._keys.values())

    # -- the next turn ------------------------------------------------------------------------

    def admitted(self, items: list[Item], running: Container[bytes] = ()) -> list[Item]:
        """The items that have their turn now.

        A row lets the timers that were due before it go first, and has the turn after theirs. Other
        due timers wait here once their hold is settled. So do records that arrive while rows run,
        or for which the store has no room: they are un-ACKed, so that flow control slows their
        sender.
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
            elif isinstance(item, ParkedRow):
                due = key.take_due_before(item)
                found += due or [item]
                if due:
                    self._requests.waiting.appendleft(item)
            elif isinstance(item, KeyRequest):
                found.append(item)
            elif isinstance(item, Delivery):
                others = to_store[item.key_text]
                if key.failed and not key.records and key.has_room(self._park, others):
                    to_store[item.key_text] += 1
                    found.append(item)
                else:
                    key.records.append(item)
            elif item.key_text in rows or _keeps(self._park, item):
                key.firings.append(item)
            else:
                found.append(item)
        return found

    def begin(self, items: list[Item]) -> list[Item]:
        """The items of one turn: of a parked key, those up to the first request. The others wait
        behind it."""
        key_text = items[0].key_text
        if key_text not in self._keys:
            return items
        items, rest = _first_turn(items)
        if rest:
            backlog = self._interval.backlog
            backlog[key_text] = rest + (backlog[key_text] or [])
        return items

    def apart(self, items: list[Item], stopped: Stopped) -> tuple[list[Item], list[Item]]:
        """The items of one turn. A row is given back, to be read again, if a row or a timer before
        it has not run."""
        turn, rest = _first_turn(items)
        row = turn[-1]
        if not isinstance(row, ParkedRow):
            return turn, rest
        assert row.letter is not None
        place = self._interval.id, row.key_text
        before = MIN_TIME if row.letter.watermark is None else row.letter.watermark
        if place not in stopped and not self._interval.timers.may_have_due(row.key_text, before):
            return turn, rest
        stopped.add(place)
        self._requests.settled([row.id])
        return turn[:-1], rest

    def ran_apart(self, key_text: bytes, effects: Effects, stopped: Stopped) -> None:
        if any(one.is_row and one.outcome != "done" for one in effects.settled):
            stopped.add((self._interval.id, key_text))

    # -- while user code runs ---------------------------------------------------------------------

    def watermark_of(self, item: Item, watermark: int) -> int:
        """`watermark`, unless the item is a timer that fires before a row."""
        if isinstance(item, Firing) and item.watermark is not None:
            return item.watermark
        return watermark

    def stops(self, item: Item, *, has_failed: bool) -> bool:
        key = self._keys.get(item.key_text)
        stands = has_failed or (key is not None and key.failed)
        if isinstance(item, KeyRequest):
            return stands and isinstance(item, ParkedRow)
        if isinstance(item, Firing) and item.watermark is not None:
            return stands
        return has_failed or key is not None

    def step_aside(self, item: Item, now: int, watermark: int, before: Effects) -> Effects:
        """Let an item wait: a record in a row, a due timer as it is, a row that was read where it
        is."""
        effects = Effects()
        if isinstance(item, KeyRequest):
            effects.settled.append(SettledRequest(item.id, "refused"))
        elif isinstance(item, Firing):
            item.aside = True
            name = (item.key_text, item.timer.kind, item.timer.tag)
            if self._interval.timers.still_due(item) and name not in before.timers:
                hold = item.hold if self._park.hold_watermark else MAX_TIME
                effects.timers[name] = (item.timer.micros, hold, item.key, item.slot)
        else:
            self.step.renew(item)
            letter = waiting_letter(self.step, item, watermark, now)
            effects.dead_letters.append(letter)
            effects.size += len(letter.value)
        return effects

    def stops_key(self, item: Item) -> bool:
        """False for an operator's request."""
        if isinstance(item, KeyRequest):
            return isinstance(item, ParkedRow)
        return self._parks

    def failed(
        self, item: Item, error: BaseException, attempts: int, now: int, watermark: int
    ) -> Effects:
        """Give up on an item, and park its key if its computation says so.

        Raises:
            UserCodeError: too many keys are parked.
        """
        effects = super().failed(item, error, attempts, now, watermark)
        if not self._parks or isinstance(item, KeyRequest) or isinstance(error, SetAside):
            return effects
        if len(self._keys) >= self._park.most_keys and item.key_text not in self._keys:
            raise UserCodeError(
                f"{self.step.name!r} has {len(self._keys):,} parked keys of the slots "
                f"{self._interval.name}, the most that Park(most_keys={self._park.most_keys}) "
                f"allows, and another one failed: {error}\nNothing of this record was committed. "
                "Fix the code, start again, and retry them: millwheel dead-letters list"
            ) from error
        (letter,) = effects.dead_letters
        seen = self.watermark_of(item, watermark)
        effects.dead_letters = [letter._replace(parked="failed", watermark=seen)]
        return effects

    # -- what was decided ---------------------------------------------------------------------

    def decided(self, key_text: bytes, items: list[Item], effects: Effects) -> list[Item]:
        """Take the rows that a key has got and lost by a turn. The next commit, which has its
        effects, moves its hold."""
        if effects.dead_letters:
            promised = self._interval.watermarks.promised
            effects.dead_letters[:] = [
                letter if letter.parked is None else letter._replace(hold=max(letter.ts, promised))
                for letter in effects.dead_letters
            ]
            for letter in effects.dead_letters:
                if letter.parked is not None:
                    assert letter.key is not None
                    self._keys.setdefault(letter.key, ParkedKey(letter.slot)).add(letter)
                    self._note(letter.key)
        key = self._keys.get(key_text)
        if key is not None:
            for one in effects.settled:
                if (request := self._requests.taken.get(one.id)) is not None:
                    key.settle(request, one)
            self._hold(key)
        return [item for item in items if not (type(item) is Firing and item.aside)]

    def added(self, key_text: bytes) -> None:
        """Let items that have waited in memory have their turn: the key's task takes them."""
        key = self._keys.get(key_text)
        if key is None:
            return
        timers = self._interval.timers
        for firing in [firing for firing in key.firings if not timers.still_due(firing)]:
            key.firings.remove(firing)
            timers.fired(firing)
        if waited := self._released(key_text, key):
            backlog = self._interval.backlog
            backlog[key_text] = waited + (backlog.get(key_text) or [])
        self._interval.wake()

    def _hold(self, key: ParkedKey) -> None:
        """Hold the low watermark at the oldest row of a key, if its computation says so."""
        holds = self._park.hold_watermark and key.rows
        wanted = max(key.times[0], self._interval.watermarks.promised) if holds else None
        if wanted == key.held:
            return
        if wanted is not None:
            self._interval.watermarks.holds.add(wanted)
        if key.held is not None:
            self._interval.watermarks.release.append(key.held)
        key.held = wanted

    def _released(self, key_text: bytes, key: ParkedKey) -> list[Item]:
        """The items in memory that have their turn after the one that was decided."""
        if not key.rows:
            del self._keys[key_text]
            self._note(key_text)
            return [*sorted(key.firings, key=_due), *key.records]
        again: list[Item] = [firing for firing in key.firings if not _keeps(self._park, firing)]
        key.firings = [firing for firing in key.firings if _keeps(self._park, firing)]
        if key.failed:
            self._forget_read(key)
            again += key.records  # to be stored, as far as there is room
            key.records = []
        else:
            self._feed(key)
        return again

    # -- rows that run ------------------------------------------------------------------------

    def places(self) -> Iterator[ParkedKeyPlace]:
        """The keys with unread rows in the store that nothing stops."""
        interval_id, computation = self._interval.id, self.step.id
        for key_text, key in self._keys.items():
            if not (key.failed or key.read or key.turn is not None):
                yield ParkedKeyPlace(interval_id, computation, key.slot, key_text)

    def add_rows(self, rows: Sequence[ParkedRow]) -> None:
        """Take rows that were read, in their order; the first of a key has its turn soon."""
        for row in rows:
            key = self._keys.get(row.key_text)
            if key is not None and not key.failed:
                self._requests.taken[row.id] = row
                key.read.append(row)
                self._feed(key)

    def _feed(self, key: ParkedKey) -> None:
        if key.read and key.turn is None:
            key.turn = key.read.popleft()
            self._requests.waiting.append(key.turn)

    def _forget_read(self, key: ParkedKey) -> None:
        self._requests.settled([row.id for row in key.read])
        key.read.clear()


def _first_turn(items: list[Item]) -> tuple[list[Item], list[Item]]:
    """Divide items behind the first request."""
    for place, item in enumerate(items, 1):
        if isinstance(item, KeyRequest):
            return items[:place], items[place:]
    return items, []


def _keeps(park: Park, firing: Firing) -> bool:
    """Whether a due timer may wait in memory: its hold is wanted, or settled."""
    return park.hold_watermark or firing.timer.kind != "watermark" or firing.hold == MAX_TIME


def _due(firing: Firing) -> int:
    return firing.timer.micros
