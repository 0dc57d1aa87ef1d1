"""Has this record been seen? Ids in flight, then what is remembered of its bucket, then the table.

* An id received and not durable yet: the newcomer joins the first copy and is ACKed with
  it; it is never run, and never ACKed before (paper 6.1.1; I2).
  A copy of the same row of the same log needs no ACK of its own.
* Rows of a source and strong productions come in the order of their logs' numbers (I14): one that is
  newer than the newest seen of its log is new, and that is final (decision 36).
* Ids that come in no order, of weak productions and of users, are in a Bloom filter: "not in it" is
  final. Those of users are looked for in all buckets that are remembered, so that buckets of one span
  of time share a filter: a record asks two or three, not one for each hour of a day.
* "Maybe" asks the table, one look-up for all of a bundle. What is not rebuilt yet answers "maybe" to
  everything.

A weak production is known by the name in its id, whatever it says. If it comes again and says something
else, what came of its input has changed. Made twice by one worker, that is an error: its code does not
depend on its record alone. Made by two, the code may be another one since: the first value stays, the
second is dropped and counted (decision 42).

A computation added with ``exactly_once=False`` knows the ids in flight, and no others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from struct import Struct
from typing import Any, NamedTuple

from pybloom_live import BloomFilter
from xxhash import xxh3_128_digest

from millwheel.codec import shown
from millwheel.errors import NotTheSameAgain, StoreError, StoreUnavailable
from millwheel.model import SLOTS, Delivery, digest_of, is_derived, name_of, run_of
from millwheel.runtime.interval.buckets import Buckets
from millwheel.store.port import Store

_digest = xxh3_128_digest
_words = Struct("<4I").unpack

ERROR_RATE = 0.001
"""Share of new records that are looked up in the table although they are new."""

GROWTH = 4
"""A filter that is full is followed by one for so many times as many ids: each is one more to ask."""

LARGEST = 32_000_000
"""But for no more ids than this, which are 60 MB or, with `ROOM`, 90: so much may be in vain."""

SPARE = 1.2
"""A filter for what is there, or for as much as there was, has room for a little more."""

ROOM = 1.5
"""A filter that many buckets share is given room for so many times the ids that it takes: an id that
it is wrong about is looked up in all of them. That is one of 20,000."""

NAMED = 0
"""In place of a bucket: all those of user-supplied ids."""

FIRST_ID = (bytes(16), -1)
"""Before all ids, with their slots."""

FIRST_DERIVED = (b"\x80" + bytes(15), -1)
"""Before all ids of weak productions, and behind all that come in order."""

REBUILD_ROWS = 1000
"""Ids added between two looks at the event loop: about 3 ms."""


class IdFilter(BloomFilter):  # type: ignore[misc]
    """A pybloom-live filter for 16-byte ids: one hash for all slices, one pass to add.

    The library hashes the text of an id with up to SHA-384 and draws a number per slice from
    it: 2.5 us an id here. This takes the four words of one xxh3-128 and the six sums of two of
    them, written out since a loop or a call costs as much again: 0.9 us. The share of false
    positives stays within the error rate; a test measures it.
    """

    def __init__(self, limit: int, room: float = 1.0) -> None:
        super().__init__(int(limit * room), ERROR_RATE)
        self.limit = limit
        """Ids that it is to take."""
        assert self.num_slices == 10, "as many as are written out"

    def add(self, id_: bytes, skip_check: bool = False) -> bool:
        """Remember an id; True means that it may have been there before."""
        a, b, c, d = _words(_digest(id_))
        n = self.bits_per_slice
        x = self.bitarray
        p, b, c, d = a % n, b % n, c % n, d % n  # small before they are added: half the cost
        q = n + b
        r = 2 * n + c
        s = 3 * n + d
        t = 4 * n + (p + b) % n
        u = 5 * n + (p + c) % n
        v = 6 * n + (p + d) % n
        w = 7 * n + (b + c) % n
        y = 8 * n + (b + d) % n
        z = 9 * n + (c + d) % n
        if x[p] and x[q] and x[r] and x[s] and x[t] and x[u] and x[v] and x[w] and x[y] and x[z]:
            return True
        x[p] = x[q] = x[r] = x[s] = x[t] = x[u] = x[v] = x[w] = x[y] = x[z] = 1
        self.count += 1
        return False

    def __contains__(self, id_: bytes) -> bool:
        a, b, c, d = _words(_digest(id_))
        n = self.bits_per_slice
        x = self.bitarray
        return bool(
            x[a % n] and x[n + b % n] and x[2 * n + c % n] and x[3 * n + d % n]
            and x[4 * n + (a + b) % n] and x[5 * n + (a + c) % n] and x[6 * n + (a + d) % n]
            and x[7 * n + (b + c) % n] and x[8 * n + (b + d) % n] and x[9 * n + (c + d) % n]
        )  # fmt: skip


class Seen:
    """The ids of a bucket, or of a span of them, seen by one interval: the newest number of each log, and
    Bloom filters that grow with what comes in no order."""

    __slots__ = ("_capacity", "_expected", "_filters", "_full", "_room", "newest", "ready")

    def __init__(self, capacity: int, *, ready: bool, room: float = 1.0) -> None:
        self._capacity = capacity
        self._room = room
        """Ids that a filter could hold, for each that it is given."""
        self._filters: list[IdFilter] = []
        self._full: list[IdFilter] = []
        """All but the last."""
        self._expected = 0
        self.newest: dict[int, int] = {}
        """By log."""
        self.ready = ready
        """All is in it that others have seen before."""

    def advance(self, log: int, seq: int) -> bool:
        """Remember a number of a log; True means that it may have been there before."""
        if seq > self.newest.get(log, -1):
            self.newest[log] = seq
            return not self.ready
        return True

    def add(self, id_: bytes) -> bool:
        """Remember an id that comes in no order; True means that it may have been there before."""
        full = self._full
        if full and any(id_ in part for part in full):
            return True
        filters = self._filters
        if not filters or filters[-1].count >= filters[-1].limit:
            if filters and id_ in filters[-1]:
                return True  # what is known takes no room again
            self._grow()
        return filters[-1].add(id_) or not self.ready

    def expect(self, ids: int) -> None:
        """So many more are about to be added: the next filter is to have room for them."""
        self._expected += ids

    def _grow(self) -> None:
        filters = self._filters
        limit = min(filters[-1].limit * GROWTH, LARGEST) if filters else self._capacity
        filters.append(IdFilter(max(limit, int(self._expected * SPARE)), self._room))
        self._full = filters[:-1]
        self._expected = 0

    def may_hold(self, id_: bytes) -> bool:
        """Whether the id may be there."""
        return not self.ready or any(id_ in part for part in self._filters)

    def __len__(self) -> int:
        """How many ids the filters hold."""
        return sum(part.count for part in self._filters)


class Names(NamedTuple):
    """Where user-supplied ids are remembered, at a moment."""

    bucket: int
    """That of those that come now."""
    current: Seen
    older: list[Seen]
    ready: bool

    def add(self, id_: bytes) -> bool:
        """Remember an id; True means that it may have been there before."""
        known = self.current.add(id_)
        return known or not self.ready or any(part.may_hold(id_) for part in self.older)


class Dedup:
    """The seen ids of one interval."""

    def __init__(
        self,
        store: Store,
        buckets: Buckets,
        computation: int,
        slots: tuple[int, int],
        *,
        capacity: int,
        inherited: frozenset[int],
        exactly_once: bool = True,
        rekeyed: bool = False,
    ) -> None:
        """
        Args:
            slots: those of the interval.
            rekeyed: its records may have had other keys, and so other slots, under former code.
        """
        self.exactly_once = exactly_once
        """Whether anything is remembered of what is not in flight."""
        self.inherited = inherited if exactly_once else frozenset()
        """Buckets that were there when the interval was claimed: others may have written ids of
        its slots to them."""
        self._store = store
        self._buckets = buckets
        self._computation = computation
        self._slots = (0, SLOTS) if rekeyed else slots
        """Where others may have noted ids of records that come here."""
        self._capacity = capacity
        self._seen: dict[int, Seen] = {}
        """By bucket."""
        self._spans: dict[int, Seen] = {}
        """User-supplied ids, by the span of time in which their buckets begin."""
        self.sorting: Sequence[Any] = ()
        """Items taken from the queue that are looked up: neither queued nor in flight."""
        self.in_flight: dict[bytes, Delivery[Any]] = {}
        """Ids received and not durable yet, each with the first copy."""
        self._derived: dict[bytes, Delivery[Any]] = {}
        """Those of weak productions, by the name in the id."""
        self._joined: dict[bytes, list[Delivery[Any]]] = {}
        """Later copies of these that need an ACK of their own."""
        self.dropped = 0
        self.maybes = 0
        self.changed = 0
        """Weak productions dropped since the commit before, which said something else than the first
        copy."""
        self.last_changed: Delivery[Any] | None = None
        """The last of them."""

    def seen_in(self, bucket: int) -> Seen:
        """What is remembered of a bucket; an inherited one starts out not ready."""
        found = self._seen.get(bucket)
        if found is None:
            size = max((len(f) for f in self._seen.values()), default=0)
            found = self._seen[bucket] = Seen(
                max(self._capacity, int(size * SPARE)),
                ready=bucket not in self.inherited,
            )
        return found

    def sort(
        self, deliveries: Iterable[Delivery[Any]]
    ) -> tuple[list[Delivery[Any]], dict[int, list[Delivery[Any]]], list[Delivery[Any]]]:
        """Sort what arrived: candidates to run, in order; those of them that may have been
        seen, per bucket to ask (or `NAMED`); and what is surely an old copy.

        Candidates are in flight from here on; copies of ids in flight join them and appear
        nowhere.

        Raises:
            NotTheSameAgain: a worker made a weak production in flight again, with another value.
        """
        if not self.exactly_once:
            return self._admit(deliveries), {}, []
        candidates: list[Delivery[Any]] = []
        maybe: dict[int, list[Delivery[Any]]] = {}
        seen: list[Delivery[Any]] = []
        in_flight = self.in_flight
        buckets = self._buckets
        last = -1
        bucket = low = high = floor = 0
        known = Seen(0, ready=False)
        names: Names | None = None
        for delivery in deliveries:
            id_ = name = delivery.id
            first = in_flight.get(id_)
            if first is None and id_[0] > 0x7F:  # `is_derived`, written out
                name = name_of(id_)
                first = self._derived.get(name)
            if first is not None:
                self._join(first, delivery)
                continue
            if delivery.named:
                if names is None:
                    names = self._names()
                delivery.bucket = names.bucket
                in_flight[id_] = delivery
                candidates.append(delivery)
                if names.add(id_):
                    maybe.setdefault(NAMED, []).append(delivery)
                continue
            source, place = delivery.origin, delivery.stamp
            if source != last:
                last, low, high = source, 0, 0
                floor = buckets.sources.floor(source) if source else buckets.gc_watermark
            if place < floor:
                seen.append(delivery)
                continue
            if not low <= place < high:
                found = buckets.sources.of(source, place) if source else buckets.of_stamp(place)
                bucket, low, high = found.id, found.low, found.high
                known = self.seen_in(bucket)
            in_flight[id_] = delivery
            candidates.append(delivery)
            delivery.bucket = bucket
            if name is id_:
                doubtful = known.advance(delivery.log, delivery.seq)
            else:
                self._derived[name] = delivery
                doubtful = known.add(name)
            if doubtful:
                maybe.setdefault(bucket, []).append(delivery)
        self.dropped += len(seen)
        return candidates, maybe, seen

    def _admit(self, deliveries: Iterable[Delivery[Any]]) -> list[Delivery[Any]]:
        """All but copies of what is in flight, if nothing else is remembered."""
        candidates = []
        for delivery in deliveries:
            name = name_of(delivery.id)
            first = self.in_flight.get(delivery.id) or self._derived.get(name)
            if first is not None:
                self._join(first, delivery)
                continue
            self.in_flight[delivery.id] = delivery
            if is_derived(delivery.id):
                self._derived[name] = delivery
            candidates.append(delivery)
        return candidates

    def take_by_hand(self, delivery: Delivery[Any]) -> None:
        """One that was taken apart is in flight again."""
        self.in_flight.setdefault(delivery.id, delivery)
        if is_derived(delivery.id):
            self._derived.setdefault(name_of(delivery.id), delivery)

    def _join(self, first: Delivery[Any], newcomer: Delivery[Any]) -> None:
        """A copy of what is in flight: acknowledged with it, and counted once it is."""
        if newcomer.id != first.id:
            self._compare(first.id, newcomer)
        copies = self._joined.get(first.id, [])
        if any(newcomer.seq == c.seq and newcomer.log == c.log for c in (first, *copies)):
            self.dropped += 1
        else:
            self._joined[first.id] = [*copies, newcomer]

    def _compare(self, known: bytes, newcomer: Delivery[Any]) -> None:
        """Judge a weak production whose name is known already: it is a copy, whatever it says.

        Raises:
            NotTheSameAgain: the same worker made both, and they differ.
        """
        if digest_of(known) == digest_of(newcomer.id):
            return
        if run_of(known) == run_of(newcomer.id):
            raise another_value(newcomer)
        self.changed += 1
        self.last_changed = newcomer

    def landed(self, ids: Iterable[bytes]) -> list[Delivery[Any]]:
        """The records of these ids are durable: every copy, to be acknowledged."""
        pop = self.in_flight.pop
        copies = [pop(id_) for id_ in ids]
        if self._derived:
            for copy in copies:
                self._derived.pop(name_of(copy.id), None)
        if self._joined:
            joined = [late for first in copies for late in self._joined.pop(first.id, ())]
            self.dropped += len(joined)
            copies += joined
        return copies

    def held(self) -> Iterator[Delivery[Any]]:
        """Everything in flight, every copy that is to be acknowledged."""
        yield from self.in_flight.values()
        for copies in self._joined.values():
            yield from copies

    def take_out(self, id_: bytes) -> list[Delivery[Any]]:
        """A record is in flight no more, though nothing of it is noted: every copy, the first one
        first."""
        first = self.in_flight.pop(id_)
        if self._derived:
            self._derived.pop(name_of(id_), None)
        return [first, *self._joined.pop(id_, ())]

    def start_over(self) -> list[Delivery[Any]]:
        """Everything in flight, in the order it came; none of it is any more."""
        copies = [
            c for first in self.in_flight.values() for c in (first, *self._joined.get(first.id, ()))
        ]
        self.in_flight.clear()
        self._derived.clear()
        self._joined.clear()
        return copies

    def _names(self) -> Names:
        buckets = self._buckets.named()
        spans = self._buckets.named_spans()
        for gone in self._spans.keys() - spans:
            del self._spans[gone]
        *older, current = [self._span(span) for span in spans]
        return Names(buckets[-1], current, older, all(self.seen_in(b).ready for b in buckets))

    def _span(self, span: int) -> Seen:
        """What is remembered of user-supplied ids whose buckets begin in a span of time."""
        found = self._spans.get(span)
        if found is None:
            size = max((len(f) for f in self._spans.values()), default=0)
            capacity = max(self._capacity, int(size * SPARE))
            found = self._spans[span] = Seen(capacity, ready=True, room=ROOM)
        return found

    async def look_up(self, maybe: dict[int, list[Delivery[Any]]]) -> set[bytes]:
        """Which of the maybes are in the table; they are counted.

        Raises:
            NotTheSameAgain: the table has a weak production of the name, of the same worker and with
                another value.
        """
        found: set[bytes] = set()
        for bucket, deliveries in maybe.items():
            ids = [delivery.id for delivery in deliveries]
            known = await (
                self._known_names(ids) if bucket == NAMED else self._known_in(bucket, ids)
            )
            names = {name_of(id_): id_ for id_ in known if is_derived(id_)}
            for delivery in deliveries:
                if delivery.id in known:
                    found.add(delivery.id)
                elif names and (first := names.get(name_of(delivery.id))) is not None:
                    self._compare(first, delivery)
                    found.add(delivery.id)
        self.maybes += sum(map(len, maybe.values()))
        self.dropped += len(found)
        return found

    async def _known_in(self, bucket: int, ids: list[bytes]) -> set[bytes]:
        """Which of these a bucket has. If it was dropped, everything in it was acknowledged: what comes of
        it again is a remnant."""
        try:
            return await self._store.look_up_seen([bucket], self._computation, ids)
        except StoreUnavailable:
            raise
        except StoreError:
            if not await self._buckets.is_gone(bucket):
                raise
            return set(ids)

    async def _known_names(self, ids: list[bytes]) -> set[bytes]:
        """Which of these the buckets of user-supplied ids have. What one held that was dropped is
        forgotten."""
        while True:
            asked = self._buckets.named()
            try:
                return await self._store.look_up_seen(asked, self._computation, ids)
            except StoreUnavailable:
                raise
            except StoreError:
                await self._buckets.load()
                if self._buckets.named() == asked:
                    raise

    def forget_buckets(self, buckets: Iterable[int]) -> None:
        """Forget what is remembered of dropped buckets."""
        for bucket in buckets:
            self._seen.pop(bucket, None)

    def inherited_by_kind(self) -> tuple[list[int], list[int]]:
        """Inherited buckets: those with filters of their own, and those that share some."""
        inherited = sorted(self.inherited)
        sharing = [id_ for id_ in inherited if self._buckets.named_span(id_) is not None]
        return [id_ for id_ in inherited if id_ not in sharing], sharing

    async def expect(self, bucket: int) -> None:
        """Have room for the user-supplied ids that others have seen of an inherited bucket."""
        span = self._buckets.named_span(bucket)
        if span is not None:
            found = await self._store.count_seen(bucket, self._computation, self._slots)
            self._span(span).expect(found)

    async def rebuild(self, bucket: int) -> None:
        """Learn from its table what others have seen of an inherited bucket: of ids in order the
        newest of each log, whatever its slot, and slice by slice those in no order."""
        found = self.seen_in(bucket)
        span = self._buckets.named_span(bucket)
        if span is not None:
            after, filters = FIRST_ID, self._span(span)
        else:
            after, filters = FIRST_DERIVED, found
            newest = await self._store.newest_seen(bucket, self._computation)
            for log, number in newest.items():
                found.advance(log, number)
        while not found.ready:
            rows = await self._store.scan_seen(
                bucket, self._computation, self._slots, after, REBUILD_ROWS
            )
            for id_, _ in rows:
                filters.add(name_of(id_))
            if len(rows) < REBUILD_ROWS:
                found.ready = True
                return
            after = rows[-1]
            await asyncio.sleep(0)


def another_value(delivery: Delivery[Any]) -> NotTheSameAgain:
    """The error for a weak production that is known by its name, and says something new."""
    return NotTheSameAgain(
        f"a weak production of stream {delivery.stream!r}, key {delivery.key!r}, has come again and "
        f"says something else than before (id {delivery.id.hex()}): {shown(delivery.value, 300)}\n"
        "One worker has run the code that writes the stream twice on the same record, and what it "
        'produced differs. With productions="weak" it must depend on its record alone. Take out what '
        "differs from run to run (the clock, random numbers, what is kept outside of the state) and "
        "start again: values that have arrived stay as they are. If that cannot be taken out, the "
        'computation needs productions="strong", and a pipeline with another name: in a deployed '
        "one that cannot be changed"
    )
