"""The rows of a query from a pipeline, and from Postgres over the same input as a table."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from math import isclose
from typing import Any

import msgspec
import psycopg

from millwheel import Discard, Inbox, Pipeline, Stream
from millwheel.sql.schemas import fields_of
from millwheel.sql.types import shown
from millwheel.testing import Harness

EPOCH = datetime(2024, 1, 1, tzinfo=UTC)


class Payment(msgspec.Struct, frozen=True):
    """The input of the queries."""

    account: str
    at: datetime
    cents: int
    fee: int | None = None
    note: str | None = None
    price: Decimal = Decimal("1.00")
    paid: bool | None = None


PAYMENTS = Stream("payments", Payment)


class Order(msgspec.Struct, frozen=True):
    """The other side of joins."""

    customer: str | None
    placed: datetime
    item: int
    price: Decimal = Decimal("1.00")
    tags: list[str | None] = []


ORDERS = Stream("orders", Order)

_WINDOW = re.compile(
    r"(?P<kind>TUMBLE|HOP|SESSION)\((?P<stream>\w+), (?P<time>\w+), (?P<sizes>INTERVAL '[^']*'"
    r"(?:, INTERVAL '[^']*')?)\)(?P<named> (?:AS )?(?!WHERE|GROUP|JOIN|LEFT|ON)\w+)?"
)

_RETAIN = re.compile(r"\sRETAIN (?:UNBOUNDED|INTERVAL '[^']*')")

_EXTENSION = re.compile(r"\b(first|last)\(")

EXTENSIONS = """
CREATE FUNCTION pg_temp.first_item(anycompatiblearray) RETURNS anycompatible
LANGUAGE sql AS 'SELECT $1[1]';
CREATE FUNCTION pg_temp.last_item(anycompatiblearray) RETURNS anycompatible
LANGUAGE sql AS 'SELECT $1[cardinality($1)]';
CREATE AGGREGATE pg_temp.first(anycompatible) (
    SFUNC = array_append, STYPE = anycompatiblearray, FINALFUNC = pg_temp.first_item
);
CREATE AGGREGATE pg_temp.last(anycompatible) (
    SFUNC = array_append, STYPE = anycompatiblearray, FINALFUNC = pg_temp.last_item
);
"""
"""The aggregates that Postgres does not have, for one session."""


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
    return await sent_rows(query, [payments], orders=orders)


async def from_pipeline(
    query: str, payments: Sequence[Payment], orders: Sequence[Order] = ()
) -> Counter[tuple[Any, ...]]:
    """The rows of a pipeline, in any order."""
    return Counter(await rows_of(query, payments, orders))


async def sent_rows(
    query: str,
    pieces: Iterable[Sequence[Payment]],
    closed: timedelta | None = None,
    *,
    orders: Sequence[Order] = (),
) -> list[tuple[Any, ...]]:
    """The rows that a pipeline produces until the input ends, in their order.

    Args:
        pieces: payments that arrive together.
        closed: the event time after each piece; None: windows close at the end.
    """
    pipeline, result = pipeline_of(query)
    async with Harness(pipeline) as harness:
        for piece in pieces:
            await harness.inject(PAYMENTS, *piece)
            if closed is not None:
                await harness.advance(PAYMENTS, EPOCH + closed)
        inputs: list[Stream[Any]] = [PAYMENTS]
        if "orders" in query:
            await harness.inject(ORDERS, *orders)
            inputs.append(ORDERS)
        for stream in inputs:
            await harness.advance(stream, EPOCH + timedelta(days=4000))
        found = harness.produced(result)
    return [plain(msgspec.structs.astuple(row)) for row in found]


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
        cursor.execute(_EXTENSION.sub(r"pg_temp.\1(", select).encode())
        return Counter(map(plain, cursor.fetchall()))


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
    if match["kind"] == "SESSION":
        return _SESSIONS.format(stream=stream, time=time, gap=size) + named
    return (
        f"(SELECT {stream}.*, start AS window_start, start + {size} AS window_end FROM {stream}, "
        f"generate_series({bin_} - {size} + {slide}, {bin_}, {slide}) AS start){named}"
    )


_SESSIONS = """(
SELECT *, min({time}) OVER one AS window_start, max({time}) OVER one + {gap} AS window_end
FROM (
    SELECT *, count(*) FILTER (WHERE is_first) OVER (PARTITION BY account ORDER BY {time}) AS number
    FROM (
        SELECT *, {time} - lag({time}) OVER (PARTITION BY account ORDER BY {time}) < {gap}
            IS NOT TRUE AS is_first
        FROM {stream}
    ) AS marked
) AS numbered
WINDOW one AS (PARTITION BY account, number)
)"""
"""Sessions of each account."""


def plain(row: Iterable[Any]) -> tuple[Any, ...]:
    """A row that can be compared: decimals with their zeros at the end."""
    return tuple(map(_plain, row))


def _plain(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(map(_plain, value))
    return str(value) if isinstance(value, Decimal) else value


def agree(found: Iterable[tuple[Any, ...]], expected: Iterable[tuple[Any, ...]]) -> bool:
    """Whether rows are the same in any order; floats may differ in their last digits."""
    mine, theirs = Counter(found), Counter(expected)
    rest = list((theirs - mine).elements())
    for row in (mine - theirs).elements():
        place = next((n for n, other in enumerate(rest) if _is_close(row, other)), None)
        if place is None:
            return False
        del rest[place]
    return not rest


def _is_close(one: Any, other: Any) -> bool:
    if isinstance(one, tuple) and isinstance(other, tuple):
        return len(one) == len(other) and all(map(_is_close, one, other))
    if type(one) is float and type(other) is float:
        return isclose(one, other, rel_tol=1e-9, abs_tol=1e-6)
    return bool(one == other)
