"""Several workers on one pipeline: engines in one event loop, on one store, over one ether."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Coroutine
from dataclasses import replace
from random import Random
from typing import Any
from uuid import UUID

from millwheel import Computation, Context, Pipeline, Record, Settings, Stream, Table
from millwheel.core.clock import Clock
from millwheel.runtime.engine import Engine
from millwheel.runtime.network.handshake import Identity, Secret
from millwheel.runtime.network.links import Links
from millwheel.runtime.process.load import FREE_OF_CHARGE
from millwheel.store.port.placement import MergeWish, PlacedInterval, SplitWish, Wish
from millwheel.testing.fake_network import SECRET, FakeNetwork, Fates, Weather, fair
from tests.support.engine_dump import dump
from tests.support.pipelines import QUICK, Tally, script
from tests.support.values import ITEMS, TALLY, Count, Counted, Item, key_of, time_of
from tests.support.worlds import World, end_scripts, scripts_of

SHARED = replace(
    QUICK,
    intervals=2,
    chunk_records=3,
    bundle_records=6,
    max_unacked_records=12,
    placement_seconds=0.2,
    lease_seconds=3.0,
)

AGAIN = Stream("again", Counted)

IDLE_SECONDS = 0.1
"""Longest step of virtual time: threads, which it does not wait for, lose no lease by it."""


class Cluster(World):
    """A world with several workers at a time."""

    def __init__(self, pipeline: Pipeline, weather: Weather | None = None) -> None:
        super().__init__(pipeline)
        self.ether = FakeNetwork(self.clock, *([weather] if weather else []))
        self.alive: list[Engine] = []

    endless = False
    """Its scripts wait for more rows when all are read; otherwise event time ends with them."""

    async def join(self) -> Engine:
        """One more worker."""
        return await self.admit()

    async def admit(
        self,
        *,
        pipeline: Pipeline | None = None,
        clock: Clock | None = None,
        secret: Secret = SECRET,
    ) -> Engine:
        """One more worker, perhaps with a graph, a clock or a secret of its own."""
        name = f"w{len(self.engines)}"
        seed = len(self.engines)

        def network(worker: str) -> Links:
            return Links(
                Identity(self.pipeline.name, worker, secret),
                self.ether.medium(name),
                clock=self.clock,
                random=Random(seed),
            )

        if not self.endless:
            end_scripts(pipeline or self.pipeline)
        worker = str(UUID(int=Random(seed).getrandbits(128)))  # drawn, and always the same
        engine = Engine(
            pipeline or self.pipeline,
            self.store if pipeline is None else self.store.another(),
            clock=clock or self.clock,
            network=network,
            worker=worker,
            process=FREE_OF_CHARGE,
        )
        self.engines.append(engine)
        self.alive.append(engine)
        await engine.start()
        engine.attend(Engine.claiming, "claiming")
        engine.attend(Engine.lease_guard, "lease guard")
        return engine

    async def go(
        self, condition: Callable[[], object], tick: float = 0.01, turns: int = 60_000
    ) -> None:
        """Turn the loop until `condition` holds; each turn takes `tick` seconds, or up to
        `IDLE_SECONDS` while no task can run before then."""
        loop = asyncio.get_running_loop()
        for _ in range(turns):
            if condition():
                return
            for engine in self.alive:
                if engine.failure is not None:
                    raise engine.failure
            await asyncio.sleep(0)
            is_idle = not loop._ready  # type: ignore[attr-defined]  # there is no public way
            self.clock.advance(max(tick, self.clock.until_next(IDLE_SECONDS)) if is_idle else tick)
        raise AssertionError("stuck\n" + "\n".join(map(dump, self.alive)))

    async def leave(self, engine: Engine) -> None:
        """A worker ends in order."""
        self.alive.remove(engine)
        await self.pass_time(engine.stop())

    async def crash(self, engine: Engine) -> None:
        """A worker's process is gone without a word; the store sees its sessions end."""
        await self.vanish(engine)
        self.store.end_liveness_session(engine.worker)

    async def vanish(self, engine: Engine) -> None:
        """A worker is gone, and the store sees nothing of it, as if its machine had lost power."""
        self.alive.remove(engine)
        await self.pass_time(engine.kill())

    async def parts(self, name: str) -> list[PlacedInterval]:
        """The intervals of a computation, in the order of slots."""
        (step,) = (step for step in self.alive[0].exchange.steps.values() if step.name == name)
        placement = await self.store.read_placement()
        return [row for row in placement.intervals if row.computation == step.id]

    async def cut(self, number: int, share: float | None) -> None:
        """Wish that an interval be split, where a `share` of its slots is below, or that it be
        merged with its neighbour."""
        steps = {step.id: step for step in self.alive[0].exchange.steps.values()}
        placement = await self.store.read_placement()
        rows = [r for r in placement.intervals if steps[r.computation].node.kind != "injector"]
        place = number % len(rows)
        row = rows[place]
        if share is not None:
            at = row.slot_from + int((row.slot_to - row.slot_from) * share)
            await self.store.wish([SplitWish(row.id, row.sequencer, at, "chaos")])
        elif place + 1 < len(rows):
            upper = rows[place + 1]
            await self.store.wish(
                [
                    Wish(upper.id, upper.sequencer, row.owner, "to be merged"),
                    MergeWish(row.id, row.sequencer, upper.id, "chaos"),
                ]
            )

    async def pass_time(self, work: Coroutine[Any, Any, None]) -> None:
        """Let time pass while something is done."""
        task = asyncio.ensure_future(work)
        await self.go(task.done)
        await task

    def cut_input(self, values: list[Item]) -> list[Item]:
        """Drop all but a few rows that nobody has read, and give the values that there are then."""
        return cut_input([self.pipeline, *(engine.pipeline for engine in self.engines)], values, 50)

    async def finish_soon(self, values: list[Item]) -> None:
        """Drop most of the input that nobody has read, run to the end, and check what came of the
        rest."""
        values = self.cut_input(values)
        await self.go(self.finished)
        check(self, values)

    async def commit(self, number: int) -> None:
        """Let so many more commits become durable, or all there are."""
        until = len(self.commits) + number
        await self.go(lambda: len(self.commits) >= until or self.finished())

    def finished(self) -> bool:
        return all(engine.done.is_set() for engine in self.alive)


