"""Who owns what, held by every store: claims, releases, wishes, leadership, splits, merges."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from millwheel.core.codec import encode_key
from millwheel.core.model import SLOTS
from millwheel.errors import Fenced, MillwheelError, PlacementRefused
from millwheel.store.memory.tables import changes_of
from millwheel.store.port import Store
from millwheel.store.port.claims import Claim
from millwheel.store.port.placement import (
    KEEP_EVENTS,
    IntervalRow,
    Lapse,
    MergeWish,
    PlacedInterval,
    SplitWish,
    Unpin,
    Wish,
)
from millwheel.store.port.states import TIMER_KINDS, StateChange, TimerChange
from tests.support.sessions import connection_of, lane_of, session, until, waiting_for_a_lock
from tests.support.store_sites import (
    BUCKET_HIGH,
    LINES,
    SECOND,
    START,
    MemorySite,
    Owner,
    PostgresSite,
    Schema,
    Site,
    deploy,
)

pytestmark = pytest.mark.newest


async def placed(store: Store, interval_id: int) -> PlacedInterval:
    placement = await store.read_placement()
    (found,) = [row for row in placement.intervals if row.id == interval_id]
    return found


async def worker(store: Store, lease_seconds: float = 60.0) -> str:
    """A worker that is registered."""
    name = str(uuid.uuid4())
    await store.register_worker(name, lease_seconds)
    return name


async def events(site: Site) -> list[tuple[Any, ...]]:
    """Rows of the view `placement_events`, without number and time."""
    if isinstance(site, MemorySite):
        return [tuple(event) for event in site.tables.placement_events()]
    assert isinstance(site, PostgresSite)
    return await site.query(
        "SELECT computation, interval_id, slot_from, slot_to, what, from_worker::text, "
        "to_worker::text, reason FROM {e} ORDER BY id",
        e="placement_events",
    )


# -- workers ------------------------------------------------------------------------------


async def test_a_heartbeat_tells_the_stores_clock(site: Site) -> None:
    await deploy(site.store)
    me = await worker(site.store)
    first = await site.store.heartbeat(me, 60.0, {})
    second = await site.store.heartbeat(me, 60.0, {})
    placement = await site.store.read_placement()
    assert START <= first.now <= second.now <= placement.now


async def test_who_was_ended_or_forgotten_hears_it_at_the_next_heartbeat(site: Site) -> None:
    await deploy(site.store)
    me = await worker(site.store)
    await site.store.stop_worker(me)
    for name in (me, str(uuid.uuid4())):
        with pytest.raises(Fenced):
            await site.store.heartbeat(name, 60.0, {})


async def test_the_placement_shows_workers_and_intervals(site: Site) -> None:
    owner = await Owner.take(site.store)
    other = str(uuid.uuid4())
    await site.store.register_worker(other, 0.0, address="127.0.0.1:7001")
    gone = await worker(site.store)
    await site.store.stop_worker(gone)
    await (await site.another()).heartbeat(owner.worker, 50.0, {"share": 0.5, "slots": {"3": 1}})
    placement = await site.store.read_placement()
    assert [
        (row.id, row.computation, row.slot_from, row.slot_to) for row in placement.intervals
    ] == [
        (row.id, row.computation, row.slot_from, row.slot_to) for row in owner.deployment.intervals
    ]
    for row in placement.intervals:
        assert row.sequencer == owner.claims[row.id].interval.sequencer
        assert (row.owner, row.wanted_by, row.lease_over) == (owner.worker, None, False)
        assert not row.is_free
    mine, theirs = placement.workers
    assert (mine.id, mine.address) == (owner.worker, "")
    assert mine.load == {"share": 0.5, "slots": {"3": 1}}
    assert 40.0 < mine.lease_left <= 50.0
    assert mine.host
    assert mine.pid
    assert (theirs.id, theirs.address) == (other, "127.0.0.1:7001")
    assert (theirs.lease_left, theirs.backends, theirs.load) == (0.0, [], {})


async def test_the_placement_shows_what_rests_and_a_deploy_leaves_it_so(site: Site) -> None:
    deployment = await deploy(site.store)
    assert (await site.store.read_placement()).paused == frozenset()
    await site.pause("lines")
    lines = deployment.computations["lines"]
    assert (await site.store.read_placement()).paused == {lines}
    await deploy(await site.another())
    assert (await site.store.read_placement()).paused == {lines}
    await site.pause()
    assert (await site.store.read_placement()).paused == frozenset()


@pytest.mark.parametrize("end", ["stop", "run out", "unknown"])
async def test_the_placement_shows_whose_lease_is_over(site: Site, end: str) -> None:
    owner = await Owner.take(site.store)
    if end == "stop":
        await site.store.stop_worker(owner.worker)
    elif end == "run out":
        await site.store.heartbeat(owner.worker, 0.0, {})
    else:
        await site.store.claim(str(uuid.uuid4()), [r.id for r in owner.deployment.intervals])
    placement = await site.store.read_placement()
    assert all(row.lease_over and row.is_free for row in placement.intervals)
    assert [w.id for w in placement.workers] == ([] if end == "stop" else [owner.worker])


# -- claims -------------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["live", "stop", "run out", "unknown", "own", "released"])
async def test_a_claim_by_comparison_takes_only_what_is_free(site: Site, end: str) -> None:
    owner = await Owner.take(site.store)
    row, _ = owner.intervals
    me = await worker(site.store)
    if end == "stop":
        await site.store.stop_worker(owner.worker)
    elif end == "run out":
        await site.store.heartbeat(owner.worker, 0.0, {})
    elif end == "unknown":
        await site.store.claim(str(uuid.uuid4()), [row.id])
    elif end == "own":
        await site.store.claim(me, [row.id])
    elif end == "released":
        sequencer = owner.claims[row.id].interval.sequencer
        assert await site.store.release(owner.worker, {row.id: sequencer}) == [row.id]
    before = await placed(site.store, row.id)
    claims = await site.store.claim(me, [row.id], sequencers={row.id: before.sequencer})
    after = await placed(site.store, row.id)
    if end == "live":
        assert claims == []
        assert after == before
        await owner.write(owner.commit())
        return
    (claim,) = claims
    assert claim.interval.id == row.id
    assert claim.interval.sequencer == after.sequencer > before.sequencer
    assert after.owner == me
    assert claim.new_log
    with pytest.raises(Fenced):
        await owner.lane.commit(owner.commit(row))


async def test_a_claim_with_an_old_sequencer_gets_nothing(site: Site) -> None:
    owner = await Owner.take(site.store)
    first, second = owner.intervals
    read = {r.id: r.sequencer for r in (await site.store.read_placement()).intervals}
    await site.store.stop_worker(owner.worker)
    me, other = await worker(site.store), await worker(site.store)
    (claim,) = await site.store.claim(me, [first.id], sequencers=read)
    await site.store.release(me, {first.id: claim.interval.sequencer})
    ids = [second.id, 4711, first.id]
    claims = await site.store.claim(other, ids, sequencers={**read, 4711: 1})
    assert [c.interval.id for c in claims] == [second.id]
    assert await site.store.claim(other, ids, sequencers={**read, 4711: 1}) == []
    assert (await placed(site.store, first.id)).owner is None


async def test_of_two_claimers_each_interval_gets_one(site: Site) -> None:
    deployment = await deploy(site.store)
    stores = [site.store, *[await site.another() for _ in range(3)]]
    names = [await worker(store) for store in stores]
    ids = [row.id for row in deployment.intervals]
    for _ in range(5):
        read = {r.id: r.sequencer for r in (await site.store.read_placement()).intervals}
        taken = await asyncio.gather(
            *(
                store.claim(name, ids if number % 2 else ids[::-1], sequencers=read)
                for number, (name, store) in enumerate(zip(names, stores, strict=True))
            )
        )
        claimed = [claim.interval.id for claims in taken for claim in claims]
        assert sorted(claimed) == sorted(ids)
        for name, claims in zip(names, taken, strict=True):
            for claim in claims:
                found = await placed(site.store, claim.interval.id)
                assert (found.owner, found.sequencer) == (name, claim.interval.sequencer)
            sequencers = {claim.interval.id: claim.interval.sequencer for claim in claims}
            assert await site.store.release(name, sequencers) == sorted(sequencers)


async def test_a_claim_of_what_is_gone_is_fenced(site: Site) -> None:
    owner = await Owner.take(site.store)
    with pytest.raises(Fenced):
        await site.store.claim(owner.worker, [owner.intervals[0].id, 4711])


# -- releases, wishes, events ---------------------------------------------------------------


async def test_only_the_owner_releases_and_only_with_his_sequencer(site: Site) -> None:
    owner = await Owner.take(site.store)
    first, second = owner.intervals
    mine = {row.id: owner.claims[row.id].interval.sequencer for row in owner.intervals}
    assert await site.store.release(await worker(site.store), mine) == []
    assert await site.store.release(owner.worker, {first.id: mine[first.id] - 1, 4711: 1}) == []
    assert (await placed(site.store, first.id)).owner == owner.worker
    assert await site.store.release(owner.worker, {**mine, first.id: 1}) == [second.id]
    assert await site.store.release(owner.worker, mine) == [first.id]
    assert await site.store.release(owner.worker, mine) == []
    assert (await placed(site.store, first.id)).is_free


async def test_a_wish_changes_who_is_wanted_and_leaves_an_event(site: Site) -> None:
    owner = await Owner.take(site.store)
    first, second = owner.intervals
    mine = {row.id: owner.claims[row.id].interval.sequencer for row in owner.intervals}
    me = await worker(site.store)
    old = Wish(second.id, mine[second.id] - 1, me, "too late")
    assert await site.store.wish([Wish(first.id, mine[first.id], me, "less to do"), old]) == [
        first.id
    ]
    assert (await placed(site.store, first.id)).wanted_by == me
    assert (await placed(site.store, second.id)).wanted_by is None
    assert (await placed(site.store, first.id)).owner == owner.worker
    assert await site.store.wish([Wish(first.id, mine[first.id], me, "once more")]) == []
    await owner.write(owner.commit())  # a wish fences nobody
    assert await site.store.wish([Wish(first.id, mine[first.id], None, "never mind")]) == [first.id]
    assert await site.store.wish([]) == []
    place = ("count", first.id, first.slot_from, first.slot_to)
    assert await events(site) == [
        (*place, "wish", owner.worker, me, "less to do"),
        (*place, "wish", owner.worker, None, "never mind"),
    ]


async def test_a_hand_over_can_be_read_in_the_events(site: Site) -> None:
    owner = await Owner.take(site.store)
    row = owner.intervals[0]
    sequencer = owner.claims[row.id].interval.sequencer
    me = await worker(site.store)
    await site.store.wish([Wish(row.id, sequencer, me, "less to do")])
    await site.store.release(owner.worker, {row.id: sequencer})
    await site.store.claim(me, [row.id], sequencers={row.id: sequencer})
    assert [event[4:] for event in await events(site)] == [
        ("wish", owner.worker, me, "less to do"),
        ("release", owner.worker, me, "drained and folded"),
        ("claim", None, me, "it had no owner"),
    ]


async def test_old_events_are_forgotten(postgres: PostgresSite) -> None:
    owner = await Owner.take(postgres.store)
    row = owner.intervals[0]
    await postgres.query(
        "INSERT INTO {e} (at, interval_id, computation, slot_from, slot_to, what, reason) "
        "SELECT now(), 1, 1, 0, 1, 'wish', n::text FROM generate_series(1, 10000) AS n",
        e="placement_event",
    )
    sequencer = owner.claims[row.id].interval.sequencer
    await postgres.store.wish([Wish(row.id, sequencer, owner.worker, "the newest")])
    found = await events(postgres)
    assert len(found) == KEEP_EVENTS
    assert (found[0][-1], found[-1][-1]) == ("2", "the newest")


async def test_what_an_operator_pins_stays_while_its_worker_lives(site: Site) -> None:
    owner = await Owner.take(site.store)
    row = owner.intervals[0]
    sequencer = owner.claims[row.id].interval.sequencer
    me, other = await worker(site.store), await worker(site.store)
    pin = Wish(row.id, sequencer, me, "it is my desk", pinned=True)
    assert await site.store.wish([pin]) == [row.id]
    assert await site.store.wish([pin]) == []
    for balancers in (other, me, None):
        assert await site.store.wish([Wish(row.id, sequencer, balancers, "fairer")]) == []
    found = await placed(site.store, row.id)
    assert (found.wanted_by, found.pinned) == (me, True)
    elsewhere = Wish(row.id, sequencer, other, "that one", pinned=True)
    assert await site.store.wish([elsewhere]) == [row.id]
    await site.store.stop_worker(other)
    assert await site.store.wish([Wish(row.id, sequencer, me, "it is gone")]) == [row.id]
    found = await placed(site.store, row.id)
    assert (found.wanted_by, found.pinned) == (me, False)
    await site.store.wish([pin])
    assert await site.store.wish([Unpin(row.id, sequencer - 1, "too late")]) == []
    unpin = Unpin(row.id, sequencer, "never mind")
    assert await site.store.wish([unpin]) == [row.id]
    assert await site.store.wish([unpin]) == []
    found = await placed(site.store, row.id)
    assert (found.wanted_by, found.pinned) == (me, False)
    assert await site.store.wish([Wish(row.id, sequencer, other, "fairer")]) == [row.id]
    assert [(event[4], event[6], event[7]) for event in await events(site)] == [
        ("pin", me, "it is my desk"),
        ("pin", other, "that one"),
        ("wish", me, "it is gone"),
        ("pin", me, "it is my desk"),
        ("unpin", me, "never mind"),
        ("wish", other, "fairer"),
    ]


async def test_a_wish_to_cut_stands_until_it_lapses(site: Site) -> None:
    owner = await Owner.take(site.store)
    first, second = owner.intervals
    mine = {row.id: owner.claims[row.id].interval.sequencer for row in owner.intervals}

    async def cuts() -> list[tuple[int | None, int | None]]:
        rows = [await placed(site.store, row.id) for row in (first, second)]
        return [(row.split_at, row.merge_with) for row in rows]

    split = SplitWish(first.id, mine[first.id], 9, "it is hot")
    late = SplitWish(second.id, mine[second.id] - 1, second.slot_to - 1, "too late")
    assert await site.store.wish([split, late]) == [first.id]
    assert await cuts() == [(9, None), (None, None)]
    assert await site.store.wish([split]) == []
    merge = MergeWish(first.id, mine[first.id], second.id, "they are cold")
    above = SplitWish(second.id, mine[second.id], second.slot_to - 1, "")
    assert await site.store.wish([above, merge]) == sorted([first.id, second.id])
    assert await cuts() == [(None, second.id), (second.slot_to - 1, None)]
    assert await site.store.wish([merge]) == []
    await owner.write(owner.commit())  # a wish fences nobody
    assert await site.store.wish([split]) == [first.id]
    assert await cuts() == [(9, None), (second.slot_to - 1, None)]
    lapses = [Lapse(row.id, mine[row.id], "never mind") for row in owner.intervals]
    assert await site.store.wish(lapses) == sorted(mine)
    assert await site.store.wish(lapses) == []
    assert await cuts() == [(None, None), (None, None)]
    place = ("count", first.id, first.slot_from, first.slot_to)
    assert [event for event in await events(site) if event[1] == first.id] == [
        (*place, "wish_split", owner.worker, None, "at slot 9: it is hot"),
        (*place, "wish_merge", owner.worker, None, f"with interval {second.id}: they are cold"),
        (*place, "wish_split", owner.worker, None, "at slot 9: it is hot"),
        (*place, "lapse", owner.worker, None, "never mind"),
    ]
    assert [event[4:] for event in await events(site) if event[1] == second.id] == [
        ("wish_split", owner.worker, None, f"at slot {second.slot_to - 1}"),
        ("lapse", owner.worker, None, "never mind"),
    ]


async def test_what_cannot_be_cut_is_not_wished_to_be(site: Site) -> None:
    owner = await Owner.take(site.store)
    first, second = owner.intervals
    injector = owner.injector
    sequencers = {r.id: r.sequencer for r in (await site.store.read_placement()).intervals}
    for wrong in (
        SplitWish(first.id, sequencers[first.id], first.slot_from, ""),
        SplitWish(first.id, sequencers[first.id], first.slot_to, ""),
        SplitWish(injector.id, sequencers[injector.id], 0, ""),
        SplitWish(4711, 1, 9, ""),
        MergeWish(second.id, sequencers[second.id], first.id, ""),
        MergeWish(first.id, sequencers[first.id], first.id, ""),
        MergeWish(first.id, sequencers[first.id], injector.id, ""),
        MergeWish(first.id, sequencers[first.id], 4711, ""),
    ):
        assert await site.store.wish([wrong]) == [], wrong
    assert await events(site) == []


async def test_neighbouring_partitions_are_not_wished_to_be_merged(site: Site) -> None:
    lines = replace(LINES, slots=[(0, 1), (1, 2)], sources=["a", "b"])
    deployment = await deploy(site.store, lines=lines)
    lower, upper = (
        row for row in deployment.intervals if row.computation == deployment.computations["lines"]
    )
    assert await site.store.wish([MergeWish(lower.id, lower.sequencer, upper.id, "")]) == []


@pytest.mark.parametrize("by", ["claim", "claim again", "comparison"])
async def test_a_claim_ends_wishes_to_cut_and_leaves_the_pin(site: Site, by: str) -> None:
    owner = await Owner.take(site.store)
    first, second = owner.intervals
    mine = {row.id: owner.claims[row.id].interval.sequencer for row in owner.intervals}
    await site.store.wish(
        [Wish(row.id, mine[row.id], owner.worker, "", True) for row in (first, second)]
    )
    await site.store.wish(
        [
            MergeWish(first.id, mine[first.id], second.id, ""),
            SplitWish(second.id, mine[second.id], second.slot_to - 1, ""),
        ]
    )
    if by == "claim":
        await site.store.claim(owner.worker, list(mine))
    elif by == "claim again":
        await site.store.claim(owner.worker, list(mine), again=True)
    else:
        assert len(await site.store.claim(owner.worker, list(mine), sequencers=mine)) == 2
    for row in owner.intervals:
        found = await placed(site.store, row.id)
        assert (found.split_at, found.merge_with) == (None, None)
        assert (found.wanted_by, found.pinned) == (owner.worker, True)


# -- leadership -----------------------------------------------------------------------------


async def test_one_leads_until_it_stops(site: Site) -> None:
    one, two = await candidates(site.store)
    term = await site.store.try_lead(one, 30.0)
    assert term is not None
    assert await site.store.try_lead(two, 30.0) is None
    assert await site.store.try_lead(one, 30.0) == term
    await site.store.stop_worker(one)
    assert await site.store.try_lead(one, 30.0) is None
    assert await site.store.try_lead(two, 30.0) == term + 1


async def test_a_worker_without_a_lease_does_not_lead(site: Site) -> None:
    (one,) = await candidates(site.store, 1)
    assert await site.store.try_lead(str(uuid.uuid4()), 30.0) is None
    await site.store.stop_worker(one)
    assert await site.store.try_lead(one, 30.0) is None


async def test_a_leader_that_asks_no_more_is_followed_although_it_lives(
    memory_site: MemorySite,
) -> None:
    store, clock = memory_site.store, memory_site.clock
    one, two = await candidates(store)
    assert await store.try_lead(one, 5.0) == 1
    clock.advance(4.0)
    assert await store.try_lead(one, 5.0) == 1
    clock.advance(4.0)
    assert await store.try_lead(two, 5.0) is None
    clock.advance(1.0)
    assert await store.try_lead(two, 5.0) == 2
    assert await store.try_lead(one, 5.0) is None


async def test_a_leadership_is_renewed_before_it_ends(postgres: PostgresSite) -> None:
    """By the database's clock; and shortened if that has gone back."""
    one, two = await candidates(postgres.store)
    assert await postgres.store.try_lead(one, 30.0) == 1
    await postgres.query(
        "UPDATE {leader} SET lease_until = now() + interval '1 s'", leader="leader"
    )
    left = "SELECT extract(epoch FROM lease_until - now())::float8 FROM {leader}"
    for ahead in ("10 s", "1 day"):
        await postgres.query(
            f"UPDATE {{leader}} SET lease_until = now() + interval '{ahead}'", leader="leader"
        )
        assert await postgres.store.try_lead(one, 30.0) == 1
        ((seconds,),) = await postgres.query(left, leader="leader")
        assert 20 < seconds <= 30
    await postgres.query("UPDATE {leader} SET lease_until = now()", leader="leader")
    assert await postgres.store.try_lead(two, 30.0) == 2


