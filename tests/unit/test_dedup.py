"""Dedup by itself: filters that may say maybe but never a wrong no, and ids in flight."""

from __future__ import annotations

import asyncio
import random
from struct import Struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millwheel.core.chunk import Chunk
from millwheel.core.clock import VirtualClock
from millwheel.core.codec import named_ids
from millwheel.core.model import MAX_TIME, NAME_BYTES, RUN_BYTES, Delivery, record_id
from millwheel.errors import InvariantBroken, NotTheSameAgain, StoreError
from millwheel.runtime.interval.filter_restoring import rebuild
from millwheel.runtime.interval.sent_log import SentLog
from millwheel.runtime.process.stamps import Stamps
from millwheel.runtime.seen.dedup import ERROR_RATE, NAMED, ROOM, Dedup, IdFilter, Seen
from millwheel.runtime.seen.seen_buckets import Buckets
from millwheel.settings import Settings
from millwheel.store.memory import MemoryStore
from millwheel.store.memory.tables import BucketTables
from millwheel.store.port.buckets import Bucket
from millwheel.timers.holds import Holds
from tests.support.examples import examples
from tests.support.pipelines import QUICK

_words = Struct(">QQ")


def ids(kind: str, start: int, count: int) -> list[bytes]:
    if kind == "sequential":
        return [record_id(7, number) for number in range(start, start + count)]
    if kind == "many logs":
        return [record_id(number, 3) for number in range(start, start + count)]
    if kind == "named":
        return named_ids("words", (b'"%d"' % number for number in range(start, start + count)))
    chance = random.Random(start)
    return [_words.pack(chance.getrandbits(64), chance.getrandbits(64)) for _ in range(count)]


KINDS = ("sequential", "many logs", "named", "random")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("capacity", [1_000, 50_000])
def test_false_positives_stay_near_the_error_rate(kind: str, capacity: int) -> None:
    """Measured on a full filter, over enough strangers that chance does not matter."""
    filter_ = IdFilter(capacity)
    for id_ in ids(kind, 0, capacity):
        filter_.add(id_)
    strangers = ids(kind, 10_000_000, 200_000)
    share = sum(id_ in filter_ for id_ in strangers) / len(strangers)
    assert share <= 1.5 * ERROR_RATE


@pytest.mark.parametrize("kind", KINDS)
def test_filters_that_grow_have_no_false_negatives(kind: str) -> None:
    filter_ = Seen(100, ready=True)
    known = ids(kind, 0, 20_000)
    false = sum(filter_.add(id_) for id_ in known)
    assert all(filter_.may_hold(id_) for id_ in known)
    assert all(filter_.add(id_) for id_ in known)
    assert false <= 1.5 * len(filter_._filters) * len(known) * ERROR_RATE


def test_what_is_expected_gets_one_filter() -> None:
    """However many are told of, a part at a time; what comes besides has room too."""
    filter_ = Seen(100, ready=True)
    early, known = ids("named", 0, 100), ids("named", 100, 5_000)
    for id_ in early:
        filter_.add(id_)
    for _ in range(5):
        filter_.expect(1_000)
    for id_ in known:
        filter_.add(id_)
    assert [part.limit for part in filter_._filters] == [100, 6_000]
    assert all(filter_.may_hold(id_) for id_ in early + known)
    for id_ in ids("named", 10_000, 2_000):
        filter_.add(id_)
    limits = [part.limit for part in filter_._filters]
    assert limits == [100, 6_000, 24_000], "what was expected has come"


