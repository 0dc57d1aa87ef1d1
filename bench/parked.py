"""Latency of the other keys while some keys are parked, beside the same load without a failure.

Records come at a steady rate over `KEYS` accounts. In every second run the first record of each of
`PARKED` accounts fails, so that its later records are stored behind it. Only records of other
accounts are measured, from arrival to durable.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from datetime import timedelta
from typing import Any

from bench.server import drop, fresh_store
from bench.workload import BALANCES, PAYMENTS, START, Account, Balance, Payment
from millwheel import Computation, Context, Park, Pipeline, Record, Table
from millwheel.runtime.engine import Engine
from millwheel.runtime.environment import Options
from millwheel.store.port.commit import Commit, StoreLane
from millwheel.store.postgres.store import PostgresStore
from millwheel.testing.script import Script, inject

NAME = "bench_parked"
KEYS = 1_000
PARKED = 50
RATE = 1_000
"""Records a second."""
TICK_SECONDS = 0.01


class Checked(Computation[Payment, Account]):
    """Adds up payments; the accounts up to `failing` fail."""

    writes = (BALANCES,)

    def __init__(self, failing: int) -> None:
        self._failing = failing

    async def process_record(self, record: Record[Payment], ctx: Context[Account]) -> None:
        if record.value.account < self._failing:
            raise ValueError(f"account {record.value.account} is poison")
        ctx.state.payments += 1
        ctx.produce(
            BALANCES, Balance(record.value.account, ctx.state.payments, record.value.amount)
        )


class NotedLane:
    """A lane that notes when each payment became durable."""

    def __init__(self, lane: StoreLane, durable: dict[int, float]) -> None:
        self._lane = lane
        self._durable = durable

    def prepare(self, commit: Commit) -> None:
        self._lane.prepare(commit)

    async def commit(self, commit: Commit) -> None:
        await self._lane.commit(commit)
        now = time.perf_counter()
        for _, (_, _, number, *_) in commit.rows:
            self._durable[number] = now

    async def close(self) -> None:
        await self._lane.close()


class NotedStore(PostgresStore):
    """A store whose lanes note when payments became durable."""

    def __init__(self, url: str, schema: str) -> None:
        super().__init__(url, schema)
        self.noted: dict[int, float] = {}

    async def open_lane(self) -> NotedLane:  # type: ignore[override]
        return NotedLane(await super().open_lane(), self.noted)


async def latencies(url: str, failing: int, seconds: float) -> tuple[list[float], int]:
    """Seconds from arrival to durable of the records of accounts that never fail, and the records
    parked in the end."""
    await (await fresh_store(url, NAME)).close()
    store = NotedStore(url, NAME)
    await store.open()
    script = Script("payments")
    built = Pipeline(NAME)
    built.inject(PAYMENTS, script, timestamp=lambda payment: payment.at)
    built.add(
        Checked(failing),
        PAYMENTS.by(lambda payment: payment.account),
        on_error=Park(most_records=1 << 30),
    )
    built.sink(BALANCES, Table("balances", Balance, numbered=True))
    engine = Engine(built, store, options=Options(keep_open=True))
    await engine.start()
    arrived: dict[int, float] = {}
    began = time.perf_counter()
    number = 0
    while (now := time.perf_counter() - began) < seconds:
        while number < now * RATE:
            account = number * 7_919 % KEYS
            script.append(
                inject(PAYMENTS, Payment(START + timedelta(milliseconds=number), account, number))
            )
            if account >= PARKED:
                arrived[number] = time.perf_counter()
            number += 1
        await asyncio.sleep(TICK_SECONDS)
    await engine.run()
    figures = [interval.turns.figures() for interval in engine.intervals]
    parked = sum(found["parked"]["rows"] for found in figures if found)
    await engine.stop()
    await store.close()
    drop(url, NAME)
    settled = list(arrived)[2 * RATE :]  # the parking itself, and the start, are over
    return [store.noted[n] - arrived[n] for n in settled], parked


async def measure(url: str, *, pairs: int, seconds: float) -> dict[str, Any]:
    """Measure both in turns, and the ratio of the medians of their p99."""
    found: dict[str, list[list[float]]] = {"none": [], "parked": []}
    rows = 0
    for _ in range(pairs):
        for name, failing in (("none", 0), ("parked", PARKED)):
            times, parked = await latencies(url, failing, seconds)
            found[name].append(statistics.quantiles(times, n=100))
            rows = max(rows, parked)
    cut = {
        f"{name}_p{percent}_ms": 1000 * statistics.median(run[percent - 1] for run in runs)
        for name, runs in found.items()
        for percent in (50, 99)
    }
    result = {
        "rate": RATE,
        "keys": KEYS,
        "parked_keys": PARKED,
        "parked_records": rows,
        **cut,
        "ratio_p50": cut["parked_p50_ms"] / cut["none_p50_ms"],
        "ratio_p99": cut["parked_p99_ms"] / cut["none_p99_ms"],
    }
    print(
        f"{RATE:,} records/s, {PARKED} of {KEYS:,} keys parked, {rows:,} records in them: p99 of "
        f"the others {cut['parked_p99_ms']:.1f} ms, {result['ratio_p99']:.2f} of "
        f"{cut['none_p99_ms']:.1f} ms without a failure; p50 {result['ratio_p50']:.2f}"
    )
    return result
