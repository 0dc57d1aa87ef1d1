"""The four cells: weak or strong productions, exactly once or not; how long a record takes.

Two workers share a pipeline over TCP: the first has the source and the reader at the end, the
second the stages between. A record goes to the second, through its stages, and back: what a stage
costs stands beside a bare framed round trip between the same two, and beside a raw commit of one
record. The load is open: records come by the clock, and each one's time counts from when it was
due, whatever became of those before it.
"""

from __future__ import annotations

import asyncio
import statistics
import time
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from bench.latency import raw_latency
from bench.server import fresh_store
from millwheel import Computation, Context, Pipeline, Record, Settings, Stream
from millwheel.clock import SystemClock
from millwheel.model import from_micros
from millwheel.runtime.engine import Engine
from millwheel.runtime.frames import Acknowledge, Deliver, Frame
from millwheel.runtime.greeting import Identity
from millwheel.runtime.links import Links
from millwheel.runtime.network import Link
from millwheel.services.tcp import Tcp
from millwheel.store.postgres import PostgresStore
from millwheel.testing.script import Script, inject

LOADS = {"low": 50.0, "moderate": 500.0}
"""Records a second."""

DEPTHS = (1, 3)
WARM_UP_RECORDS = 20


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
    made = Pipeline(name, settings=replace(Settings(), lanes=1))
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


@asynccontextmanager
async def two_workers(
    url: str, cell: Cell, depth: int, also: Callable[[Pipeline], None] | None = None
) -> AsyncIterator[tuple[Engine, Script, Arrive]]:
    """The pipeline on two workers; gives the first, its source, and the end.

    Args:
        also: adds computations; those called ``stage_...`` are on the second worker.
    """
    name = "bench_cells"
    await (await fresh_store(url, name)).close()
    script = Script("balls")
    made, arrive = pipeline(name, cell, depth, script)
    if also is not None:
        also(made)
    engines = []
    for _ in range(2):
        store = await PostgresStore(url, name).open()
        engine = Engine(made, store, network=lambda id_: _links(name, id_), close_at_end=False)
        await engine.start()
        engines.append(engine)
    first, second = engines
    names = {id_: step.name for id_, step in first.steps.items()}
    rows = (await first.store.read_placement()).intervals
    for engine, stages in ((first, False), (second, True)):
        ids = [r.id for r in rows if names[r.computation].startswith("stage") is stages]
        await engine.holdings.take(ids)
    for _ in range(2):
        for engine in engines:
            await engine.neighbours.look_around()
        await asyncio.sleep(0.2)  # links come up
    try:
        yield first, script, arrive
    finally:
        for engine in engines:
            await engine.kill()
            await engine.store.close()


def _links(pipeline: str, worker: str) -> Links:
    return Links(Identity(pipeline, worker), Tcp("127.0.0.1", 0), clock=SystemClock())


async def cell_latency(url: str, cell: Cell, depth: int, rate: float, samples: int) -> list[float]:
    """Seconds from when a record was due until it came out of the last stage."""
    async with two_workers(url, cell, depth) as (engine, script, arrive):
        total = WARM_UP_RECORDS + samples
        due: list[float] = []
        begin = time.perf_counter() + 0.05
        for number in range(total):
            due.append(begin + number / rate)
            if (left := due[-1] - time.perf_counter()) > 0:
                await asyncio.sleep(left)
            script.append(inject(Stream("balls_0", Ball), Ball(number)))
            engine.read_on()
        while len(arrive.at) < total:
            arrive.came.clear()
            await asyncio.wait_for(arrive.came.wait(), 30)
        return [arrive.at[number] - due[number] for number in range(WARM_UP_RECORDS, total)]


class Echo:
    """One end of a bare link: answers each delivery, or notes when its own was answered."""

    def __init__(self) -> None:
        self.up = asyncio.Event()
        self.answered = asyncio.Event()

    def link_up(self, link: Link) -> None:
        self.up.set()

    def link_down(self, link: Link, reason: str) -> None: ...

    def link_drained(self, link: Link) -> None: ...

    def received(self, link: Link, frame: Frame) -> None:
        if isinstance(frame, Deliver):
            link.send(Acknowledge(frame.log, frame.receiver, [(1, 1)]))
        else:
            self.answered.set()


async def round_trips(samples: int) -> list[float]:
    """Seconds of a frame with one record there and a frame back, over the links of workers."""
    ids = [str(uuid.uuid4()) for _ in range(2)]
    ends = [_links("bench_bare", id_) for id_ in ids]
    echoes = [Echo(), Echo()]
    for links, echo in zip(ends, echoes, strict=True):
        await links.start(echo)
    link = ends[0].link(ids[1], ends[1].address)
    await asyncio.wait_for(echoes[0].up.wait(), 10)
    frame = Deliver(
        1, 1, 1, 1, 1, 0,
        [(1, "balls", b"1", 7, 0, 0, 0, 12, b"", False, b'{"number":1}', 1, 0)],
    )  # fmt: skip
    found = []
    for _ in range(samples):
        echoes[0].answered.clear()
        start = time.perf_counter()
        link.send(frame)
        await echoes[0].answered.wait()
        found.append(time.perf_counter() - start)
    for links in ends:
        await links.close()
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
    raw: list[dict[str, float]] = []
    bare: list[dict[str, float]] = []
    for _ in range(rounds):
        raw.append(percentiles((await raw_latency(url, samples))[10:]))
        bare.append(percentiles((await round_trips(samples))[10:]))
        for cell, depth, load in names:
            seconds = await cell_latency(url, cell, depth, LOADS[load], samples)
            found[cell, depth, load].append(percentiles(seconds))
    result: dict[str, Any] = {"raw commit": middle(raw), "round trip": middle(bare), "cells": []}
    print(f"raw commit of one record: {told(result['raw commit'])}")
    print(f"bare framed round trip:   {told(result['round trip'])}")
    for (cell, depth, load), figures in found.items():
        row = {
            "cell": cell.name,
            "stages": depth,
            "load": load,
            **middle(figures),
            "p50 of raw, per stage": ratio(figures, raw, "p50", depth),
            "p95 of raw, per stage": ratio(figures, raw, "p95", depth),
            "p50 of round trip": ratio(figures, bare, "p50"),
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
