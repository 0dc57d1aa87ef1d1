"""How a lane handles commits that fail, are lost, are refused or are fenced (I3, I12)."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import pytest
import uvloop

from millwheel import (
    Computation,
    Context,
    JsonLinesFiles,
    Pipeline,
    Record,
    Settings,
    Stream,
    Table,
    Timer,
)
from millwheel.core.clock import VirtualClock
from millwheel.core.model import Delivery, record_id, to_micros
from millwheel.errors import (
    BucketGone,
    CommitUnknown,
    Fenced,
    MillwheelError,
    StatementRace,
    StoreUnavailable,
    UserCodeError,
)
from millwheel.runtime.ownership import owned_intervals as holdings
from millwheel.runtime.process import tasks
from millwheel.runtime.seen.dedup import Dedup
from millwheel.store.port.commit import Commit
from millwheel.testing import advance, inject
from millwheel.testing.script import Script
from tests.support.part_files import written_numbers
from tests.support.pipelines import (
    QUICK,
    Broken,
    Do,
    Kept,
    Tally,
    doing,
    produce,
    script,
    tally_pipeline,
)
from tests.support.values import ITEMS, TALLY, Counted, Item, at, items, key_of, tally_of, time_of
from tests.support.worlds import Gate, World, fail_once, read_on, unknown_once

END = Stream("end", Counted)
SMALL = replace(QUICK, chunk_records=2, bundle_records=4)


def more(source: Script, values: Sequence[Item]) -> None:
    """`values` come into a source."""
    for value in values:
        source.append(inject(ITEMS, value))


async def overlapped(world: World, source: Any) -> Gate:
    """An engine whose first commit of records is on the wire while the next bundle is full."""
    gate = Gate()
    world.on_try = lambda commit: gate.wait() if commit.seen else None
    await world.start()
    await world.until(lambda: gate.reached)
    await world.until(lambda: world.engines[-1].lane.commits.open.count >= 4)
    return gate


@pytest.mark.parametrize("error", [StoreUnavailable("away"), CommitUnknown("lost")])
async def test_what_overlaps_a_commit_that_fails_is_dropped_with_it(error: Exception) -> None:
    """I12: the next bundle ran on state that never came to be; it runs again."""
    values = items(*range(20))
    world = World(tally_pipeline(script(ITEMS, values), SMALL))
    gate = Gate()
    failed: list[int] = []

    async def refuse(commit: Commit) -> None:
        if commit.seen and not failed:
            await gate.wait()
            failed.append(len(commit.seen))
            raise error

    world.on_try = refuse
    engine = await world.start()
    await world.until(lambda: gate.reached)
    await world.until(lambda: engine.lane.commits.open.count >= 4)
    assert world.rows() == []
    gate.open()
    await world.finish(engine)
    assert failed
    assert world.tallied() == tally_of(values)
    assert world.state("tally", "a") == {"": {"count": 20}}


@pytest.mark.parametrize("intervals", [1, 2, 3])
@pytest.mark.parametrize("kind", ["unavailable", "not applied", "applied"])
async def test_any_single_commit_may_fail(intervals: int, kind: str) -> None:
    """Every commit of the run, one after the other, in worlds of their own."""
    values = [Item("abcdefgh"[n % 8], n, n) for n in range(16)]
    limits = replace(SMALL, intervals=intervals)
    world = World(tally_pipeline(script(ITEMS, [*values, advance(ITEMS, at(99))]), limits))
    await world.run(close_at_end=True)
    assert world.tallied() == tally_of(values)
    for number in range(1, world.tried + 1):
        world = World(tally_pipeline(script(ITEMS, [*values, advance(ITEMS, at(99))]), limits))
        if kind == "applied":
            unknown_once(world, number)
        else:
            error = StoreUnavailable("away") if kind == "unavailable" else CommitUnknown("lost")
            fail_once(world, number, error)
        await world.run(close_at_end=True)
        assert world.tallied() == tally_of(values), f"commit {number}"


async def test_a_watermark_in_a_commit_whose_fate_was_unknown_reaches_the_readers() -> None:
    """The end of time, stored by a commit the lane never heard of, must close the readers."""
    for number in range(1, 12):
        world = World(tally_pipeline(script(ITEMS, items(1, 2, 3)), replace(QUICK, intervals=2)))
        unknown_once(world, number)
        engine = await world.start(close_at_end=True)
        await world.until(engine.done.is_set, tick=0.01, what=f"commit {number}")
        assert world.clock.monotonic() < 5, f"commit {number}: only housekeeping saved it"
        await engine.stop()
        assert world.numbers() == [1, 2, 3]


def test_what_is_to_be_stored_at_once_is_no_timer_to_every_loop() -> None:
    """To uvloop it is none; nor is what was due before the loop came to look at its clock, on a
    machine that is busy."""
    values = items(1, 2, 3)
    world = World(tally_pipeline(script(ITEMS, values)))
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(world.run())
    assert world.tallied() == tally_of(values)


async def test_a_store_that_is_away_for_a_while_costs_time_and_nothing_else() -> None:
    values = items(*range(10))
    world = World(tally_pipeline(script(ITEMS, values), SMALL))
    back = world.clock.monotonic() + 50

    def away(commit: Commit) -> None:
        if world.clock.monotonic() < back:
            raise StoreUnavailable("away")

    async def gone(name: str) -> None:
        if world.tried and world.clock.monotonic() < back and name in ("claim", "open_lane"):
            raise StoreUnavailable("away")

    world.on_try = away
    world.store.faults.before_call = gone
    await world.run()
    assert world.clock.monotonic() >= back
    assert world.tried < 60, "it backs off"
    assert world.tallied() == tally_of(values)


@pytest.mark.parametrize("calls", [(), ("open_lane",), ("claim",)])
async def test_patience_ends_with_a_clear_error(calls: Sequence[str]) -> None:
    """Commits fail for ever; so may connecting or claiming."""
    values = items(*range(10))
    world = World(tally_pipeline(script(ITEMS, values), SMALL))
    begun = world.clock.monotonic()

    def away(commit: Commit) -> None:
        raise StoreUnavailable("away for good")

    async def gone(name: str) -> None:
        if world.tried and name in calls:
            raise StoreUnavailable("away for good")

    world.on_try = away
    world.store.faults.before_call = gone
    engine = await world.start()
    with pytest.raises(StoreUnavailable, match="away for good"):
        await world.until(engine.done.is_set, tick=0.1)
    assert 59 < world.clock.monotonic() - begun < 130
    await engine.stop()
    world.on_try = None
    world.store.faults.before_call = None
    await world.run()
    assert world.tallied() == tally_of(values)


async def test_patience_is_for_one_outage_not_for_all_of_them() -> None:
    """After an outage that ended, the patience of the next one is whole again."""
    values = items(*range(120))
    world = World(tally_pipeline(script(ITEMS, values), replace(SMALL, chunk_records=1)))

    chance = random.Random(1)
    row = 0

    def flaky(commit: Commit) -> None:
        nonlocal row
        row = row + 1 if row < 3 and chance.random() < 0.5 else 0
        if row:
            raise StoreUnavailable("away")

    world.on_try = flaky
    await world.run(tick=0.1)
    assert world.clock.monotonic() > 65
    assert world.tallied() == tally_of(values)


async def test_a_lane_that_had_nothing_to_do_since_an_outage_meets_a_new_one() -> None:
    source = script(ITEMS, items(1))
    world = World(tally_pipeline(source))
    engine = await world.start()
    lane = engine.lane
    await world.until(engine.done.is_set)
    for _ in range(2):
        acks = world.tried

        def refuse(commit: Commit, acks: int = acks) -> None:
            if world.tried == acks + 1:
                raise StoreUnavailable("away")

        world.on_try = refuse
        engine.intervals[0].touch(urgent=True)
        await world.until(lambda n=acks: world.tried > n)  # type: ignore[misc]
        await world.until(lambda: not lane.busy, tick=0.01)
        await world.turns(100, tick=1.0)
    source.append(inject(ITEMS, Item("a", 2)))
    read_on(engine)
    await world.finish(engine)
    assert world.tallied() == tally_of(items(1, 2))


async def test_an_ack_between_a_claim_and_the_resend_counts_for_nothing() -> None:
    """A lane starts over while another lane acknowledges its productions: the log stays correct."""
    values = [Item("abcdefgh"[n % 8], n) for n in range(64)]
    limits = replace(QUICK, intervals=2, chunk_records=1, bundle_records=2)
    for number in range(2, 40, 3):
        world = World(tally_pipeline(script(ITEMS, values), limits))
        fail_once(world, number, StoreUnavailable("away"))
        engine = await world.run()
        assert world.tallied() == tally_of(values)
        assert [log.unacked for i in engine.intervals for log in i.logs] == [0] * len(
            engine.exchange.logs
        )
        assert [len(i.watermarks.holds) for i in engine.intervals] == [0] * len(engine.intervals)


async def test_an_inherited_log_is_not_retired_while_it_is_sent_again() -> None:
    """Housekeeping comes by in the middle of a lane's new start; nothing may be lost."""
    values = items(*range(12))
    sink = Gate()

    async def send(record: Record[Item], ctx: Context[Kept]) -> None:
        produce(ctx, record.value.number)

    class Wait(Computation[Counted, None]):
        """A reader that gets nothing done before the gate opens."""

        writes = (END,)

        async def process_record(self, record: Record[Counted], ctx: Context[None]) -> None:
            await sink.wait()
            ctx.produce(END, record.value)

    pipeline = Pipeline("logs", settings=replace(QUICK, bucket_seconds=8.0))
    pipeline.inject(ITEMS, script(ITEMS, values), timestamp=time_of)
    pipeline.add(Do(send), ITEMS.by(key_of))
    pipeline.add(Wait(), TALLY.by(lambda counted: counted.key))
    pipeline.sink(END, Table("out", Counted, numbered=True))
    world = World(pipeline)
    first = await world.start()
    await world.until(lambda: sink.reached)
    stuck = Gate()

    async def hold(name: str) -> None:
        if name == "read_productions":
            await stuck.wait()

    world.store.faults.before_call = hold
    fail_once(world, 1, StoreUnavailable("away"))
    world.interval("do").touch(urgent=True)
    await world.until(lambda: stuck.reached, tick=0.05)
    await world.turns(200, tick=0.5)
    pending = len(world.store.pending_productions())
    assert pending == len(values), "a log with records nobody has seen was retired"
    await first.kill()
    world.store.faults.before_call = None
    sink.open()
    await world.run()
    assert sorted(world.numbers()) == list(range(12))


