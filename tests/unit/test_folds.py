"""Folds: equal to a batch answer, whole or merged from parts, through JSON at every step."""

from __future__ import annotations

import math
import statistics
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from importlib.util import find_spec
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millwheel import Pipeline, Stream
from millwheel.computations import (
    Fold,
    Windowed,
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
from millwheel.core.codec import Codec
from millwheel.errors import GraphError, UserCodeError
from millwheel.testing import Harness
from millwheel.windows import Pane, Session, Sliding, Tumbling
from tests.support.examples import examples
from tests.support.pipelines import QUICK, script
from tests.support.values import ITEMS, Item, at, key_of, time_of

WITH_SKETCHES = pytest.mark.skipif(find_spec("datasketches") is None, reason="no datasketches")


def reading_of(item: Item) -> float:
    return item.number / 4


def number_of(item: Item) -> int:
    return item.number


def text_of(item: Item) -> str:
    return item.key


def decimal_of(item: Item) -> Decimal:
    return Decimal(item.number) / 10


def run(fold: Fold[Any, Any, Any], parts: list[list[Any]]) -> Any:
    """The result over all parts; accumulators go to JSON and back after every step, as in a
    store that forgets everything else."""
    codec: Codec[Any] = Codec(fold.accumulator, what="accumulator")

    def stored(accumulator: Any) -> Any:
        return codec.decode(codec.encode(accumulator))

    whole = None
    for part in parts:
        accumulator = stored(fold.init())
        for value in part:
            accumulator = stored(fold.add(accumulator, value))
        if whole is None:
            whole = accumulator
        else:
            assert fold.merge is not None
            whole = stored(fold.merge(whole, accumulator))
    return fold.result(whole)


def score_of(item: Item) -> float:
    return item.number % 7  # with many the same


def best_three(items: list[Item]) -> list[Item]:
    return sorted(items, key=lambda item: (-score_of(item), msgspec.json.encode(item)))[:3]


EXACT: list[tuple[Fold[Item, Any, Any], Callable[[list[Item]], Any]]] = [
    (count, len),
    (total(number_of), lambda items: sum(item.number for item in items)),
    (total(reading_of, 0.0), lambda items: sum(item.number / 4 for item in items)),
    (total(decimal_of, Decimal(0)), lambda items: sum(map(decimal_of, items))),
    (mean(reading_of), lambda items: statistics.fmean(item.number / 4 for item in items)),
    (minimum(number_of, int), lambda items: min(item.number for item in items)),
    (maximum(text_of, str), lambda items: max(item.key for item in items)),
    (minimum(time_of, datetime), lambda items: min(map(time_of, items))),
    (first(time_of, Item), lambda items: min(items, key=time_of)),
    (last(time_of, Item), lambda items: max(reversed(items), key=time_of)),
    (top(3, score_of, Item), best_three),
    (collect(Item), list),
]

items_of = st.lists(
    st.builds(
        Item, st.sampled_from("abc"), st.integers(-(10**9), 10**9), st.integers(0, 20).map(float)
    ),
    min_size=1,
    max_size=20,
)


@settings(max_examples=examples(200), deadline=None, derandomize=True)
@given(items_of, st.lists(st.integers(0, 20), max_size=4).map(sorted))
def test_folds_equal_batch_answers_whole_or_merged(items: list[Item], cuts: list[int]) -> None:
    bounds = [0, *(cut for cut in cuts if cut < len(items)), len(items)]
    parts = [items[start:end] for start, end in pairwise(bounds)]
    for fold, batch in EXACT:
        expected = batch(items)
        for found in (run(fold, [items]), run(fold, parts)):
            if isinstance(expected, float):
                assert math.isclose(found, expected, rel_tol=1e-9, abs_tol=1e-6)
            else:
                assert found == expected


def test_the_order_of_records_does_not_matter_where_scores_are_equal() -> None:
    values = [Item(key, 5, 0) for key in "dacb"]
    fold = top(2, number_of, Item)
    assert run(fold, [values]) == run(fold, [values[::-1]]) == [Item("a", 5, 0), Item("b", 5, 0)]


def test_a_naive_time_fails_its_record() -> None:
    with pytest.raises(ValueError, match="no time zone"):
        run(first(lambda _: datetime(2024, 1, 1), Item), [[Item("a", 1)]])


async def test_a_naive_time_in_a_pipeline_is_told_with_its_key() -> None:
    stream = Stream("firsts", Pane[Item])
    pipeline = Pipeline("folds", settings=QUICK)
    pipeline.inject(ITEMS, script(ITEMS, []), timestamp=time_of)
    fold = first(lambda item: time_of(item).replace(tzinfo=None), Item)
    pipeline.add(Windowed(Tumbling(minutes=1), fold, to=stream), ITEMS.by(key_of))
    with pytest.raises(UserCodeError, match=r"key 'a'.*has no time zone"):
        async with Harness(pipeline) as harness:
            await harness.inject(ITEMS, Item("a", 1))


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda of: minimum(of, float), id="minimum"),
        pytest.param(lambda of: maximum(of, float), id="maximum"),
        pytest.param(lambda of: top(1, of, Item), id="top"),
        pytest.param(lambda of: quantiles(of), id="quantiles", marks=WITH_SKETCHES),
    ],
)
def test_what_has_no_order_fails_its_record(make: Any, order: tuple[int, int]) -> None:
    """Whether it comes first or last; else it would win, or be lost, by that."""
    fold = make(lambda item: [1.0, math.nan][item.number])
    with pytest.raises(ValueError, match=r"was given nan, which cannot be compared"):
        run(fold, [[Item("a", number) for number in order]])


