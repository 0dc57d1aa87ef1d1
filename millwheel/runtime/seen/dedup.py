"""Deduplication: checks ids in flight, then the memory of the record's bucket, then the table.

* An id in flight has been received and is not durable yet. A later copy joins the first one and is
  ACKed with it; it is never run, and never ACKed before (paper 6.1.1; I2). A copy of the same row
  of the same log needs no ACK of its own.
* Rows of a source and strong productions arrive in the order of their logs' numbers (I14). A record
  with a greater number than the newest one seen of its log is certainly new (decision 36).
* Ids of weak productions and user-supplied ids arrive in no order. They are kept in Bloom filters:
  "not in it" is final. User-supplied ids are looked up in all live buckets. Buckets of one time
  span share a filter: a record asks two or three filters, not one per hour of a day.
* A "maybe" asks the table, with one look-up per chunk. A bucket that is not rebuilt in memory yet
  answers "maybe" to everything.

A weak production is identified by the name in its id, not by its value. The same name with another
value means that its sender's code has produced another output for the same input. If one worker has
made both, that is an error: the code does not depend on its record alone. If two workers have made
them, the code may have changed: the first value stays, and the second is dropped and counted
(decision 42).

A computation added with ``exactly_once=False`` remembers only the ids in flight.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from struct import Struct
from typing import Any, NamedTuple

from pybloom_live import BloomFilter
from xxhash import xxh3_128_digest

from millwheel.core.chunk import Chunk
from millwheel.core.codec import shown
from millwheel.core.model import (
    SLOTS,
    Delivery,
    digest_of,
    is_derived,
    log_and_number,
    name_of,
    record_id,
    run_of,
)
from millwheel.core.redaction import shown_key
from millwheel.errors import NotTheSameAgain, StoreError, StoreUnavailable
from millwheel.runtime.seen.seen_buckets import Buckets
from millwheel.store.port import Store

_digest = xxh3_128_digest
_words = Struct("<4I").unpack

ERROR_RATE = 0.001
"""Share of new records that a filter wrongly takes for known, so that the table is asked."""

GROWTH = 4
"""Each new filter holds GROWTH times the ids of the previous one: few filters mean few look-ups."""

LARGEST = 32_000_000
"""Capacity in ids of the largest filter: 60 MB, or 90 MB with `ROOM`."""

SPARE = 1.2
"""Factor by which a filter exceeds the number of known ids."""

ROOM = 1.5
"""Shared filters are oversized by this factor, for fewer false positives (1 in 20,000): each one is
looked up in all of the filter's buckets."""

NAMED = 0
"""Stands for all buckets of user-supplied ids, in place of a bucket's id."""


