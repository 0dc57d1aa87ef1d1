"""Chains of one to ten stages, each with strong productions and dedup."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

from bench.apart import apart
from bench.growth.running import run
from bench.lag import chain
from bench.server import drop, fresh_store
from bench.workload import payments_file

SCHEMA = "bench_depth"


async def point(url: str, directory: Path, stages: int, rows: int) -> dict[str, Any]:
    """Measure a run with N stages."""
    store = await fresh_store(url, SCHEMA)
    source = payments_file(directory, rows)
    try:
        made = chain(SCHEMA, source, timedelta(seconds=10), stages)
        return await run(made, store, rows)
    finally:
        await store.close()


async def measure(url: str, directory: Path, quick: bool) -> list[dict[str, Any]]:
    """Measure chains of one to ten stages."""
    rows = 10_000 if quick else 150_000
    payments_file(directory, rows)
    found = []
    for stages in (1, 3, 10) if quick else (1, 2, 3, 5, 7, 10):
        line = await apart(point, url, directory, stages, rows)
        found.append({"stages": stages, "hops": line["rate"] * stages, **line})
        print(
            f"  {stages:2} stages: {line['rate']:9,.0f} records/s = {line['rate'] * stages:,.0f} "
            f"hops/s, peak {line['peak_megabytes']:.0f} MB"
        )
    drop(url, SCHEMA)
    return found
