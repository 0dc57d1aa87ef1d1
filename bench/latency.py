"""Latency of a single record on an idle engine, arrival to durable, and of a raw one-record
commit."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from bench.rate import _commits
from bench.server import fresh_store
from bench.workload import BALANCES, PAYMENTS, payments, pipeline
from millwheel.runtime.engine import Engine
from millwheel.runtime.environment import Options
from millwheel.store.port.commit import Commit, StoreLane
from millwheel.store.port.deploy import DescribedGraph, NodeDeploy, StreamDeploy
from millwheel.store.postgres.store import PostgresStore
from millwheel.testing.script import Script, inject


class TimedLane:
    """A lane that notes when a commit with records became durable."""

    def __init__(self, lane: StoreLane, durable: asyncio.Event) -> None:
        self._lane = lane
        self._durable = durable
        self.at = 0.0

    def prepare(self, commit: Commit) -> None:
        self._lane.prepare(commit)

    async def commit(self, commit: Commit) -> None:
        await self._lane.commit(commit)
        if commit.seen:
            self.at = time.perf_counter()
            self._durable.set()

    async def close(self) -> None:
        await self._lane.close()


class TimedStore(PostgresStore):
    """A store with lanes that note when records became durable."""

    def __init__(self, url: str, schema: str) -> None:
        super().__init__(url, schema)
        self.durable = asyncio.Event()
        self.timed: list[TimedLane] = []

    async def open_lane(self) -> TimedLane:  # type: ignore[override]
        lane = TimedLane(await super().open_lane(), self.durable)
        self.timed.append(lane)
        return lane


@asynccontextmanager
async def raw_commits(
    url: str, records: int, bundle: int = 1
) -> AsyncIterator[tuple[StoreLane, list[Commit]]]:
    """Open a connection; yield it with commits of `records` records for it, `bundle` in each."""
    store = await fresh_store(url, "bench_raw")
    deployment = await store.deploy(
        DescribedGraph(
            {},
            [NodeDeploy("raw", "computation", 1, {}, [], [(0, 65536)], [])],
            [StreamDeploy(BALANCES.name, 1, {})],
            [],
        ),
        stamp=1,
        bucket_high=1 << 62,
    )
    bucket = (await store.live_buckets())[0].id
    (claim,) = await store.claim(
        "00000000-0000-0000-0000-000000000000", [i.id for i in deployment.intervals]
    )
    lane = await store.open_lane()
    try:
        yield lane, _commits(claim, 0, records, bundle, bucket)
    finally:
        await store.close()


async def raw_latency(url: str, samples: int) -> list[float]:
    """Measure the seconds of one-record commits, one after the other, on one connection."""
    found = []
    async with raw_commits(url, samples) as (lane, commits):
        for commit in commits:
            start = time.perf_counter()
            await lane.commit(commit)
            found.append(time.perf_counter() - start)
    return found


async def engine_latency(url: str, samples: int) -> list[float]:
    """Measure the seconds from a record's arrival to its commit, on an idle engine."""
    await (await fresh_store(url, "bench_latency")).close()
    store = TimedStore(url, "bench_latency")
    await store.open()
    script = Script("payments")
    engine = Engine(pipeline("bench_latency", script), store, options=Options(keep_open=True))
    await engine.start()
    await engine.run()
    found = []
    for payment in payments(samples):
        store.durable.clear()
        script.append(inject(PAYMENTS, payment))
        start = time.perf_counter()
        await store.durable.wait()
        found.append(max(lane.at for lane in store.timed) - start)
        await engine.run()
    await engine.stop()
    await store.close()
    return found


def _percentiles(seconds: list[float]) -> dict[str, float]:
    cuts = statistics.quantiles(seconds, n=100)
    return {"p50_ms": cuts[49] * 1000, "p95_ms": cuts[94] * 1000, "p99_ms": cuts[98] * 1000}


async def measure(url: str, *, samples: int) -> dict[str, Any]:
    """Measure both, and the ratio of their medians."""
    raw = _percentiles((await raw_latency(url, samples))[10:])
    engine = _percentiles((await engine_latency(url, samples))[10:])
    result = {"raw": raw, "engine": engine, "ratio_p50": engine["p50_ms"] / raw["p50_ms"]}
    print(
        f"one record, arrival to durable: p50 {engine['p50_ms']:.2f} ms, p99 "
        f"{engine['p99_ms']:.2f} ms; raw commit p50 {raw['p50_ms']:.2f} ms; ratio "
        f"{result['ratio_p50']:.2f}"
    )
    return result