async def test_a_hand_that_starts_while_the_lane_stops_runs_nothing() -> None:
    """Records wait in user code, one key each, when the lane starts over: none runs twice."""
    values = [Item(f"key {n}", n) for n in range(30)]
    gate = Gate()

    async def do(record: Record[Item], ctx: Context[Kept]) -> None:
        await gate.wait()
        ctx.state.count += 1
        produce(ctx, record.value.number, ctx.state.count)

    world = World(doing(values, do))
    engine = await world.start()
    lane = engine.lane
    await world.until(lambda: lane.tasks)
    await lane.stop_running()
    await world.turns()
    reached = gate.reached
    await world.turns()
    assert gate.reached == reached
    assert not lane.tasks
    await engine.kill()
    gate.open()
    await world.run()
    assert sorted(world.numbers()) == list(range(30))
    assert {row[2] for row in world.rows()} == {1}


# -- fences ---------------------------------------------------------------------------------


async def test_a_fenced_engine_stops_and_its_commit_leaves_no_trace() -> None:
    values = items(*range(20))
    world = World(tally_pipeline(script(ITEMS, values), SMALL))
    await overlapped(world, values)
    first = world.engines[-1]
    world.on_try = None
    second = await world.start()
    await world.finish(second)
    assert world.tallied() == tally_of(values)
    assert first.failure is None or isinstance(first.failure, Fenced), "by its heartbeat"
    await world.close()


