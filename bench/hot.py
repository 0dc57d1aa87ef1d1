"""A key with 90 % of the traffic: two-phase and plain aggregation, in one worker (paper, section
8.4).

One process cannot gain a core, so the second phase can only add cost; the result is the ratio over
alternating pairs.
"""

from __future__ import annotations

import operator
import statistics
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

from bench.server import fresh_store
from bench.workload import PAYMENTS, Payment, payments_file
from millwheel import Discard, Pipeline, Stream
from millwheel.computations import (
    Fold,
    Partial,
    PreAggregate,
    Spread,
    Windowed,
    merged,
    real_key,
    total,
)
from millwheel.runtime.engine import Engine
from millwheel.sources import Source
from millwheel.windows import Pane, Tumbling

HOT = 9
"""Tenths of the traffic with the hot key."""

WAYS = 8
"""Number of partial keys per key."""

MINUTE = Tumbling(minutes=1)
SUMS = Stream("sums", Pane[int])
PARTIALS = Stream("partials", Partial[int])
AMOUNTS: Fold[Payment, int, int] = total(lambda payment: payment.amount)


def key_of(payment: Payment) -> int:
    """Assign nine of ten payments to one account; the others keep theirs."""
    return payment.account if payment.account % 10 >= HOT else 0


def way_of(payment: Payment) -> int:
    """Return the value by which a payment is spread."""
    return payment.account


def plain(name: str, source: Source) -> Pipeline:
    """Build the aggregation with one phase."""
    pipeline = _injected(name, source)
    pipeline.add(Windowed(MINUTE, AMOUNTS, to=SUMS), PAYMENTS.by(key_of))
    return pipeline


def two_phase(name: str, source: Source) -> Pipeline:
    """Build the aggregation with two phases."""
    pipeline = _injected(name, source)
    spread: Spread[Payment] = Spread(key_of, ways=WAYS, by=way_of)
    pipeline.add(PreAggregate(MINUTE, AMOUNTS, to=PARTIALS), PAYMENTS.by(spread))
    pipeline.add(Windowed(MINUTE, merged(AMOUNTS, operator.add), to=SUMS), PARTIALS.by(real_key))
    return pipeline


def _injected(name: str, source: Source) -> Pipeline:
    pipeline = Pipeline(name)
    pipeline.inject(
        PAYMENTS, source, timestamp=lambda payment: payment.at, lateness=timedelta(seconds=10)
    )
    pipeline.sink(SUMS, Discard())
    return pipeline


async def rate(url: str, pipeline: Pipeline, records: int) -> float:
    """Measure records per second, from the first row read to the last ACK stored."""
    store = await fresh_store(url, pipeline.name)
    engine = Engine(pipeline, store)
    await engine.start()
    start = time.perf_counter()
    await engine.run()
    seconds = time.perf_counter() - start
    await engine.stop()
    await store.close()
    return records / seconds


async def measure(url: str, directory: Path, *, pairs: int, records: int) -> dict[str, Any]:
    """Measure alternating pairs of one and two phases over the same payments."""
    source = payments_file(directory, records)
    found = []
    for number in range(pairs):
        one = await rate(url, plain("bench_plain", source), records)
        two = await rate(url, two_phase("bench_two_phase", source), records)
        found.append((one, two))
        print(f"  pair {number + 1}: one {one:9,.0f}  two phases {two:9,.0f}  {two / one:.2f}")
    ratio = statistics.median(two / one for one, two in found)
    print(f"a key with {HOT * 10} % of the traffic, in one worker: two phases / one = {ratio:.2f}")
    return {"pairs": found, "ratio": ratio}
