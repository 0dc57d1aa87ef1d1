"""The rows of a query from a pipeline, and from Postgres over the same input as a table."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import msgspec
import psycopg

from millwheel import Discard, Inbox, Pipeline, Stream
from millwheel.sql.schemas import fields_of
from millwheel.sql.types import shown
from millwheel.testing import Harness

EPOCH = datetime(2024, 1, 1, tzinfo=UTC)


class Payment(msgspec.Struct, frozen=True):
    """What the queries read."""

    account: str
    at: datetime
    cents: int
    fee: int | None = None
    note: str | None = None
    price: Decimal = Decimal("1.00")
    paid: bool | None = None


PAYMENTS = Stream("payments", Payment)


class Order(msgspec.Struct, frozen=True):
    """What they are joined with."""

    customer: str | None
    placed: datetime
    item: int
    price: Decimal = Decimal("1.00")
    tags: list[str | None] = []


ORDERS = Stream("orders", Order)

_WINDOW = re.compile(
    r"(?P<kind>TUMBLE|HOP)\((?P<stream>\w+), (?P<time>\w+), (?P<sizes>INTERVAL '[^']*'"
    r"(?:, INTERVAL '[^']*')?)\)(?P<named> (?:AS )?(?!WHERE|GROUP|JOIN|LEFT|ON)\w+)?"
)

_RETAIN = re.compile(r"\sRETAIN (?:UNBOUNDED|INTERVAL '[^']*')")


def pipeline_of(query: str, **options: Any) -> tuple[Pipeline, Stream[Any]]:
    """A pipeline with a query over payments and orders, and the stream of its result."""
    pipeline = Pipeline("queries")
    pipeline.inject(
        PAYMENTS, Inbox(), timestamp=lambda payment: payment.at, lateness=timedelta(days=1)
    )
    if "orders" in query:
        pipeline.inject(
            ORDERS, Inbox(), timestamp=lambda order: order.placed, lateness=timedelta(days=1)
        )
        pipeline.sink(PAYMENTS, Discard())
    result = pipeline.sql(query, **options)
    pipeline.sink(result, Discard())
    return pipeline, result


async def rows_of(
    query: str, payments: Sequence[Payment], orders: Sequence[Order] = ()
) -> list[tuple[Any, ...]]:
    """The rows that a pipeline produces until the input ends."""
    pipeline, result = pipeline_of(query)
    async with Harness(pipeline) as harness:
        await harness.inject(PAYMENTS, *payments)
        inputs: list[Stream[Any]] = [PAYMENTS]
        if "orders" in query:
            await harness.inject(ORDERS, *orders)
            inputs.append(ORDERS)
        for stream in inputs:
            await harness.advance(stream, EPOCH + timedelta(days=4000))
        found = harness.produced(result)
    return [tuple(map(_plain, msgspec.structs.astuple(row))) for row in found]


async def from_pipeline(
    query: str, payments: Sequence[Payment], orders: Sequence[Order] = ()
) -> Counter[tuple[Any, ...]]:
    """The rows of a pipeline, in any order."""
    return Counter(await rows_of(query, payments, orders))


def from_postgres(
    connection: psycopg.Connection[Any],
    query: str,
    payments: Sequence[Payment],
    orders: Sequence[Order] = (),
) -> Counter[tuple[Any, ...]]:
    """The rows of the query over tables."""
    written = query.strip().partition("\n")[2] or query
    select = as_tables(written)
    with connection.transaction(force_rollback=True), connection.cursor() as cursor:
        for name, kind, rows in (("payments", Payment, payments), ("orders", Order, orders)):
            columns = fields_of(kind)
            assert columns is not None
            of_table = ", ".join(f"{c.name} {shown(c.type)}" for c in columns if c.type is not None)
            marks = ", ".join(["%s"] * len(columns))
            cursor.execute(f"CREATE TEMP TABLE {name} ({of_table})".encode())
            values = [msgspec.structs.astuple(row) for row in rows]
            cursor.executemany(f"INSERT INTO {name} VALUES ({marks})".encode(), values)
        cursor.execute(select.encode())
        return Counter(tuple(map(_plain, row)) for row in cursor.fetchall())


def as_tables(query: str) -> str:
    """A query over streams as one over tables."""
    return _RETAIN.sub("", _WINDOW.sub(_as_table, query))


def _as_table(match: re.Match[str]) -> str:
    stream, time = match["stream"], match["time"]
    sizes = re.findall(r"INTERVAL '[^']*'", match["sizes"])
    size, slide = sizes[-1], sizes[0]
    named = match["named"] or " AS w"
    bin_ = f"date_bin({slide}, {time}, TIMESTAMPTZ 'epoch')"
    if match["kind"] == "TUMBLE":
        bounds = f"{bin_} AS window_start, {bin_} + {size} AS window_end"
        return f"(SELECT *, {bounds} FROM {stream}){named}"
    return (
        f"(SELECT {stream}.*, start AS window_start, start + {size} AS window_end FROM {stream}, "
        f"generate_series({bin_} - {size} + {slide}, {bin_}, {slide}) AS start){named}"
    )


def _plain(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(map(_plain, value))
    return str(value) if isinstance(value, Decimal) else value