async def test_a_zombie_whose_commit_is_late_is_fenced() -> None:
    values = items(*range(20))
    world = World(tally_pipeline(script(ITEMS, values), SMALL))
    gate = await overlapped(world, values)
    first = world.engines[-1]
    world.on_try = None
    second = await world.start()
    gate.open()
    await world.finish(second)
    await world.turns()
    assert isinstance(first.failure, Fenced)
    assert world.tallied() == tally_of(values)
    await world.close()


@pytest.mark.parametrize("intervals", [1, 2])
async def test_a_zombie_that_recovers_from_an_error_does_not_take_its_intervals_back(
    intervals: int,
) -> None:
    """A worker that claims its own interval again takes none from another worker (I3,
    placement)."""
    values = [Item("abcdef"[n % 6], n) for n in range(60)]
    world = World(tally_pipeline(script(ITEMS, values), replace(SMALL, intervals=intervals)))
    gate = Gate()

    async def stuck(commit: Commit) -> None:
        if commit.seen and not gate.reached:
            await gate.wait()
            raise CommitUnknown("lost")

    world.on_try = stuck
    first = await world.start()
    await world.until(lambda: gate.reached)
    second = await world.start()
    owners = {row.owner for row in world.store.tables.intervals.values()}
    assert owners == {second.worker}
    gate.open()
    await world.turns(100, tick=0.05)
    assert {row.owner for row in world.store.tables.intervals.values()} == {second.worker}
    await world.until(lambda: first.failure is not None, tick=0.05, what="the zombie goes on")
    assert isinstance(first.failure, Fenced)
    await world.finish(second)
    assert world.tallied() == tally_of(values)
    await world.close()


async def test_two_claims_at_once_never_hold_the_same_sequencer() -> None:
    """The fence distinguishes owners by sequencer; the earlier claim has the lower one."""
    world = World(tally_pipeline(script(ITEMS, items(1))))
    engine = await world.start()
    await world.until(engine.done.is_set)
    await engine.kill()
    ids = [interval.id for interval in engine.intervals]
    one, two = await asyncio.gather(world.store.claim("one", ids), world.store.claim("two", ids))
    for first, second in zip(one, two, strict=True):
        assert first.interval.sequencer != second.interval.sequencer


@pytest.mark.parametrize("by", [None, lambda _: 0], ids=["in its own commit", "by a step"])
async def test_a_zombies_lines_do_not_stay_in_the_file(tmp_path: Any, by: Any) -> None:
    """It appends before its commit is fenced; by then the file belongs to the new owner."""
    values = items(*range(12))
    pipeline = Pipeline("files", settings=SMALL)
    pipeline.inject(ITEMS, script(ITEMS, values), timestamp=time_of)
    pipeline.add(Tally(), ITEMS.by(key_of))
    pipeline.sink(TALLY, JsonLinesFiles(tmp_path, by=by))
    world = World(pipeline)
    gate = Gate()
    first = await world.start()
    part = next(i.part_file for i in first.intervals if i.part_file is not None)
    append = part.append

    async def late(lines: list[bytes]) -> None:
        await gate.wait()
        await append(lines)

    part.append = late  # type: ignore[method-assign]
    await world.until(lambda: gate.reached)
    second = await world.start()
    gate.open()
    async with asyncio.timeout(60):
        await second.run()
        await world.until(lambda: first.failure is not None)
    await second.stop()
    await world.close()
    assert written_numbers(tmp_path) == list(range(12))


def fail_at(world: World, failing: range, commit: Commit) -> None:
    if world.tried in failing:
        raise StoreUnavailable("away")


class Telling(Dedup):
    """Tells of every duplicate."""

    told: ClassVar[int] = 0
    _dropped = 0

    @property
    def dropped(self) -> int:
        return self._dropped

    @dropped.setter
    def dropped(self, number: int) -> None:
        Telling.told += max(0, number - self._dropped)
        self._dropped = number