async def test_the_leadership_of_a_dead_worker_is_free_at_once(postgres: PostgresSite) -> None:
    one, two = await candidates(postgres.store)
    assert await postgres.store.try_lead(one, 60.0) == 1
    await postgres.query(
        "UPDATE {worker} SET lease_until = now() WHERE id = %s", one, worker="worker"
    )
    assert await postgres.store.try_lead(two, 60.0) == 2


async def test_wishes_of_a_former_leader_are_not_stored(site: Site) -> None:
    owner = await Owner.take(site.store)
    row, *_ = (await site.store.read_placement()).intervals
    one, two = await candidates(site.store)
    former = await site.store.try_lead(one, 30.0)
    assert former is not None
    wish = Wish(row.id, row.sequencer, two, "less to do")
    await site.store.stop_worker(one)
    assert await site.store.try_lead(two, 30.0) == former + 1
    assert await site.store.wish([wish], former) == []
    assert await site.store.wish([wish], former + 1) == [row.id]
    assert owner.worker


async def candidates(store: Any, number: int = 2) -> list[str]:
    """New workers of a deployed pipeline, with leases."""
    await deploy(store)
    workers = [str(uuid.uuid4()) for _ in range(number)]
    for worker in workers:
        await store.register_worker(worker, 60.0)
    return workers


