"""Lag of the low watermark of the last of ten stages behind that of the injector (paper 8.2).

A stage stores its low watermark before the next stage receives it. On an idle engine the baseline
is therefore ten raw one-record commits of the same run. Under load a stage waits for the current
bundle, so the baseline is the median duration of the run's bundles, from opening (when the previous
one is closed) until durable.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from bisect import bisect_left
from datetime import timedelta
from pathlib import Path
from typing import Any

from bench.latency import raw_latency
from bench.server import fresh_store
from bench.workload import PAYMENTS, Payment, payments, payments_file
from millwheel import Computation, Context, Discard, Pipeline, Record, Stream
from millwheel.core.model import MIN_TIME, to_micros
from millwheel.runtime.engine import Engine
from millwheel.runtime.environment import Options
from millwheel.sources import Source
from millwheel.store.port.commit import Commit, StoreLane
from millwheel.store.postgres.store import PostgresStore
from millwheel.testing.script import Script, inject

STAGES = 10
HOPS = [Stream(f"hop_{number}", Payment) for number in range(1, STAGES + 1)]


class Hop(Computation[Payment, None]):
    """Forwards a payment."""

    def __init__(self, to: Stream[Payment]) -> None:
        self.writes = (to,)
        self._to = to

    async def process_record(self, record: Record[Payment], ctx: Context[None]) -> None:
        ctx.produce(self._to, record.value)


def account_of(payment: Payment) -> int:
    return payment.account


def chain(name: str, source: Source, lateness: timedelta, stages: int = STAGES) -> Pipeline:
    """Build a chain of stages, by default ten."""
    hops = HOPS[:stages]
    pipeline = Pipeline(name)
    pipeline.inject(PAYMENTS, source, timestamp=lambda payment: payment.at, lateness=lateness)
    for before, to in zip([PAYMENTS, *hops], hops, strict=False):
        pipeline.add(Hop(to), before.by(account_of), name=to.name)
    pipeline.sink(hops[-1], Discard())
    return pipeline


class Tracking:
    """Records when each interval stored which low watermark."""

    def __init__(self) -> None:
        self.stored: dict[int, tuple[list[int], list[float]]] = {}
        """Interval -> its low watermarks, and when each became durable."""
        self.bundles: list[float] = []
        """Seconds from opening to durable, of each bundle with records."""
        self.commits: list[float] = []
        """Seconds of the commits of these bundles."""
        self.moved = asyncio.Event()

    def note(self, commit: Commit, opened: float, closed: float, ended: float) -> None:
        if commit.seen:
            self.bundles.append(ended - opened)
            self.commits.append(ended - closed)
        for link in commit.intervals:
            lows, times = self.stored.setdefault(link.interval_id, ([MIN_TIME], [0.0]))
            if link.low_watermark > lows[-1]:
                lows.append(link.low_watermark)
                times.append(ended)
        self.moved.set()

    def reached(self, interval: int, watermark: int) -> float | None:
        """Return when an interval had stored `watermark` or a later one."""
        lows, times = self.stored.get(interval, ([], []))
        place = bisect_left(lows, watermark)
        return times[place] if place < len(lows) else None


class TrackedLane:
    """A lane that reports its commits and their times."""

    def __init__(self, lane: StoreLane, tracking: Tracking) -> None:
        self._lane = lane
        self._tracking = tracking
        self._opened = time.perf_counter()

    def prepare(self, commit: Commit) -> None:
        self._lane.prepare(commit)

    async def commit(self, commit: Commit) -> None:
        opened, self._opened = self._opened, time.perf_counter()
        closed = self._opened
        await self._lane.commit(commit)
        self._tracking.note(commit, opened, closed, time.perf_counter())

    async def close(self) -> None:
        await self._lane.close()


class TrackedStore(PostgresStore):
    """A store with lanes that report their commits and their times."""

    def __init__(self, url: str, schema: str, tracking: Tracking) -> None:
        super().__init__(url, schema)
        self._tracking = tracking

    async def open_lane(self) -> TrackedLane:  # type: ignore[override]
        return TrackedLane(await super().open_lane(), self._tracking)


def stages(engine: Engine) -> list[list[int]]:
    """Return the intervals of the injector and of each stage, in the order of the chain."""
    by_name: dict[str, list[int]] = {}
    for interval in engine.intervals:
        by_name.setdefault(interval.step.name, []).append(interval.id)
    return [by_name["payments_injector"], *(by_name[hop.name] for hop in HOPS)]


def arrivals(tracking: Tracking, chain: list[list[int]], watermark: int) -> list[float] | None:
    """Return when all intervals of each stage had stored `watermark`; None: some have not."""
    found = []
    for intervals in chain:
        times = [tracking.reached(interval, watermark) for interval in intervals]
        if None in times:
            return None
        found.append(max(t for t in times if t is not None))
    return found


async def idle(url: str, samples: int) -> list[float]:
    """Measure the seconds from a record's arrival until the last stage has stored its timestamp."""
    tracking = Tracking()
    await (await fresh_store(url, "bench_lag_idle")).close()
    store = await TrackedStore(url, "bench_lag_idle", tracking).open()
    script = Script("payments")
    engine = Engine(
        chain("bench_lag_idle", script, timedelta(0)), store, options=Options(keep_open=True)
    )
    await engine.start()
    await engine.run()
    order, found = stages(engine), []
    for payment in payments(samples):
        watermark = to_micros(payment.at)
        script.append(inject(PAYMENTS, payment))
        start = time.perf_counter()
        while (times := arrivals(tracking, order, watermark)) is None:
            tracking.moved.clear()
            await tracking.moved.wait()
        found.append(times[-1] - start)
        await engine.run()
    await engine.stop()
    await store.close()
    return found