class IdFilter(BloomFilter):  # type: ignore[misc]
    """A pybloom-live filter for 16-byte ids: one hash for all slices, one pass to add.

    The library hashes the text of an id with up to SHA-384 and draws a number per slice from the
    hash: 2.5 us per id. This class takes the four words of one xxh3-128 hash and the six sums of
    two of these words: 0.9 us per id. They are written out, since a loop or a call would double the
    cost. A test measures that false positives stay within the error rate.
    """

    def __init__(self, limit: int, room: float = 1.0) -> None:
        super().__init__(int(limit * room), ERROR_RATE)
        self.limit = limit
        """Ids that it takes before the next filter is made."""
        assert self.num_slices == 10, "the ten slices that are written out"

    def add(self, id_: bytes, skip_check: bool = False) -> bool:
        """Remember an id; True: it may have been known already."""
        a, b, c, d = _words(_digest(id_))
        n = self.bits_per_slice
        x = self.bitarray
        p, b, c, d = a % n, b % n, c % n, d % n  # reduced before the sums: half the cost
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

    def add_all(self, ids: Sequence[bytes]) -> list[bytes]:
        """Remember ids; gives those that may have been known already: `add`, without its calls."""
        n = self.bits_per_slice
        x = self.bitarray
        n2, n3, n4, n5, n6, n7, n8, n9 = [n * slice_ for slice_ in range(2, 10)]
        known = []
        for id_ in ids:
            a, b, c, d = _words(_digest(id_))
            p, b, c, d = a % n, b % n, c % n, d % n
            q = n + b
            r = n2 + c
            s = n3 + d
            t = n4 + (p + b) % n
            u = n5 + (p + c) % n
            v = n6 + (p + d) % n
            w = n7 + (b + c) % n
            y = n8 + (b + d) % n
            z = n9 + (c + d) % n
            if (
                x[p] and x[q] and x[r] and x[s] and x[t]
                and x[u] and x[v] and x[w] and x[y] and x[z]
            ):  # fmt: skip
                known.append(id_)
            else:
                x[p] = x[q] = x[r] = x[s] = x[t] = x[u] = x[v] = x[w] = x[y] = x[z] = 1
        self.count += len(ids) - len(known)
        return known

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
    """The ids of a bucket, or of a time span's buckets, that one interval has seen."""

    __slots__ = ("_capacity", "_expected", "_filters", "_full", "_room", "newest", "ready")

    def __init__(self, capacity: int, *, ready: bool, room: float = 1.0) -> None:
        self._capacity = capacity
        self._room = room
        """Factor by which filters are oversized."""
        self._filters: list[IdFilter] = []
        self._full: list[IdFilter] = []
        """All of `_filters` but the last."""
        self._expected = 0
        self.newest: dict[int, int] = {}
        """The newest number seen of each log."""
        self.ready = ready
        """Whether it holds all ids that earlier owners have seen."""

    def advance(self, log: int, seq: int) -> bool:
        """Remember a number of a log; True: it may have been known already."""
        if seq > self.newest.get(log, -1):
            self.newest[log] = seq
            return not self.ready
        return True

    def add(self, id_: bytes) -> bool:
        """Remember an id that arrives in no order; True: it may have been known already."""
        full = self._full
        if full and any(id_ in part for part in full):
            return True
        filters = self._filters
        if not filters or filters[-1].count >= filters[-1].limit:
            if filters and id_ in filters[-1]:
                return True  # a known id needs no room in the next filter
            self._grow()
        return filters[-1].add(id_) or not self.ready

    def add_all(self, ids: Sequence[bytes]) -> list[bytes]:
        """Remember ids that are all different; gives those that may have been known already."""
        filters = self._filters
        known: list[bytes] = []
        new = _without(known, ids, self._full)
        while new:
            room = filters[-1].limit - filters[-1].count if filters else 0
            if room <= 0:
                new = _without(known, new, filters[-1:])  # a known id needs no room in the next one
                if new:
                    self._grow()
                continue
            known += filters[-1].add_all(new[:room])
            new = new[room:]
        return known if self.ready else list(ids)

    def expect(self, ids: int) -> None:
        """Make the next filter large enough for this many more ids."""
        self._expected += ids

    def _grow(self) -> None:
        filters = self._filters
        limit = min(filters[-1].limit * GROWTH, LARGEST) if filters else self._capacity
        filters.append(IdFilter(max(limit, int(self._expected * SPARE)), self._room))
        self._full = filters[:-1]
        self._expected = 0

    def may_hold(self, id_: bytes) -> bool:
        return not self.ready or any(id_ in part for part in self._filters)

    def maybes(self, ids: Sequence[bytes]) -> Sequence[bytes]:
        """Those of the ids that it may hold."""
        if not self.ready:
            return ids
        return [id_ for part in self._filters for id_ in filter(part.__contains__, ids)]

    def __len__(self) -> int:
        return sum(part.count for part in self._filters)


def _without(
    known: list[bytes], ids: Sequence[bytes], filters: Sequence[IdFilter]
) -> Sequence[bytes]:
    """The ids that no filter has; the others are added to `known`."""
    for part in filters:
        if found := set(filter(part.__contains__, ids)):
            known += found
            ids = [id_ for id_ in ids if id_ not in found]
    return ids


