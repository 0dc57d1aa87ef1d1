"""Latency of the four combinations ("cells") of weak or strong productions, with and without dedup.

Two worker processes share a pipeline over TCP: the first has the source and the final reader, the
second the stages between. A record goes to the second, through its stages, and back. The latency is
compared with a bare framed round trip between two processes and with a raw commit of one record,
both at the same rate as the records, since a machine that sleeps in between takes longer. The load
is open: records arrive at a fixed rate, and the time of each counts from when it was due,
independent of earlier records.
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
from millwheel.core.clock import SystemClock
from millwheel.core.model import from_micros
from millwheel.runtime.engine import Engine
from millwheel.runtime.environment import Options
from millwheel.runtime.network.frames import Acknowledge, Deliver, Frame
from millwheel.runtime.network.handshake import Identity
from millwheel.runtime.network.links import Links
from millwheel.runtime.network.peer_ports import Link
from millwheel.services import loop
from millwheel.services.tcp import Tcp
from millwheel.store.postgres.store import PostgresStore
from millwheel.testing.fake_network import SECRET
from millwheel.testing.script import Script, inject

LOADS = {"low": 50.0, "moderate": 500.0}
"""Records per second."""

DEPTHS = (1, 3)
WARM_UP_RECORDS = 20
PIPELINE = "bench_cells"
BARE_FRAME = Deliver(
    1, 1, 1, 1, 1, 0, [(1, "balls", b"1", 7, 0, 0, 0, 12, b"", False, b'{"number":1}', 1, 0)]
)
"""A frame with one record."""


class Ball(msgspec.Struct, frozen=True):
    """A record that is passed between the workers."""

    number: int


class Pass(Computation[Ball, None]):
    """A stage: forwards each record."""

    def __init__(self, to: Stream[Ball]) -> None:
        self.writes = (to,)
        self._to = to

    async def process_record(self, record: Record[Ball], ctx: Context[None]) -> None:
        ctx.produce(self._to, record.value)


class Arrive(Computation[Ball, None]):
    """The last stage: notes when each record arrives."""

    def __init__(self) -> None:
        self.at: dict[int, float] = {}
        self.came = asyncio.Event()

    async def process_record(self, record: Record[Ball], ctx: Context[None]) -> None:
        self.at.setdefault(record.value.number, time.perf_counter())
        self.came.set()


@dataclass(frozen=True, eq=False)
class Cell:
    """The options with which the stages are added."""

    name: str
    switches: dict[str, Any]


CELLS = (
    Cell("both on", {"productions": "strong", "exactly_once": True}),
    Cell("strong, at least once", {"productions": "strong", "exactly_once": False}),
    Cell("weak, exactly once", {"productions": "weak", "exactly_once": True}),
    Cell("both off", {"productions": "weak", "exactly_once": False}),
)


def pipeline(name: str, cell: Cell, depth: int, source: Script) -> tuple[Pipeline, Arrive]:
    """Build the stages from source to end; each record has its own key."""
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
    """Create a worker's network over TCP."""
    return Links(Identity(pipeline, worker, SECRET), Tcp("127.0.0.1", 0), clock=SystemClock())


async def engine_of(url: str, made: Pipeline) -> Engine:
    """Start a worker of the pipeline, without intervals."""
    store = await PostgresStore(url, made.name).open()
    engine = Engine(
        made, store, network=lambda id_: links(made.name, id_), options=Options(keep_open=True)
    )
    await engine.start()
    return engine


async def take(engine: Engine, *, stages: bool) -> None:
    """Claim the intervals of the computations between the ends, or all others."""
    names = {id_: step.name for id_, step in engine.exchange.steps.items()}
    rows = (await engine.store.read_placement()).intervals
    ids = [r.id for r in rows if names[r.computation].startswith("stage") is stages]
    await engine.owned.take(ids)


async def connect(*engines: Engine) -> None:
    """Let workers find each other and connect."""
    for _ in range(3):
        for engine in engines:
            await engine.remotes.refresh()
        await asyncio.sleep(0.2)


