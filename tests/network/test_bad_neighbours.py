"""Workers that do not fit together, and what comes over the wire that should not.

Whatever a neighbour is or says: no effect happens twice or is lost, whoever is well goes on, and
what is wrong is logged once, with the facts.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import re
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from random import Random
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import AsyncMock, patch

import msgspec
import pytest
from structlog.testing import capture_logs

from millwheel import Computation, Context, Pipeline, Record, Settings, Stream, Table, Timer
from millwheel.core.clock import SystemClock, VirtualClock
from millwheel.core.model import SLOTS, Delivery
from millwheel.errors import DeployRefused
from millwheel.runtime.engine import Engine
from millwheel.runtime.interval.interval import Interval
from millwheel.runtime.interval.sent_log import SentLog
from millwheel.runtime.interval.step import Step
from millwheel.runtime.network.frames import Acknowledge, Deliver, Frame, Gap
from millwheel.runtime.network.handshake import Identity, Secret
from millwheel.runtime.network.links import Links
from millwheel.runtime.network.peer_ports import Limits, Network
from millwheel.runtime.network.remote import Remote
from millwheel.runtime.network.sender import FRAME_BYTES
from millwheel.services.observed import EngineObserved
from millwheel.services.tcp import Tcp
from millwheel.settings import MEBIBYTE
from millwheel.store.memory import MemoryStore
from millwheel.store.port.placement import Wish
from millwheel.testing import fake_network, inject
from millwheel.testing.fake_network import FAIR, Fate
from millwheel.timers.holds import Holds
from tests.support.clusters import SHARED, Cluster, apart, check, counting, live, many
from tests.support.fault_plans import with_ids
from tests.support.peers import Listener, call, hang_up, links_of, logged, until
from tests.support.pipelines import Kept, doing, script
from tests.support.values import ITEMS, Count, Item, at
from tests.support.worlds import end_scripts, read_on

# -- large records ---------------------------------------------------------------------------------


class Parcel(msgspec.Struct, frozen=True):
    """Something with a weight. Frozen: on the same worker it is never encoded."""

    number: int
    load: str = ""


class Weight(msgspec.Struct):
    """How many characters a parcel had."""

    number: int
    characters: int


PARCELS = Stream("parcels", Parcel)
PASSED_ON = Stream("passed_on", Parcel)
WEIGHTS = Stream("weights", Weight)


class Weigh(Computation[Parcel, Count]):
    """Weighs, and takes its time for it."""

    writes = (WEIGHTS,)

    def __init__(self, seconds: float = 0.0) -> None:
        self._seconds = seconds
        self.sleep: Callable[[float], Any] = asyncio.sleep

    async def process_record(self, record: Record[Parcel], ctx: Context[Count]) -> None:
        if self._seconds:
            await self.sleep(self._seconds)
        ctx.produce(WEIGHTS, Weight(record.value.number, len(record.value.load)))


class Grow(Computation[Parcel, Count]):
    """Passes a parcel on with as many characters as its number says."""

    writes = (PASSED_ON,)

    async def process_record(self, record: Record[Parcel], ctx: Context[Count]) -> None:
        number = record.value.number
        ctx.produce(PASSED_ON, Parcel(number, "x" * number))


def number_of(parcel: Parcel) -> int:
    return parcel.number


def weighing(
    parcels: list[Parcel], settings: Settings, *, sources: int = 1, seconds: float = 0.0
) -> tuple[Pipeline, Weigh]:
    """Parcels of some sources are weighed."""
    made = Pipeline("weighing", settings=settings)
    for number in range(sources):
        made.inject(
            PARCELS,
            script(PARCELS, parcels[number::sources], f"part {number}"),
            timestamp=lambda parcel: at(0),
            name=f"source_{number}",
            on_error="dead_letter",
        )
    weigh = Weigh(seconds)
    made.add(weigh, PARCELS.by(number_of))
    made.sink(WEIGHTS, Table("out", Weight))
    return made, weigh


def growing(numbers: list[int], settings: Settings) -> Pipeline:
    """Parcels are made large, passed on by their number, and weighed."""
    made = Pipeline("growing", settings=settings)
    made.inject(
        PARCELS, script(PARCELS, [Parcel(n) for n in numbers]), timestamp=lambda parcel: at(0)
    )
    made.add(Grow(), PARCELS.by(number_of), on_error="dead_letter")
    made.add(Weigh(), PASSED_ON.by(number_of))
    made.sink(WEIGHTS, Table("out", Weight))
    return made


LARGE = replace(
    SHARED,
    intervals=1,
    max_record_bytes=4 * MEBIBYTE,
    max_unacked_bytes=16 * MEBIBYTE,
    max_unacked_records=1000,
    chunk_records=4,
)


class Scales:
    """Weather that weighs frames."""

    def __init__(self) -> None:
        self.longest = 0

    def __call__(self, sender: str, receiver: str, body: bytes) -> Fate:
        self.longest = max(self.longest, len(body))
        return FAIR


async def test_large_rows_go_to_a_slow_worker_by_their_real_size() -> None:
    """40 rows of 4 MB: a frame for each, and no more on their way than the credits allow."""
    heavy = "x" * (4 * MEBIBYTE - 100)
    pipeline, weigh = weighing([Parcel(n, heavy) for n in range(40)], LARGE, seconds=0.5)
    scales = Scales()
    cluster, first, second = await apart(pipeline, "weigh", scales)
    weigh.sleep = cluster.clock.sleep
    most = 0

    def finished() -> bool:
        nonlocal most
        most = max(most, *(log.unacked for log, _ in first.exchange.logs.values()))
        return cluster.finished()

    with capture_logs() as logs:
        await cluster.go(finished)
    assert sorted(cluster.rows()) == [(n, len(heavy)) for n in range(40)]
    assert not logged(logs, "link_down")
    assert scales.longest < 4 * MEBIBYTE + 4096
    assert most <= 4 + LARGE.chunk_records, "16 MiB, and what is read at a time"
    for engine in (first, second):
        await cluster.leave(engine)


async def test_many_logs_with_much_to_send_wait_for_a_worker_that_takes_nothing() -> None:
    """Credits bound each log; together they are more than may wait for one neighbour."""
    parcels = [Parcel(n, "x" * 500_000) for n in range(400)]
    settings = replace(LARGE, max_unacked_bytes=32 * MEBIBYTE)
    pipeline, _ = weighing(parcels, settings, sources=10)
    cluster, first, second = await apart(pipeline, "weigh")
    cluster.store.pause(*(f"source_{number}" for number in range(10)))
    await live(cluster, 1)
    cluster.ether.part("w0", "w1")
    cluster.store.pause()

    def waiting() -> int:
        return sum(
            connection._outbox_bytes + connection._transport.get_write_buffer_size()
            for connection in links_of(first)._connections
            if connection._transport is not None
        )

    most = 0
    with capture_logs() as logs:
        for _ in range(400):
            await live(cluster, 0.02)
            most = max(most, waiting())
        unacked = sum(log.unacked_bytes for log, _ in first.exchange.logs.values())
        assert unacked > Limits().waiting_bytes, "there is more to send than may wait"
        assert 0 < most < 3 * Limits().burst_bytes
        cluster.ether.join("w0", "w1")
        await cluster.go(cluster.finished)
    assert not logged(logs, "link_down")
    assert sorted(cluster.rows()) == [(n, 500_000) for n in range(400)]
    for engine in (first, second):
        await cluster.leave(engine)


class Narrow:
    """A link that is full after each frame."""

    peer = "they"
    outgoing = True
    up = True

    def __init__(self) -> None:
        self.full = False
        self.sent: list[tuple[int, int, int]] = []
        """(interval, log, number) of each record."""

    def send(self, frame: Frame) -> None:
        assert isinstance(frame, Deliver)
        self.sent += [(frame.interval, frame.log, row[0]) for row in frame.records]
        self.full = True

    def close(self) -> None: ...


async def test_while_a_link_is_full_all_who_send_over_it_take_turns() -> None:
    pipeline, _ = weighing([], LARGE)
    engine = Engine(
        pipeline, MemoryStore("weighing"), network=lambda worker: cast(Network, object())
    )
    courier = engine.courier
    assert courier is not None
    link = Narrow()
    courier.peers._links["they"] = link
    step = Step(3, 0, pipeline.graph().nodes[-1], {})
    for log in (1, 2):
        owner = cast(Interval, SimpleNamespace(id=log, commits=SimpleNamespace(sequencer=1)))
        engine.exchange.logs[log] = SentLog(log, Holds()), owner
    remotes = [Remote(courier.sender, step, id_, (0, SLOTS)) for id_ in (10, 11)]
    for remote in remotes:
        remote.owner = "they"
        for log, seq in itertools.product((1, 2), range(3)):
            parcel = Parcel(seq)
            remote.append(
                Delivery(seq, parcel, 0, "parcels", b"0", 0, 3, 0, FRAME_BYTES, b"{}", log, seq)
            )
    for _ in range(12):
        await asyncio.sleep(0)
        link.full = False
        courier.link_drained(link)
    order = [(interval, log) for interval, log, _ in link.sent]
    assert order == 3 * [(10, 1), (11, 1), (10, 2), (11, 2)]
    assert [seq for *_, seq in link.sent] == [0] * 4 + [1] * 4 + [2] * 4


async def test_a_newer_log_of_an_interval_is_sent_after_the_older_one() -> None:
    """What a key has sent before a takeover of its interval goes before what it sends after it."""
    pipeline, _ = weighing([], LARGE)
    engine = Engine(
        pipeline, MemoryStore("weighing"), network=lambda worker: cast(Network, object())
    )
    courier = engine.courier
    assert courier is not None
    link = Narrow()
    courier.peers._links["they"] = link
    owner = cast(Interval, SimpleNamespace(id=7, commits=SimpleNamespace(sequencer=1)))
    for log in (1, 2):
        engine.exchange.logs[log] = SentLog(log, Holds()), owner
    remote = Remote(courier.sender, Step(3, 0, pipeline.graph().nodes[-1], {}), 10, (0, SLOTS))
    remote.owner = "they"
    for log, seq in itertools.product((2, 1), range(3)):
        parcel = Parcel(seq)
        remote.append(
            Delivery(seq, parcel, 0, "parcels", b"0", 0, 3, 0, FRAME_BYTES, b"{}", log, seq)
        )
    for _ in range(8):
        await asyncio.sleep(0)
        link.full = False
        courier.link_drained(link)
    assert [log for _, log, _ in link.sent] == [1, 1, 1, 2, 2, 2]


async def test_a_row_that_is_too_large_is_a_dead_letter_where_it_is_read() -> None:
    values = [Parcel(0, "a"), Parcel(1, "x" * 100_000_000), Parcel(2, "b" * 3_000_000), Parcel(3)]
    pipeline, _ = weighing(values, LARGE)
    cluster, first, second = await apart(pipeline, "weigh")
    with capture_logs() as logs:
        await cluster.go(cluster.finished)
    assert sorted(cluster.rows()) == [(0, 1), (2, 3_000_000), (3, 0)]
    (letter,) = cluster.store.dead_letters
    assert "the value takes 100,000,0" in letter.error
    assert "more than the limit of 4,194,304; split it, or raise the limit" in letter.error
    assert letter.place == "script of part 0, line 2"
    assert len(letter.value) < 100_000
    assert not logged(logs, "link_down")
    for engine in (first, second):
        await cluster.leave(engine)


async def test_a_production_that_is_too_large_is_a_dead_letter_where_it_is_made() -> None:
    limit = LARGE.max_record_bytes
    frame = len(msgspec.json.encode(Parcel(limit, "")))
    largest = limit - frame
    numbers = [1, 100_000_000, largest, 2, largest + 100]
    cluster, first, second = await apart(growing(numbers, LARGE), "weigh")
    with capture_logs() as logs:
        await cluster.go(cluster.finished)
    assert sorted(cluster.rows()) == [(n, n) for n in (1, 2, largest)]
    letters = cluster.store.dead_letters
    assert sorted(msgspec.json.decode(letter.value)["number"] for letter in letters) == [
        largest + 100,
        100_000_000,
    ]
    assert all("more than the limit of 4,194,304" in letter.error for letter in letters)
    assert not logged(logs, "link_down")
    for engine in (first, second):
        await cluster.leave(engine)


# -- a clock that is off ---------------------------------------------------------------------------


class Off:
    """A machine's clock that is off by some seconds."""

    def __init__(self, clock: VirtualClock, seconds: float) -> None:
        self._clock = clock
        self._micros = int(seconds * 1e6)
        self.monotonic = clock.monotonic
        self.sleep = clock.sleep

    def now(self) -> int:
        return self._clock.now() + self._micros


