"""The careful ways beside the plain one: ids of users, weak productions, code that awaits, and a
further stage."""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

from bench import workload
from bench.apart import apart
from bench.engine_run import measured_run
from bench.meter import Cost
from bench.workload import (
    BALANCES,
    PAYMENTS,
    Account,
    Balance,
    KeepBalance,
    Payment,
    payments_file,
)
from millwheel import Computation, Context, Discard, Pipeline, Record, Stream
from millwheel.sources import Source

SCHEMA = "bench_ways"
AWAITED_SECONDS = 0.005
PASSED = Stream("passed", Payment)


class Pass(Computation[Payment, None]):
    """Forwards each payment."""

    writes = (PASSED,)

    async def process_record(self, record: Record[Payment], ctx: Context[None]) -> None:
        """Process one record."""
        ctx.produce(PASSED, record.value)


class Ask(Computation[Payment, Account]):
    """Adds up payments after a pause, as if a service were asked."""

    writes = (BALANCES,)

    async def process_record(self, record: Record[Payment], ctx: Context[Account]) -> None:
        """Process one record."""
        await asyncio.sleep(AWAITED_SECONDS)
        account = ctx.state
        account.payments += 1
        account.total += record.value.amount
        ctx.produce(BALANCES, Balance(record.value.account, account.payments, account.total))


def plain(source: Source) -> Pipeline:
    """Build the workload of `bench.rate`."""
    return workload.pipeline(SCHEMA, source)


def with_ids(source: Source) -> Pipeline:
    """Each payment has its own time, which is given as its id."""
    built = Pipeline(SCHEMA)
    built.inject(
        PAYMENTS,
        source,
        timestamp=lambda payment: payment.at,
        lateness=timedelta(seconds=10),
        id=lambda payment: payment.at.isoformat(),
    )
    built.add(KeepBalance(), PAYMENTS.by(lambda payment: payment.account))
    built.sink(BALANCES, Discard())
    return built


def passing(source: Source, **options: Any) -> Pipeline:
    """A stage without state before the plain one."""
    built = Pipeline(SCHEMA)
    built.inject(
        PAYMENTS, source, timestamp=lambda payment: payment.at, lateness=timedelta(seconds=10)
    )
    built.add(Pass(), PAYMENTS.by(lambda payment: payment.account), **options)
    built.add(KeepBalance(), PASSED.by(lambda payment: payment.account))
    built.sink(BALANCES, Discard())
    return built


def weak(source: Source) -> Pipeline:
    """The stage without state has weak productions."""
    return passing(source, productions="weak")


def tree(source: Source) -> Pipeline:
    """The same, acknowledged by trees."""
    return passing(source, productions="weak", acknowledgement="tree")


def awaiting(source: Source) -> Pipeline:
    """Build the workload with code that awaits."""
    built = Pipeline(SCHEMA)
    built.inject(
        PAYMENTS, source, timestamp=lambda payment: payment.at, lateness=timedelta(seconds=10)
    )
    built.add(Ask(), PAYMENTS.by(lambda payment: payment.account))
    built.sink(BALANCES, Discard())
    return built


def two_stages(source: Source) -> Pipeline:
    """Build the workload with a further stage of the same kind."""
    return workload.pipeline(SCHEMA, source, stages=2)


WAYS: dict[str, Callable[[Source], Pipeline]] = {
    "plain": plain,
    "ids of users": with_ids,
    "two stages": two_stages,
    "passed on": passing,
    "passed on, weak": weak,
    "passed on, tree": tree,
    "awaiting": awaiting,
}


async def rate(url: str, directory: Path, records: int, way: str) -> Cost:
    """Measure one way."""
    return await measured_run(url, WAYS[way](payments_file(directory, records)), records)


async def measure(url: str, directory: Path, *, pairs: int, records: int) -> dict[str, Any]:
    """Measure all ways in turns."""
    found: list[dict[str, Cost]] = []
    for number in range(pairs):
        costs = {way: await apart(rate, url, directory, records, way) for way in WAYS}
        found.append(costs)
        print(f"  pair {number + 1}:")
        for name, cost in costs.items():
            print(f"    {name:15} {cost}")
    result = {
        way: {
            "rate": statistics.median(costs[way].rate / costs["plain"].rate for costs in found),
            "cpu": statistics.median(costs[way].cpu_us / costs["plain"].cpu_us for costs in found),
        }
        for way in WAYS
    }
    for way, of in result.items():
        print(f"{way:15}: {of['rate']:.2f} of the plain rate at {of['cpu']:.2f} of its CPU")
    return result
