"""Full load while somebody holds a snapshot: a backup, a report, a long read by Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psycopg

from bench.rate import engine_rate


async def measure(url: str, directory: Path, *, records: int) -> dict[str, Any]:
    """The rate undisturbed, and with a REPEATABLE READ snapshot held all the while."""
    free = await engine_rate(url, directory, records)
    with psycopg.connect(url) as holder:
        holder.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        holder.execute("SELECT count(*) FROM pg_catalog.pg_class")
        held = await engine_rate(url, directory, records)
        holder.rollback()
    result = {
        "records": records,
        "free": free,
        "held": held,
        "seconds_held": records / held,
        "ratio": held / free,
    }
    print(
        f"snapshot held for {result['seconds_held']:.0f} s: {held:,.0f} records/s against "
        f"{free:,.0f} undisturbed; ratio {result['ratio']:.2f}"
    )
    return result