@pytest.mark.parametrize("seconds", [600.0, -600.0])
@pytest.mark.parametrize("first", [True, False])
async def test_a_worker_whose_clock_is_ten_minutes_off(seconds: float, first: bool) -> None:
    values = many(600)
    cluster = Cluster(counting(values, replace(SHARED, bucket_seconds=2.0)))
    began = cluster.clock.now()
    with capture_logs() as logs:
        for wrong in (first, not first):
            clock = Off(cluster.clock, seconds) if wrong else None
            await cluster.admit(clock=clock)
        await live(cluster, SHARED.lease_seconds)
        await cluster.go(cluster.finished)
    check(cluster, values)
    (line,) = logged(logs, "clock_is_off")
    assert line["seconds"] == pytest.approx(seconds, abs=0.2)
    assert line["worker"] == cluster.engines[0 if first else 1].worker[:8]
    assert line["log_level"] == "warning"
    for commit in cluster.commits:
        assert began <= commit.stamp <= cluster.clock.now(), "stamped by the store's clock"
    assert all(engine.processed > 50 for engine in cluster.alive)
    for engine in list(cluster.alive):
        await cluster.leave(engine)


async def test_a_wall_timer_is_due_by_the_clock_that_all_share() -> None:
    """Set in the name of a time that is right, whoever set it and whoever has it now."""
    rang: list[int] = []

    async def remind(record: Record[Item], ctx: Context[Kept]) -> None:
        ctx.set_timer(ctx.now + timedelta(seconds=20), kind="wall")

    async def ring(timer: Timer, ctx: Context[Kept]) -> None:
        rang.append(cluster.clock.now())

    pipeline = doing([Item("a", 1)], remind, ring, settings=SHARED)
    cluster = Cluster(pipeline)
    began = cluster.clock.now()
    first = await cluster.admit(clock=Off(cluster.clock, 600.0))
    await cluster.go(lambda: first.processed)
    await cluster.admit(clock=Off(cluster.clock, -600.0))
    await cluster.leave(first)
    await cluster.go(lambda: rang)
    assert 20.0 <= (rang[0] - began) / 1e6 < 22.0
    for engine in list(cluster.alive):
        await cluster.leave(engine)


