"""What the status of a pipeline says of workers, of who is to own what, and of what rests."""

from __future__ import annotations

import uuid

import msgspec
import pytest
from msgspec.structs import replace

from millwheel.cli.commands.status_command import status
from millwheel.cli.options import CommonOptions
from millwheel.cli.refreshing import WatchOptions
from millwheel.cli.status_text import at_work, flow_text, sink_text, unowned
from millwheel.cli.watch_text import lines
from millwheel.core.model import MAX_TIME
from millwheel.store.console.inspection import PipelineStatus, SinkStatus, SourceFlow, inspect
from millwheel.store.port.placement import Wish
from tests.support.store_sites import START, Owner, PostgresSite

pytestmark = pytest.mark.newest


def look(site: PostgresSite) -> PipelineStatus:
    with inspect(site.schema.url) as inspection:
        return inspection.status(site.schema.name)


async def test_what_a_worker_said_of_itself_last(postgres: PostgresSite) -> None:
    owner = await Owner.take(postgres.store)
    other = str(uuid.uuid4())
    await postgres.store.register_worker(other, 9.0, address="10.0.0.1:7000")
    await postgres.store.heartbeat(owner.worker, 9.0, {"cpu": 0.25, "rss_bytes": 1 << 33})
    mine, theirs = look(postgres).workers
    assert (mine.id, mine.intervals, mine.address) == (owner.worker, 3, "")
    assert (mine.cpu, mine.rss_bytes) == (0.25, 1 << 33)
    assert (theirs.id, theirs.intervals) == (other, 0)
    assert theirs.address == "10.0.0.1:7000"
    assert (theirs.cpu, theirs.rss_bytes) == (None, None), "it has said nothing yet"


async def test_workers_that_are_gone_come_after_those_that_run(postgres: PostgresSite) -> None:
    owner = await Owner.take(postgres.store)
    gone, running = str(uuid.uuid4()), str(uuid.uuid4())
    await postgres.query("UPDATE {w} SET started_at = now()", w="worker")
    await postgres.store.register_worker(gone, -3.0, address="10.0.0.1:7000")
    await postgres.store.register_worker(running, 9.0, address="10.0.0.2:7000")
    assert [(worker.id, worker.state) for worker in look(postgres).workers] == [
        (owner.worker, "running"), (running, "running"), (gone, "silent"),
    ]  # fmt: skip


async def test_how_much_of_a_source_is_on_its_way(postgres: PostgresSite) -> None:
    owner = await Owner.take(postgres.store)
    (source,) = look(postgres).sources
    assert source.flow is None, "its owner has said nothing yet"
    told = {"pending": 40, "cap": 1200, "latency": 0.25, "target": 0.5}
    load = {"intervals": {str(owner.injector.id): {"flow": told}}}
    await postgres.store.heartbeat(owner.worker, 9.0, load)
    (source,) = look(postgres).sources
    assert source.flow == SourceFlow(40, 1200, 0.25, 0.5)
    assert flow_text(source.flow) == (
        "40 of 1,200 rows pending, acknowledged in 0.25 s (target 0.50 s)"
    )
    assert flow_text(SourceFlow(0, 8000, None, None)) == "0 of 8,000 rows pending"
    await postgres.store.heartbeat(owner.worker, 0.0, load)
    (source,) = look(postgres).sources
    assert source.flow is None, "nobody alive has it"


async def test_what_waits_in_queues_and_in_user_code(postgres: PostgresSite) -> None:
    owner = await Owner.take(postgres.store)
    low, high = owner.intervals
    commit = owner.commit()
    commit.productions = [owner.production("a", n) for n in range(3)]
    await owner.write(commit)
    (count,) = [one for one in look(postgres).computations if one.name == "count"]
    assert (count.backlog, count.at_work) == (3, 0), "sent and not acknowledged"
    load = {
        "intervals": {
            str(low.id): {"queue": 40, "at_work": {"keys": 2, "oldest": "'a'", "seconds": 1.5}},
            str(high.id): {"queue": 2, "at_work": {"keys": 1, "oldest": "7", "seconds": 4.25}},
        }
    }
    await postgres.store.heartbeat(owner.worker, 9.0, load)
    (count,) = [one for one in look(postgres).computations if one.name == "count"]
    assert (count.backlog, count.at_work) == (42, 3), "rows of a source wait in queues only"
    assert at_work(count) == "3, oldest 4.2 s, key 7"