@pytest.fixture
def memory_site() -> MemorySite:
    return MemorySite()


async def test_each_pipeline_has_its_own_leader(new_schema: Callable[[int], Schema]) -> None:
    sites = [await PostgresSite.open(new_schema(18)) for _ in range(2)]
    for site in sites:
        (one,) = await candidates(site.store, 1)
        assert await site.store.try_lead(one, 60.0) == 1
    for site in sites:
        await site.aclose()


# -- in the way (I4) ------------------------------------------------------------------------------


async def _stopped_in_a_commit(store: Any) -> Owner:
    """A worker whose process stopped in the midst of a commit, and whose lease ran out."""
    zombie = await Owner.take(store)
    await connection_of(lane_of(zombie)).execute("BEGIN")
    await lane_of(zombie)._append(connection_of(lane_of(zombie)), zombie.commit())
    await store.heartbeat(zombie.worker, 0.0, {})
    return zombie


async def _lives(owner: Owner) -> bool:
    try:
        await owner.write(owner.commit(owner.injector))
    except MillwheelError:
        return False
    return True


@pytest.mark.parametrize("change", ["claim", "wish"])
async def test_whose_lease_is_over_is_ended_if_he_is_in_the_way(
    postgres: PostgresSite, change: str
) -> None:
    zombie = await _stopped_in_a_commit(await postgres.another())
    bystander_store = await postgres.another()
    bystander = Owner(bystander_store, zombie.deployment, await worker(bystander_store))
    await bystander.claim(bystander.injector)
    bystander.lane = await bystander_store.open_lane()
    row = zombie.intervals[0]
    sequencer = zombie.claims[row.id].interval.sequencer
    me = await worker(postgres.store)
    if change == "claim":
        (claim,) = await postgres.store.claim(me, [row.id], sequencers={row.id: sequencer})
        assert claim.n == 0
    else:
        assert await postgres.store.wish([Wish(row.id, sequencer, me, "")]) == [row.id]
    with pytest.raises(Exception, match=r"terminat|closed"):
        await connection_of(lane_of(zombie)).execute("COMMIT")
    assert await _lives(bystander), "nobody else was ended"


