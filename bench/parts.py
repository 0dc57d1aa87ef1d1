"""The parts of the benchmark, with their sizes in a full and in a quick run."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from bench import (
    aggregates,
    before,
    cells,
    commits,
    copies,
    evolving,
    growth,
    hot,
    ingest,
    instructions,
    kafka,
    kills,
    lag,
    latency,
    looks,
    memory,
    nexmark,
    on_spark,
    pages,
    parked,
    queries,
    rate,
    reader_wait,
    seen,
    shares,
    slow,
    snapshot,
    spark_start,
    state_rows,
    takeover,
    timers,
    trees,
    watched,
    ways,
    windows,
    workers,
)  # fmt: skip
from bench.peers import side_by_side

Options = argparse.Namespace
Part = Callable[[str, Path, Options], Awaitable[Any]]


async def _rate(url: str, directory: Path, options: Options) -> Any:
    quick = options.quick
    return await rate.measure(
        url, directory, pairs=3 if quick else 7, records=50_000 if quick else 300_000
    )


async def _before(url: str, directory: Path, options: Options) -> Any:
    quick = options.quick
    return await before.measure(
        url, directory, pairs=1 if quick else 7, records=50_000 if quick else 300_000
    )


async def _instructions(url: str, directory: Path, options: Options) -> Any:
    return await instructions.measure(url, directory, records=5_000 if options.quick else 20_000)


async def _latency(url: str, directory: Path, options: Options) -> Any:
    return await latency.measure(url, samples=200 if options.quick else 1000)


async def _ingest(url: str, directory: Path, options: Options) -> Any:
    return await ingest.measure(url, directory, samples=200 if options.quick else 2000)


async def _kafka(url: str, directory: Path, options: Options) -> Any:
    quick = options.quick
    return await kafka.measure(
        directory, options.kafka, records=20_000 if quick else 200_000, rounds=1 if quick else 5
    )


async def _reader_wait(url: str, directory: Path, options: Options) -> Any:
    return await reader_wait.measure(
        url, directory, options.kafka, kills=2 if options.quick else 15
    )


async def _aggregates(url: str, directory: Path, options: Options) -> Any:
    seconds = 20.0 if options.quick else 120.0
    return await asyncio.to_thread(aggregates.measure, url, directory, seconds=seconds)


async def _spark(url: str, directory: Path, options: Options) -> Any:
    quick = options.quick
    return await on_spark.measure(
        url,
        directory,
        keys=(10_000,) if quick else (10_000, 100_000, 1_000_000),
        records=80_000 if quick else 500_000,
        rows=20_000 if quick else on_spark.BATCH_ROWS,
    )


async def _spark_most_keys(url: str, directory: Path, _: Options) -> Any:
    return await on_spark.measure(
        url, directory, keys=(10_000_000,), records=400_000, rows=on_spark.BATCH_ROWS
    )


async def _spark_start(url: str, directory: Path, options: Options) -> Any:
    quick = options.quick
    return await asyncio.to_thread(
        spark_start.measure,
        url,
        directory,
        rounds=1 if quick else 5,
        busy_starts=2 if quick else 20,
    )


async def _state_rows(url: str, directory: Path, options: Options) -> Any:
    quick = options.quick
    return await asyncio.to_thread(
        state_rows.measure,
        url,
        directory,
        rows=100_000 if quick else 1_000_000,
        rounds=1 if quick else 5,
    )


async def _looks(url: str, directory: Path, options: Options) -> Any:
    quick = options.quick
    return await asyncio.to_thread(
        looks.measure,
        url,
        directory,
        timers=100_000 if quick else 10_000_000,
        states=100_000 if quick else 3_600_000,
    )


async def _commits(url: str, directory: Path, options: Options) -> Any:
    quick = options.quick
    return await commits.measure(url, rounds=1 if quick else 5, records=3_000 if quick else 30_000)


async def _shares(url: str, directory: Path, options: Options) -> Any:
    quick = options.quick
    return await shares.measure(url, rounds=1 if quick else 5, records=20_000 if quick else 100_000)


async def _seen(url: str, _: Path, options: Options) -> Any:
    return await seen.measure(url, ids=700_000 if options.quick else 100_000_000)


async def _windows(url: str, directory: Path, options: Options) -> Any:
    quick = options.quick
    return await windows.measure(
        url, directory, pairs=1 if quick else 5, records=100_000 if quick else 300_000
    )


async def _queries(url: str, directory: Path, options: Options) -> Any:
    quick = options.quick
    return await queries.measure(
        url, directory, pairs=1 if quick else 5, records=200_000 if quick else 500_000
    )


async def _watched(url: str, directory: Path, options: Options) -> Any:
    quick = options.quick
    return await watched.measure(
        url, directory, pairs=3 if quick else 7, records=400_000 if quick else 1_000_000
    )


async def _ways(url: str, directory: Path, options: Options) -> Any:
    quick = options.quick
    return await ways.measure(
        url, directory, pairs=1 if quick else 5, records=100_000 if quick else 300_000
    )


async def _cells(url: str, directory: Path, options: Options) -> Any:
    quick = options.quick
    return await cells.measure(url, rounds=1 if quick else 5, samples=60 if quick else 400)


async def _slow(url: str, directory: Path, options: Options) -> Any:
    quick = options.quick
    return await slow.measure(
        url, rounds=1 if quick else 3, seconds=7 if quick else 10, minute=5 if quick else 60
    )


async def _trees(url: str, directory: Path, options: Options) -> Any:
    return await trees.measure(url, directory, quick=options.quick)


async def _snapshot(url: str, directory: Path, options: Options) -> Any:
    lengths = (
        snapshot.Lengths(2, 5, 10, 10) if options.quick else snapshot.Lengths(30, 120, 600, 120)
    )
    return await snapshot.measure(url, directory, lengths=lengths)


async def _memory(url: str, directory: Path, options: Options) -> Any:
    return await memory.measure(url, directory, times=2 if options.quick else 20)


async def _timers(url: str, directory: Path, options: Options) -> Any:
    return await timers.measure(url, directory, count=50_000 if options.quick else 1_000_000)


async def _pages(url: str, directory: Path, options: Options) -> Any:
    part = 100 if options.quick else 1
    return await pages.measure(
        url,
        directory,
        states=1_000_000 // part,
        timers=10_000_000 // part,
        letters=100_000 // part,
    )


async def _copies(url: str, directory: Path, options: Options) -> Any:
    quick = options.quick
    return await copies.measure(
        url, directory, states=copies.STATES // (20 if quick else 1), rounds=1 if quick else 3
    )


async def _parked(url: str, directory: Path, options: Options) -> Any:
    quick = options.quick
    return await parked.measure(url, pairs=1 if quick else 5, seconds=6 if quick else 20)


async def _hot(url: str, directory: Path, options: Options) -> Any:
    quick = options.quick
    return await hot.measure(
        url, directory, pairs=3 if quick else 7, records=50_000 if quick else 300_000
    )


async def _lag(url: str, directory: Path, options: Options) -> Any:
    quick = options.quick
    return await lag.measure(
        url, directory, samples=30 if quick else 300, records=5_000 if quick else 30_000
    )


async def _workers(url: str, directory: Path, options: Options) -> Any:
    quick = options.quick
    return workers.measure(
        url, directory, records=1_000_000 if quick else 1_500_000, seconds=5 if quick else 30
    )


async def _takeover(url: str, directory: Path, options: Options) -> Any:
    quick = options.quick
    return takeover.measure(
        url,
        directory,
        sizes=(10, 50) if quick else (10, 100, 1000),
        kills=1 if quick else 5,
        moves=2 if quick else 10,
    )


async def _evolving(url: str, directory: Path, options: Options) -> Any:
    quick = options.quick
    keys = 100_000 if quick else 10_000_000
    return evolving.measure(url, directory, keys=keys, rate=8_000, rows=keys)


async def _kills(url: str, directory: Path, options: Options) -> Any:
    quick = options.quick
    return kills.measure(url, directory, kills=5 if quick else 200, sessions=2 if quick else 20)


def _growth(name: str) -> Part:
    async def part(url: str, directory: Path, options: Options) -> Any:
        return await growth.measure(url, directory, name=name, quick=options.quick)

    return part


async def _nexmark(url: str, directory: Path, options: Options) -> Any:
    return await nexmark.measure(url, directory, events=20_000 if options.quick else 500_000)


async def _peers(url: str, directory: Path, options: Options) -> Any:
    async def found(address: str | None) -> Any:
        return await asyncio.to_thread(
            side_by_side.measure,
            url, directory, quick=options.quick, names=options.only, kafka=address,
        )  # fmt: skip

    if options.kafka is None:
        return await found(None)
    async with kafka.brokers(options.kafka, directory) as address:
        return await found(address)


PARTS: dict[str, Part] = {
    "rate": _rate,
    "before": _before,
    "instructions": _instructions,
    "latency": _latency,
    "ingest": _ingest,
    "kafka": _kafka,
    "reader-wait": _reader_wait,
    "aggregates": _aggregates,
    "spark": _spark,
    "spark-most-keys": _spark_most_keys,
    "spark-start": _spark_start,
    "state-rows": _state_rows,
    "looks": _looks,
    "commits": _commits,
    "seen": _seen,
    "shares": _shares,
    "cells": _cells,
    "slow": _slow,
    "pages": _pages,
    "copies": _copies,
    "parked": _parked,
    "snapshot": _snapshot,
    "memory": _memory,
    "timers": _timers,
    "hot": _hot,
    "lag": _lag,
    "workers": _workers,
    "takeover": _takeover,
    "kills": _kills,
    "evolving": _evolving,
    "trees": _trees,
    "watched": _watched,
    "ways": _ways,
    "windows": _windows,
    "queries": _queries,
    "nexmark": _nexmark,
    **{f"growth-{name}": _growth(name) for name in growth.CURVES},
    "peers": _peers,
}
GROUPS = {"growth": [f"growth-{name}" for name in growth.CURVES]}
"""Names for several parts."""
DEFAULT = tuple(
    name
    for name in PARTS
    if name
    not in (
        "aggregates",
        "before",
        "copies",
        "evolving",
        "instructions",
        "kafka",
        "kills",
        "looks",
        "nexmark",
        "pages",
        *GROUPS["growth"],
        "peers",
        "reader-wait",
        "seen",
        "spark",
        "spark-most-keys",
        "spark-start",
        "state-rows",
    )
)
"""Parts of a run without arguments. Parts that take hours, gigabytes or other packages are
excluded."""
