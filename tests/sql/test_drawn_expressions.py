"""Drawn expressions of all kinds mean the same here and in Postgres: type, value, or an error."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from millwheel.sql.catalog import Signature, postgres
from millwheel.sql.functions import FUNCTIONS
from tests.sql.oracle import Oracle, Row, differences
from tests.support.examples import examples

KINDS = ("int2", "int4", "int8", "numeric", "float8", "text", "bool", "date", "time", "timestamp",
         "timestamptz", "interval")  # fmt: skip

VALUES = {
    "int2": ["0", "1", "-7", "32767", "-32768"],
    "int4": ["0", "1", "-3", "12", "2147483647", "-2147483648"],
    "int8": ["0", "-1", "60", "9223372036854775807", "-9223372036854775808"],
    "numeric": ["0", "0.00", "1.5", "-12.345", "100", "0.3333333333", "99999999999.99", "-0.5"],
    "float8": ["0", "1.5", "-2.25", "1e10", "0.1", "-1e-7"],
    "text": ["", "a", "Hello", "  x ", "12", "-3.5", "2024-02-29", "true", "é€", "a,b,c",
             "A%_\\\\"],
    "bool": ["true", "false"],
    "date": ["2024-02-29", "2023-12-31", "1970-01-01", "2000-01-01"],
    "time": ["00:00:00", "23:59:59.999999", "12:30:00"],
    "timestamp": ["2024-02-29 12:34:56.789", "1999-12-31 23:59:59.999999", "1970-01-01 00:00:00"],
    "timestamptz": ["2024-03-31 01:30:00+00", "2023-12-31 23:59:59.5+00", "1970-01-01 00:00:00+00"],
    "interval": ["1 mon", "-1 day", "26:00:00", "1 year 2 mons 3 days 04:05:06.5", "00:00:00"],
}  # fmt: skip

UNITS = ["year", "month", "day", "hour", "minute", "second", "week", "quarter", "decade", "epoch",
         "dow", "doy", "millennium", "isoyear", "century", "milliseconds"]  # fmt: skip

PICTURES = ["YYYY-MM-DD", "HH24:MI:SS.US", "DD Mon YYYY", "FMMonth D, YY", "999.99", "FM0009",
            "S99", "IYYY-IW-ID", "HH12 PM", "Q CC J"]  # fmt: skip

LIBRARY = frozenset(
    """
    acos acosd acosh asin asind asinh atan atan2 atan2d atand atanh cbrt cos cosd cosh cot cotd
    degrees dexp dlog1 dlog10 erf erfc exp ln log log10 pow power radians sin sind sinh sqrt tan
    tand tanh dpow numeric_power numeric_exp numeric_ln numeric_log gamma lgamma
    """.split()  # noqa: SIM905
)
"""Functions of the library of C, with last digits that differ between machines; slow ones with
large numbers."""

LARGE = frozenset(["repeat", "lpad", "rpad", "factorial", "numeric_fac", "make_interval"])
"""Functions with results of a size that an argument says."""

TYPES = frozenset(["time", "timestamp", "interval", "bit", "numeric", "varchar", "timestamptz"])
"""Names that Postgres' grammar takes for types."""


def _operators() -> dict[str, list[tuple[str, Signature]]]:
    """The operators that are available, by the type of their result."""
    found: dict[str, list[tuple[str, Signature]]] = {}
    for (symbol, _), signatures in postgres()._operators.items():
        for each in signatures:
            if each.key in FUNCTIONS and each.name not in LIBRARY and _is_drawn(each):
                found.setdefault(each.result, []).append((symbol, each))
    return found


def _functions() -> dict[str, list[Signature]]:
    found: dict[str, list[Signature]] = {}
    for name in postgres().function_names:
        if name in LIBRARY | LARGE | TYPES:
            continue
        for each in postgres()._functions[name]:
            usable = (
                each.kind == "f"
                and not each.code
                and each.volatility != "v"
                and not each.is_variadic
            )
            if usable and each.key in FUNCTIONS and _is_drawn(each):
                found.setdefault(each.result, []).append(each)
    return found


def _is_drawn(signature: Signature) -> bool:
    return {*signature.arguments, signature.result} <= set(KINDS)


OPERATORS, CALLS = _operators(), _functions()

CASTS = [
    ("int4", "int8"), ("int8", "int4"), ("int4", "int2"), ("numeric", "int4"), ("numeric", "int8"),
    ("int8", "numeric"), ("float8", "int4"), ("numeric", "float8"), ("float8", "numeric"),
    ("int4", "float8"), ("bool", "int4"), ("int4", "bool"), ("date", "timestamp"),
    ("timestamp", "date"), ("timestamptz", "date"), ("timestamp", "timestamptz"),
    ("timestamptz", "timestamp"), ("timestamp", "time"), ("interval", "time"),
    ("time", "interval"), *((kind, "text") for kind in KINDS if kind != "text"),
    *(("text", kind) for kind in KINDS if kind != "text"),
]  # fmt: skip


