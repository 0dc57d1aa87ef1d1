"""An argument that is written out gives the result that it gives as a column."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from millwheel.sql.functions import BY_CONSTANT, ValueRefused
from millwheel.sql.functions.numbers.integers import remainder
from millwheel.sql.functions.times.intervals import IntervalValue
from millwheel.sql.functions.times.operators import minus, plus
from tests.support.examples import examples

LONG = st.integers(-(2**63), 2**63 - 1)
WHOLE = st.integers(-(2**31), 2**31 - 1)
SPANS = st.builds(
    IntervalValue,
    st.sampled_from([0, 0, 1, -13]),
    st.one_of(st.integers(-40, 40), WHOLE),
    st.one_of(st.integers(-(10**12), 10**12), LONG),
)
MOMENTS = st.datetimes(timezones=st.just(UTC)) | st.sampled_from(
    [datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)]
)


def _result(function: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return function(*arguments)
    except ValueRefused as error:
        return str(error)


def test_these_functions_have_a_form_for_a_constant() -> None:
    assert set(BY_CONSTANT) == {remainder, plus, minus}


@settings(max_examples=examples(500), deadline=None)
@given(value=LONG, divisor=LONG | st.integers(-3, 60))
def test_remainders(value: int, divisor: int) -> None:
    fast = BY_CONSTANT[remainder](divisor)
    assert fast is None or fast(value) == _result(remainder, value, divisor)
    assert (fast is None) == (divisor <= 0)


@settings(max_examples=examples(500), deadline=None)
@given(moment=MOMENTS, span=SPANS)
def test_sums_of_a_time_and_an_interval(moment: datetime, span: IntervalValue) -> None:
    for function in (plus, minus):
        fast = BY_CONSTANT[function](span)
        assert fast is None or _result(fast, moment) == _result(function, moment, span)
