"""What an operator wishes of intervals: on a cluster in memory, and by the command on Postgres."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from millwheel import Pipeline, Table
from millwheel.core.model import SLOTS
from millwheel.errors import NotCarriedOut, UsageError
from millwheel.runtime.engine import Engine
from millwheel.services.operating import Operator
from millwheel.services.worker import PipelineWorker
from millwheel.store.port.placement import PlacedInterval
from millwheel.store.postgres.store import PostgresStore
from tests.support.clusters import SHARED, counting, many
from tests.support.forked_commands import Forked, parent
from tests.support.lone_clusters import Lone, report_load
from tests.support.pipelines import Do, produce, script
from tests.support.store_sites import Schema
from tests.support.values import ITEMS, TALLY, Counted, time_of
from tests.support.visit_files import pipeline, write
from tests.support.worlds import Gate


class Desk:
    """An operator at a cluster."""

    def __init__(self, cluster: Lone) -> None:
        self.cluster = cluster
        self.told: list[str] = []
        self.operator = Operator(cluster.store, cluster.clock, self.told.append)

    async def do(self, work: Any) -> Any:
        """Let an operator's work come to its end; gives what it gives."""
        task = asyncio.ensure_future(work)
        await self.cluster.go(task.done)
        return await task


async def at_rest(workers: int, limits: Any = SHARED) -> tuple[Lone, Desk]:
    cluster = Lone(counting(many(200), limits))
    for _ in range(workers):
        await cluster.join()
    await cluster.go(cluster.finished)
    return cluster, Desk(cluster)


async def told_load(cluster: Lone, loads: dict[int, float]) -> None:
    """Let every heartbeat tell this load, whatever the records of before have really cost."""
    report_load(cluster, loads)
    until = cluster.clock.monotonic() + 2
    await cluster.go(lambda: cluster.clock.monotonic() > until)


async def row_of(cluster: Lone, id_: int) -> PlacedInterval:
    placement = await cluster.store.read_placement()
    (row,) = (row for row in placement.intervals if row.id == id_)
    return row


async def test_a_move_pins_and_waits_until_it_is_there() -> None:
    cluster, desk = await at_rest(2)
    row, _ = await cluster.parts("tally")
    (other,) = (engine for engine in cluster.alive if engine.worker != row.owner)
    await desk.do(desk.operator.move(row.id, other.worker[:6].upper(), 30))
    found = await row_of(cluster, row.id)
    assert (found.owner, found.wanted_by, found.pinned) == (other.worker, other.worker, True)
    assert (
        desk.told[0]
        == (
            f"waiting for worker {row.owner[:8]} to finish its work in interval {row.id} "  # type: ignore[index]
            f"and hand it over to {other.worker[:8]}"
        )
    )
    assert await desk.do(desk.operator.unpin(row.id))
    assert not (await row_of(cluster, row.id)).pinned
    assert not await desk.do(desk.operator.unpin(row.id))
    await cluster.end(many(200))


