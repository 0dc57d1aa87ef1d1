"""Full load: the engine compared with raw SQL in the same layout.

The ceiling writes the rows that the engine writes for the workload (seen ids, state change,
production, and one commit record per bundle) with the same statements, from prepared rows: without
reading, decoding, dedup, user code, encoding of values or folds. Beside it is the same with a row
for each seen id, changed state and production (`bench.appended_rows`), which the engine wrote
before decisions 69 and 75. The value of the layout is measured against the obvious one
(`bench.plain_rows`), and the cost of a stage with a pipeline of three. Each measurement runs in a
separate process: in a process that has already run others, memory effects slow it down by a tenth
or more.
"""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from bench import appended_rows, plain_rows
from bench.apart import apart
from bench.engine_run import measured_run
from bench.meter import Cost, metered
from bench.server import drop, fresh_store
from bench.workload import BALANCES, Account, Balance, payments, payments_file, pipeline
from millwheel.core.chunk import Chunk, Chunks
from millwheel.core.codec import encode_key
from millwheel.core.model import MIN_TIME
from millwheel.store.port.claims import Claim
from millwheel.store.port.commit import Commit, IntervalCommit
from millwheel.store.port.deploy import DescribedGraph, NodeDeploy, StreamDeploy
from millwheel.store.port.seen import SeenIds
from millwheel.store.port.states import StateRun
from millwheel.store.postgres.lane import PostgresLane

CONNECTIONS = (1, 2, 3, 4)
CEILING, ENGINE = "bench_ceiling", "bench_rate"
"""Schemas, dropped after each measurement so that their vacuum does not disturb the next."""


async def ceiling(url: str, bundle: int, records: int, connections: int) -> Cost:
    """Measure raw commits of `bundle` records over N connections."""
    share = records // connections
    async with raw_store(url, CEILING, bundle, records, connections) as (lanes, work):

        async def run(number: int) -> None:
            for commit in work[number]:
                await lanes[number].commit(commit)

        with metered(url, share * connections) as cost:
            await asyncio.gather(*(run(number) for number in range(connections)))
    drop(url, CEILING)
    return cost


async def row_ceiling(url: str, bundle: int, records: int, connections: int) -> Cost:
    """Measure the same commits with a row for each id, changed state and production."""
    share = records // connections
    async with raw_store(url, CEILING, bundle, records, connections) as (_, work):
        lanes = await appended_rows.opened(url, CEILING, connections)
        prepared = [[(commit, appended_rows.ids_of(commit)) for commit in of] for of in work]

        async def run(number: int) -> None:
            for commit, ids in prepared[number]:
                await appended_rows.append(lanes[number], commit, ids)

        with metered(url, share * connections) as cost:
            await asyncio.gather(*(run(number) for number in range(connections)))
        for lane in lanes:
            await lane.close()
    drop(url, CEILING)
    return cost


@asynccontextmanager
async def raw_store(
    url: str, schema: str, bundle: int, records: int, connections: int
) -> AsyncIterator[tuple[list[PostgresLane], list[list[Commit]]]]:
    """Create a store; yield N connections, and the commits to make on each, of N intervals."""
    store = await fresh_store(url, schema)
    slots = [(number, number + 1) for number in range(connections)]
    deployment = await store.deploy(
        DescribedGraph(
            {},
            [NodeDeploy("raw", "computation", 1, {}, [], slots, [])],
            [StreamDeploy(BALANCES.name, 1, {})],
            [],
        ),
        stamp=1,
        bucket_high=1 << 62,
    )
    bucket = (await store.live_buckets())[0].id
    claims = await store.claim(
        "00000000-0000-0000-0000-000000000000", [i.id for i in deployment.intervals]
    )
    lanes = [await store.open_lane() for _ in range(connections)]
    share = records // connections
    yield (
        lanes,
        [
            list(_commits(claim, number, share, bundle, bucket))
            for number, claim in enumerate(claims)
        ],
    )
    await store.close()


