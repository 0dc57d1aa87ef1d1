"""A million pending timers: their memory, and how long they delay a takeover."""

from __future__ import annotations

import asyncio
import multiprocessing
import time
from datetime import datetime, timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import msgspec

from bench.memory import resident_megabytes
from bench.server import fresh_store
from bench.workload import PAYMENTS, Payment, payments_file
from millwheel import Computation, Context, Pipeline, Record, Timer
from millwheel.runtime.engine import Engine
from millwheel.runtime.environment import Options
from millwheel.services import loop
from millwheel.sources import Source
from millwheel.store.postgres.store import PostgresStore

SCHEMA = "bench_timers"
WARM = 20_000
"""Records after which the process has its size without many timers."""


class Remind(Computation[Payment, None]):
    """Sets a separate timer for each payment, due in a year."""

    async def process_record(self, record: Record[Payment], ctx: Context[None]) -> None:
        due = record.value.at + timedelta(days=365)
        ctx.set_timer(due, tag=str(record.micros))

    async def process_timer(self, timer: Timer, ctx: Context[None]) -> None: ...


def pipeline(source: Source) -> Pipeline:
    """Build a pipeline that sets a timer per payment."""
    built = Pipeline(SCHEMA)
    built.inject(PAYMENTS, source, timestamp=lambda payment: payment.at)
    built.add(Remind(), PAYMENTS.by(lambda payment: payment.account))
    return built


async def _set(url: str, directory: Path, count: int) -> dict[str, float]:
    store = await fresh_store(url, SCHEMA)
    engine = Engine(
        pipeline(payments_file(directory, count)), store, options=Options(keep_open=True)
    )
    await engine.start()
    warm = 0.0
    running = asyncio.create_task(engine.run())
    while not running.done():
        await asyncio.sleep(0.05)
        if not warm and engine.processed >= WARM:
            warm = resident_megabytes()
    await running
    await asyncio.sleep(5)  # let the folds catch up
    size = resident_megabytes()
    await engine.stop()
    await store.close()
    return {"warm_megabytes": warm, "megabytes": size}


async def _take_over(url: str, directory: Path, count: int) -> dict[str, float]:
    """Take over the store with its timers, with one more record in the source."""
    path = directory / f"payments-{count}.jsonl"
    last = Payment(datetime.fromisoformat("2024-06-01T00:00:00+00:00"), 1, 1)
    with path.open("ab") as file:
        file.write(msgspec.json.encode(last) + b"\n")
    store = await PostgresStore(url, SCHEMA).open()
    engine = Engine(
        pipeline(payments_file(directory, count)), store, options=Options(keep_open=True)
    )
    start = time.perf_counter()
    await engine.start()
    started = time.perf_counter()
    while not engine.processed:
        await asyncio.sleep(0.001)
    first = time.perf_counter()
    size = resident_megabytes()
    await engine.stop()
    await store.close()
    return {
        "start_seconds": started - start,
        "first_record_seconds": first - start,
        "after_takeover_megabytes": size,
    }


def _child(name: str, url: str, directory: Path, count: int, answer: Connection) -> None:
    answer.send(loop.run({"set": _set, "take over": _take_over}[name](url, directory, count)))


async def _apart(name: str, url: str, directory: Path, count: int) -> dict[str, float]:
    """Run one part in a separate process."""
    spawn = multiprocessing.get_context("spawn")
    ours, theirs = spawn.Pipe()
    process = spawn.Process(target=_child, args=(name, url, directory, count, theirs))
    process.start()
    theirs.close()
    found: dict[str, float] = await asyncio.to_thread(ours.recv)
    process.join()
    return found


async def measure(url: str, directory: Path, *, count: int) -> dict[str, Any]:
    """Set `count` timers; measure takeovers with all of them pending, and with few."""
    few = WARM
    await _apart("set", url, directory, few)
    without = await _apart("take over", url, directory, few)
    result = await _apart("set", url, directory, count)
    result |= await _apart("take over", url, directory, count)
    result |= {
        "timers": count,
        "growth_megabytes": result["megabytes"] - result["warm_megabytes"],
        "first_record_ratio": result["first_record_seconds"] / without["first_record_seconds"],
    }
    print(
        f"{count:,} pending timers: {result['growth_megabytes']:.0f} MB more than {few:,}; first "
        f"record {result['first_record_seconds']:.2f} s after the start of a takeover, "
        f"{result['first_record_ratio']:.2f} of that with {few:,} timers"
    )
    return result
