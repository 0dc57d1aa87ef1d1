"""Dates, times and intervals are those of Postgres."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from millwheel.sql.functions.registry import CASTS, Implementation
from millwheel.sql.functions.times.interval_texts import read_interval
from tests.sql.oracle import Answer, Oracle, Row, differences, ours
from tests.sql.times import expressions
from tests.support.examples import examples


def _float_text(value: float) -> str:
    digits, exponent = f"{value!r}", 0
    mantissa, _, power = digits.partition("e")
    if power or abs(value) >= 1e15:
        mantissa, _, power = f"{Decimal(digits).normalize():e}".partition("e")
        exponent = int(power)
        if -5 < exponent < 15:
            return format(Decimal(digits), "f")
        return f"{mantissa}e{'-' if exponent < 0 else '+'}{abs(exponent):02}"
    return mantissa.removesuffix(".0")


_MISSING: dict[tuple[str, str], Callable[..., Any]] = {
    ("numeric", "text"): lambda value: format(value, "f"),
    ("float8", "text"): _float_text,
    ("text", "numeric"): Decimal,
    ("text", "float8"): float,
    ("numeric", "float8"): float,
    ("int4", "float8"): float,
    ("int8", "float8"): float,
}


@pytest.fixture(autouse=True, scope="module")
def _numbers() -> Iterator[None]:
    """Conversions of numbers that these tests need, where they are not registered."""
    missing = [pair for pair in _MISSING if pair not in CASTS]
    for pair in missing:
        CASTS[pair] = Implementation(_MISSING[pair], "", may_be_null=False)
    yield
    for pair in missing:
        del CASTS[pair]


ASK = """
CREATE OR REPLACE FUNCTION pg_temp.ask(expression text, OUT kind text, OUT value text) AS $$
BEGIN
    EXECUTE 'SELECT pg_typeof(v)::text, v::text FROM (SELECT (' || expression || ') AS v) AS t'
    INTO kind, value;
EXCEPTION WHEN OTHERS THEN
    kind := 'error';
    value := SQLERRM;
