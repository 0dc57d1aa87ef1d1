"""Folds: incremental aggregations of the values of a window.

========================================  =====================================================
`count`                                   the number of values
`total`, `mean`                           of a number taken from each value
`minimum`, `maximum`                      of anything with an order, taken from each value
`first`, `last`                           the value with the least / greatest time
`top`                                     the k values with the greatest scores
`collect`                                 all values
`distinct`, `quantiles`                   approximate, by sketches: the extra ``sketches``
========================================  =====================================================

All can merge. Results do not depend on the order of the records, unless it is said so.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from functools import reduce
from typing import Any, Generic, TypeVar, cast

import msgspec

from millwheel.core.distribution import install
from millwheel.core.equality import Sum, canonical_json, exact_sum
from millwheel.core.functions import check_function
from millwheel.errors import GraphError
from millwheel.windows import micros_of

V = TypeVar("V")
A = TypeVar("A")
R = TypeVar("R")
T = TypeVar("T")
N = TypeVar("N", int, float, Decimal)


@dataclass(frozen=True)
class Fold(Generic[V, A, R]):
    """An incremental aggregation. Make one of four functions and a type for your own.

    ```python
    longest: Fold[Order, str, str] = Fold(
        init=lambda: "",
        add=lambda found, order: max(found, order.item, key=len),
        result=lambda found: found,
        accumulator=str,
        merge=lambda one, other: max(one, other, key=len),
    )
    ```

    Attributes:
        init: returns the accumulator of an empty window.
        add: returns the accumulator with one more value.
        result: returns the value of the window's pane; called only after at least one `add`.
        accumulator: the accumulator's type, which must be storable as JSON.
        merge: combines two accumulators, the earlier one first. Sessions need it; it makes sliding
            windows cheap (see `Windowed`).
        add_all: as `add` for each of several values, in their order, if that is cheaper at once.
        version: another one confirms a change of the functions in a deployed pipeline, for windows
            that are open (``docs/howto/compute/change-steps.md``).
    """

    init: Callable[[], A]
    add: Callable[[A, V], A]
    result: Callable[[A], R]
    accumulator: Any
    merge: Callable[[A, A], A] | None = None
    version: int = 1
    add_all: Callable[[A, Sequence[V]], A] | None = None

    def added(self, accumulator: A, values: Sequence[V]) -> A:
        """The accumulator with more values, one after the other.

        ```python
        assert count.added(2, [TEA, MILK]) == 4
        ```
        """
        if self.add_all is not None:
            return self.add_all(accumulator, values)
        return reduce(self.add, values, accumulator)

    @property
    def functions(self) -> tuple[int, tuple[Callable[..., Any] | None, ...]]:
        """Its version and functions, as a deploy compares them."""
        return self.version, (self.init, self.add, self.result, self.merge)


def _add_one(accumulator: int, value: object) -> int:
    return accumulator + 1


def _same(accumulator: T) -> T:
    return accumulator


def _sum(one: Any, other: Any) -> Any:
    return one + other


def _count_all(accumulator: int, values: Sequence[object]) -> int:
    return accumulator + len(values)


NUMBER = "returns the number of a value"

count: Fold[Any, int, int] = Fold(int, _add_one, _same, int, _sum, add_all=_count_all)
"""The number of values."""


def total(of: Callable[[V], N], zero: N = 0) -> Fold[V, N, N]:  # type: ignore[assignment]
    """The sum of a number taken from each value.

    ```python
    from millwheel.windows import Pane, Tumbling

    SUMS = Stream("sums", Pane[int])
    spent = Windowed(Tumbling(hours=1), total(cents), to=SUMS)
    pipeline.add(spent, ORDERS.by(customer))
    ```

    Args:
        of: returns the number of a value.
        zero: determines the type of the numbers: ``0``, ``0.0`` or ``Decimal(0)``. The last digits
            of a sum of floats depend on the order of the records; a sum of decimals has all its
            digits, not Python's 28. Both accept integers as well; any other mixture fails the
            record.
    """
    check_function(of, "total(...): the number", NUMBER)
    kind = type(zero)
    if kind is float:
        zero = cast(Any, zero) + 0.0  # not minus zero
    plus: Callable[[Any, Any], Any] = exact_sum if kind is Decimal else _sum
    kinds: tuple[type, ...] = (kind, int)

    def add(sum_: N, value: V) -> N:
        number = of(value)
        if type(number) is not kind and not isinstance(number, kinds):
            raise TypeError(
                f"total was given {number!r:.80}, but its zero is {zero!r}, so it adds up numbers "
                f"of type {kind.__name__}. {_other_zero(number)}"
            )
        return cast(N, plus(sum_, number))

    def add_all(sum_: N, values: Sequence[V]) -> N:
        numbers: list[Any] = list(map(of, values))
        if any(type(number) is not kind for number in numbers):
            return reduce(add, values, sum_)
        # Not the sum of floats, which rounds once, not after each value.
        added = sum(numbers, cast(Any, sum_)) if kind is int else reduce(plus, numbers, sum_)  # type: ignore[comparison-overlap]
        return cast(N, added)

    accumulator = Sum if kind is float else kind
    return Fold(lambda: zero, add, _same, accumulator, plus, add_all=add_all)


def _other_zero(number: object) -> str:
    for kind, zero in ((float, "0.0"), (Decimal, "Decimal(0)")):
        if isinstance(number, kind):
            return f"Write total(..., zero={zero})"
    return f"A {type(number).__name__} is not a number that can be added up"


class Mean(msgspec.Struct, frozen=True):
    sum: Sum = 0.0
    count: int = 0


def mean(of: Callable[[V], float]) -> Fold[V, Mean, float]:
    """The arithmetic mean of a number taken from each value.

    ```python
    from millwheel.windows import Pane, Tumbling

    MEANS = Stream("means", Pane[float])
    price = Windowed(Tumbling(hours=1), mean(cents), to=MEANS)
    pipeline.add(price, ORDERS.by(lambda order: order.item))
    ```
    """
    check_function(of, "mean(...): the number", NUMBER)
    return Fold(
        Mean,
        lambda kept, value: Mean(kept.sum + of(value), kept.count + 1),
        lambda kept: kept.sum / kept.count,
        Mean,
        lambda one, other: Mean(one.sum + other.sum, one.count + other.count),
        add_all=lambda kept, values: Mean(
            reduce(_sum, map(of, values), kept.sum), kept.count + len(values)
        ),
    )


def minimum(of: Callable[[V], T], kind: type[T]) -> Fold[V, T | None, T]:
    """The least of the results of `of`.

    ```python
    from millwheel.windows import Pane, Tumbling

    CHEAPEST = Stream("cheapest", Pane[int])
    cheapest = Windowed(Tumbling(hours=1), minimum(cents, int), to=CHEAPEST)
    pipeline.add(cheapest, ORDERS.by(customer))
    ```

    Args:
        of: returns something with an order for each value.
        kind: the type of these results, which must be storable as JSON and have an order.
    """
    return _best(_ordered("minimum", of), kind, lambda new, old: new < old, min)  # type: ignore[operator]


def maximum(of: Callable[[V], T], kind: type[T]) -> Fold[V, T | None, T]:
    """The greatest of the results of `of`; `kind` as with `minimum`.

    ```python
    from millwheel.windows import Pane, Tumbling

    DEAREST = Stream("dearest", Pane[int])
    dearest = Windowed(Tumbling(hours=1), maximum(cents, int), to=DEAREST)
    pipeline.add(dearest, ORDERS.by(customer))
    ```
    """
    return _best(_ordered("maximum", of), kind, lambda new, old: new > old, max)  # type: ignore[operator]


def _ordered(fold: str, of: Callable[[V], T]) -> Callable[[V], T]:
    """`of`, with an error for NaN, which has no order: the result would depend on that of the
    records."""
    check_function(of, f"{fold}(...): the number", NUMBER)

    def taken(value: V) -> T:
        found = of(value)
        if found != found:
            raise ValueError(f"{fold} was given {found!r}, which cannot be compared")
        return found

    return taken


def _best(
    of: Callable[[V], T],
    kind: type[T],
    better: Callable[[T, T], bool],
    best: Any = None,
) -> Fold[V, T | None, T]:
    """`best` takes a list and returns the first of the best; None: they are compared in turn."""

    def merge(one: T | None, other: T | None) -> T | None:
        if one is None or (other is not None and better(other, one)):
            return other
        return one

    def add_all(kept: T | None, values: Sequence[V]) -> T | None:
        found = [each for each in map(of, values) if each is not None]
        return merge(kept, best(found)) if found else kept

    return Fold(
        lambda: None,
        lambda kept, value: merge(kept, of(value)),
        lambda kept: cast(T, kept),
        kind | None,
        merge,
        add_all=None if best is None else add_all,
    )


class Timed(msgspec.Struct, Generic[V], frozen=True):
    """A value and its time in microseconds, the accumulator of `first` and `last`."""

    micros: int
    value: V


def first(at: Callable[[V], datetime], kind: type[V]) -> Fold[V, Timed[V] | None, V]:
    """The value with the least time; of several, the one that arrived first.

    ```python
    from millwheel.windows import Pane, Tumbling

    class Reading(Struct):
        celsius: float
        at: datetime

    READINGS, FIRST = Stream("readings", Reading), Stream("first", Pane[Reading])
    morning = Windowed(Tumbling(days=1), first(lambda reading: reading.at, Reading), to=FIRST)
    ```

    Args:
        at: returns a value's time, an aware datetime; a naive one fails the record.
        kind: the values' type.
    """
    return _timed(at, kind, lambda new, old: new.micros < old.micros)


def last(at: Callable[[V], datetime], kind: type[V]) -> Fold[V, Timed[V] | None, V]:
    """The value with the greatest time; of several, the one that arrived last.

    ```python
    from millwheel.windows import Pane, Tumbling

    class Reading(Struct):
        celsius: float
        at: datetime

    READINGS, LAST = Stream("readings", Reading), Stream("last", Pane[Reading])
    evening = Windowed(Tumbling(days=1), last(lambda reading: reading.at, Reading), to=LAST)
    ```
    """
    return _timed(at, kind, lambda new, old: new.micros >= old.micros)


def _timed(
    at: Callable[[V], datetime], kind: type[V], better: Callable[[Timed[V], Timed[V]], bool]
) -> Fold[V, Timed[V] | None, V]:
    check_function(at, "first(...) or last(...): the time", "returns the time of a value")
    timed: Any = Timed[kind]  # type: ignore[valid-type]
    best = _best(lambda value: Timed(micros_of(at(value)), value), timed, better)
    return Fold(
        best.init, best.add, lambda kept: cast("Timed[V]", kept).value, timed | None, best.merge
    )


class Scored(msgspec.Struct, Generic[V], frozen=True):
    score: float
    value: V


def top(k: int, by: Callable[[V], float], kind: type[V]) -> Fold[V, list[Scored[V]], list[V]]:
    """The `k` values with the greatest scores, greatest first; equal ones in the order of their
    JSON.

    ```python
    from millwheel.windows import Pane, Tumbling

    LARGEST = Stream("largest", Pane[list[Order]])
    largest = Windowed(
        Tumbling(hours=1), top(3, by=cents, kind=Order), to=LARGEST
    )
    ```

    Args:
        k: the number of values to keep.
        by: returns a value's score, a finite number.
        kind: the values' type.

    Raises:
        GraphError: `k` is not a whole number above zero.
    """
    if not isinstance(k, int) or k < 1:
        raise GraphError(f"top needs a whole number of values above zero, not {k!r}")

    score_of = _ordered("top", by)

    def rank(scored: Scored[V]) -> tuple[float, bytes]:
        return -scored.score, msgspec.json.encode(scored.value)

    def merge(one: list[Scored[V]], other: list[Scored[V]]) -> list[Scored[V]]:
        return sorted(one + other, key=rank)[:k]

    def add(kept: list[Scored[V]], value: V) -> list[Scored[V]]:
        score = score_of(value)
        if len(kept) == k and score < kept[-1].score:
            return kept
        return merge(kept, [Scored(score, value)])

    def add_all(kept: list[Scored[V]], values: Sequence[V]) -> list[Scored[V]]:
        return merge(kept, [Scored(score_of(value), value) for value in values])

    return Fold(
        list,
        add,
        lambda kept: [scored.value for scored in kept],
        list[Scored[kind]],  # type: ignore[valid-type]
        merge,
        add_all=add_all,
    )


def collect(kind: type[V]) -> Fold[V, list[V], list[V]]:
    """All values, in the order in which they arrived.

    ```python
    from millwheel.windows import Pane, Session

    VISITS = Stream("visits", Pane[list[Order]])
    visits = Windowed(Session(timedelta(minutes=30)), collect(Order), to=VISITS)
    pipeline.add(visits, ORDERS.by(customer))
    ```

    Each record writes the window's whole list again: for windows of up to some hundred values, and
    not beyond ``Settings.max_state_bytes``.
    """
    return Fold(
        list,
        lambda kept, value: [*kept, value],
        list,
        list[kind],  # type: ignore[valid-type]
        lambda one, other: one + other,
        add_all=lambda kept, values: [*kept, *values],
    )


# -- sketches ----------------------------------------------------------------------------------


class Sketch(msgspec.Struct, frozen=True):
    """A sketch in the format of Apache DataSketches, which its Java and C++ libraries share.

    In JSON, and so in SQL, `image` is base64: ``decode(value->>'image', 'base64')``.
    """

    image: bytes = b""
    """The serialized sketch; empty before the first value."""


DISTINCT_LG = 12
"""2**12 registers of four bits: 2 kB, and a standard error of 1.6 % (less below 1,000 values)."""

QUANTILES_K = 200
"""The error of a rank is at most 1.33 % with 99 % confidence; a sketch takes about 4 kB."""


def distinct(of: Callable[[V], Any]) -> Fold[V, Sketch, int]:
    """The approximate number of different results of `of` (HyperLogLog, ± 1.6 %).

    ```python
    from millwheel.windows import Pane, Tumbling

    KINDS = Stream("kinds", Pane[int])
    kinds = Windowed(Tumbling(days=1), distinct(customer), to=KINDS)
    pipeline.add(kinds, ORDERS.by(customer))
    ```

    Args:
        of: returns anything that can be JSON. Equal values count once: 5 and 5.0, decimals of 5 and
            5.00, -0.0 and 0.0, one instant in two zones. ``1`` and ``"1"`` differ.

    Raises:
        GraphError: the extra ``sketches`` is not installed.
    """
    check_function(of, "distinct(...): the part", "returns the part of a value that is counted")
    library = _library("distinct")

    def read(kept: Sketch) -> Any:
        return library.hll_sketch.deserialize(kept.image)

    def add(kept: Sketch, value: V) -> Sketch:
        return add_all(kept, [value])

    def add_all(kept: Sketch, values: Sequence[V]) -> Sketch:
        sketch = read(kept) if kept.image else library.hll_sketch(DISTINCT_LG, library.HLL_4)
        for value in values:
            sketch.update(canonical_json(of(value)).decode())
        return Sketch(sketch.serialize_compact())

    def merge(one: Sketch, other: Sketch) -> Sketch:
        if not one.image or not other.image:
            return one if one.image else other
        union = library.hll_union(DISTINCT_LG)
        union.update(read(one))
        union.update(read(other))
        return Sketch(union.get_result(library.HLL_4).serialize_compact())

    return Fold(
        Sketch,
        add,
        lambda kept: round(read(kept).get_estimate()) if kept.image else 0,
        Sketch,
        merge,
        add_all=add_all,
    )


def quantiles(
    of: Callable[[V], float], at: Sequence[float] = (0.5, 0.9, 0.99)
) -> Fold[V, Sketch, list[float]]:
    """Approximate quantiles of a number taken from each value (KLL, rank ± 1.33 %).

    ```python
    from millwheel.windows import Pane, Tumbling

    PRICES = Stream("prices", Pane[list[float]])
    prices = Windowed(
        Tumbling(days=1), quantiles(cents, at=(0.5, 0.95)), to=PRICES
    )
    ```

    The result is exact for up to some hundred values, and at 0 and 1. Otherwise the sketch is
    randomized: after a crash, the result may differ within the same error.

    Args:
        of: returns the number of a value.
        at: the quantiles, from 0 (the least) to 1 (the greatest), in the order of the result.

    Raises:
        GraphError: a quantile outside 0 … 1; the extra ``sketches`` is not installed.
    """
    ranks = list(at) if isinstance(at, Sequence) else [at]
    if not ranks or not all(isinstance(rank, (int, float)) and 0 <= rank <= 1 for rank in ranks):
        raise GraphError(
            "quantiles takes a list of numbers between 0 and 1, for example (0.5, 0.99), "
            f"not {at!r}"
        )
    library = _library("quantiles")
    number_of = _ordered("quantiles", of)

    def read(kept: Sketch) -> Any:
        kind = library.kll_doubles_sketch
        return kind.deserialize(kept.image) if kept.image else kind(QUANTILES_K)

    def add(kept: Sketch, value: V) -> Sketch:
        return add_all(kept, [value])

    def add_all(kept: Sketch, values: Sequence[V]) -> Sketch:
        sketch = read(kept)
        for value in values:
            sketch.update(number_of(value))
        return Sketch(sketch.serialize())

    def merge(one: Sketch, other: Sketch) -> Sketch:
        sketch = read(one)
        sketch.merge(read(other))
        return Sketch(sketch.serialize())

    def quantile(sketch: Any, rank: float) -> float:
        if rank == 0:  # least and greatest value are kept separately and are exact
            return float(sketch.get_min_value())
        return float(sketch.get_max_value() if rank == 1 else sketch.get_quantile(rank))

    return Fold(
        Sketch,
        add,
        lambda kept: [quantile(read(kept), rank) for rank in ranks],
        Sketch,
        merge,
        add_all=add_all,
    )


def _library(fold: str) -> Any:
    try:
        return importlib.import_module("datasketches")
    except ImportError as error:
        raise GraphError(
            f"the fold {fold!r} needs a sketch library that is not installed; {install('sketches')}"
        ) from error
