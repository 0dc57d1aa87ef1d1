"""Measure one point: the rate of an engine in this process after a warm-up, and its memory."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

from bench.memory import resident_megabytes
from millwheel import Pipeline
from millwheel.runtime.engine import Engine
from millwheel.runtime.environment import Options
from millwheel.store.port import Store

WARM = 0.1
"""Default share of the rows that are warm-up."""


def peak_megabytes() -> float:
    """Return the peak resident memory of this process (Linux)."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1]) / 1e3
    return resident_megabytes()


async def run(
    pipeline: Pipeline,
    store: Store,
    rows: int,
    *,
    warm: int | None = None,
    keep_open: bool = False,
) -> dict[str, Any]:
    """Start an engine on a store, let it process the source's rows, and measure."""
    engine = Engine(pipeline, store, options=Options(keep_open=keep_open))
    before = time.perf_counter()
    await engine.start()
    started = time.perf_counter() - before
    found = await through(engine, rows, int(rows * WARM) if warm is None else warm)
    await engine.stop()
    return {**found, "start_seconds": started}


async def through(engine: Engine, rows: int, warm: int) -> dict[str, Any]:
    """Measure rows per second from the end of the warm-up to the end of the source."""
    running = asyncio.create_task(engine.run())
    (injector,) = engine.injectors
    while injector.log.first < warm and not running.done():
        await asyncio.sleep(0.005)
    first, before = injector.log.first, time.perf_counter()
    await running
    seconds = time.perf_counter() - before
    return {
        "rate": (rows - first) / seconds,
        "rows": rows,
        "megabytes": resident_megabytes(),
        "peak_megabytes": peak_megabytes(),
    }
