"""The arithmetic of sums, variances and regressions, in the steps of Postgres."""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import Decimal
from typing import Any

from millwheel.sql.accumulating.plans import ZERO
from millwheel.sql.functions import FUNCTIONS, ValueRefused
from millwheel.sql.functions.numbers.decimals import (
    WIDE,
    quotient,
    scale_of_quotient,
    stored,
)
from millwheel.sql.functions.numbers.floats import OVERFLOW, divide
from millwheel.sql.functions.numbers.powers import root

Moments = tuple[int, float, float]
"""Number, sum, and sum of the squared differences from the mean."""

PairMoments = tuple[int, float, float, float, float, float]
"""Number; sum and squared differences of X; those of Y; the products of both differences."""


def _numeric(name: str) -> Callable[..., Decimal]:
    function = FUNCTIONS[name].function
    assert function is not None
    return function


numeric_add = _numeric("numeric_add(numeric,numeric)")
_numeric_divide = _numeric("numeric_div(numeric,numeric)")


def square(value: Decimal) -> Decimal:
    """The square of a decimal, with all its digits."""
    return WIDE.multiply(value, value)


def numeric_mean(total: Any, number: int) -> Decimal:
    return _numeric_divide(Decimal(total), Decimal(number))


def float_mean(total: float, number: int) -> float:
    return total / number


def numeric_spread(
    number: int, total: Any, squares: Any, is_sample: bool, is_root: bool
) -> Decimal | None:
    """Variance of exact numbers, or its root.

    Args:
        squares: the sum of the squares.
        is_sample: whether the divisor is one less than the number.
    """
    if number <= is_sample:
        return None
    above = WIDE.subtract(WIDE.multiply(Decimal(number), Decimal(squares)), square(Decimal(total)))
    if above <= 0:
        return ZERO
    below = Decimal(number * (number - is_sample))
    scale = scale_of_quotient(above, below)
    variance = quotient(above, below, scale)
    return stored(root(variance, scale) if is_root else variance)


# -- floats: the algorithm of Youngs and Cramer ---------------------------------------------------


def finite(value: float) -> float:
    """Raises:
    ValueRefused: it is infinite.
    """
    if math.isfinite(value):
        return value
    raise ValueRefused(OVERFLOW)


def with_value(number: int, total: float, squares: float, value: float) -> Moments:
    """Moments with one more value."""
    total = finite(total + value)
    if number:
        difference = value * (number + 1) - total
        squares = finite(squares + difference * difference / ((number + 1) * number))
    return number + 1, total, squares


def combined(
    number: int, total: float, squares: float, other: int, more: float, others: float
) -> Moments:
    """Moments of two sets of values."""
    if not number or not other:
        return (other, more, others) if not number else (number, total, squares)
    both = number + other
    difference = total / number - more / other
    squares = squares + others + number * other * difference * difference / both
    return both, finite(total + more), finite(squares)


def float_spread(number: int, squares: float, is_sample: bool, is_root: bool) -> float | None:
    """Variance of floats, or its root."""
    if number <= is_sample:
        return None
    variance = squares / (number - is_sample)
    return math.sqrt(variance) if is_root else variance


def with_pair(moments: PairMoments, y: float, x: float) -> PairMoments:
    """Moments with one more pair."""
    number, sum_x, square_x, sum_y, square_y, product = moments
    sum_x, sum_y = finite(sum_x + x), finite(sum_y + y)
    if number:
        of_x, of_y = x * (number + 1) - sum_x, y * (number + 1) - sum_y
        scale = 1.0 / ((number + 1) * number)
        square_x = finite(square_x + of_x * of_x * scale)
        square_y = finite(square_y + of_y * of_y * scale)
        product = finite(product + of_x * of_y * scale)
    return number + 1, sum_x, square_x, sum_y, square_y, product


def combined_pairs(moments: PairMoments, others: PairMoments) -> PairMoments:
    """Moments of two sets of pairs."""
    if not moments[0] or not others[0]:
        return moments if moments[0] else others
    number, sum_x, square_x, sum_y, square_y, product = moments
    other, more_x, others_x, more_y, others_y, products = others
    both = number + other
    of_x, of_y = sum_x / number - more_x / other, sum_y / number - more_y / other
    weight = number * other
    return (
        both,
        finite(sum_x + more_x),
        finite(square_x + others_x + weight * of_x * of_x / both),
        finite(sum_y + more_y),
        finite(square_y + others_y + weight * of_y * of_y / both),
        finite(product + products + weight * of_x * of_y / both),
    )


def pair_result(name: str, moments: PairMoments) -> float | int | None:
    """The result of an aggregate of pairs, by its name."""
    number, sum_x, square_x, sum_y, square_y, product = moments
    match name:
        case "regr_count":
            return number
        case "covar_samp" if number > 1:
            return product / (number - 1)
        case "covar_samp":
            return None
        case _ if not number:
            return None
        case "covar_pop":
            return product / number
        case "regr_avgx":
            return sum_x / number
        case "regr_avgy":
            return sum_y / number
        case "regr_sxx":
            return square_x
        case "regr_syy":
            return square_y
        case "regr_sxy":
            return product
        case "corr" if not square_x or not square_y:
            return None
        case "corr":
            return divide(product, math.sqrt(square_x * square_y))
        case _ if not square_x:
            return None
        case "regr_slope":
            return product / square_x
        case "regr_intercept":
            return (sum_y - sum_x * product / square_x) / number
    assert name == "regr_r2", name
    return divide(product * product, square_x * square_y) if square_y else 1.0
