"""What the status of a pipeline says of workers, of who is to own what, and of what rests."""

from __future__ import annotations

import uuid

from millwheel.cli.store import flow_text, unowned
from millwheel.store.inspection import PipelineStatus, SourceFlow, inspect
from millwheel.store.port import Wish
from tests.store_contract import Owner, PostgresSite


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
    line = "nobody has 1 of 2 intervals of count: what is sent there waits"
    assert unowned(look(postgres)) == [line]
    await postgres.store.heartbeat(owner.worker, 0.0, {})
    assert unowned(look(postgres)) == [
        "nobody has 1 of 1 intervals of lines: what is sent there waits",
        "nobody has 2 of 2 intervals of count: what is sent there waits",
    ]


async def test_injectors_that_rest_are_told(postgres: PostgresSite) -> None:
    await Owner.take(postgres.store)
    assert [c.paused for c in look(postgres).computations] == [False, False]
    await postgres.pause("lines")
    assert {c.name: c.paused for c in look(postgres).computations} == {
        "lines": True,
        "count": False,
    }
