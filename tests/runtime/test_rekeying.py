"""Key extractors that change under one name: nothing counts twice, and nothing is left behind
unsaid."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from structlog.testing import capture_logs

from millwheel import Computation, Context, Pipeline, Record, Stream, Table
from millwheel.core.extractors import Keys
from millwheel.core.model import Key
from millwheel.errors import DeployRefused
from millwheel.store.port.commit import Commit
from millwheel.store.port.deploy import Deployment, NodeDeploy
from tests.support.pipelines import QUICK, Tally, script
from tests.support.rolling_clusters import Rolling
from tests.support.store_sites import COUNT, Owner, Site, deploy
from tests.support.values import ITEMS, TALLY, Counted, Item, key_of, time_of
from tests.support.worlds import Gate, World

pytestmark = pytest.mark.newest

MID = Stream("mid", Item)
VALUES = [Item("abcdefgh"[number % 8], number) for number in range(24)]
LANES = replace(QUICK, intervals=4)
"""So that most keys go to another interval when they are changed."""

By = Callable[[Item], Key]
BEFORE: By = lambda item: item.key  # noqa: E731 - the name of both is what they share
AS_BEFORE: By = lambda record: record.key  # noqa: E731  # another name, and a line of its own
AFTER: By = lambda item: item.key.upper()  # noqa: E731


class PassOn(Computation[Item, None]):
    writes = (MID,)

    async def process_record(self, record: Record[Item], ctx: Context[None]) -> None:
        ctx.produce(MID, record.value)


class Tell(Computation[Item, None]):
    """Counts nothing: it keeps no state."""

    writes = (TALLY,)

    async def process_record(self, record: Record[Item], ctx: Context[None]) -> None:
        item = record.value
        ctx.produce(TALLY, Counted(item.key, item.number, 0))


def tallied(by: By, version: int = 1, *, weakly: bool = False, stateless: bool = False) -> Pipeline:
    """Items to a reader that takes its keys so, from a source or from a weak computation."""
    made = Pipeline("tallied", settings=LANES)
    made.inject(ITEMS, script(ITEMS, VALUES), timestamp=time_of)
    stream = ITEMS
    if weakly:
        made.add(PassOn(), ITEMS.by(key_of), productions="weak")
        stream = MID
    made.add(Tell() if stateless else Tally(), stream.by(by, version=version), name="reader")
    made.sink(TALLY, Table("out", Counted, numbered=True))
    return made


async def killed(pipeline: Pipeline) -> World:
    """A worker dies when the reader's first effects are durable, and nothing is acknowledged."""
    world = World(pipeline)
    engine = await world.start()
    noted: list[Commit] = []

    def durable(commit: Commit) -> object:
        if any(commit.seen.values()):
            noted.append(commit)
        return Gate().wait() if noted else None

    world.on_durable = durable  # type: ignore[assignment]
    await world.until(lambda: noted)
    await engine.kill()
    world.on_durable = None
    assert world.numbers()
    return world


@pytest.mark.parametrize("weakly", [False, True], ids=["of a source", "made again"])
@pytest.mark.parametrize("stateless", [False, True], ids=["with state", "without state"])
async def test_what_was_not_acknowledged_counts_once_under_other_keys(
    weakly: bool, stateless: bool
) -> None:
    world = await killed(tallied(BEFORE, weakly=weakly, stateless=stateless))
    after = tallied(AFTER, 1 if stateless else 2, weakly=weakly, stateless=stateless)
    with capture_logs() as logs:
        engine = await world.start(after)
        await world.finish(engine)
    assert sorted(world.numbers()) == [value.number for value in VALUES]
    (said,) = (line for line in logs if line["event"] == "key_extractor_changed")
    assert (said["computation"], said["stream"]) == ("reader", "mid" if weakly else "items")
    assert ("state_of_reader" in said["what_to_do"]) != stateless
    with capture_logs() as logs:  # the same code once more is nothing new
        await world.finish(await world.start(after))
    assert not [line for line in logs if line["event"] == "key_extractor_changed"]


class Odd:
    """An extractor that nobody can tell anything of."""

    __call__ = staticmethod(lambda item: item.key)


class Odder(Odd):
    __call__ = staticmethod(lambda item: item.key.upper())


Odder.__name__ = "Odd"