def _commits(claim: Claim, number: int, records: int, bundle: int, bucket: int) -> list[Commit]:
    """Prepare commits of the workload's rows, as columns."""
    encode = msgspec.json.Encoder().encode
    interval, log = claim.interval, claim.new_log
    state = encode(Account(123, 45_678))
    rows = list(payments(records, seed=number))
    commits = []
    for n, start in enumerate(range(0, records, bundle), 1):
        commit = Commit(stamp=n + 1, bucket=bucket)
        commit.intervals.append(
            IntervalCommit(
                interval.id, interval.sequencer, n, bucket, MIN_TIME, MIN_TIME, 1,
                b'{"%d":[0,[]]}' % log, None, b"{}",
            )
        )  # fmt: skip
        made = Chunk(BALANCES.name, 0)
        made.log, made.stamp = log, n + 1
        for payment in rows[start : start + bundle]:
            key, slot = encode_key(payment.account)
            made.key_texts.append(key)
            made.slots.append(slot)
            made.encoded.append(encode(Balance(payment.account, 123, 45_678)))
        count = len(made)
        made.numbers = range(start, start + count)
        made.micros = made.holds = [0] * count
        commit.productions = Chunks([made])
        commit.seen[bucket] = seen = SeenIds()
        seen.add_numbers(interval.computation, 1 << 40 | number, made.numbers)
        changed = dict(zip(made.key_texts, made.slots, strict=True))
        commit.states = [
            StateRun(
                interval.id, n, interval.computation, 1,
                list(changed.values()), list(changed), None, [state] * len(changed),
            )
        ]  # fmt: skip
        commits.append(commit)
    return commits


async def engine_rate(url: str, directory: Path, records: int, stages: int = 1) -> Cost:
    """Measure the engine."""
    made = pipeline(ENGINE, payments_file(directory, records), stages=stages)
    return await measured_run(url, made, records)


async def best_of(measure: Callable[[int], Awaitable[Cost]]) -> tuple[int, dict[int, float]]:
    """Return the fastest number of connections, and the rate at each number."""
    rates = {connections: (await measure(connections)).rate for connections in CONNECTIONS}
    return max(rates, key=lambda connections: rates[connections]), rates


async def measure(url: str, directory: Path, *, pairs: int, records: int) -> dict[str, Any]:
    """Measure ceilings with bundles of 1, 50 and 500, then alternate at full load: the ceiling,
    plain rows, the engine, and the engine with three stages."""
    small: dict[int, Any] = {}
    for bundle, count in ((1, 4_000), (50, 40_000), (500, 100_000)):
        best, rates = await best_of(partial(apart, ceiling, url, bundle, count))
        small[bundle] = {"rates": rates, "connections": best, "rate": rates[best]}
        print(
            f"raw SQL, bundles of {bundle:3}: {rates[best]:9,.0f} records/s on {best} connections"
        )
    best = small[500]["connections"]
    plain_best, _ = await best_of(partial(apart, plain_rows.rate, url, 500, 50_000))
    found = []
    for number in range(pairs):
        costs = {
            "raw": await apart(ceiling, url, 500, records, best),
            "rows": await apart(row_ceiling, url, 500, records, best),
            "plain": await apart(plain_rows.rate, url, 500, records // 3, plain_best),
            "engine": await apart(engine_rate, url, directory, records),
            "three stages": await apart(engine_rate, url, directory, records // 3, 3),
        }
        found.append(costs)
        print(f"  pair {number + 1}:")
        for name, cost in costs.items():
            print(f"    {name:12} {cost}")

    def ratio(one: str, other: str, of: Callable[[Cost], float]) -> float:
        return statistics.median(of(costs[one]) / of(costs[other]) for costs in found)

    def rate(cost: Cost) -> float:
        return cost.rate

    def cpu(cost: Cost) -> float:
        return cost.cpu_us

    result = {
        "ceiling": small,
        "pairs": [{name: cost.as_json() for name, cost in costs.items()} for costs in found],
        "engine": statistics.median(costs["engine"].rate for costs in found),
        "raw_500": statistics.median(costs["raw"].rate for costs in found),
        "ratio": ratio("engine", "raw", rate),
        "cpu": ratio("engine", "raw", cpu),
        "ratio_rows": ratio("engine", "rows", rate),
        "cpu_rows": ratio("engine", "rows", cpu),
        "layout": ratio("raw", "plain", rate),
        "stages": 3 * ratio("three stages", "engine", rate),
    }
    print(
        f"engine: {result['engine']:,.0f} records/s, median of {pairs}; {result['ratio']:.2f} of "
        f"raw SQL at {result['cpu']:.2f} times its CPU, {result['ratio_rows']:.2f} at "
        f"{result['cpu_rows']:.2f} of raw SQL with rows\nthe layout / plain rows: "
        f"{result['layout']:.2f}; three stages / (one stage / 3): {result['stages']:.2f}"
    )
    return result
