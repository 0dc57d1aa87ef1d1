"""Queries beside the classes that a user would write by hand, in turns."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from bench.apart import apart
from bench.engine_run import measured_run
from bench.workload import PAYMENTS, Payment, payments_file
from millwheel import Computation, Context, Discard, Pipeline, Record, Stream
from millwheel.computations import Windowed, total
from millwheel.windows import Pane, Tumbling

SCHEMA = "bench_queries"
KEYS = 50


class Doubled(msgspec.Struct, frozen=True):
    """A result without state."""

    account: int
    double: int


DOUBLED = Stream("doubled", Doubled)
SUMS = Stream("sums", Pane[int])


class Double(Computation[Payment, None]):
    """Doubles payments that are not small."""

    writes = (DOUBLED,)

    async def process_record(self, record: Record[Payment], ctx: Context[None]) -> None:
        """Process one record."""
        payment = record.value
        if payment.amount > 100:
            ctx.produce(DOUBLED, Doubled(payment.account, payment.amount * 2))


def _stateless_class(pipeline: Pipeline) -> Stream[Any]:
    pipeline.add(Double(), PAYMENTS.spread())
    return DOUBLED


def _stateless_query(pipeline: Pipeline) -> Stream[Any]:
    return pipeline.sql(
        "INSERT INTO doubled SELECT account, amount * 2 AS double FROM payments WHERE amount > 100"
    )


def _windows_class(pipeline: Pipeline) -> Stream[Any]:
    windowed: Any = Windowed(Tumbling(minutes=1), total(lambda payment: payment.amount), to=SUMS)
    pipeline.add(windowed, PAYMENTS.by(lambda payment: payment.account % KEYS))
    return SUMS


def _windows_query(pipeline: Pipeline) -> Stream[Any]:
    return pipeline.sql(
        f"INSERT INTO sums SELECT account % {KEYS} AS account, window_start, sum(amount) AS total "
        "FROM TUMBLE(payments, at, INTERVAL '1 minute') GROUP BY 1, window_start"
    )


Build = Callable[[Pipeline], Stream[Any]]

KINDS: dict[str, tuple[Build, Build]] = {
    "stateless": (_stateless_class, _stateless_query),
    "sum by minute, 50 groups": (_windows_class, _windows_query),
}
"""A class and a query that do the same."""


async def rate(url: str, directory: Path, kind: str, query: bool, records: int) -> Any:
    """Measure one side."""
    pipeline = Pipeline(SCHEMA)
    pipeline.inject(
        PAYMENTS,
        payments_file(directory, records),
        timestamp=lambda payment: payment.at,
        lateness=timedelta(seconds=10),
    )
    pipeline.sink(KINDS[kind][query](pipeline), Discard())
    return await measured_run(url, pipeline, records)


async def measure(url: str, directory: Path, *, pairs: int, records: int) -> dict[str, Any]:
    """Measure both sides of each kind in turns."""
    found: dict[str, Any] = {}
    for kind in KINDS:
        both = [
            [await apart(partial(rate, url, directory), kind, query, records) for query in (0, 1)]
            for _ in range(pairs)
        ]
        found[kind] = {
            "rate": statistics.median(query.rate for _, query in both),
            "ratio": statistics.median(query.rate / by_hand.rate for by_hand, query in both),
            "cpu": statistics.median(query.cpu_us / by_hand.cpu_us for by_hand, query in both),
        }
        print(
            f"{kind:30}: {found[kind]['rate']:9,.0f} records/s, {found[kind]['ratio']:.2f} of the "
            f"rate of the class at {found[kind]['cpu']:.2f} of its CPU"
        )
    return found