async def test_which_bundle_a_sink_delivers_and_since_when(postgres: PostgresSite) -> None:
    owner = await Owner.take(postgres.store)
    low, high = owner.intervals
    for interval, bundle in (
        (low, {"number": 5}),
        (high, {"number": 9, "open": ["00", "01"], "previous": 7, "at": START}),
    ):
        commit = owner.commit(interval)
        commit.intervals[0].position = msgspec.json.encode({"bundle": bundle})
        await owner.lane.commit(commit)
    await postgres.store.heartbeat(
        owner.worker, 9.0, {"intervals": {str(high.id): {"queue": 1200}}}
    )
    idle, busy = look(postgres).sinks
    assert idle == SinkStatus("count", low.id, 5, None, None, None, None)
    assert busy.open_seconds is not None
    assert replace(busy, open_seconds=2.5) == SinkStatus("count", high.id, 7, 9, 2, 2.5, 1200)
    assert sink_text(replace(busy, open_seconds=2.5)) == (
        f"count delivers bundle 9 of scope {high.id}, 2 records, for 2.5 s; 1,200 records wait"
    )


async def test_an_interval_is_moving_while_another_than_its_owner_is_to_have_it(
    postgres: PostgresSite,
) -> None:
    owner = await Owner.take(postgres.store)
    lower, upper = owner.intervals
    other = str(uuid.uuid4())
    wanted = {lower.id: owner.worker, upper.id: other}
    sequencers = {id_: claim.interval.sequencer for id_, claim in owner.claims.items()}
    await postgres.store.wish([Wish(i, sequencers[i], w, "test") for i, w in wanted.items()])
    assert _moving(postgres) == {upper.id: (owner.worker, other)}
    await postgres.store.release(owner.worker, {upper.id: sequencers[upper.id]})
    assert _moving(postgres) == {upper.id: (None, other)}


def _moving(site: PostgresSite) -> dict[int, tuple[str | None, str]]:
    """Owner and next owner of what is on its way."""
    found = look(site).intervals
    return {i.id: (i.owner, i.wanted_by) for i in found if i.wanted_by is not None}


async def test_intervals_of_nobody_alive_are_told(postgres: PostgresSite) -> None:
    owner = await Owner.take(postgres.store)
    assert unowned(look(postgres)) == []
    upper = owner.intervals[1]
    sequencer = owner.claims[upper.id].interval.sequencer
    await postgres.store.release(owner.worker, {upper.id: sequencer})
    line = "count: 1 of 2 key intervals unowned; records queue upstream"
    assert unowned(look(postgres)) == [line]
    await postgres.store.heartbeat(owner.worker, 0.0, {})
    assert unowned(look(postgres)) == [
        "lines: 1 of 1 partitions unowned; no rows are read",
        "count: 2 of 2 key intervals unowned; records queue upstream",
    ]


async def _write(owner: Owner, low_watermark: int) -> None:
    """Commits of all intervals that promise so much."""
    for interval in (owner.injector, *owner.intervals):
        ends = {"input_watermark": low_watermark, "low_watermark": low_watermark}
        await owner.write(owner.commit(interval, **ends))


async def test_a_pipeline_at_the_end_of_time_is_complete(
    postgres: PostgresSite, capsys: pytest.CaptureFixture[str]
) -> None:
    owner = await Owner.take(postgres.store)
    await _write(owner, START)
    holders = "SELECT computation FROM {h} ORDER BY computation"
    assert await postgres.query(holders, h="watermark_holders") == [("count",), ("lines",)]
    await postgres.store.stop_worker(owner.worker)
    assert not look(postgres).complete
    assert len(unowned(look(postgres))) == 2
    status(
        postgres.schema.name,
        watching=WatchOptions(),
        common=CommonOptions(store=postgres.schema.url),
    )
    told = capsys.readouterr().out
    assert "no worker is running it" in told
    assert "complete" not in told

    await _write(await Owner.take(postgres.store, owner.deployment), MAX_TIME)
    for worker in look(postgres).workers:
        await postgres.store.stop_worker(worker.id)
    found = look(postgres)
    assert found.complete
    assert unowned(found) == []
    assert [one.holder for one in found.computations] == [None, None]
    assert await postgres.query(holders, h="watermark_holders") == []
    status(
        postgres.schema.name,
        watching=WatchOptions(),
        common=CommonOptions(store=postgres.schema.url),
    )
    told = capsys.readouterr().out
    assert "complete: all input is processed, and event time is at its end" in told
    assert "no worker is running it" not in told
    assert "unowned" not in told
    assert "complete" in "".join(lines([found]))


async def test_a_pipeline_with_records_on_their_way_is_not_complete(postgres: PostgresSite) -> None:
    owner = await Owner.take(postgres.store)
    await _write(owner, MAX_TIME)
    commit = owner.commit(input_watermark=MAX_TIME, low_watermark=MAX_TIME)
    commit.productions = [owner.production("a", 1)]
    await owner.write(commit)
    found = look(postgres)
    assert [one.backlog for one in found.computations] == [0, 1]
    assert not found.complete


async def test_injectors_that_rest_are_told(postgres: PostgresSite) -> None:
    await Owner.take(postgres.store)
    assert [c.paused for c in look(postgres).computations] == [False, False]
    await postgres.pause("lines")
    assert {c.name: c.paused for c in look(postgres).computations} == {
        "lines": True,
        "count": False,
    }