async def test_ids_are_remembered_by_the_clock_that_all_share() -> None:
    """A clock ahead by more than their retention would forget them at once."""
    limits = replace(SHARED, id_retention_seconds=60.0, id_bucket_seconds=2.0, bucket_seconds=2.0)
    source = script(ITEMS, [Item("a", 1)])
    cluster = Cluster(with_ids([source], limits))
    engine = await cluster.admit(clock=Off(cluster.clock, 600.0))
    await cluster.go(lambda: cluster.rows())
    await live(cluster, 20)
    source.append(inject(ITEMS, Item("a", 1)))
    read_on(engine)
    await live(cluster, 5)
    named = [b for b in await cluster.store.live_buckets() if b.family == "named"]
    assert len(named) > 5
    assert max(bucket.high for bucket in named) <= cluster.clock.now() + 2_000_000
    assert len(cluster.rows()) == 1
    await cluster.leave(engine)


async def test_a_clock_that_was_set_right_and_goes_wrong_again_is_told_again() -> None:
    cluster = Cluster(counting(many(4)))
    clock = Off(cluster.clock, 0.0)
    with capture_logs() as logs:
        await cluster.admit(clock=clock)
        for seconds in (60, 0, -60):
            clock._micros = int(seconds * 1e6)
            await live(cluster, 2 * SHARED.lease_seconds)
    assert [round(line["seconds"]) for line in logged(logs, "clock_is_off")] == [60, -60]
    for engine in list(cluster.alive):
        await cluster.leave(engine)