END
$$ LANGUAGE plpgsql
"""


def ask(oracle: Oracle, expressions: list[str]) -> list[Answer]:
    """The answers of Postgres, asked at once."""
    connection = oracle._connection
    connection.execute(ASK.encode())
    found = connection.execute(
        b"SELECT (pg_temp.ask(e)).* FROM unnest(%s::text[]) WITH ORDINALITY AS t(e, n) ORDER BY n",
        [expressions],
    )
    return [Answer(*each) for each in found.fetchall()]


REFUSALS = ("available here", "timestamp out of range", "date out of range")


def is_outside(mine: Answer, theirs: Answer, expression: str) -> bool:
    """Whether this is an error because Python has no such value, or because the form of a text is
    not available: never because there is another value."""
    if mine.type != "error" or theirs.text is None or mine.text is None:
        return False
    return (
        any(each in mine.text for each in REFUSALS)
        or (theirs.type.startswith(("timestamp", "date")) and "BC" in theirs.text)
        or (
            expression.count("'") == 2
            and any(each in mine.text for each in ("invalid input syntax", "not recognized"))
        )
    )


def disagreements(oracle: Oracle, expressions: list[str]) -> list[str]:
    return [
        f"{expression}: Postgres {theirs}, millwheel {mine}"
        for expression, theirs in zip(expressions, ask(oracle, expressions), strict=True)
        if not (mine := ours(expression, {})).agrees(theirs)
        and not is_outside(mine, theirs, expression)
    ]


# -- a table ------------------------------------------------------------------------------------

ROWS: list[Row] = [
    {"t": ("timestamp", "2024-03-31 02:30:00.125"), "z": ("timestamptz", "2024-10-27 00:30:00+00"),
     "d": ("date", "2024-02-29"), "c": ("time", "23:59:58.5"), "n": ("int4", "3"),
     "i": ("interval", "1 mon 3 days -02:30:00.25"), "s": ("text", "2024-01-31 10:00"),
     "u": ("timestamp", None), "j": ("interval", None)},
    {"t": ("timestamp", "1969-12-31 23:59:59.999999"),
     "z": ("timestamptz", "2024-03-10 07:00:00+00"),
     "d": ("date", "1900-12-31"), "c": ("time", "00:00:00"), "n": ("int4", "-40"),
     "i": ("interval", "-13 months 45 days 25:00:00"), "s": ("text", "1 day"),
     "u": ("timestamp", "2000-01-01 00:00"), "j": ("interval", "00:00:00.000001")},
]  # fmt: skip

EXPRESSIONS = """
t + i|t - i|i + t|z + i|z - i|d + i|d - i|d + n|n + d|d - n|c + i|c - i|d + c|c + d|u + i|t + j
j - i|-i|t - u|z - t|u - t|d - d|c - c|i * n|n * i|i / n|i * 0.3|i / 0.7|i / 0|age(t, u)|age(u, t)
age(z, t)|t < z|z >= d|d = t|d <> z|i = j|i > j|i < interval '1 month'
interval '1 month' = interval '30 days'|t between u and z|greatest(t, u)|least(i, j)
coalesce(u, t)|nullif(t, u)|u is null|t in (u, d)|c < '12:00'|z at time zone 'Europe/Zurich'
t at time zone 'Europe/Zurich'|t at time zone 'America/New_York'|z at time zone 'America/New_York'
z at time zone 'Australia/Lord_Howe'|z at time zone '+02'|t at time zone 'cet'
timezone(interval '2 hours', z)|timezone(i, z)|t at time zone 'EST5'
z at time zone interval '-03:30'|extract(epoch from t)|extract(second from t)
extract(epoch from z)|extract(epoch from i)|extract(epoch from d)|extract(julian from t)
extract(dow from d)|extract(week from t)|extract(hour from d)|extract(isoyear from z)
extract(milliseconds from c)|extract(month from i)|extract(quarter from i)|extract(s from t)
extract(epoch from u)|date_part('epoch', t)|date_part('second', i)|date_part('hour', d)
date_part('julian', z)|date_part('x', t)|date_trunc('hour', t)|date_trunc('week', z)
date_trunc('day', z, 'America/New_York')|date_trunc('month', i)|date_trunc('quarter', d)
date_trunc('hour', z, 'Australia/Lord_Howe')|date_trunc('week', i)|date_trunc('x', t)
date_bin('15 minutes', t, '2001-02-16 20:05:00')|date_bin(i, t, u)|date_bin(j, z, z)
date_bin('1 month', t, t)|to_char(t, 'YYYY-MM-DD HH24:MI:SS.US')
to_char(z, 'FMDay, DDth "of" FMMonth YYYY OF TZ')|to_char(i, 'DD HH24:MI:SS')|to_char(t, '')
to_char(u, 'YYYY')|to_char(i, 'Month')|to_char(d, 'IYYY-IW-ID')|to_char(t, 'AM HH12 Q J RM CC')
to_timestamp(s, 'YYYY-MM-DD HH24:MI')|to_date(s, 'YYYY-MM-DD')|to_timestamp(1.5)|to_timestamp(0)
make_date(2024, 2, 29)|make_date(2023, 2, 29)|make_time(8, 15, 23.5)
make_timestamp(2024, 1, 1, 24, 0, 0)|make_timestamptz(2024, 3, 31, 2, 30, 0, 'Europe/Zurich')
make_interval(1, 2)|make_interval(0, 0, 0, 0, n, 0, 1.5)|justify_hours(i)|justify_days(i)
justify_interval(i)|isfinite(t)|isfinite(i)|overlaps(t, u, z::timestamp, t)|overlaps(t, i, u, j)
overlaps(c, c, c, i)|t::date|t::time|z::date|z::time|t::timestamptz|z::timestamp|d::timestamp
d::timestamptz|c::interval|i::time|t::timestamp(0)|z::timestamptz(1)|c::time(0)|i::interval(1)
t::text|z::text|d::text|c::text|i::text|s::timestamp|s::timestamptz|s::date|s::time|s::interval
u::date|(t - u) * 2|date_add(z, '1 day', 'America/New_York')
date_subtract(z, '1 day', 'Europe/Zurich')|date_add(z, i)
timestamp '2024-01-31' + interval '1 month'|timestamp '2023-01-31' + interval '1' month
date '2024-02-29' + interval '1 year'|timestamp '2024-03-31' - interval '1 month'
timestamptz '2024-03-31 02:30 Europe/Zurich'|interval '1-2 3 4:05:06.7'
timestamptz '2024-10-27 02:30 Europe/Zurich'|timestamptz '2024-03-10 02:30 America/New_York'
time '24:00:01'|timestamptz '2024-11-03 01:30 America/New_York'
timestamptz '2024-10-06 02:15 Australia/Lord_Howe'
timestamptz '2024-04-07 01:45 Australia/Lord_Howe'|interval '@ 1 minute ago'
'9223372036854775807 us'::interval::interval(4)|'-9223372036854775807 us'::interval::interval(0)
'9223372036854775000 us'::interval::interval(3)|'9223372036854775400 us'::interval::interval(3)
interval 'P1Y2M3DT4H5M6.7S'|date '2024-02-30'
"""


@pytest.mark.parametrize("row", ROWS, ids=["one", "other"])
def test_a_table_of_expressions_is_that_of_postgres(oracle: Oracle, row: Row) -> None:
    assert not "\n".join(
        differences(oracle, EXPRESSIONS.strip().replace("\n", "|").split("|"), row)
    )


@pytest.mark.parametrize("text", ["now", "today", "tomorrow", "yesterday 10:00", "infinity"])
@pytest.mark.parametrize("kind", ["timestamp", "timestamptz", "date"])
def test_texts_that_depend_on_the_clock_are_refused(kind: str, text: str) -> None:
    answer = ours(f"'{text}'::{kind}", {})
    assert answer.type == "error"
    assert "depends on when the query runs" in str(answer.text) or text == "infinity"


def test_equal_intervals_have_the_same_hash() -> None:
    month, days = read_interval("1 month"), read_interval("30 days")
    assert month == days
    assert (month != days) is False
    assert hash(month) == hash(days)
    assert month != read_interval("31 days")
    assert sorted([read_interval("2 days"), read_interval("47:59")])[0].days == 0


# -- random expressions -----------------------------------------------------------------------


@given(st.lists(expressions(), min_size=20, max_size=60))
@settings(
    max_examples=examples(60),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
def test_random_expressions_are_those_of_postgres(oracle: Oracle, asked: list[str]) -> None:
    assert not "\n".join(disagreements(oracle, asked))
