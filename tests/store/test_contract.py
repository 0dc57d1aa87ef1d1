"""The contract of `millwheel.store.port`, held by the store in memory, Postgres 15 and 18."""

from __future__ import annotations

import asyncio
import itertools
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from operator import itemgetter
from typing import Any, ClassVar, Literal

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from millwheel.core.codec import encode_key
from millwheel.core.model import MIN_TIME, SLOTS, Delivery, record_id
from millwheel.errors import (
    BucketGone,
    CommitUnknown,
    DeployRefused,
    Fenced,
    InvariantBroken,
    MillwheelError,
    StatementError,
    StoreError,
    StoreUnavailable,
    StoreWentBack,
)
from millwheel.sinks import Table
from millwheel.store.memory import jsonb_text
from millwheel.store.port import Store
from millwheel.store.port.buckets import CLOSE_AHEAD_MICROS, EARLY_CLOSE_MICROS, Bucket
from millwheel.store.port.commit import Commit, IntervalCommit
from millwheel.store.port.seen import SeenIds
from millwheel.store.port.states import StateRun
from millwheel.store.postgres.rows import ARRAY_ROWS
from tests.support.store_sites import (
    BUCKET_HIGH,
    COUNT,
    COUNTS,
    LOG,
    REFUSED,
    SECOND,
    START,
    WORDS,
    Counted,
    MemorySite,
    Owner,
    Site,
    as_chunks,
    deploy,
    look,
    row,
)

pytestmark = pytest.mark.newest

SIZES = [1, ARRAY_ROWS - 1, ARRAY_ROWS, 3 * ARRAY_ROWS]
"""Rows of a commit: as JSON, and as arrays."""

SHAPES = list(itertools.product([1, ARRAY_ROWS], [False, True]))
"""Both ways to write, each with and without rows of the user's (COMMIT waits for those)."""