async def test_whose_lease_lasts_is_not_ended_by_a_claim_of_what_is_free(
    postgres: PostgresSite,
) -> None:
    zombie = await _stopped_in_a_commit(await postgres.another())
    live_store = await postgres.another()
    live = Owner(live_store, zombie.deployment, await worker(live_store))
    await live.claim(live.injector)
    live.lane = await live_store.open_lane()
    row = zombie.intervals[0]
    read = {
        row.id: zombie.claims[row.id].interval.sequencer,
        live.injector.id: live.claims[live.injector.id].interval.sequencer,
    }
    me = await worker(postgres.store)
    (claim,) = await postgres.store.claim(me, [row.id, live.injector.id], sequencers=read)
    assert claim.interval.id == row.id
    assert await _lives(live)


async def test_a_claim_of_whatever_owner_ends_only_that_one(postgres: PostgresSite) -> None:
    zombie = await _stopped_in_a_commit(await postgres.another())
    live_store = await postgres.another()
    live = Owner(live_store, zombie.deployment, await worker(live_store))
    await live.claim(live.injector)
    live.lane = await live_store.open_lane()
    me = await worker(postgres.store)
    assert await postgres.store.claim(me, [row.id for row in zombie.intervals])
    assert await _lives(live)


async def test_a_session_opened_since_the_last_heartbeat_is_ended_too(
    postgres: PostgresSite,
) -> None:
    store = await postgres.another()
    zombie = await Owner.take(store)  # it never sends a heartbeat
    connection = connection_of(lane_of(zombie))
    await connection.execute("BEGIN")
    await lane_of(zombie)._append(connection, zombie.commit())
    await postgres.query("UPDATE {w} SET lease_until = now()", w="worker")
    row = zombie.intervals[0]
    sequencer = zombie.claims[row.id].interval.sequencer
    me = await worker(postgres.store)
    assert await postgres.store.claim(me, [row.id], sequencers={row.id: sequencer})