class Names(NamedTuple):
    """The memory of user-supplied ids while one chunk is sorted."""

    bucket: int
    """The bucket for ids that arrive now."""
    current: Seen
    older: list[Seen]
    ready: bool

    def add(self, id_: bytes) -> bool:
        known = self.current.add(id_)
        return known or not self.ready or any(part.may_hold(id_) for part in self.older)

    def add_all(self, ids: Sequence[bytes]) -> list[bytes]:
        known = set(self.current.add_all(ids))
        if not self.ready:
            return list(ids)
        for part in self.older:
            known.update(part.maybes(ids))
        return [id_ for id_ in ids if id_ in known] if known else []


class InFlight:
    """The records of an interval that were received and are not durable yet, and their later
    copies. A record is here once, as itself or in its chunk."""

    def __init__(self) -> None:
        self.in_flight: dict[bytes | Chunk, Delivery[Any] | Chunk] = {}
        """Received and not durable yet, in the order of arrival."""
        self._chunks: set[Chunk] = set()
        self._named: dict[bytes, Chunk] = {}
        """User-supplied ids of the chunks in flight."""
        self._derived: dict[bytes, Delivery[Any]] = {}
        """Weak productions in flight, by the name in the id."""
        self._joined: dict[bytes, list[Delivery[Any]]] = {}
        """Later copies of records in flight, each to be ACKed, by the first copy's id."""
        self.dropped = 0
        """Duplicates dropped since the last commit."""
        self.changed = 0
        """Weak productions dropped for another value since the last commit."""
        self.last_changed: Delivery[Any] | None = None
        """The last weak production dropped for another value; None: none since it was logged."""

    # -- chunks -------------------------------------------------------------------------

    def _put(self, chunk: Chunk) -> None:
        self.in_flight[chunk] = chunk
        self._chunks.add(chunk)
        self._named.update(dict.fromkeys(chunk.names, chunk))

    def _holds_any(self, ids: Sequence[bytes]) -> bool:
        """Whether one of these user-supplied ids is in flight."""
        in_flight, named = self.in_flight.keys(), self._named.keys()
        return not (in_flight.isdisjoint(ids) and named.isdisjoint(ids))

    def chunk_landed(self, chunk: Chunk) -> list[Delivery[Any]]:
        """Take a durable chunk out of flight; gives the copies that have joined its records, to be
        acknowledged with it."""
        del self.in_flight[chunk]
        self._forget_chunk(chunk)
        joined: list[Delivery[Any]] = []
        if self._joined:
            for name in chunk.names:
                joined += self._joined.pop(name, ())
        self.dropped += len(joined)
        return joined

    def _forget_chunk(self, chunk: Chunk) -> None:
        self._chunks.remove(chunk)
        for name in chunk.names:
            del self._named[name]

    def take_apart(self, chunk: Chunk) -> list[Delivery[Any]]:
        """Replace a chunk in flight by its records, in the same place; if its interval has started
        over since, only give them."""
        records = chunk.apart()
        in_flight = self.in_flight
        if chunk not in self._chunks:
            return records
        self._forget_chunk(chunk)
        behind = []
        while (last := in_flight.popitem())[0] is not chunk:
            behind.append(last)
        in_flight.update((record.id, record) for record in records)
        in_flight.update(reversed(behind))
        return records

    def _is_in_chunk(self, delivery: Delivery[Any]) -> bool:
        log, number = delivery.log, delivery.seq
        return any(chunk.log == log and number in chunk.numbers for chunk in self._chunks)

    # -- single records, and copies -----------------------------------------------------

    def take_by_hand(self, delivery: Delivery[Any]) -> None:
        """Put a record that recovery runs apart in flight again."""
        self.in_flight.setdefault(delivery.id, delivery)
        if is_derived(delivery.id):
            self._derived.setdefault(name_of(delivery.id), delivery)

    def _join(self, first: Delivery[Any], newcomer: Delivery[Any]) -> None:
        if newcomer.id != first.id:
            self._compare(first.id, newcomer)
        self._join_row(first.id, first.log, first.seq, newcomer)

    def _join_row(self, id_: bytes, log: int, seq: int, newcomer: Delivery[Any]) -> None:
        """Let a copy join the record in flight with this id, log and number."""
        copies = self._joined.get(id_, [])
        places = [(log, seq), *((copy.log, copy.seq) for copy in copies)]
        if (newcomer.log, newcomer.seq) in places:
            self.dropped += 1
        else:
            self._joined[id_] = [*copies, newcomer]

    def _join_chunk(self, chunk: Chunk, newcomer: Delivery[Any]) -> None:
        number = chunk.numbers[chunk.names.index(newcomer.id)]
        self._join_row(newcomer.id, chunk.log, number, newcomer)

    def _compare(self, known: bytes, newcomer: Delivery[Any]) -> None:
        """Compare a weak production with the known one of the same name. It is a copy, whatever its
        value.

        Raises:
            NotTheSameAgain: one worker has made both, and their values differ.
        """
        if digest_of(known) == digest_of(newcomer.id):
            return
        if run_of(known) == run_of(newcomer.id):
            raise another_value(newcomer)
        self.changed += 1
        self.last_changed = newcomer

    def landed(self, ids: Iterable[bytes]) -> list[Delivery[Any]]:
        """Take durable records out of flight; gives every copy, to be acknowledged."""
        pop = self.in_flight.pop
        copies: list[Delivery[Any]] = [pop(id_) for id_ in ids]  # type: ignore[misc]
        if self._derived:
            for copy in copies:
                self._derived.pop(name_of(copy.id), None)
        if self._joined:
            joined = [late for first in copies for late in self._joined.pop(first.id, ())]
            self.dropped += len(joined)
            copies += joined
        return copies

    def held(self) -> Iterator[Delivery[Any]]:
        """All single records in flight, with every copy that needs an ACK."""
        for item in self.in_flight.values():
            if type(item) is not Chunk:
                yield item  # type: ignore[misc]
        for copies in self._joined.values():
            yield from copies

    def take_out(self, id_: bytes) -> list[Delivery[Any]]:
        """Take a record out of flight without storing its id; gives every copy, the first one
        first."""
        first: Delivery[Any] = self.in_flight.pop(id_)  # type: ignore[assignment]
        if self._derived:
            self._derived.pop(name_of(id_), None)
        return [first, *self._joined.pop(id_, ())]

    def start_over(self) -> list[Delivery[Any]]:
        """Take all records out of flight; gives every copy, in the order of the first copies'
        arrival."""
        copies: list[Delivery[Any]] = []
        for item in self.in_flight.values():
            for record in item.apart() if type(item) is Chunk else (item,):
                copies += (record, *self._joined.get(record.id, ()))  # type: ignore[union-attr, arg-type]
        self.in_flight.clear()
        self._chunks.clear()
        self._named.clear()
        self._derived.clear()
        self._joined.clear()
        return copies