# -- another graph ---------------------------------------------------------------------------------


async def test_a_worker_with_another_graph_is_refused_and_nobody_is_disturbed() -> None:
    values = many(600)
    cluster = Cluster(counting(values))
    first = await cluster.join()
    await cluster.go(lambda: first.processed > 50)
    held = list(first.intervals)
    with capture_logs() as logs:
        with pytest.raises(DeployRefused) as caught:
            await cluster.admit(pipeline=counting(values, sources=1))
        refused = cluster.alive.pop()
        await cluster.go(cluster.finished)
    assert caught.value.exit_code == 4
    assert "millwheel remove counting source_1" in str(caught.value)
    assert refused.intervals == []
    assert [worker.id for worker in (await cluster.store.read_placement()).workers] == [
        first.worker
    ]
    assert first.intervals == held
    assert not [line for line in logs if line["log_level"] in ("warning", "error")]
    check(cluster, values)
    await cluster.leave(first)


# -- what comes over the wire ----------------------------------------------------------------------


async def test_what_a_zombie_sends_is_dropped_and_counted_and_not_acknowledged() -> None:
    """It owned the sending interval before, and is known: it has the secret and a link."""
    values = many(600)
    cluster = Cluster(counting(values))
    first, second = await cluster.join(), await cluster.join()
    courier = second.courier
    assert courier is not None
    await cluster.go(
        lambda: min(first.processed, second.processed) > 50 and courier.receiver._incoming
    )
    (log, interval_id), stream = next(iter(courier.receiver._incoming.items()))
    receiver = second.exchange.held(interval_id)
    assert receiver is not None
    zombie = Links(
        Identity(cluster.pipeline.name, "zombie", fake_network.SECRET),
        cluster.ether.medium("z"),
        clock=cluster.clock,
        random=Random(1),
    )
    ears = Listener()
    await zombie.start(ears, await cluster.store.incarnation())
    link = zombie.link(second.worker, "w1")
    await cluster.go(lambda: link.up)
    sequencer, epoch = stream.epoch
    seq = stream.last + 8
    slot = receiver.slots[0]
    item = msgspec.json.encode(Item("from the grave", 4711))
    row = (seq, "items", b'"from the grave"', slot, 0, 0, 0, len(item), b"", False, item, 1, 0)
    for previous in (-1, stream.last, stream.last + 7):
        link.send(
            Deliver(log, sequencer - 1, epoch + 100, interval_id, receiver.step.id, previous, [row])
        )
    before = courier.refused["old or a copy"]
    await cluster.go(lambda: courier.refused["old or a copy"] >= before + 3)
    assert courier.receiver._ack_links[log].peer == first.worker, (
        "what comes is still acknowledged to its sender"
    )
    await cluster.finish_soon(values)
    assert not [frame for frame in ears.frames if isinstance(frame, Acknowledge | Gap)]
    await cluster.pass_time(zombie.close())
    for engine in (first, second):
        await cluster.leave(engine)