async def test_who_is_stopped_in_a_fold_is_ended(postgres: PostgresSite) -> None:
    store = await postgres.another()
    zombie = await Owner.take(store)
    await zombie.write(zombie.commit())
    await store.heartbeat(zombie.worker, 0.0, {})
    row = zombie.intervals[0]
    sequencer = zombie.links[row.id].sequencer
    async with contextlib.AsyncExitStack() as stack:
        connection = await stack.enter_async_context(store.connections.pool.connection())
        await connection.execute("BEGIN")
        params = {"interval_id": row.id, "sequencer": sequencer, "after": 0, "through": 1}
        await connection.execute(store.connections.statements.get("advance_fold"), params)
        me = await worker(postgres.store)
        (claim,) = await postgres.store.claim(me, [row.id], sequencers={row.id: sequencer})
        assert claim.folded == 0
        assert connection.broken or await _is_broken(connection)


async def _is_broken(connection: Any) -> bool:
    with contextlib.suppress(Exception):
        await connection.execute("SELECT 1")
    return bool(connection.closed)


async def test_a_release_waits_for_the_commit_before_it(postgres: PostgresSite) -> None:
    owner = await Owner.take(postgres.store)
    row = owner.intervals[0]
    connection = connection_of(lane_of(owner))
    await connection.execute("BEGIN")
    await lane_of(owner)._append(connection, owner.commit(row))
    sequencer = owner.claims[row.id].interval.sequencer
    other = await postgres.another()
    task = asyncio.create_task(other.release(owner.worker, {row.id: sequencer}))
    await until(lambda: waiting_for_a_lock(postgres))
    await connection.execute("COMMIT")
    assert await task == [row.id]


# -- splits and merges --------------------------------------------------------------------------


class Wheel:
    """A pipeline whose intervals are split and merged, and whose every owner is one worker."""

    def __init__(self, site: Site, owner: Owner) -> None:
        self.site = site
        self.store = site.store
        self.owner = owner
        self.computation = owner.computation

    @classmethod
    async def start(cls, site: Site) -> Wheel:
        return cls(site, await Owner.take(site.store))

    async def rows(self) -> list[PlacedInterval]:
        return [
            row
            for row in (await self.store.read_placement()).intervals
            if row.computation == self.computation
        ]

    async def take(self) -> list[Claim]:
        """Claim every interval of the computation, as it stands."""
        rows = await self.rows()
        self.owner.intervals = [
            IntervalRow(r.id, r.computation, r.slot_from, r.slot_to, r.sequencer) for r in rows
        ]
        return await self.owner.claim(*self.owner.intervals)

    async def let_go(self, *, fold: bool = True) -> dict[int, int]:
        """Fold and release everything; gives the sequencers."""
        sequencers = {}
        for row in self.owner.intervals:
            link = self.owner.links[row.id]
            sequencers[row.id] = link.sequencer
            if fold:
                folded = self.owner.claims[row.id].folded
                assert await self.store.fold(row.id, link.sequencer, folded, link.n)
        assert await self.store.release(self.owner.worker, sequencers) == sorted(sequencers)
        return sequencers

    async def write(self, count: int = 12, first: int = 0, **link: Any) -> None:
        """State, timers and productions of some keys."""
        commit = self.owner.fill(self.owner.commit(**link), count, first=first)
        commit.productions = [
            replace_log(p, self.owner.log(self.owner.interval_of(p.key)))
            for p in commit.productions
        ]
        await self.owner.write(commit)

    async def watermarks(self) -> tuple[int, int]:
        """The least input and output watermarks stored."""
        claims = await (await self.site.another()).claim(
            self.owner.worker, [row.id for row in await self.rows()]
        )
        return min(c.input_watermark for c in claims), min(c.low_watermark for c in claims)

    async def sight(self) -> tuple[Any, ...]:
        """What every reader sees."""
        return (
            await self.site.states(),
            await self.site.timers(),
            await self.site.pending(),
            await self.store.advance_gc_watermark(),
        )

    async def timers_of(self, interval_id: int) -> set[tuple[bytes, str, int | None]]:
        """Everything `read_timers` pages through."""
        found = []
        for kind in TIMER_KINDS:
            after = None
            while page := await self.store.read_timers(interval_id, kind, after, 3):
                found += page
                last = page[-1]
                after = (last.due or 0, last.slot, last.key, last.tag)
        assert len(found) == len(set(found))
        return {(t.key, t.kind, t.due) for t in found}


def replace_log(delivery: Any, log: int) -> Any:
    delivery.log = log
    return delivery


async def test_a_split_moves_nothing_that_anybody_can_see(site: Site) -> None:
    wheel = await Wheel.start(site)
    told: dict[str, Any] = {
        "input_watermark": 90,
        "low_watermark": 70,
        "counters": b'{"processed": 7}',
    }
    await wheel.write(**told)
    parent, _ = wheel.owner.intervals
    log = wheel.owner.log(parent)
    acked = msgspec.json.encode({str(log): [1, []]})
    await wheel.owner.write(wheel.owner.commit(parent, acked=acked))
    sequencers = await wheel.let_go()
    before = await wheel.sight()
    at = parent.slot_to // 4
    made = await wheel.store.split(parent.id, sequencers[parent.id], at, reason="it is hot")
    assert await wheel.sight() == before
    lower, upper, rest = await wheel.rows()
    assert (lower.id, lower.slot_from, lower.slot_to) == (parent.id, 0, at)
    assert (upper.id, upper.slot_from, upper.slot_to) == (made, at, parent.slot_to)
    assert lower.sequencer > max(sequencers.values()) < upper.sequencer
    assert (lower.owner, upper.owner) == (None, None)
    assert rest.id not in (lower.id, upper.id)
    first, second, _ = await wheel.take()
    assert (first.n, second.n, second.folded) == (2, 0, 0)
    assert first.acked == {log: (1, [])}
    assert (second.input_watermark, second.low_watermark) == (90, 70)
    assert (second.stamp, second.acked, second.counters) == (first.stamp, {}, {})
    assert (second.position, second.logs, second.states) == (None, [], [])
    assert len(first.logs) == 1
    assert second.new_log
    assert first.counters == {"processed": 7}
    for claim in (first, second):
        row = claim.interval
        timers = {(t.key, t.kind, t.due) for t in claim.timers}
        assert all(row.slot_from <= t.slot < row.slot_to for t in claim.timers)
        assert await wheel.timers_of(row.id) == timers
        assert timers
    (event,) = [event for event in await events(site) if event[4] == "split"]
    assert event == (
        "count", made, at, parent.slot_to, "split", None, None,
        f"cut off interval {parent.id}: it is hot",
    )  # fmt: skip
    await wheel.write(first=20)
    await wheel.let_go()
    assert len(await site.states()) == 24