@asynccontextmanager
async def other_process(
    work: Callable[..., Coroutine[Any, Any, None]], *args: Any
) -> AsyncIterator[Connection]:
    """Run `work` in a separate process with one end of a pipe; yield the other end."""
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
    """Receive the next message of the other process."""
    return await asyncio.to_thread(pipe.recv)


async def second_worker(pipe: Connection, url: str, cell: Cell, depth: int) -> None:
    """Run the worker with the stages until the other process ends it."""
    made, _ = pipeline(PIPELINE, cell, depth, Script("balls"))
    engine = await engine_of(url, made)
    await take(engine, stages=True)
    pipe.send("has taken")
    await connect(engine)
    await word(pipe)
    await engine.kill()
    await engine.store.close()


@asynccontextmanager
async def two_processes(
    url: str, cell: Cell, depth: int
) -> AsyncIterator[tuple[Engine, Script, Arrive]]:
    """Run the pipeline on two workers; yield the first, its source and the last stage."""
    await (await fresh_store(url, PIPELINE)).close()
    script = Script("balls")
    made, arrive = pipeline(PIPELINE, cell, depth, script)
    engine = await engine_of(url, made)
    try:
        await take(engine, stages=False)
        async with other_process(second_worker, url, cell, depth) as pipe:
            await word(pipe)
            await connect(engine)
            yield engine, script, arrive
    finally:
        await engine.kill()
        await engine.store.close()


async def cell_latency(url: str, cell: Cell, depth: int, rate: float, samples: int) -> list[float]:
    """Measure the seconds from when each record was due until it reached the end."""
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
    """Measure the seconds from when each piece of work was due until it was done, one at a time."""
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
    """Measure raw commits of one record, at the rate of a load."""
    async with raw_commits(url, WARM_UP_RECORDS + samples) as (lane, found):
        return await one_by_one(rate, samples, lambda number: lane.commit(found[number]))


class Echo:
    """One end of a bare link: answers each delivery, or notes the answer to its own."""

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
    """Run the remote end of a bare link."""
    worker = str(uuid.uuid4())
    end = links("bench_bare", worker)
    await end.start(Echo())
    pipe.send((worker, end.address))
    await word(pipe)
    await end.close()


async def round_trips(rate: float, samples: int) -> list[float]:
    """Measure round trips of a frame with one record to another process and a frame back."""
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
    """Return the percentiles, in milliseconds."""
    cuts = statistics.quantiles(seconds, n=1000, method="inclusive")
    return {
        "p50": cuts[499] * 1e3,
        "p95": cuts[949] * 1e3,
        "p99": cuts[989] * 1e3,
        "p99.9": cuts[998] * 1e3,
    }


async def measure(url: str, *, rounds: int, samples: int) -> dict[str, Any]:
    """Measure everything once per round, and take medians over the rounds."""
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
        print(f"raw commit of one record, {load:8} {text_of(result['raw commit'][load])}")
        print(f"bare framed round trip,   {load:8} {text_of(result['round trip'][load])}")
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
            f"{cell.name:22} {depth} stage{'s' if depth > 1 else ' '} {load:8} {text_of(row)}; per "
            f"stage {row['p50 of raw, per stage']:.2f} x p50 and "
            f"{row['p95 of raw, per stage']:.2f} x p95 of the raw commit, "
            f"{row['p50 of round trip']:.1f} x the round trip"
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
    """Return the median of each figure over the rounds."""
    return {name: statistics.median(each[name] for each in figures) for name in figures[0]}


def ratio(
    figures: list[dict[str, float]], beside: list[dict[str, float]], name: str, stages: int = 1
) -> float:
    """Return the median over the rounds of the ratio in each round."""
    pairs = zip(figures, beside, strict=True)
    return statistics.median(one[name] / stages / other[name] for one, other in pairs)


def text_of(figures: dict[str, float]) -> str:
    """Format the percentiles on one line."""
    parts = [f"{name} {figures[name]:.2f}" for name in ("p50", "p95", "p99", "p99.9")]
    return ", ".join(parts) + " ms"