# -- slots of nobody -------------------------------------------------------------------------------


async def test_what_nobody_may_own_waits_at_its_senders_until_somebody_may() -> None:
    """Its owner has died, and whoever is left runs code that is too old for it."""
    values = many(900)
    cluster = Cluster(counting(values, replace(SHARED, max_unacked_records=50)))
    first, second = await cluster.join(), await cluster.join()
    await cluster.go(lambda: min(first.processed, second.processed) > 50)
    lost = {i.id for i in second.intervals if i.step.name == "recount"}
    for id_ in lost:
        cluster.store.tables.intervals[id_].generation = 2
    with capture_logs() as logs:
        await cluster.crash(second)
        await live(cluster, 10 * SHARED.lease_seconds, 0.05)
        waiting = {
            r.id: r for r in first.remotes.remotes() if any(s.unacked for s in r.streams.values())
        }
        assert waiting.keys() == lost
        assert all(
            log.unacked < 50 + SHARED.bundle_records for log, _ in first.exchange.logs.values()
        )
        stalled, processed = first.progress(), len(cluster.commits)
        await live(cluster, 5 * SHARED.lease_seconds, 0.05)
        assert first.progress()["low_watermark"] == stalled["low_watermark"]
        assert first.processed == stalled["processed"], f"{len(cluster.commits) - processed}"
    (line,) = logged(logs, "no_worker_of_generation")
    assert (line["generation"], line["intervals"]) == (2, len(lost))
    third = await cluster.join()
    cluster.store.tables.workers[third.worker].generation = 2
    await cluster.go(cluster.finished)
    assert lost <= {interval.id for interval in third.intervals}
    check(cluster, values)
    for engine in (first, third):
        await cluster.leave(engine)


# -- who is not let in -----------------------------------------------------------------------------

SECRET = Secret(b"sixteen bytes or more", "given")
WRONG = Secret(b"another sixteen bytes", "given")


