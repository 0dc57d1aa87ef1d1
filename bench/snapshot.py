"""Full load before, during and after a held snapshot, as of a backup, a report or a long read by
Spark.

One engine runs throughout. The cost of a held snapshot may appear late, as row versions pile up
that vacuum cannot remove, and lasts until the rate is back.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from pathlib import Path
from typing import Any, NamedTuple

import psycopg

from bench.endless import Endless
from bench.server import drop, fresh_store
from bench.workload import pipeline
from millwheel.runtime.engine import Engine

SCHEMA = "bench_snapshot"
WINDOW_SECONDS = 5


class Lengths(NamedTuple):
    """Seconds of each part of the run."""

    warm: int
    before: int
    held: int
    after: int


async def rows_by_second(engine: Engine, seconds: int) -> list[float]:
    """Measure the rate of acknowledged rows in each second."""
    (injector,) = engine.injectors
    found = []
    done, at = injector.log.first, time.perf_counter()
    for _ in range(seconds):
        await asyncio.sleep(1)
        now_done, now = injector.log.first, time.perf_counter()
        found.append((now_done - done) / (now - at))
        done, at = now_done, now
        if engine.failure is not None:
            raise engine.failure
    return found


def recovered(after: list[float], before: float) -> float | None:
    """Return the seconds after the snapshot until a window has the rate from before; None:
    never."""
    for first in range(len(after) - WINDOW_SECONDS + 1):
        if statistics.mean(after[first : first + WINDOW_SECONDS]) >= before:
            return float(first)
    return None


async def run(url: str, lengths: Lengths) -> dict[str, list[float]]:
    """Measure the rate in each second of each part."""
    store = await fresh_store(url, SCHEMA)
    engine = Engine(pipeline(SCHEMA, Endless()), store)
    await engine.start()
    await rows_by_second(engine, lengths.warm)
    before = await rows_by_second(engine, lengths.before)
    with psycopg.connect(url) as holder:
        holder.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        holder.execute("SELECT count(*) FROM pg_catalog.pg_class")
        held = await rows_by_second(engine, lengths.held)
        holder.rollback()
    after = await rows_by_second(engine, lengths.after)
    await engine.stop()
    await store.close()
    drop(url, SCHEMA)
    return {"before": before, "held": held, "after": after}


async def measure(url: str, directory: Path, *, lengths: Lengths) -> dict[str, Any]:
    """Measure the rate with the snapshot held, and the time to recover; the directory is not
    used."""
    seconds = await run(url, lengths)
    before, held = (statistics.mean(seconds[name]) for name in ("before", "held"))
    last = statistics.mean(seconds["held"][-max(1, lengths.held // 5) :])
    end = statistics.mean(seconds["after"][lengths.after // 2 :])
    result = {
        "seconds_held": lengths.held,
        "before": before,
        "held": held,
        "ratio": held / before,
        "ratio_at_end": last / before,
        "after": end,
        "ratio_after": end / before,
        "recovered_seconds": recovered(seconds["after"], before),
        "seconds": seconds,
    }
    print(
        f"snapshot held for {lengths.held} s: {held:,.0f} records/s against {before:,.0f} before; "
        f"ratio {result['ratio']:.2f}, in the last fifth {result['ratio_at_end']:.2f}; recovered "
        f"after {result['recovered_seconds']} s, later ratio {result['ratio_after']:.2f}"
    )
    return result
