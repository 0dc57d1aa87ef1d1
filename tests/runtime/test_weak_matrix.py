"""The crash matrix of a weak chain A → B → C, each on a worker of its own, in virtual time.

Each of the three crashes before and after each step of a record's way: it is received, run, sent
on, acknowledged by who comes next, stored as a straggler (of C: committed), acknowledged to who
sent it. Another worker takes over when the lease is over. Nothing may be lost, nothing may have its
effect twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from functools import partial
from random import Random
from typing import Any

import pytest

from millwheel import Computation, Context, Pipeline, Record, Stream, Table
from millwheel.runtime.engine import Engine
from millwheel.runtime.running.step_code import Process, StepCode
from millwheel.store.port.commit import Commit
from millwheel.store.port.placement import Wish
from millwheel.testing.fake_network import Weather
from tests.support.clusters import SHARED, Cluster
from tests.support.drawing import chosen
from tests.support.pipelines import Tally, script
from tests.support.values import ITEMS, TALLY, Counted, Item, key_of, tally_of, time_of

LIMITS = replace(
    SHARED, intervals=1, max_unacked_records=8, lease_seconds=1.0, placement_seconds=0.1
)
VALUES = [Item("abc"[n % 3], n, float(n)) for n in range(45)]
FROM_A, FROM_B = Stream("from_a", Item), Stream("from_b", Item)
PLACES = ("items_injector", "a", "b", "c")


class On(Computation[Item, None]):
    """Passes on."""

    def __init__(self, to: Stream[Item]) -> None:
        self.writes = (to,)
        self._to = to

    async def process_record(self, record: Record[Item], ctx: Context[None]) -> None:
        ctx.produce(self._to, record.value)


def chain() -> Pipeline:
    """What is not acknowledged within some frames' time is a straggler: many are."""
    made = Pipeline("matrix", settings=LIMITS)
    made.inject(ITEMS, script(ITEMS, VALUES), timestamp=time_of)
    weak: dict[str, Any] = {
        "productions": "weak",
        "straggler_after": timedelta(seconds=0.25),
    }
    made.add(On(FROM_A), ITEMS.by(key_of), name="a", **weak)
    made.add(On(FROM_B), FROM_A.by(key_of), name="b", **weak)
    made.add(Tally(), FROM_B.by(key_of), name="c")
    made.sink(TALLY, Table("out", Counted, numbered=True))
    return made


class Death:
    """The end of one worker at the `nth` time that something is about to happen, or has."""

    def __init__(self, cluster: Cluster, engine: Engine, nth: int) -> None:
        self._cluster = cluster
        self._engine = engine
        self._left = nth
        self.came = False

    def comes(self) -> bool:
        """Whether it is now; from then on nothing leaves the worker, and no commit of it counts."""
        if self.came:
            return True
        self._left -= 1
        if self._left:
            return False
        self.came = True
        assert self._engine.courier is not None
        self._engine.courier.sender._flush = lambda: None  # type: ignore[method-assign]
        for other in self._cluster.engines:
            if other is not self._engine:
                self._cluster.ether.part(
                    name_of(self._cluster, self._engine), name_of(self._cluster, other)
                )
        return True


def name_of(cluster: Cluster, engine: Engine) -> str:
    return f"w{cluster.engines.index(engine)}"


def dying(death: Death, when: str, call: Callable[..., Any], concerns: Callable[..., bool]) -> Any:
    """`call`, with the death before or after it if the arguments concern it."""

    def wrapped(*args: Any, **options: Any) -> Any:
        if death.came:
            return None
        if not concerns(*args, **options):
            return call(*args, **options)
        if when == "before" and death.comes():
            return None
        answer = call(*args, **options)
        if when == "after":
            death.comes()
        return answer

    return wrapped


