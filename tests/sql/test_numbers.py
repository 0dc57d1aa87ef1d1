"""Numbers have the values, scales, texts and errors that they have in Postgres."""

from __future__ import annotations

import math
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.sql.oracle import Oracle, Row, differences
from tests.support.examples import examples

KINDS = ("int2", "int4", "int8", "numeric", "float4", "float8")

ROWS: list[dict[str, tuple[str, str | None]]] = [
    {"s": ("int2", "7"), "i": ("int4", "-3"), "b": ("int8", "1234567890123"),
     "n": ("numeric", "12.50"), "m": ("numeric", "-0.003"), "r": ("float4", "1.1"),
     "d": ("float8", "2.5")},
    {"s": ("int2", "0"), "i": ("int4", "0"), "b": ("int8", "0"), "n": ("numeric", "0.00"),
     "m": ("numeric", "0"), "r": ("float4", "-0"), "d": ("float8", "0")},
    {"s": ("int2", "-32768"), "i": ("int4", "-2147483648"), "b": ("int8", "-9223372036854775808"),
     "n": ("numeric", "-99999999999999999999.99999"), "m": ("numeric", "1e-30"),
     "r": ("float4", "3.4028235e38"), "d": ("float8", "-1.7976931348623157e308")},
    {"s": ("int2", "32767"), "i": ("int4", "2147483647"), "b": ("int8", "9223372036854775807"),
     "n": ("numeric", "1e131071"), "m": ("numeric", "1e-16383"),
     "r": ("float4", "1e-45"), "d": ("float8", "5e-324")},
    {"s": ("int2", None), "i": ("int4", None), "b": ("int8", None), "n": ("numeric", None),
     "m": ("numeric", None), "r": ("float4", None), "d": ("float8", None)},
]  # fmt: skip