async def test_sums_that_are_no_number_fail_their_record() -> None:
    stream = Stream("sums", Pane[float])
    folds: list[Any] = [total(lambda _: math.nan, 0.0), mean(lambda _: 1e308)]
    for fold in folds:
        pipeline = Pipeline("folds", settings=QUICK)
        pipeline.inject(ITEMS, script(ITEMS, []), timestamp=time_of)
        pipeline.add(Windowed(Tumbling(minutes=1), fold, to=stream), ITEMS.by(key_of))
        with pytest.raises(UserCodeError, match=r"key 'a'.*JSON cannot hold (nan|inf)"):
            async with Harness(pipeline) as harness:
                await harness.inject(ITEMS, Item("a", 1), Item("a", 2))


async def test_a_fold_of_your_own() -> None:
    """Its four functions and a type: here, how far values range."""

    class Range(msgspec.Struct):
        low: int
        high: int

    def add(kept: Range | None, item: Item) -> Range | None:
        return merge(kept, Range(item.number, item.number))

    def merge(one: Range | None, other: Range | None) -> Range | None:
        if one is None or other is None:
            return one or other
        return Range(min(one.low, other.low), max(one.high, other.high))

    def result(kept: Range | None) -> int:
        assert kept is not None
        return kept.high - kept.low

    fold: Fold[Item, Range | None, int] = Fold(lambda: None, add, result, Range | None, merge=merge)
    ranges = Stream("ranges", Pane[int])
    for windows in (
        Tumbling(minutes=1),
        Session(timedelta(seconds=30)),
        Sliding(timedelta(minutes=1), timedelta(seconds=30)),
    ):
        pipeline = Pipeline("folds", settings=QUICK)
        pipeline.inject(ITEMS, script(ITEMS, []), timestamp=time_of)
        pipeline.add(Windowed(windows, fold, to=ranges), ITEMS.by(key_of))
        async with Harness(pipeline) as harness:
            await harness.inject(ITEMS, Item("a", 7, 0), Item("a", 3, 40), Item("a", 5, 20))
            await harness.advance(ITEMS, at(100))
            assert max(pane.value for pane in harness.produced(ranges)) == 4


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: top(0, number_of, Item), "above zero, not 0"),
        (lambda: quantiles(reading_of, ()), "between 0 and 1"),
        (lambda: quantiles(reading_of, (0.5, 1.1)), "between 0 and 1"),
        (lambda: quantiles(reading_of, (float("nan"),)), "between 0 and 1"),
        (lambda: quantiles(reading_of, (-0.1,)), "between 0 and 1"),
        (lambda: quantiles(reading_of, (50,)), r"between 0 and 1.*not \(50,\)"),
        (lambda: quantiles(reading_of, 50), "a list of numbers between 0 and 1.*not 50"),  # type: ignore[arg-type]
        (lambda: quantiles(reading_of, ("a",)), "a list of numbers"),  # type: ignore[arg-type]
        (lambda: top(1.5, number_of, Item), "whole number"),  # type: ignore[arg-type]
    ],
)
def test_what_cannot_be_is_refused_with_the_reason(make: Any, reason: str) -> None:
    with pytest.raises(GraphError, match=reason):
        make()


# -- sketches --------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [distinct, quantiles])
def test_without_its_library_the_extra_is_named(make: Any, monkeypatch: Any) -> None:
    monkeypatch.setitem(sys.modules, "datasketches", None)
    with pytest.raises(GraphError, match=r"pip install 'millwheel-engine\[sketches\]'"):
        make(number_of)


@pytest.mark.parametrize(
    "equal",
    [
        [Decimal(5), Decimal("5.00"), Decimal("0.5E+1")],
        [5, 5.0],
        [0.0, -0.0],
        [datetime(2024, 1, 1, tzinfo=UTC),
         datetime(2024, 1, 1, 2, tzinfo=timezone(timedelta(hours=2)))],
        [{"a": 1, "b": {"x", "y"}}, {"b": {"y", "x"}, "a": 1.0}],
    ],
)  # fmt: skip
def test_distinct_counts_equal_values_once(equal: list[Any]) -> None:
    pytest.importorskip("datasketches")
    fold = distinct(lambda value: value)
    kept = fold.init()
    for value in [*equal, "another"]:
        kept = fold.add(kept, value)
    assert fold.result(kept) == 2