@pytest.mark.parametrize("intervals", [1, 2])
@pytest.mark.parametrize(("applied", "times"), [(False, 1), (False, 3), (True, 1)])
async def test_what_dedup_counts_is_counted_once_whichever_commit_fails(
    intervals: int, applied: bool, times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does not happen again when the commit that was to tell of it is lost."""
    monkeypatch.setattr(holdings, "Dedup", Telling)
    limits = replace(QUICK, intervals=intervals, chunk_records=3, bundle_records=3)
    values = [Item("ab"[n % 2], n) for n in range(30)]
    for number in range(1, 22):
        Telling.told = 0
        world = World(tally_pipeline(script(ITEMS, values), limits))
        if applied:
            unknown_once(world, number)
        else:
            failing = range(number, number + times)
            world.on_try = partial(fail_at, world, failing)
        engine = await world.run(inject_copies=2)
        assert world.tallied() == tally_of(values)
        stored = world.counter("tally", "duplicates_dropped")
        left = sum(i.dedup.dropped for i in engine.intervals if i.dedup is not None)
        assert stored + left == Telling.told >= len(values)


async def test_what_dedup_counts_waits_for_a_commit_however_often_the_lane_starts_over() -> None:
    world = World(tally_pipeline(script(ITEMS, [])))
    engine = await world.start()
    await world.until(engine.done.is_set)
    interval = world.interval("tally")
    (claim,) = await world.store.claim(engine.worker, [interval.id], again=True)
    for dropped in (3, 4):
        interval.dedup.dropped = dropped
        interval.commits.n += 1
        interval.counters.count(interval.commits.n, {}, interval.events())
        for _ in range(2):
            interval.restore(claim, engine.settings)
    interval.counters.count(interval.commits.n, {}, interval.events())
    assert interval.counters.totals["duplicates_dropped"] == 7
    await engine.kill()


# -- statements that are refused -----------------------------------------------------------


def refuse(world: World, *poison: int, times: int | None = None) -> list[int]:
    """Statements with these numbers are refused, the first `times` times."""
    refused: list[int] = []

    def judge(statement: str, params: Sequence[Any]) -> str | None:
        if params and params[0] in poison and (times is None or len(refused) < times):
            refused.append(params[0])
            return "on purpose"
        return None

    world.store.faults.refuse = judge
    return refused


async def write(record: Record[Item], ctx: Context[Kept]) -> None:
    ctx.state.count += 1
    ctx.execute("INSERT INTO anything VALUES (%s)", (record.value.number,))
    produce(ctx, record.value.number, ctx.state.count)


@pytest.mark.parametrize("intervals", [1, 2])
@pytest.mark.parametrize("poison", [(0,), (7,), (29,), (3, 4, 20), tuple(range(0, 30, 2))])
async def test_a_refused_statement_costs_its_own_record_alone(
    poison: tuple[int, ...], intervals: int
) -> None:
    values = [Item("ab"[n % 2], n) for n in range(30)]
    limits = replace(QUICK, intervals=intervals)
    world = World(doing(values, write, settings=limits, on_error="dead_letter"))
    refuse(world, *poison)
    await world.run()
    good = [v for v in values if v.number not in poison]
    assert world.tallied() == tally_of(good)
    assert sorted(params[0] for _, params in world.store.statements) == [v.number for v in good]
    assert sorted(msgspec.json.decode(v)["number"] for v, _ in world.letters()) == sorted(poison)
    assert world.counter("do", "dead_letters") == len(poison)


@pytest.mark.parametrize("poison", [(0,), (3, 4, 20)])
async def test_a_refused_statement_leaves_no_line_behind(
    poison: tuple[int, ...], tmp_path: Path
) -> None:
    """Lines are appended before the commit that is refused."""
    values = [Item("ab"[n % 2], n) for n in range(30)]
    pipeline = doing(values, write, settings=QUICK, on_error="dead_letter")
    pipeline.sink(TALLY, JsonLinesFiles(tmp_path))
    world = World(pipeline)
    refuse(world, *poison)
    await world.run()
    assert sorted(written_numbers(tmp_path)) == [n for n in range(30) if n not in poison]


async def test_bisecting_many_records_with_an_injector_in_the_lane() -> None:
    """While halves are committed, the source is read again from the start, slowly."""
    values = items(*range(60))
    limits = replace(QUICK, chunk_records=1)
    world = World(doing(values, write, settings=limits, on_error="dead_letter"))
    gate = Gate()
    world.on_try = lambda commit: gate.wait() if commit.seen else None
    refuse(world, 58)
    engine = await world.start()
    await world.until(lambda: gate.reached)
    await world.until(lambda: engine.lane.commits.open.count > 50)
    gate.open()
    await world.finish(engine)
    assert world.tallied() == tally_of([v for v in values if v.number != 58])
    assert [len(i.watermarks.holds) for i in engine.intervals] == [0] * len(engine.intervals)


async def test_on_error_fail_stops_at_a_refused_statement_and_names_the_record() -> None:
    world = World(doing(items(*range(10)), write))
    refuse(world, 6)
    engine = await world.start()
    with pytest.raises(UserCodeError, match=r"(?s)'do' failed on a record.*'a'.*on purpose"):
        await world.until(engine.done.is_set, tick=0.05)
    await engine.stop()
    assert 6 not in world.numbers()
    world.store.faults.refuse = None
    await world.run()
    assert world.tallied() == tally_of(items(*range(10)))


async def test_retries_hold_for_refused_statements_too() -> None:
    """`retries`: how often user code is tried again before a record is given up on."""
    world = World(doing(items(*range(4)), write, on_error="dead_letter", retries=3))
    refused = refuse(world, 2, times=3)
    await world.run()
    assert world.letters() == [], f"given up after {len(refused)} tries"
    assert world.tallied() == tally_of(items(*range(4)))


async def test_a_dead_letter_tells_how_often_it_was_tried() -> None:
    ran: list[int] = []

    async def do(record: Record[Item], ctx: Context[Kept]) -> None:
        ran.append(record.value.number)
        await write(record, ctx)

    world = World(doing(items(1), do, on_error="dead_letter", retries=2))
    refuse(world, 1)
    await world.run()
    (letter,) = world.store.dead_letters
    assert letter.attempts == 3
    assert len(ran) >= 3, "it says three, but user code ran less often"


@pytest.mark.parametrize("error", [StoreUnavailable("away"), CommitUnknown("lost")])
@pytest.mark.parametrize("applied", [False, True])
@pytest.mark.parametrize("number", range(1, 9))
async def test_a_commit_that_fails_while_bisecting_is_only_a_delay(
    error: Exception, applied: bool, number: int
) -> None:
    if applied and isinstance(error, StoreUnavailable):
        return  # the store never says so of a commit that is durable
    values = items(*range(8))
    world = World(doing(values, write, on_error="dead_letter"))
    refused = refuse(world, 5)
    seen: list[int] = []

    def once(commit: Commit) -> None:
        if refused:
            seen.append(1)
            if len(seen) == number:
                raise error

    if applied:
        world.on_durable = once
    else:
        world.on_try = once
    await world.run()
    assert world.tallied() == tally_of([v for v in values if v.number != 5])
    assert len(world.letters()) == 1


@pytest.mark.parametrize("number", range(1, 6))
async def test_a_commit_of_unknown_fate_while_bisecting_is_not_run_again_at_most_once(
    number: int,
) -> None:
    """The commit was durable: a receiver at most once does not get its records a second time."""
    values = items(*range(8))
    world = World(doing(values, write, on_error="dead_letter", delivery="at_most_once"))
    refused = refuse(world, 5)
    durable: list[Commit] = []

    def once(commit: Commit) -> None:
        if refused and commit.rows:
            durable.append(commit)
            if len(durable) == number:
                raise CommitUnknown("lost")

    world.on_durable = once
    await world.run()
    assert len(durable) >= min(number, 2)
    assert sorted(world.numbers()) == [n for n in range(8) if n != 5]


async def test_the_watermark_a_record_saw_first_is_kept_through_bisection() -> None:
    """I5: user code reads one watermark during its run, and the same one through bisection."""
    seen: dict[int, list[Any]] = {}

    async def do(record: Record[Item], ctx: Context[Kept]) -> None:
        assert ctx.low_watermark_micros == to_micros(ctx.low_watermark)
        seen.setdefault(record.value.number, []).append(ctx.low_watermark)
        await write(record, ctx)

    source = script(ITEMS, [Item("a", 0, 10)])
    world = World(doing(source, do, on_error="dead_letter"))
    engine = await world.start()
    await world.until(engine.done.is_set)
    gate = Gate()
    world.on_try = lambda commit: gate.wait() if commit.seen else None
    refuse(world, 3)
    for number, second in ((1, 20), (2, 30)):
        source.append(inject(ITEMS, Item("a", number, second)))
        source.append(advance(ITEMS, at(second)))
    read_on(engine)
    await world.until(lambda: gate.reached)
    source.append(inject(ITEMS, Item("b", 3, 5)))
    source.append(inject(ITEMS, Item("c", 4, 5)))
    read_on(engine)
    await world.until(lambda: 4 in seen)
    gate.open()
    await world.finish(engine)
    assert len(seen[4]) > 1
    assert len(set(seen[4])) == 1, seen[4]


# -- timers as culprits ----------------------------------------------------------------------


async def ring(timer: Timer, ctx: Context[Kept]) -> None:
    number = int(timer.tag)
    ctx.state.numbers.append(number)
    ctx.execute("INSERT INTO anything VALUES (%s)", (number,))
    produce(ctx, number)


async def set_one(record: Record[Item], ctx: Context[Kept]) -> None:
    ctx.set_timer(at(record.value.second), tag=str(record.value.number))


@pytest.mark.parametrize("way", ["statement", "exception"])
@pytest.mark.parametrize("chunk", [1, 100])
async def test_a_timer_that_fails_costs_itself_alone(way: str, chunk: int) -> None:
    async def bell(timer: Timer, ctx: Context[Kept]) -> None:
        await ring(timer, ctx)
        if way == "exception" and timer.tag == "3":
            raise UserCodeError("on purpose")

    values = [Item("ab"[n % 2], n, n) for n in range(8)]
    steps = [*values, advance(ITEMS, at(100))]
    limits = replace(QUICK, chunk_records=chunk)
    world = World(doing(steps, set_one, bell, settings=limits, on_error="dead_letter"))
    if way == "statement":
        refuse(world, 3)
    engine = await world.run()
    assert sorted(world.numbers()) == [0, 1, 2, 4, 5, 6, 7]
    assert world.state("do", "b")[""]["numbers"] == [1, 5, 7]
    ((value, error),) = world.letters()
    assert value == '"watermark 3"'
    assert "on purpose" in error
    assert world.store.timers() == []
    assert [len(i.watermarks.holds) for i in engine.intervals] == [0] * len(engine.intervals)


@pytest.mark.parametrize("change", ["later", "cancel"])
@pytest.mark.parametrize("together", [False, True])
async def test_bisection_does_not_fire_a_timer_that_was_overtaken(
    change: str, together: bool
) -> None:
    """A record waits while a timer of its key comes due; the record moves or cancels it, and
    another record of the bundle is refused: in the halves, too, the timer is not what it was."""
    gate = Gate()

    async def do(record: Record[Item], ctx: Context[Kept]) -> None:
        item = record.value
        if item.number == 0:
            ctx.set_timer(at(10), tag="7")
        elif item.number == 1:
            await gate.wait()
            if change == "later":
                ctx.set_timer(at(1000), tag="7")
            else:
                ctx.cancel_timer("7")
        else:
            ctx.execute("INSERT INTO anything VALUES (%s)", (item.number,))
        produce(ctx, item.number)

    source = script(ITEMS, [Item("a", 0, 5)])
    world = World(doing(source, do, ring, on_error="dead_letter"))
    engine = await world.start()
    await world.until(engine.done.is_set)
    # Late by declaration, so that the watermark may pass it while it waits.
    source.append(advance(ITEMS, at(8)))
    source.append(inject(ITEMS, Item("a", 1, 6)))
    read_on(engine)
    await world.until(lambda: gate.reached)
    held = world.interval("do")
    # The timer comes due while the record waits: as another input's progress would make it.
    held.watermarks.input = max(held.watermarks.input, int(at(50).timestamp() * 1e6))
    engine.lane.wake.set()
    await world.turns()
    block = Gate()
    world.on_try = lambda commit: block.wait()
    held.touch(urgent=True)
    await world.until(lambda: block.reached)
    gate.open()
    await world.turns()
    source.append(inject(ITEMS, Item("a" if together else "b", 99, 60)))
    read_on(engine)
    await world.turns()
    refuse(world, 99)
    block.open()
    await world.until(engine.done.is_set, tick=0.05)
    assert world.numbers() == [0, 1], "the timer fired although it had been overtaken"
    assert [t.due for t in world.store.timers()] == (
        [int(at(1000).timestamp() * 1e6)] if change == "later" else []
    )
    await engine.stop()
    assert [len(i.watermarks.holds) for i in engine.intervals if i.step.name == "do"] == [
        1 if change == "later" else 0
    ]


# -- ends ----------------------------------------------------------------------------------


async def test_a_stop_in_order_ends_even_if_its_commit_fails_once() -> None:
    """It reads no further rows; the next start does."""
    values = items(*range(400))
    world = World(tally_pipeline(script(ITEMS, values), SMALL))
    engine = await world.start()
    await world.until(lambda: len(world.rows()) >= 8)
    fail_once(world, 1, StoreUnavailable("away"))
    stopping = asyncio.ensure_future(engine.stop())
    await world.until(stopping.done, tick=0.05)
    assert len(world.rows()) < 100, "it went on with the whole input"
    world.on_try = None
    await world.run()
    assert world.tallied() == tally_of(values)


async def test_a_lane_starts_over_although_a_cancellation_is_swallowed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As `asyncio.wait_for` does before Python 3.12 when its awaitable is done just then."""
    monkeypatch.setattr(tasks, "PATIENCE_SECONDS", 0.0)  # it is real time
    values = items(*range(20))
    world = World(tally_pipeline(script(ITEMS, values), SMALL))
    waiting, swallowed = Gate(), 0

    async def stubborn(name: str) -> None:
        nonlocal swallowed
        if name == "load_keys" and not swallowed:
            try:
                await waiting.wait()
            except asyncio.CancelledError:
                swallowed += 1

    world.store.faults.before_call = stubborn
    engine = await world.start()
    await world.until(lambda: waiting.reached)
    fail_once(world, 1, StoreUnavailable("away"))
    engine.intervals[0].touch(urgent=True)
    await world.until(engine.done.is_set, tick=0.05)
    assert swallowed
    await engine.stop()
    assert world.tallied() == tally_of(values)


async def test_a_bad_row_is_set_aside_once_over_a_crash() -> None:
    """The row before it is not acknowledged when the engine dies; the bad row is."""
    gate = Gate()

    def when(item: Item) -> Any:
        if item.number == 1:
            raise ValueError("no time")
        return at(item.second)

    async def do(record: Record[Item], ctx: Context[Kept]) -> None:
        if record.value.number == 0:
            await gate.wait()
        produce(ctx, record.value.number)

    pipeline = Pipeline("rows", settings=replace(QUICK, chunk_records=1))
    source = script(ITEMS, [Item("a", 0), Item("b", 1), Item("c", 2)])
    pipeline.inject(ITEMS, source, timestamp=when, on_error="dead_letter")
    pipeline.add(Do(do), ITEMS.by(key_of))
    pipeline.sink(TALLY, Table("out", Counted, numbered=True))
    world = World(pipeline)
    first = await world.start()
    await world.until(lambda: world.numbers() == [2] and world.letters())
    await world.turns()
    await first.kill()
    gate.open()
    second = await world.start(close_at_end=True)
    await world.finish(second)
    assert sorted(world.numbers()) == [0, 2]
    assert len(world.letters()) == 1


async def test_the_buckets_of_all_rows_of_a_chunk_are_there() -> None:
    """A chunk may be longer than a bucket of source rows."""
    values = items(*range(50))
    limits = replace(QUICK, source_bucket_rows=10, chunk_records=50)
    world = World(tally_pipeline(script(ITEMS, values), limits))
    await world.run()
    assert world.tallied() == tally_of(values)


async def test_user_ids_of_before_are_in_one_filter_after_a_restart() -> None:
    """Each filter more is one that every record is to ask."""
    values = items(*range(200))
    limits = replace(QUICK, filter_capacity=10)
    pipeline = Pipeline("named", settings=limits)
    source = script(ITEMS, values)
    pipeline.inject(ITEMS, source, timestamp=time_of, id=lambda item: item.number)
    pipeline.add(Tally(), ITEMS.by(key_of))
    pipeline.sink(TALLY, Table("out", Counted, numbered=True))
    world = World(pipeline)
    await world.run()
    engine = await world.start()
    (names,) = (i.dedup for i in engine.intervals if i.step.node.named)
    await world.until(lambda: all(names.seen_in(b).ready for b in names.inherited))
    (span,) = names._spans.values()
    assert [part.limit for part in span._filters] == [240]
    source.steps += script(ITEMS, items(*range(150, 210))).steps
    read_on(engine)
    await world.finish(engine)
    assert sorted(world.numbers()) == list(range(210))


async def test_a_bucket_may_go_between_the_filters_maybe_and_the_look_up() -> None:
    """All it held is acknowledged then, so whatever is asked for is an old copy."""
    values = items(*range(10))
    limits = replace(QUICK, source_bucket_rows=5, chunk_records=1)
    source = script(ITEMS, values)
    world = World(tally_pipeline(source, limits))
    engine = await world.start()
    await world.until(engine.done.is_set)
    interval = world.interval("tally")
    gate = Gate()

    async def hold(name: str) -> None:
        if name == "look_up_numbers":
            await gate.wait()

    world.store.faults.before_call = hold
    log = world.interval("items_injector").log
    interval.intake.append(
        Delivery("a", values[0], 0, "items", b'"a"', interval.states.get("a", b'"a"', 0).slot,
                 interval.step.id, 0, 0, b"", log.id, 0, 0, record_id(log.id, 0), 0, False, log.id)
    )  # fmt: skip
    engine.lane.wake.set()
    await world.until(lambda: gate.reached)
    await world.turns(100, tick=1.0)
    await engine.buckets.collect()
    assert (log.id, 0) not in engine.buckets.sources, "the bucket is gone"
    gate.open()
    read_on(engine)
    await world.finish(engine)
    assert world.tallied() == tally_of(values)


async def test_who_has_missed_that_a_bucket_was_dropped_reads_the_buckets_and_starts_over() -> None:
    """A copy that came after all had acknowledged its record is noted with ids of that time."""
    values = items(*range(6))
    world = World(tally_pipeline(script(ITEMS, values)))
    engine = await world.start()
    calls: list[str] = []

    async def called(name: str) -> None:
        calls.append(name)

    def missed(commit: Commit) -> None:
        if commit.seen and "missed" not in calls:
            calls.append("missed")
            raise BucketGone("others have dropped it")

    world.store.faults.before_call = called
    world.on_try = missed
    await world.finish(engine)
    after = calls[calls.index("missed") :]
    assert "view_buckets" in after[: after.index("claim")]
    assert world.tallied() == tally_of(values)


@pytest.mark.parametrize("rows", [1, 3, 5, 7, 100])
async def test_rows_are_found_in_the_buckets_of_a_run_with_other_limits(rows: int) -> None:
    """Nothing of the first run is acknowledged for good: all of it comes again."""
    values = items(*range(10))
    work = Gate()
    limits = Settings(
        intervals=1, idle_commit_seconds=0.0, watermark_commit_seconds=0.0, source_bucket_rows=4
    )
    source = script(ITEMS, values[:6])
    world = World(tally_pipeline(source, limits))

    def acknowledges(commit: Commit) -> bool:
        found = [msgspec.json.decode(link.acked) for link in commit.intervals]
        return any(first for acked in found for first, _ in acked.values())

    world.on_try = lambda commit: work.wait() if acknowledges(commit) else None
    first = await world.start()
    await world.until(lambda: world.tallied() == tally_of(values[:6]))
    await first.kill()
    world.on_try = None
    more(source, values[6:])
    again = await world.start(tally_pipeline(source, replace(limits, source_bucket_rows=rows)))
    await world.finish(again)
    assert world.tallied() == tally_of(values)
    buckets = [b for b in await world.store.live_buckets() if b.family == "source"]
    assert all(one.high <= two.low for one, two in pairwise(buckets))


async def test_a_claimer_knows_the_buckets_its_predecessor_opened_in_its_last_moment() -> None:
    """Between the list of buckets and the claim a zombie may open one and commit into it:
    to the claimer it must not count as empty."""
    work = Gate()
    values = items(*range(6))
    limits = Settings(
        intervals=1,
        idle_commit_seconds=0.0,
        watermark_commit_seconds=0.0,
        source_bucket_rows=3,
        chunk_records=3,
    )
    source = script(ITEMS, values[:3])
    world = World(tally_pipeline(source, limits))
    first = await world.start()
    await world.until(first.done.is_set)
    held: list[str] = []

    async def between(name: str) -> None:
        if name == "claim" and not held:
            held.append(name)
            more(source, values[3:])
            # The zombie reads on and commits; its acknowledgements never become durable.
            world.on_try = lambda commit: None if commit.seen else work.wait()
            read_on(first)
            await world.turns(60)
            await first.kill()
            world.on_try = None

    world.store.faults.before_call = between
    second = await world.start()
    assert held
    await world.finish(second)
    assert world.tallied() == tally_of(values)


async def test_errors_of_the_runtime_are_millwheel_errors() -> None:
    """The error that ends an engine is reported itself, never as a KeyError."""
    world = World(doing(items(1), write))
    world.store.faults.refuse = lambda what, values: "all"
    engine = await world.start()
    with pytest.raises(MillwheelError):
        await world.until(engine.done.is_set, tick=0.05)
    await world.close()


def while_it_starts_over(world: World, call: str, do: Callable[[], Awaitable[None]]) -> None:
    """Refuse a commit of records once, and do something when the lane then makes a call."""

    def away(commit: Commit) -> None:
        if commit.seen:
            world.on_try = None
            world.store.faults.before_call = called
            raise StoreUnavailable("away")

    async def called(name: str) -> None:
        if name == call:
            world.store.faults.before_call = None
            await do()

    world.on_try = away


async def test_rows_that_are_added_while_a_lane_starts_over_are_read_in_their_place() -> None:
    """The source is opened again at the stored position."""
    source = script(ITEMS, items(0))
    world = World(tally_pipeline(source, replace(QUICK, max_unacked_records=2)))
    engine = await world.start()

    async def add() -> None:
        source.append(inject(ITEMS, items(1)[0]))
        source.append(inject(ITEMS, items(2)[0]))
        read_on(engine)
        await world.turns(3)

    while_it_starts_over(world, "read_productions", add)
    await world.finish(engine)
    assert world.tallied() == tally_of(items(0, 1, 2))


def test_a_wait_that_uvloop_takes_for_none_can_be_asked_for_again() -> None:
    """uvloop counts in milliseconds: what is due within half of one has a handle without a time."""
    uvloop = pytest.importorskip("uvloop")
    quick = replace(QUICK, watermark_commit_seconds=0.0001)

    async def run() -> None:
        world = World(tally_pipeline(script(ITEMS, items(3)), settings=quick))
        engine = await world.start()
        interval = engine.intervals[0]
        for _ in range(2):
            interval.touch(urgent=True)
        await world.finish(engine)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run())