def cut_input(pipelines: list[Pipeline], values: list[Item], more: int) -> list[Item]:
    """Drop all but `more` of the rows of each script that nobody has read, and give the values that
    there are then."""
    sources = [source for pipeline in pipelines for source in scripts_of(pipeline)]
    read: dict[str, int] = defaultdict(int)
    for source in sources:
        read[source.identity] = max(read[source.identity], source.rows_read)
    left: set[int] = set()
    for source in sources:
        source.cut(read[source.identity] + more)
        left |= {step.value.number for step in source.steps if step.value is not None}
    return [item for item in values if item.number in left]


def number_of(counted: Counted) -> int:
    return counted.number


class Recount(Computation[Counted, Count]):
    """Passes on, under another key: to any worker."""

    writes = (AGAIN,)

    async def process_record(self, record: Record[Counted], ctx: Context[Count]) -> None:
        ctx.state.count += 1
        ctx.produce(AGAIN, replace_count(record.value, ctx.state.count))


def replace_count(counted: Counted, times: int) -> Counted:
    """How often this number was counted: once, if effects happen once."""
    return Counted(counted.key, counted.number, counted.count * 100 + times)


def counting(values: list[Item], limits: Settings = SHARED, sources: int = 2) -> Pipeline:
    """Items are counted per key; what comes out goes by its number to a step that adds a 1."""
    made = Pipeline("counting", settings=limits)
    for number in range(sources):
        made.inject(
            ITEMS,
            script(ITEMS, values[number::sources], f"part {number}"),
            timestamp=time_of,
            name=f"source_{number}",
        )
    made.add(Tally(), ITEMS.by(key_of))
    made.add(Recount(), TALLY.by(number_of))
    made.sink(AGAIN, Table("out", Counted, numbered=True))
    return made


def many(number: int, keys: int = 40) -> list[Item]:
    return [Item(f"key {n * 7 % keys}", n, n // 10) for n in range(number)]


def check(cluster: World, values: list[Item]) -> None:
    """Each item counted once, and told once; per source and key in order."""
    rows = [(key, number, count) for key, number, count, *_ in cluster.rows()]
    assert sorted(number for _, number, _ in rows) == [item.number for item in values]
    of_key: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for key, number, count in rows:
        assert count % 100 == 1, "told twice"
        of_key[key].append((count // 100, number))
    for key, found in of_key.items():
        counts = [count for count, _ in sorted(found)]
        assert counts == list(range(1, len(counts) + 1)), f"{key}: lost or doubled"
        for parity in (0, 1):  # each source has every other number
            numbers = [number for _, number in sorted(found) if number % 2 == parity]
            assert numbers == sorted(numbers), f"{key}: out of order"


Act = tuple[int, str, int]
"""After so many more commits, what happens, to whom."""

ACTS = ["join", "crash", "leave", "cut", "part", "split", "merge", "shatter"]


async def live(cluster: Cluster, seconds: float, tick: float = 0.01) -> None:
    """Let so much time pass."""
    until = cluster.clock.monotonic() + seconds
    await cluster.go(lambda: cluster.clock.monotonic() >= until, tick)


async def apart(
    pipeline: Pipeline, there: str, weather: Fates = fair
) -> tuple[Cluster, Engine, Engine]:
    """Two workers, of which the second has all intervals of one computation and no others.

    The injectors rest until all is in its place.
    """
    cluster = Cluster(pipeline)
    cluster.ether.weather = weather
    injectors = [node.name for node in pipeline.graph().nodes if node.kind == "injector"]
    cluster.store.pause(*injectors)
    first, second = await cluster.join(), await cluster.join()
    names = {step.id: step.name for step in first.exchange.steps.values()}
    settled = False
    while not settled:  # the balancer may have cut or moved something just now
        rows = (await cluster.store.read_placement()).intervals
        owners = {r.id: second if names[r.computation] == there else first for r in rows}
        await cluster.store.wish(
            [Wish(r.id, r.sequencer, owners[r.id].worker, "apart", pinned=True) for r in rows]
        )
        await live(cluster, 1)
        theirs = {
            interval.id: engine for engine in (first, second) for interval in engine.intervals
        }
        settled = theirs == owners
    cluster.store.pause()
    return cluster, first, second
