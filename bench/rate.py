"""Full load: the engine beside the raw SQL of the layout in use.

The ceiling writes the very rows that the engine writes for the workload (seen id, state
change, production, and a commit record a bundle) through the very statements, from rows
that lie ready: no reading, decoding, dedup, user code or encoding of values, and no folds.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from pathlib import Path
from typing import Any

import msgspec

from bench.server import fresh_store
from bench.workload import BALANCES, Account, Balance, payments, payments_file, pipeline
from millwheel.codec import encode_key
from millwheel.model import MIN_TIME, Delivery, record_id
from millwheel.runtime.engine import Engine
from millwheel.store.port import (
    Claim,
    Commit,
    IntervalCommit,
    NodeDeploy,
    StreamDeploy,
)

CONNECTIONS = (1, 2, 3, 4)


async def ceiling(url: str, bundle: int, records: int, connections: int) -> float:
    """Records per second of raw commits of `bundle` records over some connections."""
    store = await fresh_store(url, "bench_ceiling")
    slots = [(number, number + 1) for number in range(connections)]
    deployment = await store.deploy(
        {},
        [NodeDeploy("raw", "computation", 1, {}, [], slots, [])],
        [StreamDeploy(BALANCES.name, 1, {})],
        [],
        stamp=1,
        bucket_high=1 << 62,
    )
    bucket = (await store.live_buckets())[0].id
    claims = await store.claim(
        "00000000-0000-0000-0000-000000000000", [i.id for i in deployment.intervals]
    )
    lanes = [await store.open_lane() for _ in range(connections)]
    share = records // connections
    work = [
        list(_commits(claim, number, share, bundle, bucket)) for number, claim in enumerate(claims)
    ]

    async def run(number: int) -> None:
        for commit in work[number]:
            await lanes[number].commit(commit)

    start = time.perf_counter()
    await asyncio.gather(*(run(number) for number in range(connections)))
    seconds = time.perf_counter() - start
    await store.close()
    return share * connections / seconds


def _commits(claim: Claim, number: int, records: int, bundle: int, bucket: int) -> list[Commit]:
    """Ready-made commits of the workload's rows."""
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
        seen, states = [], {}
        for offset, payment in enumerate(rows[start : start + bundle], start):
            key, slot = encode_key(payment.account)
            seen.append((slot, interval.computation, record_id(1 << 40 | number, offset)))
            states[key] = (interval.id, n, interval.computation, slot, key, "", state, 1)
            value = encode(Balance(payment.account, 123, 45_678))
            commit.productions.append(_production(key, slot, value, log, offset, n + 1))
        commit.seen[bucket] = seen
        commit.states = list(states.values())
        commits.append(commit)
    return commits


def _production(
    key: bytes, slot: int, value: bytes, log: int, seq: int, stamp: int
) -> Delivery[Any]:
    return Delivery("", None, 0, BALANCES.name, key, slot, 0, 0, len(value), value, log, seq, stamp)


async def engine_rate(url: str, directory: Path, records: int) -> float:
    """Records per second of the engine, from the first row read to the last ACK stored."""
    store = await fresh_store(url, "bench_rate")
    engine = Engine(pipeline("bench_rate", payments_file(directory, records)), store)
    await engine.start()
    start = time.perf_counter()
    await engine.run()
    seconds = time.perf_counter() - start
    await engine.stop()
    await store.close()
    return records / seconds


async def measure(url: str, directory: Path, *, pairs: int, records: int) -> dict[str, Any]:
    """Ceilings at 1, 50 and 500, then alternating pairs of ceiling and engine at full load."""
    small: dict[int, Any] = {}
    for bundle, count in ((1, 4_000), (50, 40_000), (500, 100_000)):
        rates = {c: await ceiling(url, bundle, count, c) for c in CONNECTIONS}
        best = max(rates, key=lambda c: rates[c])
        small[bundle] = {"rates": rates, "connections": best, "rate": rates[best]}
        print(
            f"raw SQL, bundles of {bundle:3}: {rates[best]:9,.0f} records/s on {best} connections"
        )
    best = small[500]["connections"]
    found = []
    for number in range(pairs):
        raw = await ceiling(url, 500, records, best)
        engine = await engine_rate(url, directory, records)
        found.append((raw, engine))
        print(
            f"  pair {number + 1}: raw {raw:9,.0f}  engine {engine:9,.0f}  ratio {engine / raw:.2f}"
        )
    ratios = [engine / raw for raw, engine in found]
    result = {
        "ceiling": small,
        "pairs": found,
        "engine": statistics.median(engine for _, engine in found),
        "raw_500": statistics.median(raw for raw, _ in found),
        "ratio": statistics.median(ratios),
    }
    print(
        f"engine: {result['engine']:,.0f} records/s, median of {pairs}; "
        f"ratio to raw SQL {result['ratio']:.2f}"
    )
    return result