EXPRESSIONS = (
    """
i % 7 ; b % 60 ; i % -7 ; i % 0
s & 5::int2 ; i & 12 ; b & 255 ; s # 3::int2 ; i # 5 ; b # b ; ~s ; ~i ; ~b ; s << 3 ; s << 20
i << 1 ; i << 33 ; i << -1 ; b << 63 ; s >> 1 ; i >> 31 ; b >> 2 ; @ i ; @ n ; @ d ; abs(m)
abs(r) ; gcd(i, 12) ; lcm(i, 12) ; gcd(b, 18) ; lcm(b, 18::int8) ; mod(i, 3) ; mod(b, i)
div(b, i) ; to_hex(i) ; to_hex(b) ; to_bin(i) ; to_oct(b) ; factorial(s) ; s + i ; i - b ; b * s
i / s ; b % i ; -i ; -b ; +n ; -n ; -m ; -d ; -r ; n + m ; n - m ; n - n ; n * m ; n / m ; m / n
n % m ; n % 7 ; div(n, 7) ; n / 3 ; n * 2 ; 1 / n ; mod(n, -0.7) ; round(m) ; round(m, 3)
round(n, -1) ; round(n, -200000) ; trunc(m) ; trunc(m, 2) ; trunc(n, -3) ; ceil(n) ; ceil(m)
floor(n) ; floor(m) ; sign(n) ; sign(m) ; sign(i) ; sign(d) ; scale(n) ; min_scale(n)
trim_scale(n) ; gcd(m, 0.09) ; lcm(m, 0.09) ; sqrt(m) ; exp(m) ; ln(m) ; log(m) ; log(2.0, m)
power(m, 2) ; power(m, -1) ; n ^ 3 ; n ^ 0.5 ; m ^ 10 ; m ^ 1.5 ; 2 ^ i ; power(1.5, s)
width_bucket(n, 0, 20, 5) ; width_bucket(d, 5, 0, 7) ; n::int2 ; n::int4 ; n::int8 ; n::float4
n::float8 ; m::float8 ; m::float4 ; n::numeric(4, 1) ; n::numeric(2) ; m::numeric(2, 4)
n::numeric(3, -1) ; i::numeric(12, 2) ; d::numeric(5, 2) ; '1.005'::numeric(5, 2) ; s::int4
i::int2 ; b::int4 ; i::numeric ; b::float4 ; b::float8 ; r::float8 ; d::float4 ; r::int4 ; d::int8
d::int2 ; r::numeric ; d::numeric ; r::text ; d::text ; b::text ; i = 0 ; n = 0 ; n > m ; r = 1.1
d = 2.5 ; greatest(i, n, d) ; r + r ; r - d ; r * 1.5::float4 ; r / 3 ; d + 1 ; d - r ; d * 2
d * 1e-10 ; d / i ; d / 0.1 ; r * r ; r / r ; d / d ; round(d) ; round(-d) ; trunc(d) ; ceil(d)
floor(d) ; ceil(r) ; round(i) ; ceil(b) ; sqrt(d) ; cbrt(d) ; exp(d) ; ln(d) ; log(d) ; log10(d)
power(d, 2) ; power(d, -0.5) ; d ^ 0.5 ; degrees(d) ; radians(d) ; pi() ; dround(d) ; sin(d)
cos(r) ; tan(d) ; cot(d) ; asin(r) ; acos(d) ; atan(d) ; atan2(d, 3) ; sinh(r) ; cosh(r) ; tanh(d)
asinh(d) ; acosh(d) ; atanh(r) ; erf(r) ; erfc(r) ; sind(i) ; cosd(60) ; tand(i) ; cotd(45)
asind(0.5) ; acosd(r) ; atand(d) ; atan2d(d, 2) ; int4(d) ; int8(n) ; float8(i) ; float4(n)
int2(i) ; float8(r) ; int8(r) ; '1e3'::numeric ; ' 12.50 '::numeric ; '.5'::numeric
'5.'::numeric ; '1_0.0_1e1_0'::numeric ; '.'::numeric ; '0x1f'::numeric ; '-0b101'::numeric
'0o17'::int4 ; '-0x_8000'::int2 ; ' 1_000 '::int8 ; '1__0'::int4 ; ''::int4 ; '1e131072'::numeric
'1e-16384'::numeric ; '0e1000000'::numeric ; '1.5'::int4 ; '99999'::int2 ; 'x'::numeric
'1e400'::float8 ; '1e-400'::float8 ; '1e39'::float4 ; '1e-46'::float4 ; '16777217'::float4
'1e'::float8 ; '1e23'::float8 ; '1e15'::float8 ; '123456789012345'::float8 ; '1e-5'::float8
'-0'::float8 ; '1e6'::float4 ; 1e5 ; 1.50 ; -2147483648 ; 9223372036854775808 ; 5 / 2 ; 5 / 2.0
-5 % 3 ; 5.5 % -2 ; 2 ^ 0.5 ; 10.0 / 4 ; 1 / 0 ; 1.0 / 0 ; factorial(-1) ; factorial(32178)
factorial(25) ; 1::numeric(0, 0) ; 1::numeric(1001) ; 1::numeric(5, 1001) ; power(0.0, -1)
power(-8.0, 1.5) ; power(0::float8, -1) ; power(-8::float8, 1.5) ; sqrt(-1) ; sqrt(-1.0) ; ln(0)
ln(-1.0) ; ln(0.0) ; log(-1) ; exp(6000.0) ; exp(-6000.0) ; exp(1000) ; exp(-1000)
power(10.0, 131072) ; acosh(0.5) ; width_bucket(1.0, 0, 1, 2147483647)
width_bucket(1.0, 1, 1, 5) ; width_bucket(1.0, 0, 1, 0) ; s | 3::int2 ; i | 12 ; b | 1 ; |/ d
||/ d
""".strip()
    .replace("\n", " ; ")
    .split(" ; ")
)


