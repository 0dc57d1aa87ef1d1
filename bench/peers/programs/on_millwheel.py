"""The payments in millwheel, one worker; one record's effects and output in one transaction.

`file`: the balances go to JSON Lines, as they do in the peers that write files. `discard`: they are
stored as productions, sent to a sink, and forgotten.
"""

import asyncio

import marks

from bench import quiet
from bench.server import fresh_store
from bench.workload import BALANCES, PAYMENTS, KeepBalance
from datetime import timedelta
from millwheel import Discard, JsonLines, JsonLinesFiles, Pipeline
from millwheel.runtime.engine import Engine
from millwheel.services import loop



def pipeline(options):
    """The workload, with its outputs where the setting says."""
    made = Pipeline("bench_peers")
    made.inject(
        PAYMENTS,
        JsonLines(options.input),
        timestamp=lambda payment: payment.at,
        lateness=timedelta(seconds=10),
    )
    made.add(KeepBalance(), PAYMENTS.by(lambda payment: payment.account), name="keep_balance")
    to_file = options.setting == "file"
    made.sink(BALANCES, JsonLinesFiles(options.out / "balances") if to_file else Discard())
    return made


async def run(options):
    """To the end of the input."""
    store = await fresh_store(options.url, "bench_peers")
    engine = Engine(pipeline(options), store)
    await engine.start()
    running = asyncio.create_task(engine.run())
    (injector,) = engine.injectors
    while injector.log.first < options.warm and not running.done():
        await asyncio.sleep(0.01)
    marks.begin()
    await running
    await asyncio.to_thread(marks.end)
    await engine.stop()
    await store.close()


if __name__ == "__main__":
    quiet()
    loop.run(run(marks.options()))