async def test_a_worker_with_a_wrong_secret_gets_nothing_and_the_others_go_on() -> None:
    values = many(1500)
    cluster = Cluster(counting(values))
    with capture_logs() as logs:
        first = await cluster.admit(secret=SECRET)
        second = await cluster.admit(secret=SECRET)
        await cluster.go(lambda: min(first.processed, second.processed) > 50)
        stranger = await cluster.admit(secret=WRONG)
        observed = EngineObserved(stranger)
        held: set[int] = set()
        late = cluster.clock.monotonic() + 3 * SHARED.lease_seconds

        def finished() -> bool:
            held.update(interval.id for interval in stranger.intervals)
            done = first.done.is_set() and second.done.is_set()
            return done and cluster.clock.monotonic() > late

        await cluster.go(finished)
        not_ready = await observed.why_not_ready()
    check(cluster, values)
    assert not held, "its records would wait for ever"
    released = [e for e in cluster.store.placement_events() if e.what == "release"]
    assert stranger.worker not in {event.to_worker for event in released}
    assert not_ready is not None
    names = ", ".join(sorted([first.worker[:8], second.worker[:8]]))
    assert not_ready.startswith(f"it does not reach the workers {names} of the same pipeline")
    (line,) = logged(logs, "out_of_touch")
    assert line["worker"] == stranger.worker[:8]
    assert line["others"] == sorted([first.worker[:8], second.worker[:8]])
    for engine in (first, second):
        refused = [
            line["event"]
            for line in logs
            if line["worker"] == engine.worker[:8]
            and line["log_level"] == "warning"
            and "the two workers have different shared secrets" in line["reason"]
        ]
        assert sorted(refused) == ["link_down", "stranger_refused"], "once for each direction"
    for engine in (first, second, stranger):
        await cluster.leave(engine)


async def test_a_worker_with_an_expired_certificate_makes_way_for_one_that_has_renewed_it() -> None:
    values = many(1500)
    cluster = Cluster(counting(values))
    first = await cluster.join()
    await cluster.go(lambda: first.processed > 20)
    links_of(first)._medium = Expired(links_of(first)._medium)
    cluster.ether.part("w0", "w1")
    second = await cluster.join()
    await cluster.go(lambda: len(second.intervals) >= 3)
    assert not first.intervals
    assert first.out_of_touch
    await cluster.go(second.done.is_set)
    check(cluster, values)
    for engine in (first, second):
        await cluster.leave(engine)


class Expired:
    """A medium with a certificate that has expired."""

    expired = "it has"

    def __init__(self, medium: Any) -> None:
        self._medium = medium

    def __getattr__(self, name: str) -> Any:
        return getattr(self._medium, name)


async def test_a_worker_without_intervals_is_not_ready_while_some_have_no_owner() -> None:
    """Nobody assigns them: the leader hangs, or nothing leads."""
    values = many(1500)
    cluster = Cluster(counting(values))
    nobody = AsyncMock(return_value=None)
    with patch.object(cluster.store, "try_lead", nobody):
        first = await cluster.join()
        observed = EngineObserved(first)
        await cluster.go(lambda: nobody.await_count > 3)
        not_ready = await observed.why_not_ready()
    assert not_ready is not None
    assert re.match(r"it owns no interval, and \d+ intervals have no owner", not_ready)
    await cluster.go(lambda: first.intervals)
    assert await observed.why_not_ready() is None
    await cluster.leave(first)


async def test_who_is_new_and_has_reached_nobody_takes_nothing_that_is_free() -> None:
    """Before all have said whom they reach, and it was decided who goes on."""
    values = many(1000)
    cluster = Cluster(counting(values))
    first = await cluster.admit(secret=SECRET)
    await cluster.go(lambda: first.processed > 50)
    stranger = await cluster.admit(secret=WRONG)
    interval = next(i for i in first.intervals if i.step.name == "tally")
    await cluster.store.wish(
        [Wish(interval.id, interval.commits.sequencer, stranger.worker, "early")]
    )
    giving = asyncio.ensure_future(first.owned.give_up(interval))
    await cluster.go(giving.done)
    assert await giving
    late = cluster.clock.monotonic() + SHARED.lease_seconds / 2
    await cluster.go(lambda: stranger.intervals or cluster.clock.monotonic() > late)
    assert not stranger.intervals
    assert not first.exchange.knows(interval.id), "it is nobody's"
    await cluster.go(first.done.is_set)
    check(cluster, values)
    for engine in (first, stranger):
        await cluster.leave(engine)


async def test_a_link_that_is_down_for_less_than_a_lease_moves_nothing() -> None:
    values = many(1000)
    cluster = Cluster(counting(values))
    first, second = await cluster.join(), await cluster.join()
    await cluster.go(lambda: min(first.processed, second.processed) > 100)
    held = list(second.intervals)
    with capture_logs() as logs:
        cluster.ether.cut("w0", "w1")
        cluster.ether.part("w0", "w1")
        await live(cluster, 0.7 * SHARED.lease_seconds)
        cluster.ether.join("w0", "w1")
        await cluster.go(cluster.finished)
    assert second.intervals == held
    assert not logged(logs, "out_of_touch")
    check(cluster, values)
    for engine in (first, second):
        await cluster.leave(engine)


