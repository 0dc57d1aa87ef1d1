"""The Nexmark queries with one worker, over events in files.

A query reads only the kinds of event that it needs. *Events per second* counts all kinds, as is
usual: the number of all events divided by the query's time for its part of them. *Rows* are those
it really read. Windows of processing time (`q12`) close by the wall clock, so the time ends when
every row is acknowledged, not when the last window is written.
"""

from __future__ import annotations

import asyncio
import time
from importlib import import_module
from pathlib import Path
from typing import Any

from bench.apart import apart
from bench.growth.running import peak_megabytes
from bench.server import drop, fresh_store
from examples.nexmark.options import Options
from examples.nexmark.sources import write
from millwheel import Pipeline
from millwheel.runtime.engine import Engine

QUERIES = ("q0", "q1", "q2", "q3", "q4", "q5", "q6", "q7", "q8", "q9", "q11", "q12")
WHAT = {
    "q0": "pass-through", "q1": "currency conversion", "q2": "filter", "q3": "join of two streams",
    "q4": "mean in sliding windows", "q5": "most bids in sliding windows", "q6": "last ten per key",
    "q7": "maximum of a window", "q8": "windowed join", "q9": "winning bids",
    "q11": "sessions", "q12": "processing-time windows",
}  # fmt: skip


def pipeline(query: str, directory: Path) -> Pipeline:
    """Build a query over the files."""
    made: Pipeline = import_module(f"examples.nexmark.{query}").build(Options(directory=directory))
    return made


async def point(url: str, query: str, directory: Path) -> dict[str, Any]:
    """Measure a query from its first row to the acknowledgement of its last."""
    made = pipeline(query, directory)
    store = await fresh_store(url, made.name)
    engine = Engine(made, store)
    await engine.start()
    injectors = engine.injectors
    begin = time.perf_counter()
    running = asyncio.create_task(engine.run())
    while not running.done() and any(i.log.unacked or not i.ended for i in injectors):
        await asyncio.sleep(0.002)
    seconds = time.perf_counter() - begin
    rows = sum(injector.rows for injector in injectors)
    if query == "q12":
        running.cancel()
        await engine.kill()
    else:
        await running
        await engine.stop()
    await store.close()
    drop(url, made.name)
    return {"seconds": seconds, "rows": rows, "peak_megabytes": peak_megabytes()}


async def measure(url: str, directory: Path, *, events: int) -> dict[str, Any]:
    """Measure one query after the other over the same events."""
    files = directory / "nexmark"
    write(files, Options(events=events))
    lines = []
    for query in QUERIES:
        made = await apart(point, url, query, files)
        line = {
            "query": query,
            "what": WHAT[query],
            "events_per_second": events / made["seconds"],
            "rows_per_second": made["rows"] / made["seconds"],
            **made,
        }
        lines.append(line)
        print(
            f"  {query:4} {line['events_per_second']:9,.0f} events/s, "
            f"{line['rows_per_second']:9,.0f} rows read/s; {line['peak_megabytes']:.0f} MB   "
            f"{line['what']}"
        )
    return {"events": events, "queries": lines}