def prepare(cluster: Cluster, engine: Engine, place: str, event: str, when: str, nth: int) -> Death:
    """See to it that a worker dies."""
    death = Death(cluster, engine, nth)
    courier = engine.courier
    assert courier is not None
    intervals = [i for i in engine.intervals if i.step.name == place]
    ids, step = {i.id for i in intervals}, intervals[0].step.id
    match event:
        case "receive":
            courier.receiver.receive = dying(  # type: ignore[method-assign]
                death,
                when,
                courier.receiver.receive,
                lambda link, frame: True,
            )
        case "send":
            for mode in (interval.mode for interval in intervals):
                mode.decided = dying(  # type: ignore[method-assign]
                    death, when, mode.decided, lambda *args: True
                )
        case "downstream ACK":
            engine.exchange.acknowledged = dying(  # type: ignore[method-assign]
                death,
                when,
                engine.exchange.acknowledged,
                lambda log, *rest: engine.exchange.logs[log][1] in intervals,
            )
        case "upstream ACK":
            courier.acknowledge = dying(  # type: ignore[method-assign]
                death, when, courier.acknowledge, lambda log, receiver, seqs: receiver == step
            )
        case "straggler checkpoint" | "commit":

            def counts(commit: Commit) -> bool:
                mine = any(link.interval_id in ids for link in commit.intervals)
                return mine and bool(commit.stragglers if event != "commit" else commit.rows)

            async def tried(commit: Commit) -> None:
                mine = any(link.interval_id in ids for link in commit.intervals)
                if mine and (death.came or (when == "before" and counts(commit) and death.comes())):
                    await asyncio.Event().wait()

            async def durable(commit: Commit) -> None:
                if when == "after" and counts(commit) and death.comes():
                    await asyncio.Event().wait()

            cluster.on_try, cluster.on_durable = tried, durable
    return death


def prepare_run(monkeypatch: pytest.MonkeyPatch, death: Death, engine: Engine, when: str) -> None:
    made = StepCode._process

    def dying_process(self: StepCode) -> Process:
        process = made(self)
        mine = any(interval.step is self.step for interval in engine.intervals)

        async def dies(record: Record[Any], context: Context[Any, Any]) -> None:
            if mine and (death.came or (when == "before" and death.comes())):
                await asyncio.Event().wait()
            await process(record, context)
            if mine and when == "after" and death.comes():
                await asyncio.Event().wait()

        return dies

    monkeypatch.setattr(StepCode, "_process", dying_process)


def passed(cluster: Cluster, until: float) -> bool:
    return cluster.clock.monotonic() >= until


async def each_on_its_own() -> tuple[Cluster, dict[str, Engine]]:
    """A source and the three computations on four workers, and a fifth that has nothing."""
    cluster = Cluster(chain(), Weather(Random(1), delay=0.2))
    cluster.store.pause("items_injector")
    for _ in range(5):
        await cluster.join()
    owners = dict(zip(PLACES, cluster.engines, strict=False))
    names = {step.id: step.name for step in cluster.engines[0].exchange.steps.values()}
    for _ in range(20):
        placement = await cluster.store.read_placement()
        wishes = [
            Wish(
                row.id, row.sequencer, owners[names[row.computation]].worker, "matrix", pinned=True
            )
            for row in placement.intervals
        ]
        are_there = all(
            any(interval.step.name == place for interval in engine.intervals)
            for place, engine in owners.items()
        )
        if are_there and [r.owner for r in placement.intervals] == [w.worker for w in wishes]:
            cluster.store.pause()
            return cluster, owners
        await cluster.store.wish(wishes)
        until = cluster.clock.monotonic() + 0.3
        await cluster.go(partial(passed, cluster, until))
    raise AssertionError("they do not move")


STEPS = ("receive", "run", "send", "downstream ACK", "straggler checkpoint", "upstream ACK")
MATRIX = [
    *((place, event) for place in "ab" for event in STEPS),
    *(("c", event) for event in ("receive", "run", "commit", "upstream ACK")),
]


@pytest.mark.parametrize("nth", chosen([2, 1, 3, 5], 2))
@pytest.mark.parametrize("when", chosen(["before", "after"], "after"))
@pytest.mark.parametrize(("place", "event"), MATRIX)
async def test_a_crash_at_each_step_of_each(
    place: str, event: str, when: str, nth: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster, owners = await each_on_its_own()
    engine = owners[place]
    death = prepare(cluster, engine, place, event, when, nth)
    if event == "run":
        prepare_run(monkeypatch, death, engine, when)
    await cluster.go(lambda: death.came or cluster.finished())
    assert death.came, "this never happens in this chain"
    monkeypatch.undo()
    cluster.on_try = cluster.on_durable = None
    await cluster.crash(engine)
    await cluster.go(cluster.finished)
    assert {k: sorted(v) for k, v in cluster.tallied().items()} == {
        k: sorted(v) for k, v in tally_of(VALUES).items()
    }
    for other in list(cluster.alive):
        await cluster.leave(other)
    assert cluster.store.pending_productions() == []