@pytest.mark.parametrize("weakly", [False, True], ids=["of a source", "made again"])
async def test_what_nobody_can_tell_anything_of_counts_once_too(weakly: bool) -> None:
    """Whether keys are others is not known here; it does not matter for what was not
    acknowledged."""
    world = await killed(tallied(Odd(), weakly=weakly))
    engine = await world.start(tallied(Odder(), weakly=weakly))
    await world.finish(engine)
    assert sorted(world.numbers()) == [value.number for value in VALUES]


async def test_a_change_that_leaves_state_behind_must_be_meant() -> None:
    """Refused, with what to do; nothing has changed for the former code, which goes on."""
    before, after = tallied(BEFORE), tallied(AFTER)
    world = await killed(before)
    with pytest.raises(DeployRefused, match=r"'reader' for stream 'items'.*stored state") as told:
        await world.start(after)
    assert ".by(..., version=2)" in str(told.value)
    assert "state_of_reader" in str(told.value)
    await world.finish(await world.start(before))
    assert sorted(world.numbers()) == [value.number for value in VALUES]
    assert len(world.store.tables.generations) == 1


async def test_code_that_is_written_otherwise_is_the_same() -> None:
    world = World(tallied(BEFORE))
    await world.run()
    await world.finish(await world.start(tallied(AS_BEFORE)))
    assert len(world.store.tables.generations) == 1


async def test_who_says_a_version_goes_on_from_there() -> None:
    """Former code is refused from then on; going back is another change."""
    world = World(tallied(BEFORE))
    await world.run()
    await world.finish(await world.start(tallied(AFTER, 2)))
    with pytest.raises(DeployRefused, match=r"version 2, .* only version 1; .*version = 3"):
        await world.start(tallied(BEFORE))
    await world.finish(await world.start(tallied(BEFORE, 3)))
    assert [g.code.keys["reader"]["items"].version for g in world.store.tables.generations] == [
        1, 2, 3,
    ]  # fmt: skip


async def test_keys_are_not_changed_while_workers_of_former_code_run() -> None:
    """A rolling upgrade: records on their way would count under both. When all have stopped, new
    ones go on; one of the former code finds nothing left to do."""
    values = [Item("abcdefgh"[number % 8], number) for number in range(400)]
    settings = replace(LANES, chunk_records=3, bundle_records=6, max_unacked_records=12,
                       placement_seconds=0.2, lease_seconds=3.0)  # fmt: skip

    def made(by: By) -> Pipeline:
        made = Pipeline("tallied", settings=settings)
        made.inject(ITEMS, script(ITEMS, values), timestamp=time_of)
        made.add(Tell(), ITEMS.by(by), name="reader")
        made.sink(TALLY, Table("out", Counted, numbered=True))
        return made

    cluster = Rolling(made(BEFORE))
    olds = [await cluster.start_worker(made(BEFORE)) for _ in range(2)]
    await cluster.go(lambda: all(engine.processed > 5 for engine in olds))
    with pytest.raises(DeployRefused, match=r"workers of the former code run \(2\)"):
        await cluster.start_worker(made(AFTER))
    for engine in olds:
        await cluster.crash(engine)
    await cluster.pass_time(cluster.clock.sleep(5.0))
    await cluster.start_worker(made(AFTER))
    with pytest.raises(DeployRefused, match="No interval is left for it"):
        await cluster.start_worker(made(BEFORE))
    await cluster.start_worker(made(AFTER))
    await cluster.go(cluster.finished)
    assert sorted(cluster.numbers()) == list(range(400))
    await cluster.close()


# -- the store ----------------------------------------------------------------------------------


def keyed(version: int, print_: str | None, **changes: Any) -> NodeDeploy:
    """The computation `count`, which takes keys of words so; it keeps state."""
    return replace(COUNT, keys={"words": Keys(version, print_)}, **changes)


async def process_one(site: Site, deployment: Deployment) -> None:
    """Let the computation process a record: from then on it may have state."""
    owner = await Owner.take(site.store, deployment)
    await owner.write(owner.commit(owner.intervals[0], counters=b'{"processed":1}'))


