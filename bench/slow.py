"""Cost of a slow key after a weak stage, and of a sink that becomes ten times as slow.

*A straggler*: a key downstream waits for five seconds. The rows of other keys should be
acknowledged as fast as without it, the source should have few unacknowledged rows, and the status
should show the stored straggler.

*A slow sink* on another worker takes ten times as long for a minute. Nothing is lost, so nothing
should be resent, and afterwards everything should recover by itself.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from bench.cells import Arrive, Ball, Cell, Pass, connect, engine_of, number_of, take
from bench.cells import pipeline as stages
from bench.server import fresh_store
from millwheel import Computation, Context, Discard, Pipeline, Record, Settings, Stream
from millwheel.core.model import from_micros
from millwheel.runtime.engine import Engine
from millwheel.runtime.environment import Options
from millwheel.runtime.interval.interval import Interval
from millwheel.runtime.interval.sent_log import SentLog
from millwheel.runtime.network.frames import Deliver, DeliverChunk, Frame, Loose
from millwheel.runtime.network.links import WorkerLink
from millwheel.store.postgres.store import PostgresStore
from millwheel.testing.script import Script, inject

KEYS = 50
ROWS_PER_SECOND = 200.0
SLOW_SECONDS = 5.0
BALLS_0 = Stream("balls_0", Ball)
BALLS, PASSED, TAKEN = (Stream(name, Ball) for name in ("balls", "passed", "taken"))


class Take(Computation[Ball, None]):
    """Processes a record immediately, but the first one of the slow key after a delay."""

    writes = (TAKEN,)

    def __init__(self, slow_key: int | None) -> None:
        self._slow_key = slow_key

    async def process_record(self, record: Record[Ball], ctx: Context[None]) -> None:
        if ctx.key == self._slow_key:
            self._slow_key = None
            await asyncio.sleep(SLOW_SECONDS)
        ctx.produce(TAKEN, record.value)


async def upstream(url: str, slow_key: int | None, seconds: float) -> dict[str, float]:
    """Measure the time to acknowledgement of other keys' rows, and the number of unacknowledged
    rows."""
    name = "bench_slow"
    await (await fresh_store(url, name)).close()
    script = Script("balls")
    made = Pipeline(name, settings=replace(Settings(), intervals=1))
    made.inject(BALLS, script, timestamp=lambda ball: from_micros(ball.number))
    made.add(Pass(PASSED), BALLS.by(number_of), productions="weak")
    made.add(Take(slow_key), PASSED.by(lambda ball: ball.number % KEYS))
    made.sink(TAKEN, Discard())
    store = await PostgresStore(url, name).open()
    engine = Engine(made, store, options=Options(keep_open=True))
    await engine.start()
    acknowledged: dict[int, float] = {}
    arrived = engine.exchange._arrived

    def noting(sent: SentLog, owner: Interval, receiver: int, seqs: Sequence[int]) -> None:
        arrived(sent, owner, receiver, seqs)
        if sent.source:
            acknowledged.update(dict.fromkeys(seqs, time.perf_counter()))

    engine.exchange._arrived = noting  # type: ignore[method-assign]
    (injector,) = engine.injectors
    total = int(ROWS_PER_SECOND * seconds)
    due: list[float] = []
    most = 0
    begin = time.perf_counter()
    for number in range(total):
        due.append(begin + number / ROWS_PER_SECOND)
        if (left := due[-1] - time.perf_counter()) > 0:
            await asyncio.sleep(left)
        script.append(inject(BALLS, Ball(number)))
        most = max(most, injector.log.unacked)
    engine.done.clear()  # set again when the last rows are done
    await asyncio.wait_for(engine.run(), 30)
    (weak,) = (i for i in engine.intervals if i.step.node.is_weak)
    stragglers = weak.counters.totals.get("stragglers", 0)
    await engine.stop()
    await store.close()
    others = sorted(
        (acknowledged[n] - due[n]) * 1e3 for n in range(total) if n % KEYS != (slow_key or 0)
    )
    return {
        "p50_ms": statistics.median(others),
        "p99_ms": others[int(len(others) * 0.99)],
        "most_unacked_rows": most,
        "stragglers": stragglers,
    }


@asynccontextmanager
async def two_workers(url: str, sink: Sink) -> AsyncIterator[tuple[Engine, Script, Arrive]]:
    """Run a weak stage on the second of two workers, and a sink for it on the first.

    Yields the first worker, its source and the last stage.
    """
    name = "bench_slow_sink"
    await (await fresh_store(url, name)).close()
    script = Script("balls")
    made, arrive = stages(name, Cell("weak", {"productions": "weak"}), 1, script)
    made.add(sink, Stream("balls_1", Ball).by(lambda ball: "one"), name="sink")
    engines = [await engine_of(url, made) for _ in range(2)]
    for engine, has_stages in zip(engines, (False, True), strict=True):
        await take(engine, stages=has_stages)
    await connect(*engines)
    try:
        yield engines[0], script, arrive
    finally:
        for engine in engines:
            await engine.kill()
            await engine.store.close()


class Sink(Computation[Ball, None]):
    """Takes `seconds` for each record, one after the other."""

    def __init__(self) -> None:
        self.seconds = 0.004
        self.taken = 0
        self.took = asyncio.Event()

    async def process_record(self, record: Record[Ball], ctx: Context[None]) -> None:
        await asyncio.sleep(self.seconds)
        self.taken += 1
        self.took.set()


async def slow_sink(url: str, seconds: float) -> dict[str, float]:
    """Count sends while the sink is slow, and measure the time to catch up.

    Each record is sent three times: to the weak stage, and from there to the sink and to the end.
    """
    sink = Sink()
    sent = 0
    send = WorkerLink.send

    def counting(link: WorkerLink, frame: Frame) -> None:
        nonlocal sent
        if isinstance(frame, DeliverChunk):
            sent += len(frame.chunk.numbers)
        elif isinstance(frame, Deliver | Loose):
            sent += len(frame.records)
        send(link, frame)

    async with two_workers(url, sink) as (_, script, _):
        WorkerLink.send = counting  # type: ignore[method-assign, assignment]
        try:
            total = 0
            for length, factor in ((5.0, 1), (seconds, 10), (5.0, 1)):
                sink.seconds = 0.004 * factor
                end = time.perf_counter() + length
                while time.perf_counter() < end:
                    script.append(inject(BALLS_0, Ball(total)))
                    total += 1
                    await asyncio.sleep(1 / 100)
            began = time.perf_counter()
            async with asyncio.timeout(10 * seconds):
                while sink.taken < total:
                    sink.took.clear()
                    await sink.took.wait()
        finally:
            WorkerLink.send = send  # type: ignore[method-assign]
    return {
        "injected": total,
        "sent": sent,
        "ratio": sent / (3 * total),
        "caught_up_seconds": time.perf_counter() - began,
    }


async def measure(url: str, *, rounds: int, seconds: float, minute: float) -> dict[str, Any]:
    """Measure with and without a slow key alternately, then the slow sink."""
    found: dict[str, list[dict[str, float]]] = {"plain": [], "slow key": []}
    for _ in range(rounds):
        found["plain"].append(await upstream(url, None, seconds))
        found["slow key"].append(await upstream(url, 7, seconds))
    result: dict[str, Any] = {}
    for name, figures in found.items():
        result[name] = {key: statistics.median(f[key] for f in figures) for key in figures[0]}
        print(
            f"rows of other keys, {name}: acknowledged after p50 {result[name]['p50_ms']:.2f} ms, "
            f"p99 {result[name]['p99_ms']:.2f} ms; most unacknowledged rows at the source "
            f"{result[name]['most_unacked_rows']:.0f}, stragglers "
            f"{result[name]['stragglers']:.0f}"
        )
    result["ratio_p50"] = result["slow key"]["p50_ms"] / result["plain"]["p50_ms"]
    sink = result["slow sink"] = await slow_sink(url, minute)
    print(
        f"one slow key / none: p50 x {result['ratio_p50']:.2f}. A sink ten times as slow for "
        f"{minute:.0f} s: {sink['injected']:.0f} records of three hops each, sent "
        f"{sink['sent']:.0f} times = x {sink['ratio']:.3f}; caught up "
        f"{sink['caught_up_seconds']:.1f} s later"
    )
    return result
