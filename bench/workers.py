"""Several worker processes on one pipeline: rate, cores, latency, a hot key (paper, figure 14).

All processes run on this machine, including Postgres, so on two cores two workers have hardly more
resources than one. The CPU use of workers and Postgres is reported to show the bottleneck.
"""

from __future__ import annotations

import statistics
import time
from pathlib import Path
from typing import Any

from bench.fleet import Stretch, fleet
from bench.probe import probed
from bench.shared import write_payments, write_starts

LOAD = 200.0
"""Records per second of the moderate load."""


def stretch(url: str, directory: Path, pipeline: str, workers: int, records: int) -> Stretch:
    """Measure the middle of a run with N worker processes."""
    with fleet(url, directory, pipeline) as made:
        made.start(workers)
        done = made.rows_done()
        return made.over(done + (records - done) // 10, done + (records - done) * 9 // 10)


def latency(
    url: str, directory: Path, workers: int, seconds: float
) -> tuple[list[float], list[float]]:
    """Measure latencies under a steady load.

    Returns:
        The milliseconds of each record from creation to processing, and of simultaneous bare
        commits.
    """
    with fleet(url, directory, "ticking", BENCH_RATE=str(LOAD)) as made:
        made.start(workers)
        time.sleep(2)
        ((before,),) = made.ask("SELECT coalesce(max(number), 0) FROM {}", "latency")
        with probed(url) as commits:
            time.sleep(seconds)
        rows = made.ask("SELECT milliseconds FROM {} WHERE number > %s", "latency", before)
        return [milliseconds for (milliseconds,) in rows], commits


def measure(url: str, directory: Path, *, records: int, seconds: float) -> dict[str, Any]:
    """Measure rates of one and two workers, of a hot key in two, and latencies of one to four."""
    write_payments(directory, records)
    write_starts(directory)
    found: dict[str, Any] = {"rate": {}, "hot": {}, "latency": {}}
    for workers in (1, 2):
        one = stretch(url, directory, "balances", workers, records)
        found["rate"][workers] = one._asdict()
        print(
            f"  {workers} workers: {one.per_second:9,.0f} records/s; cores: Python "
            f"{one.python:.2f}, Postgres {one.postgres:.2f}"
        )
    for pipeline in ("plain", "two_phase"):
        hot = stretch(url, directory, pipeline, 2, records)
        found["hot"][pipeline] = hot._asdict()
        print(f"  a hot key, {pipeline}, 2 workers: {hot.per_second:9,.0f} records/s")
    for workers in (1, 2, 3, 4):
        ages, commits = latency(url, directory, workers, seconds)
        p50, p99 = _percentiles(ages)
        bare50, bare99 = _percentiles(commits)
        found["latency"][workers] = {
            "p50": p50, "p99": p99, "bare_p50": bare50, "bare_p99": bare99, "records": len(ages),
        }  # fmt: skip
        print(
            f"  {workers} workers, {LOAD:.0f} records/s: p50 {p50:.1f} ms, p99 {p99:.1f} ms; bare "
            f"commits at the same time {bare50:.1f} and {bare99:.1f} ms"
        )
    rate = found["rate"][2]["per_second"] / found["rate"][1]["per_second"]
    two = found["hot"]["two_phase"]["per_second"] / found["hot"]["plain"]["per_second"]
    flat = found["latency"][4]["p50"] / found["latency"][1]["p50"]
    print(f"two workers / one = {rate:.2f}; a hot key in two workers: two phases / one = {two:.2f}")
    print(f"median latency, four workers / one = {flat:.2f}")
    return {**found, "ratio": rate, "hot_ratio": two, "latency_ratio": flat}


def _percentiles(found: list[float]) -> tuple[float, float]:
    """Return the median and the 99th percentile."""
    return statistics.median(found), statistics.quantiles(found, n=100)[98]