def _is_special(difference: str) -> bool:
    """Whether Postgres gives a value that is refused here."""
    return "text='Infinity'" in difference or "text='-Infinity'" in difference


def _differences(oracle: Oracle, expressions: list[str], row: Row) -> list[str]:
    return [each for each in differences(oracle, expressions, row) if not _is_special(each)]


@pytest.mark.parametrize("row", ROWS, ids=["usual", "zero", "least", "most", "null"])
def test_numbers_are_those_of_postgres(oracle: Oracle, row: Row) -> None:
    assert not "\n".join(_differences(oracle, EXPRESSIONS, row))


# -- any values -----------------------------------------------------------------------------------

BINARY = ("+", "-", "*", "/", "%", "^", "&", "|", "#", "<<", ">>", "=", "<", ">=")
BINARY_FUNCTIONS = (
    "mod",
    "div",
    "gcd",
    "lcm",
    "power",
    "log",
    "round",
    "trunc",
    "atan2",
    "greatest",
)
UNARY = (
    "-", "@", "~", "abs", "round", "trunc", "ceil", "floor", "sign", "scale", "min_scale",
    "trim_scale", "sqrt", "exp", "ln", "log", "|/", "||/", "cbrt", "sin", "cos", "atan", "tanh",
    "sind", "degrees", "to_hex", "to_bin",
)  # fmt: skip


def _integers(bits: int) -> st.SearchStrategy[str]:
    most = 2 ** (bits - 1)
    return st.one_of(st.integers(-20, 20), st.integers(-most, most - 1)).map(str)


def _single(bits: int) -> float:
    (value,) = struct.unpack("<f", struct.pack("<I", bits))
    assert isinstance(value, float)
    return value


_DECIMALS = st.one_of(
    st.from_regex(r"-?[0-9]{1,4}(\.[0-9]{0,4})?", fullmatch=True),
    st.from_regex(r"-?[0-9]{1,30}(\.[0-9]{0,25})?", fullmatch=True),
    st.from_regex(r"[01]\.(0{1,12}|9{1,12})[0-9]{1,6}", fullmatch=True),
)
VALUES = {
    "int2": _integers(16),
    "int4": _integers(32),
    "int8": _integers(64),
    "numeric": _DECIMALS,
    "float8": st.one_of(
        st.floats(allow_nan=False, allow_infinity=False).map(repr),
        st.floats(-100, 100).map(repr),
        st.integers(-1074, 1023).map(lambda n: repr(2.0**n)),
        _integers(30),
    ),
    "float4": st.one_of(
        st.integers(0, 2**32 - 1).map(_single).filter(math.isfinite).map(repr),
        st.floats(-100, 100).map(repr),
        _integers(30),
    ),
}


@st.composite
def _row_and_expressions(draw: st.DrawFn) -> tuple[Row, list[str]]:
    row = {kind[0] + kind[-1]: (kind, draw(VALUES[kind])) for kind in KINDS}
    column = st.sampled_from(list(row))
    expressions = [
        *(f"{draw(column)} {draw(st.sampled_from(BINARY))} {draw(column)}" for _ in range(6)),
        *(f"{draw(st.sampled_from(UNARY))}({draw(column)})" for _ in range(6)),
        *(f"{draw(column)}::{draw(st.sampled_from(KINDS))}" for _ in range(3)),
        f"{draw(st.sampled_from(BINARY_FUNCTIONS))}({draw(column)}, {draw(column)})",
        f"{draw(column)}::numeric({draw(st.integers(1, 12))}, {draw(st.integers(-4, 8))})",
        f"round(nc, {draw(st.integers(-30, 30))})",
    ]
    return row, expressions


@settings(max_examples=examples(150), deadline=None)
@given(_row_and_expressions())
def test_any_numbers_are_those_of_postgres(oracle: Oracle, drawn: tuple[Row, list[str]]) -> None:
    row, expressions = drawn
    assert not "\n".join(_differences(oracle, expressions, row))