@pytest.mark.parametrize("call", ["open_lane", "claim"])
async def test_a_bad_row_that_is_met_while_a_lane_starts_over_leaves_one_letter(call: str) -> None:
    """It is read again with all rows behind the stored position."""

    def time_or_fail(item: Item) -> Any:
        if item.number == 1:
            raise Broken
        return time_of(item)

    source = script(ITEMS, items(0))
    made = Pipeline("tally", settings=QUICK)
    made.inject(ITEMS, source, timestamp=time_or_fail, on_error="dead_letter")
    made.add(Tally(), ITEMS.by(key_of))
    made.sink(TALLY, Table("out", Counted, numbered=True))
    world = World(made)
    engine = await world.start()

    async def add() -> None:
        more(source, items(1, 2))
        read_on(engine)
        await world.turns()

    while_it_starts_over(world, call, add)
    await world.finish(engine)
    assert world.tallied() == tally_of(items(0, 2))
    assert len(world.letters()) == 1
    assert world.counter("items_injector", "bad_rows") == 1


class Pot(msgspec.Struct):
    """A record that user code may change."""

    number: int
    count: int = 0


POTS = Stream("pots", Pot)


@pytest.mark.parametrize("number", range(1, 6))
async def test_a_delay_while_bisecting_gives_records_back_as_they_came(number: int) -> None:
    """Whatever was done to them when they ran before."""

    class Stir(Computation[Pot, None]):
        writes = (TALLY,)

        async def process_record(self, record: Record[Pot], ctx: Context[None]) -> None:
            record.value.count += 1
            ctx.execute("INSERT INTO anything VALUES (%s)", (record.value.number,))
            ctx.produce(TALLY, Counted("a", record.value.number, record.value.count))

    made = Pipeline("stir", settings=QUICK)
    made.inject(POTS, script(POTS, [Pot(n) for n in range(8)]), timestamp=lambda pot: at(0))
    made.add(Stir(), POTS.by(lambda pot: "a"), on_error="dead_letter")
    made.sink(TALLY, Table("out", Counted, numbered=True))
    world = World(made)
    refused = refuse(world, 5, times=1)
    seen: list[int] = []

    def once(commit: Commit) -> None:
        if refused:
            seen.append(1)
            if len(seen) == number:
                raise StoreUnavailable("away")

    world.on_try = once
    await world.run()
    assert world.tallied() == {"a": [(n, 1) for n in range(8)]}


