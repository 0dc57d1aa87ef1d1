"""Aggregates give Postgres' results in windows, sessions and groups that are kept."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import psycopg
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millwheel import Discard, Inbox, Pipeline, Stream
from millwheel.cli.target import load_pipeline
from millwheel.services.run import Run
from millwheel.store.console.migrate import migrate
from millwheel.testing import Harness, advance, assert_exactly_once, inject
from tests.sql.answers import (
    EPOCH,
    Payment,
    agree,
    from_pipeline,
    from_postgres,
    pipeline_of,
    plain,
    sent_rows,
)
from tests.sql.answers import PAYMENTS as PAYMENTS_STREAM
from tests.sql.drawn_aggregates import drawn_aggregates
from tests.sql.drawn_rows import filters, payments
from tests.support.examples import examples

T = " FROM TUMBLE(payments, at, INTERVAL '40 s') GROUP BY account, window_start"

AGGREGATES = """
array_agg(fee ORDER BY fee)
array_agg(fee ORDER BY fee DESC)
array_agg(fee ORDER BY fee DESC NULLS LAST, at)
array_agg(fee ORDER BY fee NULLS FIRST) FILTER (WHERE cents > 0)
array_agg(1 ORDER BY at)
array_agg(cents ORDER BY note DESC, price, at)
array_agg(DISTINCT note)
array_agg(DISTINCT fee ORDER BY fee DESC)
(array_agg(note ORDER BY at))[2] || '!'
cardinality(array_agg(fee ORDER BY at)) + count(*)
string_agg(note, ', ' ORDER BY at DESC)
string_agg(note, NULL ORDER BY at)
string_agg(note, account ORDER BY at)
string_agg(note, note ORDER BY at)
string_agg('x', note ORDER BY at)
string_agg(note::varchar, ', ' ORDER BY note::varchar)
string_agg(note::bytea, '\\x00ff'::bytea ORDER BY at)
string_agg(DISTINCT note, ',')
string_agg(DISTINCT note, ',' ORDER BY note DESC)
string_agg(DISTINCT note::varchar, ',' ORDER BY note::varchar)
upper(string_agg(note, '"{}' ORDER BY at))
sum(DISTINCT cents), avg(DISTINCT cents), count(DISTINCT cents)
sum(cents ORDER BY at), count(cents ORDER BY at), max(note ORDER BY at)
sum(cents::float8 ORDER BY cents)
bool_and(DISTINCT paid), min(DISTINCT cents), bit_xor(DISTINCT cents)
any_value(account), any_value(note ORDER BY at)
percentile_cont(0.5) WITHIN GROUP (ORDER BY cents)
percentile_cont(0.4) WITHIN GROUP (ORDER BY fee DESC NULLS FIRST)
percentile_cont(ARRAY[0, 0.3, NULL, 1]) WITHIN GROUP (ORDER BY price)
percentile_disc(0.5) WITHIN GROUP (ORDER BY note DESC)
percentile_disc('{0.1,0.9}'::float8[]) WITHIN GROUP (ORDER BY at)
percentile_disc(NULL::float8) WITHIN GROUP (ORDER BY at)
mode() WITHIN GROUP (ORDER BY cents), mode() WITHIN GROUP (ORDER BY note DESC)
first(note ORDER BY at), last(note ORDER BY at), first(fee ORDER BY fee), last(fee ORDER BY fee)
last(price ORDER BY note DESC NULLS LAST, at) FILTER (WHERE cents > 0)
stddev(cents), stddev_pop(cents), stddev_samp(fee), variance(fee::int2), var_pop(fee::int4)
var_samp(price), variance(price * price), stddev(price / 3), var_pop(price - price)
var_pop(cents::float8), stddev(price::float8), variance(fee::float4), avg(fee::float4)
bit_and(cents), bit_or(fee), bit_xor(fee::int2)
corr(cents, fee), covar_pop(fee, cents), covar_samp(fee, cents), regr_count(fee, cents)
regr_avgx(fee, cents), regr_avgy(fee, cents), regr_r2(fee, cents), regr_slope(fee, cents)
regr_intercept(fee, cents), regr_sxx(fee, cents), regr_sxy(fee, cents), regr_syy(fee, cents)
max(array[cents, fee]), min(array[fee, cents])
"""


MANY = [
    Payment(
        ("ann", "bob")[number % 3 % 2],
        EPOCH + timedelta(seconds=number * 7919 % 101),
        number * 37 % 23 - 5,
        None if number % 5 == 1 else number * 11 % 7,
        None if number % 4 == 3 else ("tea", "milk", "é", "")[number * 5 % 7 % 4],
        Decimal(number * 271 % 97) / 100 + number,
        (None, True, False)[number % 3],
    )
    for number in range(40)
]


@pytest.mark.parametrize("calls", AGGREGATES.strip().splitlines())
async def test_an_aggregate_gives_the_results_of_postgres(
    calls: str, server: psycopg.Connection[Any]
) -> None:
    named = ", ".join(f"{call} AS c{n}" for n, call in enumerate(_split(calls)))
    written = f"INSERT INTO result\nSELECT account, window_start, {named}{T}"
    found = await from_pipeline(written, MANY)
    assert agree(found.elements(), from_postgres(server, written, MANY).elements()), found


@pytest.mark.parametrize("calls", AGGREGATES.strip().splitlines())
async def test_merged_parts_give_the_results_of_postgres(
    calls: str, server: psycopg.Connection[Any]
) -> None:
    named = ", ".join(f"{call} AS c{n}" for n, call in enumerate(_split(calls)))
    written = f"INSERT INTO result\nSELECT account, {named} FROM payments GROUP BY account"
    pieces = [MANY[:12], MANY[12:13], MANY[13:30], MANY[30:]]
    sent = await sent_rows(f"{written} RETAIN UNBOUNDED", pieces)
    newest = {row[0]: row for row in sent}.values()
    assert agree(newest, from_postgres(server, written, MANY).elements()), newest


async def test_another_query_may_read_an_array(server: psycopg.Connection[Any]) -> None:
    written = (
        "INSERT INTO result\nSELECT account, fees[1] AS fee, cardinality(fees) AS n FROM "
        f"(SELECT account, array_agg(fee ORDER BY at) AS fees{T}) AS x WHERE fees IS NOT NULL"
    )
    assert await from_pipeline(written, MANY) == from_postgres(server, written, MANY)


def _split(calls: str) -> list[str]:
    """Calls with a comma between them, outside of brackets."""
    found, depth = [""], 0
    for character in calls:
        depth += (character in "([") - (character in ")]")
        if character == "," and not depth:
            found.append("")
        else:
            found[-1] += character
    return found


# -- drawn ----------------------------------------------------------------------------------------

LATE = timedelta(minutes=2)
"""Event time after each piece of the input, so that some records of later ones are late."""


@st.composite
def grouped(draw: st.DrawFn) -> tuple[str, str]:
    """A query with groups, without and with the clauses that say when rows are sent."""
    found = draw(
        st.lists(st.builds("{}{}".format, drawn_aggregates, filters), min_size=1, max_size=3)
    )
    columns = ", ".join(f"{value} AS c{number}" for number, value in enumerate(found))
    source, ending = draw(
        st.sampled_from([
            ("payments", "RETAIN UNBOUNDED"),
            ("TUMBLE(payments, at, INTERVAL '90 s')", "ALLOWED LATENESS UNBOUNDED"),
            ("TUMBLE(payments, at, INTERVAL '90 s')", "EMIT ON UPDATE"),
            ("TUMBLE(payments, at, INTERVAL '1 hour')", ""),
            ("HOP(payments, at, INTERVAL '30 s', INTERVAL '90 s')", "ALLOWED LATENESS UNBOUNDED"),
            ("HOP(payments, at, INTERVAL '30 s', INTERVAL '90 s')", ""),
            ("SESSION(payments, at, INTERVAL '20 s')", ""),
        ])
    )  # fmt: skip
    window = "0" if source == "payments" else "window_start"
    group = "account" if source == "payments" else "account, window_start"
    query = f"SELECT account, {window} AS w, {columns} FROM {source} GROUP BY {group}"
    return f"INSERT INTO result\n{query}", f" {ending}"


@given(query=grouped(), rows=payments, sizes=st.lists(st.integers(1, 7), max_size=4))
@settings(max_examples=examples(1000))
def test_parts_of_groups_give_the_results_of_postgres(
    server: psycopg.Connection[Any], query: tuple[str, str], rows: list[Payment], sizes: list[int]
) -> None:
    """Records arrive in several pieces, late ones included; the newest row of a group counts."""
    written, ending = query
    pieces = _pieces(rows, sizes)
    closed = LATE if "LATENESS" in ending else None
    sent = asyncio.run(sent_rows(written + ending, pieces, closed))
    newest = {row[:2]: row for row in sent}
    expected = from_postgres(server, written, rows)
    assert agree(newest.values(), expected.elements()), f"{expected}\n{newest}"


def _pieces(rows: list[Payment], sizes: list[int]) -> list[Sequence[Payment]]:
    pieces: list[Sequence[Payment]] = []
    for size in sizes:
        pieces.append(rows[:size])
        rows = rows[size:]
    return [piece for piece in (*pieces, rows) if piece]


# -- arrival --------------------------------------------------------------------------------------

SHUFFLED = [
    Payment("ann", EPOCH + timedelta(seconds=second), cents, note=note)
    for second, cents, note in ((5, 3, "c"), (1, 1, None), (9, 2, "a"), (2, 1, "b"))
]


@pytest.mark.parametrize(
    "source",
    ["payments", *(f"{x}(payments, at, INTERVAL '1 hour')" for x in ("TUMBLE", "SESSION"))],
)
async def test_without_an_order_values_are_in_the_order_of_arrival(source: str) -> None:
    ending = "RETAIN UNBOUNDED" if source == "payments" else ""
    window = "" if source == "payments" else ", window_start"
    query = (
        "INSERT INTO r SELECT array_agg(note) AS notes, string_agg(note, '-') AS text, "
        f"string_agg(note, cents::text) AS t FROM {source} GROUP BY account{window} {ending}"
    )
    rows = await sent_rows(query, [SHUFFLED[:1], SHUFFLED[1:3], SHUFFLED[3:]])
    assert rows[-1] == (("c", None, "a", "b"), "c-a-b", "c2a1b")


async def test_of_equal_rows_the_first_and_the_last_to_arrive_count() -> None:
    query = (
        "INSERT INTO r SELECT first(note ORDER BY cents) AS f, last(note ORDER BY cents DESC) AS l,"
        " first(note ORDER BY fee) AS n, last(note ORDER BY fee, cents > 9) AS m, "
        "first(array[cents, 0] ORDER BY at) AS a "
        "FROM payments GROUP BY account RETAIN UNBOUNDED"
    )
    for pieces in ([SHUFFLED], [[row] for row in SHUFFLED]):
        assert (await sent_rows(query, pieces))[-1] == (None, "b", "c", "b", (1, 0))


def test_rows_that_were_sent_stay_as_they_are() -> None:
    """A later record changes the state, and not the array in an earlier row."""
    totals = _totals("array_agg(cents) AS x")
    sums = totals.state_type()
    sums.s0.append(3)
    row = totals._row("", sums)
    sums.s0.append(1)
    assert row.x == [3]


async def test_floats_are_added_up_in_the_order_that_is_asked_for() -> None:
    """The sum of 2**53 and 1 is 2**53."""
    rows = [
        Payment("ann", EPOCH + timedelta(seconds=second), cents)
        for second, cents in ((3, 1), (1, 2**53), (2, -(2**53)), (4, -(2**53)))
    ]
    query = "INSERT INTO r SELECT sum(cents::float8 ORDER BY at) AS u, sum(cents::float8 ORDER BY "
    query += "at DESC) AS d FROM payments GROUP BY account RETAIN UNBOUNDED"
    assert (await sent_rows(query, [rows[:2], rows[2:]]))[-1] == (1.0 - 2**53, -(2.0**53))


# -- meaning --------------------------------------------------------------------------------------

MEANINGS = """
array_agg(cents)
array_agg(DISTINCT cents)
array_agg(cents ORDER BY cents)
array_agg(cents ORDER BY cents DESC)
array_agg(cents ORDER BY cents NULLS FIRST)
array_agg(cents ORDER BY cents DESC NULLS LAST)
array_agg(cents ORDER BY at)
array_agg(cents ORDER BY at, cents)
array_agg(cents ORDER BY at) FILTER (WHERE paid)
string_agg(note, ',')
string_agg(note, ';')
string_agg(note, ',' ORDER BY note)
string_agg(DISTINCT note, ',')
first(cents ORDER BY at)
last(cents ORDER BY at)
percentile_disc(0.5) WITHIN GROUP (ORDER BY cents)
percentile_disc(0.25) WITHIN GROUP (ORDER BY cents)
percentile_disc(0.5) WITHIN GROUP (ORDER BY cents DESC)
percentile_disc(0.5) WITHIN GROUP (ORDER BY fee)
percentile_disc(ARRAY[0.5]) WITHIN GROUP (ORDER BY cents)
percentile_cont(0.5) WITHIN GROUP (ORDER BY cents)
mode() WITHIN GROUP (ORDER BY cents)
sum(cents)
sum(DISTINCT cents)
var_pop(cents)
var_samp(cents)
stddev(cents)
""".strip().splitlines()


def _totals(columns: str) -> Any:
    """The step that keeps the groups."""
    pipeline, _ = pipeline_of(f"INSERT INTO r SELECT {columns} FROM payments RETAIN UNBOUNDED")
    return pipeline.nodes["make_r"].computation


def test_different_aggregates_have_different_meanings() -> None:
    """So that a deploy refuses one in place of another."""
    found = {}
    for call in MEANINGS:
        totals = _totals(f"{call} AS x")
        _, (add,) = totals.state_functions["query"]
        found[add.meaning] = call
    assert list(found.values()) == MEANINGS


# -- state ----------------------------------------------------------------------------------------


STATES = [
    "array_agg(x)", "array_agg(DISTINCT x)", "array_agg(x ORDER BY x)", "first(x ORDER BY x)",
    "array_agg(y ORDER BY x DESC, y)", "percentile_disc(0.5) WITHIN GROUP (ORDER BY x)",
]  # fmt: skip
VALUES = {
    "bool": "x = 2", "text": "x::text", "numeric": "x / 10.0", "float8": "x::float8",
    "float4": "x::float4", "date": "'2024-01-01'::date + x::int",
    "uuid": "lpad(x::text, 32, '0')::uuid",
    "time": "make_time(x::int, 0, 0)", "timestamptz": "to_timestamp(x)",
    "timestamp": "to_timestamp(x) AT TIME ZONE 'UTC'", "bytea": "x::text::bytea",
    "int2": "x::int2",
}  # fmt: skip


class Pair(msgspec.Struct, frozen=True):
    x: int | None
    y: int


async def _of_pairs(query: str, pieces: Sequence[Sequence[Pair]]) -> tuple[Any, ...]:
    """The newest row of a query over pairs."""
    pipeline = Pipeline("kinds")
    pairs: Stream[Pair] = Stream("pairs", Pair)
    pipeline.inject(pairs, Inbox(), timestamp=lambda pair: EPOCH)
    result = pipeline.sql(query, pairs)
    pipeline.sink(result, Discard())
    async with Harness(pipeline) as harness:
        for piece in pieces:
            await harness.inject(pairs, *piece)
        found: tuple[Any, ...] = msgspec.structs.astuple(harness.produced(result)[-1])
    return found


@pytest.mark.parametrize("kind", VALUES)
async def test_values_of_each_type_come_back_from_the_state(kind: str) -> None:
    """The harness compares each state with the one that a restart would read."""
    calls = [call.replace("x", f"({VALUES[kind]})") for call in STATES]
    columns = ", ".join(f"{call} AS c{n}" for n, call in enumerate(calls))
    query = (
        f"INSERT INTO r SELECT {columns}, max({VALUES['int2']}) AS m FROM pairs RETAIN UNBOUNDED"
    )
    rows = [Pair(x, 7) for x in (3, None, 1, 2, 1)]
    all_at_once = await _of_pairs(query, [rows])
    assert await _of_pairs(query, [[row] for row in rows]) == all_at_once
    listed, distinct, in_order, first, _, middle, _ = all_at_once
    known = sorted({x for x in listed if x is not None})
    assert distinct == [*known, None]
    assert in_order == [*sorted(x for x in listed if x is not None), None]
    assert first == known[0]
    assert middle in known


STATEFUL = """
count(*) AS n, array_agg(fee ORDER BY at) AS fees, string_agg(DISTINCT note, ',') AS notes,
array_agg(DISTINCT fee) AS kinds, first(note ORDER BY at, cents) AS f,
last(cents ORDER BY note, at) AS l, mode() WITHIN GROUP (ORDER BY cents) AS m,
percentile_cont(0.5) WITHIN GROUP (ORDER BY price) AS p, stddev(price) AS s, bit_xor(cents) AS x
"""


@pytest.mark.parametrize("source", ["TUMBLE(payments, at, INTERVAL '40 s')",
                                    "HOP(payments, at, INTERVAL '20 s', INTERVAL '40 s')",
                                    "SESSION(payments, at, INTERVAL '4 s')"])  # fmt: skip
async def test_a_crash_changes_no_aggregate(source: str) -> None:
    pipeline, result = pipeline_of(
        f"INSERT INTO r SELECT account, window_start, {STATEFUL} FROM {source} "
        "GROUP BY account, window_start"
    )
    rows = MANY[:12]
    async with Harness(pipeline) as harness:
        await harness.inject(PAYMENTS_STREAM, *rows)
        await harness.advance(PAYMENTS_STREAM, EPOCH + timedelta(days=2))
        expected = harness.produced(result)
    assert len(expected) > 4
    inputs = [inject(PAYMENTS_STREAM, row) for row in rows]
    inputs.append(advance(PAYMENTS_STREAM, EPOCH + timedelta(days=2)))
    await assert_exactly_once(pipeline, inputs, {result: expected}, max_crashes=4)


FILE = """
CREATE SOURCE payments (
    at timestamptz NOT NULL, account text NOT NULL, cents bigint NOT NULL, fee bigint,
    note text, price numeric NOT NULL, WATERMARK FOR at AS at - INTERVAL '1 day'
) WITH (connector = 'files', path = '{path}');