def test_a_total_of_decimals_has_all_its_digits() -> None:
    fold: Fold[Any, Decimal, Decimal] = total(lambda value: value, Decimal(0))
    assert fold.merge is not None
    kept = fold.init()
    large = Decimal("12345678901234567890123456789.01")
    for number in (large, Decimal("0.001"), 1):
        kept = fold.add(kept, number)
    assert fold.merge(kept, Decimal("1E-20")) == Decimal(
        "12345678901234567890123456790.01100000000000000001"
    )


@pytest.mark.parametrize("parts", [1, 7])
@pytest.mark.parametrize("size", [1, 50, 1000, 20_000])
def test_distinct_is_close(size: int, parts: int) -> None:
    """Five standard errors; each thing comes twice, and 1 is not "1"."""
    pytest.importorskip("datasketches")
    fold = distinct(lambda value: value)
    values: list[Any] = [(n if n % 2 else str(n - 1)) for n in range(size)] * 2
    exact = len({(type(v), v) for v in values})
    pieces = [values[n::parts] for n in range(parts) if values[n::parts]]
    found = run(fold, pieces)
    assert abs(found - exact) <= (0 if size < 100 else 5 * 0.0163 * exact)
    kept = fold.init()
    for value in values:
        kept = fold.add(kept, value)
    assert len(kept.image) < 2_500


@pytest.mark.parametrize("parts", [1, 7])
def test_quantiles_are_close(parts: int) -> None:
    """The rank of what is found is off by less than two percent."""
    pytest.importorskip("datasketches")
    size = 20_000
    values = [Item("a", (n * 7919) % size) for n in range(size)]
    fold = quantiles(number_of, at=(0.0, 0.1, 0.5, 0.99, 1.0))
    found = run(fold, [values[n::parts] for n in range(parts)])
    assert (found[0], found[-1]) == (0, size - 1)
    for asked, value in zip((0.1, 0.5, 0.99), found[1:-1], strict=True):
        assert abs(value / size - asked) < 0.02 + 1 / size


def test_quantiles_of_few_values_are_exact() -> None:
    pytest.importorskip("datasketches")
    values = [Item("a", n) for n in (5, 1, 4, 2, 3)]
    fold = quantiles(number_of, at=(0, 0.5, 1))
    assert run(fold, [values]) == run(fold, [values[:2], [], values[2:]]) == [1.0, 3.0, 5.0]


async def test_sketches_live_in_a_pipeline() -> None:
    pytest.importorskip("datasketches")
    keys = Stream("keys", Pane[int])
    pipeline = Pipeline("folds", settings=QUICK)
    pipeline.inject(ITEMS, script(ITEMS, []), timestamp=time_of)
    windows = Sliding(timedelta(minutes=2), timedelta(minutes=1))
    pipeline.add(Windowed(windows, distinct(number_of), to=keys), ITEMS.by(key_of))
    async with Harness(pipeline) as harness:
        await harness.inject(ITEMS, *(Item("a", n % 5, 10 * n) for n in range(10)))
        await harness.advance(ITEMS, at(300).astimezone(UTC))
        assert [pane.value for pane in harness.produced(keys)] == [5, 5, 4]


@pytest.mark.parametrize(
    ("zero", "number", "told"),
    [
        (0, 0.5, r"total was given 0\.5, .* of type int\. Write total\(\.\.\., zero=0\.0\)"),
        (0, Decimal("0.5"), r"of type int\. Write total\(\.\.\., zero=Decimal\(0\)\)"),
        (0.0, Decimal("0.5"), r"of type float\. Write total\(\.\.\., zero=Decimal\(0\)\)"),
        (Decimal(0), 0.5, r"of type Decimal\. Write total\(\.\.\., zero=0\.0\)"),
        (0, "a", "A str is not a number"),
        (0.0, None, "A NoneType is not a number"),
    ],
)
def test_a_total_says_which_zero_its_numbers_need(zero: Any, number: Any, told: str) -> None:
    fold = total(lambda value: value, zero=zero)
    with pytest.raises(TypeError, match=told):
        fold.add(fold.init(), number)


@pytest.mark.parametrize("zero", [0, 0.0, Decimal(0)])
def test_a_total_takes_whole_numbers_whatever_its_zero(zero: Any) -> None:
    fold = total(lambda value: value, zero=zero)
    assert fold.add(fold.init(), 3) == 3


async def test_a_total_of_floats_without_a_zero_of_theirs_is_told_in_a_pipeline() -> None:
    sums = Stream("sums", Pane[int])
    pipeline = Pipeline("sums", settings=QUICK)
    pipeline.inject(ITEMS, script(ITEMS, []), timestamp=time_of)
    fold: Fold[Any, Any, Any] = total(reading_of)
    pipeline.add(Windowed(Tumbling(seconds=10), fold, to=sums), ITEMS.by(key_of))
    async with Harness(pipeline) as harness:
        with pytest.raises(UserCodeError, match=r"Write total\(\.\.\., zero=0\.0\)"):
            await harness.inject(ITEMS, Item("a", 1))