@pytest.mark.parametrize("call", ["view_buckets", "open_bucket"])
async def test_a_start_waits_for_who_holds_the_buckets(call: str) -> None:
    values = items(1, 2, 3)
    world = World(tally_pipeline(script(ITEMS, values)))
    refused: list[str] = []

    async def refuse(name: str) -> None:
        if name == call and len(refused) < 3:
            refused.append(name)
            raise StoreUnavailable("another session makes one")

    world.store.faults.before_call = refuse
    starting = asyncio.ensure_future(world.start())
    await world.until(starting.done, tick=0.05)
    await world.finish(await starting)
    assert len(refused) == 3
    assert world.tallied() == tally_of(values)


class LeapingClock(VirtualClock):
    """Its wall clock is an hour ahead after some looks at it, as if it were set in between."""

    def __init__(self, clock: VirtualClock, every: int) -> None:
        self._one = clock
        self._every = every
        self.looks = 0

    def now(self) -> int:
        self.looks += 1
        return self._one.now() + self.looks // self._every * 3_600_000_000


@pytest.mark.parametrize("every", [5, 6, 7, 8])
async def test_a_clock_may_be_set_at_any_moment(every: int) -> None:
    """So that the time by which a commit's bucket was looked for is over when it is built."""
    values = items(*range(60))
    source = script(ITEMS, values[:1])
    world = World(tally_pipeline(source, Settings(bundle_records=1, bucket_seconds=60.0)))
    engine = await world.start()
    engine.env.stamps._clock = leaping = LeapingClock(world.clock, every)
    for value in values[1:]:
        more(source, [value])
        await world.turns()
    await world.finish(engine)
    assert leaping.looks > 20 * every
    assert world.tallied() == tally_of(values)