async def test_the_store_says_what_was_changed_and_whose_ids_may_be_elsewhere(site: Site) -> None:
    first = await deploy(site.store, count=keyed(1, "source:a"))
    assert (first.generation, first.rekeyed, first.newly_rekeyed) == (1, frozenset(), ())
    await process_one(site, first)
    same = await deploy(site.store, count=keyed(1, "source:a"))
    assert (same.generation, same.rekeyed) == (1, frozenset())
    with pytest.raises(DeployRefused, match="other code of a key extractor, for stored state"):
        await deploy(site.store, count=keyed(1, "source:b"))
    second = await deploy(site.store, count=keyed(2, "source:b"))
    assert (second.generation, second.newly_rekeyed) == (2, (("count", "words"),))
    assert second.rekeyed == {"count"}
    again = await deploy(site.store, count=keyed(2, "source:b"))
    assert (again.generation, again.newly_rekeyed) == (2, ())
    assert again.rekeyed == {"count"}
    for generation in [row.generation for row in (await site.store.read_placement()).intervals]:
        assert generation == 2, "no former code may have any of them"


@pytest.mark.parametrize("unknown", [None, "compiled:a"])
async def test_what_cannot_be_compared_is_no_change(site: Site, unknown: str | None) -> None:
    """Not every machine has the source; and pipelines were deployed before it was looked at."""
    await deploy(site.store, count=COUNT)
    await deploy(site.store, count=keyed(1, "source:a"))
    found = await deploy(site.store, count=keyed(1, unknown))
    assert (found.generation, found.newly_rekeyed) == (2, ())
    assert found.rekeyed == {"count"}, "nobody can tell"
    await process_one(site, found)
    with pytest.raises(DeployRefused, match="other code of a key extractor, for stored state"):
        await deploy(site.store, count=keyed(1, "source:b"))


async def test_any_keys_are_taken_where_nothing_was_processed(site: Site) -> None:
    """A misspelt field fails at the first record; its correction leaves nothing behind."""
    await deploy(site.store, count=keyed(1, "source:a"))
    found = await deploy(site.store, count=keyed(1, "source:b"))
    assert (found.generation, found.newly_rekeyed) == (2, (("count", "words"),))


async def test_keys_stay_while_a_numbered_bundle_is_begun(site: Site) -> None:
    """Its records would come again elsewhere, and it would wait for them for ever."""
    owner = await Owner.take(site.store, await deploy(site.store, count=keyed(1, "source:a")))

    async def write(open_: list[str]) -> None:
        position = msgspec.json.encode({"bundle": {"number": 1, "open": open_}})
        await owner.write(owner.commit(owner.intervals[0], position=position))

    await write([bytes(16).hex()])
    with pytest.raises(DeployRefused, match="a numbered bundle of 'count' is open"):
        await deploy(site.store, count=keyed(2, "source:a"))
    await deploy(site.store, count=keyed(1, "source:a"))
    await write([])
    assert (await deploy(site.store, count=keyed(2, "source:a"))).generation == 2


async def test_keys_stay_while_records_wait_in_parked_keys(site: Site) -> None:
    """They would run under their former keys, behind later ones of the new keys."""
    owner = await Owner.take(site.store, await deploy(site.store, count=keyed(1, "source:a")))
    letter = owner.dead_letter(1)._replace(parked="failed", watermark=0, hold=0)
    commit = owner.commit()
    commit.dead_letters = [letter]
    await owner.write(commit)
    with pytest.raises(DeployRefused, match="'count' has parked keys"):
        await deploy(site.store, count=keyed(2, "source:a"))
    assert (await deploy(site.store, count=keyed(1, "source:a"))).generation == 1


async def test_who_shares_the_pipeline_waits_until_the_others_have_stopped(site: Site) -> None:
    await deploy(site.store, count=keyed(1, "source:a"))
    worker, silent = str(uuid.uuid4()), str(uuid.uuid4())
    await site.store.register_worker(worker, 60.0, address="somewhere", generation=1)
    await site.store.register_worker(silent, 0.0, address="somewhere", generation=1)
    with pytest.raises(DeployRefused, match=r"workers of the former code run \(1\)"):
        await deploy(site.store, count=keyed(2, "source:a"), shared=True)
    await deploy(site.store, count=keyed(1, "source:a"), shared=True)
    await site.store.stop_worker(worker)
    found = await deploy(site.store, count=keyed(2, "source:a"), shared=True)
    assert found.generation == 2
