"""Spark's expressions for queries beside the compiled Python, value by value.

The Python itself is compared with Postgres in `tests/sql`. Here each signature of the registry gets
values at the limits of its types, and drawn expressions get drawn rows. Where the Python fails,
Spark must fail for a signature by itself; in a larger expression, a part that is not needed may be
left out, as in Postgres.
"""

from __future__ import annotations

import random
import warnings
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from millwheel.errors import SqlError
from millwheel.spark.engine.column_input import ARROW
from millwheel.spark.queries.equivalents import CASTS, SIGNATURES
from millwheel.spark.queries.frames import SETTINGS
from millwheel.spark.queries.translating import NotTheSame, Translator
from millwheel.sql import typed as t
from millwheel.sql.functions import ValueRefused
from millwheel.sql.generating import Generator
from millwheel.sql.parsing import parse_expression
from millwheel.sql.resolving import Resolver
from millwheel.sql.types import SqlType
from tests.sql.oracle import NOWHERE, Columns
from tests.support.spark_values import BY_KIND, COLUMNS, VALUES, shown

pytestmark = pytest.mark.spark

CHUNK = 25


def drawn_rows(number: int, seed: int) -> list[dict[str, Any]]:
    chosen = random.Random(seed)
    return [
        {name: chosen.choice(VALUES[kind]) for name, kind in COLUMNS.items()} for _ in range(number)
    ]


def all_pairs() -> list[dict[str, Any]]:
    """Rows in which two columns of a type have each pair of its values."""
    most = max(map(len, VALUES.values()))
    return [
        {
            name: VALUES[kind][(i if name == BY_KIND[kind][0] else j) % len(VALUES[kind])]
            for name, kind in COLUMNS.items()
        }
        for i in range(most)
        for j in range(most)
    ]


class Expression(NamedTuple):
    text: str
    sql: str
    """Of Spark."""
    function: Any

    def answer(self, row: dict[str, Any]) -> tuple[bool, Any]:
        """Whether the Python has a value, and it."""
        try:
            return True, self.function(**row)
        except ValueRefused:
            return False, None


def compiled(text: str) -> Expression:
    scope = Columns({name: (kind, None) for name, kind in COLUMNS.items()}, nullable=True)
    node = Resolver(scope, no_aggregates_in="an expression").value(parse_expression(text))
    return Expression(text, Translator(lambda column: f"`{column.name}`").value(node), python(node))


def condition(text: str) -> Expression:
    """An expression as in WHERE, which need not tell FALSE from NULL."""
    scope = Columns({name: (kind, None) for name, kind in COLUMNS.items()}, nullable=True)
    node = Resolver(scope, no_aggregates_in="WHERE").condition(parse_expression(text), "WHERE")
    made = Translator(lambda column: f"`{column.name}`").truth(node)
    generator = Generator(lambda column: column.name)
    return Expression(text, made, evaluated(generator.truth(node), generator))


def python(node: t.Typed) -> Any:
    generator = Generator(lambda column: column.name)
    return evaluated(generator.value(node), generator)


def evaluated(code: str, generator: Generator) -> Any:
    source = f"lambda {', '.join(COLUMNS)}: {code}"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SyntaxWarning)  # 5 IS NULL
        return eval(source, dict(generator.names))


@pytest.fixture
def session(spark: SparkSession) -> Iterator[SparkSession]:
    """With the settings of queries, and without computing small tables in the optimizer."""
    local = "org.apache.spark.sql.catalyst.optimizer.ConvertToLocalRelation"
    rules = "spark.sql.optimizer.excludedRules"
    given = {**SETTINGS, rules: f"{SETTINGS[rules]},{local}"}
    for name, value in given.items():
        spark.conf.set(name, value)
    yield spark
    for name in given:
        spark.conf.unset(name)
    spark.conf.set("spark.sql.session.timeZone", "UTC")


def frame(session: SparkSession, rows: Sequence[dict[str, Any]], answers: Any = ()) -> DataFrame:
    """The rows, with columns ``ok0``, ``ok1`` … for whether the Python has a value."""
    kinds = {**ARROW, "numeric": pa.decimal128(38, 0)}
    columns = {
        name: pa.array([row[name] for row in rows], kinds[kind]) for name, kind in COLUMNS.items()
    }
    for number, of in enumerate(answers):
        columns[f"ok{number}"] = pa.array([ok for ok, _ in of], pa.bool_())
    return session.createDataFrame(pa.table(columns))