def test_a_filter_more_is_never_huge(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("millwheel.runtime.seen.dedup.LARGEST", 1_000)
    filter_ = Seen(100, ready=True)
    for id_ in ids("named", 0, 4_000):
        filter_.add(id_)
    assert [part.limit for part in filter_._filters] == [100, 400, 1_000, 1_000, 1_000, 1_000]


def test_a_filter_does_not_grow_by_what_it_knows() -> None:
    """A resend of everything must not cost the memory of new records."""
    filter_ = Seen(100, ready=True)
    known = ids("sequential", 0, 5_000)
    for _ in range(3):
        for id_ in known:
            filter_.add(id_)
    assert len(filter_) <= len(known)
    full = Seen(100, ready=True)
    for id_ in known[:100] * 2:
        full.add(id_)
    assert (len(full), len(full._filters)) == (100, 1)


@settings(max_examples=examples(50), deadline=None, derandomize=True)
@given(st.lists(st.binary(min_size=16, max_size=16), max_size=200), st.integers(1, 50))
def test_whatever_was_added_is_found(added: list[bytes], capacity: int) -> None:
    filter_ = Seen(capacity, ready=True)
    for id_ in added:
        filter_.add(id_)
    assert all(filter_.may_hold(id_) for id_ in added)


def test_a_filter_that_is_not_ready_says_maybe_to_everything() -> None:
    filter_ = Seen(10, ready=False)
    assert filter_.may_hold(b"0" * 16)
    assert filter_.add(b"1" * 16)
    filter_.ready = True
    assert not filter_.may_hold(b"2" * 16)
    assert filter_.may_hold(b"1" * 16)


# -- buckets -----------------------------------------------------------------------------------


async def make(
    limits: Settings = QUICK, *, exactly_once: bool = True
) -> tuple[VirtualClock, Stamps, Buckets, Dedup]:
    clock = VirtualClock()
    store = MemoryStore(clock=clock)
    stamps = Stamps(clock)
    buckets = Buckets(store, limits, stamps)
    await buckets.load()
    await buckets.ensure_current()
    dedup = Dedup(
        store, buckets, 1, (0, 65536),
        capacity=100, inherited=frozenset(), exactly_once=exactly_once,
    )  # fmt: skip
    return clock, stamps, buckets, dedup


def delivery(seq: int, stamp: int, log: int = 5, origin: int = 0) -> Delivery[int]:
    return Delivery(
        "a", seq, 0, "s", b'"a"', 9, 1, 0, 0, b"", log, seq, stamp, record_id(log, seq), 0, False,
        origin,
    )  # fmt: skip


async def test_copies_in_flight_join_the_first_and_appear_nowhere() -> None:
    _, stamps, _, dedup = await make()
    stamp = stamps.next()
    first, again, other, third = (delivery(seq, stamp) for seq in (0, 0, 1, 2))
    other.id = third.id = first.id  # as user-supplied ids may be: each has its own sender to tell
    assert dedup.sort([first, again, other])[0] == [first]
    assert dedup.sort([third]) == ([], {}, [])
    assert dedup.landed([first.id]) == [first, other, third]
    assert dedup.dropped == 3
    assert dedup.in_flight == {}


class Scanned(MemoryStore):
    """One whose tables of seen ids hold what the test says."""

    noted: BucketTables

    def _bucket(self, bucket: int) -> BucketTables:
        return self.noted


@settings(max_examples=examples(200), deadline=None, derandomize=True)
@given(
    st.sets(st.tuples(st.integers(1, 3), st.integers(0, 9)), max_size=12),
    st.lists(st.tuples(st.integers(1, 3), st.integers(0, 9)), max_size=40),
    st.integers(0, 40),
)
def test_nothing_that_was_seen_is_surely_new(
    before: set[tuple[int, int]], arrivals: list[tuple[int, int]], rebuilt_at: int
) -> None:
    """Whatever comes in whatever order, again or for the first time, before what others have seen
    is read or after: who is not asked about has never been here."""

    async def go() -> None:
        clock, stamps, buckets, _ = await make()
        store = Scanned(clock=clock)
        (live,) = buckets.live()
        bucket, store.noted = live.id, BucketTables(live)
        for log, number in before:
            store.noted.numbers.setdefault((1, log), set()).add(number)
        dedup = Dedup(store, buckets, 1, (0, 65536), capacity=9, inherited=frozenset({bucket}))
        stamp, seen = stamps.next(), set(before)
        for number, (log, seq) in enumerate(arrivals):
            if number == rebuilt_at:
                await rebuild(dedup, bucket)
            came = delivery(seq, stamp, log)
            candidates, maybe, old = dedup.sort([came])
            assert (candidates, old) == ([came], [])
            assert maybe or (log, seq) not in seen
            if number > rebuilt_at and seq > max((s for of, s in seen if of == log), default=-1):
                assert not maybe, "it is newer than all that was seen, and nobody need ask"
            seen.add((log, seq))
            dedup.landed([came.id])

    asyncio.run(go())


def weak(says: bytes, stamp: int, seq: int, run: bytes = b"r") -> Delivery[int]:
    """A weak production, always of the same name."""
    made = delivery(seq, stamp)
    name = b"\x80a weak one" + b"." * (NAME_BYTES - 11)
    made.id = name + run * RUN_BYTES + says * (16 - NAME_BYTES - RUN_BYTES)
    return made


@pytest.mark.parametrize("exactly_once", [True, False])
async def test_a_weak_production_in_flight_says_the_same_or_is_an_error(
    exactly_once: bool,
) -> None:
    """Whatever joined it unlike itself would be acknowledged, and lost."""
    _, stamps, _, dedup = await make(exactly_once=exactly_once)
    stamp = stamps.next()
    first, again = weak(b"1", stamp, 0), weak(b"1", stamp, 1)
    other = weak(b"2", stamp, 2)
    assert dedup.sort([first])[0] == [first]
    assert dedup.sort([again])[0] == []
    with pytest.raises(NotTheSameAgain):
        dedup.sort([other])
    dedup.start_over()
    dedup.take_by_hand(first)
    with pytest.raises(NotTheSameAgain):
        dedup.sort([other])


@pytest.mark.parametrize("exactly_once", [True, False])
async def test_the_first_of_two_values_stays_if_two_workers_made_them(exactly_once: bool) -> None:
    """The second one joins the first, and is acknowledged with it."""
    _, stamps, _, dedup = await make(exactly_once=exactly_once)
    stamp = stamps.next()
    first, same, other = (
        weak(b"1", stamp, 0), weak(b"1", stamp, 1, b"s"), weak(b"2", stamp, 2, b"s"),
    )  # fmt: skip
    assert dedup.sort([first])[0] == [first]
    assert dedup.sort([same, other])[0] == []
    assert (dedup.changed, dedup.last_changed) == (1, other)
    assert list(dedup.held()) == [first, same, other]
    assert dedup.landed([first.id]) == [first, same, other]
    assert dedup.in_flight == {}


@pytest.mark.parametrize("exactly_once", [True, False])
@pytest.mark.parametrize("how", ["landed", "taken out", "started over"])
async def test_what_is_in_flight_no_more_is_nobodys_first_copy(
    how: str, exactly_once: bool
) -> None:
    """Nobody would ever acknowledge what joined it."""
    _, stamps, _, dedup = await make(exactly_once=exactly_once)
    stamp = stamps.next()
    first, again = weak(b"1", stamp, 0), weak(b"1", stamp, 1)
    dedup.sort([first])
    match how:
        case "landed":
            assert dedup.landed([first.id]) == [first]
        case "taken out":
            assert dedup.take_out(first.id) == [first]
        case _:
            assert dedup.start_over() == [first]
    assert dedup.sort([again])[0] == [again]
    assert dedup.landed([again.id]) == [again]


class LookedAt(MemoryStore):
    """One whose buckets are read again while it drops one, as a claim does."""

    buckets: Buckets
    when = "after"

    async def drop_bucket(self, bucket: Bucket) -> bool:
        if self.when == "before":
            await self.buckets.load()
        dropped = await super().drop_bucket(bucket)
        if self.when == "after":
            await self.buckets.load()
        return dropped


@pytest.mark.parametrize("family", ["time", "source", "named"])
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("droppable", [True, False])
async def test_buckets_may_be_read_again_while_one_is_dropped(
    family: str, when: str, droppable: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = VirtualClock()
    store = LookedAt(clock=clock)
    buckets = store.buckets = Buckets(store, QUICK, Stamps(clock))
    store.when = when
    for number in range(3):
        await store.open_bucket(family, 0, 1000 * number, 1000 * (number + 1))
    monkeypatch.setattr(store._buckets, "is_droppable", lambda bucket: droppable)
    await buckets.load()
    before = [bucket.id for bucket in buckets.live()]
    if family == "time":
        buckets.gc_watermark = 2000
    clock.advance(QUICK.id_retention_seconds + 1)
    dropped = await buckets.collect()
    assert dropped == (before[:2] if droppable else [])
    left = [bucket.id for bucket in buckets.live()]
    assert sorted(left) == [id_ for id_ in before if id_ not in dropped]
    assert left[-1] == before[-1], "the current one is the last"
    if family == "time":
        assert [buckets.of_stamp(2000 + n).id for n in (0, 999)] == [before[2]] * 2


async def test_a_bucket_of_rows_that_was_read_while_another_was_waited_for_is_not_made_again() -> (
    None
):
    """An empty one would stand behind it, and in the way of the next."""
    _, _, buckets, dedup = await make()
    store = dedup.store
    rows = QUICK.source_bucket_rows
    assert isinstance(store, MemoryStore)

    async def opened_elsewhere(name: str) -> None:
        if name != "open_bucket":
            store.faults.before_call = None
            await asyncio.sleep(0)
            await store.open_bucket("source", 8, 0, rows)

    store.faults.before_call = opened_elsewhere
    reading = asyncio.ensure_future(buckets.load())
    await asyncio.sleep(0)
    await buckets.ensure_source(8, 3)
    await reading
    await buckets.ensure_source(8, rows - 1, rows)
    found = [(b.low, b.high) for b in await store.live_buckets() if b.family == "source"]
    assert found == [(0, rows), (rows, 2 * rows)]


@pytest.mark.parametrize("slow", ["view_buckets", "open_bucket"])
async def test_a_bucket_that_is_over_when_it_is_known_is_followed_by_another(slow: str) -> None:
    """Whoever waited for one commits next, and finds one for his stamp."""
    clock = VirtualClock()
    store = MemoryStore(clock=clock)
    limits = Settings(bucket_seconds=3.0)
    buckets = Buckets(store, limits, stamps := Stamps(clock), shared=True)
    await buckets.load()
    await buckets.ensure_current()

    async def take_long(name: str) -> None:
        if name == slow:
            store.faults.before_call = None
            clock.advance(8.0)

    clock.advance(2.6)
    store.faults.before_call = take_long
    await buckets.ensure_current()
    assert store.faults.before_call is None
    assert buckets.of_stamp(stamps.next()) == (await store.live_buckets())[-1]


async def test_records_older_than_the_gc_watermark_are_remnants() -> None:
    _, stamps, buckets, dedup = await make()
    old, new = delivery(0, stamps.next()), delivery(1, stamps.next() + 10)
    buckets.gc_watermark = old.stamp + 1
    assert dedup.sort([old, new]) == ([new], {}, [old])


async def test_what_is_older_than_all_buckets_is_a_remnant_for_who_has_just_come() -> None:
    """Others have dropped the bucket, and this worker has not asked for the GC watermark yet."""
    clock = VirtualClock()
    store = MemoryStore(clock=clock)
    for number in range(2):
        await store.open_bucket("time", 0, 1000 * number, 1000 * (number + 1))
    store.tables.gc_watermark = 1000
    assert await store.drop_bucket((await store.live_buckets())[0])
    buckets = Buckets(store, QUICK, Stamps(clock), shared=True)
    await buckets.load()
    dedup = Dedup(store, buckets, 1, (0, 65536), capacity=100, inherited=frozenset())
    old, new = delivery(0, 999), delivery(1, 1000)
    assert dedup.sort([old, new]) == ([new], {}, [old])


async def test_no_stamp_is_given_below_the_gc_watermark_though_the_clock_goes_back() -> None:
    """A worker that stood still lost its intervals; its commit has to come as far as the fence."""
    clock = VirtualClock()
    store = MemoryStore(clock=clock)
    buckets = Buckets(store, Settings(bucket_seconds=3.0), stamps := Stamps(clock), shared=True)
    await buckets.load()
    await buckets.ensure_current()
    first = buckets.of_stamp(stamps.next())
    stamps.adjust(
        clock.now() + 300_000_000, clock.now() + 300_000_000, clock.now()
    )  # its clock was set back by 300 s
    await store.open_bucket("time", 0, first.high, first.high + 3_000_000)
    store.tables.gc_watermark = first.high
    assert await store.drop_bucket(first)
    await buckets.load()
    assert buckets.of_stamp(stamps.next()).low == first.high


async def test_a_time_without_its_bucket_is_an_error_never_not_seen() -> None:
    clock, _, buckets, dedup = await make()
    with pytest.raises(InvariantBroken, match="no bucket for stamp"):
        dedup.sort([delivery(0, clock.now() + int(1e12))])
    with pytest.raises(InvariantBroken, match="no bucket for offset"):
        dedup.sort([delivery(0, 0, log=8, origin=8)])
    await buckets.ensure_source(8, 0)
    assert len(dedup.sort([delivery(0, 0, log=8, origin=8)])[0]) == 1


async def test_the_bucket_of_a_record_never_changes() -> None:
    """I9: whatever is opened or closed early later, a stamp's bucket stays what it was."""
    clock, stamps, buckets, _ = await make(Settings(bucket_seconds=10.0, bucket_rows=5))
    given: dict[int, int] = {}
    chance = random.Random(3)
    for _ in range(300):
        clock.advance(chance.random() * 2)
        stamp = stamps.next()
        if not buckets.covers(max(clock.now(), stamps.last + 1)):
            await buckets.ensure_current()
        given[stamp] = buckets.of_stamp(stamp).id
        buckets.rows += 1
        if chance.random() < 0.3:
            await buckets.ensure_current()
        assert buckets.covers(stamps.last)
        for known, bucket in given.items():
            assert buckets.of_stamp(known).id == bucket


async def test_user_ids_go_to_a_bucket_that_has_not_ended() -> None:
    """From its end it is counted how long they are remembered; it is looked after now and then."""
    clock, _, buckets, _ = await make(Settings(id_bucket_seconds=10.0))
    ends: dict[int, int] = {}
    for _ in range(100):
        await buckets.ensure_named()
        ends.update((bucket.id, bucket.high) for bucket in buckets.live())
        clock.advance(4.9)
        assert ends[buckets.named()[-1]] > clock.now()
    assert len(ends) <= 52


def named(number: int) -> Delivery[int]:
    made = delivery(number, 0)
    (made.id,), made.named = named_ids("words", [b'"%d"' % number]), True
    return made


async def remember(dedup: Dedup, buckets: Buckets, store: MemoryStore, number: int) -> None:
    """A record with a user-supplied id, from its arrival to its commit."""
    made = named(number)
    dedup.sort([made])
    store._seen(made.bucket).add((made.slot, 1, made.id))
    dedup.landed([made.id])


async def three_named() -> tuple[Buckets, Dedup, MemoryStore]:
    """A user-supplied id in each of three buckets."""
    clock, _, buckets, dedup = await make(
        Settings(id_bucket_seconds=10.0, id_retention_seconds=30.0)
    )
    store = dedup.store
    assert isinstance(store, MemoryStore)
    for number in range(3):
        await buckets.ensure_named()
        await remember(dedup, buckets, store, number)
        clock.advance(10.0)
    return buckets, dedup, store


async def test_user_ids_are_known_in_all_buckets_and_asked_of_few_filters() -> None:
    """In a day of buckets as in one: each filter costs every record that comes."""
    limits = Settings(id_bucket_seconds=3600.0, id_retention_seconds=86_400.0)
    clock, _, buckets, dedup = await make(limits)
    store = dedup.store
    assert isinstance(store, MemoryStore)
    filters: set[int] = set()
    for hour in range(60):
        await buckets.ensure_named()
        for number in range(10):
            await remember(dedup, buckets, store, 10 * hour + number)
        await buckets.collect()
        filters.add(len(dedup._names().older) + 1)
        clock.advance(3600.0)
    assert len(buckets.named()) > 24
    assert max(filters) <= 3 >= len(dedup._spans)
    known = {n for n in range(600) if any(named(n).id in {i for *_, i in store._seen(b)}
                                          for b in buckets.named())}  # fmt: skip
    assert len(known) >= 240
    copies = [named(number) for number in sorted(known)]
    candidates, maybe, seen = dedup.sort(copies)
    assert (candidates, maybe, seen) == (copies, {NAMED: copies}, [])
    assert await dedup.look_up(maybe) == {copy.id for copy in copies}
    _, maybe, _ = dedup.sort([named(number) for number in range(10_000, 20_000)])
    assert len(maybe.get(NAMED, [])) <= 10


async def test_user_ids_of_a_bucket_that_is_dropped_meanwhile_are_forgotten() -> None:
    """By another worker; those of the other buckets are not."""
    buckets, dedup, store = await three_named()
    first = buckets.named()[0]
    _, maybe, _ = dedup.sort([named(number) for number in range(3)])
    del store.tables.buckets[first]
    assert await dedup.look_up(maybe) == {named(1).id, named(2).id}
    assert first not in buckets.named()


async def test_user_ids_that_could_not_be_looked_up_are_not_taken_for_seen() -> None:
    """An error of the store while nothing was dropped is one: the records are not lost."""
    _, dedup, store = await three_named()
    _, maybe, _ = dedup.sort([named(number) for number in range(3)])

    async def fail(name: str) -> None:
        if name == "look_up_seen":
            raise StoreError("something is wrong")

    store.faults.before_call = fail
    with pytest.raises(StoreError, match="something is wrong"):
        await dedup.look_up(maybe)


async def test_until_a_bucket_is_read_all_user_ids_may_be_in_it() -> None:
    buckets, _, store = await three_named()
    inherited = frozenset(buckets.named())
    heir = Dedup(store, buckets, 1, (0, 65536), capacity=100, inherited=inherited)
    strangers = iter([named(number) for number in range(100, 110)])

    for bucket in sorted(inherited):
        stranger = next(strangers)
        assert heir.sort([stranger]) == ([stranger], {NAMED: [stranger]}, [])
        await rebuild(heir, bucket)
    _, maybe, _ = heir.sort(list(strangers))
    assert maybe == {}
    copies = [named(number) for number in range(3)]
    assert heir.sort(copies) == (copies, {NAMED: copies}, [])
    assert await heir.look_up({NAMED: copies}) == {copy.id for copy in copies}


def test_a_filter_with_room_is_seldom_wrong() -> None:
    filter_ = Seen(10_000, ready=True, room=ROOM)
    for id_ in ids("named", 0, 10_000):
        filter_.add(id_)
    assert len(filter_._filters) == 1
    strangers = ids("named", 10_000_000, 200_000)
    assert sum(filter_.may_hold(id_) for id_ in strangers) <= 2 * len(strangers) / 20_000


def test_stamps_only_grow() -> None:
    clock = VirtualClock()
    stamps = Stamps(clock)
    stamps.restore(clock.now() + 100)
    found = [stamps.next() for _ in range(3)]
    clock.advance(1)
    found.append(stamps.next())
    assert found == sorted(set(found))
    assert found[0] > clock.now() - 1_000_000 + 99


# -- the sender's side ---------------------------------------------------------------------------


@settings(max_examples=examples(100), deadline=None, derandomize=True)
@given(
    st.integers(1, 30).flatmap(
        lambda n: st.tuples(
            st.just(n),
            st.permutations(range(n)),
            st.lists(st.integers(0, n - 1), max_size=10),
            st.integers(0, n),
        )
    )
)
def test_a_log_knows_what_is_acknowledged(
    drawn: tuple[int, list[int], list[int], int],
) -> None:
    """In any order, twice, and from a stored state: prefix, runs, holds and counts agree.

    Batches are of two records; one holds until it and all before it are acknowledged.
    """
    count, order, again, cut = drawn
    holds = Holds()
    log = SentLog(1, holds)
    for seq in range(0, count, 2):
        log.sent(min(seq + 2, count), seq * 10, 5, seq + 1)
    done: set[int] = set()
    for seq in order[:cut]:
        done.add(seq)
        log.acknowledge([seq, *(twice for twice in again if twice in done)])
        left = set(range(count)) - done
        first = min(left, default=count)
        batches = [b for b in range(0, count, 2) if min(b + 2, count) > first]
        assert log.first == first
        assert log.unacked == len(left)
        assert (log.unacked_bytes, len(holds)) == (5 * len(batches), len(batches))
        assert holds.least() == min((b * 10 for b in batches), default=MAX_TIME)
        assert log.floor() == (batches[0] + 1 if batches else None)
        assert all(log.is_acknowledged(s) == (s in done) for s in range(count))
    first, runs = log.state(1000)
    restored = SentLog(1, Holds(), first=first, runs=runs)
    assert {s for s in range(count) if restored.is_acknowledged(s)} == done


@settings(max_examples=examples(200), deadline=None, derandomize=True)
@given(
    st.integers(0, 3),
    st.lists(
        st.one_of(
            st.integers(1, 6),
            st.lists(st.integers(0, 5), min_size=1, max_size=5),
        ),
        max_size=12,
    ),
)
def test_acks_come_in_groups(first: int, steps: list[int | list[int]]) -> None:
    """All that comes next at once, or with gaps, old ones, and some that were not sent yet.

    Args:
        steps: send so many, or acknowledge these.
    """
    log, done, end = SentLog(1, Holds(), first=first), set(range(first)), first
    for step in steps:
        if isinstance(step, int):
            end += step
            log.sent(end, 0, step)
        else:
            done.update(seq for seq in step if seq < end)
            log.acknowledge(step)
        assert log.first == min({*range(end + 1)} - done)
        assert log.unacked == end - len(done)
        assert all(log.is_acknowledged(seq) == (seq in done) for seq in range(30))


def test_the_floor_is_the_oldest_stamp_that_may_be_sent_again() -> None:
    """Of a weak production that is stored its own, which is older than that of its commit."""
    log = SentLog(5, Holds())
    assert log.floor() is None
    log.sent(3, 0, 0, 100)
    assert log.floor() == 100
    log.stored([delivery(1, 40)])
    assert log.floor() == 40
    log.stored([delivery(2, 7, origin=9)])
    assert log.floor() == 40, "an offset is no time"
    log.acknowledge([1])
    assert log.floor() == 100
    log.acknowledge([0, 2])
    assert log.floor() is None


def test_nobody_waits_for_numbers_of_which_nothing_is_stored() -> None:
    log = SentLog(5, Holds(), inherited=True, first=2)
    log.lack([(2, 4)])
    log.skip(4)
    log.sent(5, 0, 0)
    log.lack([(5, 7)])
    log.skip(7)
    log.sent(8, 0, 0)
    assert log.unacked == 2
    log.acknowledge([7, 4])
    log.complete = True
    assert log.drained
    assert log.first == 8


def test_a_row_with_several_readers_waits_for_all_of_them() -> None:
    holds = Holds()
    log = SentLog(1, holds, source=True)
    log.wait_for_several(0, 0b11)
    log.sent(1, 7, 3)
    log.acknowledge([0], 0b01)
    log.acknowledge([0], 0b01)
    assert (log.first, len(holds)) == (0, 1)
    log.acknowledge([0], 0b10)
    assert (log.first, len(holds), log.unacked_bytes) == (1, 0, 0)


def test_an_ack_for_what_was_not_sent_counts_for_nothing() -> None:
    holds = Holds()
    log = SentLog(1, holds, first=3)
    log.acknowledge([5, 1])
    assert (log.first, log.unacked, log.unacked_bytes, len(holds)) == (3, 0, 0, 0)


def together(*numbers: int, log: int = 5) -> Chunk:
    """A chunk of records with user-supplied ids."""
    chunk = Chunk("words", 1, source=log)
    chunk.numbers = range(100, 100 + len(numbers))
    chunk.names = [named(number).id for number in numbers]
    chunk.keys, chunk.key_texts = list(numbers), [b"%d" % number for number in numbers]
    chunk.values, chunk.encoded = list(numbers), [b"1"] * len(numbers)
    chunk.slots = chunk.micros = chunk.holds = [0] * len(numbers)
    return chunk


async def test_a_chunk_of_new_user_ids_asks_nobody() -> None:
    _, dedup, _ = await three_named()
    chunk = together(7, 8, 9)
    assert dedup.doubtful_names(chunk) == []
    assert dedup.admit(chunk)
    assert chunk.bucket == dedup.buckets.named()[-1]
    assert list(dedup.in_flight) == [chunk]
    assert dedup.chunk_landed(chunk) == []
    assert not dedup.in_flight
    assert dedup.doubtful_names(together(7, 10, log=6)) == [named(7).id], "the filter knows it"


async def test_a_chunk_with_user_ids_that_were_seen_asks_for_these() -> None:
    _, dedup, _ = await three_named()
    doubtful = dedup.doubtful_names(together(0, 7, 2))
    assert doubtful == [named(0).id, named(2).id]
    assert await dedup.known_names(doubtful) == set(doubtful)
    assert dedup.maybes == 2


async def test_while_ids_are_not_rebuilt_all_of_a_chunk_are_asked_for() -> None:
    _, dedup, _ = await three_named()
    dedup.seen_in(dedup.buckets.named()[0]).ready = False
    doubtful = dedup.doubtful_names(together(7, 8))
    assert doubtful == [named(7).id, named(8).id]
    assert await dedup.known_names(doubtful) == set()


async def test_a_chunk_with_a_user_id_twice_or_in_flight_is_sorted_one_by_one() -> None:
    _, dedup, _ = await three_named()
    assert dedup.doubtful_names(together(7, 8, 7)) is None
    chunk = together(7, 8)
    assert dedup.doubtful_names(chunk) == []
    dedup.admit(chunk)
    assert dedup.doubtful_names(together(6, 8, log=6)) is None
    dedup.sort([named(9)])
    assert dedup.doubtful_names(together(9, 10)) is None


async def test_copies_of_user_ids_in_a_chunk_are_acknowledged_with_it() -> None:
    """Another record with the id needs an ACK; the same row again does not."""
    _, dedup, _ = await three_named()
    chunk = together(7, 8)
    dedup.doubtful_names(chunk)
    dedup.admit(chunk)
    other, again = named(8), named(7)
    other.log, other.seq = 6, 3
    again.log, again.seq = 5, 100
    assert dedup.sort([other, again, other]) == ([], {}, [])
    assert list(dedup.held()) == [other]
    assert dedup.chunk_landed(chunk) == [other]
    assert list(dedup.held()) == []
    assert dedup.dropped == 3


@pytest.mark.parametrize("way", ["taken apart", "started over"])
async def test_copies_stay_with_a_record_whose_chunk_is_taken_apart(way: str) -> None:
    _, dedup, _ = await three_named()
    chunk = together(7, 8)
    dedup.doubtful_names(chunk)
    dedup.admit(chunk)
    other = named(8)
    other.log, other.seq = 6, 3
    dedup.sort([other])
    if way == "started over":
        assert [copy.id for copy in dedup.start_over()] == [*chunk.names, other.id]
        assert not dedup.in_flight
        assert dedup.doubtful_names(together(7)) == [named(7).id]
        return
    first, second = dedup.take_apart(chunk)
    assert (first.named, second.id, second.seq) == (True, other.id, 101)
    third = named(7)
    third.log, third.seq = 6, 4
    dedup.sort([third])
    assert dedup.landed([first.id, second.id]) == [first, second, third, other]


@pytest.mark.parametrize("ready", [True, False])
@given(data=st.data())
@settings(max_examples=examples(60))
def test_ids_added_together_are_added_as_one_by_one(ready: bool, data: st.DataObject) -> None:
    """Filters are small, so they fill up in the middle of a chunk."""
    together, one_by_one = Seen(5, ready=ready), Seen(5, ready=ready)
    known = ids("random", 1, 90)
    for _ in range(data.draw(st.integers(1, 6))):
        chunk = data.draw(st.lists(st.sampled_from(known), unique=True, max_size=40))
        assert set(together.add_all(chunk)) == {id_ for id_ in chunk if one_by_one.add(id_)}
        assert set(together.maybes(known)) == {id_ for id_ in known if one_by_one.may_hold(id_)}
        assert len(together) == len(one_by_one)
        sizes = [(part.limit, part.count, part.bitarray) for part in together._filters]
        assert sizes == [(p.limit, p.count, p.bitarray) for p in one_by_one._filters]