_GROUPED = r"[+-]?[0-9]{1,3}(_[0-9]{3}){0,3}(\.[0-9]{1,3})?(e[+-]?[0-9]{1,3})? ?"
_TEXTS = st.one_of(
    st.text("0123456789.eE+-_ xXoObBaf\t", max_size=8),
    st.from_regex(r" ?[+-]?0[xob](_?[01]){1,9}", fullmatch=True),
    st.from_regex(_GROUPED, fullmatch=True),
)


def _is_hexadecimal(text: str) -> bool:
    return "x" in text.lower()


@settings(max_examples=examples(300), deadline=None)
@given(_TEXTS)
def test_any_texts_are_read_as_by_postgres(oracle: Oracle, text: str) -> None:
    kinds = KINDS[:4] if _is_hexadecimal(text) else KINDS
    assert not "\n".join(
        differences(oracle, [f"t::{kind}" for kind in kinds], {"t": ("text", text)})
    )


# -- pictures -------------------------------------------------------------------------------------

PICTURES = (
    """
999|FM999|999,999|FM999,990.00|0000|S999|999S|FM9.99S|999MI|PL999|SG999|999PR|FM90.99|FM0.09|0.0
.99|9.|FM9.|9G999D99|999TH|FMth9|RN|FMrn|9.99EEEE|"n:"999" x"|$999.99|FM0999.9900|9,9.9,9|TH|B9|
9.9.9|S9S|9SMI|9PR9|RN9|EEEE9|99999999999999999.99
""".strip()
    .replace("\n", "|")
    .split("|")
)
_TOKENS = ["9", "9", "0", ".", ",", "D", "G", "FM", "S", "MI", "PL", "SG", "PR", "TH", "B", " "]
_TOKENS_WITHOUT_SIGN = ["9", "9", "9", "0", ",", "G"]


def _unless_refused(found: list[str]) -> list[str]:
    return [each for each in found if "is not available in" not in each]


@pytest.mark.parametrize("text", PICTURES)
def test_pictures_are_those_of_postgres(oracle: Oracle, text: str) -> None:
    for row in ROWS[:3]:
        kinds = [(name, kind) for name, (kind, _) in row.items() if kind != "int2"]
        expressions = [f"to_char({name}, p)" for name, _ in kinds]
        assert not "\n".join(differences(oracle, expressions, {**row, "p": ("text", text)}))
    for number in ("12.5", "-1,234.50", "$7", "<3.1>", "5-", "1st", "", "é9", "123456789"):
        columns: Row = {"t": ("text", number), "p": ("text", text)}
        found = differences(oracle, ["to_number(t, p)"], columns)
        assert not "\n".join(_unless_refused(found))


_PICTURES = st.one_of(
    st.lists(st.sampled_from(_TOKENS), max_size=8).map("".join),
    st.tuples(
        st.sampled_from(["", "FM", "S", "FMS", "MI", "SG", "FM$"]),
        st.lists(st.sampled_from(_TOKENS_WITHOUT_SIGN), max_size=8).map("".join),
        st.sampled_from(["", ".", "D"]),
        st.text("90", max_size=4),
        st.sampled_from(["", "S", "MI", "PR", "PL"]),
    ).map("".join),
)


@settings(max_examples=examples(200), deadline=None)
@given(_PICTURES, _DECIMALS, st.integers(-2000, 2000), st.text("0123456789.,-+ <$é", max_size=8))
def test_any_pictures_are_those_of_postgres(
    oracle: Oracle, text: str, decimal: str, integer: int, written: str
) -> None:
    row: Row = {
        "n": ("numeric", decimal), "d": ("float8", decimal), "r": ("float4", decimal),
        "i": ("int4", str(integer)), "t": ("text", written), "p": ("text", text),
    }  # fmt: skip
    expressions = [f"to_char({name}, p)" for name in "ndri"] + ["to_number(t, p)"]
    assert not "\n".join(differences(oracle, expressions, row))
