"""One run of a pipeline by an engine in this process, measured."""

from __future__ import annotations

from bench.meter import Cost, metered
from bench.server import drop, fresh_store
from millwheel import Pipeline
from millwheel.runtime.engine import Engine


async def measured_run(url: str, pipeline: Pipeline, records: int) -> Cost:
    """Measure a run on a fresh store, from the first row read to the last ACK stored."""
    store = await fresh_store(url, pipeline.name)
    engine = Engine(pipeline, store)
    await engine.start()
    with metered(url, records) as cost:
        await engine.run()
    await engine.stop()
    await store.close()
    drop(url, pipeline.name)
    return cost