async def test_a_merge_takes_the_lesser_of_everything_promised(site: Site) -> None:
    wheel = await Wheel.start(site)
    lower, upper = wheel.owner.intervals
    logs = [wheel.owner.log(row) for row in (lower, upper)]
    await wheel.write()
    parts: list[tuple[IntervalRow, int, dict[str, Any]]] = [
        (lower, logs[0], {"input_watermark": 90, "low_watermark": 70, "floor": START + 9,
                          "counters": b'{"processed": 7, "late": 1}'}),
        (upper, logs[1], {"input_watermark": 60, "low_watermark": 75, "floor": START + 5,
                          "counters": b'{"processed": 5, "bad": 2}'}),
    ]  # fmt: skip
    for row, log, told in parts:
        acked = msgspec.json.encode({str(log): [1, [[3, 4]]]})
        commit = wheel.owner.commit(row, acked=acked, position=b'{"length": 3}', **told)
        await wheel.owner.write(commit)
    await wheel.owner.write(wheel.owner.commit(wheel.owner.injector, floor=START + 100))
    newest = wheel.owner.stamp - SECOND
    sequencers = await wheel.let_go()
    before = await wheel.sight()
    assert before[-1] == START + 5
    made = await wheel.store.merge(lower.id, upper.id, sequencers)
    assert await wheel.sight() == before
    (whole,) = await wheel.rows()
    assert (whole.id, whole.slot_from, whole.slot_to, whole.owner) == (made, 0, SLOTS, None)
    assert whole.sequencer > max(sequencers.values())
    (claim,) = await wheel.take()
    assert (claim.n, claim.folded, claim.stamp) == (0, 0, newest)
    assert (claim.input_watermark, claim.low_watermark) == (90, 70), "no key's time goes back"
    assert claim.acked == {log: (1, [(3, 4)]) for log in logs}
    assert claim.counters == {"processed": 12, "late": 1, "bad": 2}
    assert claim.position is None
    assert [log.id for log in claim.logs] == logs
    assert len(claim.timers) == 12
    assert len(await wheel.timers_of(made)) == 12
    assert await wheel.sight() == before
    if isinstance(site, PostgresSite):
        rows = await site.query("SELECT interval_id FROM {fold} ORDER BY 1", fold="fold")
        assert rows == [(wheel.owner.injector.id,), (made,)]
    for gone in (lower, upper):
        assert await wheel.timers_of(gone.id) == set()
        assert not await wheel.store.fold(gone.id, sequencers[gone.id], 0, 9)
    await wheel.store.retire_logs(logs)
    (claim,) = await wheel.owner.claim(*wheel.owner.intervals)
    assert [log.id for log in claim.logs] == [claim.new_log - 2]


async def test_numbers_of_bundles_go_on_through_splits_and_merges(site: Site) -> None:
    wheel = await Wheel.start(site)
    owner = wheel.owner
    first, second = owner.intervals
    for row, number in ((first, 7), (second, 12)):
        position = msgspec.json.encode({"bundle": {"number": number}})
        await owner.write(owner.commit(row, position=position))
    sequencers = await wheel.let_go()
    upper = await wheel.store.split(first.id, sequencers[first.id], 100)
    rows = await wheel.rows()
    now = {row.id: row.sequencer for row in rows}
    await wheel.store.merge(upper, second.id, now)
    lower, whole = await wheel.take()
    assert lower.interval.id == first.id
    assert (lower.position, whole.position) == (
        {"bundle": {"number": 7}},
        {"bundle": {"number": 12, "inherited": 12}},
    )


async def test_rows_of_numbered_tables_are_numbered_through_splits_and_merges(site: Site) -> None:
    wheel = await Wheel.start(site)
    owner = wheel.owner
    first, second = owner.intervals
    await owner.write(owner.commit(first, table_rows={"out": 7, "panes": 2}))
    await owner.write(owner.commit(second, table_rows={"out": 5}))
    sequencers = await wheel.let_go()
    upper = await wheel.store.split(first.id, sequencers[first.id], 100)
    now = {row.id: row.sequencer for row in await wheel.rows()}
    merged = await wheel.store.merge(upper, second.id, now)
    lower, whole = await wheel.take()
    assert (lower.table_rows, whole.table_rows) == ({"out": 7, "panes": 2}, {})
    if isinstance(site, PostgresSite):
        await owner.write(owner.commit(whole.interval, table_rows={"out": 1}))
        rows = await site.query(
            "SELECT table_name, sender, rows, ended FROM {v} ORDER BY 1, 2", v="numbered_rows"
        )
        assert rows == [
            ("out", first.id, 7, False),
            ("out", second.id, 5, True),
            ("out", merged, 1, False),
            ("panes", first.id, 2, False),
        ]


