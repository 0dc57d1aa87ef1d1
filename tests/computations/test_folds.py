"""Folds: several values at once are the same as one after the other."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import reduce
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millwheel.computations import (
    Fold,
    collect,
    count,
    distinct,
    first,
    last,
    maximum,
    mean,
    minimum,
    quantiles,
    top,
    total,
)
from tests.support.drawing import examples


def same(value: Any) -> Any:
    return value


def moment(value: int) -> datetime:
    return datetime(2024, 1, 1, tzinfo=UTC) + timedelta(seconds=value % 3)


small = st.integers(-5, 5)
FOLDS: dict[str, tuple[Fold[Any, Any, Any], st.SearchStrategy[Any]]] = {
    "count": (count, small),
    "total": (total(same), small),
    "total of large ones": (total(same), st.integers()),
    "total of floats": (total(same, 0.0), st.one_of(small, st.floats(-1e9, 1e9))),
    "total of decimals": (
        total(same, Decimal(0)), st.decimals(-9, 9, places=3, allow_nan=False),
    ),
    "mean": (mean(same), st.floats(-1e9, 1e9)),
    "minimum": (minimum(same, int), small),
    "maximum": (maximum(same, int), small),
    "minimum of some": (minimum(lambda value: value or None, int), small),
    "maximum of equal ones": (maximum(same, float), st.sampled_from([0.0, -0.0, 1, 1.0])),
    "first": (first(moment, int), small),
    "last": (last(moment, int), small),
    "top": (top(3, lambda value: value % 4, int), st.integers(0, 30)),
    "collect": (collect(int), small),
    "distinct": (distinct(same), st.integers(0, 10_000)),
}  # fmt: skip


@pytest.mark.parametrize("name", FOLDS)
@examples(60)
@given(data=st.data())
def test_values_at_once_are_as_one_after_the_other(name: str, data: st.DataObject) -> None:
    fold, values = FOLDS[name]
    some = st.lists(values, min_size=1, max_size=12)
    before = reduce(fold.add, data.draw(some), fold.init())
    for start in (fold.init(), before):
        more = data.draw(some)
        at_once, in_turn = fold.added(start, more), reduce(fold.add, more, start)
        assert repr(fold.result(at_once)) == repr(fold.result(in_turn))
        if name != "distinct":
            assert repr(at_once) == repr(in_turn)


@pytest.mark.parametrize(
    ("fold", "values", "error"),
    [
        (total(same), [1, "2"], TypeError),
        (total(same), [1, 2.5], TypeError),
        (minimum(same, float), [1.0, float("nan")], ValueError),
        (top(2, same, float), [1.0, float("nan")], ValueError),
        (quantiles(same), [1.0, float("nan")], ValueError),
    ],
)
def test_a_value_that_is_refused_is_refused_among_others(
    fold: Fold[Any, Any, Any], values: list[Any], error: type[Exception]
) -> None:
    for added in (fold.added, lambda start, more: reduce(fold.add, more, start)):
        with pytest.raises(error):
            added(fold.init(), values)


def test_a_fold_of_ones_own_needs_only_one_at_a_time() -> None:
    def longest(one: str, other: str) -> str:
        return max(one, other, key=len)

    fold = Fold(str, longest, same, str)
    assert fold.added("ab", ["c", "def", "gh"]) == "def"