async def test_of_two_who_do_not_know_each_other_the_elder_works() -> None:
    values = many(600)
    cluster = Cluster(counting(values))
    first = await cluster.admit(secret=SECRET)
    second = await cluster.admit(secret=WRONG)
    await cluster.go(first.done.is_set)
    check(cluster, values)
    assert second.processed == 0
    await cluster.crash(first)
    await cluster.go(lambda: not second.out_of_touch)
    await cluster.go(cluster.finished)
    assert len(second.intervals) == 6, "alone it needs to reach nobody"
    await cluster.leave(second)


async def test_who_loses_touch_hands_over_and_comes_back() -> None:
    """The network between two workers fails for longer than a lease; both reach the store."""
    values = many(1000)
    cluster = Cluster(counting(values))
    first, second = await cluster.join(), await cluster.join()
    await cluster.go(lambda: min(first.processed, second.processed) > 100)
    with capture_logs() as logs:
        cluster.ether.part("w0", "w1")
        await cluster.go(lambda: second.out_of_touch and not second.intervals)
        await cluster.go(lambda: len(first.intervals) == 6)
        cluster.ether.join("w0", "w1")
        await cluster.go(lambda: second.intervals)
        await cluster.go(cluster.finished)
    check(cluster, values)
    assert len(logged(logs, "out_of_touch")) == len(logged(logs, "in_touch_again")) == 1
    for engine in (first, second):
        await cluster.leave(engine)


# -- who is no worker ------------------------------------------------------------------------------


STRANGERS = [
    (b"GET / HTTP/1.1\r\nHost: worker\r\n\r\n", "announces 1,195,725,856 bytes"),
    (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" * 50, "announces 369,295,618 bytes"),
    (b"\0\0\0\4\xc1\xc1\xc1\xc1", "4 bytes are no valid frame"),
    (b"\xff" * 100, "announces 4,294,967,295 bytes"),
]
"""A browser, a client of TLS, and chance; what is wrong with each."""


async def test_strangers_at_the_port_disturb_nobody_and_are_told_of_once() -> None:
    """Real sockets and real time: two workers in the midst of their work."""
    values = many(2000)
    pipeline = counting(values, replace(SHARED, placement_seconds=0.05, lease_seconds=10.0))
    end_scripts(pipeline)
    store = MemoryStore(pipeline.name, clock=SystemClock())
    engines = [Engine(pipeline, store, network=tcp(pipeline.name)) for _ in range(2)]
    with capture_logs() as logs:
        for engine in engines:
            await engine.start()
            engine.attend(Engine.claiming, "claiming")
        links = links_of(engines[0])
        await until(lambda: len(logged(logs, "link_up")) == 4)
        for _ in range(3):
            for sent, reason in STRANGERS:
                assert reason in await answer(links, sent)
            await answer(links, b"\xff" * 10_000_000)  # hung up on before all of it is there
            _, writer = await call(links)  # a port scanner says nothing
            await hang_up(writer)
        async with asyncio.timeout(60):
            await asyncio.gather(*(engine.done.wait() for engine in engines))
        assert len(links._connections) == 2, "one from and one to the other worker"
    rows = [(key, number, count) for key, number, count, *_ in store.rows("out")]
    assert sorted(number for _, number, _ in rows) == list(range(2000))
    told = logged(logs, "stranger_refused")
    assert sorted(line["kind"] for line in told) == ["garbage", "lost"], "once for each kind"
    assert told[0]["address"].startswith("127.0.0.1:")
    assert STRANGERS[0][1] in told[0]["reason"]
    for engine in engines:
        await engine.stop()


def tcp(pipeline: str) -> Callable[[str], Links]:
    return lambda worker: Links(Identity(pipeline, worker, SECRET), Tcp())


async def answer(links: Links, sent: bytes) -> str:
    """What a stranger is told before he is hung up on."""
    reader, writer = await call(links)
    writer.write(sent)
    with contextlib.suppress(OSError):
        await writer.drain()
    try:
        told = await reader.read()
    except OSError:  # it was hung up on while it was still talking
        told = b""
    await hang_up(writer)
    return told.decode(errors="replace")