# -- patience is for each record -------------------------------------------------------------


async def test_a_record_that_always_fails_ends_the_worker_though_others_go_well() -> None:
    """Commits of other records between do not start its clock again: it would recover for ever."""
    values = items(*range(5))
    world = World(tally_pipeline(script(ITEMS, values), replace(SMALL, chunk_records=1)))

    def judge(commit: Commit) -> None:
        if any(values[1] == 3 for _, values in commit.rows):
            raise StoreUnavailable("55P03, whenever this one comes")

    world.on_try = judge
    engine = await world.start()
    begun = world.clock.monotonic()
    with pytest.raises(StoreUnavailable, match="commits have failed for 60 s"):
        await world.until(engine.done.is_set, tick=0.05)
    assert world.clock.monotonic() - begun < 130
    await engine.stop()


@pytest.mark.parametrize("on_error", ["dead_letter", "fail"])
async def test_a_race_that_a_statement_never_wins_counts_against_its_record(on_error: str) -> None:
    values = items(*range(6))
    world = World(doing(values, write, on_error=on_error))

    def judge(commit: Commit) -> None:
        if any(params[0] == 3 for _, params in commit.statements):
            raise StatementRace("deadlock detected")

    world.on_try = judge
    engine = await world.start()
    if on_error == "fail":
        with pytest.raises(UserCodeError, match="deadlock detected"):
            await world.until(engine.done.is_set, tick=0.05)
        await engine.stop()
        return
    await world.finish(engine)
    assert world.clock.monotonic() > 60
    assert sorted(world.numbers()) == [0, 1, 2, 4, 5]
    assert ["deadlock" in error for _, error in world.letters()] == [True]