async def test_the_part_that_is_cut_off_goes_on_from_the_number_of_its_parent(site: Site) -> None:
    wheel = await Wheel.start(site)
    owner = wheel.owner
    first, second = owner.intervals
    await owner.write(owner.commit(first, position=b'{"bundle": {"number": 7}}'))
    await owner.write(owner.commit(second, position=b'{"length": 3}'))
    sequencers = await wheel.let_go()
    made = {
        await wheel.store.split(row.id, sequencers[row.id], (row.slot_from + row.slot_to) // 2)
        for row in (first, second)
    }
    claims = await wheel.take()
    assert [claim.position for claim in claims if claim.interval.id in made] == [
        {"bundle": {"number": 7, "inherited": 7}},
        None,
    ]


async def test_an_interval_with_an_open_bundle_is_not_cut(site: Site) -> None:
    wheel = await Wheel.start(site)
    owner = wheel.owner
    first, second = owner.intervals
    opened = msgspec.json.encode({"bundle": {"number": 7, "open": ["0a" * 16]}})
    await owner.write(owner.commit(second, position=opened))
    sequencers = await wheel.let_go()
    before = await wheel.rows()
    for wrong in (
        wheel.store.split(second.id, sequencers[second.id], second.slot_from + 9),
        wheel.store.merge(first.id, second.id, sequencers),
    ):
        with pytest.raises(
            PlacementRefused, match=r"bundle 7 of interval \d+ is closed and not delivered"
        ):
            await wrong
    assert await wheel.rows() == before
    claims = {claim.interval.id: claim for claim in await wheel.take()}
    assert claims[second.id].position == {"bundle": {"number": 7, "open": ["0a" * 16]}}


async def test_who_owned_the_parts_is_fenced(site: Site) -> None:
    wheel = await Wheel.start(site)
    owner = wheel.owner
    first, second = owner.intervals
    sequencers = await wheel.let_go()
    await wheel.store.split(first.id, sequencers[first.id], 100)
    with pytest.raises(Fenced):
        await owner.lane.commit(owner.commit(first))
    with pytest.raises(Fenced):
        await wheel.store.split(first.id, sequencers[first.id], 50)
    lower, upper, _ = await wheel.rows()
    now = {row.id: row.sequencer for row in (lower, upper)}
    with pytest.raises(Fenced):
        await wheel.store.merge(lower.id, upper.id, {**now, first.id: sequencers[first.id]})
    await wheel.store.merge(lower.id, upper.id, now)
    for row in (lower, upper):
        owner.links[row.id] = replace(
            owner.links[first.id], interval_id=row.id, sequencer=row.sequencer, n=0
        )
        owner.bucket[row.id] = owner.bucket[first.id]
        with pytest.raises(Fenced):
            await owner.lane.commit(owner.commit(IntervalRow(row.id, 0, 0, 0, 0)))
        assert await wheel.store.claim(owner.worker, [row.id], sequencers=now) == []
    await owner.write(owner.commit(second))


async def test_what_is_not_ready_is_neither_split_nor_merged(site: Site) -> None:
    wheel = await Wheel.start(site)
    first, second = wheel.owner.intervals
    injector = wheel.owner.injector
    mine = {r.id: wheel.owner.links[r.id].sequencer for r in (injector, first, second)}
    with pytest.raises(PlacementRefused, match="owns"):
        await wheel.store.split(first.id, mine[first.id], 9)
    with pytest.raises(PlacementRefused, match="owns"):
        await wheel.store.merge(first.id, second.id, mine)
    await wheel.write()
    await wheel.let_go(fold=False)
    await wheel.store.release(wheel.owner.worker, mine)
    before = await wheel.rows()
    for wrong in (
        wheel.store.split(first.id, mine[first.id], 9),
        wheel.store.merge(first.id, second.id, mine),
    ):
        with pytest.raises(PlacementRefused, match="not folded"):
            await wrong
    assert await wheel.rows() == before
    await wheel.take()
    mine.update(await wheel.let_go())
    before = await wheel.rows()
    for at in (first.slot_from, first.slot_to, -1, SLOTS):
        with pytest.raises(PlacementRefused, match="cannot be split at"):
            await wheel.store.split(first.id, mine[first.id], at)
    for ids in ((second.id, first.id), (first.id, injector.id), (first.id, first.id)):
        with pytest.raises(PlacementRefused):
            await wheel.store.merge(*ids, mine)
    with pytest.raises(PlacementRefused, match="injector"):
        await wheel.store.split(injector.id, mine[injector.id], 0)
    with pytest.raises(Fenced):
        await wheel.store.split(4711, 1, 9)
    assert await wheel.rows() == before
    assert await wheel.store.merge(first.id, second.id, mine)


async def test_a_split_or_merge_keeps_no_bucket_and_loses_none(site: Site) -> None:
    wheel = await Wheel.start(site)
    owner, store = wheel.owner, wheel.store
    (old,) = await store.live_buckets()
    await wheel.write()
    first, second = owner.intervals
    new = await store.open_bucket("time", 0, BUCKET_HIGH, BUCKET_HIGH + 3600 * SECOND)
    owner.stamp = new.low
    await owner.write(owner.commit(owner.injector, bucket=new.id))
    link = owner.links[owner.injector.id]
    assert await store.fold(owner.injector.id, link.sequencer, 0, link.n)
    sequencers = await wheel.let_go()
    await store.merge(first.id, second.id, sequencers)
    await store.advance_gc_watermark()
    assert not await store.drop_bucket(old), "the floors of its parts keep it"
    (claim,) = await wheel.take()
    assert (claim.bucket, claim.n) == (new.id, 0)
    owner.stamp = new.low + SECOND
    await owner.write(owner.commit(bucket=new.id))
    ((row_id, sequencer),) = (await wheel.let_go()).items()
    await store.split(row_id, sequencer, 77)
    await store.advance_gc_watermark()
    before = await wheel.sight()
    assert await store.drop_bucket(old), "nothing of what is gone keeps it"
    assert (await wheel.sight())[:2] == before[:2]
    assert [c.bucket for c in await wheel.take()] == [new.id, new.id]
    await wheel.write(first=30)


async def test_parts_may_be_wanted_before_they_are_made(site: Site) -> None:
    wheel = await Wheel.start(site)
    row = wheel.owner.intervals[0]
    sequencers = await wheel.let_go()
    me = await worker(wheel.store)
    await wheel.store.wish([Wish(row.id, sequencers[row.id], me, "", pinned=True)])
    await wheel.store.wish([SplitWish(row.id, sequencers[row.id], 9, "")])
    await wheel.store.split(row.id, sequencers[row.id], 9)
    lower, upper, _ = await wheel.rows()
    for part in (lower, upper):
        assert (part.wanted_by, part.pinned, part.split_at) == (me, True, None)
    now = {part.id: part.sequencer for part in (lower, upper)}
    await wheel.store.wish(
        [Unpin(upper.id, upper.sequencer, ""), MergeWish(lower.id, now[lower.id], upper.id, "")]
    )
    await wheel.store.merge(lower.id, upper.id, now)
    whole = (await wheel.rows())[0]
    assert (whole.wanted_by, whole.pinned, whole.merge_with) == (me, True, None)


async def test_of_two_splits_at_once_one_is_made(site: Site) -> None:
    wheel = await Wheel.start(site)
    row, second = wheel.owner.intervals
    sequencers = await wheel.let_go()
    other, third = await site.another(), await site.another()
    me = await worker(other)
    done = await asyncio.gather(
        wheel.store.split(row.id, sequencers[row.id], 10),
        other.split(row.id, sequencers[row.id], 20),
        third.merge(row.id, second.id, sequencers),
        other.claim(me, [row.id], sequencers=sequencers),
        return_exceptions=True,
    )
    made = [d for d in done if isinstance(d, int) or (isinstance(d, list) and d)]
    assert len(made) == 1, done
    assert all(isinstance(d, (int, list, Fenced, PlacementRefused)) for d in done)


async def test_a_merge_waits_for_what_is_on_the_wire(postgres: PostgresSite) -> None:
    """A commit of an owner that let go too early is in the merged interval, or refuses it."""
    wheel = await Wheel.start(postgres)
    first, second = wheel.owner.intervals
    sequencers = await wheel.let_go()
    connection = connection_of(lane_of(wheel.owner))
    await connection.execute("BEGIN")
    await lane_of(wheel.owner)._append(connection, wheel.owner.commit(second))
    other = await postgres.another()
    task = asyncio.create_task(other.merge(first.id, second.id, sequencers))
    await until(lambda: waiting_for_a_lock(postgres))
    await connection.execute("COMMIT")
    with pytest.raises(PlacementRefused, match="not folded"):
        await task


async def test_views_beside_a_split_see_all_or_nothing(postgres: PostgresSite) -> None:
    wheel = await Wheel.start(postgres)
    await wheel.write()
    row, second = wheel.owner.intervals
    sequencers = await wheel.let_go()
    async with session(postgres.schema) as reader:
        await reader.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        text = postgres.schema.compose(
            "SELECT computation, low_watermark::text, intervals FROM {w} ORDER BY 1",
            w="watermarks",
        )
        before = await (await reader.execute(text)).fetchall()
        await wheel.store.merge(row.id, second.id, sequencers)
        assert await (await reader.execute(text)).fetchall() == before
    after = await postgres.query(
        "SELECT low_watermark::text, intervals FROM {w} WHERE computation = 'count'",
        w="watermarks",
    )
    assert after == [(before[0][1], 1)]


# -- any sequence of splits and merges -------------------------------------------------------------

Cut = tuple[str, int, int]
cuts: st.SearchStrategy[Cut] = st.one_of(
    st.tuples(st.just("split"), st.integers(0, 20), st.integers(1, SLOTS - 1)),
    st.tuples(st.just("merge"), st.integers(0, 20), st.just(0)),
    st.tuples(st.just("write"), st.integers(0, 40), st.integers(0, 30)),
)


async def _take_steps(site: Site, steps: Sequence[Cut]) -> None:
    wheel = await Wheel.start(site)
    store = wheel.store
    await wheel.write()
    known = {(s.key, s.entry): s.value for s in await site.states()}
    least = await wheel.watermarks()
    await wheel.take()
    for what, number, at in steps:
        if what == "write":
            row = wheel.owner.intervals[number % len(wheel.owner.intervals)]
            last = wheel.owner.links[row.id]
            commit = wheel.owner.commit(
                row,
                input_watermark=max(last.input_watermark, number),
                low_watermark=max(last.low_watermark, at),
            )
            wheel.owner.fill(commit, 3, first=number)
            commit.seen, commit.productions, commit.dead_letters = {}, [], []
            await wheel.owner.write(commit)
            known.update(
                {
                    (msgspec.json.decode(s.key), s.entry): {"n": msgspec.json.decode(s.key)}
                    for run in commit.states
                    for s in changes_of(run)
                }
            )
        else:
            sequencers = await wheel.let_go()
            before = await wheel.sight()
            rows = await wheel.rows()
            place = number % len(rows)
            if what == "split" and rows[place].slot_from < at < rows[place].slot_to:
                await store.split(rows[place].id, sequencers[rows[place].id], at)
            elif what == "merge" and place + 1 < len(rows):
                await store.merge(rows[place].id, rows[place + 1].id, sequencers)
            assert await wheel.sight() == before
            after = await wheel.rows()
            assert all(
                row.sequencer > max(sequencers.values())
                for row in after
                if row.id not in sequencers or row.sequencer != sequencers[row.id]
            )
        claims = await wheel.take()
        edges = [(c.interval.slot_from, c.interval.slot_to) for c in claims]
        assert edges[0][0] == 0
        assert edges[-1][1] == SLOTS
        assert all(a[1] == b[0] for a, b in itertools.pairwise(edges))
        now = (min(c.input_watermark for c in claims), min(c.low_watermark for c in claims))
        assert now[0] >= least[0]
        assert now[1] >= least[1]
        least = now
        assert {(s.key, s.entry): s.value for s in await site.states()} == known
        timers: list[TimerChange] = [t for claim in claims for t in claim.timers]
        shown = await site.timers()
        assert sorted((t.slot, msgspec.json.decode(t.key), t.due) for t in timers) == sorted(
            (t.slot, t.key, t.due) for t in shown
        )
        tails: list[StateChange] = [s for claim in claims for s in claim.states]
        for key, entry in known:
            slot, text = encode_key(key)[1], encode_key(key)[0]
            found = await store.load_entry(wheel.computation, slot, text, entry)
            assert found is not None or any((s.key, s.entry) == (text, entry) for s in tails)
        logs = [log.id for claim in claims for log in claim.logs]
        assert len(logs) == len(set(logs))
    assert await wheel.watermarks() == least


quick = settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@quick
@given(steps=st.lists(cuts, min_size=4, max_size=14))
async def test_in_memory_any_cuts_leave_every_slot_to_one(steps: list[Cut]) -> None:
    await _take_steps(MemorySite(), steps)


@settings(quick, max_examples=6)
@given(steps=st.lists(cuts, min_size=4, max_size=10))
@pytest.mark.parametrize("version", [15, 18])
async def test_in_postgres_any_cuts_leave_every_slot_to_one(
    new_schema: Callable[[int], Schema], version: int, steps: list[Cut]
) -> None:
    async with contextlib.aclosing(await PostgresSite.open(new_schema(version))) as site:
        await _take_steps(site, steps)