class Drawn:
    """Draws expressions over columns that have the names of their types."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def row(self) -> Row:
        draw = self._random
        return {
            f"{kind}_{n}": (kind, None if draw.random() < 0.15 else draw.choice(VALUES[kind]))
            for kind in KINDS
            for n in "ab"
        }

    def of(self, kind: str, depth: int) -> str:
        """An expression of a type."""
        draw = self._random
        if depth == 0 or draw.random() < 0.15:
            return self._leaf(kind)
        forms: list[Callable[[str, int], str | None]] = [
            self._operation, self._operation, self._call, self._call, self._cast, self._choice,
        ]  # fmt: skip
        if kind == "bool":
            forms += [self._logic, self._test]
        for _ in range(4):
            found = draw.choice(forms)(kind, depth - 1)
            if found is not None:
                return found
        return self._leaf(kind)

    def _leaf(self, kind: str) -> str:
        draw = self._random
        if draw.random() < 0.6:
            return f"{kind}_{draw.choice('ab')}"
        if draw.random() < 0.1:
            return f"NULL::{_shown(kind)}"
        value = draw.choice(VALUES[kind]).replace("'", "''")
        if kind in ("int4", "numeric") and not value.startswith("-") and draw.random() < 0.7:
            return value
        if kind == "text":
            return f"'{value}'"
        return f"'{value}'::{_shown(kind)}"

    def _operation(self, kind: str, depth: int) -> str | None:
        if kind not in OPERATORS:
            return None
        symbol, signature = self._random.choice(OPERATORS[kind])
        operands = [self.of(argument, depth) for argument in signature.arguments]
        if symbol in ("<<", ">>") or signature.name.endswith(("_pl_interval", "_mi_interval")):
            operands = [operands[0], self._leaf(signature.arguments[-1])][: len(operands)]
        return f"({f' {symbol} '.join(operands)})" if len(operands) == 2 else (
            f"({symbol} {operands[0]})"
        )  # fmt: skip

    def _call(self, kind: str, depth: int) -> str | None:
        if kind not in CALLS:
            return None
        signature = self._random.choice(CALLS[kind])
        name, draw = signature.name, self._random
        arguments = [self.of(argument, depth) for argument in signature.arguments]
        if name in ("date_trunc", "date_part"):
            arguments[0] = f"'{draw.choice(UNITS)}'"
        elif name == "extract":
            return f"extract({draw.choice(UNITS)} FROM {arguments[1]})"
        elif name in ("to_char", "to_date", "to_timestamp", "to_number") and len(arguments) == 2:
            arguments[1] = f"'{draw.choice(PICTURES)}'"
        elif name == "timezone":
            arguments[0] = f"'{draw.choice(['UTC', 'Europe/Berlin', 'America/New_York'])}'"
            if signature.arguments[0] != "text":
                return None
        return f"{name}({', '.join(arguments)})"

    def _cast(self, kind: str, depth: int) -> str | None:
        sources = [source for source, target in CASTS if target == kind]
        if not sources:
            return None
        return f"CAST({self.of(self._random.choice(sources), depth)} AS {_shown(kind)})"

    def _choice(self, kind: str, depth: int) -> str:
        one, other = self.of(kind, depth), self.of(kind, depth)
        form = self._random.choice(
            ["coalesce({0}, {1})", "nullif({0}, {1})", "greatest({0}, {1})", "least({0}, {1})",
             "CASE WHEN {2} THEN {0} ELSE {1} END", "CASE {0} WHEN {1} THEN {1} END"]
        )  # fmt: skip
        return form.format(one, other, self.of("bool", max(depth - 1, 0)))

    def _logic(self, kind: str, depth: int) -> str:
        form = self._random.choice(["({} AND {})", "({} OR {})", "(NOT {} OR {})"])
        return form.format(self.of("bool", depth), self.of("bool", depth))

    def _test(self, kind: str, depth: int) -> str:
        of = self._random.choice(KINDS)
        values = [self.of(of, depth), self._leaf(of), self._leaf(of)]
        form = self._random.choice(
            ["({0} IS NULL)", "({0} IS DISTINCT FROM {1})", "({0} IN ({1}, {2}))",
             "({0} BETWEEN {1} AND {2})", "({0} NOT IN ({1}, {2}))",
             "({0} = ANY (ARRAY[{1}, {2}]))"]
        )  # fmt: skip
        return form.format(*values)


def _shown(kind: str) -> str:
    return {"float8": "double precision", "int8": "bigint"}.get(kind, kind)


@pytest.mark.parametrize("part", range(10))
def test_drawn_expressions_are_those_of_postgres(oracle: Oracle, part: int) -> None:
    """Parts that are constant are evaluated before there is a record, as Postgres plans a query."""
    found = []
    for seed in range(part * 1000, part * 1000 + examples(600)):
        drawn = Drawn(seed)
        row = drawn.row()
        expression = drawn.of(random.Random(seed).choice(KINDS), 3)
        found += differences(oracle, [expression], row)
    assert not "\n".join(found)
