"""The four cells: weak or strong productions, exactly once or not; how long a record takes.

Two worker processes share a pipeline over TCP: the first has the source and the reader at the end,
the second the stages between. A record goes to the second, through its stages, and back: what a
stage costs stands beside a bare framed round trip between two processes, and beside a raw commit of
one record, each as often as the records come: a machine that sleeps in between takes longer to do
the same. The load is open: records come by the clock, and each one's time counts from when it was
due, whatever became of those before it.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import statistics
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from typing import Any

import msgspec

from bench import quiet
from bench.latency import raw_commits
from bench.metronome import beats
from bench.server import fresh_store
from millwheel import Computation, Context, Pipeline, Record, Settings, Stream
from millwheel.clock import SystemClock
from millwheel.model import from_micros
from millwheel.runtime.engine import Engine
from millwheel.runtime.network.frames import Acknowledge, Deliver, Frame
from millwheel.runtime.network.handshake import Identity
from millwheel.runtime.network.links import Links
from millwheel.runtime.network.ports import Link
from millwheel.services import loop
from millwheel.services.tcp import Tcp
from millwheel.store.postgres import PostgresStore
from millwheel.testing.ether import SECRET
from millwheel.testing.script import Script, inject

LOADS = {"low": 50.0, "moderate": 500.0}
"""Records a second."""

DEPTHS = (1, 3)
WARM_UP_RECORDS = 20
PIPELINE = "bench_cells"
BARE_FRAME = Deliver(
    1, 1, 1, 1, 1, 0, [(1, "balls", b"1", 7, 0, 0, 0, 12, b"", False, b'{"number":1}', 1, 0)]
)
"""One record on its way."""


class Ball(msgspec.Struct, frozen=True):
    """A record on its way."""

    number: int


class Pass(Computation[Ball, None]):
    """A stage: passes on."""

    def __init__(self, to: Stream[Ball]) -> None:
        self.writes = (to,)
        self._to = to

    async def process_record(self, record: Record[Ball], ctx: Context[None]) -> None:
        ctx.produce(self._to, record.value)


class Arrive(Computation[Ball, None]):
    """The end: notes when each record comes."""

    def __init__(self) -> None:
        self.at: dict[int, float] = {}
        self.came = asyncio.Event()

    async def process_record(self, record: Record[Ball], ctx: Context[None]) -> None:
        self.at.setdefault(record.value.number, time.perf_counter())
        self.came.set()


@dataclass(frozen=True, eq=False)
class Cell:
    """How the stages are added."""

    name: str
    switches: dict[str, Any]


CELLS = (
    Cell("both on", {"productions": "strong", "exactly_once": True}),
    Cell("strong, at least once", {"productions": "strong", "exactly_once": False}),
    Cell("weak, exactly once", {"productions": "weak", "exactly_once": True}),
    Cell("both off", {"productions": "weak", "exactly_once": False}),
)


def pipeline(name: str, cell: Cell, depth: int, source: Script) -> tuple[Pipeline, Arrive]:
    """The stages, from source to end; every record has a key of its own."""
    made = Pipeline(name, settings=replace(Settings(), intervals=1))
    streams = [Stream(f"balls_{number}", Ball) for number in range(depth + 1)]
    made.inject(streams[0], source, timestamp=lambda ball: from_micros(ball.number))
    for number in range(depth):
        made.add(
            Pass(streams[number + 1]),
            streams[number].by(number_of),
            name=f"stage_{number}",
            **cell.switches,
        )
    arrive = Arrive()
    made.add(arrive, streams[-1].by(number_of), productions="weak", exactly_once=False)
    return made, arrive


def number_of(ball: Ball) -> int:
    return ball.number


def links(pipeline: str, worker: str) -> Links:
    """What a worker reaches others by."""
    return Links(Identity(pipeline, worker, SECRET), Tcp("127.0.0.1", 0), clock=SystemClock())


async def engine_of(url: str, made: Pipeline) -> Engine:
    """One worker of the pipeline, which has nothing yet."""
    store = await PostgresStore(url, made.name).open()
    engine = Engine(made, store, network=lambda id_: links(made.name, id_), keep_open=True)
    await engine.start()
    return engine


async def take(engine: Engine, *, stages: bool) -> None:
    """Claim the intervals of the computations between the ends, or all others."""
    names = {id_: step.name for id_, step in engine.steps.items()}
    rows = (await engine.store.read_placement()).intervals
    ids = [r.id for r in rows if names[r.computation].startswith("stage") is stages]
    await engine.holdings.take(ids)


async def look_around(*engines: Engine) -> None:
    """Let workers find each other, and their links come up."""
    for _ in range(3):
        for engine in engines:
            await engine.neighbours.look_around()
        await asyncio.sleep(0.2)


@asynccontextmanager
async def other_process(
    work: Callable[..., Coroutine[Any, Any, None]], *args: Any
) -> AsyncIterator[Connection]:
    """`work` in a process of its own, given its end of a pipe; gives the other end."""
    context = multiprocessing.get_context("spawn")
    mine, theirs = context.Pipe()
    process = context.Process(target=_run, args=(work, theirs, *args), daemon=True)
    process.start()
    try:
        yield mine
    finally:
        mine.send("end")
        process.join(20)


def _run(work: Callable[..., Coroutine[Any, Any, None]], *args: Any) -> None:
    quiet()
    loop.run(work(*args))


async def word(pipe: Connection) -> Any:
    """What the other process says next."""
    return await asyncio.to_thread(pipe.recv)


async def second_worker(pipe: Connection, url: str, cell: Cell, depth: int) -> None:
    """The stages, until the other process has enough."""
    made, _ = pipeline(PIPELINE, cell, depth, Script("balls"))
    engine = await engine_of(url, made)
    await take(engine, stages=True)
    pipe.send("has taken")
    await look_around(engine)
    await word(pipe)
    await engine.kill()
    await engine.store.close()


@asynccontextmanager
async def two_processes(
    url: str, cell: Cell, depth: int
) -> AsyncIterator[tuple[Engine, Script, Arrive]]:
    """The pipeline on two workers; gives the first, its source, and the end."""
    await (await fresh_store(url, PIPELINE)).close()
    script = Script("balls")
    made, arrive = pipeline(PIPELINE, cell, depth, script)
    engine = await engine_of(url, made)
    try:
        await take(engine, stages=False)
        async with other_process(second_worker, url, cell, depth) as pipe:
            await word(pipe)
            await look_around(engine)
            yield engine, script, arrive
    finally:
        await engine.kill()
        await engine.store.close()


async def cell_latency(url: str, cell: Cell, depth: int, rate: float, samples: int) -> list[float]:
    """Seconds from when a record was due until it came out of the last stage."""
    async with two_processes(url, cell, depth) as (_, script, arrive):
        total = WARM_UP_RECORDS + samples
        stream = Stream("balls_0", Ball)

        def come(number: int) -> None:
            script.append(inject(stream, Ball(number)))

        async with beats(rate, total, come) as due:
            while len(arrive.at) < total:
                arrive.came.clear()
                await asyncio.wait_for(arrive.came.wait(), 30)
        return [arrive.at[number] - due[number] for number in range(WARM_UP_RECORDS, total)]


async def one_by_one(
    rate: float, samples: int, work: Callable[[int], Awaitable[Any]]
) -> list[float]:
    """Seconds from when a piece of work was due until it was done; they wait for each other."""
    total = WARM_UP_RECORDS + samples
    waiting: asyncio.Queue[int] = asyncio.Queue()
    found = []
    async with beats(rate, total, waiting.put_nowait) as due:
        for _ in range(total):
            number = await waiting.get()
            await work(number)
            found.append(time.perf_counter() - due[number])
    return found[WARM_UP_RECORDS:]


async def commits(url: str, rate: float, samples: int) -> list[float]:
    """Raw commits of one record, as often as the records of a load come."""
    async with raw_commits(url, WARM_UP_RECORDS + samples) as (lane, found):
        return await one_by_one(rate, samples, lambda number: lane.commit(found[number]))


class Echo:
    """One end of a bare link: answers each delivery, or notes when its own was answered."""

    def __init__(self) -> None:
        self.up = asyncio.Event()
        self.answered = asyncio.Event()

    def link_up(self, link: Link) -> None:
        self.up.set()

    def link_down(self, link: Link, reason: str) -> None: ...

    def link_drained(self, link: Link) -> None: ...

    def link_refused(self, link: Link) -> None: ...

    def received(self, link: Link, frame: Frame) -> None:
        if isinstance(frame, Deliver):
            link.send(Acknowledge(frame.log, frame.receiver, [(1, 1)]))
        else:
            self.answered.set()


async def echo(pipe: Connection) -> None:
    """The far end of a bare link."""
    worker = str(uuid.uuid4())
    end = links("bench_bare", worker)
    await end.start(Echo())
    pipe.send((worker, end.address))
    await word(pipe)
    await end.close()


async def round_trips(rate: float, samples: int) -> list[float]:
    """A frame with one record to another process and a frame back, over the links of workers."""
    near = Echo()
    end = links("bench_bare", str(uuid.uuid4()))
    await end.start(near)
    async with other_process(echo) as pipe:
        worker, address = await word(pipe)
        link = end.link(worker, address)
        await asyncio.wait_for(near.up.wait(), 10)

        async def there_and_back(_: int) -> None:
            near.answered.clear()
            link.send(BARE_FRAME)
            await near.answered.wait()

        found = await one_by_one(rate, samples, there_and_back)
        await end.close()
    return found


def percentiles(seconds: list[float]) -> dict[str, float]:
    """In milliseconds."""
    cuts = statistics.quantiles(seconds, n=1000, method="inclusive")
    return {
        "p50": cuts[499] * 1e3,
        "p95": cuts[949] * 1e3,
        "p99": cuts[989] * 1e3,
        "p99.9": cuts[998] * 1e3,
    }


async def measure(url: str, *, rounds: int, samples: int) -> dict[str, Any]:
    """Everything once in each round, one beside the other; medians over the rounds."""
    names = [(c, d, load) for c in CELLS for d in DEPTHS for load in LOADS]
    found: dict[Any, list[dict[str, float]]] = {name: [] for name in names}
    raw: dict[str, list[dict[str, float]]] = {load: [] for load in LOADS}
    bare: dict[str, list[dict[str, float]]] = {load: [] for load in LOADS}
    for _ in range(rounds):
        for load, rate in LOADS.items():
            raw[load].append(percentiles(await commits(url, rate, samples)))
            bare[load].append(percentiles(await round_trips(rate, samples)))
        for cell, depth, load in names:
            seconds = await cell_latency(url, cell, depth, LOADS[load], samples)
            found[cell, depth, load].append(percentiles(seconds))
    result: dict[str, Any] = {"cells": [], "raw commit": {}, "round trip": {}}
    for load in LOADS:
        result["raw commit"][load], result["round trip"][load] = (
            middle(raw[load]),
            middle(bare[load]),
        )
        print(f"raw commit of one record, {load:8} {told(result['raw commit'][load])}")
        print(f"bare framed round trip,   {load:8} {told(result['round trip'][load])}")
    for (cell, depth, load), figures in found.items():
        row = {
            "cell": cell.name,
            "stages": depth,
            "load": load,
            **middle(figures),
            "p50 of raw, per stage": ratio(figures, raw[load], "p50", depth),
            "p95 of raw, per stage": ratio(figures, raw[load], "p95", depth),
            "p50 of round trip": ratio(figures, bare[load], "p50"),
        }
        result["cells"].append(row)
        print(
            f"{cell.name:22} {depth} stage{'s' if depth > 1 else ' '} {load:8} {told(row)}; per stage "
            f"{row['p50 of raw, per stage']:.2f} x p50 and {row['p95 of raw, per stage']:.2f} x p95 "
            f"of the raw commit, {row['p50 of round trip']:.1f} x the round trip"
        )
    on, off = (
        next(middle(found[cell, 1, "low"]) for cell in CELLS if cell.name == name)
        for name in ("both on", "both off")
    )
    result["on / off"] = {which: on[which] / off[which] for which in ("p50", "p95")}
    print(
        f"both on / both off, one stage, low load: p50 x {result['on / off']['p50']:.1f}, p95 x "
        f"{result['on / off']['p95']:.1f} (the paper: 33.7 / 3.6 ms = x 9.4, 93.8 / 30 ms = x 3.1)"
    )
    return result


def middle(figures: list[dict[str, float]]) -> dict[str, float]:
    """The median of each over the rounds."""
    return {name: statistics.median(each[name] for each in figures) for name in figures[0]}


def ratio(
    figures: list[dict[str, float]], beside: list[dict[str, float]], name: str, stages: int = 1
) -> float:
    """The median over the rounds of what is the ratio in each."""
    pairs = zip(figures, beside, strict=True)
    return statistics.median(one[name] / stages / other[name] for one, other in pairs)


def told(figures: dict[str, float]) -> str:
    """One line of figures."""
    parts = [f"{name} {figures[name]:.2f}" for name in ("p50", "p95", "p99", "p99.9")]
    return ", ".join(parts) + " ms"
