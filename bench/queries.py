"""Queries beside the classes that a user would write by hand, in turns."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from bench.apart import apart
from bench.engine_run import measured_run
from bench.in_turns import compared, shown
from bench.workload import PAYMENTS, Payment, payments_file
from millwheel import Computation, Context, Discard, Pipeline, Record, Stream
from millwheel.computations import IntervalJoin, Windowed, total
from millwheel.windows import Pane, Tumbling

SCHEMA = "bench_queries"
KEYS = 50


class Doubled(msgspec.Struct, frozen=True):
    """A result without state."""

    account: int
    double: int


class Both(msgspec.Struct, frozen=True):
    """A pair of a join."""

    account: int
    one: int
    other: int


DOUBLED = Stream("doubled", Doubled)
COPIES = Stream("copies", Payment)
BOTH = Stream("pairs", Both)
NEAR = timedelta(milliseconds=100)
SUMS = Stream("sums", Pane[int])


class Double(Computation[Payment, None]):
    """Doubles payments that are not small."""

    writes = (DOUBLED,)

    async def process_record(self, record: Record[Payment], ctx: Context[None]) -> None:
        """Process one record."""
        payment = record.value
        if payment.amount > 100:
            ctx.produce(DOUBLED, Doubled(payment.account, payment.amount * 2))


def by_account(payment: Payment) -> int:
    """The key of both sides of the join."""
    return payment.account


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


def _join_class(pipeline: Pipeline) -> Stream[Any]:
    join = IntervalJoin(
        PAYMENTS,
        COPIES,
        before=NEAR,
        after=NEAR,
        to=BOTH,
        combine=lambda one, other: Both(one.account, one.amount, other.amount),
    )
    pipeline.add(join, PAYMENTS.by(by_account), COPIES.by(by_account))
    return BOTH


def _join_query(pipeline: Pipeline) -> Stream[Any]:
    return pipeline.sql(
        """
        INSERT INTO pairs SELECT p.account, p.amount AS one, c.amount AS other
        FROM payments p JOIN copies c ON p.account = c.account
        AND c.at BETWEEN p.at - INTERVAL '0.1 s' AND p.at + INTERVAL '0.1 s'
        """
    )


Build = Callable[[Pipeline], Stream[Any]]

KINDS: dict[str, tuple[Build, Build]] = {
    "stateless": (_stateless_class, _stateless_query),
    "sum by minute, 50 groups": (_windows_class, _windows_query),
    "join": (_join_class, _join_query),
}
"""A class and a query that do the same."""


async def rate(url: str, directory: Path, kind: str, query: bool, records: int) -> Any:
    """Measure one side."""
    pipeline = Pipeline(SCHEMA)
    streams = (PAYMENTS, COPIES) if kind == "join" else (PAYMENTS,)
    for stream in streams:
        pipeline.inject(
            stream,
            payments_file(directory, records),
            timestamp=lambda payment: payment.at,
            lateness=timedelta(seconds=10),
        )
    pipeline.sink(KINDS[kind][query](pipeline), Discard())
    return await measured_run(url, pipeline, records * len(streams))


async def measure(url: str, directory: Path, *, pairs: int, records: int) -> dict[str, Any]:
    """Measure both sides of each kind in turns."""
    found: dict[str, Any] = {}
    for kind in KINDS:
        # A join takes ten times as long a record as the others.
        number = records // 10 if kind == "join" else records
        run = partial(rate, url, directory)
        both = [
            (await apart(run, kind, True, number), await apart(run, kind, False, number))
            for _ in range(pairs)
        ]
        found[kind] = compared(both)
        print(shown(kind, found[kind], "of the class"))
    return found