a_few = settings(
    max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


# -- deploy -------------------------------------------------------------------------------


async def test_a_fresh_deploy_makes_the_graph_its_first_bucket_and_its_first_commits(
    site: Site,
) -> None:
    deployment = await deploy(site.store)
    assert list(deployment.computations) == ["lines", "count"]
    assert list(deployment.streams) == ["words", "totals"]
    assert [(r.computation, r.slot_from, r.slot_to) for r in deployment.intervals] == [
        (deployment.computations["lines"], 0, 1),
        (deployment.computations["count"], 0, SLOTS // 2),
        (deployment.computations["count"], SLOTS // 2, SLOTS),
    ]
    assert len({r.sequencer for r in deployment.intervals}) == 3
    (bucket,) = await site.store.live_buckets()
    assert (bucket.family, bucket.log, bucket.low, bucket.high) == ("time", 0, 0, BUCKET_HIGH)
    for claim in await site.store.claim(str(uuid.uuid4()), [r.id for r in deployment.intervals]):
        assert (claim.n, claim.bucket, claim.stamp, claim.folded) == (0, bucket.id, START, 0)
        assert (claim.input_watermark, claim.low_watermark) == (MIN_TIME, MIN_TIME)
        assert (claim.acked, claim.position, claim.counters) == ({}, None, {})
        assert (claim.states, claim.timers) == ([], [])


async def test_the_same_deploy_again_changes_nothing(site: Site) -> None:
    first = await deploy(site.store)
    again = await deploy(await site.another(), bucket_high=BUCKET_HIGH + SECOND)
    assert again == first
    assert len(await site.store.live_buckets()) == 1


async def test_two_first_deploys_at_once_make_one_pipeline(site: Site) -> None:
    one, other = await asyncio.gather(deploy(site.store), deploy(await site.another()))
    assert one == other
    assert len(await site.store.live_buckets()) == 1


async def test_another_graph_is_refused_with_every_difference(site: Site) -> None:
    await deploy(site.store)
    graph = {"nodes": {"lines": {"writes": ["words"], "delivery": "weak"}, "total": {}}}
    with pytest.raises(DeployRefused) as caught:
        await deploy(site.store, graph=graph)
    for part in (
        "delivery: another way to process",
        "millwheel remove wheel count",
        "millwheel drop",
    ):
        assert part in str(caught.value)


CHANGED_STATE = {"type": "object", "n": "string"}


async def test_a_changed_state_type_without_a_version_is_refused(site: Site) -> None:
    await deploy(site.store)
    with pytest.raises(DeployRefused, match=r"state of 'count': the type changed") as caught:
        await deploy(site.store, count=replace(COUNT, state=CHANGED_STATE))
    assert 'n: stored "int", this code "string"' in str(caught.value)
    assert "version = 3" in str(caught.value)


async def test_a_changed_stream_type_without_a_version_is_refused(site: Site) -> None:
    await deploy(site.store)
    with pytest.raises(DeployRefused, match=r"stream 'words': the type changed"):
        await deploy(site.store, words=replace(WORDS, type={"type": "integer"}))


async def test_a_newer_version_needs_every_migration_and_bars_the_older_code(site: Site) -> None:
    await deploy(site.store)
    newer = replace(COUNT, state=CHANGED_STATE, version=4, migrates_from=[1, 3])
    with pytest.raises(DeployRefused, match=r"no entry for version 2"):
        await deploy(site.store, count=newer)
    await deploy(site.store, count=replace(newer, migrates_from=[2, 3]))
    await deploy(site.store, count=replace(newer, migrates_from=[]))
    with pytest.raises(DeployRefused, match=r"version 4, but this code knows only version 2"):
        await deploy(site.store)


async def test_a_newer_stream_needs_its_migration(site: Site) -> None:
    await deploy(site.store)
    newer = replace(WORDS, version=2, type={"type": "integer"})
    with pytest.raises(DeployRefused, match=r"no entry for version 1"):
        await deploy(site.store, words=newer)
    await deploy(site.store, words=replace(newer, migrates_from=[1]))


async def test_a_refused_deploy_changes_nothing(site: Site) -> None:
    await deploy(site.store)
    newer = replace(COUNT, state=CHANGED_STATE, version=3, migrates_from=[2])
    with pytest.raises(DeployRefused):
        await deploy(site.store, count=newer, words=replace(WORDS, type={}))
    await deploy(site.store)


async def test_a_table_that_does_not_fit_its_rows_is_refused(site: Site) -> None:
    class Other(msgspec.Struct):
        word: int
        when: float

    await deploy(site.store)
    with pytest.raises(DeployRefused, match=r"table 'counts', column 'word'") as caught:
        await deploy(site.store, tables=(Table("counts", Other),))
    assert (
        'another type of a column, which may not have each stored value ("text" → "bigint")'
        in str(caught.value)
    )
    assert "column 'when': an additional column that every row needs" in str(caught.value)


async def test_a_table_without_the_key_of_its_rows_is_refused(site: Site) -> None:
    await deploy(site.store)
    with pytest.raises(DeployRefused, match=r"order"):
        await deploy(site.store, tables=(Table("order", Counted, key=("word",)),))


# -- claims -------------------------------------------------------------------------------


async def test_a_claim_raises_the_sequencer_above_all_others(site: Site) -> None:
    owner = await Owner.take(site.store)
    highest = max(claim.interval.sequencer for claim in owner.claims.values())
    assert all(r.sequencer < highest for r in owner.deployment.intervals)
    first, second = owner.intervals
    (claim,) = await owner.claim(first)
    assert claim.interval.sequencer > highest
    (other,) = await (await site.another()).claim(str(uuid.uuid4()), [second.id])
    assert other.interval.sequencer > claim.interval.sequencer


async def test_two_claims_at_once_never_get_the_same_sequencer(site: Site) -> None:
    """Else the fence would let both owners pass (I3)."""
    ids = [row.id for row in (await deploy(site.store)).intervals]
    for _ in range(20):
        one, two = await asyncio.gather(
            *(site.store.claim(str(uuid.uuid4()), ids) for _ in range(2))
        )
        for mine, yours in zip(one, two, strict=True):
            assert mine.interval.sequencer != yours.interval.sequencer


async def test_claims_come_in_the_order_asked_for(site: Site) -> None:
    """The engine takes the n-th interval of an injector to be its n-th partition."""
    many = replace(COUNT, slots=[(n, n + 1) for n in range(12)])
    deployment = await deploy(site.store, count=many)
    ids = [r.id for r in deployment.intervals]
    worker = str(uuid.uuid4())
    for some in (ids[::2], ids, ids[1::3], ids, list(reversed(ids)), ids):
        assert [c.interval.id for c in await site.store.claim(worker, some)] == some


async def test_a_claim_tells_the_last_commit(site: Site) -> None:
    owner = await Owner.take(site.store)
    first, second = owner.intervals
    acked = msgspec.json.encode({"7": [3, [[5, 6], [9, 9]]], "12": [0, []]})
    told: dict[str, Any] = {"input_watermark": 17, "low_watermark": 11, "acked": acked}
    told |= {"position": b'{"offset": 3, "name": "\\u00e9"}', "counters": b'{"processed": 7}'}
    await owner.write(owner.commit(first))
    await owner.write(owner.commit(first, **told))
    await owner.write(owner.commit(second))
    claim, other = await (await site.another()).claim(owner.worker, [first.id, second.id])
    assert (claim.n, claim.stamp) == (2, owner.stamp - SECOND)
    assert (claim.input_watermark, claim.low_watermark) == (17, 11)
    assert claim.acked == {7: (3, [(5, 6), (9, 9)]), 12: (0, [])}
    assert claim.position == {"offset": 3, "name": "é"}
    assert claim.counters == {"processed": 7}
    assert (other.n, other.acked, other.position) == (1, {}, None)


async def test_a_claim_gives_the_unfolded_state_the_last_of_each_entry(site: Site) -> None:
    owner = await Owner.take(site.store)
    row_ = owner.interval_of("a")
    for values in ({"": 1, "m/x": 1, "m/y": 1}, {"": 2, "m/x": None}, {"m/y": 3}):
        commit = owner.commit(row_)
        commit.states = [owner.state("a", value, entry) for entry, value in values.items()]
        await owner.write(commit)
    (claim,) = await owner.claim(row_)
    slot = encode_key("a")[1]
    expected = [("", b"2", 2), ("m/x", None, 2), ("m/y", b"3", 3)]
    assert sorted((s.entry, s.value, s.n) for s in claim.states) == expected
    assert {(s.interval_id, s.computation, s.slot, s.key, s.version) for s in claim.states} == {
        (row_.id, owner.computation, slot, b'"a"', 2)
    }
    assert await site.store.fold(row_.id, claim.interval.sequencer, 0, 2)
    (claim,) = await owner.claim(row_)
    assert claim.folded == 2
    assert [(s.entry, s.value, s.n) for s in claim.states] == [("m/y", b"3", 3)]


@pytest.mark.parametrize("count", [3, 500])
async def test_entries_are_stored_under_their_names_however_many_a_commit_has(
    site: Site, count: int
) -> None:
    owner = await Owner.take(site.store)
    row_ = owner.interval_of("a")
    values = {"": 0} | {f"m/{number}é": number for number in range(1, count)}
    commit = owner.commit(row_)
    commit.states = [owner.state("a", value, entry) for entry, value in values.items()]
    await owner.write(commit)
    (claim,) = await owner.claim(row_)
    stored = {state.entry: state.value for state in claim.states}
    assert stored == {entry: b"%d" % value for entry, value in values.items()}


async def test_a_claim_gives_all_pending_timers_of_its_own_slots(site: Site) -> None:
    owner = await Owner.take(site.store)
    keys = [f"k{n}" for n in range(8)]
    commit = owner.commit()
    commit.timers = [owner.timer(key, START + n, "t") for n, key in enumerate(keys)]
    commit.timers += [owner.timer("k0", START + 50, "t", "wall"), owner.timer("k1", START, "t2")]
    await owner.write(commit)
    for row_ in owner.intervals:
        assert await site.store.fold(row_.id, owner.links[row_.id].sequencer, 0, 1)
    commit = owner.commit()
    commit.timers = [
        owner.timer("k0", None, "t"),  # fired
        owner.timer("k2", START + 99, "t"),  # set anew
        owner.timer("k3", None, "t"),
        owner.timer("k3", START + 7, "new"),
        owner.timer("k4", None, "never set"),
    ]
    await owner.write(commit)
    expected = {("k0", "wall", "t", 50), ("k1", "watermark", "t", 1), ("k1", "watermark", "t2", 0)}
    expected |= {("k2", "watermark", "t", 99), ("k3", "watermark", "new", 7)}
    expected |= {(f"k{n}", "watermark", "t", n) for n in range(4, 8)}
    claims = await owner.claim(*owner.intervals)
    found = set()
    for claim in claims:
        for t in claim.timers:
            assert t.due is not None
            assert t.hold == t.due + 1
            assert t.interval_id == claim.interval.id
            assert t.slot in range(claim.interval.slot_from, claim.interval.slot_to)
            found.add((msgspec.json.decode(t.key), t.kind, t.tag, t.due - START))
    assert found == expected
    assert len(found) == sum(len(claim.timers) for claim in claims)


async def test_each_claim_opens_a_log_and_tells_the_live_ones(site: Site) -> None:
    owner = await Owner.take(site.store)
    row_ = owner.intervals[0]
    source = owner.claims[owner.injector.id]
    assert [(log.source) for log in source.logs] == ["file lines.txt"]
    assert source.new_log == 0
    first = owner.log(row_)
    assert owner.claims[row_.id].logs == []
    (claim,) = await owner.claim(row_)
    assert [(log.id, log.source) for log in claim.logs] == [(first, None)]
    assert claim.new_log > first
    (claim,) = await owner.claim(row_)
    second = claim.logs[-1].id
    assert [log.id for log in claim.logs] == [first, second]
    await site.store.retire_logs([first])
    await site.store.retire_logs([first])
    (claim,) = await owner.claim(row_)
    assert [log.id for log in claim.logs] == [second, second + 2]
    (again,) = await owner.claim(owner.injector)
    assert (again.logs, again.new_log) == (source.logs, 0)


async def test_nothing_of_a_retired_log_is_pending(site: Site) -> None:
    """Commits do not tell of it any more what is acknowledged, and its rows are still there."""
    owner = await Owner.take(site.store)
    row_ = owner.intervals[0]
    expected = []
    for number in (1, 2):  # so many in a log each
        commit = owner.commit(row_)
        commit.productions = [owner.production("key", n, interval=row_) for n in range(number)]
        await owner.write(commit)
        expected += [(p.log, p.seq) for p in commit.productions]
        await owner.claim(row_)
    assert await site.pending() == expected
    (first, *_), *rest = expected
    await site.store.retire_logs([first])
    assert await site.pending() == rest
    await site.store.retire_logs([log for log, _ in rest])
    assert await site.pending() == []


# -- commits ------------------------------------------------------------------------------


@pytest.mark.parametrize("count", SIZES)
async def test_every_kind_of_row_is_there_after_its_commit(site: Site, count: int) -> None:
    owner = await Owner.take(site.store)
    commit = owner.fill(owner.commit(), count)
    commit.rows = [(COUNTS, row(f"w{n:03}", n)) for n in range(count)]
    commit.rows += [(LOG, row(f"w{n:03}", n)) for n in range(count)]
    await owner.write(commit)
    seen = await look(site, owner)
    keys = {f"key {n}" for n in range(count)}
    assert {(s.computation, s.key, s.entry, s.version) for s in seen.states} == {
        ("count", key, "", 2) for key in keys
    }
    assert all(s.value == {"n": s.key} for s in seen.states)
    assert all(s.slot == encode_key(s.key)[1] for s in seen.states)
    due = commit.stamp + SECOND
    assert {(t.computation, t.key, t.kind, t.tag, t.due, t.hold) for t in seen.timers} == {
        ("count", key, "watermark", "", due, due + 1) for key in keys
    }
    assert seen.pending == [(owner.log(), n) for n in range(count)]
    assert seen.seen[commit.bucket] == sorted(
        (id_, slot) for slot, _, id_ in map(owner.seen, range(count))
    )
    assert seen.numbers[commit.bucket] == {1: set(range(count))}
    assert seen.counts == seen.log == [row(f"w{n:03}", n) for n in range(count)]
    assert seen.dead_letters == commit.dead_letters


HARD_TEXTS = [
    "",
    'it\'s "quoted" \\ back\\slash',
    "tab\tline\nreturn\r\x01\x1f\x7f",
    "\\N",
    "{}",
    "NULL",
    "%s %(x)s $1 :x",
    "Zürich → 東京 🛩 \u0301\u200f",
    "x" * 700,
    " leading and trailing ",
]
HARD_VALUES: list[Any] = [
    *HARD_TEXTS,
    0,
    -(2**63),
    2**64 - 1,
    1.5,
    -0.0,
    1e-300,
    1.7976931348623157e308,
    True,
    [],
    {},
    [None, [1, {"b": 1, "aa": 2, "a": 3}]],
    {text: text for text in HARD_TEXTS},
    "long " * 200_000,
]


@pytest.mark.parametrize("count", [1, ARRAY_ROWS])
async def test_hard_keys_and_values_come_back_as_they_were(site: Site, count: int) -> None:
    owner = await Owner.take(site.store)
    keys: list[Any] = [*HARD_TEXTS, 0, -(2**63), ("a", 1), ("", "'")]
    cases = list(itertools.zip_longest(keys, HARD_VALUES, fillvalue="filler"))
    filler = [f"filler {n}" for n in range(count - 1)]
    for key, value in cases:
        commit = owner.commit()
        commit.states = [owner.state(key, value), owner.state(key, [value], f"m/{key}")]
        commit.states += [owner.state(other, {}) for other in filler]
        commit.productions = [owner.production(key, value)]
        commit.productions += [owner.production(other, 0) for other in filler]
        commit.timers = [owner.timer(key, START, str(key))]
        commit.rows = [(COUNTS, row(str(key), 1, note=str(key), parts={str(key): 1}))]
        await owner.write(commit)
    for row_ in owner.intervals:
        link = owner.links[row_.id]
        assert await site.store.fold(row_.id, link.sequencer, 0, link.n)
    wanted = dict(cases)
    for key, value in wanted.items():
        key_text, slot = encode_key(key)
        (entries,) = await site.store.load_keys(owner.computation, [(slot, key_text)], 100)
        stored = {entry: (msgspec.json.decode(text), version) for entry, text, version in entries}
        assert stored[""] == (value, 2)
        assert stored[f"m/{key}"] == ([wanted[key]], 2) or key == "filler"
        assert await site.store.load_entry(owner.computation, slot, key_text, f"m/{key}")
    last = {str(key): row(str(key), 1, note=str(key), parts={str(key): 1}) for key, _ in cases}
    found = [(*r[:4], msgspec.json.encode(r[4]).decode()) for r in await site.rows(COUNTS)]
    assert found == [last[word] for word in sorted(last)]
    sent = [p async for p in site.store.read_productions(owner.log(), 0)]
    firsts = sent[::count]
    assert [(p.key, msgspec.json.decode(p.value)) for p in firsts] == [
        (encode_key(key)[0], value) for key, value in cases
    ]
    assert [p.stream for p in sent] == ["totals"] * len(sent)
    assert {p.version for p in sent} == {3}


plain_text = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=40)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | plain_text
    | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(plain_text, inner, max_size=4),
    max_leaves=12,
)  # fmt: skip


@a_few
@given(values=st.lists(json_values.filter(lambda v: v is not None), min_size=1, max_size=40))
async def test_state_reads_as_jsonb_whatever_the_store(site: Site, values: list[Any]) -> None:
    """The engine compares what it writes with what it reads: both stores spell it alike."""
    worker = str(uuid.uuid4())
    owner = Owner(site.store, await deploy(site.store), worker)
    await owner.claim()
    owner.lane = await site.store.open_lane()
    row_ = owner.interval_of("k")
    folded = owner.claims[row_.id].folded
    commit = owner.commit(row_)
    commit.states = [owner.state("k", value, f"{n:03}") for n, value in enumerate(values)]
    await owner.write(commit)
    await owner.lane.close()
    expected = [jsonb_text(msgspec.json.encode(value)) for value in values]
    (claim,) = await owner.claim(row_)
    tail = {s.entry: s.value for s in claim.states}
    assert [tail[f"{n:03}"] for n in range(len(values))] == expected
    assert await site.store.fold(row_.id, claim.interval.sequencer, folded, claim.n)
    found = await site.store.scan_entries(
        owner.computation, encode_key("k")[1], b'"k"', "", "~", len(values)
    )
    assert [value for _, value, _ in found] == expected


@pytest.mark.parametrize("count", [1, 2 * ARRAY_ROWS])
async def test_commits_of_one_interval_leave_the_other_alone(site: Site, count: int) -> None:
    owner = await Owner.take(site.store)
    first, second = owner.intervals
    for _ in range(3):
        await owner.write(owner.fill(owner.commit(first), count, first=1000 * owner.stamp))
    await owner.write(owner.commit(second))
    claims = await owner.claim(first, second)
    assert [claim.n for claim in claims] == [3, 1]


async def test_an_empty_commit_counts(site: Site) -> None:
    owner = await Owner.take(site.store)
    await owner.write(owner.commit())
    await owner.write(owner.commit(owner.injector, position=b'{"row": 2}'))
    assert [claim.n for claim in await owner.claim()] == [1, 1, 1]


# -- the fence ------------------------------------------------------------------------------


def _stale_sequencer(link: IntervalCommit) -> IntervalCommit:
    return replace(link, sequencer=link.sequencer - 1)


def _sequencer_of_nobody(link: IntervalCommit) -> IntervalCommit:
    return replace(link, sequencer=link.sequencer + 1000)


def _skipped(link: IntervalCommit) -> IntervalCommit:
    return replace(link, n=link.n + 1)


def _repeated(link: IntervalCommit) -> IntervalCommit:
    return replace(link, n=link.n - 1)


def _from_the_beginning(link: IntervalCommit) -> IntervalCommit:
    return replace(link, n=0)


Breach = Callable[[IntervalCommit], IntervalCommit]
BREACHES: list[tuple[Breach, type[MillwheelError]]] = [
    (_stale_sequencer, Fenced),
    (_sequencer_of_nobody, Fenced),
    (
        _skipped,
        StoreWentBack,
    ),  # the interval is still its owner's: the store's chain is another one
    (_repeated, StoreWentBack),
    (_from_the_beginning, StoreWentBack),
]


@pytest.mark.parametrize(("breach", "refusal"), BREACHES)
async def test_a_commit_that_the_fence_refuses_leaves_no_trace(
    site: Site, breach: Breach, refusal: type[MillwheelError]
) -> None:
    owner = await Owner.take(site.store)
    await owner.write(owner.fill(owner.commit(), 2))
    for round_, (count, with_rows) in enumerate(SHAPES, 1):
        before = await look(site, owner)
        commit = owner.fill(owner.commit(), count, first=100 * round_)
        if with_rows:
            commit.rows = [(COUNTS, row("a", 1)), (LOG, row("a", 1))]
            commit.statements = [("SELECT 1", ())]
        good = commit.intervals[0]
        commit.intervals[0] = breach(good)
        with pytest.raises(refusal):
            await owner.lane.commit(commit)
        assert await look(site, owner) == before
        commit.intervals[0] = good  # the lane goes on, and nothing of the other's was taken
        await owner.write(commit)
    claims = await site.store.claim(owner.worker, [r.id for r in owner.intervals])
    assert [claim.n for claim in claims] == [1 + len(SHAPES)] * 2


async def test_the_fence_holds_on_the_first_commit_of_a_lane(site: Site) -> None:
    """Nothing is prepared on its connection yet, and much of it never will be."""
    owner = await Owner.take(site.store)
    commit = owner.fill(owner.commit(), 3)
    good = list(commit.intervals)
    commit.intervals = [replace(link, sequencer=1) for link in good]
    for _ in range(2):
        with pytest.raises(Fenced):
            await owner.lane.commit(commit)
    commit.intervals = good
    await owner.write(commit)
    assert len((await look(site, owner)).states) == 3


async def test_the_owner_before_is_fenced(site: Site) -> None:
    """Figure 12: from the claim on, nothing of the owner before becomes durable."""
    zombie = await Owner.take(site.store)
    await zombie.write(zombie.fill(zombie.commit(), 3))
    store = await site.another()
    successor = await Owner.take(store, await deploy(store))
    before = await look(site, zombie)
    for _ in range(2):
        with pytest.raises(Fenced):
            await zombie.lane.commit(zombie.fill(zombie.commit(), 3, first=10))
    assert await look(site, zombie) == before
    await successor.write(successor.fill(successor.commit(), 3, first=20))


@pytest.mark.parametrize("count", [3, ARRAY_ROWS])
async def test_the_fence_speaks_before_anything_else_does(site: Site, count: int) -> None:
    """What a zombie would store the successor has stored: that is no broken invariant."""
    zombie = await Owner.take(site.store)
    late = zombie.fill(zombie.commit(), count)
    store = await site.another()
    successor = await Owner.take(store, await deploy(store))
    commit = successor.commit()
    commit.bucket, commit.seen = late.bucket, late.seen
    commit.states, commit.productions = late.states, late.productions
    await successor.write(commit)
    with pytest.raises(Fenced):
        await zombie.lane.commit(late)


async def test_one_fenced_interval_takes_its_whole_commit_down(site: Site) -> None:
    owner = await Owner.take(site.store)
    first, second = owner.intervals
    await (await site.another()).claim(str(uuid.uuid4()), [second.id])
    with pytest.raises(Fenced):
        await owner.lane.commit(owner.fill(owner.commit(), 5))
    assert (await look(site, owner)).states == []
    await owner.write(owner.fill(owner.commit(first), 5))


async def test_a_commit_cannot_be_repeated_into_another_bucket(site: Site) -> None:
    """(interval, n) is unique over all buckets, though no index spans them."""
    owner = await Owner.take(site.store)
    await owner.write(owner.commit())
    commit = owner.commit()
    await owner.lane.commit(commit)
    bucket = await site.store.open_bucket("time", 0, BUCKET_HIGH, BUCKET_HIGH + SECOND)
    with pytest.raises(StoreWentBack):
        await owner.lane.commit(replace(commit, bucket=bucket.id))
    assert [claim.n for claim in await owner.claim(*owner.intervals)] == [2, 2]


async def test_the_chain_goes_on_in_the_next_bucket(site: Site) -> None:
    owner = await Owner.take(site.store)
    first, second = owner.intervals
    old = max(owner.bucket.values())
    new = (await site.store.open_bucket("time", 0, BUCKET_HIGH, BUCKET_HIGH + SECOND)).id
    await owner.write(owner.commit(first))
    await owner.write(owner.fill(owner.commit(first, bucket=new), 4))
    wrong = owner.commit(first, bucket=new)
    wrong.intervals[0].previous_bucket = old  # its last commit stands in the other one
    with pytest.raises(StoreWentBack):
        await owner.lane.commit(wrong)
    both = owner.commit(bucket=new)  # their last commits stand in two buckets
    assert {link.previous_bucket for link in both.intervals} == {old, new}
    await owner.write(both)
    claims = await owner.claim(first, second)
    assert [(claim.n, claim.bucket) for claim in claims] == [(3, new), (1, new)]


async def test_a_commit_into_a_bucket_that_is_gone_is_a_broken_invariant(site: Site) -> None:
    owner = await Owner.take(site.store)
    commit = owner.fill(owner.commit(), 1)
    with pytest.raises(InvariantBroken, match="bucket"):
        await owner.lane.commit(replace(commit, bucket=4711))
    commit.seen = {4711: SeenIds([owner.seen(1)])}
    with pytest.raises(InvariantBroken, match="bucket"):
        await owner.lane.commit(commit)
    assert (await look(site, owner)).states == []


# -- ids seen, statements refused --------------------------------------------------------------


@pytest.mark.parametrize("known", ["a user's id", "a number"])
async def test_a_record_committed_before_cannot_come_through_again(known: str, site: Site) -> None:
    owner = await Owner.take(site.store)
    await owner.write(owner.fill(owner.commit(), 1))
    for round_, (count, with_rows) in enumerate(SHAPES, 1):
        before = await look(site, owner)
        again = owner.fill(owner.commit(), count, first=100 * round_)
        seen = again.seen[again.bucket]
        if known == "a number":
            seen.add_numbers(owner.computation, 1, (0,))
        else:
            seen.rows = [*seen.rows, owner.seen(0)]
        if with_rows:
            again.rows = [(LOG, row("a", 1))]
        with pytest.raises(InvariantBroken, match="committed before"):
            await owner.lane.commit(again)
        assert await look(site, owner) == before
        await owner.write(owner.fill(owner.commit(), count, first=100 * round_ + 50))


async def test_an_id_counts_per_bucket_and_per_computation(site: Site) -> None:
    owner = await Owner.take(site.store)
    other = await site.store.open_bucket("named", 0, 0, 10)
    commit = owner.commit()
    slot, computation, id_ = owner.seen(1)
    commit.seen = {
        commit.bucket: SeenIds([(slot, computation, id_), (slot, computation + 1, id_)]),
        other.id: SeenIds([(slot, computation, id_)]),
    }
    for seen, of in ((commit.seen[commit.bucket], (0, 1)), (commit.seen[other.id], (0,))):
        for more in of:
            seen.add_numbers(computation + more, 1, range(3))
    await owner.write(commit)


async def test_a_production_cannot_be_written_twice(site: Site) -> None:
    owner = await Owner.take(site.store)
    commit = owner.commit()
    commit.productions = [owner.production("a", 1)]
    await owner.write(commit)
    again = owner.commit()
    again.productions = commit.productions
    with pytest.raises(InvariantBroken):
        await owner.lane.commit(again)
    assert [claim.n for claim in await owner.claim(*owner.intervals)] == [1, 1]


@pytest.mark.parametrize("count", [1, ARRAY_ROWS])
async def test_productions_cannot_be_written_over_others(site: Site, count: int) -> None:
    """As they would be if a worker counted on from a number that is not the last of the log."""
    owner = await Owner.take(site.store)
    commit = owner.commit()
    made = [owner.production(f"key {n}", n) for n in range(count + 3)]
    commit.productions = as_chunks(made[: count + 2])
    await owner.write(commit)
    again = owner.commit()
    again.productions = as_chunks(made[2:])
    assert len(again.productions.chunks) == 1
    with pytest.raises(InvariantBroken):
        await owner.lane.commit(again)


async def test_productions_can_be_read_from_each_on(site: Site) -> None:
    """They are stored as columns, a row for many; those that are weak have rows of their own."""
    owner = await Owner.take(site.store)
    sent: list[Delivery[Any]] = []
    for count, weak in ((1, 0), (2500, 3), (40, 0), (0, 2), (1, 1)):
        commit = owner.commit()
        made = [owner.production(f"key {n}", n * "x") for n in range(count)]
        commit.productions = as_chunks(made)
        commit.stragglers = [owner.straggler(f"weak {n}", n) for n in range(weak)]
        await owner.write(commit)
        sent += [*made, *commit.stragglers]
    last = sent[-1].seq
    for first in (0, 1, 2, 700, 1024, 1025, 1026, 2501, 2502, 2504, last, last + 1):
        found = [p async for p in site.store.read_productions(owner.log(), first)]
        assert [(p.seq, p.key, p.value, p.slot, p.ts, p.hold, p.id != b"") for p in found] == [
            (d.seq, d.key_text, d.encoded, d.slot, d.micros, d.hold, d.id[:1] == b"\xff")
            for d in sent
            if d.seq >= first
        ]
    assert await site.pending() == [(d.log, d.seq) for d in sent]


@pytest.mark.parametrize("count", [9, 2 * ARRAY_ROWS])
async def test_a_part_of_what_a_commit_has_sent_is_pending(site: Site, count: int) -> None:
    owner = await Owner.take(site.store)
    commit = owner.commit()
    made = [owner.production(f"key {n}", n) for n in range(count)]
    commit.productions = as_chunks(made)
    await owner.write(commit)
    log, first = owner.log(), made[0].seq
    acked = msgspec.json.encode({str(log): [first + 3, [[first + 5, first + 6]]]})
    await owner.write(owner.commit(acked=acked))
    rest = [n for n in range(first + 3, first + count) if n not in (first + 5, first + 6)]
    assert await site.pending() == [(log, n) for n in rest]


async def test_states_are_stored_with_the_entries_of_others(site: Site) -> None:
    """As columns, a row for many."""
    owner = await Owner.take(site.store)
    mine = owner.intervals[0]
    keys = [key for n in range(6000) if owner.interval_of(key := f"key {n}") == mine][:2500]
    for removed in (False, True):
        commit = owner.commit(mine)
        parts = [owner.state(key, None if removed and n % 3 else n) for n, key in enumerate(keys)]
        parts += [owner.state(key, n, f"m/{n}") for n, key in enumerate(keys[:40])]
        commit.states = [_joined(parts[:2000]), _joined(parts[2000:])]
        await owner.write(commit)
    found = await site.states()
    plain = {(key, ""): n for n, key in enumerate(keys) if n % 3 == 0}
    named = {(key, f"m/{n}"): n for n, key in enumerate(keys[:40])}
    assert {(s.key, s.entry): s.value for s in found} == plain | named
    (claim,) = await owner.claim(mine)
    assert len(claim.states) == len(keys) + 40


def _joined(runs: list[StateRun]) -> StateRun:
    """One run of several of one entry each."""
    named = any(run.entries for run in runs)
    return runs[0]._replace(
        slots=[slot for run in runs for slot in run.slots],
        keys=[key for run in runs for key in run.keys],
        entries=[entry for run in runs for entry in run.entries or [""]] if named else None,
        values=[value for run in runs for value in run.values],
    )


def _refused_row(commit: Commit) -> None:
    commit.rows += [(LOG, row("good", 1)), (LOG, row("bad", None))]


def _refused_upsert(commit: Commit) -> None:
    commit.rows += [(COUNTS, row("good", 1)), (COUNTS, row("bad", None))]


def _refused_value(commit: Commit) -> None:
    commit.rows.append((LOG, row("too many", 2**63)))


def _refused_type(commit: Commit) -> None:
    commit.rows.append((LOG, ("text", "no number", None, None, None)))


def _refused_text(commit: Commit) -> None:
    commit.rows.append((LOG, row("NUL", 1, note="\0")))


def _refused_statement(commit: Commit) -> None:
    commit.rows.append((LOG, row("good", 1)))
    commit.statements += [("SELECT %s", (1,)), (REFUSED, (1,))]


@pytest.mark.parametrize(
    "spoil",
    [
        _refused_row,
        _refused_upsert,
        _refused_value,
        _refused_type,
        _refused_text,
        _refused_statement,
    ],
)
async def test_what_a_user_wrote_and_is_refused_leaves_no_trace(
    site: Site, spoil: Callable[[Commit], None]
) -> None:
    owner = await Owner.take(site.store)
    site.refuse_statements()
    await owner.write(owner.fill(owner.commit(), 2))
    for count in (1, ARRAY_ROWS):
        before = await look(site, owner)
        commit = owner.fill(owner.commit(), count, first=100 * count)
        spoil(commit)
        with pytest.raises(StatementError):
            await owner.lane.commit(commit)
        assert await look(site, owner) == before
        commit.rows, commit.statements = [(LOG, row("good", 1))], [("SELECT %s", (1,))]
        await owner.write(commit)
    assert await site.rows(LOG) == [row("good", 1)] * 2


# -- tables ---------------------------------------------------------------------------------


async def test_an_upsert_keeps_the_last_row_of_each_key(site: Site) -> None:
    owner = await Owner.take(site.store)
    commit = owner.commit()
    commit.rows = [
        (COUNTS, row("b", 1)),
        (COUNTS, row("a", 1)),
        (COUNTS, row("b", 2, note="both columns come from the last")),
        (COUNTS, row("b", 3)),
    ]
    await owner.write(commit)
    assert await site.rows(COUNTS) == [row("a", 1), row("b", 3)]
    commit = owner.commit()
    commit.rows = [(COUNTS, row("a", 7, share=0.5)), (COUNTS, row("c", 1))]
    await owner.write(commit)
    assert await site.rows(COUNTS) == [row("a", 7, share=0.5), row("b", 3), row("c", 1)]


async def test_appended_rows_stay_in_their_order(site: Site) -> None:
    owner = await Owner.take(site.store)
    for numbers in (range(5), range(5, 60), range(60, 61)):
        commit = owner.commit()
        commit.rows = [(LOG, row("same", n)) for n in numbers]
        await owner.write(commit)
    assert [r[1] for r in await site.rows(LOG)] == list(range(61))


async def test_whole_numbers_go_into_a_float_column_beside_floats(site: Site) -> None:
    owner = await Owner.take(site.store)
    commit = owner.commit()
    commit.rows = [(LOG, row("a", 1, share=share)) for share in (1.5, 2, None, 0)]
    await owner.write(commit)
    assert [r[2] for r in await site.rows(LOG)] == [1.5, 2.0, None, 0.0]


async def test_a_table_of_nothing_but_its_key_is_upserted_too(site: Site) -> None:
    class Word(msgspec.Struct):
        word: str

    words = Table("words_met", Word, key=("word",))
    owner = await Owner.take(site.store, await deploy(site.store, tables=(words,)))
    for _ in range(2):
        commit = owner.commit()
        commit.rows = [(words, ("a",)), (words, ("b",)), (words, ("a",))]
        await owner.write(commit)
    assert await site.rows(words) == [("a",), ("b",)]


class Odd(msgspec.Struct):
    """Columns with values that are equal and written differently."""

    name: str
    amount: Decimal
    share: float
    active: bool
    at: datetime
    tags: dict[str, Any]


NAN = float("nan")
ZURICH = timezone(timedelta(hours=2))


@pytest.mark.parametrize(
    ("column", "values"),
    [
        ("amount", [Decimal("1.0"), Decimal("1.00"), Decimal("1"), 1]),
        ("amount", [Decimal("1E+2"), Decimal("100.0")]),
        ("amount", [Decimal("NaN"), Decimal("NaN")]),
        ("amount", [Decimal("-0"), Decimal("0.00")]),
        ("share", [0.0, -0.0, 0]),
        ("share", [NAN, -NAN]),
        ("share", [float("inf"), float("inf")]),
        ("active", [True, True]),
        ("at", [datetime(2024, 1, 1, tzinfo=UTC), datetime(2024, 1, 1, 2, tzinfo=ZURICH)]),
        ("tags", [{"a": 1, "b": [2, -0.0]}, {"b": [2.0, 0], "a": 1}]),
        (
            "tags",
            [{"of": {"x", "y"}, "d": Decimal("1.0")}, {"d": Decimal("1.00"), "of": {"y", "x"}}],
        ),
    ],
)
async def test_keys_that_are_equal_to_postgres_are_one_row(
    site: Site, column: str, values: list[Any]
) -> None:
    """In one statement and in several, beside another row."""
    table = Table("odd", Odd, key=("name", column))
    plain = Odd("a", Decimal(7), 7.5, False, datetime(1999, 1, 1, tzinfo=UTC), {"z": 0})
    written = [table.values(msgspec.structs.replace(plain, **{column: value})) for value in values]
    assert len({table.key_of(each) for each in written}) == 1
    owner = await Owner.take(site.store, await deploy(site.store, tables=(table,)))
    for rows in ([*written, table.values(plain)], *([each] for each in written)):
        commit = owner.commit()
        commit.rows = [(table, each) for each in rows]
        await owner.write(commit)
    assert len(await site.rows(table)) == 2


@pytest.mark.parametrize(
    ("column", "values"),
    [
        (
            "amount",
            [Decimal("1.0"), Decimal("1.01"), Decimal("NaN"), Decimal("Infinity"), Decimal(-1)],
        ),
        ("share", [0.0, 5e-324, 1.0, 0.1, 0.30000000000000004, 0.3, NAN, -1.0]),
        ("active", [True, False]),
        ("tags", [{"a": 1}, {"a": "1"}, {"a": None}, {"a": [1]}, {}]),
    ],
)
async def test_keys_that_differ_to_postgres_are_rows_of_their_own(
    site: Site, column: str, values: list[Any]
) -> None:
    table = Table("odd", Odd, key=(column,))
    plain = Odd("a", Decimal(7), 7.5, False, datetime(1999, 1, 1, tzinfo=UTC), {})
    written = [table.values(msgspec.structs.replace(plain, **{column: value})) for value in values]
    owner = await Owner.take(site.store, await deploy(site.store, tables=(table,)))
    commit = owner.commit()
    commit.rows = [(table, each) for each in (*written, *reversed(written))]
    await owner.write(commit)
    assert len(await site.rows(table)) == len(values)


class Noted(msgspec.Struct):
    """Columns of JSON that may be None."""

    unit: ClassVar[str] = "m"
    name: str
    tags: list[str] | None
    anything: Any
    kind: Literal["a"] | None = None


async def test_none_is_null_in_a_column_of_json(site: Site) -> None:
    table = Table("noted", Noted)
    assert [column.name for column in table.columns] == ["name", "tags", "anything", "kind"]
    owner = await Owner.take(site.store, await deploy(site.store, tables=(table,)))
    commit = owner.commit()
    commit.rows = [
        (table, table.values(Noted("a", None, None))),
        (table, table.values(Noted("b", [], 1, "a"))),
    ]
    await owner.write(commit)
    assert await site.rows(table) == [("a", None, None, None), ("b", [], 1, "a")]


# -- reading back -----------------------------------------------------------------------------


async def test_productions_are_read_back_in_order_over_pages_and_buckets(site: Site) -> None:
    owner = await Owner.take(site.store)
    first, second = owner.intervals
    commit = owner.commit(second)
    commit.productions = [owner.production("x", "another log", interval=second)]
    await owner.write(commit)
    sizes = (2500, 1, 1600)
    buckets = [owner.bucket[first.id]]
    buckets += [
        (await site.store.open_bucket("time", 0, low, low + SECOND)).id
        for low in (BUCKET_HIGH, BUCKET_HIGH + SECOND)
    ]
    for bucket, size in zip(buckets, sizes, strict=True):
        commit = owner.commit(first, bucket=bucket)
        commit.productions = [owner.production(f"k{n}", n) for n in range(size)]
        commit.productions.reverse()
        await owner.write(commit)
    last = sum(sizes)
    for start in (0, 1, 2500, last, last + 1):
        found = [p.seq async for p in site.store.read_productions(owner.log(first), start)]
        assert found == list(range(max(1, start), last + 1))
    assert [p.value async for p in site.store.read_productions(owner.log(second), 0)] == [
        b'"another log"'
    ]
    assert [p async for p in site.store.read_productions(4711, 0)] == []


async def test_a_production_is_read_back_with_everything_it_had(site: Site) -> None:
    owner = await Owner.take(site.store)
    commit = owner.commit()
    production = owner.production(("Zürich", 7), {"b": 1, "a": "é\\"})
    commit.productions = [production]
    await owner.write(commit)
    (found,) = [p async for p in site.store.read_productions(owner.log(), 0)]
    assert (found.seq, found.stream, found.receiver) == (0, "totals", owner.computation)
    assert (found.slot, found.key) == (production.slot, production.key_text)
    assert (found.value, found.version) == (production.encoded, 3)
    assert (found.ts, found.hold, found.stamp) == (
        production.micros,
        production.hold,
        production.stamp,
    )


@pytest.mark.parametrize("count", [1, 60])
async def test_stragglers_stand_among_the_productions_of_their_log(site: Site, count: int) -> None:
    owner = await Owner.take(site.store)
    commit = owner.commit()
    strong, weak = [], []
    for number in range(count):
        strong.append(owner.production(f"k{number}", number))
        weak.append(owner.straggler(("Zürich", number), {"a": "é\\"}, origin=9, place=3 + number))
    commit.productions, commit.stragglers = list(strong), list(reversed(weak))
    await owner.write(commit)
    found = [p async for p in site.store.read_productions(owner.log(), 0)]
    assert [p.seq for p in found] == list(range(2 * count))
    for sent, got in zip(strong, found[::2], strict=True):
        assert (got.id, got.origin, got.place, got.stamp) == (b"", 0, sent.stamp, sent.stamp)
    for sent, got in zip(weak, found[1::2], strict=True):
        assert (got.id, got.origin, got.place) == (sent.id, 9, sent.stamp)
        assert got.stamp == commit.stamp, "when it was stored"
        assert (got.key, got.value, got.slot) == (sent.key_text, sent.encoded, sent.slot)
        assert (got.ts, got.hold, got.version) == (sent.micros, sent.hold, 3)
        assert (got.stream, got.receiver) == ("totals", owner.computation)
    assert await site.pending() == [(owner.log(), seq) for seq in range(2 * count)]
    acked = msgspec.json.encode({str(owner.log()): [1, [[3, 2 * count]]]})
    await owner.write(owner.commit(acked=acked))
    assert await site.pending() == [(owner.log(), seq) for seq in range(1, min(3, 2 * count))]


async def test_a_straggler_cannot_be_written_twice(site: Site) -> None:
    owner = await Owner.take(site.store)
    commit = owner.commit()
    commit.stragglers = [owner.straggler("a", 1)]
    await owner.write(commit)
    again = owner.commit()
    again.stragglers = commit.stragglers
    with pytest.raises(InvariantBroken):
        await owner.lane.commit(again)


async def test_a_weak_production_is_found_by_its_name_whatever_it_says(site: Site) -> None:
    owner = await Owner.take(site.store)
    names = [b"\xff" * 3 + bytes([0] * 8) + bytes([n]) for n in range(4)]
    commit = owner.commit()
    stored = [(5, owner.computation, name + b"then") for name in names[:2]]
    named = await site.store.open_bucket("named", 0, 0, 10)
    of_user = (5, owner.computation, record_id(1, 1))
    commit.seen = {commit.bucket: SeenIds(stored), named.id: SeenIds([of_user])}
    await owner.write(commit)
    asked = [name + b"now!" for name in names]
    both = [commit.bucket, named.id]
    found = await site.store.look_up_seen(both, owner.computation, asked)
    assert found == {id_ for _, _, id_ in stored}
    begins_alike = [of_user[2][:12] + b"now!"]
    assert not await site.store.look_up_seen(both, owner.computation, begins_alike)


async def test_seen_ids_are_looked_up_by_computation_and_bucket_whatever_their_slots(
    site: Site,
) -> None:
    """Under other keys than before records go to other slots, and are the same records."""
    owner = await Owner.take(site.store)
    other = await site.store.open_bucket("source", 1, 0, 1000)
    commit = owner.commit()
    commit.seen = {
        commit.bucket: SeenIds([owner.seen(n) for n in range(50)]),
        other.id: SeenIds([owner.seen(77)]),
    }
    await owner.write(commit)
    asked = [id_ for _, _, id_ in map(owner.seen, range(40, 80))]
    found = await site.store.look_up_seen([commit.bucket], owner.computation, asked)
    assert found == {owner.seen(n)[2] for n in range(40, 50)}
    found = await site.store.look_up_seen([other.id], owner.computation, asked)
    assert found == {owner.seen(77)[2]}
    both = [commit.bucket, other.id]
    found = await site.store.look_up_seen(both, owner.computation, asked)
    assert found == {owner.seen(n)[2] for n in (*range(40, 50), 77)}
    with pytest.raises(StoreError):
        await site.store.look_up_seen([*both, 4711], owner.computation, asked)
    assert not await site.store.look_up_seen([commit.bucket], owner.computation + 1, asked)


async def a_hundred_seen(site: Site) -> tuple[Owner, Commit, list[tuple[int, int, bytes]]]:
    """Ids of an owner, seven of each slot, which another computation has as well."""
    owner = await Owner.take(site.store)
    commit = owner.commit()
    mine = [owner.seen(n, slot=n // 7) for n in range(100)]
    others = [(slot, owner.computation + 1, id_) for slot, _, id_ in mine]
    commit.seen[commit.bucket] = SeenIds([*mine, *others])
    await owner.write(commit)
    return owner, commit, mine


async def test_seen_ids_are_scanned_in_slices(site: Site) -> None:
    owner, commit, mine = await a_hundred_seen(site)
    after, found = mine[9][2], []
    place = (after, mine[9][0])
    while page := await site.store.scan_seen(commit.bucket, owner.computation, (3, 12), place, 10):
        assert len(page) <= 10
        found += page
        place = page[-1]
    assert found == [(id_, slot) for slot, _, id_ in mine if 3 <= slot < 12]


async def test_seen_ids_are_counted_as_they_are_scanned(site: Site) -> None:
    owner, commit, _ = await a_hundred_seen(site)
    count = site.store.count_seen
    assert await count(commit.bucket, owner.computation, (0, SLOTS)) == 100
    assert await count(commit.bucket, owner.computation, (3, 12)) == 63
    assert await count(commit.bucket, owner.computation + 2, (0, SLOTS)) == 0


async def test_of_each_log_the_newest_seen_id_is_found(site: Site) -> None:
    """Not those of others, and no ids that come in no order."""
    owner = await Owner.take(site.store)
    commit = owner.commit()
    of, logs = owner.computation, {3: 70, 4: 1, 1 << 40: 9, (1 << 63) - 1: 5}
    commit.seen[commit.bucket] = seen = SeenIds(
        [(1, of, first * 16) for first in (b"\x80", b"\xff")]
    )
    for log, newest in logs.items():
        seen.add_numbers(of, log, (0, newest))
    seen.add_numbers(of + 1, 3, (99,))
    await owner.write(commit)
    assert await site.store.newest_seen(commit.bucket, of) == logs
    assert await site.store.newest_seen(commit.bucket, of + 1) == {3: 99}
    assert await site.store.newest_seen(commit.bucket, of + 2) == {}


LOGS = itertools.count(1000, 10)


@a_few
@given(data=st.data())
async def test_numbers_are_found_as_they_were_noted(data: st.DataObject, site: Site) -> None:
    """With whatever gaps, in runs that other commits' runs overlap; a number that is there already
    is refused."""
    owner = Owner(site.store, await deploy(site.store), str(uuid.uuid4()))
    await owner.claim()
    owner.lane = await site.store.open_lane()
    first_log = next(LOGS)
    spread = st.sampled_from([3, 60, 700, 5_000, 100_000])
    known: set[tuple[int, int]] = set()
    for _ in range(data.draw(st.integers(1, 4), "commits")):
        commit = owner.commit()
        seen = commit.seen[commit.bucket] = SeenIds()
        for log in data.draw(st.sets(st.integers(first_log, first_log + 1), min_size=1), "logs"):
            span = data.draw(spread, "span")
            some = data.draw(
                st.one_of(
                    st.sets(st.integers(0, span), min_size=1, max_size=80),
                    st.integers(0, span).map(lambda first: set(range(first, first + 9_000))),
                ),
                "numbers",
            )
            seen.add_numbers(owner.computation, log, sorted(some))
        named = {(log, n) for (_, log), parts in seen.numbers.items() for n in parts[0]}
        if known & named:
            with pytest.raises(InvariantBroken, match="committed before"):
                await owner.lane.commit(commit)
            break
        await owner.write(commit)
        known |= named
    asked = {first_log + n: range(110_000) for n in range(3)}
    found = await site.store.look_up_numbers(commit.bucket, owner.computation, asked)
    assert {(log, n) for log, of_log in found.items() for n in of_log} == known
    for log in {log for log, _ in known}:  # alone, wherever in a run it is
        of_log = sorted(n for of, n in known if of == log)
        for n in {*of_log[:: max(1, len(of_log) // 12)], of_log[-1]}:
            alone = await site.store.look_up_numbers(commit.bucket, owner.computation, {log: [n]})
            assert alone[log] == {n}
    newest = await site.store.newest_seen(commit.bucket, owner.computation)
    for log in {log for log, _ in known}:
        assert newest[log] == max(n for of, n in known if of == log)
    await owner.lane.close()


async def test_a_bucket_that_is_gone_is_an_error_not_an_empty_one(site: Site) -> None:
    owner = await Owner.take(site.store)
    with pytest.raises(StoreError):
        await site.store.look_up_seen([4711], owner.computation, [bytes(16)])
    with pytest.raises(StoreError):
        await site.store.scan_seen(4711, owner.computation, (0, SLOTS), (bytes(16), -1), 10)
    with pytest.raises(StoreError):
        await site.store.newest_seen(4711, owner.computation)
    with pytest.raises(StoreError):
        await site.store.look_up_numbers(4711, owner.computation, {1: [1]})
    with pytest.raises(StoreError):
        await site.store.count_seen(4711, owner.computation, (0, SLOTS))


async def test_folded_entries_are_loaded_by_key_entry_and_range(site: Site) -> None:
    owner = await Owner.take(site.store)
    commit = owner.commit()
    commit.states = [owner.state("a", n, f"m/{n:02}") for n in range(30)]
    commit.states += [owner.state("a", {"x": 1}), owner.state("a", 1, "n/0")]
    commit.states += [owner.state("b", 2), owner.state(("a",), 3), owner.state(7, 4)]
    await owner.write(commit)
    (before,) = await site.store.load_keys(owner.computation, [(encode_key("a")[1], b'"a"')], 5)
    assert before == []  # what is not folded is in the memory of its owner
    for row_ in owner.intervals:
        assert await site.store.fold(row_.id, owner.links[row_.id].sequencer, 0, 1)

    def at(key: Any) -> tuple[int, bytes]:
        text, slot = encode_key(key)
        return slot, text

    asked = [at("nobody"), at("a"), at(7), at("b"), at(("a",))]
    nobody, a, seven, b, of_tuple = await site.store.load_keys(owner.computation, asked, 5)
    assert nobody == []
    assert a == [("", b'{"x": 1}', 2), *((f"m/{n:02}", b"%d" % n, 2) for n in range(4))]
    assert (seven, b, of_tuple) == ([("", b"4", 2)], [("", b"2", 2)], [("", b"3", 2)])
    assert await site.store.load_keys(owner.computation + 1, asked, 5) == [[]] * 5
    found = await site.store.scan_states(owner.computation, (0, SLOTS), 1000)
    assert {(slot, key) for slot, key, *_ in found} == {at(7), at("a"), at("b"), at(("a",))}
    of_a = [entry[2:] for entry in found if entry.key == b'"a"']
    assert of_a[:5] == a
    assert len(of_a) == 32
    assert found == sorted(found, key=itemgetter(0, 1, 2))
    assert await site.store.scan_states(owner.computation, (0, SLOTS), 7) == found[:7]
    slots = found[0].slot, found[-1].slot
    within = [entry for entry in found if slots[0] <= entry.slot < slots[1]]
    assert await site.store.scan_states(owner.computation, slots, 1000) == within
    assert await site.store.scan_states(owner.computation + 1, (0, SLOTS), 1000) == []
    slot, text = at("a")
    assert await site.store.load_entry(owner.computation, slot, text, "m/07") == (b"7", 2)
    assert await site.store.load_entry(owner.computation, slot, text, "m/7") is None
    scan = site.store.scan_entries
    page = await scan(owner.computation, slot, text, "m/", "m0", 20)
    assert [entry for entry, _, _ in page] == [f"m/{n:02}" for n in range(20)]
    page = await scan(owner.computation, slot, text, page[-1][0], "m0", 20)
    assert [entry for entry, _, _ in page] == [f"m/{n}" for n in range(20, 30)]
    assert await scan(owner.computation, slot, text, "m/29", "m0", 20) == []


# -- folds ------------------------------------------------------------------------------------


async def _some_history(owner: Owner) -> None:
    """Five commits of one interval: set, replaced, removed, set again."""
    for states, timers in (
        ({"": 1, "m/1": 1, "m/2": 1}, {"t": 1, "u": 1}),
        ({"": 2, "m/1": None}, {"t": 2}),
        ({"m/1": 3, "m/3": 3}, {"u": None, "v": 3}),
        ({"": None, "m/2": None}, {"u": 4}),
        ({"m/3": None, "": 5}, {"t": None, "v": 5}),
    ):
        commit = owner.commit(owner.interval_of("a"))
        commit.states = [owner.state("a", value, entry) for entry, value in states.items()]
        commit.timers = [
            owner.timer("a", None if due is None else START + due, tag)
            for tag, due in timers.items()
        ]
        await owner.write(commit)


ENTRIES_THROUGH = {
    1: {"": 1, "m/1": 1, "m/2": 1},
    2: {"": 2, "m/2": 1},
    3: {"": 2, "m/1": 3, "m/2": 1, "m/3": 3},
    4: {"m/1": 3, "m/3": 3},
    5: {"": 5, "m/1": 3},
}


@pytest.mark.parametrize("steps", [(5,), (1, 2, 3, 4, 5), (2, 5), (4, 5), (3, 4)])
async def test_a_fold_changes_nothing_a_reader_can_see(site: Site, steps: tuple[int, ...]) -> None:
    owner = await Owner.take(site.store)
    await _some_history(owner)
    row_ = owner.interval_of("a")
    states, timers = await site.states(), await site.timers()
    assert {s.entry: s.value for s in states} == ENTRIES_THROUGH[5]
    assert {(t.tag, t.due - START) for t in timers} == {("u", 4), ("v", 5)}
    after = 0
    for through in steps:
        sequencer = owner.links[row_.id].sequencer
        assert await site.store.fold(row_.id, sequencer, after, through)
        assert await site.states() == states
        assert await site.timers() == timers
        slot = encode_key("a")[1]
        (entries,) = await site.store.load_keys(owner.computation, [(slot, b'"a"')], 100)
        assert {e: msgspec.json.decode(v) for e, v, _ in entries} == ENTRIES_THROUGH[through]
        (claim,) = await owner.claim(row_)
        assert claim.folded == through
        assert {(t.tag, (t.due or 0) - START) for t in claim.timers} == {("u", 4), ("v", 5)}
        assert all(s.n > through for s in claim.states)
        after = through


async def test_a_fold_is_fenced_by_the_sequencer(site: Site) -> None:
    owner = await Owner.take(site.store)
    await _some_history(owner)
    row_ = owner.interval_of("a")
    old = owner.links[row_.id].sequencer
    await (await site.another()).claim(str(uuid.uuid4()), [row_.id])
    assert not await site.store.fold(row_.id, old, 0, 5)
    (claim,) = await owner.claim(row_)
    assert (claim.folded, len(claim.states)) == (0, 4)


async def test_a_fold_never_leaves_commits_out_nor_goes_back(site: Site) -> None:
    owner = await Owner.take(site.store)
    await _some_history(owner)
    row_ = owner.interval_of("a")
    sequencer = owner.links[row_.id].sequencer
    before = await site.states()
    assert not await site.store.fold(row_.id, sequencer, 2, 5)  # 1 and 2 would be lost
    assert await site.store.fold(row_.id, sequencer, 0, 4)
    assert not await site.store.fold(row_.id, sequencer, 0, 3)  # 3 would overwrite 4
    assert await site.states() == before
    (claim,) = await owner.claim(row_)
    assert claim.folded == 4


async def test_a_fold_whose_answer_was_lost_is_repeated(site: Site) -> None:
    """Its owner does not know how far it came, and by now wants to go further."""
    owner = await Owner.take(site.store)
    await _some_history(owner)
    row_ = owner.interval_of("a")
    sequencer = owner.links[row_.id].sequencer
    before = await site.states(), await site.timers()
    assert await site.store.fold(row_.id, sequencer, 0, 3)
    for through in (3, 5, 5):
        assert await site.store.fold(row_.id, sequencer, 0, through)
        assert (await site.states(), await site.timers()) == before
    (claim,) = await owner.claim(row_)
    assert (claim.folded, claim.states) == (5, [])


async def test_two_folds_at_once_end_as_one(site: Site) -> None:
    owner = await Owner.take(site.store)
    await _some_history(owner)
    row_ = owner.interval_of("a")
    sequencer = owner.links[row_.id].sequencer
    before = await site.states(), await site.timers()
    other = await site.another()
    await asyncio.gather(
        site.store.fold(row_.id, sequencer, 0, 5),
        other.fold(row_.id, sequencer, 0, 3),
        other.fold(row_.id, sequencer, 0, 5),
    )
    assert (await site.states(), await site.timers()) == before
    (claim,) = await owner.claim(row_)
    assert (claim.folded, claim.states) == (5, [])


# -- buckets ----------------------------------------------------------------------------------


async def _next_bucket(store: Store) -> Bucket:
    last = max(b.high for b in await store.live_buckets() if b.family == "time")
    return await store.open_bucket("time", 0, last, last + 3600 * SECOND)


async def _old_bucket(site: Site, owner: Owner) -> Bucket:
    """The first bucket, when every commit since stands in the next, and nothing holds it."""
    await owner.write(owner.fill(owner.commit(), 3))
    (old,) = await site.store.live_buckets()
    new = await _next_bucket(site.store)
    owner.stamp = new.low
    await owner.write(owner.commit(owner.injector, bucket=new.id))
    await owner.write(owner.fill(owner.commit(bucket=new.id), 3, first=10))
    return old


async def _fold_all(store: Store, owner: Owner, through: int | None = None) -> None:
    for row_ in owner.deployment.intervals:
        link = owner.links[row_.id]
        assert await store.fold(row_.id, link.sequencer, 0, through or link.n)


async def test_buckets_are_told_in_order(site: Site) -> None:
    await deploy(site.store)
    store = site.store
    source = await store.open_bucket("source", 7, 100, 200)
    earlier = await store.open_bucket("source", 7, 0, 100)
    named = await store.open_bucket("named", 0, 0, 10)
    later = await _next_bucket(store)
    assert (source.family, source.log, source.low, source.high) == ("source", 7, 100, 200)
    found = await (await site.another()).live_buckets()
    assert found == await store.live_buckets()
    assert [b.id for b in found if b.family == "time"] == [found[-2].id, later.id]
    assert [b for b in found if b.family == "source"] == [earlier, source]
    assert [b for b in found if b.family == "named"] == [named]


async def test_a_bucket_of_rows_ends_where_the_next_one_begins(site: Site) -> None:
    """Whoever asks has other limits than who made that one."""
    await deploy(site.store)
    there = await site.store.open_bucket("source", 7, 100, 200)
    await site.store.open_bucket("source", 8, 60, 70)
    before = await site.store.open_bucket("source", 7, 50, 150)
    after = await site.store.open_bucket("source", 7, 200, 350)
    assert (before.low, before.high) == (50, 100)
    assert (after.low, after.high) == (200, 350)
    assert await site.store.open_bucket("source", 7, 150, 300) == there


async def test_opening_a_bucket_again_gives_the_one_there_is(site: Site) -> None:
    """Its answer may have been lost: a second attempt must not fail for ever."""
    await deploy(site.store)
    bucket = await _next_bucket(site.store)
    again = await site.store.open_bucket("time", 0, bucket.low, bucket.high + 5)
    assert again == bucket
    assert len(await site.store.live_buckets()) == 2


async def _current_bucket(site: Site) -> tuple[int, Bucket]:
    """The store's time, and a bucket that ends in an hour from then."""
    await deploy(site.store)
    now = (await site.store.view_buckets()).now
    await site.store.open_bucket("time", 0, BUCKET_HIGH, max(now, BUCKET_HIGH + SECOND))
    low = (await site.store.live_buckets())[-1].high
    return now, await site.store.open_bucket("time", 0, low, low + 3600 * SECOND)


async def test_a_bucket_ends_early_but_never_late(site: Site) -> None:
    now, bucket = await _current_bucket(site)
    assert await site.store.close_bucket(bucket.id, bucket.high + 1) == bucket
    assert (await site.store.live_buckets())[-1] == bucket
    closed = await (await site.another()).close_bucket(bucket.id, bucket.high - 1)
    assert closed == replace(bucket, high=bucket.high - 1)
    assert (await site.store.live_buckets())[-1] == closed
    assert await site.store.close_bucket(4711, now) is None


async def test_a_bucket_does_not_end_before_what_others_count_on(site: Site) -> None:
    """A view of the buckets is final for all stamps before its time and a while."""
    before, bucket = await _current_bucket(site)
    closed = await site.store.close_bucket(bucket.id, bucket.low + 1)
    after = await site.store.view_buckets()
    assert closed is not None
    assert before + EARLY_CLOSE_MICROS <= closed.high < bucket.high
    assert closed.high <= max(bucket.low + 1, after.now + CLOSE_AHEAD_MICROS)
    assert after.buckets == await site.store.live_buckets()
    assert closed in after.buckets


@pytest.mark.parametrize("seconds", [30, 600])
async def test_a_bucket_does_not_end_before_what_was_told_until_the_clock_went_back(
    site: Site, seconds: int
) -> None:
    """A worker goes by what it was told until its next heartbeat, at most for its lease."""
    _, bucket = await _current_bucket(site)
    await site.store.register_worker(str(uuid.uuid4()), 20.0)
    before = await site.store.view_buckets()
    await site.clock_goes_back(seconds)
    view = await (await site.another()).view_buckets()
    assert view.now >= before.now + seconds * SECOND - SECOND
    closed = await site.store.close_bucket(bucket.id, bucket.low + 1)
    assert closed is not None
    assert view.now + 20 * SECOND + EARLY_CLOSE_MICROS - SECOND <= closed.high < bucket.high


async def test_a_long_lease_hides_a_step_of_the_clock_for_longer(site: Site) -> None:
    """The last heartbeat was 19 s ago when the clock went back by 12 s: it is not ahead of the
    clock."""
    _, bucket = await _current_bucket(site)
    await site.store.register_worker(str(uuid.uuid4()), 60.0)
    await site.clock_goes_back(-7)
    now = (await site.store.view_buckets()).now
    closed = await site.store.close_bucket(bucket.id, bucket.low + 1)
    assert closed is not None
    final = now + 12 * SECOND + EARLY_CLOSE_MICROS  # in views from before the step
    assert final <= closed.high < bucket.high


async def test_a_bucket_does_not_end_before_a_stamp_that_a_worker_has_given(site: Site) -> None:
    """Its clock ran ahead, or the store's went back a moment before its heartbeat."""
    _, bucket = await _current_bucket(site)
    worker = str(uuid.uuid4())
    await site.store.register_worker(worker, 20.0)
    given = (await site.store.view_buckets()).now + 60 * SECOND
    await site.store.heartbeat(worker, 20.0, {}, given)
    await site.store.heartbeat(worker, 20.0, {}, 0)
    closed = await site.store.close_bucket(bucket.id, bucket.low + 1)
    assert closed is not None
    assert given + EARLY_CLOSE_MICROS <= closed.high < bucket.high


@pytest.mark.parametrize("another", ["heartbeat", "register"])
async def test_a_lease_ends_within_its_length_though_the_clock_went_back(
    site: Site, another: str
) -> None:
    """A worker that has died would keep its intervals for as long as the clock went back."""
    dead, alive = str(uuid.uuid4()), str(uuid.uuid4())
    await site.store.register_worker(dead, 10.0)
    if another == "heartbeat":
        await site.store.register_worker(alive, 60.0)
    await site.clock_goes_back(600)
    left = {w.id: w.lease_left for w in await site.store.other_workers("")}
    assert left[dead] > 500
    if another == "heartbeat":
        await site.store.heartbeat(alive, 60.0, {})
    else:
        await site.store.register_worker(alive, 60.0)
    left = {w.id: w.lease_left for w in await site.store.other_workers("")}
    assert left[dead] <= 10
    assert 50 < left[alive] <= 60


async def test_a_bucket_with_a_successor_ends_where_that_begins(site: Site) -> None:
    _, bucket = await _current_bucket(site)
    following = await site.store.open_bucket("time", 0, bucket.high, bucket.high + SECOND)
    assert await site.store.close_bucket(bucket.id, bucket.high - 1) == bucket
    assert following.low == bucket.high


async def test_who_asks_with_an_old_view_makes_neither_hole_nor_overlap(site: Site) -> None:
    _, bucket = await _current_bucket(site)
    closed = await site.store.close_bucket(bucket.id, bucket.high - 100)
    assert closed is not None
    following = await site.store.open_bucket("time", 0, bucket.high, bucket.high + SECOND)
    assert (following.low, following.high) == (closed.high, bucket.high + SECOND)
    for low in (following.low, closed.high + 7, following.high - 1):
        assert await site.store.open_bucket("time", 0, low, low + 3600 * SECOND) == following
    assert await site.store.open_bucket("time", 0, closed.low, closed.low + 5) == closed
    times = [b for b in await site.store.live_buckets() if b.family == "time"]
    assert await site.store.open_bucket("time", 0, -5, 1) == times[0]
    assert all(a.high == b.low for a, b in itertools.pairwise(times))


@pytest.mark.parametrize("family", ["time", "named"])
async def test_all_who_open_the_next_bucket_at_once_get_the_same(site: Site, family: str) -> None:
    await deploy(site.store)
    stores = [site.store, *[await site.another() for _ in range(3)]]
    low = await _edge(site.store, family)
    for _ in range(5):
        opened = await asyncio.gather(
            *(
                store.open_bucket(family, 0, low, low + (number + 1) * SECOND)
                for number, store in enumerate(stores)
            )
        )
        assert len({bucket.id for bucket in opened}) == 1
        low = await _edge(site.store, family)
        assert low == opened[0].high


async def _edge(store: Store, family: str) -> int:
    """Where the newest bucket of a family ends, each beginning where the one before ended."""
    found = [b for b in await store.live_buckets() if b.family == family]
    assert all(a.high == b.low for a, b in itertools.pairwise(found))
    return found[-1].high if found else 0


async def test_buckets_opened_and_closed_at_once_stand_edge_to_edge(site: Site) -> None:
    now, bucket = await _current_bucket(site)
    stores = [site.store, *[await site.another() for _ in range(2)]]
    for _ in range(8):
        last = (await site.store.live_buckets())[-1]
        await asyncio.gather(
            stores[0].close_bucket(last.id, last.high - 10),
            stores[1].open_bucket("time", 0, last.high, last.high + 3600 * SECOND),
            stores[2].open_bucket("time", 0, last.high - 10, last.high + 3600 * SECOND),
        )
        await _edge(site.store, "time")
    assert now < bucket.high


async def test_the_gc_watermark_is_the_least_stored_floor_and_never_goes_back(site: Site) -> None:
    owner = await Owner.take(site.store)
    first, second = owner.intervals
    assert await site.store.advance_gc_watermark() == START  # of the deploy
    await owner.write(owner.commit(owner.injector, floor=START + 500))
    await owner.write(owner.commit(first, floor=START + 300))
    assert await site.store.advance_gc_watermark() == START  # the second has told nothing yet
    await owner.write(owner.commit(second, floor=START + 400))
    assert await site.store.advance_gc_watermark() == START + 300
    await owner.write(owner.commit(first, floor=START + 100))
    assert await site.store.advance_gc_watermark() == START + 300
    assert await (await site.another()).advance_gc_watermark() == START + 300


async def test_a_bucket_that_nothing_needs_is_dropped_with_its_rows(site: Site) -> None:
    owner = await Owner.take(site.store)
    old = await _old_bucket(site, owner)
    await _fold_all(site.store, owner)
    before = await site.states(), await site.timers()
    assert await site.store.advance_gc_watermark() >= old.high
    assert await site.store.drop_bucket(old)
    assert old not in await site.store.live_buckets()
    assert (await site.states(), await site.timers()) == before
    assert [p.seq async for p in site.store.read_productions(owner.log(), 0)] == [3, 4, 5]
    with pytest.raises(StoreError):
        await site.store.look_up_seen([old.id], owner.computation, [bytes(16)])
    with pytest.raises(StoreError):
        await site.store.look_up_numbers(old.id, owner.computation, {1: [1]})
    assert await site.store.drop_bucket(old)  # gone is gone, whoever asks again
    await owner.write(owner.fill(owner.commit(), 3, first=20))


@pytest.mark.parametrize("into", ["its old bucket", "the new one"])
async def test_a_zombie_whose_last_bucket_is_gone_is_fenced(into: str, site: Site) -> None:
    zombie = await Owner.take(site.store)
    await zombie.write(zombie.commit())
    owner = await Owner.take(site.store, zombie.deployment)
    old = await _old_bucket(site, owner)
    await _fold_all(site.store, owner)
    await site.store.advance_gc_watermark()
    assert await site.store.drop_bucket(old)
    (new,) = await site.store.live_buckets()
    commit = zombie.commit(bucket=old.id if into == "its old bucket" else new.id)
    with pytest.raises(Fenced):
        await zombie.write(zombie.fill(commit, 3, first=50))


async def test_who_notes_ids_in_a_bucket_that_is_gone_is_told_so(site: Site) -> None:
    """They are copies of records that everybody has acknowledged: nothing is broken."""
    owner = await Owner.take(site.store)
    old = await _old_bucket(site, owner)
    await _fold_all(site.store, owner)
    await site.store.advance_gc_watermark()
    assert await site.store.drop_bucket(old)
    commit = owner.commit()
    commit.seen[old.id] = owner.numbers(7)
    with pytest.raises(BucketGone):
        await owner.write(commit)


async def test_a_bucket_stays_while_the_gc_watermark_is_below_its_end(site: Site) -> None:
    owner = await Owner.take(site.store)
    old = await _old_bucket(site, owner)
    await _fold_all(site.store, owner)
    assert not await site.store.drop_bucket(old)  # the floors are stored, the watermark is not
    await owner.write(owner.commit(owner.intervals[0], floor=old.high - 1))
    await _fold_all(site.store, owner)
    await site.store.advance_gc_watermark()
    assert not await site.store.drop_bucket(old)
    await owner.write(owner.commit(owner.intervals[0], floor=old.high))
    await site.store.advance_gc_watermark()
    assert await site.store.drop_bucket(old)


async def test_a_bucket_stays_while_its_changes_are_not_folded(site: Site) -> None:
    owner = await Owner.take(site.store)
    await owner.write(owner.commit())
    old = await _old_bucket(site, owner)
    await site.store.advance_gc_watermark()
    assert not await site.store.drop_bucket(old)
    first, second = owner.intervals
    await site.store.fold(owner.injector.id, owner.links[owner.injector.id].sequencer, 0, 1)
    await site.store.fold(first.id, owner.links[first.id].sequencer, 0, 3)
    await site.store.fold(second.id, owner.links[second.id].sequencer, 0, 1)
    assert not await site.store.drop_bucket(old)  # commit 2 of the second interval is in it
    await site.store.fold(second.id, owner.links[second.id].sequencer, 1, 2)
    assert await site.store.drop_bucket(old)


async def test_a_bucket_stays_while_an_interval_ends_in_it(site: Site) -> None:
    owner = await Owner.take(site.store)
    first, second = owner.intervals
    (old,) = await site.store.live_buckets()
    new = await _next_bucket(site.store)
    owner.stamp = new.low
    for row_ in (owner.injector, first):
        await owner.write(owner.commit(row_, bucket=new.id))
    await owner.write(owner.commit(second, bucket=old.id))
    await _fold_all(site.store, owner)
    await site.store.advance_gc_watermark()
    assert not await site.store.drop_bucket(old)
    await owner.write(owner.commit(second, bucket=new.id))
    assert await site.store.drop_bucket(old)


async def test_a_source_bucket_stays_until_the_source_is_acknowledged_past_it(site: Site) -> None:
    owner = await Owner.take(site.store)
    log = owner.claims[owner.injector.id].logs[0].id
    bucket = await site.store.open_bucket("source", log, 0, 100)
    assert not await site.store.drop_bucket(bucket)
    for acked in ({log: [99, []]}, {log + 1: [500, []]}):
        text = msgspec.json.encode({str(at): state for at, state in acked.items()})
        await owner.write(owner.commit(owner.injector, acked=text))
        assert not await site.store.drop_bucket(bucket)
    text = msgspec.json.encode({str(log): [100, []]})
    await owner.write(owner.commit(owner.injector, acked=text))
    assert await site.store.drop_bucket(bucket)
    assert bucket not in await site.store.live_buckets()


async def test_a_source_bucket_stays_while_what_came_of_its_rows_may_come_again(
    site: Site,
) -> None:
    owner = await Owner.take(site.store)
    log = owner.claims[owner.injector.id].logs[0].id
    old, new = [await site.store.open_bucket("source", log, low, low + 100) for low in (0, 100)]
    commit = owner.commit()
    commit.stragglers = [owner.straggler("a", 1, origin=log, place=99)]
    await owner.write(commit)
    text = msgspec.json.encode({str(log): [200, []]})
    await owner.write(owner.commit(owner.injector, acked=text))
    assert not await site.store.drop_bucket(old)
    assert not await site.store.drop_bucket(new), "buckets go in their order"
    assert old in await site.store.live_buckets()


async def test_a_bucket_of_named_ids_goes_when_the_engine_says_so(site: Site) -> None:
    await deploy(site.store)
    bucket = await site.store.open_bucket("named", 0, 0, 10)
    assert await site.store.drop_bucket(bucket)
    assert [b.family for b in await site.store.live_buckets()] == ["time"]


BY_ID = {
    "nodes": {
        "lines": {"writes": ["words"]},
        "count": {"inputs": [["words", "id_of"]], "writes": ["totals"], "named": True},
    }
}
"""A graph whose injector's rows have user-supplied ids."""


async def test_a_bucket_of_named_ids_stays_while_rows_may_come_again_that_are_in_it(
    site: Site,
) -> None:
    """Only the store can tell: whoever asks may know nothing of the partition."""
    owner = await Owner.take(site.store, await deploy(site.store, graph=BY_ID))
    buckets = [
        await site.store.open_bucket("named", 0, START + low * SECOND, START + (low + 5) * SECOND)
        for low in (-5, 0, 5, 10)
    ]
    before, first, second, third = buckets
    assert await site.store.drop_bucket(before), "it ended before the deploy"
    assert not await site.store.drop_bucket(first), "nothing was ever committed"

    async def sent_since(seconds: int) -> None:
        position = msgspec.json.encode({"sent_since": START + seconds * SECOND})
        await owner.write(owner.commit(owner.injector, position=position))

    await sent_since(4)
    assert not await site.store.drop_bucket(first)
    await sent_since(5)
    assert await site.store.drop_bucket(first)
    assert not await site.store.drop_bucket(second)
    await owner.write(owner.commit(owner.intervals[0]))  # of the relay: that says nothing of rows
    assert not await site.store.drop_bucket(second)
    await sent_since(12)
    assert await site.store.drop_bucket(second)
    assert not await site.store.drop_bucket(third)


# -- states of other versions -------------------------------------------------------------------


@pytest.mark.parametrize("folded", [False, True])
async def test_states_of_other_versions_are_sampled(site: Site, folded: bool) -> None:
    """Some of each version, as they are committed, and of each map; removed states are none."""
    owner = await Owner.take(site.store)
    first = owner.commit()
    first.states = [owner.state(f"key {n}", {"n": n}, version=1) for n in range(6)]
    first.states += [owner.state("key 0", n, f"map/{n}", version=1) for n in range(3)]
    first.states += [owner.state(f"more {n}", {"m": n}, version=3) for n in range(2)]
    await owner.write(first)
    if folded:
        await _fold_all(site.store, owner)
    second = owner.commit()
    second.states = [owner.state("key 1", {"n": 10}), owner.state("key 2", None)]
    await owner.write(second)

    async def sampled(version: int, most: int) -> list[tuple[str, Any, str, int, Any]]:
        found = await site.store.sample_states({"count": version, "lines": 7}, most)
        return [
            (
                old.computation,
                msgspec.json.decode(old.key),
                old.entry,
                old.version,
                msgspec.json.decode(old.value),
            )
            for old in found
        ]

    found = await sampled(2, 100)
    assert sorted(found) == sorted(
        [("count", f"key {n}", "", 1, {"n": n}) for n in (0, 3, 4, 5)]
        + [("count", "key 0", f"map/{n}", 1, n) for n in range(3)]
        + [("count", f"more {n}", "", 3, {"m": n}) for n in range(2)]
    )
    few = [(entry, version) for _, _, entry, version, _ in await sampled(2, 1)]
    assert sorted(few) == [("", 1), ("", 3), ("map/0", 1)]
    assert {version for _, _, _, version, _ in await sampled(1, 100)} == {2, 3}
    assert await sampled(2, 0) == []
    assert await site.store.sample_states({}, 10) == []


# -- workers ----------------------------------------------------------------------------------


async def test_a_worker_is_seen_by_others_until_it_stops(site: Site) -> None:
    await deploy(site.store)
    one, two = str(uuid.uuid4()), str(uuid.uuid4())
    await site.store.register_worker(one, 30.0)
    await site.store.register_worker(two, 0.0)
    (seen,) = await site.store.other_workers(two)
    assert seen.id == one
    assert 20.0 < seen.lease_left <= 30.0
    (seen,) = await site.store.other_workers(one)
    assert (seen.id, seen.lease_left) == (two, 0.0)
    await (await site.another()).heartbeat(two, 50.0, {"backlog": 3, "share": 0.5})
    (seen,) = await site.store.other_workers(one)
    assert 40.0 < seen.lease_left <= 50.0
    assert not site.store.is_dead(seen)  # it is this very process
    await site.store.stop_worker(one)
    assert await site.store.other_workers(two) == []
    await site.store.end_worker(seen)
    assert await site.store.other_workers(one) == []


async def test_a_lease_ends_with_the_liveness_lock(site: Site) -> None:
    await deploy(site.store)
    one, two, three = (str(uuid.uuid4()) for _ in range(3))
    for worker in (one, two, three):
        await site.store.register_worker(worker, 30.0)
    assert await site.store.end_lost_leases([one]) == [], "it has never held the lock"
    of_one, of_two = await site.another(), await site.another()
    await of_one.heartbeat(one, 30.0, {})
    await of_two.heartbeat(two, 30.0, {})
    assert await site.store.end_lost_leases([one, two, three]) == []
    await of_one.heartbeat(one, 30.0, {})  # it holds the lock twice now
    await site.end_liveness_session(one)
    assert await site.store.end_lost_leases([two, three]) == [], "nobody suspects it"
    assert await site.store.end_lost_leases([one, two, three]) == [one]
    left = {worker.id: worker.lease_left for worker in await site.store.other_workers(three)}
    assert left[one] == 0.0 < left[two]
    assert await site.store.end_lost_leases([one]) == [], "its lease is over"


async def test_a_worker_that_was_taken_for_dead_renews_its_lease(site: Site) -> None:
    await deploy(site.store)
    one, two = str(uuid.uuid4()), str(uuid.uuid4())
    await site.store.register_worker(one, 30.0)
    await site.store.heartbeat(one, 30.0, {})
    await site.end_liveness_session(one)
    assert await site.store.end_lost_leases([one]) == [one]
    store = await site.another()
    await store.heartbeat(one, 30.0, {})
    (seen,) = await store.other_workers(two)
    assert seen.lease_left > 20.0
    assert await store.end_lost_leases([one]) == [], "it holds its lock again"


async def test_nobody_is_judged_by_locks_of_a_former_start_of_the_server(site: Site) -> None:
    await deploy(site.store)
    one = str(uuid.uuid4())
    await site.store.register_worker(one, 30.0)
    await site.store.heartbeat(one, 30.0, {})
    await site.end_liveness_session(one)
    await site.server_starts_again()
    assert await site.store.end_lost_leases([one]) == []


async def test_nobody_holds_an_old_snapshot(site: Site) -> None:
    await deploy(site.store)
    assert await site.store.oldest_snapshot_seconds() < 5.0


async def test_a_closed_lane_takes_no_commit(site: Site) -> None:
    owner = await Owner.take(site.store)
    await owner.lane.close()
    with pytest.raises(StoreError):
        await owner.lane.commit(owner.commit())
    owner.lane = await site.store.open_lane()
    await owner.write(owner.commit())


async def test_lanes_commit_beside_each_other(site: Site) -> None:
    owner = await Owner.take(site.store)
    lanes = [await site.store.open_lane() for _ in owner.intervals]

    async def work(number: int) -> None:
        for _ in range(5):
            commit = owner.fill(owner.commit(owner.intervals[number]), 30)
            commit.seen, commit.productions = {}, []
            await lanes[number].commit(commit)
            owner.links[commit.intervals[0].interval_id] = commit.intervals[0]

    await asyncio.gather(work(0), work(1))
    first, second = await owner.claim(*owner.intervals)
    assert (first.n, second.n) == (5, 5)
    assert len(first.states) + len(second.states) == 30


# -- what only the store in memory can do ----------------------------------------------------------


@pytest.fixture
def memory() -> MemorySite:
    return MemorySite()


def _raise(error: BaseException) -> Callable[[Any], Awaitable[None]]:
    async def hook(_: Any) -> None:
        raise error

    return hook


@pytest.mark.parametrize("error", [StoreUnavailable("away"), CommitUnknown("?"), Fenced("late")])
async def test_a_fault_before_a_commit_leaves_no_trace(
    memory: MemorySite, error: Exception
) -> None:
    owner = await Owner.take(memory.store)
    before = await look(memory, owner)
    memory.store.faults.before_commit = _raise(error)
    with pytest.raises(type(error)):
        await owner.lane.commit(owner.fill(owner.commit(), 2))
    memory.store.faults.before_commit = None
    assert await look(memory, owner) == before


@pytest.mark.parametrize("error", [StoreUnavailable("away"), CommitUnknown("?")])
async def test_a_fault_after_a_commit_leaves_it_durable(
    memory: MemorySite, error: Exception
) -> None:
    owner = await Owner.take(memory.store)
    memory.store.faults.after_commit = _raise(error)
    with pytest.raises(type(error)):
        await owner.lane.commit(owner.fill(owner.commit(), 2))
    memory.store.faults.after_commit = None
    assert len(await memory.states()) == 2
    assert [claim.n for claim in await owner.claim(*owner.intervals)] == [1, 1]
    if isinstance(error, CommitUnknown):  # the connection is lost with it
        with pytest.raises(StoreUnavailable):
            await owner.lane.commit(owner.commit())


async def test_a_commit_that_is_cut_off_may_take_effect_until_somebody_claims(
    memory: MemorySite,
) -> None:
    owner = await Owner.take(memory.store)
    lost = owner.fill(owner.commit(), 2)
    reached = asyncio.Event()

    async def for_ever(_: Commit) -> None:
        reached.set()
        await asyncio.Event().wait()

    memory.store.faults.before_commit = for_ever
    task = asyncio.create_task(owner.lane.commit(lost))
    await reached.wait()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert await memory.states() == []
    memory.store.apply(lost)
    assert len(await memory.states()) == 2
    await owner.claim()
    with pytest.raises(Fenced):
        memory.store.apply(owner.fill(replace(lost), 2, first=10))


async def test_every_call_may_fail_and_lets_others_run(memory: MemorySite) -> None:
    called: list[str] = []

    async def away(name: str) -> None:
        called.append(name)
        if name == "live_buckets":
            raise StoreUnavailable("away")

    memory.store.faults.before_call = away
    await deploy(memory.store)
    with pytest.raises(StoreUnavailable):
        await memory.store.live_buckets()
    assert called == ["deploy", "live_buckets"]

    turns: list[int] = []

    async def work(number: int) -> None:
        for _ in range(3):
            await memory.store.oldest_snapshot_seconds()
            turns.append(number)

    await asyncio.gather(work(0), work(1))
    assert turns == [0, 1] * 3


async def test_a_refused_row_is_known_by_its_table_and_values(memory: MemorySite) -> None:
    owner = await Owner.take(memory.store)
    memory.store.faults.refuse = lambda what, values: (
        "no bad words" if what == "counts" and values[0] == "bad" else None
    )
    commit = owner.commit()
    commit.rows = [(COUNTS, row("good", 1))]
    await owner.write(commit)
    commit = owner.commit()
    commit.rows = [(COUNTS, row("bad", 1))]
    with pytest.raises(StatementError, match="no bad words"):
        await owner.lane.commit(commit)
    assert memory.store.rows("counts") == [row("good", 1)]


async def test_leases_run_by_the_clock_of_the_store(memory: MemorySite) -> None:
    await memory.store.register_worker("one", 30.0)
    memory.clock.advance(29.0)
    (one,) = await memory.store.other_workers("two")
    assert one.lease_left == pytest.approx(1.0)
    memory.clock.advance(2.0)
    (one,) = await memory.store.other_workers("two")
    assert one.lease_left == 0.0
    memory.store.dead_workers.add("one")
    assert memory.store.is_dead(one)


async def test_statements_are_kept_with_their_commits(memory: MemorySite) -> None:
    owner = await Owner.take(memory.store)
    commit = owner.commit()
    commit.statements = [("INSERT INTO mine VALUES (%s)", (1,))]
    await owner.write(commit)
    assert memory.store.statements == [("INSERT INTO mine VALUES (%s)", (1,))]
    assert memory.store.state("count", b'"nobody"') == {}


async def test_the_store_tells_its_time(site: Site) -> None:
    first = await site.store.now()
    assert START <= first <= await site.store.now()


async def test_the_workers_of_a_pipeline_get_one_secret_whoever_asks_first(site: Site) -> None:
    stores = [site.store, *[await site.another() for _ in range(4)]]
    first = await asyncio.gather(*(store.peer_secret() for store in stores))
    again = await site.store.peer_secret()
    assert {*first, again} == {again}
    assert len(again) == 32
    assert len({*again}) > 8, "random"


async def test_a_placement_names_the_logs_that_each_owner_sends(site: Site) -> None:
    """Those of the last claim, and of claims before it that are not drained; retired ones are left
    out."""
    owner = await Owner.take(site.store)
    before = {row.id: row.logs for row in (await site.store.read_placement()).intervals}
    claims = await site.store.claim(owner.worker, list(before), again=True)
    after = {row.id: row.logs for row in (await site.store.read_placement()).intervals}
    for claim in claims:
        logs = after[claim.interval.id]
        assert set(logs) >= {log.id for log in claim.logs}
        if claim.new_log:
            assert claim.new_log in logs
        assert [*logs] == sorted(logs)
    retired = next(log for logs in after.values() for log in logs)
    await site.store.retire_logs([retired])
    left = {log for row in (await site.store.read_placement()).intervals for log in row.logs}
    assert left == {log for logs in after.values() for log in logs} - {retired}