async def loaded(url: str, directory: Path, records: int) -> tuple[list[list[float]], Tracking]:
    """Measure the lag under load.

    Returns:
        The seconds that each stage adds, for each step of the injector's watermark, and the times
        of the bundles.
    """
    tracking = Tracking()
    await (await fresh_store(url, "bench_lag")).close()
    store = await TrackedStore(url, "bench_lag", tracking).open()
    source = payments_file(directory, records)
    engine = Engine(
        chain("bench_lag", source, timedelta(0)), store, options=Options(keep_open=True)
    )
    await engine.start()
    order = stages(engine)
    await engine.run()
    await engine.stop()
    await store.close()
    steps = tracking.stored[order[0][0]][0][1:]
    times = [found for step in steps if (found := arrivals(tracking, order, step)) is not None]
    lags = [[t[n] - t[n - 1] for t in times] for n in range(1, STAGES + 1)]
    return lags, tracking


async def measure(url: str, directory: Path, *, samples: int, records: int) -> dict[str, Any]:
    """Measure both lags, each with its baseline of the same run."""
    raw = statistics.median((await raw_latency(url, 300))[10:])
    alone = statistics.median((await idle(url, samples))[5:])
    lags, tracking = await loaded(url, directory, records)
    bundle = statistics.median(tracking.bundles)
    per_stage = [statistics.median(lag) for lag in lags]
    result = {
        "raw_commit_ms": raw * 1000,
        "idle_ms": alone * 1000,
        "idle_ratio": alone / (STAGES * raw),
        "bundle_ms": bundle * 1000,
        "commit_ms": statistics.median(tracking.commits) * 1000,
        "stage_ms": [lag * 1000 for lag in per_stage],
        "stage_ratio": max(per_stage) / bundle,
        "steps": len(lags[0]),
    }
    print(
        f"watermark lag over {STAGES} stages, idle: p50 {alone * 1000:.1f} ms; ten raw commits "
        f"{STAGES * raw * 1000:.1f} ms; ratio {result['idle_ratio']:.2f}"
    )
    print(
        f"  loaded: p50 of the slowest stage {max(per_stage) * 1000:.1f} ms (all: "
        f"{', '.join(f'{lag * 1000:.1f}' for lag in per_stage)}); bundle {bundle * 1000:.1f} ms, "
        f"including its commit {result['commit_ms']:.1f} ms; ratio {result['stage_ratio']:.2f}"
    )
    return result