CREATE TABLE kept (
    account text, n bigint, fees bigint[], notes text, kinds bigint[], f text, l bigint, m bigint,
    p double precision, s numeric, x bigint, PRIMARY KEY (account)
);
INSERT INTO kept SELECT account, {columns} FROM payments GROUP BY account RETAIN UNBOUNDED;
"""


async def test_aggregates_on_postgres(
    postgres_url: Callable[[int], str], server: psycopg.Connection[Any], tmp_path: Path
) -> None:
    """The table has Postgres' results, and the views show the state."""
    path = tmp_path / "payments.jsonl"
    path.write_bytes(b"\n".join(map(msgspec.json.encode, MANY)))
    file = tmp_path / "aggregates_on_postgres.sql"
    file.write_text(FILE.replace("{path}", str(path)).replace("{columns}", STATEFUL))
    pipeline = load_pipeline(str(file))
    url = postgres_url(18)
    migrate(url, pipeline.name)
    await Run(pipeline, url).run()
    with psycopg.connect(url) as connection:
        rows = connection.execute("SELECT * FROM aggregates_on_postgres.kept").fetchall()
        states = connection.execute(
            "SELECT key #>> '{}', s1, s2, s5 FROM aggregates_on_postgres.state_of_make_kept"
        ).fetchall()
        connection.execute("SET client_min_messages = warning")
        connection.execute("DROP SCHEMA aggregates_on_postgres CASCADE")
    query = f"INSERT INTO r\nSELECT account, {STATEFUL} FROM payments GROUP BY account"
    assert agree(map(plain, rows), from_postgres(server, query, MANY).elements())
    of_ann = [row for row in MANY if row.account == "ann"]
    (fees, notes, first) = next(rest for account, *rest in states if account == "ann")
    assert len(fees) == len(of_ann)
    assert set(notes) == {row.note for row in of_ann} - {None}
    assert first[0] == min(of_ann, key=lambda row: row.at).note