@pytest.mark.parametrize("seconds", [12.0, 150.0])
@pytest.mark.parametrize("where", ["record", "timer"])
async def test_patience_ends_though_user_code_is_slow(where: str, seconds: float) -> None:
    """Between two failures user code runs for longer than the gap between two outages."""
    values = items(*range(4))

    async def slowly(number: int, ctx: Context[Any]) -> None:
        await world.clock.sleep(seconds)
        ctx.execute("INSERT INTO t VALUES (%s)", (number,))

    async def do(record: Record[Item], ctx: Context[Any]) -> None:
        if where == "timer":
            ctx.set_timer(at(0), tag=str(record.value.number))
        else:
            await slowly(record.value.number, ctx)

    async def ring(timer: Timer, ctx: Context[Any]) -> None:
        await slowly(int(timer.tag), ctx)

    world = World(doing(values, do, ring, on_error="dead_letter"))

    def judge(commit: Commit) -> None:
        if any(params[0] == 3 for _, params in commit.statements):
            raise StatementRace("deadlock detected")

    world.on_try = judge
    engine = await world.start(close_at_end=True)
    async with asyncio.timeout(60):
        while not engine.done.is_set():
            assert world.clock.monotonic() < 100 * seconds
            await world.turns(1, tick=0.5)
    await engine.stop()
    assert ["deadlock" in error for _, error in world.letters()] == [True]
    assert sorted(params[0] for _, params in world.store.statements) == [0, 1, 2]


async def test_two_outages_are_no_lack_of_patience_with_slow_code() -> None:
    """The failed record of each has not had its third attempt."""
    tries = 0

    async def do(record: Record[Item], ctx: Context[Any]) -> None:
        await world.clock.sleep(150.0)
        ctx.execute("INSERT INTO t VALUES (%s)", (record.value.number,))

    world = World(doing(items(1), do))

    def away(commit: Commit) -> None:
        nonlocal tries
        if commit.statements and (tries := tries + 1) <= 2:
            raise StoreUnavailable("away")

    world.on_try = away
    engine = await world.start()
    await world.until(engine.done.is_set, tick=0.5)
    await engine.stop()
    assert [params[0] for _, params in world.store.statements] == [1]


async def test_a_race_that_is_won_in_the_end_harms_nobody() -> None:
    values = items(*range(6))
    world = World(doing(values, write, on_error="dead_letter"))

    def judge(commit: Commit) -> None:
        if world.clock.monotonic() < 30 and any(p[0] == 3 for _, p in commit.statements):
            raise StatementRace("deadlock detected")

    world.on_try = judge
    await world.run()
    assert sorted(world.numbers()) == list(range(6))
    assert world.letters() == []