class Dedup(InFlight):
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
        """Args:
        capacity: ids that the first filter of a bucket takes.
        inherited: buckets that existed when the interval was claimed.
        rekeyed: the computation's records may have had other keys, and so other slots, under
            former code.
        """
        super().__init__()
        self.exactly_once = exactly_once
        """Whether ids are remembered after they have become durable."""
        self.inherited = inherited if exactly_once else frozenset()
        """Buckets older than the claim: other owners may have written ids of its slots to them."""
        self.store = store
        self.buckets = buckets
        self.computation = computation
        self.slots = (0, SLOTS) if rekeyed else slots
        """Slots under which earlier owners may have stored ids of this interval's records."""
        self._capacity = capacity
        self._seen: dict[int, Seen] = {}
        """Seen ids that belong to one bucket each, by bucket."""
        self._spans: dict[int, Seen] = {}
        """Seen user-supplied ids, by the time span in which their buckets begin."""
        self.sorting: Sequence[Any] = ()
        """Items taken from the queue that are being looked up: neither queued nor in flight."""
        self.maybes = 0
        """Records looked up in the table since the last commit."""

    def seen_in(self, bucket: int) -> Seen:
        """The seen ids of a bucket; those of an inherited bucket start out not ready."""
        found = self._seen.get(bucket)
        if found is None:
            size = max((len(f) for f in self._seen.values()), default=0)
            found = self._seen[bucket] = Seen(
                max(self._capacity, int(size * SPARE)),
                ready=bucket not in self.inherited,
            )
        return found

    def doubtful_names(self, chunk: Chunk) -> list[bytes] | None:
        """Note a chunk's user-supplied ids.

        Returns:
            Those that may have been seen, to be looked up; None: some are in flight, or twice in
            the chunk, and its records must be sorted one by one.
        """
        ids = chunk.names
        if len(set(ids)) < len(ids) or self._holds_any(ids):
            return None
        names = self._names()
        chunk.bucket = names.bucket
        return names.add_all(ids)

    def admit(self, chunk: Chunk) -> bool:
        """Put a chunk in flight if all its records are newer than the newest of their log, or their
        user-supplied ids are known to be new; otherwise they must be sorted one by one."""
        if not chunk.names and not self._advances(chunk):
            return False
        self._put(chunk)
        return True

    def _advances(self, chunk: Chunk) -> bool:
        log, origin = chunk.log, chunk.origin
        first, last = chunk.numbers[0], chunk.numbers[-1]
        if origin:
            place, floor = first, self.buckets.sources.floor(origin)
        else:
            place, floor = chunk.stamp, self.buckets.gc_watermark
        if place < floor:
            return False
        bucket = self.buckets.sources.of(origin, first) if origin else self.buckets.of_stamp(place)
        if origin and last >= bucket.high:
            return False
        known = self.seen_in(bucket.id)
        if not known.ready or first <= known.newest.get(log, -1):
            return False
        known.newest[log] = last
        chunk.bucket = bucket.id
        return True

    def sort(
        self, deliveries: Iterable[Delivery[Any]]
    ) -> tuple[list[Delivery[Any]], dict[int, list[Delivery[Any]]], list[Delivery[Any]]]:
        """Sort received records. Candidates are in flight afterwards; copies of ids in flight join
        the first copy and are in none of the results.

        Returns:
            The candidates to run, in order; the candidates that may have been seen, by the bucket
            to ask (or `NAMED`); and the records that are certainly old copies.

        Raises:
            NotTheSameAgain: a worker has made a weak production that is in flight again, with
                another value.
        """
        if not self.exactly_once:
            return self._admit(deliveries), {}, []
        candidates: list[Delivery[Any]] = []
        maybe: dict[int, list[Delivery[Any]]] = {}
        seen: list[Delivery[Any]] = []
        in_flight = self.in_flight
        buckets = self.buckets
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
                self._join(first, delivery)  # type: ignore[arg-type]
                continue
            if delivery.named:
                if (chunk := self._named.get(id_)) is not None:
                    self._join_chunk(chunk, delivery)
                    continue
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
            if name is id_:
                doubtful = known.advance(delivery.log, delivery.seq)
                if doubtful and self._is_in_chunk(delivery):
                    self.dropped += 1  # the chunk's ACK is the copy's as well
                    continue
            else:
                doubtful = False
            in_flight[id_] = delivery
            candidates.append(delivery)
            delivery.bucket = bucket
            if name is not id_:
                self._derived[name] = delivery
                doubtful = known.add(name)
            if doubtful:
                maybe.setdefault(bucket, []).append(delivery)
        self.dropped += len(seen)
        return candidates, maybe, seen

    def _admit(self, deliveries: Iterable[Delivery[Any]]) -> list[Delivery[Any]]:
        """Admit all records but copies of those in flight, where no other ids are remembered."""
        candidates = []
        for delivery in deliveries:
            name = name_of(delivery.id)
            first = self.in_flight.get(delivery.id) or self._derived.get(name)
            if first is not None:
                self._join(first, delivery)  # type: ignore[arg-type]
                continue
            self.in_flight[delivery.id] = delivery
            if is_derived(delivery.id):
                self._derived[name] = delivery
            candidates.append(delivery)
        return candidates

    def _names(self) -> Names:
        buckets = self.buckets.named()
        spans = self.buckets.named_spans()
        for gone in self._spans.keys() - spans:
            del self._spans[gone]
        *older, current = [self.span_of(span) for span in spans]
        return Names(buckets[-1], current, older, all(self.seen_in(b).ready for b in buckets))

    def span_of(self, span: int) -> Seen:
        """The seen user-supplied ids of buckets that begin in a time span."""
        found = self._spans.get(span)
        if found is None:
            size = max((len(f) for f in self._spans.values()), default=0)
            capacity = max(self._capacity, int(size * SPARE))
            found = self._spans[span] = Seen(capacity, ready=True, room=ROOM)
        return found

    async def known_names(self, ids: list[bytes]) -> set[bytes]:
        """Look up and count user-supplied ids that may have been seen; gives those that the table
        has."""
        found = await self._known_names(ids)
        self.maybes += len(ids)
        return found

    async def look_up(self, maybe: dict[int, list[Delivery[Any]]]) -> set[bytes]:
        """Look up and count candidates that may have been seen; gives the ids that the table has.

        Raises:
            NotTheSameAgain: the table has another value of a weak production, from the same worker.
        """
        found: set[bytes] = set()
        for bucket, deliveries in maybe.items():
            if bucket == NAMED:
                known = await self._known_names([delivery.id for delivery in deliveries])
            else:
                known = await self._known_in(bucket, deliveries)
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

    async def _known_in(self, bucket: int, deliveries: list[Delivery[Any]]) -> set[bytes]:
        """The ids of records that a bucket has: all of them if it was dropped. All its records were
        then acknowledged, so a record of it that arrives now is a late copy."""
        ids = [delivery.id for delivery in deliveries if is_derived(delivery.id)]
        numbers: dict[int, list[int]] = {}
        for delivery in deliveries:
            if not is_derived(delivery.id):
                log, number = log_and_number(delivery.id)
                numbers.setdefault(log, []).append(number)
        known: set[bytes] = set()
        try:
            if ids:
                known |= await self.store.look_up_seen([bucket], self.computation, ids)
            if numbers:
                seen = await self.store.look_up_numbers(bucket, self.computation, numbers)
                known.update(record_id(log, seq) for log, of_log in seen.items() for seq in of_log)
        except StoreUnavailable:
            raise
        except StoreError:
            if not await self.buckets.is_gone(bucket):
                raise
            return {delivery.id for delivery in deliveries}
        return known

    async def _known_names(self, ids: list[bytes]) -> set[bytes]:
        """The given ids that the live buckets of user-supplied ids have; dropped buckets are
        forgotten."""
        while True:
            asked = self.buckets.named()
            try:
                return await self.store.look_up_seen(asked, self.computation, ids)
            except StoreUnavailable:
                raise
            except StoreError:
                await self.buckets.load()
                if self.buckets.named() == asked:
                    raise

    def forget_buckets(self, buckets: Iterable[int]) -> None:
        for bucket in buckets:
            self._seen.pop(bucket, None)


def another_value(delivery: Delivery[Any]) -> NotTheSameAgain:
    """The error for a weak production that one worker has made with two values."""
    return NotTheSameAgain(
        f"a weak production of stream {delivery.stream!r}, key {shown_key(delivery.key)}, arrived "
        f"twice with different values (id {delivery.id.hex()}); the second: "
        f"{shown(delivery.value, 300)}\nOne worker has run the code that writes the stream twice "
        'on the same record, and the two outputs differ. With productions="weak" the output must '
        "depend on the record alone. Remove everything that differs between runs (the clock, "
        "random numbers, data kept outside of the state) and start again: values that have "
        "arrived stay as they are. If you cannot remove it, the computation needs "
        'productions="strong", and the pipeline another name: the productions of a deployed '
        "pipeline cannot be changed"
    )
