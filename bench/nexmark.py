"""The Nexmark queries, one worker each, over events in files.

A query reads the kinds of event that it needs. *Events a second* counts all kinds, as is usual: all the
events there are, by the time that the query takes for its part of them. Rows are what it really read.
Windows of processing time (`q12`) close by the clock, so time is taken when every row is acknowledged,
not when the last window is written.
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
    "q0": "as it is", "q1": "another currency", "q2": "some auctions", "q3": "join of two streams",
    "q4": "mean in sliding windows", "q5": "most bids in sliding windows", "q6": "last ten of a key",
    "q7": "highest of a window", "q8": "join in windows", "q9": "winning bids",
    "q11": "sessions", "q12": "windows of processing time",
}  # fmt: skip


def pipeline(query: str, directory: Path) -> Pipeline:
    """A query over the files."""
    made: Pipeline = import_module(f"examples.nexmark.{query}").build(Options(directory=directory))
    return made


async def point(url: str, query: str, directory: Path) -> dict[str, Any]:
    """A query from its first row to the acknowledgement of its last."""
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
    """One query after the other over the same events."""
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
            f"  {query:4} {line['events_per_second']:9,.0f} events/s, {line['rows_per_second']:9,.0f} "
            f"rows read/s; {line['peak_megabytes']:.0f} MB   {line['what']}"
        )
    return {"events": events, "queries": lines}
