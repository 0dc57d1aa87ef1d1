"""Splits and merges while records run: carried out by the owner, noticed by everybody else."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from millwheel import Computation, Context, JsonLinesFiles, Pipeline, Record, Stream, Table
from millwheel.computations import Partial, PreAggregate, Spread, Windowed, count, merged
from millwheel.core.model import SLOTS
from millwheel.errors import StoreUnavailable
from millwheel.runtime.ownership.balancer import Balancer
from millwheel.runtime.ownership.planner import ReportedLoad
from millwheel.runtime.process.tasks import end
from millwheel.store.port.commit import Commit
from millwheel.store.port.placement import MergeWish, Placement, SplitWish, Wish
from millwheel.testing import inject
from millwheel.testing.script import Script
from millwheel.windows import Pane, Tumbling
from tests.support.clusters import SHARED, counting, many
from tests.support.lone_clusters import Lone, report_load
from tests.support.panes import Row, text_key
from tests.support.pipelines import Tally, script
from tests.support.values import ITEMS, TALLY, Counted, Item, at, key_of, time_of
from tests.support.worlds import Gate


async def test_a_split_with_records_in_flight_keeps_their_order() -> None:
    values = many(3000, keys=20)
    cluster = Lone(counting(values))
    engines = await cluster.at_work(2)
    for row in await cluster.parts("tally"):
        owner = cluster.owner_of(row)
        (other,) = (engine for engine in engines if engine is not owner)
        await cluster.in_flight(other, row, owner, row)
        await cluster.store.wish([Wish(row.id, row.sequencer, None, "wherever it is")])
        began = cluster.clock.monotonic()
        await cluster.split(row)
        made = await cluster.split_here(owner, row)
        after = [(e.interval_id, e.what) for e in cluster.store.placement_events()]
        after = after[after.index((made, "split")) + 1 :]
        assert after == [(row.id, "claim"), (made, "claim")], "nobody had to assign them"
        assert cluster.clock.monotonic() - began < SHARED.lease_seconds / 2, "no lease ran out"
    edges = [(row.slot_from, row.slot_to) for row in await cluster.parts("tally")]
    assert edges == [(SLOTS * n // 4, SLOTS * (n + 1) // 4) for n in range(4)]
    assert not any(engine.done.is_set() for engine in engines), "there were records all along"
    await cluster.end(values)


async def test_a_merge_with_records_in_flight_keeps_their_order() -> None:
    values = many(3000, keys=20)
    cluster = Lone(counting(values))
    await cluster.at_work(2)
    lower, upper = await cluster.parts("tally")
    assert lower.owner != upper.owner
    owner, other = cluster.owner_of(lower), cluster.owner_of(upper)
    await cluster.in_flight(other, lower, other, upper)
    await cluster.merge(lower, upper)
    await cluster.go(lambda: cluster.done("merge"))
    ((made, why),) = cluster.done("merge")
    assert why == f"was intervals {lower.id} and {upper.id}"
    assert cluster.done("lapse") == [], "it waited for the upper one to come"
    await cluster.go(lambda: owner.exchange.held(made) is not None)
    whole = owner.exchange.held(made)
    assert whole is not None
    assert whole.slots == (0, SLOTS)
    assert len(whole.logs) >= 3, "those of both, and its own"
    await cluster.go(lambda: len(whole.logs) == 1)
    await cluster.end(values)


async def test_a_merge_with_another_workers_neighbour_lapses() -> None:
    values = many(600)
    cluster = Lone(counting(values))
    await cluster.at_work(2)
    lower, upper = await cluster.parts("recount")
    assert lower.owner != upper.owner
    wish = MergeWish(lower.id, lower.sequencer, upper.id, "a test wants it")
    assert await cluster.store.wish([wish]) == [lower.id]
    await cluster.go(lambda: cluster.done("lapse"))
    assert cluster.done("lapse") == [
        (lower.id, "its neighbour belongs to another worker, or was split or merged since")
    ]
    assert [row.id for row in await cluster.parts("recount")] == [lower.id, upper.id]
    await cluster.end(values)


FOLLOWED = Stream("followed", Counted)


async def test_what_the_parts_of_a_split_send_comes_after_what_the_whole_has_sent() -> None:
    """The upper part does not have the log of the whole, whose records may still be on their
    way."""
    met: dict[str, list[int]] = {}
    gate = Gate()

    class Follow(Computation[Counted, None]):
        async def process_record(self, record: Record[Counted], ctx: Context[None]) -> None:
            await gate.wait()
            met.setdefault(record.value.key, []).append(record.value.count)

    values = many(3000, keys=40)
    made = Pipeline("counting", settings=replace(SHARED, max_unacked_records=100))
    made.inject(ITEMS, script(ITEMS, values), timestamp=time_of)
    made.add(Tally(), ITEMS.by(key_of))
    made.add(Follow(), TALLY.by(lambda counted: counted.key))
    cluster = Lone(made)
    for _ in range(2):
        await cluster.join()
    await _rest(cluster, 5.0)
    row, _ = await cluster.parts("tally")
    owner = cluster.owner_of(row)
    interval = owner.exchange.held(row.id)
    assert interval is not None
    assert interval.logs.newest.unacked > 50
    await cluster.store.wish([Wish(row.id, row.sequencer, None, "wherever it is")])
    await cluster.split(row)
    await _rest(cluster, 1.0)
    assert cluster.done("split") == [], "it waits for acknowledgements"
    gate.open()
    await cluster.go(lambda: cluster.done("split"), tick=0.001)
    await cluster.split_here(owner, row)
    assert not cluster.finished()
    await cluster.go(cluster.finished)
    for counts in met.values():
        firsts = list(dict.fromkeys(counts))
        assert firsts == sorted(firsts)
    assert sum(max(counts) for counts in met.values()) == len(values)


async def test_a_split_lapses_if_what_was_sent_is_not_acknowledged() -> None:
    values = many(3000, keys=40)
    cluster = Lone(counting(values))
    await cluster.at_work(2)
    row, _ = await cluster.parts("tally")
    cluster.part()
    await cluster.split(row)
    await cluster.go(lambda: cluster.done("lapse"))
    assert cluster.done("lapse") == [
        (row.id, "its readers did not acknowledge its records within 2 s")
    ]
    cluster.join_again()
    assert cluster.done("split") == []
    await cluster.end(values)


@pytest.mark.parametrize("call", ["split", "merge", "claim"])
async def test_who_crashes_between_release_and_claim_leaves_what_others_take(call: str) -> None:
    values = many(600, keys=20)
    cluster = Lone(counting(values))
    first, second = await cluster.at_work(2)
    lower, upper = await cluster.parts("recount")
    what = "merge" if call == "merge" else "split"
    owner = cluster.owner_of(lower)
    if what == "merge":
        await cluster.merge(lower, upper)
        await cluster.go(lambda: owner.exchange.held(upper.id) is not None)
        reached = cluster.block(call)
    else:
        reached = cluster.block(call)
        await cluster.split(lower)
    await cluster.go(reached.is_set)
    rows = await cluster.parts("recount")
    assert [row.owner for row in rows].count(None) == (1 if call == "split" else 2)
    await cluster.crash(owner)
    cluster.store.faults.before_call = None
    rest = second if owner is first else first
    await cluster.go(cluster.finished)
    rows = await cluster.parts("recount")
    assert {row.owner for row in rows} == {rest.worker}
    assert len(rows) == (3 if call == "claim" else 2)
    assert all(row.split_at is None and row.merge_with is None for row in rows)
    await cluster.end(values)


async def test_a_cut_that_somebody_else_forestalls_is_not_made() -> None:
    """Another claim comes between the release and the split: its sequencer counts."""
    values = many(400)
    cluster = Lone(counting(values))
    first, second = await cluster.at_work(2)
    row, _ = await cluster.parts("recount")
    other = second if cluster.owner_of(row) is first else first

    async def forestall(name: str) -> None:
        if name == "split":
            cluster.store.faults.before_call = None
            found, *_ = await cluster.parts("recount")
            assert await other.owned.take([row.id], {row.id: found.sequencer})

    cluster.store.faults.before_call = forestall
    await cluster.split(row)
    await cluster.go(lambda: other.exchange.held(row.id) is not None)
    await cluster.go(cluster.finished)
    assert cluster.done("split") == []
    assert len(await cluster.parts("recount")) == 2
    await cluster.end(values)


async def test_parts_that_another_is_to_have_are_left_to_it() -> None:
    values = many(1000)
    cluster = Lone(counting(values))
    first, second = await cluster.at_work(2)
    row, _ = await cluster.parts("recount")
    other = second if cluster.owner_of(row) is first else first

    async def think_again(name: str) -> None:
        if name == "split":
            cluster.store.faults.before_call = None
            elsewhere = Wish(row.id, row.sequencer, other.worker, "", pinned=True)
            assert await cluster.store.wish([elsewhere]) == [row.id]

    cluster.store.faults.before_call = think_again
    await cluster.split(row)
    made = await cluster.split_here(other, row)
    after = [
        (event.what, event.to_worker)
        for event in cluster.store.placement_events()
        if event.interval_id in (row.id, made)
    ]
    cut = after.index(("split", None))
    assert after[cut + 1 :] == [("claim", other.worker)] * 2, "nobody had them in between"
    await cluster.end(values)


async def test_who_has_not_heard_of_a_split_is_refused_and_begins_anew() -> None:
    values = many(3000, keys=40)
    cluster = Lone(counting(values))
    first, second = await cluster.at_work(2)
    row, _ = await cluster.parts("recount")
    owner = cluster.owner_of(row)
    late = second if owner is first else first
    place, late.remotes.place = late.remotes.place, lambda placement: None  # type: ignore[method-assign]
    cluster.part()
    await cluster.split(row)
    upper = await cluster.split_here(owner, row)
    assert owner.courier is not None
    refused = owner.courier.refused
    before = refused["not mine"]
    cluster.join_again()
    await cluster.go(lambda: refused["not mine"] > before)
    remote = cluster.remote(late, row.id)
    lower = owner.exchange.held(row.id)
    assert lower is not None
    assert all(d.slot < lower.slots[1] for d in lower.intake)
    begun = max(stream.epoch for stream in remote.streams.values())
    late.remotes.place = place  # type: ignore[method-assign]
    await cluster.go(lambda: upper in [remote.id for remote in late.remotes.remotes()])
    assert remote.streams == {}, "what it had is others' now"
    anew = cluster.remote(late, row.id).streams
    await cluster.go(lambda: anew and all(stream.epoch > begun for stream in anew.values()))
    await cluster.end(values)


async def test_records_for_merged_intervals_are_sent_in_their_logs_order() -> None:
    """Two stand-ins become one: their records come together as their logs have them."""
    values = many(3000, keys=40)
    cluster = Lone(counting(values))
    first, second = await cluster.at_work(2)
    lower, upper = await cluster.parts("tally")
    owner = cluster.owner_of(lower)
    late = second if owner is first else first
    await cluster.in_flight(late, lower, late, upper)
    cluster.part()
    await cluster.merge(lower, upper)
    await cluster.go(lambda: cluster.done("merge"))
    ((made, _),) = cluster.done("merge")
    await cluster.go(lambda: made in [remote.id for remote in late.remotes.remotes()])
    found = cluster.remote(late, made)
    assert sum(len(stream.unacked) for stream in found.streams.values()) > 3
    for stream in found.streams.values():
        assert [*stream.unacked] == sorted(stream.unacked)
    cluster.join_again()
    await cluster.end(values)


# -- what a hand-over must not lose, or put into another order ------------------------------------


async def test_what_comes_while_an_interval_leaves_comes_after_what_waits_in_it() -> None:
    values = many(3000, keys=20)
    cluster = Lone(counting(values, replace(SHARED, max_unacked_records=1000)))
    await cluster.at_work(2)
    row, _ = await cluster.parts("tally")
    owner = cluster.owner_of(row)
    (other,) = (engine for engine in cluster.alive if engine is not owner)
    interval = owner.exchange.held(row.id)
    assert interval is not None
    gate = Gate()

    def hold(commit: Commit) -> Any:
        concerned = any(link.interval_id == row.id for link in commit.intervals)
        return gate.wait() if concerned and interval.leaving else None

    cluster.on_try = hold
    await cluster.store.wish([Wish(row.id, row.sequencer, other.worker, "", pinned=True)])
    await cluster.go(lambda: interval.leaving)
    remote = cluster.remote(owner, row.id)
    await cluster.go(lambda: any(stream.unacked for stream in remote.streams.values()))
    assert interval.intake
    gate.open()
    cluster.on_try = None
    await cluster.go(lambda: not interval.intake)
    for stream in remote.streams.values():
        assert [*stream.unacked] == sorted(stream.unacked)
    await cluster.end(values)


async def test_a_new_claim_by_the_same_owner_begins_streams_anew() -> None:
    """It may have dropped what it had, and nobody else tells."""
    values = many(3000, keys=20)
    cluster = Lone(counting(values))
    await cluster.at_work(2)
    row, _ = await cluster.parts("tally")
    (other,) = (engine for engine in cluster.alive if engine.worker != row.owner)
    await cluster.go(lambda: any(s.unacked for s in cluster.remote(other, row.id).streams.values()))
    remote = cluster.remote(other, row.id)
    before = max(stream.epoch for stream in remote.streams.values())
    remote.set_owner(row.owner, row.sequencer)
    assert max(stream.epoch for stream in remote.streams.values()) == before
    remote.set_owner(row.owner, row.sequencer + 1)
    assert min(stream.epoch for stream in remote.streams.values()) > before


async def test_who_may_have_lost_intervals_lets_go_before_it_looks_who_has_which_slots() -> None:
    cluster = Lone(counting(many(200)))
    (engine,) = [await cluster.join() for _ in range(1)]
    await cluster.go(lambda: len(engine.intervals) == 6)
    looks: list[Placement] = []
    engine.remotes.place = lambda placement: looks.append(placement)  # type: ignore[method-assign]
    await end([task for task in engine.env.tasks if task.get_name() == "heartbeat"])
    engine.lease.end()
    await engine.remotes.refresh()
    assert engine.intervals
    assert looks == []
    await cluster.go(lambda: not engine.intervals)
    await engine.remotes.refresh()
    assert looks
    del engine.remotes.place
    await cluster.leave(engine)


async def test_a_report_of_an_interval_that_is_not_known_is_looked_into() -> None:
    values = many(600)
    cluster = Lone(counting(values))
    first, second = await cluster.at_work(2)
    row, _ = await cluster.parts("tally")
    late = second if cluster.owner_of(row) is first else first
    late.remotes.place = lambda placement: None  # type: ignore[method-assign]

    def hear(id_: int, computation: int, high: int, sequencer: int) -> bool:
        late.remotes.refresh_wanted.clear()
        assert row.owner is not None
        late.remotes.receive_reports(
            row.owner, [(id_, computation, row.slot_from, high, sequencer, 0, False)]
        )
        return late.remotes.refresh_wanted.is_set()

    newer, own = row.sequencer + 1000, late.intervals[0]
    assert not hear(row.id, row.computation, row.slot_to, row.sequencer)
    assert hear(row.id, row.computation, row.slot_to - 1, newer), "it was split"
    assert hear(4711, row.computation, row.slot_to, newer), "it was merged"
    assert hear(own.id, own.step.id, own.slots[1], newer), "it was taken from here"
    assert not hear(4711, 99, row.slot_to, newer), "of a graph that grew"
    assert not hear(own.id, own.step.id, own.slots[1], own.commits.sequencer), "a zombie's"
    assert not hear(row.id, row.computation, row.slot_to - 1, row.sequencer), "what was never said"
    del late.remotes.place
    await cluster.end(values)


async def test_who_is_fenced_while_it_hands_over_sends_on_what_came_meanwhile() -> None:
    values = many(3000, keys=20)
    cluster = Lone(counting(values, replace(SHARED, max_unacked_records=1000)))
    await cluster.at_work(2)
    row, _ = await cluster.parts("tally")
    owner = cluster.owner_of(row)
    (other,) = (engine for engine in cluster.alive if engine is not owner)
    interval = owner.exchange.held(row.id)
    assert interval is not None
    gate = Gate()

    def hold(commit: Commit) -> Any:
        concerned = any(link.interval_id == row.id for link in commit.intervals)
        return gate.wait() if concerned and interval.leaving else None

    cluster.on_try = hold
    await cluster.store.wish([Wish(row.id, row.sequencer, other.worker, "", pinned=True)])
    await cluster.go(lambda: interval.leaving)
    remote = cluster.remote(owner, row.id)
    await cluster.go(lambda: any(stream.unacked for stream in remote.streams.values()))
    await cluster.store.claim(other.worker, [row.id])
    cluster.on_try = None
    gate.open()
    await cluster.end(values)


async def test_records_in_a_runners_hand_survive_its_starting_over() -> None:
    """A worker takes records, and its commit fails before it has put them anywhere; their source
    is on another worker and sends nothing again."""
    values = many(2000, keys=20)
    limits = replace(SHARED, max_unacked_records=1000, bundle_records=100)
    cluster = Lone(counting(values, limits, sources=1))
    engines = await cluster.at_work(2)
    (engine,) = (each for each in engines if not each.injectors)
    lane = engine.lane
    ours = {interval.id for interval in lane.intervals}
    knows_offset = engine.buckets.sources.knows
    in_hand, never = asyncio.Event(), asyncio.Event()
    failed: list[Commit] = []

    async def before(name: str) -> None:
        task = asyncio.current_task()
        assert task is not None
        if name == "view_buckets" and task.get_name() == "runner" and not in_hand.is_set():
            engine.buckets.sources.knows = knows_offset  # type: ignore[method-assign]
            in_hand.set()
            await never.wait()

    async def fail() -> None:
        await in_hand.wait()
        raise StoreUnavailable("it was away")

    def on_try(commit: Commit) -> Any:
        if failed or not ours & {link.interval_id for link in commit.intervals}:
            return None
        failed.append(commit)
        return fail()

    own_logs = {interval.log.id for interval in lane.intervals}
    engine.buckets.sources.knows = lambda log, offset: log in own_logs  # type: ignore[method-assign]
    cluster.store.faults.before_call = before
    cluster.on_try = on_try
    await cluster.go(lambda: in_hand.is_set() and failed)
    await cluster.end(values)


async def test_a_hot_key_in_two_phases_is_split_and_its_panes_stay_the_same() -> None:
    partials = Stream("partials", Partial[int])
    panes = Stream("panes", Pane[int])
    values = [Item("hot" if n % 3 else f"key {n % 7}", n, n / 10) for n in range(1500)]
    made = Pipeline("two_phases", settings=SHARED)
    made.inject(ITEMS, script(ITEMS, values), timestamp=time_of)
    by = Spread(key_of, ways=8, by=lambda item: item.number)
    minute = Tumbling(minutes=1)
    made.add(
        PreAggregate(minute, count, to=partials, flush_every=timedelta(seconds=5)), ITEMS.by(by)
    )
    made.add(
        Windowed(minute, merged(count, lambda a, b: a + b), to=panes),
        partials.by(lambda partial: partial.key),
    )
    made.sink(panes, Table("out", Row), row=text_key)
    cluster = Lone(made)
    engines = [await cluster.join() for _ in range(2)]
    await cluster.go(lambda: sum(engine.processed for engine in engines) > 150)
    names = [
        step.name for step in engines[0].exchange.steps.values() if step.node.kind == "computation"
    ]
    for name in names:
        for row in await cluster.parts(name):
            await cluster.split(row)
    await cluster.go(lambda: len(cluster.done("split")) == 4)
    await cluster.go(cluster.finished)
    expected: Counter[tuple[str, int]] = Counter()
    for item in values:
        expected[item.key, int(item.second // 60)] += 1
    found = Counter({(row[0], row[1].minute): row[2] for row in cluster.rows()})
    assert len(cluster.rows()) == len(found), "each pane once"
    assert found == expected
    for engine in list(cluster.alive):
        await cluster.leave(engine)


async def test_part_files_go_by_interval_and_no_line_is_lost_or_doubled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def at_once(work: Callable[..., object], *arguments: object) -> object:
        return work(*arguments)

    monkeypatch.setattr(asyncio, "to_thread", at_once)  # virtual time waits while files are written
    values = many(1200, keys=20)
    made = Pipeline("filing", settings=replace(SHARED, lease_seconds=60.0))
    made.inject(ITEMS, script(ITEMS, values), timestamp=time_of)
    made.add(Tally(), ITEMS.by(key_of))
    made.sink(TALLY, JsonLinesFiles(tmp_path, by=lambda counted: counted.key))
    cluster = Lone(made)

    async def until(condition: Callable[[], object]) -> None:
        await cluster.go(condition, tick=0.002, turns=600_000)

    def file_of(interval_id: int) -> Path:
        return tmp_path / f"part-{interval_id:05d}.jsonl"

    engine = await cluster.join()
    await until(lambda: engine.processed > 100)
    writer, *_ = (i.step.name for i in engine.intervals if i.part_file is not None)
    lower, upper = await cluster.parts(writer)
    await cluster.split(lower)
    await until(lambda: len(cluster.done("split")) == 1)
    ((cut_off, _),) = cluster.done("split")
    written = [file_of(id_) for id_ in (cut_off, upper.id)]
    await until(lambda: all(path.exists() and path.stat().st_size for path in written))
    rows = {row.id: row for row in await cluster.parts(writer)}
    await cluster.merge(rows[cut_off], rows[upper.id])
    await until(lambda: cluster.done("merge"))
    sizes = {id_: file_of(id_).stat().st_size for id_ in (cut_off, upper.id)}
    assert all(sizes.values())
    await until(cluster.finished)
    await cluster.leave(engine)
    ((whole, _),) = cluster.done("merge")
    found = await asyncio.to_thread(lambda: list(tmp_path.iterdir()))
    files = [file_of(id_) for id_ in (lower.id, cut_off, upper.id, whole)]
    assert sorted(found) == sorted(files)
    for id_, size in sizes.items():
        assert file_of(id_).stat().st_size == size, "left as it was"
    lines = [msgspec.json.decode(line) for path in files for line in path.read_bytes().splitlines()]
    assert sorted(line["number"] for line in lines) == list(range(1200))


# -- the balancer ---------------------------------------------------------------------------------

BALANCED = replace(SHARED, placement_cooldown_seconds=1.0, placement_moves=2)


async def _rest(cluster: Lone, seconds: float = 20.0) -> None:
    """Let so much time pass that whatever is to be decided is decided and done."""
    until = cluster.clock.monotonic() + seconds
    await cluster.go(lambda: cluster.clock.monotonic() >= until)


async def _at_rest(cluster: Lone) -> list[list[str | None]]:
    """Nothing is decided any more: who owns the intervals of each computation."""
    before = len(cluster.store.placement_events())
    await _rest(cluster)
    assert cluster.store.placement_events()[before:] == []
    return [[row.owner for row in await cluster.parts(name)] for name in ("tally", "recount")]


async def test_intervals_follow_the_number_of_workers_and_come_to_rest() -> None:
    values = many(200)
    limits = replace(BALANCED, placement_intervals_least=2)
    cluster = Lone(counting(values, limits))
    for workers in (1, 2, 3, 4):
        await cluster.join()
        await _rest(cluster)
        for owners in await _at_rest(cluster):
            assert len(owners) == max(workers, SHARED.intervals)
            assert len({*owners}) == workers, "everybody has one of each"
    while len(cluster.alive) > 1:
        await cluster.leave(cluster.alive[0])
        await _rest(cluster)
        for owners in await _at_rest(cluster):
            assert len(owners) <= 4, "no more are made for fewer workers"
            assert max(Counter(owners).values()) - min(Counter(owners).values()) <= 1
    for owners in await _at_rest(cluster):
        assert len(owners) == 2, "as many as one worker needs"
    await cluster.end(values)


async def test_those_who_join_a_computation_of_one_interval_have_a_part_of_it_soon() -> None:
    values = many(200)
    cluster = Lone(
        counting(values, replace(SHARED, intervals=1, placement_cooldown_seconds=3600.0))
    )
    await cluster.join()
    await _rest(cluster)
    assert [len(await cluster.parts(name)) for name in ("tally", "recount")] == [1, 1]
    for _ in range(3):
        await cluster.join()
    await _rest(cluster, 10.0)
    for owners in await _at_rest(cluster):
        assert len({*owners}) == len(owners) == 4
    await cluster.end(values)


async def test_few_intervals_are_not_merged_for_there_being_fewer_workers() -> None:
    cluster = Lone(counting(many(200), BALANCED))
    for _ in range(4):
        await cluster.join()
    await _rest(cluster, 40.0)
    for engine in cluster.alive[:3]:
        await cluster.leave(engine)
    await _rest(cluster)
    for owners in await _at_rest(cluster):
        assert len(owners) == 4, "below placement_intervals_least"
    assert cluster.done("wish_merge") == []
    await cluster.end(many(200))


async def test_a_hot_interval_is_split_until_its_load_can_be_shared() -> None:
    cluster = Lone(counting(many(200), replace(BALANCED, lease_seconds=1.5)))
    for _ in range(2):
        await cluster.join()
    await _rest(cluster)
    report_load(cluster, {100: 0.3, 200: 0.35, 300: 0.25})
    await cluster.go(lambda: cluster.done("split"))
    _, cut_off, _ = await cluster.parts("tally")
    assert cut_off.slot_from == 200, "where the load has its median"
    await _rest(cluster)
    await _at_rest(cluster)
    assert len(cluster.done("split")) == 2
    rows = {row.slot_from: row.owner for row in await cluster.parts("tally")}
    assert [*rows] == [0, 200, 300, SLOTS // 2]
    assert len({rows[0], rows[200], rows[300]}) == 2, "both have a part of it"
    await cluster.end(many(200))


async def test_a_pinned_interval_stays_until_its_worker_dies() -> None:
    cluster = Lone(counting(many(200), BALANCED))
    first, second = [await cluster.join() for _ in range(2)]
    await _rest(cluster)
    for name in ("tally", "recount"):
        for row in await cluster.parts(name):
            pin = Wish(row.id, row.sequencer, first.worker, "all of them here", pinned=True)
            assert await cluster.store.wish([pin]) == [row.id]
    await _rest(cluster)
    assert await _at_rest(cluster) == [[first.worker] * 2] * 2
    await cluster.crash(first)
    await _rest(cluster)
    assert await _at_rest(cluster) == [[second.worker] * 2] * 2
    for name in ("tally", "recount"):
        assert not any(row.pinned for row in await cluster.parts(name))
    await cluster.end(many(200))


async def test_what_was_cut_or_is_about_to_be_is_left_alone() -> None:
    cluster = Lone(counting(many(200), replace(BALANCED, placement_cooldown_seconds=5.0)))
    first, _ = [await cluster.join() for _ in range(2)]
    await _rest(cluster)
    row, _ = await cluster.parts("tally")
    balancer = Balancer(first.env)
    histogram = [[slot, 1.0] for slot in range(100)]
    hot = {"intervals": {str(row.id): {"cpu": 5.0, "histogram": histogram}}}

    async def look(load: dict[str, Any]) -> list[Any]:
        placement = await cluster.store.read_placement()
        workers = [
            replace(worker, load=load if worker.id == row.owner else {})
            for worker in placement.workers
        ]
        return balancer(replace(placement, workers=workers))

    wishes = [wish for wish in await look(hot) if isinstance(wish, SplitWish)]
    assert [wish.interval_id for wish in wishes] == [row.id]
    assert not any(isinstance(wish, SplitWish) for wish in await look(hot)), "not twice"
    await cluster.split(row)
    await cluster.go(lambda: cluster.done("split"))
    await _rest(cluster, 5.1)
    ((upper, _),) = cluster.done("split")
    both = {"intervals": {str(id_): {"cpu": 5.0} for id_ in (row.id, upper)}}
    assert not any(wish.interval_id in (row.id, upper) for wish in await look(both))
    await _rest(cluster, 5.1)
    assert {wish.interval_id for wish in await look(both)} & {row.id, upper}
    await cluster.end(many(200))


@pytest.mark.parametrize(
    "load",
    [
        {},
        {"cpu": "much"},
        {"intervals": {"x": {}}},
        {"intervals": [1]},
        {"processed": 5, "intervals": {"7": {"unknown": 1}}},
    ],
)
def test_whatever_a_worker_says_of_its_load_is_read(load: dict[str, Any]) -> None:
    assert ReportedLoad.read(load).of(7) == ReportedLoad().of(7)


def test_a_workers_load_is_read() -> None:
    load = ReportedLoad.read(
        {"cpu": 0.5, "intervals": {"7": {"cpu": 0.25, "queue": 3, "histogram": [[0, 1.5]]}}}
    )
    assert load.cpu == 0.5
    assert (load.of(7).cpu, load.of(7).queue, load.of(7).histogram) == (0.25, 3, ((0, 1.5),))
    assert load.of(8).cpu == 0.0


class Pot(msgspec.Struct):
    """A record that user code may change."""

    number: int
    count: int = 0


POTS = Stream("pots", Pot)


class Stir(Computation[Pot, None]):
    """Changes what it is given."""

    writes = (TALLY,)

    async def process_record(self, record: Record[Pot], ctx: Context[None]) -> None:
        record.value.count += 1
        ctx.produce(TALLY, Counted("a", record.value.number, record.value.count))


async def test_what_ran_before_a_cut_runs_behind_it_as_it_came() -> None:
    """Its outputs had not arrived: weak code runs again, and must be given the same."""
    gate = Gate()
    seen: list[tuple[int, int]] = []

    class Slow(Computation[Counted, None]):
        async def process_record(self, record: Record[Counted], ctx: Context[None]) -> None:
            await gate.wait()
            seen.append((record.value.number, record.value.count))

    made = Pipeline("stirred", settings=SHARED)
    pots = [inject(POTS, Pot(n)) for n in range(8)]
    made.inject(POTS, Script("pots", pots), timestamp=lambda pot: at(0))
    made.add(
        Stir(),
        POTS.by(lambda pot: pot.number),
        productions="weak",
        straggler_after=timedelta(days=1),
    )
    made.add(Slow(), TALLY.by(lambda counted: counted.number))
    cluster = Lone(made)
    owner = await cluster.join()
    await cluster.go(lambda: gate.reached == 8)
    row, *_ = await cluster.parts("stir")
    await cluster.split(row)
    await cluster.split_here(owner, row)
    gate.open()
    await cluster.go(cluster.finished)
    assert sorted(seen) == [(n, 1) for n in range(8)]
    await cluster.leave(owner)