def differences(
    session: SparkSession, expressions: Sequence[Expression], rows: Sequence[dict[str, Any]]
) -> list[str]:
    wrong = []
    for first in range(0, len(expressions), CHUNK):
        some = expressions[first : first + CHUNK]
        answers = [[each.answer(row) for row in rows] for each in some]
        found = frame(session, rows, answers).select(
            *(
                F.expr(f"CASE WHEN ok{number} THEN {each.sql} END").alias(f"v{number}")
                for number, each in enumerate(some)
            )
        )
        table = found.toArrow().to_pydict()
        for number, each in enumerate(some):
            for (_, ours), theirs, row in zip(
                answers[number], table[f"v{number}"], rows, strict=True
            ):
                if shown(ours) != shown(theirs):
                    used = {name: value for name, value in row.items() if name in each.sql}
                    wrong.append(f"{each.text} of {used}: {ours!r}, Spark {theirs!r}")
    return wrong


def test_each_signature_has_the_value_and_the_errors_of_postgres(session: SparkSession) -> None:
    rows = all_pairs()
    expressions, failing = [], []
    for key, equivalent in SIGNATURES.items():
        name, kinds = key.rstrip(")").split("(")
        parts = [BY_KIND[kind][place] for place, kind in enumerate(kinds.split(","))]
        made = compiled(f"{name}({', '.join(parts)})")
        expressions.append(made)
        of_error = [row for row in rows if not made.answer(row)[0]]
        assert bool(of_error) == equivalent.may_fail, key
        failing += [(made, row) for row in spaced(of_error, 3)]
    for (source, target), equivalent in CASTS.items():
        column = t.ColumnValue(SqlType(source), True, NOWHERE, "", BY_KIND[source][0])
        node = t.Convert(SqlType(target), True, NOWHERE, column, ((source, target),))
        translator = Translator(lambda column: f"`{column.name}`")
        made = Expression(f"{source} as {target}", translator.value(node), python(node))
        assert translator.may_fail == equivalent.may_fail
        expressions.append(made)
        of_error = [row for row in rows if not made.answer(row)[0]]
        assert bool(of_error) == equivalent.may_fail, made.text
        failing += [(made, row) for row in spaced(of_error, 3)]
    assert differences(session, expressions, rows) == []
    assert len(failing) > 100
    for made, row in failing:
        with pytest.raises(PySparkException):
            print(made.text, row, frame(session, [row]).select(F.expr(made.sql)).toArrow())


