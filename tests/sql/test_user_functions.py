"""Functions of the user in queries."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from millwheel import sql
from millwheel.errors import GraphError, SqlError
from millwheel.sql.steps import Loop
from millwheel.testing import Harness
from tests.sql.answers import PAYMENTS, Payment, pipeline_of, rows_of
from tests.sql.rows import PAID, second


@sql.function
def letters_of(text: str, letter: str) -> int:
    return text.count(letter)


@sql.function
def described(value: int | None, note: str | None) -> str | None:
    return None if value is None and note is None else f"{value} {note}"


@sql.function
def half(value: float) -> float:
    return value / 2


@sql.function
def first_words(texts: list[str]) -> list[str]:
    return [text.split()[0] for text in texts if text]


@sql.function
def fails(value: int) -> int:
    raise RuntimeError(f"no {value}")


async def test_null_makes_null_unless_the_function_takes_it() -> None:
    found = await rows_of(
        "INSERT INTO r SELECT letters_of(note, 'e') AS a, letters_of(account, 'n') AS b, "
        "described(fee, note) AS c, half(cents) AS d, half(price) AS e, "
        "first_words(ARRAY[account, note]) AS f FROM payments",
        PAID[:2],
    )
    assert found == [
        (1, 2, "3 tea", 150.0, 1.5, ("ann", "tea")),
        (None, 0, None, -10.0, 0.25, ("bob",)),
    ]


async def test_a_function_may_be_in_a_condition_and_a_group() -> None:
    found = await rows_of(
        "INSERT INTO r SELECT letters_of(account, 'n') AS n, window_end, count(*) AS c FROM "
        "TUMBLE(payments, at, INTERVAL '1 hour') WHERE letters_of(account, 'a') > 0 GROUP BY 1, 2",
        PAID,
    )
    assert [(n, c) for n, _, c in found] == [(2, 3)]


async def test_a_record_on_which_it_fails_becomes_a_dead_letter() -> None:
    pipeline, result = pipeline_of(
        "INSERT INTO r SELECT fails(fee) AS x FROM payments", on_error="dead_letter"
    )
    async with Harness(pipeline) as harness:
        rows = [Payment("ann", second(1), 1, 7), Payment("ann", second(2), 1)]
        await harness.inject(PAYMENTS, *rows)
        assert [row.x for row in harness.produced(result)] == [None]
        (letter,) = harness.dead_letters
        assert "no 7" in letter.error


@pytest.mark.parametrize(
    ("call", "says"),
    [
        ("letters_of(cents, 'x')", "letters_of(bigint, unknown) does not exist"),
        ("letters_of(account)", "letters_of(text) does not exist"),
        ("letters_off(account)", "Did you mean letters_of?"),
    ],
)
def test_wrong_arguments_are_refused(call: str, says: str) -> None:
    with pytest.raises(SqlError) as raised:
        pipeline_of(f"INSERT INTO r SELECT {call} FROM payments")
    assert says in str(raised.value)


def _made(name: str, annotations: dict[str, Any], *, value: Any = None) -> Callable[..., Any]:
    def given(x: Any) -> Any:
        return value

    given.__name__ = given.__qualname__ = name
    given.__annotations__ = annotations
    return given


@pytest.mark.parametrize(
    ("name", "annotations", "says"),
    [
        ("abs", {"x": int, "return": int}, "Postgres has a function abs"),
        ("half", {"x": int, "return": int}, "has a function half"),
        ("unsaid", {"return": int}, "x has no annotation"),
        ("endless", {"x": int}, "the result has no annotation"),
        ("odd", {"x": complex, "return": int}, "no type of SQL"),
    ],
)
def test_functions_that_cannot_be_called_are_refused(
    name: str, annotations: dict[str, Any], says: str
) -> None:
    given = _made(name, annotations)
    given.__module__ = "elsewhere"
    with pytest.raises(GraphError, match=says):
        sql.function(given)


def test_other_forms_are_refused() -> None:
    async def later(x: int) -> int:
        return x

    def some(x: int, y: int | None) -> int:
        return x

    def named(*, x: int) -> int:
        return x

    for given, says in ((later, "without await"), (some, "or none"), (named, "has no place")):
        with pytest.raises(GraphError, match=says):
            sql.function(given)


def test_a_deploy_sees_other_code() -> None:
    def meaning() -> str:
        pipeline, _ = pipeline_of("INSERT INTO r SELECT changing(cents) AS x FROM payments")
        loop = pipeline.nodes["make_r"].computation
        assert isinstance(loop, Loop)
        return str(loop.rules["query"])

    sql.function(_made("changing", {"x": int, "return": int}, value=1))
    before = meaning()
    sql.function(_made("changing", {"x": int, "return": int}, value=1))
    assert meaning() == before
    sql.function(_made("changing", {"x": int, "return": int}, value=2))
    assert meaning() != before
