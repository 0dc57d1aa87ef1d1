"""One to four worker processes, on one machine with one Postgres."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bench.fleet import fleet
from bench.processes import tree_megabytes
from bench.shared import write_payments


async def measure(url: str, directory: Path, quick: bool) -> list[dict[str, Any]]:
    """Measure the middle of a run with one to four workers."""
    records = 100_000 if quick else 1_000_000
    write_payments(directory, records)
    found = []
    for workers in (1, 2, 4) if quick else (1, 2, 3, 4):
        with fleet(url, directory, "balances") as made:
            made.start(workers)
            done = made.rows_done()
            stretch = made.over(done + (records - done) // 10, done + (records - done) * 9 // 10)
            megabytes = [tree_megabytes(process.pid) for process in made.processes]
        found.append(
            {
                "workers": workers,
                "rate": stretch.per_second,
                "python_cores": stretch.python,
                "postgres_cores": stretch.postgres,
                "peak_megabytes": max(megabytes),
            }
        )
        print(
            f"  {workers} workers: {stretch.per_second:9,.0f} records/s; cores: Python "
            f"{stretch.python:.2f}, Postgres {stretch.postgres:.2f}; {max(megabytes):.0f} MB each"
        )
    return found