async def test_a_split_is_where_the_load_has_its_median_or_in_the_middle() -> None:
    cluster, desk = await at_rest(1, replace(SHARED, lease_seconds=1.5))
    row, upper = await cluster.parts("tally")
    await told_load(cluster, {})
    assert await desk.do(desk.operator.split(upper.id, None, 30)) == SLOTS * 3 // 4
    await told_load(cluster, {100: 1.0, 200: 1.0, 300: 0.5})
    assert await desk.do(desk.operator.split(row.id, None, 30)) == 200
    assert await desk.do(desk.operator.split(row.id, 7, 30)) == 7
    edges = [row.slot_from for row in await cluster.parts("tally")]
    assert edges == [0, 7, 200, SLOTS // 2, SLOTS * 3 // 4]
    await told_load(cluster, {2: 0.01, 3: 1.0, 4: 0.01})
    with pytest.raises(UsageError, match="one key has nearly all of its load"):
        await desk.do(desk.operator.split(row.id, None, 30))
    await cluster.end(many(200))


async def test_a_merge_brings_the_upper_one_to_the_lower_one() -> None:
    cluster, desk = await at_rest(2)
    lower, upper = await cluster.parts("tally")
    assert lower.owner != upper.owner
    await desk.do(desk.operator.merge(lower.id, upper.id, 30))
    (whole,) = await cluster.parts("tally")
    assert (whole.slot_from, whole.slot_to, whole.pinned) == (0, SLOTS, False)
    assert f"hand it over to {lower.owner[:8]}" in desk.told[0]  # type: ignore[index]
    assert len(cluster.done("merge")) == 1
    await cluster.end(many(200))


async def test_a_wish_that_a_claim_has_ended_is_made_again() -> None:
    cluster, desk = await at_rest(2)
    row, _ = await cluster.parts("tally")
    owner = cluster.owner_of(row)
    await cluster.crash(owner)
    assert await desk.do(desk.operator.split(row.id, 9, 60)) == 9

    def events() -> list[str]:
        found = [e.what for e in cluster.store.placement_events() if e.interval_id == row.id]
        return found[found.index("wish_split") :]

    await cluster.go(lambda: events()[-1] == "claim")
    assert events() == [
        "wish_split", "wish", "claim", "wish_split", "release",  # the next one is the new part's
        "claim",
    ]  # fmt: skip
    assert desk.told[0].startswith(f"waiting for worker {owner.worker[:8]} to finish")
    await cluster.end(many(200))


async def test_what_is_not_done_in_time_is_said_and_done_later() -> None:
    gate = Gate()

    async def wait(record: Any, ctx: Any) -> None:
        await gate.wait()
        produce(ctx, record.value.number)

    made = Pipeline("waiting", settings=SHARED)
    made.inject(ITEMS, script(ITEMS, many(10)), timestamp=time_of)
    made.add(Do(wait), ITEMS.by(lambda item: item.key))
    made.sink(TALLY, Table("out", Counted))
    cluster = Lone(made)
    engine = await cluster.join()
    await cluster.go(lambda: gate.reached >= 10)
    desk = Desk(cluster)
    (name,) = (s.name for s in engine.exchange.steps.values() if s.node.kind == "computation")
    row, _ = await cluster.parts(name)
    with pytest.raises(NotCarriedOut) as caught:
        await desk.do(desk.operator.split(row.id, 9, 5))
    assert caught.value.exit_code == 10
    assert str(caught.value).startswith(
        f"not done within 5 s: still waiting for worker {engine.worker[:8]} to finish its "
        f"work in interval {row.id} and cut it. The request stays"
    )
    await desk.do(desk.operator.split(row.id, 9, None))
    gate.open()
    await cluster.go(lambda: cluster.done("split"))
    await cluster.go(cluster.finished)
    assert sorted(row[1] for row in cluster.rows()) == list(range(10))
    await cluster.leave(engine)


async def test_what_makes_no_sense_is_refused_and_says_what_would() -> None:
    cluster, desk = await at_rest(3)
    gone = cluster.alive[-1]
    await cluster.crash(gone)
    until = cluster.clock.monotonic() + SHARED.lease_seconds + 1
    await cluster.go(lambda: cluster.clock.monotonic() > until)
    lower, upper, *_ = await cluster.parts("tally")
    end = lower.slot_to
    ids = [row.id for row in (await cluster.store.read_placement()).intervals]
    source = ids[0]
    operator = desk.operator
    worker = cluster.alive[0].worker
    for work, said in (
        (operator.move(4711, worker, 1), "there is no interval 4711; it may have been merged"),
        (operator.move(lower.id, "zz", 1), "no worker's id begins with 'zz'. Running workers: "),
        (operator.move(lower.id, "", 1), "no worker's id begins with ''"),
        (operator.move(lower.id, gone.worker, 1), f"worker {gone.worker[:8]} is gone"),
        (operator.unpin(4711), "there is no interval 4711"),
        (operator.split(4711, None, 1), "there is no interval 4711"),
        (operator.split(source, None, 1), "is partition 0 of the injector 'source_0'"),
        (operator.split(lower.id, 0, 1), f"can be split at 1 to {end - 1}, not at 0"),
        (operator.split(lower.id, end, 1), f"can be split at 1 to {end - 1}, not at {end}"),
        (operator.merge(upper.id, lower.id, 1), f"intervals merge {lower.id} {upper.id}"),
        (operator.merge(lower.id, lower.id, 1), "are not the lower and the upper neighbour"),
        (operator.merge(upper.id, ids[-1], 1), "are not the lower and the upper neighbour"),
        (operator.merge(ids[0], ids[1], 1), "is partition 0 of the injector 'source_0'"),
        (operator.merge(lower.id, 4711, 1), "there is no interval 4711"),
    ):
        with pytest.raises(UsageError) as caught:
            await desk.do(work)
        assert said in str(caught.value)
    twins = [
        replace(w, id=f"ab{n}")
        for n, w in enumerate((await cluster.store.read_placement()).workers)
    ]
    placement = replace(await cluster.store.read_placement(), workers=twins)
    cluster.store.read_placement = lambda: asyncio.sleep(0, placement)  # type: ignore[method-assign]
    with pytest.raises(UsageError, match="several workers begin with 'ab': ab0, ab1"):
        await desk.do(operator.move(lower.id, "ab", 1))
    del cluster.store.read_placement
    await cluster.end(many(200))


async def test_a_neighbour_that_is_pinned_elsewhere_has_to_be_let_go_first() -> None:
    cluster, desk = await at_rest(2)
    lower, upper = await cluster.parts("tally")
    assert upper.owner is not None
    await desk.do(desk.operator.move(upper.id, upper.owner, 30))
    with pytest.raises(UsageError, match=f"intervals move {upper.id} --anywhere"):
        await desk.do(desk.operator.merge(lower.id, upper.id, 30))
    await desk.do(desk.operator.unpin(upper.id))
    await desk.do(desk.operator.merge(lower.id, upper.id, 30))
    await cluster.end(many(200))


async def test_without_workers_what_was_handed_over_is_cut_at_once() -> None:
    cluster, desk = await at_rest(1)
    lower, upper = await cluster.parts("tally")
    await cluster.leave(cluster.alive[0])
    steps = cluster.engines[0].exchange.steps
    (tally,) = (step.id for step in steps.values() if step.name == "tally")

    async def parts() -> list[tuple[int, int, int]]:
        rows = (await cluster.store.read_placement()).intervals
        return [(r.id, r.slot_from, r.slot_to) for r in rows if r.computation == tally]

    assert await desk.do(desk.operator.split(lower.id, None, 30)) == SLOTS // 4
    _, (made, *_), _ = await parts()
    await desk.do(desk.operator.merge(made, upper.id, 30))
    assert [edges for _, *edges in await parts()] == [[0, SLOTS // 4], [SLOTS // 4, SLOTS]]
    assert desk.told == []
    with pytest.raises(UsageError, match="no worker runs this pipeline"):
        await desk.do(desk.operator.move(lower.id, "a", 30))


async def test_without_workers_what_was_not_handed_over_is_left_alone() -> None:
    cluster, desk = await at_rest(1)
    lower, upper = await cluster.parts("tally")
    await cluster.crash(cluster.alive[0])
    cluster.clock.advance(SHARED.lease_seconds)
    for work in (
        desk.operator.split(lower.id, None, 30),
        desk.operator.merge(lower.id, upper.id, 30),
    ):
        with pytest.raises(UsageError, match=r"did not hand it over.*Start a worker"):
            await desk.do(work)


async def test_a_worker_that_runs_alone_does_nothing_of_the_kind() -> None:
    cluster = Lone(counting(many(200)))
    engine = Engine(cluster.pipeline, cluster.store, clock=cluster.clock)
    cluster.engines.append(engine)
    await engine.start()
    desk = Desk(cluster)
    (tally,) = (i for i in engine.intervals if i.step.name == "tally" and i.slots[0] == 0)
    for work in (
        desk.operator.split(tally.id, None, 30),
        desk.operator.move(tally.id, engine.worker, 30),
    ):
        with pytest.raises(UsageError, match="runs this pipeline by itself"):
            await work
    await engine.kill()


# -- the command -----------------------------------------------------------------------------------


class Command:
    """`millwheel intervals` and `log`, as a process of its own that is forked."""

    def __init__(self, schema: Schema) -> None:
        self._environment = {**os.environ, "MILLWHEEL_STORE": schema.url}
        self._name = schema.name

    def start(self, *words: Any) -> Forked:
        arguments = ["intervals", *map(str, words), "--pipeline", self._name]
        return parent().start(arguments, Path.cwd(), self._environment)

    async def __call__(self, *words: Any, code: int = 0) -> str:
        process = self.start(*words)
        stdout, stderr = await asyncio.to_thread(process.communicate)
        assert process.returncode == code, stderr
        return stdout if code == 0 else stderr

    async def log(self) -> list[dict[str, Any]]:
        """What the log of requests has, newest first."""
        arguments = ["log", "--json", "--pipeline", self._name]
        process = parent().start(arguments, Path.cwd(), self._environment)
        stdout, stderr = await asyncio.to_thread(process.communicate)
        assert process.returncode == 0, stderr
        found: list[dict[str, Any]] = json.loads(stdout)
        return found

    async def list(self, *words: Any) -> Any:
        return json.loads(await self("list", "--json", *words))


async def test_the_command_moves_splits_and_merges(
    new_schema: Callable[[int], Schema], tmp_path: Path
) -> None:
    schema = new_schema(18)
    files, _ = write(tmp_path, 500)
    command = Command(schema)
    stop = asyncio.Event()
    async with asyncio.timeout(120), asyncio.TaskGroup() as workers:
        for _ in range(2):
            workers.create_task(PipelineWorker(pipeline(schema.name, files), schema.url).run(stop))

        async def shared() -> list[dict[str, Any]]:
            while True:
                rows = [r for r in (await command.list())["intervals"] if r["kind"] != "injector"]
                owners = {row["owner"] for row in rows}
                if len(owners) == 2 and None not in owners:  # else one is being handed over
                    return [row for row in rows if row["computation"] == rows[0]["computation"]]
                await asyncio.sleep(0.1)

        lower, _ = await shared()
        assert lower["owner_alive"]
        told = await command("split", lower["id"], "--at", SLOTS // 4)
        assert told == f"split interval {lower['id']} at slot {SLOTS // 4}\n"
        ids = [row["id"] for row in await shared()]
        assert len(ids) == 3
        told = await command("merge", ids[1], ids[2])
        assert told == f"merged intervals {ids[1]} and {ids[2]}\n"
        first, _ = await shared()
        owners = {row["owner"] for row in (await command.list())["intervals"]}
        (other,) = owners - {first["owner"], None}
        await command("move", first["id"], other[:13])
        first, _ = await shared()
        assert (first["owner"], first["wanted_by"], first["pinned"]) == (other, other, True)
        table = await command("list", "--events", "100")
        assert f"| {other[:8]} | {other[:8]}  | pinned" in table
        for what in ("wish to split", "wish to merge", "split", "merge", "pin"):
            assert f"| {what} " in table
        assert "an operator wants it" in table
        told = await command("move", first["id"], "--anywhere")
        assert told == f"interval {first['id']} is unpinned: the balancer places it again\n"
        told = await command("move", first["id"], "--anywhere")
        assert told == f"interval {first['id']} was not pinned\n"

        log = await command.log()
        assert [entry["verb"] for entry in log] == [
            "move_interval", "move_interval", "move_interval", "merge_intervals", "split_interval",
        ]  # fmt: skip
        assert log[-1]["payload"] == {"interval": lower["id"], "at": SLOTS // 4}

        assert "name the worker" in await command("move", first["id"], code=2)
        assert "there is no interval 4711" in await command("split", 4711, code=2)
        told = await command("split", first["id"], "--at", SLOTS, code=2)
        assert "not at 65536" in told
        told = await command("split", first["id"], "--at", 9, "--wait", 0)
        assert told == f"requested: split interval {first['id']} at slot 9\n"
        while len(await shared()) < 3:  # noqa: ASYNC110 - a poll will do
            await asyncio.sleep(0.1)
        events = (await command.list("--events", "100"))["events"]
        assert [event["id"] for event in events] == sorted(
            (event["id"] for event in events), reverse=True
        )
        stop.set()
    rows = (await command.list())["intervals"]
    assert all(row["owner"] is None and row["load"] is None for row in rows)
    first, *_ = (row for row in rows if row["kind"] == "computation")
    told = await command("split", first["id"], "--at", 5)
    assert told == f"split interval {first['id']} at slot 5\n"
    assert "no worker runs this pipeline" in await command("move", first["id"], "a", code=2)


async def test_the_command_ends_when_it_is_told_to_or_its_time_is_over(
    new_schema: Callable[[int], Schema], tmp_path: Path
) -> None:
    """Of a worker that is there but does nothing: nobody carries anything out."""
    schema = new_schema(18)
    files, _ = write(tmp_path, 10)
    command = Command(schema)
    await PipelineWorker(pipeline(schema.name, files), schema.url, until_done=True).run(
        asyncio.Event()
    )
    store = await PostgresStore(schema.url, schema.name).open()
    worker = "00000000-0000-4000-8000-000000000000"
    await store.register_worker(worker, 600.0, address="127.0.0.1:1")
    rows = (await store.read_placement()).intervals
    assert await store.claim(worker, [row.id for row in rows])
    id_ = rows[-1].id
    told = await command("split", id_, "--wait", "0.3", code=10)
    assert told.startswith("waiting for worker 00000000 to finish its work")
    assert "not done within 0.3 s" in told
    process = command.start("merge", rows[-2].id, id_, "--wait", "60")
    line = await asyncio.to_thread(process.stderr.readline)
    assert line.startswith("waiting for")
    process.send_signal(signal.SIGINT)
    _, stderr = await asyncio.to_thread(process.communicate)
    assert (process.returncode, stderr) == (130, "interrupted\n")
    found = {row.id: row for row in (await store.read_placement()).intervals}
    assert found[rows[-2].id].merge_with == id_, "the wish stands"
    await store.stop_worker(worker)
    await store.close()
