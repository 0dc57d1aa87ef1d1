"""Cost of a commit by its size: time, and CPU of the client and of its server process.

The same commits run alternately with their rows as JSON and as arrays (decision 5), on one
connection, together with a bare ``SELECT 1``.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from bench.latency import raw_commits
from bench.processes import cpu_of
from millwheel.store.postgres import rows
from millwheel.store.postgres.lane import PostgresLane

SIZES = (1, 8, 32, 100, 500)
"""Records per commit; each is a seen id, a state change and a production."""

FORMS = {"JSON": 1 << 30, "arrays": 1}
"""Number of rows from which arrays are sent."""


@contextmanager
def arrays_from(count: int) -> Iterator[None]:
    """Send arrays for N or more rows, during the block."""
    usual = rows.ARRAY_ROWS, rows.ARRAY_BYTES
    rows.ARRAY_ROWS, rows.ARRAY_BYTES = count, 1 << 40
    try:
        yield
    finally:
        rows.ARRAY_ROWS, rows.ARRAY_BYTES = usual


async def cost(
    lane: PostgresLane, work: Iterable[Any], do: Callable[[Any], Awaitable[Any]]
) -> dict[str, float]:
    """Measure the median milliseconds, and the CPU of both sides, per piece of work."""
    assert lane.backend is not None
    server, client = cpu_of(lane.backend[0]), time.process_time()
    seconds = []
    for item in work:
        start = time.perf_counter()
        await do(item)
        seconds.append(time.perf_counter() - start)
    return {
        "ms": statistics.median(seconds) * 1e3,
        "client_us": (time.process_time() - client) * 1e6 / len(seconds),
        "server_us": (cpu_of(lane.backend[0]) - server) * 1e6 / len(seconds),
    }


async def of_size(url: str, size: int, count: int) -> dict[str, float]:
    """Measure commits of `size` records, after a warm-up."""
    warm_up = count // 4
    async with raw_commits(url, size * (warm_up + count), bundle=size) as (lane, found):
        assert isinstance(lane, PostgresLane)
        for commit in found[:warm_up]:
            await lane.commit(commit)
        return await cost(lane, found[warm_up:], lane.commit)


async def nothing(url: str, count: int) -> dict[str, float]:
    """Measure a statement that does nothing."""
    async with raw_commits(url, 0) as (lane, _):
        assert isinstance(lane, PostgresLane)
        connection = lane._connection
        assert connection is not None
        return await cost(
            lane, range(count), lambda _: connection.execute("SELECT 1", prepare=True)
        )


async def measure(url: str, *, rounds: int, records: int) -> dict[str, Any]:
    """Measure all sizes in both forms; take medians over the rounds."""
    found: dict[tuple[str, int], list[dict[str, float]]] = {}
    for _ in range(rounds):
        found.setdefault(("SELECT 1", 0), []).append(await nothing(url, 1000))
        for size in SIZES:
            for form, count in FORMS.items():
                with arrays_from(count):
                    figures = await of_size(url, size, min(1000, max(60, records // size)))
                found.setdefault((form, size), []).append(figures)
    result = []
    for (form, size), of_rounds in found.items():
        row = {key: statistics.median(f[key] for f in of_rounds) for key in of_rounds[0]}
        result.append({"form": form, "records": size, **row})
        print(
            f"{form:8} {size:3} records: {row['ms']:6.2f} ms; CPU: client {row['client_us']:6.0f} "
            f"us, server {row['server_us']:6.0f} us"
        )
    return {"commits": result}
