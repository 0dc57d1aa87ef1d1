"""A receiver that is slow is told apart from one that has lost something (decision 31)."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from itertools import pairwise
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millwheel.runtime.engine import Engine
from millwheel.runtime.network.frames import (
    Acknowledge,
    Ask,
    Deliver,
    DeliverChunk,
    Frame,
    Progress,
    decode,
)
from millwheel.runtime.network.wire_stream import (
    FIRST_PATIENCE_SECONDS,
    LONGEST_PATIENCE_SECONDS,
    NOTHING,
    QUESTIONS,
    Due,
    Incoming,
    Outgoing,
    Verdict,
)
from millwheel.store.port.commit import Commit
from millwheel.store.port.placement import Wish
from millwheel.testing import inject
from millwheel.testing.fake_network import FAIR, Fate
from millwheel.testing.script import Script
from tests.support.clusters import SHARED, Cluster, apart, live, many
from tests.support.drawing import examples
from tests.support.peers import chunk, next_of, numbers_in, record
from tests.support.pipelines import script, tally_pipeline
from tests.support.values import ITEMS, Item
from tests.support.worlds import Gate, read_on

LIMITS = replace(SHARED, chunk_records=20, bundle_records=20, max_unacked_records=200)


def sent(*numbers: int) -> Outgoing:
    """A stream in its epoch 1, all of it sent."""
    stream = Outgoing()
    for number in numbers:
        stream.append(record(number))
    stream.begin(1)
    assert next_of(stream, 99, 1000) == list(numbers)
    return stream


def dues(stream: Outgoing, seconds: float, step: float = 0.5) -> list[tuple[float, Due]]:
    """What is due when, if nobody answers; what begins anew is sent at once."""
    found: list[tuple[float, Due]] = []
    for number in range(int(seconds / step)):
        due = stream.due(number * step)
        if due is not Due.NOTHING:
            found.append((number * step, due))
        if due is Due.BEGIN:
            stream.begin(stream.epoch + 1)
            stream.take(99, 1000)
    return found


# -- the sender's end ----------------------------------------------------------------------------


def test_who_says_nothing_is_asked_before_everything_is_sent_again() -> None:
    found = dues(sent(1, 2, 3), 300)
    assert found[0][0] == FIRST_PATIENCE_SECONDS + 0.5
    kinds = [due for _, due in found]
    assert kinds[: 2 * (QUESTIONS + 1)] == 2 * ([Due.ASK] * QUESTIONS + [Due.BEGIN])
    begun = [at for at, due in found if due is Due.BEGIN]
    pauses = [later - earlier for earlier, later in pairwise(begun)]
    assert pauses == sorted(pauses)
    assert pauses[-1] <= (QUESTIONS + 1) * (LONGEST_PATIENCE_SECONDS + 1)


def test_who_answers_is_asked_as_often_as_it_takes_and_nothing_is_sent_again() -> None:
    stream = sent(1, 2, 3)
    asked = 0
    for second in range(600):
        due = stream.due(float(second))
        assert due is not Due.BEGIN
        if due is Due.ASK:
            asked += 1
            assert stream.progress(1, 1) == []
    assert 150 < asked <= 600 / FIRST_PATIENCE_SECONDS
    assert set(stream.unacked) == {1, 2, 3}


def test_records_acknowledged_behind_the_oldest_do_not_put_the_question_off() -> None:
    stream = sent(*range(20))
    asked = []
    for second in range(10):
        if stream.due(float(second)) is Due.ASK:
            asked.append(second)
        stream.acknowledge([(second + 5, second + 5)])
    assert asked == [3, 6, 9]


def test_a_copy_of_a_record_that_waits_is_not_sent_beside_it() -> None:
    """A receiver takes numbers that ascend, and hangs up on others (decision 41)."""
    stream = Outgoing()
    for number in (1, 1, 2, 2):
        stream.append(record(number))
    stream.begin(1)
    assert next_of(stream, 99, 1000) == [1, 2]
    stream.append(record(2))
    stream.append(record(3))
    assert next_of(stream, 99, 1000) == [3]


def test_who_moves_on_is_not_asked() -> None:
    stream = sent(*range(20))
    for second in range(15):
        assert stream.due(float(second)) is Due.NOTHING
        stream.acknowledge([(second, second)])


def test_what_waits_to_be_sent_is_nobodys_delay() -> None:
    stream = sent(1)
    stream.append(record(2))
    assert dues(stream, 60) == []


def test_progress_names_what_is_durable_and_nothing_else() -> None:
    stream = sent(1, 2, 5, 8)
    assert stream.progress(1, 5) == [1, 2]
    assert set(stream.unacked) == {5, 8}, "what is durable is not sent again"
    assert stream.progress(1, 1) == []


def test_progress_of_another_epoch_counts_for_nothing() -> None:
    stream = sent(1, 2, 5)
    stream.begin(2)
    stream.take(99, 1000)
    assert stream.progress(1, 6) == []
    assert stream.progress(3, 6) == []
    assert stream.progress(2, 6) == [1, 2, 5]


# -- the receiver's end --------------------------------------------------------------------------

ONE, TWO = (7, 1), (7, 2)


def test_what_is_answered_to_a_question() -> None:
    stream = Incoming()
    assert stream.judge_question(ONE, 3) is Verdict.GAP, "it has never seen the stream"
    assert stream.judge(ONE, NOTHING, [1, 3]) is Verdict.TAKEN
    assert stream.judge_question(ONE, 3) is Verdict.TAKEN
    assert stream.judge_question(ONE, 1) is Verdict.TAKEN, "more has come since it was asked"
    assert stream.judge_question(ONE, 5) is Verdict.GAP, "the last frame was lost"
    assert stream.judge_question(TWO, 3) is Verdict.GAP, "the first frame of the epoch was lost"
    assert stream.judge_question((6, 9), 3) is Verdict.IGNORED, "a zombie asks"
    assert (stream.epoch, stream.last, stream.done) == (ONE, 3, 1), "a question changes nothing"


def test_what_is_durable_is_what_comes_before_the_first_pending_one() -> None:
    stream = Incoming()
    stream.judge(ONE, NOTHING, [1, 3, 6])
    stream.acknowledge([3, 4, 5])
    assert stream.done == 1
    stream.acknowledge([1])
    assert stream.done == 6
    stream.acknowledge([6])
    assert stream.done == 7
    stream.judge(ONE, 6, [9])
    assert stream.done == 9
    for verdict in (stream.judge(ONE, 6, [9]), stream.judge((6, 1), NOTHING, [10])):
        assert verdict is Verdict.IGNORED
    assert stream.pending == {9}
    stream.judge(TWO, NOTHING, [6, 9])
    assert stream.done == 6, "6 was sent again, so its sender has not heard of it"
    stream.judge((8, 1), NOTHING, [12])
    assert stream.done == 12, "the next owner of the log has heard of the others"


LOSSES = st.lists(st.sampled_from(["send", "commit", "lose", "repair", "anew"]), max_size=60)


@examples(80)
@given(LOSSES, st.randoms(use_true_random=False))
def test_whatever_is_lost_nothing_counts_as_durable_that_is_not(
    course: list[str], random: Random
) -> None:
    """Frames and ACKs are lost at will; in the end all is durable, and known to be."""
    sender, receiver = Outgoing(), Incoming()
    held: list[int] = []
    durable: set[int] = set()
    sender.begin(1)
    number = 0

    def carry(*, lost: bool) -> None:
        previous = sender.last
        seqs = next_of(sender, 2, 1000)
        epoch = (1, sender.epoch)
        if seqs and not lost and receiver.judge(epoch, previous, seqs) is Verdict.TAKEN:
            held.extend(seqs)

    def commit(*, lost: bool) -> None:
        random.shuffle(held)
        done = [held.pop() for _ in range(min(len(held), 2))]
        durable.update(done)
        receiver.acknowledge(done)
        if not lost:
            sender.acknowledge([(seq, seq) for seq in sorted(done)])

    def repair() -> None:
        if not sender.unacked or sender._unsent:
            return
        if receiver.judge_question((1, sender.epoch), sender.last) is Verdict.TAKEN:
            found = sender.progress(sender.epoch, receiver.done)
            assert durable.issuperset(found)
        else:
            sender.begin(sender.epoch + 1)

    for step in course:
        lost = random.random() < 0.3
        if step == "send":
            numbers = [number := number + random.randint(1, 3) for _ in range(random.randint(1, 4))]
            sender.append(chunk(*numbers) if random.random() < 0.5 else record(numbers[0]))
            carry(lost=lost)
        elif step == "lose":
            carry(lost=True)
        elif step == "commit":
            commit(lost=lost)
        elif step == "repair":
            repair()
        else:
            sender.begin(sender.epoch + 1)
    for _ in range(4 * number + 10):
        carry(lost=False)
        commit(lost=True)
        repair()
    assert not sender.unacked


# -- two workers ---------------------------------------------------------------------------------


@dataclass
class Wire:
    """Weather that counts what records go over the wire, and loses frames of some kinds."""

    lose: Callable[[Frame], bool] = lambda frame: False
    kinds: Counter[str] = field(default_factory=Counter)
    records: Counter[tuple[int, int]] = field(default_factory=Counter)
    """How often each went, by log and number."""

    def __call__(self, sender: str, receiver: str, body: bytes) -> Fate:
        frame = decode(body)
        self.kinds[type(frame).__name__] += 1
        if isinstance(frame, Deliver | DeliverChunk):
            self.records.update((frame.log, number) for number in numbers_in(frame))
        return Fate(copies=0) if self.lose(frame) else FAIR


def slowed(cluster: Cluster, seconds: float) -> Callable[[Commit], Awaitable[None] | None]:
    """Each commit of the step that counts takes so long."""

    def delay(commit: Commit) -> Awaitable[None] | None:
        return cluster.clock.sleep(seconds) if commit.rows else None

    return delay


def check_tally(cluster: Cluster, values: list[Item]) -> None:
    """Each item is counted once, those of a key in their order."""
    rows = [(key, number, count) for key, number, count, *_ in cluster.rows()]
    assert sorted(number for _, number, _ in rows) == [item.number for item in values]
    of_key: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for key, number, count in rows:
        of_key[key].append((count, number))
    for found in of_key.values():
        counts, numbers = zip(*sorted(found), strict=True)
        assert counts == tuple(range(1, len(counts) + 1))
        assert list(numbers) == sorted(numbers)


async def counting_apart(values: list[Item], wire: Wire) -> tuple[Cluster, Engine, Engine]:
    """One worker reads, the other one counts."""
    return await apart(tally_pipeline(script(ITEMS, values), LIMITS), "tally", wire)


async def seconds_for(cluster: Cluster, engine: Engine, records: int) -> float:
    """How long it takes to process so many more."""
    began, until = cluster.clock.monotonic(), engine.processed + records
    await cluster.go(lambda: engine.processed >= until, tick=0.02)
    return cluster.clock.monotonic() - began


async def test_a_sink_that_is_slow_for_a_minute_gets_no_record_twice() -> None:
    """Each commit takes half a second, then five, then half a second again."""
    values = many(2400)
    wire = Wire()
    cluster, first, second = await counting_apart(values, wire)
    cluster.on_try = slowed(cluster, 0.5)
    before = await seconds_for(cluster, second, 500)
    cluster.on_try = slowed(cluster, 5.0)
    processed = second.processed
    await live(cluster, 60, tick=0.05)
    assert second.processed - processed < 600, "it was slow"
    assert wire.kinds["Ask"] > 10
    cluster.on_try = slowed(cluster, 0.5)
    await live(cluster, 6, tick=0.05)  # the last of the slow commits
    after = await seconds_for(cluster, second, 500)
    assert after < 1.2 * before + 0.5
    await cluster.go(cluster.finished, tick=0.05)
    check_tally(cluster, values)
    assert len(wire.records) == len(values)
    assert wire.records.total() <= 1.1 * len(values)
    for engine in (first, second):
        await cluster.leave(engine)


async def test_lost_acknowledgements_are_said_again_and_no_record_is_sent_again() -> None:
    values = many(600)
    random = Random(5)
    wire = Wire(lose=lambda frame: isinstance(frame, Acknowledge) and random.random() < 0.5)
    cluster, first, second = await counting_apart(values, wire)
    cluster.on_try = slowed(cluster, 0.2)
    await cluster.go(cluster.finished, tick=0.02)
    check_tally(cluster, values)
    assert wire.records.total() == len(values)
    for engine in (first, second):
        await cluster.leave(engine)


async def test_frames_of_every_kind_are_lost_and_little_is_sent_twice() -> None:
    values = many(1000)
    random = Random(7)
    fragile = (Deliver, DeliverChunk, Acknowledge, Ask, Progress)
    wire = Wire(lose=lambda frame: isinstance(frame, fragile) and random.random() < 0.05)
    cluster, first, second = await counting_apart(values, wire)
    cluster.on_try = slowed(cluster, 0.3)
    await cluster.go(cluster.finished, tick=0.02)
    check_tally(cluster, values)
    assert wire.records.total() <= 2 * len(values), wire.records.total()
    for engine in (first, second):
        await cluster.leave(engine)


async def test_a_frame_lost_at_the_end_of_all_is_found_by_asking() -> None:
    values = many(30)
    lost = 0

    def lose(frame: Frame) -> bool:
        nonlocal lost
        last = max(numbers_in(frame), default=0) >= 25 and lost < 4
        lost += last
        return last

    wire = Wire(lose)
    cluster, first, second = await counting_apart(values, wire)
    began = cluster.clock.monotonic()
    await cluster.go(cluster.finished)
    assert lost == 4
    assert cluster.clock.monotonic() - began < 3 * FIRST_PATIENCE_SECONDS
    check_tally(cluster, values)
    for engine in (first, second):
        await cluster.leave(engine)


@pytest.mark.parametrize("seconds", [5, 21])
async def test_what_a_slow_worker_had_in_hand_when_it_crashed_is_not_lost(seconds: float) -> None:
    """It had said that it has it; that is no word of it being durable."""
    values = many(600)
    wire = Wire()
    cluster, first, second = await counting_apart(values, wire)
    await cluster.go(lambda: second.processed > 100)
    cluster.on_try = slowed(cluster, 60.0)
    await live(cluster, seconds, tick=0.02)
    assert wire.kinds["Progress"] > 0
    cluster.on_try = None
    rows = (await cluster.store.read_placement()).intervals
    await cluster.crash(second)
    await cluster.store.wish([Wish(r.id, r.sequencer, first.worker, "free") for r in rows])
    await cluster.go(cluster.finished)
    check_tally(cluster, values)
    await cluster.leave(first)


async def trickle(cluster: Cluster, first: Engine, source: Script, values: list[Item]) -> None:
    """Items come one after the other, some a second."""
    for value in values:
        source.append(inject(ITEMS, value))
        read_on(first)
        await live(cluster, 0.15, tick=0.03)


async def test_an_interval_that_is_handed_over_slowly_gets_nothing_twice() -> None:
    """It takes nothing any more and is not anybody else's yet, for as long as its last commits
    take."""
    values = many(350)
    wire, source = Wire(), script(ITEMS, values[:300])
    limits = replace(LIMITS, max_unacked_records=2000)
    cluster, first, second = await apart(tally_pipeline(source, limits), "tally", wire)
    source.ended = False  # more rows come
    await cluster.go(lambda: second.processed > 100)
    cluster.on_try = slowed(cluster, 10.0)
    await live(cluster, 1, tick=0.02)
    rows = (await cluster.store.read_placement()).intervals
    await cluster.store.wish(
        [Wish(r.id, r.sequencer, first.worker, "hand over", pinned=True) for r in rows]
    )
    await live(cluster, 1, tick=0.02)
    assert any(interval.leaving for interval in second.intervals)
    await trickle(cluster, first, source, values[300:])
    assert any(interval.leaving for interval in second.intervals)
    assert wire.kinds["NotMine"] < 5, "once it is known, nothing is sent, and nobody looks it up"
    cluster.on_try = None
    source.end()
    await cluster.go(cluster.finished)
    check_tally(cluster, values)
    assert wire.records.total() <= 1.1 * len(values)
    for engine in (first, second):
        await cluster.leave(engine)


async def test_who_says_not_mine_is_asked_before_he_gets_all_again() -> None:
    """A worker has let go of what the store still says is its own, and cannot claim it yet."""
    values = many(350)
    wire, source = Wire(), script(ITEMS, values[:300])
    limits = replace(LIMITS, max_unacked_records=2000)
    cluster, first, second = await apart(tally_pipeline(source, limits), "tally", wire)
    source.ended = False  # more rows come
    await cluster.go(lambda: second.processed > 100)
    cluster.on_try = slowed(cluster, 10.0)
    await live(cluster, 1, tick=0.02)
    gate = Gate()

    async def no_claims(call: str) -> None:
        if call == "claim":
            await gate.wait()

    cluster.store.faults.before_call = no_claims
    sent = wire.records.total()
    await cluster.pass_time(second.owned.lose_all())
    await trickle(cluster, first, source, values[300:320])
    assert wire.kinds["NotMine"] > 2
    assert wire.records.total() - sent <= len(values), "once more, to find out that it is not his"
    cluster.store.faults.before_call = None
    cluster.on_try = None
    gate.open()
    await trickle(cluster, first, source, values[320:])
    source.end()
    await cluster.go(cluster.finished)
    check_tally(cluster, values)
    for engine in (first, second):
        await cluster.leave(engine)


def test_a_stream_that_is_held_sends_nothing_until_it_may_or_begins_anew() -> None:
    stream = sent(1, 2)
    assert stream.progress(1, 2, takes=False) == [1]
    stream.append(record(3))
    assert stream.take(9, 1000)[1] == []
    assert [due for _, due in dues(stream, 11)] == [Due.ASK] * QUESTIONS + [Due.BEGIN]
    stream = sent(1, 2)
    stream.progress(1, 2, takes=False)
    stream.append(record(3))
    stream.progress(1, 2)
    previous = stream.last
    assert (previous, next_of(stream, 9, 1000)) == (2, [3]), "the same epoch goes on"
    stream.progress(1, 2, takes=False)
    stream.begin(2)
    assert next_of(stream, 9, 1000) == [2, 3]
