"""``python -m bench [PART ...] [--quick]``: measure, print, keep as JSON."""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
from pathlib import Path
from typing import Any

import psycopg

from bench import (
    cells,
    hot,
    lag,
    latency,
    memory,
    quiet,
    rate,
    slow,
    snapshot,
    takeover,
    timers,
    trees,
    workers,
)  # fmt: skip
from bench.server import server
from millwheel.services import loop

PARTS = (
    "rate", "latency", "cells", "slow", "trees", "snapshot", "memory", "timers", "hot", "lag",
    "workers", "takeover",
)  # fmt: skip
OUT = Path(__file__).parent / "out"


def machine(url: str) -> dict[str, Any]:
    """What it was measured on."""
    with psycopg.connect(url) as connection:
        version = connection.info.server_version
    return {
        "cores": os.cpu_count(),
        "machine": platform.machine(),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "postgres": f"{version // 10_000}.{version % 10_000}",
        "load_before": os.getloadavg()[0],
    }


async def run(parts: list[str], *, quick: bool) -> dict[str, Any]:
    """All parts, on one server, one after the other."""
    results: dict[str, Any] = {}
    with server() as (url, directory):
        results["machine"] = machine(url)
        print("machine:", json.dumps(results["machine"]))
        if "rate" in parts:
            results["rate"] = await rate.measure(
                url, directory, pairs=3 if quick else 7, records=50_000 if quick else 300_000
            )
        if "latency" in parts:
            results["latency"] = await latency.measure(url, samples=200 if quick else 1000)
        if "cells" in parts:
            results["cells"] = await cells.measure(
                url, rounds=1 if quick else 5, samples=60 if quick else 400
            )
        if "slow" in parts:
            results["slow"] = await slow.measure(
                url,
                rounds=1 if quick else 3,
                seconds=7 if quick else 10,
                minute=5 if quick else 60,
            )
        if "snapshot" in parts:
            results["snapshot"] = await snapshot.measure(
                url, directory, records=100_000 if quick else 5_000_000
            )
        if "memory" in parts:
            results["memory"] = await memory.measure(url, directory, times=2 if quick else 20)
        if "timers" in parts:
            results["timers"] = await timers.measure(
                url, directory, count=50_000 if quick else 1_000_000
            )
        if "hot" in parts:
            results["hot"] = await hot.measure(
                url, directory, pairs=3 if quick else 7, records=50_000 if quick else 300_000
            )
        if "lag" in parts:
            results["lag"] = await lag.measure(
                url,
                directory,
                samples=30 if quick else 300,
                records=5_000 if quick else 30_000,
            )
        if "workers" in parts:
            results["workers"] = workers.measure(
                url,
                directory,
                records=50_000 if quick else 300_000,
                seconds=5 if quick else 30,
            )
        if "takeover" in parts:
            results["takeover"] = takeover.measure(
                url,
                directory,
                sizes=(10, 50) if quick else (10, 100, 1000),
                kills=1 if quick else 5,
                moves=2 if quick else 10,
            )
        if "trees" in parts:
            results["trees"] = await trees.measure(url, directory, quick=quick)
    return results


def main() -> None:
    """Measure what is asked for; everything by default."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="part", help=f"of {', '.join(PARTS)}")
    parser.add_argument("--quick", action="store_true", help="a tenth of the work, for a look")
    options = parser.parse_args()
    unknown = set(options.parts) - set(PARTS)
    if unknown:
        parser.error(f"there is no part {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    quiet()
    results = loop.run(run(options.parts or list(PARTS), quick=options.quick))
    OUT.mkdir(exist_ok=True)
    path = OUT / time.strftime("%Y%m%d-%H%M%S.json")
    path.write_text(json.dumps(results, indent=1))
    print(f"figures: {path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path}")


if __name__ == "__main__":
    main()