def spaced(items: list[Any], number: int) -> list[Any]:
    """Some items at equal distances."""
    return items[:: max(1, len(items) // number)][:number]


class Drawing:
    """Draws expressions as Postgres' SQL."""

    def __init__(self, seed: int) -> None:
        self._chosen = random.Random(seed)

    def of(self, kind: str, depth: int) -> str:
        one = self._chosen.choice
        if depth == 0 or self._chosen.random() < 0.15:
            return one([*BY_KIND[kind], *BY_KIND[kind], self._constant(kind)])
        inner = [
            f"coalesce({self.of(kind, depth - 1)}, {self.of(kind, depth - 1)})",
            f"CASE WHEN {self.of('bool', depth - 1)} THEN {self.of(kind, depth - 1)} "
            f"ELSE {self.of(kind, depth - 1)} END",
            f"CASE WHEN {self.of('bool', depth - 1)} THEN {self.of(kind, depth - 1)} END",
            f"NULLIF({self.of(kind, depth - 1)}, {self.of(kind, depth - 1)})",
        ]
        if kind not in ("bool", "float8", "numeric"):
            name = one(["GREATEST", "LEAST"])
            inner.append(f"{name}({self.of(kind, depth - 1)}, {self.of(kind, depth - 1)})")
        own = getattr(self, f"_{kind}", None)
        return str(own(depth - 1)) if own and self._chosen.random() < 0.7 else one(inner)

    def _constant(self, kind: str) -> str:
        value = self._chosen.choice(VALUES[kind])
        if value is None:
            return f"NULL::{kind}"
        text = str(value).replace("'", "''")
        return f"'{text}'::{kind}" if kind != "float8" else f"'{value!r}'::float8"

    def _number(self, kind: str, depth: int) -> str:
        one = self._chosen.choice
        smaller = {"int2": ["int2"], "int4": ["int2", "int4"], "int8": ["int4", "int8"]}[kind]
        left, right = self.of(kind, depth), self.of(one(smaller), depth)
        if self._chosen.random() < 0.5:
            left, right = right, left
        if self._chosen.random() < 0.2:
            return f"({one(['-', '+', '@'])} {self.of(kind, depth)})"
        if self._chosen.random() < 0.2 and kind == "int4":
            return one([f"length({self.of('text', depth)})", f"({self.of('bool', depth)})::int4"])
        operator = one(["+", "-", "*", "/", "%"])
        return f"({left} {operator} {right})::{kind}"

    def _int2(self, depth: int) -> str:
        return self._number("int2", depth)

    def _int4(self, depth: int) -> str:
        return self._number("int4", depth)

    def _int8(self, depth: int) -> str:
        return self._number("int8", depth)

    def _numeric(self, depth: int) -> str:
        return f"({self.of(self._chosen.choice(['int4', 'int8']), depth)})::numeric"

    def _text(self, depth: int) -> str:
        kind = self._chosen.choice(["int2", "int4", "int8", "bool"])
        return self._chosen.choice(
            [f"({self.of('text', depth)} || {self.of('text', depth)})",
             f"({self.of(kind, depth)})::text"]
        )  # fmt: skip

    def _bool(self, depth: int) -> str:
        one, kind = self._chosen.choice, self._chosen.choice(list(VALUES))
        left, right = self.of(kind, depth), self.of(kind, depth)
        logic = f"({self.of('bool', depth)} {one(['AND', 'OR'])} {self.of('bool', depth)})"
        return one(
            [
                f"({left} {one(['=', '<>', '<', '<=', '>', '>='])} {right})",
                f"({left} {one(['=', '<>', '<', '<=', '>', '>='])} {right})",
                f"({left} IS {one(['', 'NOT '])}NULL)",
                f"({left} IS {one(['', 'NOT '])}DISTINCT FROM {right})",
                f"({left} {one(['', 'NOT '])}IN ({right}, {self.of(kind, depth)}))",
                f"({left} {one(['', 'NOT '])}BETWEEN {right} AND {self.of(kind, depth)})",
                f"({self.of('bool', depth)} IS {one(['', 'NOT '])}{one(['TRUE', 'FALSE'])})",
                f"(NOT {self.of('bool', depth)})",
                logic,
                logic,
            ]
        )


@pytest.mark.parametrize("seed", [1, 2])
def test_drawn_expressions_have_the_values_of_the_compiled_python(
    session: SparkSession, seed: int
) -> None:
    drawing = Drawing(seed)
    kinds = list(VALUES)
    expressions: list[Expression] = []
    refused = 0
    while len(expressions) < 150:
        text = drawing.of(kinds[len(expressions) % len(kinds)], 3)
        try:
            expressions.append(compiled(text))
        except (NotTheSame, SqlError):  # constants that fail, and such
            refused += 1
    assert refused < 100
    assert differences(session, expressions, drawn_rows(80, seed)) == []


@pytest.mark.soak
def test_a_guard_keeps_what_it_guards_from_failing(session: SparkSession) -> None:
    """Whatever Spark's optimizer makes of it: the parts run in the order of the query."""
    guarded = [
        "a <> 0 AND 10 / a > 1 AND 10 / a < 20",
        "a = b AND b <> 0 AND 10 / a > 0",
        "a = b AND a <> 0 AND 10 / a > 0",
        "a IS NOT NULL AND a > 0 AND a < 100 AND a * 1000 > 5 AND c = d AND c <> 0 AND 7 / d > 0",
        "CASE WHEN a = 0 THEN FALSE ELSE 10 / a > 0 END",
        "a = b AND 10 / a > 0",
        "10 / a > 1 AND a = b",
    ]
    drawn = [Drawing(number).of("bool", 3) for number in range(80)]
    for text in [*guarded, *drawn]:
        try:
            made = condition(text)
        except (NotTheSame, SqlError):
            assert text in drawn
            continue
        rows = [row for row in all_pairs() if made.answer(row)[0]]
        expected = [made.answer(row) for row in rows]
        assert len(rows) > 90 or text in drawn
        right = sum(value is True for _, value in expected)
        given = frame(session, rows)
        assert given.where(made.sql).count() == right, text
        chosen = given.select(F.expr(f"CASE WHEN {made.sql} THEN 1 END").alias("one")).toArrow()
        assert chosen.num_rows - chosen["one"].null_count == right, text
